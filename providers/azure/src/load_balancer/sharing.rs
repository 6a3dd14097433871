//! Services that share an address: each port of it belongs to one of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::{
    load_balancer::{InvalidField, IpFamily, ServiceId},
    plan::Membership,
};
use serde_json::Value;

use super::{
    directory::{BalancerDirectory, private_ip},
    document::{FRONTENDS, RULES, element_named, elements, frontend_of_rule, name, reference},
    model::{Model, PartMember},
    rules::BalancingRule,
};
use crate::client::field;

/// The address of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SharedAddress {
    /// The part of a public IP address.
    Public(String),
    Private(IpAddr),
}

/// A Service at an address.
struct AddressClaim<'a> {
    member: &'a PartMember,
    rules: &'a [BalancingRule],
}

/// A port that is in use.
struct UsedPort {
    protocol: String,
    port: u64,
    owner: PortOwner,
}

#[derive(Clone, PartialEq, Eq)]
enum PortOwner {
    Service(ServiceId),
    /// The name of a rule that belongs to no Service of this cluster.
    Rule(String),
}

impl UsedPort {
    /// Whether a load balancer cannot have both rules on one frontend.
    fn excludes(&self, rule: &BalancingRule) -> bool {
        let (protocol, port) = (rule.protocol.as_str(), u64::from(rule.frontend_port));
        let is_same = self.port == port && self.protocol.eq_ignore_ascii_case(protocol);
        // A rule for all ports has number 0.
        is_same || self.port == 0 || port == 0
    }
}

impl Model {
    /// Why Services are refused that ask for a port of another Service at the same address. The Service that has the port keeps it.
    pub(super) fn port_conflicts(
        &self,
        members: &[PartMember],
        directory: &BalancerDirectory,
    ) -> BTreeMap<ServiceId, Vec<InvalidField>> {
        let chooses = |member: &PartMember| {
            let spec = &member.spec;
            let is_chosen = spec.addresses.iter().any(|address| !address.is_managed());
            is_chosen || (spec.is_internal && !spec.pinned.is_empty())
        };
        let mut conflicts: BTreeMap<ServiceId, Vec<InvalidField>> = BTreeMap::new();
        if !PartMember::active(members).any(chooses) {
            return conflicts;
        }
        let mut by_address: BTreeMap<SharedAddress, Vec<AddressClaim<'_>>> = BTreeMap::new();
        for member in PartMember::active(members).filter(|member| member.service.wants_load_balancer()) {
            for (family, set) in &member.spec.rules {
                let Some(address) = self.shared_address(member, *family, directory) else {
                    continue;
                };
                let claim = AddressClaim {
                    member,
                    rules: &set.rules,
                };
                by_address.entry(address).or_default().push(claim);
            }
        }
        for (address, mut claims) in by_address {
            claims.sort_by(|one, other| one.member.service.id.cmp(&other.member.service.id));
            let mut used = self.used_ports(&address, &claims, members, directory);
            for claim in claims {
                let id = &claim.member.service.id;
                let owner = PortOwner::Service(id.clone());
                for rule in claim.rules {
                    let other = used.iter().find(|used| used.owner != owner && used.excludes(rule));
                    if let Some(other) = other {
                        let invalid =
                            InvalidField::spec("ports", conflict_text(rule, &address, &other.owner));
                        conflicts.entry(id.clone()).or_default().push(invalid);
                        continue;
                    }
                    used.push(UsedPort {
                        protocol: rule.protocol.as_str().to_owned(),
                        port: rule.frontend_port.into(),
                        owner: owner.clone(),
                    });
                }
            }
        }
        conflicts
    }

