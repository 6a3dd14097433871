//! The errors of Azure.

use std::time::Duration;

use ccm_core::{
    Error, ErrorKind, Retry,
    client::rest::{Answer, Target, one_line},
};
use http::Method;
use jiff::Timestamp;
use serde::Deserialize;

/// The header with Azure's ID of a request.
const REQUEST_ID: &str = "x-ms-correlation-request-id";

/// The body of a refusal. Some services return its content without `error` around it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    error: Option<CloudError>,
    #[serde(flatten)]
    bare: CloudError,
}

/// An error of Azure.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CloudError {
    code: Option<String>,
    message: Option<String>,
    details: Option<Vec<CloudError>>,
}

/// The end of a window in which Microsoft.Compute refuses requests, in the message of a detail.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ThrottlingWindow {
    end_time: Timestamp,
}

impl CloudError {
    fn of(body: &[u8]) -> Self {
        let body: Body = serde_json::from_slice(body).unwrap_or_default();
        body.error.unwrap_or(body.bare)
    }

    /// The code and message in one line.
    fn text(&self) -> String {
        let texts = [self.code.as_deref(), self.message.as_deref()];
        one_line(&texts.into_iter().flatten().collect::<Vec<_>>().join(": "))
    }

    /// The code, and those of the details, the most general one first.
    fn codes(&self) -> impl Iterator<Item = &str> {
        let details = self.details.iter().flatten().filter_map(|detail| detail.code.as_deref());
        self.code.as_deref().into_iter().chain(details)
    }

    /// How long Microsoft.Compute refuses requests, if it says so.
    fn window(&self, now: Timestamp) -> Option<Duration> {
        let messages = self.details.iter().flatten().filter_map(|detail| detail.message.as_deref());
        let ends = messages.filter_map(|text| serde_json::from_str::<ThrottlingWindow>(text).ok());
        let left =
            ends.map(|window| Duration::try_from(window.end_time.duration_since(now)).unwrap_or_default());
        left.max()
    }
}

/// The kind of an error by its code, and when to try again if that differs from the kind's default.
fn kind_of(code: &str) -> Option<(ErrorKind, Option<Retry>)> {
    Some(match code {
        // The document was changed by another client: only its reader can merge the change.
        "PreconditionFailed" | "PreconditionFailedEtagMismatch" => (ErrorKind::Conflict, Some(Retry::Never)),
        "AnotherOperationInProgress"
        | "CanceledAndSupersededDueToAnotherOperation"
        | "OperationPreempted"
        | "ReferencedResourceNotProvisioned"
        | "RetryableError"
        | "RetryableErrorDueToAnotherOperation"
        | "AttachDiskWhileBeingDetached"
        | "PublicIPAddressCannotBeDeleted"
        | "LoadBalancerInUseByVirtualMachineScaleSet" => (ErrorKind::Conflict, None),
        "ResourceNotFound"
        | "NotFound"
        | "ResourceGroupNotFound"
        | "ParentResourceNotFound"
        | "InstanceIdNotFound" => (ErrorKind::NotFound, None),
        "InternalServerError"
        | "InternalExecutionError"
        | "NetworkingInternalOperationError"
        | "OperationTimedOut" => (ErrorKind::Unavailable, None),
        "AuthenticationFailed"
        | "InvalidAuthenticationToken"
        | "InvalidAuthenticationTokenTenant"
        | "ExpiredAuthenticationToken" => (ErrorKind::Unauthenticated, None),
        // A subscription that the credentials may not see is answered with 404. Nothing in it is absent.
        "AuthorizationFailed"
        | "LinkedAuthorizationFailed"
        | "SubscriptionNotFound"
        | "InvalidSubscriptionId"
        | "ScopeLocked"
        | "ReadOnlyDisabledSubscription"
        | "RequestDisallowedByPolicy" => (ErrorKind::PermissionDenied, None),
        "TooManyRequests" | "SubscriptionRequestsThrottled" | "ResourceRequestsThrottled" => {
            (ErrorKind::RateLimited, None)
        }
        "PublicIPCountLimitReached"
        | "QuotaExceeded"
        | "SecurityRuleCountLimitReached"
        | "TooManyRoutesInRouteTable" => (ErrorKind::QuotaExceeded, None),
        _ => return None,
    })
}

