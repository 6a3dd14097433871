//! Problems of a Service, for `validate`.

use std::fmt;

use crate::ErrorKind;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The Service does not work.
    Error,
    /// The Service works, but probably not as intended.
    Warning,
    /// The check could not be done: the cloud is unreachable, or failed.
    Unknown,
}

impl Severity {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
        }
    }

    /// The severity of a check that failed with this error of the cloud.
    #[must_use]
    pub fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::RateLimited
            | ErrorKind::Unavailable
            | ErrorKind::Timeout
            | ErrorKind::Conflict
            | ErrorKind::Unexpected => Self::Unknown,
            _ => Self::Error,
        }
    }
}

/// A part of a Service to which a finding refers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// The Service as a whole.
    Whole,
    /// The annotation of this name.
    Annotation(String),
    /// This field of the `spec`.
    Spec(&'static str),
}

impl Field {
    /// The annotation of this name.
    #[must_use]
    pub fn annotation(key: &str) -> Self {
        Self::Annotation(key.to_owned())
    }

    /// The names that lead to it in a manifest.
    #[must_use]
    pub fn path(&self) -> Vec<&str> {
        match self {
            Self::Whole => Vec::new(),
            Self::Annotation(key) => vec!["metadata", "annotations", key],
            Self::Spec(name) => vec!["spec", name],
        }
    }
}

/// The name for people: an annotation by its name alone, and nothing for a Service as a whole.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Annotation(key) => f.write_str(key),
            Self::Spec(name) => write!(f, "spec.{name}"),
        }
    }
}

/// A problem of a Service. The framework finds its line in the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFinding {
    /// The severity: [`Severity::Error`] if the Service gets no load balancer.
    pub severity: Severity,
    /// The field with the problem.
    pub field: Field,
    /// The problem. One line, lower case, no full stop; the field is not repeated.
    pub message: String,
    /// The correction; empty if the message contains it.
    pub fix: String,
}
