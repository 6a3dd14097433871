//! The succession of leaders, and its times.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};

use super::contest::{LIMIT, Stage, short, usual};

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_leads_and_the_other_stands_by() {
    let stage = Stage::set().await;
    let mut both = ["a", "b"].map(|name| (name, stage.ours(name, &short(), &[])));
    for (_, ccm) in &mut both {
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    }
    let leader = stage
        .eventually("one writes", async || ["a", "b"].into_iter().find(|name| stage.writes.count(name) > 0))
        .await;
    both.sort_by_key(|(name, _)| *name != leader);
    let [(_, mut first), (standby, second)] = both;
    stage
        .eventually("the other one has seen it", async || {
            stage.log(standby).contains("Another process leads").then_some(())
        })
        .await;
    for _ in 0..10 {
        stage.wait_for_writes(leader).await;
    }
    assert_eq!(stage.writes.successions(), [leader]);
    // A standby is healthy and ready, too, and its metric shows that it does not lead.
    for (ccm, master) in [(&first, 1), (&second, 0)] {
        assert_eq!(ccm.get("/healthz/leaderElection").await.unwrap().0, 200);
        assert_eq!(ccm.get("/readyz").await.unwrap().0, 200);
        let (_, metrics) = ccm.get("/metrics").await.unwrap();
        let line = format!("leader_election_master_status{{name=\"cloud-controller-manager\"}} {master}\n");
        assert!(metrics.contains(&line), "{metrics}");
        assert!(metrics.matches("# TYPE ccm_events ").count() <= 1, "{metrics}");
    }

    first.terminate().unwrap();
    assert!(first.wait(LIMIT).await.unwrap().success(), "{}", stage.log(leader));
    stage.wait_for_writes(standby).await;
    assert_eq!(stage.writes.successions(), [leader, standby]);
    assert_eq!(stage.lease(&short()).await.lease_transitions, Some(1));
    let events: Api<Event> = Api::namespaced(stage.client.clone(), "kube-system");
    let params = ListParams::default().fields("involvedObject.kind=Lease,reason=LeaderElection");
    let messages = stage
        .eventually("three events", async || {
            let mut events = events.list(&params).await.unwrap().items;
            events.sort_by_key(|event| event.metadata.name.clone());
            (events.len() == 3).then_some(events)
        })
        .await;
    let reported: Vec<_> = messages
        .iter()
        .map(|event| {
            let source = event.source.as_ref().unwrap().component.as_deref();
            assert_eq!(source, Some("cloud-controller-manager"));
            let message = event.message.as_deref().unwrap();
            message.split_once(' ').unwrap().1
        })
        .collect();
    assert_eq!(reported, ["became leader", "stopped leading", "became leader"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_passes_to_and_from_a_program_with_client_go() {
    let stage = Stage::set().await;
    let contest = short();
    let mut first = stage.ours("ours", &contest, &[]);
    stage.wait_for_writes("ours").await;
    let mut go = stage.client_go("go", &contest).await;
    stage
        .eventually("client-go reads the holder", async || stage.log("go").contains("leader ").then_some(()))
        .await;
    first.terminate().unwrap();
    assert!(first.wait(LIMIT).await.unwrap().success());
    stage.wait_for_writes("go").await;
    let second = stage.standby("again", &contest).await;
    stage.wait_for_writes("go").await;
    go.terminate().unwrap();
    go.wait(LIMIT).await.unwrap();
    stage.wait_for_writes("again").await;
    // Once more, with a killed leader.
    let third = stage.client_go("go-again", &contest).await;
    stage
        .eventually("client-go reads the holder", async || {
            stage.log("go-again").contains("leader ").then_some(())
        })
        .await;
    drop(second);
    stage.wait_for_writes("go-again").await;
    let _fourth = stage.standby("last", &contest).await;
    drop(third);
    stage.wait_for_writes("last").await;
    assert_eq!(stage.writes.successions(), ["ours", "go", "again", "go-again", "last"]);
    let transitions = stage.lease(&contest).await.lease_transitions;
    assert_eq!(transitions, Some(4));
}

/// The times of five failovers with client-go's times, each pair with a Lease of its own.
async fn failovers(
    stage: &Stage,
    kind: &str,
    end: impl AsyncFn(&mut ccm_testbed::binary::Ccm),
) -> Vec<Duration> {
    let pairs = (1..=5).map(async |pair| {
        let contest = usual(format!("{kind}-{pair}"));
        let (leader, successor) = (format!("{kind}-{pair}-a"), format!("{kind}-{pair}-b"));
        let mut first = stage.ours(&leader, &contest, &["--node-status-update-frequency=200ms"]);
        stage.wait_for_writes(&leader).await;
        let _second = stage.standby(&successor, &contest).await;
        // A random moment within the pauses of the standby.
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..3000))).await;
        let began = Instant::now();
        end(&mut first).await;
        stage
            .eventually("the successor writes", async || (stage.writes.count(&successor) > 0).then_some(()))
            .await;
        began.elapsed()
    });
    let mut times = join_all(pairs).await;
    times.sort();
    times
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stderr, reason = "a person reads the times")]
async fn a_drained_leader_is_followed_within_seconds_and_a_killed_one_after_its_lease() {
    let stage = Stage::set().await;
    let drained = failovers(&stage, "drained", async |ccm| ccm.terminate().unwrap()).await;
    let killed = failovers(&stage, "killed", async |ccm| ccm.kill().unwrap()).await;
    eprintln!("failover, drained: {:?} of {drained:?}", drained[2]);
    eprintln!("failover, killed: {:?} of {killed:?}", killed[2]);
    // Only a released Lease allows less than its duration.
    assert!(drained[4] < Duration::from_secs(12), "{drained:?}");
    assert!(killed[0] > Duration::from_secs(12), "{killed:?}");
}
