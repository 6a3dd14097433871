//! The control API over HTTP and JSON, for the demo and for tests in other languages. The crate's documentation has
//! the table of paths.

use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::control::Control;
use super::settings::Settings;
use super::spec::{
    AppCredentialSpec, FlavorSpec, NetworkSpec, PortPatch, PortSpec, RouterSpec, SecretSpec, ServerPatch,
    ServerSpec, SubnetSpec, UserSpec,
};
use crate::clock::millis;
use crate::control::{Answer, body, done, id, ok};
use crate::error::{Error, Result};
use crate::http::{Reply, Request};

/// Answers a request below `/_sim`.
pub(super) fn handle(control: &Control, request: &Request, method: &str, path: &[&str]) -> Answer {
    match path.first().copied() {
        None | Some("cloud.conf" | "settings") => behavior(control, request, method, path),
        Some("regions" | "projects" | "users" | "app_credentials" | "trusts" | "tokens") => {
            identity(control, request, method, path)
        }
        Some("load_balancers" | "secrets") => balancing(control, request, method, path),
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
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct SubPortRequest {
    segmentation_id: u16,
    #[serde(flatten)]
    spec: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FloatingRequest {
    address: IpAddr,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CellRequest {
    up: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PasswordRequest {
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustRequest {
    trustor: String,
    trustee: String,
    project: String,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct ObjectPatch {
    provisioning_status: Option<String>,
    operating_status: Option<String>,
    attributes: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailuresRequest {
    count: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedChoice {
    name: String,
    #[serde(default = "yes")]
    enabled: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRequest {
    #[serde(with = "millis", rename = "lifetime_ms")]
    lifetime: Duration,
}

/// Reads a specification out of what is left of a body. Unknown members are errors there, too.
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
        ("PATCH", ["servers", server]) => control
            .update_server(server, &body::<ServerPatch>(request)?)
            .and_then(done),
        ("DELETE", ["servers", server]) => control.delete_server(server).and_then(done),
        ("POST", ["servers", server, "ports"]) => {
            id(&control.attach_port(server, &body::<PortSpec>(request)?)?)
        }
        ("GET", ["servers", server, "ports"]) => ok(&json!({"ids": control.server_ports(server)})),
        ("PATCH", ["ports", port]) => control
            .update_port(port, &body::<PortPatch>(request)?)
            .and_then(done),
        ("DELETE", ["ports", port]) => control.delete_port(port).and_then(done),
        ("POST", ["ports", port, "floating"]) => control
            .add_floating(port, body::<FloatingRequest>(request)?.address)
            .and_then(done),
        ("POST", ["ports", port, "subports"]) => {
            let sub_port: SubPortRequest = body(request)?;
            id(&control.add_sub_port(port, sub_port.segmentation_id, &spec::<PortSpec>(sub_port.spec)?)?)
        }
        ("DELETE", ["floating", address]) => {
            let address = address
                .parse()
                .map_err(|_| Error::unknown("floating address", *address))?;
            control.remove_floating(address).and_then(done)
        }
        ("POST", ["networks"]) => id(&control.create_network(&body::<NetworkSpec>(request)?)?),
        ("POST", ["networks", network, "subnets"]) => {
            id(&control.create_subnet(network, &body::<SubnetSpec>(request)?)?)
        }
        ("POST", ["routers"]) => id(&control.create_router(&body::<RouterSpec>(request)?)?),
        ("POST", ["flavors"]) => id(&control.create_flavor(&body::<FlavorSpec>(request)?)?),
        ("DELETE", ["flavors", flavor]) => control.delete_flavor(flavor).and_then(done),
        ("PUT", ["cells", cell]) => {
            control.set_cell_up(cell, body::<CellRequest>(request)?.up);
            done(())
        }
        _ => Ok(None),
    }
}

/// Load balancers and what belongs to them.
fn balancing(control: &Control, request: &Request, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", ["load_balancers"]) => ok(&json!({"load_balancers": control.load_balancers()})),
        ("POST", ["load_balancers", "failures"]) => {
            control.fail_next_changes(body::<FailuresRequest>(request)?.count);
            done(())
        }
        ("POST", ["load_balancers", "flavors"]) => {
            let flavor: NamedChoice = body(request)?;
            id(&control.create_balancer_flavor(&flavor.name, flavor.enabled)?)
        }
        ("POST", ["load_balancers", "zones"]) => {
            let zone: NamedChoice = body(request)?;
            control
                .create_balancer_zone(&zone.name, zone.enabled)
                .and_then(done)
        }
        ("PATCH", ["load_balancers", object]) => {
            let patch: ObjectPatch = body(request)?;
            control.patch_object(object, &patch.attributes)?;
            if let Some(status) = patch.provisioning_status {
                control.set_provisioning_status(object, &status)?;
            }
            if let Some(status) = patch.operating_status {
                control.set_operating_status(object, &status)?;
            }
            done(())
        }
        ("DELETE", ["load_balancers", object]) => control.delete_object(object).and_then(done),
        ("POST", ["secrets"]) => {
            let reference = control.create_secret(&body::<SecretSpec>(request)?)?;
            Ok(Some(Reply::json(
                StatusCode::CREATED,
                &json!({ "ref": reference }),
            )))
        }
        _ => Ok(None),
    }
}

fn identity(control: &Control, request: &Request, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("POST", ["regions"]) => control
            .create_region(&body::<Named>(request)?.name)
            .and_then(done),
        ("POST", ["projects"]) => id(&control.create_project(&body::<Named>(request)?.name)),
        ("POST", ["users"]) => id(&control.create_user(&body::<UserSpec>(request)?)?),
        ("PUT", ["users", user, "password"]) => control
            .set_password(Some(user), &body::<PasswordRequest>(request)?.password)
            .and_then(done),
        ("POST", ["app_credentials"]) => {
            let credential = control.create_app_credential(&body::<AppCredentialSpec>(request)?)?;
            Ok(Some(Reply::json(StatusCode::CREATED, &credential)))
        }
        ("DELETE", ["app_credentials", wanted]) => control.delete_app_credential(wanted).and_then(done),
        ("POST", ["trusts"]) => {
            let trust: TrustRequest = body(request)?;
            id(&control.create_trust(&trust.trustor, &trust.trustee, &trust.project)?)
        }
        ("DELETE", ["tokens"]) => {
            control.revoke_tokens();
            done(())
        }
        ("PATCH", ["tokens"]) => {
            control.set_token_lifetime(body::<TokenRequest>(request)?.lifetime);
            done(())
        }
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
        ("GET", ["cloud.conf"]) => Ok(Some(Reply::new(
            StatusCode::OK,
            "text/plain",
            control.cloud_conf(),
        ))),
        ("GET", ["settings"]) => ok(&control.settings()),
        ("PATCH", ["settings"]) => {
            let settings = merge(&control.settings(), &body(request)?)?;
            control.configure(|known| *known = settings.clone());
            ok(&settings)
        }
        _ => Ok(None),
    }
}

/// Settings with the members of a JSON object put over them, and over those of the objects inside.
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
