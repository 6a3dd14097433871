//! Concurrent histories: several workers run passes at once, while the cluster changes.
//!
//! The other laws run one pass after the other. Here, four workers run parts as the service controller does, with snapshots that
//! change during passes, discoveries and renames in between, random pauses at every call of the cloud, failed writes and kills.
//!
//! A history follows from its seed alone. It is generated, and played until no part is due any more:
//!
//! ```text
//!   seed -> ground, snapshots 1..n, moments, faults
//!        -> 4 workers, 1 discovery, 1 cluster that changes -> quiescent -> a new process finds nothing to do
//! ```
//!
//! | Law | Says |
//! |---|---|
//! | ends | no part is due any more |
//! | complete | a process that starts then has no steps |
//! | current | the Services that count as served are those that a new process finds finished |
//! | ordered | no step was sent before the steps that it needs had ended |
//! | polite | no write changed foreign objects or deleted a load balancer or address in use |
//!
//! [`Breakage`] switches off one of the rules of the driver, so that a test can show that the laws find it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::Config,
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Broken, CloudBehavior, Fault, LawEngine, Lawful, MemoryCloud, behavior,
    cloud::Pace,
    drive::{engine, request},
    seeded_runner,
};
use crate::{
    load_balancer::{
        ClusterSnapshot, Discovery, LoadBalancers, MemberReport, MemberState, PartKey, PartReport, PartState,
        ServiceId, ServiceView, StepDescription,
    },
    testkit::seeds::every_seed,
};

/// How many workers run parts.
const WORKERS: usize = 4;
/// The snapshots of a history.
const SNAPSHOTS: usize = 5;
/// The most processes of a history.
const PROCESSES: usize = 3;
/// Passes that take longer than this, in virtual time, wait for each other. Operations are given up earlier.
const LONGEST: Duration = Duration::from_secs(3600);
/// A history that needs more passes never ends.
const MOST_PASSES: usize = 4000;
/// A part that fails so many times in a row is left until something changes.
const MOST_FAILURES: u32 = 8;
/// After a change, parts are discovered again at most so many times.
const MOST_SEARCHES: usize = 2;
/// Rounds over all parts of the process at the end.
const ROUNDS: usize = 20;

/// A rule of the driver that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// Two passes over one part do not wait for each other.
    Lock,
    /// The parts that waited for a pass are not run after it.
    WakeUp,
    /// A Service counts as served although it has changed since the pass began.
    StaleSnapshot,
}

/// Random numbers that follow from a seed.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// `SplitMix64`.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).unwrap_or(1);
        usize::try_from(self.next() % end).unwrap_or_default()
    }

    /// True once in so many times.
    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// A generated history.
struct History<L: Lawful> {
    ground: L::Truth,
    /// The snapshots of the cluster, in order.
    snapshots: Vec<Arc<ClusterSnapshot>>,
    behavior: CloudBehavior,
    /// The failure of one write for each process.
    faults: Vec<Option<(usize, Fault)>>,
    dice: Dice,
}

impl<L: Lawful> History<L> {
    fn new(model: &L, seed: u64) -> Result<Self, Broken> {
        let mut runner = seeded_runner(seed, Config::default());
        let snapshots = proptest::collection::vec(model.clusters().snapshots(), SNAPSHOTS);
        let generated = (snapshots, behavior()).new_tree(&mut runner);
        let (snapshots, behavior) =
            generated.map_err(|reason| broken("generated", reason.to_string()))?.current();
        let name = snapshots.first().map(|snapshot| Arc::clone(&snapshot.cluster.name));
        let mut started = BTreeSet::new();
        let named = snapshots.into_iter().map(|mut snapshot| {
            // A running process has one name.
            snapshot.cluster.name = name.clone().unwrap_or_default();
            snapshot.services.sort_by(|one, other| one.id.cmp(&other.id));
            for service in &mut snapshot.services {
                if service.wants_load_balancer() {
                    started.insert(service.id.clone());
                } else if started.contains(&service.id) && !service.has_finalizer() {
                    // The service controller removes its finalizer when nothing is left.
                    Arc::make_mut(service).finalizers.push(ServiceView::FINALIZER.into());
                }
            }
            Arc::new(snapshot)
        });
        let snapshots = named.collect();
        let mut dice = Dice::new(seed);
        let faults = (0..PROCESSES).map(|_| {
            let faults = [
                Fault::KilledBefore,
                Fault::KilledAfterCommit,
                Fault::KilledAfterReply,
                Fault::NoAnswerDone,
                Fault::NoAnswerNotDone,
                Fault::Unavailable,
                Fault::Busy,
                Fault::Stale,
            ];
            let fault = faults.get(dice.below(2 * faults.len()))?;
            Some((dice.below(12), *fault))
        });
        Ok(Self {
            ground: model.ground(),
            snapshots,
            behavior,
            faults: faults.collect(),
            dice,
        })
    }
}

