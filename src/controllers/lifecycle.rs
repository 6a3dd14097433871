//! The node lifecycle controller: takes away nodes whose machines are gone, and marks nodes whose machines are switched
//! off.
//!
//! ```text
//! informer --> suspects --> pass: one describe for all that are due --> suspects --> brake --> GET, DELETE
//!          \-> ready again: shutdown taint away                                  \-> shutdown taint
//! ```
//!
//! A node costs its users dearly, so that it is deleted only when everything says so: its kubelet is silent or unwell;
//! two answers by id, some time apart and under the same credentials, say that its machine is not there; the same
//! credentials find another of the cluster's machines at the same time; the node is not brand-new; and a last look at
//! the API server finds nothing of this changed. If much seems to vanish at once, it goes slowly. Upstream's controller
//! deletes at the first "not found".
//!
//! [`suspects`] remembers and [`decide`] decides, both pure; [`pass`] asks the cloud, [`effects`] writes, and this file
//! puts them together. Ready nodes are never asked about, except as witnesses.

mod decide;
mod effects;
mod metrics;
mod pass;
mod plan;
mod report;
mod suspects;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    controllers::{
        Backoff, Change, ControllerContext, ControllerDef, Informer, NodeObject, WorkQueue, node::Ready,
    },
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

pub(crate) use self::plan::plan;
use self::{
    decide::{Brake, Reason, Whole},
    effects::{Deletion, Effects, Tainted, Target},
    metrics::LifecycleMetrics,
    pass::{Answers, Questions},
    report::Reports,
    suspects::{Answer, Suspect, Suspects, is_managed},
};
use crate::{
    config::LifecycleConfig,
    controllers::{Framework, finished, node_object::SHUTDOWN_TAINT},
};

/// The canonical name, and the source of this controller's events.
pub(crate) const COMPONENT: &str = "cloud-node-lifecycle-controller";

pub(crate) const DEF: ControllerDef = ControllerDef {
    name: COMPONENT,
    aliases: &["cloud-node-lifecycle"],
    migration_name: Some(COMPONENT),
    client_name: super::NODE_CLIENT,
    default_on: true,
    needs: super::needs_instances,
    start: |context| {
        let framework = context.setup.framework_as::<Framework>()?;
        Ok(Box::pin(LifecycleController::new(context, &framework).run()))
    },
};

/// How many nodes are written at the same time.
const WRITERS: usize = 16;
/// How many changes are looked at before anything else.
const CHANGES: usize = 512;
/// How many of the nodes that wait for their turn are asked about when it comes. More than one, in case that one has
/// come back.
const CANDIDATES: usize = 3;
/// Waits between tries to take the shutdown taint away.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// Waits between tries to delete a node without the right to.
const NO_RIGHT: Backoff = Backoff {
    first: Duration::from_secs(10),
    longest: Duration::from_secs(300),
};

/// The controller. [`LifecycleController::run`] is its life.
pub(crate) struct LifecycleController {
    nodes: Arc<Informer<NodeObject>>,
    cloud: Arc<dyn Cloud>,
    config: LifecycleConfig,
    effects: Arc<Effects>,
    writers: Arc<Semaphore>,
    suspects: Suspects,
    brake: Brake,
    /// Since when no node can be deleted for want of the right: how many tries failed, and when the next one is due.
    forbidden: Option<(u32, Instant)>,
    reports: Reports,
    /// Ready nodes that bear the shutdown taint.
    recovered: Arc<WorkQueue<String>>,
    /// The credentials that the suspects' memory belongs to.
    generation: u64,
    /// No pass before this.
    earliest_pass: Instant,
    /// Whose turn it is to be a witness.
    turn: usize,
    metrics: LifecycleMetrics,
    shutdown: CancellationToken,
}

/// A write that ended.
enum Written {
    Deletion(Target, Deletion),
    Tainted {
        name: String,
        uid: String,
        outcome: Tainted,
    },
    /// A key of the queue.
    Recovered(String, Tainted),
}

