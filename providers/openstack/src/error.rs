//! From what an OpenStack service, or the way to it, did to us, to [`ccm_core::Error`].

use std::{fmt::Write as _, time::Duration};

use ccm_core::{Error, ErrorKind, Outcome, Retry};
use http::{HeaderMap, Method, StatusCode, header::RETRY_AFTER};
use jiff::Timestamp;
use serde_json::Value;

/// The header with the cloud's own name of a request, as its logs have it.
pub(crate) const REQUEST_ID: &str = "x-openstack-request-id";

/// How much of a service's own words is repeated: from the beginning, and from the end, where Neutron says what is wrong
/// with a long list that it repeats before.
const MESSAGE_BEGIN: usize = 300;
const MESSAGE_END: usize = 200;
/// A small change of a load balancer takes Octavia about so long.
const BUSY: Duration = Duration::from_secs(1);

/// Why a request gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The request could not be made or sent, or the answer not be read.
    #[error("{0}")]
    Transport(#[source] reqwest::Error),
    /// The answer says no.
    #[error("{0:?}")]
    Refused(Refusal),
    /// The answer says yes, but is not what was asked for.
    #[error("{0}")]
    Shape(#[source] serde_json::Error),
    /// The answer is larger than anything sensible.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
}

/// An answer that says no.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// A request, as errors name it. The query may be long and tells little.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
}

impl Failure {
    /// The error for a request that failed like this.
    pub(crate) fn into_error(self, asked: &Asked) -> Error {
        let Asked { method, path } = asked;
        match self {
            Self::Transport(error) => transport(method, path, error),
            Self::Refused(refusal) => refusal.into_error(asked),
            Self::Shape(error) => {
                // The end of the body was reached too early, or it never was one.
                let what = if error.is_eof() {
                    "was cut off"
                } else {
                    "has an unexpected form"
                };
                Error::new(
                    ErrorKind::Unavailable,
                    format!("{method} {path}: the answer {what}"),
                )
                .with_outcome(Outcome::Unknown)
                .with_source(error)
            }
            Self::TooLarge(_) => Error::new(ErrorKind::Unexpected, format!("{method} {path}"))
                .with_outcome(Outcome::Unknown)
                .with_source(self),
        }
    }
}

/// Whether the answer was larger than what is read of one.
pub(crate) fn is_too_large(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let failure = source.and_then(|source| source.downcast_ref::<Failure>());
    matches!(failure, Some(Failure::TooLarge(_)))
}

/// Whether asking again soon is of no use: the service refused, or something else answers in its place.
pub(crate) fn is_permanent(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    match error.kind() {
        ErrorKind::Unavailable => source.is_some_and(|source| {
            let shape = source.downcast_ref::<serde_json::Error>();
            source.is::<AnotherServer>() || shape.is_some_and(|shape| !shape.is_eof())
        }),
        ErrorKind::Timeout
        | ErrorKind::RateLimited
        | ErrorKind::Conflict
        | ErrorKind::Unauthenticated
        | ErrorKind::NotLeader => false,
        _ => true,
    }
}

/// Something in front of the service has no such path.
#[derive(Debug, thiserror::Error)]
#[error("the answer does not come from the service itself")]
struct AnotherServer;

fn transport(method: &Method, path: &str, error: reqwest::Error) -> Error {
    let (kind, outcome, what) = if error.is_builder() {
        (
            ErrorKind::Unexpected,
            Outcome::NotDone,
            "the request could not be made",
        )
    } else if error.is_connect() {
        (ErrorKind::Unavailable, Outcome::NotDone, "could not connect")
    } else if error.is_timeout() {
        (ErrorKind::Timeout, Outcome::Unknown, "no answer in time")
    } else if error.is_redirect() {
        (ErrorKind::Unexpected, Outcome::NotDone, "redirected too often")
    } else if error.is_body() || error.is_decode() {
        (ErrorKind::Unavailable, Outcome::Unknown, "the answer was cut off")
    } else {
        (
            ErrorKind::Unavailable,
            Outcome::Unknown,
            "the connection was lost",
        )
    };
    // The URL has the query; host and port matter when the network does.
    let host = error.url().map(|url| url.origin().ascii_serialization());
    let mut mapped = Error::new(kind, format!("{method} {path}: {what}")).with_outcome(outcome);
    if let Some(host) = host {
        mapped = mapped.with_context("host", host);
    }
    mapped.with_source(error.without_url())
}

