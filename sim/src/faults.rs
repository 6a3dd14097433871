//! Faults: rules that make the simulated cloud misbehave in the ways real ones do.
//!
//! Each arriving request is offered to the rules in the order in which they were added. Delays add up; the first
//! other action that fires is carried out. A rule counts the requests that it matched, so "the third listing" or
//! "two of them" is said exactly, and a probability is drawn from the rule's own seed, so that a run can be repeated.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock::millis;
use crate::wire::Held;

/// A frozen state of the cloud, as a stale read answers from it.
pub(crate) type Snapshot = Arc<dyn Any + Send + Sync>;

/// One rule: what it matches, how often it fires, what it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Only requests to this service, by its catalogue type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Only this HTTP method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Only requests whose path and query contain this text; with a `*` in it, a pattern for the whole of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only this operation, for example `server_list`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Fires for the first time at the n-th matching request, counted from 1.
    #[serde(default = "one")]
    pub nth: u64,
    /// Fires at most this often; without it, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Fires only with this probability, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// The seed from which the probability is drawn.
    #[serde(default)]
    pub seed: u64,
    /// What happens.
    pub action: Action,
}

fn one() -> u64 {
    1
}

impl Fault {
    /// A rule that matches every request and fires every time.
    pub fn new(action: Action) -> Self {
        Self {
            service: None,
            method: None,
            path: None,
            op: None,
            nth: 1,
            count: None,
            probability: None,
            seed: 0,
            action,
        }
    }

    /// A rule for one operation.
    pub fn on(op: impl Into<String>, action: Action) -> Self {
        Self {
            op: Some(op.into()),
            ..Self::new(action)
        }
    }

    /// Fires only once.
    pub fn once(mut self) -> Self {
        self.count = Some(1);
        self
    }

    fn matches(&self, service: &str, method: &str, target: &str, op: &str) -> bool {
        let is = |want: &Option<String>, have: &str| want.as_deref().is_none_or(|want| want == have);
        is(&self.service, service)
            && self
                .method
                .as_deref()
                .is_none_or(|want| want.eq_ignore_ascii_case(method))
            && is(&self.op, op)
            && self.path.as_deref().is_none_or(|pattern| glob(pattern, target))
    }
}

/// A moment in the life of a request, as a client that dies there would leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The request has arrived and is not handled.
    Before,
    /// It is handled and not answered.
    AfterCommit,
    /// The whole answer has gone out.
    AfterReply,
}

impl Moment {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Before, Self::AfterCommit, Self::AfterReply];
}

impl std::fmt::Display for Moment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Before => "before it is handled",
            Self::AfterCommit => "after it is handled",
            Self::AfterReply => "after the reply",
        })
    }
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Action {
    /// Answers with this status without handling the request.
    Status {
        /// The status code.
        code: u16,
        /// The body; without one, the service's own error document.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<String>,
        /// Headers beside the usual ones.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        headers: BTreeMap<String, String>,
    },
    /// Never answers and never handles the request.
    Timeout,
    /// Handles the request and never answers.
    CommitThenHang,
    /// Resets the connection without handling the request.
    Reset,
    /// Closes the connection without handling the request.
    Drop,
    /// Handles the request and closes the connection instead of answering.
    CommitThenDrop,
    /// Handles the request and closes the connection in the middle of the answer's body.
    Truncate {
        /// How much of the body is sent; half of it if not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<usize>,
    },
    /// Answers 200 with `{}` without handling the request.
    EmptyJson,
    /// Answers listings with the first items only, as if there were no others, and all else in full.
    Partial {
        /// Which part of the items, from 0 to 1.
        share: f64,
    },
    /// Answers from the state that the cloud had when the rule was added.
    StaleRead,
    /// Stops at this moment until the rule is removed, and tells whoever waits for it. After the reply there is
    /// nothing left to stop: it only tells.
    Hold {
        /// The moment.
        at: Moment,
    },
    /// Handles the request after a while.
    Delay {
        /// How long.
        #[serde(with = "millis", rename = "ms")]
        time: Duration,
    },
}

