//! The calls of the plan: reads of parts, and changes one after the other.
//!
//! All parts share the listings of the account: load balancers, target groups and security groups with their tags, subnets and
//! route tables, and the actions that the credentials do not allow. This process's own writes correct them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result, Retry, async_trait,
    client::{BatchConfig, Batcher, Cache, CacheConfig, ClientMetrics, IndexedCache, Listing},
    error::accept,
    load_balancer::{ClusterView, ReadOptions, ServiceId, ServiceView},
    plan::objects::{self, Action, Refused},
    plan::{Change as _, CredentialsCheck, GatheredInputs, Outcome, PartCloud, ScopeCheck},
};
use futures_util::future::{join_all, try_join, try_join_all};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use super::{
    desired::{Observed, foreign},
    kinds::{
        CERTIFICATES, Change, Entry, Key, Kind, Object, Objects, RULES, Rule, TAGS, TARGETS, group_id,
        tag_map,
    },
    model::{Directory, Inputs, Model, PartMember, Reply},
    names,
    node_groups::NodeGroup,
    spec::{self, Flavor, Spec},
    subnets::{self, Chosen},
};
use crate::{
    Nodes,
    client::ec2::{FILTER_VALUES, RouteTable, Subnet},
    client::{Api, Client, elb::TAGGED, send::Sender},
    config::LoadBalancing,
    instances::{OF_IDS, isolate_refused},
    site::{LEGACY, SERVICE_NAME},
};

/// Subnets and route tables are read again after this.
const NETWORK_AGE: Duration = Duration::from_secs(300);
/// Subnets are read again after this if a Service waits for one.
const MISSING_AGE: Duration = Duration::from_secs(5);
/// A target or rule that AWS refused is tried again after this. The service controller compares blocked differences again after
/// the same time. If this were longer, that comparison would still use the remembered refusal.
const REFUSED_AGE: Duration = Duration::from_secs(600);
/// The wait until an object is not in use.
const IN_USE: Duration = Duration::from_secs(2);
/// The security groups of instances are read again after this, and the tags of groups that are not listed.
const INSTANCE_AGE: Duration = Duration::from_secs(600);
/// The tags of an instance without the cluster's tag are read again after this.
const UNTAGGED_AGE: Duration = Duration::from_secs(30);
/// An action that is refused is retried after this.
const DENIED_AGE: Duration = Duration::from_secs(600);

/// Actions that upstream does not use: they are not in its documented policy.
const OPTIONAL: &str =
    "SetSubnets ModifyTargetGroupAttributes AddListenerCertificates RemoveListenerCertificates";

/// The subnets and route tables of the VPC.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) subnets: Vec<Subnet>,
    pub(super) tables: Vec<RouteTable>,
}

/// Load balancers, target groups, and security groups with the cluster's tag, at one moment.
#[derive(Debug)]
struct Snapshot(Arc<Listing<Object>>);

impl Snapshot {
    /// The objects of a kind.
    fn all(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        let all = self.0.all().map(|object| &**object);
        all.filter(move |object| object.kind == kind)
    }

    /// The objects of a kind with this name or with a parent of this name.
    fn named<'a>(&'a self, kind: Kind, name: &'a str) -> impl Iterator<Item = &'a Object> {
        let found = self.0.by_key(name).map(|object| &**object);
        found.filter(move |object| object.kind == kind)
    }

    /// The object with this ID.
    fn by_id(&self, id: &str) -> Option<&Object> {
        self.0.by_id(id).map(|object| &**object)
    }

    /// Whether a target group is not used by any existing load balancer.
    fn is_unused(&self, group: &Object) -> bool {
        let mut balancers = group.texts("balancers").into_iter();
        balancers.all(|arn| self.by_id(arn).is_none())
    }
}

/// The security groups of instances, in the order of the API. `None`: without the cluster's tag. Missing: the instance does not
/// exist.
type InstanceGroups = BTreeMap<String, Option<Vec<String>>>;

/// The shared listings, a cache of the account.
#[derive(Debug)]
struct Listings {
    nodes: Nodes,
    objects: IndexedCache<Object>,
    network: Cache<(), Network>,
    /// The values of [`InstanceGroups`].
    instances: Cache<String, Option<Vec<String>>>,
    /// Reads of tags by ID, batched across parts.
    tag_reads: Batcher<(String, Priority), Vec<Entry>>,
    state: Mutex<ListingState>,
}

