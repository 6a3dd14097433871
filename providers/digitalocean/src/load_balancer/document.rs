//! A load balancer as returned by the API, and the body of a write.
//!
//! Every `PUT` replaces the whole document, and resets omitted fields to their defaults. Therefore an update edits a copy of
//! the observed document, which keeps unmanaged fields unchanged.

use std::{collections::BTreeSet, sync::LazyLock};

use ccm_core::plan::document::{Document, Rules, extend};
use serde_json::{Map, Value, json};

use crate::config::LbType;

/// A load balancer.
pub(crate) type Balancer = Document;

/// The names of the fields that more than one module uses.
pub(crate) mod field {
    pub(crate) const NAME: &str = "name";
    pub(crate) const TYPE: &str = "type";
    pub(crate) const NETWORK: &str = "network";
    pub(crate) const NETWORK_STACK: &str = "network_stack";
    pub(crate) const REGION: &str = "region";
    pub(crate) const VPC: &str = "vpc_uuid";
    pub(crate) const SUBNET: &str = "subnet_uuid";
    pub(crate) const IP: &str = "ip";
    pub(crate) const IPV6: &str = "ipv6";
    pub(crate) const STATUS: &str = "status";
    /// The number of nodes of the load balancer.
    pub(crate) const SIZE_UNIT: &str = "size_unit";
    /// The size by a former name.
    pub(crate) const SIZE: &str = "size";
    /// The tag that selects droplets, in place of a list.
    pub(crate) const TAG: &str = "tag";
    /// The tags of the load balancer itself.
    pub(crate) const TAGS: &str = "tags";
    pub(crate) const DROPLET_IDS: &str = "droplet_ids";
    pub(crate) const FORWARDING_RULES: &str = "forwarding_rules";
    pub(crate) const HEALTH_CHECK: &str = "health_check";
    pub(crate) const FIREWALL: &str = "firewall";
    pub(crate) const STICKY_SESSIONS: &str = "sticky_sessions";
    pub(crate) const REDIRECT: &str = "redirect_http_to_https";
    pub(crate) const PROXY_PROTOCOL: &str = "enable_proxy_protocol";
    pub(crate) const KEEPALIVE: &str = "enable_backend_keepalive";
    pub(crate) const DISABLE_DNS_RECORDS: &str = "disable_lets_encrypt_dns_records";
    pub(crate) const IDLE_TIMEOUT: &str = "http_idle_timeout_seconds";
    pub(crate) const ALGORITHM: &str = "algorithm";
}

/// The comparison rules for load balancers.
pub(crate) static RULES: LazyLock<Rules> = LazyLock::new(|| {
    Rules::default()
        .read_only(&["id", field::IP, field::IPV6, field::STATUS, "created_at"])
        .shown(&[field::REGION])
        .set(field::FORWARDING_RULES, &["entry_protocol", "entry_port"])
        .set(field::DROPLET_IDS, &[])
        .set("firewall.allow", &[])
        .set("firewall.deny", &[])
        .set(field::TAGS, &[])
        .defaults([
            (field::SIZE_UNIT, json!(1)),
            (field::TAG, json!("")),
            (field::TAGS, json!([])),
            (field::DROPLET_IDS, json!([])),
            (field::FORWARDING_RULES, json!([])),
            ("forwarding_rules[].certificate_id", json!("")),
            ("forwarding_rules[].tls_passthrough", json!(false)),
            (field::HEALTH_CHECK, json!({})),
            ("health_check.proxy_protocol", json!(false)),
            (field::STICKY_SESSIONS, json!({"type": "none"})),
            ("sticky_sessions.type", json!("none")),
            (field::REDIRECT, json!(false)),
            (field::PROXY_PROTOCOL, json!(false)),
            (field::KEEPALIVE, json!(false)),
            (field::DISABLE_DNS_RECORDS, json!(false)),
            (field::IDLE_TIMEOUT, json!(60)),
            (field::FIREWALL, json!({})),
            ("firewall.allow", json!([])),
            ("firewall.deny", json!([])),
        ])
});

/// The load balancer's name and ID, for messages.
pub(crate) fn title(balancer: &Balancer) -> String {
    format!("load balancer {} ({})", balancer.name(), balancer.id())
}

