//! The start of a pass over a part that waits for the cloud.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    model::{PartCloud, PartModel, WriteConflict},
    pass::Pass,
    record::AcceptedStep,
    steps::{HELD, is_permanent},
};
use crate::{
    Error, ErrorKind, Result,
    client::later,
    load_balancer::{Effect, PartState},
};

/// The state in which a pass begins.
pub(super) enum PassStart<O> {
    /// The part has to be read.
    Read,
    /// Steps that the part was parked for have ended, and this is the observed state. The flag is true if it was read in the
    /// pass that sent them.
    Known(O, bool),
    /// The part stays parked.
    Parked(PartState),
}

/// The results of polling the steps that the cloud accepted.
struct PolledSteps<M: PartModel, T> {
    /// The cloud has not finished them.
    accepted: Vec<AcceptedStep<M, T>>,
    failed: Vec<(AcceptedStep<M, T>, Error)>,
    /// One has ended.
    has_ended: bool,
    /// One of those that ended lists its objects.
    has_objects: bool,
    /// One ended in a way that only a read shows.
    needs_read: bool,
    /// A poll failed.
    error: Option<Error>,
}

impl<M: PartModel, C: PartCloud<M>> Pass<'_, M, C> {
    /// Polls the steps that the part was parked for.
    pub(super) async fn resume(&mut self) -> Result<PassStart<M::Observed>> {
        if self.dry_run.is_some() {
            return Ok(PassStart::Read);
        }
        if let Some(state) = self.resume_pending().await? {
            return Ok(PassStart::Parked(state));
        }
        let now = Instant::now();
        let held = self.record.held.len();
        self.record.held.retain(|held| now < held.until);
        let has_freed = self.record.held.len() < held;
        let Some(waiting) = &self.record.waiting else {
            let known = self.record.shared.take_waiting(self.request.read.freshness);
            return Ok(match known {
                Some((observed, fresh)) if !self.record.needs_read => PassStart::Known(observed, fresh),
                _ => PassStart::Read,
            });
        };
        self.members.clone_from(&waiting.members);
        self.discovery.clone_from(&waiting.discovery);
        let polled = self.poll_accepted(now).await;
        let (has_ended, has_failed) = (polled.has_ended, !polled.failed.is_empty());
        let needs_read = polled.needs_read || has_failed;
        if let Some(waiting) = &mut self.record.waiting {
            waiting.accepted = polled.accepted;
            if needs_read {
                waiting.observed = None;
            }
        }
        let has_others = self.record.waiting.as_ref().is_some_and(|waiting| !waiting.accepted.is_empty());
        if !has_others {
            // If a step that was sent meanwhile failed, there is no observed state.
            let waiting = self.record.waiting.take();
            let known = waiting.and_then(|waiting| Some((waiting.observed?, waiting.fresh)));
            self.operations_failed(polled.failed, false)?;
            let Some((observed, fresh)) = known else {
                return Ok(PassStart::Read);
            };
            self.record.needs_read = false;
            return Ok(self.start_with(observed, fresh, polled.has_objects));
        }
        self.operations_failed(polled.failed, true)?;
        if !has_ended && !has_failed && !has_freed {
            let state = self.record.waits();
            return match (polled.error, state) {
                (None, Some(state)) => Ok(PassStart::Parked(state)),
                (None, None) => Ok(PassStart::Read),
                (Some(error), _) => Err(error),
            };
        }
        let waiting = self.record.waiting.as_mut();
        let known = waiting.and_then(|waiting| Some((waiting.observed.take()?, waiting.fresh)));
        Ok(match known {
            Some((observed, fresh)) => self.start_with(observed, fresh, polled.has_objects),
            None => PassStart::Read,
        })
    }

    fn start_with(
        &mut self,
        observed: M::Observed,
        fresh: bool,
        has_more_steps: bool,
    ) -> PassStart<M::Observed> {
        if !self.engine.model.lacks_result(&observed) {
            return PassStart::Known(observed, fresh);
        }
        // Steps that waited for the result may create something, which needs an uncached read.
        self.record.needs_read |= has_more_steps;
        PassStart::Read
    }

    /// Polls the accepted steps that are due. If this future is dropped meanwhile, the next pass polls them again.
    async fn poll_accepted(&mut self, now: Instant) -> PolledSteps<M, C::Ticket> {
        let mut polled = PolledSteps {
            accepted: Vec::new(),
            failed: Vec::new(),
            has_ended: false,
            has_objects: false,
            needs_read: false,
            error: None,
        };
        let (cloud, key, priority) = (&self.engine.cloud, &self.key, self.request.read.priority);
        let Some(waiting) = &self.record.waiting else {
            return polled;
        };
        let answers = waiting.accepted.iter().map(|accepted| async move {
            if now < accepted.until {
                return None;
            }
            Some(cloud.poll(key, &accepted.ticket, priority).await)
        });
        let answers = join_all(answers).await;
        let accepted = self.record.waiting.as_mut().map(|waiting| std::mem::take(&mut waiting.accepted));
        for (mut accepted, answer) in accepted.into_iter().flatten().zip(answers) {
            let until = match answer {
                None => {
                    polled.accepted.push(accepted);
                    continue;
                }
                Some(Ok(None)) => {
                    self.done(&accepted.description, accepted.since);
                    polled.has_ended = true;
                    polled.has_objects |= accepted.description.objects.is_some();
                    continue;
                }
                Some(Ok(Some(wait))) => later(now, wait),
                Some(Err(error)) => match WriteConflict::of(&error) {
                    Some(WriteConflict::Busy(after)) => later(now, after),
                    Some(WriteConflict::Stale) => {
                        self.withdraw_early_facts();
                        if accepted.description.effect == Effect::Create {
                            self.memory.lock().vanished(&self.key);
                        }
                        self.count_repeat("stale");
                        (polled.has_ended, polled.needs_read) = (true, true);
                        continue;
                    }
                    None if is_temporary(error.kind()) && now < accepted.deadline => {
                        polled.error.get_or_insert(error);
                        now
                    }
                    None => {
                        polled.failed.push((accepted, error));
                        continue;
                    }
                },
            };
            if now >= accepted.deadline {
                let error = Error::new(ErrorKind::Timeout, "the cloud did not finish in time");
                polled.failed.push((accepted, error));
                continue;
            }
            accepted.until = until;
            polled.accepted.push(accepted);
        }
        polled
    }

    /// Steps that the cloud accepted have failed: the part is read before anything else is sent.
    ///
    /// # Errors
    /// The error of a step that the pass cannot continue without.
    fn operations_failed(
        &mut self,
        failed: Vec<(AcceptedStep<M, C::Ticket>, Error)>,
        has_others: bool,
    ) -> Result<()> {
        let mut first = None;
        for (accepted, error) in failed {
            let description = &accepted.description;
            let is_permanent = is_permanent(error.kind());
            if is_permanent && description.is_one_of_many {
                self.ended_badly(description, accepted.since, &error);
                self.count_repeat("refused");
                self.record.refuse(accepted.change, error);
                continue;
            }
            if is_permanent && description.is_shared {
                self.ended_badly(description, accepted.since, &error);
                self.withdraw_early_facts();
                if let Err(error) = self.shared_step_refused(&accepted.change, error) {
                    self.hold(description, HELD, error.report(), has_others);
                    first.get_or_insert(error);
                }
                continue;
            }
            let error = error.with_context("step", description.sentence.clone());
            self.ended_badly(description, accepted.since, &error);
            self.withdraw_early_facts();
            match &description.service {
                Some(service) if is_permanent && description.objects.is_some() => {
                    self.failed_operations.push((service.clone(), error));
                }
                _ => {
                    self.hold(description, HELD, error.report(), has_others);
                    first.get_or_insert(error);
                }
            }
        }
        match first {
            Some(error) if !has_others => Err(error),
            _ => Ok(()),
        }
    }

    /// Polls whether the cloud has finished a change by another client. `None`: it has, or no such change is known.
    async fn resume_pending(&mut self) -> Result<Option<PartState>> {
        let Some(pending) = self.record.pending.take() else {
            return Ok(None);
        };
        self.members.clone_from(&pending.members);
        self.discovery.clone_from(&pending.discovery);
        if Instant::now() < pending.until {
            let state = PartState::Parked {
                until: pending.until,
                since: self.record.busy_since.unwrap_or(pending.until),
                why: pending.why.clone(),
            };
            self.record.pending = Some(pending);
            return Ok(Some(state));
        }
        let priority = self.request.read.priority;
        let cloud = &self.engine.cloud;
        match cloud.is_pending(&self.key, &pending.observed, priority).await {
            Ok(true) => Ok(Some(self.wait_for(pending))),
            Ok(false) => Ok(None),
            Err(error) => {
                if is_temporary(error.kind()) {
                    self.record.pending = Some(pending);
                }
                Err(error)
            }
        }
    }
}

/// Whether a poll that failed with such an error may succeed the next time.
fn is_temporary(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited | ErrorKind::Unauthenticated
    )
}
