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
    load_balancer::{ClusterView, ReadOptions, ServiceId},
    plan::objects::{self, Action, Refused},
    plan::{
        CloudChange as _, CredentialsCheck, GatheredInputs, PartCloud, ScopeCheck, SendOptions, SendOutcome,
    },
};
use futures_util::future::{try_join, try_join_all};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    adoption::FirstObserved,
    desired::ObservedPart,
    fields,
    kinds::{
        CERTIFICATES, DESCRIBE_LISTENER_CERTIFICATES, DESCRIBE_TARGET_GROUP_ATTRIBUTES, Object, ObjectChange,
        ObjectKind, Objects, PartKey, RULES, Rule, SetEntry, TAGS, TARGETS, tag_map, texts,
    },
    listings::{InstanceGroups, ListedObjects, Listings, MISSING_AGE, NETWORK_AGE, Network},
    model::{BalancerDirectory, ChangeReply, Model, PartInputs, PartMember, RequestedBalancer},
    names,
    node_groups::NodeGroup,
    spec::{self, Flavor, Spec},
    subnets::{self, ChosenSubnets},
    updates::ObjectUpdate,
};
use crate::{
    Nodes,
    client::{Client, send::Sender},
    config::LoadBalancing,
    site::SERVICE_NAME,
};

/// A target or rule that AWS refused is tried again after this. The service controller compares blocked differences again after
/// the same time. If this were longer, that comparison would still use the remembered refusal.
const REFUSED_AGE: Duration = Duration::from_secs(600);
/// The listing that names the sources of rules is read again after this. Own changes are in it.
const LISTED_AGE: Duration = Duration::from_secs(3600);
/// The wait until an object is not in use.
const IN_USE: Duration = Duration::from_secs(2);

/// The state between calls, a cache of the account.
#[derive(Debug, Default)]
struct AccountCache {
    /// Load balancers from the last read, with the changes since then, and the time when the read began.
    parts: HashMap<PartKey, (Instant, ObservedPart)>,
    /// Services as first observed by this process.
    first_observed: HashMap<ServiceId, FirstObserved>,
    /// The security groups of nodes that get rules.
    node_groups: BTreeSet<String>,
    /// Rules that a full security group refused.
    refused: Vec<Refused<ObjectKind>>,
    /// Security groups that Services named before, until no rule has them as its source.
    lost_sources: BTreeSet<String>,
    /// Whether a missing load balancer was looked up in a second listing since the start.
    confirmed_missing: bool,
}

/// The calls.
#[derive(Debug)]
pub(crate) struct BalancerCalls {
    settings: Arc<LoadBalancing>,
    credentials: CredentialsCheck,
    listings: Listings,
    state: Mutex<AccountCache>,
}

impl BalancerCalls {
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
    fn observed(
        &self,
        part: &PartKey,
        read: ReadOptions,
        objects: impl IntoIterator<Item = Object>,
    ) -> ObservedPart {
        ObservedPart {
            objects: objects.into_iter().collect(),
            denied: self.listings.denied(Some((part, read.freshness))),
        }
    }

    /// Reads the rules of the cluster's security groups, and of those that nodes have without the cluster's tag.
    async fn node_rules(&self, read: ReadOptions) -> Result<ObservedPart> {
        let listings = self.listings.get(read).await?;
        let mut unlisted = self.state.lock().node_groups.clone();
        unlisted.retain(|id| listings.by_id(id).is_none());
        let others = self.listings.groups(&unlisted, read.priority).await?;
        let groups = listings.all(ObjectKind::Group).chain(&others).map(|group| Object {
            id: group.id.clone(),
            ..Object::new(ObjectKind::NodeGroup, &group.id).entries(RULES, group.set(RULES).iter().cloned())
        });
        let mut observed = self.observed(&PartKey::NodeGroups, read, groups);
        let mut state = self.state.lock();
        let rules = observed.objects.all.iter().flat_map(|group| group.set(RULES));
        let sources: BTreeSet<&str> =
            rules.filter_map(SetEntry::rule).map(|rule| rule.source.as_str()).collect();
        state.lost_sources.retain(|id| sources.contains(id.as_str()));
        observed.objects.refused = state
            .refused
            .iter()
            .filter(|refused| is_recent(refused) && read.freshness.allows(refused.since))
            .cloned()
            .collect();
        Ok(observed)
    }

