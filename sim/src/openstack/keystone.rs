//! Keystone v3: version documents, tokens, and the catalog inside them.

mod auth;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::openstack::identity::{DOMAIN_ID, DOMAIN_NAME, Grant, Identity, Token};
use crate::openstack::{OpenStackCloud, infix, ops};
use crate::server::Target;

/// An error in Keystone's words.
#[derive(Debug)]
pub(crate) struct KeystoneFault {
    status: StatusCode,
    message: String,
    /// The `identity` member that errors of authentication plugins carry.
    identity: Option<Value>,
}

impl KeystoneFault {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            identity: None,
        }
    }

    /// A failed authentication; Keystone never reports the reason.
    fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "The request you have made requires authentication.")
    }

    /// A missing part of the request.
    fn expecting(attribute: &str, target: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            format!(
                "Expecting to find {attribute} in {target}. The server could not comply with the request since it \
                 is either malformed or otherwise incorrect. The client is assumed to be in error."
            ),
        )
    }

    fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    fn forbidden(action: &str) -> Self {
        let message = format!("You are not authorized to perform the requested action: {action}.");
        Self::new(StatusCode::FORBIDDEN, message)
    }

    fn plugin(mut self, identity: Value) -> Self {
        self.identity = Some(identity);
        self
    }

    fn reply(self, base: &str) -> Reply {
        let mut reply = error(self.status, &self.message, self.identity);
        if self.status == StatusCode::UNAUTHORIZED {
            reply = reply.with("WWW-Authenticate", &format!("Keystone uri=\"{base}/identity/v3\""));
        }
        reply
    }
}

/// Keystone's error document.
pub(crate) fn error(status: StatusCode, message: &str, identity: Option<Value>) -> Reply {
    let title = status.canonical_reason().unwrap_or("Error");
    let mut error = json!({"code": status.as_u16(), "message": message, "title": title});
    if let (Some(identity), Some(error)) = (identity, error.as_object_mut()) {
        error.insert("identity".to_owned(), identity);
    }
    Reply::json(status, &json!({ "error": error }))
}

/// The operation of a request to Keystone.
pub(crate) fn op(method: &Method, rest: &[&str]) -> &'static str {
    let rest: Vec<&str> = rest.iter().copied().filter(|segment| !segment.is_empty()).collect();
    match (method.as_str(), rest.as_slice()) {
        ("GET", []) => "version_list",
        ("GET", ["v3"]) => "version_get",
        ("POST", ["v3", "auth", "tokens"]) => "token_create",
        ("GET", ["v3", "auth", "tokens"]) => "token_get",
        ("DELETE", ["v3", "auth", "tokens"]) => "token_delete",
        _ => ops::UNKNOWN,
    }
}

/// Answers a request to Keystone.
pub(crate) fn handle(cloud: &OpenStackCloud, request: &Request, target: &Target) -> Reply {
    let location = format!("{}{}/identity/v3/", cloud.base, infix(target.interface));
    let result = match target.op {
        "version_list" => {
            let values = json!({"versions": {"values": [version(&location)]}});
            Ok(Reply::json(StatusCode::MULTIPLE_CHOICES, &values).with("Location", &location))
        }
        "version_get" => {
            let document = json!({ "version": version(&location) });
            Ok(Reply::json(StatusCode::OK, &document))
        }
        "token_create" => create(cloud, request),
        "token_get" => validate(cloud, request),
        _ => revoke(cloud, request),
    };
    result.unwrap_or_else(|fault| fault.reply(&cloud.base)).with("Vary", "X-Auth-Token")
}

