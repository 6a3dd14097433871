//! One watch per kind, shared by all controllers.
//!
//! Stores keep only the fields that controllers read (a node is hundreds of bytes, not ten kilobytes), so that
//! memory grows slowly with the cluster. What is left out is skipped while the reply is read and never allocated.
//! Because of that nothing read from a store is ever written back whole.

/// Makes a trimmed object, with a field `meta`, stand for the kind that it is trimmed from.
macro_rules! stands_for {
    ($trimmed:ty, $kind:ty) => {
        impl kube::Resource for $trimmed {
            type DynamicType = ();
            type Scope = <$kind as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.meta
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.meta
            }
        }
    };
}

mod intern;
pub(crate) mod node;
pub(crate) mod service;

use std::{collections::HashSet, fmt::Debug, sync::Arc, time::Instant};

use futures_util::StreamExt;
use intern::{Intern, Interner};
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
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How many objects the first listing asks for at a time. Bounds the memory that a reply takes: 100 nodes are
/// about 1 MB of JSON.
const PAGE_SIZE: u32 = 100;

/// What happened to an object, by its key: `name`, or `namespace/name` where the kind has namespaces. The object
/// itself is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is new or was changed, or the watch began anew and it is still there.
    Applied(String),
    /// It is gone, or nobody has to do with it any more ([`Intern::is_kept`]).
    Deleted(String),
    /// A new listing does not have it any more. It may have been deleted while no watch was open, or the API server lost it.
    Vanished(String),
}

/// A watch of all objects of one kind, and the store it fills.
pub(crate) struct Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    api: Api<K>,
    store: Store<K>,
    writer: Mutex<Option<reflector::store::Writer<K>>>,
    /// Whether the first listing is in the store. (The store's own `wait_until_ready` can miss its wake-up when
    /// several tasks wait.)
    synced: watch::Sender<bool>,
    subscribers: Mutex<Vec<mpsc::UnboundedSender<Change>>>,
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Intern + Send + Sync + 'static,
{
    /// An informer that does nothing until [`Informer::run`].
    pub(crate) fn new(api: Api<K>) -> Arc<Self> {
        let (store, writer) = reflector::store();
        Arc::new(Self {
            api,
            store,
            writer: Mutex::new(Some(writer)),
            synced: watch::Sender::new(false),
            subscribers: Mutex::default(),
        })
    }

    /// What is in the store now, each as a change, and then the changes from now on.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Change> {
        let (sender, receiver) = mpsc::unbounded_channel();
        // Changes are told under the same lock after they are in the store: none is missed in between.
        let mut subscribers = self.subscribers.lock();
        for object in self.store.state() {
            if let Some(key) = key(&*object) {
                // The receiver is here.
                let _ = sender.send(Change::Applied(key));
            }
        }
        subscribers.push(sender);
        receiver
    }

    /// The object of this key, as last seen.
    pub(crate) fn get(&self, key: &str) -> Option<Arc<K>> {
        let reference = match key.split_once('/') {
            Some((namespace, name)) => ObjectRef::new(name).within(namespace),
            None => ObjectRef::new(key),
        };
        self.store.get(&reference)
    }

    /// All objects, as last seen.
    pub(crate) fn list(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    /// Returns when the first listing is in the store.
    pub(crate) async fn synced(&self) {
        // The sender is in `self`, so that waiting can not fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Watches until `shutdown`. A watch that breaks is begun anew with backoff; the store keeps what it has
    /// meanwhile. Runs once per informer; a second call returns at once.
    pub(crate) async fn run(&self, shutdown: CancellationToken) {
        let Some(mut writer) = self.writer.lock().take() else {
            return;
        };
        let kind = K::kind(&());
        let config = watcher::Config::default().page_size(PAGE_SIZE);
        let mut events = std::pin::pin!(watcher(self.api.clone(), config).default_backoff());
        let mut listing: Option<(Instant, HashSet<String>)> = None;
        let mut broken = false;
        let mut interner = Interner::default();
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                event = events.next() => event,
            };
            let mut event = match event {
                None => return,
                Some(Err(error)) => {
                    let error = ccm_core::error::report(&error);
                    if broken {
                        debug!(%kind, error, "Watch is still broken");
                    } else {
                        warn!(%kind, error, "Watch broke, trying again");
                    }
                    broken = true;
                    continue;
                }
                Some(Ok(event)) => event,
            };
            if matches!(event, watcher::Event::Init) {
                let known = self
                    .store
                    .state()
                    .iter()
                    .filter_map(|object| key(&**object))
                    .collect();
                listing = Some((Instant::now(), known));
            } else if broken {
                info!(%kind, "Watch works again");
                broken = false;
            }
            match event {
                watcher::Event::InitApply(ref object) if !object.is_kept() => continue,
                watcher::Event::Apply(object) if !object.is_kept() => {
                    if key(&object).is_none_or(|key| self.get(&key).is_none()) {
                        continue;
                    }
                    event = watcher::Event::Delete(object);
                }
                watcher::Event::Apply(ref mut object) | watcher::Event::InitApply(ref mut object) => {
                    object.intern(&mut interner);
                }
                _ => {}
            }
            writer.apply_watcher_event(&event);
            match event {
                watcher::Event::Init => {}
                // Objects of a listing reach the store only when all of it is there.
                watcher::Event::InitApply(_) => {}
                watcher::Event::InitDone => {
                    let (began, mut gone) =
                        listing.take().unwrap_or_else(|| (Instant::now(), HashSet::new()));
                    let objects = self.store.state();
                    debug!(%kind, objects = objects.len(), elapsed = ?began.elapsed(), "Listed");
                    for object in objects {
                        if let Some(key) = key(&*object) {
                            gone.remove(&key);
                            self.tell(&Change::Applied(key));
                        }
                    }
                    for key in gone {
                        self.tell(&Change::Vanished(key));
                    }
                    self.synced.send_replace(true);
                }
                watcher::Event::Apply(object) => {
                    if let Some(key) = key(&object) {
                        self.tell(&Change::Applied(key));
                    }
                }
                watcher::Event::Delete(object) => {
                    if let Some(key) = key(&object) {
                        self.tell(&Change::Deleted(key));
                    }
                }
            }
        }
    }

    fn tell(&self, change: &Change) {
        self.subscribers
            .lock()
            .retain(|subscriber| subscriber.send(change.clone()).is_ok());
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
