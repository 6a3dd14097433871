//! The part of a pass that writes: sending steps, waiting for the cloud, folding in what it answers.

use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span};

use super::{
    model::{Change, Outcome, PartCloud, PartModel, Step, Wait},
    pass::{Applied, Pass},
    record::Waiting,
};
use crate::{
    Error, ErrorKind, Outcome as Fate, Result,
    load_balancer::{PartState, StepReport},
};

/// Whether a parked step is done.
pub(super) enum Resumed<O> {
    /// There was none.
    Not,
    /// It is done, and the part is like this; read in this pass or not.
    At(O, bool),
    /// Not yet.
    Wait(PartState),
}

impl<M: PartModel, C: PartCloud<M>> Pass<'_, M, C> {
    /// Sends the steps one after the other, as far as nothing has to be waited for.
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
                self.done(step, Instant::now());
            }
            dry_run.lock().insert(self.key.clone(), observed.clone());
            return Ok(Applied::All);
        }
        for step in steps {
            // If this future is dropped while the step is under way, the next pass must look for itself.
            self.record.unsure = true;
            let sent = Instant::now();
            let span = info_span!("step", step = step.description.label);
            let outcome = engine
                .cloud
                .send(&self.key, &step.change, observed, self.request.read.priority)
                .instrument(span)
                .await;
            match outcome {
                Ok(Outcome::Done(reply)) => {
                    engine.model.fold(&self.key, &step.change, Some(&reply), observed);
                    self.record.unsure = false;
                    self.done(step, sent);
                    if !self.follow_key(observed) {
                        return Ok(Applied::Wait(self.key_in_use()));
                    }
                }
                Ok(Outcome::Accepted(reply, wait)) => {
                    engine.model.fold(&self.key, &step.change, Some(&reply), observed);
                    debug!(step = %step, "The cloud is at work on it");
                    if !self.follow_key(observed) {
                        return Ok(Applied::Wait(self.key_in_use()));
                    }
                    let waiting = Waiting {
                        step: Step {
                            change: step.change.sent(),
                            description: step.description.clone(),
                        },
                        observed: observed.clone(),
                        fresh,
                        until: after(sent, wait),
                        since: sent,
                        deadline: sent.checked_add(wait.deadline).unwrap_or(sent),
                        members: self.members.clone(),
                        discovery: self.discovery.clone(),
                    };
                    let state = waiting.state();
                    self.record.waiting = Some(waiting);
                    return Ok(Applied::Wait(state));
                }
                Ok(Outcome::Busy(after)) => {
                    debug!(step = %step, ?after, "It is busy");
                    return Ok(Applied::Wait(self.busy(after, format!("busy: {step}"))));
                }
                Ok(Outcome::Stale) => {
                    self.repeat("stale");
                    return Ok(Applied::ReadAgain(None));
                }
                Err(error) => return self.failed(step, sent, error),
            }
        }
        Ok(Applied::All)
    }

    /// Asks how the parked step goes.
    pub(super) async fn resume(&mut self) -> Result<Resumed<M::Observed>> {
        let engine = self.engine;
        if self.dry_run.is_some() {
            return Ok(Resumed::Not);
        }
        if let Some(state) = self.resume_pending().await? {
            return Ok(Resumed::Wait(state));
        }
        // If this future is dropped while it asks, the next pass looks for itself: the record is unsure since the send.
        let Some(mut waiting) = self.record.waiting.take() else {
            return Ok(Resumed::Not);
        };
        // Should it still wait, this is whom it concerns.
        self.members.clone_from(&waiting.members);
        self.discovery.clone_from(&waiting.discovery);
        let asked = Instant::now();
        if asked < waiting.until {
            let state = waiting.state();
            self.record.waiting = Some(waiting);
            return Ok(Resumed::Wait(state));
        }
        let outcome = engine
            .cloud
            .poll(
                &self.key,
                &waiting.step.change,
                &waiting.observed,
                self.request.read.priority,
            )
            .await;
        let until = match outcome {
            Ok(Outcome::Done(reply)) => {
                engine.model.fold(
                    &self.key,
                    &waiting.step.change,
                    Some(&reply),
                    &mut waiting.observed,
                );
                self.record.unsure = false;
                self.done(&waiting.step, waiting.since);
                if !self.follow_key(&waiting.observed) {
                    return Ok(Resumed::Wait(self.key_in_use()));
                }
                return Ok(Resumed::At(waiting.observed, waiting.fresh));
            }
            Ok(Outcome::Accepted(reply, wait)) => {
                engine.model.fold(
                    &self.key,
                    &waiting.step.change,
                    Some(&reply),
                    &mut waiting.observed,
                );
                after(asked, wait)
            }
            Ok(Outcome::Busy(after)) => asked.checked_add(after).unwrap_or(asked),
            Ok(Outcome::Stale) => {
                self.repeat("stale");
                return Ok(Resumed::Not);
            }
            Err(error) if may_pass(error.kind()) && asked < waiting.deadline => {
                waiting.until = asked;
                self.record.waiting = Some(waiting);
                return Err(error);
            }
            Err(error) => {
                self.ended_badly(&waiting.step, waiting.since, &error);
                return Err(error);
            }
        };
        if asked >= waiting.deadline {
            let error = Error::new(ErrorKind::Timeout, "the cloud has not finished in time")
                .with_context("step", waiting.step.to_string());
            self.ended_badly(&waiting.step, waiting.since, &error);
            return Err(error);
        }
        waiting.until = until;
        let state = waiting.state();
        self.record.waiting = Some(waiting);
        Ok(Resumed::Wait(state))
    }

    /// Asks whether the cloud has finished what somebody else had it do. `None`: there is nothing to wait for, or it has.
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
                if may_pass(error.kind()) {
                    self.record.pending = Some(pending);
                }
                Err(error)
            }
        }
    }

    fn failed(&mut self, step: &Step<M::Change>, sent: Instant, error: Error) -> Result<Applied> {
        let unknown = error.outcome() == Fate::Unknown;
        self.ended_badly(step, sent, &error);
        if unknown {
            // It may have been done: that is for the next look to find out.
            self.touch(step);
            self.repeat("unknown");
            return Ok(Applied::ReadAgain(Some(error)));
        }
        match error.kind() {
            // Somebody was faster, or what we saw was old.
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Conflict => {
                self.repeat("stale");
                Ok(Applied::ReadAgain(Some(error)))
            }
            kind if is_for_good(kind) && self.members.len() > 1 => match &step.description.service {
                Some(service) if !self.frozen.contains_key(service) => {
                    self.repeat("held");
                    let service = service.clone();
                    self.freeze(&service, &error);
                    if self.frozen.contains_key(&service) {
                        Ok(Applied::MemberFrozen)
                    } else {
                        Err(error)
                    }
                }
                _ => Err(error),
            },
            _ => Err(error),
        }
    }

    fn done(&mut self, step: &Step<M::Change>, sent: Instant) {
        let description = step.description.clone();
        if self.dry_run.is_none() {
            let (model, took) = (&self.engine.model, sent.elapsed());
            let (provider, kind) = (model.provider(), model.kind(&self.key));
            self.engine
                .metrics
                .step_ended(provider, kind, step.description.label, "ok", took);
            info!(part = %self.key, reason = description.reason, took_ms = millis(took), "Done: {}", description.sentence);
        }
        self.touch(step);
        self.steps.push(StepReport {
            description,
            result: Ok(()),
            took: sent.elapsed(),
        });
    }

    fn ended_badly(&mut self, step: &Step<M::Change>, sent: Instant, error: &Error) {
        let (model, took) = (&self.engine.model, sent.elapsed());
        let (provider, kind) = (model.provider(), model.kind(&self.key));
        self.engine
            .metrics
            .step_ended(provider, kind, step.description.label, "error", took);
        // Whoever runs the pass says so, once per change of state.
        debug!(part = %self.key, step = %step, error = error.report(), "A step failed");
        self.steps.push(StepReport {
            description: step.description.clone(),
            result: Err(error.clone()),
            took,
        });
    }

    fn touch(&mut self, step: &Step<M::Change>) {
        let progress = &mut self.record.progress;
        progress.steps += 1;
        match &step.description.service {
            Some(service) => {
                progress.touched.insert(service.clone());
            }
            None => progress.touched_all = true,
        }
    }

    fn repeat(&self, reason: &'static str) {
        let model = &self.engine.model;
        self.engine
            .metrics
            .repeated(model.provider(), model.kind(&self.key), reason);
    }

    /// If the part has got another key, goes on under that one. False if somebody is at work under it already.
    pub(super) fn follow_key(&mut self, observed: &M::Observed) -> bool {
        let Some(new) = self.engine.model.rekey(&self.key, observed) else {
            return true;
        };
        if new == self.key {
            return true;
        }
        self.memory.lock().rename(&self.key, &new);
        debug!(part = %self.key, now = %new, "The part has got its id");
        let record = self.engine.try_slot(&new);
        let old = std::mem::replace(&mut self.key, new);
        match record {
            Some(mut record) => {
                *record = std::mem::take(&mut *self.record);
                self.record = record;
                true
            }
            None => {
                debug!(part = %old, "Somebody is at work under its new name");
                false
            }
        }
    }

    pub(super) fn key_in_use(&mut self) -> PartState {
        self.busy(
            std::time::Duration::from_secs(1),
            "somebody is at work on it under its new name".to_owned(),
        )
    }
}

impl<M: PartModel> Waiting<M> {
    fn state(&self) -> PartState {
        PartState::Parked {
            until: self.until,
            since: self.since,
            why: format!("the cloud is at work: {}", self.step),
        }
    }
}

fn after(instant: Instant, wait: Wait) -> Instant {
    instant.checked_add(wait.poll).unwrap_or(instant)
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Asking how a step goes may work the next time.
fn may_pass(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited | ErrorKind::Unauthenticated
    )
}

/// Trying the step again will not help; the other members need not wait for it.
fn is_for_good(kind: ErrorKind) -> bool {
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
