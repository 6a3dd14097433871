//! One pass over one part.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::OwnedMutexGuard, time::Instant};
use tracing::warn;

use super::{
    discovery::{DiscoveredPart, part_to_leave_first},
    engine::{Engine, Reading},
    memory::{Memory, Moment},
    model::{Member, Membership, PartCloud, PartModel, Plan, RequiredFacts, ScopeCheck, Step},
    objects::list,
    order::ClaimedObjects,
    record::{PartRecord, Pending, Progress},
    resume::PassStart,
};
use crate::{
    Error, ErrorKind, Freshness, Result,
    client::later,
    load_balancer::{
        Blocked, Effect, Effects, MemberReport, MemberState, PartKey, PartReport, PartState, ReadOptions,
        Request, ServiceEvent, ServiceId, ServiceView, StepDescription, StepReport,
    },
};

/// How often a pass reads the part again because it changed since it was read.
const READS: u32 = 3;
/// How often a pass plans again after all steps are done. Usually the second plan has no steps.
const ROUNDS: u32 = 4;
/// An answer that began at most this long ago counts as read in this pass, so that one page of a listing serves many passes.
/// Our own changes since then are known, and after a write with an unknown result no earlier answer is used.
const RECENT: Duration = Duration::from_secs(30);

/// Waits for a change by another client grow by this share of the time that it takes, up to the longest wait.
const BUSY_SHARE: f64 = 0.15;
const LONGEST_BUSY_WAIT: Duration = Duration::from_secs(60);
/// A change by another client that takes this long is reported.
const LONG_BUSY: Duration = Duration::from_secs(300);

/// The parts after the steps of a dry run.
pub(super) type DryRun<M> = Mutex<HashMap<<M as PartModel>::Key, <M as PartModel>::Observed>>;

/// A running pass.
pub(super) struct Pass<'a, M: PartModel, C: PartCloud<M>> {
    pub(super) engine: &'a Engine<M, C>,
    pub(super) request: &'a Request,
    pub(super) memory: &'a Mutex<Memory<M>>,
    /// In a dry run nothing is sent, and the steps are folded in here.
    pub(super) dry_run: Option<&'a DryRun<M>>,
    /// When the pass began.
    pub(super) began: Moment,
    /// The part's key then.
    pub(super) began_as: M::Key,
    pub(super) key: M::Key,
    pub(super) record: OwnedMutexGuard<PartRecord<M, C::Ticket>>,
    /// Until the pass ends, keys that were replaced since its listings were read stay valid.
    reading: Option<Reading<'a, M>>,
    pub(super) discovery: Option<Arc<DiscoveredPart<M>>>,
    pub(super) members: Vec<Member<M>>,
    /// Members that are frozen since a check, an input or a step failed, with the error.
    pub(super) frozen: BTreeMap<ServiceId, Error>,
    /// Members that are frozen since the engine searches for one that the cloud refuses.
    pub(super) left_out: BTreeSet<ServiceId>,
    pub(super) ended: BTreeMap<ServiceId, MemberState>,
    /// The effects of a create that was accepted in this pass.
    early: BTreeMap<ServiceId, Effects>,
    pub(super) steps: Vec<StepReport>,
    pub(super) blocked: Vec<Blocked>,
    pub(super) events: Vec<ServiceEvent>,
    pub(super) next: BTreeSet<M::Key>,
    /// A step creates or deletes: the next read must not come from a cache.
    needs_recent_read: bool,
    /// The cloud accepted a create in this pass, and nothing was planned since then.
    pub(super) has_accepted_create: bool,
    /// Steps for one Service that the cloud accepted, and that failed permanently.
    pub(super) failed_operations: Vec<(ServiceId, Error)>,
}

/// The result of reading and planning a part.
enum PartRead<M: PartModel> {
    /// The part is planned.
    Ready(PlannedPart<M>),
    /// The part has to wait.
    Wait(PartState),
}

/// The observed state of a part, and the plan from it to the desired one.
struct PlannedPart<M: PartModel> {
    observed: M::Observed,
    /// Whether it was read in this pass, not from a cache.
    fresh: bool,
    /// Without the steps that the cloud refused, and those that need them.
    plan: Plan<M::Change>,
    /// Steps that the cloud refused.
    refused: Vec<RefusedDifference>,
}

