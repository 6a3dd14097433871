//! The calls of the plan: reads of parts, and changes, of which several may be sent at the same time.

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
        CredentialsCheck, GatheredInputs, PartCloud, RequestId, ScopeCheck, SendOptions, SendOutcome, Wait,
        WriteConflict,
    },
};
use futures_util::future::{join_all, try_join_all};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    desired::{is_known, with_reserved_address},
    directory::{BalancerDirectory, part_of},
    fields,
    firewalls::DeniedFirewall,
    json,
    kinds::{INSTANCES, InstanceEntry, Object, ObjectChange, ObjectKind, Objects, PartKey},
    members::{self, InstanceIndex, ZoneInstances},
    model::{ChangeReply, Model, PartInputs, PartMember, RequestedSubnetwork},
    names,
    settings::BalancerSettings,
    silent::SilentZones,
    spec::{self, Scheme},
};
use crate::{
    Nodes,
    client::{AwaitedOperation, Client, ComputeOperation, EndedOperation, ObjectPlace, last_component},
    config::NameOrPath,
};

/// The first read of an operation after its change was sent, and the time between two reads, which grows by a share of the time that the
/// operation has taken. The shortest operations take about a second.
const FIRST_POLL: Duration = Duration::from_millis(1100);
const POLL: Duration = Duration::from_secs(1);
const POLL_GROWTH: f64 = 0.15;
/// The wait until the engine reads a part again after a change of a firewall rule that the credentials do not allow.
const DENIED: Duration = Duration::from_secs(1);
/// An operation that takes longer is given up. It may still end.
const DEADLINE: Duration = Duration::from_secs(600);
/// The listing of the instances of a zone is read again after this.
const INSTANCES_AGE: Duration = Duration::from_secs(600);
/// The listing of the instances of a zone is read again after this if a node is not in it, and at once for a node that was not looked for
/// yet.
const UNLISTED_AGE: Duration = Duration::from_secs(60);
/// The subnetworks are read again after this.
const SUBNETWORK_AGE: Duration = Duration::from_secs(3600);
/// A subnetwork that cannot be used is read again after this.
const PROBLEM_AGE: Duration = Duration::from_secs(60);
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
    /// Parts from the last read, with the changes since then, and the time when the read began. Several changes of a part may be sent at
    /// the same time.
    parts: HashMap<PartKey, (Instant, Objects)>,
    /// The names of load balancers that this process has read.
    balancers: BTreeSet<String>,
    /// Changes of firewall rules that the credentials do not allow, by the name of the rule.
    denied: BTreeMap<String, (Instant, DeniedFirewall)>,
    /// Objects that could not be deleted since others use them, by resource path: these others.
    kept: HashMap<String, (Instant, String)>,
    /// The nodes without an instance in the last listing that was read for such nodes.
    unlisted: Option<(Instant, BTreeSet<String>)>,
    /// The last directory, and the listings that it was built from.
    directory: Option<(ObjectListings, Arc<BalancerDirectory>)>,
}

/// The subnetwork of the cluster.
#[derive(Debug, Default)]
struct Subnetwork {
    path: String,
    /// Why there is none.
    problem: String,
    /// The network is one without subnetworks.
    is_legacy: bool,
}

/// The calls.
pub(crate) struct BalancerCalls {
    nodes: Nodes,
    settings: Arc<BalancerSettings>,
    cluster_id: ClusterIdCell,
    /// The subnetwork in the config.
    subnetwork: Option<NameOrPath>,
    credentials: CredentialsCheck,
    objects: Listings,
    /// By zone.
    instances: Cache<String, ZoneInstances>,
    /// Zones whose instances, and whose instance groups, could not be read.
    silent_instances: SilentZones,
    silent_groups: SilentZones,
    subnetworks: Cache<(), Subnetwork>,
    /// By resource path.
    requested_subnetworks: Cache<String, RequestedSubnetwork>,
    state: Mutex<CallState>,
}

impl fmt::Debug for BalancerCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalancerCalls").finish_non_exhaustive()
    }
}

/// The operations of a change, and the change.
#[derive(Debug)]
pub(crate) struct BalancerTicket {
    operations: Vec<AwaitedOperation>,
    change: ObjectChange,
    since: Instant,
}

/// A change that is being sent. If its future is dropped, the part is read again.
struct SendingChange<'a> {
    calls: &'a BalancerCalls,
    key: &'a PartKey,
    is_answered: bool,
}

impl Drop for SendingChange<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.calls.forget(self.key);
        }
    }
}

