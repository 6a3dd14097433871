//! Metrics of the service controller.

use std::time::Duration;

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};

use super::state::{Cause, PartStatus};
use crate::metrics::{Labels, metrics};

metrics! {
    pub(super) struct ServiceMetrics {
        syncs: Counter = "service_controller_loadbalancer_sync",
        node_errors: Counter = "service_controller_nodesync_error",
        pub(super) node_latency: Histogram = "service_controller_nodesync_latency_seconds" in upstream(),
        host_latency: Histogram = "service_controller_update_loadbalancer_host_latency_seconds" in upstream(),
        pub(super) services: Family<Labels<1>, Gauge> = "ccm_services",
        pub(super) failing: Family<Labels<1>, Gauge> = "ccm_services_failing",
        pub(super) parts: Family<Labels<1>, Gauge> = "ccm_service_parts",
        pub(super) running: Gauge = "ccm_service_parts_running",
        pub(super) queue: Family<Labels<1>, Gauge> = "ccm_service_queue",
        passes: Family<Labels<1>, Histogram> = "ccm_service_pass_duration_seconds"
            in Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 4.0, 9))),
        pub(super) retries: Family<Labels<1>, Counter> = "ccm_service_retries",
        pub(super) orphans: Family<Labels<1>, Gauge> = "ccm_service_orphans",
        pub(super) writes: Family<Labels<1>, Counter> = "ccm_service_writes",
        pub(super) discoveries: Family<Labels<1>, Counter> = "ccm_service_discoveries",
    }
}

/// Upstream's buckets.
fn upstream() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 15))
}

impl ServiceMetrics {
    pub(super) fn pass_ended(&self, cause: Cause, took: Duration, status: PartStatus) {
        let label = match cause {
            Cause::Nodes => "nodes",
            Cause::Drift => "drift",
            Cause::Service => "service",
        };
        self.passes.get_or_create(&[("cause", label)]).observe(took.as_secs_f64());
        if status != PartStatus::Parked {
            self.syncs.inc();
        }
        if cause == Cause::Nodes {
            self.host_latency.observe(took.as_secs_f64());
            if status.is_trouble() {
                self.node_errors.inc();
            }
        }
    }
}

/// Registers the metrics, and records a pass.
#[cfg(test)]
pub(crate) fn record_metrics(registry: &mut prometheus_client::registry::Registry) {
    let metrics = ServiceMetrics::register(registry);
    metrics.pass_ended(Cause::Nodes, Duration::from_secs(1), PartStatus::Failed);
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::{super::state::ControllerState, *};

    #[test]
    fn parts_that_wait_and_failures_about_nodes_are_counted() {
        let metrics = ServiceMetrics::register(&mut Registry::default());
        ControllerState::default().show(&metrics, (1, 2));
        assert_eq!(metrics.queue.get_or_create(&[("state", "waiting")]).get(), 2);
        metrics.pass_ended(Cause::Nodes, Duration::from_secs(1), PartStatus::Failed);
        assert_eq!(metrics.node_errors.get(), 1);
    }
}
