//! The [`PartModel`] of Azure: the parts of each Service, what is read for them, and the outputs of parts.

mod address;
mod balancer;
mod link;
mod security;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        ClusterSnapshot, ClusterView, Effects, FormerLoadBalancer, Ingress, InvalidField, IpFamily, IpMode,
        OwnNames, Ownership, ServiceEvent, ServiceId, ServiceView,
    },
    plan::{
        CheckResult, Fact, Member, Orphan, PartModel, PartOutput, Parts, Plan, RequiredFacts,
        document::{Document, named_owner},
        part_keys,
    },
};
use serde_json::Value;

use self::balancer::{has_to_move, planned_balancer, serves};
use super::{
    annotations as a,
    desired::{DNS_TAG, DesiredAddress, DesiredBalancer, DesiredRules, Place, is_empty, services_in},
    directory::{
        BalancerDirectory, family_of, frontend_id, has_elements, ip_of, is_address_of, lists, ownership,
        part_of, tags,
    },
    document::{ArmChange, POOLS, Target, elements, fold, has_failed, is_changing, name, state},
    members::{self, DesiredMembers, MachineIndex, ObservedMembers},
    names::{self, ServiceNames},
    placement::{self, NodePlacement, unknown_balancers},
    private_link::{DesiredLink, ObservedLink, fold_link, owner_of},
    security::DesiredSecurity,
    settings::BalancerSettings,
    spec::Spec,
};

