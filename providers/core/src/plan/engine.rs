//! The engine: it runs passes, one at a time for each part, and has the state that they share.

use std::{collections::HashMap, fmt, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    time::Instant,
};
use tracing::{Instrument, info_span};

use super::{
    discovery::DiscoveredParts,
    key::PartKind,
    memory::Memory,
    metrics::{PlanMetrics, Share},
    model::{PartCloud, PartModel},
    pass::{DryRun, Pass},
    record::PartRecord,
};
use crate::{
    Error, ErrorKind, Result,
    load_balancer::{
        Claim, ClusterSnapshot, Discovery, LoadBalancers, PartKey, PartReport, PartState, ProviderFinalizers,
        ReadOptions, Request, ServiceId, ServiceView,
    },
};

/// A dry run ends after this many rounds over all parts.
const ROUNDS: usize = 12;

/// Parts by their keys, each with the lock of its one writer.
type PartRecords<M, C> = HashMap<<M as PartModel>::Key, SharedPartRecord<M, C>>;
type SharedPartRecord<M, C> = Arc<AsyncMutex<PartRecord<M, <C as PartCloud<M>>::Ticket>>>;

/// Carries out a [`PartModel`] on a [`PartCloud`]; see the [module](super).
pub struct Engine<M: PartModel, C: PartCloud<M>> {
    pub(super) model: M,
    pub(super) cloud: Arc<C>,
    pub(super) metrics: PlanMetrics,
    memory: Mutex<Memory<M>>,
    records: Mutex<PartRecords<M, C>>,
    discovery: Mutex<Option<Arc<DiscoveredParts<M>>>>,
    /// The contribution of each part to the gauges since its last pass.
    shares: Mutex<HashMap<M::Key, Share>>,
}

/// A discovery that reads. It also ends if its future is dropped.
struct Reading<'a, M: PartModel> {
    memory: &'a Mutex<Memory<M>>,
    number: u64,
}

impl<'a, M: PartModel> Reading<'a, M> {
    fn begin(memory: &'a Mutex<Memory<M>>) -> Self {
        let number = memory.lock().begin_discovery();
        Self { memory, number }
    }
}

impl<M: PartModel> Drop for Reading<'_, M> {
    fn drop(&mut self) {
        self.memory.lock().end_discovery(self.number);
    }
}

