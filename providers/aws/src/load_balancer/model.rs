//! The [`PartModel`] of AWS: which Service has which parts, and what parts provide.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind, Result,
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, IgnoredValue, Ingress, InvalidField, ServiceEvent, ServiceId,
        ServiceView,
    },
    plan::{
        CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan,
        objects::{self, Kind as _, Object},
    },
};

use super::{
    classic::ClassicSpec,
    desired::{Builder, Desired, DesiredBalancer, DesiredRules, Observed, has_owner_tag},
    kinds::{Entry, Key, Kind, RULE_PREFIX, RULES, Rule, group_id, tag_map},
    names,
    spec::{self, Flavor, NetworkSpec, Reading, has_own_hostname},
    subnets::Place,
};
use crate::{
    cluster::{Cluster, SERVICE_NAME},
    config::LoadBalancing,
};

/// The decisions about load balancers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<LoadBalancing>,
    pub(crate) cluster: Cluster,
}

/// A Service in a part.
pub(crate) type PartMember = Member<Model>;

/// What the shared listings show.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// Load balancers, network and classic, by name.
    pub(crate) balancers: BTreeMap<String, Object<Kind>>,
    /// Target groups of the cluster that no load balancer uses.
    pub(crate) loose: Vec<Object<Kind>>,
    /// The security groups with the cluster's tag, by name.
    pub(crate) groups: BTreeMap<String, Object<Kind>>,
    /// Load balancers that rules in them name, or whose security group is a source, with the ID of a group that has one.
    pub(crate) ruled: BTreeMap<String, String>,
}

/// What is needed beside Services and nodes.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    /// The kind of load balancer that a member has.
    pub(crate) flavors: BTreeMap<ServiceId, Flavor>,
    /// The subnets for each member's load balancer.
    pub(crate) places: BTreeMap<ServiceId, Vec<Place>>,
    /// Members that changed while this process ran.
    pub(crate) changed: BTreeSet<ServiceId>,
    /// CIDRs by subnet.
    pub(crate) cidrs: BTreeMap<String, Vec<String>>,
    /// The security group of each instance that is a target, or why it has none.
    pub(crate) groups: BTreeMap<String, Result<NodeGroup, String>>,
    /// What the credentials may not read, with the error.
    pub(crate) unread: Vec<String>,
    /// The first security group of each classic load balancer, by its name.
    pub(crate) sources: BTreeMap<String, String>,
}

/// The security group of an instance whose rules let load balancers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeGroup {
    pub(crate) id: String,
    /// Others that it could be as well.
    pub(crate) others: Vec<String>,
}

/// What the security groups of nodes need of a load balancer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// Its subnets.
    subnets: Vec<String>,
    /// The first security group of a classic load balancer.
    source: Option<String>,
    /// Whether it was created for the load balancer.
    owns_source: bool,
}

/// The reply to a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) objects: objects::Reply<Kind>,
    /// The action that the credentials may not call, with the error. Nothing was done.
    pub(crate) denied: Option<(&'static str, String)>,
}

impl NodeGroup {
    /// The one of an instance's security groups that gets the rules: the first one with the cluster's tag, else the only one.
    /// `tag`: its key.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn choose(
        groups: Vec<String>,
        is_tagged: impl Fn(&String) -> bool,
        tag: &str,
    ) -> Result<Self, String> {
        let (mut tagged, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_tagged);
        tagged.sort();
        let (id, others) = match (tagged.split_first(), others.as_slice()) {
            (Some((id, others)), _) => (id.clone(), others.to_vec()),
            (None, [id]) => (id.clone(), Vec::new()),
            (None, []) => return Err("it has no security group".to_owned()),
            (None, several) => {
                let several = several.join(", ");
                let text = format!("none of its security groups {several} has the tag {tag}; tag one");
                return Err(text);
            }
        };
        Ok(Self { id, others })
    }
}

