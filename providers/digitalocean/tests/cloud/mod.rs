//! A simulated DigitalOcean and the provider, for the tests of this crate.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

pub(crate) use ccm_core::testkit::cluster::{advance_to, annotate, service};
use ccm_core::{
    AddressType, BuildContext, Cloud, Environment, NodeAddress, NodeView, Provider, Result,
    client::ClientMetrics,
    load_balancer::{ServiceNode, ServiceView},
    registry,
    testkit::TestCluster,
};
use ccm_provider_digitalocean::NAME;
use ccm_sim::digitalocean::{Config, DigitalOcean};
use serde_json::{Map, Value, json};

pub(crate) const ID: &str = "kubernetes.digitalocean.com/load-balancer-id";
pub(crate) const DISOWN: &str = "service.kubernetes.io/do-loadbalancer-disown";

/// The load balancer annotation with this suffix.
pub(crate) fn key(end: &str) -> String {
    format!("service.beta.kubernetes.io/do-loadbalancer-{end}")
}

/// The registered provider.
pub(crate) fn provider() -> &'static Provider {
    let all = registry::all();
    all.into_iter().find(|provider| provider.name == NAME).unwrap()
}

/// The environment variables for this cloud.
pub(crate) fn environment(sim: &DigitalOcean) -> Environment {
    Environment::default()
        .with("DO_ACCESS_TOKEN", Config::default().token)
        .with("DO_OVERRIDE_URL", sim.url())
        .with("REGION", Config::default().region)
}

pub(crate) fn context(environment: Environment) -> BuildContext {
    BuildContext {
        cloud_config: None,
        flags: Default::default(),
        environment,
        cluster_name: "kubernetes".into(),
        user_agent: "digitalocean-cloud-controller-manager/test".into(),
        metrics: ClientMetrics::default(),
        plan: Default::default(),
        fences: Default::default(),
    }
}

pub(crate) async fn build(environment: Environment) -> Result<Arc<dyn Cloud>> {
    build_with(environment, "").await
}

/// Builds the provider with this config file.
pub(crate) async fn build_with(environment: Environment, yaml: &str) -> Result<Arc<dyn Cloud>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let context = BuildContext {
        cloud_config: Some(file.path().to_owned()),
        ..context(environment)
    };
    (provider().validate)(&context)?;
    (provider().build)(context).await
}

/// The node of a new droplet.
pub(crate) fn node(sim: &DigitalOcean, name: &str) -> ServiceNode {
    let id = sim.create_droplet(name);
    let droplet = sim.document("droplets", &id).unwrap();
    let networks = droplet["networks"]["v4"].clone();
    let address = |index: usize| networks[index]["ip_address"].as_str().unwrap().to_owned();
    ServiceNode {
        view: Arc::new(NodeView {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            provider_id: Some(format!("{NAME}://{id}")),
            ..NodeView::default()
        }),
        addresses: [
            NodeAddress::new(AddressType::InternalIP, address(0)),
            NodeAddress::new(AddressType::ExternalIP, address(1)),
        ]
        .into(),
        eligible: true,
        ready: true,
    }
}

/// The fields of an object.
#[expect(clippy::needless_pass_by_value, reason = "the callers make it on the spot")]
pub(crate) fn fields(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

/// A cluster on a simulated cloud.
pub(crate) struct Stage {
    pub(crate) sim: DigitalOcean,
    pub(crate) environment: Environment,
    cluster: TestCluster,
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

impl Stage {
    /// Two nodes and no Service. `variables`: additional environment variables.
    pub(crate) async fn new(variables: &[(&str, &str)]) -> Self {
        Self::with(Config::default(), variables).await
    }

    pub(crate) async fn with(config: Config, variables: &[(&str, &str)]) -> Self {
        let sim = DigitalOcean::start(config).await.unwrap();
        let variables = variables.iter();
        let environment = variables.fold(environment(&sim), |environment, (name, value)| {
            environment.with(*name, *value)
        });
        let cloud = build(environment.clone()).await.unwrap();
        let mut stage = Self {
            cluster: TestCluster::new(cloud, advance_to),
            environment,
            sim,
        };
        for name in ["node-0", "node-1"] {
            stage.join(name);
        }
        stage.sim.clear_calls();
        stage
    }

    /// A stage with the Service `web` with these annotations, after its load balancer is active.
    pub(crate) async fn served(annotations: &[(&str, &str)]) -> Self {
        let mut stage = Self::new(&[]).await;
        stage.add("web", annotations);
        stage.settle().await.unwrap();
        stage
    }

    /// Adds a Service with ports 80 and 443. Annotations by the suffixes of their names.
    pub(crate) fn add(&mut self, name: &str, annotations: &[(&str, &str)]) -> &mut ServiceView {
        let mut service = service(name, &[80, 443]);
        for (end, value) in annotations {
            annotate(&mut service, &key(end), Some(value));
        }
        self.services.push(service);
        self.services.last_mut().unwrap()
    }

    pub(crate) fn join(&mut self, name: &str) {
        let node = node(&self.sim, name);
        self.nodes.push(node);
    }

    /// Replaces the provider and the engine, as a new process would.
    pub(crate) async fn restart(&mut self) {
        self.cloud = build(self.environment.clone()).await.unwrap();
        self.sim.clear_calls();
    }

    pub(crate) fn web(&mut self) -> &mut ServiceView {
        self.services
            .iter_mut()
            .find(|service| &*service.id.name == "web")
            .unwrap()
    }

    pub(crate) fn balancers(&self) -> Vec<Value> {
        self.sim.documents("load_balancers")
    }

    /// The only load balancer.
    pub(crate) fn balancer(&self) -> Value {
        let [balancer] = self.balancers().try_into().expect("one load balancer");
        balancer
    }

    /// Changes fields of the only load balancer, as others would.
    pub(crate) fn edit(&self, change: Value) {
        let id = self.balancer()["id"].as_str().unwrap().to_owned();
        self.sim.change("load_balancers", &id, fields(change)).unwrap();
    }

    /// The operations that wrote since the calls were cleared.
    pub(crate) fn writes(&self) -> Vec<String> {
        let calls = self.sim.calls().into_iter().filter(|call| call.method != "GET");
        calls.map(|call| call.op.to_owned()).collect()
    }

    pub(crate) fn create_certificate(&self, name: &str, kind: &str) -> String {
        self.sim
            .create("certificates", fields(json!({"name": name, "type": kind})))
    }

    /// Reconciles although a Service is refused, and returns the errors.
    pub(crate) async fn settle_with_complaints(&mut self) -> String {
        self.cluster.settle().await.unwrap();
        self.cluster.complaints().join("; ")
    }
}

/// A short time limit for events that must not happen.
pub(crate) const MOMENT: Duration = Duration::from_millis(50);
