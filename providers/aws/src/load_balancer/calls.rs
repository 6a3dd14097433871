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
    load_balancer::{ClusterView, Ownership, OwnershipTag, ReadOptions, ServiceId, ServiceView},
    plan::{
        CredentialsCheck, GatheredInputs, Membership, Outcome, PartCloud, ScopeCheck, Wait,
        objects::{self, Action, Attributes, Change, Object, Objects, Refused},
    },
};
use futures_util::future::{try_join, try_join_all};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    desired::{Builder, Observed},
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
    cluster::{SERVICE_NAME, Tags, has_any_cluster},
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

/// The listings at one moment.
#[derive(Clone)]
struct Snapshot {
    balancers: Arc<Listing<Listed>>,
    target_groups: Arc<Listing<Listed>>,
    classic: Arc<Listing<Listed>>,
    groups: Arc<Listing<Listed>>,
}

/// The calls.
pub(crate) struct Calls<C> {
    api: Api,
    site: Arc<Site>,
    settings: Arc<LoadBalancing>,
    cloud: C,
    credentials: CredentialsCheck,
    balancers: IndexedCache<Listed>,
    target_groups: IndexedCache<Listed>,
    classic: IndexedCache<Listed>,
    groups: IndexedCache<Listed>,
    network: Cache<(), Network>,
    state: Mutex<State>,
}

impl<C> fmt::Debug for Calls<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

