//! The calls of the plan: reading how parts are, and making one change after the other.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Cloud, Error, ErrorKind, Freshness, Priority, Result, Retry, async_trait,
    client::{Cache, CacheConfig, ClientMetrics, Indexed, IndexedCache, Listing},
    load_balancer::{ClusterView, Ownership, ReadOptions, ServiceId, ServiceView},
    plan::{
        CredentialsCheck, GatheredInputs, Membership, Outcome, PartCloud, ScopeCheck, Wait,
        objects::{self, Action, Change, Object, Objects, Refused},
    },
};
use futures_util::future::{try_join, try_join_all};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    classic::listeners_in,
    desired::Observed,
    kinds::{CERTIFICATES, Entry, Key, Kind, OWNER_TAG, RULES, TAGS, TARGETS},
    model::{Directory, Inputs, Model, NodeGroup, PartMember, Reply},
    names,
    send::Sender,
    spec::{self, Flavor, NetworkSpec},
    subnets,
};
use crate::{
    client::{
        Api,
        ec2::{FILTER_VALUES, RouteTable, Subnet},
    },
    cluster::{LEGACY, SERVICE_NAME, Tags, has_any_cluster},
    config::LoadBalancing,
    site::Site,
};

/// Subnets and route tables are read again after this.
const NETWORK_AGE: Duration = Duration::from_secs(300);
/// The same if a Service waits for a subnet.
const MISSING_AGE: Duration = Duration::from_secs(5);
/// The security groups of instances are read again after this.
const INSTANCE_AGE: Duration = Duration::from_secs(600);
/// An action that the credentials may not call is tried again after this.
const DENIED_AGE: Duration = Duration::from_secs(600);
/// An object is in use until what needs it is gone.
const IN_USE: Duration = Duration::from_secs(2);

/// Actions that upstream does without: they are not in the rights that it documents.
const OPTIONAL: [&str; 5] = [
    "SetSubnets",
    "ModifyTargetGroupAttributes",
    "AddListenerCertificates",
    "RemoveListenerCertificates",
    "RemoveTags",
];

/// An object in a listing.
#[derive(Clone, Debug)]
struct Listed(Object<Kind>);

impl Indexed for Listed {
    fn id(&self) -> &str {
        &self.0.id
    }

    fn index_keys(&self) -> Vec<&str> {
        vec![&self.0.key]
    }
}

/// The subnets of the VPC, and where their packets go.
#[derive(Debug)]
struct Network {
    subnets: Vec<Subnet>,
    route_tables: Vec<RouteTable>,
}

/// A part as it was last read, with the changes since then.
struct Known {
    /// When the read began.
    began: Instant,
    observed: Observed,
}

/// What the calls keep. All of it can be read again.
#[derive(Default)]
struct State {
    parts: HashMap<Key, Known>,
    /// Counts writes: a read that began before one is not kept.
    writes: u64,
    /// The last directory, and the listings that it is of.
    directory: Option<(Snapshot, Arc<Directory>)>,
    /// The tags of load balancers and target groups, by ARN.
    tags: HashMap<String, Vec<Entry>>,
    /// The security groups of instances, and when they were read.
    instances: HashMap<String, (Instant, Vec<String>)>,
    /// Services as this process first saw them, and whether they changed since.
    seen: HashMap<ServiceId, (Arc<ServiceView>, bool)>,
    /// Actions that the credentials may not call, with the error.
    denied: BTreeMap<&'static str, (Instant, String)>,
    /// The cluster as the last pass saw it.
    cluster: ClusterView,
    /// Rules that a full security group refused, and since when.
    refused: Option<(Instant, Vec<Refused<Kind>>)>,
}

/// The kinds of objects that are listed. The security groups are those with the cluster's tag.
const LISTED: [Kind; 4] = [Kind::Group, Kind::TargetGroup, Kind::Balancer, Kind::Classic];

/// The listings at one moment, in the order of [`LISTED`].
#[derive(Clone)]
struct Snapshot(Vec<Arc<Listing<Listed>>>);

