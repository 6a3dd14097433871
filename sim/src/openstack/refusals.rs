//! The limits and refusals of real OpenStack services and of the front ends before them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::faults::{Action, Fault};

/// A refusal by one service, or by the front end of all of them.
fn refusal(service: Option<&str>, method: Option<&str>, code: u16, body: impl Into<String>) -> Fault {
    Fault {
        service: service.map(str::to_owned),
        method: method.map(str::to_owned),
        ..Fault::new(Action::Status {
            code,
            body: Some(body.into()),
            headers: BTreeMap::new(),
        })
    }
}

fn with_retry_after(mut fault: Fault) -> Fault {
    if let Action::Status { headers, .. } = &mut fault.action {
        headers.insert("Retry-After".to_owned(), "1".to_owned());
    }
    fault
}

fn neutron(class: &str, message: &str) -> String {
    json!({"NeutronError": {"type": class, "message": message, "detail": ""}}).to_string()
}

fn octavia(message: &str) -> String {
    json!({"faultcode": "Client", "faultstring": message, "debuginfo": Value::Null}).to_string()
}

fn html(title: &str) -> String {
    format!("<html><body><h1>{title}</h1>\n</body></html>\n")
}

/// All of them. Policies and quotas can change while a client works, so that any request may be refused.
pub(super) fn all() -> Vec<Fault> {
    let policy = "Policy doesn't allow this request to be performed.";
    let over_limit = json!({"overLimit": {
        "code": 413,
        "message": "This request was rate-limited.",
        "details": "Only 10 requests can be made every 60 seconds.",
        "retryAfter": "1",
    }});
    vec![
        refusal(
            Some("compute"),
            None,
            403,
            json!({"forbidden": {"code": 403, "message": policy}}).to_string(),
        ),
        // The limit of Nova's former middleware, which some front ends still have.
        with_retry_after(refusal(Some("compute"), None, 413, over_limit.to_string())),
        refusal(
            Some("network"),
            None,
            403,
            neutron("PolicyNotAuthorized", "rule:this_action is disallowed by policy"),
        ),
        refusal(
            Some("network"),
            Some("POST"),
            409,
            neutron("OverQuota", "Quota exceeded for resources: ['this_resource']."),
        ),
        refusal(Some("load-balancer"), None, 403, octavia(policy)),
        refusal(
            Some("load-balancer"),
            Some("POST"),
            403,
            octavia("Quota has been met for resources: this resource"),
        ),
        // HAProxy before the services.
        with_retry_after(refusal(None, None, 503, html("503 Service Unavailable"))),
        refusal(None, None, 504, html("504 Gateway Time-out")),
        refusal(None, None, 502, html("502 Bad Gateway")),
    ]
}
