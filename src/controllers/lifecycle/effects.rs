//! What the lifecycle controller does to a node: deletes it, sets and removes the shutdown taint.
//!
//! Each begins with the node as the API server has it, not as the store has it, and ends with a request that the API
//! server refuses if the node has changed since.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    controllers::{EventType, NodeObject, Recorder, node::Ready},
};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, GetParams, PatchParams, Preconditions, Request},
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
    controllers::node_object::{PATCH_TRIES, SHUTDOWN_TAINT, is_gone, is_refused, set_taints},
    logging::{Failing, warn_if_new},
};

/// A node that is to be deleted.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) node: Arc<NodeObject>,
    /// The credentials under which its machine was found to be gone.
    pub(super) generation: u64,
    /// Whether the brake counts it.
    pub(super) counts: bool,
}

/// What became of a try to delete a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    Deleted,
    /// Somebody else deleted it.
    Gone,
    /// It changed while it was looked at.
    Changed,
    /// It is not, or no longer, the node that was judged.
    Kept,
    /// It is too young, by this much.
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

impl Deletion {
    /// As it stands in metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Gone => "gone",
            Self::Changed => "changed",
            Self::Kept | Self::NotBegun => "kept",
            Self::Young(_) => "young",
            Self::Failed { .. } | Self::Forbidden => "failed",
        }
    }

    /// Whether the node is gone by it, or may be.
    pub(super) fn is_done(self) -> bool {
        matches!(self, Self::Deleted | Self::Failed { sent: true })
    }
}

/// Writes to nodes.
pub(super) struct Effects {
    client: Client,
    api: Api<NodeObject>,
    cloud: Arc<dyn Cloud>,
    recorder: Recorder,
    grace: Duration,
    shutdown: CancellationToken,
    /// Whether the last deletion failed.
    failing: Failing,
    /// Whether the account lacked the right to delete nodes when it last tried.
    forbidden: Failing,
}

/// A node as it was just read.
struct Fresh {
    node: NodeObject,
    /// The API server's time.
    now: Timestamp,
}

