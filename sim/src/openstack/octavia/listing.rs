//! Octavia's listings: filters, order, pages and the choice of fields, the same for every kind of object.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{Api, Fault, names, view};
use crate::http::Reply;
use crate::openstack::region::{Kind, Object};

/// Parameters that are no filters.
const CONTROLS: [&str; 7] = [
    "limit",
    "marker",
    "sort",
    "sort_key",
    "sort_dir",
    "fields",
    "page_reverse",
];

/// `GET /v2.0/lbaas/<plural>/{id}`.
pub(super) fn show(api: &Api<'_>, kind: Kind, id: &str, only: Option<&str>) -> Result<Reply, Fault> {
    limit(api)?;
    let object = api.find(kind, id)?;
    let (singular, _) = names(kind);
    let mut document = fields(api, view::object(api.state(), object, api.minor));
    if let Some(only) = only {
        document.retain(|name, _| name == only);
    }
    Ok(Reply::json(StatusCode::OK, &json!({ singular: document })))
}

/// The fields that were asked for; all of them if none were.
fn fields(api: &Api<'_>, object: Map<String, Value>) -> Map<String, Value> {
    if api.request.last("fields").is_none() {
        return object;
    }
    let wanted = |name: &str| api.request.all("fields").any(|field| field == name);
    object.into_iter().filter(|(name, _)| wanted(name)).collect()
}

/// `GET /v2.0/lbaas/<plural>`.
pub(super) fn list(api: &Api<'_>, kind: Kind) -> Result<Reply, Fault> {
    list_below(api, kind, None)
}

/// The same of what is directly below something.
pub(super) fn list_below(api: &Api<'_>, kind: Kind, parent: Option<&str>) -> Result<Reply, Fault> {
    let limit = limit(api)?;
    let asked = api.request.last("project_id");
    if let Some(project) = asked.filter(|_| parent.is_none()) {
        api.authorize(project)?;
    }
    if asked.is_none() && !api.caller.admin && api.caller.project_id.is_empty() {
        return Err(Fault::forbidden());
    }
    let project = match (asked, api.caller.admin) {
        (None, true) => None,
        (None, false) => Some(api.caller.project_id.as_str()),
        (asked, _) => asked,
    };
    let filters = Filters::new(api, kind)?;
    let order = order(api)?;
    let state = api.state();
    let below = parent.or_else(|| {
        let of = api
            .request
            .last("loadbalancer_id")
            .or_else(|| api.request.last("load_balancer_id"));
        of.filter(|_| matches!(kind, Kind::Listener | Kind::Pool))
    });
    let candidates: Vec<&Arc<Object>> = match below {
        Some(parent) => state.below(parent, kind).collect(),
        None => state.all(kind).collect(),
    };
    let mut found: Vec<&Arc<Object>> = candidates
        .into_iter()
        .filter(|object| project.is_none_or(|project| object.project_id == project))
        .filter(|object| filters.pass(object))
        .collect();
    found.sort_by_cached_key(|object| (object.created, object.id.clone()));
    for (name, descending) in order.iter().rev() {
        found.sort_by_cached_key(|object| text_of(&value_of(object, name)));
        if *descending {
            found.reverse();
        }
    }
    let marker = api.request.last("marker");
    if let Some(marker) = marker {
        let Some(known) = state.get(kind, marker) else {
            return Err(Fault::client(format!(
                "Supplied pagination marker '{marker}' is not valid."
            )));
        };
        let at = found.iter().position(|object| object.id == known.id);
        let after = at.map_or(0, |at| at + 1);
        found.drain(..after);
    }
    let before = found.len();
    found.truncate(limit);
    let (_, plural) = names(kind);
    let links = links(api, &found, limit, before >= limit, marker.is_some());
    let shown: Vec<Map<String, Value>> = found
        .iter()
        .map(|object| fields(api, view::object(state, object, api.minor)))
        .collect();
    let document = json!({plural: shown, format!("{plural}_links"): links});
    Ok(Reply::json(StatusCode::OK, &document))
}

