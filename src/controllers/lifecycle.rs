//! The node lifecycle controller: deletes nodes whose machines do not exist, and taints nodes whose machines are switched off.
//!
//! ```text
//! informer --> nodes that are not ready --> pass: one describe for all that are due --> actions --> GET, DELETE
//!          \-> ready again: remove shutdown taint                                       \-> shutdown taint
//! ```
//!
//! A wrong deletion is expensive. A node is deleted only if all of these conditions are true:
//!
//! - Its kubelet is silent or reports a failure.
//! - Two answers by ID, some time apart and under the same credentials, are that its machine does not exist. Without an ID, all
//!   answers of 10 minutes are that no machine has its name, and its kubelet is silent for all that time: a machine may have
//!   another name than its node.
//! - The same credentials find another of the cluster's machines at the same time.
//! - The node is not brand-new.
//! - A last read from the API server finds nothing of this changed.
//!
//! If many nodes seem missing at once, they are deleted slowly. Upstream's controller deletes at the first "not found".
//!
//! [`not_ready`] has the state and [`decide`] decides, both pure; [`pass`] asks the cloud, [`apply`] applies the
//! [`NodeAction`]s, and this file connects them. Ready nodes are never asked about, except for comparison.

mod apply;
mod decide;
mod metrics;
mod not_ready;
mod pass;
mod plan;
mod report;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    controllers::{
        Backoff, ControllerContext, ControllerNames, Informer, NodeObject, StoreChange, WorkQueue,
    },
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

#[cfg(test)]
pub(crate) use self::metrics::record_metrics;
pub(crate) use self::plan::plan;
use self::{
    apply::{Applier, NodeOutcome},
    decide::{BlockReason, Brake, Totals},
    metrics::LifecycleMetrics,
    not_ready::{Answer, NotReadyNodes, is_managed},
    pass::{Answers, Questions},
    report::Reports,
};
use crate::{
    config::LifecycleConfig,
    controllers::{
        Framework, FrameworkController, node_action::NodeAction, node_writer::NodeWriter, task_result,
    },
    logging::Failing,
    metrics::increment,
};

/// The canonical name, and the source of this controller's events.
pub(crate) const COMPONENT: &str = "cloud-node-lifecycle-controller";

pub(crate) const CONTROLLER: FrameworkController = FrameworkController {
    names: ControllerNames {
        name: COMPONENT,
        aliases: &["cloud-node-lifecycle"],
        migration_name: Some(COMPONENT),
        client_name: super::NODE_CLIENT,
    },
    needs: super::needs_instances,
    start: |context, framework| Box::pin(LifecycleController::new(context, framework).run()),
};

/// How many nodes are written at the same time.
const WRITERS: usize = 16;
/// How many changes are observed at once.
const CHANGES: usize = 512;
/// Waits between tries to remove the shutdown taint.
const BACKOFF: Backoff = Backoff::seconds(1, 60);

/// The wait after a write that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// Waits between tries to delete a node without the right to.
const NO_RIGHT: Backoff = Backoff::seconds(10, 300);

/// The controller. [`LifecycleController::run`] runs it.
pub(crate) struct LifecycleController {
    nodes: Arc<Informer<NodeObject>>,
    cloud: Arc<dyn Cloud>,
    config: LifecycleConfig,
    applier: Arc<Applier>,
    writers: Arc<Semaphore>,
    not_ready: NotReadyNodes,
    brake: Brake,
    /// The account lacks the right to delete nodes: how many tries failed, and when the next one is due.
    forbidden: Option<(u32, Instant)>,
    reports: Reports,
    /// Ready nodes that have the shutdown taint.
    recovered: Arc<WorkQueue<String>>,
    /// The generation of the credentials for the recorded answers.
    generation: u64,
    /// No pass before this.
    earliest_pass: Instant,
    /// Counts the passes with a comparison: each asks about other nodes.
    turn: usize,
    metrics: LifecycleMetrics,
    shutdown: CancellationToken,
}

/// An action that ended.
struct Ended {
    node: Arc<NodeObject>,
    action: NodeAction,
    outcome: NodeOutcome,
}

