//! The traits that a provider implements: a pure model of its load balancers, and the cloud calls.

use std::{
    fmt::{self, Debug, Display},
    hash::Hash,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{PartKind, RequestId};
use crate::{
    Error, ErrorKind, Priority, Result, Retry,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, Condition, Effects, FormerLoadBalancer, OwnNames,
        PartReport, ProviderFinalizers, ReadOptions, ServiceEvent, ServiceId, ServiceView, StepDescription,
        StepObjects,
    },
};

/// The decisions of a provider: no I/O, no clock, no state. Every method can be called any number of times.
///
/// The types are the provider's own. Objects are named by *identity* everywhere (a listener by protocol and port, a
/// member by address and port), never by an id that the cloud assigns; only [`Self::Observed`] has ids, for
/// [`PartCloud::send`]. An id that is not known yet is [`Fact::Later`], so that the same model plans,
/// prints and folds a create before anything exists.
pub trait PartModel: Send + Sync + Sized + 'static {
    /// The key of a part. `Display` and `FromStr` are inverse to each other.
    type Key: PartKind + Clone + Debug + Display + FromStr + Hash + Ord + Send + Sync + 'static;
    /// Names, ids and ownership tags from the cloud's listings: enough to map Services to parts.
    type Directory: Send + Sync + 'static;
    /// Inputs of `desired` besides Services and nodes: versions, subnets, networks, secrets.
    type Inputs: Send + Sync + 'static;
    /// What a Service asks for, as far as it follows from the Service and the cluster alone: `()` if answers of the cloud are needed to
    /// read it.
    type Spec: Debug + Send + Sync + 'static;
    /// The facts of a part that later parts of the same Service need.
    type Facts: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// The desired state of a part.
    type Desired: Debug + Send + Sync + 'static;
    /// The observed state of a part.
    type Observed: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// One change of a part.
    type Change: CloudChange;
    /// The cloud's reply to a change, as far as [`fold`](Self::fold) needs it: ids, addresses, revisions.
    type Reply: Clone + Debug + Send + Sync + 'static;

    /// The provider's name, as a metric label.
    fn provider(&self) -> &'static str;

    /// The controller that is responsible for this Service. By default this one, unless the Service has a class.
    fn claims(&self, service: &ServiceView) -> Claim {
        match service.class {
            None => Claim::Ours,
            Some(_) => Claim::NotOurs,
        }
    }

    /// The values of `spec.loadBalancerClass` that this provider serves.
    fn classes(&self) -> &[&'static str] {
        &[]
    }

    /// The provider's own finalizers for this Service, by the Service alone.
    fn finalizers(&self, _service: &ServiceView) -> ProviderFinalizers {
        ProviderFinalizers::default()
    }

    /// Whether labels of nodes decide which of them serve the Service. If not, its parts do not follow changed labels.
    fn selects_by_labels(&self, _service: &ServiceView) -> bool {
        false
    }

    /// Reads what a Service asks for, once for each pass. Values that are not valid are refused by [`check`](Self::check).
    fn spec(&self, service: &ServiceView, cluster: &ClusterView) -> Self::Spec;

    /// The parts of a Service. Lenient: an invalid Service still has parts, so that it can be deleted. A Service without parts
    /// has nothing in the cloud and is finished.
    fn parts(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &Self::Directory,
    ) -> Parts<Self::Key>;

    /// The load balancer of a Service for which another controller is responsible now, and which has our finalizer. `service` is
    /// its [cleanup view](ServiceView::cleanup). Only [`FormerLoadBalancer::Ours`] lets passes delete it. With the default, nothing
    /// is deleted.
    fn former(
        &self,
        _service: &ServiceView,
        _cluster: &ClusterView,
        _directory: &Self::Directory,
    ) -> FormerLoadBalancer {
        FormerLoadBalancer::Missing
    }

    /// Objects of this cluster whose Service is not in the snapshot.
    fn orphans(&self, _snapshot: &ClusterSnapshot, _directory: &Self::Directory) -> Vec<Orphan<Self::Key>> {
        Vec::new()
    }

    /// Validates the members, each alone and all together (two with the same port). A member that is refused is
    /// [`Membership::Frozen`] in the rest of the pass. Members that leave are never refused.
    fn check(
        &self,
        _key: &Self::Key,
        _members: &[Member<Self>],
        _cluster: &ClusterView,
        _inputs: &Self::Inputs,
    ) -> CheckResult {
        CheckResult::default()
    }

    /// The desired state of the part. Without a member that stays, everything of ours is deleted.
    ///
    /// A member that is [`Membership::Frozen`] keeps its objects, except its nodes ([`Member::follows_nodes`]).
    fn desired(
        &self,
        key: &Self::Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
        inputs: &Self::Inputs,
    ) -> Self::Desired;

    /// A known object (an id in an annotation, an address in a status) that the cloud does not return. The engine continues
    /// only if a node of ours is visible under the same credentials ([`PartCloud::verify_scope`]).
    fn missing(
        &self,
        _key: &Self::Key,
        _members: &[Member<Self>],
        _observed: &Self::Observed,
    ) -> Option<String> {
        None
    }

    /// The first wait and its reason, if the cloud has not finished a change of the part (by another client, or ours before a
    /// restart). Called only after a read. Nothing is sent until [`PartCloud::is_pending`] returns false. The waits grow to a
    /// minute; after five minutes the members get an event.
    fn pending(&self, _key: &Self::Key, _observed: &Self::Observed) -> Option<(Duration, String)> {
        None
    }

    /// Whether the part must be read when the cloud has finished an accepted change, since the reply to it lacks something
    /// that only the finished part has, such as an address.
    fn lacks_result(&self, _observed: &Self::Observed) -> bool {
        false
    }

    /// The error of a part that does not serve its members although no step is due: the cloud reports it as broken. The pass
    /// fails with this error and is retried with backoff, so that a repair is noticed. Until then no member has left the part.
    fn degraded(
        &self,
        _key: &Self::Key,
        _members: &[Member<Self>],
        _observed: &Self::Observed,
    ) -> Option<Error> {
        None
    }

    /// The steps from the observed to the desired state, in order; none if nothing differs. Differences that cannot be changed
    /// in place are blocked. Never deletes a load balancer or an address to change a field of it.
    fn plan(&self, desired: &Self::Desired, observed: &Self::Observed) -> Plan<Self::Change>;

    /// Applies `change` to `observed` when the cloud carried it out or accepted it. Without a reply: as far as the
    /// result can be predicted, with ids as [`Fact::Later`].
    ///
    /// A part that is read while the cloud carries out steps with [objects](StepDescription::objects) may show their changes or
    /// not. They are applied again to what was read, so a change that is visible already must change nothing.
    fn fold(
        &self,
        key: &Self::Key,
        change: &Self::Change,
        reply: Option<&Self::Reply>,
        observed: &mut Self::Observed,
    );

    /// The member whose objects the cloud's error names, if it refused a [shared](StepDescription::is_shared) step permanently. That
    /// member is frozen, and the others continue. `None`: the error names no member, and the engine looks for it with smaller
    /// changes. [`document::named_owner`](super::document::named_owner) looks for names in the text of an error.
    fn named_member(
        &self,
        _key: &Self::Key,
        _members: &[Member<Self>],
        _change: &Self::Change,
        _error: &Error,
    ) -> Option<ServiceId> {
        None
    }

    /// The part's key once `observed` has the id that the cloud assigned, if it is not `key`.
    fn rekey(&self, _key: &Self::Key, _observed: &Self::Observed) -> Option<Self::Key> {
        None
    }

    /// The output of this part: facts for later parts, and effects on the Service object. `None`: the part does not serve
    /// this member. Called also for members that have left (annotations to remove); then the facts are ignored.
    fn facts(
        &self,
        key: &Self::Key,
        member: &Member<Self>,
        observed: &Self::Observed,
    ) -> Option<PartOutput<Self::Facts>>;

    /// The facts of a part whose create the cloud accepted, so that later parts run while it is being built. `None`: they are
    /// not known before it is done. If the later [`facts`](Self::facts) differ, the later parts run again. If the create fails the
    /// engine withdraws them.
    fn early_facts(
        &self,
        key: &Self::Key,
        member: &Member<Self>,
        observed: &Self::Observed,
    ) -> Option<Self::Facts> {
        self.facts(key, member, observed).map(|output| output.facts)
    }

    /// What part `key` of a Service needs of an earlier part: nothing, the facts that were accepted, or those when it has been built.
    /// A Service leaves the earlier part after this one, unless the two are independent.
    fn required_facts(&self, _key: &Self::Key, _earlier: &Self::Key) -> RequiredFacts {
        RequiredFacts::Accepted
    }

    /// Annotations that name the object whose create the cloud accepted. They are written while the object is being built, so
    /// that a Service that is renamed or deleted meanwhile does not lose it.
    fn early_effects(&self, _member: &Member<Self>, _observed: &Self::Observed) -> Effects {
        Effects::default()
    }
}

