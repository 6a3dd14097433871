//! Metrics of the engine.
//!
//! | Metric | Kind | Labels | Meaning |
//! |---|---|---|---|
//! | `ccm_plan_passes_total` | counter | `provider` `part` `result` | passes over a part: `done`, `parked`, `blocked`, `failed` |
//! | `ccm_plan_steps_total` | counter | `provider` `part` `step` `result` | steps: `ok`, `error` |
//! | `ccm_plan_step_duration_seconds` | histogram | `provider` `step` | from sending to done, the cloud's own work included |
//! | `ccm_plan_repeats_total` | counter | `provider` `part` `reason` | reads that were repeated: `stale`, `unknown`, `frozen` (a member) |
//! | `ccm_plan_parked` | gauge | `provider` `part` | parts that wait for the cloud |
//! | `ccm_plan_failing` | gauge | `provider` `part` | parts whose last pass failed or was blocked |
//! | `ccm_plan_differences` | gauge | `provider` `part` | differences that cannot be changed in place |
//!
//! `part` is the kind of part (`lb`), never a name, so that the number of series does not grow with Services.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// A label set: pairs of name and value.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The engine's metrics. Clones share them; `default()` is registered nowhere.
#[derive(Clone, Debug, Default)]
pub struct PlanMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    passes: Family<Labels<3>, Counter>,
    steps: Family<Labels<4>, Counter>,
    duration: Family<Labels<2>, Histogram>,
    repeats: Family<Labels<3>, Counter>,
    parked: Family<Labels<2>, Gauge>,
    failing: Family<Labels<2>, Gauge>,
    differences: Family<Labels<2>, Gauge>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            passes: Family::default(),
            steps: Family::default(),
            // 20 ms to 11 minutes.
            duration: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.02, 2.0, 16))),
            repeats: Family::default(),
            parked: Family::default(),
            failing: Family::default(),
            differences: Family::default(),
        }
    }
}

/// The contribution of one part to the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) parked: bool,
    pub(super) failing: bool,
    pub(super) differences: usize,
}

impl PlanMetrics {
    /// Creates and registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let inner = &metrics.0;
        registry.register(
            "ccm_plan_passes",
            "Passes over a part of a load balancer, by result: done, parked, blocked or failed",
            inner.passes.clone(),
        );
        registry.register("ccm_plan_steps", "Steps, by result: ok or error", inner.steps.clone());
        registry.register(
            "ccm_plan_step_duration_seconds",
            "Duration of a step from sending to done, the work of the cloud included",
            inner.duration.clone(),
        );
        registry.register(
            "ccm_plan_repeats",
            "Reads of a part that were repeated within a pass, by reason: stale, unknown or frozen",
            inner.repeats.clone(),
        );
        registry.register("ccm_plan_parked", "Parts that wait for the cloud", inner.parked.clone());
        registry.register(
            "ccm_plan_failing",
            "Parts whose last pass failed or was blocked",
            inner.failing.clone(),
        );
        registry.register(
            "ccm_plan_differences",
            "Differences that cannot be changed in place",
            inner.differences.clone(),
        );
        metrics
    }

    pub(super) fn pass_ended(&self, provider: &'static str, part: &'static str, result: &'static str) {
        self.0
            .passes
            .get_or_create(&[("provider", provider), ("part", part), ("result", result)])
            .inc();
    }

    pub(super) fn step_ended(
        &self,
        provider: &'static str,
        part: &'static str,
        step: &'static str,
        result: &'static str,
        took: Duration,
    ) {
        self.0
            .steps
            .get_or_create(&[
                ("provider", provider),
                ("part", part),
                ("step", step),
                ("result", result),
            ])
            .inc();
        self.0
            .duration
            .get_or_create(&[("provider", provider), ("step", step)])
            .observe(took.as_secs_f64());
    }

    pub(super) fn repeated(&self, provider: &'static str, part: &'static str, reason: &'static str) {
        self.0
            .repeats
            .get_or_create(&[("provider", provider), ("part", part), ("reason", reason)])
            .inc();
    }

    /// Updates the gauges: the contribution of one part was `before` and is `now`.
    pub(super) fn share(&self, provider: &'static str, part: &'static str, before: Share, now: Share) {
        let labels = [("provider", provider), ("part", part)];
        let change = |family: &Family<Labels<2>, Gauge>, before: usize, now: usize| {
            if before != now {
                let by = i64::try_from(now).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX);
                family.get_or_create(&labels).inc_by(by);
            }
        };
        change(&self.0.parked, before.parked.into(), now.parked.into());
        change(&self.0.failing, before.failing.into(), now.failing.into());
        change(&self.0.differences, before.differences, now.differences);
    }
}
