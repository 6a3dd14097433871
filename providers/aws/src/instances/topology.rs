//! Topology labels: the network nodes above an instance.
//!
//! DescribeInstanceTopology allows one request a second, for 100 instances. No node waits for it: instances are collected
//! and read in the background, and their labels appear with the next refresh of their nodes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{ErrorKind, Instance, NodeView, Priority, Result};
use parking_lot::Mutex;
use regex::Regex;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{isolate_refused, provider_id};
use crate::client::{Api, ec2::TOPOLOGY_INSTANCES};

/// The label of the n-th network node from the top, from 1.
const LAYER: &str = "topology.k8s.aws/network-node-layer-";
/// The topology of an instance without one is read again after this.
const UNSUPPORTED: Duration = Duration::from_secs(24 * 3600);
/// The pause after a failed read.
const PAUSE: Duration = Duration::from_secs(60);
/// The most instances whose topology is remembered until their nodes have it.
const MAX_REMEMBERED: usize = 20_000;

/// Collects instances and reads their topology.
#[derive(Debug)]
pub(super) struct Topology {
    api: Api,
    /// Instance types that should have a topology.
    types: Option<Regex>,
    state: Mutex<TopologyState>,
}

#[derive(Debug, Default)]
struct TopologyState {
    /// The network nodes of instances that were read.
    known: HashMap<String, Vec<String>>,
    /// Instances and their types that are to be read.
    open: BTreeSet<(String, String)>,
    /// The time until which an instance or a type is not read. The empty name pauses all reads: the region has no topology, or
    /// the last request failed.
    unsupported: HashMap<String, Instant>,
    is_reading: bool,
}

impl Topology {
    pub(super) fn new(api: &Api, types: Option<Regex>) -> Arc<Self> {
        Arc::new(Self {
            api: api.clone(),
            types,
            state: Mutex::default(),
        })
    }

    /// Adds the labels of an instance if they are known; if not, they are read for the next time.
    pub(super) fn label(self: &Arc<Self>, node: &NodeView, instance: &mut Instance) {
        let Some(kind) = &instance.instance_type else {
            return;
        };
        let id = instance.provider_id.rsplit('/').next().unwrap_or_default();
        let mut state = self.state.lock();
        if node.labels.contains_key(&format!("{LAYER}1")) {
            state.known.remove(id);
            return;
        }
        if let Some(nodes) = state.known.get(id) {
            for (number, node) in (1..).zip(nodes) {
                instance.labels.insert(format!("{LAYER}{number}"), node.clone());
            }
            return;
        }
        let now = Instant::now();
        state.unsupported.retain(|_, until| *until > now);
        let is_unsupported = ["", id, kind].iter().any(|name| state.unsupported.contains_key(*name));
        if is_unsupported || !provider_id::is_well_formed(id) {
            return;
        }
        state.open.insert((id.to_owned(), kind.clone()));
        if !std::mem::replace(&mut state.is_reading, true) {
            drop(state);
            tokio::spawn(Arc::clone(self).read());
        }
    }

    /// The next instances to read. If there are none, the task ends.
    fn next_batch(&self) -> Option<Vec<(String, String)>> {
        let mut state = self.state.lock();
        let batch: Vec<_> = (0..TOPOLOGY_INSTANCES).map_while(|_| state.open.pop_first()).collect();
        state.is_reading = !batch.is_empty();
        if batch.is_empty() { None } else { Some(batch) }
    }

    /// Reads until no instance is pending.
    async fn read(self: Arc<Self>) {
        while let Some(batch) = self.next_batch() {
            let ids: Vec<_> = batch.iter().map(|(id, _)| id.clone()).collect();
            // EC2 refuses a whole request because of one instance that does not exist.
            let mut found = isolate_refused(&[ErrorKind::NotFound], ids, |ids| self.topologies(ids)).await;
            let mut failure = None;
            let mut state = self.state.lock();
            let now = Instant::now();
            if state.known.len() > MAX_REMEMBERED {
                state.known.clear();
            }
            for (id, kind) in batch {
                match found.remove(&id) {
                    Some(Ok(Some(nodes))) => {
                        state.known.insert(id, nodes);
                    }
                    Some(Ok(None)) | None => {
                        // Other instances of a type that should have a topology may have one.
                        let should = self.types.as_ref().is_some_and(|types| types.is_match(&kind));
                        let name = if should { id } else { kind };
                        state.unsupported.insert(name, now + UNSUPPORTED);
                    }
                    Some(Err(error)) if error.kind() == ErrorKind::NotFound => {
                        debug!(
                            instance_id = id,
                            error = error.report(),
                            "An instance without a topology does not exist"
                        );
                        state.unsupported.insert(id, now + PAUSE);
                    }
                    Some(Err(error)) => failure = Some(error),
                }
            }
            if let Some(error) = failure {
                let report = error.report();
                let pause = match error.kind() {
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied => {
                        warn!(error = report, "Nodes get no topology labels");
                        UNSUPPORTED
                    }
                    _ => {
                        debug!(error = report, "Could not read the topology of instances");
                        PAUSE
                    }
                };
                state.unsupported.insert(String::new(), now + pause);
                state.open.clear();
            }
        }
    }

    /// The topology of each of these instances, in their order; `None`: it has none.
    async fn topologies(&self, ids: Vec<String>) -> Result<Vec<Option<Vec<String>>>> {
        let mut found = self.api.at(Priority::Background).topology(&ids).await?;
        Ok(ids.iter().map(|id| found.remove(id)).collect())
    }
}
