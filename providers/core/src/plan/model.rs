//! What a provider writes: a pure model of its load balancers, and the calls that carry it out.

use std::{
    fmt::{self, Debug, Display},
    hash::Hash,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    Error, Priority, Result,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, Effects, ProviderFinalizers, ReadOptions, ServiceEvent,
        ServiceId, ServiceView, StepDescription,
    },
};

/// The decisions of a provider: no I/O, no clock, no state. Everything in it can be called any number of times.
///
/// The types are the provider's own. Things are named by *identity* everywhere (a listener by protocol and port, a
/// member by address and port), never by an id that the cloud gives; ids stand in [`Self::Observed`] alone, where
/// [`PartCloud::send`] looks them up. An id that is not known yet is [`Fact::Later`], so that the same model plans,
/// prints and folds a create before anything exists.
pub trait PartModel: Send + Sync + Sized + 'static {
    /// Which part. `Display` and `FromStr` are each other's inverse.
    type Key: Clone + Debug + Display + FromStr + Hash + Ord + Send + Sync + 'static;
    /// What the cloud's listings say about names, ids and marks: enough to say which Service has which parts.
    type Directory: Send + Sync + 'static;
    /// What `desired` needs to know that is neither in Services nor in nodes: versions, subnets, networks, secrets.
    type Inputs: Send + Sync + 'static;
    /// What later parts of the same Service need to know of a part.
    type Facts: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// How a part should be.
    type Desired: Debug + Send + Sync + 'static;
    /// How a part is.
    type Observed: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// One change of a part.
    type Change: Change;
    /// What the cloud answers to a step, as far as [`fold`](Self::fold) needs it: ids, addresses, revisions.
    type Reply: Clone + Debug + Send + Sync + 'static;

    /// The provider's name, as a metric label.
    fn provider(&self) -> &'static str;

    /// Whose work this Service is.
    fn claims(&self, service: &ServiceView) -> Claim;

    /// The values of `spec.loadBalancerClass` that are this provider's.
    fn classes(&self) -> &[&'static str] {
        &[]
    }

    /// The provider's own finalizers for this Service, by the Service alone.
    fn finalizers(&self, _service: &ServiceView) -> ProviderFinalizers {
        ProviderFinalizers::default()
    }

    /// The kind of a part, as a metric label: `lb`, `sg`.
    fn kind(&self, key: &Self::Key) -> &'static str;

    /// The parts of a Service. Lenient: a Service that is wrong still has parts, so that it can be deleted. Without any
    /// part, nothing in the cloud is for the Service, and it is finished as it is.
    fn parts(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &Self::Directory,
    ) -> Parts<Self::Key>;

    /// Objects of this cluster whose Service is not in the world.
    fn orphans(&self, _world: &ClusterSnapshot, _directory: &Self::Directory) -> Vec<Orphan<Self::Key>> {
        Vec::new()
    }

    /// What is wrong with what the members ask, each alone and all together (two that want the same port). Whoever is
    /// refused is [`Membership::Frozen`] in everything that follows. Members that leave are never refused.
    fn check(
        &self,
        _key: &Self::Key,
        _members: &[Member<Self>],
        _cluster: &ClusterView,
        _inputs: &Self::Inputs,
    ) -> CheckResult {
        CheckResult::default()
    }

    /// How the part should be. With no member that stays, that is: gone, as far as it is ours.
    ///
    /// A member that is [`Membership::Frozen`] keeps what it has, but for its nodes ([`Member::follows_nodes`]).
    fn desired(
        &self,
        key: &Self::Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
        inputs: &Self::Inputs,
    ) -> Self::Desired;

    /// Something that we knew (an id in an annotation, an address in a status) and that the cloud does not show. The
    /// engine goes on only if a node of ours is visible under the same credentials ([`PartCloud::vouch`]).
    fn missing(
        &self,
        _key: &Self::Key,
        _members: &[Member<Self>],
        _observed: &Self::Observed,
    ) -> Option<String> {
        None
    }

    /// The cloud is still at work on the part (a change of somebody else's, or one of ours before a restart): come back
    /// after this long, for this reason. Asked only of what was just read; nothing is sent until
    /// [`PartCloud::is_pending`] says no. The waits grow to a minute, and after five minutes the members are told.
    fn pending(&self, _key: &Self::Key, _observed: &Self::Observed) -> Option<(Duration, String)> {
        None
    }

    /// What is wrong with the part itself, so that its members are not served as they should be although no step is due:
    /// the cloud says that it is broken. The pass then fails with this and is tried again with backoff, so that it is seen
    /// when somebody mends it.
    fn degraded(
        &self,
        _key: &Self::Key,
        _members: &[Member<Self>],
        _observed: &Self::Observed,
    ) -> Option<Error> {
        None
    }

    /// The steps from how it is to how it should be, in order; none if nothing differs. What can not be changed in
    /// place is blocked. Never deletes a load balancer or an address to change a field of it.
    fn plan(&self, desired: &Self::Desired, observed: &Self::Observed) -> Plan<Self::Change>;

    /// What `observed` becomes through `change`. Without a reply: as far as that can be foretold, ids being
    /// [`Fact::Later`]. May be called again with a later reply to the same change, of which [`Change::sent`] is left, and then
    /// must come to the same as if only that one had been folded.
    fn fold(
        &self,
        key: &Self::Key,
        change: &Self::Change,
        reply: Option<&Self::Reply>,
        observed: &mut Self::Observed,
    );

    /// The part's key once `observed` holds the id that the cloud gave it, if it has another one than `key`.
    fn rekey(&self, _key: &Self::Key, _observed: &Self::Observed) -> Option<Self::Key> {
        None
    }

    /// What this part says to later parts and to the Service object. `None`: the part does not serve this member.
    /// Asked for members that have left, too (annotations to remove); then the facts are thrown away.
    fn facts(
        &self,
        key: &Self::Key,
        member: &Member<Self>,
        observed: &Self::Observed,
    ) -> Option<PartOutput<Self::Facts>>;
}

