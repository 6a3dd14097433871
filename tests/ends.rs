//! The end of the process while work is in progress. These tests have a process of their own, because the signal ends every
//! program in it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "framework/fake.rs"]
#[allow(dead_code)]
mod fake;
#[path = "framework/lifecycle/stage.rs"]
#[allow(dead_code)]
mod lifecycle;
#[path = "framework/service/stage.rs"]
#[allow(dead_code)]
mod service;

use std::process::{self, Command};

use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Mutex,
};

use fake::eventually;
use lifecycle::{AUTOSCALER, node, numbered};
use service::{addresses, has_finalizer};

const NODES: usize = 500;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Sends SIGTERM to this process.
fn terminate() {
    let id = process::id().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
    assert!(sent.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_balancer_in_progress_is_created_and_no_other() {
    let _alone = ALONE.lock().await;
    let mut stage = service::Stage::prepare("service-end").await;
    stage.run(|config| config.service.concurrent_syncs = std::num::NonZeroUsize::MIN);
    let count_writes = |begin: &str| {
        let writes = stage.cloud.writes();
        writes.iter().filter(|write| write.starts_with(begin)).count()
    };
    // One load balancer is being created, and another one waits for the only worker.
    stage.cloud.pause();
    stage.create("first", |_| {}).await;
    eventually("its creation is in progress", async || (count_writes("create") == 1).then_some(())).await;
    stage.create("second", |_| {}).await;
    stage.service("second", "has its finalizer", has_finalizer).await;
    let mut arrived = signal(SignalKind::terminate()).unwrap();
    terminate();
    arrived.recv().await;
    // The program receives the signal while a Service is created and deleted.
    stage.create("third", |service| service["spec"]["type"] = "ClusterIP".into()).await;
    stage.delete("third").await;
    stage.deleted("third").await;
    stage.cloud.resume();
    stage.ended().await;
    assert_eq!(stage.cloud.writes(), ["create balancer balancer_default_first"]);
    assert!(stage.cloud.of("default/first").is_some());
    // The next process continues.
    stage.run(|_| {});
    for name in ["first", "second"] {
        stage.service(name, "is served", |service| !addresses(service).is_empty()).await;
    }
    let creates = stage.cloud.writes();
    let creates = creates.iter().filter(|write| write.starts_with("create"));
    assert_eq!(creates.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_of_nodes_in_progress_finish_and_no_other_begins() {
    let _alone = ALONE.lock().await;
    let mut stage = lifecycle::Stage::start("lifecycle-end", |_| {}).await;
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
    terminate();
    stage.program.ended().await.unwrap();

    let left = stage.names().await.len() - 1;
    assert!(left > 0, "all nodes were deleted before the signal");
    let announced = stage.events("reason=DeletingNode").await.len();
    assert_eq!(announced, NODES - left, "each deletion has an Event");
    assert!(stage.exists("well-0").await);
}
