//! What the account lists: load balancers, target groups and security groups with their tags, subnets and route tables, and the
//! actions that the credentials may not call. Listings are shared by all parts and corrected by this process's own writes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{Cache, CacheConfig, ClientMetrics, Indexed, IndexedCache, Listing},
    load_balancer::{OwnershipTag, ReadOptions},
    plan::objects::{Change, Object, Objects},
};
use futures_util::future::{try_join, try_join_all};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::{
    desired::foreign,
    kinds::{Entry, Kind, RULES, TAGS, group_id, tag_map},
    model::Directory,
};
use crate::{
    client::{
        Api,
        ec2::{FILTER_VALUES, RouteTable, Subnet},
    },
    cluster::{LEGACY, SERVICE_NAME, has_any_cluster},
    site::Site,
};

/// The security groups of instances are read again after this.
const INSTANCE_AGE: Duration = Duration::from_secs(600);
/// An action that the credentials may not call is tried again after this.
const DENIED_AGE: Duration = Duration::from_secs(600);

/// The kinds of objects that are listed, and their labels in metrics. The security groups are those with the cluster's tag.
const LISTED: [(Kind, &str); 4] = [
    (Kind::Group, "aws_security_groups"),
    (Kind::TargetGroup, "aws_target_groups"),
    (Kind::Balancer, "aws_load_balancers"),
    (Kind::Classic, "aws_classic_load_balancers"),
];

/// An object in a listing. Classic load balancers are listed with their listeners.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    object: Object<Kind>,
    children: Vec<Object<Kind>>,
}

impl From<Object<Kind>> for Listed {
    fn from(object: Object<Kind>) -> Self {
        let children = Vec::new();
        Self { object, children }
    }
}

impl Indexed for Listed {
    fn id(&self) -> &str {
        &self.object.id
    }

    fn index_keys(&self) -> Vec<&str> {
        vec![&self.object.key]
    }
}

/// The subnets of the VPC, and where their packets go.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) subnets: Vec<Subnet>,
    pub(super) route_tables: Vec<RouteTable>,
}

/// The listings at one moment, in the order of [`LISTED`].
#[derive(Clone)]
pub(super) struct Snapshot(Vec<Arc<Listing<Listed>>>);

impl Snapshot {
    fn of(&self, kind: Kind) -> impl Iterator<Item = &Listing<Listed>> {
        let listings = LISTED.iter().zip(&self.0);
        let listings = listings.filter(move |((listed, _), _)| *listed == kind);
        listings.map(|(_, listing)| &**listing)
    }

    /// The objects of a kind.
    pub(super) fn all(&self, kind: Kind) -> impl Iterator<Item = &Object<Kind>> {
        let all = self.of(kind).flat_map(Listing::all);
        all.map(|listed| &listed.object)
    }

    /// The objects of a kind with this name.
    pub(super) fn named<'a>(&'a self, kind: Kind, name: &'a str) -> impl Iterator<Item = &'a Object<Kind>> {
        let found = self.of(kind).flat_map(|listing| listing.by_key(name));
        found.map(|listed| &listed.object)
    }

    /// The object of a kind with this ID.
    pub(super) fn by_id(&self, kind: Kind, id: &str) -> Option<&Object<Kind>> {
        let found = self.of(kind).find_map(|listing| listing.by_id(id));
        found.map(|listed| &listed.object)
    }

    /// The listeners of a classic load balancer.
    pub(super) fn children(&self, name: &str) -> impl Iterator<Item = &Object<Kind>> {
        let found = self.of(Kind::Classic).filter_map(|listing| listing.by_id(name));
        found.flat_map(|listed| &listed.children)
    }

    /// Whether no load balancer that exists uses a target group.
    pub(super) fn is_loose(&self, group: &Object<Kind>) -> bool {
        let mut balancers = group.texts("balancers").into_iter();
        balancers.all(|arn| self.by_id(Kind::Balancer, arn).is_none())
    }

