//! Security groups as they should be, and which ports have them.

use ccm_core::{
    load_balancer::{ClusterView, Protocol, ServiceView},
    plan::{Fact, Member, Membership},
};

use super::{Found, GroupRef, GroupWish, Inputs, PortsWish, RuleTuple, server_of};
use crate::load_balancer::{
    features::Capabilities,
    model::Model,
    names,
    wanted::{self, Wanted},
};

pub(super) fn group(
    model: &Model,
    name: &str,
    members: &[Member<Model>],
    cluster: &ClusterView,
    inputs: &Inputs,
) -> GroupWish {
    let joined = members
        .iter()
        .find(|member| member.membership == Membership::Active);
    let rules = joined.and_then(|member| {
        let service = &member.service;
        let found = inputs.each.get(&service.id)?;
        let wanted = Wanted::read(service, &model.settings, Some(inputs.can)).ok()?;
        Some(rules(service, &wanted, found, inputs.can))
    });
    GroupWish {
        name: name.to_owned(),
        service: joined.map(|member| member.service.id.clone()),
        description: joined
            .map(|member| names::security_group_description(&cluster.name, &member.service.id))
            .unwrap_or_default(),
        rules,
        goes: !members.is_empty()
            && members
                .iter()
                .all(|member| member.membership == Membership::Leaving),
    }
}

fn rules(service: &ServiceView, wanted: &Wanted, found: &Found, can: Capabilities) -> Vec<RuleTuple> {
    let ethertype = if found.member_range.contains(':') {
        "IPv6"
    } else {
        "IPv4"
    };
    // The client's address arrives at the nodes only there.
    let ranges = if can.ovn {
        wanted.ranges.texts()
    } else {
        vec![found.member_range.clone()]
    };
    let rule = |protocol: Protocol, port, range: &String| RuleTuple {
        protocol: protocol.as_str().to_lowercase(),
        ethertype,
        port,
        range: range.clone(),
    };
    let ports = service.ports.iter().filter(|port| port.node_port > 0);
    let mut rules: Vec<_> = ports
        .flat_map(|port| {
            let each = ranges.iter();
            each.map(move |range| rule(port.protocol, port.node_port, range))
        })
        .collect();
    if service.health_check_node_port > 0 {
        rules.push(rule(
            Protocol::Tcp,
            service.health_check_node_port,
            &found.member_range,
        ));
    }
    rules.sort();
    rules.dedup();
    rules
}

pub(super) fn ports(
    model: &Model,
    members: &[Member<Model>],
    cluster: &ClusterView,
    inputs: &Inputs,
) -> PortsWish {
    let mut wish = PortsWish::default();
    for member in members {
        let service = &member.service;
        match member.membership {
            Membership::Leaving => {
                let name = names::security_group(&service.id);
                let ids = inputs.groups.get(&name).into_iter().flatten();
                wish.unwanted.extend(ids.map(|id| GroupRef {
                    name: name.clone(),
                    id: Fact::Known(id.clone()),
                }));
            }
            // One that is refused follows the nodes, too.
            _ if member.follows_nodes() => {
                let Some(group) = member
                    .facts
                    .iter()
                    .rev()
                    .find_map(|(_, facts)| facts.group.clone())
                else {
                    continue;
                };
                let group = GroupRef {
                    name: names::security_group(&service.id),
                    id: group,
                };
                let selector = wanted::selector(service, &model.settings);
                let family = service.ip_families.first().copied();
                for node in cluster.nodes.eligible() {
                    let server = node.view.provider_id.as_deref().and_then(server_of);
                    let taken = selector.matches(&node.view.labels);
                    if let Some((server, address)) = server.zip(node.address(family)).filter(|_| taken) {
                        wish.wanted.push((address.to_string(), server, group.clone()));
                    }
                }
            }
            Membership::Active | Membership::Frozen(_) => {}
        }
    }
    wish
}
