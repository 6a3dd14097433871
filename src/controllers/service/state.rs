//! The state of every Service and every part, and the consequences of a change. Pure: no calls, no clock.
//!
//! | Verb | Functions |
//! |---|---|
//! | a change came in | [`ControllerState::changed`], [`ControllerState::take_due`] for time |
//! | take work | [`ControllerState::take_discovery`], [`ControllerState::take_part`], [`ControllerState::take_object`] |
//! | work ended | [`ControllerState::discovery_ended`], [`ControllerState::part_ended`], [`ControllerState::object_ended`]; [`ControllerState::part_writes`] on the way |
//!
//! Level triggered: a change only causes a comparison. If the desired state of a Service changes, its parts become *dirty*. A
//! pass over a part uses everything that is known at that moment, and later changes make the part dirty again.
//!
//! # Which facts are here
//!
//! The plan engine also remembers Services between passes (`Memory` in `ccm_core::plan`). Each fact has one place that decides,
//! and the other one has at most a copy of the last answer:
//!
//! ```text
//!            plan engine                          this state
//!   discovery: joins, leaves of each Service ---> joins, leaves   whom to run, whom an end concerns
//!   run: member.finished, member.effects     ---> served          the status and finalizers to write
//!   run: next                                ---> jobs            which parts are due, when, and why
//!   run: renamed                             ---> names of parts
//!   facts for later parts, early facts; which parts serve or were left   (never here)
//!   ^--- snapshot, job.ask(): what is desired, how old answers may be, priority
//! ```
//!
//! | Fact | Decides | Why |
//! |---|---|---|
//! | the parts of a Service, in order | engine | it needs the listings of the cloud; here is the last answer |
//! | facts of a part for later parts | engine | their type is the provider's; no pass could begin without them |
//! | that one part serves a Service or was left | engine | the order of leaving depends on it within a pass |
//! | that the Service as a whole is served, with its effects | this state | `finished` of a pass may be of an older form of the Service |
//! | what is due, when, and for whom | this state | the engine starts no work |
//! | that a create has replaced a part's name | engine | older listings still have the old name; here the name is only replaced |

mod ended;
mod entry;
mod jobs;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Priority,
    controllers::{NodeObject, ServiceObject},
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, OrphanPart, OwnershipTag, PartKey, ProviderFinalizers, Request,
        ServiceEvent, ServiceId, ServiceParts, ServiceView,
    },
};
use tokio::time::Instant;

pub(super) use self::jobs::{Cause, Job, NextRun, PartStatus};
use self::{entry::ServiceEntry, jobs::Moment};
use super::{
    OBJECT_BACKOFF,
    nodes::{NodeGeneration, Nodes},
    object::{ServiceAction, is_own_writing, lacking, missing_conditions},
    orphans::Orphans,
};
use crate::{config::OrphanConfig, controllers::node_object::STORE_LAG, server::status::LastPlan};

/// How often a lost Service is compared with remembered answers of the cloud.
const LOST_IN_MEMORY: u32 = 2;

/// While Services change, all of them are looked up in the listings at most this often, and only the changed ones between.
/// Otherwise the work for one Service would grow with their number.
const LOOKS_UP_ALL: Duration = Duration::from_secs(10);

/// `namespace/name` of a Service.
pub(super) type Name = Arc<str>;

fn name(id: &ServiceId) -> Name {
    format!("{}/{}", id.namespace, id.name).into()
}

/// A Service, with the provider's answers about it.
pub(super) struct ServiceInput {
    pub(super) view: Arc<ServiceView>,
    pub(super) claim: Claim,
    /// The provider's own finalizers for it.
    pub(super) finalizers: ProviderFinalizers,
}

/// A Service object, with the provider's answers about it. They are as new as the object.
pub(super) struct ClaimedService {
    pub(super) object: Arc<ServiceObject>,
    pub(super) claim: Claim,
    /// The provider's own finalizers for it.
    pub(super) finalizers: ProviderFinalizers,
}

