//! The operations of requests to Neutron.

use crate::http::Request;
use crate::openstack::{listing, ops};

/// Collections and the operations on them: list, create, get, update and delete.
const COLLECTIONS: [(&str, [&str; 5]); 9] = [
    (
        "networks",
        [
            "network_list",
            ops::UNKNOWN,
            "network_get",
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
    (
        "subnets",
        [
            "subnet_list",
            ops::UNKNOWN,
            "subnet_get",
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
    (
        "ports",
        [
            "port_list",
            "port_create",
            "port_get",
            "port_update",
            "port_delete",
        ],
    ),
    (
        "floatingips",
        [
            "floating_ip_list",
            "floating_ip_create",
            "floating_ip_get",
            "floating_ip_update",
            "floating_ip_delete",
        ],
    ),
    (
        "security-groups",
        [
            "security_group_list",
            "security_group_create",
            "security_group_get",
            ops::UNKNOWN,
            "security_group_delete",
        ],
    ),
    (
        "security-group-rules",
        [
            "security_group_rule_list",
            "security_group_rule_create",
            "security_group_rule_get",
            ops::UNKNOWN,
            "security_group_rule_delete",
        ],
    ),
    (
        "routers",
        [
            "router_list",
            ops::UNKNOWN,
            "router_get",
            "router_update",
            ops::UNKNOWN,
        ],
    ),
    (
        "quotas",
        [
            ops::UNKNOWN,
            ops::UNKNOWN,
            "quota_get",
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
    (
        "extensions",
        [
            "extension_list",
            ops::UNKNOWN,
            ops::UNKNOWN,
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
];

/// The operation of a request to Neutron.
pub(crate) fn op(request: &Request, rest: &[&str]) -> &'static str {
    if listing::is_unsupported(request) {
        return ops::UNKNOWN;
    }
    let (collection, is_item) = match (request.method.as_str(), rest) {
        ("GET", [] | [""]) => return "version_list",
        ("PUT", ["v2.0", "routers", _, "add_extraroutes"]) => return "router_add_extraroutes",
        ("PUT", ["v2.0", "routers", _, "remove_extraroutes"]) => return "router_remove_extraroutes",
        ("PUT", ["v2.0", "ports", _, "tags", _]) => return "tag_add",
        ("DELETE", ["v2.0", "ports", _, "tags", _]) => return "tag_remove",
        (_, ["v2.0", collection]) => (collection, false),
        (_, ["v2.0", collection, id]) if !id.is_empty() => (collection, true),
        _ => return ops::UNKNOWN,
    };
    let found = COLLECTIONS.iter().find(|(name, _)| name == collection);
    found.map_or(ops::UNKNOWN, |(_, names)| ops::of_collection(&request.method, is_item, *names))
}

/// Whether an operation needs exclusive access to the state. A read of security groups does: the first one creates the
/// default group of the project.
pub(crate) fn writes(op: &str) -> bool {
    op.starts_with("security_group_")
        || ["_create", "_update", "_delete", "_extraroutes"].iter().any(|end| op.ends_with(end))
        || op.starts_with("tag_")
}
