//! Routes to Pods.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud, ErrorKind, Priority,
    routes::{Applied, ClusterCidrs, RouteNode, RoutePlan},
    testkit::{
        nodes::node_view,
        routes::{self, assert_all_ok},
    },
};
use ccm_testbed::{gce::GceOptions, observe::assert_has, test_cloud::Machine};
use ipnet::IpNet;
use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::Stage;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A pass of the route controller.
async fn pass(cloud: &dyn Cloud, nodes: &[Arc<RouteNode>]) -> ccm_core::Result<(RoutePlan, Applied)> {
    let cidrs = ClusterCidrs::parse("10.244.0.0/16,fd44::/48").unwrap();
    routes::pass(cloud, &cidrs, nodes).await
}

/// The node of a machine, with the podCIDRs of this number.
fn node(machine: &Machine, number: usize, pod_cidrs: &[&str]) -> Arc<RouteNode> {
    let number_in = |pattern: &&str| net(&pattern.replace('N', &number.to_string()));
    Arc::new(RouteNode {
        view: node_view(&machine.node, Some(&machine.provider_id)),
        pod_cidrs: pod_cidrs.iter().map(number_in).collect(),
        created: i64::try_from(number).unwrap(),
        ..RouteNode::default()
    })
}

async fn nodes(stage: &Stage, count: usize) -> Vec<Arc<RouteNode>> {
    let machines = stage.machines(count).await;
    (1..)
        .zip(&machines)
        .map(|(number, machine)| node(machine, number, &["10.244.N.0/24"]))
        .collect()
}

