//! Several load balancers of each kind: Services and nodes move between them, and nothing is left behind.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    Environment, NodeView,
    load_balancer::{Policy, ServiceView},
    testkit::{
        self,
        cluster::{annotate, service},
    },
};
use serde_json::Value;

use crate::subscription::{NETWORK, NOTHING, PREFIX, Subscription, names_of};

/// Two load balancers. The instances of the scale set belong to the first, machine `vm-0` and nodes with a label to the second.
const TWO: &str = "loadBalancerBackendPoolConfigurationType: nodeIP
multipleStandardLoadBalancerConfigurations:
- name: kubernetes
  primaryVMSet: pool-a
- name: second
  primaryVMSet: vm-0
  nodeSelector: {matchLabels: {pool: b}}
";

fn choose(service: &mut ServiceView, balancers: &str) {
    annotate(service, &format!("{PREFIX}load-balancer-configurations"), Some(balancers));
}

fn at(name: &str, balancer: &str) -> ServiceView {
    let mut service = service(name, &[80]);
    choose(&mut service, balancer);
    service
}

/// The names of nodes in the pools, by load balancer.
async fn nodes(azure: &Subscription) -> BTreeMap<String, Vec<String>> {
    elements(azure, |balancer| {
        let pools = balancer["properties"]["backendAddressPools"].as_array().unwrap();
        let addresses = pools.iter().map(|pool| &pool["properties"]["loadBalancerBackendAddresses"]);
        let mut names: Vec<String> = addresses.filter(|list| list.is_array()).flat_map(names_of).collect();
        names.sort();
        names
    })
    .await
}

/// The names of frontends, by load balancer.
async fn frontends(azure: &Subscription) -> BTreeMap<String, Vec<String>> {
    elements(azure, |balancer| names_of(&balancer["properties"]["frontendIPConfigurations"])).await
}

async fn elements(azure: &Subscription, of: impl Fn(&Value) -> Vec<String>) -> BTreeMap<String, Vec<String>> {
    let documents = azure.documents().await;
    let balancers = documents
        .values()
        .filter(|document| document["type"] == "Microsoft.Network/loadBalancers");
    balancers
        .map(|balancer| (balancer["name"].as_str().unwrap().to_owned(), of(balancer)))
        .collect()
}

fn expected(lists: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let owned = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    lists.iter().map(|(balancer, list)| ((*balancer).to_owned(), owned(list))).collect()
}

