//! The types of Octavia's objects: their attributes, by request and version. Requests with attributes that only other
//! clients send are refused.

use serde_json::json;

use super::schema::{Attr, Type, attr};

/// The kind of request that contains an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A creation.
    Create,
    /// A creation as a part of another object.
    Part,
    /// An update.
    Update,
}

/// The attributes that a request may contain.
fn in_use(attrs: Vec<Attr>, case: Use) -> Vec<Attr> {
    if case == Use::Update {
        attrs.into_iter().map(Attr::bare).collect()
    } else {
        attrs
    }
}

fn ports() -> Type {
    Type::Integer(Some(1), Some(65535))
}

fn named(with_description: bool) -> Vec<Attr> {
    let mut attrs = vec![attr("name", Type::Text(255))];
    if with_description {
        attrs.push(attr("description", Type::Text(255)));
    }
    attrs.push(attr("admin_state_up", Type::Bool).or(json!(true)));
    attrs.push(attr("tags", Type::Texts).since(5));
    attrs
}

fn owned() -> [Attr; 2] {
    [
        attr("project_id", Type::Text(36)),
        attr("tenant_id", Type::Text(36)),
    ]
}

pub(super) fn load_balancer(case: Use, minor: u32) -> Type {
    let mut attrs = named(true);
    if case == Use::Create {
        attrs.extend([
            attr("vip_address", Type::Address),
            attr("vip_port_id", Type::Uuid),
            attr("vip_subnet_id", Type::Uuid),
            attr("vip_network_id", Type::Uuid),
            attr("additional_vips", Type::Many(additional_vip_attrs())).or(json!([])).since(26),
            attr("listeners", Type::Many(listener_attrs(Use::Part, minor))).or(json!([])),
            attr("pools", Type::Many(pool_attrs(Use::Part, minor))).or(json!([])),
            attr("provider", Type::Text(64)),
            attr("flavor_id", Type::Uuid).since(6),
            attr("availability_zone", Type::Text(255)).since(14),
        ]);
        attrs.extend(owned());
    }
    Type::One(in_use(attrs, case))
}

fn additional_vip_attrs() -> Vec<Attr> {
    vec![
        attr("subnet_id", Type::Uuid).mandatory(),
        attr("ip_address", Type::Address),
    ]
}

/// The values that always existed, and those that a later version introduced.
fn choices(always: &[&'static str], later: &[(&'static str, u32)], minor: u32) -> Vec<&'static str> {
    let later = later.iter().filter(|(_, since)| *since <= minor).map(|(name, _)| *name);
    always.iter().copied().chain(later).collect()
}

fn listener_attrs(case: Use, minor: u32) -> Vec<Attr> {
    let timeout = || Type::Integer(Some(0), Some(24 * 24 * 60 * 60 * 1000));
    let protocols = choices(
        &["TCP", "HTTPS", "HTTP", "TERMINATED_HTTPS", "UDP"],
        &[("SCTP", 23), ("PROMETHEUS", 25)],
        minor,
    );
    let mut attrs = named(true);
    if case != Use::Update {
        attrs.push(attr("protocol", Type::OneOf(protocols)).mandatory());
        attrs.push(attr("protocol_port", ports()).mandatory());
        attrs.push(attr("default_pool", Type::One(pool_attrs(Use::Part, minor))));
    }
    attrs.extend([
        attr("connection_limit", Type::Integer(Some(-1), None)).or(json!(-1)),
        attr("default_tls_container_ref", Type::Text(255)),
        attr("default_pool_id", Type::Uuid),
        attr("insert_headers", Type::Headers),
        attr("timeout_client_data", timeout()).since(1),
        attr("timeout_member_connect", timeout()).since(1),
        attr("timeout_member_data", timeout()).since(1),
        attr("timeout_tcp_inspect", timeout()).since(1),
        attr("allowed_cidrs", Type::Cidrs).since(12),
    ]);
    if case == Use::Create {
        attrs.push(attr("loadbalancer_id", Type::Uuid).mandatory());
        attrs.extend(owned());
    }
    in_use(attrs, case)
}

