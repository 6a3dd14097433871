//! One kind of things in the project, as one listing that everybody shares.
//!
//! A listing is read once and believed for as long as the asker allows. Our own writes do not make it worthless: what a
//! write's answer says about a thing is put over the listing ([`Shelf::learned`], [`Shelf::forgotten`]), and of what it
//! does not say only the things of one owner are read again ([`Shelf::touched`]). All of that is dropped as soon as a
//! listing arrives that began after it. What we made ourselves and saw all of ([`Shelf::made`]) needs no listing at all.
//!
//! ```text
//!     the listing, read at 10:00:00   a  b  c  d
//!     what was learned since          a'    -     e      (a changed at :03, c deleted at :05, e made at :07)
//!     what the asker sees             a' b     d  e
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use ccm_core::{
    Freshness, Result,
    client::{Cache, CacheConfig, ClientMetrics},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::client::listing::Resource;

/// A thing that is found by what it belongs to, or by its name.
pub(crate) trait Shelved: Resource {
    /// The keys that it is found by beside its id.
    fn keys(&self) -> Vec<&str>;
}

/// The things of one kind at one moment.
#[derive(Debug)]
pub(crate) struct Listing<T> {
    began: Instant,
    by_id: BTreeMap<String, Arc<T>>,
    by_key: HashMap<String, Vec<String>>,
    /// What is put over the listing, and when that was learned.
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

impl<T: Shelved> Listing<T> {
    fn new(began: Instant, things: Vec<T>) -> Self {
        let mut listing = Self {
            began,
            by_id: BTreeMap::new(),
            by_key: HashMap::new(),
            corrected: HashMap::new(),
        };
        for thing in things {
            listing.put(Arc::new(thing));
        }
        listing
    }

    fn put(&mut self, thing: Arc<T>) {
        self.remove(thing.id());
        for key in thing.keys() {
            self.by_key
                .entry(key.to_owned())
                .or_default()
                .push(thing.id().to_owned());
        }
        self.by_id.insert(thing.id().to_owned(), thing);
    }

    fn remove(&mut self, id: &str) {
        let Some(thing) = self.by_id.remove(id) else {
            return;
        };
        for key in thing.keys() {
            if let Some(ids) = self.by_key.get_mut(key) {
                ids.retain(|known| known != id);
            }
        }
    }

    /// The thing with this id.
    pub(crate) fn by_id(&self, id: &str) -> Option<&Arc<T>> {
        self.by_id.get(id)
    }

    /// The things with this key.
    pub(crate) fn by_key(&self, key: &str) -> impl Iterator<Item = &Arc<T>> {
        let ids = self.by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        ids.iter().filter_map(|id| self.by_id.get(id))
    }

    /// All of them, by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_id.values()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// As of when what it says about this thing is true.
    pub(crate) fn as_of(&self, id: &str) -> Instant {
        self.corrected.get(id).copied().unwrap_or(self.began)
    }
}

/// What we know better than the listing.
struct Changes<T> {
    /// By id: what became of a thing, and when we learned it.
    things: HashMap<String, (Instant, Option<Arc<T>>)>,
    /// By key: when something that we do not know happened to the things with it.
    touched: HashMap<String, Instant>,
    /// By key: since when everything with it is among `things`, because we made it.
    known: HashMap<String, Instant>,
    /// The last listing, and the same with all of this put over it, until something changes.
    merged: Option<Merged<T>>,
}

/// A listing, and the same with what is known better.
type Merged<T> = (Arc<Listing<T>>, Arc<Listing<T>>);

impl<T> Changes<T> {
    fn is_empty(&self) -> bool {
        self.things.is_empty() && self.touched.is_empty() && self.known.is_empty()
    }
}

impl<T: Shelved> Changes<T> {
    fn put(&mut self, id: String, thing: Option<Arc<T>>) {
        self.merged = None;
        self.things.insert(id, (Instant::now(), thing));
    }

    /// Puts what was learned since over a listing.
    fn correct(&self, listing: &mut Listing<T>) {
        let later = self
            .things
            .iter()
            .filter(|(_, (learned, _))| *learned >= listing.began);
        let later: Vec<_> = later.collect();
        for (id, (learned, thing)) in later {
            listing.corrected.insert(id.clone(), *learned);
            match thing {
                Some(thing) => listing.put(Arc::clone(thing)),
                None => listing.remove(id),
            }
        }
    }
}

/// The things of one kind; see the module.
pub(crate) struct Shelf<T> {
    listings: Cache<(), Listing<T>>,
    changes: Mutex<Changes<T>>,
}

impl<T> fmt::Debug for Shelf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").finish_non_exhaustive()
    }
}

impl<T: Shelved> Shelf<T> {
    /// Nothing was read yet.
    pub(super) fn new(name: &'static str, metrics: &ClientMetrics) -> Self {
        Self {
            listings: Cache::new(CacheConfig::new(name), metrics),
            changes: Mutex::new(Changes {
                things: HashMap::new(),
                touched: HashMap::new(),
                known: HashMap::new(),
                merged: None,
            }),
        }
    }

