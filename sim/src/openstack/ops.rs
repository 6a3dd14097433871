//! Names of operations in the call log, faults and latencies.

use http::Method;

/// A request that the simulator does not have; it is answered with 501.
pub(crate) const UNKNOWN: &str = "unknown";

/// The operation on a collection or on one of its objects. `names` are those of list, create, get, update and delete;
/// `-` is one that the simulator does not have.
pub(crate) fn of_collection(method: &Method, is_item: bool, names: &'static str) -> &'static str {
    let index = match (is_item, method.as_str()) {
        (false, "GET") => 0,
        (false, "POST") => 1,
        (true, "GET") => 2,
        (true, "PUT") => 3,
        (true, "DELETE") => 4,
        _ => return UNKNOWN,
    };
    let name = names.split_whitespace().nth(index);
    name.filter(|name| *name != "-").unwrap_or(UNKNOWN)
}
