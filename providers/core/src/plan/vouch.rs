//! Whether we look at the cloud in which the cluster is.

use std::sync::Arc;

use super::model::Vouch;
use crate::{
    Cloud, InstanceQuery, InstanceState, Need, Result,
    load_balancer::{Ask, ClusterView},
};

/// How many nodes are asked about.
const WITNESSES: usize = 3;

/// Whether a node of the cluster is visible under the credentials in use: the usual [`PartCloud::vouch`].
///
/// With another project's credentials every load balancer looks deleted, and so does every machine. Up to three nodes
/// of this cloud are asked about in one call; one that is there vouches for the rest. A cluster without nodes has
/// nothing that could vouch, and nothing that a load balancer could serve.
///
/// # Errors
/// If the cloud could not be asked.
///
/// [`PartCloud::vouch`]: super::PartCloud::vouch
pub async fn vouch_by_nodes(cloud: &dyn Cloud, cluster: &ClusterView, ask: Ask) -> Result<Vouch> {
    if cluster.nodes.is_empty() {
        return Ok(Vouch::Ours);
    }
    let Some(instances) = cloud.instances() else {
        return Ok(Vouch::Unproven(
            "this cloud tells nothing about machines".to_owned(),
        ));
    };
    let queries: Vec<_> = cluster
        .nodes
        .all()
        .iter()
        .filter(|node| node.view.provider_id.as_deref().is_some_and(|id| cloud.owns(id)))
        .take(WITNESSES)
        .map(|node| InstanceQuery {
            node: Arc::clone(&node.view),
            need: Need::Existence,
        })
        .collect();
    if queries.is_empty() {
        return Ok(Vouch::Unproven(format!(
            "no node has a provider ID of {}",
            cloud.name()
        )));
    }
    let generation = cloud.generation();
    let answers = instances.describe(&queries, ask.freshness, ask.priority).await;
    if cloud.generation() != generation {
        return Ok(Vouch::Unproven("the credentials changed meanwhile".to_owned()));
    }
    let mut failed = None;
    for answer in answers {
        match answer {
            Ok(InstanceState::Present(_)) => return Ok(Vouch::Ours),
            Ok(_) => {}
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(Vouch::Unproven(format!(
            "of the nodes {} none is in {}",
            queries
                .iter()
                .map(|query| query.node.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            cloud.scope()
        ))),
    }
}
