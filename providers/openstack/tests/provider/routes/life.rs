//! Nodes join, change and leave.

use ccm_core::{AddressType, NodeAddress, Priority};
use ccm_sim::openstack::PortPatch;

use super::stage::{Stage, net};
use crate::cloud::build;

/// The same with either extension.
async fn both(test: impl AsyncFn(Stage)) {
    for atomic in [true, false] {
        let stage = Stage::new(5, "").await;
        if !atomic {
            let missing = vec!["extraroute-atomic".to_owned()];
            stage.sim.configure(|settings| settings.missing_extensions = missing);
        }
        test(stage).await;
    }
}

#[tokio::test]
async fn all_routes_are_added_in_one_request_and_then_nothing_is_due() {
    both(async |mut stage: Stage| {
        stage.join("nodes", true);
        stage.settle().await;
        assert_eq!(stage.table().len(), 7);
        let writes = [
            "router_add_extraroutes",
            "router_remove_extraroutes",
            "router_update",
        ];
        assert_eq!(writes.map(|op| stage.count(op)).iter().sum::<u64>(), 1);
        for i in 0..6 {
            let expected = stage.nodes[i].pod_cidrs.len();
            assert_eq!(stage.sim.address_pairs(&stage.port(i)).len(), expected);
        }
        // One PUT for both families of a port.
        assert_eq!(stage.count("port_update"), 6);

        stage.sim.clear_calls();
        stage.settled().await;
        assert_eq!(stage.sim.call_counts().values().sum::<u64>(), 1, "one read");

        stage.restart().await;
        stage.sim.clear_calls();
        stage.settled().await;
        let counts = stage.sim.call_counts();
        assert_eq!(stage.count("router_get") + stage.count("port_list"), 2, "{counts:?}");
    })
    .await;
}

#[tokio::test]
async fn a_route_via_another_address_of_its_node_stays() {
    let mut stage = Stage::new(2, "").await;
    stage.settle().await;
    let table = stage.table();
    // A second interface, whose network the router does not reach.
    let other = NodeAddress::new(AddressType::InternalIP, "10.9.0.1");
    stage.change(0, |node| node.addresses.insert(0, other));
    stage.settled().await;
    assert_eq!(stage.table(), table);
    stage.restart().await;
    stage.settled().await;
    // The address pair belongs to the port that the route leads to, also with two routers.
    let second = stage.second_router().await;
    let routes = stage.sim.router_routes(&stage.router);
    stage.sim.set_router_routes(&second, &routes).unwrap();
    stage.sim.set_address_pairs(&stage.port(0), &[]).unwrap();
    stage.settle().await;
    assert_eq!(stage.sim.address_pairs(&stage.port(0)), ["10.244.1.0/24"]);
    assert_eq!([stage.table(), stage.table_of(&second)], [table.clone(), table]);
    // The address is not the node's any more.
    stage.readdress(0);
    stage.change(0, |node| {
        node.addresses[0] = NodeAddress::new(AddressType::InternalIP, "192.168.9.9");
    });
    let (plan, _) = stage.pass().await.unwrap();
    assert_eq!((plan.changes.delete.len(), plan.changes.create.len()), (1, 1));
}

#[tokio::test]
async fn a_replaced_node_costs_a_request_in_each_direction() {
    both(async |mut stage: Stage| {
        stage.settle().await;
        let server = stage.server(2);
        stage.sim.delete_server(&server).unwrap();
        stage.nodes.remove(2);
        stage.join("nodes", false);
        stage.change(4, |node| node.pod_cidrs = vec![net("10.244.77.0/24")]);
        stage.sim.clear_calls();
        stage.settle().await;
        assert_eq!(stage.table().len(), 5);
        assert!(stage.table().iter().any(|route| route.starts_with("10.244.77.0/24")));
        assert!(!stage.table().iter().any(|route| route.starts_with("10.244.3.0/24")));
        let writes: u64 = [
            "router_add_extraroutes",
            "router_remove_extraroutes",
            "router_update",
        ]
        .map(|op| stage.count(op))
        .iter()
        .sum();
        assert_eq!(writes, 2);
    })
    .await;
}

