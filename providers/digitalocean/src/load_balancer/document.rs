//! A load balancer as the API shows it, and the body of a write.
//!
//! The API replaces the whole document with every `PUT`, so that a field that is left out gets its default again. We edit a
//! copy of what was read: fields that we do not manage go back unchanged.

use std::{collections::BTreeSet, fmt};

use ccm_core::{
    client::Indexed,
    load_balancer::{ClusterTag, Ownership, OwnershipTag},
    plan::document::Rules,
};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value, json};

/// What the tag of a cluster's id begins with (`DO_CLUSTER_ID`).
pub(crate) const CLUSTER_PREFIX: &str = "k8s:";
/// Fields that the API reports and does not take.
const READ_ONLY: [&str; 5] = ["id", "ip", "ipv6", "status", "created_at"];

/// A load balancer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Balancer(Map<String, Value>);

impl<'de> Deserialize<'de> for Balancer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let balancer = Self(Map::deserialize(deserializer)?);
        if balancer.id().is_empty() {
            return Err(D::Error::custom("a load balancer without an id"));
        }
        Ok(balancer)
    }
}

impl Indexed for Balancer {
    fn id(&self) -> &str {
        self.text("id")
    }

    /// Also the id, so that one load balancer can be read again.
    fn index_keys(&self) -> Vec<&str> {
        vec![self.name(), self.id()]
    }
}

impl Balancer {
    /// The load balancer that the body of a create leads to, before it has an id.
    pub(crate) fn planned(body: &Value) -> Self {
        Self(body.as_object().cloned().unwrap_or_default())
    }

    /// A field; empty if it is missing.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.text("name")
    }

    /// The type. The API's default is `REGIONAL`.
    pub(crate) fn kind(&self) -> &str {
        match self.text("type") {
            "" => "REGIONAL",
            kind => kind,
        }
    }

    pub(crate) fn is_internal(&self) -> bool {
        self.text("network") == "INTERNAL"
    }

    /// The API is still creating it.
    pub(crate) fn is_new(&self) -> bool {
        self.text("status") == "new"
    }

    /// It serves.
    pub(crate) fn is_active(&self) -> bool {
        self.text("status") == "active"
    }

    pub(crate) fn is_errored(&self) -> bool {
        !self.is_new() && !self.is_active() && !self.text("status").is_empty()
    }

    fn rules(&self) -> impl Iterator<Item = &Value> {
        let rules = self.0.get("forwarding_rules").and_then(Value::as_array);
        rules.into_iter().flatten()
    }

    /// The certificate of its first rule that has one.
    pub(crate) fn certificate(&self) -> Option<&str> {
        let ids = self
            .rules()
            .filter_map(|rule| rule.get("certificate_id")?.as_str());
        ids.into_iter().find(|id| !id.is_empty())
    }

    /// Packets do not arrive at the nodes as the clients sent them: TLS ends here, or the PROXY protocol is spoken.
    pub(crate) fn is_proxy(&self) -> bool {
        let is_proxy = self.0.get("enable_proxy_protocol") == Some(&Value::Bool(true));
        self.kind() == "REGIONAL" && (is_proxy || self.certificate().is_some())
    }

    /// The tags; none if the API does not show them.
    pub(crate) fn tags(&self) -> impl Iterator<Item = &str> {
        let tags = self.0.get("tags").and_then(Value::as_array);
        tags.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The load balancer after a write of `body`. `reply`: the API's answer, as far as it is known.
    pub(crate) fn after(&self, body: &Value, reply: Option<&Self>) -> Self {
        let mut fields = body.as_object().cloned().unwrap_or_default();
        let source = reply.unwrap_or(self);
        for field in READ_ONLY.into_iter().chain(["region"]) {
            if let Some(value) = source.0.get(field).or_else(|| self.0.get(field)) {
                fields.insert(field.to_owned(), value.clone());
            }
        }
        Self(fields)
    }

    /// The edit that makes the fields these; `None` if nothing differs.
    pub(crate) fn edit(&self, fields: &Map<String, Value>) -> Option<(Value, Vec<String>)> {
        let observed = Value::Object(self.0.clone());
        let edit = rules().edit(&observed, &Value::Object(fields.clone()))?;
        Some((edit.document, edit.changes))
    }

    /// The document as it was read, for a write that changes nothing else.
    pub(crate) fn copy(&self) -> Value {
        let mut fields = self.0.clone();
        fields.retain(|name, _| !READ_ONLY.contains(&name.as_str()));
        Value::Object(fields)
    }

    /// An immutable field, or the API's default; `None` if the API does not show it.
    pub(crate) fn immutable(&self, field: &str) -> Option<&str> {
        match (field, self.text(field)) {
            ("type", _) => Some(self.kind()),
            ("network", "") => Some("EXTERNAL"),
            (_, "") => None,
            (_, text) => Some(text),
        }
    }
}

