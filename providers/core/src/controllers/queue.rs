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

use self::metrics::Measures;
pub use self::metrics::QueueMetrics;
use crate::client::later;

/// How long a key waits after its n-th failure in a row.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first failure.
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

    /// Doubles with every failure; up to a fifth is taken off at random, so that keys that failed together do not
    /// come back together.
    pub fn delay(self, failures: u32) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled
            .min(self.longest)
            .mul_f64(rand::rng().random_range(0.8..=1.0))
    }
}

/// The queue. A key is waiting, ready or being worked on; adding it again never makes it two.
#[derive(Debug)]
pub struct WorkQueue<K> {
    backoff: Backoff,
    state: Arc<Mutex<State<K>>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    keys: HashMap<K, Entry>,
    ready: VecDeque<K>,
    waiting: BTreeMap<(Instant, u64), K>,
    sequence: u64,
    measures: Measures,
}

#[derive(Debug, Default)]
struct Entry {
    place: Place,
    failures: u32,
    /// Asked for again while a worker has it.
    again: bool,
    /// When it became ready, or a worker took it.
    since: Option<Instant>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Idle,
    Ready,
    Waiting((Instant, u64)),
    Working,
}

impl<K: Clone + Eq + Hash + Display> WorkQueue<K> {
    /// A queue under its name in `metrics`.
    pub fn new(backoff: Backoff, name: &'static str, metrics: &QueueMetrics) -> Self
    where
        K: Send + 'static,
    {
        let state = State {
            keys: HashMap::new(),
            ready: VecDeque::new(),
            waiting: BTreeMap::new(),
            sequence: 0,
            measures: metrics.of(name),
        };
        let state = Arc::new(Mutex::new(state));
        metrics.watch(name, &state);
        Self {
            backoff,
            state,
            changed: Notify::new(),
        }
    }

    /// Asks for the key to be worked on now, even if it is waiting.
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        state.make_ready(key);
        drop(state);
        self.changed.notify_one();
    }

    /// Asks for the key unless it is waiting for its next try after a failure.
    pub fn add_unless_waiting(&self, key: K) {
        let waiting = |entry: &Entry| matches!(entry.place, Place::Waiting(_));
        if !self.state.lock().keys.get(&key).is_some_and(waiting) {
            self.add(key);
        }
    }

