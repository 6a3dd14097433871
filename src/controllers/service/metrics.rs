//! Metrics of the service controller.

use std::{collections::HashMap, time::Duration};

use ccm_core::load_balancer::Claim;
use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};

use super::{
    job::Cause,
    ledger::Ledger,
    records::{Record, State},
};
use crate::metrics::{Labels, metrics, set_all};

metrics! {
    pub(super) struct ServiceMetrics {
        syncs: Counter = "service_controller_loadbalancer_sync",
        node_errors: Counter = "service_controller_nodesync_error",
        node_latency: Histogram = "service_controller_nodesync_latency_seconds" in upstream(),
        host_latency: Histogram = "service_controller_update_loadbalancer_host_latency_seconds" in upstream(),
        services: Family<Labels<1>, Gauge> = "ccm_services",
        held: Family<Labels<1>, Gauge> = "ccm_services_held",
        parts: Family<Labels<1>, Gauge> = "ccm_service_parts",
        pub(super) running: Gauge = "ccm_service_parts_running",
        queue: Family<Labels<1>, Gauge> = "ccm_service_queue",
        passes: Family<Labels<1>, Histogram> = "ccm_service_pass_duration_seconds"
            in Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 4.0, 9))),
        retries: Family<Labels<1>, Counter> = "ccm_service_retries",
        orphans: Family<Labels<1>, Gauge> = "ccm_service_orphans",
        writes: Family<Labels<1>, Counter> = "ccm_service_writes",
        surveys: Family<Labels<1>, Counter> = "ccm_service_surveys",
    }
}

/// Upstream's buckets.
fn upstream() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 15))
}

impl ServiceMetrics {
    pub(super) fn pass_ended(&self, cause: Cause, took: Duration, state: State) {
        let label = match cause {
            Cause::Nodes => "nodes",
            Cause::Drift => "drift",
            Cause::Service => "service",
        };
        self.passes
            .get_or_create(&[("cause", label)])
            .observe(took.as_secs_f64());
        if state != State::Parked {
            self.syncs.inc();
        }
        if cause == Cause::Nodes {
            self.host_latency.observe(took.as_secs_f64());
            if state.is_trouble() {
                self.node_errors.inc();
            }
        }
    }

    pub(super) fn nodes_followed(&self, took: Duration) {
        self.node_latency.observe(took.as_secs_f64());
    }

    pub(super) fn retried(&self, reason: &'static str) {
        self.retries.get_or_create(&[("reason", reason)]).inc();
    }

    pub(super) fn wrote(&self, result: &'static str) {
        self.writes.get_or_create(&[("result", result)]).inc();
    }

    pub(super) fn surveyed(&self, result: &'static str) {
        self.surveys.get_or_create(&[("result", result)]).inc();
    }

    /// Shows how things stand. `queue`: parts that are ready, and parts that wait.
    pub(super) fn show(&self, ledger: &Ledger, queue: (usize, usize)) {
        let mut services = HashMap::from(["served", "pending", "leaving", "foreign"].map(|state| (state, 0)));
        let mut held: HashMap<&'static str, usize> = HashMap::new();
        for record in ledger.records.values() {
            *services.entry(state(record)).or_default() += 1;
            if let Some(kind) = record.told.values().find_map(|told| told.kind) {
                *held.entry(kind).or_default() += 1;
            }
        }
        set_all(&self.services, "state", services);
        // Kinds that no Service has any more are zero.
        for kind in &ledger.kinds {
            held.entry(kind).or_default();
        }
        set_all(&self.held, "reason", held);
        let mut parts: HashMap<&'static str, usize> = State::ALL.map(|state| (state.as_str(), 0)).into();
        for part in ledger.parts.values() {
            *parts.entry(part.state.as_str()).or_default() += 1;
        }
        set_all(&self.parts, "state", parts);
        set_all(&self.queue, "state", [("ready", queue.0), ("waiting", queue.1)]);
        let (deletable, others): (Vec<_>, Vec<_>) =
            ledger.orphans.all().partition(|(orphan, _)| orphan.deletable);
        set_all(
            &self.orphans,
            "deletable",
            [("true", deletable.len()), ("false", others.len())],
        );
    }
}

pub(super) fn state(record: &Record) -> &'static str {
    match record.claim {
        Claim::Ours if !record.view.wants_load_balancer() => "leaving",
        Claim::Ours if record.is_settled() => "served",
        Claim::Ours => "pending",
        Claim::Elsewhere | Claim::NotOurs => "foreign",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn every_metric_of_the_table_is_there_under_its_name() {
        let mut registry = Registry::default();
        let metrics = ServiceMetrics::register(&mut registry);
        metrics.show(&Ledger::default(), (1, 2));
        metrics.pass_ended(Cause::Nodes, Duration::from_secs(1), State::Failed);
        metrics.nodes_followed(Duration::from_secs(1));
        metrics.retried("parked");
        metrics.wrote("written");
        metrics.surveyed("ok");
        metrics.held.get_or_create(&[("reason", "InvalidSpec")]).set(1);
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
