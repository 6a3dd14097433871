//! A shared listing of one kind of objects, indexed, and corrected by this process's own writes.
//!
//! A listing is read once and served for as long as the caller's [`Freshness`] allows. A write does not invalidate it: the
//! object in the write's answer replaces the listed one ([`IndexedCache::insert`], [`IndexedCache::remove`]). If a write's
//! answer does not contain the object, only the objects with one key are read again ([`IndexedCache::invalidate`]). A
//! correction is dropped as soon as a listing arrives whose request began after it. An object that this process created,
//! and of which it knows all children ([`IndexedCache::insert_complete`]), needs no listing at all.
//!
//! ```text
//!     the listing, read at 10:00:00   a  b  c  d
//!     corrections since then          a'    -     e      (a updated at :03, c deleted at :05, e created at :07)
//!     what a caller reads             a' b     d  e
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Cache, CacheConfig, ClientMetrics};
use crate::{Freshness, Priority, Result};

/// Any age.
const ANY_AGE: Freshness = Freshness::AtMost(Duration::MAX);

/// An object of the cloud that can be looked up by its ID, its parents or its name.
pub trait Indexed: Send + Sync + 'static {
    /// The ID. Unique among the objects of its kind.
    fn id(&self) -> &str;

    /// The keys beside the ID by which it can be looked up. Several objects may have the same key.
    fn index_keys(&self) -> Vec<&str>;
}

/// The objects of one kind at one moment.
#[derive(Debug)]
pub struct Listing<T> {
    began: Instant,
    by_id: BTreeMap<String, Arc<T>>,
    by_key: HashMap<String, Vec<String>>,
    /// The objects that differ from the listing as read, and when that was learned.
    corrected: HashMap<String, Instant>,
}

impl<T> Clone for Listing<T> {
    fn clone(&self) -> Self {
        Self {
            began: self.began,
            by_id: self.by_id.clone(),
            by_key: self.by_key.clone(),
            corrected: self.corrected.clone(),
        }
    }
}

impl<T: Indexed> Listing<T> {
    fn new(began: Instant, objects: Vec<T>) -> Self {
        let mut listing = Self {
            began,
            by_id: BTreeMap::new(),
            by_key: HashMap::new(),
            corrected: HashMap::new(),
        };
        for object in objects {
            listing.insert(Arc::new(object));
        }
        listing
    }

    fn insert(&mut self, object: Arc<T>) {
        self.remove(object.id());
        for key in object.index_keys() {
            let ids = self.by_key.entry(key.to_owned()).or_default();
            ids.push(object.id().to_owned());
        }
        self.by_id.insert(object.id().to_owned(), object);
    }

    fn remove(&mut self, id: &str) {
        let Some(object) = self.by_id.remove(id) else {
            return;
        };
        for key in object.index_keys() {
            if let Some(ids) = self.by_key.get_mut(key) {
                ids.retain(|known| known != id);
            }
        }
    }

    /// The object with this ID.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<&Arc<T>> {
        self.by_id.get(id)
    }

    /// The objects with this key.
    pub fn by_key(&self, key: &str) -> impl Iterator<Item = &Arc<T>> {
        let ids = self.by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        ids.iter().filter_map(|id| self.by_id.get(id))
    }

    /// All objects, sorted by ID.
    pub fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_id.values()
    }

    /// The number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether the listing has no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The time as of which the listing is correct for this object.
    #[must_use]
    pub fn as_of(&self, id: &str) -> Instant {
        self.corrected.get(id).copied().unwrap_or(self.began)
    }
}

/// A listing of these objects as of now.
impl<T: Indexed> FromIterator<T> for Listing<T> {
    fn from_iter<I: IntoIterator<Item = T>>(objects: I) -> Self {
        Self::new(Instant::now(), objects.into_iter().collect())
    }
}

/// The changes since the last listing.
struct Corrections<T> {
    /// By ID: the object, or `None` if it was deleted, and when that was learned.
    objects: HashMap<String, (Instant, Option<Arc<T>>)>,
    /// By key: when the objects with this key last changed in an unknown way.
    invalidated: HashMap<String, Instant>,
    /// By key: since when `objects` contains every object with this key.
    complete: HashMap<String, Instant>,
    /// The last listing as read, and the same with the corrections, until there is a new correction.
    merged: Option<[Arc<Listing<T>>; 2]>,
}

impl<T> Corrections<T> {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.invalidated.is_empty() && self.complete.is_empty()
    }

    /// Drops all corrections that a listing from `began` includes.
    fn drop_older(&mut self, began: Instant) {
        self.objects.retain(|_, (learned, _)| *learned >= began);
        self.invalidated.retain(|_, invalidated| *invalidated >= began);
        self.complete.retain(|_, complete| *complete >= began);
    }
}

impl<T: Indexed> Corrections<T> {
    fn put(&mut self, id: String, object: Option<Arc<T>>) {
        self.merged = None;
        self.objects.insert(id, (Instant::now(), object));
    }