    /// The security groups of load balancers.
    async fn sources(&self, priority: Priority) -> Result<BTreeSet<String>> {
        let freshness = Freshness::AtMost(LISTED_AGE);
        let listed = self.listings.get(ReadOptions { freshness, priority }).await?;
        let groups = listed.all(ObjectKind::Group).map(|group| group.id.clone());
        let attached = listed
            .all(ObjectKind::Classic)
            .flat_map(|balancer| texts::<Vec<_>>(balancer, fields::SECURITY_GROUPS));
        Ok(groups.chain(attached).collect())
    }

    /// Remembers the security groups that a classic load balancer loses by a change. Its reply may be lost.
    fn loses(&self, change: &ObjectChange, observed: &ObservedPart) {
        if change.kind == ObjectKind::Classic && matches!(change.action, Action::Update(..)) {
            let mut after = observed.objects.clone();
            after.fold(change, None);
            let lost = &classic_sources(&observed.objects) - &classic_sources(&after);
            self.state.lock().lost_sources.extend(lost);
        }
    }

    /// Applies a change to the cached state.
    fn applied(&self, key: &PartKey, change: &ObjectChange, reply: &ChangeReply, observed: &ObservedPart) {
        let mut after = observed.clone();
        after.fold(change, Some(reply));
        self.listings.apply(&observed.objects, &after.objects);
        let mut state = self.state.lock();
        if change.kind == ObjectKind::NodeGroup {
            state.refused.clone_from(&after.objects.refused);
        }
        if after.objects.all.is_empty() {
            state.parts.remove(key);
        } else if let Some((_, known)) = state.parts.get_mut(key) {
            *known = after;
        }
    }

    /// The error of a change. A group that cannot be deleted because rules refer to it loses these rules.
    async fn failed(
        &self,
        change: &ObjectChange,
        observed: &ObservedPart,
        error: Error,
        priority: Priority,
    ) -> Error {
        let is_delete = matches!(change.action, Action::Delete(_));
        if !is_delete || error.kind() != ErrorKind::Conflict || error.retry() != Retry::Backoff {
            return error;
        }
        if change.kind == ObjectKind::Group {
            let revoked = match observed.objects.id(ObjectKind::Group, &change.key) {
                Ok(id) => self.revoke_references(id, priority).await,
                Err(stale) => Err(stale),
            };
            if let Err(other) = revoked {
                return other;
            }
        }
        error.with_retry(Retry::Fixed(IN_USE))
    }

    /// Revokes the rules whose source is a group that cannot be deleted because of them. In security groups without the
    /// cluster's tag, only those of classic load balancers.
    async fn revoke_references(&self, id: &str, priority: Priority) -> Result<()> {
        let client = self.listings.nodes.api.at(priority);
        let filter = [("ip-permission.group-id", vec![id.to_owned()])];
        for group in client.security_groups(&filter).await? {
            let is_ours = self.listings.nodes.site.cluster.has(&tag_map(&group));
            let (references, rest): (Vec<_>, Vec<_>) = group.set(RULES).iter().cloned().partition(|entry| {
                entry.rule().is_some_and(|rule| rule.source == id && (is_ours || rule.protocol == "-1"))
            });
            let rules: Vec<&Rule> = references.iter().filter_map(SetEntry::rule).collect();
            if !rules.is_empty() {
                accept(client.revoke(&group.id, &rules).await, ErrorKind::NotFound, ())?;
                self.listings.set_rules(&group.id, rest.into());
            }
        }
        Ok(())
    }

