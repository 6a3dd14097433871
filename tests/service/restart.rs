//! The program ends, and another one begins.

use ccm_core::testkit::balancers::{COLOUR, WOOD};
use serde_json::json;

use crate::stage::{Stage, addresses, eventually, has_finalizer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_silent() {
    let mut stage = Stage::start("restart").await;
    for number in 0..5 {
        stage.served(&format!("web-{number}")).await;
    }
    // Even what people were told stays told.
    stage
        .create("special", |service| {
            service["metadata"]["annotations"] = json!({COLOUR: "pink", WOOD: "oak"});
        })
        .await;
    stage.event("special", "EnsuredLoadBalancer").await;
    stage
        .merge("special", json!({"metadata": {"annotations": {WOOD: "elm"}}}))
        .await;
    stage.event("special", "LoadBalancerChangeBlocked").await;
    stage.kill();

    let (reads, writes) = (stage.cloud.reads().len(), stage.cloud.writes().len());
    let patches = stage.writes().len();
    stage.run(|_| {});
    // Six balancers and the hosts, each looked at once.
    let seven = |looks: &std::collections::BTreeMap<String, usize>| looks.len() == 7;
    eventually("every part was looked at", async || {
        let looks = stage.looks(reads);
        seven(&looks).then_some(())
    })
    .await;
    stage.join(&["n3"]).await;
    stage
        .balancer("web-0", |balancer| balancer.members.len() == 3)
        .await;
    let after: Vec<_> = stage.writes().split_off(patches);
    let patched: Vec<_> = after
        .iter()
        .filter(|(verb, what, _)| verb == "patch" || what.starts_with("services"))
        .collect();
    assert!(patched.is_empty(), "{patched:?}");
    // All that was said and done is about the node that came.
    eventually("all have the node", async || {
        let all = stage.cloud.balancers();
        all.iter()
            .all(|balancer| balancer.members.len() == 3)
            .then_some(())
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
async fn what_happened_while_the_program_was_down_is_made_up_for() {
    let mut stage = Stage::start("down").await;
    for name in ["deleted", "changed", "plain"] {
        stage.served(name).await;
    }
    stage.kill();
    stage.delete("deleted").await;
    stage
        .merge("changed", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    stage.create("new", |_| {}).await;
    stage.join(&["n3"]).await;
    stage.run(|_| {});
    stage.gone("deleted").await;
    stage
        .service("changed", "is let go", |service| !has_finalizer(service))
        .await;
    stage
        .service("new", "is served", |service| !addresses(service).is_empty())
        .await;
    stage
        .balancer("plain", |balancer| balancer.members.len() == 3)
        .await;
    for gone in ["deleted", "changed"] {
        assert_eq!(stage.cloud.of(&format!("default/{gone}")), None);
    }
    stage.event("deleted", "DeletedLoadBalancer").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_write_it_goes_on_where_it_was() {
    let mut stage = Stage::start("killed").await;
    for (name, begin) in [
        ("made", "create balancer"),
        ("let-in", "let {\"default/let-in\"}"),
    ] {
        stage.cloud.hold();
        stage.create(name, |_| {}).await;
        if name == "let-in" {
            // Only the second kind of write is held back.
            stage.cloud.open();
        }
        eventually("a write is under way", async || {
            let writes = stage.cloud.writes();
            writes.iter().any(|write| write.starts_with(begin)).then_some(())
        })
        .await;
        stage.kill();
        stage.cloud.open();
        stage.run(|_| {});
        stage
            .service(name, "is served", |service| !addresses(service).is_empty())
            .await;
        let owner = format!("default/{name}");
        let made = stage.cloud.balancers();
        assert_eq!(made.iter().filter(|balancer| balancer.owner == owner).count(), 1);
    }
    // And in the middle of a deletion.
    stage.cloud.hold();
    stage.delete("made").await;
    eventually("a write is under way", async || {
        let writes = stage.cloud.writes();
        writes
            .iter()
            .any(|write| write.contains("and {\"default/made\"} no more"))
            .then_some(())
    })
    .await;
    stage.kill();
    stage.cloud.open();
    assert!(has_finalizer(&stage.services.get("made").await.unwrap()));
    stage.run(|_| {});
    stage.gone("made").await;
    assert_eq!(stage.cloud.of("default/made"), None);
    assert!(!stage.cloud.hosts()["n1"].contains("default/made"));
}
