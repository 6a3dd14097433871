//! Why and how a part is run, and how a pass over it ends.

use std::time::Duration;

use ccm_core::{
    Error, ErrorKind, Freshness, Priority,
    load_balancer::{MemberState, PartReport, PartState, ReadOptions},
};
use tokio::time::Instant;

use super::super::events::Failure;

/// Changes within this time share one discovery: answers that are read for one Service may serve the next.
pub(super) const BURST: Duration = Duration::from_secs(2);

/// For passes that only follow a change in the cluster, remembered answers of the cloud are used for this long. Before it
/// creates or deletes, the engine always reads.
pub(super) const REMEMBERED: Duration = Duration::from_secs(2 * 3600);

/// Why a part is to be run. If there are several reasons, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::controllers::service) enum Cause {
    /// The nodes have changed.
    Nodes,
    /// It is time to compare the cloud with its last known state.
    Drift,
    /// A Service has changed, or is new to this process.
    Service,
}

/// A part is to be run, or discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controllers::service) struct Job {
    pub(in crate::controllers::service) cause: Cause,
    /// The earliest time of answers; `None` permits remembered answers.
    pub(super) after: Option<Instant>,
    pub(super) priority: Priority,
}

impl Job {
    /// A job that follows a change in the cluster, with remembered answers.
    pub(super) fn now(cause: Cause) -> Self {
        Self {
            cause,
            after: None,
            priority: Priority::User,
        }
    }

    /// For a change of a Service, with answers of the cloud from after this moment.
    pub(super) fn service(after: Option<Instant>) -> Self {
        Self {
            after,
            ..Self::now(Cause::Service)
        }
    }

    /// A job in the background, with new answers.
    pub(super) fn drift(at: Instant) -> Self {
        Self {
            cause: Cause::Drift,
            after: Some(at),
            priority: Priority::Background,
        }
    }

    /// Combines both jobs.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            cause: self.cause.max(other.cause),
            after: self.after.max(other.after),
            priority: self.priority.min(other.priority),
        }
    }

    /// Adds it to the jobs that wait.
    pub(super) fn add_to(self, jobs: &mut Option<Self>) {
        *jobs = Some(jobs.map_or(self, |before| before.and(self)));
    }

    /// Whether the work failed only because the rest of the quota is reserved for users.
    pub(super) fn waits_for_quota(self, error: &Error) -> bool {
        self.priority == Priority::Background && error.kind() == ErrorKind::RateLimited
    }

    pub(in crate::controllers::service) fn ask(self) -> ReadOptions {
        ReadOptions {
            freshness: self.after.map_or(Freshness::AtMost(REMEMBERED), Freshness::After),
            priority: self.priority,
        }
    }
}

/// The earliest time of answers, the same for all changes of a burst.
#[derive(Debug, Default)]
pub(super) struct Moment(Option<Instant>);

impl Moment {
    pub(super) fn at(&mut self, now: Instant) -> Instant {
        match self.0 {
            Some(moment) if now.saturating_duration_since(moment) < BURST => moment,
            _ => *self.0.insert(now),
        }
    }
}

/// When the part is to be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controllers::service) enum NextRun {
    /// After a change.
    Done,
    /// At this time, without a failure or because the provider gave the time.
    Until(Instant),
    /// With growing waits, none of them shorter than the one that the cloud asks for.
    Backoff { least: Duration },
    /// When it was due before this pass, which changed nothing about its failure.
    LastRetry,
}

/// How the last pass over a part ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::controllers::service) enum PartStatus {
    /// There was no pass.
    #[default]
    New,
    Done,
    /// A member is refused; the others are done.
    Refused,
    Parked,
    Blocked,
    /// Everything is done, but the cloud reports a failure of the part.
    Degraded,
    Failed,
}

impl PartStatus {
    pub(in crate::controllers::service) const ALL: [Self; 7] = [
        Self::New,
        Self::Done,
        Self::Refused,
        Self::Parked,
        Self::Blocked,
        Self::Degraded,
        Self::Failed,
    ];

    /// The metric label.
    pub(in crate::controllers::service) fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Parked => "parked",
            Self::Blocked => "blocked",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }

    /// Whether it is tried again although nothing has changed.
    pub(in crate::controllers::service) fn is_trouble(self) -> bool {
        !matches!(self, Self::New | Self::Done | Self::Parked)
    }

    /// Whether the part as a whole fails: it waits for its next try also if nodes or other parts change.
    pub(in crate::controllers::service) fn fails(self) -> bool {
        self.is_trouble() && self != Self::Refused
    }

    /// How the pass ended, and the reason if it has to be tried again.
    pub(in crate::controllers::service) fn of(report: &PartReport) -> (Self, Option<Failure<'_>>) {
        let refused = report.members.iter().find_map(|member| match &member.state {
            MemberState::Refused(error) => Some(Failure::Error(error)),
            _ => None,
        });
        match &report.state {
            PartState::Done if refused.is_some() => (Self::Refused, refused),
            PartState::Done => (Self::Done, None),
            PartState::Parked { .. } => (Self::Parked, None),
            PartState::Blocked(why) => (Self::Blocked, Some(Failure::Blocked(why))),
            PartState::Failed(error) => {
                let serves_one =
                    report.members.iter().any(|member| matches!(member.state, MemberState::Served));
                let status = if serves_one { Self::Degraded } else { Self::Failed };
                (status, Some(Failure::Error(error)))
            }
        }
    }
}