fn limit(api: &Api<'_>) -> Result<usize, Fault> {
    let max = api.cloud.settings.read().load_balancing.max_limit;
    let Some(text) = api.request.last("limit") else {
        return Ok(max);
    };
    if text == "infinite" {
        return Ok(usize::MAX);
    }
    match text.trim().parse::<i64>() {
        Ok(number) if number < 1 => Ok(usize::MAX),
        Ok(number) => Ok(usize::try_from(number).unwrap_or(usize::MAX).min(max)),
        Err(_) => Err(Fault::framework(
            StatusCode::BAD_REQUEST,
            format!("Supplied pagination limit '{text}' is not valid."),
        )),
    }
}

fn links(api: &Api<'_>, found: &[&Arc<Object>], limit: usize, full: bool, marked: bool) -> Vec<Value> {
    let (Some(first), Some(last)) = (found.first(), found.last()) else {
        return Vec::new();
    };
    let base = format!(
        "{}/{}",
        api.endpoint,
        api.request
            .path
            .split_once("/load-balancer/")
            .map(|(_, path)| path)
            .unwrap_or_default()
    );
    let mut query = if limit == usize::MAX {
        "limit=None".to_owned()
    } else {
        format!("limit={limit}")
    };
    for name in ["sort", "sort_key"] {
        if let Some(value) = api.request.last(name) {
            query.push_str(&format!("&{name}={value}"));
        }
    }
    let mut links = Vec::new();
    if marked {
        let href = format!("{base}?{query}&marker={}&page_reverse=True", first.id);
        links.push(json!({"rel": "previous", "href": href}));
    }
    if full || limit == usize::MAX {
        let href = format!("{base}?{query}&marker={}", last.id);
        links.push(json!({"rel": "next", "href": href}));
    }
    links
}

/// Attributes to sort by, and whether descending.
fn order(api: &Api<'_>) -> Result<Vec<(String, bool)>, Fault> {
    let direction = |text: &str| match text.to_lowercase().as_str() {
        "asc" => Ok(false),
        "desc" => Ok(true),
        other => Err(Fault::framework(
            StatusCode::BAD_REQUEST,
            format!("Supplied sort direction '{other}' is not valid."),
        )),
    };
    let mut order = Vec::new();
    if let Some(sort) = api.request.last("sort").filter(|sort| !sort.is_empty()) {
        for part in sort.split(',') {
            let (name, text) = part.split_once(':').unwrap_or((part, "asc"));
            order.push((name.to_owned(), direction(text)?));
        }
    } else if let Some(keys) = api.request.last("sort_key").filter(|keys| !keys.is_empty()) {
        let dirs = api.request.last("sort_dir").filter(|dirs| !dirs.is_empty());
        let mut dirs = dirs.into_iter().flat_map(|dirs| dirs.split(','));
        for name in keys.split(',') {
            order.push((name.to_owned(), direction(dirs.next().unwrap_or("asc"))?));
        }
    }
    let is_known = |name: &str| !matches!(name, "nothing" | "") && !name.contains(' ');
    match order.iter().find(|(name, _)| !is_known(name)) {
        Some((name, _)) => Err(Fault::client(format!("Supplied sort key '{name}' is not valid."))),
        None => Ok(order),
    }
}

