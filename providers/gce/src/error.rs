//! Maps the errors of Compute Engine. They arrive as HTTP answers, with a *reason*, or inside operations, with a *code*; the service
//! chooses between both for the same failure. The HTTP status alone does not decide: 403 is a missing permission, too many calls
//! or a full quota, and 400 an invalid value or an object that is in use.
//!
//! | Reason or code | Kind | Retry |
//! |---|---|---|
//! | `rateLimitExceeded`, `userRateLimitExceeded`, `RATE_LIMIT_EXCEEDED` | `RateLimited` | in the next minute |
//! | `quotaExceeded`, `limitExceeded`, `QUOTA_EXCEEDED` | `QuotaExceeded` | never |
//! | `forbidden`, `insufficientPermissions`, `accessNotConfigured`, `PERMISSION_DENIED` | `PermissionDenied` | never |
//! | `notFound`, `RESOURCE_NOT_FOUND` | `NotFound` | never |
//! | `alreadyExists`, `memberAlreadyExists`, `RESOURCE_ALREADY_EXISTS` | `AlreadyExists` | never |
//! | `conditionNotMet`, `CONDITION_NOT_MET` | `Conflict` | backoff: a fingerprint is stale |
//! | `resourceNotReady`, `RESOURCE_NOT_READY`, `RESOURCE_OPERATION_IN_PROGRESS` | `Conflict` | after 2 s |
//! | `resourceInUseByAnotherResource`, `IP_IN_USE_BY_ANOTHER_RESOURCE` | `Conflict` | after 15 s |
//! | `required`, `invalid`, `badRequest`, `instanceInMultipleLoadBalancedIgs` | `InvalidSpec` | never |
//! | `backendError`, `internalError`, `INTERNAL_ERROR`, `OPERATION_CANCELED_BY_USER` | `Unavailable` | backoff |
//! | others | by status | |

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ccm_core::{Error, ErrorKind, RequestOutcome, Retry};

/// The wait for an object that is being created or changed.
const NOT_READY: Duration = Duration::from_secs(2);
/// The wait for an object that another one uses.
const IN_USE: Duration = Duration::from_secs(15);
/// The limits of calls are those of a minute.
const MINUTE: u64 = 60;

/// A failure as Compute Engine reports it, in an answer or in an operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    /// The HTTP status of the answer, or the one in the operation.
    pub(crate) status: Option<u16>,
    /// The first reason of the answer, or the first code of the operation.
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The header `Date` of the answer.
    pub(crate) date: Option<String>,
}

/// The kind of a failure, and when to retry if that differs from the kind's default.
fn kind(refusal: &Refusal) -> (ErrorKind, Option<Retry>) {
    let reason = refusal.reason.to_ascii_lowercase().replace('_', "");
    match reason.as_str() {
        "ratelimitexceeded" | "userratelimitexceeded" => {
            (ErrorKind::RateLimited, Some(Retry::After(until_next_minute(refusal.date.as_deref()))))
        }
        "quotaexceeded" | "limitexceeded" => (ErrorKind::QuotaExceeded, None),
        "forbidden"
        | "insufficientpermissions"
        | "accessnotconfigured"
        | "permissiondenied"
        | "iampermissiondenied"
        | "servicedisabled"
        | "accesstokenscopeinsufficient" => (ErrorKind::PermissionDenied, None),
        "autherror" | "accesstokenexpired" => (ErrorKind::Unauthenticated, None),
        "notfound" | "resourcenotfound" => (ErrorKind::NotFound, None),
        "alreadyexists" | "memberalreadyexists" | "resourcealreadyexists" => (ErrorKind::AlreadyExists, None),
        "conditionnotmet" => (ErrorKind::Conflict, Some(Retry::Backoff)),
        "resourcenotready" | "resourceoperationinprogress" => {
            (ErrorKind::Conflict, Some(Retry::Fixed(NOT_READY)))
        }
        "resourceinusebyanotherresource" | "ipinusebyanotherresource" => {
            (ErrorKind::Conflict, Some(Retry::Fixed(IN_USE)))
        }
        "badrequest" | "invalid" | "invalidusage" | "instanceinmultipleloadbalancedigs" => {
            (ErrorKind::InvalidSpec, None)
        }
        "backenderror" | "internalerror" | "operationcanceledbyuser" => (ErrorKind::Unavailable, None),
        // `required` also stands in the answer without a token, whose status is 401.
        _ => (kind_of_status(refusal.status), None),
    }
}

fn kind_of_status(status: Option<u16>) -> ErrorKind {
    match status {
        Some(400) => ErrorKind::InvalidSpec,
        Some(401) => ErrorKind::Unauthenticated,
        Some(403) => ErrorKind::PermissionDenied,
        Some(404) => ErrorKind::NotFound,
        Some(409 | 412) => ErrorKind::Conflict,
        Some(429) => ErrorKind::RateLimited,
        Some(408 | 500..) => ErrorKind::Unavailable,
        _ => ErrorKind::Unexpected,
    }
}

