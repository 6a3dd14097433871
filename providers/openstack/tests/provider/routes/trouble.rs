//! Failures.

use ccm_core::{ErrorKind, Priority};
use ccm_sim::{
    Action, Fault, Moment,
    openstack::{NetworkSpec, PortPatch},
};

use super::stage::{Stage, failed, net};

/// A refusal because of another writer.
pub(crate) fn conflict(code: u16) -> Action {
    let kind = if code == 412 {
        "RevisionNumberConstraintFailed"
    } else {
        "Conflict"
    };
    Action::Status {
        code,
        body: Some(format!(
            r#"{{"NeutronError": {{"type": "{kind}", "message": "somebody else was faster", "detail": ""}}}}"#
        )),
        headers: Default::default(),
    }
}

#[tokio::test]
async fn a_quota_is_filled_by_the_oldest_nodes() {
    for atomic in [true, false] {
        let mut stage = Stage::new(31, "").await;
        if !atomic {
            let missing = vec!["extraroute-atomic".to_owned()];
            stage.sim.configure(|settings| settings.missing_extensions = missing);
        }
        stage.nodes.reverse();
        let (_, applied) = stage.pass().await.unwrap();
        assert_eq!(failed(&applied.created), [30]);
        let error = applied.created[30].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
        assert!(error.report().contains("quota router_route"), "{}", error.report());
        assert_eq!(stage.table().len(), 30);
        assert!(!stage.table().iter().any(|route| route.starts_with("10.244.31.")));
        // When a route can be added again, the last one is.
        stage.sim.configure(|settings| {
            settings.resource_quotas.insert("router_route".to_owned(), 31);
        });
        stage.settle().await;
        assert_eq!(stage.table().len(), 31);
    }
}

#[tokio::test]
async fn a_full_table_makes_room_before_it_takes_more() {
    let mut stage = Stage::new(30, "").await;
    stage.settle().await;
    for i in 0..30 {
        stage.change(i, |node| {
            node.pod_cidrs = vec![net(&format!("10.244.{}.0/24", 100 + i))];
        });
    }
    stage.settle().await;
    assert_eq!(stage.table().len(), 30);
}

#[tokio::test]
async fn one_node_outside_the_routers_subnets_does_not_hold_up_the_others() {
    let mut stage = Stage::new(40, "").await;
    stage.sim.configure(|settings| settings.resource_quotas.clear());
    stage
        .sim
        .create_network(&NetworkSpec {
            name: "elsewhere".to_owned(),
            subnets: vec![net("172.20.0.0/24")],
            ..NetworkSpec::default()
        })
        .unwrap();
    stage.join("elsewhere", false);
    let refused = async |stage: &Stage| {
        let (plan, applied) = stage.pass().await.unwrap();
        let place = plan.changes.create.iter().position(|route| route.node.view.name == "node-41");
        assert_eq!(failed(&applied.created), [place.unwrap()]);
        applied.created[place.unwrap()].clone().unwrap_err()
    };
    let error = refused(&stage).await;
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
    // Neutron lists all routes before this reason.
    let hop = stage.address(40);
    assert_eq!(
        error.message(),
        format!(
            "router {} does not take the next hop {hop}: the nexthop is not connected with router",
            stage.router
        )
    );
    assert_eq!(stage.table().len(), 40);
    stage.join("nodes", false);
    let again = refused(&stage).await;
    assert_eq!(again.message(), error.message(), "the same error is reported once");
    assert_eq!(stage.table().len(), 41);
}

#[tokio::test]
async fn storms_of_conflicts_are_got_over() {
    for (atomic, code, times) in [(true, 409, 3), (false, 412, 5), (false, 409, 3), (true, 503, 3)] {
        let stage = Stage::new(4, "").await;
        if !atomic {
            let missing = vec!["extraroute-atomic".to_owned()];
            stage.sim.configure(|settings| settings.missing_extensions = missing);
        }
        let op = if atomic {
            "router_add_extraroutes"
        } else {
            "router_update"
        };
        stage.sim.add_fault(Fault {
            count: Some(times),
            ..Fault::on(op, conflict(code))
        });
        stage.settle().await;
        assert_eq!(stage.table().len(), 4, "{atomic} {code}");
    }
}

#[tokio::test]
async fn a_route_that_another_client_added_meanwhile_is_not_lost() {
    let stage = Stage::new(2, "").await;
    let missing = vec!["extraroute-atomic".to_owned()];
    stage.sim.configure(|settings| settings.missing_extensions = missing);
    // Another client writes between the program's read of the router and its write.
    let hop = stage.address(0);
    let foreign = (net("172.30.0.0/16"), hop);
    let hold = Fault::on("router_update", Action::Hold { at: Moment::Before });
    let hold = stage.sim.add_fault(hold.once());
    let (passed, ()) = tokio::join!(stage.pass(), async {
        stage.reached(hold).await;
        stage.sim.set_router_routes(&stage.router, &[foreign]).unwrap();
        assert!(stage.sim.remove_fault(hold));
    });
    passed.unwrap();
    stage.settled().await;
    let table = stage.sim.router_routes(&stage.router);
    assert!(table.contains(&foreign) && table.len() == 3, "{table:?}");
}

