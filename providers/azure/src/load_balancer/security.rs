//! The rules of the network security group: which clients reach the addresses of load balancers.
//!
//! Services with the same protocol, sources and ports share a rule, also Services of other clusters: its name follows from these. A rule
//! belongs to all whose addresses are among its destinations. So the program adds and removes destinations, each the address of one of its
//! own Services, and deletes a rule when no destination is left. Other rules are never changed.
//!
//! The destinations of a Service without a floating IP are the addresses of nodes, and its ports the node ports. They belong to this cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::{
    load_balancer::{Effect, IpFamily, ServiceView},
    plan::{Fact, Plan, Step, document::Document},
};
use serde_json::{Map, Value, json};

use super::{
    document::{ArmChange, Target, elements, has_failed, name},
    names::{RULE_PREFIX, deny_rule},
    sources::{AllowRule, free_priority},
};
use crate::{client::field, tags::ResourceTags};

/// The list of rules in the properties of a network security group.
const RULES: &str = "securityRules";
/// The priorities of rules that may be changed.
const PRIORITIES: std::ops::RangeInclusive<u64> = 500..=4096;
const DESTINATION: &str = "destinationAddressPrefix";
const DESTINATIONS: &str = "destinationAddressPrefixes";
const SOURCE: &str = "sourceAddressPrefix";
const SOURCES: &str = "sourceAddressPrefixes";
const PRIORITY: &str = "priority";

/// A rule that Services need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NeededRule {
    Allow(AllowRule),
    /// All clients that no other rule admits are refused.
    Deny(IpFamily),
}

impl NeededRule {
    fn name(&self) -> String {
        match self {
            Self::Allow(rule) => rule.name.clone(),
            Self::Deny(family) => deny_rule(*family),
        }
    }

    fn denies(&self) -> bool {
        matches!(self, Self::Deny(_))
    }

    /// The fields that follow from the rule itself.
    fn fields(&self) -> Map<String, Value> {
        let any = ["*".to_owned()];
        let (access, protocol, sources) = match self {
            Self::Allow(rule) => ("Allow", rule.protocol, rule.sources.as_slice()),
            Self::Deny(_) => ("Deny", "*", any.as_slice()),
        };
        let mut fields = Map::new();
        for (key, value) in [
            ("access", access),
            ("direction", "Inbound"),
            ("protocol", protocol),
            ("sourcePortRange", "*"),
        ] {
            fields.insert(key.to_owned(), value.into());
        }
        set_prefixes(&mut fields, SOURCE, SOURCES, sources);
        match self {
            Self::Allow(rule) => fields.insert("destinationPortRanges".to_owned(), json!(rule.ports)),
            Self::Deny(_) => fields.insert("destinationPortRange".to_owned(), "*".into()),
        };
        fields
    }
}

/// Sets one prefix, or several.
fn set_prefixes(fields: &mut Map<String, Value>, one: &str, several: &str, prefixes: &[String]) {
    match prefixes {
        [prefix] => {
            fields.insert(one.to_owned(), prefix.clone().into());
            fields.remove(several);
        }
        prefixes => {
            fields.insert(several.to_owned(), json!(prefixes));
            fields.remove(one);
        }
    }
}

/// The needed rules of a network security group.
#[derive(Clone, Debug)]
pub(crate) struct DesiredSecurity {
    pub(crate) target: Target,
    /// The destinations of each needed rule, by its name.
    pub(crate) rules: BTreeMap<String, (NeededRule, BTreeSet<String>)>,
    /// The addresses of Services that are active or leave. They are removed from all other rules.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The ports at the addresses of Services that keep what they have. Other Services may share the addresses.
    pub(crate) kept: BTreeMap<IpAddr, BTreeSet<String>>,
    pub(crate) nodes: NodeDestinations,
    pub(crate) tags: ResourceTags,
}

/// The addresses of nodes as destinations. They are removed from rules that do not need them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeDestinations {
    /// The addresses of all nodes.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The names of rules of Services without a floating IP. Private addresses in them may be those of former nodes.
    pub(crate) rules: BTreeSet<String>,
    /// The node ports of Services that keep what they have. Addresses of nodes stay in rules with one of them.
    pub(crate) kept_ports: BTreeSet<String>,
    /// The addresses of Services that keep what they have.
    pub(crate) kept_addresses: BTreeSet<IpAddr>,
}

impl NodeDestinations {
    /// The Service keeps what it has.
    pub(crate) fn keep(&mut self, service: &ServiceView) {
        self.kept_ports.extend(service.ports.iter().map(|port| port.node_port.to_string()));
        self.kept_addresses.extend(service.status_addresses());
    }

