//! The calls of the plan: reads of parts, and changes one after the other.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result, Retry, async_trait,
    client::{Cache, CacheConfig, ClientMetrics, IndexedCache, Listing},
    cluster_id::ClusterIdCell,
    load_balancer::{ClusterView, ReadOptions},
    plan::objects::{self, Action, Attributes, ObjectCalls},
    plan::{
        CredentialsCheck, GatheredInputs, PartCloud, ScopeCheck, SendOptions, SendOutcome, Wait,
        WriteConflict,
    },
};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    desired::{is_known, with_reserved_address},
    fields,
    firewalls::DeniedFirewall,
    json,
    kinds::{INSTANCES, InstanceEntry, Object, ObjectChange, ObjectKind, Objects, PartKey},
    members::InstanceIndex,
    model::{BalancerDirectory, ChangeReply, Model, PartInputs, PartMember, part_of},
    names,
    settings::BalancerSettings,
    spec::Scheme,
};
use crate::{
    Nodes,
    client::{AwaitedOperation, Client, ComputeOperation, EndedOperation, ObjectPlace, last_component},
    config::NameOrPath,
};

/// The first read of an operation, and the time between two.
const FIRST_POLL: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_secs(1);
/// An operation that takes longer is given up. It may still end.
const DEADLINE: Duration = Duration::from_secs(600);
/// The listing of instances is read again after this.
const INSTANCES_AGE: Duration = Duration::from_secs(600);
/// The listing of instances is read again after this if a node is not in it, and at once for a node that was not looked for yet.
const UNLISTED_AGE: Duration = Duration::from_secs(60);
/// The subnetworks are read again after this.
const SUBNETWORK_AGE: Duration = Duration::from_secs(3600);
/// A change of a firewall rule that is refused is tried again after this.
const DENIED_AGE: Duration = Duration::from_secs(600);
/// The wait until an object of ours does not use another one any more.
const IN_USE: Duration = Duration::from_secs(2);
/// An object that others use is not deleted again before this.
const KEPT_AGE: Duration = Duration::from_secs(600);
/// The parts of a load balancer that were read this long ago at most need not be read again for an address that was reserved.
const RECENT: Duration = Duration::from_secs(30);

/// The state between calls.
#[derive(Debug, Default)]
struct CallState {
    /// Parts from the last read, with the changes since then, and the time when the read began.
    parts: HashMap<PartKey, (Instant, Objects)>,
    /// The names of load balancers that this process has read.
    balancers: BTreeSet<String>,
    /// Changes of firewall rules that the credentials do not allow, by the name of the rule.
    denied: BTreeMap<String, (Instant, DeniedFirewall)>,
    /// Objects that could not be deleted since others use them, by resource path: these others.
    kept: HashMap<String, (Instant, String)>,
    /// The nodes without an instance in the last listing that was read for such nodes.
    unlisted: Option<(Instant, BTreeSet<String>)>,
    /// The last directory, and the listing that it was built from.
    directory: Option<(Arc<Listing<Object>>, Arc<BalancerDirectory>)>,
}

/// The subnetwork of the cluster.
#[derive(Debug, Default)]
struct Subnetwork {
    path: String,
    problem: String,
}

/// The calls.
pub(crate) struct BalancerCalls {
    nodes: Nodes,
    settings: Arc<BalancerSettings>,
    cluster_id: ClusterIdCell,
    /// The subnetwork in the config.
    subnetwork: Option<NameOrPath>,
    credentials: CredentialsCheck,
    objects: IndexedCache<Object>,
    instances: Cache<(), InstanceIndex>,
    subnetworks: Cache<(), Subnetwork>,
    state: Mutex<CallState>,
}

impl fmt::Debug for BalancerCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalancerCalls").finish_non_exhaustive()
    }
}

/// The operations of a change, and what it deletes.
#[derive(Debug)]
pub(crate) struct BalancerTicket {
    operations: Vec<AwaitedOperation>,
    change: ObjectChange,
}