    /// Reads the inputs that only the part of the nodes' security groups needs. `groups`: of the instances that are targets.
    async fn read_node_groups(
        &self,
        groups: InstanceGroups,
        inputs: &mut PartInputs,
        read: ReadOptions,
    ) -> Result<()> {
        let listings = self.listings.with_groups_of(&groups, read).await?;
        let tag = self.listings.nodes.site.cluster.key().unwrap_or_default();
        for (instance, groups) in groups {
            if let Some(groups) = groups {
                let chosen = NodeGroup::choose(groups, |id| listings.by_id(id).is_some(), &tag);
                inputs.groups.insert(instance, chosen);
            }
        }
        {
            let chosen = inputs.groups.values().flatten();
            let mut state = self.state.lock();
            state.node_groups = chosen.map(|group| group.id.clone()).collect();
            inputs.lost_sources.clone_from(&state.lost_sources);
        }
        let network = self.listings.network(NETWORK_AGE, read.priority).await?;
        for subnet in &network.subnets {
            inputs.cidrs.insert(subnet.id.clone(), subnet.cidrs.clone());
        }
        Ok(())
    }

    /// The member's Service as this process observed it first; `None`: it leaves.
    fn first_observed(&self, member: &PartMember) -> Option<FirstObserved> {
        let PartMember { service, .. } = member;
        let first_observed = &mut self.state.lock().first_observed;
        if member.leaves() {
            first_observed.remove(&service.id);
            return None;
        }
        let first = first_observed.entry(service.id.clone()).or_insert_with(|| FirstObserved::new(service));
        first.observe(service);
        Some(first.clone())
    }

    /// The subnets of a Service's load balancer, or why none qualifies.
    async fn subnets(
        &self,
        requested: &RequestedBalancer,
        existing: Option<&Object>,
        priority: Priority,
    ) -> Result<ChosenSubnets> {
        let spec = &requested.spec;
        let internal = match existing {
            // Its scheme does not change.
            Some(balancer) => balancer.text(fields::SCHEME) == "internal",
            None => spec.internal,
        };
        let choose = |network: &Network| match spec.subnets.as_slice() {
            [] => subnets::discovered(network, internal, &self.listings.nodes.site),
            names => subnets::named(names, &network.subnets),
        };
        let mut found = choose(&*self.listings.network(NETWORK_AGE, priority).await?);
        if found.is_err() {
            found = choose(&*self.listings.network(MISSING_AGE, priority).await?);
        }
        if let Ok(subnets) = &found
            && requested.flavor == Flavor::Network
            && let Some(problem) = spec.wrong_addresses(subnets.len())
        {
            return Ok(Err(problem));
        }
        Ok(found)
    }
}

/// The parts that work without a change that AWS refused.
enum PartsWithout {
    /// None: the change fails.
    None,
    ThisOne,
    All,
}

/// The parts that work without a change that AWS refused with an error of this kind. It is left out there.
fn parts_without(change: &ObjectChange, refusal: ErrorKind) -> PartsWithout {
    let is_denied = refusal == ErrorKind::PermissionDenied;
    match &change.action {
        // Some policies allow tags only on objects that have certain tags.
        Action::Add(set, _) if set.name == TAGS && is_denied => PartsWithout::ThisOne,
        // Upstream does not use these actions: they are not in its documented policy.
        Action::Add(set, _) | Action::Remove(set, _) if set.name == CERTIFICATES && is_denied => {
            PartsWithout::All
        }
        Action::Update(update, _) => match (update, refusal) {
            (update, ErrorKind::PermissionDenied) if update.is_optional() => PartsWithout::All,
            (ObjectUpdate::LoadBalancerSubnets, ErrorKind::InvalidSpec | ErrorKind::QuotaExceeded) => {
                PartsWithout::ThisOne
            }
            _ => PartsWithout::None,
        },
        _ => PartsWithout::None,
    }
}

