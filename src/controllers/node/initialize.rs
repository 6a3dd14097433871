//! Initializes one node: describe, decide, apply.

use std::sync::Arc;

use ccm_core::{
    NodeView,
    controllers::{EventType, NodeObject},
    error::report,
};
use tokio::time::Instant;
use tracing::{debug, info};

use super::{
    COMPONENT, NodeController, Question,
    desired::{self, Problem},
};
use crate::{
    controllers::{node_action::NodeAction, node_writer::Written},
    logging::warn_if_new,
    metrics::increment,
};

/// The number of answers without addresses that are usual for a new machine.
const EMPTY_ANSWERS: u32 = 3;

/// The node has to be tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry;

/// The last attempt to initialize a node.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// The node at that time.
    view: Arc<NodeView>,
    provided_node_ip: Option<String>,
    /// When it failed last.
    answered: Instant,
    /// Why it failed last.
    pub(crate) reason: Option<&'static str>,
}

impl Attempt {
    /// Whether a field of the node has changed that decides about its initialization.
    pub(crate) fn is_outdated(&self, node: &NodeObject) -> bool {
        self.view.uid != node.view.uid
            || self.view.provider_id != node.view.provider_id
            || self.provided_node_ip != node.provided_node_ip
    }
}

impl NodeController {
    pub(crate) async fn initialize(&self, node: &NodeObject) -> Result<(), Retry> {
        // A node with another cloud's provider ID is tried again, too. That costs nothing, since the cloud is not asked.
        self.try_initialize(node).await.map_err(|problem| {
            self.fail(node, &problem);
            Retry
        })
    }

    /// Initializes the node, unless the cloud's rules leave it alone or the process ends.
    async fn try_initialize(&self, node: &NodeObject) -> Result<(), Problem> {
        let name = &node.view.name;
        if !desired::is_asked_about(node, &*self.cloud)? {
            return Ok(());
        }
        // An earlier answer did not help: only a newer one can.
        let last = |attempt: &&Attempt| !attempt.is_outdated(node);
        let newer_than = self.attempts.lock().get(name).filter(last).map(|last| last.answered);
        let question = Question {
            node: Arc::clone(&node.view),
            newer_than,
        };
        let state = self.describer.submit(question);
        let Some(state) = self.shutdown.run_until_cancelled(state).await else {
            return Ok(());
        };
        let state = state.map_err(|error| Problem::retried(error.kind().as_str(), error.report()))?;
        let Some(desired) = desired::initialize(node, &state)? else {
            return Ok(());
        };
        let provider_id = desired.provider_id.clone().or(node.view.provider_id.clone());
        let _permit = self.writers.acquire().await;
        if self.shutdown.is_cancelled() {
            return Ok(());
        }
        let written = self.writer.apply(node, &NodeAction::Initialize(desired)).await;
        let written = written.map_err(|error| Problem::retried("WriteFailed", report(&error)))?;
        if written != Written::Done {
            debug!(node = name, "Another writer initialized, replaced or deleted the node");
            return Ok(());
        }
        info!(controller = COMPONENT, node = name, provider_id, "Initialized node");
        let finished = (node.view.uid.clone(), Instant::now());
        self.finished.lock().insert(name.clone(), finished);
        increment(&self.metrics.initializations, "result", "success");
        if let Some(age) = node.age_seconds() {
            self.metrics.taint_removal_delay.observe(age);
            self.metrics.initial_sync_delay.observe(age);
        }
        self.recorder
            .publish(node.reference(), EventType::Normal, "Synced", "Node synced successfully");
        Ok(())
    }

    /// Sets the stable labels of an initialized node to the values of their beta twins.
    pub(crate) async fn reconcile_labels(&self, node: &NodeObject) -> Result<(), Retry> {
        let name = node.view.name.as_str();
        let labels = desired::reconciled_labels(&node.view.labels);
        let Some(action) = NodeAction::set_labels(node, labels.clone()) else {
            return Ok(());
        };
        let _permit = self.writers.acquire().await;
        match self.writer.apply(node, &action).await {
            Ok(Written::Done) => {
                info!(controller = COMPONENT, node = name, labels = ?labels.keys(), "Reconciled labels");
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => {
                debug!(node = name, error = report(&error), "Could not reconcile labels");
                Err(Retry)
            }
        }
    }

    fn fail(&self, node: &NodeObject, problem: &Problem) {
        let name = &node.view.name;
        let Problem { reason, message } = problem;
        increment(&self.metrics.initializations, "result", reason);
        let previous = self.attempts.lock().get(name).and_then(|attempt| attempt.reason);
        let expected = *reason == desired::NO_ADDRESSES && self.queue.failures(name) < EMPTY_ANSWERS;
        if expected {
            debug!(controller = COMPONENT, node = name, "Instance has no addresses yet");
        } else {
            let (is_first, ended) = self.failing.failed(name, reason);
            warn_if_new!(
                is_first,
                controller = COMPONENT,
                node = name,
                kind = reason,
                error = message,
                "Could not initialize node"
            );
            log_end(ended);
            if previous != Some(reason) {
                self.recorder.publish(node.reference(), EventType::Warning, reason, message);
            }
        }
        let reason = if expected { previous } else { Some(*reason) };
        self.attempts.lock().insert(
            name.clone(),
            Attempt {
                view: Arc::clone(&node.view),
                provided_node_ip: node.provided_node_ip.clone(),
                answered: Instant::now(),
                reason,
            },
        );
        self.show_waiting();
    }
}

/// Logs that no node fails for this reason any more.
pub(super) fn log_end(kind: Option<&'static str>) {
    if let Some(kind) = kind {
        info!(controller = COMPONENT, kind, "No node fails for this reason any more");
    }
}
