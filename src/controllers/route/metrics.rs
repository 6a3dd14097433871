//! Metrics of the route controller.
//!
//! | Metric | Meaning |
//! |---|---|
//! | `route_controller_route_sync_total` | passes, those that failed included |
//! | `ccm_route_controller_running` | 1 while routes are kept; 0 if they are not although the controller is switched on (see the log) |
//! | `ccm_route_passes_total{result}` | passes: `ok`, `failed` (the routes could not be read), `incomplete` (a change failed) |
//! | `ccm_route_pass_duration_seconds` | from the first read to the last written condition |
//! | `ccm_route_changes_total{change,result}` | routes `created`, `deleted` or `finished` (what stands beside them was added): `ok`, or the kind of the failure |
//! | `ccm_routes{state}` | routes that are due: `done`, `failed`, `pending` |
//! | `ccm_routes_foreign` | routes outside the cluster's CIDRs, which are left alone |
//! | `ccm_routes_held` | routes that nobody wants and that stay because no node has a podCIDR |
//! | `ccm_route_conditions_total{result}` | writes of the condition NetworkUnavailable: `written`, `gone` (the node), `failed` |

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::outcome::{Item, Outcome};

type Label = [(&'static str, &'static str); 1];

#[derive(Clone, Debug)]
pub(super) struct RouteMetrics {
    pub(super) syncs: Counter,
    pub(super) running: Gauge,
    passes: Family<Label, Counter>,
    pub(super) duration: Histogram,
    changes: Family<[(&'static str, &'static str); 2], Counter>,
    routes: Family<Label, Gauge>,
    pub(super) foreign: Gauge,
    pub(super) held: Gauge,
    conditions: Family<Label, Counter>,
}

impl RouteMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            syncs: Counter::default(),
            running: Gauge::default(),
            passes: Family::default(),
            duration: Histogram::new(exponential_buckets(0.01, 4.0, 9)),
            changes: Family::default(),
            routes: Family::default(),
            foreign: Gauge::default(),
            held: Gauge::default(),
            conditions: Family::default(),
        };
        registry.register(
            "route_controller_route_sync",
            "Passes over all routes, those that failed included",
            metrics.syncs.clone(),
        );
        registry.register(
            "ccm_route_controller_running",
            "Whether routes are kept",
            metrics.running.clone(),
        );
        registry.register(
            "ccm_route_passes",
            "Passes over all routes, by result: ok, failed, incomplete",
            metrics.passes.clone(),
        );
        registry.register(
            "ccm_route_pass_duration_seconds",
            "From the first read of a pass to its last written condition",
            metrics.duration.clone(),
        );
        registry.register(
            "ccm_route_changes",
            "Changes of routes, by change (created, deleted, finished) and result",
            metrics.changes.clone(),
        );
        registry.register(
            "ccm_routes",
            "Routes that are due, by state: done, failed, pending",
            metrics.routes.clone(),
        );
        registry.register(
            "ccm_routes_foreign",
            "Routes outside the cluster's CIDRs, which are left alone",
            metrics.foreign.clone(),
        );
        registry.register(
            "ccm_routes_held",
            "Routes that nobody wants and that stay because no node has a podCIDR",
            metrics.held.clone(),
        );
        registry.register(
            "ccm_route_conditions",
            "Writes of the condition NetworkUnavailable, by result: written, gone, failed",
            metrics.conditions.clone(),
        );
        metrics
    }

    pub(super) fn pass(&self, result: &'static str) {
        self.passes.get_or_create(&[("result", result)]).inc();
    }

    pub(super) fn change(&self, change: &'static str, result: &ccm_core::Result<()>) {
        let result = result.as_ref().err().map_or("ok", |error| error.kind().as_str());
        self.changes
            .get_or_create(&[("change", change), ("result", result)])
            .inc();
    }

    pub(super) fn conditions(&self, result: &'static str, count: u64) {
        self.conditions.get_or_create(&[("result", result)]).inc_by(count);
    }

    pub(super) fn show(&self, items: &[Item]) {
        let (mut done, mut failed, mut pending) = (0, 0, 0);
        for item in items {
            match item.outcome {
                Outcome::Done => done += 1,
                Outcome::Failed(_) => failed += 1,
                Outcome::Pending => pending += 1,
            }
        }
        for (state, count) in [("done", done), ("failed", failed), ("pending", pending)] {
            self.routes.get_or_create(&[("state", state)]).set(count);
        }
    }
}
