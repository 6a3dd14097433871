//! Heartbeats of the controllers' tasks. A task that is stuck in a lock or a loop has none, and only a restart helps.

use std::{pin::pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::health::{Checks, Kind};

/// The interval of the heartbeat.
const BEAT: Duration = Duration::from_secs(5);
/// A task without a heartbeat for this long is stuck. No step of a task takes nearly as long.
const STUCK: Duration = Duration::from_secs(60);

/// Runs a controller, with a check of its name on `/livez`.
pub(crate) async fn watched(checks: Checks, name: &'static str, run: impl Future<Output = ()>) {
    // None: the controller has ended, and its caller handles that.
    let beat = Arc::new(Mutex::new(Some(Instant::now())));
    let seen = Arc::clone(&beat);
    checks.register_probe(name, Kind::Live, move || match *seen.lock() {
        Some(at) if at.elapsed() > STUCK => {
            Err("the controller has been stuck for more than 60 s".to_owned())
        }
        _ => Ok(()),
    });
    let mut run = pin!(run);
    let mut ticks = interval(BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = run.as_mut() => break,
            _ = ticks.tick() => *beat.lock() = Some(Instant::now()),
        }
    }
    *beat.lock() = None;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use tokio::{
        sync::Notify,
        time::{advance, sleep},
    };

    use super::*;

    fn state(checks: &Checks) -> Result<(), String> {
        let mut checks = checks.all().into_iter();
        checks.find(|check| check.0 == "controller").unwrap().2
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_is_not_stuck() {
        let checks = Checks::default();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let run = async move { stopped.notified().await };
        let task = tokio::spawn(watched(checks.clone(), "controller", run));
        sleep(10 * STUCK).await;
        assert_eq!(state(&checks), Ok(()));
        stop.notify_one();
        task.await.unwrap();
        advance(10 * STUCK).await;
        assert_eq!(state(&checks), Ok(()), "a controller that has ended is not stuck");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_not_polled_is_stuck() {
        let checks = Checks::default();
        let mut run = pin!(watched(checks.clone(), "controller", std::future::pending()));
        // Polled once, and not again.
        assert!(futures_util::poll!(run.as_mut()).is_pending());
        advance(STUCK + BEAT).await;
        assert_eq!(state(&checks), Err("the controller has been stuck for more than 60 s".to_owned()));
        assert!(futures_util::poll!(run.as_mut()).is_pending());
        assert_eq!(state(&checks), Ok(()));
    }
}
