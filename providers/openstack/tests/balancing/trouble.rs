//! Failures, and their limits.

use ccm_core::load_balancer::{ClusterTag, ServiceView};
use ccm_sim::openstack::Control;
use serde_json::json;

use crate::stage::{ADDRESS, ID, MANAGED, Stage, annotate, service};

/// The write operations.
fn writes(stage: &Stage) -> Vec<&'static str> {
    let calls = stage.sim.calls();
    let writes = calls.iter().filter(|call| call.service != "identity" && call.method != "GET");
    writes.map(|call| call.op).collect()
}

#[tokio::test]
async fn another_clusters_load_balancer_of_the_same_name_is_left_alone() {
    let mut stage = Stage::served().await;
    let balancer = stage.balancers().remove(0).loadbalancer;
    let tags = json!({"tags": [balancer.name, ClusterTag::of("another").as_str()]});
    stage.sim.patch_object(&balancer.id, tags.as_object().unwrap()).unwrap();
    stage.services = vec![service("web", &[80])];
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle().await;
    stage.assert_complaints(&["another cluster's"]);
    assert!(!writes(&stage).iter().any(|op| op.starts_with("loadbalancer")), "{:?}", writes(&stage));
    assert_eq!(stage.address("web"), "");
    stage.service("web").deleting = true;
    stage.settle().await;
    assert_eq!(stage.balancers().len(), 1);
}

#[tokio::test]
async fn a_load_balancer_in_error_that_once_worked_is_never_deleted() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    stage.sim.set_provisioning_status(&id, "ERROR").unwrap();
    stage.restart().await;
    stage.service("web").ports = service("web", &[80]).ports;
    stage.sim.clear_calls();
    stage.settle().await;
    stage.assert_complaints(&["ERROR"]);
    assert_eq!(stage.balancers()[0].loadbalancer.id, id);
    assert!(!writes(&stage).iter().any(|op| op.starts_with("loadbalancer")), "{:?}", writes(&stage));
    // A leaving Service loses it nevertheless.
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.balancers().is_empty() && stage.services.is_empty());
}

#[tokio::test]
async fn a_deleted_load_balancer_is_recreated_with_the_annotations() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    stage.sim.delete_object(&id).unwrap();
    stage.restart().await;
    stage.settle_well().await;
    let now = stage.balancers().remove(0);
    assert_ne!(now.loadbalancer.id, id);
    assert_eq!(stage.service("web").annotation(ID), Some(now.loadbalancer.id.as_str()));

    // A load balancer that a user named is not created, also if it served the Service before.
    let mut other = service("other", &[80]);
    annotate(&mut other, ID, Some("6b0a5a2e-0000-4000-8000-000000000000"));
    annotate(&mut other, ADDRESS, Some("203.0.113.77"));
    stage.services.push(other);
    stage.settle().await;
    assert_eq!(stage.balancers().len(), 1);
    stage.assert_complaints(&["missing"]);
}

#[tokio::test]
async fn an_id_that_the_project_does_not_have_is_replaced_with_an_event() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    annotate(stage.service("web"), ID, Some("another-projects"));
    let events = |stage: &Stage| {
        let events = stage.reports.iter().flat_map(|report| &report.events);
        events.map(|event| event.message.clone()).collect::<Vec<_>>()
    };
    stage.pass_once().await;
    let reported = events(&stage);
    let names_both = |text: &String| text.contains("another-projects") && text.contains(&id);
    assert!(reported.len() == 1 && reported.iter().all(names_both), "{reported:?}");
    stage.settle().await;
    assert_eq!(stage.service("web").annotation(ID), Some(&*id));
    assert_eq!(events(&stage), [""; 0]);
}

#[tokio::test]
async fn nothing_is_recreated_while_no_node_is_visible() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    stage.sim.delete_object(&id).unwrap();
    for node in &stage.nodes {
        let provider_id = node.view.provider_id.clone().unwrap();
        stage.sim.delete_server(provider_id.trim_start_matches("openstack:///")).unwrap();
    }
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle().await;
    stage.assert_complaints(&["wrong credentials"]);
    assert!(!writes(&stage).contains(&"loadbalancer_create"));
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.service("web").finalizers.contains(&ServiceView::FINALIZER.into()));
}

#[tokio::test]
async fn three_dead_nodes_first_in_the_alphabet_do_not_block_a_deletion() {
    // Once with kubelets that are known to be silent, once without any difference to the others.
    for ready in [false, true] {
        let mut stage = Stage::new(7, MANAGED).await;
        stage.services.push(service("web", &[80, 443]));
        stage.settle().await;
        let id = stage.balancers()[0].loadbalancer.id.clone();
        stage.sim.delete_object(&id).unwrap();
        let sim = Control::clone(&stage.sim);
        for node in &mut stage.nodes[..3] {
            let provider_id = node.view.provider_id.clone().unwrap();
            let server = provider_id.trim_start_matches("openstack:///");
            sim.delete_server(server).unwrap();
            node.ready = ready;
        }
        stage.restart().await;
        stage.service("web").deleting = true;
        // A check without any present node blocks the pass; the next one reads other nodes.
        for _ in 0..3 {
            stage.settle().await;
        }
        stage.assert_no_complaints();
        assert!(stage.services.is_empty());
    }
}

#[tokio::test]
async fn without_nodes_members_and_their_user_settings_stay() {
    let mut stage = Stage::served().await;
    let member = stage.balancers()[0].members[0].clone();
    let drained = json!({"weight": 0});
    stage.sim.patch_object(&member.id, drained.as_object().unwrap()).unwrap();
    stage.join();
    stage.join();
    let gone = stage.nodes.remove(1);
    stage.settle().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.members.len(), 6);
    let weights: Vec<_> = balancer
        .members
        .iter()
        .map(|member| member.attributes["weight"].as_i64().unwrap())
        .collect();
    let zero = weights.iter().filter(|weight| **weight == 0).count();
    let same = format!("{:?}", member.attributes["address"]).contains(&gone.addresses[0].address);
    assert_eq!(zero, usize::from(!same), "{weights:?}");
    for node in &mut stage.nodes {
        node.eligible = false;
    }
    stage.settle().await;
    assert_eq!(stage.balancers()[0].members.len(), 6);
    assert!(stage.service("web").annotation(ADDRESS).is_some());
}
