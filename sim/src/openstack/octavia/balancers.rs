//! Creation of load balancers, alone or with everything below them, and their change and deletion.

use serde_json::{Map, Value, json};

use super::edit::{OctaviaEdit, Owner, complete, complete_change, list, take, text};
use super::types::{self, Use};
use super::vip::{self, Plugged, Vip};
use super::{OctaviaFault, listeners, pools, title};
use crate::openstack::listing::is_true;
use crate::openstack::region::{Kind, Object, Provisioning};

/// `POST /v2.0/lbaas/loadbalancers`.
pub(super) fn create(edit: &mut OctaviaEdit<'_>) -> Result<String, OctaviaFault> {
    let kind = types::load_balancer(Use::Create, edit.minor());
    let fields = edit.fields("load_balancer", "loadbalancer", kind)?;
    let given = text(&fields, "project_id").or_else(|| text(&fields, "tenant_id"));
    let project_id = given.filter(|id| !id.is_empty()).unwrap_or(&edit.caller.project_id).to_owned();
    if project_id.is_empty() {
        return Err(OctaviaFault::validation(
            "Missing project ID in request where one is required. An administrator should check the keystone settings \
             in the Octavia configuration.",
        ));
    }
    edit.api().authorize(&project_id)?;
    let vip = vip::requested(edit, &fields)?;
    let provider = provider(edit, &fields)?;
    edit.check_quota(Kind::LoadBalancer, &project_id, 1)?;
    let owner = Owner {
        id: edit.cloud.ids.uuid(),
        project_id,
        provider,
        vip: String::new(),
        additional_vips: Vec::new(),
    };
    let plugged = vip::plug(edit, &owner, &vip)?;
    let objects = match build(edit, &fields, &owner, &vip, &plugged) {
        Ok(objects) => objects,
        Err(fault) => {
            vip::unplug(edit, &vip, &plugged);
            return Err(fault);
        }
    };
    let id = owner.id;
    for object in objects {
        edit.region.balancing.insert(object);
    }
    let at = edit.after(edit.ways().create_time);
    edit.region.balancing.take_effect(&id, at);
    Ok(id)
}

/// Builds the load balancer and everything that is created with it.
fn build(
    edit: &OctaviaEdit<'_>,
    fields: &Map<String, Value>,
    owner: &Owner,
    vip: &Vip,
    plugged: &Plugged,
) -> Result<Vec<Object>, OctaviaFault> {
    let mut attrs = take(
        fields,
        &[
            "name",
            "description",
            "admin_state_up",
            "tags",
            "flavor_id",
            "availability_zone",
        ],
    );
    complete(&mut attrs);
    attrs.insert("vip_sg_ids", json!([]));
    attrs.insert("vip_address", json!(plugged.address));
    attrs.insert("vip_port_id", json!(plugged.port_id));
    attrs.insert("vip_subnet_id", json!(vip.subnet_id));
    attrs.insert("vip_network_id", json!(vip.network_id));
    attrs.insert("vip_vnic_type", json!("normal"));
    let additional: Vec<_> = plugged
        .additional
        .iter()
        .map(|fixed| json!({"subnet_id": fixed.subnet_id, "ip_address": fixed.address}))
        .collect();
    attrs.insert("additional_vips", json!(additional));
    attrs.insert("provider", json!(owner.provider));
    attrs.insert("octavia_owned", json!(vip.port_id.is_none()));
    attrs.insert("octavia_group", json!(plugged.group));
    let mut balancer = edit.new_object(Kind::LoadBalancer, owner, "", attrs);
    balancer.id.clone_from(&owner.id);
    let owner = Owner::of(&balancer);
    let mut objects = vec![balancer];
    below(edit, fields, &owner, &mut objects)?;
    Ok(objects)
}

