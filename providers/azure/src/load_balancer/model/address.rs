//! The desired public IP addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ccm_core::{
    load_balancer::{ClusterView, IpFamily},
    plan::{Fact, Membership},
};

use super::{Model, PartInputs, PartMember};
use crate::load_balancer::{
    desired::{AddressUser, DesiredAddress, Need},
    directory::{BalancerDirectory, part_of},
    document::Target,
    spec::{AddressChoice, AddressSettings, PublicAddress},
};

impl Model {
    /// The public IP address of a Service in this part.
    pub(super) fn address<'a>(
        member: &'a PartMember,
        part: &str,
        directory: &BalancerDirectory,
    ) -> Option<&'a PublicAddress> {
        member.spec.addresses.iter().find(|address| address.part(directory) == part)
    }

    pub(super) fn desired_address(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredAddress {
        let directory = &inputs.directory;
        let users = members.iter().map(|member| {
            let address = Self::address(member, part, directory);
            let (is_creator, prefix) = match address.map(|address| &address.choice) {
                Some(AddressChoice::Managed { prefix, .. }) => (true, prefix.clone()),
                _ => (false, None),
            };
            let (need, settings) = match member.membership {
                Membership::Active => (Need::Full, member.spec.address_settings.clone()),
                Membership::Frozen(_) => (Need::Unchanged, AddressSettings::default()),
                Membership::Leaving => (Need::None, AddressSettings::default()),
            };
            AddressUser {
                service: member.service.id.clone(),
                names: member.spec.names.clone(),
                need,
                is_creator,
                prefix,
                settings,
            }
        });
        let families =
            members.iter().filter_map(|member| Some(Self::address(member, part, directory)?.family));
        // The part may have the IP address in place of the name.
        let existing = directory.address(part).map(part_of);
        let (group, name) = existing.as_deref().unwrap_or(part).split_once('/').unwrap_or_default();
        DesiredAddress {
            target: Target::Address {
                group: group.to_owned(),
                name: name.to_owned(),
            },
            users: users.collect(),
            family: families.into_iter().next().unwrap_or(IpFamily::V4),
            cluster: cluster.name.to_string(),
            ownership_tag: cluster.ownership_tag.clone(),
            zones: inputs.zones.clone(),
            place: self.place(),
        }
    }

    /// The addresses that a Service has now.
    pub(super) fn known_addresses(member: &PartMember) -> BTreeMap<IpFamily, Fact<IpAddr>> {
        let all = member.facts.iter().flat_map(|(_, facts)| &facts.addresses);
        all.map(|(family, address)| (*family, address.clone())).collect()
    }
}

/// The ID of the public IP address of a Service, if its part has been built.
pub(super) fn public_id(member: &PartMember, family: IpFamily) -> Option<String> {
    member.facts.iter().find_map(|(_, facts)| facts.public_ids.get(&family).cloned())
}
