//! The calls of a plan: reading the observed state of parts, and sending one change after the other.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Cloud, Error, ErrorKind, Freshness, Priority, Result, Retry, async_trait,
    client::{ClientMetrics, Listing},
    load_balancer::{
        ClusterView, Effect, FormerLoadBalancer, PartReport, ReadOptions, ReconcileMetrics, ServiceId,
        ServiceView, SessionAffinity,
    },
    plan::{
        CredentialsCheck, Fact, GatheredInputs, Membership, PartCloud, PollIntervals, PollTiming, ScopeCheck,
        SendOptions, SendOutcome, Wait,
        objects::{Object, Objects, stale},
    },
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::settings::LoadBalancing;
use super::{
    annotations,
    desired::{self, PartInputs},
    directory::{DirectoryCache, Listings, LoadBalancerDirectory},
    discover,
    features::{Capabilities, Feature},
    fields, former,
    kinds::{ListenerKey, MemberSet, ObjectKind},
    names,
    observe::{self, LoadBalancerSnapshot, ObservedPart},
    part::{Model, OpenStackPart, PartMember},
    plan,
    reads::{Contents, REFUSED_AGE, Reads},
    reconcile::RECONCILE_METRICS,
    responses::{LoadBalancer, LoadBalancerState, Provisioning},
    send::Sender,
    spec,
    steps::{PartChange, PartReply},
    tags::Unrecorded,
};
use crate::{client::Api, error::is_permanent};

/// The retry interval for a security group that its ports still use.
const IN_USE: Duration = Duration::from_secs(2);
/// How many IDs of deleted load balancers are remembered.
const DELETED: usize = 1000;
/// How long a shared poll of many load balancers is reused.
const SHARED_POLL: Duration = Duration::from_millis(500);
/// The same for load balancers that others left pending, which are less urgent.
const SHARED_PENDING_POLL: Duration = Duration::from_secs(2);

/// A Service's session affinity as this process observed it first.
#[derive(Clone, Copy, Debug)]
struct FirstAffinity {
    is_sticky: bool,
    /// Whether it was another one since then.
    is_changed: bool,
}

/// A change that Octavia accepted.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// The load balancer's ID.
    id: String,
    /// Whether the change ends with the deletion of the load balancer; otherwise with `ACTIVE`.
    deletes: bool,
    /// Whether it has a floating IP, which is detached when the load balancer is deleted.
    has_floating_ip: bool,
}

/// A cloud with its current credentials.
pub(crate) trait Clients: Cloud {
    /// The current clients for reads and changes of load balancers.
    fn clients(&self) -> (Api, Arc<Reads>);
}

/// The reads, changes and polls of load balancers.
#[derive(Debug)]
pub(crate) struct Calls<C> {
    settings: Arc<LoadBalancing>,
    cloud: C,
    credentials: CredentialsCheck,
    /// The last directory.
    directory_cache: Mutex<DirectoryCache>,
    /// When to poll the load balancers that Octavia is changing.
    polls: Mutex<PollIntervals<OpenStackPart>>,
    /// IDs of load balancers that this process created and has not observed as `ACTIVE` or deleted since.
    created: Mutex<HashSet<String>>,
    /// IDs of load balancers that this process deleted, the last one first.
    deleted: Mutex<VecDeque<String>>,
    /// The cluster as of the last pass: its ownership tag, and the nodes whose ports are read.
    cluster: Mutex<ClusterView>,
    /// The session affinity of each Service as this process observed it first.
    affinities: Mutex<HashMap<ServiceId, FirstAffinity>>,
    /// Requested tags that no Service records yet.
    unrecorded: Mutex<Unrecorded>,
    metrics: ReconcileMetrics,
}

