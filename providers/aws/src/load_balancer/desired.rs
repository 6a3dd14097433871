//! The desired state of a part, and the plan from the observed state to it.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    load_balancer::{Blocked, Ownership, OwnershipTag, ServiceId, ServiceView},
    plan::{
        Plan, Step,
        objects::{self, Action, Change, Object, Objects},
    },
};
use serde_json::Value;

use super::{
    kinds::{
        CERTIFICATES, Entry, INSTANCES, Kind, MTU, OWNER_TAG, RULE_PREFIX, RULES, Rule, TAGS, TARGETS,
        tag_map,
    },
    names,
    spec::{CommonSpec, HealthCheck, NetworkSpec, PortSpec},
    subnets::Place,
};
use crate::{
    cluster::{Cluster, SERVICE_NAME, has_any_cluster},
    config::LoadBalancing,
};

/// The desired state of a part.
#[derive(Debug)]
pub(crate) enum Desired {
    /// Of a load balancer.
    Balancer(Box<DesiredBalancer>),
    /// Of the security groups of nodes.
    NodeGroups(DesiredRules),
}

/// The desired state of a load balancer. By default nothing is desired of it, and it is deleted.
#[derive(Debug, Default)]
pub(crate) struct DesiredBalancer {
    /// All objects; `None`: they stay, and only follow the nodes.
    pub(crate) objects: Option<Vec<Object<Kind>>>,
    /// The instances behind the load balancer; `None`: they stay.
    pub(crate) instances: Option<BTreeSet<String>>,
    /// Zones that a load balancer that exists gets, too.
    pub(crate) places: Vec<Place>,
    /// Attributes that upstream leaves as they are: on what it built, they wait until the Service changes.
    pub(crate) fixes: BTreeSet<(Kind, &'static str)>,
    /// Whether the Service changed while this process ran.
    pub(crate) changed: bool,
    /// The cluster's ownership tag.
    pub(crate) tag: OwnershipTag,
    /// The Service.
    pub(crate) service: Option<ServiceId>,
}

/// The observed state of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) objects: Objects<Kind>,
    /// Actions that the credentials may not call, with the error. Their calls are neither planned nor expected.
    pub(crate) denied: BTreeMap<&'static str, String>,
}

/// What of a cluster goes into all objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Builder<'a> {
    pub(crate) service: &'a ServiceView,
    pub(crate) cluster: &'a Cluster,
    /// `--cluster-name`.
    pub(crate) cluster_name: &'a str,
    pub(crate) tag: &'a OwnershipTag,
    pub(crate) settings: &'a LoadBalancing,
    pub(crate) places: &'a [Place],
    pub(crate) instances: Option<&'a BTreeSet<String>>,
}

/// The attributes of a network load balancer and what belongs to it that upstream changes after it created them.
const UPSTREAM: [(Kind, &[&str]); 3] = [
    (
        Kind::Balancer,
        &[
            "security_groups",
            "load_balancing.cross_zone.enabled",
            "access_logs.s3.enabled",
            "access_logs.s3.bucket",
            "access_logs.s3.prefix",
        ],
    ),
    (
        Kind::TargetGroup,
        &["health_check_port", "health_check_path", "healthy_threshold"],
    ),
    (
        Kind::Listener,
        &[
            "transport",
            "protocol",
            "certificate",
            "ssl_policy",
            "target_group",
        ],
    ),
];

