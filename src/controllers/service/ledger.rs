//! What is known of every Service and every part, and what follows from news. Pure: no calls, no clock.
//!
//! Level triggered: news only say that something is to be looked at. A Service whose wishes changed makes its parts
//! *dirty*; a pass over a part takes everything that is known at that moment into account, and what came later makes it
//! dirty again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ccm_core::{
    Priority,
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, OwnershipTag, PartKey, ProviderFinalizers, ServiceId,
        ServiceView,
    },
};
use tokio::time::Instant;

use super::{
    job::{self, Cause, Job, Moment},
    nodes::{NodeBoard, NodeNews},
    object::is_own_writing,
    orphans::Orphans,
    records::{Name, Order, Part, Record, State, Task, name},
};
use crate::config::OrphanConfig;

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) records: HashMap<Name, Record>,
    pub(super) parts: HashMap<PartKey, Part>,
    /// Who has to do with a part, by the last survey.
    pub(super) members: HashMap<PartKey, Vec<Name>>,
    pub(super) nodes: NodeBoard,
    pub(super) orphans: Orphans,
    snapshot: Arc<ClusterSnapshot>,
    world_nodes: u64,
    world_is_old: bool,
    /// The parts of Services must be found out anew, with answers after this.
    pub(super) survey: Option<Job>,
    moment: Moment,
    /// All kinds of failures that there were.
    pub(super) kinds: HashSet<&'static str>,
    /// Until the first survey everything was there before this process came.
    pub(super) started: bool,
}

impl Ledger {
    pub(super) fn new(cluster_name: Arc<str>, marks: OwnershipTag, orphans: OrphanConfig) -> Self {
        Self {
            snapshot: Arc::new(ClusterSnapshot {
                services: Vec::new(),
                cluster: ClusterView {
                    name: cluster_name,
                    ownership_tag: marks,
                    ..ClusterView::default()
                },
            }),
            world_is_old: true,
            orphans: Orphans::new(orphans),
            ..Self::default()
        }
    }

    /// The ownership tag of the cluster is known now: every load balancer is compared again.
    pub(super) fn set_marks(&mut self, marks: OwnershipTag, at: Instant) {
        Arc::make_mut(&mut self.snapshot).cluster.ownership_tag = marks;
        self.world_is_old = true;
        self.check_drift(at);
    }

    /// A node is like this now.
    pub(super) fn node_changed(&mut self, news: NodeNews) {
        self.world_is_old |= news != NodeNews::Nothing;
    }

    /// A Service is like this now, whose work it is, and with which finalizers of the provider; `None`: it is gone.
    pub(super) fn service_changed(
        &mut self,
        name: &Name,
        now: Option<(Arc<ServiceView>, Claim, ProviderFinalizers)>,
        at: Instant,
    ) -> Vec<Order> {
        let Some((view, claim, finalizers)) = now else {
            self.forget(name, at);
            return Vec::new();
        };
        if self
            .records
            .get(name)
            .is_some_and(|record| record.view.id != view.id)
        {
            // Another one under the same name.
            self.forget(name, at);
        }
        self.world_is_old = true;
        let after = self.moment.at(at);
        let looks_served = view.wants_load_balancer() && view.has_finalizer() && !view.ingress.is_empty();
        let started = self.started;
        let record = self.records.entry(Arc::clone(name)).or_insert_with(|| Record {
            view: Arc::clone(&view),
            claim,
            finalizers,
            joins: Vec::new(),
            leaves: Vec::new(),
            dirty: Some(Job {
                cause: Cause::Service,
                after: Some(after),
                // Nobody waits for what was there before.
                priority: if looks_served && !started {
                    Priority::Background
                } else {
                    Priority::User
                },
            }),
            requeued: None,
            included: false,
            served: None,
            effects: None,
            inherited: looks_served && !started,
            announced: false,
            told: HashMap::new(),
            written: None,
            unwritten: None,
            again: None,
            lost: 0,
        });
        if !record.view.asks_the_same(&view) || record.claim != claim {
            let own = is_own_writing(&record.view, &view, record.effects.as_ref());
            job::add(
                &mut record.dirty,
                Job {
                    cause: Cause::Service,
                    // What we wrote ourselves tells nothing new about the cloud.
                    after: (!own).then_some(after),
                    priority: Priority::User,
                },
            );
        }
        // What is announced next is something else.
        record.announced &= record.view.wants_load_balancer() == view.wants_load_balancer();
        record.view = view;
        record.claim = claim;
        record.finalizers = finalizers;
        record.included |= !record.has_to_wait();
        if record.included
            && let Some(job) = record.dirty
        {
            job::add(&mut self.survey, job);
        }
        vec![Order::Object(Arc::clone(name))]
    }

    /// The Service is no more.
    fn forget(&mut self, name: &Name, at: Instant) {
        let Some(record) = self.records.remove(name) else {
            return;
        };
        self.world_is_old = true;
        let over = record.is_settled() && !record.view.wants_load_balancer();
        if record.is_ours() && record.included && !over {
            // Its load balancer was not deleted: somebody removed the finalizer, or the API server lost the Service. The next
            // survey lists what became an orphan.
            let job = Job {
                cause: Cause::Service,
                after: Some(self.moment.at(at)),
                priority: Priority::User,
            };
            job::add(&mut self.survey, job);
        }
    }

