//! The periodic refresh: one question about all nodes, patches for differences only.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{
    Freshness, Instance, InstanceState, Need, Priority, Result,
    controllers::{EventType, NodeObject, provided_ip::ProvidedIpError},
    error::report,
};
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{COMPONENT, NodeController, desired};
use crate::{
    controllers::{
        EVENTS,
        node_action::{NewLabels, NodeAction, label_text},
        node_object::{UNINITIALIZED_TAINT, describe},
        node_writer::Written,
    },
    logging::{Failing, warn_if_new},
    metrics::{count, increment},
};

/// How many nodes are asked about at once. A multiple of what a provider asks about in one request (150 of Neutron's
/// ports), so that the pieces cost no request more than the whole.
pub(super) const PIECE: usize = 900;

/// Values that one refresh keeps for the next, by node uid. Nodes without such values have no entry.
type Memory = HashMap<String, NodeMemory>;

#[derive(Debug, Default)]
struct NodeMemory {
    /// The additional labels from the cloud.
    labels: NewLabels,
    /// The zone and region that were reported as different.
    topology: NewLabels,
}

/// A running refresh.
#[derive(Debug, Default)]
struct Pass {
    before: Memory,
    after: Memory,
    due: Vec<(Arc<NodeObject>, Vec<NodeAction>)>,
    /// Nodes whose zone or region differs in another way than in the last pass.
    mismatches: Vec<(Arc<NodeObject>, NewLabels)>,
    /// How many nodes failed in each way, and the first error.
    failures: HashMap<&'static str, (usize, String)>,
}

impl Pass {
    /// Keeps the values of a node that could not be compared.
    fn keep(&mut self, uid: &str) {
        self.after.extend(self.before.remove_entry(uid));
    }

    /// Keeps the labels of a node that were not replaced, so that the next pass detects their difference again.
    fn fail_write(&mut self, uid: &str, error: String) {
        if let (Some(before), Some(after)) = (self.before.remove(uid), self.after.get_mut(uid)) {
            after.labels = before.labels;
        }
        self.fail("write", error);
    }

    fn fail(&mut self, kind: &'static str, error: String) {
        self.failures.entry(kind).or_insert((0, error)).0 += 1;
    }

    /// Logs each kind of failure when it begins, and the end of all.
    fn log_failures(&self, failing: &Failing<&'static str>) {
        for (kind, (nodes, error)) in &self.failures {
            warn_if_new!(
                failing.begins(*kind),
                controller = COMPONENT,
                nodes,
                error,
                "Could not refresh nodes"
            );
        }
        if self.failures.is_empty() && failing.ends() {
            info!(controller = COMPONENT, "Nodes are refreshed again");
        }
    }
}

impl NodeController {
    /// Refreshes at once and then periodically. The wait begins at the end of a pass.
    pub(crate) async fn refresh_forever(self: Arc<Self>) {
        let (mut memory, failing) = (Memory::default(), Failing::default());
        let mut is_running = true;
        while is_running {
            self.refresh(&mut memory, &failing).await;
            let pause = tokio::time::sleep(self.config.status_update_frequency);
            is_running = self.shutdown.run_until_cancelled(pause).await.is_some();
        }
    }

    /// One pass. At shutdown, questions are cut: the next process detects the same differences. Writes that have begun are
    /// finished, because a write that may still arrive keeps the lease from being released.
    async fn refresh(&self, memory: &mut Memory, failing: &Failing<&'static str>) {
        let began = Instant::now();
        let mut nodes = self.nodes.list();
        nodes.retain(|node| {
            !node.has_taint(UNINITIALIZED_TAINT)
                && matches!(desired::is_asked_about(node, &*self.cloud), Ok(true))
        });
        if nodes.is_empty() {
            return;
        }
        let mut pass = Pass {
            before: std::mem::take(memory),
            ..Pass::default()
        };
        // In pieces, to bound the memory for the answers about ten thousand nodes. The provider's cache for one piece serves
        // the next.
        for piece in nodes.chunks(PIECE) {
            let views = piece.iter().map(|node| &node.view);
            let answers = describe(
                &*self.cloud,
                views,
                Need::Metadata,
                // An older listing may lack an address that a node got when it was initialized.
                Freshness::After(began),
                Priority::Background,
            );
            let Some(answers) = self.shutdown.run_until_cancelled(answers).await else {
                return;
            };
            for (node, answer) in piece.iter().zip(answers) {
                self.decide(node, answer, &mut pass);
            }
        }
        let mismatches = pass.after.values().filter(|node| !node.topology.is_empty());
        self.metrics.topology_mismatch.set(count(mismatches.count()));
        self.report_topology(&pass.mismatches);

        let due = std::mem::take(&mut pass.due);
        let changed = due.len();
        let writers = self.config.concurrent_status_updates.get();
        let failed = Mutex::new(&mut pass);
        futures_util::stream::iter(due)
            .for_each_concurrent(writers, async |(node, actions)| {
                if !self.shutdown.is_cancelled()
                    && let Err(error) = self.refresh_node(&node, actions).await
                {
                    // Without a right, every write fails, and the error names the right.
                    failed.lock().fail_write(&node.view.uid, report(&error));
                }
            })
            .await;
        pass.log_failures(failing);
        *memory = pass.after;
        let elapsed = began.elapsed();
        self.metrics.refresh_duration.observe(elapsed.as_secs_f64());
        debug!(controller = COMPONENT, changed, ?elapsed, "Refreshed nodes");
    }

