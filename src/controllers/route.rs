//! The route controller: it keeps the routes through the cloud's network to the Pods of each node.
//!
//! ```text
//! nodes --> window: when --> pass: desired, observe, plan --> retries: select --> apply, 500 at a time
//!              ^                                                                        |
//!   resync ----+---- retries <---------------------------------------------- outcomes --+--> conditions, events
//! ```
//!
//! [`ccm_core::routes`] decides which routes are desired and how to change the observed ones. This controller decides when
//! they are compared, which changes wait after a failure, and what is reported. [`window`], [`retries`] and [`outcome`]
//! decide, pure; [`pass`] has the effects.
//!
//! | Rule | Why |
//! |---|---|
//! | A pass follows a changed node after a tenth of a second, and a burst of changes when it is over or after 10 s | a node does not wait; a thousand of them cost one call |
//! | A route that fails waits for its own next try, longer each time | other routes do not wait for it |
//! | A full table is tried again when a route was deleted, or after 5 minutes | it would refuse every new node anyway |
//! | `NetworkUnavailable` is written only for nodes that have routes due, and only when it differs | with an overlay, another component writes it |
//! | A pass that could not read changes no route and clears no condition | a failed read is not an empty table |
//! | Without a usable `--cluster-cidr` this controller logs an error and does nothing | the others continue |
//!
//! Upstream does all of this every 10 s for all nodes, one call for each route; and does not try failed ones again when it
//! watches.

mod metrics;
mod outcome;
mod pass;
mod plan;
mod report;
mod retries;
mod window;

