//! Objects of Neutron that load balancers use, in the control API: their state, and changes by other clients.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Control;
use crate::error::Result;
use crate::openstack::region::{NetworkState, Region};

/// The state of a floating IP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloatingState {
    /// UUID.
    pub id: String,
    /// The address.
    pub address: IpAddr,
    /// The attached port, if any.
    pub port_id: Option<String>,
    /// The description.
    pub description: String,
}

/// The state of a security group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupState {
    /// UUID.
    pub id: String,
    /// Name, which need not be unique.
    pub name: String,
    /// The description.
    pub description: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its rules as lines, sorted: `ingress IPv4 tcp 80-80 from 10.0.0.0/12`.
    pub rules: Vec<String>,
    /// The IDs of the ports that use it.
    pub ports: Vec<String>,
}

/// Floating IPs and security groups.
impl Control {
    /// All floating IPs of all regions and projects, by ID.
    pub fn floating_ips(&self) -> Vec<FloatingState> {
        let regions = self.cloud.regions.read();
        let all = regions.iter().flat_map(|region| region.network.floating.values());
        all.map(|floating| FloatingState {
            id: floating.id.clone(),
            address: floating.address,
            port_id: floating.port_id.clone(),
            description: floating.description.clone(),
        })
        .collect()
    }

    /// All security groups of all regions and projects, by ID, including the default ones.
    pub fn security_groups(&self) -> Vec<GroupState> {
        let regions = self.cloud.regions.read();
        regions.iter().flat_map(groups).collect()
    }

    /// Detaches a floating IP from its port. It still belongs to the project.
    ///
    /// # Errors
    /// If the address does not exist.
    pub fn detach_floating(&self, address: IpAddr) -> Result<()> {
        self.change_floating(address, NetworkState::detach_floating)
    }

    /// Deletes a floating IP.
    ///
    /// # Errors
    /// If the address does not exist.
    pub fn remove_floating(&self, address: IpAddr) -> Result<()> {
        self.change_floating(address, NetworkState::delete_floating)
    }

    fn change_floating(&self, address: IpAddr, change: impl FnOnce(&mut NetworkState, &str)) -> Result<()> {
        let find = |region: &Region| {
            let mut all = region.network.floating.values();
            let found = all.find(|floating| floating.address == address)?;
            Some(found.id.clone())
        };
        self.change_region_with("floating IP", &address.to_string(), find, |region, id| {
            change(&mut region.network, &id);
            Ok(())
        })
    }

    /// Deletes a security group with its rules, also if ports use it.
    ///
    /// # Errors
    /// If the group does not exist.
    pub fn delete_group(&self, id: &str) -> Result<()> {
        let find = |region: &Region| region.network.groups.contains_key(id).then_some(());
        self.change_region_with("security group", id, find, |region, ()| {
            let ports: Vec<_> = region.network.ports.keys().cloned().collect();
            for port in ports {
                region.network.change_port(&port, |port| port.security_groups.retain(|known| known != id));
            }
            region.network.remove_group(id);
            Ok(())
        })
    }
}

fn groups(region: &Region) -> Vec<GroupState> {
    let network = &region.network;
    let each = network.groups.values().map(|group| {
        let mut rules: Vec<_> = group
            .rules
            .iter()
            .filter_map(|id| network.rules.get(id))
            .map(|rule| {
                let port = |port: Option<i64>| port.map_or_else(|| "*".to_owned(), |port| port.to_string());
                format!(
                    "{} {} {} {}-{} from {}",
                    rule.direction,
                    rule.ethertype,
                    rule.protocol.as_deref().unwrap_or("*"),
                    port(rule.port_min),
                    port(rule.port_max),
                    rule.remote_prefix.as_deref().or(rule.remote_group.as_deref()).unwrap_or("*"),
                )
            })
            .collect();
        rules.sort();
        let with = network.ports.values().filter(|port| port.security_groups.contains(&group.id));
        GroupState {
            id: group.id.clone(),
            name: group.name.clone(),
            description: group.description.clone(),
            tags: group.tags.clone(),
            rules,
            ports: with.map(|port| port.id.clone()).collect(),
        }
    });
    each.collect()
}