impl Action {
    /// A bare status with the service's own error document.
    pub fn status(code: u16) -> Self {
        Self::Status {
            code,
            body: None,
            headers: BTreeMap::new(),
        }
    }

    /// The action's name in JSON and in the call log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Status { .. } => "status",
            Self::Timeout => "timeout",
            Self::CommitThenHang => "commit_then_hang",
            Self::Reset => "reset",
            Self::Drop => "drop",
            Self::CommitThenDrop => "commit_then_drop",
            Self::Truncate { .. } => "truncate",
            Self::EmptyJson => "empty_json",
            Self::Partial { .. } => "partial",
            Self::StaleRead => "stale_read",
            Self::Hold { .. } => "hold",
            Self::Delay { .. } => "delay",
        }
    }
}

/// A rule in force and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct FaultState {
    /// The rule's number, to remove it.
    pub id: u64,
    /// The rule.
    pub fault: Fault,
    /// Requests that it matched.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
    /// How many requests have come to the moment at which they are held.
    pub reached: u64,
}

struct Rule {
    state: FaultState,
    rng: StdRng,
    snapshot: Option<Snapshot>,
}

/// What is to be done with one request.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) delay: Duration,
    pub(crate) action: Option<Action>,
    pub(crate) snapshot: Option<Snapshot>,
    /// The rule that the action is of.
    pub(crate) rule: u64,
}

/// All rules in force.
#[derive(Default)]
pub(crate) struct Faults {
    rules: Mutex<(u64, Vec<Rule>)>,
    /// Changes when a rule goes, and when a request comes to where it is held.
    changes: watch::Sender<()>,
    held: Held,
}

impl Faults {
    /// Adds a rule. `snapshot` freezes the cloud for a stale read and is only called for one.
    pub(crate) fn add(&self, fault: Fault, snapshot: impl FnOnce() -> Snapshot) -> u64 {
        let snapshot = (fault.action == Action::StaleRead).then(snapshot);
        let rng = StdRng::seed_from_u64(fault.seed);
        let mut rules = self.rules.lock();
        rules.0 += 1;
        let id = rules.0;
        rules.1.push(Rule {
            state: FaultState {
                id,
                fault,
                matched: 0,
                fired: 0,
                reached: 0,
            },
            rng,
            snapshot,
        });
        id
    }

    pub(crate) fn remove(&self, id: u64) -> bool {
        let mut rules = self.rules.lock();
        let before = rules.1.len();
        rules.1.retain(|rule| rule.state.id != id);
        let removed = rules.1.len() < before;
        drop(rules);
        self.changes.send_replace(());
        removed
    }

    pub(crate) fn clear(&self) {
        self.rules.lock().1.clear();
        self.changes.send_replace(());
    }

    /// Enters that a request has come to where it is held.
    pub(crate) fn reach(&self, id: u64) {
        if let Some(rule) = self.rules.lock().1.iter_mut().find(|rule| rule.state.id == id) {
            rule.state.reached += 1;
        }
        self.changes.send_replace(());
    }

    /// Holds a request until the rule is gone.
    pub(crate) async fn hold(&self, id: u64) {
        self.reach(id);
        let gone = self.until(|rules| rules.iter().all(|rule| rule.state.id != id));
        self.held.during(gone).await;
    }

    /// Waits until no request is held.
    pub(crate) async fn none_held(&self) {
        self.held.none().await;
    }

    /// Waits until a request was held by the rule; `false` if the rule goes before.
    pub(crate) async fn reached(&self, id: u64) -> bool {
        let find = |rules: &[Rule]| {
            let rule = rules.iter().find(|rule| rule.state.id == id);
            rule.map(|rule| rule.state.reached > 0)
        };
        self.until(|rules| find(rules).unwrap_or(true)).await;
        find(&self.rules.lock().1).is_some()
    }

    async fn until(&self, condition: impl Fn(&[Rule]) -> bool) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            // The sender is in `self`, so that waiting can not fail.
            if condition(&self.rules.lock().1) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn list(&self) -> Vec<FaultState> {
        self.rules
            .lock()
            .1
            .iter()
            .map(|rule| rule.state.clone())
            .collect()
    }