/// Listings of several [`ListedKinds`].
type ObjectListings = Vec<Arc<Listing<Object>>>;

/// Kinds of objects that are listed together. The read of a part needs only some of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListedKinds {
    /// Of all load balancers.
    Common,
    /// Of external ones only.
    External,
    /// Of internal ones only.
    Internal,
    /// The instance groups of a zone.
    Groups(String),
}

impl ListedKinds {
    fn all(zones: &[String]) -> Vec<Self> {
        let groups = zones.iter().map(|zone| Self::Groups(zone.clone()));
        [Self::Common, Self::External, Self::Internal].into_iter().chain(groups).collect()
    }

    fn of(object: &Object) -> Self {
        match object.kind {
            ObjectKind::Address
            | ObjectKind::Rule
            | ObjectKind::CheckFirewall
            | ObjectKind::Firewall
            | ObjectKind::DenyFirewall => Self::Common,
            ObjectKind::HttpCheck | ObjectKind::Pool => Self::External,
            ObjectKind::Check | ObjectKind::Backend => Self::Internal,
            ObjectKind::Group => Self::Groups(names::group_zone(&object.key).to_owned()),
        }
    }

    /// Whether a part may have such objects.
    fn may_be_in(&self, part: &PartKey, members: &[PartMember]) -> bool {
        let may_have = |scheme| match part {
            PartKey::NodeHttpCheck => scheme == Scheme::External,
            PartKey::NodeCheck | PartKey::SharedBackend(_) => scheme == Scheme::Internal,
            PartKey::Group(_) => false,
            PartKey::Balancer(_) => {
                members.is_empty()
                    || members.iter().any(|member| spec::may_have_been(&member.service, scheme))
            }
        };
        match self {
            Self::Common => !matches!(part, PartKey::Group(_) | PartKey::SharedBackend(_)),
            Self::External => may_have(Scheme::External),
            Self::Internal => may_have(Scheme::Internal),
            Self::Groups(zone) => {
                matches!(part, PartKey::Group(group) if names::group_zone(group) == zone)
            }
        }
    }

    /// Reads the listings.
    async fn read(
        self,
        client: Client,
        settings: Arc<BalancerSettings>,
        cluster_id: Arc<str>,
    ) -> Result<Vec<Object>> {
        let place = |kind| json::place_of(kind, &settings, "");
        let places = match &self {
            Self::Common => vec![
                place(ObjectKind::Address),
                place(ObjectKind::Rule),
                place(ObjectKind::Firewall),
            ],
            Self::External => vec![place(ObjectKind::HttpCheck), place(ObjectKind::Pool)],
            Self::Internal => vec![place(ObjectKind::Check), place(ObjectKind::Backend)],
            Self::Groups(zone) => vec![json::place_of(ObjectKind::Group, &settings, zone)],
        };
        let reads = places.into_iter().map(async |place: ObjectPlace<'_>| {
            let objects = client.objects(place).await?;
            let own = objects.iter().filter_map(|object| json::object_of(place, object, &cluster_id));
            Ok::<_, Error>(own.collect::<Vec<_>>())
        });
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }
}

/// The shared listings.
struct Listings {
    metrics: ClientMetrics,
    caches: Mutex<BTreeMap<ListedKinds, Arc<IndexedCache<Object>>>>,
}

impl Listings {
    fn of(&self, kinds: &ListedKinds) -> Arc<IndexedCache<Object>> {
        let name = match kinds {
            ListedKinds::Common => "gce_load_balancers",
            ListedKinds::External => "gce_external_load_balancers",
            ListedKinds::Internal => "gce_internal_load_balancers",
            ListedKinds::Groups(_) => "gce_instance_groups",
        };
        let new = || Arc::new(IndexedCache::new(name, &self.metrics));
        Arc::clone(self.caches.lock().entry(kinds.clone()).or_insert_with(new))
    }

    fn insert(&self, object: Object) {
        self.of(&ListedKinds::of(&object)).insert(object);
    }

    fn remove(&self, object: &Object) {
        self.of(&ListedKinds::of(object)).remove(&object.id);
    }

