//! Failures of requests, as [`Error`].

use std::{fmt, time::Duration};

use http::{HeaderMap, Method, StatusCode, header::RETRY_AFTER};
use jiff::Timestamp;

use crate::{Error, ErrorKind, RequestOutcome, Retry};

/// The length of an API's own message in an error, in characters: from its beginning, and from its end, where some APIs
/// name the invalid item after the list that contains it.
const MESSAGE_BEGIN: usize = 300;
const MESSAGE_END: usize = 200;

/// A request in error messages. The query is omitted: it may be long and explains little.
#[derive(Clone, Debug)]
pub struct Target {
    /// The method.
    pub method: Method,
    /// The path of the URL.
    pub path: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// The reason why a request has no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request could not be built or sent, or the answer could not be read.
    #[error("{0}")]
    Transport(#[source] reqwest::Error),
    /// The answer has a success status, but its body is not the expected one.
    #[error("{0}")]
    Shape(#[source] serde_json::Error),
    /// The answer is longer than the limit, in bytes.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
}

impl Failure {
    /// The error for this failure. Its outcome is unknown unless the request was never sent.
    #[must_use]
    pub fn into_error(self, target: &Target) -> Error {
        match self {
            Self::Transport(error) => transport(target, error),
            Self::Shape(error) => {
                let what = if error.is_eof() {
                    "was cut off"
                } else {
                    "has an unexpected form"
                };
                Error::new(ErrorKind::Unavailable, format!("{target}: the answer {what}"))
                    .with_outcome(RequestOutcome::Unknown)
                    .with_source(error)
            }
            Self::TooLarge(_) => Error::new(ErrorKind::Unexpected, target.to_string())
                .with_outcome(RequestOutcome::Unknown)
                .with_source(self),
        }
    }
}

/// Whether the answer was longer than [`RestApi::BODY_MAX`](super::RestApi::BODY_MAX).
#[must_use]
pub fn is_too_large(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let failure = source.and_then(|source| source.downcast_ref::<Failure>());
    matches!(failure, Some(Failure::TooLarge(_)))
}

fn transport(target: &Target, error: reqwest::Error) -> Error {
    let (kind, outcome, what) = if error.is_builder() {
        (ErrorKind::Unexpected, RequestOutcome::NotDone, "the request could not be built")
    } else if error.is_connect() {
        // The name of the error in the library that verifies certificates.
        let what = if crate::error::report(&error).contains("CaUsedAsEndEntity") {
            "the server's own certificate is that of an authority (CA:TRUE), which cannot be verified; the server needs one \
             that an authority issued, or one without CA:TRUE"
        } else {
            "could not connect"
        };
        (ErrorKind::Unavailable, RequestOutcome::NotDone, what)
    } else if error.is_timeout() {
        (ErrorKind::Timeout, RequestOutcome::Unknown, "no answer in time")
    } else if error.is_redirect() {
        (ErrorKind::Unexpected, RequestOutcome::NotDone, "too many redirects")
    } else if error.is_body() || error.is_decode() {
        (ErrorKind::Unavailable, RequestOutcome::Unknown, "the answer was cut off")
    } else {
        (ErrorKind::Unavailable, RequestOutcome::Unknown, "the connection was lost")
    };
    // The URL contains the query. Host and port matter if the network fails.
    let host = error.url().map(|url| url.origin().ascii_serialization());
    let mut mapped = Error::new(kind, format!("{target}: {what}")).with_outcome(outcome);
    if let Some(host) = host {
        mapped = mapped.with_context("host", host);
    }
    mapped.with_source(error.without_url())
}

/// An answer whose body was read.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// A header that is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The error kind by status alone, and when to try again if that differs from the kind's default.
    #[must_use]
    pub fn kind(&self, method: &Method) -> (ErrorKind, Option<Retry>) {
        let later = || self.retry_after(Timestamp::now());
        match self.status.as_u16() {
            400 | 422 if *method != Method::GET => (ErrorKind::InvalidSpec, None),
            401 => (ErrorKind::Unauthenticated, None),
            403 => (ErrorKind::PermissionDenied, None),
            404 => (ErrorKind::NotFound, None),
            405 | 406 | 501 => (ErrorKind::Unsupported, None),
            408 => (ErrorKind::Timeout, None),
            409 => (ErrorKind::Conflict, None),
            412 => (ErrorKind::Conflict, Some(Retry::Never)),
            // Some APIs limit rates with 413, and then say when to try again. A proxy refuses large requests with it.
            413 if later().is_none() => (ErrorKind::InvalidSpec, None),
            413 | 429 => (ErrorKind::RateLimited, later()),
            500.. => (ErrorKind::Unavailable, later()),
            _ => (ErrorKind::Unexpected, None),
        }
    }

    /// The error for a refusal, with the API's own message or, without one, the status' name. The outcome of a write that a
    /// server failed is unknown. `request_id` names the header with the cloud's id of the request.
    #[must_use]
    pub fn error(&self, target: &Target, kind: ErrorKind, message: &str, request_id: &str) -> Error {
        let message = if message.is_empty() {
            self.status.canonical_reason().unwrap_or("without a message")
        } else {
            message
        };
        let status = self.status.as_u16();
        let mut error = Error::new(kind, format!("{target}: {status} {message}")).with_status(status);
        // 501 is a refusal: the request was read and is not supported.
        if self.status.is_server_error() && self.status != StatusCode::NOT_IMPLEMENTED {
            error = error.with_outcome(RequestOutcome::Unknown);
        }
        if let Some(id) = self.header(request_id) {
            error = error.with_context("request_id", one_line(id));
        }
        error
    }

    /// `Retry-After`: seconds, or a date. A number that is too large is a long wait; anything else is `None`.
    #[must_use]
    pub fn retry_after(&self, now: Timestamp) -> Option<Retry> {
        let value = self.header(RETRY_AFTER.as_str())?.trim();
        let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            Duration::from_secs(value.parse().unwrap_or(u64::MAX))
        } else {
            let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
            Duration::try_from(date.duration_since(now)).unwrap_or_default()
        };
        Some(Retry::from_header(wait))
    }
}

