//! The desired state of a load balancer, and the plan from the observed state to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{Blocked, ClusterView, NodeLeftOut, Ownership, OwnershipTag, ServiceId, ServiceView},
    plan::objects::{self, Action, Attributes},
    plan::{Plan, Step},
};
use serde_json::Value;

use super::{
    adoption, fields,
    kinds::{
        CERTIFICATES, DESCRIBE_LISTENER_CERTIFICATES, DESCRIBE_TAGS, DESCRIBE_TARGET_GROUP_ATTRIBUTES,
        INSTANCES, OWNER_TAG, Object, ObjectChange, ObjectKind, Objects, RECORD_TAG, RULES, Rule, SetEntry,
        TAGS, TARGETS, tag_map, texts,
    },
    model::{ChangeReply, Model},
    names,
    spec::{ADDRESSES, PortSpec, Spec, transports},
};
use crate::{
    client::ec2::Subnet,
    site::{Cluster, SERVICE_NAME, has_any_cluster},
};

/// The desired state of a load balancer. By default it is left unchanged.
#[derive(Debug, Default)]
pub(crate) struct DesiredBalancer {
    /// All objects, without their targets; `None`: they stay unchanged, except for their targets.
    pub(crate) objects: Option<Vec<Object>>,
    /// The target instances; `None`: targets stay unchanged.
    pub(crate) instances: Option<BTreeSet<String>>,
    /// Nodes that are not targets, because their instances lack the cluster's tag.
    pub(crate) untagged: Vec<NodeLeftOut>,
    /// The subnets; an existing load balancer gets those in new zones.
    pub(crate) subnets: Vec<Subnet>,
    /// Attributes of target groups that the Service names, and that upstream sets, too.
    pub(crate) named: Vec<&'static str>,
    /// Attributes that no annotation names, and that only new objects get.
    pub(crate) defaulted: BTreeSet<&'static str>,
    /// Named attributes that the Service named when this process observed it first, and no longer names.
    pub(crate) unnamed: BTreeSet<&'static str>,
    /// The values to which named attributes are reset, where the schema has none.
    pub(crate) defaults: Attributes,
    /// The annotations without an effect, with their values.
    pub(crate) without_effect: Vec<(&'static str, String)>,
    /// Attributes of the load balancer that stay if they have these values.
    pub(crate) kept: Attributes,
    /// Whether target groups keep the protocol, port and path of their health checks, since the config does not tell them.
    pub(crate) keeps_check: bool,
    /// Whether listeners keep their certificates, since the annotation has no effect.
    pub(crate) keeps_certificates: bool,
    /// Whether the PROXY protocol may have been enabled by the annotation that no longer enables it.
    pub(crate) keeps_proxy: bool,
    /// Whether the Service changed while this process ran.
    pub(crate) changed: bool,
    /// The cluster's ownership tag.
    pub(crate) tag: OwnershipTag,
    /// The Service.
    pub(crate) service: Option<ServiceId>,
}

/// The observed state of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedPart {
    pub(crate) objects: Objects,
    /// Actions that the credentials do not allow, with the error. Their steps are blocked.
    pub(crate) denied: BTreeMap<&'static str, String>,
}

impl ObservedPart {
    /// Applies a change, or records that the credentials do not allow it.
    pub(crate) fn fold(&mut self, change: &ObjectChange, reply: Option<&ChangeReply>) {
        match reply.and_then(|reply| reply.denied.clone()) {
            Some((action, why)) => {
                self.denied.insert(action, why);
            }
            None => self.objects.fold(change, reply.map(|reply| &reply.objects)),
        }
    }

    /// The load balancer, of either kind.
    pub(crate) fn balancer(&self) -> Option<&Object> {
        let network = self.objects.of(ObjectKind::Balancer).next();
        network.or_else(|| self.objects.of(ObjectKind::Classic).next())
    }
}

