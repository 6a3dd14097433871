//! `/statusz`: the state of the program, as a page for people and as JSON for programs.
//!
//! Parts of the program register their state when they start; parts that have not started are left out. A request only reads
//! memory. Figures come from the metrics, so that page and dashboards never disagree.

mod html;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::client::ClientMetrics;
use k8s_openapi::jiff::Timestamp;
use parking_lot::RwLock;
use serde::Serialize;

use super::{health::Checks, metrics::Metrics};
use crate::metrics::meaning;

/// The most rows of a list. Rows with problems come first.
const MOST_ROWS: usize = 200;

/// The state that parts of the program report. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status(Arc<RwLock<Sources>>);

type Source<T> = Option<Arc<dyn Fn() -> T + Send + Sync>>;

#[derive(Clone, Default)]
struct Sources {
    began: Timestamp,
    version: String,
    provider: String,
    cloud: ClientMetrics,
    leadership: Source<Leadership>,
    nodes: Source<Vec<NodeRow>>,
    services: Source<Vec<ServiceRow>>,
    orphans: Source<Vec<OrphanRow>>,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
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
    /// What happens to it.
    pub(crate) consequence: &'static str,
}

/// A part of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartRow {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_plan: Option<Plan>,
}

/// The last plan of a part that had steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    pub(crate) at: Timestamp,
    /// The first steps.
    pub(crate) steps: Vec<String>,
    /// The number of all steps.
    pub(crate) count: usize,
}

/// The content of the page. The first fields are those of `Statusz` in Kubernetes' own components.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    kind: &'static str,
    api_version: &'static str,
    metadata: BTreeMap<&'static str, &'static str>,
    start_time: Timestamp,
    uptime_seconds: u64,
    binary_version: String,
    paths: Vec<&'static str>,
    provider: String,
    health: Vec<CheckRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leadership: Option<Leadership>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<List<NodeRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    services: Option<List<ServiceRow>>,
    orphans: Vec<OrphanRow>,
    queues: Vec<Figure>,
    brake: Vec<Figure>,
    routes: Vec<Figure>,
    budgets: Vec<Budget>,
    cloud_errors: Vec<CloudError>,
}

#[derive(Clone, Debug, Serialize)]
struct CheckRow {
    name: &'static str,
    well: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The number of items in each state, and the items, those with problems first.
#[derive(Clone, Debug, Serialize)]
struct List<T> {
    total: usize,
    states: BTreeMap<&'static str, usize>,
    shown: Vec<T>,
}

/// A number from the metrics.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Figure {
    /// The metric with its labels.
    name: String,
    value: f64,
    /// What it counts.
    meaning: &'static str,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Budget {
    provider: &'static str,
    bucket: &'static str,
    tokens: f64,
    burst: u32,
    rate: f64,
    full_rate: f64,
    in_flight: u32,
    waiting: usize,
}

#[derive(Clone, Debug, Serialize)]
struct CloudError {
    at: Timestamp,
    operation: &'static str,
    kind: String,
    message: String,
    count: u64,
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
        let report = self.report(checks, metrics);
        // This cannot fail: all keys are text.
        serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
    }

    /// As a page.
    pub(super) fn html(&self, checks: &Checks, metrics: &Metrics) -> String {
        html::page(&self.report(checks, metrics))
    }

    fn report(&self, checks: &Checks, metrics: &Metrics) -> Report {
        // Sources take locks of their own.
        let sources = self.0.read().clone();
        let samples = Figure::all(&metrics.render().unwrap_or_default());
        let uptime = Timestamp::now().duration_since(sources.began).as_secs();
        Report {
            kind: "Statusz",
            api_version: "config.k8s.io/v1alpha1",
            metadata: [("name", "cloud-controller-manager")].into(),
            start_time: sources.began,
            uptime_seconds: u64::try_from(uptime).unwrap_or_default(),
            binary_version: sources.version,
            paths: super::routes::PATHS.to_vec(),
            provider: sources.provider,
            health: checks
                .all()
                .into_iter()
                .map(|(name, _, state)| CheckRow {
                    name,
                    well: state.is_ok(),
                    reason: state.err(),
                })
                .collect(),
            leadership: sources.leadership.map(|source| source()),
            nodes: sources
                .nodes
                .map(|source| list(source(), |node| (node.state, node.state != "ready"))),
            services: sources.services.map(|source| {
                list(source(), |service| {
                    (
                        service.state,
                        service.error.is_some() || service.state == "pending",
                    )
                })
            }),
            orphans: sources.orphans.map(|source| source()).unwrap_or_default(),
            queues: figures(
                &samples,
                &[
                    "workqueue_depth",
                    "ccm_nodes_uninitialized",
                    "ccm_node_lifecycle_suspects",
                    "ccm_service_queue",
                    "ccm_service_parts_running",
                    "ccm_plan_parked",
                    "ccm_plan_failing",
                ],
            ),
            brake: figures(&samples, &["ccm_nodes_deletion_held"]),
            routes: routes(&samples),
            budgets: sources.cloud.buckets().into_iter().map(budget).collect(),
            cloud_errors: sources
                .cloud
                .recent_errors()
                .into_iter()
                .map(|error| CloudError {
                    at: Timestamp::try_from(error.at).unwrap_or_default(),
                    operation: error.operation,
                    kind: error.kind.to_string(),
                    message: error.message,
                    count: error.count,
                })
                .collect(),
        }
    }
}

fn budget((provider, bucket, state): (&'static str, &'static str, ccm_core::client::BucketState)) -> Budget {
    Budget {
        provider,
        bucket,
        tokens: state.tokens,
        burst: state.quota.burst,
        rate: state.rate,
        full_rate: state.quota.rate,
        in_flight: state.in_flight,
        waiting: state.waiting_user + state.waiting_background,
    }
}

/// Counts by state, and puts items with problems first. `of`: the state, and whether there is a problem.
fn list<T>(mut all: Vec<T>, of: impl Fn(&T) -> (&'static str, bool)) -> List<T> {
    let mut states = BTreeMap::new();
    for item in &all {
        *states.entry(of(item).0).or_default() += 1;
    }
    let total = all.len();
    // A stable sort.
    all.sort_by_key(|item| !of(item).1);
    all.truncate(MOST_ROWS);
    List {
        total,
        states,
        shown: all,
    }
}

/// The samples of these metrics, in this order.
fn figures(samples: &[Figure], names: &[&str]) -> Vec<Figure> {
    let of = |name| samples.iter().filter(move |sample| sample.metric() == name);
    names.iter().flat_map(|name| of(*name)).cloned().collect()
}

/// The metrics of routes, without those that only a dashboard can use.
fn routes(samples: &[Figure]) -> Vec<Figure> {
    let is_shown = |sample: &&Figure| {
        let name = sample.metric();
        let is_route = name.starts_with("ccm_route") || name.starts_with("route_controller_");
        is_route
            && !["_sum", "_count", "_bucket"]
                .iter()
                .any(|end| name.ends_with(end))
    };
    samples.iter().filter(is_shown).cloned().collect()
}

impl Figure {
    /// All samples on the page of metrics.
    fn all(metrics: &str) -> Vec<Self> {
        let samples = metrics.lines().filter(|line| !line.starts_with('#'));
        let read = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
            let name = format!("{metric} {}", labels.trim_end_matches('}'));
            Some(Self {
                name: name.trim_end().to_owned(),
                value: value.parse().ok()?,
                meaning: meaning(metric).unwrap_or_default(),
            })
        };
        samples.filter_map(read).collect()
    }

    fn metric(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }
}
