//! The desired state of parts, from Services, nodes and discovered inputs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ccm_core::{
    NodeView, Result,
    load_balancer::{
        AddressGroup, ClusterView, IpFamily, Ownership, OwnershipTag, Protocol, ServiceId, ServiceView,
        SessionAffinity,
    },
    plan::{
        Fact, Membership,
        objects::{self, Object, Objects},
    },
};

use super::settings::LoadBalancing;
use super::{
    annotations,
    features::{Capabilities, Feature},
    fields,
    groups::{Group, RULES},
    kinds::{ListenerKey, ObjectKind},
    member::{Host, Member},
    names, observe,
    part::{Model, OpenStackPart, PartMember},
    protocols::{self, HealthCheck},
    responses::{LoadBalancer, Rule},
    spec::{self, BalancerSpec, ClientRanges, HealthMonitorTimes, Timeouts},
    tags::ServiceTags,
};
use crate::instances::provider_id;

/// The discovered inputs of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceInputs {
    /// The family of its virtual address: that of the load balancer, or of the Service if it does not exist yet.
    pub(crate) vip_family: Option<IpFamily>,
    /// The subnet of its virtual address.
    pub(crate) vip_subnet: String,
    /// The subnets of a new virtual address if the first choice has no free address.
    pub(crate) other_subnets: Vec<String>,
    /// The second IP family, if the load balancer has or gets an address of it.
    pub(crate) second: Option<SecondFamily>,
    /// The subnet of its members; empty if that is unknown before the load balancer exists.
    pub(crate) member_subnet: String,
    /// The CIDR of the members' subnet.
    pub(crate) member_range: String,
    /// The network of its floating IP; `None` if there is none.
    pub(crate) floating_network: Option<String>,
    /// Subnets to try in order; empty: Neutron chooses.
    pub(crate) floating_subnets: Vec<String>,
    /// The attached floating IP, if that of a changed `spec.loadBalancerIP` replaces it.
    pub(crate) replaced_floating: Option<String>,
}

/// The second IP family of a dual-stack load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecondFamily {
    pub(crate) family: IpFamily,
    /// The subnets of a new additional virtual address, to be tried in order.
    pub(crate) subnets: Vec<String>,
    /// The subnet of the members of this family; empty if there are none.
    pub(crate) member_subnet: String,
    /// The CIDR of that subnet.
    pub(crate) member_range: String,
}

impl ServiceInputs {
    /// The IP families of the load balancer's addresses.
    pub(crate) fn families(&self) -> Vec<IpFamily> {
        self.vip_family
            .into_iter()
            .chain(self.second.as_ref().map(|second| second.family))
            .collect()
    }
}

/// The places of the virtual addresses of a new load balancer, in addition to its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewVip {
    /// The subnets that follow if the first choice has no free address.
    pub(crate) other_subnets: Vec<String>,
    /// The subnets of the additional virtual address, to be tried in order; empty if there is none.
    pub(crate) additional_subnets: Vec<String>,
}

/// Tags of Services, by the ports of their listeners.
pub(crate) type PortOwners = BTreeMap<ListenerKey, String>;

/// The discovered inputs of a part.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartInputs {
    /// The owners of ports that several Services request.
    pub(crate) port_owners: PortOwners,
    pub(crate) can: Capabilities,
    /// What each active Service asks for, read once for all decisions of a pass; an error names its refused values.
    pub(crate) specs: BTreeMap<ServiceId, Result<Arc<BalancerSpec>>>,
    pub(crate) each: BTreeMap<ServiceId, ServiceInputs>,
    /// Ids of the security groups of Services, by name.
    pub(crate) groups: BTreeMap<String, Vec<String>>,
    /// The load balancer from the listings, for warnings.
    pub(crate) balancer: Option<Arc<LoadBalancer>>,
    /// Nodes whose ports can get no security group, by the family of the Services.
    pub(crate) without_port: BTreeMap<Option<IpFamily>, Vec<(Arc<NodeView>, String)>>,
    /// Services whose session affinity changed since this process observed them first.
    pub(crate) changed_affinity: BTreeSet<ServiceId>,
}