/// Reads all listings of the project and region.
async fn listed(
    client: Client,
    settings: Arc<BalancerSettings>,
    zones: Arc<Vec<String>>,
    cluster_id: Arc<str>,
) -> Result<Vec<Object>> {
    let kinds = [
        ObjectKind::Address,
        ObjectKind::Rule,
        ObjectKind::Pool,
        ObjectKind::Backend,
        ObjectKind::HttpCheck,
        ObjectKind::Check,
        ObjectKind::Firewall,
    ];
    let places = kinds.iter().map(|kind| json::place_of(*kind, &settings, ""));
    let groups = zones.iter().map(|zone| json::place_of(ObjectKind::Group, &settings, zone));
    let reads = places.chain(groups).map(async |place: ObjectPlace<'_>| {
        let objects = client.objects(place).await?;
        let own = objects.iter().filter_map(|object| json::object_of(place, object, &cluster_id));
        Ok::<_, Error>(own.collect::<Vec<_>>())
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().collect())
}

impl BalancerCalls {
    /// The calls, which also read these nodes.
    pub(crate) fn new(
        nodes: &Nodes,
        settings: &Arc<BalancerSettings>,
        cluster_id: &ClusterIdCell,
        subnetwork: Option<NameOrPath>,
        metrics: &ClientMetrics,
    ) -> Self {
        Self {
            nodes: nodes.clone(),
            settings: Arc::clone(settings),
            cluster_id: cluster_id.clone(),
            subnetwork,
            credentials: CredentialsCheck::default(),
            objects: IndexedCache::new("gce_load_balancers", metrics),
            instances: Cache::new(CacheConfig::new("gce_members"), metrics),
            subnetworks: Cache::new(CacheConfig::new("gce_subnetworks"), metrics),
            state: Mutex::default(),
        }
    }

    fn client(&self, priority: Priority) -> Client {
        self.nodes.api.at(priority)
    }

    /// The listings. `part`: they are correct for this part.
    async fn listing(&self, part: Option<&PartKey>, read: ReadOptions) -> Result<Arc<Listing<Object>>> {
        let cluster_id = self.cluster_id.get()?;
        let client = self.client(read.priority);
        let zones = self.nodes.site.zones(&client, read.priority).await?;
        let settings = Arc::clone(&self.settings);
        let load = || listed(client, settings, zones, cluster_id);
        let part = part.map(ToString::to_string);
        self.objects.get(part.as_deref(), read.freshness, read.priority, load).await
    }

    /// The instances of the region, in which all eligible nodes are that exist.
    async fn instance_index(&self, cluster: &ClusterView, priority: Priority) -> Result<Arc<InstanceIndex>> {
        let index = self.listed_instances(Freshness::AtMost(INSTANCES_AGE), priority).await?;
        let missing = index.missing(cluster, &self.settings);
        let is_known = |(since, known): &(Instant, BTreeSet<String>)| {
            since.elapsed() < UNLISTED_AGE && missing.is_subset(known)
        };
        if missing.is_empty() || self.state.lock().unlisted.as_ref().is_some_and(is_known) {
            return Ok(index);
        }
        let now = Instant::now();
        let index = self.listed_instances(Freshness::After(now), priority).await?;
        self.state.lock().unlisted = Some((now, index.missing(cluster, &self.settings)));
        Ok(index)
    }

    async fn listed_instances(&self, freshness: Freshness, priority: Priority) -> Result<Arc<InstanceIndex>> {
        let (client, site) = (self.client(priority), Arc::clone(&self.nodes.site));
        let load = || async move {
            let zones = site.zones(&client, priority).await?;
            let reads = zones.iter().map(|zone| client.instances_of_zone(&site.project, zone));
            let instances = try_join_all(reads).await?.into_iter().flatten();
            Ok(InstanceIndex::new(
                instances.map(|instance| (InstanceEntry::new(&instance.zone, &instance.name), instance.tags)),
            ))
        };
        self.instances.get((), freshness, priority, load).await
    }

    /// The subnetwork of internal load balancers.
    async fn subnetwork(&self, priority: Priority) -> Result<Arc<Subnetwork>> {
        let path = match &self.subnetwork {
            Some(NameOrPath::Path(path)) => path.clone(),
            Some(NameOrPath::Name(name)) => self.settings.subnetwork_path(name),
            None if self.settings.is_legacy_network => String::new(),
            None => {
                let (client, settings) = (self.client(priority), Arc::clone(&self.settings));
                let load = || async move { found_subnetwork(&client, &settings).await };
                let freshness = Freshness::AtMost(SUBNETWORK_AGE);
                return self.subnetworks.get((), freshness, priority, load).await;
            }
        };
        let problem = String::new();
        Ok(Arc::new(Subnetwork { path, problem }))
    }

