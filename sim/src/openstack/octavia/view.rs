//! The documents of Octavia's objects.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::openstack::region::{Balancing, Kind, Object};

/// Attributes that are shown as they are stored, by kind.
pub(super) fn attributes(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::LoadBalancer => &[
            "name",
            "description",
            "admin_state_up",
            "vip_address",
            "vip_port_id",
            "vip_subnet_id",
            "vip_network_id",
            "vip_sg_ids",
            "additional_vips",
            "provider",
            "flavor_id",
            "vip_qos_policy_id",
            "tags",
            "availability_zone",
            "vip_vnic_type",
        ],
        Kind::Listener => &[
            "name",
            "description",
            "admin_state_up",
            "protocol",
            "protocol_port",
            "connection_limit",
            "default_tls_container_ref",
            "sni_container_refs",
            "default_pool_id",
            "insert_headers",
            "timeout_client_data",
            "timeout_member_connect",
            "timeout_member_data",
            "timeout_tcp_inspect",
            "tags",
            "client_ca_tls_container_ref",
            "client_authentication",
            "client_crl_container_ref",
            "allowed_cidrs",
            "tls_ciphers",
            "tls_versions",
            "alpn_protocols",
            "hsts_max_age",
            "hsts_include_subdomains",
            "hsts_preload",
        ],
        Kind::Pool => &[
            "name",
            "description",
            "admin_state_up",
            "protocol",
            "lb_algorithm",
            "session_persistence",
            "tags",
            "tls_container_ref",
            "ca_tls_container_ref",
            "crl_container_ref",
            "tls_enabled",
            "tls_ciphers",
            "tls_versions",
            "alpn_protocols",
        ],
        Kind::Member => &[
            "name",
            "admin_state_up",
            "address",
            "protocol_port",
            "weight",
            "backup",
            "subnet_id",
            "monitor_address",
            "monitor_port",
            "tags",
            "vnic_type",
        ],
        Kind::Monitor => &[
            "name",
            "type",
            "delay",
            "timeout",
            "max_retries",
            "max_retries_down",
            "http_method",
            "url_path",
            "expected_codes",
            "admin_state_up",
            "tags",
            "http_version",
            "domain_name",
        ],
    }
}

/// The version of the API that introduced an attribute.
fn since(kind: Kind, name: &str) -> u32 {
    match (kind, name) {
        (
            Kind::Listener,
            "timeout_client_data" | "timeout_member_connect" | "timeout_member_data" | "timeout_tcp_inspect",
        ) => 1,
        (_, "tags") => 5,
        (_, "flavor_id") => 6,
        (
            _,
            "client_ca_tls_container_ref"
            | "client_authentication"
            | "client_crl_container_ref"
            | "tls_container_ref"
            | "ca_tls_container_ref"
            | "crl_container_ref"
            | "tls_enabled",
        ) => 8,
        (_, "http_version" | "domain_name") => 10,
        (_, "allowed_cidrs") => 12,
        (_, "availability_zone") => 14,
        (_, "tls_ciphers") => 15,
        (Kind::Listener, "tls_versions") => 17,
        (_, "tls_versions") => 18,
        (Kind::Listener, "alpn_protocols") => 20,
        (_, "alpn_protocols") => 24,
        (_, "additional_vips") => 26,
        (_, "hsts_max_age" | "hsts_include_subdomains" | "hsts_preload") => 27,
        (_, "vip_vnic_type") => 28,
        (_, "vip_sg_ids") => 29,
        (Kind::Member, "vnic_type") => 30,
        _ => 0,
    }
}

/// A time in the format of the service's database.
pub(super) fn time(at: Timestamp) -> Value {
    json!(at.strftime("%Y-%m-%dT%H:%M:%S").to_string())
}

fn id_only<'a>(objects: impl Iterator<Item = &'a std::sync::Arc<Object>>) -> Value {
    objects.map(|object| json!({"id": object.id})).collect()
}

fn common(object: &Object, minor: u32) -> Map<String, Value> {
    let mut fields = Map::new();
    for name in attributes(object.kind) {
        if since(object.kind, name) <= minor {
            fields.insert((*name).to_owned(), object.get(name).clone());
        }
    }
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("id", json!(object.id));
    put("project_id", json!(object.project_id));
    put("tenant_id", json!(object.project_id));
    put("provisioning_status", json!(object.provisioning.name()));
    put("operating_status", json!(object.operating));
    put("created_at", time(object.created));
    put("updated_at", object.updated.map_or(Value::Null, time));
    fields
}

/// The document of an object.
pub(super) fn object(state: &Balancing, object: &Object, minor: u32) -> Map<String, Value> {
    let mut fields = common(object, minor);
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    let balancer = json!([{"id": object.balancer}]);
    match object.kind {
        Kind::LoadBalancer => {
            put("listeners", id_only(state.below(&object.id, Kind::Listener)));
            put("pools", id_only(state.below(&object.id, Kind::Pool)));
        }
        Kind::Listener => {
            put("l7policies", json!([]));
            put("loadbalancers", balancer);
        }
        Kind::Pool => {
            put("loadbalancers", balancer);
            put("listeners", listeners(state, object));
            put("members", id_only(state.below(&object.id, Kind::Member)));
            if let Some(monitor) = state.monitor(&object.id) {
                put("healthmonitor_id", json!(monitor.id));
            }
        }
        Kind::Member => {}
        Kind::Monitor => {
            put("pools", json!([{"id": object.parent}]));
        }
    }
    fields
}

fn listeners(state: &Balancing, pool: &Object) -> Value {
    let ids = state.listeners_of(pool).into_iter();
    ids.map(|id| json!({ "id": id })).collect()
}

/// A load balancer with everything below it, as in the answer to its creation.
pub(super) fn whole(state: &Balancing, balancer: &Object, minor: u32) -> Value {
    let mut fields = common(balancer, minor);
    let below = |kind| state.below(&balancer.id, kind);
    let listeners_shown: Vec<Value> = below(Kind::Listener)
        .map(|listener| {
            let mut fields = common(listener, minor);
            fields.insert("l7policies".to_owned(), json!([]));
            Value::Object(fields)
        })
        .collect();
    let pools: Vec<Value> = below(Kind::Pool)
        .map(|pool| {
            let mut fields = common(pool, minor);
            let members: Vec<Value> = state
                .below(&pool.id, Kind::Member)
                .map(|member| Value::Object(common(member, minor)))
                .collect();
            let monitor = match state.monitor(&pool.id) {
                Some(monitor) => Value::Object(common(monitor, minor)),
                None => Value::Null,
            };
            fields.insert("members".to_owned(), Value::Array(members));
            fields.insert("healthmonitor".to_owned(), monitor);
            fields.insert("listeners".to_owned(), listeners(state, pool));
            Value::Object(fields)
        })
        .collect();
    fields.insert("listeners".to_owned(), Value::Array(listeners_shown));
    fields.insert("pools".to_owned(), Value::Array(pools));
    Value::Object(fields)
}