impl Builder<'_> {
    /// An object with the Service's tags.
    pub(super) fn object(&self, kind: Kind, key: &str, common: &CommonSpec) -> Object<Kind> {
        let mut tags = common.tags.clone();
        if kind != Kind::Group {
            tags.insert(SERVICE_NAME.to_owned(), names::service_tag(&self.service.id));
        }
        let mut tags = self.cluster.tags(&tags);
        if let Some(owner) = self.tag.for_create() {
            tags.insert(OWNER_TAG.to_owned(), owner.as_str().to_owned());
        }
        let tags = tags.iter().map(|(key, value)| Entry::tag(key, value));
        Object {
            service: Some(self.service.id.clone()),
            ..Object::new(kind, key).entries(TAGS, tags)
        }
    }

    /// A security group that lets clients reach the load balancer.
    pub(super) fn group(
        &self,
        name: &str,
        about: &str,
        common: &CommonSpec,
        ports: &[(&str, u16)],
    ) -> Object<Kind> {
        let rules = common.ranges.iter().flat_map(|range| {
            let rule = |(protocol, port): &(&str, u16)| {
                let port = i32::from(*port);
                Rule::new(protocol, (port, port), range, "")
            };
            ports.iter().map(rule).chain([Rule::mtu(range, "")])
        });
        let group = self.object(Kind::Group, name, common).with("description", about);
        group.entries(RULES, rules.map(Entry::Rule))
    }

    /// The subnets of a new load balancer.
    pub(super) fn subnets(&self) -> Vec<&str> {
        self.places.iter().map(|place| place.subnet.as_str()).collect()
    }

    /// All objects of a network load balancer, and those of their attributes that only we change.
    pub(crate) fn network(&self, spec: &NetworkSpec) -> (Vec<Object<Kind>>, BTreeSet<(Kind, &'static str)>) {
        let name = names::balancer(&self.service.id);
        let common = &spec.common;
        let mut objects = Vec::new();
        let mut balancer = self
            .object(Kind::Balancer, &name, common)
            .with("subnets", self.subnets());
        balancer = balancer.with(
            "scheme",
            if common.internal {
                "internal"
            } else {
                "internet-facing"
            },
        );
        if spec.dual_stack {
            balancer = balancer.with("ip_address_type", "dualstack");
        }
        for (attribute, values) in [
            ("eip_allocations", &spec.eip_allocations),
            ("private_addresses", &spec.private_addresses),
        ] {
            if !values.is_empty() {
                balancer = balancer.with(attribute, values.clone());
            }
        }
        if self.settings.managed_security_groups {
            let groups = if common.security_groups.is_empty() {
                let group = names::group(self.cluster_name, &self.service.id);
                let ports = spec.ports.iter();
                let ports =
                    ports.flat_map(|port| port.transports().iter().map(|transport| (*transport, port.port)));
                let ports: Vec<_> = ports.collect();
                objects.push(self.group(&group, names::MANAGED, common, &ports));
                vec![group]
            } else {
                common.security_groups.clone()
            };
            balancer = balancer.with("security_groups", groups);
        }
        for (attribute, value) in &spec.attributes {
            balancer = balancer.with(attribute, value.as_str());
        }
        objects.push(balancer);
        let groups = spec.target_group_names(&self.cluster.id, &self.service.id);
        for (port, group) in spec.ports.iter().zip(groups) {
            objects.push(self.target_group(&group, port, spec));
            objects.push(self.listener(&name, &group, port, spec));
        }
        let upstream = |kind: Kind, name: &str| {
            let set = UPSTREAM.iter().find(|(of, _)| *of == kind);
            set.is_some_and(|(_, names)| names.contains(&name))
                || spec.target_group_attributes.contains_key(name)
        };
        let attributes = objects
            .iter()
            .flat_map(|object| object.attributes.keys().map(|name| (object.kind, *name)));
        let fixes = attributes.filter(|(kind, name)| !upstream(*kind, name)).collect();
        (objects, fixes)
    }

    fn target_group(&self, name: &str, port: &PortSpec, spec: &NetworkSpec) -> Object<Kind> {
        let HealthCheck {
            protocol,
            port: check_port,
            path,
            codes,
            interval,
            timeout,
            healthy,
            unhealthy,
        } = &spec.check;
        let mut group = self
            .object(Kind::TargetGroup, name, &spec.common)
            .with("port", port.node_port)
            .with("protocol", port.target_protocol)
            .with("health_check_protocol", *protocol)
            .with("health_check_interval", *interval)
            .with("health_check_port", check_port.as_str())
            .with("healthy_threshold", *healthy)
            .with("unhealthy_threshold", *unhealthy)
            .with("preserve_client_ip.enabled", Value::Null)
            .with(
                "proxy_protocol_v2.enabled",
                if spec.proxy_protocol { "true" } else { "false" },
            );
        if let Some(path) = path {
            group = group.with("health_check_path", path.as_str());
        }
        if let Some(codes) = codes {
            group = group.with("health_check_codes", codes.as_str());
        }
        if let Some(timeout) = timeout {
            group = group.with("health_check_timeout", *timeout);
        }
        for (attribute, value) in &spec.target_group_attributes {
            group = group.with(attribute, value.as_str());
        }
        match self.instances {
            Some(instances) => group.entries(TARGETS, targets(instances, port.node_port)),
            None => group,
        }
    }

    fn listener(&self, balancer: &str, group: &str, port: &PortSpec, spec: &NetworkSpec) -> Object<Kind> {
        let mut listener = self
            .object(Kind::Listener, &port.port.to_string(), &spec.common)
            .with("transport", port.transports().join("+"))
            .with("protocol", port.protocol)
            .with("target_group", group);
        let is_tls = port.protocol == "TLS";
        let mut certificates = spec.certificates.iter().filter(|_| is_tls);
        listener = listener.with("certificate", certificates.next().cloned());
        if is_tls {
            listener = listener.with("alpn_policy", spec.alpn_policy.clone());
            if let Some(policy) = &spec.ssl_policy {
                listener = listener.with("ssl_policy", policy.as_str());
            }
            let further: Vec<_> = certificates.cloned().map(Entry::Name).collect();
            // Certificates that people add by hand stay while the Service names only one.
            if !further.is_empty() {
                listener = listener.entries(CERTIFICATES, further);
            }
        }
        listener.parent = Some(balancer.to_owned());
        listener
    }
}