#[derive(Debug, Default)]
struct ListingState {
    /// The last directory, and the listing that it was built from.
    directory: Option<(Snapshot, Arc<Directory>)>,
    /// The tags of load balancers, listeners and target groups, by ID.
    tags: HashMap<String, Vec<Entry>>,
    /// Actions that the credentials do not allow, or that AWS refused for a part, with the error.
    denied: BTreeMap<(Option<Key>, &'static str), (Instant, String)>,
    /// Security groups of instances that were not listed, and when their tags were read.
    unlisted: HashMap<String, Instant>,
    /// The cluster in the last pass, whose ownership tag [`Listings::tagged`] compares.
    cluster: ClusterView,
}

/// Reads tags by ID, a result for each. AWS refuses the whole call if one object does not exist.
async fn read_tags(api: Api, requested: Vec<(String, Priority)>) -> Vec<Result<Vec<Entry>>> {
    let priority = requested.iter().map(|(_, priority)| *priority).min();
    let client = &api.at(priority.unwrap_or(Priority::User));
    let is_arn = |id: &String| id.starts_with("arn:");
    let read = |ids: Vec<String>| async move {
        let mut tags = match ids.iter().any(is_arn) {
            true => client.load_balancer_tags(&ids).await?,
            false => client.classic_tags(&ids).await?,
        };
        Ok(ids.iter().map(|id| tags.remove(id).unwrap_or_default()).collect())
    };
    let ids: BTreeSet<_> = requested.iter().map(|(id, _)| id.clone()).collect();
    let (arns, names): (Vec<_>, Vec<_>) = ids.into_iter().partition(is_arn);
    let mut found = isolate_refused(&OF_IDS, arns, read).await;
    found.extend(isolate_refused(&OF_IDS, names, read).await);
    let tags = requested.iter().map(|(id, _)| found.get(id).cloned());
    tags.map(|tags| tags.unwrap_or_else(|| Ok(Vec::new()))).collect()
}

impl Listings {
    fn new(nodes: &Nodes, metrics: &ClientMetrics) -> Self {
        let mut instances = CacheConfig::new("aws_instance_groups");
        instances.max_age = Some(INSTANCE_AGE);
        let mut batches = BatchConfig::new("aws_tags");
        batches.max_items = TAGGED;
        let api = nodes.api.clone();
        Self {
            nodes: nodes.clone(),
            objects: IndexedCache::new("aws_load_balancers", metrics),
            network: Cache::new(CacheConfig::new("aws_subnets"), metrics),
            instances: Cache::new(instances, metrics),
            tag_reads: Batcher::new(batches, metrics, move |asked| read_tags(api.clone(), asked)),
            state: Mutex::default(),
        }
    }

    /// All listed objects.
    async fn get(&self, read: ReadOptions) -> Result<Snapshot> {
        let (client, site) = (self.nodes.api.at(read.priority), Arc::clone(&self.nodes.site));
        let load = || async move {
            let keys = site.cluster.key().map(|key| vec![key, LEGACY.to_owned()]);
            let mut filter = vec![("vpc-id", vec![site.vpc.clone()])];
            filter.extend(keys.map(|keys| ("tag-key", keys)));
            let (mut objects, targets, network, classic) = tokio::try_join!(
                client.security_groups(&filter),
                client.target_groups(),
                client.network_balancers(),
                client.classic_balancers(),
            )?;
            objects.retain(|group| site.cluster.has(&tag_map(group)));
            objects.extend([targets, network, classic].into_iter().flatten());
            Ok(objects)
        };
        let listing = self.objects.get(None, read.freshness, read.priority, load);
        Ok(Snapshot(listing.await?))
    }

    /// The listed objects, and those of these security groups of instances that got the cluster's tag since the listing.
    async fn with_groups_of(&self, instances: &InstanceGroups, read: ReadOptions) -> Result<Snapshot> {
        let (listings, began) = (self.get(read).await?, Instant::now());
        let is_listed = |id: &String| listings.by_id(id).is_some();
        // The only group of an instance needs no tag.
        let several = instances.values().flatten().filter(|groups| groups.len() > 1);
        let unlisted = several.filter(|groups| !groups.iter().any(is_listed));
        let mut ids: BTreeSet<_> = unlisted.flatten().cloned().collect();
        let is_read = |at: &Instant| at.elapsed() < INSTANCE_AGE;
        ids.retain(|id| !self.state.lock().unlisted.get(id).is_some_and(is_read));
        for group in self.groups(&ids, read.priority).await? {
            if self.nodes.site.cluster.has(&tag_map(&group)) {
                self.objects.insert(group);
            }
        }
        let read_now = ids.into_iter().map(|id| (id, began));
        self.state.lock().unlisted.extend(read_now);
        self.get(read).await
    }

