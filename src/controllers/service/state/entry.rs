//! The state of a Service, and the consequences of a discovery or a failure for it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Weak},
};

use ccm_core::load_balancer::{
    Claim, ClusterSnapshot, Effects, FormerLoadBalancer, NodeSet, PartKey, ProviderFinalizers, ServiceParts,
    ServiceView,
};
use tokio::time::Instant;

use super::{
    super::{
        events::{Failure, Reported},
        former::{self, FormerCheck},
        object::ServiceAction,
    },
    Cause, Job, Output, ServiceInput, name,
};

/// The state of a Service.
#[derive(Debug)]
pub(super) struct ServiceEntry {
    pub(super) view: Arc<ServiceView>,
    pub(super) claim: Claim,
    /// The provider's own finalizers for it.
    pub(super) finalizers: ProviderFinalizers,
    /// Its parts, by the last discovery.
    pub(super) joins: Vec<PartKey>,
    pub(super) leaves: Vec<PartKey>,
    /// Whether it follows changed labels of nodes, by the last discovery.
    pub(super) selects_by_labels: bool,
    /// Its parts must be discovered and run.
    pub(super) dirty: Option<Job>,
    /// The job that its known parts were run with because discovery failed.
    pub(super) requeued: Option<Job>,
    /// A pass over one of its parts did not find it there: its parts were discovered again.
    pub(super) moved: bool,
    /// Whether passes know of it. A new one has to wait for its finalizers.
    pub(super) included: bool,
    /// How it was served the last time.
    pub(super) served: Option<Served>,
    /// Annotations that it lacks, of an object that the cloud has begun to create.
    pub(super) early: Effects,
    /// Another process served it before this one started.
    pub(super) inherited: bool,
    /// The events that were last reported about it.
    pub(super) reported: Reported,
    /// The snapshot whose nodes its load balancer had when this was last published.
    pub(super) updated_for: Weak<ClusterSnapshot>,
    /// The last write of the object.
    pub(super) written: Option<WrittenObject>,
    /// If it is not served and no work runs for it, or if a difference is blocked: when it is compared again.
    pub(super) again: Option<Instant>,
    /// How many times in a row that was so.
    pub(super) lost: u32,
    /// The load balancer that it had before another controller became responsible for it.
    pub(super) former: FormerCheck,
}

/// A Service that was served.
#[derive(Debug)]
pub(super) struct Served {
    /// Its form at that time.
    pub(super) view: Arc<ServiceView>,
    /// The desired content of the object, from its load balancer.
    pub(super) effects: Effects,
}

/// A patch of a Service object.
#[derive(Debug)]
pub(super) struct WrittenObject {
    /// The version of the object in the store.
    pub(super) version: Option<String>,
    pub(super) change: ServiceAction,
    pub(super) at: Instant,
    /// [`ObjectWrite::repeats`](super::ObjectWrite::repeats).
    pub(super) repeats: u32,
    /// Whether the API server's answer shows no change.
    pub(super) in_vain: bool,
}

impl ServiceEntry {
    /// A Service that is observed for the first time. `inherited`: another process served it.
    pub(super) fn new(input: ServiceInput, dirty: Option<Job>, inherited: bool) -> Self {
        Self {
            view: input.view,
            claim: input.claim,
            finalizers: input.finalizers,
            joins: Vec::new(),
            leaves: Vec::new(),
            selects_by_labels: false,
            dirty,
            requeued: None,
            moved: false,
            included: false,
            served: None,
            early: Effects::default(),
            inherited,
            reported: Reported::default(),
            updated_for: Weak::new(),
            written: None,
            again: None,
            lost: 0,
            former: FormerCheck::default(),
        }
    }

    /// Whether its load balancer is as desired.
    pub(super) fn is_served(&self) -> bool {
        let is_same =
            |served: &Served| Arc::ptr_eq(&served.view, &self.view) || served.view.asks_the_same(&self.view);
        self.served.as_ref().is_some_and(is_same)
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &PartKey> {
        self.joins.iter().chain(&self.leaves)
    }

    /// Whether nodes and drift concern it.
    pub(super) fn is_ours(&self) -> bool {
        self.claim == Claim::Ours
    }

    /// Whether it has changed and its parts are to be discovered.
    pub(super) fn waits_for_discovery(&self) -> bool {
        self.included && self.is_ours() && self.dirty.is_some() && !self.is_served()
    }

    /// Whether it lacks a finalizer of ours. Nothing in the cloud is created for it before it has all of them.
    pub(super) fn has_to_wait(&self) -> bool {
        self.is_ours() && self.view.ingress.is_empty() && !self.finalizers.missing(&self.view).is_empty()
    }

    /// The state as metrics and the status page show it.
    pub(super) fn shown_state(&self) -> &'static str {
        match self.claim {
            Claim::Ours if !self.view.wants_load_balancer() => "leaving",
            Claim::Ours if self.is_served() => "served",
            Claim::Ours => "pending",
            Claim::Elsewhere | Claim::NotOurs => "foreign",
        }
    }

