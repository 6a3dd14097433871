//! Barbican v1, as far as load balancers need it: whether a secret or a container of secrets is there.

use http::{Method, StatusCode};
use serde_json::json;

use crate::http::{Reply, Request};
use crate::openstack::OpenStackCloud;
use crate::openstack::region::Region;
use crate::server::Target;

/// Barbican's error document.
pub(crate) fn error(status: StatusCode, message: &str) -> Reply {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = json!({"code": status.as_u16(), "title": title, "description": message});
    Reply::json(status, &body)
}

/// The operation behind a path below Barbican's endpoint.
pub(crate) fn op(method: &Method, rest: &[String]) -> &'static str {
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    match (method, rest.as_slice()) {
        (&Method::GET, [] | [""]) => "version_list",
        (&Method::GET, ["v1", "containers", _]) => "secret_container_get",
        (&Method::GET, ["v1", "secrets", _]) => "secret_get",
        _ => "unknown",
    }
}

/// Answers a request to Barbican.
pub(crate) fn handle(cloud: &OpenStackCloud, region: &Region, request: &Request, target: &Target) -> Reply {
    if target.op == "version_list" {
        let link = json!([{"rel": "self", "href": format!("{}/v1/", cloud.endpoint(target))}]);
        let versions = json!({"versions": {"values": [{"id": "v1", "status": "stable", "links": link}]}});
        return Reply::json(StatusCode::MULTIPLE_CHOICES, &versions);
    }
    let caller = match cloud.caller(request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    let container = match target.op {
        "secret_container_get" => true,
        "secret_get" => false,
        _ => {
            return error(
                StatusCode::NOT_FOUND,
                "Not Found. Sorry but your path does not exist.",
            );
        }
    };
    let id = target.rest.get(2).map(String::as_str).unwrap_or_default();
    let kind = if container { "container" } else { "secret" };
    let found = region
        .secrets
        .get(id)
        .filter(|secret| secret.container == container);
    let Some(secret) = found else {
        let message = if container {
            "Not Found. Sorry but your container is in another castle."
        } else {
            "Not Found. Sorry but your secret is in another castle."
        };
        return error(StatusCode::NOT_FOUND, message);
    };
    if !caller.admin && secret.project_id != caller.project_id {
        let title = if container { "Container" } else { "Secret" };
        return error(
            StatusCode::FORBIDDEN,
            &format!("{title} retrieval attempt not allowed - please review your user/project privileges"),
        );
    }
    let endpoint = cloud.endpoint(target);
    let created = secret.created.strftime("%Y-%m-%dT%H:%M:%S").to_string();
    let mut body = json!({
        "name": secret.name,
        "status": "ACTIVE",
        "created": created,
        "updated": created,
        "creator_id": null,
        format!("{kind}_ref"): format!("{endpoint}/v1/{kind}s/{id}"),
    });
    let more = if container {
        json!({"type": "certificate", "secret_refs": [], "consumers": []})
    } else {
        json!({
            "secret_type": "opaque",
            "algorithm": null,
            "bit_length": null,
            "mode": null,
            "expiration": null,
            "content_types": {"default": "application/octet-stream"},
        })
    };
    if let (Some(fields), Some(more)) = (body.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    Reply::json(StatusCode::OK, &body)
}
