//! Load balancers as they should be: who joins, who keeps what it has, who leaves, and with which members.

use std::sync::Arc;

use ccm_core::{
    load_balancer::{AddressGroup, ClusterView, IpFamily, ServiceView, SessionAffinity},
    plan::{Member, Membership},
};

use super::{
    FloatingWish, Found, Inputs, Joined, Kept, Leaver, MemberWish, MonitorWish, NewFields, PortWish, Who,
    Wish,
};
use crate::{
    config::LoadBalancing,
    load_balancer::{
        annotations as note,
        features::{Capabilities, Feature},
        key::Key,
        model::Model,
        names,
        observe::Slot,
        protocols::{self, Check},
        tags::ServiceTags,
        wanted::{self, Wanted},
    },
};

pub(super) fn wish(
    settings: &LoadBalancing,
    key: &Key,
    members: &[Member<Model>],
    cluster: &ClusterView,
    inputs: &Inputs,
) -> Wish {
    let conf = &settings.conf;
    let mut wish = Wish {
        key: key.clone(),
        marks: cluster.ownership_tag.clone(),
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
        let read = (member.membership == Membership::Active)
            .then(|| Wanted::read(service, settings, Some(inputs.can)).ok())
            .flatten()
            .zip(inputs.each.get(&service.id));
        match (&member.membership, read) {
            (Membership::Leaving, _) => wish.leaving.push(Leaver {
                who,
                keep_floating_ip: wanted::keeps_floating_ip(service),
            }),
            (Membership::Active, Some((wanted, found))) => {
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
    let v6 = wanted.family == Some(IpFamily::V6);
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
        tags: if can.has(Feature::Tags) {
            wanted.tags.clone()
        } else {
            ServiceTags::default()
        },
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
    let nodes = wanted.selector.nodes(cluster, wanted.family);
    let each = service.ports.iter().enumerate().map(|(index, port)| {
        let protocol = protocols::listener(port.protocol, !wanted.tls.is_empty(), wanted.forwarded_for);
        let check = Check::of(port.protocol, health, can);
        let members = members_at(&nodes, port.node_port).map(|member| MemberWish {
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

/// The members that these nodes are at a port, one for each address.
fn members_at<'a>(nodes: &'a [AddressGroup<'_>], node_port: u16) -> impl Iterator<Item = MemberWish> + 'a {
    let nodes = nodes.iter().filter(move |_| node_port > 0);
    nodes.map(move |group| MemberWish {
        name: group.newest.view.name.clone(),
        other_names: group.others.iter().map(|node| node.view.name.clone()).collect(),
        address: group.address.to_string(),
        port: node_port,
        ..MemberWish::default()
    })
}

/// The members that a Service would have wherever it has a listener, whatever else is wrong with it.
fn follow(
    settings: &LoadBalancing,
    service: &ServiceView,
    cluster: &ClusterView,
) -> Vec<(Slot, Vec<MemberWish>)> {
    let selector = wanted::selector(service, settings);
    let nodes = selector.nodes(cluster, service.ip_families.first().copied());
    let ports = service.ports.iter().filter(|port| port.node_port > 0);
    ports
        .map(|port| {
            let slot = Slot {
                transport: port.protocol,
                port: port.port,
            };
            (slot, members_at(&nodes, port.node_port).collect())
        })
        .collect()
}
