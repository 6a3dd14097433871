//! Creation, change and deletion of ports and their tags.

use std::net::IpAddr;

use http::StatusCode;
use serde_json::{Map, Value};

use super::body::{self, Attribute, AttributeKind, free, needed, once, shown};
use super::{NeutronEdit, NeutronFault, listing};
use crate::http::Reply;
use crate::openstack::region::{FixedIp, Network, NewPort, Port, SecurityGroup};

const ATTRIBUTES: &[Attribute] = &[
    needed("network_id", AttributeKind::Uuid),
    free("name", AttributeKind::Text),
    free("description", AttributeKind::Text),
    free("admin_state_up", AttributeKind::Bool),
    free("device_id", AttributeKind::Text),
    free("device_owner", AttributeKind::Text),
    free("fixed_ips", AttributeKind::Other),
    free("security_groups", AttributeKind::List),
    free("allowed_address_pairs", AttributeKind::Other),
    free("port_security_enabled", AttributeKind::Bool),
    once("tags", AttributeKind::Other),
    shown("id"),
    shown("status"),
    shown("mac_address"),
    shown("trunk_details"),
    shown("created_at"),
    shown("updated_at"),
    shown("revision_number"),
];

/// `POST /v2.0/ports`.
pub(super) fn create(edit: &mut NeutronEdit<'_>) -> Result<String, NeutronFault> {
    let fields = body::resource(edit.request, "port", ATTRIBUTES, true)?;
    let network_id = body::text(&fields, "network_id").unwrap_or_default();
    let network = edit
        .region
        .network
        .networks
        .get(network_id)
        .cloned()
        .ok_or_else(|| listing::not_found::<Network>(network_id))?;
    let project = edit.caller.project_id.clone();
    let ports = edit.region.network.ports.values();
    let have = ports.filter(|port| port.project_id == project).count();
    edit.check_quota("port", have)?;
    let security_groups = match groups(edit, &fields)? {
        Some(groups) => groups,
        None => {
            let now = edit.cloud.clock.now();
            vec![edit.region.network.default_group(&project, now, &edit.cloud.ids)]
        }
    };
    let id = edit.cloud.ids.uuid();
    let fixed_ips = claim(edit, &network, &fields, &id)?;
    let text = |name: &str| body::text(&fields, name).unwrap_or_default().to_owned();
    let port = NewPort {
        id: id.clone(),
        name: text("name"),
        network_id: network_id.to_owned(),
        device_id: text("device_id"),
        device_owner: text("device_owner"),
        description: text("description"),
        fixed_ips,
        status: "DOWN".to_owned(),
        admin_state_up: fields.get("admin_state_up") != Some(&Value::Bool(false)),
        security_groups,
        tags: Vec::new(),
        revision: 1,
    };
    let birth = edit.cloud.birth(edit.caller);
    edit.region.network.insert_port(port, &birth, &edit.cloud.ids);
    Ok(id)
}

/// The requested addresses, or one address of each family's subnet.
fn claim(
    edit: &mut NeutronEdit<'_>,
    network: &Network,
    fields: &Map<String, Value>,
    id: &str,
) -> Result<Vec<FixedIp>, NeutronFault> {
    let requested: Vec<(String, Option<IpAddr>)> = match fields.get("fixed_ips").and_then(Value::as_array) {
        Some(list) => {
            let mut requested = Vec::new();
            for entry in list {
                let text = |name: &str| entry.get(name).and_then(Value::as_str);
                let address = text("ip_address").and_then(|text| text.parse().ok());
                let subnets = &edit.region.network.subnets;
                let subnet = network.subnets.iter().find(|id| match text("subnet_id") {
                    Some(subnet) => *id == subnet,
                    None => subnets
                        .get(*id)
                        .is_some_and(|subnet| address.is_none_or(|address| subnet.cidr.contains(&address))),
                });
                let subnet = subnet.ok_or_else(|| {
                    let message = format!(
                        "Invalid input for operation: Failed to create port on network {}, because fixed_ips \
                         included invalid subnet {}.",
                        network.id,
                        text("subnet_id").unwrap_or("None")
                    );
                    NeutronFault::new(StatusCode::BAD_REQUEST, "InvalidInput", message)
                })?;
                requested.push((subnet.clone(), address));
            }
            requested
        }
        None => network.subnets.iter().map(|id| (id.clone(), None)).collect(),
    };
    let mut claimed: Vec<FixedIp> = Vec::new();
    for (subnet, address) in requested {
        match edit.region.network.claim_in(&subnet, address, id) {
            Ok(fixed) => claimed.push(fixed),
            Err(_) => {
                for fixed in &claimed {
                    edit.region.network.unclaim(fixed);
                }
                let (class, message) = match address {
                    Some(address) => (
                        "IpAddressAlreadyAllocated",
                        format!("IP address {address} already allocated in subnet {subnet}"),
                    ),
                    None => (
                        "IpAddressGenerationFailure",
                        format!("No more IP addresses available on network {}.", network.id),
                    ),
                };
                return Err(NeutronFault::new(StatusCode::CONFLICT, class, message));
            }
        }
    }
    Ok(claimed)
}

/// The requested security groups; all of them have to exist.
fn groups(edit: &NeutronEdit<'_>, fields: &Map<String, Value>) -> Result<Option<Vec<String>>, NeutronFault> {
    let Some(list) = fields.get("security_groups") else {
        return Ok(None);
    };
    let mut groups: Vec<String> = Vec::new();
    for entry in list.as_array().into_iter().flatten() {
        let id = entry.as_str().unwrap_or_default();
        let api = edit.api();
        let group = edit.region.network.groups.get(id);
        if group.is_none_or(|group| !listing::is_visible(&api, group.as_ref())) {
            return Err(listing::not_found::<SecurityGroup>(id));
        }
        if !groups.iter().any(|known| known == id) {
            groups.push(id.to_owned());
        }
    }
    Ok(Some(groups))
}

