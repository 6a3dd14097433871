//! Answers of the cloud, shared by all callers that read the same key.
//!
//! Two ways save a request: an answer that is young enough, and joining a load in progress (*single flight*).
//! Both obey the caller's [`Freshness`]. The age of an answer counts from the moment when its load *began*, and a load
//! that began too early is not joined, even if it has not ended.
//!
//! Invariants:
//! - A load runs in a task of its own: if one caller stops waiting, the others still get the answer.
//! - A load has the highest priority of its callers: a user who joins a load of background work does not wait for quota
//!   behind other background work.
//! - Errors go to the callers that wait for that load, and are never cached.
//! - An older answer never replaces a newer one, in any order of arrival.
//! - After an invalidation, an answer whose load began earlier is neither returned nor cached.

use std::{
    borrow::Borrow,
    collections::HashMap,
    fmt,
    hash::Hash,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    select,
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::Instrument;

use super::{
    later,
    metrics::ClientMetrics,
    urgency::{Urgency, raised, user_waits},
};
use crate::{Error, ErrorKind, Freshness, Priority, Result};

/// The limits of a [`Cache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// The metric label.
    pub name: &'static str,
    /// The most answers that are cached. If there are more, the oldest are removed. `None`: no limit.
    pub max_entries: Option<usize>,
    /// The age at which answers are removed, even without any callers. `None`: cached until they are replaced.
    pub max_age: Option<Duration>,
}

impl CacheConfig {
    /// Without limits.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            max_entries: None,
            max_age: None,
        }
    }

    /// With both limits.
    #[must_use]
    pub fn bounded(name: &'static str, max_entries: usize, max_age: Duration) -> Self {
        Self {
            name,
            max_entries: Some(max_entries),
            max_age: Some(max_age),
        }
    }
}

/// A cache with single flight; see the module. A clone is the same cache.
pub struct Cache<K, V>(Arc<Inner<K, V>>);

struct Inner<K, V> {
    config: CacheConfig,
    metrics: ClientMetrics,
    state: Mutex<CacheState<K, V>>,
}

struct CacheState<K, V> {
    slots: HashMap<K, CacheSlot<V>>,
    /// The number of slots with an entry.
    entries: usize,
    loads: u64,
    /// When something was last invalidated.
    invalidated: Option<Instant>,
    sweeping: bool,
}

/// The state of one key. Never empty: removed with its last part.
struct CacheSlot<V> {
    entry: Option<CachedValue<V>>,
    /// Loads in progress, in the order in which they began. Usually one.
    loads: Vec<Load<V>>,
}

struct CachedValue<V> {
    value: Arc<V>,
    /// When its load began, and a count that distinguishes loads of the same instant.
    began: (Instant, u64),
}

struct Load<V> {
    began: (Instant, u64),
    urgency: Urgency,
    ended: LoadReceiver<V>,
}

type LoadReceiver<V> = watch::Receiver<Option<Result<Arc<V>>>>;

