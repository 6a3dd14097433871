//! Rules for the requests that pass a server or a proxy: which fires, how often, and which requests it holds.
//!
//! Each arriving request is offered to the rules in the order in which they were added. Delays add up; the first
//! other rule that fires is carried out. A rule counts the requests that it matched, so "the third listing" or
//! "two of them" is exact, and a probability is drawn from the rule's own seed, so that a run can be repeated.

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
    /// At most this often; without it, for ever.
    pub count: Option<u64>,
    /// Only with this probability, from 0 to 1.
    pub probability: Option<f64>,
    /// The seed from which the probability is drawn.
    pub seed: u64,
}

/// What a server or a proxy does to requests.
pub trait Rule: Clone {
    /// When it fires.
    fn when(&self) -> When;

    /// How long it delays requests, if that is all it does.
    fn delay(&self) -> Option<Duration>;
}

/// A rule in force and what became of it.
#[derive(Clone, Debug)]
pub struct RuleState<R> {
    /// The rule's number, to remove it.
    pub id: u64,
    /// The rule.
    pub rule: R,
    /// Requests that it matched.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
    /// Requests that came to the moment at which the rule holds them.
    pub reached: Vec<String>,
}

/// What is to be done with one request.
#[derive(Debug)]
pub struct Verdict<R> {
    /// How long it waits first.
    pub delay: Duration,
    /// The rule that is carried out, with its number.
    pub rule: Option<(u64, R)>,
}

/// A rule with what its probability is drawn from.
type Entry<R> = (RuleState<R>, StdRng);

/// All rules in force.
#[derive(Debug)]
pub struct Rules<R> {
    rules: Mutex<(u64, Vec<Entry<R>>)>,
    /// Changes when a rule is removed, and when a request comes to where it is held.
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

    /// Removes all rules but these; the requests that the others held go on. Whether there were others.
    pub fn retain(&self, keep: impl Fn(u64) -> bool) -> bool {
        let mut rules = self.rules.lock();
        let before = rules.1.len();
        rules.1.retain(|(state, _)| keep(state.id));
        let removed = rules.1.len() < before;
        drop(rules);
        self.changes.send_replace(());
        removed
    }

    /// The rules in force.
    #[must_use]
    pub fn list(&self) -> Vec<RuleState<R>> {
        let rules = self.rules.lock();
        rules.1.iter().map(|(state, _)| state.clone()).collect()
    }

    /// What is to be done with a request.
    pub fn judge(&self, matches: impl Fn(&R) -> bool) -> Verdict<R> {
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
            if when
                .probability
                .is_some_and(|probability| rng.random::<f64>() >= probability)
            {
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

    /// Enters that a request has come to where it is held.
    pub fn reach(&self, id: u64, request: impl Into<String>) {
        if let Some((state, _)) = self.rules.lock().1.iter_mut().find(|(state, _)| state.id == id) {
            state.reached.push(request.into());
        }
        self.changes.send_replace(());
    }

    /// Holds a request until the rule is removed.
    pub async fn hold(&self, id: u64, request: impl Into<String>) {
        self.reach(id, request);
        let gone = self.until(|rules| rules.iter().all(|(state, _)| state.id != id).then_some(()));
        self.held.during(gone).await;
    }

    /// Waits until no request is held: those of a client that is gone are forgotten, not carried out.
    pub async fn none_held(&self) {
        self.held.none().await;
    }

    /// Waits while one of the rules is like this.
    pub async fn while_any(&self, holds: impl Fn(&R) -> bool) {
        let over = |rules: &[Entry<R>]| (!rules.iter().any(|(state, _)| holds(&state.rule))).then_some(());
        self.until(over).await;
    }

    /// The first request that the rule held, as soon as there is one; none if the rule is removed before.
    pub async fn reached(&self, id: u64) -> Option<String> {
        let find = |rules: &[Entry<R>]| match rules.iter().find(|(state, _)| state.id == id) {
            None => Some(None),
            Some((state, _)) => state.reached.first().cloned().map(Some),
        };
        self.until(find).await.flatten()
    }

    async fn until<T>(&self, condition: impl Fn(&[Entry<R>]) -> Option<T>) -> Option<T> {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            // The sender is in `self`, so that waiting cannot fail.
            let found = condition(&self.rules.lock().1);
            if found.is_some() || changes.changed().await.is_err() {
                return found;
            }
        }
    }
}
