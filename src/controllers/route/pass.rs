//! One pass: desired and observed routes, the difference, the outcome, and the condition `NetworkUnavailable` of the nodes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ccm_core::{
    ErrorKind, Priority, Routes,
    controllers::{NodeObject, node::NetworkCondition},
    error::report,
    routes::{Applied, ClusterCidrs, Desired, RouteChanges, RouteNode, plan},
};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tracing::{debug, info};

use super::{
    BACKOFF, COMPONENT, RouteController,
    metrics::{SyncOutcome, Trigger},
    outcome::{items, must_write, verdicts, view},
    plan::actions,
    retries::{Batch, Key},
};
use crate::{
    controllers::{node_action::NodeAction, node_object::STORE_LAG, node_writer::Written},
    logging::warn_if_new,
    metrics::{count, increment},
};

/// If this many passes in a row cannot read the routes, nodes that are new since the start are reported to have none. Others may
/// work without routes. If no node has the reason `RouteCreated`, new nodes may, too.
const BLIND: u32 = 3;

/// How many nodes are written at once: enough to keep the API server busy.
const WRITERS: usize = 64;

impl RouteController {
    /// Runs one, and sets when the next one is due at the latest.
    pub(super) async fn pass(&mut self, cidrs: &ClusterCidrs) {
        let began = Instant::now();
        let follows_change = self.window.due().is_some();
        let priority = if follows_change {
            Priority::User
        } else {
            Priority::Background
        };
        self.window.close();
        if follows_change {
            self.trigger = Trigger::NodeChange;
        } else if !self.is_continuation(began) {
            self.trigger = Trigger::Periodic;
        }
        let cloud = Arc::clone(&self.cloud);
        let Some(routes) = cloud.routes() else { return };
        let desired = Desired::of(
            self.nodes.list().iter().filter_map(|node| view(node)),
            cidrs,
            |id| cloud.owns(id),
            |node, destination| routes.next_hop(node, destination),
        );
        let (outcome, again) = self.work(routes, &desired, cidrs, priority).await;
        self.metrics.synced(self.trigger, outcome);
        self.metrics.duration.observe(began.elapsed().as_secs_f64());
        self.continues = again.is_some();
        self.next = match again {
            Some(wait) => Instant::now() + wait,
            // The period counts from the beginning of a pass.
            None => (began + self.period()).max(Instant::now()),
        };
    }

    /// Whether a pass that begins now continues an earlier one, or tries its changes again.
    fn is_continuation(&self, now: Instant) -> bool {
        self.continues || self.retries.due().is_some_and(|due| due <= now)
    }

    /// Returns the outcome, and after which time the next pass is due, if sooner than usual.
    async fn work(
        &mut self,
        routes: &dyn Routes,
        desired: &Desired,
        cidrs: &ClusterCidrs,
        priority: Priority,
    ) -> (SyncOutcome, Option<Duration>) {
        let generation = self.cloud.generation();
        let observed = match routes.observe(&desired.routes, priority).await {
            Ok(observed) => observed,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                increment(&self.metrics.passes, "result", "failed");
                self.reports.unreadable(&error);
                if self.failures >= BLIND {
                    self.report_new_nodes(desired).await;
                }
                return (SyncOutcome::Error, Some(BACKOFF.delay(self.failures)));
            }
        };
        self.failures = 0;
        self.reports.readable();
        let plan = plan(desired, &observed, cidrs);
        self.metrics.foreign.set(count(plan.foreign));
        let blocked = plan.blocked.len();
        self.metrics.blocked.set(count(blocked));
        self.reports.blocked(blocked);
        self.reports.foreign_family(desired.foreign_family);
        if self.cloud.generation() != generation {
            // The credentials changed between reading and writing.
            return (SyncOutcome::Noop, Some(Duration::ZERO));
        }
        let Batch {
            changes,
            waiting,
            more,
        } = self.retries.select(&plan.changes, Instant::now());
        let trying = Instant::now();
        let applied = if changes.is_empty() {
            debug!(controller = COMPONENT, routes = desired.routes.len(), "No route has to change");
            Applied::default()
        } else {
            for action in actions(desired, &changes, routes) {
                debug!(controller = COMPONENT, change = action.change.what, "Changing routes");
            }
            let applied = routes.apply(&changes, priority).await;
            log_changes(&changes, &applied, trying.elapsed());
            applied
        };
        let took = trying.elapsed();
        let results = self.record(&changes, &applied);
        let items = items(desired, &plan, &results, &waiting);
        self.metrics.show(&items);
        self.reports.outcomes(&items, took);
        let is_incomplete = results.values().any(Result::is_err);
        let result = if is_incomplete { "incomplete" } else { "ok" };
        increment(&self.metrics.passes, "result", result);