fn targets(instances: &BTreeSet<String>, port: u16) -> impl Iterator<Item = Entry> {
    instances.iter().map(move |instance| Entry::Target {
        instance: instance.clone(),
        port,
    })
}

/// Whether an object has this cluster's ownership tag.
pub(crate) fn has_owner_tag(object: &Object<Kind>, tag: &OwnershipTag) -> bool {
    let Some(ours) = tag.for_create() else {
        return false;
    };
    let ours = Entry::tag(OWNER_TAG, ours.as_str());
    object.set(TAGS).contains(&ours)
}

/// Who else an observed object belongs to: it is then neither changed nor deleted.
pub(crate) fn foreign(object: &Object<Kind>, cluster: &Cluster, tag: &OwnershipTag) -> Option<String> {
    let kind = object.text("type");
    if object.kind == Kind::Balancer && kind != "network" {
        return Some(format!("a load balancer of type {kind}"));
    }
    let tags = tag_map(object);
    if has_any_cluster(&tags) && !cluster.has(&tags) {
        return Some("another cluster's".to_owned());
    }
    match tag.ownership(tags.get(OWNER_TAG).map(String::as_str)) {
        Ownership::Foreign(cluster) => Some(format!("the cluster's with the UID {}", cluster.uid())),
        _ => None,
    }
}

fn is_owner_tag(entry: &Entry) -> bool {
    matches!(entry, Entry::Tag { key, .. } if key == OWNER_TAG)
}

type BalancerPlan = Plan<Change<Kind>>;

