//! Tags that Services request by annotation.

use ccm_core::load_balancer::Policy;
use ccm_sim::openstack::BalancerState;
use serde_json::json;

use crate::{
    features::{annotation_key, cloud, quiet, served, warnings, web},
    sharing::with_a_users,
    stage::{ID, Stage, annotate, service},
};

const LISTS: [&str; 3] = ["load-balancer-tags", "listener-tags", "pool-tags"];

/// The tags of the load balancer, its first listener and its first pool, without those of the cluster and the Services.
fn tags(balancer: &BalancerState) -> [Vec<String>; 3] {
    [&balancer.loadbalancer, &balancer.listeners[0], &balancer.pools[0]].map(|object| {
        let mut tags: Vec<String> = serde_json::from_value(object.attributes["tags"].clone()).unwrap();
        tags.retain(|tag| !tag.starts_with("kube_"));
        tags.sort();
        tags
    })
}

fn ours(balancer: &BalancerState) -> Vec<String> {
    let all: Vec<String> = serde_json::from_value(balancer.loadbalancer.attributes["tags"].clone()).unwrap();
    all.into_iter().filter(|tag| tag.starts_with("kube_")).collect()
}

/// Sets the requested tags of a Service.
fn request(stage: &mut Stage, name: &str, lists: [Option<&str>; 3]) {
    for (key, list) in LISTS.into_iter().zip(lists) {
        annotate(stage.service(name), &annotation_key(key), list);
    }
}

/// The applied tags in the Service's annotations.
fn applied(stage: &mut Stage, name: &str) -> [Option<String>; 3] {
    let service = stage.service(name);
    LISTS.map(|key| service.annotation(&annotation_key(&format!("applied-{key}"))).map(str::to_owned))
}

/// Adds a tag to an object, like another client.
fn add_tag(stage: &Stage, object: &ccm_sim::openstack::ObjectState, tag: &str) {
    let mut tags = object.attributes["tags"].as_array().unwrap().clone();
    tags.push(json!(tag));
    let change = json!({"tags": tags});
    stage.sim.patch_object(&object.id, change.as_object().unwrap()).unwrap();
}

fn some(tags: [&[&str]; 3]) -> [Vec<String>; 3] {
    tags.map(|tags| tags.iter().map(|tag| (*tag).to_owned()).collect())
}

#[tokio::test]
async fn tags_follow_the_annotations_and_those_of_others_stay() {
    let mut stage = cloud("", |_| {}).await;
    let given = [
        ("load-balancer-tags", "b , a,a"),
        ("listener-tags", "a=1"),
        ("pool-tags", "p,q"),
    ];
    let balancer = served(&mut stage, web(&[80], &given)).await;
    assert_eq!(tags(&balancer), some([&["a", "b"], &["a=1"], &["p", "q"]]));
    let record = ["a,b", "a=1", "p,q"].map(|list| Some(list.to_owned()));
    assert_eq!(applied(&mut stage, "web"), record);
    let cluster = ours(&balancer);
    // The Service, the cluster, and the record of the requested address.
    assert_eq!(cluster.len(), 3, "{cluster:?}");

    // Objects below the load balancer change, and no listing is read again.
    add_tag(&stage, &balancer.loadbalancer, "mine");
    stage.restart().await;
    stage.settle().await;
    for object in [&balancer.listeners[0], &balancer.pools[0]] {
        add_tag(&stage, object, "mine");
    }
    request(&mut stage, "web", [Some("b,c"), None, Some("q,r")]);
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(tags(&balancer), some([&["b", "c", "mine"], &["mine"], &["mine", "q", "r"]]));
    let record = [Some("b,c"), None, Some("q,r")].map(|list| list.map(str::to_owned));
    assert_eq!(applied(&mut stage, "web"), record);
    quiet(&mut stage).await;

    // A new process reads the old lists from the Service.
    request(&mut stage, "web", [None; 3]);
    stage.restart().await;
    stage.settle().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(tags(&balancer), some([&["mine"]; 3]));
    assert_eq!(ours(&balancer), cluster);
    assert_eq!(applied(&mut stage, "web"), [None, None, None]);
    // Now they belong to other clients.
    add_tag(&stage, &balancer.loadbalancer, "a");
    stage.restart().await;
    quiet(&mut stage).await;
}

#[tokio::test]
async fn a_list_that_changes_before_it_was_recorded_leaves_no_tag_behind() {
    let mut stage = cloud("", |_| {}).await;
    served(&mut stage, web(&[80], &[])).await;
    request(&mut stage, "web", [Some("first"); 3]);
    // Nothing is written to the Service.
    stage.run_through().await;
    assert_eq!(tags(&stage.balancers()[0]), some([&["first"]; 3]));
    assert_eq!(applied(&mut stage, "web"), [None, None, None]);
    request(&mut stage, "web", [Some("second"); 3]);
    stage.settle().await;
    assert_eq!(tags(&stage.balancers()[0]), some([&["second"]; 3]));
}

