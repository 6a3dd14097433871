//! Discovers the inputs of desired states.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind, Freshness, NodeView, Result,
    client::Listing,
    load_balancer::{ClusterView, IpFamily, ReadOptions, ServiceView},
    plan::{GatheredInputs, Membership},
};
use tokio::time::Instant;

use super::settings::LoadBalancing;
use super::{
    annotations::LOAD_BALANCER_ID,
    desired::{PartInputs, PortOwners, SecondFamily, ServiceInputs, server_of},
    features::{Capabilities, Feature},
    kinds::ListenerKey,
    names,
    part::{OpenStackPart, PartMember},
    plan::floating::{self, names_another},
    reads::Reads,
    responses::{FloatingIp, LoadBalancer, Subnet},
    secrets::SecretRef,
    spec::{BalancerSpec, may_have_floating_ip, servers},
    subnets::SubnetFilter,
};
use crate::instances::{
    provider_id::{self, ProviderId},
    records::Port,
};

/// Discovers the inputs of a part.
pub(super) async fn inputs(
    settings: &LoadBalancing,
    reads: &Reads,
    key: &OpenStackPart,
    members: &[PartMember],
    cluster: &ClusterView,
    read: ReadOptions,
) -> Result<GatheredInputs<PartInputs>> {
    let id = match key {
        OpenStackPart::Balancer(id) => Some(id.clone()),
        OpenStackPart::Group(_) => members
            .iter()
            .find_map(|member: &PartMember| member.service.annotation(LOAD_BALANCER_ID).map(str::to_owned)),
        OpenStackPart::New(_) | OpenStackPart::NodePorts => None,
    };
    let mut balancer = None;
    if let Some(id) = id {
        let listing = reads.load_balancers(None, read).await?;
        balancer = listing.by_id(&id).or_else(|| listing.by_key(&id).next()).cloned();
    }
    let provider = balancer.as_ref().map(|balancer| &balancer.provider).unwrap_or(&settings.conf.lb_provider);
    let version = reads.version().await;
    // Deletions and members need no feature; other needs are checked below.
    let can = Capabilities::of(version.clone().unwrap_or_default(), provider);
    let mut inputs = PartInputs {
        port_owners: port_owners(reads, key, members, read).await?,
        can,
        balancer,
        ..PartInputs::default()
    };
    if *key == OpenStackPart::NodePorts {
        inputs.without_port = nodes_without_port(settings, reads, members, cluster, read).await?;
    }
    inputs.read_specs(settings, key, members);
    let mut refused = Vec::new();
    for member in members {
        let service = &member.service;
        match (key, &member.membership) {
            (OpenStackPart::NodePorts, Membership::Leaving) => {
                let name = names::security_group(&service.id);
                let listing = reads.security_groups(Some(&name), read).await?;
                let ids = listing.by_key(&name).map(|group| group.id.clone()).collect();
                inputs.groups.insert(name, ids);
            }
            (OpenStackPart::NodePorts, _) | (_, Membership::Leaving | Membership::Frozen(_)) => {}
            (_, Membership::Active) => {
                if let Err(error) = &version {
                    refused.push((service.id.clone(), unknown_version(error)));
                    continue;
                }
                // `check` reports the problems.
                let Some(spec) = inputs.spec(&service.id).cloned() else {
                    continue;
                };
                let balancer = inputs.balancer.as_deref();
                let found = Finder {
                    reads,
                    cluster,
                    settings,
                    read,
                    balancer,
                    can,
                    known_subnet: balancer
                        .map_or_else(|| vip_subnet_of(member), |found| found.vip_subnet_id.clone()),
                    known_additional: match balancer {
                        Some(balancer) => balancer.additional_vips.first().map(|vip| vip.subnet_id.clone()),
                        None => member.facts.iter().map(|(_, facts)| facts.additional_subnet.clone()).max(),
                    }
                    .unwrap_or_default(),
                };
                let found = match key {
                    OpenStackPart::Group(_) => found.for_group(service, &spec, member).await,
                    _ => found.for_balancer(service, &spec).await,
                };
                match found {
                    Ok(found) => {
                        inputs.each.insert(service.id.clone(), found);
                    }
                    Err(error) => refused.push((service.id.clone(), error)),
                }
            }
        }
    }
    Ok(GatheredInputs { inputs, refused })
}