impl Model {
    fn builder<'a>(
        &'a self,
        service: &'a ServiceView,
        cluster: &'a ClusterView,
        inputs: &'a Inputs,
        instances: Option<&'a BTreeSet<String>>,
    ) -> Builder<'a> {
        Builder {
            service,
            cluster: &self.cluster,
            cluster_name: &cluster.name,
            tag: &cluster.ownership_tag,
            settings: &self.settings,
            places: inputs
                .places
                .get(&service.id)
                .map(Vec::as_slice)
                .unwrap_or_default(),
            instances,
        }
    }

    /// The kind of load balancer that a Service has, else the one that it asks for.
    fn flavor(&self, service: &ServiceView, inputs: &Inputs) -> Flavor {
        let has = inputs.flavors.get(&service.id).copied();
        has.unwrap_or_else(|| Flavor::of(service, &self.settings))
    }

    /// What is wrong with a Service, and what of it is ignored.
    fn review(&self, service: &ServiceView, inputs: &Inputs) -> (Vec<IgnoredValue>, Vec<InvalidField>) {
        let asks = Flavor::of(service, &self.settings);
        let has = inputs.flavors.get(&service.id).copied().unwrap_or(asks);
        let (ignored, mut invalid) = match has {
            Flavor::Classic => {
                let Reading { ignored, invalid, .. } = ClassicSpec::read(service, &self.settings);
                (ignored, invalid)
            }
            Flavor::Network | Flavor::Elsewhere => {
                let Reading { ignored, invalid, .. } = NetworkSpec::read(service, &self.settings);
                (ignored, invalid)
            }
        };
        let class = service.class.as_deref();
        if asks != has || asks == Flavor::Elsewhere || class.is_some() {
            let other = class.map_or_else(
                || asks.title().to_owned(),
                |class| format!("load balancer of class {class}"),
            );
            let problem = if has == Flavor::Elsewhere {
                "the load balancer in the Service's status does not exist; delete the Service".to_owned()
            } else {
                format!(
                    "the Service has a {}, and a {other} does not take its place; to move, create a second Service with \
                     the other type, let clients use its address, and delete this one",
                    has.title()
                )
            };
            // Nothing else counts until then.
            invalid = vec![InvalidField::annotation(super::annotations::TYPE, problem)];
        }
        (ignored, invalid)
    }

    fn desired_balancer(
        &self,
        member: &PartMember,
        cluster: &ClusterView,
        inputs: &Inputs,
    ) -> DesiredBalancer {
        let service = &member.service;
        let instances = spec::instances(service, cluster);
        let builder = self.builder(service, cluster, inputs, instances.as_ref());
        let (objects, fixes) = match (&member.membership, self.flavor(service, inputs)) {
            (Membership::Frozen(_), _) => (None, BTreeSet::new()),
            (_, Flavor::Classic) => {
                let (objects, fixes) = builder.classic(&ClassicSpec::read(service, &self.settings).spec);
                (Some(objects), fixes)
            }
            _ => {
                let (objects, fixes) = builder.network(&NetworkSpec::read(service, &self.settings).spec);
                (Some(objects), fixes)
            }
        };
        DesiredBalancer {
            objects,
            fixes,
            places: builder.places.to_vec(),
            changed: inputs.changed.contains(&service.id),
            tag: cluster.ownership_tag.clone(),
            service: Some(service.id.clone()),
            instances: instances.filter(|_| member.follows_nodes()),
        }
    }

    fn desired_rules(&self, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> DesiredRules {
        let mut desired = DesiredRules::default();
        let mut staying_sources = BTreeSet::new();
        for member in members {
            let service = &member.service;
            let name = names::balancer(&service.id);
            let source = inputs.sources.get(&name).cloned();
            match member.membership {
                Membership::Frozen(_) => {
                    staying_sources.extend(source);
                    desired.frozen.insert(name);
                    continue;
                }
                Membership::Leaving => {
                    desired.managed_sources.extend(source);
                    desired.managed.insert(name);
                    continue;
                }
                Membership::Active => {}
            }
            let rules = self.rules(member, inputs);
            let sources = rules.iter().filter(|rule| rule.is_from_group());
            let sources: Vec<_> = sources.map(|rule| rule.source.clone()).collect();
            let Some(instances) = spec::instances(service, cluster) else {
                // Its targets stay, and so do its rules.
                staying_sources.extend(sources);
                desired.frozen.insert(name);
                continue;
            };
            // A rule from a group that people named may be theirs.
            let owns_source = balancer_facts(member).is_some_and(|facts| facts.owns_source);
            desired
                .managed_sources
                .extend(sources.into_iter().filter(|_| owns_source));
            desired.managed.insert(name);
            let groups = instances
                .iter()
                .filter_map(|instance| inputs.groups.get(instance)?.as_ref().ok());
            let groups: BTreeSet<_> = groups.map(|group| group.id.as_str()).collect();
            for group in groups {
                let required = desired.required.entry(group.to_owned()).or_default();
                required.extend(rules.iter().cloned());
            }
        }
        desired
            .managed_sources
            .retain(|source| !staying_sources.contains(source));
        desired
    }

    /// The rules that let a member's load balancer and its clients reach a node.
    fn rules(&self, member: &PartMember, inputs: &Inputs) -> Vec<Rule> {
        let service = &member.service;
        let Some(facts) = balancer_facts(member) else {
            return Vec::new();
        };
        if let Some(source) = &facts.source {
            return vec![Rule::new("-1", (-1, -1), source, "")];
        }
        let spec = NetworkSpec::read(service, &self.settings).spec;
        let name = names::balancer(&service.id);
        let cidrs = facts
            .subnets
            .iter()
            .filter_map(|subnet| inputs.cidrs.get(subnet))
            .flatten();
        let cidrs: BTreeSet<_> = cidrs
            .filter(|cidr| cidr.contains('.'))
            .map(String::as_str)
            .collect();
        let (mut clients, others): (BTreeSet<_>, BTreeSet<_>) = spec
            .common
            .ranges
            .iter()
            .map(String::as_str)
            .partition(|range| range.contains('.') || !spec.dual_stack);
        if !others.is_empty() && !clients.contains("0.0.0.0/0") {
            // Clients with IPv6 reach the nodes from the load balancer's own IPv4 addresses.
            clients.extend(&cidrs);
        }
        let rule = |protocol: &str, port: u16, range: &str, purpose: &str| {
            let port = i32::from(port);
            Rule::new(
                protocol,
                (port, port),
                range,
                &format!("{RULE_PREFIX}{purpose}={name}"),
            )
        };
        let mut rules = Vec::new();
        for port in &spec.ports {
            for transport in port.transports() {
                rules.extend(
                    clients
                        .iter()
                        .map(|range| rule(transport, port.node_port, range, "client")),
                );
            }
        }
        let is_open_to_all = clients.len() == 1 && clients.contains("0.0.0.0/0");
        for port in &spec.ports {
            let check = spec.check.port.parse().unwrap_or(port.node_port);
            let serves =
                |port: &spec::PortSpec| port.node_port == check && port.transports().contains(&"tcp");
            if is_open_to_all && spec.ports.iter().any(serves) {
                continue;
            }
            rules.extend(cidrs.iter().map(|range| rule("tcp", check, range, "health")));
        }
        rules
    }
}