fn version(location: &str) -> Value {
    json!({
        "id": "v3.14",
        "status": "stable",
        "updated": "2020-04-07T00:00:00Z",
        "links": [{"rel": "self", "href": location}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    })
}

fn create(cloud: &OpenStackCloud, request: &Request) -> Result<Reply, KeystoneFault> {
    let body: Value = serde_json::from_slice(&request.body)
        .map_err(|_| KeystoneFault::expecting("valid JSON", "request body"))?;
    let now = cloud.clock.now();
    let catalog = catalog(cloud, request);
    let mut identity = cloud.identity.write();
    let token = auth::authenticate(&identity, body.get("auth"), now, &cloud.ids)?;
    let id = identity.issue(token.clone(), &cloud.ids);
    let document = render(&identity, &token, catalog);
    Ok(Reply::json(StatusCode::CREATED, &document).with("X-Subject-Token", &id))
}

/// The token in a header, if it is valid.
fn header_token(
    cloud: &OpenStackCloud,
    identity: &Identity,
    request: &Request,
    header: &str,
) -> Option<(String, Token)> {
    let id = request.header(header)?;
    identity.token(id, cloud.clock.now()).map(|token| (id.to_owned(), token.clone()))
}

/// The subject token of a request, after a check of the caller's permission.
fn subject(
    cloud: &OpenStackCloud,
    identity: &Identity,
    request: &Request,
) -> Result<(String, Token), KeystoneFault> {
    let action = match request.method {
        Method::DELETE => "identity:revoke_token",
        _ => "identity:validate_token",
    };
    let (_, caller) =
        header_token(cloud, identity, request, "x-auth-token").ok_or_else(KeystoneFault::unauthorized)?;
    // Without a subject, no caller is checked.
    let id = request.header("x-subject-token").ok_or_else(|| KeystoneFault::forbidden(action))?;
    if !identity.tokens.contains_key(id) {
        return Err(KeystoneFault::not_found("Could not recognize Fernet token"));
    }
    let subject = header_token(cloud, identity, request, "x-subject-token");
    let (id, token) = subject.ok_or_else(|| KeystoneFault::not_found("Failed to validate token"))?;
    let admin = identity.users.get(&caller.user_id).is_some_and(|user| user.admin);
    if token.user_id != caller.user_id && !admin {
        return Err(KeystoneFault::forbidden(action));
    }
    Ok((id, token))
}

fn validate(cloud: &OpenStackCloud, request: &Request) -> Result<Reply, KeystoneFault> {
    let catalog = catalog(cloud, request);
    let identity = cloud.identity.read();
    let (id, token) = subject(cloud, &identity, request)?;
    let document = render(&identity, &token, catalog);
    Ok(Reply::json(StatusCode::OK, &document).with("X-Subject-Token", &id))
}

fn revoke(cloud: &OpenStackCloud, request: &Request) -> Result<Reply, KeystoneFault> {
    let mut identity = cloud.identity.write();
    let (id, _) = subject(cloud, &identity, request)?;
    identity.revoke(|known, _| known == id);
    Ok(Reply::empty(StatusCode::NO_CONTENT))
}

fn render(identity: &Identity, token: &Token, catalog: Option<Value>) -> Value {
    let domain = json!({"id": DOMAIN_ID, "name": DOMAIN_NAME});
    let user = |id: &str| {
        let name = identity.users.get(id).map(|user| user.name.as_str());
        json!({"domain": domain, "id": id, "name": name, "password_expires_at": null})
    };
    let time = |at: jiff::Timestamp| at.strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
    let mut document = json!({
        "methods": token.methods,
        "user": user(&token.user_id),
        "audit_ids": token.audit_ids,
        "expires_at": time(token.expires),
        "issued_at": time(token.issued),
    });
    let Some(fields) = document.as_object_mut() else {
        return document;
    };
    let admin = identity.users.get(&token.user_id).is_some_and(|user| user.admin);
    let role = |name: &str| {
        let id: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        json!({"id": format!("{id:0>32}"), "name": name})
    };
    let roles = if admin {
        json!([role("admin"), role("member"), role("reader")])
    } else {
        json!([role("member"), role("reader")])
    };
    match &token.grant {
        Grant::Unscoped => {}
        Grant::Project(id) => {
            let name = identity.projects.get(id);
            fields.insert("project".to_owned(), json!({"domain": domain, "id": id, "name": name}));
            fields.insert("is_domain".to_owned(), json!(false));
            fields.insert("roles".to_owned(), roles);
        }
    }
    if let Some((id, trust)) = token.trust.as_ref().and_then(|id| identity.trusts.get_key_value(id)) {
        let trust = json!({
            "id": id,
            "trustor_user": {"id": trust.trustor},
            "trustee_user": {"id": trust.trustee},
            "impersonation": true,
        });
        fields.insert("OS-TRUST:trust".to_owned(), trust);
        fields.remove("is_domain");
    }
    if let Some(credential) = token.app_credential.as_ref().and_then(|id| identity.app_credentials.get(id)) {
        let credential = json!({"id": credential.id, "name": credential.name, "restricted": true});
        fields.insert("application_credential".to_owned(), credential);
    }
    if let Some(catalog) = catalog
        && token.grant != Grant::Unscoped
    {
        fields.insert("catalog".to_owned(), catalog);
    }
    json!({ "token": document })
}

/// The service catalog, unless the request declines it. Every region and interface has its own URL, so that the call
/// log shows the endpoint. It is built before the identity is locked, since regions are locked first.
fn catalog(cloud: &OpenStackCloud, request: &Request) -> Option<Value> {
    if request.last("nocatalog").is_some() {
        return None;
    }
    let regions = cloud.regions.read();
    let settings = cloud.settings.read();
    let services = [
        ("1de", "identity", "keystone", true),
        ("c0e", "compute", "nova", true),
        ("4e7", "network", "neutron", true),
        ("0c7", "load-balancer", "octavia", settings.load_balancing.enabled),
        ("ba4", "key-manager", "barbican", settings.key_manager),
    ];
    let enabled = services.into_iter().filter(|(.., is_enabled)| *is_enabled);
    let catalog = enabled.map(|(id, kind, name, _)| {
        let mut endpoints = Vec::new();
        for (number, region) in regions.iter().enumerate() {
            for interface in ["admin", "internal", "public"] {
                // IDs are stable, so that each read returns the same catalog.
                let unique = format!("{kind}{interface}").replace(|c: char| !c.is_ascii_hexdigit(), "0");
                let url = match kind {
                    "identity" => format!("{}{}/identity", cloud.base, infix(interface)),
                    "compute" => format!("{}/v2.1", cloud.url(&region.name, interface, kind)),
                    _ => cloud.url(&region.name, interface, kind),
                };
                endpoints.push(json!({
                    "id": format!("{number:08x}{unique:0>24}"),
                    "interface": interface,
                    "region_id": region.name,
                    "url": url,
                    "region": region.name,
                }));
            }
        }
        json!({"id": format!("{id:0>32}"), "type": kind, "name": name, "endpoints": endpoints})
    });
    Some(catalog.collect())
}
