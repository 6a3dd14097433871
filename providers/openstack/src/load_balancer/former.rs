//! Load balancers of Services that got the class of another controller.
//!
//! Upstream created them without an ownership tag, and their names do not contain the UID of the Service. Another cluster of the
//! project with the same name may have a Service of the same name. So such a load balancer counts as this cluster's only if one
//! of its members is a port of a server that a node of the cluster names by its provider ID.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    Result,
    load_balancer::{ClusterView, ReadOptions, ServiceId},
};

use super::{
    desired::server_of,
    directory::LoadBalancerDirectory,
    reads::{Contents, Reads},
    responses::LoadBalancer,
};

/// The IDs of load balancers with the Service's name and without an ownership tag that have a node of the cluster as a member.
pub(super) async fn identified(
    reads: &Reads,
    directory: &LoadBalancerDirectory,
    service: &ServiceId,
    cluster: &ClusterView,
    read: ReadOptions,
) -> Result<BTreeSet<String>> {
    let mut identified = BTreeSet::new();
    for id in directory.untagged_of(service, cluster) {
        if let Some(balancer) = reads.load_balancer(id, read).await?
            && has_node(reads, &balancer, cluster, read).await?
        {
            identified.insert(id.clone());
        }
    }
    Ok(identified)
}

/// Whether a member of the load balancer has the address and the subnet of a port of a node's server. The address alone proves
/// nothing: networks of other clusters may have the same addresses.
async fn has_node(
    reads: &Reads,
    balancer: &LoadBalancer,
    cluster: &ClusterView,
    read: ReadOptions,
) -> Result<bool> {
    let children = reads.children(balancer, read).await?;
    let members = reads.members(&children, Contents::Which, read.priority).await?;
    // The subnets of the members, by address.
    let mut subnets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for member in members.iter().flat_map(|members| members.iter()) {
        let subnet = match &*member.host.subnet_id {
            "" => &balancer.vip_subnet_id,
            subnet => subnet,
        };
        subnets.entry(&member.host.address).or_default().insert(subnet);
    }
    let mut servers = Vec::new();
    for node in cluster.nodes.all() {
        let mut addresses = node.addresses.iter();
        if addresses.any(|address| subnets.contains_key(&*address.address)) {
            servers.extend(node.view.provider_id.as_deref().and_then(server_of));
        }
    }
    if servers.is_empty() {
        return Ok(false);
    }
    let servers: Vec<_> = servers.iter().map(String::as_str).collect();
    let ports = reads.ports_of(&servers, read).await?;
    let mut fixed = ports.values().flat_map(|ports| ports.iter()).flat_map(|port| &port.fixed_ips);
    Ok(fixed.any(|fixed| {
        let subnets = subnets.get(&*fixed.ip_address);
        subnets.is_some_and(|subnets| subnets.contains(&*fixed.subnet_id))
    }))
}
