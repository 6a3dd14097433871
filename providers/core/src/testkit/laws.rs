//! Laws of load balancer models, as property tests for every provider.
//!
//! | Law | Says |
//! |---|---|
//! | [`converges`] | from any state of the cloud the engine reaches a state without steps; then a Service without blocked differences or errors has the same objects as alone in a new cloud, and one that has left has none; no load balancer or address was deleted while members stay |
//! | [`effective`] | every setting of a Service changes its objects |
//! | [`quiet`] | a settled state is stable: after a restart, nothing is written or planned, and the results for all Services are the same |
//! | [`restartable`] | killed or cut off at any write (before it is sent, after it is carried out, after the reply), the next process reaches the same state as without the failure: without duplicates and leftovers |
//! | [`reclaimable`] | killed at any write, or failed by the cloud, while parts are being built: deleting the Services then leaves no more objects than without the failure |
//! | [`polite`] | no write changes foreign objects |
//! | ordered | no step is sent before the steps that it needs have ended, in a cloud in which changes occupy [objects](AcceptedChange::OccupiesObjects); checked with `converges` and `restartable` |
//! | [`predictable`] | a dry run plans exactly the steps that are then carried out |
//!
//! The laws run the real [`Engine`] against a cloud in memory, which applies changes with the model's own
//! [`fold`](PartModel::fold). So they check the model and the engine, not the provider's calls, which other tests check
//! with a simulator and a real cloud.
//!
//! A provider implements [`Lawful`]: the contents of such a cloud, the edits by other clients, and the ports, annotations
//! and fields of Services that vary. The rest is generated: clusters that build and are killed meanwhile, edits by other
//! clients, then clusters that must reconcile the result.
//!
//! ```text
//!   Case { ground, built, edits } -> truth -> Engine<Model, MemoryCloud> --fold--> truth'
//!          worlds, behavior                      ^ killed, restarted      picture
//! ```
//!
//! These laws run one pass after the other. [`concurrent`] runs several at once. [`shared`] has the laws of parts that many
//! Services share, and [`neighbors`] is the law of objects that have no place for an ownership tag.
//!
//! [`laws`] checks all laws on cases that follow from seeds, and shrinks a case that breaks one. [`objects`] has the world of a cloud that consists of
//! [`Objects`](crate::plan::objects::Objects).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};

use crate::{
    load_balancer::{ClusterView, ServiceId, ServiceView, default_name},
    plan::{Engine, Member, PartModel},
    testkit::seeds::every_seed,
};

mod cases;
mod checks;
mod cloud;
mod clusters;
pub mod concurrent;
mod drive;
mod neighbors;
pub mod objects;
mod operations;
pub mod shared;

pub use cases::{Case, Edit, cases, pick, remove};
pub use checks::{built, check, converges, effective, polite, predictable, quiet, reclaimable, restartable};
pub use cloud::{Fault, Ids, MemoryCloud};
pub use clusters::{Clusters, SERVICES, Setting, other_cluster_tag, ownership_tag, service_id};
pub use neighbors::neighbors;

/// The engine under test.
pub type LawEngine<L> = Engine<L, MemoryCloud<L>>;

/// A model for which the laws can be checked.
pub trait Lawful: PartModel + Clone {
    /// The contents of a cloud of this kind, as far as they are visible to the model.
    type Truth: Clone + Debug + Send + Sync + 'static;

    /// The contents of the cloud before a cluster creates objects.
    fn ground(&self) -> Self::Truth;

    /// The variations between clusters.
    fn clusters(&self) -> Clusters;

    /// The edits that other clients of the cloud may do.
    fn edits(&self) -> Vec<Edit<Self::Truth>>;

