//! The environment of scenarios: control plane, proxy, cloud, and machines for the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use parking_lot::Mutex;

use crate::binary::{Ccm, Launch};
use crate::nodes::{self, NodeSpec};
use crate::observe::{addresses, eventually, is_initialized, label, provider_id, taints};
use crate::proxy::Proxy;
use crate::stage::Stage;
use crate::sweep::{Environment, Party};
use crate::test_cloud::{Machine, TestCloud};

/// Time limit of each step that prepares a scenario.
const LIMIT: Duration = Duration::from_secs(120);
/// The taint that the API server gives to every new Node.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Maximum number of patches of one Node: two for each process, and one restart.
const MOST_PATCHES: usize = 4;

/// Control plane, proxy, cloud and machines.
#[derive(Debug)]
pub struct Site {
    /// The cloud.
    pub cloud: Arc<dyn TestCloud>,
    /// The program's API server.
    pub proxy: Proxy,
    pub(super) nodes: Api<Node>,
    pub(super) events: Api<Event>,
    stage: tokio::sync::Mutex<Stage>,
    launch: Launch,
    /// The machines by display name.
    machines: Mutex<BTreeMap<String, Machine>>,
}

impl Site {
    /// Starts everything except the program.
    ///
    /// # Errors
    /// When a component does not start.
    pub async fn set(program: &Path, cloud: Arc<dyn TestCloud>) -> Result<Self> {
        let stage = Stage::set(program).await?;
        stage.write_cloud_config(&cloud.config())?;
        let client = stage.control_plane.client().await?;
        let proxy = Proxy::start(client.clone(), stage.folder()).await?;
        // A killed program does not release its Lease, and the next one would wait until it expires.
        let flags = ["--secure-port=0", "--leader-elect=false"];
        let mut launch = stage.command(cloud.provider(), proxy.kubeconfig(), &flags);
        launch.envs = cloud.environment();
        Ok(Self {
            nodes: Api::all(client.clone()),
            events: Api::default_namespaced(client),
            cloud,
            proxy,
            stage: tokio::sync::Mutex::new(stage),
            launch,
            machines: Mutex::default(),
        })
    }

    /// Rewrites the program's config with additional lines.
    pub(super) async fn configure(&self, more: &str) -> Result<()> {
        let text = format!("{}\n{more}", self.cloud.config());
        self.stage.lock().await.write_cloud_config(&text)
    }

    /// The command line of the program, with additional flags.
    #[must_use]
    pub fn launch(&self, flags: &[&str]) -> Launch {
        let mut launch = self.launch.clone();
        launch.args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        launch
    }

    /// The machine with this name, created if missing.
    pub(super) async fn machine(&self, name: &str) -> Result<Machine> {
        if let Some(machine) = self.machines.lock().get(name) {
            return Ok(machine.clone());
        }
        let machine = self.cloud.create_machine(name).await?;
        self.machines.lock().insert(name.to_owned(), machine.clone());
        Ok(machine)
    }

    /// The machines with these names, created if missing.
    pub(super) async fn machines(&self, names: &[String]) -> Result<Vec<Machine>> {
        let mut machines = Vec::with_capacity(names.len());
        for name in names {
            machines.push(self.machine(name).await?);
        }
        Ok(machines)
    }

    /// Deletes the machine with this name.
    pub(super) async fn delete_machine(&self, name: &str) -> Result<()> {
        let machine = self.machines.lock().remove(name);
        match machine {
            Some(machine) => self.cloud.delete_machine(&machine).await,
            None => Ok(()),
        }
    }

    /// Records the present state of a machine.
    pub(super) fn note(&self, name: &str, machine: Machine) {
        self.machines.lock().insert(name.to_owned(), machine);
    }

    /// Deletes all Nodes and Events.
    pub(super) async fn wipe(&self) -> Result<()> {
        let (delete, all) = (DeleteParams::background(), ListParams::default());
        self.nodes.delete_collection(&delete, &all).await?;
        self.wipe_events().await
    }

    pub(super) async fn wipe_events(&self) -> Result<()> {
        let (delete, all) = (DeleteParams::background(), ListParams::default());
        self.events.delete_collection(&delete, &all).await?;
        Ok(())
    }

    /// Registers Nodes like kubelets, with retries until the API server accepts them.
    pub(super) async fn register(&self, specs: &[NodeSpec]) -> Result<()> {
        let register = async || {
            let mut specs = specs.to_vec();
            if let Ok(known) = self.nodes.list(&ListParams::default()).await {
                let known: BTreeSet<_> =
                    known.items.into_iter().filter_map(|node| node.metadata.name).collect();
                specs.retain(|spec| !known.contains(&spec.name));
            }
            nodes::register(&self.nodes.clone().into_client(), &specs).await.ok()
        };
        let done = eventually(LIMIT, register).await;
        done.context("the API server does not accept nodes")
    }

