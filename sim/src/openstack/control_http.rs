//! The control API over HTTP and JSON, for the demo and for tests in other languages. The crate's documentation has
//! the table of paths.

use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::control::Control;
use super::settings::Settings;
use super::spec::{ServerPatch, ServerSpec};
use crate::control::{Answer, body, done, ok};
use crate::error::{Error, Result};
use crate::http::{Reply, Request};

/// Answers a request below `/_sim`.
pub(super) fn handle(control: &Control, request: &Request, method: &str, path: &[&str]) -> Answer {
    match path.first().copied() {
        None | Some("cloud.conf" | "settings") => behavior(control, request, method, path),
        Some("load_balancers") => balancing(control, request, method, path),
        Some(_) => objects(control, request, method, path),
    }
}

#[derive(Deserialize)]
struct Bulk {
    count: Option<usize>,
    #[serde(flatten)]
    spec: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct ObjectPatch {
    provisioning_status: Option<String>,
    attributes: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailuresRequest {
    count: u32,
}

/// Parses a specification from the other members of a body. Unknown members are errors, too.
fn spec<T: DeserializeOwned>(rest: serde_json::Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(rest)).map_err(|error| Error::Invalid(format!("body: {error}")))
}

fn objects(control: &Control, request: &Request, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("POST", ["servers"]) => {
            let bulk: Bulk = body(request)?;
            let spec: ServerSpec = spec(bulk.spec)?;
            let ids = control.create_servers(bulk.count.unwrap_or(1), &spec)?;
            Ok(Some(Reply::json(StatusCode::CREATED, &json!({ "ids": ids }))))
        }
        ("PATCH", ["servers", server]) => {
            control.update_server(server, &body::<ServerPatch>(request)?).and_then(done)
        }
        ("DELETE", ["servers", server]) => control.delete_server(server).and_then(done),
        _ => Ok(None),
    }
}

/// Load balancers and related objects.
fn balancing(control: &Control, request: &Request, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", ["load_balancers"]) => ok(&json!({"load_balancers": control.load_balancers()})),
        ("POST", ["load_balancers", "failures"]) => {
            control.fail_next_changes(body::<FailuresRequest>(request)?.count);
            done(())
        }
        ("PATCH", ["load_balancers", object]) => {
            let patch: ObjectPatch = body(request)?;
            control.patch_object(object, &patch.attributes)?;
            if let Some(status) = patch.provisioning_status {
                control.set_provisioning_status(object, &status)?;
            }
            done(())
        }
        ("DELETE", ["load_balancers", object]) => control.delete_object(object).and_then(done),
        _ => Ok(None),
    }
}

fn behavior(control: &Control, request: &Request, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", []) => ok(&json!({
            "auth_url": control.auth_url(),
            "region": control.region(),
            "project_id": control.project_id(),
            "servers": control.server_count(),
        })),
        ("GET", ["cloud.conf"]) => Ok(Some(Reply::new(StatusCode::OK, "text/plain", control.cloud_conf()))),
        ("GET", ["settings"]) => ok(&control.settings()),
        ("PATCH", ["settings"]) => {
            let settings = merge(&control.settings(), &body(request)?)?;
            control.configure(|known| *known = settings.clone());
            ok(&settings)
        }
        _ => Ok(None),
    }
}

/// Merges a JSON object into the settings, recursively.
fn merge(settings: &Settings, changes: &serde_json::Map<String, Value>) -> Result<Settings> {
    let mut merged = serde_json::to_value(settings).map_err(|error| Error::Invalid(error.to_string()))?;
    if let Some(fields) = merged.as_object_mut() {
        for (name, value) in changes {
            match (fields.get_mut(name), value) {
                (Some(Value::Object(inner)), Value::Object(changes)) => inner.extend(changes.clone()),
                _ => {
                    fields.insert(name.clone(), value.clone());
                }
            }
        }
    }
    serde_json::from_value(merged).map_err(|error| Error::Invalid(format!("body: {error}")))
}
