//! The part of a pass that writes: sends steps, and folds in the cloud's replies.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span};

use super::{
    creates::{CREATED_ELSEWHERE, created_elsewhere},
    engine::Engine,
    key::PartKind,
    model::{Member, Membership, PartCloud, PartModel, SendOptions, SendOutcome, Step, WriteConflict},
    order::ClaimedObjects,
    pass::{Applied, Pass},
    record::{AcceptedStep, HeldStep, Unanswered, Waiting},
};
use crate::{
    Error, ErrorKind, RequestOutcome, Result, Retry,
    client::later,
    load_balancer::{Effect, PartState, ServiceId, StepDescription, StepReport},
};

/// The least wait before a create that had no reply is sent again. Octavia shows a load balancer only when Neutron has made its
/// port, and allows several with one name.
const UNANSWERED: Duration = Duration::from_secs(30);
/// The most steps of one part that are sent at a time, so that a part with thousands of steps leaves the gate to other parts,
/// too. Steps that the cloud has accepted do not count.
const MOST_AT_A_TIME: usize = 32;
/// How often a write with an id is sent before the part is read.
const SENDS_WITH_AN_ID: u32 = 2;
/// A step that failed while others are in progress is not sent again before this.
pub(super) const HELD: Duration = Duration::from_secs(5);

/// Where a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepState {
    Unsent,
    InFlight,
    /// It is done, or the cloud accepted it.
    Answered,
    Failed,
}

/// A step that was sent and answered.
struct AnsweredStep<'a, M: PartModel, T> {
    index: usize,
    step: &'a Step<M::Change>,
    sent: Instant,
    outcome: Result<SendOutcome<M::Reply, T>>,
}

/// A step that failed, or that must not be sent.
struct FailedStep<'a, C> {
    step: &'a Step<C>,
    sent: Instant,
    cause: FailureCause,
}

enum FailureCause {
    /// The cloud's answer.
    Answer(Error),
    /// The same create had no reply a moment ago.
    Unanswered(PartState, Error),
    /// Another create for the Service had not ended in this part when the pass began.
    CreatedElsewhere(String),
}

/// What follows from the failures of steps.
#[derive(Default)]
struct FailedSteps {
    /// The first step that shows that the part has changed since it was read.
    read_again: Option<(Option<ServiceId>, Error)>,
    is_member_frozen: bool,
    /// A shared step was refused, and its members are known or searched for.
    is_shared_refused: bool,
    /// The longest wait for a busy object.
    busy: Option<(Duration, String)>,
    unanswered: Option<PartState>,
    error: Option<Error>,
}