    fn is(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        pairs.all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// The shared listings. All of it can be read again.
pub(super) struct Listings {
    api: Api,
    site: Arc<Site>,
    /// In the order of [`LISTED`].
    caches: [IndexedCache<Listed>; 4],
    network: Cache<(), Network>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last directory, and the listings that it is of.
    directory: Option<(Snapshot, Arc<Directory>)>,
    /// The tags of load balancers, listeners and target groups, by ID.
    tags: HashMap<String, Vec<Entry>>,
    /// The security groups of instances, and when they were read.
    instances: HashMap<String, (Instant, Vec<String>)>,
    /// Actions that the credentials may not call, with the error.
    denied: BTreeMap<&'static str, (Instant, String)>,
    /// The cluster's ownership tag.
    owner: OwnershipTag,
}

async fn list(api: Api, site: Arc<Site>, kind: Kind, priority: Priority) -> Result<Vec<Listed>> {
    let client = api.at(priority);
    let objects = match kind {
        Kind::Balancer => client.network_balancers().await?,
        Kind::TargetGroup => client.target_groups().await?,
        Kind::Classic => {
            let all = client.classic_balancers().await?.into_iter();
            return Ok(all
                .map(|(object, children)| Listed { object, children })
                .collect());
        }
        _ => {
            let key = site.cluster.key().into_iter();
            let keys = key.flat_map(|key| [key, LEGACY.to_owned()]).collect();
            let mut groups = client.security_groups(&site.vpc, keys).await?;
            groups.retain(|group| site.cluster.has(&tag_map(group)));
            groups
        }
    };
    Ok(objects.into_iter().map(Listed::from).collect())
}

impl Listings {
    pub(super) fn new(api: &Api, site: &Arc<Site>, metrics: &ClientMetrics) -> Self {
        Self {
            api: api.clone(),
            site: Arc::clone(site),
            caches: LISTED.map(|(_, name)| IndexedCache::new(name, metrics)),
            network: Cache::new(CacheConfig::new("aws_subnets"), metrics),
            state: Mutex::default(),
        }
    }

    pub(super) async fn get(&self, read: ReadOptions) -> Result<Snapshot> {
        let listings = self.caches.iter().zip(LISTED).map(|(cache, (kind, _))| {
            let load = move || list(self.api.clone(), Arc::clone(&self.site), kind, read.priority);
            cache.get(None, read.freshness, load)
        });
        try_join_all(listings).await.map(Snapshot)
    }

    /// Subnets and route tables, not older than this.
    pub(super) async fn network(&self, age: Duration, priority: Priority) -> Result<Arc<Network>> {
        let (client, vpc) = (self.api.at(priority), self.site.vpc.clone());
        let load = || async move {
            let filter = [("vpc-id", vec![vpc])];
            let read = try_join(client.subnets(&filter), client.route_tables(&filter));
            let (subnets, route_tables) = read.await?;
            Ok(Network {
                subnets,
                route_tables,
            })
        };
        self.network.get((), Freshness::AtMost(age), load).await
    }

    /// The cluster's ownership tag, by which [`Self::tagged`] decides who owns an object.
    pub(super) fn set_owner(&self, owner: &OwnershipTag) {
        self.state.lock().owner.clone_from(owner);
    }

    /// What the credentials may not do: `action` is remembered, and everything else is an error.
    pub(super) fn allowed<T: Default>(&self, action: &'static str, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                self.deny(action, &error);
                Ok(T::default())
            }
            result => result,
        }
    }

    /// Remembers that the credentials may not call an action. Returns the text for users.
    pub(super) fn deny(&self, action: &'static str, error: &Error) -> String {
        debug!(action, error = error.report(), "An action is not allowed");
        // Always the same text, so that there is one Event.
        let text = format!("the credentials may not call elasticloadbalancing:{action}");
        let denied = (Instant::now(), text.clone());
        self.state.lock().denied.insert(action, denied);
        text
    }

