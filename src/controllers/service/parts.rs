//! The workers: one pass after the other, each over another part.

use std::sync::Arc;

use ccm_core::{
    ErrorKind,
    client::later,
    load_balancer::{PartKey, PartReport, PartState, Request, StepDescription, Watcher},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{COMPONENT, ServiceController, conclude::Next, job::Cause, records::State, tell::Failure};

/// Tells people before a pass writes.
struct Announcer {
    controller: Arc<ServiceController>,
    /// The part under the name under which it was taken up.
    part: PartKey,
    cause: Cause,
}

impl Watcher for Announcer {
    fn due(&self, _: &PartKey, steps: &[StepDescription]) {
        let tellings = self
            .controller
            .ledger
            .lock()
            .steps_due(&self.part, steps, self.cause);
        for telling in tellings {
            self.controller.teller.tell(&telling);
        }
    }
}

impl ServiceController {
    /// Runs parts until `shutdown`; the pass that is under way then is finished. A part that waits for the cloud is left
    /// to the next process.
    pub(super) async fn work_on_parts(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            let part = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                part = self.parts.next() => part,
            };
            self.metrics.running.inc();
            self.run_part(&part).await;
            self.metrics.running.dec();
        }
    }

    async fn run_part(self: &Arc<Self>, part: &PartKey) {
        let task = self.ledger.lock().take(part, Instant::now());
        let (Some(task), Some(balancers)) = (task, self.cloud.load_balancers()) else {
            return self.parts.done(part);
        };
        let request = Request {
            snapshot: Arc::clone(&task.snapshot),
            read: task.job.ask(),
            delete_orphan: task.delete_orphan,
            watcher: Some(Arc::new(Announcer {
                controller: Arc::clone(self),
                part: part.clone(),
                cause: task.job.cause,
            })),
        };
        let began = Instant::now();
        let report = balancers.run(part, &request).await;
        let now = Instant::now();
        let (orders, next) = self.ledger.lock().conclude(&task, &report, now);
        self.ownership(part, task.job.cause, &report, next, began);
        match (&report.renamed, next) {
            (None, Next::Done) => self.parts.done(part),
            (None, Next::Until(due)) => self.parts.done_until(part, due),
            (None, Next::Backoff { least }) => {
                self.parts.done_with_backoff_of_at_least(part, least);
            }
            (Some(new), next) => {
                self.parts.done(part);
                match next {
                    Next::Done => {}
                    Next::Until(due) => self.parts.add_at(new.clone(), due),
                    Next::Backoff { least } => {
                        let wait = super::BACKOFF.first.max(least);
                        self.parts.add_at(new.clone(), later(now, wait));
                    }
                }
            }
        }
        self.carry_out(orders);
        self.follow(report.renamed.as_ref().unwrap_or(part), part, next);
    }

    /// Log and metrics.
    fn ownership(&self, part: &PartKey, cause: Cause, report: &PartReport, next: Next, began: Instant) {
        let took = began.elapsed();
        let name = report.renamed.as_ref().unwrap_or(part);
        let (state, failure) = match &report.state {
            PartState::Done if next == Next::Done => (State::Done, None),
            PartState::Done => (State::Held, held(report)),
            PartState::Parked { why, .. } => {
                debug!(controller = COMPONENT, part = %name, why, "Waiting for the cloud");
                self.metrics.retried("parked");
                (State::Parked, None)
            }
            PartState::Blocked(why) => (State::Blocked, Some(Failure::Blocked(why))),
            PartState::Failed(error) => (State::Failed, Some(Failure::Error(error))),
        };
        self.metrics.pass_ended(cause, took, state);
        if name != part {
            self.teller.works(part.as_str());
        }
        match &failure {
            Some(Failure::Error(error)) if error.kind() == ErrorKind::NotLeader => {}
            Some(failure) => {
                self.metrics.retried(failure.label());
                self.teller
                    .failed(name.as_str(), failure.label(), &failure.text());
            }
            None if state == State::Done => self.teller.works(name.as_str()),
            None => {}
        }
        let steps = report.steps.len();
        debug!(controller = COMPONENT, part = %name, ?cause, steps, state = state.as_str(), elapsed = ?took, "Pass ended");
    }
}

fn held(report: &PartReport) -> Option<Failure<'_>> {
    report.members.iter().find_map(|member| match &member.state {
        ccm_core::load_balancer::MemberState::Refused(error) => Some(Failure::Error(error)),
        _ => None,
    })
}
