//! How the parts should be, as values: from Services, nodes and what was found out for them.

mod groups;

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    load_balancer::{ClusterView, Marks, ServiceId, ServiceView, SessionAffinity},
    plan::{Fact, Member, Standing},
};

use super::{
    annotations as note,
    bodies::Timeouts,
    features::{Capabilities, Feature},
    holders::Holders,
    key::Key,
    model::Model,
    names,
    observe::{Slot, Tree},
    protocols::{self, Check},
    records::{FloatingIp, LoadBalancer},
    selector::Selector,
    source_ranges::SourceRanges,
    wanted::{self, Pace, Wanted},
};
use crate::{config::LoadBalancing, instances::provider_id};

/// What was found out for one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where its virtual address is to be.
    pub(crate) vip_subnet: String,
    /// Where its members are; empty if that is not known before there is a load balancer.
    pub(crate) member_subnet: String,
    /// The network of the members' subnet, as a range.
    pub(crate) member_range: String,
    /// Where floating addresses come from; `None`: nowhere.
    pub(crate) floating_network: Option<String>,
    /// Subnets to try one after the other; empty: Neutron chooses.
    pub(crate) floating_subnets: Vec<String>,
}

/// What was found out.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    /// Who has the ports that several Services ask for.
    pub(crate) holders: Holders,
    pub(crate) can: Capabilities,
    pub(crate) each: BTreeMap<ServiceId, Found>,
    /// Ids of the security groups of Services, by name.
    pub(crate) groups: BTreeMap<String, Vec<String>>,
    /// The load balancer as the listings show it, for what is to be said of it.
    pub(crate) balancer: Option<Arc<LoadBalancer>>,
}

/// How a part should be.
#[derive(Debug)]
pub(crate) enum Desired {
    /// A load balancer.
    Balancer(Box<Wish>),
    /// The security group of a Service.
    Group(GroupWish),
    /// The groups of ports.
    Ports(PortsWish),
}

/// What is wanted of a load balancer.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) key: Key,
    pub(crate) marks: Marks,
    /// The cluster's name.
    pub(crate) cluster: String,
    pub(crate) can: Capabilities,
    pub(crate) provider: String,
    pub(crate) serial: bool,
    pub(crate) cascade: bool,
    /// Whether one in ERROR may be given to Octavia to be made anew behind its address.
    pub(crate) failover: bool,
    pub(crate) max_shared: i64,
    pub(crate) has_nodes: bool,
    pub(crate) joined: Vec<Joined>,
    pub(crate) kept: Vec<Kept>,
    pub(crate) leaving: Vec<Leaver>,
}

/// A Service that gets what it asks for.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) who: Who,
    pub(crate) internal: bool,
    pub(crate) keep_floating_ip: bool,
    /// It bears the id of a load balancer that was made for it.
    pub(crate) had_one: bool,
    pub(crate) fields: NewFields,
    /// Create-only annotations with their values.
    pub(crate) given: Vec<(&'static str, String)>,
    pub(crate) floating: FloatingWish,
    pub(crate) ports: Vec<PortWish>,
}

/// Whose something is.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) service: ServiceId,
    /// The name of its own load balancer, and its tag on every one that it uses.
    pub(crate) tag: String,
    legacy: String,
    /// Load balancer and addresses of which it speaks.
    pub(crate) named: Vec<String>,
    pub(crate) floating_description: String,
}

impl Who {
    fn of(service: &ServiceView, cluster: &ClusterView) -> Self {
        let annotated = [note::LOAD_BALANCER_ID, note::LOAD_BALANCER_ADDRESS];
        let annotated = annotated.iter().filter_map(|key| service.annotation(key));
        Self {
            service: service.id.clone(),
            tag: names::load_balancer(&cluster.name, &service.id),
            legacy: names::legacy_load_balancer(&service.id),
            named: annotated
                .map(str::to_owned)
                .chain(service.status_addresses().map(|address| address.to_string()))
                .collect(),
            floating_description: names::floating_ip_description(&cluster.name, &service.id),
        }
    }

