//! Members of pools, single or all of a pool.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use super::edit::{OctaviaEdit, Owner, complete, complete_change, take, text};
use super::types::{self, Use};
use super::view::attributes;
use super::{OctaviaFault, listeners, schema, title};
use crate::openstack::listing::is_true;
use crate::openstack::region::{Attrs, Kind, Object, Provisioning};

/// The identity of a member in its pool.
type Place = (String, i64);

fn place_of(member: &Object) -> Place {
    let port = member.get("protocol_port").as_i64().unwrap_or_default();
    (member.text("address").to_owned(), port)
}

fn place_in(fields: &Map<String, Value>) -> Place {
    let port = fields.get("protocol_port").and_then(Value::as_i64);
    let address = text(fields, "address").unwrap_or_default();
    (address.to_owned(), port.unwrap_or_default())
}

/// Refuses the address of the metadata service.
pub(super) fn check_address(fields: &Map<String, Value>) -> Result<(), OctaviaFault> {
    match text(fields, "address") {
        Some(address @ "169.254.169.254") => Err(OctaviaFault::option(address, "member address")),
        _ => Ok(()),
    }
}

fn check_subnet(edit: &OctaviaEdit<'_>, fields: &Map<String, Value>) -> Result<(), OctaviaFault> {
    match text(fields, "subnet_id") {
        Some(id) if !edit.region.network.subnets.contains_key(id) => {
            Err(OctaviaFault::client(format!("Subnet {id} not found.")))
        }
        _ => Ok(()),
    }
}

/// Builds a new member, whose address and port must be unique.
pub(super) fn prepare(
    edit: &OctaviaEdit<'_>,
    owner: &Owner,
    pool: &str,
    fields: &Map<String, Value>,
    known: &mut HashSet<Place>,
) -> Result<Object, OctaviaFault> {
    let (address, port) = place_in(fields);
    if !known.insert((address.clone(), port)) {
        return Err(OctaviaFault::conflict(format!(
            "Another member on this pool is already using ip {address} on protocol_port {port}"
        )));
    }
    let mut attrs = take(fields, attributes(Kind::Member));
    complete(&mut attrs);
    attrs.remove("description");
    attrs.insert("vnic_type", json!("normal"));
    for name in ["subnet_id", "monitor_address", "monitor_port"] {
        attrs.entry(name).or_insert(Value::Null);
    }
    let mut member = edit.new_object(Kind::Member, owner, pool, attrs);
    member.operating = if edit.region.balancing.monitor(pool).is_some() {
        "OFFLINE"
    } else {
        "NO_MONITOR"
    };
    Ok(member)
}

/// Checks that the load balancer of a UDP or SCTP pool has an address of its members' family.
fn check_families(
    edit: &OctaviaEdit<'_>,
    pool: &Object,
    owner: &Owner,
    addresses: &[&str],
) -> Result<(), OctaviaFault> {
    let protocol = pool.text("protocol");
    let led_to = !edit.region.balancing.listeners_of(pool).is_empty();
    let has_v6_vip = listeners::is_v6(&owner.vip);
    let has_other_family = addresses.iter().any(|address| listeners::is_v6(address) != has_v6_vip);
    if matches!(protocol, "UDP" | "SCTP") && led_to && has_other_family {
        let message = format!(
            "This provider doesn't support mixing IPv4 and IPv6 addresses for its VIP and members in {protocol} load \
             balancers."
        );
        return Err(OctaviaFault::unsupported(&owner.provider, message));
    }
    Ok(())
}

/// A pool and its load balancer.
fn pool_of(edit: &OctaviaEdit<'_>, id: &str) -> Result<(Arc<Object>, Owner), OctaviaFault> {
    let pool = edit.find(Kind::Pool, id)?;
    let balancer = edit.find(Kind::LoadBalancer, &pool.balancer)?;
    Ok((pool, Owner::of(&balancer)))
}

fn places(edit: &OctaviaEdit<'_>, pool: &str) -> HashSet<Place> {
    edit.region.balancing.below(pool, Kind::Member).map(|member| place_of(member)).collect()
}

/// `POST /v2.0/lbaas/pools/{id}/members`.
pub(super) fn create(edit: &mut OctaviaEdit<'_>, pool: &str) -> Result<String, OctaviaFault> {
    let fields = edit.fields("member_", "member", types::member(Use::Create))?;
    let (pool, owner) = pool_of(edit, pool)?;
    check_address(&fields)?;
    check_subnet(edit, &fields)?;
    edit.check_quota(Kind::Member, &owner.project_id, 1)?;
    edit.check_pool(&pool)?;
    let mut known = places(edit, &pool.id);
    let member = prepare(edit, &owner, &pool.id, &fields, &mut known)?;
    check_families(edit, &pool, &owner, &[member.text("address")])?;
    let id = member.id.clone();
    edit.region.balancing.insert(member);
    edit.lock_pool(&pool);
    Ok(id)
}

