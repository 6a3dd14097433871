//! Floating IPs: creation, attachment, detachment and deletion.

use std::net::IpAddr;

use http::StatusCode;
use serde_json::{Map, Value};

use super::body::{self, Attribute, AttributeKind, free, needed, once, shown};
use super::{NeutronEdit, NeutronFault, listing};
use crate::openstack::region::{FloatingIp, Network, Port};

const ATTRIBUTES: &[Attribute] = &[
    needed("floating_network_id", AttributeKind::Uuid),
    once("floating_ip_address", AttributeKind::AddressOrNull),
    once("subnet_id", AttributeKind::UuidOrNull),
    free("port_id", AttributeKind::UuidOrNull),
    free("fixed_ip_address", AttributeKind::AddressOrNull),
    free("description", AttributeKind::Text),
    shown("id"),
    shown("router_id"),
    shown("status"),
    shown("port_details"),
    shown("tags"),
    shown("created_at"),
    shown("updated_at"),
    shown("revision_number"),
];

/// `POST /v2.0/floatingips`.
pub(super) fn create(edit: &mut NeutronEdit<'_>) -> Result<String, NeutronFault> {
    let fields = body::resource(edit.request, "floatingip", ATTRIBUTES, true)?;
    let requested = body::text(&fields, "floating_ip_address").and_then(|text| text.parse::<IpAddr>().ok());
    if requested.is_some() && !edit.caller.admin {
        return Err(NeutronFault::new(
            StatusCode::FORBIDDEN,
            "PolicyNotAuthorized",
            "(rule:create_floatingip and rule:create_floatingip:floating_ip_address) is disallowed by policy",
        ));
    }
    let project = edit.caller.project_id.clone();
    let have = edit
        .region
        .network
        .floating
        .values()
        .filter(|floating| floating.project_id == project)
        .count();
    edit.check_quota("floatingip", have)?;
    let network_id = body::text(&fields, "floating_network_id").unwrap_or_default();
    let network = edit
        .region
        .network
        .networks
        .get(network_id)
        .cloned()
        .ok_or_else(|| listing::not_found::<Network>(network_id))?;
    if !network.external {
        return Err(bad(&format!("Network {network_id} is not a valid external network.")));
    }
    let subnets = match body::text(&fields, "subnet_id") {
        Some(subnet) if !network.subnets.iter().any(|known| known == subnet) => {
            return Err(NeutronFault::new(
                StatusCode::BAD_REQUEST,
                "InvalidInput",
                format!(
                    "Invalid input for operation: Failed to create port on network {network_id}, because fixed_ips \
                     included invalid subnet {subnet}."
                ),
            ));
        }
        Some(subnet) => vec![subnet.to_owned()],
        None => network.subnets.clone(),
    };
    let port = match body::text(&fields, "port_id") {
        Some(port) => Some(port_to_attach(edit, port)?),
        None => None,
    };
    let id = edit.cloud.ids.uuid();
    let fixed = claim(edit, network_id, &subnets, requested, &id)?;
    if let Some(port) = &port {
        let address = fixed.address.to_string();
        if let Err(fault) = may_attach(edit, &id, &address, network_id, port, &fields) {
            edit.region.network.unclaim(&fixed);
            return Err(fault);
        }
    }
    let description = body::text(&fields, "description").unwrap_or_default();
    let birth = edit.cloud.birth(edit.caller);
    edit.region.network.insert_floating(&id, network_id, fixed, description, &birth);
    if let Some(port) = port {
        lead(edit, &id, network_id, &port, &fields)?;
        // It counts as one change.
        if let Some(floating) = edit.region.network.floating.get_mut(&id) {
            std::sync::Arc::make_mut(floating).revision = 0;
        }
    }
    Ok(id)
}

fn claim(
    edit: &mut NeutronEdit<'_>,
    network_id: &str,
    subnets: &[String],
    requested: Option<IpAddr>,
    id: &str,
) -> Result<crate::openstack::region::FixedIp, NeutronFault> {
    let network = &mut edit.region.network;
    if let Some(requested) = requested {
        let subnet = subnets
            .iter()
            .find(|id| network.subnets.get(*id).is_some_and(|subnet| subnet.cidr.contains(&requested)));
        let Some(subnet) = subnet else {
            return Err(NeutronFault::new(
                StatusCode::BAD_REQUEST,
                "InvalidIpForNetwork",
                format!(
                    "IP address {requested} is not a valid IP for any of the subnets on the specified network."
                ),
            ));
        };
        return network.claim_in(subnet, Some(requested), id).map_err(|_| {
            let message = format!("IP address {requested} already allocated in subnet {subnet}");
            NeutronFault::new(StatusCode::CONFLICT, "IpAddressAlreadyAllocated", message)
        });
    }
    subnets.iter().find_map(|subnet| network.claim_in(subnet, None, id).ok()).ok_or_else(|| {
        let message = format!("No more IP addresses available on network {network_id}.");
        NeutronFault::new(StatusCode::CONFLICT, "IpAddressGenerationFailure", message)
    })
}

