//! The desired state of a load balancer, and the plan from the observed state to it.
//!
//! A forwarding rule cannot be changed, except for its access: it is deleted and created again. Its address must survive that, so the
//! plan has stages, and the engine plans again after each:
//!
//! 1. The address is reserved under the load balancer's name, unless it is one that the user reserved.
//! 2. The forwarding rule is deleted.
//! 3. Everything else is brought into the desired state, and the forwarding rule is created.
//! 4. The reservation is deleted, after which the address is ephemeral again. Projects have few reserved addresses.
//!
//! Without a forwarding rule, the plan begins with the third stage. There the address is reserved first, so that firewall rules can name it
//! before the forwarding rule exists. If nothing has to be created again, no address is reserved.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ccm_core::{
    load_balancer::{Blocked, Protocol, ServiceId},
    plan::Plan,
    plan::objects::{self, Action, Attributes},
};
use serde_json::{Value, json};

use super::{
    fields,
    firewalls::DeniedFirewall,
    kinds::{INSTANCES, InstanceEntry, Object, ObjectChange, ObjectKind, Objects},
    members::NodeMembers,
    names,
    settings::BalancerSettings,
    spec::{CHECK_PATH, NODE_CHECK_PORT, Scheme, Spec, Tier},
};
use crate::client::last_component;

/// The most instances that a new target pool takes. The others are added to it.
const POOL_AT_CREATION: usize = 200;
/// The numbers of a health check. Larger ones, which users set by hand, stay.
const CHECK_NUMBERS: [(&str, i64); 4] = [
    (fields::INTERVAL, 8),
    (fields::TIMEOUT, 1),
    (fields::HEALTHY, 1),
    (fields::UNHEALTHY, 3),
];
/// Why objects are deleted.
const REASON: &str = "no Service needs it";

/// The desired state of a load balancer.
#[derive(Debug)]
pub(crate) struct DesiredBalancer {
    /// Its name.
    pub(crate) name: String,
    pub(crate) service: Option<ServiceId>,
    pub(crate) state: DesiredState,
    /// The members of the target pool; `None`: they stay.
    pub(crate) members: Option<Arc<NodeMembers>>,
    /// The resource paths of the instance groups of the backend service; `None`: they stay.
    pub(crate) groups: Option<Vec<String>>,
    pub(crate) firewalls: FirewallAccess,
}

/// The desired objects of a load balancer.
#[derive(Debug)]
pub(crate) enum DesiredState {
    /// All objects are deleted.
    Deleted,
    /// All objects stay as they are, except for members.
    Unchanged,
    /// The objects that the Service requests.
    Requested(Box<RequestedBalancer>),
}

/// What a Service requests, with everything else that decides about its objects.
#[derive(Debug)]
pub(crate) struct RequestedBalancer {
    pub(crate) service: ServiceId,
    /// A shared object to which the load balancer refers is not ready.
    pub(crate) lacks_shared: bool,
    pub(crate) spec: Arc<Spec>,
    pub(crate) settings: Arc<BalancerSettings>,
    pub(crate) cluster_id: String,
    /// The network tags of the nodes.
    pub(crate) tags: Vec<String>,
    /// The resource path of the subnetwork of an internal load balancer; empty: the network has none, or the only one of the region.
    pub(crate) subnetwork: String,
    /// The addresses that users reserved, by address.
    pub(crate) reserved: BTreeMap<String, ReservedAddress>,
    /// The address in the Service's status; empty: none.
    pub(crate) status: String,
}

/// An address that a user reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReservedAddress {
    /// `EXTERNAL` or `INTERNAL`.
    pub(crate) scheme: String,
    /// `PREMIUM` or `STANDARD`.
    pub(crate) tier: String,
}

/// The firewall rules that this program may change.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirewallAccess {
    /// Users manage all of them.
    pub(crate) is_unmanaged: bool,
    /// Changes that the credentials do not allow, by the name of the rule.
    pub(crate) denied: Arc<BTreeMap<String, DeniedFirewall>>,
    /// The network tags of some nodes are not known: rules keep the tags that they have.
    pub(crate) keeps_tags: bool,
}

