//! An account of AWS with the provider on it.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use ccm_core::{
    AddressType, Cloud, NodeAddress, Result,
    load_balancer::ServiceNode,
    testkit::{
        self,
        cluster::{TestCluster, advance_to, annotate, annotate_all, service},
        nodes::service_node,
    },
};
use ccm_provider_aws::NAME;
use ccm_testbed::test_cloud::{AwsCloud, TestCloud as _};
use serde_json::{Value, json};

/// The prefix of the annotations of Services.
pub(crate) const ANNOTATION: &str = "service.beta.kubernetes.io/aws-load-balancer-";
/// Without an annotation, Services get network load balancers.
pub(crate) const NLB: &str = "DefaultLoadBalancerType=nlb\n";

/// As [`NLB`], with security groups that the provider manages.
pub(crate) const MANAGED: &str = "DefaultLoadBalancerType=nlb\nNLBSecurityGroupMode=Managed\n";
/// No writes, or no rules.
pub(crate) const NOTHING: Vec<String> = Vec::new();

/// A provider without state on this account. `more`: lines of `[Global]`.
pub(crate) async fn start(aws: &AwsCloud, more: &str) -> Result<Arc<dyn Cloud>> {
    // The last one of several equal keys is used.
    let end = "[ServiceOverride";
    let conf = aws.config().replacen(end, &format!("{more}{end}"), 1);
    // No test waits for a quota.
    let buckets = "ec2-read ec2-unfiltered ec2-write ec2-tags elb-read elb-modify elb-write".split(' ');
    let quota: String =
        buckets.map(|key| format!("{key}-requests-per-second=1000\n{key}-burst=1000\n")).collect();
    let environment = aws.environment().into_iter().collect();
    testkit::build(NAME, &format!("{conf}[Quota]\n{quota}"), environment).await
}

/// Creates an instance and returns its node.
pub(crate) async fn node(aws: &AwsCloud, name: &str) -> ServiceNode {
    let machine = aws.create_machine(name).await.unwrap();
    let mut addresses = machine.addresses.iter();
    let (_, address) = addresses.find(|(kind, _)| kind == "InternalIP").unwrap();
    let address = NodeAddress::new(AddressType::InternalIP, address.clone());
    service_node(name, &machine.provider_id, vec![address])
}