impl<M: PartModel, C: PartCloud<M>> Engine<M, C> {
    /// An engine without state.
    #[must_use]
    pub fn new(model: M, cloud: Arc<C>, metrics: PlanMetrics) -> Self {
        Self {
            model,
            cloud,
            metrics,
            memory: Mutex::default(),
            records: Mutex::default(),
            discovery: Mutex::default(),
            shares: Mutex::default(),
        }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The calls.
    #[must_use]
    pub fn cloud(&self) -> &C {
        &self.cloud
    }

    /// The parts of each Service. Computed again only if the snapshot, the listings or a key has changed.
    pub(super) async fn discovered(
        &self,
        snapshot: &Arc<ClusterSnapshot>,
        read: ReadOptions,
        memory: &Mutex<Memory<M>>,
    ) -> Result<Arc<DiscoveredParts<M>>> {
        // A key that is replaced meanwhile stays valid for the listings that are being read.
        let reading = Reading::begin(memory);
        let directory = self.cloud.directory(read).await?;
        Ok(self.in_directory(snapshot, &directory, memory, reading.number))
    }

    /// The parts of each Service by the last listings that could be read, for a pass over a part that was known then. Before
    /// the pass creates or deletes, it reads the part.
    pub(super) fn last_discovered(
        &self,
        key: &M::Key,
        snapshot: &Arc<ClusterSnapshot>,
    ) -> Option<Arc<DiscoveredParts<M>>> {
        let last = self.discovery.lock().clone();
        let last = last.filter(|last| last.knows(key))?;
        // Keys that were replaced since the first discovery are valid for these listings.
        Some(self.in_directory(snapshot, &last.directory, &self.memory, 0))
    }

    /// The parts of each Service by these listings, which a discovery with this number read.
    fn in_directory(
        &self,
        snapshot: &Arc<ClusterSnapshot>,
        directory: &Arc<M::Directory>,
        memory: &Mutex<Memory<M>>,
        number: u64,
    ) -> Arc<DiscoveredParts<M>> {
        let mut last = self.discovery.lock();
        let mut now = memory.lock();
        if let Some(discovery) = &*last
            && discovery.is_current(snapshot, directory, &now)
        {
            return Arc::clone(discovery);
        }
        let discovery = DiscoveredParts::new(&self.model, snapshot, directory, &mut now, number);
        let discovery = Arc::new(discovery);
        drop(now);
        *last = Some(Arc::clone(&discovery));
        drop(last);
        self.forget_idle(&discovery);
        discovery
    }

    /// Drops the records of parts without members.
    fn forget_idle(&self, discovery: &DiscoveredParts<M>) {
        self.records.lock().retain(|key, record| {
            discovery.knows(key)
                || Arc::strong_count(record) > 1
                || !record.try_lock().is_ok_and(|record| record.is_idle())
        });
        self.shares.lock().retain(|key, share| {
            let keep = discovery.knows(key);
            if !keep {
                self.update_gauges(key, *share, Share::default());
            }
            keep
        });
    }

    fn update_gauges(&self, key: &M::Key, before: Share, now: Share) {
        self.metrics.share(self.model.provider(), key.kind(), before, now);
    }

    fn parse(&self, part: &PartKey) -> Result<M::Key> {
        part.as_str().parse().map_err(|_| {
            Error::new(ErrorKind::Unexpected, "unknown part").with_context("part", part.as_str())
        })
    }

    fn part_record(&self, key: &M::Key) -> SharedPartRecord<M, C> {
        Arc::clone(self.records.lock().entry(key.clone()).or_default())
    }

    /// The record of a part, if no pass runs over it.
    pub(super) fn try_part_record(&self, key: &M::Key) -> Option<OwnedMutexGuard<PartRecord<M, C::Ticket>>> {
        self.part_record(key).try_lock_owned().ok()
    }

    /// Waits until no other pass runs over the part. Its key may change meanwhile.
    async fn take(&self, key: M::Key) -> (M::Key, OwnedMutexGuard<PartRecord<M, C::Ticket>>) {
        let mut key = self.memory.lock().current(&key);
        loop {
            let record = self.part_record(&key).lock_owned().await;
            let current = self.memory.lock().current(&key);
            if current == key {
                return (key, record);
            }
            key = current;
        }
    }

    async fn run_part(&self, part: &PartKey, request: &Request) -> PartReport {
        let key = match self.parse(part) {
            Ok(key) => key,
            Err(error) => return PartReport::failed(part.clone(), error),
        };
        let (key, record) = self.take(key).await;
        let mut pass = Pass::new(self, request, &self.memory, None, key.clone(), record);
        let state = pass.run().await;
        let (now, report) = pass.report(part.clone(), state);
        self.pass_ended(&key, &now, &report);
        report
    }

    fn pass_ended(&self, before: &M::Key, key: &M::Key, report: &PartReport) {
        let kind = key.kind();
        self.metrics.pass_ended(self.model.provider(), kind, report.state.as_str());
        let share = Share {
            parked: matches!(report.state, PartState::Parked { .. }),
            failing: matches!(report.state, PartState::Failed(_) | PartState::Blocked(_)),
            differences: report.blocked.len(),
        };
        let mut shares = self.shares.lock();
        let old = shares.remove(before).unwrap_or_default();
        self.update_gauges(key, old, share);
        // A pass found the part in a listing under its new key while its creation was in progress.
        let replaced = shares.insert(key.clone(), share).unwrap_or_default();
        self.update_gauges(key, replaced, Share::default());
    }

    /// Runs every part as a dry run, round after round, until a round has no steps.
    async fn dry_run(&self, request: &Request, only: Option<&ServiceId>) -> Result<Vec<PartReport>> {
        // Without the engine's state: the plan is that of a process that has just started.
        let memory = Mutex::new(Memory::default());
        let dry_run = DryRun::<M>::default();
        let discovery = self.discovered(&request.snapshot, request.read, &memory).await?;
        let mut keys = discovery.keys();
        if let Some(only) = only {
            let entry = discovery.entry(only);
            keys.retain(|key| {
                entry.is_some_and(|entry| entry.joins.contains(key) || entry.traces.contains(key))
            });
        }
        let mut plans: Vec<PartReport> = Vec::new();
        for _ in 0..ROUNDS {
            let before = memory.lock().version;
            let mut steps = 0;
            let mut earlier = std::mem::take(&mut plans).into_iter();
            for key in &keys {
                let record = Arc::new(AsyncMutex::new(PartRecord::default())).lock_owned().await;
                let mut pass = Pass::new(self, request, &memory, Some(&dry_run), key.clone(), record);
                let state = pass.run().await;
                let (_, mut report) = pass.report(PartKey::new(key.to_string()), state);
                steps += report.steps.len();
                if let Some(plan) = earlier.next() {
                    report.steps.splice(0..0, plan.steps);
                }
                plans.push(report);
            }
            if steps == 0 && memory.lock().version == before {
                break;
            }
        }
        if let Some(only) = only {
            // Services that share a part with it have no complete plan: only that part was run.
            plans.iter_mut().for_each(|plan| plan.keep_only(only));
        }
        Ok(plans)
    }
}

#[async_trait]
impl<M: PartModel, C: PartCloud<M>> LoadBalancers for Engine<M, C> {
    fn claims(&self, service: &ServiceView) -> Claim {
        self.model.claims(service)
    }

    fn classes(&self) -> &[&'static str] {
        self.model.classes()
    }

    fn finalizers(&self, service: &ServiceView) -> ProviderFinalizers {
        self.model.finalizers(service)
    }

    async fn discover(&self, request: &Request) -> Result<Discovery> {
        let discovery = self.discovered(&request.snapshot, request.read, &self.memory).await?;
        Ok(discovery.public())
    }

    async fn run(&self, part: &PartKey, request: &Request) -> PartReport {
        let span = info_span!("part", provider = self.model.provider(), part = %part);
        let began = Instant::now();
        let report = self.run_part(part, request).instrument(span).await;
        self.cloud.pass_ended(began, &report);
        report
    }

    async fn plan(&self, request: &Request, only: Option<&ServiceId>) -> Result<Vec<PartReport>> {
        let span = info_span!("plan", provider = self.model.provider());
        self.dry_run(request, only).instrument(span).await
    }
}

impl<M: PartModel, C: PartCloud<M>> fmt::Debug for Engine<M, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("provider", &self.model.provider()).finish_non_exhaustive()
    }
}
