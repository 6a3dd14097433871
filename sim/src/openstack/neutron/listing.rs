//! Neutron's listings: filters, fields, order and pages, the same for every kind of resource.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::{Value, json};

use super::resources::{Field, Resource};
use super::{Api, Fault};
use crate::http::Reply;
use crate::openstack::region::NetworkState;

/// Parameters of a listing that are no filters.
const CONTROLS: [&str; 6] = [
    "fields",
    "sort_key",
    "sort_dir",
    "limit",
    "marker",
    "page_reverse",
];

/// `GET /v2.0/<plural>`.
pub(super) fn list<T: Resource>(api: &Api<'_>) -> Result<Reply, Fault> {
    let filters = Filters::<T>::new(api)?;
    let order = order::<T>(api)?;
    let (limit, reverse) = (limit(api)?, page_reverse(api));
    let visible = |item: &&Arc<T>| item.visible(api) && filters.match_all(item, &api.region.network);
    let mut items: Vec<&Arc<T>> = T::candidates(api).into_iter().filter(visible).collect();
    if !order.is_empty() {
        sort(&mut items, &order, &api.region.network);
    }
    if let Some(limit) = limit {
        items = page(api, items, limit, reverse)?;
    }
    let fields = wanted_fields(api);
    let network = &api.region.network;
    let views: Vec<View<'_, T>> = items
        .iter()
        .map(|item| View {
            item: item.as_ref(),
            fields: &fields,
            network,
        })
        .collect();
    let links = limit
        .map(|limit| links(api, &items, limit, reverse))
        .filter(|links| !links.is_empty());
    let document = Document {
        plural: T::PLURAL,
        views,
        links,
    };
    Ok(Reply::json(StatusCode::OK, &document))
}

/// `GET /v2.0/<plural>/{id}`.
pub(super) fn show<T: Resource>(api: &Api<'_>, id: &str) -> Result<Reply, Fault> {
    // Neutron takes the query for filters, even if there is nothing to filter.
    Filters::<T>::new(api)?;
    changed::<T>(api, id)
}

/// Whether the caller sees something.
pub(super) fn is_visible<T: Resource>(api: &Api<'_>, item: &T) -> bool {
    item.visible(api)
}

/// Something that the caller sees.
pub(super) fn find<T: Resource>(api: &Api<'_>, id: &str) -> Result<Arc<T>, Fault> {
    let found = T::find(api, id).filter(|item| item.visible(api));
    found.cloned().ok_or_else(|| not_found::<T>(id))
}

/// The answer to a request that made something.
pub(super) fn made<T: Resource>(api: &Api<'_>, id: &str) -> Result<Reply, Fault> {
    let mut reply = changed::<T>(api, id)?;
    reply.status = StatusCode::CREATED;
    Ok(reply)
}

/// The answer to a request that changed something.
pub(super) fn changed<T: Resource>(api: &Api<'_>, id: &str) -> Result<Reply, Fault> {
    let item = find::<T>(api, id)?;
    let fields = wanted_fields(api);
    let view = View {
        item: item.as_ref(),
        fields: &fields,
        network: &api.region.network,
    };
    let mut document = BTreeMap::new();
    document.insert(T::SINGULAR, view);
    Ok(Reply::json(StatusCode::OK, &document))
}

pub(super) fn not_found<T: Resource>(id: &str) -> Fault {
    Fault::new(
        StatusCode::NOT_FOUND,
        T::NOT_FOUND,
        format!("{} {id} {}", T::TITLE, T::ABSENT),
    )
}

/// The fields that were asked for; empty means all. Unknown ones select nothing, and no error.
fn wanted_fields<'a>(api: &Api<'a>) -> HashSet<&'a str> {
    api.request.all("fields").collect()
}

