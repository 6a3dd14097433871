//! Metrics of the route controller.

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};

use super::outcome::{Item, Outcome};
use crate::metrics::{Labels, metrics, set_all, tally};

metrics! {
    pub(super) struct RouteMetrics {
        pub(super) syncs: Counter = "route_controller_route_sync",
        pub(super) running: Gauge = "ccm_route_controller_running",
        pub(super) passes: Family<Labels<1>, Counter> = "ccm_route_passes",
        pub(super) duration: Histogram = "ccm_route_pass_duration_seconds"
            in Histogram::new(exponential_buckets(0.01, 4.0, 9)),
        changes: Family<Labels<2>, Counter> = "ccm_route_changes",
        routes: Family<Labels<1>, Gauge> = "ccm_routes",
        pub(super) foreign: Gauge = "ccm_routes_foreign",
        pub(super) blocked: Gauge = "ccm_routes_held",
        pub(super) conditions: Family<Labels<1>, Counter> = "ccm_route_conditions",
    }
}

impl RouteMetrics {
    pub(super) fn change(&self, change: &'static str, result: &ccm_core::Result<()>) {
        let result = result.as_ref().err().map_or("ok", |error| error.kind().as_str());
        self.changes.get_or_create(&[("change", change), ("result", result)]).inc();
    }

    pub(super) fn show(&self, items: &[Item]) {
        let state = |item: &Item| match item.outcome {
            Outcome::Done => "done",
            Outcome::Failed(_) => "failed",
            Outcome::Pending => "pending",
        };
        let states = tally(["done", "failed", "pending"], items.iter().map(state));
        set_all(&self.routes, "state", states);
    }
}
