//! The check that the credentials in use are those of the cluster's cloud.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tracing::debug;

use super::model::ScopeCheck;
use crate::{
    Cloud, ErrorKind, InstanceState, Result,
    instances::existence,
    load_balancer::{ClusterView, ReadOptions, ServiceNode},
};

/// The number of nodes that one call looks up.
const BATCH: usize = 3;

/// Checks that a node of the cluster is visible under the credentials in use: the usual [`PartCloud::verify_scope`].
///
/// With another project's credentials every load balancer looks deleted, and so does every machine. One node of this
/// cloud that exists proves that the credentials are right. A check looks up three ready nodes in one call, then, if
/// none of them exists, three others. The next check continues with the nodes that follow, so that nodes that are dead
/// or of another project never stop a deletion permanently. A cluster without nodes needs no proof: a load balancer has
/// nothing to serve there.
///
/// [`PartCloud::verify_scope`]: super::PartCloud::verify_scope
#[derive(Debug, Default)]
pub struct CredentialsCheck {
    /// The number of checks that found none of their nodes. It decides which nodes are looked up first.
    failures: AtomicUsize,
}

impl CredentialsCheck {
    /// Looks up nodes of the cluster until one is found.
    ///
    /// # Errors
    /// If the lookup failed.
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
            return Ok(ScopeCheck::Unverified("the provider cannot look up machines".to_owned()));
        };
        let failures = self.failures.load(Ordering::Relaxed);
        let generation = cloud.generation();
        let is_owned =
            |node: &&ServiceNode| node.view.provider_id.as_deref().is_some_and(|id| cloud.owns(id));
        let is_unknown =
            |node: &&ServiceNode| node.view.provider_id.as_deref().unwrap_or_default().is_empty();
        let all = cluster.nodes.all();
        let mut known: Vec<_> = all.iter().filter(is_owned).collect();
        if known.is_empty() {
            // Kubelets may run without an external cloud provider. Such nodes are looked up by name.
            known = all.iter().filter(is_unknown).collect();
        }
        let (ready, others): (Vec<_>, Vec<_>) = known.into_iter().partition(|node| node.ready);
        let mut missing = Vec::new();
        let (mut refused, mut failed) = (BTreeSet::new(), None);
        for mut nodes in [ready, others] {
            let first = failures.wrapping_mul(BATCH) % nodes.len().max(1);
            nodes.rotate_left(first);
            for batch in nodes.chunks(BATCH) {
                let views = batch.iter().map(|node| Arc::clone(&node.view));
                let answers = existence(instances, views, read.freshness, read.priority).await;
                if cloud.generation() != generation {
                    return Ok(ScopeCheck::Unverified("the credentials changed during the check".to_owned()));
                }
                let mut answered = false;
                for (node, answer) in answers {
                    match answer {
                        Ok(InstanceState::Present(_)) => return Ok(ScopeCheck::Verified),
                        Ok(InstanceState::Absent | InstanceState::Unresolved) => {
                            answered = true;
                            missing.push(node.name.clone());
                        }
                        // This node cannot be looked up, whatever the credentials are.
                        Ok(InstanceState::Unmanaged) => {}
                        Err(error) if error.kind() == ErrorKind::InvalidSpec => {
                            refused.insert(error.report_without_request());
                        }
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
        // Checks that ran at the same time looked up the same nodes.
        let next = failures.wrapping_add(1);
        let _ = self.failures.compare_exchange(failures, next, Ordering::Relaxed, Ordering::Relaxed);
        if let Some(error) = failed {
            return Err(error);
        }
        let scope = cloud.scope();
        debug!(?missing, scope, "No node proves that the credentials are right");
        // The nodes differ from check to check. The text stays the same, so that it is reported once.
        Ok(ScopeCheck::Unverified(match (missing.is_empty(), refused.first()) {
            (true, Some(error)) => format!("no node could be looked up: {error}"),
            (true, None) => format!("no node has a provider ID of {}", cloud.name()),
            (false, _) => format!("no node that was looked up exists in {scope}"),
        }))
    }
}