/// The type, if Services can have it.
pub(crate) fn kind(balancer: &Balancer) -> Option<LbType> {
    LbType::parse(immutable(balancer, field::TYPE)?)
}

/// The slug of the region; empty if the API omits it, as for load balancers of type `GLOBAL`.
pub(crate) fn region(balancer: &Balancer) -> &str {
    let region = &balancer.fields()[field::REGION];
    region["slug"].as_str().or(region.as_str()).unwrap_or_default()
}

pub(crate) fn is_internal(balancer: &Balancer) -> bool {
    balancer.text(field::NETWORK) == "INTERNAL"
}

/// The addresses that it has already.
pub(crate) fn addresses(balancer: &Balancer) -> impl Iterator<Item = &str> {
    [field::IP, field::IPV6]
        .into_iter()
        .map(|field| balancer.text(field))
        .filter(|address| !address.is_empty())
}

/// Whether the API is still creating the load balancer.
pub(crate) fn is_new(balancer: &Balancer) -> bool {
    balancer.text(field::STATUS) == "new"
}

/// Whether the load balancer is active.
pub(crate) fn is_active(balancer: &Balancer) -> bool {
    balancer.text(field::STATUS) == "active"
}

/// The first certificate of the forwarding rules.
pub(crate) fn certificate(balancer: &Balancer) -> Option<&str> {
    balancer
        .list(field::FORWARDING_RULES)
        .filter_map(|rule| rule.get("certificate_id")?.as_str())
        .find(|id| !id.is_empty())
}

/// Whether the load balancer terminates TLS or adds the PROXY protocol, so that nodes do not get the clients' packets.
pub(crate) fn is_proxy(balancer: &Balancer) -> bool {
    let adds_proxy_protocol = balancer.fields()[field::PROXY_PROTOCOL] == true;
    kind(balancer) == Some(LbType::Regional) && (adds_proxy_protocol || certificate(balancer).is_some())
}

/// The tags. Empty if the API omits them.
pub(crate) fn tags(balancer: &Balancer) -> impl Iterator<Item = &str> {
    balancer.list(field::TAGS).filter_map(Value::as_str)
}

/// Whether the API returned the tags.
pub(crate) fn has_tags(balancer: &Balancer) -> bool {
    !balancer.fields()[field::TAGS].is_null()
}

/// An immutable field, or the API's default; `None` if the API omits it.
pub(crate) fn immutable<'a>(balancer: &'a Balancer, name: &str) -> Option<&'a str> {
    match (name, balancer.text(name)) {
        (field::TYPE, "") => Some("REGIONAL"),
        (field::NETWORK, "") => Some("EXTERNAL"),
        (_, "") => None,
        (_, text) => Some(text),
    }
}

/// Settings that are written with every change and not compared. `None` keeps the observed value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteOnly {
    /// The API ignores it.
    pub(crate) algorithm: Option<&'static str>,
    /// Health checks without the PROXY protocol. Otherwise they follow the load balancer. The API may omit it.
    pub(crate) plain_checks: Option<bool>,
    /// The size by its name, in place of the number.
    pub(crate) slug: Option<&'static str>,
    /// The VPC and the subnet, in case the API omits them: a `PUT` without them may reset them.
    pub(crate) vpc: Option<String>,
    pub(crate) subnet: Option<String>,
}

/// The load balancer after a write of `body`: as replied, and as sent where the reply has no such field.
pub(crate) fn written(before: &Balancer, body: &Value, reply: &Balancer) -> Balancer {
    let mut fields = RULES.after(before, body, Some(reply)).fields().clone();
    extend(&mut fields, reply.fields());
    Balancer::planned(&fields)
}

/// The changes in `body` that the API did not apply, by its reply.
pub(crate) fn dropped(body: &Value, reply: &Balancer) -> BTreeSet<String> {
    let mut sent = body.clone();
    if let Some(fields) = sent.as_object_mut() {
        // The API returns these in another form, or not at all.
        fields.retain(|name, _| ![field::REGION, field::ALGORITHM, field::TAGS].contains(&name.as_str()));
    }
    match RULES.edit(reply, &sent) {
        Some(edit) => edit.changes.into_iter().collect(),
        None => BTreeSet::new(),
    }
}

