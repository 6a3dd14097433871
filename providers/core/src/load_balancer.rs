//! The interface between the service controller and a provider of load balancers.
//!
//! ```text
//!   service controller                     LoadBalancers (one per cloud)              the cloud
//!   ------------------                     -----------------------------              ---------
//!   ClusterSnapshot: Services,     discover  which parts each Service
//!   the cluster's name and tag ----------> joins and leaves
//!
//!   one worker per part            run     one pass over one part for    reads, writes
//!                              ----------> all its members             ---------------->
//!   status, annotations, events <--------- PartReport: steps done, each member's state,
//!   finalizer; parks, runs again           which parts to run next, and when
//!
//!   --dry-run, `plan`             plan     the same passes, writes only in memory       reads
//!                              ----------> sentences                   ---------------->
//! ```
//!
//! The unit is not the Service but the **part**: the smallest thing of a cloud that one writer may change at a time
//! (a load balancer, a security group that all nodes share). A Service names its parts in order; Services that share a
//! part are its *members*, and one pass handles all of them.
//!
//! Providers do not implement [`LoadBalancers`] themselves: [`plan::Engine`](crate::plan::Engine) does, from a
//! [`PartModel`](crate::plan::PartModel) and a [`PartCloud`](crate::plan::PartCloud).

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use crate::{Freshness, Priority, Result};

mod annotation_record;
mod annotations;
mod finding;
mod left_out;
mod names;
mod node;
mod own_names;
mod ownership;
mod reconcile_metrics;
mod report;
mod selector;
mod service;
mod source_ranges;

pub use annotation_record::AnnotationRecord;
pub use annotations::{AnnotationDoc, AnnotationReader, AnnotationTable, IgnoredValue, InvalidField};
pub use finding::{Field, ServiceFinding, Severity};
pub use left_out::NodeLeftOut;
pub use names::{default_name, truncated};
pub use node::{AddressGroup, NodeSet, ServiceNode};
pub use own_names::{NameOwner, OwnNames};
pub use ownership::{ClusterTag, Ownership, OwnershipTag};
pub use reconcile_metrics::{ReconcileMetrics, ReconcileMetricsConfig, Reconciliation};
pub use report::{
    Blocked, Condition, Discovery, Effect, Effects, FormerLoadBalancer, Ingress, IpMode, MemberReport,
    MemberState, OrphanPart, PartReport, PartState, ServiceEvent, ServiceParts, StepDescription, StepObjects,
    StepReport,
};
pub use selector::NodeSelector;
pub use service::{
    IpFamily, Policy, PortTarget, Protocol, ProviderFinalizers, ServiceId, ServicePort, ServiceType,
    ServiceView, SessionAffinity,
};
pub use source_ranges::SourceRanges;

pub use crate::annotations;

/// The load balancers of one cloud.
///
/// Every method may be called at any time and any number of times at once; two passes over the same part wait for each
/// other.
#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// The controller that is responsible for this Service, by its class and annotations alone.
    fn claims(&self, service: &ServiceView) -> Claim;

    /// The values of `spec.loadBalancerClass` that this provider serves, besides Services without a class.
    fn classes(&self) -> &[&'static str];

    /// The provider's own finalizers for this Service.
    fn finalizers(&self, service: &ServiceView) -> ProviderFinalizers;

    /// Finds the parts of the Services. Reads the cloud's listings unless `request.read` allows cached ones, and writes
    /// nothing.
    ///
    /// # Errors
    /// If the listings cannot be read.
    async fn discover(&self, request: &Request) -> Result<Discovery>;

    /// Reconciles one part with the specs of its members, as far as possible without waiting for the cloud.
    ///
    /// Idempotent. A pass that has to wait for the cloud returns [`PartState::Parked`] and is continued by calling
    /// `run` again; called too early, it returns the same state without a call of the cloud.
    async fn run(&self, part: &PartKey, request: &Request) -> PartReport;

    /// The reports of [`run`](Self::run) for all Services, or for one Service and its parts as a whole, as if every step was done
    /// at once. Reads only.
    ///
    /// # Errors
    /// If the listings cannot be read; a later failure is in the report of its part.
    async fn plan(&self, request: &Request, only: Option<&ServiceId>) -> Result<Vec<PartReport>>;
}

