//! The desired routes, and the plan for them.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod laws;

use std::{collections::HashSet, sync::Arc};

use ccm_core::{
    AddressType, Error, ErrorKind, NodeAddress, NodeView, Priority,
    routes::{
        ClusterCidrs, Desired, Observed, RouteDecision, RouteNode, RoutePlan, Routes, SkipReason, plan,
    },
    testkit::FakeRoutes,
};
use ipnet::IpNet;

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A node of this age whose name is its first podCIDR.
pub(crate) fn node(created: i64, pod_cidrs: &[&str], addresses: &[&str]) -> Arc<RouteNode> {
    Arc::new(RouteNode {
        view: Arc::new(NodeView {
            name: format!("node-{created}"),
            uid: format!("uid-{created}"),
            provider_id: Some(format!("fake://node-{created}")),
            ..NodeView::default()
        }),
        addresses: addresses
            .iter()
            .map(|address| NodeAddress::new(AddressType::InternalIP, *address))
            .collect(),
        pod_cidrs: pod_cidrs.iter().map(|text| net(text)).collect(),
        created,
        uninitialized: false,
    })
}

pub(crate) fn desired(nodes: &[Arc<RouteNode>], cidrs: &str) -> Desired {
    let routes = FakeRoutes::default();
    Desired::of(
        nodes.iter().cloned(),
        &ClusterCidrs::parse(cidrs).unwrap(),
        |id| id.starts_with("fake://"),
        |node, destination| routes.next_hop(node, destination),
    )
}

async fn planned(nodes: &[Arc<RouteNode>], cidrs: &str, table: &FakeRoutes) -> (Desired, RoutePlan) {
    let desired = desired(nodes, cidrs);
    let observed = table.observe(&desired.routes, Priority::User).await.unwrap();
    let plan = plan(&desired, &observed, &ClusterCidrs::parse(cidrs).unwrap());
    (desired, plan)
}

async fn sentences(nodes: &[Arc<RouteNode>], cidrs: &str, table: &[(&str, &str)]) -> Vec<String> {
    let routes = FakeRoutes::default();
    for (destination, next_hop) in table {
        routes.insert(net(destination), next_hop);
    }
    planned(nodes, cidrs, &routes).await.1.changes.sentences()
}

const SINGLE: &str = "10.120.0.0/16";
const DUAL: &str = "10.120.0.0/16,a000::/8";

fn two() -> [Arc<RouteNode>; 2] {
    [
        node(1, &["10.120.0.0/24"], &["10.0.0.1"]),
        node(2, &["10.120.1.0/24"], &["10.0.0.2"]),
    ]
}

#[tokio::test]
async fn only_differences_are_changed() {
    let create_1 = "create route 10.120.0.0/24 via 10.0.0.1 (node node-1)";
    let create_2 = "create route 10.120.1.0/24 via 10.0.0.2 (node node-2)";
    for (case, table, expected) in [
        ("none", &[][..], &[create_1, create_2][..]),
        ("all present", &[("10.120.0.0/24", "10.0.0.1"), ("10.120.1.0/24", "10.0.0.2")], &[]),
        ("one missing", &[("10.120.1.0/24", "10.0.0.2")], &[create_1]),
        (
            "a wrong next hop",
            &[("10.120.0.0/24", "10.0.0.9"), ("10.120.1.0/24", "10.0.0.2")],
            &["delete route 10.120.0.0/24 via 10.0.0.9", create_1],
        ),
        (
            "a second next hop",
            &[
                ("10.120.0.0/24", "10.0.0.1"),
                ("10.120.0.0/24", "10.0.0.9"),
                ("10.120.1.0/24", "10.0.0.2"),
            ],
            &["delete route 10.120.0.0/24 via 10.0.0.9"],
        ),
        (
            "extra ones",
            &[
                ("10.120.0.0/24", "10.0.0.1"),
                ("10.120.1.0/24", "10.0.0.2"),
                ("10.120.7.0/24", "10.0.0.7"),
                ("10.120.8.0/24", "10.0.0.2"),
            ],
            &[
                "delete route 10.120.7.0/24 via 10.0.0.7",
                "delete route 10.120.8.0/24 via 10.0.0.2",
            ],
        ),
        (
            "foreign ones, also around the cluster CIDR",
            &[
                ("10.120.0.0/24", "10.0.0.1"),
                ("10.120.1.0/24", "10.0.0.2"),
                ("10.120.0.0/14", "10.0.0.3"),
                ("0.0.0.0/0", "10.0.0.3"),
                ("192.168.0.0/24", "10.0.0.1"),
                ("a000::/64", "fd00::1"),
            ],
            &[],
        ),
    ] {
        assert_eq!(sentences(&two(), SINGLE, table).await, expected, "{case}");
    }
}

