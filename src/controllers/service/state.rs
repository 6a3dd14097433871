//! The state of every Service and every part, and the consequences of a change. Pure: no calls, no clock.
//!
//! | Verb | Functions |
//! |---|---|
//! | a change came in | [`State::changed`], [`State::take_due`] for time |
//! | take work | [`State::take_discovery`], [`State::take_part`], [`State::take_object`] |
//! | work ended | [`State::discovery_ended`], [`State::part_ended`], [`State::object_ended`]; [`State::part_writes`] on the way |
//!
//! Level triggered: a change only causes a comparison. If the desired state of a Service changes, its parts become *dirty*. A
//! pass over a part uses everything that is known at that moment, and later changes make the part dirty again.

mod entry;
mod jobs;
mod status;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Priority, Retry,
    client::later,
    controllers::{Backoff, NodeObject, ServiceObject},
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, Discovery, MemberReport, MemberState, NodeSet, OrphanPart,
        OwnershipTag, PartKey, PartReport, PartState, ProviderFinalizers, ServiceEvent, ServiceId,
        ServiceView, StepDescription,
    },
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

pub(super) use self::jobs::{Cause, Job, Next, PartStatus};
use self::{
    entry::{Served, ServiceEntry, Written},
    jobs::Moment,
};
use super::{
    OBJECT_BACKOFF,
    events::{Failure, normal},
    nodes::Nodes,
    object::{ServiceAction, is_own_writing},
    orphans::Orphans,
};
use crate::{config::OrphanConfig, controllers::node_object::STORE_LAG, server::status::Plan};

/// Waits between tries of a discovery. Short, since everything waits for it, and it is one listing.
const DISCOVERY_BACKOFF: Backoff = Backoff::seconds(2, 30);

/// A Service that is not served although no work runs for it is compared again after this time, the next time
/// after twice as long.
const LOST: Backoff = Backoff::seconds(1, 300);

/// How often a lost Service is compared with remembered answers of the cloud.
const LOST_IN_MEMORY: u32 = 2;

/// A difference that is blocked is compared again after this: the cloud may accept the change later, such as a target whose
/// instance was stopped. The cloud is not read for it.
const BLOCKED: Duration = Duration::from_secs(600);

/// How many steps of a plan the status page shows.
const STEPS: usize = 10;

/// `namespace/name` of a Service.
pub(super) type Name = Arc<str>;

fn name(id: &ServiceId) -> Name {
    format!("{}/{}", id.namespace, id.name).into()
}

/// A change that came in.
pub(super) enum Change {
    /// The present form of a Service, its claim, and the provider's finalizers for it; `None`: it does not exist.
    Service(Name, Option<(Arc<ServiceView>, Claim, ProviderFinalizers)>),
    /// A listing lost Services.
    Vanished,
    /// The present form of a node; `None`: it does not exist.
    Node(String, Option<Arc<NodeObject>>),
    /// The ownership tag of the cluster is known.
    OwnershipTag(OwnershipTag),
    /// Everything is to be compared with the cloud.
    Drift,
}

/// The consequence of a change.
#[derive(Debug)]
pub(super) enum Output {
    /// Run the part, whatever it waits for; for users, before others.
    Run(PartKey, Priority),
    /// Run the part, unless it waits for its next try.
    RunUnlessWaiting(PartKey),
    /// Compare the Service object with its desired content.
    Object(Name),
    /// Publish an event.
    Event(ServiceEvent),
    /// Publish an event of the provider.
    ProviderEvent(ServiceEvent),
    /// Report orphans.
    Orphans(Vec<OrphanPart>),
    /// So many parts begin to follow changed nodes.
    FollowNodes { parts: usize },
    /// All parts follow, after this time.
    NodesFollowed(Duration),
}

/// A discovery: which parts all Services have.
pub(super) struct DiscoveryTask {
    pub(super) job: Job,
    pub(super) snapshot: Arc<ClusterSnapshot>,
}

/// A pass over a part.
pub(super) struct PartTask {
    pub(super) job: Job,
    pub(super) snapshot: Arc<ClusterSnapshot>,
    /// The generation of the nodes in it.
    nodes: u64,
    /// Whether the pass may delete the part if it is an orphan.
    pub(super) delete_orphan: bool,
}

