//! The cloud node controller: initializes each node that its kubelet registered, and keeps its addresses and labels up to
//! date with the cloud.
//!
//! # Expected flow
//!
//! A Node that joins:
//!
//! 1. The watch brings it, with the taint of an uninitialized node. [`observe`](NodeController::observe) queues it.
//! 2. [`sync`](NodeController::sync) takes it from the queue, and [`initialize`] asks about its instance. A batcher collects the
//!    questions of all nodes that join at the same moment into one question to the cloud ([`describe`]).
//! 3. [`desired`] decides about addresses, labels and provider ID, without a call.
//! 4. [`NodeWriter`] sends two patches: first the addresses; then labels, provider ID and the removal of the taint, all or
//!    nothing.
//! 5. The Event `Synced`. The watch brings our own write; nothing is due for it.
//!
//! An initialized Node:
//!
//! 1. A timer asks about all of them in one question ([`refresh`]), or the watch shows a stable label that differs from its beta
//!    twin.
//! 2. The same decisions, and a patch for each node that differs.
//!
//! # Guarantees
//!
//! - Pods are scheduled only to nodes with addresses: the taint is removed by the second patch, and the first one can be lost and
//!   repeated.
//! - A patch that sets taints is refused if others changed them meanwhile, and every patch is refused for another node of the same
//!   name. Nothing is PUT.
//! - A node that fails delays no other. It has one Warning for each kind of failure, and its own retry.
//! - An error never deletes anything: this controller does not delete nodes.
//!
//! # Caveats
//!
//! - The store shows the taint for a moment after it was removed. A node that was initialized a moment ago is not asked about
//!   again.
//! - An answer that did not help is not used again: the next question asks for a newer one.
//! - Zone and region of an initialized node change only with `--refresh-topology-labels`.
//!
//! Behavior follows upstream's controller except where that is unsafe or slow: addresses are written before the taint is removed,
//! labels that the cloud owns are refreshed, and the cloud is asked in batches.

mod describe;
mod desired;
mod initialize;
mod metrics;
mod plan;
mod refresh;

use std::{collections::HashMap, sync::Arc};

use ccm_core::{
    Cloud, InstanceState,
    client::Batcher,
    controllers::{
        Backoff, ControllerContext, ControllerNames, Informer, NodeObject, Recorder, StoreChange, WorkQueue,
    },
};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

#[cfg(test)]
pub(crate) use self::metrics::record_metrics;
pub(crate) use self::plan::{has_uninitialized, plan};
use self::{describe::Question, metrics::NodeMetrics};
use crate::{
    config::NodeConfig,
    controllers::{
        Framework, FrameworkController,
        node_object::{STORE_LAG, UNINITIALIZED_TAINT},
        node_writer::NodeWriter,
        task_result,
    },
    logging::FailingByKind,
    metrics::count,
};

/// The canonical name, and the source of this controller's events.
pub(crate) const COMPONENT: &str = "cloud-node-controller";

pub(crate) const CONTROLLER: FrameworkController = FrameworkController {
    names: ControllerNames {
        name: COMPONENT,
        aliases: &["cloud-node"],
        migration_name: None,
        client_name: super::NODE_CLIENT,
    },
    needs: super::needs_instances,
    start: |context, framework| Box::pin(NodeController::new(context, framework).run()),
};

/// Waits between tries of one node: an instance without addresses or an eventually consistent cloud needs seconds, and
/// a node that never resolves should cost little.
const BACKOFF: Backoff = Backoff::seconds(1, 120);

/// How many nodes are described, wait for a writer, or are written at the same time. Two full batches, so that one is
/// described while the other is written; more would only cost memory. At this limit, the next nodes are taken when a whole
/// batch has room, since small batches cost calls.
const MAX_TASKS: usize = 2 * describe::LARGEST;

/// The controller. [`NodeController::run`] runs it.
pub(crate) struct NodeController {
    writer: NodeWriter,
    nodes: Arc<Informer<NodeObject>>,
    cloud: Arc<dyn Cloud>,
    describer: Batcher<Question, InstanceState>,
    config: NodeConfig,
    queue: WorkQueue<String>,
    /// Bounds the nodes that are being patched.
    writers: Semaphore,
    /// The last attempts of nodes that are not initialized yet.
    attempts: Mutex<HashMap<String, initialize::Attempt>>,
    /// The uid of nodes that were initialized a moment ago, and when. The store shows their taint until the watch brings the
    /// result.
    initialized: Mutex<HashMap<String, (String, Instant)>>,
    /// Nodes that cannot be initialized. Each gets an event when the kind of failure changes. The log gets a line when the
    /// first node fails in some way, and one when none does any more.
    failing: FailingByKind,
    recorder: Recorder,
    metrics: NodeMetrics,
    shutdown: CancellationToken,
}

