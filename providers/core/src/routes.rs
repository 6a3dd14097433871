//! The contract of routes: Pod networks without an overlay.
//!
//! Every node has its own Pod CIDRs (`spec.podCIDRs`). If the cloud's network must know which instance serves them, the route
//! controller maintains one route for each.
//!
//! ```text
//!   route controller                          Routes (one per cloud)                 the cloud
//!   ----------------                          ----------------------                 ---------
//!   nodes: podCIDRs, addresses    next_hop    the next hop of a route to a node (pure)
//!        |                      ----------->
//!   [`Desired`]                   observe     all routes; desired ones incomplete    1 or 2 reads
//!        |                      ----------->
//!   [`plan`] (pure) --> RouteChanges    apply      one call per direction, all changes    writes
//!                               ----------->
//!   conditions, events, retries <---------    a result for each change
//! ```
//!
//! Networks and next hops are compared, not texts: `fd00::/64` and `fd00:0::/64` are the same, and a route to a node whose
//! address changed is a different route. Only routes inside the cluster's CIDRs are deleted. A network that *contains* a
//! cluster CIDR is foreign, even if it begins at the same address.
//!
//! # Safety
//!
//! - A failed read is an error, not an empty route table. No changes are planned.
//! - If no node has a podCIDR, no route is deleted: a mistake would delete all of them.
//! - Routes to a podCIDR are left unchanged while the next hop of its node is unknown, or if the node belongs to another cloud.
//! - A route's related settings (OpenStack's address pairs) are added after the route and removed before it. The route marks
//!   the remaining work if the process is killed in between.
//!
//! # Implementations
//!
//! **OpenStack.** One router's extra routes, or several routers that all have the same; a route that some of them lack is
//! *unfinished*. The next hop is the node's first internal address of the family. `apply` is
//! one `remove_extraroutes`, one `add_extraroutes`, and a PUT for each port whose address pairs differ; a refused
//! batch is bisected until the invalid routes are isolated.
//!
//! **AWS.** Route tables, one or several. The next hop is the instance id of the provider ID, so that a changed address
//! has no effect. One DescribeRouteTables observes. A route is *unfinished* until the source/destination check of its
//! instance is off. RouteChanges are one call each, bounded by the gate. A route whose instance was deleted is a blackhole;
//! the route to a stopped instance counts as complete.
//!
//! **GCE.** Routes of the network. The next hop is the instance's URL; the handle is the route's name, which a create
//! derives from cluster name and node. One list with a filter observes, changes are one call each, waiting for their
//! operations inside `apply`.
//!
//! **Azure.** One route table, a document. The next hop is the node's address. Deletes and creates of an `apply` are one
//! PUT under the table's etag, the raw JSON is kept so that foreign routes and unknown fields are sent back unchanged. All
//! changes of the PUT have its result.

mod cidrs;
mod desired;
mod planner;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use ipnet::IpNet;

use crate::{Error, NodeAddress, NodeView, Priority, Result};

pub use cidrs::ClusterCidrs;
pub use desired::{Desired, PodCidr, RouteDecision, SkipReason};
pub use planner::{OverLimit, RoutePlan, plan, preview};

/// The routes of one cloud.
#[async_trait]
pub trait Routes: Send + Sync {
    /// The reason why this cloud does not support routes; `None` if it does. Called once, before any other method.
    ///
    /// # Errors
    /// The cloud could not be read.
    async fn unsupported_reason(&self, priority: Priority) -> Result<Option<String>>;

    /// The next hop of a route to this node's Pods of this network. Pure; the same target always has the same text.
    ///
    /// # Errors
    /// The node has no next hop (yet), such as an address of the family.
    fn next_hop(&self, node: &RouteNode, destination: IpNet) -> Result<NextHop>;

    /// The setting that is maintained with each route, in words that follow "with"; `None` if there is none, or if it is not
    /// known yet. Pure.
    fn related_setting(&self) -> Option<&'static str> {
        None
    }

    /// Reads all existing routes, and the related settings of the `desired` ones.
    ///
    /// # Errors
    /// A read failed. A partial table is never returned.
    async fn observe(&self, desired: &[DesiredRoute], priority: Priority) -> Result<Observed>;

    /// Reads the limit of routes; `None` if the cloud does not report one. Only `plan` and `validate` call this: the cloud
    /// refuses routes above the limit anyway.
    ///
    /// # Errors
    /// The limit could not be read.
    async fn limit(&self, priority: Priority) -> Result<Option<RouteLimit>> {
        let _ = priority;
        Ok(None)
    }

    /// Applies the changes in as few calls as the cloud allows, and returns the result of each.
    ///
    /// A route is created only after every route with the same destination in `delete` is deleted. A refused change does not
    /// block the others. Idempotent: creating an existing route and deleting a missing one succeed.
    async fn apply(&self, changes: &RouteChanges, priority: Priority) -> Applied;
}

