//! Listeners.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::edit::{OctaviaEdit, Owner, complete, complete_change, list, take, text};
use super::types::{self, Use};
use super::view::attributes;
use super::{OctaviaFault, schema};
use crate::openstack::region::{Attrs, Kind, Object};

/// The default of an attribute that is null.
const DEFAULTS: &[(&str, i64)] = &[
    ("connection_limit", -1),
    ("timeout_client_data", 50_000),
    ("timeout_member_connect", 5_000),
    ("timeout_member_data", 50_000),
    ("timeout_tcp_inspect", 0),
];

/// The ciphers of listeners that terminate TLS.
const CIPHERS: &str = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:\
    ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
    ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:\
    DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305";

const HTTP_HEADERS: &[&str] = &[
    "X-Forwarded-For",
    "X-Forwarded-Port",
    "X-Forwarded-Proto",
    "X-Forwarded-IP",
    "X-Client-IP",
    "X-Real-IP",
];

const TLS_HEADERS: &[&str] = &[
    "X-SSL-Client-Verify",
    "X-SSL-Client-Has-Cert",
    "X-SSL-Client-DN",
    "X-SSL-Client-CN",
    "X-SSL-Issuer",
    "X-SSL-Client-SHA1",
    "X-SSL-Client-Not-Before",
    "X-SSL-Client-Not-After",
];

/// The identity of a listener on its load balancer: the protocol and the port.
pub(super) fn endpoint(listener: &Object) -> (String, i64) {
    let port = listener.get("protocol_port").as_i64().unwrap_or_default();
    (listener.text("protocol").to_owned(), port)
}

/// The transport below a protocol.
fn transport(protocol: &str) -> &str {
    match protocol {
        "UDP" | "SCTP" => protocol,
        _ => "TCP",
    }
}

/// Checks that a listener can use a pool.
pub(super) fn check_protocols(listener: &str, pool: &str) -> Result<(), OctaviaFault> {
    let fits = match listener {
        "TCP" => matches!(pool, "HTTP" | "HTTPS" | "PROXY" | "PROXYV2" | "TCP"),
        "HTTP" | "TERMINATED_HTTPS" => matches!(pool, "HTTP" | "PROXY" | "PROXYV2"),
        "HTTPS" => matches!(pool, "HTTPS" | "PROXY" | "PROXYV2" | "TCP"),
        other => other == pool,
    };
    if fits {
        return Ok(());
    }
    Err(OctaviaFault::validation(format!(
        "The pool protocol '{pool}' is invalid while the listener protocol is '{listener}'."
    )))
}

fn check_headers(headers: &Map<String, Value>, protocol: &str, creating: bool) -> Result<(), OctaviaFault> {
    if !matches!(protocol, "HTTP" | "TERMINATED_HTTPS") {
        return Err(OctaviaFault::option("insert-headers", format!("a {protocol} protocol listener.")));
    }
    let names: Vec<&str> = headers.keys().map(String::as_str).collect();
    let shown = |names: &[&str]| schema::python(&json!(names));
    if names.iter().any(|name| !HTTP_HEADERS.contains(name) && !TLS_HEADERS.contains(name)) {
        let shown = if creating {
            format!("dict_keys({})", shown(&names))
        } else {
            shown(&names)
        };
        return Err(OctaviaFault::option(shown, "insert_headers"));
    }
    let of_tls: Vec<&str> = names.iter().copied().filter(|name| TLS_HEADERS.contains(name)).collect();
    if protocol != "TERMINATED_HTTPS" && !of_tls.is_empty() {
        return Err(OctaviaFault::option(shown(&of_tls), format!("{protocol} protocol listener.")));
    }
    Ok(())
}

fn headers(fields: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let headers = fields.get("insert_headers").and_then(Value::as_object)?;
    Some(headers).filter(|headers| !headers.is_empty())
}

/// The reference to a certificate.
fn certificate(fields: &Map<String, Value>) -> Option<&str> {
    text(fields, "default_tls_container_ref").filter(|reference| !reference.is_empty())
}

