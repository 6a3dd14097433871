//! Metrics of whole reconciliations of load balancers, under the names that a cloud's earlier controller gave them.
//!
//! Those controllers count one call of their framework: creating or updating the load balancer of a Service (*ensure*),
//! following changed nodes (*update*), deleting it (*delete*). Here a reconciliation is the work on a load balancer part, from
//! its first pass to the last one, waits for the cloud included.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{MemberState, PartKey, PartReport, PartState, StepDescription};
use crate::client::{ClientMetrics, TimedConfig, TimedMetrics};

/// The kind of a reconciliation, from the least to the most work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reconciliation {
    /// The members follow the nodes.
    Update,
    /// The load balancer is created or changed, or has its desired state.
    Ensure,
    /// The load balancer is deleted, or all its Services leave it.
    Delete,
}

/// The metrics of a provider.
#[derive(Debug)]
pub struct ReconcileMetricsConfig {
    /// Names, label and buckets.
    pub metrics: TimedConfig,
    /// The value of the label.
    pub operation: fn(Reconciliation) -> &'static str,
    /// Whether a part is a load balancer. Other parts are not counted.
    pub is_load_balancer: fn(&PartKey) -> bool,
    /// The kind of reconciliation that a step belongs to.
    pub kind: fn(&StepDescription) -> Reconciliation,
}

/// Work in progress on a part.
#[derive(Clone, Copy, Debug)]
struct Work {
    since: Instant,
    /// `None`: no step was done yet.
    kind: Option<Reconciliation>,
}

/// Counts the reconciliations of a provider's load balancers.
#[derive(Debug)]
pub struct ReconcileMetrics {
    config: &'static ReconcileMetricsConfig,
    metrics: TimedMetrics,
    running: Mutex<HashMap<PartKey, Work>>,
}

impl ReconcileMetrics {
    /// Publishes the metrics under this name.
    #[must_use]
    pub fn publish(
        name: &'static str,
        config: &'static ReconcileMetricsConfig,
        metrics: &ClientMetrics,
    ) -> Self {
        Self {
            config,
            metrics: TimedMetrics::publish(name, &config.metrics, metrics),
            running: Mutex::default(),
        }
    }

    /// Counts a pass that was requested at `began`; see [`PartCloud::pass_ended`](crate::plan::PartCloud::pass_ended).
    pub fn pass_ended(&self, began: Instant, report: &PartReport) {
        let config = self.config;
        let key = &report.part;
        if !(config.is_load_balancer)(key) {
            return;
        }
        let part = report.renamed.as_ref().unwrap_or(key);
        let mut all = self.running.lock();
        let before = all.remove(key).or_else(|| all.remove(part));
        let known = before.and_then(|before| before.kind);
        let work = Work {
            since: before.map_or(began, |before| before.since),
            kind: match kind(report, config.kind) {
                // More than following nodes was done before.
                Some(Reconciliation::Update) => known.or(Some(Reconciliation::Update)),
                now => now.or(known),
            },
        };
        let (is_counted, is_ok) = match &report.state {
            PartState::Parked { .. } => {
                all.insert(part.clone(), work);
                return;
            }
            PartState::Done => {
                let mut states = report.members.iter().map(|member| &member.state);
                let is_frozen = states.clone().all(|state| matches!(state, MemberState::Frozen(_)));
                let is_refused = states.any(|state| matches!(state, MemberState::Refused(_)));
                // Waiting for other parts alone is no work on this one.
                (!is_frozen || !report.steps.is_empty(), !is_refused)
            }
            PartState::Blocked(_) | PartState::Failed(_) => (true, false),
        };
        drop(all);
        if is_counted {
            let kind = work.kind.unwrap_or(Reconciliation::Ensure);
            self.metrics.observe((config.operation)(kind), work.since.elapsed(), is_ok);
        }
    }
}

/// The kind of a pass; `None` if it had no step.
fn kind(report: &PartReport, of_step: fn(&StepDescription) -> Reconciliation) -> Option<Reconciliation> {
    let all_left = report.members.iter().all(|member| matches!(member.state, MemberState::Left));
    if all_left && !report.members.is_empty() {
        return Some(Reconciliation::Delete);
    }
    report.steps.iter().map(|step| of_step(&step.description)).max()
}