impl FirewallAccess {
    /// Leaves the firewall rules unchanged that this program may not change. `desired`: the objects that are desired.
    pub(crate) fn apply(&self, desired: &mut Vec<Object>, observed: &Objects) {
        let may_not = |name: &str, attributes: Option<&Attributes>| {
            let denied = self.denied.get(name);
            self.is_unmanaged || denied.is_some_and(|denied| denied.is_to(attributes))
        };
        let is_blocked =
            |object: &Object| object.kind.is_firewall() && may_not(&object.key, Some(&object.attributes));
        let (blocked, mut others): (Vec<_>, Vec<_>) = desired.drain(..).partition(is_blocked);
        for present in observed.all.iter().filter(|object| object.kind.is_firewall()) {
            let is_desired = others.iter().any(|other| other.key == present.key);
            let is_blocked = blocked.iter().any(|blocked| blocked.key == present.key);
            if is_blocked || (!is_desired && may_not(&present.key, None)) {
                others.push(present.clone());
            }
            if self.keeps_tags
                && let Some(other) = others.iter_mut().find(|other| other.key == present.key)
            {
                let all = [&*other, present].into_iter().flat_map(|rule| rule.texts(fields::TARGET_TAGS));
                let tags = json!(all.collect::<BTreeSet<_>>());
                other.attributes.insert(fields::TARGET_TAGS, tags);
            }
        }
        *desired = others;
    }
}

/// The objects of a part as they are, for a plan that leaves them unchanged. Those of other owners are left out, and stay anyway.
pub(crate) fn unchanged(observed: &Objects, service: Option<&ServiceId>) -> Vec<Object> {
    let own = observed.all.iter().filter(|object| object.foreign.is_none());
    let as_desired = own.map(|object| Object {
        service: service.cloned(),
        ..object.clone()
    });
    as_desired.collect()
}

/// The changes from the observed to the desired objects.
pub(crate) fn diff(objects: Vec<Object>, observed: &Objects) -> Plan<ObjectChange> {
    let desired = objects::Desired {
        objects,
        reason: REASON,
        ..objects::Desired::default()
    };
    desired.diff(observed)
}

/// Adds the port, the path and the numbers of a health check. Larger numbers of the observed one stay.
pub(crate) fn with_check(mut check: Object, port: u16, observed: &Objects) -> Object {
    check = check.with(fields::PORT, port).with(fields::PATH, CHECK_PATH);
    let present = observed.get(check.kind, &check.key);
    for (name, least) in CHECK_NUMBERS {
        let number = present.and_then(|present| present.attributes.get(name)?.as_i64());
        check = check.with(name, number.unwrap_or_default().max(least));
    }
    check
}

/// A firewall rule that admits traffic.
pub(crate) fn firewall(
    kind: ObjectKind,
    name: String,
    settings: &BalancerSettings,
    tags: &[String],
) -> Object {
    // A rule without tags would apply to all instances of the network.
    let has_tags = !tags.is_empty();
    let firewall = Object::new(kind, name)
        .with(fields::NETWORK, &*settings.network)
        .with(fields::PRIORITY, settings.allow_priority());
    let firewall = if has_tags {
        firewall.with(fields::TARGET_TAGS, tags)
    } else {
        firewall
    };
    Object {
        if_present: !has_tags,
        ..firewall
    }
}

/// The firewall rule for a health check.
pub(crate) fn check_firewall(
    name: String,
    port: u16,
    settings: &BalancerSettings,
    tags: &[String],
) -> Object {
    firewall(ObjectKind::CheckFirewall, name, settings, tags)
        .with(fields::SOURCES, &*settings.check_ranges)
        .with(fields::ALLOWED, allowed(Protocol::Tcp, [port]))
}

/// What a firewall rule admits.
pub(crate) fn allowed(protocol: Protocol, ports: impl IntoIterator<Item = u16>) -> Value {
    let protocol = protocol.as_str().to_ascii_lowercase();
    let ranges = names::port_ranges(ports).into_iter();
    ranges.map(|range| format!("{protocol}:{range}")).collect()
}