    fn merge(&mut self, other: &Self) {
        self.addresses.extend(&other.addresses);
        self.rules.extend(other.rules.iter().cloned());
        self.kept_ports.extend(other.kept_ports.iter().cloned());
        self.kept_addresses.extend(&other.kept_addresses);
    }

    /// Whether a destination of a rule is the address of a node, or was.
    fn contains(&self, rule: &str, fields: &Map<String, Value>, address: IpAddr) -> bool {
        if destination_ports(fields).any(|port| self.kept_ports.contains(port))
            || self.kept_addresses.contains(&address)
        {
            return false;
        }
        let is_private = match address {
            IpAddr::V4(address) => address.is_private(),
            IpAddr::V6(address) => address.is_unique_local(),
        };
        let is_node_rule = self.rules.iter().any(|own| own.eq_ignore_ascii_case(rule));
        self.addresses.contains(&address) || (is_node_rule && is_private)
    }
}

impl DesiredSecurity {
    /// The Service keeps what it has: the destinations at these addresses of rules with one of these ports.
    pub(crate) fn keep(
        &mut self,
        service: &ServiceView,
        addresses: &BTreeSet<IpAddr>,
        ports: &BTreeSet<String>,
    ) {
        self.nodes.keep(service);
        for address in addresses {
            self.kept.entry(*address).or_default().extend(ports.iter().cloned());
        }
    }

    /// Whether a rule has this destination for a Service that keeps what it has.
    fn is_kept(&self, fields: &Map<String, Value>, address: IpAddr) -> bool {
        let kept = self.kept.get(&address);
        kept.is_some_and(|ports| destination_ports(fields).any(|port| port == "*" || ports.contains(port)))
    }

    /// Adds a rule for this destination.
    pub(crate) fn add(&mut self, rule: NeededRule, destination: &Fact<IpAddr>) {
        let (_, all) = self.rules.entry(rule.name()).or_insert_with(|| (rule, BTreeSet::new()));
        all.insert(destination.to_string());
    }

