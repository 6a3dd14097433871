//! The decision what to do with the Lease: the pure half of an election.

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::lease::{Lease, Terms};
use crate::config::ElectionConfig;

/// What is known of the Lease.
#[derive(Debug)]
pub(super) struct State {
    terms: Terms,
    config: ElectionConfig,
    /// The name of the Lease.
    name: String,
    observed: Option<Observed>,
    /// While this process leads: when that ends unless it is renewed.
    until: Option<Instant>,
}

/// The Lease as it was seen last.
#[derive(Debug)]
struct Observed {
    lease: Lease,
    /// When this process saw the last sign of life in it. Clocks of other machines do not count.
    changed: Instant,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// There is none: create this one.
    Create(Lease),
    /// Write this one in place of the one that was read.
    Update(Lease),
    /// Another process holds it.
    Wait,
    /// This process held it, and another one holds it now.
    Lost,
}

impl State {
    pub(super) fn new(config: &ElectionConfig, identity: &str, name: &str) -> Self {
        Self {
            terms: Terms {
                identity: identity.to_owned(),
                lease_duration: config.lease_duration,
            },
            config: config.clone(),
            name: name.to_owned(),
            observed: None,
            until: None,
        }
    }

    pub(super) fn config(&self) -> &ElectionConfig {
        &self.config
    }

    pub(super) fn identity(&self) -> &str {
        &self.terms.identity
    }

    /// The Lease as it was seen last.
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.observed.as_ref().map(|observed| &observed.lease)
    }

    /// While this process leads: when that ends unless it is renewed.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// What a leader writes without reading first, in the hope that nobody else has written.
    pub(super) fn renewal(&self, now: Instant, clock: Timestamp) -> Option<Lease> {
        let observed = self.observed.as_ref()?;
        let ours = self.until.is_some_and(|until| now < until) && observed.lease.holder() == self.identity();
        ours.then(|| observed.lease.clone().renewed(&self.terms, clock))
    }

    /// What to do about the Lease as it was read just now.
    pub(super) fn found(&mut self, found: Option<Lease>, now: Instant, clock: Timestamp) -> Step {
        let Some(found) = found else {
            return Step::Create(Lease::first(
                &self.config.namespace,
                &self.name,
                &self.terms,
                clock,
            ));
        };
        let changed = match &self.observed {
            Some(observed) if found.is_unchanged(&observed.lease) => observed.changed,
            _ => now,
        };
        self.observed = Some(Observed {
            lease: found.clone(),
            changed,
        });
        match found.holder() {
            "" => Step::Update(found.taken(&self.terms, clock)),
            holder if holder == self.terms.identity => Step::Update(found.renewed(&self.terms, clock)),
            _ if self.until.is_some() => Step::Lost,
            _ => {
                // One that does not say how long is waited for as long as we would have others wait.
                let duration = found.duration().unwrap_or(self.terms.lease_duration);
                if changed.checked_add(duration).is_none_or(|expires| now < expires) {
                    Step::Wait
                } else {
                    Step::Update(found.taken(&self.terms, clock))
                }
            }
        }
    }

    /// The API server has carried out what was sent at `sent`, and answered with this. Says until when we lead, if it
    /// is ours.
    ///
    /// The next leader waits for the whole lease duration from a later moment than `sent`.
    pub(super) fn written(&mut self, lease: Lease, sent: Instant) -> Option<Instant> {
        let ours = lease.holder() == self.identity();
        self.observed = Some(Observed { lease, changed: sent });
        self.until = ours
            .then(|| sent.checked_add(self.config.renew_deadline))
            .flatten();
        self.until
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn state() -> State {
        State::new(&super::super::tests::config(), "me", "ccm")
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

    /// What is done with a Lease that is read again and again without a change, second by second.
    fn taken_after(state: &mut State, lease: &Lease, start: Instant) -> Option<u32> {
        (0..100).find(|second| {
            let step = state.found(Some(lease.clone()), start + *second * SECOND, clock());
            assert!(matches!(step, Step::Wait | Step::Update(_)), "{step:?}");
            step != Step::Wait
        })
    }

    #[test]
    fn one_that_nobody_holds_is_taken_at_once() {
        let now = Instant::now();
        let Step::Create(first) = state().found(None, now, clock()) else {
            panic!("not made")
        };
        assert_eq!((first.holder(), first.transitions()), ("me", 0));
        for spec in [
            Value::Null,
            json!({}),
            json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
        ] {
            let Step::Update(taken) = state().found(Some(lease(&spec)), now, clock()) else {
                panic!("{spec} not taken")
            };
            assert_eq!((taken.holder(), taken.transitions()), ("me", 1), "{spec}");
            assert_eq!(taken.0.metadata.resource_version.as_deref(), Some("1"));
        }
    }

    #[test]
    fn another_holder_is_waited_for_from_its_last_sign_of_life_as_seen_here() {
        // Whatever the clock of the holder says.
        for renewed in [
            "2030-01-01T00:00:00.000000Z",
            "2029-12-31T23:59:30.000000Z",
            "2030-01-01T00:00:30.000000Z",
            "1970-01-01T00:00:00.000000Z",
            "2999-01-01T00:00:00.000000Z",
        ] {
            let mut state = state();
            let start = Instant::now();
            assert_eq!(
                taken_after(&mut state, &held_by("other", renewed), start),
                Some(15),
                "{renewed}"
            );
        }
        // A renewal restarts the wait, also one that has an older time.
        let mut state = state();
        let start = Instant::now();
        let first = held_by("other", "2030-01-01T00:00:10.000000Z");
        assert_eq!(state.found(Some(first), start, clock()), Step::Wait);
        let renewed = held_by("other", "2030-01-01T00:00:05.000000Z");
        assert_eq!(taken_after(&mut state, &renewed, start + 14 * SECOND), Some(15));
    }

    #[test]
    fn the_holder_says_how_long_it_is_waited_for_and_if_it_does_not_we_do() {
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
    fn a_leader_reads_who_else_has_written() {
        let sent = Instant::now();
        let leader = || {
            let mut state = state();
            state.written(held_by("me", "2030-01-01T00:00:00.000000Z"), sent);
            state
        };
        let now = sent + SECOND;
        // Ours still: somebody set a label, or our own renewal was carried out and its answer lost.
        let ours = held_by("me", "2030-01-01T00:00:02.000000Z");
        let Step::Update(renewed) = leader().found(Some(ours), now, clock()) else {
            panic!("not renewed")
        };
        assert_eq!(renewed.transitions(), 3);
        // Taken away, even if by somebody whose lease is over.
        let theirs = held_by("other", "1970-01-01T00:00:00.000000Z");
        assert_eq!(leader().found(Some(theirs), now, clock()), Step::Lost);
        // Emptied or deleted by hand.
        let Step::Update(again) = leader().found(Some(held_by("", "")), now, clock()) else {
            panic!("not taken again")
        };
        assert_eq!(again.transitions(), 4);
        assert!(matches!(leader().found(None, now, clock()), Step::Create(_)));
    }

    #[test]
    fn a_lease_that_bears_our_name_unknown_to_us_is_renewed_and_then_ours() {
        // It was acquired, and the answer was lost.
        let mut state = state();
        let now = Instant::now();
        let Step::Update(renewed) =
            state.found(Some(held_by("me", "2030-01-01T00:00:00.000000Z")), now, clock())
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
}
