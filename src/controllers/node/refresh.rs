//! The periodic refresh: one question about all nodes, patches for differences only.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{Freshness, Instance, InstanceQuery, InstanceState, Need, Priority};
use futures_util::StreamExt;
use kube::api::PatchParams;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    COMPONENT, NodeController,
    desired::{self, Difference, NewLabels, UNINITIALIZED_TAINT},
    initialize::{is_gone, reference},
    patch,
};
use crate::{events::EventType, informers::node::NodeObject};

/// How many nodes are asked about at once. A multiple of what a provider asks about in one request (150 of Neutron's
/// ports), so that the pieces cost no request more than the whole.
const PIECE: usize = 900;

/// What one refresh remembers for the next.
#[derive(Debug, Default)]
struct Memory {
    /// The additional labels that the cloud gave, by node uid. Only nodes that have some.
    labels: HashMap<String, NewLabels>,
    /// The zone and region that were reported as different, by node uid.
    topology: HashMap<String, NewLabels>,
    /// The failure that was logged last.
    failure: Option<String>,
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
                && node.meta.deletion_timestamp.is_none()
                && node
                    .view
                    .provider_id
                    .as_deref()
                    .is_none_or(|id| self.cloud.owns(id))
        });
        if nodes.is_empty() {
            return;
        }
        // What was read for joining nodes shortly before need not be read again.
        let recent = self.config.status_update_frequency / 10;
        let freshness = Freshness::After(began.checked_sub(recent).unwrap_or(began));
        let mut seen = Memory::default();
        let mut failed = 0_usize;
        let mut failure = None;
        let mut due = Vec::new();
        // In pieces, so that what is known of ten thousand nodes is not all there at once; whatever the provider
        // caches for one piece serves the next.
        for piece in nodes.chunks(PIECE) {
            let queries: Vec<_> = piece
                .iter()
                .map(|node| InstanceQuery {
                    node: Arc::clone(&node.view),
                    need: Need::Metadata,
                })
                .collect();
            let answers = instances
                .describe(&queries, freshness, Priority::Background)
                .await;
            for (node, answer) in piece.iter().zip(answers) {
                match answer {
                    Ok(InstanceState::Present(instance)) => {
                        if let Some(difference) = self.compare(node, &instance, memory, &mut seen) {
                            due.push((Arc::clone(node), difference));
                        }
                    }
                    // Whether it is to be deleted is the lifecycle controller's to find out.
                    Ok(InstanceState::Absent | InstanceState::Unresolved) => {
                        self.metrics.refreshed("missing");
                    }
                    Ok(InstanceState::Unmanaged) => {}
                    Err(error) => {
                        self.metrics.refreshed("failed");
                        failed += 1;
                        debug!(
                            node = node.view.name,
                            error = error.report(),
                            "Could not refresh node"
                        );
                        failure.get_or_insert(error);
                    }
                }
            }
        }
        match &failure {
            Some(error) if memory.failure.as_deref() != Some(error.kind().as_str()) => {
                warn!(
                    controller = COMPONENT,
                    nodes = failed,
                    error = error.report(),
                    "Could not refresh nodes"
                );
            }
            None if memory.failure.is_some() => info!(controller = COMPONENT, "Nodes are refreshed again"),
            _ => {}
        }
        seen.failure = failure.map(|error| error.kind().as_str().to_owned());
        self.metrics
            .topology_mismatch
            .set(i64::try_from(seen.topology.len()).unwrap_or(i64::MAX));
        *memory = seen;

        let changed = due.len();
        futures_util::stream::iter(due)
            .for_each_concurrent(
                self.config.concurrent_status_updates.get(),
                async |(node, difference)| {
                    if !shutdown.is_cancelled() {
                        self.write_difference(&node, difference).await;
                    }
                },
            )
            .await;
        self.metrics
            .refresh_duration
            .observe(began.elapsed().as_secs_f64());
        debug!(controller = COMPONENT, changed, elapsed = ?began.elapsed(), "Refreshed nodes");
    }

    /// Compares one node; reports a zone or region that may not be followed.
    fn compare(
        &self,
        node: &NodeObject,
        instance: &Instance,
        memory: &Memory,
        seen: &mut Memory,
    ) -> Option<Difference> {
        let uid = &node.view.uid;
        let previous = memory.labels.get(uid);
        let found = desired::difference(node, instance, previous, self.config.refresh_topology_labels);
        let labels: NewLabels = desired::additional_labels(instance)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if !labels.is_empty() {
            seen.labels.insert(uid.clone(), labels);
        }
        let difference = match found {
            Ok(difference) => difference,
            Err(error) => {
                self.metrics.refreshed("failed");
                debug!(node = node.view.name, %error, "Left the node's addresses as they are");
                return None;
            }
        };
        if !difference.topology.is_empty() {
            if memory.topology.get(uid) != Some(&difference.topology) {
                let message = format!(
                    "The cloud now says {}; the node's labels are left as they are, since volumes have affinity to \
                     them (--refresh-topology-labels changes them)",
                    difference
                        .topology
                        .iter()
                        .map(|(key, value)| format!("{key}={value}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                );
                warn!(controller = COMPONENT, node = node.view.name, labels = ?difference.topology, "Topology differs");
                self.recorder
                    .publish(reference(node), EventType::Warning, "TopologyChanged", &message);
            }
            seen.topology.insert(uid.clone(), difference.topology.clone());
        }
        if difference.addresses.is_none() && difference.labels.is_empty() {
            self.metrics.refreshed("unchanged");
            return None;
        }
        Some(difference)
    }

    async fn write_difference(&self, node: &NodeObject, difference: Difference) {
        let (name, uid) = (node.view.name.as_str(), node.view.uid.as_str());
        let params = PatchParams::default();
        let mut result = Ok(());
        if let Some(addresses) = &difference.addresses {
            let patch = patch::addresses(uid, addresses);
            result = self.api.patch_status(name, &params, &patch).await.map(drop);
        }
        if result.is_ok() && !difference.labels.is_empty() {
            result = self
                .api
                .patch(name, &params, &patch::labels(uid, &difference.labels))
                .await
                .map(drop);
        }
        match result {
            Ok(()) => {
                self.metrics.refreshed("changed");
                let labels = difference.labels.keys();
                info!(
                    controller = COMPONENT,
                    node = name,
                    addresses = difference.addresses.is_some(),
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