impl DesiredBalancer {
    /// The changes that are due.
    pub(crate) fn plan(&self, observed: &Observed) -> BalancerPlan {
        let objects = &observed.objects;
        let Some(desired) = &self.objects else {
            return diff(self.following(objects), observed, false);
        };
        let root = objects
            .all
            .iter()
            .find(|object| matches!(object.kind, Kind::Balancer | Kind::Classic));
        let without_groups = root.and_then(|root| self.without_groups(desired, root));
        let desired = self.adapted(desired, root, observed);
        let mut full = diff(desired.clone(), observed, true);
        full.blocked.extend(without_groups);
        let is_ours = root.is_none_or(|root| root.foreign.is_some() || has_owner_tag(root, &self.tag));
        if is_ours || self.changed || full.steps.is_empty() {
            return full;
        }
        // Upstream built it. As long as upstream would change nothing but targets, its other differences wait.
        let lean = diff(self.as_upstream(desired, objects), observed, false);
        if !lean.steps.iter().all(is_of_targets) {
            return full;
        }
        let mut plan = lean;
        let waits = full
            .steps
            .iter()
            .filter(|step| !is_of_targets(step) && !is_of_tags(step));
        plan.blocked = full.blocked;
        plan.blocked.extend(waits.map(|step| Blocked {
            service: self.service.clone(),
            field: format!("step \"{step}\" ({})", step.description.reason),
            have: "pending, since another program built the load balancer".to_owned(),
            want: "done before the Service's spec or annotations change".to_owned(),
        }));
        plan
    }

    /// What is observed, with the current instances.
    fn following(&self, observed: &Objects<Kind>) -> Vec<Object<Kind>> {
        let follow = |object: &Object<Kind>| {
            let mut same = Object::new(object.kind, object.key.clone());
            (same.parent, same.if_present) = (object.parent.clone(), true);
            same.service.clone_from(&self.service);
            let Some(instances) = &self.instances else {
                return same;
            };
            let port = object.attributes.get("port").and_then(Value::as_u64);
            match (object.kind, port.and_then(|port| u16::try_from(port).ok())) {
                (Kind::TargetGroup, Some(port)) => same.entries(TARGETS, targets(instances, port)),
                (Kind::Classic, _) => same.entries(INSTANCES, instances.iter().cloned().map(Entry::Name)),
                _ => same,
            }
        };
        observed.all.iter().map(follow).collect()
    }

    /// That a load balancer gets no security groups, since AWS adds none to one that was created without any.
    fn without_groups(&self, desired: &[Object<Kind>], root: &Object<Kind>) -> Option<Blocked> {
        let required = desired
            .iter()
            .find(|object| object.kind == root.kind)?
            .texts("security_groups");
        let is_without = is_without_groups(root) && root.foreign.is_none() && !required.is_empty();
        is_without.then(|| Blocked {
            service: self.service.clone(),
            field: format!("security groups of {}", root.title()),
            have: "none, and AWS adds none to a load balancer that was created without".to_owned(),
            want: required.join(", "),
        })
    }