impl Refusal {
    fn into_error(self, asked: &Asked) -> Error {
        let fault = Fault::parse(&self.body);
        let (kind, retry) = self.classify(&fault, &asked.method);
        let Asked { method, path } = asked;
        let mut text = format!("{method} {path}: {}", self.status.as_u16());
        if fault.message.is_empty() {
            let _ = write!(
                text,
                " {}",
                self.status.canonical_reason().unwrap_or("without a message")
            );
        } else {
            let _ = write!(text, " {}", fault.message);
        }
        let mut error = Error::new(kind, text);
        if let Some(retry) = retry {
            error = error.with_retry(retry);
        }
        // Octavia's answer when a provider has no such option: it was looked at and refused.
        if self.status.is_server_error() && self.status != StatusCode::NOT_IMPLEMENTED {
            error = error.with_outcome(Outcome::Unknown);
        }
        if self.status == StatusCode::NOT_FOUND && !fault.is_openstack {
            error = error.with_source(AnotherServer);
        }
        if let Some(id) = self.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()) {
            error = error.with_context("request_id", clean(id));
        }
        error
    }

    fn classify(&self, fault: &Fault, method: &Method) -> (ErrorKind, Option<Retry>) {
        let later = || retry_after(&self.headers, Timestamp::now());
        match self.status.as_u16() {
            401 => (ErrorKind::Unauthenticated, None),
            403 | 409 if fault.is_quota() => (ErrorKind::QuotaExceeded, None),
            400 if matches!(
                fault.name.as_str(),
                "ExternalIpAddressExhausted" | "RoutesExhausted"
            ) =>
            {
                (ErrorKind::QuotaExceeded, None)
            }
            // What was to be made or changed can not be so.
            400 | 422 if *method != Method::GET && fault.is_openstack => (ErrorKind::InvalidSpec, None),
            403 => (ErrorKind::PermissionDenied, None),
            404 if fault.is_openstack => (ErrorKind::NotFound, None),
            // Not the service said that something is not there, but a proxy in front of it that it has no such path.
            404 => (ErrorKind::Unavailable, None),
            405 | 406 | 501 => (ErrorKind::Unsupported, None),
            408 => (ErrorKind::Timeout, None),
            409 if fault.is_immutable() => (ErrorKind::Conflict, later().or(Some(Retry::Fixed(BUSY)))),
            409 if fault.is_duplicate() => (ErrorKind::AlreadyExists, None),
            409 => (ErrorKind::Conflict, None),
            412 => (ErrorKind::Conflict, Some(Retry::Never)),
            413 | 429 => (ErrorKind::RateLimited, later()),
            500.. => (ErrorKind::Unavailable, later()),
            _ => (ErrorKind::Unexpected, None),
        }
    }
}

/// Nothing was done because the cloud is at work on the same thing: how long until it is worth another try.
pub(crate) fn is_busy(error: &Error) -> Option<Duration> {
    match error.retry() {
        retry @ (Retry::After(_) | Retry::Fixed(_)) if error.kind() == ErrorKind::Conflict => {
            Some(retry.wait(BUSY))
        }
        _ => None,
    }
}

/// Nothing was done because the thing is no longer as it was when it was read.
pub(crate) fn is_stale(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict
        && error.retry() == Retry::Never
        && error.outcome() == Outcome::NotDone
}

/// As if what is not there had been deleted.
///
/// # Errors
///
/// Every other one.
pub(crate) fn gone_is_deleted(result: ccm_core::Result<()>) -> ccm_core::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// What a service says of its refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Its words in one line, or empty.
    pub(crate) message: String,
    /// What it calls the kind of fault (`itemNotFound`, `OverQuota`), or empty.
    pub(crate) name: String,
    /// Whether the body has a form that OpenStack services use.
    pub(crate) is_openstack: bool,
}