/// Filters by attribute; the values of one attribute are alternatives.
struct Filters<'a, T: 'static> {
    by_field: Vec<(&'static Field<T>, Vec<String>)>,
    by_tags: Vec<(&'a str, Vec<&'a str>)>,
    by_fixed_ip: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a, T: Resource> Filters<'a, T> {
    fn new(api: &Api<'a>) -> Result<Self, Fault> {
        let mut filters = Self {
            by_field: Vec::new(),
            by_tags: Vec::new(),
            by_fixed_ip: BTreeMap::new(),
        };
        let mut values: Vec<(&str, Vec<&str>)> = Vec::new();
        for (key, value) in &api.request.params {
            if CONTROLS.contains(&key.as_str()) {
                continue;
            }
            match values.iter_mut().find(|(known, _)| *known == key.as_str()) {
                Some((_, list)) => list.push(value),
                None => values.push((key, vec![value])),
            }
        }
        let is_filter = |key: &str| {
            T::EXTRA_FILTERS.contains(&key) || T::FIELDS.iter().any(|field| field.name == key && field.filter)
        };
        let unknown: Vec<String> = values
            .iter()
            .filter(|(key, _)| !is_filter(key))
            .map(|(key, _)| format!("'{key}'"))
            .collect();
        if !unknown.is_empty() && api.cloud.settings.read().filter_validation {
            let unknown = unknown.join(", ");
            return Err(Fault::http_bad_request(format!(
                "[{unknown}] is invalid attribute for filtering"
            )));
        }
        for (key, values) in values.into_iter().filter(|(key, _)| is_filter(key)) {
            match key {
                "tags" | "tags-any" | "not-tags" | "not-tags-any" => {
                    let tags = values.into_iter().flat_map(|value| value.split(',')).collect();
                    filters.by_tags.push((key, tags));
                }
                "fixed_ips" => {
                    for value in values {
                        let (key, value) = value.split_once('=').ok_or_else(|| {
                            let message = format!(
                                "Invalid input for operation: '{value}' is not of the form <key>=[value]."
                            );
                            Fault::new(StatusCode::BAD_REQUEST, "InvalidInput", message)
                        })?;
                        filters.by_fixed_ip.entry(key).or_default().push(value);
                    }
                }
                _ => {
                    if let Some(field) = T::FIELDS.iter().find(|field| field.name == key) {
                        filters.by_field.push((field, convert(key, &values)?));
                    }
                }
            }
        }
        Ok(filters)
    }

    fn match_all(&self, item: &T, network: &NetworkState) -> bool {
        let has = |tag: &&str| item.tags().iter().any(|known| known == tag);
        self.by_field.iter().all(|(field, values)| {
            let matches = |have: &Value| values.iter().any(|want| text_of(have) == *want);
            match (field.get)(item, network) {
                Value::Array(list) => list.iter().any(matches),
                value => matches(&value),
            }
        }) && self.by_tags.iter().all(|(kind, tags)| match *kind {
            "tags" => tags.iter().all(has),
            "tags-any" => tags.iter().any(has),
            "not-tags" => !tags.iter().all(has),
            _ => !tags.iter().any(has),
        }) && self.by_fixed_ip.iter().all(|(key, values)| {
            values
                .iter()
                .any(|value| item.has_fixed_ip(key, value) != Some(false))
        })
    }
}

/// Filter values in the form in which they are compared.
fn convert(key: &str, values: &[&str]) -> Result<Vec<String>, Fault> {
    let boolean = matches!(
        key,
        "admin_state_up" | "shared" | "router:external" | "enable_dhcp"
    );
    if matches!(key, "mtu" | "ip_version")
        && let Some(value) = values.iter().find(|value| value.trim().parse::<i64>().is_err())
    {
        let message = format!("Invalid input for operation: '{value}' is not an integer.");
        return Err(Fault::new(StatusCode::BAD_REQUEST, "InvalidInput", message));
    }
    let convert = |value: &&str| match (boolean, value.to_lowercase().as_str()) {
        (false, _) => Ok((*value).to_owned()),
        (true, "true" | "1") => Ok("true".to_owned()),
        (true, "false" | "0") => Ok("false".to_owned()),
        (true, _) => {
            let message = format!("Invalid input for operation: '{value}' cannot be converted to boolean.");
            Err(Fault::new(StatusCode::BAD_REQUEST, "InvalidInput", message))
        }
    };
    values.iter().map(convert).collect()
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Attributes to sort by, and whether descending.
type Order<T> = Vec<(&'static Field<T>, bool)>;

fn order<T: Resource>(api: &Api<'_>) -> Result<Order<T>, Fault> {
    let keys: Vec<&str> = api
        .request
        .all("sort_key")
        .filter(|key| !key.is_empty())
        .collect();
    let dirs: Vec<&str> = api
        .request
        .all("sort_dir")
        .filter(|dir| !dir.is_empty())
        .collect();
    if keys.len() != dirs.len() {
        return Err(Fault::http_bad_request(
            "The number of sort_keys and sort_dirs must be same",
        ));
    }
    let find = |key: &str| T::FIELDS.iter().find(|field| field.name == key && field.sort);
    let quoted = |list: Vec<&str>| {
        let list: Vec<String> = list.iter().map(|entry| format!("'{entry}'")).collect();
        format!("[{}]", list.join(", "))
    };
    let absent: Vec<&str> = keys.iter().copied().filter(|key| find(key).is_none()).collect();
    if !absent.is_empty() {
        return Err(Fault::http_bad_request(format!(
            "{} is invalid attribute for sort_keys",
            quoted(absent)
        )));
    }
    let invalid: Vec<&str> = dirs
        .iter()
        .copied()
        .filter(|dir| !matches!(*dir, "asc" | "desc"))
        .collect();
    if !invalid.is_empty() {
        return Err(Fault::http_bad_request(format!(
            "{} is invalid value for sort_dirs, valid value is 'asc' and 'desc'",
            quoted(invalid)
        )));
    }
    Ok(keys
        .iter()
        .zip(&dirs)
        .filter_map(|(key, dir)| Some((find(key)?, *dir == "desc")))
        .collect())
}

fn sort<T: Resource>(items: &mut [&Arc<T>], order: &Order<T>, network: &NetworkState) {
    // Items come in the order of their ids, and a stable sort keeps that among equals.
    items.sort_by_cached_key(|item| {
        SortKey(
            order
                .iter()
                .map(|(field, descending)| (text_of(&(field.get)(item, network)), *descending))
                .collect(),
        )
    });
}

#[derive(PartialEq, Eq)]
struct SortKey(Vec<(String, bool)>);

impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let compare = |((a, descending), (b, _)): (&(String, bool), &(String, bool))| {
            if *descending { b.cmp(a) } else { a.cmp(b) }
        };
        self.0
            .iter()
            .zip(&other.0)
            .map(compare)
            .find(|order| order.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    }
}

/// The page size, if the listing is paged.
fn limit(api: &Api<'_>) -> Result<Option<usize>, Fault> {
    let asked = match api.request.last("limit") {
        None => 0,
        Some(text) => text.trim().parse::<usize>().map_err(|_| {
            let message =
                format!("Bad limit request: Limit must be an integer 0 or greater and not '{text}'.");
            Fault::new(StatusCode::BAD_REQUEST, "BadRequest", message)
        })?,
    };
    Ok(match (api.cloud.settings.read().network_max_limit, asked) {
        (Some(max), 0) => Some(max),
        (Some(max), asked) => Some(asked.min(max)),
        (None, 0) => None,
        (None, asked) => Some(asked),
    })
}

fn page_reverse(api: &Api<'_>) -> bool {
    api.request
        .last("page_reverse")
        .is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

fn page<'a, T: Resource>(
    api: &Api<'_>,
    items: Vec<&'a Arc<T>>,
    limit: usize,
    reverse: bool,
) -> Result<Vec<&'a Arc<T>>, Fault> {
    let marker = match api.request.last("marker").filter(|marker| !marker.is_empty()) {
        None => None,
        Some(marker) => {
            let found = T::find(api, marker).filter(|item| item.visible(api));
            if found.is_none() && T::KNOWS_MARKER {
                return Err(not_found::<T>(marker));
            }
            // A marker that the filters leave out stands where it would stand by its id.
            let at = items.iter().position(|item| item.id() == marker);
            found.map(|_| {
                at.map_or_else(
                    || (items.partition_point(|item| item.id() < marker), 0),
                    |at| (at, 1),
                )
            })
        }
    };
    let count = items.len();
    let (start, end) = match (marker, reverse) {
        (None, false) => (0, limit),
        (None, true) => (count.saturating_sub(limit), count),
        (Some((at, width)), false) => (at + width, (at + width).saturating_add(limit)),
        (Some((at, _)), true) => (at.saturating_sub(limit), at),
    };
    Ok(items.into_iter().take(end).skip(start).collect())
}

/// Links to the pages around. Neutron adds one whenever a page is full, and the previous one always.
fn links<T: Resource>(api: &Api<'_>, items: &[&Arc<T>], limit: usize, reverse: bool) -> Vec<Value> {
    let link = |rel: &str, marker: Option<&&Arc<T>>, reverse: bool| {
        let kept = api
            .request
            .params
            .iter()
            .filter(|(key, _)| key != "marker" && key != "page_reverse");
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(kept);
        if let Some(marker) = marker {
            query.append_pair("marker", marker.id());
        }
        if reverse {
            query.append_pair("page_reverse", "True");
        }
        json!({"rel": rel, "href": format!("{}/v2.0/{}?{}", api.endpoint, T::PLURAL, query.finish())})
    };
    let full = items.len() >= limit;
    let mut links = Vec::new();
    if full || reverse {
        links.push(link("next", items.last(), false));
    }
    if full || !reverse {
        links.push(link("previous", items.first(), true));
    }
    links
}

struct Document<'a, T: 'static> {
    plural: &'static str,
    views: Vec<View<'a, T>>,
    links: Option<Vec<Value>>,
}

impl<T: Resource> Serialize for Document<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.plural, &self.views)?;
        if let Some(links) = &self.links {
            map.serialize_entry(&format!("{}_links", self.plural), links)?;
        }
        map.end()
    }
}

struct View<'a, T: 'static> {
    item: &'a T,
    fields: &'a HashSet<&'a str>,
    network: &'a NetworkState,
}

impl<T: Resource> Serialize for View<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let wanted = |name: &str| self.fields.is_empty() || self.fields.contains(name);
        for field in T::FIELDS
            .iter()
            .filter(|field| wanted(field.name) && self.item.has(field.name))
        {
            map.serialize_entry(field.name, &(field.get)(self.item, self.network))?;
        }
        map.end()
    }
}