#[tokio::test]
async fn both_families_have_routes() {
    let nodes = [
        node(1, &["10.120.0.0/24", "a000:100::/24"], &["10.0.0.1", "fd00::1"]),
        node(2, &["10.120.1.0/24", "a000:200::/24"], &["fd00::2", "10.0.0.2"]),
    ];
    assert_eq!(
        sentences(&nodes, DUAL, &[("a000:100::/24", "fd00::1"), ("a000:300::/24", "fd00::9")]).await,
        [
            "delete route a000:300::/24 via fd00::9",
            "create route 10.120.0.0/24 via 10.0.0.1 (node node-1)",
            "create route 10.120.1.0/24 via 10.0.0.2 (node node-2)",
            "create route a000:200::/24 via fd00::2 (node node-2)",
        ]
    );
    // Only IPv6.
    let six = [node(1, &["a000:100::/24"], &["fd00::1"])];
    assert_eq!(
        sentences(&six, "a000::/8", &[]).await,
        ["create route a000:100::/24 via fd00::1 (node node-1)"]
    );
    // A family without a cluster CIDR is ignored: neither desired nor deleted.
    let (desired, plan) = planned(&nodes, "a000::/8", &FakeRoutes::default()).await;
    assert_eq!((desired.pod_cidrs.len(), plan.changes.len()), (2, 2));
    assert_eq!(desired.foreign_family, Some(net("10.120.0.0/24")));
}

#[tokio::test]
async fn a_node_without_pod_cidr_needs_no_route() {
    let nodes = [
        node(1, &[], &["10.0.0.1"]),
        node(2, &["10.120.1.0/24"], &["10.0.0.2"]),
    ];
    let (desired, plan) = planned(&nodes, SINGLE, &FakeRoutes::default()).await;
    assert_eq!((desired.pod_cidrs.len(), plan.changes.create.len()), (1, 1));
}

#[tokio::test]
async fn routes_of_nodes_with_an_unknown_next_hop_are_left_unchanged() {
    let mut waiting = RouteNode::clone(&node(1, &["10.120.0.0/24"], &[]));
    waiting.uninitialized = true;
    let nodes = [Arc::new(waiting), node(2, &["10.120.1.0/24"], &["fd00::2"])];
    let table = FakeRoutes::default();
    table.insert(net("10.120.0.0/24"), "10.0.0.1");
    table.insert(net("10.120.1.0/24"), "10.0.0.2");
    let (desired, plan) = planned(&nodes, SINGLE, &table).await;
    assert!(plan.changes.is_empty());
    let decisions: Vec<_> = desired.pod_cidrs.iter().map(|pod_cidr| &pod_cidr.decision).collect();
    assert!(
        matches!(
            decisions.as_slice(),
            [
                RouteDecision::Skip(SkipReason::Uninitialized),
                RouteDecision::Skip(SkipReason::NoNextHop(_))
            ]
        ),
        "{decisions:?}"
    );
}

#[tokio::test]
async fn routes_of_nodes_of_another_cloud_are_left_unchanged() {
    let mut foreign = RouteNode::clone(&node(1, &["10.120.0.0/24"], &["10.0.0.1"]));
    foreign.view = Arc::new(NodeView {
        provider_id: Some("elsewhere://1".to_owned()),
        ..NodeView::default()
    });
    let table = FakeRoutes::default();
    table.insert(net("10.120.0.0/24"), "10.9.9.9");
    let (desired, plan) = planned(&[Arc::new(foreign)], SINGLE, &table).await;
    assert!(desired.pod_cidrs.is_empty() && plan.changes.is_empty());
}

#[tokio::test]
async fn the_older_of_two_nodes_with_the_same_pod_cidr_gets_the_route() {
    let nodes = [
        node(2, &["10.120.0.0/24"], &["10.0.0.2"]),
        node(1, &["10.120.0.0/24", "10.120.0.0/24"], &["10.0.0.1"]),
    ];
    let (desired, plan) = planned(&nodes, SINGLE, &FakeRoutes::default()).await;
    assert_eq!(plan.changes.create.len(), 1);
    assert_eq!(plan.changes.create[0].next_hop.as_str(), "10.0.0.1");
    let RouteDecision::Skip(SkipReason::Duplicate(owner)) = &desired.pod_cidrs[1].decision else {
        panic!("{:?}", desired.pod_cidrs)
    };
    assert_eq!(owner.view.name, "node-1");
}