/// For messages.
impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "load balancer {} ({})", self.name(), self.id())
    }
}

/// How load balancers are compared.
fn rules() -> Rules {
    let defaults = [
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
    ];
    let rules = Rules::default().set("forwarding_rules", &["entry_protocol", "entry_port"]);
    let sets = ["droplet_ids", "firewall.allow", "firewall.deny", "tags"];
    let rules = sets.into_iter().fold(rules, |rules, path| rules.set(path, &[]));
    let rules = READ_ONLY.into_iter().fold(rules, Rules::read_only);
    defaults
        .into_iter()
        .fold(rules, |rules, (path, value)| rules.default_value(path, value))
}

/// Settings that are written with every change and not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// The API ignores it.
    pub(crate) algorithm: &'static str,
    /// Health checks without the PROXY protocol. Otherwise they follow the load balancer. The API need not show it.
    pub(crate) plain_checks: bool,
}

/// Makes a document one that the API takes.
pub(crate) fn sendable(mut document: Value, unread: Option<&Unread>) -> Value {
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
    if let Some(unread) = unread {
        fields.insert("algorithm".to_owned(), json!(unread.algorithm));
    }
    if let Some(Value::Object(check)) = fields.get_mut("health_check") {
        match unread {
            Some(unread) if unread.plain_checks => {
                check.insert("proxy_protocol".to_owned(), json!(false));
            }
            Some(_) => drop(check.remove("proxy_protocol")),
            None => {}
        }
        if check.get("protocol").is_some_and(|protocol| protocol == "tcp") {
            check.remove("path");
        }
    }
    document
}

/// The tags by which a cluster knows its load balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterTags {
    /// By the UID of `kube-system`.
    owner: OwnershipTag,
    /// `k8s:<cluster id>`.
    cluster: Option<String>,
}

impl ClusterTags {
    /// The tags of the cluster with this id.
    pub(crate) fn new(owner: &OwnershipTag, cluster_id: Option<&str>) -> Self {
        Self {
            owner: owner.clone(),
            cluster: cluster_id.map(cluster_tag),
        }
    }

    /// Those that a load balancer of this cluster has.
    pub(crate) fn own(&self) -> impl Iterator<Item = &str> {
        let owner = self.owner.for_create().map(ClusterTag::as_str);
        self.cluster.as_deref().into_iter().chain(owner)
    }

    /// Whether it certainly is this cluster's: it has the tag of its `kube-system`.
    pub(crate) fn owns(&self, balancer: &Balancer) -> bool {
        self.owner.ownership(balancer.tags()) == Ownership::Ours
    }

    /// The tag of another cluster, if the load balancer has one and none of ours.
    pub(crate) fn foreign(&self, balancer: &Balancer) -> Option<String> {
        match self.owner.ownership(balancer.tags()) {
            Ownership::Ours => None,
            Ownership::Foreign(tag) => Some(tag.to_string()),
            Ownership::Adopted | Ownership::Unverified => {
                let own = self.cluster.as_deref()?;
                let named: Vec<_> = balancer
                    .tags()
                    .filter(|tag| tag.starts_with(CLUSTER_PREFIX))
                    .collect();
                let first = named.first().filter(|_| !named.contains(&own))?;
                Some((*first).to_owned())
            }
        }
    }

    /// The tags of the load balancer after a write: ours are added, those of other clusters go.
    pub(crate) fn added_to(&self, balancer: &Balancer) -> Vec<String> {
        let is_foreign = |tag: &str| {
            let known = self.own().any(|own| own == tag);
            let of = |prefix: &str, is_known: bool| is_known && tag.starts_with(prefix);
            let owner = of(ClusterTag::PREFIX, self.owner.for_create().is_some());
            !known && (owner || of(CLUSTER_PREFIX, self.cluster.is_some()))
        };
        let kept = balancer.tags().filter(|tag| !is_foreign(tag));
        let mut seen = BTreeSet::new();
        let all = kept.chain(self.own()).filter(|tag| seen.insert(*tag));
        all.map(str::to_owned).collect()
    }
}

/// The tag of a cluster's id.
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
    fn another_clusters_tag_counts_unless_ours_is_there() {
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
    fn a_body_has_no_fields_that_exclude_each_other() {
        let document = json!({
            "region": {"slug": "nyc3"}, "size": "lb-small", "size_unit": 2, "tag": "", "glb_settings": null,
            "health_check": {"protocol": "tcp", "path": "/"},
        });
        let unread = Unread {
            algorithm: "round_robin",
            plain_checks: true,
        };
        assert_eq!(
            sendable(document, Some(&unread)),
            json!({
                "region": "nyc3", "size_unit": 2, "droplet_ids": [], "algorithm": "round_robin",
                "health_check": {"protocol": "tcp", "proxy_protocol": false},
            })
        );
    }
}