#[tokio::test]
async fn a_router_that_cannot_be_read_is_an_error_and_not_an_empty_one() {
    let stage = Stage::new(2, "").await;
    stage.settle().await;
    let before = stage.table();
    let fault = stage.sim.add_fault(Fault::on("router_get", Action::status(500)));
    assert!(stage.plan().await.is_err());
    stage.sim.remove_fault(fault);
    for lie in [Action::EmptyJson, Action::Truncate { bytes: Some(30) }] {
        let fault = stage.sim.add_fault(Fault::on("router_get", lie));
        assert!(stage.plan().await.is_err());
        stage.sim.remove_fault(fault);
    }
    assert_eq!(stage.table(), before);
}

#[tokio::test]
async fn a_missing_router_is_named() {
    let stage = Stage::new(2, "").await;
    stage.settle().await;
    stage.sim.delete_router(&stage.router).unwrap();
    let error = stage.plan().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.report().contains(&stage.router) && error.report().contains("router-id"));
}

#[tokio::test]
async fn a_stale_path_that_stays_holds_back_its_successor() {
    let mut stage = Stage::new(2, "").await;
    stage.settle().await;
    let patch = PortPatch {
        addresses: Some(vec!["192.168.77.7".parse().unwrap()]),
        ..PortPatch::default()
    };
    stage.sim.update_port(&stage.port(1), &patch).unwrap();
    stage.readdress(1);
    stage.join("nodes", false);
    let fault = stage.sim.add_fault(Fault::on("router_remove_extraroutes", Action::status(403)));
    let (_, applied) = stage.pass().await.unwrap();
    assert_eq!(failed(&applied.deleted), [0]);
    assert_eq!(failed(&applied.created), [0], "the other new node has its route");
    assert_eq!(stage.table().len(), 3);
    stage.sim.remove_fault(fault);
    stage.settle().await;
    assert_eq!(stage.table().len(), 3);
}

/// The nodes change so that routes and pairs are added, removed and changed, and the process dies at each of its calls.
#[tokio::test]
async fn whenever_it_dies_the_next_process_finishes() {
    for (atomic, several) in [(true, false), (false, false), (true, true)] {
        for nth in 1.. {
            let mut stage = Stage::new(4, "").await;
            let second = match several {
                true => Some(stage.second_router().await),
                false => None,
            };
            if !atomic {
                let missing = vec!["extraroute-atomic".to_owned()];
                stage.sim.configure(|settings| settings.missing_extensions = missing);
            }
            stage.settle().await;
            stage.nodes.remove(3);
            let leaver = stage.server(2);
            let leaver_port = stage.sim.server_ports(&leaver).remove(0);
            stage.nodes.remove(2);
            stage.join("nodes", true);
            stage.change(0, |node| node.pod_cidrs = vec![net("10.244.50.0/24")]);
            stage.restart().await;
            stage.sim.clear_calls();
            // The n-th call never gets an answer, but takes effect.
            let fault = Fault {
                nth,
                service: Some("network".to_owned()),
                ..Fault::new(Action::Hold {
                    at: Moment::AfterCommit,
                })
            };
            let fault = stage.sim.add_fault(fault.once());
            let died = tokio::select! {
                _ = stage.pass() => false,
                () = stage.reached(fault) => true,
            };
            if !died {
                assert!(nth > 5, "that many calls there are");
                break;
            }
            stage.sim.clear_faults();
            stage.restart().await;
            stage.settle().await;
            let table = stage.table();
            assert_eq!(table.len(), 4, "dead at call {nth}: {table:?}");
            if let Some(second) = second {
                assert_eq!(stage.table_of(&second), table, "dead at call {nth}");
            }
            assert_eq!(stage.sim.address_pairs(&stage.port(0)), ["10.244.50.0/24"], "call {nth}");
            assert_eq!(stage.sim.address_pairs(&stage.port(2)).len(), 2, "call {nth}");
            assert!(stage.sim.address_pairs(&leaver_port).is_empty(), "call {nth}: a pair is left");
        }
    }
}

#[tokio::test]
async fn the_route_of_a_node_that_leaves_meanwhile_is_deleted_again() {
    let mut stage = Stage::new(3, "").await;
    let hold = stage
        .sim
        .add_fault(Fault::on("router_add_extraroutes", Action::Hold { at: Moment::Before }).once());
    let server = stage.server(1);
    let ((), ()) = tokio::join!(async { drop(stage.pass().await) }, async {
        stage.reached(hold).await;
        stage.sim.delete_server(&server).unwrap();
        assert!(stage.sim.remove_fault(hold));
    });
    assert_eq!(stage.table().len(), 3);
    stage.nodes.remove(1);
    stage.settle().await;
    assert_eq!(stage.table().len(), 2);
    assert!(stage.routes().unsupported_reason(Priority::User).await.unwrap().is_none());
}