/// The work on a Service object.
pub(super) enum ObjectTask {
    Nothing,
    /// The store does not show the last write yet, or another client undid it again.
    Later(Instant),
    Write(ObjectWrite),
}

/// A write of a Service object.
pub(super) struct ObjectWrite {
    pub(super) change: ServiceAction,
    /// How many times in a row the same change was written before, each time undone by another client.
    pub(super) repeats: u32,
    /// Whether a load balancer existed: an event reports when the finalizers are removed.
    had_load_balancer: bool,
}

/// The state of a part.
#[derive(Debug, Default)]
struct PartEntry {
    /// The next run, if one is due.
    job: Option<Job>,
    /// The nodes that it follows, by their generation.
    follows: Option<u64>,
    status: PartStatus,
    /// The last pass waits for quota that is reserved for users.
    waits_for_quota: bool,
    /// A pass is running.
    running: bool,
    /// The last plan with a step.
    plan: Option<Plan>,
}

/// The state of the controller.
#[derive(Debug, Default)]
pub(super) struct State {
    services: HashMap<Name, ServiceEntry>,
    parts: HashMap<PartKey, PartEntry>,
    /// The members of each part, by the last discovery.
    members: HashMap<PartKey, Vec<Name>>,
    nodes: Nodes,
    orphans: Orphans,
    snapshot: Arc<ClusterSnapshot>,
    snapshot_nodes: u64,
    snapshot_is_old: bool,
    /// The next discovery, if one is due.
    discovery: Option<Job>,
    /// How many discoveries in a row failed, and when the next one is due.
    failed_discoveries: u32,
    retry_discovery: Option<Instant>,
    /// The last discovery waits for quota that is reserved for users.
    discovery_waits_for_quota: bool,
    /// Since when parts follow the nodes of this generation, while some do not yet.
    following: Option<(Instant, u64)>,
    moment: Moment,
    /// All kinds of failures that occurred.
    kinds: HashSet<&'static str>,
    /// Before the first discovery ended, everything existed before this process.
    started: bool,
}

// === A change came in ===

impl State {
    pub(super) fn new(cluster_name: Arc<str>, ownership_tag: OwnershipTag, orphans: OrphanConfig) -> Self {
        Self {
            snapshot: Arc::new(ClusterSnapshot {
                services: Vec::new(),
                cluster: ClusterView {
                    name: cluster_name,
                    ownership_tag,
                    ..ClusterView::default()
                },
            }),
            snapshot_is_old: true,
            orphans: Orphans::new(orphans),
            ..Self::default()
        }
    }

    /// A change came in.
    pub(super) fn changed(&mut self, change: Change, at: Instant) -> Vec<Output> {
        match change {
            Change::Service(name, Some(now)) => return self.service_changed(name, now, at),
            Change::Service(name, None) => self.forget(&name, at),
            Change::Vanished => self.orphans.restart(at),
            Change::Node(name, node) => {
                self.snapshot_is_old |= self.nodes.apply(&name, node.as_deref(), at);
            }
            Change::OwnershipTag(tag) => {
                Arc::make_mut(&mut self.snapshot).cluster.ownership_tag = tag;
                self.snapshot_is_old = true;
                self.check_drift(at);
            }
            Change::Drift => self.check_drift(at),
        }
        Vec::new()
    }

