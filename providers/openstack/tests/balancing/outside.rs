//! Other clients delete or change the objects of Services.

use ccm_testbed::picture::Picture;
use serde_json::json;

use crate::stage::{Stage, annotate};

/// These changes are not the process's own, so the next process or the drift check detects them.
async fn heals(stage: &mut Stage, expected: &Picture, what: &str) {
    let broken = Picture::of(&stage.sim, &[]).differs(expected);
    assert!(broken.is_some(), "{what}: nothing was changed");
    stage.restart().await;
    stage.settle().await;
    assert_eq!(stage.complaints(), [""; 0], "{what}");
    assert_eq!(Picture::of(&stage.sim, &[]).differs(expected), None, "{what}");
}

/// A load balancer with another name belongs to others, as in the Go program: it outlives its Service.
#[tokio::test]
async fn a_renamed_load_balancer_keeps_its_name() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let change = json!({"name": "prod"});
    stage.sim.patch_object(&id, change.as_object().unwrap()).unwrap();
    let changed = Picture::of(&stage.sim, &[]);
    stage.restart().await;
    stage.settle_well().await;
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&changed), None);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty());
}

#[tokio::test]
async fn a_deleted_floating_address_is_replaced_and_the_status_follows() {
    let mut stage = Stage::served().await;
    let expected = Picture::of(&stage.sim, &[]);
    let before = stage.address("web");
    stage.sim.remove_floating(before.parse().unwrap()).unwrap();
    heals(&mut stage, &expected, "floating IP").await;
    let now = stage.sim.floating_ips().remove(0).address.to_string();
    assert_eq!(stage.address("web"), now);
}

#[tokio::test]
async fn a_detached_floating_address_of_ours_is_attached_again() {
    let mut stage = Stage::served().await;
    let expected = Picture::of(&stage.sim, &[]);
    let before = stage.address("web");
    stage.sim.detach_floating(before.parse().unwrap()).unwrap();
    heals(&mut stage, &expected, "floating IP").await;
    assert_eq!(stage.address("web"), before);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.sim.floating_ips().is_empty(), "nothing leaks");
}

#[tokio::test]
async fn a_service_without_eligible_nodes_is_changed_all_the_same_and_keeps_its_members() {
    let mut stage = Stage::served().await;
    let members = stage.balancers()[0].members.clone();
    for node in &mut stage.nodes {
        node.eligible = false;
    }
    stage.restart().await;
    let limit = "loadbalancer.openstack.org/connection-limit";
    annotate(stage.service("web"), limit, Some("5"));
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.members, members);
    let listeners = balancer.listeners.iter();
    assert!(listeners.map(|one| &one.attributes["connection_limit"]).all(|limit| *limit == 5));
}
