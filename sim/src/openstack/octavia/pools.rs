//! Pools.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::edit::{OctaviaEdit, Owner, complete, complete_change, list, take, text};
use super::types::{self, Use};
use super::view::attributes;
use super::{OctaviaFault, listeners, members, monitors};
use crate::openstack::region::{Attrs, Kind, Object};

/// Adds the attributes of a session persistence that only answers have.
fn complete_persistence(attrs: &mut Attrs) {
    if let Some(Value::Object(persistence)) = attrs.get_mut("session_persistence") {
        for name in ["cookie_name", "persistence_timeout", "persistence_granularity"] {
            persistence.insert(name.to_owned(), Value::Null);
        }
    }
}

/// Checks the features of a provider.
fn check_provider(
    owner: &Owner,
    protocol: &str,
    algorithm: Option<&str>,
    part_of_more: bool,
) -> Result<(), OctaviaFault> {
    let unsupported = |message: String| Err(OctaviaFault::unsupported(&owner.provider, message));
    match (owner.provider.as_str(), algorithm) {
        ("ovn", _) if !matches!(protocol, "TCP" | "UDP" | "SCTP") => {
            unsupported(format!("OVN provider does not support {protocol} protocol"))
        }
        ("ovn", Some(algorithm)) if algorithm != "SOURCE_IP_PORT" => {
            unsupported(format!("OVN provider does not support {algorithm} algorithm"))
        }
        // Octavia does not check this for pools that are created with their load balancer.
        ("amphora" | "octavia", Some("SOURCE_IP_PORT")) if !part_of_more => {
            unsupported("Amphora provider does not support SOURCE_IP_PORT algorithm.".to_owned())
        }
        _ => Ok(()),
    }
}

fn prepare(edit: &OctaviaEdit<'_>, owner: &Owner, fields: &Map<String, Value>) -> Object {
    let mut attrs = take(fields, attributes(Kind::Pool));
    complete(&mut attrs);
    complete_persistence(&mut attrs);
    attrs.insert("tls_enabled", json!(false));
    edit.new_object(Kind::Pool, owner, &owner.id, attrs)
}

/// Builds a new pool that is created with its load balancer, followed by its monitor and its members.
pub(super) fn prepare_whole(
    edit: &OctaviaEdit<'_>,
    owner: &Owner,
    fields: &Map<String, Value>,
) -> Result<Vec<Object>, OctaviaFault> {
    let protocol = text(fields, "protocol").unwrap_or_default();
    check_provider(owner, protocol, text(fields, "lb_algorithm"), true)?;
    let pool = prepare(edit, owner, fields);
    let mut parts = Vec::new();
    if let Some(monitor) = fields.get("healthmonitor").and_then(Value::as_object) {
        edit.check_quota(Kind::Monitor, &owner.project_id, 1)?;
        let monitor = monitors::prepare(edit, owner, &pool.id, monitor)?;
        monitors::check_kind(edit, monitor.text("type"), monitor.get("delay"), protocol)?;
        monitors::check_provider(owner, monitor.text("type"))?;
        parts.push(monitor);
    }
    let requested = list(fields, "members");
    if !requested.is_empty() {
        edit.check_quota(Kind::Member, &owner.project_id, requested.len())?;
    }
    let mut known = HashSet::new();
    for member in requested.iter().filter_map(Value::as_object) {
        members::check_address(member)?;
        let member = members::prepare(edit, owner, &pool.id, member, &mut known)?;
        parts.push(member);
    }
    parts.insert(0, pool);
    Ok(parts)
}

/// `POST /v2.0/lbaas/pools`.
pub(super) fn create(edit: &mut OctaviaEdit<'_>) -> Result<String, OctaviaFault> {
    let fields = edit.fields("pool_", "pool", types::pool(Use::Create, edit.minor()))?;
    let protocol = text(&fields, "protocol").unwrap_or_default();
    let listener_id = text(&fields, "listener_id");
    let listener = match (text(&fields, "loadbalancer_id"), listener_id) {
        (Some(_), _) => None,
        (None, Some(id)) => Some(edit.find(Kind::Listener, id).map_err(|fault| {
            // Octavia fails unexpectedly if the listener does not exist.
            match fault.status.as_u16() {
                404 => OctaviaFault::server("'NoneType' object has no attribute 'load_balancer_id'"),
                _ => fault,
            }
        })?),
        (None, None) => {
            return Err(OctaviaFault::validation(
                "Must provide at least one of: loadbalancer_id, listener_id",
            ));
        }
    };
    let balancer = match &listener {
        Some(listener) => listener.balancer.clone(),
        None => text(&fields, "loadbalancer_id").unwrap_or_default().to_owned(),
    };
    let balancer = edit.find(Kind::LoadBalancer, &balancer)?;
    let owner = Owner::of(&balancer);
    if let Some(listener) = &listener {
        listeners::check_protocols(listener.text("protocol"), protocol)?;
    }
    edit.check_quota(Kind::Pool, &owner.project_id, 1)?;
    let listener = match (listener, listener_id) {
        (None, Some(id)) => edit.region.balancing.get(Kind::Listener, id).cloned(),
        (listener, _) => listener,
    };
    if listener.as_ref().is_some_and(|listener| !listener.text("default_pool_id").is_empty()) {
        return Err(OctaviaFault::conflict("This listener already has a default pool"));
    }
    edit.check_mutable(&owner.id)?;
    check_provider(&owner, protocol, text(&fields, "lb_algorithm"), false)?;
    let pool = prepare(edit, &owner, &fields);
    let id = pool.id.clone();
    edit.region.balancing.insert(pool);
    let concerned: Vec<String> = listener.iter().map(|listener| listener.id.clone()).collect();
    edit.lock(&owner.id, &concerned);
    if let Some(listener) = listener {
        edit.put(&listener.id, [("default_pool_id", json!(id))].into());
    }
    Ok(id)
}

/// `PUT /v2.0/lbaas/pools/{id}`.
pub(super) fn update(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let fields = edit.fields("pool_", "pool", types::pool(Use::Update, edit.minor()))?;
    let pool = edit.find(Kind::Pool, id)?;
    edit.check_mutable(&pool.balancer)?;
    let balancer = edit.find(Kind::LoadBalancer, &pool.balancer)?;
    check_provider(&Owner::of(&balancer), pool.text("protocol"), text(&fields, "lb_algorithm"), false)?;
    let mut attrs = take(&fields, attributes(Kind::Pool));
    complete_change(&mut attrs);
    complete_persistence(&mut attrs);
    edit.lock_pool(&pool);
    edit.put(id, attrs);
    Ok(())
}

/// `DELETE /v2.0/lbaas/pools/{id}`.
pub(super) fn delete(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let pool = edit.find(Kind::Pool, id)?;
    edit.check_mutable(&pool.balancer)?;
    edit.lock_pool(&pool);
    edit.delete_later(id);
    Ok(())
}