/// Builds the objects of a Service, without their targets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectBuilder<'a> {
    pub(crate) model: &'a Model,
    pub(crate) cluster: &'a ClusterView,
    pub(crate) service: &'a ServiceView,
    pub(crate) spec: &'a Spec,
    /// The subnets of a new load balancer.
    pub(crate) subnets: &'a [Subnet],
}

impl ObjectBuilder<'_> {
    /// An object with the Service's tags.
    fn object(&self, kind: ObjectKind, key: &str) -> Object {
        let mut own_tags = self.spec.tags.clone();
        if kind != ObjectKind::Group {
            own_tags.insert(SERVICE_NAME.to_owned(), names::service_tag(&self.service.id));
        }
        let mut tags = self.model.cluster.tags(&own_tags);
        if let Some(owner) = self.cluster.ownership_tag.for_create() {
            tags.insert(OWNER_TAG.to_owned(), owner.as_str().to_owned());
        }
        let entries = tags.iter().map(|(key, value)| SetEntry::tag(key, value));
        Object {
            service: Some(self.service.id.clone()),
            ..Object::new(kind, key).entries(TAGS, entries)
        }
    }

    /// A load balancer and, unless the Service names others, its own security group.
    pub(super) fn balancer(&self, kind: ObjectKind, group: String, about: &str) -> (Object, Option<Object>) {
        let spec = self.spec;
        let scheme = if spec.internal {
            "internal"
        } else {
            "internet-facing"
        };
        let mut balancer = self.object(kind, &names::balancer(&self.service.id)).with(fields::SCHEME, scheme);
        balancer.attributes.extend(spec.balancer.clone());
        if !self.subnets.is_empty() {
            let subnets: Vec<_> = self.subnets.iter().map(|subnet| &*subnet.id).collect();
            balancer = balancer.with(fields::SUBNETS, subnets);
        }
        if kind == ObjectKind::Balancer && !self.model.settings.managed_security_groups {
            return (balancer, None);
        }
        let mut groups = spec.security_groups.clone();
        let mut own = None;
        if groups.is_empty() {
            own = Some(self.group(&group, about));
            groups.push(group);
        }
        groups.extend(spec.extra_groups.iter().cloned());
        (balancer.with(fields::SECURITY_GROUPS, groups), own)
    }

    /// A security group that lets clients reach the load balancer.
    fn group(&self, name: &str, about: &str) -> Object {
        let mut rules = Vec::new();
        for range in &self.spec.ranges {
            for port in &self.spec.ports {
                let number = i32::from(port.port);
                for transport in transports(port.protocol) {
                    rules.push(Rule::new(transport, (number, number), range, ""));
                }
            }
            rules.push(Rule::mtu(range, ""));
        }
        self.object(ObjectKind::Group, name)
            .with(fields::DESCRIPTION, about)
            .entries(RULES, rules.into_iter().map(SetEntry::Rule))
    }

    /// A listener with the fields of both kinds.
    pub(super) fn listener(&self, kind: ObjectKind, port: &PortSpec) -> Object {
        let mut listener = self
            .object(kind, &port.port.to_string())
            .with(fields::PROTOCOL, port.protocol)
            .with(fields::CERTIFICATE, Value::Null);
        if port.is_secure() {
            listener.attributes.extend(self.spec.listener.clone());
        }
        listener.parent = Some(names::balancer(&self.service.id));
        listener
    }

    /// All objects of a network load balancer.
    pub(crate) fn network(&self) -> Vec<Object> {
        let id = &self.service.id;
        let group_name = names::group(&self.cluster.name, id);
        let (balancer, group) = self.balancer(ObjectKind::Balancer, group_name, names::MANAGED);
        let mut objects: Vec<_> = group.into_iter().chain([balancer]).collect();
        let target_groups = self.spec.target_group_names(&self.model.cluster.id, id);
        for (port, name) in self.spec.ports.iter().zip(target_groups) {
            let mut target_group = self
                .object(ObjectKind::TargetGroup, &name)
                .with(fields::PORT, port.node_port)
                .with(fields::PROTOCOL, port.target_protocol);
            target_group.attributes.extend(self.spec.target_group.clone());
            objects.push(target_group);
            objects.push(self.network_listener(name, port));
        }
        objects
    }

    fn network_listener(&self, group: String, port: &PortSpec) -> Object {
        let listener = self
            .listener(ObjectKind::Listener, port)
            .with(fields::TARGET_GROUP, group)
            .with(fields::TRANSPORT, transports(port.protocol).join("+"));
        // Certificates that users add manually stay while the Service names only one.
        if port.is_secure() && self.spec.certificates.len() > 1 {
            let further = self.spec.certificates.iter().skip(1).cloned();
            return listener.entries(CERTIFICATES, further.map(SetEntry::Name));
        }
        listener
    }
}