/// What a member's load balancer reports.
fn balancer_facts(member: &PartMember) -> Option<&Facts> {
    let mut facts = member.facts.iter();
    facts.find_map(|(key, facts)| matches!(key, Key::Balancer(_)).then_some(facts))
}

impl PartModel for Model {
    type Key = Key;
    type Directory = Directory;
    type Inputs = Inputs;
    type Facts = Facts;
    type Desired = Desired;
    type Observed = Observed;
    type Change = objects::Change<Kind>;
    type Reply = Reply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        if has_own_hostname(service) {
            return Claim::Ours;
        }
        match (&service.class, Flavor::of(service, &self.settings)) {
            (Some(_), _) => Claim::NotOurs,
            (None, Flavor::Elsewhere) => Claim::Elsewhere,
            (None, _) => Claim::Ours,
        }
    }

    fn kind(&self, key: &Key) -> &'static str {
        key.kind()
    }

    fn parts(&self, service: &ServiceView, cluster: &ClusterView, directory: &Directory) -> Parts<Key> {
        let (name, tag) = (names::balancer(&service.id), names::service_tag(&service.id));
        let groups = [
            names::classic_group(&name),
            names::group(&cluster.name, &service.id),
        ];
        let exists = directory.balancers.contains_key(&name)
            || directory
                .loose
                .iter()
                .any(|group| tag_map(group).get(SERVICE_NAME) == Some(&tag))
            || groups.iter().any(|group| directory.groups.contains_key(group));
        let is_ruled = directory.ruled.contains_key(&name);
        let rules = (!self.settings.disable_security_group_ingress).then_some(Key::NodeGroups);
        let balancer = Key::Balancer(name);
        Parts {
            named: std::iter::once(balancer.clone()).chain(rules.clone()).collect(),
            tagged: exists
                .then_some(balancer)
                .into_iter()
                .chain(rules.filter(|_| is_ruled))
                .collect(),
        }
    }

    fn orphans(&self, world: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        let ids = || world.services.iter().map(|service| &service.id);
        let known: BTreeSet<_> = ids().map(names::balancer).collect();
        let tags: BTreeSet<_> = ids().map(names::service_tag).collect();
        let classic_groups = known.iter().map(|name| names::classic_group(name));
        let groups: BTreeSet<_> = ids()
            .map(|id| names::group(&world.cluster.name, id))
            .chain(classic_groups)
            .collect();
        let orphan = |object: &Object<Kind>, what: String| Orphan {
            key: Key::Balancer(object.key.clone()),
            what: format!("{} {}{what}", object.kind.schema().name, object.key),
            deletable: has_owner_tag(object, &world.cluster.ownership_tag),
        };
        let mut orphans = Vec::new();
        for balancer in directory
            .balancers
            .values()
            .filter(|balancer| !known.contains(&balancer.key))
        {
            let service = tag_map(balancer).remove(SERVICE_NAME);
            orphans.extend(service.map(|service| orphan(balancer, format!(" of Service {service}"))));
        }
        for group in &directory.loose {
            let service = tag_map(group).remove(SERVICE_NAME).unwrap_or_default();
            if !tags.contains(&service) {
                let what = format!(" of Service {service}, which no load balancer uses");
                orphans.push(orphan(group, what));
            }
        }
        let used = directory
            .balancers
            .values()
            .flat_map(|balancer| balancer.texts("security_groups"));
        let used: BTreeSet<_> = used.collect();
        let is_loose = |group: &&Object<Kind>| {
            let is_used = [&group.id, &group.key]
                .iter()
                .any(|name| used.contains(name.as_str()));
            names::is_own_group(&group.key, group.text("description"))
                && !is_used
                && !groups.contains(&group.key)
        };
        let loose = directory.groups.values().filter(is_loose);
        let loose = loose.filter(|group| self.cluster.owns(&tag_map(group)));
        orphans.extend(loose.map(|group| orphan(group, ", which no load balancer uses".to_owned())));
        let ruled = directory.ruled.iter();
        let ruled =
            ruled.filter(|(name, _)| !known.contains(*name) && !directory.balancers.contains_key(*name));
        orphans.extend(ruled.map(|(name, group)| Orphan {
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
        for member in members
            .iter()
            .filter(|member| member.membership == Membership::Active)
        {
            let service = &member.service;
            let id = &service.id;
            let (ignored, invalid) = self.review(service, inputs);
            if !invalid.is_empty() {
                result.refused.push((id.clone(), InvalidField::error(&invalid)));
                continue;
            }
            let mut warn =
                |reason, message: String| result.events.push(ServiceEvent::warning(id, reason, message));
            match key {
                Key::Balancer(_) => {
                    if !inputs.unread.is_empty() {
                        warn("MissingPermissions", inputs.unread.join("; "));
                    }
                    if !ignored.is_empty() {
                        let all: Vec<_> = ignored.iter().map(ToString::to_string).collect();
                        warn("LoadBalancerAnnotationIgnored", all.join("; "));
                    }
                }
                Key::NodeGroups => {
                    let instances = spec::instances(service, cluster).unwrap_or_default();
                    let groups: Vec<_> = instances
                        .iter()
                        .filter_map(|id| Some((id, inputs.groups.get(id)?)))
                        .collect();
                    let several = groups.iter().find_map(|(id, group)| {
                        let group = group.as_ref().ok()?;
                        (!group.others.is_empty()).then_some((id, group))
                    });
                    if let Some((instance, NodeGroup { id, others })) = several {
                        let text = format!(
                            "instance {instance} has several security groups with the cluster's tag; {id} gets the rules, not {}",
                            others.join(", ")
                        );
                        warn("SeveralNodeSecurityGroups", text);
                    }
                    if let Some((instance, why)) = groups
                        .iter()
                        .find_map(|(id, group)| Some((id, group.as_ref().err()?)))
                    {
                        warn(
                            "NoNodeSecurityGroup",
                            format!("instance {instance} cannot be reached: {why}"),
                        );
                    }
                }
            }
        }
        result
    }

    fn desired(&self, key: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> Desired {
        if *key == Key::NodeGroups {
            return Desired::NodeGroups(self.desired_rules(members, cluster, inputs));
        }
        let mut staying = members
            .iter()
            .filter(|member| member.membership != Membership::Leaving);
        let desired = staying
            .next()
            .map(|member| self.desired_balancer(member, cluster, inputs));
        Desired::Balancer(Box::new(desired.unwrap_or_else(|| DesiredBalancer {
            objects: Some(Vec::new()),
            changed: true,
            ..DesiredBalancer::default()
        })))
    }

    fn missing(&self, key: &Key, members: &[PartMember], observed: &Observed) -> Option<String> {
        let Key::Balancer(name) = key else { return None };
        let exists = observed
            .objects
            .all
            .iter()
            .any(|object| matches!(object.kind, Kind::Balancer | Kind::Classic));
        let was_there = members.iter().any(|member| has_own_hostname(&member.service));
        (was_there && !exists).then(|| format!("load balancer {name}"))
    }

    fn degraded(&self, _: &Key, members: &[PartMember], observed: &Observed) -> Option<Error> {
        let staying = members
            .iter()
            .any(|member| member.membership != Membership::Leaving);
        let balancer = observed.objects.of(Kind::Balancer).next().filter(|_| staying)?;
        let state = balancer.text("state");
        ["failed", "active_impaired"].contains(&state).then(|| {
            let text = format!(
                "AWS reports load balancer {} as {state}; it is not deleted, since it may still serve",
                balancer.key
            );
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<Self::Change> {
        match desired {
            Desired::Balancer(desired) => desired.plan(observed),
            Desired::NodeGroups(desired) => desired.plan(observed),
        }
    }

    fn fold(&self, _: &Key, change: &Self::Change, reply: Option<&Reply>, observed: &mut Observed) {
        if let Some((action, why)) = reply.and_then(|reply| reply.denied.clone()) {
            observed.denied.insert(action, why);
        } else {
            observed.objects.fold(change, reply.map(|reply| &reply.objects));
        }
    }

    fn facts(&self, key: &Key, member: &PartMember, observed: &Observed) -> Option<PartOutput<Facts>> {
        let mut output = PartOutput::default();
        if member.membership == Membership::Leaving || *key == Key::NodeGroups {
            return Some(output);
        }
        let mut roots = observed
            .objects
            .all
            .iter()
            .filter(|object| matches!(object.kind, Kind::Balancer | Kind::Classic));
        let root = roots.next().filter(|root| root.foreign.is_none())?;
        output.facts.subnets = root.texts("subnets").into_iter().map(str::to_owned).collect();
        if root.kind == Kind::Classic {
            let groups = root.texts("security_groups");
            let is_own = |group: &&&str| observed.objects.get(Kind::Group, group).is_some();
            let own = groups.iter().find(is_own);
            output.facts.owns_source = own.is_some();
            let source = own.or(groups.first());
            output.facts.source = source.map(|name| group_id(&observed.objects, name));
        }
        let hostname = root.text("dns_name");
        if !hostname.is_empty() {
            output.effects.ingress = Some(vec![Ingress {
                hostname: Some(hostname.into()),
                ..Ingress::default()
            }]);
        }
        Some(output)
    }
}

impl Directory {
    /// Collects what the listings show. `loose`: the cluster's target groups that no load balancer uses.
    pub(crate) fn new<'a>(
        balancers: impl Iterator<Item = Object<Kind>>,
        groups: impl Iterator<Item = &'a Object<Kind>>,
        loose: Vec<Object<Kind>>,
    ) -> Self {
        let mut directory = Self {
            loose,
            balancers: balancers.map(|object| (object.key.clone(), object)).collect(),
            ..Self::default()
        };
        let groups: Vec<_> = groups.collect();
        let names: BTreeMap<_, _> = groups
            .iter()
            .map(|group| (group.id.as_str(), group.key.as_str()))
            .collect();
        for group in &groups {
            for rule in group.set(RULES).iter().filter_map(Entry::rule) {
                let source = || names.get(rule.source.as_str())?.strip_prefix("k8s-elb-");
                let name = rule
                    .balancer()
                    .or_else(|| rule.is_from_group().then(source).flatten());
                if let Some(name) = name {
                    directory.ruled.insert(name.to_owned(), group.id.clone());
                }
            }
        }
        let groups = groups.into_iter();
        directory.groups = groups.map(|group| (group.key.clone(), group.clone())).collect();
        directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_security_group_of_a_node_is_the_first_one_with_the_clusters_tag() {
        type Outcome<'a> = Result<(&'a str, &'a [&'a str]), &'a str>;
        let cases: [(&[&str], &[&str], Outcome<'_>); 5] = [
            (&["sg-1"], &["sg-1"], Ok(("sg-1", &[]))),
            (
                &["sg-3", "sg-2", "sg-1"],
                &["sg-2", "sg-3"],
                Ok(("sg-2", &["sg-3"])),
            ),
            (&["sg-1"], &[], Ok(("sg-1", &[]))),
            (
                &["sg-1", "sg-2"],
                &[],
                Err("none of its security groups sg-1, sg-2 has the tag kubernetes.io/cluster/c"),
            ),
            (&[], &[], Err("it has no security group")),
        ];
        for (groups, tagged, expected) in cases {
            let groups = groups.iter().map(|id| (*id).to_owned()).collect();
            let chosen = NodeGroup::choose(
                groups,
                |id| tagged.contains(&id.as_str()),
                "kubernetes.io/cluster/c",
            );
            match (&chosen, expected) {
                (Ok(chosen), Ok((id, others))) => {
                    assert_eq!(
                        (chosen.id.as_str(), chosen.others.join(" ")),
                        (id, others.join(" "))
                    );
                }
                (Err(why), Err(text)) => assert!(why.starts_with(text), "{why}"),
                _ => panic!("{chosen:?} is not {expected:?}"),
            }
        }
    }
}