    /// Applies the corrections since the listing.
    fn apply(&self, listing: &mut Listing<T>) {
        for (id, (learned, object)) in &self.objects {
            if *learned < listing.began {
                continue;
            }
            listing.corrected.insert(id.clone(), *learned);
            match object {
                Some(object) => listing.insert(Arc::clone(object)),
                None => listing.remove(id),
            }
        }
    }
}

/// The objects of one kind; see the module.
pub struct IndexedCache<T> {
    listings: Cache<(), Listing<T>>,
    corrections: Mutex<Corrections<T>>,
}

impl<T> fmt::Debug for IndexedCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexedCache").finish_non_exhaustive()
    }
}

impl<T: Indexed> IndexedCache<T> {
    /// An empty cache. `name`: its label in metrics.
    #[must_use]
    pub fn new(name: &'static str, metrics: &ClientMetrics) -> Self {
        Self {
            listings: Cache::new(CacheConfig::new(name), metrics),
            corrections: Mutex::new(Corrections {
                objects: HashMap::new(),
                invalidated: HashMap::new(),
                complete: HashMap::new(),
                merged: None,
            }),
        }
    }

    /// The listing with the corrections. It is correct for the objects with `key`; without a key, for all whose changes
    /// are known. `load` reads the listing and is called only if no listing is fresh enough.
    ///
    /// # Errors
    /// The error of `load`.
    pub async fn get<F, Fut>(
        &self,
        key: Option<&str>,
        freshness: Freshness,
        priority: Priority,
        load: F,
    ) -> Result<Arc<Listing<T>>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Vec<T>>> + Send + 'static,
    {
        let freshness = self.not_invalidated(key, freshness);
        if let Some(complete) = key.and_then(|key| self.complete(key, freshness)) {
            return Ok(complete);
        }
        let listing = self
            .listings
            .get((), freshness, priority, || {
                let load = load();
                async move {
                    let began = Instant::now();
                    Ok(Listing::new(began, load.await?))
                }
            })
            .await?;
        Ok(self.corrected(listing))
    }

    /// The number of objects in the last listing; `None` without a listing.
    #[must_use]
    pub fn last_len(&self) -> Option<usize> {
        self.last().map(|listing| listing.len())
    }

    fn last(&self) -> Option<Arc<Listing<T>>> {
        self.listings.peek(&(), ANY_AGE).map(|(listing, _)| listing)
    }

    /// Excludes listings from before the last unknown change of the objects with this key.
    fn not_invalidated(&self, key: Option<&str>, freshness: Freshness) -> Freshness {
        let Some(invalidated) = key.and_then(|key| self.corrections.lock().invalidated.get(key).copied())
        else {
            return freshness;
        };
        let oldest = match freshness {
            Freshness::After(instant) => Some(instant),
            Freshness::AtMost(age) => Instant::now().checked_sub(age),
        };
        Freshness::After(oldest.map_or(invalidated, |oldest| oldest.max(invalidated)))
    }

    /// The objects with this key, if all are known without a listing and no listing is fresh enough.
    fn complete(&self, key: &str, freshness: Freshness) -> Option<Arc<Listing<T>>> {
        let corrections = self.corrections.lock();
        let since = *corrections.complete.get(key)?;
        if !freshness.allows(since) || self.listings.peek(&(), freshness).is_some() {
            return None;
        }
        let mut listing = Listing::new(since, Vec::new());
        corrections.apply(&mut listing);
        Some(Arc::new(listing))
    }

    fn corrected(&self, mut listing: Arc<Listing<T>>) -> Arc<Listing<T>> {
        let mut corrections = self.corrections.lock();
        if let Some((newest, began)) = self.listings.peek(&(), ANY_AGE) {
            corrections.drop_older(began.max(newest.began));
            // Another caller read a newer one meanwhile, which has what the dropped corrections said.
            if newest.began > listing.began {
                listing = newest;
            }
        }
        if corrections.is_empty() {
            return listing;
        }
        if let Some([base, merged]) = &corrections.merged
            && Arc::ptr_eq(base, &listing)
        {
            return Arc::clone(merged);
        }
        let mut learned = corrections.objects.values().map(|(learned, _)| *learned);
        if learned.all(|learned| learned < listing.began) {
            corrections.merged = None;
            return listing;
        }
        let mut corrected = (*listing).clone();
        corrections.apply(&mut corrected);
        let corrected = Arc::new(corrected);
        corrections.merged = Some([listing, Arc::clone(&corrected)]);
        corrected
    }

    /// Records that the object with the index key `key` was created just now, and that `children` are all objects with this
    /// key.
    pub fn insert_complete(&self, key: &str, children: impl IntoIterator<Item = T>) {
        let mut corrections = self.corrections.lock();
        corrections.complete.insert(key.to_owned(), Instant::now());
        for child in children {
            corrections.put(child.id().to_owned(), Some(Arc::new(child)));
        }
    }

    /// Records an object as it is now: the answer to a create, an update or a read of it alone.
    pub fn insert(&self, object: T) {
        let id = object.id().to_owned();
        self.corrections.lock().put(id, Some(Arc::new(object)));
    }

    /// Records that an object was deleted just now.
    pub fn remove(&self, id: &str) {
        self.corrections.lock().put(id.to_owned(), None);
    }

