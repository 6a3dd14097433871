//! One watch per kind, shared by all controllers.
//!
//! Stores keep only the fields that controllers read (a node takes hundreds of bytes, not ten kilobytes), so that
//! memory grows slowly with the cluster. Fields that no controller reads are skipped by the parser and never allocated;
//! those that no running controller [`Needs`] are dropped before an object is stored. Stored objects are never written back
//! whole.

use std::{
    collections::HashSet,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use futures_util::StreamExt;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Needs, interner::Interner};

/// The page size of the first listing. Bounds the memory of a reply: 100 nodes are about 1 MB of JSON.
const PAGE_SIZE: u32 = 100;

/// A change of an object, by its key: `name`, or `namespace/name` where the kind has namespaces. The object
/// itself is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was created or changed, or it exists after a restart of the watch.
    Applied(String),
    /// It was deleted, or no controller needs it any more ([`Trimmed::is_needed`]).
    Deleted(String),
    /// A new listing does not contain it. It was deleted while no watch was open, or the API server lost it.
    Vanished(String),
}

impl Change {
    /// The key of the object.
    #[must_use]
    pub fn into_key(self) -> String {
        let (Self::Applied(key) | Self::Deleted(key) | Self::Vanished(key)) = self;
        key
    }
}

/// An object as it is stored.
pub trait Trimmed:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// Whether some controller needs the object. Others are not stored.
    fn is_needed(&self, needs: &Needs) -> bool;

    /// Drops the fields that no controller needs, and shares strings that many objects have in common.
    fn trim(&mut self, needs: &Needs, interner: &mut Interner);
}

/// A watch of all objects of one kind, and the store it fills.
pub struct Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    api: Api<K>,
    needs: Needs,
    store: Store<K>,
    writer: Mutex<Option<reflector::store::Writer<K>>>,
    /// Whether the first listing is in the store. (The store's own `wait_until_ready` can miss its wake-up when
    /// several tasks wait.)
    synced: watch::Sender<bool>,
    /// Whether the watch fails, so that the store may be old.
    is_broken: AtomicBool,
    /// Starts a new listing.
    relist: Notify,
    subscribers: Mutex<Vec<mpsc::UnboundedSender<Change>>>,
}

impl<K: Trimmed> Informer<K> {
    /// An informer that does nothing until [`Informer::run`].
    #[must_use]
    pub fn new(api: Api<K>, needs: Needs) -> Arc<Self> {
        let (store, writer) = reflector::store();
        Arc::new(Self {
            api,
            needs,
            store,
            writer: Mutex::new(Some(writer)),
            synced: watch::Sender::new(false),
            is_broken: AtomicBool::new(false),
            relist: Notify::new(),
            subscribers: Mutex::default(),
        })
    }

    /// Subscribes to changes: first one for each object in the store, then all later ones.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Change> {
        let (sender, receiver) = mpsc::unbounded_channel();
        // Changes are sent under the same lock after they are stored, so that none is missed.
        let mut subscribers = self.subscribers.lock();
        for object in self.store.state() {
            if let Some(key) = key(&*object) {
                // The receiver exists.
                let _ = sender.send(Change::Applied(key));
            }
        }
        subscribers.push(sender);
        receiver
    }

    /// The last observed object of this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<K>> {
        let reference = match key.split_once('/') {
            Some((namespace, name)) => ObjectRef::new(name).within(namespace),
            None => ObjectRef::new(key),
        };
        self.store.get(&reference)
    }

    /// All objects, as last observed.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    /// Has everything listed again if the watch fails, and [`synced`](Self::synced) waits for it: a new leader must not decide
    /// with an old store.
    pub fn renew(&self) {
        if self.is_broken.load(Ordering::Acquire) {
            self.synced.send_replace(false);
            self.relist.notify_one();
        }
    }

    /// Returns when the first listing is in the store.
    pub async fn synced(&self) {
        // The sender is in `self`, so that waiting cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Watches until `shutdown`. A failed watch is restarted with backoff; meanwhile, the store keeps its objects.
    /// Runs once per informer; a second call returns at once.
    pub async fn run(&self, shutdown: CancellationToken) {
        let Some(mut writer) = self.writer.lock().take() else {
            return;
        };
        let kind = K::kind(&());
        let config = watcher::Config::default().page_size(PAGE_SIZE);
        let new_watch = || watcher(self.api.clone(), config.clone()).default_backoff().boxed();
        let mut events = new_watch();
        let mut listing: Option<(Instant, HashSet<String>)> = None;
        let mut interner = Interner::default();
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.relist.notified() => {
                    events = new_watch();
                    continue;
                }
                event = events.next() => event,
            };
            let mut event = match event {
                None => return,
                Some(Err(error)) => {
                    let error = crate::error::report(&error);
                    if self.is_broken.swap(true, Ordering::AcqRel) {
                        debug!(%kind, error, "Watch still fails");
                    } else {
                        warn!(%kind, error, "Watch failed, retrying");
                    }
                    continue;
                }
                Some(Ok(event)) => event,
            };
            if matches!(event, watcher::Event::Init) {
                let known = self.store.state().iter().filter_map(|object| key(&**object)).collect();
                listing = Some((Instant::now(), known));
            }
            match event {
                watcher::Event::InitApply(ref object) if !object.is_needed(&self.needs) => continue,
                watcher::Event::Apply(object) if !object.is_needed(&self.needs) => {
                    if key(&object).is_none_or(|key| self.get(&key).is_none()) {
                        continue;
                    }
                    event = watcher::Event::Delete(object);
                }
                watcher::Event::Apply(ref mut object) | watcher::Event::InitApply(ref mut object) => {
                    object.trim(&self.needs, &mut interner);
                }
                _ => {}
            }
            writer.apply_watcher_event(&event);
            // Objects of a listing are stored only when the listing is complete.
            let is_stored = !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
            if is_stored && self.is_broken.swap(false, Ordering::AcqRel) {
                info!(%kind, "Watch recovered");
            }
            match event {
                watcher::Event::Init | watcher::Event::InitApply(_) => {}
                watcher::Event::InitDone => {
                    let (began, mut vanished) =
                        listing.take().unwrap_or_else(|| (Instant::now(), HashSet::new()));
                    let objects = self.store.state();
                    debug!(%kind, objects = objects.len(), elapsed = ?began.elapsed(), "Listed");
                    for object in objects {
                        if let Some(key) = key(&*object) {
                            vanished.remove(&key);
                            self.send(&Change::Applied(key));
                        }
                    }
                    for key in vanished {
                        self.send(&Change::Vanished(key));
                    }
                    self.synced.send_replace(true);
                }
                watcher::Event::Apply(object) => {
                    if let Some(key) = key(&object) {
                        self.send(&Change::Applied(key));
                    }
                }
                watcher::Event::Delete(object) => {
                    if let Some(key) = key(&object) {
                        self.send(&Change::Deleted(key));
                    }
                }
            }
        }
    }

    fn send(&self, change: &Change) {
        self.subscribers.lock().retain(|subscriber| subscriber.send(change.clone()).is_ok());
    }
}

/// The object's key; every object that comes from an API server has one.
fn key(object: &impl Resource) -> Option<String> {
    let meta = object.meta();
    let name = meta.name.as_deref()?;
    Some(match meta.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    })
}
