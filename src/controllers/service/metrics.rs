//! Metrics of the service controller.
//!
//! | Metric | Meaning |
//! |---|---|
//! | `service_controller_loadbalancer_sync_total` | passes over a part of a load balancer that ended (waits for the cloud left out) |
//! | `service_controller_nodesync_error_total` | passes that follow changed nodes and failed |
//! | `service_controller_nodesync_latency_seconds` | from the moment when changed nodes are followed to the moment when every load balancer does |
//! | `service_controller_update_loadbalancer_host_latency_seconds` | one pass that follows changed nodes |
//! | `ccm_services{state}` | Services with a load balancer, or that want one: `served` (all is as they ask), `pending`, `leaving` (it is being taken away), `foreign` (somebody else's) |
//! | `ccm_services_held{reason}` | Services for which something is refused or fails, by the kind of failure |
//! | `ccm_service_parts{state}` | parts of load balancers by how their last pass ended: `new`, `done`, `held` (a member is held back), `parked` (the cloud is at work), `blocked` (nothing is changed, what we know can not be seen), `failed` |
//! | `ccm_service_parts_running` | parts that are worked on now |
//! | `ccm_service_queue{state}` | parts that are `ready` and wait for a worker, or are `waiting` for their time |
//! | `ccm_service_pass_duration_seconds{cause}` | passes by what they are for: `nodes`, `drift`, `service` |
//! | `ccm_service_retries_total{reason}` | tries that were put off: `parked`, or the kind of the failure |
//! | `ccm_service_orphans{deletable}` | load balancers, listeners and security groups whose Service does not exist; `deletable`: whole load balancers with this cluster's ownership tag |
//! | `ccm_service_writes_total{result}` | patches of Service objects: `written`, `unchanged`, `gone`, `failed` |
//! | `ccm_service_surveys_total{result}` | times that the parts of all Services were found out: `ok`, `error` |

use std::{collections::HashMap, time::Duration};

use ccm_core::load_balancer::Claim;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::{
    job::Cause,
    ledger::Ledger,
    records::{Record, State},
};

/// One label.
type Label = [(&'static str, &'static str); 1];

#[derive(Clone, Debug)]
pub(super) struct ServiceMetrics {
    syncs: Counter,
    node_errors: Counter,
    node_latency: Histogram,
    host_latency: Histogram,
    services: Family<Label, Gauge>,
    held: Family<Label, Gauge>,
    parts: Family<Label, Gauge>,
    pub(super) running: Gauge,
    queue: Family<Label, Gauge>,
    passes: Family<Label, Histogram>,
    retries: Family<Label, Counter>,
    orphans: Family<Label, Gauge>,
    writes: Family<Label, Counter>,
    surveys: Family<Label, Counter>,
}

impl ServiceMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let upstream = || Histogram::new(exponential_buckets(1.0, 2.0, 15));
        let metrics = Self {
            syncs: Counter::default(),
            node_errors: Counter::default(),
            node_latency: upstream(),
            host_latency: upstream(),
            services: Family::default(),
            held: Family::default(),
            parts: Family::default(),
            running: Gauge::default(),
            queue: Family::default(),
            passes: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 4.0, 9))),
            retries: Family::default(),
            orphans: Family::default(),
            writes: Family::default(),
            surveys: Family::default(),
        };
        registry.register(
            "service_controller_loadbalancer_sync",
            "Passes over a part of a load balancer that ended",
            metrics.syncs.clone(),
        );
        registry.register(
            "service_controller_nodesync_error",
            "Passes that follow changed nodes and failed",
            metrics.node_errors.clone(),
        );
        registry.register(
            "service_controller_nodesync_latency_seconds",
            "From following changed nodes to the moment when every load balancer does",
            metrics.node_latency.clone(),
        );
        registry.register(
            "service_controller_update_loadbalancer_host_latency_seconds",
            "One pass that follows changed nodes",
            metrics.host_latency.clone(),
        );
        registry.register(
            "ccm_services",
            "Services with a load balancer or that want one, by how it stands with them",
            metrics.services.clone(),
        );
        registry.register(
            "ccm_services_held",
            "Services for which something is refused or fails, by the kind of failure",
            metrics.held.clone(),
        );
        registry.register(
            "ccm_service_parts",
            "Parts of load balancers by how their last pass ended",
            metrics.parts.clone(),
        );
        registry.register(
            "ccm_service_parts_running",
            "Parts of load balancers that are worked on",
            metrics.running.clone(),
        );
        registry.register(
            "ccm_service_queue",
            "Parts of load balancers that wait: ready for a worker, or waiting for their time",
            metrics.queue.clone(),
        );
        registry.register(
            "ccm_service_pass_duration_seconds",
            "Duration of passes over a part of a load balancer, by what they are for",
            metrics.passes.clone(),
        );
        registry.register(
            "ccm_service_retries",
            "Passes that are to be gone on with or tried again later, by reason",
            metrics.retries.clone(),
        );
        registry.register(
            "ccm_service_orphans",
            "Load balancers, listeners and security groups whose Service does not exist",
            metrics.orphans.clone(),
        );
        registry.register(
            "ccm_service_writes",
            "Patches of Service objects, by result",
            metrics.writes.clone(),
        );
        registry.register(
            "ccm_service_surveys",
            "Times that the parts of all Services were found out, by result",
            metrics.surveys.clone(),
        );
        metrics
    }

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
        let mut held: HashMap<&'static str, i64> = HashMap::new();
        for record in ledger.records.values() {
            *services.entry(state(record)).or_default() += 1;
            if let Some(kind) = record.told.values().find_map(|told| told.kind) {
                *held.entry(kind).or_default() += 1;
            }
        }
        set_all(&self.services, "state", services);
        for (kind, count) in &held {
            self.held.get_or_create(&[("reason", *kind)]).set(*count);
        }
        // Those that are over stand at zero.
        for kind in ledger.kinds.iter().filter(|kind| !held.contains_key(*kind)) {
            self.held.get_or_create(&[("reason", *kind)]).set(0);
        }
        let mut parts: HashMap<&'static str, i64> = State::ALL.map(|state| (state.as_str(), 0)).into();
        for part in ledger.parts.values() {
            *parts.entry(part.state.as_str()).or_default() += 1;
        }
        set_all(&self.parts, "state", parts);
        set_all(
            &self.queue,
            "state",
            [("ready", gauge(queue.0)), ("waiting", gauge(queue.1))],
        );
        let (deletable, others): (Vec<_>, Vec<_>) =
            ledger.orphans.all().partition(|(orphan, _)| orphan.deletable);
        set_all(
            &self.orphans,
            "deletable",
            [("true", gauge(deletable.len())), ("false", gauge(others.len()))],
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

fn set_all(
    family: &Family<Label, Gauge>,
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, i64)>,
) {
    for (value, number) in values {
        family.get_or_create(&[(label, value)]).set(number);
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
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
        let table = include_str!("metrics.rs")
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .filter_map(|line| line.strip_prefix("//! | `")?.split(['`', '{']).next());
        let names: Vec<_> = table.collect();
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
