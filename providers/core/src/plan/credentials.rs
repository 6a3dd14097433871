//! Whether the credentials in use see the cloud in which the cluster is.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::model::ScopeCheck;
use crate::{
    Cloud, ErrorKind, InstanceState, Result,
    instances::existence,
    load_balancer::{ClusterView, ReadOptions, ServiceNode},
};

/// How many nodes are asked about at once.
const BATCH: usize = 3;

/// Checks that a node of the cluster is visible under the credentials in use: the usual [`PartCloud::verify_scope`].
///
/// With another project's credentials every load balancer looks deleted, and so does every machine. One node of this
/// cloud that exists proves that the credentials are right. A check asks about three ready nodes in one call, then, if
/// none of them exists, about three others. The next check continues with the nodes that follow, so that nodes which
/// are dead, or are not of this project, never stop a deletion for good. A cluster without nodes has nothing that could
/// prove it, and nothing that a load balancer could serve.
///
/// [`PartCloud::verify_scope`]: super::PartCloud::verify_scope
#[derive(Debug, Default)]
pub struct CredentialsCheck {
    /// How many checks found none of their nodes. Which nodes come first depends on it.
    failures: AtomicUsize,
}

impl CredentialsCheck {
    /// Asks about nodes of the cluster until one is found.
    ///
    /// # Errors
    /// If the cloud could not be asked.
    pub async fn run(
        &self,
        cloud: &dyn Cloud,
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<ScopeCheck> {
        if cluster.nodes.is_empty() {
            return Ok(ScopeCheck::Verified);
        }
        let Some(instances) = cloud.instances() else {
            return Ok(ScopeCheck::Unverified(
                "this cloud tells nothing about machines".to_owned(),
            ));
        };
        let failures = self.failures.load(Ordering::Relaxed);
        let generation = cloud.generation();
        let is_owned =
            |node: &&ServiceNode| node.view.provider_id.as_deref().is_some_and(|id| cloud.owns(id));
        let (ready, others): (Vec<_>, Vec<_>) = cluster
            .nodes
            .all()
            .iter()
            .filter(is_owned)
            .partition(|node| node.ready);
        let mut missing = Vec::new();
        let (mut refused, mut failed) = (None, None);
        for mut nodes in [ready, others] {
            let first = failures.wrapping_mul(BATCH) % nodes.len().max(1);
            nodes.rotate_left(first);
            for batch in nodes.chunks(BATCH) {
                let views = batch.iter().map(|node| Arc::clone(&node.view));
                let answers = existence(instances, views, read.freshness, read.priority).await;
                if cloud.generation() != generation {
                    return Ok(ScopeCheck::Unverified(
                        "the credentials changed meanwhile".to_owned(),
                    ));
                }
                let mut answered = false;
                for (node, answer) in answers {
                    match answer {
                        Ok(InstanceState::Present(_)) => return Ok(ScopeCheck::Verified),
                        Ok(InstanceState::Absent | InstanceState::Unresolved) => {
                            answered = true;
                            missing.push(node.name.clone());
                        }
                        // This node cannot be asked about, whatever the credentials are.
                        Ok(InstanceState::Unmanaged) => {}
                        Err(error) if error.kind() == ErrorKind::InvalidSpec => refused = Some(error),
                        Err(error) => {
                            answered = true;
                            failed = Some(error);
                        }
                    }
                }
                if answered {
                    break;
                }
            }
        }
        // Checks that ran at the same time asked about the same nodes.
        let next = failures.wrapping_add(1);
        let _ = self
            .failures
            .compare_exchange(failures, next, Ordering::Relaxed, Ordering::Relaxed);
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(ScopeCheck::Unverified(match (missing.as_slice(), refused) {
            ([], Some(error)) => format!("no node can be asked about: {}", error.report()),
            ([], None) => format!("no node has a provider ID of {}", cloud.name()),
            (names, _) => format!("of the nodes {} none is in {}", names.join(", "), cloud.scope()),
        }))
    }
}
