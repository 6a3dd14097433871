//! Applies [`NodeAction`]s.
//!
//! Nodes are never PUT: the kubelet and others write to them all the time, and the store has only a part of them. A patch
//! is refused if the node was recreated under the same name. A patch that sets taints tests them, so that taints that others
//! set meanwhile are never lost.

use ccm_core::{
    NodeAddress,
    controllers::{
        NodeObject,
        node::{Ready, Taint},
    },
};
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

use super::{
    node_action::{Initialization, NewLabels, NodeAction, network_condition},
    node_object::{SHUTDOWN_TAINT, UNINITIALIZED_TAINT, is_not_found, is_refused},
};

/// How often a guarded patch is tried when another writer changes the taints in between.
const TRIES: usize = 5;

/// How an action ended, if the API server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// The node does not exist any more.
    Missing,
    /// The node has changed since it was read: the action is not due any more, or has to be decided again.
    Changed,
}

/// Writes to nodes.
pub(crate) struct NodeWriter {
    api: Api<NodeObject>,
}

impl NodeWriter {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            api: Api::all(client),
        }
    }

    /// Applies the action to `node`, as it was read.
    ///
    /// # Errors
    /// If the API server does not answer or refuses the action for another reason than a change of the node.
    pub(crate) async fn apply(&self, node: &NodeObject, action: &NodeAction) -> kube::Result<Written> {
        let (name, uid) = (node.view.name.as_str(), node.view.uid.as_str());
        let params = PatchParams::default();
        match action {
            NodeAction::Initialize(desired) => self.initialize(node, desired).await,
            NodeAction::SetAddresses { addresses, .. } => {
                let patch = addresses_patch(uid, addresses);
                self.patched(node, self.api.patch_status(name, &params, &patch).await).await
            }
            NodeAction::SetLabels { labels, .. } => {
                let patch = labels_patch(uid, labels);
                self.patched(node, self.api.patch(name, &params, &patch).await).await
            }
            NodeAction::SetShutdownTaint(set) => {
                self.patch_guarded(node, node.clone(), |current| shutdown_taint(current, *set)).await
            }
            NodeAction::SetNetworkAvailable(available) => {
                let patch = Patch::Strategic(condition_patch(uid, *available, Timestamp::now()));
                self.patched(node, self.api.patch_status(name, &params, &patch).await).await
            }
            NodeAction::Delete(_) => {
                let parameters = DeleteParams::default().preconditions(Preconditions {
                    uid: Some(uid.to_owned()),
                    resource_version: node.meta.resource_version.clone(),
                });
                match self.api.delete(name, &parameters).await {
                    // A precondition failed. 422 is the answer of an admission policy, which the node's changes do not end.
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(Written::Changed),
                    result => unless_missing(result),
                }
            }
        }
    }

    /// The end of a patch with the uid. The API server refuses it for a node that was recreated under its name, but also for
    /// other reasons, after which it has to be tried again.
    async fn patched(&self, node: &NodeObject, result: kube::Result<NodeObject>) -> kube::Result<Written> {
        match result {
            Err(error) if is_refused(&error) => match self.api.get_opt(&node.view.name).await? {
                Some(read) if read.view.uid == node.view.uid => Err(error),
                _ => Ok(Written::Missing),
            },
            result => unless_missing(result),
        }
    }

    /// Two patches, each of which can be lost and repeated: addresses as a merge patch of the whole list; then one JSON
    /// Patch adds labels and provider ID and removes the taint, all or nothing, so that a node is never schedulable
    /// without its addresses.
    async fn initialize(&self, node: &NodeObject, desired: &Initialization) -> kube::Result<Written> {
        let (name, uid) = (node.view.name.as_str(), node.view.uid.as_str());
        let mut current = node.clone();
        if let Some(addresses) = &desired.addresses {
            let patch = addresses_patch(uid, addresses);
            match self.api.patch_status(name, &PatchParams::default(), &patch).await {
                Ok(patched) => current = patched,
                failed => return self.patched(node, failed).await,
            }
        }
        self.patch_guarded(node, current, |current| initialization(current, desired)).await
    }

    /// Patches `node`, which is `current` now. If uid or taints change meanwhile, reads the node and tries again. Without
    /// `operations`, nothing is due any more. The patch has no resourceVersion, which every heartbeat changes.
    async fn patch_guarded(
        &self,
        node: &NodeObject,
        mut current: NodeObject,
        operations: impl Fn(&NodeObject) -> Option<Vec<PatchOperation>>,
    ) -> kube::Result<Written> {
        let name = node.view.name.as_str();
        let mut tries = 1;
        loop {
            if current.view.uid != node.view.uid {
                return Ok(Written::Changed);
            }
            let Some(operations) = operations(&current) else {
                return Ok(Written::Changed);
            };
            let patch = guarded(&current, operations);
            match self.api.patch(name, &PatchParams::default(), &patch).await {
                Err(error) if is_refused(&error) && tries < TRIES => match self.api.get_opt(name).await? {
                    Some(read) => current = read,
                    None => return Ok(Written::Missing),
                },
                result => return unless_missing(result),
            }
            tries += 1;
        }
    }
}

