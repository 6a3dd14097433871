//! A control plane, load balancers in memory and the program in this process.

use std::collections::BTreeMap;

use ccm_core::testkit::{
    FakeBalancers, FakeCloud,
    balancers::{Balancer, Read},
};
use ccm_testbed::{
    controlplane::ControlPlane,
    in_process::InProcess,
    nodes::{self, NodeSpec},
    observe::is_from_api_server,
};
use cloud_controller_manager::options::Config;
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::fake::{self, Fake, eventually};

pub(crate) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Events of the framework.
pub(crate) const COMPONENT: &str = "service-controller";

pub(crate) struct Stage {
    /// Dropped first, so that the program has ended when another test gets the control plane.
    program: Option<InProcess>,
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: kube::Client,
    pub(crate) cloud: FakeBalancers,
    pub(crate) services: Api<Service>,
    pub(crate) nodes: Api<Node>,
    cluster: String,
}

impl Stage {
    /// Starts a control plane with two nodes, and the program.
    pub(crate) async fn start(cluster: &str) -> Self {
        let mut stage = Self::prepare(cluster).await;
        stage.run(|_| {});
        stage
    }

    /// The same without the program.
    pub(crate) async fn prepare(cluster: &str) -> Self {
        Self::prepare_with(ControlPlane::start().await.unwrap(), cluster).await
    }

    /// The same with this control plane.
    pub(crate) async fn prepare_with(control_plane: ControlPlane, cluster: &str) -> Self {
        let client = control_plane.client().await.unwrap();
        let stage = Self {
            control_plane,
            services: Api::namespaced(client.clone(), "default"),
            nodes: Api::all(client.clone()),
            client,
            cloud: FakeBalancers::default(),
            cluster: cluster.to_owned(),
            program: None,
        };
        stage.join(&["n1", "n2"]).await;
        stage
    }

    /// Starts the program.
    pub(crate) fn run(&mut self, change: impl FnOnce(&mut Config)) {
        self.run_controllers("service", &FakeCloud::default(), change);
    }

    /// Starts the program with these controllers and machines.
    pub(crate) fn run_controllers(
        &mut self,
        controllers: &str,
        machines: &FakeCloud,
        change: impl FnOnce(&mut Config),
    ) {
        let cloud = Fake {
            machines: machines.clone(),
            balancers: Some(self.cloud.clone()),
        };
        let controllers = format!("--controllers={controllers}");
        let flags = ["--leader-elect=false", &controllers];
        self.program = Some(fake::start(&self.control_plane, &self.cluster, &cloud, &flags, change));
    }

    /// Ends the program like a crash.
    pub(crate) fn kill(&mut self) {
        self.program = None;
    }

    /// Waits until the program has ended by itself.
    #[allow(dead_code)] // For the test of the end, which has a process of its own.
    pub(crate) async fn ended(&mut self) {
        if let Some(program) = &mut self.program {
            program.ended().await.unwrap();
        }
        self.kill();
    }

    pub(crate) async fn join(&self, names: &[&str]) {
        let specs: Vec<_> = names
            .iter()
            .map(|name| NodeSpec {
                provider_id: Some(format!("fake://{name}")),
                uninitialized: false,
                ..NodeSpec::new(*name)
            })
            .collect();
        nodes::register(&self.client, &specs).await.unwrap();
    }

    pub(crate) async fn merge_node(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        self.nodes.patch(name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// Creates a Service of type LoadBalancer, which `change` can override.
    pub(crate) async fn create(&self, name: &str, change: impl FnOnce(&mut Value)) -> Service {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "type": "LoadBalancer",
                "selector": {"app": name},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            },
        });
        change(&mut service);
        let service: Service = serde_json::from_value(service).unwrap();
        self.services.create(&PostParams::default(), &service).await.unwrap()
    }

    pub(crate) async fn merge(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        self.services.patch(name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.services.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn service(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&Service) -> bool,
    ) -> Service {
        eventually(&format!("{name}: {what}"), async || {
            self.services.get(name).await.ok().filter(|service| condition(service))
        })
        .await
    }

    /// Creates a Service and waits for its address.
    pub(crate) async fn served(&self, name: &str) -> Service {
        self.create(name, |_| {}).await;
        self.service(name, "has an address", |service| !addresses(service).is_empty()).await
    }

    pub(crate) async fn deleted(&self, name: &str) {
        eventually(&format!("{name} is deleted"), async || {
            self.services.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }

    pub(crate) async fn balancer(&self, service: &str, condition: impl Fn(&Balancer) -> bool) -> Balancer {
        eventually(&format!("the balancer of {service}"), async || {
            self.cloud.of(&format!("default/{service}")).filter(|balancer| condition(balancer))
        })
        .await
    }

    /// All Events of the program about a Service: component, reason, message, in order.
    pub(crate) async fn events(&self, service: &str) -> Vec<(String, String, String)> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let fields = format!("involvedObject.kind=Service,involvedObject.name={service}");
        let mut events = api.list(&ListParams::default().fields(&fields)).await.unwrap().items;
        // The names of Events end with the time.
        events.sort_by_key(|event| event.metadata.name.clone());
        events
            .into_iter()
            .filter(|event| !is_from_api_server(event))
            .filter_map(|event| {
                Some((
                    event.source?.component?,
                    event.reason.unwrap_or_default(),
                    event.message.unwrap_or_default(),
                ))
            })
            .collect()
    }

    pub(crate) async fn reasons(&self, service: &str) -> Vec<String> {
        let events = self.events(service).await;
        events.into_iter().map(|(_, reason, _)| reason).collect()
    }

    /// Waits for the event and returns its message.
    pub(crate) async fn event(&self, service: &str, reason: &str) -> String {
        eventually(&format!("{service}: {reason}"), async || {
            let events = self.events(service).await;
            let found = events.into_iter().find(|(_, found, _)| found == reason);
            found.map(|(.., message)| message)
        })
        .await
    }

    /// The number of passes over each part since `from`.
    pub(crate) fn passes(&self, from: usize) -> BTreeMap<String, usize> {
        let mut passes = BTreeMap::new();
        for Read { part, .. } in self.cloud.reads().into_iter().skip(from) {
            *passes.entry(part).or_default() += 1;
        }
        passes
    }

    /// The program's writes of Services and Events to the API server: verb, resource/subresource, name.
    pub(crate) fn writes(&self) -> Vec<(String, String, String)> {
        let log = self.control_plane.audit_log().unwrap();
        log.into_iter()
            .filter(|entry| entry.is_ours() && !matches!(entry.verb.as_str(), "get" | "list" | "watch"))
            .map(|entry| (entry.verb, format!("{}/{}", entry.resource, entry.subresource), entry.name))
            .collect()
    }

    /// Creates a Service, waits until it is served, and deletes it. Work for all earlier changes has then at least begun.
    pub(crate) async fn marker(&self, name: &str) {
        self.served(name).await;
        self.delete(name).await;
        self.deleted(name).await;
    }
}

pub(crate) fn addresses(service: &Service) -> Vec<String> {
    let ingress = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|balancer| balancer.ingress.as_ref());
    let ingress = ingress.into_iter().flatten();
    ingress.filter_map(|ingress| ingress.ip.clone()).collect()
}

pub(crate) fn has_finalizer(service: &Service) -> bool {
    let finalizers = service.metadata.finalizers.iter().flatten();
    finalizers.into_iter().any(|finalizer| finalizer == FINALIZER)
}