impl<K, V> Cache<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig, metrics: &ClientMetrics) -> Self {
        let state = CacheState {
            slots: HashMap::new(),
            entries: 0,
            loads: 0,
            invalidated: None,
            sweeping: false,
        };
        Self(Arc::new(Inner {
            config,
            metrics: metrics.clone(),
            state: Mutex::new(state),
        }))
    }

    /// Returns the answer for `key`: a cached one that is fresh enough, else that of a load in progress that began late
    /// enough, else that of a new load. `load` is called only in the last case. `priority` is the caller's; `load` uses the same.
    ///
    /// # Errors
    /// The error of the load; `Unexpected` if it panicked.
    pub async fn get<F, Fut>(
        &self,
        key: K,
        freshness: Freshness,
        priority: Priority,
        load: F,
    ) -> Result<Arc<V>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V>> + Send + 'static,
    {
        let (mut ended, urgency) = match self.0.find(&key, freshness, priority) {
            Found::Value(value) => return Ok(value),
            Found::Join(ended, urgency) => (ended, urgency),
            Found::Begun(ended, urgency, mut running) => {
                let load = load();
                let task = async move {
                    let result = load.await.map(Arc::new);
                    running.finish(result);
                };
                tokio::spawn(urgency.clone().scope(task).in_current_span());
                (ended, urgency)
            }
        };
        let mut result = pin!(async {
            let result = ended.wait_for(Option::is_some).await.ok();
            result.and_then(|result| result.clone())
        });
        let result = select! {
            result = &mut result => result,
            // The caller is a load itself, and a user waits for it now.
            () = user_waits() => {
                urgency.raise(Priority::User);
                result.await
            }
        };
        result.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Unexpected,
                "the request ended without a result (it panicked, or is being shut down)",
            )
            .with_context("cache", self.0.config.name))
        })
    }

    /// The cached answer for `key` and when its load began, if it is fresh enough. Never loads, never waits.
    #[must_use]
    pub fn peek<Q>(&self, key: &Q, freshness: Freshness) -> Option<(Arc<V>, Instant)>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let state = self.0.state.lock();
        let entry = state.slots.get(key)?.entry.as_ref()?;
        self.0.usable(entry, freshness).then(|| (Arc::clone(&entry.value), entry.began.0))
    }

    /// Caches an answer that came another way, such as one item of a listing. `began`: when the request for it began.
    ///
    /// Does nothing if a newer answer is cached, or if anything was invalidated since `began`.
    pub fn insert(&self, key: K, value: V, began: Instant) {
        let mut state = self.0.state.lock();
        if state.invalidated.is_some_and(|invalidated| began < invalidated) {
            return;
        }
        state.loads += 1;
        let began = (began, state.loads);
        self.0.store(&mut state, key, Arc::new(value), began);
    }

    /// Removes the answer for `key`. A load in progress is no longer joined, and its answer is not cached.
    pub fn invalidate<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let mut state = self.0.state.lock();
        state.invalidated = Some(Instant::now());
        if state.slots.remove(key).is_some_and(|slot| slot.entry.is_some()) {
            state.entries -= 1;
        }
    }

    /// Removes all answers, as [`invalidate`](Self::invalidate) does.
    pub fn invalidate_all(&self) {
        self.retain(|_, _| false);
    }

    /// Removes the answers for which `keep` returns false, as [`invalidate`](Self::invalidate) does. `keep` gets `None` for the
    /// value of a key whose first load is in progress. It must not use this cache.
    pub fn retain(&self, mut keep: impl FnMut(&K, Option<&V>) -> bool) {
        let mut state = self.0.state.lock();
        state.invalidated = Some(Instant::now());
        state.slots.retain(|key, slot| keep(key, slot.entry.as_ref().map(|entry| &*entry.value)));
        state.recount();
    }

    /// The number of cached answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.state.lock().entries
    }

    /// Whether no answer is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K, V> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("config", &self.0.config).finish_non_exhaustive()
    }
}

/// The source of an answer.
enum Found<K: Eq + Hash, V> {
    Value(Arc<V>),
    Join(LoadReceiver<V>, Urgency),
    Begun(LoadReceiver<V>, Urgency, RunningLoad<K, V>),
}

