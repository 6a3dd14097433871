//! Neutron's listings and single reads, the same for every kind of resource.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::resources::Resource;
use super::{NeutronApi, NeutronFault};
use crate::http::Reply;
use crate::openstack::listing::{ListedDocument, Query, cut, id_of};

/// `GET /v2.0/<plural>`.
pub(super) fn list<T: Resource>(api: &NeutronApi<'_>) -> Result<Reply, NeutronFault> {
    let query = query::<T>(api)?;
    let limit = limit(query.limit)?;
    let candidates = T::candidates(api).into_iter();
    let mut found: Vec<ListedDocument> = candidates
        .filter(|item| is_visible(api, item.as_ref()))
        .map(|item| document(api, item.as_ref()))
        .filter(|document| query.matches(document))
        .collect();
    let mut body = Map::new();
    if let Some(limit) = limit {
        let start = match query.marker {
            None => 0,
            Some(marker) => match find::<T>(api, marker) {
                // The ID determines the position of a marker that the filters exclude.
                Ok(_) => found.partition_point(|document| id_of(document) <= marker),
                Err(fault) if T::KNOWS_MARKER => return Err(fault),
                Err(_) => 0,
            },
        };
        cut(&mut found, start, limit);
        let links = links(api, T::PLURAL, &found, limit);
        body.insert(format!("{}_links", T::PLURAL), links);
    }
    let shown = found.into_iter().map(|document| query.choose(document));
    body.insert(T::PLURAL.to_owned(), shown.collect());
    Ok(Reply::json(StatusCode::OK, &body))
}

/// `GET /v2.0/<plural>/{id}`.
pub(super) fn show<T: Resource>(api: &NeutronApi<'_>, id: &str) -> Result<Reply, NeutronFault> {
    // Neutron parses the query as filters, even for one object.
    query::<T>(api)?;
    shown::<T>(api, StatusCode::OK, id)
}

/// The answer that shows a resource.
pub(super) fn shown<T: Resource>(
    api: &NeutronApi<'_>,
    status: StatusCode,
    id: &str,
) -> Result<Reply, NeutronFault> {
    let item = find::<T>(api, id)?;
    let shown = Query::new(api.request).choose(document(api, item.as_ref()));
    Ok(Reply::json(status, &json!({ T::SINGULAR: shown })))
}

/// Whether a resource is visible to the caller.
pub(super) fn is_visible<T: Resource>(api: &NeutronApi<'_>, item: &T) -> bool {
    api.caller.admin || item.project() == api.caller.project_id || item.is_shared(api)
}

/// A resource that is visible to the caller.
pub(super) fn find<T: Resource>(api: &NeutronApi<'_>, id: &str) -> Result<Arc<T>, NeutronFault> {
    match T::all(&api.region.network).get(id) {
        Some(item) if is_visible(api, item.as_ref()) => Ok(Arc::clone(item)),
        _ => Err(not_found::<T>(id)),
    }
}

pub(super) fn not_found<T: Resource>(id: &str) -> NeutronFault {
    NeutronFault::new(StatusCode::NOT_FOUND, T::NOT_FOUND, format!("{} {id} {}", T::TITLE, T::ABSENT))
}

fn document<T: Resource>(api: &NeutronApi<'_>, item: &T) -> ListedDocument {
    match item.document(&api.region.network) {
        Value::Object(fields) => fields,
        _ => ListedDocument::new(),
    }
}

/// The query, with filters that the resource has.
fn query<'a, T: Resource>(api: &NeutronApi<'a>) -> Result<Query<'a>, NeutronFault> {
    let query = Query::new(api.request);
    let unknown: Vec<String> = query
        .filters
        .iter()
        .filter(|(name, _)| !T::FILTERS.contains(name))
        .map(|(name, _)| format!("'{name}'"))
        .collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        return Err(NeutronFault::http_bad_request(format!(
            "[{unknown}] is invalid attribute for filtering"
        )));
    }
    Ok(query)
}

/// The page size, if the listing is paged.
fn limit(requested: Option<&str>) -> Result<Option<usize>, NeutronFault> {
    let requested = match requested {
        None => 0,
        Some(text) => text.trim().parse::<usize>().map_err(|_| {
            let message =
                format!("Bad limit request: Limit must be an integer 0 or greater and not '{text}'.");
            NeutronFault::new(StatusCode::BAD_REQUEST, "BadRequest", message)
        })?,
    };
    Ok(Some(requested).filter(|limit| *limit > 0))
}

/// Links to the other pages. Neutron adds one to the next page whenever a page is full, and always one to the previous
/// page.
fn links(api: &NeutronApi<'_>, plural: &str, page: &[ListedDocument], limit: usize) -> Value {
    let link = |rel: &str, marker: Option<&ListedDocument>, more: &[(&str, &str)]| {
        let params = api.request.params.iter();
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(params.filter(|(name, _)| name != "marker"));
        query.extend_pairs(marker.map(|document| ("marker", id_of(document))));
        query.extend_pairs(more);
        json!({"rel": rel, "href": format!("{}/v2.0/{plural}?{}", api.endpoint, query.finish())})
    };
    let next = (page.len() >= limit).then(|| link("next", page.last(), &[]));
    let previous = link("previous", page.first(), &[("page_reverse", "True")]);
    next.into_iter().chain([previous]).collect()
}