    /// Asks for the key at `due`, unless it comes sooner for another reason.
    pub fn add_at(&self, key: K, due: Instant) {
        let mut state = self.state.lock();
        let place = state.keys.get(&key).map(|entry| &entry.place);
        match place {
            None | Some(Place::Idle) => state.make_wait(key, due),
            Some(Place::Waiting((sooner, _))) if *sooner <= due => return,
            Some(Place::Waiting(place)) => {
                let place = *place;
                state.waiting.remove(&place);
                state.make_wait(key, due);
            }
            Some(Place::Ready | Place::Working) => {
                state.make_ready(key);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The next key, as soon as there is one. Whoever gets it must call one of the `done` methods for it.
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
                    state.enter(key);
                }
                if let Some(key) = state.ready.pop_front() {
                    state.begin(&key);
                    if !state.ready.is_empty() {
                        // A notification is kept for one waiter only: hand it on.
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

    /// The work succeeded, or there is nothing more to do.
    pub fn done(&self, key: &K) {
        self.finish(key, None);
    }

    /// The work failed: try again after the key's backoff. Returns the wait.
    pub fn done_with_backoff(&self, key: &K) -> Duration {
        self.done_with_backoff_of_at_least(key, Duration::ZERO)
    }

    /// As [`Self::done_with_backoff`], with a longer wait if the cloud asks for one.
    pub fn done_with_backoff_of_at_least(&self, key: &K, least: Duration) -> Duration {
        let failures = {
            let mut state = self.state.lock();
            state.measures.retried();
            let entry = state.keys.entry(key.clone()).or_default();
            entry.failures = entry.failures.saturating_add(1);
            entry.failures
        };
        let delay = self.backoff.delay(failures).max(least);
        self.finish(key, Some(delay));
        delay
    }

    /// The work is not done, and that is no failure: come back at `due`, without another wait the next time. What was
    /// remembered of failures stays.
    pub fn done_until(&self, key: &K, due: Instant) {
        self.finish(key, Some(due.saturating_duration_since(Instant::now())));
    }

    /// How many keys are ready, and how many wait for their time.
    pub fn depth(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.ready.len(), state.waiting.len())
    }

    /// How many times in a row the key failed.
    pub fn failures(&self, key: &K) -> u32 {
        self.state.lock().keys.get(key).map_or(0, |entry| entry.failures)
    }

    /// How many keys are ready or waiting.
    #[cfg(test)]
    fn len(&self) -> usize {
        let state = self.state.lock();
        state.ready.len() + state.waiting.len()
    }

    fn finish(&self, key: &K, delay: Option<Duration>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(entry) = state.keys.get_mut(key) else {
            return;
        };
        let again = std::mem::take(&mut entry.again);
        entry.place = Place::Idle;
        if let Some(since) = entry.since.take() {
            state.measures.worked(since.elapsed());
        }
        match delay {
            _ if again => {
                if delay.is_none() {
                    entry.failures = 0;
                }
                state.make_ready(key.clone());
            }
            Some(delay) => state.make_wait(key.clone(), later(Instant::now(), delay)),
            None => {
                state.keys.remove(key);
            }
        }
        drop(guard);
        self.changed.notify_one();
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn make_ready(&mut self, key: K) {
        let entry = self.keys.entry(key.clone()).or_default();
        match entry.place {
            Place::Ready => return,
            Place::Working => {
                entry.again = true;
                return;
            }
            Place::Waiting(place) => {
                self.waiting.remove(&place);
            }
            Place::Idle => {}
        }
        self.enter(key);
    }

    /// Puts it at the end of those that are ready.
    fn enter(&mut self, key: K) {
        let entry = self.keys.entry(key.clone()).or_default();
        entry.place = Place::Ready;
        entry.since = Some(Instant::now());
        self.measures.added();
        self.ready.push_back(key);
    }

    /// A worker takes it.
    fn begin(&mut self, key: &K) {
        let entry = self.keys.entry(key.clone()).or_default();
        entry.place = Place::Working;
        if let Some(since) = entry.since.replace(Instant::now()) {
            self.measures.waited(since.elapsed());
        }
    }

    fn make_wait(&mut self, key: K, due: Instant) {
        self.sequence += 1;
        let place = (due, self.sequence);
        self.keys.entry(key.clone()).or_default().place = Place::Waiting(place);
        self.waiting.insert(place, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> WorkQueue<&'static str> {
        let backoff = Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(8),
        };
        WorkQueue::new(backoff, "test", &QueueMetrics::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_there_once_however_often_it_is_added() {
        let queue = queue();
        for _ in 0..3 {
            queue.add("a");
        }
        queue.add("b");
        assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_it_is_worked_on_comes_back_once() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.len(), 0, "nobody else gets it meanwhile");
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_the_cloud_asks_for_is_raised_to_the_backoff_and_cannot_overflow() {
        let queue = queue();
        queue.add("a");
        // Backoff alone would be 1, 2 and 4 s.
        for (least, expected) in [(0.0, 0.8..=1.0), (5.0, 5.0..=5.1), (1.0, 3.2..=4.0)] {
            assert_eq!(queue.next().await, "a");
            let least = Duration::from_secs_f64(least);
            let wait = queue.done_with_backoff_of_at_least(&"a", least).as_secs_f64();
            assert!(expected.contains(&wait), "{least:?}: {wait}");
        }
        assert_eq!(queue.next().await, "a");
        queue.done_with_backoff_of_at_least(&"a", Duration::MAX);
        assert_eq!(queue.depth(), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_longer_after_every_failure_up_to_the_longest() {
        let queue = queue();
        queue.add("a");
        for expected in [1.0, 2.0, 4.0, 8.0, 8.0] {
            assert_eq!(queue.next().await, "a");
            let began = Instant::now();
            queue.done_with_backoff(&"a");
            assert_eq!(queue.next().await, "a");
            let waited = began.elapsed().as_secs_f64();
            assert!(
                (0.79 * expected..=1.01 * expected).contains(&waited),
                "{waited} is not {expected}"
            );
            queue.add("a");
            queue.finish(&"a", Some(Duration::ZERO));
        }
        assert_eq!(queue.failures(&"a"), 5);
        queue.next().await;
        queue.done(&"a");
        assert_eq!(queue.failures(&"a"), 0, "success forgets");
    }

    #[tokio::test(start_paused = true)]
    async fn news_end_the_wait_only_if_asked_to() {
        let queue = queue();
        queue.add("a");
        queue.next().await;
        queue.done_with_backoff(&"a");
        queue.add_unless_waiting("a");
        assert!(
            tokio::time::timeout(Duration::from_millis(1), queue.next())
                .await
                .is_err()
        );
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        assert_eq!(queue.failures(&"a"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_no_failure_does_not_grow() {
        let queue = queue();
        queue.add("a");
        for _ in 0..3 {
            assert_eq!(queue.next().await, "a");
            let began = Instant::now();
            queue.done_until(&"a", began + Duration::from_secs(42));
            assert_eq!(queue.depth(), (0, 1));
            assert_eq!(queue.next().await, "a");
            assert_eq!(began.elapsed().as_secs(), 42);
            assert_eq!(queue.failures(&"a"), 0);
            queue.add("a");
            queue.done(&"a");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_times_the_sooner_one_counts() {
        let queue = queue();
        let now = Instant::now();
        for seconds in [9, 5, 7] {
            queue.add_at("a", now + Duration::from_secs(seconds));
        }
        assert_eq!(queue.next().await, "a");
        assert_eq!(now.elapsed().as_secs(), 5);
        // A time for a key that is being worked on: it comes back at once.
        queue.add_at("a", now + Duration::from_secs(60));
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
        assert_eq!(now.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn many_workers_share_it() {
        let backoff = Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(1),
        };
        let queue = Arc::new(WorkQueue::new(backoff, "test", &QueueMetrics::default()));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    for _ in 0..25 {
                        let key: String = queue.next().await;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        queue.done(&key);
                    }
                })
            })
            .collect();
        for i in 0..100 {
            queue.add(format!("key-{i}"));
        }
        for worker in workers {
            assert!(
                tokio::time::timeout(Duration::from_secs(5), worker)
                    .await
                    .is_ok_and(|joined| joined.is_ok())
            );
        }
        assert_eq!(queue.len(), 0);
    }
}