/// The cloud calls of a provider. All decisions are in the [`PartModel`].
#[async_trait]
pub trait PartCloud<M: PartModel>: Send + Sync + 'static {
    /// The operation's id or URL of a change that the cloud accepted. Hundreds may be stored at once.
    type Ticket: Send + Sync + 'static;

    /// Reads the shared listings.
    async fn directory(&self, read: ReadOptions) -> Result<Arc<M::Directory>>;

    /// Reads the inputs of [`PartModel::desired`]. If a read for one member fails, only that member is frozen
    /// ([`GatheredInputs::refused`]); an error concerns the whole part.
    async fn inputs(
        &self,
        key: &M::Key,
        members: &[Member<M>],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<M::Inputs>>;

    /// Reads the part. All or nothing: a failed read is an error, never "not found". The members' names and addresses find
    /// leftovers.
    async fn observe(&self, key: &M::Key, members: &[Member<M>], read: ReadOptions) -> Result<M::Observed>;

    /// Sends one change. Ids come from `observed`. Invalidates caches of the changed objects, even if it fails. Called for several
    /// steps at the same time if they list their [objects](StepDescription::objects).
    ///
    /// # Errors
    /// The engine's reaction depends on the error:
    ///
    /// | Error | Meaning | The engine |
    /// |---|---|---|
    /// | [`RequestOutcome::Unknown`](crate::RequestOutcome::Unknown) | the change may have been carried out | reads again, at most three times |
    /// | `Conflict` with a wait (`Retry::After`, `Retry::Fixed`) | busy: the cloud has not finished a change of the part; an object that it needs is not ready | parks the part, at least for the wait |
    /// | `Conflict` that is never retried (`Retry::Never`) | stale: the part changed since it was read | reads again, at most three times |
    /// | `NotFound`, `AlreadyExists`, any other `Conflict` | stale, and reported as a failed step | the same |
    /// | any other | the change failed | freezes the step's Service if that is permanent, otherwise fails the pass |
    ///
    /// After a restart, the engine does not know which operations are in progress. If the cloud answers "not ready" for an
    /// object whose operation has not ended, or "already exists" for one that a read does not show yet, the provider maps that
    /// to a `Conflict` with `Retry::Fixed(1 s)`. An operation that failed meanwhile is noticed by the next read: its object is
    /// missing or unchanged.
    async fn send(
        &self,
        key: &M::Key,
        change: &M::Change,
        observed: &M::Observed,
        options: &SendOptions,
    ) -> Result<SendOutcome<M::Reply, Self::Ticket>>;

    /// Whether the cloud takes an id for each write, and carries out a write once, however often it is sent with the same id.
    /// Then [`SendOptions::request_id`] is set. A write whose result is not known is sent again with its id, and the cloud
    /// answers with the operation that the first one began.
    fn takes_request_ids(&self) -> bool {
        false
    }

    /// Polls a change that was [`SendOutcome::Accepted`]. `None`: the cloud has finished; otherwise after how long to poll again. `key` is
    /// the part's key now. The default is that of a cloud that accepts no changes, since it carries them out at once.
    ///
    /// # Errors
    /// If the poll failed (retried until the deadline), or if the change failed. Busy and stale as with
    /// [`send`](Self::send).
    async fn poll(
        &self,
        _key: &M::Key,
        _ticket: &Self::Ticket,
        _priority: Priority,
    ) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// Whether a part that was [`PartModel::pending`] when it was observed still is. Reads only this
    /// state. With the default, the engine reads the part again.
    ///
    /// # Errors
    /// If the read fails.
    async fn is_pending(&self, _key: &M::Key, _observed: &M::Observed, _priority: Priority) -> Result<bool> {
        Ok(false)
    }

    /// Looks for a proof that the load balancer of a Service of another controller was created for it in this cluster. `former`:
    /// what the listings show, [`FormerLoadBalancer::Unproven`]; `service`: see [`PartModel::former`]. The default finds none.
    ///
    /// # Errors
    /// If a read fails. The next discovery tries again.
    async fn prove_former(
        &self,
        _service: &ServiceView,
        _cluster: &ClusterView,
        former: FormerLoadBalancer,
        _read: ReadOptions,
    ) -> Result<FormerLoadBalancer> {
        Ok(former)
    }

    /// Verifies that the credentials are for the cluster's cloud; see [`CredentialsCheck`](super::CredentialsCheck).
    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck>;

    /// Counts a pass that has ended, in metrics of the cloud. `_began`: when it was requested.
    fn pass_ended(&self, _began: Instant, _report: &PartReport) {}
}

