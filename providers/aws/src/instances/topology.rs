//! Topology labels: which network nodes are above an instance.
//!
//! DescribeInstanceTopology lets one request a second through, for 100 instances. Nobody waits for it: instances are collected
//! and read in the background, and their labels appear with the next refresh of their nodes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{ErrorKind, Instance, NodeView, Priority};
use parking_lot::Mutex;
use regex::Regex;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::provider_id;
use crate::client::{Api, ec2::TOPOLOGY_INSTANCES};

/// The label of the n-th network node from the top, from 1.
const LAYER: &str = "topology.k8s.aws/network-node-layer-";
/// What has no topology is asked for it again after this.
const UNSUPPORTED: Duration = Duration::from_secs(24 * 3600);
/// After a failure, nobody is asked for this long.
const PAUSE: Duration = Duration::from_secs(60);
/// Instances whose topology is remembered until their nodes have it.
const REMEMBERED: usize = 20_000;

/// Collects instances and reads their topology.
#[derive(Debug)]
pub(super) struct Topology(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    api: Api,
    /// Instance types that should have a topology.
    types: Option<Regex>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The network nodes of instances that were read.
    known: HashMap<String, Vec<String>>,
    /// Instances and their types that are to be read.
    open: BTreeSet<(String, String)>,
    /// Until when an instance or a type is not asked for.
    unsupported: HashMap<String, Instant>,
    /// Until when nothing is read, because the region has no topology, or the last request failed.
    paused: Option<Instant>,
    is_reading: bool,
}

impl Topology {
    pub(super) fn new(api: &Api, types: Option<Regex>) -> Self {
        Self(Arc::new(Inner {
            api: api.clone(),
            types,
            state: Mutex::default(),
        }))
    }

    /// Adds the labels of an instance if they are known; if not, they are read for the next time.
    pub(super) fn label(&self, node: &NodeView, instance: &mut Instance) {
        let Some(kind) = &instance.instance_type else {
            return;
        };
        let id = instance.provider_id.rsplit('/').next().unwrap_or_default();
        let mut state = self.0.state.lock();
        if node.labels.contains_key(&format!("{LAYER}1")) {
            state.known.remove(id);
            return;
        }
        if let Some(nodes) = state.known.get(id) {
            let labels = (1..)
                .zip(nodes)
                .map(|(n, node)| (format!("{LAYER}{n}"), node.clone()));
            instance.labels.extend(labels);
            return;
        }
        let now = Instant::now();
        state.unsupported.retain(|_, until| *until > now);
        let known_without = state.unsupported.contains_key(id) || state.unsupported.contains_key(kind);
        let is_paused = state.paused.is_some_and(|until| until > now);
        if known_without || is_paused || !provider_id::is_well_formed(id) {
            return;
        }
        state.open.insert((id.to_owned(), kind.clone()));
        if !std::mem::replace(&mut state.is_reading, true) {
            drop(state);
            tokio::spawn(Arc::clone(&self.0).read());
        }
    }
}

impl Inner {
    /// Reads until nothing is open.
    async fn read(self: Arc<Self>) {
        loop {
            let batch: Vec<(String, String)> = {
                let mut state = self.state.lock();
                let batch: Vec<_> = (0..TOPOLOGY_INSTANCES)
                    .map_while(|_| state.open.pop_first())
                    .collect();
                if batch.is_empty() {
                    state.is_reading = false;
                    return;
                }
                batch
            };
            let ids: Vec<String> = batch.iter().map(|(id, _)| id.clone()).collect();
            let found = self.api.at(Priority::Background).topology(&ids).await;
            let mut state = self.state.lock();
            let now = Instant::now();
            match found {
                Ok(mut found) => {
                    if state.known.len() > REMEMBERED {
                        state.known.clear();
                    }
                    for (id, kind) in batch {
                        if let Some(nodes) = found.remove(&id) {
                            state.known.insert(id, nodes);
                        } else {
                            // Of a type that should have one, others may.
                            let should = self.types.as_ref().is_some_and(|types| types.is_match(&kind));
                            state
                                .unsupported
                                .insert(if should { id } else { kind }, now + UNSUPPORTED);
                        }
                    }
                }
                Err(error) => {
                    let lasting =
                        matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied);
                    if lasting {
                        warn!(error = error.report(), "Nodes get no topology labels");
                    } else {
                        debug!(error = error.report(), "Could not read the topology of instances");
                    }
                    state.paused = Some(now + if lasting { UNSUPPORTED } else { PAUSE });
                    state.open.clear();
                }
            }
        }
    }
}
