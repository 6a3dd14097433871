//! Metrics of the node lifecycle controller.
//!
//! | Metric | Meaning |
//! |---|---|
//! | `ccm_node_lifecycle_suspects` | nodes that are not ready and are asked about |
//! | `ccm_node_lifecycle_passes_total{result}` | questions to the cloud about all suspects that are due: `answered`, `failed` (an answer could not be found out), `discarded` (the credentials changed meanwhile) |
//! | `ccm_node_lifecycle_pass_duration_seconds` | from a pass's first question to its last answer |
//! | `ccm_node_lifecycle_answers_total{answer}` | answers about suspects: `present`, `shutdown`, `absent`, `unresolved`, `unmanaged`, `failed` |
//! | `ccm_node_lifecycle_deletions_total{result}` | tries to delete a node whose machine is gone: `deleted`, `gone` (somebody else did), `changed` (looked at again later), `kept` (it is another node, another machine, or ready again), `young`, `failed` |
//! | `ccm_nodes_deletion_held{reason}` | nodes whose machine seems gone and that are not deleted: `nothing-present` (no other node was found with the same credentials), `deletion-share` (too many at once, they go one a minute) |
//! | `ccm_nodes_shutdown` | suspects whose machine is switched off |
//! | `ccm_node_shutdown_taints_total{result}` | `added`, `removed`, `failed` |

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::{
    decide::Reason,
    suspects::{Answer, Suspects},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AnswerLabel {
    answer: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct LifecycleMetrics {
    suspects: Gauge,
    passes: Family<ResultLabel, Counter>,
    pub(super) pass_duration: Histogram,
    answers: Family<AnswerLabel, Counter>,
    deletions: Family<ResultLabel, Counter>,
    held: Family<ReasonLabel, Gauge>,
    shutdown: Gauge,
    taints: Family<ResultLabel, Counter>,
}

impl LifecycleMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            suspects: Gauge::default(),
            passes: Family::default(),
            pass_duration: Histogram::new([0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 300.0]),
            answers: Family::default(),
            deletions: Family::default(),
            held: Family::default(),
            shutdown: Gauge::default(),
            taints: Family::default(),
        };
        registry.register(
            "ccm_node_lifecycle_suspects",
            "Nodes that are not ready and that the cloud is asked about",
            metrics.suspects.clone(),
        );
        registry.register(
            "ccm_node_lifecycle_passes",
            "Questions to the cloud about all nodes that are due, by what came of them",
            metrics.passes.clone(),
        );
        registry.register(
            "ccm_node_lifecycle_pass_duration_seconds",
            "From the first question of a pass to its last answer",
            metrics.pass_duration.clone(),
        );
        registry.register(
            "ccm_node_lifecycle_answers",
            "Answers of the cloud about nodes that are not ready",
            metrics.answers.clone(),
        );
        registry.register(
            "ccm_node_lifecycle_deletions",
            "Tries to delete a node whose machine is gone, by result",
            metrics.deletions.clone(),
        );
        registry.register(
            "ccm_nodes_deletion_held",
            "Nodes whose machine seems gone and that are not deleted, by reason",
            metrics.held.clone(),
        );
        registry.register(
            "ccm_nodes_shutdown",
            "Nodes that are not ready and whose machine is switched off",
            metrics.shutdown.clone(),
        );
        registry.register(
            "ccm_node_shutdown_taints",
            "Changes of the shutdown taint",
            metrics.taints.clone(),
        );
        // So that an alert on them does not depend on the first case.
        for reason in Reason::ALL {
            metrics.set_held(reason, 0);
        }
        metrics
    }

    pub(super) fn passed(&self, result: &'static str) {
        self.passes.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn answered(&self, answer: Answer) {
        let answer = answer.as_str();
        self.answers.get_or_create(&AnswerLabel { answer }).inc();
    }

    pub(super) fn deletion(&self, result: &'static str) {
        self.deletions.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn tainted(&self, result: &'static str) {
        self.taints.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn set_held(&self, reason: Reason, nodes: usize) {
        let reason = reason.as_str();
        self.held.get_or_create(&ReasonLabel { reason }).set(gauge(nodes));
    }

    /// Shows how things stand.
    pub(super) fn show(&self, suspects: &Suspects) {
        self.suspects.set(gauge(suspects.len()));
        let off = suspects
            .iter()
            .filter(|suspect| suspect.answer == Some(Answer::Off));
        self.shutdown.set(gauge(off.count()));
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