/// The error for a refusal.
pub(crate) fn refused(target: &Target, answer: &Answer) -> Error {
    refused_at(target, answer, Timestamp::now())
}

fn refused_at(target: &Target, answer: &Answer, now: Timestamp) -> Error {
    let cloud = CloudError::of(&answer.body);
    let status = answer.status.as_u16();
    let by_status = answer.kind(&target.method);
    let by_code = cloud.codes().find_map(kind_of);
    let (kind, retry) = match (by_code, status) {
        // A wait that Azure asks for is kept whatever its code is.
        (Some((ErrorKind::Conflict, None)), 429) => (ErrorKind::Conflict, None),
        (_, 429) => (ErrorKind::RateLimited, by_status.1),
        (Some(by_code), _) => by_code,
        // Anything between this program and Azure can answer 404. Only Azure knows what exists.
        (None, 404) => (ErrorKind::Unavailable, None),
        (None, _) => by_status,
    };
    let window = match kind {
        ErrorKind::RateLimited => cloud.window(now),
        _ => None,
    };
    let error = answer.error(target, kind, &cloud.text(), REQUEST_ID);
    match retry.or(window.map(Retry::from_header)) {
        Some(retry) => error.with_retry(retry),
        None => error,
    }
}

/// The error of an operation that ended without success.
pub(crate) fn operation_failed(target: &Target, status: &str, cloud: &CloudError) -> Error {
    let kind = cloud.codes().find_map(kind_of).map_or(ErrorKind::Unexpected, |(kind, _)| kind);
    let text = match cloud.text() {
        text if text.is_empty() => status.to_owned(),
        text => text,
    };
    // The gate must not repeat the read of its state.
    Error::new(kind, format!("{target}: {text}")).with_retry(Retry::Never)
}