    /// The desired objects, as far as they can be had on the load balancer that exists.
    fn adapted(
        &self,
        desired: &[Object<Kind>],
        root: Option<&Object<Kind>>,
        observed: &Observed,
    ) -> Vec<Object<Kind>> {
        let mut desired = desired.to_vec();
        let Some(root) = root else { return desired };
        if root.foreign.is_some() {
            // What belongs to it is of no use without it.
            desired.retain(|object| object.kind == root.kind);
            return desired;
        }
        if is_without_groups(root) {
            desired.retain(|object| object.kind != Kind::Group);
        }
        for object in &mut desired {
            let Some(have) = observed.objects.get(object.kind, &object.key) else {
                continue;
            };
            let denied = |action: &str| observed.denied.contains_key(action);
            if denied("DescribeTags") && object.kind != Kind::Group {
                object.sets.remove(TAGS);
            }
            if denied("DescribeTargetGroupAttributes") && object.kind == Kind::TargetGroup {
                object.attributes.retain(|name, _| !name.ends_with(".enabled"));
            }
            if denied("DescribeListenerCertificates") {
                object.sets.remove(CERTIFICATES);
            }
            if object.kind == Kind::Balancer {
                if is_without_groups(root) {
                    object.attributes.remove("security_groups");
                }
                // Zones are added and never removed; the subnet of a zone stays.
                let addresses = ["eip_allocations", "private_addresses"];
                let has_addresses = addresses.iter().any(|name| object.attributes.contains_key(name));
                let zones = have.texts("zones");
                let is_new = |place: &&Place| !has_addresses && !zones.contains(&place.zone.as_str());
                let new = self
                    .places
                    .iter()
                    .filter(is_new)
                    .map(|place| place.subnet.as_str());
                let subnets: Vec<_> = have.texts("subnets").into_iter().chain(new).collect();
                object.attributes.insert("subnets", subnets.into());
            }
            // Sets are compared, although lists are sent.
            for name in ["security_groups", "subnets"] {
                let set = |object: &Object<Kind>| {
                    object
                        .texts(name)
                        .into_iter()
                        .map(str::to_owned)
                        .collect::<BTreeSet<_>>()
                };
                if object.attributes.contains_key(name) && set(object) == set(have) {
                    object.attributes.insert(name, have.texts(name).into());
                }
            }
        }
        desired
    }

    /// The desired objects without what upstream would not change.
    fn as_upstream(&self, mut desired: Vec<Object<Kind>>, observed: &Objects<Kind>) -> Vec<Object<Kind>> {
        for object in &mut desired {
            if observed.get(object.kind, &object.key).is_none() {
                continue;
            }
            object
                .attributes
                .retain(|name, _| !self.fixes.contains(&(object.kind, *name)));
            object.sets.remove(TAGS);
            object.sets.remove(CERTIFICATES);
        }
        desired
    }
}

fn is_without_groups(root: &Object<Kind>) -> bool {
    root.kind == Kind::Balancer && root.texts("security_groups").is_empty()
}

fn is_of_targets(step: &Step<Change<Kind>>) -> bool {
    is_of_set(step, &[TARGETS, INSTANCES])
}

fn is_of_tags(step: &Step<Change<Kind>>) -> bool {
    is_of_set(step, &[TAGS])
}

fn is_of_set(step: &Step<Change<Kind>>, sets: &[&str]) -> bool {
    match &step.change.action {
        Action::Add(set, _) | Action::Remove(set, _) => sets.contains(&set.name),
        _ => false,
    }
}

/// The difference. Calls that are denied are blocked instead.
fn diff(objects: Vec<Object<Kind>>, observed: &Observed, adopt: bool) -> BalancerPlan {
    let desired = objects::Desired {
        objects,
        reason: "no Service needs it",
        ..objects::Desired::default()
    };
    let mut plan = if adopt {
        desired.diff_and_adopt(&observed.objects, is_owner_tag)
    } else {
        desired.diff(&observed.objects)
    };
    let (steps, denied): (Vec<_>, Vec<_>) = plan
        .steps
        .into_iter()
        .partition(|step| !observed.denied.contains_key(step.description.label));
    plan.steps = steps;
    plan.blocked.extend(denied.into_iter().map(|step| {
        Blocked {
            service: step.description.service.clone(),
            have: observed
                .denied
                .get(step.description.label)
                .cloned()
                .unwrap_or_default(),
            want: "done".to_owned(),
            field: format!("step \"{step}\""),
        }
    }));
    plan.blocked = together(plan.blocked);
    plan
}

/// One difference for all that stay for the same reason: 300 rules that do not fit are reported once.
fn together(blocked: Vec<Blocked>) -> Vec<Blocked> {
    let mut all: Vec<(Blocked, usize)> = Vec::new();
    for mut one in blocked {
        // Each call has another id.
        if let Some((text, _)) = one.have.split_once(", request_id=") {
            one.have = format!("{text})");
        }
        let same = |(known, _): &&mut (Blocked, usize)| {
            (&known.have, &known.want, &known.service) == (&one.have, &one.want, &one.service)
        };
        match all.iter_mut().find(same) {
            Some((_, more)) => *more += 1,
            None => all.push((one, 0)),
        }
    }
    let named = all.into_iter().map(|(mut one, more)| {
        if more > 0 {
            one.field = format!("{} (and {more} more)", one.field);
        }
        one
    });
    named.collect()
}