impl NodeController {
    pub(crate) fn new(context: ControllerContext, framework: &Framework) -> Arc<Self> {
        let config = framework.config.node.clone();
        let cloud = context.setup.cloud;
        Arc::new(Self {
            writer: NodeWriter::new(context.client),
            nodes: context.nodes,
            describer: describe::batcher(Arc::clone(&cloud), &context.cloud_metrics),
            cloud,
            queue: WorkQueue::new(BACKOFF, "Nodes", context.metrics.queues()),
            writers: Semaphore::new(config.concurrent_syncs.get()),
            config,
            attempts: Mutex::default(),
            initialized: Mutex::default(),
            failing: FailingByKind::default(),
            recorder: context.recorder,
            metrics: context.metrics.with(NodeMetrics::register),
            shutdown: context.shutdown,
        })
    }

    /// Runs until shutdown; then finishes the nodes that are being written, and returns.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut changes = self.nodes.subscribe();
        tokio::select! {
            () = self.nodes.synced() => {}
            () = self.shutdown.cancelled() => return,
        }
        info!(controller = COMPONENT, nodes = self.nodes.list().len(), "Controller started");
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&self).refresh_forever());
        let mut full = false;
        loop {
            full = if full {
                tasks.len() > MAX_TASKS - describe::LARGEST
            } else {
                tasks.len() >= MAX_TASKS
            };
            tokio::select! {
                () = self.shutdown.cancelled() => break,
                Some(change) = changes.recv() => self.observe(change),
                name = self.queue.next(), if !full => {
                    let controller = Arc::clone(&self);
                    tasks.spawn(async move { controller.sync(name).await });
                }
                Some(ended) = tasks.join_next() => task_result(ended),
            }
        }
        debug!(controller = COMPONENT, "Controller finishes what it has begun");
        while tasks.join_next().await.is_some() {}
    }

    /// Queues a node if there is something to do for it, so that heartbeats of finished nodes cost nothing.
    fn observe(&self, change: StoreChange) {
        let name = change.into_key();
        let node = self.nodes.get(&name);
        if let Some(node) = node.as_ref().filter(|node| node.has_taint(UNINITIALIZED_TAINT)) {
            // A failing node waits for its next try, unless the fields that decide about it have changed.
            let attempts = self.attempts.lock();
            match attempts.get(&name) {
                Some(attempt) if attempt.is_outdated(node) => self.queue.add(name),
                _ => self.queue.add_unless_waiting(name),
            }
            return;
        }
        self.initialized.lock().remove(&name);
        self.forget(&name);
        match node {
            // A new node of this name does not wait for the next try of the old one.
            None => self.queue.add(name),
            Some(node) if desired::reconciled_labels(&node.view.labels).is_empty() => {}
            Some(_) => self.queue.add_unless_waiting(name),
        }
    }

    /// Works on one node until it is finished or has to wait.
    async fn sync(&self, name: String) {
        let Some(node) = self.nodes.get(&name) else {
            self.forget(&name);
            return self.queue.done(&name);
        };
        let result = if self.was_just_initialized(&node) {
            // The next try checks whether the taint was set again.
            Err(initialize::NodeRetry::Backoff)
        } else if node.has_taint(UNINITIALIZED_TAINT) {
            self.initialize(&node).await
        } else {
            Box::pin(self.reconcile_labels(&node)).await
        };
        if self.shutdown.is_cancelled() {
            return;
        }
        match result {
            Ok(()) => {
                self.forget(&name);
                self.queue.done(&name);
            }
            Err(initialize::NodeRetry::Backoff) => {
                self.queue.done_with_backoff(&name);
            }
            Err(initialize::NodeRetry::At(due)) => self.queue.done_until(&name, due),
        }
    }

    /// Whether the node is initialized although the store does not show it yet.
    fn was_just_initialized(&self, node: &NodeObject) -> bool {
        let initialized = self.initialized.lock();
        let Some((uid, at)) = initialized.get(&node.view.name) else {
            return false;
        };
        node.has_taint(UNINITIALIZED_TAINT) && *uid == node.view.uid && at.elapsed() < STORE_LAG
    }

    /// Forgets the failures of a node that is initialized or deleted.
    fn forget(&self, name: &str) {
        let Some(attempt) = self.attempts.lock().remove(name) else {
            return;
        };
        if attempt.reason.is_some() {
            initialize::log_end(self.failing.works(name));
        }
        self.show_waiting();
    }

    fn show_waiting(&self) {
        let attempts = self.attempts.lock();
        self.metrics.waiting.set(count(attempts.len()));
        let alive = attempts.values().filter(|attempt| attempt.is_alive_without_instance);
        self.metrics.alive_without_instance.set(count(alive.count()));
    }
}