impl<C: Clients> Calls<C> {
    /// Creates the calls. `cloud` also reads the nodes.
    pub(crate) fn new(settings: Arc<LoadBalancing>, cloud: C, metrics: &ClientMetrics) -> Self {
        Self {
            settings,
            cloud,
            credentials: CredentialsCheck::default(),
            directory_cache: Mutex::default(),
            polls: Mutex::new(PollIntervals::new(poll_timing)),
            created: Mutex::default(),
            deleted: Mutex::default(),
            cluster: Mutex::default(),
            affinities: Mutex::default(),
            unrecorded: Mutex::default(),
            metrics: ReconcileMetrics::publish("openstack_reconcile", &RECONCILE_METRICS, metrics),
        }
    }

    /// The Services among these members whose session affinity changed since this process observed them first.
    fn changed_affinity(&self, members: &[PartMember]) -> BTreeSet<ServiceId> {
        let mut affinities = self.affinities.lock();
        let mut changed = BTreeSet::new();
        for PartMember { service, .. } in members {
            if !service.wants_load_balancer() {
                affinities.remove(&service.id);
                continue;
            }
            let is_sticky = service.session_affinity != SessionAffinity::None;
            let first = affinities.entry(service.id.clone()).or_insert(FirstAffinity {
                is_sticky,
                is_changed: false,
            });
            first.is_changed = first.is_changed || first.is_sticky != is_sticky;
            if first.is_changed {
                changed.insert(service.id.clone());
            }
        }
        changed
    }

