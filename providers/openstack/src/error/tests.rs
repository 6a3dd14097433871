//! Recorded faults, and connection failures.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ccm_core::{RequestOutcome, client::rest::Failure, plan::WriteConflict};
use http::{HeaderMap, Method, header::RETRY_AFTER};

use super::*;

#[derive(serde::Deserialize)]
struct Case {
    case: String,
    status: u16,
    #[serde(default)]
    body: Option<Value>,
    #[serde(default)]
    text_body: String,
    #[serde(default)]
    retry_after: Option<String>,
    kind: String,
    text: String,
    #[serde(default)]
    after: Option<u64>,
    #[serde(default = "get")]
    method: String,
    /// Whether a retry is forbidden.
    #[serde(default)]
    retry: Option<String>,
    #[serde(default)]
    busy: bool,
    #[serde(default)]
    stale: bool,
    #[serde(default)]
    unknown: Option<bool>,
}

fn get() -> String {
    "GET".to_owned()
}

fn target() -> Target {
    Target {
        method: Method::GET,
        path: "/v2.1/servers/detail".into(),
    }
}

#[test]
fn recorded_faults_become_the_right_errors() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../testdata/faults.json")).unwrap();
    for case in cases {
        let mut headers = HeaderMap::new();
        headers.insert("x-openstack-request-id", "req-1".parse().unwrap());
        if let Some(after) = &case.retry_after {
            headers.insert(RETRY_AFTER, after.parse().unwrap());
        }
        let body = case.body.map_or(case.text_body, |body| body.to_string()).into_bytes();
        let answer = Answer {
            status: StatusCode::from_u16(case.status).unwrap(),
            headers,
            body,
        };
        let target = Target {
            method: case.method.parse().unwrap(),
            ..target()
        };
        let error = refused(&target, &answer);
        let text = error.to_string();
        assert_eq!(error.kind().as_str(), case.kind, "{}: {text}", case.case);
        assert!(text.contains(&case.text), "{}: {text}", case.case);
        assert!(
            text.starts_with(&format!("{} /v2.1/servers/detail: {}", case.method, case.status)),
            "{}: {text}",
            case.case
        );
        assert!(text.ends_with("(request_id=req-1)"), "{}: {text}", case.case);
        assert!(!text.contains('\n'), "{}: {text}", case.case);
        if let Some(after) = case.after {
            let wait = Duration::from_secs(after);
            let expected = match case.retry_after {
                Some(_) => Retry::After(wait),
                None => Retry::Fixed(wait),
            };
            assert_eq!(error.retry(), expected, "{}", case.case);
        } else if case.retry.as_deref() == Some("never") {
            assert_eq!(error.retry(), Retry::Never, "{}", case.case);
        } else {
            assert_eq!(error.retry(), error.kind().default_retry(), "{}", case.case);
        }
        let conflict = WriteConflict::of(&error);
        let busy = matches!(conflict, Some(WriteConflict::Busy(_)));
        assert_eq!(busy, case.busy, "{}", case.case);
        let stale = conflict == Some(WriteConflict::Stale);
        assert_eq!(stale, case.stale, "{}", case.case);
        let unknown = case.unknown.unwrap_or(case.status >= 500 && case.status != 501);
        assert_eq!(error.outcome() == RequestOutcome::Unknown, unknown, "{}", case.case);
    }
}

#[test]
fn answers_of_other_servers_are_permanent_and_broken_connections_are_not() {
    let refusal = |status, body: &str| {
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
        };
        refused(&target(), &answer)
    };
    let shape = |body: &str| {
        let error = serde_json::from_str::<Value>(body).unwrap_err();
        Failure::Shape(error).into_error(&target())
    };
    let itself = r#"{"faultstring": "no", "faultcode": "Client"}"#;
    for error in [
        refusal(403, itself),
        refusal(404, itself),
        refusal(404, "<html>no such path</html>"),
        shape("<html>welcome</html>"),
    ] {
        assert!(is_permanent(&error), "{error:?}");
    }
    for error in [
        refusal(401, itself),
        refusal(429, ""),
        refusal(500, itself),
        refusal(503, "<html>down</html>"),
        shape(r#"{"versions": ["#),
    ] {
        assert!(!is_permanent(&error), "{error:?}");
    }
}
