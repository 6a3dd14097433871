//! A simulated DigitalOcean and the provider, for the tests of this crate.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

pub(crate) use ccm_core::testkit::cluster::{advance_to, annotate, annotate_all, service};
use ccm_core::{
    AddressType, BuildContext, Cloud, Environment, NodeAddress, Provider, Result,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{self, TestCluster, nodes::service_node},
};
use ccm_provider_digitalocean::NAME;
use ccm_sim::{
    Action,
    digitalocean::{Config, DigitalOcean},
};
use serde_json::{Map, Value, json};

pub(crate) const ID: &str = "kubernetes.digitalocean.com/load-balancer-id";
pub(crate) const DISOWN: &str = "service.kubernetes.io/do-loadbalancer-disown";
/// The prefix of the annotations of load balancers.
pub(crate) const ANNOTATION: &str = "service.beta.kubernetes.io/do-loadbalancer-";
/// The ID of no object.
pub(crate) const ABSENT: &str = "11111111-2222-4333-8444-555555555555";

/// The load balancer annotation with this suffix.
pub(crate) fn key(end: &str) -> String {
    format!("{ANNOTATION}{end}")
}

/// The registered provider.
pub(crate) fn provider() -> &'static Provider {
    testkit::provider(NAME)
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
        environment,
        cluster_name: "kubernetes".into(),
        user_agent: testkit::USER_AGENT.into(),
        ..BuildContext::default()
    }
}

pub(crate) async fn build(environment: Environment) -> Result<Arc<dyn Cloud>> {
    build_with(environment, "").await
}

/// Builds the provider with this config file.
pub(crate) async fn build_with(environment: Environment, yaml: &str) -> Result<Arc<dyn Cloud>> {
    testkit::build(NAME, yaml, environment).await
}

/// The node of a new droplet.
pub(crate) fn node(sim: &DigitalOcean, name: &str) -> ServiceNode {
    let id = sim.create_droplet(name);
    let droplet = sim.document("droplets", &id).unwrap();
    let addresses = [AddressType::InternalIP, AddressType::ExternalIP].into_iter();
    let addresses = addresses.enumerate().map(|(index, kind)| {
        let address = &droplet["networks"]["v4"][index]["ip_address"];
        NodeAddress::new(kind, address.as_str().unwrap())
    });
    service_node(name, &format!("{NAME}://{id}"), addresses.collect())
}

/// The fields of an object.
#[expect(clippy::needless_pass_by_value, reason = "the callers make it on the spot")]
pub(crate) fn fields(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

/// A forwarding rule, such as `tcp 80 -> tcp 30080`.
pub(crate) fn rule(text: &str) -> Value {
    let words: Vec<_> = text.split(' ').collect();
    let port = |index: usize| words[index].parse::<u16>().unwrap();
    json!({
        "entry_protocol": words[0], "entry_port": port(1), "target_protocol": words[3], "target_port": port(4),
    })
}

/// Creates a load balancer that no Service has.
pub(crate) fn create_balancer(sim: &DigitalOcean, name: &str) -> String {
    let fields = fields(json!({"name": name, "forwarding_rules": [rule("tcp 80 -> tcp 80")]}));
    sim.create("load_balancers", fields)
}

/// An answer with this body and these headers.
pub(crate) fn answer(code: u16, body: Option<String>, headers: &[(&str, &str)]) -> Action {
    let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let headers = headers.collect();
    Action::Status { code, body, headers }
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
        let environment = variables.fold(environment(&sim), |all, (name, value)| all.with(*name, *value));
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
    pub(crate) async fn served(annotations: &str) -> Self {
        let mut stage = Self::new(&[]).await;
        stage.add("web", annotations);
        stage.settle().await.unwrap();
        stage
    }

    /// Adds a Service with ports 80 and 443 and these annotations, written as `type=REGIONAL; size-unit=2`.
    pub(crate) fn add(&mut self, name: &str, annotations: &str) -> &mut ServiceView {
        let mut service = service(name, &[80, 443]);
        annotate_all(&mut service, ANNOTATION, annotations);
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
        self.service("web")
    }

    /// Sets annotations of the Service `web`, written as in [`Stage::add`].
    pub(crate) fn set(&mut self, annotations: &str) {
        annotate_all(self.web(), ANNOTATION, annotations);
    }

    pub(crate) fn balancers(&self) -> Vec<Value> {
        self.sim.documents("load_balancers")
    }

    /// The only load balancer.
    pub(crate) fn balancer(&self) -> Value {
        let [balancer] = self.balancers().try_into().expect("one load balancer");
        balancer
    }

    /// The ID of the only load balancer.
    pub(crate) fn id(&self) -> String {
        self.balancer()["id"].as_str().unwrap().to_owned()
    }

    /// The number of droplets of the only load balancer.
    pub(crate) fn droplets(&self) -> usize {
        self.balancer()["droplet_ids"].as_array().unwrap().len()
    }

    /// Changes fields of the only load balancer, as others would.
    pub(crate) fn edit(&self, change: Value) {
        self.sim.change("load_balancers", &self.id(), fields(change)).unwrap();
    }

    /// The operations since the calls were cleared.
    pub(crate) fn ops(&self) -> Vec<&'static str> {
        self.sim.calls().into_iter().map(|call| call.op).collect()
    }

    /// The operations that wrote since the calls were cleared.
    pub(crate) fn writes(&self) -> Vec<&'static str> {
        let calls = self.sim.calls().into_iter().filter(|call| call.method != "GET");
        calls.map(|call| call.op).collect()
    }

    pub(crate) fn create_certificate(&self, name: &str, kind: &str) -> String {
        self.sim.create("certificates", fields(json!({"name": name, "type": kind})))
    }

    /// Reconciles, and asserts that no Service has a problem. Returns the operations that wrote since the calls were cleared.
    pub(crate) async fn settle_well(&mut self) -> Vec<&'static str> {
        self.cluster.settle_well().await;
        self.writes()
    }

    /// Reconciles although a Service is refused, and asserts that the errors contain these texts.
    pub(crate) async fn settle_with_complaints(&mut self, parts: &[&str]) {
        self.cluster.settle().await.unwrap();
        self.assert_complaints(parts);
    }
}
