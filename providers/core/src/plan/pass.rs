//! One pass over one part.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::OwnedMutexGuard, time::Instant};
use tracing::warn;

use super::{
    discovery::DiscoveredParts,
    engine::Engine,
    memory::Memory,
    model::{Member, Membership, PartCloud, PartModel, Plan, ScopeCheck, Step},
    record::{PartRecord, Pending, Progress},
};
use crate::{
    Error, ErrorKind, Freshness, Result,
    client::later,
    load_balancer::{
        Blocked, Effect, MemberReport, MemberState, PartKey, PartReport, PartState, ReadOptions, Request,
        ServiceEvent, ServiceId, ServiceView, StepReport,
    },
};

/// How often a pass looks again because it was not as it seemed.
const READS: u32 = 3;
/// How often a pass plans again after everything was done. One more round finds nothing.
const ROUNDS: u32 = 4;
/// An answer that began this long ago at most is "of this pass", if nothing older was wanted: so that one page serves many
/// passes. What we do ourselves meanwhile is known, and a write whose end was not seen allows no answer from before it.
const RECENT: Duration = Duration::from_secs(30);

/// Waits for somebody else's change grow by this share of the time that it has taken, up to the longest wait.
const BUSY_SHARE: f64 = 0.15;
const LONGEST_BUSY_WAIT: Duration = Duration::from_secs(60);
/// Somebody else's change that takes this long is reported.
const LONG_BUSY: Duration = Duration::from_secs(300);

/// How parts would be, in a plan that is not carried out.
pub(super) type DryRun<M> = Mutex<HashMap<<M as PartModel>::Key, <M as PartModel>::Observed>>;

/// A pass at work.
pub(super) struct Pass<'a, M: PartModel, C> {
    pub(super) engine: &'a Engine<M, C>,
    pub(super) request: &'a Request,
    pub(super) memory: &'a Mutex<Memory<M>>,
    /// If it is there, nothing is written, and what would be written is folded in here.
    pub(super) dry_run: Option<&'a DryRun<M>>,
    /// The key under which it began.
    began_as: M::Key,
    pub(super) key: M::Key,
    pub(super) record: OwnedMutexGuard<PartRecord<M>>,
    pub(super) discovery: Option<Arc<DiscoveredParts<M>>>,
    pub(super) members: Vec<Member<M>>,
    /// Who is held back, and why.
    pub(super) frozen: BTreeMap<ServiceId, Error>,
    pub(super) ended: BTreeMap<ServiceId, MemberState>,
    pub(super) steps: Vec<StepReport>,
    pub(super) blocked: Vec<Blocked>,
    pub(super) notes: Vec<ServiceEvent>,
    pub(super) next: BTreeSet<M::Key>,
    /// Something is to be created: what is read next must not be old.
    recently: bool,
}

/// How a look at the part came out.
pub(super) enum PartRead<M: PartModel> {
    /// It can be planned.
    Ready(PlannedPart<M>),
    /// Not now.
    Wait(PartState),
}

/// What a part is and should be.
pub(super) struct PlannedPart<M: PartModel> {
    pub(super) observed: M::Observed,
    /// Read in this pass, not from a cache.
    pub(super) fresh: bool,
    #[cfg_attr(not(feature = "testkit"), expect(dead_code, reason = "the laws look at it"))]
    pub(super) desired: M::Desired,
    pub(super) plan: Plan<M::Change>,
}

/// How carrying out a plan ended.
pub(super) enum Applied {
    /// Every step is done.
    All,
    /// The part has to wait.
    Wait(PartState),
    /// It was not as it seemed. Holds what says so, if it was an error.
    ReadAgain(Option<Error>),
    /// A step for one Service can not be done; it is held back.
    MemberFrozen,
}

