//! The periodic refresh: one question about all nodes, patches for differences only.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{
    Error, Freshness, Instance, InstanceQuery, InstanceState, Need, Priority, Result,
    controllers::{EventType, NodeObject, provided_ip::ProvidedIpError},
};
use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{COMPONENT, NodeController, desired};
use crate::{
    controllers::{
        node_action::{NewLabels, NodeAction},
        node_object::{UNINITIALIZED_TAINT, is_gone},
    },
    logging::{Failing, warn_if_new},
    metrics::count,
};

/// How many nodes are asked about at once. A multiple of what a provider asks about in one request (150 of Neutron's
/// ports), so that the pieces cost no request more than the whole.
pub(super) const PIECE: usize = 900;

/// What one refresh remembers for the next.
#[derive(Debug, Default)]
struct Memory {
    /// The additional labels that the cloud gave, by node uid. Only nodes that have some.
    labels: HashMap<String, NewLabels>,
    /// The zone and region that were reported as different, by node uid.
    topology: HashMap<String, NewLabels>,
    failing: Failing<&'static str>,
}

/// One refresh under way.
#[derive(Debug)]
struct Pass {
    before: Memory,
    seen: Memory,
    due: Vec<(Arc<NodeObject>, Vec<NodeAction>)>,
    failed: usize,
    failure: Option<Error>,
}

impl Pass {
    fn after(before: Memory) -> Self {
        Self {
            before,
            seen: Memory::default(),
            due: Vec::new(),
            failed: 0,
            failure: None,
        }
    }

    /// Nothing new was learnt of the node: what was known stays.
    fn keep(&mut self, uid: &str) {
        if let Some((uid, labels)) = self.before.labels.remove_entry(uid) {
            self.seen.labels.insert(uid, labels);
        }
        if let Some((uid, topology)) = self.before.topology.remove_entry(uid) {
            self.seen.topology.insert(uid, topology);
        }
    }

    /// Logs a failure when it begins or changes its kind, and its end.
    fn tell_failures(&mut self) {
        self.seen.failing = std::mem::take(&mut self.before.failing);
        match &self.failure {
            Some(error) => warn_if_new!(
                self.seen.failing.begins(error.kind().as_str()),
                controller = COMPONENT,
                nodes = self.failed,
                error = error.report(),
                "Could not refresh nodes"
            ),
            None if self.seen.failing.ends() => {
                info!(controller = COMPONENT, "Nodes are refreshed again");
            }
            None => {}
        }
    }
}