fn bad(message: &str) -> NeutronFault {
    let message = format!("Bad floatingip request: {message}");
    NeutronFault::new(StatusCode::BAD_REQUEST, "BadRequest", message)
}

fn port_to_attach(edit: &NeutronEdit<'_>, id: &str) -> Result<std::sync::Arc<Port>, NeutronFault> {
    let api = edit.api();
    let port = edit.region.network.ports.get(id);
    port.filter(|port| listing::is_visible(&api, port.as_ref()))
        .cloned()
        .ok_or_else(|| listing::not_found::<Port>(id))
}

/// The requested fixed address.
fn fixed_of(port: &Port, fields: &Map<String, Value>) -> Result<IpAddr, NeutronFault> {
    let requested = body::text(fields, "fixed_ip_address").and_then(|text| text.parse().ok());
    match requested {
        Some(requested) if port.fixed_ips.iter().any(|ip| ip.address == requested) => Ok(requested),
        Some(requested) => Err(bad(&format!("Port {} does not have fixed ip {requested}.", port.id))),
        None => {
            let mut inner = port.fixed_ips.iter().map(|ip| ip.address).filter(IpAddr::is_ipv4);
            let first = inner.next();
            if inner.next().is_some() {
                return Err(bad(&format!(
                    "Port {} has multiple fixed IPv4 addresses.  Must provide a specific IPv4 address when assigning \
                     a floating IP",
                    port.id
                )));
            }
            first.ok_or_else(|| {
                bad(&format!("Cannot add floating IP to port {} that has no fixed IPv4 addresses", port.id))
            })
        }
    }
}

fn may_attach(
    edit: &NeutronEdit<'_>,
    id: &str,
    address: &str,
    network_id: &str,
    port: &Port,
    fields: &Map<String, Value>,
) -> Result<String, NeutronFault> {
    let fixed = fixed_of(port, fields)?;
    let network = &edit.region.network;
    let router = network.router_between(port, network_id).map_err(|subnet| {
        NeutronFault::new(
            StatusCode::NOT_FOUND,
            "ExternalGatewayForFloatingIPNotFound",
            format!(
                "External network {network_id} is not reachable from subnet {subnet}.  Therefore, cannot associate \
                 Port {} with a Floating IP.",
                port.id
            ),
        )
    })?;
    let taken = network
        .floating_of(&port.id)
        .any(|other| other.id != id && other.fixed == Some(fixed) && other.network_id == network_id);
    if taken {
        return Err(NeutronFault::new(
            StatusCode::CONFLICT,
            "FloatingIPPortAlreadyAssociated",
            format!(
                "Cannot associate floating IP {address} ({id}) with port {} using fixed IP {fixed}, as that fixed IP \
                 already has a floating IP on external network {network_id}.",
                port.id
            ),
        ));
    }
    Ok(router)
}

fn lead(
    edit: &mut NeutronEdit<'_>,
    id: &str,
    network_id: &str,
    port: &Port,
    fields: &Map<String, Value>,
) -> Result<(), NeutronFault> {
    let address = match edit.region.network.floating.get(id) {
        Some(floating) => floating.address.to_string(),
        None => String::new(),
    };
    let router = may_attach(edit, id, &address, network_id, port, fields)?;
    let fixed = fixed_of(port, fields)?;
    let now = edit.cloud.clock.now();
    edit.region.network.attach_floating(id, &port.id, Some(fixed), Some(router), now);
    Ok(())
}

/// `PUT /v2.0/floatingips/{id}`.
pub(super) fn update(edit: &mut NeutronEdit<'_>, id: &str) -> Result<(), NeutronFault> {
    let fields = body::resource(edit.request, "floatingip", ATTRIBUTES, false)?;
    let known = edit.find::<FloatingIp>(id)?;
    edit.check_revision(known.revision)?;
    match fields.get("port_id") {
        Some(Value::String(port)) => {
            let port = port_to_attach(edit, port)?;
            lead(edit, id, &known.network_id, &port, &fields)?;
        }
        Some(_) => edit.region.network.detach_floating(id),
        None => {}
    }
    let now = crate::clock::seconds(edit.cloud.clock.now());
    let description = body::text(&fields, "description").map(str::to_owned);
    if let Some(floating) = edit.region.network.floating.get_mut(id) {
        let floating = std::sync::Arc::make_mut(floating);
        if let Some(description) = description {
            floating.description = description;
            if !fields.contains_key("port_id") {
                floating.revision += 1;
            }
        }
        floating.updated = now;
    }
    Ok(())
}

/// `DELETE /v2.0/floatingips/{id}`.
pub(super) fn delete(edit: &mut NeutronEdit<'_>, id: &str) -> Result<(), NeutronFault> {
    edit.find::<FloatingIp>(id)?;
    edit.region.network.delete_floating(id);
    Ok(())
}