/// The ids of the named security groups of a classic load balancer: if it has an own group, that one is the only source of
/// rules, and is deleted with its rules.
fn classic_sources(objects: &Objects) -> BTreeSet<String> {
    let groups = objects
        .of(ObjectKind::Classic)
        .flat_map(|balancer| balancer.texts(fields::SECURITY_GROUPS));
    let named: BTreeSet<_> = groups.map(str::to_owned).collect();
    let has_own = named.iter().any(|group| objects.get(ObjectKind::Group, group).is_some());
    if has_own { BTreeSet::new() } else { named }
}

fn is_recent(refused: &Refused<ObjectKind>) -> bool {
    refused.since.elapsed() < REFUSED_AGE
}

/// One read of a load balancer with everything that only it uses.
struct BalancerRead<'a> {
    calls: &'a BalancerCalls,
    client: Client,
    listed: ListedObjects,
    name: &'a str,
    members: &'a [PartMember],
    /// Whether the load balancer stays. If it is deleted, only existence and tags are read.
    stays: bool,
}

impl BalancerRead<'_> {
    async fn objects(&self, read: ReadOptions) -> Result<Vec<Object>> {
        let (listings, client, name) = (&self.calls.listings, &self.client, self.name);
        let network = self.listed.named(ObjectKind::Balancer, name);
        let roots: Vec<_> = network.chain(self.listed.named(ObjectKind::Classic, name)).collect();
        let groups = self.target_groups(&roots);
        let mut listeners = Vec::new();
        for root in &roots {
            if self.stays && root.kind == ObjectKind::Balancer {
                listeners.extend(client.listeners(&root.id).await?);
            }
        }
        let tagged = roots.iter().chain(&groups).copied().chain(&listeners);
        let ids = tagged.map(|object| object.id.clone()).collect();
        let fresh = self.stays && matches!(read.freshness, Freshness::After(_));
        listings.read_tags(ids, fresh, read.priority).await?;
        if self.stays && roots.iter().any(|root| listings.lacks_new_tags(root)) {
            let text = format!("AWS does not show the tags of the new load balancer {name} yet");
            return Err(Error::new(ErrorKind::Conflict, text).with_retry(Retry::Fixed(IN_USE)));
        }
        let mut objects = Vec::new();
        for root in roots {
            let mut root = listings.tagged(root);
            if self.stays && root.foreign.is_none() {
                let attributes = client.attributes(root.kind, &root.id).await?;
                root.attributes.extend(attributes);
                objects.extend(self.listed.named(ObjectKind::ClassicListener, name).cloned());
            }
            objects.push(root);
        }
        let is_foreign = objects.iter().any(|root| root.foreign.is_some());
        let own_groups = groups.into_iter().filter(|group| !is_foreign || self.listed.is_unused(group));
        objects.extend(try_join_all(own_groups.map(|group| self.target_group(group))).await?);
        if !is_foreign {
            objects.extend(try_join_all(listeners.iter().map(|listener| self.listener(listener))).await?);
        }
        self.add_own_groups(&mut objects);
        Ok(objects)
    }

    /// The target groups that the load balancers use, and the unused ones of their Service. An orphan has its own name.
    fn target_groups(&self, balancers: &[&Object]) -> Vec<&Object> {
        let arns: BTreeSet<&str> = balancers.iter().map(|balancer| balancer.id.as_str()).collect();
        let own_names = self.target_group_names();
        let all = self.listed.all(ObjectKind::TargetGroup);
        all.filter(|group| {
            if group.texts(fields::BALANCERS).iter().any(|arn| arns.contains(arn)) {
                return true;
            }
            self.listed.is_unused(group)
                && (own_names.contains(&group.key) || self.is_tagged_for_member(group))
        })
        .collect()
    }

    /// The names of the target groups that the load balancer and its members may have.
    fn target_group_names(&self) -> BTreeSet<String> {
        let cluster = &self.calls.listings.nodes.site.cluster;
        let mut all = BTreeSet::from([self.name.to_owned()]);
        for PartMember { service, .. } in self.members {
            let spec = Spec::read(service, &self.calls.settings, Flavor::Network);
            all.extend(spec.target_group_names(&cluster.id, &service.id));
        }
        all
    }

    fn is_tagged_for_member(&self, group: &Object) -> bool {
        let tags = tag_map(&self.calls.listings.tagged(group));
        self.calls.listings.nodes.site.cluster.owns(&tags)
            && self
                .members
                .iter()
                .any(|member| tags.get(SERVICE_NAME) == Some(&names::service_tag(&member.service.id)))
    }

    async fn target_group(&self, group: &Object) -> Result<Object> {
        let listings = &self.calls.listings;
        let mut group = listings.tagged(group);
        if !self.stays || group.foreign.is_some() {
            return Ok(group);
        }
        let (targets, attributes) = try_join(
            self.client.targets(&group.id),
            listings.optional(
                DESCRIBE_TARGET_GROUP_ATTRIBUTES,
                self.client.attributes(ObjectKind::TargetGroup, &group.id),
            ),
        )
        .await?;
        group.attributes.extend(attributes);
        Ok(group.entries(TARGETS, targets))
    }

    /// A listener with the name of its target group, and with all certificates.
    async fn listener(&self, listener: &Object) -> Result<Object> {
        let listings = &self.calls.listings;
        let mut listener = listings.tagged(listener);
        listener.parent = Some(self.name.to_owned());
        if let Some(group) = self.listed.by_id(listener.text(fields::TARGET_GROUP)) {
            listener = listener.with(fields::TARGET_GROUP, group.key.as_str());
        }
        if listener.text(fields::PROTOCOL) == "TLS" {
            let read = self.client.certificates(&listener.id);
            let certificates = listings.optional(DESCRIBE_LISTENER_CERTIFICATES, read).await?;
            listener = listener.entries(CERTIFICATES, certificates);
        }
        Ok(listener)
    }

    /// Adds the security groups that only this load balancer uses, and replaces their IDs by their names.
    fn add_own_groups(&self, objects: &mut Vec<Object>) {
        let listings = &self.calls.listings;
        let cluster_name = listings.cluster_name();
        let mut names: Vec<_> = self
            .members
            .iter()
            .map(|member| names::group(&cluster_name, &member.service.id))
            .collect();
        names.extend([names::classic_group(self.name), self.name.to_owned()]);
        let cluster = &listings.nodes.site.cluster;
        let groups: Vec<_> = names
            .iter()
            .flat_map(|name| self.listed.named(ObjectKind::Group, name))
            // Without a cluster id, all groups count as the cluster's.
            .filter(|group| cluster.key().is_none() || cluster.owns(&tag_map(group)))
            .map(|group| listings.tagged(group))
            .collect();
        for object in &mut *objects {
            if object.attributes.contains_key(fields::SECURITY_GROUPS) {
                let ids = object.texts(fields::SECURITY_GROUPS).into_iter();
                let named: Value = ids
                    .map(|id| match groups.iter().find(|group| group.id == id) {
                        Some(own) => own.key.as_str(),
                        None => id,
                    })
                    .collect();
                object.attributes.insert(fields::SECURITY_GROUPS, named);
            }
        }
        objects.extend(groups);
    }
}