impl ClaimedService {
    pub(super) fn input(&self) -> ServiceInput {
        ServiceInput {
            view: Arc::clone(&self.object.view),
            claim: self.claim,
            finalizers: self.finalizers,
        }
    }
}

/// A change that came in.
pub(super) enum ClusterChange {
    /// The present form of a Service, its claim, and the provider's finalizers for it; `None`: it does not exist.
    Service(Name, Option<ServiceInput>),
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
    /// Clean up a Service of another controller, whose former load balancer is ours.
    CleanUp(Name),
    /// Publish an event.
    Event(ServiceEvent),
    /// Publish an event of the provider.
    ProviderEvent(ServiceEvent),
    /// Report orphans.
    Orphans(Vec<OrphanPart>),
    /// So many parts begin to follow changed nodes.
    FollowNodes { parts: usize },
    /// All parts that do not fail follow, after this time.
    NodesFollowed(Duration),
}

/// A discovery: which parts all Services have.
pub(super) struct DiscoveryTask {
    pub(super) job: Job,
    pub(super) snapshot: Arc<ClusterSnapshot>,
    /// The Services to look up, besides those that have changed. `None`: all.
    pub(super) services: Option<BTreeSet<ServiceId>>,
}

impl DiscoveryTask {
    pub(super) fn request(&self) -> Request {
        Request {
            services: self.services.clone(),
            ..Request::new(Arc::clone(&self.snapshot), self.job.ask())
        }
    }
}

/// A pass over a part.
pub(super) struct PartTask {
    pub(super) job: Job,
    pub(super) snapshot: Arc<ClusterSnapshot>,
    /// The generation of the nodes in it.
    nodes: NodeGeneration,
    /// Whether the pass may delete the part if it is an orphan.
    pub(super) delete_orphan: bool,
    /// Whether the pass reports all members, not only those that have changed.
    pub(super) report_all: bool,
    /// A refused member keeps its wait: the pass runs earlier, and only for the others to follow the nodes.
    keeps_retry: bool,
}

impl PartTask {
    /// The Service as the pass knows it.
    fn view(&self, id: &ServiceId) -> Option<&Arc<ServiceView>> {
        self.snapshot.service(id)
    }
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
    /// The greatest cause that ended its wait for the next try, since the last pass began.
    ended_wait: Option<Cause>,
    /// The nodes that it follows, by their generation.
    follows: Option<NodeGeneration>,
    status: PartStatus,
    /// The last pass waits for quota that is reserved for users.
    waits_for_quota: bool,
    /// A pass is running.
    running: bool,
    /// The next pass reports all members: one is not served, and the last passes did not report it.
    report_all: bool,
    /// The last plan with a step.
    plan: Option<LastPlan>,
}

impl PartEntry {
    /// Adds a job. Returns the output that runs it. `ends_wait`: also if the part waits for its next try.
    fn request(&mut self, part: &PartKey, job: Job, ends_wait: bool) -> Output {
        job.add_to(&mut self.job);
        if !ends_wait {
            return Output::RunUnlessWaiting(part.clone());
        }
        self.ended_wait = self.ended_wait.max(Some(job.cause));
        Output::Run(part.clone(), job.priority)
    }

    fn is_idle(&self) -> bool {
        self.job.is_none() && !self.running
    }
}

