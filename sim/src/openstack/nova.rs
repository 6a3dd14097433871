//! Nova 2.1 with and without its microversion 2.47: version document, servers, flavors.

mod view;

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::openstack::identity::Caller;
use crate::openstack::ids::is_uuid_like;
use crate::openstack::region::{AgeKey, Flavor, Region, Server};
use crate::openstack::{OpenStackCloud, ops};
use crate::server::Target;
use view::ServerView;

/// An error in Nova's words.
#[derive(Debug)]
pub(crate) struct NovaFault {
    status: StatusCode,
    message: String,
}

impl NovaFault {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// An error that Nova did not expect; clients only see its class.
    fn unexpected(class: &str) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("Unexpected API Error. Please contact the administrator\n<class '{class}'>"),
        )
    }
}

/// Nova's error document, named after the status.
pub(crate) fn error(status: StatusCode, message: &str) -> Reply {
    let name = match status.as_u16() {
        400 => "badRequest",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "itemNotFound",
        409 => "conflictingRequest",
        413 | 429 => "overLimit",
        501 => "notImplemented",
        503 => "serviceUnavailable",
        _ => "computeFault",
    };
    let body = Value::Object(
        [(name.to_owned(), json!({"code": status.as_u16(), "message": message}))]
            .into_iter()
            .collect(),
    );
    let mut reply = Reply::json(status, &body);
    reply.headers.insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json; charset=UTF-8"),
    );
    reply
}

/// A request below `/v2.1` with all inputs of its answer.
struct NovaApi<'a> {
    cloud: &'a OpenStackCloud,
    region: &'a Region,
    request: &'a Request,
    caller: &'a Caller,
    /// Whether the microversion is 2.47, not 2.1.
    newer: bool,
    /// URL of the requested endpoint, without the version.
    endpoint: String,
}

impl NovaApi<'_> {
    /// The URL of an object below the versioned endpoint.
    fn link(&self, path: &str) -> String {
        format!("{}/v2.1/{path}", self.endpoint)
    }

    /// The URL of an object without a version.
    fn bookmark(&self, path: &str) -> String {
        format!("{}/{path}", self.endpoint)
    }

    fn is_down(&self, server: &Server) -> bool {
        self.region.cells_down.contains(&server.cell)
    }

    /// `GET /servers/{id}`: a server that is visible to the caller.
    fn server(&self, id: &str) -> Result<Reply, NovaFault> {
        let server = match self.region.servers.get(&id.to_ascii_lowercase()) {
            Some(server)
                if is_uuid_like(id)
                    && server.deleted.is_none()
                    && (server.project_id == self.caller.project_id || self.caller.admin) =>
            {
                server
            }
            _ => return Err(NovaFault::not_found(format!("Instance {id} could not be found."))),
        };
        if self.is_down(server) {
            return Err(NovaFault::unexpected("nova.exception.NovaException"));
        }
        let view = ServerView { api: self, server };
        Ok(Reply::json(StatusCode::OK, &json!({ "server": view })))
    }

    /// `GET /servers/detail`: a page of the project's servers, the newest first.
    fn servers(&self) -> Result<Reply, NovaFault> {
        let query = |name| self.request.last(name).filter(|value| !value.is_empty());
        let max = self.cloud.settings.read().max_limit;
        let limit = match query("limit").map(str::parse::<usize>) {
            None => max,
            Some(Ok(limit)) => limit.min(max),
            Some(Err(_)) => return Err(NovaFault::bad_request("Invalid input for query parameters limit.")),
        };
        let after = match query("marker") {
            None => None,
            Some(marker) => Some(self.marker(marker)?),
        };
        let filter = query("name").and_then(NameFilter::parse);
        let (whole, prefix) = match &filter {
            None => (None, ""),
            Some(NameFilter::Whole(name)) => (Some(name.as_str()), ""),
            Some(NameFilter::Prefix(prefix)) => (None, prefix.as_str()),
        };
        let project = &self.caller.project_id;
        let servers = &self.region.servers;
        let page: Vec<ServerView<'_>> = servers
            .newest_first(project, whole, after.as_ref())
            .filter(|server| server.deleted.is_none() && !self.is_down(server))
            .filter(|server| server.project_id == *project)
            .filter(|server| server.name.to_lowercase().starts_with(prefix))
            .take(limit)
            .map(|server| ServerView { api: self, server })
            .collect();
        let mut body = json!({ "servers": page });
        // Nova adds a link whenever the page is full, even if it is the last one.
        if let (Some(last), Some(fields)) = (page.last(), body.as_object_mut())
            && page.len() == limit
        {
            fields.insert("servers_links".to_owned(), self.next_link(&last.server.id));
        }
        Ok(Reply::json(StatusCode::OK, &body))
    }

    /// The link to the page after a server: the parameters in order, and the new marker last.
    fn next_link(&self, last: &str) -> Value {
        let params = self.request.params.iter();
        let mut params: BTreeMap<&str, &str> =
            params.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let marker = params.insert("marker", last).is_none();
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(params.iter().filter(|(key, _)| !marker || **key != "marker"));
        if marker {
            query.append_pair("marker", last);
        }
        let href = self.link(&format!("servers/detail?{}", query.finish()));
        json!([{"rel": "next", "href": href}])
    }

    /// The position of a marker. Nova reads it from the server's own cell.
    fn marker(&self, marker: &str) -> Result<AgeKey, NovaFault> {
        let servers = &self.region.servers;
        let server = servers
            .get(marker)
            .ok_or_else(|| NovaFault::bad_request(format!("marker [{marker}] not found")))?;
        if self.is_down(server) {
            return Err(NovaFault::unexpected("oslo_db.exception.DBConnectionError"));
        }
        Ok(server.age_key())
    }

    /// `GET /flavors/{id}`.
    fn flavor(&self, id: &str) -> Result<Reply, NovaFault> {
        let flavor: &Flavor = self
            .region
            .flavors
            .get(id)
            .ok_or_else(|| NovaFault::not_found(format!("Flavor {id} could not be found.")))?;
        let links = json!([
            {"rel": "self", "href": self.link(&format!("flavors/{id}"))},
            {"rel": "bookmark", "href": self.bookmark(&format!("flavors/{id}"))},
        ]);
        let shown = json!({
            "id": flavor.id,
            "name": flavor.name,
            "links": links,
            "ram": flavor.ram,
            "disk": flavor.disk,
            "vcpus": flavor.vcpus,
            "swap": "",
            "OS-FLV-EXT-DATA:ephemeral": 0,
            "os-flavor-access:is_public": true,
            "OS-FLV-DISABLED:disabled": false,
            "rxtx_factor": 1.0,
        });
        Ok(Reply::json(StatusCode::OK, &json!({ "flavor": shown })))
    }
}