    /// The observed state of a part, for this cluster.
    fn view(
        &self,
        truth: &Self::Truth,
        key: &Self::Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> Self::Observed;

    /// Stores the [`view`](Self::view) of this part after a step was folded into it. If names are not unique in the cloud, they
    /// are not unique here either.
    fn store(&self, truth: &mut Self::Truth, key: &Self::Key, after: Self::Observed);

    /// The listings.
    fn directory(&self, truth: &Self::Truth) -> Self::Directory;

    /// The model's inputs of a part.
    fn inputs(
        &self,
        truth: &Self::Truth,
        key: &Self::Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> Self::Inputs;

    /// The cloud's reply to a step.
    fn reply(&self, change: &Self::Change, observed: &Self::Observed, ids: &Ids) -> Self::Reply;

    /// What a change occupies that the cloud accepted.
    fn accepted_change(&self) -> AcceptedChange {
        AcceptedChange::OccupiesPart
    }

    /// Removes what this create created, since its operation failed. For clouds in which a change occupies objects.
    fn undo_create(&self, _truth: &mut Self::Truth, _key: &Self::Key, _change: &Self::Change) {}

    /// Why the cloud refuses this change now: its object is in use, or it uses one that does not exist. For clouds in which a
    /// change occupies objects.
    fn refuses(&self, _change: &Self::Change, _view: &Self::Observed) -> Option<String> {
        None
    }

    /// Whether the change has objects of this Service, such as the write of a document with its elements. For
    /// [`shared`].
    fn concerns(&self, _change: &Self::Change, _service: &ServiceView) -> bool {
        false
    }

    /// Puts the part into the state in which the cloud leaves one whose change failed (`ERROR`).
    fn fail(&self, _truth: &mut Self::Truth, _key: &Self::Key) {}

    /// Repairs, as people would, objects in that state that may not be deleted, since no cluster created them or others use
    /// them. Before that they cannot be changed.
    fn repair(&self, _truth: &mut Self::Truth) {}

    /// The contents of the cloud as text lines. Written without the model's plan.
    fn picture(&self, truth: &Self::Truth) -> Vec<Line>;

    /// The name of a Service of the cluster in [`Owner::Services`]. Usually the name of its load balancer.
    fn owner(&self, service: &ServiceId, _cluster: &str) -> String {
        default_name(service)
    }

    /// The owner of an object that is for one Service; another client's if it is for none.
    fn owner_if(&self, is_for: impl Fn(&ServiceId) -> bool) -> Owner {
        let mut services = (0..SERVICES).map(service_id);
        let clusters = || self.clusters().names.into_iter();
        let names = |id| clusters().map(|cluster| self.owner(&id, cluster)).collect();
        let service = services.find(is_for);
        service.map_or(Owner::Foreign, |id| Owner::Services(names(id)))
    }

    /// Whether the change deletes a load balancer or an address that this Service uses, other than to apply the spec of a member.
    fn destroys(&self, change: &Self::Change, view: &Self::Observed, service: &ServiceView) -> bool;
}

/// What a change occupies that the cloud accepted, until the cloud has finished it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedChange {
    /// The whole part. The change is visible at once.
    OccupiesPart,
    /// The [objects](crate::load_balancer::StepDescription::objects) that it concerns: changes on these are refused. A created
    /// object is visible at once, any other change when it has ended. Writes have ids.
    OccupiesObjects,
}

/// A line of the picture of a cloud: an object, an attribute or an entry.
#[derive(Clone, Debug)]
pub struct Line {
    /// The text, without parts that differ from run to run, such as ids.
    pub text: String,
    /// The owner.
    pub owner: Owner,
    /// Whether a Service has no other lines of this kind. If not, there may be more, for other Services or by other people.
    pub is_exact: bool,
}

impl Line {
    /// A line of the owners, which have no others of this kind.
    pub fn exact(text: impl Into<String>, owner: &Owner) -> Self {
        Self {
            text: text.into(),
            owner: owner.clone(),
            is_exact: true,
        }
    }

    /// A line beside which there may be others.
    pub fn at_least(text: impl Into<String>, owner: &Owner) -> Self {
        Self {
            is_exact: false,
            ..Self::exact(text, owner)
        }
    }
}

/// The owner of an object in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Another client. The object may not be changed.
    Foreign,
    /// The cluster, independent of its Services; or the object is left unchanged once it is created.
    Cluster,
    /// [These](Lawful::owner) Services.
    Services(Vec<String>),
}

impl Owner {
    /// One Service.
    pub fn service(owner: impl Into<String>) -> Self {
        Self::Services(vec![owner.into()])
    }

    /// The owner, or the cluster if it is a Service.
    #[must_use]
    pub fn or_cluster(&self) -> Self {
        match self {
            Self::Foreign => Self::Foreign,
            _ => Self::Cluster,
        }
    }

    /// The owner, or another client if the object is foreign.
    #[must_use]
    pub fn foreign_if(self, is_foreign: bool) -> Self {
        if is_foreign { Self::Foreign } else { self }
    }

