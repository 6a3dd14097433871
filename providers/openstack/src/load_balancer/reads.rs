//! The reads for load balancers: shared listings, and a few reads of single objects.
//!
//! | Read | Requests | Cached |
//! |---|---|---|
//! | load balancers, listeners, pools, health monitors, floating IPs, security groups with rules | a page for 1,000 of the project's, for all Services | as the caller allows, updated by our own writes |
//! | members of a pool | none while the pool's member IDs are the cached ones, else one | as long as the IDs are the same |
//! | members before a whole list is sent | one | no |
//! | states of pending load balancers | one of three fields for one or two, a page of states for 1,000 if there are more | no |
//! | whether a load balancer exists that no listing has | one | no |
//! | ports of servers | one for 150 servers, for all Services | as the caller allows, updated by our own writes |
//! | networks, subnets | one each | 10 minutes; an empty answer 30 seconds |
//! | secrets | one each | 10 minutes |
//! | Octavia's version | one | forever; a refusal 10 minutes |
//!
//! All caches belong to one set of credentials and end with it.

mod balancers;
mod discovery;
mod members;
mod ports;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result, Retry,
    client::{Cache, CacheConfig, ClientMetrics, Indexed, IndexedCache, Listing, later},
    load_balancer::ReadOptions,
    plan::objects::Object,
};
use futures_util::future::try_join_all;
use tokio::{sync::Mutex, time::Instant};

pub(crate) use self::{discovery::Discovery, members::Members};
use super::{
    features::Version,
    fields,
    kinds::{ObjectKind, REFUSED},
    member::Member,
    names,
    responses::{
        self, FloatingIp, Listener, LoadBalancer, LoadBalancerState, Monitor, Pool, Ref, SecurityGroup,
    },
};
use crate::{
    client::{Api, Call, Op, catalog::Service, listing::Resource, read},
    error::is_permanent,
    instances::records::Port,
};

/// A port or floating IP that Neutron refused to change is tried again after this.
pub(super) const REFUSED_AGE: Duration = Duration::from_secs(600);

/// The query of a listing.
type Query = &'static [(&'static str, &'static str)];

/// The keys of objects in addition to their ID.
macro_rules! indexed {
    ($($kind:ident by |$object:ident| $keys:expr;)+) => {$(
        impl Indexed for $kind {
            fn id(&self) -> &str {
                &self.id
            }

            fn index_keys(&self) -> Vec<&str> {
                let $object = self;
                $keys
            }
        }
    )+};
}

indexed! {
    LoadBalancer by |balancer| vec![&balancer.name];
    Listener by |listener| ids(&listener.loadbalancers);
    Pool by |pool| ids(&pool.loadbalancers);
    Monitor by |monitor| ids(&monitor.pools);
    FloatingIp by |floating| {
        let subject = names::subject_of_floating_ip(&floating.description);
        let keys = [&*floating.port_id, &*floating.floating_ip_address];
        keys.into_iter().chain(subject).collect()
    };
    SecurityGroup by |group| vec![&group.name];
}

fn ids(objects: &[Ref]) -> Vec<&str> {
    objects.iter().map(|object| object.id.as_str()).collect()
}

/// The objects below a load balancer. Each kind is sorted by ID, since the order of listings varies and passes must be
/// repeatable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children {
    pub(crate) listeners: Vec<Arc<Listener>>,
    pub(crate) pools: Vec<Arc<Pool>>,
    pub(crate) monitors: Vec<Arc<Monitor>>,
    /// When each pool had its listed member IDs; pools without an entry were read now.
    as_of: HashMap<String, Instant>,
}

impl Children {
    fn sorted(mut self) -> Self {
        self.listeners.sort_by(|a, b| a.id.cmp(&b.id));
        self.pools.sort_by(|a, b| a.id.cmp(&b.id));
        self.monitors.sort_by(|a, b| a.id.cmp(&b.id));
        self
    }
}

/// The required freshness of a pool's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Only which members exist.
    Which,
    /// Also the fields that users may have changed: the members are read.
    Exactly,
}

/// The reads; see the module.
#[derive(Debug)]
pub(crate) struct Reads {
    api: Api,
    /// Load balancers. Keys: ID.
    pub(crate) balancers: IndexedCache<LoadBalancer>,
    /// The states of load balancers by ID, while many are pending.
    states: Cache<(), HashMap<String, LoadBalancerState>>,
    /// Listeners. Keys: load balancer.
    pub(crate) listeners: IndexedCache<Listener>,
    /// Pools. Keys: load balancer.
    pub(crate) pools: IndexedCache<Pool>,
    /// Health monitors. Keys: load balancer.
    pub(crate) monitors: IndexedCache<Monitor>,
    /// Floating IPs. Keys: port.
    pub(crate) floating_ips: IndexedCache<FloatingIp>,
    /// Security groups. Keys: name.
    pub(crate) security_groups: IndexedCache<SecurityGroup>,
    /// Members of pools.
    pub(crate) members: Members,
    /// Networks, subnets, secrets.
    pub(crate) discovery: Discovery,
    /// Ports by their server.
    ports: Cache<String, Vec<Arc<Port>>>,
    /// Ports whose groups Neutron refused to change, with its answer.
    pub(super) refused_ports: Cache<String, String>,
    /// Floating IPs that Neutron refused to attach, with its answer.
    pub(super) refused_floating_ips: Cache<String, String>,
    /// Locked while ports are read, so that callers that need the same ports share one read. One for each priority: no user
    /// waits for quota behind background work.
    ports_being_read: [Mutex<()>; 2],
    /// The last answer about the version, and how long it counts if it is an error.
    version: Mutex<Option<(Instant, Result<Version>)>>,
}

