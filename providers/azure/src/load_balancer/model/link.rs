//! The desired private link services.

use std::{collections::BTreeSet, net::IpAddr};

use ccm_core::{
    load_balancer::{ClusterView, InvalidField, ServiceView},
    plan::Membership,
};

use super::{Model, PartInputs, PartKey, PartMember, subnet_target};
use crate::load_balancer::{
    annotations as a,
    desired::Need,
    directory::{BalancerDirectory, frontend_ids_in, frontend_ids_of_link, part_of},
    document::{Target, name},
    private_link::{DesiredLink, LinkRequest, LinkUser, is_of_cluster, owner_of},
    spec::Spec,
};

impl Model {
    /// The part of the private link service of a Service that asks for one: that of its frontend, or a new one.
    pub(super) fn link_part(
        &self,
        service: &ServiceView,
        spec: &Spec,
        directory: &BalancerDirectory,
    ) -> Option<String> {
        let link = spec.link.as_ref()?;
        let balancer = directory.balancer(&self.balancer_part(service, spec, directory));
        let frontends = balancer.map(|balancer| frontend_ids_in(balancer, &spec.names)).unwrap_or_default();
        let existing = directory.links_at(&frontends).next().map(part_of);
        let part = link.part();
        // Names differ in their case alone.
        let named = || directory.link(&part).map(part_of);
        Some(existing.or_else(named).unwrap_or(part))
    }

    /// The parts of the private link services that a Service created, or that its frontends have.
    pub(super) fn own_links(
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

    pub(super) fn desired_link(
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
    pub(super) fn link_request(
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
    pub(super) fn link_problems(
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
}

/// What to do if a private link service cannot become what a Service asks for.
const KEEP_LINK: &str = "set azure-pls-create to \"false\" until it is deleted, or correct the annotation";