/// Whether an address is known. In a plan, one that is not reserved yet has a description in its place.
pub(crate) fn is_known(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok()
}

/// What stands for the address of a load balancer until it is reserved.
fn later_address(balancer: &str) -> String {
    format!("(address of {balancer})")
}

/// The change, with the address that was reserved since it was planned.
pub(crate) fn with_reserved_address(change: &ObjectChange, observed: &Objects) -> ObjectChange {
    let mut change = change.clone();
    let balancer = names::owner(&change.key);
    let reservation = observed.get(ObjectKind::Address, balancer);
    let address = reservation.map(|reservation| reservation.text(fields::ADDRESS)).unwrap_or_default();
    let attributes = match &mut change.action {
        Action::Create(object, _) => &mut object.attributes,
        Action::Update(_, attributes) => attributes,
        _ => return change,
    };
    if is_known(address) {
        let later = later_address(balancer);
        attributes.values_mut().for_each(|value| replace_text(value, &later, address));
    }
    change
}

/// Replaces a text in a text or in the texts of a list.
fn replace_text(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) if text.contains(from) => *text = text.replace(from, to),
        Value::Array(list) => list.iter_mut().for_each(|item| replace_text(item, from, to)),
        _ => {}
    }
}

/// The address of a load balancer.
#[derive(Debug, PartialEq, Eq)]
struct ChosenAddress {
    /// The address, or a description of it.
    address: String,
    tier: String,
    /// A user reserved it.
    is_reserved: bool,
}

impl DesiredBalancer {
    /// The plan from the observed to the desired state.
    pub(crate) fn plan(&self, observed: &Objects) -> Plan<ObjectChange> {
        let mut plan = self.plan_objects(observed);
        for zone in self.members.iter().flat_map(|members| &members.silent) {
            plan.blocked.push(Blocked {
                service: self.service.clone(),
                field: format!("members in zone {zone}"),
                observed: "the zone does not answer".to_owned(),
                desired: Blocked::UNCHANGED.to_owned(),
            });
        }
        plan
    }

    fn plan_objects(&self, observed: &Objects) -> Plan<ObjectChange> {
        let requested = match &self.state {
            DesiredState::Requested(requested) => requested,
            DesiredState::Deleted => {
                let mut desired = Vec::new();
                self.firewalls.apply(&mut desired, observed);
                return diff(desired, observed);
            }
            DesiredState::Unchanged => return diff(self.only_members(observed), observed),
        };
        let rule = observed.get(ObjectKind::Rule, &self.name);
        if let Some(rule) = rule
            && let Some(owner) = &rule.foreign
        {
            let mut plan = diff(self.only_members(observed), observed);
            plan.blocked.push(Blocked {
                service: self.service.clone(),
                field: rule.title(),
                observed: owner.clone(),
                desired: "of this program".to_owned(),
            });
            return plan;
        }
        let mut desired = if requested.lacks_shared {
            if rule.is_some() {
                return diff(self.only_members(observed), observed);
            }
            self.prepared(requested, observed)
        } else {
            self.stage(requested, rule, observed)
        };
        self.firewalls.apply(&mut desired, observed);
        if requested.settings.denies && !self.is_admitted(requested, &desired) {
            desired.retain(|object| object.kind != ObjectKind::DenyFirewall);
        }
        for object in &mut desired {
            object.service.clone_from(&self.service);
        }
        diff(desired, observed)
    }

    /// The objects as they are, with the desired members.
    fn only_members(&self, observed: &Objects) -> Vec<Object> {
        let mut desired = unchanged(observed, self.service.as_ref());
        for object in &mut desired {
            match object.kind {
                ObjectKind::Pool => object.sets.extend(self.pool_members(observed)),
                ObjectKind::Backend => object.attributes.extend(self.backend_groups()),
                _ => {}
            }
        }
        desired
    }

