//! Watches the initialization of nodes.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::observe;
use anyhow::{Context, Result, bail};
use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{sync::watch, task::JoinHandle};

/// One node, in a form for tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Whether the taint `uninitialized` is removed.
    pub initialized: bool,
    /// `spec.providerID`.
    pub provider_id: String,
    /// The label with the zone.
    pub zone: String,
    /// The label with the instance type.
    pub instance_type: String,
    /// All addresses except the host name.
    pub addresses: String,
}

impl Row {
    fn of(node: &Node) -> Self {
        let label = |key| observe::label(node, key).unwrap_or_default().to_owned();
        Self {
            initialized: observe::is_initialized(node),
            provider_id: observe::provider_id(node).to_owned(),
            zone: label("topology.kubernetes.io/zone"),
            instance_type: label("node.kubernetes.io/instance-type"),
            addresses: observe::addresses(node)
                .into_iter()
                .filter(|(kind, _)| *kind != "Hostname")
                .map(|(_, address)| address)
                .collect::<Vec<_>>()
                .join(","),
        }
    }
}

/// All nodes at one moment.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// The nodes by their names.
    pub rows: BTreeMap<String, Row>,
    /// The time at which the last node became initialized.
    pub finished: Option<Instant>,
}

impl Nodes {
    /// The number of initialized nodes.
    #[must_use]
    pub fn initialized(&self) -> usize {
        self.rows.values().filter(|row| row.initialized).count()
    }
}

/// Watches the nodes of a cluster until it is dropped.
pub struct Watch {
    nodes: watch::Receiver<Arc<Nodes>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Starts to watch the nodes.
    #[must_use]
    pub fn start(client: Client) -> Self {
        let (sender, nodes) = watch::channel(Arc::default());
        let task = tokio::spawn(async move {
            let config = watcher::Config::default().page_size(500);
            let events = watcher(Api::<Node>::all(client), config).default_backoff();
            let mut events = std::pin::pin!(events);
            loop {
                let event = match events.try_next().await {
                    Ok(Some(event)) => event,
                    Ok(None) => return,
                    // The watcher retries. The control plane may be restarting.
                    Err(_) => continue,
                };
                sender.send_modify(|nodes: &mut Arc<Nodes>| {
                    let nodes = Arc::make_mut(nodes);
                    match event {
                        watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
                            let row = Row::of(&node);
                            let name = node.metadata.name.unwrap_or_default();
                            let news =
                                row.initialized && !nodes.rows.get(&name).is_some_and(|row| row.initialized);
                            nodes.rows.insert(name, row);
                            if news {
                                nodes.finished = Some(Instant::now());
                            }
                        }
                        watcher::Event::Delete(node) => {
                            nodes.rows.remove(&node.metadata.name.unwrap_or_default());
                        }
                        watcher::Event::Init | watcher::Event::InitDone => {}
                    }
                });
            }
        });
        Self { nodes, task }
    }

    /// The present nodes.
    pub fn now(&self) -> Arc<Nodes> {
        Arc::clone(&self.nodes.borrow())
    }

    /// Returns when `count` nodes are initialized.
    pub async fn initialized(&mut self, count: usize, limit: Duration) -> Result<Arc<Nodes>> {
        match self.wait(limit, |nodes| nodes.initialized() >= count).await? {
            Some(nodes) => Ok(nodes),
            None => bail!("{} of {count} nodes initialized after {limit:?}", self.now().initialized()),
        }
    }

    /// Returns when at most `count` nodes are left.
    pub async fn left(&mut self, count: usize, limit: Duration) -> Result<()> {
        match self.wait(limit, |nodes| nodes.rows.len() <= count).await? {
            Some(_) => Ok(()),
            None => bail!("{} nodes are left after {limit:?}, expected {count}", self.now().rows.len()),
        }
    }

    /// The nodes as soon as they satisfy the condition; `None` if they do not within the limit.
    async fn wait(
        &mut self,
        limit: Duration,
        done: impl FnMut(&Arc<Nodes>) -> bool,
    ) -> Result<Option<Arc<Nodes>>> {
        match tokio::time::timeout(limit, self.nodes.wait_for(done)).await {
            Ok(nodes) => nodes.map(|nodes| Some(Arc::clone(&nodes))).context("the watch of the nodes ended"),
            Err(_) => Ok(None),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
