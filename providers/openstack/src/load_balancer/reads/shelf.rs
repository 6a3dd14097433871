//! One kind of things in the project, as one listing that everybody shares.
//!
//! A listing is read once and believed for as long as the asker allows. Our own writes do not make it worthless: what a
//! write's answer says about a thing is put over the listing ([`Shelf::learned`], [`Shelf::forgotten`]), and of what it
//! does not say only the things of one owner are read again ([`Shelf::touched`]). All of that is dropped as soon as a
//! listing arrives that began after it.
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
}

impl<T> Clone for Listing<T> {
    fn clone(&self) -> Self {
        Self {
            began: self.began,
            by_id: self.by_id.clone(),
            by_key: self.by_key.clone(),
        }
    }
}

impl<T: Shelved> Listing<T> {
    fn new(began: Instant, things: Vec<T>) -> Self {
        let mut listing = Self {
            began,
            by_id: BTreeMap::new(),
            by_key: HashMap::new(),
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

    /// When its reading began: what happened later may be missing in it.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }
}

/// What we know better than the listing.
struct Changes<T> {
    /// By id: what became of a thing, and when we learned it.
    things: HashMap<String, (Instant, Option<Arc<T>>)>,
    /// By key: when something that we do not know happened to the things with it.
    touched: HashMap<String, Instant>,
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

    fn corrected(&self, listing: Arc<Listing<T>>) -> Arc<Listing<T>> {
        let mut changes = self.changes.lock();
        // Only what the newest listing has for sure; this one may be older than one that somebody else got.
        if let Some((newest, began)) = self
            .listings
            .peek(&(), Freshness::AtMost(std::time::Duration::MAX))
        {
            let began = began.max(newest.began);
            changes.things.retain(|_, (learned, _)| *learned >= began);
            changes.touched.retain(|_, touched| *touched >= began);
        }
        if changes
            .things
            .values()
            .all(|(learned, _)| *learned < listing.began)
        {
            return listing;
        }
        let mut corrected = (*listing).clone();
        for (id, (learned, thing)) in &changes.things {
            if *learned >= listing.began {
                match thing {
                    Some(thing) => corrected.put(Arc::clone(thing)),
                    None => corrected.remove(id),
                }
            }
        }
        Arc::new(corrected)
    }

    /// What became of a thing, or that it was made: the answer to a write or a read of it alone, which ended now.
    pub(crate) fn learned(&self, thing: T) {
        let id = thing.id().to_owned();
        self.changes
            .lock()
            .things
            .insert(id, (Instant::now(), Some(Arc::new(thing))));
    }

    /// A thing is gone: a delete of it ended now.
    pub(crate) fn forgotten(&self, id: &str) {
        self.changes
            .lock()
            .things
            .insert(id.to_owned(), (Instant::now(), None));
    }

    /// Something happened to the things with this key: a write ended now that does not say what became of them, or whose
    /// answer was lost.
    pub(crate) fn touched(&self, key: &str) {
        self.changes.lock().touched.insert(key.to_owned(), Instant::now());
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
            changes
                .things
                .insert(id.to_owned(), (Instant::now(), Some(Arc::new(thing))));
        }
    }
}