    /// The objects of a part, from the listings.
    async fn objects_of(&self, key: &PartKey, read: ReadOptions) -> Result<Objects> {
        let cluster_id = self.cluster_id.get()?;
        let listing = self.listing(Some(key), read).await?;
        let mut objects: Vec<_> = listing
            .all()
            .filter(|object| part_of(object, &cluster_id) == *key)
            .map(|object| Object::clone(object))
            .collect();
        for object in &mut objects {
            if object.kind == ObjectKind::Group {
                let place = json::place_of(ObjectKind::Group, &self.settings, &object.key);
                let links =
                    self.client(read.priority).group_members(place, json::object_name(object)).await?;
                let instances = links.iter().filter_map(|link| InstanceEntry::of_link(link));
                object.sets.insert(INSTANCES, instances.collect());
            }
        }
        let mut state = self.state.lock();
        state.kept.retain(|_, (since, _)| since.elapsed() < KEPT_AGE);
        Ok(objects.into_iter().collect())
    }

    /// The part with the address that was reserved for it, if only that was missing. The operation does not have it.
    async fn with_address(&self, key: &PartKey, priority: Priority) -> Result<Option<Objects>> {
        let known = self.state.lock().parts.get(key).cloned();
        let Some((began, mut objects)) = known.filter(|(began, _)| began.elapsed() < RECENT) else {
            return Ok(None);
        };
        let lacks = |object: &&mut Object| {
            object.kind == ObjectKind::Address && object.text(fields::ADDRESS).is_empty()
        };
        let Some(address) = objects.all.iter_mut().find(lacks) else {
            return Ok(None);
        };
        let place = json::place_of(ObjectKind::Address, &self.settings, "");
        let read = self.client(priority).object(place, &address.key).await?;
        let Some(read) = json::object_of(place, &read, &self.cluster_id.get()?) else {
            return Ok(None);
        };
        *address = read.clone();
        self.objects.insert(read);
        self.state.lock().parts.insert(key.clone(), (began, objects.clone()));
        Ok(Some(objects))
    }

    /// Applies a change to the cached state.
    fn applied(
        &self,
        key: &PartKey,
        began: Option<Instant>,
        change: &ObjectChange,
        reply: &ChangeReply,
        observed: &Objects,
    ) {
        if reply.kept.is_some() {
            return;
        }
        let mut after = observed.clone();
        after.fold(change, Some(&reply.objects));
        for object in &observed.all {
            if after.get(object.kind, &object.key).is_none() {
                self.objects.remove(&object.id);
            }
        }
        for object in &after.all {
            if observed.get(object.kind, &object.key) != Some(object) {
                self.objects.insert(object.clone());
            }
        }
        if let Some(began) = began {
            self.state.lock().parts.insert(key.clone(), (began, after));
        }
    }

    /// Forgets what is known of a part after a change whose result is not known, or that failed.
    fn forget(&self, key: &PartKey) {
        self.objects.invalidate(&key.to_string());
        self.state.lock().parts.remove(key);
    }

    /// Whether an object with this name, which uses another one, is one that this process manages, so that it will not use it for long.
    fn is_ours(&self, name: &str, cluster_id: &str) -> bool {
        self.state.lock().balancers.contains(name)
            || name.starts_with(&names::shared_backend_prefix(cluster_id))
    }

    /// The reply to a change that failed, or the error for the engine.
    fn failed(&self, change: &ObjectChange, observed: &Objects, error: Error) -> Result<ChangeReply> {
        let cluster_id = self.cluster_id.get()?;
        let kind = error.kind();
        let is_in_use = kind == ErrorKind::Conflict && error.message().contains("used by");
        let is_refused = kind == ErrorKind::PermissionDenied && self.settings.is_shared_network();
        match &change.action {
            Action::Delete(_) if is_in_use => {
                let user = user_in(error.message());
                if user.is_empty() || self.is_ours(last_component(&user), &cluster_id) {
                    return Err(error.with_retry(Retry::Fixed(IN_USE)));
                }
                let place = json::place_of(change.kind, &self.settings, &change.key);
                let id = match change.kind {
                    ObjectKind::Group => place.path(&names::group(&cluster_id)),
                    _ => place.path(&change.key),
                };
                self.state.lock().kept.insert(id, (Instant::now(), user.clone()));
                Ok(ChangeReply {
                    kept: Some(user),
                    ..ChangeReply::default()
                })
            }
            // Waiting does not help: the Service requests an address that is in use.
            Action::Create(..) if change.kind == ObjectKind::Address && kind == ErrorKind::Conflict => {
                if is_in_use || error.message().contains("IN_USE") {
                    return Err(Error::new(ErrorKind::InvalidSpec, error.message()).with_source(error));
                }
                Err(error)
            }
            _ if is_refused => match DeniedFirewall::of(change, observed, &self.settings) {
                Some(denied) => {
                    let denied = (Instant::now(), denied);
                    self.state.lock().denied.insert(change.key.clone(), denied);
                    // The next pass leaves the rule unchanged, and reports the command.
                    let text = "the change of the firewall rule is left to its administrators";
                    let busy = Error::new(ErrorKind::Conflict, text).with_retry(Retry::Fixed(POLL));
                    Err(busy.with_source(error))
                }
                None => Err(error),
            },
            _ => Err(error),
        }
    }
}