impl<M: PartModel, C: PartCloud<M>> Pass<'_, M, C> {
    /// Sends the steps, each when the steps before it that concern the same objects have ended.
    ///
    /// A step whose end the cloud has not reported holds up only the steps on its objects, and so does a step that failed.
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
        self.claim(steps);
        let mut states = vec![StepState::Unsent; steps.len()];
        let mut in_flight = FuturesUnordered::new();
        let mut failed = Vec::new();
        // The Services for which steps create, by the index of the step.
        let mut creates = HashMap::new();
        let mut is_key_in_use = false;
        loop {
            // Half of them at least, since many steps are many to look at.
            let ready = if is_key_in_use || in_flight.len() > MOST_AT_A_TIME / 2 {
                Vec::new()
            } else {
                self.ready(steps, &states)
            };
            if !ready.is_empty() {
                // If this future is dropped while a step is in progress, the next pass reads the part.
                self.record.needs_read = true;
                if let Some(waiting) = &mut self.record.waiting {
                    waiting.observed = None;
                }
                let seen = Arc::new(observed.clone());
                for index in ready {
                    let Some(step) = steps.get(index) else { continue };
                    if let Err(cause) = self.begin_step(index, step, &mut creates) {
                        set(&mut states, index, StepState::Failed);
                        let sent = Instant::now();
                        failed.push(FailedStep { step, sent, cause });
                        continue;
                    }
                    set(&mut states, index, StepState::InFlight);
                    let (key, options) = (self.key.clone(), self.send_options(step));
                    in_flight.push(send_step(engine, key, index, step, Arc::clone(&seen), options));
                }
            }
            let Some(answered) = in_flight.next().await else {
                break;
            };
            let AnsweredStep {
                index,
                step,
                sent,
                outcome,
            } = answered;
            set(&mut states, index, StepState::Answered);
            if let Some(services) = creates.remove(&index) {
                self.end_create(&services, &outcome, UNANSWERED);
            }
            let is_unknown = |error: &Error| error.outcome() == RequestOutcome::Unknown;
            if !outcome.as_ref().is_err_and(is_unknown) {
                self.record.request_answered(&step.change);
            }
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    set(&mut states, index, StepState::Failed);
                    let cause = FailureCause::Answer(error);
                    failed.push(FailedStep { step, sent, cause });
                    continue;
                }
            };
            self.answered(step, outcome, observed, sent, fresh);
            is_key_in_use |= !self.follow_key(observed);
            if self.record.waiting.is_some() && step.description.effect == Effect::Create {
                self.publish_early_facts(observed);
            }
        }
        drop(in_flight);
        if is_key_in_use {
            self.record.waiting = None;
            return Ok(Applied::Wait(self.key_in_use()));
        }
        if !failed.is_empty() {
            return self.after_failures(failed, observed);
        }
        let is_complete = states.iter().all(|state| *state == StepState::Answered);
        Ok(match self.keep_waiting(observed) {
            Some(state) => Applied::Wait(state),
            None => {
                self.record.needs_read = !is_complete;
                match self.record.waits() {
                    Some(state) if !is_complete => Applied::Wait(state),
                    _ => Applied::All,
                }
            }
        })
    }

    /// Whether a step can be sent now.
    pub(super) fn has_ready_step(&self, steps: &[Step<M::Change>]) -> bool {
        !self.ready(steps, &vec![StepState::Unsent; steps.len()]).is_empty()
    }

    /// The steps that can be sent now: they conflict with no earlier step that has not been answered, and with no accepted step
    /// that has not ended. A step that does not need an idle part waits for earlier steps only.
    fn ready(&self, steps: &[Step<M::Change>], states: &[StepState]) -> Vec<usize> {
        let (accepted, held) = (self.record.accepted_objects(), self.record.held_objects());
        let in_flight = states.iter().filter(|state| **state == StepState::InFlight).count();
        let mut earlier = ClaimedObjects::default();
        let mut ready = Vec::new();
        for (index, (step, state)) in steps.iter().zip(states).enumerate() {
            let description = &step.description;
            if *state == StepState::Answered {
                continue;
            }
            if earlier.has_exclusive() || in_flight + ready.len() >= MOST_AT_A_TIME {
                break;
            }
            let is_free = *state == StepState::Unsent
                && !earlier.conflicts_with(description)
                && !held.conflicts_with(description)
                && (!description.needs_idle || !accepted.conflicts_with(description));
            if is_free {
                ready.push(index);
            }
            earlier.add(description);
        }
        ready
    }

    /// Records that a step is about to be sent.
    ///
    /// # Errors
    /// Why it must not be sent now.
    fn begin_step(
        &mut self,
        index: usize,
        step: &Step<M::Change>,
        creates: &mut HashMap<usize, Vec<ServiceId>>,
    ) -> std::result::Result<(), FailureCause> {
        if let Some(cause) = self.unanswered(step) {
            return Err(cause);
        }
        let services = self.begin_create(&step.description);
        let services = services.map_err(|other| FailureCause::CreatedElsewhere(other.to_string()))?;
        if !services.is_empty() {
            creates.insert(index, services);
        }
        Ok(())
    }

    /// Records that steps for the active members are about to be sent in this part.
    fn claim(&self, steps: &[Step<M::Change>]) {
        let is_for_all = steps.iter().any(|step| step.description.service.is_none());
        let services: HashSet<_> =
            steps.iter().filter_map(|step| step.description.service.as_ref()).collect();
        let mut memory = self.memory.lock();
        for member in Member::active(&self.members) {
            let id = &member.service.id;
            if is_for_all || services.contains(id) {
                memory.claim(id, &self.key);
            }
        }
    }

    fn send_options(&mut self, step: &Step<M::Change>) -> SendOptions {
        SendOptions {
            priority: self.request.read.priority,
            request_id: self.engine.cloud.takes_request_ids().then(|| self.record.request_id(&step.change)),
        }
    }

    /// The cloud carried out or accepted the step.
    fn answered(
        &mut self,
        step: &Step<M::Change>,
        outcome: SendOutcome<M::Reply, C::Ticket>,
        observed: &mut M::Observed,
        sent: Instant,
        fresh: bool,
    ) {
        let description = &step.description;
        if description.is_shared {
            self.record.shared.sent();
        }
        let (reply, accepted) = match outcome {
            SendOutcome::Done(reply) => (reply, None),
            SendOutcome::Accepted { reply, ticket, wait } => (reply, Some((ticket, wait))),
        };
        self.engine.model.fold(&self.key, &step.change, Some(&reply), observed);
        let Some((ticket, wait)) = accepted else {
            self.done(description, sent);
            return;
        };
        debug!(step = %step, "The cloud accepted the step");
        self.record.is_not_busy();
        self.has_accepted_create |= description.effect == Effect::Create;
        let waiting = self.record.waiting.get_or_insert_with(|| Waiting {
            accepted: Vec::new(),
            observed: None,
            fresh,
            members: Vec::new(),
            discovery: None,
        });
        waiting.members.clone_from(&self.members);
        waiting.discovery.clone_from(&self.discovery);
        waiting.accepted.push(AcceptedStep {
            ticket,
            change: step.change.clone(),
            reply,
            description: description.clone(),
            until: later(sent, wait.poll),
            since: sent,
            deadline: later(sent, wait.deadline),
        });
    }

    /// The state of a part whose accepted steps the cloud has not finished. The next pass continues with `observed`.
    pub(super) fn keep_waiting(&mut self, observed: &M::Observed) -> Option<PartState> {
        self.record.waiting.as_mut()?.observed = Some(observed.clone());
        self.record.waits()
    }

    /// The cause if the same create had no reply a moment ago: it is not sent again yet, unless it has an id.
    fn unanswered(&self, step: &Step<M::Change>) -> Option<FailureCause> {
        let create = &step.description;
        if self.record.known_request_id(&step.change).is_some() {
            return None;
        }
        let is_same = |sent: &&Unanswered| match &sent.description.creates {
            // Its children may be others by now.
            Some(object) => create.creates.as_ref() == Some(object),
            None => (sent.description.label, &sent.description.sentence) == (create.label, &create.sentence),
        };
        let sent = self.record.unanswered().find(is_same)?;
        let error = sent.error.clone().with_retry(Retry::After(UNANSWERED));
        Some(FailureCause::Unanswered(sent.state(), error))
    }

    /// How to wait if a create had no reply a moment ago and members leave: its object may be theirs.
    pub(super) fn unanswered_before_leaving(&mut self) -> Option<PartState> {
        let leaves = |member: &Member<M>| member.membership == Membership::Leaving;
        let state = self.record.unanswered().next()?.state();
        let waits = self.members.iter().any(leaves);
        self.record.needs_read |= waits;
        waits.then_some(state)
    }

    /// How the pass continues after steps failed, when all others have been answered.
    fn after_failures(
        &mut self,
        failed: Vec<FailedStep<'_, M::Change>>,
        observed: &M::Observed,
    ) -> Result<Applied> {
        let accepted = self.record.accepted_objects();
        let mut descriptions = failed.iter().map(|failed| &failed.step.description);
        if descriptions.any(|description| accepted.conflicts_with(description)) {
            // Planned again when the cloud has finished.
            for FailedStep { step, sent, cause } in &failed {
                if let FailureCause::Answer(error) = cause
                    && WriteConflict::of(error).is_none()
                {
                    self.ended_badly(&step.description, *sent, error);
                }
            }
            return self.record.waits().map_or(Ok(Applied::All), |state| Ok(Applied::Wait(state)));
        }
        // A pass with other steps in progress continues with these when they end.
        let has_others = self.record.waiting.is_some();
        let mut all = FailedSteps::default();
        for step in failed {
            self.failed(step, has_others, &mut all);
        }
        if let Some((service, error)) = all.read_again {
            return Ok(Applied::ReadAgain(service, error));
        }
        if all.is_member_frozen {
            return Ok(Applied::MemberFrozen);
        }
        if all.is_shared_refused && all.error.is_none() {
            // What was read is still true.
            self.record.needs_read = has_others;
            return Ok(Applied::PlanAgain);
        }
        if has_others {
            return Ok(self.keep_waiting(observed).map_or(Applied::All, Applied::Wait));
        }
        if let Some(error) = all.error {
            return Err(error);
        }
        if let Some(state) = all.unanswered {
            return Ok(Applied::Wait(state));
        }
        if let Some((after, why)) = all.busy {
            return Ok(Applied::Wait(self.busy(after, why)));
        }
        // All of them were refused.
        self.record.needs_read = false;
        Ok(Applied::All)
    }

    /// What follows from the failure of one step.
    fn failed(
        &mut self,
        FailedStep { step, sent, cause }: FailedStep<'_, M::Change>,
        has_others: bool,
        all: &mut FailedSteps,
    ) {
        let description = &step.description;
        let service = description.service.as_ref();
        let error = match cause {
            FailureCause::Answer(error) => error,
            FailureCause::CreatedElsewhere(other) => {
                let why = created_elsewhere(&other);
                self.hold(description, CREATED_ELSEWHERE, why.clone(), has_others);
                all.busy.get_or_insert((CREATED_ELSEWHERE, why));
                return;
            }
            FailureCause::Unanswered(..) if has_others => {
                let why = format!("no reply to: {}", description.sentence);
                self.hold(description, UNANSWERED, why, has_others);
                return;
            }
            // The pass that sent it reports the error.
            FailureCause::Unanswered(state, _) if self.steps.is_empty() => {
                all.unanswered.get_or_insert(state);
                return;
            }
            FailureCause::Unanswered(_, error) => {
                match self.give_up(service, error) {
                    Ok(()) => all.is_member_frozen = true,
                    Err(error) => {
                        all.error.get_or_insert(error);
                    }
                }
                return;
            }
        };
        match WriteConflict::of(&error) {
            Some(WriteConflict::Busy(after)) => {
                debug!(step = %step, ?after, "The part is busy");
                let why = format!("{step}: {}", error.report());
                self.hold(description, after, why.clone(), has_others);
                if all.busy.as_ref().is_none_or(|(longest, _)| *longest < after) {
                    all.busy = Some((after, why));
                }
                return;
            }
            Some(WriteConflict::Stale) => {
                self.count_repeat("stale");
                let text = "another client changes it after every read";
                let error = Error::new(ErrorKind::Conflict, text).with_source(error);
                all.read_again.get_or_insert((service.cloned(), error));
                return;
            }
            None => {}
        }
        self.ended_badly(description, sent, &error);
        if error.outcome() == RequestOutcome::Unknown {
            // It may have been carried out: the next read shows it.
            self.touch(description);
            self.count_repeat("unknown");
            all.read_again.get_or_insert((service.cloned(), error));
            return;
        }
        match error.kind() {
            // Another client was faster, or the read is out of date.
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Conflict => {
                self.count_repeat("stale");
                all.read_again.get_or_insert((service.cloned(), error));
            }
            kind if is_permanent(kind) && description.is_one_of_many => {
                self.count_repeat("refused");
                self.record.refuse(step.change.clone(), error);
            }
            kind if is_permanent(kind) && description.is_shared => {
                match self.shared_step_refused(&step.change, error) {
                    Ok(()) => all.is_shared_refused = true,
                    Err(error) => {
                        self.hold(description, HELD, error.report(), has_others);
                        all.error.get_or_insert(error);
                    }
                }
            }
            kind if is_permanent(kind) => {
                self.hold(description, HELD, error.report(), has_others);
                match self.give_up(service, error) {
                    Ok(()) => all.is_member_frozen = true,
                    Err(error) => {
                        all.error.get_or_insert(error);
                    }
                }
            }
            _ => {
                self.hold(description, HELD, error.report(), has_others);
                all.error.get_or_insert(error);
            }
        }
    }

    /// Leaves the objects of a step that failed unchanged for this long, while others are in progress.
    pub(super) fn hold(
        &mut self,
        description: &StepDescription,
        wait: Duration,
        why: String,
        has_others: bool,
    ) {
        if has_others {
            let since = Instant::now();
            self.record.held.push(HeldStep {
                description: description.clone(),
                why,
                since,
                until: later(since, wait),
                is_early: false,
            });
        }
    }

    pub(super) fn done(&mut self, description: &StepDescription, sent: Instant) {
        self.record.is_not_busy();
        if description.effect == Effect::Delete {
            // A create of the Service that had no reply was carried out before.
            self.record.unanswered.retain(|sent| sent.description.service != description.service);
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

    pub(super) fn ended_badly(&mut self, description: &StepDescription, sent: Instant, error: &Error) {
        let (model, took) = (&self.engine.model, sent.elapsed());
        let (provider, kind) = (model.provider(), self.key.kind());
        self.engine.metrics.step_ended(provider, kind, description.label, "error", took);
        // The caller reports it, once per change of state.
        debug!(part = %self.key, step = description.sentence, error = error.report(), "A step failed");
        if description.effect == Effect::Create && error.outcome() == RequestOutcome::Unknown {
            let now = Instant::now();
            self.record.unanswered.retain(|sent| now < sent.until);
            self.record.unanswered.push(Unanswered {
                description: description.clone(),
                error: error.clone(),
                since: sent,
                until: later(now, UNANSWERED),
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

/// Sends one step. If the result is not known and the step has an id, it is sent again.
async fn send_step<'a, M: PartModel, C: PartCloud<M>>(
    engine: &Engine<M, C>,
    key: M::Key,
    index: usize,
    step: &'a Step<M::Change>,
    seen: Arc<M::Observed>,
    options: SendOptions,
) -> AnsweredStep<'a, M, C::Ticket> {
    let sent = Instant::now();
    let mut sends = 1;
    let outcome = loop {
        let span = info_span!("step", step = step.description.label);
        let outcome = engine.cloud.send(&key, &step.change, &seen, &options).instrument(span).await;
        match &outcome {
            Err(error)
                if error.outcome() == RequestOutcome::Unknown
                    && options.request_id.is_some()
                    && sends < SENDS_WITH_AN_ID =>
            {
                sends += 1;
                engine.metrics.repeated(engine.model.provider(), key.kind(), "unknown");
            }
            _ => break outcome,
        }
    };
    AnsweredStep {
        index,
        step,
        sent,
        outcome,
    }
}

fn set(states: &mut [StepState], index: usize, state: StepState) {
    if let Some(known) = states.get_mut(index) {
        *known = state;
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether it is useless to send the step again. The other members do not wait for it.
pub(super) fn is_permanent(kind: ErrorKind) -> bool {
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
