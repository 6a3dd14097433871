//! Says a failure once.
//!
//! When a cloud fails, it fails for every node, and every few seconds. The log gets one WARN when a kind of failure
//! begins, and one INFO when the last node that had it got through; nodes get an Event each, again only when the
//! kind of failure changes. Everything else is DEBUG.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use tracing::{debug, info, warn};

use super::{COMPONENT, desired::Problem};

/// Which nodes fail, and how.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    failing: Mutex<HashMap<&'static str, HashSet<String>>>,
}

impl Reports {
    /// Notes that a node failed. Returns whether that is news *for this node*.
    pub(crate) fn failed(&self, node: &str, problem: &Problem, previous: Option<&'static str>) -> bool {
        let reason = problem.reason();
        if previous != Some(reason)
            && let Some(previous) = previous
        {
            self.end(node, previous);
        }
        let mut failing = self.failing.lock();
        let nodes = failing.entry(reason).or_default();
        let first = nodes.is_empty();
        nodes.insert(node.to_owned());
        drop(failing);
        let message = problem.message(node);
        if first {
            warn!(
                controller = COMPONENT,
                node,
                kind = reason,
                error = message,
                "Could not initialize node"
            );
        } else {
            debug!(
                controller = COMPONENT,
                node,
                kind = reason,
                error = message,
                "Could not initialize node"
            );
        }
        previous != Some(reason)
    }

    /// Notes that a node that failed for `reason` no longer does.
    pub(crate) fn end(&self, node: &str, reason: &'static str) {
        let mut failing = self.failing.lock();
        let Some(nodes) = failing.get_mut(reason) else {
            return;
        };
        nodes.remove(node);
        if nodes.is_empty() {
            failing.remove(reason);
            drop(failing);
            info!(
                controller = COMPONENT,
                kind = reason,
                "No node fails for this reason any more"
            );
        }
    }
}
