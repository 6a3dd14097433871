//! What is wrong with a Service, for `validate`.

use std::fmt;

use crate::ErrorKind;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// It will not work like this.
    Error,
    /// It will work, though hardly as meant.
    Warning,
    /// It could not be found out: the cloud cannot be reached, or failed.
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

    /// What an error of the cloud means for what was asked: whether it would come again, or nobody knows.
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

/// A part of a Service that something is about.
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

/// As people name it: an annotation by its name alone. Nothing for a Service as a whole.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Annotation(key) => f.write_str(key),
            Self::Spec(name) => write!(f, "spec.{name}"),
        }
    }
}

/// Something that is wrong with a Service. The framework knows where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFinding {
    /// How bad it is: [`Severity::Error`] for what keeps the Service from its load balancer.
    pub severity: Severity,
    /// What it is about.
    pub field: Field,
    /// What is wrong. One line, lower case, no full stop; the field is not repeated.
    pub message: String,
    /// What to do; empty if the message says it.
    pub fix: String,
}
