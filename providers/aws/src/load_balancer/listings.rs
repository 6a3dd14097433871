//! The listings of the account that all parts share: load balancers, target groups and security groups with their tags, subnets
//! and route tables, and the actions that the credentials do not allow. This process's own writes correct them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{BatchConfig, Batcher, Cache, CacheConfig, ClientMetrics, IndexedCache, Listing},
    error::accept,
    load_balancer::{ClusterView, ReadOptions},
};
use futures_util::future::{join_all, try_join};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::{
    desired::foreign,
    kinds::{Entry, Key, Kind, Object, Objects, RULES, TAGS, group_id, tag_map},
    model::Directory,
};
use crate::{
    Nodes,
    client::ec2::{FILTER_VALUES, RouteTable, Subnet},
    client::{Api, elb::TAGGED},
    instances::{OF_IDS, isolate_refused},
    site::{LEGACY, SERVICE_NAME},
};

/// Subnets and route tables are read again after this.
pub(super) const NETWORK_AGE: Duration = Duration::from_secs(300);
/// Subnets are read again after this if a Service waits for one.
pub(super) const MISSING_AGE: Duration = Duration::from_secs(5);
/// The security groups of instances are read again after this, and the tags of groups that are not listed.
const INSTANCE_AGE: Duration = Duration::from_secs(600);
/// The tags of an instance without the cluster's tag are read again after this.
const UNTAGGED_AGE: Duration = Duration::from_secs(30);
/// An action that is refused is retried after this.
const DENIED_AGE: Duration = Duration::from_secs(600);

/// The subnets and route tables of the VPC.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) subnets: Vec<Subnet>,
    pub(super) tables: Vec<RouteTable>,
}

/// Load balancers, target groups, and security groups with the cluster's tag, at one moment.
#[derive(Debug)]
pub(super) struct Snapshot(Arc<Listing<Object>>);

impl Snapshot {
    /// The objects of a kind.
    pub(super) fn all(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        let all = self.0.all().map(|object| &**object);
        all.filter(move |object| object.kind == kind)
    }

    /// The objects of a kind with this name or with a parent of this name.
    pub(super) fn named<'a>(&'a self, kind: Kind, name: &'a str) -> impl Iterator<Item = &'a Object> {
        let found = self.0.by_key(name).map(|object| &**object);
        found.filter(move |object| object.kind == kind)
    }

    /// The object with this ID.
    pub(super) fn by_id(&self, id: &str) -> Option<&Object> {
        self.0.by_id(id).map(|object| &**object)
    }

    /// Whether a target group is not used by any existing load balancer.
    pub(super) fn is_unused(&self, group: &Object) -> bool {
        let mut balancers = group.texts("balancers").into_iter();
        balancers.all(|arn| self.by_id(arn).is_none())
    }
}

/// The security groups of instances, in the order of the API. `None`: without the cluster's tag. Missing: the instance does not
/// exist.
pub(super) type InstanceGroups = BTreeMap<String, Option<Vec<String>>>;

/// The shared listings, a cache of the account.
#[derive(Debug)]
pub(super) struct Listings {
    pub(super) nodes: Nodes,
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
    pub(super) fn new(nodes: &Nodes, metrics: &ClientMetrics) -> Self {
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

    /// Remembers the cluster of a pass.
    pub(super) fn set_cluster(&self, cluster: &ClusterView) {
        self.state.lock().cluster.clone_from(cluster);
    }

    pub(super) fn cluster_name(&self) -> Arc<str> {
        self.state.lock().cluster.name.clone()
    }

    /// All listed objects.
    pub(super) async fn get(&self, read: ReadOptions) -> Result<Snapshot> {
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
    pub(super) async fn with_groups_of(
        &self,
        instances: &InstanceGroups,
        read: ReadOptions,
    ) -> Result<Snapshot> {
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
    pub(super) async fn groups(&self, ids: &BTreeSet<String>, priority: Priority) -> Result<Vec<Object>> {
        let (client, ids): (_, Vec<_>) = (self.nodes.api.at(priority), ids.iter().cloned().collect());
        let mut groups = Vec::new();
        for ids in ids.chunks(FILTER_VALUES) {
            groups.extend(client.security_groups(&[("group-id", ids.to_vec())]).await?);
        }
        Ok(groups)
    }

    /// Subnets and route tables, not older than this.
    pub(super) async fn network(&self, age: Duration, priority: Priority) -> Result<Arc<Network>> {
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
    pub(super) async fn optional<T: Default>(
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
    pub(super) fn deny(&self, part: Option<&Key>, action: &'static str, error: &Error) -> String {
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
    pub(super) fn denied(&self, part: Option<(&Key, Freshness)>) -> BTreeMap<&'static str, String> {
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
    pub(super) async fn read_tags(&self, ids: Vec<String>, fresh: bool, priority: Priority) -> Result<()> {
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
    pub(super) fn tagged(&self, object: &Object) -> Object {
        let mut object = object.clone();
        let state = self.state.lock();
        if let Some(tags) = state.tags.get(&object.id) {
            object.sets.insert(TAGS, tags.as_slice().into());
        }
        object.foreign = foreign(&object, &self.nodes.site.cluster, &state.cluster.ownership_tag);
        object
    }

    /// The directory of the listed objects.
    pub(super) async fn directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
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
    pub(super) async fn groups_of(
        &self,
        instances: BTreeSet<String>,
        priority: Priority,
    ) -> Result<InstanceGroups> {
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
    pub(super) fn set_rules(&self, id: &str, rules: Arc<[Entry]>) {
        let update = |group: &mut Object| drop(group.sets.insert(RULES, rules));
        self.objects.update(id, update);
    }

    /// Applies a change to the listings. `before`, `after`: the objects of a part.
    pub(super) fn apply(&self, before: &Objects, after: &Objects) {
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
