//! The second half of the demo: two Services get load balancers, nodes join and leave, and the load balancers follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ccm_testbed::{
    binary::Ccm,
    http,
    nodes::{self, NodeSpec},
    observe,
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::{
    balancers,
    forward::{Forward, Forwarder},
    pods::Pods,
    tables::{self, Pools, Step, row},
};
use ccm_testbed::{cloud::Cloud, test_cloud::LoadBalancers};

use crate::{print, say};

/// The cluster's name, part of the names in the cloud, so that the demo does not use other objects there.
pub(super) const CLUSTER: &str = "demo";
const PREFIX: &str = "kube_service_demo_default_";
/// The public Service and the internal one.
const SERVICES: [(&str, bool); 2] = [("web", false), ("intranet", true)];
/// Time limit of each wait. A real load balancer takes long on two busy cores.
const LIMIT: Duration = Duration::from_secs(180);
/// The most nodes with a server. Each takes a file descriptor for each Service, and a process often has only 1024.
const ANSWERING: usize = 200;
/// Time without a call after which a step has ended.
const QUIET: Duration = Duration::from_millis(1500);

/// The state of the demo of Services.
pub(super) struct ServiceDemo<'a> {
    pub(super) cloud: &'a Cloud,
    /// Serves the load balancers of a simulated cloud.
    forwarder: Option<Forwarder>,
    pub(super) ccm: &'a mut Ccm,
    pub(super) client: Client,
    /// The port of the Services.
    pub(super) port: u16,
    /// The nodes of the cluster.
    pub(super) nodes: BTreeSet<String>,
    pods: Pods,
    moments: Vec<(String, Pools)>,
    steps: Vec<Step>,
}

/// A row of `kubectl get services`.
struct ServiceRow {
    name: &'static str,
    /// The IP address or the hostname.
    address: Option<String>,
    cluster_ip: String,
    node_port: u16,
}