    /// The security groups with these IDs, regardless of their tags.
    async fn groups(&self, ids: &BTreeSet<String>, priority: Priority) -> Result<Vec<Object>> {
        let (client, ids): (_, Vec<_>) = (self.nodes.api.at(priority), ids.iter().cloned().collect());
        let mut groups = Vec::new();
        for ids in ids.chunks(FILTER_VALUES) {
            groups.extend(client.security_groups(&[("group-id", ids.to_vec())]).await?);
        }
        Ok(groups)
    }

    /// Subnets and route tables, not older than this.
    async fn network(&self, age: Duration, priority: Priority) -> Result<Arc<Network>> {
        let (client, vpc) = (self.nodes.api.at(priority), self.nodes.site.vpc.clone());
        let load = || async move {
            let filter = [("vpc-id", vec![vpc])];
            let read = try_join(client.subnets(&filter), client.route_tables(&filter));
            let (subnets, tables) = read.await?;
            Ok(Network { subnets, tables })
        };
        self.network.get((), Freshness::AtMost(age), priority, load).await
    }

    /// The result of a read, or nothing if the credentials do not allow it.
    async fn optional<T: Default>(
        &self,
        action: &'static str,
        read: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.denied(None).contains_key(action) {
            return Ok(T::default());
        }
        match read.await {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                self.deny(None, action, &error);
                Ok(T::default())
            }
            result => result,
        }
    }

    /// Remembers that an action is refused, for all parts or for one. Returns the text for users.
    fn deny(&self, part: Option<&Key>, action: &'static str, error: &Error) -> String {
        debug!(action, error = error.report(), "An action is refused");
        // Always the same text, so that there is one Event.
        let text = match part {
            None => format!("the credentials do not allow elasticloadbalancing:{action}"),
            Some(_) => error.message().to_owned(),
        };
        let denied = (Instant::now(), text.clone());
        self.state.lock().denied.insert((part.cloned(), action), denied);
        text
    }

