//! The node lifecycle controller against a real API server, with a cloud in memory whose answers a test can delay.
//!
//! A later event proves that a node was *not* deleted: another request to the cloud for this node, or the deletion of another
//! node whose machine vanished later.

pub(crate) mod stage;

use std::time::Duration;

use ccm_core::{AddressType, Error, ErrorKind, Instance, NodeAddress, Power};
use ccm_testbed::{
    nodes::NodeSpec,
    observe::{is_initialized, taints},
};
use kube::api::DeleteParams;
use serde_json::json;

use stage::{AUTOSCALER, SHUTDOWN, Stage, node, numbered};

use crate::fake::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_after_another() {
    let stage = Stage::start("one-by-one", |config| {
        // The nodes that are deleted here one after another would reach the default share.
        config.lifecycle.deletion_share = 1.0;
    })
    .await;
    stage.healthy(&numbered("well", 20)).await;
    a_node_whose_machine_was_deleted_is_deleted(&stage).await;
    an_error_of_the_cloud_deletes_no_node(&stage).await;
    a_ready_node_causes_no_request(&stage).await;
    a_machine_that_is_switched_off_taints_its_node_until_it_is_ready(&stage).await;
    nodes_without_a_cloud_and_of_other_clouds_stay_unchanged(&stage).await;
    a_node_that_is_ready_again_at_the_last_moment_stays(&stage).await;
    a_node_recreated_under_the_same_name_stays(&stage).await;
    a_provider_id_that_changes_at_the_last_moment_saves_the_node(&stage).await;
    let mut names = stage.names().await;
    names.retain(|name| name.starts_with("well"));
    assert_eq!(names.len(), 20);
}

async fn a_node_whose_machine_was_deleted_is_deleted(stage: &Stage) {
    for (name, status) in [("deleted", "False"), ("deleted-and-unknown", "Unknown")] {
        stage.cloud.insert(name, Instance::default());
        stage.register(&[node(name, true)]).await;
        stage.cloud.remove(name);
        stage.set_ready_status(name, status).await;
        stage.deleted(name).await;
        assert_eq!(stage.lookups(name), 2, "exactly two answers");
        let event = stage.event(name, "DeletingNode").await;
        assert_eq!(event.type_.as_deref(), Some("Normal"));
        assert_eq!(
            event.message.unwrap(),
            format!("Deleting node {name} because it does not exist in the cloud provider")
        );
        assert_eq!(event.source.unwrap().component.as_deref(), Some("cloud-node-lifecycle-controller"));
        assert_eq!(event.involved_object.api_version.as_deref(), Some("v1"));
        assert_eq!((stage.requests("get", name), stage.requests("delete", name)), (1, 1));
    }
}

async fn an_error_of_the_cloud_deletes_no_node(stage: &Stage) {
    let outage = Error::new(ErrorKind::Unavailable, "the cloud is down");
    stage.cloud.fail("unclear", &outage, 4);
    stage.register(&[node("unclear", false)]).await;
    eventually("several requests", async || (stage.lookups("unclear") >= 4).then_some(())).await;
    assert!(stage.exists("unclear").await);
    // The node is deleted once the cloud answers.
    stage.deleted("unclear").await;
    assert!(stage.lookups("unclear") >= 6);
}

async fn a_ready_node_causes_no_request(stage: &Stage) {
    stage.register(&[node("ready-and-deleted", true)]).await;
    stage.a_pass_deletes("marker-1").await;
    assert!(stage.exists("ready-and-deleted").await);
    // A request for it as another present node does not delete it, as long as the cloud reports others.
    stage.set_ready("ready-and-deleted", false).await;
    stage.deleted("ready-and-deleted").await;
}