    /// Handles the answer about one node.
    fn decide(&self, node: &Arc<NodeObject>, answer: Result<InstanceState>, pass: &mut Pass) {
        let result = match answer {
            Ok(InstanceState::Present(instance)) => match self.compare(node, &instance, pass) {
                Ok(actions) if actions.is_empty() => "unchanged",
                Ok(actions) => {
                    // Counted when it is written.
                    return pass.due.push((Arc::clone(node), actions));
                }
                Err(error) => {
                    debug!(node = node.view.name, %error, "Left the node unchanged");
                    pass.keep(&node.view.uid);
                    "failed"
                }
            },
            // The lifecycle controller decides whether the node is deleted.
            Ok(InstanceState::Absent | InstanceState::Unresolved) => {
                pass.keep(&node.view.uid);
                "missing"
            }
            Ok(InstanceState::Unmanaged) => "unmanaged",
            Err(error) => {
                debug!(node = node.view.name, error = error.report(), "Could not refresh node");
                pass.keep(&node.view.uid);
                pass.fail(error.kind().as_str(), error.report());
                "failed"
            }
        };
        increment(&self.metrics.refreshes, "result", result);
    }

    /// Compares one node with its instance.
    fn compare(
        &self,
        node: &Arc<NodeObject>,
        instance: &Instance,
        pass: &mut Pass,
    ) -> std::result::Result<Vec<NodeAction>, ProvidedIpError> {
        let uid = &node.view.uid;
        let before = pass.before.get(uid);
        let previous = before.map(|before| &before.labels);
        let difference = desired::difference(node, instance, previous, self.config.refresh_topology_labels)?;
        let after = NodeMemory {
            labels: desired::additional_labels(instance).map(desired::owned).collect(),
            topology: difference.topology.clone(),
        };
        let is_reported = before.is_some_and(|before| before.topology == after.topology);
        if !after.topology.is_empty() && !is_reported {
            let mismatch = (Arc::clone(node), after.topology.clone());
            pass.mismatches.push(mismatch);
        }
        if !after.labels.is_empty() || !after.topology.is_empty() {
            pass.after.insert(uid.clone(), after);
        }
        Ok(difference.actions(node))
    }

    /// Reports zones and regions that differ and may not be changed. Every start finds all of them again.
    fn report_topology(&self, mismatches: &[(Arc<NodeObject>, NewLabels)]) {
        let first = &mismatches[..mismatches.len().min(EVENTS)];
        if first.is_empty() {
            return;
        }
        let names: Vec<_> = first.iter().map(|(node, _)| &node.view.name).collect();
        let nodes = mismatches.len();
        warn!(controller = COMPONENT, nodes, first = ?names, "Topology of nodes differs");
        for (node, labels) in first {
            let message = format!(
                "The cloud now reports {}; the node's labels are left unchanged, since volumes have affinity to them \
                 (--refresh-topology-labels changes them)",
                label_text(labels)
            );
            self.recorder.publish(node.reference(), EventType::Warning, "TopologyChanged", &message);
        }
    }

    async fn refresh_node(&self, node: &NodeObject, actions: Vec<NodeAction>) -> kube::Result<()> {
        let name = node.view.name.as_str();
        let (mut result, mut addresses, mut labels) = (Ok(Written::Done), false, Vec::new());
        for action in &actions {
            match action {
                NodeAction::SetLabels { labels: new, .. } => labels.extend(new.keys()),
                _ => addresses = true,
            }
            if matches!(result, Ok(Written::Done)) {
                result = self.writer.apply(node, action).await;
            }
        }
        // The next pass detects the difference again.
        let written = result.inspect_err(|error| {
            increment(&self.metrics.refreshes, "result", "failed");
            debug!(node = name, error = report(error), "Could not update node");
        })?;
        if written == Written::Done {
            increment(&self.metrics.refreshes, "result", "changed");
            info!(controller = COMPONENT, node = name, addresses, ?labels, "Updated node from the cloud");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
