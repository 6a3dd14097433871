//! The [`PartModel`] of Azure: the parts of each Service, what is read for them, and the outputs of parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        ClusterSnapshot, ClusterView, Effects, FormerLoadBalancer, Ingress, InvalidField, IpFamily, IpMode,
        OwnNames, Ownership, ServiceEvent, ServiceId, ServiceNode, ServiceView,
    },
    plan::{
        CheckResult, Fact, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, RequiredFacts,
        document::{Document, named_owner},
        part_keys,
    },
};
use serde_json::Value;

use super::{
    annotations as a,
    desired::{
        AddressUser, DNS_TAG, DesiredAddress, DesiredBalancer, DesiredFrontend, DesiredRules,
        FrontendAddress, Need, Place, ServiceRules, is_empty, services_in,
    },
    directory::{
        BalancerDirectory, family_of, frontend_id, frontend_ids_in, frontend_ids_of_link, has_elements,
        ip_of, is_address_of, lists, ownership, part_of, private_ip, tags,
    },
    document::{
        ArmChange, FRONTENDS, POOLS, Target, element_named, elements, fold, has_failed, is_changing, name,
        reference, state,
    },
    members::{self, DesiredMembers, MachineIndex, ObservedMembers, PlannedPool},
    names::{self, ServiceNames},
    private_link::{DesiredLink, LinkRequest, LinkUser, ObservedLink, fold_link, is_of_cluster, owner_of},
    rules::has_floating_ip,
    security::{DesiredSecurity, NeededRule, NodeDestinations},
    settings::BalancerSettings,
    spec::{self, AddressChoice, AddressSettings, PublicAddress, Spec},
};

part_keys! {
    /// The parts. Each key is the kind, the resource group and the name.
    pub(crate) enum PartKey {
        /// A load balancer with its backend pools.
        Balancer(String) = "lb/";
        /// The members of its backend pools.
        Members(String) = "members/";
        /// A public IP address.
        Address(String) = "pip/";
        /// The frontends, rules and probes of a load balancer, of all its Services.
        Rules(String) = "rules/";
        /// A private link service.
        Link(String) = "pls/";
        /// The rules of a network security group for all Services.
        SecurityGroup(String) = "nsg/";
    }
}

/// The model of load balancers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<BalancerSettings>,
}

/// A Service in a part.
pub(crate) type PartMember = Member<Model>;

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Subnet {
    /// Its networks.
    pub(crate) prefixes: Vec<ipnet::IpNet>,
}

/// The inputs in addition to Services and nodes.
#[derive(Debug, Default)]
pub(crate) struct PartInputs {
    pub(crate) directory: Arc<BalancerDirectory>,
    /// The zones of the region.
    pub(crate) zones: Vec<String>,
    /// By name.
    pub(crate) subnets: BTreeMap<String, Subnet>,
    pub(crate) machines: Arc<MachineIndex>,
    /// The documents with members, to report nodes that cannot be members.
    pub(crate) members: ObservedMembers,
}

/// The facts of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartFacts {
    /// The addresses of a public IP address, or of the frontends of an internal load balancer.
    pub(crate) addresses: BTreeMap<IpFamily, Fact<IpAddr>>,
    /// The ID of a public IP address.
    pub(crate) public_ids: BTreeMap<IpFamily, String>,
    /// The ID of the frontend for a private link service.
    pub(crate) frontend: Option<String>,
    /// The unique ID of a load balancer. One that was deleted and created again has another one.
    pub(crate) balancer: Option<Fact<String>>,
}

/// The desired state of a part.
#[derive(Debug)]
pub(crate) enum DesiredPart {
    Balancer(DesiredBalancer),
    Members(DesiredMembers),
    Address(DesiredAddress),
    Rules(DesiredRules),
    Link(DesiredLink),
    SecurityGroup(DesiredSecurity),
}

/// The observed state of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObservedPart {
    /// `None`: it does not exist.
    Document(Option<Document>),
    Members(ObservedMembers),
    Link(ObservedLink),
}

impl ObservedPart {
    fn document(&self) -> Option<&Document> {
        match self {
            Self::Document(document) => document.as_ref(),
            Self::Link(link) => link.service.as_ref(),
            Self::Members(_) => None,
        }
    }
}

/// The names of the elements of Services that leave.
fn leaving_names(members: &[PartMember]) -> OwnNames {
    let leaving = members.iter().filter(|member| member.leaves());
    OwnNames::new(leaving.map(|member| &member.service.id), None)
}

/// Whether the load balancer of a Service only exists in a plan.
fn has_planned_balancer(member: &PartMember) -> bool {
    member.facts.iter().any(|(_, facts)| matches!(facts.balancer, Some(Fact::Later(_))))
}

