//! The desired network security group.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::{
    load_balancer::{ClusterView, IpFamily, ServiceNode},
    plan::{Fact, Membership},
};

use super::{Model, PartInputs, PartKey, PartMember};
use crate::load_balancer::{
    annotations as a,
    directory::ip_of,
    document::Target,
    members,
    rules::has_floating_ip,
    security::{DesiredSecurity, NeededRule, NodeDestinations},
};

impl Model {
    /// The part of the network security group.
    pub(super) fn security_part(&self) -> Option<PartKey> {
        let name = self.settings.conf.security_group_name.trim();
        let part = format!("{}/{name}", self.settings.security_group_group);
        (!name.is_empty()).then_some(PartKey::SecurityGroup(part))
    }

    pub(in crate::load_balancer) fn desired_security(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredSecurity {
        let mut desired = DesiredSecurity {
            target: Target::security_group(part),
            rules: BTreeMap::new(),
            addresses: BTreeSet::new(),
            kept: BTreeMap::new(),
            nodes: NodeDestinations {
                addresses: cluster.nodes.all().iter().flat_map(node_addresses).collect(),
                ..NodeDestinations::default()
            },
            tags: self.settings.tags.clone(),
        };
        for member in members {
            let (service, spec) = (&member.service, &member.spec);
            let is_active = member.membership == Membership::Active;
            let known = Self::known_addresses(member);
            let mut addresses = inputs.directory.addresses_of(service, &spec.names, &cluster.name);
            addresses.extend(service.status_addresses());
            addresses.extend(known.values().filter_map(Fact::known));
            addresses.extend(&spec.additional);
            for address in &spec.addresses {
                let existing = inputs.directory.address(&address.part(&inputs.directory));
                addresses.extend(existing.and_then(ip_of));
            }
            // As long as the address of an active Service is not known, it keeps what it has.
            if (is_active && known.is_empty()) || (!is_active && !member.leaves()) {
                desired.keep(service, &addresses, &inputs.directory.ports_of(service, &spec.names));
                continue;
            }
            desired.addresses.extend(addresses);
            let sources = &spec.sources;
            for family in &spec.families {
                if !has_floating_ip(service, *family) {
                    let rules = sources.rules(service, *family);
                    desired.nodes.rules.extend(rules.into_iter().map(|rule| rule.name));
                }
            }
            if !is_active || a::is_true(service, a::NO_SECURITY_RULES) {
                continue;
            }
            let additional =
                spec.additional.iter().map(|address| (IpFamily::of(*address), Fact::Known(*address)));
            for family in known.keys().filter(|family| !has_floating_ip(service, **family)) {
                let groups =
                    cluster.nodes.by_address(Some(*family), |node| members::is_member(node, &self.settings));
                if groups.is_empty() {
                    // Without a node that may be a member, members stay.
                    desired.nodes.keep(service);
                }
                for rule in sources.rules(service, *family) {
                    for group in &groups {
                        desired.add(NeededRule::Allow(rule.clone()), &Fact::Known(group.address));
                    }
                }
            }
            let with_floating_ip = known
                .into_iter()
                .filter(|(family, _)| has_floating_ip(service, *family))
                .chain(additional);
            for (family, address) in with_floating_ip {
                for rule in sources.rules(service, family) {
                    desired.add(NeededRule::Allow(rule), &address);
                }
                if sources.denies_others {
                    desired.add(NeededRule::Deny(family), &address);
                }
            }
        }
        desired
    }
}

/// The addresses of a node of both families, as destinations of packets.
pub(super) fn node_addresses(node: &ServiceNode) -> impl Iterator<Item = IpAddr> {
    [IpFamily::V4, IpFamily::V6].into_iter().filter_map(|family| node.address(Some(family)))
}
