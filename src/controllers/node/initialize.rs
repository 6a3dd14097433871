//! Initialises one node: describe, decide, two patches.

use std::sync::Arc;

use ccm_core::{
    InstanceState, NodeView,
    controllers::{EventType, NodeObject},
};
use kube::api::PatchParams;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{
    COMPONENT, Finished, NodeController,
    desired::{self, Problem},
    patch,
};
use crate::controllers::{
    node_action::{Initialization, NodeAction},
    node_object::{PATCH_TRIES, UNINITIALIZED_TAINT, is_gone, is_refused},
};

/// How many answers without addresses are normal for a machine that was just made.
const PATIENCE: u32 = 3;

/// The node has to be tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry;

/// What is remembered of a node between tries.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// The node as it was asked about.
    view: Arc<NodeView>,
    provided_node_ip: Option<String>,
    /// When it failed last.
    answered: Instant,
    /// Why it failed last.
    pub(crate) reason: Option<&'static str>,
}

impl Attempt {
    /// Whether the node has changed in what decides about its initialisation.
    pub(crate) fn is_outdated(&self, node: &NodeObject) -> bool {
        self.view.uid != node.view.uid
            || self.view.provider_id != node.view.provider_id
            || self.provided_node_ip != node.provided_node_ip
    }
}

/// What became of the patches.
enum Written {
    Done,
    /// Somebody else finished or deleted the node.
    Moot,
}

