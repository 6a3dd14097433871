#![allow(clippy::unwrap_used, clippy::expect_used)]

use ccm_core::{
    Error, ErrorKind,
    testkit::{FakeCloud, FakeRoutes, routes::RouteCall},
};
use serde_json::{Value, json};

use super::*;
use crate::plan::{Summary, as_text};

fn node(i: u8, change: impl FnOnce(&mut Value)) -> Arc<NodeObject> {
    let mut node = json!({
        "metadata": {"name": format!("n{i}"), "uid": format!("u{i}"), "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"providerID": format!("fake://n{i}"), "podCIDRs": [format!("10.244.{i}.0/24")]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": format!("10.0.0.{i}")}],
            "conditions": [{"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated"}],
        },
    });
    change(&mut node);
    Arc::new(serde_json::from_value(node).unwrap())
}

fn usual(i: u8) -> Arc<NodeObject> {
    node(i, |_| {})
}

/// The plan and its text. Nothing is applied.
async fn planned(cluster_cidr: &str, nodes: &[Arc<NodeObject>], routes: &FakeRoutes) -> (Plan, String) {
    let config = RouteConfig {
        enabled: true,
        cluster_cidr: cluster_cidr.to_owned(),
        period: None,
    };
    let cloud = FakeCloud::default().with_routes(routes);
    let mut collected = Plan::default();
    plan(nodes, &cloud, &config, Priority::User, &mut collected).await;
    assert!(routes.calls().iter().all(|call| *call == RouteCall::Observe));
    let text = as_text(&collected);
    (collected, text)
}

fn table(entries: &[(&str, &str)]) -> FakeRoutes {
    let routes = FakeRoutes::default();
    for (destination, next_hop) in entries {
        routes.insert(destination.parse().unwrap(), next_hop);
    }
    routes
}

#[tokio::test]
async fn an_unchanged_route_is_not_mentioned() {
    let routes = table(&[("10.244.1.0/24", "10.0.0.1"), ("192.168.0.0/24", "10.0.0.7")]);
    let (plan, text) = planned("10.244.0.0/16", &[usual(1)], &routes).await;
    assert_eq!(plan, Plan::default(), "{text}");
}