impl PartInputs {
    /// Reads the specs of the active members. Node ports need no feature, and their provider is not known.
    pub(crate) fn read_specs(
        &mut self,
        settings: &LoadBalancing,
        key: &OpenStackPart,
        members: &[PartMember],
    ) {
        let can = (*key != OpenStackPart::NodePorts).then_some(self.can);
        for member in PartMember::active(members) {
            let spec = BalancerSpec::read(&member.service, settings, can).map(Arc::new);
            self.specs.insert(member.service.id.clone(), spec);
        }
    }

    /// What an active Service asks for, if nothing of it is refused.
    pub(crate) fn spec(&self, service: &ServiceId) -> Option<&Arc<BalancerSpec>> {
        self.specs.get(service)?.as_ref().ok()
    }
}

/// The desired state of a part.
#[derive(Debug)]
pub(crate) enum DesiredPart {
    /// A load balancer.
    Balancer(Box<DesiredBalancer>),
    /// The security group of a Service.
    Group(Option<objects::Desired<Group>>),
    /// The security groups of node ports.
    Ports(DesiredNodePorts),
}

/// The desired state of a load balancer.
#[derive(Debug)]
pub(crate) struct DesiredBalancer {
    pub(crate) key: OpenStackPart,
    pub(crate) ownership_tag: OwnershipTag,
    /// The cluster's name.
    pub(crate) cluster: String,
    pub(crate) can: Capabilities,
    pub(crate) provider: String,
    pub(crate) serial: bool,
    pub(crate) cascade: bool,
    /// Whether Octavia may fail over a load balancer in ERROR.
    pub(crate) failover: bool,
    pub(crate) max_shared: i64,
    pub(crate) has_nodes: bool,
    pub(crate) active: Vec<ActiveService>,
    pub(crate) frozen: Vec<FrozenService>,
    pub(crate) leaving: Vec<LeavingService>,
}

/// A Service that gets what it requests.
#[derive(Debug)]
pub(crate) struct ActiveService {
    pub(crate) owner: Owner,
    pub(crate) internal: bool,
    /// Whether it has a floating IP if an external network exists.
    pub(crate) is_public: bool,
    pub(crate) keep_floating_ip: bool,
    /// Whether its annotations contain the ID and the address of this load balancer.
    pub(crate) had_load_balancer: bool,
    /// Fields that are only set when a load balancer is created.
    pub(crate) fields: Vec<(&'static str, String)>,
    /// Where a new load balancer gets its addresses.
    pub(crate) vip: NewVip,
    /// Those of them that the Service sets by annotation.
    pub(crate) given: Vec<(&'static str, String)>,
    /// The tags that it requests; empty if Octavia does not support tags.
    pub(crate) tags: ServiceTags,
    pub(crate) floating: DesiredFloatingIp,
    /// Whether its session affinity changed since this process observed it first.
    pub(crate) is_affinity_changed: bool,
    pub(crate) ports: Vec<DesiredListener>,
}

/// The Service that owns an object.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) service: ServiceId,
    /// The name of its own load balancer, and its tag on each one that it uses.
    pub(crate) tag: String,
    legacy: String,
    /// The load balancer and the addresses that its annotations and status name.
    pub(crate) named: Vec<String>,
    pub(crate) floating_description: String,
}

/// The IDs and addresses of load balancers that a Service names.
pub(crate) fn named(service: &ServiceView) -> Vec<String> {
    let annotated = [annotations::LOAD_BALANCER_ID, annotations::LOAD_BALANCER_ADDRESS]
        .iter()
        .filter_map(|key| service.annotation(key));
    annotated
        .map(str::to_owned)
        .chain(service.status_addresses().map(|address| address.to_string()))
        .collect()
}

impl Owner {
    /// Whether the Service names another load balancer than that of the part, and not by the name of its own one.
    fn names_another(&self, service: &ServiceView, key: &OpenStackPart) -> bool {
        let named = service.annotation(annotations::LOAD_BALANCER_ID).unwrap_or_default();
        !named.is_empty() && !self.owns(named) && matches!(key, OpenStackPart::Balancer(id) if id != named)
    }

