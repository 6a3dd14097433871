//! The desired load balancers, their members, and their frontends and rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::{
    load_balancer::{ClusterView, InvalidField, IpFamily, OwnNames, ServiceId, ServiceView},
    plan::{Fact, Membership, document::Document},
};
use serde_json::Value;

use super::{Model, PartInputs, PartKey, PartMember, address::public_id, is_planned, leaving_names};
use crate::load_balancer::{
    desired::{DesiredBalancer, DesiredFrontend, DesiredRules, FrontendAddress, Need, ServiceRules},
    directory::{BalancerDirectory, frontend_id, frontend_ids_of_link, has_elements, private_ip},
    document::{FRONTENDS, POOLS, RULES, Target, element_named, elements, name, reference},
    members::{self, DesiredMembers, PlannedPool},
    names,
    placement::{BalancerNeeds, NodePlacement, place_service},
    spec::{self, Spec},
};

impl Model {
    /// The part of the load balancer that serves a Service: group and name.
    pub(in crate::load_balancer) fn balancer_part(
        &self,
        service: &ServiceView,
        spec: &Spec,
        directory: &BalancerDirectory,
    ) -> String {
        place_service(service, spec, directory, &self.settings).part
    }

    /// The load balancers that these Services need.
    pub(super) fn balancer_needs(
        &self,
        members: &[PartMember],
        directory: &BalancerDirectory,
    ) -> BalancerNeeds {
        let wanting = members.iter().filter(|member| member.service.wants_load_balancer());
        let needed = wanting.clone().map(|member| match joined_balancer(member) {
            Some(joined) => joined.to_owned(),
            None => self.balancer_part(&member.service, &member.spec, directory),
        });
        BalancerNeeds {
            needed: needed.collect(),
            planned: wanting.filter_map(planned_balancer).map(str::to_owned).collect(),
        }
    }

    /// Whether a load balancer serves a Service. Others are members only to leave it.
    fn names_balancer(&self, member: &PartMember, part: &str, directory: &BalancerDirectory) -> bool {
        let is_named = || self.balancer_part(&member.service, &member.spec, directory) == part;
        member.service.wants_load_balancer() && (member.membership == Membership::Active || is_named())
    }

    /// Whether a Service needs a load balancer as long as it is a member: it names it, or has elements in it. Others are members only to
    /// delete one that was left behind.
    pub(super) fn keeps_balancer(
        &self,
        member: &PartMember,
        part: &str,
        directory: &BalancerDirectory,
    ) -> bool {
        let has_elements = || {
            directory
                .balancer(part)
                .is_some_and(|balancer| has_elements(balancer, &member.spec.names))
        };
        !member.leaves() && (self.names_balancer(member, part, directory) || has_elements())
    }