impl Refusal {
    /// The error for this failure.
    pub(crate) fn into_error(self) -> Error {
        let (kind, retry) = kind(&self);
        let text = match (self.status, self.reason.as_str(), self.message.trim()) {
            (_, reason, message) if !reason.is_empty() && !message.is_empty() => {
                format!("{reason}: {}", message.trim_end_matches('.'))
            }
            (Some(status), "", "") => format!("status {status}"),
            (_, reason, message) => format!("{reason}{}", message.trim_end_matches('.')),
        };
        let mut error = Error::new(kind, text);
        // The front ends of the API answer these while the change may be carried out.
        if kind == ErrorKind::Unavailable {
            error = error.with_outcome(RequestOutcome::Unknown);
        }
        if let Some(status) = self.status {
            error = error.with_status(status);
        }
        match retry {
            Some(retry) => error.with_retry(retry),
            None => error,
        }
    }
}

/// The time until the limits of calls are reset: at the next full minute of Google's clock, whose time is in the answer.
fn until_next_minute(date: Option<&str>) -> Duration {
    let answered = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let seconds = match answered {
        Some(answered) => u64::try_from(answered.timestamp().as_second()).unwrap_or_default(),
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
    };
    Duration::from_secs(MINUTE - seconds % MINUTE)
}

/// Whether an error says that this object does not exist, and not its project or zone. `path`: the end of the object's path.
pub(crate) fn names_missing(error: &Error, path: &str) -> bool {
    let is_named = error
        .message()
        .split(['\'', '"', ' '])
        .any(|word| word.strip_suffix(path).is_some_and(|before| before.is_empty() || before.ends_with('/')));
    error.kind() == ErrorKind::NotFound && is_named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, reason: &str, message: &str) -> Refusal {
        Refusal {
            status: Some(status),
            reason: reason.to_owned(),
            message: message.to_owned(),
            date: Some("Sun, 29 Nov 2026 01:40:48 GMT".to_owned()),
        }
    }

    #[test]
    fn reasons_of_answers_and_codes_of_operations_have_the_same_kinds() {
        use ErrorKind::{
            AlreadyExists, Conflict, InvalidSpec, NotFound, PermissionDenied, QuotaExceeded, RateLimited,
            Unauthenticated, Unavailable,
        };
        let (in_use, not_ready) = (Retry::Fixed(IN_USE), Retry::Fixed(NOT_READY));
        let minute = Retry::After(Duration::from_secs(12));
        for (status, reason, kind, retry) in [
            (403, "rateLimitExceeded", RateLimited, minute),
            (403, "quotaExceeded", QuotaExceeded, Retry::Never),
            (403, "QUOTA_EXCEEDED", QuotaExceeded, Retry::Never),
            (403, "forbidden", PermissionDenied, Retry::Never),
            (403, "insufficientPermissions", PermissionDenied, Retry::Never),
            (404, "notFound", NotFound, Retry::Never),
            (409, "alreadyExists", AlreadyExists, Retry::Never),
            (409, "RESOURCE_ALREADY_EXISTS", AlreadyExists, Retry::Never),
            (412, "conditionNotMet", Conflict, Retry::Backoff),
            (400, "resourceNotReady", Conflict, not_ready),
            (400, "resourceInUseByAnotherResource", Conflict, in_use),
            (400, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", Conflict, in_use),
            (409, "IP_IN_USE_BY_ANOTHER_RESOURCE", Conflict, in_use),
            (400, "invalid", InvalidSpec, Retry::Never),
            (400, "required", InvalidSpec, Retry::Never),
            (401, "required", Unauthenticated, Retry::Never),
            (503, "backendError", Unavailable, Retry::Backoff),
            (502, "", Unavailable, Retry::Backoff),
            (429, "", RateLimited, Retry::Backoff),
        ] {
            let error = refusal(status, reason, "Some text.").into_error();
            assert_eq!((error.kind(), error.retry()), (kind, retry), "{status} {reason}");
        }
    }

    #[test]
    fn a_message_is_one_sentence_with_its_reason() {
        let error =
            refusal(403, "quotaExceeded", "Quota 'ROUTES' exceeded.  Limit: 3.0 globally.").into_error();
        assert_eq!(error.to_string(), "quotaExceeded: Quota 'ROUTES' exceeded.  Limit: 3.0 globally");
        assert_eq!(refusal(502, "", "").into_error().to_string(), "status 502");
    }

    #[test]
    fn calls_are_refused_until_the_next_minute_of_the_clock_of_google() {
        let at = |text| until_next_minute(Some(text)).as_secs();
        assert_eq!(at("Sun, 29 Nov 2026 01:40:00 GMT"), 60);
        assert_eq!(at("Sun, 29 Nov 2026 01:40:59 GMT"), 1);
        assert!((1..=60).contains(&until_next_minute(None).as_secs()));
    }

    #[test]
    fn only_the_object_itself_is_missing() {
        let text = |text: &str| refusal(404, "notFound", text).into_error();
        let of = "The resource 'projects/p/zones/z/instances/n-1' was not found";
        let zone = "The resource 'projects/p/zones/z' was not found";
        assert!(names_missing(&text(of), "zones/z/instances/n-1"));
        assert!(!names_missing(&text(of), "zones/z/instances/1"));
        assert!(!names_missing(&text(zone), "zones/z/instances/n-1"));
        let denied = refusal(403, "forbidden", of).into_error();
        assert!(!names_missing(&denied, "zones/z/instances/n-1"));
    }
}