impl dyn LoadBalancers + '_ {
    /// The view with which to clean up a Service that was ours, with this `last` view, and for which another controller is
    /// responsible now: see [`ServiceView::cleanup`]. `None` if the Service is still ours, if this provider leaves the load
    /// balancer unchanged in this case, or if the Service has no finalizer of ours.
    #[must_use]
    pub fn cleanup_view(&self, service: &ServiceView, last: &ServiceView) -> Option<ServiceView> {
        if self.claims(service) == Claim::Ours {
            return None;
        }
        let view = service.cleanup(last);
        let needs_cleanup = self.finalizers(&view).needs_cleanup(&view);
        (needs_cleanup && self.claims(&view) == Claim::Ours).then_some(view)
    }
}

/// The controller that is responsible for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// This provider is responsible.
    Ours,
    /// Another component of the same cloud is. The Service is left unchanged. If it has our finalizer from before, the
    /// finalizer is removed and the status cleared when it is deleted or is no longer of type LoadBalancer.
    Elsewhere,
    /// A controller unknown to this provider is. The Service is left unchanged, its finalizer included, unless it was ours
    /// before: then its load balancer is deleted. A process that did not see the change deletes it with the Service, if the
    /// cloud [proves](FormerLoadBalancer) that it is ours.
    NotOurs,
}

/// Everything in the cluster that decides which load balancers are desired, at one moment.
#[derive(Clone, Debug, Default)]
pub struct ClusterSnapshot {
    /// All Services that have, want or wanted a load balancer: those of type LoadBalancer, those with our finalizer, and
    /// those with a load balancer in their status. Others may be among them. In the order of their ids.
    pub services: Vec<Arc<ServiceView>>,
    /// The nodes and the cluster itself.
    pub cluster: ClusterView,
}

impl ClusterSnapshot {
    /// A snapshot of these Services, in any order.
    #[must_use]
    pub fn new(mut services: Vec<Arc<ServiceView>>, cluster: ClusterView) -> Self {
        services.sort_by(|a, b| a.id.cmp(&b.id));
        Self { services, cluster }
    }

    /// The Service with this id.
    #[must_use]
    pub fn service(&self, id: &ServiceId) -> Option<&Arc<ServiceView>> {
        let found = self.services.binary_search_by(|view| view.id.cmp(id)).ok()?;
        self.services.get(found)
    }
}

/// The part of the [`ClusterSnapshot`] that is the same for all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// `--cluster-name`.
    pub name: Arc<str>,
    /// This cluster's ownership tag.
    pub ownership_tag: OwnershipTag,
    /// All nodes.
    pub nodes: NodeSet,
}

/// How old answers may be, and their priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// How old an answer may be.
    pub freshness: Freshness,
    /// The priority of the calls.
    pub priority: Priority,
}

impl ReadOptions {
    /// The same options, but only answers to requests from now on.
    #[must_use]
    pub fn uncached(self) -> Self {
        Self {
            freshness: Freshness::now(),
            ..self
        }
    }
}

/// The arguments of a call of [`LoadBalancers`].
#[derive(Clone)]
pub struct Request {
    /// The cluster. Callers with several requests for the same moment share one `Arc`; it is compared by address.
    pub snapshot: Arc<ClusterSnapshot>,
    /// How old answers may be, and their priority.
    pub read: ReadOptions,
    /// Called with the steps of a pass before the first write, and not again when a parked pass continues, unless its members, or
    /// which of them want a load balancer, have changed since.
    pub announce: Option<Arc<Announce>>,
    /// Whether this pass may delete the part if it is an orphan ([`OrphanPart::deletable`]). Without it, a pass over an
    /// orphan does nothing: an incomplete list of Services must not lead to the deletion of a load balancer.
    pub delete_orphan: bool,
    /// Whether the report contains all members of the part. Otherwise, members are left out that an earlier report said were served,
    /// and for which nothing has changed since then.
    pub report_all: bool,
}

/// A function of the steps that are due.
pub type Announce = dyn Fn(&[StepDescription]) + Send + Sync;

impl Request {
    /// A request that announces nothing, deletes no orphan, and is about all members.
    #[must_use]
    pub fn new(snapshot: Arc<ClusterSnapshot>, read: ReadOptions) -> Self {
        Self {
            snapshot,
            read,
            announce: None,
            delete_orphan: false,
            report_all: true,
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("services", &self.snapshot.services.len())
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}

/// The name of a part, such as `lb/6d7c…` or `node-ports`: the object itself. Only the provider interprets
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartKey(Arc<str>);

impl PartKey {
    /// The part with this name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PartKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
