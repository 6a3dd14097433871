//! What a proxy does to the requests that pass it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ccm_sim::{Moment, wire::Held};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::watch;

use super::Request;

/// Which requests a rule is about.
type Condition = Arc<dyn Fn(&Request) -> bool + Send + Sync>;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Stops at this moment until the rule is removed, and tells whoever waits for it. After the reply there is
    /// nothing left to stop: it only tells.
    Hold(Moment),
    /// As if every packet were lost, until the rule is removed: requests are held before they are forwarded, and
    /// nothing comes on watches that are open.
    Silence,
    /// Answers with this status without forwarding the request.
    Status {
        /// The status code.
        code: u16,
        /// Seconds, for the header `Retry-After`.
        retry_after: Option<u32>,
        /// The body; without one, that of a failure as this server writes it.
        body: Option<String>,
    },
    /// Resets the connection without forwarding the request.
    Reset,
    /// Forwards the request and resets the connection instead of answering.
    CommitThenReset,
    /// Forwards the request and closes the connection in the middle of the answer.
    Truncate,
    /// Answers 200 with `{}` without forwarding the request.
    EmptyJson,
    /// Forwards the request after a while.
    Delay(Duration),
}

impl Action {
    /// The action's name in the log of requests.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hold(_) => "hold",
            Self::Silence => "silence",
            Self::Status { .. } => "status",
            Self::Reset => "reset",
            Self::CommitThenReset => "commit_then_reset",
            Self::Truncate => "truncate",
            Self::EmptyJson => "empty_json",
            Self::Delay(_) => "delay",
        }
    }
}

/// One rule: what it is about, how often it fires, what it does.
#[derive(Clone)]
pub struct Rule {
    condition: Condition,
    /// Fires for the first time at the n-th matching request, counted from 1.
    pub nth: u64,
    /// Fires at most this often; without it, for ever.
    pub count: Option<u64>,
    /// Fires only with this probability, from 0 to 1.
    pub probability: Option<f64>,
    /// The seed from which the probability is drawn.
    pub seed: u64,
    /// What happens.
    pub action: Action,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("nth", &self.nth)
            .field("count", &self.count)
            .field("probability", &self.probability)
            .field("seed", &self.seed)
            .field("action", &self.action)
            .finish_non_exhaustive()
    }
}

impl Rule {
    /// A rule about every request that fires every time.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self::when(|_| true, action)
    }

    /// A rule about these requests.
    #[must_use]
    pub fn when(condition: impl Fn(&Request) -> bool + Send + Sync + 'static, action: Action) -> Self {
        Self {
            condition: Arc::new(condition),
            nth: 1,
            count: None,
            probability: None,
            seed: 0,
            action,
        }
    }

    /// Fires once, at the n-th matching request, counted from 1.
    #[must_use]
    pub fn at(mut self, nth: u64) -> Self {
        self.nth = nth;
        self.count = Some(1);
        self
    }
}

#[derive(Debug)]
struct State {
    id: u64,
    rule: Rule,
    rng: StdRng,
    matched: u64,
    fired: u64,
    /// The request that came first to where the rule holds it.
    reached: Option<String>,
}

/// What is to be done with one request.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) delay: Duration,
    /// With the number of the rule that it is of.
    pub(super) action: Option<(u64, Action)>,
}

/// All rules in force.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Mutex<(u64, Vec<State>)>,
    /// Changes when a rule goes, and when a request comes to where it is held.
    changes: watch::Sender<()>,
    held: Held,
}

impl Rules {
    pub(super) fn add(&self, rule: Rule) -> u64 {
        let mut rules = self.rules.lock();
        rules.0 += 1;
        let id = rules.0;
        rules.1.push(State {
            id,
            rng: StdRng::seed_from_u64(rule.seed),
            rule,
            matched: 0,
            fired: 0,
            reached: None,
        });
        id
    }

    pub(super) fn retain(&self, keep: impl Fn(u64) -> bool) {
        self.rules.lock().1.retain(|state| keep(state.id));
        self.changes.send_replace(());
    }

    pub(super) fn fired(&self) -> u64 {
        self.rules.lock().1.iter().map(|state| state.fired).sum()
    }

    /// Delays add up; the first other action that fires is carried out.
    pub(super) fn judge(&self, request: &Request) -> Verdict {
        let mut verdict = Verdict::default();
        for state in &mut self.rules.lock().1 {
            let rule = &state.rule;
            let is_delay = matches!(rule.action, Action::Delay(_));
            if (verdict.action.is_some() && !is_delay) || !(rule.condition)(request) {
                continue;
            }
            state.matched += 1;
            if state.matched < rule.nth || rule.count.is_some_and(|count| state.fired >= count) {
                continue;
            }
            if rule
                .probability
                .is_some_and(|probability| state.rng.random::<f64>() >= probability)
            {
                continue;
            }
            state.fired += 1;
            match &rule.action {
                Action::Delay(time) => verdict.delay += *time,
                action => verdict.action = Some((state.id, action.clone())),
            }
        }
        verdict
    }

    /// Enters that a request has come to where it is held.
    pub(super) fn reach(&self, id: u64, request: &Request) {
        if let Some(state) = self.rules.lock().1.iter_mut().find(|state| state.id == id) {
            state.reached.get_or_insert_with(|| request.to_string());
        }
        self.changes.send_replace(());
    }

    /// Holds a request until the rule is gone.
    pub(super) async fn hold(&self, id: u64, request: &Request) {
        self.reach(id, request);
        let gone = |rules: &[State]| rules.iter().all(|state| state.id != id).then_some(());
        self.held.during(self.until(gone)).await;
    }

    /// Waits until no request is held.
    pub(super) async fn none_held(&self) {
        self.held.none().await;
    }

    /// Waits while nothing may come on a stream.
    pub(super) async fn silence(&self, request: &Request) {
        let silent = |state: &State| state.rule.action == Action::Silence && (state.rule.condition)(request);
        self.until(|rules| (!rules.iter().any(silent)).then_some(()))
            .await;
    }

    /// The request that was held by the rule, as soon as there is one; none if the rule goes before.
    pub(super) async fn reached(&self, id: u64) -> Option<String> {
        let find = |rules: &[State]| match rules.iter().find(|state| state.id == id) {
            None => Some(None),
            Some(state) => state.reached.clone().map(Some),
        };
        self.until(find).await.flatten()
    }

    async fn until<T>(&self, condition: impl Fn(&[State]) -> Option<T>) -> Option<T> {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let found = condition(&self.rules.lock().1);
            // The sender is in `self`, so that waiting can not fail.
            if found.is_some() || changes.changed().await.is_err() {
                return found;
            }
        }
    }
}