    fn service_changed(
        &mut self,
        name: Name,
        (view, claim, finalizers): (Arc<ServiceView>, Claim, ProviderFinalizers),
        at: Instant,
    ) -> Vec<Output> {
        let known = self.services.get(&name);
        if known.is_some_and(|entry| entry.view.id != view.id) {
            // Another Service with the same name.
            self.forget(&name, at);
        }
        self.snapshot_is_old = true;
        let after = self.moment.at(at);
        let inherited =
            !self.started && view.wants_load_balancer() && view.has_finalizer() && !view.ingress.is_empty();
        let job = Job::service(Some(after));
        let entry = self.services.entry(Arc::clone(&name)).or_insert_with(|| {
            let mut dirty = job;
            if inherited {
                // No user waits for a Service that was served before.
                dirty.priority = Priority::Background;
            }
            let dirty = (claim == Claim::Ours).then_some(dirty);
            ServiceEntry::new((Arc::clone(&view), claim, finalizers), dirty, inherited)
        });
        // A Service that another controller serves, before and after the change, has no parts.
        let is_ours = entry.is_ours() || claim == Claim::Ours;
        if is_ours && (!entry.view.asks_the_same(&view) || entry.claim != claim) {
            // After our own write, the cloud need not be read again.
            let effects = entry.served.as_ref().map(|served| &served.effects);
            let own = is_own_writing(&entry.view, &view, effects);
            let after = job.after.filter(|_| !own);
            Job { after, ..job }.add_to(&mut entry.dirty);
        }
        if entry.view.wants_load_balancer() != view.wants_load_balancer() {
            // The next event about work is another one.
            entry.reported.work = false;
        }
        let was_ours = entry.is_ours();
        entry.view = view;
        entry.claim = claim;
        entry.finalizers = finalizers;
        // A Service that another controller served gets our finalizer first.
        entry.included &= was_ours || !entry.is_ours();
        entry.included |= !entry.has_to_wait();
        if entry.included
            && let Some(job) = entry.dirty
        {
            job.add_to(&mut self.discovery);
        }
        vec![Output::Object(name)]
    }

    /// The Service does not exist any more.
    fn forget(&mut self, name: &Name, at: Instant) {
        let Some(entry) = self.services.remove(name) else {
            return;
        };
        self.snapshot_is_old = true;
        let over = entry.is_served() && !entry.view.wants_load_balancer();
        if entry.is_ours() && entry.included && !over {
            // Its load balancer was not deleted: another client removed the finalizer, or the API server lost the Service. The
            // next discovery lists the orphans.
            let after = Some(self.moment.at(at));
            Job::service(after).add_to(&mut self.discovery);
        }
        for part in entry.parts() {
            if let Some(members) = self.members.get_mut(part) {
                members.retain(|member| member != name);
            }
        }
        self.forget_idle_parts();
    }

    fn check_drift(&mut self, at: Instant) {
        let job = Job::drift(at);
        for entry in self.services.values_mut().filter(|entry| entry.is_ours()) {
            job.add_to(&mut entry.dirty);
        }
        job.add_to(&mut self.discovery);
    }

    /// When the next work is due without a change. `discovers`: a discovery is running or due, and work that only leads to
    /// a discovery waits for it.
    pub(super) fn due(&self, discovers: bool) -> Option<Instant> {
        let nodes = self.nodes.due().filter(|_| self.started);
        if discovers || self.retry_discovery.is_some() {
            let retry = self.retry_discovery.filter(|_| !discovers);
            return nodes.into_iter().chain(retry).min();
        }
        let again = self.services.values().filter_map(|entry| entry.again).min();
        let all = [nodes, again, self.orphans_due()];
        all.into_iter().flatten().min()
    }

    fn orphans_due(&self) -> Option<Instant> {
        // While passes do not know of every Service, nothing is reported or deleted.
        self.orphans.due().filter(|_| self.all_included())
    }

    /// Time has passed. If nodes changed and it is time to follow them, runs the parts that do not. While discovery fails,
    /// runs the parts that do not need it.
    pub(super) fn take_due(&mut self, at: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.started && self.nodes.take_due(at) {
            let job = Job::now(Cause::Nodes);
            // A cloud may have parts for each zone.
            job.add_to(&mut self.discovery);
            let generation = self.nodes.generation();
            let behind: Vec<_> = self.behind(generation).cloned().collect();
            self.following = (!behind.is_empty()).then_some((at, generation));
            outputs.push(Output::FollowNodes { parts: behind.len() });
            outputs.extend(behind.iter().map(|part| self.make_dirty(part, job)));
        }
        if self.failed_discoveries > 0 {
            outputs.extend(self.requeue_known());
        }
        outputs
    }

    /// Parts of load balancers that do not follow the nodes of this generation.
    fn behind(&self, generation: u64) -> impl Iterator<Item = &PartKey> {
        let wants = |key| {
            let mut members = self.members_of(key);
            members.any(|(_, entry)| entry.view.wants_load_balancer())
        };
        let parts = self.parts.iter();
        let behind = parts.filter(move |(_, part)| part.follows.is_none_or(|follows| follows < generation));
        behind.map(|(key, _)| key).filter(move |key| wants(key))
    }

