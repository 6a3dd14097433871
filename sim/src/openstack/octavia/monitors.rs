//! Health monitors.

use serde_json::{Map, Value, json};

use super::OctaviaFault;
use super::edit::{OctaviaEdit, Owner, complete, complete_change, take, text};
use super::types::{self, Use};
use super::view::attributes;
use crate::openstack::region::{Kind, Object, Provisioning};

/// The defaults of a monitor of type HTTP.
const HTTP: &[(&str, &str)] = &[
    ("http_method", "GET"),
    ("url_path", "/"),
    ("expected_codes", "200"),
];

fn speaks_http(kind: &str) -> bool {
    matches!(kind, "HTTP" | "HTTPS")
}

/// Builds a new health monitor.
pub(super) fn prepare(
    edit: &OctaviaEdit<'_>,
    owner: &Owner,
    pool: &str,
    fields: &Map<String, Value>,
) -> Result<Object, OctaviaFault> {
    for needed in ["type", "delay", "timeout", "max_retries"] {
        if fields.get(needed).is_none_or(Value::is_null) {
            return Err(OctaviaFault::option("None", needed));
        }
    }
    let kind = text(fields, "type").unwrap_or_default();
    let mut attrs = take(fields, attributes(Kind::Monitor));
    for (name, default) in HTTP {
        let given = text(fields, name).is_some_and(|value| !value.is_empty());
        if !speaks_http(kind) && given {
            return Err(OctaviaFault::option(name, format!("health monitors of type {kind}")));
        }
        if speaks_http(kind) && !given {
            attrs.insert(name, json!(default));
        }
    }
    complete(&mut attrs);
    attrs.remove("description");
    if attrs.get("max_retries_down").is_none_or(Value::is_null) {
        attrs.insert("max_retries_down", json!(3));
    }
    Ok(edit.new_object(Kind::Monitor, owner, pool, attrs))
}

/// Checks that a monitor of this type can check a pool of a protocol.
pub(super) fn check_kind(
    edit: &OctaviaEdit<'_>,
    kind: &str,
    delay: &Value,
    protocol: &str,
) -> Result<(), OctaviaFault> {
    let datagrams = matches!(protocol, "UDP" | "SCTP");
    if !datagrams {
        if matches!(kind, "UDP-CONNECT" | "SCTP") {
            return Err(OctaviaFault::validation(format!(
                "The {kind} type is only supported for pools of type UDP/SCTP."
            )));
        }
        return Ok(());
    }
    let fits = match kind {
        "UDP-CONNECT" | "SCTP" => true,
        "TCP" | "HTTP" => edit.minor() >= 16,
        _ => false,
    };
    if !fits {
        let kinds = if edit.minor() >= 16 {
            "UDP-CONNECT/SCTP/TCP/HTTP"
        } else {
            "UDP-CONNECT"
        };
        return Err(OctaviaFault::validation(format!(
            "The associated pool protocol is {protocol}, so only a {kinds} health monitor is supported."
        )));
    }
    /// In seconds.
    const LEAST: i64 = 3;
    match delay.as_i64() {
        Some(delay) if kind == "UDP-CONNECT" && delay < LEAST => Err(OctaviaFault::validation(format!(
            "The request delay value {delay} should be larger than {LEAST} for UDP-CONNECT health monitor type."
        ))),
        _ => Ok(()),
    }
}

/// Checks the features of a provider.
pub(super) fn check_provider(owner: &Owner, kind: &str) -> Result<(), OctaviaFault> {
    if owner.provider == "ovn" && !matches!(kind, "TCP" | "UDP-CONNECT") {
        let message = format!(
            "OVN provider does not support {kind} health monitor type. Supported types: TCP, UDP-CONNECT"
        );
        return Err(OctaviaFault::unsupported(&owner.provider, message));
    }
    Ok(())
}

/// `POST /v2.0/lbaas/healthmonitors`.
pub(super) fn create(edit: &mut OctaviaEdit<'_>) -> Result<String, OctaviaFault> {
    let kind = types::monitor(Use::Create, edit.minor());
    let fields = edit.fields("health_monitor_", "healthmonitor", kind)?;
    let pool = edit.find(Kind::Pool, text(&fields, "pool_id").unwrap_or_default())?;
    let balancer = edit.find(Kind::LoadBalancer, &pool.balancer)?;
    let owner = Owner::of(&balancer);
    let delay = fields.get("delay").unwrap_or(&Value::Null);
    let kind = text(&fields, "type").unwrap_or_default();
    check_kind(edit, kind, delay, pool.text("protocol"))?;
    edit.check_quota(Kind::Monitor, &owner.project_id, 1)?;
    edit.check_pool(&pool)?;
    let monitor = prepare(edit, &owner, &pool.id, &fields)?;
    if edit.region.balancing.monitor(&pool.id).is_some() {
        return Err(OctaviaFault::conflict("This pool already has a health monitor"));
    }
    check_provider(&owner, kind)?;
    let id = monitor.id.clone();
    edit.region.balancing.insert(monitor);
    edit.lock_pool(&pool);
    Ok(id)
}

/// `PUT /v2.0/lbaas/healthmonitors/{id}`.
pub(super) fn update(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let kind = types::monitor(Use::Update, edit.minor());
    let fields = edit.fields("health_monitor_", "healthmonitor", kind)?;
    let monitor = edit.find(Kind::Monitor, id)?;
    let pool = edit.find(Kind::Pool, &monitor.parent)?;
    let kind = monitor.text("type");
    if !speaks_http(kind) {
        for (name, _) in HTTP {
            if fields.contains_key(*name) {
                return Err(OctaviaFault::option(name, format!("health monitors of type {kind}")));
            }
        }
    }
    for needed in ["delay", "max_retries", "timeout"] {
        if fields.get(needed).is_some_and(Value::is_null) {
            return Err(OctaviaFault::option("None", needed));
        }
    }
    let delay = fields.get("delay").unwrap_or(&Value::Null);
    if matches!(pool.text("protocol"), "UDP" | "SCTP") {
        check_kind(edit, kind, delay, pool.text("protocol"))?;
    }
    edit.check_pool(&pool)?;
    let mut attrs = take(&fields, attributes(Kind::Monitor));
    complete_change(&mut attrs);
    for (name, default) in HTTP {
        if attrs.get(name) == Some(&Value::Null) {
            attrs.insert(name, json!(default));
        }
    }
    if attrs.get("max_retries_down") == Some(&Value::Null) {
        attrs.insert("max_retries_down", json!(3));
    }
    edit.lock_pool(&pool);
    edit.put(id, attrs);
    let now = edit.now();
    edit.region.balancing.set_status(id, Provisioning::PendingUpdate, now);
    Ok(())
}

/// `DELETE /v2.0/lbaas/healthmonitors/{id}`.
pub(super) fn delete(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let monitor = edit.find(Kind::Monitor, id)?;
    let pool = edit.find(Kind::Pool, &monitor.parent)?;
    edit.check_pool(&pool)?;
    edit.lock_pool(&pool);
    edit.delete_later(id);
    Ok(())
}