/// Whether an object has this cluster's ownership tag.
pub(crate) fn has_owner_tag(object: &Object, tag: &OwnershipTag) -> bool {
    tag.for_create()
        .is_some_and(|ours| object.set(TAGS).contains(&SetEntry::tag(OWNER_TAG, ours.as_str())))
}

/// The other owner of an observed object, which is neither changed nor deleted.
pub(crate) fn foreign(object: &Object, cluster: &Cluster, tag: &OwnershipTag) -> Option<String> {
    let kind = object.text(fields::TYPE);
    if object.kind == ObjectKind::Balancer && kind != "network" {
        return Some(format!("a load balancer of type {kind}"));
    }
    let tags = tag_map(object);
    if has_any_cluster(&tags) && !cluster.has(&tags) {
        return Some("of another cluster".to_owned());
    }
    match tag.ownership(tags.get(OWNER_TAG).map(String::as_str)) {
        Ownership::Foreign(cluster) => Some(format!("of the cluster with the UID {}", cluster.uid())),
        _ => None,
    }
}

/// Whether an entry is an ownership tag, or the record beside it.
pub(super) fn is_owner_tag(entry: &SetEntry) -> bool {
    matches!(entry, SetEntry::Tag { key, .. } if key == OWNER_TAG || key == RECORD_TAG)
}

impl DesiredBalancer {
    /// The plan from the observed to the desired state.
    pub(crate) fn plan(&self, observed: &ObservedPart) -> Plan<ObjectChange> {
        let objects = &observed.objects;
        let Some(mut desired) = self.objects.clone() else {
            let unchanged = objects.all.iter().map(|object| self.unchanged(object));
            return diff(unchanged.collect(), observed, false);
        };
        for object in &mut desired {
            object.sets.extend(self.targets(object));
        }
        let (mut desired, without_groups) = self.adapted(desired, observed);
        let mut stays = Plan::default();
        let last = self.manage_named_attributes(&mut desired, observed, &mut stays);
        let mut full = diff(desired.clone(), observed, true);
        full.steps.extend(last);
        full.blocked.extend(without_groups);
        full.blocked.extend(stays.blocked);
        for (key, value) in &self.without_effect {
            full.blocked.push(adoption::warning(self.service.as_ref(), key, value));
        }
        let root = observed.balancer();
        let is_ours = root.is_none_or(|root| root.foreign.is_some() || has_owner_tag(root, &self.tag));
        if is_ours || self.changed || full.steps.is_empty() {
            return full;
        }
        // Upstream created it: differences that upstream would not repair are pending.
        let mut limited = diff(self.as_upstream(desired, objects), observed, false);
        limited.blocked = full.blocked;
        let why = if observed.denied.contains_key(DESCRIBE_TAGS) {
            "its tags, which show whether this program created it, cannot be read"
        } else {
            "another program created the load balancer"
        };
        for step in &full.steps {
            let is_sent = limited.steps.iter().any(|other| other.change == step.change);
            if !is_sent && !is_of_set(step, &[TARGETS, INSTANCES, TAGS]) {
                limited.blocked.push(Blocked {
                    service: self.service.clone(),
                    field: format!("step \"{step}\" ({})", step.description.reason),
                    observed: format!("pending: {why}"),
                    desired: "applied when the Service's spec or annotations change".to_owned(),
                });
            }
        }
        limited
    }