    /// Whether the load balancer with this name was made for it.
    pub(crate) fn owns(&self, name: &str) -> bool {
        self.tag == name || self.legacy == name
    }

    /// Whether it speaks of this load balancer: by its id, and by the address that it has or had through it.
    pub(crate) fn knows(&self, tree: &Tree) -> bool {
        let balancer = &tree.balancer;
        let names = |text: &str| !text.is_empty() && self.named.iter().any(|named| named == text);
        let floating = tree.floating.as_ref();
        names(&balancer.id)
            && (names(&balancer.vip_address) || floating.is_some_and(|have| names(&have.floating_ip_address)))
    }

    /// Whether this floating address was made for it.
    pub(crate) fn made(&self, floating: &FloatingIp) -> bool {
        names::is_floating_ip_of(&floating.description, &self.service)
            && self.named.contains(&floating.floating_ip_address)
    }
}

/// What only a new load balancer can be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewFields {
    pub(crate) description: String,
    pub(crate) flavor: String,
    pub(crate) zone: String,
    pub(crate) vip_port: String,
    pub(crate) vip_subnet: String,
    pub(crate) vip_network: String,
    pub(crate) vip_address: String,
}

/// The floating address that a Service wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FloatingWish {
    /// `None`: it can have none.
    pub(crate) network: Option<String>,
    pub(crate) subnets: Vec<String>,
    /// This one; empty: any.
    pub(crate) address: String,
    pub(crate) description: String,
}

/// What is wanted of one port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PortWish {
    pub(crate) slot: Slot,
    pub(crate) index: usize,
    pub(crate) protocol: &'static str,
    pub(crate) connection_limit: i64,
    pub(crate) timeouts: Option<Timeouts>,
    pub(crate) forwarded_for: bool,
    pub(crate) tls: String,
    /// `None`: this Octavia lets everybody in.
    pub(crate) ranges: Option<SourceRanges>,
    pub(crate) pool_protocol: &'static str,
    /// How connections are spread; one that Octavia does not know is not applied to a pool that is there.
    pub(crate) method: String,
    pub(crate) sticky: bool,
    /// `None`: there are no nodes, it keeps those that it has.
    pub(crate) members: Option<Vec<MemberWish>>,
    pub(crate) monitor: Option<MonitorWish>,
}

/// A member that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberWish {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) subnet: String,
    /// `None`: its own port; nothing is changed for a member of which nothing is known here.
    pub(crate) monitor_port: Option<u16>,
}

/// The health monitor that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MonitorWish {
    pub(crate) check: Check,
    pub(crate) pace: Pace,
}

/// A Service that keeps what it has.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) who: Who,
    /// Where its members follow the nodes.
    pub(crate) follows: Vec<(Slot, Vec<MemberWish>)>,
}

/// A Service that goes.
#[derive(Debug)]
pub(crate) struct Leaver {
    pub(crate) who: Who,
    pub(crate) keep_floating_ip: bool,
}

/// What is wanted of a security group.
#[derive(Debug)]
pub(crate) struct GroupWish {
    pub(crate) name: String,
    pub(crate) service: Option<ServiceId>,
    pub(crate) description: String,
    /// `None`: it stays as it is.
    pub(crate) rules: Option<Vec<RuleTuple>>,
    pub(crate) goes: bool,
}

/// What tells a rule from the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleTuple {
    pub(crate) protocol: String,
    pub(crate) ethertype: &'static str,
    pub(crate) port: u16,
    pub(crate) range: String,
}

/// Which ports have which groups.
#[derive(Debug, Default)]
pub(crate) struct PortsWish {
    /// By address and server: groups that the port with that address has to have.
    pub(crate) wanted: Vec<(String, String, GroupRef)>,
    /// Groups that no port may have.
    pub(crate) unwanted: Vec<GroupRef>,
}

/// A security group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupRef {
    pub(crate) name: String,
    pub(crate) id: Fact<String>,
}

