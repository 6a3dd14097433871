//! Faults: rules that make the simulated cloud fail as real ones do.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::millis;
use crate::rules::{Rule, RuleState, Rules, When};

/// A frozen state of the cloud, for stale reads.
pub(crate) type Snapshot = Arc<dyn Any + Send + Sync>;

/// One rule: which requests it matches, how often it fires, and its action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Only requests to this service, by its catalog type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Only this HTTP method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Only requests whose path and query contain this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only this operation, for example `server_list`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Fires for the first time at the n-th matching request, counted from 1.
    #[serde(default = "one")]
    pub nth: u64,
    /// Fires at most this often; unlimited if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Fires only with this probability, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// The seed of the probability.
    #[serde(default)]
    pub seed: u64,
    /// The action.
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

    pub(crate) fn matches(&self, service: &str, method: &str, target: &str, op: &str) -> bool {
        let is = |want: &Option<String>, have: &str| want.as_deref().is_none_or(|want| want == have);
        is(&self.service, service)
            && self.method.as_deref().is_none_or(|want| want.eq_ignore_ascii_case(method))
            && is(&self.op, op)
            && self.path.as_deref().is_none_or(|part| target.contains(part))
    }
}

/// A moment in the life of a request, at which a client may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The request has arrived and was not handled.
    Before,
    /// The request was handled and not answered.
    AfterCommit,
    /// The whole answer was sent.
    AfterReply,
}

impl Moment {
    /// All moments in their order.
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

/// The action of a fault.
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
        /// Additional headers.
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
        /// The sent part of the body; half of it by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<usize>,
    },
    /// Answers 200 with `{}` without handling the request.
    EmptyJson,
    /// Answers listings with the first items only, as if there were no others, and everything else in full.
    Partial {
        /// The sent share of the items, from 0 to 1.
        share: f64,
    },
    /// Answers from the state that the cloud had when the rule was added.
    StaleRead,
    /// Stops at this moment until the rule is removed, and notifies waiting tasks. After the reply it only notifies.
    Hold {
        /// The moment.
        at: Moment,
    },
    /// Handles the request after a delay.
    Delay {
        /// How long.
        #[serde(with = "millis", rename = "ms")]
        time: Duration,
    },
}

impl Action {
    /// A status with the service's own error document.
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

/// An active rule and its counts.
#[derive(Clone, Debug, Serialize)]
pub struct FaultState {
    /// The rule's number, for its removal.
    pub id: u64,
    /// The rule.
    pub fault: Fault,
    /// How many requests it matched.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
    /// How many requests it held.
    pub reached: u64,
}

/// A fault with the state that it answers from.
#[derive(Clone)]
pub(crate) struct ArmedFault {
    pub(crate) fault: Fault,
    pub(crate) snapshot: Option<Snapshot>,
}

impl Rule for ArmedFault {
    fn when(&self) -> When {
        let Fault {
            nth,
            count,
            probability,
            seed,
            ..
        } = self.fault;
        When {
            nth,
            count,
            probability,
            seed,
        }
    }

    fn delay(&self) -> Option<Duration> {
        match self.fault.action {
            Action::Delay { time } => Some(time),
            _ => None,
        }
    }
}

/// All active faults.
pub(crate) type Faults = Rules<ArmedFault>;

impl From<RuleState<ArmedFault>> for FaultState {
    fn from(state: RuleState<ArmedFault>) -> Self {
        Self {
            id: state.id,
            fault: state.rule.fault,
            matched: state.matched,
            fired: state.fired,
            reached: state.reached.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(faults: &Faults, fault: Fault) {
        faults.add(ArmedFault {
            fault,
            snapshot: None,
        });
    }

    fn decide(faults: &Faults) -> crate::rules::Verdict<ArmedFault> {
        faults.decide(|armed| armed.fault.matches("compute", "GET", "/servers", "server_list"))
    }

    fn fired(faults: &Faults, requests: usize) -> Vec<bool> {
        (0..requests).map(|_| decide(faults).rule.is_some()).collect()
    }

    #[test]
    fn fires_from_the_nth_match_for_a_number_of_times() {
        let faults = Faults::default();
        let fault = Fault {
            nth: 2,
            count: Some(2),
            ..Fault::on("server_list", Action::EmptyJson)
        };
        add(&faults, fault);
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
            add(&faults, fault);
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
        add(&faults, delay(10));
        add(&faults, Fault::new(Action::Drop));
        add(&faults, Fault::new(Action::Timeout));
        add(&faults, delay(5));
        let verdict = decide(&faults);
        assert_eq!(
            (verdict.delay, verdict.rule.map(|(_, armed)| armed.fault.action)),
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