/// How to send a change.
#[derive(Clone, Debug)]
pub struct SendOptions {
    /// The priority of the request.
    pub priority: Priority,
    /// The id of the write, if the cloud [takes one](PartCloud::takes_request_ids).
    pub request_id: Option<RequestId>,
}

/// One change of the cloud: one call that writes, or one list of calls of which at most one succeeds.
///
/// Objects are named by identity, never by an id that the cloud assigns.
pub trait CloudChange: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// Describes the change. Called once, when the change becomes a [`Step`].
    fn describe(&self) -> StepDescription;
}

/// A planned [`CloudChange`] with its description. `Display` is the description's sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<C> {
    /// The change that [`PartCloud::send`] carries out.
    pub change: C,
    /// The description for reports, logs and metrics.
    pub description: StepDescription,
}

impl<C: CloudChange> Step<C> {
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

    /// Sets the [objects](StepDescription::objects): the step is sent at the same time as steps on other objects.
    #[must_use]
    pub fn with_objects(mut self, objects: StepObjects) -> Self {
        self.description.objects = Some(objects);
        self
    }

    /// The step is [one of many](StepDescription::is_one_of_many): if it is refused, the others continue.
    #[must_use]
    pub fn one_of_many(mut self) -> Self {
        self.description.is_one_of_many = true;
        self
    }