/// Converts a document to a body that the API accepts.
pub(crate) fn sendable(mut document: Value, write_only: &WriteOnly) -> Value {
    let Some(fields) = document.as_object_mut() else {
        return document;
    };
    if let Some(slug) = fields.get(field::REGION).and_then(|region| region.get("slug")).cloned() {
        fields.insert(field::REGION.to_owned(), slug);
    }
    // The size is either a name or a number.
    if write_only.slug.is_some() {
        fields.remove(field::SIZE_UNIT);
    } else if fields.get(field::SIZE_UNIT).is_some_and(|unit| !unit.is_null()) {
        fields.remove(field::SIZE);
    }
    for (name, value) in [(field::VPC, &write_only.vpc), (field::SUBNET, &write_only.subnet)] {
        let is_omitted = !has_text(fields, name);
        if is_omitted && let Some(value) = value {
            fields.insert(name.to_owned(), json!(value));
        }
    }
    // The droplets are either a list or those with a tag.
    if has_text(fields, field::TAG) {
        fields.remove(field::DROPLET_IDS);
    } else {
        fields.remove(field::TAG);
        fields.entry(field::DROPLET_IDS).or_insert_with(|| json!([]));
    }
    fields.retain(|_, value| !value.is_null());
    if let Some(algorithm) = write_only.algorithm {
        fields.insert(field::ALGORITHM.to_owned(), json!(algorithm));
    }
    if let Some(Value::Object(check)) = fields.get_mut(field::HEALTH_CHECK) {
        match write_only.plain_checks {
            Some(true) => {
                check.insert("proxy_protocol".to_owned(), json!(false));
            }
            Some(false) => {
                check.remove("proxy_protocol");
            }
            None => {}
        }
        if check.get("protocol").is_some_and(|protocol| protocol == "tcp") {
            check.remove("path");
        }
    }
    document
}

/// Whether a field is a text that is not empty.
fn has_text(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_the_api_does_not_apply_is_known_from_its_reply() {
        let balancer = |fields: Value| -> Balancer { serde_json::from_value(fields).unwrap() };
        let body = json!({
            "name": "web", "region": "nyc3", "algorithm": "round_robin", "tags": ["a"], "droplet_ids": [1, 2],
            "firewall": {"allow": ["ip:192.0.2.1", "ip:2001:db8::1"], "deny": []},
        });
        let reply = |allow: Value| {
            balancer(json!({
                "id": "x", "name": "web", "region": {"slug": "nyc3"}, "droplet_ids": [2, 1], "status": "new",
                "firewall": { "allow": allow },
            }))
        };
        let all = reply(json!(["ip:2001:db8::1", "ip:192.0.2.1"]));
        assert_eq!(dropped(&body, &all), BTreeSet::new());
        let some = reply(json!(["ip:192.0.2.1"]));
        let changes: Vec<_> = dropped(&body, &some).into_iter().collect();
        assert_eq!(changes, ["firewall.allow added: ip:2001:db8::1"]);
        let after = written(&balancer(json!({"id": "x", "ip": "192.0.2.9"})), &body, &some);
        assert_eq!((after.text("status"), after.text("ip")), ("new", "192.0.2.9"));
        assert_eq!(after.fields()["firewall"], json!({"allow": ["ip:192.0.2.1"]}));
        assert_eq!(after.fields()["tags"], json!(["a"]));
    }

    #[test]
    fn a_body_has_no_mutually_exclusive_fields() {
        let document = json!({
            "region": {"slug": "nyc3"}, "size": "lb-small", "size_unit": 2, "tag": "", "glb_settings": null,
            "health_check": {"protocol": "tcp", "path": "/"},
        });
        let write_only = WriteOnly {
            algorithm: Some("round_robin"),
            plain_checks: Some(true),
            vpc: Some("v".to_owned()),
            ..WriteOnly::default()
        };
        assert_eq!(
            sendable(document, &write_only),
            json!({
                "region": "nyc3", "size_unit": 2, "droplet_ids": [], "algorithm": "round_robin", "vpc_uuid": "v",
                "health_check": {"protocol": "tcp", "proxy_protocol": false},
            })
        );
    }
}