    fn has(&self, service: &str) -> bool {
        matches!(self, Self::Services(services) if services.iter().any(|known| known == service))
    }
}

/// The objects of a Service in the cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    exact: BTreeSet<String>,
    at_least: BTreeSet<String>,
}

impl Served {
    fn of<L: Lawful>(model: &L, truth: &L::Truth, service: &ServiceId, cluster: &str) -> Self {
        let owner = model.owner(service, cluster);
        let own = model.picture(truth).into_iter().filter(|line| line.owner.has(&owner));
        let (exact, at_least): (Vec<_>, Vec<_>) = own.partition(|line| line.is_exact);
        let texts = |lines: Vec<Line>| lines.into_iter().map(|line| line.text).collect();
        Self {
            exact: texts(exact),
            at_least: texts(at_least),
        }
    }
}

/// The contents of the cloud, sorted.
pub fn shape<L: Lawful>(model: &L, truth: &L::Truth) -> Vec<String> {
    let mut shape: Vec<_> = model.picture(truth).into_iter().map(|line| line.text).collect();
    shape.sort();
    shape
}

/// The foreign objects, sorted.
pub(crate) fn foreign<L: Lawful>(model: &L, truth: &L::Truth) -> Vec<String> {
    let lines = model.picture(truth).into_iter();
    let foreign = lines.filter(|line| line.owner == Owner::Foreign);
    let mut foreign: Vec<_> = foreign.map(|line| line.text).collect();
    foreign.sort();
    foreign
}

/// The replies of a cloud without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudBehavior {
    /// The number of polls before a step is done; 0: done at once.
    pub polls: u8,
    /// One in this many writes is refused because the object is busy; 0: none.
    pub busy_every: u8,
    /// One in this many writes is refused because the object has changed; 0: none.
    pub stale_every: u8,
}

/// Any [`CloudBehavior`].
pub fn behavior() -> impl Strategy<Value = CloudBehavior> {
    (0..3_u8, 0..5_u8, 0..6_u8).prop_map(|(polls, busy, stale)| CloudBehavior {
        polls,
        // If every write were refused, nothing would ever change.
        busy_every: if busy == 1 { 0 } else { busy },
        stale_every: if stale < 4 { 0 } else { stale },
    })
}

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The name of the law.
    pub law: &'static str,
    /// The violation.
    pub how: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the law `{}` is broken: {}", self.law, self.how)
    }
}

/// A runner whose random numbers follow from the seed.
fn seeded_runner(seed: u64, config: Config) -> TestRunner {
    let mut bytes = [0; 32];
    for (byte, seed) in bytes.iter_mut().zip(seed.to_le_bytes()) {
        *byte = seed;
    }
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Checks all laws on the case of this seed.
///
/// # Errors
/// The law that is broken, and the smallest case that breaks it.
pub fn examine<L: Lawful>(model: &L, seed: u64) -> Result<(), String> {
    let config = Config {
        cases: 1,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = seeded_runner(seed, config).run(&cases(model), |case| {
        check(model, &case).map_err(|broken| TestCaseError::fail(broken.to_string()))
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, case)) => {
            let how = check(model, &case).err().map_or_else(
                || format!("the law `repeatable` is broken: {reason}"),
                |broken| broken.to_string(),
            );
            Err(format!("case {seed}: {how}\n{case:#?}"))
        }
        Err(TestError::Abort(reason)) => Err(format!("case {seed} cannot be generated: {reason}")),
    }
}

/// Checks all laws on the cases of the first `count` seeds, or as the variables of [`every_seed`] request.
///
/// # Panics
/// If a law is broken; the message contains the smallest case found, and the seeds of all.
pub fn laws<L: Lawful>(model: &L, count: u64) {
    if let Err(broken) = effective(model) {
        panic!("{broken}");
    }
    every_seed(count, |seed| examine(model, seed));
}

/// The lines that only one of two pictures has, by picture.
pub(crate) fn different<'a>(one: &'a [String], other: &'a [String]) -> (Vec<&'a String>, Vec<&'a String>) {
    let only = |of: &'a [String], not: &[String]| of.iter().filter(|line| !not.contains(line)).collect();
    (only(one, other), only(other, one))
}

/// Steps by part, for comparing.
pub(crate) type Sentences = BTreeMap<String, usize>;
