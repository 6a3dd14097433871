//! Applies the actions of the lifecycle controller.
//!
//! A deletion reads the node from the API server, not from the store. Then it sends a request that the API server refuses if
//! the node has changed since.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    controllers::{EventType, NodeObject, Recorder},
    error::report,
};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::{
    Client, Resource,
    api::{GetParams, Request},
    client::Body,
    core::Status,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    COMPONENT,
    decide::{self, Refusal},
};
use crate::{
    controllers::{
        node_action::NodeAction,
        node_writer::{NodeWriter, Written},
    },
    logging::{Failing, warn_if_new},
};

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeOutcome {
    Done,
    /// Another client deleted the node.
    Missing,
    /// The node changed meanwhile.
    Changed,
    /// The node is not, or no longer, the one that was proven missing.
    Kept,
    /// The node is too young, by this much.
    Young(Duration),
    /// The API server did not do it; if the request was `sent`, that is not certain.
    Failed {
        sent: bool,
    },
    /// The account lacks the right to delete nodes.
    Forbidden,
    /// The process ends, or the credentials changed: not begun.
    NotBegun,
}

impl NodeOutcome {
    /// The metric label of a deletion.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "deleted",
            Self::Missing => "missing",
            Self::Changed => "changed",
            Self::Kept | Self::NotBegun => "unchanged",
            Self::Young(_) => "too_new",
            Self::Failed { .. } | Self::Forbidden => "failed",
        }
    }

    /// Whether a node that was to be deleted is deleted, or may be.
    pub(super) fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Failed { sent: true })
    }
}

/// Applies actions.
pub(super) struct Applier {
    pub(super) client: Client,
    pub(super) writer: NodeWriter,
    pub(super) cloud: Arc<dyn Cloud>,
    pub(super) recorder: Recorder,
    pub(super) grace: Duration,
    pub(super) shutdown: CancellationToken,
    /// The actions that fail.
    pub(super) failing: Failing<&'static str>,
    /// Whether the account lacked the right to delete nodes when it last tried.
    pub(super) forbidden: Failing,
}

/// A node as it was just read.
struct Fresh {
    node: NodeObject,
    /// The API server's time.
    now: Timestamp,
}

impl Applier {
    /// Applies an action that was decided under the credentials of this `generation`. `failures`: of earlier deletions of the
    /// node.
    pub(super) async fn apply(
        &self,
        node: &NodeObject,
        action: &NodeAction,
        generation: u64,
        failures: &Failing<String>,
    ) -> NodeOutcome {
        if self.shutdown.is_cancelled() {
            return NodeOutcome::NotBegun;
        }
        if matches!(action, NodeAction::Delete(_)) {
            return self.delete(node, action, generation, failures).await;
        }
        let name = node.view.name.as_str();
        match self.writer.apply(node, action).await {
            Ok(Written::Done) => {
                self.failing.ends();
                match action {
                    NodeAction::SetShutdownTaint(true) => {
                        info!(controller = COMPONENT, node = name, "Added the shutdown taint");
                    }
                    _ => info!(controller = COMPONENT, node = name, "Removed the shutdown taint"),
                }
                NodeOutcome::Done
            }
            Ok(Written::Missing) => NodeOutcome::Missing,
            Ok(Written::Changed) => NodeOutcome::Changed,
            Err(error) => {
                warn_if_new!(
                    self.failing.begins("taint"),
                    controller = COMPONENT,
                    node = name,
                    error = report(&error),
                    "Could not change the shutdown taint, trying again"
                );
                NodeOutcome::Failed { sent: true }
            }
        }
    }