#[tokio::test]
async fn services_move_by_annotation_and_take_their_addresses_along() {
    let mut azure = Subscription::new(&["--uniform=2", "--standalone=2"], TWO).await;
    azure.services.push(at("web", "kubernetes"));
    azure.settle_well().await;
    // Only one load balancer is needed: it has all nodes.
    let all = ["pool-a000000", "pool-a000001", "vm-0", "vm-1"];
    assert_eq!(nodes(&azure).await, expected(&[("kubernetes", &all)]));

    azure.services.push(at("api", "Second"));
    azure.settle_well().await;
    let two = expected(&[
        ("kubernetes", &["pool-a000000", "pool-a000001", "vm-1"]),
        ("second", &["vm-0"]),
    ]);
    assert_eq!(nodes(&azure).await, two);
    assert_eq!(
        frontends(&azure).await,
        expected(&[("kubernetes", &["auidweb"]), ("second", &["auidapi"])])
    );
    azure.assert_settled().await;
    let address = azure.address("api");

    choose(azure.service("api"), "kubernetes");
    azure.settle_well().await;
    assert_eq!(azure.address("api"), address);
    assert_eq!(frontends(&azure).await, expected(&[("kubernetes", &["auidweb", "auidapi"])]));
    assert_eq!(nodes(&azure).await, expected(&[("kubernetes", &all)]));
    azure.assert_settled().await;

    choose(azure.service("web"), "second");
    azure.settle_well().await;
    assert_eq!(
        frontends(&azure).await,
        expected(&[("kubernetes", &["auidapi"]), ("second", &["auidweb"])])
    );
    assert_eq!(nodes(&azure).await, two);
    // Both may serve it: it stays.
    choose(azure.service("web"), "kubernetes, second");
    assert_eq!(azure.settle_well().await, NOTHING);
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_node_moves_with_its_labels_between_external_and_internal_load_balancers() {
    let mut azure = Subscription::new(&["--uniform=1", "--standalone=2"], TWO).await;
    azure.services.extend([at("web", "kubernetes"), at("api", "second")]);
    let mut internal = at("db", "second");
    annotate(&mut internal, &format!("{PREFIX}load-balancer-internal"), Some("true"));
    azure.services.push(internal);
    azure.settle_well().await;
    let before = expected(&[
        ("kubernetes", &["pool-a000000", "vm-1"]),
        ("second", &["vm-0"]),
        ("second-internal", &["vm-0"]),
    ]);
    assert_eq!(nodes(&azure).await, before);
    azure.assert_settled().await;

    let node = azure.cluster.nodes.iter_mut().find(|node| node.view.name == "vm-1").unwrap();
    let label = |value: &str| [("pool", value)].into_iter().collect();
    node.view = Arc::new(NodeView {
        labels: label("b"),
        ..NodeView::clone(&node.view)
    });
    assert_eq!(azure.settle_well().await, ["PUT loadBalancers/backendAddressPools 3"]);
    let after = expected(&[
        ("kubernetes", &["pool-a000000"]),
        ("second", &["vm-0", "vm-1"]),
        ("second-internal", &["vm-0", "vm-1"]),
    ]);
    assert_eq!(nodes(&azure).await, after);
    azure.assert_settled().await;

    // Its machine's set wins over the label.
    let node = azure.cluster.nodes.iter_mut().find(|node| node.view.name == "vm-0").unwrap();
    node.view = Arc::new(NodeView {
        labels: label("c"),
        ..NodeView::clone(&node.view)
    });
    assert_eq!(azure.settle_well().await, NOTHING);
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn services_are_selected_by_labels_and_a_closed_load_balancer_keeps_those_that_it_has() {
    let conf = "loadBalancerBackendPoolConfigurationType: nodeIP
multipleStandardLoadBalancerConfigurations:
- {name: kubernetes, primaryVMSet: pool-a}
- {name: second, primaryVMSet: vm-0, serviceLabelSelector: {matchExpressions: [{key: tier, operator: In, values: [two, three]}]}}
- {name: closed, primaryVMSet: vm-1, allowServicePlacement: false}
";
    let mut azure = Subscription::new(&["--uniform=1"], conf).await;
    let mut api = service("api", &[80]);
    api.labels = [("tier", "two")].into_iter().collect();
    azure.services.extend([service("web", &[80]), api]);
    azure.settle_well().await;
    let placed = expected(&[("kubernetes", &["auidweb"]), ("second", &["auidapi"])]);
    assert_eq!(frontends(&azure).await, placed);
    azure.assert_settled().await;

    // A Service that no load balancer accepts keeps what it has, and is told why.
    for (balancers, why) in [
        ("closed", "closed has allowServicePlacement false"),
        ("second", "the labels of the Service do not match serviceLabelSelector of second"),
        ("third", "none of third is one of kubernetes, second, closed"),
    ] {
        choose(azure.service("web"), balancers);
        azure.cluster.settle().await.unwrap();
        azure.assert_complaints(&[why]);
        assert_eq!(frontends(&azure).await, placed);
    }
    annotate(azure.service("web"), &format!("{PREFIX}load-balancer-configurations"), None);
    // Local traffic: the pool is that of the load balancer, and probes ask each node.
    azure.service("web").external_policy = Policy::Local;
    azure.service("web").health_check_node_port = 32000;
    azure.settle_well().await;
    azure.assert_settled().await;

    let closed = conf.replace("name: second,", "name: second, allowServicePlacement: false,");
    let conf = format!("{}{NETWORK}{closed}", azure.server().conf());
    azure.cluster.cloud = testkit::build("azure", &conf, Environment::default()).await.unwrap();
    assert_eq!(azure.settle_well().await, NOTHING);
    assert_eq!(frontends(&azure).await, placed);
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn nodes_that_no_load_balancer_accepts_are_named() {
    let conf = "loadBalancerBackendPoolConfigurationType: nodeIP
multipleStandardLoadBalancerConfigurations:
- {name: kubernetes, primaryVMSet: pool-a, nodeSelector: {matchLabels: {pool: a}}}
";
    let mut azure = Subscription::new(&["--uniform=1", "--standalone=1"], conf).await;
    azure.services.push(service("web", &[80]));
    azure.settle_well().await;
    let warns = |azure: &Subscription| {
        let mut events = azure.reports.iter().flat_map(|report| &report.events);
        events.any(|event| {
            event.reason == "FailedToFindLoadBalancerForNode" && event.message.contains("accepts nodes vm-0;")
        })
    };
    assert!(warns(&azure));
    assert_eq!(nodes(&azure).await, expected(&[("kubernetes", &["pool-a000000"])]));
    azure.cluster.nodes.retain(|node| node.view.name != "vm-0");
    azure.settle_well().await;
    assert!(!warns(&azure));
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn one_load_balancer_needs_the_name_of_the_cluster() {
    let conf = "loadBalancerBackendPoolConfigurationType: nodeIP
multipleStandardLoadBalancerConfigurations:
- {name: other, primaryVMSet: pool-a}
";
    let mut azure = Subscription::new(&["--uniform=1"], conf).await;
    azure.services.push(service("web", &[80]));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["needs an entry with the name of the cluster, kubernetes"]);
    assert_eq!(azure.names().await, ["ssh"]);
    azure.delete_all().await;
    azure.stage.end().await;
}
