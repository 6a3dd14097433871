//! The two patches that change a node.
//!
//! Nodes are never PUT: the kubelet and others write to them all the time, and our store holds only a part of them.
//! Addresses go first, as a merge patch of the whole list; then one JSON Patch adds labels and provider ID and takes
//! the taint away, all or nothing, so that a node is never schedulable without its addresses.

use json_patch::Patch as JsonPatch;
use kube::api::Patch;
use serde_json::{Value, json};

use crate::controllers::{
    node_action::{Initialization, NewLabels},
    node_object::{UNINITIALIZED_TAINT, add, guard, pointer, replace, test},
};
use ccm_core::{NodeAddress, controllers::NodeObject};

/// Sets the whole of `status.addresses`. The uid makes the API server refuse it (409) for a node that was made anew
/// under the same name.
pub(crate) fn addresses(uid: &str, addresses: &[NodeAddress]) -> Patch<Value> {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|address| json!({"type": address.kind.as_str(), "address": address.address}))
        .collect();
    Patch::Merge(json!({"metadata": {"uid": uid}, "status": {"addresses": addresses}}))
}

/// Sets labels, with the same guard.
pub(crate) fn labels(uid: &str, labels: &NewLabels) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"uid": uid, "labels": labels}}))
}

/// Adds labels and provider ID and removes the uninitialized taint from the node as it was just read, under its
/// [`guard`].
pub(crate) fn initialize(node: &NodeObject, wanted: &Initialization) -> Patch<Value> {
    let mut operations = guard(node);
    if node.view.labels.is_empty() && !wanted.labels.is_empty() {
        // There is no map to add to. The test holds only while that is so.
        operations.push(test(pointer(["metadata", "labels"]), Value::Null));
        operations.push(add(pointer(["metadata", "labels"]), json!(wanted.labels)));
    } else {
        operations.extend(
            wanted
                .labels
                .iter()
                .map(|(key, value)| add(pointer(["metadata", "labels", key]), Value::from(value.clone()))),
        );
    }
    if let Some(id) = &wanted.provider_id {
        operations.push(add(pointer(["spec", "providerID"]), Value::from(id.clone())));
    }
    let value = json!(node.taints_without(UNINITIALIZED_TAINT));
    operations.push(replace(pointer(["spec", "taints"]), value));
    Patch::Json(JsonPatch(operations))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use ccm_core::AddressType;

    /// The patch as it goes over the wire.
    fn body(patch: &Patch<Value>) -> Value {
        match patch {
            Patch::Json(patch) => serde_json::to_value(patch).unwrap(),
            Patch::Merge(value) => value.clone(),
            other => panic!("not a patch of ours: {other:?}"),
        }
    }

    fn tainted(labels: &Value) -> NodeObject {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "uid": "u1", "labels": labels},
            "spec": {"taints": [
                {"key": "foreign", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
                {"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"},
                {"key": UNINITIALIZED_TAINT, "value": "again", "effect": "NoExecute"},
            ]},
        }))
        .unwrap()
    }

    fn wanted() -> Initialization {
        Initialization {
            addresses: Some(vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")]),
            labels: [("topology.kubernetes.io/zone".to_owned(), "z".to_owned())].into(),
            provider_id: Some("fake://n1".to_owned()),
        }
    }

    #[test]
    fn one_guarded_patch_initialises_a_node() {
        let foreign = json!({"key": "foreign", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"});
        assert_eq!(
            body(&initialize(&tainted(&json!({"a": "b"})), &wanted())),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u1"},
                {"op": "test", "path": "/spec/taints", "value": [
                    foreign,
                    {"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"},
                    {"key": UNINITIALIZED_TAINT, "value": "again", "effect": "NoExecute"},
                ]},
                {"op": "add", "path": "/metadata/labels/topology.kubernetes.io~1zone", "value": "z"},
                {"op": "add", "path": "/spec/providerID", "value": "fake://n1"},
                {"op": "replace", "path": "/spec/taints", "value": [foreign]},
            ])
        );
    }

    #[test]
    fn a_node_without_labels_gets_the_map_only_if_it_still_has_none() {
        let patch = body(&initialize(&tainted(&json!(null)), &wanted()));
        assert_eq!(
            patch[2],
            json!({"op": "test", "path": "/metadata/labels", "value": null})
        );
        assert_eq!(patch[3]["path"], "/metadata/labels");
    }

    #[test]
    fn addresses_are_the_whole_list_under_the_uid() {
        assert_eq!(
            body(&addresses("u1", &wanted().addresses.unwrap())),
            json!({
                "metadata": {"uid": "u1"},
                "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
            })
        );
    }
}
