//! From a node and the cloud's answers to what is done, without doing it: upstream's table, and where we differ.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use ccm_core::testkit::FakeCloud;
use serde_json::json;

use super::{
    not_ready::{Finding, Times},
    *,
};
use crate::controllers::node_object::{SHUTDOWN_TAINT, UNINITIALIZED_TAINT};

/// What becomes of a node.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// The cloud was not asked and nothing is written.
    LeftAlone,
    Kept,
    Tainted,
    Untainted,
    Deleted,
}

use Answer::{Absent, Failed, Off, On, Unmanaged, Unresolved};
use Fate::{Deleted, Kept, LeftAlone, Tainted as GotTaint, Untainted};

const OURS: &str = "fake://n";

fn node(ready: Option<&str>, provider_id: &str, taints: &[(&str, &str)]) -> Arc<NodeObject> {
    let taints: Vec<_> = taints
        .iter()
        .map(|(key, effect)| json!({"key": key, "effect": effect}))
        .collect();
    let conditions: Vec<_> = ready
        .map(|status| json!({"type": "Ready", "status": status}))
        .into_iter()
        .collect();
    let node = json!({
        "metadata": {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"providerID": provider_id, "taints": taints},
        "status": {"conditions": conditions},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// Gives the answers, one a pass, beside a node that is found.
fn fate(node: &Arc<NodeObject>, answers: &[Answer]) -> Fate {
    let confirm = Duration::from_secs(10);
    let mut not_ready = NotReadyNodes::new(Duration::from_secs(5), confirm);
    let mut brake = Brake::default();
    let managed = is_managed(node, |id| id.starts_with("fake://"));
    if managed && decide::is_recovered(node) {
        return Untainted;
    }
    not_ready.observe(node, managed, Instant::now());
    let mut fate = LeftAlone;
    for answer in answers {
        let Some(now) = not_ready.next_due() else {
            return fate;
        };
        let asked = not_ready.take_due(now);
        let findings: Vec<_> = asked
            .iter()
            .map(|node| Finding {
                view: Arc::clone(&node.view),
                answer: *answer,
            })
            .collect();
        let times = Times {
            began: now,
            ended: now,
        };
        let proven = not_ready.record(&findings, times, true);
        let whole = Whole {
            present: true,
            all: 10,
            gone: proven.len(),
            share: 0.25,
        };
        let decision = brake.decide(proven, &whole, now);
        let (key, effect) = SHUTDOWN_TAINT;
        fate = match decision.delete.as_slice() {
            [] if *answer == Off && !node.has_exact_taint(key, effect) => GotTaint,
            [] => Kept,
            _ => return Deleted,
        };
    }
    fate
}

#[test]
fn upstreams_table_under_our_rules() {
    let shutdown = [SHUTDOWN_TAINT];
    let uninitialized = [(UNINITIALIZED_TAINT, "NoSchedule")];
    let (no, unknown, yes) = (Some("False"), Some("Unknown"), Some("True"));
    let two_absent: &[Answer] = &[Absent, Absent];
    #[rustfmt::skip]
    let cases: &[(&str, Arc<NodeObject>, &[Answer], Fate)] = &[
        ("not ready, gone", node(no, OURS, &[]), two_absent, Deleted),
        ("not ready, gone, asked once", node(no, OURS, &[]), &[Absent], Kept),
        ("not ready, the question fails", node(no, OURS, &[]), &[Failed; 50], Kept),
        ("not ready, there", node(no, OURS, &[]), &[On; 50], Kept),
        ("unknown, gone", node(unknown, OURS, &[]), two_absent, Deleted),
        ("no condition, gone", node(None, OURS, &[]), two_absent, Deleted),
        ("unknown, there", node(unknown, OURS, &[]), &[On; 50], Kept),
        ("ready, gone", node(yes, OURS, &[]), two_absent, LeftAlone),
        ("not ready, switched off", node(no, OURS, &[]), &[Off], GotTaint),
        ("switched off, tainted already", node(no, OURS, &shutdown), &[Off; 5], Kept),
        ("switched off, the key with another effect", node(no, OURS, &[(SHUTDOWN_TAINT.0, "NoExecute")]), &[Off], GotTaint),
        ("found by name, switched off", node(no, "", &uninitialized), &[Off], GotTaint),
        ("running again, not ready yet: the taint stays", node(no, OURS, &shutdown), &[On; 5], Kept),
        ("ready, tainted", node(yes, OURS, &shutdown), &[], Untainted),
        ("ready, switched off", node(yes, OURS, &[]), &[Off], LeftAlone),
        ("unknown, off first, then gone", node(unknown, OURS, &[]), &[Off, Absent, Absent], Deleted),
        ("no provider ID, waits for it, nowhere by name", node(no, "", &uninitialized), &[Unresolved; 50], Deleted),
        ("the same for a short time", node(no, "", &uninitialized), &[Unresolved; 10], Kept),
        ("the same, the question fails now and then", node(no, "", &uninitialized), &[Unresolved, Failed, Unresolved, Failed], Kept),
        ("the provider says hands off", node(no, OURS, &[]), &[Unmanaged; 50], Kept),
        // Where upstream would delete or write, and we do not.
        ("bare metal", node(no, "", &[]), &[Unresolved; 50], LeftAlone),
        ("bare metal, ready, tainted by somebody", node(yes, "", &shutdown), &[], LeftAlone),
        ("another cloud's", node(no, "aws:///z/i-1", &[]), two_absent, LeftAlone),
        ("another cloud's, ready, tainted by it", node(yes, "aws:///z/i-1", &shutdown), &[], LeftAlone),
        ("gone, but not twice in a row", node(no, OURS, &[]), &[Absent, Failed, Absent, On, Absent], Kept),
    ];
    for (name, node, answers, expected) in cases {
        assert_eq!(fate(node, answers), *expected, "{name}");
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
    let lost = (0..100).map(|i| object(format!("new-{i}"), "False", ""));
    let nodes: Vec<_> = owned.chain(lost).collect();

    let mut not_ready = NotReadyNodes::new(Duration::from_secs(5), Duration::from_secs(10));
    let mut brake = Brake::default();
    for node in &nodes {
        let managed = is_managed(node, |id| cloud.owns(id));
        not_ready.observe(node, managed, Instant::now());
    }
    // Until the ten minutes are over in which the names must stay unknown.
    let (now, proven) = loop {
        let now = not_ready.next_due().unwrap();
        let asked = not_ready.take_due(now);
        let finding = |node: &Arc<NodeObject>| Finding {
            view: Arc::clone(&node.view),
            answer: Unresolved,
        };
        let findings: Vec<_> = asked.iter().map(finding).collect();
        let times = Times {
            began: now,
            ended: now,
        };
        let proven = not_ready.record(&findings, times, true);
        if !proven.is_empty() {
            break (now, proven);
        }
    };
    assert_eq!(proven.len(), 100);
    let whole = Whole::of(&not_ready, &nodes, &cloud, true, 0.25);
    let decision = brake.decide(proven, &whole, now);
    assert_eq!((decision.whole.gone, decision.whole.all), (100, 120));
    assert_eq!(decision.delete.len(), 1);
    assert!(
        decision
            .blocked
            .iter()
            .all(|(_, reason)| *reason == BlockReason::Share)
    );
}
