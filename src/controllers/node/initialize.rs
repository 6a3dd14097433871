//! Initializes one node: describe, decide, apply.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    InstanceState, NodeView,
    controllers::{EventType, NodeObject, node::Ready},
    error::report,
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    COMPONENT, NodeController, Question,
    desired::{self, NodeProblem},
};
use crate::{
    controllers::{node_action::NodeAction, node_writer::Written},
    logging::warn_if_new,
    metrics::increment,
};

/// The number of answers without addresses that are usual for a new instance.
const EMPTY_ANSWERS: u32 = 3;

/// How long a node waits for the second answer while a setting leaves out every address of its instance. Another network may be
/// attached to a new instance in this time.
const LEFT_OUT_PAUSE: Duration = Duration::from_secs(30);

/// The node has to be tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeRetry {
    /// After a growing wait.
    Backoff,
    /// At this time.
    At(Instant),
}

/// The last attempt to initialize a node.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// The node at that time.
    view: Arc<NodeView>,
    provided_node_ip: Option<String>,
    /// When it failed last.
    answered: Instant,
    /// The first of the last answers in which a setting left out every address, until another answer or failure.
    left_out_since: Option<Instant>,
    /// Why it failed last.
    pub(crate) reason: Option<&'static str>,
    /// No instance has the node's name, although its kubelet reports.
    pub(crate) is_alive_without_instance: bool,
    /// Whether its Warning named instances with similar names.
    names_reported: bool,
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
    pub(crate) async fn initialize(&self, node: &NodeObject) -> Result<(), NodeRetry> {
        // A node with another cloud's provider ID is tried again, too. That costs nothing, since the cloud is not asked.
        self.try_initialize(node).await.map_err(|problem| {
            let attempt = self.fail(node, &problem);
            match attempt.left_out_since {
                Some(since) => NodeRetry::At(since + LEFT_OUT_PAUSE),
                None => NodeRetry::Backoff,
            }
        })
    }

    /// Initializes the node, unless the cloud's rules leave it alone or the process ends.
    async fn try_initialize(&self, node: &NodeObject) -> Result<(), NodeProblem> {
        let name = &node.view.name;
        if !desired::is_asked_about(node, &*self.cloud)? {
            return Ok(());
        }
        // An earlier answer did not help: only a newer one can.
        let last = self.last_attempt(node);
        let question = Question {
            node: Arc::clone(&node.view),
            newer_than: last.as_ref().map(|last| last.answered),
        };
        let state = self.describer.submit(question);
        let Some(state) = self.shutdown.run_until_cancelled(state).await else {
            return Ok(());
        };
        let state = state.map_err(|error| NodeProblem::retried(error.kind().as_str(), error.report()))?;
        let Some(desired) = desired::initialize(node, &state)? else {
            return Ok(());
        };
        let address_filter = match &state {
            InstanceState::Present(instance) if instance.addresses.is_empty() => {
                instance.address_filter.as_ref()
            }
            _ => None,
        };
        if let Some(filter) = address_filter {
            let since = last.and_then(|last| last.left_out_since);
            if since.is_none_or(|since| since.elapsed() < LEFT_OUT_PAUSE) {
                let why = format!("{filter} leaves out every address of its instance");
                return Err(NodeProblem::retried(desired::ADDRESSES_LEFT_OUT, why));
            }
        }
        let provider_id = desired.provider_id.clone().or(node.view.provider_id.clone());
        let _permit = self.writers.acquire().await;
        if self.shutdown.is_cancelled() {
            return Ok(());
        }
        let written = self
            .writer
            .apply(node, &NodeAction::Initialize(desired))
            .await
            .map_err(|error| NodeProblem::retried("WriteFailed", report(&error)))?;
        if written != Written::Done {
            debug!(node = name, "Another writer initialized, replaced or deleted the node");
            return Ok(());
        }
        info!(controller = COMPONENT, node = name, provider_id, "Initialized node");
        if let Some(filter) = address_filter {
            warn!(controller = COMPONENT, node = name, filter, "Initialized node without addresses");
            let message = format!(
                "Node initialized without addresses: {filter} leaves out every address of its instance; correct it in the \
                 cloud config"
            );
            let kind = EventType::Warning;
            self.recorder.publish(node.reference(), kind, desired::ADDRESSES_LEFT_OUT, &message);
        }
        let written = (node.view.uid.clone(), Instant::now());
        self.initialized.lock().insert(name.clone(), written);
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
    pub(crate) async fn reconcile_labels(&self, node: &NodeObject) -> Result<(), NodeRetry> {
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
                Err(NodeRetry::Backoff)
            }
        }
    }

    /// The last attempt to initialize the node as it is now.
    fn last_attempt(&self, node: &NodeObject) -> Option<Attempt> {
        let attempts = self.attempts.lock();
        let last = attempts.get(&node.view.name)?;
        (!last.is_outdated(node)).then(|| last.clone())
    }

    /// Reports the problem, and stores the attempt for the next one.
    fn fail(&self, node: &NodeObject, problem: &NodeProblem) -> Attempt {
        let name = &node.view.name;
        let NodeProblem { reason, message } = problem;
        increment(&self.metrics.initializations, "result", reason);
        let previous = self.attempts.lock().get(name).cloned();
        let mut names_reported = previous.as_ref().is_some_and(|previous| previous.names_reported);
        let previous_reason = previous.and_then(|previous| previous.reason);
        let is_unknown_name = problem.is_unknown_name(&node.view);
        let is_left_out = *reason == desired::ADDRESSES_LEFT_OUT;
        let is_new = *reason == desired::NO_ADDRESSES && self.queue.failures(name) < EMPTY_ANSWERS;
        let expected = is_left_out || is_new;
        if expected {
            debug!(controller = COMPONENT, node = name, message, "Instance has no addresses yet");
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
            // The names may become known with a later listing.
            let similar = if is_unknown_name && !names_reported {
                desired::similar_names(&node.view, &*self.cloud, |name| self.nodes.get(name).is_some())
            } else {
                Vec::new()
            };
            if previous_reason != Some(reason) || !similar.is_empty() {
                let message = format!("{message}{}", desired::similar_names_text(&similar));
                self.recorder.publish(node.reference(), EventType::Warning, reason, &message);
            }
            names_reported |= !similar.is_empty();
        }
        let answered = Instant::now();
        let left_out_before = self.last_attempt(node).and_then(|last| last.left_out_since);
        let attempt = Attempt {
            view: Arc::clone(&node.view),
            provided_node_ip: node.provided_node_ip.clone(),
            answered,
            left_out_since: is_left_out.then(|| left_out_before.unwrap_or(answered)),
            reason: if expected { previous_reason } else { Some(*reason) },
            is_alive_without_instance: is_unknown_name && node.ready != Ready::Unknown,
            names_reported,
        };
        self.attempts.lock().insert(name.clone(), attempt.clone());
        self.show_waiting();
        attempt
    }
}

/// Logs that no node fails for this reason any more.
pub(super) fn log_end(kind: Option<&'static str>) {
    if let Some(kind) = kind {
        info!(controller = COMPONENT, kind, "No node fails for this reason any more");
    }
}

#[cfg(test)]
mod tests;