fn unless_missing<T>(result: kube::Result<T>) -> kube::Result<Written> {
    match result {
        Ok(_) => Ok(Written::Done),
        Err(error) if is_not_found(&error) => Ok(Written::Missing),
        Err(error) => Err(error),
    }
}

/// Sets the whole of `status.addresses`. The uid makes the API server refuse it (409) for a node that was recreated under
/// the same name.
fn addresses_patch(uid: &str, addresses: &[NodeAddress]) -> Patch<Value> {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|one| json!({"type": one.kind.as_str(), "address": one.address}))
        .collect();
    Patch::Merge(json!({"metadata": {"uid": uid}, "status": {"addresses": addresses}}))
}

/// Sets labels, with the same guard.
fn labels_patch(uid: &str, labels: &NewLabels) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"uid": uid, "labels": labels}}))
}

/// Sets one condition, with the same guard.
fn condition_patch(uid: &str, available: bool, now: Timestamp) -> Value {
    let (status, reason, message) = network_condition(available);
    // Whole seconds, as Kubernetes writes times.
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "metadata": {"uid": uid},
        "status": {"conditions": [{
            "type": "NetworkUnavailable",
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }]},
    })
}

/// A patch that tests first that the node is still the one that was read, with the same list of taints. The API server
/// answers 422 if it is not.
fn guarded(node: &NodeObject, operations: Vec<PatchOperation>) -> Patch<Value> {
    let taints = match node.taints.as_slice() {
        // A list that does not exist.
        [] => Value::Null,
        taints => json!(taints),
    };
    let mut all = vec![
        test(["metadata", "uid"], Value::from(node.view.uid.clone())),
        test(["spec", "taints"], taints),
    ];
    all.extend(operations);
    Patch::Json(JsonPatch(all))
}

/// Adds labels and provider ID and removes the uninitialized taint; `None` if the node does not have it.
fn initialization(node: &NodeObject, desired: &Initialization) -> Option<Vec<PatchOperation>> {
    let labels = &desired.labels;
    let mut operations = Vec::new();
    if node.view.labels.is_empty() && !labels.is_empty() {
        // There is no map to add to. The test fails if that changes.
        operations.push(test(["metadata", "labels"], Value::Null));
        operations.push(set(["metadata", "labels"], json!(labels)));
    } else {
        let each = labels.iter();
        operations.extend(each.map(|(key, value)| set(["metadata", "labels", key], json!(value))));
    }
    if node.view.provider_id.is_none()
        && let Some(id) = &desired.provider_id
    {
        operations.push(set(["spec", "providerID"], json!(id)));
    }
    operations.push(set_taints(&node.taints_without(UNINITIALIZED_TAINT)));
    node.has_taint(UNINITIALIZED_TAINT).then_some(operations)
}

/// Sets or removes the shutdown taint: a node has it while its instance is switched off and it is not ready, and loses it
/// once it is ready. `None` if nothing is to be done.
fn shutdown_taint(node: &NodeObject, is_off: bool) -> Option<Vec<PatchOperation>> {
    let (key, effect) = SHUTDOWN_TAINT;
    let is_due = node.meta.deletion_timestamp.is_none()
        && node.has_exact_taint(key, effect) != is_off
        && (node.ready == Ready::True) != is_off;
    let taints = if is_off {
        node.taints_with(key, effect)
    } else {
        node.taints_without_exact(key, effect)
    };
    is_due.then(|| vec![set_taints(&taints)])
}

fn set_taints(taints: &[Taint]) -> PatchOperation {
    set(["spec", "taints"], json!(taints))
}

/// The patch is refused unless the field has this value. Null means that it does not exist.
fn test<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    let path = PointerBuf::from_tokens(path);
    PatchOperation::Test(TestOperation { path, value })
}

/// Adds the value, or replaces it. Escapes `/` and `~` in label keys.
fn set<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    let path = PointerBuf::from_tokens(path);
    PatchOperation::Add(AddOperation { path, value })
}

#[cfg(test)]
mod tests;