#[tokio::test]
async fn a_route_that_moves_is_one_change_and_a_second_path_is_deleted() {
    let routes = table(&[
        ("10.244.1.0/24", "10.0.0.8"),
        ("10.244.1.0/24", "10.0.0.9"),
        ("10.244.2.0/24", "10.0.0.2"),
        ("10.244.2.0/24", "10.0.0.9"),
        ("10.244.3.0/24", "10.0.0.3"),
    ]);
    routes.set_unfinished("10.244.3.0/24".parse().unwrap());
    let bare = node(4, |node| node["status"]["conditions"] = json!([]));
    let (_, text) = planned("10.244.0.0/16", &[usual(1), usual(2), usual(3), bare], &routes).await;
    insta::assert_snapshot!(text, @r"
    Nodes with another condition NetworkUnavailable: 1
      ~ n4: set condition NetworkUnavailable to False (RouteCreated) (it has all of its routes then)

    Routes: 4
      ~ change route 10.244.1.0/24 via 10.0.0.1 (node n1) (now via 10.0.0.8)
      - delete route 10.244.1.0/24 via 10.0.0.9 (the node's is via 10.0.0.1)
      - delete route 10.244.2.0/24 via 10.0.0.9 (the node's is via 10.0.0.2)
      ~ complete route 10.244.3.0/24 via 10.0.0.3 (node n3) (the route exists, but what it needs is missing or could not be read)
      + create route 10.244.4.0/24 via 10.0.0.4 (node n4)

    Plan: 1 to create, 3 to change, 2 to delete. Read 0 Services and 1 node.
    ");
}

#[tokio::test]
async fn a_pod_cidr_without_a_route_is_blocked_and_its_node_has_the_condition() {
    let homeless = node(1, |node| node["status"]["addresses"] = json!([]));
    let new = node(2, |node| {
        node["status"] = json!({});
        node["spec"]["taints"] = json!([
            {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"},
        ]);
    });
    let outside = node(3, |node| node["spec"]["podCIDRs"] = json!(["10.99.0.0/24"]));
    let six = node(4, |node| node["spec"]["podCIDRs"] = json!(["fd00:4::/64"]));
    let foreign = node(5, |node| node["spec"]["providerID"] = json!("other://n5"));
    let twin = node(8, |node| node["spec"]["podCIDRs"] = json!(["10.244.7.0/24"]));
    // The first two are left unchanged: their next hop is not known here.
    let routes = table(&[
        ("10.244.1.0/24", "10.0.0.77"),
        ("10.244.5.0/24", "10.0.0.78"),
        ("10.244.7.0/24", "10.0.0.7"),
    ]);
    let nodes = [homeless, new, outside, six, foreign, usual(7), twin];
    let (_, text) = planned("10.244.0.0/16", &nodes, &routes).await;
    insta::assert_snapshot!(text, @r"
    Nodes with another condition NetworkUnavailable: 3
      ~ n1: set condition NetworkUnavailable to True (NoRouteCreated) (it lacks a route)
      ~ n3: set condition NetworkUnavailable to True (NoRouteCreated) (it lacks a route)
      ~ n8: set condition NetworkUnavailable to True (NoRouteCreated) (it lacks a route)

    Routes: 4
      ! route 10.99.0.0/24 (node n3): no route is created: it is outside --cluster-cidr, and only routes inside are created
      ! route 10.244.1.0/24 (node n1): no route is created: the node has no address of this IP family
      ! route 10.244.7.0/24 (node n8): no route is created: the older node n7 has the same podCIDR
      * route fd00:4::/64: --cluster-cidr names no network of this family, so that such podCIDRs get no routes

    Plan: 0 to create, 3 to change, 0 to delete; 3 blocked, 1 warning. Read 0 Services and 3 nodes.
    ");
}

#[tokio::test]
async fn a_read_that_fails_is_a_problem_and_never_a_change() {
    let routes = table(&[("10.244.9.0/24", "10.0.0.9")]);
    let nodes = [usual(1)];
    for (cidr, wrong) in [
        ("", "--cluster-cidr is empty"),
        ("10.244.0.0", "--cluster-cidr \"10.244.0.0\" is not a network"),
    ] {
        let (plan, text) = planned(cidr, &nodes, &routes).await;
        assert!(text.contains(wrong), "{text}");
        assert!(plan.objects().next().is_none(), "{text}");
    }
    assert!(routes.calls().is_empty(), "the cloud is not asked");
    routes.set_unsupported(Some("there is no table"));
    let (plan, text) = planned("10.244.0.0/16", &nodes, &routes).await;
    assert!(text.contains("there is no table"), "{text}");
    assert!(plan.objects().next().is_none(), "{text}");
    routes.set_unsupported(None);
    routes.fail_all(Some(Error::new(ErrorKind::Unavailable, "the table is away")));
    let (plan, text) = planned("10.244.0.0/16", &nodes, &routes).await;
    assert!(text.contains("the table is away"), "{text}");
    assert!(plan.objects().next().is_none(), "{text}");
}

#[tokio::test]
async fn without_a_pod_cidr_nothing_is_deleted() {
    let routes = table(&[("10.244.9.0/24", "10.0.0.9")]);
    let bare = node(1, |node| node["spec"]["podCIDRs"] = json!([]));
    let (plan, text) = planned("10.244.0.0/16", &[bare], &routes).await;
    assert!(text.contains("nothing is deleted while no node has a podCIDR"), "{text}");
    assert_eq!(Summary::of(&plan).verdict().exit_code(), 3);
}

#[tokio::test]
async fn routes_beyond_the_limit_are_blocked_and_the_oldest_nodes_have_theirs() {
    // One is deleted, a foreign one stays, and so there is room for one of three.
    let routes = table(&[("10.244.9.0/24", "10.0.0.9"), ("192.168.0.0/24", "10.0.0.7")]);
    routes.set_limit(Some(2));
    let young = node(1, |node| {
        node["metadata"]["creationTimestamp"] = json!("2026-02-02T03:04:05Z");
    });
    let (_, text) = planned("10.244.0.0/16", &[young, usual(2), usual(3)], &routes).await;
    insta::assert_snapshot!(text, @r"
    Nodes with another condition NetworkUnavailable: 2
      ~ n1: set condition NetworkUnavailable to True (NoRouteCreated) (it lacks a route)
      ~ n3: set condition NetworkUnavailable to True (NoRouteCreated) (it lacks a route)

    Routes: 4
      ! route 10.244.1.0/24 (node n1): no route is created: the limit is 2 routes in all; raise the limit of the fake
      + create route 10.244.2.0/24 via 10.0.0.2 (node n2)
      ! route 10.244.3.0/24 (node n3): no route is created: the limit is 2 routes in all; raise the limit of the fake
      - delete route 10.244.9.0/24 via 10.0.0.9 (no node has this podCIDR)

    Plan: 1 to create, 2 to change, 1 to delete; 2 blocked. Read 0 Services and 2 nodes.
    ");
}
