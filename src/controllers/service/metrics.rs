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
        pub(super) failing: Family<Labels<1>, Gauge> = "ccm_services_held",
        pub(super) parts: Family<Labels<1>, Gauge> = "ccm_service_parts",
        pub(super) running: Gauge = "ccm_service_parts_running",
        pub(super) queue: Family<Labels<1>, Gauge> = "ccm_service_queue",
        passes: Family<Labels<1>, Histogram> = "ccm_service_pass_duration_seconds"
            in Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 4.0, 9))),
        pub(super) retries: Family<Labels<1>, Counter> = "ccm_service_retries",
        pub(super) orphans: Family<Labels<1>, Gauge> = "ccm_service_orphans",
        pub(super) writes: Family<Labels<1>, Counter> = "ccm_service_writes",
        pub(super) discoveries: Family<Labels<1>, Counter> = "ccm_service_surveys",
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
        self.passes
            .get_or_create(&[("cause", label)])
            .observe(took.as_secs_f64());
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prometheus_client::registry::Registry;

    use super::{super::state::State, *};
    use crate::metrics::increment;

    #[test]
    fn every_metric_of_the_table_is_registered_under_its_name() {
        let mut registry = Registry::default();
        let metrics = ServiceMetrics::register(&mut registry);
        State::default().show(&metrics, (1, 2));
        metrics.pass_ended(Cause::Nodes, Duration::from_secs(1), PartStatus::Failed);
        metrics.node_latency.observe(1.0);
        increment(&metrics.retries, "reason", "parked");
        increment(&metrics.writes, "result", "written");
        increment(&metrics.discoveries, "result", "ok");
        metrics.failing.get_or_create(&[("reason", "InvalidSpec")]).set(1);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let section = crate::metrics::REFERENCE
            .split("## ")
            .find(|text| text.starts_with("Services"));
        let rows = section.unwrap().lines();
        let names = rows.filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let names: Vec<_> = names.filter(|name| !name.starts_with("ccm_plan")).collect();
        assert_eq!(names.len(), 14);
        for name in names {
            assert!(
                text.lines().any(|line| line.starts_with(name)),
                "{name} is not in\n{text}"
            );
        }
        assert!(text.contains("ccm_service_queue{state=\"waiting\"} 2"), "{text}");
        assert!(
            text.contains("service_controller_nodesync_error_total 1"),
            "{text}"
        );
    }
}
