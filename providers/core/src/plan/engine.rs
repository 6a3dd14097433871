//! The engine: it runs passes, one at a time for each part, and has the state that they share.

use std::{collections::HashMap, fmt, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    time::Instant,
};
use tracing::{Instrument, debug, info_span};

use super::{
    discovery::DiscoveredPart,
    index::{PartIndex, ReadListings, Scope},
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
        Claim, ClusterSnapshot, Discovery, FormerLoadBalancer, LoadBalancers, PartKey, PartReport, PartState,
        ProviderFinalizers, Request, ServiceId, ServiceView,
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
    /// The contribution of each part to the gauges since its last pass.
    shares: Mutex<HashMap<M::Key, Share>>,
    /// The answers of the cloud about former load balancers that the listings do not prove to be this cluster's.
    former: Mutex<HashMap<ServiceId, FormerAnswer<M>>>,
}

/// An answer of the cloud about the former load balancer of a Service.
struct FormerAnswer<M: PartModel> {
    /// The Service and the listings with which the cloud was asked. With others, it is asked again.
    view: Arc<ServiceView>,
    directory: Arc<M::Directory>,
    former: FormerLoadBalancer,
}

/// A discovery, or a pass with the listings that it has read: keys that were replaced since then stay valid for it. It also ends
/// if its future is dropped.
pub(super) struct Reading<'a, M: PartModel> {
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
            shares: Mutex::default(),
            former: Mutex::default(),
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

    /// Reads the listings, and finds the members of a part.
    pub(super) async fn discover_part<'a>(
        &self,
        key: &M::Key,
        request: &Request,
        memory: &'a Mutex<Memory<M>>,
    ) -> Result<(DiscoveredPart<M>, Reading<'a, M>)> {
        // Orphans follow from the listings and all Services.
        let scope = if request.delete_orphan {
            Scope::All
        } else {
            Scope::Part(key)
        };
        let reading = Reading::begin(memory);
        let part = self.update_index(request, &reading, &scope, |index, _| index.part(key)).await?;
        Ok((part, reading))
    }

    /// Reads the listings, and computes the parts of the Services that have changed. The result is of the index, and of whether
    /// all Services are of these listings.
    async fn update_index<T>(
        &self,
        request: &Request,
        reading: &Reading<'_, M>,
        scope: &Scope<'_, M::Key>,
        result: impl FnOnce(&PartIndex<M>, bool) -> T,
    ) -> Result<T> {
        let read = ReadListings {
            snapshot: Arc::clone(&request.snapshot),
            directory: self.cloud.directory(request.read).await?,
            number: reading.number,
        };
        let mut memory = reading.memory.lock();
        let (index, is_whole) = memory.update_index(&self.model, &read, scope);
        Ok(result(index, is_whole))
    }

    /// The members of a part by the last listings that could be read, for a pass over a part that was known then. Before the
    /// pass creates or deletes, it reads the part.
    pub(super) fn last_discovered(
        &self,
        key: &M::Key,
        snapshot: &Arc<ClusterSnapshot>,
    ) -> Option<DiscoveredPart<M>> {
        let mut memory = self.memory.lock();
        let last = memory.index.as_ref().filter(|last| last.knows(key))?;
        let read = ReadListings {
            snapshot: Arc::clone(snapshot),
            directory: Arc::clone(&last.directory),
            // Keys that were replaced since the first discovery are valid for these listings.
            number: 0,
        };
        let (index, _) = memory.update_index(&self.model, &read, &Scope::Part(key));
        Some(index.part(key))
    }

    /// Asks the cloud about former load balancers that the listings do not prove to be this cluster's.
    async fn prove_former(
        &self,
        discovery: &mut Discovery,
        directory: &Arc<M::Directory>,
        request: &Request,
    ) {
        let mut answers = HashMap::new();
        for parts in &mut discovery.services {
            let Some(former @ FormerLoadBalancer::Unproven { .. }) = &parts.former else {
                continue;
            };
            let Some(view) = request.snapshot.service(&parts.service) else {
                continue;
            };
            let known =
                self.former.lock().remove(&view.id).filter(|known| {
                    Arc::ptr_eq(&known.view, view) && Arc::ptr_eq(&known.directory, directory)
                });
            let proven = match known {
                Some(known) => known.former,
                None => {
                    let cluster = &request.snapshot.cluster;
                    let cleanup = view.cleanup(view);
                    match self.cloud.prove_former(&cleanup, cluster, former.clone(), request.read).await {
                        Ok(proven) => proven,
                        Err(error) => {
                            let error = error.report();
                            debug!(service = %view.id, error, "Could not look for the owner of a load balancer");
                            continue;
                        }
                    }
                }
            };
            let answer = FormerAnswer {
                view: Arc::clone(view),
                directory: Arc::clone(directory),
                former: proven.clone(),
            };
            answers.insert(view.id.clone(), answer);
            Arc::make_mut(parts).former = Some(proven);
        }
        *self.former.lock() = answers;
    }

    /// Drops the records of parts without members.
    fn forget_idle(&self, index: &PartIndex<M>) {
        self.records.lock().retain(|key, record| {
            index.knows(key)
                || Arc::strong_count(record) > 1
                || !record.try_lock().is_ok_and(|record| record.is_idle())
        });
        self.shares.lock().retain(|key, share| {
            let keep = index.knows(key);
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
        self.memory.lock().snapshot_begins(&request.snapshot);
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
        let keys_of = |index: &PartIndex<M>, _| {
            let mut keys = index.keys();
            if let Some(only) = only {
                let entry = index.entry(only);
                keys.retain(|key| entry.is_some_and(|entry| entry.is_member(key)));
            }
            keys
        };
        let keys = self.update_index(request, &Reading::begin(&memory), &Scope::All, keys_of).await?;
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
        self.memory.lock().snapshot_begins(&request.snapshot);
        let scope = request.services.as_ref().map_or(Scope::All, Scope::Services);
        let discovered = |index: &PartIndex<M>, is_whole| {
            if is_whole {
                self.forget_idle(index);
            }
            (index.public(is_whole), Arc::clone(&index.directory))
        };
        let reading = Reading::begin(&self.memory);
        let (mut discovery, directory) = self.update_index(request, &reading, &scope, discovered).await?;
        drop(reading);
        self.prove_former(&mut discovery, &directory, request).await;
        Ok(discovery)
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