    fn of(service: &ServiceView, cluster: &ClusterView) -> Self {
        Self {
            service: service.id.clone(),
            tag: names::load_balancer(&cluster.name, &service.id),
            legacy: names::legacy_load_balancer(&service.id),
            named: named(service),
            floating_description: names::floating_ip_description(
                &cluster.name,
                &service.id,
                cluster.ownership_tag.for_create(),
            ),
        }
    }

    /// Whether the load balancer with this name was created for the Service.
    pub(crate) fn owns(&self, name: &str) -> bool {
        self.tag == name || self.legacy == name
    }

    /// Whether the Service names this load balancer, by its ID or its present or former address.
    pub(crate) fn knows(&self, objects: &Objects<ObjectKind>, balancer: &Object<ObjectKind>) -> bool {
        let names = |text: &str| !text.is_empty() && self.named.iter().any(|named| named == text);
        let floating = observe::floating(objects, balancer);
        names(&balancer.id)
            && (names(balancer.text(fields::VIP_ADDRESS))
                || floating.is_some_and(|have| names(have.text(fields::FLOATING_IP_ADDRESS))))
    }

    /// Whether this floating IP was created for the Service. It has our ownership tag, or no ownership tag and the
    /// Service's address.
    pub(crate) fn created(&self, floating: &Object<ObjectKind>, ownership_tag: &OwnershipTag) -> bool {
        let subject = names::subject_of_floating_ip(floating.text(fields::DESCRIPTION));
        let address = floating.text(fields::FLOATING_IP_ADDRESS);
        subject == Some(&*names::floating_ip_subject(&self.service))
            && match observe::ownership_of_floating(floating, ownership_tag) {
                Ownership::Ours => true,
                Ownership::Foreign(_) => false,
                Ownership::Adopted | Ownership::Unverified => self.named.iter().any(|named| named == address),
            }
    }
}

/// The desired floating IP of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredFloatingIp {
    /// `None`: the Service gets no floating IP.
    pub(crate) network: Option<String>,
    pub(crate) subnets: Vec<String>,
    /// The requested address; empty: any.
    pub(crate) address: String,
    pub(crate) description: String,
}

/// The desired state of one port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredListener {
    pub(crate) listener_key: ListenerKey,
    pub(crate) index: usize,
    pub(crate) protocol: &'static str,
    pub(crate) connection_limit: i64,
    pub(crate) timeouts: Option<Timeouts>,
    pub(crate) forwarded_for: bool,
    pub(crate) tls: String,
    /// `None`: Octavia does not support source ranges.
    pub(crate) ranges: Option<ClientRanges>,
    pub(crate) pool_protocol: &'static str,
    /// The load balancing method. An unknown one is not applied to an existing pool.
    pub(crate) method: String,
    pub(crate) sticky: bool,
    /// `None`: without nodes, the pool keeps its members.
    pub(crate) members: Option<Vec<Member>>,
    pub(crate) monitor: Option<DesiredMonitor>,
}

/// The desired health monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DesiredMonitor {
    pub(crate) check: HealthCheck,
    pub(crate) times: HealthMonitorTimes,
}

/// A Service that keeps its current state.
#[derive(Debug)]
pub(crate) struct FrozenService {
    pub(crate) owner: Owner,
    pub(crate) internal: bool,
    /// The members of its listeners, if they follow the nodes.
    pub(crate) follows: Vec<(ListenerKey, Vec<Member>)>,
}