    /// The actions that are refused for all parts or for this one, with the error. A newer read tries again what AWS refused for
    /// the part: the request may be another one.
    fn denied(&self, part: Option<(&Key, Freshness)>) -> BTreeMap<&'static str, String> {
        let mut state = self.state.lock();
        state.denied.retain(|_, (since, _)| since.elapsed() < DENIED_AGE);
        let is_for = |of: &Key, since| part.is_some_and(|(key, fresh)| of == key && fresh.allows(since));
        let denied = state.denied.iter();
        let denied = denied.filter(|((of, _), (since, _))| of.as_ref().is_none_or(|of| is_for(of, *since)));
        let texts = denied.map(|((_, action), (_, why))| (*action, why.clone()));
        texts.collect()
    }

    /// Reads tags by ID, if that is allowed. Cached tags may be old unless fresh ones are required.
    ///
    /// # Errors
    /// `NotFound` if an object was deleted since it was listed, and nothing else failed. The tags of the others are cached.
    async fn read_tags(&self, ids: Vec<String>, fresh: bool, priority: Priority) -> Result<()> {
        let is_due = |id: &String| fresh || !self.state.lock().tags.contains_key(id);
        let ids: Vec<_> = ids.into_iter().filter(is_due).collect();
        let reads = ids.into_iter().map(async |id| {
            let tags = self.tag_reads.submit((id.clone(), priority)).await?;
            self.state.lock().tags.insert(id, tags);
            Ok(())
        });
        let read = async {
            let failed = join_all(reads).await.into_iter().filter_map(Result::err);
            // The object was deleted since it was listed.
            let is_gone = |error: &Error| error.kind() == ErrorKind::NotFound;
            let (gone, failed): (Vec<_>, Vec<_>) = failed.partition(is_gone);
            failed.into_iter().chain(gone).next().map_or(Ok(()), Err)
        };
        self.optional("DescribeTags", read).await
    }

    /// An object with its tags and, if there is one, its other owner.
    fn tagged(&self, object: &Object) -> Object {
        let mut object = object.clone();
        let state = self.state.lock();
        if let Some(tags) = state.tags.get(&object.id) {
            object.sets.insert(TAGS, tags.as_slice().into());
        }
        object.foreign = foreign(&object, &self.nodes.site.cluster, &state.cluster.ownership_tag);
        object
    }

    /// The directory of the listed objects.
    async fn directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
        let listings = self.get(read).await?;
        if let Some((of, directory)) = &self.state.lock().directory
            && Arc::ptr_eq(&of.0, &listings.0)
        {
            return Ok(Arc::clone(directory));
        }
        let is_named_by_us = |object: &&Object| {
            object.key.starts_with('a') && object.key.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        // If both kinds have the same name, the network load balancer counts.
        let balancers = listings.all(Kind::Classic).chain(listings.all(Kind::Balancer));
        let balancers: Vec<_> = balancers.filter(is_named_by_us).collect();
        let is_unused = |group: &&Object| group.key.starts_with("k8s-") && listings.is_unused(group);
        let unused: Vec<_> = listings.all(Kind::TargetGroup).filter(is_unused).collect();
        let ids = balancers.iter().chain(&unused).map(|object| object.id.clone());
        let tags = self.read_tags(ids.collect(), false, read.priority).await;
        let knows_all = tags.is_ok();
        accept(tags, ErrorKind::NotFound, ())?;
        let exists = |object: &&Object| knows_all || self.state.lock().tags.contains_key(&object.id);
        let is_ours = |group: &Object| {
            let tags = tag_map(group);
            tags.contains_key(SERVICE_NAME) && self.nodes.site.cluster.owns(&tags)
        };
        let balancers = balancers.into_iter().filter(exists);
        let balancers = balancers.map(|object| self.tagged(object));
        let unused = unused.into_iter().filter(exists);
        let unused = unused.map(|group| self.tagged(group)).filter(is_ours);
        let directory = Directory::new(balancers, listings.all(Kind::Group), unused.collect());
        let directory = Arc::new(directory);
        self.state.lock().directory = Some((listings, Arc::clone(&directory)));
        Ok(directory)
    }

    /// The security groups of instances.
    async fn groups_of(&self, instances: BTreeSet<String>, priority: Priority) -> Result<InstanceGroups> {
        let peek = |id: &String, age| self.instances.peek(id, Freshness::AtMost(age));
        // Tags may be added after the launch.
        let tagged = |id: &String| peek(id, INSTANCE_AGE).filter(|(groups, _)| groups.is_some());
        let known = |id: &String| tagged(id).or_else(|| peek(id, UNTAGGED_AGE));
        let known = |id: &String| known(id).map(|(groups, _)| (id.clone(), (*groups).clone()));
        let mut all: BTreeMap<_, _> = instances.iter().filter_map(known).collect();
        let unknown: Vec<_> = instances.into_iter().filter(|id| !all.contains_key(id)).collect();
        let (client, began) = (self.nodes.api.at(priority), Instant::now());
        for found in client.instances_among(&unknown).await? {
            let is_of_cluster = self.nodes.site.cluster.has(&found.tags);
            let groups = is_of_cluster.then_some(found.security_groups);
            self.instances.insert(found.id.clone(), groups.clone(), began);
            // Not from the cache: after a slow read, the answer may already be too old for it.
            all.insert(found.id, groups);
        }
        Ok(all)
    }

    /// Sets the rules of a listed security group.
    fn set_rules(&self, id: &str, rules: Arc<[Entry]>) {
        let update = |group: &mut Object| drop(group.sets.insert(RULES, rules));
        self.objects.update(id, update);
    }

    /// Applies a change to the listings. `before`, `after`: the objects of a part.
    fn apply(&self, before: &Objects, after: &Objects) {
        let now = |object: &Object| after.get(object.kind, &object.key);
        for deleted in before.all.iter().filter(|object| now(object).is_none()) {
            self.state.lock().tags.remove(&deleted.id);
            self.objects.remove(&deleted.id);
        }
        let then = |object: &Object| before.get(object.kind, &object.key);
        for object in after.all.iter().filter(|object| then(object) != Some(object)) {
            if object.kind == Kind::NodeGroup {
                self.set_rules(&object.id, object.set(RULES).into());
                continue;
            }
            // The listing has the tags of security groups.
            let is_apart = object.kind != Kind::Group;
            let tags = is_apart.then(|| (object.id.clone(), object.set(TAGS).to_vec()));
            self.state.lock().tags.extend(tags);
            let mut object = object.clone();
            if object.attributes.contains_key("security_groups") {
                let names = object.texts("security_groups").into_iter();
                let ids: Vec<_> = names.map(|name| group_id(after, name)).collect();
                object.attributes.insert("security_groups", ids.into());
            }
            self.objects.insert(object);
        }
    }
}

/// The state between calls, a cache of the account.
#[derive(Debug, Default)]
struct State {
    /// Load balancers from the last read, with the changes since then, and the time when the read began.
    parts: HashMap<Key, (Instant, Observed)>,
    /// Services as first observed by this process, and whether they changed since then.
    first_observed: HashMap<ServiceId, (Arc<ServiceView>, bool)>,
    /// The security groups of nodes that get rules.
    node_groups: BTreeSet<String>,
    /// Rules that a full security group refused.
    refused: Vec<Refused<Kind>>,
}

/// The calls.
#[derive(Debug)]
pub(crate) struct Calls {
    settings: Arc<LoadBalancing>,
    credentials: CredentialsCheck,
    listings: Listings,
    state: Mutex<State>,
}