part_keys! {
    /// The parts. Each key is the kind, the resource group and the name.
    pub(crate) enum PartKey {
        /// A load balancer with its backend pools.
        Balancer(String) = "lb/";
        /// The members of its backend pools. With several load balancers of each kind, one part has the pools of all of them: its name is
        /// `*`.
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
    /// Whether the Service has no rules in this load balancer any more, since it moves to another one.
    pub(crate) has_moved: bool,
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
            is_basic: conf.is_basic(),
            extended: if extended.iter().any(|value| value.is_empty()) {
                None
            } else {
                Some((conf.extended_location_name.clone(), conf.extended_location_type.clone()))
            },
            tags: self.settings.tags.clone(),
        }
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
            PartKey::Members(_) if !self.settings.several().is_empty() => {}
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
                let unknown = unknown_balancers(service, &self.settings);
                if !unknown.is_empty() {
                    let text = if self.settings.several().is_empty() {
                        format!(
                            "{} has no effect without multipleStandardLoadBalancerConfigurations",
                            a::CONFIGURATIONS
                        )
                    } else {
                        format!(
                            "{} names load balancers that the cloud config does not have: {}",
                            a::CONFIGURATIONS,
                            unknown.join(", ")
                        )
                    };
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

impl Model {
    /// The Warning about nodes that no load balancer has, on one of the Services.
    fn unplaced_nodes(
        &self,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
    ) -> Option<ServiceEvent> {
        let first = PartMember::active(members).next()?;
        if self.settings.several().is_empty() {
            return None;
        }
        let needs = self.balancer_needs(members, &inputs.directory);
        let placement =
            NodePlacement::new(cluster, &inputs.directory, &inputs.machines, &needs, &self.settings);
        if placement.unplaced.is_empty() {
            return None;
        }
        let nodes: Vec<&str> = placement.unplaced.iter().map(String::as_str).collect();
        let text = format!(
            "no load balancer that has a Service accepts nodes {}; they need one in multipleStandardLoadBalancerConfigurations with their primaryVMSet, a nodeSelector that matches, or none",
            nodes.join(", ")
        );
        Some(ServiceEvent::warning(&first.service.id, "FailedToFindLoadBalancerForNode", text))
    }
}

/// A subnet of the cluster's network.
pub(crate) fn subnet_target(settings: &BalancerSettings, name: &str) -> Target {
    Target::Subnet {
        group: settings.network_group.clone(),
        network: settings.conf.vnet_name.clone(),
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

    fn selects_by_labels(&self, _: &ServiceView) -> bool {
        let mut selectors =
            self.settings.several().iter().filter_map(|balancer| balancer.node_selector.as_ref());
        selectors.any(|selector| !selector.is_empty())
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
        let own = self.balancer_part(service, &spec, directory);
        let has_several = !self.settings.several().is_empty();
        let parts = placement::balancer_parts(&self.settings, &cluster.name);
        let with_members = |part: &str| {
            let members = if has_several {
                format!("{}/*", self.settings.balancer_group)
            } else {
                part.to_owned()
            };
            [PartKey::Balancer(part.to_owned()), PartKey::Members(members)]
        };
        let wants = service.wants_load_balancer();
        let mut named = with_members(&own).to_vec();
        named.extend(spec.addresses.iter().map(|address| PartKey::Address(address.part(directory))));
        if has_several && wants {
            // The address is free again only when its former frontend is gone. As long as the Service has no frontend, it may have had one
            // in any of the others.
            let has_rules = |document: &Value| has_elements(document, &spec.names);
            let is_placed = directory.balancer(&own).is_some_and(has_rules);
            for part in &parts {
                let is_of_kind = names::is_internal(part) == spec.is_internal && *part != own;
                let document = directory.balancer(part);
                if is_of_kind && document.is_some_and(|document| !is_placed || has_rules(document)) {
                    named.push(PartKey::Rules(part.clone()));
                }
            }
        }
        named.push(PartKey::Rules(own.clone()));
        if !wants {
            // A load balancer of the other kind may be being created for an earlier spec.
            let other = match own.strip_suffix(names::INTERNAL) {
                Some(external) if spec.is_internal => external.to_owned(),
                _ => format!("{own}{}", names::INTERNAL),
            };
            named.extend(with_members(&other));
            named.push(PartKey::Rules(other));
        }
        let own_links = Self::own_links(service, &spec, cluster, directory);
        if !wants {
            // A Service leaves them before the frontends that they use.
            named.extend(own_links.iter().cloned());
        }
        named.extend(self.link_part(service, &spec, directory).map(PartKey::Link));
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
        let has_own =
            |part: &str| directory.balancer(part).is_some_and(|document| has_elements(document, &spec.names));
        // The addresses of the Service are left with one external load balancer.
        let mut external = parts.iter().filter(|part| !names::is_internal(part));
        let with_addresses = external
            .clone()
            .find(|part| has_own(part))
            .or_else(|| external.clone().find(|part| **part == own))
            .or_else(|| external.next());
        let mut tagged = Vec::new();
        for part in &parts {
            let addresses = if Some(part) == with_addresses {
                addresses.as_slice()
            } else {
                &[]
            };
            let has_traces = !addresses.is_empty() || has_own(part);
            // A load balancer without frontends may be left of a process that was killed.
            let is_left_over = *part != own
                && directory.balancer(part).is_some_and(|document| {
                    let pools = members::pools(&cluster.name);
                    let mut own_pools = elements(document, POOLS)
                        .filter(|pool| pools.iter().any(|(_, own)| own.eq_ignore_ascii_case(name(pool))));
                    is_empty(document, &OwnNames::default()) && own_pools.next().is_some()
                });
            if !has_traces && !is_left_over {
                continue;
            }
            // All parts of a kind, in the same order whatever has been deleted already: rules are left before addresses, and
            // addresses before members and load balancers.
            tagged.extend(with_members(part));
            tagged.extend(addresses.iter().cloned());
            if has_traces {
                tagged.push(PartKey::Rules(part.clone()));
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
        for part in placement::balancer_parts(&self.settings, &cluster.name) {
            let Some(document) = directory.balancer(&part) else {
                continue;
            };
            if has_elements(document, &spec.names) {
                return FormerLoadBalancer::Ours(format!("rules of load balancer {}", name(document)));
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
                    || self.link_part(service, spec, directory).is_some_and(|known| known == part)
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
        if let PartKey::Members(_) = key {
            result.events.extend(self.unplaced_nodes(members, cluster, inputs));
        }
        let conflicts = self.port_conflicts(members, &inputs.directory);
        let excess = self.over_rule_limit(members, &inputs.directory);
        for member in PartMember::active(members) {
            let (service, spec) = (&member.service, &member.spec);
            let mut invalid = spec.invalid.clone();
            invalid.extend(conflicts.get(&service.id).into_iter().flatten().cloned());
            invalid.extend(excess.get(&service.id).cloned());
            if self.settings.conf.is_basic() {
                invalid.extend(self.standard_ones(member, &inputs.directory));
            }
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
            invalid
                .extend(placement::place_service(service, spec, &inputs.directory, &self.settings).problem);
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
                DesiredPart::Balancer(self.desired_balancer(part, members, cluster, inputs))
            }
            PartKey::Members(part) => {
                DesiredPart::Members(self.desired_members(part, members, cluster, inputs))
            }
            PartKey::Address(part) => {
                DesiredPart::Address(self.desired_address(part, members, cluster, inputs))
            }
            PartKey::Rules(part) => DesiredPart::Rules(self.desired_rules(part, members, cluster, inputs)),
            PartKey::Link(part) => DesiredPart::Link(self.desired_link(part, members, cluster, inputs)),
            PartKey::SecurityGroup(part) => {
                DesiredPart::SecurityGroup(self.desired_security(part, members, cluster, inputs))
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
                Some(Target::balancer(part).to_string())
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
                    Fact::Later(Target::balancer(part).to_string().into())
                } else {
                    Fact::Known(id.unwrap_or_default().to_owned())
                });
            }
            (PartKey::Members(_), ObservedPart::Members(observed)) => {
                // Several load balancers are members of one part, which a Service joins after its own.
                let has_balancer = observed.balancer.is_some() || !self.settings.several().is_empty();
                if !has_balancer && planned_balancer(member).is_none() {
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
            (PartKey::Rules(part), ObservedPart::Document(document)) if !serves(member, part) => {
                let balancer = document.as_ref().map(Document::fields);
                if balancer.is_some_and(|balancer| has_elements(balancer, &member.spec.names)) {
                    return None;
                }
                output.facts.has_moved = true;
            }
            // The address still belongs to the frontend in another load balancer.
            (PartKey::Rules(_), ObservedPart::Document(_)) if has_to_move(member) => return None,
            (PartKey::Rules(_), ObservedPart::Document(document)) => {
                let spec = &member.spec;
                let served = Self::served(member, document.as_ref()?)?;
                let own = spec.families.iter().filter_map(|family| served.get(family)?.known());
                // In the order of upstream, so that a takeover does not write the status.
                let addresses = spec.additional.iter().chain(own);
                let ingress = addresses.map(|address| Ingress::address(&address.to_string(), IpMode::Vip));
                let ingress = in_known_order(ingress.collect(), &member.service.ingress);
                output.effects = Effects {
                    ingress: Some(ingress),
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
        let has_several = !self.settings.several().is_empty();
        match (key, earlier) {
            // Members and rules need the load balancer, a frontend a finished address, and a private link service its frontend. The rules
            // of a Service that moves are removed from the load balancer that it had when the new one has all but these, and before they
            // are created there.
            (PartKey::Members(_) | PartKey::Rules(_), PartKey::Balancer(_))
            | (PartKey::Rules(_), PartKey::Rules(_))
            | (PartKey::Link(_), PartKey::Rules(_))
            | (PartKey::Rules(_) | PartKey::SecurityGroup(_), PartKey::Address(_)) => RequiredFacts::Finished,
            (PartKey::Rules(_), PartKey::Members(_)) if has_several => RequiredFacts::Finished,
            // When the last Service leaves, members leave beside everything else, and its address is deleted beside the load balancer.
            (_, PartKey::Members(_)) | (PartKey::Address(_), PartKey::Balancer(_)) => {
                RequiredFacts::Independent
            }
            _ => RequiredFacts::Nothing,
        }
    }
}

/// The wait for a change that another process began.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The addresses of a Service in the order of its status, if that has the same ones: another order is no change, and in the Go
/// cloud-controller-manager, IPv6 comes first.
fn in_known_order(addresses: Vec<Ingress>, status: &[Ingress]) -> Vec<Ingress> {
    let is_same = addresses.len() == status.len() && status.iter().all(|known| addresses.contains(known));
    if is_same { status.to_vec() } else { addresses }
}