impl LifecycleController {
    pub(crate) fn new(context: ControllerContext, framework: &Framework) -> Self {
        let config = framework.config.lifecycle.clone();
        let (recorder, shutdown) = (context.recorder, context.shutdown);
        let cloud = context.setup.cloud;
        let applier = Applier {
            client: context.client.clone(),
            writer: NodeWriter::new(context.client),
            cloud: Arc::clone(&cloud),
            recorder: recorder.clone(),
            grace: config.grace(&*cloud),
            shutdown: shutdown.clone(),
            failing: Failing::default(),
            forbidden: Failing::default(),
        };
        Self {
            nodes: context.nodes,
            generation: cloud.generation(),
            cloud,
            applier: Arc::new(applier),
            writers: Arc::new(Semaphore::new(WRITERS)),
            not_ready: NotReadyNodes::new(
                config.monitor_period,
                config.deletion_confirm,
                config.unresolved_confirm,
            ),
            config,
            brake: Brake::default(),
            forbidden: None,
            reports: Reports::new(recorder),
            recovered: Arc::new(WorkQueue::new(BACKOFF, "node_recovered", context.metrics.queues())),
            earliest_pass: Instant::now(),
            turn: 0,
            metrics: context.metrics.with(LifecycleMetrics::register),
            shutdown,
        }
    }

    /// Runs until shutdown; then finishes the writes that were begun and returns.
    pub(crate) async fn run(mut self) {
        // The metrics exist before the first case.
        self.show();
        let (mut changes, shutdown) = (self.nodes.subscribe(), self.shutdown.clone());
        tokio::select! {
            () = self.nodes.synced() => {}
            () = shutdown.cancelled() => return,
        }
        info!(controller = COMPONENT, "Controller started");
        let mut asking: JoinSet<Answers> = JoinSet::new();
        let mut writing: JoinSet<Ended> = JoinSet::new();
        let mut credentials =
            tokio::time::interval(self.config.monitor_period.max(Duration::from_millis(100)));
        credentials.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let recovered = Arc::clone(&self.recovered);
        let mut seen = Vec::with_capacity(CHANGES);
        loop {
            // One pass at a time.
            let due = self.not_ready.next_due().filter(|_| asking.is_empty());
            let pass_at = due.map(|due| due.max(self.earliest_pass));
            tokio::select! {
                () = shutdown.cancelled() => break,
                1.. = changes.recv_many(&mut seen, CHANGES) => {
                    for change in seen.drain(..) {
                        self.observe(change);
                    }
                    self.show();
                }
                name = recovered.next() => self.recover(&name, &mut writing),
                () = tokio::time::sleep_until(pass_at.unwrap_or_else(Instant::now)), if pass_at.is_some() => {
                    self.begin_pass(&mut asking);
                }
                Some(answers) = asking.join_next() => self.end_pass(&task_result(answers), &mut writing),
                Some(ended) = writing.join_next() => self.ended(task_result(ended)),
                _ = credentials.tick() => self.compare_credentials(),
            }
        }
        debug!(controller = COMPONENT, "Controller finishes what it has begun");
        asking.abort_all();
        while let Some(ended) = writing.join_next().await {
            let Ended { action, outcome, .. } = task_result(ended);
            self.metrics.ended(&action, outcome);
        }
    }

    /// Observes a change from the informer.
    fn observe(&mut self, change: StoreChange) {
        let name = change.into_key();
        let Some(node) = self.nodes.get(&name) else {
            return self.not_ready.forget(&name);
        };
        let managed = is_managed(&node, |id| self.cloud.owns(id));
        if decide::is_recovered(&node) && managed {
            self.recovered.add_unless_waiting(name);
        }
        self.not_ready.observe(&node, managed, Instant::now());
    }

    /// Removes the shutdown taint of a node that is ready.
    fn recover(&self, name: &String, writing: &mut JoinSet<Ended>) {
        match self.nodes.get(name).filter(|node| decide::is_recovered(node)) {
            Some(node) => self.start(node, NodeAction::SetShutdownTaint(false), writing),
            None => self.recovered.done(name),
        }
    }