    async fn snapshot(
        &self,
        reads: &Reads,
        key: &OpenStackPart,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<LoadBalancerSnapshot> {
        let balancers = match key {
            OpenStackPart::Balancer(id) => reads.load_balancer(id, read).await?.into_iter().collect(),
            OpenStackPart::New(name) => {
                let listing = reads.load_balancers(None, read).await?;
                let remaining =
                    listing.by_key(name).filter(|balancer| balancer.provisioning_status.remains());
                remaining.cloned().collect::<Vec<_>>()
            }
            _ => Vec::new(),
        };
        for balancer in &balancers {
            if balancer.provisioning_status == Provisioning::Active {
                self.created.lock().remove(&balancer.id);
            }
        }
        let mut objects: Objects<ObjectKind> =
            balancers.iter().map(|balancer| (&**balancer).into()).collect();
        if objects.all.iter().any(observe::is_pending) {
            // The objects below it are read once it is not pending.
            return Ok(LoadBalancerSnapshot {
                objects,
                ..LoadBalancerSnapshot::default()
            });
        }
        let (cluster, ownership_tag) = {
            let known = self.cluster.lock();
            (known.name.to_string(), known.ownership_tag.clone())
        };
        let port = balancers.first().map(|balancer| balancer.vip_port_id.as_str());
        let external = self.external(reads, members, read.priority).await?;
        let listing = match reads.floating_ips(port.or(Some("")), read).await {
            Ok(listing) => Some(listing),
            Err(error) => {
                let vips = balancers.first().map(|balancer| balancer.virtual_addresses()).unwrap_or_default();
                if members.is_empty()
                    || members.iter().any(|member| self.needs_floating_ips(member, &vips, external, &error))
                {
                    return Err(error);
                }
                None
            }
        };
        let lacks_floating_ips = listing.is_none();
        let listing = listing.unwrap_or_else(|| Arc::new(Listing::from_iter([])));
        let port = port.filter(|port| !port.is_empty());
        let attached = port.into_iter().flat_map(|port| {
            let found = listing.by_key(port);
            found.filter(move |found| found.port_id == port).take(1)
        });
        let mut floating: BTreeMap<_, _> = attached.map(|found| (found.id.clone(), found)).collect();
        for member in members {
            let service = &member.service;
            let annotated = service.annotation(annotations::LOAD_BALANCER_ADDRESS);
            let addresses = service
                .status_addresses()
                .map(|ip| ip.to_string())
                .chain([service.load_balancer_ip.to_string()])
                .chain(annotated.map(str::to_owned))
                .filter(|address| !address.is_empty());
            let created = names::floating_ip_subject(&service.id);
            for key in addresses.chain([created]) {
                let found = listing.by_key(&key);
                floating.extend(found.map(|found| (found.id.clone(), found)));
            }
        }
        objects.all.extend(floating.into_values().map(|found| reads.floating_object(found)));
        if let [balancer] = balancers.as_slice() {
            self.children(reads, key, balancer, &mut objects, members, read).await?;
        }
        let services = members.iter().map(|member| &*member.service);
        let name = balancers.first().map(|balancer| balancer.name.as_str());
        let annotated = self
            .unrecorded
            .lock()
            .annotated(key, name, services, || observe::tags_of(&objects, |_| true));
        let mut ids = balancers.iter().map(|balancer| &balancer.id);
        Ok(LoadBalancerSnapshot {
            is_being_created: ids.any(|id| self.created.lock().contains(id)),
            was_deleted: matches!(key, OpenStackPart::Balancer(id) if self.deleted.lock().contains(id)),
            external,
            internal: PartMember::staying(members)
                .filter(|member| spec::is_internal(&member.service, &self.settings))
                .map(|member| names::load_balancer(&cluster, &member.service.id))
                .collect(),
            lacks_floating_ips,
            objects,
            cluster,
            ownership_tag,
            annotated,
        })
    }

    /// Whether the part must wait for this member while floating IPs cannot be read. A frozen member keeps its floating IP.
    fn needs_floating_ips(&self, member: &PartMember, vips: &[&str], external: bool, error: &Error) -> bool {
        let (service, settings) = (&member.service, &self.settings);
        match member.membership {
            Membership::Frozen(_) => false,
            Membership::Leaving => spec::may_have_floating_ip(service, settings, vips, error),
            Membership::Active => {
                let has_network = external || !spec::floating_network(service, settings).is_empty();
                (spec::is_public(service, settings) && has_network)
                    || spec::may_have_floating_ip(service, settings, vips, error)
            }
        }
    }

    /// Whether an external network exists for Services that want a floating IP and name no network.
    async fn external(&self, reads: &Reads, members: &[PartMember], priority: Priority) -> Result<bool> {
        let settings = &self.settings;
        let asks = PartMember::staying(members).any(|member| {
            !spec::is_internal(&member.service, settings)
                && spec::floating_network(&member.service, settings).is_empty()
        });
        if !asks {
            return Ok(false);
        }
        let network = reads.discovery.default_external_network(priority).await?;
        Ok(network.is_some())
    }

    /// Reads the objects below a load balancer.
    async fn children(
        &self,
        reads: &Reads,
        key: &OpenStackPart,
        balancer: &LoadBalancer,
        objects: &mut Objects<ObjectKind>,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<()> {
        let desired = desired::left_by_all(&self.settings, key, members, &self.cluster.lock());
        if let Some(desired) = desired
            && objects
                .of(ObjectKind::Balancer)
                .any(|balancer| plan::deletes_whole(&desired, objects, balancer))
        {
            return Ok(());
        }
        let children = reads.children(balancer, read).await?;
        let contents = match (read.freshness, read.priority) {
            (Freshness::After(_), Priority::Background) => Contents::Exactly,
            _ => Contents::Which,
        };
        let members = reads.members(&children, contents, read.priority).await?;
        let set = MemberSet::with(self.settings.conf.provider_requires_serial_api_calls).name();
        let mut pools: Vec<_> = children.pools.iter().zip(members).collect();
        let mut listeners: Vec<_> = children.listeners.iter().collect();
        // A user's listener may share the pool of a Service.
        listeners.sort_by_key(|listener| !listener.tags.iter().any(|tag| names::is_service_tag(tag)));
        for listener in listeners {
            let (key, name) = (ListenerKey::of(listener), &balancer.name);
            objects.all.push(ObjectKind::Listener.below(key, name, &listener.id, &**listener));
            // Octavia also shows a listener in pools to which an L7 policy of users redirects. Without a pool, it is empty.
            let default = &listener.default_pool_id;
            let at = pools.iter().position(|(pool, _)| pool.id == *default);
            let Some((pool, members)) = at.map(|at| pools.swap_remove(at)) else {
                continue;
            };
            let mut object = ObjectKind::Pool.below(key, name, &pool.id, &**pool);
            if observe::is_broken(&object) {
                // Octavia refuses changes below it, but an update of the pool itself repairs it.
                object.attributes.remove(fields::LB_ALGORITHM);
            }
            object.sets.insert(set, members);
            objects.all.push(object);
            let monitor_id = &pool.healthmonitor_id;
            if !monitor_id.is_empty()
                && let Some(monitor) = children.monitors.iter().find(|monitor| monitor.id == *monitor_id)
            {
                objects.all.push(ObjectKind::Monitor.below(key, name, monitor_id, &**monitor));
            }
        }
        let orphaned =
            pools.into_iter().map(|(pool, _)| ObjectKind::Pool.object(&pool.id, &pool.id, &**pool));
        objects.all.extend(orphaned);
        Ok(())
    }

    async fn ports(&self, reads: &Reads, members: &[PartMember], read: ReadOptions) -> Result<ObservedPart> {
        let mut ports = BTreeMap::new();
        let mut groups = Vec::new();
        for member in members.iter().filter(|member| member.leaves()) {
            let name = names::security_group(&member.service.id);
            let listing = reads.security_groups(Some(&name), read).await?;
            groups.extend(listing.by_key(&name).map(|group| group.id.clone()));
        }
        let cluster = self.cluster.lock().clone();
        let servers: BTreeSet<_> = members
            .iter()
            .filter(|member| member.follows_nodes())
            .flat_map(|member| spec::servers(&member.service, &self.settings, &cluster))
            .collect();
        let servers: Vec<_> = servers.iter().map(String::as_str).collect();
        if !servers.is_empty() {
            for list in reads.ports_of(&servers, read).await?.into_values() {
                for port in list.iter() {
                    ports.insert(port.id.clone(), (**port).clone());
                }
            }
        }
        let groups: Vec<_> = groups.iter().map(String::as_str).collect();
        if !groups.is_empty() {
            for port in reads.ports_with(&groups, read.priority).await? {
                ports.insert(port.id.clone(), port);
            }
        }
        for (id, port) in &mut ports {
            let refused = reads.refused_ports.peek(id, Freshness::AtMost(REFUSED_AGE));
            port.refused = refused.map(|(why, _)| (*why).clone()).unwrap_or_default();
        }
        // Another client may have deleted a group that was on no port. Neutron refuses every list with it.
        let listing = reads.security_groups(None, read).await?;
        let known = members.iter().filter_map(desired::group_of).filter_map(Fact::known);
        let missing = known.filter(|id| listing.by_id(id).is_none());
        Ok(ObservedPart::Ports(ports, missing.cloned().collect()))
    }
}

#[async_trait]
impl<C: Clients> PartCloud<Model> for Calls<C> {
    type Ticket = Ticket;

    async fn directory(&self, read: ReadOptions) -> Result<Arc<LoadBalancerDirectory>> {
        let (_, reads) = self.cloud.clients();
        if let Some(why) = reads.missing().await? {
            // Nothing can be observed without Octavia, so nothing is created and no finalizer is removed.
            let text = format!(
                "Octavia is not available: {why}; if this cloud has none, write enabled=false into [LoadBalancer]"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        let (balancers, groups, floating) = tokio::join!(
            reads.load_balancers(None, read),
            reads.security_groups(None, read),
            reads.floating_ips(None, read)
        );
        // While the version is unknown, nothing is created.
        let version = reads.version().await;
        let lacks_tags = version.is_ok_and(|version| !Capabilities::of(version, "").has(Feature::Tags));
        let mut cache = self.directory_cache.lock();
        let groups = match groups {
            Err(error) if self.settings.conf.manage_security_groups => return Err(error),
            // Nothing can have created a security group that this project may not even list.
            Err(error) if is_permanent(&error) => {
                let known = cache.last_groups();
                Some(known.unwrap_or_else(|| Arc::new(Listing::from_iter([]))))
            }
            groups => groups.ok().or_else(|| cache.last_groups()),
        };
        let listings = Listings {
            balancers: balancers?,
            groups,
            floating: floating.ok().or_else(|| cache.last_floating()),
        };
        Ok(cache.directory(listings, lacks_tags))
    }

    async fn inputs(
        &self,
        key: &OpenStackPart,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<PartInputs>> {
        let (_, reads) = self.cloud.clients();
        {
            let mut known = self.cluster.lock();
            known.name.clone_from(&cluster.name);
            known.ownership_tag.clone_from(&cluster.ownership_tag);
            if *key == OpenStackPart::NodePorts {
                *known = cluster.clone();
            }
        }
        let changed_affinity = self.changed_affinity(members);
        let mut gathered = discover::inputs(&self.settings, &reads, key, members, cluster, read).await?;
        gathered.inputs.changed_affinity = changed_affinity;
        Ok(gathered)
    }

    async fn observe(
        &self,
        key: &OpenStackPart,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<ObservedPart> {
        let (_, reads) = self.cloud.clients();
        match key {
            OpenStackPart::Balancer(_) | OpenStackPart::New(_) => {
                Ok(ObservedPart::Balancers(self.snapshot(&reads, key, members, read).await?))
            }
            OpenStackPart::Group(name) => {
                let listing = reads.security_groups(Some(name), read).await?;
                Ok(ObservedPart::Groups(listing.by_key(name).map(|group| (&**group).into()).collect()))
            }
            OpenStackPart::NodePorts => self.ports(&reads, members, read).await,
        }
    }

    async fn send(
        &self,
        key: &OpenStackPart,
        change: &PartChange,
        observed: &ObservedPart,
        options: &SendOptions,
    ) -> Result<SendOutcome<PartReply, Ticket>> {
        let priority = options.priority;
        let (api, reads) = self.cloud.clients();
        let sender = Sender::new(&api, &reads, priority, self.settings.conf.cascade_delete);
        let reply = sender.send(change, observed).await.map_err(|error| match error.kind() {
            ErrorKind::Conflict if change.deletes_group() && error.retry() == Retry::Backoff => {
                error.with_retry(Retry::Fixed(IN_USE))
            }
            _ => error,
        })?;
        let Some(effect) = change.occupies_balancer() else {
            return Ok(SendOutcome::Done(reply));
        };
        let created = match &reply {
            PartReply::Balancer(reply) if effect == Effect::Create => reply.objects.first(),
            _ => None,
        };
        let id = match (created, key) {
            (Some(created), _) => {
                self.created.lock().insert(created.id.clone());
                created.id.clone()
            }
            (_, OpenStackPart::Balancer(id)) => id.clone(),
            _ => {
                let text = "the load balancer has no id; this is a bug";
                return Err(Error::new(ErrorKind::Unexpected, text));
            }
        };
        if effect == Effect::Delete {
            let mut deleted = self.deleted.lock();
            deleted.truncate(DELETED - 1);
            deleted.push_front(id.clone());
        }
        let has_floating_ip = match observed {
            ObservedPart::Balancers(snapshot) => snapshot
                .balancer()
                .is_some_and(|balancer| observe::floating(&snapshot.objects, balancer).is_some()),
            _ => false,
        };
        let poll = self.polls.lock().accepted(&OpenStackPart::Balancer(id.clone()), effect);
        Ok(SendOutcome::Accepted {
            reply,
            ticket: Ticket {
                id,
                deletes: effect == Effect::Delete,
                has_floating_ip,
            },
            wait: Wait {
                poll,
                deadline: self.settings.patience,
            },
        })
    }

    async fn poll(
        &self,
        key: &OpenStackPart,
        ticket: &Ticket,
        priority: Priority,
    ) -> Result<Option<Duration>> {
        let (_, reads) = self.cloud.clients();
        let id = &ticket.id;
        let polled_at = Instant::now();
        let (since, waiting) = self.polls.lock().since(key);
        let state = match since {
            Some(since) => state(&reads, id, since, waiting, SHARED_POLL, priority).await?,
            None => reads.state(id, priority).await?,
        };
        let ends = |done: bool| self.polls.lock().ended(key, done.then_some(polled_at));
        let status = state.map(|state| state.provisioning_status);
        match status {
            None | Some(Provisioning::Active) => {
                self.created.lock().remove(id);
                if status.is_none() && ticket.has_floating_ip {
                    reads.floating_ips.invalidate("");
                }
                let done = status.is_none() == ticket.deletes;
                ends(done);
                if done { Ok(None) } else { Err(stale()) }
            }
            Some(Provisioning::Error) => {
                ends(false);
                Err(Error::new(
                    ErrorKind::Unexpected,
                    format!("the change failed in Octavia, load balancer {id} is in ERROR"),
                ))
            }
            Some(_) => Ok(Some(self.polls.lock().not_ended(key, polled_at))),
        }
    }

    async fn is_pending(
        &self,
        _: &OpenStackPart,
        observed: &ObservedPart,
        priority: Priority,
    ) -> Result<bool> {
        let ObservedPart::Balancers(snapshot) = observed else {
            return Ok(false);
        };
        let mut objects = snapshot.objects.of(ObjectKind::Balancer);
        let Some(Object { id, .. }) = objects.find(|balancer| observe::is_pending(balancer)) else {
            return Ok(false);
        };
        let (_, reads) = self.cloud.clients();
        let (since, waiting) = self.polls.lock().polled_pending(id);
        let state = state(&reads, id, since, waiting, SHARED_PENDING_POLL, priority).await?;
        if state.is_none() {
            // It may have had a floating IP, which is detached now.
            reads.floating_ips.invalidate("");
        }
        let pending = state.is_some_and(|state| state.provisioning_status.is_pending());
        if !pending {
            self.polls.lock().pending_ended(id);
        }
        Ok(pending)
    }

    async fn prove_former(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        _former: FormerLoadBalancer,
        read: ReadOptions,
    ) -> Result<FormerLoadBalancer> {
        let (_, reads) = self.cloud.clients();
        let directory = self.directory(read).await?;
        let identified = former::identified(&reads, &directory, &service.id, cluster, read).await?;
        Ok(directory.former_of(service, cluster, &identified))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.cloud, cluster, read).await
    }

    fn pass_ended(&self, began: Instant, report: &PartReport) {
        self.metrics.pass_ended(began, report);
    }
}

/// The state of a load balancer. One poll may serve many, if it is recent and newer than `since`.
async fn state(
    reads: &Reads,
    id: &str,
    since: Instant,
    waiting: usize,
    shared: Duration,
    priority: Priority,
) -> Result<Option<LoadBalancerState>> {
    if !reads.is_worth_listing(waiting) {
        return reads.state(id, priority).await;
    }
    let recent = Instant::now().checked_sub(shared).map_or(since, |recent| recent.max(since));
    reads.state_among_many(id, recent, priority).await
}

fn poll_timing(kind: Effect) -> PollTiming {
    match kind {
        Effect::Change => PollTiming {
            first: Duration::from_millis(1100),
            interval: Duration::from_millis(750),
            ..PollTiming::default()
        },
        // A Service waits for the creation. One listing polls many of them.
        Effect::Create => PollTiming {
            interval: Duration::from_millis(750),
            growth: 0.1,
            ..PollTiming::default()
        },
        Effect::Delete => PollTiming::default(),
    }
}
