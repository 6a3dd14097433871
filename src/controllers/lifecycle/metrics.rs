//! Metrics of the node lifecycle controller.

use std::time::Duration;

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};

use super::{
    apply::NodeOutcome,
    decide::BlockReason,
    not_ready::{Answer, NotReadyNodes},
};
use crate::{
    controllers::node_action::NodeAction,
    metrics::{Labels, count, increment, metrics},
};

metrics! {
    pub(super) struct LifecycleMetrics {
        not_ready: Gauge = "ccm_node_lifecycle_checked_nodes",
        pub(super) passes: Family<Labels<1>, Counter> = "ccm_node_lifecycle_passes",
        pass_duration: Histogram = "ccm_node_lifecycle_pass_duration_seconds"
            in Histogram::new([0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 300.0]),
        answers: Family<Labels<1>, Counter> = "ccm_node_lifecycle_answers",
        monitor_duration: Histogram = "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds"
            in Histogram::new(exponential_buckets(0.001, 2.0, 15)),
        calls: Family<Labels<2>, Counter> = "cloud_node_lifecycle_controller_cloud_provider_calls",
        deletions: Family<Labels<1>, Counter> = "ccm_node_lifecycle_deletions",
        blocked: Family<Labels<1>, Gauge> = "ccm_node_deletions_paused",
        shutdown: Gauge = "ccm_nodes_shutdown",
        taints: Family<Labels<1>, Counter> = "ccm_node_shutdown_taints",
    }
}

impl LifecycleMetrics {
    /// A pass ended.
    pub(super) fn passed(&self, elapsed: Duration) {
        self.pass_duration.observe(elapsed.as_secs_f64());
        self.monitor_duration.observe(elapsed.as_secs_f64());
    }

    /// Counts an answer about a node. Upstream ask whether a machine exists, and if so, whether it is shut down.
    pub(super) fn answered(&self, answer: Answer) {
        increment(&self.answers, "answer", answer.as_str());
        let call = |operation, result| {
            let labels = [("operation", operation), ("result", result)];
            self.calls.get_or_create(&labels).inc();
        };
        let exists = match answer {
            Answer::On | Answer::Off | Answer::Unmanaged => "success",
            Answer::Absent | Answer::Unresolved => "instance_not_found",
            Answer::Failed => "error",
        };
        call("instance_exists", exists);
        if answer.is_present() {
            call("instance_shutdown", "success");
        }
    }

    /// An action ended.
    pub(super) fn ended(&self, action: &NodeAction, outcome: NodeOutcome) {
        let result = match (action, outcome) {
            (NodeAction::Delete(_), outcome) => {
                return increment(&self.deletions, "result", outcome.as_str());
            }
            (NodeAction::SetShutdownTaint(true), NodeOutcome::Done) => "added",
            (_, NodeOutcome::Done) => "removed",
            (_, NodeOutcome::Failed { .. }) => "failed",
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

/// Registers the metrics, and records every answer.
#[cfg(test)]
pub(crate) fn record_metrics(registry: &mut prometheus_client::registry::Registry) {
    let metrics = LifecycleMetrics::register(registry);
    metrics.passed(Duration::from_millis(20));
    for answer in [
        Answer::On,
        Answer::Off,
        Answer::Absent,
        Answer::Unresolved,
        Answer::Unmanaged,
        Answer::Failed,
    ] {
        metrics.answered(answer);
    }
}
