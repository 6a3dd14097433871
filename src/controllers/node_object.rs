//! What the controllers that write to nodes share: taints, guarded patches, what the API server's refusals mean.

use std::time::Duration;

use ccm_core::controllers::{
    Informer, NodeObject,
    node::{Ready, Taint},
};
use json_patch::{
    AddOperation, Patch as JsonPatch, PatchOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf,
};
use kube::api::Patch;
use serde_json::{Value, json};

use crate::server::status::NodeRow;

/// Taint that the kubelet puts on a node under `--cloud-provider=external`; matched by key alone.
pub(crate) const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Taint on nodes whose machine is switched off.
pub(crate) const SHUTDOWN_TAINT: (&str, &str) = ("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule");

/// Taint that the cluster autoscaler puts on a node before it deletes the machine; matched by key alone.
pub(crate) const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// How long the store may lag behind a write. What differs from the write after that was changed by another writer.
pub(crate) const STORE_LAG: Duration = Duration::from_secs(10);

/// How often a guarded patch is tried when somebody else changes the taints in between.
pub(crate) const PATCH_TRIES: usize = 5;

/// The nodes by name, for people.
pub(crate) fn rows(nodes: &Informer<NodeObject>) -> Vec<NodeRow> {
    let row = |node: &NodeObject| NodeRow {
        name: node.meta.name.clone().unwrap_or_default(),
        state: match node.ready {
            _ if node.has_taint(UNINITIALIZED_TAINT) => "uninitialized",
            _ if node.has_taint(SHUTDOWN_TAINT.0) => "shut down",
            Ready::True => "ready",
            Ready::False => "not ready",
            Ready::Unknown => "unknown",
        },
        provider_id: node.view.provider_id.as_deref().unwrap_or_default().to_owned(),
    };
    let mut rows: Vec<_> = nodes.list().iter().map(|node| row(node)).collect();
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows
}

/// Whether the API server says that the request does not fit the node as it is now: 422 for a failed test or another
/// uid, 409 for a failed precondition or when its own optimistic locking gave up.
pub(crate) fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 409 | 422))
}

/// Whether the API server says that the node, or the node of this uid, is no more.
pub(crate) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Tests that the node is still the one that was read, with the same list of taints, so that taints that others set
/// meanwhile are never lost: the API server answers 422 then. No resourceVersion: heartbeats would break it.
pub(crate) fn guard(node: &NodeObject) -> Vec<PatchOperation> {
    let taints = if node.taints.is_empty() {
        // A list that is not there.
        Value::Null
    } else {
        json!(node.taints)
    };
    vec![
        test(pointer(["metadata", "uid"]), Value::from(node.view.uid.clone())),
        test(pointer(["spec", "taints"]), taints),
    ]
}

/// Sets the whole list of taints of the node as it was just read, under its [`guard`].
pub(crate) fn set_taints(node: &NodeObject, taints: &[Taint]) -> Patch<Value> {
    let mut operations = guard(node);
    // Adding to an object replaces what is there.
    operations.push(add(pointer(["spec", "taints"]), json!(taints)));
    Patch::Json(JsonPatch(operations))
}

/// A path in an object. Escapes `/` and `~` in label keys.
pub(crate) fn pointer<const N: usize>(tokens: [&str; N]) -> PointerBuf {
    PointerBuf::from_tokens(tokens)
}

/// The patch is refused unless this value is there; null stands for nothing.
pub(crate) fn test(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path, value })
}

/// Adds the value, or puts it in the place of what is there.
pub(crate) fn add(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path, value })
}

/// Puts the value in the place of what must be there.
pub(crate) fn replace(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path, value })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn body(patch: &Patch<Value>) -> Value {
        match patch {
            Patch::Json(patch) => serde_json::to_value(patch).unwrap(),
            other => panic!("not a JSON Patch: {other:?}"),
        }
    }

    #[test]
    fn taints_are_set_as_a_whole_under_a_test_of_what_was_read() {
        let foreign = json!({"key": "foreign", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"});
        let node: NodeObject = serde_json::from_value(json!({
            "metadata": {"name": "n1", "uid": "u1"},
            "spec": {"taints": [foreign]},
        }))
        .unwrap();
        assert_eq!(
            body(&set_taints(&node, &node.taints_with("ours", "NoSchedule"))),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u1"},
                {"op": "test", "path": "/spec/taints", "value": [foreign]},
                {"op": "add", "path": "/spec/taints", "value": [foreign, {"key": "ours", "effect": "NoSchedule"}]},
            ])
        );
    }

    #[test]
    fn a_node_without_taints_is_tested_for_having_none() {
        let node: NodeObject =
            serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "u1"}})).unwrap();
        let patch = body(&set_taints(&node, &node.taints_with("ours", "NoSchedule")));
        assert_eq!(
            patch[1],
            json!({"op": "test", "path": "/spec/taints", "value": null})
        );
    }
}