    /// An observed object that is left unchanged, except for its targets.
    fn unchanged(&self, object: &Object) -> Object {
        let mut same = Object {
            parent: object.parent.clone(),
            if_present: true,
            service: self.service.clone(),
            ..Object::new(object.kind, object.key.clone())
        };
        same.sets.extend(self.targets(object));
        same
    }

    /// The current instances as the set of an object's targets; `None`: it has no targets, or they stay unchanged.
    fn targets(&self, object: &Object) -> Option<(&'static str, Arc<[SetEntry]>)> {
        let instances = self.instances.as_ref()?.iter().cloned();
        match object.kind {
            ObjectKind::Classic => Some((INSTANCES, instances.map(SetEntry::Name).collect())),
            ObjectKind::TargetGroup => {
                let number = object.attributes.get(fields::PORT).and_then(Value::as_u64)?;
                let port = u16::try_from(number).ok()?;
                Some((TARGETS, instances.map(|instance| SetEntry::Target { instance, port }).collect()))
            }
            _ => None,
        }
    }

    /// Drops the security groups of a load balancer that was created without any, since AWS cannot add them.
    fn drop_groups(&self, desired: &mut Vec<Object>, root: &Object) -> Option<Blocked> {
        if root.kind != ObjectKind::Balancer || !root.texts(fields::SECURITY_GROUPS).is_empty() {
            return None;
        }
        desired.retain(|object| object.kind != ObjectKind::Group);
        let balancer = desired.iter_mut().find(|object| object.kind == root.kind)?;
        let required = balancer.texts(fields::SECURITY_GROUPS).join(", ");
        balancer.attributes.remove(fields::SECURITY_GROUPS);
        if required.is_empty() {
            return None;
        }
        Some(Blocked {
            service: self.service.clone(),
            field: format!("security groups of {}", root.title()),
            observed: "none; AWS cannot add any to a load balancer that was created without them".to_owned(),
            desired: required,
        })
    }

    /// The desired objects as far as the existing load balancer supports them, and what is blocked.
    fn adapted(&self, mut desired: Vec<Object>, observed: &ObservedPart) -> (Vec<Object>, Option<Blocked>) {
        let Some(root) = observed.balancer() else {
            return (desired, None);
        };
        if root.foreign.is_some() {
            // Children are not created without the load balancer.
            desired.retain(|object| object.kind == root.kind);
            return (desired, None);
        }
        let blocked = self.drop_groups(&mut desired, root);
        let mut balancers = desired.iter().filter(|object| object.kind == root.kind);
        if balancers.any(|balancer| !balancer.attributes.contains_key(fields::SECURITY_GROUPS)) {
            // It was created in another `NLBSecurityGroupMode`, and its groups cannot be deleted while they are attached.
            let attached = root.texts(fields::SECURITY_GROUPS);
            for group in observed.objects.of(ObjectKind::Group) {
                if attached.contains(&group.key.as_str()) {
                    desired.push(self.unchanged(group));
                }
            }
        }
        self.keep_target_groups(&mut desired, &observed.objects);
        for object in &mut desired {
            if let Some(current) = observed.objects.get(object.kind, &object.key) {
                leave_out_unreadable(object, observed);
                self.adapt(object, current);
            }
        }
        (desired, blocked)
    }

    /// Keeps the target groups that listeners use, unless upstream would replace them. Those of old releases have other names.
    fn keep_target_groups(&self, desired: &mut [Object], observed: &Objects) {
        for pair in with_target_groups(desired) {
            let Ok([group, listener]) = desired.get_disjoint_mut(pair) else {
                continue;
            };
            let Some(current) = observed.get(ObjectKind::Listener, &listener.key) else {
                continue;
            };
            let Some(used) = observed.get(ObjectKind::TargetGroup, current.text(fields::TARGET_GROUP)) else {
                continue;
            };
            if self.keeps_check {
                for name in CHECK_OF_MODE {
                    match used.attributes.get(name) {
                        Some(value) => group.attributes.insert(name, value.clone()),
                        None => group.attributes.remove(name),
                    };
                }
            }
            let mut compared = REPLACED_BY_UPSTREAM.iter();
            let is_same = compared.all(|name| used.attributes.get(name) == group.attributes.get(name));
            if is_same && used.foreign.is_none() {
                group.key.clone_from(&used.key);
                listener.attributes.insert(fields::TARGET_GROUP, used.key.as_str().into());
            }
        }
    }