/// A step that the cloud refused permanently.
pub(super) struct RefusedDifference {
    step: StepDescription,
    error: Error,
}

/// The result of sending the steps of a plan.
pub(super) enum Applied {
    /// Every step is done.
    All,
    /// The part has to wait.
    Wait(PartState),
    /// The part changed since it was read, as this error of a step for this Service shows.
    ReadAgain(Option<ServiceId>, Error),
    /// A step for one Service failed permanently; the Service is frozen.
    MemberFrozen,
    /// A step that members share was refused. Other members are frozen now than in this plan; the observed state is known.
    PlanAgain,
}

impl<'a, M: PartModel, C: PartCloud<M>> Pass<'a, M, C> {
    pub(super) fn new(
        engine: &'a Engine<M, C>,
        request: &'a Request,
        memory: &'a Mutex<Memory<M>>,
        dry_run: Option<&'a DryRun<M>>,
        key: M::Key,
        record: OwnedMutexGuard<PartRecord<M, C::Ticket>>,
    ) -> Self {
        Self {
            engine,
            request,
            memory,
            dry_run,
            began: memory.lock().moment(),
            began_as: key.clone(),
            key,
            record,
            reading: None,
            discovery: None,
            members: Vec::new(),
            frozen: BTreeMap::new(),
            left_out: BTreeSet::new(),
            ended: BTreeMap::new(),
            early: BTreeMap::new(),
            steps: Vec::new(),
            blocked: Vec::new(),
            events: Vec::new(),
            next: BTreeSet::new(),
            needs_recent_read: false,
            has_accepted_create: false,
            failed_operations: Vec::new(),
        }
    }

    /// Runs the pass as far as it gets without waiting for the cloud.
    pub(super) async fn run(&mut self) -> PartState {
        self.try_run().await.unwrap_or_else(PartState::Failed)
    }

    async fn try_run(&mut self) -> Result<PartState> {
        let (engine, began) = (self.engine, self.began.at);
        let (mut seen, mut fresh) = match self.resume().await? {
            PassStart::Read => (None, false),
            PassStart::Known(observed, fresh) => (Some(observed), fresh),
            PassStart::Parked(state) => return Ok(state),
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
            if self.dry_run.is_none() && self.continue_search(&planned.plan)? {
                (seen, rounds) = (Some(observed), 0);
                continue;
            }
            if planned.plan.steps.is_empty() {
                if let Some(state) = self.keep_waiting(&observed) {
                    return Ok(state);
                }
                if let Some(state) = self.unanswered_before_leaving() {
                    return Ok(state);
                }
                self.record.is_not_busy();
                self.record.held.clear();
                let degraded = engine.model.degraded(&self.key, &self.members, &observed);
                let degraded = degraded.or_else(|| self.refused_while_leaving(&planned.refused));
                self.conclude(&observed, degraded.is_some());
                return degraded.map_or(Ok(PartState::Done), Err);
            }
            let needs_read = planned.plan.steps.iter().any(|step| step.description.effect != Effect::Change);
            self.hold_shared(&planned.plan.steps);
            let is_ready = self.dry_run.is_some() || self.has_ready_step(&planned.plan.steps);
            if !is_ready && let Some(state) = self.wait_for_shared(&observed, fresh) {
                return Ok(state);
            }
            if needs_read && !fresh && is_ready && self.dry_run.is_none() {
                // An object that a lost reply or a slow listing hides would be created twice. One that another client uses by
                // now would be deleted.
                self.needs_recent_read = true;
                continue;
            }
            if is_ready {
                self.announce(&planned.plan.steps);
            }
            match self.apply_steps(&planned.plan.steps, &mut observed, fresh).await? {
                Applied::All => {
                    rounds += 1;
                    if rounds > ROUNDS {
                        return Err(self.endless(&planned.plan.steps));
                    }
                    seen = Some(observed);
                }
                Applied::Wait(state) => {
                    // The ids and addresses in the reply to a create may make steps possible that can be sent before it has
                    // ended. Without a known state, a step that was sent meanwhile has failed.
                    let has_created = std::mem::take(&mut self.has_accepted_create);
                    let waiting = self.record.waiting.as_ref();
                    if !has_created || waiting.is_none_or(|waiting| waiting.observed.is_none()) {
                        return Ok(state);
                    }
                    seen = Some(observed);
                }
                Applied::MemberFrozen => fresh = false,
                Applied::PlanAgain => seen = Some(observed),
                Applied::ReadAgain(service, error) => {
                    fresh = false;
                    reads += 1;
                    if reads > READS {
                        self.give_up(service.as_ref(), error)?;
                        reads = 0;
                    }
                }
            }
        }
    }

