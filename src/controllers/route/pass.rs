//! One pass: desired and observed routes, the difference, and the outcome.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ccm_core::{
    Priority, Routes,
    controllers::{NodeObject, node::NetworkCondition},
    routes::{Applied, Changes, ClusterCidrs, Desired, plan},
};
use tokio::time::Instant;
use tracing::{debug, info};

use super::{
    BACKOFF, COMPONENT, RouteController,
    outcome::{self, items, verdicts},
    plan::RouteAction,
    retries::{Batch, Key},
};
use crate::metrics::count;

/// So many passes in a row that could not read, and a node that never had a route is reported to have none.
const BLIND: u32 = 3;

impl RouteController {
    /// Runs one, and sets when the next one is due at the latest.
    pub(super) async fn pass(&mut self, cidrs: &ClusterCidrs) {
        let began = Instant::now();
        let priority = match self.window.due() {
            Some(_) => Priority::User,
            None => Priority::Background,
        };
        self.window.close();
        self.metrics.syncs.inc();
        let nodes: HashMap<String, Arc<NodeObject>> = self
            .nodes
            .list()
            .into_iter()
            .filter(|node| !node.pod_cidrs.is_empty())
            .map(|node| (node.view.uid.clone(), node))
            .collect();
        let cloud = Arc::clone(&self.cloud);
        let Some(routes) = cloud.routes() else { return };
        let desired = Desired::of(
            nodes.values().filter_map(|node| outcome::view(node)),
            cidrs,
            |id| cloud.owns(id),
            |node, destination| routes.next_hop(node, destination),
        );
        let again = self.work(routes, &desired, cidrs, &nodes, priority).await;
        self.metrics.duration.observe(began.elapsed().as_secs_f64());
        self.next = match again {
            Some(wait) => Instant::now() + wait,
            // The period counts from the beginning of a pass.
            None => (began + self.period()).max(Instant::now()),
        };
    }

    /// Returns after which time the next pass is due, if sooner than usual.
    async fn work(
        &mut self,
        routes: &dyn Routes,
        desired: &Desired,
        cidrs: &ClusterCidrs,
        nodes: &HashMap<String, Arc<NodeObject>>,
        priority: Priority,
    ) -> Option<Duration> {
        let generation = self.cloud.generation();
        let observed = match routes.observe(&desired.wanted, priority).await {
            Ok(observed) => observed,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                self.metrics.pass("failed");
                self.reports.unreadable(&error);
                if self.failures >= BLIND {
                    self.report_newcomers(desired, nodes).await;
                }
                return Some(BACKOFF.delay(self.failures));
            }
        };
        self.failures = 0;
        self.reports.readable();
        let plan = plan(desired, &observed, cidrs);
        self.metrics.foreign.set(count(plan.foreign));
        let kept = plan.held.len();
        self.metrics.held.set(count(kept));
        self.reports.kept(kept);
        self.reports.foreign_family(desired.foreign_family);
        if self.cloud.generation() != generation {
            // The credentials changed between reading and writing.
            return Some(Duration::ZERO);
        }
        let Batch {
            changes,
            waiting,
            more,
        } = self.retries.select(&plan.changes, Instant::now());
        let trying = Instant::now();
        let applied = if changes.is_empty() {
            debug!(
                controller = COMPONENT,
                routes = desired.wanted.len(),
                "No route has to change"
            );
            Applied::default()
        } else {
            for action in RouteAction::all(desired, &changes, routes) {
                debug!(controller = COMPONENT, change = %action, "Changing routes");
            }
            routes.apply(&changes, priority).await
        };
        let took = trying.elapsed();
        let results = self.take_in(&changes, &applied);
        let items = items(desired, &plan, &results, &waiting);
        self.metrics.show(&items);
        self.reports.outcomes(&items, took);
        let failed = results.values().any(Result::is_err);
        self.metrics.pass(if failed { "incomplete" } else { "ok" });
        log_changes(&changes, &applied, took);