    /// Deletes the node if it is still the one that was proven missing. A deletion that was begun is finished.
    async fn delete(
        &self,
        decided: &NodeObject,
        action: &NodeAction,
        generation: u64,
        failures: &Failing<String>,
    ) -> NodeOutcome {
        let name = decided.view.name.as_str();
        let fresh = match self.read(name).await {
            Ok(Some(fresh)) => fresh,
            Ok(None) => return NodeOutcome::Missing,
            Err(error) => return self.failed(decided, &error, false, failures),
        };
        let read = &fresh.node;
        if let Err(refusal) = decide::check(decided, read, fresh.now, self.grace) {
            let (reason, outcome) = match refusal {
                Refusal::Changed(reason) => (reason, NodeOutcome::Kept),
                Refusal::Young(missing) => ("it is too young", NodeOutcome::Young(missing)),
            };
            debug!(controller = COMPONENT, node = name, reason, "Node is not deleted");
            return outcome;
        }
        if self.shutdown.is_cancelled() || self.cloud.generation() != generation {
            return NodeOutcome::NotBegun;
        }
        let announce = || {
            let message = format!("Deleting node {name} because it does not exist in the cloud provider");
            self.recorder.publish(read.reference(), EventType::Normal, "DeletingNode", &message);
        };
        // A try that will probably fail again gets no event each time.
        if !self.forbidden.is_ongoing() && !failures.is_ongoing() {
            announce();
        }
        match self.writer.apply(read, action).await {
            Ok(Written::Done) => {
                self.failing.ends();
                if self.forbidden.ends() | failures.ends() {
                    announce();
                }
                info!(
                    controller = COMPONENT,
                    node = name,
                    provider_id = read.view.provider_id,
                    "Deleted node, since its machine does not exist"
                );
                NodeOutcome::Done
            }
            Ok(Written::Missing) => NodeOutcome::Missing,
            Ok(Written::Changed) => {
                debug!(controller = COMPONENT, node = name, "Node changed meanwhile, reading it again");
                NodeOutcome::Changed
            }
            Err(error) if is_right_missing(&error) => self.forbidden(read, &error),
            Err(error) => {
                // An answer below 500, such as the denial of an admission policy, is certain.
                let sent = !matches!(&error, kube::Error::Api(status) if status.code < 500);
                self.failed(read, &error, sent, failures)
            }
        }
    }

    /// Reports once that the account may not delete nodes.
    fn forbidden(&self, node: &NodeObject, error: &kube::Error) -> NodeOutcome {
        let name = node.view.name.as_str();
        let error = report(error);
        if !self.forbidden.begins(()) {
            debug!(controller = COMPONENT, node = name, error, "Still not allowed to delete nodes");
            return NodeOutcome::Forbidden;
        }
        warn!(
            controller = COMPONENT,
            node = name,
            verb = "delete",
            resource = "nodes",
            error,
            "Not allowed to delete nodes; nodes whose machines do not exist stay until the ClusterRole grants it"
        );
        let why = format!(
            "add the verb \"delete\" for the resource \"nodes\" to the ClusterRole of the cloud-controller-manager \
             (chart 2.36.2 lacks it); until then nodes whose machines do not exist stay: {error}"
        );
        self.publish_failure(node, &why);
        NodeOutcome::Forbidden
    }

    fn failed(
        &self,
        node: &NodeObject,
        error: &kube::Error,
        sent: bool,
        failures: &Failing<String>,
    ) -> NodeOutcome {
        let error = report(error);
        warn_if_new!(
            self.failing.begins("delete"),
            controller = COMPONENT,
            node = node.view.name,
            error = error.as_str(),
            "Could not delete node, trying again"
        );
        if failures.begins(error.clone()) {
            self.publish_failure(node, &error);
        }
        NodeOutcome::Failed { sent }
    }

    fn publish_failure(&self, node: &NodeObject, why: &str) {
        let message = format!("Failed deleting node {}: {why}", node.view.name);
        self.recorder
            .publish(node.reference(), EventType::Warning, "DeletingNodeFailed", &message);
    }

