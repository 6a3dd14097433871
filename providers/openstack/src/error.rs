//! Maps errors of OpenStack services and of the connection to [`ccm_core::Error`].

use std::time::Duration;

use ccm_core::{
    Error, ErrorKind, Retry,
    client::rest::{Answer, Target, one_line},
};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::Value;

/// The header with the cloud's ID of a request, as in its logs.
pub(crate) const REQUEST_ID: &str = "x-openstack-request-id";

/// The usual duration of a small change of a load balancer.
const BUSY: Duration = Duration::from_secs(1);

/// Whether an early retry is useless: the service refused, or another server answers in its place.
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

/// A server in front of the service does not have the path.
#[derive(Debug, thiserror::Error)]
#[error("the answer does not come from the service itself")]
struct AnotherServer;

/// The error for a refusal.
pub(crate) fn refused(target: &Target, answer: &Answer) -> Error {
    let fault = Fault::parse(&answer.body);
    let (kind, retry) = classify(target, answer, &fault);
    let mut error = answer.error(target, kind, &fault.message, REQUEST_ID);
    if let Some(retry) = retry {
        error = error.with_retry(retry);
    }
    if answer.status == StatusCode::NOT_FOUND && !fault.is_openstack {
        error = error.with_source(AnotherServer);
    }
    error
}

fn classify(target: &Target, answer: &Answer, fault: &Fault) -> (ErrorKind, Option<Retry>) {
    let (kind, retry) = answer.kind(&target.method);
    match answer.status.as_u16() {
        403 | 409 if fault.is_quota() => (ErrorKind::QuotaExceeded, None),
        400 if ["ExternalIpAddressExhausted", "RoutesExhausted"].contains(&&*fault.name) => {
            (ErrorKind::QuotaExceeded, None)
        }
        400 | 422 if !fault.is_openstack => (ErrorKind::Unexpected, None),
        // This is not an answer of the service: a proxy in front of it does not have the path.
        404 if !fault.is_openstack => (ErrorKind::Unavailable, None),
        409 if fault.is_immutable() => {
            let later = answer.retry_after(Timestamp::now());
            (ErrorKind::Conflict, later.or(Some(Retry::Fixed(BUSY))))
        }
        409 if fault.is_duplicate() => (ErrorKind::AlreadyExists, None),
        _ => (kind, retry),
    }
}

/// The content of a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The message in one line, or empty.
    pub(crate) message: String,
    /// The name of the kind of fault (`itemNotFound`, `OverQuota`), or empty.
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
            value.get(key).and_then(Value::as_str).map(one_line).unwrap_or_default()
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
        // Barbican. Its web framework, which Octavia also uses, answers like this for a path that does not exist.
        let description = text(&root, "description");
        if !description.is_empty() && root.get("code").is_some_and(Value::is_u64) {
            return Self {
                is_openstack: !description.starts_with("The resource could not be found"),
                message: description,
                name: text(&root, "title"),
            };
        }
        // Version negotiation and newer services return a list of errors.
        if let Some(first) = root.get("errors").and_then(Value::as_array).and_then(|errors| errors.first()) {
            return Self {
                message: text(first, "detail"),
                name: text(first, "title"),
                is_openstack: true,
            };
        }
        for (name, inner) in &object {
            let message = match inner {
                Value::Object(_) => text(inner, "message"),
                Value::String(message) if name == "NeutronError" => one_line(message),
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

    /// The page of another server: its text, unless it is HTML.
    fn text(body: &[u8]) -> Self {
        let text = one_line(&String::from_utf8_lossy(body));
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

    /// Nova uses the names `forbidden` and `overLimit`, Neutron `OverQuota`; Octavia only has a message. A network
    /// without a free address is a limit, too.
    fn is_quota(&self) -> bool {
        const NAMES: [&str; 4] = [
            "OverQuota",
            "overLimit",
            "IpAddressGenerationFailure",
            "IpAddressGenerationFailureAllSubnets",
        ];
        NAMES.contains(&&*self.name) || self.message.to_lowercase().contains("quota")
    }

    /// Whether Octavia is working on the load balancer or an object below it.
    fn is_immutable(&self) -> bool {
        self.message.contains("is immutable") || self.message.contains("Invalid state PENDING_")
    }

    /// Whether the object exists already or is in use.
    fn is_duplicate(&self) -> bool {
        const NAMES: [&str; 5] = [
            "SecurityGroupRuleExists",
            "FloatingIPPortAlreadyAssociated",
            "IpAddressAlreadyAllocated",
            "IpAddressInUse",
            "PortInUse",
        ];
        // Octavia's faults have no names, Neutron's always do.
        NAMES.contains(&&*self.name) || (self.name == "Client" && self.message.contains("already"))
    }
}

#[cfg(test)]
mod tests;