    /// Finds the members and reads the inputs. `None`: the part has no members, or all of them wait for another part.
    async fn gather(&mut self) -> Result<Option<M::Inputs>> {
        let (engine, read) = (self.engine, self.request.read);
        let snapshot = &self.request.snapshot;
        let discovery = match engine.discover_part(&self.key, self.request, self.memory).await {
            Err(error) if self.dry_run.is_none() && !self.request.delete_orphan => {
                let last = engine.last_discovered(&self.key, snapshot);
                last.ok_or(error)?
            }
            discovered => {
                let (part, reading) = discovered?;
                self.reading = Some(reading);
                part
            }
        };
        let known = discovery.is_known;
        {
            let mut memory = self.memory.lock();
            self.members = discovery.members(&engine.model, &self.key, &memory);
            self.left_out.clear();
            for member in &self.members {
                if discovery.entry(&member.service.id).is_some_and(|entry| entry.joins.contains(&self.key)) {
                    memory.rejoin(&member.service.id, &self.key);
                }
            }
        }
        let deletes_orphan = self.request.delete_orphan && discovery.is_deletable_orphan;
        if deletes_orphan {
            // A Service that left the part before may still name it.
            let memory = self.memory.lock();
            self.members.retain(|member| !memory.has_left(&member.service.id, &self.key));
        }
        self.discovery = Some(Arc::new(discovery));
        if !known || (self.members.is_empty() && !deletes_orphan) || self.all_wait_to_leave() {
            return Ok(None);
        }
        let cluster = &self.request.snapshot.cluster;
        let gathered = engine.cloud.inputs(&self.key, &self.members, cluster, read).await?;
        for (id, error) in gathered.refused {
            self.freeze(&id, &error);
        }
        let review = engine.model.check(&self.key, &self.members, cluster, &gathered.inputs);
        for (id, error) in review.refused {
            self.freeze(&id, &error);
        }
        self.events = review.events;
        for (id, condition) in review.conditions {
            let conditions = &mut self.early.entry(id).or_default().conditions;
            conditions.insert(condition.kind.to_string(), condition);
        }
        for (id, error) in std::mem::take(&mut self.failed_operations) {
            self.freeze(&id, &error);
        }
        self.freeze_refused();
        Ok(Some(gathered.inputs))
    }

    /// Whether all members only wait to leave. Then nothing has to be read: the part that they leave first requests the next
    /// pass over this one.
    fn all_wait_to_leave(&self) -> bool {
        let waits = |member: &Member<M>| {
            matches!(member.membership, Membership::Frozen(_)) && !member.service.wants_load_balancer()
        };
        !self.members.is_empty() && self.members.iter().all(waits)
    }

    /// Freezes an active member. A member that leaves continues to leave.
    pub(super) fn freeze(&mut self, id: &ServiceId, error: &Error) {
        for member in &mut self.members {
            if &member.service.id == id && member.membership == Membership::Active {
                member.membership = Membership::Frozen(error.to_string());
                self.frozen.insert(id.clone(), error.clone());
            }
        }
    }

    /// Freezes the Service whose step fails. The pass continues with the nodes and the other Services.
    ///
    /// # Errors
    /// The error of the step: it is not for a Service, or its Service is frozen already.
    pub(super) fn give_up(&mut self, service: Option<&ServiceId>, error: Error) -> Result<()> {
        let before = self.frozen.len();
        service.inspect(|service| self.freeze(service, &error));
        if self.frozen.len() == before {
            return Err(error);
        }
        self.count_repeat("frozen");
        Ok(())
    }