    /// The objects of a part are read again.
    fn invalidate(&self, part: &PartKey) {
        for cache in self.caches.lock().values() {
            cache.invalidate(&part.to_string());
        }
    }
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
            objects: Listings {
                metrics: metrics.clone(),
                caches: Mutex::default(),
            },
            instances: Cache::new(CacheConfig::new("gce_members"), metrics),
            silent_instances: SilentZones::default(),
            silent_groups: SilentZones::default(),
            subnetworks: Cache::new(CacheConfig::new("gce_subnetworks"), metrics),
            requested_subnetworks: Cache::new(CacheConfig::new("gce_requested_subnetworks"), metrics),
            state: Mutex::default(),
        }
    }

    fn client(&self, priority: Priority) -> Client {
        self.nodes.api.at(priority)
    }

    /// A listing. `part`: it is correct for this part.
    async fn listing(
        &self,
        kinds: &ListedKinds,
        part: Option<&PartKey>,
        read: ReadOptions,
    ) -> Result<Arc<Listing<Object>>> {
        let cluster_id = self.cluster_id.get()?;
        let (kinds_to_read, client) = (kinds.clone(), self.client(read.priority));
        let settings = Arc::clone(&self.settings);
        let load = move || kinds_to_read.read(client, settings, cluster_id);
        let part = part.map(ToString::to_string);
        self.objects.of(kinds).get(part.as_deref(), read.freshness, read.priority, load).await
    }

    /// The listings for the directory, and the zones whose instance groups could not be read.
    async fn listings(&self, read: ReadOptions) -> Result<(ObjectListings, BTreeSet<String>)> {
        let zones = self.nodes.site.zones(&self.client(read.priority), read.priority).await?;
        let reads = ListedKinds::all(&zones).into_iter().map(async |kinds| {
            let listing = self.listing(&kinds, None, read);
            let read = match &kinds {
                ListedKinds::Groups(zone) => self.silent_groups.read(zone, listing).await,
                _ => listing.await.map(Some),
            };
            Ok::<_, Error>((kinds, read?))
        });
        let (mut listings, mut silent) = (Vec::new(), BTreeSet::new());
        for (kinds, listing) in try_join_all(reads).await? {
            match (kinds, listing) {
                (_, Some(listing)) => listings.push(listing),
                (ListedKinds::Groups(zone), None) => {
                    silent.insert(zone);
                }
                (_, None) => {}
            }
        }
        if silent.len() == zones.len() {
            self.silent_groups.fail()?;
        }
        Ok((listings, silent))
    }

    /// The instances of the zones with eligible nodes. All of these nodes are in it that exist, if their zones answer.
    async fn instance_index(&self, cluster: &ClusterView, priority: Priority) -> Result<Arc<InstanceIndex>> {
        let asked = Instant::now();
        let all = self.nodes.site.zones(&self.client(priority), priority).await?;
        // Without a zone that a provider ID invents.
        let existing = |zones: Option<BTreeSet<String>>| {
            let is_asked = |zone: &&String| zones.as_ref().is_none_or(|zones| zones.contains(*zone));
            all.iter().filter(is_asked).cloned().collect::<BTreeSet<_>>()
        };
        let zones = existing(members::known_zones(cluster, &self.settings));
        let mut index = InstanceIndex::default();
        self.add_zones(&mut index, &zones, Freshness::AtMost(INSTANCES_AGE), priority).await?;
        let missing = index.missing(cluster, &self.settings);
        let is_known = |(since, known): &(Instant, BTreeSet<String>)| {
            since.elapsed() < UNLISTED_AGE && missing.keys().all(|node| known.contains(node))
        };
        if missing.is_empty() || self.state.lock().unlisted.as_ref().is_some_and(is_known) {
            return Ok(Arc::new(index));
        }
        let again = existing(missing.values().cloned().collect());
        self.add_zones(&mut index, &again, Freshness::After(asked), priority).await?;
        let missing = index.missing(cluster, &self.settings).into_keys();
        self.state.lock().unlisted = Some((asked, missing.collect()));
        Ok(Arc::new(index))
    }

    /// Reads the instances of zones into the index.
    async fn add_zones(
        &self,
        index: &mut InstanceIndex,
        zones: &BTreeSet<String>,
        freshness: Freshness,
        priority: Priority,
    ) -> Result<()> {
        let reads = zones.iter().map(async |zone| {
            let instances = self.listed_instances(zone, freshness, priority);
            (zone, self.silent_instances.read(zone, instances).await)
        });
        for (zone, instances) in join_all(reads).await {
            match instances? {
                Some(instances) => {
                    index.zones.insert(zone.clone(), instances);
                }
                None => {
                    index.zones.remove(zone);
                    index.silent.insert(zone.clone());
                }
            }
        }
        if index.zones.is_empty() && !index.silent.is_empty() {
            self.silent_instances.fail()?;
        }
        Ok(())
    }

    async fn listed_instances(
        &self,
        zone: &str,
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Arc<ZoneInstances>> {
        let (instances, of_zone) = (self.nodes.instances.clone(), zone.to_owned());
        let load = || async move {
            let pages = instances.listing(&of_zone, freshness, priority).await?;
            let all = pages.iter().flat_map(|page| &page.items);
            Ok(all.map(|instance| (instance.name.clone(), instance.tags.clone())).collect())
        };
        self.instances.get(zone.to_owned(), freshness, priority, load).await
    }

    /// The subnetwork of internal load balancers.
    async fn subnetwork(&self, priority: Priority) -> Result<Arc<Subnetwork>> {
        let path = match &self.subnetwork {
            Some(NameOrPath::Path(path)) => path.clone(),
            Some(NameOrPath::Name(name)) => self.settings.subnetwork_path(name),
            None => {
                let (client, settings) = (self.client(priority), Arc::clone(&self.settings));
                let load = || async move { found_subnetwork(&client, &settings).await };
                let freshness = Freshness::AtMost(SUBNETWORK_AGE);
                return self.subnetworks.get((), freshness, priority, load).await;
            }
        };
        Ok(Arc::new(Subnetwork {
            path,
            ..Subnetwork::default()
        }))
    }

    /// The subnetwork from which a Service requests its address, with this resource path.
    async fn requested_subnetwork(&self, path: &str, priority: Priority) -> Result<RequestedSubnetwork> {
        let known = self.requested_subnetworks.peek(path, Freshness::AtMost(SUBNETWORK_AGE));
        if let Some((known, _)) = known
            && known.problem.is_empty()
        {
            return Ok(RequestedSubnetwork::clone(&known));
        }
        let (client, settings, of) = (self.client(priority), Arc::clone(&self.settings), path.to_owned());
        let load = || async move { read_subnetwork(&client, &settings, &of).await };
        let freshness = Freshness::AtMost(PROBLEM_AGE);
        let read = self.requested_subnetworks.get(path.to_owned(), freshness, priority, load).await?;
        Ok(RequestedSubnetwork::clone(&read))
    }

    /// The objects of a part, from the listings, and the time when the oldest of these was read. `fills_groups`: with the members of
    /// instance groups, which are a further read.
    async fn objects_of(
        &self,
        key: &PartKey,
        members: &[PartMember],
        fills_groups: bool,
        read: ReadOptions,
    ) -> Result<(Instant, Objects)> {
        let cluster_id = self.cluster_id.get()?;
        let zones = self.nodes.site.zones(&self.client(read.priority), read.priority).await?;
        let needed = ListedKinds::all(&zones).into_iter().filter(|kinds| kinds.may_be_in(key, members));
        let listings = needed.map(async |kinds| self.listing(&kinds, Some(key), read).await);
        let listings = try_join_all(listings).await?;
        // No object has this ID: the time of the listing itself.
        let began = listings.iter().map(|listing| listing.as_of("")).min();
        let mut objects: Vec<_> = listings
            .iter()
            .flat_map(|listing| listing.all())
            .filter(|object| part_of(object, &cluster_id) == *key)
            .map(|object| Object::clone(object))
            .collect();
        for object in &mut objects {
            if object.kind == ObjectKind::Group && fills_groups {
                let place = json::place_of(ObjectKind::Group, &self.settings, &object.key);
                let links =
                    self.client(read.priority).group_members(place, json::object_name(object)).await?;
                let instances = links.iter().filter_map(|link| InstanceEntry::of_link(link));
                object.sets.insert(INSTANCES, instances.collect());
            }
        }
        let mut state = self.state.lock();
        state.kept.retain(|_, (since, _)| since.elapsed() < KEPT_AGE);
        Ok((began.unwrap_or_else(Instant::now), objects.into_iter().collect()))
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

    /// Applies a change to the cached state. `observed`: the part when the change was sent.
    fn applied(&self, key: &PartKey, change: &ObjectChange, reply: &ChangeReply, observed: &Objects) {
        if reply.kept.is_some() {
            return;
        }
        let mut after = observed.clone();
        after.fold(change, Some(&reply.objects));
        for object in &observed.all {
            if after.get(object.kind, &object.key).is_none() {
                self.objects.remove(object);
            }
        }
        for object in &after.all {
            if observed.get(object.kind, &object.key) != Some(object) {
                self.objects.insert(object.clone());
            }
        }
        // Others may have been applied since this one was sent.
        if let Some((_, known)) = self.state.lock().parts.get_mut(key) {
            known.fold(change, Some(&reply.objects));
        }
    }

    /// Applies a change whose operation has ended. If the part was read meanwhile, the answer may not show the change.
    fn ended(&self, key: &PartKey, change: &ObjectChange) {
        let Some((_, known)) = self.state.lock().parts.get(key).cloned() else {
            return;
        };
        let is_create = matches!(change.action, Action::Create(..));
        if is_create && known.get(change.kind, &change.key).is_none() {
            // Its address is not known.
            self.forget(key);
        } else {
            self.applied(key, change, &ChangeReply::default(), &known);
        }
    }

    /// Forgets what is known of a part after a change whose result is not known, or that failed.
    fn forget(&self, key: &PartKey) {
        self.objects.invalidate(key);
        self.state.lock().parts.remove(key);
    }

    /// An instance was deleted since the instances were listed.
    fn forget_instances(&self) {
        self.nodes.instances.forget_pages();
        self.instances.invalidate_all();
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
            // An instance was deleted after it was listed, and its node still exists.
            Action::Create(..) | Action::Add(..)
                if kind == ErrorKind::NotFound
                    && matches!(change.kind, ObjectKind::Pool | ObjectKind::Group) =>
            {
                self.forget_instances();
                Err(objects::stale().with_source(error))
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
                    let busy = Error::new(ErrorKind::Conflict, text).with_retry(Retry::Fixed(DENIED));
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
            ..Subnetwork::default()
        },
        [] if is_legacy_network(client, settings).await? => Subnetwork {
            is_legacy: true,
            ..Subnetwork::default()
        },
        several => Subnetwork {
            problem: format!(
                "network {name:?} has {} subnetworks in region {}; set subnetwork-name in the config, or name one in this annotation",
                several.len(),
                settings.region
            ),
            ..Subnetwork::default()
        },
    })
}

