//! A cluster with many Services.

use futures_util::future::join_all;

use super::stage::{Stage, addresses};
use crate::fake::eventually;

const MANY: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_costs_one_pass_for_each_part() {
    let stage = Stage::start("many").await;
    let names: Vec<_> = (0..MANY).map(|number| format!("web-{number}")).collect();
    join_all(names.iter().map(|name| stage.create(name, |_| {}))).await;
    eventually("all are served", async || {
        let all = stage.services.list(&Default::default()).await.ok()?.items;
        let served = all.iter().filter(|service| !addresses(service).is_empty());
        (served.count() == MANY).then_some(())
    })
    .await;
    let created = stage.cloud.writes();
    let creates = created.iter().filter(|write| write.starts_with("create")).count();
    assert_eq!(creates, MANY);
    // The marker ends after the passes that the program's own annotations caused.
    stage.marker("marker").await;

    let (reads, writes) = (stage.cloud.reads().len(), stage.cloud.writes().len());
    let log = stage.writes().len();
    stage.join(&["n3", "n4", "n5"]).await;
    eventually("all follow", async || {
        let all = stage.cloud.balancers();
        let joined = stage.cloud.hosts().get("n5").is_some_and(|host| host.len() == MANY);
        (joined && all.iter().all(|balancer| balancer.members.len() == 5)).then_some(())
    })
    .await;
    let passes = stage.passes(reads);
    assert_eq!(passes.len(), MANY + 1, "{passes:?}");
    assert!(passes.values().all(|passes| *passes == 1), "{passes:?}");
    // One for each balancer, and one for each node.
    assert_eq!(stage.cloud.writes().len() - writes, MANY + 3);
    let log = stage.writes().split_off(log);
    assert!(
        // The last write for the marker may reach the audit log late.
        log.iter().all(|(_, what, name)| what == "events/" || name == "marker"),
        "a Service was written: {log:?}"
    );
}
