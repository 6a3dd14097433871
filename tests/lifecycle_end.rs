//! The end of the process while nodes are being deleted. This test has a process of its own, because the signal ends it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "framework/fake.rs"]
#[allow(dead_code)]
mod fake;
#[path = "framework/lifecycle/stage.rs"]
#[allow(dead_code)]
mod stage;

use serde_json::json;

use fake::eventually;
use stage::{AUTOSCALER, Stage, node, numbered};

const NODES: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_in_progress_finish_and_no_other_begins() {
    let mut stage = Stage::start("end", |_| {}).await;
    stage.healthy(&numbered("well", 1)).await;
    let names = numbered("deleted", NODES);
    let specs: Vec<_> = names.iter().map(|name| node(name, true)).collect();
    stage.register(&specs).await;
    // All nodes become not ready before the first answer, so that they are deleted together.
    stage.cloud.pause();
    for name in &names {
        let taint = json!({"spec": {"taints": [{"key": AUTOSCALER, "effect": "NoSchedule"}]}});
        stage.merge(name, taint).await;
        stage.set_ready(name, false).await;
    }
    stage.cloud.resume();
    eventually("the first is announced", async || {
        (!stage.events("reason=DeletingNode").await.is_empty()).then_some(())
    })
    .await;
    let signal = std::process::Command::new("kill")
        .args(["-TERM", &std::process::id().to_string()])
        .status()
        .unwrap();
    assert!(signal.success());
    stage.program.ended().await.unwrap();

    let left = stage.names().await.len() - 1;
    assert!(left > 0, "all nodes were deleted before the signal");
    let announced = stage.events("reason=DeletingNode").await.len();
    assert_eq!(announced, NODES - left, "each deletion has an Event");
    assert!(stage.exists("well-0").await);
}
