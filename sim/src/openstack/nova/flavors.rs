//! Nova's flavors.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Api, Fault, quoted};
use crate::http::Reply;
use crate::openstack::region::Flavor;

const KNOWN: &[&str] = &[
    "limit",
    "marker",
    "is_public",
    "minRam",
    "minDisk",
    "sort_key",
    "sort_dir",
];

const SORT_KEYS: &[&str] = &[
    "created_at",
    "description",
    "disabled",
    "ephemeral_gb",
    "flavorid",
    "id",
    "is_public",
    "memory_mb",
    "name",
    "root_gb",
    "rxtx_factor",
    "swap",
    "updated_at",
    "vcpu_weight",
    "vcpus",
];

/// `GET /flavors` and `GET /flavors/detail`.
pub(super) fn list(api: &Api<'_>, detail: bool) -> Result<Reply, Fault> {
    api.check_known(KNOWN, 75)?;
    let limit = api.limit()?;
    for key in api.request.all("sort_key") {
        if !SORT_KEYS.contains(&key) {
            return Err(Fault::bad_value(
                "sort_key",
                key,
                &format!("'{key}' is not one of {}", quoted(SORT_KEYS)),
            ));
        }
        if key != "flavorid" {
            return Err(Fault::bad_request(
                "The simulator sorts flavors by flavorid only.",
            ));
        }
    }
    let number = |name: &'static str| -> Result<u32, Fault> {
        let Some(value) = api.request.last(name) else {
            return Ok(0);
        };
        value
            .parse()
            .map_err(|_| Fault::bad_request(format!("Invalid {name} filter [{value}]")))
    };
    let (min_ram, min_disk) = (number("minRam")?, number("minDisk")?);
    let marker = api.request.last("marker").unwrap_or_default();
    if !marker.is_empty() && !api.region.flavors.contains_key(marker) {
        return Err(Fault::bad_request(format!("marker [{marker}] not found")));
    }
    let flavors: Vec<&Flavor> = api
        .region
        .flavors
        .values()
        .map(AsRef::as_ref)
        .filter(|flavor| flavor.id.as_str() > marker && flavor.ram >= min_ram && flavor.disk >= min_disk)
        .take(limit)
        .collect();
    let shown: Vec<Value> = flavors.iter().map(|flavor| render(api, flavor, detail)).collect();
    let collection = if detail { "flavors/detail" } else { "flavors" };
    let last = flavors.last().map(|flavor| flavor.id.as_str());
    let mut body = json!({ "flavors": shown });
    if let (Some(link), Some(fields)) = (
        api.next_link(collection, KNOWN, flavors.len(), last),
        body.as_object_mut(),
    ) {
        fields.insert("flavors_links".to_owned(), link);
    }
    Ok(Reply::json(StatusCode::OK, &body))
}

/// `GET /flavors/{id}`.
pub(super) fn show(api: &Api<'_>, id: &str) -> Result<Reply, Fault> {
    let flavor = api.region.flavors.get(id);
    let flavor = flavor.ok_or_else(|| Fault::not_found(format!("Flavor {id} could not be found.")))?;
    Ok(Reply::json(
        StatusCode::OK,
        &json!({"flavor": render(api, flavor, true)}),
    ))
}

fn render(api: &Api<'_>, flavor: &Flavor, detail: bool) -> Value {
    let links = json!([
        {"rel": "self", "href": api.link(&format!("flavors/{}", flavor.id))},
        {"rel": "bookmark", "href": api.bookmark(&format!("flavors/{}", flavor.id))},
    ]);
    let mut shown = json!({"id": flavor.id, "name": flavor.name, "links": links});
    let Some(fields) = shown.as_object_mut() else {
        return shown;
    };
    let mut add = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    if api.at_least(55) {
        add("description", Value::Null);
    }
    if detail {
        add("ram", json!(flavor.ram));
        add("disk", json!(flavor.disk));
        add("vcpus", json!(flavor.vcpus));
        add("swap", if api.at_least(75) { json!(0) } else { json!("") });
        add("OS-FLV-EXT-DATA:ephemeral", json!(0));
        add("os-flavor-access:is_public", json!(true));
        if !api.at_least(102) {
            add("OS-FLV-DISABLED:disabled", json!(false));
            add("rxtx_factor", json!(1.0));
        }
        if api.at_least(61) {
            add("extra_specs", json!(flavor.extra_specs));
        }
    }
    shown
}