impl<K, V> Inner<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn find(self: &Arc<Self>, key: &K, freshness: Freshness, priority: Priority) -> Found<K, V> {
        let priority = raised(priority);
        let mut state = self.state.lock();
        if let Some(slot) = state.slots.get(key) {
            if let Some(entry) = slot.entry.as_ref().filter(|entry| self.usable(entry, freshness)) {
                self.metrics.cache_request(self.config.name, "hit");
                return Found::Value(Arc::clone(&entry.value));
            }
            // The first sufficient load is the first to end.
            if let Some(load) = slot.loads.iter().find(|load| freshness.allows(load.began.0)) {
                self.metrics.cache_request(self.config.name, "join");
                load.urgency.raise(priority);
                return Found::Join(load.ended.clone(), load.urgency.clone());
            }
        }
        self.metrics.cache_request(self.config.name, "miss");
        state.loads += 1;
        let began = (Instant::now(), state.loads);
        let (sender, ended) = watch::channel(None);
        let urgency = Urgency::new(priority);
        let slot = state.slots.entry(key.clone()).or_insert_with(CacheSlot::empty);
        slot.loads.push(Load {
            began,
            urgency: urgency.clone(),
            ended: ended.clone(),
        });
        let running = RunningLoad {
            cache: Arc::downgrade(self),
            key: key.clone(),
            began,
            sender,
        };
        Found::Begun(ended, urgency, running)
    }

    fn usable(&self, entry: &CachedValue<V>, freshness: Freshness) -> bool {
        freshness.allows(entry.began.0)
            && self.config.max_age.is_none_or(|age| entry.began.0.elapsed() <= age)
    }

    fn store(self: &Arc<Self>, state: &mut CacheState<K, V>, key: K, value: Arc<V>, began: (Instant, u64)) {
        let slot = state.slots.entry(key).or_insert_with(CacheSlot::empty);
        if slot.entry.as_ref().is_some_and(|entry| entry.began > began) {
            return;
        }
        if slot.entry.replace(CachedValue { value, began }).is_none() {
            state.entries += 1;
        }
        if self.config.max_entries.is_some_and(|max| state.entries > max) {
            self.evict(state);
        }
        if self.config.max_age.is_some()
            && !state.sweeping
            && let Ok(runtime) = Handle::try_current()
        {
            state.sweeping = true;
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Drops the oldest answers. A tenth more than needed, so that it is rarely done.
    fn evict(&self, state: &mut CacheState<K, V>) {
        let max = self.config.max_entries.unwrap_or(usize::MAX);
        let mut began: Vec<_> =
            state.slots.values().filter_map(|slot| Some(slot.entry.as_ref()?.began)).collect();
        let excess = (began.len().saturating_sub(max) + max / 10).min(began.len());
        if excess == 0 {
            return;
        }
        let (_, last, _) = began.select_nth_unstable(excess - 1);
        let last = *last;
        state.drop_entries(|entry| entry.began <= last);
    }
}

impl<V> CacheSlot<V> {
    fn empty() -> Self {
        Self {
            entry: None,
            loads: Vec::new(),
        }
    }
}

impl<K: Eq + Hash, V> CacheState<K, V> {
    /// Drops entries, but no loads in progress.
    fn drop_entries(&mut self, old: impl Fn(&CachedValue<V>) -> bool) {
        self.slots.retain(|_, slot| {
            if slot.entry.as_ref().is_some_and(&old) {
                slot.entry = None;
            }
            slot.entry.is_some() || !slot.loads.is_empty()
        });
        self.recount();
        // Memory that a burst used is returned to the system.
        if self.slots.capacity() > 4 * self.slots.len() + 64 {
            self.slots.shrink_to_fit();
        }
    }

    fn recount(&mut self) {
        self.entries = self.slots.values().filter(|slot| slot.entry.is_some()).count();
    }
}

/// Frees entries that are too old; ends with the last one.
async fn sweep<K, V>(cache: Weak<Inner<K, V>>)
where
    K: Eq + Hash,
{
    loop {
        let next = {
            let Some(cache) = cache.upgrade() else {
                return;
            };
            let Some(max_age) = cache.config.max_age else {
                return;
            };
            let now = Instant::now();
            let mut state = cache.state.lock();
            state.drop_entries(|entry| now.saturating_duration_since(entry.began.0) > max_age);
            let oldest = state.slots.values().filter_map(|slot| Some(slot.entry.as_ref()?.began.0)).min();
            let Some(oldest) = oldest else {
                state.sweeping = false;
                return;
            };
            // Entries are removed together, at most a tenth of the age late.
            later(oldest, max_age.saturating_add((max_age / 10).max(Duration::from_millis(1))))
        };
        sleep_until(next).await;
    }
}

/// A load in progress. If it is dropped without a result (panic, shutdown), the next load can begin.
struct RunningLoad<K: Eq + Hash, V> {
    cache: Weak<Inner<K, V>>,
    key: K,
    began: (Instant, u64),
    sender: watch::Sender<Option<Result<Arc<V>>>>,
}

impl<K, V> RunningLoad<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn finish(&mut self, result: Result<Arc<V>>) {
        if let Some(cache) = self.cache.upgrade() {
            let mut state = cache.state.lock();
            let is_valid = state
                .slots
                .get(&self.key)
                .is_some_and(|slot| slot.loads.iter().any(|load| load.began == self.began));
            // Otherwise it was invalidated while it was in progress.
            if is_valid && let Ok(value) = &result {
                cache.store(&mut state, self.key.clone(), Arc::clone(value), self.began);
            }
            state.remove_load(&self.key, self.began);
        }
        self.sender.send_replace(Some(result));
    }
}

impl<K: Eq + Hash, V> Drop for RunningLoad<K, V> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.upgrade() {
            cache.state.lock().remove_load(&self.key, self.began);
        }
    }
}

impl<K: Eq + Hash, V> CacheState<K, V> {
    fn remove_load(&mut self, key: &K, began: (Instant, u64)) {
        let Some(slot) = self.slots.get_mut(key) else {
            return;
        };
        slot.loads.retain(|load| load.began != began);
        if slot.entry.is_none() && slot.loads.is_empty() {
            self.slots.remove(key);
        }
    }
}
