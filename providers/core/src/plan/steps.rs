//! The part of a pass that writes: sends steps, waits for the cloud, folds in its replies.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span};

use super::{
    key::PartKind,
    model::{Member, Membership, Outcome, PartCloud, PartModel, Step, WriteConflict},
    pass::{Applied, Pass},
    record::{Unanswered, Waiting},
};
use crate::{
    Error, ErrorKind, Outcome as WriteOutcome, Result, Retry,
    client::later,
    load_balancer::{Effect, PartState, StepDescription, StepReport},
};

/// The least wait before a create that had no reply is sent again. Octavia shows a load balancer only when Neutron has made its
/// port, and allows several with one name.
const UNANSWERED: Duration = Duration::from_secs(30);

/// The state in which a pass begins.
pub(super) enum PassStart<O> {
    /// The part has to be read.
    Read,
    /// The step that the part was parked for is done, and this is the observed state. The flag is true if it was read in this
    /// pass.
    Known(O, bool),
    /// The part stays parked.
    Parked(PartState),
}

impl<M: PartModel, C: PartCloud<M>> Pass<'_, M, C> {
    /// Sends the steps one after the other. Once the cloud accepted one, only those are sent that do not need the part to be
    /// idle, up to the first that does.
    pub(super) async fn apply_steps(
        &mut self,
        steps: &[Step<M::Change>],
        observed: &mut M::Observed,
        fresh: bool,
    ) -> Result<Applied> {
        let engine = self.engine;
        if let Some(dry_run) = self.dry_run {
            for step in steps {
                engine.model.fold(&self.key, &step.change, None, observed);
                self.done(&step.description, Instant::now());
            }
            dry_run.lock().insert(self.key.clone(), observed.clone());
            return Ok(Applied::All);
        }
        for step in steps {
            let description = &step.description;
            if let Some(waiting) = &mut self.record.waiting {
                if description.needs_idle {
                    break;
                }
                // Until the reply is folded in.
                waiting.observed = None;
            }
            // If this future is dropped while the step is in progress, the next pass reads the part.
            self.record.needs_read = true;
            if let Some(applied) = self.unanswered(description) {
                return applied;
            }
            let sent = Instant::now();
            let created_for = description.service.as_ref();
            let created_for = created_for.filter(|_| description.effect == Effect::Create);
            created_for.inspect(|id| self.memory.lock().create_begins(id, &self.key));
            let span = info_span!("step", step = description.label);
            let outcome = engine
                .cloud
                .send(&self.key, &step.change, observed, self.request.read.priority)
                .instrument(span)
                .await;
            created_for.inspect(|id| self.memory.lock().create_ended(id, &self.key));
            let (reply, ticket) = match outcome {
                Ok(Outcome::Done(reply)) => (reply, None),
                Ok(Outcome::Accepted { reply, ticket, wait }) => (reply, Some((ticket, wait))),
                Err(error) if self.record.waiting.is_some() => {
                    // Planned again when the cloud has finished.
                    if WriteConflict::of(&error).is_none() {
                        self.ended_badly(description, sent, &error);
                    }
                    break;
                }
                Err(error) => return self.failed(step, sent, error),
            };
            engine.model.fold(&self.key, &step.change, Some(&reply), observed);
            match (ticket, &mut self.record.waiting) {
                (None, None) => {
                    self.record.needs_read = false;
                    self.done(description, sent);
                }
                (None, Some(waiting)) => {
                    waiting.observed = Some(observed.clone());
                    self.done(description, sent);
                }
                (Some((ticket, wait)), None) => {
                    debug!(step = %step, "The cloud accepted the step");
                    self.record.is_not_busy();
                    self.record.waiting = Some(Waiting {
                        ticket,
                        description: description.clone(),
                        observed: Some(observed.clone()),
                        fresh,
                        until: later(sent, wait.poll),
                        since: sent,
                        deadline: later(sent, wait.deadline),
                        members: self.members.clone(),
                        discovery: self.discovery.clone(),
                    });
                }
                (Some(_), Some(_)) => {
                    let text = "a change that does not need an idle part returned a ticket; this is a bug";
                    let error =
                        Error::new(ErrorKind::Unexpected, text).with_context("step", step.to_string());
                    self.ended_badly(description, sent, &error);
                    self.record.waiting = None;
                    return Err(error);
                }
            }
            if !self.follow_key(observed) {
                self.record.waiting = None;
                return Ok(Applied::Wait(self.key_in_use()));
            }
            if self.record.waiting.is_some() && description.effect == Effect::Create {
                self.publish_early_facts(observed);
            }
        }
        Ok(match &self.record.waiting {
            Some(waiting) => Applied::Wait(waiting.state()),
            None => Applied::All,
        })
    }

    /// Polls the step that the part was parked for.
    pub(super) async fn resume(&mut self) -> Result<PassStart<M::Observed>> {
        if self.dry_run.is_some() {
            return Ok(PassStart::Read);
        }
        if let Some(state) = self.resume_pending().await? {
            return Ok(PassStart::Parked(state));
        }
        // If this future is dropped during the poll, the next pass reads the part: it needs a read since the step was sent.
        let Some(mut waiting) = self.record.waiting.take() else {
            return Ok(PassStart::Read);
        };
        self.members.clone_from(&waiting.members);
        self.discovery.clone_from(&waiting.discovery);
        let asked = Instant::now();
        if asked < waiting.until {
            let state = waiting.state();
            self.record.waiting = Some(waiting);
            return Ok(PassStart::Parked(state));
        }
        let priority = self.request.read.priority;
        let polled = self.engine.cloud.poll(&self.key, &waiting.ticket, priority).await;
        let until = match polled {
            Ok(None) => {
                self.done(&waiting.description, waiting.since);
                // A read shows whether a step that was sent meanwhile failed.
                let Some(observed) = waiting.observed else {
                    return Ok(PassStart::Read);
                };
                self.record.needs_read = false;
                if self.engine.model.lacks_result(&observed) {
                    return Ok(PassStart::Read);
                }
                return Ok(PassStart::Known(observed, waiting.fresh));
            }
            Ok(Some(wait)) => later(asked, wait),
            Err(error) => match WriteConflict::of(&error) {
                Some(WriteConflict::Busy(after)) => later(asked, after),
                Some(WriteConflict::Stale) => {
                    self.withdraw_early_facts();
                    if waiting.description.effect == Effect::Create {
                        self.memory.lock().vanished(&self.key);
                    }
                    self.count_repeat("stale");
                    return Ok(PassStart::Read);
                }
                None if is_temporary(error.kind()) && asked < waiting.deadline => {
                    waiting.until = asked;
                    self.record.waiting = Some(waiting);
                    return Err(error);
                }
                None => return Err(self.ticket_failed(&waiting, error)),
            },
        };
        if asked >= waiting.deadline {
            let error = Error::new(ErrorKind::Timeout, "the cloud did not finish in time");
            return Err(self.ticket_failed(&waiting, error));
        }
        waiting.until = until;
        let state = waiting.state();
        self.record.waiting = Some(waiting);
        Ok(PassStart::Parked(state))
    }

    /// The step that the part was parked for has failed: the next pass reads the part.
    fn ticket_failed(&mut self, waiting: &Waiting<M, C::Ticket>, error: Error) -> Error {
        let error = error.with_context("step", waiting.description.sentence.clone());
        self.ended_badly(&waiting.description, waiting.since, &error);
        self.withdraw_early_facts();
        error
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

    /// The result if the same create had no reply a moment ago: it is not sent again yet. The pass that sent it reports the
    /// error.
    fn unanswered(&mut self, create: &StepDescription) -> Option<Result<Applied>> {
        let sent = self.record.unanswered()?;
        let known = &sent.description;
        let is_same = match &known.creates {
            // Its children may be others by now.
            Some(object) => create.creates.as_ref() == Some(object),
            None => (known.label, &known.sentence) == (create.label, &create.sentence),
        };
        if !is_same {
            return None;
        }
        if self.steps.is_empty() {
            return Some(Ok(Applied::Wait(sent.state())));
        }
        let error = sent.error.clone().with_retry(Retry::After(UNANSWERED));
        let given_up = self.give_up(create.service.as_ref(), error);
        Some(given_up.map(|()| Applied::MemberFrozen))
    }

    /// How to wait if a create had no reply a moment ago and members leave: its object may be theirs.
    pub(super) fn unanswered_before_leaving(&mut self) -> Option<PartState> {
        let leaves = |member: &Member<M>| member.membership == Membership::Leaving;
        let state = self.record.unanswered()?.state();
        let waits = self.members.iter().any(leaves);
        self.record.needs_read |= waits;
        waits.then_some(state)
    }

    fn failed(&mut self, step: &Step<M::Change>, sent: Instant, error: Error) -> Result<Applied> {
        match WriteConflict::of(&error) {
            Some(WriteConflict::Busy(after)) => {
                debug!(step = %step, ?after, "The part is busy");
                return Ok(Applied::Wait(self.busy(after, format!("{step}: {}", error.report()))));
            }
            Some(WriteConflict::Stale) => {
                self.count_repeat("stale");
                let text = "another client changes it after every read";
                let error = Error::new(ErrorKind::Conflict, text).with_source(error);
                return Ok(Applied::ReadAgain(step.description.service.clone(), error));
            }
            None => {}
        }
        let unknown = error.outcome() == WriteOutcome::Unknown;
        let service = step.description.service.as_ref();
        self.ended_badly(&step.description, sent, &error);
        if unknown {
            // It may have been carried out: the next read shows it.
            self.touch(&step.description);
            self.count_repeat("unknown");
            return Ok(Applied::ReadAgain(service.cloned(), error));
        }
        match error.kind() {
            // Another client was faster, or the read is out of date.
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Conflict => {
                self.count_repeat("stale");
                Ok(Applied::ReadAgain(service.cloned(), error))
            }
            kind if is_permanent(kind) => self.give_up(service, error).map(|()| Applied::MemberFrozen),
            _ => Err(error),
        }
    }

    fn done(&mut self, description: &StepDescription, sent: Instant) {
        self.record.is_not_busy();
        let of_service = |sent: &mut Unanswered| sent.description.service == description.service;
        if description.effect == Effect::Delete {
            // A create of the Service that had no reply was carried out before.
            self.record.unanswered.take_if(of_service);
        }
        if self.dry_run.is_none() {
            let (model, took) = (&self.engine.model, sent.elapsed());
            let (provider, kind) = (model.provider(), self.key.kind());
            self.engine.metrics.step_ended(provider, kind, description.label, "ok", took);
            info!(part = %self.key, reason = description.reason, took_ms = millis(took), "Done: {}", description.sentence);
        }
        self.touch(description);
        self.steps.push(StepReport {
            description: description.clone(),
            result: Ok(()),
            took: sent.elapsed(),
        });
    }

    fn ended_badly(&mut self, description: &StepDescription, sent: Instant, error: &Error) {
        let (model, took) = (&self.engine.model, sent.elapsed());
        let (provider, kind) = (model.provider(), self.key.kind());
        self.engine.metrics.step_ended(provider, kind, description.label, "error", took);
        // The caller reports it, once per change of state.
        debug!(part = %self.key, step = description.sentence, error = error.report(), "A step failed");
        if description.effect == Effect::Create && error.outcome() == WriteOutcome::Unknown {
            self.record.unanswered = Some(Unanswered {
                description: description.clone(),
                error: error.clone(),
                since: sent,
                until: later(Instant::now(), UNANSWERED),
            });
        }
        self.steps.push(StepReport {
            description: description.clone(),
            result: Err(error.clone()),
            took,
        });
    }

    fn touch(&mut self, description: &StepDescription) {
        let progress = &mut self.record.progress;
        progress.steps += 1;
        match &description.service {
            Some(service) => {
                progress.touched.insert(service.clone());
            }
            None => progress.touched_all = true,
        }
    }

    pub(super) fn count_repeat(&self, reason: &'static str) {
        let model = &self.engine.model;
        self.engine.metrics.repeated(model.provider(), self.key.kind(), reason);
    }

    /// Continues under the part's new key, if it has one. False if another pass runs under that key already.
    pub(super) fn follow_key(&mut self, observed: &M::Observed) -> bool {
        let Some(new) = self.engine.model.rekey(&self.key, observed) else {
            return true;
        };
        if new == self.key {
            return true;
        }
        self.memory.lock().rename(&self.key, &new);
        debug!(part = %self.key, now = %new, "The part has its id");
        let record = self.engine.try_part_record(&new);
        let old = std::mem::replace(&mut self.key, new);
        match record {
            Some(mut record) => {
                *record = std::mem::take(&mut *self.record);
                self.record = record;
                true
            }
            None => {
                debug!(part = %old, "Another pass runs under the part's new key");
                false
            }
        }
    }

    pub(super) fn key_in_use(&mut self) -> PartState {
        self.busy(Duration::from_secs(1), "another pass runs under the part's new key".to_owned())
    }
}

impl Unanswered {
    fn state(&self) -> PartState {
        PartState::Parked {
            until: self.until,
            since: self.since,
            why: format!("no reply to: {}", self.description.sentence),
        }
    }
}

impl<M: PartModel, T> Waiting<M, T> {
    fn state(&self) -> PartState {
        PartState::Parked {
            until: self.until,
            since: self.since,
            why: format!("the cloud has not finished: {}", self.description.sentence),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a poll that failed with such an error may succeed the next time.
fn is_temporary(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited | ErrorKind::Unauthenticated
    )
}

/// Whether it is useless to send the step again. The other members do not wait for it.
fn is_permanent(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidSpec
            | ErrorKind::InvalidConfig
            | ErrorKind::QuotaExceeded
            | ErrorKind::PermissionDenied
            | ErrorKind::Unsupported
            | ErrorKind::Unexpected
    )
}
