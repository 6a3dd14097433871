//! Nova 2.1 with its microversions: version documents, servers, flavors.

mod filter;
mod flavors;
mod list;
mod view;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::openstack::identity::Caller;
use crate::openstack::ids::is_uuid_like;
use crate::openstack::region::Region;
use crate::openstack::{OpenStackCloud, webob_error};
use crate::server::Target;
use view::ServerView;

/// An error as Nova words it.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    message: String,
}

impl Fault {
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

    /// A query parameter with a value that the schema does not allow.
    fn bad_value(name: &str, value: &str, why: &str) -> Self {
        Self::bad_request(format!(
            "Invalid input for query parameters {name}. Value: {value}. {why}"
        ))
    }

    /// An error that Nova did not expect; only its class gets out.
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
        405 => "badMethod",
        409 => "conflictingRequest",
        413 | 429 => "overLimit",
        415 => "badMediaType",
        501 => "notImplemented",
        503 => "serviceUnavailable",
        _ => "computeFault",
    };
    let body = Value::Object(
        [(
            name.to_owned(),
            json!({"code": status.as_u16(), "message": message}),
        )]
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

/// A list of words as Python shows it.
fn quoted(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    format!("[{}]", words.join(", "))
}

/// A request below `/v2.1` with all that its answer depends on.
struct Api<'a> {
    cloud: &'a OpenStackCloud,
    region: &'a Region,
    request: &'a Request,
    caller: &'a Caller,
    /// The minor number of the microversion.
    version: u32,
    /// URL of the endpoint that was used, without the version.
    endpoint: String,
}

impl Api<'_> {
    fn at_least(&self, minor: u32) -> bool {
        self.version >= minor
    }

    /// Checks the query against the parameters that a call knows. Others are refused from `strict_from` on.
    fn check_known(&self, known: &[&str], strict_from: u32) -> Result<(), Fault> {
        if !self.at_least(strict_from) {
            return Ok(());
        }
        let mut unknown: Vec<&str> = self
            .request
            .params
            .iter()
            .map(|(key, _)| key.as_str())
            .filter(|key| !known.contains(key))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = unknown.iter().map(|name| format!("'{name}'")).collect();
        let verb = if names.len() == 1 { "was" } else { "were" };
        let names = names.join(", ");
        Err(Fault::bad_request(format!(
            "Additional properties are not allowed ({names} {verb} unexpected)"
        )))
    }

    /// The page size: what was asked for, at most the service's limit.
    fn limit(&self) -> Result<usize, Fault> {
        for value in self.request.all("limit") {
            let invalid = |why: String| Fault::bad_value("limit", value, &why);
            if value.is_empty() {
                return Err(invalid("'' should be non-empty".to_owned()));
            }
            if !value.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(invalid(format!("'{value}' does not match '^[0-9]*$'")));
            }
        }
        let max = self.cloud.settings.read().max_limit;
        let asked = self
            .request
            .last("limit")
            .map(|limit| limit.parse().unwrap_or(usize::MAX));
        Ok(asked.map_or(max, |asked| asked.min(max)))
    }

    /// The link to the next page. Nova adds one whenever the page is full, even if nothing follows.
    fn next_link(&self, collection: &str, known: &[&str], page: usize, last: Option<&str>) -> Option<Value> {
        let limit = self.limit().unwrap_or_default();
        let last = last.filter(|_| limit > 0 && page == limit)?;
        let mut asked: Vec<(&str, &str)> = self
            .request
            .params
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| known.contains(key))
            .collect();
        // In order, and of a repeated one the greatest; a new marker comes last.
        asked.sort_unstable();
        let mut params: Vec<(&str, &str)> = Vec::new();
        for (key, value) in asked {
            match params.last_mut().filter(|(last, _)| *last == key) {
                Some(entry) => entry.1 = value,
                None => params.push((key, value)),
            }
        }
        match params.iter_mut().find(|(key, _)| *key == "marker") {
            Some(entry) => entry.1 = last,
            None => params.push(("marker", last)),
        }
        let query = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(params)
            .finish();
        Some(json!([{"rel": "next", "href": self.link(&format!("{collection}?{query}"))}]))
    }

    /// The URL of a thing below the versioned endpoint.
    fn link(&self, path: &str) -> String {
        format!("{}/v2.1{}/{path}", self.endpoint, self.project_part())
    }

    /// The URL of a thing without a version.
    fn bookmark(&self, path: &str) -> String {
        format!("{}{}/{path}", self.endpoint, self.project_part())
    }

    /// The project's part of a link: Nova adds it when the request names the project, wherever that is.
    fn project_part(&self) -> String {
        let project = &self.caller.project_id;
        let named = [&self.request.path, &self.request.query]
            .iter()
            .any(|text| text.contains(project.as_str()));
        if named && !project.is_empty() {
            format!("/{project}")
        } else {
            String::new()
        }
    }

    /// A server that this caller may see.
    fn show(&self, id: &str) -> Result<Reply, Fault> {
        let not_found = || Fault::not_found(format!("Instance {id} could not be found."));
        let now = self.cloud.clock.now();
        let server = self
            .region
            .servers
            .get(&id.to_ascii_lowercase())
            .filter(|_| is_uuid_like(id))
            .filter(|server| server.deleted.is_none() && server.visible <= now)
            .filter(|server| server.project_id == self.caller.project_id || self.caller.admin)
            .ok_or_else(not_found)?;
        let view = ServerView {
            api: self,
            server,
            is_list: false,
        };
        if self.region.cells_down.contains(&server.cell) {
            if !self.at_least(69) {
                return Err(Fault::unexpected("nova.exception.NovaException"));
            }
            return Ok(Reply::json(StatusCode::OK, &json!({"server": view.partial()})));
        }
        Ok(Reply::json(StatusCode::OK, &json!({ "server": view })))
    }
}

