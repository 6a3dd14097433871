//! Events and log lines about nodes that are not deleted and about reads that fail, each once per change.

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    Error,
    controllers::{EventType, NodeObject, Recorder},
};
use tracing::{info, warn};

use super::{
    COMPONENT,
    decide::{BlockReason, Totals},
};
use crate::{
    controllers::EVENTS,
    logging::{Failing, warn_if_new},
};

/// Publishes events and logs failures.
pub(super) struct Reports {
    recorder: Recorder,
    failing: Failing<&'static str>,
    /// The reasons for which nodes are not deleted now.
    blocked: BTreeSet<BlockReason>,
}

impl Reports {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            failing: Failing::default(),
            blocked: BTreeSet::new(),
        }
    }

    /// The cloud did not answer about some node.
    pub(super) fn failed(&mut self, error: &Error) {
        let kind = error.kind().as_str();
        warn_if_new!(
            self.failing.begins(kind),
            controller = COMPONENT,
            kind,
            error = error.report(),
            "Could not determine whether the machines of nodes exist"
        );
    }

    /// The last question about every node was answered. (One pass may leave out nodes that fail.)
    pub(super) fn none_fails(&mut self) {
        if self.failing.ends() {
            info!(controller = COMPONENT, "The machines of nodes can be read again");
        }
    }

    /// Publishes for which new reasons nodes are not deleted.
    pub(super) fn publish(&self, new: &[(Arc<NodeObject>, BlockReason)], totals: &Totals, scope: &str) {
        for (node, reason) in new.iter().take(EVENTS) {
            let message = message(&node.view.name, *reason, totals, scope);
            self.recorder
                .publish(node.reference(), EventType::Warning, "NodeDeletionPaused", &message);
        }
        let rest = new.len().saturating_sub(EVENTS);
        if rest > 0 {
            info!(
                controller = COMPONENT,
                nodes = rest,
                "Further nodes are not deleted for the same reason and get no event"
            );
        }
    }

    /// Logs when the first node is not deleted for this reason, and when none is any more.
    pub(super) fn log_blocked(&mut self, reason: BlockReason, nodes: usize, scope: impl Fn() -> String) {
        let kind = reason.as_str();
        if nodes == 0 {
            if self.blocked.remove(&reason) {
                info!(controller = COMPONENT, kind, "No node's deletion is blocked for this reason any more");
            }
        } else if self.blocked.insert(reason) {
            warn!(
                controller = COMPONENT,
                kind,
                nodes,
                cloud = scope(),
                way_out = way_out(reason),
                "Not deleting nodes although the cloud reports that their machines do not exist"
            );
        }
    }
}

/// The advice for a person.
fn way_out(reason: BlockReason) -> &'static str {
    match reason {
        BlockReason::NothingPresent => {
            "check that credentials, project and region in the cloud config are the cluster's; if the machines do \
             not exist, run kubectl delete node"
        }
        BlockReason::Share => {
            "if so many machines were removed on purpose, raise --node-deletion-share or run kubectl delete node"
        }
    }
}

/// The event.
pub(super) fn message(node: &str, reason: BlockReason, totals: &Totals, scope: &str) -> String {
    let way_out = way_out(reason);
    match reason {
        BlockReason::NothingPresent => format!(
            "Not deleting node {node}: the cloud reports that its machine does not exist, but no other machine of this \
             cluster was found either. Credentials in use: {scope}. What to do: {way_out}"
        ),
        BlockReason::Share => format!(
            "Not deleting node {node} yet: the machines of {} of {} nodes seem to be missing, or the nodes were deleted a \
             moment ago. This is more than --node-deletion-share={}, so that one a minute is deleted. Credentials in use: {scope}. \
             What to do: {way_out}",
            totals.missing, totals.all, totals.share
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: Totals = Totals {
        present: true,
        missing: 5,
        all: 8,
        share: 0.25,
    };

    #[test]
    fn an_event_names_the_reason_the_scope_and_the_advice() {
        let text = message("n1", BlockReason::NothingPresent, &MANY, "project \"web\" of https://keystone");
        for part in [
            "n1",
            "project \"web\" of https://keystone",
            "credentials",
            "kubectl delete node",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = message("n1", BlockReason::Share, &MANY, "somewhere");
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
