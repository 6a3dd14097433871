//! Load balancers, made alone or with everything below them, changed and deleted.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::edit::{Edit, Owner, complete, complete_change, list, take, text};
use super::types::{self, Use};
use super::{Fault, listeners, listing, pools, title};
use crate::openstack::region::{FixedIp, Kind, NewPort, Object, Port, Provisioning, Subnet};

/// Who owns what Octavia makes for itself; no project that a client knows.
const SERVICE_PROJECT: &str = "0c7a51a0c7a51a0c7a51a0c7a51a0c7a";

/// Where the virtual address is to be.
struct Vip {
    network_id: String,
    subnet_id: String,
    address: Option<IpAddr>,
    /// The port that the client gives, or none.
    port_id: Option<String>,
}

/// `POST /v2.0/lbaas/loadbalancers`.
pub(super) fn create(edit: &mut Edit<'_>) -> Result<String, Fault> {
    let kind = types::load_balancer(Use::Create, edit.minor());
    let fields = edit.fields("load_balancer", "loadbalancer", kind)?;
    let given = text(&fields, "project_id").or_else(|| text(&fields, "tenant_id"));
    let project_id = given
        .filter(|id| !id.is_empty())
        .unwrap_or(&edit.caller.project_id)
        .to_owned();
    if project_id.is_empty() {
        return Err(Fault::validation(
            "Missing project ID in request where one is required. An administrator should check the keystone settings \
             in the Octavia configuration.",
        ));
    }
    edit.api().authorize(&project_id)?;
    let vip = wanted_vip(edit, &fields)?;
    let additional = additional_vips(edit, &fields, &vip)?;
    let provider = provider(edit, &fields)?;
    edit.check_quota(Kind::LoadBalancer, &project_id, 1)?;
    let id = edit.cloud.ids.uuid();
    let mut wishes = vec![(vip.subnet_id.clone(), vip.address)];
    wishes.extend(additional.iter().cloned());
    let (port_id, addresses) = plug(edit, &id, &project_id, &vip, &wishes)?;
    let result = build(
        edit,
        &fields,
        &id,
        &project_id,
        &provider,
        &vip,
        &port_id,
        &addresses,
    );
    let objects = match result {
        Ok(objects) => objects,
        Err(fault) => {
            if vip.port_id.is_none() {
                // It was made a moment ago.
                let _present = edit.region.network.remove_port(&port_id);
            }
            return Err(fault);
        }
    };
    if vip.port_id.is_some() {
        let device = format!("lb-{id}");
        edit.region
            .network
            .change_port(&port_id, |port| port.device_id = device);
    }
    for object in objects {
        edit.region.balancing.insert(object);
    }
    let at = edit.after(edit.ways().create_time);
    edit.region.balancing.take_effect(&id, at);
    Ok(id)
}

/// The load balancer and everything that is to be made with it.
#[allow(clippy::too_many_arguments)]
fn build(
    edit: &Edit<'_>,
    fields: &Map<String, Value>,
    id: &str,
    project_id: &str,
    provider: &str,
    vip: &Vip,
    port_id: &str,
    addresses: &[FixedIp],
) -> Result<Vec<Object>, Fault> {
    let mut attrs = take(
        fields,
        &[
            "name",
            "description",
            "admin_state_up",
            "tags",
            "vip_qos_policy_id",
            "vip_sg_ids",
            "flavor_id",
            "availability_zone",
        ],
    );
    complete(&mut attrs);
    if attrs.get("vip_sg_ids").is_none_or(Value::is_null) {
        attrs.insert("vip_sg_ids", json!([]));
    }
    let mut addresses = addresses.iter();
    let first = addresses.next().map(|fixed| fixed.address);
    let more: Vec<Value> = addresses
        .map(|fixed| json!({"subnet_id": fixed.subnet_id, "ip_address": fixed.address, "port_id": port_id}))
        .collect();
    attrs.insert("vip_address", json!(first));
    attrs.insert("vip_port_id", json!(port_id));
    attrs.insert("vip_subnet_id", json!(vip.subnet_id));
    attrs.insert("vip_network_id", json!(vip.network_id));
    attrs.insert("vip_vnic_type", json!("normal"));
    attrs.insert("additional_vips", json!(more));
    attrs.insert("provider", json!(provider));
    attrs.insert("octavia_owned", json!(vip.port_id.is_none()));
    let owner = Owner {
        id: id.to_owned(),
        project_id: project_id.to_owned(),
        provider: provider.to_owned(),
        vips: Vec::new(),
    };
    let mut balancer = edit.new_object(Kind::LoadBalancer, &owner, "", attrs);
    balancer.id = id.to_owned();
    let owner = Owner::of(&balancer);
    let mut objects = vec![balancer];
    below(edit, fields, &owner, &mut objects)?;
    Ok(objects)
}