/// The nodes whose ports can get no security group, with the reason, by the family of the Services. They need a server of
/// OpenStack with a port that has the node's address. A node without a provider ID is new, and one that is not ready may have no
/// server anymore.
async fn nodes_without_port(
    settings: &LoadBalancing,
    reads: &Reads,
    members: &[PartMember],
    cluster: &ClusterView,
    read: ReadOptions,
) -> Result<BTreeMap<Option<IpFamily>, Vec<(Arc<NodeView>, String)>>> {
    let following: Vec<_> = members.iter().filter(|member| member.follows_nodes()).collect();
    let servers: BTreeSet<_> =
        following.iter().flat_map(|member| servers(&member.service, settings, cluster)).collect();
    let servers: Vec<_> = servers.iter().map(String::as_str).collect();
    let ports = match servers.as_slice() {
        [] => HashMap::new(),
        servers => reads.ports_of(servers, read).await?,
    };
    let families: BTreeSet<_> =
        following.iter().map(|member| member.service.ip_families.first().copied()).collect();
    let mut without_port = BTreeMap::new();
    for family in families {
        let mut nodes = Vec::new();
        for node in cluster.nodes.eligible().filter(|node| node.ready) {
            let Some((id, address)) = node.view.provider_id.as_deref().zip(node.address(family)) else {
                continue;
            };
            let reason = match provider_id::parse(id) {
                Err(_) => format!("has the malformed provider ID {id:?}"),
                Ok(ProviderId::Foreign) => format!("has the provider ID {id} of another cloud"),
                Ok(ProviderId::Server { id, .. }) => match ports.get(id) {
                    Some(ports) if !has_address(ports, &address.to_string()) => {
                        format!("has the address {address}, which no port of its server {id} has")
                    }
                    _ => continue,
                },
            };
            nodes.push((Arc::clone(&node.view), reason));
        }
        if !nodes.is_empty() {
            without_port.insert(family, nodes);
        }
    }
    Ok(without_port)
}

fn has_address(ports: &[Arc<Port>], address: &str) -> bool {
    let mut fixed = ports.iter().flat_map(|port| &port.fixed_ips);
    fixed.any(|fixed| fixed.ip_address == address)
}

/// The owners of the listeners, if two members that stay request the same port.
async fn port_owners(
    reads: &Reads,
    key: &OpenStackPart,
    members: &[PartMember],
    read: ReadOptions,
) -> Result<PortOwners> {
    let mut ports = BTreeSet::new();
    let mut staying = PartMember::staying(members).flat_map(|member| ListenerKey::all_of(&member.service));
    let (OpenStackPart::Balancer(id), false) = (key, staying.all(|port| ports.insert(port))) else {
        return Ok(PortOwners::new());
    };
    let Some(balancer) = reads.load_balancer(id, read).await? else {
        return Ok(PortOwners::new());
    };
    let children = reads.children(&balancer, read).await?;
    let owners = children.listeners.iter().map(|listener| {
        let tag = listener.tags.iter().find(|tag| names::is_service_tag(tag));
        // Listeners without Service tags belong to the Service of the load balancer's name.
        (ListenerKey::of(listener), tag.unwrap_or(&balancer.name).clone())
    });
    Ok(owners.collect())
}

/// The reason why a Service keeps its current state.
fn unknown_version(error: &Error) -> Error {
    let text = "the API version of Octavia could not be read, so its features are unknown: nothing is created for \
                the Service, and only its members follow the nodes; allow the credentials to read the list of \
                versions at Octavia's endpoint";
    // The text stays the same; the rest of the error may differ each time.
    Error::new(error.kind(), text).with_retry(error.retry()).with_source(error.clone())
}

struct Finder<'a> {
    reads: &'a Reads,
    cluster: &'a ClusterView,
    settings: &'a LoadBalancing,
    read: ReadOptions,
    /// The part's load balancer.
    balancer: Option<&'a LoadBalancer>,
    /// The subnet of an existing virtual address; empty if there is none.
    known_subnet: String,
    can: Capabilities,
    /// The subnet of an existing additional virtual address; empty if there is none.
    known_additional: String,
}

/// The subnet of the virtual address from the member's other parts; empty if they have none.
fn vip_subnet_of(member: &PartMember) -> String {
    let mut subnets = member.facts.iter().map(|(_, facts)| &facts.vip_subnet);
    let found = subnets.find(|subnet| !subnet.is_empty());
    found.cloned().unwrap_or_default()
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidSpec, text)
}