/// What an object has under a name that can be asked for.
fn value_of(object: &Object, name: &str) -> Value {
    match name {
        "id" => json!(object.id),
        "project_id" | "tenant_id" => json!(object.project_id),
        "loadbalancer_id" | "load_balancer_id" => json!(object.balancer),
        "pool_id" => json!(object.parent),
        "provisioning_status" => json!(object.provisioning.name()),
        "operating_status" => json!(object.operating),
        "created_at" => view::time(object.created),
        "updated_at" => object.updated.map_or(Value::Null, view::time),
        _ => object.get(name).clone(),
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Names by which a kind of object can be filtered.
fn filter_names(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::LoadBalancer => &[
            "name",
            "description",
            "admin_state_up",
            "provider",
            "flavor_id",
            "availability_zone",
            "vip_address",
            "vip_port_id",
            "vip_subnet_id",
            "vip_network_id",
            "vip_qos_policy_id",
        ],
        Kind::Listener => &[
            "name",
            "description",
            "admin_state_up",
            "protocol",
            "protocol_port",
            "connection_limit",
            "default_pool_id",
            "loadbalancer_id",
            "load_balancer_id",
            "timeout_client_data",
            "timeout_member_connect",
            "timeout_member_data",
            "timeout_tcp_inspect",
            "client_authentication",
        ],
        Kind::Pool => &[
            "name",
            "description",
            "admin_state_up",
            "protocol",
            "lb_algorithm",
            "loadbalancer_id",
            "load_balancer_id",
            "healthmonitor_id",
        ],
        Kind::Member => &[
            "name",
            "admin_state_up",
            "address",
            "protocol_port",
            "weight",
            "backup",
            "subnet_id",
            "monitor_address",
            "monitor_port",
            "pool_id",
        ],
        Kind::Monitor => &[
            "name",
            "admin_state_up",
            "type",
            "delay",
            "timeout",
            "max_retries",
            "max_retries_down",
            "http_method",
            "url_path",
            "expected_codes",
            "pool_id",
        ],
    }
}

struct Filters<'a> {
    api: &'a Api<'a>,
    by_name: Vec<(&'a str, &'a str)>,
    by_tags: Vec<(&'a str, Vec<&'a str>)>,
}

impl<'a> Filters<'a> {
    fn new(api: &'a Api<'a>, kind: Kind) -> Result<Self, Fault> {
        let mut filters = Self {
            api,
            by_name: Vec::new(),
            by_tags: Vec::new(),
        };
        let always = [
            "id",
            "project_id",
            "provisioning_status",
            "operating_status",
            "created_at",
            "updated_at",
        ];
        for (name, value) in &api.request.params {
            let name = name.as_str();
            if CONTROLS.contains(&name) {
                continue;
            }
            if matches!(name, "tags" | "tags-any" | "not-tags" | "not-tags-any") && api.minor >= 5 {
                let tags = value.split(',').collect::<Vec<_>>();
                match filters.by_tags.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => known.extend(tags),
                    None => filters.by_tags.push((name, tags)),
                }
                continue;
            }
            let known = always.contains(&name) || filter_names(kind).contains(&name);
            if !known {
                return Err(Fault::client(
                    "One or more arguments are either duplicate or invalid",
                ));
            }
            if filters.by_name.iter().any(|(known, _)| *known == name) {
                // The database is given both at once.
                return Err(Fault::server(
                    "(pymysql.err.OperationalError) (4078, \"Illegal parameter data types varchar and row for \
                     operation '='\")",
                ));
            }
            filters.by_name.push((name, value));
        }
        Ok(filters)
    }

    fn pass(&self, object: &Object) -> bool {
        let tags = object.get("tags").as_array();
        let has = |tag: &&str| {
            let mut tags = tags.into_iter().flatten();
            tags.any(|known| known.as_str() == Some(*tag))
        };
        self.by_name.iter().all(|(name, wanted)| {
            let have = match *name {
                "healthmonitor_id" => {
                    let monitor = self.api.state().monitor(&object.id);
                    json!(monitor.map(|monitor| monitor.id.clone()))
                }
                name => value_of(object, name),
            };
            match have {
                Value::Bool(have) => is_true(wanted) == have,
                // The database compares without regard to case.
                have => text_of(&have).to_lowercase() == wanted.to_lowercase(),
            }
        }) && self.by_tags.iter().all(|(kind, wanted)| match *kind {
            "tags" => wanted.iter().all(has),
            "tags-any" => wanted.iter().any(has),
            "not-tags" => !wanted.iter().all(has),
            _ => !wanted.iter().any(has),
        })
    }
}

/// What stands for true in a query.
pub(super) fn is_true(text: &str) -> bool {
    matches!(
        text.trim().to_lowercase().as_str(),
        "1" | "t" | "true" | "on" | "y" | "yes"
    )
}