#[tokio::test]
async fn no_list_can_claim_a_load_balancer_or_a_place_on_it() {
    let mut stage = cloud("max-shared-lb = 2", |_| {}).await;
    let long = "x".repeat(256);
    let list = format!("kube_service_kubernetes_shop_other,kube_cluster_id_others,fine,,{long}");
    let lists = LISTS.map(|key| (key, list.as_str()));
    let balancer = served(&mut stage, web(&[80], &lists)).await;
    assert_eq!(tags(&balancer), some([&["fine"]; 3]));
    assert_eq!(ours(&balancer).len(), 3);
    stage.restart().await;
    stage.settle().await;
    let ignored: Vec<_> = stage.reports.iter().flat_map(|report| &report.events).collect();
    let [ignored] = ignored.as_slice() else {
        panic!("{ignored:?}");
    };
    assert_eq!(ignored.reason, "LoadBalancerAnnotationIgnored");
    for part in [
        "pool-tags: ignored: \"kube_service_kubernetes_shop_other\"",
        "empty entry",
        "longer than 255",
    ] {
        assert!(ignored.message.contains(part), "{part}: {}", ignored.message);
    }
    // Nor is the record of applied tags trusted.
    let own = ours(&balancer).join(",");
    annotate(stage.service("web"), &annotation_key("applied-load-balancer-tags"), Some(&own));
    stage.settle().await;
    assert_eq!(ours(&stage.balancers()[0]), ours(&balancer));
    // One more Service may share it.
    let mut other = service("api", &[81]);
    annotate(&mut other, ID, Some(&balancer.loadbalancer.id));
    stage.services.push(other);
    stage.settle_well().await;
    for name in ["web", "api"] {
        stage.service(name).deleting = true;
    }
    stage.settle().await;
    assert!(stage.balancers().is_empty());
}

#[tokio::test]
async fn lists_of_services_that_share_a_load_balancer_are_added_up() {
    let (mut stage, id) = with_a_users().await;
    for (name, port, list) in [("one", 80, "a,x"), ("two", 81, "b,x")] {
        let mut service = service(name, &[port]);
        annotate(&mut service, ID, Some(&id));
        annotate(&mut service, &annotation_key("load-balancer-tags"), Some(list));
        stage.services.push(service);
    }
    let there = |stage: &Stage| tags(&stage.balancers()[0])[0].clone();
    stage.settle().await;
    assert_eq!(there(&stage), ["a", "b", "mine", "x"]);
    request(&mut stage, "one", [Some("a"), None, None]);
    stage.restart().await;
    stage.settle().await;
    assert_eq!(there(&stage), ["a", "b", "mine", "x"], "the other one still wants it");
    // A Service that is refused keeps its tags.
    annotate(stage.service("one"), &annotation_key("class"), Some("missing"));
    request(&mut stage, "one", [None; 3]);
    stage.settle().await;
    assert_eq!(there(&stage), ["a", "b", "mine", "x"]);
    stage.service("two").deleting = true;
    stage.restart().await;
    stage.settle().await;
    assert_eq!(there(&stage), ["a", "mine"]);
    stage.service("one").deleting = true;
    stage.settle().await;
    assert_eq!(there(&stage), ["mine"]);
}

#[tokio::test]
async fn an_octavia_without_tags_is_named() {
    let mut stage = cloud("", |settings| settings.load_balancing.max_minor = 4).await;
    served(&mut stage, web(&[80], &[("pool-tags", "a"), ("listener-tags", "b")])).await;
    assert_eq!(warnings(&stage), ["LoadBalancerTagsIgnored"]);
    let message = &stage.reports[0].events[0].message;
    assert!(
        message.contains("listener-tags, loadbalancer.openstack.org/pool-tags: ignored"),
        "{message}"
    );
}

#[tokio::test]
async fn a_local_service_without_health_monitors_gets_one_warning() {
    for (config, annotation, warned) in [
        ("", None, true),
        ("create-monitor = true", None, false),
        ("", Some("true"), false),
        ("create-monitor = true", Some("false"), true),
    ] {
        let mut stage = cloud(config, |_| {}).await;
        let mut web = web(&[80, 81], &[]);
        (web.external_policy, web.health_check_node_port) = (Policy::Local, 32000);
        annotate(&mut web, &annotation_key("enable-health-monitor"), annotation);
        served(&mut stage, web).await;
        let expected: &[&str] = if warned {
            &["LoadBalancerHealthMonitorMissing"]
        } else {
            &[]
        };
        assert_eq!(warnings(&stage), expected, "{config} {annotation:?}");
    }
}
