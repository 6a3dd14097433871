//! Each call of a create, a change and a delete fails once, in each of the ways in which clouds fail.

use std::collections::BTreeMap;

use ccm_sim::{Action, Fault};
use ccm_testbed::picture::Picture;

use crate::stage::{Stage, annotate, service};

const CONFIG: &str = "manage-security-groups = true\ncreate-monitor = true";
/// With so little patience that an answer that never comes is soon given up. On a busy machine others are late, too.
const IMPATIENT: &str =
    "manage-security-groups = true\ncreate-monitor = true\n[Metadata]\nrequest-timeout = 400ms";

#[derive(Clone, Copy, Debug)]
enum Turn {
    Comes,
    Changes,
    Goes,
}

async fn before(turn: Turn, config: &str) -> Stage {
    let mut stage = Stage::new(2, config).await;
    stage.services.push(service("web", &[80, 443, 8080]));
    if !matches!(turn, Turn::Comes) {
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0]);
    }
    match turn {
        Turn::Comes => {}
        Turn::Changes => {
            let web = stage.service("web");
            web.ports = service("web", &[80, 444, 8080]).ports;
            annotate(web, "loadbalancer.openstack.org/connection-limit", Some("7"));
            annotate(web, "loadbalancer.openstack.org/health-monitor-delay", Some("9"));
            stage.join();
            stage.nodes.remove(0);
        }
        Turn::Goes => stage.service("web").deleting = true,
    }
    stage.sim.clear_calls();
    stage
}

fn immutable() -> Action {
    let text = "Load Balancer 6b0a5a2e is immutable and cannot be updated.";
    let body = serde_json::json!({"faultcode": "Client", "faultstring": text, "debuginfo": null});
    Action::Status {
        code: 409,
        body: Some(body.to_string()),
        headers: BTreeMap::new(),
    }
}

fn throttled() -> Action {
    Action::Status {
        code: 429,
        body: None,
        headers: [("Retry-After".to_owned(), "0".to_owned())].into(),
    }
}

/// Lets each call fail once, if it is one that can fail so, and compares the end with the end without a failure.
async fn each(turn: Turn, action: Action, applies: fn(&str, &str) -> bool) {
    let config = match action {
        Action::CommitThenHang => IMPATIENT,
        _ => CONFIG,
    };
    let mut calm = before(turn, config).await;
    calm.settle().await;
    assert_eq!(calm.complaints(), [""; 0]);
    let expected = Picture::of(&calm.sim, &[]);
    let calls = calm.sim.calls();
    let mut played = 0;
    for nth in 1..=calls.len() {
        let mut stage = before(turn, config).await;
        // Another cloud has other ids; of what the calls are about only the number is the same.
        let call = &calls[nth - 1];
        if !applies(call.service, &call.method) {
            continue;
        }
        let fault = Fault {
            nth: u64::try_from(nth).unwrap(),
            ..Fault::new(action.clone()).once()
        };
        stage.sim.add_fault(fault);
        stage.settle_in_trouble().await;
        played += 1;
        let place = format!("{action:?} at call {nth} ({}) when it {turn:?}", call.op);
        assert_eq!(stage.complaints(), [""; 0], "{place}");
        let problem = Picture::of(&stage.sim, &[]).differs(&expected);
        assert_eq!(problem, None, "{place}");
        assert_eq!(stage.services.is_empty(), matches!(turn, Turn::Goes), "{place}");
        assert!(
            stage
                .sim
                .call_counts()
                .get("loadbalancer_create")
                .copied()
                .unwrap_or(0)
                <= 2,
            "{place}"
        );
    }
    assert!(played > 0, "nothing failed");
}

fn octavia_write(service: &str, method: &str) -> bool {
    service == "load-balancer" && method != "GET"
}

fn any(service: &str, _: &str) -> bool {
    service != "identity"
}

fn write(service: &str, method: &str) -> bool {
    service != "identity" && method != "GET"
}

#[tokio::test]
async fn a_load_balancer_at_work_is_waited_for_at_every_write() {
    for turn in [Turn::Changes, Turn::Goes] {
        each(turn, immutable(), octavia_write).await;
    }
}

#[tokio::test]
async fn a_throttled_call_is_made_later() {
    // Reads are the same at every turn, and being throttled takes its time.
    each(Turn::Comes, throttled(), any).await;
    for turn in [Turn::Changes, Turn::Goes] {
        each(turn, throttled(), write).await;
    }
}

#[tokio::test]
async fn a_call_that_the_cloud_can_not_serve_is_made_again() {
    for turn in [Turn::Comes, Turn::Changes, Turn::Goes] {
        each(turn, Action::status(500), any).await;
    }
}

#[tokio::test]
async fn a_change_of_which_nobody_heard_is_not_made_twice() {
    for turn in [Turn::Comes, Turn::Changes, Turn::Goes] {
        each(turn, Action::CommitThenDrop, write).await;
    }
}

#[tokio::test]
async fn a_change_whose_answer_never_comes_is_not_made_twice() {
    for turn in [Turn::Comes, Turn::Changes, Turn::Goes] {
        each(turn, Action::CommitThenHang, write).await;
    }
}
