//! A work queue for controllers: each key once, one worker per key, backoff per key.

mod metrics;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt::Display,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rand::Rng;
use tokio::{sync::Notify, time::Instant};

use self::metrics::QueueCounters;
pub use self::metrics::QueueMetrics;
use crate::client::later;

/// The wait of a key after consecutive failures.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl Backoff {
    /// The first and the longest wait in milliseconds.
    pub const fn millis(first: u64, longest: u64) -> Self {
        Self {
            first: Duration::from_millis(first),
            longest: Duration::from_millis(longest),
        }
    }

    /// The first and the longest wait in seconds.
    pub const fn seconds(first: u64, longest: u64) -> Self {
        Self::millis(first * 1000, longest * 1000)
    }

    /// As [`Self::exact_delay`]. Random jitter subtracts up to a fifth, so that keys that failed together are not retried
    /// together.
    pub fn delay(self, failures: u32) -> Duration {
        self.exact_delay(failures).mul_f64(jitter())
    }

    /// Doubles with every failure.
    pub fn exact_delay(self, failures: u32) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.longest)
    }
}

fn jitter() -> f64 {
    const JITTER: std::ops::RangeInclusive<f64> = 0.8..=1.0;
    #[cfg(feature = "testkit")]
    if let Some(jitter) = SEEDED.with_borrow_mut(|rng| Some(rng.as_mut()?.random_range(JITTER))) {
        return jitter;
    }
    rand::rng().random_range(JITTER)
}

#[cfg(feature = "testkit")]
thread_local! {
    static SEEDED: std::cell::RefCell<Option<rand::rngs::StdRng>> = const { std::cell::RefCell::new(None) };
}

/// Makes the jitter of waits on this thread follow from a seed, so that a history of a test can be played again.
#[cfg(feature = "testkit")]
pub fn seed_jitter(seed: u64) {
    SEEDED.set(Some(rand::SeedableRng::seed_from_u64(seed)));
}

/// The queue. A key is waiting, ready or being processed; adding it again does not duplicate it.
#[derive(Debug)]
pub struct WorkQueue<K> {
    backoff: Backoff,
    state: Arc<Mutex<WorkQueueState<K>>>,
    changed: Notify,
}

#[derive(Debug)]
struct WorkQueueState<K> {
    keys: HashMap<K, QueuedKey>,
    /// Ready before the others.
    first: VecDeque<K>,
    ready: VecDeque<K>,
    waiting: BTreeMap<(Instant, u64), K>,
    sequence: u64,
    counters: QueueCounters,
}

