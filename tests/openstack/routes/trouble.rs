//! Failures of routes, and unusual networks.

use std::{collections::BTreeSet, time::Duration};

use ccm_sim::{Action, Fault, Moment, openstack::NetworkSpec};
use ccm_testbed::nodes::NodeSpec;

use super::{RouteScene, network};
use crate::scene::Scene;

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Returns when this fault delays a request.
async fn reached(scene: &Scene, fault: u64) {
    let delayed = async || {
        let faults = scene.cloud.faults();
        let reached = faults.iter().any(|known| known.id == fault && known.reached > 0);
        reached.then_some(())
    };
    scene.eventually("a delayed request", delayed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_route_of_a_node_that_is_deleted_meanwhile_is_deleted() {
    let routes = RouteScene::set().await;
    let scene = &routes.scene;
    let mut servers = Vec::new();
    for (i, name) in ["stays", "deleted"].into_iter().enumerate() {
        let server = routes.server(name, "private");
        let port = scene.cloud.server_ports(&server).remove(0);
        // Both nodes are already initialized, so that one request has the routes of both.
        scene
            .register_one(NodeSpec {
                uninitialized: false,
                provider_id: Some(format!("openstack:///{server}")),
                node_ip: scene.cloud.port_addresses(&port).first().copied(),
                pod_cidrs: vec![format!("10.244.{i}.0/24")],
                ..NodeSpec::new(name)
            })
            .await;
        servers.push(server);
    }
    let hold = Fault::on("router_add_extraroutes", Action::Hold { at: Moment::Before }).once();
    let hold = scene.cloud.add_fault(hold);
    let _ccm = routes.run();
    reached(scene, hold).await;
    scene.cloud.delete_server(&servers[1]).unwrap();
    scene.nodes.delete("deleted", &Default::default()).await.unwrap();
    assert!(scene.cloud.remove_fault(hold));
    routes.available("stays").await;
    scene
        .eventually("the route of the deleted node is deleted", async || {
            (routes.destinations() == set(&["10.244.0.0/24"])).then_some(())
        })
        .await;
    assert_eq!(routes.count("router_remove_extraroutes"), 1, "the route was created first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_route_is_retried_without_a_change_of_nodes() {
    let routes = RouteScene::set().await;
    let scene = &routes.scene;
    let server = routes.server("barred", "private");
    let port = scene.cloud.server_ports(&server).remove(0);
    routes.register("barred", &["10.244.1.0/24"]).await;
    routes.join("free", 2).await;
    let fault = scene.cloud.add_fault(Fault {
        path: Some(format!("ports/{port}")),
        ..Fault::on("port_update", Action::status(403))
    });
    let _ccm = routes.run();
    routes.available("free").await;
    routes.unavailable("barred").await;
    let event = scene.event("barred", "FailedToCreateRoute").await;
    let message = event.message.unwrap();
    assert!(message.contains(&port), "{message}");
    assert!(scene.cloud.remove_fault(fault));
    routes.available("barred").await;
    assert_eq!(scene.cloud.address_pairs(&port), ["10.244.1.0/24"]);
    assert_eq!(routes.failures().await.len(), 1, "reported once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_others_delete_is_recreated_within_the_period() {
    let routes = RouteScene::set().await;
    for i in 1..=2 {
        routes.join(&format!("node-{i}"), i).await;
    }
    let _ccm = routes.run_with(|config| config.route.period = Some(Duration::from_millis(200)));
    for i in 1..=2 {
        routes.available(&format!("node-{i}")).await;
    }
    let both = routes.destinations();
    routes.scene.cloud.set_router_routes(&routes.router, &[]).unwrap();
    routes
        .scene
        .eventually("the routes exist again", async || (routes.destinations() == both).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_families_and_ipv6_alone_are_routed() {
    let network = |name: &str, subnets: &[&str]| NetworkSpec {
        name: name.to_owned(),
        subnets: subnets.iter().map(|subnet| subnet.parse().unwrap()).collect(),
        ..NetworkSpec::default()
    };
    let networks = [
        network("dual", &["192.168.0.0/24", "fd00:1::/64"]),
        network("six", &["fd00:2::/64"]),
    ];
    let routes = RouteScene::set_with(&networks).await;
    let dual = routes.server("dual", "dual");
    routes.register("dual", &["10.244.1.0/24", "fd44:0:0:1::/64"]).await;
    let six = routes.server("six", "six");
    routes.register("six", &["fd44:0:0:2::/64"]).await;
    // The machine has no IPv6 address for routes to its Pods.
    routes.server("four", "private");
    routes.register("four", &["fd44:0:0:3::/64"]).await;
    let _ccm = routes.run_with(|config| "10.244.0.0/16,fd44::/48".clone_into(&mut config.route.cluster_cidr));
    for name in ["dual", "six"] {
        routes.available(name).await;
    }
    routes.unavailable("four").await;
    let event = routes.scene.event("four", "FailedToCreateRoute").await;
    let message = event.message.unwrap();
    assert!(message.contains("no internal IPv6 address"), "{message}");
    assert_eq!(routes.destinations(), set(&["10.244.1.0/24", "fd44:0:0:1::/64", "fd44:0:0:2::/64"]));
    for (server, pairs) in [
        (dual, &["10.244.1.0/24", "fd44:0:0:1::/64"][..]),
        (six, &["fd44:0:0:2::/64"]),
    ] {
        let port = routes.scene.cloud.server_ports(&server).remove(0);
        let hops = routes.scene.cloud.port_addresses(&port);
        for pair in pairs {
            assert!(hops.contains(&routes.next_hop(pair).unwrap()), "{pair}");
        }
        assert_eq!(routes.scene.cloud.address_pairs(&port), pairs);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_cidr_of_the_other_family_creates_and_deletes_no_route() {
    let routes = RouteScene::set().await;
    let scene = &routes.scene;
    let stale = ("10.244.9.0/24".parse().unwrap(), "10.0.0.99".parse().unwrap());
    scene.cloud.set_router_routes(&routes.router, &[stale]).unwrap();
    routes.join("node-1", 1).await;
    let flags = [
        "--cluster-cidr=fd44::/48",
        "--route-reconciliation-period=200ms",
        "--leader-elect=false",
    ];
    let _ccm = scene.start(&flags).await;
    let node = scene.initialized("node-1").await;
    scene.logged("Nodes have podCIDRs of a family that --cluster-cidr does not name").await;
    routes.passes(2).await;
    assert_eq!(routes.destinations(), set(&["10.244.9.0/24"]));
    assert_eq!(routes.writes(), 0);
    let name = node.metadata.name.unwrap();
    let node = scene.nodes.get(&name).await.unwrap();
    assert_eq!(network(&node), None, "the condition belongs to another program");
}