impl<'a, M: PartModel, C: PartCloud<M>> Pass<'a, M, C> {
    pub(super) fn new(
        engine: &'a Engine<M, C>,
        request: &'a Request,
        memory: &'a Mutex<Memory<M>>,
        dry_run: Option<&'a DryRun<M>>,
        key: M::Key,
        record: OwnedMutexGuard<PartRecord<M>>,
    ) -> Self {
        Self {
            engine,
            request,
            memory,
            dry_run,
            began_as: key.clone(),
            key,
            record,
            discovery: None,
            members: Vec::new(),
            frozen: BTreeMap::new(),
            ended: BTreeMap::new(),
            steps: Vec::new(),
            blocked: Vec::new(),
            notes: Vec::new(),
            next: BTreeSet::new(),
            recently: false,
        }
    }

    /// Does what can be done without waiting for the cloud.
    pub(super) async fn run(&mut self) -> PartState {
        self.try_run().await.unwrap_or_else(PartState::Failed)
    }

    async fn try_run(&mut self) -> Result<PartState> {
        let (engine, began) = (self.engine, Instant::now());
        let (mut seen, mut fresh) = match self.resume().await? {
            super::steps::Resumed::Not => (None, false),
            super::steps::Resumed::At(observed, fresh) => (Some(observed), fresh),
            super::steps::Resumed::Wait(state) => return Ok(state),
        };
        let Some(inputs) = self.gather().await? else {
            return Ok(PartState::Done);
        };
        let (mut reads, mut rounds) = (0, 0);
        loop {
            let planned = match self.read_and_plan(&inputs, seen.take(), fresh, began).await? {
                PartRead::Ready(planned) => planned,
                PartRead::Wait(state) => return Ok(state),
            };
            self.blocked.clone_from(&planned.plan.blocked);
            fresh = planned.fresh;
            let mut observed = planned.observed;
            if self.dry_run.is_none() && !self.follow_key(&observed) {
                return Ok(self.key_in_use());
            }
            if planned.plan.steps.is_empty() {
                self.conclude(&observed);
                let degraded = engine.model.degraded(&self.key, &self.members, &observed);
                return degraded.map_or(Ok(PartState::Done), Err);
            }
            let creates = planned
                .plan
                .steps
                .iter()
                .any(|step| step.description.effect == Effect::Create);
            if creates && !fresh && self.dry_run.is_none() {
                // Whatever a lost reply or a slow listing hides would be made twice.
                self.recently = true;
                continue;
            }
            self.announce(&planned.plan.steps);
            match self
                .apply_steps(&planned.plan.steps, &mut observed, fresh)
                .await?
            {
                Applied::All => {
                    rounds += 1;
                    if rounds > ROUNDS {
                        return Err(self.endless(&planned.plan.steps));
                    }
                    seen = Some(observed);
                }
                Applied::Wait(state) => return Ok(state),
                Applied::MemberFrozen => fresh = false,
                Applied::ReadAgain(error) => {
                    fresh = false;
                    reads += 1;
                    if reads > READS {
                        return Err(error.unwrap_or_else(|| {
                            Error::new(
                                ErrorKind::Conflict,
                                "somebody else changes it as fast as it is read",
                            )
                        }));
                    }
                }
            }
        }
    }

    /// Who the members are and what is known about what they ask. `None`: nobody has to do with the part, or it is nobody's
    /// turn.
    pub(super) async fn gather(&mut self) -> Result<Option<M::Inputs>> {
        let (engine, read) = (self.engine, self.request.read);
        let discovery = engine
            .discovered(&self.request.snapshot, read, self.memory)
            .await?;
        let known = discovery.knows(&self.key);
        {
            let mut memory = self.memory.lock();
            self.members = discovery.members(&self.key, &memory);
            for member in &self.members {
                if discovery
                    .entry(&member.service.id)
                    .is_some_and(|entry| entry.joins.contains(&self.key))
                {
                    memory.joins(&member.service.id, &self.key);
                }
            }
        }
        let deletes_orphan = self.request.delete_orphan && discovery.is_deletable_orphan(&self.key);
        if deletes_orphan {
            // A Service that left the part before may still name it.
            let memory = self.memory.lock();
            self.members
                .retain(|member| !memory.has_left(&member.service.id, &self.key));
        }
        self.discovery = Some(discovery);
        if !known || (self.members.is_empty() && !deletes_orphan) || self.is_nobodys_turn() {
            return Ok(None);
        }
        let cluster = &self.request.snapshot.cluster;
        let gathered = engine
            .cloud
            .inputs(&self.key, &self.members, cluster, read)
            .await?;
        for (id, error) in gathered.refused {
            self.freeze(&id, &error);
        }
        let review = engine
            .model
            .check(&self.key, &self.members, cluster, &gathered.inputs);
        for (id, error) in review.refused {
            self.freeze(&id, &error);
        }
        self.notes = review.notes;
        Ok(Some(gathered.inputs))
    }