    /// The cloud should be compared with what it was left like: every part.
    pub(super) fn check_drift(&mut self, at: Instant) {
        let job = Job {
            cause: Cause::Drift,
            after: Some(at),
            priority: Priority::Background,
        };
        for record in self.records.values_mut().filter(|record| record.is_ours()) {
            job::add(&mut record.dirty, job);
        }
        job::add(&mut self.survey, job);
    }

    /// The world as it is now, one value for one moment.
    pub(super) fn snapshot(&mut self) -> Arc<ClusterSnapshot> {
        if std::mem::take(&mut self.world_is_old) {
            let mut services: Vec<_> = self
                .records
                .values()
                .filter(|record| record.included)
                .map(|record| Arc::clone(&record.view))
                .collect();
            services.sort_by(|a, b| a.id.cmp(&b.id));
            self.world_nodes = self.nodes.generation();
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

    /// When something is to be done though nothing is new.
    pub(super) fn due(&self) -> Option<Instant> {
        let again = self.records.values().filter_map(|record| record.again).min();
        let all = [self.nodes_due(), again, self.orphans_due()];
        all.into_iter().flatten().min()
    }

    /// When changed nodes are to be followed.
    pub(super) fn nodes_due(&self) -> Option<Instant> {
        self.nodes.due().filter(|_| self.started)
    }

    /// The part is to be run.
    pub(super) fn dirty(&mut self, part: &PartKey, job: Job) -> Option<Order> {
        let entry = self.parts.entry(part.clone()).or_default();
        job::add(&mut entry.job, job);
        Some(match (job.cause, entry.state) {
            (Cause::Service, _) | (Cause::Nodes, State::Held) => Order::Run(part.clone()),
            _ => Order::RunUnlessWaiting(part.clone()),
        })
    }

    /// If it is time to follow the nodes: the parts that do not.
    pub(super) fn follow_nodes(&mut self, at: Instant) -> Option<Vec<Order>> {
        if !self.started || !self.nodes.take_due(at) {
            return None;
        }
        let generation = self.nodes.generation();
        let job = Job {
            cause: Cause::Nodes,
            after: None,
            priority: Priority::User,
        };
        // A cloud may have parts for each zone.
        job::add(&mut self.survey, job);
        let behind: Vec<_> = self
            .parts
            .iter()
            .filter(|(key, part)| part.follows != Some(generation) && self.has_members_that_want(key))
            .map(|(key, _)| key.clone())
            .collect();
        Some(behind.iter().filter_map(|part| self.dirty(part, job)).collect())
    }

    fn has_members_that_want(&self, part: &PartKey) -> bool {
        self.members_of(part)
            .any(|(_, record)| record.view.wants_load_balancer())
    }

    /// Who has to do with the part.
    pub(super) fn members_of(&self, part: &PartKey) -> impl Iterator<Item = (&Name, &Record)> {
        self.members
            .get(part)
            .into_iter()
            .flatten()
            .filter_map(|name| self.records.get_key_value(name))
    }

    /// The part is taken up. `None` if there is nothing to do.
    pub(super) fn take(&mut self, key: &PartKey, at: Instant) -> Option<Task> {
        let moment = self.moment.at(at);
        let part = self.parts.get_mut(key)?;
        let mut job = part.job.take()?;
        part.running = true;
        if part.state.is_trouble() {
            // What led to it may have been an old answer.
            job.after = job.after.max(Some(moment));
        }
        let delete_orphan = self.permits_deletion(key);
        let snapshot = self.snapshot();
        Some(Task {
            job,
            snapshot,
            nodes: self.world_nodes,
            delete_orphan,
        })
    }

    /// Whether a pass may delete this part as an orphan. Not while a Service waits for its finalizer: it may take it over.
    fn permits_deletion(&mut self, part: &PartKey) -> bool {
        let permitted = self.orphans.permits(part);
        if permitted && !self.all_included() {
            self.orphans.postpone(part);
            return false;
        }
        permitted
    }

    /// Whether the Service is not served, although nothing is under way for it.
    pub(super) fn is_lost(&self, record: &Record) -> bool {
        record.is_ours()
            && record.included
            && record.dirty.is_none()
            && !record.is_settled()
            && record
                .parts()
                .all(|part| self.parts.get(part).is_none_or(Part::is_idle))
    }

    /// A create gave the part another name.
    pub(super) fn rename(&mut self, old: &PartKey, new: &PartKey) {
        let mut part = self.parts.remove(old).unwrap_or_default();
        if let Some(other) = self.parts.remove(new)
            && let Some(job) = other.job
        {
            job::add(&mut part.job, job);
        }
        self.parts.insert(new.clone(), part);
        let members = self.members.remove(old).unwrap_or_default();
        for name in &members {
            let Some(record) = self.records.get_mut(name) else {
                continue;
            };
            for key in record.joins.iter_mut().chain(&mut record.leaves) {
                if key == old {
                    key.clone_from(new);
                }
            }
            if let Some(told) = record.told.remove(old) {
                record.told.insert(new.clone(), told);
            }
        }
        let known = self.members.entry(new.clone()).or_default();
        for name in members {
            if !known.contains(&name) {
                known.push(name);
            }
        }
    }

    pub(super) fn record(&mut self, id: &ServiceId) -> Option<&mut Record> {
        self.records
            .get_mut(&name(id))
            .filter(|record| &record.view.id == id)
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
