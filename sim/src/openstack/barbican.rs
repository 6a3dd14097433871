//! Barbican v1, as far as load balancers need it: whether a secret or a container of secrets exists.

use http::{Method, StatusCode};
use serde_json::json;

use crate::http::{Reply, Request};
use crate::openstack::region::Region;
use crate::openstack::{OpenStackCloud, ops};
use crate::server::Target;

/// Barbican's error document.
pub(crate) fn error(status: StatusCode, message: &str) -> Reply {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = json!({"code": status.as_u16(), "title": title, "description": message});
    Reply::json(status, &body)
}

/// The operation of a request to Barbican.
pub(crate) fn op(method: &Method, rest: &[&str]) -> &'static str {
    match (method, rest) {
        (&Method::GET, ["v1", "containers", _]) => "secret_container_get",
        (&Method::GET, ["v1", "secrets", _]) => "secret_get",
        _ => ops::UNKNOWN,
    }
}

/// Answers a request to Barbican.
pub(crate) fn handle(cloud: &OpenStackCloud, region: &Region, request: &Request, target: &Target) -> Reply {
    let caller = match cloud.caller(request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    let container = target.op == "secret_container_get";
    let id = target.rest.get(2).map(String::as_str).unwrap_or_default();
    let kind = if container { "container" } else { "secret" };
    let found = region.secrets.get(id).filter(|secret| secret.container == container);
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
