//! `--dry-run`: looks whenever something has changed, and from time to time, and says what is new.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Freshness, Priority,
    controllers::{Change, Informer, NodeObject, ServiceObject},
    load_balancer::ReadOptions,
};
use kube::Client;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tracing::{debug, info, warn};

use super::{Cluster, EffectOf, Looker, Review, Scope, Summary, Whose, look};
use crate::{
    controllers::service,
    options::Config,
    server::{CheckHandle, Metrics},
};

/// After a change, others come; and whoever leads begins to work on it.
const SETTLE: Duration = Duration::from_secs(5);
/// A look waits so many times as long as the last one took: nobody waits for it, and the cloud has better things to do.
const REST: u32 = 10;
/// So many changes are taken up at once.
const CHANGES: usize = 512;
/// So many lines are logged for one look. `plan` shows all of them.
const LINES: usize = 300;

/// What a dry run stands on.
pub(crate) struct Standing {
    pub(crate) client: Client,
    pub(crate) cloud: Arc<dyn Cloud>,
    pub(crate) config: Arc<Config>,
    pub(crate) nodes: Arc<Informer<NodeObject>>,
    /// `None` if they are of no concern.
    pub(crate) services: Option<Arc<Informer<ServiceObject>>>,
    pub(crate) metrics: Metrics,
    /// Well after the first look.
    pub(crate) check: CheckHandle,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EffectLabel {
    effect: &'static str,
}

/// What the last look came to.
struct DryRunMetrics {
    changes: Family<EffectLabel, Gauge>,
    blocked: Gauge,
    problems: Gauge,
    looks: Counter,
}

impl DryRunMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            changes: Family::default(),
            blocked: Gauge::default(),
            problems: Gauge::default(),
            looks: Counter::default(),
        };
        registry.register(
            "ccm_dry_run_changes",
            "What would be done in cloud and cluster, by effect: create, change or delete",
            metrics.changes.clone(),
        );
        registry.register(
            "ccm_dry_run_blocked",
            "Differences that would be left as they are",
            metrics.blocked.clone(),
        );
        registry.register(
            "ccm_dry_run_problems",
            "What could not be found out at the last look",
            metrics.problems.clone(),
        );
        registry.register(
            "ccm_dry_run_looks",
            "Looks at cluster and cloud",
            metrics.looks.clone(),
        );
        metrics
    }

    fn show(&self, summary: &Summary) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for effect in EffectOf::ALL {
            let label = EffectLabel {
                effect: effect.as_str(),
            };
            self.changes.get_or_create(&label).set(gauge(summary.of(effect)));
        }
        self.blocked.set(gauge(summary.blocked));
        self.problems.set(gauge(summary.problems));
        self.looks.inc();
    }
}

/// Runs until it is dropped. It writes nothing, so that there is nothing to finish.
pub(crate) async fn run(standing: Standing) {
    let metrics = standing.metrics.with(DryRunMetrics::register);
    let (nodes, services) = (&standing.nodes, standing.services.as_ref());
    nodes.synced().await;
    if let Some(services) = services {
        services.synced().await;
    }
    let mut tag = look::ownership_tag(&standing.client, &standing.config, &*standing.cloud);
    if let Some(tag) = &mut tag {
        service::at_start(tag).await;
    }
    info!(
        "Dry run: nothing is written, neither to the cloud nor to the cluster; what would be done is logged"
    );
    let mut node_changes = nodes.subscribe();
    let mut service_changes = services.map(|services| services.subscribe());
    let mut told = Told::default();
    loop {
        let cluster = standing.cluster();
        let marks = tag
            .as_ref()
            .and_then(|tag| tag.borrow().clone())
            .unwrap_or_default();
        let looker = Looker {
            cloud: &*standing.cloud,
            config: &standing.config,
            marks: &marks,
        };
        let began = Instant::now();
        let ask = ReadOptions {
            freshness: Freshness::After(began),
            priority: Priority::Background,
        };
        match looker.look(&cluster, &Scope::Everything, ask).await {
            Ok(review) => {
                metrics.show(&review.summary());
                told.tell(&review);
                standing.check.set_ok();
            }
            // Only a question about one Service may have no answer.
            Err(error) => debug!(error = format!("{error:#}"), "Could not look"),
        }
        let took = began.elapsed();
        debug!(?took, "Looked at cluster and cloud");
        sleep(SETTLE.max(took.saturating_mul(REST))).await;
        let again = Instant::now() + standing.config.node.status_update_frequency;
        while let Ok(()) = timeout_at(again, changed(&mut node_changes, service_changes.as_mut())).await {
            // Heartbeats of nodes are no news.
            if !standing.cluster().is_same(&cluster) {
                sleep_until((Instant::now() + SETTLE).min(again)).await;
                break;
            }
        }
    }
}