#[derive(Debug, Default)]
struct QueuedKey {
    phase: KeyPhase,
    failures: u32,
    /// Added again while a worker processes it.
    requeue: bool,
    /// Added with [`WorkQueue::add_first`] since the work last ended.
    first: bool,
    /// When it became ready, or when a worker started.
    since: Option<Instant>,
    /// When it was due after the last work that was not complete.
    retry: Option<Instant>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum KeyPhase {
    #[default]
    Idle,
    Ready,
    Waiting((Instant, u64)),
    Working,
}

impl<K: Clone + Eq + Hash + Display> WorkQueue<K> {
    /// A queue with its name in `metrics`.
    pub fn new(backoff: Backoff, name: &'static str, metrics: &QueueMetrics) -> Self
    where
        K: Send + 'static,
    {
        let state = WorkQueueState {
            keys: HashMap::new(),
            first: VecDeque::new(),
            ready: VecDeque::new(),
            waiting: BTreeMap::new(),
            sequence: 0,
            counters: metrics.counters(name),
        };
        let state = Arc::new(Mutex::new(state));
        metrics.register_queue(name, &state);
        Self {
            backoff,
            state,
            changed: Notify::new(),
        }
    }

    /// Makes the key ready now, even if it is waiting.
    pub fn add(&self, key: K) {
        self.state.lock().make_ready(key, false);
        self.changed.notify_one();
    }

    /// As [`Self::add`], before all keys that were not added so: a user waits for it.
    pub fn add_first(&self, key: K) {
        self.state.lock().make_ready(key, true);
        self.changed.notify_one();
    }

    /// Makes the key ready unless it is waiting for a retry after a failure.
    pub fn add_unless_waiting(&self, key: K) {
        let is_waiting = match self.state.lock().keys.get(&key) {
            Some(known) => matches!(known.phase, KeyPhase::Waiting(_)),
            None => false,
        };
        if !is_waiting {
            self.add(key);
        }
    }

    /// Makes the key ready at `due`, unless it is ready sooner for another reason.
    pub fn add_at(&self, key: K, due: Instant) {
        let mut state = self.state.lock();
        let phase = state.keys.get(&key).map(|entry| &entry.phase);
        match phase {
            None | Some(KeyPhase::Idle) => state.set_waiting(key, due),
            Some(KeyPhase::Waiting((sooner, _))) if *sooner <= due => return,
            Some(KeyPhase::Waiting(slot)) => {
                let slot = *slot;
                state.waiting.remove(&slot);
                state.set_waiting(key, due);
            }
            Some(KeyPhase::Ready | KeyPhase::Working) => state.make_ready(key, false),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for the next ready key. The caller must call one of the `done` methods for it.
    pub async fn next(&self) -> K {
        loop {
            let changed = self.changed.notified();
            let due = {
                let mut state = self.state.lock();
                let now = Instant::now();
                while let Some(first) = state.waiting.first_entry() {
                    if first.key().0 > now {
                        break;
                    }
                    let key = first.remove();
                    state.push_ready(key);
                }
                if let Some(key) = state.pop_ready() {
                    state.begin(&key);
                    if state.ready() > 0 {
                        // `Notify` stores one permit only: wake the next waiter.
                        self.changed.notify_one();
                    }
                    return key;
                }
                state.waiting.first_key_value().map(|((due, _), _)| *due)
            };
            match due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => changed.await,
            }
        }
    }

    /// The work succeeded, or no more work is needed.
    pub fn done(&self, key: &K) {
        self.finish(key, None);
    }

    /// The work failed: retries after the key's backoff. Returns the wait.
    pub fn done_with_backoff(&self, key: &K) -> Duration {
        self.done_with_backoff_of_at_least(key, Duration::ZERO)
    }

    /// As [`Self::done_with_backoff`], with a longer wait if the cloud requires one.
    pub fn done_with_backoff_of_at_least(&self, key: &K, least: Duration) -> Duration {
        let failures = {
            let mut state = self.state.lock();
            state.counters.retried();
            let entry = state.keys.entry(key.clone()).or_default();
            // A user may have added it meanwhile.
            entry.first &= entry.requeue;
            entry.failures = entry.failures.saturating_add(1);
            entry.failures
        };
        let delay = self.backoff.delay(failures).max(least);
        self.finish(key, Some(delay));
        delay
    }

    /// The work was done before the retry of a failed key was due, and left it as it was: the key is ready when the retry is
    /// due.
    pub fn done_until_retry(&self, key: &K) {
        let retry = {
            let mut state = self.state.lock();
            let entry = state.keys.entry(key.clone()).or_default();
            entry.first &= entry.requeue;
            entry.retry
        };
        match retry {
            Some(due) => self.done_until(key, due),
            None => {
                self.done_with_backoff(key);
            }
        }
    }

    /// The work is not complete, without a failure: makes the key ready at `due`. Keeps the number of failures, and the place
    /// before others.
    pub fn done_until(&self, key: &K, due: Instant) {
        self.finish(key, Some(due.saturating_duration_since(Instant::now())));
    }

    /// As [`Self::done_until`], under another key.
    pub fn renamed_until(&self, key: &K, new: K, due: Instant) {
        let mut state = self.state.lock();
        let first = state.keys.get(key).is_some_and(|entry| entry.first);
        state.keys.entry(new.clone()).or_default().first |= first;
        drop(state);
        self.done(key);
        self.add_at(new, due);
    }

    /// How many keys are ready, and how many are waiting.
    pub fn depth(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.ready(), state.waiting.len())
    }

    /// The number of consecutive failures of the key.
    pub fn failures(&self, key: &K) -> u32 {
        self.state.lock().keys.get(key).map_or(0, |entry| entry.failures)
    }

    /// How many keys are ready or waiting.
    #[cfg(test)]
    fn len(&self) -> usize {
        let state = self.state.lock();
        state.ready() + state.waiting.len()
    }

    fn finish(&self, key: &K, delay: Option<Duration>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(entry) = state.keys.get_mut(key) else {
            return;
        };
        let requeue = std::mem::take(&mut entry.requeue);
        entry.phase = KeyPhase::Idle;
        if let Some(since) = entry.since.take() {
            state.counters.worked(since.elapsed());
        }
        let due = delay.map(|delay| later(Instant::now(), delay));
        entry.retry = due;
        match due {
            _ if requeue => {
                if due.is_none() {
                    entry.failures = 0;
                }
                state.make_ready(key.clone(), false);
            }
            Some(due) => state.set_waiting(key.clone(), due),
            None => {
                state.keys.remove(key);
            }
        }
        drop(guard);
        self.changed.notify_one();
    }
}

impl<K> WorkQueueState<K> {
    /// How many keys are ready.
    fn ready(&self) -> usize {
        self.first.len() + self.ready.len()
    }
}

impl<K: Clone + Eq + Hash> WorkQueueState<K> {
    fn make_ready(&mut self, key: K, first: bool) {
        let entry = self.keys.entry(key.clone()).or_default();
        entry.first |= first;
        match entry.phase {
            KeyPhase::Ready if first => {
                let at = self.ready.iter().position(|ready| *ready == key);
                let overtakes = at.and_then(|at| self.ready.remove(at));
                return self.first.extend(overtakes);
            }
            KeyPhase::Ready => return,
            KeyPhase::Working => {
                entry.requeue = true;
                return;
            }
            KeyPhase::Waiting(slot) => {
                self.waiting.remove(&slot);
            }
            KeyPhase::Idle => {}
        }
        self.push_ready(key);
    }

    /// Appends the key to the ready ones.
    fn push_ready(&mut self, key: K) {
        let entry = self.keys.entry(key.clone()).or_default();
        entry.phase = KeyPhase::Ready;
        entry.since = Some(Instant::now());
        self.counters.added();
        let list = if entry.first {
            &mut self.first
        } else {
            &mut self.ready
        };
        list.push_back(key);
    }

    fn pop_ready(&mut self) -> Option<K> {
        self.first.pop_front().or_else(|| self.ready.pop_front())
    }

    /// A worker starts to process the key.
    fn begin(&mut self, key: &K) {
        let entry = self.keys.entry(key.clone()).or_default();
        entry.phase = KeyPhase::Working;
        if let Some(since) = entry.since.replace(Instant::now()) {
            self.counters.waited(since.elapsed());
        }
    }

    fn set_waiting(&mut self, key: K, due: Instant) {
        self.sequence += 1;
        let slot = (due, self.sequence);
        self.keys.entry(key.clone()).or_default().phase = KeyPhase::Waiting(slot);
        self.waiting.insert(slot, key);
    }
}

#[cfg(test)]
mod tests;
