//! The route controller: every node's Pods can be reached through the cloud's network.
//!
//! ```text
//! nodes --> window: when --> pass: desired, observe, plan --> holds: what waits --> apply, 500 at a time
//!              ^                                                                        |
//!   resync ----+---- retries <---------------------------------------------- outcomes --+--> conditions, events
//! ```
//!
//! What there should be and what is to do about it is [`ccm_core::routes`]'s; here is when it is looked at, what waits
//! after a failure, and what is told. [`window`], [`holds`] and [`outcome`] decide, pure; [`pass`] and [`condition`] do.
//!
//! | Rule | Why |
//! |---|---|
//! | A changed node is looked at a tenth of a second later, a burst of them when it is over, or after 10 s | a node does not wait; a thousand of them cost one call |
//! | One route that fails waits for itself, longer each time | nobody else's does |
//! | A full table is tried again when a route went, or after 5 minutes | it would refuse every new node anyway |
//! | `NetworkUnavailable` is written only for nodes that have routes due, and only when it differs | with an overlay it is somebody else's |
//! | A pass that could not read changes nothing and clears nothing | a failed read is not an empty table |
//! | Without a usable `--cluster-cidr` this controller says so and rests | the others go on |
//!
//! Upstream does all of this every 10 s for all nodes, one call for each route; and does not try failed ones again when it
//! watches.

mod condition;
mod holds;
mod metrics;
mod outcome;
mod pass;
mod report;
mod review;
mod window;

use std::{collections::HashMap, hash::RandomState, sync::Arc, time::Duration};

use ccm_core::{Cloud, Priority, routes::ClusterCidrs};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::{sync::mpsc::UnboundedReceiver, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

pub(crate) use self::review::review;
use self::{
    condition::Conditions, holds::Holds, metrics::RouteMetrics, outcome::fingerprint, report::Reports,
    window::Window,
};
use crate::{
    events::Recorder,
    informers::{Change, Informer, node::NodeObject},
    options::{Config, RouteConfig},
    queue::Backoff,
};

/// Source of this controller's events.
pub(crate) const COMPONENT: &str = "route_controller";
/// Its name on the command line.
pub(crate) const NAME: &str = "node-route-controller";

/// How often everything is compared though nothing changed, unless a flag says otherwise.
const RESYNC: Duration = Duration::from_secs(300);
/// Waits after a pass that could not read, or could not write a condition.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};
/// How many changes are looked at before anything else.
const CHANGES: usize = 512;

/// The controller. [`RouteController::run`] is its life.
pub(crate) struct RouteController {
    nodes: Arc<Informer<NodeObject>>,
    cloud: Arc<dyn Cloud>,
    config: RouteConfig,
    conditions: Conditions,
    reports: Reports,
    holds: Holds,
    window: Window,
    /// What was last seen of each node with podCIDRs.
    seen: HashMap<String, u64>,
    hasher: RandomState,
    /// Passes in a row that could not read.
    failures: u32,
    /// A pass is due then, whatever happens.
    next: Instant,
    metrics: RouteMetrics,
    shutdown: CancellationToken,
}

/// Why there is nothing here for this controller to do, from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// By `--controllers`, or in a leader migration.
    SwitchedOff,
    /// By `--configure-cloud-routes`.
    NotWanted,
    /// The cloud has no routes, or its config names no place for them. Most clusters have a Pod network of their own.
    NoRoutes,
}

impl Idle {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::SwitchedOff => "it is switched off by --controllers, or another component runs it",
            Self::NotWanted => "no routes are wanted (--configure-cloud-routes=false)",
            Self::NoRoutes => "the cloud provider has no routes, or its config names no place for them",
        }
    }
}

/// Why the controller does not run, and nothing is planned for it; `None` if it does.
pub(crate) fn idle(cloud: &dyn Cloud, config: &Config) -> Option<Idle> {
    if !config.controllers.is_enabled(NAME) {
        Some(Idle::SwitchedOff)
    } else if !config.route.enabled {
        Some(Idle::NotWanted)
    } else if cloud.routes().is_none() {
        Some(Idle::NoRoutes)
    } else {
        None
    }
}

