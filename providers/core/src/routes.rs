//! The contract of routes: Pod networks without an overlay.
//!
//! Every node has some Pod addresses of its own (`spec.podCIDRs`). Where the cloud's network has to know which machine
//! is behind them, the route controller keeps one route for each.
//!
//! ```text
//!   route controller                          Routes (one per cloud)                 the cloud
//!   ----------------                          ----------------------                 ---------
//!   nodes: podCIDRs, addresses    next_hop    what a route to a node leads to (pure)
//!        |                      ----------->
//!   [`Desired`]                   observe     all routes; what wanted ones lack      1 or 2 reads
//!        |                      ----------->
//!   [`plan`] (pure) --> Changes    apply      one call per direction, all changes    writes
//!                               ----------->
//!   conditions, events, retries <---------    a result for each change
//! ```
//!
//! What is compared are networks and next hops, never texts: `fd00::/64` and `fd00:0::/64` are the same, and a route to
//! a node that got another address is another route. Only destinations inside the cluster's CIDRs are ever deleted; a
//! network that *contains* a cluster CIDR, though it begins at the same address, is somebody else's.
//!
//! # What is safe
//!
//! - A read that fails is an error and no table without routes: nothing is planned then.
//! - If no node has a podCIDR, nothing is deleted: a cluster without nodes needs no room in its table, and a mistake
//!   would cost all of it.
//! - Routes to a podCIDR are left alone while the next hop of its node is not known, or the node is another cloud's.
//! - What is beside a route (OpenStack's address pairs) is added after the route and taken away before it: the route is
//!   the sign by which a process that was killed finds what is left to do.
//!
//! # How the clouds sit on it
//!
//! **OpenStack.** One router's extra routes, or several routers that all have the same; what some of them lack is
//! *unfinished*. The next hop is the node's first internal address of the family. `apply` is
//! one `remove_extraroutes`, one `add_extraroutes`, and a PUT for each port whose address pairs differ; a batch that is
//! refused is divided until the bad routes stand alone.
//!
//! **AWS.** Route tables, one or several. The next hop is the instance id of the provider ID, so that a changed address
//! changes nothing; one DescribeRouteTables observes, and what a route is beside (the source/destination check of the
//! instance) is *unfinished* until it is off. Changes are one call each, bounded by the gate. A route whose instance is
//! gone is a blackhole.
//!
//! **GCE.** Routes of the network. The next hop is the instance's URL; the handle is the route's name, which a create
//! makes from cluster name and node. One list with a filter observes, changes are one call each, waiting for their
//! operations inside `apply`.
//!
//! **Azure.** One route table, a document. The next hop is the node's address. Deletes and creates of an `apply` are one
//! PUT under the table's etag, the raw JSON is kept so that foreign routes and unknown fields go back as they came; all
//! changes of the PUT have its result.

mod cidrs;
mod desired;
mod planner;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use ipnet::IpNet;

use crate::{Error, NodeAddress, NodeView, Priority, Result};

pub use cidrs::ClusterCidrs;
pub use desired::{Desired, Due, Obstacle, Want};
pub use planner::{Beyond, RoutePlan, imagine, plan};

/// The routes of one cloud.
#[async_trait]
pub trait Routes: Send + Sync {
    /// Why there can be no routes here, in words; `None` if there can. Asked once, before anything else.
    ///
    /// # Errors
    /// If that cannot be found out now.
    async fn missing(&self, priority: Priority) -> Result<Option<String>>;

    /// What a route to this node's Pods of this network leads to. Pure, and spelled the same for the same thing.
    ///
    /// # Errors
    /// If the node has nothing (yet) that a route could lead to.
    fn next_hop(&self, node: &RouteNode, destination: IpNet) -> Result<NextHop>;