        let verdicts = verdicts(&items)
            .into_iter()
            // As they are now: the changes may have taken a while.
            .filter_map(|(node, available)| {
                let now = self.nodes.get(&node.view.name)?;
                (now.view.uid == node.view.uid).then_some((now, available))
            })
            .collect();
        let unwritten = self.write(verdicts).await;
        // A table that was full and is not any more is used at once.
        let retries = !self.retries.is_full() && waits_for_space(&waiting) && !changes.delete.is_empty();
        if (more || retries) && !self.shutdown.is_cancelled() {
            return Some(Duration::ZERO);
        }
        unwritten.then_some(BACKOFF.first)
    }

    /// Records the outcome of each change.
    fn take_in(&mut self, changes: &Changes, applied: &Applied) -> HashMap<Key, ccm_core::Result<()>> {
        let now = Instant::now();
        let mut results = HashMap::new();
        let deleted = changes.delete.iter().map(Key::delete).zip(&applied.deleted);
        let created = changes.create.iter().map(Key::want).zip(&applied.created);
        let finished = changes.finish.iter().map(Key::want).zip(&applied.finished);
        let each = deleted
            .map(|(key, result)| ("deleted", key, result))
            .chain(created.map(|(key, result)| ("created", key, result)))
            .chain(finished.map(|(key, result)| ("finished", key, result)));
        let mut full = None;
        for (change, key, result) in each {
            self.metrics.change(change, result);
            match result {
                Ok(()) => self.retries.done(&key),
                Err(error) if change == "created" && is_quota(error) => full = Some(error),
                Err(error) => self.retries.failed(key.clone(), error, now),
            }
            results.insert(key, result.clone());
        }
        if let Some(error) = full {
            self.retries.full(error, now);
        }
        self.reports
            .deletions(changes.delete.iter().zip(&applied.deleted));
        results
    }

    /// Reports that nodes that never had a route have none.
    async fn report_newcomers(&mut self, desired: &Desired, nodes: &HashMap<String, Arc<NodeObject>>) {
        let mut new: HashMap<&str, Arc<NodeObject>> = HashMap::new();
        for due in &desired.due {
            let node = nodes.get(&due.node.view.uid);
            if let Some(node) =
                node.filter(|node| node.network == NetworkCondition::Absent && !due.node.uninitialized)
            {
                new.insert(due.node.view.uid.as_str(), Arc::clone(node));
            }
        }
        self.write(new.into_values().map(|node| (node, false)).collect())
            .await;
    }

    /// Writes conditions; whether one could not be written.
    async fn write(&mut self, verdicts: Vec<(Arc<NodeObject>, bool)>) -> bool {
        let written = self.conditions.write(verdicts).await;
        self.metrics.conditions("written", written.written);
        self.metrics.conditions("gone", written.gone);
        self.metrics.conditions("failed", written.failed);
        written.failed > 0
    }
}

fn is_quota(error: &ccm_core::Error) -> bool {
    error.kind() == ccm_core::ErrorKind::QuotaExceeded
}

fn waits_for_space(waiting: &HashMap<Key, ccm_core::Error>) -> bool {
    waiting.values().any(is_quota)
}

fn log_changes(changes: &Changes, applied: &Applied, took: Duration) {
    if changes.is_empty() {
        return;
    }
    let well = |results: &[ccm_core::Result<()>]| results.iter().filter(|result| result.is_ok()).count();
    let (created, deleted, finished) = (
        well(&applied.created),
        well(&applied.deleted),
        well(&applied.finished),
    );
    let failed = changes.len().saturating_sub(created + deleted + finished);
    if created + deleted + finished > 0 {
        info!(
            controller = COMPONENT,
            created, deleted, finished, failed, elapsed = ?took, "Routes changed"
        );
    } else {
        debug!(controller = COMPONENT, failed, elapsed = ?took, "No route could be changed");
    }
}