    /// The members of the target pool, if they are managed.
    fn pool_members(&self, observed: &Objects) -> BTreeMap<&'static str, Arc<[InstanceEntry]>> {
        let Some(members) = &self.members else {
            return BTreeMap::new();
        };
        let pool = observed.get(ObjectKind::Pool, &self.name);
        let present = pool.map(|pool| pool.set(INSTANCES)).unwrap_or_default();
        let mut desired = members.with_unplaced(members.instances.iter().cloned(), present);
        if pool.is_none() {
            desired.truncate(POOL_AT_CREATION);
        }
        BTreeMap::from([(INSTANCES, desired.into())])
    }

    /// The instance groups of the backend service, if they are managed.
    fn backend_groups(&self) -> Option<(&'static str, Value)> {
        let groups = self.groups.as_ref()?;
        // An empty list cannot be sent, and would leave the load balancer without members.
        (!groups.is_empty()).then(|| (fields::GROUPS, json!(groups)))
    }

    /// The desired objects that do not refer to shared ones, before there is a forwarding rule. All others stay as they are.
    fn prepared(&self, requested: &RequestedBalancer, observed: &Objects) -> Vec<Object> {
        let mut objects = self.stage(requested, None, observed);
        objects.retain(|object| match object.kind {
            ObjectKind::Pool | ObjectKind::Backend | ObjectKind::Rule | ObjectKind::DenyFirewall => false,
            ObjectKind::Group
            | ObjectKind::Address
            | ObjectKind::CheckFirewall
            | ObjectKind::HttpCheck
            | ObjectKind::Check
            | ObjectKind::Firewall => true,
        });
        for present in self.only_members(observed) {
            let mut same = objects.iter().filter(|object| object.kind == present.kind);
            if !same.any(|object| object.key == present.key) {
                objects.push(present);
            }
        }
        objects
    }

    /// The desired objects of the stage that is due; see the module.
    fn stage(&self, requested: &RequestedBalancer, rule: Option<&Object>, observed: &Objects) -> Vec<Object> {
        let deny = observed.get(ObjectKind::DenyFirewall, &names::deny_firewall(&self.name));
        let settings = &requested.settings;
        if deny.is_some() && !settings.denies && settings.deletes_denies {
            // With the same priority, it would win over the rules that admit traffic.
            let mut objects = unchanged(observed, None);
            objects.retain(|object| object.kind != ObjectKind::DenyFirewall);
            return objects;
        }
        let held = observed.get(ObjectKind::Address, &self.name);
        let chosen = requested.choose_address(rule, held);
        let reservation = requested.reservation(&self.name, &chosen);
        let mut objects = self.objects(requested, &chosen, observed);
        let Some(rule) = rule else {
            if !chosen.is_reserved {
                objects.push(reservation);
            }
            return objects;
        };
        if !needs_new_rule(&objects, rule, observed) {
            return objects;
        }
        let keeps_address = chosen.address == rule.text(fields::ADDRESS) && !chosen.is_reserved;
        let is_held = held.is_some_and(|held| !reservation.replaces(held));
        let mut objects = unchanged(observed, None);
        if keeps_address && !is_held {
            objects.retain(|object| object.kind != ObjectKind::Address);
            objects.push(reservation);
        } else {
            objects.retain(|object| object.kind != ObjectKind::Rule);
        }
        objects
    }

    /// All desired objects, without a reservation of the address.
    fn objects(
        &self,
        requested: &RequestedBalancer,
        chosen: &ChosenAddress,
        observed: &Objects,
    ) -> Vec<Object> {
        let name = &self.name;
        let RequestedBalancer {
            service,
            spec,
            settings,
            tags,
            ..
        } = requested;
        let description = names::description(service);
        let destination = json!([chosen.address]);
        let traffic = firewall(ObjectKind::Firewall, names::firewall(name), settings, tags)
            .with(fields::DESCRIPTION, names::firewall_description(service, &chosen.address))
            .with(fields::SOURCES, &*spec.ranges)
            .with(fields::DESTINATIONS, destination.clone())
            .with(fields::ALLOWED, allowed(spec.protocol, spec.ports.iter().copied()));
        let rule = Object::new(ObjectKind::Rule, name)
            .with(fields::DESCRIPTION, &*description)
            .with(fields::SCHEME, spec.scheme.as_str())
            .with(fields::ADDRESS, &*chosen.address)
            .with(fields::PROTOCOL, spec.protocol.as_str());
        let mut objects = vec![traffic];
        match spec.scheme {
            Scheme::External => {
                if let Some(port) = spec.local_port {
                    let check = Object::new(ObjectKind::HttpCheck, name)
                        .with(fields::DESCRIPTION, names::named_description(name));
                    objects.push(with_check(check, port, observed));
                    let firewall = check_firewall(names::http_check_firewall(name), port, settings, tags)
                        .with(fields::DESCRIPTION, names::firewall_description(service, &chosen.address))
                        .with(fields::DESTINATIONS, destination.clone());
                    objects.push(firewall);
                }
                let pool = self.pool(requested, observed);
                if spec.local_port.is_none() && last_component(pool.text(fields::HEALTH_CHECK)) == name {
                    // The target pool stays as it is for now, and still uses its own health check.
                    objects.extend(observed.get(ObjectKind::HttpCheck, name).cloned());
                    let firewall = names::http_check_firewall(name);
                    objects.extend(observed.get(ObjectKind::CheckFirewall, &firewall).cloned());
                }
                objects.push(pool);
                let pool = settings.region_path("targetPools", name);
                objects.push(
                    rule.with(fields::PORT_RANGE, spec.port_range())
                        .with(fields::TARGET, pool)
                        .with(fields::TIER, &*chosen.tier),
                );
                objects.extend(self.deny_firewall(requested, chosen, observed));
            }
            Scheme::Internal => {
                if let Some(port) = spec.local_port {
                    let check = Object::new(ObjectKind::Check, name).with(fields::DESCRIPTION, &*description);
                    objects.push(with_check(check, port, observed));
                    let firewall = check_firewall(names::check_firewall(name), port, settings, tags);
                    objects
                        .push(firewall.with(fields::DESCRIPTION, "").with(fields::DESTINATIONS, json!([])));
                }
                if !spec.shares_backend {
                    let mut backend = requested.backend(name).with(fields::DESCRIPTION, &*description);
                    backend.attributes.extend(self.backend_groups());
                    objects.push(backend);
                }
                objects.push(requested.internal_rule(rule, name));
            }
        }
        objects
    }

    fn pool(&self, requested: &RequestedBalancer, observed: &Objects) -> Object {
        let RequestedBalancer {
            service,
            spec,
            settings,
            ..
        } = requested;
        let check = match spec.local_port {
            Some(_) => self.name.clone(),
            None => names::node_check(&requested.cluster_id),
        };
        let mut pool = Object::new(ObjectKind::Pool, &self.name)
            .with(fields::DESCRIPTION, names::description(service))
            .with(fields::AFFINITY, spec.affinity.as_str())
            .with(fields::HEALTH_CHECK, settings.global_path("httpHealthChecks", &check));
        pool.sets.extend(self.pool_members(observed));
        if let Some(present) = observed.get(ObjectKind::Pool, &self.name)
            && pool.replaces(present)
        {
            let Some(desired) = pool.sets.get(INSTANCES).cloned() else {
                // Without eligible nodes the members stay. A pool that is created again would have none if the process ended between.
                return present.clone();
            };
            return pool.entries(INSTANCES, desired.iter().take(POOL_AT_CREATION).cloned());
        }
        pool
    }

    /// The rule that denies all other traffic. The order of kinds is the order of changes: those that admit traffic come before it.
    fn deny_firewall(
        &self,
        requested: &RequestedBalancer,
        chosen: &ChosenAddress,
        observed: &Objects,
    ) -> Option<Object> {
        let name = names::deny_firewall(&self.name);
        let settings = &requested.settings;
        if !settings.denies {
            // One that another process created stays, unless the settings say that such rules are deleted.
            return observed.get(ObjectKind::DenyFirewall, &name).cloned();
        }
        let firewall = firewall(ObjectKind::DenyFirewall, name, settings, &requested.tags)
            .with(fields::DESCRIPTION, names::firewall_description(&requested.service, &chosen.address))
            .with(fields::PRIORITY, 1000)
            .with(fields::SOURCES, ["0.0.0.0/0"].as_slice())
            .with(fields::DESTINATIONS, json!([chosen.address]))
            .with(fields::DENIED, ["all"].as_slice());
        Some(firewall)
    }
}