    /// Adds a job to the part. Returns the output that runs it.
    fn make_dirty(&mut self, part: &PartKey, job: Job) -> Output {
        let entry = self.parts.entry(part.clone()).or_default();
        job.add_to(&mut entry.job);
        match (job.cause, entry.status) {
            (Cause::Service, _) | (Cause::Nodes, PartStatus::Refused | PartStatus::Degraded) => {
                Output::Run(part.clone(), job.priority)
            }
            (Cause::Nodes, _) if entry.waits_for_quota => Output::Run(part.clone(), job.priority),
            _ => Output::RunUnlessWaiting(part.clone()),
        }
    }

    /// The members of a part.
    fn members_of(&self, part: &PartKey) -> impl Iterator<Item = (&Name, &ServiceEntry)> {
        let names = self.members.get(part).into_iter().flatten();
        names.filter_map(|name| self.services.get_key_value(name))
    }

    /// Whether passes know of every Service.
    fn all_included(&self) -> bool {
        self.services.values().all(|entry| entry.included)
    }

    /// The Service as it was when it last changed, if it was ours.
    pub(super) fn ours(&mut self, id: &ServiceId) -> Option<Arc<ServiceView>> {
        let entry = self.entry(id).filter(|entry| entry.is_ours());
        entry.map(|entry| Arc::clone(&entry.view))
    }

    fn entry(&mut self, id: &ServiceId) -> Option<&mut ServiceEntry> {
        let entry = self.services.get_mut(&name(id))?;
        (&entry.view.id == id).then_some(entry)
    }
}

// === Take work ===

impl State {
    /// The cluster as it is now, one value for one moment.
    fn snapshot(&mut self) -> Arc<ClusterSnapshot> {
        if std::mem::take(&mut self.snapshot_is_old) {
            let included = self.services.values().filter(|entry| entry.included);
            let mut services: Vec<_> = included.map(|entry| Arc::clone(&entry.view)).collect();
            services.sort_by(|a, b| a.id.cmp(&b.id));
            self.snapshot_nodes = self.nodes.generation();
            self.snapshot = Arc::new(ClusterSnapshot {
                services,
                cluster: ClusterView {
                    nodes: self.nodes.set(),
                    ..self.snapshot.cluster.clone()
                },
            });
        }
        Arc::clone(&self.snapshot)
    }

    /// Takes the discovery, if one is due. A change from now on is for the next one.
    pub(super) fn take_discovery(&mut self, at: Instant) -> Option<DiscoveryTask> {
        let is_for_users = self.discovery.is_some_and(|job| job.priority == Priority::User);
        let may_begin = self.discovery_waits_for_quota && is_for_users;
        if !may_begin && self.retry_discovery.is_some_and(|due| due > at) {
            return None;
        }
        self.retry_discovery = None;
        for entry in self.services.values_mut() {
            if entry.again.take_if(|again| *again <= at).is_some() {
                let job = match entry.lost {
                    0 => Job::now(Cause::Nodes),
                    // Remembered answers did not help.
                    lost => Job::service((lost > LOST_IN_MEMORY).then_some(at)),
                };
                job.add_to(&mut entry.dirty);
                job.add_to(&mut self.discovery);
            }
        }
        if self.orphans_due().is_some_and(|due| due <= at) {
            Job::now(Cause::Service).add_to(&mut self.discovery);
        }
        let job = self.discovery.take()?;
        let snapshot = self.snapshot();
        Some(DiscoveryTask { job, snapshot })
    }

    /// Takes a part. `None` if there is nothing to do.
    pub(super) fn take_part(&mut self, key: &PartKey, at: Instant) -> Option<PartTask> {
        let moment = self.moment.at(at);
        let part = self.parts.get_mut(key)?;
        let mut job = part.job.take()?;
        part.running = true;
        if part.status.is_trouble() {
            // The reason may have been an old answer.
            job.after = job.after.max(Some(moment));
        }
        // While a Service waits for its finalizer, it may adopt an orphan.
        let permitted = self.orphans.permits(key);
        if permitted && !self.all_included() {
            self.orphans.postpone(key);
        }
        Some(PartTask {
            job,
            delete_orphan: permitted && self.all_included(),
            snapshot: self.snapshot(),
            nodes: self.snapshot_nodes,
        })
    }

