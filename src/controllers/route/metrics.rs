//! Metrics of the route controller.

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};

use super::outcome::{Item, RouteOutcome};
use crate::metrics::{Labels, metrics, set_all, tally};

metrics! {
    pub(super) struct RouteMetrics {
        pub(super) syncs: Family<Labels<2>, Counter> = "route_controller_route_sync",
        pub(super) running: Gauge = "ccm_route_controller_running",
        pub(super) passes: Family<Labels<1>, Counter> = "ccm_route_passes",
        pub(super) duration: Histogram = "ccm_route_pass_duration_seconds"
            in Histogram::new(exponential_buckets(0.01, 4.0, 9)),
        changes: Family<Labels<2>, Counter> = "ccm_route_changes",
        routes: Family<Labels<1>, Gauge> = "ccm_routes",
        pub(super) foreign: Gauge = "ccm_routes_foreign",
        pub(super) blocked: Gauge = "ccm_route_deletions_paused",
        pub(super) conditions: Family<Labels<1>, Counter> = "ccm_route_conditions",
    }
}

/// Why a pass runs, with the values of upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The period is over.
    Periodic,
    /// A node changed, or a change that followed it is tried again.
    NodeChange,
}

/// How a pass ended, with the values of upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncOutcome {
    /// Routes or conditions could not be read or written.
    Error,
    /// A route was created or deleted.
    Changed,
    Noop,
}

impl RouteMetrics {
    /// A pass ended.
    pub(super) fn synced(&self, trigger: Trigger, outcome: SyncOutcome) {
        let trigger = match trigger {
            Trigger::Periodic => "periodic",
            Trigger::NodeChange => "node_change",
        };
        let outcome = match outcome {
            SyncOutcome::Error => "error",
            SyncOutcome::Changed => "changed",
            SyncOutcome::Noop => "noop",
        };
        self.syncs.get_or_create(&[("outcome", outcome), ("trigger", trigger)]).inc();
    }

    pub(super) fn change(&self, change: &'static str, result: &ccm_core::Result<()>) {
        let result = result.as_ref().err().map_or("ok", |error| error.kind().as_str());
        self.changes.get_or_create(&[("change", change), ("result", result)]).inc();
    }

    pub(super) fn show(&self, items: &[Item]) {
        let state = |item: &Item| match item.outcome {
            RouteOutcome::Done => "done",
            RouteOutcome::Failed(_) => "failed",
            RouteOutcome::Pending => "pending",
        };
        let states = tally(["done", "failed", "pending"], items.iter().map(state));
        set_all(&self.routes, "state", states);
    }
}

/// Registers the metrics, and records every kind of pass.
#[cfg(test)]
pub(crate) fn record_metrics(registry: &mut prometheus_client::registry::Registry) {
    let metrics = RouteMetrics::register(registry);
    for trigger in [Trigger::Periodic, Trigger::NodeChange] {
        for outcome in [SyncOutcome::Error, SyncOutcome::Changed, SyncOutcome::Noop] {
            metrics.synced(trigger, outcome);
        }
    }
}