impl Snapshot {
    fn of(&self, kind: Kind) -> impl Iterator<Item = &Listing<Listed>> {
        let listings = LISTED
            .iter()
            .zip(&self.0)
            .filter(move |(listed, _)| **listed == kind);
        listings.map(|(_, listing)| &**listing)
    }

    fn all(&self, kind: Kind) -> impl Iterator<Item = &Object<Kind>> {
        self.of(kind).flat_map(Listing::all).map(|listed| &listed.0)
    }

    /// The objects of a kind with this name.
    fn named<'a>(&'a self, kind: Kind, name: &'a str) -> impl Iterator<Item = &'a Object<Kind>> {
        self.of(kind)
            .flat_map(|listing| listing.by_key(name))
            .map(|listed| &listed.0)
    }

    fn by_id(&self, kind: Kind, id: &str) -> Option<&Object<Kind>> {
        self.of(kind)
            .find_map(|listing| listing.by_id(id))
            .map(|listed| &listed.0)
    }

    /// Whether no load balancer that exists uses a target group.
    fn is_loose(&self, group: &Object<Kind>) -> bool {
        group
            .texts("balancers")
            .into_iter()
            .all(|arn| self.by_id(Kind::Balancer, arn).is_none())
    }

    fn is(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// The calls.
pub(crate) struct Calls<C> {
    api: Api,
    site: Arc<Site>,
    settings: Arc<LoadBalancing>,
    cloud: C,
    credentials: CredentialsCheck,
    /// In the order of [`LISTED`].
    listings: [IndexedCache<Listed>; 4],
    network: Cache<(), Network>,
    state: Mutex<State>,
}

impl<C> fmt::Debug for Calls<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

fn tag_map(object: &Object<Kind>) -> Tags {
    let tags = object.set(TAGS).iter().filter_map(Entry::as_tag);
    tags.map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Lists the objects of a kind.
async fn list(api: Api, site: Arc<Site>, kind: Kind, priority: Priority) -> Result<Vec<Listed>> {
    let objects = match kind {
        Kind::Balancer => api.network_balancers(priority).await?,
        Kind::TargetGroup => api.target_groups(priority).await?,
        Kind::Classic => api.classic_balancers(priority).await?,
        _ => {
            let keys = site
                .cluster
                .key()
                .into_iter()
                .flat_map(|key| [key, LEGACY.to_owned()]);
            let mut groups = api.security_groups(&site.vpc, keys.collect(), priority).await?;
            groups.retain(|group| site.cluster.has(&tag_map(group)));
            groups
        }
    };
    Ok(objects.into_iter().map(Listed).collect())
}

impl<C: Cloud> Calls<C> {
    /// Calls of this API. `cloud`: through which nodes are seen.
    pub(crate) fn new(
        api: &Api,
        site: &Arc<Site>,
        settings: Arc<LoadBalancing>,
        cloud: C,
        metrics: &ClientMetrics,
    ) -> Self {
        Self {
            api: api.clone(),
            site: Arc::clone(site),
            settings,
            cloud,
            credentials: CredentialsCheck::default(),
            listings: [
                IndexedCache::new("aws_security_groups", metrics),
                IndexedCache::new("aws_target_groups", metrics),
                IndexedCache::new("aws_load_balancers", metrics),
                IndexedCache::new("aws_classic_load_balancers", metrics),
            ],
            network: Cache::new(CacheConfig::new("aws_subnets"), metrics),
            state: Mutex::default(),
        }
    }

    /// The shared listings.
    async fn listings(&self, read: ReadOptions) -> Result<Snapshot> {
        let listings = self.listings.iter().zip(LISTED).map(|(listing, kind)| {
            listing.get(None, read.freshness, move || {
                list(self.api.clone(), Arc::clone(&self.site), kind, read.priority)
            })
        });
        try_join_all(listings).await.map(Snapshot)
    }

    async fn network(&self, age: Duration, priority: Priority) -> Result<Arc<Network>> {
        let load = || {
            let (api, vpc) = (self.api.clone(), self.site.vpc.clone());
            async move {
                let filter = [("vpc-id", vec![vpc])];
                let (subnets, route_tables) = try_join(
                    api.subnets(&filter, priority),
                    api.route_tables(&filter, priority),
                )
                .await?;
                Ok(Network {
                    subnets,
                    route_tables,
                })
            }
        };
        self.network.get((), Freshness::AtMost(age), load).await
    }

    /// What the credentials may not do: `action` is remembered, and everything else is an error.
    fn allowed<T: Default>(&self, action: &'static str, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                self.deny(action, &error);
                Ok(T::default())
            }
            result => result,
        }
    }

    fn deny(&self, action: &'static str, error: &Error) -> String {
        let text = format!("the credentials may not call elasticloadbalancing:{action}: {error}");
        self.state
            .lock()
            .denied
            .insert(action, (Instant::now(), text.clone()));
        text
    }

    fn is_denied(&self, action: &str) -> bool {
        let state = self.state.lock();
        state
            .denied
            .get(action)
            .is_some_and(|(since, _)| since.elapsed() < DENIED_AGE)
    }

    /// Tags by ARN; empty if they may not be read. Those that are known may be old.
    async fn read_tags(&self, mut unknown: Vec<String>, fresh: bool, priority: Priority) -> Result<()> {
        unknown.retain(|id| fresh || !self.state.lock().tags.contains_key(id));
        if unknown.is_empty() || self.is_denied("DescribeTags") {
            return Ok(());
        }
        let (classic, others): (Vec<_>, Vec<_>) = unknown.into_iter().partition(|id| !id.starts_with("arn:"));
        let read = try_join(
            self.api.load_balancer_tags(&others, priority),
            self.api.classic_tags(&classic, priority),
        );
        let (tags, classic) = self.allowed("DescribeTags", read.await)?;
        self.state.lock().tags.extend(tags.into_iter().chain(classic));
        Ok(())
    }

    fn tagged(&self, object: &Object<Kind>) -> Object<Kind> {
        let mut object = object.clone();
        if let Some(tags) = self.state.lock().tags.get(&object.id) {
            object.sets.insert(TAGS, tags.as_slice().into());
        }
        object.foreign = self.foreign(&object);
        object
    }

    /// Who else an object belongs to.
    fn foreign(&self, object: &Object<Kind>) -> Option<String> {
        let kind = object.text("type");
        if object.kind == Kind::Balancer && kind != "network" {
            return Some(format!("a load balancer of type {kind}"));
        }
        let tags = tag_map(object);
        if has_any_cluster(&tags) && !self.site.cluster.has(&tags) {
            return Some("another cluster's".to_owned());
        }
        let owners = tags.get(OWNER_TAG).map(String::as_str);
        match self.state.lock().cluster.ownership_tag.ownership(owners) {
            Ownership::Foreign(cluster) => Some(format!("the cluster's with the UID {}", cluster.uid())),
            _ => None,
        }
    }

    async fn read_directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
        let listings = self.listings(read).await?;
        if let Some((of, directory)) = &self.state.lock().directory
            && of.is(&listings)
        {
            return Ok(Arc::clone(directory));
        }
        let is_named_by_us = |object: &&Object<Kind>| {
            object.key.starts_with('a') && object.key.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let balancers = listings.all(Kind::Balancer).chain(listings.all(Kind::Classic));
        let balancers: Vec<_> = balancers.filter(is_named_by_us).collect();
        let loose = listings
            .all(Kind::TargetGroup)
            .filter(|group| listings.is_loose(group));
        let loose: Vec<_> = loose.filter(|group| group.key.starts_with("k8s-")).collect();
        let ids = balancers.iter().chain(&loose).map(|object| object.id.clone());
        self.read_tags(ids.collect(), false, read.priority).await?;
        let cluster = &self.site.cluster;
        let balancers = balancers.into_iter().map(|object| self.tagged(object));
        let balancers = balancers.filter(|object| {
            let tags = tag_map(object);
            cluster.has(&tags) || !has_any_cluster(&tags)
        });
        let loose = loose.into_iter().filter_map(|group| {
            let tags = tag_map(&self.tagged(group));
            let service = tags.get(SERVICE_NAME).filter(|_| cluster.owns(&tags))?;
            Some((service.clone(), group.key.clone()))
        });
        let directory = Directory::new(balancers, listings.all(Kind::Group), loose.collect());
        let directory = Arc::new(directory);
        self.state.lock().directory = Some((listings, Arc::clone(&directory)));
        Ok(directory)
    }

    /// Reads a load balancer with everything that only it uses. Of one that is deleted, only what there is.
    async fn balancer(&self, name: &str, members: &[PartMember], read: ReadOptions) -> Result<Observed> {
        let priority = read.priority;
        let listings = self.listings(read).await?;
        let stays = members
            .iter()
            .any(|member| member.membership != Membership::Leaving);
        let roots = listings
            .named(Kind::Balancer, name)
            .chain(listings.named(Kind::Classic, name));
        let roots: Vec<_> = roots.collect();
        let groups: Vec<_> = self.target_groups(&roots, members, &listings).collect();
        let mut listeners = Vec::new();
        for root in roots.iter().filter(|root| stays && root.kind == Kind::Balancer) {
            listeners.extend(self.api.listeners(&root.id, priority).await?);
        }
        let all = roots
            .iter()
            .copied()
            .chain(groups.iter().copied())
            .chain(&listeners);
        let fresh = stays && matches!(read.freshness, Freshness::After(_));
        self.read_tags(all.map(|object| object.id.clone()).collect(), fresh, priority)
            .await?;
        let mut objects = Vec::new();
        for root in roots {
            let mut root = self.tagged(root);
            if stays && root.foreign.is_none() {
                match root.kind {
                    Kind::Balancer => {
                        let attributes = self.api.attributes(root.kind, &root.id, priority).await?;
                        root.attributes.extend(attributes);
                    }
                    _ => objects.extend(self.api.classic_details(&mut root, priority).await?),
                }
            }
            objects.push(root);
        }
        let is_foreign = objects.iter().any(|root| root.foreign.is_some());
        let groups = groups
            .into_iter()
            .filter(|group| !is_foreign || listings.is_loose(group));
        let groups = groups.map(|group| self.target_group(group, stays, priority));
        objects.extend(try_join_all(groups).await?);
        let listeners = listeners.iter().filter(|_| !is_foreign);
        let listeners = listeners.map(|listener| self.listener(listener, name, &listings, priority));
        objects.extend(try_join_all(listeners).await?);
        self.add_own_groups(name, members, &listings, &mut objects);
        Ok(self.observed(objects))
    }

    /// With what the credentials may not do.
    fn observed(&self, objects: Vec<Object<Kind>>) -> Observed {
        let mut state = self.state.lock();
        state.denied.retain(|_, (since, _)| since.elapsed() < DENIED_AGE);
        let denied = state
            .denied
            .iter()
            .map(|(action, (_, why))| (*action, why.clone()));
        Observed {
            objects: objects.into_iter().collect(),
            denied: denied.collect(),
        }
    }

    /// The target groups that the load balancers use, and those of their Service that none uses.
    fn target_groups<'a>(
        &'a self,
        balancers: &[&Object<Kind>],
        members: &[PartMember],
        listings: &'a Snapshot,
    ) -> impl Iterator<Item = &'a Object<Kind>> {
        let arns: BTreeSet<_> = balancers.iter().map(|balancer| balancer.id.clone()).collect();
        let services = members
            .iter()
            .map(|member| names::service_tag(&member.service.id));
        let services: BTreeSet<_> = services.collect();
        let names = members.iter().flat_map(|PartMember { service, .. }| {
            let spec = NetworkSpec::read(service, &self.settings).spec;
            spec.target_group_names(&self.site.cluster.id, &service.id)
        });
        let names: BTreeSet<_> = names.collect();
        listings.all(Kind::TargetGroup).filter(move |group| {
            let is_used = group.texts("balancers").into_iter().any(|arn| arns.contains(arn));
            let is_ours = || {
                let tags = tag_map(&self.tagged(group));
                let service = tags.get(SERVICE_NAME);
                service.is_some_and(|service| services.contains(service)) && self.site.cluster.owns(&tags)
            };
            is_used || (listings.is_loose(group) && (names.contains(&group.key) || is_ours()))
        })
    }

    async fn target_group(
        &self,
        group: &Object<Kind>,
        stays: bool,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        const ACTION: &str = "DescribeTargetGroupAttributes";
        let mut group = self.tagged(group);
        if !stays || group.foreign.is_some() {
            return Ok(group);
        }
        let targets = self.api.targets(&group.id, priority);
        if self.is_denied(ACTION) {
            return Ok(group.clone().entries(TARGETS, targets.await?));
        }
        let attributes = async {
            let read = self.api.attributes(Kind::TargetGroup, &group.id, priority).await;
            self.allowed(ACTION, read)
        };
        let (targets, attributes) = try_join(targets, attributes).await?;
        group.attributes.extend(attributes);
        Ok(group.entries(TARGETS, targets))
    }

    /// A listener with the name of its target group, and with all certificates.
    async fn listener(
        &self,
        listener: &Object<Kind>,
        balancer: &str,
        listings: &Snapshot,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        const ACTION: &str = "DescribeListenerCertificates";
        let mut listener = self.tagged(listener);
        listener.parent = Some(balancer.to_owned());
        if let Some(group) = listings.by_id(Kind::TargetGroup, listener.text("target_group")) {
            listener
                .attributes
                .insert("target_group", group.key.as_str().into());
        }
        if listener.text("protocol") == "TLS" && !self.is_denied(ACTION) {
            let certificates = self.allowed(ACTION, self.api.certificates(&listener.id, priority).await)?;
            listener = listener.entries(CERTIFICATES, certificates);
        }
        Ok(listener)
    }

    /// Adds the security groups that only this load balancer uses, and puts their names in the place of their IDs.
    fn add_own_groups(
        &self,
        balancer: &str,
        members: &[PartMember],
        listings: &Snapshot,
        objects: &mut Vec<Object<Kind>>,
    ) {
        let cluster = self.state.lock().cluster.name.clone();
        let names = members
            .iter()
            .map(|member| names::group(&cluster, &member.service.id));
        let names: Vec<_> = names.chain([names::classic_group(balancer)]).collect();
        let groups = listings
            .all(Kind::Group)
            .filter(|group| names.contains(&group.key));
        let groups: Vec<_> = groups
            .filter(|group| self.site.cluster.owns(&tag_map(group)))
            .cloned()
            .collect();
        for object in &mut *objects {
            let name = |id| {
                groups
                    .iter()
                    .find(|group| group.id == id)
                    .map_or(id, |group| group.key.as_str())
            };
            let named: Vec<_> = object.texts("security_groups").into_iter().map(name).collect();
            if !named.is_empty() {
                let named = named.into();
                object.attributes.insert("security_groups", named);
            }
        }
        objects.extend(groups);
    }

    /// The security groups of the instances behind a member, in the order of the API. Missing: the instance does not exist.
    async fn groups_of(
        &self,
        instances: BTreeSet<String>,
        priority: Priority,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let unknown: Vec<_> = {
            let state = self.state.lock();
            let is_old = |id: &&String| {
                state
                    .instances
                    .get(*id)
                    .is_none_or(|(read, _)| read.elapsed() > INSTANCE_AGE)
            };
            instances.iter().filter(is_old).cloned().collect()
        };
        for ids in unknown.chunks(FILTER_VALUES) {
            let began = Instant::now();
            let found = self
                .api
                .instances(&[("instance-id", ids.to_vec())], priority)
                .await?;
            let mut state = self.state.lock();
            state
                .instances
                .retain(|_, (read, _)| read.elapsed() < 2 * INSTANCE_AGE);
            for instance in found {
                state
                    .instances
                    .insert(instance.id, (began, instance.security_groups));
            }
        }
        let state = self.state.lock();
        let known = instances.into_iter().filter_map(|id| {
            let groups = state.instances.get(&id)?.1.clone();
            Some((id, groups))
        });
        Ok(known.collect())
    }

    /// The security group of each instance behind the members.
    async fn node_groups(
        &self,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<BTreeMap<String, Result<NodeGroup, String>>> {
        let active = members
            .iter()
            .filter(|member| member.membership == Membership::Active);
        let instances =
            active.flat_map(|member| spec::instances(&member.service, cluster).unwrap_or_default());
        let groups = self.groups_of(instances.collect(), read.priority).await?;
        let listings = self.listings(read).await?;
        let chosen = groups.into_iter().map(|(instance, groups)| {
            let (mut tagged, others): (Vec<_>, Vec<_>) = groups
                .into_iter()
                .partition(|id| listings.by_id(Kind::Group, id).is_some());
            tagged.sort();
            let group = match (tagged.split_first(), others.as_slice()) {
                (Some((id, others)), _) => Ok(NodeGroup {
                    id: id.clone(),
                    others: others.to_vec(),
                }),
                (None, [id]) => Ok(NodeGroup {
                    id: id.clone(),
                    others: Vec::new(),
                }),
                (None, []) => Err("it has no security group".to_owned()),
                (None, several) => Err(format!(
                    "none of its security groups {} has the cluster's tag; tag one with {}",
                    several.join(", "),
                    self.site.cluster.key().unwrap_or_default()
                )),
            };
            (instance, group)
        });
        Ok(chosen.collect())
    }

    async fn node_rules(&self, members: &[PartMember], read: ReadOptions) -> Result<Observed> {
        let listings = self.listings(read).await?;
        let cluster = self.state.lock().cluster.clone();
        let needed = self
            .node_groups(members, &cluster, read)
            .await?
            .into_values()
            .flatten();
        let others = needed
            .map(|group| group.id)
            .filter(|id| listings.by_id(Kind::Group, id).is_none());
        let others: BTreeSet<_> = others.collect();
        let others: Vec<_> = others.into_iter().collect();
        let others = self.api.security_groups_by_id(&others, read.priority).await?;
        let groups = listings.all(Kind::Group).chain(&others).map(|group| Object {
            id: group.id.clone(),
            ..Object::new(Kind::NodeGroup, &group.id).entries(RULES, group.set(RULES).iter().cloned())
        });
        let mut observed = self.observed(groups.collect());
        let refused = self.state.lock().refused.clone();
        if let Some((_, refused)) = refused.filter(|(since, _)| read.freshness.allows(*since)) {
            observed.objects.refused = refused;
        }
        Ok(observed)
    }

    /// Takes a change into everything that is kept.
    fn applied(&self, key: &Key, change: &Change<Kind>, reply: &Reply, observed: &Observed) {
        let mut after = observed.objects.clone();
        if reply.denied.is_none() {
            after.fold(change, Some(&reply.objects));
        }
        let mut state = self.state.lock();
        state.writes += 1;
        if let Some(known) = state.parts.get_mut(key) {
            known.observed.objects = after.clone();
            known.observed.denied.extend(reply.denied.clone());
        }
        let listing = |kind| {
            self.listings
                .iter()
                .zip(LISTED)
                .find(|(_, listed)| *listed == kind)
        };
        let changed = after.get(change.kind, &change.key);
        match (
            change.kind,
            changed,
            observed.objects.get(change.kind, &change.key),
        ) {
            (Kind::NodeGroup, Some(group), _) => {
                // What leaves makes room.
                let is_full = !after.refused.is_empty() && matches!(change.action, Action::Add(..));
                state.refused = is_full.then(|| (Instant::now(), after.refused.clone()));
                let rules = group.set(RULES).into();
                if let Some((groups, _)) = listing(Kind::Group) {
                    groups.update(&group.id, |listed| drop(listed.0.sets.insert(RULES, rules)));
                }
            }
            (Kind::ClassicListener, ..) => {
                let parent = change.parent.clone().unwrap_or_default();
                let listeners = listeners_in(&after, &parent);
                if let Some((classic, _)) = listing(Kind::Classic) {
                    classic.update(&parent, |listed| {
                        listed.0.attributes.insert("listeners", listeners);
                    });
                }
            }
            (kind, Some(object), _) => {
                state.tags.insert(object.id.clone(), object.set(TAGS).to_vec());
                let mut object = object.clone();
                if object.attributes.contains_key("security_groups") {
                    let ids = object
                        .texts("security_groups")
                        .into_iter()
                        .map(|name| group_id(&after, name));
                    let ids: Vec<_> = ids.collect();
                    object.attributes.insert("security_groups", ids.into());
                }
                if kind == Kind::Classic {
                    let listeners = listeners_in(&after, &object.key);
                    object.attributes.insert("listeners", listeners);
                }
                if let Some((listing, _)) = listing(kind) {
                    listing.insert(Listed(object));
                }
            }
            (kind, None, Some(gone)) => {
                state.tags.remove(&gone.id);
                if let Some((listing, _)) = listing(kind) {
                    listing.remove(&gone.id);
                }
            }
            (_, None, None) => {}
        }
    }
}

