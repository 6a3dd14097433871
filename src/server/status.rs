//! `/statusz`: the state of the program, as a page for people and as JSON for programs.
//!
//! Modules register their state when they start; modules that have not started are left out. A request only reads memory.
//! Figures come from the metrics, so that page and dashboards never disagree.

mod html;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::client::{BucketState, ClientMetrics};
use k8s_openapi::jiff::Timestamp;
use parking_lot::RwLock;
use serde::Serialize;
use serde_json::{Value, json};

use super::{health::Checks, metrics::Metrics};
use crate::metrics::meaning;

/// The most rows of a list. Rows with problems come first.
const MOST_ROWS: usize = 200;
/// The metrics of queues.
const QUEUES: [&str; 7] = [
    "workqueue_depth",
    "ccm_nodes_uninitialized",
    "ccm_node_lifecycle_checked_nodes",
    "ccm_service_queue",
    "ccm_service_parts_running",
    "ccm_plan_parked",
    "ccm_plan_failing",
];

/// The state that modules report. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Status(Arc<RwLock<Sources>>);

type StatusSource<T> = Option<Arc<dyn Fn() -> T + Send + Sync>>;

#[derive(Clone, Default)]
struct Sources {
    began: Timestamp,
    version: String,
    provider: String,
    cloud: ClientMetrics,
    leadership: StatusSource<Leadership>,
    nodes: StatusSource<Vec<NodeRow>>,
    services: StatusSource<Vec<ServiceRow>>,
    orphans: StatusSource<Vec<OrphanRow>>,
}

/// Whether this replica leads.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Leadership {
    /// The Lease, `namespace/name`; none if there is no election.
    pub(crate) lease: Option<String>,
    pub(crate) leads: bool,
    /// A dry run: it only reports what it would do, and never leads.
    pub(crate) dry_run: bool,
    /// How long ago the lease was renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renewed_seconds_ago: Option<u64>,
    /// The identity of the replica that leads, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leader: Option<String>,
    /// The lease of a leader migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) migration: Option<Box<Leadership>>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) provider_id: String,
}

/// A Service that has or needs a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceRow {
    /// `namespace/name`.
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) addresses: Vec<String>,
    pub(crate) parts: Vec<PartRow>,
    /// Its problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// An object in the cloud whose Service does not exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OrphanRow {
    pub(crate) name: String,
    pub(crate) seen_for_seconds: u64,
    pub(crate) deletable: bool,
    /// The action that follows.
    pub(crate) consequence: &'static str,
}

/// A part of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartRow {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_plan: Option<LastPlan>,
}

/// The last plan of a part that had steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastPlan {
    pub(crate) at: Timestamp,
    /// The first steps.
    pub(crate) steps: Vec<String>,
    /// The number of all steps.
    pub(crate) count: usize,
}

impl Status {
    pub(crate) fn new(version: &str, provider: &str, cloud: ClientMetrics) -> Self {
        Self(Arc::new(RwLock::new(Sources {
            began: Timestamp::now(),
            version: version.to_owned(),
            provider: provider.to_owned(),
            cloud,
            ..Sources::default()
        })))
    }

    /// Registers the source of the leadership.
    pub(crate) fn set_leadership(&self, source: impl Fn() -> Leadership + Send + Sync + 'static) {
        self.0.write().leadership = Some(Arc::new(source));
    }

    /// Registers the source of the nodes.
    pub(crate) fn set_nodes(&self, source: impl Fn() -> Vec<NodeRow> + Send + Sync + 'static) {
        self.0.write().nodes = Some(Arc::new(source));
    }

    /// Registers the source of the Services.
    pub(crate) fn set_services(&self, source: impl Fn() -> Vec<ServiceRow> + Send + Sync + 'static) {
        self.0.write().services = Some(Arc::new(source));
    }

    /// Registers the source of the orphans.
    pub(crate) fn set_orphans(&self, source: impl Fn() -> Vec<OrphanRow> + Send + Sync + 'static) {
        self.0.write().orphans = Some(Arc::new(source));
    }

    /// As JSON.
    pub(super) fn json(&self, checks: &Checks, metrics: &Metrics) -> String {
        format!("{:#}\n", self.report(checks, metrics, self.leadership().as_ref()))
    }