    /// Gives a desired object the values of the existing one that stay or mean the same.
    fn adapt(&self, object: &mut Object, current: &Object) {
        if object.kind == ObjectKind::Balancer {
            object.attributes.insert(fields::SUBNETS, self.extended_subnets(object, current).into());
        }
        if object.kind == ObjectKind::ClassicListener {
            // Upstream ignores the case of ASCII letters.
            for name in [fields::PROTOCOL, fields::INSTANCE_PROTOCOL, fields::CERTIFICATE] {
                let current = current.text(name);
                if !current.is_empty() && object.text(name).eq_ignore_ascii_case(current) {
                    object.attributes.insert(name, current.into());
                }
            }
        }
        let certificate = current.text(fields::CERTIFICATE);
        if self.keeps_certificates && !certificate.is_empty() {
            object.attributes.insert(fields::CERTIFICATE, certificate.into());
        }
        if object.kind == ObjectKind::Balancer {
            for (name, value) in &self.kept {
                if current.attributes.get(name) == Some(value) {
                    object.attributes.insert(name, value.clone());
                }
            }
        }
        // Sets are compared, although lists are sent.
        for name in [fields::SECURITY_GROUPS, fields::SUBNETS] {
            let is_same = texts::<BTreeSet<_>>(object, name) == texts(current, name);
            if is_same && object.attributes.contains_key(name) {
                object.attributes.insert(name, current.texts(name).into());
            }
        }
    }

    /// The subnets of an existing load balancer, and those in new zones. Zones are added and never removed; the subnet of a zone
    /// stays.
    fn extended_subnets<'a>(&'a self, object: &Object, current: &'a Object) -> Vec<&'a str> {
        let mut subnets = current.texts(fields::SUBNETS);
        if ADDRESSES.iter().any(|(name, _)| object.attributes.contains_key(name)) {
            return subnets;
        }
        let zones = current.texts(fields::ZONES);
        let needs_v6 = current.text(fields::IP_ADDRESS_TYPE) == "dualstack";
        for subnet in &self.subnets {
            if (!needs_v6 || subnet.has_v6()) && !zones.contains(&subnet.zone.as_str()) {
                subnets.push(&subnet.id);
            }
        }
        subnets
    }

    /// The desired objects without the fields that upstream would not change.
    fn as_upstream(&self, mut desired: Vec<Object>, observed: &Objects) -> Vec<Object> {
        for object in &mut desired {
            let Some(current) = observed.get(object.kind, &object.key) else {
                continue;
            };
            if object.replaces(current) {
                continue;
            }
            let kind = object.kind;
            object
                .attributes
                .retain(|name, _| is_of_upstream(kind, name) || self.named.contains(name));
            object.sets.remove(TAGS);
            object.sets.remove(CERTIFICATES);
        }
        desired
    }
}

/// The attributes of a target group that the mode of health checks sets.
const CHECK_OF_MODE: [&str; 3] = [
    fields::HEALTH_CHECK_PROTOCOL,
    fields::HEALTH_CHECK_PORT,
    fields::HEALTH_CHECK_PATH,
];

/// The attributes of a target group because of which upstream creates another one.
const REPLACED_BY_UPSTREAM: [&str; 4] = [
    fields::PORT,
    fields::PROTOCOL,
    fields::HEALTH_CHECK_PROTOCOL,
    fields::HEALTH_CHECK_INTERVAL,
];