/// The ID of a security group that is known by its name.
pub(super) fn group_id(objects: &Objects<Kind>, name: &str) -> String {
    objects.id(Kind::Group, name).unwrap_or(name).to_owned()
}

#[async_trait]
impl<C: Cloud + 'static> PartCloud<Model> for Calls<C> {
    /// Elastic Load Balancing carries out every change at once.
    type Ticket = ();

    async fn directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
        self.read_directory(read).await
    }

    async fn inputs(
        &self,
        key: &Key,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<Inputs>> {
        let listings = self.listings(read).await?;
        let mut gathered = GatheredInputs::from(Inputs::default());
        let inputs = &mut gathered.inputs;
        {
            let mut state = self.state.lock();
            state.cluster = cluster.clone();
            let unread = state
                .denied
                .iter()
                .filter(|(action, _)| action.starts_with("Describe"));
            inputs.unread = unread.map(|(_, (_, why))| why.clone()).collect();
        }
        for member in members {
            let service = &member.service;
            if self.has_changed(member) {
                inputs.changed.insert(service.id.clone());
            }
            let name = names::balancer(&service.id);
            let mut source = listings
                .named(Kind::Group, &names::classic_group(&name))
                .next()
                .map(|group| group.id.clone());
            if listings.named(Kind::Balancer, &name).next().is_some() {
                inputs.flavors.insert(service.id.clone(), Flavor::Network);
            } else if let Some(classic) = listings.named(Kind::Classic, &name).next() {
                inputs.flavors.insert(service.id.clone(), Flavor::Classic);
                source = source.or_else(|| classic.texts("security_groups").first().map(ToString::to_string));
            }
            inputs.sources.extend(source.map(|group| (name, group)));
        }
        let active = members
            .iter()
            .filter(|member| member.membership == Membership::Active);
        if *key == Key::NodeGroups {
            inputs.groups = self.node_groups(members, cluster, read).await?;
            let network = self.network(NETWORK_AGE, read.priority).await?;
            let cidrs = network.subnets.iter().map(|subnet| {
                let cidrs = std::iter::once(&subnet.cidr).chain(&subnet.ipv6_cidrs);
                (subnet.id.clone(), cidrs.cloned().collect())
            });
            inputs.cidrs = cidrs.collect();
            return Ok(gathered);
        }
        for PartMember { service, .. } in active {
            let exists = gathered.inputs.flavors.contains_key(&service.id);
            match self.places(service, read.priority).await? {
                Ok(places) => drop(gathered.inputs.places.insert(service.id.clone(), places)),
                // One that exists keeps its subnets.
                Err(_) if exists => {}
                Err(why) => {
                    let error = Error::new(ErrorKind::InvalidSpec, why);
                    gathered.refused.push((service.id.clone(), error));
                }
            }
        }
        Ok(gathered)
    }

    async fn observe(&self, key: &Key, members: &[PartMember], read: ReadOptions) -> Result<Observed> {
        let stays = members
            .iter()
            .any(|member| member.membership != Membership::Leaving);
        let began = Instant::now();
        let writes = {
            let mut state = self.state.lock();
            if let Some(known) = state.parts.get(key)
                && read.freshness.allows(known.began)
                && *key != Key::NodeGroups
            {
                return Ok(known.observed.clone());
            }
            // Until it is read.
            state.parts.remove(key);
            state.writes
        };
        let observed = match key {
            Key::Balancer(name) => self.balancer(name, members, read).await?,
            Key::NodeGroups => self.node_rules(members, read).await?,
        };
        let mut state = self.state.lock();
        if stays && state.writes == writes {
            let observed = observed.clone();
            state.parts.insert(key.clone(), Known { began, observed });
        }
        Ok(observed)
    }

    async fn send(
        &self,
        key: &Key,
        change: &Change<Kind>,
        observed: &Observed,
        priority: Priority,
    ) -> Result<Outcome<Reply, ()>> {
        let sender = Sender {
            api: &self.api,
            vpc: &self.site.vpc,
            priority,
        };
        let label = match &change.action {
            Action::Update(label, _) => label,
            Action::Add(set, _) | Action::Set(set, _) => set.add,
            Action::Remove(set, _) => set.remove,
            Action::Create(..) | Action::Delete(_) => "",
        };
        let reply = match objects::send(&sender, change, &observed.objects).await {
            Ok(Some(objects)) => Reply {
                objects,
                denied: None,
            },
            Ok(None) => {
                self.state.lock().parts.remove(key);
                let text = "it is not as it was read";
                return Err(Error::new(ErrorKind::Conflict, text).with_retry(Retry::Never));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied && OPTIONAL.contains(&label) => Reply {
                denied: Some((label, self.deny(label, &error))),
                ..Reply::default()
            },
            Err(error) => {
                let mut state = self.state.lock();
                state.writes += 1;
                state.parts.remove(key);
                drop(state);
                let is_delete = matches!(change.action, Action::Delete(_));
                if is_delete && error.kind() == ErrorKind::Conflict && error.retry() == Retry::Backoff {
                    return Err(error.with_retry(Retry::Fixed(IN_USE)));
                }
                return Err(error);
            }
        };
        self.applied(key, change, &reply, observed);
        Ok(Outcome::Done(reply))
    }

    async fn poll(&self, _: &Key, (): &(), _: Priority) -> Result<Option<Wait>> {
        Ok(None)
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.cloud, cluster, read).await
    }
}