fn broken(law: &'static str, how: impl Into<String>) -> Broken {
    Broken { law, how: how.into() }
}

/// The state that the workers share, as the service controller has it.
#[derive(Default)]
struct WorkersState {
    snapshot: Arc<ClusterSnapshot>,
    /// Services that have changed since their parts were run.
    dirty: BTreeSet<ServiceId>,
    discovery_due: bool,
    discovering: bool,
    /// The parts of each Service, by the last discovery.
    parts: BTreeMap<ServiceId, BTreeSet<PartKey>>,
    /// Parts that are due, some of them later.
    due: BTreeMap<PartKey, Instant>,
    /// Failures in a row.
    failures: BTreeMap<PartKey, u32>,
    /// Parts with a pass in progress. As in the controller's queue, such a part that is due again waits for the end of the pass.
    running: Vec<PartKey>,
    /// The views of Services that were finished.
    served: BTreeMap<ServiceId, Arc<ServiceView>>,
    passes: usize,
    /// How often parts were discovered again because a Service was not served although nothing was due.
    searches: usize,
    /// The last events, for the report.
    log: Vec<String>,
}

impl WorkersState {
    fn note(&mut self, text: String) {
        self.log.push(text);
    }

    fn run_at(&mut self, part: &PartKey, at: Instant) {
        let due = self.due.entry(part.clone()).or_insert(at);
        *due = at.min(*due);
    }

    fn view(&self, id: &ServiceId) -> Option<&Arc<ServiceView>> {
        let services = &self.snapshot.services;
        let found = services.binary_search_by(|view| view.id.cmp(id)).ok()?;
        services.get(found)
    }

    /// The cluster has changed.
    fn changed(&mut self, snapshot: &Arc<ClusterSnapshot>) {
        let now = Instant::now();
        for view in &snapshot.services {
            if self.view(&view.id).is_none_or(|known| !known.asks_the_same(view)) {
                self.dirty.insert(view.id.clone());
                self.served.remove(&view.id);
            }
        }
        let exists = |id: &ServiceId| snapshot.services.iter().any(|view| view.id == *id);
        self.parts.retain(|id, _| exists(id));
        self.served.retain(|id, _| exists(id));
        self.dirty.retain(exists);
        let nodes: Vec<_> = snapshot.cluster.nodes.eligible().map(|node| node.view.name.clone()).collect();
        let services = snapshot.services.iter().map(|view| {
            let wants = if view.wants_load_balancer() {
                ""
            } else {
                " (leaves)"
            };
            format!("{}{wants}", view.id.name)
        });
        let services: Vec<_> = services.collect();
        self.note(format!("the cluster has Services {services:?}, nodes {nodes:?}"));
        self.snapshot = Arc::clone(snapshot);
        self.discovery_due = true;
        self.searches = 0;
        self.failures.clear();
        // Load balancers follow the nodes.
        let known: Vec<_> = self.parts.values().flatten().cloned().collect();
        for part in known {
            self.run_at(&part, now);
        }
    }

    fn discovered(&mut self, snapshot: &ClusterSnapshot, discovery: Discovery) {
        let now = Instant::now();
        for (view, parts) in snapshot.services.iter().zip(discovery.services) {
            let is_current = self.view(&view.id).is_some_and(|now| now.asks_the_same(view));
            if self.view(&view.id).is_none() {
                continue;
            }
            let all: BTreeSet<_> = parts.joins.iter().chain(&parts.leaves).cloned().collect();
            let is_due = is_current && self.dirty.remove(&view.id);
            let known = self.parts.insert(view.id.clone(), all.clone()).unwrap_or_default();
            for part in &all {
                if is_due || !known.contains(part) {
                    self.run_at(part, now);
                }
            }
            self.note(format!("discovered {}: {all:?}", view.id.name));
            if all.is_empty() && is_current {
                // It has nothing in the cloud.
                self.served.insert(view.id.clone(), Arc::clone(view));
            }
        }
    }

