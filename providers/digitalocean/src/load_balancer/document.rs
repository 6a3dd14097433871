//! A load balancer as returned by the API, and the body of a write.
//!
//! Every `PUT` replaces the whole document, and resets omitted fields to their defaults. Therefore an update edits a copy of
//! the observed document, which keeps unmanaged fields unchanged.

use std::{collections::BTreeSet, sync::LazyLock};

use ccm_core::{
    load_balancer::{ClusterTag, Ownership, OwnershipTag},
    plan::document::{Document, Rules},
};
use serde_json::{Value, json};

use crate::config::LbType;

/// The prefix of the tag with a cluster's ID (`DO_CLUSTER_ID`).
pub(crate) const CLUSTER_PREFIX: &str = "k8s:";

/// A load balancer.
pub(crate) type Balancer = Document;

/// The comparison rules for load balancers.
pub(crate) static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let rules = Rules::default()
        .read_only(&["id", "ip", "ipv6", "status", "created_at"])
        .shown(&["region"])
        .set("forwarding_rules", &["entry_protocol", "entry_port"]);
    let sets = ["droplet_ids", "firewall.allow", "firewall.deny", "tags"];
    let rules = sets.into_iter().fold(rules, |rules, path| rules.set(path, &[]));
    rules.defaults([
        ("size_unit", json!(1)),
        ("tag", json!("")),
        ("tags", json!([])),
        ("droplet_ids", json!([])),
        ("forwarding_rules", json!([])),
        ("forwarding_rules[].certificate_id", json!("")),
        ("forwarding_rules[].tls_passthrough", json!(false)),
        ("health_check", json!({})),
        ("health_check.proxy_protocol", json!(false)),
        ("sticky_sessions", json!({"type": "none"})),
        ("sticky_sessions.type", json!("none")),
        ("redirect_http_to_https", json!(false)),
        ("enable_proxy_protocol", json!(false)),
        ("enable_backend_keepalive", json!(false)),
        ("disable_lets_encrypt_dns_records", json!(false)),
        ("http_idle_timeout_seconds", json!(60)),
        ("firewall", json!({})),
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
    LbType::parse(immutable(balancer, "type")?)
}

pub(crate) fn is_internal(balancer: &Balancer) -> bool {
    balancer.text("network") == "INTERNAL"
}

/// Whether the API is still creating the load balancer.
pub(crate) fn is_new(balancer: &Balancer) -> bool {
    balancer.text("status") == "new"
}

/// Whether the load balancer is active.
pub(crate) fn is_active(balancer: &Balancer) -> bool {
    balancer.text("status") == "active"
}

/// The first certificate of the forwarding rules.
pub(crate) fn certificate(balancer: &Balancer) -> Option<&str> {
    let rules = balancer.list("forwarding_rules");
    let mut ids = rules.filter_map(|rule| rule.get("certificate_id")?.as_str());
    ids.find(|id| !id.is_empty())
}

/// Whether the load balancer terminates TLS or adds the PROXY protocol, so that nodes do not get the clients' packets.
pub(crate) fn is_proxy(balancer: &Balancer) -> bool {
    let is_proxy = balancer.fields().get("enable_proxy_protocol") == Some(&Value::Bool(true));
    kind(balancer) == Some(LbType::Regional) && (is_proxy || certificate(balancer).is_some())
}

/// The tags. Empty if the API omits them.
pub(crate) fn tags(balancer: &Balancer) -> impl Iterator<Item = &str> {
    balancer.list("tags").filter_map(Value::as_str)
}

/// An immutable field, or the API's default; `None` if the API omits it.
pub(crate) fn immutable<'a>(balancer: &'a Balancer, field: &str) -> Option<&'a str> {
    match (field, balancer.text(field)) {
        ("type", "") => Some("REGIONAL"),
        ("network", "") => Some("EXTERNAL"),
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
}

/// Converts a document to a body that the API accepts.
pub(crate) fn sendable(mut document: Value, write_only: &WriteOnly) -> Value {
    let Some(fields) = document.as_object_mut() else {
        return document;
    };
    let slug = fields.get("region").and_then(|region| region.get("slug"));
    if let Some(slug) = slug.cloned() {
        fields.insert("region".to_owned(), slug);
    }
    // The size is either a name or a number, the droplets are either a list or a tag.
    if fields.contains_key("size_unit") {
        fields.remove("size");
    }
    let tag = fields.get("tag").and_then(Value::as_str);
    if tag.is_some_and(|tag| !tag.is_empty()) {
        fields.remove("droplet_ids");
    } else {
        fields.remove("tag");
        fields.entry("droplet_ids").or_insert_with(|| json!([]));
    }
    fields.retain(|_, value| !value.is_null());
    if let Some(algorithm) = write_only.algorithm {
        fields.insert("algorithm".to_owned(), json!(algorithm));
    }
    if let Some(Value::Object(check)) = fields.get_mut("health_check") {
        match write_only.plain_checks {
            Some(true) => drop(check.insert("proxy_protocol".to_owned(), json!(false))),
            Some(false) => drop(check.remove("proxy_protocol")),
            None => {}
        }
        if check.get("protocol").is_some_and(|protocol| protocol == "tcp") {
            check.remove("path");
        }
    }
    document
}

