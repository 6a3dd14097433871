//! The security groups of the nodes: the one of an instance, and the rules by which load balancers and clients reach it.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    load_balancer::{Blocked, ClusterView, ServiceView},
    plan::{Membership, Plan},
};
use serde_json::Value;

use super::{
    desired::{ObservedPart, diff, has_owner_tag},
    fields,
    kinds::{MTU, Object, ObjectChange, ObjectKind, PartKey, RULE_PREFIX, RULES, Rule, SetEntry, texts},
    model::{BalancerFacts, Model, PartInputs, PartMember},
    names,
    spec::{self, Flavor, Spec, transports},
};

/// The security group of an instance whose rules let load balancers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeGroup {
    pub(crate) id: String,
    /// Other candidates.
    pub(crate) others: Vec<String>,
}

impl NodeGroup {
    /// The one of an instance's security groups that gets the rules: the first one with the cluster's tag, else the only one.
    /// `tag`: its key.
    ///
    /// # Errors
    /// No security group qualifies.
    pub(crate) fn choose(
        groups: Vec<String>,
        is_tagged: impl Fn(&String) -> bool,
        tag: &str,
    ) -> Result<Self, String> {
        let (mut tagged, untagged): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_tagged);
        tagged.sort();
        match (tagged.split_first(), untagged.as_slice()) {
            (Some((id, others)), _) => Ok(Self {
                id: id.clone(),
                others: others.to_vec(),
            }),
            (None, [id]) => Ok(Self {
                id: id.clone(),
                others: Vec::new(),
            }),
            (None, []) => Err("it has no security group".to_owned()),
            (None, several) => {
                let several = several.join(", ");
                Err(format!("none of its security groups {several} has the tag {tag}; tag one"))
            }
        }
    }
}

/// The rules that the security groups of nodes should have.
#[derive(Debug, Default)]
pub(crate) struct DesiredRules {
    /// By security group of the nodes of active members: their rules, in the order of members.
    pub(crate) required: BTreeMap<String, Vec<Rule>>,
    /// Load balancers whose rules stay only if they are required. Rules of other load balancers stay.
    pub(crate) managed: BTreeSet<String>,
    /// Security groups of classic load balancers from which rules stay only if they are required. A group that a Service names
    /// is one of them when the last Service with a classic load balancer that names it leaves, or names another one.
    pub(crate) managed_sources: BTreeSet<String>,
    /// Load balancers whose rules stay as they are, and the security groups of nodes that get all of them.
    pub(crate) frozen: Vec<(Object, BTreeSet<String>)>,
    /// An instance without such a group, for each active member that has one.
    pub(crate) blocked: Vec<Blocked>,
}

