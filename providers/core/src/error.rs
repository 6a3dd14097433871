//! The one error type that crosses a crate boundary.
//!
//! A provider maps its SDK's errors into it in one place (`error.rs` of the provider). The framework uses
//! [`ErrorKind`] to report the error and [`Retry`] to schedule the next attempt; it never evaluates the text.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

/// Result with our [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, by the reaction of callers and users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object does not exist. If absence is an expected answer, it is a value, not this error.
    NotFound,
    /// The object already exists.
    AlreadyExists,
    /// The object was changed concurrently, or it is busy: read it again, then retry.
    Conflict,
    /// The config file, a flag or the environment is invalid. A user must change it.
    InvalidConfig,
    /// A Kubernetes object has an invalid value (annotation, field, provider ID).
    InvalidSpec,
    /// The cloud does not accept the credentials.
    Unauthenticated,
    /// The credentials are valid but do not permit the request.
    PermissionDenied,
    /// Too many requests; the cloud asks to slow down.
    RateLimited,
    /// A limit on the number of objects is reached.
    QuotaExceeded,
    /// The cloud could not be reached, or failed internally.
    Unavailable,
    /// The answer did not arrive in time.
    Timeout,
    /// This cloud, or this version of it, does not support the request.
    Unsupported,
    /// This process is not, or no longer, the leader that may write.
    NotLeader,
    /// The answer was invalid, or a bug.
    Unexpected,
}

impl ErrorKind {
    /// The name in event reasons and metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::InvalidConfig => "InvalidConfig",
            Self::InvalidSpec => "InvalidSpec",
            Self::Unauthenticated => "Unauthenticated",
            Self::PermissionDenied => "PermissionDenied",
            Self::RateLimited => "RateLimited",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::Unavailable => "Unavailable",
            Self::Timeout => "Timeout",
            Self::Unsupported => "Unsupported",
            Self::NotLeader => "NotLeader",
            Self::Unexpected => "Unexpected",
        }
    }

    /// When to retry after an error of this kind, unless the error has its own [`Retry`].
    #[must_use]
    pub fn default_retry(self) -> Retry {
        match self {
            Self::Conflict | Self::RateLimited | Self::Unavailable | Self::Timeout => Retry::Backoff,
            _ => Retry::Never,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When the request may be retried. [`Never`](Self::Never) concerns the *client kit*; the controllers' queues back off on
/// every error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A retry would fail in the same way.
    Never,
    /// Retry with exponential backoff.
    Backoff,
    /// Retry with exponential backoff, but not earlier than after this time. The wait comes from a header of the cloud
    /// ([`Self::from_header`]): the caller raises it to its own backoff.
    After(Duration),
    /// Retry after exactly this time. The provider chose the wait: callers do not raise it.
    Fixed(Duration),
}

impl Retry {
    /// The longest wait that a header can impose.
    pub const LONGEST_AFTER: Duration = Duration::from_secs(300);

    /// A wait from a header (`Retry-After`), cut to [`Self::LONGEST_AFTER`]: a wrong header must not stop the work for
    /// a day.
    #[must_use]
    pub fn from_header(wait: Duration) -> Self {
        Self::After(wait.min(Self::LONGEST_AFTER))
    }

    /// The wait of a caller whose own backoff is `backoff`.
    #[must_use]
    pub fn wait(self, backoff: Duration) -> Duration {
        match self {
            Self::Never | Self::Backoff => backoff,
            Self::After(wait) => wait.max(backoff),
            Self::Fixed(wait) => wait,
        }
    }
}

/// The effect of the failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The cloud refused it, or it was never sent: it had no effect.
    NotDone,
    /// It was sent without a valid answer: it may have been executed. A write must not be repeated without a read.
    Unknown,
}

