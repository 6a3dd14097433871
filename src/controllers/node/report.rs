//! Reports a failure once.
//!
//! A cloud that fails fails for every node, and every few seconds. The log gets one warning when a kind of failure
//! begins, and one line when the last node with it succeeds; nodes get an event each, again only when the kind of failure
//! changes. Everything else is logged as details.

use tracing::info;

use super::{COMPONENT, desired::Problem};
use crate::logging::{FailingByKind, warn_if_new};

/// Which nodes fail, and how.
#[derive(Debug, Default)]
pub(crate) struct Reports(FailingByKind);

impl Reports {
    /// Records that a node failed.
    pub(crate) fn failed(&self, node: &str, problem: &Problem) {
        let (is_first, ended) = self.0.failed(node, problem.reason());
        warn_if_new!(
            is_first,
            controller = COMPONENT,
            node,
            kind = problem.reason(),
            error = problem.message(node),
            "Could not initialize node"
        );
        log_end(ended);
    }

    /// Records that a node does not fail any more.
    pub(crate) fn end(&self, node: &str) {
        log_end(self.0.works(node));
    }
}

fn log_end(kind: Option<&'static str>) {
    if let Some(kind) = kind {
        info!(
            controller = COMPONENT,
            kind, "No node fails for this reason any more"
        );
    }
}