    /// Creates machines and Nodes, and runs the program until the Nodes are initialized.
    pub(super) async fn settle(&self, names: &[String], launch: &Launch) -> Result<()> {
        if self.settled(names).await?.is_none() {
            return Ok(());
        }
        self.wipe().await?;
        let machines = self.machines(names).await?;
        let specs: Vec<_> = machines.iter().map(|machine| NodeSpec::new(&machine.node)).collect();
        self.register(&specs).await?;
        let mut ccm = Ccm::start(launch)?;
        let done = eventually(LIMIT, async || self.settled(names).await.ok()?.is_none().then_some(())).await;
        ccm.kill()?;
        match done {
            Some(()) => Ok(()),
            None => bail!("the nodes are not initialized; {}", ccm.log()?),
        }
    }

    /// The first difference between these Nodes and their machines, if any.
    pub(super) async fn settled(&self, names: &[String]) -> Result<Option<String>> {
        let machines = self.machines(names).await?;
        let found = self.list().await?;
        for (name, machine) in names.iter().zip(&machines) {
            let problem = match found.get(&machine.node) {
                None => Some("the Node does not exist".to_owned()),
                Some(node) => differs(machine, node),
            };
            if let Some(problem) = problem {
                return Ok(Some(format!("{name}: {problem}")));
            }
        }
        Ok(None)
    }

    /// All Nodes by name.
    pub(super) async fn list(&self) -> Result<BTreeMap<String, Node>> {
        let found = self.nodes.list(&ListParams::default()).await?;
        let named = found.items.into_iter();
        Ok(named.filter_map(|node| Some((node.metadata.name.clone()?, node))).collect())
    }

    /// Checks that only these Nodes exist, only `leaving` was deleted, and no patch or Event was repeated too often.
    pub(super) async fn check(&self, names: &[String], leaving: &[String]) -> Result<()> {
        let machines = self.machines(names).await?;
        let found = self.list().await?;
        let expected: BTreeSet<_> = machines.iter().map(|machine| &machine.node).collect();
        ensure!(found.keys().eq(expected), "the nodes are {:?}", found.keys());
        let mut patches = BTreeMap::<_, usize>::new();
        for write in self.proxy.writes() {
            let ours = write.resource == "nodes" && write.status.is_some_and(|status| status < 300);
            match write.method.as_str() {
                "DELETE" => ensure!(
                    write.resource == "nodes" && leaving.contains(&write.name),
                    "unexpected delete: {write}"
                ),
                "PATCH" if ours && write.fault.is_none() => *patches.entry(write.name).or_default() += 1,
                _ => {}
            }
        }
        if let Some((name, count)) = patches.into_iter().find(|(_, count)| *count > MOST_PATCHES) {
            bail!("{name} was patched {count} times");
        }
        self.check_events().await
    }

    /// Checks that each process wrote each Event at most once, with at most one restart.
    pub(super) async fn check_events(&self) -> Result<()> {
        let mut counts = BTreeMap::<_, usize>::new();
        for event in self.events.list(&ListParams::default()).await?.items {
            let what = (event.involved_object.name, event.reason, event.message);
            *counts.entry(what).or_default() += 1;
        }
        match counts.into_iter().find(|(_, count)| *count > 2) {
            Some((what, count)) => bail!("Event written {count} times: {what:?}"),
            None => Ok(()),
        }
    }
}

#[async_trait(?Send)]
impl Environment for Site {
    fn parties(&self) -> Vec<&dyn Party> {
        vec![self.cloud.party(), &self.proxy]
    }

    /// Kills the API server and starts it again.
    async fn disturb(&self) -> Result<()> {
        self.stage.lock().await.control_plane.restart().await
    }

    fn secrets(&self) -> Vec<String> {
        self.cloud.secrets()
    }
}

/// The difference between a Node and its machine.
fn differs(machine: &Machine, node: &Node) -> Option<String> {
    if !is_initialized(node) {
        return Some("not initialized".to_owned());
    }
    if provider_id(node) != machine.provider_id {
        let (found, expected) = (provider_id(node), &machine.provider_id);
        return Some(format!("provider ID {found} instead of {expected}"));
    }
    let expected: Vec<_> = machine
        .addresses
        .iter()
        .map(|(kind, address)| (kind.as_str(), address.as_str()))
        .collect();
    if addresses(node) != expected {
        return Some(format!("addresses {:?} instead of {expected:?}", addresses(node)));
    }
    // Labels of the kubelet and taints of others must be kept.
    let hostname = ("kubernetes.io/hostname".to_owned(), machine.node.clone());
    for (key, expected) in machine.labels.iter().chain([&hostname]) {
        let found = label(node, key);
        if found != Some(expected) {
            return Some(format!("label {key} is {found:?} instead of {expected}"));
        }
    }
    (taints(node) != [NOT_READY]).then(|| format!("taints {:?}", taints(node)))
}

/// Names of machines.
pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("{prefix}-{i}")).collect()
}