    fn begin_pass(&mut self, asking: &mut JoinSet<Answers>) {
        let began = Instant::now();
        self.earliest_pass = began + self.not_ready.pause();
        let due = self.not_ready.take_due(began);
        if due.is_empty() {
            return;
        }
        let mut questions = Questions {
            due: due.iter().map(|node| Arc::clone(&node.view)).collect(),
            ..Questions::default()
        };
        if due.iter().any(|node| self.not_ready.needs_comparison(&node.view.name, began)) {
            let found = self.not_ready.iter();
            let found = found
                .filter(|known| known.answer.is_some_and(Answer::is_present) && !known.is_asked())
                .map(|known| &known.node);
            questions.comparison =
                pass::comparison_nodes(&self.nodes.list(), |id| self.cloud.owns(id), found, self.turn);
            self.turn = self.turn.wrapping_add(1);
        }
        let cloud = Arc::clone(&self.cloud);
        asking.spawn(async move { pass::ask(&*cloud, questions).await });
    }

    fn end_pass(&mut self, answers: &Answers, writing: &mut JoinSet<Ended>) {
        let elapsed = answers.ended - answers.began;
        self.metrics.passed(elapsed);
        if answers.generation != Some(self.generation) {
            increment(&self.metrics.passes, "result", "discarded");
            self.not_ready.discard(Instant::now());
            return self.compare_credentials();
        }
        for finding in &answers.findings {
            self.metrics.answered(finding.answer);
        }
        let result = match &answers.failure {
            None => "answered",
            Some(error) => {
                self.reports.failed(error);
                "failed"
            }
        };
        increment(&self.metrics.passes, "result", result);
        debug!(
            controller = COMPONENT,
            nodes = answers.findings.len(),
            ?elapsed,
            "Checked the machines of nodes that are not ready"
        );
        let proven = self.not_ready.record(answers);
        for (node, action) in decide::shutdowns(&self.not_ready, &answers.findings) {
            self.not_ready.tainting(&node.view.name, true);
            self.start(node, action, writing);
        }
        if !proven.is_empty() {
            self.delete(proven, answers.present, writing);
        }
        self.show();
    }

    /// Deletes nodes that are proven missing, as far as the brake permits.
    fn delete(&mut self, mut proven: Vec<Arc<NodeObject>>, present: bool, writing: &mut JoinSet<Ended>) {
        if let Some((_, due)) = self.forbidden {
            let now = Instant::now();
            // One try shows whether the right was granted meanwhile.
            let tries = usize::from(now >= due).min(proven.len());
            for node in proven.split_off(tries) {
                let again = due.max(now + self.config.monitor_period);
                self.not_ready.again_at(&node.view.name, &node.view.uid, again);
            }
        }
        let share = self.config.deletion_share;
        // A node whose deletion failed does not take the slot of the others.
        proven.sort_by_key(|node| {
            let known = self.not_ready.get(&node.view.name);
            known.is_some_and(|known| known.failures.is_ongoing())
        });
        let totals = Totals::of(&self.not_ready, &self.nodes.list(), &*self.cloud, present, share);
        let decision = self.brake.decide(proven, &totals, Instant::now());
        for node in decision.delete {
            self.not_ready.deleting(&node.view.name);
            let action = NodeAction::Delete(decide::deletion_reason(&node));
            self.start(node, action, writing);
        }
        let mut blocked = decision.blocked;
        blocked.retain(|(node, reason)| self.not_ready.block(&node.view.name, *reason));
        self.reports.publish(&blocked, &decision.totals, &self.cloud.scope());
        if let Some(slot) = self.brake.next_slot() {
            // If one of them is running, the next one is due when it has ended.
            self.not_ready.ask_some(slot.max(Instant::now() + self.config.monitor_period));
        }
    }