/// The rules that the security groups of nodes should have.
#[derive(Debug, Default)]
pub(crate) struct DesiredRules {
    /// By security group of the nodes of active members: their rules, in the order of members.
    pub(crate) required: BTreeMap<String, Vec<Rule>>,
    /// Load balancers whose rules stay as they are.
    pub(crate) frozen: BTreeSet<String>,
    /// Load balancers whose rules stay only if they are required.
    pub(crate) managed: BTreeSet<String>,
    /// Security groups of classic load balancers from which rules stay only if they are required.
    pub(crate) managed_sources: BTreeSet<String>,
}

impl DesiredRules {
    /// The changes that are due. A rule is removed only if it names a managed load balancer.
    pub(crate) fn plan(&self, observed: &Observed) -> BalancerPlan {
        let groups = observed.objects.of(Kind::NodeGroup).map(|group| {
            let have: Vec<_> = group.set(RULES).iter().filter_map(Entry::rule).collect();
            let required = self
                .required
                .get(&group.key)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let rules = self.rules(required, &have).into_values().map(Entry::Rule);
            Object::new(Kind::NodeGroup, group.key.clone()).entries(RULES, rules)
        });
        diff(groups.collect(), observed, false)
    }

    /// All rules of a group by their tuples: those that are required, and those that stay.
    fn rules(&self, required: &[Rule], have: &[&Rule]) -> BTreeMap<Rule, Rule> {
        let mut rules: BTreeMap<Rule, Rule> = BTreeMap::new();
        for rule in required {
            // Of several load balancers that want a rule, the one keeps it that has it.
            let keeps = have.contains(&rule);
            let entry = rules.entry(rule.tuple()).or_insert_with(|| rule.clone());
            if keeps {
                entry.clone_from(rule);
            }
        }
        for rule in have {
            let stays = match rule.balancer() {
                Some(name) => self.frozen.contains(name) || !self.managed.contains(name),
                None if rule.is_from_group() => !self.managed_sources.contains(&rule.source),
                None => !rule.description.starts_with(RULE_PREFIX),
            };
            if stays {
                rules.insert(rule.tuple(), (*rule).clone());
            }
        }
        let is_client = |rule: &&Rule| rule.balancer().is_some() && rule.description.contains("/client=");
        let clients: BTreeSet<_> = rules
            .values()
            .filter(is_client)
            .map(|rule| rule.source.clone())
            .collect();
        for source in clients {
            let rule = Rule::mtu(&source, MTU);
            rules.entry(rule.tuple()).or_insert(rule);
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(port: i32, source: &str, balancer: &str) -> Rule {
        Rule::new(
            "tcp",
            (port, port),
            source,
            &format!("{RULE_PREFIX}client={balancer}"),
        )
    }

    /// The rules after the plan, and how many steps it has.
    fn apply(desired: &DesiredRules, have: &[Rule]) -> (Vec<String>, usize) {
        let group = Object {
            id: "sg-1".to_owned(),
            ..Object::new(Kind::NodeGroup, "sg-1").entries(RULES, have.iter().cloned().map(Entry::Rule))
        };
        let mut observed = Observed {
            objects: [group].into_iter().collect(),
            ..Observed::default()
        };
        let plan = desired.plan(&observed);
        for step in &plan.steps {
            observed.objects.fold(&step.change, None);
        }
        assert_eq!(desired.plan(&observed).steps, [], "the plan has an end");
        let rules = observed.objects.all.iter().flat_map(|group| group.set(RULES));
        let rules = rules.filter_map(Entry::rule).map(|rule| {
            let end = rule.description.rsplit('/').next().unwrap_or_default();
            format!(
                "{} {}-{} {} {end}",
                rule.protocol, rule.from, rule.to, rule.source
            )
        });
        let mut rules: Vec<_> = rules.collect();
        rules.sort();
        (rules, plan.steps.len())
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn required(rules: &[Rule]) -> BTreeMap<String, Vec<Rule>> {
        [("sg-1".to_owned(), rules.to_vec())].into()
    }

    const ALL: &str = "0.0.0.0/0";

    #[test]
    fn a_rule_stays_while_one_load_balancer_wants_it_and_then_names_the_next() {
        let (a, b) = (client(10256, ALL, "a"), client(10256, ALL, "b"));
        let have = [a.clone(), Rule::mtu(ALL, MTU)];
        let both = DesiredRules {
            required: required(&[b.clone(), a.clone()]),
            managed: names(&["a", "b"]),
            ..DesiredRules::default()
        };
        assert_eq!(
            apply(&both, &have),
            (
                vec![
                    format!("icmp 3-4 {ALL} mtu"),
                    format!("tcp 10256-10256 {ALL} client=a")
                ],
                0
            )
        );
        let left = DesiredRules {
            required: required(&[b]),
            ..both
        };
        assert_eq!(
            apply(&left, &have),
            (
                vec![
                    format!("icmp 3-4 {ALL} mtu"),
                    format!("tcp 10256-10256 {ALL} client=b")
                ],
                1
            )
        );
        let none = DesiredRules {
            required: BTreeMap::new(),
            ..left
        };
        assert_eq!(apply(&none, &have), (vec![], 1));
    }

    #[test]
    fn rules_of_others_stay_and_count() {
        let ssh = Rule::new("tcp", (22, 22), ALL, "ssh");
        let http = Rule::new("tcp", (30080, 30080), ALL, "by hand");
        let theirs = client(31000, "10.0.0.0/8", "x");
        let have = [
            ssh,
            http,
            theirs,
            Rule::mtu("10.0.0.0/8", MTU),
            Rule::mtu("192.168.0.0/16", MTU),
        ];
        let desired = DesiredRules {
            required: required(&[client(30080, ALL, "a")]),
            managed: names(&["a"]),
            ..DesiredRules::default()
        };
        let expected = [
            "icmp 3-4 10.0.0.0/8 mtu",
            "tcp 22-22 0.0.0.0/0 ssh",
            "tcp 30080-30080 0.0.0.0/0 by hand",
            "tcp 31000-31000 10.0.0.0/8 client=x",
        ];
        assert_eq!(apply(&desired, &have), (expected.map(str::to_owned).to_vec(), 1));
    }

    #[test]
    fn rules_of_a_frozen_load_balancer_stay() {
        let have = [client(1, ALL, "a"), client(2, ALL, "b"), Rule::mtu(ALL, MTU)];
        let desired = DesiredRules {
            frozen: names(&["a"]),
            managed: names(&["a", "b"]),
            ..DesiredRules::default()
        };
        let expected = ["icmp 3-4 0.0.0.0/0 mtu", "tcp 1-1 0.0.0.0/0 client=a"];
        assert_eq!(apply(&desired, &have), (expected.map(str::to_owned).to_vec(), 1));
    }

    #[test]
    fn rules_from_the_groups_of_classic_load_balancers_go_with_them() {
        let from = |source| Rule::new("-1", (-1, -1), source, "");
        let have = [from("sg-mine"), from("sg-peer")];
        let desired = DesiredRules {
            managed_sources: names(&["sg-mine"]),
            ..DesiredRules::default()
        };
        assert_eq!(apply(&desired, &have), (vec!["-1 -1--1 sg-peer ".to_owned()], 1));
    }
}
