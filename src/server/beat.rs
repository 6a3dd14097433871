//! Signs of life of the controllers' tasks, for `/livez`.
//!
//! Only a restart helps a task that is stuck in a lock or a loop. A task that waits for the cloud, the quota, the API server or
//! another task is not stuck, however long it waits: a restart would lose what it has.
//!
//! | Task | Stuck if, for 60 s, |
//! |---|---|
//! | a controller as a whole | it is not polled |
//! | an event loop ([`Turns`]) | it makes no turn, although it makes one every 15 s without any event |
//! | a worker ([`Workers`]) | it computes without waiting for anything |

use std::{
    pin::pin,
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use futures_util::future::poll_fn;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::health::{CheckKind, Checks};

/// The interval of the heartbeat.
const BEAT: Duration = Duration::from_secs(5);
/// An event loop without events makes a turn after this time.
const TURN: Duration = Duration::from_secs(15);
/// A task without a sign of life for this long is stuck. No step of a task takes nearly as long.
const STUCK: Duration = Duration::from_secs(60);

/// Runs a controller, with a check of its name on `/livez`.
pub(crate) async fn watched(checks: Checks, name: &'static str, run: impl Future<Output = ()>) {
    // None: the controller has ended, and its caller handles that.
    let beat = Arc::new(Mutex::new(Some(Instant::now())));
    let seen = Arc::clone(&beat);
    checks.register_probe(name, CheckKind::Live, move || match *seen.lock() {
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

/// The turns of an event loop. Dropped when the loop ends.
#[derive(Debug)]
pub(crate) struct Turns(Arc<Mutex<Instant>>);

impl Turns {
    /// The turns of a loop that begins, with a check of this name.
    pub(crate) fn new(checks: &Checks, name: &'static str) -> Self {
        let last = Arc::new(Mutex::new(Instant::now()));
        let seen = Arc::downgrade(&last);
        checks.register_probe(name, CheckKind::Live, move || {
            let last = seen.upgrade().map(|last| *last.lock());
            match last {
                Some(at) if at.elapsed() > STUCK => {
                    Err("the event loop has made no turn for more than 60 s".to_owned())
                }
                _ => Ok(()),
            }
        });
        Self(last)
    }

    /// The loop begins a turn.
    pub(crate) fn begin(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns when a turn is due although nothing has happened.
    pub(crate) async fn due(&self) {
        sleep(TURN).await;
    }
}

/// When the computation of a worker began; `None` while it waits.
type Computing = Mutex<Option<Instant>>;

/// The workers of a controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workers(Arc<Mutex<Vec<Weak<Computing>>>>);

impl Workers {
    /// No workers yet, with a check of this name.
    pub(crate) fn new(checks: &Checks, name: &'static str) -> Self {
        let workers = Self::default();
        let seen = workers.clone();
        checks.register_probe(name, CheckKind::Live, move || {
            if seen.is_stuck() {
                return Err("a worker has been computing for more than 60 s".to_owned());
            }
            Ok(())
        });
        workers
    }

    fn is_stuck(&self) -> bool {
        let all = self.0.lock();
        let mut began = all.iter().filter_map(|worker| *worker.upgrade()?.lock());
        began.any(|began| began.elapsed() > STUCK)
    }

    /// Runs a worker. It computes while it is being polled.
    pub(crate) fn watch<T, F: Future<Output = T>>(&self, run: F) -> impl Future<Output = T> + use<T, F> {
        let computing = Arc::<Computing>::default();
        let mut workers = self.0.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&computing));
        async move {
            let mut run = pin!(run);
            poll_fn(|context| {
                *computing.lock() = Some(Instant::now());
                let polled: Poll<T> = run.as_mut().poll(context);
                *computing.lock() = None;
                polled
            })
            .await
        }
    }
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

    /// Lets time pass within one poll, as a loop does that never waits.
    async fn compute(duration: Duration) {
        let mut passes = pin!(advance(duration));
        poll_fn(|context| {
            // The first poll advances the clock.
            let _ = passes.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_computes_is_stuck_and_one_that_waits_is_not() {
        let checks = Checks::default();
        let workers = Workers::new(&checks, "controller");
        let waiting = tokio::spawn(workers.watch(std::future::pending::<()>()));
        sleep(30 * STUCK).await;
        assert_eq!(state(&checks), Ok(()));
        workers.watch(compute(STUCK)).await;
        assert_eq!(state(&checks), Ok(()), "it has ended");
        let seen = workers
            .watch(async {
                compute(STUCK + BEAT).await;
                state(&checks)
            })
            .await;
        assert_eq!(seen, Err("a worker has been computing for more than 60 s".to_owned()));
        assert_eq!(state(&checks), Ok(()));
        waiting.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_loop_without_turns_is_stuck() {
        let checks = Checks::default();
        let turns = Turns::new(&checks, "controller");
        for _ in 0..100 {
            turns.begin();
            turns.due().await;
        }
        assert_eq!(state(&checks), Ok(()));
        advance(STUCK).await;
        assert_eq!(state(&checks), Err("the event loop has made no turn for more than 60 s".to_owned()));
        turns.begin();
        assert_eq!(state(&checks), Ok(()));
        advance(2 * STUCK).await;
        drop(turns);
        assert_eq!(state(&checks), Ok(()), "a loop that has ended is not stuck");
    }
}
