//! Node IPAM: writes the networks of a node's Pods (`spec.podCIDRs`) to nodes without any.
//!
//! A provider's controller calls [`run`] with an allocator: [`RangeAllocator`] divides the cluster's CIDRs, and a cloud may have one that
//! reads what its network has assigned.
//!
//! # Expected flow
//!
//! 1. The store of nodes is filled. The allocator learns the networks of all nodes that have some ([`CidrAllocator::occupy`]).
//! 2. A node without networks is queued, and with [`CidrAllocator::REPAIRS_NETWORK`] also one whose network is not reported as available.
//! 3. All queued nodes are asked about together. Each gets its networks and, if the allocator repairs the network, the condition
//!    `NetworkUnavailable=False`.
//! 4. A node that is deleted returns its networks.
//!
//! # Guarantees
//!
//! - Networks of a node are never changed, only added if it has none.
//! - A network is given to one node only: it is free again when its node is deleted, or when it was certainly not written.
//!
//! # Caveats
//!
//! - Two nodes that were given the same network by other programs keep it. It is reported.

mod range;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use ipnet::IpNet;
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

pub use self::range::{RangeAllocator, RangeFlags, RangeProblem};
use super::{
    Backoff, ControllerContext, ControllerNames, ControllerSetup, EventType, Needs, NodeObject, NotStarted,
    StoreChange, WorkQueue, node::NetworkCondition,
};
use crate::{Error, ErrorKind, FlagValues, Result, error::report, flags::parse_bool};

/// The names of the controller.
pub const NAMES: ControllerNames = ControllerNames {
    name: "node-ipam-controller",
    aliases: &["nodeipam", "node-ipam"],
    migration_name: None,
    client_name: "node-controller",
};

/// The backoff between tries.
const BACKOFF: Backoff = Backoff::millis(250, 15_000);
/// Changes within this interval are handled together.
const IDLE: Duration = Duration::from_millis(50);
/// The most nodes that are asked about together.
const BATCH: usize = 500;
/// Nodes that are written at the same time.
const WRITES: usize = 30;
/// The taint of nodes whose network is not available.
const NETWORK_TAINT: &str = "node.kubernetes.io/network-unavailable";
/// The reason of the Event about a node that gets no network. Source: `pkg/controller/nodeipam` of Kubernetes.
const NOT_AVAILABLE: &str = "CIDRNotAvailable";

/// Chooses the networks of the Pods of nodes.
#[async_trait]
pub trait CidrAllocator: Send + Sync {
    /// Whether the network of a node with networks counts as available, so that the condition `NetworkUnavailable` is set.
    const REPAIRS_NETWORK: bool;

    /// A node has these networks.
    ///
    /// # Errors
    /// They cannot be the node's, since they are not networks for Pods or another node's.
    fn occupy(&mut self, node: &str, cidrs: &[IpNet]) -> Result<()>;

    /// The node with these networks was deleted, or did not get them. Those that other nodes have are occupied again.
    fn release(&mut self, node: &str, cidrs: &[IpNet]);

    /// The networks of these nodes: one, or one of each family. An error of kind `InvalidSpec` or `QuotaExceeded` is reported at
    /// the node.
    async fn allocate(&mut self, nodes: &[Arc<NodeObject>]) -> Vec<Result<Vec<IpNet>>>;
}

/// Whether `--allocate-node-cidrs` is set, which every provider with this controller defines.
#[must_use]
pub fn is_configured(flags: &FlagValues) -> bool {
    let value = flags.given("allocate-node-cidrs").and_then(|values| values.last());
    value.is_some_and(|text| parse_bool(text).unwrap_or_default())
}

/// What the controller needs, if it is configured.
///
/// # Errors
/// It is not.
pub fn needs(setup: &ControllerSetup) -> Result<Needs, NotStarted> {
    if is_configured(&setup.flags) {
        Ok(Needs {
            pod_cidrs: true,
            ..Needs::default()
        })
    } else {
        Err(NotStarted::NotConfigured("--allocate-node-cidrs is not set"))
    }
}

