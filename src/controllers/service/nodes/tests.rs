#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

fn node(change: impl FnOnce(&mut Value)) -> NodeObject {
    let mut node = json!({
        "metadata": {"name": "n1", "uid": "u1", "labels": {"zone": "a"}},
        "spec": {"providerID": "fake://n1", "taints": []},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

fn label(value: &str) -> impl FnOnce(&mut Value) {
    move |node| node["metadata"]["labels"][EXCLUDED] = json!(value)
}

fn taint(key: &'static str) -> impl FnOnce(&mut Value) {
    move |node| node["spec"]["taints"] = json!([{"key": key, "effect": "NoSchedule"}])
}

#[test]
fn a_member_is_neither_excluded_nor_being_deleted() {
    let deleting = |node: &mut Value| node["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    let not_ready = |node: &mut Value| node["status"]["conditions"][0]["status"] = json!("False");
    let no_id = |node: &mut Value| node["spec"]["providerID"] = json!("");
    for (what, node, eligible) in [
        ("plain", node(|_| {}), true),
        ("excluded: true", node(label("true")), false),
        ("excluded: empty", node(label("")), false),
        ("excluded: foo", node(label("foo")), false),
        ("excluded: false", node(label("false")), true),
        ("excluded: F", node(label("F")), true),
        ("autoscaler", node(taint(AUTOSCALER_TAINT)), false),
        ("uninitialized", node(taint("node.cloudprovider.kubernetes.io/uninitialized")), true),
        ("unreachable", node(taint("node.kubernetes.io/unreachable")), true),
        ("not ready", node(not_ready), true),
        ("without provider ID", node(no_id), true),
        ("being deleted", node(deleting), false),
    ] {
        assert_eq!(is_eligible(&node), eligible, "{what}");
    }
}

/// How load balancers see a change of a node.
#[derive(PartialEq)]
enum Change {
    Nothing,
    /// A change of a node that is not and was not a member, or only of its readiness.
    Beside,
    /// A node joined, or changed.
    Members,
    /// A node is not a member any more.
    Loss,
}

#[test]
fn load_balancers_follow_only_changes_of_members() {
    let now = Instant::now();
    let ready = |status: &'static str| {
        move |node: &mut Value| node["status"]["conditions"][0]["status"] = json!(status)
    };
    let zone = |node: &mut Value| node["metadata"]["labels"]["zone"] = json!("b");
    let id = |node: &mut Value| node["spec"]["providerID"] = json!("fake://other");
    let address = |node: &mut Value| node["status"]["addresses"][0]["address"] = json!("10.0.0.2");
    for (what, before, after, change) in [
        ("heartbeat", node(|_| {}), node(|_| {}), Change::Nothing),
        ("not ready", node(|_| {}), node(ready("False")), Change::Beside),
        ("ready", node(ready("Unknown")), node(|_| {}), Change::Beside),
        ("another taint", node(|_| {}), node(taint("other")), Change::Nothing),
        ("excluded", node(|_| {}), node(label("true")), Change::Loss),
        ("included again", node(label("true")), node(|_| {}), Change::Members),
        ("still excluded", node(label("true")), node(label("t")), Change::Beside),
        ("autoscaler", node(|_| {}), node(taint(AUTOSCALER_TAINT)), Change::Loss),
        // Services may choose nodes by their labels.
        ("another label", node(|_| {}), node(zone), Change::Members),
        (
            "a label of one that is excluded",
            node(label("true")),
            node(|node| {
                label("true")(node);
                zone(node);
            }),
            Change::Beside,
        ),
        ("another provider ID", node(|_| {}), node(id), Change::Members),
        ("another address", node(|_| {}), node(address), Change::Members),
    ] {
        let mut nodes = Nodes::default();
        nodes.apply("n1", Some(&before), now);
        nodes.forget_changes();
        let generation = nodes.generation();
        let differs = nodes.apply("n1", Some(&after), now);
        assert_eq!(differs, change != Change::Nothing, "{what}");
        let due = match change {
            Change::Nothing | Change::Beside => None,
            Change::Members => Some(now + QUIET),
            Change::Loss => Some(now),
        };
        assert_eq!(nodes.due(), due, "{what}");
        assert_eq!(nodes.generation() != generation, due.is_some(), "{what}");
    }
}

#[test]
fn joining_nodes_are_gathered_and_lost_ones_are_not_waited_for() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut nodes = Nodes::default();
    for second in 0..=9 {
        nodes.apply(&format!("n{second}"), Some(&node(|_| {})), at(second));
        assert_eq!(nodes.due(), Some(at((second + 2).min(10))));
        assert!(!nodes.take_due(at(second)));
    }
    assert!(nodes.take_due(at(10)));
    assert!(!nodes.take_due(at(20)), "once");
    nodes.apply("late", Some(&node(|_| {})), at(20));
    assert_eq!(nodes.due(), Some(at(22)), "the longest wait begins again");
    assert!(nodes.apply("n1", None, at(21)));
    assert_eq!(nodes.due(), Some(at(21)), "a loss");
    nodes.apply("later", Some(&node(|_| {})), at(21));
    assert!(nodes.take_due(at(21)), "a node that joins does not put off a loss");
    assert_eq!(nodes.set().eligible().count(), 11);
}
