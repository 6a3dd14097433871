//! The framework against a real API server, with a cloud in memory whose answers a test can delay: events between the request
//! to the cloud and the patches.

use std::time::Duration;

use ccm_core::{AddressType, Error, ErrorKind, Instance, NodeAddress};
use ccm_testbed::{
    nodes::{NodeSpec, UNINITIALIZED},
    observe::{addresses, is_initialized, label, taints},
};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use super::lifecycle::stage::Stage;
use crate::fake::{self, eventually};

fn instance(address: &str) -> Instance {
    Instance {
        instance_type: Some("large".to_owned()),
        addresses: vec![NodeAddress::new(AddressType::InternalIP, address)],
        zone: Some("zone-1".to_owned()),
        region: Some("region-1".to_owned()),
        ..Instance::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_controller() {
    let stage = Stage::start("nodes", |config| {
        config.lifecycle = fake::config(&[]).lifecycle;
        config.node.status_update_frequency = Duration::from_secs(1);
    })
    .await;
    initializes_a_node_with_two_writes_and_one_event(&stage).await;
    keeps_concurrent_changes_by_others(&stage).await;
    does_not_recreate_a_node_that_is_deleted_meanwhile(&stage).await;
    does_not_change_a_node_that_is_recreated_meanwhile(&stage).await;
    waits_for_addresses_without_a_warning(&stage).await;
    reports_why_a_node_waits_and_continues_when_it_is_fixed(&stage).await;
    does_not_change_nodes_of_another_cloud(&stage).await;
    a_failing_node_delays_no_other(&stage).await;
    follows_the_cloud_and_keeps_the_zone(&stage).await;
    corrects_stable_labels(&stage).await;
}

async fn initializes_a_node_with_two_writes_and_one_event(stage: &Stage) {
    stage.cloud.insert("plain", instance("10.0.0.1"));
    stage.register(&[NodeSpec::new("plain")]).await;
    let node = stage.node("plain", "initialized", is_initialized).await;
    assert_eq!(node.spec.as_ref().unwrap().provider_id.as_deref(), Some("fake://plain"));
    for key in [
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ] {
        assert_eq!(label(&node, key), Some("zone-1"));
    }
    assert_eq!(label(&node, "node.kubernetes.io/instance-type"), Some("large"));
    assert_eq!(addresses(&node), [("InternalIP", "10.0.0.1"), ("Hostname", "plain")]);
    let event = stage.event("plain", "Synced").await;
    assert_eq!(event.source.unwrap().component.as_deref(), Some("cloud-node-controller"));
    assert_eq!(event.message.as_deref(), Some("Node synced successfully"));
    // The next call to the cloud belongs to a later pass. Nothing was written twice, and nothing was read.
    let passes = stage.cloud.calls().len();
    eventually("a refresh", async || (stage.cloud.calls().len() > passes).then_some(())).await;
    let requests: Vec<_> = stage
        .control_plane
        .audit_log()
        .unwrap()
        .into_iter()
        .filter(|entry| entry.is_ours() && entry.name == "plain")
        .map(|entry| (entry.verb, entry.resource, entry.subresource))
        .collect();
    let patch = |subresource: &str| ("patch".to_owned(), "nodes".to_owned(), subresource.to_owned());
    assert_eq!(requests, [patch("status"), patch("")]);
}

/// Registers the node while the cloud's answers are delayed, and returns when the cloud has received the request for it.
async fn register_and_delay(stage: &Stage, spec: &NodeSpec) {
    stage.cloud.pause();
    stage.register(std::slice::from_ref(spec)).await;
    eventually("the cloud receives the request", async || {
        stage.cloud.calls().iter().any(|call| call.nodes.contains(&spec.name)).then_some(())
    })
    .await;
}

async fn keeps_concurrent_changes_by_others(stage: &Stage) {
    stage.cloud.insert("busy", instance("10.0.0.2"));
    register_and_delay(stage, &NodeSpec::new("busy")).await;
    let foreign = json!({
        "metadata": {"labels": {"foreign": "label", "topology.kubernetes.io/zone": "elsewhere"}},
        "spec": {"taints": [
            {"key": "foreign", "value": "taint", "effect": "NoExecute"},
            {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"},
        ]},
    });
    stage.merge("busy", foreign).await;
    stage.cloud.resume();
    let node = stage.node("busy", "initialized", is_initialized).await;
    assert_eq!(taints(&node), ["foreign"]);
    assert_eq!(label(&node, "foreign"), Some("label"));
    assert_eq!(
        label(&node, "topology.kubernetes.io/zone"),
        Some("zone-1"),
        "the zone is overwritten at initialization"
    );
}

async fn does_not_recreate_a_node_that_is_deleted_meanwhile(stage: &Stage) {
    stage.cloud.insert("short-lived", instance("10.0.0.3"));
    register_and_delay(stage, &NodeSpec::new("short-lived")).await;
    stage.nodes.delete("short-lived", &DeleteParams::default()).await.unwrap();
    stage.cloud.resume();
    // The next node is initialized, and the deleted one is not recreated.
    stage.cloud.insert("next", instance("10.0.0.4"));
    stage.register(&[NodeSpec::new("next")]).await;
    stage.node("next", "initialized", is_initialized).await;
    assert!(stage.nodes.get_opt("short-lived").await.unwrap().is_none());
}

async fn does_not_change_a_node_that_is_recreated_meanwhile(stage: &Stage) {
    stage.cloud.insert("recreated", instance("10.0.0.5"));
    let spec = NodeSpec::new("recreated");
    register_and_delay(stage, &spec).await;
    stage.nodes.delete("recreated", &DeleteParams::default()).await.unwrap();
    // The new node has another machine, by the provider ID of its kubelet.
    stage.cloud.insert("recreated-machine", instance("10.0.0.6"));
    let again = NodeSpec {
        provider_id: Some("fake://recreated-machine".to_owned()),
        ..spec
    };
    stage.register(&[again]).await;
    stage.cloud.resume();
    let node = stage.node("recreated", "initialized", is_initialized).await;
    assert_eq!(addresses(&node)[0].1, "10.0.0.6");
}

async fn waits_for_addresses_without_a_warning(stage: &Stage) {
    let mut bare = instance("10.0.0.7");
    let addresses = std::mem::take(&mut bare.addresses);
    stage.cloud.insert("building", bare.clone());
    stage.register(&[NodeSpec::new("building")]).await;
    eventually("two requests", async || {
        let requests = stage
            .cloud
            .calls()
            .iter()
            .filter(|call| call.nodes.contains(&"building".to_owned()))
            .count();
        (requests >= 2).then_some(())
    })
    .await;
    assert!(!is_initialized(&stage.nodes.get("building").await.unwrap()));
    bare.addresses = addresses;
    stage.cloud.insert("building", bare);
    stage.node("building", "initialized", is_initialized).await;
    let params = ListParams::default().fields("involvedObject.name=building,type=Warning");
    assert!(stage.events.list(&params).await.unwrap().items.is_empty());
}

async fn reports_why_a_node_waits_and_continues_when_it_is_fixed(stage: &Stage) {
    stage.cloud.insert("wrong-ip", instance("10.0.0.8"));
    let spec = NodeSpec {
        node_ip: Some("10.9.9.9".parse().unwrap()),
        ..NodeSpec::new("wrong-ip")
    };
    stage.register(&[spec]).await;
    let event = stage.event("wrong-ip", "InvalidNodeIP").await;
    let message = event.message.unwrap();
    assert!(message.contains("10.9.9.9") && message.contains("InternalIP 10.0.0.8"), "{message}");
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    // A corrected annotation takes effect at once, not after the backoff.
    let fix = json!({"metadata": {"annotations": {"alpha.kubernetes.io/provided-node-ip": "10.0.0.8"}}});
    stage.merge("wrong-ip", fix).await;
    stage.node("wrong-ip", "initialized", is_initialized).await;

    stage.register(&[NodeSpec::new("missing")]).await;
    let message = stage.event("missing", "InstanceNotFound").await.message.unwrap();
    assert!(message.contains("no instance named \"missing\""), "{message}");
    stage.cloud.insert("missing", instance("10.0.0.9"));
    stage.node("missing", "initialized", is_initialized).await;
}

async fn does_not_change_nodes_of_another_cloud(stage: &Stage) {
    let spec = NodeSpec {
        provider_id: Some("aws:///eu-1/i-1".to_owned()),
        ..NodeSpec::new("foreign")
    };
    stage.register(&[spec]).await;
    let message = stage.event("foreign", "ForeignProviderID").await.message.unwrap();
    assert!(message.contains("aws:///eu-1/i-1"), "{message}");
    assert!(
        stage.cloud.calls().iter().all(|call| !call.nodes.contains(&"foreign".to_owned())),
        "the cloud received a request"
    );
    assert!(!is_initialized(&stage.nodes.get("foreign").await.unwrap()));
}

async fn a_failing_node_delays_no_other(stage: &Stage) {
    let outage = Error::new(ErrorKind::Unavailable, "the cloud is down");
    stage.cloud.insert("unlucky", instance("10.0.0.10"));
    stage.cloud.insert("lucky", instance("10.0.0.11"));
    stage.cloud.fail("unlucky", &outage, 3);
    stage.register(&[NodeSpec::new("unlucky")]).await;
    stage.register(&[NodeSpec::new("lucky")]).await;
    stage.node("lucky", "initialized", is_initialized).await;
    let message = stage.event("unlucky", "Unavailable").await.message.unwrap();
    assert!(message.contains("the cloud is down"), "{message}");
    stage.node("unlucky", "initialized", is_initialized).await;
    let params = ListParams::default().fields("involvedObject.name=unlucky,type=Warning");
    assert_eq!(stage.events.list(&params).await.unwrap().items.len(), 1, "reported once");
}

async fn follows_the_cloud_and_keeps_the_zone(stage: &Stage) {
    let mut changed = instance("10.0.0.101");
    changed.provider_id = "fake://plain".to_owned();
    changed.instance_type = Some("huge".to_owned());
    changed.zone = Some("zone-2".to_owned());
    stage.cloud.insert("plain", changed);
    let node = stage
        .node("plain", "refreshed", |node| {
            addresses(node).first().is_some_and(|(_, address)| *address == "10.0.0.101")
                && label(node, "node.kubernetes.io/instance-type") == Some("huge")
        })
        .await;
    assert_eq!(label(&node, "beta.kubernetes.io/instance-type"), Some("huge"));
    assert_eq!(label(&node, "topology.kubernetes.io/zone"), Some("zone-1"));
    let message = stage.event("plain", "TopologyChanged").await.message.unwrap();
    assert!(message.contains("topology.kubernetes.io/zone=zone-2"), "{message}");
    // Further passes write nothing.
    let version = stage.nodes.get("plain").await.unwrap().metadata.resource_version;
    let passes = stage.cloud.calls().len();
    eventually("two more passes", async || (stage.cloud.calls().len() >= passes + 2).then_some(())).await;
    assert_eq!(stage.nodes.get("plain").await.unwrap().metadata.resource_version, version);
}

async fn corrects_stable_labels(stage: &Stage) {
    let edit = json!({"metadata": {"labels": {"topology.kubernetes.io/region": "edited"}}});
    stage.merge("busy", edit).await;
    stage
        .node("busy", "reconciled", |node| {
            label(node, "topology.kubernetes.io/region") == Some("region-1")
        })
        .await;
}