/// The places of each listener's target group and of the listener.
pub(super) fn with_target_groups(desired: &[Object]) -> Vec<[usize; 2]> {
    let mut pairs = Vec::new();
    for (at, listener) in desired.iter().enumerate() {
        if listener.kind == ObjectKind::Listener {
            let name = listener.text(fields::TARGET_GROUP);
            let mut objects = desired.iter();
            let group =
                objects.position(|object| object.kind == ObjectKind::TargetGroup && object.key == name);
            pairs.extend(group.map(|group| [group, at]));
        }
    }
    pairs
}

/// Leaves out what the credentials do not allow to read.
fn leave_out_unreadable(object: &mut Object, observed: &ObservedPart) {
    let denied = &observed.denied;
    if denied.contains_key(DESCRIBE_TAGS) && object.kind != ObjectKind::Group {
        object.sets.remove(TAGS);
    }
    if denied.contains_key(DESCRIBE_TARGET_GROUP_ATTRIBUTES) && object.kind == ObjectKind::TargetGroup {
        object.attributes.retain(|name, _| !name.ends_with(".enabled"));
    }
    if denied.contains_key(DESCRIBE_LISTENER_CERTIFICATES) {
        object.sets.remove(CERTIFICATES);
    }
}

/// Whether upstream changes an attribute of an object that exists.
fn is_of_upstream(kind: ObjectKind, attribute: &str) -> bool {
    match (kind, attribute) {
        (ObjectKind::Balancer, fields::SECURITY_GROUPS | fields::CROSS_ZONE_ENABLED) => true,
        (ObjectKind::Balancer, _) => attribute.starts_with("access_logs."),
        (
            ObjectKind::TargetGroup,
            fields::HEALTH_CHECK_PORT | fields::HEALTH_CHECK_PATH | fields::HEALTHY_THRESHOLD,
        ) => true,
        (ObjectKind::TargetGroup, _) | (ObjectKind::Listener, fields::ALPN_POLICY) => false,
        _ => true,
    }
}

fn is_of_set(step: &Step<ObjectChange>, sets: &[&str]) -> bool {
    match &step.change.action {
        Action::Add(set, _) | Action::Remove(set, _) => sets.contains(&set.name),
        _ => false,
    }
}