impl DesiredBalancer {
    /// Whether the rules that admit traffic take precedence over one that denies all other traffic. The credentials may not allow to change
    /// them.
    fn is_admitted(&self, requested: &RequestedBalancer, desired: &[Object]) -> bool {
        let priority = requested.settings.allow_priority();
        let takes_precedence = |kind, name: String| {
            let mut admitting = desired.iter().filter(|object| object.kind == kind && object.key == name);
            admitting.any(|rule| rule.attributes.get(fields::PRIORITY) == Some(&priority.into()))
        };
        let has_own_check = requested.spec.scheme == Scheme::External && requested.spec.local_port.is_some();
        takes_precedence(ObjectKind::Firewall, names::firewall(&self.name))
            && (!has_own_check
                || takes_precedence(ObjectKind::CheckFirewall, names::http_check_firewall(&self.name)))
    }
}

/// Whether the forwarding rule must be created again: it differs, or what it refers to cannot be changed while it exists.
fn needs_new_rule(objects: &[Object], rule: &Object, observed: &Objects) -> bool {
    objects.iter().any(|desired| {
        let present = observed.get(desired.kind, &desired.key);
        match desired.kind {
            ObjectKind::Rule => desired.replaces(rule),
            ObjectKind::Pool => present.is_some_and(|present| desired.replaces(present)),
            ObjectKind::Backend => present.is_some_and(|present| {
                desired.replaces(present) || desired.text(fields::PROTOCOL) != present.text(fields::PROTOCOL)
            }),
            _ => false,
        }
    })
}