    /// Adds what other Services need.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (name, (rule, destinations)) in &other.rules {
            let (_, all) = self.rules.entry(name.clone()).or_insert_with(|| (rule.clone(), BTreeSet::new()));
            all.extend(destinations.iter().cloned());
        }
        self.addresses.extend(&other.addresses);
        for (address, ports) in &other.kept {
            self.kept.entry(*address).or_default().extend(ports.iter().cloned());
        }
        self.nodes.merge(&other.nodes);
    }

    /// Whether the group has the needed rules with their destinations.
    pub(crate) fn stands_in(&self, document: &Value) -> bool {
        let standing: BTreeMap<String, &Value> =
            elements(document, RULES).map(|rule| (name(rule).to_ascii_lowercase(), rule)).collect();
        self.rules.iter().all(|(name, (_, needed))| {
            let rule = standing.get(&name.to_ascii_lowercase());
            let fields = rule.and_then(|rule| rule.get(field::PROPERTIES)).and_then(Value::as_object);
            fields.is_some_and(|fields| needed.is_subset(&destinations(fields)))
        })
    }

    pub(crate) fn plan(&self, observed: Option<&Document>) -> Plan<ArmChange> {
        let Some(observed) = observed else {
            return Plan::default();
        };
        let (rules, mut changes) = self.edited(observed.fields());
        if has_failed(observed) {
            changes.push("the last change failed".to_owned());
        }
        if changes.is_empty() {
            return Plan::default();
        }
        let mut body = observed.fields().clone();
        if let Some(properties) = body.get_mut(field::PROPERTIES).and_then(Value::as_object_mut) {
            properties.insert(RULES.to_owned(), rules.into());
            properties.remove("provisioningState");
        }
        let mut tags = body.get(field::TAGS).and_then(Value::as_object).cloned().unwrap_or_default();
        self.tags.apply(&mut tags);
        if !tags.is_empty() {
            body[field::TAGS] = tags.into();
        }
        let change = ArmChange {
            target: self.target.clone(),
            effect: Effect::Change,
            body,
        };
        let step = Step::new(change).because(changes.join(", ")).shared();
        Plan {
            steps: vec![step],
            ..Plan::default()
        }
    }

    /// The rules as they should be, and what changes.
    pub(crate) fn edited(&self, document: &Value) -> (Vec<Value>, Vec<String>) {
        let mut changes = Vec::new();
        let mut rules = Vec::new();
        let mut missing: BTreeMap<String, &(NeededRule, BTreeSet<String>)> =
            self.rules.iter().map(|(name, rule)| (name.to_ascii_lowercase(), rule)).collect();
        for rule in elements(document, RULES) {
            if !is_managed(rule) {
                rules.push(rule.clone());
                continue;
            }
            let needed = missing.remove(&name(rule).to_ascii_lowercase());
            if let Some(rule) = self.edited_rule(rule, needed, &mut changes) {
                rules.push(rule);
            }
        }
        for (rule, destinations) in missing.values() {
            let name = rule.name();
            let Some(priority) = free_priority(&priorities(&rules), rule.denies()) else {
                // Azure refuses a rule without a priority, and the Service gets its error.
                changes.push(format!("rule {name} added: no priority is free"));
                rules.push(json!({field::NAME: name, field::PROPERTIES: rule.fields()}));
                continue;
            };
            let mut fields = rule.fields();
            fields.insert(PRIORITY.to_owned(), priority.into());
            let destinations: Vec<String> = destinations.iter().cloned().collect();
            set_prefixes(&mut fields, DESTINATION, DESTINATIONS, &destinations);
            changes.push(format!("rule {name} added for {}", destinations.join(", ")));
            rules.push(json!({field::NAME: name, field::PROPERTIES: fields}));
        }
        (rules, changes)
    }

    /// A managed rule as it should be; `None` if it has no destination any more.
    fn edited_rule(
        &self,
        rule: &Value,
        needed: Option<&(NeededRule, BTreeSet<String>)>,
        changes: &mut Vec<String>,
    ) -> Option<Value> {
        let fields = rule.get(field::PROPERTIES).and_then(Value::as_object).cloned().unwrap_or_default();
        let before = destinations(&fields);
        let is_ours = |text: &String| {
            text.parse().is_ok_and(|address| {
                let is_address = self.addresses.contains(&address) && !self.is_kept(&fields, address);
                is_address || self.nodes.contains(name(rule), &fields, address)
            })
        };
        let wanted = needed.map(|(_, destinations)| destinations.clone()).unwrap_or_default();
        let others = before.iter().filter(|text| !is_ours(text)).cloned();
        let after: BTreeSet<String> = others.chain(wanted).collect();
        let mut edited = fields.clone();
        if after != before {
            let (added, removed) = (difference(&after, &before), difference(&before, &after));
            for (verb, texts) in [("added", added), ("removed", removed)] {
                if !texts.is_empty() {
                    changes.push(format!("destination {} {verb} in rule {}", texts.join(", "), name(rule)));
                }
            }
            let has_groups = edited
                .get("destinationApplicationSecurityGroups")
                .and_then(Value::as_array)
                .is_some_and(|groups| !groups.is_empty());
            if after.is_empty() && !has_groups {
                return None;
            }
            let texts: Vec<String> = after.into_iter().collect();
            set_prefixes(&mut edited, DESTINATION, DESTINATIONS, &texts);
        }
        if let Some((needed, _)) = needed {
            let wanted = needed.fields();
            if !has_fields(&fields, &wanted) {
                changes.push(format!("rule {} set again", name(rule)));
                for key in MANAGED {
                    edited.remove(key);
                }
                edited.extend(wanted);
            }
        }
        let mut rule = rule.clone();
        rule[field::PROPERTIES] = edited.into();
        Some(rule)
    }
}

/// The fields of a rule that follow from its name.
const MANAGED: [&str; 9] = [
    "access",
    "direction",
    "protocol",
    "sourcePortRange",
    "sourcePortRanges",
    SOURCE,
    SOURCES,
    "destinationPortRange",
    "destinationPortRanges",
];

/// Whether a rule has these fields, and no others of the managed ones. An empty list is the same as none, and one entry of a list is the
/// same as the entry alone.
fn has_fields(fields: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    let text = |fields: &Map<String, Value>, key: &str| {
        fields.get(key).and_then(Value::as_str).map(str::to_ascii_lowercase)
    };
    let set = |fields: &Map<String, Value>, one: &str, several: &str| {
        let list = fields.get(several).and_then(Value::as_array).into_iter().flatten();
        let list = list.filter_map(Value::as_str).map(str::to_ascii_lowercase);
        list.chain(text(fields, one)).collect::<BTreeSet<String>>()
    };
    let has_text = |key: &str| text(fields, key) == text(wanted, key);
    let has_set = |one: &str, several: &str| set(fields, one, several) == set(wanted, one, several);
    ["access", "direction", "protocol"].into_iter().all(has_text)
        && has_set("sourcePortRange", "sourcePortRanges")
        && has_set(SOURCE, SOURCES)
        && has_set("destinationPortRange", "destinationPortRanges")
}

