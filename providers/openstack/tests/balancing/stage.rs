//! A cluster on the simulated cloud, with the actions of the service controller.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

pub(crate) use ccm_core::testkit::cluster::{advance_to, annotate, service};
use ccm_core::{
    AddressType, Cloud, Environment, NodeAddress, Result,
    client::ClientMetrics,
    load_balancer::{PartKey, PartReport, Request, ServiceNode},
    testkit::{self, TestCluster, nodes::service_node},
};
use ccm_provider_openstack::NAME;
use ccm_sim::openstack::{AppCredentialSpec, BalancerState, Config, OpenStack, ServerSpec, UserSpec};
use prometheus_client::registry::Registry;

pub(crate) const ID: &str = "loadbalancer.openstack.org/load-balancer-id";
pub(crate) const ADDRESS: &str = "loadbalancer.openstack.org/load-balancer-address";
pub(crate) const INTERNAL: &str = "service.beta.kubernetes.io/openstack-internal-load-balancer";
pub(crate) const KEEP: &str = "loadbalancer.openstack.org/keep-floatingip";

/// Builds the provider from this config file.
pub(crate) async fn build(conf: &str) -> Result<Arc<dyn Cloud>> {
    testkit::build(NAME, conf, Environment::default()).await
}

/// A simulated OpenStack with a [`TestCluster`] on it.
pub(crate) struct Stage {
    pub(crate) sim: OpenStack,
    cluster: TestCluster,
    conf: String,
}

impl Deref for Stage {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut TestCluster {
        &mut self.cluster
    }
}

/// The text of a config file with this section of load balancers.
pub(crate) fn conf_of(sim: &OpenStack, section: &str) -> String {
    format!("{}\n[LoadBalancer]\n{section}\n", sim.cloud_conf())
}

/// The node of a new server.
pub(crate) fn node(sim: &OpenStack, name: &str) -> ServiceNode {
    let id = sim.create_server(&ServerSpec::named(name)).unwrap();
    let port = sim.server_ports(&id).remove(0);
    let address = sim.port_addresses(&port)[0].to_string();
    let address = NodeAddress::new(AddressType::InternalIP, address);
    service_node(name, &format!("openstack:///{id}"), vec![address])
}

/// Security groups and health monitors in addition to load balancers.
pub(crate) const MANAGED: &str = "manage-security-groups = true\ncreate-monitor = true";

impl Stage {
    /// Two nodes, and the Service `web` with all of its objects.
    pub(crate) async fn served() -> Self {
        let mut stage = Self::new(2, MANAGED).await;
        stage.services.push(service("web", &[80, 443]));
        stage.settle_well().await;
        stage
    }

    pub(crate) async fn new(nodes: usize, more: &str) -> Self {
        let sim = OpenStack::start(Config::default()).await.unwrap();
        let conf = conf_of(&sim, more);
        let cloud = build(&conf).await.unwrap();
        let mut stage = Self {
            sim,
            cluster: TestCluster::new(cloud, advance_to),
            conf,
        };
        for _ in 0..nodes {
            stage.join();
        }
        stage.sim.clear_calls();
        stage
    }

    /// Adds a node.
    pub(crate) fn join(&mut self) {
        let node = node(&self.sim, &format!("node-{}", self.nodes.len()));
        self.nodes.push(node);
    }

    /// Sets the section of load balancers for the next process.
    pub(crate) fn configure(&mut self, more: &str) {
        let before = self.conf.split_once("[LoadBalancer]").unwrap().0;
        self.conf = format!("{before}[LoadBalancer]\n{more}\n");
    }

    /// Sets an administrator's credentials for the next process.
    pub(crate) fn become_admin(&mut self) {
        let name = "admin-of-clouds".to_owned();
        let user = UserSpec {
            name: name.clone(),
            admin: true,
            ..UserSpec::default()
        };
        self.sim.create_user(&user).unwrap();
        let credential = AppCredentialSpec {
            name: name.clone(),
            user: Some(name),
            ..AppCredentialSpec::default()
        };
        let credential = self.sim.create_app_credential(&credential).unwrap();
        let sections = self.conf.split_once("[LoadBalancer]").unwrap().1;
        self.conf = format!("{}\n[LoadBalancer]{sections}", self.sim.cloud_conf_for(&credential));
    }

    /// Starts a new process.
    pub(crate) async fn restart(&mut self) {
        self.cloud = build(&self.conf).await.unwrap();
    }

    /// Starts a new process with other settings of `[LoadBalancer]`.
    pub(crate) async fn restart_with(&mut self, more: &str) {
        self.conf = conf_of(&self.sim, more);
        self.restart().await;
    }

    /// Starts a new process with its metrics in the returned registry.
    pub(crate) async fn watched(&mut self) -> Registry {
        let mut registry = Registry::default();
        let (_folder, mut context) = testkit::context(&self.conf, Environment::default());
        context.metrics = ClientMetrics::register(&mut registry);
        self.cloud = (testkit::provider(NAME).build)(context).await.unwrap();
        registry
    }

    /// Starts a new process with other credentials.
    pub(crate) async fn restart_as(&mut self, credentials: &str) {
        let (_, settings) = self.conf.split_once("[LoadBalancer]").unwrap();
        self.cloud = build(&format!("{credentials}\n[LoadBalancer]{settings}")).await.unwrap();
    }

    pub(crate) async fn run(&self, part: &PartKey, request: &Request) -> PartReport {
        self.cluster.run(part, request).await.unwrap()
    }

    pub(crate) fn conf(&self) -> &str {
        &self.conf
    }

    /// The error of discovery.
    pub(crate) async fn discovery_error(&self) -> String {
        self.discover().await.unwrap_err().report()
    }

    pub(crate) async fn pass_once(&mut self) {
        self.cluster.pass_once().await.unwrap();
    }

    pub(crate) async fn run_through(&mut self) {
        self.cluster.run_through().await.unwrap();
    }

    pub(crate) async fn settle(&mut self) {
        self.cluster.settle().await.unwrap();
    }

    pub(crate) async fn settle_in_trouble(&mut self) {
        self.cluster.settle_despite_failures().await.unwrap();
    }

    pub(crate) fn address(&self, name: &str) -> String {
        let ingress = self.find(name).unwrap().ingress.first();
        ingress.and_then(|ingress| ingress.ip.as_deref()).unwrap_or_default().to_owned()
    }

    /// The writes and reads since the last check, without authentication.
    pub(crate) fn cost(&self) -> (usize, usize) {
        let calls = self.sim.calls();
        let calls = calls.iter().filter(|call| call.service != "identity");
        let (reads, writes): (Vec<_>, Vec<_>) = calls.partition(|call| call.method == "GET");
        (writes.len(), reads.len())
    }

    pub(crate) fn balancers(&self) -> Vec<BalancerState> {
        self.sim.load_balancers()
    }
}