impl NodeController {
    pub(crate) async fn initialize(
        &self,
        node: &NodeObject,
        shutdown: &CancellationToken,
    ) -> Result<(), Retry> {
        let name = &node.view.name;
        match desired::is_asked_about(node, &*self.cloud) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(problem) => {
                // Tried again like every other problem, which costs nothing: the cloud is not asked.
                self.fail(node, &problem);
                return Err(Retry);
            }
        }
        // An earlier answer did not help: only something newer can.
        let newer_than = self
            .attempts
            .lock()
            .get(name)
            .filter(|attempt| !attempt.is_outdated(node))
            .map(|attempt| attempt.answered);
        let state = tokio::select! {
            state = self.describer.describe(Arc::clone(&node.view), newer_than) => state,
            () = shutdown.cancelled() => return Err(Retry),
        };
        match self.initialize_as(node, state, shutdown).await {
            Ok(Written::Moot) => Ok(()),
            Ok(Written::Done) => {
                let finished = Finished {
                    uid: node.view.uid.clone(),
                    at: Instant::now(),
                };
                self.finished.lock().insert(name.clone(), finished);
                self.metrics.initialized("success");
                if let Some(age) = node.age_seconds() {
                    self.metrics.taint_removal_delay.observe(age);
                    self.metrics.initial_sync_delay.observe(age);
                }
                self.recorder.publish(
                    node.reference(),
                    EventType::Normal,
                    "Synced",
                    "Node synced successfully",
                );
                Ok(())
            }
            Err(problem) => {
                self.fail(node, &problem);
                Err(Retry)
            }
        }
    }

    async fn initialize_as(
        &self,
        node: &NodeObject,
        state: ccm_core::Result<InstanceState>,
        shutdown: &CancellationToken,
    ) -> Result<Written, Problem> {
        let Some(wanted) = desired::initialize(node, &state.map_err(Problem::Describe)?)? else {
            return Ok(Written::Moot);
        };
        let _permit = self.writers.acquire().await;
        if shutdown.is_cancelled() {
            return Ok(Written::Moot);
        }
        self.write(node, &wanted)
            .await
            .map_err(|error| Problem::Write(ccm_core::error::report(&error)))
    }

    /// The two patches. Each can be lost and repeated: the taint goes last.
    async fn write(&self, node: &NodeObject, wanted: &Initialization) -> kube::Result<Written> {
        let name = node.view.name.as_str();
        let uid = node.view.uid.as_str();
        let params = PatchParams::default();
        let mut current = node.clone();
        if let Some(addresses) = &wanted.addresses {
            let patch = patch::addresses(uid, addresses);
            match self.api.patch_status(name, &params, &patch).await {
                Ok(patched) => current = patched,
                Err(error) if is_gone(&error) => return Ok(Written::Moot),
                // The uid does not fit if the node was made anew under its name.
                Err(error) if is_refused(&error) => match self.api.get_opt(name).await? {
                    Some(read) if read.view.uid == uid => return Err(error),
                    _ => return Ok(Written::Moot),
                },
                Err(error) => return Err(error),
            }
        }
        let mut tries = 0;
        loop {
            if current.view.uid != uid || !current.has_taint(UNINITIALIZED_TAINT) {
                debug!(node = name, "Node was replaced or initialized by somebody else");
                return Ok(Written::Moot);
            }
            tries += 1;
            let mut wanted = wanted.clone();
            if current.view.provider_id.is_some() {
                wanted.provider_id = None;
            }
            match self
                .api
                .patch(name, &params, &patch::initialize(&current, &wanted))
                .await
            {
                Ok(_) => {
                    let provider_id = wanted
                        .provider_id
                        .or(current.view.provider_id.clone())
                        .unwrap_or_default();
                    info!(
                        controller = COMPONENT,
                        node = name,
                        provider_id,
                        "Initialized node"
                    );
                    return Ok(Written::Done);
                }
                Err(error) if is_gone(&error) => return Ok(Written::Moot),
                // A test of the patch failed: the node is not as it was.
                Err(error) if is_refused(&error) && tries < PATCH_TRIES => {
                    debug!(node = name, tries, %error, "Node changed meanwhile, reading it again");
                    match self.api.get_opt(name).await? {
                        Some(read) => current = read,
                        None => return Ok(Written::Moot),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Brings the stable labels of an initialised node in line with their beta twins.
    pub(crate) async fn reconcile_labels(&self, node: &NodeObject) -> Result<(), Retry> {
        let name = node.view.name.as_str();
        let labels = desired::reconciled_labels(&node.view.labels);
        let Some(action) = NodeAction::set_labels(node, labels.clone()) else {
            return Ok(());
        };
        let _permit = self.writers.acquire().await;
        match self.apply(node, &action).await {
            Ok(()) => {
                info!(controller = COMPONENT, node = name, labels = ?labels.keys(), "Reconciled labels");
                Ok(())
            }
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => {
                debug!(
                    node = name,
                    error = ccm_core::error::report(&error),
                    "Could not reconcile labels"
                );
                Err(Retry)
            }
        }
    }

    /// Applies a change of an initialized node.
    pub(super) async fn apply(&self, node: &NodeObject, action: &NodeAction) -> kube::Result<()> {
        let (name, uid) = (node.view.name.as_str(), node.view.uid.as_str());
        let params = PatchParams::default();
        match action {
            NodeAction::SetAddresses { addresses, .. } => {
                let patch = patch::addresses(uid, addresses);
                self.api.patch_status(name, &params, &patch).await.map(drop)
            }
            NodeAction::SetLabels { labels, .. } => {
                let patch = patch::labels(uid, labels);
                self.api.patch(name, &params, &patch).await.map(drop)
            }
            NodeAction::Initialize(wanted) => self.write(node, wanted).await.map(drop),
            // Actions of other controllers.
            NodeAction::SetShutdownTaint(_) | NodeAction::SetNetworkAvailable(_) | NodeAction::Delete(_) => {
                Ok(())
            }
        }
    }

    fn fail(&self, node: &NodeObject, problem: &Problem) {
        let name = &node.view.name;
        self.metrics.initialized(problem.reason());
        let previous = self.attempts.lock().get(name).and_then(|attempt| attempt.reason);
        let expected = matches!(problem, Problem::NoAddresses) && self.queue.failures(name) < PATIENCE;
        let reason = if expected {
            previous
        } else {
            Some(problem.reason())
        };
        if expected {
            debug!(
                controller = COMPONENT,
                node = name,
                "Instance has no addresses yet"
            );
        } else {
            self.reports.failed(name, problem);
            if previous != reason {
                let (reason, message) = (problem.reason(), problem.message(name));
                self.recorder
                    .publish(node.reference(), EventType::Warning, reason, &message);
            }
        }
        self.attempts.lock().insert(
            name.clone(),
            Attempt {
                view: Arc::clone(&node.view),
                provided_node_ip: node.provided_node_ip.clone(),
                answered: Instant::now(),
                reason,
            },
        );
        self.metrics.waiting.set(self.waiting());
    }
}
