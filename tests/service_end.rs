//! The end of the process while load balancers are being created. This test has a process of its own, because the signal ends
//! it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "framework/fake.rs"]
#[allow(dead_code)]
mod fake;
#[path = "framework/service/stage.rs"]
#[allow(dead_code)]
mod stage;

use tokio::signal::unix::{SignalKind, signal};

use fake::eventually;
use stage::{Stage, addresses};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pass_in_progress_finishes_and_no_other_begins() {
    let mut stage = Stage::prepare("service-end").await;
    stage.run(|config| config.service.concurrent_syncs = std::num::NonZeroUsize::MIN);
    let count_writes = |begin: &str| {
        let writes = stage.cloud.writes();
        writes.iter().filter(|write| write.starts_with(begin)).count()
    };
    // One load balancer is being created, and another one waits for the only worker.
    stage.cloud.pause();
    stage.create("first", |_| {}).await;
    eventually("its creation is in progress", async || {
        (count_writes("create") == 1).then_some(())
    })
    .await;
    stage.create("second", |_| {}).await;
    stage
        .service("second", "has its finalizer", stage::has_finalizer)
        .await;
    let mut arrived = signal(SignalKind::terminate()).unwrap();
    let sent = std::process::Command::new("kill")
        .args(["-TERM", &std::process::id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
    arrived.recv().await;
    // The program receives the signal while a Service is created and deleted.
    stage
        .create("third", |service| service["spec"]["type"] = "ClusterIP".into())
        .await;
    stage.delete("third").await;
    stage.deleted("third").await;
    stage.cloud.resume();
    stage.ended().await;
    assert_eq!(stage.cloud.writes(), ["create balancer balancer_default_first"]);
    assert!(stage.cloud.of("default/first").is_some());
    // The next process continues.
    stage.run(|_| {});
    for name in ["first", "second"] {
        stage
            .service(name, "is served", |service| !addresses(service).is_empty())
            .await;
    }
    let creates = stage.cloud.writes();
    let creates = creates.iter().filter(|write| write.starts_with("create"));
    assert_eq!(creates.count(), 2);
}
