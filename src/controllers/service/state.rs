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

mod ended;
mod entry;
mod jobs;
mod status;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Priority,
    controllers::{NodeObject, ServiceObject},
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, OrphanPart, OwnershipTag, PartKey, ProviderFinalizers,
        ServiceEvent, ServiceId, ServiceView,
    },
};
use tokio::time::Instant;

pub(super) use self::jobs::{Cause, Job, Next, PartStatus};
use self::{entry::ServiceEntry, jobs::Moment};
use super::{
    OBJECT_BACKOFF,
    nodes::Nodes,
    object::{ServiceAction, is_own_writing, lacking},
    orphans::Orphans,
};
use crate::{config::OrphanConfig, controllers::node_object::STORE_LAG, server::status::Plan};

/// How often a lost Service is compared with remembered answers of the cloud.
const LOST_IN_MEMORY: u32 = 2;

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
            let served = entry.served.iter().map(|served| &served.effects);
            let own = |effects| is_own_writing(&entry.view, &view, effects);
            let own = served.chain([&entry.early]).any(own);
            let after = job.after.filter(|_| !own);
            Job { after, ..job }.add_to(&mut entry.dirty);
            entry.lost = 0;
            // If it has the form again in which it was served, its load balancer may have been deleted or changed meanwhile.
            entry.served.take_if(|served| served.view.asks_the_same(&view));
            entry.requeued = None;
        }
        if entry.view.wants_load_balancer() != view.wants_load_balancer() {
            entry.reported.turn();
        }
        let was_ours = entry.is_ours();
        entry.early.annotations = lacking(&view, &entry.early);
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
        let mut change = ServiceAction::due(&object.view, *claim, *finalizers, effects);
        if *claim == Claim::Ours {
            change.annotations.extend(lacking(&object.view, &entry.early));
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

#[cfg(test)]
mod tests;
