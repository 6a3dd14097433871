//! Octavia's versions, providers, flavors, availability zones and quotas.

use http::StatusCode;
use serde_json::{Value, json};

use super::{OctaviaApi, OctaviaFault};
use crate::http::Reply;

/// The date of each version, the oldest first.
const VERSIONS: [&str; 31] = [
    "2016-12-11T00:00:00Z",
    "2018-04-20T00:00:00Z",
    "2018-07-31T00:00:00Z",
    "2018-12-18T00:00:00Z",
    "2018-12-19T00:00:00Z",
    "2019-01-21T00:00:00Z",
    "2019-01-25T00:00:00Z",
    "2018-01-25T12:00:00Z",
    "2019-02-12T00:00:00Z",
    "2019-03-04T00:00:00Z",
    "2019-03-05T00:00:00Z",
    "2019-06-24T00:00:00Z",
    "2019-09-11T00:00:00Z",
    "2019-09-13T00:00:00Z",
    "2019-11-10T00:00:00Z",
    "2020-03-10T00:00:00Z",
    "2020-03-15T00:00:00Z",
    "2020-04-29T00:00:00Z",
    "2020-04-29T01:00:00Z",
    "2020-05-12T00:00:00Z",
    "2020-08-02T00:00:00Z",
    "2020-09-03T00:00:00Z",
    "2020-09-04T00:00:00Z",
    "2020-09-07T00:00:00Z",
    "2020-10-15T00:00:00Z",
    "2021-10-02T00:00:00Z",
    "2022-08-29T00:00:00Z",
    "2023-05-05T00:00:00Z",
    "2023-11-08T00:00:00Z",
    "2024-10-15T00:00:00Z",
    "2025-02-26T00:00:00Z",
];

/// `GET /`.
pub(super) fn versions(endpoint: &str, max_minor: u32) -> Reply {
    let versions: Vec<Value> = (0..=max_minor)
        .zip(VERSIONS)
        .map(|(minor, updated)| {
            json!({
                "id": format!("v2.{minor}"),
                "status": if minor == max_minor { "CURRENT" } else { "SUPPORTED" },
                "updated": updated,
                "links": [{"href": format!("{endpoint}/v2"), "rel": "self"}],
            })
        })
        .collect();
    Reply::json(StatusCode::OK, &json!({ "versions": versions }))
}

/// `GET /v2.0/lbaas/providers`.
pub(super) fn providers(api: &OctaviaApi<'_>) -> Reply {
    let settings = api.cloud.settings.read();
    let providers: Vec<Value> = settings
        .load_balancing
        .providers
        .iter()
        .map(|name| {
            let description = match name.as_str() {
                "amphora" => "The Octavia Amphora driver.",
                "octavia" => "Deprecated alias of the Octavia Amphora driver.",
                _ => "Octavia OVN driver.",
            };
            json!({"name": name, "description": description})
        })
        .collect();
    Reply::json(StatusCode::OK, &json!({ "providers": providers }))
}

/// `GET /v2.0/lbaas/flavors/{id}`.
pub(super) fn flavor(api: &OctaviaApi<'_>, id: &str) -> Result<Reply, OctaviaFault> {
    let found = api.region.balancer_flavors.get(id);
    let (name, enabled) = found.ok_or_else(|| OctaviaFault::not_found("Flavor", id))?;
    let flavor =
        json!({"id": id, "name": name, "description": "", "enabled": enabled, "flavor_profile_id": null});
    Ok(Reply::json(StatusCode::OK, &json!({ "flavor": flavor })))
}

/// `GET /v2.0/lbaas/availabilityzones/{name}`.
pub(super) fn zone(api: &OctaviaApi<'_>, name: &str) -> Result<Reply, OctaviaFault> {
    let found = api.region.balancer_zones.get(name);
    let enabled = found.ok_or_else(|| OctaviaFault::not_found("Availability Zone", name))?;
    let zone =
        json!({"name": name, "description": "", "enabled": enabled, "availability_zone_profile_id": null});
    Ok(Reply::json(StatusCode::OK, &json!({ "availability_zone": zone })))
}

/// `GET /v2.0/lbaas/quotas/{project}`.
pub(super) fn quota(api: &OctaviaApi<'_>, project: &str) -> Result<Reply, OctaviaFault> {
    api.authorize(project)?;
    let settings = api.cloud.settings.read();
    let of = |name: &str| {
        let quota = settings.resource_quotas.get(name);
        quota.map_or(json!(-1), |quota| json!(quota))
    };
    let document = json!({"quota": {
        "project_id": project,
        "tenant_id": project,
        "loadbalancer": of("load_balancer"),
        "load_balancer": of("load_balancer"),
        "listener": of("listener"),
        "member": of("member"),
        "pool": of("pool"),
        "healthmonitor": of("health_monitor"),
        "health_monitor": of("health_monitor"),
        "l7policy": -1,
        "l7rule": -1,
    }});
    Ok(Reply::json(StatusCode::OK, &document))
}