impl<C: Cloud> Calls<C> {
    /// Whether a Service changed while this process ran.
    fn has_changed(
        &self,
        PartMember {
            service, membership, ..
        }: &PartMember,
    ) -> bool {
        let seen = &mut self.state.lock().seen;
        if *membership == Membership::Leaving {
            seen.remove(&service.id);
            return false;
        }
        let first = || (Arc::clone(service), false);
        let (first, changed) = seen.entry(service.id.clone()).or_insert_with(first);
        *changed |= !first.asks_the_same(service);
        *changed
    }

    /// The subnets of a Service's load balancer, or why there is none.
    async fn places(
        &self,
        service: &ServiceView,
        priority: Priority,
    ) -> Result<Result<Vec<subnets::Place>, String>> {
        let spec = NetworkSpec::read(service, &self.settings).spec.common;
        let site = &self.site;
        let choose = |network: &Network| match &spec.subnets {
            Some(names) => subnets::named(names, &network.subnets),
            None => subnets::discovered(
                &network.subnets,
                &network.route_tables,
                spec.internal,
                &site.cluster,
                &site.region,
                site.subnet.as_deref(),
            ),
        };
        let found = choose(&*self.network(NETWORK_AGE, priority).await?);
        if found.is_ok() {
            return Ok(found);
        }
        Ok(choose(&*self.network(MISSING_AGE, priority).await?))
    }
}