impl LifecycleController {
    pub(crate) fn new(context: ControllerContext, framework: &Framework) -> Self {
        let mut config = framework.config.lifecycle.clone();
        let ControllerContext {
            recorder, shutdown, ..
        } = context;
        let cloud = context.setup.cloud;
        config.deletion_grace = config.grace(&*cloud);
        let metrics = context.metrics.with(LifecycleMetrics::register);
        for reason in Reason::ALL {
            // An alert on it must not depend on the first case.
            metrics.set_held(reason, 0);
        }
        let effects = Effects::new(
            context.client,
            Arc::clone(&cloud),
            recorder.clone(),
            config.deletion_grace,
            shutdown.clone(),
        );
        Self {
            nodes: context.nodes,
            generation: cloud.generation(),
            cloud,
            effects: Arc::new(effects),
            writers: Arc::new(Semaphore::new(WRITERS)),
            suspects: Suspects::new(config.monitor_period, config.deletion_confirm),
            config,
            brake: Brake::default(),
            forbidden: None,
            reports: Reports::new(recorder),
            recovered: Arc::new(WorkQueue::new(
                BACKOFF,
                "node_recovered",
                context.metrics.queues(),
            )),
            earliest_pass: Instant::now(),
            turn: 0,
            metrics,
            shutdown,
        }
    }

    /// Runs until shutdown; then finishes the writes that were begun and returns.
    pub(crate) async fn run(mut self) {
        let (mut changes, shutdown) = (self.nodes.subscribe(), self.shutdown.clone());
        tokio::select! {
            () = self.nodes.synced() => {}
            () = shutdown.cancelled() => return,
        }
        info!(controller = COMPONENT, "Controller started");
        let mut asking: JoinSet<Answers> = JoinSet::new();
        let mut writing: JoinSet<Written> = JoinSet::new();
        let mut credentials =
            tokio::time::interval(self.config.monitor_period.max(Duration::from_millis(100)));
        credentials.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let recovered = Arc::clone(&self.recovered);
        let mut seen = Vec::with_capacity(CHANGES);
        loop {
            // One pass at a time.
            let due = self.suspects.next_due().filter(|_| asking.is_empty());
            let pass_at = due.map(|due| due.max(self.earliest_pass));
            tokio::select! {
                () = shutdown.cancelled() => break,
                1.. = changes.recv_many(&mut seen, CHANGES) => {
                    for change in seen.drain(..) {
                        self.observe(change);
                    }
                    self.show();
                }
                name = recovered.next() => self.recover(name, &mut writing),
                () = tokio::time::sleep_until(pass_at.unwrap_or_else(Instant::now)), if pass_at.is_some() => {
                    self.begin_pass(&mut asking);
                }
                Some(answers) = asking.join_next() => self.end_pass(finished(answers), &mut writing),
                Some(written) = writing.join_next() => self.written(finished(written)),
                _ = credentials.tick() => self.compare_credentials(),
            }
        }
        debug!(controller = COMPONENT, "Controller finishes what it has begun");
        asking.abort_all();
        while let Some(written) = writing.join_next().await {
            if let Written::Deletion(_, outcome) = finished(written) {
                self.metrics.deletion(outcome.as_str());
            }
        }
    }

    /// Takes up what the informer saw.
    fn observe(&mut self, change: Change) {
        let node = match change {
            Change::Deleted(name) | Change::Vanished(name) => return self.suspects.forget(&name),
            Change::Applied(name) => match self.nodes.get(&name) {
                Some(node) => node,
                // Gone again.
                None => return self.suspects.forget(&name),
            },
        };
        let managed = is_managed(&node, |id| self.cloud.owns(id));
        if is_recovered(&node) && managed {
            self.recovered.add_unless_waiting(node.view.name.clone());
        }
        self.suspects.observe(&node, managed, Instant::now());
    }

    /// The shutdown taint of a node that is ready goes.
    fn recover(&self, name: String, writing: &mut JoinSet<Written>) {
        let Some(node) = self.nodes.get(&name).filter(|node| is_recovered(node)) else {
            return self.recovered.done(&name);
        };
        self.write(writing, async move |effects| {
            Written::Recovered(name, effects.set_shutdown_taint(&node, false).await)
        });
    }

    fn begin_pass(&mut self, asking: &mut JoinSet<Answers>) {
        let began = Instant::now();
        self.earliest_pass = began + self.suspects.pause();
        let due = self.suspects.take_due(began);
        if due.is_empty() {
            return;
        }
        let mut questions = Questions {
            suspects: due.iter().map(|node| Arc::clone(&node.view)).collect(),
            ..Questions::default()
        };
        if due
            .iter()
            .any(|node| self.suspects.needs_witness(&node.view.name, began))
        {
            let found = self
                .suspects
                .iter()
                .filter(|suspect| suspect.answer.is_some_and(Answer::is_present) && !suspect.is_asked())
                .map(|suspect| &suspect.node);
            questions.witnesses =
                pass::witnesses(&self.nodes.list(), |id| self.cloud.owns(id), found, self.turn);
            self.turn = self.turn.wrapping_add(1);
        }
        let cloud = Arc::clone(&self.cloud);
        asking.spawn(async move { pass::ask(&*cloud, questions).await });
    }