    fn ended(&mut self, snapshot: &ClusterSnapshot, report: &PartReport, breakage: Option<Breakage>) {
        let now = Instant::now();
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        if part != &report.part {
            for parts in self.parts.values_mut() {
                if parts.remove(&report.part) {
                    parts.insert(part.clone());
                }
            }
            if let Some(at) = self.due.remove(&report.part) {
                self.run_at(part, at);
            }
        }
        for member in report.members.iter().filter(|member| member.finished) {
            let services = &snapshot.services;
            let found = services.binary_search_by(|view| view.id.cmp(&member.service)).ok();
            let Some(seen) = found.and_then(|found| services.get(found)) else {
                continue;
            };
            let Some(view) = self.view(&member.service).map(Arc::clone) else {
                continue;
            };
            if breakage == Some(Breakage::StaleSnapshot) {
                self.dirty.remove(&view.id);
                self.served.insert(view.id.clone(), view);
            } else if view.asks_the_same(seen) {
                self.served.insert(view.id.clone(), view);
            }
        }
        let is_refused = |member: &MemberReport| matches!(member.state, MemberState::Refused(_));
        match &report.state {
            PartState::Parked { until, .. } => self.run_at(part, *until),
            PartState::Done | PartState::Blocked(_) if !report.members.iter().any(is_refused) => {
                self.failures.remove(part);
            }
            // The controller also tries a part with a refused member again.
            PartState::Done | PartState::Blocked(_) | PartState::Failed(_) => {
                let failures = self.failures.entry(part.clone()).or_default();
                *failures += 1;
                if *failures < MOST_FAILURES {
                    let wait = Duration::from_millis(50) * *failures;
                    self.run_at(part, now + wait);
                }
            }
        }
        if breakage != Some(Breakage::WakeUp) {
            for next in &report.next {
                self.run_at(next, now);
            }
        }
    }

    /// Whether this part was given up after many failures, or waits for one of its members that was given up elsewhere.
    fn gave_up(&self, part: &PartKey, report: &PartReport) -> bool {
        let mut parts = report.members.iter().filter_map(|member| self.parts.get(&member.service)).flatten();
        self.failures.contains_key(part) || parts.any(|part| self.failures.contains_key(part))
    }

    fn is_idle(&self) -> bool {
        self.due.is_empty() && self.running.is_empty() && !self.discovery_due && !self.discovering
    }

    /// Whether nothing is due any more. If a Service is not served then, its parts are discovered again, as the service
    /// controller does: one that has left may have no part that could report it. If it leaves, its parts are also run again: a
    /// pass with an older form of the Service may have been the last one over a part that it left. Parts that a Service joins
    /// are not, since that would hide a pass that woke up no later one.
    fn is_quiescent(&mut self) -> bool {
        if !self.is_idle() {
            return false;
        }
        let services = self.snapshot.services.iter();
        let lost: Vec<_> = services.filter(|view| !self.served.contains_key(&view.id)).collect();
        if !lost.is_empty() && self.searches < MOST_SEARCHES {
            let leaving = lost.into_iter().filter(|view| !view.wants_load_balancer());
            self.dirty.extend(leaving.map(|view| view.id.clone()));
            self.searches += 1;
            self.discovery_due = true;
            return false;
        }
        true
    }
}

fn described(member: &MemberReport) -> String {
    let state = match &member.state {
        MemberState::Served => "served",
        MemberState::Pending => "pending",
        MemberState::Frozen(_) => "frozen",
        MemberState::Refused(_) => "refused",
        MemberState::Left => "left",
    };
    let end = if member.finished { ", finished" } else { "" };
    format!("{} {state}{end}", member.service.name)
}

/// A process that runs the history.
struct Process<L: Lawful> {
    /// One, or one for each worker if the lock is broken.
    engines: Vec<Arc<LawEngine<L>>>,
    state: Arc<Mutex<WorkersState>>,
    changed: Arc<Notify>,
    breakage: Option<Breakage>,
}

impl<L: Lawful> Clone for Process<L> {
    fn clone(&self) -> Self {
        Self {
            engines: self.engines.clone(),
            state: Arc::clone(&self.state),
            changed: Arc::clone(&self.changed),
            breakage: self.breakage,
        }
    }
}

impl<L: Lawful> Process<L> {
    fn engine(&self, worker: usize) -> Option<Arc<LawEngine<L>>> {
        let at = worker.checked_rem(self.engines.len())?;
        self.engines.get(at).map(Arc::clone)
    }

