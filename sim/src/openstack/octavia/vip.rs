//! The virtual address of a load balancer: its subnet and its port.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::OctaviaFault;
use super::edit::{OctaviaEdit, Owner, list, text};
use crate::openstack::region::{FixedIp, NewPort, Port, Subnet};

/// The owner of Octavia's own objects; a project that no client knows.
const SERVICE_PROJECT: &str = "0c7a51a0c7a51a0c7a51a0c7a51a0c7a";

/// The requested location of the virtual address.
pub(super) struct Vip {
    pub(super) network_id: String,
    pub(super) subnet_id: String,
    pub(super) address: Option<IpAddr>,
    /// The port of the client, or none.
    pub(super) port_id: Option<String>,
    /// The subnets of further addresses of the same port, with the requested addresses.
    pub(super) additional: Vec<(String, Option<IpAddr>)>,
}

/// The port with the virtual address, and the security group that Octavia created for it.
pub(super) struct Plugged {
    pub(super) port_id: String,
    pub(super) group: String,
    pub(super) address: Option<IpAddr>,
    pub(super) additional: Vec<FixedIp>,
}

/// Returns a port with the virtual address: the client's, or a new one.
pub(super) fn plug(edit: &mut OctaviaEdit<'_>, owner: &Owner, vip: &Vip) -> Result<Plugged, OctaviaFault> {
    let id = &owner.id;
    let own = vip.port_id.clone();
    let port_id = own.unwrap_or_else(|| edit.cloud.ids.uuid());
    let claimed = if vip.port_id.is_some() {
        None
    } else {
        let network = &mut edit.region.network;
        let claimed = network.claim_in(&vip.subnet_id, vip.address, &port_id);
        Some(claimed.map_err(|_| cannot_plug(edit, &vip.subnet_id, vip.address, vip))?)
    };
    let mut additional: Vec<FixedIp> = Vec::new();
    for (subnet, address) in &vip.additional {
        match edit.region.network.claim_in(subnet, *address, &port_id) {
            Ok(fixed) => additional.push(fixed),
            Err(_) => {
                // Neutron creates the port with all of its addresses, or not at all.
                for fixed in claimed.iter().chain(&additional) {
                    edit.region.network.unclaim(fixed);
                }
                return Err(cannot_plug(edit, subnet, *address, vip));
            }
        }
    }
    let address = claimed.as_ref().map(|fixed| fixed.address).or(vip.address);
    let now = edit.cloud.clock.now();
    let network = &mut edit.region.network;
    let group = network.create_group(SERVICE_PROJECT, &format!("lb-{id}"), "", now, &edit.cloud.ids);
    if let Some(fixed) = claimed {
        let port = NewPort {
            id: port_id.clone(),
            name: format!("octavia-lb-{id}"),
            network_id: vip.network_id.clone(),
            device_id: format!("lb-{id}"),
            device_owner: "Octavia".to_owned(),
            description: String::new(),
            fixed_ips: std::iter::once(fixed).chain(additional.iter().cloned()).collect(),
            status: "DOWN".to_owned(),
            admin_state_up: false,
            security_groups: vec![group.clone()],
            tags: Vec::new(),
            revision: 2,
        };
        let mut birth = edit.cloud.birth(edit.caller);
        birth.project_id.clone_from(&owner.project_id);
        network.insert_port(port, &birth, &edit.cloud.ids);
    } else {
        network.change_port(&port_id, |port| port.security_groups = vec![group.clone()]);
    }
    Ok(Plugged {
        port_id,
        group,
        address,
        additional,
    })
}

/// Deletes the port and the security group of a load balancer whose creation failed.
pub(super) fn unplug(edit: &mut OctaviaEdit<'_>, vip: &Vip, plugged: &Plugged) {
    let network = &mut edit.region.network;
    if vip.port_id.is_none() {
        // It was created a moment ago.
        let _present = network.remove_port(&plugged.port_id);
    } else {
        network.change_port(&plugged.port_id, |port| port.security_groups.clear());
    }
    network.remove_group(&plugged.group);
}

/// The fault if no address can be allocated.
fn cannot_plug(edit: &OctaviaEdit<'_>, subnet: &str, address: Option<IpAddr>, vip: &Vip) -> OctaviaFault {
    let Some(address) = address else {
        let network = &vip.network_id;
        let message = format!("No more IP addresses available on network {network}.");
        return OctaviaFault::server(format!("Provider 'amphora' reports error: {message}"));
    };
    if edit.region.network.is_taken(subnet, address) {
        return OctaviaFault::conflict(format!(
            "The VIP IP address is already in use: IP address {address} already allocated in subnet {subnet}"
        ));
    }
    OctaviaFault::server(format!(
        "Provider 'amphora' reports error: IP address {address} is not a valid IP for the specified subnet."
    ))
}

fn subnet(edit: &OctaviaEdit<'_>, id: &str) -> Result<Arc<Subnet>, OctaviaFault> {
    let subnet = edit.region.network.subnets.get(id).cloned();
    subnet
        .filter(|subnet| sees_network(edit, &subnet.network_id))
        .ok_or_else(|| OctaviaFault::client(format!("Subnet {id} not found.")))
}

fn sees_network(edit: &OctaviaEdit<'_>, id: &str) -> bool {
    let network = edit.region.network.networks.get(id);
    network.is_some_and(|network| {
        edit.caller.admin
            || network.project_id == edit.caller.project_id
            || network.shared
            || network.external
    })
}

