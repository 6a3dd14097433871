//! Tags of networks, subnets, ports, routers, floating addresses and security groups.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{Edit, Fault, body};
use crate::http::Reply;
use crate::openstack::region::{FloatingIp, Network, Port, Router, SecurityGroup, Subnet};

/// A request below `/v2.0/<collection>/{id}/tags`.
pub(super) fn answer(
    edit: &mut Edit<'_>,
    op: &str,
    collection: &str,
    id: &str,
    tag: &str,
) -> Result<Reply, Fault> {
    let mut tags = read(edit, collection, id).map_err(|fault| match op {
        // Neutron stumbles here.
        "tag_add" => Fault::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "HTTPInternalServerError",
            "Request Failed: internal server error while processing your request.",
        ),
        _ => fault,
    })?;
    let has = tags.iter().any(|known| known == tag);
    let absent = || {
        let message = format!("Tag {tag} could not be found.");
        Fault::new(StatusCode::NOT_FOUND, "TagNotFound", message)
    };
    let reply = match op {
        "tag_list" => return Ok(Reply::json(StatusCode::OK, &json!({ "tags": tags }))),
        "tag_get" if has => return Ok(Reply::empty(StatusCode::NO_CONTENT)),
        "tag_get" => return Err(absent()),
        "tag_add" => {
            if has {
                return Ok(Reply::json(StatusCode::CREATED, &Value::Null));
            }
            tags.push(tag.to_owned());
            Reply::json(StatusCode::CREATED, &Value::Null)
        }
        "tag_remove" if has => {
            tags.retain(|known| known != tag);
            Reply::empty(StatusCode::NO_CONTENT)
        }
        "tag_remove" => return Err(absent()),
        "tag_clear" => {
            tags.clear();
            Reply::empty(StatusCode::NO_CONTENT)
        }
        _ => {
            let document = body::document(edit.request)?;
            let list = document.get("tags").and_then(Value::as_array);
            let list = list.ok_or_else(|| Fault::http_bad_request("Invalid tags body"))?;
            tags = list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            Reply::json(StatusCode::OK, &json!({ "tags": tags }))
        }
    };
    tags.sort();
    write(edit, collection, id, tags);
    Ok(reply)
}

fn read(edit: &Edit<'_>, collection: &str, id: &str) -> Result<Vec<String>, Fault> {
    Ok(match collection {
        "networks" => edit.find::<Network>(id)?.tags.clone(),
        "subnets" => edit.find::<Subnet>(id)?.tags.clone(),
        "ports" => edit.find::<Port>(id)?.tags.clone(),
        "routers" => edit.find::<Router>(id)?.tags.clone(),
        "floatingips" => edit.find::<FloatingIp>(id)?.tags.clone(),
        _ => edit.find::<SecurityGroup>(id)?.tags.clone(),
    })
}

fn write(edit: &mut Edit<'_>, collection: &str, id: &str, tags: Vec<String>) {
    let network = &mut edit.region.network;
    match collection {
        "networks" => {
            if let Some(found) = network.networks.get_mut(id) {
                Arc::make_mut(found).tags = tags;
            }
        }
        "subnets" => {
            if let Some(found) = network.subnets.get_mut(id) {
                Arc::make_mut(found).tags = tags;
            }
        }
        "ports" => network.change_port(id, |port| port.tags = tags),
        "routers" => network.change_router(id, |router| router.tags = tags),
        "floatingips" => network.change_floating(id, |floating| floating.tags = tags),
        _ => network.change_group(id, |group| group.tags = tags),
    }
}
