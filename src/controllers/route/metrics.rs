//! Metrics of the route controller.

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};

use super::outcome::{Item, Outcome};
use crate::metrics::{Labels, metrics, set_all};

metrics! {
    pub(super) struct RouteMetrics {
        pub(super) syncs: Counter = "route_controller_route_sync",
        pub(super) running: Gauge = "ccm_route_controller_running",
        passes: Family<Labels<1>, Counter> = "ccm_route_passes",
        pub(super) duration: Histogram = "ccm_route_pass_duration_seconds"
            in Histogram::new(exponential_buckets(0.01, 4.0, 9)),
        changes: Family<Labels<2>, Counter> = "ccm_route_changes",
        routes: Family<Labels<1>, Gauge> = "ccm_routes",
        pub(super) foreign: Gauge = "ccm_routes_foreign",
        pub(super) held: Gauge = "ccm_routes_held",
        conditions: Family<Labels<1>, Counter> = "ccm_route_conditions",
    }
}

impl RouteMetrics {
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
        let states = [("done", done), ("failed", failed), ("pending", pending)];
        set_all(&self.routes, "state", states);
    }
}