    fn end_pass(&mut self, answers: Answers, writing: &mut JoinSet<Written>) {
        let Answers {
            findings,
            present,
            failure,
            times,
            generation,
        } = answers;
        let now = Instant::now();
        let elapsed = times.ended - times.began;
        self.metrics.pass_duration.observe(elapsed.as_secs_f64());
        let Some(generation) = generation.filter(|generation| *generation == self.generation) else {
            self.metrics.passed("discarded");
            self.suspects.discard(now);
            return self.compare_credentials();
        };
        for finding in &findings {
            self.metrics.answered(finding.answer);
        }
        self.metrics
            .passed(if failure.is_some() { "failed" } else { "answered" });
        if let Some(error) = &failure {
            self.reports.failed(error);
        }
        debug!(
            controller = COMPONENT,
            nodes = findings.len(),
            ?elapsed,
            "Asked about nodes that are not ready"
        );
        let proven = self.suspects.record(&findings, times, present);
        for finding in &findings {
            self.shut_down(&finding.view.name, writing);
        }
        if !proven.is_empty() {
            self.delete(proven, present, generation, writing);
        }
        self.show();
    }

    /// A node whose machine is switched off gets the taint.
    fn shut_down(&self, name: &str, writing: &mut JoinSet<Written>) {
        let Some(suspect) = self
            .suspects
            .get(name)
            .filter(|suspect| needs_shutdown_taint(suspect))
        else {
            return;
        };
        let node = Arc::clone(&suspect.node);
        self.write(writing, async move |effects| {
            let outcome = effects.set_shutdown_taint(&node, true).await;
            Written::Tainted {
                name: node.view.name.clone(),
                uid: node.view.uid.clone(),
                outcome,
            }
        });
    }

    /// Deletes nodes that are proven gone, as far as the brake lets them.
    fn delete(
        &mut self,
        mut proven: Vec<Arc<NodeObject>>,
        present: bool,
        generation: u64,
        writing: &mut JoinSet<Written>,
    ) {
        if let Some((_, due)) = self.forbidden {
            let now = Instant::now();
            // One finds out whether the right was granted meanwhile.
            let tries = usize::from(now >= due).min(proven.len());
            for node in proven.split_off(tries) {
                let again = due.max(now + self.config.monitor_period);
                self.suspects.again_at(&node.view.name, &node.view.uid, again);
            }
        }
        let nodes = self.nodes.list();
        let share = self.config.deletion_share;
        let whole = whole(&self.suspects, &nodes, &*self.cloud, present, share);
        let decision = self.brake.decide(proven, &whole, Instant::now());
        for node in decision.delete {
            self.suspects.deleting(&node.view.name);
            let counts = decide::counts(&node);
            let target = Target {
                node,
                generation,
                counts,
            };
            self.write(writing, async move |effects| {
                let outcome = effects.delete(&target).await;
                Written::Deletion(target, outcome)
            });
        }
        let mut told = Vec::new();
        for (node, reason) in decision.hold {
            if self.suspects.hold(&node.view.name, reason) {
                told.push((node, reason));
            }
        }
        let many = report::Many {
            gone: decision.gone,
            all: decision.all,
            share: whole.share,
        };
        self.reports.tell_held(&told, &many, &self.cloud.scope());
        if let Some(slot) = self.brake.next_slot() {
            // One of them may be under way, and its end says when the next may go.
            self.next_in_line(slot.max(Instant::now() + self.config.monitor_period));
        }
    }

    /// Asks about a few of those that go one at a time when it is their turn.
    fn next_in_line(&mut self, slot: Instant) {
        self.suspects.ask_some_held_by(Reason::Share, CANDIDATES, slot);
    }

    /// Runs a write beside everything else.
    fn write<F, Fut>(&self, writing: &mut JoinSet<Written>, work: F)
    where
        F: FnOnce(Arc<Effects>) -> Fut + Send + 'static,
        Fut: Future<Output = Written> + Send + 'static,
    {
        let (effects, writers) = (Arc::clone(&self.effects), Arc::clone(&self.writers));
        writing.spawn(async move {
            // Never closed.
            let _permit = writers.acquire().await;
            work(effects).await
        });
    }

