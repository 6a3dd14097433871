#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use serde_json::{Value, json};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn state() -> ElectionState {
    ElectionState::new(&super::super::tests::config(), "me", "ccm")
}

fn clock() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

fn lease(spec: &Value) -> Lease {
    let object = json!({"metadata": {"name": "ccm", "uid": "u", "resourceVersion": "1"}, "spec": spec});
    Lease(serde_json::from_value(object).unwrap())
}

fn held_by(holder: &str, renewed: &str) -> Lease {
    lease(&json!({
        "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3,
        "acquireTime": "2029-12-31T00:00:00.000000Z", "renewTime": renewed,
    }))
}

/// The second in which a Lease that never changes is acquired.
fn taken_after(state: &mut ElectionState, lease: &Lease, start: Instant) -> Option<u32> {
    (0..100).find(|second| {
        let step = state.observe(Some(lease.clone()), start + *second * SECOND, clock());
        assert!(matches!(step, None | Some(Step::Update(_))), "{step:?}");
        step.is_some()
    })
}

#[test]
fn a_lease_without_a_holder_is_acquired_at_once() {
    let now = Instant::now();
    let Some(Step::Create(first)) = state().observe(None, now, clock()) else {
        panic!("not created")
    };
    assert_eq!((first.holder(), first.transitions()), ("me", 0));
    for spec in [
        Value::Null,
        json!({}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
    ] {
        let Some(Step::Update(taken)) = state().observe(Some(lease(&spec)), now, clock()) else {
            panic!("{spec} not taken")
        };
        assert_eq!((taken.holder(), taken.transitions()), ("me", 1), "{spec}");
        assert_eq!(taken.0.metadata.resource_version.as_deref(), Some("1"));
    }
}

#[test]
fn another_holder_is_waited_for_since_its_last_renewal_that_was_observed() {
    // The clock of the holder does not count.
    for renewed in [
        "2030-01-01T00:00:00.000000Z",
        "2029-12-31T23:59:30.000000Z",
        "2030-01-01T00:00:30.000000Z",
        "1970-01-01T00:00:00.000000Z",
        "2999-01-01T00:00:00.000000Z",
    ] {
        let mut state = state();
        let start = Instant::now();
        assert_eq!(taken_after(&mut state, &held_by("other", renewed), start), Some(15), "{renewed}");
    }
    // A renewal restarts the wait, also one that has an older time.
    let mut state = state();
    let start = Instant::now();
    let first = held_by("other", "2030-01-01T00:00:10.000000Z");
    assert_eq!(state.observe(Some(first), start, clock()), None);
    let renewed = held_by("other", "2030-01-01T00:00:05.000000Z");
    assert_eq!(taken_after(&mut state, &renewed, start + 14 * SECOND), Some(15));
}

#[test]
fn the_lease_sets_how_long_its_holder_is_waited_for() {
    for (duration, seconds) in [
        (json!(40), 40),
        (json!(1), 1),
        (json!(0), 15),
        (json!(-3), 15),
        (Value::Null, 15),
    ] {
        let lease = lease(&json!({"holderIdentity": "other", "leaseDurationSeconds": duration}));
        let waited = taken_after(&mut state(), &lease, Instant::now());
        assert_eq!(waited, Some(seconds), "{duration}");
    }
    let endless = lease(&json!({"holderIdentity": "other", "leaseDurationSeconds": u64::MAX}));
    assert_eq!(taken_after(&mut state(), &endless, Instant::now()), None);
}

#[test]
fn a_leader_renews_without_reading_and_keeps_when_it_began() {
    let mut state = state();
    let sent = Instant::now();
    assert_eq!(state.renewal(sent, clock()), None);
    let until = state.written(held_by("me", "2030-01-01T00:00:00.000000Z"), sent);
    assert_eq!(until, Some(sent + 10 * SECOND));
    let renewal = state.renewal(sent + 9 * SECOND, clock()).unwrap();
    assert_eq!(
        renewal.0.data["spec"],
        json!({
            "holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2029-12-31T00:00:00.000000Z", "renewTime": "2030-01-01T00:00:00.000000Z",
        })
    );
    assert_eq!(state.renewal(sent + 10 * SECOND, clock()), None, "too late");
}

#[test]
fn a_leader_reads_a_lease_that_another_process_has_written() {
    let sent = Instant::now();
    let leader = || {
        let mut state = state();
        state.written(held_by("me", "2030-01-01T00:00:00.000000Z"), sent);
        state
    };
    let now = sent + SECOND;
    // Still ours: another client set a label, or our own renewal was carried out and its response was lost.
    let ours = held_by("me", "2030-01-01T00:00:02.000000Z");
    let Some(Step::Update(renewed)) = leader().observe(Some(ours), now, clock()) else {
        panic!("not renewed")
    };
    assert_eq!(renewed.transitions(), 3);
    // Another process has acquired it, even one whose lease has expired.
    let theirs = held_by("other", "1970-01-01T00:00:00.000000Z");
    assert_eq!(leader().observe(Some(theirs), now, clock()), None);
    // Emptied or deleted by hand.
    let Some(Step::Update(again)) = leader().observe(Some(held_by("", "")), now, clock()) else {
        panic!("not taken again")
    };
    assert_eq!(again.transitions(), 4);
    assert!(matches!(leader().observe(None, now, clock()), Some(Step::Create(_))));
}

#[test]
fn a_lease_that_bears_our_name_unknown_to_us_is_renewed_and_then_ours() {
    // It was acquired, and the answer was lost.
    let mut state = state();
    let now = Instant::now();
    let Some(Step::Update(renewed)) =
        state.observe(Some(held_by("me", "2030-01-01T00:00:00.000000Z")), now, clock())
    else {
        panic!("not renewed")
    };
    assert_eq!((state.until(), renewed.transitions()), (None, 3));
    assert_eq!(state.written(renewed, now), Some(now + 10 * SECOND));
}

#[test]
fn an_answer_that_names_another_holder_does_not_make_a_leader() {
    let mut state = state();
    let now = Instant::now();
    assert_eq!(state.written(held_by("other", ""), now), None);
    assert_eq!(state.renewal(now, clock()), None);
}
