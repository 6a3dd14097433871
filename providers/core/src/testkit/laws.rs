//! The laws that every provider's model of its load balancers must keep, as property tests.
//!
//! | Law | Says |
//! |---|---|
//! | [`converges`] | from any state of the cloud the engine comes to rest; then a Service for which nothing is blocked or refused has what it would have alone in a new cloud, and one that has left has nothing; no load balancer or address was deleted under a member that stays |
//! | [`effective`] | every setting of a Service changes what it has |
//! | [`quiet`] | what has come to rest stays at rest: a restart writes nothing, plans nothing and says the same about every Service |
//! | [`restartable`] | killed or cut off at any write (before it is sent, after it is carried out, after the reply), the next process ends where an undisturbed one would: nothing twice, nothing left over |
//! | [`reclaimable`] | killed at any write, or failed by the cloud, while parts are being built: deleting the Services then leaves nothing that a deletion of what works does not leave |
//! | [`polite`] | what is not ours is after every single write as it was |
//! | [`foretold`] | a plan that is only imagined names exactly the steps that are then carried out |
//!
//! The laws run the real [`Engine`] against a cloud in memory, which applies changes with the model's own
//! [`fold`](PartModel::fold). So they check the model and the engine, not the provider's calls: those meet a simulator
//! and a real cloud elsewhere.
//!
//! A provider implements [`Lawful`]: what such a cloud holds, what other people may do to it, and which ports, annotations
//! and fields of Services vary. Everything else is generated: clusters that build and are killed meanwhile, edits by
//! others, then clusters that must cope with that.
//!
//! ```text
//!   Case { ground, built, edits } -> truth -> Engine<Model, MemoryCloud> --fold--> truth'
//!          worlds, weather                      ^ killed, restarted      picture
//! ```
//!
//! [`laws`] checks all laws and shrinks a case that breaks one. [`objects`] has the world of a cloud that consists of
//! [`Objects`](crate::plan::objects::Objects).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseError, TestError, TestRunner},
};

use crate::{
    load_balancer::{ClusterView, ServiceId, default_name},
    plan::{Engine, Member, PartModel},
};

mod cases;
mod cloud;
mod clusters;
mod drive;
mod judge;
pub mod objects;

pub use cases::{Case, Edit, cases, pick, remove};
pub use cloud::{Fault, Ids, MemoryCloud};
pub use clusters::{Clusters, SERVICES, Setting, other_cluster_tag, ownership_tag, service_id};
pub use judge::{built, check, converges, effective, foretold, polite, quiet, reclaimable, restartable};

/// The engine under test.
pub type LawEngine<L> = Engine<L, MemoryCloud<L>>;

/// A model for which the laws can be checked.
pub trait Lawful: PartModel + Clone {
    /// Everything that a cloud of this kind holds, as far as the model can see it.
    type Truth: Clone + Debug + Send + Sync + 'static;

    /// What is in the cloud before a cluster builds anything.
    fn ground(&self) -> Self::Truth;

    /// What varies between clusters.
    fn clusters(&self) -> Clusters;

    /// What other clients of the cloud may do to it.
    fn edits(&self) -> Vec<Edit<Self::Truth>>;

    /// What observing a part finds, for this cluster.
    fn view(
        &self,
        truth: &Self::Truth,
        key: &Self::Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> Self::Observed;

    /// Puts back what [`view`](Self::view) of this part found, after a step was folded into it. Where the cloud lets
    /// two things have one name, so must this.
    fn store(&self, truth: &mut Self::Truth, key: &Self::Key, after: Self::Observed);

    /// What the listings show.
    fn directory(&self, truth: &Self::Truth) -> Self::Directory;

    /// What the model's inputs are.
    fn inputs(&self, truth: &Self::Truth, members: &[Member<Self>], cluster: &ClusterView) -> Self::Inputs;

    /// What the cloud answers to a step.
    fn reply(&self, change: &Self::Change, observed: &Self::Observed, ids: &Ids) -> Self::Reply;

    /// Puts the part into the state in which the cloud leaves one whose change failed (`ERROR`).
    fn fail(&self, _truth: &mut Self::Truth, _key: &Self::Key) {}

    /// Repairs, as people would, what is in that state and may not be deleted, since it was not created by a cluster or others
    /// use it: it cannot be changed before.
    fn repair(&self, _truth: &mut Self::Truth) {}

    /// Everything in the cloud. Written without the model's plan.
    fn picture(&self, truth: &Self::Truth) -> Vec<Line>;

    /// What stands for a Service of the cluster with this name in [`Owner::Services`]. Usually the name of its load balancer.
    fn owner(&self, service: &ServiceId, _cluster: &str) -> String {
        default_name(service)
    }

    /// Whether the change deletes a load balancer or an address, other than to apply what a member asks for.
    fn destroys(&self, change: &Self::Change) -> bool;
}

/// A line of the picture of a cloud: an object, an attribute or an entry.
#[derive(Clone, Debug)]
pub struct Line {
    /// The text, without what differs from run to run, such as ids.
    pub text: String,
    /// The owner.
    pub owner: Owner,
    /// Whether a Service has no other lines of this kind. If not, there may be more, for other Services or by other people.
    pub is_exact: bool,
}

impl Line {
    /// A line that the owners have and no others of this kind.
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

/// The owner of something in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Somebody else. It may not be changed.
    Foreign,
    /// The cluster, whatever its Services ask for; or it is left unchanged once it is created.
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