/// The texts in a list.
pub(super) fn texts(object: &Object<Kind>, name: &str) -> Vec<String> {
    let list = object.attributes.get(name).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

fn tag_map(tags: &[Entry]) -> Tags {
    let tags = tags.iter().filter_map(|entry| match entry {
        Entry::Tag { key, value } => Some((key.clone(), value.clone())),
        _ => None,
    });
    tags.collect()
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
            balancers: IndexedCache::new("aws_load_balancers", metrics),
            target_groups: IndexedCache::new("aws_target_groups", metrics),
            classic: IndexedCache::new("aws_classic_load_balancers", metrics),
            groups: IndexedCache::new("aws_security_groups", metrics),
            network: Cache::new(CacheConfig::new("aws_subnets"), metrics),
            state: Mutex::default(),
        }
    }

    /// The shared listings.
    async fn listings(&self, read: ReadOptions) -> Result<Snapshot> {
        let ReadOptions { freshness, priority } = read;
        let list = |objects: Vec<Object<Kind>>| objects.into_iter().map(Listed).collect::<Vec<_>>();
        let (api, vpc) = (&self.api, &self.site.vpc);
        let keys: Vec<_> = self
            .site
            .cluster
            .key()
            .into_iter()
            .chain([crate::cluster::LEGACY.to_owned()])
            .collect();
        let balancers = self.balancers.get(None, freshness, || {
            let api = api.clone();
            async move { api.network_balancers(priority).await.map(list) }
        });
        let target_groups = self.target_groups.get(None, freshness, || {
            let api = api.clone();
            async move { api.target_groups(priority).await.map(list) }
        });
        let classic = self.classic.get(None, freshness, || {
            let api = api.clone();
            async move { api.classic_balancers(priority).await.map(list) }
        });
        let cluster = self.site.cluster.clone();
        let groups = self.groups.get(None, freshness, || {
            let (api, vpc) = (api.clone(), vpc.clone());
            async move {
                let keys = cluster.key().map(|_| keys).unwrap_or_default();
                let mut groups = api.security_groups(&vpc, keys, priority).await?;
                groups.retain(|group| cluster.has(&tag_map(group.set(TAGS))));
                Ok(list(groups))
            }
        });
        let ((balancers, target_groups), (classic, groups)) =
            try_join(try_join(balancers, target_groups), try_join(classic, groups)).await?;
        Ok(Snapshot {
            balancers,
            target_groups,
            classic,
            groups,
        })
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
    async fn tags(&self, arns: Vec<String>, fresh: bool, priority: Priority) -> Result<()> {
        let unknown: Vec<_> = {
            let state = self.state.lock();
            arns.into_iter()
                .filter(|arn| fresh || !state.tags.contains_key(arn))
                .collect()
        };
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
        match self.state.lock().tags.get(&object.id) {
            Some(tags) => object.clone().entries(TAGS, tags.iter().cloned()),
            None => object.clone(),
        }
    }

    /// Who else a load balancer belongs to.
    fn foreign(&self, object: &Object<Kind>) -> Option<String> {
        let kind = object.text("type");
        if object.kind == Kind::Balancer && kind != "network" {
            return Some(format!("a load balancer of type {kind}"));
        }
        let tags = tag_map(object.set(TAGS));
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
            && Arc::ptr_eq(&of.balancers, &listings.balancers)
            && Arc::ptr_eq(&of.target_groups, &listings.target_groups)
            && Arc::ptr_eq(&of.classic, &listings.classic)
            && Arc::ptr_eq(&of.groups, &listings.groups)
        {
            return Ok(Arc::clone(directory));
        }
        let ours = |object: &&Arc<Listed>| {
            let name = object.0.key.as_str();
            name.starts_with('a') && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let balancers: Vec<_> = listings
            .balancers
            .all()
            .chain(listings.classic.all())
            .filter(ours)
            .collect();
        let loose = listings
            .target_groups
            .all()
            .filter(|group| is_loose(&group.0, &listings));
        let loose: Vec<_> = loose.filter(|group| group.0.key.starts_with("k8s-")).collect();
        let arns = balancers.iter().chain(&loose).map(|object| object.0.id.clone());
        self.tags(arns.collect(), false, read.priority).await?;
        let balancers: Vec<_> = balancers
            .into_iter()
            .map(|object| self.tagged(&object.0))
            .collect();
        let cluster = &self.site.cluster;
        let is_ours = |object: &&Object<Kind>| {
            let tags = tag_map(object.set(TAGS));
            cluster.has(&tags) || !has_any_cluster(&tags)
        };
        let loose = loose.into_iter().filter_map(|group| {
            let tags = tag_map(self.tagged(&group.0).set(TAGS));
            let service = tags.get(SERVICE_NAME).filter(|_| cluster.owns(&tags))?;
            Some((service.clone(), group.0.key.clone()))
        });
        let groups = listings.groups.all().map(|group| &group.0);
        let directory = Arc::new(Directory::new(
            balancers.iter().filter(is_ours),
            groups,
            loose.collect(),
        ));
        self.state.lock().directory = Some((listings, Arc::clone(&directory)));
        Ok(directory)
    }

    async fn balancer(&self, name: &str, members: &[PartMember], read: ReadOptions) -> Result<Observed> {
        let listings = self.listings(read).await?;
        let staying = members
            .iter()
            .find(|member| member.membership != Membership::Leaving);
        let fresh = matches!(read.freshness, Freshness::After(_));
        let mut objects = Vec::new();
        let roots: Vec<_> = listings
            .balancers
            .by_key(name)
            .chain(listings.classic.by_key(name))
            .cloned()
            .collect();
        let mut attached: Vec<_> = self
            .target_groups(name, members, &listings)
            .into_iter()
            .cloned()
            .collect();
        let mut listeners = Vec::new();
        if staying.is_some() {
            let balancers = roots.iter().filter(|root| root.0.kind == Kind::Balancer);
            let read = balancers.map(|root| self.api.listeners(&root.0.id, read.priority));
            listeners = try_join_all(read).await?.concat();
        }
        let below = attached.iter().map(|group| &group.0).chain(&listeners);
        let ids = roots
            .iter()
            .map(|root| &root.0)
            .chain(below)
            .map(|object| object.id.clone());
        self.tags(ids.collect(), fresh && staying.is_some(), read.priority)
            .await?;
        for root in &roots {
            let mut root = self.tagged(&root.0);
            root.foreign = self.foreign(&root);
            if staying.is_some() && root.foreign.is_none() {
                match root.kind {
                    Kind::Balancer => {
                        root.attributes
                            .extend(self.api.balancer_attributes(&root.id, read.priority).await?);
                    }
                    _ => objects.extend(self.api.classic_details(&mut root, read.priority).await?),
                }
            }
            objects.push(root);
        }
        let foreign = objects.iter().find_map(|root| root.foreign.clone());
        attached.retain(|group| foreign.is_none() || is_loose(&group.0, &listings));
        let groups = attached
            .iter()
            .map(|group| self.target_group(&group.0, staying.is_some(), read.priority));
        objects.extend(try_join_all(groups).await?);
        if foreign.is_none() {
            let listeners = listeners
                .into_iter()
                .map(|listener| self.below(listener, name, &listings, read.priority));
            objects.extend(try_join_all(listeners).await?);
        }
        self.own_groups(name, members, &listings, &mut objects);
        Ok(self.observed(objects))
    }

    /// With what the credentials may not do.
    fn observed(&self, objects: Vec<Object<Kind>>) -> Observed {
        let mut state = self.state.lock();
        state.denied.retain(|_, (since, _)| since.elapsed() < DENIED_AGE);
        Observed {
            objects: objects.into_iter().collect(),
            denied: state
                .denied
                .iter()
                .map(|(action, (_, why))| (*action, why.clone()))
                .collect(),
        }
    }

    /// The target groups that the load balancer uses, and those of its Service that none uses.
    fn target_groups<'a>(
        &self,
        balancer: &str,
        members: &[PartMember],
        listings: &'a Snapshot,
    ) -> Vec<&'a Arc<Listed>> {
        let arns: BTreeSet<_> = listings
            .balancers
            .by_key(balancer)
            .map(|root| root.0.id.as_str())
            .collect();
        let mut names = BTreeSet::new();
        let mut services = BTreeSet::new();
        let owner = OwnershipTag::Unknown;
        for PartMember { service, .. } in members {
            services.insert(names::service_tag(&service.id));
            let spec = NetworkSpec::read(service, &self.settings).spec;
            let builder = Builder {
                service,
                cluster: &self.site.cluster,
                cluster_name: "",
                tag: &owner,
                settings: &self.settings,
                places: &[],
                instances: None,
            };
            names.extend(
                spec.ports
                    .iter()
                    .map(|port| builder.target_group_name(port, &spec.check)),
            );
        }
        let is_of_service = |object: &Object<Kind>| {
            let tags = tag_map(self.tagged(object).set(TAGS));
            tags.get(SERVICE_NAME)
                .is_some_and(|service| services.contains(service))
                && self.site.cluster.owns(&tags)
        };
        let groups = listings.target_groups.all().filter(|group| {
            let used = texts(&group.0, "balancers")
                .iter()
                .any(|arn| arns.contains(arn.as_str()));
            used || (is_loose(&group.0, listings)
                && (names.contains(&group.0.key) || is_of_service(&group.0)))
        });
        groups.collect()
    }

    async fn target_group(
        &self,
        group: &Object<Kind>,
        with_targets: bool,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let mut group = self.tagged(group);
        group.foreign = self.foreign(&group);
        if !with_targets || group.foreign.is_some() {
            return Ok(group);
        }
        let attributes = async {
            if self.is_denied("DescribeTargetGroupAttributes") {
                return Ok(Attributes::new());
            }
            let read = self.api.target_group_attributes(&group.id, priority).await;
            self.allowed("DescribeTargetGroupAttributes", read)
        };
        let (targets, attributes) = try_join(self.api.targets(&group.id, priority), attributes).await?;
        group.attributes.extend(attributes);
        Ok(group.entries(TARGETS, targets))
    }

    /// A listener with the name of its target group, and with all certificates.
    async fn below(
        &self,
        listener: Object<Kind>,
        balancer: &str,
        listings: &Snapshot,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let mut listener = self.tagged(&listener);
        listener.parent = Some(balancer.to_owned());
        if let Some(group) = listings.target_groups.by_id(listener.text("target_group")) {
            listener
                .attributes
                .insert("target_group", group.0.key.as_str().into());
        }
        if listener.text("protocol") == "TLS" && !self.is_denied("DescribeListenerCertificates") {
            let read = self.api.certificates(&listener.id, priority).await;
            let certificates = self.allowed("DescribeListenerCertificates", read)?;
            listener = listener.entries(CERTIFICATES, certificates);
        }
        Ok(listener)
    }

    /// Adds the security groups that only this load balancer uses, and puts their names in the place of their IDs.
    fn own_groups(
        &self,
        balancer: &str,
        members: &[PartMember],
        listings: &Snapshot,
        objects: &mut Vec<Object<Kind>>,
    ) {
        let names = members
            .iter()
            .map(|member| names::target_group_prefix(&member.service.id));
        let prefixes: Vec<_> = names.collect();
        let classic = names::classic_group(balancer);
        let cluster = &self.site.cluster;
        let used: BTreeSet<_> = objects
            .iter()
            .flat_map(|object| texts(object, "security_groups"))
            .collect();
        let groups = listings.groups.all().map(|group| &group.0).filter(|group| {
            let is_managed = group.text("description") == super::desired::MANAGED
                && prefixes
                    .iter()
                    .any(|prefix| group.key.starts_with(prefix.as_str()))
                && (used.contains(&group.id) || self.is_name_of(&group.key, members));
            (is_managed || group.key == classic) && cluster.owns(&tag_map(group.set(TAGS)))
        });
        let groups: Vec<_> = groups.cloned().collect();
        for object in objects.iter_mut() {
            let ids = texts(object, "security_groups");
            if ids.is_empty() {
                continue;
            }
            let name = |id: String| {
                let own = groups.iter().find(|group| group.id == id);
                own.map_or(id, |group| group.key.clone())
            };
            let named: Vec<_> = ids.into_iter().map(name).collect();
            object.attributes.insert("security_groups", named.into());
        }
        objects.extend(groups);
    }

    /// Whether a security group has the name of a member's.
    fn is_name_of(&self, name: &str, members: &[PartMember]) -> bool {
        let cluster = self.state.lock().cluster.name.clone();
        members
            .iter()
            .any(|member| names::group(&cluster, &member.service.id) == name)
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
                .partition(|id| listings.groups.by_id(id).is_some());
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
        let needed = self.node_groups(members, &cluster, read).await?;
        let needed: BTreeSet<_> = needed.into_values().flatten().map(|group| group.id).collect();
        let others: Vec<_> = needed
            .into_iter()
            .filter(|id| listings.groups.by_id(id).is_none())
            .collect();
        let others = if others.is_empty() {
            Vec::new()
        } else {
            self.api.security_groups_by_id(&others, read.priority).await?
        };
        let groups = listings
            .groups
            .all()
            .map(|group| group.0.clone())
            .chain(others)
            .map(|group| Object {
                id: group.id.clone(),
                sets: group.sets.into_iter().filter(|(set, _)| *set == RULES).collect(),
                ..Object::new(Kind::NodeGroup, group.id)
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
        let listing = match change.kind {
            Kind::Balancer => &self.balancers,
            Kind::TargetGroup => &self.target_groups,
            Kind::Classic => &self.classic,
            Kind::Group => &self.groups,
            Kind::NodeGroup => {
                // What leaves makes room.
                let is_full = !after.refused.is_empty() && matches!(change.action, Action::Add(..));
                state.refused = is_full.then(|| (Instant::now(), after.refused.clone()));
                if let Some(group) = after.get(Kind::NodeGroup, &change.key) {
                    let rules = group.set(RULES).to_vec();
                    self.groups.update(&group.id, |listed| {
                        listed.0 = listed.0.clone().entries(RULES, rules)
                    });
                }
                return;
            }
            Kind::ClassicListener => {
                let parent = change.parent.clone().unwrap_or_default();
                let listeners = super::classic::listeners_in(&after, &parent);
                self.classic.update(&parent, |listed| {
                    drop(listed.0.attributes.insert("listeners", listeners))
                });
                return;
            }
            Kind::Listener => return,
        };
        match (
            after.get(change.kind, &change.key),
            observed.objects.get(change.kind, &change.key),
        ) {
            (Some(object), _) => {
                state.tags.insert(object.id.clone(), object.set(TAGS).to_vec());
                let mut object = object.clone();
                let ids: Vec<_> = texts(&object, "security_groups")
                    .into_iter()
                    .map(|name| group_id(&after, name))
                    .collect();
                if !ids.is_empty() {
                    object.attributes.insert("security_groups", ids.into());
                }
                if object.kind == Kind::Classic {
                    let listeners = super::classic::listeners_in(&after, &object.key);
                    object.attributes.insert("listeners", listeners);
                }
                listing.insert(Listed(object));
            }
            (None, Some(gone)) => {
                state.tags.remove(&gone.id);
                listing.remove(&gone.id);
            }
            (None, None) => {}
        }
    }
}

/// The ID of a security group that is known by its name.
pub(super) fn group_id(objects: &Objects<Kind>, name: String) -> String {
    match objects.get(Kind::Group, &name) {
        Some(group) if !group.id.is_empty() => group.id.clone(),
        _ => name,
    }
}

/// Whether no load balancer that exists uses a target group.
fn is_loose(group: &Object<Kind>, listings: &Snapshot) -> bool {
    texts(group, "balancers")
        .iter()
        .all(|arn| listings.balancers.by_id(arn).is_none())
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
            for PartMember {
                service, membership, ..
            } in members
            {
                if *membership == Membership::Leaving {
                    state.seen.remove(&service.id);
                    continue;
                }
                let (first, changed) = state
                    .seen
                    .entry(service.id.clone())
                    .or_insert_with(|| (Arc::clone(service), false));
                *changed |= !first.asks_the_same(service);
                if *changed {
                    inputs.changed.insert(service.id.clone());
                }
            }
        }
        for PartMember { service, .. } in members {
            let name = names::balancer(&service.id);
            let own = listings
                .groups
                .by_key(&names::classic_group(&name))
                .next()
                .map(|group| group.0.id.clone());
            let mut source = own;
            if listings.balancers.by_key(&name).next().is_some() {
                inputs.flavors.insert(service.id.clone(), Flavor::Network);
            } else if let Some(classic) = listings.classic.by_key(&name).next() {
                inputs.flavors.insert(service.id.clone(), Flavor::Classic);
                source = source.or_else(|| texts(&classic.0, "security_groups").into_iter().next());
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
            Action::Add(set, _) => set.add,
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
