//! Shared by the controllers of nodes: taints, questions about instances, the meaning of the API server's refusals.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Error, ErrorKind, Freshness, InstanceQuery, InstanceState, Need, NodeView, Priority, Result,
    controllers::{Informer, NodeObject, node::Ready},
};

use crate::server::status::NodeRow;

/// Taint that the kubelet puts on a node under `--cloud-provider=external`; matched by key alone.
pub(crate) const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Taint on nodes whose instance is switched off.
pub(crate) const SHUTDOWN_TAINT: (&str, &str) = ("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule");

/// Taint that the cluster autoscaler puts on a node before it deletes the instance; matched by key alone.
pub(crate) const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// How long the store may lag behind a write. A difference from the write after that is another writer's.
pub(crate) const STORE_LAG: Duration = Duration::from_secs(10);

/// The nodes by name, for the status page.
pub(crate) fn rows(nodes: &Informer<NodeObject>) -> Vec<NodeRow> {
    let nodes = nodes.list();
    let rows = nodes.iter().map(|node| NodeRow {
        name: node.meta.name.clone().unwrap_or_default(),
        state: match node.ready {
            _ if node.has_taint(UNINITIALIZED_TAINT) => "uninitialized",
            _ if node.has_taint(SHUTDOWN_TAINT.0) => "shut down",
            Ready::True => "ready",
            Ready::False => "not ready",
            Ready::Unknown => "unknown",
        },
        provider_id: node.view.provider_id.as_deref().unwrap_or_default().to_owned(),
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows
}

/// Whether the API server refused the request because the node has changed: 422 for a failed test or another
/// uid, 409 for a failed precondition or when its own optimistic locking failed.
pub(crate) fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 409 | 422))
}

/// Whether the API server answered that the object does not exist. Before 1.37 it also refuses every update of an object whose
/// namespace was finalized by force; the object can be updated once the namespace exists again.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let details = status.details.as_ref();
    let lacks_namespace = details.is_some_and(|found| found.kind == "namespaces");
    status.code == 404 && !lacks_namespace
}

/// Asks about nodes: one answer for each, in their order, whatever the provider does.
pub(crate) async fn describe(
    cloud: &dyn Cloud,
    nodes: impl IntoIterator<Item = &Arc<NodeView>> + Send,
    need: Need,
    freshness: Freshness,
    priority: Priority,
) -> Vec<Result<InstanceState>> {
    let queries: Vec<_> = nodes
        .into_iter()
        .map(|node| InstanceQuery {
            node: Arc::clone(node),
            need,
        })
        .collect();
    let answers = match cloud.instances() {
        Some(instances) if !queries.is_empty() => instances.describe(&queries, freshness, priority).await,
        _ => Vec::new(),
    };
    if answers.len() == queries.len() {
        return answers;
    }
    let error = Error::new(
        ErrorKind::Unexpected,
        format!(
            "the cloud provider returned {} answers to {} queries; this is a bug",
            answers.len(),
            queries.len()
        ),
    );
    // The answers cannot be assigned to nodes.
    queries.iter().map(|_| Err(error.clone())).collect()
}