    /// Whether everybody only waits to leave: then there is nothing to do here, and nothing has to be read for it. The part
    /// that they leave before this one says when it is their turn.
    fn is_nobodys_turn(&self) -> bool {
        let waits = |member: &Member<M>| {
            matches!(member.membership, Membership::Frozen(_)) && !member.service.wants_load_balancer()
        };
        !self.members.is_empty() && self.members.iter().all(waits)
    }

    /// From now on this member keeps what it has. One that leaves, leaves all the same.
    pub(super) fn freeze(&mut self, id: &ServiceId, error: &Error) {
        for member in &mut self.members {
            if &member.service.id == id && member.membership == Membership::Active {
                member.membership = Membership::Frozen(error.to_string());
                self.frozen.insert(id.clone(), error.clone());
            }
        }
    }

    /// Reads the part, unless it is known how it is, and plans.
    pub(super) async fn read_and_plan(
        &mut self,
        inputs: &M::Inputs,
        seen: Option<M::Observed>,
        fresh: bool,
        began: Instant,
    ) -> Result<PartRead<M>> {
        let engine = self.engine;
        let known = seen.or_else(|| self.dry_run?.lock().get(&self.key).cloned());
        let (observed, fresh) = match known {
            Some(observed) => (observed, fresh),
            None => match self.observe(began).await? {
                Ok(read) => read,
                Err(state) => return Ok(PartRead::Wait(state)),
            },
        };
        let cluster = &self.request.snapshot.cluster;
        let desired = engine.model.desired(&self.key, &self.members, cluster, inputs);
        let plan = engine.model.plan(&desired, &observed);
        Ok(PartRead::Ready(PlannedPart {
            observed,
            fresh,
            desired,
            plan,
        }))
    }

    async fn observe(&mut self, began: Instant) -> Result<Result<(M::Observed, bool), PartState>> {
        let engine = self.engine;
        let mut read = self.request.read;
        if self.record.unsure {
            read = read.uncached();
        } else if self.recently && !is_of_this_pass(read, began) {
            // A part of the limit, for the reading itself takes time, too.
            let recent = Instant::now().checked_sub(RECENT / 2).unwrap_or(began);
            read.freshness = Freshness::After(recent);
        }
        // However long the answer takes.
        let fresh = is_of_this_pass(read, began);
        let observed = engine.cloud.observe(&self.key, &self.members, read).await?;
        self.record.unsure = false;
        if let Some(what) = engine.model.missing(&self.key, &self.members, &observed) {
            let anew = read.uncached();
            if let ScopeCheck::Unverified(why) = engine
                .cloud
                .verify_scope(&self.request.snapshot.cluster, anew)
                .await?
            {
                // Whatever comes next must not rest on what was seen with these eyes.
                self.record.unsure = true;
                return Ok(Err(PartState::Blocked(format!(
                    "{what} is not there any more, but {why}: these may be the wrong credentials, so nothing is \
                     changed"
                ))));
            }
        }
        if self.dry_run.is_none()
            && let Some((first, why)) = engine.model.pending(&self.key, &observed)
        {
            let pending = Pending {
                observed,
                why,
                first,
                until: Instant::now(),
                members: self.members.clone(),
                discovery: self.discovery.clone(),
            };
            return Ok(Err(self.wait_for(pending)));
        }
        (self.record.busy_since, self.record.busy_note) = (None, None);
        Ok(Ok((observed, fresh)))
    }

