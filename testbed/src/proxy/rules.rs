//! The fault injection rules of a proxy.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ccm_sim::Moment;
use ccm_sim::rules::{self, When};

use super::Request;

/// The condition that selects requests.
type Condition = Arc<dyn Fn(&Request) -> bool + Send + Sync>;

/// The action on a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Stops at this moment until the rule is removed, and notifies waiters. After the reply, it only notifies.
    Hold(Moment),
    /// Drops all packets until the rule is removed: requests are held before they are forwarded, and open watches get no
    /// events.
    Silence,
    /// Answers with this status without forwarding the request.
    Status {
        /// The status code.
        code: u16,
        /// Seconds, for the header `Retry-After`.
        retry_after: Option<u32>,
        /// The body; by default an error of this server.
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
    /// Forwards the request after a delay.
    Delay(Duration),
}

impl Action {
    /// Answers with this status and an error of this server.
    #[must_use]
    pub const fn status(code: u16) -> Self {
        Self::Status {
            code,
            retry_after: None,
            body: None,
        }
    }

    /// Answers with this status and body.
    pub fn answer(code: u16, body: impl Into<String>) -> Self {
        Self::Status {
            code,
            retry_after: None,
            body: Some(body.into()),
        }
    }

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

/// A rule with its condition, number of uses and action.
#[derive(Clone)]
pub struct Rule {
    condition: Condition,
    /// Fires for the first time at the n-th matching request, counted from 1.
    pub nth: u64,
    /// Fires at most this often. Without it: forever.
    pub count: Option<u64>,
    /// Fires only with this probability, from 0 to 1.
    pub probability: Option<f64>,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The action on matching requests.
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
    /// A rule that matches every request.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self::when(|_| true, action)
    }

    /// A rule that matches these requests.
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

impl rules::Rule for Rule {
    fn when(&self) -> When {
        When {
            nth: self.nth,
            count: self.count,
            probability: self.probability,
            seed: self.seed,
        }
    }

    fn delay(&self) -> Option<Duration> {
        match self.action {
            Action::Delay(time) => Some(time),
            _ => None,
        }
    }
}

impl Rule {
    /// Whether the rule matches this request.
    pub(super) fn matches(&self, request: &Request) -> bool {
        (self.condition)(request)
    }
}

/// All present rules.
pub(super) type Rules = rules::Rules<Rule>;
