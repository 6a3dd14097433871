//! Metrics of whole reconciliations of load balancers, under the names that a cloud's earlier controller gave them.
//!
//! Those controllers count one call of their framework: creating or updating the load balancer of a Service (*ensure*),
//! following changed nodes (*update*), deleting it (*delete*). Here that is the work on the part that is the load balancer,
//! from its first pass to the one that ends it, waits for the cloud included.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use prometheus_client::metrics::{
    counter::Counter,
    family::{Family, MetricConstructor},
    histogram::Histogram,
};
use tokio::time::Instant;

use super::{
    Claim, Discovery, LoadBalancers, MemberReport, MemberState, PartKey, PartPlan, PartReport, PartState,
    PartStatus, ProviderFinalizers, Request, ServiceId, ServiceView, StepDescription,
};
use crate::client::ClientMetrics;

type Labels = [(&'static str, &'static str); 1];

/// The kind of a reconciliation, from the least to the most work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reconciliation {
    /// The members follow the nodes.
    Update,
    /// The load balancer is created or changed, or is as it should be.
    Ensure,
    /// The load balancer is deleted, or all its Services leave it.
    Delete,
}

/// The metrics of a provider: names, labels and buckets.
#[derive(Debug)]
pub struct ReconcileMetricsConfig {
    /// Name and help of the histogram of seconds.
    pub duration: (&'static str, &'static str),
    /// Name, without `_total`, and help of the counter of reconciliations.
    pub total: (&'static str, &'static str),
    /// Name, without `_total`, and help of the counter of failures.
    pub errors: (&'static str, &'static str),
    /// The upper bounds of the histogram's buckets, in seconds.
    pub buckets: &'static [f64],
    /// The value of the label `operation`.
    pub operation: fn(Reconciliation) -> &'static str,
    /// Whether a part is a load balancer. Other parts are not counted.
    pub is_load_balancer: fn(&PartKey) -> bool,
    /// The kind of reconciliation that a step belongs to.
    pub kind: fn(&StepDescription) -> Reconciliation,
}

/// Where reconciliations are counted. A clone counts in the same place.
#[derive(Clone, Debug)]
pub struct ReconcileMetrics {
    config: &'static ReconcileMetricsConfig,
    duration: Family<Labels, Histogram, Buckets>,
    total: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
}

#[derive(Clone, Debug)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl ReconcileMetrics {
    /// Metrics that count from zero, published under the name of a provider.
    #[must_use]
    pub fn publish(
        provider: &'static str,
        config: &'static ReconcileMetricsConfig,
        client: &ClientMetrics,
    ) -> Self {
        let metrics = Self {
            config,
            duration: Family::new_with_constructor(Buckets(config.buckets)),
            total: Family::default(),
            errors: Family::default(),
        };
        let Self {
            duration,
            total,
            errors,
            ..
        } = metrics.clone();
        client.publish(
            provider,
            vec![
                (config.duration.0, config.duration.1, Box::new(duration)),
                (config.total.0, config.total.1, Box::new(total)),
                (config.errors.0, config.errors.1, Box::new(errors)),
            ],
        );
        metrics
    }

    fn observe(&self, kind: Reconciliation, took: Duration, is_ok: bool) {
        let labels = [("operation", (self.config.operation)(kind))];
        self.total.get_or_create(&labels).inc();
        self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        if !is_ok {
            self.errors.get_or_create(&labels).inc();
        }
    }
}

/// Work under way on a part.
#[derive(Clone, Copy, Debug)]
struct Work {
    since: Instant,
    /// `None`: no step was done yet.
    kind: Option<Reconciliation>,
}

/// A provider's load balancers, with its [`ReconcileMetrics`].
#[derive(Debug)]
pub struct MeasuredLoadBalancers<L> {
    inner: L,
    metrics: ReconcileMetrics,
    under_way: Mutex<HashMap<PartKey, Work>>,
}

impl<L> MeasuredLoadBalancers<L> {
    /// Counts the work of `inner`.
    #[must_use]
    pub fn new(inner: L, metrics: ReconcileMetrics) -> Self {
        Self {
            inner,
            metrics,
            under_way: Mutex::default(),
        }
    }

    fn count(&self, key: &PartKey, began: Instant, report: &PartReport) {
        let config = self.metrics.config;
        if !(config.is_load_balancer)(key) {
            return;
        }
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        let mut all = self.under_way.lock();
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
            let kind = work.kind.unwrap_or(Reconciliation::Ensure);
            self.metrics.observe(kind, work.since.elapsed(), is_ok);
        }
    }
}

/// The kind of a pass; `None` if it had no step.
fn kind(report: &PartReport, of_step: fn(&StepDescription) -> Reconciliation) -> Option<Reconciliation> {
    let left = |member: &MemberReport| matches!(member.state, MemberState::Left);
    if !report.members.is_empty() && report.members.iter().all(left) {
        return Some(Reconciliation::Delete);
    }
    report.steps.iter().map(|step| of_step(&step.description)).max()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: LoadBalancers> LoadBalancers for MeasuredLoadBalancers<L> {
    fn claims(&self, service: &ServiceView) -> Claim {
        self.inner.claims(service)
    }

    fn classes(&self) -> &[&'static str] {
        self.inner.classes()
    }

    fn finalizers(&self, service: &ServiceView) -> ProviderFinalizers {
        self.inner.finalizers(service)
    }

    async fn discover(&self, request: &Request) -> crate::Result<Discovery> {
        self.inner.discover(request).await
    }

    async fn run(&self, part: &PartKey, request: &Request) -> PartReport {
        let began = Instant::now();
        let report = self.inner.run(part, request).await;
        self.count(part, began, &report);
        report
    }

    async fn plan(&self, request: &Request, only: Option<&ServiceId>) -> crate::Result<Vec<PartPlan>> {
        self.inner.plan(request, only).await
    }

    fn status(&self) -> Vec<PartStatus> {
        self.inner.status()
    }
}