/// The object that uses another one, in the message of the API: `.. is already being used by 'projects/..'`.
fn user_in(message: &str) -> String {
    let Some((_, rest)) = message.split_once("used by") else {
        return String::new();
    };
    rest.trim().trim_matches(|c: char| c == '\'' || c == '"' || c == '.').to_owned()
}

/// The subnetwork of the network in the region, if there is only one.
async fn found_subnetwork(client: &Client, settings: &BalancerSettings) -> Result<Subnetwork> {
    let all = client.subnetworks(&settings.network_project, &settings.region).await?;
    let of_network: Vec<_> = all.iter().filter(|subnetwork| subnetwork.network == settings.network).collect();
    let name = last_component(&settings.network);
    // In auto mode, the automatic subnetworks have the name of the network. Users may have added others.
    let automatic = of_network.iter().find(|subnetwork| subnetwork.name == name);
    Ok(match automatic.map_or(of_network.as_slice(), std::slice::from_ref) {
        [one] => Subnetwork {
            path: settings.subnetwork_path(&one.name),
            problem: String::new(),
        },
        several => Subnetwork {
            path: String::new(),
            problem: format!(
                "network {name:?} has {} subnetworks in region {}; set subnetwork-name in the config, or name one in this annotation",
                several.len(),
                settings.region
            ),
        },
    })
}

/// Sends the calls of one change.
struct ObjectSender<'a> {
    client: Client,
    settings: &'a BalancerSettings,
    cluster_id: Arc<str>,
    operations: Mutex<Vec<(String, ComputeOperation)>>,
}

impl ObjectSender<'_> {
    fn place<'a>(&'a self, object: &'a Object) -> ObjectPlace<'a> {
        json::place_of(object.kind, self.settings, &object.key)
    }

    /// Keeps an operation that has not ended.
    fn accepted(&self, object: &Object, operation: ComputeOperation) {
        if !operation.is_done() {
            let project = self.place(object).project.to_owned();
            self.operations.lock().push((project, operation));
        }
    }

    fn paths(&self, entries: &[InstanceEntry]) -> Vec<String> {
        entries.iter().map(|entry| json::instance_path(&self.settings.project, entry)).collect()
    }

    /// Whether an attribute has an address that is not known yet.
    fn lacks_address(object: &Object) -> bool {
        let is_unknown = |text: &str| !text.is_empty() && !is_known(text);
        object.kind != ObjectKind::Address && is_unknown(object.text(fields::ADDRESS))
            || object.texts(fields::DESTINATIONS).iter().any(|text| is_unknown(text))
    }
}

