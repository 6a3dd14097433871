//! One watch per kind, shared by all controllers.
//!
//! Stores keep only the fields that controllers read (a node takes hundreds of bytes, not ten kilobytes), so that
//! memory grows slowly with the cluster. Fields that no controller reads are skipped by the parser and never allocated;
//! those that no running controller [`Needs`] are dropped before an object is stored. Stored objects are never written back
//! whole.
//!
//! A watch continues where it was interrupted, and a resource version orders changes. Both end when etcd is restored from a
//! backup: the API server accepts a watch from a version that it has not reached yet, and sends nothing until it does. So an
//! interrupted watch is compared with the API server, and begins with a new listing if the versions went back.

use std::{collections::HashSet, fmt::Debug, sync::Arc, time::Duration};

use futures_util::StreamExt;
use kube::{
    Api, Client, Resource,
    api::ListParams,
    client::Body,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Needs, interner::Interner};

/// The page size of the first listing. Bounds the memory of a reply: 100 nodes are about 1 MB of JSON.
const PAGE_SIZE: u32 = 100;

/// After an interruption of this length, everything is listed again: the API server may have been restored from a backup, and
/// have reached the former resource version again since.
const LONG_INTERRUPTION: Duration = Duration::from_secs(30);

/// The time limit of the comparison of resource versions.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// A change of an object, by its key: `name`, or `namespace/name` where the kind has namespaces. The object
/// itself is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChange {
    /// It was created or changed, or it exists after a restart of the watch.
    Applied(String),
    /// It was deleted, or no controller needs it any more ([`Trimmed::is_needed`]).
    Deleted(String),
    /// A new listing does not contain it. It was deleted while no watch was open, or the API server lost it.
    Vanished(String),
}

impl StoreChange {
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
    health: Arc<WatchHealth>,
    /// Starts a new listing.
    relist: Notify,
    subscribers: Mutex<Vec<mpsc::UnboundedSender<StoreChange>>>,
}

/// Whether the watch works.
#[derive(Debug, Default)]
struct WatchHealth {
    /// Since when the watch fails, so that the store may be old.
    failing_since: Mutex<Option<Instant>>,
    /// How long the watch had failed when it was last accepted again.
    interruption: Mutex<Duration>,
    /// Notifies that a watch was accepted again.
    recovered: Notify,
}

impl WatchHealth {
    /// A watch failed. Returns whether the last one worked.
    fn failed(&self) -> bool {
        let mut since = self.failing_since.lock();
        let is_first = since.is_none();
        since.get_or_insert_with(Instant::now);
        is_first
    }

    /// A watch was accepted. Returns whether the last one failed.
    fn works(&self) -> bool {
        let Some(since) = self.failing_since.lock().take() else {
            return false;
        };
        *self.interruption.lock() = since.elapsed();
        self.recovered.notify_one();
        true
    }
}

impl<K: Trimmed> Informer<K> {
    /// An informer that does nothing until [`Informer::run`].
    #[must_use]
    pub fn new(client: Client, needs: Needs) -> Arc<Self> {
        let (store, writer) = reflector::store();
        let health = Arc::default();
        Arc::new(Self {
            api: Api::all(observing::<K>(client, &health)),
            needs,
            store,
            writer: Mutex::new(Some(writer)),
            synced: watch::Sender::new(false),
            health,
            relist: Notify::new(),
            subscribers: Mutex::default(),
        })
    }