    /// A write ended.
    fn written(&mut self, written: Written) {
        let now = Instant::now();
        let soon = now + self.config.monitor_period;
        match written {
            Written::Recovered(name, outcome) => {
                self.count_taint(outcome);
                if outcome == Tainted::Failed {
                    self.recovered.done_with_backoff(&name);
                } else {
                    self.recovered.done(&name);
                }
            }
            Written::Tainted { name, uid, outcome } => {
                self.count_taint(outcome);
                if outcome == Tainted::Failed {
                    self.suspects.again_at(&name, &uid, soon);
                }
            }
            Written::Deletion(target, outcome) => {
                self.metrics.deletion(outcome.as_str());
                self.forbidden = match (outcome, self.forbidden) {
                    // Those that were tried at the same time are one try.
                    (Deletion::Forbidden, Some((tries, due))) if now < due => Some((tries, due)),
                    (Deletion::Forbidden, before) => {
                        let tries = before.map_or(1, |(tries, _)| tries.saturating_add(1));
                        Some((tries, now + NO_RIGHT.delay(tries)))
                    }
                    (Deletion::Deleted, _) => None,
                    (_, before) => before,
                };
                let view = &target.node.view;
                let again = match outcome {
                    // The watch will say so; until then there is nothing to ask.
                    Deletion::Deleted | Deletion::Gone => now + decide::SLOWLY,
                    Deletion::Young(missing) => now + missing,
                    Deletion::Forbidden => self.forbidden.map_or(soon, |(_, due)| due),
                    Deletion::Failed { .. } => now + self.config.monitor_period.max(decide::SLOWLY / 2),
                    Deletion::Changed | Deletion::Kept | Deletion::NotBegun => soon,
                };
                self.suspects.again_at(&view.name, &view.uid, again);
                if target.counts {
                    self.brake.ended(outcome.is_done(), now);
                    let slot = if outcome.is_done() {
                        self.brake.next_slot().unwrap_or(soon)
                    } else {
                        soon
                    };
                    self.next_in_line(slot);
                }
                self.show();
            }
        }
    }

    fn count_taint(&self, outcome: Tainted) {
        match outcome {
            Tainted::Added => self.metrics.tainted("added"),
            Tainted::Removed => self.metrics.tainted("removed"),
            Tainted::Failed => self.metrics.tainted("failed"),
            Tainted::Unchanged => {}
        }
    }

    /// What was said under other credentials does not count.
    fn compare_credentials(&mut self) {
        let generation = self.cloud.generation();
        if generation != self.generation {
            self.generation = generation;
            if self.suspects.len() > 0 {
                debug!(
                    controller = COMPONENT,
                    nodes = self.suspects.len(),
                    "The credentials changed, asking about all nodes that are not ready anew"
                );
            }
            self.suspects.start_over(Instant::now());
            self.show();
        }
    }

    /// Shows how things stand, and says so when it has changed.
    fn show(&mut self) {
        self.metrics.show(&self.suspects);
        if !self
            .suspects
            .iter()
            .any(|suspect| suspect.answer == Some(Answer::Failed))
        {
            self.reports.nobody_fails();
        }
        for reason in Reason::ALL {
            let held = self
                .suspects
                .iter()
                .filter(|suspect| suspect.held == Some(reason));
            let held = held.count();
            self.metrics.set_held(reason, held);
            self.reports.held(reason, held, || self.cloud.scope());
        }
    }
}

/// Whether the node is ready and still bears the shutdown taint.
fn is_recovered(node: &NodeObject) -> bool {
    let (key, effect) = SHUTDOWN_TAINT;
    node.ready == Ready::True && node.meta.deletion_timestamp.is_none() && node.has_exact_taint(key, effect)
}

/// Whether the node's machine is switched off and the node lacks the shutdown taint.
fn needs_shutdown_taint(suspect: &Suspect) -> bool {
    let (key, effect) = SHUTDOWN_TAINT;
    suspect.answer == Some(Answer::Off) && !suspect.node.has_exact_taint(key, effect)
}

/// What the brake needs to know beside the nodes that are proven gone.
fn whole(
    suspects: &Suspects,
    nodes: &[Arc<NodeObject>],
    cloud: &dyn Cloud,
    present: bool,
    share: f64,
) -> Whole {
    let owned = |node: &NodeObject| {
        let id = node.view.provider_id.as_deref();
        id.is_some_and(|id| cloud.owns(id))
    };
    let (mut all, mut gone) = (nodes.iter().filter(|node| owned(node)).count(), 0);
    for suspect in suspects.iter() {
        let seems_gone = matches!(suspect.answer, Some(Answer::Absent | Answer::Unresolved));
        if seems_gone && decide::counts(&suspect.node) {
            gone += 1;
            all += usize::from(!owned(&suspect.node));
        }
    }
    Whole {
        present,
        all,
        gone,
        share,
    }
}

#[cfg(test)]
mod tests;
