//! What is told to people: why nodes are not deleted, and that the cloud does not answer. Once per change.

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::Error;
use tracing::{debug, info, warn};

use super::{
    COMPONENT,
    decide::{Reason, Whole},
};
use crate::{
    controllers::node_object::reference,
    events::{EventType, Recorder},
    informers::node::NodeObject,
};

/// How many nodes of a pass get an event of their own.
const EVENTS: usize = 20;

/// Tells people.
pub(super) struct Reports {
    recorder: Recorder,
    /// The kind of the failure that was logged last.
    failing: Option<&'static str>,
    /// The reasons for which nodes are held now.
    holding: BTreeSet<Reason>,
}

impl Reports {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            failing: None,
            holding: BTreeSet::new(),
        }
    }

    /// The cloud could not say something, or could again.
    pub(super) fn tell_failure(&mut self, failure: Option<&Error>) {
        let kind = failure.map(|error| error.kind().as_str());
        match failure {
            Some(error) if kind != self.failing => {
                let error = error.report();
                warn!(
                    controller = COMPONENT,
                    kind, error, "Could not find out whether machines of nodes exist"
                );
            }
            Some(error) => debug!(
                controller = COMPONENT,
                error = error.report(),
                "Still could not find out whether machines of nodes exist"
            ),
            None if self.failing.is_some() => {
                info!(controller = COMPONENT, "Nodes' machines can be looked up again");
            }
            None => {}
        }
        self.failing = kind;
    }

    /// Nodes are not deleted for a reason that is news for them.
    pub(super) fn tell_held(&self, news: &[(Arc<NodeObject>, Reason)], whole: &Whole, scope: &str) {
        for (node, reason) in news.iter().take(EVENTS) {
            let message = message(&node.view.name, *reason, whole, scope);
            self.recorder
                .publish(reference(node), EventType::Warning, "DeletingNodeHeld", &message);
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
fn message(node: &str, reason: Reason, whole: &Whole, scope: &str) -> String {
    let way_out = way_out(reason);
    match reason {
        Reason::NothingPresent => format!(
            "Not deleting node {node}: the cloud says that its machine does not exist, but knows no other machine of this \
             cluster either. Asked as {scope}. What to do: {way_out}"
        ),
        Reason::Share => format!(
            "Not deleting node {node} yet: the machines of {} of {} nodes seem to be gone, more than \
             --node-deletion-share={}, so that they are deleted one a minute. Asked as {scope}. What to do: {way_out}",
            whole.absent, whole.owned, whole.share
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Whole = Whole {
        present: false,
        owned: 8,
        absent: 5,
        share: 0.25,
    };

    #[test]
    fn an_event_names_the_reason_the_place_and_the_way_out() {
        let text = message(
            "n1",
            Reason::NothingPresent,
            &WHOLE,
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
        let text = message("n1", Reason::Share, &WHOLE, "somewhere");
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
