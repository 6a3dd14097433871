//! Address pairs of the nodes' ports.

use ccm_core::ErrorKind;
use ccm_sim::{
    Action, Fault,
    openstack::{NetworkSpec, PortSpec, RouterSpec},
};

use super::{
    stage::{Stage, failed, net},
    trouble::conflict,
};

#[tokio::test]
async fn a_missing_pair_is_added_again() {
    let mut stage = Stage::new(3, "").await;
    stage.settle().await;
    // Like a process that was killed between route and pair, or a user.
    let calls = stage.sim.calls();
    assert!(calls.iter().any(|call| call.op == "port_update"));
    strip(&stage, 1).await;
    stage.restart().await;
    let (_, plan) = stage.plan().await.unwrap();
    assert_eq!(plan.changes.sentences().len(), 1);
    assert!(plan.changes.sentences()[0].starts_with("finish route 10.244.2.0/24"));
    stage.sim.clear_calls();
    stage.settle().await;
    assert_eq!(stage.count("port_update"), 1);
    assert_eq!(stage.sim.address_pairs(&stage.port(1)), ["10.244.2.0/24"]);
}

/// Removes all pairs from a node's port by a plain request.
async fn strip(stage: &Stage, i: usize) {
    stage.sim.set_address_pairs(&stage.port(i), &[]).unwrap();
}

#[tokio::test]
async fn pairs_of_others_stay() {
    let mut stage = Stage::new(2, "").await;
    stage.sim.set_address_pairs(&stage.port(0), &["192.168.9.9", "10.0.0.0/8"]).unwrap();
    stage.sim.set_address_pairs(&stage.port(1), &["192.168.9.9"]).unwrap();
    stage.settle().await;
    assert_eq!(
        stage.sim.address_pairs(&stage.port(0)),
        ["192.168.9.9", "10.0.0.0/8"],
        "a larger network lets the smaller one through"
    );
    assert_eq!(stage.sim.address_pairs(&stage.port(1)), ["192.168.9.9", "10.244.2.0/24"]);
    // The node gets other Pods: its old pair is removed, those of others stay.
    stage.change(1, |node| node.pod_cidrs = vec![net("10.244.99.0/24")]);
    stage.settle().await;
    assert_eq!(stage.sim.address_pairs(&stage.port(1)), ["192.168.9.9", "10.244.99.0/24"]);
}

#[tokio::test]
async fn a_port_that_changes_meanwhile_is_written_again() {
    for code in [412, 409] {
        let stage = Stage::new(2, "").await;
        let fault = Fault {
            count: Some(3),
            ..Fault::on("port_update", conflict(code))
        };
        stage.sim.add_fault(fault);
        stage.settle().await;
        assert_eq!(stage.count("port_update"), 5, "{code}");
    }
}

#[tokio::test]
async fn the_cached_pair_is_dropped_with_its_route() {
    let stage = Stage::new(2, "").await;
    stage.settle().await;
    // Another process removes a route with its pair, and adds the route alone again.
    let table = stage.sim.router_routes(&stage.router);
    stage.sim.set_address_pairs(&stage.port(1), &[]).unwrap();
    stage.sim.set_router_routes(&stage.router, &table[..1]).unwrap();
    let (_, plan) = stage.plan().await.unwrap();
    assert_eq!(plan.changes.create.len(), 1);
    stage.sim.set_router_routes(&stage.router, &table).unwrap();
    stage.settle().await;
    assert_eq!(stage.sim.address_pairs(&stage.port(1)), ["10.244.2.0/24"]);
}

#[tokio::test]
async fn a_pair_that_is_refused_fails_its_route_alone() {
    let stage = Stage::new(3, "").await;
    stage.sim.add_fault(Fault {
        path: Some(format!("ports/{}", stage.port(1))),
        ..Fault::on("port_update", Action::status(403))
    });
    let (_, applied) = stage.pass().await.unwrap();
    assert_eq!(failed(&applied.created), [1]);
    assert_eq!(applied.created[1].as_ref().unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(stage.table().len(), 3);
    let (_, plan) = stage.plan().await.unwrap();
    assert_eq!(plan.complete, [true, false, true]);
}

#[tokio::test]
async fn pairs_are_left_alone_where_they_are_switched_off_or_unknown() {
    let off = Stage::new(2, "allowed-address-pairs=false").await;
    off.settle().await;
    let without = Stage::new(2, "").await;
    let missing = vec!["allowed-address-pairs".to_owned()];
    without.sim.configure(|settings| settings.missing_extensions = missing);
    without.settle().await;
    for stage in [off, without] {
        assert_eq!(stage.table().len(), 2);
        assert_eq!(stage.count("port_update") + stage.count("port_list"), 0);
    }
}

#[tokio::test]
async fn many_ports_are_listed_together() {
    let mut stage = Stage::new(0, "").await;
    stage.sim.configure(|settings| {
        settings.resource_quotas.clear();
    });
    for _ in 0..200 {
        stage.join("nodes", false);
    }
    stage.settle().await;
    assert_eq!(stage.count("router_add_extraroutes"), 1);
    assert_eq!(stage.count("port_update"), 200);
    assert!(stage.count("port_list") <= 3, "{:?}", stage.sim.call_counts());
}

#[tokio::test]
async fn many_long_addresses_fit_into_a_request() {
    let mut stage = Stage::new(0, "").await;
    stage.sim.configure(|settings| settings.resource_quotas.clear());
    let subnet = "fd12:3456:789a:bcde:";
    let spec = NetworkSpec {
        name: "long".to_owned(),
        subnets: vec![net(&format!("{subnet}:/64"))],
        ..NetworkSpec::default()
    };
    stage.sim.create_network(&spec).unwrap();
    stage.router = stage
        .sim
        .create_router(&RouterSpec {
            name: "long".to_owned(),
            networks: vec!["long".to_owned()],
            ..RouterSpec::default()
        })
        .unwrap();
    let router = stage.router.clone();
    stage.name_routers(&[&router]).await;
    for i in 0..200 {
        let address = format!("{subnet}fedc:ba98:7654:{:x}", 0x1000 + i);
        let port = PortSpec {
            addresses: Some(vec![address.parse().unwrap()]),
            ..PortSpec::on("long")
        };
        stage.join_with(port, true);
        stage.change(i, |node| {
            node.pod_cidrs.remove(0);
        });
    }
    stage.settle().await;
    assert_eq!(stage.count("port_update"), 200);
}

#[tokio::test]
async fn a_passing_failure_to_read_ports_says_nothing_about_the_routes() {
    let mut stage = Stage::new(2, "").await;
    stage.settle().await;
    stage.restart().await;
    let fault = stage.sim.add_fault(Fault::on("port_list", Action::status(503)));
    let error = stage.plan().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
    stage.sim.remove_fault(fault);
    // After a refusal, each route has the reason.
    let fault = stage.sim.add_fault(Fault::on("port_list", Action::status(403)));
    let (plan, applied) = stage.pass().await.unwrap();
    assert_eq!((plan.changes.finish.len(), failed(&applied.finished)), (2, vec![0, 1]));
    stage.sim.remove_fault(fault);
    stage.settled().await;
}
