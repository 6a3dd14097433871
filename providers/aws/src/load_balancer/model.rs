//! The [`PartModel`] of AWS: the parts of each Service, what is read for them, and the outputs of parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, FormerLoadBalancer, IgnoredValue, Ingress,
        InvalidField, NodeLeftOut, ServiceEvent, ServiceId, ServiceView,
    },
    plan::objects::{self, Attributes, Kind as _},
    plan::{CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan},
};

use super::{
    adoption::{Adoption, FirstObserved},
    annotations as a,
    desired::{DesiredBalancer, ObjectBuilder, ObservedPart, foreign, has_owner_tag},
    fields,
    kinds::{
        OWNER_TAG, Object, ObjectChange, ObjectKind, PartKey, RECORD_TAG, RULES, SetEntry, TAGS, group_id,
        tag_map, texts,
    },
    names,
    node_groups::{DesiredRules, NodeGroup},
    spec::{self, Flavor, Spec, own_hostname},
};
use crate::{
    client::ec2::Subnet,
    config::LoadBalancing,
    site::{Cluster, SERVICE_NAME, has_any_cluster},
};

/// The model of load balancers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<LoadBalancing>,
    pub(crate) cluster: Cluster,
}

/// A Service in a part.
pub(crate) type PartMember = Member<Model>;

/// The objects in the shared listings.
#[derive(Debug, Default)]
pub(crate) struct BalancerDirectory {
    /// Load balancers, network and classic, by name.
    pub(crate) balancers: BTreeMap<String, Object>,
    /// Target groups of the cluster that no load balancer uses.
    pub(crate) unused_target_groups: Vec<Object>,
    /// The security groups with the cluster's tag, by name.
    pub(crate) groups: BTreeMap<String, Object>,
    /// Load balancers that rules in these groups name, or whose security group is a source, with the ID of such a group.
    pub(crate) rule_owners: BTreeMap<String, String>,
}

/// The inputs in addition to Services and nodes.
#[derive(Debug, Default)]
pub(crate) struct PartInputs {
    /// The objects in the shared listings.
    pub(crate) directory: Arc<BalancerDirectory>,
    /// What each member requests.
    pub(crate) requested: BTreeMap<ServiceId, Arc<RequestedBalancer>>,
    /// The subnets for each member's load balancer.
    pub(crate) subnets: BTreeMap<ServiceId, Vec<Subnet>>,
    /// Members as this process observed them first.
    pub(crate) first_observed: BTreeMap<ServiceId, FirstObserved>,
    /// CIDRs by subnet.
    pub(crate) cidrs: BTreeMap<String, Vec<String>>,
    /// Instances without the cluster's tag.
    pub(crate) untagged: BTreeSet<String>,
    /// The security group of each instance that is a target, or why it has none.
    pub(crate) groups: BTreeMap<String, Result<NodeGroup, String>>,
    /// Actions for reads that the credentials do not allow, with the error.
    pub(crate) unread: Vec<String>,
    /// Security groups that classic load balancers had because Services named them, while this process ran.
    pub(crate) lost_sources: BTreeSet<String>,
}

/// The data of a load balancer that the security groups of nodes need.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BalancerFacts {
    /// Its subnets.
    pub(crate) subnets: Vec<String>,
    /// Whether it is a classic load balancer.
    pub(crate) is_classic: bool,
    /// The ID of the security group that only this classic load balancer has.
    pub(crate) own_source: Option<String>,
    /// The security groups of a classic load balancer: rules from those that it lost are removed after the change.
    pub(crate) sources: Vec<String>,
}

/// The reply to a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeReply {
    pub(crate) objects: objects::ChangeReply<ObjectKind>,
    /// The action that the credentials do not allow, with the error. The change was not applied.
    pub(crate) denied: Option<(&'static str, String)>,
}