/// Whose the routes are.
///
/// # Errors
/// What is wrong with the flag.
fn cluster_cidrs(config: &RouteConfig) -> Result<ClusterCidrs, String> {
    ClusterCidrs::parse(&config.cluster_cidr).map_err(|wrong| format!("--cluster-cidr {wrong}"))
}

/// What the controller is given.
pub(crate) struct Parts {
    pub(crate) client: Client,
    pub(crate) nodes: Arc<Informer<NodeObject>>,
    pub(crate) cloud: Arc<dyn Cloud>,
    pub(crate) recorder: Recorder,
    pub(crate) config: RouteConfig,
    pub(crate) shutdown: CancellationToken,
}

impl RouteController {
    pub(crate) fn new(parts: Parts, registry: &mut Registry) -> Self {
        let metrics = RouteMetrics::register(registry);
        Self {
            conditions: Conditions::new(parts.client),
            reports: Reports::new(parts.recorder),
            nodes: parts.nodes,
            cloud: parts.cloud,
            config: parts.config,
            holds: Holds::default(),
            window: Window::default(),
            seen: HashMap::new(),
            hasher: RandomState::new(),
            failures: 0,
            next: Instant::now(),
            metrics,
            shutdown: parts.shutdown,
        }
    }

    /// Runs until shutdown; then finishes what was begun and returns.
    pub(crate) async fn run(mut self, mut changes: UnboundedReceiver<Change>) {
        let shutdown = self.shutdown.clone();
        let cidrs = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            ready = self.ready() => ready,
        };
        let Some(cidrs) = cidrs else {
            // Not the end of the process: others have work to do. Nobody waits for the changes.
            drop(changes);
            return shutdown.cancelled().await;
        };
        info!(controller = COMPONENT, cluster_cidr = %cidrs, "Controller started");
        self.metrics.running.set(1);
        let mut seen = Vec::with_capacity(CHANGES);
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                1.. = changes.recv_many(&mut seen, CHANGES) => {
                    for change in seen.drain(..) {
                        self.observe(&change);
                    }
                }
                () = tokio::time::sleep_until(due) => self.pass(&cidrs).await,
            }
        }
        self.metrics.running.set(0);
        debug!(
            controller = COMPONENT,
            "Controller has finished what it had begun"
        );
    }

    /// Waits until there is something to work with; `None` if there will not be.
    async fn ready(&mut self) -> Option<ClusterCidrs> {
        self.nodes.synced().await;
        let cidrs = match cluster_cidrs(&self.config) {
            Ok(cidrs) => cidrs,
            Err(wrong) => {
                error!(
                    controller = COMPONENT,
                    error = wrong,
                    "Controller not started: routes are configured, but not whose they are; with \
                     --configure-cloud-routes=false no routes are wanted"
                );
                return None;
            }
        };
        let cloud = Arc::clone(&self.cloud);
        let mut failures = 0;
        loop {
            // Whether there are routes is known since before the start.
            let missing = cloud.routes()?.missing(Priority::User).await;
            match missing {
                Ok(None) => return Some(cidrs),
                Ok(Some(why)) => {
                    warn!(
                        controller = COMPONENT,
                        reason = why,
                        "The cloud has no routes, controller not started"
                    );
                    return None;
                }
                Err(failed) => {
                    failures += 1;
                    self.reports.unreadable(&failed);
                    tokio::time::sleep(BACKOFF.delay(failures)).await;
                }
            }
        }
    }

    /// When the next pass is due.
    fn due(&self) -> Instant {
        let sooner = [self.window.due(), self.holds.due()];
        let soonest = sooner.into_iter().flatten().fold(self.next, Instant::min);
        if self.failures > 0 {
            // What fails for all is not hurried by what changes.
            return self.next;
        }
        soonest
    }

    /// Whether a change of a node matters here, and if so, when it is looked at.
    fn observe(&mut self, change: &Change) {
        let (name, now) = match change {
            Change::Applied(name) => {
                let node = self.nodes.get(name);
                (name, node.and_then(|node| fingerprint(&node, &self.hasher)))
            }
            Change::Deleted(name) | Change::Vanished(name) => (name, None),
        };
        let before = match now {
            Some(now) => self.seen.insert(name.clone(), now),
            None => self.seen.remove(name),
        };
        if before != now {
            self.window.note(Instant::now());
        }
    }

    fn period(&self) -> Duration {
        self.config.period.unwrap_or(RESYNC)
    }
}
