//! The [`PartModel`] of GCE: the parts of each Service, what is read for them, and the outputs of parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, Condition, FormerLoadBalancer, IgnoredValue, Ingress,
        InvalidField, IpMode, NameOwner, NodeLeftOut, Protocol, ProviderFinalizers, ServiceEvent,
        ServiceView,
    },
    plan::{
        CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, RequiredFacts, objects,
    },
};
use ipnet::IpNet;

use super::{
    annotations as a,
    desired::{DesiredBalancer, DesiredState, FirewallAccess, RequestedBalancer, with_reserved_address},
    directory::{BalancerDirectory, BalancerReferences},
    fields,
    firewalls::DeniedFirewall,
    kinds::{INSTANCES, Object, ObjectChange, ObjectKind, Objects, PartKey},
    members::{self, GROUP_SIZE, InstanceIndex, NodeMembers},
    names::{self, Affinity},
    settings::BalancerSettings,
    shared::{DesiredCheck, DesiredGroup, DesiredSharedBackend, Need},
    spec::{self, EXTERNAL_CLASS, INTERNAL_CLASS, Scheme, Spec},
};
use crate::client::last_component;

/// The condition of a Service whose ports one load balancer cannot serve.
const PORTS_ERROR: &str = "LoadBalancerPortsError";
/// The reason of that condition, and of the Event.
const MIXED_PROTOCOLS: &str = "LoadBalancerMixedProtocolNotSupported";

/// The model of load balancers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<BalancerSettings>,
}

/// A Service in a part.
pub(crate) type PartMember = Member<Model>;

/// The inputs in addition to Services and nodes.
#[derive(Debug, Default)]
pub(crate) struct PartInputs {
    /// The objects in the shared listings.
    pub(crate) directory: Arc<BalancerDirectory>,
    /// The instances of the region.
    pub(crate) index: Arc<InstanceIndex>,
    /// The resource path of the cluster's subnetwork; empty: none, or the only one of the region.
    pub(crate) subnetwork: String,
    /// Why the cluster has no subnetwork; empty: it has one, or needs none.
    pub(crate) no_subnetwork: String,
    /// Whether the network is one without subnetworks, in which there are no internal load balancers. Read for internal ones only.
    pub(crate) is_legacy_network: bool,
    /// The subnetworks from which Services request their addresses, by resource path.
    pub(crate) requested_subnetworks: BTreeMap<String, RequestedSubnetwork>,
    /// Changes of firewall rules that the credentials do not allow.
    pub(crate) denied: Arc<BTreeMap<String, DeniedFirewall>>,
}

/// A subnetwork from which a Service requests its address.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedSubnetwork {
    /// Its range; empty if it is not known.
    pub(crate) range: String,
    /// Why it cannot be used; empty if it can.
    pub(crate) problem: String,
}

/// The desired state of a part.
#[derive(Debug)]
pub(crate) enum DesiredPart {
    Balancer(Box<DesiredBalancer>),
    Check(DesiredCheck),
    Group(DesiredGroup),
    SharedBackend(DesiredSharedBackend),
}

/// The reply to a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeReply {
    pub(crate) objects: objects::ChangeReply<ObjectKind>,
    /// The object was not deleted, since this other object uses it.
    pub(crate) kept: Option<String>,
}

/// What later parts of a Service need to know of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartFacts {
    /// Of a shared part.
    shared: SharedState,
    /// Of a load balancer.
    references: BalancerReferences,
}

/// The state of the object of a shared part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SharedState {
    /// It does not exist. There is no instance group in a zone that never had a node.
    #[default]
    Missing,
    /// It is being created. Nothing can refer to it yet.
    Accepted,
    Ready,
}

impl PartInputs {
    /// The nodes as members of load balancers of a scheme.
    fn members(&self, cluster: &ClusterView, settings: &BalancerSettings, scheme: Scheme) -> NodeMembers {
        let subnet = match scheme {
            Scheme::Internal if !self.subnetwork.is_empty() => Some(members::subnet_name(&self.subnetwork)),
            _ => None,
        };
        NodeMembers::of(cluster, &self.index, settings, subnet)
    }