impl BalancerDirectory {
    /// Indexes the listings. `unused_target_groups`: those of the cluster that no load balancer uses.
    pub(crate) fn new<'a>(
        balancers: impl Iterator<Item = Object>,
        groups: impl Iterator<Item = &'a Object>,
        unused_target_groups: Vec<Object>,
    ) -> Self {
        let mut directory = Self {
            unused_target_groups,
            balancers: balancers.map(|object| (object.key.clone(), object)).collect(),
            groups: groups.map(|group| (group.key.clone(), group.clone())).collect(),
            rule_owners: BTreeMap::new(),
        };
        let names_by_id: BTreeMap<&str, &str> =
            directory.groups.values().map(|group| (group.id.as_str(), group.key.as_str())).collect();
        let mut rule_owners = BTreeMap::new();
        for group in directory.groups.values() {
            for rule in group.set(RULES).iter().filter_map(SetEntry::rule) {
                let owner = match rule.balancer() {
                    None if rule.is_from_group() => {
                        let source = names_by_id.get(rule.source.as_str());
                        source.and_then(|name| name.strip_prefix(names::CLASSIC_GROUP))
                    }
                    owner => owner,
                };
                if let Some(owner) = owner {
                    rule_owners.insert(owner.to_owned(), group.id.clone());
                }
            }
        }
        directory.rule_owners = rule_owners;
        directory
    }

    /// The kind of load balancer that a Service has, else the one that it requests.
    pub(crate) fn flavor(&self, service: &ServiceView, settings: &LoadBalancing) -> Flavor {
        match self.balancers.get(&names::balancer(&service.id)) {
            None => Flavor::of(service, settings),
            Some(balancer) if balancer.kind == ObjectKind::Classic => Flavor::Classic,
            Some(_) => Flavor::Network,
        }
    }
}

/// The desired state of a part.
#[derive(Debug)]
pub(crate) enum DesiredPart {
    /// The objects of a load balancer.
    Balancer(Box<DesiredBalancer>),
    /// The rules in the security groups of nodes.
    NodeGroups(DesiredRules),
}

/// What a Service requests. It is read once in a pass.
#[derive(Debug)]
pub(crate) struct RequestedBalancer {
    /// The kind of the load balancer that the Service has, else of the one that it requests.
    pub(crate) flavor: Flavor,
    /// Whether the Service has a load balancer.
    pub(crate) exists: bool,
    /// The Service without the annotations that have no effect on its load balancer.
    pub(crate) adoption: Adoption,
    /// The spec of that Service.
    pub(crate) spec: Spec,
}

impl RequestedBalancer {
    fn read(
        service: &Arc<ServiceView>,
        settings: &LoadBalancing,
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> Self {
        let existing = inputs.directory.balancers.get(&names::balancer(&service.id));
        let first = inputs.first_observed.get(&service.id);
        let adoption = Adoption::new(service, existing, first, &cluster.ownership_tag);
        let flavor = inputs.directory.flavor(service, settings);
        Self {
            flavor,
            exists: existing.is_some(),
            spec: Spec::read(&adoption.service, settings, flavor),
            adoption,
        }
    }
}

impl PartInputs {
    /// Reads what the members request, after the directory and the first observed Services are known.
    pub(crate) fn read_requests(
        &mut self,
        members: &[PartMember],
        settings: &LoadBalancing,
        cluster: &ClusterView,
    ) {
        for PartMember { service, .. } in members {
            let requested = RequestedBalancer::read(service, settings, cluster, self);
            self.requested.insert(service.id.clone(), Arc::new(requested));
        }
    }