impl Effects {
    pub(super) fn new(
        client: Client,
        cloud: Arc<dyn Cloud>,
        recorder: Recorder,
        grace: Duration,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            api: Api::all(client.clone()),
            client,
            cloud,
            recorder,
            grace,
            shutdown,
            failing: Failing::default(),
            forbidden: Failing::default(),
        }
    }

    /// Deletes the node unless it is not, or no longer, the one that was judged. A deletion that was begun is finished.
    pub(super) async fn delete(&self, target: &Target) -> Deletion {
        let name = target.node.view.name.as_str();
        if self.shutdown.is_cancelled() {
            return Deletion::NotBegun;
        }
        let fresh = match self.read(name).await {
            Ok(Some(fresh)) => fresh,
            Ok(None) => return Deletion::Gone,
            Err(error) => return self.failed(&target.node, &error, false),
        };
        let read = &fresh.node;
        if let Err(refusal) = decide::check(&target.node, read, fresh.now, self.grace) {
            debug!(controller = COMPONENT, node = name, reason = %refusal, "Node is not deleted");
            return match refusal {
                Refusal::Young(missing) => Deletion::Young(missing),
                _ => Deletion::Kept,
            };
        }
        if self.shutdown.is_cancelled() || self.cloud.generation() != target.generation {
            return Deletion::NotBegun;
        }
        let announce = || {
            let message = format!("Deleting node {name} because it does not exist in the cloud provider");
            self.recorder
                .publish(read.reference(), EventType::Normal, "DeletingNode", &message);
        };
        // A try that will probably be refused again is not announced each time.
        if !self.forbidden.is_ongoing() {
            announce();
        }
        let parameters = DeleteParams::default().preconditions(Preconditions {
            uid: Some(read.view.uid.clone()),
            resource_version: read.meta.resource_version.clone(),
        });
        match self.api.delete(name, &parameters).await {
            Ok(_) => {
                self.failing.ends();
                if self.forbidden.ends() {
                    announce();
                }
                info!(
                    controller = COMPONENT,
                    node = name,
                    provider_id = read.view.provider_id,
                    "Deleted node, since its machine does not exist"
                );
                Deletion::Deleted
            }
            Err(error) if is_gone(&error) => Deletion::Gone,
            Err(error) if is_refused(&error) => {
                debug!(
                    controller = COMPONENT,
                    node = name,
                    "Node changed meanwhile, looking at it again"
                );
                Deletion::Changed
            }
            Err(error) if is_right_missing(&error) => self.forbidden(read, &error),
            Err(error) => self.failed(read, &error, true),
        }
    }

    /// Reports once that the account may not delete nodes.
    fn forbidden(&self, node: &NodeObject, error: &kube::Error) -> Deletion {
        let name = node.view.name.as_str();
        let error = ccm_core::error::report(error);
        if !self.forbidden.begins(()) {
            debug!(
                controller = COMPONENT,
                node = name,
                error,
                "Still not allowed to delete nodes"
            );
            return Deletion::Forbidden;
        }
        warn!(
            controller = COMPONENT,
            node = name,
            verb = "delete",
            resource = "nodes",
            error,
            "Not allowed to delete nodes; nodes whose machines do not exist stay until the ClusterRole grants it"
        );
        let message = format!(
            "Failed deleting node {name}: add the verb \"delete\" for the resource \"nodes\" to the ClusterRole of the \
             cloud-controller-manager (chart 2.36.2 lacks it); until then nodes whose machines do not exist stay: {error}"
        );
        self.recorder.publish(
            node.reference(),
            EventType::Warning,
            "DeletingNodeFailed",
            &message,
        );
        Deletion::Forbidden
    }

    fn failed(&self, node: &NodeObject, error: &kube::Error, sent: bool) -> Deletion {
        let name = node.view.name.as_str();
        let error = ccm_core::error::report(error);
        warn_if_new!(
            self.failing.begins(()),
            controller = COMPONENT,
            node = name,
            error,
            "Could not delete node, trying again"
        );
        let message = format!("Failed deleting node {name}: {error}");
        self.recorder.publish(
            node.reference(),
            EventType::Warning,
            "DeletingNodeFailed",
            &message,
        );
        Deletion::Failed { sent }
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

    /// Brings the shutdown taint in line: there while the machine is `off` and the node is not ready, gone once it is
    /// ready.
    pub(super) async fn set_shutdown_taint(&self, node: &NodeObject, off: bool) -> Tainted {
        let name = node.view.name.as_str();
        let (key, effect) = SHUTDOWN_TAINT;
        let mut current = node.clone();
        for _ in 0..PATCH_TRIES {
            let moot = current.view.uid != node.view.uid
                || current.meta.deletion_timestamp.is_some()
                || current.has_exact_taint(key, effect) == off
                || (current.ready == Ready::True) == off;
            if moot || self.shutdown.is_cancelled() {
                return Tainted::Unchanged;
            }
            let taints = if off {
                current.taints_with(key, effect)
            } else {
                current.taints_without_exact(key, effect)
            };
            let patch = set_taints(&current, &taints);
            match self.api.patch(name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    let message = if off {
                        "Added the shutdown taint"
                    } else {
                        "Removed the shutdown taint"
                    };
                    info!(controller = COMPONENT, node = name, "{message}");
                    return if off { Tainted::Added } else { Tainted::Removed };
                }
                Err(error) if is_gone(&error) => return Tainted::Unchanged,
                Err(error) if is_refused(&error) => match self.api.get_opt(name).await {
                    Ok(Some(read)) => current = read,
                    Ok(None) => return Tainted::Unchanged,
                    Err(error) => return self.not_tainted(name, &error),
                },
                Err(error) => return self.not_tainted(name, &error),
            }
        }
        debug!(
            controller = COMPONENT,
            node = name,
            "The taints change too often, trying again later"
        );
        Tainted::Failed
    }

    fn not_tainted(&self, name: &str, error: &kube::Error) -> Tainted {
        let error = ccm_core::error::report(error);
        debug!(
            controller = COMPONENT,
            node = name,
            error,
            "Could not change the shutdown taint"
        );
        Tainted::Failed
    }
}

/// Whether no role grants the account to delete nodes. What an admission webhook denies is 403, too, but not for every
/// node.
fn is_right_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 403 && status.message.contains("cannot delete resource \"nodes\""))
}

/// What became of the shutdown taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tainted {
    Added,
    Removed,
    /// There was nothing to do any more.
    Unchanged,
    Failed,
}

/// The time in a `Date` header.
fn server_time(date: &str) -> Option<Timestamp> {
    static PARSER: rfc2822::DateTimeParser = rfc2822::DateTimeParser::new();
    PARSER.parse_timestamp(date).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_time_is_read_as_http_writes_it() {
        let time = server_time("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(time.as_second(), 784_111_777);
        assert_eq!(server_time("yesterday"), None);
    }
}