async fn routes(stage: &Stage) -> Vec<Value> {
    stage.gce.objects(&["routes"]).await.unwrap().into_values().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_has_the_names_of_the_go_program() {
    let stage = Stage::new("").await;
    let nodes = nodes(&stage, 1).await;
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 1);
    let routes = routes(&stage).await;
    assert_eq!(routes[0]["name"], "kubernetes-uid-of-n-1");
    assert_eq!(routes[0]["description"], "k8s-node-route");
    assert_eq!(routes[0]["priority"], 1000);
    assert_eq!(routes[0]["destRange"], "10.244.1.0/24");
    assert_has(routes[0]["network"].as_str().unwrap(), &["projects/test-project/global/networks/default"]);
    assert_has(
        routes[0]["nextHopInstance"].as_str().unwrap(),
        &["projects/test-project/zones/us-central1-a/instances/n-1"],
    );

    // The URLs of the answer have another host than the endpoint: a second pass of the Go program would create it again.
    stage.gce.proxy.forget();
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 0);
    assert_eq!(stage.calls(), ["routes.list"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pod_cidr_of_a_node_has_a_route() {
    let stage = Stage::new("").await;
    let machines = stage.machines(1).await;
    let node = node(&machines[0], 1, &["10.244.N.0/24", "fd44:0:0:N::/64"]);
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &[Arc::clone(&node)]).await.unwrap()), 2);
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &[node]).await.unwrap()), 0);
    let names: Vec<_> = routes(&stage).await.iter().map(|route| route["name"].clone()).collect();
    assert_eq!(names, ["kubernetes-uid-of-n-1", "kubernetes-uidofn1-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_routes_are_created_at_once_and_their_operations_are_listed() {
    let options = GceOptions {
        operation: Duration::from_millis(300),
        ..GceOptions::default()
    };
    let stage = Stage::with(&options, "").await;
    let nodes = nodes(&stage, 40).await;
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 40);
    assert_eq!(stage.count("routes.insert"), 40);
    let reads = stage.calls().len() - 41;
    assert!(reads < 40, "{reads} reads of 40 operations: {:?}", stage.calls());
    assert!(stage.count("operations.list") > 0);
    // Several at once: one after the other would not overlap.
    let requests = stage.gce.proxy.requests();
    let first_read = requests.iter().position(|request| request.name.starts_with("operations.")).unwrap();
    let before = requests[..first_read].iter().filter(|request| request.name == "routes.insert").count();
    assert!((2..=10).contains(&before), "{before} before the first read");

    // One operation is awaited by the service.
    stage.gce.proxy.forget();
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes[1..]).await.unwrap()), 1);
    assert_eq!(stage.calls(), ["routes.list", "routes.delete", "operations.wait"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_an_operation_is_that_of_the_route() {
    let options = GceOptions {
        operation: Duration::from_millis(50),
        ..GceOptions::default()
    };
    let stage = Stage::with(&options, "").await;
    let nodes = nodes(&stage, 1).await;
    stage.fail("routes.insert", 403, "QUOTA_EXCEEDED", "Quota 'ROUTES' exceeded.", true).await;
    let (_, applied) = pass(&*stage.cloud, &nodes).await.unwrap();
    let error = applied.created[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert_has(
        &error.report(),
        &[
            "QUOTA_EXCEEDED: Quota 'ROUTES' exceeded",
            "route=kubernetes-uid-of-n-1",
            "operation=",
        ],
    );
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_quota_stops_the_creates_of_a_pass() {
    let stage = Stage::new("").await;
    let nodes = nodes(&stage, 60).await;
    let before = routes(&stage).await.len();
    stage.gce.set("limits", &json!({"routes": before + 5})).await.unwrap();
    let (_, applied) = pass(&*stage.cloud, &nodes).await.unwrap();
    let refused: Vec<_> = applied.created.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(refused.len(), 55);
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
        assert_has(&error.report(), &["quotaExceeded"]);
    }
    // Those that were already sent, and no more.
    assert!(stage.count("routes.insert") <= 5 + 10, "{}", stage.count("routes.insert"));
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_others_are_neither_seen_nor_deleted() {
    let stage = Stage::new("").await;
    let nodes = nodes(&stage, 1).await;
    let route = |name: &str, description: &str, network: &str| {
        json!({
            "name": name, "description": description, "destRange": "10.244.9.0/24", "priority": 1000,
            "network": format!("global/networks/{network}"), "nextHopInstance": "zones/us-central1-a/instances/n-1",
        })
    };
    for body in [
        route("other-1", "k8s-node-route", "default"),
        route("kubernetes-2", "made by hand", "default"),
        route("kubernetesx-3", "k8s-node-route", "default"),
        route("kubernetes-4", "k8s-node-route", "custom"),
    ] {
        stage.gce.call(Method::POST, "global/routes", Some(&body)).await.unwrap();
    }
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 1);
    assert_eq!(routes(&stage).await.len(), 5);
    // One of this cluster is deleted.
    let ours = route("kubernetes-5", "k8s-node-route", "default");
    stage.gce.call(Method::POST, "global/routes", Some(&ours)).await.unwrap();
    let (plan, applied) = pass(&*stage.cloud, &nodes).await.unwrap();
    assert_eq!((plan.changes.delete.len(), applied.deleted.len()), (1, 1));
    assert_eq!(routes(&stage).await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_route_of_a_deleted_instance_is_removed() {
    let stage = Stage::new("").await;
    let nodes = nodes(&stage, 2).await;
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 2);
    stage.gce.remove("projects/test-project/zones/us-central1-a/instances/n-1").await.unwrap();
    let observed = stage.cloud.routes().unwrap().observe(&[], Priority::User).await.unwrap();
    let blackholes: Vec<_> = observed.routes.iter().filter(|route| route.blackhole).collect();
    assert_eq!(blackholes.len(), 1, "{observed:?}");
    assert_eq!(blackholes[0].handle, "kubernetes-uid-of-n-1");
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes[1..]).await.unwrap()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_existing_route_is_not_taken_for_another_one() {
    let stage = Stage::new("").await;
    let nodes = nodes(&stage, 2).await;
    // The name is that of the first node's route, and the network another one, so that the route is not seen.
    let taken = json!({
        "name": "kubernetes-uid-of-n-1", "description": "k8s-node-route", "destRange": "10.244.1.0/24",
        "network": "global/networks/custom", "nextHopInstance": "zones/us-central1-a/instances/n-1", "priority": 1000,
    });
    stage.gce.call(Method::POST, "global/routes", Some(&taken)).await.unwrap();
    let (_, applied) = pass(&*stage.cloud, &nodes).await.unwrap();
    assert_eq!(applied.created[0].as_ref().unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(applied.created[1].is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_shared_vpc_routes_are_in_the_project_of_the_network() {
    let options = GceOptions {
        projects: vec!["test-project".to_owned(), "host-project".to_owned()],
        ..GceOptions::default()
    };
    // By its number.
    let stage = Stage::with(&options, "network-project-id = 123456789013\n").await;
    let nodes = nodes(&stage, 1).await;
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 1);
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 0);
    let routes = stage.gce.objects(&["routes"]).await.unwrap();
    let (path, route) = routes.first_key_value().unwrap();
    assert_eq!(path, "projects/host-project/global/routes/kubernetes-uid-of-n-1");
    assert_has(route["nextHopInstance"].as_str().unwrap(), &["projects/test-project/zones/us-central1-a"]);
    assert_has(route["network"].as_str().unwrap(), &["projects/host-project/global/networks/default"]);
}