/// A member of this pool, not of another.
fn member_of(edit: &OctaviaEdit<'_>, pool: &str, id: &str) -> Result<Arc<Object>, OctaviaFault> {
    let member = edit.find(Kind::Member, id)?;
    if member.parent == pool {
        Ok(member)
    } else {
        Err(OctaviaFault::not_found(title(Kind::Member), id))
    }
}

/// `PUT /v2.0/lbaas/pools/{id}/members/{id}`.
pub(super) fn update(edit: &mut OctaviaEdit<'_>, pool: &str, id: &str) -> Result<(), OctaviaFault> {
    let fields = edit.fields("member_", "member", types::member(Use::Update))?;
    let member = member_of(edit, pool, id)?;
    let (pool, _) = pool_of(edit, &member.parent)?;
    edit.check_pool(&pool)?;
    let mut attrs = take(&fields, attributes(Kind::Member));
    complete_change(&mut attrs);
    edit.lock_pool(&pool);
    edit.put(id, attrs);
    let (now, state) = (edit.now(), &mut edit.region.balancing);
    state.set_status(id, Provisioning::PendingUpdate, now);
    Ok(())
}

/// `DELETE /v2.0/lbaas/pools/{id}/members/{id}`.
pub(super) fn delete(edit: &mut OctaviaEdit<'_>, pool: &str, id: &str) -> Result<(), OctaviaFault> {
    let member = member_of(edit, pool, id)?;
    let (pool, _) = pool_of(edit, &member.parent)?;
    edit.check_pool(&pool)?;
    edit.lock_pool(&pool);
    edit.delete_later(id);
    Ok(())
}

/// `PUT /v2.0/lbaas/pools/{id}/members`: replaces all members, unless the query says that it only adds.
pub(super) fn update_all(edit: &mut OctaviaEdit<'_>, id: &str) -> Result<(), OctaviaFault> {
    let additive = edit.request.last("additive_only").is_some_and(is_true);
    let requested = schema::parse(&edit.request.body, "members_", "members", types::members(), edit.minor())?;
    let requested: Vec<Map<String, Value>> = match requested {
        Value::Array(list) => list
            .into_iter()
            .filter_map(|member| match member {
                Value::Object(fields) => Some(fields),
                _ => None,
            })
            .collect(),
        _ => return Err(OctaviaFault::server("'NoneType' object is not iterable")),
    };
    let (pool, owner) = pool_of(edit, id)?;
    edit.check_pool(&pool)?;
    let old: Vec<(Place, String)> = edit
        .region
        .balancing
        .below(id, Kind::Member)
        .map(|member| (place_of(member), member.id.clone()))
        .collect();
    let old_ids: HashMap<&Place, &String> = old.iter().map(|(place, id)| (place, id)).collect();
    let mut fresh: Vec<&Map<String, Value>> = Vec::new();
    let mut changed: Vec<(String, Attrs)> = Vec::new();
    let mut seen = HashSet::new();
    for fields in &requested {
        let place = place_in(fields);
        let Some(known) = old_ids.get(&place) else {
            check_address(fields)?;
            fresh.push(fields);
            seen.insert(place);
            continue;
        };
        if !seen.insert(place) {
            return Err(OctaviaFault::validation("Member must be updated only once in the same request."));
        }
        let mut attrs = take(fields, attributes(Kind::Member));
        complete_change(&mut attrs);
        changed.push(((*known).clone(), attrs));
    }
    let deleted: Vec<String> =
        old.iter().filter(|(place, _)| !seen.contains(place)).map(|(_, id)| id.clone()).collect();
    if fresh.is_empty() && changed.is_empty() && deleted.is_empty() {
        return Ok(());
    }
    let freed = if additive { 0 } else { deleted.len() };
    if fresh.len() > freed {
        edit.check_quota(Kind::Member, &owner.project_id, fresh.len() - freed)?;
    }
    let mut known = HashSet::new();
    let mut created = Vec::new();
    for fields in fresh {
        check_subnet(edit, fields)?;
        created.push(prepare(edit, &owner, id, fields, &mut known)?);
    }
    let addresses: Vec<&str> = requested.iter().filter_map(|fields| text(fields, "address")).collect();
    check_families(edit, &pool, &owner, &addresses)?;
    edit.lock_pool(&pool);
    let now = edit.now();
    let state = &mut edit.region.balancing;
    for member in created {
        state.insert(member);
    }
    for (member, attrs) in changed {
        state.change(&member, |member| member.attrs.extend(attrs));
        state.set_status(&member, Provisioning::PendingUpdate, now);
    }
    if !additive {
        for member in deleted {
            state.set_status(&member, Provisioning::PendingDelete, now);
        }
    }
    Ok(())
}
