//! What is told to people: why nodes are not deleted, and that the cloud does not answer. Once per change.

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    Error,
    controllers::{EventType, NodeObject, Recorder},
};
use tracing::{info, warn};

use super::{COMPONENT, decide::Reason};
use crate::logging::{Failing, warn_if_new};

/// How many nodes of a pass get an event of their own.
const EVENTS: usize = 20;

/// How many nodes seem gone, of how many, and the share that may go at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Many {
    pub(super) gone: usize,
    pub(super) all: usize,
    pub(super) share: f64,
}

/// Tells people.
pub(super) struct Reports {
    recorder: Recorder,
    failing: Failing<&'static str>,
    /// The reasons for which nodes are held now.
    holding: BTreeSet<Reason>,
}

impl Reports {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            failing: Failing::default(),
            holding: BTreeSet::new(),
        }
    }

    /// The cloud could not say something.
    pub(super) fn failed(&mut self, error: &Error) {
        let kind = error.kind().as_str();
        warn_if_new!(
            self.failing.begins(kind),
            controller = COMPONENT,
            kind,
            error = error.report(),
            "Could not find out whether machines of nodes exist"
        );
    }

    /// The last answer about every node was one. (A pass alone says nothing: it may have left out those that fail.)
    pub(super) fn nobody_fails(&mut self) {
        if self.failing.ends() {
            info!(controller = COMPONENT, "Nodes' machines can be looked up again");
        }
    }

    /// Nodes are not deleted for a reason that is news for them.
    pub(super) fn tell_held(&self, news: &[(Arc<NodeObject>, Reason)], many: &Many, scope: &str) {
        for (node, reason) in news.iter().take(EVENTS) {
            let message = message(&node.view.name, *reason, many, scope);
            self.recorder
                .publish(node.reference(), EventType::Warning, "DeletingNodeHeld", &message);
        }
        let rest = news.len().saturating_sub(EVENTS);
        if rest > 0 {
            info!(
                controller = COMPONENT,
                nodes = rest,
                "Further nodes are held for the same reason and get no event"
            );
        }
    }

    /// So many nodes are held for this reason now.
    pub(super) fn held(&mut self, reason: Reason, nodes: usize, scope: impl Fn() -> String) {
        if nodes == 0 {
            if self.holding.remove(&reason) {
                info!(
                    controller = COMPONENT,
                    kind = reason.as_str(),
                    "No node's deletion is held for this reason any more"
                );
            }
        } else if self.holding.insert(reason) {
            warn!(
                controller = COMPONENT,
                kind = reason.as_str(),
                nodes,
                cloud = scope(),
                way_out = way_out(reason),
                "Not deleting nodes although the cloud says that their machines do not exist"
            );
        }
    }
}

/// What a person can do.
fn way_out(reason: Reason) -> &'static str {
    match reason {
        Reason::NothingPresent => {
            "check that credentials, project and region in the cloud config are the cluster's; if the machines are \
             really gone, run kubectl delete node"
        }
        Reason::Share => {
            "if so many machines were removed on purpose, raise --node-deletion-share or run kubectl delete node"
        }
    }
}

/// The event.
pub(super) fn message(node: &str, reason: Reason, many: &Many, scope: &str) -> String {
    let way_out = way_out(reason);
    match reason {
        Reason::NothingPresent => format!(
            "Not deleting node {node}: the cloud says that its machine does not exist, but no other machine of this \
             cluster was found either. Asked as {scope}. What to do: {way_out}"
        ),
        Reason::Share => format!(
            "Not deleting node {node} yet: the machines of {} of {} nodes seem to be gone or went a moment ago, more \
             than --node-deletion-share={}, so that they are deleted one a minute. Asked as {scope}. What to do: \
             {way_out}",
            many.gone, many.all, many.share
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: Many = Many {
        gone: 5,
        all: 8,
        share: 0.25,
    };

    #[test]
    fn an_event_names_the_reason_the_place_and_the_way_out() {
        let text = message(
            "n1",
            Reason::NothingPresent,
            &MANY,
            "project \"web\" of https://keystone",
        );
        for part in [
            "n1",
            "project \"web\" of https://keystone",
            "credentials",
            "kubectl delete node",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = message("n1", Reason::Share, &MANY, "somewhere");
        for part in [
            "5 of 8 nodes",
            "--node-deletion-share=0.25",
            "somewhere",
            "one a minute",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
