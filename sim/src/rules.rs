//! Rules for the requests that pass a server or a proxy: when they fire, and which requests they hold.
//!
//! The rules are tried for each request in the order of their creation. Delays add up; the first other rule that fires
//! is carried out. A rule counts the requests that it matched, so "the third listing" or "two of them" is exact. Each
//! rule has a seed for its probability, so that a run can be repeated.

use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::watch;

use crate::wire::Held;

/// When a rule fires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct When {
    /// For the first time at the n-th matching request, counted from 1.
    pub nth: u64,
    /// At most this often; unlimited if missing.
    pub count: Option<u64>,
    /// Only with this probability, from 0 to 1.
    pub probability: Option<f64>,
    /// The seed of the probability.
    pub seed: u64,
}

/// The effect of a server or a proxy on requests.
pub trait Rule: Clone {
    /// When it fires.
    fn when(&self) -> When;

    /// The delay of requests, if that is its only effect.
    fn delay(&self) -> Option<Duration>;
}

/// An active rule and its counts.
#[derive(Clone, Debug)]
pub struct RuleState<R> {
    /// The rule's number, for its removal.
    pub id: u64,
    /// The rule.
    pub rule: R,
    /// How many requests it matched.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
    /// The requests that it held.
    pub reached: Vec<String>,
}

/// The effect on one request.
#[derive(Debug)]
pub struct Verdict<R> {
    /// The delay before anything else.
    pub delay: Duration,
    /// The rule that is carried out, with its number.
    pub rule: Option<(u64, R)>,
}

/// A rule and the random numbers of its probability.
type Entry<R> = (RuleState<R>, StdRng);

/// All active rules.
#[derive(Debug)]
pub struct Rules<R> {
    rules: Mutex<(u64, Vec<Entry<R>>)>,
    /// Notifies of removed rules and held requests.
    changes: watch::Sender<()>,
    held: Held,
}

impl<R> Default for Rules<R> {
    fn default() -> Self {
        Self {
            rules: Mutex::default(),
            changes: watch::Sender::default(),
            held: Held::default(),
        }
    }
}

impl<R: Rule> Rules<R> {
    /// Adds a rule and returns its number.
    pub fn add(&self, rule: R) -> u64 {
        let rng = StdRng::seed_from_u64(rule.when().seed);
        let mut rules = self.rules.lock();
        rules.0 += 1;
        let id = rules.0;
        let state = RuleState {
            id,
            rule,
            matched: 0,
            fired: 0,
            reached: Vec::new(),
        };
        rules.1.push((state, rng));
        id
    }

    /// Removes all rules that `keep` rejects and releases their requests. Returns whether there were any.
    pub fn retain(&self, keep: impl Fn(u64) -> bool) -> bool {
        let mut rules = self.rules.lock();
        let before = rules.1.len();
        rules.1.retain(|(state, _)| keep(state.id));
        let removed = rules.1.len() < before;
        drop(rules);
        self.changes.send_replace(());
        removed
    }

    /// The active rules.
    #[must_use]
    pub fn list(&self) -> Vec<RuleState<R>> {
        let rules = self.rules.lock();
        rules.1.iter().map(|(state, _)| state.clone()).collect()
    }

    /// Decides the effect on a request.
    pub fn decide(&self, matches: impl Fn(&R) -> bool) -> Verdict<R> {
        let (mut delay, mut carried_out) = (Duration::ZERO, None);
        for (state, rng) in &mut self.rules.lock().1 {
            let own_delay = state.rule.delay();
            if (carried_out.is_some() && own_delay.is_none()) || !matches(&state.rule) {
                continue;
            }
            let when = state.rule.when();
            state.matched += 1;
            if state.matched < when.nth || when.count.is_some_and(|count| state.fired >= count) {
                continue;
            }
            if when.probability.is_some_and(|probability| rng.random::<f64>() >= probability) {
                continue;
            }
            state.fired += 1;
            match own_delay {
                Some(time) => delay += time,
                None => carried_out = Some((state.id, state.rule.clone())),
            }
        }
        Verdict {
            delay,
            rule: carried_out,
        }
    }

    /// Records that a request is held.
    pub fn reach(&self, id: u64, request: impl Into<String>) {
        if let Some((state, _)) = self.rules.lock().1.iter_mut().find(|(state, _)| state.id == id) {
            state.reached.push(request.into());
        }
        self.changes.send_replace(());
    }

    /// Holds a request until the rule is removed.
    pub async fn hold(&self, id: u64, request: impl Into<String>) {
        self.reach(id, request);
        let deleted = self.until(|rules| rules.iter().all(|(state, _)| state.id != id).then_some(()));
        self.held.during(deleted).await;
    }

    /// Waits until no request is held. Held requests of a disconnected client are dropped, not carried out.
    pub async fn none_held(&self) {
        self.held.none().await;
    }

    /// Waits while any rule satisfies the condition.
    pub async fn while_any(&self, is_met: impl Fn(&R) -> bool) {
        self.until(|rules| {
            let is_any = rules.iter().any(|(state, _)| is_met(&state.rule));
            (!is_any).then_some(())
        })
        .await;
    }

    /// The first request that the rule held, when there is one; `None` if the rule is removed first.
    pub async fn reached(&self, id: u64) -> Option<String> {
        self.until(|rules| match rules.iter().find(|(state, _)| state.id == id) {
            None => Some(None),
            Some((state, _)) => state.reached.first().cloned().map(Some),
        })
        .await
        .flatten()
    }

    async fn until<T>(&self, condition: impl Fn(&[Entry<R>]) -> Option<T>) -> Option<T> {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            // The sender is in `self`, so the wait cannot fail.
            let found = condition(&self.rules.lock().1);
            if found.is_some() || changes.changed().await.is_err() {
                return found;
            }
        }
    }
}
