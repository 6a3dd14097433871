//! `--dry-run`: repeats the plan after a change and from time to time, and logs what changed.

use std::{collections::BTreeSet, fmt::Display, sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Freshness, Priority,
    controllers::{Informer, NodeObject, ServiceObject, StoreChange},
    load_balancer::ReadOptions,
};
use futures_util::future::select_all;
use kube::Client;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tracing::{debug, info, warn};

use super::{Cluster, Plan, Summary, cluster};
use crate::{
    config::Config,
    controllers::service::{self, KnownTag},
    metrics::{Labels, count, metrics, set_all},
    server::{CheckHandle, Metrics},
};

/// The pause after a change. Others follow it, and the leader begins to work on it.
const SETTLE: Duration = Duration::from_secs(5);
/// The pause between two plans, as a multiple of the last plan's duration.
const PAUSE: u32 = 10;
/// How many changes are read from a queue at once.
const CHANGES: usize = 512;
/// How many lines are logged for one plan. The subcommand `plan` shows all of them.
const LINES: usize = 300;
/// Lines that so many incomplete plans in succession lack stay reported.
const TRANSIENT: u32 = 3;

/// A dry run.
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
        plans: Counter = "ccm_dry_run_plans",
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
    /// Runs until it is dropped. It writes nothing, so that no work has to be finished.
    pub(crate) async fn run(self) {
        let metrics = self.metrics.with(DryRunMetrics::register);
        self.nodes.synced().await;
        if let Some(services) = &self.services {
            services.synced().await;
        }
        let mut tag = cluster::follow_ownership_tag(&self.client, &self.config, &*self.cloud);
        if let Some(tag) = &mut tag {
            service::wait_for_ownership_tag(tag).await;
            if let Some(id) = self.cloud.cluster_id() {
                service::wait_for_cluster_id(&self.client, id, service::IfMissing::Wait).await;
            }
        }
        info!(
            "Dry run: nothing is written to the cloud or the cluster; the actions that would be applied are logged"
        );
        let mut changes = vec![self.nodes.subscribe()];
        changes.extend(self.services.as_ref().map(|services| services.subscribe()));
        let mut reported = ReportedLines::default();
        loop {
            let cluster = self.cluster(tag.as_ref());
            let began = Instant::now();
            let ask = ReadOptions {
                freshness: Freshness::After(began),
                priority: Priority::Background,
            };
            match super::plan(&*self.cloud, &self.config, &cluster, None, ask).await {
                Ok(plan) => {
                    metrics.show(&Summary::of(&plan));
                    reported.report(&plan);
                    self.check.set_ok();
                }
                // Only a plan of one Service can fail.
                Err(error) => debug!(error = format!("{error:#}"), "Could not plan"),
            }
            let took = began.elapsed();
            debug!(?took, "Compared cluster and cloud");
            sleep(SETTLE.max(took.saturating_mul(PAUSE))).await;
            let again = Instant::now() + self.config.node.status_update_frequency;
            while let Ok(()) = timeout_at(again, changed(&mut changes)).await {
                if !self.cluster(tag.as_ref()).is_same(&cluster) {
                    sleep_until((Instant::now() + SETTLE).min(again)).await;
                    break;
                }
            }
        }
    }

    /// The cluster as the stores have it.
    fn cluster(&self, tag: Option<&KnownTag>) -> Cluster {
        let services = self.services.as_ref().map(|services| services.list()).unwrap_or_default();
        let tag = tag.and_then(|tag| tag.borrow().clone());
        Cluster::of(self.nodes.list(), services, tag.unwrap_or_default())
    }
}

/// Returns when an object has changed. Changes that come together are one.
async fn changed(stores: &mut [UnboundedReceiver<StoreChange>]) {
    let each = stores
        .iter_mut()
        .map(|changes| Box::pin(async { changes.recv_many(&mut Vec::new(), CHANGES).await }));
    select_all(each).await;
}

/// One line of the log, in the order in which lines are logged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    kind: LineKind,
    about: String,
    what: String,
    /// The reason of a change; otherwise empty.
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LineKind {
    Change,
    Blocked,
    Warning,
    Problem,
}

impl Line {
    /// The lines of a plan.
    fn all(plan: &Plan) -> BTreeSet<Self> {
        let line = |kind, about: &dyn Display, what: &str, why: &str| Self {
            kind,
            about: about.to_string(),
            what: what.to_owned(),
            why: why.to_owned(),
        };
        let mut lines = BTreeSet::new();
        for (object, findings) in plan.objects() {
            for change in &findings.changes {
                lines.insert(line(LineKind::Change, object, &change.what, &change.why));
            }
            for blocked in &findings.blocked {
                lines.insert(line(LineKind::Blocked, object, &blocked.what, ""));
            }
            for warning in &findings.warnings {
                lines.insert(line(LineKind::Warning, object, warning, ""));
            }
        }
        for problem in &plan.problems {
            lines.insert(line(LineKind::Problem, &problem.about, &problem.error, ""));
        }
        lines
    }

    fn log(&self) {
        let (about, what, why) = (&self.about, &self.what, &self.why);
        match self.kind {
            LineKind::Change => info!(about, what, why, "Would do"),
            LineKind::Blocked => warn!(about, what, "Would leave unchanged"),
            LineKind::Warning => warn!(about, what, "Would warn"),
            LineKind::Problem => warn!(about, error = what, "Could not determine"),
        }
    }
}

/// The lines that were last reported: each is logged once.
#[derive(Debug, Default)]
struct ReportedLines {
    lines: BTreeSet<Line>,
    summary: Option<Summary>,
    /// How many plans since the last complete one.
    incomplete: u32,
}

impl ReportedLines {
    fn report(&mut self, plan: &Plan) {
        let (summary, mut lines) = (Summary::of(plan), Line::all(plan));
        self.incomplete = if summary.problems > 0 {
            self.incomplete + 1
        } else {
            0
        };
        // If a read failed, a missing line may still be true. If it always fails, changes that come back are logged.
        if (1..=TRANSIENT).contains(&self.incomplete) {
            let before = self.lines.iter();
            lines.extend(before.filter(|line| line.kind != LineKind::Problem).cloned());
        }
        let before = std::mem::replace(&mut self.lines, lines);
        let new: Vec<_> = self.lines.difference(&before).collect();
        let over: Vec<_> = if summary.problems == 0 {
            before.difference(&self.lines).collect()
        } else {
            Vec::new()
        };
        new.iter().take(LINES).for_each(|line| line.log());
        for Line { about, what, .. } in over.iter().take(LINES) {
            info!(about, what, "No longer applies");
        }
        let rest = new.len().saturating_sub(LINES) + over.len().saturating_sub(LINES);
        if rest > 0 {
            info!(lines = rest, "Not all lines are logged; plan shows them");
        }
        if self.summary.replace(summary) != Some(summary) || !new.is_empty() || !over.is_empty() {
            info!(summary = %summary, "Dry run");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_an_incomplete_plan_lacks_are_neither_over_nor_new_afterwards() {
        let mut complete = Plan::default();
        complete.node("n1").warn("is odd");
        let mut incomplete = Plan::default();
        incomplete.problem("node n1", "the cloud is down");
        let mut reported = ReportedLines::default();
        reported.report(&complete);
        let first = reported.lines.clone();
        for (plan, lines) in [
            (&incomplete, &first | &Line::all(&incomplete)),
            (&complete, first.clone()),
            (&Plan::default(), BTreeSet::new()),
        ] {
            reported.report(plan);
            assert_eq!(reported.lines, lines);
        }
    }
}
