//! Keystone v3: version documents, tokens, and the catalogue inside them.

mod auth;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::openstack::OpenStackCloud;
use crate::openstack::identity::{DOMAIN_ID, DOMAIN_NAME, Grant, Identity, Token};
use crate::server::Target;

/// An error as Keystone words it.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    message: String,
    /// The `identity` member that errors of authentication plugins carry.
    identity: Option<Value>,
}

impl Fault {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            identity: None,
        }
    }

    /// A failed authentication; Keystone never says what was wrong.
    fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "The request you have made requires authentication.",
        )
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
            reply = reply.with(
                "WWW-Authenticate",
                &format!("Keystone uri=\"{base}/identity/v3\""),
            );
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

/// The operation behind a path below Keystone's endpoint.
pub(crate) fn op(method: &Method, rest: &[String]) -> &'static str {
    let rest: Vec<&str> = rest
        .iter()
        .map(String::as_str)
        .filter(|segment| !segment.is_empty())
        .collect();
    match (rest.as_slice(), method) {
        ([], _) => "version_list",
        (["v3"], _) => "version_get",
        (["v3", "auth", "tokens"], &Method::POST) => "token_create",
        (["v3", "auth", "tokens"], &Method::GET) => "token_get",
        (["v3", "auth", "tokens"], &Method::HEAD) => "token_check",
        (["v3", "auth", "tokens"], &Method::DELETE) => "token_delete",
        (["v3", "auth", "tokens"], _) => "bad_method",
        _ => "unknown",
    }
}

/// Answers a request to Keystone.
pub(crate) fn handle(cloud: &OpenStackCloud, request: &Request, target: &Target) -> Reply {
    let is_get = request.method == Method::GET || request.method == Method::HEAD;
    let result = match target.op {
        "version_list" if is_get => {
            let location = format!("{}{}/identity/v3/", cloud.base, prefix(target));
            let values = json!({"versions": {"values": [version(&location)]}});
            Ok(Reply::json(StatusCode::MULTIPLE_CHOICES, &values).with("Location", &location))
        }
        "version_get" if is_get => {
            let location = format!("{}{}/identity/v3/", cloud.base, prefix(target));
            Ok(Reply::json(
                StatusCode::OK,
                &json!({ "version": version(&location) }),
            ))
        }
        "token_create" => create(cloud, request),
        "token_get" | "token_check" => validate(cloud, request),
        "token_delete" => revoke(cloud, request),
        "unknown" => Ok(page(
            StatusCode::NOT_FOUND,
            "The requested URL was not found on the server. If you entered the URL manually please check your \
             spelling and try again.",
        )),
        // What knows only how to be read answers as the framework does, and the tokens as the library above it.
        "version_list" | "version_get" => {
            Ok(page(StatusCode::METHOD_NOT_ALLOWED, BAD_METHOD).with("Allow", "GET, HEAD, OPTIONS"))
        }
        _ => Ok(
            Reply::json(StatusCode::METHOD_NOT_ALLOWED, &json!({ "message": BAD_METHOD }))
                .with("Allow", "GET, DELETE, HEAD, POST, OPTIONS"),
        ),
    };
    result
        .unwrap_or_else(|fault| fault.reply(&cloud.base))
        .with("Vary", "X-Auth-Token")
}

const BAD_METHOD: &str = "The method is not allowed for the requested URL.";

/// An error of the web framework below Keystone.
fn page(status: StatusCode, message: &str) -> Reply {
    let (code, reason) = (status.as_u16(), status.canonical_reason().unwrap_or("Error"));
    let body = format!(
        "<!doctype html>\n<html lang=en>\n<title>{code} {reason}</title>\n<h1>{reason}</h1>\n<p>{message}</p>\n"
    );
    Reply::new(status, "text/html; charset=utf-8", body)
}

