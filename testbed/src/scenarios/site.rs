//! Where the scenarios play: control plane, proxy, cloud, and machines for the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use parking_lot::Mutex;

use crate::binary::{Ccm, Launch};
use crate::controlplane::blocking;
use crate::nodes::{self, NodeSpec};
use crate::observe::{addresses, eventually, is_initialized, label, provider_id, taints};
use crate::proxy::Proxy;
use crate::stage::Stage;
use crate::sweep::Party;
use crate::test_cloud::{Machine, TestCloud};

/// Nothing that prepares a scenario takes this long unless it is broken.
const LIMIT: Duration = Duration::from_secs(120);
/// The taint that the API server gives to every new Node.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Patches that one Node may cost, however often the program dies once in between: two, and both again.
const MOST_PATCHES: usize = 4;

/// Control plane, proxy, cloud and machines.
#[derive(Debug)]
pub struct Site {
    /// The cloud.
    pub cloud: Arc<dyn TestCloud>,
    /// What the program takes for the API server.
    pub proxy: Proxy,
    pub(super) nodes: Api<Node>,
    pub(super) events: Api<Event>,
    stage: tokio::sync::Mutex<Stage>,
    launch: Launch,
    help: String,
    /// By what a person calls them.
    machines: Mutex<BTreeMap<String, Machine>>,
}

