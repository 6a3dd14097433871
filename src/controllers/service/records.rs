//! What is known of a Service, and of a part.

use std::{collections::HashMap, sync::Arc};

use ccm_core::load_balancer::{
    Claim, ClusterSnapshot, Effects, OrphanPart, PartKey, ProviderFinalizers, ServiceId, ServiceView,
};
use tokio::time::Instant;

use super::{
    job::Job,
    object::ObjectChange,
    tell::{Telling, Told},
};
use crate::server::status::Plan;

/// `namespace/name` of a Service.
pub(super) type Name = Arc<str>;

/// What is to be done about news.
#[derive(Debug)]
pub(super) enum Order {
    /// Run the part, whatever it waits for.
    Run(PartKey),
    /// Run the part, unless it waits for its next try.
    RunUnlessWaiting(PartKey),
    /// Look at what the Service object should say.
    Object(Name),
    /// Tell people.
    Tell(Telling),
    /// Report orphans.
    ReportOrphans(Vec<OrphanPart>),
}

/// What is known of a Service.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) view: Arc<ServiceView>,
    pub(super) claim: Claim,
    /// The provider's own finalizers for it.
    pub(super) finalizers: ProviderFinalizers,
    /// Its parts, by the last survey.
    pub(super) joins: Vec<PartKey>,
    pub(super) leaves: Vec<PartKey>,
    /// Its parts must be found out and run.
    pub(super) dirty: Option<Job>,
    /// The job that its known parts were run with because discovery failed.
    pub(super) requeued: Option<Job>,
    /// Whether passes know of it. Those that come new have to wait for their finalizers.
    pub(super) included: bool,
    /// How it looked when all that it asked for was done.
    pub(super) served: Option<Arc<ServiceView>>,
    /// What its load balancer then said about the object.
    pub(super) effects: Option<Effects>,
    /// Somebody served it before this process came.
    pub(super) inherited: bool,
    /// An event said that it is being worked on.
    pub(super) announced: bool,
    /// What people were told, by part.
    pub(super) told: HashMap<PartKey, Told>,
    /// What was last written to the object.
    pub(super) written: Option<Written>,
    /// Why the last write to the object failed.
    pub(super) unwritten: Option<String>,
    /// It is not served and nothing is under way for it: then it is looked at once more.
    pub(super) again: Option<Instant>,
    /// How often that was so in a row.
    pub(super) lost: u32,
}

/// A patch of a Service object.
#[derive(Debug)]
pub(super) struct Written {
    /// The object as it was in the store.
    pub(super) version: Option<String>,
    pub(super) change: ObjectChange,
    pub(super) at: Instant,
    /// The API server says that it changed nothing.
    pub(super) in_vain: bool,
}

impl Record {
    /// Whether everything that it asks for is done.
    pub(super) fn is_settled(&self) -> bool {
        self.served
            .as_ref()
            .is_some_and(|served| served.asks_the_same(&self.view))
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &PartKey> {
        self.joins.iter().chain(&self.leaves)
    }

    /// Whether nodes and drift concern it.
    pub(super) fn is_ours(&self) -> bool {
        self.claim == Claim::Ours
    }

    /// It has changed, and its parts are to be found out.
    pub(super) fn waits_for_discovery(&self) -> bool {
        self.included && self.is_ours() && self.dirty.is_some() && !self.is_settled()
    }

    /// It lacks a finalizer of ours, and nothing in the cloud is created for it before it has all of them.
    pub(super) fn has_to_wait(&self) -> bool {
        self.is_ours() && self.view.ingress.is_empty() && !self.finalizers.missing(&self.view).is_empty()
    }
}

/// What is known of a part.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// It is to be run.
    pub(super) job: Option<Job>,
    /// The nodes that it follows, by their generation.
    pub(super) follows: Option<u64>,
    pub(super) state: State,
    /// A pass is under way.
    pub(super) running: bool,
    /// What was to be done, the last time that there was something.
    pub(super) plan: Option<Plan>,
}

impl Part {
    /// Nothing will happen to it without news.
    pub(super) fn is_idle(&self) -> bool {
        self.job.is_none() && !self.running
    }
}

/// How the last pass over a part ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// There was none.
    #[default]
    New,
    Done,
    /// A member is held back; the others are done.
    Held,
    Parked,
    Blocked,
    Failed,
}

impl State {
    pub(super) const ALL: [Self; 6] = [
        Self::New,
        Self::Done,
        Self::Held,
        Self::Parked,
        Self::Blocked,
        Self::Failed,
    ];

    /// The metric label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Done => "done",
            Self::Held => "held",
            Self::Parked => "parked",
            Self::Blocked => "blocked",
            Self::Failed => "failed",
        }
    }

    /// Whether it is tried again though nothing has changed.
    pub(super) fn is_trouble(self) -> bool {
        matches!(self, Self::Held | Self::Blocked | Self::Failed)
    }
}

/// What a pass is given.
pub(super) struct Task {
    pub(super) job: Job,
    pub(super) snapshot: Arc<ClusterSnapshot>,
    /// The generation of the nodes in it.
    pub(super) nodes: u64,
    /// Whether the pass may delete the part if it is an orphan.
    pub(super) delete_orphan: bool,
}

/// The name under which a Service is kept.
pub(super) fn name(id: &ServiceId) -> Name {
    format!("{}/{}", id.namespace, id.name).into()
}
