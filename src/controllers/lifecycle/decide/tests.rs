#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::json;

use super::*;
use crate::controllers::node_object::UNINITIALIZED_TAINT;

fn nodes(range: std::ops::Range<usize>, taint: Option<&str>) -> Vec<Arc<NodeObject>> {
    let taints: Vec<_> = taint.into_iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    range
        .map(|i| {
            let node = json!({
                "metadata": {"name": format!("n{i}"), "uid": format!("u{i}")},
                "spec": {"providerID": format!("fake://n{i}"), "taints": taints},
            });
            Arc::new(serde_json::from_value(node).unwrap())
        })
        .collect()
}

fn untainted(count: usize) -> Vec<Arc<NodeObject>> {
    nodes(0..count, None)
}

fn totals(missing: usize, all: usize) -> Totals {
    Totals {
        present: true,
        all,
        missing,
        share: 0.25,
    }
}

fn counts(decision: &Decision) -> (usize, usize) {
    (decision.delete.len(), decision.blocked.len())
}

#[test]
fn a_node_without_a_provider_id_must_be_silent_in_the_last_read() {
    let node = |provider_id: &str, ready: &str, since: &str| -> NodeObject {
        let node = json!({
            "metadata": {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "providerID": provider_id,
                "taints": [{"key": UNINITIALIZED_TAINT, "effect": "NoSchedule"}],
            },
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]},
        });
        serde_json::from_value(node).unwrap()
    };
    let now = "2026-01-01T01:00:00Z".parse().unwrap();
    let (early, late) = ("2026-01-01T00:30:00Z", "2026-01-01T00:59:00Z");
    let reports = Err(Refusal::Changed("its kubelet reports"));
    for (provider_id, ready, since, expected) in [
        ("", "Unknown", early, Ok(())),
        ("", "False", late, reports),
        // It reported, and is silent again.
        ("", "Unknown", late, reports),
        ("fake://n", "False", late, Ok(())),
    ] {
        let decided = node(provider_id, "Unknown", early);
        let read = node(provider_id, ready, since);
        assert_eq!(check(&decided, &read, now, Duration::ZERO), expected, "{provider_id} {ready} {since}");
    }
}

#[test]
fn nothing_is_deleted_while_no_node_is_present() {
    for tainted in [None, Some(AUTOSCALER_TAINT)] {
        for count in [1, 3, 100] {
            let blind = Totals {
                present: false,
                ..totals(count, count + 50)
            };
            let decision = Brake::default().decide(nodes(0..count, tainted), &blind, Instant::now());
            assert_eq!(counts(&decision), (0, count));
            assert!(decision.blocked.iter().all(|(_, reason)| *reason == BlockReason::NothingPresent));
        }
    }
}

#[test]
fn more_than_the_share_and_more_than_a_few_are_deleted_slowly() {
    // missing, all: how many of them are deleted at once
    for (missing, all, deleted) in [
        (1, 1, 1),
        (3, 4, 3),
        (4, 4, 1),
        (4, 16, 4),
        (4, 15, 1),
        (5, 16, 1),
        (50, 1000, 50),
        (250, 1000, 250),
        (251, 1000, 1),
    ] {
        let decision = Brake::default().decide(untainted(missing), &totals(missing, all), Instant::now());
        assert_eq!(counts(&decision), (deleted, missing - deleted), "{missing} of {all}");
    }
}

#[test]
fn nodes_that_only_seem_missing_so_far_count_too() {
    let decision = Brake::default().decide(untainted(2), &totals(30, 100), Instant::now());
    assert_eq!(counts(&decision), (1, 1));
}

#[test]
fn nodes_that_the_autoscaler_tainted_are_deleted_at_once_and_do_not_count() {
    let tainted = nodes(0..30, Some(AUTOSCALER_TAINT));
    let decision = Brake::default().decide(tainted.clone(), &totals(0, 100), Instant::now());
    assert_eq!(counts(&decision), (30, 0));
    // Beside others, of which there are too many.
    let mut all = tainted;
    all.extend(nodes(30..70, None));
    let decision = Brake::default().decide(all, &totals(40, 100), Instant::now());
    assert_eq!(counts(&decision), (31, 39));
}

#[test]
fn slowly_means_one_a_minute_and_not_never() {
    let mut brake = Brake::default();
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut left = untainted(30);
    let mut deleted = Vec::new();
    // A pass every five seconds; a deletion takes no time.
    for second in (0..1800).step_by(5) {
        let now = at(second);
        let totals = totals(left.len(), 70 + left.len());
        let decision = brake.decide(left.clone(), &totals, now);
        for node in decision.delete {
            left.retain(|other| !Arc::ptr_eq(other, &node));
            brake.ended(true, now);
            deleted.push(second);
        }
        if left.is_empty() {
            break;
        }
    }
    assert_eq!(deleted.len(), 30, "all are deleted in the end: {deleted:?}");
    assert_eq!(deleted[..8], [0, 60, 120, 180, 240, 300, 360, 420]);
    // Once those that are left and those that were deleted are no more than the share, the rest is deleted at once.
    assert!(deleted[29] < 1200, "{deleted:?}");
}

