//! Restarts of the program.

use ccm_core::testkit::balancers::{CLASS_ELSEWHERE, COLOUR, WOOD};
use kube::{ResourceExt, api::ListParams};
use serde_json::json;

use super::stage::{Stage, addresses, has_finalizer};
use crate::fake::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_writes_nothing() {
    let mut stage = Stage::start("restart").await;
    for number in 0..5 {
        stage.served(&format!("web-{number}")).await;
    }
    // Warnings are not repeated, either.
    stage
        .create("special", |service| {
            service["metadata"]["annotations"] = json!({COLOUR: "pink", WOOD: "oak"});
        })
        .await;
    stage.event("special", "EnsuredLoadBalancer").await;
    stage.merge("special", json!({"metadata": {"annotations": {WOOD: "elm"}}})).await;
    stage.event("special", "LoadBalancerChangeBlocked").await;
    stage.kill();

    let (reads, writes) = (stage.cloud.reads().len(), stage.cloud.writes().len());
    let patches = stage.writes().len();
    stage.run(|_| {});
    // One pass for each of the six balancers and for the hosts.
    let seven = |passes: &std::collections::BTreeMap<String, usize>| passes.len() == 7;
    eventually("a pass for every part", async || {
        let passes = stage.passes(reads);
        seven(&passes).then_some(())
    })
    .await;
    stage.join(&["n3"]).await;
    stage.balancer("web-0", |balancer| balancer.members.len() == 3).await;
    let after: Vec<_> = stage.writes().split_off(patches);
    let patched: Vec<_> = after
        .iter()
        .filter(|(verb, what, _)| verb == "patch" || what.starts_with("services"))
        .collect();
    assert!(patched.is_empty(), "{patched:?}");
    // All writes and Events concern the node that joined.
    eventually("all have the node", async || {
        let all = stage.cloud.balancers();
        all.iter().all(|balancer| balancer.members.len() == 3).then_some(())
    })
    .await;
    let done = stage.cloud.writes().split_off(writes);
    assert!(done.iter().all(|write| write.contains("n3")), "{done:?}");
    let reasons = stage.reasons("special").await;
    for reason in [
        "ColourIgnored",
        "LoadBalancerChangeBlocked",
        "EnsuringLoadBalancer",
    ] {
        let times = reasons.iter().filter(|found| *found == reason).count();
        assert_eq!(times, 1, "{reasons:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_during_a_downtime_are_handled_at_the_restart() {
    let mut stage = Stage::start("down").await;
    for name in ["deleted", "changed", "plain"] {
        stage.served(name).await;
    }
    stage.kill();
    stage.delete("deleted").await;
    stage.merge("changed", json!({"spec": {"type": "ClusterIP"}})).await;
    stage.create("new", |_| {}).await;
    stage.join(&["n3"]).await;
    stage.run(|_| {});
    stage.deleted("deleted").await;
    stage.service("changed", "has no finalizer", |service| !has_finalizer(service)).await;
    stage.service("new", "is served", |service| !addresses(service).is_empty()).await;
    stage.balancer("plain", |balancer| balancer.members.len() == 3).await;
    for name in ["deleted", "changed"] {
        assert_eq!(stage.cloud.of(&format!("default/{name}")), None);
    }
    stage.event("deleted", "DeletedLoadBalancer").await;
}

/// The Service becomes of type ClusterIP, which empties its status, and then gets the class of another controller.
async fn hand_over(stage: &Stage, name: &str, class: &str) {
    stage.merge(name, json!({"spec": {"type": "ClusterIP"}})).await;
    let other = json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": class}});
    stage.merge(name, other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_got_another_class_during_a_downtime_leaves_nothing() {
    let mut stage = Stage::start("handed").await;
    for name in ["handed", "elsewhere", "foreign", "plain"] {
        stage.served(name).await;
    }
    stage.kill();
    hand_over(&stage, "handed", "example.com/other").await;
    hand_over(&stage, "elsewhere", CLASS_ELSEWHERE).await;
    hand_over(&stage, "foreign", "example.com/other").await;
    stage.cloud.edit(|balancers| {
        let mut balancers = balancers.values_mut();
        let foreign = balancers.find(|balancer| balancer.owner == "default/foreign");
        foreign.unwrap().tag = Some("kube_cluster_id_of-another".to_owned());
    });
    stage.run(|_| {});
    // While the Services exist, the other controller may use what they have.
    for name in ["handed", "elsewhere"] {
        stage.event(name, "FormerLoadBalancerExists").await;
    }
    stage.marker("marker").await;
    for name in ["handed", "elsewhere", "foreign"] {
        assert!(stage.cloud.of(&format!("default/{name}")).is_some(), "{name}");
        stage.delete(name).await;
    }
    for name in ["handed", "elsewhere"] {
        stage.deleted(name).await;
        assert_eq!(stage.cloud.of(&format!("default/{name}")), None);
        stage.event(name, "DeletedLoadBalancer").await;
    }
    let message = stage.event("foreign", "LoadBalancerNotDeleted").await;
    for part in [
        "balancer_default_foreign",
        "kube_cluster_id_of-another",
        "service.kubernetes.io/load-balancer-cleanup",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // More discoveries report nothing again.
    stage.served("later").await;
    stage.marker("marker-2").await;
    let reasons = stage.reasons("foreign").await;
    let reports = reasons.iter().filter(|reason| *reason == "LoadBalancerNotDeleted");
    assert_eq!(reports.count(), 1, "{reasons:?}");
    assert!(has_finalizer(&stage.services.get("foreign").await.unwrap()));
    assert!(stage.cloud.of("default/foreign").is_some());
    assert!(stage.cloud.of("default/plain").is_some());
    assert!(stage.cloud.hosts()["n1"].contains("default/foreign"));
    // After a rollback, the Go program cleans up Services with the finalizer that are deleted or of another type. The one that is
    // left is named in the Warning.
    let services = stage.services.list(&ListParams::default()).await.unwrap();
    let cleaned_up = services.iter().filter(|service| {
        let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
        has_finalizer(service)
            && (service.metadata.deletion_timestamp.is_some() || type_ != Some("LoadBalancer"))
    });
    let names: Vec<_> = cleaned_up.map(ResourceExt::name_any).collect();
    assert_eq!(names, ["foreign"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_killed_at_a_write_continues_after_its_restart() {
    let mut stage = Stage::start("killed").await;
    for (name, begin) in [
        ("created", "create balancer"),
        ("let-in", "add {\"default/let-in\"}"),
    ] {
        stage.cloud.pause();
        stage.create(name, |_| {}).await;
        if name == "let-in" {
            // Only the second kind of write is delayed.
            stage.cloud.resume();
        }
        eventually("a write in progress", async || {
            let writes = stage.cloud.writes();
            writes.iter().any(|write| write.starts_with(begin)).then_some(())
        })
        .await;
        stage.kill();
        stage.cloud.resume();
        stage.run(|_| {});
        stage.service(name, "is served", |service| !addresses(service).is_empty()).await;
        let owner = format!("default/{name}");
        let balancers = stage.cloud.balancers();
        assert_eq!(balancers.iter().filter(|balancer| balancer.owner == owner).count(), 1);
    }
    // A kill during a deletion.
    stage.cloud.pause();
    stage.delete("created").await;
    eventually("a write in progress", async || {
        let writes = stage.cloud.writes();
        writes.iter().any(|write| write.contains("remove {\"default/created\"}")).then_some(())
    })
    .await;
    stage.kill();
    stage.cloud.resume();
    assert!(has_finalizer(&stage.services.get("created").await.unwrap()));
    stage.run(|_| {});
    stage.deleted("created").await;
    assert_eq!(stage.cloud.of("default/created"), None);
    assert!(!stage.cloud.hosts()["n1"].contains("default/created"));
}