impl RequestedBalancer {
    /// The address: the requested one, else that of the present forwarding rule, else the reserved one, else one that Google chooses.
    fn choose_address(&self, rule: Option<&Object>, held: Option<&Object>) -> ChosenAddress {
        let spec = &self.spec;
        let is_external = spec.scheme == Scheme::External;
        let tier_of = |object: &Object| match object.text(fields::TIER) {
            "" => Tier::default().as_str().to_owned(),
            tier => tier.to_owned(),
        };
        // An address belongs to a scheme and to a tier or a subnetwork.
        let is_usable = |object: &&Object| {
            let scheme = match object.text(fields::SCHEME) {
                "" => Scheme::External.as_str(),
                scheme => scheme,
            };
            let is_same_tier = spec.tier.is_none_or(|tier| tier.as_str() == tier_of(object));
            let subnetwork = object.text(fields::SUBNETWORK);
            let is_same_subnetwork =
                subnetwork.is_empty() || self.subnetwork.is_empty() || subnetwork == self.subnetwork;
            scheme == spec.scheme.as_str()
                && if is_external {
                    is_same_tier
                } else {
                    is_same_subnetwork
                }
        };
        let present = rule.filter(is_usable).or_else(|| held.filter(is_usable));
        let from_status = match self.reserved.get(&self.status) {
            // After the forwarding rule was deleted, only the status says which reserved address it had.
            Some(reserved) if rule.is_none() && self.is_usable_reservation(reserved) => &*self.status,
            _ => "",
        };
        let candidates = [
            &*spec.address,
            present.map(|object| object.text(fields::ADDRESS)).unwrap_or_default(),
            from_status,
        ];
        let address = match candidates.into_iter().find(|address| !address.is_empty()) {
            Some(address) => address.to_owned(),
            None => later_address(&names::balancer(&self.service)),
        };
        let reserved = self.reserved.get(&address);
        let tier = match (spec.tier, reserved, present) {
            (Some(tier), ..) => tier.as_str().to_owned(),
            (None, Some(reserved), _) if !reserved.tier.is_empty() => reserved.tier.clone(),
            (None, _, Some(present)) => tier_of(present),
            (None, ..) => Tier::default().as_str().to_owned(),
        };
        ChosenAddress {
            is_reserved: reserved.is_some(),
            address,
            tier,
        }
    }

