//! The [`PartModel`] of AWS: the parts of each Service, what is read for them, and the outputs of parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, IgnoredValue, Ingress, InvalidField, ServiceEvent,
        ServiceId, ServiceView,
    },
    plan::objects::{self, Kind as _},
    plan::{CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan},
};

use super::{
    desired::{Builder, DesiredBalancer, Observed, has_owner_tag},
    kinds::{Change, Entry, Key, Kind, Object, RULES, group_id, tag_map, texts},
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
pub(crate) struct Directory {
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
pub(crate) struct Inputs {
    /// The objects in the shared listings.
    pub(crate) directory: Arc<Directory>,
    /// The subnets for each member's load balancer.
    pub(crate) subnets: BTreeMap<ServiceId, Vec<Subnet>>,
    /// Members that changed while this process ran.
    pub(crate) changed: BTreeSet<ServiceId>,
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
pub(crate) struct Facts {
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
pub(crate) struct Reply {
    pub(crate) objects: objects::Reply<Kind>,
    /// The action that the credentials do not allow, with the error. The change was not applied.
    pub(crate) denied: Option<(&'static str, String)>,
}

impl Directory {
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
        let groups = || directory.groups.values();
        let keys: BTreeMap<_, _> = groups().map(|group| (&*group.id, &*group.key)).collect();
        let owners = groups().flat_map(|group| {
            let rules = group.set(RULES).iter().filter_map(Entry::rule);
            let named = rules.filter_map(|rule| {
                let source = || keys.get(&*rule.source)?.strip_prefix(names::CLASSIC_GROUP);
                let from_group = || rule.is_from_group().then(source).flatten();
                rule.balancer().or_else(from_group)
            });
            named.map(|name| (name.to_owned(), group.id.clone()))
        });
        directory.rule_owners = owners.collect();
        directory
    }

    /// The kind of load balancer that a Service has, else the one that it requests.
    pub(crate) fn flavor(&self, service: &ServiceView, settings: &LoadBalancing) -> Flavor {
        match self.balancers.get(&names::balancer(&service.id)) {
            None => Flavor::of(service, settings),
            Some(balancer) if balancer.kind == Kind::Classic => Flavor::Classic,
            Some(_) => Flavor::Network,
        }
    }
}

/// The desired state of a part.
#[derive(Debug)]
pub(crate) enum Desired {
    /// The objects of a load balancer.
    Balancer(Box<DesiredBalancer>),
    /// The rules in the security groups of nodes.
    NodeGroups(DesiredRules),
}

impl Model {
    /// The spec of a Service with its invalid and ignored values.
    fn review(&self, service: &ServiceView, inputs: &Inputs) -> Spec {
        let has = inputs.directory.flavor(service, &self.settings);
        // The type for new Services may have changed since a classic load balancer was created.
        let default = Some(Flavor::Classic).filter(|classic| has == *classic);
        let asks = Flavor::named(service).or(default).unwrap_or(self.settings.default_type);
        let mut spec = Spec::read(service, &self.settings, has);
        let class = service.class.as_deref();
        if asks != has || asks == Flavor::Elsewhere || class.is_some() {
            let other = class.map(|class| format!("load balancer of class {class}"));
            let (has_title, other) = (has.title(), other.unwrap_or_else(|| asks.title().to_owned()));
            let problem = if has == Flavor::Elsewhere {
                "the load balancer in the Service's status does not exist; delete the Service".to_owned()
            } else {
                format!(
                    "the Service has a {has_title}, which a {other} cannot replace; to migrate, create a second Service with \
                     the other type, let clients use its address, and delete this one"
                )
            };
            // All other problems are ignored until then.
            spec.invalid = vec![InvalidField::annotation(super::annotations::TYPE, problem)];
        }
        spec
    }

    fn balancer(&self, member: &PartMember, cluster: &ClusterView, inputs: &Inputs) -> DesiredBalancer {
        let service = &member.service;
        let flavor = inputs.directory.flavor(service, &self.settings);
        let mut spec = Spec::read(service, &self.settings, flavor);
        let subnets = inputs.subnets.get(&service.id).cloned().unwrap_or_default();
        let existing = inputs.directory.balancers.get(&names::balancer(&service.id));
        let prefers = spec::prefers_dual_stack(service);
        let has_v6 = match existing {
            Some(balancer) => balancer.text("ip_address_type") == "dualstack",
            None => !prefers || subnets.iter().all(Subnet::has_v6),
        };
        if spec.dual_stack && !has_v6 {
            // Upstream's security group has no rules for IPv6.
            spec.ranges.retain(|range| range != "::/0");
            if prefers {
                spec.balancer.remove("ip_address_type");
            }
        }
        let builder = Builder {
            model: self,
            cluster,
            service,
            spec: &spec,
            subnets: &subnets,
        };
        let objects = match (&member.membership, flavor) {
            (Membership::Frozen(_), _) => None,
            (_, Flavor::Classic) => Some(builder.classic()),
            _ => Some(builder.network()),
        };
        DesiredBalancer {
            objects,
            named: spec.named,
            subnets,
            changed: inputs.changed.contains(&service.id),
            tag: cluster.ownership_tag.clone(),
            service: Some(service.id.clone()),
            untagged: inputs.untagged.clone(),
            instances: spec::instances(service, cluster, &inputs.untagged).filter(|_| member.follows_nodes()),
        }
    }
}

impl PartModel for Model {
    type Key = Key;
    type Directory = Directory;
    type Inputs = Inputs;
    type Facts = Facts;
    type Desired = Desired;
    type Observed = Observed;
    type Change = Change;
    type Reply = Reply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        spec::claims(service, &self.settings)
    }

    fn parts(&self, service: &ServiceView, cluster: &ClusterView, directory: &Directory) -> Parts<Key> {
        let (name, tag) = (names::balancer(&service.id), names::service_tag(&service.id));
        let group = names::group(&cluster.name, &service.id);
        let is_of_service = |group: &Object| tag_map(group).get(SERVICE_NAME) == Some(&tag);
        let exists = directory.balancers.contains_key(&name)
            || directory.unused_target_groups.iter().any(is_of_service)
            || directory.groups.contains_key(&group)
            || directory.groups.contains_key(&names::classic_group(&name));
        let has_rules = directory.rule_owners.contains_key(&name);
        let rules = (!self.settings.disable_security_group_ingress).then_some(Key::NodeGroups);
        let existing = directory.balancers.get(&name);
        let is_network = existing.is_some_and(|balancer| balancer.kind == Kind::Balancer);
        let balancer = Key::Balancer(name);
        let tagged = exists.then_some(balancer.clone()).into_iter();
        let tagged = tagged.chain(rules.clone().filter(|_| has_rules)).collect();
        let mut named: Vec<_> = [balancer].into_iter().chain(rules).collect();
        if is_network && !service.wants_load_balancer() {
            // It leaves the last one first: clients reach the nodes while AWS refuses to delete the load balancer. The group of a
            // classic one, in contrast, cannot be deleted while rules name it.
            named.reverse();
        }
        Parts { tagged, named }
    }

    fn orphans(&self, snapshot: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        let ids = || snapshot.services.iter().map(|service| &service.id);
        let known: BTreeSet<_> = ids().map(names::balancer).collect();
        let tags: BTreeSet<_> = ids().map(names::service_tag).collect();
        let mut groups: BTreeSet<_> = known.iter().map(|name| names::classic_group(name)).collect();
        groups.extend(ids().map(|id| names::group(&snapshot.cluster.name, id)));
        let orphan = |object: &Object, what: String| Orphan {
            key: Key::Balancer(object.key.clone()),
            what: format!("{} {}{what}", object.kind.schema().name, object.key),
            deletable: has_owner_tag(object, &snapshot.cluster.ownership_tag),
        };
        let mut orphans = Vec::new();
        let balancers = directory.balancers.values();
        for balancer in balancers.filter(|balancer| !known.contains(&balancer.key)) {
            let mut tags = tag_map(balancer);
            let is_ours = self.cluster.has(&tags) || !has_any_cluster(&tags);
            let service = tags.remove(SERVICE_NAME).filter(|_| is_ours);
            orphans.extend(service.map(|service| orphan(balancer, format!(" of Service {service}"))));
        }
        for group in &directory.unused_target_groups {
            let service = tag_map(group).remove(SERVICE_NAME).unwrap_or_default();
            if !tags.contains(&service) {
                let what = format!(" of Service {service}, which no load balancer uses");
                orphans.push(orphan(group, what));
            }
        }
        let balancers = directory.balancers.values();
        let used = balancers.flat_map(|balancer| balancer.texts("security_groups"));
        let used: BTreeSet<_> = used.collect();
        let is_unused = |group: &&Object| {
            let (id, name) = (group.id.as_str(), group.key.as_str());
            let is_used = used.contains(id) || used.contains(name) || groups.contains(name);
            let is_own = names::is_own_group(name, group.text("description"));
            is_own && !is_used && self.cluster.owns(&tag_map(group))
        };
        let unused = directory.groups.values().filter(is_unused);
        orphans.extend(unused.map(|group| orphan(group, ", which no load balancer uses".to_owned())));
        let is_missing = |name: &String| !known.contains(name) && !directory.balancers.contains_key(name);
        let owners = directory.rule_owners.iter().filter(|(name, _)| is_missing(name));
        orphans.extend(owners.map(|(name, group)| Orphan {
            key: Key::Balancer(name.clone()),
            what: format!("rules in security group {group} for load balancer {name}, which does not exist"),
            deletable: false,
        }));
        orphans
    }

    fn check(
        &self,
        key: &Key,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &Inputs,
    ) -> CheckResult {
        let mut result = CheckResult::default();
        for member in PartMember::active(members) {
            let service = &member.service;
            let id = &service.id;
            let Spec { ignored, invalid, .. } = self.review(service, inputs);
            if !invalid.is_empty() {
                result.refused.push((id.clone(), InvalidField::error(&invalid)));
                continue;
            }
            if *key != Key::NodeGroups {
                result.events.extend(IgnoredValue::event(&ignored, id));
                if !inputs.unread.is_empty() {
                    let text = inputs.unread.join("; ");
                    let warning = ServiceEvent::warning(id, "MissingPermissions", text);
                    result.events.push(warning);
                }
                continue;
            }
            let instances = spec::instances(service, cluster, &inputs.untagged).unwrap_or_default();
            let several = instances.iter().find_map(|instance| {
                let NodeGroup { id, others } = inputs.groups.get(instance)?.as_ref().ok()?;
                let what = format!("instance {instance} has several security groups with the cluster's tag");
                let text = || format!("{what}; {id} gets the rules, not {}", others.join(", "));
                (!others.is_empty()).then(text)
            });
            let warning = |text| ServiceEvent::warning(id, "SeveralNodeSecurityGroups", text);
            result.events.extend(several.map(warning));
        }
        result
    }

    fn desired(&self, key: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> Desired {
        if *key == Key::NodeGroups {
            return Desired::NodeGroups(DesiredRules::new(self, members, cluster, inputs));
        }
        let member = PartMember::staying(members).next();
        let desired = member.map(|member| self.balancer(member, cluster, inputs));
        let nothing = || DesiredBalancer {
            objects: Some(Vec::new()),
            changed: true,
            ..DesiredBalancer::default()
        };
        Desired::Balancer(Box::new(desired.unwrap_or_else(nothing)))
    }

    fn missing(&self, key: &Key, members: &[PartMember], observed: &Observed) -> Option<String> {
        let Key::Balancer(name) = key else { return None };
        let was_there = members.iter().any(|member| own_hostname(&member.service).is_some());
        (was_there && observed.balancer().is_none()).then(|| format!("load balancer {name}"))
    }

    fn degraded(&self, _: &Key, members: &[PartMember], observed: &Observed) -> Option<Error> {
        let stays = Member::staying(members).next().is_some();
        let balancer = observed.objects.of(Kind::Balancer).next().filter(|_| stays)?;
        let state = balancer.text("state");
        ["failed", "active_impaired"].contains(&state).then(|| {
            let what = format!("AWS reports load balancer {} as {state}", balancer.key);
            let text = format!("{what}; it is not deleted, since it may still serve traffic");
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<Self::Change> {
        match desired {
            Desired::Balancer(desired) => {
                let mut plan = desired.plan(observed);
                let untagged = desired.untagged.iter().map(String::as_str);
                let untagged = untagged.collect::<Vec<_>>().join(", ");
                plan.blocked.extend((!untagged.is_empty()).then(|| Blocked {
                    service: desired.service.clone(),
                    field: format!("tag {} of instances", self.cluster.key().unwrap_or_default()),
                    observed: format!("missing, so that they are no targets: {untagged}"),
                    desired: "present".to_owned(),
                }));
                plan
            }
            Desired::NodeGroups(desired) => desired.plan(observed),
        }
    }

    fn fold(&self, _: &Key, change: &Self::Change, reply: Option<&Reply>, observed: &mut Observed) {
        observed.fold(change, reply);
    }

    fn facts(&self, key: &Key, member: &PartMember, observed: &Observed) -> Option<PartOutput<Facts>> {
        let mut output = PartOutput::default();
        if member.leaves() || *key == Key::NodeGroups {
            return Some(output);
        }
        let root = observed.balancer().filter(|root| root.foreign.is_none())?;
        output.facts.subnets = texts(root, "subnets");
        if root.kind == Kind::Classic {
            let is_own = |group: &&str| observed.objects.get(Kind::Group, group).is_some();
            let own = root.texts("security_groups").into_iter().find(is_own);
            output.facts.is_classic = true;
            output.facts.sources = texts(root, "security_groups");
            output.facts.own_source = own.map(|name| group_id(&observed.objects, name));
        }
        let hostname = root.text("dns_name");
        if !hostname.is_empty() {
            output.effects.ingress = Some(vec![Ingress::name(hostname)]);
        }
        Some(output)
    }
}