    /// The owner, or somebody else if the object is foreign.
    #[must_use]
    pub fn foreign_if(self, is_foreign: bool) -> Self {
        if is_foreign { Self::Foreign } else { self }
    }

    fn has(&self, service: &str) -> bool {
        matches!(self, Self::Services(services) if services.iter().any(|known| known == service))
    }
}

/// What a Service has in the cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    exact: BTreeSet<String>,
    at_least: BTreeSet<String>,
}

impl Served {
    fn of<L: Lawful>(model: &L, truth: &L::Truth, service: &ServiceId, cluster: &str) -> Self {
        let owner = model.owner(service, cluster);
        let own = model
            .picture(truth)
            .into_iter()
            .filter(|line| line.owner.has(&owner));
        let (exact, at_least): (Vec<_>, Vec<_>) = own.partition(|line| line.is_exact);
        let texts = |lines: Vec<Line>| lines.into_iter().map(|line| line.text).collect();
        Self {
            exact: texts(exact),
            at_least: texts(at_least),
        }
    }
}

/// Everything in the cloud, sorted.
pub fn shape<L: Lawful>(model: &L, truth: &L::Truth) -> Vec<String> {
    let mut shape: Vec<_> = model.picture(truth).into_iter().map(|line| line.text).collect();
    shape.sort();
    shape
}

/// What is not ours, sorted.
pub(crate) fn foreign<L: Lawful>(model: &L, truth: &L::Truth) -> Vec<String> {
    let lines = model.picture(truth).into_iter();
    let foreign = lines.filter(|line| line.owner == Owner::Foreign);
    let mut foreign: Vec<_> = foreign.map(|line| line.text).collect();
    foreign.sort();
    foreign
}

/// How the cloud answers when nothing is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// How often a step has to be polled before it is done; 0: done at once.
    pub polls: u8,
    /// Every so many writes one is refused because something else is at work; 0: none.
    pub busy_every: u8,
    /// Every so many writes one is refused because it is not as it was; 0: none.
    pub stale_every: u8,
}

/// Any [`Weather`].
pub fn weather() -> impl Strategy<Value = Weather> {
    (0..3_u8, 0..5_u8, 0..6_u8).prop_map(|(polls, busy, stale)| Weather {
        polls,
        // Every single write refused would be a cloud that never does anything.
        busy_every: if busy == 1 { 0 } else { busy },
        stale_every: if stale < 4 { 0 } else { stale },
    })
}

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which one.
    pub law: &'static str,
    /// By what.
    pub how: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the law `{}` is broken: {}", self.law, self.how)
    }
}

/// What [`examine`] found: the law and, unless none could be generated, the smallest case that breaks it.
pub type Found<T> = (Broken, Option<Case<T>>);

/// Checks all laws on `count` generated cases.
///
/// # Errors
/// The law that the smallest case found breaks, and that case.
pub fn examine<L: Lawful>(model: &L, count: u32) -> Result<(), Found<L::Truth>> {
    effective(model).map_err(|broken| (broken, None))?;
    let mut runner = TestRunner::new(Config {
        cases: count,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&cases(model), |case| {
        check(model, &case).map_err(|broken| TestCaseError::fail(broken.to_string()))
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, case)) => Err((
            check(model, &case).err().unwrap_or(Broken {
                law: "repeatable",
                how: reason.to_string(),
            }),
            Some(case),
        )),
        Err(TestError::Abort(reason)) => Err((
            Broken {
                law: "generated",
                how: reason.to_string(),
            },
            None,
        )),
    }
}

/// Checks all laws on `count` generated cases.
///
/// # Panics
/// If a law is broken; the message holds the smallest case found.
pub fn laws<L: Lawful>(model: &L, count: u32) {
    if let Err((broken, case)) = examine(model, count) {
        panic!("{broken}\n{case:#?}");
    }
}

/// The lines that only one of two pictures has, by picture.
pub(crate) fn different<'a>(one: &'a [String], other: &'a [String]) -> (Vec<&'a String>, Vec<&'a String>) {
    let only = |of: &'a [String], not: &[String]| of.iter().filter(|line| !not.contains(line)).collect();
    (only(one, other), only(other, one))
}

/// Steps by part, for comparing.
pub(crate) type Sentences = BTreeMap<String, usize>;