/// The state of the controller.
#[derive(Debug, Default)]
pub(super) struct ControllerState {
    // In order, so that the same changes have the same consequences in every run.
    services: BTreeMap<Name, ServiceEntry>,
    parts: BTreeMap<PartKey, PartEntry>,
    /// The members of each part, by the last discovery.
    members: BTreeMap<PartKey, BTreeSet<Name>>,
    /// The parts of all Services, by the last discovery.
    discovered: Vec<Arc<ServiceParts>>,
    nodes: Nodes,
    orphans: Orphans,
    snapshot: Arc<ClusterSnapshot>,
    snapshot_nodes: NodeGeneration,
    snapshot_is_old: bool,
    /// The snapshot has an older status or older finalizers of a Service. No change follows from them.
    snapshot_status_is_old: bool,
    /// The next discovery, if one is due.
    discovery: Option<Job>,
    /// It looks up all Services.
    discovers_all: bool,
    /// When a discovery that looked up all Services began.
    looked_up_all: Option<Instant>,
    /// The Services that may be due again at a time of their own.
    timed: BTreeSet<Name>,
    /// How many discoveries in a row failed, and when the next one is due.
    failed_discoveries: u32,
    retry_discovery: Option<Instant>,
    /// The last discovery waits for quota that is reserved for users.
    discovery_waits_for_quota: bool,
    /// The nodes of the last discovery that followed a change of nodes.
    discovered_nodes: NodeGeneration,
    /// Since when parts follow the nodes of this generation, while some do not yet.
    following: Option<(Instant, NodeGeneration)>,
    moment: Moment,
    /// All kinds of failures that occurred.
    kinds: HashSet<&'static str>,
    /// Before the first discovery ended, everything existed before this process.
    started: bool,
}

impl ControllerState {
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
    pub(super) fn changed(&mut self, change: ClusterChange, at: Instant) -> Vec<Output> {
        match change {
            ClusterChange::Service(name, Some(now)) => return self.service_changed(name, now, at),
            ClusterChange::Service(name, None) => self.forget(&name, at),
            ClusterChange::Vanished => self.orphans.restart(at),
            ClusterChange::Node(name, node) => {
                self.snapshot_is_old |= self.nodes.apply(&name, node.as_deref(), at);
            }
            ClusterChange::OwnershipTag(tag) => {
                Arc::make_mut(&mut self.snapshot).cluster.ownership_tag = tag;
                self.snapshot_is_old = true;
                self.check_drift(at);
            }
            ClusterChange::Drift => self.check_drift(at),
        }
        Vec::new()
    }

