//! From the error codes of AWS to [`ccm_core::Error`].

use ccm_core::{Error, ErrorKind, RequestOutcome};

/// The context key under which an error has its code.
const CODE: &str = "code";

/// The error of a failed call: the HTTP status and the error code, if the response has them, the message of AWS or of the
/// cause, and the ID of the request in the logs of AWS.
pub(crate) fn of(status: Option<u16>, code: Option<&str>, message: &str, request_id: Option<&str>) -> Error {
    let kind = match (code, status) {
        (Some(code), status) => kind(code, status),
        // No response, one of a proxy or load balancer, or an incomplete one.
        (None, None | Some(..=299 | 500..)) => ErrorKind::Unavailable,
        (None, Some(429)) => ErrorKind::RateLimited,
        (None, Some(_)) => ErrorKind::Unexpected,
    };
    // EC2 ends a refusal with text that is another one each time. Equal failures have equal messages.
    let (message, encoded) = match message.split_once("Encoded authorization failure message:") {
        Some((message, encoded)) => (message, Some(encoded.trim())),
        None => (message, None),
    };
    let text = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let start = text.get(..14).unwrap_or(&text).to_ascii_lowercase();
    let is_html = start.starts_with("<html") || start.starts_with("<!doctype html");
    let message = match (text.as_str(), status) {
        ("", Some(status)) => format!("AWS answered with HTTP status {status}"),
        ("", None) => "AWS did not answer".to_owned(),
        _ if is_html => "the answer is an HTML page".to_owned(),
        (text, _) if text.starts_with('<') => "the answer cannot be read".to_owned(),
        (text, _) => text.to_owned(),
    };
    let mut error = Error::new(kind, message);
    // A server that failed may have applied the change.
    if code.is_none() || kind == ErrorKind::Unavailable {
        error = error.with_outcome(RequestOutcome::Unknown);
    }
    for (key, value) in [
        (CODE, code),
        ("encoded_message", encoded),
        ("request_id", request_id),
    ] {
        if let Some(value) = value {
            error = error.with_context(key, value);
        }
    }
    error
}

/// The code of AWS in an error.
pub(crate) fn code(error: &Error) -> Option<&str> {
    let (_, code) = error.context().iter().find(|(key, _)| *key == CODE)?;
    Some(code)
}

/// Too many requests.
const THROTTLED: &[&str] = &[
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "BandwidthLimitExceeded",
    "PriorRequestNotComplete",
    "SlowDown",
    "DependencyThrottle",
];
/// Credentials that are wrong or have expired.
const UNAUTHENTICATED: &[&str] = &[
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "IncompleteSignature",
    "InvalidSignatureException",
    "RequestTimeTooSkewed",
    "RequestInTheFuture",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "InvalidIdentityToken",
    "IDPRejectedClaim",
];
/// Credentials or an account without the permission.
const DENIED: &[&str] = &[
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "NotAuthorized",
    "OptInRequired",
    "PendingVerification",
    "Blocked",
];
/// An object that an annotation or the config names, not the one that is read or changed.
const INVALID: &[&str] = &[
    "CertificateNotFound",
    "SSLPolicyNotFound",
    "SubnetNotFound",
    "AllocationIdNotFound",
    "AvailabilityZoneNotSupported",
    "UnsupportedProtocol",
    "InvalidTarget",
    "InvalidSubnet",
    "InvalidScheme",
    "InvalidSecurityGroup",
    "InvalidConfigurationRequest",
    "OperationNotPermitted",
    "IncompatibleProtocols",
    "InvalidLoadBalancerAction",
    "PolicyTypeNotFound",
    "ALPNPolicyNotFound",
];
/// Another operation changes the object, or another object uses it.
const CONFLICT: &[&str] = &[
    "DependencyViolation",
    "ResourceInUse",
    "IncorrectState",
    "IncorrectInstanceState",
    "ConcurrentTagAccess",
    "OperationInProgress",
    "IdempotentParameterMismatch",
    "InvalidGroup.InUse",
    "CapacityReservationPending",
];
/// An action that this region or API does not have.
const UNSUPPORTED: &[&str] = &[
    "UnsupportedOperation",
    "InvalidAction",
    "UnknownOperation",
    "UnsupportedOperationException",
];
/// AWS failed on its side.
const UNAVAILABLE: &[&str] = &[
    "InternalError",
    "InternalFailure",
    "InternalServiceError",
    "ServiceUnavailable",
    "Unavailable",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServerInternal",
];