    /// Reports a failure: the event, if it is new.
    pub(super) fn fail(
        &mut self,
        failure: &Failure<'_>,
        part: &PartKey,
        cause: Cause,
        nodes: &NodeSet,
    ) -> Option<Output> {
        let only_nodes = cause == Cause::Nodes && self.is_served();
        let event = failure.event(&self.view, only_nodes.then_some(nodes));
        // An invalid Service is refused by each of its parts.
        let is_new = self.reported.fail(part, &failure.report(event.reason));
        is_new.then_some(Output::Event(event))
    }

    /// Applies what a discovery found of its former load balancer.
    pub(super) fn apply_former(
        &mut self,
        view: &ServiceView,
        former: Option<&FormerLoadBalancer>,
        at: Instant,
    ) -> Vec<Output> {
        // If it has changed meanwhile, the next discovery finds it.
        if self.is_ours() || !self.view.asks_the_same(view) {
            return Vec::new();
        }
        let mut outputs = Vec::new();
        if !std::mem::replace(&mut self.former.is_known, true) {
            // The object waited for the discovery.
            outputs.push(Output::Object(name(&view.id)));
        }
        self.former.is_due = former.is_some_and(|former| former::is_due(view, former));
        let Some(former) = former else { return outputs };
        if self.former.is_due {
            outputs.push(Output::CleanUp(name(&view.id)));
            return outputs;
        }
        if *former == FormerLoadBalancer::Missing && !view.wants_load_balancer() {
            // The other controller may be about to remove the finalizer.
            let since = *self.former.missing_since.get_or_insert(at);
            let due = since + former::REPORT_AFTER;
            if at < due {
                self.again = Some(due);
                return outputs;
            }
        }
        let event = former::event(view, self.claim, former);
        outputs.extend(self.former.report(event).map(Output::Event));
        outputs
    }

    /// Applies the parts that were discovered. Returns the output if no part has work.
    pub(super) fn apply_parts(
        &mut self,
        view: &Arc<ServiceView>,
        parts: &ServiceParts,
        due: &mut BTreeMap<PartKey, Job>,
    ) -> Option<Output> {
        let is_unchanged = self.joins == parts.joins
            && self.leaves == parts.leaves
            && self.selects_by_labels == parts.selects_by_labels;
        if is_unchanged && self.dirty.is_none() && self.requeued.is_none() && self.parts().next().is_some() {
            return None;
        }
        self.moved &= is_unchanged;
        let known: HashSet<_> = self.parts().cloned().collect();
        self.joins.clone_from(&parts.joins);
        self.leaves.clone_from(&parts.leaves);
        self.selects_by_labels = parts.selects_by_labels;
        let (joins, leaves) = (&self.joins, &self.leaves);
        self.reported.retain(|part| joins.contains(part) || leaves.contains(part));
        // If it has changed meanwhile, the next discovery handles the change.
        let job = if self.view.asks_the_same(view) {
            self.requeued = None;
            self.dirty.take()
        } else {
            None
        };
        for part in self.parts() {
            // A part may be new without any change of the Service: another client created or deleted something.
            let moved = (!known.contains(part)).then_some(Job::now(Cause::Service));
            if let Some(job) = job.or(moved) {
                due.entry(part.clone()).and_modify(|due| *due = due.and(job)).or_insert(job);
            }
        }
        if self.parts().next().is_some() || !self.is_ours() || self.is_served() {
            return None;
        }
        // It has no parts and needs none. If it wants a load balancer, another controller writes its status.
        let effects = match self.served.take() {
            Some(last) if !view.wants_load_balancer() => last.effects,
            _ => Effects::default(),
        };
        self.served = Some(Served {
            view: Arc::clone(view),
            effects,
        });
        Some(Output::Object(name(&parts.service)))
    }
}
