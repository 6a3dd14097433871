//! Which operation a request to Neutron is.

use http::Method;

/// The operation behind a path below Neutron's endpoint.
pub(crate) fn op(method: &Method, rest: &[String]) -> &'static str {
    // The framework decodes a path before it divides it.
    if rest.iter().any(|segment| segment.contains('/')) {
        return "unknown";
    }
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let (collection, item) = match rest.as_slice() {
        [] | [""] => {
            return if *method == Method::GET {
                "version_list"
            } else {
                "bad_method"
            };
        }
        ["v2.0", ""] => {
            return if *method == Method::GET {
                "resource_list"
            } else {
                "bad_method"
            };
        }
        ["v2.0", collection] | ["v2.0", collection, ""] => (without_format(collection), false),
        ["v2.0", collection, _] => (*collection, true),
        ["v2.0", "routers", _, "add_extraroutes"] if *method == Method::PUT => {
            return "router_add_extraroutes";
        }
        ["v2.0", "routers", _, "remove_extraroutes"] if *method == Method::PUT => {
            return "router_remove_extraroutes";
        }
        ["v2.0", collection, _, "tags", rest @ ..] if has_tags(collection) => {
            return match (method, rest) {
                (&Method::GET, []) => "tag_list",
                (&Method::PUT, []) => "tag_replace",
                (&Method::DELETE, []) => "tag_clear",
                (&Method::GET, [_]) => "tag_get",
                (&Method::PUT, [_]) => "tag_add",
                (&Method::DELETE, [_]) => "tag_remove",
                _ => "unknown",
            };
        }
        _ => return "unknown",
    };
    let ops = match collection {
        "networks" => [
            "network_list",
            "network_create",
            "network_get",
            "network_update",
            "network_delete",
        ],
        "subnets" => [
            "subnet_list",
            "subnet_create",
            "subnet_get",
            "subnet_update",
            "subnet_delete",
        ],
        "ports" => [
            "port_list",
            "port_create",
            "port_get",
            "port_update",
            "port_delete",
        ],
        "floatingips" => [
            "floating_ip_list",
            "floating_ip_create",
            "floating_ip_get",
            "floating_ip_update",
            "floating_ip_delete",
        ],
        "security-groups" => [
            "security_group_list",
            "security_group_create",
            "security_group_get",
            "security_group_update",
            "security_group_delete",
        ],
        "security-group-rules" => [
            "security_group_rule_list",
            "security_group_rule_create",
            "security_group_rule_get",
            "security_group_rule_update",
            "security_group_rule_delete",
        ],
        "routers" => [
            "router_list",
            "router_create",
            "router_get",
            "router_update",
            "router_delete",
        ],
        "quotas" => [
            "quota_list",
            "quota_create",
            "quota_get",
            "quota_update",
            "quota_delete",
        ],
        "extensions" => [
            "extension_list",
            "extension_write",
            "extension_get",
            "extension_write",
            "extension_write",
        ],
        _ => return "unknown",
    };
    let none = match collection {
        "networks" => "network_none",
        "subnets" => "subnet_none",
        "floatingips" => "floating_ip_none",
        "security-groups" => "security_group_none",
        "security-group-rules" => "security_group_rule_none",
        "routers" => "router_none",
        _ => "port_none",
    };
    let [list, create, get, update, delete] = ops;
    match (item, method) {
        (false, &Method::GET) => list,
        (false, &Method::POST) => create,
        (true, &Method::GET) => get,
        (true, &Method::PUT) => update,
        (true, &Method::DELETE) => delete,
        // The extensions controller never learnt about 405.
        _ if collection == "extensions" => "extension_write",
        // Without an id, the id of what is to change is taken to be None.
        (false, &Method::PUT | &Method::DELETE) => none,
        _ => "bad_method",
    }
}

/// Collections whose things bear tags.
fn has_tags(collection: &str) -> bool {
    matches!(
        collection,
        "networks" | "subnets" | "ports" | "routers" | "floatingips" | "security-groups"
    )
}

/// Whether an operation needs the state for itself. Looking at security groups does: the default one of a project is
/// made by the first look.
pub(crate) fn writes(op: &str) -> bool {
    op.starts_with("tag_")
        || op.starts_with("security_group_")
        || matches!(
            op,
            "floating_ip_create"
                | "floating_ip_update"
                | "floating_ip_delete"
                | "port_create"
                | "port_update"
                | "port_delete"
                | "router_update"
                | "router_add_extraroutes"
                | "router_remove_extraroutes"
        )
}

/// The last part of a path without the format that may follow it.
pub(super) fn without_format(segment: &str) -> &str {
    segment.strip_suffix(".json").unwrap_or(segment)
}