    fn service_changed(&mut self, name: Name, input: ServiceInput, at: Instant) -> Vec<Output> {
        let ServiceInput {
            view,
            claim,
            finalizers,
        } = input;
        let known = self.services.get(&name);
        if known.is_some_and(|entry| entry.view.id != view.id) {
            // Another Service with the same name.
            self.forget(&name, at);
        }
        let after = self.moment.at(at);
        let inherited =
            !self.started && view.wants_load_balancer() && view.has_finalizer() && !view.ingress.is_empty();
        let job = Job::service(Some(after));
        let is_new = !self.services.contains_key(&name);
        let entry = self.services.entry(Arc::clone(&name)).or_insert_with(|| {
            let mut dirty = job;
            if inherited {
                // No user waits for a Service that was served before.
                dirty.priority = Priority::Background;
            }
            let dirty = (claim == Claim::Ours).then_some(dirty);
            let input = ServiceInput {
                view: Arc::clone(&view),
                claim,
                finalizers,
            };
            ServiceEntry::new(input, dirty, inherited)
        });
        // A Service that another controller serves, before and after the change, has no parts.
        let is_ours = entry.is_ours() || claim == Claim::Ours;
        if is_ours && (!entry.view.asks_the_same(&view) || entry.claim != claim) {
            // After our own write, the cloud need not be read again.
            let served = entry.served.iter().map(|served| &served.effects);
            let own = |effects| is_own_writing(&entry.view, &view, effects);
            let own = served.chain([&entry.early]).any(own);
            let after = if own { None } else { job.after };
            Job { after, ..job }.add_to(&mut entry.dirty);
            entry.lost = 0;
            entry.moved = false;
            // If it has the form again in which it was served, its load balancer may have been deleted or changed meanwhile.
            entry.served.take_if(|served| served.view.asks_the_same(&view));
            entry.requeued = None;
        }
        let may_need_cleanup = claim != Claim::Ours && finalizers.needs_cleanup(&view.cleanup(&view));
        if may_need_cleanup && (is_new || entry.claim != claim || !entry.view.asks_the_same(&view)) {
            // Only the cloud shows whether it was ours before this process started.
            entry.former.is_known = false;
            entry.former.is_due = false;
            Job::now(Cause::Service).add_to(&mut self.discovery);
        }
        if entry.view.wants_load_balancer() != view.wants_load_balancer() {
            entry.reported.turn();
        }
        let was_ours = entry.is_ours();
        let was_included = entry.included;
        // A Service without a finalizer of ours has nothing to leave, unless it has a tag.
        let keeps_parts = entry.view.asks_the_same(&view)
            && entry.claim == claim
            && (view.wants_load_balancer() || entry.view.finalizers == view.finalizers);
        entry.early.annotations = lacking(&view, &entry.early);
        if !entry.view.asks_the_same(&view) {
            // They are about the former spec.
            entry.early.conditions.clear();
        }
        if let Some(served) = entry.served.as_mut().filter(|served| served.view.asks_the_same(&view)) {
            // Comparisons with the present view are short then.
            served.view = Arc::clone(&view);
        }
        entry.view = view;
        entry.claim = claim;
        entry.finalizers = finalizers;
        // A Service that another controller served gets our finalizer first.
        entry.included &= was_ours || !entry.is_ours();
        entry.included |= !entry.has_to_wait();
        if entry.included != was_included || (entry.included && !keeps_parts) {
            self.snapshot_is_old = true;
        } else {
            self.snapshot_status_is_old |= entry.included;
        }
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
            self.discovers_all = true;
        }
        for part in entry.parts() {
            self.remove_member(part, name);
        }
    }

    fn check_drift(&mut self, at: Instant) {
        let job = Job::drift(at);
        self.renew_status();
        for entry in self.services.values_mut().filter(|entry| entry.is_ours()) {
            job.add_to(&mut entry.dirty);
        }
        job.add_to(&mut self.discovery);
        self.discovers_all = true;
    }

    /// When the next work is due without a change. `discovers`: a discovery is running or due, and work that only leads to
    /// a discovery waits for it.
    pub(super) fn due(&self, discovers: bool) -> Option<Instant> {
        let nodes = if self.started { self.nodes.due() } else { None };
        if discovers || self.retry_discovery.is_some() {
            let retry = if discovers { None } else { self.retry_discovery };
            return nodes.into_iter().chain(retry).min();
        }
        let timed = self.timed.iter().filter_map(|name| self.services.get(name));
        let again = timed.filter_map(|entry| entry.again).min();
        let all = [nodes, again, self.orphans_due()];
        all.into_iter().flatten().min()
    }

    fn orphans_due(&self) -> Option<Instant> {
        let due = self.orphans.due()?;
        // While passes do not know of every Service, nothing is reported or deleted.
        if self.all_included() { Some(due) } else { None }
    }

    /// Time has passed. If nodes changed and it is time to follow them, runs the parts that do not. While discovery fails,
    /// runs the parts that do not need it.
    pub(super) fn take_due(&mut self, at: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.started && self.nodes.take_due(at) {
            outputs.extend(self.follow_nodes(at));
        }
        if self.failed_discoveries > 0 {
            outputs.extend(self.requeue_known());
        }
        outputs
    }

    /// Runs the parts that do not follow the nodes.
    fn follow_nodes(&mut self, at: Instant) -> Vec<Output> {
        let generation = self.nodes.generation();
        let only_labels = !self.discovered_nodes.is_behind(generation, false);
        if only_labels && !self.services.values().any(|entry| entry.selects_by_labels) {
            return Vec::new();
        }
        let behind: Vec<_> = self.behind(generation).cloned().collect();
        let job = Job::now(Cause::Nodes);
        // A cloud may have parts for each zone.
        job.add_to(&mut self.discovery);
        self.discovers_all = true;
        self.discovered_nodes = generation;
        self.following = self.has_lagging_part(generation).then_some((at, generation));
        let mut outputs = vec![Output::FollowNodes { parts: behind.len() }];
        outputs.extend(behind.iter().map(|part| self.make_dirty(part, job)));
        outputs
    }

    /// Runs the known parts of changed Services while discovery fails. Each change is run once. When discovery works again,
    /// they are run with all others.
    fn requeue_known(&mut self) -> Vec<Output> {
        let mut known = Vec::new();
        for entry in self.services.values_mut() {
            if entry.waits_for_discovery()
                && let Some(job) = entry.dirty
                && entry.requeued != Some(job)
            {
                entry.requeued = Some(job);
                known.extend(entry.parts().map(|part| (part.clone(), job)));
            }
        }
        let run = known.iter();
        run.map(|(part, job)| self.make_dirty(part, *job)).collect()
    }

    /// Parts of load balancers that do not follow the nodes of this generation.
    fn behind(&self, generation: NodeGeneration) -> impl Iterator<Item = &PartKey> {
        let is_behind = move |key: &PartKey, part: &PartEntry| {
            let mut members = self.members_of(key);
            members.any(|(_, entry)| {
                let follows = part.follows;
                entry.view.wants_load_balancer()
                    && follows.is_none_or(|follows| follows.is_behind(generation, entry.selects_by_labels))
            })
        };
        let parts = self.parts.iter();
        let behind = parts.filter(move |(key, part)| is_behind(key, part));
        behind.map(|(key, _)| key)
    }

    /// Whether a part that can follow the nodes does not yet. One in trouble follows them with its next try, and has metrics of
    /// its own.
    fn has_lagging_part(&self, generation: NodeGeneration) -> bool {
        self.behind(generation)
            .filter_map(|key| self.parts.get(key))
            .any(|part| !part.status.fails())
    }

    /// Adds a job to the part. Returns the output that runs it.
    fn make_dirty(&mut self, part: &PartKey, job: Job) -> Output {
        let entry = self.parts.entry(part.clone()).or_default();
        let ends_wait = match job.cause {
            Cause::Service => true,
            // A refused member does not keep the others from following.
            Cause::Nodes => entry.status == PartStatus::Refused || entry.waits_for_quota,
            Cause::Drift => false,
        };
        entry.request(part, job, ends_wait)
    }

    /// Adds a job to a part that comes after one that changed. If it fails, its next try uses what has changed.
    fn make_next_dirty(&mut self, part: &PartKey, job: Job) -> Output {
        let entry = self.parts.entry(part.clone()).or_default();
        let ends_wait = !entry.status.fails();
        entry.request(part, job, ends_wait)
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

    /// Whether a discovery has found the former load balancer of this Service of another controller, or that it has none.
    pub(super) fn is_former_known(&mut self, view: &ServiceView) -> bool {
        let entry = self.entry(&view.id);
        entry.is_some_and(|entry| entry.former.is_known && entry.view.asks_the_same(view))
    }

    /// Whether nothing has to be deleted before the finalizer of this Service of another controller is removed.
    pub(super) fn may_lose_finalizer(&mut self, view: &ServiceView) -> bool {
        self.is_former_known(view) && self.entry(&view.id).is_some_and(|entry| !entry.former.is_due)
    }

    fn entry(&mut self, id: &ServiceId) -> Option<&mut ServiceEntry> {
        let entry = self.services.get_mut(&name(id))?;
        (&entry.view.id == id).then_some(entry)
    }

    /// The next snapshot has the present status of every Service: work that follows no change, such as a retry, may depend on
    /// an address that was known.
    fn renew_status(&mut self) {
        self.snapshot_is_old |= self.snapshot_status_is_old;
    }

    /// The cluster as it is now, one value for one moment. A change of the status or the finalizers alone needs no other one:
    /// with each snapshot, the parts of all Services are computed again.
    fn snapshot(&mut self) -> Arc<ClusterSnapshot> {
        if std::mem::take(&mut self.snapshot_is_old) {
            self.snapshot_status_is_old = false;
            let included = self.services.values().filter(|entry| entry.included);
            let services = included.map(|entry| Arc::clone(&entry.view)).collect();
            let cluster = ClusterView {
                nodes: self.nodes.set(),
                ..self.snapshot.cluster.clone()
            };
            self.snapshot_nodes = self.nodes.generation();
            self.snapshot = Arc::new(ClusterSnapshot::new(services, cluster));
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
        self.requeue_timed(at);
        if self.orphans_due().is_some_and(|due| due <= at) {
            Job::now(Cause::Service).add_to(&mut self.discovery);
            self.discovers_all = true;
        }
        let job = self.discovery.take()?;
        let is_late =
            self.looked_up_all.is_none_or(|last| at.saturating_duration_since(last) >= LOOKS_UP_ALL);
        let all = std::mem::take(&mut self.discovers_all) || is_late;
        let services = if all {
            self.looked_up_all = Some(at);
            None
        } else {
            let dirty = self.services.values().filter(|entry| entry.dirty.is_some());
            Some(dirty.map(|entry| entry.view.id.clone()).collect())
        };
        Some(DiscoveryTask {
            job,
            snapshot: self.snapshot(),
            services,
        })
    }

    /// Makes the Services dirty whose time has come.
    fn requeue_timed(&mut self, at: Instant) {
        let mut renews_status = false;
        self.timed.retain(|name| {
            let Some(entry) = self.services.get_mut(name) else {
                return false;
            };
            if entry.again.take_if(|again| *again <= at).is_some() {
                renews_status = true;
                let job = match entry.lost {
                    0 => Job::now(Cause::Nodes),
                    // Remembered answers did not help.
                    lost => Job::service((lost > LOST_IN_MEMORY).then_some(at)),
                };
                job.add_to(&mut entry.dirty);
                job.add_to(&mut self.discovery);
                self.discovers_all = true;
            }
            entry.again.is_some()
        });
        if renews_status {
            self.renew_status();
        }
    }

    /// Takes a part. `None` if there is nothing to do.
    pub(super) fn take_part(&mut self, key: &PartKey, at: Instant) -> Option<PartTask> {
        let moment = self.moment.at(at);
        let part = self.parts.get_mut(key)?;
        let mut job = part.job.take()?;
        part.running = true;
        let ended_wait = part.ended_wait.take();
        let report_all = std::mem::take(&mut part.report_all);
        let is_own_retry = part.status.is_trouble() && ended_wait.is_none();
        if is_own_retry {
            // The reason may have been an old answer.
            job.after = job.after.max(Some(moment));
        }
        let keeps_retry = ended_wait == Some(Cause::Nodes) && part.status == PartStatus::Refused;
        if is_own_retry {
            self.renew_status();
        }
        // While a Service waits for its finalizer, it may adopt an orphan.
        let permitted = self.orphans.permits(key);
        if permitted && !self.all_included() {
            self.orphans.postpone(key);
        }
        Some(PartTask {
            job,
            delete_orphan: permitted && self.all_included(),
            report_all,
            snapshot: self.snapshot(),
            nodes: self.snapshot_nodes,
            keeps_retry,
        })
    }

    /// Takes a Service object: its differences from the desired content. Of a later form than the last change that came in,
    /// it may be another controller's now.
    pub(super) fn take_object(&mut self, service: &ClaimedService, at: Instant) -> ObjectTask {
        let ClaimedService {
            object,
            claim,
            finalizers,
        } = service;
        let Some(entry) = self.entry(&object.view.id) else {
            return ObjectTask::Nothing;
        };
        // The effects are those of the Service as it was served.
        let served = entry.served.as_ref();
        let current = served.filter(|served| served.view.asks_the_same(&object.view));
        let effects = current.map(|served| &served.effects);
        let mut change = ServiceAction::due(&object.view, *claim, *finalizers, effects);
        if *claim == Claim::Ours {
            change.annotations.extend(lacking(&object.view, &entry.early));
            change.conditions.extend(missing_conditions(&object.view, &entry.early));
        }
        if change.is_empty() {
            entry.reported.not_written = None;
            return ObjectTask::Nothing;
        }
        let mut repeats = 0;
        if let Some(written) = &entry.written
            && written.version == object.meta.resource_version
        {
            let due = written.at + STORE_LAG;
            if written.in_vain && written.change == change {
                return ObjectTask::Nothing;
            }
            if !written.in_vain && at < due {
                return ObjectTask::Later(due);
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

#[cfg(test)]
mod tests;