/// Returns a text of an API as one line without control characters, and without its middle if it is too long.
#[must_use]
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    let mut line = words.join(" ");
    let begin = line.char_indices().nth(MESSAGE_BEGIN);
    let end = line.char_indices().nth_back(MESSAGE_END - 1);
    if let (Some((begin, _)), Some((end, _))) = (begin, end)
        && begin < end
    {
        line.replace_range(begin..end, " .. ");
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn target() -> Target {
        Target {
            method: Method::GET,
            path: "/v2/machines".into(),
        }
    }

    fn answer(status: u16, retry_after: &str) -> Answer {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, retry_after.parse().unwrap());
        headers.insert("x-request-id", "req-1".parse().unwrap());
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers,
            body: Vec::new(),
        }
    }

    #[test]
    fn a_status_has_a_kind_an_outcome_and_a_text() {
        use ErrorKind::{Conflict, InvalidSpec, NotFound, RateLimited, Unavailable, Unexpected, Unsupported};
        let wait = Some(Retry::After(Duration::from_secs(7)));
        for (status, method, kind, retry, outcome) in [
            (400, Method::GET, Unexpected, None, RequestOutcome::NotDone),
            (422, Method::POST, InvalidSpec, None, RequestOutcome::NotDone),
            (404, Method::GET, NotFound, None, RequestOutcome::NotDone),
            (412, Method::PUT, Conflict, Some(Retry::Never), RequestOutcome::NotDone),
            (413, Method::PUT, RateLimited, wait, RequestOutcome::NotDone),
            (429, Method::PUT, RateLimited, wait, RequestOutcome::NotDone),
            (501, Method::PUT, Unsupported, None, RequestOutcome::NotDone),
            (503, Method::PUT, Unavailable, wait, RequestOutcome::Unknown),
        ] {
            let answer = answer(status, "7");
            assert_eq!(answer.kind(&method), (kind, retry), "{method} {status}");
            let error = answer.error(&target(), kind, "", "x-request-id");
            assert_eq!((error.kind(), error.outcome()), (kind, outcome), "{status}");
        }
        let too_large = answer(413, "").kind(&Method::PUT);
        assert_eq!(too_large, (InvalidSpec, None), "a proxy refuses the size");
        let error = |message| answer(404, "").error(&target(), NotFound, message, "x-request-id");
        assert_eq!(
            error("no such machine").to_string(),
            "GET /v2/machines: 404 no such machine (request_id=req-1)"
        );
        assert!(error("").to_string().contains("404 Not Found"));
    }

    #[test]
    fn retry_after_may_be_a_date() {
        let now: Timestamp = "1994-11-06T08:49:30Z".parse().unwrap();
        let wait = |value: &str| answer(503, value).retry_after(now);
        let seconds = |seconds| Some(Retry::After(Duration::from_secs(seconds)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), seconds(7));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:00 GMT"), seconds(0));
        assert_eq!(wait("12"), seconds(12));
        assert_eq!(wait("soon"), None);
        let mut without = answer(503, "");
        without.headers.clear();
        assert_eq!(without.retry_after(now), None);
    }

    #[test]
    fn no_retry_after_is_longer_than_five_minutes() {
        let now: Timestamp = "1994-11-06T08:49:30Z".parse().unwrap();
        let wait = |value: &str| answer(503, value).retry_after(now);
        let longest = Some(Retry::After(Duration::from_secs(300)));
        for value in [
            "300",
            "301",
            "86400",
            "18446744073709551615",
            "99999999999999999999999999",
            "Sat, 06 Nov 2094 08:49:37 GMT",
        ] {
            assert_eq!(wait(value), longest, "{value}");
        }
        for value in ["", "-1", "1.5", "1e99", "inf"] {
            assert_eq!(wait(value), None, "{value}");
        }
    }

    #[test]
    fn an_answer_that_is_incomplete_may_be_requested_again() {
        #[derive(Debug, serde::Deserialize)]
        struct List {
            #[expect(dead_code, reason = "only its presence counts")]
            machines: Vec<String>,
        }
        for (body, what, cause) in [
            (r#"{"machines": ["a"#, "was cut off", "EOF"),
            ("{}", "has an unexpected form", "missing field `machines`"),
        ] {
            let error = serde_json::from_str::<List>(body).unwrap_err();
            let error = Failure::Shape(error).into_error(&target());
            assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Backoff));
            assert!(error.to_string().contains(what), "{error}");
            assert!(error.report().contains(cause), "{}", error.report());
        }
    }

    #[test]
    fn a_long_message_loses_its_middle() {
        let whole = "ü".repeat(MESSAGE_BEGIN + MESSAGE_END);
        assert_eq!(one_line(&whole), whole);
        let text = one_line(&format!("first{}last", "ü".repeat(2 * MESSAGE_BEGIN)));
        assert!(text.starts_with("first") && text.ends_with("last"), "{text}");
        assert_eq!(text.chars().count(), MESSAGE_BEGIN + 4 + MESSAGE_END);
        assert_eq!(one_line(" a\r\n\u{1b}b\t"), "a b");
    }

    #[tokio::test]
    async fn a_request_on_a_refused_connection_was_not_done() {
        // The port of a listener that was closed.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = super::super::http_client(&Default::default(), &Default::default(), "test").unwrap();
        let failed = client.get(format!("http://{address}/secret?token=hunter2")).send().await.unwrap_err();
        let error = Failure::Transport(failed).into_error(&target());
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, RequestOutcome::NotDone));
        assert!(error.report().contains(&address.to_string()), "{}", error.report());
        assert!(!error.report().contains("hunter2"), "{}", error.report());
    }
}