/// The difference. Calls that are denied are blocked instead.
pub(super) fn diff(objects: Vec<Object>, observed: &ObservedPart, adopt: bool) -> Plan<ObjectChange> {
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
    plan.steps.retain(|step| {
        let Some(why) = observed.denied.get(step.description.label) else {
            return true;
        };
        plan.blocked.push(Blocked {
            service: step.description.service.clone(),
            observed: why.clone(),
            desired: "done".to_owned(),
            field: format!("step \"{step}\""),
        });
        false
    });
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_balancer::kinds::ATTRIBUTES_TAG;

    /// The desired objects beside a load balancer that exists, adapted to the observed ones.
    fn adapted(desired: &DesiredBalancer, observed: &[Object]) -> Vec<Object> {
        let objects = observed.iter().cloned().collect();
        let denied = BTreeMap::new();
        let all = desired.objects.clone().unwrap_or_default();
        desired.adapted(all, &ObservedPart { objects, denied }).0
    }

    #[test]
    fn a_target_group_with_another_name_stays_unless_upstream_would_replace_it() {
        let group = |name: &str, interval: u16| {
            let group = Object::new(ObjectKind::TargetGroup, name).with(fields::PORT, 30080);
            let group = group.with(fields::PROTOCOL, "TCP").with(fields::HEALTH_CHECK_PROTOCOL, "TCP");
            group.with(fields::HEALTH_CHECK_INTERVAL, interval)
        };
        let listener = |name: &str| Object::new(ObjectKind::Listener, "80").with(fields::TARGET_GROUP, name);
        let foreign = Object {
            foreign: Some("of another cluster".to_owned()),
            ..group("old", 30)
        };
        for (old, kept) in [
            (group("old", 30), "old"),
            (group("old", 10), "new"),
            (foreign, "new"),
        ] {
            let desired = DesiredBalancer {
                objects: Some(vec![group("new", 30), listener("new")]),
                ..DesiredBalancer::default()
            };
            let observed = [Object::new(ObjectKind::Balancer, "a"), old, listener("old")];
            assert_eq!(adapted(&desired, &observed), [group(kept, 30), listener(kept)]);
        }
    }

    #[test]
    fn a_listener_keeps_its_target_group_wherever_both_are_in_the_list() {
        let group = |name: &str| Object::new(ObjectKind::TargetGroup, name).with(fields::PORT, 30080);
        let listener = |name: &str| Object::new(ObjectKind::Listener, "80").with(fields::TARGET_GROUP, name);
        let other = Object::new(ObjectKind::Listener, "81").with(fields::TARGET_GROUP, "other");
        let desired = DesiredBalancer {
            objects: Some(vec![listener("new"), group("other"), other.clone(), group("new")]),
            ..DesiredBalancer::default()
        };
        let observed = [
            Object::new(ObjectKind::Balancer, "a"),
            group("old"),
            listener("old"),
        ];
        let expected = [listener("old"), group("other"), other, group("old")];
        assert_eq!(adapted(&desired, &observed), expected);
    }

    #[test]
    fn a_listener_that_is_replaced_while_another_program_owns_it_has_all_fields() {
        let listener =
            |transport: &str| Object::new(ObjectKind::Listener, "80").with(fields::TRANSPORT, transport);
        let listener = |transport: &str| Object {
            parent: Some("a".to_owned()),
            ..listener(transport)
        };
        let balancer = Object::new(ObjectKind::Balancer, "a");
        let new = listener("tls").with(fields::ALPN_POLICY, "HTTP2Only");
        let team = SetEntry::tag("team", "web");
        let desired = new.clone().entries(TAGS, [team.clone()]);
        let new = new.entries(TAGS, [team, SetEntry::tag(ATTRIBUTES_TAG, fields::ALPN_POLICY)]);
        let desired = DesiredBalancer {
            objects: Some(vec![balancer.clone(), desired]),
            ..DesiredBalancer::default()
        };
        let objects = [balancer.with(fields::TYPE, "network"), listener("udp")].into_iter().collect();
        let plan = desired.plan(&ObservedPart {
            objects,
            ..ObservedPart::default()
        });
        let actions: Vec<_> = plan.steps.into_iter().map(|step| step.change.action).collect();
        assert_eq!(actions, [Action::Delete(false), Action::Create(Box::new(new), Vec::new())]);
    }

    #[test]
    fn the_case_of_a_classic_certificate_is_that_of_the_listener() {
        let listener =
            |arn: &str| Object::new(ObjectKind::ClassicListener, "443").with(fields::CERTIFICATE, arn);
        for (desired, kept) in [("arn:AB", "arn:ab"), ("arn:b", "arn:b")] {
            let desired = DesiredBalancer {
                objects: Some(vec![listener(desired)]),
                ..DesiredBalancer::default()
            };
            let observed = [Object::new(ObjectKind::Classic, "a"), listener("arn:ab")];
            assert_eq!(adapted(&desired, &observed), [listener(kept)]);
        }
    }

    #[test]
    fn subnets_in_new_zones_have_the_address_families_of_the_load_balancer() {
        let subnet = |zone: &str, cidr: &str| Subnet {
            id: format!("subnet-{zone}"),
            zone: zone.to_owned(),
            cidrs: vec![cidr.to_owned()],
            ..Subnet::default()
        };
        for (family, expected) in [("dualstack", "subnet-c"), ("ipv4", "subnet-b subnet-c")] {
            let balancer = Object::new(ObjectKind::Balancer, "a").with(fields::IP_ADDRESS_TYPE, family);
            let desired = DesiredBalancer {
                objects: Some(vec![balancer.clone()]),
                subnets: vec![subnet("b", "10.0.0.0/24"), subnet("c", "2001:db8::/64")],
                ..DesiredBalancer::default()
            };
            let objects = adapted(&desired, &[balancer]);
            assert_eq!(objects[0].texts(fields::SUBNETS).join(" "), expected);
        }
    }
}
