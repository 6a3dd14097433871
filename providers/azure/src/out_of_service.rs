//! The controller of the taint `node.kubernetes.io/out-of-service`, as the Go cloud-controller-manager sets it.
//!
//! Kubernetes deletes the Pods of a node with this taint at once and detaches their volumes, without waiting for its kubelet. A node
//! gets it while it is not ready and has the taint of a machine that is switched off, and loses it when it is ready. It runs only
//! with `--azure-out-of-service-taint`: a machine that is switched on again while its volumes are attached elsewhere can damage data.

use ccm_core::{
    Error, ErrorKind, Result,
    controllers::{
        Backoff, ControllerContext, ControllerDef, ControllerNames, Needs, NodeObject, NotStarted, WorkQueue,
        informer::StoreChange,
        node::{Ready, Taint},
    },
};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::{NAME, OUT_OF_SERVICE};

/// The taint of a node whose machine is switched off.
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const NO_SCHEDULE: &str = "NoSchedule";
/// The taint of this controller.
const TAINT: &str = "node.kubernetes.io/out-of-service";
const NO_EXECUTE: &str = "NoExecute";
/// The backoff between attempts.
const BACKOFF: Backoff = Backoff::seconds(1, 60);

/// The name of the controller.
const CONTROLLER_NAME: &str = "azure-out-of-service-controller";

/// The controller.
pub(crate) const CONTROLLER: ControllerDef = ControllerDef {
    names: ControllerNames {
        name: CONTROLLER_NAME,
        aliases: &["azure-out-of-service"],
        migration_name: None,
        client_name: CONTROLLER_NAME,
    },
    default_on: true,
    needs: |setup| {
        if setup.flags.boolean(&OUT_OF_SERVICE) {
            Ok(Needs::default())
        } else {
            Err(NotStarted::NotConfigured("--azure-out-of-service-taint is not set"))
        }
    },
    start: |context| Ok(Box::pin(run(context))),
};

async fn run(context: ControllerContext) {
    let queue: WorkQueue<String> = WorkQueue::new(BACKOFF, "OutOfService", context.metrics.queues());
    let mut changes = context.nodes.subscribe();
    tokio::select! {
        () = context.nodes.synced() => {}
        () = context.shutdown.cancelled() => return,
    }
    info!(controller = CONTROLLER_NAME, "Controller started");
    for node in context.nodes.list() {
        queue.add(node.view.name.clone());
    }
    loop {
        let name = tokio::select! {
            () = context.shutdown.cancelled() => return,
            Some(change) = changes.recv() => {
                if let StoreChange::Applied(name) = change {
                    queue.add_unless_waiting(name);
                }
                continue;
            }
            name = queue.next() => name,
        };
        match context.nodes.get(&name) {
            Some(node) => match change(&context, &node).await {
                Ok(()) => queue.done(&name),
                Err(error) => {
                    warn!(node = name, error = error.report(), "Could not change the out-of-service taint");
                    queue.done_with_backoff(&name);
                }
            },
            None => queue.done(&name),
        }
    }
}

async fn change(context: &ControllerContext, node: &NodeObject) -> Result<()> {
    let Some(taints) = desired_taints(node) else {
        return Ok(());
    };
    let nodes: Api<Node> = Api::all(context.client.clone());
    let patch = Patch::Merge(patch(node, &taints));
    match nodes.patch(&node.view.name, &PatchParams::default(), &patch).await {
        Ok(_) => {
            let is_added = taints.len() > node.taints.len();
            info!(node = node.view.name, is_added, "Changed the out-of-service taint");
            Ok(())
        }
        // Deleted, or changed in between: the store will have the new version.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            debug!(node = node.view.name, "The node was changed in between");
            Ok(())
        }
        Err(error) => Err(Error::new(ErrorKind::Unavailable, "could not patch the node").with_source(error)),
    }
}

/// The taints that the node should have, if they differ.
fn desired_taints(node: &NodeObject) -> Option<Vec<Taint>> {
    let is_ours = node.view.provider_id.as_deref().is_some_and(|id| id.starts_with(&format!("{NAME}://")));
    let has_taint = node.has_taint(TAINT);
    match node.ready {
        Ready::True if is_ours && node.has_exact_taint(TAINT, NO_EXECUTE) => Some(node.taints_without(TAINT)),
        Ready::False | Ready::Unknown
            if is_ours && !has_taint && node.has_exact_taint(SHUTDOWN, NO_SCHEDULE) =>
        {
            Some(node.taints_with(TAINT, NO_EXECUTE))
        }
        _ => None,
    }
}

/// A patch that fails if the node was changed or created again in between.
fn patch(node: &NodeObject, taints: &[Taint]) -> Value {
    json!({
        "metadata": {"uid": node.view.uid, "resourceVersion": node.meta.resource_version},
        "spec": {"taints": taints},
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(ready: &str, provider_id: &str, taints: &Value) -> NodeObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "node-1", "uid": "u", "resourceVersion": "7"},
            "spec": {"providerID": provider_id, "taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn only_nodes_of_machines_that_are_off_get_the_taint() {
        let shutdown = json!({"key": SHUTDOWN, "effect": "NoSchedule"});
        let other = json!({"key": "other", "effect": "NoSchedule", "future": 1});
        let taint = json!({"key": TAINT, "effect": "NoExecute"});
        let azure = "azure:///subscriptions/s";
        let taints = |ready: &str, id: &str, taints: &Value| {
            let node = node(ready, id, taints);
            desired_taints(&node).map(|taints| patch(&node, &taints)["spec"]["taints"].clone())
        };
        let off = json!([other, shutdown]);
        assert_eq!(taints("Unknown", azure, &off), Some(json!([other, shutdown, taint])));
        assert_eq!(taints("False", azure, &off), Some(json!([other, shutdown, taint])));
        let tainted = json!([other, taint]);
        assert_eq!(taints("True", azure, &tainted), Some(json!([other])));
        for (ready, id, present) in [
            ("True", azure, &off),
            ("Unknown", azure, &json!([other])),
            ("Unknown", azure, &json!([shutdown, taint])),
            ("Unknown", "aws:///z/i-1", &off),
            ("True", "", &tainted),
            // Another effect is another client's.
            ("True", azure, &json!([{"key": TAINT, "effect": "NoSchedule"}])),
        ] {
            assert_eq!(taints(ready, id, present), None, "{ready} {id} {present}");
        }
        let patch = patch(&node("True", azure, &off), &[]);
        assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
    }
}