fn check_cidrs(fields: &Map<String, Value>, owner: &Owner) -> Result<(), OctaviaFault> {
    let is_v6 = |text: &str| text.contains(':');
    let vips: Vec<_> = std::iter::once(&owner.vip).chain(&owner.additional_vips).collect();
    for cidr in list(fields, "allowed_cidrs").iter().filter_map(Value::as_str) {
        if vips.iter().all(|vip| is_v6(vip) != is_v6(cidr)) {
            let vips = schema::python(&json!(vips));
            return Err(OctaviaFault::validation(format!(
                "CIDR {cidr} IP version incompatible with all VIPs {vips} IP version."
            )));
        }
    }
    Ok(())
}

/// Builds a new listener, given the existing ones.
pub(super) fn prepare(
    edit: &OctaviaEdit<'_>,
    owner: &Owner,
    fields: &Map<String, Value>,
    siblings: &[(String, i64)],
) -> Result<Object, OctaviaFault> {
    let protocol = text(fields, "protocol").unwrap_or_default();
    if let Some(headers) = headers(fields) {
        check_headers(headers, protocol, true)?;
    }
    let certificate = certificate(fields);
    let datagrams = matches!(protocol, "UDP" | "SCTP");
    if datagrams && (certificate.is_some() || headers(fields).is_some()) {
        return Err(OctaviaFault::validation(format!("{protocol} protocol listener does not support TLS.")));
    }
    let ends_tls = protocol == "TERMINATED_HTTPS";
    if !ends_tls && certificate.is_some() {
        return Err(OctaviaFault::validation(format!(
            "Certificate container references are not allowed on {protocol} protocol listeners."
        )));
    }
    if ends_tls && certificate.is_none() {
        return Err(OctaviaFault::validation(format!(
            "An SNI or default certificate container reference must be provided for {protocol} protocol listeners."
        )));
    }
    if let Some(certificate) = certificate {
        edit.check_certificate(certificate)?;
    }
    let port = fields.get("protocol_port").and_then(Value::as_i64).unwrap_or_default();
    let taken = siblings.iter().find(|(known, at)| *at == port && transport(known) == transport(protocol));
    if let Some((known, _)) = taken {
        return Err(OctaviaFault::conflict(format!(
            "Another Listener on this Load Balancer is already using protocol {known} and protocol_port {port}"
        )));
    }
    check_cidrs(fields, owner)?;
    check_provider(owner, protocol, fields)?;
    let mut attrs = take(fields, attributes(Kind::Listener));
    complete(&mut attrs);
    default_nulls(&mut attrs, true);
    if ends_tls {
        attrs.insert("tls_ciphers", json!(CIPHERS));
        attrs.insert("tls_versions", json!(["TLSv1.2", "TLSv1.3"]));
        attrs.insert("alpn_protocols", json!(["h2", "http/1.1", "http/1.0"]));
    }
    Ok(edit.new_object(Kind::Listener, owner, &owner.id, attrs))
}

/// Replaces null by defaults.
fn default_nulls(attrs: &mut Attrs, creating: bool) {
    let mut put = |name: &'static str, value: Value| {
        let missing = match attrs.get(name) {
            Some(value) => value.is_null(),
            None => creating,
        };
        if missing {
            attrs.insert(name, value);
        }
    };
    for (name, default) in DEFAULTS {
        put(name, json!(default));
    }
    put("client_authentication", json!("NONE"));
    put("hsts_include_subdomains", json!(false));
    put("hsts_preload", json!(false));
    put("insert_headers", json!({}));
    put("sni_container_refs", json!([]));
    if attrs.get("allowed_cidrs") == Some(&json!([])) {
        attrs.insert("allowed_cidrs", Value::Null);
    }
    if let Some(Value::Array(cidrs)) = attrs.get_mut("allowed_cidrs") {
        // The database returns them in the order of a key.
        cidrs.sort_by_key(|cidr| {
            cidr.as_str()
                .map(|text| text.parse::<IpNet>().map_or_else(|_| text.to_owned(), |net| net.to_string()))
        });
        cidrs.dedup();
    }
}