/// Builds pools by name, then the listeners that use them.
fn below(
    edit: &OctaviaEdit<'_>,
    fields: &Map<String, Value>,
    owner: &Owner,
    objects: &mut Vec<Object>,
) -> Result<(), OctaviaFault> {
    let mut requested: Vec<&Map<String, Value>> = Vec::new();
    let mut referred: Vec<&str> = Vec::new();
    for pool in list(fields, "pools") {
        requested.extend(pool.as_object());
    }
    for listener in list(fields, "listeners") {
        let Some(pool) = listener.get("default_pool").and_then(Value::as_object) else {
            continue;
        };
        let Some(name) = text(pool, "name").filter(|name| !name.is_empty()) else {
            return Err(OctaviaFault::validation(
                "Pools must be named when creating a fully populated loadbalancer.",
            ));
        };
        // Every pool has this state, given or not.
        let said = pool.keys().filter(|key| *key != "admin_state_up").count();
        if said > 1 {
            requested.push(pool);
        } else {
            referred.push(name);
        }
    }
    let mut by_name: Vec<&str> =
        requested.iter().map(|pool| text(pool, "name").unwrap_or_default()).collect();
    by_name.sort_unstable();
    if by_name.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
        return Err(OctaviaFault::validation(
            "Pool names must be unique when creating a fully populated loadbalancer.",
        ));
    }
    if let Some(missing) = referred.iter().find(|name| !by_name.contains(name)) {
        return Err(OctaviaFault::validation(format!(
            "Pool '{missing}' was referenced but no full definition was found."
        )));
    }
    if !requested.is_empty() {
        edit.check_quota(Kind::Pool, &owner.project_id, requested.len())?;
    }
    let mut created: Vec<(String, String, String)> = Vec::new();
    for pool in requested {
        let name = text(pool, "name").unwrap_or_default();
        for needed in ["protocol", "lb_algorithm"] {
            if !pool.contains_key(needed) {
                return Err(OctaviaFault::validation(format!(
                    "Pool definition for '{name}' missing required attribute: {needed}"
                )));
            }
        }
        let parts = pools::prepare_whole(edit, owner, pool)?;
        if let Some(pool) = parts.first() {
            created.push((name.to_owned(), pool.id.clone(), pool.text("protocol").to_owned()));
        }
        objects.extend(parts);
    }
    let requested = list(fields, "listeners");
    if !requested.is_empty() {
        edit.check_quota(Kind::Listener, &owner.project_id, requested.len())?;
    }
    let mut siblings: Vec<(String, i64)> = Vec::new();
    for listener in requested.iter().filter_map(Value::as_object) {
        let mut listener = listener.clone();
        let name = listener.get("default_pool").and_then(|pool| pool.get("name")).and_then(Value::as_str);
        let pool = name.and_then(|name| created.iter().find(|(known, ..)| known == name)).cloned();
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

/// The provider, after checks of related fields.
fn provider(edit: &OctaviaEdit<'_>, fields: &Map<String, Value>) -> Result<String, OctaviaFault> {
    let flavor = text(fields, "flavor_id");
    if let Some(flavor) = flavor {
        match edit.region.balancer_flavors.get(flavor) {
            None => return Err(OctaviaFault::validation("Invalid flavor_id.")),
            Some((_, false)) => {
                return Err(OctaviaFault::client(format!(
                    "The selected flavor is not allowed in this deployment: {flavor}"
                )));
            }
            Some(_) => {}
        }
    }
    let zone = text(fields, "availability_zone");
    if let Some(zone) = zone {
        match edit.region.balancer_zones.get(zone) {
            None => return Err(OctaviaFault::validation("Invalid availability zone.")),
            Some(false) => {
                return Err(OctaviaFault::client(format!(
                    "The selected availability_zone is not allowed in this deployment: {zone}"
                )));
            }
            Some(true) => {}
        }
    }
    let provider = text(fields, "provider").unwrap_or(&edit.ways().default_provider);
    if !edit.ways().providers.iter().any(|known| known == provider) {
        return Err(OctaviaFault::client(format!("Provider '{provider}' is not enabled.")));
    }
    let lacks = |what: &str| {
        let message = format!("Provider '{provider}' does not support a requested action: {what}");
        OctaviaFault::new(http::StatusCode::NOT_IMPLEMENTED, message)
    };
    match provider {
        "ovn" if flavor.is_some() => Err(lacks("This provider does not support validating flavors.")),
        "ovn" if zone.is_some() => {
            Err(lacks("This provider does not support validating availability zones."))
        }
        _ => Ok(provider.to_owned()),
    }
}

/// `PUT /v2.0/lbaas/loadbalancers/{id}`.
pub(super) fn update(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let kind = types::load_balancer(Use::Update, edit.minor());
    let fields = edit.fields("load_balancer", "loadbalancer", kind)?;
    let balancer = edit.find(Kind::LoadBalancer, id)?;
    check_state(&balancer, &[Provisioning::Active])?;
    let mut attrs = take(&fields, &["name", "description", "admin_state_up", "tags"]);
    complete_change(&mut attrs);
    edit.lock(id, &[]);
    edit.put(id, attrs);
    Ok(())
}

fn check_state(balancer: &Object, allowed: &[Provisioning]) -> Result<(), OctaviaFault> {
    if allowed.contains(&balancer.provisioning) {
        return Ok(());
    }
    Err(OctaviaFault::conflict(format!(
        "Invalid state {} of loadbalancer resource {}",
        balancer.provisioning.name(),
        balancer.id
    )))
}

/// `DELETE /v2.0/lbaas/loadbalancers/{id}`.
pub(super) fn delete(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let cascade = edit.request.last("cascade").is_some_and(is_true);
    let balancer = edit.find(Kind::LoadBalancer, id)?;
    let state = &edit.region.balancing;
    let has_children = [Kind::Listener, Kind::Pool]
        .into_iter()
        .any(|kind| state.below(id, kind).next().is_some());
    if has_children && !cascade {
        return Err(OctaviaFault::validation(format!(
            "Cannot delete {} {id} - it has children",
            title(Kind::LoadBalancer)
        )));
    }
    check_state(&balancer, &[Provisioning::Active, Provisioning::Error])?;
    let (now, later) = (edit.now(), edit.after(edit.ways().delete_time));
    let state = &mut edit.region.balancing;
    state.set_status(id, Provisioning::PendingDelete, now);
    state.take_effect(id, later);
    Ok(())
}

/// `PUT /v2.0/lbaas/loadbalancers/{id}/failover`, for administrators.
pub(super) fn failover(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let balancer = edit.find(Kind::LoadBalancer, id)?;
    if !edit.caller.admin {
        return Err(OctaviaFault::forbidden());
    }
    check_state(&balancer, &[Provisioning::Active, Provisioning::Error])?;
    edit.lock(id, &[]);
    Ok(())
}