/// A cluster with nodes and a Service `web` on an account of its own.
pub(crate) struct Stage {
    pub(crate) aws: AwsCloud,
    cluster: TestCluster,
    more: String,
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
    pub(crate) async fn new(more: &str, nodes: usize) -> Self {
        let aws = AwsCloud::start().await.unwrap();
        let cloud = start(&aws, more).await.unwrap();
        let mut cluster = TestCluster::new(cloud, advance_to);
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

    /// A cluster whose Service `web` has a load balancer.
    pub(crate) async fn served(more: &str, nodes: usize, ports: &[u16], annotations: &str) -> Self {
        let mut stage = Self::new(more, nodes).await;
        stage.add("web", ports, annotations);
        stage.settle_well().await;
        stage
    }

    /// Adds a Service with these annotations, written as `type=nlb; scheme=internal`.
    pub(crate) fn add(&mut self, name: &str, ports: &[u16], annotations: &str) {
        let mut service = service(name, ports);
        annotate_all(&mut service, ANNOTATION, annotations);
        self.services.push(service);
    }

    /// Adds a node.
    pub(crate) async fn join(&mut self, name: &str) {
        let node = node(&self.aws, name).await;
        self.nodes.push(node);
    }

    /// Restarts the process, and asserts that it writes nothing.
    pub(crate) async fn assert_settled(&mut self) {
        self.restart().await;
        assert_eq!(self.settle_well().await, NOTHING);
    }

    /// The only object of a kind.
    pub(crate) async fn only(&self, kind: &str) -> Value {
        let [object] = self.objects(kind).await.try_into().expect("one object");
        object
    }

    /// Deletes all Services, and asserts that nothing is left. Returns the actions that wrote.
    pub(crate) async fn delete(&mut self) -> Vec<String> {
        for service in &mut self.services {
            service.deleting = true;
        }
        let writes = self.settle_well().await;
        assert!(self.services.is_empty());
        self.assert_empty().await;
        writes
    }

    pub(crate) async fn assert_empty(&self) {
        for kind in ["v2", "target_groups", "orphan_target_groups", "classic"] {
            assert_eq!(self.objects(kind).await, Vec::<Value>::new());
        }
        assert_eq!(self.rules("nodes").await, NOTHING);
        assert_eq!(self.objects("security_groups").await.len(), 2);
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
        self.assert_no_complaints();
        writes
    }

    /// An operation by boto3's name, past the proxy.
    pub(crate) async fn call(&self, service: &str, operation: &str, arguments: Value) -> Value {
        self.aws.call(service, operation, arguments).await.unwrap()
    }

    /// Restarts the process without state.
    pub(crate) async fn restart(&mut self) {
        self.cloud = start(&self.aws, &self.more).await.unwrap();
    }

    /// Restarts the process with other lines of `[Global]`.
    pub(crate) async fn restart_with(&mut self, more: &str) {
        more.clone_into(&mut self.more);
        self.restart().await;
    }

    /// Objects of a kind, as moto has them: `v2`, `target_groups`, `classic`, `security_groups`, `orphan_target_groups`.
    pub(crate) async fn objects(&self, kind: &str) -> Vec<Value> {
        let (objects, _) = self.aws.dump(&json!({})).await.unwrap();
        objects[kind].as_array().unwrap().clone()
    }

    /// The rules of a security group.
    pub(crate) async fn rules(&self, name: &str) -> Vec<String> {
        let groups = self.objects("security_groups").await;
        let group = groups.iter().find(|group| group["name"] == name).unwrap();
        let rules = group["rules"].as_array().unwrap().iter();
        rules.map(|rule| rule.as_str().unwrap().to_owned()).collect()
    }

    /// Removes this program's own tags from all network load balancers, as if the Go program had created them.
    pub(crate) async fn disown(&self) {
        let keys = ["cluster", "attributes", "adopted-annotations"];
        let keys = keys.map(|key| format!("cloud-controller-manager/{key}"));
        let arns: Vec<_> = self.v2_arns().await;
        let body = json!({"ResourceArns": arns, "TagKeys": keys});
        self.call("v2", "remove_tags", body).await;
    }

    /// The ARNs of load balancers, listeners and target groups.
    async fn v2_arns(&self) -> Vec<Value> {
        let found = self.call("v2", "describe_load_balancers", json!({})).await;
        let mut arns = arns(&found["LoadBalancers"], "LoadBalancerArn");
        for balancer in arns.clone() {
            let of = json!({"LoadBalancerArn": balancer});
            let found = self.call("v2", "describe_listeners", of).await;
            arns.extend(self::arns(&found["Listeners"], "ListenerArn"));
        }
        let found = self.call("v2", "describe_target_groups", json!({})).await;
        arns.extend(self::arns(&found["TargetGroups"], "TargetGroupArn"));
        arns
    }

    /// Gives a target group's attribute a value, as a person would.
    pub(crate) async fn set_target_group_attribute(&self, port: u16, key: &str, value: &str) {
        let found = self.call("v2", "describe_target_groups", json!({})).await;
        let mut groups = found["TargetGroups"].as_array().unwrap().iter();
        let group = groups.find(|group| group["Port"] == port).unwrap();
        let body = json!({
            "TargetGroupArn": group["TargetGroupArn"],
            "Attributes": [{"Key": key, "Value": value}],
        });
        self.call("v2", "modify_target_group_attributes", body).await;
    }

    /// An attribute of the target group of a node port.
    pub(crate) async fn target_group_attribute(&self, port: u16, key: &str) -> String {
        let groups = self.objects("target_groups").await;
        let group = groups.iter().find(|group| group["port"] == port).unwrap();
        group["attributes"][key].as_str().unwrap_or_default().to_owned()
    }
}

fn arns(list: &Value, key: &str) -> Vec<Value> {
    let list = list.as_array().unwrap().iter();
    list.map(|object| object[key].clone()).collect()
}