impl NodeController {
    /// Refreshes at once and then again and again, the wait counted from the end of a pass.
    pub(crate) async fn refresh_forever(self: Arc<Self>, shutdown: CancellationToken) {
        let mut memory = Memory::default();
        loop {
            let pass = self.refresh(&mut memory, &shutdown);
            tokio::select! {
                () = pass => {}
                // Nothing is lost: what was not written is found again by the next process.
                () = shutdown.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(self.config.status_update_frequency) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn refresh(&self, memory: &mut Memory, shutdown: &CancellationToken) {
        let Some(instances) = self.cloud.instances() else {
            return;
        };
        let began = Instant::now();
        let mut nodes = self.nodes.list();
        nodes.retain(|node| {
            !node.has_taint(UNINITIALIZED_TAINT)
                && matches!(desired::is_asked_about(node, &*self.cloud), Ok(true))
        });
        if nodes.is_empty() {
            return;
        }
        // What was read for joining nodes shortly before need not be read again.
        let recent = self.config.status_update_frequency / 10;
        let freshness = Freshness::After(began.checked_sub(recent).unwrap_or(began));
        let mut pass = Pass::after(std::mem::take(memory));
        // In pieces, so that what is known of ten thousand nodes is not all there at once; whatever the provider
        // caches for one piece serves the next.
        for piece in nodes.chunks(PIECE) {
            let query = |node: &Arc<NodeObject>| InstanceQuery {
                node: Arc::clone(&node.view),
                need: Need::Metadata,
            };
            let queries: Vec<_> = piece.iter().map(query).collect();
            let answers = instances
                .describe(&queries, freshness, Priority::Background)
                .await;
            for (node, answer) in piece.iter().zip(answers) {
                self.judge(node, answer, &mut pass);
            }
        }
        pass.tell_failures();
        self.metrics
            .topology_mismatch
            .set(count(pass.seen.topology.len()));
        let Pass { seen, due, .. } = pass;
        *memory = seen;

        let changed = due.len();
        let writers = self.config.concurrent_status_updates.get();
        futures_util::stream::iter(due)
            .for_each_concurrent(writers, async |(node, actions)| {
                if !shutdown.is_cancelled() {
                    self.refresh_node(&node, actions).await;
                }
            })
            .await;
        let elapsed = began.elapsed();
        self.metrics.refresh_duration.observe(elapsed.as_secs_f64());
        debug!(controller = COMPONENT, changed, ?elapsed, "Refreshed nodes");
    }

    /// What the answer about one node means.
    fn judge(&self, node: &Arc<NodeObject>, answer: Result<InstanceState>, pass: &mut Pass) {
        let result = match answer {
            Ok(InstanceState::Present(instance)) => match self.compare(node, &instance, pass) {
                Ok(actions) if actions.is_empty() => "unchanged",
                Ok(actions) => {
                    // Counted when it is written.
                    return pass.due.push((Arc::clone(node), actions));
                }
                Err(error) => {
                    debug!(node = node.view.name, %error, "Left the node as it is");
                    "failed"
                }
            },
            // Whether the node is to be deleted is not for a refresh to say.
            Ok(InstanceState::Absent | InstanceState::Unresolved) => {
                pass.keep(&node.view.uid);
                "missing"
            }
            Ok(InstanceState::Unmanaged) => "unmanaged",
            Err(error) => {
                debug!(
                    node = node.view.name,
                    error = error.report(),
                    "Could not refresh node"
                );
                pass.keep(&node.view.uid);
                pass.failed += 1;
                pass.failure.get_or_insert(error);
                "failed"
            }
        };
        self.metrics.refreshed(result);
    }

    /// Compares one node with its machine; reports a zone or region that may not be followed.
    fn compare(
        &self,
        node: &NodeObject,
        instance: &Instance,
        pass: &mut Pass,
    ) -> std::result::Result<Vec<NodeAction>, ProvidedIpError> {
        let uid = &node.view.uid;
        let previous = pass.before.labels.get(uid);
        let found = desired::difference(node, instance, previous, self.config.refresh_topology_labels);
        let labels: NewLabels = desired::additional_labels(instance)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if !labels.is_empty() {
            pass.seen.labels.insert(uid.clone(), labels);
        }
        let difference = found?;
        if !difference.topology.is_empty() {
            if pass.before.topology.get(uid) != Some(&difference.topology) {
                self.tell_topology(node, &difference.topology);
            }
            pass.seen
                .topology
                .insert(uid.clone(), difference.topology.clone());
        }
        Ok(difference.actions(node))
    }

    fn tell_topology(&self, node: &NodeObject, labels: &NewLabels) {
        warn!(
            controller = COMPONENT,
            node = node.view.name,
            ?labels,
            "Topology differs"
        );
        let values: Vec<_> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let message = format!(
            "The cloud now says {}; the node's labels are left as they are, since volumes have affinity to them \
             (--refresh-topology-labels changes them)",
            values.join(", ")
        );
        self.recorder
            .publish(node.reference(), EventType::Warning, "TopologyChanged", &message);
    }

    async fn refresh_node(&self, node: &NodeObject, actions: Vec<NodeAction>) {
        let name = node.view.name.as_str();
        let (mut result, mut addresses, mut labels) = (Ok(()), false, Vec::new());
        for action in &actions {
            match action {
                NodeAction::SetLabels { labels: new, .. } => labels.extend(new.keys()),
                _ => addresses = true,
            }
            if result.is_ok() {
                result = self.apply(node, action).await;
            }
        }
        match result {
            Ok(()) => {
                self.metrics.refreshed("changed");
                info!(
                    controller = COMPONENT,
                    node = name,
                    addresses,
                    ?labels,
                    "Updated node from the cloud"
                );
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                self.metrics.refreshed("failed");
                // The next pass finds the difference again.
                debug!(
                    node = name,
                    error = ccm_core::error::report(&error),
                    "Could not update node"
                );
            }
        }
    }
}