/// A Service that is leaving.
#[derive(Debug)]
pub(crate) struct LeavingService {
    pub(crate) owner: Owner,
    pub(crate) keep_floating_ip: bool,
    /// Whether it has or had another load balancer.
    pub(crate) has_moved: bool,
}

/// The security groups of node ports.
#[derive(Debug, Default)]
pub(crate) struct DesiredNodePorts {
    /// By server and address: security groups that the port with that address must have.
    pub(crate) required: HashMap<(String, String), Vec<GroupRef>>,
    /// Security groups that no port may have.
    pub(crate) forbidden: Vec<GroupRef>,
}

/// A reference to the security group of a Service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupRef {
    pub(crate) service: ServiceId,
    pub(crate) name: String,
    pub(crate) id: Fact<String>,
}

/// The desired state of a part, from its members and the nodes.
pub(crate) fn desired(
    model: &Model,
    key: &OpenStackPart,
    members: &[PartMember],
    cluster: &ClusterView,
    inputs: &PartInputs,
) -> DesiredPart {
    match key {
        OpenStackPart::Balancer(_) | OpenStackPart::New(_) => {
            let desired = balancer(&model.settings, key, members, cluster, inputs);
            DesiredPart::Balancer(Box::new(desired))
        }
        OpenStackPart::Group(name) => DesiredPart::Group(group(name, members, cluster, inputs)),
        OpenStackPart::NodePorts => DesiredPart::Ports(ports(model, members, cluster, inputs)),
    }
}

/// The desired state of a load balancer that all of its Services leave; `None` if one of them stays. It needs no
/// discovery.
pub(crate) fn left_by_all(
    settings: &LoadBalancing,
    key: &OpenStackPart,
    members: &[PartMember],
    cluster: &ClusterView,
) -> Option<DesiredBalancer> {
    let leave = members.iter().all(PartMember::leaves);
    leave.then(|| balancer(settings, key, members, cluster, &PartInputs::default()))
}

/// The ID of a node's server.
pub(crate) fn server_of(provider_id: &str) -> Option<String> {
    match provider_id::parse(provider_id) {
        Ok(provider_id::ProviderId::Server { id, .. }) => Some(id.to_owned()),
        _ => None,
    }
}

/// The desired state of a load balancer: active, frozen and leaving Services, with their listeners and members.
fn balancer(
    settings: &LoadBalancing,
    key: &OpenStackPart,
    members: &[PartMember],
    cluster: &ClusterView,
    inputs: &PartInputs,
) -> DesiredBalancer {
    let conf = &settings.conf;
    let mut desired = DesiredBalancer {
        key: key.clone(),
        ownership_tag: cluster.ownership_tag.clone(),
        cluster: cluster.name.to_string(),
        can: inputs.can,
        provider: conf.lb_provider.clone(),
        serial: conf.provider_requires_serial_api_calls,
        cascade: conf.cascade_delete,
        failover: conf.failover_in_error,
        max_shared: conf.max_shared_lb,
        has_nodes: !cluster.nodes.keeps_members(),
        active: Vec::new(),
        frozen: Vec::new(),
        leaving: Vec::new(),
    };
    for member in members {
        let service = &member.service;
        let owner = Owner::of(service, cluster);
        let read = inputs.spec(&service.id).zip(inputs.each.get(&service.id));
        match (&member.membership, read) {
            (Membership::Leaving, _) => desired.leaving.push(LeavingService {
                keep_floating_ip: spec::keeps_floating_ip(service),
                has_moved: service.wants_load_balancer() || owner.names_another(service, key),
                owner,
            }),
            (Membership::Active, Some((spec, found))) => {
                let mut active = active(key, service, owner, spec, found, inputs.can, cluster);
                active.is_affinity_changed = inputs.changed_affinity.contains(&service.id);
                desired.active.push(active);
            }
            _ => {
                let follows = member.follows_nodes() && desired.has_nodes;
                desired.frozen.push(FrozenService {
                    owner,
                    internal: spec::is_internal(service, settings),
                    follows: if follows {
                        follow(settings, service, cluster)
                    } else {
                        Vec::new()
                    },
                });
            }
        }
    }
    desired
}