    /// The step applies what several members ask for: it is [shared](StepDescription::is_shared).
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.description.is_shared = true;
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
    /// The parts that the Service names now, in the order of creation.
    pub named: Vec<K>,
    /// The parts that have its ownership tag, in the same order. May contain the same keys.
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

/// One part, without tags.
impl<K> From<K> for Parts<K> {
    fn from(key: K) -> Self {
        Self {
            named: vec![key],
            ..Self::default()
        }
    }
}

/// An object in the cloud whose Service does not exist; see [`OrphanPart`](crate::load_balancer::OrphanPart).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan<K> {
    /// Its part.
    pub key: K,
    /// Its description, for people.
    pub what: String,
    /// Whether a pass with permission may delete the part.
    pub deletable: bool,
}

impl<K> Orphan<K> {
    /// An object of a kind that has no place for the ownership tag, whose name is that of a Service that does not exist. It may be
    /// another cluster's, so it is reported only if it has members and all of them are nodes of this cluster, and no pass may
    /// delete it.
    ///
    /// ```
    /// use ccm_core::plan::Orphan;
    ///
    /// let nodes = ["node-1", "node-2"];
    /// let is_node = |member: &&str| nodes.contains(member);
    /// let orphan = Orphan::untagged("lb/a1", "pool a1", &["node-1"], is_node);
    /// assert!(orphan.is_some_and(|orphan| !orphan.deletable));
    /// assert_eq!(Orphan::untagged("lb/a2", "pool a2", &["node-1", "stranger"], is_node), None);
    /// ```
    pub fn untagged<T>(
        key: K,
        what: impl Into<String>,
        members: &[T],
        is_node: impl Fn(&T) -> bool,
    ) -> Option<Self> {
        if members.is_empty() || !members.iter().all(is_node) {
            return None;
        }
        Some(Self {
            key,
            what: what.into(),
            deletable: false,
        })
    }
}