/// The calls of a provider. Everything that it decides stands in the [`PartModel`].
#[async_trait]
pub trait PartCloud<M: PartModel>: Send + Sync + 'static {
    /// Reads the shared listings.
    async fn directory(&self, read: ReadOptions) -> Result<Arc<M::Directory>>;

    /// Reads what [`PartModel::desired`] needs. What can not be found out for one member holds back that member alone
    /// and stands in [`GatheredInputs::refused`]; an error is for what the whole part needs.
    async fn inputs(
        &self,
        key: &M::Key,
        members: &[Member<M>],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<M::Inputs>>;

    /// Reads how the part is. All or nothing: a failed read is an error, never "not there". Members say by which names
    /// and addresses leftovers are found.
    async fn observe(&self, key: &M::Key, members: &[Member<M>], read: ReadOptions) -> Result<M::Observed>;

    /// Makes one change. Ids come from `observed`. Invalidates what it changes in caches, also if it fails.
    ///
    /// # Errors
    /// With [`Outcome::Unknown`](crate::Outcome::Unknown) if it may have been carried out nevertheless: the engine then
    /// reads before it writes again.
    async fn send(
        &self,
        key: &M::Key,
        change: &M::Change,
        observed: &M::Observed,
        priority: Priority,
    ) -> Result<Outcome<M::Reply>>;

    /// Asks how a step goes that was [`Outcome::Accepted`].
    ///
    /// # Errors
    /// If asking failed (retried until the deadline), or if the step failed (an error that may not be repeated).
    async fn poll(
        &self,
        key: &M::Key,
        change: &M::Change,
        observed: &M::Observed,
        priority: Priority,
    ) -> Result<Outcome<M::Reply>>;

    /// Whether the cloud is still at work on a part that was [`PartModel::pending`] when it was observed. Reads nothing
    /// but that; without it the part is read again.
    ///
    /// # Errors
    /// If it can not be found out.
    async fn is_pending(&self, _key: &M::Key, _observed: &M::Observed, _priority: Priority) -> Result<bool> {
        Ok(false)
    }

    /// Whether we see the cloud in which this cluster is; see [`CredentialsCheck`](super::CredentialsCheck).
    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck>;
}

/// One change of the cloud: one call that writes, or one list of calls of which at most one succeeds.
///
/// Objects are named by identity, never by an id that the cloud assigns.
pub trait Change: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// Describes the change. Called once, when the change becomes a [`Step`].
    fn describe(&self) -> StepDescription;

    /// What is kept of the change while the cloud is at work: what [`PartCloud::poll`] and the [`PartModel::fold`] of a
    /// later reply need. Hundreds may wait at once, so data that only the request needed should be dropped.
    #[must_use]
    fn sent(&self) -> Self {
        self.clone()
    }
}

/// A planned [`Change`] with its description. `Display` is the description's sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<C> {
    /// What [`PartCloud::send`] carries out.
    pub change: C,
    /// What is reported, logged and counted.
    pub description: StepDescription,
}

impl<C: Change> Step<C> {
    /// A step that carries out `change`.
    #[must_use]
    pub fn new(change: C) -> Self {
        Self {
            description: change.describe(),
            change,
        }
    }

    /// Sets the [reason](StepDescription::reason).
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.description.reason = reason.into();
        self
    }

    /// Sets the [Service](StepDescription::service).
    #[must_use]
    pub fn for_service(mut self, service: Option<&ServiceId>) -> Self {
        self.description.service = service.cloned();
        self
    }
}

impl<C> Display for Step<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description.sentence)
    }
}

/// The parts of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts<K> {
    /// What the Service names now, in the order of setting up.
    pub named: Vec<K>,
    /// Where its mark stands, in the same order. May hold the same keys.
    pub tagged: Vec<K>,
}

