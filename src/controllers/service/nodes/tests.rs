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

/// Both changes.
fn and(first: impl FnOnce(&mut Value), second: impl FnOnce(&mut Value)) -> impl FnOnce(&mut Value) {
    move |node: &mut Value| {
        first(node);
        second(node);
    }
}

#[test]
fn a_member_is_neither_excluded_nor_being_deleted() {
    let deleting = |node: &mut Value| node["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
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

fn not_ready(node: &mut Value) {
    node["status"]["conditions"][0]["status"] = json!("False");
}

/// The kubelet does not report.
fn silent(node: &mut Value) {
    node["status"]["conditions"][0]["status"] = json!("Unknown");
}

/// How load balancers see a change of a node.
#[derive(PartialEq)]
enum NodeChange {
    Nothing,
    /// A change of a node that is not and was not a member, or only of its readiness.
    Beside,
    /// A node joined, changed, or left while its kubelet reports.
    Members,
    /// A node left, and its kubelet does not report.
    Loss,
}

#[test]
fn load_balancers_follow_only_changes_of_members() {
    let now = Instant::now();
    let ready = |status: &'static str| {
        move |node: &mut Value| node["status"]["conditions"][0]["status"] = json!(status)
    };
    let deleting = |node: &mut Value| node["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    let zone = |node: &mut Value| node["metadata"]["labels"]["zone"] = json!("b");
    let id = |node: &mut Value| node["spec"]["providerID"] = json!("fake://other");
    let address = |node: &mut Value| node["status"]["addresses"][0]["address"] = json!("10.0.0.2");
    for (what, before, after, change) in [
        ("heartbeat", node(|_| {}), node(|_| {}), NodeChange::Nothing),
        ("not ready", node(|_| {}), node(ready("False")), NodeChange::Beside),
        ("ready", node(ready("Unknown")), node(|_| {}), NodeChange::Beside),
        ("another taint", node(|_| {}), node(taint("other")), NodeChange::Nothing),
        ("excluded", node(|_| {}), node(label("true")), NodeChange::Members),
        (
            "excluded and not ready",
            node(|_| {}),
            node(and(ready("False"), label("true"))),
            NodeChange::Members,
        ),
        (
            "excluded and silent",
            node(|_| {}),
            node(and(ready("Unknown"), label("true"))),
            NodeChange::Loss,
        ),
        ("included again", node(label("true")), node(|_| {}), NodeChange::Members),
        ("still excluded", node(label("true")), node(label("t")), NodeChange::Beside),
        ("drained", node(|_| {}), node(taint(AUTOSCALER_TAINT)), NodeChange::Members),
        (
            "drained and silent",
            node(ready("Unknown")),
            node(and(ready("Unknown"), taint(AUTOSCALER_TAINT))),
            NodeChange::Loss,
        ),
        ("being deleted while it is ready", node(|_| {}), node(deleting), NodeChange::Members),
        (
            "being deleted and not ready",
            node(|_| {}),
            node(and(ready("False"), deleting)),
            NodeChange::Loss,
        ),
        // Services may choose nodes by their labels.
        ("another label", node(|_| {}), node(zone), NodeChange::Members),
        (
            "a label of one that is excluded",
            node(label("true")),
            node(and(label("true"), zone)),
            NodeChange::Beside,
        ),
        ("another provider ID", node(|_| {}), node(id), NodeChange::Members),
        ("another address", node(|_| {}), node(address), NodeChange::Members),
    ] {
        let mut nodes = Nodes::default();
        nodes.apply("n1", Some(&before), now);
        nodes.forget_changes();
        let generation = nodes.generation();
        let differs = nodes.apply("n1", Some(&after), now);
        assert_eq!(differs, change != NodeChange::Nothing, "{what}");
        let due = match change {
            NodeChange::Nothing | NodeChange::Beside => None,
            NodeChange::Members => Some(now + QUIET),
            NodeChange::Loss => Some(now),
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
    assert!(nodes.apply("n1", Some(&node(not_ready)), at(21)));
    assert!(nodes.apply("n1", None, at(21)));
    assert_eq!(nodes.due(), Some(at(21)), "a loss");
    nodes.apply("later", Some(&node(|_| {})), at(21));
    assert!(nodes.take_due(at(21)), "a node that joins does not put off a loss");
    assert_eq!(nodes.set().eligible().count(), 11);
}

#[test]
fn nodes_that_leave_while_they_are_ready_are_gathered_and_followed_once_in_ten_seconds() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut nodes = Nodes::default();
    for name in ["n1", "n2", "n3", "n4", "n5"] {
        nodes.apply(name, Some(&node(|_| {})), at(0));
    }
    assert!(nodes.take_due(at(2)));
    nodes.apply("n1", Some(&node(taint(AUTOSCALER_TAINT))), at(20));
    assert_eq!(nodes.due(), Some(at(22)));
    assert!(nodes.take_due(at(22)));
    // The next ones, and those that replace them, wait until 10 s have passed.
    nodes.apply("n2", None, at(23));
    assert_eq!(nodes.due(), Some(at(32)));
    nodes.apply("n6", Some(&node(|_| {})), at(24));
    assert_eq!(nodes.due(), Some(at(32)));
    assert!(nodes.take_due(at(32)));
    nodes.apply("n7", Some(&node(|_| {})), at(40));
    assert_eq!(nodes.due(), Some(at(42)));
    assert!(nodes.take_due(at(42)));
    // Long after the last one left, a series of nodes that join is followed as before.
    nodes.apply("n8", Some(&node(|_| {})), at(90));
    assert!(nodes.take_due(at(92)));
    nodes.apply("n9", Some(&node(|_| {})), at(93));
    assert_eq!(nodes.due(), Some(at(95)));
}

#[test]
fn a_node_that_dies_while_it_leaves_is_removed_at_once() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let drained_and_silent = node(and(silent, taint(AUTOSCALER_TAINT)));
    let not_ready_and_drained = node(and(not_ready, taint(AUTOSCALER_TAINT)));
    let mut nodes = Nodes::default();
    for name in ["n1", "n2", "n3"] {
        nodes.apply(name, Some(&node(|_| {})), at(0));
    }
    assert!(nodes.take_due(at(2)));
    nodes.apply("n1", Some(&node(taint(AUTOSCALER_TAINT))), at(20));
    assert!(nodes.apply("n1", Some(&drained_and_silent), at(21)));
    assert_eq!(nodes.due(), Some(at(21)), "silent");
    assert!(nodes.take_due(at(21)));
    assert!(nodes.apply("n1", None, at(22)));
    assert_eq!(nodes.due(), None, "its removal was followed");

    nodes.apply("n2", Some(&node(taint(AUTOSCALER_TAINT))), at(30));
    nodes.apply("n2", Some(&not_ready_and_drained), at(30));
    assert_eq!(nodes.due(), Some(at(32)));
    // The condition of a node that was not ready before.
    nodes.apply("n2", Some(&drained_and_silent), at(31));
    assert_eq!(nodes.due(), Some(at(31)));
    assert!(nodes.take_due(at(31)));

    nodes.apply("n3", Some(&node(taint(AUTOSCALER_TAINT))), at(50));
    nodes.apply("n3", Some(&not_ready_and_drained), at(51));
    assert_eq!(nodes.due(), Some(at(52)));
    nodes.apply("n3", None, at(51));
    assert_eq!(nodes.due(), Some(at(51)), "deleted after it was not ready");
}

#[test]
fn a_node_that_stays_after_all_is_no_loss_when_it_is_silent() {
    let now = Instant::now();
    let mut nodes = Nodes::default();
    nodes.apply("n1", Some(&node(|_| {})), now);
    nodes.forget_changes();
    nodes.apply("n1", Some(&node(label("true"))), now);
    nodes.apply("n1", Some(&node(|_| {})), now);
    nodes.apply("n1", Some(&node(silent)), now);
    assert_eq!(nodes.due(), Some(now + QUIET));
}
