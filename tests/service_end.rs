//! The end of the process while load balancers are being made. In a process of its own, since the signal is for all of it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "service/stage.rs"]
#[allow(dead_code)]
mod stage;

use tokio::signal::unix::{SignalKind, signal};

use crate::stage::{Stage, addresses, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pass_under_way_is_finished_and_nothing_else_is_begun() {
    let mut stage = Stage::prepare("service-end").await;
    stage.run(|config| config.service.concurrent_syncs = std::num::NonZeroUsize::MIN);
    let made = |begin: &str| {
        let writes = stage.cloud.writes();
        writes.iter().filter(|write| write.starts_with(begin)).count()
    };
    // One is being made, another one waits for the only worker.
    stage.cloud.hold();
    stage.create("first", |_| {}).await;
    eventually("it is being made", async || (made("create") == 1).then_some(())).await;
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
    // Time for a Service to come and go is time for the program to hear of the signal, too.
    stage
        .create("third", |service| service["spec"]["type"] = "ClusterIP".into())
        .await;
    stage.delete("third").await;
    stage.gone("third").await;
    stage.cloud.open();
    stage.ended().await;
    assert_eq!(stage.cloud.writes(), ["create balancer balancer_default_first"]);
    assert!(stage.cloud.of("default/first").is_some());
    // The next process goes on.
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