/// How long a refusal to show the version is cached.
const VERSION_REFUSED: Duration = Duration::from_secs(600);
/// How long other failures to read the version are cached at least. All callers wait for the answer, so a slow request
/// is repeated less often.
const VERSION_FAILED: Duration = Duration::from_secs(10);

impl Reads {
    /// Creates the reads with empty caches.
    pub(crate) fn new(api: Api, metrics: &ClientMetrics) -> Self {
        let ports = CacheConfig {
            max_age: Some(Duration::from_secs(600)),
            ..CacheConfig::new("openstack_node_ports")
        };
        let states = CacheConfig {
            max_age: Some(Duration::from_secs(5)),
            ..CacheConfig::new("openstack_load_balancer_states")
        };
        Self {
            balancers: IndexedCache::new("openstack_load_balancers", metrics),
            states: Cache::new(states, metrics),
            listeners: IndexedCache::new("openstack_listeners", metrics),
            pools: IndexedCache::new("openstack_pools", metrics),
            monitors: IndexedCache::new("openstack_health_monitors", metrics),
            floating_ips: IndexedCache::new("openstack_floating_ips", metrics),
            security_groups: IndexedCache::new("openstack_security_groups", metrics),
            members: Members::default(),
            discovery: Discovery::new(api.clone(), metrics),
            ports: Cache::new(ports, metrics),
            refused_ports: Cache::new(CacheConfig::new("refused_ports"), metrics),
            refused_floating_ips: Cache::new(CacheConfig::new("refused_floating_ips"), metrics),
            ports_being_read: Default::default(),
            version: Mutex::default(),
            api,
        }
    }

    /// Invalidates the objects below a load balancer after a change with an unknown result.
    pub(crate) fn invalidate_children(&self, balancer: &str) {
        self.listeners.invalidate(balancer);
        self.pools.invalidate(balancer);
        self.monitors.invalidate(balancer);
    }

    /// Why Octavia is not available; `None` if it is.
    ///
    /// # Errors
    /// If no token can be obtained.
    pub(crate) async fn missing(&self) -> Result<Option<String>> {
        self.api.missing(Service::LoadBalancer).await
    }

    /// The version of Octavia's API. It is read until it is known; after a refusal, every ten minutes. All callers wait for one
    /// call, so that it has the priority of users.
    ///
    /// # Errors
    /// If it cannot be read. After a refusal, the error's retry is that of the next read.
    pub(crate) async fn version(&self) -> Result<Version> {
        let mut known = self.version.lock().await;
        match &*known {
            Some((_, Ok(version))) => return Ok(*version),
            Some((until, Err(error))) if Instant::now() < *until => return Err(refused(error, *until)),
            _ => {}
        }
        let began = Instant::now();
        let answer = self.read_version().await;
        let kept = match &answer {
            Err(error) if is_permanent(error) => VERSION_REFUSED,
            _ => VERSION_FAILED.max(4 * began.elapsed()),
        };
        let until = later(Instant::now(), kept);
        *known = Some((until, answer.clone()));
        answer.map_err(|error| refused(&error, until))
    }