#[async_trait]
impl ObjectCalls<ObjectKind> for ObjectSender<'_> {
    async fn create(
        &self,
        object: &Object,
        _: &[Object],
        _: &Objects,
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        if Self::lacks_address(object) {
            return Err(objects::stale());
        }
        let place = self.place(object);
        let name = match object.kind {
            ObjectKind::Group => names::group(&self.cluster_id),
            _ => object.key.clone(),
        };
        let mut body = json::body_of(object.kind, &object.attributes);
        body.insert("name".to_owned(), json!(name));
        if object.kind == ObjectKind::Pool {
            body.insert("instances".to_owned(), json!(self.paths(object.set(INSTANCES))));
        }
        let operation = self.client.insert_object(place, Value::Object(body)).await?;
        let is_done = operation.is_done();
        self.accepted(object, operation);
        let mut created = Object::new(object.kind, &object.key);
        created.id = place.path(&name);
        if is_done && object.kind == ObjectKind::Address {
            // The operation does not have the address. If it has not ended, the address is read when it has.
            let read = self.client.object(place, &name).await?;
            let read = json::object_of(place, &read, &self.cluster_id);
            created.attributes = read.map(|read| read.attributes).unwrap_or_default();
        }
        Ok(objects::ChangeReply::object(created))
    }

    async fn update(
        &self,
        object: &Object,
        _: &'static str,
        attributes: &Attributes,
        _: &Objects,
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let mut after = object.clone();
        after.attributes.extend(attributes.clone());
        if Self::lacks_address(&after) {
            return Err(objects::stale());
        }
        let place = self.place(object);
        let operation = match object.kind {
            ObjectKind::Backend | ObjectKind::Rule => {
                let present = self.client.object(place, &object.key).await?;
                let mut body = json::body_of(object.kind, attributes);
                body.insert(
                    "fingerprint".to_owned(),
                    present.get("fingerprint").cloned().unwrap_or_default(),
                );
                if let Some(groups) = attributes.get(fields::GROUPS) {
                    body.insert("backends".to_owned(), json::backends(groups, Some(&present)));
                }
                self.client.patch_object(place, &object.key, Value::Object(body)).await?
            }
            kind if kind.is_firewall() && is_emptied(object, attributes) => {
                let mut body = self.client.object(place, &object.key).await?;
                for (name, field) in LISTS {
                    if after.texts(name).is_empty() {
                        body.as_object_mut().map(|body| body.remove(field));
                    }
                }
                for (field, value) in json::body_of(kind, &after.attributes) {
                    if let Some(body) = body.as_object_mut() {
                        body.insert(field, value);
                    }
                }
                self.client.replace_firewall(place.project, &object.key, body).await?
            }
            kind => {
                let body = json::body_of(kind, &after.attributes);
                self.client.patch_object(place, &object.key, Value::Object(body)).await?
            }
        };
        self.accepted(object, operation);
        Ok(objects::ChangeReply::default())
    }

    async fn delete(&self, object: &Object, _: bool) -> Result<()> {
        match self.client.delete_object(self.place(object), json::object_name(object)).await {
            Ok(operation) => self.accepted(object, operation),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn add(
        &self,
        object: &Object,
        _: &'static str,
        entries: &[InstanceEntry],
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let (place, name) = (self.place(object), json::object_name(object));
        let operation = self.client.add_instances(place, name, &self.paths(entries)).await?;
        self.accepted(object, operation);
        Ok(objects::ChangeReply::default())
    }

    async fn remove(&self, object: &Object, _: &'static str, entries: &[InstanceEntry]) -> Result<()> {
        let (place, name) = (self.place(object), json::object_name(object));
        let operation = self.client.remove_instances(place, name, &self.paths(entries)).await?;
        self.accepted(object, operation);
        Ok(())
    }
}

/// The lists of firewall rules, with their fields in the API.
const LISTS: [(&str, &str); 4] = [
    (fields::SOURCES, "sourceRanges"),
    (fields::DESTINATIONS, "destinationRanges"),
    (fields::ALLOWED, "allowed"),
    (fields::DENIED, "denied"),
];

/// Whether a change empties a list of a firewall rule, which a patch cannot.
fn is_emptied(object: &Object, attributes: &Attributes) -> bool {
    LISTS.iter().any(|(name, _)| {
        let after = attributes.get(name).and_then(Value::as_array);
        after.is_some_and(Vec::is_empty) && !object.texts(name).is_empty()
    })
}

#[async_trait]
impl PartCloud<Model> for BalancerCalls {
    type Ticket = BalancerTicket;

    async fn directory(&self, read: ReadOptions) -> Result<Arc<BalancerDirectory>> {
        let cluster_id = self.cluster_id.get()?;
        let listing = self.listing(None, read).await?;
        let mut state = self.state.lock();
        if let Some((of, directory)) = &state.directory
            && Arc::ptr_eq(of, &listing)
        {
            return Ok(Arc::clone(directory));
        }
        let objects = listing.all().map(|object| Object::clone(object));
        let directory = Arc::new(BalancerDirectory::new(&cluster_id, objects));
        state.directory = Some((listing, Arc::clone(&directory)));
        Ok(directory)
    }

    async fn inputs(
        &self,
        _: &PartKey,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<PartInputs>> {
        let mut inputs = PartInputs {
            directory: self.directory(read).await?,
            ..PartInputs::default()
        };
        if PartMember::staying(members).next().is_some() {
            inputs.index = self.instance_index(cluster, read.priority).await?;
        }
        let is_internal = |member: &PartMember| Scheme::of(&member.service) == Scheme::Internal;
        if PartMember::staying(members).any(is_internal) {
            let subnetwork = self.subnetwork(read.priority).await?;
            inputs.subnetwork.clone_from(&subnetwork.path);
            inputs.no_subnetwork.clone_from(&subnetwork.problem);
        }
        let mut state = self.state.lock();
        state.denied.retain(|_, (since, _)| since.elapsed() < DENIED_AGE);
        let denied = state.denied.iter().map(|(name, (_, denied))| (name.clone(), denied.clone()));
        inputs.denied = Arc::new(denied.collect());
        Ok(inputs.into())
    }

    async fn observe(&self, key: &PartKey, _: &[PartMember], read: ReadOptions) -> Result<Objects> {
        if let Some((began, known)) = self.state.lock().parts.get(key)
            && read.freshness.allows(*began)
        {
            return Ok(known.clone());
        }
        if let Some(objects) = self.with_address(key, read.priority).await? {
            return Ok(objects);
        }
        let began = Instant::now();
        let mut objects = self.objects_of(key, read).await?;
        let mut state = self.state.lock();
        if let PartKey::Balancer(name) = key {
            state.balancers.insert(name.clone());
        }
        for object in &mut objects.all {
            if let Some((_, user)) = state.kept.get(&object.id) {
                object.foreign = Some(format!("in use: {user}"));
            }
        }
        state.parts.insert(key.clone(), (began, objects.clone()));
        Ok(objects)
    }

    async fn send(
        &self,
        key: &PartKey,
        change: &ObjectChange,
        observed: &Objects,
        options: &SendOptions,
    ) -> Result<SendOutcome<ChangeReply, BalancerTicket>> {
        let sender = ObjectSender {
            client: self.client(options.priority),
            settings: &self.settings,
            cluster_id: self.cluster_id.get()?,
            operations: Mutex::default(),
        };
        let change = &with_reserved_address(change, observed);
        // If this future is dropped, the part is read again.
        let known = self.state.lock().parts.remove(key);
        let sent = objects::send(&sender, change, observed).await;
        let reply = match sent {
            Ok(objects) => ChangeReply { objects, kept: None },
            Err(error) => {
                self.forget(key);
                self.failed(change, observed, error)?
            }
        };
        self.applied(key, known.map(|(began, _)| began), change, &reply, observed);
        let ObjectSender {
            client, operations, ..
        } = sender;
        let operations = operations.into_inner();
        // The release of an address does not delay the Service. The next read shows whether it failed.
        let is_release = change.kind == ObjectKind::Address
            && matches!(change.action, Action::Delete(_))
            && observed.get(ObjectKind::Rule, &change.key).is_some();
        if operations.is_empty() || is_release {
            return Ok(SendOutcome::Done(reply));
        }
        let awaited = operations.into_iter().map(|(project, operation)| client.awaited(&project, operation));
        Ok(SendOutcome::Accepted {
            reply,
            ticket: BalancerTicket {
                operations: awaited.collect(),
                change: change.clone(),
            },
            wait: Wait {
                poll: FIRST_POLL,
                deadline: DEADLINE,
            },
        })
    }

    async fn poll(
        &self,
        key: &PartKey,
        ticket: &BalancerTicket,
        priority: Priority,
    ) -> Result<Option<Duration>> {
        let client = self.client(priority);
        for operation in &ticket.operations {
            match client.has_ended(operation).await? {
                EndedOperation::Done => {}
                EndedOperation::NotYet => return Ok(Some(POLL)),
                EndedOperation::Failed(error) => {
                    let known = self.state.lock().parts.get(key).cloned();
                    let observed = known.map(|(_, objects)| objects).unwrap_or_default();
                    self.forget(key);
                    // The operation has ended: the change is planned again.
                    return match self.failed(&ticket.change, &observed, error) {
                        Ok(_) => Err(objects::stale()),
                        Err(error) if WriteConflict::of(&error).is_some() => {
                            Err(error.with_retry(Retry::Never))
                        }
                        Err(error) => Err(error),
                    };
                }
            }
        }
        Ok(None)
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.nodes, cluster, read).await
    }
}
