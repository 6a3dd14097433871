//! What can go wrong with routes, and networks that are not the usual ones.

use std::{collections::BTreeSet, time::Duration};

use ccm_sim::{Action, Fault, Moment, openstack::NetworkSpec};
use ccm_testbed::nodes::NodeSpec;

use super::{Ground, network};
use crate::scene::Scene;

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Returns when a request is held by this fault.
async fn reached(scene: &Scene, fault: u64) {
    let held = async || {
        let faults = scene.cloud.faults();
        let reached = faults.iter().any(|known| known.id == fault && known.reached > 0);
        reached.then_some(())
    };
    scene.eventually("a request that is held", held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_goes_while_its_route_comes_loses_it_again() {
    let ground = Ground::lay().await;
    let scene = &ground.scene;
    let mut servers = Vec::new();
    for (i, name) in ["stays", "goes"].into_iter().enumerate() {
        let server = ground.server(name, "private");
        let port = scene.cloud.server_ports(&server).remove(0);
        // Initialised before, so that one request has the routes of both.
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
    let _ccm = ground.run();
    reached(scene, hold).await;
    scene.cloud.delete_server(&servers[1]).unwrap();
    scene.nodes.delete("goes", &Default::default()).await.unwrap();
    assert!(scene.cloud.remove_fault(hold));
    ground.available("stays").await;
    scene
        .eventually("the route of the node that went is gone", async || {
            (ground.destinations() == set(&["10.244.0.0/24"])).then_some(())
        })
        .await;
    assert_eq!(ground.count("router_remove_extraroutes"), 1, "it had come first");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_is_tried_again_though_no_node_changes() {
    let ground = Ground::lay().await;
    let scene = &ground.scene;
    let server = ground.server("barred", "private");
    let port = scene.cloud.server_ports(&server).remove(0);
    ground.register("barred", &["10.244.1.0/24"]).await;
    ground.join("free", 2).await;
    let fault = scene.cloud.add_fault(Fault {
        path: Some(format!("*ports/{port}")),
        ..Fault::on("port_update", Action::status(403))
    });
    let _ccm = ground.run();
    ground.available("free").await;
    ground.unavailable("barred").await;
    let event = scene.event("barred", "FailedToCreateRoute").await;
    let message = event.message.unwrap();
    assert!(message.contains(&port), "{message}");
    assert!(scene.cloud.remove_fault(fault));
    ground.available("barred").await;
    assert_eq!(scene.cloud.address_pairs(&port), ["10.244.1.0/24"]);
    assert_eq!(ground.failures().await.len(), 1, "told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_takes_away_comes_back_within_the_period() {
    let ground = Ground::lay().await;
    for i in 1..=2 {
        ground.join(&format!("node-{i}"), i).await;
    }
    let _ccm = ground.run_with(|config| config.route.period = Some(Duration::from_millis(200)));
    for i in 1..=2 {
        ground.available(&format!("node-{i}")).await;
    }
    let both = ground.destinations();
    ground.scene.cloud.set_router_routes(&ground.router, &[]).unwrap();
    ground
        .scene
        .eventually("the routes are there again", async || {
            (ground.destinations() == both).then_some(())
        })
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
    let ground = Ground::lay_with(&networks).await;
    let dual = ground.server("dual", "dual");
    ground
        .register("dual", &["10.244.1.0/24", "fd44:0:0:1::/64"])
        .await;
    let six = ground.server("six", "six");
    ground.register("six", &["fd44:0:0:2::/64"]).await;
    // Its machine has no address that Pods of IPv6 could be reached by.
    ground.server("four", "private");
    ground.register("four", &["fd44:0:0:3::/64"]).await;
    let _ccm = ground.run_with(|config| "10.244.0.0/16,fd44::/48".clone_into(&mut config.route.cluster_cidr));
    for name in ["dual", "six"] {
        ground.available(name).await;
    }
    ground.unavailable("four").await;
    let event = ground.scene.event("four", "FailedToCreateRoute").await;
    let message = event.message.unwrap();
    assert!(message.contains("no internal IPv6 address"), "{message}");
    assert_eq!(
        ground.destinations(),
        set(&["10.244.1.0/24", "fd44:0:0:1::/64", "fd44:0:0:2::/64"])
    );
    for (server, pairs) in [
        (dual, &["10.244.1.0/24", "fd44:0:0:1::/64"][..]),
        (six, &["fd44:0:0:2::/64"]),
    ] {
        let port = ground.scene.cloud.server_ports(&server).remove(0);
        let hops = ground.scene.cloud.port_addresses(&port);
        for pair in pairs {
            assert!(hops.contains(&ground.next_hop(pair).unwrap()), "{pair}");
        }
        assert_eq!(ground.scene.cloud.address_pairs(&port), pairs);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_cidr_of_the_other_family_makes_no_route_and_costs_none() {
    let ground = Ground::lay().await;
    let scene = &ground.scene;
    let stale = ("10.244.9.0/24".parse().unwrap(), "10.0.0.99".parse().unwrap());
    scene.cloud.set_router_routes(&ground.router, &[stale]).unwrap();
    ground.join("node-1", 1).await;
    let flags = [
        "--cluster-cidr=fd44::/48",
        "--route-reconciliation-period=200ms",
        "--leader-elect=false",
    ];
    let _ccm = scene.start(&flags).await;
    let node = scene.initialized("node-1").await;
    scene
        .logged("Nodes have podCIDRs of a family that --cluster-cidr does not name")
        .await;
    ground.passes(2).await;
    assert_eq!(ground.destinations(), set(&["10.244.9.0/24"]));
    assert_eq!(ground.writes(), 0);
    let name = node.metadata.name.unwrap();
    let node = scene.nodes.get(&name).await.unwrap();
    assert_eq!(network(&node), None, "its condition is somebody else's");
}