/// The subnets of a family, by ID.
fn subnet_ids(subnets: &[Subnet], family: IpFamily) -> Vec<String> {
    let of_family = subnets.iter().filter(|subnet| subnet.family() == family);
    let mut ids: Vec<_> = of_family.map(|subnet| subnet.id.clone()).collect();
    ids.sort();
    ids
}

impl Finder<'_> {
    async fn for_balancer(&self, service: &ServiceView, spec: &BalancerSpec) -> Result<ServiceInputs> {
        self.certificate(spec).await?;
        let mut found = self.subnets(spec).await?;
        let second_is_v4 = found.second.as_ref().is_some_and(|second| second.family == IpFamily::V4);
        let has_v4 = spec.family != Some(IpFamily::V6) || second_is_v4;
        if !spec.internal && has_v4 {
            match self.floating(spec, &mut found).await {
                // An attached one stays, whatever subnets the Service names.
                Err(error) if error.kind() == ErrorKind::InvalidSpec && self.has_floating().await? => {}
                result => result?,
            }
        }
        let port = self.balancer.map_or("", |balancer| &balancer.vip_port_id);
        let vips = self.balancer.map(LoadBalancer::virtual_addresses).unwrap_or_default();
        match self.reads.floating_ips(Some(port), self.read).await {
            Ok(listing) => {
                found.replaced_floating = self.replaced_floating(service, spec, &listing).await?;
                Ok(found)
            }
            Err(error)
                if found.floating_network.is_some()
                    || may_have_floating_ip(service, self.settings, &vips, &error) =>
            {
                Err(error)
            }
            Err(_) => Ok(found),
        }
    }

    /// The attached floating IP, if that of `spec.loadBalancerIP` replaces it.
    async fn replaced_floating(
        &self,
        service: &ServiceView,
        spec: &BalancerSpec,
        listing: &Listing<FloatingIp>,
    ) -> Result<Option<String>> {
        let requested = &*service.load_balancer_ip;
        let Some(balancer) = self.balancer.filter(|balancer| !balancer.vip_port_id.is_empty()) else {
            return Ok(None);
        };
        let is_owner = balancer.name == names::load_balancer(&self.cluster.name, &service.id)
            || balancer.name == names::legacy_load_balancer(&service.id);
        let recorded =
            balancer.tags.iter().find(|tag| names::is_requested_address_tag(tag)).map(String::as_str);
        let Some(attached) = listing.by_key(&balancer.vip_port_id).next() else {
            return Ok(None);
        };
        if spec.internal
            || !is_owner
            || attached.floating_ip_address == requested
            || !names_another(recorded, requested)
        {
            return Ok(None);
        }
        let may_replace = |listing: &Listing<FloatingIp>| {
            let found = listing
                .by_key(requested)
                .find(|found| found.floating_ip_address == requested)
                .map(|found| self.reads.floating_object(found));
            floating::may_replace(recorded, requested, found.as_ref()).is_ok()
        };
        let mut is_usable = may_replace(listing);
        if !is_usable {
            // It may have been created or detached since the listing was read.
            let read = ReadOptions {
                freshness: Freshness::After(Instant::now()),
                ..self.read
            };
            is_usable = may_replace(&*self.reads.floating_ips(None, read).await?);
        }
        Ok(is_usable.then(|| attached.floating_ip_address.clone()))
    }

    async fn has_floating(&self) -> Result<bool> {
        let port = self.balancer.map_or("", |balancer| &balancer.vip_port_id);
        let listing = self.reads.floating_ips(Some(port), self.read).await?;
        Ok(!port.is_empty() && listing.by_key(port).next().is_some())
    }

    async fn for_group(
        &self,
        service: &ServiceView,
        spec: &BalancerSpec,
        member: &PartMember,
    ) -> Result<ServiceInputs> {
        let mut found = self.subnets(spec).await?;
        if found.member_subnet.is_empty() {
            found.member_subnet = vip_subnet_of(member);
        }
        let (discovery, priority) = (&self.reads.discovery, self.read.priority);
        let subnet = discovery.subnet(&found.member_subnet, priority).await?;
        let Some(subnet) = &*subnet else {
            return Err(invalid(format!(
                "the subnet {:?} of the members of Service {} does not exist",
                found.member_subnet, service.id
            )));
        };
        found.member_range.clone_from(&subnet.cidr);
        if let Some(second) = found.second.as_mut().filter(|second| !second.member_subnet.is_empty()) {
            let subnet = discovery.subnet(&second.member_subnet, priority).await?;
            second.member_range =
                subnet.as_ref().as_ref().map(|subnet| subnet.cidr.clone()).unwrap_or_default();
        }
        Ok(found)
    }

    async fn certificate(&self, spec: &BalancerSpec) -> Result<()> {
        if spec.tls.is_empty() || self.settings.conf.container_store != "barbican" {
            return Ok(());
        }
        let secret = SecretRef::parse(&spec.tls)?;
        let (discovery, priority) = (&self.reads.discovery, self.read.priority);
        if discovery.secret_exists(&secret, priority).await? {
            return Ok(());
        }
        Err(invalid(format!("TLS container {} does not exist in Barbican", spec.tls)))
    }

    /// The subnets of the virtual address and the members.
    async fn subnets(&self, spec: &BalancerSpec) -> Result<ServiceInputs> {
        let vip = self.balancer.and_then(|balancer| balancer.vip_address.parse().ok());
        let mut found = ServiceInputs {
            vip_family: vip.map(IpFamily::of).or(spec.family),
            vip_subnet: spec.vip_subnet.clone(),
            member_subnet: spec.member_subnet.clone(),
            ..ServiceInputs::default()
        };
        if found.vip_subnet.is_empty() && spec.vip_network.is_empty() {
            let needed = found.member_subnet.is_empty() || spec.vip_port.is_empty();
            if needed {
                let subnet = self.subnet_of_nodes(spec.family, &self.known_subnet).await?;
                if found.member_subnet.is_empty() {
                    found.member_subnet.clone_from(&subnet);
                }
                found.vip_subnet = subnet;
            }
        }
        if self.balancer.is_none() && spec.vip_port.is_empty() {
            self.new_address(spec, &mut found).await?;
        }
        found.second = self.second_family(spec, &found).await?;
        Ok(found)
    }

    /// The second IP family, if the load balancer has an address of it, or is new and gets one.
    async fn second_family(
        &self,
        spec: &BalancerSpec,
        found: &ServiceInputs,
    ) -> Result<Option<SecondFamily>> {
        let Some(family) = spec.second_family.filter(|family| found.vip_family != Some(*family)) else {
            return Ok(None);
        };
        let mut subnets = Vec::new();
        if self.known_additional.is_empty() {
            let is_new = self.balancer.is_none() && self.known_subnet.is_empty();
            if !is_new || !spec.vip_port.is_empty() || !self.can.has(Feature::AdditionalVips) {
                return Ok(None);
            }
            subnets = self.additional_subnets(spec, family, found).await?;
            if subnets.is_empty() {
                return Ok(None);
            }
        }
        let member_subnet = match self.subnet_of_nodes(Some(family), &self.known_additional).await {
            // Members of the first family serve both addresses.
            Err(error) if error.kind() == ErrorKind::InvalidSpec => String::new(),
            result => result?,
        };
        Ok(Some(SecondFamily {
            family,
            subnets,
            member_subnet,
            member_range: String::new(),
        }))
    }

    /// The subnets of a family in the network of a new virtual address, by ID. Octavia accepts no others.
    async fn additional_subnets(
        &self,
        spec: &BalancerSpec,
        family: IpFamily,
        found: &ServiceInputs,
    ) -> Result<Vec<String>> {
        let (discovery, priority) = (&self.reads.discovery, self.read.priority);
        let network = if spec.vip_network.is_empty() {
            let subnet = discovery.subnet(&found.vip_subnet, priority).await?;
            subnet.as_ref().as_ref().map(|subnet| subnet.network_id.clone()).unwrap_or_default()
        } else {
            spec.vip_network.clone()
        };
        if network.is_empty() {
            return Ok(Vec::new());
        }
        let subnets = discovery.subnets_of(&network, priority).await?;
        Ok(subnet_ids(&subnets, family))
    }

    /// The family of a new virtual address. In a named network, Octavia prefers IPv4 subnets, so that an IPv6 subnet is named for a
    /// Service of that family.
    async fn new_address(&self, spec: &BalancerSpec, found: &mut ServiceInputs) -> Result<()> {
        let (discovery, priority) = (&self.reads.discovery, self.read.priority);
        if !spec.vip_subnet.is_empty() {
            let subnet = discovery.subnet(&spec.vip_subnet, priority).await?;
            found.vip_family = subnet.as_ref().as_ref().map(Subnet::family).or(spec.family);
            return Ok(());
        }
        if spec.vip_network.is_empty() {
            return Ok(());
        }
        let subnets = discovery.subnets_of(&spec.vip_network, priority).await?;
        let has_v4 = subnets.iter().any(|subnet| subnet.family() == IpFamily::V4);
        if spec.family != Some(IpFamily::V6) && has_v4 {
            // Octavia chooses one of them, whether it has a free address or not.
            found.other_subnets = subnet_ids(&subnets, IpFamily::V4);
            return Ok(());
        }
        let of_v6 = subnet_ids(&subnets, IpFamily::V6);
        match of_v6.split_first() {
            Some((first, others)) => {
                found.vip_subnet.clone_from(first);
                found.other_subnets = others.to_vec();
                found.vip_family = Some(IpFamily::V6);
                Ok(())
            }
            // They may be hidden.
            None if subnets.is_empty() => Ok(()),
            None => Err(invalid(format!(
                "network {} has no IPv6 subnet, and the Service's first IP family is IPv6; name another network with network-id, or \
                 a subnet with subnet-id",
                spec.vip_network
            ))),
        }
    }

    /// The subnet of the first node whose server has a port with the node's address. A Node without a server has none.
    /// `known`: the subnet of an existing virtual address, for a cluster without nodes.
    async fn subnet_of_nodes(&self, family: Option<IpFamily>, known: &str) -> Result<String> {
        /// The most nodes whose ports are read.
        const ASKED: usize = 5;
        let nodes = self.cluster.nodes.eligible().filter_map(|node| {
            let server = server_of(node.view.provider_id.as_deref()?)?;
            Some((server, node.address(family)?.to_string()))
        });
        let nodes: Vec<_> = nodes.take(ASKED).collect();
        let Some((server, address)) = nodes.first() else {
            // Without nodes, nothing is created again, and existing objects stay.
            if !known.is_empty() {
                return Ok(known.to_owned());
            }
            return Err(invalid(
                "the subnet of the load balancer is not known: no node has a provider ID and an address of the \
                 Service's IP family; name the subnet with subnet-id",
            ));
        };
        // Security groups need the ports of all nodes, and one request reads many of them.
        let all: Vec<_> = if self.settings.conf.manage_security_groups {
            let nodes = self.cluster.nodes.eligible();
            let servers = nodes.filter_map(|node| server_of(node.view.provider_id.as_deref()?));
            servers.collect()
        } else {
            nodes.iter().map(|(server, _)| server.clone()).collect()
        };
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let ports = self.reads.ports_of(&all, self.read).await?;
        let subnet = nodes.iter().find_map(|(server, address)| {
            let mut fixed_ips = ports.get(server)?.iter().flat_map(|port| &port.fixed_ips);
            let fixed = fixed_ips.find(|fixed| fixed.ip_address == *address)?;
            Some(fixed.subnet_id.clone())
        });
        subnet.ok_or_else(|| {
            invalid(format!(
                "the subnet of the load balancer is not known: server {server} has no port with the address \
                 {address}; name the subnet with subnet-id"
            ))
        })
    }

    /// The network and subnets of the floating IP.
    async fn floating(&self, spec: &BalancerSpec, found: &mut ServiceInputs) -> Result<()> {
        let (source, priority) = (&spec.source, self.read.priority);
        let discovery = &self.reads.discovery;
        let network = if source.network.is_empty() {
            let network = discovery.default_external_network(priority).await?;
            network.map(|network| network.id)
        } else {
            Some(source.network.clone())
        };
        let Some(network) = network else { return Ok(()) };
        if !source.subnet.is_empty() {
            let subnet = discovery.subnet(&source.subnet, priority).await?;
            match &*subnet {
                Some(subnet) if subnet.network_id != network => {
                    return Err(invalid(format!(
                        "floating-subnet-id {} is a subnet of network {}, not of floating-network-id {network}",
                        subnet.id, subnet.network_id
                    )));
                }
                // A hidden subnet can be used all the same.
                _ => found.floating_subnets = vec![source.subnet.clone()],
            }
        } else if !source.pattern.is_empty() || !source.tags.is_empty() {
            let filter = SubnetFilter::parse(&source.pattern, &source.tags)?;
            let all = discovery.subnets_of(&network, priority).await?;
            let taken = all.iter().filter(|subnet| filter.takes(subnet));
            found.floating_subnets = taken.map(|subnet| subnet.id.clone()).collect();
            if found.floating_subnets.is_empty() {
                return Err(invalid(format!(
                    "no subnet of external network {network} fits floating-subnet {:?} and floating-subnet-tags {:?}",
                    source.pattern, source.tags
                )));
            }
        }
        found.floating_network = Some(network);
        Ok(())
    }
}