/// The destination ports of a rule.
fn destination_ports(fields: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let several = fields.get("destinationPortRanges").and_then(Value::as_array).into_iter().flatten();
    several.chain(fields.get("destinationPortRange")).filter_map(Value::as_str)
}

fn difference(one: &BTreeSet<String>, other: &BTreeSet<String>) -> Vec<String> {
    one.difference(other).cloned().collect()
}

/// Whether a rule is one of load balancers.
fn is_managed(rule: &Value) -> bool {
    let priority = rule.pointer("/properties/priority").and_then(Value::as_u64).unwrap_or_default();
    let prefix = name(rule).get(..RULE_PREFIX.len());
    PRIORITIES.contains(&priority) && prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(RULE_PREFIX))
}

/// One prefix, or several.
fn prefixes<'a>(
    fields: &'a Map<String, Value>,
    one: &str,
    several: &str,
) -> impl Iterator<Item = &'a str> + use<'a> {
    let several = fields.get(several).and_then(Value::as_array).into_iter().flatten();
    let all = fields.get(one).into_iter().chain(several);
    all.filter_map(Value::as_str).filter(|text| !text.is_empty())
}

/// The sources of a rule.
pub(crate) fn sources(fields: &Map<String, Value>) -> impl Iterator<Item = &str> {
    prefixes(fields, SOURCE, SOURCES)
}

/// The destinations of a rule.
pub(crate) fn destinations(fields: &Map<String, Value>) -> BTreeSet<String> {
    // Azure may return another form of an IPv6 address.
    prefixes(fields, DESTINATION, DESTINATIONS)
        .map(|text| text.parse::<IpAddr>().map_or_else(|_| text.to_owned(), |address| address.to_string()))
        .collect()
}