fn active(
    key: &OpenStackPart,
    service: &Arc<ServiceView>,
    owner: Owner,
    spec: &BalancerSpec,
    found: &ServiceInputs,
    can: Capabilities,
    cluster: &ClusterView,
) -> ActiveService {
    let second_family = found.second.as_ref().map(|second| second.family);
    let has_v4 = spec.family != Some(IpFamily::V6) || second_family == Some(IpFamily::V4);
    let id = service.annotation(annotations::LOAD_BALANCER_ID);
    let address = service.annotation(annotations::LOAD_BALANCER_ADDRESS);
    let had_load_balancer =
        matches!(key, OpenStackPart::Balancer(key) if id == Some(key)) && address.is_some();
    let is_open = spec.vip_port.is_empty();
    let (flavors, zones) = (can.has(Feature::Flavors), can.has(Feature::AvailabilityZones));
    let description = names::load_balancer_description(&cluster.name, &service.id);
    let fields = [
        (fields::DESCRIPTION, true, &*description),
        (fields::FLAVOR_ID, flavors, &spec.flavor),
        (fields::AVAILABILITY_ZONE, zones, &spec.zone),
        (fields::VIP_PORT_ID, true, &spec.vip_port),
        (fields::VIP_SUBNET_ID, is_open, &found.vip_subnet),
        (fields::VIP_NETWORK_ID, is_open, &spec.vip_network),
        (fields::VIP_ADDRESS, spec.internal || !has_v4, &service.load_balancer_ip),
    ];
    let create_only = [
        (fields::VIP_SUBNET_ID, annotations::SUBNET_ID),
        (fields::VIP_NETWORK_ID, annotations::NETWORK_ID),
        (fields::VIP_PORT_ID, annotations::PORT_ID),
        (fields::FLAVOR_ID, annotations::FLAVOR_ID),
        (fields::AVAILABILITY_ZONE, annotations::AVAILABILITY_ZONE),
    ];
    let fields: Vec<_> = fields
        .into_iter()
        .filter(|(_, has, value)| *has && !value.is_empty())
        .map(|(field, _, value)| (field, value.to_owned()))
        .collect();
    let mut given = fields.clone();
    given.retain(|(field, _)| {
        let key = create_only.iter().find(|(name, _)| name == field);
        key.is_some_and(|(_, key)| service.annotation(key).is_some_and(|value| !value.is_empty()))
    });
    ActiveService {
        internal: spec.internal,
        is_public: !spec.internal && has_v4,
        keep_floating_ip: spec.keep_floating_ip,
        had_load_balancer,
        given,
        fields,
        vip: NewVip {
            other_subnets: found.other_subnets.clone(),
            additional_subnets: found.second.iter().flat_map(|second| second.subnets.clone()).collect(),
        },
        tags: if can.has(Feature::Tags) {
            spec.tags.clone()
        } else {
            ServiceTags::default()
        },
        floating: DesiredFloatingIp {
            network: found.floating_network.clone(),
            subnets: found.floating_subnets.clone(),
            address: service.load_balancer_ip.to_string(),
            description: owner.floating_description.clone(),
        },
        is_affinity_changed: false,
        ports: desired_listeners(service, spec, found, can, cluster),
        owner,
    }
}

