//! The condition `NetworkUnavailable`: which nodes get it.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{controllers::NodeObject, error::report};
use futures_util::{StreamExt, stream};
use kube::Client;
use tokio::time::Instant;

use super::{COMPONENT, outcome::must_write};
use crate::{
    controllers::{
        node_action::NodeAction,
        node_object::STORE_LAG,
        node_writer::{NodeWriter, Written},
    },
    logging::{Failing, warn_if_new},
};

/// How many nodes are written at once: enough to keep the API server busy.
const WRITERS: usize = 64;

/// Writes conditions.
pub(super) struct Conditions {
    writer: NodeWriter,
    /// What was written last of each node, by uid.
    written: HashMap<String, (bool, Instant)>,
    failing: Failing,
}

/// What became of the writes of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) written: u64,
    /// The nodes are gone, or others of the same name.
    pub(super) gone: u64,
    pub(super) failed: u64,
}

impl Conditions {
    pub(super) fn new(client: Client) -> Self {
        Self {
            writer: NodeWriter::new(client),
            written: HashMap::new(),
            failing: Failing::default(),
        }
    }

    /// Writes the conditions that differ from whether each node's routes are all there.
    pub(super) async fn write(&mut self, verdicts: Vec<(Arc<NodeObject>, bool)>) -> Summary {
        self.written.retain(|_, (_, at)| at.elapsed() < STORE_LAG);
        let due = verdicts.into_iter().filter(|(node, available)| {
            let just = self.written.get(&node.view.uid);
            let shown_soon = just.is_some_and(|(written, _)| written == available);
            must_write(node.network, *available) && !shown_soon
                || just.is_some_and(|(written, _)| written != available)
        });
        let due: Vec<_> = due.collect();
        let writer = &self.writer;
        let results: Vec<_> = stream::iter(due)
            .map(|(node, available)| async move {
                let action = NodeAction::SetNetworkAvailable(available);
                let result = writer.apply(&node, &action).await;
                (node, available, result)
            })
            .buffer_unordered(WRITERS)
            .collect()
            .await;
        let mut summary = Summary::default();
        for (node, available, result) in results {
            match result {
                Ok(Written::Done) => {
                    summary.written += 1;
                    self.written
                        .insert(node.view.uid.clone(), (available, Instant::now()));
                }
                Ok(_) => summary.gone += 1,
                Err(error) => {
                    summary.failed += 1;
                    warn_if_new!(
                        self.failing.begins(()),
                        controller = COMPONENT,
                        node = node.view.name,
                        error = report(&error),
                        "Could not write the condition NetworkUnavailable, trying again"
                    );
                }
            }
        }
        if summary.failed == 0 {
            self.failing.ends();
        }
        summary
    }
}