    fn firewalls(&self, settings: &BalancerSettings) -> FirewallAccess {
        FirewallAccess {
            is_unmanaged: !settings.manages_firewalls,
            denied: Arc::clone(&self.denied),
            keeps_tags: settings.node_tags.is_empty() && !self.index.silent.is_empty(),
        }
    }
}

impl Model {
    /// The shared parts that the load balancer of a Service needs, in the order of creation.
    fn needed_parts(
        &self,
        spec: &Spec,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> BTreeSet<PartKey> {
        let mut parts = BTreeSet::new();
        if spec.scheme == Scheme::Internal && self.settings.manages_groups {
            let zones = members::zones(cluster, &self.settings);
            parts.extend(zones.into_iter().map(PartKey::Group));
        }
        if spec.local_port.is_none() {
            parts.insert(match spec.scheme {
                Scheme::External => PartKey::NodeHttpCheck,
                Scheme::Internal => PartKey::NodeCheck,
            });
        }
        if spec.shares_backend {
            let name = names::shared_backend(&directory.cluster_id, spec.protocol, spec.affinity);
            parts.insert(PartKey::SharedBackend(name));
        }
        parts
    }

    /// The shared parts that a Service may have needed before: all that there can be, so that they are the same ones whatever other
    /// Services do.
    fn former_parts(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> BTreeSet<PartKey> {
        let mut parts = BTreeSet::new();
        if spec::may_have_been(service, Scheme::External) {
            parts.insert(PartKey::NodeHttpCheck);
        }
        if spec::may_have_been(service, Scheme::Internal) {
            parts.insert(PartKey::NodeCheck);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for affinity in [Affinity::None, Affinity::ClientIp] {
                    let name = names::shared_backend(&directory.cluster_id, protocol, affinity);
                    parts.insert(PartKey::SharedBackend(name));
                }
            }
            if self.settings.manages_groups {
                let mut zones = members::zones(cluster, &self.settings);
                zones.extend(self.settings.zones.iter().cloned());
                zones.extend(directory.zones().map(str::to_owned));
                parts.extend(zones.into_iter().map(PartKey::Group));
            }
        }
        parts
    }

    /// Why a Service is refused.
    fn invalid(&self, member: &PartMember, cluster: &ClusterView, inputs: &PartInputs) -> Vec<InvalidField> {
        let spec = &member.spec;
        let mut invalid = spec.invalid.clone();
        invalid.extend(self.invalid_address(&member.service, spec, inputs));
        if spec.scheme == Scheme::Internal && inputs.is_legacy_network {
            let text = format!(
                "network {:?} is a legacy network, which has no subnetworks; an internal load balancer needs one",
                last_component(&self.settings.network)
            );
            invalid.push(InvalidField::annotation(a::TYPE, text));
        } else if spec.scheme == Scheme::Internal && spec.subnet.is_none() && !inputs.no_subnetwork.is_empty()
        {
            invalid.push(InvalidField::annotation(a::SUBNET, &inputs.no_subnetwork));
        }
        invalid.extend(self.invalid_subnetwork(spec, inputs));
        let ranges = names::port_ranges(spec.ports.iter().copied()).len();
        if self.settings.manages_firewalls && ranges > PORT_RANGES {
            let text = format!(
                "they are {ranges} ranges of ports, and a firewall rule has at most {PORT_RANGES}; use consecutive ports, or several \
                 Services"
            );
            invalid.push(InvalidField::spec("ports", text));
        }
        let members = inputs.members(cluster, &self.settings, spec.scheme);
        let (_, untagged) = members.tags(&inputs.index, &self.settings);
        if self.settings.manages_firewalls && !untagged.is_empty() {
            let text = format!(
                "firewall rules need a network tag for each node, but instances {} have none that is a prefix of their name; set \
                 node-tags in the config",
                untagged.iter().take(3).cloned().collect::<Vec<_>>().join(", ")
            );
            invalid.push(InvalidField::spec("ports", text));
        }
        invalid
    }

    /// Why the address cannot be in the subnetwork from which the Service requests it. Without this check, the instance groups and the health
    /// check would be created before the API refuses the address.
    fn invalid_subnetwork(&self, spec: &Spec, inputs: &PartInputs) -> Option<InvalidField> {
        let path = self.settings.requested_subnetwork(spec, &inputs.subnetwork)?;
        let RequestedSubnetwork { range, problem } = inputs.requested_subnetworks.get(&path)?;
        if !problem.is_empty() {
            return Some(InvalidField::annotation(a::SUBNET, problem));
        }
        let (range, address): (IpNet, IpAddr) = (range.parse().ok()?, spec.address.parse().ok()?);
        if range.contains(&address) {
            return None;
        }
        let name = last_component(&path);
        let text = format!("{address} is not in the range {range} of subnetwork {name:?}");
        Some(InvalidField::spec("loadBalancerIP", text))
    }

    fn invalid_address(
        &self,
        service: &ServiceView,
        spec: &Spec,
        inputs: &PartInputs,
    ) -> Option<InvalidField> {
        let address = spec.address.as_str();
        if address.is_empty() {
            return None;
        }
        let refused = |problem: String| Some(InvalidField::spec("loadBalancerIP", problem));
        if address.parse::<Ipv4Addr>().is_err() {
            return refused(format!("{address:?} is not an IPv4 address"));
        }
        let name = names::balancer(&service.id);
        let directory = &inputs.directory;
        let is_own = [ObjectKind::Rule, ObjectKind::Address].into_iter().any(|kind| {
            directory.get(kind, &name).is_some_and(|object| object.text(fields::ADDRESS) == address)
        });
        let reserved = directory.reserved(&name);
        match (reserved.get(address), spec.scheme) {
            (Some(reserved), scheme) if reserved.scheme != scheme.as_str() => {
                let (is, needed) = (reserved.scheme.to_lowercase(), scheme.as_str().to_lowercase());
                refused(format!("{address} is reserved as an {is} address; an {needed} one is needed"))
            }
            (Some(reserved), Scheme::External) => {
                let tier = spec.tier.unwrap_or_default().as_str();
                if reserved.tier == tier || (spec.tier.is_none() && is_own) {
                    return None;
                }
                let (has, needed) = (Spec::tier_name(&reserved.tier), Spec::tier_name(tier));
                refused(format!("{address} belongs to the {has} network tier, not to {needed}"))
            }
            (None, Scheme::External) if !is_own => {
                let region = &self.settings.region;
                refused(format!(
                    "{address} is neither reserved in region {region} nor the address of the load balancer"
                ))
            }
            _ => None,
        }
    }

    /// Events about a valid Service.
    fn events(&self, member: &PartMember, cluster: &ClusterView, inputs: &PartInputs) -> Vec<ServiceEvent> {
        let (service, spec) = (&member.service, &member.spec);
        let id = &service.id;
        let members = inputs.members(cluster, &self.settings, spec.scheme);
        let mut events = Vec::new();
        events.extend(IgnoredValue::event(&spec.ignored, id));
        let asks_for_internal = [a::TYPE, a::OLD_TYPE]
            .iter()
            .any(|key| matches!(service.annotation(key), Some("Internal" | "internal")));
        if service.class.as_deref() == Some(EXTERNAL_CLASS) && asks_for_internal {
            let text = format!(
                "the load balancer is external, since class {EXTERNAL_CLASS} takes precedence over annotation {}",
                a::TYPE
            );
            events.push(ServiceEvent::warning(id, "ConflictingConfiguration", text));
        }
        let what = "Nodes that are not members of the load balancer";
        events.extend(ServiceEvent::nodes_left_out(id, what, &members.left_out));
        let surplus = members.surplus();
        if spec.scheme == Scheme::Internal && self.settings.manages_groups && surplus > 0 {
            let text = format!(
                "{surplus} nodes are not members of the load balancer: an instance group has at most {GROUP_SIZE} instances, and \
                 each zone has one group"
            );
            events.push(ServiceEvent::warning(id, NodeLeftOut::EVENT, text));
        }
        events
    }

    fn balancer(
        &self,
        name: &str,
        member: Option<&PartMember>,
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredBalancer {
        let mut desired = DesiredBalancer {
            name: name.to_owned(),
            service: None,
            state: DesiredState::Deleted,
            members: None,
            groups: None,
            firewalls: inputs.firewalls(&self.settings),
        };
        let Some(member) = member else {
            return desired;
        };
        let (service, spec) = (&member.service, &member.spec);
        let members = inputs.members(cluster, &self.settings, spec.scheme);
        let (tags, _) = members.tags(&inputs.index, &self.settings);
        if member.follows_nodes() && !members.keeps {
            desired.groups = self.groups(&members, std::slice::from_ref(member), inputs);
            desired.members = Some(Arc::new(members));
        }
        desired.service = Some(service.id.clone());
        desired.state = match &member.membership {
            Membership::Active => DesiredState::Requested(Box::new(RequestedBalancer {
                service: service.id.clone(),
                lacks_shared: self.lacks_shared(member, cluster, &inputs.directory),
                cluster_id: inputs.directory.cluster_id.clone(),
                tags,
                subnetwork: match &spec.subnet {
                    Some(name) => self.settings.subnetwork_path(name),
                    None if spec.scheme == Scheme::Internal => inputs.subnetwork.clone(),
                    None => String::new(),
                },
                reserved: inputs.directory.reserved(name),
                status: service.status_addresses().next().map(|ip| ip.to_string()).unwrap_or_default(),
                settings: Arc::clone(&self.settings),
                spec: Arc::clone(spec),
            })),
            _ => DesiredState::Unchanged,
        };
        desired
    }

    /// Whether a shared object that the load balancer needs is being created, or does not exist yet although its part served the Service
    /// with an earlier spec. The pass that creates it requests another one over this part.
    fn lacks_shared(
        &self,
        member: &PartMember,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> bool {
        let needed = self.needed_parts(&member.spec, cluster, directory);
        let mut needed_facts = member.facts.iter().filter(|(part, _)| needed.contains(part));
        needed_facts.any(|(part, facts)| match facts.shared {
            SharedState::Ready => false,
            SharedState::Accepted => true,
            SharedState::Missing => !matches!(part, PartKey::Group(_)),
        })
    }

    /// The resource paths of the instance groups of the nodes; `None`: they stay, since not all are known. Without those that do not exist
    /// yet: their parts create them, and this one is run again then.
    fn groups(
        &self,
        nodes: &NodeMembers,
        members: &[PartMember],
        inputs: &PartInputs,
    ) -> Option<Vec<String>> {
        let directory = &inputs.directory;
        if self.settings.manages_groups {
            let cluster_id = &directory.cluster_id;
            let is_missing = |zone: &&str| {
                let group = PartKey::Group((*zone).to_owned());
                let mut facts = members.iter().flat_map(|member| &member.facts);
                facts.any(|(part, facts)| *part == group && facts.shared != SharedState::Ready)
            };
            let zones = nodes.zones().into_iter().filter(|zone| !is_missing(zone)).take(BACKENDS);
            return Some(zones.map(|zone| self.settings.group_path(zone, cluster_id)).collect());
        }
        let zones = nodes.zones();
        if zones.iter().any(|zone| directory.silent.contains(*zone)) {
            return None;
        }
        let groups = directory
            .of(ObjectKind::Group)
            .filter(|group| zones.contains(names::group_zone(&group.key)))
            .take(BACKENDS)
            .map(|group| group.id.clone());
        Some(groups.collect())
    }

    /// Whether the members need a shared part. One that does not need it any more may still refer to it until its load balancer has
    /// changed.
    fn need(
        key: &PartKey,
        members: &[PartMember],
        directory: &BalancerDirectory,
        uses: impl Fn(&Spec) -> bool,
    ) -> Need {
        let needs = |member: &PartMember| member.service.wants_load_balancer() && uses(&member.spec);
        let refers = |member: &PartMember| {
            let name = names::balancer(&member.service.id);
            let mut facts = member.facts.iter();
            match facts.find(|(part, _)| *part == PartKey::Balancer(name.clone())) {
                Some((_, facts)) => facts.references.used(directory).contains(key),
                None => directory.used_by(&name).contains(key),
            }
        };
        if PartMember::active(members).any(needs) {
            Need::Full
        } else if PartMember::staying(members).any(|member| needs(member) || refers(member)) {
            Need::Unchanged
        } else {
            Need::None
        }
    }

    /// Whether the objects that internal load balancers share follow the nodes. A Service that is external now only waits to leave.
    fn follow_nodes(members: &[PartMember]) -> bool {
        let mut following = members.iter().filter(|member| member.follows_nodes());
        following.any(|member| member.spec.scheme == Scheme::Internal)
    }

    fn check_part(
        &self,
        kind: ObjectKind,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredCheck {
        let (scheme, key) = match kind {
            ObjectKind::HttpCheck => (Scheme::External, PartKey::NodeHttpCheck),
            _ => (Scheme::Internal, PartKey::NodeCheck),
        };
        let nodes = inputs.members(cluster, &self.settings, scheme);
        DesiredCheck {
            kind,
            need: Self::need(&key, members, &inputs.directory, |spec| {
                spec.scheme == scheme && spec.local_port.is_none()
            }),
            cluster_id: inputs.directory.cluster_id.clone(),
            tags: nodes.tags(&inputs.index, &self.settings).0,
            settings: Arc::clone(&self.settings),
            firewalls: inputs.firewalls(&self.settings),
        }
    }

    fn group_part(
        &self,
        zone: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredGroup {
        let nodes = inputs.members(cluster, &self.settings, Scheme::Internal);
        let follows = Self::follow_nodes(members);
        DesiredGroup {
            zone: zone.to_owned(),
            need: Self::need(&PartKey::Group(zone.to_owned()), members, &inputs.directory, |spec| {
                spec.scheme == Scheme::Internal
            }),
            members: if follows && !nodes.keeps {
                Some(Arc::new(nodes))
            } else {
                None
            },
        }
    }

    fn shared_backend(
        &self,
        name: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredSharedBackend {
        let nodes = inputs.members(cluster, &self.settings, Scheme::Internal);
        let follows = Self::follow_nodes(members);
        let cluster_id = &inputs.directory.cluster_id;
        let check = names::node_check(cluster_id);
        let uses = |spec: &Spec| {
            spec.shares_backend && names::shared_backend(cluster_id, spec.protocol, spec.affinity) == name
        };
        let mut specs = PartMember::staying(members).map(|member| &*member.spec);
        let first = specs.find(|spec| uses(spec));
        DesiredSharedBackend {
            name: name.to_owned(),
            need: Self::need(&PartKey::SharedBackend(name.to_owned()), members, &inputs.directory, uses),
            protocol: first.map(|spec| spec.protocol.as_str()).unwrap_or_default(),
            affinity: first.map(|spec| spec.affinity.as_str()).unwrap_or_default(),
            check: self.settings.global_path("healthChecks", &check),
            groups: if follows && !nodes.keeps {
                self.groups(&nodes, members, inputs)
            } else {
                None
            },
        }
    }
}

/// The most instance groups of a backend service.
const BACKENDS: usize = 250;
/// The most ranges of ports of a firewall rule.
const PORT_RANGES: usize = 100;

impl PartModel for Model {
    type Key = PartKey;
    type Directory = BalancerDirectory;
    type Inputs = PartInputs;
    type Spec = Spec;
    type Facts = PartFacts;
    type Desired = DesiredPart;
    type Observed = Objects;
    type Change = ObjectChange;
    type Reply = ChangeReply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        spec::claims(service, &self.settings)
    }

    fn classes(&self) -> &[&'static str] {
        &[EXTERNAL_CLASS, INTERNAL_CLASS]
    }

    fn finalizers(&self, service: &ServiceView) -> ProviderFinalizers {
        spec::finalizers(service)
    }

    fn spec(&self, service: &ServiceView, _: &ClusterView) -> Spec {
        Spec::read(service)
    }

    fn parts(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> Parts<PartKey> {
        let name = names::balancer(&service.id);
        let balancer = PartKey::Balancer(name.clone());
        let exists = directory.of_balancer(&name).next().is_some();
        let mut needed = self.needed_parts(&Spec::read(service), cluster, directory);
        let former = self.former_parts(service, cluster, directory);
        if service.wants_load_balancer() {
            // It stays in parts that it does not need any more, so that they are reconciled after its load balancer has changed.
            let later: Vec<_> = former.difference(&needed).cloned().collect();
            let named = needed.into_iter().chain([balancer.clone()]).chain(later);
            return Parts {
                named: named.collect(),
                tagged: exists.then_some(balancer).into_iter().collect(),
            };
        }
        needed.extend(former.iter().cloned());
        let mut parts = Parts {
            named: needed.into_iter().collect(),
            tagged: Vec::new(),
        };
        parts.named.push(balancer);
        if exists {
            parts.tagged.clone_from(&parts.named);
        } else {
            // A process that was killed may have left them.
            let existing = [Scheme::External, Scheme::Internal].map(|scheme| directory.shared_parts(scheme));
            let unused = existing.into_iter().flatten().filter(|part| !directory.used.contains(part));
            parts.tagged.extend(unused.filter(|part| former.contains(part)));
        }
        parts
    }

    /// The names of load balancers contain the UID of the Service.
    fn former(
        &self,
        service: &ServiceView,
        _: &ClusterView,
        directory: &BalancerDirectory,
    ) -> FormerLoadBalancer {
        if service.class.is_none() && self.settings.serves_only_classes {
            // The other controller deletes it.
            return FormerLoadBalancer::Missing;
        }
        let name = names::balancer(&service.id);
        let mut own = directory.of_balancer(&name);
        match own.find(|object| object.kind != ObjectKind::Address && object.foreign.is_none()) {
            Some(object) => FormerLoadBalancer::Ours(object.title()),
            None => FormerLoadBalancer::Missing,
        }
    }

    /// Load balancers of Services that do not exist. Objects have no ownership tag, and several clusters may be in a project: those of this
    /// cluster have its nodes, or the instance groups with its ID.
    fn orphans(&self, snapshot: &ClusterSnapshot, directory: &BalancerDirectory) -> Vec<Orphan<PartKey>> {
        let known: BTreeSet<_> =
            snapshot.services.iter().map(|service| names::balancer(&service.id)).collect();
        let is_candidate = |object: &&Object| {
            let name = object.key.as_str();
            let is_described = names::described_service(object.text(fields::DESCRIPTION)).is_some();
            is_described && names::may_be_balancer(name) && !known.contains(name)
        };
        let what = |object: &Object| {
            let service = names::described_service(object.text(fields::DESCRIPTION)).unwrap_or_default();
            format!("{} of Service {service}", object.title())
        };
        let key = |object: &Object| PartKey::Balancer(object.key.clone());
        let nodes = members::instances(&snapshot.cluster, &self.settings);
        let mut orphans = Vec::new();
        for pool in directory.of(ObjectKind::Pool).filter(is_candidate) {
            let members = pool.set(INSTANCES);
            orphans.extend(Orphan::untagged(key(pool), what(pool), members, |member| nodes.contains(member)));
        }
        let names = snapshot.own_names(Some(&directory.cluster_id));
        for backend in directory.of(ObjectKind::Backend).filter(is_candidate) {
            let groups = backend.texts(fields::GROUPS);
            orphans.extend(Orphan::untagged(key(backend), what(backend), &groups, |group| {
                names.owner(last_component(group)) == NameOwner::Cluster
            }));
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
        for member in members {
            let id = &member.service.id;
            for (name, denied) in &*inputs.denied {
                let of_part = match key {
                    PartKey::Balancer(balancer) => names::owner(name) == balancer,
                    PartKey::NodeHttpCheck => {
                        *name == names::node_http_check_firewall(&inputs.directory.cluster_id)
                    }
                    PartKey::NodeCheck => *name == names::node_check_firewall(&inputs.directory.cluster_id),
                    PartKey::Group(_) | PartKey::SharedBackend(_) => false,
                };
                if of_part {
                    result.events.push(denied.event(id));
                }
            }
        }
        for member in PartMember::active(members) {
            let service = &member.service;
            let invalid = self.invalid(member, cluster, inputs);
            let is_balancer = matches!(key, PartKey::Balancer(_));
            // Each of its parts refuses it, and the later ones wait for the first.
            if member.spec.is_mixed {
                let text = "LoadBalancer with multiple protocols are not supported.";
                result.events.push(ServiceEvent::warning(&service.id, MIXED_PROTOCOLS, text));
                result.conditions.push((service.id.clone(), ports_condition(true)));
            }
            if !invalid.is_empty() {
                result.refused.push((service.id.clone(), InvalidField::error(&invalid)));
            } else if is_balancer {
                result.events.extend(self.events(member, cluster, inputs));
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
        match key {
            PartKey::Balancer(name) => {
                let member = PartMember::staying(members).next();
                DesiredPart::Balancer(Box::new(self.balancer(name, member, cluster, inputs)))
            }
            PartKey::NodeHttpCheck => {
                DesiredPart::Check(self.check_part(ObjectKind::HttpCheck, members, cluster, inputs))
            }
            PartKey::NodeCheck => {
                DesiredPart::Check(self.check_part(ObjectKind::Check, members, cluster, inputs))
            }
            PartKey::Group(zone) => DesiredPart::Group(self.group_part(zone, members, cluster, inputs)),
            PartKey::SharedBackend(name) => {
                DesiredPart::SharedBackend(self.shared_backend(name, members, cluster, inputs))
            }
        }
    }

    fn missing(&self, key: &PartKey, members: &[PartMember], observed: &Objects) -> Option<String> {
        let was_there = members.iter().any(|member| !member.service.ingress.is_empty());
        match key {
            PartKey::Balancer(name) if was_there && observed.get(ObjectKind::Rule, name).is_none() => {
                Some(format!("forwarding rule {name}"))
            }
            _ => None,
        }
    }

    fn required_facts(&self, key: &PartKey, earlier: &PartKey) -> RequiredFacts {
        match (key, earlier) {
            // The facts of a shared part say whether it is ready.
            (PartKey::Balancer(_), _) => RequiredFacts::Accepted,
            (PartKey::SharedBackend(_), PartKey::SharedBackend(_)) => RequiredFacts::Independent,
            // What it refers to must be ready.
            (PartKey::SharedBackend(_), _) => RequiredFacts::Finished,
            // One that the load balancer does not need any more follows it, by its references.
            (_, PartKey::Balancer(_) | PartKey::SharedBackend(_)) => RequiredFacts::Accepted,
            (
                PartKey::NodeHttpCheck | PartKey::Group(_) | PartKey::NodeCheck,
                PartKey::NodeHttpCheck | PartKey::Group(_) | PartKey::NodeCheck,
            ) => RequiredFacts::Independent,
        }
    }

    /// While its object is being created, a shared part says so: the address of a load balancer is reserved meanwhile.
    fn early_facts(&self, key: &PartKey, member: &PartMember, observed: &Objects) -> Option<PartFacts> {
        let mut facts = self.facts(key, member, observed)?.facts;
        if facts.shared == SharedState::Ready {
            facts.shared = SharedState::Accepted;
        }
        Some(facts)
    }

    /// The answer to a change is an operation, which does not have the address.
    fn lacks_result(&self, observed: &Objects) -> bool {
        let mut addresses = observed.of(ObjectKind::Address);
        addresses.any(|address| address.text(fields::ADDRESS).is_empty())
    }

    fn plan(&self, desired: &DesiredPart, observed: &Objects) -> Plan<ObjectChange> {
        match desired {
            DesiredPart::Balancer(desired) => desired.plan(observed),
            DesiredPart::Check(desired) => desired.plan(observed),
            DesiredPart::Group(desired) => desired.plan(observed),
            DesiredPart::SharedBackend(desired) => desired.plan(observed),
        }
    }

    fn fold(&self, _: &PartKey, change: &ObjectChange, reply: Option<&ChangeReply>, observed: &mut Objects) {
        let change = &with_reserved_address(change, observed);
        if let Some(user) = reply.and_then(|reply| reply.kept.as_ref()) {
            let mut all = observed.all.iter_mut();
            if let Some(object) = all.find(|object| object.kind == change.kind && object.key == change.key) {
                object.foreign = Some(format!("in use: {user}"));
            }
            return;
        }
        observed.fold(change, reply.map(|reply| &reply.objects));
    }

    fn facts(&self, key: &PartKey, member: &PartMember, observed: &Objects) -> Option<PartOutput<PartFacts>> {
        let mut output = PartOutput::<PartFacts>::default();
        let PartKey::Balancer(name) = key else {
            // One that waits may need the part later than it thinks: with another spec, the order of parts is another one.
            if matches!(member.membership, Membership::Frozen(_)) {
                return None;
            }
            if observed.all.iter().any(|object| object.kind != ObjectKind::CheckFirewall) {
                output.facts.shared = SharedState::Ready;
            }
            return Some(output);
        };
        let mut annotate = |key: &str, value: Option<&str>| {
            if self.settings.annotates {
                output.effects.annotate(key, value);
            }
        };
        if member.leaves() {
            annotate(a::TARGET_POOL, None);
            annotate(a::BACKEND_SERVICE, None);
            return Some(output);
        }
        let rule = observed.get(ObjectKind::Rule, name)?;
        output.facts.references = BalancerReferences::of(&observed.all);
        let (pool, backend) = match rule.text(fields::BACKEND_SERVICE) {
            "" => (Some(last_component(rule.text(fields::TARGET))), None),
            path => (None, Some(last_component(path))),
        };
        annotate(a::TARGET_POOL, pool);
        annotate(a::BACKEND_SERVICE, backend);
        let address = rule.text(fields::ADDRESS);
        if !address.is_empty() {
            output.effects.ingress = Some(vec![Ingress::address(address, IpMode::Vip)]);
        }
        let was_refused = member.service.conditions.iter().any(|condition| &*condition.kind == PORTS_ERROR);
        if was_refused && !member.spec.is_mixed {
            output.effects.conditions.insert(PORTS_ERROR.to_owned(), ports_condition(false));
        }
        Some(output)
    }
}

/// The condition that says whether the ports of a Service are refused.
fn ports_condition(is_refused: bool) -> Condition {
    let (reason, message) = if is_refused {
        (MIXED_PROTOCOLS, "LoadBalancer with multiple protocols are not supported")
    } else {
        ("LoadBalancerPortsSupported", "All ports have the same protocol")
    };
    Condition {
        kind: PORTS_ERROR.into(),
        is_true: is_refused,
        reason: reason.into(),
        message: message.into(),
    }
}