impl Site {
    /// Starts everything but the program.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn set(program: &Path, cloud: Arc<dyn TestCloud>) -> Result<Self> {
        let stage = Stage::set(program, false).await?;
        stage.write_cloud_config(&cloud.config())?;
        let client = stage.control_plane.client().await?;
        let proxy = Proxy::start(client.clone(), stage.folder()).await?;
        let mut launch = stage.command(cloud.provider(), proxy.kubeconfig(), &["--secure-port=0"]);
        launch.envs = cloud.environment();
        let program = program.to_owned();
        let help = blocking(move || Ok(Command::new(program).arg("--help").output()?)).await?;
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        if help.contains("--leader-elect ") || help.contains("--leader-elect[") {
            // A program that was killed keeps its Lease, and the next one would wait for its end.
            launch.args.push("--leader-elect=false".to_owned());
        }
        Ok(Self {
            nodes: Api::all(client.clone()),
            events: Api::default_namespaced(client),
            cloud,
            proxy,
            stage: tokio::sync::Mutex::new(stage),
            launch,
            help,
            machines: Mutex::default(),
        })
    }

    /// Writes the program's config anew, with more in it.
    pub(super) async fn configure(&self, more: &str) -> Result<()> {
        let text = format!("{}\n{more}", self.cloud.config());
        self.stage.lock().await.write_cloud_config(&text)
    }

    /// Whether the program has this flag.
    #[must_use]
    pub fn knows(&self, flag: &str) -> bool {
        self.help.contains(flag)
    }

    /// How the program is started, with further flags.
    #[must_use]
    pub fn launch(&self, flags: &[&str]) -> Launch {
        let mut launch = self.launch.clone();
        launch.args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        launch
    }

    /// Everybody the program talks to.
    #[must_use]
    pub fn parties(&self) -> Vec<&dyn Party> {
        vec![self.cloud.party(), &self.proxy]
    }

    /// What must not stand in a log.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        self.cloud.secrets()
    }

    /// Kills the API server and starts it again.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart_api_server(&self) -> Result<()> {
        self.stage.lock().await.control_plane.restart().await
    }

    /// The machine of this name, created if there is none.
    pub(super) async fn machine(&self, name: &str) -> Result<Machine> {
        if let Some(machine) = self.machines.lock().get(name) {
            return Ok(machine.clone());
        }
        let machine = self.cloud.create_machine(name).await?;
        self.machines.lock().insert(name.to_owned(), machine.clone());
        Ok(machine)
    }

    /// Machines of these names.
    pub(super) async fn machines(&self, names: &[String]) -> Result<Vec<Machine>> {
        let mut machines = Vec::with_capacity(names.len());
        for name in names {
            machines.push(self.machine(name).await?);
        }
        Ok(machines)
    }

    /// Deletes the machine of this name.
    pub(super) async fn delete_machine(&self, name: &str) -> Result<()> {
        let machine = self.machines.lock().remove(name);
        match machine {
            Some(machine) => self.cloud.delete_machine(&machine).await,
            None => Ok(()),
        }
    }

    /// Notes how a machine is now.
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

    /// Registers Nodes as kubelets do, which try again until the API server takes them.
    pub(super) async fn register(&self, specs: &[NodeSpec]) -> Result<()> {
        let register = async || {
            let mut specs = specs.to_vec();
            if let Ok(known) = self.nodes.list(&ListParams::default()).await {
                let known: BTreeSet<_> = known
                    .items
                    .into_iter()
                    .filter_map(|node| node.metadata.name)
                    .collect();
                specs.retain(|spec| !known.contains(&spec.name));
            }
            nodes::register(&self.nodes.clone().into_client(), &specs)
                .await
                .ok()
        };
        let done = eventually(LIMIT, register).await;
        done.context("the API server does not take nodes")
    }

    /// Makes machines and Nodes that are initialised, by running the program until they are.
    pub(super) async fn settle(&self, names: &[String], launch: &Launch) -> Result<()> {
        if self.settled(names).await?.is_none() {
            return Ok(());
        }
        self.wipe().await?;
        let machines = self.machines(names).await?;
        let specs: Vec<_> = machines
            .iter()
            .map(|machine| NodeSpec::new(&machine.node))
            .collect();
        self.register(&specs).await?;
        let mut ccm = Ccm::start(launch)?;
        let done = eventually(LIMIT, async || {
            self.settled(names).await.ok()?.is_none().then_some(())
        })
        .await;
        ccm.kill()?;
        match done {
            Some(()) => Ok(()),
            None => bail!("the nodes are not initialized; {}", ccm.log()?),
        }
    }

    /// What keeps these Nodes from being as their machines are, if anything does.
    pub(super) async fn settled(&self, names: &[String]) -> Result<Option<String>> {
        let machines = self.machines(names).await?;
        let found = self.list().await?;
        for (name, machine) in names.iter().zip(&machines) {
            let problem = match found.get(&machine.node) {
                None => Some("there is no node".to_owned()),
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
        Ok(named
            .filter_map(|node| Some((node.metadata.name.clone()?, node)))
            .collect())
    }

    /// Nothing is there beyond these Nodes, nothing was deleted but `leaving`, and nothing was done or said too often.
    pub(super) async fn check(&self, names: &[String], leaving: &[String]) -> Result<()> {
        let machines = self.machines(names).await?;
        let found = self.list().await?;
        let wanted: BTreeSet<_> = machines.iter().map(|machine| &machine.node).collect();
        ensure!(found.keys().eq(wanted), "the nodes are {:?}", found.keys());
        let mut patches = BTreeMap::<_, usize>::new();
        for write in self.proxy.writes() {
            let ours = write.resource == "nodes" && write.status.is_some_and(|status| status < 300);
            match write.method.as_str() {
                "DELETE" => ensure!(
                    write.resource == "nodes" && leaving.contains(&write.name),
                    "deleted without a reason: {write}"
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

    /// No event was written twice in one life of the program, and there was one death at most.
    pub(super) async fn check_events(&self) -> Result<()> {
        let mut said = BTreeMap::<_, usize>::new();
        for event in self.events.list(&ListParams::default()).await?.items {
            let what = (event.involved_object.name, event.reason, event.message);
            *said.entry(what).or_default() += 1;
        }
        match said.into_iter().find(|(_, count)| *count > 2) {
            Some((what, count)) => bail!("said {count} times: {what:?}"),
            None => Ok(()),
        }
    }
}

/// How a Node is not as its machine is.
fn differs(machine: &Machine, node: &Node) -> Option<String> {
    if !is_initialized(node) {
        return Some("not initialized".to_owned());
    }
    if provider_id(node) != machine.provider_id {
        let (have, wanted) = (provider_id(node), &machine.provider_id);
        return Some(format!("provider ID {have} instead of {wanted}"));
    }
    let wanted: Vec<_> = machine
        .addresses
        .iter()
        .map(|(kind, address)| (kind.as_str(), address.as_str()))
        .collect();
    if addresses(node) != wanted {
        return Some(format!("addresses {:?} instead of {wanted:?}", addresses(node)));
    }
    // Labels of the kubelet and taints of others were not lost.
    let hostname = ("kubernetes.io/hostname".to_owned(), machine.node.clone());
    for (key, wanted) in machine.labels.iter().chain([&hostname]) {
        let have = label(node, key);
        if have != Some(wanted) {
            return Some(format!("label {key} is {have:?} instead of {wanted}"));
        }
    }
    (taints(node) != [NOT_READY]).then(|| format!("taints {:?}", taints(node)))
}

/// Names of machines.
pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("{prefix}-{i}")).collect()
}
