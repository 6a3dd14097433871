//! Finding out which parts all Services have: when that is to be done, and what follows from it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ccm_core::{
    Error, Priority,
    load_balancer::{ClusterSnapshot, Discovery, NodeSet, PartKey, ServiceParts, ServiceView},
};
use tokio::time::Instant;

use super::{
    job::{self, Cause, Job},
    ledger::Ledger,
    records::{Order, Part, Record, name},
    tell::Failure,
};

/// Under this name it is kept that parts could not be found out.
const SURVEY: &str = "";

/// A Service that is not served is looked at so often with what is remembered of the cloud.
const LOST_IN_MEMORY: u32 = 2;

impl Ledger {
    /// Parts must be found out anew.
    pub(super) fn want_survey(&mut self, job: Job) {
        job::add(&mut self.survey, job);
    }

    /// If parts must be found out anew: with which answers.
    pub(super) fn survey_wanted(&mut self, at: Instant) -> Option<Job> {
        let job = Job {
            cause: Cause::Service,
            after: None,
            priority: Priority::User,
        };
        for record in self.records.values_mut() {
            if record.again.take_if(|again| *again <= at).is_some() {
                let job = Job {
                    // What is remembered does not help, it seems.
                    after: (record.lost > LOST_IN_MEMORY).then_some(at),
                    ..job
                };
                job::add(&mut record.dirty, job);
                job::add(&mut self.survey, job);
            }
        }
        if self.orphans_due().is_some_and(|due| due <= at) {
            job::add(&mut self.survey, job);
        }
        self.survey
    }

    /// A survey begins: what comes to be wanted from now on is for the next one.
    pub(super) fn begin_survey(&mut self) -> Arc<ClusterSnapshot> {
        self.survey = None;
        self.snapshot()
    }

    /// The parts of all Services are found out, for this world.
    pub(super) fn surveyed(
        &mut self,
        survey: Discovery,
        snapshot: &ClusterSnapshot,
        at: Instant,
    ) -> Vec<Order> {
        let mut due: HashMap<PartKey, Job> = HashMap::new();
        let mut orders = Vec::new();
        let views = snapshot.services.iter();
        for (view, parts) in views.zip(survey.services) {
            let name = name(&parts.service);
            let Some(record) = self.records.get_mut(&name) else {
                continue;
            };
            if record.view.id != parts.service {
                continue;
            }
            if let Some(done) = take_parts(record, view, parts, &mut due) {
                orders.push(done);
            }
        }
        let complete = self.all_included();
        let orphans = self.orphans.listed(survey.orphans, complete, at);
        if !orphans.report.is_empty() {
            orders.push(Order::ReportOrphans(orphans.report));
        }
        for part in orphans.delete {
            let job = Job {
                cause: Cause::Drift,
                after: Some(at),
                priority: Priority::Background,
            };
            due.entry(part).or_insert(job);
        }
        self.index();
        if !std::mem::replace(&mut self.started, true) {
            // Every part is run now, and follows the nodes as they are then.
            self.nodes.forget_changes();
        }
        // In the survey's order: few of them are then run twice.
        let mut ordered: Vec<_> = survey
            .parts
            .iter()
            .filter_map(|part| due.remove_entry(part))
            .collect();
        ordered.extend(due);
        for (part, job) in ordered {
            orders.extend(self.dirty(&part, job));
        }
        orders
    }

    /// The parts could not be found out: whom to tell.
    pub(super) fn survey_failed(&mut self, error: &Error) -> Vec<Order> {
        let failure = Failure::Error(error);
        let part = PartKey::new(SURVEY);
        let nodes = NodeSet::default();
        self.kinds.insert(failure.label());
        self.records
            .values_mut()
            .filter(|record| record.waits_for_discovery())
            .filter_map(|record| failure.tell(record, &part, Cause::Service, &nodes))
            .map(Order::Tell)
            .collect()
    }

    /// Discovery fails: the parts that are known already of changed Services do not wait for it. Each change once; when
    /// discovery works again, they are run with all others.
    pub(super) fn requeue_known(&mut self) -> Vec<Order> {
        let mut known = Vec::new();
        for record in self.records.values_mut() {
            if record.waits_for_discovery() && record.requeued != record.dirty {
                record.requeued = record.dirty;
                let parts = record.parts().cloned();
                known.extend(parts.zip(std::iter::repeat(record.dirty)));
            }
        }
        known
            .into_iter()
            .filter_map(|(part, job)| self.dirty(&part, job?))
            .collect()
    }

    /// Who has to do with which part.
    fn index(&mut self) {
        self.members.clear();
        for (name, record) in &self.records {
            for part in record.parts() {
                self.members
                    .entry(part.clone())
                    .or_default()
                    .push(Arc::clone(name));
            }
        }
        let members = &self.members;
        self.parts
            .retain(|key, part| part.job.is_some() || members.contains_key(key));
        for key in self.members.keys() {
            if !self.parts.contains_key(key) {
                self.parts.insert(key.clone(), Part::default());
            }
        }
    }

    pub(super) fn orphans_due(&self) -> Option<Instant> {
        // While passes do not know of every Service, nothing is reported or deleted.
        self.orphans.due().filter(|_| self.all_included())
    }

    /// Whether passes know of every Service.
    pub(super) fn all_included(&self) -> bool {
        self.records.values().all(|record| record.included)
    }
}

/// Takes over which parts a Service has. Returns an order if that is all there is to do.
fn take_parts(
    record: &mut Record,
    view: &Arc<ServiceView>,
    parts: ServiceParts,
    due: &mut HashMap<PartKey, Job>,
) -> Option<Order> {
    let known: HashSet<_> = record.parts().cloned().collect();
    (record.joins, record.leaves) = (parts.joins, parts.leaves);
    record
        .told
        .retain(|part, _| record.joins.contains(part) || record.leaves.contains(part));
    // If it has changed meanwhile, the next survey is for it.
    let job = if record.view.asks_the_same(view) {
        record.requeued = None;
        record.dirty.take()
    } else {
        None
    };
    let moved = Job {
        cause: Cause::Service,
        after: None,
        priority: Priority::User,
    };
    for part in record.joins.iter().chain(&record.leaves) {
        // A part may be new without any change of the Service: somebody made or deleted something.
        let job = job.or((!known.contains(part)).then_some(moved));
        if let Some(job) = job {
            due.entry(part.clone())
                .and_modify(|due| *due = due.and(job))
                .or_insert(job);
        }
    }
    let nothing = record.joins.is_empty() && record.leaves.is_empty();
    if nothing && record.is_ours() && !record.is_settled() {
        // There is nothing of it, and nothing is to be done for it.
        record.served = Some(Arc::clone(view));
        if view.wants_load_balancer() {
            // Its status is not ours any more.
            record.effects = None;
        }
        record.effects.get_or_insert_default();
        return Some(Order::Object(name(&parts.service)));
    }
    None
}
