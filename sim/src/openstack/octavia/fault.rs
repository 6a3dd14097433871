//! Errors in Octavia's words.

use http::StatusCode;
use serde_json::json;

use super::title;
use crate::http::Reply;
use crate::openstack::region::Kind;

/// An error in Octavia's words.
#[derive(Debug)]
pub(super) struct OctaviaFault {
    pub(super) status: StatusCode,
    message: String,
    /// The title of an error of the framework, whose errors have another form.
    framework: Option<&'static str>,
}

impl OctaviaFault {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            framework: None,
        }
    }

    /// An error of the client.
    pub(super) fn client(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn validation(detail: impl std::fmt::Display) -> Self {
        Self::client(format!("Validation failure: {detail}"))
    }

    pub(super) fn option(value: impl std::fmt::Display, option: impl std::fmt::Display) -> Self {
        Self::client(format!("{value} is not a valid option for {option}"))
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(super) fn immutable(kind: &str, id: &str) -> Self {
        Self::conflict(format!("{kind} {id} is immutable and cannot be updated."))
    }

    pub(super) fn forbidden() -> Self {
        Self::new(StatusCode::FORBIDDEN, "Policy does not allow this request to be performed.")
    }

    pub(super) fn not_found(kind: &str, id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{kind} {id} not found."))
    }

    pub(super) fn quota(kind: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, format!("Quota has been met for resources: {kind}"))
    }

    pub(super) fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// An option that a provider does not support.
    pub(super) fn unsupported(provider: &str, message: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            format!("Provider '{provider}' does not support a requested option: {message}"),
        )
    }

    pub(super) fn framework(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            framework: Some(status.canonical_reason().unwrap_or("Error")),
            ..Self::new(status, message)
        }
    }

    /// The pool in a member's path does not exist.
    pub(super) fn missing_pool(id: &str) -> Self {
        Self {
            framework: Some("Bad Request"),
            ..Self::not_found(title(Kind::Pool), id)
        }
    }

    /// Query arguments that an operation does not have.
    pub(super) fn unknown_argument(name: &str) -> Self {
        Self::client(format!("Unknown argument: \"{name}\""))
    }

    pub(super) fn reply(self) -> Reply {
        if let Some(title) = self.framework {
            let body = json!({"code": self.status.as_u16(), "title": title, "description": self.message});
            return Reply::json(self.status, &body);
        }
        error(self.status, &self.message)
    }
}

/// Octavia's error document.
pub(crate) fn error(status: StatusCode, message: &str) -> Reply {
    let code = if status.is_server_error() {
        "Server"
    } else {
        "Client"
    };
    let body = json!({"faultcode": code, "faultstring": message, "debuginfo": null});
    Reply::json(status, &body)
}