/// From members and nodes to how their part should be.
pub(crate) fn desired(
    model: &Model,
    key: &Key,
    members: &[Member<Model>],
    cluster: &ClusterView,
    inputs: &Inputs,
) -> Desired {
    match key {
        Key::Balancer(_) | Key::New(_) => {
            Desired::Balancer(Box::new(wish(&model.settings, key, members, cluster, inputs)))
        }
        Key::Group(name) => Desired::Group(groups::group(model, name, members, cluster, inputs)),
        Key::NodePorts => Desired::Ports(groups::ports(model, members, cluster, inputs)),
    }
}

fn wish(
    settings: &LoadBalancing,
    key: &Key,
    members: &[Member<Model>],
    cluster: &ClusterView,
    inputs: &Inputs,
) -> Wish {
    let conf = &settings.conf;
    let mut wish = Wish {
        key: key.clone(),
        marks: cluster.marks.clone(),
        cluster: cluster.name.to_string(),
        can: inputs.can,
        provider: conf.lb_provider.clone(),
        serial: conf.provider_requires_serial_api_calls,
        cascade: conf.cascade_delete,
        failover: conf.failover_in_error,
        max_shared: conf.max_shared_lb,
        has_nodes: !cluster.nodes.keeps_members(),
        joined: Vec::new(),
        kept: Vec::new(),
        leaving: Vec::new(),
    };
    for member in members {
        let service = &member.service;
        let who = Who::of(service, cluster);
        let read = (member.standing == Standing::Joined)
            .then(|| Wanted::read(service, settings, Some(inputs.can)).ok())
            .flatten()
            .zip(inputs.each.get(&service.id));
        match (&member.standing, read) {
            (Standing::Leaving, _) => wish.leaving.push(Leaver {
                who,
                keep_floating_ip: wanted::keeps_floating_ip(service),
            }),
            (Standing::Joined, Some((wanted, found))) => {
                wish.joined.push(joined(
                    settings, key, service, who, &wanted, found, inputs.can, cluster,
                ));
            }
            _ => {
                let follows = member.follows_nodes() && wish.has_nodes;
                wish.kept.push(Kept {
                    who,
                    follows: if follows {
                        follow(settings, service, cluster)
                    } else {
                        Vec::new()
                    },
                });
            }
        }
    }
    wish
}

#[expect(
    clippy::too_many_arguments,
    reason = "everything that decides about a Service"
)]
fn joined(
    settings: &LoadBalancing,
    key: &Key,
    service: &Arc<ServiceView>,
    who: Who,
    wanted: &Wanted,
    found: &Found,
    can: Capabilities,
    cluster: &ClusterView,
) -> Joined {
    let v6 = wanted.family == Some(ccm_core::load_balancer::IpFamily::V6);
    let id = service.annotation(note::LOAD_BALANCER_ID);
    let address = service.annotation(note::LOAD_BALANCER_ADDRESS);
    let had_one = matches!(key, Key::Balancer(key) if id == Some(key)) && address.is_some();
    let only = |feature, value: &str| {
        if can.has(feature) {
            value.to_owned()
        } else {
            String::new()
        }
    };
    let fields = NewFields {
        description: names::load_balancer_description(&cluster.name, &service.id),
        flavor: only(Feature::Flavors, &wanted.flavor),
        zone: only(Feature::AvailabilityZones, &wanted.zone),
        vip_port: wanted.vip_port.clone(),
        vip_subnet: if wanted.vip_port.is_empty() {
            found.vip_subnet.clone()
        } else {
            String::new()
        },
        vip_network: if wanted.vip_port.is_empty() {
            wanted.vip_network.clone()
        } else {
            String::new()
        },
        vip_address: if wanted.internal || v6 {
            service.load_balancer_ip.to_string()
        } else {
            String::new()
        },
    };
    let create_only = [
        note::SUBNET_ID,
        note::NETWORK_ID,
        note::PORT_ID,
        note::FLAVOR_ID,
        note::AVAILABILITY_ZONE,
    ];
    let given = create_only
        .into_iter()
        .filter_map(|key| Some((key, service.annotation(key)?.to_owned())))
        .filter(|(key, value)| {
            let has = match *key {
                note::FLAVOR_ID => can.has(Feature::Flavors),
                note::AVAILABILITY_ZONE => can.has(Feature::AvailabilityZones),
                _ => true,
            };
            has && !value.is_empty()
        })
        .collect();
    Joined {
        internal: wanted.internal,
        keep_floating_ip: wanted.keep_floating_ip,
        had_one,
        fields,
        given,
        floating: FloatingWish {
            network: found.floating_network.clone(),
            subnets: found.floating_subnets.clone(),
            address: service.load_balancer_ip.to_string(),
            description: who.floating_description.clone(),
        },
        ports: port_wishes(settings, service, wanted, found, can, cluster),
        who,
    }
}