/// Checks the features of a provider.
fn check_provider(owner: &Owner, protocol: &str, fields: &Map<String, Value>) -> Result<(), OctaviaFault> {
    if owner.provider != "ovn" {
        return Ok(());
    }
    if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
        let message = format!("OVN provider does not support {protocol} protocol");
        return Err(OctaviaFault::unsupported(&owner.provider, message));
    }
    if !list(fields, "allowed_cidrs").is_empty() {
        let message = "OVN provider does not support allowed_cidrs option";
        return Err(OctaviaFault::unsupported(&owner.provider, message));
    }
    Ok(())
}

/// `POST /v2.0/lbaas/listeners`.
pub(super) fn create(edit: &mut OctaviaEdit<'_>) -> Result<String, OctaviaFault> {
    let fields = edit.fields("listener_", "listener", types::listener(Use::Create, edit.minor()))?;
    let balancer = edit.find(Kind::LoadBalancer, text(&fields, "loadbalancer_id").unwrap_or_default())?;
    let owner = Owner::of(&balancer);
    edit.check_quota(Kind::Listener, &owner.project_id, 1)?;
    if let Some(pool) = text(&fields, "default_pool_id") {
        check_pool(edit, &owner.id, pool, text(&fields, "protocol").unwrap_or_default())?;
    }
    edit.check_mutable(&owner.id)?;
    let siblings: Vec<(String, i64)> = edit
        .region
        .balancing
        .below(&owner.id, Kind::Listener)
        .map(|listener| endpoint(listener))
        .collect();
    let listener = prepare(edit, &owner, &fields, &siblings)?;
    let id = listener.id.clone();
    edit.region.balancing.insert(listener);
    edit.lock(&owner.id, &[]);
    Ok(id)
}

/// Checks that a pool of the same load balancer can be a listener's default.
fn check_pool(
    edit: &OctaviaEdit<'_>,
    balancer: &str,
    pool: &str,
    protocol: &str,
) -> Result<(), OctaviaFault> {
    match edit.region.balancing.get(Kind::Pool, pool) {
        Some(found) if found.balancer == balancer => check_protocols(protocol, found.text("protocol")),
        _ => Err(OctaviaFault::not_found("Pool", pool)),
    }
}

/// `PUT /v2.0/lbaas/listeners/{id}`.
pub(super) fn update(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let fields = edit.fields("listener_", "listener", types::listener(Use::Update, edit.minor()))?;
    let listener = edit.find(Kind::Listener, id)?;
    let balancer = edit.find(Kind::LoadBalancer, &listener.balancer)?;
    let owner = Owner::of(&balancer);
    let protocol = listener.text("protocol");
    let certificate = certificate(&fields);
    if matches!(protocol, "UDP" | "SCTP") && (certificate.is_some() || headers(&fields).is_some()) {
        return Err(OctaviaFault::validation(format!(
            "{protocol} protocol listener does not support TLS or header insertion."
        )));
    }
    if protocol != "TERMINATED_HTTPS" && certificate.is_some() {
        return Err(OctaviaFault::validation(format!(
            "Certificate container references are not allowed on {protocol} protocol listeners."
        )));
    }
    if let Some(headers) = headers(&fields) {
        check_headers(headers, protocol, false)?;
    }
    if let Some(certificate) = certificate {
        edit.check_certificate(certificate)?;
    }
    check_cidrs(&fields, &owner)?;
    if let Some(pool) = text(&fields, "default_pool_id") {
        check_pool(edit, &owner.id, pool, protocol)?;
    }
    edit.check_mutable(&owner.id)?;
    check_provider(&owner, protocol, &fields)?;
    let mut attrs = take(&fields, attributes(Kind::Listener));
    complete_change(&mut attrs);
    default_nulls(&mut attrs, false);
    edit.lock(&owner.id, &[id.to_owned()]);
    edit.put(id, attrs);
    Ok(())
}

/// `DELETE /v2.0/lbaas/listeners/{id}`.
pub(super) fn delete(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let listener = edit.find(Kind::Listener, id)?;
    edit.check_mutable(&listener.balancer)?;
    edit.lock(&listener.balancer, &[]);
    edit.delete_later(id);
    Ok(())
}

/// Whether an address is an IPv6 address.
pub(super) fn is_v6(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6())
}