    /// What a member requests.
    pub(crate) fn requested(
        &self,
        member: &PartMember,
        settings: &LoadBalancing,
        cluster: &ClusterView,
    ) -> Arc<RequestedBalancer> {
        match self.requested.get(&member.service.id) {
            Some(requested) => Arc::clone(requested),
            None => Arc::new(RequestedBalancer::read(&member.service, settings, cluster, self)),
        }
    }
}

impl Model {
    /// Why the Service is refused. The type of an existing load balancer cannot change, and all other problems are ignored until
    /// the Service requests that type.
    fn invalid(&self, requested: &RequestedBalancer) -> Vec<InvalidField> {
        let RequestedBalancer {
            flavor: has,
            exists,
            adoption: Adoption { service, .. },
            spec,
        } = requested;
        let asks = match Flavor::named(service) {
            Some(named) => named,
            // The type for new Services may have changed since a classic load balancer was created.
            None if *has == Flavor::Classic => Flavor::Classic,
            None => self.settings.default_type,
        };
        let other = match &service.class {
            Some(class) => format!("load balancer of class {class}"),
            None if asks != *has || asks == Flavor::Elsewhere => asks.title().to_owned(),
            None if *exists => return spec.invalid.clone(),
            None => return [spec::refused_as_new(*has, &self.settings), spec.invalid.clone()].concat(),
        };
        let problem = if *has == Flavor::Elsewhere {
            "the load balancer in the Service's status does not exist; delete the Service".to_owned()
        } else {
            let has = has.title();
            format!(
                "the Service has a {has}, which a {other} cannot replace; to migrate, create a second Service with \
                 the other type, let clients use its address, and delete this one"
            )
        };
        vec![InvalidField::annotation(a::TYPE, problem)]
    }

    fn balancer(&self, member: &PartMember, cluster: &ClusterView, inputs: &PartInputs) -> DesiredBalancer {
        let requested = inputs.requested(member, &self.settings, cluster);
        let RequestedBalancer {
            flavor,
            adoption,
            spec,
            ..
        } = &*requested;
        let service = &adoption.service;
        let mut spec = spec.clone();
        let subnets = inputs.subnets.get(&service.id).cloned().unwrap_or_default();
        let existing = inputs.directory.balancers.get(&names::balancer(&service.id));
        let prefers = spec::prefers_dual_stack(service);
        let has_v6 = match existing {
            Some(balancer) => balancer.text(fields::IP_ADDRESS_TYPE) == "dualstack",
            None => !prefers || subnets.iter().all(Subnet::has_v6),
        };
        if spec.dual_stack && !has_v6 {
            // Upstream's security group has no rules for IPv6.
            spec.ranges.retain(|range| range != "::/0");
            if prefers {
                spec.balancer.remove(fields::IP_ADDRESS_TYPE);
            }
        }
        let first_observed = inputs.first_observed.get(&service.id);
        let mut unnamed = BTreeSet::new();
        // An unchanged Service names what it named when it was observed first.
        if let Some(first) = first_observed
            && (first.changed || !adoption.without_effect.is_empty())
        {
            let before = Spec::read(&first.service, &self.settings, *flavor);
            unnamed = &before.named_attributes() - &spec.named_attributes();
        }
        let builder = ObjectBuilder {
            model: self,
            cluster,
            service,
            spec: &spec,
            subnets: &subnets,
        };
        let mut objects = match (&member.membership, flavor) {
            (Membership::Frozen(_), _) => None,
            (_, Flavor::Classic) => Some(builder.classic()),
            _ => Some(builder.network()),
        };
        if let (Some(objects), Some(record)) = (&mut objects, &adoption.record) {
            add_record(objects, record);
        }
        // What a network load balancer already has stays, also if the annotation that says so has no effect.
        let mut kept = Attributes::new();
        if adoption.is_without_effect(a::ATTRIBUTES) {
            kept = Spec::read(&member.service, &self.settings, *flavor).balancer;
            kept.retain(|name, value| spec.balancer.get(name).is_some_and(|other| other != value));
        }
        let has_record = existing.is_some_and(|existing| tag_map(existing).contains_key(RECORD_TAG));
        let is_ours = existing.is_some_and(|existing| has_owner_tag(existing, &cluster.ownership_tag));
        let instances = if member.follows_nodes() {
            spec::instances(service, cluster, &inputs.untagged)
        } else {
            None
        };
        DesiredBalancer {
            objects,
            keeps_check: spec.keeps_check,
            keeps_certificates: adoption.is_without_effect(a::CERTIFICATES),
            keeps_proxy: is_ours && !has_record && member.service.annotation(a::PROXY_PROTOCOL) == Some("*"),
            unnamed,
            defaulted: spec.defaulted,
            defaults: spec.defaults,
            without_effect: adoption.without_effect.clone(),
            kept,
            named: spec.named,
            subnets,
            changed: first_observed.is_some_and(|first| first.changed),
            tag: cluster.ownership_tag.clone(),
            service: Some(service.id.clone()),
            untagged: spec::nodes_of(&inputs.untagged, cluster),
            instances,
        }
    }
}

/// Adds the tag with the record of annotations to a load balancer whose tags are managed.
fn add_record(objects: &mut [Object], record: &str) {
    for object in objects {
        if matches!(object.kind, ObjectKind::Balancer | ObjectKind::Classic) {
            let mut tags = object.set(TAGS).to_vec();
            tags.push(SetEntry::tag(RECORD_TAG, record));
            object.sets.insert(TAGS, tags.into());
        }
    }
}

impl PartModel for Model {
    type Key = PartKey;
    type Directory = BalancerDirectory;
    type Inputs = PartInputs;
    type Spec = ();
    type Facts = BalancerFacts;
    type Desired = DesiredPart;
    type Observed = ObservedPart;
    type Change = ObjectChange;
    type Reply = ChangeReply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        spec::claims(service, &self.settings)
    }

