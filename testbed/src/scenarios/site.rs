//! Where the scenarios play: control plane, proxy, simulated cloud, and machines for the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ccm_sim::openstack::{Config, OpenStack, ServerSpec};
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

/// Nothing that prepares a scenario takes this long unless it is broken.
const LIMIT: Duration = Duration::from_secs(120);
/// The taint that the API server gives to every new Node.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// What the simulated cloud's tokens begin with.
const TOKEN: &str = "gAAAAA";
/// Patches that one Node may cost, however often the program dies once in between: two, and both again.
const MOST_PATCHES: usize = 4;

/// A machine and the Node on it.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) id: String,
    pub(super) port: String,
    pub(super) address: IpAddr,
}

/// Control plane, proxy, cloud and machines.
#[derive(Debug)]
pub struct Site {
    /// The cloud.
    pub cloud: OpenStack,
    /// What the program takes for the API server.
    pub proxy: Proxy,
    pub(super) nodes: Api<Node>,
    pub(super) events: Api<Event>,
    stage: tokio::sync::Mutex<Stage>,
    launch: Launch,
    help: String,
    machines: Mutex<BTreeMap<String, Machine>>,
    secret: String,
}

impl Site {
    /// Starts everything but the program.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn set(program: &Path) -> Result<Self> {
        let stage = Stage::set(program, false).await?;
        let config = Config::default();
        let secret = config.password.clone();
        let cloud = OpenStack::start(config).await?;
        stage.write_cloud_config(&cloud.cloud_conf())?;
        let client = stage.control_plane.client().await?;
        let proxy = Proxy::start(client.clone(), stage.folder()).await?;
        let mut launch = stage.command("openstack", proxy.kubeconfig(), &["--secure-port=0"]);
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
            secret,
        })
    }

    /// Writes the program's config anew, with more in it.
    pub(super) async fn configure(&self, more: &str) -> Result<()> {
        let text = format!("{}\n{more}", self.cloud.cloud_conf());
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
        vec![&*self.cloud, &self.proxy]
    }

    /// What must not stand in a log.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        vec![self.secret.clone(), TOKEN.to_owned()]
    }

    /// Kills the API server and starts it again.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart_api_server(&self) -> Result<()> {
        self.stage.lock().await.control_plane.restart().await
    }

    /// The machine of this name, made if there is none.
    pub(super) fn machine(&self, name: &str) -> Result<Machine> {
        let mut machines = self.machines.lock();
        if let Some(machine) = machines.get(name) {
            return Ok(machine.clone());
        }
        let id = self.cloud.create_server(&ServerSpec::named(name))?;
        let port = self.cloud.server_ports(&id).into_iter().next();
        let port = port.context("a server without a port")?;
        let address = self.cloud.port_addresses(&port).into_iter().next();
        let machine = Machine {
            id,
            address: address.context("a port without an address")?,
            port,
        };
        machines.insert(name.to_owned(), machine.clone());
        Ok(machine)
    }

    /// Deletes the machine of this name, if there is one, and says which it was.
    pub(super) fn delete_machine(&self, name: &str) -> Result<Option<Machine>> {
        let machine = self.machines.lock().remove(name);
        if let Some(machine) = &machine {
            self.cloud.delete_server(&machine.id)?;
        }
        Ok(machine)
    }

    /// Notes that the machine has another address.
    pub(super) fn readdressed(&self, name: &str, address: IpAddr) {
        if let Some(machine) = self.machines.lock().get_mut(name) {
            machine.address = address;
        }
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
        let specs: Vec<_> = names.iter().map(NodeSpec::new).collect();
        for name in names {
            self.machine(name)?;
        }
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
        let found = self.list().await?;
        for name in names {
            let problem = match found.get(name) {
                None => Some("there is no node".to_owned()),
                Some(node) => self.differs(name, node)?,
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

    /// How a Node is not as its machine is.
    fn differs(&self, name: &str, node: &Node) -> Result<Option<String>> {
        if !is_initialized(node) {
            return Ok(Some("not initialized".to_owned()));
        }
        let machine = self.machine(name)?;
        let wanted = format!("openstack:///{}", machine.id);
        if provider_id(node) != wanted {
            return Ok(Some(format!(
                "provider ID {} instead of {wanted}",
                provider_id(node)
            )));
        }
        let address = machine.address.to_string();
        if addresses(node) != [("InternalIP", address.as_str()), ("Hostname", name)] {
            return Ok(Some(format!(
                "addresses {:?} instead of {address}",
                addresses(node)
            )));
        }
        for (key, wanted) in [
            ("node.kubernetes.io/instance-type", "m1.small"),
            ("topology.kubernetes.io/zone", "nova"),
            ("topology.kubernetes.io/region", "RegionOne"),
        ] {
            if label(node, key) != Some(wanted) {
                return Ok(Some(format!(
                    "label {key} is {:?} instead of {wanted}",
                    label(node, key)
                )));
            }
        }
        // Labels of the kubelet and taints of others were not lost.
        if label(node, "kubernetes.io/hostname") != Some(name) {
            return Ok(Some("the kubelet's labels are lost".to_owned()));
        }
        if taints(node) != [NOT_READY] {
            return Ok(Some(format!("taints {:?}", taints(node))));
        }
        Ok(None)
    }

    /// Nothing is there beyond these Nodes, nothing was deleted but `leaving`, and nothing was done or said too often.
    pub(super) async fn check(&self, names: &[String], leaving: &[String]) -> Result<()> {
        let found = self.list().await?;
        ensure!(
            found.keys().eq(names.iter().collect::<BTreeSet<_>>()),
            "the nodes are {:?}",
            found.keys()
        );
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

/// Names of Nodes.
pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("{prefix}-{i}")).collect()
}