/// A Service that uses a part.
pub struct Member<M: PartModel> {
    /// The Service.
    pub service: Arc<ServiceView>,
    /// What it asks for.
    pub spec: Arc<M::Spec>,
    /// Whether it uses the part as its spec asks, keeps its objects, or leaves.
    pub membership: Membership,
    /// The facts of its earlier parts, in order. A member that leaves may have none.
    pub facts: Vec<(M::Key, M::Facts)>,
}

impl<M: PartModel> Member<M> {
    /// The members whose specs are applied.
    pub fn active(members: &[Self]) -> impl Iterator<Item = &Self> {
        members.iter().filter(|member| member.membership == Membership::Active)
    }

    /// The members that do not leave.
    pub fn staying(members: &[Self]) -> impl Iterator<Item = &Self> {
        members.iter().filter(|member| !member.leaves())
    }

    /// The names of the objects of these members, and of the cluster with this ID, for kinds that have no place for the ownership
    /// tag.
    #[must_use]
    pub fn own_names(members: &[Self], cluster_id: Option<&str>) -> OwnNames {
        OwnNames::new(members.iter().map(|member| &member.service.id), cluster_id)
    }

    /// Whether all its objects are deleted.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.membership == Membership::Leaving
    }

    /// Whether its objects follow the nodes: also while it is frozen, but not if it wants no load balancer and only waits to
    /// leave.
    #[must_use]
    pub fn follows_nodes(&self) -> bool {
        !self.leaves() && self.service.wants_load_balancer()
    }
}

impl<M: PartModel> Clone for Member<M> {
    fn clone(&self) -> Self {
        Self {
            service: Arc::clone(&self.service),
            spec: Arc::clone(&self.spec),
            membership: self.membership.clone(),
            facts: self.facts.clone(),
        }
    }
}

impl<M: PartModel> Debug for Member<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("service", &self.service)
            .field("spec", &self.spec)
            .field("membership", &self.membership)
            .field("facts", &self.facts)
            .finish()
    }
}

/// The relation of a Service to a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Its spec is applied.
    Active,
    /// It keeps its objects, for this reason; nothing is created. Its objects follow the nodes if
    /// [`Member::follows_nodes`] is true.
    Frozen(String),
    /// All its objects are deleted.
    Leaving,
}

