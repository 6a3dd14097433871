//! What a proxy does to the requests that pass it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ccm_sim::Moment;
use ccm_sim::rules::{self, When};

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
    /// Answers with this status and the body of a failure as the server writes it.
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
    /// Whether it is about this request.
    pub(super) fn matches(&self, request: &Request) -> bool {
        (self.condition)(request)
    }
}

/// All rules in force.
pub(super) type Rules = rules::Rules<Rule>;
