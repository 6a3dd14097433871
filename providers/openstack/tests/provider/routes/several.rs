//! Several routers, each with all routes.

use ccm_core::ErrorKind;
use ccm_sim::openstack::NetworkSpec;

use super::stage::{Stage, failed, net};

async fn staged(nodes: usize, atomic: bool) -> (Stage, String) {
    let mut stage = Stage::new(nodes, "").await;
    if !atomic {
        let missing = vec!["extraroute-atomic".to_owned()];
        stage.sim.configure(|settings| settings.missing_extensions = missing);
    }
    let second = stage.second_router().await;
    // With any separator.
    let first = stage.router.clone();
    stage.name_routers(&[&first, "", &second, &first]).await;
    stage.sim.clear_calls();
    (stage, second)
}

#[tokio::test]
async fn each_router_has_all_routes_and_then_nothing_is_due() {
    for atomic in [true, false] {
        let (mut stage, second) = staged(4, atomic).await;
        let foreign = (net("172.16.0.0/12"), stage.address(0));
        stage.sim.set_router_routes(&second, &[foreign]).unwrap();
        stage.settle().await;
        assert_eq!(stage.table().len(), 4);
        assert_eq!(stage.table_of(&second).len(), 5);
        assert_eq!(stage.count("port_update"), 4, "a pair is on a port, not on a router");
        let writes = stage.count("router_add_extraroutes") + stage.count("router_update");
        assert_eq!(writes, 2, "one for each");

        stage.restart().await;
        stage.sim.clear_calls();
        stage.settled().await;
        assert_eq!(stage.count("router_get"), 2);

        // A node leaves, another one gets other Pods.
        stage.nodes.remove(3);
        stage.change(0, |node| node.pod_cidrs = vec![net("10.244.77.0/24")]);
        stage.settle().await;
        let table = stage.table();
        assert_eq!(table.len(), 3);
        let mut other = stage.table_of(&second);
        other.retain(|route| !route.starts_with("172.16.0.0/12"));
        assert_eq!(other, table);
        assert!(stage.sim.router_routes(&second).contains(&foreign));
    }
}

#[tokio::test]
async fn a_route_that_one_router_lacks_is_completed() {
    for atomic in [true, false] {
        let (mut stage, second) = staged(3, atomic).await;
        stage.settle().await;
        let all = stage.table();
        // Like a process that was killed between two routers, or a user.
        for router in [second.clone(), stage.router.clone()] {
            stage.sim.set_router_routes(&router, &[]).unwrap();
            stage.restart().await;
            let (_, plan) = stage.plan().await.unwrap();
            let sentences = plan.changes.sentences();
            assert_eq!(sentences.len(), 3);
            assert!(sentences.iter().all(|what| what.starts_with("finish route ")));
            assert_eq!(plan.complete, [false; 3]);
            stage.settle().await;
            assert_eq!(stage.table_of(&router), all);
        }
    }
}

#[tokio::test]
async fn a_router_that_does_not_take_a_route_is_named() {
    let (mut stage, second) = staged(2, true).await;
    stage
        .sim
        .create_network(&NetworkSpec {
            name: "elsewhere".to_owned(),
            subnets: vec![net("172.20.0.0/24")],
            ..NetworkSpec::default()
        })
        .unwrap();
    let third = ccm_sim::openstack::RouterSpec {
        name: "pods-3".to_owned(),
        networks: vec!["nodes".to_owned(), "elsewhere".to_owned()],
        without_ports: true,
        ..Default::default()
    };
    let third = stage.sim.create_router(&third).unwrap();
    stage.name_routers(&[&third, &second]).await;
    stage.join("elsewhere", false);
    let (_, applied) = stage.pass().await.unwrap();
    assert_eq!(failed(&applied.created), [2]);
    let error = applied.created[2].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
    assert!(error.message().contains(&second), "{error}");
    assert_eq!(stage.table_of(&third).len(), 3, "it is where it can be");
    assert_eq!(stage.table_of(&second).len(), 2);
    let (_, plan) = stage.plan().await.unwrap();
    assert_eq!(plan.complete, [true, true, false]);
}