pub(super) fn listener(case: Use, minor: u32) -> Type {
    Type::One(listener_attrs(case, minor))
}

fn pool_attrs(case: Use, minor: u32) -> Vec<Attr> {
    let protocols =
        choices(&["TCP", "HTTP", "HTTPS", "PROXY", "UDP"], &[("PROXYV2", 22), ("SCTP", 23)], minor);
    let algorithms =
        choices(&["LEAST_CONNECTIONS", "ROUND_ROBIN", "SOURCE_IP"], &[("SOURCE_IP_PORT", 13)], minor);
    let mut algorithm = attr("lb_algorithm", Type::OneOf(algorithms));
    let mut protocol = attr("protocol", Type::OneOf(protocols));
    if case == Use::Create {
        algorithm = algorithm.mandatory();
        protocol = protocol.mandatory();
    }
    let persistence = vec![attr("type", Type::OneOf(vec!["SOURCE_IP"])).mandatory()];
    let mut attrs = named(true);
    if case == Use::Create {
        attrs.push(attr("listener_id", Type::Uuid));
        attrs.push(attr("loadbalancer_id", Type::Uuid));
    }
    if case != Use::Update {
        attrs.push(protocol);
    }
    attrs.push(algorithm);
    attrs.push(attr("session_persistence", Type::One(persistence)));
    if case != Use::Update {
        attrs.push(attr("healthmonitor", Type::One(monitor_attrs(Use::Part, minor))));
        attrs.push(attr("members", Type::Many(member_attrs(Use::Part))));
    }
    if case == Use::Create {
        attrs.extend(owned());
    }
    in_use(attrs, case)
}

pub(super) fn pool(case: Use, minor: u32) -> Type {
    Type::One(pool_attrs(case, minor))
}

fn member_attrs(case: Use) -> Vec<Attr> {
    let mut attrs = named(false);
    if case != Use::Update {
        attrs.extend([
            attr("address", Type::Address).mandatory(),
            attr("protocol_port", ports()).mandatory(),
            attr("subnet_id", Type::Uuid),
        ]);
    }
    let (monitor_port, monitor_address) =
        (attr("monitor_port", ports()), attr("monitor_address", Type::Address));
    attrs.extend([
        attr("weight", Type::Integer(Some(0), Some(256))).or(json!(1)),
        attr("backup", Type::Bool).or(json!(false)).since(1),
        if case == Use::Part {
            monitor_port
        } else {
            monitor_port.or(json!(null))
        },
        if case == Use::Part {
            monitor_address
        } else {
            monitor_address.or(json!(null))
        },
    ]);
    if case == Use::Create {
        attrs.extend(owned());
    }
    in_use(attrs, case)
}

pub(super) fn member(case: Use) -> Type {
    Type::One(member_attrs(case))
}

pub(super) fn members() -> Type {
    Type::Many(member_attrs(Use::Create))
}

fn monitor_attrs(case: Use, minor: u32) -> Vec<Attr> {
    let types =
        choices(&["HTTP", "HTTPS", "PING", "TCP", "TLS-HELLO", "UDP-CONNECT"], &[("SCTP", 23)], minor);
    let methods = vec![
        "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "PATCH",
    ];
    let retries = || Type::Integer(Some(1), Some(10));
    let seconds = || Type::Integer(Some(0), None);
    let mut attrs = named(false);
    if case != Use::Update {
        attrs.push(attr("type", Type::OneOf(types)).mandatory());
    }
    attrs.extend([
        attr("delay", seconds()).mandatory(),
        attr("timeout", seconds()).mandatory(),
        attr("max_retries_down", retries()).or(json!(3)),
        attr("max_retries", retries()).mandatory(),
        attr("http_method", Type::OneOf(methods)),
        attr("url_path", Type::UrlPath),
        attr("expected_codes", Type::Codes),
    ]);
    if case == Use::Create {
        attrs.push(attr("pool_id", Type::Uuid).mandatory());
        attrs.extend(owned());
    }
    in_use(attrs, case)
}

pub(super) fn monitor(case: Use, minor: u32) -> Type {
    Type::One(monitor_attrs(case, minor))
}