/// Returns when something has changed, with all that came at once.
async fn changed(nodes: &mut UnboundedReceiver<Change>, services: Option<&mut UnboundedReceiver<Change>>) {
    tokio::select! {
        () = some(Some(nodes)) => {}
        () = some(services) => {}
    }
}

async fn some(changes: Option<&mut UnboundedReceiver<Change>>) {
    let mut seen = Vec::new();
    if let Some(changes) = changes
        && changes.recv_many(&mut seen, CHANGES).await > 0
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl Standing {
    /// The cluster as the stores have it.
    fn cluster(&self) -> Cluster {
        let services = self.services.as_ref();
        Cluster::of(
            self.nodes.list(),
            services.map(|services| services.list()).unwrap_or_default(),
        )
    }
}

/// One thing that is said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    sort: Sort,
    /// `Service default/web`, `node n1`.
    about: String,
    what: String,
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Change,
    Blocked,
    Warning,
    Problem,
}

/// What was said, so that each thing is said once.
#[derive(Debug, Default)]
struct Told {
    lines: BTreeSet<Line>,
    summary: Option<Summary>,
}

impl Told {
    fn tell(&mut self, review: &Review) {
        let (summary, lines) = (review.summary(), lines(review));
        let before = std::mem::replace(&mut self.lines, lines);
        let new: Vec<_> = self.lines.difference(&before).collect();
        // What could not be found out this time is not over.
        let over: Vec<_> = if summary.problems > 0 {
            Vec::new()
        } else {
            before.difference(&self.lines).collect()
        };
        for line in new.iter().take(LINES) {
            let Line {
                sort,
                about,
                what,
                why,
                ..
            } = line;
            match sort {
                Sort::Change => info!(about, what, why, "Would do"),
                Sort::Blocked => warn!(about, what, "Would leave as it is"),
                Sort::Warning => warn!(about, what, "Would warn"),
                Sort::Problem => warn!(about, error = what, "Could not find out"),
            }
        }
        for line in over.iter().take(LINES) {
            info!(about = line.about, what = line.what, "No longer so");
        }
        let rest = new.len().saturating_sub(LINES) + over.len().saturating_sub(LINES);
        if rest > 0 {
            info!(
                lines = rest,
                "There is more than is logged: the subcommand plan shows all of it"
            );
        }
        if self.summary.replace(summary) != Some(summary) || !new.is_empty() || !over.is_empty() {
            info!(summary = %summary, "Dry run");
        }
    }
}

fn lines(review: &Review) -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    let mut add = |sort, about: &str, what: &str, why: &str| {
        lines.insert(Line {
            sort,
            about: about.to_owned(),
            what: what.to_owned(),
            why: why.to_owned(),
        });
    };
    for (whose, subject) in review.subjects() {
        let about = match whose {
            Whose::Service(name) => format!("Service {name}"),
            Whose::Part(name) => name.to_owned(),
            Whose::Node(name) => format!("node {name}"),
            Whose::Route(id) => id.to_string(),
        };
        for change in &subject.changes {
            add(Sort::Change, &about, &change.what, &change.why);
        }
        for blocked in &subject.blocked {
            add(Sort::Blocked, &about, &blocked.what, "");
        }
        for warning in &subject.warnings {
            add(Sort::Warning, &about, warning, "");
        }
    }
    for problem in &review.problems {
        add(Sort::Problem, &problem.about, &problem.error, "");
    }
    lines
}
