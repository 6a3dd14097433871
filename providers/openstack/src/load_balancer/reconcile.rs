//! The metrics of load balancer work that the Go cloud controller has, under its names.
//!
//! It counts one call of its framework: making or changing the load balancer of a Service (`loadbalancer_ensure`),
//! following changed nodes (`loadbalancer_update`), taking it away (`loadbalancer_delete`). Here that is the work on the
//! part that is the load balancer, from its first pass to the one that ends it, waits for the cloud included.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use ccm_core::{
    Result, async_trait,
    client::ProviderMetrics,
    load_balancer::{
        Claim, Discovery, LoadBalancers, MemberReport, MemberState, PartKey, PartPlan, PartReport, PartState,
        PartStatus, ProviderFinalizers, Request, ServiceId, ServiceView,
    },
};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, histogram::Histogram},
};
use tokio::time::Instant;

use super::key::Key;

/// The label: what was done.
type Labels = [(&'static str, &'static str); 1];

const ENSURE: &str = "loadbalancer_ensure";
const UPDATE: &str = "loadbalancer_update";
const DELETE: &str = "loadbalancer_delete";

/// In seconds.
const BUCKETS: [f64; 20] = [
    0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0, 27.5, 30.0, 50.0,
    75.0, 100.0,
];
/// The last one.
const LONGEST: f64 = 1000.0;

/// Where work is counted. A clone counts in the same place.
#[derive(Clone, Debug)]
pub(crate) struct ReconcileMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    duration: Family<Labels, Histogram>,
    total: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
}

impl Default for ReconcileMetrics {
    fn default() -> Self {
        Self(Arc::new(Inner {
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS.into_iter().chain([LONGEST]))),
            total: Family::default(),
            errors: Family::default(),
        }))
    }
}

impl ReconcileMetrics {
    fn ended(&self, operation: &'static str, took: Duration, ok: bool) {
        let labels = [("operation", operation)];
        self.0.total.get_or_create(&labels).inc();
        self.0.duration.get_or_create(&labels).observe(took.as_secs_f64());
        if !ok {
            self.0.errors.get_or_create(&labels).inc();
        }
    }
}

impl ProviderMetrics for ReconcileMetrics {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let inner = &*self.0;
        inner.duration.encode(encoder.encode_descriptor(
            "cloudprovider_openstack_reconcile_duration_seconds",
            "Time taken by work on load balancers of the OpenStack provider",
            None,
            MetricType::Histogram,
        )?)?;
        // The format appends `_total`.
        inner.total.encode(encoder.encode_descriptor(
            "cloudprovider_openstack_reconcile",
            "Total number of times that load balancers were worked on",
            None,
            MetricType::Counter,
        )?)?;
        inner.errors.encode(encoder.encode_descriptor(
            "cloudprovider_openstack_reconcile_errors",
            "Total number of times that work on load balancers failed",
            None,
            MetricType::Counter,
        )?)
    }
}

/// Work under way on a part.
#[derive(Clone, Copy, Debug)]
struct Work {
    since: Instant,
    /// `None`: nothing of it is done yet.
    operation: Option<&'static str>,
}

/// Counts what is done to load balancers.
#[derive(Debug)]
pub(crate) struct Counted<L> {
    inner: L,
    metrics: ReconcileMetrics,
    under_way: Mutex<HashMap<PartKey, Work>>,
}

impl<L> Counted<L> {
    /// Counts what `inner` does.
    pub(crate) fn new(inner: L, metrics: ReconcileMetrics) -> Self {
        Self {
            inner,
            metrics,
            under_way: Mutex::default(),
        }
    }

    fn count(&self, asked: &PartKey, began: Instant, report: &PartReport) {
        if !matches!(asked.as_str().parse(), Ok(Key::Balancer(_) | Key::New(_))) {
            return;
        }
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        let mut all = self.under_way.lock();
        let before = all.remove(asked).or_else(|| all.remove(part));
        let known = before.and_then(|before| before.operation);
        let work = Work {
            since: before.map_or(began, |before| before.since),
            operation: match operation(report) {
                // What was more than following nodes stays so.
                Some(UPDATE) => known.or(Some(UPDATE)),
                now => now.or(known),
            },
        };
        let (worked, ok) = match &report.state {
            PartState::Parked { .. } => {
                all.insert(part.clone(), work);
                return;
            }
            PartState::Done => {
                let mut states = report.members.iter().map(|member| &member.state);
                let waits = states
                    .clone()
                    .all(|state| matches!(state, MemberState::Frozen(_)));
                let held = states.any(|state| matches!(state, MemberState::Refused(_)));
                // Who only waits for other parts costs nothing here yet.
                (!waits || !report.steps.is_empty(), !held)
            }
            PartState::Blocked(_) | PartState::Failed(_) => (true, false),
        };
        drop(all);
        if worked {
            // Nothing was to be done: it was looked whether all is as it should be.
            let operation = work.operation.unwrap_or(ENSURE);
            self.metrics.ended(operation, work.since.elapsed(), ok);
        }
    }
}

/// What the pass was for, by what it did; `None` if it did nothing.
fn operation(report: &PartReport) -> Option<&'static str> {
    let sentences = || report.steps.iter().map(|step| step.description.sentence.as_str());
    let left = |member: &MemberReport| matches!(member.state, MemberState::Left);
    let gone = !report.members.is_empty() && report.members.iter().all(left);
    if gone || sentences().any(|sentence| sentence.starts_with("delete load balancer")) {
        Some(DELETE)
    } else if sentences().next().is_none() {
        None
    } else if sentences().all(|sentence| sentence.contains("member")) {
        Some(UPDATE)
    } else {
        Some(ENSURE)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: LoadBalancers> LoadBalancers for Counted<L> {
    fn claims(&self, service: &ServiceView) -> Claim {
        self.inner.claims(service)
    }

    fn classes(&self) -> &[&'static str] {
        self.inner.classes()
    }

    fn finalizers(&self, service: &ServiceView) -> ProviderFinalizers {
        self.inner.finalizers(service)
    }

    async fn discover(&self, request: &Request) -> Result<Discovery> {
        self.inner.discover(request).await
    }

    async fn run(&self, part: &PartKey, request: &Request) -> PartReport {
        let began = Instant::now();
        let report = self.inner.run(part, request).await;
        self.count(part, began, &report);
        report
    }

    async fn plan(&self, request: &Request, only: Option<&ServiceId>) -> Result<Vec<PartPlan>> {
        self.inner.plan(request, only).await
    }

    fn status(&self) -> Vec<PartStatus> {
        self.inner.status()
    }
}
