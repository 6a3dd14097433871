//! What people are told, each thing once.
//!
//! A pass comes to the same again and again: a cloud that fails, a value that can not be followed. An event is for what is
//! new. What failed and works again may be told anew.

use std::collections::{HashMap, HashSet};

use ccm_core::{
    Error,
    controllers::{EventType, Recorder},
    load_balancer::{NodeSet, PartKey, ServiceId},
};
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use super::{COMPONENT, job::Cause, records::Record};

/// So many nodes are named in an event.
const NODE_NAMES: usize = 20;

/// An event about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Telling {
    pub(super) service: ServiceId,
    pub(super) kind: EventType,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// What the provider found out itself.
    pub(super) by_provider: bool,
}

impl Telling {
    pub(super) fn normal(service: &ServiceId, reason: &'static str, message: &str) -> Self {
        Self {
            service: service.clone(),
            kind: EventType::Normal,
            reason,
            message: message.to_owned(),
            by_provider: false,
        }
    }

    pub(super) fn warning(service: &ServiceId, reason: &'static str, message: String) -> Self {
        Self {
            kind: EventType::Warning,
            message,
            ..Self::normal(service, reason, "")
        }
    }
}

/// What people were told about a Service and one of its parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Why it failed, without what changes with every try.
    pub(super) failure: Option<String>,
    /// The kind of that failure.
    pub(super) kind: Option<&'static str>,
    pub(super) notes: Vec<(&'static str, String)>,
    pub(super) blocked: Option<String>,
    pub(super) no_nodes: bool,
}

/// Why a Service could not be served.
pub(super) enum Failure<'a> {
    /// The cloud or the provider said no.
    Error(&'a Error),
    /// Nothing may be changed, since what we know can not be seen.
    Blocked(&'a str),
}

impl Failure<'_> {
    /// What stays the same for as long as it fails in the same way.
    fn identity(&self) -> String {
        match self {
            Self::Error(error) => {
                let operation = error.operation().unwrap_or_default();
                format!("{} {operation} {}", error.kind(), error.message())
            }
            Self::Blocked(why) => (*why).to_owned(),
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Error(error) => error.report(),
            Self::Blocked(why) => (*why).to_owned(),
        }
    }

    /// The metric label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Error(error) => error.kind().as_str(),
            Self::Blocked(_) => "NotSeen",
        }
    }

    /// The event for this Service, if it is new.
    pub(super) fn tell(
        &self,
        record: &mut Record,
        part: &PartKey,
        cause: Cause,
        nodes: &NodeSet,
    ) -> Option<Telling> {
        let only_nodes = cause == Cause::Nodes && record.is_settled();
        let (reason, begin) = if only_nodes {
            ("UpdateLoadBalancerFailed", String::new())
        } else if record.view.wants_load_balancer() {
            (
                "SyncLoadBalancerFailed",
                "failed to ensure load balancer".to_owned(),
            )
        } else {
            (
                "SyncLoadBalancerFailed",
                "failed to delete load balancer".to_owned(),
            )
        };
        let identity = format!("{reason} {}", self.identity());
        // A Service that asks for what can not be had is refused by each of its parts.
        let elsewhere = record
            .told
            .iter()
            .any(|(other, told)| other != part && told.failure.as_ref() == Some(&identity));
        let told = record.told.entry(part.clone()).or_default();
        told.kind = Some(self.label());
        if told.failure.as_ref() == Some(&identity) {
            return None;
        }
        told.failure = Some(identity);
        if elsewhere {
            return None;
        }
        let text = self.text();
        let message = if only_nodes {
            let (names, total) = node_names(nodes);
            format!(
                "Error updating load balancer with new hosts {names} [node names limited, total number of nodes: \
                 {total}], error: {text}"
            )
        } else {
            format!("Error syncing load balancer: {begin}: {text}")
        };
        Some(Telling::warning(&record.view.id, reason, message))
    }
}

/// The names of the first members, and how many there are.
fn node_names(nodes: &NodeSet) -> (String, usize) {
    let total = nodes.eligible().count();
    let mut names: Vec<_> = nodes
        .eligible()
        .take(NODE_NAMES)
        .map(|node| node.view.name.clone())
        .collect();
    if total > NODE_NAMES {
        names.push(format!("<{} more>", total - NODE_NAMES));
    }
    (format!("[{}]", names.join(" ")), total)
}

/// Writes events, and the log.
pub(super) struct Teller {
    recorder: Recorder,
    provider: Recorder,
    /// What fails, by the kind of failure.
    failing: Mutex<HashMap<&'static str, HashSet<String>>>,
}

impl Teller {
    /// `provider` writes what the provider found out itself.
    pub(super) fn new(recorder: Recorder, provider: Recorder) -> Self {
        Self {
            recorder,
            provider,
            failing: Mutex::default(),
        }
    }

    /// A warning about something that belongs to no Service.
    pub(super) fn warn_about(&self, object: &ObjectReference, reason: &str, message: &str) {
        self.recorder
            .publish(object.clone(), EventType::Warning, reason, message);
    }

    pub(super) fn tell(&self, telling: &Telling) {
        let recorder = if telling.by_provider {
            &self.provider
        } else {
            &self.recorder
        };
        let id = &telling.service;
        let object = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(id.namespace.to_string()),
            name: Some(id.name.to_string()),
            uid: Some(id.uid.to_string()),
            ..ObjectReference::default()
        };
        recorder.publish(object, telling.kind, telling.reason, &telling.message);
    }

    /// Logs that something fails: when it is the first to fail in this way.
    pub(super) fn failed(&self, what: &str, kind: &'static str, error: &str) {
        let mut failing = self.failing.lock();
        let before = failing
            .iter()
            .find_map(|(other, all)| (*other != kind && all.contains(what)).then_some(*other));
        let all = failing.entry(kind).or_default();
        let first = all.is_empty();
        all.insert(what.to_owned());
        drop(failing);
        if first {
            warn!(
                controller = COMPONENT,
                what, kind, error, "Load balancer work failed"
            );
        } else {
            debug!(
                controller = COMPONENT,
                what, kind, error, "Load balancer work failed"
            );
        }
        if let Some(before) = before {
            self.ended(what, before);
        }
    }

    /// It does not fail any more.
    pub(super) fn works(&self, what: &str) {
        let kinds: Vec<_> = self
            .failing
            .lock()
            .iter()
            .filter(|(_, all)| all.contains(what))
            .map(|(kind, _)| *kind)
            .collect();
        for kind in kinds {
            self.ended(what, kind);
        }
    }

    fn ended(&self, what: &str, kind: &'static str) {
        let mut failing = self.failing.lock();
        let Some(all) = failing.get_mut(kind) else { return };
        all.remove(what);
        if all.is_empty() {
            failing.remove(kind);
            drop(failing);
            info!(
                controller = COMPONENT,
                kind, "No load balancer work fails for this reason any more"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ccm_core::{NodeView, load_balancer::ServiceNode};

    use super::*;

    fn nodes(count: usize) -> NodeSet {
        (0..count)
            .map(|i| ServiceNode {
                view: Arc::new(NodeView {
                    name: format!("n{i:02}"),
                    ..NodeView::default()
                }),
                eligible: true,
                ..ServiceNode::default()
            })
            .collect()
    }

    #[test]
    fn names_of_many_nodes_are_cut() {
        assert_eq!(node_names(&nodes(2)), ("[n00 n01]".to_owned(), 2));
        let (names, total) = node_names(&nodes(23));
        assert!(names.ends_with("n19 <3 more>]"), "{names}");
        assert_eq!(total, 23);
    }
}