impl Calls {
    /// The calls, which also read these nodes.
    pub(crate) fn new(nodes: &Nodes, settings: Arc<LoadBalancing>, metrics: &ClientMetrics) -> Self {
        Self {
            settings,
            credentials: CredentialsCheck::default(),
            listings: Listings::new(nodes, metrics),
            state: Mutex::default(),
        }
    }

    /// The objects of a part, with the actions that are refused for it.
    fn observed(&self, part: &Key, read: ReadOptions, objects: impl IntoIterator<Item = Object>) -> Observed {
        let denied = self.listings.denied(Some((part, read.freshness)));
        let objects = objects.into_iter().collect();
        Observed { objects, denied }
    }

    /// Reads the rules of the cluster's security groups, and of those that nodes have without the cluster's tag.
    async fn node_rules(&self, read: ReadOptions) -> Result<Observed> {
        let listings = self.listings.get(read).await?;
        let needed = self.state.lock().node_groups.clone().into_iter();
        let unlisted = needed.filter(|id| listings.by_id(id).is_none()).collect();
        let others = self.listings.groups(&unlisted, read.priority).await?;
        let groups = listings.all(Kind::Group).chain(&others).map(|group| Object {
            id: group.id.clone(),
            ..Object::new(Kind::NodeGroup, &group.id).entries(RULES, group.set(RULES).iter().cloned())
        });
        let mut observed = self.observed(&Key::NodeGroups, read, groups);
        let state = self.state.lock();
        let counts = |one: &&Refused<Kind>| is_recent(one) && read.freshness.allows(one.since);
        observed.objects.refused = state.refused.iter().filter(counts).cloned().collect();
        Ok(observed)
    }

    /// Applies a change to the cached state. Returns the security groups that a classic load balancer lost.
    fn applied(&self, key: &Key, change: &Change, reply: &Reply, observed: &Observed) -> BTreeSet<String> {
        let mut after = observed.clone();
        after.fold(change, Some(reply));
        self.listings.apply(&observed.objects, &after.objects);
        let detached = &classic_groups(&observed.objects) - &classic_groups(&after.objects);
        let mut state = self.state.lock();
        if change.kind == Kind::NodeGroup {
            state.refused.clone_from(&after.objects.refused);
        }
        if after.objects.all.is_empty() {
            state.parts.remove(key);
        } else if let Some((_, known)) = state.parts.get_mut(key) {
            *known = after;
        }
        detached
    }

    /// Revokes the rules whose source is this group. If it is an own one, which cannot be deleted because of them, these are all
    /// rules in groups with the cluster's tag, and in others those of classic load balancers; otherwise only those of classic
    /// load balancers in groups with the cluster's tag.
    async fn revoke_references(&self, id: &str, is_own: bool, priority: Priority) -> Result<()> {
        let client = self.listings.nodes.api.at(priority);
        let filter = [("ip-permission.group-id", vec![id.to_owned()])];
        for group in client.security_groups(&filter).await? {
            let is_tagged = self.listings.nodes.site.cluster.has(&tag_map(&group));
            // By a rule from the group itself, nodes reach each other.
            let is_revoked = |rule: &Rule| {
                rule.source == id
                    && match rule.protocol.as_str() {
                        "-1" => is_own || (is_tagged && group.id != id),
                        _ => is_own && is_tagged,
                    }
            };
            let is_reference = |entry: &Entry| entry.rule().is_some_and(is_revoked);
            let (refs, rest): (Vec<_>, Vec<_>) = group.set(RULES).iter().cloned().partition(is_reference);
            let refs: Vec<_> = refs.iter().filter_map(Entry::rule).collect();
            if !refs.is_empty() {
                accept(client.revoke(&group.id, &refs).await, ErrorKind::NotFound, ())?;
                self.listings.set_rules(&group.id, rest.into());
            }
        }
        Ok(())
    }

    /// Whether a Service changed while this process ran.
    fn has_changed(&self, member: &PartMember) -> bool {
        let PartMember { service, .. } = member;
        let first_observed = &mut self.state.lock().first_observed;
        if member.leaves() {
            first_observed.remove(&service.id);
            return false;
        }
        let first = || (Arc::clone(service), false);
        let (first, changed) = first_observed.entry(service.id.clone()).or_insert_with(first);
        // No label changes the load balancer, and no annotation of another program.
        if !first.asks_the_same(service) && read_annotations(first).eq(read_annotations(service)) {
            let first = Arc::make_mut(first);
            first.labels.clone_from(&service.labels);
            first.annotations.clone_from(&service.annotations);
        }
        *changed = *changed || !first.asks_the_same(service);
        *changed
    }