    /// Takes a Service object: its differences from the desired content. Of a later form than the last change that came in,
    /// it may be another controller's now.
    pub(super) fn take_object(
        &mut self,
        (object, claim, finalizers): &(Arc<ServiceObject>, Claim, ProviderFinalizers),
        at: Instant,
    ) -> ObjectTask {
        let Some(entry) = self.entry(&object.view.id) else {
            return ObjectTask::Nothing;
        };
        // The effects are those of the Service as it was served.
        let served = entry.served.as_ref();
        let current = served.filter(|served| served.view.asks_the_same(&object.view));
        let effects = current.map(|served| &served.effects);
        let change = ServiceAction::due(&object.view, *claim, *finalizers, effects);
        if change.is_empty() {
            entry.reported.not_written = None;
            return ObjectTask::Nothing;
        }
        let mut repeats = 0;
        if let Some(written) = &entry.written
            && written.version == object.meta.resource_version
        {
            let due = written.at + STORE_LAG;
            match written.in_vain {
                true if written.change == change => return ObjectTask::Nothing,
                false if at < due => return ObjectTask::Later(due),
                _ => {}
            }
        } else if let Some(written) = &entry.written
            && written.change == change
            && at < written.at + 2 * OBJECT_BACKOFF.longest
        {
            // Two clients that undo each other's changes must not write without an end at full speed.
            let due = written.at + OBJECT_BACKOFF.delay(written.repeats);
            if at < due {
                return ObjectTask::Later(due);
            }
            repeats = written.repeats.saturating_add(1);
        }
        let existed = entry.reported.work || !object.view.ingress.is_empty();
        ObjectTask::Write(ObjectWrite {
            change,
            repeats,
            had_load_balancer: *claim == Claim::Ours && existed,
        })
    }
}

// === Work ended ===

impl State {
    /// A discovery ended. If it failed, it is due again later.
    pub(super) fn discovery_ended(
        &mut self,
        task: &DiscoveryTask,
        result: ccm_core::Result<Discovery>,
        at: Instant,
    ) -> Vec<Output> {
        match result {
            Ok(discovery) => {
                self.failed_discoveries = 0;
                self.discovered(discovery, &task.snapshot, at)
            }
            Err(error) => {
                self.failed_discoveries = self.failed_discoveries.saturating_add(1);
                let wait = error
                    .retry()
                    .wait(DISCOVERY_BACKOFF.delay(self.failed_discoveries));
                self.retry_discovery = Some(later(at, wait));
                task.job.add_to(&mut self.discovery);
                self.discovery_waits_for_quota = task.job.waits_for_quota(&error);
                if self.discovery_waits_for_quota {
                    return Vec::new();
                }
                let failure = Failure::Error(&error);
                self.kinds.insert(failure.label());
                let entries = self.services.values_mut();
                entries
                    .filter(|entry| entry.waits_for_discovery())
                    .filter_map(|entry| {
                        let nodes = NodeSet::default();
                        entry.fail(&failure, &PartKey::new(""), Cause::Service, &nodes)
                    })
                    .collect()
            }
        }
    }

    fn discovered(&mut self, discovery: Discovery, snapshot: &ClusterSnapshot, at: Instant) -> Vec<Output> {
        let mut due: HashMap<PartKey, Job> = HashMap::new();
        let mut outputs = Vec::new();
        for (view, parts) in snapshot.services.iter().zip(discovery.services) {
            if let Some(entry) = self.entry(&parts.service) {
                outputs.extend(entry.apply_parts(view, parts, &mut due));
            }
        }
        let complete = self.all_included();
        let orphans = self.orphans.listed(discovery.orphans, complete, at);
        if !orphans.report.is_empty() {
            outputs.push(Output::Orphans(orphans.report));
        }
        for part in orphans.delete {
            due.entry(part).or_insert(Job::drift(at));
        }
        self.index();
        if !std::mem::replace(&mut self.started, true) {
            // Every part is run now, and follows the nodes as they are then.
            self.nodes.forget_changes();
        }
        // In the order of the discovery: few of them are then run twice.
        let parts = discovery.parts.iter();
        let mut ordered: Vec<_> = parts.filter_map(|part| due.remove_entry(part)).collect();
        ordered.extend(due);
        outputs.extend(ordered.iter().map(|(part, job)| self.make_dirty(part, *job)));
        outputs
    }