#[tokio::test]
async fn a_route_outside_the_cluster_cidr_is_accepted_but_not_created() {
    let nodes = [node(1, &["10.121.0.0/24"], &["10.0.0.1"])];
    let table = FakeRoutes::default();
    let (_, plan) = planned(&nodes, SINGLE, &table).await;
    assert!(plan.changes.is_empty() && plan.exists == [false]);
    table.insert(net("10.121.0.0/24"), "10.0.0.1");
    let (_, plan) = planned(&nodes, SINGLE, &table).await;
    assert!(plan.changes.is_empty() && plan.exists == [true]);
}

#[tokio::test]
async fn without_any_pod_cidr_nothing_is_deleted() {
    let table = FakeRoutes::default();
    table.insert(net("10.120.0.0/24"), "10.0.0.1");
    for nodes in [vec![], vec![node(1, &[], &["10.0.0.1"])]] {
        let (_, plan) = planned(&nodes, SINGLE, &table).await;
        assert!(plan.changes.is_empty() && plan.blocked.len() == 1);
    }
}

#[test]
fn a_blackhole_is_deleted_only_inside_the_cluster_cidr() {
    let desired = desired(&two()[..1], SINGLE);
    let mut observed = Observed::default();
    for destination in ["10.120.0.0/24", "10.120.5.0/24", "10.1.0.0/24"] {
        observed.routes.push(ccm_core::routes::CloudRoute {
            destination: net(destination),
            next_hop: ccm_core::routes::NextHop::new("10.0.0.1"),
            blackhole: true,
            handle: destination.to_owned(),
        });
    }
    let plan = plan(&desired, &observed, &ClusterCidrs::parse(SINGLE).unwrap());
    assert_eq!(
        plan.changes.sentences(),
        [
            "delete route 10.120.0.0/24 via 10.0.0.1 (a blackhole)",
            "delete route 10.120.5.0/24 via 10.0.0.1 (a blackhole)",
            "create route 10.120.0.0/24 via 10.0.0.1 (node node-1)",
        ]
    );
}

#[test]
fn networks_are_compared_instead_of_texts() {
    let desired = desired(&[node(1, &["a000:100::/24"], &["fd00::1"])], "a000::/8");
    let observed = Observed {
        routes: vec![ccm_core::routes::CloudRoute {
            destination: net("a000:100:0:0::7/24"),
            next_hop: ccm_core::routes::NextHop::new("fd00::1"),
            blackhole: false,
            handle: "a000:100:0:0::7/24 fd00:0::1".to_owned(),
        }],
        unfinished: Vec::new(),
    };
    let plan = plan(&desired, &observed, &ClusterCidrs::parse("a000::/8").unwrap());
    assert!(plan.changes.is_empty(), "{:?}", plan.changes.sentences());
}

#[tokio::test]
async fn an_unfinished_route_is_finished() {
    let table = FakeRoutes::default();
    table.insert(net("10.120.0.0/24"), "10.0.0.1");
    table.set_unfinished(net("10.120.0.0/24"));
    let (_, plan) = planned(&two()[..1], SINGLE, &table).await;
    assert_eq!(plan.changes.sentences(), ["finish route 10.120.0.0/24 via 10.0.0.1 (node node-1)"]);
    assert_eq!(plan.complete, [false]);
}

#[tokio::test]
async fn a_failed_read_plans_no_change() {
    let routes = FakeRoutes::default();
    routes.fail_all(Some(Error::new(ErrorKind::Unavailable, "down")));
    let cloud = ccm_core::testkit::FakeCloud::default();
    let cidrs = ClusterCidrs::parse(SINGLE).unwrap();
    assert!(ccm_core::routes::preview(&cloud, &routes, two(), &cidrs, Priority::User).await.is_err());
    routes.fail_all(None);
    let (_, plan) = ccm_core::routes::preview(&cloud, &routes, two(), &cidrs, Priority::User).await.unwrap();
    assert_eq!(plan.changes.len(), 2);
    let distinct: HashSet<_> = plan.changes.sentences().into_iter().collect();
    assert_eq!(distinct.len(), 2);
    assert!(routes.table().is_empty(), "a preview writes nothing");
}