    /// As a page.
    pub(super) fn html(&self, checks: &Checks, metrics: &Metrics) -> String {
        let leadership = self.leadership();
        html::page(&self.report(checks, metrics, leadership.as_ref()), leadership.as_ref())
    }

    fn leadership(&self) -> Option<Leadership> {
        let source = self.0.read().leadership.clone();
        source.map(|source| source())
    }

    /// The content of the page. It begins with the fields of `Statusz` in Kubernetes' own components.
    fn report(&self, checks: &Checks, metrics: &Metrics, leadership: Option<&Leadership>) -> Value {
        // Sources take locks of their own.
        let sources = self.0.read().clone();
        let metrics = metrics.render().unwrap_or_default();
        let uptime = Timestamp::now().duration_since(sources.began);
        let health = checks.all().into_iter();
        let nodes = sources
            .nodes
            .map(|source| list(source(), |node: &NodeRow| (node.state, node.state != "ready")));
        let services = sources.services.map(|source| {
            list(source(), |service: &ServiceRow| {
                let is_bad = service.error.is_some() || service.state == "pending";
                (service.state, is_bad)
            })
        });
        let errors = sources.cloud.recent_errors().into_iter();
        json!({
            "kind": "Statusz",
            "apiVersion": "config.k8s.io/v1alpha1",
            "metadata": {"name": "cloud-controller-manager"},
            "startTime": sources.began,
            "uptimeSeconds": uptime.as_secs(),
            "binaryVersion": sources.version,
            "paths": super::routes::PATHS,
            "provider": sources.provider,
            "health": Vec::from_iter(health.map(|(name, _, state)| {
                json!({"name": name, "well": state.is_ok(), "reason": state.err()})
            })),
            "leadership": leadership,
            "nodes": nodes,
            "services": services,
            "orphans": sources.orphans.map(|source| source()).unwrap_or_default(),
            "queues": Vec::from_iter(QUEUES.iter().flat_map(|name| figures(&metrics, |metric| metric == *name))),
            "brake": figures(&metrics, |metric| metric == "ccm_node_deletions_paused"),
            "routes": figures(&metrics, is_route),
            "budgets": Vec::from_iter(sources.cloud.buckets().into_iter().map(budget)),
            "cloudErrors": Vec::from_iter(errors.map(|error| json!({
                "at": Timestamp::try_from(error.at).unwrap_or_default(),
                "operation": error.operation,
                "kind": error.kind.to_string(),
                "message": error.message,
                "count": error.count,
            }))),
        })
    }
}

fn budget((provider, bucket, state): (&'static str, &'static str, BucketState)) -> Value {
    json!({
        "provider": provider,
        "bucket": bucket,
        "tokens": state.tokens,
        "burst": state.quota.burst,
        "rate": state.rate,
        "fullRate": state.quota.rate,
        "inFlight": state.in_flight,
        "waiting": state.waiting_user + state.waiting_background,
    })
}

/// The number of items in each state, and the items, those with problems first. `of`: the state, and whether there is a
/// problem.
fn list<T: Serialize>(mut all: Vec<T>, of: impl Fn(&T) -> (&'static str, bool)) -> Value {
    let mut states: BTreeMap<_, usize> = BTreeMap::new();
    for item in &all {
        *states.entry(of(item).0).or_default() += 1;
    }
    let total = all.len();
    // A stable sort.
    all.sort_by_key(|item| !of(item).1);
    all.truncate(MOST_ROWS);
    json!({"total": total, "states": states, "shown": all})
}

/// The metrics of routes, without those that only a dashboard can use.
fn is_route(metric: &str) -> bool {
    let is_part = ["_sum", "_count", "_bucket"].iter().any(|end| metric.ends_with(end));
    !is_part && (metric.starts_with("ccm_route") || metric.starts_with("route_controller_"))
}

/// The samples of these metrics, with the meaning of the metric.
fn figures(metrics: &str, is_shown: impl Fn(&str) -> bool) -> Vec<Value> {
    let mut figures = Vec::new();
    for line in metrics.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
        if is_shown(metric) {
            let name = format!("{metric} {}", labels.trim_end_matches('}'));
            figures.push(json!({
                "name": name.trim_end(),
                "value": value.parse::<f64>().ok(),
                "meaning": meaning(metric),
            }));
        }
    }
    figures
}