/// The error of a login that was refused.
pub(crate) fn login_refused(host: &str, answer: &Answer) -> Error {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Refusal {
        error: serde_json::Value,
        error_description: Option<String>,
    }
    let refusal: Refusal = serde_json::from_slice(&answer.body).unwrap_or_default();
    // The text ends with IDs and times, which differ for each request.
    let description = refusal.error_description.unwrap_or_default();
    let first_line = description.lines().next().unwrap_or_default();
    let text = [refusal.error.as_str().unwrap_or_default(), first_line].join(" ");
    let target = Target {
        method: Method::POST,
        path: format!("login at {host}"),
    };
    let (kind, retry) = match answer.status.as_u16() {
        400 | 401 | 403 => (ErrorKind::Unauthenticated, None),
        // The metadata service answers so while an identity is being assigned.
        404 | 410 => (ErrorKind::Unavailable, None),
        _ => answer.kind(&target.method),
    };
    let error = answer.error(&target, kind, one_line(&text).trim(), REQUEST_ID);
    match retry {
        Some(retry) => error.with_retry(retry),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::RequestOutcome;
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &str)], body: &str) -> Answer {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers,
            body: body.into(),
        }
    }

    fn target(method: Method) -> Target {
        Target {
            method,
            path: "/subscriptions/s".to_owned(),
        }
    }

    fn refusal(status: u16, body: &str) -> Error {
        refused(&target(Method::PUT), &answer(status, &[], body))
    }

    #[test]
    fn the_code_decides_before_the_status() {
        for (status, code, kind, retry) in [
            (412, "PreconditionFailed", ErrorKind::Conflict, Retry::Never),
            (429, "ReferencedResourceNotProvisioned", ErrorKind::Conflict, Retry::Backoff),
            (409, "AnotherOperationInProgress", ErrorKind::Conflict, Retry::Backoff),
            (404, "ResourceNotFound", ErrorKind::NotFound, Retry::Never),
            (404, "ParentResourceNotFound", ErrorKind::NotFound, Retry::Never),
            (404, "SubscriptionNotFound", ErrorKind::PermissionDenied, Retry::Never),
            (403, "AuthorizationFailed", ErrorKind::PermissionDenied, Retry::Never),
            (401, "ExpiredAuthenticationToken", ErrorKind::Unauthenticated, Retry::Never),
            (429, "OperationNotAllowed", ErrorKind::RateLimited, Retry::Backoff),
            (409, "OperationNotAllowed", ErrorKind::Conflict, Retry::Backoff),
            (400, "PublicIPCountLimitReached", ErrorKind::QuotaExceeded, Retry::Never),
            (400, "SomethingElse", ErrorKind::InvalidSpec, Retry::Never),
            (500, "InternalServerError", ErrorKind::Unavailable, Retry::Backoff),
        ] {
            let error = refusal(status, &format!(r#"{{"error":{{"code":"{code}","message":"no"}}}}"#));
            assert_eq!((error.kind(), error.retry()), (kind, retry), "{status} {code}");
            assert!(error.report().contains(&format!("{code}: no")), "{error}");
        }
        let bare = refusal(403, r#"{"code":"AuthorizationFailed","message":"no"}"#);
        assert_eq!(bare.kind(), ErrorKind::PermissionDenied);
        let details =
            r#"{"error":{"code":"BadRequest","details":[{"code":"PreconditionFailedEtagMismatch"}]}}"#;
        assert_eq!(refusal(412, details).kind(), ErrorKind::Conflict);
        assert_eq!(refusal(500, "").outcome(), RequestOutcome::Unknown);
    }

    #[test]
    fn a_404_that_is_not_from_azure_means_nothing() {
        for body in [
            "",
            "<html>not found</html>",
            "{}",
            r#"{"error":{"code":"InvalidResourceType"}}"#,
        ] {
            assert_eq!(refusal(404, body).kind(), ErrorKind::Unavailable, "{body}");
        }
    }

    #[test]
    fn throttling_ends_with_the_header_or_the_window() {
        let now: Timestamp = "2026-08-01T10:00:00Z".parse().unwrap();
        let body = r#"{"error":{"code":"OperationNotAllowed","message":"slowly","details":[{"code":"TooManyRequests",
            "target":"HighCostGet30Min","message":"{\"endTime\":\"2026-08-01T10:02:00Z\",\"measuredRequestCount\":9}"}]}}"#;
        let retry = |headers: &[(&'static str, &str)], body: &str| {
            refused_at(&target(Method::GET), &answer(429, headers, body), now).retry()
        };
        assert_eq!(retry(&[], body), Retry::After(Duration::from_secs(120)));
        assert_eq!(retry(&[("retry-after", "7")], body), Retry::After(Duration::from_secs(7)));
        assert_eq!(retry(&[], "busy"), Retry::Backoff);
        // A window of the past asks for no wait of its own.
        assert_eq!(retry(&[], &body.replace("10:02", "09:58")), Retry::After(Duration::ZERO));
    }

    #[test]
    fn a_failed_operation_has_the_kind_of_its_code() {
        let error: CloudError = serde_json::from_str(
            r#"{"code":"CanceledAndSupersededDueToAnotherOperation","message":"later"}"#,
        )
        .unwrap();
        let failed = operation_failed(&target(Method::GET), "Canceled", &error);
        assert_eq!((failed.kind(), failed.retry()), (ErrorKind::Conflict, Retry::Never));
        let unknown = operation_failed(&target(Method::GET), "Failed", &CloudError::default());
        assert!(unknown.report().ends_with("Failed"), "{unknown}");
    }

    #[test]
    fn a_refused_login_shows_only_the_first_line() {
        let body = r#"{"error":"invalid_client","error_description":"AADSTS7000215: the secret is wrong.\r\nTrace ID: 1"}"#;
        let error = login_refused("login.example.com", &answer(401, &[], body));
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(error.report().contains("invalid_client AADSTS7000215: the secret is wrong."), "{error}");
        assert!(!error.report().contains("Trace"), "{error}");
        assert_eq!(login_refused("metadata", &answer(410, &[], "")).kind(), ErrorKind::Unavailable);
    }
}
