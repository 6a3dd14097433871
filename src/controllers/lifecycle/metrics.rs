//! Metrics of the node lifecycle controller.

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use super::{
    apply::Outcome,
    decide::BlockReason,
    not_ready::{Answer, NotReadyNodes},
};
use crate::{
    controllers::node_action::NodeAction,
    metrics::{Labels, count, increment, metrics},
};

metrics! {
    pub(super) struct LifecycleMetrics {
        not_ready: Gauge = "ccm_node_lifecycle_suspects",
        pub(super) passes: Family<Labels<1>, Counter> = "ccm_node_lifecycle_passes",
        pub(super) pass_duration: Histogram = "ccm_node_lifecycle_pass_duration_seconds"
            in Histogram::new([0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 300.0]),
        pub(super) answers: Family<Labels<1>, Counter> = "ccm_node_lifecycle_answers",
        deletions: Family<Labels<1>, Counter> = "ccm_node_lifecycle_deletions",
        blocked: Family<Labels<1>, Gauge> = "ccm_nodes_deletion_held",
        shutdown: Gauge = "ccm_nodes_shutdown",
        taints: Family<Labels<1>, Counter> = "ccm_node_shutdown_taints",
    }
}

impl LifecycleMetrics {
    /// An action ended.
    pub(super) fn ended(&self, action: &NodeAction, outcome: Outcome) {
        let result = match (action, outcome) {
            (NodeAction::Delete(_), outcome) => {
                return increment(&self.deletions, "result", outcome.as_str());
            }
            (NodeAction::SetShutdownTaint(true), Outcome::Done) => "added",
            (_, Outcome::Done) => "removed",
            (_, Outcome::Failed { .. }) => "failed",
            _ => return,
        };
        increment(&self.taints, "result", result);
    }

    /// Sets how many nodes are not deleted for this reason.
    pub(super) fn set_blocked(&self, reason: BlockReason, nodes: usize) {
        let blocked = self.blocked.get_or_create(&[("reason", reason.as_str())]);
        blocked.set(count(nodes));
    }

    /// Shows the nodes that are not ready.
    pub(super) fn show(&self, not_ready: &NotReadyNodes) {
        self.not_ready.set(count(not_ready.len()));
        let off = not_ready.iter().filter(|known| known.answer == Some(Answer::Off));
        self.shutdown.set(count(off.count()));
    }
}