        let verdicts = verdicts(&items)
            .into_iter()
            .filter_map(|(node, available)| Some((self.current(&node)?, available)));
        self.write_conditions(verdicts.collect()).await;
        // A table that was full and has space now is used at once.
        let retries = !self.retries.is_full() && waiting.values().any(is_quota) && !changes.delete.is_empty();
        let outcome = if is_incomplete || self.unwritten > 0 {
            SyncOutcome::Error
        } else if results.is_empty() {
            SyncOutcome::Noop
        } else {
            SyncOutcome::Changed
        };
        let again = if (more || retries) && !self.shutdown.is_cancelled() {
            Some(Duration::ZERO)
        } else if self.unwritten > 0 {
            Some(BACKOFF.delay(self.unwritten).min(self.period()))
        } else {
            None
        };
        (outcome, again)
    }

    /// Records the outcome of each change.
    fn record(&mut self, changes: &RouteChanges, applied: &Applied) -> HashMap<Key, ccm_core::Result<()>> {
        let now = Instant::now();
        let mut results = HashMap::new();
        let deleted = changes.delete.iter().map(Key::delete).zip(&applied.deleted);
        let created = changes.create.iter().map(Key::desired).zip(&applied.created);
        let finished = changes.finish.iter().map(Key::desired).zip(&applied.finished);
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
        self.reports.deletions(changes.delete.iter().zip(&applied.deleted));
        results
    }

    /// The node as it is now, unless it was deleted or recreated: a pass may take a while.
    fn current(&self, node: &RouteNode) -> Option<Arc<NodeObject>> {
        let current = self.nodes.get(&node.view.name);
        current.filter(|current| current.view.uid == node.view.uid)
    }

    /// Reports that nodes that joined since the start and never had a route have none.
    async fn report_new_nodes(&mut self, desired: &Desired) {
        if !self.nodes.list().iter().any(|node| node.network == NetworkCondition::RouteCreated) {
            return;
        }
        let nodes = desired.pod_cidrs.iter().map(|pod_cidr| &pod_cidr.node);
        let joined = nodes
            .filter(|node| !node.uninitialized && node.created >= self.started)
            .filter_map(|node| self.current(node));
        let new: HashMap<_, _> = joined
            .filter(|node| node.network == NetworkCondition::Absent)
            .map(|node| (node.view.uid.clone(), (node, false)))
            .collect();
        self.write_conditions(new.into_values().collect()).await;
    }

    /// Writes the conditions that differ from whether all routes of a node exist.
    async fn write_conditions(&mut self, verdicts: Vec<(Arc<NodeObject>, bool)>) {
        self.written.retain(|_, (_, at)| at.elapsed() < STORE_LAG);
        let due = verdicts.into_iter().filter(|(node, available)| match self.written.get(&node.view.uid) {
            // The store may not show the last write yet.
            Some((written, _)) => written != available,
            None => must_write(node.network, *available),
        });
        let due: Vec<_> = due.collect();
        let writer = &self.writer;
        let results: Vec<_> = stream::iter(due)
            .map(|(node, available)| async move {
                let action = NodeAction::SetNetworkAvailable(available);
                let result = writer.apply(&node, &action).await;
                (node, available, result)
            })
            .buffer_unordered(WRITERS)
            .collect()
            .await;
        let before = std::mem::take(&mut self.unwritten);
        for (node, available, result) in results {
            let result = match result {
                Ok(Written::Done) => {
                    let written = (available, Instant::now());
                    self.written.insert(node.view.uid.clone(), written);
                    "written"
                }
                Ok(Written::Missing | Written::Changed) => "missing",
                Err(error) => {
                    let is_new = before == 0 && self.unwritten == 0;
                    self.unwritten = before.saturating_add(1);
                    warn_if_new!(
                        is_new,
                        controller = COMPONENT,
                        node = node.view.name,
                        error = report(&error),
                        "Could not write the condition NetworkUnavailable, trying again"
                    );
                    "failed"
                }
            };
            increment(&self.metrics.conditions, "result", result);
        }
    }
}

fn is_quota(error: &ccm_core::Error) -> bool {
    error.kind() == ErrorKind::QuotaExceeded
}

fn log_changes(changes: &RouteChanges, applied: &Applied, elapsed: Duration) {
    let [created, deleted, finished] = [&applied.created, &applied.deleted, &applied.finished]
        .map(|results| results.iter().filter(|result| result.is_ok()).count());
    let done = created + deleted + finished;
    let failed = changes.len().saturating_sub(done);
    if done > 0 {
        info!(controller = COMPONENT, created, deleted, finished, failed, ?elapsed, "Routes changed");
    } else {
        debug!(controller = COMPONENT, failed, ?elapsed, "No route could be changed");
    }
}

#[cfg(test)]
mod tests;