    fn selects_by_labels(&self, service: &ServiceView) -> bool {
        !spec::selector(service).is_empty()
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    fn parts(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> Parts<PartKey> {
        let name = names::balancer(&service.id);
        let service_tag = names::service_tag(&service.id);
        let existing = directory.balancers.get(&name);
        let exists = existing.is_some()
            || directory
                .unused_target_groups
                .iter()
                .any(|group| tag_map(group).get(SERVICE_NAME) == Some(&service_tag))
            || directory.groups.contains_key(&names::group(&cluster.name, &service.id))
            || directory.groups.contains_key(&names::classic_group(&name));
        let has_rules = directory.rule_owners.contains_key(&name);
        let manages_rules = !self.settings.disable_security_group_ingress;
        let balancer = PartKey::Balancer(name);
        let mut parts = Parts {
            tagged: Vec::new(),
            named: vec![balancer.clone()],
        };
        if exists {
            parts.tagged.push(balancer);
        }
        if manages_rules {
            parts.named.push(PartKey::NodeGroups);
            if has_rules {
                parts.tagged.push(PartKey::NodeGroups);
            }
        }
        let is_network = existing.is_some_and(|balancer| balancer.kind == ObjectKind::Balancer);
        if is_network && !service.wants_load_balancer() {
            // It leaves the last one first: clients reach the nodes while AWS refuses to delete the load balancer. The group of a
            // classic one, in contrast, cannot be deleted while rules name it.
            parts.named.reverse();
        }
        parts
    }

    /// The names of load balancers and security groups contain the UID of the Service, or a hash of it.
    fn former(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> FormerLoadBalancer {
        let name = names::balancer(&service.id);
        if let Some(balancer) = directory.balancers.get(&name) {
            let what = format!("{} {name}", balancer.kind.schema().name);
            let tag = &cluster.ownership_tag;
            if let Some(owner) = foreign(balancer, &self.cluster, tag) {
                let why = format!("it is {owner}");
                return FormerLoadBalancer::Unproven { what, why };
            }
            let ownership = tag.ownership(tag_map(balancer).get(OWNER_TAG).map(String::as_str));
            return FormerLoadBalancer::new(what, &ownership, true);
        }
        let groups = [
            names::classic_group(&name),
            names::group(&cluster.name, &service.id),
        ];
        match groups.iter().find(|group| directory.groups.contains_key(*group)) {
            Some(group) => FormerLoadBalancer::Ours(format!("security group {group}")),
            None => FormerLoadBalancer::Missing,
        }
    }

    fn orphans(&self, snapshot: &ClusterSnapshot, directory: &BalancerDirectory) -> Vec<Orphan<PartKey>> {
        let mut known = BTreeSet::new();
        let mut service_tags = BTreeSet::new();
        let mut known_groups = BTreeSet::new();
        for ServiceView { id, .. } in snapshot.services.iter().map(|service| &**service) {
            let name = names::balancer(id);
            known_groups.insert(names::classic_group(&name));
            known_groups.insert(names::group(&snapshot.cluster.name, id));
            service_tags.insert(names::service_tag(id));
            known.insert(name);
        }
        let orphan = |object: &Object, what: String| Orphan {
            key: PartKey::Balancer(object.key.clone()),
            what: format!("{} {}{what}", object.kind.schema().name, object.key),
            deletable: has_owner_tag(object, &snapshot.cluster.ownership_tag),
        };
        let mut orphans = Vec::new();
        for balancer in directory.balancers.values() {
            let mut tags = tag_map(balancer);
            let is_ours = self.cluster.has(&tags) || !has_any_cluster(&tags);
            if is_ours
                && !known.contains(&balancer.key)
                && let Some(service) = tags.remove(SERVICE_NAME)
            {
                orphans.push(orphan(balancer, format!(" of Service {service}")));
            }
        }
        for group in &directory.unused_target_groups {
            let service = tag_map(group).remove(SERVICE_NAME).unwrap_or_default();
            if !service_tags.contains(&service) {
                let what = format!(" of Service {service}, which no load balancer uses");
                orphans.push(orphan(group, what));
            }
        }
        let used: BTreeSet<&str> = directory
            .balancers
            .values()
            .flat_map(|balancer| balancer.texts(fields::SECURITY_GROUPS))
            .collect();
        for group in directory.groups.values() {
            let (id, name) = (group.id.as_str(), group.key.as_str());
            let is_used = used.contains(id) || used.contains(name) || known_groups.contains(name);
            let is_own = names::is_own_group(name, group.text(fields::DESCRIPTION));
            let tags = tag_map(group);
            let is_ours = self.cluster.owns(&tags) && !names::is_of_load_balancer_controller(&tags);
            if is_own && !is_used && is_ours {
                orphans.push(orphan(group, ", which no load balancer uses".to_owned()));
            }
        }
        for (name, group) in &directory.rule_owners {
            if !known.contains(name) && !directory.balancers.contains_key(name) {
                orphans.push(Orphan {
                    key: PartKey::Balancer(name.clone()),
                    what: format!(
                        "rules in security group {group} for load balancer {name}, which does not exist"
                    ),
                    deletable: false,
                });
            }
        }
        orphans
    }

    fn check(
        &self,
        key: &PartKey,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> CheckResult {
        let mut result = CheckResult::default();
        for member in PartMember::active(members) {
            let service = &member.service;
            let id = &service.id;
            let requested = inputs.requested(member, &self.settings, cluster);
            let invalid = self.invalid(&requested);
            if !invalid.is_empty() {
                result.refused.push((id.clone(), InvalidField::error(&invalid)));
                continue;
            }
            if *key != PartKey::NodeGroups {
                result.events.extend(IgnoredValue::event(&requested.spec.ignored, id));
                let what = "Nodes that cannot be targets; correct their provider IDs, or exclude the nodes with the label \
                            node.kubernetes.io/exclude-from-external-load-balancers";
                let unusable = spec::unusable_nodes(service, cluster);
                result.events.extend(ServiceEvent::nodes_left_out(id, what, &unusable));
                if !inputs.unread.is_empty() {
                    let text = inputs.unread.join("; ");
                    let warning = ServiceEvent::warning(id, "MissingPermissions", text);
                    result.events.push(warning);
                }
                continue;
            }
            let instances = spec::instances(service, cluster, &inputs.untagged).unwrap_or_default();
            for instance in &instances {
                if let Some(Ok(NodeGroup { id: chosen, others })) = inputs.groups.get(instance)
                    && !others.is_empty()
                {
                    let others = others.join(", ");
                    let text = format!(
                        "instance {instance} has several security groups with the cluster's tag; {chosen} gets the rules, \
                         not {others}"
                    );
                    result.events.push(ServiceEvent::warning(id, "SeveralNodeSecurityGroups", text));
                    break;
                }
            }
        }
        result
    }

    fn desired(
        &self,
        key: &PartKey,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredPart {
        if *key == PartKey::NodeGroups {
            return DesiredPart::NodeGroups(DesiredRules::new(self, members, cluster, inputs));
        }
        let desired = match PartMember::staying(members).next() {
            Some(member) => self.balancer(member, cluster, inputs),
            None => DesiredBalancer {
                objects: Some(Vec::new()),
                changed: true,
                ..DesiredBalancer::default()
            },
        };
        DesiredPart::Balancer(Box::new(desired))
    }

    fn missing(&self, key: &PartKey, members: &[PartMember], observed: &ObservedPart) -> Option<String> {
        let was_there = members.iter().any(|member| own_hostname(&member.service).is_some());
        match key {
            PartKey::Balancer(name) if was_there && observed.balancer().is_none() => {
                Some(format!("load balancer {name}"))
            }
            _ => None,
        }
    }

    fn degraded(&self, _: &PartKey, members: &[PartMember], observed: &ObservedPart) -> Option<Error> {
        let balancer = observed.objects.of(ObjectKind::Balancer).next()?;
        let state = balancer.text(fields::STATE);
        let stays = Member::staying(members).next().is_some();
        if !stays || !["failed", "active_impaired"].contains(&state) {
            return None;
        }
        let name = &balancer.key;
        let text = format!(
            "AWS reports load balancer {name} as {state}; it is not deleted, since it may still serve traffic"
        );
        Some(Error::new(ErrorKind::Unavailable, text))
    }

    fn plan(&self, desired: &DesiredPart, observed: &ObservedPart) -> Plan<Self::Change> {
        match desired {
            DesiredPart::Balancer(desired) => {
                let mut plan = desired.plan(observed);
                if !desired.untagged.is_empty() {
                    let nodes = NodeLeftOut::list(&desired.untagged);
                    plan.blocked.push(Blocked {
                        service: desired.service.clone(),
                        field: format!("tag {} of instances", self.cluster.key().unwrap_or_default()),
                        observed: format!("missing, so that their nodes are not targets: {nodes}"),
                        desired: "present".to_owned(),
                    });
                }
                plan
            }
            DesiredPart::NodeGroups(desired) => desired.plan(observed),
        }
    }

    fn fold(
        &self,
        _: &PartKey,
        change: &Self::Change,
        reply: Option<&ChangeReply>,
        observed: &mut ObservedPart,
    ) {
        observed.fold(change, reply);
    }

    fn facts(
        &self,
        key: &PartKey,
        member: &PartMember,
        observed: &ObservedPart,
    ) -> Option<PartOutput<BalancerFacts>> {
        let mut output = PartOutput::default();
        if member.leaves() || *key == PartKey::NodeGroups {
            return Some(output);
        }
        let root = observed.balancer().filter(|root| root.foreign.is_none())?;
        output.facts.subnets = texts(root, fields::SUBNETS);
        if root.kind == ObjectKind::Classic {
            output.facts.is_classic = true;
            output.facts.sources = texts(root, fields::SECURITY_GROUPS);
            output.facts.own_source = output
                .facts
                .sources
                .iter()
                .find(|name| observed.objects.get(ObjectKind::Group, name).is_some())
                .map(|name| group_id(&observed.objects, name));
        }
        let hostname = root.text(fields::DNS_NAME);
        if !hostname.is_empty() {
            output.effects.ingress = Some(vec![Ingress::name(hostname)]);
        }
        Some(output)
    }
}