async fn a_machine_that_is_switched_off_taints_its_node_until_it_is_ready(stage: &Stage) {
    let powered = |power| Instance {
        power,
        ..Instance::default()
    };
    stage.cloud.insert("sleeper", powered(Power::Off));
    let foreign = json!({"spec": {"taints": [{"key": "foreign", "value": "v", "effect": "NoExecute"}]}});
    stage.register(&[node("sleeper", true)]).await;
    stage.merge("sleeper", foreign).await;
    stage.set_ready("sleeper", false).await;
    let tainted = stage.node("sleeper", "tainted", |node| taints(node).contains(&SHUTDOWN)).await;
    assert_eq!(taints(&tainted).first(), Some(&"foreign"));
    let taint = tainted.spec.unwrap().taints.unwrap().pop().unwrap();
    assert_eq!((taint.effect.as_str(), taint.value.unwrap_or_default()), ("NoSchedule", String::new()));
    // The machine runs again, but the node is not ready yet, so the taint stays.
    stage.cloud.insert("sleeper", powered(Power::On));
    stage.more_lookups("sleeper", 2).await;
    assert!(taints(&stage.nodes.get("sleeper").await.unwrap()).contains(&SHUTDOWN));
    stage.set_ready("sleeper", true).await;
    let untainted =
        stage.node("sleeper", "no longer tainted", |node| !taints(node).contains(&SHUTDOWN)).await;
    assert!(taints(&untainted).contains(&"foreign"));
    assert_eq!(stage.requests("patch", "sleeper"), 2, "one patch adds the taint and one removes it");
}

async fn nodes_without_a_cloud_and_of_other_clouds_stay_unchanged(stage: &Stage) {
    let bare = NodeSpec {
        provider_id: None,
        ..node("bare-metal", false)
    };
    let foreign = NodeSpec {
        provider_id: Some("aws:///eu-1/i-1".to_owned()),
        ..node("foreign", false)
    };
    // A manual edit: a provider ID of this cloud, but invalid.
    let malformed = NodeSpec {
        provider_id: Some("fake://".to_owned()),
        ..node("malformed", false)
    };
    stage.register(&[bare, foreign, malformed]).await;
    stage.a_pass_deletes("marker-2").await;
    stage.more_lookups("malformed", 1).await;
    for name in ["bare-metal", "foreign", "malformed"] {
        assert!(stage.exists(name).await, "{name}");
        assert_eq!(stage.requests("patch", name), 0, "{name}");
    }
    assert_eq!((stage.lookups("bare-metal"), stage.lookups("foreign")), (0, 0));
}

async fn a_node_that_is_ready_again_at_the_last_moment_stays(stage: &Stage) {
    stage.delay_the_last_answer("comeback").await;
    stage.set_ready("comeback", true).await;
    stage.cloud.resume();
    stage.a_pass_deletes("marker-3").await;
    assert!(stage.exists("comeback").await);
    assert_eq!(stage.requests("delete", "comeback"), 0);
    stage.nodes.delete("comeback", &DeleteParams::default()).await.unwrap();
}

async fn a_node_recreated_under_the_same_name_stays(stage: &Stage) {
    stage.delay_the_last_answer("recreated").await;
    stage.nodes.delete("recreated", &DeleteParams::default()).await.unwrap();
    stage.cloud.insert("recreated-machine", Instance::default());
    let again = NodeSpec {
        provider_id: Some("fake://recreated-machine".to_owned()),
        ..node("recreated", false)
    };
    stage.register(&[again]).await;
    stage.cloud.resume();
    stage.a_pass_deletes("marker-4").await;
    assert!(stage.exists("recreated").await);
    assert_eq!(stage.requests("delete", "recreated"), 0);
}