fn prefix(target: &Target) -> String {
    if target.interface == "public" {
        String::new()
    } else {
        format!("/{}", target.interface)
    }
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

fn create(cloud: &OpenStackCloud, request: &Request) -> Result<Reply, Fault> {
    let content_type = request.header("content-type").unwrap_or_default();
    let is_json = content_type.split(';').next().unwrap_or_default().trim();
    if !request.body.is_empty()
        && !is_json.is_empty()
        && is_json != "application/json"
        && !is_json.ends_with("+json")
    {
        return Err(Fault::expecting("application/json", "Content-Type header"));
    }
    let body: Value = if request.body.is_empty() {
        json!({})
    } else {
        serde_json::from_slice(&request.body).map_err(|_| Fault::expecting("valid JSON", "request body"))?
    };
    if !body.is_object() {
        return Err(Fault::expecting("valid JSON", "request body"));
    }
    let now = cloud.clock.now();
    let catalogue = catalogue(cloud, request);
    let mut identity = cloud.identity.write();
    let token = auth::authenticate(&identity, body.get("auth"), now, &cloud.ids)?;
    let id = identity.issue(token.clone(), &cloud.ids);
    let document = render(&identity, &token, catalogue);
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
    identity
        .token(id, cloud.clock.now())
        .map(|token| (id.to_owned(), token.clone()))
}

/// The subject token of a request, after checking that the caller may ask about it.
fn subject(cloud: &OpenStackCloud, identity: &Identity, request: &Request) -> Result<(String, Token), Fault> {
    let action = match request.method {
        Method::HEAD => "identity:check_token",
        Method::DELETE => "identity:revoke_token",
        _ => "identity:validate_token",
    };
    let (_, caller) =
        header_token(cloud, identity, request, "x-auth-token").ok_or_else(Fault::unauthorized)?;
    // Without a subject there is nobody who could be the caller.
    let id = request
        .header("x-subject-token")
        .ok_or_else(|| Fault::forbidden(action))?;
    if !identity.tokens.contains_key(id) {
        return Err(Fault::not_found("Could not recognize Fernet token"));
    }
    let subject = header_token(cloud, identity, request, "x-subject-token");
    let (id, token) = subject.ok_or_else(|| Fault::not_found("Failed to validate token"))?;
    let admin = identity.users.get(&caller.user_id).is_some_and(|user| user.admin);
    if token.user_id != caller.user_id && !admin {
        return Err(Fault::forbidden(action));
    }
    Ok((id, token))
}

fn validate(cloud: &OpenStackCloud, request: &Request) -> Result<Reply, Fault> {
    let catalogue = catalogue(cloud, request);
    let identity = cloud.identity.read();
    let (id, token) = subject(cloud, &identity, request)?;
    let document = render(&identity, &token, catalogue);
    Ok(Reply::json(StatusCode::OK, &document).with("X-Subject-Token", &id))
}

fn revoke(cloud: &OpenStackCloud, request: &Request) -> Result<Reply, Fault> {
    let mut identity = cloud.identity.write();
    let (id, _) = subject(cloud, &identity, request)?;
    identity.revoke(|known, _| known == id);
    Ok(Reply::empty(StatusCode::NO_CONTENT))
}

fn render(identity: &Identity, token: &Token, catalogue: Option<Value>) -> Value {
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
        Grant::Domain => {
            fields.insert("domain".to_owned(), domain.clone());
            fields.insert("roles".to_owned(), roles);
        }
        Grant::Project(id) => {
            let name = identity.projects.get(id);
            fields.insert(
                "project".to_owned(),
                json!({"domain": domain, "id": id, "name": name}),
            );
            fields.insert("is_domain".to_owned(), json!(false));
            fields.insert("roles".to_owned(), roles);
        }
    }
    if let Some((id, trust)) = token
        .trust
        .as_ref()
        .and_then(|id| identity.trusts.get_key_value(id))
    {
        let trust = json!({
            "id": id,
            "trustor_user": {"id": trust.trustor},
            "trustee_user": {"id": trust.trustee},
            "impersonation": true,
        });
        fields.insert("OS-TRUST:trust".to_owned(), trust);
        fields.remove("is_domain");
    }
    if let Some(credential) = token
        .app_credential
        .as_ref()
        .and_then(|id| identity.app_credentials.get(id))
    {
        let credential = json!({"id": credential.id, "name": credential.name, "restricted": true});
        fields.insert("application_credential".to_owned(), credential);
    }
    if let Some(catalogue) = catalogue.filter(|_| token.grant != Grant::Unscoped) {
        fields.insert("catalog".to_owned(), catalogue);
    }
    json!({ "token": document })
}

/// The service catalogue, unless the request declines it. Every region and interface has its own URL, so that the
/// call log shows which was used. Made before the identity is locked: regions are locked first.
fn catalogue(cloud: &OpenStackCloud, request: &Request) -> Option<Value> {
    if request.last("nocatalog").is_some() {
        return None;
    }
    let regions = cloud.regions.read();
    let endpoints = |service: &str, url: &dyn Fn(&str, &str) -> String| {
        let mut endpoints = Vec::new();
        for (number, region) in regions.iter().enumerate() {
            for interface in ["admin", "internal", "public"] {
                // Stable ids: a catalogue that is read twice is the same.
                let id = format!(
                    "{number:08x}{:0>24}",
                    format!("{service}{interface}").replace(|c: char| !c.is_ascii_hexdigit(), "0")
                );
                endpoints.push(json!({
                    "id": id,
                    "interface": interface,
                    "region_id": region.name,
                    "url": url(&region.name, interface),
                    "region": region.name,
                }));
            }
        }
        endpoints
    };
    let base = &cloud.base;
    let infix = |interface: &str| {
        if interface == "public" {
            String::new()
        } else {
            format!("/{interface}")
        }
    };
    let encoded =
        |region: &str| -> String { url::form_urlencoded::byte_serialize(region.as_bytes()).collect() };
    let identity = |_: &str, interface: &str| format!("{base}{}/identity", infix(interface));
    let compute = |region: &str, interface: &str| {
        format!("{base}/{}{}/compute/v2.1", encoded(region), infix(interface))
    };
    let network =
        |region: &str, interface: &str| format!("{base}/{}{}/network", encoded(region), infix(interface));
    let balancer = |region: &str, interface: &str| {
        format!("{base}/{}{}/load-balancer", encoded(region), infix(interface))
    };
    let keys =
        |region: &str, interface: &str| format!("{base}/{}{}/key-manager", encoded(region), infix(interface));
    let settings = cloud.settings.read();
    let mut optional = Vec::new();
    if settings.load_balancing.enabled {
        let endpoints = endpoints("load-balancer", &balancer);
        optional.push(json!({"id": format!("{:0>32}", "0c7"), "type": "load-balancer", "name": "octavia", "endpoints": endpoints}));
    }
    if settings.key_manager {
        let endpoints = endpoints("key-manager", &keys);
        optional.push(json!({"id": format!("{:0>32}", "ba4"), "type": "key-manager", "name": "barbican", "endpoints": endpoints}));
    }
    let mut services = json!([
        {"id": format!("{:0>32}", "1de"), "type": "identity", "name": "keystone", "endpoints": endpoints("identity", &identity)},
        {"id": format!("{:0>32}", "c0e"), "type": "compute", "name": "nova", "endpoints": endpoints("compute", &compute)},
        {"id": format!("{:0>32}", "4e7"), "type": "network", "name": "neutron", "endpoints": endpoints("network", &network)},
    ]);
    if let Some(services) = services.as_array_mut() {
        services.append(&mut optional);
    }
    Some(services)
}
