//! The trimmed Node.

use std::{collections::BTreeMap, sync::Arc};

use ipnet::IpNet;
use k8s_openapi::{
    api::core::v1::{Node, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Needs, informer::Trimmed, interner::Interner};
use crate::{AddressType, NodeAddress, NodeView};

/// The stored fields of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Wire")]
pub struct NodeObject {
    /// Name, uid, resourceVersion, creation and deletion time; nothing else.
    pub meta: ObjectMeta,
    /// The fields that identify the node's instance, and the labels.
    pub view: Arc<NodeView>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `status.addresses`, without entries of an unknown type.
    pub addresses: Vec<NodeAddress>,
    /// The annotation of the kubelet's `--node-ip`, unchanged.
    pub provided_node_ip: Option<String>,
    /// The status of the condition `Ready`.
    pub ready: Ready,
    /// When the condition `Ready` got its status.
    pub ready_since: Option<Timestamp>,
    /// `spec.podCIDRs`, without host bits. Entries that are not networks are left out. Empty unless a controller [`Needs`] it.
    pub pod_cidrs: Box<[IpNet]>,
    /// The condition `NetworkUnavailable`.
    pub network: NetworkCondition,
}

/// Whether a node's kubelet reports that it is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// It is ready.
    True,
    /// It is not ready.
    False,
    /// The kubelet does not report, or has not reported yet.
    #[default]
    Unknown,
}

/// The condition `NetworkUnavailable`, as far as routes are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkCondition {
    /// The node does not have the condition.
    #[default]
    Absent,
    /// The status is False: all routes exist.
    RouteCreated,
    /// The status is True: a route is missing.
    NoRouteCreated,
    /// Another status, or another reason.
    Other,
}

impl NodeObject {
    /// The object of Events about the node.
    #[must_use]
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.view.name.clone()),
            uid: Some(self.view.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// Whether the node has a taint with this key, with any value and effect.
    #[must_use]
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| taint.key == key)
    }

    /// The taints without those with this key, in their order.
    #[must_use]
    pub fn taints_without(&self, key: &str) -> Vec<Taint> {
        self.taints.iter().filter(|taint| taint.key != key).cloned().collect()
    }

    /// Whether the node has exactly this taint, with any value.
    #[must_use]
    pub fn has_exact_taint(&self, key: &str, effect: &str) -> bool {
        self.taints.iter().any(|taint| taint.is(key, effect))
    }

    /// The taints with this one at the end.
    #[must_use]
    pub fn taints_with(&self, key: &str, effect: &str) -> Vec<Taint> {
        let mut taints = self.taints.clone();
        taints.push(Taint {
            key: key.to_owned(),
            value: None,
            effect: Some(effect.to_owned()),
            time_added: None,
            further: BTreeMap::new(),
        });
        taints
    }

    /// The taints without exactly this one, in their order.
    #[must_use]
    pub fn taints_without_exact(&self, key: &str, effect: &str) -> Vec<Taint> {
        self.taints.iter().filter(|taint| !taint.is(key, effect)).cloned().collect()
    }

    /// When the node was registered, in seconds since the Unix epoch.
    #[must_use]
    pub fn age_seconds(&self) -> Option<f64> {
        let created = self.meta.creation_timestamp.as_ref()?.0;
        Some(created.duration_until(k8s_openapi::jiff::Timestamp::now()).as_secs_f64())
    }
}

/// A taint exactly as the API server wrote it, since a JSON Patch compares it literally.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// The key.
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    effect: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_added: Option<String>,
    /// Fields that a later Kubernetes may add.
    #[serde(flatten)]
    further: BTreeMap<String, Value>,
}

impl Taint {
    fn is(&self, key: &str, effect: &str) -> bool {
        self.key == key && self.effect.as_deref() == Some(effect)
    }
}

impl Trimmed for NodeObject {
    fn is_needed(&self, _: &Needs) -> bool {
        true
    }

    fn trim(&mut self, needs: &Needs, interner: &mut Interner) {
        if !needs.pod_cidrs {
            self.pod_cidrs = Box::default();
        }
        // An object from the watch has no other owner.
        if let Some(view) = Arc::get_mut(&mut self.view) {
            view.labels.share(|text| interner.share(text));
        }
    }
}

impl_resource!(NodeObject, Node);

#[derive(Deserialize)]
struct Wire {
    metadata: WireMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<WireAnnotations>,
}

#[derive(Default, Deserialize)]
struct WireAnnotations {
    #[serde(rename = "alpha.kubernetes.io/provided-node-ip")]
    provided_node_ip: Option<String>,
}

