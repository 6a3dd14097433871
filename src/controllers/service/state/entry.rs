//! What is known of a Service, and what follows for it from a discovery or a failure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ccm_core::load_balancer::{
    Claim, Effects, NodeSet, PartKey, ProviderFinalizers, ServiceParts, ServiceView,
};
use tokio::time::Instant;

use super::{
    super::{
        events::{Failure, Reported},
        object::ServiceAction,
    },
    Cause, InVain, Job, Output, name,
};

/// What is known of a Service.
#[derive(Debug)]
pub(super) struct ServiceEntry {
    pub(super) view: Arc<ServiceView>,
    pub(super) claim: Claim,
    /// The provider's own finalizers for it.
    pub(super) finalizers: ProviderFinalizers,
    /// Its parts, by the last discovery.
    pub(super) joins: Vec<PartKey>,
    pub(super) leaves: Vec<PartKey>,
    /// Its parts must be discovered and run.
    pub(super) dirty: Option<Job>,
    /// The job that its known parts were run with because discovery failed.
    pub(super) requeued: Option<Job>,
    /// Whether passes know of it. A new one has to wait for its finalizers.
    pub(super) included: bool,
    /// When all that it asked for was done the last time.
    pub(super) served: Option<Served>,
    /// Another process served it before this one started.
    pub(super) inherited: bool,
    /// What was last reported about it.
    pub(super) reported: Reported,
    /// What was last written to the object.
    pub(super) written: Option<Written>,
    /// It is not served and nothing is under way for it: when it is compared again, and how often that was so in a row.
    pub(super) again: Option<Instant>,
    pub(super) lost: u32,
}

/// A Service that was served.
#[derive(Debug)]
pub(super) struct Served {
    /// Its form then.
    pub(super) view: Arc<ServiceView>,
    /// The content of the object that its load balancer asked for.
    pub(super) effects: Effects,
}

/// A patch of a Service object.
#[derive(Debug)]
pub(super) struct Written {
    /// The version of the object in the store.
    pub(super) version: Option<String>,
    pub(super) change: ServiceAction,
    pub(super) at: Instant,
    pub(super) in_vain: InVain,
}

impl ServiceEntry {
    /// A Service that is seen for the first time. `inherited`: another process served it.
    pub(super) fn new(
        (view, claim, finalizers): (Arc<ServiceView>, Claim, ProviderFinalizers),
        dirty: Job,
        inherited: bool,
    ) -> Self {
        Self {
            view,
            claim,
            finalizers,
            joins: Vec::new(),
            leaves: Vec::new(),
            dirty: Some(dirty),
            requeued: None,
            included: false,
            served: None,
            inherited,
            reported: Reported::default(),
            written: None,
            again: None,
            lost: 0,
        }
    }

    /// Whether everything that it asks for is done.
    pub(super) fn is_settled(&self) -> bool {
        self.served
            .as_ref()
            .is_some_and(|served| served.view.asks_the_same(&self.view))
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
        self.included && self.is_ours() && self.dirty.is_some() && !self.is_settled()
    }

    /// Whether it lacks a finalizer of ours. Nothing in the cloud is created for it before it has all of them.
    pub(super) fn has_to_wait(&self) -> bool {
        self.is_ours() && self.view.ingress.is_empty() && !self.finalizers.missing(&self.view).is_empty()
    }

    /// The state as metrics and the status page show it.
    pub(super) fn shown_state(&self) -> &'static str {
        match self.claim {
            Claim::Ours if !self.view.wants_load_balancer() => "leaving",
            Claim::Ours if self.is_settled() => "served",
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
        let only_nodes = cause == Cause::Nodes && self.is_settled();
        let event = failure.event(&self.view, only_nodes.then_some(nodes));
        // A Service that asks for something impossible is refused by each of its parts.
        let is_new = self.reported.fail(part, &failure.report(event.reason));
        is_new.then_some(Output::Event(event))
    }

    /// Takes over the parts that were discovered. Returns what follows if that is all there is to do.
    pub(super) fn take_parts(
        &mut self,
        view: &Arc<ServiceView>,
        parts: ServiceParts,
        due: &mut HashMap<PartKey, Job>,
    ) -> Option<Output> {
        let known: HashSet<_> = self.parts().cloned().collect();
        (self.joins, self.leaves) = (parts.joins, parts.leaves);
        let (joins, leaves) = (&self.joins, &self.leaves);
        self.reported
            .retain(|part| joins.contains(part) || leaves.contains(part));
        // If it has changed meanwhile, the next discovery is for it.
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
                due.entry(part.clone())
                    .and_modify(|due| *due = due.and(job))
                    .or_insert(job);
            }
        }
        if self.parts().next().is_some() || !self.is_ours() || self.is_settled() {
            return None;
        }
        // There is nothing of it, and nothing is to be done for it.
        // If it wants a load balancer, its status is not ours any more.
        let last = self.served.take().filter(|_| !view.wants_load_balancer());
        self.served = Some(Served {
            view: Arc::clone(view),
            effects: last.map(|last| last.effects).unwrap_or_default(),
        });
        Some(Output::Object(name(&parts.service)))
    }
}