    /// Runs the known parts of changed Services while discovery fails. Each change is run once. When discovery works again,
    /// they are run with all others.
    fn requeue_known(&mut self) -> Vec<Output> {
        let mut known = Vec::new();
        for entry in self.services.values_mut() {
            if let Some(job) = entry.dirty.filter(|_| entry.waits_for_discovery())
                && entry.requeued != Some(job)
            {
                entry.requeued = Some(job);
                known.extend(entry.parts().map(|part| (part.clone(), job)));
            }
        }
        let run = known.iter();
        run.map(|(part, job)| self.make_dirty(part, *job)).collect()
    }

    /// Updates the members of each part.
    fn index(&mut self) {
        self.members.clear();
        for (name, entry) in &self.services {
            for part in entry.parts() {
                let members = self.members.entry(part.clone()).or_default();
                members.push(Arc::clone(name));
            }
        }
        self.forget_idle_parts();
        for key in self.members.keys() {
            self.parts.entry(key.clone()).or_default();
        }
    }

    /// Forgets parts without work and without members.
    fn forget_idle_parts(&mut self) {
        let members = &mut self.members;
        members.retain(|_, names| !names.is_empty());
        self.parts
            .retain(|key, part| part.job.is_some() || part.running || members.contains_key(key));
    }

    /// A pass over `part` is about to apply these steps: the events that announce it.
    pub(super) fn part_writes(
        &mut self,
        part: &PartKey,
        steps: &[StepDescription],
        cause: Cause,
    ) -> Vec<ServiceEvent> {
        if let Some(part) = self.parts.get_mut(part) {
            let sentences = steps.iter().take(STEPS).map(|step| step.sentence.clone());
            part.plan = Some(Plan {
                at: Timestamp::now(),
                steps: sentences.collect(),
                count: steps.len(),
            });
        }
        let is_named = |id: &ServiceId| steps.iter().any(|step| step.service.as_ref() == Some(id));
        let for_all = steps.iter().any(|step| step.service.is_none());
        let members: Vec<(Name, bool, bool)> = self
            .members_of(part)
            .map(|(name, entry)| {
                // A Service that was served before is not the reason for a step for all.
                let was_served = entry.is_served() || (entry.inherited && entry.served.is_none());
                (Name::clone(name), is_named(&entry.view.id), !was_served)
            })
            .collect();
        let alone = members.len() == 1;
        let none_waits = !members.iter().any(|(_, named, waits)| *named || *waits);
        let concerned = members
            .into_iter()
            .filter(|(_, named, waits)| *named || (for_all && (*waits || (alone && none_waits))));
        let mut events = Vec::new();
        for (name, ..) in concerned {
            let Some(entry) = self.services.get_mut(&name) else {
                continue;
            };
            let wants = entry.view.wants_load_balancer();
            let only_nodes = wants && cause == Cause::Nodes && entry.is_served();
            if !only_nodes && !std::mem::replace(&mut entry.reported.work, true) {
                let id = &entry.view.id;
                events.push(match wants {
                    true => normal(id, "EnsuringLoadBalancer", "Ensuring load balancer"),
                    false => normal(id, "DeletingLoadBalancer", "Deleting load balancer"),
                });
            }
        }
        events
    }