    /// The subnets of a Service's load balancer, or why none qualifies.
    async fn subnets(&self, service: &ServiceView, of: &Directory, priority: Priority) -> Result<Chosen> {
        let spec = Spec::read(service, &self.settings, Flavor::Network);
        let balancer = of.balancers.get(&names::balancer(&service.id));
        // The scheme of an existing load balancer does not change.
        let internal = balancer.map_or(spec.internal, |balancer| balancer.text("scheme") == "internal");
        let choose = |network: &Network| match spec.subnets.as_slice() {
            [] => subnets::discovered(network, internal, &self.listings.nodes.site),
            names => subnets::named(names, &network.subnets),
        };
        let mut found = choose(&*self.listings.network(NETWORK_AGE, priority).await?);
        if found.is_err() {
            found = choose(&*self.listings.network(MISSING_AGE, priority).await?);
        }
        let is_network = of.flavor(service, &self.settings) == Flavor::Network;
        let problem = found.iter().find_map(|all| spec.wrong_addresses(all.len()));
        Ok(problem.filter(|_| is_network).map_or(found, Err))
    }
}

/// The annotations that upstream or this program may read.
fn read_annotations(service: &ServiceView) -> impl Iterator<Item = (&str, &str)> {
    let annotations = service.annotations.iter();
    annotations.filter(|(key, _)| key.starts_with("service.beta.kubernetes.io/"))
}

/// The ids of the security groups of classic load balancers.
fn classic_groups(objects: &Objects) -> BTreeSet<String> {
    let groups = objects
        .of(Kind::Classic)
        .flat_map(|balancer| balancer.texts("security_groups"));
    groups.map(|name| group_id(objects, name)).collect()
}

fn is_recent(refused: &Refused<Kind>) -> bool {
    refused.since.elapsed() < REFUSED_AGE
}

/// One read of a load balancer with everything that only it uses.
struct BalancerRead<'a> {
    calls: &'a Calls,
    client: Client,
    listed: Snapshot,
    name: &'a str,
    members: &'a [PartMember],
    /// Whether the load balancer stays. If it is deleted, only existence and tags are read.
    stays: bool,
}

