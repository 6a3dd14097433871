//! The addresses of a node. Their types and order are part of the contract with users.
//!
//! The rules are exactly those of upstream: a node's addresses must not change after a migration.

use std::{collections::BTreeMap, net::IpAddr};

use ccm_core::{AddressType, NodeAddress};
use ipnet::IpNet;

use super::records::{NovaAddress, Port, Server};

/// `[Networking]`, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networking {
    /// `ipv6-support-disabled`.
    pub(crate) ipv6_disabled: bool,
    /// `public-network-name`.
    pub(crate) public: Vec<String>,
    /// `internal-network-name`.
    pub(crate) internal: Vec<String>,
    /// Whether `internal-network-name` has only empty names. Upstream then leaves out the addresses of all networks,
    /// so that the addresses of existing nodes must not change.
    pub(crate) has_only_empty_internal_names: bool,
    /// `address-sort-order`.
    pub(crate) sort_order: Vec<IpNet>,
}

/// A subport of a trunk: the network's name and the port's fixed addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subport<'a> {
    /// The name of the network.
    pub(crate) network: &'a str,
    /// The addresses in the order of the API.
    pub(crate) addresses: Vec<&'a str>,
}

/// The addresses of a server, from its record, its ports and the subports of its trunks, in order.
pub(crate) fn node_addresses(
    server: &Server,
    ports: &[&Port],
    subports: &[Subport<'_>],
    networking: &Networking,
) -> Vec<NodeAddress> {
    let mut list = List {
        addresses: Vec::new(),
        ipv6_disabled: networking.ipv6_disabled,
    };

    for port in ports.iter().filter(|port| port.status == "ACTIVE") {
        for ip in &port.fixed_ips {
            list.add_ip(AddressType::InternalIP, &ip.ip_address);
        }
    }
    // Nova returns "" for an unset value.
    if !server.access_ipv4.is_empty() {
        list.add(AddressType::ExternalIP, &server.access_ipv4);
    }
    if !server.access_ipv6.is_empty() && !networking.ipv6_disabled {
        list.add(AddressType::ExternalIP, &server.access_ipv6);
    }
    if let Some(hostname) = server.metadata.hostname.as_deref().filter(|hostname| !hostname.is_empty()) {
        list.add(AddressType::Hostname, hostname);
    }

    // Networks are ordered bytewise by name. In a network, Nova's own entries come before those of subports.
    let mut networks: BTreeMap<&str, Vec<(&str, bool)>> = BTreeMap::new();
    for (network, entries) in &server.addresses {
        let known = networks.entry(network).or_default();
        known.extend(entries.iter().map(|NovaAddress { addr, floating }| (addr.as_str(), *floating)));
    }
    for subport in subports {
        let known = networks.entry(subport.network).or_default();
        known.extend(subport.addresses.iter().map(|address| (*address, false)));
    }
    let names = |list: &[String], name: &str| list.iter().any(|item| item == name);
    for (network, entries) in networks {
        for (address, floating) in entries {
            let kind = if floating {
                AddressType::ExternalIP
            } else if names(&networking.public, network) {
                list.remove(address);
                AddressType::ExternalIP
            } else if networking.internal.is_empty() || names(&networking.internal, network) {
                AddressType::InternalIP
            } else {
                list.remove(address);
                continue;
            };
            list.add_ip(kind, address);
        }
    }

    let mut addresses = list.addresses;
    sort(&mut addresses, &networking.sort_order);
    addresses
}

/// The setting that leaves out every address of a server, with its values. `None` if addresses remain or the server has none.
pub(crate) fn address_filter(
    networking: &Networking,
    addresses: impl Fn(&Networking) -> Vec<NodeAddress>,
) -> Option<String> {
    let every_network = Networking {
        internal: Vec::new(),
        ..networking.clone()
    };
    let both_families = Networking {
        ipv6_disabled: false,
        ..networking.clone()
    };
    let everything = Networking {
        ipv6_disabled: false,
        ..every_network.clone()
    };
    if !addresses(networking).is_empty() || addresses(&everything).is_empty() {
        return None;
    }
    let names = format!("[Networking] internal-network-name {}", networking.internal.join(", "));
    let ipv6 = "[Networking] ipv6-support-disabled";
    Some(if !addresses(&every_network).is_empty() {
        names
    } else if !addresses(&both_families).is_empty() {
        ipv6.to_owned()
    } else {
        format!("{names} with {ipv6}")
    })
}

struct List {
    addresses: Vec<NodeAddress>,
    ipv6_disabled: bool,
}

impl List {
    fn add(&mut self, kind: AddressType, address: &str) {
        let new = NodeAddress::new(kind, address);
        if !self.addresses.contains(&new) {
            self.addresses.push(new);
        }
    }

    fn add_ip(&mut self, kind: AddressType, address: &str) {
        if !(self.ipv6_disabled && address.contains(':')) {
            self.add(kind, address);
        }
    }

    fn remove(&mut self, address: &str) {
        self.addresses.retain(|known| known.address != address);
    }
}

/// Sorts by the first network of `order` that contains the address, then by value. Other addresses and host names come
/// last and keep their order.
fn sort(addresses: &mut [NodeAddress], order: &[IpNet]) {
    if order.is_empty() {
        return;
    }
    addresses.sort_by_cached_key(|address| {
        let ip: Option<IpAddr> = address.address.parse().ok();
        let rank = ip.and_then(|ip| order.iter().position(|net| net.contains(&ip)));
        match (rank, ip) {
            (Some(rank), Some(IpAddr::V4(ip))) => (rank, u128::from(ip.to_ipv6_mapped())),
            (Some(rank), Some(IpAddr::V6(ip))) => (rank, u128::from(ip)),
            // The sort is stable.
            _ => (order.len(), 0),
        }
    });
}

/// Parses `address-sort-order`: networks separated by commas or white space. Invalid entries are returned separately.
pub(crate) fn parse_sort_order(text: &str) -> (Vec<IpNet>, Vec<&str>) {
    let mut networks = Vec::new();
    let mut invalid = Vec::new();
    for item in text.split(|c: char| c == ',' || c.is_whitespace()).filter(|item| !item.is_empty()) {
        match item.parse::<IpNet>() {
            Ok(network) => networks.push(network.trunc()),
            Err(_) => invalid.push(item),
        }
    }
    (networks, invalid)
}

#[cfg(test)]
mod tests;