async fn a_provider_id_that_changes_at_the_last_moment_saves_the_node(stage: &Stage) {
    // A provider ID can be set once and never changed. So the node is deleted and created again, or the ID is set meanwhile.
    let waiting = NodeSpec {
        provider_id: None,
        uninitialized: true,
        ..node("late-id", false)
    };
    stage.cloud.pause();
    stage.register(&[waiting]).await;
    eventually("a request", async || (stage.lookups("late-id") >= 1).then_some(())).await;
    stage.cloud.insert("late-machine", Instance::default());
    stage.merge("late-id", json!({"spec": {"providerID": "fake://late-machine"}})).await;
    stage.cloud.resume();
    stage.a_pass_deletes("marker-5").await;
    assert!(stage.exists("late-id").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_deleted_if_no_id_is_known_from_the_start() {
    let stage = Stage::start("invisible-from-the-start", |_| {}).await;
    stage.cloud.change_credentials("project \"wrong\" of https://keystone.example");
    stage.cloud.set_invisible(true);
    let names = numbered("n", 3);
    stage.healthy(&names).await;
    for name in &names {
        stage.set_ready(name, false).await;
    }
    for name in &names {
        let event = stage.event(name, "NodeDeletionPaused").await;
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        let message = event.message.unwrap();
        for part in [
            "project \"wrong\" of https://keystone.example",
            "credentials",
            "kubectl delete node",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    stage.more_lookups("n-0", 3).await;
    assert_eq!(stage.names().await, names);
    let blocked = stage.events("reason=NodeDeletionPaused").await;
    assert_eq!(blocked.len(), names.len(), "reported once");

    // With the right credentials the machines exist, and the node without a machine is deleted.
    stage.cloud.remove("n-1");
    stage.cloud.set_invisible(false);
    stage.cloud.change_credentials("project \"right\" of https://keystone.example");
    stage.deleted("n-1").await;
    assert_eq!(stage.names().await, ["n-0", "n-2"]);
    assert_eq!(stage.events("reason=DeletingNode").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_of_another_project_delete_none_of_a_hundred_nodes() {
    let stage = Stage::start("invisible-later", |_| {}).await;
    let names = numbered("n", 100);
    stage.healthy(&names).await;
    let (silent, ready) = names.split_at(40);
    for name in silent {
        stage.set_ready(name, false).await;
    }
    eventually("requests for all", async || {
        silent.iter().all(|name| stage.lookups(name) > 0).then_some(())
    })
    .await;
    // The credentials change to those of another project while the program runs.
    stage.cloud.set_invisible(true);
    stage.cloud.change_credentials("project two");
    let blocked = eventually("deletions are blocked", async || {
        let blocked = stage.events("reason=NodeDeletionPaused").await;
        (blocked.len() >= 20).then_some(blocked)
    })
    .await;
    assert!(blocked.iter().all(|event| event.message.as_ref().unwrap().contains("project two")));
    stage.more_lookups("n-0", 3).await;
    assert_eq!(stage.names().await.len(), 100);
    // The cloud received requests for ready nodes as other present nodes, three at a time and not always the same.
    let others: Vec<_> = ready.iter().filter(|name| stage.lookups(name) > 0).collect();
    assert!(others.len() > 3, "{others:?}");

    stage.cloud.set_invisible(false);
    stage.cloud.change_credentials("project one");
    stage.more_lookups("n-0", 2).await;
    stage.a_pass_deletes("marker").await;
    assert_eq!(stage.names().await.len(), 100);
    assert!(
        stage
            .events("reason=DeletingNode")
            .await
            .iter()
            .all(|event| { event.involved_object.name.as_deref() == Some("marker") })
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lifecycle_controller_alone_deletes_nodes_and_initializes_none() {
    let stage = Stage::start("alone", |config| {
        config.controllers.disabled.insert("cloud-node-controller");
    })
    .await;
    stage.healthy(&numbered("well", 2)).await;
    stage.cloud.insert("fresh", Instance::default());
    stage.register(&[NodeSpec::new("fresh")]).await;
    stage.a_pass_deletes("deleted").await;
    assert!(!is_initialized(&stage.nodes.get("fresh").await.unwrap()));
    assert!(stage.cloud.calls().iter().all(|call| !call.metadata));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disabled_lifecycle_controller_makes_no_requests() {
    let stage = Stage::start("switched-off", |config| {
        config.controllers.disabled.insert("cloud-node-lifecycle-controller");
    })
    .await;
    stage.register(&[node("deleted", false)]).await;
    // The other controller works meanwhile.
    stage.cloud.insert(
        "fresh",
        Instance {
            addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
            ..Instance::default()
        },
    );
    stage.register(&[NodeSpec::new("fresh")]).await;
    stage.node("fresh", "initialized", is_initialized).await;
    assert!(stage.exists("deleted").await);
    assert_eq!(stage.lookups("deleted"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_young_node_is_not_deleted_before_the_grace_period() {
    let stage = Stage::start("young", |config| {
        config.lifecycle.deletion_grace = Some(Duration::from_secs(6));
    })
    .await;
    stage.healthy(&numbered("well", 1)).await;
    stage.register(&[node("young", false)]).await;
    // All other conditions for the deletion are met: the node was read, and kept.
    eventually("a read of the node", async || (stage.requests("get", "young") >= 1).then_some(())).await;
    assert!(stage.exists("young").await);
    assert_eq!(stage.requests("delete", "young"), 0);
    let created = stage.nodes.get("young").await.unwrap().metadata.creation_timestamp.unwrap().0;
    stage.deleted("young").await;
    let age = created.duration_until(k8s_openapi::jiff::Timestamp::now());
    // Both clocks count whole seconds.
    assert!(age.as_secs() >= 5, "{age:?}");
}

/// The name of the machine has dots, and the kubelet registered with dashes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lives_under_another_name_stays_while_its_kubelet_reports() {
    const ALIVE: &str = "c-md-0-v1-26-4-abc";
    let stage = Stage::start("other-name", |config| {
        config.lifecycle.deletion_share = 1.0;
        config.lifecycle.unresolved_confirm = Duration::from_secs(4);
    })
    .await;
    stage.healthy(&numbered("c-md-0-v1-26-4-ab", 2)).await;
    stage.cloud.insert("c-md-0-v1.26.4-abc", Instance::default());
    stage
        .register(&[
            NodeSpec {
                ready: false,
                ..NodeSpec::new(ALIVE)
            },
            NodeSpec::new("silent"),
        ])
        .await;
    stage.set_ready_status("silent", "Unknown").await;
    let event = stage.event(ALIVE, "InstanceNotFound").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let message = event.message.unwrap();
    for part in [
        format!("no instance named \"{ALIVE}\""),
        "similar names: \"c-md-0-v1.26.4-abc\"".to_owned(),
    ] {
        assert!(message.contains(&part), "{part}: {message}");
    }
    stage.deleted("silent").await;
    assert_eq!(stage.events("reason=DeletingNode").await.len(), 1);
    assert!(stage.exists(ALIVE).await);

    // The kubelet stops for a moment, which is over before the time is.
    let begins = stage.lookups(ALIVE);
    stage.set_ready_status(ALIVE, "Unknown").await;
    stage.more_lookups(ALIVE, 1).await;
    stage.set_ready_status(ALIVE, "False").await;
    // A node that is silent since then is deleted, and that one is not.
    stage.register(&[NodeSpec::new("silent-too")]).await;
    stage.set_ready_status("silent-too", "Unknown").await;
    stage.deleted("silent-too").await;
    assert!(stage.exists(ALIVE).await);
    assert!(stage.lookups(ALIVE) > begins);
    assert_eq!(stage.requests("delete", ALIVE), 0);

    // The machine gets the name of the node.
    stage.cloud.remove("c-md-0-v1.26.4-abc");
    stage.cloud.insert(
        ALIVE,
        Instance {
            addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
            ..Instance::default()
        },
    );
    stage.node(ALIVE, "initialized", is_initialized).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_are_deleted_slowly_unless_the_autoscaler_tainted_them() {
    let stage = Stage::start("share", |_| {}).await;
    let names = numbered("n", 10);
    stage.healthy(&names).await;
    // The autoscaler removes three of ten machines, and one more vanishes.
    for name in &names[..4] {
        if name != "n-3" {
            let taint =
                json!({"spec": {"taints": [{"key": AUTOSCALER, "value": "1", "effect": "NoSchedule"}]}});
            stage.merge(name, taint).await;
        }
        stage.cloud.remove(name);
        stage.set_ready(name, false).await;
    }
    for name in &names[..4] {
        stage.deleted(name).await;
    }
    assert!(stage.events("reason=NodeDeletionPaused").await.is_empty());

    // Six nodes remain, and the machines of four vanish. With the former one, these exceed the share.
    stage.cloud.pause();
    for name in &names[6..] {
        stage.cloud.remove(name);
        stage.set_ready(name, false).await;
    }
    stage.cloud.resume();
    let blocked = eventually("the other deletions are blocked", async || {
        let blocked = stage.events("reason=NodeDeletionPaused").await;
        (blocked.len() >= 3).then_some(blocked)
    })
    .await;
    let message = blocked[0].message.clone().unwrap();
    assert!(message.contains("--node-deletion-share"), "{message}");
    let left = async || {
        let left = stage.names().await;
        left.into_iter().filter(|name| names[6..].contains(name)).collect::<Vec<_>>()
    };
    let waiting = left().await;
    assert!((3..=4).contains(&waiting.len()), "{waiting:?}");
    stage.more_lookups(&waiting[0], 3).await;
    assert!(left().await.len() >= 3, "more than one a minute");
    for name in &names[4..6] {
        assert!(stage.exists(name).await);
    }
}