    /// Parks the part until the cloud has finished what somebody else had it do.
    pub(super) fn wait_for(&mut self, mut pending: Pending<M>) -> PartState {
        let state = self.busy(pending.first, pending.why.clone());
        if let PartState::Parked { until, .. } = &state {
            pending.until = *until;
        }
        self.record.pending = Some(pending);
        state
    }

    /// The part is parked although nothing of ours is under way. The longer it is, the longer are the waits.
    pub(super) fn busy(&mut self, first: Duration, why: String) -> PartState {
        let now = Instant::now();
        self.record.unsure = true;
        let since = *self.record.busy_since.get_or_insert(now);
        let age = now.saturating_duration_since(since);
        if age >= LONG_BUSY {
            self.warn_of_busy(age, &why);
        }
        let grown = first.saturating_add(age.mul_f64(BUSY_SHARE));
        PartState::Parked {
            until: later(now, grown.min(LONGEST_BUSY_WAIT.max(first))),
            since,
            why,
        }
    }

    fn warn_of_busy(&mut self, age: Duration, why: &str) {
        let text = self.record.busy_note.get_or_insert_with(|| {
            let minutes = age.as_secs() / 60;
            let text = format!(
                "{why}, for {minutes} minutes now; it is left unchanged until the cloud has finished, and somebody has to \
                 look after it if that never happens"
            );
            warn!(part = %self.key, "Waiting long for somebody else's change: {text}");
            text
        });
        let notes = self.members.iter().map(|member| ServiceEvent {
            service: member.service.id.clone(),
            reason: "LoadBalancerPending",
            message: text.clone(),
            warning: true,
        });
        self.notes.extend(notes);
    }

    fn announce(&mut self, steps: &[Step<M::Change>]) {
        if self.dry_run.is_some() {
            return;
        }
        let announced = &mut self.record.progress.announced;
        let before = announced.len();
        announced.extend(self.members.iter().map(|member| {
            let service = &member.service;
            (service.id.clone(), service.wants_load_balancer())
        }));
        // A deletion that overtakes a create is announced, too.
        if announced.len() == before && before > 0 {
            return;
        }
        if let Some(watcher) = &self.request.watcher {
            let steps: Vec<_> = steps.iter().map(|step| step.description.clone()).collect();
            watcher.due(&PartKey::new(self.key.to_string()), &steps);
        }
    }

    fn endless(&self, steps: &[Step<M::Change>]) -> Error {
        let first = steps.first().map(ToString::to_string).unwrap_or_default();
        Error::new(
            ErrorKind::Unexpected,
            "there is always one more step to do; this is a bug",
        )
        .with_context("part", self.key.to_string())
        .with_context("step", first)
    }

    /// The part is as it should be: says so to everybody who listens.
    fn conclude(&mut self, observed: &M::Observed) {
        let mut memory = self.memory.lock();
        let Some(discovery) = &self.discovery else { return };
        for member in &self.members {
            let (id, view) = (&member.service.id, &member.service);
            let Some(entry) = discovery.entry(id) else {
                continue;
            };
            let current = |key| current(&self.began_as, &self.key, &memory, key);
            let joins: Vec<_> = entry.joins.iter().map(current).collect();
            let leaves: Vec<_> = entry.leaves.iter().map(current).collect();
            let output = self.engine.model.facts(&self.key, member, observed);
            let state = if member.membership == Membership::Leaving {
                if memory.leave(id, &self.key, output.as_ref().map(|output| &output.effects)) {
                    let earlier = leaves.iter().take_while(|key| **key != self.key);
                    self.next.extend(earlier.last().cloned());
                    if leaves.iter().all(|key| memory.has_left(id, key)) {
                        // What it could not have while it stood here, it may have now.
                        self.next.extend(joins);
                    }
                }
                MemberState::Left
            } else if let Some(output) = output {
                let serves = member.membership == Membership::Active;
                let at = joins.iter().position(|key| key == &self.key);
                let later = at.and_then(|at| joins.get(at + 1..)).unwrap_or_default();
                if at.is_some() {
                    let news = memory.record_output(view, &self.key, output, serves, later);
                    if news.facts {
                        self.next.extend(later.iter().cloned());
                    }
                    if news.serves {
                        self.next.extend(leaves);
                    }
                }
                kept_or(&self.frozen, member, MemberState::Served)
            } else {
                memory.withdraw_output(id, &self.key);
                let nothing = "it could not be set up".to_owned();
                kept_or(&self.frozen, member, MemberState::Frozen(nothing))
            };
            self.ended.insert(id.clone(), state);
        }
        self.next.remove(&self.key);
    }

