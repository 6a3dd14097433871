//! A proxy for Compute Engine.
//!
//! The program reaches the API and the metadata server through it. Calls are named by kind and method
//! (`forwardingRules.insert`, `operations.get`).

use http::HeaderMap;
use http::request::Parts;
use serde_json::json;

use super::cloud::{CloudProxy, Dialect};
use super::{Action, Request, Rule};

/// The service of requests to the API, in the log.
const COMPUTE: &str = "compute";
/// The service of requests to the metadata server.
const METADATA: &str = "metadata";
/// Custom methods that change nothing.
const READS: [&str; 3] = ["wait", "listInstances", "getHealth"];

/// The protocol of Compute Engine.
#[derive(Debug)]
pub struct GceDialect {
    upstream: String,
}

impl CloudProxy<GceDialect> {
    /// Starts a proxy for the server at this URL.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(upstream: &str) -> anyhow::Result<Self> {
        let upstream = upstream.trim_end_matches('/').to_owned();
        Self::start_with(|_| GceDialect { upstream }).await
    }

    /// The value of `api-endpoint`.
    #[must_use]
    pub fn api_endpoint(&self) -> String {
        format!("http://{}/compute/v1/", self.address())
    }

    /// The value of the environment variable `GCE_METADATA_HOST`.
    #[must_use]
    pub fn metadata_host(&self) -> String {
        self.address().to_string()
    }
}

/// The method of the API with this HTTP method and path.
fn method_name(verb: &str, path: &str) -> Option<String> {
    if path.ends_with(":testIamPermissions") {
        return Some("projects.testIamPermissions".to_owned());
    }
    let mut segments = path.strip_prefix("/compute/v1/projects/")?.split('/').skip(1);
    let kind = match segments.next() {
        None => return Some("projects.get".to_owned()),
        Some("global" | "aggregated") => segments.next()?,
        Some(scope @ ("zones" | "regions")) => match (segments.next(), segments.next()) {
            (Some(_), Some(kind)) => kind,
            (Some(_), None) => return Some(format!("{scope}.get")),
            (None, _) => return Some(format!("{scope}.list")),
        },
        Some(_) => return None,
    };
    let (has_name, action) = (segments.next().is_some(), segments.next());
    let method = match (verb, has_name, action) {
        (_, _, Some(action)) => action,
        ("GET", false, _) => "list",
        ("GET", true, _) => "get",
        ("POST", ..) => "insert",
        ("PUT", ..) => "update",
        ("PATCH", ..) => "patch",
        ("DELETE", ..) => "delete",
        _ => return None,
    };
    Some(format!("{kind}.{method}"))
}

/// Whether a method of the API changes something.
#[must_use]
pub fn is_write(method: &str) -> bool {
    let verb = method.rsplit('.').next().unwrap_or_default();
    !matches!(verb, "get" | "list" | "testIamPermissions") && !READS.contains(&verb)
}

/// The body of an error with this reason.
#[must_use]
pub fn refusal(status: u16, reason: &str) -> String {
    let message = "refused on purpose";
    let domain = if reason.ends_with("Exceeded") {
        "usageLimits"
    } else {
        "global"
    };
    json!({"error": {
        "code": status, "message": message,
        "errors": [{"message": message, "domain": domain, "reason": reason}],
    }})
    .to_string()
}

impl Dialect for GceDialect {
    fn read(&self, head: &Parts, _: &[u8]) -> Request {
        let (verb, path) = (head.method.as_str(), head.uri.path());
        let method = method_name(verb, path);
        Request {
            method: verb.to_owned(),
            path: path.to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            resource: if method.is_some() { COMPUTE } else { METADATA }.to_owned(),
            name: method.unwrap_or_else(|| path.to_owned()),
            ..Request::default()
        }
    }

    fn is_change(&self, request: &Request) -> bool {
        request.resource == COMPUTE && request.is_write() && is_write(&request.name)
    }

    fn target(&self, request: &Request, _: &mut HeaderMap) -> Option<String> {
        let query = if request.query.is_empty() { "" } else { "?" };
        Some(format!("{}{}{query}{}", self.upstream, request.path, request.query))
    }

    fn refusal(&self, request: &Request, code: u16) -> String {
        if request.resource == METADATA {
            return String::new();
        }
        let reason = match code {
            403 => "rateLimitExceeded",
            404 => "notFound",
            500 => "internalError",
            _ => "backendError",
        };
        refusal(code, reason)
    }

    /// Compute Engine throttles with 403, not with 429.
    fn throttled(&self) -> u16 {
        403
    }

    fn refusals(&self) -> Vec<Rule> {
        let refusals = [
            (403, "quotaExceeded"),
            (403, "forbidden"),
            (400, "resourceNotReady"),
            (429, "rateLimitExceeded"),
            (500, "internalError"),
        ];
        let is_call = |request: &Request| request.resource == COMPUTE;
        let rule = |(status, reason)| Rule::when(is_call, Action::answer(status, refusal(status, reason)));
        refusals.map(rule).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_methods() {
        for (verb, path, expected) in [
            ("GET", "", "projects.get"),
            ("GET", "/zones", "zones.list"),
            ("GET", "/zones/a", "zones.get"),
            ("GET", "/zones/a/instances", "instances.list"),
            ("GET", "/zones/a/instances/i", "instances.get"),
            ("GET", "/aggregated/instances", "instances.list"),
            ("POST", "/regions/r/forwardingRules", "forwardingRules.insert"),
            ("PUT", "/regions/r/backendServices/b", "backendServices.update"),
            ("PATCH", "/global/firewalls/f", "firewalls.patch"),
            ("DELETE", "/global/routes/r", "routes.delete"),
            ("POST", "/regions/r/targetPools/t/addInstance", "targetPools.addInstance"),
            ("POST", "/global/operations/o/wait", "operations.wait"),
        ] {
            let path = format!("/compute/v1/projects/p{path}");
            assert_eq!(method_name(verb, &path).as_deref(), Some(expected), "{verb} {path}");
        }
        assert_eq!(method_name("GET", "/computeMetadata/v1/instance/zone"), None);
        let asked = "/v1/projects/p:testIamPermissions";
        assert_eq!(method_name("POST", asked).as_deref(), Some("projects.testIamPermissions"));
    }

    #[test]
    fn only_changes_are_writes() {
        for read in ["instances.get", "operations.wait", "instanceGroups.listInstances"] {
            assert!(!is_write(read), "{read}");
        }
        for write in ["routes.insert", "targetPools.addInstance", "firewalls.patch"] {
            assert!(is_write(write), "{write}");
        }
    }
}