/// The tags that identify a cluster's load balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterTags {
    /// By the UID of `kube-system`.
    owner: OwnershipTag,
    /// `k8s:<cluster id>`.
    cluster: Option<String>,
}

impl ClusterTags {
    /// The tags of the cluster with this ID.
    pub(crate) fn new(owner: &OwnershipTag, cluster_id: Option<&str>) -> Self {
        Self {
            owner: owner.clone(),
            cluster: cluster_id.map(cluster_tag),
        }
    }

    /// The tags of this cluster's load balancers.
    pub(crate) fn own(&self) -> impl Iterator<Item = &str> {
        let owner = self.owner.for_create().map(ClusterTag::as_str);
        self.cluster.as_deref().into_iter().chain(owner)
    }

    /// Whether the load balancer has the tag of this cluster's `kube-system`, which proves ownership.
    pub(crate) fn owns(&self, balancer: &Balancer) -> bool {
        self.owner.ownership(tags(balancer)) == Ownership::Ours
    }

    /// The tag of another cluster, if the load balancer has one and lacks ours.
    pub(crate) fn foreign(&self, balancer: &Balancer) -> Option<String> {
        match self.owner.ownership(tags(balancer)) {
            Ownership::Ours => None,
            Ownership::Foreign(tag) => Some(tag.to_string()),
            Ownership::Adopted | Ownership::Unverified => {
                let own = self.cluster.as_deref()?;
                let mut named = tags(balancer).filter(|tag| tag.starts_with(CLUSTER_PREFIX));
                let is_ours = tags(balancer).any(|tag| tag == own);
                named.next().filter(|_| !is_ours).map(str::to_owned)
            }
        }
    }

    /// The tags of the load balancer after a write: ours are added, those of other clusters are removed.
    pub(crate) fn added_to(&self, balancer: &Balancer) -> Vec<String> {
        let is_foreign = |tag: &str| {
            let of_other = self.owner.for_create().is_some() && tag.starts_with(ClusterTag::PREFIX);
            of_other || (self.cluster.is_some() && tag.starts_with(CLUSTER_PREFIX))
        };
        let is_own = |tag: &str| self.own().any(|own| own == tag);
        let kept = tags(balancer).filter(|tag| is_own(tag) || !is_foreign(tag));
        let mut seen = BTreeSet::new();
        let all = kept.chain(self.own()).filter(|tag| seen.insert(*tag));
        all.map(str::to_owned).collect()
    }
}

/// The tag with a cluster's ID.
pub(crate) fn cluster_tag(cluster_id: &str) -> String {
    format!("{CLUSTER_PREFIX}{cluster_id}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn balancer(tags: &[&str]) -> Balancer {
        serde_json::from_value(json!({"id": "x", "tags": tags})).unwrap()
    }

    #[test]
    fn another_clusters_tag_is_foreign_unless_ours_is_present() {
        let ours = ClusterTag::of("1");
        let tags = ClusterTags::new(&OwnershipTag::Known(ours.clone()), Some("a"));
        let theirs = ClusterTag::of("2");
        for (has, foreign) in [
            (vec![], None),
            (vec!["web"], None),
            (vec!["k8s:a"], None),
            (vec!["k8s:b"], Some("k8s:b")),
            (vec!["k8s:a", "k8s:b"], None),
            (vec!["k8s:a", theirs.as_str()], Some(theirs.as_str())),
            (vec!["k8s:b", ours.as_str()], None),
        ] {
            assert_eq!(tags.foreign(&balancer(&has)).as_deref(), foreign, "{has:?}");
        }
        let blind = ClusterTags::new(&OwnershipTag::Unknown, None);
        assert_eq!(blind.foreign(&balancer(&["k8s:b", theirs.as_str()])), None);
        let untagged: Balancer = serde_json::from_value(json!({"id": "x"})).unwrap();
        assert!(!tags.owns(&untagged) && tags.foreign(&untagged).is_none());
        let moved = tags.added_to(&balancer(&["web", "k8s:b", theirs.as_str()]));
        assert_eq!(moved, ["web", "k8s:a", ours.as_str()]);
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
        };
        assert_eq!(
            sendable(document, &write_only),
            json!({
                "region": "nyc3", "size_unit": 2, "droplet_ids": [], "algorithm": "round_robin",
                "health_check": {"protocol": "tcp", "proxy_protocol": false},
            })
        );
    }
}