/// Pools first, by name, then the listeners that lead to them.
fn below(
    edit: &Edit<'_>,
    fields: &Map<String, Value>,
    owner: &Owner,
    objects: &mut Vec<Object>,
) -> Result<(), Fault> {
    let mut wanted: Vec<&Map<String, Value>> = Vec::new();
    let mut referred: Vec<&str> = Vec::new();
    for pool in list(fields, "pools") {
        wanted.extend(pool.as_object());
    }
    for listener in list(fields, "listeners") {
        let Some(pool) = listener.get("default_pool").and_then(Value::as_object) else {
            continue;
        };
        let Some(name) = text(pool, "name").filter(|name| !name.is_empty()) else {
            return Err(Fault::validation(
                "Pools must be named when creating a fully populated loadbalancer.",
            ));
        };
        // Every pool has these two, said or not.
        let said = pool
            .keys()
            .filter(|key| !matches!(key.as_str(), "admin_state_up" | "tls_enabled"))
            .count();
        if said > 1 {
            wanted.push(pool);
        } else {
            referred.push(name);
        }
    }
    let mut by_name: Vec<&str> = wanted
        .iter()
        .map(|pool| text(pool, "name").unwrap_or_default())
        .collect();
    by_name.sort_unstable();
    if by_name.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
        return Err(Fault::validation(
            "Pool names must be unique when creating a fully populated loadbalancer.",
        ));
    }
    if let Some(missing) = referred.iter().find(|name| !by_name.contains(name)) {
        return Err(Fault::validation(format!(
            "Pool '{missing}' was referenced but no full definition was found."
        )));
    }
    if !wanted.is_empty() {
        edit.check_quota(Kind::Pool, &owner.project_id, wanted.len())?;
    }
    let mut made: Vec<(String, String, String)> = Vec::new();
    for pool in wanted {
        let name = text(pool, "name").unwrap_or_default();
        for needed in ["protocol", "lb_algorithm"] {
            if !pool.contains_key(needed) {
                return Err(Fault::validation(format!(
                    "Pool definition for '{name}' missing required attribute: {needed}"
                )));
            }
        }
        let parts = pools::prepare_whole(edit, owner, pool)?;
        if let Some(pool) = parts.first() {
            made.push((name.to_owned(), pool.id.clone(), pool.text("protocol").to_owned()));
        }
        objects.extend(parts);
    }
    let wanted = list(fields, "listeners");
    if !wanted.is_empty() {
        edit.check_quota(Kind::Listener, &owner.project_id, wanted.len())?;
    }
    let mut siblings: Vec<(String, i64)> = Vec::new();
    for listener in wanted.iter().filter_map(Value::as_object) {
        let mut listener = listener.clone();
        let name = listener
            .get("default_pool")
            .and_then(|pool| pool.get("name"))
            .and_then(Value::as_str);
        let pool = name
            .and_then(|name| made.iter().find(|(known, ..)| known == name))
            .cloned();
        if let Some((_, id, protocol)) = pool {
            let own = text(&listener, "protocol").unwrap_or_default();
            listeners::check_protocols(own, &protocol)?;
            listener.insert("default_pool_id".to_owned(), json!(id));
        }
        let listener = listeners::prepare(edit, owner, &listener, &siblings)?;
        siblings.push(listeners::endpoint(&listener));
        objects.push(listener);
    }
    Ok(())
}