    /// Records that the objects with this key changed just now in an unknown way: the write's answer was lost or does not
    /// contain them.
    pub fn invalidate(&self, key: &str) {
        let mut corrections = self.corrections.lock();
        corrections.complete.remove(key);
        corrections.invalidated.insert(key.to_owned(), Instant::now());
    }

    /// Records that a part of an object changed just now. Does nothing if the object is not known.
    pub fn update(&self, id: &str, change: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        let last = self.last();
        let mut corrections = self.corrections.lock();
        let known = match corrections.objects.get(id) {
            Some((_, object)) => object.clone(),
            None => last.and_then(|listing| listing.by_id(id).cloned()),
        };
        if let Some(known) = known {
            let mut object = (*known).clone();
            change(&mut object);
            corrections.put(id.to_owned(), Some(Arc::new(object)));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// ID, key, value.
    #[derive(Clone, Debug, PartialEq)]
    struct Object(&'static str, &'static str, u32);

    impl Indexed for Object {
        fn id(&self) -> &str {
            self.0
        }

        fn index_keys(&self) -> Vec<&str> {
            vec![self.1]
        }
    }

    struct Subject {
        cache: IndexedCache<Object>,
        loads: AtomicUsize,
    }

    impl Subject {
        fn new() -> Self {
            Self {
                cache: IndexedCache::new("test", &ClientMetrics::default()),
                loads: AtomicUsize::new(0),
            }
        }

        /// The IDs and values of the objects with the key, and the number of requests to the cloud.
        async fn read(&self, key: &str, age: u64, cloud: &[Object]) -> (Vec<(&'static str, u32)>, usize) {
            let freshness = Freshness::AtMost(Duration::from_secs(age));
            let load = || {
                self.loads.fetch_add(1, Ordering::Relaxed);
                let objects = cloud.to_vec();
                async move { Ok(objects) }
            };
            let listing = self.cache.get(Some(key), freshness, Priority::User, load).await.unwrap();
            let mut found: Vec<_> = listing.by_key(key).map(|object| (object.0, object.2)).collect();
            found.sort_unstable();
            (found, self.loads.load(Ordering::Relaxed))
        }
    }

    const A: Object = Object("a", "x", 1);
    const B: Object = Object("b", "x", 1);
    const C: Object = Object("c", "y", 1);

    #[tokio::test(start_paused = true)]
    async fn writes_correct_a_listing_until_a_later_one_arrives() {
        let subject = Subject::new();
        let cloud = [A, B, C];
        assert_eq!(subject.read("x", 60, &cloud).await, (vec![("a", 1), ("b", 1)], 1));
        tokio::time::advance(Duration::from_secs(1)).await;
        subject.cache.insert(Object("a", "x", 2));
        subject.cache.remove("b");
        subject.cache.insert(Object("e", "x", 5));
        subject.cache.update("c", |object| object.1 = "x");
        let corrected = (vec![("a", 2), ("c", 1), ("e", 5)], 1);
        assert_eq!(subject.read("x", 60, &cloud).await, corrected);
        assert_eq!(subject.read("y", 60, &cloud).await, (vec![], 1));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(subject.read("x", 60, &cloud).await, (vec![("a", 1), ("b", 1)], 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_takes_long_has_what_a_later_one_shows() {
        let subject = Subject::new();
        let seconds = |count| tokio::time::sleep(Duration::from_secs(count));
        let list = async |objects: &[Object], took| {
            let objects = objects.to_vec();
            let load = move || async move {
                seconds(took).await;
                Ok(objects)
            };
            let freshness = Freshness::After(Instant::now());
            let listing = subject.cache.get(Some("x"), freshness, Priority::User, load);
            listing.await.unwrap().by_key("x").count()
        };
        let later = async {
            seconds(1).await;
            subject.cache.insert(B);
            seconds(1).await;
            list(&[A, B], 2).await
        };
        assert_eq!(tokio::join!(list(&[A], 9), later), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_change_costs_one_read_and_only_for_its_key() {
        let subject = Subject::new();
        subject.read("x", 60, &[A, C]).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        subject.cache.invalidate("x");
        assert_eq!(subject.read("y", 60, &[]).await, (vec![("c", 1)], 1));
        assert_eq!(subject.read("x", 60, &[A, B]).await, (vec![("a", 1), ("b", 1)], 2));
        assert_eq!(subject.read("x", 60, &[]).await.1, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_was_created_here_needs_no_listing() {
        let subject = Subject::new();
        subject.cache.insert_complete("x", [A]);
        assert_eq!(subject.read("x", 60, &[]).await, (vec![("a", 1)], 0));
        subject.cache.invalidate("x");
        assert_eq!(subject.read("x", 60, &[B]).await.1, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_not_known_is_not_updated() {
        let subject = Subject::new();
        subject.read("x", 60, &[A]).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        subject.cache.remove("a");
        subject.cache.update("a", |object| object.2 = 9);
        subject.cache.update("z", |object| object.2 = 9);
        assert_eq!(subject.read("x", 60, &[]).await, (vec![], 1));
        assert_eq!(subject.cache.last_len(), Some(1));
    }
}