/// A filter on names, which ignores case: a pattern of the database with a literal text.
enum NameFilter {
    Whole(String),
    Prefix(String),
}

impl NameFilter {
    /// A filter; `None` for patterns that the simulator does not have.
    fn parse(pattern: &str) -> Option<Self> {
        let pattern = pattern.strip_prefix('^')?;
        match pattern.strip_suffix('$') {
            Some(name) => Some(Self::Whole(literal(name)?)),
            None => Some(Self::Prefix(literal(pattern)?)),
        }
    }
}

/// The text of a pattern without operators, in lower case.
fn literal(pattern: &str) -> Option<String> {
    let mut literal = String::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => literal.push(chars.next().filter(|next| !next.is_alphanumeric())?),
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' | '|' => return None,
            _ => literal.push(char),
        }
    }
    Some(literal.to_lowercase())
}

/// The operation of a request to Nova.
pub(crate) fn op(request: &Request, rest: &[&str]) -> &'static str {
    let known: &[&str] = match rest {
        ["v2.1", "servers", "detail"] => &["limit", "marker", "name"],
        _ => &[],
    };
    if request.method != Method::GET || !request.has_only(known) {
        return ops::UNKNOWN;
    }
    if let Some(name) = request.last("name")
        && !name.is_empty()
        && NameFilter::parse(name).is_none()
    {
        return ops::UNKNOWN;
    }
    match rest {
        [] | [""] => "version_list",
        ["v2.1", "servers", "detail"] => "server_list",
        ["v2.1", "servers", id] if !id.is_empty() => "server_get",
        ["v2.1", "flavors", id] if !matches!(*id, "" | "detail") => "flavor_get",
        _ => ops::UNKNOWN,
    }
}