impl BalancerRead<'_> {
    async fn objects(&self, read: ReadOptions) -> Result<Vec<Object>> {
        let (listings, client, name) = (&self.calls.listings, &self.client, self.name);
        let roots = self.listed.named(Kind::Balancer, name);
        let roots: Vec<_> = roots.chain(self.listed.named(Kind::Classic, name)).collect();
        let groups: Vec<_> = self.target_groups(&roots).collect();
        let mut listeners = Vec::new();
        let has_listeners = |root: &&&Object| self.stays && root.kind == Kind::Balancer;
        for root in roots.iter().filter(has_listeners) {
            listeners.extend(client.listeners(&root.id).await?);
        }
        let known = roots.iter().chain(&groups).copied().chain(&listeners);
        let fresh = self.stays && matches!(read.freshness, Freshness::After(_));
        let ids = known.map(|object| object.id.clone()).collect();
        listings.read_tags(ids, fresh, read.priority).await?;
        let mut objects = Vec::new();
        for root in roots {
            let mut root = listings.tagged(root);
            if self.stays && root.foreign.is_none() {
                let attributes = client.attributes(root.kind, &root.id).await?;
                root.attributes.extend(attributes);
                objects.extend(self.listed.named(Kind::ClassicListener, name).cloned());
            }
            objects.push(root);
        }
        let is_foreign = objects.iter().any(|root| root.foreign.is_some());
        let is_needed = |group: &&Object| !is_foreign || self.listed.is_unused(group);
        let groups = groups.into_iter().filter(is_needed);
        objects.extend(try_join_all(groups.map(|group| self.target_group(group))).await?);
        let listeners = listeners.iter().filter(|_| !is_foreign);
        objects.extend(try_join_all(listeners.map(|listener| self.listener(listener))).await?);
        self.add_own_groups(&mut objects);
        Ok(objects)
    }

    /// The target groups that the load balancers use, and the unused ones of their Service. An orphan has its own name.
    fn target_groups(&self, balancers: &[&Object]) -> impl Iterator<Item = &Object> {
        let (listings, settings) = (&self.calls.listings, &self.calls.settings);
        let cluster = &listings.nodes.site.cluster;
        let arns: BTreeSet<_> = balancers.iter().map(|balancer| balancer.id.clone()).collect();
        let (mut tags, mut names) = (BTreeSet::new(), BTreeSet::from([self.name.to_owned()]));
        for service in self.members.iter().map(|member| &member.service) {
            let spec = Spec::read(service, settings, Flavor::Network);
            tags.insert(names::service_tag(&service.id));
            names.extend(spec.target_group_names(&cluster.id, &service.id));
        }
        self.listed.all(Kind::TargetGroup).filter(move |group| {
            let is_used = group.texts("balancers").iter().any(|arn| arns.contains(*arn));
            let is_ours = || {
                let of = tag_map(&listings.tagged(group));
                of.get(SERVICE_NAME).is_some_and(|service| tags.contains(service)) && cluster.owns(&of)
            };
            is_used || (self.listed.is_unused(group) && (names.contains(&group.key) || is_ours()))
        })
    }

    async fn target_group(&self, group: &Object) -> Result<Object> {
        let listings = &self.calls.listings;
        let mut group = listings.tagged(group);
        if !self.stays || group.foreign.is_some() {
            return Ok(group);
        }
        let attributes = self.client.attributes(Kind::TargetGroup, &group.id);
        let attributes = listings.optional("DescribeTargetGroupAttributes", attributes);
        let (targets, attributes) = try_join(self.client.targets(&group.id), attributes).await?;
        group.attributes.extend(attributes);
        Ok(group.entries(TARGETS, targets))
    }

    /// A listener with the name of its target group, and with all certificates.
    async fn listener(&self, listener: &Object) -> Result<Object> {
        let listings = &self.calls.listings;
        let mut listener = listings.tagged(listener);
        listener.parent = Some(self.name.to_owned());
        if let Some(group) = self.listed.by_id(listener.text("target_group")) {
            listener = listener.with("target_group", group.key.as_str());
        }
        if listener.text("protocol") == "TLS" {
            let certificates = self.client.certificates(&listener.id);
            let certificates = listings.optional("DescribeListenerCertificates", certificates);
            let certificates = certificates.await?;
            listener = listener.entries(CERTIFICATES, certificates);
        }
        Ok(listener)
    }

    /// Adds the security groups that only this load balancer uses, and replaces their IDs by their names.
    fn add_own_groups(&self, objects: &mut Vec<Object>) {
        let listings = &self.calls.listings;
        let name = listings.state.lock().cluster.name.clone();
        let names = self.members.iter().map(|member| &member.service.id);
        let names = names.map(|service| names::group(&name, service));
        let own = [names::classic_group(self.name), self.name.to_owned()];
        let names: Vec<_> = names.chain(own).collect();
        let groups = names.iter().flat_map(|name| self.listed.named(Kind::Group, name));
        let cluster = &listings.nodes.site.cluster;
        // Without a cluster id, all groups count as the cluster's.
        let groups = groups.filter(|group| cluster.key().is_none() || cluster.owns(&tag_map(group)));
        let groups: Vec<_> = groups.map(|group| listings.tagged(group)).collect();
        for object in &mut *objects {
            let name = |id| {
                let own = groups.iter().find(|group| group.id == id);
                own.map_or(id, |group| group.key.as_str())
            };
            let named: Value = object.texts("security_groups").into_iter().map(name).collect();
            if object.attributes.contains_key("security_groups") {
                object.attributes.insert("security_groups", named);
            }
        }
        objects.extend(groups);
    }
}

#[async_trait]
impl PartCloud<Model> for Calls {
    /// Elastic Load Balancing applies every change synchronously.
    type Ticket = ();