/// Inputs, and the members without them.
#[derive(Clone, Debug)]
pub struct GatheredInputs<I> {
    /// The inputs.
    pub inputs: I,
    /// Members whose inputs could not be read.
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

/// The result of [`PartModel::check`].
#[derive(Clone, Debug, Default)]
pub struct CheckResult {
    /// Members with an invalid spec.
    pub refused: Vec<(ServiceId, Error)>,
    /// Events for members.
    pub events: Vec<ServiceEvent>,
    /// Conditions of members, such as why a member is refused. They are written although the member is not served.
    pub conditions: Vec<(ServiceId, Condition)>,
}

impl CheckResult {
    /// Refuses a member with an invalid spec.
    pub fn refuse(&mut self, service: &ServiceId, text: impl Into<String>) {
        let error = Error::new(ErrorKind::InvalidSpec, text);
        self.refused.push((service.clone(), error));
    }
}

/// The steps from the observed to the desired state.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<C> {
    /// The steps, in order.
    pub steps: Vec<Step<C>>,
    /// Differences that are left unchanged.
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

/// The result of a change that did not fail.
#[derive(Clone, Debug, PartialEq)]
pub enum SendOutcome<R, T> {
    /// The cloud carried it out.
    Done(R),
    /// The cloud accepted it and has not finished. Until then, only changes are sent that concern other objects
    /// ([`StepDescription::objects`]) or do not need the part to be idle ([`StepDescription::needs_idle`]).
    Accepted {
        /// The reply, which is folded in at once.
        reply: R,
        /// The ticket for [`PartCloud::poll`].
        ticket: T,
        /// When to poll, and when to give up.
        wait: Wait,
    },
}

/// The reason why a change was not carried out because of the state of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteConflict {
    /// The cloud has not finished a change of the part: try again after this long.
    Busy(Duration),
    /// The part changed since it was read: read it again.
    Stale,
}

impl WriteConflict {
    /// The shortest wait after an answer with a `Retry-After`.
    const SHORTEST: Duration = Duration::from_secs(1);

    /// See the table of [`PartCloud::send`]. `None`: the error means something else.
    #[must_use]
    pub fn of(error: &Error) -> Option<Self> {
        match (error.kind(), error.retry()) {
            (ErrorKind::Conflict, retry @ (Retry::After(_) | Retry::Fixed(_))) => {
                Some(Self::Busy(retry.wait(Self::SHORTEST)))
            }
            (ErrorKind::Conflict, Retry::Never) if error.outcome() == crate::RequestOutcome::NotDone => {
                Some(Self::Stale)
            }
            _ => None,
        }
    }
}

/// How to wait for the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Poll again after this long. The provider may increase it.
    pub poll: Duration,
    /// Give up this long after the step was sent.
    pub deadline: Duration,
}

/// The output of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartOutput<F> {
    /// Facts for later parts.
    pub facts: F,
    /// Effects on the Service object.
    pub effects: Effects,
}

/// Whether an object that is not visible was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeCheck {
    /// A node of the cluster is visible under the credentials in use (or it has no nodes): an invisible object was deleted.
    Verified,
    /// The credentials may be wrong, for this reason.
    Unverified(String),
}

/// What a part needs of an earlier part of the same Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredFacts {
    /// Nothing: both are built at the same time, and a Service leaves both at the same time.
    Independent,
    /// Nothing while it is built: both are built at the same time, and this part is run again when the facts of the earlier one
    /// change. A Service leaves this part before the earlier one.
    Nothing,
    /// Its facts, as soon as its create was accepted: an address that is known already.
    Accepted,
    /// Its facts when it has been built: a resource that the cloud refuses with "not ready" before that.
    Finished,
}

/// A value that may be known only after another step: an id, an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact<T> {
    /// Known.
    Known(T),
    /// Known later, with a description: `the address of load balancer web`.
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

    /// The value, or an error with its description: for [`PartCloud::send`], where everything must be known.
    ///
    /// # Errors
    /// If it is not known.
    pub fn get(&self) -> Result<&T> {
        match self {
            Self::Known(value) => Ok(value),
            Self::Later(what) => Err(Error::new(ErrorKind::Unexpected, format!("{what} is not known yet"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_wait_for_a_busy_part_is_used_and_a_shorter_one_of_a_header_is_raised() {
        const SECOND: Duration = Duration::from_secs(1);
        let conflict = |retry| WriteConflict::of(&Error::new(ErrorKind::Conflict, "busy").with_retry(retry));
        let busy = |wait| Some(WriteConflict::Busy(wait));
        assert_eq!(conflict(Retry::Fixed(SECOND)), busy(SECOND));
        assert_eq!(conflict(Retry::After(Duration::ZERO)), busy(SECOND));
        assert_eq!(conflict(Retry::After(9 * SECOND)), busy(9 * SECOND));
        assert_eq!(conflict(Retry::Backoff), None);
    }
}