impl DesiredRules {
    /// The rules for these members.
    pub(crate) fn new(
        model: &Model,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> Self {
        let mut desired = Self::default();
        // By rules from the groups of nodes, nodes reach each other.
        let node_groups = inputs.groups.values().flatten();
        let mut staying_sources: BTreeSet<_> = node_groups.map(|group| group.id.clone()).collect();
        for member in members {
            let service = &member.service;
            let name = names::balancer(&service.id);
            let existing = inputs.directory.balancers.get(&name);
            let own = inputs.directory.groups.get(&names::classic_group(&name)).map(|group| &group.id);
            let named = if is_classic(model, member, existing) {
                named_sources(model, member, inputs)
            } else {
                Vec::new()
            };
            if member.leaves() {
                desired.managed_sources.extend(own.cloned());
                desired.managed_sources.extend(named);
                desired.managed.insert(name);
                continue;
            }
            staying_sources.extend(named);
            if let Some(balancer) = existing
                && balancer.kind == ObjectKind::Classic
            {
                // The load balancer has these until they are replaced, which AWS may refuse. An own one is the only source.
                let attached: Vec<String> = texts(balancer, fields::SECURITY_GROUPS);
                if !own.is_some_and(|own| attached.contains(own)) {
                    staying_sources.extend(attached);
                }
            }
            let instances = spec::instances(service, cluster, &inputs.untagged);
            if let (Membership::Frozen(_), Some(balancer)) = (&member.membership, existing) {
                staying_sources.extend(texts::<Vec<_>>(balancer, fields::SECURITY_GROUPS));
                if let Some(instances) = &instances
                    && member.follows_nodes()
                {
                    let groups = groups_of_nodes(instances, inputs);
                    desired.frozen.push((balancer.clone(), groups));
                }
            }
            // Without instances its targets stay, as do its rules.
            if let (Membership::Active, Some(instances)) = (&member.membership, &instances) {
                desired.blocked.extend(without_group(instances, service, inputs));
                if let Some(balancer) = existing
                    && inputs.requested(member, &model.settings, cluster).spec.keeps_check
                {
                    // The config does not tell which port is checked: also the rules for the present one stay.
                    desired.frozen.push((balancer.clone(), groups_of_nodes(instances, inputs)));
                }
                desired.add_active(name, rules_of(model, member, cluster, inputs), instances, inputs);
            }
        }
        desired.managed_sources.extend(inputs.lost_sources.clone());
        desired.managed_sources = &desired.managed_sources - &staying_sources;
        desired
    }

    /// Adds the rules of an active member with this load balancer to the security groups of these instances.
    fn add_active(
        &mut self,
        balancer: String,
        rules: BalancerRules,
        instances: &BTreeSet<String>,
        inputs: &PartInputs,
    ) {
        self.managed.insert(balancer);
        self.managed_sources.extend(rules.own_source);
        for group in groups_of_nodes(instances, inputs) {
            self.required.entry(group).or_default().extend(rules.rules.iter().cloned());
        }
    }

    /// The plan to the desired rules. A rule is removed only if it names a managed load balancer.
    pub(crate) fn plan(&self, observed: &ObservedPart) -> Plan<ObjectChange> {
        let all: Vec<&Rule> = observed
            .objects
            .of(ObjectKind::NodeGroup)
            .flat_map(|group| group.set(RULES))
            .filter_map(SetEntry::rule)
            .collect();
        let groups = observed.objects.of(ObjectKind::NodeGroup).map(|group| {
            let current: Vec<_> = group.set(RULES).iter().filter_map(SetEntry::rule).collect();
            let mut required = self.required.get(&group.key).cloned().unwrap_or_default();
            for (balancer, groups) in &self.frozen {
                if groups.contains(&group.key) {
                    let needed = all.iter().filter(|rule| lets_in(rule, balancer));
                    required.extend(needed.map(|rule| (*rule).clone()));
                }
            }
            let rules = self.rules(&group.key, &required, &current).into_values();
            Object::new(ObjectKind::NodeGroup, group.key.clone()).entries(RULES, rules.map(SetEntry::Rule))
        });
        let mut plan = diff(groups.collect(), observed, false);
        plan.blocked.extend(self.blocked.iter().cloned());
        plan
    }

    /// All rules of a group by their tuples: those that are required, and those that stay.
    fn rules(&self, group: &str, required: &[Rule], current: &[&Rule]) -> BTreeMap<Rule, Rule> {
        let mut rules: BTreeMap<Rule, Rule> = BTreeMap::new();
        for rule in required {
            // If several load balancers require a rule, it keeps the description that it has.
            if current.contains(&rule) || !rules.contains_key(&rule.tuple()) {
                rules.insert(rule.tuple(), rule.clone());
            }
        }
        for rule in current {
            let stays = match rule.balancer() {
                Some(name) => !self.managed.contains(name),
                // By a rule from the group itself, nodes reach each other.
                None if rule.is_from_group() => {
                    rule.source == group || !self.managed_sources.contains(&rule.source)
                }
                None => !rule.description.starts_with(RULE_PREFIX),
            };
            if stays {
                rules.insert(rule.tuple(), (*rule).clone());
            }
        }
        let mtu: Vec<_> = rules
            .values()
            .filter(|rule| rule.balancer().is_some() && rule.description.contains("/client="))
            .map(|rule| Rule::mtu(&rule.source, MTU))
            .collect();
        for rule in mtu {
            rules.entry(rule.tuple()).or_insert(rule);
        }
        rules
    }
}

/// Whether a load balancer needs a rule that exists.
fn lets_in(rule: &Rule, balancer: &Object) -> bool {
    let is_source = rule.protocol == "-1" && balancer.texts(fields::SECURITY_GROUPS).contains(&&*rule.source);
    rule.balancer() == Some(&balancer.key) || (balancer.kind == ObjectKind::Classic && is_source)
}

/// The security groups that a Service names instead of an own one. From the first one, its classic load balancer would reach
/// the nodes. As in upstream, groups with the cluster's tag are first.
fn named_sources(model: &Model, member: &PartMember, inputs: &PartInputs) -> Vec<String> {
    let mut named = spec::classic_security_groups(&member.service, &model.settings);
    named.sort_by_key(|id| !inputs.directory.groups.values().any(|group| group.id == *id));
    named
}

/// Whether a member has a classic load balancer, or had one that may already be deleted.
fn is_classic(model: &Model, member: &PartMember, existing: Option<&Object>) -> bool {
    match existing {
        Some(balancer) => balancer.kind == ObjectKind::Classic,
        None => Flavor::known(&member.service, &model.settings) == Flavor::Classic,
    }
}

/// The security groups of these instances that get rules.
fn groups_of_nodes(instances: &BTreeSet<String>, inputs: &PartInputs) -> BTreeSet<String> {
    let groups = instances.iter().filter_map(|id| inputs.groups.get(id)).flatten();
    groups.map(|group| group.id.clone()).collect()
}

/// The first of these instances that has no such security group.
fn without_group(
    instances: &BTreeSet<String>,
    service: &ServiceView,
    inputs: &PartInputs,
) -> Option<Blocked> {
    instances.iter().find_map(|id| {
        let why = inputs.groups.get(id)?.as_ref().err()?;
        Some(Blocked {
            service: Some(service.id.clone()),
            field: format!("rules for instance {id}"),
            observed: format!("absent ({why})"),
            desired: "present".to_owned(),
        })
    })
}

/// The rules for a load balancer in the security group of a node.
#[derive(Default)]
struct BalancerRules {
    rules: Vec<Rule>,
    /// The security group that only this classic load balancer has.
    own_source: Option<String>,
}

/// The rules that let a member's load balancer and its clients reach a node; none while the load balancer is not known.
fn rules_of(model: &Model, member: &PartMember, cluster: &ClusterView, inputs: &PartInputs) -> BalancerRules {
    let mut all_facts = member.facts.iter();
    let facts = all_facts.find_map(|(key, facts)| match key {
        PartKey::Balancer(_) => Some(facts),
        PartKey::NodeGroups => None,
    });
    let Some(facts) = facts else {
        return BalancerRules::default();
    };
    let rules = if facts.is_classic {
        // The requested groups, not the observed ones: a rule from a named group would not be removed later.
        let first = named_sources(model, member, inputs).into_iter().next();
        let sources = first.into_iter().chain(facts.own_source.clone());
        sources.map(|source| Rule::new("-1", (-1, -1), &source, "")).collect()
    } else {
        network_rules(model, member, facts, cluster, inputs)
    };
    BalancerRules {
        rules,
        own_source: facts.own_source.clone(),
    }
}

/// The rules that let a network load balancer and its clients reach a node.
fn network_rules(
    model: &Model,
    member: &PartMember,
    facts: &BalancerFacts,
    cluster: &ClusterView,
    inputs: &PartInputs,
) -> Vec<Rule> {
    let requested = inputs.requested(member, &model.settings, cluster);
    let spec = match requested.flavor {
        // The Service no longer requests the type that its load balancer has.
        Flavor::Classic => &Spec::read(&requested.adoption.service, &model.settings, Flavor::Network),
        _ => &requested.spec,
    };
    let name = names::balancer(&member.service.id);
    let is_v4 = |range: &str| range.contains('.');
    let cidrs: BTreeSet<&str> = facts
        .subnets
        .iter()
        .filter_map(|subnet| inputs.cidrs.get(subnet))
        .flatten()
        .map(String::as_str)
        .filter(|cidr| is_v4(cidr))
        .collect();
    let (mut clients, others): (BTreeSet<&str>, BTreeSet<&str>) =
        spec.ranges.iter().map(String::as_str).partition(|range| is_v4(range) || !spec.dual_stack);
    // A load balancer of another program is left as it is until its Service changes.
    let existing = inputs.directory.balancers.get(&name);
    let is_ours = existing.is_some_and(|existing| has_owner_tag(existing, &cluster.ownership_tag));
    let first = inputs.first_observed.get(&member.service.id);
    let hides_clients =
        spec.target_group.get(fields::PRESERVE_CLIENT_IP).is_some_and(|value| value == "false")
            && (existing.is_none() || is_ours || first.is_some_and(|first| first.changed));
    if (hides_clients || !others.is_empty()) && !clients.contains("0.0.0.0/0") {
        // Clients with IPv6, or all of them, reach the nodes from the load balancer's own IPv4 addresses.
        clients.extend(&cidrs);
    }
    let rule = |protocol: &str, port: u16, range: &str, purpose: &str| {
        let description = format!("{RULE_PREFIX}{purpose}={name}");
        Rule::new(protocol, (port.into(), port.into()), range, &description)
    };
    let mut rules = Vec::new();
    for port in &spec.ports {
        for transport in transports(port.protocol) {
            for range in &clients {
                rules.push(rule(transport, port.node_port, range, "client"));
            }
        }
    }
    let is_open_to_all = clients.len() == 1 && clients.contains("0.0.0.0/0");
    let check_port: Option<u16> = spec
        .target_group
        .get(fields::HEALTH_CHECK_PORT)
        .and_then(Value::as_str)
        .and_then(|port| port.parse().ok());
    for port in &spec.ports {
        let check = check_port.unwrap_or(port.node_port);
        let is_served = is_open_to_all
            && rules.iter().any(|rule| rule.protocol == "tcp" && rule.from == i32::from(check));
        if !is_served {
            for cidr in &cidrs {
                rules.push(rule("tcp", check, cidr, "health"));
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests;