    /// Runs parts that are due, in any order.
    async fn work(self, worker: usize, mut dice: Dice) {
        let Some(engine) = self.engine(worker) else { return };
        loop {
            let now = Instant::now();
            let (taken, next) = {
                let mut state = self.state.lock();
                let is_free =
                    |part: &PartKey| self.breakage == Some(Breakage::Lock) || !state.running.contains(part);
                let free: Vec<_> = state.due.iter().filter(|(part, _)| is_free(part)).collect();
                let next = free.iter().map(|(_, at)| **at).min();
                let ready: Vec<_> = free.iter().filter(|(_, at)| **at <= now).collect();
                let chosen = ready.get(dice.below(ready.len())).map(|(part, _)| PartKey::clone(part));
                let taken = chosen.map(|part| {
                    state.due.remove(&part);
                    state.running.push(part.clone());
                    state.passes += 1;
                    (part, Arc::clone(&state.snapshot))
                });
                (taken, next)
            };
            let Some((part, snapshot)) = taken else {
                let notified = self.changed.notified();
                match next {
                    Some(at) => tokio::select! {
                        biased;
                        () = notified => {}
                        () = sleep_until(at) => {}
                    },
                    None => notified.await,
                }
                continue;
            };
            let report = engine.run(&part, &request(&snapshot)).await;
            {
                let mut state = self.state.lock();
                // With a broken lock, it may be there twice.
                if let Some(at) = state.running.iter().position(|running| *running == part) {
                    state.running.swap_remove(at);
                }
                state.ended(&snapshot, &report, self.breakage);
                let steps = report.steps.iter().map(|step| step.description.sentence.as_str());
                let steps = steps.collect::<Vec<_>>().join("; ");
                let members = report.members.iter().map(described);
                let members = members.collect::<Vec<_>>().join(", ");
                let end = match &report.state {
                    PartState::Parked { why, .. } => format!("parked, {why}"),
                    state => state.as_str().to_owned(),
                };
                let next = report.next.iter().map(PartKey::as_str).collect::<Vec<_>>();
                state.note(format!("worker {worker} ran {part}: {end} ({members}) [{steps}], next {next:?}"));
            }
            self.changed.notify_waiters();
        }
    }

    /// Discovers parts whenever that is due.
    async fn discover(self) {
        let Some(engine) = self.engine(0) else { return };
        loop {
            let notified = self.changed.notified();
            let snapshot = {
                let mut state = self.state.lock();
                std::mem::take(&mut state.discovery_due).then(|| {
                    state.discovering = true;
                    Arc::clone(&state.snapshot)
                })
            };
            let Some(snapshot) = snapshot else {
                notified.await;
                continue;
            };
            let discovery = engine.discover(&request(&snapshot)).await;
            {
                let mut state = self.state.lock();
                state.discovering = false;
                match discovery {
                    Ok(discovery) => state.discovered(&snapshot, discovery),
                    Err(_) => state.discovery_due = true,
                }
            }
            self.changed.notify_waiters();
        }
    }