    /// Plans; reads the part before unless its state is known.
    async fn read_and_plan(
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
        self.apply_search();
        let cluster = &self.request.snapshot.cluster;
        let desired = engine.model.desired(&self.key, &self.members, cluster, inputs);
        let mut plan = engine.model.plan(&desired, &observed);
        self.record.keep_requests_of(&plan.steps);
        let refused = self.take_refused(&mut plan);
        Ok(PartRead::Ready(PlannedPart {
            observed,
            fresh,
            plan,
            refused,
        }))
    }

    /// Removes the steps that the cloud refused a moment ago from the plan, and those that need them, and reports them as
    /// blocked: one difference for each reason, since many may be refused for the same one.
    fn take_refused(&self, plan: &mut Plan<M::Change>) -> Vec<RefusedDifference> {
        if !self.record.has_refused() {
            return Vec::new();
        }
        let mut refused = Vec::new();
        let mut left_out = ClaimedObjects::default();
        let mut is_left_out = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            let refusal = self.record.refusal(&step.change);
            is_left_out.push(refusal.is_some() || left_out.conflicts_with(&step.description));
            if is_left_out.last() == Some(&true) {
                left_out.add(&step.description);
            }
            refused.extend(refusal.map(|error| RefusedDifference {
                step: step.description.clone(),
                error: error.clone(),
            }));
        }
        let steps = std::mem::take(&mut plan.steps).into_iter().zip(is_left_out);
        let steps = steps.filter(|(_, is_left_out)| !is_left_out).map(|(step, _)| step).collect();
        plan.steps = steps;
        plan.blocked.extend(blocked_by_refusal(&refused));
        refused
    }

    /// The error of a step that was refused while members leave: they have not left then.
    fn refused_while_leaving(&self, refused: &[RefusedDifference]) -> Option<Error> {
        let leaves = |member: &Member<M>| member.membership == Membership::Leaving;
        let first = refused.first().filter(|_| self.members.iter().any(leaves))?;
        Some(first.error.clone().with_context("step", first.step.sentence.clone()))
    }

    async fn observe(&mut self, began: Instant) -> Result<Result<(M::Observed, bool), PartState>> {
        let engine = self.engine;
        let mut read = self.request.read;
        if self.record.needs_read {
            read = read.uncached();
        } else if self.needs_recent_read && !is_of_this_pass(read, began) {
            // Part of the limit, because the read itself takes time.
            let recent = Instant::now().checked_sub(RECENT / 2).unwrap_or(began);
            read.freshness = Freshness::After(recent);
        }
        // Decided before the read, however long it takes.
        let fresh = is_of_this_pass(read, began);
        let mut observed = engine.cloud.observe(&self.key, &self.members, read).await?;
        self.record.needs_read = self.record.waiting.is_some();
        for accepted in self.record.waiting.iter().flat_map(|waiting| &waiting.accepted) {
            // The cloud may show it only when it has finished.
            engine.model.fold(&self.key, &accepted.change, Some(&accepted.reply), &mut observed);
        }
        if let Some(what) = engine.model.missing(&self.key, &self.members, &observed) {
            let uncached = read.uncached();
            if let ScopeCheck::Unverified(why) =
                engine.cloud.verify_scope(&self.request.snapshot.cluster, uncached).await?
            {
                // The next pass must not use answers that were read with these credentials.
                self.record.needs_read = true;
                return Ok(Err(PartState::Blocked(format!(
                    "{what} no longer exists, but {why}; these may be the wrong credentials, so nothing is changed"
                ))));
            }
        }
        // Its objects may not be known yet, also in a dry run.
        if self.record.waiting.is_none()
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
        Ok(Ok((observed, fresh)))
    }

    /// Parks the part until the cloud has finished a change by another client.
    pub(super) fn wait_for(&mut self, mut pending: Pending<M>) -> PartState {
        let state = self.busy(pending.first, pending.why.clone());
        if let PartState::Parked { until, .. } = &state {
            pending.until = *until;
        }
        self.record.pending = Some(pending);
        state
    }

    /// Parks the part although no change of ours is in progress. The waits grow with the time.
    pub(super) fn busy(&mut self, first: Duration, why: String) -> PartState {
        let now = Instant::now();
        self.record.needs_read = true;
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
        let text = self.record.busy_event.get_or_insert_with(|| {
            let minutes = age.as_secs() / 60;
            let text = format!(
                "Waiting for {minutes} minutes: {why}; nothing is changed until the cloud has finished; if that never happens, \
                 repair it by hand"
            );
            warn!(part = %self.key, reason = text, "The cloud has been busy for long");
            text
        });
        let events = self.members.iter().map(|member| ServiceEvent {
            service: member.service.id.clone(),
            reason: "LoadBalancerPending",
            message: text.clone(),
            warning: true,
        });
        self.events.extend(events);
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
        // A Service that is deleted while its create is parked is announced again.
        if announced.len() == before && before > 0 {
            return;
        }
        if let Some(announce) = &self.request.announce {
            let steps: Vec<_> = steps.iter().map(|step| step.description.clone()).collect();
            announce(&steps);
        }
    }

    fn endless(&self, steps: &[Step<M::Change>]) -> Error {
        let first = steps.first().map(ToString::to_string).unwrap_or_default();
        Error::new(ErrorKind::Unexpected, "every plan has another step; this is a bug")
            .with_context("part", self.key.to_string())
            .with_context("step", first)
    }

    /// Publishes the facts of a part whose create was accepted, so that later parts run while it is being built, and the early
    /// effects. A member whose difference is blocked may get no facts in the end, so it waits until then.
    pub(super) fn publish_early_facts(&mut self, observed: &M::Observed) {
        let Some(discovery) = &self.discovery else { return };
        let mut memory = self.memory.lock();
        for member in Member::active(&self.members) {
            let effects = self.engine.model.early_effects(member, observed);
            self.early.entry(member.service.id.clone()).or_default().merge(&effects);
            let Some(entry) = discovery.entry(&member.service.id) else {
                continue;
            };
            let current = |key| current(&self.began_as, &self.key, &memory, key);
            let mut later = entry.joins.iter().map(current).skip_while(|key| key != &self.key);
            let id = Some(&member.service.id);
            let is_blocked = self.blocked.iter().any(|blocked| blocked.service.as_ref() == id);
            if is_blocked || later.next().is_none() {
                continue;
            }
            let later: Vec<_> = later.collect();
            if let Some(facts) = self.engine.model.early_facts(&self.key, member, observed)
                && memory.set_early_facts(&member.service.id, &self.key, facts, &later)
            {
                self.next.extend(later);
            }
        }
    }

    /// The later parts that run only now, since this one has been built.
    fn waiting_for_the_end(&self, later: &[M::Key]) -> Vec<M::Key> {
        let model = &self.engine.model;
        let waits = |key: &&M::Key| model.required_facts(key, &self.key) == RequiredFacts::Finished;
        later.iter().filter(waits).cloned().collect()
    }

    /// The create failed: the members of later parts are frozen.
    pub(super) fn withdraw_early_facts(&self) {
        let mut memory = self.memory.lock();
        for member in &self.members {
            memory.withdraw_early_facts(&member.service.id, &self.key);
        }
    }

    /// No step is due: records the output of the part, and the parts that can run now. No member has left a degraded part.
    fn conclude(&mut self, observed: &M::Observed, is_degraded: bool) {
        let mut memory = self.memory.lock();
        let Some(discovery) = &self.discovery else { return };
        let leaves = |member: &&Member<M>| member.membership == Membership::Leaving;
        for member in self.members.iter().filter(|member| !(is_degraded && leaves(member))) {
            let (id, view) = (&member.service.id, &member.service);
            let Some(entry) = discovery.entry(id) else {
                continue;
            };
            let current = |key: &M::Key| current(&self.began_as, &self.key, &memory, key);
            let joins: Vec<_> = entry.joins.iter().map(current).collect();
            let leaves = entry.known_leaves(&memory, current);
            let output = self.engine.model.facts(&self.key, member, observed);
            let state = if member.membership == Membership::Leaving {
                let effects = output.as_ref().map(|output| &output.effects);
                let is_old = memory.is_old(view, &discovery.snapshot);
                if memory.leave(id, &self.key, effects, is_old) {
                    // It may have left some of them before, and then no pass over them would report it again.
                    let has_left = |key: &M::Key| memory.has_left(id, key);
                    let model = &self.engine.model;
                    let can_leave = |key: &&M::Key| {
                        !has_left(key) && part_to_leave_first(model, &leaves, key, has_left).is_none()
                    };
                    let earlier = leaves.iter().take_while(|key| **key != self.key);
                    self.next.extend(earlier.filter(can_leave).cloned());
                    if leaves.iter().all(|key| memory.has_left(id, key)) {
                        // It may now join parts that it could not join while it was a member here.
                        self.next.extend(joins);
                    }
                }
                MemberState::Left
            } else if let Some(output) = output {
                let serves = member.membership == Membership::Active;
                let at = joins.iter().position(|key| key == &self.key);
                let later = at.and_then(|at| joins.get(at + 1..)).unwrap_or_default();
                if at.is_some() {
                    let changed = memory.set_output(view, &self.key, output, serves, later);
                    if changed.facts {
                        self.next.extend(later.iter().cloned());
                    } else if changed.is_finished {
                        self.next.extend(self.waiting_for_the_end(later));
                    }
                    if changed.serves {
                        self.next.extend(leaves);
                    }
                }
                frozen_or(&self.frozen, member, MemberState::Served)
            } else {
                memory.withdraw_output(id, &self.key);
                let why = "the part could not be set up".to_owned();
                frozen_or(&self.frozen, member, MemberState::Frozen(why))
            };
            self.ended.insert(id.clone(), state);
        }
        self.next.remove(&self.key);
    }

    /// The reports about the members. Of a part that many Services share, most members are as they were in the last report: the
    /// caller may permit that these are left out.
    fn report_members(&mut self, state: &PartState) -> Vec<MemberReport> {
        let cluster = &self.request.snapshot.cluster;
        let is_failure = matches!(state, PartState::Failed(_) | PartState::Blocked(_));
        if is_failure || self.record.reported_cluster.as_ref() != Some(cluster) {
            self.record.reports += 1;
            self.record.reported_cluster = (!is_failure).then(|| cluster.clone());
        }
        let reports = self.record.reports;
        let is_newest =
            self.discovery.as_ref().is_some_and(|discovery| discovery.is_of(&self.request.snapshot));
        let may_omit = !self.request.report_all && is_newest && !is_failure;
        let has_difference_for_all = self.blocked.iter().any(|blocked| blocked.service.is_none());
        let blocked = self.blocked.iter().filter_map(|blocked| blocked.service.as_ref());
        let noted: HashSet<_> = blocked.chain(self.events.iter().map(|event| &event.service)).collect();
        let progress = &self.record.progress;
        let mut memory = self.memory.lock();
        let mut members = Vec::new();
        for member in &self.members {
            let id = &member.service.id;
            let entry = self.discovery.as_ref().and_then(|discovery| discovery.shared_entry(id));
            let ended = self.ended.remove(id);
            let is_served = matches!(ended, Some(MemberState::Served)) && !self.frozen.contains_key(id);
            let may_settle = (is_served || matches!(state, PartState::Parked { .. }))
                && !has_difference_for_all
                && !noted.contains(id)
                && !progress.touched.contains(id)
                && !self.early.contains_key(id);
            if may_settle
                && may_omit
                && let Some(entry) = entry
                && memory.is_settled(&self.key, entry, reports)
            {
                continue;
            }
            let current = |key: &M::Key| current(&self.began_as, &self.key, &memory, key);
            let joins: Vec<_> = entry.iter().flat_map(|entry| &entry.joins).map(current).collect();
            let finished = entry.is_some_and(|entry| {
                // While the part is parked, the discovery is the one of the pass that sent the step.
                let is_same = |now: &Arc<ServiceView>| now.asks_the_same(&entry.view);
                let asks_now = is_newest || self.request.snapshot.service(id).is_some_and(is_same);
                asks_now && entry.is_finished(&memory, current)
            });
            members.push(MemberReport {
                service: id.clone(),
                state: ended.unwrap_or_else(|| frozen_or(&self.frozen, member, MemberState::Pending)),
                touched: progress.touched_all || progress.touched.contains(id),
                effects: memory.effects(id, &joins),
                early: self.early.remove(id).unwrap_or_default(),
                finished,
            });
            if let Some(entry) = entry {
                let settled = (may_settle && is_served && finished).then_some(reports);
                memory.set_settled(&self.key, entry, settled);
            }
        }
        members
    }

    /// A Service that moved to other parts during a create in this one waits there until the create has ended.
    fn continue_moved(&mut self) {
        let mut memory = self.memory.lock();
        for member in &self.members {
            let id = &member.service.id;
            if !memory.has_ended_create(id, &self.key) {
                continue;
            }
            let entry = memory.index.as_ref().and_then(|index| index.entry(id));
            let joins = entry.iter().flat_map(|entry| &entry.joins);
            let joins: Vec<_> = joins.map(|key| current(&self.began_as, &self.key, &memory, key)).collect();
            // If the index is of an older snapshot, a later pass over this part finds that the Service has moved.
            if !joins.contains(&self.key) {
                memory.continued_after_create(id, &self.key);
                self.next.extend(joins);
            }
        }
    }

    fn end_claims(&self) {
        let mut memory = self.memory.lock();
        for member in &self.members {
            memory.claim_ended(&member.service.id, &self.key);
        }
    }

    /// Ends the pass: the part's key and the report.
    pub(super) fn report(mut self, part: PartKey, state: PartState) -> (M::Key, PartReport) {
        if !matches!(state, PartState::Parked { .. }) {
            self.end_claims();
            self.continue_moved();
        }
        let members = self.report_members(&state);
        let progress = &self.record.progress;
        let report = PartReport {
            renamed: Some(PartKey::new(self.key.to_string())).filter(|key| key != &part),
            part,
            pass_steps: progress.steps,
            steps: self.steps,
            members,
            blocked: self.blocked,
            events: self.events,
            next: self.next.iter().map(|key| PartKey::new(key.to_string())).collect(),
            state,
        };
        if matches!(report.state, PartState::Done) {
            self.record.progress = Progress::default();
        }
        (self.key, report)
    }
}

