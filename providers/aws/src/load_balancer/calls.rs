//! The calls of the plan: reads of parts, and changes one after the other.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result, Retry, async_trait,
    client::ClientMetrics,
    error::accept,
    load_balancer::{ClusterView, ReadOptions, ServiceId, ServiceView},
    plan::objects::{self, Action, Refused},
    plan::{Change as _, CredentialsCheck, GatheredInputs, Outcome, PartCloud, ScopeCheck},
};
use futures_util::future::{try_join, try_join_all};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    desired::Observed,
    kinds::{CERTIFICATES, Change, Entry, Key, Kind, Object, Objects, RULES, Rule, TARGETS, tag_map},
    listings::{Listings, MISSING_AGE, NETWORK_AGE, Network, Snapshot},
    model::{Directory, Inputs, Model, PartMember, Reply},
    names,
    node_groups::NodeGroup,
    spec::{self, Flavor, Spec},
    subnets::{self, Chosen},
};
use crate::{
    Nodes,
    client::{Client, ec2::Subnet, send::Sender},
    config::LoadBalancing,
    site::SERVICE_NAME,
};

/// A target or rule that AWS refused is tried again after this. The service controller compares blocked differences again after
/// the same time. If this were longer, that comparison would still use the remembered refusal.
const REFUSED_AGE: Duration = Duration::from_secs(600);
/// The wait until an object is not in use.
const IN_USE: Duration = Duration::from_secs(2);

/// Actions that upstream does not use: they are not in its documented policy.
const OPTIONAL: &str =
    "SetSubnets ModifyTargetGroupAttributes AddListenerCertificates RemoveListenerCertificates";

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
    /// Security groups that Services named before, until no rule has them as its source.
    lost_sources: BTreeSet<String>,
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
        let mut state = self.state.lock();
        let rules = || observed.objects.all.iter().flat_map(|group| group.set(RULES));
        let is_source = |id: &String| rules().filter_map(Entry::rule).any(|rule| rule.source == *id);
        state.lost_sources.retain(is_source);
        let counts = |one: &&Refused<Kind>| is_recent(one) && read.freshness.allows(one.since);
        observed.objects.refused = state.refused.iter().filter(counts).cloned().collect();
        Ok(observed)
    }

    /// Remembers the security groups that a classic load balancer loses by a change. Its reply may be lost.
    fn loses(&self, change: &Change, observed: &Observed) {
        if change.kind == Kind::Classic && matches!(change.action, Action::Update(..)) {
            let mut after = observed.objects.clone();
            after.fold(change, None);
            let lost = &classic_sources(&observed.objects) - &classic_sources(&after);
            self.state.lock().lost_sources.extend(lost);
        }
    }

    /// Applies a change to the cached state.
    fn applied(&self, key: &Key, change: &Change, reply: &Reply, observed: &Observed) {
        let mut after = observed.clone();
        after.fold(change, Some(reply));
        self.listings.apply(&observed.objects, &after.objects);
        let mut state = self.state.lock();
        if change.kind == Kind::NodeGroup {
            state.refused.clone_from(&after.objects.refused);
        }
        if after.objects.all.is_empty() {
            state.parts.remove(key);
        } else if let Some((_, known)) = state.parts.get_mut(key) {
            *known = after;
        }
    }

    /// Revokes the rules whose source is a group that cannot be deleted because of them. In security groups without the
    /// cluster's tag, only those of classic load balancers.
    async fn revoke_references(&self, id: &str, priority: Priority) -> Result<()> {
        let client = self.listings.nodes.api.at(priority);
        let filter = [("ip-permission.group-id", vec![id.to_owned()])];
        for group in client.security_groups(&filter).await? {
            let is_ours = self.listings.nodes.site.cluster.has(&tag_map(&group));
            let is_revoked = |rule: &Rule| rule.source == id && (is_ours || rule.protocol == "-1");
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

/// The ids of the named security groups of a classic load balancer: if it has an own group, that one is the only source of
/// rules, and is deleted with its rules.
fn classic_sources(objects: &Objects) -> BTreeSet<String> {
    let groups = objects.of(Kind::Classic).flat_map(|balancer| balancer.texts("security_groups"));
    let groups: BTreeSet<_> = groups.map(str::to_owned).collect();
    let has_own = groups.iter().any(|group| objects.get(Kind::Group, group).is_some());
    if has_own { BTreeSet::new() } else { groups }
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
        let name = listings.cluster_name();
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
        self.listings.set_cluster(cluster);
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
        let groups = self.listings.groups_of(instances.flatten().collect(), read.priority).await?;
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
            {
                let mut state = self.state.lock();
                state.node_groups = chosen.map(|group| group.id.clone()).collect();
                inputs.lost_sources.clone_from(&state.lost_sources);
            }
            let network = self.listings.network(NETWORK_AGE, read.priority).await?;
            let cidrs = |subnet: &Subnet| (subnet.id.clone(), subnet.cidrs.clone());
            inputs.cidrs = network.subnets.iter().map(cidrs).collect();
            return Ok(gathered);
        }
        for PartMember { service, .. } in PartMember::active(members) {
            match self.subnets(service, &inputs.directory, read.priority).await? {
                Ok(subnets) => drop(inputs.subnets.insert(service.id.clone(), subnets)),
                // An existing load balancer keeps its subnets.
                Err(_) if inputs.directory.balancers.contains_key(&names::balancer(&service.id)) => {}
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
        self.loses(change, observed);
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
                    self.revoke_references(id, priority).await?;
                }
                return Err(error.with_retry(Retry::Fixed(IN_USE)));
            }
        }
        self.applied(key, change, &reply, observed);
        Ok(Outcome::Done(reply))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.listings.nodes, cluster, read).await
    }
}
