//! Maps the API's error answers to error kinds.
//!
//! | Status, message | Kind | Retry |
//! |---|---|---|
//! | 403 `... processes previous actions` | `Conflict` | after 15 s: the load balancer is busy |
//! | 422 `already a load balancer with that name` | `AlreadyExists` | never |
//! | 422 `... limit ...` | `QuotaExceeded` | never |
//! | 409 | `Conflict` | after 15 s |
//! | others | by status ([`Answer::kind`]) | |

use std::time::Duration;

use ccm_core::{
    Error, ErrorKind, Retry,
    client::rest::{Answer, Target, one_line},
};
use serde::Deserialize;

/// The retry interval while the API is changing a load balancer (upstream's).
pub(crate) const BUSY: Duration = Duration::from_secs(15);

/// The body of an error answer. It is empty if a proxy answers with HTML.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    id: String,
    message: String,
    request_id: String,
}

/// The error for an error answer.
pub(crate) fn refused(target: &Target, answer: &Answer) -> Error {
    let body: ErrorBody = serde_json::from_slice(&answer.body).unwrap_or_default();
    let message = body.message.to_lowercase();
    let says = |text: &str| message.contains(text);
    let (kind, retry) = match answer.status.as_u16() {
        // The API is still applying the previous change of the load balancer.
        403 if says("processes previous actions") => (ErrorKind::Conflict, Some(Retry::Fixed(BUSY))),
        409 => (ErrorKind::Conflict, Some(Retry::Fixed(BUSY))),
        422 if says("already") && says("name") => (ErrorKind::AlreadyExists, None),
        422 if says("limit") && !says("between") => (ErrorKind::QuotaExceeded, None),
        _ => answer.kind(&target.method),
    };
    let text = if body.message.is_empty() {
        &body.id
    } else {
        &body.message
    };
    let mut error = answer.error(target, kind, &one_line(text), "x-request-id");
    if !body.request_id.is_empty() && answer.header("x-request-id").is_none() {
        error = error.with_context("request_id", one_line(&body.request_id));
    }
    match retry {
        Some(retry) => error.with_retry(retry),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::{HeaderMap, Method, StatusCode};

    use super::*;

    fn error(method: Method, status: u16, body: &str) -> Error {
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.as_bytes().to_vec(),
        };
        let path = "/v2/load_balancers/x".to_owned();
        refused(&Target { method, path }, &answer)
    }

    #[test]
    fn error_answers_have_a_kind_and_a_retry() {
        use ErrorKind::{
            AlreadyExists, Conflict, InvalidSpec, NotFound, PermissionDenied, QuotaExceeded, RateLimited,
            Unauthenticated, Unavailable,
        };
        let (busy, never, backoff) = (Retry::Fixed(BUSY), Retry::Never, Retry::Backoff);
        let in_progress = "Load Balancer can't be updated while it processes previous actions";
        let unauthorized = "You are not authorized to perform this operation";
        let (no_token, throttled) = ("Unable to authenticate you", "API Rate limit exceeded.");
        let same_name = "There is already a load balancer with that name.";
        for (status, id, message, kind, retry) in [
            (403, "forbidden", in_progress, Conflict, busy),
            (403, "forbidden", unauthorized, PermissionDenied, never),
            (409, "conflict", "busy", Conflict, busy),
            (422, "unprocessable_entity", same_name, AlreadyExists, never),
            (422, "", "Load balancer limit reached", QuotaExceeded, never),
            (422, "", "entry port 50053 is reserved", InvalidSpec, never),
            (401, "unauthorized", no_token, Unauthenticated, never),
            (404, "", "", NotFound, never),
            (429, "too_many_requests", throttled, RateLimited, backoff),
            (502, "", "<html>", Unavailable, backoff),
        ] {
            let document = serde_json::json!({"id": id, "message": message}).to_string();
            let body = match message {
                "" => "",
                "<html>" => "<html><body>Bad Gateway</body></html>",
                _ => &document,
            };
            let error = error(Method::PUT, status, body);
            assert_eq!((error.kind(), error.retry()), (kind, retry), "{status} {body}");
            assert!(!error.report().contains('<'), "{}", error.report());
        }
        let body = r#"{"id":"x","message":"no","request_id":"r-1"}"#;
        let text = error(Method::PUT, 422, body).to_string();
        assert_eq!(text, "PUT /v2/load_balancers/x: 422 no (request_id=r-1)");
    }
}