/// Answers a request to Nova; `None` if the simulator does not have the operation.
pub(crate) fn handle(
    cloud: &OpenStackCloud,
    region: &Region,
    request: &Request,
    target: &Target,
) -> Option<Reply> {
    let endpoint = cloud.endpoint(target);
    if target.op == "version_list" {
        return Some(Reply::json(StatusCode::OK, &versions(cloud, &endpoint)));
    }
    let caller = match cloud.caller(request) {
        Ok(caller) => caller,
        Err(reply) => return Some(*reply),
    };
    let version = match microversion(cloud, request) {
        Ok(version @ (1 | NEWER)) => version,
        Ok(_) => return None,
        Err((fault, shown)) => return Some(refusal(&fault, shown.as_deref())),
    };
    let api = NovaApi {
        cloud,
        region,
        request,
        caller: &caller,
        newer: version == NEWER,
        endpoint,
    };
    let id = target.rest.get(2).map(String::as_str).unwrap_or_default();
    let result = unscoped(&caller, target.op).and_then(|()| match target.op {
        "server_list" => api.servers(),
        "server_get" => api.server(id),
        _ => api.flavor(id),
    });
    let reply = result.unwrap_or_else(|fault| error(fault.status, &fault.message));
    Some(versioned(reply, &format!("2.{version}")))
}

/// Minor number of the simulated microversion besides 2.1; a cloud may have more.
const NEWER: u32 = 47;

/// Adds the microversion to an answer.
fn versioned(reply: Reply, version: &str) -> Reply {
    reply
        .with("OpenStack-API-Version", &format!("compute {version}"))
        .with("X-OpenStack-Nova-API-Version", version)
        .with("Vary", "OpenStack-API-Version, X-OpenStack-Nova-API-Version")
}

/// The answer to an invalid microversion, which is repeated if it has the form of a version.
fn refusal(fault: &NovaFault, version: Option<&str>) -> Reply {
    let reply = error(fault.status, &fault.message);
    match version {
        Some(version) => versioned(reply, version),
        None => reply,
    }
}

/// The answer to a token without a project.
fn unscoped(caller: &Caller, op: &str) -> Result<(), NovaFault> {
    match op {
        _ if !caller.project_id.is_empty() => Ok(()),
        // Nova searches for the server first, and fails there.
        "server_get" => Err(NovaFault::unexpected("nova.exception.NovaException")),
        "flavor_get" => Err(NovaFault::new(StatusCode::FORBIDDEN, "Forbidden")),
        _ => {
            let message = "Policy doesn't allow os_compute_api:servers:detail to be performed.";
            Err(NovaFault::new(StatusCode::FORBIDDEN, message))
        }
    }
}

/// The minor number of the requested microversion; the lowest is 2.1. The fault of an unknown one contains its text, if
/// it has the form of a version.
fn microversion(cloud: &OpenStackCloud, request: &Request) -> Result<u32, (NovaFault, Option<String>)> {
    let max = cloud.settings.read().max_microversion;
    let requested = request.header("openstack-api-version").and_then(|header| {
        let of_compute =
            |part: &str| part.trim().strip_prefix("compute ").map(|version| version.trim().to_owned());
        header.split(',').find_map(of_compute)
    });
    let Some(requested) = requested else {
        return Ok(1);
    };
    if requested == "latest" {
        return Ok(max);
    }
    let number = |text: &str| -> Option<u32> {
        let canonical = text == "0" || !text.starts_with('0');
        (canonical && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse().ok())
            .flatten()
    };
    let parsed = requested.split_once('.').and_then(|(major, minor)| number(major).zip(number(minor)));
    let Some((major, minor)) = parsed else {
        let message = format!(
            "API Version String {requested} is of invalid format. Must be of format MajorNum.MinorNum."
        );
        return Err((NovaFault::bad_request(message), None));
    };
    if major != 2 || minor < 1 || minor > max {
        let message = format!(
            "Version {requested} is not supported by the API. Minimum is 2.1 and maximum is 2.{max}."
        );
        return Err((NovaFault::new(StatusCode::NOT_ACCEPTABLE, message), Some(requested)));
    }
    Ok(minor)
}

fn versions(cloud: &OpenStackCloud, endpoint: &str) -> Value {
    let max = format!("2.{}", cloud.settings.read().max_microversion);
    let link = |name: &str| json!([{"rel": "self", "href": format!("{endpoint}/{name}/")}]);
    json!({"versions": [
        {"id": "v2.0", "status": "DEPRECATED", "version": "", "min_version": "",
         "updated": "2025-07-04T12:00:00Z", "links": link("v2")},
        {"id": "v2.1", "status": "CURRENT", "version": max, "min_version": "2.1",
         "updated": "2013-07-23T11:33:21Z", "links": link("v2.1")},
    ]})
}