    /// What to tell the caller. Ends the pass; its key comes back with it.
    pub(super) fn report(mut self, part: PartKey, state: PartState) -> (M::Key, PartReport) {
        let (progress, request) = (&self.record.progress, self.request);
        let memory = self.memory.lock();
        let discovery = self.discovery.as_ref();
        let members = self
            .members
            .iter()
            .map(|member| {
                let id = &member.service.id;
                let entry = discovery.and_then(|discovery| discovery.entry(id));
                let current = |key: &M::Key| current(&self.began_as, &self.key, &memory, key);
                let joins: Vec<_> = entry.iter().flat_map(|entry| &entry.joins).map(current).collect();
                MemberReport {
                    service: id.clone(),
                    state: self
                        .ended
                        .remove(id)
                        .unwrap_or_else(|| kept_or(&self.frozen, member, MemberState::Pending)),
                    touched: progress.touched_all || progress.touched.contains(id),
                    effects: memory.effects(id, &joins),
                    finished: entry.is_some_and(|entry| {
                        // While a step is waited for, the survey is the one from when it was sent.
                        asks_now(request, &entry.view) && entry.is_finished(&memory, current)
                    }),
                }
            })
            .collect();
        drop(memory);
        let report = PartReport {
            renamed: Some(PartKey::new(self.key.to_string())).filter(|key| key != &part),
            part,
            pass_steps: progress.steps,
            steps: self.steps,
            members,
            blocked: self.blocked,
            notes: self.notes,
            next: self
                .next
                .iter()
                .map(|key| PartKey::new(key.to_string()))
                .collect(),
            state,
        };
        if matches!(report.state, PartState::Done) {
            self.record.progress = Progress::default();
        }
        (self.key, report)
    }
}

/// Whether a Service still asks for what it asked for when this was seen of it.
fn asks_now(request: &Request, view: &ServiceView) -> bool {
    let services = &request.snapshot.services;
    let mut now = services.iter().filter(|service| service.id == view.id);
    now.any(|service| service.asks_the_same(view))
}

/// The key that stands for this one now, in a pass that may have given the part another one.
fn current<M: PartModel>(began_as: &M::Key, now: &M::Key, memory: &Memory<M>, key: &M::Key) -> M::Key {
    if key == began_as {
        now.clone()
    } else {
        memory.current(key)
    }
}

fn kept_or<M: PartModel>(
    held: &BTreeMap<ServiceId, Error>,
    member: &Member<M>,
    other: MemberState,
) -> MemberState {
    match (held.get(&member.service.id), &member.membership) {
        (Some(error), _) => MemberState::Refused(error.clone()),
        (None, Membership::Frozen(why)) => MemberState::Frozen(why.clone()),
        (None, _) => other,
    }
}

/// Whether an answer to this question was read in the pass that began then, not from a cache.
fn is_of_this_pass(read: ReadOptions, began: Instant) -> bool {
    match read.freshness {
        Freshness::After(instant) => instant >= began || instant.elapsed() <= RECENT,
        Freshness::AtMost(_) => false,
    }
}

impl PartReport {
    /// A pass that failed before it began.
    pub(super) fn failed(part: PartKey, error: Error) -> Self {
        Self {
            part,
            renamed: None,
            state: PartState::Failed(error),
            steps: Vec::new(),
            pass_steps: 0,
            members: Vec::new(),
            blocked: Vec::new(),
            notes: Vec::new(),
            next: Vec::new(),
        }
    }
}
