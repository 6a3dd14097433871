//! Nodes and queries of their instances, and answers to them.

use std::sync::Arc;

use crate::{
    Cloud, Freshness, Instance, InstanceQuery, InstanceState, Need, NodeAddress, NodeView, Priority, Result,
    load_balancer::ServiceNode,
};

/// The node `name` with this provider ID.
#[must_use]
pub fn node_view(name: &str, provider_id: Option<&str>) -> Arc<NodeView> {
    Arc::new(NodeView {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        provider_id: provider_id.map(str::to_owned),
        ..NodeView::default()
    })
}

/// The node `name` as Services see it: ready and eligible.
#[must_use]
pub fn service_node(name: &str, provider_id: &str, addresses: Vec<NodeAddress>) -> ServiceNode {
    ServiceNode {
        view: node_view(name, Some(provider_id)),
        addresses: addresses.into(),
        eligible: true,
        ready: true,
    }
}

/// Queries the instance of a node.
#[must_use]
pub fn query(name: &str, provider_id: Option<&str>, need: Need) -> InstanceQuery {
    InstanceQuery {
        node: node_view(name, provider_id),
        need,
    }
}

/// Describes instances as for a user.
///
/// # Panics
///
/// The cloud has no instances.
pub async fn describe(
    cloud: &dyn Cloud,
    queries: &[InstanceQuery],
    freshness: Freshness,
) -> Vec<Result<InstanceState>> {
    let instances = cloud.instances().expect("the cloud has instances");
    instances.describe(queries, freshness, Priority::User).await
}

/// Describes one instance as it is now.
///
/// # Panics
///
/// The cloud has no instances, or returns no answer.
pub async fn ask(cloud: &dyn Cloud, query: InstanceQuery) -> Result<InstanceState> {
    let mut answers = describe(cloud, &[query], Freshness::now()).await;
    answers.pop().expect("one answer to one query")
}

/// The instance in an answer.
///
/// # Panics
///
/// The answer has no instance.
pub fn present(answer: Result<InstanceState>) -> Instance {
    match answer {
        Ok(InstanceState::Present(instance)) => instance,
        other => panic!("expected Present, got {other:?}"),
    }
}
