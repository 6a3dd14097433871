//! Metrics of whole reconciliations of load balancers, under the names of the Go cloud controller.
//!
//! It counts one call of its framework: creating or updating the load balancer of a Service (*ensure*), following changed
//! nodes (*update*), deleting it (*delete*). Here a reconciliation is the work on a load balancer part, from its first pass to
//! the last one, waits for the cloud included.

use std::collections::HashMap;

use ccm_core::{
    client::{ClientMetrics, TimedConfig, TimedMetrics},
    load_balancer::{MemberReport, MemberState, PartKey, PartReport, PartState, StepDescription},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::part::Key;

static METRICS: TimedConfig = TimedConfig {
    label: "operation",
    duration: (
        "cloudprovider_openstack_reconcile_duration_seconds",
        "Time taken by work on load balancers of the OpenStack provider",
    ),
    total: (
        "cloudprovider_openstack_reconcile",
        "Total number of times that load balancers were worked on",
    ),
    errors: (
        "cloudprovider_openstack_reconcile_errors",
        "Total number of times that work on load balancers failed",
    ),
    buckets: &[
        0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0, 27.5, 30.0, 50.0,
        75.0, 100.0, 1000.0,
    ],
};

/// The kind of a reconciliation, from the least to the most work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reconciliation {
    /// The members follow the nodes.
    Update,
    /// The load balancer is created or changed, or has its desired state.
    Ensure,
    /// The load balancer is deleted, or all its Services leave it.
    Delete,
}

/// Work in progress on a part.
#[derive(Clone, Copy, Debug)]
struct Work {
    since: Instant,
    /// `None`: no step was done yet.
    kind: Option<Reconciliation>,
}

/// The metrics, and the work that they do not count yet.
#[derive(Debug)]
pub(super) struct ReconcileMetrics {
    metrics: TimedMetrics,
    running: Mutex<HashMap<PartKey, Work>>,
}

impl ReconcileMetrics {
    pub(super) fn publish(metrics: &ClientMetrics) -> Self {
        Self {
            metrics: TimedMetrics::publish("openstack_reconcile", &METRICS, metrics),
            running: Mutex::default(),
        }
    }

    pub(super) fn pass_ended(&self, began: Instant, report: &PartReport) {
        if !matches!(report.part.as_str().parse(), Ok(Key::Balancer(_) | Key::New(_))) {
            return;
        }
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        let mut all = self.running.lock();
        let before = all.remove(&report.part).or_else(|| all.remove(part));
        let known = before.and_then(|before| before.kind);
        let work = Work {
            since: before.map_or(began, |before| before.since),
            kind: match kind(report) {
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
                let is_frozen = states
                    .clone()
                    .all(|state| matches!(state, MemberState::Frozen(_)));
                let is_refused = states.any(|state| matches!(state, MemberState::Refused(_)));
                // Waiting for other parts alone is no work on this one.
                (!is_frozen || !report.steps.is_empty(), !is_refused)
            }
            PartState::Blocked(_) | PartState::Failed(_) => (true, false),
        };
        drop(all);
        if is_counted {
            let operation = match work.kind.unwrap_or(Reconciliation::Ensure) {
                Reconciliation::Ensure => "loadbalancer_ensure",
                Reconciliation::Update => "loadbalancer_update",
                Reconciliation::Delete => "loadbalancer_delete",
            };
            self.metrics.observe(operation, work.since.elapsed(), is_ok);
        }
    }
}

/// The kind of a pass; `None` if it had no step.
fn kind(report: &PartReport) -> Option<Reconciliation> {
    let left = |member: &MemberReport| matches!(member.state, MemberState::Left);
    if !report.members.is_empty() && report.members.iter().all(left) {
        return Some(Reconciliation::Delete);
    }
    report.steps.iter().map(|step| kind_of(&step.description)).max()
}

fn kind_of(step: &StepDescription) -> Reconciliation {
    match step.label {
        "loadbalancer_delete" => Reconciliation::Delete,
        "members_update" | "member_create" | "member_delete" => Reconciliation::Update,
        _ => Reconciliation::Ensure,
    }
}
