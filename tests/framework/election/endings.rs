//! SIGTERM: writes in progress finish under the Lease, and then the Lease is released.

use std::time::{Duration, Instant, SystemTime};

use ccm_testbed::binary::Ccm;

use super::contest::{LIMIT, Stage, short};

/// A leader during a write that takes this long.
async fn leader_with_slow_write(stage: &Stage, write: Duration, flags: &[&str]) -> Ccm {
    let leader = stage.ours("a", &short(), flags);
    stage.wait_for_writes("a").await;
    stage.writes.delay(write);
    stage
        .eventually("a slow write is under way", async || {
            let entries = stage.writes.entries();
            let last = entries.iter().rev().nth(1)?.returned?;
            let slow = last.elapsed().ok()? > Duration::from_millis(300);
            (slow && entries.last()?.returned.is_none()).then_some(())
        })
        .await;
    leader
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_progress_returns_before_the_lease_is_released() {
    let stage = Stage::set().await;
    // Longer than the duration of a Lease without renewals.
    let mut leader = leader_with_slow_write(&stage, Duration::from_secs(6), &[]).await;
    let _standby = stage.standby("b", &short()).await;
    leader.terminate().unwrap();
    let status = leader.wait(LIMIT).await.unwrap();
    let log = stage.log("a");
    assert!(status.success() && log.contains("Released the lease"), "{log}");
    assert!(!log.contains("Cutting off"), "{log}");
    let ended = SystemTime::now();
    let ours: Vec<_> = stage.writes.entries().into_iter().filter(|entry| entry.writer == "a").collect();
    for entry in &ours {
        assert!(entry.returned.unwrap() <= ended, "{entry:?}");
    }
    stage.writes.delay(Duration::ZERO);
    stage.wait_for_writes("b").await;
    assert_eq!(stage.writes.successions(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_does_not_return_in_time_is_cut_off_and_the_lease_expires() {
    let stage = Stage::set().await;
    let mut leader = leader_with_slow_write(&stage, Duration::from_secs(25), &["--shutdown-drain=1s"]).await;
    let _standby = stage.standby("b", &short()).await;
    stage.writes.delay(Duration::ZERO);
    leader.terminate().unwrap();
    let began = Instant::now();
    let status = leader.wait(LIMIT).await.unwrap();
    let log = stage.log("a");
    assert!(status.success(), "{log}");
    assert!(log.contains("Not releasing the lease before it expires"), "{log}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_ne!(stage.lease(&short()).await.holder_identity.as_deref(), Some(""));
    stage.wait_for_writes("b").await;
    assert_eq!(stage.writes.successions(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_ends_at_once_and_a_second_signal_ends_any_replica() {
    let stage = Stage::set().await;
    let mut leader = leader_with_slow_write(&stage, Duration::from_secs(25), &[]).await;
    let mut standby = stage.standby("b", &short()).await;
    let began = Instant::now();
    standby.terminate().unwrap();
    assert!(standby.wait(LIMIT).await.unwrap().success());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    leader.terminate().unwrap();
    stage
        .eventually("it drains", async || stage.log("a").contains("Shutting down").then_some(()))
        .await;
    assert!(leader.exit_status().unwrap().is_none());
    leader.terminate().unwrap();
    let status = leader.wait(LIMIT).await.unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(stage.log("a").contains("Exiting without waiting for work in progress"));
}