#[async_trait]
impl PartCloud<Model> for BalancerCalls {
    /// Elastic Load Balancing applies every change synchronously.
    type Ticket = ();

    async fn directory(&self, read: ReadOptions) -> Result<Arc<BalancerDirectory>> {
        self.listings.directory(read).await
    }

    async fn inputs(
        &self,
        key: &PartKey,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<PartInputs>> {
        self.listings.set_cluster(cluster);
        let mut gathered = GatheredInputs::from(PartInputs::default());
        let inputs = &mut gathered.inputs;
        for (action, why) in self.listings.denied(None) {
            if action.starts_with("Describe") {
                inputs.unread.push(why);
            }
        }
        inputs.directory = self.listings.directory(read).await?;
        for member in members {
            if let Some(first) = self.first_observed(member) {
                inputs.first_observed.insert(member.service.id.clone(), first);
            }
        }
        inputs.read_requests(members, &self.settings, cluster);
        let mut instances = BTreeSet::new();
        for member in members {
            // Without the cluster's tag, security groups of nodes are found only by instances, also for Services that leave.
            if *key == PartKey::NodeGroups || !member.leaves() {
                let of_member = spec::instances(&member.service, cluster, &BTreeSet::new());
                instances.extend(of_member.into_iter().flatten());
            }
        }
        let groups = self.listings.groups_of(instances, read.priority).await?;
        for (instance, groups) in &groups {
            if groups.is_none() {
                inputs.untagged.insert(instance.clone());
            }
        }
        if *key == PartKey::NodeGroups {
            self.read_node_groups(groups, inputs, read).await?;
            return Ok(gathered);
        }
        for member in PartMember::active(members) {
            let id = &member.service.id;
            let existing = inputs.directory.balancers.get(&names::balancer(id));
            let requested = inputs.requested(member, &self.settings, cluster);
            match self.subnets(&requested, existing, read.priority).await? {
                Ok(subnets) => {
                    inputs.subnets.insert(id.clone(), subnets);
                }
                // An existing load balancer keeps its subnets.
                Err(_) if existing.is_some() => {}
                Err(why) => {
                    let error = Error::new(ErrorKind::InvalidSpec, why);
                    gathered.refused.push((id.clone(), error));
                }
            }
        }
        Ok(gathered)
    }

    async fn observe(
        &self,
        key: &PartKey,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<ObservedPart> {
        let PartKey::Balancer(name) = key else {
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
        let mut listed = self.listings.get(read).await?;
        let kinds = [ObjectKind::Balancer, ObjectKind::Classic];
        let is_listed = kinds.iter().any(|kind| listed.named(*kind, name).next().is_some());
        if !stays && !is_listed && !self.state.lock().confirmed_missing {
            // A former process may have created it shortly before the first listing, which does not show it then.
            let freshness = Freshness::After(began);
            listed = self.listings.get(ReadOptions { freshness, ..read }).await?;
            self.state.lock().confirmed_missing = true;
        }
        let balancer = BalancerRead {
            calls: self,
            client: self.listings.nodes.api.at(read.priority),
            listed,
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
        key: &PartKey,
        change: &ObjectChange,
        observed: &ObservedPart,
        options: &SendOptions,
    ) -> Result<SendOutcome<ChangeReply, ()>> {
        let priority = options.priority;
        let Nodes { api, site, .. } = &self.listings.nodes;
        let (client, vpc) = (api.at(priority), site.vpc.as_str());
        let sources = match (change.kind, &change.action) {
            (ObjectKind::NodeGroup, Action::Add(..)) => self.sources(priority).await?,
            _ => BTreeSet::new(),
        };
        let sender = Sender {
            client,
            vpc,
            sources: &sources,
        };
        let label = change.describe().label;
        let mut reply = ChangeReply::default();
        self.loses(change, observed);
        let sent = objects::send(&sender, change, &observed.objects).await;
        match sent {
            Ok(objects) => reply.objects = objects,
            Err(error) => match parts_without(change, error.kind()) {
                PartsWithout::All => {
                    reply.denied = Some((label, self.listings.deny(None, label, &error)));
                }
                PartsWithout::ThisOne => {
                    reply.denied = Some((label, self.listings.deny(Some(key), label, &error)));
                }
                PartsWithout::None => {
                    self.state.lock().parts.remove(key);
                    return Err(self.failed(change, observed, error, priority).await);
                }
            },
        }
        self.applied(key, change, &reply, observed);
        Ok(SendOutcome::Done(reply))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.listings.nodes, cluster, read).await
    }
}