    pub(super) fn desired_balancer(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredBalancer {
        let keeps = |member: &PartMember| self.keeps_balancer(member, part, &inputs.directory);
        let active: Vec<_> = PartMember::active(members)
            .filter(|member| member.service.wants_load_balancer())
            .collect();
        let families = active.iter().flat_map(|member| member.spec.families.iter().copied());
        let need = if !active.is_empty() {
            Need::Full
        } else if members.iter().any(keeps) {
            Need::Unchanged
        } else {
            Need::None
        };
        let target = Target::balancer(part);
        let (_, balancer) = part.split_once('/').unwrap_or_default();
        DesiredBalancer {
            target,
            need,
            pools: spec::pools(&cluster.name, &families.collect()),
            own_pools: members::pools(&cluster.name).into_iter().map(|(_, pool)| pool).collect(),
            place: self.place(),
            is_pre_configured: self.settings.is_pre_configured(balancer),
            leaving: leaving_names(members),
        }
    }

    /// Why new Services are refused: a basic load balancer has a maximum number of rules. Services that are in it stay.
    pub(super) fn over_rule_limit(
        &self,
        members: &[PartMember],
        directory: &BalancerDirectory,
    ) -> BTreeMap<ServiceId, InvalidField> {
        let mut refused = BTreeMap::new();
        let conf = &self.settings.conf;
        let maximum = usize::try_from(conf.maximum_rule_count).unwrap_or(usize::MAX);
        if !conf.is_basic() || maximum == 0 {
            return refused;
        }
        let mut wanting: Vec<_> = PartMember::active(members)
            .filter(|member| member.service.wants_load_balancer())
            .collect();
        wanting.sort_by(|one, other| one.service.id.cmp(&other.service.id));
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for member in wanting {
            let part = self.balancer_part(&member.service, &member.spec, directory);
            let balancer = directory.balancer(&part);
            if balancer.is_some_and(|balancer| has_elements(balancer, &member.spec.names)) {
                continue;
            }
            let count = counts.entry(part).or_insert_with_key(|_| {
                balancer.map(|balancer| elements(balancer, RULES).count()).unwrap_or_default()
            });
            let own: usize = member.spec.rules.iter().map(|(_, set)| set.rules.len()).sum();
            if *count + own > maximum {
                let problem = format!(
                    "the load balancer has {count} of at most {maximum} rules (maximumLoadBalancerRuleCount), and the Service needs {own}"
                );
                refused.insert(member.service.id.clone(), InvalidField::spec("ports", problem));
            } else {
                *count += own;
            }
        }
        refused
    }

    /// The standard load balancer and addresses of a Service, which a basic one cannot use. Azure never changes a SKU.
    pub(super) fn standard_ones(
        &self,
        member: &PartMember,
        directory: &BalancerDirectory,
    ) -> Vec<InvalidField> {
        let part = self.balancer_part(&member.service, &member.spec, directory);
        let addresses = member
            .spec
            .addresses
            .iter()
            .filter_map(|address| directory.address(&address.part(directory)))
            .map(|address| ("public IP address", address));
        let balancer = directory.balancer(&part).map(|balancer| ("load balancer", balancer));
        let standard = balancer.into_iter().chain(addresses).filter(|(_, document)| {
            let sku = document.pointer("/sku/name").and_then(Value::as_str);
            sku.is_some_and(|sku| sku.eq_ignore_ascii_case("Standard"))
        });
        standard
            .map(|(kind, document)| {
                let problem = format!(
                    "{kind} {} has the SKU Standard, and loadBalancerSku in the cloud config is basic",
                    name(document)
                );
                InvalidField::spec("type", problem)
            })
            .collect()
    }

    pub(super) fn desired_members(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredMembers {
        let network = &self.settings.conf.vnet_name;
        let mut desired = DesiredMembers {
            pools: members::pools(&cluster.name),
            network: self.settings.network_id(&self.settings.network_group, "virtualNetworks", network),
            leaving: leaving_names(members),
            ..DesiredMembers::default()
        };
        let mut families_of_planned: BTreeMap<&str, BTreeSet<IpFamily>> = BTreeMap::new();
        for member in PartMember::active(members) {
            if let Some(balancer) = planned_balancer(member) {
                families_of_planned.entry(balancer).or_default().extend(&member.spec.families);
            }
        }
        for (balancer, families) in &families_of_planned {
            let pools =
                members::pools(&cluster.name).into_iter().filter(|(family, _)| families.contains(family));
            let (group, name) = balancer.split_once('/').unwrap_or_default();
            desired.planned.extend(pools.map(|(family, pool)| PlannedPool {
                family,
                id: format!("{}/{POOLS}/{pool}", self.settings.balancer_id(balancer)),
                target: Target::Pool {
                    group: group.to_owned(),
                    balancer: name.to_owned(),
                    name: pool,
                },
            }));
        }
        if !self.settings.several().is_empty() {
            let needs = self.balancer_needs(members, &inputs.directory);
            let placement =
                NodePlacement::new(cluster, &inputs.directory, &inputs.machines, &needs, &self.settings);
            desired.follow_placement(cluster, &placement, &self.settings);
            return desired;
        }
        let (_, balancer) = part.split_once('/').unwrap_or_default();
        if self.settings.is_pre_configured(balancer) {
            desired.planned.clear();
            return desired;
        }
        let keeps = |member: &PartMember| self.keeps_balancer(member, part, &inputs.directory);
        // A Service that names another load balancer now only waits to leave.
        let follows = |member: &PartMember| {
            member.follows_nodes() && self.names_balancer(member, part, &inputs.directory)
        };
        if !members.iter().any(keeps) {
            desired.release(cluster, &inputs.machines, &self.settings);
        } else if members.iter().any(follows) {
            desired.follow(balancer, cluster, &inputs.machines, &self.settings);
        }
        desired
    }

    pub(super) fn desired_rules(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredRules {
        let mut services = Vec::new();
        let is_ready = |member: &&PartMember| serves(member, part) && !has_to_move(member);
        for member in PartMember::active(members).filter(is_ready) {
            for (family, set) in &member.spec.rules {
                services.push(ServiceRules {
                    frontend: self.frontend(member, *family, inputs),
                    pool: names::pool(&cluster.name, *family),
                    rules: set.rules.clone(),
                    probes: set.probes.clone(),
                });
            }
        }
        let is_changing = |member: &&PartMember| match member.membership {
            Membership::Active => !has_to_move(member),
            Membership::Frozen(_) => false,
            Membership::Leaving => true,
        };
        let changing = || members.iter().filter(is_changing).map(|member| &member.service.id);
        DesiredRules {
            target: Target::balancer(part),
            id: self.settings.balancer_id(part),
            is_planned: PartMember::active(members).any(|member| planned_balancer(member) == Some(part)),
            is_azure_stack: self.settings.is_azure_stack,
            services,
            names: OwnNames::new(changing(), None),
            linked: self.linked_frontends(part, members, &inputs.directory),
            former_pools: if self.settings.several().is_empty() {
                BTreeSet::new()
            } else {
                changing().flat_map(names::local_pools).collect()
            },
        }
    }

    /// The names of frontends that private link services use, in lower case. When a Service leaves, its private link service is deleted
    /// before.
    pub(super) fn linked_frontends(
        &self,
        part: &str,
        members: &[PartMember],
        directory: &BalancerDirectory,
    ) -> BTreeSet<String> {
        let leaving = leaving_names(members);
        let begin = frontend_id(&self.settings.balancer_id(part), "").to_ascii_lowercase();
        let used = directory.links.iter().flat_map(|link| frontend_ids_of_link(link));
        let names = used.filter_map(|id| id.strip_prefix(&begin).map(str::to_owned));
        names.filter(|name| !leaving.prove(name)).collect()
    }

    pub(super) fn frontend(
        &self,
        member: &PartMember,
        family: IpFamily,
        inputs: &PartInputs,
    ) -> DesiredFrontend {
        let spec = &member.spec;
        let pinned = spec.pinned.iter().copied().find(|address| IpFamily::of(*address) == family);
        let public = spec.addresses.iter().find(|address| address.family == family);
        let (address, at) = match public {
            Some(address) => {
                let id = public_id(member, family)
                    .unwrap_or_else(|| self.settings.address_id(&address.part(&inputs.directory)));
                let at = id.rsplit('/').next().unwrap_or_default().to_owned();
                (FrontendAddress::Public(id), at)
            }
            None => {
                let subnet = spec.subnet_name(&self.settings);
                let prefixes = inputs.subnets.get(subnet).map(|subnet| subnet.prefixes.as_slice());
                let is_in_subnet = |address: &IpAddr| {
                    prefixes.unwrap_or_default().iter().any(|prefix| prefix.contains(address))
                };
                let address = FrontendAddress::Private {
                    family,
                    subnet: self.settings.subnet_id(subnet),
                    is_subnet_chosen: spec.subnet.is_some(),
                    pinned,
                    previous: member
                        .service
                        .status_addresses()
                        .find(|address| IpFamily::of(*address) == family && is_in_subnet(address)),
                    zones: inputs.zones.clone(),
                };
                (address, pinned.map(|pinned| pinned.to_string()).unwrap_or_default())
            }
        };
        DesiredFrontend {
            name: spec.names.frontend(family),
            spare_name: spec.names.spare_frontend(family, &at),
            address,
        }
    }

    /// The addresses of the frontends of a Service: `None` if one is missing or has no address yet.
    pub(super) fn served(
        member: &PartMember,
        balancer: &Document,
    ) -> Option<BTreeMap<IpFamily, Fact<IpAddr>>> {
        let known = Self::known_addresses(member);
        let mut served = BTreeMap::new();
        for family in &member.spec.families {
            let frontend = Self::frontend_of(member, balancer.fields(), *family)?;
            let address = match (reference(frontend, "publicIPAddress"), private_ip(frontend)) {
                (Some(_), _) => known.get(family).cloned(),
                (None, Some(address)) => Some(Fact::Known(address)),
                (None, None) if is_planned(balancer) => {
                    Some(Fact::Later(format!("the address of frontend {}", name(frontend)).into()))
                }
                (None, None) => None,
            };
            served.insert(*family, address?);
        }
        Some(served)
    }

    /// The frontend of a Service: that with its address, which may have the name of another Service.
    pub(super) fn frontend_of<'a>(
        member: &PartMember,
        balancer: &'a Value,
        family: IpFamily,
    ) -> Option<&'a Value> {
        let spec = &member.spec;
        if spec.is_internal {
            let pinned = spec.pinned.iter().find(|address| IpFamily::of(**address) == family);
            let mut frontends = elements(balancer, FRONTENDS);
            let pinned =
                frontends.find(|frontend| pinned.is_some() && private_ip(frontend) == pinned.copied());
            return pinned.or_else(|| element_named(balancer, FRONTENDS, &spec.names.frontend(family)));
        }
        let id = public_id(member, family)?;
        elements(balancer, FRONTENDS).find(|frontend| {
            reference(frontend, "publicIPAddress").is_some_and(|public| public.eq_ignore_ascii_case(&id))
        })
    }
}

/// The part of the load balancer that a Service has joined.
fn joined_balancer(member: &PartMember) -> Option<&str> {
    member.facts.iter().find_map(|(key, _)| match key {
        PartKey::Balancer(joined) => Some(joined.as_str()),
        _ => None,
    })
}

/// Whether the rules of a Service belong to this load balancer. Otherwise the Service moves from there to the one that it joined.
pub(super) fn serves(member: &PartMember, part: &str) -> bool {
    joined_balancer(member).is_none_or(|joined| joined == part)
}

/// Whether a Service still has rules in a load balancer that it joined before, to leave it for another one.
pub(super) fn has_to_move(member: &PartMember) -> bool {
    member
        .facts
        .iter()
        .any(|(key, facts)| matches!(key, PartKey::Rules(_)) && !facts.has_moved)
}

/// The part of the load balancer of a Service, if it only exists in a plan.
pub(super) fn planned_balancer(member: &PartMember) -> Option<&str> {
    member.facts.iter().find_map(|(key, facts)| match (key, &facts.balancer) {
        (PartKey::Balancer(part), Some(Fact::Later(_))) => Some(part.as_str()),
        _ => None,
    })
}