#[derive(Default, Deserialize)]
struct WireSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    taints: Option<Vec<Taint>>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct WireStatus {
    addresses: Option<Vec<WireAddress>>,
    conditions: Option<Vec<WireCondition>>,
}

#[derive(Deserialize)]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default, rename = "lastTransitionTime")]
    since: Option<Time>,
}

#[derive(Deserialize)]
struct WireAddress {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl From<Wire> for NodeObject {
    fn from(wire: Wire) -> Self {
        let Wire {
            metadata,
            spec,
            status,
        } = wire;
        let view = NodeView {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            labels: metadata.labels.unwrap_or_default().into_iter().collect(),
            created: metadata.creation_timestamp.as_ref().map(|created| created.0.into()),
        };
        let conditions = status.conditions.unwrap_or_default();
        let condition = |kind: &str| conditions.iter().find(|condition| condition.kind == kind);
        let ready = condition("Ready");
        Self {
            meta: ObjectMeta {
                name: metadata.name,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            view: Arc::new(view),
            taints: spec.taints.unwrap_or_default(),
            ready: match ready.map(|ready| ready.status.as_str()) {
                Some("True") => Ready::True,
                Some("False") => Ready::False,
                _ => Ready::Unknown,
            },
            ready_since: ready.and_then(|ready| ready.since.as_ref()).map(|since| since.0),
            network: match condition("NetworkUnavailable") {
                None => NetworkCondition::Absent,
                Some(network) => match (network.status.as_str(), network.reason.as_str()) {
                    ("False", "RouteCreated") => NetworkCondition::RouteCreated,
                    ("True", "NoRouteCreated") => NetworkCondition::NoRouteCreated,
                    _ => NetworkCondition::Other,
                },
            },
            pod_cidrs: spec
                .pod_cidrs
                .unwrap_or_default()
                .iter()
                .filter_map(|cidr| cidr.parse::<IpNet>().ok())
                .map(|cidr| cidr.trunc())
                .collect(),
            addresses: status
                .addresses
                .unwrap_or_default()
                .into_iter()
                .filter_map(|wire| {
                    Some(NodeAddress {
                        kind: AddressType::parse(&wire.kind)?,
                        address: wire.address,
                    })
                })
                .collect(),
            provided_node_ip: metadata.annotations.and_then(|annotations| annotations.provided_node_ip),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keeps_only_fields_that_controllers_read() {
        let node: NodeObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "n1", "uid": "u1", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"a": "b"}, "managedFields": [{"manager": "kubelet"}],
                "annotations": {"alpha.kubernetes.io/provided-node-ip": "10.0.0.1", "other": "x"},
            },
            "spec": {"providerID": "", "podCIDRs": ["10.244.1.7/24", "fd00::/64", "junk"], "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Carrier", "address": "pigeon"}],
                "conditions": [
                    {"type": "DiskPressure", "status": "False"},
                    {"type": "NetworkUnavailable", "status": "False", "reason": "CalicoIsUp"},
                    {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-02T03:05:00Z"},
                ],
                "images": [{"names": ["a"], "sizeBytes": 1}],
            },
        }))
        .unwrap();
        assert_eq!(node.view.name, "n1");
        assert_eq!(node.view.provider_id, None, "an empty providerID counts as missing");
        assert_eq!(node.view.labels.get("a"), Some("b"));
        assert_eq!(node.provided_node_ip.as_deref(), Some("10.0.0.1"));
        let created = k8s_openapi::jiff::Timestamp::try_from(node.view.created.unwrap());
        assert_eq!(created.unwrap().to_string(), "2026-01-02T03:04:05Z");
        assert_eq!(node.addresses, [NodeAddress::new(AddressType::InternalIP, "10.0.0.1")]);
        assert!(node.has_taint("k") && !node.has_taint("other"));
        assert!(node.has_exact_taint("k", "NoSchedule") && !node.has_exact_taint("k", "NoExecute"));
        assert_eq!(node.ready, Ready::True);
        assert_eq!(node.ready_since, Some("2026-01-02T03:05:00Z".parse().unwrap()));
        assert_eq!(node.network, NetworkCondition::Other);
        assert_eq!(
            node.pod_cidrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.244.1.0/24", "fd00::/64"]
        );
        assert!(node.meta.managed_fields.is_none() && node.meta.labels.is_none());
        assert!(node.age_seconds().unwrap() > 0.0);
    }

    #[test]
    fn a_bare_node_is_enough() {
        let node: NodeObject = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        assert!(node.taints.is_empty() && node.addresses.is_empty());
        assert_eq!(node.ready, Ready::Unknown, "the kubelet has not reported");
    }
}