    /// Subscribes to changes: first one for each object in the store, then all later ones.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<StoreChange> {
        let (sender, receiver) = mpsc::unbounded_channel();
        // Changes are sent under the same lock after they are stored, so that none is missed.
        let mut subscribers = self.subscribers.lock();
        for object in self.store.state() {
            if let Some(key) = key(&*object) {
                // The receiver exists.
                let _ = sender.send(StoreChange::Applied(key));
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

    /// Lists everything again, as the API server has it now, and [`synced`](Self::synced) waits for it: a new leader must not
    /// decide with a store whose watch may have been silent for a while. Until the listing succeeds, the store keeps its objects.
    pub fn renew(&self) {
        self.synced.send_replace(false);
        self.relist.notify_one();
    }

    /// For how long the watch has been failing. `None`: it works.
    #[must_use]
    pub fn failing_for(&self) -> Option<Duration> {
        self.health.failing_since.lock().map(|since| since.elapsed())
    }

    /// Returns when the first listing, or the one of [`renew`](Self::renew), is in the store.
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
        // The greatest resource version of an object since the last listing began.
        let mut newest: u64 = 0;
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.relist.notified() => {
                    events = new_watch();
                    continue;
                }
                () = self.health.recovered.notified() => {
                    let was_long = *self.health.interruption.lock() >= LONG_INTERRUPTION;
                    let check = async { was_long || self.went_back(newest).await };
                    if shutdown.run_until_cancelled(check).await == Some(true) {
                        events = new_watch();
                    }
                    continue;
                }
                event = events.next() => event,
            };
            let mut event = match event {
                None => return,
                Some(Err(error)) => {
                    let error = crate::error::report(&error);
                    if self.health.failed() {
                        warn!(%kind, error, "Watch failed, retrying");
                        continue;
                    }
                    debug!(%kind, error, "Watch still fails");
                    // It may refuse the version.
                    if shutdown.run_until_cancelled(self.went_back(newest)).await == Some(true) {
                        events = new_watch();
                    }
                    continue;
                }
                Some(Ok(event)) => event,
            };
            if matches!(event, watcher::Event::Init) {
                let known = self.store.state().iter().filter_map(|object| key(&**object)).collect();
                listing = Some((Instant::now(), known));
                newest = 0;
            }
            if let watcher::Event::Apply(object)
            | watcher::Event::Delete(object)
            | watcher::Event::InitApply(object) = &event
            {
                newest = newest.max(version(object.meta().resource_version.as_deref()));
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
            // Objects of a listing are stored only when the listing is complete.
            writer.apply_watcher_event(&event);
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
                            self.send(&StoreChange::Applied(key));
                        }
                    }
                    for key in vanished {
                        self.send(&StoreChange::Vanished(key));
                    }
                    self.synced.send_replace(true);
                }
                watcher::Event::Apply(object) => {
                    if let Some(key) = key(&object) {
                        self.send(&StoreChange::Applied(key));
                    }
                }
                watcher::Event::Delete(object) => {
                    if let Some(key) = key(&object) {
                        self.send(&StoreChange::Deleted(key));
                    }
                }
            }
        }
    }

    /// Whether the API server is behind the `newest` resource version that was observed. If it does not answer, the next
    /// failure or recovery of the watch asks again.
    async fn went_back(&self, newest: u64) -> bool {
        let one = ListParams::default().limit(1);
        let list = tokio::time::timeout(VERSION_TIMEOUT, self.api.list_metadata(&one)).await;
        let Ok(Ok(list)) = list else {
            return false;
        };
        let current = version(list.metadata.resource_version.as_deref());
        let went_back = 0 < current && current < newest;
        if went_back {
            warn!(
                kind = %K::kind(&()),
                observed = newest,
                current,
                "Resource versions of the API server went back, as after a restore from a backup; listing everything again"
            );
        }
        went_back
    }

    fn send(&self, change: &StoreChange) {
        self.subscribers.lock().retain(|subscriber| subscriber.send(change.clone()).is_ok());
    }
}

/// The same client, which also notices that a watch of this kind was accepted: an idle one sends nothing that shows it.
fn observing<K: Resource<DynamicType = ()>>(client: Client, health: &Arc<WatchHealth>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let health = Arc::clone(health);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, health) = (client.clone(), Arc::clone(&health));
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|parameter| parameter == "watch=true");
        async move {
            let reply = client.send(request).await?;
            if is_watch && reply.status().is_success() && health.works() {
                info!(kind = %K::kind(&()), "Watch recovered");
            }
            Ok::<_, kube::Error>(reply)
        }
    });
    Client::new(service, namespace)
}

/// A resource version as a number; 0 if there is none. Kubernetes defines their order since 1.35.
fn version(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
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
