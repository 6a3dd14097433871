//! Why a part is to be run, and what that means for the questions asked.

use std::time::Duration;

use ccm_core::{Freshness, Priority, load_balancer::ReadOptions};
use tokio::time::Instant;

/// What is read for one Service may serve the next, if both came within this time: a burst of Services costs one listing.
const BURST: Duration = Duration::from_secs(2);

/// For passes that only follow something in the cluster, what is remembered of the cloud is good for this long. Whatever
/// we write is forgotten anyway, and before a create the engine always looks anew.
const REMEMBERED: Duration = Duration::from_secs(2 * 3600);

/// Why a part is to be run. If there are several reasons, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The nodes have changed.
    Nodes,
    /// It is time to look whether the cloud still is as it was left.
    Drift,
    /// A Service has changed, or is new to this process.
    Service,
}

/// A part is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) cause: Cause,
    /// Answers must not be older; `None` for those that are remembered.
    pub(super) after: Option<Instant>,
    pub(super) priority: Priority,
}

impl Job {
    /// One job for both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            cause: self.cause.max(other.cause),
            after: self.after.max(other.after),
            priority: self.priority.min(other.priority),
        }
    }

    pub(super) fn ask(self) -> ReadOptions {
        ReadOptions {
            freshness: self.after.map_or(Freshness::AtMost(REMEMBERED), Freshness::After),
            priority: self.priority,
        }
    }
}

/// Adds a job to those that wait.
pub(super) fn add(jobs: &mut Option<Job>, job: Job) {
    *jobs = Some(jobs.map_or(job, |before| before.and(job)));
}

/// The moment from which answers are new enough, the same one for all of a burst.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_jobs_want_the_newest_answer_for_whoever_waits() {
        let now = Instant::now();
        let nodes = Job {
            cause: Cause::Nodes,
            after: None,
            priority: Priority::User,
        };
        let drift = Job {
            cause: Cause::Drift,
            after: Some(now),
            priority: Priority::Background,
        };
        let both = Job {
            priority: Priority::User,
            ..drift
        };
        assert_eq!(nodes.and(drift), both);
        assert_eq!(drift.and(nodes), both);
        assert_eq!(both.ask().freshness, Freshness::After(now));
        assert_eq!(nodes.ask().freshness, Freshness::AtMost(REMEMBERED));
    }

    #[test]
    fn a_burst_shares_one_moment() {
        let start = Instant::now();
        let mut moment = Moment::default();
        assert_eq!(moment.at(start), start);
        assert_eq!(moment.at(start + BURST / 2), start);
        assert_eq!(moment.at(start + BURST), start + BURST);
    }
}
