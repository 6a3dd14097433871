//! From a node and the cloud's answers to what is done, without doing it: upstream's table, and where we differ.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use ccm_core::testkit::FakeCloud;
use serde_json::json;

use super::{not_ready::Finding, *};
use crate::controllers::node_object::{SHUTDOWN_TAINT, UNINITIALIZED_TAINT};

/// The outcome for a node.
#[derive(Debug, PartialEq, Eq)]
enum NodeVerdict {
    /// The cloud was not asked and nothing is written.
    Ignored,
    Kept,
    Tainted,
    Untainted,
    Deleted,
}

use Answer::{Absent, Failed, Off, On, Unmanaged, Unresolved};
use NodeVerdict::{Deleted, Ignored, Kept, Tainted as GotTaint, Untainted};

const OURS: &str = "fake://n";

fn node(ready: Option<&str>, provider_id: &str, taints: &[(&str, &str)]) -> Arc<NodeObject> {
    let taints: Vec<_> = taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect();
    let conditions: Vec<_> =
        ready.map(|status| json!({"type": "Ready", "status": status})).into_iter().collect();
    let node = json!({
        "metadata": {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"providerID": provider_id, "taints": taints},
        "status": {"conditions": conditions},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// The same answer about all nodes in a pass that takes no time, beside a node that is found.
fn answers(asked: &[Arc<NodeObject>], answer: Answer, now: Instant) -> Answers {
    let finding = |node: &Arc<NodeObject>| Finding {
        view: Arc::clone(&node.view),
        answer,
    };
    Answers {
        findings: asked.iter().map(finding).collect(),
        present: true,
        failure: None,
        began: now,
        ended: now,
        generation: Some(0),
    }
}

/// Gives the answers, one a pass.
fn outcome(node: &Arc<NodeObject>, given: &[Answer]) -> NodeVerdict {
    let confirm = Duration::from_secs(10);
    let mut not_ready =
        NotReadyNodes::new(Duration::from_secs(5), confirm, LifecycleConfig::UNRESOLVED_CONFIRM);
    let mut brake = Brake::default();
    let managed = is_managed(node, |id| id.starts_with("fake://"));
    if managed && decide::is_recovered(node) {
        return Untainted;
    }
    not_ready.observe(node, managed, Instant::now());
    let mut outcome = Ignored;
    for answer in given {
        let Some(now) = not_ready.next_due() else {
            return outcome;
        };
        let asked = not_ready.take_due(now);
        let proven = not_ready.record(&answers(&asked, *answer, now));
        let totals = Totals {
            present: true,
            all: 10,
            missing: proven.len(),
            share: 0.25,
        };
        let decision = brake.decide(proven, &totals, now);
        let (key, effect) = SHUTDOWN_TAINT;
        outcome = match decision.delete.as_slice() {
            [] if *answer == Off && !node.has_exact_taint(key, effect) => GotTaint,
            [] => Kept,
            _ => return Deleted,
        };
    }
    outcome
}

#[test]
fn upstreams_table_under_our_rules() {
    let shutdown = [SHUTDOWN_TAINT];
    let uninitialized = [(UNINITIALIZED_TAINT, "NoSchedule")];
    let (no, unknown, yes) = (Some("False"), Some("Unknown"), Some("True"));
    let two_absent: &[Answer] = &[Absent, Absent];
    #[rustfmt::skip]
    let cases: &[(&str, Arc<NodeObject>, &[Answer], NodeVerdict)] = &[
        ("not ready, missing", node(no, OURS, &[]), two_absent, Deleted),
        ("not ready, missing, asked once", node(no, OURS, &[]), &[Absent], Kept),
        ("not ready, the question fails", node(no, OURS, &[]), &[Failed; 50], Kept),
        ("not ready, there", node(no, OURS, &[]), &[On; 50], Kept),
        ("unknown, missing", node(unknown, OURS, &[]), two_absent, Deleted),
        ("no condition, missing", node(None, OURS, &[]), two_absent, Deleted),
        ("unknown, there", node(unknown, OURS, &[]), &[On; 50], Kept),
        ("ready, missing", node(yes, OURS, &[]), two_absent, Ignored),
        ("not ready, switched off", node(no, OURS, &[]), &[Off], GotTaint),
        ("switched off, tainted already", node(no, OURS, &shutdown), &[Off; 5], Kept),
        ("switched off, the key with another effect", node(no, OURS, &[(SHUTDOWN_TAINT.0, "NoExecute")]), &[Off], GotTaint),
        ("found by name, switched off", node(no, "", &uninitialized), &[Off], GotTaint),
        ("running again, not ready yet: the taint stays", node(no, OURS, &shutdown), &[On; 5], Kept),
        ("ready, tainted", node(yes, OURS, &shutdown), &[], Untainted),
        ("ready, switched off", node(yes, OURS, &[]), &[Off], Ignored),
        ("unknown, off first, then missing", node(unknown, OURS, &[]), &[Off, Absent, Absent], Deleted),
        ("no provider ID, waits for it, silent, nowhere by name", node(unknown, "", &uninitialized), &[Unresolved; 50], Deleted),
        ("the same for a short time", node(unknown, "", &uninitialized), &[Unresolved; 10], Kept),
        ("the same, the question fails now and then", node(unknown, "", &uninitialized), &[Unresolved, Failed, Unresolved, Failed], Kept),
        ("the same, its kubelet reports", node(no, "", &uninitialized), &[Unresolved; 200], Kept),
        ("the provider leaves it unmanaged", node(no, OURS, &[]), &[Unmanaged; 50], Kept),
        // Where upstream would delete or write, and we do not.
        ("bare metal", node(no, "", &[]), &[Unresolved; 50], Ignored),
        ("bare metal, ready, tainted by another client", node(yes, "", &shutdown), &[], Ignored),
        ("another cloud's", node(no, "aws:///z/i-1", &[]), two_absent, Ignored),
        ("another cloud's, ready, tainted by it", node(yes, "aws:///z/i-1", &shutdown), &[], Ignored),
        ("missing, but not twice in a row", node(no, OURS, &[]), &[Absent, Failed, Absent, On, Absent], Kept),
    ];
    for (name, node, answers, expected) in cases {
        assert_eq!(outcome(node, answers), *expected, "{name}");
    }
}

/// Nodes that are not ready and wait for their initialization: the cloud's listing lost their names.
#[test]
fn uninitialized_nodes_that_a_cloud_leaves_out_of_its_lists_are_not_deleted_all_at_once() {
    let cloud = FakeCloud::default();
    let object = |name: String, ready: &str, provider_id: &str| {
        let taint = json!({"key": UNINITIALIZED_TAINT, "effect": "NoSchedule"});
        let taints: Vec<_> = provider_id.is_empty().then_some(taint).into_iter().collect();
        let node = json!({
            "metadata": {"name": name, "uid": format!("uid-of-{name}")},
            "spec": {"providerID": provider_id, "taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value::<NodeObject>(node).unwrap())
    };
    let owned = (0..20).map(|i| object(format!("up-{i}"), "True", &format!("fake://up-{i}")));
    let lost = (0..100).map(|i| object(format!("new-{i}"), "Unknown", ""));
    let nodes: Vec<_> = owned.chain(lost).collect();

    let mut not_ready = NotReadyNodes::new(
        Duration::from_secs(5),
        Duration::from_secs(10),
        LifecycleConfig::UNRESOLVED_CONFIRM,
    );
    let mut brake = Brake::default();
    for node in &nodes {
        let managed = is_managed(node, |id| cloud.owns(id));
        not_ready.observe(node, managed, Instant::now());
    }
    // Until the ten minutes are over in which the names must stay unknown.
    let (now, proven) = loop {
        let now = not_ready.next_due().unwrap();
        let asked = not_ready.take_due(now);
        let proven = not_ready.record(&answers(&asked, Unresolved, now));
        if !proven.is_empty() {
            break (now, proven);
        }
    };
    assert_eq!(proven.len(), 100);
    let totals = Totals::of(&not_ready, &nodes, &cloud, true, 0.25);
    let decision = brake.decide(proven, &totals, now);
    assert_eq!((decision.totals.missing, decision.totals.all), (100, 120));
    assert_eq!(decision.delete.len(), 1);
    assert!(decision.blocked.iter().all(|(_, reason)| *reason == BlockReason::Share));
}
