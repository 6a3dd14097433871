//! An account of AWS with the provider on it.

use std::sync::Arc;

use ccm_core::{
    AddressType, BuildContext, Cloud, Environment, NodeAddress, NodeView, Provider, Result,
    client::ClientMetrics,
    load_balancer::{Blocked, ServiceNode, ServiceView},
    registry,
    testkit::cluster::{TestCluster, annotate, service},
};
use ccm_testbed::{
    observe::assert_has,
    test_cloud::{AwsCloud, TestCloud as _},
};
use serde_json::Value;

/// The prefix of the annotations of Services.
pub(crate) const ANNOTATION: &str = "service.beta.kubernetes.io/aws-load-balancer-";
/// Without an annotation, Services get network load balancers.
pub(crate) const NLB: &str = "DefaultLoadBalancerType=nlb\n";

fn provider() -> &'static Provider {
    let mut all = registry::all().into_iter();
    all.find(|provider| provider.name == ccm_provider_aws::NAME)
        .unwrap()
}

/// A provider without state on this account. `more`: lines of `[Global]`.
pub(crate) async fn start(aws: &AwsCloud, more: &str) -> Result<Arc<dyn Cloud>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cloud.conf");
    // The last one of several equal keys is used.
    let end = "[ServiceOverride";
    let conf = aws.config().replacen(end, &format!("{more}{end}"), 1);
    // No test waits for a quota.
    let buckets = "ec2-read ec2-unfiltered ec2-write ec2-tags elb-read elb-modify elb-write".split(' ');
    let quota: String = buckets
        .map(|key| format!("{key}-requests-per-second=1000\n{key}-burst=1000\n"))
        .collect();
    std::fs::write(&path, format!("{conf}[Quota]\n{quota}")).unwrap();
    let variables = aws.environment().into_iter();
    let environment = variables.fold(Environment::default(), |all, (name, value)| all.with(name, value));
    let context = BuildContext {
        cloud_config: Some(path),
        flags: Default::default(),
        environment,
        cluster_name: "kubernetes".into(),
        user_agent: "aws-cloud-controller-manager/test".into(),
        metrics: ClientMetrics::default(),
        plan: Default::default(),
        fences: Default::default(),
    };
    (provider().validate)(&context)?;
    (provider().build)(context).await
}

/// Creates an instance and returns its node.
pub(crate) async fn node(aws: &AwsCloud, name: &str) -> ServiceNode {
    let machine = aws.create_machine(name).await.unwrap();
    let mut addresses = machine.addresses.iter();
    let address = addresses.find(|(kind, _)| kind == "InternalIP").unwrap();
    ServiceNode {
        view: Arc::new(NodeView {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            provider_id: Some(machine.provider_id.clone()),
            ..NodeView::default()
        }),
        addresses: vec![NodeAddress::new(AddressType::InternalIP, address.1.clone())].into(),
        eligible: true,
        ready: true,
    }
}

/// A cluster with nodes and a Service `web` on an account of its own.
pub(crate) struct Stage {
    pub(crate) aws: AwsCloud,
    pub(crate) cluster: TestCluster,
    more: String,
}

impl Stage {
    pub(crate) async fn new(more: &str, nodes: usize) -> Self {
        let aws = AwsCloud::start().await.unwrap();
        let cloud = start(&aws, more).await.unwrap();
        let mut cluster = TestCluster::new(cloud, |until| Box::pin(tokio::time::sleep_until(until)));
        for at in 0..nodes {
            cluster.nodes.push(node(&aws, &format!("node-{at}")).await);
        }
        aws.proxy.forget();
        Self {
            aws,
            cluster,
            more: more.to_owned(),
        }
    }

    /// Adds a Service with these annotations.
    pub(crate) fn add(&mut self, name: &str, ports: &[u16], annotations: &[(&str, &str)]) {
        let mut service = service(name, ports);
        for (key, value) in annotations {
            annotate(&mut service, &format!("{ANNOTATION}{key}"), Some(value));
        }
        self.cluster.services.push(service);
    }

    /// The Service of this name.
    pub(crate) fn service(&mut self, name: &str) -> &mut ServiceView {
        let mut services = self.cluster.services.iter_mut();
        services.find(|service| &*service.id.name == name).unwrap()
    }

    /// Sets or removes an annotation of a Service.
    pub(crate) fn annotate(&mut self, name: &str, key: &str, value: Option<&str>) {
        annotate(self.service(name), &format!("{ANNOTATION}{key}"), value);
    }

    /// Reconciles until nothing changes; returns the actions that wrote.
    pub(crate) async fn settle(&mut self) -> Vec<String> {
        self.aws.proxy.forget();
        self.cluster.settle().await.unwrap();
        let writes = self.aws.proxy.writes().into_iter();
        writes.map(|request| request.name).collect()
    }

    /// As [`Self::settle`], and asserts that no Service has a problem.
    pub(crate) async fn settle_well(&mut self) -> Vec<String> {
        let writes = self.settle().await;
        assert_eq!(self.cluster.complaints(), Vec::<String>::new());
        writes
    }

    /// An operation by boto3's name, past the proxy.
    pub(crate) async fn call(&self, service: &str, operation: &str, arguments: Value) -> Value {
        self.aws.call(service, operation, arguments).await.unwrap()
    }

    /// Differences that were blocked in the last pass.
    pub(crate) fn blocked(&self) -> Vec<&Blocked> {
        let reports = self.cluster.reports.iter();
        reports.flat_map(|report| &report.blocked).collect()
    }

    /// Asserts that the last pass reported a problem with this text.
    pub(crate) fn assert_problem(&self, part: &str) {
        assert_has(&self.cluster.complaints().join("; "), &[part]);
    }

    /// Restarts the process without state.
    pub(crate) async fn restart(&mut self) {
        self.cluster.cloud = start(&self.aws, &self.more).await.unwrap();
    }

    /// Restarts the process with other lines of `[Global]`.
    pub(crate) async fn restart_with(&mut self, more: &str) {
        more.clone_into(&mut self.more);
        self.restart().await;
    }

    /// Objects of a kind, as moto has them: `v2`, `target_groups`, `classic`, `security_groups`, `orphan_target_groups`.
    pub(crate) async fn objects(&self, kind: &str) -> Vec<Value> {
        let (objects, _) = self.aws.dump(&serde_json::json!({})).await.unwrap();
        objects[kind].as_array().unwrap().clone()
    }

    /// The rules of a security group.
    pub(crate) async fn rules(&self, name: &str) -> Vec<String> {
        let groups = self.objects("security_groups").await;
        let group = groups.iter().find(|group| group["name"] == name).unwrap();
        let rules = group["rules"].as_array().unwrap().iter();
        rules.map(|rule| rule.as_str().unwrap().to_owned()).collect()
    }
}