    /// The address of a Service, if others can have it, too.
    fn shared_address(
        &self,
        member: &PartMember,
        family: IpFamily,
        directory: &BalancerDirectory,
    ) -> Option<SharedAddress> {
        let spec = &member.spec;
        if !spec.is_internal {
            let address = spec.addresses.iter().find(|address| address.family == family)?;
            return Some(SharedAddress::Public(address.part(directory)));
        }
        let pinned = spec.pinned.iter().copied().find(|address| IpFamily::of(*address) == family);
        let present = || {
            let balancer = directory.balancer(&self.balancer_part(&member.service, spec, directory))?;
            private_ip(element_named(balancer, FRONTENDS, &spec.names.frontend(family))?)
        };
        Some(SharedAddress::Private(pinned.or_else(present)?))
    }

    /// The ports that rules of the load balancer have at an address, without those of Services that leave, and of Services that do not
    /// ask for them any more.
    fn used_ports(
        &self,
        address: &SharedAddress,
        claims: &[AddressClaim<'_>],
        members: &[PartMember],
        directory: &BalancerDirectory,
    ) -> Vec<UsedPort> {
        let balancer = claims.first().and_then(|claim| {
            let member = claim.member;
            directory.balancer(&self.balancer_part(&member.service, &member.spec, directory))
        });
        let Some(balancer) = balancer else {
            return Vec::new();
        };
        let frontends: BTreeSet<String> = elements(balancer, FRONTENDS)
            .filter(|frontend| self.is_at(frontend, address, directory))
            .map(|frontend| name(frontend).to_ascii_lowercase())
            .collect();
        let mut used = Vec::new();
        for rule in elements(balancer, RULES) {
            let frontend = frontend_of_rule(rule).unwrap_or_default().to_ascii_lowercase();
            if !frontends.contains(&frontend) {
                continue;
            }
            let owner = match members.iter().find(|member| member.spec.names.owns(name(rule))) {
                None => PortOwner::Rule(name(rule).to_owned()),
                Some(member) => {
                    let is_asked_for = match member.membership {
                        Membership::Frozen(_) => true,
                        Membership::Leaving => false,
                        Membership::Active => claims.iter().any(|claim| {
                            claim.member.service.id == member.service.id
                                && claim.rules.iter().any(|own| own.name.eq_ignore_ascii_case(name(rule)))
                        }),
                    };
                    if !is_asked_for {
                        continue;
                    }
                    PortOwner::Service(member.service.id.clone())
                }
            };
            let property = |key: &str| rule.get(field::PROPERTIES).and_then(|properties| properties.get(key));
            used.push(UsedPort {
                protocol: property("protocol").and_then(Value::as_str).unwrap_or_default().to_owned(),
                port: property("frontendPort").and_then(Value::as_u64).unwrap_or_default(),
                owner,
            });
        }
        used
    }

    fn is_at(&self, frontend: &Value, address: &SharedAddress, directory: &BalancerDirectory) -> bool {
        match address {
            SharedAddress::Private(address) => private_ip(frontend) == Some(*address),
            SharedAddress::Public(part) => {
                let existing = directory.address(part).and_then(|address| address.get("id")?.as_str());
                let id = existing.map_or_else(|| self.settings.address_id(part), str::to_owned);
                let public = reference(frontend, "publicIPAddress");
                public.is_some_and(|public| public.eq_ignore_ascii_case(&id))
            }
        }
    }
}

/// `TCP port 443 of 20.0.0.4 belongs to Service shop/web`.
fn conflict_text(rule: &BalancingRule, address: &SharedAddress, owner: &PortOwner) -> String {
    let protocol = rule.protocol.as_str().to_ascii_uppercase();
    let address = match address {
        SharedAddress::Public(part) => {
            let (_, name) = part.split_once('/').unwrap_or_default();
            format!("public IP address {name}")
        }
        SharedAddress::Private(address) => address.to_string(),
    };
    let owner = match owner {
        PortOwner::Service(service) => format!("Service {service}"),
        PortOwner::Rule(rule) => format!("load balancing rule {rule}"),
    };
    format!("{protocol} port {} of {address} belongs to {owner}", rule.frontend_port)
}