/// Runs until shutdown. `concerns`: whether a node may get networks now.
pub async fn run<A: CidrAllocator>(
    context: ControllerContext,
    allocator: A,
    concerns: fn(&NodeObject) -> bool,
) {
    let queue = WorkQueue::new(BACKOFF, "node_ipam", context.metrics.queues());
    let ipam = NodeIpam {
        controller: NAMES.name,
        queue,
        nodes: Api::all(context.client.clone()),
        known: HashMap::new(),
        allocator,
        concerns,
        context,
    };
    ipam.run().await;
}

struct NodeIpam<A> {
    controller: &'static str,
    queue: WorkQueue<String>,
    nodes: Api<Node>,
    /// The networks of nodes, by name.
    known: HashMap<String, Vec<IpNet>>,
    allocator: A,
    concerns: fn(&NodeObject) -> bool,
    context: ControllerContext,
}

/// The result of writing the networks of a node.
enum Written {
    Done,
    /// The API server refused it: the node does not have the networks.
    Refused(Error),
    /// There is no answer: the node may have the networks.
    Unknown(Error),
}

impl<A: CidrAllocator> NodeIpam<A> {
    async fn run(mut self) {
        let shutdown = self.context.shutdown.clone();
        let mut changes = self.context.nodes.subscribe();
        tokio::select! {
            () = self.context.nodes.synced() => {}
            () = shutdown.cancelled() => return,
        }
        // All networks in use must be known before the first one is given away.
        for node in self.context.nodes.list() {
            self.learn(&node);
        }
        info!(controller = self.controller, nodes = self.known.len(), "Controller started");
        for node in self.context.nodes.list() {
            self.enqueue(&node);
        }
        let (mut batch, mut due) = (HashSet::new(), Instant::now());
        loop {
            // Running writes end before the process does.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                Some(change) = changes.recv() => self.changed(change),
                name = self.queue.next(), if batch.len() < BATCH => {
                    if batch.is_empty() {
                        due = Instant::now() + IDLE;
                    }
                    batch.insert(name);
                }
                () = sleep_until(due), if !batch.is_empty() => self.handle(std::mem::take(&mut batch)).await,
            }
        }
    }

    fn changed(&mut self, change: StoreChange) {
        let name = change.into_key();
        match self.context.nodes.get(&name) {
            Some(node) => {
                self.learn(&node);
                self.enqueue(&node);
            }
            None => self.forget(&name),
        }
    }

    /// Remembers the networks that a node has.
    fn learn(&mut self, node: &NodeObject) {
        let (name, cidrs) = (&node.view.name, node.pod_cidrs.to_vec());
        if cidrs.is_empty() || self.known.get(name) == Some(&cidrs) {
            return;
        }
        // Another node of this name.
        self.forget(name);
        if let Err(error) = self.allocator.occupy(name, &cidrs) {
            warn!(
                controller = self.controller,
                node = name,
                error = error.report(),
                "The node has unexpected podCIDRs"
            );
        }
        self.known.insert(name.clone(), cidrs);
    }

    fn forget(&mut self, name: &str) {
        let Some(cidrs) = self.known.remove(name) else {
            return;
        };
        self.allocator.release(name, &cidrs);
        // Another node may have the same ones.
        for (other, others) in &self.known {
            if others.iter().any(|cidr| cidrs.contains(cidr)) {
                let _ = self.allocator.occupy(other, others);
            }
        }
    }

    fn enqueue(&self, node: &NodeObject) {
        let is_unavailable = node.network != NetworkCondition::RouteCreated
            || node.has_exact_taint(NETWORK_TAINT, "NoSchedule");
        let needs_work = node.pod_cidrs.is_empty() || (A::REPAIRS_NETWORK && is_unavailable);
        if needs_work && (self.concerns)(node) {
            self.queue.add_unless_waiting(node.view.name.clone());
        }
    }

    /// Gives networks to these nodes.
    async fn handle(&mut self, names: HashSet<String>) {
        let mut nodes = Vec::new();
        for name in names {
            match self.context.nodes.get(&name) {
                Some(node) => nodes.push(node),
                None => self.queue.done(&name),
            }
        }
        let mut writes = Vec::new();
        // The last write of these may have been carried out.
        nodes.retain(|node| match self.known.get(&node.view.name) {
            Some(claimed) if node.pod_cidrs.is_empty() => {
                writes.push((Arc::clone(node), claimed.clone()));
                false
            }
            _ => true,
        });
        let allocated = self.allocator.allocate(&nodes).await;
        for (node, cidrs) in nodes.into_iter().zip(allocated) {
            match cidrs {
                Ok(cidrs) => writes.push((node, cidrs)),
                Err(error) => self.refused(&node, &error),
            }
        }
        let sent: Vec<_> = writes.iter().map(|(node, cidrs)| self.write(node, cidrs)).collect();
        let results: Vec<Written> = stream::iter(sent).buffered(WRITES).collect().await;
        for ((node, cidrs), written) in writes.into_iter().zip(results) {
            let name = &node.view.name;
            match written {
                Written::Done => {
                    self.known.insert(name.clone(), cidrs);
                    self.queue.done(name);
                    continue;
                }
                Written::Refused(error) => {
                    if node.pod_cidrs.is_empty() {
                        self.known.remove(name);
                        self.allocator.release(name, &cidrs);
                    }
                    debug!(
                        controller = self.controller,
                        node = name,
                        error = error.report(),
                        "Will try again to write podCIDRs"
                    );
                }
                Written::Unknown(error) => {
                    // The node keeps its claim, so that the next try is the same.
                    self.known.insert(name.clone(), cidrs);
                    debug!(
                        controller = self.controller,
                        node = name,
                        error = error.report(),
                        "Will try again to write podCIDRs"
                    );
                }
            }
            self.queue.done_with_backoff(name);
        }
    }

    /// A node gets no network.
    fn refused(&self, node: &NodeObject, error: &Error) {
        let text = error.report();
        debug!(
            controller = self.controller,
            node = node.view.name,
            error = text,
            "No podCIDRs for the node"
        );
        if matches!(error.kind(), ErrorKind::InvalidSpec | ErrorKind::QuotaExceeded) {
            let message = format!("Node {} status is now: {NOT_AVAILABLE}: {text}", node.view.name);
            self.context
                .recorder
                .publish(node.reference(), EventType::Warning, NOT_AVAILABLE, &message);
        }
        self.queue.done_with_backoff(&node.view.name);
    }

    /// Writes what the node lacks of its networks and of the condition.
    async fn write(&self, node: &NodeObject, cidrs: &[IpNet]) -> Written {
        if node.pod_cidrs.is_empty() {
            let texts: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
            let patch = json!({
                "metadata": {"uid": node.view.uid},
                "spec": {"podCIDR": texts.first(), "podCIDRs": texts},
            });
            let written = self.patch(node, &patch, false).await;
            if !matches!(written, Written::Done) {
                return written;
            }
            info!(
                controller = self.controller,
                node = node.view.name,
                cidrs = texts.join(","),
                "Set podCIDRs of the node"
            );
        } else if *node.pod_cidrs != *cidrs {
            warn!(
                controller = self.controller,
                node = node.view.name,
                has = ?node.pod_cidrs,
                expected = ?cidrs,
                "The podCIDRs of the node differ, and cannot be changed"
            );
        }
        if !A::REPAIRS_NETWORK || node.network == NetworkCondition::RouteCreated {
            return Written::Done;
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = json!({"metadata": {"uid": node.view.uid}, "status": {"conditions": [{
            "type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated",
            "message": "NodeController create implicit route",
            "lastTransitionTime": now, "lastHeartbeatTime": now,
        }]}});
        self.patch(node, &patch, true).await
    }

    async fn patch(&self, node: &NodeObject, patch: &Value, is_status: bool) -> Written {
        let (name, options, patch) = (&node.view.name, PatchParams::default(), Patch::Strategic(patch));
        let patched = if is_status {
            self.nodes.patch_status(name, &options, &patch).await
        } else {
            self.nodes.patch(name, &options, &patch).await
        };
        match patched {
            Ok(_) => Written::Done,
            Err(kube::Error::Api(status)) => {
                let text = format!("the API server refused it: {}", status.message);
                Written::Refused(Error::new(ErrorKind::Unavailable, text))
            }
            Err(error) => Written::Unknown(Error::new(ErrorKind::Unavailable, report(&error))),
        }
    }
}

#[cfg(test)]
mod tests;