#[tokio::test]
async fn a_changed_address_takes_the_stale_path_away_first() {
    both(async |mut stage: Stage| {
        stage.settle().await;
        let old = stage.address(1);
        let patch = PortPatch {
            addresses: Some(vec!["192.168.77.7".parse().unwrap()]),
            ..PortPatch::default()
        };
        stage.sim.update_port(&stage.port(1), &patch).unwrap();
        stage.readdress(1);
        stage.sim.clear_calls();
        stage.settle().await;
        let table = stage.table();
        assert_eq!(table.len(), 5, "no second path: {table:?}");
        assert!(table.contains(&"10.244.2.0/24 192.168.77.7".to_owned()));
        assert!(!table.iter().any(|route| route.ends_with(&format!(" {old}"))));
        assert_eq!(
            stage.sim.address_pairs(&stage.port(1)),
            ["10.244.2.0/24"],
            "the port is the same and keeps its pair"
        );
        let writes: Vec<_> = stage
            .sim
            .calls()
            .into_iter()
            .map(|call| call.op)
            .filter(|op| op.starts_with("router_") && *op != "router_get")
            .collect();
        let expected = match writes.first().copied() {
            Some("router_update") => ["router_update", "router_update"],
            _ => ["router_remove_extraroutes", "router_add_extraroutes"],
        };
        assert_eq!(writes, expected);
    })
    .await;
}

#[tokio::test]
async fn foreign_and_overlapping_routes_stay() {
    both(async |stage: Stage| {
        let hop = stage.address(0);
        let foreign = ["10.244.0.0/14", "0.0.0.0/0", "172.16.0.0/12"].map(|to| (net(to), hop));
        let stale = (net("10.244.200.0/24"), hop);
        let mut all = foreign.to_vec();
        all.push(stale);
        stage.sim.set_router_routes(&stage.router, &all).unwrap();
        stage.settle().await;
        let table = stage.sim.router_routes(&stage.router);
        assert_eq!(table.len(), 8);
        assert!(foreign.iter().all(|route| table.contains(route)));
        assert!(!table.contains(&stale));
    })
    .await;
}

#[tokio::test]
async fn another_spelling_of_a_network_is_no_difference() {
    let stage = Stage::new(1, "").await;
    let hop = stage.address(0);
    // With host bits, as the atomic extension accepts them.
    let odd = (net("10.244.1.9/24"), hop);
    stage.sim.set_router_routes(&stage.router, &[odd]).unwrap();
    stage.settle().await;
    assert_eq!(stage.sim.router_routes(&stage.router), [odd]);
    // And it can be deleted in its own spelling.
    let mut stage = stage;
    stage.change(0, |node| node.pod_cidrs = vec![net("10.244.2.0/24")]);
    stage.settle().await;
    assert_eq!(stage.table(), [format!("10.244.2.0/24 {hop}")]);
}

#[tokio::test]
async fn ipv6_alone_works() {
    let mut stage = Stage::new(0, "").await;
    stage.join("nodes", true);
    stage.change(0, |node| {
        node.pod_cidrs.remove(0);
        node.addresses.retain(|address| address.address.contains(':'));
    });
    stage.settle().await;
    let table = stage.table();
    assert_eq!(table.len(), 1);
    assert!(table[0].starts_with("fd44:0:0:1::/64 fd00::"), "{table:?}");
    assert_eq!(stage.sim.address_pairs(&stage.port(0)), ["fd44:0:0:1::/64"]);
}

#[tokio::test]
async fn without_extensions_or_router_there_are_no_routes() {
    let stage = Stage::new(1, "").await;
    let missing = ["extraroute", "extraroute-atomic"].map(str::to_owned).to_vec();
    stage.sim.configure(|settings| settings.missing_extensions = missing);
    let why = stage.routes().unsupported_reason(Priority::User).await.unwrap().unwrap();
    assert!(why.contains("extraroute-atomic"), "{why}");
    let without = build(&stage.sim.cloud_conf()).await.unwrap();
    assert!(without.routes().is_none());
}