/// Whether a document is that of a change that was only planned.
fn is_planned(document: &Document) -> bool {
    state(document).is_empty()
}

impl Model {
    fn place(&self) -> Place {
        let conf = &self.settings.conf;
        let extended = [&conf.extended_location_name, &conf.extended_location_type];
        Place {
            location: self.settings.location.clone(),
            extended: if extended.iter().any(|value| value.is_empty()) {
                None
            } else {
                Some((conf.extended_location_name.clone(), conf.extended_location_type.clone()))
            },
            tags: self.settings.tags.clone(),
        }
    }

    /// The part of the network security group.
    fn security_part(&self) -> Option<PartKey> {
        let name = self.settings.conf.security_group_name.trim();
        let part = format!("{}/{name}", self.settings.security_group_group);
        (!name.is_empty()).then_some(PartKey::SecurityGroup(part))
    }

    /// The public IP address of a Service in this part.
    fn address<'a>(
        member: &'a PartMember,
        part: &str,
        directory: &BalancerDirectory,
    ) -> Option<&'a PublicAddress> {
        member.spec.addresses.iter().find(|address| address.part(directory) == part)
    }

    /// Whether a Service needs a load balancer as long as it is a member: it names it, or has elements in it. Others are members only to
    /// delete one that was left behind.
    fn keeps_balancer(&self, member: &PartMember, part: &str, directory: &BalancerDirectory) -> bool {
        let spec = &member.spec;
        let names_it = member.service.wants_load_balancer() && spec.balancer_part(&self.settings) == part;
        let has_elements =
            || directory.balancer(part).is_some_and(|balancer| has_elements(balancer, &spec.names));
        !member.leaves() && (names_it || has_elements())
    }

    fn balancer_part(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredBalancer {
        let keeps = |member: &PartMember| self.keeps_balancer(member, part, &inputs.directory);
        let wants = |member: &&PartMember| {
            member.service.wants_load_balancer() && member.spec.balancer_part(&self.settings) == part
        };
        let active: Vec<_> = PartMember::active(members).filter(wants).collect();
        let families = active.iter().flat_map(|member| member.spec.families.iter().copied());
        let need = if !active.is_empty() {
            Need::Full
        } else if members.iter().any(keeps) {
            Need::Unchanged
        } else {
            Need::None
        };
        let target = balancer_target(part);
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

    fn members_part(
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
        let (group, balancer) = part.split_once('/').unwrap_or_default();
        if self.settings.is_pre_configured(balancer) {
            return desired;
        }
        let planned: Vec<_> =
            PartMember::active(members).filter(|member| has_planned_balancer(member)).collect();
        if !planned.is_empty() {
            let families: BTreeSet<_> = planned.iter().flat_map(|member| &member.spec.families).collect();
            let pools =
                members::pools(&cluster.name).into_iter().filter(|(family, _)| families.contains(family));
            desired.planned = pools
                .map(|(family, name)| PlannedPool {
                    family,
                    id: format!("{}/{POOLS}/{name}", self.settings.balancer_id(part)),
                    target: Target::Pool {
                        group: group.to_owned(),
                        balancer: balancer.to_owned(),
                        name,
                    },
                })
                .collect();
        }
        let keeps = |member: &PartMember| self.keeps_balancer(member, part, &inputs.directory);
        // A Service that names another load balancer now only waits to leave.
        let follows =
            |member: &PartMember| member.follows_nodes() && member.spec.balancer_part(&self.settings) == part;
        if !members.iter().any(keeps) {
            desired.release(cluster, &inputs.machines, &self.settings);
        } else if members.iter().any(follows) {
            desired.follow(cluster, &inputs.machines, &self.settings);
        }
        desired
    }

    fn address_part(
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

    fn rules_part(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredRules {
        let mut services = Vec::new();
        for member in PartMember::active(members) {
            if member.spec.balancer_part(&self.settings) != part {
                continue;
            }
            for (family, set) in &member.spec.rules {
                services.push(ServiceRules {
                    frontend: self.frontend(member, *family, inputs),
                    pool: names::pool(&cluster.name, *family),
                    rules: set.rules.clone(),
                    probes: set.probes.clone(),
                });
            }
        }
        let changing = members.iter().filter(|member| {
            let is_active = member.membership == Membership::Active;
            is_active || member.leaves()
        });
        DesiredRules {
            target: balancer_target(part),
            id: self.settings.balancer_id(part),
            is_planned: PartMember::active(members).any(has_planned_balancer),
            services,
            names: OwnNames::new(changing.map(|member| &member.service.id), None),
            linked: self.linked_frontends(part, members, &inputs.directory),
        }
    }

    /// The names of frontends that private link services use, in lower case. When a Service leaves, its private link service is deleted
    /// before.
    fn linked_frontends(
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

    /// The part of the private link service of a Service that asks for one: that of its frontend, or a new one.
    fn link_part(&self, spec: &Spec, directory: &BalancerDirectory) -> Option<String> {
        let link = spec.link.as_ref()?;
        let balancer = directory.balancer(&spec.balancer_part(&self.settings));
        let frontends = balancer.map(|balancer| frontend_ids_in(balancer, &spec.names)).unwrap_or_default();
        let existing = directory.links_at(&frontends).next().map(part_of);
        let part = link.part();
        // Names differ in their case alone.
        let named = || directory.link(&part).map(part_of);
        Some(existing.or_else(named).unwrap_or(part))
    }

    /// The parts of the private link services that a Service created, or that its frontends have.
    fn own_links(
        service: &ServiceView,
        spec: &Spec,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> Vec<PartKey> {
        let frontends = directory.frontend_ids(&spec.names);
        let owner = service.id.to_string();
        let mut parts = Vec::new();
        for link in &directory.links {
            let is_own = owner_of(link) == owner || !frontend_ids_of_link(link).is_disjoint(&frontends);
            if is_own && is_of_cluster(link, &cluster.name, &cluster.ownership_tag) {
                parts.push(PartKey::Link(part_of(link)));
            }
        }
        parts.extend(spec.former_link.clone().map(PartKey::Link));
        parts
    }

    fn private_link(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredLink {
        let directory = &inputs.directory;
        let (group, name) = part.split_once('/').unwrap_or_default();
        let mut users = Vec::new();
        for member in members {
            let (need, request) = match &member.membership {
                Membership::Active => (Need::Full, self.link_request(part, member, directory)),
                Membership::Frozen(_) => (Need::Unchanged, None),
                Membership::Leaving => (Need::None, None),
            };
            users.push(LinkUser {
                service: member.service.id.clone(),
                need,
                request,
                frontends: directory.frontend_ids(&member.spec.names),
            });
        }
        DesiredLink {
            target: Target::LinkService {
                group: group.to_owned(),
                name: name.to_owned(),
            },
            users,
            cluster: cluster.name.to_string(),
            ownership_tag: cluster.ownership_tag.clone(),
            place: self.place(),
        }
    }

    /// What a Service asks for in this part. `None`: its frontend has another private link service, which it shares as soon as the
    /// listings show its frontend.
    fn link_request(
        &self,
        part: &str,
        member: &PartMember,
        directory: &BalancerDirectory,
    ) -> Option<LinkRequest> {
        let spec = member.spec.link.clone()?;
        let frontend = member.facts.iter().find_map(|(_, facts)| facts.frontend.clone())?;
        let frontends = BTreeSet::from([frontend.to_ascii_lowercase()]);
        let has_other = directory.links_at(&frontends).any(|link| !part_of(link).eq_ignore_ascii_case(part));
        if has_other {
            return None;
        }
        Some(LinkRequest {
            frontend,
            subnet: subnet_target(&self.settings, &spec.subnet),
            subnet_id: self.settings.subnet_id(&spec.subnet),
            spec,
        })
    }

    /// Why a Service cannot have the private link service of this part.
    fn link_problems(
        part: &str,
        member: &PartMember,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> Vec<InvalidField> {
        let Some(link) = &member.spec.link else {
            return Vec::new();
        };
        let mut invalid = Vec::new();
        if let Some(subnet) = inputs.subnets.get(&link.subnet) {
            for address in &link.addresses {
                if !subnet.prefixes.iter().any(|prefix| prefix.contains(&IpAddr::V4(*address))) {
                    let problem = format!("{address} is not in subnet {}", link.subnet);
                    invalid.push(InvalidField::annotation(a::LINK_ADDRESSES, problem));
                }
            }
        }
        let Some(existing) = inputs.directory.link(part) else {
            return invalid;
        };
        let name = name(existing);
        if !is_of_cluster(existing, &cluster.name, &cluster.ownership_tag) {
            let problem = format!(
                "private link service {name} does not have the tags of this cluster; delete it, or choose another name or frontend"
            );
            invalid.push(InvalidField::annotation(a::LINK_CREATE, problem));
            return invalid;
        }
        let owner = owner_of(existing);
        let is_other = |other: &&PartMember| {
            let service = other.service.id.to_string();
            service == owner && other.service.id != member.service.id && !other.leaves()
        };
        if members.iter().any(|other| is_other(&other)) {
            if link.has_settings {
                let problem = format!(
                    "private link service {name} belongs to Service {owner}; remove the annotations azure-pls-* except azure-pls-create to share it"
                );
                invalid.push(InvalidField::annotation(a::LINK_CREATE, problem));
            }
            return invalid;
        }
        let chosen = link.chosen_name.as_deref();
        if chosen.is_some_and(|chosen| !chosen.eq_ignore_ascii_case(name)) {
            let problem = format!(
                "the frontend has private link service {name}, whose name cannot change; {KEEP_LINK}"
            );
            invalid.push(InvalidField::annotation(a::LINK_NAME, problem));
        }
        let (group, _) = part.split_once('/').unwrap_or_default();
        if !group.eq_ignore_ascii_case(&link.group) {
            let problem = format!(
                "private link service {name} is in resource group {group}, which cannot change; {KEEP_LINK}"
            );
            invalid.push(InvalidField::annotation(a::LINK_GROUP, problem));
        }
        invalid
    }

    fn frontend(&self, member: &PartMember, family: IpFamily, inputs: &PartInputs) -> DesiredFrontend {
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

    /// The addresses that a Service has now.
    fn known_addresses(member: &PartMember) -> BTreeMap<IpFamily, Fact<IpAddr>> {
        let all = member.facts.iter().flat_map(|(_, facts)| &facts.addresses);
        all.map(|(family, address)| (*family, address.clone())).collect()
    }

    pub(super) fn security_group(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> DesiredSecurity {
        let (group, name) = part.split_once('/').unwrap_or_default();
        let mut desired = DesiredSecurity {
            target: Target::SecurityGroup {
                group: group.to_owned(),
                name: name.to_owned(),
            },
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

    /// The addresses of the frontends of a Service: `None` if one is missing or has no address yet.
    fn served(member: &PartMember, balancer: &Document) -> Option<BTreeMap<IpFamily, Fact<IpAddr>>> {
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
    fn frontend_of<'a>(member: &PartMember, balancer: &'a Value, family: IpFamily) -> Option<&'a Value> {
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

    /// Events about a valid Service.
    fn events(
        &self,
        key: &PartKey,
        member: &PartMember,
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> Vec<ServiceEvent> {
        let service = &member.service;
        let id = &service.id;
        let mut events = Vec::new();
        match key {
            PartKey::Members(part) if !self.settings.has_address_pools() => {
                let (_, balancer) = part.split_once('/').unwrap_or_default();
                if !self.settings.is_pre_configured(balancer) {
                    let left_out = DesiredMembers::left_out(
                        cluster,
                        &inputs.machines,
                        &inputs.members,
                        balancer,
                        &self.settings,
                    );
                    let what = "Nodes that are not members of the load balancer";
                    events.extend(ServiceEvent::nodes_left_out(id, what, &left_out));
                }
            }
            PartKey::SecurityGroup(_) => {
                let ignored = &member.spec.sources.ignored;
                if !ignored.is_empty() {
                    let text = format!("ranges that are not networks are ignored: {}", ignored.join(", "));
                    events.push(ServiceEvent::warning(id, "InvalidSourceRanges", text));
                }
            }
            PartKey::Rules(_) => {
                let exact = service.annotation(a::INTERNAL);
                if exact.is_some_and(|value| value != "true") && a::is_true(service, a::INTERNAL) {
                    let text = format!(
                        "{} is read as true; the Go cloud-controller-manager takes only \"true\" and creates a public load balancer",
                        a::INTERNAL
                    );
                    events.push(ServiceEvent::warning(id, "LoadBalancerAnnotationIgnored", text));
                }
            }
            PartKey::Address(part) => {
                let address = inputs.directory.address(part);
                let is_of_user = address.is_some_and(|address| services_in(&tags(address)).next().is_none());
                let chooses = Self::address(member, part, &inputs.directory)
                    .is_some_and(|address| !address.is_managed());
                for key in [a::DNS_LABEL, a::ADDRESS_TAGS, a::IP_TAGS] {
                    if chooses && is_of_user && service.annotation(key).is_some() {
                        let text = format!("{key} does not change a public IP address that exists");
                        events.push(ServiceEvent::warning(id, "LoadBalancerAnnotationIgnored", text));
                    }
                }
            }
            PartKey::Members(_) | PartKey::Balancer(_) | PartKey::Link(_) => {}
        }
        events
    }
}

/// The ID of the public IP address of a Service, if its part has been built.
fn public_id(member: &PartMember, family: IpFamily) -> Option<String> {
    member.facts.iter().find_map(|(_, facts)| facts.public_ids.get(&family).cloned())
}

/// The addresses of a node of both families, as destinations of packets.
fn node_addresses(node: &ServiceNode) -> impl Iterator<Item = IpAddr> {
    [IpFamily::V4, IpFamily::V6].into_iter().filter_map(|family| node.address(Some(family)))
}

/// A subnet of the cluster's network.
pub(crate) fn subnet_target(settings: &BalancerSettings, name: &str) -> Target {
    Target::Subnet {
        group: settings.network_group.clone(),
        network: settings.conf.vnet_name.clone(),
        name: name.to_owned(),
    }
}

fn balancer_target(part: &str) -> Target {
    let (group, name) = part.split_once('/').unwrap_or_default();
    Target::Balancer {
        group: group.to_owned(),
        name: name.to_owned(),
    }
}

impl PartModel for Model {
    type Key = PartKey;
    type Directory = BalancerDirectory;
    type Inputs = PartInputs;
    type Spec = Spec;
    type Facts = PartFacts;
    type Desired = DesiredPart;
    type Observed = ObservedPart;
    type Change = ArmChange;
    type Reply = Value;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    fn spec(&self, service: &ServiceView, cluster: &ClusterView) -> Spec {
        Spec::of(service, &cluster.name, &self.settings)
    }

    fn parts(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> Parts<PartKey> {
        let spec = self.spec(service, cluster);
        let own = spec.balancer_part(&self.settings);
        let mut named = vec![PartKey::Balancer(own.clone()), PartKey::Members(own.clone())];
        named.extend(spec.addresses.iter().map(|address| PartKey::Address(address.part(directory))));
        named.push(PartKey::Rules(own.clone()));
        if !service.wants_load_balancer() {
            // A load balancer of the other kind may be being created for an earlier spec.
            let other = self.settings.balancer(&cluster.name, !spec.is_internal);
            let other = format!("{}/{other}", self.settings.balancer_group);
            named.extend([
                PartKey::Balancer(other.clone()),
                PartKey::Members(other.clone()),
                PartKey::Rules(other),
            ]);
        }
        let own_links = Self::own_links(service, &spec, cluster, directory);
        if !service.wants_load_balancer() {
            // A Service leaves them before the frontends that they use.
            named.extend(own_links.iter().cloned());
        }
        named.extend(self.link_part(&spec, directory).map(PartKey::Link));
        named.extend(self.security_part());
        let may_be_own = |address: &&Arc<Value>| match ownership(address, &cluster.ownership_tag) {
            // Also one that was created for another Service, and that this one used.
            Ownership::Ours if lists(&tags(address), &service.id) => true,
            Ownership::Foreign(_) => false,
            _ => is_address_of(address, &service.id, &spec.names, &cluster.name),
        };
        let addresses: Vec<_> = directory
            .addresses
            .iter()
            .filter(may_be_own)
            .map(|address| PartKey::Address(part_of(address)))
            .collect();
        let mut tagged = Vec::new();
        for is_internal in [false, true] {
            let balancer = self.settings.balancer(&cluster.name, is_internal);
            let part = format!("{}/{balancer}", self.settings.balancer_group);
            let document = directory.balancer(&part);
            let addresses = if is_internal {
                &[][..]
            } else {
                addresses.as_slice()
            };
            let has_traces =
                !addresses.is_empty() || document.is_some_and(|document| has_elements(document, &spec.names));
            // A load balancer without frontends may be left of a process that was killed.
            let is_left_over =
                part != own && document.is_some_and(|document| is_empty(document, &OwnNames::default()));
            if !has_traces && !is_left_over {
                continue;
            }
            // All parts of a kind, in the same order whatever has been deleted already: rules are left before addresses, and
            // addresses before members and load balancers.
            tagged.extend([PartKey::Balancer(part.clone()), PartKey::Members(part.clone())]);
            tagged.extend(addresses.iter().cloned());
            if has_traces {
                tagged.push(PartKey::Rules(part));
            }
        }
        tagged.extend(own_links);
        if !tagged.is_empty() {
            tagged.extend(self.security_part());
        }
        Parts { named, tagged }
    }

    fn former(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> FormerLoadBalancer {
        let spec = self.spec(service, cluster);
        let named = |address: &&Arc<Value>| is_address_of(address, &service.id, &spec.names, &cluster.name);
        if let Some(address) = directory.addresses.iter().find(named) {
            let what = format!("public IP address {}", name(address));
            return FormerLoadBalancer::new(what, &ownership(address, &cluster.ownership_tag), true);
        }
        for is_internal in [false, true] {
            let balancer = self.settings.balancer(&cluster.name, is_internal);
            let part = format!("{}/{balancer}", self.settings.balancer_group);
            let Some(document) = directory.balancer(&part) else {
                continue;
            };
            if has_elements(document, &spec.names) {
                return FormerLoadBalancer::Ours(format!("rules of load balancer {balancer}"));
            }
        }
        FormerLoadBalancer::Missing
    }

    /// Public IP addresses and private link services with the tag of this cluster whose Services do not exist.
    fn orphans(&self, snapshot: &ClusterSnapshot, directory: &BalancerDirectory) -> Vec<Orphan<PartKey>> {
        let cluster = &snapshot.cluster;
        let specs: Vec<_> =
            snapshot.services.iter().map(|service| (service, self.spec(service, cluster))).collect();
        let is_known = |address: &Value| {
            let part = part_of(address);
            specs.iter().any(|(service, spec)| {
                is_address_of(address, &service.id, &spec.names, &cluster.name)
                    || spec.addresses.iter().any(|known| known.part(directory) == part)
            })
        };
        let ours = directory.addresses.iter().filter(|address| {
            let tags = tags(address);
            let is_managed = services_in(&tags).next().is_some();
            is_managed && ownership(address, &cluster.ownership_tag) == Ownership::Ours && !is_known(address)
        });
        let addresses = ours.map(|address| Orphan {
            key: PartKey::Address(part_of(address)),
            what: format!("public IP address {}", name(address)),
            deletable: false,
        });
        let is_known_link = |link: &Value| {
            let owner = owner_of(link);
            let part = part_of(link);
            specs.iter().any(|(service, spec)| {
                service.id.to_string() == owner
                    || self.link_part(spec, directory).is_some_and(|known| known == part)
            })
        };
        let links = directory.links.iter().filter(|link| {
            let is_ours = ownership(link, &cluster.ownership_tag) == Ownership::Ours;
            is_ours && !owner_of(link).is_empty() && !is_known_link(link)
        });
        let links = links.map(|link| Orphan {
            key: PartKey::Link(part_of(link)),
            what: format!("private link service {}", name(link)),
            deletable: false,
        });
        addresses.chain(links).collect()
    }

    fn check(
        &self,
        key: &PartKey,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> CheckResult {
        let mut result = CheckResult::default();
        let conflicts = self.port_conflicts(members, &inputs.directory);
        for member in PartMember::active(members) {
            let (service, spec) = (&member.service, &member.spec);
            let mut invalid = spec.invalid.clone();
            invalid.extend(conflicts.get(&service.id).into_iter().flatten().cloned());
            for address in &spec.addresses {
                let part = address.part(&inputs.directory);
                let Some(existing) = inputs.directory.address(&part) else {
                    continue;
                };
                if let Ownership::Foreign(tag) = ownership(existing, &cluster.ownership_tag) {
                    let problem =
                        format!("public IP address {} has the tag {tag} of another cluster", name(existing));
                    invalid.push(InvalidField::spec("type", problem));
                }
                if family_of(existing) != address.family {
                    let problem = format!("public IP address {} is of the other family", name(existing));
                    invalid.push(InvalidField::spec("ipFamilies", problem));
                }
                if service.annotation_text(a::DNS_LABEL).is_some()
                    && let Some(other) = tags(existing).get(DNS_TAG).and_then(Value::as_str)
                    && other != service.id.to_string()
                {
                    let problem =
                        format!("public IP address {} has the DNS label of Service {other}", name(existing));
                    invalid.push(InvalidField::annotation(a::DNS_LABEL, problem));
                }
            }
            if let PartKey::Link(part) = key {
                invalid.extend(Self::link_problems(part, member, members, cluster, inputs));
            }
            if let Some(subnet) = inputs.subnets.get(spec.subnet_name(&self.settings))
                && spec.is_internal
            {
                for pinned in &spec.pinned {
                    if !subnet.prefixes.iter().any(|prefix| prefix.contains(pinned)) {
                        let problem =
                            format!("{pinned} is not in subnet {}", spec.subnet_name(&self.settings));
                        invalid.push(InvalidField::spec("loadBalancerIP", problem));
                    }
                }
            }
            if invalid.is_empty() {
                result.events.extend(self.events(key, member, cluster, inputs));
            } else {
                result.refused.push((service.id.clone(), InvalidField::error(&invalid)));
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
            PartKey::Balancer(part) => {
                DesiredPart::Balancer(self.balancer_part(part, members, cluster, inputs))
            }
            PartKey::Members(part) => DesiredPart::Members(self.members_part(part, members, cluster, inputs)),
            PartKey::Address(part) => DesiredPart::Address(self.address_part(part, members, cluster, inputs)),
            PartKey::Rules(part) => DesiredPart::Rules(self.rules_part(part, members, cluster, inputs)),
            PartKey::Link(part) => DesiredPart::Link(self.private_link(part, members, cluster, inputs)),
            PartKey::SecurityGroup(part) => {
                DesiredPart::SecurityGroup(self.security_group(part, members, cluster, inputs))
            }
        }
    }

    fn missing(&self, key: &PartKey, members: &[PartMember], observed: &ObservedPart) -> Option<String> {
        let is_served = |member: &&PartMember| !member.service.ingress.is_empty();
        let was_served = members.iter().any(|member| is_served(&member));
        let was_here = |part: &str| {
            let is_internal = names::is_internal(part);
            members
                .iter()
                .filter(is_served)
                .any(|member| a::is_true(&member.service, a::INTERNAL) == is_internal)
        };
        match (key, observed) {
            (PartKey::Balancer(part) | PartKey::Rules(part), ObservedPart::Document(None))
                if was_here(part) =>
            {
                Some(balancer_target(part).to_string())
            }
            (PartKey::Address(part), ObservedPart::Document(None)) if was_served => {
                Some(format!("public IP address {part}"))
            }
            _ => None,
        }
    }

    fn pending(&self, key: &PartKey, observed: &ObservedPart) -> Option<(Duration, String)> {
        let document = observed.document()?;
        let waits = match key {
            // Its pools are there while its rules are being changed.
            PartKey::Balancer(_) => state(document).eq_ignore_ascii_case("Deleting"),
            PartKey::Address(_) | PartKey::Rules(_) | PartKey::Link(_) | PartKey::SecurityGroup(_) => {
                is_changing(document)
            }
            PartKey::Members(_) => false,
        };
        waits.then(|| (FIRST_WAIT, format!("Azure has not finished a change of {}", document.name())))
    }

    /// The answer to a write has neither the address nor the etag of the finished document.
    fn lacks_result(&self, observed: &ObservedPart) -> bool {
        observed.document().is_some_and(is_changing)
    }

    fn degraded(&self, key: &PartKey, members: &[PartMember], observed: &ObservedPart) -> Option<Error> {
        let text = match (key, observed) {
            (PartKey::SecurityGroup(part), ObservedPart::Document(None)) => {
                if members.iter().all(Member::leaves) {
                    return None;
                }
                let (group, name) = part.split_once('/').unwrap_or_default();
                format!(
                    "network security group {name} not found in resource group {group}; create it, or correct securityGroupName"
                )
            }
            (PartKey::Address(part), ObservedPart::Document(None)) => {
                // The part creates the address of a Service that chooses none.
                let nothing = BalancerDirectory::default();
                let is_chosen = |member: &PartMember| {
                    let mut chosen = member.spec.addresses.iter().filter(|address| !address.is_managed());
                    chosen.any(|address| address.part(&nothing).eq_ignore_ascii_case(part))
                };
                if !PartMember::active(members).any(is_chosen) {
                    return None;
                }
                let (group, name) = part.split_once('/').unwrap_or_default();
                let name = name.strip_prefix(names::PINNED).unwrap_or(name);
                format!(
                    "public IP address {name} not found in resource group {group}; create it, or remove the annotation or field that chooses it"
                )
            }
            _ => {
                let document = observed.document().filter(|document| has_failed(document))?;
                format!("the last change of {} failed", document.name())
            }
        };
        Some(Error::new(ErrorKind::InvalidConfig, text))
    }

    fn plan(&self, desired: &DesiredPart, observed: &ObservedPart) -> Plan<ArmChange> {
        match (desired, observed) {
            (DesiredPart::Balancer(desired), ObservedPart::Document(document)) => {
                desired.plan(document.as_ref())
            }
            (DesiredPart::Address(desired), ObservedPart::Document(document)) => {
                desired.plan(document.as_ref())
            }
            (DesiredPart::Rules(desired), ObservedPart::Document(document)) => {
                desired.plan(document.as_ref())
            }
            (DesiredPart::SecurityGroup(desired), ObservedPart::Document(document)) => {
                desired.plan(document.as_ref())
            }
            (DesiredPart::Members(desired), ObservedPart::Members(observed)) => desired.plan(observed),
            (DesiredPart::Link(desired), ObservedPart::Link(observed)) => desired.plan(observed),
            (DesiredPart::Members(_) | DesiredPart::Link(_), ObservedPart::Document(_))
            | (_, ObservedPart::Members(_) | ObservedPart::Link(_)) => Plan::default(),
        }
    }

    fn fold(&self, _: &PartKey, change: &ArmChange, reply: Option<&Value>, observed: &mut ObservedPart) {
        match observed {
            ObservedPart::Document(document) => fold(change, reply, document),
            ObservedPart::Members(observed) => members::fold(change, reply, observed),
            ObservedPart::Link(observed) => fold_link(change, reply, observed),
        }
    }

    fn named_member(
        &self,
        _: &PartKey,
        members: &[PartMember],
        _: &ArmChange,
        error: &Error,
    ) -> Option<ServiceId> {
        let mut named = Vec::new();
        for member in PartMember::active(members) {
            let service = &member.service;
            let names = ServiceNames::new(&service.id, None, service.ip_families.len() > 1);
            let families = [IpFamily::V4, IpFamily::V6];
            for family in families {
                named.push((&service.id, names.frontend(family)));
                let rules = service.ports.iter().map(|port| names.rule(port.protocol, port.port, family));
                named.extend(rules.map(|rule| (&service.id, rule)));
            }
        }
        let names = named.iter().map(|(id, name)| (*id, name.as_str()));
        named_owner(&error.report(), names).cloned()
    }

    fn facts(
        &self,
        key: &PartKey,
        member: &PartMember,
        observed: &ObservedPart,
    ) -> Option<PartOutput<PartFacts>> {
        let mut output = PartOutput::default();
        if member.leaves() {
            return Some(output);
        }
        match (key, observed) {
            (PartKey::Balancer(part), ObservedPart::Document(document)) => {
                let document = document.as_ref()?;
                let id = document.fields().pointer("/properties/resourceGuid").and_then(Value::as_str);
                output.facts.balancer = Some(if is_planned(document) {
                    Fact::Later(balancer_target(part).to_string().into())
                } else {
                    Fact::Known(id.unwrap_or_default().to_owned())
                });
            }
            (PartKey::Members(_), ObservedPart::Members(observed)) => {
                if observed.balancer.is_none() && !has_planned_balancer(member) {
                    return None;
                }
            }
            (PartKey::Address(part), ObservedPart::Document(document)) => {
                let document = document.as_ref()?;
                let address = match ip_of(document.fields()) {
                    Some(address) => Fact::Known(address),
                    None if is_planned(document) => {
                        let (_, name) = part.split_once('/').unwrap_or_default();
                        Fact::Later(format!("the address of public IP address {name}").into())
                    }
                    None => return None,
                };
                let family = family_of(document.fields());
                output.facts.addresses.insert(family, address);
                let id = match document.id() {
                    "" => self.settings.address_id(part),
                    id => id.to_owned(),
                };
                output.facts.public_ids.insert(family, id);
            }
            (PartKey::Rules(_), ObservedPart::Document(document)) => {
                let spec = &member.spec;
                let served = Self::served(member, document.as_ref()?)?;
                let own = spec.families.iter().filter_map(|family| served.get(family)?.known());
                // In the order of upstream, so that a takeover does not write the status.
                let addresses = spec.additional.iter().chain(own);
                let ingress = addresses.map(|address| Ingress::address(&address.to_string(), IpMode::Vip));
                output.effects = Effects {
                    ingress: Some(ingress.collect()),
                    ..Effects::default()
                };
                if spec.is_internal {
                    output.facts.addresses = served;
                }
                if spec.link.is_some()
                    && let PartKey::Rules(part) = key
                {
                    let frontend = Self::frontend_of(member, document.as_ref()?.fields(), IpFamily::V4);
                    let id = frontend.map(|found| frontend_id(&self.settings.balancer_id(part), name(found)));
                    output.facts.frontend = id;
                }
            }
            (PartKey::SecurityGroup(_), ObservedPart::Document(document)) => {
                document.as_ref()?;
                // Former addresses of the Service are removed only when its present ones are known.
                if Self::known_addresses(member).is_empty() {
                    return None;
                }
            }
            (PartKey::Link(_), ObservedPart::Link(link)) => {
                link.service.as_ref()?;
            }
            (PartKey::Members(_) | PartKey::Link(_), ObservedPart::Document(_))
            | (_, ObservedPart::Members(_) | ObservedPart::Link(_)) => return None,
        }
        Some(output)
    }

    /// The address is known only when the operation has ended.
    fn early_facts(&self, _: &PartKey, _: &PartMember, _: &ObservedPart) -> Option<PartFacts> {
        None
    }

    fn required_facts(&self, key: &PartKey, earlier: &PartKey) -> RequiredFacts {
        match (key, earlier) {
            // Members and rules need the load balancer, a frontend a finished address, and a private link service its frontend.
            (PartKey::Members(_) | PartKey::Rules(_), PartKey::Balancer(_))
            | (PartKey::Link(_), PartKey::Rules(_))
            | (PartKey::Rules(_) | PartKey::SecurityGroup(_), PartKey::Address(_)) => RequiredFacts::Finished,
            // When the last Service leaves, members leave beside everything else, and its address is deleted beside the load balancer.
            (_, PartKey::Members(_)) | (PartKey::Address(_), PartKey::Balancer(_)) => {
                RequiredFacts::Independent
            }
            _ => RequiredFacts::Nothing,
        }
    }
}

/// What to do if a private link service cannot become what a Service asks for.
const KEEP_LINK: &str = "set azure-pls-create to \"false\" until it is deleted, or correct the annotation";
/// The wait for a change that another process began.
const FIRST_WAIT: Duration = Duration::from_secs(1);