/// The subnetwork with this resource path, with the reason why it cannot be used. If the credentials may not read it, nothing is known
/// of it, and the API refuses the address.
async fn read_subnetwork(
    client: &Client,
    settings: &BalancerSettings,
    path: &str,
) -> Result<RequestedSubnetwork> {
    let mut parts = path.split('/').skip(1).step_by(2);
    let (Some(project), Some(region), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(RequestedSubnetwork::default());
    };
    let problem = match client.subnetwork(project, region, name).await {
        Ok(Some(found)) if found.network == settings.network => {
            return Ok(RequestedSubnetwork {
                range: found.range,
                ..RequestedSubnetwork::default()
            });
        }
        Ok(Some(found)) => format!(
            "subnetwork {name:?} is one of network {:?}, not of {:?}",
            last_component(&found.network),
            last_component(&settings.network)
        ),
        Ok(None) => format!("subnetwork {name:?} not found in region {region:?} of project {project:?}"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => String::new(),
        Err(error) => return Err(error),
    };
    Ok(RequestedSubnetwork {
        problem,
        ..RequestedSubnetwork::default()
    })
}

/// Whether the network is one without subnetworks. Such networks cannot be created any more, but still exist.
async fn is_legacy_network(client: &Client, settings: &BalancerSettings) -> Result<bool> {
    let name = last_component(&settings.network);
    let network = client.network(&settings.network_project, name).await?;
    Ok(network.is_some_and(|network| network.is_legacy))
}

/// Sends the calls of one change.
struct ObjectSender<'a> {
    client: Client,
    settings: &'a BalancerSettings,
    cluster_id: Arc<str>,
    operations: Mutex<Vec<(String, ComputeOperation)>>,
    /// The ID of the first request. A change that is sent again is answered with the operation of the first one.
    request_id: Mutex<Option<RequestId>>,
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

    /// The ID of the next request.
    fn next_request_id(&self) -> RequestId {
        self.request_id.lock().take().unwrap_or_else(RequestId::random)
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
        let id = self.next_request_id();
        let operation = self.client.insert_object(place, Value::Object(body), &id).await?;
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
        let (place, id) = (self.place(object), self.next_request_id());
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
                self.client.patch_object(place, &object.key, Value::Object(body), &id).await?
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
                self.client.replace_firewall(place.project, &object.key, body, &id).await?
            }
            kind => {
                let body = json::body_of(kind, &after.attributes);
                self.client.patch_object(place, &object.key, Value::Object(body), &id).await?
            }
        };
        self.accepted(object, operation);
        Ok(objects::ChangeReply::default())
    }

    async fn delete(&self, object: &Object, _: bool) -> Result<()> {
        let id = self.next_request_id();
        match self.client.delete_object(self.place(object), json::object_name(object), &id).await {
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
        let id = self.next_request_id();
        let operation = self.client.add_instances(place, name, &self.paths(entries), &id).await?;
        self.accepted(object, operation);
        Ok(objects::ChangeReply::default())
    }

    async fn remove(&self, object: &Object, _: &'static str, entries: &[InstanceEntry]) -> Result<()> {
        let (place, name) = (self.place(object), json::object_name(object));
        let id = self.next_request_id();
        let operation = self.client.remove_instances(place, name, &self.paths(entries), &id).await?;
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
        let (listings, silent) = self.listings(read).await?;
        let mut state = self.state.lock();
        if let Some((of, directory)) = &state.directory
            && directory.silent == silent
            && of.iter().zip(&listings).all(|(known, listing)| Arc::ptr_eq(known, listing))
        {
            return Ok(Arc::clone(directory));
        }
        let objects = listings.iter().flat_map(|listing| listing.all()).map(|object| Object::clone(object));
        let mut directory = BalancerDirectory::new(&cluster_id, objects);
        directory.silent = silent;
        let directory = Arc::new(directory);
        state.directory = Some((listings, Arc::clone(&directory)));
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
        if PartMember::staying(members).any(|member| Scheme::of(&member.service) == Scheme::Internal) {
            let subnetwork = self.subnetwork(read.priority).await?;
            inputs.subnetwork.clone_from(&subnetwork.path);
            inputs.no_subnetwork.clone_from(&subnetwork.problem);
            inputs.is_legacy_network = subnetwork.is_legacy;
            for member in PartMember::staying(members) {
                if let Some(path) = self.settings.requested_subnetwork(&member.spec, &inputs.subnetwork) {
                    let subnetwork = self.requested_subnetwork(&path, read.priority).await?;
                    inputs.requested_subnetworks.insert(path, subnetwork);
                }
            }
        }
        let mut state = self.state.lock();
        state.denied.retain(|_, (since, _)| since.elapsed() < DENIED_AGE);
        let denied = state.denied.iter().map(|(name, (_, denied))| (name.clone(), denied.clone()));
        inputs.denied = Arc::new(denied.collect());
        Ok(inputs.into())
    }

    async fn observe(&self, key: &PartKey, members: &[PartMember], read: ReadOptions) -> Result<Objects> {
        if let Some((began, known)) = self.state.lock().parts.get(key)
            && read.freshness.allows(*began)
        {
            return Ok(known.clone());
        }
        if let Some(objects) = self.with_address(key, read.priority).await? {
            return Ok(objects);
        }
        // A group that all Services leave is deleted with its members.
        let fills_groups = PartMember::staying(members).next().is_some();
        let (began, mut objects) = self.objects_of(key, members, fills_groups, read).await?;
        let mut state = self.state.lock();
        if let PartKey::Balancer(name) = key {
            state.balancers.insert(name.clone());
        }
        for object in &mut objects.all {
            if let Some((_, user)) = state.kept.get(&object.id) {
                object.foreign = Some(format!("in use: {user}"));
            }
        }
        if fills_groups || objects.of(ObjectKind::Group).next().is_none() {
            state.parts.insert(key.clone(), (began, objects.clone()));
        } else {
            state.parts.remove(key);
        }
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
            request_id: Mutex::new(options.request_id.clone()),
        };
        let change = &with_reserved_address(change, observed);
        let mut sending = SendingChange {
            calls: self,
            key,
            is_answered: false,
        };
        let reply = match objects::send(&sender, change, observed).await {
            Ok(objects) => ChangeReply { objects, kept: None },
            Err(error) => {
                let has_members = matches!(change.kind, ObjectKind::Pool | ObjectKind::Group);
                if has_members && error.kind() == ErrorKind::NotFound {
                    self.forget_instances();
                }
                self.failed(change, observed, error)?
            }
        };
        sending.is_answered = reply.kept.is_none();
        self.applied(key, change, &reply, observed);
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
                since: Instant::now(),
            },
            wait: Wait {
                poll: FIRST_POLL,
                deadline: DEADLINE,
            },
        })
    }

    fn takes_request_ids(&self) -> bool {
        true
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
                EndedOperation::NotYet => {
                    return Ok(Some(POLL + ticket.since.elapsed().mul_f64(POLL_GROWTH)));
                }
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
        self.ended(key, &ticket.change);
        Ok(None)
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.nodes, cluster, read).await
    }
}
