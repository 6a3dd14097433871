//! A proxy for the Azure Resource Manager.
//!
//! The program reaches login and API through it. Calls are named by type and action (`routeTables.put`,
//! `virtualMachineScaleSets/virtualMachines.list`).

use http::HeaderMap;
use http::request::Parts;
use serde_json::json;

use super::cloud::{CloudProxy, Dialect};
use super::{Action, Request, Rule};

/// The service of requests to the API, in the log.
const ARM: &str = "arm";
/// The service of logins and of the endpoints of the cloud.
const LOGIN: &str = "login";

/// The protocol of the Azure Resource Manager.
#[derive(Debug)]
pub struct AzureDialect {
    upstream: String,
}

impl CloudProxy<AzureDialect> {
    /// Starts a proxy for the server at this URL.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(upstream: &str) -> anyhow::Result<Self> {
        let upstream = upstream.trim_end_matches('/').to_owned();
        Self::start_with(|_| AzureDialect { upstream }).await
    }

    /// The URL of login and API.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }
}

/// The type and action of a call of the API.
fn call_name(verb: &str, path: &str) -> Option<String> {
    let segments: Vec<_> = path.strip_prefix("/subscriptions/")?.split('/').skip(1).collect();
    let provider = segments.iter().position(|segment| segment.eq_ignore_ascii_case("providers"))?;
    let below: Vec<_> = segments.iter().skip(provider + 2).copied().collect();
    // `locations/L/operations/O`
    if below.first().is_some_and(|first| first.eq_ignore_ascii_case("locations")) {
        return Some(format!("{}.{}", below.get(2)?, verb.to_lowercase()));
    }
    if below.is_empty() {
        return Some(format!("providers.{}", verb.to_lowercase()));
    }
    let types: Vec<_> = below.iter().step_by(2).copied().collect();
    let is_list = verb == "GET" && below.len() % 2 == 1;
    let action = if is_list {
        "list".to_owned()
    } else {
        verb.to_lowercase()
    };
    Some(format!("{}.{action}", types.join("/")))
}

/// Whether a call of the API changes something.
#[must_use]
pub fn is_write(call: &str) -> bool {
    !matches!(call.rsplit('.').next(), Some("get" | "list"))
}

/// The body of an error with this code.
#[must_use]
pub fn refusal(code: &str) -> String {
    json!({"error": {"code": code, "message": "refused on purpose"}}).to_string()
}

impl Dialect for AzureDialect {
    fn read(&self, head: &Parts, _: &[u8]) -> Request {
        let (verb, path) = (head.method.as_str(), head.uri.path());
        let call = call_name(verb, path);
        Request {
            method: verb.to_owned(),
            path: path.to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            resource: if call.is_some() { ARM } else { LOGIN }.to_owned(),
            name: call.unwrap_or_else(|| path.to_owned()),
            ..Request::default()
        }
    }

    fn is_change(&self, request: &Request) -> bool {
        request.resource == ARM && is_write(&request.name)
    }

    fn target(&self, request: &Request, _: &mut HeaderMap) -> Option<String> {
        let query = if request.query.is_empty() { "" } else { "?" };
        Some(format!("{}{}{query}{}", self.upstream, request.path, request.query))
    }

    fn refusal(&self, request: &Request, code: u16) -> String {
        if request.resource == LOGIN {
            return json!({"error": "temporarily_unavailable"}).to_string();
        }
        refusal(match code {
            403 => "AuthorizationFailed",
            404 => "ResourceNotFound",
            409 => "AnotherOperationInProgress",
            412 => "PreconditionFailed",
            429 => "TooManyRequests",
            500 => "InternalServerError",
            _ => "ServiceUnavailable",
        })
    }

    fn refusals(&self) -> Vec<Rule> {
        let to_anyone = [
            (401, "ExpiredAuthenticationToken"),
            (403, "AuthorizationFailed"),
            (404, "SubscriptionNotFound"),
            (429, "SubscriptionRequestsThrottled"),
        ];
        let to_writers = [
            (409, "AnotherOperationInProgress"),
            (412, "PreconditionFailed"),
            (429, "RetryableErrorDueToAnotherOperation"),
        ];
        let call = |request: &Request| request.resource == ARM;
        let write = |request: &Request| request.resource == ARM && is_write(&request.name);
        let answer = |(status, code)| Action::answer(status, refusal(code));
        let mut rules: Vec<_> =
            to_anyone.into_iter().map(|refused| Rule::when(call, answer(refused))).collect();
        rules.extend(to_writers.into_iter().map(|refused| Rule::when(write, answer(refused))));
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_types() {
        const GROUP: &str = "/resourceGroups/g/providers";
        for (verb, path, expected) in [
            ("GET", format!("{GROUP}/Microsoft.Network/routeTables/r"), "routeTables.get"),
            ("PUT", format!("{GROUP}/Microsoft.Network/routeTables/r"), "routeTables.put"),
            ("GET", format!("{GROUP}/Microsoft.Compute/virtualMachines"), "virtualMachines.list"),
            (
                "GET",
                format!("{GROUP}/Microsoft.Compute/virtualMachineScaleSets/a/virtualMachines"),
                "virtualMachineScaleSets/virtualMachines.list",
            ),
            (
                "GET",
                format!(
                    "{GROUP}/microsoft.Compute/virtualMachineScaleSets/a/virtualMachines/0/networkInterfaces"
                ),
                "virtualMachineScaleSets/virtualMachines/networkInterfaces.list",
            ),
            ("GET", format!("{GROUP}/Microsoft.Authorization/permissions"), "permissions.list"),
            (
                "GET",
                "/providers/Microsoft.Network/locations/l/operations/o".to_owned(),
                "operations.get",
            ),
        ] {
            let path = format!("/subscriptions/s{path}");
            assert_eq!(call_name(verb, &path).as_deref(), Some(expected), "{verb} {path}");
            assert_eq!(is_write(expected), verb == "PUT", "{expected}");
        }
        for path in ["/metadata/endpoints", "/tenant/oauth2/v2.0/token"] {
            assert_eq!(call_name("POST", path), None, "{path}");
        }
    }
}
