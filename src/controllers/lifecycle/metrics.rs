//! Metrics of the node lifecycle controller.

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use super::{
    decide::Reason,
    suspects::{Answer, Suspects},
};
use crate::metrics::{Labels, count, metrics};

metrics! {
    pub(super) struct LifecycleMetrics {
        suspects: Gauge = "ccm_node_lifecycle_suspects",
        passes: Family<Labels<1>, Counter> = "ccm_node_lifecycle_passes",
        pub(super) pass_duration: Histogram = "ccm_node_lifecycle_pass_duration_seconds"
            in Histogram::new([0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 300.0]),
        answers: Family<Labels<1>, Counter> = "ccm_node_lifecycle_answers",
        deletions: Family<Labels<1>, Counter> = "ccm_node_lifecycle_deletions",
        held: Family<Labels<1>, Gauge> = "ccm_nodes_deletion_held",
        shutdown: Gauge = "ccm_nodes_shutdown",
        taints: Family<Labels<1>, Counter> = "ccm_node_shutdown_taints",
    }
}

impl LifecycleMetrics {
    pub(super) fn passed(&self, result: &'static str) {
        self.passes.get_or_create(&[("result", result)]).inc();
    }

    pub(super) fn answered(&self, answer: Answer) {
        self.answers.get_or_create(&[("answer", answer.as_str())]).inc();
    }

    pub(super) fn deletion(&self, result: &'static str) {
        self.deletions.get_or_create(&[("result", result)]).inc();
    }

    pub(super) fn tainted(&self, result: &'static str) {
        self.taints.get_or_create(&[("result", result)]).inc();
    }

    pub(super) fn set_held(&self, reason: Reason, nodes: usize) {
        let held = self.held.get_or_create(&[("reason", reason.as_str())]);
        held.set(count(nodes));
    }

    /// Shows how things stand.
    pub(super) fn show(&self, suspects: &Suspects) {
        self.suspects.set(count(suspects.len()));
        let off = suspects
            .iter()
            .filter(|suspect| suspect.answer == Some(Answer::Off));
        self.shutdown.set(count(off.count()));
    }
}
