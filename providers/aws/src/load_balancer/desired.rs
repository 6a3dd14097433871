//! The desired state of a load balancer, and the plan from the observed state to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{Blocked, ClusterView, Ownership, OwnershipTag, ServiceId, ServiceView},
    plan::objects::{self, Action},
    plan::{Plan, Step},
};
use serde_json::Value;

use super::{
    kinds::{
        CERTIFICATES, Change, Entry, INSTANCES, Kind, OWNER_TAG, Object, Objects, RULES, Rule, TAGS, TARGETS,
        tag_map, texts,
    },
    model::{Model, Reply},
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
    /// Instances that are no targets, since they lack the cluster's tag.
    pub(crate) untagged: BTreeSet<String>,
    /// The subnets; an existing load balancer gets those in new zones.
    pub(crate) subnets: Vec<Subnet>,
    /// Attributes of target groups that the Service names.
    pub(crate) named: Vec<&'static str>,
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
    pub(crate) objects: Objects,
    /// Actions that the credentials do not allow, with the error. Their steps are blocked.
    pub(crate) denied: BTreeMap<&'static str, String>,
}

impl Observed {
    /// Applies a change, or records that the credentials do not allow it.
    pub(crate) fn fold(&mut self, change: &Change, reply: Option<&Reply>) {
        match reply.and_then(|reply| reply.denied.clone()) {
            Some((action, why)) => drop(self.denied.insert(action, why)),
            None => self.objects.fold(change, reply.map(|reply| &reply.objects)),
        }
    }

    /// The load balancer, of either kind.
    pub(crate) fn balancer(&self) -> Option<&Object> {
        let of = |kind| self.objects.of(kind).next();
        of(Kind::Balancer).or_else(|| of(Kind::Classic))
    }
}

/// Builds the objects of a Service, without their targets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Builder<'a> {
    pub(crate) model: &'a Model,
    pub(crate) cluster: &'a ClusterView,
    pub(crate) service: &'a ServiceView,
    pub(crate) spec: &'a Spec,
    /// The subnets of a new load balancer.
    pub(crate) subnets: &'a [Subnet],
}

impl Builder<'_> {
    /// An object with the Service's tags.
    fn object(&self, kind: Kind, key: &str) -> Object {
        let mut tags = self.spec.tags.clone();
        if kind != Kind::Group {
            tags.insert(SERVICE_NAME.to_owned(), names::service_tag(&self.service.id));
        }
        let mut tags = self.model.cluster.tags(&tags);
        if let Some(owner) = self.cluster.ownership_tag.for_create() {
            tags.insert(OWNER_TAG.to_owned(), owner.as_str().to_owned());
        }
        let tags = tags.iter().map(|(key, value)| Entry::tag(key, value));
        Object {
            service: Some(self.service.id.clone()),
            ..Object::new(kind, key).entries(TAGS, tags)
        }
    }

    /// A load balancer and, unless the Service names others, its own security group.
    pub(super) fn balancer(&self, kind: Kind, group: String, about: &str) -> (Object, Option<Object>) {
        let (spec, internal) = (self.spec, self.spec.internal);
        let scheme = if internal { "internal" } else { "internet-facing" };
        let balancer = self.object(kind, &names::balancer(&self.service.id));
        let mut balancer = balancer.with("scheme", scheme);
        balancer.attributes.extend(spec.balancer.clone());
        if !self.subnets.is_empty() {
            let subnets: Vec<_> = self.subnets.iter().map(|subnet| &*subnet.id).collect();
            balancer = balancer.with("subnets", subnets);
        }
        if kind == Kind::Balancer && !self.model.settings.managed_security_groups {
            return (balancer, None);
        }
        let mut groups = spec.security_groups.clone();
        let own = groups.is_empty().then(|| self.group(&group, about));
        groups.extend(own.as_ref().map(|_| group));
        groups.extend(spec.extra_groups.iter().cloned());
        (balancer.with("security_groups", groups), own)
    }

    /// A security group that lets clients reach the load balancer.
    fn group(&self, name: &str, about: &str) -> Object {
        let rules = self.spec.ranges.iter().flat_map(|range| {
            let ports = self.spec.ports.iter().flat_map(move |port| {
                let number = i32::from(port.port);
                let transports = transports(port.protocol).iter();
                transports.map(move |transport| Rule::new(transport, (number, number), range, ""))
            });
            ports.chain([Rule::mtu(range, "")])
        });
        let group = self.object(Kind::Group, name).with("description", about);
        group.entries(RULES, rules.map(Entry::Rule))
    }

    /// A listener with the fields of both kinds.
    pub(super) fn listener(&self, kind: Kind, port: &PortSpec) -> Object {
        let listener = self.object(kind, &port.port.to_string());
        let listener = listener.with("protocol", port.protocol);
        let mut listener = listener.with("certificate", Value::Null);
        if port.is_secure() {
            listener.attributes.extend(self.spec.listener.clone());
        }
        listener.parent = Some(names::balancer(&self.service.id));
        listener
    }

    /// All objects of a network load balancer.
    pub(crate) fn network(&self) -> Vec<Object> {
        let id = &self.service.id;
        let group = names::group(&self.cluster.name, id);
        let (balancer, group) = self.balancer(Kind::Balancer, group, names::MANAGED);
        let targets = self.spec.target_group_names(&self.model.cluster.id, id);
        let ports = self.spec.ports.iter().zip(targets);
        let ports = ports.flat_map(|(port, name)| {
            let group = self.object(Kind::TargetGroup, &name).with("port", port.node_port);
            let mut group = group.with("protocol", port.target_protocol);
            group.attributes.extend(self.spec.target_group.clone());
            [group, self.network_listener(name, port)]
        });
        group.into_iter().chain([balancer]).chain(ports).collect()
    }

    fn network_listener(&self, group: String, port: &PortSpec) -> Object {
        let listener = self.listener(Kind::Listener, port).with("target_group", group);
        let listener = listener.with("transport", transports(port.protocol).join("+"));
        // Certificates that users add manually stay while the Service names only one.
        if port.is_secure() && self.spec.certificates.len() > 1 {
            let further = self.spec.certificates.iter().skip(1).cloned();
            return listener.entries(CERTIFICATES, further.map(Entry::Name));
        }
        listener
    }
}