    /// Reads the node from the API server, together with the server's time.
    async fn read(&self, name: &str) -> kube::Result<Option<Fresh>> {
        let request = Request::new(NodeObject::url_path(&(), None))
            .get(name, &GetParams::default())
            .map_err(kube::Error::BuildRequest)?;
        let response = self.client.send(request.map(Body::from)).await?;
        let date = response.headers().get(http::header::DATE);
        let now = date.and_then(|date| server_time(date.to_str().ok()?));
        let status = response.status();
        let body = response.into_body().collect_bytes().await?;
        if status.is_success() {
            let node = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
            let now = now.unwrap_or_else(Timestamp::now);
            return Ok(Some(Fresh { node, now }));
        }
        if status == http::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let failure = serde_json::from_slice::<Status>(&body)
            .unwrap_or_else(|_| Status::failure("no reason given", "Unknown").with_code(status.as_u16()));
        Err(kube::Error::Api(failure.boxed()))
    }
}

/// Whether no role grants the account to delete nodes. The denial of an admission webhook is 403, too, but not for every
/// node.
fn is_right_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 403 && status.message.contains("cannot delete resource \"nodes\""))
}

/// The time in a `Date` header.
fn server_time(date: &str) -> Option<Timestamp> {
    Some(rfc2822::parse(date).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ccm_core::{
        controllers::events::{EventMetrics, Writer},
        testkit::FakeCloud,
    };
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::answering;

    /// The outcomes of three deletions to which the API server answers with this status, and the events.
    async fn deletions(status: u16) -> (Vec<NodeOutcome>, Vec<Value>) {
        let reasons: Arc<Mutex<Vec<Value>>> = Arc::default();
        let posted = Arc::clone(&reasons);
        let node = json!({
            "metadata": {"name": "n1", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"providerID": "fake://n1"},
        });
        let read = node.clone();
        let client = answering::client(move |request| {
            let (posted, read) = (Arc::clone(&posted), read.clone());
            async move {
                match *request.method() {
                    http::Method::GET => (200, read),
                    http::Method::POST => {
                        let body = request.into_body().collect_bytes().await.unwrap();
                        let event: Value = serde_json::from_slice(&body).unwrap();
                        posted.lock().push(event["reason"].clone());
                        (201, event)
                    }
                    _ => answering::failure(status),
                }
            }
        });
        let events = Writer::new(client.clone(), &EventMetrics::default());
        let applier = Applier {
            client: client.clone(),
            writer: NodeWriter::new(client),
            cloud: Arc::new(FakeCloud::default()),
            recorder: events.recorder(COMPONENT),
            grace: Duration::ZERO,
            shutdown: CancellationToken::new(),
            failing: Failing::default(),
            forbidden: Failing::default(),
        };
        let node: NodeObject = serde_json::from_value(node).unwrap();
        let (action, failures) = (NodeAction::Delete(String::new()), Failing::default());
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            outcomes.push(applier.apply(&node, &action, 0, &failures).await);
        }
        // Writes what is queued.
        drop(applier);
        events.run().await;
        let mut reasons = reasons.lock().clone();
        reasons.sort_by_key(Value::to_string);
        (outcomes, reasons)
    }

    #[tokio::test]
    async fn a_deletion_that_keeps_failing_gets_two_events() {
        // An admission policy without a reason answers 422, a webhook 400 or 403.
        for (status, sent) in [(500, true), (422, false), (403, false), (400, false)] {
            let (outcomes, reasons) = deletions(status).await;
            assert_eq!(outcomes, [NodeOutcome::Failed { sent }; 3], "{status}");
            assert_eq!(reasons, ["DeletingNode", "DeletingNodeFailed"], "{status}");
        }
        assert_eq!(deletions(409).await.0, [NodeOutcome::Changed; 3]);
    }

    #[test]
    fn the_servers_time_is_read_as_http_writes_it() {
        let time = server_time("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(time.as_second(), 784_111_777);
        assert_eq!(server_time("yesterday"), None);
    }
}