/// A port with the virtual addresses: the client's, or a new one.
fn plug(
    edit: &mut Edit<'_>,
    id: &str,
    project_id: &str,
    vip: &Vip,
    wishes: &[(String, Option<IpAddr>)],
) -> Result<(String, Vec<FixedIp>), Fault> {
    if let Some(port_id) = &vip.port_id {
        let fixed = vip.address.map(|address| FixedIp {
            subnet_id: vip.subnet_id.clone(),
            address,
        });
        return Ok((port_id.clone(), fixed.into_iter().collect()));
    }
    let port_id = edit.cloud.ids.uuid();
    let network = &mut edit.region.network;
    let mut addresses: Vec<FixedIp> = Vec::new();
    for (subnet, address) in wishes {
        match network.claim_in(subnet, *address, &port_id) {
            Ok(fixed) => addresses.push(fixed),
            Err(_) => {
                for fixed in &addresses {
                    network.unclaim(fixed);
                }
                return Err(cannot_plug(edit, vip, subnet, *address));
            }
        }
    }
    let now = edit.cloud.clock.now();
    let group = network.create_group(SERVICE_PROJECT, &format!("lb-{id}"), "", now, &edit.cloud.ids);
    let port = NewPort {
        id: port_id.clone(),
        name: format!("octavia-lb-{id}"),
        network_id: vip.network_id.clone(),
        device_id: format!("lb-{id}"),
        device_owner: "Octavia".to_owned(),
        description: String::new(),
        fixed_ips: addresses.clone(),
        status: "DOWN".to_owned(),
        admin_state_up: false,
        security_groups: vec![group],
        tags: Vec::new(),
        revision: 2,
    };
    let mut birth = edit.cloud.birth(edit.caller);
    project_id.clone_into(&mut birth.project_id);
    network.insert_port(port, &birth, &edit.cloud.ids);
    Ok((port_id, addresses))
}

/// Why there is no address for it.
fn cannot_plug(edit: &Edit<'_>, vip: &Vip, subnet: &str, address: Option<IpAddr>) -> Fault {
    let Some(address) = address else {
        let network = &vip.network_id;
        let message = format!("No more IP addresses available on network {network}.");
        return Fault::server(format!("Provider 'amphora' reports error: {message}"));
    };
    if edit.region.network.is_taken(subnet, address) {
        return Fault::conflict(format!(
            "The VIP IP address is already in use: IP address {address} already allocated in subnet {subnet}"
        ));
    }
    Fault::server(format!(
        "Provider 'amphora' reports error: IP address {address} is not a valid IP for the specified subnet."
    ))
}

fn subnet(edit: &Edit<'_>, id: &str) -> Result<Arc<Subnet>, Fault> {
    let subnet = edit.region.network.subnets.get(id).cloned();
    subnet
        .filter(|subnet| sees_network(edit, &subnet.network_id))
        .ok_or_else(|| Fault::client(format!("Subnet {id} not found.")))
}

fn sees_network(edit: &Edit<'_>, id: &str) -> bool {
    let network = edit.region.network.networks.get(id);
    network.is_some_and(|network| {
        edit.caller.admin
            || network.project_id == edit.caller.project_id
            || network.shared
            || network.external
    })
}

/// Where the virtual address is to be: on a port, in a network, or in a subnet.
fn wanted_vip(edit: &Edit<'_>, fields: &Map<String, Value>) -> Result<Vip, Fault> {
    let (port, network, wanted) = (
        text(fields, "vip_port_id"),
        text(fields, "vip_network_id"),
        text(fields, "vip_subnet_id"),
    );
    let address: Option<IpAddr> = text(fields, "vip_address").and_then(|text| text.parse().ok());
    if let Some(id) = port {
        let sees = |port: &&Arc<Port>| edit.caller.admin || port.project_id == edit.caller.project_id;
        let port = edit.region.network.ports.get(id).filter(sees);
        let port = port.ok_or_else(|| Fault::client(format!("Port {id} not found.")))?;
        return vip_of_port(edit, port, wanted, address);
    }
    if let Some(network) = network {
        return vip_of_network(edit, network, wanted, address);
    }
    let Some(wanted) = wanted else {
        return Err(Fault::validation(
            "VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id.",
        ));
    };
    Ok(Vip {
        network_id: subnet(edit, wanted)?.network_id.clone(),
        subnet_id: wanted.to_owned(),
        address,
        port_id: None,
    })
}

