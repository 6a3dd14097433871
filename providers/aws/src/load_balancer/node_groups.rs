//! The security groups of the nodes: the one of an instance, and the rules by which load balancers and clients reach it.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    load_balancer::{Blocked, ClusterView},
    plan::{Membership, Plan},
};
use serde_json::Value;

use super::{
    desired::{Observed, diff},
    kinds::{Change, Entry, Key, Kind, MTU, Object, RULE_PREFIX, RULES, Rule, texts},
    model::{Facts, Inputs, Model, PartMember},
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
        let (mut tagged, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_tagged);
        tagged.sort();
        let (id, others) = match (tagged.split_first(), others.as_slice()) {
            (Some((id, others)), _) => (id.clone(), others.to_vec()),
            (None, [id]) => (id.clone(), Vec::new()),
            (None, []) => return Err("it has no security group".to_owned()),
            (None, several) => {
                let several = several.join(", ");
                let why = format!("none of its security groups {several} has the tag {tag}; tag one");
                return Err(why);
            }
        };
        Ok(Self { id, others })
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
    pub(crate) fn new(model: &Model, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> Self {
        let mut desired = Self::default();
        // By rules from the groups of nodes, nodes reach each other.
        let node_groups = inputs.groups.values().flatten();
        let mut staying_sources: BTreeSet<_> = node_groups.map(|group| group.id.clone()).collect();
        for member in members {
            let service = &member.service;
            let name = names::balancer(&service.id);
            let named = named_sources(model, member, inputs);
            let existing = inputs.directory.balancers.get(&name);
            // The load balancer itself may already be deleted.
            let is_classic = match existing {
                Some(balancer) => balancer.kind == Kind::Classic,
                None => Flavor::known(service, &model.settings) == Flavor::Classic,
            };
            let named = named.into_iter().filter(|_| is_classic);
            let own = inputs.directory.groups.get(&names::classic_group(&name));
            let own = own.map(|group| group.id.clone());
            if !member.leaves() {
                staying_sources.extend(named.clone());
                // The load balancer has these until they are replaced, which AWS may refuse. An own one is the only source.
                let attached = existing.filter(|_| is_classic);
                let attached: Vec<_> = attached.map_or_else(Vec::new, |one| texts(one, "security_groups"));
                if !own.as_ref().is_some_and(|own| attached.contains(own)) {
                    staying_sources.extend(attached);
                }
            }
            let instances = spec::instances(service, cluster, &inputs.untagged);
            let groups = || {
                let groups = instances.iter().flatten().filter_map(|id| inputs.groups.get(id));
                let groups: BTreeSet<_> = groups.flatten().map(|group| group.id.clone()).collect();
                instances.is_some().then_some(groups)
            };
            let blocked = |id| {
                let why = inputs.groups.get(id)?.as_ref().err()?;
                Some(Blocked {
                    service: Some(service.id.clone()),
                    field: format!("rules for instance {id}"),
                    observed: format!("absent ({why})"),
                    desired: "present".to_owned(),
                })
            };
            let groups = match member.membership {
                Membership::Active => {
                    let blocked = instances.iter().flatten().find_map(blocked);
                    desired.blocked.extend(blocked);
                    groups()
                }
                Membership::Frozen(_) => {
                    if let Some(balancer) = existing {
                        staying_sources.extend(texts::<Vec<_>>(balancer, "security_groups"));
                        let groups = groups().filter(|_| member.follows_nodes());
                        let frozen = groups.map(|groups| (balancer.clone(), groups));
                        desired.frozen.extend(frozen);
                    }
                    None
                }
                Membership::Leaving => {
                    desired.managed_sources.extend(own.into_iter().chain(named));
                    desired.managed.insert(name);
                    continue;
                }
            };
            // Otherwise its targets stay, as do its rules.
            let Some(groups) = groups else { continue };
            let mut facts = member.facts.iter();
            let facts = facts.find_map(|(key, facts)| matches!(key, Key::Balancer(_)).then_some(facts));
            let own_source = facts.and_then(|facts| facts.own_source.clone());
            desired.managed_sources.extend(own_source);
            desired.managed.insert(name);
            let rules = facts.map_or_else(Vec::new, |facts| rules(model, member, facts, inputs));
            for group in groups {
                let required = desired.required.entry(group).or_default();
                required.extend(rules.iter().cloned());
            }
        }
        desired.managed_sources.extend(inputs.lost_sources.clone());
        desired.managed_sources = &desired.managed_sources - &staying_sources;
        desired
    }

    /// The plan to the desired rules. A rule is removed only if it names a managed load balancer.
    pub(crate) fn plan(&self, observed: &Observed) -> Plan<Change> {
        let all = observed.objects.of(Kind::NodeGroup).flat_map(|group| group.set(RULES));
        let all: Vec<_> = all.filter_map(Entry::rule).collect();
        let groups = observed.objects.of(Kind::NodeGroup).map(|group| {
            let current: Vec<_> = group.set(RULES).iter().filter_map(Entry::rule).collect();
            let mut required = self.required.get(&group.key).cloned().unwrap_or_default();
            let frozen = self.frozen.iter().filter(|(_, groups)| groups.contains(&group.key));
            for (balancer, _) in frozen {
                let needed = all.iter().filter(|rule| lets_in(rule, balancer));
                required.extend(needed.map(|rule| (*rule).clone()));
            }
            let rules = self.rules(&group.key, &required, &current);
            let rules = rules.into_values().map(Entry::Rule);
            Object::new(Kind::NodeGroup, group.key.clone()).entries(RULES, rules)
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
        let is_client = |rule: &&Rule| rule.balancer().is_some() && rule.description.contains("/client=");
        let clients = rules.values().filter(is_client);
        let mtu: Vec<_> = clients.map(|rule| Rule::mtu(&rule.source, MTU)).collect();
        for rule in mtu {
            rules.entry(rule.tuple()).or_insert(rule);
        }
        rules
    }
}

/// Whether a load balancer needs a rule that exists.
fn lets_in(rule: &Rule, balancer: &Object) -> bool {
    let is_source = rule.protocol == "-1" && balancer.texts("security_groups").contains(&&*rule.source);
    rule.balancer() == Some(&balancer.key) || (balancer.kind == Kind::Classic && is_source)
}

/// The security groups that a Service names instead of an own one. From the first one, its classic load balancer would reach
/// the nodes. As in upstream, groups with the cluster's tag are first.
fn named_sources(model: &Model, member: &PartMember, inputs: &Inputs) -> Vec<String> {
    let spec = Spec::read(&member.service, &model.settings, Flavor::Classic);
    let mut named = spec.security_groups;
    if !named.is_empty() {
        named.extend(spec.extra_groups);
    }
    let is_tagged = |id: &String| inputs.directory.groups.values().any(|group| group.id == *id);
    named.sort_by_key(|id| !is_tagged(id));
    named
}

/// The rules that let a member's load balancer and its clients reach a node.
fn rules(model: &Model, member: &PartMember, facts: &Facts, inputs: &Inputs) -> Vec<Rule> {
    if facts.is_classic {
        // The requested groups, not the observed ones: a rule from a named group would not be removed later.
        let named = named_sources(model, member, inputs);
        let sources = named.into_iter().take(1).chain(facts.own_source.clone());
        let rule = |source: String| Rule::new("-1", (-1, -1), &source, "");
        return sources.map(rule).collect();
    }
    let spec = Spec::read(&member.service, &model.settings, Flavor::Network);
    let name = names::balancer(&member.service.id);
    let subnets = facts.subnets.iter();
    let cidrs = subnets.filter_map(|subnet| inputs.cidrs.get(subnet)).flatten();
    let is_v4 = |range: &&str| range.contains('.');
    let cidrs: BTreeSet<_> = cidrs.map(String::as_str).filter(is_v4).collect();
    let ranges = spec.ranges.iter().map(String::as_str);
    let reaches_nodes = |range: &&str| is_v4(range) || !spec.dual_stack;
    let (mut clients, others): (BTreeSet<_>, BTreeSet<_>) = ranges.partition(reaches_nodes);
    if !others.is_empty() && !clients.contains("0.0.0.0/0") {
        // Clients with IPv6 reach the nodes from the load balancer's own IPv4 addresses.
        clients.extend(&cidrs);
    }
    let rule = |protocol: &str, port: u16, range: &str, purpose: &str| {
        let ports = (port.into(), port.into());
        let description = format!("{RULE_PREFIX}{purpose}={name}");
        Rule::new(protocol, ports, range, &description)
    };
    let mut rules = Vec::new();
    for port in &spec.ports {
        for transport in transports(port.protocol) {
            let clients = clients.iter();
            rules.extend(clients.map(|range| rule(transport, port.node_port, range, "client")));
        }
    }
    let is_open_to_all = clients.len() == 1 && clients.contains("0.0.0.0/0");
    let check = spec.target_group.get("health_check_port").and_then(Value::as_str);
    let check: Option<u16> = check.and_then(|port| port.parse().ok());
    for port in &spec.ports {
        let check = check.unwrap_or(port.node_port);
        let serves = |rule: &Rule| rule.protocol == "tcp" && rule.from == i32::from(check);
        if !(is_open_to_all && rules.iter().any(serves)) {
            rules.extend(cidrs.iter().map(|range| rule("tcp", check, range, "health")));
        }
    }
    rules
}

#[cfg(test)]
mod tests;