/// `PUT /v2.0/ports/{id}`.
pub(super) fn update(edit: &mut NeutronEdit<'_>, id: &str) -> Result<(), NeutronFault> {
    let fields = body::resource(edit.request, "port", ATTRIBUTES, false)?;
    let known = edit.find::<Port>(id)?;
    edit.check_revision(known.revision)?;
    // The existing groups of the port may belong to another project, like those of load balancers.
    let mut requested = fields.clone();
    if let Some(list) = requested.get_mut("security_groups").and_then(Value::as_array_mut) {
        list.retain(|group| !known.security_groups.iter().any(|have| Some(have.as_str()) == group.as_str()));
        groups(edit, &requested)?;
    }
    let groups: Option<Vec<String>> = fields.get("security_groups").map(|list| {
        let mut groups: Vec<String> = Vec::new();
        let ids = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        for id in ids {
            if !groups.iter().any(|known| known == id) {
                groups.push(id.to_owned());
            }
        }
        groups
    });
    let port_security = fields.get("port_security_enabled").and_then(Value::as_bool);
    let security = port_security.unwrap_or(known.port_security);
    let pairs = match fields.get("allowed_address_pairs") {
        None => None,
        Some(given) => Some(pairs(given, &known.mac)?),
    };
    if !security && !pairs.as_ref().unwrap_or(&known.address_pairs).is_empty() {
        return Err(NeutronFault::new(
            StatusCode::CONFLICT,
            "AddressPairAndPortSecurityRequired",
            "Port Security must be enabled in order to have allowed address pairs on a port.",
        ));
    }
    if !security && !groups.as_ref().unwrap_or(&known.security_groups).is_empty() {
        return Err(NeutronFault::new(
            StatusCode::CONFLICT,
            "PortSecurityPortHasSecurityGroup",
            "Port has security group associated. Cannot disable port security or IP address until security group is \
             removed.",
        ));
    }
    let now = crate::clock::seconds(edit.cloud.clock.now());
    let text = |name: &str| body::text(&fields, name).map(str::to_owned);
    let (name, description) = (text("name"), text("description"));
    let up = fields.get("admin_state_up").and_then(Value::as_bool);
    edit.region.network.change_port(id, |port| {
        port.name = name.unwrap_or_else(|| port.name.clone());
        port.description = description.unwrap_or_else(|| port.description.clone());
        port.admin_state_up = up.unwrap_or(port.admin_state_up);
        port.port_security = security;
        if let Some(mut groups) = groups {
            // The database returns them in the order of their IDs.
            groups.sort();
            port.security_groups = groups;
        }
        if let Some(pairs) = pairs {
            port.address_pairs = pairs;
        }
        port.updated = now;
    });
    Ok(())
}

fn pairs(given: &Value, mac: &str) -> Result<Vec<(String, String)>, NeutronFault> {
    let list = given
        .as_array()
        .ok_or_else(|| body::invalid("allowed_address_pairs", "Allowed address pairs must be a list."))?;
    let mut pairs: Vec<(String, String)> = Vec::new();
    for entry in list {
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let Some(address) = text("ip_address") else {
            return Err(NeutronFault::new(
                StatusCode::BAD_REQUEST,
                "AllowedAddressPairsMissingIP",
                "AllowedAddressPair must contain ip_address",
            ));
        };
        if address.parse::<IpAddr>().is_err() && address.parse::<ipnet::IpNet>().is_err() {
            return Err(NeutronFault::http_bad_request(format!("'{address}' is not a valid IP address")));
        }
        let pair = (address.to_owned(), text("mac_address").unwrap_or(mac).to_owned());
        if pairs.contains(&pair) {
            let message = format!(
                "Request contains duplicate address pair: mac_address {} ip_address {address}.",
                text("mac_address").unwrap_or("None")
            );
            return Err(NeutronFault::new(StatusCode::BAD_REQUEST, "DuplicateAddressPairInRequest", message));
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// `DELETE /v2.0/ports/{id}`.
pub(super) fn delete(edit: &mut NeutronEdit<'_>, id: &str) -> Result<(), NeutronFault> {
    let port = edit.find::<Port>(id)?;
    if port.device_owner.starts_with("network:") {
        return Err(NeutronFault::new(
            StatusCode::CONFLICT,
            "ServicePortInUse",
            format!(
                "Port {id} cannot be deleted directly via the port API: has device owner {}.",
                port.device_owner
            ),
        ));
    }
    edit.region.delete_port(id).map_err(|_| listing::not_found::<Port>(id))
}

/// `PUT` and `DELETE /v2.0/ports/{id}/tags/{tag}`.
pub(super) fn tag(
    edit: &mut NeutronEdit<'_>,
    adds: bool,
    id: &str,
    tag: &str,
) -> Result<Reply, NeutronFault> {
    let mut tags = edit.find::<Port>(id)?.tags.clone();
    let had = tags.len();
    tags.retain(|known| known != tag);
    if !adds && tags.len() == had {
        let message = format!("Tag {tag} could not be found.");
        return Err(NeutronFault::new(StatusCode::NOT_FOUND, "TagNotFound", message));
    }
    let reply = if adds {
        tags.push(tag.to_owned());
        tags.sort();
        Reply::json(StatusCode::CREATED, &Value::Null)
    } else {
        Reply::empty(StatusCode::NO_CONTENT)
    };
    if tags.len() != had {
        edit.region.network.change_port(id, |port| port.tags = tags);
    }
    Ok(reply)
}