fn vip_of_port(
    edit: &Edit<'_>,
    port: &Port,
    wanted: Option<&str>,
    address: Option<IpAddr>,
) -> Result<Vip, Fault> {
    if !port.device_id.is_empty() {
        return Err(Fault::validation(format!(
            "Port {} is already used by device {} ",
            port.id, port.device_id
        )));
    }
    let fixed = match (wanted, address) {
        (Some(wanted), _) => {
            subnet(edit, wanted)?;
            let found = port.fixed_ips.iter().find(|fixed| fixed.subnet_id == wanted);
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
    let fixed = fixed.map_err(Fault::validation)?;
    Ok(Vip {
        network_id: port.network_id.clone(),
        subnet_id: fixed.subnet_id.clone(),
        address: Some(fixed.address),
        port_id: Some(port.id.clone()),
    })
}

fn vip_of_network(
    edit: &Edit<'_>,
    id: &str,
    wanted: Option<&str>,
    address: Option<IpAddr>,
) -> Result<Vip, Fault> {
    let network = edit
        .region
        .network
        .networks
        .get(id)
        .filter(|_| sees_network(edit, id))
        .ok_or_else(|| Fault::client(format!("Network {id} not found.")))?;
    let cidr = |subnet: &str| edit.region.network.subnets.get(subnet).map(|subnet| subnet.cidr);
    let subnet_id = match (wanted, address) {
        (Some(wanted), _) => network
            .subnets
            .iter()
            .find(|known| *known == wanted)
            .ok_or_else(|| Fault::client(format!("Subnet {wanted} not found.")))?,
        (None, Some(address)) => network
            .subnets
            .iter()
            .find(|subnet| cidr(subnet).is_some_and(|cidr| cidr.contains(&address)))
            .ok_or_else(|| {
                Fault::validation("Supplied network does not contain a subnet for VIP address specified.")
            })?,
        (None, None) => {
            let is_v4 = |subnet: &&String| cidr(subnet).is_some_and(|cidr| cidr.addr().is_ipv4());
            network
                .subnets
                .iter()
                .find(is_v4)
                .or_else(|| network.subnets.first())
                .ok_or_else(|| Fault::validation("Supplied network does not contain a subnet."))?
        }
    };
    Ok(Vip {
        network_id: id.to_owned(),
        subnet_id: subnet_id.clone(),
        address,
        port_id: None,
    })
}

fn additional_vips(
    edit: &Edit<'_>,
    fields: &Map<String, Value>,
    vip: &Vip,
) -> Result<Vec<(String, Option<IpAddr>)>, Fault> {
    let mut wishes: Vec<(String, Option<IpAddr>)> = Vec::new();
    for wanted in list(fields, "additional_vips")
        .iter()
        .filter_map(Value::as_object)
    {
        let id = text(wanted, "subnet_id").unwrap_or_default();
        if id == vip.subnet_id || wishes.iter().any(|(known, _)| known == id) {
            return Err(Fault::validation(
                "Duplicate VIP subnet(s) specified. Only one IP can be bound per subnet.",
            ));
        }
        let found = edit.region.network.subnets.get(id);
        let found = found.ok_or_else(|| Fault::validation(format!("Subnet {id} not found")))?;
        if found.network_id != vip.network_id {
            return Err(Fault::validation(
                "All VIP subnets must belong to the same network.",
            ));
        }
        let address = text(wanted, "ip_address").and_then(|text| text.parse().ok());
        wishes.push((id.to_owned(), address));
    }
    Ok(wishes)
}

/// The provider, after a look at what else depends on it.
fn provider(edit: &Edit<'_>, fields: &Map<String, Value>) -> Result<String, Fault> {
    let flavor = text(fields, "flavor_id");
    if let Some(flavor) = flavor {
        match edit.region.balancer_flavors.get(flavor) {
            None => return Err(Fault::validation("Invalid flavor_id.")),
            Some((_, false)) => {
                return Err(Fault::client(format!(
                    "The selected flavor is not allowed in this deployment: {flavor}"
                )));
            }
            Some(_) => {}
        }
    }
    let zone = text(fields, "availability_zone");
    if let Some(zone) = zone {
        match edit.region.balancer_zones.get(zone) {
            None => return Err(Fault::validation("Invalid availability zone.")),
            Some(false) => {
                return Err(Fault::client(format!(
                    "The selected availability_zone is not allowed in this deployment: {zone}"
                )));
            }
            Some(true) => {}
        }
    }
    let provider = text(fields, "provider").unwrap_or(&edit.ways().default_provider);
    if !edit.ways().providers.iter().any(|known| known == provider) {
        return Err(Fault::client(format!("Provider '{provider}' is not enabled.")));
    }
    let lacks = |what: &str| {
        let message = format!("Provider '{provider}' does not support a requested action: {what}");
        Fault::new(http::StatusCode::NOT_IMPLEMENTED, message)
    };
    match provider {
        "ovn" if flavor.is_some() => Err(lacks("This provider does not support validating flavors.")),
        "ovn" if zone.is_some() => Err(lacks(
            "This provider does not support validating availability zones.",
        )),
        _ => Ok(provider.to_owned()),
    }
}

/// `PUT /v2.0/lbaas/loadbalancers/{id}`.
pub(super) fn update(edit: &mut Edit<'_>, id: &str) -> Result<(), Fault> {
    let kind = types::load_balancer(Use::Update, edit.minor());
    let fields = edit.fields("load_balancer", "loadbalancer", kind)?;
    let balancer = edit.find(Kind::LoadBalancer, id)?;
    check_state(&balancer, &[Provisioning::Active])?;
    let mut attrs = take(
        &fields,
        &[
            "name",
            "description",
            "admin_state_up",
            "tags",
            "vip_qos_policy_id",
            "vip_sg_ids",
        ],
    );
    complete_change(&mut attrs);
    edit.lock(id, &[]);
    edit.put(id, attrs);
    Ok(())
}

fn check_state(balancer: &Object, allowed: &[Provisioning]) -> Result<(), Fault> {
    if allowed.contains(&balancer.provisioning) {
        return Ok(());
    }
    Err(Fault::conflict(format!(
        "Invalid state {} of loadbalancer resource {}",
        balancer.provisioning.name(),
        balancer.id
    )))
}

/// `DELETE /v2.0/lbaas/loadbalancers/{id}`.
pub(super) fn delete(edit: &mut Edit<'_>, id: &str) -> Result<(), Fault> {
    let cascade = edit.request.last("cascade").is_some_and(listing::is_true);
    let balancer = edit.find(Kind::LoadBalancer, id)?;
    let state = &edit.region.balancing;
    let has_children = [Kind::Listener, Kind::Pool]
        .into_iter()
        .any(|kind| state.below(id, kind).next().is_some());
    if has_children && !cascade {
        return Err(Fault::validation(format!(
            "Cannot delete {} {id} - it has children",
            title(Kind::LoadBalancer)
        )));
    }
    check_state(&balancer, &[Provisioning::Active, Provisioning::Error])?;
    let (now, later) = (edit.now(), edit.after(edit.ways().delete_time));
    let state = &mut edit.region.balancing;
    state.mark(id, Provisioning::PendingDelete, now);
    state.take_effect(id, later);
    Ok(())
}

/// `PUT /v2.0/lbaas/loadbalancers/{id}/failover`, for administrators.
pub(super) fn failover(edit: &mut Edit<'_>, id: &str) -> Result<(), Fault> {
    let balancer = edit.find(Kind::LoadBalancer, id)?;
    if !edit.caller.admin {
        return Err(Fault::forbidden());
    }
    check_state(&balancer, &[Provisioning::Active, Provisioning::Error])?;
    edit.lock(id, &[]);
    Ok(())
}