/// The requested location of the virtual addresses.
pub(super) fn requested(edit: &OctaviaEdit<'_>, fields: &Map<String, Value>) -> Result<Vip, OctaviaFault> {
    let mut vip = first(edit, fields)?;
    let mut subnets = vec![vip.subnet_id.clone()];
    for additional in list(fields, "additional_vips").iter().filter_map(Value::as_object) {
        let id = text(additional, "subnet_id").unwrap_or_default();
        if subnets.iter().any(|known| known == id) {
            return Err(OctaviaFault::validation(
                "Duplicate VIP subnet(s) specified. Only one IP can be bound per subnet.",
            ));
        }
        if subnet(edit, id)?.network_id != vip.network_id {
            return Err(OctaviaFault::validation("All VIP subnets must belong to the same network."));
        }
        if vip.port_id.is_some() {
            return Err(OctaviaFault::validation(
                "This simulator has no additional VIPs on a client's port.",
            ));
        }
        subnets.push(id.to_owned());
        let address = text(additional, "ip_address").and_then(|text| text.parse().ok());
        vip.additional.push((id.to_owned(), address));
    }
    Ok(vip)
}

/// The requested location of the first virtual address: a port, a network, or a subnet.
fn first(edit: &OctaviaEdit<'_>, fields: &Map<String, Value>) -> Result<Vip, OctaviaFault> {
    let (port, network, requested) =
        (text(fields, "vip_port_id"), text(fields, "vip_network_id"), text(fields, "vip_subnet_id"));
    let address: Option<IpAddr> = text(fields, "vip_address").and_then(|text| text.parse().ok());
    if let Some(id) = port {
        return match edit.region.network.ports.get(id) {
            Some(port) if edit.caller.admin || port.project_id == edit.caller.project_id => {
                vip_of_port(edit, port, requested, address)
            }
            _ => Err(OctaviaFault::client(format!("Port {id} not found."))),
        };
    }
    if let Some(network) = network {
        return vip_of_network(edit, network, requested, address);
    }
    let Some(requested) = requested else {
        return Err(OctaviaFault::validation(
            "VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id.",
        ));
    };
    Ok(Vip {
        network_id: subnet(edit, requested)?.network_id.clone(),
        subnet_id: requested.to_owned(),
        address,
        port_id: None,
        additional: Vec::new(),
    })
}

fn vip_of_port(
    edit: &OctaviaEdit<'_>,
    port: &Port,
    requested: Option<&str>,
    address: Option<IpAddr>,
) -> Result<Vip, OctaviaFault> {
    if !port.device_id.is_empty() {
        return Err(OctaviaFault::validation(format!(
            "Port {} is already used by device {} ",
            port.id, port.device_id
        )));
    }
    let fixed = match (requested, address) {
        (Some(requested), _) => {
            subnet(edit, requested)?;
            let found = port.fixed_ips.iter().find(|fixed| fixed.subnet_id == requested);
            found.ok_or("No VIP address found on the specified VIP port within the specified subnet.")
        }
        (None, Some(address)) => {
            let found = port.fixed_ips.iter().find(|fixed| fixed.address == address);
            found.ok_or("Specified VIP address not found on the specified VIP port.")
        }
        (None, None) => match port.fixed_ips.as_slice() {
            [only] => Ok(only),
            _ => Err(
                "VIP port's subnet could not be determined. Please specify either a VIP subnet or address.",
            ),
        },
    };
    let fixed = fixed.map_err(OctaviaFault::validation)?;
    Ok(Vip {
        network_id: port.network_id.clone(),
        subnet_id: fixed.subnet_id.clone(),
        address: Some(fixed.address),
        port_id: Some(port.id.clone()),
        additional: Vec::new(),
    })
}

fn vip_of_network(
    edit: &OctaviaEdit<'_>,
    id: &str,
    requested: Option<&str>,
    address: Option<IpAddr>,
) -> Result<Vip, OctaviaFault> {
    let network = match edit.region.network.networks.get(id) {
        Some(network) if sees_network(edit, id) => network,
        _ => return Err(OctaviaFault::client(format!("Network {id} not found."))),
    };
    let cidr = |subnet: &str| edit.region.network.subnets.get(subnet).map(|subnet| subnet.cidr);
    let subnet_id = match (requested, address) {
        (Some(requested), _) => network
            .subnets
            .iter()
            .find(|known| *known == requested)
            .ok_or_else(|| OctaviaFault::client(format!("Subnet {requested} not found.")))?,
        (None, Some(address)) => network
            .subnets
            .iter()
            .find(|subnet| cidr(subnet).is_some_and(|cidr| cidr.contains(&address)))
            .ok_or_else(|| {
                OctaviaFault::validation(
                    "Supplied network does not contain a subnet for VIP address specified.",
                )
            })?,
        (None, None) => network
            .subnets
            .iter()
            .find(|subnet| cidr(subnet).is_some_and(|cidr| cidr.addr().is_ipv4()))
            .or_else(|| network.subnets.first())
            .ok_or_else(|| OctaviaFault::validation("Supplied network does not contain a subnet."))?,
    };
    Ok(Vip {
        network_id: id.to_owned(),
        subnet_id: subnet_id.clone(),
        address,
        port_id: None,
        additional: Vec::new(),
    })
}