impl<'a> ServiceDemo<'a> {
    pub(super) fn new(
        cloud: &'a Cloud,
        forwarder: Option<Forwarder>,
        ccm: &'a mut Ccm,
        client: Client,
        port: u16,
        nodes: &[String],
    ) -> Self {
        Self {
            cloud,
            forwarder,
            ccm,
            client,
            port,
            nodes: nodes.iter().cloned().collect(),
            pods: Pods::default(),
            moments: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Whether load balancers carry traffic. The hypervisor and the network of a real cloud are fakes here.
    fn carries_traffic(&self) -> bool {
        matches!(self.cloud, Cloud::Simulated(_))
    }

    /// Creates two Services, adds nodes and removes one. Fails if the load balancers do not follow.
    pub(super) async fn play(&mut self, joining: &[String]) -> Result<()> {
        let began = self.begin()?;
        say("");
        say(&format!(
            "creating two Services of type LoadBalancer: web, and intranet, which annotations make internal: {}",
            self.cloud.service().internal
        ));
        self.create().await?;
        let seen = self.addressed(began.at).await?;
        self.reached().await?;
        self.done("two Services created", &began).await?;
        self.moment("AT FIRST").await?;
        print("");
        print(show(&seen, self.port).trim_end());
        self.ask(&seen, 4).await?;

        let began = self.begin()?;
        say("");
        say(&format!(
            "{} more nodes join, and become members of every pool with one request each",
            joining.len()
        ));
        self.join(joining, &seen).await?;
        self.reached().await?;
        self.done(&format!("{} nodes joined", joining.len()), &began).await?;
        self.moment(&format!("+{} NODES", joining.len())).await?;

        let leaving = joining.first().context("no node joins")?.clone();
        let began = self.begin()?;
        say(&format!(
            "{leaving} is removed from the cluster and from every pool; the other members stay unchanged"
        ));
        self.leave(&leaving).await?;
        self.reached().await?;
        self.done("1 node left", &began).await?;
        self.moment("-1 NODE").await?;
        print("");
        print(tables::members(&self.moments).trim_end());
        self.ask(&seen, 1).await
    }

    /// Deletes the Services, and waits until their objects in the cloud are deleted.
    pub(super) async fn clean(&mut self) -> Result<()> {
        let began = self.begin()?;
        say("");
        say("deleting the Services: they stay until their load balancers are deleted");
        let services = self.services();
        for (name, _) in SERVICES {
            if services.get_opt(name).await?.is_some() {
                services.delete(name, &DeleteParams::default()).await?;
            }
        }
        self.until("the Services and their load balancers are deleted", async |demo| {
            for (name, _) in SERVICES {
                if demo.services().get_opt(name).await?.is_some() {
                    return Ok(None);
                }
            }
            let left = demo.balancers().await?;
            Ok(left.names.is_empty().then_some(()))
        })
        .await?;
        if let Cloud::Simulated(cloud) = self.cloud {
            self.until("nothing listens for the load balancers", async |demo| {
                Ok(demo.forwards().is_empty().then_some(()))
            })
            .await?;
            let left = cloud.floating_ips();
            if !left.is_empty() {
                bail!("the Services are deleted, but these floating IPs still exist: {left:?}");
            }
        }
        self.done("both Services deleted", &began).await
    }

    /// The time and the calls of every step.
    pub(super) fn summary(&self) -> String {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        for (kind, count) in self.steps.iter().flat_map(|step| &step.calls) {
            *all.entry(kind.clone()).or_default() += count;
        }
        let kinds: Vec<_> = all.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        format!("{}\nthese calls by kind: {}", tables::steps(&self.steps), kinds.join(", "))
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn balancers(&self) -> Result<LoadBalancers> {
        balancers::read(self.cloud, PREFIX).await
    }

    fn begin(&self) -> Result<StepStart> {
        Ok(StepStart {
            at: Instant::now(),
            calls: self.cloud.calls()?,
        })
    }

    /// Records a step, with the calls that the program makes until it is quiet.
    async fn done(&mut self, title: &str, began: &StepStart) -> Result<()> {
        let seconds = began.at.elapsed().as_secs_f64();
        let (mut calls, mut last) = (self.cloud.calls()?, Instant::now());
        while last.elapsed() < QUIET && began.at.elapsed() < LIMIT {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.cloud.calls()?;
            if now != calls {
                (calls, last) = (now, Instant::now());
            }
        }
        let calls = tables::since(&began.calls, &calls);
        let step = Step {
            title: title.to_owned(),
            seconds,
            writes: tables::writes(&calls, |kind| match self.cloud {
                Cloud::Test(cloud, _) => cloud.is_write(kind),
                Cloud::Simulated(_) | Cloud::Real(..) => tables::is_openstack_write(kind),
            }),
            calls,
        };
        say(&format!(
            "{title}: {:.1} s, {} cloud calls, {} of them writes",
            step.seconds,
            step.total(),
            step.writes
        ));
        self.steps.push(step);
        Ok(())
    }

    async fn moment(&mut self, title: &str) -> Result<()> {
        let pools = self.balancers().await?.pools;
        self.moments.push((title.to_owned(), pools));
        Ok(())
    }

    /// Repeats `check` until it returns a value.
    async fn until<T>(&mut self, what: &str, check: impl AsyncFn(&Self) -> Result<Option<T>>) -> Result<T> {
        let began = Instant::now();
        let pause = Duration::from_millis(if self.carries_traffic() { 100 } else { 1000 });
        loop {
            if let Some(status) = self.ccm.exit_status()? {
                bail!("the program ended ({status}); its log:\n{}", self.ccm.log()?);
            }
            if let Some(found) = check(self).await? {
                return Ok(found);
            }
            if began.elapsed() > LIMIT {
                bail!("not within {LIMIT:?}: {what}; the program's log:\n{}", self.ccm.log()?);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn create(&self) -> Result<()> {
        let shape = self.cloud.service();
        for (name, internal) in SERVICES {
            let annotations = if internal {
                &shape.internal
            } else {
                &shape.annotations
            };
            let service = json!({
                "metadata": {"name": name, "annotations": annotations},
                "spec": {
                    "type": "LoadBalancer",
                    "selector": {"app": name},
                    "ports": [{"name": "http", "port": self.port, "protocol": "TCP"}],
                },
            });
            let service = serde_json::from_value(service)?;
            let created = self.services().create(&PostParams::default(), &service).await;
            created.with_context(|| format!("cannot create Service {name}"))?;
        }
        Ok(())
    }

    /// Waits until both Services have an address, and prints the time of each.
    async fn addressed(&mut self, began: Instant) -> Result<Vec<ServiceRow>> {
        let mut all = Vec::new();
        for (name, internal) in SERVICES {
            let what = format!("Service {name} has an EXTERNAL-IP");
            let seen = self
                .until(&what, async |demo| {
                    let service = demo.services().get(name).await?;
                    Ok(Some(ServiceRow::new(name, &service)).filter(|seen| seen.address.is_some()))
                })
                .await?;
            let address = seen.address.as_deref().context("it has one")?;
            let kind = match (internal, self.cloud) {
                (_, Cloud::Test(..)) => "of its load balancer",
                (true, _) => "the load balancer's own address, in the network of the nodes",
                (false, _) => "a floating IP",
            };
            say(&format!(
                "{name}: EXTERNAL-IP {address} after {:.1} s, {kind}",
                began.elapsed().as_secs_f64()
            ));
            all.push(seen);
        }
        if self.carries_traffic() {
            for node in self.nodes.clone() {
                self.answer_on(&node, &all).await?;
            }
        }
        Ok(all)
    }

    /// Waits until every pool has exactly the nodes of the cluster as members.
    async fn reached(&mut self) -> Result<()> {
        let desired = self.nodes.clone();
        let what = format!("both pools have the {} nodes as their members", desired.len());
        self.until(&what, async |demo| {
            let LoadBalancers {
                pools, unfinished, ..
            } = demo.balancers().await?;
            let complete = pools.len() == SERVICES.len() && pools.values().all(|members| *members == desired);
            Ok((complete && !unfinished).then_some(()))
        })
        .await
    }

    async fn join(&mut self, names: &[String], seen: &[ServiceRow]) -> Result<()> {
        let specs: Vec<_> = names.iter().map(NodeSpec::new).collect();
        nodes::register(&self.client, &specs).await?;
        for name in names {
            self.nodes.insert(name.clone());
            let what = format!("node {name} is initialized");
            self.until(&what, async |demo| {
                let node = demo.kube_nodes().get(name).await?;
                Ok(observe::is_initialized(&node).then_some(()))
            })
            .await?;
            if self.carries_traffic() {
                self.answer_on(name, seen).await?;
            }
        }
        Ok(())
    }

    async fn leave(&mut self, name: &str) -> Result<()> {
        // As a cluster autoscaler does: the Node, then its machine.
        let node = self.kube_nodes().get(name).await?;
        self.kube_nodes().delete(name, &DeleteParams::default()).await?;
        let (_, id) = observe::provider_id(&node)
            .rsplit_once('/')
            .with_context(|| format!("node {name} has no provider ID"))?;
        self.cloud.delete_server(name, id).await?;
        self.pods.stop(name);
        self.nodes.remove(name);
        Ok(())
    }

    fn kube_nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Starts the servers of a node, in place of its Pods.
    async fn answer_on(&mut self, name: &str, seen: &[ServiceRow]) -> Result<()> {
        if self.pods.nodes().count() >= ANSWERING {
            return Ok(());
        }
        let node = self.kube_nodes().get(name).await?;
        let address = observe::addresses(&node)
            .into_iter()
            .find(|(kind, _)| *kind == "InternalIP")
            .with_context(|| format!("node {name} has no address"))?
            .1
            .parse()?;
        for service in seen {
            self.pods.start(service.name, name, address, service.node_port).await?;
        }
        Ok(())
    }

    /// Sends requests to both Services and prints some of the answers. Members take turns, so that every node must answer.
    async fn ask(&mut self, seen: &[ServiceRow], shown: usize) -> Result<()> {
        print("");
        if !self.carries_traffic() {
            say(match self.cloud {
                Cloud::Test(..) => {
                    "no requests sent: the cloud is emulated, no packet reaches these addresses"
                }
                _ => {
                    "no requests sent: this OpenStack uses Nova's fake hypervisor, no packet reaches these addresses"
                }
            });
            return Ok(());
        }
        // Each request has its own connection, which the load balancer sends to the next node.
        let client = http::client().pool_max_idle_per_host(0).timeout(LIMIT).build()?;
        for service in seen {
            let address: IpAddr = service.address.as_deref().context("it has an address")?.parse()?;
            let url = format!("http://{address}:{}/", self.port);
            self.listening(address).await?;
            let mut nodes = BTreeSet::new();
            let all_answer = self.nodes.len() <= ANSWERING;
            let rounds = if all_answer { self.nodes.len() } else { shown };
            for round in 0..rounds {
                let body = client.get(&url).send().await?.text().await?;
                let text = body.trim_end();
                if round < shown {
                    print(&format!("$ curl {url}\n{text}"));
                }
                let node = text.strip_prefix(&format!("{} on ", service.name)).with_context(|| {
                    format!("{url} answered {text:?}, which is not an answer of Service {}", service.name)
                })?;
                nodes.insert(node.to_owned());
            }
            if all_answer && nodes != self.nodes {
                let missing: Vec<_> = self.nodes.symmetric_difference(&nodes).collect();
                bail!("{rounds} requests to {url} should reach every node once; wrong for: {missing:?}");
            }
            print(&format!(
                "... {rounds} requests, answered by {} of the {} nodes",
                nodes.len(),
                self.nodes.len()
            ));
        }
        Ok(())
    }

    fn forwards(&self) -> Vec<Forward> {
        self.forwarder.as_ref().map(Forwarder::forwards).unwrap_or_default()
    }

    /// Waits until the forwarder listens on the address of a simulated load balancer.
    async fn listening(&mut self, address: IpAddr) -> Result<()> {
        if self.forwarder.is_none() {
            return Ok(());
        }
        let what = format!("the simulated load balancer answers at {address}");
        self.until(&what, async |demo| {
            let forwards = demo.forwards();
            let Some(forward) = forwards.iter().find(|forward| forward.address.ip() == address) else {
                return Ok(None);
            };
            match &forward.problem {
                Some(problem) => bail!("nothing answers at {}: {problem}", forward.address),
                None => Ok(Some(())),
            }
        })
        .await
    }
}

/// The start of a step: its time, and the calls before it.
struct StepStart {
    at: Instant,
    calls: BTreeMap<String, u64>,
}

impl ServiceRow {
    fn new(name: &'static str, service: &Service) -> Self {
        let spec = service.spec.as_ref();
        let ingress = service
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref()?.first());
        let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let node_port = ports.first().and_then(|port| port.node_port).unwrap_or_default();
        Self {
            name,
            address: ingress.and_then(|ingress| ingress.ip.clone().or_else(|| ingress.hostname.clone())),
            cluster_ip: spec.and_then(|spec| spec.cluster_ip.clone()).unwrap_or_default(),
            node_port: u16::try_from(node_port).unwrap_or_default(),
        }
    }
}

/// The table that `kubectl get services` would print.
fn show(seen: &[ServiceRow], port: u16) -> String {
    let mut rows = vec![row(&["SERVICE", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)"])];
    for service in seen {
        rows.push(row(&[
            service.name,
            "LoadBalancer",
            &service.cluster_ip,
            service.address.as_deref().unwrap_or_default(),
            &format!("{port}:{}/TCP", service.node_port),
        ]));
    }
    tables::table(&rows)
}