    /// What is kept beside each route, in words that follow "with"; `None` if that is nothing, or not known yet. Pure.
    fn beside(&self) -> Option<&'static str> {
        None
    }

    /// All routes that there are, read now. `wanted` are those that there should be, so that what stands beside them
    /// can be looked at, too.
    ///
    /// # Errors
    /// If anything of it cannot be read. All or nothing: half a table is no table.
    async fn observe(&self, wanted: &[DesiredRoute], priority: Priority) -> Result<Observed>;

    /// How many routes there is room for in all, read now; `None` if nobody says so. Only `plan` and `validate` ask this: what
    /// is too much is refused anyway.
    ///
    /// # Errors
    /// If that cannot be found out now.
    async fn limit(&self, priority: Priority) -> Result<Option<RouteLimit>> {
        let _ = priority;
        Ok(None)
    }

    /// Makes the changes, in as few calls as the cloud allows, and says of each what became of it.
    ///
    /// A route is created only if every route with the same destination that is to be deleted is gone. One change that
    /// is refused holds up no other. Idempotent: what is there already is created, what is not there is deleted.
    async fn apply(&self, changes: &Changes, priority: Priority) -> Applied;
}

/// What a route leads to, in the cloud's own terms: an address, the id of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop(Arc<str>);

impl NextHop {
    /// From its one spelling.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Its spelling.
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

/// A node as routes see it.
#[derive(Clone, Debug, Default)]
pub struct RouteNode {
    /// What finds its machine.
    pub view: Arc<NodeView>,
    /// `status.addresses`.
    pub addresses: Vec<NodeAddress>,
    /// `spec.podCIDRs`, without host bits.
    pub pod_cidrs: Vec<IpNet>,
    /// `metadata.creationTimestamp`, in seconds since the Unix epoch. The oldest node has the first claim.
    pub created: i64,
    /// Whether nobody has seen to it yet: it has no addresses because it is new.
    pub uninitialized: bool,
}

/// A route that there should be.
#[derive(Clone, Debug)]
pub struct DesiredRoute {
    /// Where packets are for.
    pub destination: IpNet,
    /// Where they go.
    pub next_hop: NextHop,
    /// The node whose Pods they are for.
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

/// A route that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudRoute {
    /// Where packets are for.
    pub destination: IpNet,
    /// Where they go.
    pub next_hop: NextHop,
    /// Whether they go nowhere, because the cloud says that what they go to is gone.
    pub blackhole: bool,
    /// By what the provider finds it again: a name, or the texts that the cloud spells it with.
    pub handle: String,
}

impl fmt::Display for CloudRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blackhole = if self.blackhole { " (a blackhole)" } else { "" };
        write!(f, "{} via {}{blackhole}", self.destination, self.next_hop)
    }
}

/// What [`Routes::observe`] saw.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// All routes, foreign ones, too. Those whose destination cannot be read as a network may be left out.
    pub routes: Vec<CloudRoute>,
    /// Which of the wanted ones (by their place) are among them, but lack something beside them.
    pub unfinished: Vec<usize>,
}

/// How many routes there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteLimit {
    /// So many in all.
    pub routes: usize,
    /// What one raises for more, in words that follow "raise".
    pub raised_by: &'static str,
}

/// What there is to do.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Routes that go, before any with the same destination comes.
    pub delete: Vec<CloudRoute>,
    /// Routes that come; if there is not room for all, the first ones.
    pub create: Vec<DesiredRoute>,
    /// Routes that are there and lack something beside them.
    pub finish: Vec<DesiredRoute>,
}

impl Changes {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.delete.len() + self.create.len() + self.finish.len()
    }

    /// Each as a sentence.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let deletes = self.delete.iter().map(|route| format!("delete route {route}"));
        let creates = self.create.iter().map(|route| format!("create route {route}"));
        let finishes = self.finish.iter().map(|route| format!("finish route {route}"));
        deletes.chain(creates).chain(finishes).collect()
    }
}

/// What became of [`Changes`], each in its place.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// Of those that go.
    pub deleted: Vec<Result<()>>,
    /// Of those that come.
    pub created: Vec<Result<()>>,
    /// Of those that lacked something.
    pub finished: Vec<Result<()>>,
}

impl Applied {
    /// The same error for all changes.
    #[must_use]
    pub fn failed(changes: &Changes, error: &Error) -> Self {
        let failed = |count| vec![Err(error.clone()); count];
        Self {
            deleted: failed(changes.delete.len()),
            created: failed(changes.create.len()),
            finished: failed(changes.finish.len()),
        }
    }
}
