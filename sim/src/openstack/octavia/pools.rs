//! Pools.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::edit::{Edit, Owner, complete, complete_change, list, take, text};
use super::types::{self, Use};
use super::view::attributes;
use super::{Fault, listeners, members, monitors};
use crate::openstack::region::{Kind, Object};

fn is_datagram(protocol: &str) -> bool {
    matches!(protocol, "UDP" | "SCTP")
}

fn persistence(fields: &Map<String, Value>) -> Option<&Map<String, Value>> {
    fields.get("session_persistence").and_then(Value::as_object)
}

/// Checks the session persistence of a pool of a protocol.
fn check_persistence(fields: &Map<String, Value>, protocol: &str, creating: bool) -> Result<(), Fault> {
    let Some(requested) = persistence(fields) else {
        return Ok(());
    };
    let kind = text(requested, "type").unwrap_or_default();
    let is_given = |name: &str| {
        requested
            .get(name)
            .is_some_and(|value| !value.is_null() && value != &json!(0) && value != &json!(""))
    };
    if is_datagram(protocol) {
        if kind == "SOURCE_IP" && is_given("cookie_name") {
            return Err(Fault::validation(
                "session_persistence SOURCE_IP type for UDP and SCTP protocols only accepts: type, \
                 persistence_timeout, persistence_granularity.",
            ));
        }
        if is_given("cookie_name") {
            return Err(Fault::validation(
                "Cookie names are not supported for UDP/SCTP pools.",
            ));
        }
        if matches!(kind, "HTTP_COOKIE" | "APP_COOKIE") {
            return Err(Fault::validation(format!(
                "Session persistence of type {kind} is not supported for UDP/SCTP protocol pools."
            )));
        }
    } else if is_given("persistence_timeout") || is_given("persistence_granularity") {
        let pools = if creating { "UDP and SCTP" } else { "UDP" };
        return Err(Fault::validation(format!(
            "persistence_timeout and persistence_granularity is only for {pools} protocol pools."
        )));
    }
    if is_given("cookie_name") && kind != "APP_COOKIE" {
        return Err(Fault::validation(
            "Field \"cookie_name\" can only be specified with session persistence of type \"APP_COOKIE\".",
        ));
    }
    if kind == "APP_COOKIE" && !is_given("cookie_name") {
        return Err(Fault::validation(
            "Field \"cookie_name\" must be specified when using the \"APP_COOKIE\" session persistence type.",
        ));
    }
    Ok(())
}

/// Checks the features of a provider.
fn check_provider(
    owner: &Owner,
    protocol: &str,
    algorithm: Option<&str>,
    part_of_more: bool,
) -> Result<(), Fault> {
    let unsupported = |message: String| Err(Fault::unsupported(&owner.provider, message));
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

fn prepare(edit: &Edit<'_>, owner: &Owner, fields: &Map<String, Value>) -> Object {
    let mut attrs = take(fields, attributes(Kind::Pool));
    complete(&mut attrs);
    attrs.insert("tls_enabled", json!(false));
    edit.new_object(Kind::Pool, owner, &owner.id, attrs)
}

/// Builds a new pool that is created with its load balancer, followed by its monitor and its members.
pub(super) fn prepare_whole(
    edit: &Edit<'_>,
    owner: &Owner,
    fields: &Map<String, Value>,
) -> Result<Vec<Object>, Fault> {
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
pub(super) fn create(edit: &mut Edit<'_>) -> Result<String, Fault> {
    let fields = edit.fields("pool_", "pool", types::pool(Use::Create, edit.minor()))?;
    let protocol = text(&fields, "protocol").unwrap_or_default();
    let listener_id = text(&fields, "listener_id");
    let listener = match (text(&fields, "loadbalancer_id"), listener_id) {
        (Some(_), _) => None,
        (None, Some(id)) => Some(edit.find(Kind::Listener, id).map_err(|fault| {
            // Octavia fails unexpectedly if the listener does not exist.
            match fault.status.as_u16() {
                404 => Fault::server("'NoneType' object has no attribute 'load_balancer_id'"),
                _ => fault,
            }
        })?),
        (None, None) => {
            return Err(Fault::validation(
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
    check_persistence(&fields, protocol, true)?;
    edit.check_quota(Kind::Pool, &owner.project_id, 1)?;
    let listener = match (listener, listener_id) {
        (None, Some(id)) => edit.region.balancing.get(Kind::Listener, id).cloned(),
        (listener, _) => listener,
    };
    if listener
        .as_ref()
        .is_some_and(|listener| !listener.text("default_pool_id").is_empty())
    {
        return Err(Fault::conflict("This listener already has a default pool"));
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
pub(super) fn update(edit: &mut Edit<'_>, id: &str) -> Result<(), Fault> {
    let mut fields = edit.fields("pool_", "pool", types::pool(Use::Update, edit.minor()))?;
    let pool = edit.find(Kind::Pool, id)?;
    let known = pool.get("session_persistence").get("type").cloned();
    if let Some(requested) = fields
        .get_mut("session_persistence")
        .and_then(Value::as_object_mut)
        && requested.get("type").is_none_or(Value::is_null)
        && let Some(known) = known
    {
        requested.insert("type".to_owned(), known);
    }
    let protocol = pool.text("protocol").to_owned();
    check_persistence(&fields, &protocol, false)?;
    edit.check_mutable(&pool.balancer)?;
    let balancer = edit.find(Kind::LoadBalancer, &pool.balancer)?;
    check_provider(
        &Owner::of(&balancer),
        &protocol,
        text(&fields, "lb_algorithm"),
        false,
    )?;
    let mut attrs = take(&fields, attributes(Kind::Pool));
    complete_change(&mut attrs);
    if attrs.get("session_persistence") == Some(&json!({})) {
        attrs.insert("session_persistence", Value::Null);
    }
    edit.lock_pool(&pool);
    edit.put(id, attrs);
    Ok(())
}

/// `DELETE /v2.0/lbaas/pools/{id}`.
pub(super) fn delete(edit: &mut Edit<'_>, id: &str) -> Result<(), Fault> {
    let pool = edit.find(Kind::Pool, id)?;
    edit.check_mutable(&pool.balancer)?;
    edit.lock_pool(&pool);
    edit.delete_later(id);
    Ok(())
}
