//! The cloud node controller: initializes each node that its kubelet registered, and keeps its addresses and labels up to
//! date with the cloud.
//!
//! ```text
//! informer --> queue --> batcher --> describe (hundreds of nodes) --> two patches per node
//!                          timer --> describe (all nodes)         --> patches for differences only
//! ```
//!
//! [`desired`] decides on changes, pure; a [`NodeWriter`] applies them. Behavior follows upstream's controller except where
//! that is unsafe or slow: addresses are written before the taint is removed, nothing is PUT, labels that the cloud owns are
//! refreshed, and the cloud is asked in batches.

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
        Backoff, Change, ControllerContext, ControllerDef, Informer, NodeObject, Recorder, WorkQueue,
    },
};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

pub(crate) use self::plan::{has_uninitialized, plan};
use self::{describe::Question, metrics::NodeMetrics};
use crate::{
    config::NodeConfig,
    controllers::{
        Framework, finished,
        node_object::{STORE_LAG, UNINITIALIZED_TAINT},
        node_writer::NodeWriter,
    },
    logging::FailingByKind,
    metrics::count,
};

/// The canonical name, and the source of this controller's events.
pub(crate) const COMPONENT: &str = "cloud-node-controller";

pub(crate) const DEF: ControllerDef = ControllerDef {
    name: COMPONENT,
    aliases: &["cloud-node"],
    migration_name: None,
    client_name: super::NODE_CLIENT,
    default_on: true,
    needs: super::needs_instances,
    start: |context| {
        let framework = context.setup.framework_as::<Framework>()?;
        Ok(Box::pin(NodeController::new(context, &framework).run()))
    },
};

/// Waits between tries of one node: a machine without addresses or an eventually consistent cloud needs seconds, and
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
    finished: Mutex<HashMap<String, (String, Instant)>>,
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
            finished: Mutex::default(),
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
                Some(ended) = tasks.join_next() => finished(ended),
            }
        }
        debug!(controller = COMPONENT, "Controller finishes what it has begun");
        while tasks.join_next().await.is_some() {}
    }

    /// Queues a node if there is something to do for it, so that heartbeats of finished nodes cost nothing.
    fn observe(&self, change: Change) {
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
        self.finished.lock().remove(&name);
        self.forget(&name);
        match node {
            // A new node of this name does not wait for the next try of the old one.
            None => self.queue.add(name),
            Some(node) if desired::reconciled_labels(&node.view.labels).is_empty() => {}
            Some(_) => self.queue.add_unless_waiting(name),
        }
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

    /// Whether the node is initialized although the store does not show it yet.
    fn is_finished(&self, node: &NodeObject) -> bool {
        let finished = self.finished.lock();
        let recent = |(uid, at): &(String, Instant)| *uid == node.view.uid && at.elapsed() < STORE_LAG;
        node.has_taint(UNINITIALIZED_TAINT) && finished.get(&node.view.name).is_some_and(recent)
    }

    fn show_waiting(&self) {
        self.metrics.waiting.set(count(self.attempts.lock().len()));
    }

    /// Works on one node until it is finished or has to wait.
    async fn sync(&self, name: String) {
        let Some(node) = self.nodes.get(&name) else {
            self.forget(&name);
            return self.queue.done(&name);
        };
        let result = if self.is_finished(&node) {
            // The next try checks whether the taint was set again.
            Err(initialize::Retry)
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
            Err(initialize::Retry) => {
                self.queue.done_with_backoff(&name);
            }
        }
    }
}