    /// Returns when nothing is due any more.
    async fn quiescent(&self) -> Result<(), Broken> {
        let began = Instant::now();
        loop {
            {
                let mut state = self.state.lock();
                if state.is_quiescent() {
                    return Ok(());
                }
                if began.elapsed() > LONGEST {
                    let mut lines = state.log.clone();
                    lines.dedup();
                    let last: Vec<_> = lines.iter().rev().take(20).collect();
                    let (running, due) = (&state.running, &state.due);
                    let how = format!("nothing ends; running {running:?}, due {due:?}; last: {last:?}");
                    return Err(broken("concurrent: ends", how));
                }
                if state.discovery_due {
                    self.changed.notify_waiters();
                }
                if state.passes > MOST_PASSES {
                    let last: Vec<_> = state.log.iter().rev().take(5).collect();
                    return Err(broken("concurrent: ends", format!("the passes never end; last: {last:?}")));
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Plays the history of this seed.
///
/// # Errors
/// If a law is broken.
pub fn play<L: Lawful>(model: &L, seed: u64, breakage: Option<Breakage>) -> Result<(), Broken> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| broken("runtime", error.to_string()))?;
    let history = History::new(model, seed)?;
    runtime
        .block_on(run(model, history, breakage))
        .map_err(|found| broken(found.law, format!("history {seed}: {}", found.how)))
}

async fn run<L: Lawful>(
    model: &L,
    mut history: History<L>,
    breakage: Option<Breakage>,
) -> Result<(), Broken> {
    let cloud = Arc::new(MemoryCloud::new(model.clone(), history.ground.clone(), history.behavior));
    cloud.set_pace(Pace::new(history.dice.clone()));
    let mut snapshots = std::mem::take(&mut history.snapshots).into_iter().peekable();
    let mut current = snapshots.next().unwrap_or_default();
    let faults = std::mem::take(&mut history.faults);
    for fault in faults.into_iter().chain([None]) {
        if let Some((at, fault)) = fault {
            cloud.fail(at, fault);
        }
        let engines = match breakage {
            Some(Breakage::Lock) => WORKERS,
            _ => 1,
        };
        let process = Process {
            engines: (0..engines).map(|_| Arc::new(engine(model, &cloud))).collect(),
            state: Arc::default(),
            changed: Arc::default(),
            breakage,
        };
        process.state.lock().changed(&current);
        let mut tasks = JoinSet::new();
        for worker in 0..WORKERS {
            let dice = Dice::new(history.dice.next());
            tasks.spawn(process.clone().work(worker, dice));
        }
        tasks.spawn(process.clone().discover());
        let is_killed = loop {
            let pause = Duration::from_millis(history.dice.below(40) as u64);
            let waits_for_end = history.dice.one_in(4);
            let settled = async {
                if waits_for_end || snapshots.peek().is_none() {
                    process.quiescent().await
                } else {
                    sleep(pause).await;
                    Ok(())
                }
            };
            tokio::select! {
                biased;
                () = cloud.killed.notified() => break true,
                settled = settled => settled?,
            }
            match snapshots.next() {
                Some(next) => {
                    current = next;
                    process.state.lock().changed(&current);
                    process.changed.notify_waiters();
                }
                None => break false,
            }
        };
        tasks.shutdown().await;
        if !is_killed {
            return check_end(model, &cloud, &process, &current).await;
        }
        cloud.revive();
    }
    Err(broken("generated", "more kills than processes"))
}

/// Checks the laws at the end of a history.
async fn check_end<L: Lawful>(
    model: &L,
    cloud: &Arc<MemoryCloud<L>>,
    process: &Process<L>,
    snapshot: &Arc<ClusterSnapshot>,
) -> Result<(), Broken> {
    if let Some(how) = cloud.foreign_change().or_else(|| cloud.destroyed()) {
        return Err(broken("concurrent: polite", how));
    }
    if let Some(how) = cloud.too_early() {
        return Err(broken("concurrent: ordered", how));
    }
    let end = Arc::new(MemoryCloud::new(model.clone(), cloud.truth(), CloudBehavior::default()));
    let fresh = engine(model, &end);
    let request = request(snapshot);
    let failed = |error: crate::Error| broken("concurrent: complete", error.report());
    let mut finished = BTreeMap::new();
    for _ in 0..ROUNDS {
        let discovery = fresh.discover(&request).await.map_err(failed)?;
        let mut again = false;
        for part in &discovery.parts() {
            let report = fresh.run(part, &request).await;
            let gave_up = process.state.lock().gave_up(part, &report);
            if let Some(step) = report.steps.first().filter(|_| !gave_up) {
                let log = process.state.lock().log.join("\n  ");
                let StepDescription { sentence, reason, .. } = &step.description;
                let members = report.members.iter().map(described).collect::<Vec<_>>().join(", ");
                let how = format!("`{sentence}` of {part} ({members}) is still due: {reason}\n  {log}");
                return Err(broken("concurrent: complete", how));
            }
            again |= !report.next.is_empty();
            finished.extend(report.members.iter().map(|member| (member.service.clone(), member.finished)));
        }
        if !again {
            break;
        }
    }
    let state = process.state.lock();
    for (id, is_finished) in finished {
        let view = state.view(&id);
        let is_served = state.served.get(&id).is_some_and(|served| {
            // The last view for which it was finished.
            view.is_some_and(|view| view.asks_the_same(served))
        });
        let has_failed = !state.failures.is_empty();
        if is_finished != is_served && view.is_some() && !has_failed {
            let log = state.log.join("\n  ");
            let how = format!("{id} counts as served: {is_served}; a new process: {is_finished}\n  {log}");
            return Err(broken("concurrent: current", how));
        }
    }
    Ok(())
}

/// Plays the histories of the first `count` seeds, or as the variables of [`every_seed`] request.
///
/// # Panics
/// If a law is broken; the message contains what the workers did in the first such history, and the seeds of all.
pub fn histories<L: Lawful>(model: &L, count: u64) {
    every_seed(count, |seed| play(model, seed, None).map_err(|broken| broken.to_string()));
}
