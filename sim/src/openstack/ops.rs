//! Names of operations in the call log, faults and latencies.

use http::Method;

/// A request that the simulator does not have; it is answered with 501.
pub(crate) const UNKNOWN: &str = "unknown";

/// The operation on a collection or on one of its objects. `names` are those of list, create, get, update and delete.
pub(crate) fn of_collection(method: &Method, is_item: bool, names: [&'static str; 5]) -> &'static str {
    let [list, create, get, update, delete] = names;
    match (is_item, method.as_str()) {
        (false, "GET") => list,
        (false, "POST") => create,
        (true, "GET") => get,
        (true, "PUT") => update,
        (true, "DELETE") => delete,
        _ => UNKNOWN,
    }
}