/// The next hop of a route, in the cloud's terms: an address, or the id of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop(Arc<str>);

impl NextHop {
    /// A next hop from its canonical text.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Its canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fields of a node that its routes depend on.
#[derive(Clone, Debug, Default)]
pub struct RouteNode {
    /// The fields that identify its instance.
    pub view: Arc<NodeView>,
    /// `status.addresses`.
    pub addresses: Vec<NodeAddress>,
    /// `spec.podCIDRs`, without host bits.
    pub pod_cidrs: Vec<IpNet>,
    /// `metadata.creationTimestamp`, in seconds since the Unix epoch. If two nodes have the same podCIDR, the older one gets the route.
    pub created: i64,
    /// Whether the node is not initialized yet: it has no addresses because it is new.
    pub uninitialized: bool,
}

/// A route that should exist.
#[derive(Clone, Debug)]
pub struct DesiredRoute {
    /// The destination of the packets.
    pub destination: IpNet,
    /// Where the packets are sent.
    pub next_hop: NextHop,
    /// The node whose Pods receive them.
    pub node: Arc<RouteNode>,
}

impl fmt::Display for DesiredRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            destination,
            next_hop,
            node,
        } = self;
        write!(f, "{destination} via {next_hop} (node {})", node.view.name)
    }
}

/// A route that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudRoute {
    /// The destination of the packets.
    pub destination: IpNet,
    /// Where the packets are sent.
    pub next_hop: NextHop,
    /// Whether the packets are dropped: the cloud reports that the next hop no longer exists.
    pub blackhole: bool,
    /// The provider's identifier of the route, which no other route has: a name, or the cloud's own text of destination and
    /// next hop.
    pub handle: String,
}

impl fmt::Display for CloudRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blackhole = if self.blackhole { " (a blackhole)" } else { "" };
        write!(f, "{} via {}{blackhole}", self.destination, self.next_hop)
    }
}

/// The result of [`Routes::observe`].
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// All routes, including foreign ones. Routes whose destination is not a network may be left out.
    pub routes: Vec<CloudRoute>,
    /// The indices of the desired routes that exist but whose related settings are missing.
    pub unfinished: Vec<usize>,
}

/// The limit of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteLimit {
    /// The most routes in total.
    pub routes: usize,
    /// The quota or setting to raise, in words that follow "raise".
    pub raised_by: &'static str,
}

/// Changes of routes.
#[derive(Clone, Debug, Default)]
pub struct RouteChanges {
    /// Routes to delete, before any with the same destination is created.
    pub delete: Vec<CloudRoute>,
    /// Routes to create; if the limit is lower, the first ones.
    pub create: Vec<DesiredRoute>,
    /// Existing routes whose related settings are missing.
    pub finish: Vec<DesiredRoute>,
}

impl RouteChanges {
    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.delete.len() + self.create.len() + self.finish.len()
    }

    /// One sentence for each change.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let deletes = self.delete.iter().map(|route| format!("delete route {route}"));
        let creates = self.create.iter().map(|route| format!("create route {route}"));
        let finishes = self.finish.iter().map(|route| format!("finish route {route}"));
        deletes.chain(creates).chain(finishes).collect()
    }
}

/// The results of [`RouteChanges`], in the same order.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// The results of `delete`.
    pub deleted: Vec<Result<()>>,
    /// The results of `create`.
    pub created: Vec<Result<()>>,
    /// The results of `finish`.
    pub finished: Vec<Result<()>>,
}

impl Applied {
    /// The same error for all changes.
    #[must_use]
    pub fn failed(changes: &RouteChanges, error: &Error) -> Self {
        Self {
            deleted: vec![Err(error.clone()); changes.delete.len()],
            created: vec![Err(error.clone()); changes.create.len()],
            finished: vec![Err(error.clone()); changes.finish.len()],
        }
    }
}