    /// A pass ended.
    pub(super) fn part_ended(
        &mut self,
        task: &PartTask,
        report: &PartReport,
        at: Instant,
    ) -> (Vec<Output>, Next) {
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        let is_renamed = part != &report.part;
        if is_renamed {
            self.rename(&report.part, part);
        }
        let mut outputs = Vec::new();
        for member in &report.members {
            self.member_ended(part, task, report, (member, at), &mut outputs);
        }
        let (status, failure) = PartStatus::of(report);
        let backoff = |least| Next::Backoff { least };
        let next = match (&report.state, &failure) {
            (PartState::Parked { until, .. }, _) => Next::Until(*until),
            (_, None) => Next::Done,
            (_, Some(Failure::Blocked(_))) => backoff(Duration::ZERO),
            (_, Some(Failure::Error(error))) => match error.retry() {
                Retry::Fixed(wait) => Next::Until(later(at, wait)),
                retry => backoff(retry.wait(Duration::ZERO)),
            },
        };
        // A comparison that comes later is no failure for users.
        let waits_for_quota =
            matches!(&report.state, PartState::Failed(error) if task.job.waits_for_quota(error));
        if let Some(failure) = &failure {
            match status {
                PartStatus::Refused => {
                    self.kinds.insert(failure.label());
                }
                _ if waits_for_quota => {}
                _ => self.fail_all(part, task, report, failure, &mut outputs),
            }
        }
        let entry = self.parts.entry(part.clone()).or_default();
        (entry.status, entry.running) = (status, false);
        entry.waits_for_quota = waits_for_quota;
        if matches!(report.state, PartState::Done) {
            entry.follows = Some(task.nodes);
        }
        if next != Next::Done {
            task.job.add_to(&mut entry.job);
        }
        for other in &report.next {
            self.make_dirty(other, task.job);
            outputs.push(Output::Run(other.clone(), task.job.priority));
        }
        if let Some((began, generation)) = self.following
            && self.behind(generation).next().is_none()
        {
            self.following = None;
            outputs.push(Output::NodesFollowed(at.saturating_duration_since(began)));
        }
        self.find_lost(part, at);
        let has_job = || self.parts.get(part).is_some_and(|part| part.job.is_some());
        if is_renamed && next == Next::Done && has_job() {
            // Jobs that came meanwhile were queued under the old name.
            outputs.push(Output::Run(part.clone(), task.job.priority));
        }
        (outputs, next)
    }

    /// The pass failed for all members.
    fn fail_all(
        &mut self,
        part: &PartKey,
        task: &PartTask,
        report: &PartReport,
        failure: &Failure<'_>,
        outputs: &mut Vec<Output>,
    ) {
        if failure.is_not_leader() {
            return;
        }
        let reported = report.members.iter().map(|member| name(&member.service));
        let mut names: Vec<Name> = reported.collect();
        if names.is_empty() {
            names = self.members_of(part).map(|(name, _)| Name::clone(name)).collect();
        }
        self.kinds.insert(failure.label());
        let nodes = &task.snapshot.cluster.nodes;
        for name in names {
            if let Some(entry) = self.services.get_mut(&name) {
                outputs.extend(entry.fail(failure, part, task.job.cause, nodes));
            }
        }
    }

    fn member_ended(
        &mut self,
        part: &PartKey,
        task: &PartTask,
        report: &PartReport,
        (member, at): (&MemberReport, Instant),
        outputs: &mut Vec<Output>,
    ) {
        let (id, parts, nodes) = (&member.service, &self.parts, &task.snapshot.cluster.nodes);
        let entry = self.services.get_mut(&name(id));
        let Some(entry) = entry.filter(|entry| entry.view.id == *id) else {
            return;
        };
        let was_served = entry.is_served();
        // The process before this one reported the same.
        let known = entry.inherited && !entry.reported.has(part) && report.pass_steps == 0;
        let new = entry.reported.pass_ended(part, id, report);
        outputs.extend(new.into_iter().filter(|_| !known));
        let mut publish = |event| outputs.push(Output::Event(event));
        let is_done = matches!(report.state, PartState::Done);
        let is_first = entry.joins.first() == Some(part);
        match &member.state {
            MemberState::Served | MemberState::Left | MemberState::Frozen(_) if is_done => {
                let no_nodes = nodes.keeps_members() && entry.view.wants_load_balancer() && is_first;
                let reports = entry.reported.of(part);
                reports.failure = None;
                let is_new = std::mem::replace(&mut reports.no_nodes, no_nodes) != no_nodes;
                if no_nodes && is_new && !known {
                    let text = "There are no available nodes for LoadBalancer".to_owned();
                    publish(ServiceEvent::warning(id, "UnAvailableLoadBalancer", text));
                }
                let updated = member.touched && was_served && task.job.cause == Cause::Nodes;
                if updated && is_first && !entry.reported.work && entry.reported.blocked().is_none() {
                    let text = "Updated load balancer with new hosts";
                    publish(normal(id, "UpdatedLoadBalancer", text));
                }
            }
            MemberState::Refused(error) if is_done => {
                let failure = Failure::Error(error);
                outputs.extend(entry.fail(&failure, part, task.job.cause, nodes));
            }
            _ => {}
        }
        let services = &task.snapshot.services;
        let found = services.binary_search_by(|view| view.id.cmp(id)).ok();
        let view = found.and_then(|found| services.get(found));
        let Some(view) = view.filter(|view| member.finished && view.asks_the_same(&entry.view)) else {
            return;
        };
        entry.served = Some(Served {
            view: Arc::clone(view),
            effects: member.effects.clone(),
        });
        let blocked = entry.reported.blocked();
        (entry.again, entry.lost) = (blocked.map(|_| at + BLOCKED), 0);
        outputs.push(Output::Object(name(id)));
        // A repair does not change the view: the Service counts as served while its parts are at work.
        let is_busy =
            |part: &PartEntry| part.running || part.waits_for_quota || part.status == PartStatus::Parked;
        let others = entry.parts().filter(|other| *other != part);
        let waits = others.filter_map(|other| parts.get(other)).any(is_busy);
        let is_ensured = is_done && !waits && entry.reported.failure_kind().is_none();
        if is_ensured && entry.view.wants_load_balancer() && std::mem::take(&mut entry.reported.work) {
            let event = normal(id, "EnsuredLoadBalancer", "Ensured load balancer");
            outputs.push(Output::Event(event));
        }
    }