    async fn read_version(&self) -> Result<Version> {
        let get = octavia(Op::LoadBalancerVersions, &[], &[]);
        let document: super::features::VersionDocument =
            self.api.get_unversioned(get, Priority::User).await?;
        document
            .newest()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "Octavia's list of versions has no version 2"))
    }

    /// The objects below a load balancer: from the shared listings, or for another project's load balancer by its own
    /// reads.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn children(&self, balancer: &LoadBalancer, read: ReadOptions) -> Result<Children> {
        let project = self.api.project().await?;
        let foreign =
            project.is_some_and(|own| !balancer.project_id.is_empty() && own != balancer.project_id);
        if foreign {
            return Box::pin(self.foreign_children(&balancer.id, read.priority)).await;
        }
        let id = Some(balancer.id.as_str());
        let (listeners, pools) = tokio::try_join!(
            self.shared(&self.listeners, id, &[], read),
            self.shared(&self.pools, id, &[], read)
        )?;
        let listing = pools;
        let pools: Vec<_> = listing.by_key(&balancer.id).cloned().collect();
        let ids = pools.iter().map(|pool| pool.id.clone());
        let as_of = ids.clone().map(|id| (id.clone(), listing.as_of(&id))).collect();
        self.members.set_pools(&balancer.id, ids.collect());
        let mut monitors = Vec::new();
        if pools.iter().any(|pool| !pool.healthmonitor_id.is_empty()) {
            let listing = self.shared(&self.monitors, id, &[], read).await?;
            for pool in &pools {
                monitors.extend(listing.by_key(&pool.id).cloned());
            }
        }
        Ok(Children {
            listeners: listeners.by_key(&balancer.id).cloned().collect(),
            as_of,
            pools,
            monitors,
        }
        .sorted())
    }

    async fn foreign_children(&self, balancer: &str, priority: Priority) -> Result<Children> {
        let query = [("loadbalancer_id", balancer)];
        let (listeners, pools) = tokio::try_join!(
            self.api.list::<Listener>(&query, priority),
            self.api.list::<Pool>(&query, priority)
        )?;
        let monitors = pools.iter().filter(|pool| !pool.healthmonitor_id.is_empty()).map(|pool| async move {
            self.uncached::<Monitor>(Op::MonitorGet, &pool.healthmonitor_id, priority).await
        });
        let monitors = try_join_all(monitors).await?.into_iter().flatten().map(Arc::new).collect();
        Ok(Children {
            listeners: listeners.into_iter().map(Arc::new).collect(),
            pools: pools.into_iter().map(Arc::new).collect(),
            monitors,
            as_of: HashMap::new(),
        }
        .sorted())
    }

    /// The members of pools, in the order of the pools.
    ///
    /// # Errors
    /// If the members of one pool cannot be read.
    pub(crate) async fn members(
        &self,
        children: &Children,
        contents: Contents,
        priority: Priority,
    ) -> Result<Vec<Arc<[Member]>>> {
        let each = children.pools.iter().map(|pool| async move {
            let as_of = children.as_of.get(&pool.id).copied();
            let known = (contents == Contents::Which).then(|| self.members.of(pool, as_of)).flatten();
            match known {
                Some(members) => Ok(members),
                None => self.members_uncached(&pool.id, priority).await,
            }
        });
        try_join_all(each).await
    }

    /// Reads the members of a pool.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) async fn members_uncached(&self, pool: &str, priority: Priority) -> Result<Arc<[Member]>> {
        let path = ["lbaas", "pools", pool, "members"];
        let began = Instant::now();
        let members: Vec<responses::Member> = self.api.list_at(&path, &[], priority).await?;
        Ok(self.members.read(pool, members, began))
    }

    /// The floating IPs of the project. `port`: the one that matters to the caller; empty: those without a port.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) async fn floating_ips(
        &self,
        port: Option<&str>,
        read: ReadOptions,
    ) -> Result<Arc<Listing<FloatingIp>>> {
        const FIELDS: Query = &[
            ("fields", "id"),
            ("fields", fields::FLOATING_IP_ADDRESS),
            ("fields", fields::FLOATING_NETWORK_ID),
            ("fields", fields::PORT_ID),
            ("fields", fields::DESCRIPTION),
            ("fields", fields::TAGS),
            ("fields", "revision_number"),
        ];
        self.shared(&self.floating_ips, port, FIELDS, read).await
    }

    /// The object of a floating IP, with the answer if Neutron refused to attach it some minutes ago.
    pub(crate) fn floating_object(&self, floating: &FloatingIp) -> Object<ObjectKind> {
        let object = Object::from(floating);
        let refused = self.refused_floating_ips.peek(&floating.id, Freshness::AtMost(REFUSED_AGE));
        match refused {
            Some((why, _)) => object.with(REFUSED, why.as_str()),
            None => object,
        }
    }

    /// The security groups of the project with their rules. `name`: the one that matters to the caller.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) async fn security_groups(
        &self,
        name: Option<&str>,
        read: ReadOptions,
    ) -> Result<Arc<Listing<SecurityGroup>>> {
        const FIELDS: Query = &[
            ("fields", "id"),
            ("fields", fields::NAME),
            ("fields", fields::DESCRIPTION),
            ("fields", fields::TAGS),
            ("fields", "security_group_rules"),
        ];
        self.shared(&self.security_groups, name, FIELDS, read).await
    }

    async fn shared<T: Indexed + Resource>(
        &self,
        cache: &IndexedCache<T>,
        key: Option<&str>,
        query: Query,
        read: ReadOptions,
    ) -> Result<Arc<Listing<T>>> {
        let ReadOptions { freshness, priority } = read;
        cache
            .get(key, freshness, priority, || {
                let api = self.api.clone();
                async move {
                    // An admin role would see the objects of all projects.
                    let project = api.project().await?;
                    let mut all: Vec<(&'static str, &str)> = query.to_vec();
                    all.extend(project.as_deref().map(|project| ("project_id", project)));
                    api.list::<T>(&all, priority).await
                }
            })
            .await
    }
}

/// Sets the retry of a refusal to the end of its caching.
fn refused(error: &Error, until: Instant) -> Error {
    let error = error.clone();
    if !is_permanent(&error) {
        return error;
    }
    error.with_retry(Retry::Fixed(until.saturating_duration_since(Instant::now())))
}

fn octavia<'a>(op: Op, path: &'a [&'a str], query: &'a [(&'static str, &'a str)]) -> Call<'a> {
    Call {
        query,
        ..read(op, Service::LoadBalancer, path)
    }
}
