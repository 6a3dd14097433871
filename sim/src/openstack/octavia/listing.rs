//! Octavia's listings and single reads, the same for every kind of object.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{OctaviaApi, OctaviaFault, names, view};
use crate::http::Reply;
use crate::openstack::listing::{ListedDocument, Query, cut, id_of};
use crate::openstack::region::{Kind, Object};

/// Attributes of every object by which a listing can be filtered.
const COMMON: [&str; 6] = [
    "id",
    "project_id",
    "provisioning_status",
    "operating_status",
    "created_at",
    "updated_at",
];

/// `GET /v2.0/lbaas/<plural>/{id}`.
pub(super) fn show(api: &OctaviaApi<'_>, kind: Kind, id: &str) -> Result<Reply, OctaviaFault> {
    let object = api.find(kind, id)?;
    let (singular, _) = names(kind);
    let shown = Query::new(api.request).choose(view::object(api.state(), object, api.minor));
    Ok(Reply::json(StatusCode::OK, &json!({ singular: shown })))
}

/// `GET /v2.0/lbaas/<plural>`, or the listing of objects directly below another.
pub(super) fn list(api: &OctaviaApi<'_>, kind: Kind, parent: Option<&str>) -> Result<Reply, OctaviaFault> {
    let mut query = Query::new(api.request);
    let limit = limit(api, query.limit)?;
    let project = match (api.request.last("project_id"), api.caller.admin) {
        (Some(project), _) => {
            if parent.is_none() {
                api.authorize(project)?;
            }
            Some(project)
        }
        (None, true) => None,
        (None, false) if api.caller.project_id.is_empty() => return Err(OctaviaFault::forbidden()),
        (None, false) => Some(api.caller.project_id.as_str()),
    };
    let owner: &[&str] = match kind {
        Kind::LoadBalancer => &[],
        Kind::Listener | Kind::Pool => &["loadbalancer_id", "load_balancer_id"],
        Kind::Member | Kind::Monitor => &["pool_id"],
    };
    let below = parent.or_else(|| owner.iter().find_map(|name| api.request.last(name)));
    query.filters.retain(|(name, _)| !owner.contains(name));
    for (name, values) in &query.filters {
        let is_filter = view::attributes(kind).contains(name) || COMMON.contains(name);
        if !is_filter || values.len() > 1 {
            return Err(OctaviaFault::client("One or more arguments are either duplicate or invalid"));
        }
    }
    let state = api.state();
    let mut candidates: Vec<&Arc<Object>> = match below {
        Some(parent) => state.below(parent, kind).collect(),
        None => state.all(kind).collect(),
    };
    candidates.sort_by_cached_key(|object| (object.created, object.id.clone()));
    let mut found: Vec<ListedDocument> = candidates
        .into_iter()
        .filter(|object| project.is_none_or(|project| object.project_id == project))
        .map(|object| view::object(state, object, api.minor))
        .filter(|document| query.matches(document))
        .collect();
    let start = match query.marker {
        None => 0,
        Some(marker) if state.get(kind, marker).is_none() => {
            return Err(OctaviaFault::client(format!("Supplied pagination marker '{marker}' is not valid.")));
        }
        Some(marker) => {
            let at = found.iter().position(|document| id_of(document) == marker);
            at.map_or(0, |at| at + 1)
        }
    };
    cut(&mut found, start, limit);
    let (_, plural) = names(kind);
    let links = links(api, &found, limit, query.marker.is_some());
    let shown: Value = found.into_iter().map(|document| query.choose(document)).collect();
    let document = json!({plural: shown, format!("{plural}_links"): links});
    Ok(Reply::json(StatusCode::OK, &document))
}

fn limit(api: &OctaviaApi<'_>, requested: Option<&str>) -> Result<usize, OctaviaFault> {
    let max = api.cloud.settings.read().load_balancing.max_limit;
    let Some(text) = requested else {
        return Ok(max);
    };
    match text.trim().parse::<usize>() {
        Ok(limit) if limit > 0 => Ok(limit.min(max)),
        _ => {
            let message = format!("Supplied pagination limit '{text}' is not valid.");
            Err(OctaviaFault::framework(StatusCode::BAD_REQUEST, message))
        }
    }
}

fn links(api: &OctaviaApi<'_>, page: &[ListedDocument], limit: usize, marked: bool) -> Vec<Value> {
    let (Some(first), Some(last)) = (page.first(), page.last()) else {
        return Vec::new();
    };
    let path = api.request.path.split_once("/load-balancer/").map_or("", |(_, path)| path);
    let link = |rel: &str, marker: &ListedDocument, more: &str| {
        let marker = id_of(marker);
        let href = format!("{}/{path}?limit={limit}&marker={marker}{more}", api.endpoint);
        json!({"rel": rel, "href": href})
    };
    let previous = marked.then(|| link("previous", first, "&page_reverse=True"));
    let next = (page.len() >= limit).then(|| link("next", last, ""));
    previous.into_iter().chain(next).collect()
}