fn desired_listeners(
    service: &ServiceView,
    spec: &BalancerSpec,
    found: &ServiceInputs,
    can: Capabilities,
    cluster: &ClusterView,
) -> Vec<DesiredListener> {
    let health = spec.monitor.and(service.health_check_port());
    let first_hosts = hosts(&spec.selector.nodes(cluster, spec.family), &found.member_subnet);
    let mut all_hosts = first_hosts.clone();
    if let Some(second) = found.second.as_ref().filter(|second| !second.member_subnet.is_empty()) {
        let nodes = spec.selector.nodes(cluster, Some(second.family));
        all_hosts.extend(hosts(&nodes, &second.member_subnet));
    }
    let ranges = if can.has(Feature::AllowedCidrs) {
        spec.client_ranges(&found.families()).0
    } else {
        None
    };
    let each = service.ports.iter().enumerate().map(|(index, port)| {
        let protocol = protocols::listener(port.protocol, !spec.tls.is_empty(), spec.forwarded_for);
        let check = HealthCheck::of(port.protocol, health, can);
        // Octavia refuses members of another family than the first address's in pools that forward packets.
        let hosts = if port.protocol == Protocol::Tcp {
            &all_hosts
        } else {
            &first_hosts
        };
        DesiredListener {
            listener_key: port.into(),
            index,
            protocol,
            connection_limit: spec.connection_limit,
            timeouts: can.has(Feature::Timeouts).then_some(spec.timeouts),
            forwarded_for: spec.forwarded_for,
            tls: spec.tls.clone(),
            ranges: ranges.clone(),
            pool_protocol: protocols::pool(protocol, spec.proxy),
            method: spec.method.clone(),
            sticky: service.session_affinity != SessionAffinity::None,
            members: (!cluster.nodes.keeps_members())
                .then(|| members_at(hosts, port.node_port, check.monitor_port())),
            monitor: spec.monitor.map(|times| DesiredMonitor { check, times }),
        }
    });
    each.collect()
}