/// An error with the facts that a user needs to fix it.
///
/// `Display` is one line without the sources; [`Error::report`] adds them. Never contains a secret.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    retry: Retry,
    outcome: RequestOutcome,
    status: Option<u16>,
    operation: Option<&'static str>,
    message: String,
    context: Vec<(&'static str, String)>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`. `message`: lower case, one line, no full stop.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            retry: kind.default_retry(),
            outcome: RequestOutcome::NotDone,
            status: None,
            operation: None,
            message: message.into(),
            context: Vec::new(),
            source: None,
        }))
    }

    /// Sets when the request may be retried, in place of the kind's default.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// Sets the effect of the failed request (see [`RequestOutcome::Unknown`]).
    #[must_use]
    pub fn with_outcome(mut self, outcome: RequestOutcome) -> Self {
        self.0.outcome = outcome;
        self
    }

    /// Sets the HTTP status of the answer.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.0.status = Some(status);
        self
    }

    /// Sets the operation that failed, unless it is already set.
    #[must_use]
    pub fn with_operation(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Adds a fact, such as `("server", id)` or `("request_id", id)`.
    #[must_use]
    pub fn with_context(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.0.context.push((key, value.into()));
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// When the request may be retried.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// Whether the request may have been executed.
    #[must_use]
    pub fn outcome(&self) -> RequestOutcome {
        self.0.outcome
    }

    /// The HTTP status of the answer; `None` without an answer, and for errors of clouds whose client does not report it.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// The message, without operation, facts and causes: the same for the same failure.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operation that failed, if it is known.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The added facts.
    #[must_use]
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// The whole chain in one line, for logs and events.
    #[must_use]
    pub fn report(&self) -> String {
        report(self)
    }

    /// As [`report`](Self::report), without what differs for each request: equal for all calls that fail in the same way.
    #[must_use]
    pub fn report_without_request(&self) -> String {
        let mut error = self.clone();
        error.0.context.retain(|(key, _)| !["request_id", "encoded_message"].contains(key));
        error.report()
    }
}

/// Returns the result, or `value` in place of an expected error of this kind.
///
/// # Errors
/// Errors of other kinds.
pub fn accept<T>(result: Result<T>, kind: ErrorKind, value: T) -> Result<T> {
    match result {
        Err(error) if error.kind() == kind => Ok(value),
        result => result,
    }
}

/// The chain of an error in one line: each cause after a colon, a cause that its parent already prints left out.
#[must_use]
pub fn report(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = source.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.0.operation {
            write!(f, "{operation}: ")?;
        }
        f.write_str(&self.0.message)?;
        for (i, (key, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.0.context.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.report())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_with_operation_and_facts() {
        let error = Error::new(ErrorKind::NotFound, "no such server")
            .with_operation("server_get")
            .with_operation("ignored")
            .with_context("server", "a1")
            .with_context("request_id", "req-1");
        assert_eq!(error.to_string(), "server_get: no such server (server=a1, request_id=req-1)");
        assert_eq!(error.report_without_request(), "server_get: no such server (server=a1)");
        assert_eq!(error.retry(), Retry::Never);
    }

    #[test]
    fn report_prints_each_cause_once() {
        let io = std::io::Error::other("connection refused");
        let error = Error::new(ErrorKind::Unavailable, "could not reach the cloud").with_source(io);
        assert_eq!(error.report(), "could not reach the cloud: connection refused");
        let same = Error::new(ErrorKind::Unavailable, "it says connection refused")
            .with_source(std::io::Error::other("connection refused"));
        assert_eq!(same.report(), "it says connection refused");
    }

    #[test]
    fn kinds_choose_their_retry() {
        assert_eq!(ErrorKind::Unavailable.default_retry(), Retry::Backoff);
        assert_eq!(ErrorKind::PermissionDenied.default_retry(), Retry::Never);
        let later =
            Error::new(ErrorKind::RateLimited, "slow down").with_retry(Retry::After(Duration::from_secs(7)));
        assert_eq!(later.clone().retry(), Retry::After(Duration::from_secs(7)));
    }

    #[test]
    fn only_a_wait_from_a_header_is_cut_and_raised() {
        let seconds = Duration::from_secs;
        assert_eq!(Retry::from_header(seconds(u64::MAX)), Retry::After(seconds(300)));
        let backoff = seconds(5);
        for (retry, wait) in [
            (Retry::Never, 5),
            (Retry::Backoff, 5),
            (Retry::from_header(seconds(0)), 5),
            (Retry::from_header(seconds(7)), 7),
            (Retry::from_header(seconds(86400)), 300),
            (Retry::Fixed(seconds(1)), 1),
            (Retry::Fixed(seconds(1000)), 1000),
        ] {
            assert_eq!(retry.wait(backoff), seconds(wait), "{retry:?}");
        }
    }
}