    fn is_usable_reservation(&self, reserved: &ReservedAddress) -> bool {
        let is_same_tier = self.spec.tier.is_none_or(|tier| tier.as_str() == reserved.tier);
        reserved.scheme == self.spec.scheme.as_str() && (self.spec.scheme == Scheme::Internal || is_same_tier)
    }

    /// The reservation of the address.
    fn reservation(&self, name: &str, chosen: &ChosenAddress) -> Object {
        let mut address = Object::new(ObjectKind::Address, name)
            .with(fields::DESCRIPTION, names::description(&self.service))
            .with(fields::SCHEME, self.spec.scheme.as_str());
        if is_known(&chosen.address) {
            address = address.with(fields::ADDRESS, &*chosen.address);
        }
        match self.spec.scheme {
            Scheme::External => address.with(fields::TIER, &*chosen.tier),
            Scheme::Internal if self.subnetwork.is_empty() => address,
            Scheme::Internal => address.with(fields::SUBNETWORK, &*self.subnetwork),
        }
    }

    /// The name of the backend service of an internal load balancer.
    pub(crate) fn backend_name(&self, balancer: &str) -> String {
        if self.spec.shares_backend {
            names::shared_backend(&self.cluster_id, self.spec.protocol, self.spec.affinity)
        } else {
            balancer.to_owned()
        }
    }

    /// The backend service of one internal load balancer, without its groups.
    fn backend(&self, name: &str) -> Object {
        let check = match self.spec.local_port {
            Some(_) => name.to_owned(),
            None => names::node_check(&self.cluster_id),
        };
        Object::new(ObjectKind::Backend, name)
            .with(fields::SCHEME, Scheme::Internal.as_str())
            .with(fields::PROTOCOL, self.spec.protocol.as_str())
            .with(fields::AFFINITY, self.spec.affinity.as_str())
            .with(fields::HEALTH_CHECK, self.settings.global_path("healthChecks", &check))
    }

    fn internal_rule(&self, rule: Object, name: &str) -> Object {
        let backend = self.settings.region_path("backendServices", &self.backend_name(name));
        let ports = self.spec.listed_ports();
        let rule = rule
            .with(fields::BACKEND_SERVICE, backend)
            .with(fields::NETWORK, &*self.settings.network)
            .with(fields::ALL_PORTS, ports.is_none())
            .with(fields::PORTS, ports.unwrap_or_default())
            .with(fields::GLOBAL_ACCESS, self.spec.global_access);
        if self.subnetwork.is_empty() {
            rule
        } else {
            rule.with(fields::SUBNETWORK, &*self.subnetwork)
        }
    }
}

/// The port of the health check that Services share.
pub(crate) const SHARED_PORT: u16 = NODE_CHECK_PORT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firewall_rules_keep_their_tags_while_a_zone_does_not_answer() {
        let rule =
            |tags: &[&str]| Object::new(ObjectKind::Firewall, "k8s-fw-a").with(fields::TARGET_TAGS, tags);
        let observed: Objects = [rule(&["node", "old"])].into_iter().collect();
        for (keeps_tags, expected) in [
            (true, &["node", "old", "pool"][..]),
            (false, &["node", "pool"][..]),
        ] {
            let access = FirewallAccess {
                keeps_tags,
                ..FirewallAccess::default()
            };
            let mut desired = vec![rule(&["node", "pool"])];
            access.apply(&mut desired, &observed);
            assert_eq!(
                desired.iter().flat_map(|rule| rule.texts(fields::TARGET_TAGS)).collect::<Vec<_>>(),
                expected
            );
        }
    }
}