#[test]
fn nodes_that_vanish_one_after_another_are_many_too() {
    let mut brake = Brake::default();
    let start = Instant::now();
    let mut deleted = 0;
    // One more of 40 nodes is proven missing every ten seconds.
    for i in 0..30_u64 {
        let now = start + Duration::from_secs(10 * i);
        let decision = brake.decide(untainted(1), &totals(1, 40 - deleted), now);
        for _ in &decision.delete {
            brake.ended(true, now);
            deleted += 1;
        }
    }
    // Ten are a quarter; the rest of the five minutes gives one a minute.
    assert!((10..=14).contains(&deleted), "{deleted}");
}

#[test]
fn one_at_a_time_means_that_the_one_under_way_ends_first() {
    let mut brake = Brake::default();
    let start = Instant::now();
    let many = totals(20, 40);
    assert_eq!(counts(&brake.decide(untainted(20), &many, start)), (1, 19));
    let later = start + Duration::from_secs(300);
    assert_eq!(counts(&brake.decide(untainted(20), &many, later)), (0, 20), "under way");
    brake.ended(false, later);
    assert_eq!(counts(&brake.decide(untainted(20), &many, later)), (1, 19), "in vain: the next");
    brake.ended(true, later);
    assert_eq!(counts(&brake.decide(untainted(19), &many, later + SLOWLY / 2)), (0, 19));
    assert_eq!(counts(&brake.decide(untainted(19), &many, later + SLOWLY)), (1, 18));
}

fn node(change: impl FnOnce(&mut serde_json::Value)) -> NodeObject {
    let mut node = json!({
        "metadata": {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"providerID": "fake://n"},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

const GRACE: Duration = Duration::from_secs(120);

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn the_last_read_refuses_another_node() {
    type Change = fn(&mut serde_json::Value);
    let decided = node(|_| {});
    let late = time("2026-01-01T01:00:00Z");
    let cases: [(&str, Change, Result<(), Refusal>); 8] = [
        ("the same", |_| {}, Ok(())),
        ("a heartbeat", |node| node["metadata"]["resourceVersion"] = json!("7"), Ok(())),
        ("silent now", |node| node["status"]["conditions"][0]["status"] = json!("Unknown"), Ok(())),
        (
            "recreated",
            |node| node["metadata"]["uid"] = json!("u2"),
            Err(Refusal::Changed("another node has its name")),
        ),
        (
            "ready",
            |node| node["status"]["conditions"][0]["status"] = json!("True"),
            Err(Refusal::Changed("it is ready again")),
        ),
        (
            "provider ID edited",
            |node| node["spec"]["providerID"] = json!("aws:///z/i-1"),
            Err(Refusal::Changed("its provider ID has changed")),
        ),
        (
            "provider ID removed",
            |node| node["spec"]["providerID"] = json!(""),
            Err(Refusal::Changed("its provider ID has changed")),
        ),
        (
            "being deleted",
            |node| node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:30:00Z"),
            Err(Refusal::Changed("it is being deleted")),
        ),
    ];
    for (what, change, expected) in cases {
        assert_eq!(check(&decided, &node(change), late, GRACE), expected, "{what}");
    }
}

#[test]
fn a_node_without_provider_id_must_still_wait_for_its_initialization() {
    let tainted = |node: &mut serde_json::Value| {
        node["spec"] = json!({"taints": [
            {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"},
        ]});
        node["status"]["conditions"][0]["status"] = json!("Unknown");
    };
    let bare = |node: &mut serde_json::Value| node["spec"] = json!({});
    let late = time("2026-01-01T01:00:00Z");
    let decided = node(tainted);
    assert_eq!(check(&decided, &node(tainted), late, GRACE), Ok(()));
    assert_eq!(
        check(&decided, &node(bare), late, GRACE),
        Err(Refusal::Changed("its provider ID has changed"))
    );
    assert_eq!(
        check(&decided, &node(|_| {}), late, GRACE),
        Err(Refusal::Changed("its provider ID has changed")),
        "initialized meanwhile"
    );
}

#[test]
fn age_is_by_the_clock_of_the_api_server() {
    let decided = node(|_| {});
    // The node was created at midnight by the server's clock.
    for (server, expected) in [
        ("2026-01-01T00:01:30Z", Err(Refusal::Young(Duration::from_secs(30)))),
        ("2026-01-01T00:01:59Z", Err(Refusal::Young(Duration::from_secs(1)))),
        ("2026-01-01T00:02:00Z", Ok(())),
        // A clock that is wrong makes no node old.
        ("2025-12-31T23:00:00Z", Err(Refusal::Young(GRACE))),
    ] {
        assert_eq!(check(&decided, &decided, time(server), GRACE), expected, "{server}");
    }
    let without = node(|node| node["metadata"]["creationTimestamp"] = json!(null));
    assert_eq!(check(&without, &without, time("2026-01-01T01:00:00Z"), GRACE), Err(Refusal::Young(GRACE)));
}