    /// The listing, with what we know better. `key`: the things that matter to the asker; `None` for all of which we can
    /// know anything.
    pub(super) async fn read<F, Fut>(
        &self,
        key: Option<&str>,
        freshness: Freshness,
        load: F,
    ) -> Result<Arc<Listing<T>>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Vec<T>>> + Send + 'static,
    {
        let freshness = self.tightened(key, freshness);
        if let Some(known) = key.and_then(|key| self.own(key, freshness)) {
            return Ok(known);
        }
        let listing = self
            .listings
            .get((), freshness, || {
                let load = load();
                async move {
                    let began = Instant::now();
                    Ok(Listing::new(began, load.await?))
                }
            })
            .await?;
        Ok(self.corrected(listing))
    }

    /// How many things the last listing had; `None` if there was none.
    pub(super) fn len(&self) -> Option<usize> {
        let anything = Freshness::AtMost(std::time::Duration::MAX);
        self.listings
            .peek(&(), anything)
            .map(|(listing, _)| listing.len())
    }

    /// Nothing from before the last change that we do not know.
    fn tightened(&self, key: Option<&str>, freshness: Freshness) -> Freshness {
        let Some(touched) = key.and_then(|key| self.changes.lock().touched.get(key).copied()) else {
            return freshness;
        };
        match freshness {
            Freshness::After(instant) => Freshness::After(instant.max(touched)),
            // An answer must be young enough, and from after the change.
            Freshness::AtMost(age) => match Instant::now().checked_sub(age) {
                Some(oldest) => Freshness::After(oldest.max(touched)),
                None => Freshness::After(touched),
            },
        }
    }

    /// Everything with this key, if we made all of it and no listing is new enough.
    fn own(&self, key: &str, freshness: Freshness) -> Option<Arc<Listing<T>>> {
        let changes = self.changes.lock();
        let since = *changes.known.get(key)?;
        if !freshness.allows(since) || self.listings.peek(&(), freshness).is_some() {
            return None;
        }
        let mut listing = Listing::new(since, Vec::new());
        changes.correct(&mut listing);
        Some(Arc::new(listing))
    }

    fn corrected(&self, listing: Arc<Listing<T>>) -> Arc<Listing<T>> {
        let mut changes = self.changes.lock();
        if changes.is_empty() {
            return listing;
        }
        // Only what the newest listing has for sure; this one may be older than one that somebody else got.
        if let Some((newest, began)) = self
            .listings
            .peek(&(), Freshness::AtMost(std::time::Duration::MAX))
        {
            let began = began.max(newest.began);
            changes.things.retain(|_, (learned, _)| *learned >= began);
            changes.touched.retain(|_, touched| *touched >= began);
            changes.known.retain(|_, known| *known >= began);
        }
        if let Some((base, merged)) = &changes.merged
            && Arc::ptr_eq(base, &listing)
        {
            return Arc::clone(merged);
        }
        if changes
            .things
            .values()
            .all(|(learned, _)| *learned < listing.began)
        {
            changes.merged = None;
            return listing;
        }
        let mut corrected = (*listing).clone();
        changes.correct(&mut corrected);
        let corrected = Arc::new(corrected);
        changes.merged = Some((listing, Arc::clone(&corrected)));
        corrected
    }

    /// We just made what this key stands for, and these are all the things that belong to it.
    pub(crate) fn made(&self, key: &str, things: impl IntoIterator<Item = T>) {
        let mut changes = self.changes.lock();
        changes.known.insert(key.to_owned(), Instant::now());
        for thing in things {
            changes.put(thing.id().to_owned(), Some(Arc::new(thing)));
        }
    }

    /// What became of a thing, or that it was made: the answer to a write or a read of it alone, which ended now.
    pub(crate) fn learned(&self, thing: T) {
        let id = thing.id().to_owned();
        self.changes.lock().put(id, Some(Arc::new(thing)));
    }

    /// A thing is gone: a delete of it ended now.
    pub(crate) fn forgotten(&self, id: &str) {
        self.changes.lock().put(id.to_owned(), None);
    }

    /// Something happened to the things with this key: a write ended now that does not say what became of them, or whose
    /// answer was lost.
    pub(crate) fn touched(&self, key: &str) {
        let mut changes = self.changes.lock();
        changes.known.remove(key);
        changes.touched.insert(key.to_owned(), Instant::now());
    }

    /// A part of a thing is known anew, if the thing is known at all.
    pub(crate) fn amend(&self, id: &str, change: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        let kept = self
            .listings
            .peek(&(), Freshness::AtMost(std::time::Duration::MAX));
        let mut changes = self.changes.lock();
        let known = match changes.things.get(id) {
            Some((_, thing)) => thing.clone(),
            None => kept.and_then(|(listing, _)| listing.by_id(id).cloned()),
        };
        if let Some(known) = known {
            let mut thing = (*known).clone();
            change(&mut thing);
            changes.put(id.to_owned(), Some(Arc::new(thing)));
        }
    }
}
