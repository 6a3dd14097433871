//! `--dry-run`: repeats the plan after a change and from time to time, and logs what changed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Freshness, Priority,
    controllers::{Change, Informer, NodeObject, ServiceObject},
    load_balancer::ReadOptions,
};
use kube::Client;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tracing::{debug, info, warn};

use super::{Cluster, Plan, Planner, Scope, Summary, cluster};
use crate::{
    config::Config,
    controllers::service,
    metrics::{Labels, count, metrics, set_all},
    server::{CheckHandle, Metrics},
};

/// The pause after a change: others follow it, and the leader begins to work on it.
const SETTLE: Duration = Duration::from_secs(5);
/// The pause between two plans, as a multiple of the last plan's duration.
const PAUSE: u32 = 10;
/// How many changes are read from a queue at once.
const CHANGES: usize = 512;
/// How many lines are logged for one plan. The subcommand `plan` shows all of them.
const LINES: usize = 300;

/// What a dry run needs.
pub(crate) struct DryRun {
    pub(crate) client: Client,
    pub(crate) cloud: Arc<dyn Cloud>,
    pub(crate) config: Arc<Config>,
    pub(crate) nodes: Arc<Informer<NodeObject>>,
    /// `None` if no controller needs them.
    pub(crate) services: Option<Arc<Informer<ServiceObject>>>,
    pub(crate) metrics: Metrics,
    /// Succeeds after the first plan.
    pub(crate) check: CheckHandle,
}

metrics! {
    /// The last plan in numbers.
    struct DryRunMetrics {
        changes: Family<Labels<1>, Gauge> = "ccm_dry_run_changes",
        blocked: Gauge = "ccm_dry_run_blocked",
        problems: Gauge = "ccm_dry_run_problems",
        plans: Counter = "ccm_dry_run_looks",
    }
}

impl DryRunMetrics {
    fn show(&self, summary: &Summary) {
        let changes = [
            ("create", summary.create),
            ("change", summary.change),
            ("delete", summary.delete),
        ];
        set_all(&self.changes, "effect", changes);
        self.blocked.set(count(summary.blocked));
        self.problems.set(count(summary.problems));
        self.plans.inc();
    }
}

impl DryRun {
    /// Runs until it is dropped. It writes nothing, so that nothing has to be finished.
    pub(crate) async fn run(self) {
        let metrics = self.metrics.with(DryRunMetrics::register);
        self.nodes.synced().await;
        if let Some(services) = &self.services {
            services.synced().await;
        }
        let mut tag = cluster::follow_ownership_tag(&self.client, &self.config, &*self.cloud);
        if let Some(tag) = &mut tag {
            service::at_start(tag).await;
        }
        info!(
            "Dry run: nothing is written, neither to the cloud nor to the cluster; what would be done is logged"
        );
        let mut node_changes = self.nodes.subscribe();
        let mut service_changes = self.services.as_ref().map(|services| services.subscribe());
        let mut reported = Reported::default();
        loop {
            let cluster = self.cluster();
            let ownership_tag = tag.as_ref().and_then(|tag| tag.borrow().clone());
            let planner = Planner {
                cloud: &*self.cloud,
                config: &self.config,
                ownership_tag: &ownership_tag.unwrap_or_default(),
            };
            let began = Instant::now();
            let ask = ReadOptions {
                freshness: Freshness::After(began),
                priority: Priority::Background,
            };
            match planner.plan(&cluster, &Scope::Everything, ask).await {
                Ok(plan) => {
                    metrics.show(&Summary::of(&plan));
                    reported.report(&plan);
                    self.check.set_ok();
                }
                // Only a plan of one Service can fail.
                Err(error) => debug!(error = format!("{error:#}"), "Could not look"),
            }
            let took = began.elapsed();
            debug!(?took, "Looked at cluster and cloud");
            sleep(SETTLE.max(took.saturating_mul(PAUSE))).await;
            let again = Instant::now() + self.config.node.status_update_frequency;
            while let Ok(()) = timeout_at(again, changed(&mut node_changes, service_changes.as_mut())).await {
                if !self.cluster().is_same(&cluster) {
                    sleep_until((Instant::now() + SETTLE).min(again)).await;
                    break;
                }
            }
        }
    }

    /// The cluster as the stores have it.
    fn cluster(&self) -> Cluster {
        let services = self.services.as_ref();
        Cluster::of(
            self.nodes.list(),
            services.map(|services| services.list()).unwrap_or_default(),
        )
    }
}

/// Returns when something has changed, with everything that came at once.
async fn changed(nodes: &mut UnboundedReceiver<Change>, services: Option<&mut UnboundedReceiver<Change>>) {
    tokio::select! {
        () = any(Some(nodes)) => {}
        () = any(services) => {}
    }
}

async fn any(changes: Option<&mut UnboundedReceiver<Change>>) {
    if let Some(changes) = changes
        && changes.recv_many(&mut Vec::new(), CHANGES).await > 0
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// One line of the log, in the order in which lines are logged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    Change {
        about: String,
        what: String,
        why: String,
    },
    Blocked {
        about: String,
        what: String,
    },
    Warning {
        about: String,
        what: String,
    },
    Problem {
        about: String,
        what: String,
    },
}

impl Line {
    /// The lines of a plan.
    fn all(plan: &Plan) -> BTreeSet<Self> {
        let mut lines = BTreeSet::new();
        for (object, findings) in plan.objects() {
            let about = object.to_string();
            lines.extend(findings.changes.iter().map(|change| Self::Change {
                about: about.clone(),
                what: change.what.clone(),
                why: change.why.clone(),
            }));
            lines.extend(findings.blocked.iter().map(|blocked| Self::Blocked {
                about: about.clone(),
                what: blocked.what.clone(),
            }));
            lines.extend(findings.warnings.iter().map(|what| Self::Warning {
                about: about.clone(),
                what: what.clone(),
            }));
        }
        lines.extend(plan.problems.iter().map(|problem| Self::Problem {
            about: problem.about.clone(),
            what: problem.error.clone(),
        }));
        lines
    }

    fn log(&self) {
        match self {
            Self::Change { about, what, why } => info!(about, what, why, "Would do"),
            Self::Blocked { about, what } => warn!(about, what, "Would leave as it is"),
            Self::Warning { about, what } => warn!(about, what, "Would warn"),
            Self::Problem { about, what } => warn!(about, error = what, "Could not find out"),
        }
    }

    fn log_end(&self) {
        match self {
            Self::Change { about, what, .. }
            | Self::Blocked { about, what }
            | Self::Warning { about, what }
            | Self::Problem { about, what } => info!(about, what, "No longer so"),
        }
    }
}

/// What was last reported: each line is logged once.
#[derive(Debug, Default)]
struct Reported {
    lines: BTreeSet<Line>,
    summary: Option<Summary>,
}

impl Reported {
    fn report(&mut self, plan: &Plan) {
        let (summary, lines) = (Summary::of(plan), Line::all(plan));
        let before = std::mem::replace(&mut self.lines, lines);
        let new: Vec<_> = self.lines.difference(&before).collect();
        // A line that is missing because something could not be determined may still be true.
        let over: Vec<_> = before
            .difference(&self.lines)
            .filter(|_| summary.problems == 0)
            .collect();
        new.iter().take(LINES).for_each(|line| line.log());
        over.iter().take(LINES).for_each(|line| line.log_end());
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