/// The shared part of the members of all ports, by address.
fn hosts(nodes: &[AddressGroup<'_>], subnet: &str) -> Vec<Arc<Host>> {
    let hosts = nodes.iter().map(|group| {
        Arc::new(Host {
            name: group.newest.view.name.clone(),
            address: group.address.to_string(),
            subnet_id: subnet.to_owned(),
            other_names: group.others.iter().map(|node| node.view.name.clone()).collect(),
            ..Host::default()
        })
    });
    hosts.collect()
}

/// The members of a port for these nodes.
fn members_at(hosts: &[Arc<Host>], node_port: u16, monitor_port: Option<u16>) -> Vec<Member> {
    if node_port == 0 {
        return Vec::new();
    }
    hosts
        .iter()
        .map(|host| Member {
            host: Arc::clone(host),
            protocol_port: node_port,
            monitor_port,
            ..Member::default()
        })
        .collect()
}

/// The members of a Service's ports, independent of other problems with the Service.
fn follow(
    settings: &LoadBalancing,
    service: &ServiceView,
    cluster: &ClusterView,
) -> Vec<(ListenerKey, Vec<Member>)> {
    let selector = spec::selector(service, settings);
    let mut all_hosts = hosts(&selector.nodes(cluster, service.ip_families.first().copied()), "");
    if let Some(second) = service.ip_families.get(1) {
        all_hosts.extend(hosts(&selector.nodes(cluster, Some(*second)), ""));
    }
    let ports = service.ports.iter().filter(|port| port.node_port > 0);
    ports.map(|port| (port.into(), members_at(&all_hosts, port.node_port, None))).collect()
}

/// The ID of the member's security group.
pub(crate) fn group_of(member: &PartMember) -> Option<&Fact<String>> {
    let mut facts = member.facts.iter().rev();
    facts.find_map(|(_, facts)| facts.group.as_ref())
}

fn ports(
    model: &Model,
    members: &[PartMember],
    cluster: &ClusterView,
    inputs: &PartInputs,
) -> DesiredNodePorts {
    let mut desired = DesiredNodePorts::default();
    for member in members {
        let service = &member.service;
        match member.membership {
            Membership::Leaving => {
                let name = names::security_group(&service.id);
                let ids = inputs.groups.get(&name).into_iter().flatten();
                desired.forbidden.extend(ids.map(|id| GroupRef {
                    service: service.id.clone(),
                    name: name.clone(),
                    id: Fact::Known(id.clone()),
                }));
            }
            // A refused Service follows the nodes, too.
            _ if member.follows_nodes() => {
                let Some(id) = group_of(member) else { continue };
                let group = GroupRef {
                    service: service.id.clone(),
                    name: names::security_group(&service.id),
                    id: id.clone(),
                };
                let selector = spec::selector(service, &model.settings);
                let has_second = member.facts.iter().any(|(_, facts)| !facts.additional_subnet.is_empty());
                let mut families = vec![service.ip_families.first().copied()];
                if has_second && let Some(second) = service.ip_families.get(1) {
                    families.push(Some(*second));
                }
                for family in families {
                    for node in cluster.nodes.eligible() {
                        let server = node.view.provider_id.as_deref().and_then(server_of);
                        if let Some((server, address)) = server.zip(node.address(family))
                            && selector.matches(&node.view.labels)
                        {
                            let required = desired.required.entry((server, address.to_string()));
                            required.or_default().push(group.clone());
                        }
                    }
                }
            }
            Membership::Active | Membership::Frozen(_) => {}
        }
    }
    desired
}

/// The desired state of the security group with this name; `None`: it stays unchanged.
fn group(
    name: &str,
    members: &[PartMember],
    cluster: &ClusterView,
    inputs: &PartInputs,
) -> Option<objects::Desired<Group>> {
    let objects = match PartMember::active(members).next() {
        Some(PartMember { service, .. }) => {
            let found = inputs.each.get(&service.id)?;
            let spec = inputs.spec(&service.id)?;
            let description = names::security_group_description(&cluster.name, &service.id);
            let group = Object::new(Group, name).with(fields::DESCRIPTION, description);
            vec![Object {
                service: Some(service.id.clone()),
                ..group.entries(RULES, group_rules(service, spec, found, inputs.can))
            }]
        }
        None if !members.is_empty() && members.iter().all(PartMember::leaves) => Vec::new(),
        None => return None,
    };
    Some(objects::Desired {
        objects,
        ..objects::Desired::default()
    })
}

fn group_rules(
    service: &ServiceView,
    spec: &BalancerSpec,
    found: &ServiceInputs,
    can: Capabilities,
) -> Vec<Rule> {
    let second_range = found.second.iter().map(|second| &second.member_range);
    let member_ranges: Vec<_> = std::iter::once(&found.member_range)
        .chain(second_range)
        .filter(|range| !range.is_empty())
        .collect();
    // Only OVN keeps the client's address as the source.
    let ranges = if can.ovn {
        let families: Vec<_> = member_ranges.iter().map(|range| family_of(range)).collect();
        let (ranges, _) = spec.client_ranges(&families);
        ranges.map(|ranges| ranges.texts()).unwrap_or_default()
    } else {
        member_ranges.iter().map(|range| (*range).clone()).collect()
    };
    let rule = |protocol: Protocol, port, range: &String| Rule {
        direction: "ingress".to_owned(),
        ethertype: match family_of(range) {
            IpFamily::V4 => "IPv4".to_owned(),
            IpFamily::V6 => "IPv6".to_owned(),
        },
        protocol: protocol.as_str().to_lowercase(),
        port_range_min: Some(port),
        port_range_max: Some(port),
        remote_ip_prefix: range.clone(),
        ..Rule::default()
    };
    let mut rules = Vec::new();
    for port in service.ports.iter().filter(|port| port.node_port > 0) {
        rules.extend(ranges.iter().map(|range| rule(port.protocol, port.node_port, range)));
    }
    let check = service.health_check_node_port;
    if check > 0 {
        rules.extend(member_ranges.iter().map(|range| rule(Protocol::Tcp, check, range)));
    }
    rules
}

/// The IP family of a CIDR.
fn family_of(range: &str) -> IpFamily {
    if range.contains(':') {
        IpFamily::V6
    } else {
        IpFamily::V4
    }
}