    async fn directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
        self.listings.directory(read).await
    }

    async fn inputs(
        &self,
        key: &Key,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<Inputs>> {
        self.listings.state.lock().cluster.clone_from(cluster);
        let denied = self.listings.denied(None).into_iter();
        let unread = denied.filter(|(action, _)| action.starts_with("Describe"));
        let changed = members.iter().filter(|member| self.has_changed(member));
        let mut gathered = GatheredInputs::from(Inputs {
            directory: self.listings.directory(read).await?,
            unread: unread.map(|(_, why)| why).collect(),
            changed: changed.map(|member| member.service.id.clone()).collect(),
            ..Inputs::default()
        });
        let inputs = &mut gathered.inputs;
        let all = BTreeSet::new();
        // Without the cluster's tag, security groups of nodes are found only by instances, also for Services that leave.
        let is_needed = |member: &&PartMember| *key == Key::NodeGroups || !member.leaves();
        let services = members.iter().filter(is_needed).map(|member| &member.service);
        let instances = services.filter_map(|service| spec::instances(service, cluster, &all));
        let groups = self
            .listings
            .groups_of(instances.flatten().collect(), read.priority)
            .await?;
        let untagged = groups.iter().filter(|(_, groups)| groups.is_none());
        inputs.untagged = untagged.map(|(id, _)| id.clone()).collect();
        if *key == Key::NodeGroups {
            let listings = self.listings.with_groups_of(&groups, read).await?;
            let is_tagged = |id: &String| listings.by_id(id).is_some();
            let tag = self.listings.nodes.site.cluster.key().unwrap_or_default();
            let groups = groups.into_iter().filter_map(|(id, groups)| Some((id, groups?)));
            let chosen = groups.map(|(id, groups)| (id, NodeGroup::choose(groups, is_tagged, &tag)));
            inputs.groups.extend(chosen);
            let chosen = inputs.groups.values().flatten();
            self.state.lock().node_groups = chosen.map(|group| group.id.clone()).collect();
            let network = self.listings.network(NETWORK_AGE, read.priority).await?;
            let cidrs = |subnet: &Subnet| (subnet.id.clone(), subnet.cidrs.clone());
            inputs.cidrs = network.subnets.iter().map(cidrs).collect();
            return Ok(gathered);
        }
        for PartMember { service, .. } in PartMember::active(members) {
            match self.subnets(service, &inputs.directory, read.priority).await? {
                Ok(subnets) => drop(inputs.subnets.insert(service.id.clone(), subnets)),
                // An existing load balancer keeps its subnets.
                Err(_)
                    if inputs
                        .directory
                        .balancers
                        .contains_key(&names::balancer(&service.id)) => {}
                Err(why) => {
                    let error = Error::new(ErrorKind::InvalidSpec, why);
                    gathered.refused.push((service.id.clone(), error));
                }
            }
        }
        Ok(gathered)
    }

    async fn observe(&self, key: &Key, members: &[PartMember], read: ReadOptions) -> Result<Observed> {
        let Key::Balancer(name) = key else {
            return self.node_rules(read).await;
        };
        let began = Instant::now();
        if let Some((began, known)) = self.state.lock().parts.get_mut(key)
            && read.freshness.allows(*began)
        {
            known.objects.refused.retain(is_recent);
            known.denied = self.listings.denied(Some((key, read.freshness)));
            return Ok(known.clone());
        }
        let stays = PartMember::staying(members).next().is_some();
        let balancer = BalancerRead {
            calls: self,
            client: self.listings.nodes.api.at(read.priority),
            listed: self.listings.get(read).await?,
            name,
            members,
            stays,
        };
        let observed = self.observed(key, read, balancer.objects(read).await?);
        // The engine writes no part that it reads.
        if stays {
            let known = (began, observed.clone());
            self.state.lock().parts.insert(key.clone(), known);
        }
        Ok(observed)
    }

    async fn send(
        &self,
        key: &Key,
        change: &Change,
        observed: &Observed,
        priority: Priority,
    ) -> Result<Outcome<Reply, ()>> {
        let Nodes { api, site, .. } = &self.listings.nodes;
        let (client, vpc) = (api.at(priority), site.vpc.as_str());
        let sender = Sender { client, vpc };
        let label = change.describe().label;
        // The parts for which a refused call is left out, since they work without it.
        let parts_without = |error: &Error| match error.kind() {
            ErrorKind::PermissionDenied => OPTIONAL.split_whitespace().any(|it| it == label).then_some(None),
            ErrorKind::InvalidSpec | ErrorKind::QuotaExceeded => (label == "SetSubnets").then_some(Some(key)),
            _ => None,
        };
        let mut reply = Reply::default();
        let sent = objects::send(&sender, change, &observed.objects).await;
        let parts = sent.as_ref().err().and_then(parts_without);
        match (sent, parts) {
            (Ok(objects), _) => reply.objects = objects,
            (Err(error), Some(parts)) => {
                reply.denied = Some((label, self.listings.deny(parts, label, &error)));
            }
            (Err(error), None) => {
                self.state.lock().parts.remove(key);
                let is_delete = matches!(change.action, Action::Delete(_));
                if !is_delete || error.kind() != ErrorKind::Conflict || error.retry() != Retry::Backoff {
                    return Err(error);
                }
                if change.kind == Kind::Group {
                    let id = observed.objects.id(Kind::Group, &change.key)?;
                    self.revoke_references(id, true, priority).await?;
                }
                return Err(error.with_retry(Retry::Fixed(IN_USE)));
            }
        }
        for id in self.applied(key, change, &reply, observed) {
            let freshness = Freshness::AtMost(NETWORK_AGE);
            let listings = self.listings.get(ReadOptions { freshness, priority }).await?;
            let mut others = listings.all(Kind::Classic);
            if !others.any(|other| other.texts("security_groups").contains(&&*id)) {
                self.revoke_references(&id, false, priority).await?;
            }
        }
        Ok(Outcome::Done(reply))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.listings.nodes, cluster, read).await
    }
}