/// The current key for this one, in a pass in which the part's key may have changed.
pub(super) fn current<M: PartModel>(
    began_as: &M::Key,
    now: &M::Key,
    memory: &Memory<M>,
    key: &M::Key,
) -> M::Key {
    if key == began_as {
        now.clone()
    } else {
        memory.current(key)
    }
}

/// The differences that remain since the cloud refused steps: `add machine vm-7 to pool web: the cloud refuses it: quota`.
fn blocked_by_refusal(refused: &[RefusedDifference]) -> Vec<Blocked> {
    let mut by_reason: BTreeMap<(Option<&ServiceId>, String), Vec<&str>> = BTreeMap::new();
    for RefusedDifference { step, error } in refused {
        let key = (step.service.as_ref(), error.report_without_request());
        by_reason.entry(key).or_default().push(&step.sentence);
    }
    let blocked = by_reason.into_iter().map(|((service, reason), sentences)| Blocked {
        service: service.cloned(),
        field: list(&sentences),
        observed: format!("the cloud refuses it: {reason}"),
        desired: Blocked::UNCHANGED.to_owned(),
    });
    blocked.collect()
}

fn frozen_or<M: PartModel>(
    frozen: &BTreeMap<ServiceId, Error>,
    member: &Member<M>,
    other: MemberState,
) -> MemberState {
    match (frozen.get(&member.service.id), &member.membership) {
        (Some(error), _) => MemberState::Refused(error.clone()),
        (None, Membership::Frozen(why)) => MemberState::Frozen(why.clone()),
        (None, _) => other,
    }
}

/// Whether an answer with these options counts as read in the pass that began then, not from a cache.
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
            events: Vec::new(),
            next: Vec::new(),
        }
    }
}