/// The operation behind a path below Nova's endpoint.
pub(crate) fn op(method: &Method, rest: &[String]) -> &'static str {
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    match (rest.as_slice(), method) {
        ([] | [""], &Method::GET) => "version_list",
        (["v2.1"] | ["v2.1", ""], &Method::GET) => "version_get",
        (["v2.1", "servers"], &Method::GET) => "server_list_brief",
        (["v2.1", "servers", "detail"], &Method::GET) => "server_list",
        (["v2.1", "servers" | "flavors", ""], _) => "unknown",
        (["v2.1", "servers", _], &Method::GET) => "server_get",
        (["v2.1", "servers"], &Method::POST) => "server_create",
        (["v2.1", "servers", _], &Method::PUT) => "server_update",
        (["v2.1", "servers", _], &Method::DELETE) => "server_delete",
        (["v2.1", "flavors"], &Method::GET) => "flavor_list_brief",
        (["v2.1", "flavors", "detail"], &Method::GET) => "flavor_list",
        (["v2.1", "flavors", _], &Method::GET) => "flavor_get",
        _ => "unknown",
    }
}

/// Answers a request to Nova.
pub(crate) fn handle(cloud: &OpenStackCloud, region: &Region, request: &Request, target: &Target) -> Reply {
    let endpoint = cloud.endpoint(target);
    match target.op {
        "version_list" => return Reply::json(StatusCode::OK, &versions(cloud, &endpoint)),
        "version_get" => {
            let (mut version, link) = (version(cloud), format!("{endpoint}/v2.1/"));
            if let Some(links) = version.get_mut("links").and_then(Value::as_array_mut) {
                links.insert(0, json!({"rel": "self", "href": link}));
            }
            let reply = Reply::json(StatusCode::OK, &json!({ "version": version }));
            return match microversion(cloud, request) {
                Ok(version) => versioned(reply, &format!("2.{version}")),
                Err((fault, said)) => refusal(&fault, said.as_deref()),
            };
        }
        _ if target.rest.first().is_none_or(|first| first != "v2.1") => {
            return choices(&endpoint, target);
        }
        _ => {}
    }
    let caller = match cloud.caller(request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    if target.op == "unknown" {
        // Nova's router knows paths by method, so that a wrong method is as unknown as a wrong path.
        return webob_error(request, StatusCode::NOT_FOUND);
    }
    let version = match microversion(cloud, request) {
        Ok(version) => version,
        Err((fault, said)) => return refusal(&fault, said.as_deref()),
    };
    let api = Api {
        cloud,
        region,
        request,
        caller: &caller,
        version,
        endpoint,
    };
    let id = target.rest.get(2).map(String::as_str).unwrap_or_default();
    let scoped = if caller.project_id.is_empty() {
        unscoped(target.op)
    } else {
        Ok(())
    };
    let result = scoped.and_then(|()| match target.op {
        "server_list" => list::list(&api, true),
        "server_list_brief" => list::list(&api, false),
        "server_get" => api.check_known(&[], 102).and_then(|()| api.show(id)),
        "flavor_list" => flavors::list(&api, true),
        "flavor_list_brief" => flavors::list(&api, false),
        "flavor_get" => api.check_known(&[], 102).and_then(|()| flavors::show(&api, id)),
        _ => Err(Fault::new(
            StatusCode::NOT_IMPLEMENTED,
            "The simulator does not have this operation.",
        )),
    });
    let reply = result.unwrap_or_else(|fault| error(fault.status, &fault.message));
    versioned(reply, &format!("2.{version}"))
}

/// Says which microversion an answer is about.
fn versioned(reply: Reply, version: &str) -> Reply {
    reply
        .with("OpenStack-API-Version", &format!("compute {version}"))
        .with("X-OpenStack-Nova-API-Version", version)
        .with("Vary", "OpenStack-API-Version, X-OpenStack-Nova-API-Version")
}

/// The answer to a request with a bad microversion, which is said again if it was one at all.
fn refusal(fault: &Fault, said: Option<&str>) -> Reply {
    let reply = error(fault.status, &fault.message);
    match said {
        Some(version) => versioned(reply, version),
        None => reply,
    }
}

/// What becomes of a token without a project. The list of flavors is for everybody.
fn unscoped(op: &str) -> Result<(), Fault> {
    let rule = match op {
        "flavor_list" | "flavor_list_brief" => return Ok(()),
        // Nova looks for the server first, and that is where it notices.
        "server_get" => return Err(Fault::unexpected("nova.exception.NovaException")),
        "flavor_get" => return Err(Fault::new(StatusCode::FORBIDDEN, "Forbidden")),
        "server_list" => "servers:detail",
        "server_list_brief" => "servers:index",
        other => other,
    };
    Err(Fault::new(
        StatusCode::FORBIDDEN,
        format!("Policy doesn't allow os_compute_api:{rule} to be performed."),
    ))
}

/// The answer to paths outside of all versions: the same path in each version.
fn choices(endpoint: &str, target: &Target) -> Reply {
    let path = target.rest.join("/");
    let choice = |id: &str, name: &str, status: &str| {
        let kind = format!(
            "application/vnd.openstack.compute+json;version={}",
            name.trim_start_matches('v')
        );
        json!({
            "id": id,
            "status": status,
            "links": [{"rel": "self", "href": format!("{endpoint}/{name}/{path}")}],
            "media-types": [{"base": "application/json", "type": kind}],
        })
    };
    let choices = [
        choice("v2.0", "v2", "DEPRECATED"),
        choice("v2.1", "v2.1", "CURRENT"),
    ];
    Reply::json(StatusCode::MULTIPLE_CHOICES, &json!({ "choices": choices }))
}

/// The microversion that a request asks for: the minor number, Nova's first being 2.1. With the fault of one that
/// there is not comes its text, if it has the form of a version.
fn microversion(cloud: &OpenStackCloud, request: &Request) -> Result<u32, (Fault, Option<String>)> {
    let max = cloud.settings.read().max_microversion;
    let standard = request.header("openstack-api-version").and_then(|header| {
        let of_compute = |part: &str| {
            part.trim()
                .strip_prefix("compute ")
                .map(|version| version.trim().to_owned())
        };
        header.split(',').find_map(of_compute)
    });
    let legacy = || {
        request
            .header("x-openstack-nova-api-version")
            .map(|version| version.trim().to_owned())
    };
    let Some(wanted) = standard.or_else(legacy) else {
        return Ok(1);
    };
    if wanted == "latest" {
        return Ok(max);
    }
    let number = |text: &str| -> Option<u32> {
        let canonical = text == "0" || !text.starts_with('0');
        (canonical && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse().ok())
            .flatten()
    };
    let parsed = wanted
        .split_once('.')
        .and_then(|(major, minor)| number(major).zip(number(minor)));
    let Some((major, minor)) = parsed else {
        let message =
            format!("API Version String {wanted} is of invalid format. Must be of format MajorNum.MinorNum.");
        return Err((Fault::bad_request(message), None));
    };
    if major != 2 || minor < 1 || minor > max {
        let message =
            format!("Version {wanted} is not supported by the API. Minimum is 2.1 and maximum is 2.{max}.");
        return Err((Fault::new(StatusCode::NOT_ACCEPTABLE, message), Some(wanted)));
    }
    Ok(minor)
}

fn version(cloud: &OpenStackCloud) -> Value {
    json!({
        "id": "v2.1",
        "status": "CURRENT",
        "version": format!("2.{}", cloud.settings.read().max_microversion),
        "min_version": "2.1",
        "updated": "2013-07-23T11:33:21Z",
        "links": [{"rel": "describedby", "type": "text/html", "href": "http://docs.openstack.org/"}],
        "media-types": [
            {"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"},
        ],
    })
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
