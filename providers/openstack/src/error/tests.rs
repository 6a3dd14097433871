//! The table of recorded faults, and the ways in which a connection fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

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
    /// That it may not be tried again.
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

fn asked() -> Asked {
    Asked {
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
        let body = case
            .body
            .map_or(case.text_body, |body| body.to_string())
            .into_bytes();
        let refusal = Refusal {
            status: StatusCode::from_u16(case.status).unwrap(),
            headers,
            body,
        };
        let asked = Asked {
            method: case.method.parse().unwrap(),
            ..asked()
        };
        let error = Failure::Refused(refusal).into_error(&asked);
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
        assert_eq!(is_busy(&error).is_some(), case.busy, "{}", case.case);
        assert_eq!(is_stale(&error), case.stale, "{}", case.case);
        let unknown = case.unknown.unwrap_or(case.status >= 500 && case.status != 501);
        assert_eq!(error.outcome() == Outcome::Unknown, unknown, "{}", case.case);
    }
}

#[test]
fn retry_after_may_be_a_date() {
    let now: Timestamp = "1994-11-06T08:49:30Z".parse().unwrap();
    let wait = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        retry_after(&headers, now)
    };
    let seconds = |seconds| Some(Retry::After(Duration::from_secs(seconds)));
    assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), seconds(7));
    assert_eq!(wait("Sun, 06 Nov 1994 08:49:00 GMT"), seconds(0));
    assert_eq!(wait("12"), seconds(12));
    assert_eq!(wait("soon"), None);
    assert_eq!(retry_after(&HeaderMap::new(), now), None);
}

#[test]
fn no_retry_after_is_longer_than_five_minutes() {
    let now: Timestamp = "1994-11-06T08:49:30Z".parse().unwrap();
    let wait = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        retry_after(&headers, now)
    };
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
fn a_wait_of_ours_for_a_busy_load_balancer_is_kept_and_a_shorter_one_of_a_header_raised() {
    let busy = |retry| is_busy(&Error::new(ErrorKind::Conflict, "busy").with_retry(retry));
    assert_eq!(busy(Retry::Fixed(BUSY)), Some(BUSY));
    assert_eq!(busy(Retry::After(Duration::ZERO)), Some(BUSY));
    assert_eq!(busy(Retry::After(9 * BUSY)), Some(9 * BUSY));
    assert_eq!(busy(Retry::Backoff), None);
}

#[test]
fn what_another_server_answers_is_permanent_and_what_breaks_off_is_not() {
    let refusal = |status, body: &str| {
        let refusal = Refusal {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
        };
        Failure::Refused(refusal).into_error(&asked())
    };
    let shape = |body: &str| {
        let error = serde_json::from_str::<Value>(body).unwrap_err();
        Failure::Shape(error).into_error(&asked())
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

#[test]
fn answers_that_are_no_answers_may_be_asked_for_again() {
    let cut = serde_json::from_str::<Value>(r#"{"servers": [{"id": "#).unwrap_err();
    let error = Failure::Shape(cut).into_error(&asked());
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Backoff)
    );
    assert!(error.to_string().contains("was cut off"), "{error}");
    let empty = serde_json::from_str::<crate::instances::records::ServerPage>("{}").unwrap_err();
    let error = Failure::Shape(empty).into_error(&asked());
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Backoff)
    );
    assert!(
        error.report().contains("missing field `servers`"),
        "{}",
        error.report()
    );
}

#[test]
fn a_long_message_loses_its_middle() {
    let whole = "ü".repeat(MESSAGE_BEGIN + MESSAGE_END);
    assert_eq!(clean(&whole), whole);
    let text = clean(&format!("first{}last", "ü".repeat(2 * MESSAGE_BEGIN)));
    assert!(text.starts_with("first") && text.ends_with("last"), "{text}");
    assert_eq!(text.chars().count(), MESSAGE_BEGIN + 4 + MESSAGE_END);
}

#[tokio::test]
async fn a_refused_connection_was_not_done() {
    // The port of a listener that is gone.
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let failed = client
        .get(format!("http://{address}/secret?token=hunter2"))
        .send()
        .await
        .unwrap_err();
    let error = Failure::Transport(failed).into_error(&asked());
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Unavailable, Outcome::NotDone)
    );
    assert!(
        error.report().contains(&address.to_string()),
        "{}",
        error.report()
    );
    assert!(!error.report().contains("hunter2"), "{}", error.report());
}