use std::{collections::HashMap, hash::RandomState, sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Priority,
    controllers::{
        Backoff, ControllerContext, ControllerNames, ControllerSetup, Informer, Needs, NodeObject,
        NotStarted, StoreChange,
    },
    routes::ClusterCidrs,
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

#[cfg(test)]
pub(crate) use self::metrics::record_metrics;
pub(crate) use self::plan::plan;
use self::{
    metrics::{RouteMetrics, Trigger},
    outcome::fingerprint,
    report::RouteReports,
    retries::PendingRetries,
    window::Window,
};
use crate::{
    config::RouteConfig,
    controllers::{Framework, FrameworkController, node_writer::NodeWriter},
};

/// Source of this controller's events.
pub(crate) const COMPONENT: &str = "route_controller";
/// Its name on the command line.
pub(crate) const NAME: &str = "node-route-controller";

pub(crate) const CONTROLLER: FrameworkController = FrameworkController {
    names: ControllerNames {
        name: NAME,
        aliases: &["route"],
        migration_name: Some("route-controller"),
        client_name: "route-controller",
    },
    needs,
    start: |context, framework| Box::pin(RouteController::new(context, framework).run()),
};

fn needs(setup: &ControllerSetup, framework: &Framework) -> Result<Needs, NotStarted> {
    if !framework.config.route.enabled {
        return Err(NotStarted::NotConfigured("no routes are desired (--configure-cloud-routes=false)"));
    }
    let needs = Needs {
        pod_cidrs: true,
        ..Needs::default()
    };
    // Most clusters have a Pod network of their own.
    let why = "the cloud provider does not support routes, or its config names no router";
    let routes = setup.cloud.routes();
    routes.map(|_| needs).ok_or(NotStarted::NotConfigured(why))
}

/// How often everything is compared although nothing changed, unless a flag sets another period.
const RESYNC: Duration = Duration::from_secs(300);
/// Waits after a pass that could not read, or could not write a condition.
const BACKOFF: Backoff = Backoff::seconds(1, 60);
/// How many changes are observed at once.
const CHANGES: usize = 512;

/// The controller. [`RouteController::run`] runs it.
pub(crate) struct RouteController {
    nodes: Arc<Informer<NodeObject>>,
    cloud: Arc<dyn Cloud>,
    config: RouteConfig,
    writer: NodeWriter,
    /// The condition that was last written of each node, by uid: whether its routes exist, and when.
    written: HashMap<String, (bool, Instant)>,
    /// Passes in a row that could not write a condition.
    unwritten: u32,
    reports: RouteReports,
    retries: PendingRetries,
    window: Window,
    /// The fingerprint of each node with podCIDRs, as last seen.
    seen: HashMap<String, u64>,
    hasher: RandomState,
    /// When the controller started, in seconds since the Unix epoch.
    started: i64,
    /// Passes in a row that could not read.
    failures: u32,
    /// When a pass is due in any case.
    next: Instant,
    /// Why the last pass ran, and whether the next one continues it.
    trigger: Trigger,
    continues: bool,
    metrics: RouteMetrics,
    shutdown: CancellationToken,
}

/// The CIDRs whose routes are this cluster's.
///
/// # Errors
/// The problem of the flag.
fn cluster_cidrs(config: &RouteConfig) -> Result<ClusterCidrs, String> {
    ClusterCidrs::parse(&config.cluster_cidr).map_err(|wrong| format!("--cluster-cidr {wrong}"))
}

impl RouteController {
    pub(crate) fn new(context: ControllerContext, framework: &Framework) -> Self {
        Self {
            writer: NodeWriter::new(context.client),
            written: HashMap::new(),
            unwritten: 0,
            reports: RouteReports::new(context.recorder.with_component(COMPONENT)),
            nodes: context.nodes,
            cloud: context.setup.cloud,
            config: framework.config.route.clone(),
            retries: PendingRetries::default(),
            window: Window::default(),
            seen: HashMap::new(),
            hasher: RandomState::new(),
            started: Timestamp::now().as_second(),
            failures: 0,
            next: Instant::now(),
            trigger: Trigger::Periodic,
            continues: false,
            metrics: context.metrics.with(RouteMetrics::register),
            shutdown: context.shutdown,
        }
    }

    /// Runs until shutdown; then finishes the pass that was begun and returns.
    pub(crate) async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        let Some(cidrs) = shutdown.run_until_cancelled(self.ready()).await.flatten() else {
            // The process does not end: other controllers have work to do.
            return shutdown.cancelled().await;
        };
        info!(controller = COMPONENT, cluster_cidr = %cidrs, "Controller started");
        self.metrics.running.set(1);
        for result in ["written", "missing", "failed"] {
            // The counters exist before the first write.
            let counter = self.metrics.conditions.get_or_create(&[("result", result)]);
            counter.inc_by(0);
        }
        // Not earlier: nobody reads changes while the cloud is asked.
        let mut changes = self.nodes.subscribe();
        let mut seen = Vec::with_capacity(CHANGES);
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                1.. = changes.recv_many(&mut seen, CHANGES) => {
                    for change in seen.drain(..) {
                        self.observe(change);
                    }
                }
                () = tokio::time::sleep_until(due) => self.pass(&cidrs).await,
            }
        }
        self.metrics.running.set(0);
        debug!(controller = COMPONENT, "Controller has finished what it had begun");
    }

    /// Waits until the cloud reports whether it has routes; `None` if it will not have any.
    async fn ready(&mut self) -> Option<ClusterCidrs> {
        self.nodes.synced().await;
        let cidrs = match cluster_cidrs(&self.config) {
            Ok(cidrs) => cidrs,
            Err(wrong) => {
                error!(
                    controller = COMPONENT,
                    error = wrong,
                    "Controller not started: --cluster-cidr does not name the networks of the Pods; correct it, or set \
                     --configure-cloud-routes=false if no routes are desired"
                );
                return None;
            }
        };
        let cloud = Arc::clone(&self.cloud);
        let mut failures = 0;
        loop {
            // `needs` has checked that the cloud supports routes.
            let missing = cloud.routes()?.unsupported_reason(Priority::User).await;
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
        if self.failures > 0 {
            // A change does not hurry a read that fails.
            return self.next;
        }
        let sooner = [self.window.due(), self.retries.due()];
        sooner.into_iter().flatten().fold(self.next, Instant::min)
    }

    /// Observes a change of a node, if it matters for routes.
    fn observe(&mut self, change: StoreChange) {
        let name = change.into_key();
        let node = self.nodes.get(&name);
        let now = node.and_then(|node| fingerprint(&node, &self.hasher));
        let before = match now {
            Some(now) => self.seen.insert(name, now),
            None => self.seen.remove(&name),
        };
        if before != now {
            self.window.add(Instant::now());
        }
    }

    fn period(&self) -> Duration {
        self.config.period.unwrap_or(RESYNC)
    }
}