/// The priorities of inbound rules.
fn priorities(rules: &[Value]) -> BTreeSet<u16> {
    let inbound = rules.iter().filter_map(|rule| rule.get(field::PROPERTIES)).filter(|fields| {
        let direction = fields.get("direction").and_then(Value::as_str).unwrap_or_default();
        direction.eq_ignore_ascii_case("Inbound")
    });
    let priorities = inbound.filter_map(|fields| fields.get(PRIORITY).and_then(Value::as_u64));
    priorities.filter_map(|priority| u16::try_from(priority).ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::cluster::service;

    use super::*;
    use crate::load_balancer::sources::AllowedSources;

    fn desired(rules: &[(u16, &str)], addresses: &[&str]) -> DesiredSecurity {
        let mut desired = DesiredSecurity {
            target: Target::SecurityGroup {
                group: "g".to_owned(),
                name: "nsg".to_owned(),
            },
            rules: BTreeMap::new(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            kept: BTreeMap::new(),
            nodes: NodeDestinations::default(),
            tags: ResourceTags::default(),
        };
        for (port, address) in rules {
            let service = service("web", &[*port]);
            let rule = AllowedSources::of(&service).rules(&service, IpFamily::V4).remove(0);
            desired.add(NeededRule::Allow(rule), &Fact::Known(address.parse().unwrap()));
        }
        desired
    }

    fn group(rules: &[Value]) -> Document {
        Document::planned(&json!({"etag": "1", "properties": {RULES: rules, "defaultSecurityRules": []}}))
    }

    fn after(desired: &DesiredSecurity, observed: &Document) -> Option<Document> {
        let steps = desired.plan(observed.into()).steps;
        steps.first().map(|step| Document::planned(&step.change.body))
    }

    fn shown(document: &Document) -> Vec<String> {
        elements(document.fields(), RULES)
            .map(|rule| {
                let fields = rule["properties"].as_object().unwrap();
                let destinations: Vec<String> = destinations(fields).into_iter().collect();
                format!("{} {} {}", fields["priority"], &name(rule)[..19], destinations.join(","))
            })
            .collect()
    }

    #[test]
    fn services_share_a_rule_and_leave_it_one_by_one() {
        let empty = group(&[]);
        let one = desired(&[(80, "20.0.0.1")], &["20.0.0.1"]);
        let with_one = after(&one, &empty).unwrap();
        assert_eq!(shown(&with_one), ["500 k8s-azure-lb_allow_ 20.0.0.1"]);
        assert!(after(&one, &with_one).is_none());
        let both = desired(&[(80, "20.0.0.1"), (80, "20.0.0.2")], &["20.0.0.1", "20.0.0.2"]);
        let with_both = after(&both, &with_one).unwrap();
        assert_eq!(shown(&with_both), ["500 k8s-azure-lb_allow_ 20.0.0.1,20.0.0.2"]);
        // The Service of another cluster is not known here.
        let gone = desired(&[], &["20.0.0.1"]);
        let left = after(&gone, &with_both).unwrap();
        assert_eq!(shown(&left), ["500 k8s-azure-lb_allow_ 20.0.0.2"]);
        let none = after(&desired(&[], &["20.0.0.2"]), &left).unwrap();
        assert!(shown(&none).is_empty());
    }

    #[test]
    fn a_change_of_ports_moves_the_destination_and_takes_a_free_priority() {
        let foreign = json!({"name": "ssh-from-office-here", "properties": {
            "direction": "Inbound", "priority": 500, "destinationAddressPrefix": "20.0.0.1", "future": [],
        }});
        let before =
            after(&desired(&[(80, "20.0.0.1")], &["20.0.0.1"]), &group(std::slice::from_ref(&foreign)))
                .unwrap();
        let moved = after(&desired(&[(443, "20.0.0.1")], &["20.0.0.1"]), &before).unwrap();
        assert_eq!(
            shown(&moved),
            [
                "500 ssh-from-office-her 20.0.0.1",
                "501 k8s-azure-lb_allow_ 20.0.0.1"
            ]
        );
        assert_eq!(elements(moved.fields(), RULES).next().unwrap(), &foreign);
    }

    #[test]
    fn empty_lists_and_the_order_of_entries_are_no_difference() {
        let one = desired(&[(80, "20.0.0.1")], &["20.0.0.1"]);
        let mut written = after(&one, &group(&[])).unwrap().fields().clone();
        let rule = &mut written["properties"][RULES][0]["properties"];
        for list in ["sourcePortRanges", "sourceAddressPrefixes", DESTINATIONS] {
            rule[list] = json!([]);
        }
        rule["protocol"] = json!("TCP");
        assert!(after(&one, &Document::planned(&written)).is_none());
        written["properties"][RULES][0]["properties"]["sourceAddressPrefix"] = json!("*");
        let fixed = after(&one, &Document::planned(&written)).unwrap();
        assert_eq!(fixed.fields()["properties"][RULES][0]["properties"]["sourceAddressPrefix"], "Internet");
    }

    #[test]
    fn addresses_of_nodes_leave_rules_that_do_not_need_them() {
        let nodes = ["10.0.0.4", "10.0.0.5", "10.0.0.9"].map(|address| (30080, address));
        let before = after(&desired(&nodes, &[]), &group(&[])).unwrap();
        let rule = name(elements(before.fields(), RULES).next().unwrap()).to_owned();
        // Of another cluster with the same ports: its load balancer has a public address.
        let both = after(&desired(&[(30080, "20.0.0.9")], &[]), &before).unwrap();
        let mut less = desired(&[(30080, "10.0.0.4")], &[]);
        less.nodes.addresses = ["10.0.0.4", "10.0.0.5"].map(|address| address.parse().unwrap()).into();
        // The third one is no node any more, and is known by the name of the rule alone.
        let shown_after = |desired: &DesiredSecurity| after(desired, &both).map(|after| shown(&after));
        let expected = ["500 k8s-azure-lb_allow_ 10.0.0.4,10.0.0.9,20.0.0.9".to_owned()];
        assert_eq!(shown_after(&less).unwrap(), expected);
        less.nodes.rules.insert(rule);
        let expected = ["500 k8s-azure-lb_allow_ 10.0.0.4,20.0.0.9".to_owned()];
        assert_eq!(shown_after(&less).unwrap(), expected);
        less.nodes.kept_addresses.insert("10.0.0.9".parse().unwrap());
        let expected = ["500 k8s-azure-lb_allow_ 10.0.0.4,10.0.0.9,20.0.0.9".to_owned()];
        assert_eq!(shown_after(&less).unwrap(), expected);
        less.nodes.kept_ports.insert("30080".to_owned());
        assert_eq!(shown_after(&less), None);
    }

    #[test]
    fn a_deny_rule_has_the_last_priority() {
        let mut denied = desired(&[], &["20.0.0.1"]);
        denied.add(NeededRule::Deny(IpFamily::V4), &Fact::Known("20.0.0.1".parse().unwrap()));
        let written = after(&denied, &group(&[])).unwrap();
        assert_eq!(shown(&written), ["4095 k8s-azure-lb_deny-a 20.0.0.1"]);
        assert!(after(&denied, &written).is_none());
    }
}