impl<K> Default for Parts<K> {
    fn default() -> Self {
        Self {
            named: Vec::new(),
            tagged: Vec::new(),
        }
    }
}

/// Something in the cloud whose Service does not exist; see [`OrphanPart`](crate::load_balancer::OrphanPart).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan<K> {
    /// The part in which it is.
    pub key: K,
    /// What it is, for people.
    pub what: String,
    /// Whether a pass that is permitted to may delete the part.
    pub deletable: bool,
}

/// A Service that has to do with a part.
pub struct Member<M: PartModel> {
    /// The Service.
    pub service: Arc<ServiceView>,
    /// How it stands with the part.
    pub membership: Membership,
    /// What its earlier parts said, in order. A member that leaves may have none.
    pub facts: Vec<(M::Key, M::Facts)>,
}

impl<M: PartModel> Member<M> {
    /// Whether what it has follows the nodes: also while it is kept, but not if it wants nothing any more and only waits
    /// for its turn to leave.
    #[must_use]
    pub fn follows_nodes(&self) -> bool {
        self.membership != Membership::Leaving && self.service.wants_load_balancer()
    }
}

impl<M: PartModel> Clone for Member<M> {
    fn clone(&self) -> Self {
        Self {
            service: Arc::clone(&self.service),
            membership: self.membership.clone(),
            facts: self.facts.clone(),
        }
    }
}

impl<M: PartModel> Debug for Member<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("service", &self.service)
            .field("membership", &self.membership)
            .field("facts", &self.facts)
            .finish()
    }
}

/// How a Service stands with a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It gets what it asks for.
    Active,
    /// It keeps what it has, for this reason; what is not there yet is not made. Follows the nodes if
    /// [`Member::follows_nodes`] says so.
    Frozen(String),
    /// Everything of it is taken away.
    Leaving,
}

/// Inputs, and who has to do without.
#[derive(Clone, Debug)]
pub struct GatheredInputs<I> {
    /// What was read.
    pub inputs: I,
    /// Members for which something could not be found out.
    pub refused: Vec<(ServiceId, Error)>,
}

impl<I> From<I> for GatheredInputs<I> {
    fn from(inputs: I) -> Self {
        Self {
            inputs,
            refused: Vec::new(),
        }
    }
}

/// What is to be said about what the members ask.
#[derive(Clone, Debug, Default)]
pub struct CheckResult {
    /// Who asks for what can not be.
    pub refused: Vec<(ServiceId, Error)>,
    /// What members should be told.
    pub notes: Vec<ServiceEvent>,
}

/// The way from how it is to how it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<C> {
    /// In order.
    pub steps: Vec<Step<C>>,
    /// Differences that stay.
    pub blocked: Vec<Blocked>,
}

impl<C> Plan<C> {
    /// The same plan with changes of another type, for a provider that plans its kinds of parts in several ways.
    #[must_use]
    pub fn map<D>(self, into: impl Fn(C) -> D) -> Plan<D> {
        let steps = self.steps.into_iter().map(|step| Step {
            change: into(step.change),
            description: step.description,
        });
        Plan {
            steps: steps.collect(),
            blocked: self.blocked,
        }
    }
}

impl<C> Default for Plan<C> {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            blocked: Vec::new(),
        }
    }
}

/// What became of a step that did not fail.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<R> {
    /// Done.
    Done(R),
    /// The cloud is at work; until it is done nothing else can be changed.
    Accepted(R, Wait),
    /// Nothing was done: something else is at work on it. Try again after this long.
    Busy(Duration),
    /// Nothing was done: it is not as we saw it. Look again.
    Stale,
}

/// How to wait for the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Ask again after this long. Grows as the provider likes.
    pub poll: Duration,
    /// Give up this long after the step was sent.
    pub deadline: Duration,
}

/// What a part says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartOutput<F> {
    /// To later parts.
    pub facts: F,
    /// To the Service object.
    pub effects: Effects,
}

/// Whether what is not visible is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeCheck {
    /// A node of the cluster is visible under the credentials in use (or it has no nodes): what is not visible is gone.
    Verified,
    /// It may be our credentials; the text says what was seen.
    Unverified(String),
}

/// Something that may be known only after another step: an id, an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact<T> {
    /// Known.
    Known(T),
    /// Known later; says what it is: `the address of load balancer web`.
    Later(Arc<str>),
}

impl<T> Fact<T> {
    /// The value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Later(_) => None,
        }
    }

    /// The value, or an error that says what is missing: for [`PartCloud::send`], where everything must be known.
    ///
    /// # Errors
    /// If it is not known.
    pub fn get(&self) -> Result<&T> {
        match self {
            Self::Known(value) => Ok(value),
            Self::Later(what) => Err(Error::new(
                crate::ErrorKind::Unexpected,
                format!("{what} is not known yet"),
            )),
        }
    }
}

impl<T: Display> Display for Fact<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(value) => value.fmt(f),
            Self::Later(what) => write!(f, "({what})"),
        }
    }
}