fn port_wishes(
    settings: &LoadBalancing,
    service: &ServiceView,
    wanted: &Wanted,
    found: &Found,
    can: Capabilities,
    cluster: &ClusterView,
) -> Vec<PortWish> {
    let serial = settings.conf.provider_requires_serial_api_calls;
    let health = wanted.monitor.and(service.health_check_port());
    let each = service.ports.iter().enumerate().map(|(index, port)| {
        let protocol = protocols::listener(port.protocol, !wanted.tls.is_empty(), wanted.forwarded_for);
        let check = Check::of(port.protocol, health, can);
        let members = Nodes {
            cluster,
            selector: &wanted.selector,
            family: wanted.family,
        };
        let members = members.at(port.node_port).map(|member| MemberWish {
            subnet: found.member_subnet.clone(),
            monitor_port: if serial { None } else { check.monitor_port() },
            ..member
        });
        PortWish {
            slot: Slot {
                transport: port.protocol,
                port: port.port,
            },
            index,
            protocol,
            connection_limit: wanted.connection_limit,
            timeouts: can.has(Feature::Timeouts).then_some(wanted.timeouts),
            forwarded_for: wanted.forwarded_for,
            tls: wanted.tls.clone(),
            ranges: can.has(Feature::AllowedCidrs).then(|| wanted.ranges.clone()),
            pool_protocol: protocols::pool(protocol, wanted.proxy),
            method: wanted.method.clone(),
            sticky: service.session_affinity != SessionAffinity::None,
            members: (!cluster.nodes.keeps_members()).then(|| members.collect()),
            monitor: wanted.monitor.map(|pace| MonitorWish { check, pace }),
        }
    });
    each.collect()
}

/// The nodes that a Service takes.
struct Nodes<'a> {
    cluster: &'a ClusterView,
    selector: &'a Selector,
    family: Option<ccm_core::load_balancer::IpFamily>,
}

impl Nodes<'_> {
    fn at(&self, node_port: u16) -> impl Iterator<Item = MemberWish> {
        let nodes = self.cluster.nodes.eligible();
        let taken = nodes.filter(move |node| node_port > 0 && self.selector.matches(&node.view.labels));
        taken.filter_map(move |node| {
            Some(MemberWish {
                name: node.view.name.clone(),
                address: node.address(self.family)?.to_string(),
                port: node_port,
                ..MemberWish::default()
            })
        })
    }
}

/// The members that a Service would have wherever it has a listener, whatever else is wrong with it.
fn follow(
    settings: &LoadBalancing,
    service: &ServiceView,
    cluster: &ClusterView,
) -> Vec<(Slot, Vec<MemberWish>)> {
    let selector = wanted::selector(service, settings);
    let nodes = Nodes {
        cluster,
        selector: &selector,
        family: service.ip_families.first().copied(),
    };
    let ports = service.ports.iter().filter(|port| port.node_port > 0);
    ports
        .map(|port| {
            let slot = Slot {
                transport: port.protocol,
                port: port.port,
            };
            (slot, nodes.at(port.node_port).collect())
        })
        .collect()
}

/// The id of the server behind a node.
pub(crate) fn server_of(provider_id: &str) -> Option<String> {
    match provider_id::parse(provider_id) {
        Ok(provider_id::ProviderId::Server { id, .. }) => Some(id.to_owned()),
        _ => None,
    }
}