    pub(crate) fn judge(&self, service: &str, method: &str, target: &str, op: &str) -> Verdict {
        let mut verdict = Verdict::default();
        for Rule { state, rng, snapshot } in &mut self.rules.lock().1 {
            let fault = &state.fault;
            let is_delay = matches!(fault.action, Action::Delay { .. });
            if (verdict.action.is_some() && !is_delay) || !fault.matches(service, method, target, op) {
                continue;
            }
            state.matched += 1;
            if state.matched < fault.nth || fault.count.is_some_and(|count| state.fired >= count) {
                continue;
            }
            if fault
                .probability
                .is_some_and(|probability| rng.random::<f64>() >= probability)
            {
                continue;
            }
            state.fired += 1;
            if let Action::Delay { time } = fault.action {
                verdict.delay += time;
            } else {
                verdict.action = Some(fault.action.clone());
                verdict.rule = state.id;
                verdict.snapshot.clone_from(snapshot);
            }
        }
        verdict
    }
}

/// Matches text against a pattern in which `*` stands for anything. Without a `*`, the text need only contain it.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return text.contains(pattern);
    };
    let Some(mut rest) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = tail.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_whole_target_and_plain_text_any_part() {
        for (pattern, text, want) in [
            ("/servers", "/RegionOne/compute/v2.1/servers/detail", true),
            ("/servers*", "/RegionOne/compute/v2.1/servers/detail", false),
            ("*/servers/*", "/RegionOne/compute/v2.1/servers/detail", true),
            (
                "*/servers/detail*marker=*",
                "/c/servers/detail?limit=2&marker=x",
                true,
            ),
            ("*/servers/*/tags", "/c/servers/detail", false),
            ("*ab", "aab", true),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(glob(pattern, text), want, "{pattern} on {text}");
        }
    }

    fn fired(faults: &Faults, requests: usize) -> Vec<bool> {
        (0..requests)
            .map(|_| {
                faults
                    .judge("compute", "GET", "/servers", "server_list")
                    .action
                    .is_some()
            })
            .collect()
    }

    #[test]
    fn fires_from_the_nth_match_for_a_number_of_times() {
        let faults = Faults::default();
        let fault = Fault {
            nth: 2,
            count: Some(2),
            ..Fault::on("server_list", Action::EmptyJson)
        };
        faults.add(fault, || Arc::new(()));
        assert_eq!(fired(&faults, 5), [false, true, true, false, false]);
        let state = &faults.list()[0];
        assert_eq!((state.matched, state.fired), (5, 2));
    }

    #[test]
    fn a_probability_is_repeatable() {
        let run = || {
            let faults = Faults::default();
            let fault = Fault {
                probability: Some(0.5),
                seed: 3,
                ..Fault::new(Action::Timeout)
            };
            faults.add(fault, || Arc::new(()));
            fired(&faults, 64)
        };
        let first = run();
        assert_eq!(first, run());
        assert!(first.contains(&true) && first.contains(&false));
    }

    #[test]
    fn delays_add_up_and_do_not_hide_other_actions() {
        let faults = Faults::default();
        let delay = |ms| {
            Fault::new(Action::Delay {
                time: Duration::from_millis(ms),
            })
        };
        faults.add(delay(10), || Arc::new(()));
        faults.add(Fault::new(Action::Drop), || Arc::new(()));
        faults.add(Fault::new(Action::Timeout), || Arc::new(()));
        faults.add(delay(5), || Arc::new(()));
        let verdict = faults.judge("compute", "GET", "/", "server_get");
        assert_eq!(
            (verdict.delay, verdict.action),
            (Duration::from_millis(15), Some(Action::Drop))
        );
    }

    #[test]
    fn a_rule_reads_from_json() {
        let fault: Fault = serde_json::from_str(
            r#"{"op":"server_list","count":1,"action":{"kind":"status","code":503,"headers":{"Retry-After":"3"}}}"#,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fault.nth, 1);
        assert_eq!(fault.action.name(), "status");
        assert!(serde_json::from_str::<Fault>(r#"{"opp":"x","action":{"kind":"drop"}}"#).is_err());
    }
}