    /// Applies an action in a task.
    fn start(&self, node: Arc<NodeObject>, action: NodeAction, writing: &mut JoinSet<Ended>) {
        let (applier, writers) = (Arc::clone(&self.applier), Arc::clone(&self.writers));
        let known = self.not_ready.get(&node.view.name);
        let failures = known.map(|known| Arc::clone(&known.failures)).unwrap_or_default();
        let generation = self.generation;
        writing.spawn(async move {
            // Never closed.
            let _permit = writers.acquire().await;
            let outcome = applier.apply(&node, &action, generation, &failures).await;
            Ended {
                node,
                action,
                outcome,
            }
        });
    }

    /// An action ended.
    fn ended(&mut self, ended: Ended) {
        let (node, outcome) = (ended.node, ended.outcome);
        self.metrics.ended(&ended.action, outcome);
        let (name, failed) = (&node.view.name, matches!(outcome, NodeOutcome::Failed { .. }));
        let later = Instant::now() + self.config.monitor_period.max(AFTER_FAILURE);
        let again = match ended.action {
            NodeAction::SetShutdownTaint(false) if failed => {
                self.recovered.done_with_backoff(name);
                return;
            }
            NodeAction::SetShutdownTaint(false) => return self.recovered.done(name),
            NodeAction::SetShutdownTaint(true) if outcome != NodeOutcome::Done => {
                self.not_ready.tainting(name, false);
                if !failed {
                    return;
                }
                later
            }
            NodeAction::Delete(_) => self.deletion_ended(&node, outcome),
            _ => return,
        };
        self.not_ready.again_at(name, &node.view.uid, again);
        self.show();
    }

    /// A deletion ended. Returns when to ask about the node again.
    fn deletion_ended(&mut self, node: &NodeObject, outcome: NodeOutcome) -> Instant {
        let now = Instant::now();
        let soon = now + self.config.monitor_period;
        self.forbidden = match (outcome, self.forbidden) {
            // Tries at the same time are one try.
            (NodeOutcome::Forbidden, Some((tries, due))) if now < due => Some((tries, due)),
            (NodeOutcome::Forbidden, before) => {
                let tries = before.map_or(1, |(tries, _)| tries.saturating_add(1));
                Some((tries, now + NO_RIGHT.delay(tries)))
            }
            (NodeOutcome::Done, _) => None,
            (_, before) => before,
        };
        if decide::counts(node) {
            self.brake.ended(outcome.is_done(), now);
            let slot = self.brake.next_slot().filter(|_| outcome.is_done());
            self.not_ready.ask_some(slot.unwrap_or(soon));
        }
        match outcome {
            // The watch will report it.
            NodeOutcome::Done | NodeOutcome::Missing => now + decide::SLOWLY,
            NodeOutcome::Young(missing) => now + missing,
            NodeOutcome::Forbidden => self.forbidden.map_or(soon, |(_, due)| due),
            NodeOutcome::Failed { .. } => now + self.config.monitor_period.max(AFTER_FAILURE),
            NodeOutcome::Changed | NodeOutcome::Kept | NodeOutcome::NotBegun => soon,
        }
    }

    /// Answers under other credentials do not count.
    fn compare_credentials(&mut self) {
        let generation = self.cloud.generation();
        if generation != self.generation {
            self.generation = generation;
            if self.not_ready.len() > 0 {
                debug!(
                    controller = COMPONENT,
                    nodes = self.not_ready.len(),
                    "The credentials changed, checking the machines of all nodes that are not ready again"
                );
            }
            self.not_ready.start_over(Instant::now());
            self.show();
        }
    }

    /// Shows how many nodes are not ready or not deleted. Logs changes.
    fn show(&mut self) {
        self.metrics.show(&self.not_ready);
        let mut answers = self.not_ready.iter().map(|known| known.answer);
        if !answers.any(|answer| answer == Some(Answer::Failed)) {
            self.reports.none_fails();
        }
        for reason in BlockReason::ALL {
            let all = self.not_ready.iter();
            let blocked = all.filter(|known| known.blocked == Some(reason)).count();
            self.metrics.set_blocked(reason, blocked);
            self.reports.log_blocked(reason, blocked, || self.cloud.scope());
        }
    }
}

#[cfg(test)]
mod tests;