    /// Finds Services that are not served although no work runs for them. The cloud has changed since their parts
    /// were discovered.
    fn find_lost(&mut self, part: &PartKey, at: Instant) {
        let lost = self.members_of(part).filter(|(_, entry)| self.is_lost(entry));
        let lost: Vec<_> = lost.map(|(name, _)| Name::clone(name)).collect();
        for name in lost {
            if let Some(entry) = self.services.get_mut(&name) {
                entry.lost = entry.lost.saturating_add(1);
                let due = at + LOST.delay(entry.lost);
                entry.again = Some(entry.again.map_or(due, |again| again.min(due)));
            }
        }
    }

    fn is_lost(&self, entry: &ServiceEntry) -> bool {
        let is_idle = |part: &PartEntry| part.job.is_none() && !part.running;
        entry.is_ours()
            && entry.included
            && entry.dirty.is_none()
            && !entry.is_served()
            && entry.parts().all(|part| self.parts.get(part).is_none_or(is_idle))
    }

    /// The part has another name after a create.
    fn rename(&mut self, old: &PartKey, new: &PartKey) {
        let mut part = self.parts.remove(old).unwrap_or_default();
        if let Some(job) = self.parts.remove(new).and_then(|other| other.job) {
            job.add_to(&mut part.job);
        }
        self.parts.insert(new.clone(), part);
        for name in self.members.remove(old).unwrap_or_default() {
            let Some(entry) = self.services.get_mut(&name) else {
                continue;
            };
            for key in entry.joins.iter_mut().chain(&mut entry.leaves) {
                if key == old {
                    key.clone_from(new);
                }
            }
            entry.reported.rename(old, new);
            let known = self.members.entry(new.clone()).or_default();
            if !known.contains(&name) {
                known.push(name);
            }
        }
    }

    /// The write of a Service object ended. `in_vain`: whether it changed nothing. Returns the event, if there is one.
    pub(super) fn object_ended(
        &mut self,
        object: &ServiceObject,
        write: ObjectWrite,
        in_vain: Result<bool, String>,
        at: Instant,
    ) -> Option<ServiceEvent> {
        let id = &object.view.id;
        // The Service may be deleted already.
        let entry = self.entry(id);
        let in_vain = match in_vain {
            Ok(in_vain) => in_vain,
            Err(error) => {
                let message = format!("Error syncing load balancer: {}: {error}", write.change.failure());
                let last = entry?.reported.not_written.replace(message.clone());
                let is_new = last.as_ref() != Some(&message);
                return is_new.then(|| ServiceEvent::warning(id, "SyncLoadBalancerFailed", message));
            }
        };
        let removed = !object.view.wants_load_balancer() && !write.change.remove_finalizers.is_empty();
        if let Some(entry) = entry {
            entry.reported.not_written = None;
            entry.reported.work &= !removed;
            entry.written = Some(Written {
                version: object.meta.resource_version.clone(),
                change: write.change,
                at,
                repeats: write.repeats,
                in_vain,
            });
        }
        (removed && write.had_load_balancer)
            .then(|| normal(id, "DeletedLoadBalancer", "Deleted load balancer"))
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
