//! Somebody else deletes or changes what Services have.

use ccm_core::load_balancer::ServiceType;
use ccm_testbed::picture::Picture;
use serde_json::{Value, json};

use crate::stage::{ID, Stage, annotate};

/// Nothing of this is the program's own doing, so that it is seen by the next process, or by the drift check.
async fn heals(stage: &mut Stage, expected: &Picture, what: &str) {
    let broken = Picture::of(&stage.sim, &[]).differs(expected);
    assert!(broken.is_some(), "{what}: nothing was changed");
    stage.restart().await;
    stage.settle().await;
    assert_eq!(stage.complaints(), [""; 0], "{what}");
    assert_eq!(Picture::of(&stage.sim, &[]).differs(expected), None, "{what}");
}

#[tokio::test]
async fn whatever_is_deleted_is_made_again() {
    let mut stage = Stage::served().await;
    let expected = Picture::of(&stage.sim, &[]);
    let id = stage.balancers()[0].loadbalancer.id.clone();
    type Part = fn(&ccm_sim::openstack::BalancerState) -> String;
    let parts: [(&str, Part); 4] = [
        ("listener", |balancer| balancer.listeners[0].id.clone()),
        ("pool", |balancer| balancer.pools[0].id.clone()),
        ("member", |balancer| balancer.members[0].id.clone()),
        ("health monitor", |balancer| balancer.healthmonitors[0].id.clone()),
    ];
    for (what, part) in parts {
        let part = part(&stage.balancers()[0]);
        stage.sim.delete_object(&part).unwrap();
        heals(&mut stage, &expected, what).await;
    }
    let groups = stage.sim.security_groups();
    let group = groups.iter().find(|group| group.name.contains("lb-sg-")).unwrap();
    stage.sim.delete_group(&group.id).unwrap();
    heals(&mut stage, &expected, "security group").await;
    assert_eq!(stage.balancers()[0].loadbalancer.id, id);
}

#[tokio::test]
async fn whatever_is_changed_is_changed_back_unless_people_may() {
    let mut stage = Stage::served().await;
    let expected = Picture::of(&stage.sim, &[]);
    let balancer = stage.balancers().remove(0);
    let changes: [(&str, &str, Value); 3] = [
        (&balancer.listeners[0].id, "connection_limit", json!(3)),
        (&balancer.pools[0].id, "lb_algorithm", json!("SOURCE_IP")),
        (&balancer.healthmonitors[0].id, "delay", json!(77)),
    ];
    for (id, key, value) in changes {
        let change = json!({key: value});
        stage.sim.patch_object(id, change.as_object().unwrap()).unwrap();
        heals(&mut stage, &expected, key).await;
    }
    // Names are theirs, and so is what a member bears.
    for (id, key, value) in [
        (&balancer.loadbalancer.id, "name", json!("prod")),
        (&balancer.listeners[0].id, "name", json!("prod")),
        (&balancer.members[0].id, "weight", json!(0)),
    ] {
        let change = json!({key: value});
        stage.sim.patch_object(id, change.as_object().unwrap()).unwrap();
        let changed = Picture::of(&stage.sim, &[]);
        stage.restart().await;
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{key}");
        assert_eq!(Picture::of(&stage.sim, &[]).differs(&changed), None, "{key}");
    }
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
    heals(&mut stage, &expected, "floating address").await;
    let now = stage.sim.floating_ips().remove(0).address.to_string();
    assert_eq!(stage.address("web"), now);
}

#[tokio::test]
async fn a_detached_floating_address_of_ours_is_attached_again() {
    let mut stage = Stage::served().await;
    let expected = Picture::of(&stage.sim, &[]);
    let before = stage.address("web");
    stage.sim.detach_floating(before.parse().unwrap()).unwrap();
    heals(&mut stage, &expected, "floating address").await;
    assert_eq!(stage.address("web"), before);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.sim.floating_ips().is_empty(), "nothing leaks");
}

#[tokio::test]
async fn a_load_balancer_that_somebody_deleted_leaves_nothing_behind_when_its_service_goes() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    stage.sim.delete_object(&id).unwrap();
    stage.service("web").deleting = true;
    stage.restart().await;
    stage.settle().await;
    assert_eq!(stage.complaints(), [""; 0]);
    assert!(stage.services.is_empty());
    assert!(
        Picture::of(&stage.sim, &[]).is_empty(),
        "{:?}",
        Picture::of(&stage.sim, &[])
    );
}

#[tokio::test]
async fn a_service_that_becomes_internal_to_the_cluster_gives_everything_back() {
    let mut stage = Stage::served().await;
    stage.service("web").service_type = ServiceType::ClusterIp;
    stage.settle().await;
    assert_eq!(stage.complaints(), [""; 0]);
    let web = stage.service("web");
    assert!(web.finalizers.is_empty() && web.ingress.is_empty());
    assert_eq!(web.annotation(ID), None);
    assert!(
        Picture::of(&stage.sim, &[]).is_empty(),
        "{:?}",
        Picture::of(&stage.sim, &[])
    );
    // And back.
    let web = stage.service("web");
    web.service_type = ServiceType::LoadBalancer;
    annotate(web, "x", Some("y"));
    stage.settle().await;
    assert_ne!(stage.address("web"), "");
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
    stage.settle().await;
    assert_eq!(stage.complaints(), [""; 0]);
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.members, members);
    let listeners = balancer.listeners.iter();
    assert!(
        listeners
            .map(|one| &one.attributes["connection_limit"])
            .all(|limit| *limit == 5)
    );
}
