//! The listings of the account that all parts share: load balancers, target groups and security groups with their tags, subnets
//! and route tables, and the actions that the credentials do not allow. This process's own writes correct them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_smithy_types::DateTime;
use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{BatchConfig, Batcher, Cache, CacheConfig, ClientMetrics, IndexedCache, Listing},
    error::accept,
    load_balancer::{ClusterView, ReadOptions},
};
use futures_util::future::{join_all, try_join};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use super::{
    desired::foreign,
    fields,
    kinds::{DESCRIBE_TAGS, Object, ObjectKind, Objects, PartKey, RULES, SetEntry, TAGS, group_id, tag_map},
    model::BalancerDirectory,
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
/// AWS shows the tags of a new load balancer at the latest after this, with a margin for different clocks.
const NEW_AGE: Duration = Duration::from_secs(60);
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
pub(super) struct ListedObjects(Arc<Listing<Object>>);

impl ListedObjects {
    /// The objects of a kind.
    pub(super) fn all(&self, kind: ObjectKind) -> impl Iterator<Item = &Object> {
        let all = self.0.all().map(|object| &**object);
        all.filter(move |object| object.kind == kind)
    }

    /// The objects of a kind with this name or with a parent of this name.
    pub(super) fn named<'a>(&'a self, kind: ObjectKind, name: &'a str) -> impl Iterator<Item = &'a Object> {
        let found = self.0.by_key(name).map(|object| &**object);
        found.filter(move |object| object.kind == kind)
    }

    /// The object with this ID.
    pub(super) fn by_id(&self, id: &str) -> Option<&Object> {
        self.0.by_id(id).map(|object| &**object)
    }

    /// Whether a target group is not used by any existing load balancer.
    pub(super) fn is_unused(&self, group: &Object) -> bool {
        group.texts(fields::BALANCERS).into_iter().all(|arn| self.by_id(arn).is_none())
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
    tag_reads: Batcher<(String, Priority), Vec<SetEntry>>,
    state: Mutex<ListingState>,
}

#[derive(Debug, Default)]
struct ListingState {
    /// The last directory, and the listing that it was built from.
    directory: Option<(ListedObjects, Arc<BalancerDirectory>)>,
    /// The tags of load balancers, listeners and target groups, by ID.
    tags: HashMap<String, Vec<SetEntry>>,
    /// Actions that the credentials do not allow, or that AWS refused for a part, with the error.
    denied: BTreeMap<(Option<PartKey>, &'static str), (Instant, String)>,
    /// Security groups of instances that were not listed, and when their tags were read.
    unlisted: HashMap<String, Instant>,
    /// The cluster in the last pass, whose ownership tag [`Listings::tagged`] compares.
    cluster: ClusterView,
}

/// Reads tags by ID, a result for each. AWS refuses the whole call if one object does not exist.
async fn read_tags(api: Api, requested: Vec<(String, Priority)>) -> Vec<Result<Vec<SetEntry>>> {
    let priority = requested.iter().map(|(_, priority)| *priority).min();
    let client = &api.at(priority.unwrap_or(Priority::User));
    let ids: BTreeSet<_> = requested.iter().map(|(id, _)| id.clone()).collect();
    let (arns, names): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| id.starts_with("arn:"));
    let mut found = isolate_refused(&OF_IDS, arns, |arns: Vec<String>| async move {
        let tags = client.load_balancer_tags(&arns).await?;
        Ok(in_order(&arns, tags))
    })
    .await;
    let by_name = isolate_refused(&OF_IDS, names, |names: Vec<String>| async move {
        let tags = client.classic_tags(&names).await?;
        Ok(in_order(&names, tags))
    });
    found.extend(by_name.await);
    requested
        .iter()
        .map(|(id, _)| found.get(id).cloned().unwrap_or_else(|| Ok(Vec::new())))
        .collect()
}

/// The tags of each of these objects, in their order. An object without tags may be missing in an answer.
fn in_order(ids: &[String], mut tags: HashMap<String, Vec<SetEntry>>) -> Vec<Vec<SetEntry>> {
    ids.iter().map(|id| tags.remove(id).unwrap_or_default()).collect()
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
    pub(super) async fn get(&self, read: ReadOptions) -> Result<ListedObjects> {
        let (client, site) = (self.nodes.api.at(read.priority), Arc::clone(&self.nodes.site));
        let listing = self.objects.get(None, read.freshness, read.priority, || async move {
            let mut filter = vec![("vpc-id", vec![site.vpc.clone()])];
            if let Some(key) = site.cluster.key() {
                filter.push(("tag-key", vec![key, LEGACY.to_owned()]));
            }
            let (mut objects, targets, network, classic) = tokio::try_join!(
                client.security_groups(&filter),
                client.target_groups(),
                client.network_balancers(),
                client.classic_balancers(),
            )?;
            objects.retain(|group| site.cluster.has(&tag_map(group)));
            objects.extend([targets, network, classic].into_iter().flatten());
            Ok(objects)
        });
        Ok(ListedObjects(listing.await?))
    }

    /// The listed objects, and those of these security groups of instances that got the cluster's tag since the listing.
    pub(super) async fn with_groups_of(
        &self,
        instances: &InstanceGroups,
        read: ReadOptions,
    ) -> Result<ListedObjects> {
        let listings = self.get(read).await?;
        let began = Instant::now();
        let mut ids = BTreeSet::new();
        for groups in instances.values().flatten() {
            // The only group of an instance needs no tag.
            if groups.len() > 1 && groups.iter().all(|id| listings.by_id(id).is_none()) {
                ids.extend(groups.iter().cloned());
            }
        }
        ids.retain(|id| match self.state.lock().unlisted.get(id) {
            Some(read) => read.elapsed() >= INSTANCE_AGE,
            None => true,
        });
        for group in self.groups(&ids, read.priority).await? {
            if self.nodes.site.cluster.has(&tag_map(&group)) {
                self.objects.insert(group);
            }
        }
        self.state.lock().unlisted.extend(ids.into_iter().map(|id| (id, began)));
        self.get(read).await
    }

    /// The security groups with these IDs, regardless of their tags.
    pub(super) async fn groups(&self, ids: &BTreeSet<String>, priority: Priority) -> Result<Vec<Object>> {
        let client = self.nodes.api.at(priority);
        let ids: Vec<_> = ids.iter().cloned().collect();
        let mut groups = Vec::new();
        for ids in ids.chunks(FILTER_VALUES) {
            groups.extend(client.security_groups(&[("group-id", ids.to_vec())]).await?);
        }
        Ok(groups)
    }

    /// Subnets and route tables, not older than this.
    pub(super) async fn network(&self, age: Duration, priority: Priority) -> Result<Arc<Network>> {
        let (client, vpc) = (self.nodes.api.at(priority), self.nodes.site.vpc.clone());
        let network = self.network.get((), Freshness::AtMost(age), priority, || async move {
            let filter = [("vpc-id", vec![vpc])];
            let (subnets, tables) = try_join(client.subnets(&filter), client.route_tables(&filter)).await?;
            Ok(Network { subnets, tables })
        });
        network.await
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
    pub(super) fn deny(&self, part: Option<&PartKey>, action: &'static str, error: &Error) -> String {
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
    pub(super) fn denied(&self, part: Option<(&PartKey, Freshness)>) -> BTreeMap<&'static str, String> {
        let mut state = self.state.lock();
        state.denied.retain(|_, (since, _)| since.elapsed() < DENIED_AGE);
        let mut denied = BTreeMap::new();
        for ((of, action), (since, why)) in &state.denied {
            let applies = match (of, part) {
                (None, _) => true,
                (Some(of), Some((part, freshness))) => of == part && freshness.allows(*since),
                (Some(_), None) => false,
            };
            if applies {
                denied.insert(*action, why.clone());
            }
        }
        denied
    }

    /// Reads tags by ID, if that is allowed. Cached tags may be old unless fresh ones are required.
    ///
    /// # Errors
    /// `NotFound` if an object was deleted since it was listed, and nothing else failed. The tags of the others are cached.
    pub(super) async fn read_tags(&self, ids: Vec<String>, fresh: bool, priority: Priority) -> Result<()> {
        let mut due = ids;
        due.retain(|id| fresh || !self.state.lock().tags.contains_key(id));
        let reads = due.into_iter().map(async |id| {
            let tags = self.tag_reads.submit((id.clone(), priority)).await?;
            self.state.lock().tags.insert(id, tags);
            Ok(())
        });
        let read = async {
            let errors = join_all(reads).await.into_iter().filter_map(Result::err);
            // The object was deleted since it was listed.
            let (deleted, failed): (Vec<Error>, Vec<Error>) =
                errors.partition(|error: &Error| error.kind() == ErrorKind::NotFound);
            match failed.into_iter().chain(deleted).next() {
                Some(error) => Err(error),
                None => Ok(()),
            }
        };
        self.optional(DESCRIBE_TAGS, read).await
    }

    /// Whether AWS does not show the tags of a new load balancer yet: no program creates one without tags. Without them, this
    /// program's own load balancers would be those of another one.
    pub(super) fn lacks_new_tags(&self, balancer: &Object) -> bool {
        let created = balancer.attributes.get(fields::CREATED).and_then(Value::as_i64);
        let now = DateTime::from(SystemTime::now()).secs();
        let is_new = created.is_some_and(|created| now.abs_diff(created) < NEW_AGE.as_secs());
        is_new && self.state.lock().tags.get(&balancer.id).is_some_and(Vec::is_empty)
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
    pub(super) async fn directory(&self, read: ReadOptions) -> Result<Arc<BalancerDirectory>> {
        let listings = self.get(read).await?;
        if let Some((of, directory)) = &self.state.lock().directory
            && Arc::ptr_eq(&of.0, &listings.0)
        {
            return Ok(Arc::clone(directory));
        }
        // If both kinds have the same name, the network load balancer counts.
        let mut balancers: Vec<_> =
            listings.all(ObjectKind::Classic).chain(listings.all(ObjectKind::Balancer)).collect();
        balancers.retain(|object| {
            object.key.starts_with('a') && object.key.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
        let mut unused: Vec<_> = listings.all(ObjectKind::TargetGroup).collect();
        unused.retain(|group| group.key.starts_with("k8s-") && listings.is_unused(group));
        let ids = balancers.iter().chain(&unused).map(|object| object.id.clone()).collect();
        let tags = self.read_tags(ids, false, read.priority).await;
        let knows_all = tags.is_ok();
        accept(tags, ErrorKind::NotFound, ())?;
        if !knows_all {
            // The others were deleted since they were listed.
            balancers.retain(|object| self.state.lock().tags.contains_key(&object.id));
            unused.retain(|object| self.state.lock().tags.contains_key(&object.id));
        }
        let new: Vec<_> = balancers
            .iter()
            .filter(|balancer| self.lacks_new_tags(balancer))
            .map(|balancer| balancer.id.clone())
            .collect();
        accept(self.read_tags(new, true, read.priority).await, ErrorKind::NotFound, ())?;
        let mut unused_groups: Vec<_> = unused.into_iter().map(|group| self.tagged(group)).collect();
        unused_groups.retain(|group| {
            let tags = tag_map(group);
            tags.contains_key(SERVICE_NAME) && self.nodes.site.cluster.owns(&tags)
        });
        let directory = Arc::new(BalancerDirectory::new(
            balancers.into_iter().map(|object| self.tagged(object)),
            listings.all(ObjectKind::Group),
            unused_groups,
        ));
        self.state.lock().directory = Some((listings, Arc::clone(&directory)));
        Ok(directory)
    }

    /// The security groups of instances.
    pub(super) async fn groups_of(
        &self,
        instances: BTreeSet<String>,
        priority: Priority,
    ) -> Result<InstanceGroups> {
        let mut all = InstanceGroups::new();
        let mut unknown = Vec::new();
        for id in instances {
            match self.known_groups_of(&id) {
                Some(groups) => {
                    all.insert(id, groups);
                }
                None => unknown.push(id),
            }
        }
        let client = self.nodes.api.at(priority);
        let began = Instant::now();
        for found in client.instances_among(&unknown).await? {
            let is_of_cluster = self.nodes.site.cluster.has(&found.tags);
            let groups = if is_of_cluster {
                Some(found.security_groups)
            } else {
                None
            };
            self.instances.insert(found.id.clone(), groups.clone(), began);
            // Not from the cache: after a slow read, the answer may already be too old for it.
            all.insert(found.id, groups);
        }
        Ok(all)
    }

    /// The security groups of an instance, if they were read lately.
    fn known_groups_of(&self, id: &String) -> Option<Option<Vec<String>>> {
        let (groups, _) = self.instances.peek(id, Freshness::AtMost(INSTANCE_AGE))?;
        if groups.is_some() {
            return Some((*groups).clone());
        }
        // Tags may be added after the launch.
        let (groups, _) = self.instances.peek(id, Freshness::AtMost(UNTAGGED_AGE))?;
        Some((*groups).clone())
    }

    /// Sets the rules of a listed security group.
    pub(super) fn set_rules(&self, id: &str, rules: Arc<[SetEntry]>) {
        self.objects.update(id, |group: &mut Object| {
            group.sets.insert(RULES, rules);
        });
    }

    /// Applies a change to the listings. `before`, `after`: the objects of a part.
    pub(super) fn apply(&self, before: &Objects, after: &Objects) {
        for object in &before.all {
            if after.get(object.kind, &object.key).is_none() {
                self.state.lock().tags.remove(&object.id);
                self.objects.remove(&object.id);
            }
        }
        for object in &after.all {
            if before.get(object.kind, &object.key) == Some(object) {
                continue;
            }
            if object.kind == ObjectKind::NodeGroup {
                self.set_rules(&object.id, object.set(RULES).into());
                continue;
            }
            // The listing has the tags of security groups.
            if object.kind != ObjectKind::Group {
                self.state.lock().tags.insert(object.id.clone(), object.set(TAGS).to_vec());
            }
            let mut object = object.clone();
            if object.attributes.contains_key(fields::SECURITY_GROUPS) {
                let names = object.texts(fields::SECURITY_GROUPS).into_iter();
                let ids: Vec<_> = names.map(|name| group_id(after, name)).collect();
                object.attributes.insert(fields::SECURITY_GROUPS, ids.into());
            }
            self.objects.insert(object);
        }
    }
}