/// Whether an object has this cluster's ownership tag.
pub(crate) fn has_owner_tag(object: &Object, tag: &OwnershipTag) -> bool {
    let ours = tag.for_create().map(|ours| Entry::tag(OWNER_TAG, ours.as_str()));
    ours.is_some_and(|ours| object.set(TAGS).contains(&ours))
}

/// The other owner of an observed object, which is neither changed nor deleted.
pub(crate) fn foreign(object: &Object, cluster: &Cluster, tag: &OwnershipTag) -> Option<String> {
    let kind = object.text("type");
    if object.kind == Kind::Balancer && kind != "network" {
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

/// Whether an entry is an ownership tag.
pub(super) fn is_owner_tag(entry: &Entry) -> bool {
    matches!(entry, Entry::Tag { key, .. } if key == OWNER_TAG)
}

impl DesiredBalancer {
    /// The plan from the observed to the desired state.
    pub(crate) fn plan(&self, observed: &Observed) -> Plan<Change> {
        let objects = &observed.objects;
        let Some(mut desired) = self.objects.clone() else {
            let unchanged = objects.all.iter().map(|object| self.unchanged(object));
            return diff(unchanged.collect(), observed, false);
        };
        for object in &mut desired {
            object.sets.extend(self.targets(object));
        }
        let (desired, without_groups) = self.adapted(desired, observed);
        let mut full = diff(desired.clone(), observed, true);
        full.blocked.extend(without_groups);
        let root = observed.balancer();
        let is_ours = root.is_none_or(|root| root.foreign.is_some() || has_owner_tag(root, &self.tag));
        if is_ours || self.changed || full.steps.is_empty() {
            return full;
        }
        // Upstream created it: differences that upstream would not repair are pending.
        let mut limited = diff(self.as_upstream(desired, objects), observed, false);
        let is_pending = |step: &&Step<_>| {
            let mut limited = limited.steps.iter();
            !is_of_set(step, &[TARGETS, INSTANCES, TAGS]) && limited.all(|other| other.change != step.change)
        };
        let pending: Vec<_> = full.steps.iter().filter(is_pending).collect();
        limited.blocked = full.blocked;
        let why = match observed.denied.contains_key("DescribeTags") {
            true => "its tags, which show whether this program created it, cannot be read",
            false => "another program created the load balancer",
        };
        limited.blocked.extend(pending.into_iter().map(|step| Blocked {
            service: self.service.clone(),
            field: format!("step \"{step}\" ({})", step.description.reason),
            observed: format!("pending: {why}"),
            desired: "applied when the Service's spec or annotations change".to_owned(),
        }));
        limited
    }

    /// An observed object that is left unchanged, except for its targets.
    fn unchanged(&self, object: &Object) -> Object {
        let mut same = Object::new(object.kind, object.key.clone());
        (same.parent, same.if_present) = (object.parent.clone(), true);
        same.service.clone_from(&self.service);
        same.sets.extend(self.targets(object));
        same
    }

    /// The current instances as the set of an object's targets; `None`: it has no targets, or they stay unchanged.
    fn targets(&self, object: &Object) -> Option<(&'static str, Arc<[Entry]>)> {
        let instances = self.instances.as_ref()?.iter().cloned();
        match object.kind {
            Kind::Classic => Some((INSTANCES, instances.map(Entry::Name).collect())),
            Kind::TargetGroup => {
                let port = object.attributes.get("port").and_then(Value::as_u64)?;
                let port = u16::try_from(port).ok()?;
                let target = |instance| Entry::Target { instance, port };
                Some((TARGETS, instances.map(target).collect()))
            }
            _ => None,
        }
    }

    /// Drops the security groups of a load balancer that was created without any, since AWS cannot add them.
    fn drop_groups(&self, desired: &mut Vec<Object>, root: &Object) -> Option<Blocked> {
        if root.kind != Kind::Balancer || !root.texts("security_groups").is_empty() {
            return None;
        }
        desired.retain(|object| object.kind != Kind::Group);
        let balancer = desired.iter_mut().find(|object| object.kind == root.kind)?;
        let required = balancer.texts("security_groups").join(", ");
        balancer.attributes.remove("security_groups");
        (!required.is_empty()).then(|| Blocked {
            service: self.service.clone(),
            field: format!("security groups of {}", root.title()),
            observed: "none; AWS cannot add any to a load balancer that was created without them".to_owned(),
            desired: required,
        })
    }

    /// The desired objects as far as the existing load balancer supports them, and what is blocked.
    fn adapted(&self, mut desired: Vec<Object>, observed: &Observed) -> (Vec<Object>, Option<Blocked>) {
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
        if balancers.any(|balancer| !balancer.attributes.contains_key("security_groups")) {
            // It was created in another `NLBSecurityGroupMode`, and its groups cannot be deleted while they are attached.
            let attached = root.texts("security_groups");
            let groups = observed.objects.of(Kind::Group);
            let groups = groups.filter(|group| attached.contains(&&*group.key));
            desired.extend(groups.map(|group| self.unchanged(group)));
        }
        keep_target_groups(&mut desired, &observed.objects);
        for object in &mut desired {
            let Some(current) = observed.objects.get(object.kind, &object.key) else {
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
                // Zones are added and never removed; the subnet of a zone stays.
                let mut addresses = ADDRESSES.iter();
                let has_addresses = addresses.any(|(name, _)| object.attributes.contains_key(name));
                let zones = current.texts("zones");
                let needs_v6 = current.text("ip_address_type") == "dualstack";
                let new = self.subnets.iter().filter(|_| !has_addresses);
                let new = new.filter(|subnet| !needs_v6 || subnet.has_v6());
                let new = new.filter(|subnet| !zones.contains(&&*subnet.zone));
                let mut subnets = current.texts("subnets");
                subnets.extend(new.map(|subnet| &*subnet.id));
                object.attributes.insert("subnets", subnets.into());
            }
            if object.kind == Kind::ClassicListener {
                // Upstream ignores the case of ASCII letters.
                for name in ["protocol", "instance_protocol", "certificate"] {
                    let current = current.text(name);
                    if !current.is_empty() && object.text(name).eq_ignore_ascii_case(current) {
                        object.attributes.insert(name, current.into());
                    }
                }
            }
            // Sets are compared, although lists are sent.
            for name in ["security_groups", "subnets"] {
                let is_same = texts::<BTreeSet<_>>(object, name) == texts(current, name);
                if is_same && object.attributes.contains_key(name) {
                    object.attributes.insert(name, current.texts(name).into());
                }
            }
        }
        (desired, blocked)
    }

    /// The desired objects without the fields that upstream would not change.
    fn as_upstream(&self, mut desired: Vec<Object>, observed: &Objects) -> Vec<Object> {
        let stays = |object: &&mut Object| {
            let observed = observed.get(object.kind, &object.key);
            observed.is_some_and(|observed| !object.replaces(observed))
        };
        for object in desired.iter_mut().filter(stays) {
            let (kind, attributes) = (object.kind, &mut object.attributes);
            attributes.retain(|name, _| is_of_upstream(kind, name) || self.named.contains(name));
            object.sets.remove(TAGS);
            object.sets.remove(CERTIFICATES);
        }
        desired
    }
}

/// Keeps the target groups that listeners use, unless upstream would replace them. Those of old releases have other names.
fn keep_target_groups(desired: &mut [Object], observed: &Objects) {
    const COMPARED: &str = "port protocol health_check_protocol health_check_interval";
    // Each listener is directly after its target group.
    let is_pair = |a: &Object, b: &Object| (a.kind, b.kind) == (Kind::TargetGroup, Kind::Listener);
    for pair in desired.chunk_by_mut(is_pair) {
        let [group, listener] = pair else { continue };
        let used = observed.get(Kind::Listener, &listener.key);
        let used = used.and_then(|used| observed.get(Kind::TargetGroup, used.text("target_group")));
        let is_same = |used: &&Object| {
            let mut names = COMPARED.split_whitespace();
            names.all(|name| used.attributes.get(name) == group.attributes.get(name))
        };
        if let Some(used) = used.filter(|used| used.foreign.is_none()).filter(is_same) {
            group.key.clone_from(&used.key);
            listener.attributes.insert("target_group", used.key.as_str().into());
        }
    }
}

/// Whether upstream changes an attribute of an object that exists.
fn is_of_upstream(kind: Kind, attribute: &str) -> bool {
    match (kind, attribute) {
        (Kind::Balancer, "security_groups" | "load_balancing.cross_zone.enabled") => true,
        (Kind::Balancer, _) => attribute.starts_with("access_logs."),
        (Kind::TargetGroup, "health_check_port" | "health_check_path" | "healthy_threshold") => true,
        (Kind::TargetGroup, _) | (Kind::Listener, "alpn_policy") => false,
        _ => true,
    }
}

fn is_of_set(step: &Step<Change>, sets: &[&str]) -> bool {
    match &step.change.action {
        Action::Add(set, _) | Action::Remove(set, _) => sets.contains(&set.name),
        _ => false,
    }
}

/// The difference. Calls that are denied are blocked instead.
pub(super) fn diff(objects: Vec<Object>, observed: &Observed, adopt: bool) -> Plan<Change> {
    let desired = objects::Desired {
        objects,
        reason: "no Service needs it",
        ..objects::Desired::default()
    };
    let mut plan = match adopt {
        true => desired.diff_and_adopt(&observed.objects, is_owner_tag),
        false => desired.diff(&observed.objects),
    };
    plan.steps.retain(|step| {
        let why = observed.denied.get(step.description.label);
        plan.blocked.extend(why.map(|why| Blocked {
            service: step.description.service.clone(),
            observed: why.clone(),
            desired: "done".to_owned(),
            field: format!("step \"{step}\""),
        }));
        why.is_none()
    });
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The desired objects beside a load balancer that exists, adapted to the observed ones.
    fn adapted(desired: &DesiredBalancer, observed: &[Object]) -> Vec<Object> {
        let objects = observed.iter().cloned().collect();
        let denied = BTreeMap::new();
        let all = desired.objects.clone().unwrap_or_default();
        desired.adapted(all, &Observed { objects, denied }).0
    }

    #[test]
    fn a_target_group_with_another_name_stays_unless_upstream_would_replace_it() {
        let group = |name: &str, interval: u16| {
            let group = Object::new(Kind::TargetGroup, name).with("port", 30080);
            let group = group.with("protocol", "TCP").with("health_check_protocol", "TCP");
            group.with("health_check_interval", interval)
        };
        let listener = |name: &str| Object::new(Kind::Listener, "80").with("target_group", name);
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
            let observed = [Object::new(Kind::Balancer, "a"), old, listener("old")];
            assert_eq!(adapted(&desired, &observed), [group(kept, 30), listener(kept)]);
        }
    }

    #[test]
    fn a_listener_that_is_replaced_while_another_program_owns_it_has_all_fields() {
        let listener = |transport: &str| Object::new(Kind::Listener, "80").with("transport", transport);
        let listener = |transport: &str| Object {
            parent: Some("a".to_owned()),
            ..listener(transport)
        };
        let balancer = Object::new(Kind::Balancer, "a");
        let new = listener("tls").with("alpn_policy", "HTTP2Only");
        let new = new.entries(TAGS, [Entry::tag("team", "web")]);
        let desired = DesiredBalancer {
            objects: Some(vec![balancer.clone(), new.clone()]),
            ..DesiredBalancer::default()
        };
        let objects = [balancer.with("type", "network"), listener("udp")].into_iter().collect();
        let plan = desired.plan(&Observed {
            objects,
            ..Observed::default()
        });
        let actions: Vec<_> = plan.steps.into_iter().map(|step| step.change.action).collect();
        assert_eq!(actions, [Action::Delete(false), Action::Create(Box::new(new), Vec::new())]);
    }

    #[test]
    fn the_case_of_a_classic_certificate_is_that_of_the_listener() {
        let listener = |arn: &str| Object::new(Kind::ClassicListener, "443").with("certificate", arn);
        for (desired, kept) in [("arn:AB", "arn:ab"), ("arn:b", "arn:b")] {
            let desired = DesiredBalancer {
                objects: Some(vec![listener(desired)]),
                ..DesiredBalancer::default()
            };
            let observed = [Object::new(Kind::Classic, "a"), listener("arn:ab")];
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
            let balancer = Object::new(Kind::Balancer, "a").with("ip_address_type", family);
            let desired = DesiredBalancer {
                objects: Some(vec![balancer.clone()]),
                subnets: vec![subnet("b", "10.0.0.0/24"), subnet("c", "2001:db8::/64")],
                ..DesiredBalancer::default()
            };
            let objects = adapted(&desired, &[balancer]);
            assert_eq!(objects[0].texts("subnets").join(" "), expected);
        }
    }
}