    /// The actions that the credentials may not call, with the error.
    pub(super) fn denied(&self) -> BTreeMap<&'static str, String> {
        let mut state = self.state.lock();
        state.denied.retain(|_, (since, _)| since.elapsed() < DENIED_AGE);
        let denied = state.denied.iter();
        denied.map(|(action, (_, why))| (*action, why.clone())).collect()
    }

    /// Reads tags by ID, if that is allowed. Those that are known may be old unless they have to be fresh.
    pub(super) async fn read_tags(
        &self,
        mut ids: Vec<String>,
        fresh: bool,
        priority: Priority,
    ) -> Result<()> {
        const ACTION: &str = "DescribeTags";
        ids.retain(|id| fresh || !self.state.lock().tags.contains_key(id));
        if ids.is_empty() || self.denied().contains_key(ACTION) {
            return Ok(());
        }
        let (others, classic): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| id.starts_with("arn:"));
        let client = self.api.at(priority);
        let read = try_join(client.load_balancer_tags(&others), client.classic_tags(&classic));
        let (tags, classic) = self.allowed(ACTION, read.await)?;
        self.state.lock().tags.extend(tags.into_iter().chain(classic));
        Ok(())
    }

    /// An object with its tags and, if there is one, its other owner.
    pub(super) fn tagged(&self, object: &Object<Kind>) -> Object<Kind> {
        let mut object = object.clone();
        let state = self.state.lock();
        if let Some(tags) = state.tags.get(&object.id) {
            object.sets.insert(TAGS, tags.as_slice().into());
        }
        object.foreign = foreign(&object, &self.site.cluster, &state.owner);
        object
    }

    /// What the listings show.
    pub(super) async fn directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
        let listings = self.get(read).await?;
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
        let loose = listings.all(Kind::TargetGroup);
        let loose = loose.filter(|group| group.key.starts_with("k8s-") && listings.is_loose(group));
        let loose: Vec<_> = loose.collect();
        let ids = balancers.iter().chain(&loose).map(|object| object.id.clone());
        self.read_tags(ids.collect(), false, read.priority).await?;
        let cluster = &self.site.cluster;
        let balancers = balancers.into_iter().map(|object| self.tagged(object));
        let balancers = balancers.filter(|object| {
            let tags = tag_map(object);
            cluster.has(&tags) || !has_any_cluster(&tags)
        });
        let loose = loose.into_iter().map(|group| self.tagged(group));
        let loose = loose.filter(|group| {
            let tags = tag_map(group);
            tags.contains_key(SERVICE_NAME) && cluster.owns(&tags)
        });
        let directory = Directory::new(balancers, listings.all(Kind::Group), loose.collect());
        let directory = Arc::new(directory);
        self.state.lock().directory = Some((listings, Arc::clone(&directory)));
        Ok(directory)
    }

    /// The security groups of instances, in the order of the API. Missing: the instance does not exist.
    pub(super) async fn groups_of(
        &self,
        instances: BTreeSet<String>,
        priority: Priority,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let is_young = |(read, _): &(Instant, Vec<String>)| read.elapsed() < INSTANCE_AGE;
        let unknown: Vec<_> = {
            let known = &self.state.lock().instances;
            let is_old = |id: &&String| !known.get(*id).is_some_and(is_young);
            instances.iter().filter(is_old).cloned().collect()
        };
        for ids in unknown.chunks(FILTER_VALUES) {
            let began = Instant::now();
            let filter = [("instance-id", ids.to_vec())];
            let found = self.api.at(priority).instances(&filter).await?.into_iter();
            let known = &mut self.state.lock().instances;
            known.retain(|id, known| is_young(known) || instances.contains(id));
            known.extend(found.map(|one| (one.id, (began, one.security_groups))));
        }
        let state = self.state.lock();
        let known = instances.into_iter().filter_map(|id| {
            let groups = state.instances.get(&id)?.1.clone();
            Some((id, groups))
        });
        Ok(known.collect())
    }

    fn cache(&self, kind: Kind) -> Option<&IndexedCache<Listed>> {
        let mut caches = self.caches.iter().zip(LISTED);
        let found = caches.find(|(_, (listed, _))| *listed == kind);
        found.map(|(cache, _)| cache)
    }

    /// Takes over the rules that a listed security group has now.
    pub(super) fn set_rules(&self, id: &str, rules: Arc<[Entry]>) {
        if let Some(cache) = self.cache(Kind::Group) {
            cache.update(id, |listed| drop(listed.object.sets.insert(RULES, rules)));
        }
    }

    /// Takes a change into the listings, by the objects of its part before and after it.
    pub(super) fn apply(&self, change: &Change<Kind>, before: &Objects<Kind>, after: &Objects<Kind>) {
        let (kind, key) = match (change.kind, &change.parent) {
            (Kind::ClassicListener, Some(parent)) => (Kind::Classic, parent),
            (kind, _) => (kind, &change.key),
        };
        match (after.get(kind, key), before.get(kind, key)) {
            (Some(group), _) if kind == Kind::NodeGroup => self.set_rules(&group.id, group.set(RULES).into()),
            (Some(object), _) => {
                let tags = object.set(TAGS).to_vec();
                self.state.lock().tags.insert(object.id.clone(), tags);
                let mut object = object.clone();
                if object.attributes.contains_key("security_groups") {
                    let names = object.texts("security_groups").into_iter();
                    let ids: Vec<_> = names.map(|name| group_id(after, name)).collect();
                    object.attributes.insert("security_groups", ids.into());
                }
                let children = after.of(Kind::ClassicListener);
                let children = children.filter(|child| child.parent.as_ref() == Some(&object.key));
                let children = children.cloned().collect();
                if let Some(cache) = self.cache(kind) {
                    cache.insert(Listed { object, children });
                }
            }
            (None, Some(gone)) => {
                self.state.lock().tags.remove(&gone.id);
                if let Some(cache) = self.cache(kind) {
                    cache.remove(&gone.id);
                }
            }
            (None, None) => {}
        }
    }
}
