//! Discovers the inputs of desired states.

use std::collections::BTreeSet;

use ccm_core::{
    Error, ErrorKind, Result,
    load_balancer::{ClusterView, IpFamily, ReadOptions, ServiceView},
    plan::{GatheredInputs, Membership},
};

use super::settings::LoadBalancing;
use super::{
    annotations::LOAD_BALANCER_ID,
    desired::{Inputs, PortOwners, ServiceInputs, server_of},
    features::Capabilities,
    kinds::ListenerKey,
    names,
    part::{Key, PartMember},
    reads::Reads,
    responses::LoadBalancer,
    secrets::SecretRef,
    spec::BalancerSpec,
    subnets::SubnetFilter,
};

/// Discovers the inputs of a part.
pub(super) async fn inputs(
    settings: &LoadBalancing,
    reads: &Reads,
    key: &Key,
    members: &[PartMember],
    cluster: &ClusterView,
    read: ReadOptions,
) -> Result<GatheredInputs<Inputs>> {
    let named = |member: &PartMember| member.service.annotation(LOAD_BALANCER_ID).map(str::to_owned);
    let id = match key {
        Key::Balancer(id) => Some(id.clone()),
        Key::Group(_) => members.iter().find_map(named),
        Key::New(_) | Key::NodePorts => None,
    };
    let mut balancer = None;
    if let Some(id) = id {
        let listing = reads.load_balancers(None, read).await?;
        balancer = listing.by_id(&id).or_else(|| listing.by_key(&id).next()).cloned();
    }
    let provider = balancer.as_ref().map(|balancer| &balancer.provider);
    let provider = provider.unwrap_or(&settings.conf.lb_provider);
    let version = reads.version().await;
    // Deletions and members need no feature; other needs are checked below.
    let can = Capabilities::of(version.clone().unwrap_or_default(), provider);
    let mut inputs = Inputs {
        port_owners: port_owners(reads, key, members, read).await?,
        can,
        balancer,
        ..Inputs::default()
    };
    let mut refused = Vec::new();
    for member in members {
        let service = &member.service;
        match (key, &member.membership) {
            (Key::NodePorts, Membership::Leaving) => {
                let name = names::security_group(&service.id);
                let listing = reads.security_groups(Some(&name), read).await?;
                let ids = listing.by_key(&name).map(|group| group.id.clone()).collect();
                inputs.groups.insert(name, ids);
            }
            (Key::NodePorts, _) | (_, Membership::Leaving | Membership::Frozen(_)) => {}
            (_, Membership::Active) => {
                if let Err(error) = &version {
                    refused.push((service.id.clone(), unknown_version(error)));
                    continue;
                }
                // `check` reports the problems.
                let Ok(spec) = BalancerSpec::read(service, settings, Some(can)) else {
                    continue;
                };
                let balancer = inputs.balancer.as_deref();
                let found = Finder {
                    reads,
                    cluster,
                    settings,
                    read,
                    balancer,
                    known_subnet: balancer
                        .map_or_else(|| vip_subnet_of(member), |found| found.vip_subnet_id.clone()),
                };
                let found = match key {
                    Key::Group(_) => found.for_group(service, &spec, member).await,
                    _ => found.for_balancer(&spec).await,
                };
                match found {
                    Ok(found) => drop(inputs.each.insert(service.id.clone(), found)),
                    Err(error) => refused.push((service.id.clone(), error)),
                }
            }
        }
    }
    Ok(GatheredInputs { inputs, refused })
}

/// The owners of the listeners, if two members that stay request the same port.
async fn port_owners(
    reads: &Reads,
    key: &Key,
    members: &[PartMember],
    read: ReadOptions,
) -> Result<PortOwners> {
    let mut ports = BTreeSet::new();
    let staying = PartMember::staying(members);
    let mut staying = staying.flat_map(|member| ListenerKey::all_of(&member.service));
    let (Key::Balancer(id), false) = (key, staying.all(|port| ports.insert(port))) else {
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

impl Finder<'_> {
    async fn for_balancer(&self, spec: &BalancerSpec) -> Result<ServiceInputs> {
        self.certificate(spec).await?;
        let mut found = self.subnets(spec).await?;
        if !spec.internal && spec.family != Some(IpFamily::V6) {
            match self.floating(spec, &mut found).await {
                // An attached one stays, whatever subnets the Service names.
                Err(error) if error.kind() == ErrorKind::InvalidSpec && self.has_floating().await? => {}
                result => result?,
            }
        }
        Ok(found)
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
        let mut found = ServiceInputs {
            vip_subnet: spec.vip_subnet.clone(),
            member_subnet: spec.member_subnet.clone(),
            ..ServiceInputs::default()
        };
        if found.vip_subnet.is_empty() && spec.vip_network.is_empty() {
            let needed = found.member_subnet.is_empty() || spec.vip_port.is_empty();
            if needed {
                let subnet = self.subnet_of_nodes(spec).await?;
                if found.member_subnet.is_empty() {
                    found.member_subnet.clone_from(&subnet);
                }
                found.vip_subnet = subnet;
            }
        }
        Ok(found)
    }

    /// The subnet of the first node whose server has a port with the node's address. A Node without a server has none.
    async fn subnet_of_nodes(&self, spec: &BalancerSpec) -> Result<String> {
        /// The most nodes whose ports are read.
        const ASKED: usize = 5;
        let nodes = self.cluster.nodes.eligible().filter_map(|node| {
            let server = server_of(node.view.provider_id.as_deref()?)?;
            Some((server, node.address(spec.family)?.to_string()))
        });
        let nodes: Vec<_> = nodes.take(ASKED).collect();
        let Some((server, address)) = nodes.first() else {
            // Without nodes, nothing is created again, and existing objects stay.
            if !self.known_subnet.is_empty() {
                return Ok(self.known_subnet.clone());
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
            let mut fixed = ports.get(server)?.iter().flat_map(|port| &port.fixed_ips);
            let fixed = fixed.find(|fixed| fixed.ip_address == *address)?;
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
