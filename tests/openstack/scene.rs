//! Control plane, simulated cloud and program, with the reads and waits of the tests.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use ccm_sim::openstack::{Config, OpenStack, RouterSpec, ServerSpec};
use ccm_testbed::{
    binary::Ccm,
    manifests,
    nodes::{self, NodeSpec},
    observe::{is_from_api_server, is_initialized},
    stage::Stage,
};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;

/// Time limit of each wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// The program under test.
pub(crate) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_cloud-controller-manager"))
}

pub(crate) struct Scene {
    pub(crate) stage: Stage,
    /// The kubeconfig of the account with exactly the rights of `deploy/`.
    pub(crate) account: PathBuf,
    pub(crate) cloud: OpenStack,
    pub(crate) client: kube::Client,
    pub(crate) nodes: Api<Node>,
    pub(crate) events: Api<Event>,
}

impl Scene {
    /// Starts a control plane and a cloud, and writes a config for them. The program is not started.
    pub(crate) async fn set() -> Self {
        Self::set_for(&manifests::shipped("base/rbac.yaml")).await
    }

    /// The same with the account and the rights of this file.
    pub(crate) async fn set_for(rbac: &Path) -> Self {
        let stage = Stage::set(program()).await.unwrap();
        let cloud = OpenStack::start(Config::default()).await.unwrap();
        stage.write_cloud_config(&cloud.cloud_conf()).unwrap();
        let client = stage.control_plane.client().await.unwrap();
        Self {
            account: manifests::account(&stage.control_plane, rbac).await.unwrap(),
            nodes: Api::all(client.clone()),
            events: Api::all(client.clone()),
            client,
            stage,
            cloud,
        }
    }

    /// Starts the program under its ServiceAccount, as in a deployment.
    pub(crate) fn launch(&self, flags: &[&str]) -> Ccm {
        self.stage.launch_as("openstack", &self.account, flags).unwrap()
    }

    /// The same, and waits until it is ready.
    pub(crate) async fn start(&self, flags: &[&str]) -> Ccm {
        let mut ccm = self.launch(flags);
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        ccm
    }

    /// Creates servers with these names.
    pub(crate) fn servers(&self, names: &[String]) {
        for name in names {
            self.cloud.create_server(&ServerSpec::named(name)).unwrap();
        }
    }

    /// Creates a router for the routes of Pods on these networks, and adds it to the config.
    pub(crate) fn router(&self, networks: Vec<String>) -> String {
        let spec = RouterSpec {
            name: "pods".to_owned(),
            networks,
            ..RouterSpec::default()
        };
        let router = self.cloud.create_router(&spec).unwrap();
        let config = format!("{}\n[Route]\nrouter-id={router}\n", self.cloud.cloud_conf());
        self.stage.write_cloud_config(&config).unwrap();
        router
    }

    /// Deletes the node's server and sets the node to not ready.
    pub(crate) async fn lose_server(&self, name: &str) {
        let id = self.nodes.get(name).await.unwrap().spec.unwrap().provider_id.unwrap();
        self.cloud.delete_server(id.rsplit('/').next().unwrap()).unwrap();
        nodes::set_ready(&self.client, name, false).await.unwrap();
    }

    /// Deletes the node's server and waits until the node is deleted.
    pub(crate) async fn lose(&self, name: &str) {
        self.lose_server(name).await;
        self.node_deleted(name).await;
    }

    pub(crate) async fn node_deleted(&self, name: &str) {
        let deleted = async || self.nodes.get_opt(name).await.ok()?.is_none().then_some(());
        self.eventually(&format!("{name} is deleted"), deleted).await;
    }

    pub(crate) fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    /// Creates a Service of type LoadBalancer with port 80 and waits until it has an address.
    pub(crate) async fn serve(&self, name: &str) {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"port": 80}]},
        });
        let service = serde_json::from_value(service).unwrap();
        let services = self.services();
        services.create(&PostParams::default(), &service).await.unwrap();
        let address = async || {
            let ingress = services.get(name).await.ok()?.status?.load_balancer?.ingress?;
            ingress.first()?.ip.clone()
        };
        self.eventually(&format!("{name} has an address"), address).await;
    }

    /// Registers nodes with these names, tainted.
    pub(crate) async fn register(&self, names: &[String]) {
        let specs: Vec<_> = names.iter().map(NodeSpec::new).collect();
        nodes::register(&self.client, &specs).await.unwrap();
    }

    pub(crate) async fn register_one(&self, spec: NodeSpec) {
        nodes::register(&self.client, [&spec]).await.unwrap();
    }

    /// Waits until the node fulfils the condition.
    pub(crate) async fn node(&self, name: &str, what: &str, condition: impl Fn(&Node) -> bool) -> Node {
        let check = async || self.nodes.get(name).await.ok().filter(|node| condition(node));
        self.eventually(&format!("{name}: {what}"), check).await
    }

    pub(crate) async fn initialized(&self, name: &str) -> Node {
        self.node(name, "initialized", is_initialized).await
    }

    /// Waits until this many nodes are initialized.
    pub(crate) async fn all_initialized(&self, count: usize) -> Vec<Node> {
        let check = async || {
            let nodes = self.nodes.list(&ListParams::default()).await.ok()?.items;
            (nodes.iter().filter(|node| is_initialized(node)).count() >= count).then_some(nodes)
        };
        self.eventually(&format!("{count} nodes initialized"), check).await
    }

    pub(crate) async fn event(&self, node: &str, reason: &str) -> Event {
        let params = ListParams::default().fields(&format!("involvedObject.name={node},reason={reason}"));
        let check = async || self.events.list(&params).await.ok()?.items.pop();
        self.eventually(&format!("event {reason} of {node}"), check).await
    }

    pub(crate) async fn warnings(&self) -> Vec<Event> {
        let warnings = ListParams::default().fields("type=Warning");
        let mut events = self.events.list(&warnings).await.unwrap().items;
        events.retain(|event| !is_from_api_server(event));
        events
    }

    /// The program's log so far.
    pub(crate) fn log(&self) -> String {
        self.stage.log()
    }

    /// Waits until the log contains the text.
    pub(crate) async fn logged(&self, text: &str) -> String {
        let check = async || Some(self.log()).filter(|log| log.contains(text));
        self.eventually(&format!("{text:?} in the log"), check).await
    }

    pub(crate) async fn eventually<T>(&self, what: &str, check: impl AsyncFn() -> Option<T>) -> T {
        self.stage.eventually(what, check).await
    }
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("{prefix}-{i}")).collect()
}