impl Fault {
    /// Reads the fault shapes of Octavia, Neutron, Nova and Keystone.
    pub(crate) fn parse(body: &[u8]) -> Self {
        let Ok(Value::Object(object)) = serde_json::from_slice(body) else {
            return Self::text(body);
        };
        let text = |value: &Value, key: &str| {
            value
                .get(key)
                .and_then(Value::as_str)
                .map(clean)
                .unwrap_or_default()
        };
        let root = Value::Object(object.clone());
        let faultstring = text(&root, "faultstring");
        if !faultstring.is_empty() {
            return Self {
                message: faultstring,
                name: text(&root, "faultcode"),
                is_openstack: true,
            };
        }
        // Barbican. Its web framework, which Octavia has, too, says so of a path that does not exist.
        let description = text(&root, "description");
        if !description.is_empty() && root.get("code").is_some_and(Value::is_u64) {
            return Self {
                is_openstack: !description.starts_with("The resource could not be found"),
                message: description,
                name: text(&root, "title"),
            };
        }
        // Version negotiation and the newer services: a list of errors.
        if let Some(first) = root
            .get("errors")
            .and_then(Value::as_array)
            .and_then(|errors| errors.first())
        {
            return Self {
                message: text(first, "detail"),
                name: text(first, "title"),
                is_openstack: true,
            };
        }
        for (name, inner) in &object {
            let message = match inner {
                Value::Object(_) => text(inner, "message"),
                Value::String(message) if name == "NeutronError" => clean(message),
                _ => continue,
            };
            if !message.is_empty() {
                let kind = text(inner, "type");
                return Self {
                    message,
                    name: if kind.is_empty() { name.clone() } else { kind },
                    is_openstack: true,
                };
            }
        }
        Self::text(body)
    }

    /// Some other server's page: its first words, unless it is HTML.
    fn text(body: &[u8]) -> Self {
        let text = clean(&String::from_utf8_lossy(body));
        let message = if text.starts_with('<') {
            "(an HTML page)".to_owned()
        } else {
            text
        };
        Self {
            message,
            ..Self::default()
        }
    }

    /// Nova says `forbidden` or `overLimit`, Neutron `OverQuota`, Octavia only says it in words. A network without a free
    /// address is one more limit that was reached.
    fn is_quota(&self) -> bool {
        const NAMES: [&str; 4] = [
            "OverQuota",
            "overLimit",
            "IpAddressGenerationFailure",
            "IpAddressGenerationFailureAllSubnets",
        ];
        NAMES.contains(&self.name.as_str()) || self.message.to_lowercase().contains("quota")
    }

    /// Octavia's words for a load balancer that it is at work on, and for what is below it.
    fn is_immutable(&self) -> bool {
        self.message.contains("is immutable") || self.message.contains("Invalid state PENDING_")
    }

    /// Whether there is one already, or it is taken.
    fn is_duplicate(&self) -> bool {
        const NAMES: [&str; 5] = [
            "SecurityGroupRuleExists",
            "FloatingIPPortAlreadyAssociated",
            "IpAddressAlreadyAllocated",
            "IpAddressInUse",
            "PortInUse",
        ];
        // Octavia's faults have no names, Neutron's all have.
        NAMES.contains(&self.name.as_str()) || (self.name == "Client" && self.message.contains("already"))
    }
}

/// One line without control characters; without its middle if it is too long.
pub(crate) fn clean(text: &str) -> String {
    let mut line = String::new();
    for word in text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
    {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let begin = line.char_indices().nth(MESSAGE_BEGIN);
    let end = line.char_indices().nth_back(MESSAGE_END - 1);
    if let (Some((begin, _)), Some((end, _))) = (begin, end)
        && begin < end
    {
        line.replace_range(begin..end, " .. ");
    }
    line
}

/// `Retry-After`: seconds, or a date. A number that is too large is a long wait; anything else is no wait at all.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Retry> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
        Duration::try_from(date.duration_since(now)).unwrap_or_default()
    };
    Some(Retry::from_header(wait))
}

#[cfg(test)]
mod tests;