/// The kind of an error by its code; unlisted codes are classified by their form.
fn kind(code: &str, status: Option<u16>) -> ErrorKind {
    let begins = |words: &[&str]| words.iter().any(|word| code.starts_with(word));
    let ends = |words: &[&str]| words.iter().any(|word| code.ends_with(word));
    if THROTTLED.contains(&code) {
        ErrorKind::RateLimited
    } else if UNAUTHENTICATED.contains(&code) {
        ErrorKind::Unauthenticated
    } else if DENIED.contains(&code) {
        ErrorKind::PermissionDenied
    } else if INVALID.contains(&code) {
        ErrorKind::InvalidSpec
    } else if ["RouteAlreadyExists", "ResourceAlreadyExists"].contains(&code) {
        ErrorKind::AlreadyExists
    } else if CONFLICT.contains(&code) {
        ErrorKind::Conflict
    } else if UNSUPPORTED.contains(&code) {
        ErrorKind::Unsupported
    } else if UNAVAILABLE.contains(&code) {
        ErrorKind::Unavailable
    } else if begins(&["TooMany", "Insufficient"])
        || ends(&["LimitExceeded", "LimitExceededException"])
        || code == "TargetGroupAssociationLimit"
    {
        ErrorKind::QuotaExceeded
    } else if ends(&["NotFound", "NotFoundException"]) {
        ErrorKind::NotFound
    } else if begins(&["Duplicate"]) || ends(&[".Duplicate"]) {
        ErrorKind::AlreadyExists
    } else if begins(&["Invalid", "Missing", "Validation"]) {
        ErrorKind::InvalidSpec
    } else if status.is_some_and(|status| status >= 500) {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Unexpected
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::Retry;

    use super::*;

    #[test]
    fn equal_refusals_have_equal_messages() {
        let denied = |blob: &str| {
            let message = format!("You are not authorized. Encoded authorization failure message: {blob}");
            of(Some(403), Some("UnauthorizedOperation"), &message, None)
        };
        assert_eq!(denied("x").message(), denied("y").message());
        assert_eq!(denied("x").message(), "You are not authorized.");
    }

    #[test]
    fn every_code_that_is_handled_has_its_kind() {
        let kinds = "
            RateLimited: RequestLimitExceeded Throttling ThrottlingException EC2ThrottledException TooManyRequestsException
            Unauthenticated: AuthFailure ExpiredToken RequestExpired InvalidClientTokenId
            Unauthenticated: SignatureDoesNotMatch InvalidSignatureException RequestTimeTooSkewed RequestInTheFuture
            PermissionDenied: UnauthorizedOperation AccessDenied AccessDeniedException
            NotFound: InvalidInstanceID.NotFound InvalidGroup.NotFound InvalidRoute.NotFound InvalidPermission.NotFound
            NotFound: LoadBalancerNotFound TargetGroupNotFound ListenerNotFound PolicyNotFound
            AlreadyExists: InvalidGroup.Duplicate InvalidPermission.Duplicate RouteAlreadyExists
            AlreadyExists: DuplicateLoadBalancerName DuplicateTargetGroupName DuplicateListener
            QuotaExceeded: RulesPerSecurityGroupLimitExceeded RouteLimitExceeded TooManyLoadBalancers
            QuotaExceeded: TooManyTargetGroups TooManyListeners TooManyTargets TooManyRegistrationsForTargetId
            Conflict: DependencyViolation ResourceInUse InvalidGroup.InUse CapacityReservationPending
            QuotaExceeded: TargetGroupAssociationLimit
            InvalidSpec: ALPNPolicyNotFound
            InvalidSpec: InvalidInstanceID.Malformed InvalidID InvalidInstanceID InvalidTarget CertificateNotFound
            InvalidSpec: SSLPolicyNotFound UnsupportedProtocol InvalidSubnet SubnetNotFound AvailabilityZoneNotSupported
            InvalidSpec: AllocationIdNotFound InvalidScheme InvalidConfigurationRequest OperationNotPermitted
            InvalidSpec: ValidationError MissingParameter
            Unsupported: UnsupportedOperation InvalidAction
            Unavailable: InternalError ServiceUnavailable
            Unexpected: SomethingNew";
        for line in kinds.lines().skip(1) {
            let (kind, codes) = line.trim().split_once(": ").unwrap();
            for code in codes.split(' ') {
                let error = of(Some(400), Some(code), "no", Some("r1"));
                assert_eq!(format!("{:?}", error.kind()), kind, "{code}");
                assert_eq!(super::code(&error), Some(code));
                assert!(error.to_string().contains("request_id=r1"), "{error}");
            }
        }
        // EC2 throttles with status 503, and the call was not executed.
        let throttled = of(Some(503), Some("RequestLimitExceeded"), "", None);
        let retry = (throttled.retry(), throttled.outcome());
        assert_eq!(retry, (Retry::Backoff, RequestOutcome::NotDone));
        let unknown = of(Some(500), Some("SomethingNew"), "", None);
        let unknown = (unknown.kind(), unknown.outcome());
        assert_eq!(unknown, (ErrorKind::Unavailable, RequestOutcome::Unknown));
    }

    #[test]
    fn a_response_of_a_proxy_is_not_an_error_of_aws() {
        use ErrorKind::{Unavailable, Unexpected};
        let html = "<html>\n<body>Bad Gateway</body>";
        for (status, message, kind, text) in [
            (Some(502), html, Unavailable, "the answer is an HTML page"),
            (Some(500), "", Unavailable, "AWS answered with HTTP status 500"),
            (Some(404), "no such path", Unexpected, "no such path"),
            (None, "", Unavailable, "AWS did not answer"),
        ] {
            let error = of(status, None, message, None);
            assert_eq!((error.kind(), error.message()), (kind, text));
            assert_eq!(error.outcome(), RequestOutcome::Unknown);
        }
    }
}
