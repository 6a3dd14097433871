//! The service controller: creates, updates and deletes the load balancer of each Service of type LoadBalancer.
//!
//! # Expected flow
//!
//! The unit of work in the cloud is the *part*, not the Service (see [`ccm_core::load_balancer`]): a load balancer, or the rules
//! on the nodes that many load balancers share. One pass of the plan engine serves all members of a part.
//!
//! A new Service goes through the watch twice before anything is created for it:
//!
//! 1. The watch brings the Service. [`run_events`](ServiceController::run_events) asks the provider whether it is ours, and gives
//!    it to the [`state`]. Passes do not know of it yet.
//! 2. A worker for objects compares it with its desired content and adds the finalizers
//!    ([`sync_object`](ServiceController::sync_object)).
//! 3. The watch brings it again, with the finalizers. Now the state includes it in the snapshot of the cluster, and a discovery is
//!    due.
//! 4. The event loop runs the discovery: the provider answers which parts the Service joins, and which it leaves. The state
//!    compares that with what it knows, and queues the parts.
//! 5. A worker for parts takes one and runs a pass ([`run_part`](ServiceController::run_part)): the plan engine reads the cloud,
//!    compares, and sends steps until nothing differs. A part that waits for the cloud is parked: its worker is free, and a timer
//!    queues it again.
//! 6. The report of the pass goes to the state. A part with new facts, such as an address, queues the parts that depend on it.
//! 7. When all parts serve the Service, the worker for objects writes status and annotations, and publishes the Event.
//! 8. The watch brings our own write. It changes nothing that the Service asks for, so it ends here.
//!
//! Later changes begin at the step that they concern:
//!
//! | Change | Begins at |
//! |---|---|
//! | of the Service | 3 |
//! | of nodes | 5, for the parts that do not follow them yet, 2 to 10 s later; at once if a node cannot answer any more ([`nodes`]) |
//! | of the cloud by others | 4, with answers that are read again (the drift check, in the background) |
//! | deletion, or another type or class | 4: the Service leaves its parts; then 7 removes status and finalizers |
//!
//! # Guarantees
//!
//! - Nothing is created in the cloud before the finalizers are stored, and they are removed only when the Service has left every
//!   part. So nothing is left in the cloud.
//! - No two passes run over the same part at the same time.
//! - Status and annotations are written when everything is served, and again whenever they differ: values that others removed
//!   come back.
//! - A Service that was served when this process started, and needs no step, is not written and gets no Event: a restart is
//!   silent.
//! - A part in trouble keeps its own retry, and delays no other part. A discovery that fails delays no known part.
//!
//! # Caveats
//!
//! - A change only causes a comparison. Which event caused it is not remembered, and two changes can end in one pass.
//! - The store is older than the API server, also after our own writes. A change that another client undoes is written again
//!   after growing waits.
//! - The API server can lose Services. Load balancers without a Service are reported, and deleted only on request ([`orphans`]).
//! - A Service that got the class of another controller while no process ran is ours only if the cloud proves it ([`former`]).
//!
//! # Modules
//!
//! [`state`] decides and makes no call; all others act.
//!
//! | Module | Contents |
//! |---|---|
//! | [`event_loop`] | changes and time; the discovery |
//! | [`state`] | the state of Services and parts, and the consequences of a change |
//! | [`workers`] | passes over parts; patches of Service objects |
//! | [`object`] | the desired content of a Service object, and the patch |
//! | [`events`] | events, each published once |
//! | [`nodes`], [`orphans`], [`ownership_tag`] | members of load balancers; load balancers without a Service; the tag |
//! | [`cluster_id`] | the ID by which the cloud's objects are named, for clouds that keep one in the cluster |
//! | [`former`] | load balancers of Services that belong to another controller now |
//! | [`plan`] | the plan of this controller |

mod cluster_id;
mod event_loop;
mod events;
mod former;
mod metrics;
mod nodes;
mod object;
mod orphans;
mod ownership_tag;
mod plan;
mod state;
mod workers;

use std::sync::Arc;

use ccm_core::{
    Cloud,
    controllers::{
        Backoff, ControllerContext, ControllerFuture, ControllerSetup, Informer, Needs, NodeObject,
        NotStarted, SERVICE_CONTROLLER, ServiceObject, WorkQueue,
    },
    load_balancer::{Claim, OwnershipTag, PartKey},
};
use kube::Client;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

#[cfg(test)]
pub(crate) use self::metrics::record_metrics;
pub(crate) use self::{
    cluster_id::{IfMissing, wait as wait_for_cluster_id, wait_for_plan as wait_for_cluster_id_of_plan},
    ownership_tag::{
        KnownTag, follow as follow_ownership_tag, wait as wait_for_ownership_tag,
        wait_for_plan as wait_for_ownership_tag_of_plan,
    },
    plan::{PlannedCluster, plan},
};
use self::{
    events::EventReporter,
    metrics::ServiceMetrics,
    state::{ClaimedService, ClusterChange, ControllerState, Name, ServiceInput},
};
use crate::{
    config::ServiceConfig,
    controllers::{Framework, FrameworkController},
    server::{Checks, Workers},
};

/// Source of this controller's events.
pub(crate) const COMPONENT: &str = "service-controller";
/// Its name on the command line.
pub(crate) const NAME: &str = SERVICE_CONTROLLER.name;

/// The check of its workers.
const WORKERS_CHECK: &str = "service-lb-controller-workers";
/// The check of its event loop.
const EVENT_LOOP_CHECK: &str = "service-lb-controller-event-loop";

pub(crate) const CONTROLLER: FrameworkController = FrameworkController {
    names: SERVICE_CONTROLLER,
    needs,
    start,
};

fn needs(setup: &ControllerSetup, _: &Framework) -> Result<Needs, NotStarted> {
    if setup.cloud.load_balancers().is_none() {
        return Err(NotStarted::Unsupported("the cloud provider does not support load balancers"));
    }
    Ok(Needs {
        load_balancer_services: true,
        ..Needs::default()
    })
}

fn start(context: ControllerContext, framework: &Framework) -> ControllerFuture {
    let controller = ServiceController::new(context, framework);
    framework.status.set_services(shown(&controller, ControllerState::rows));
    framework.status.set_orphans(shown(&controller, ControllerState::orphan_rows));
    Box::pin(controller.run())
}

/// Rows of the status page. The page outlives the controller, whose recorders keep the writer of Events running.
fn shown<T>(
    controller: &Arc<ServiceController>,
    rows: fn(&ControllerState) -> Vec<T>,
) -> impl Fn() -> Vec<T> + use<T> {
    let controller = Arc::downgrade(controller);
    move || match controller.upgrade() {
        Some(controller) => rows(&controller.state.lock()),
        None => Vec::new(),
    }
}

/// Waits between tries of one part, as upstream's.
const BACKOFF: Backoff = Backoff::seconds(5, 300);

/// Waits between tries to write one Service object.
const OBJECT_BACKOFF: Backoff = Backoff::seconds(1, 60);

/// How many Service objects are written at once.
const OBJECT_WRITERS: usize = 8;

/// The controller. [`ServiceController::run`] runs it.
pub(crate) struct ServiceController {
    client: Client,
    cluster: Client,
    cluster_id: Client,
    services: Arc<Informer<ServiceObject>>,
    nodes: Arc<Informer<NodeObject>>,
    cloud: Arc<dyn Cloud>,
    config: ServiceConfig,
    cluster_name: Arc<str>,
    parts: WorkQueue<PartKey>,
    objects: WorkQueue<Name>,
    state: Mutex<ControllerState>,
    /// Notifies the event loop that work may be due.
    changed: Notify,
    events: EventReporter,
    metrics: ServiceMetrics,
    checks: Checks,
    workers: Workers,
    shutdown: CancellationToken,
}

impl ServiceController {
    pub(crate) fn new(context: ControllerContext, framework: &Framework) -> Arc<Self> {
        let config = framework.config.service.clone();
        let (cloud, queues) = (context.setup.cloud, context.metrics.queues());
        let recorder = context.recorder.with_component(COMPONENT);
        let provider = recorder.with_component(cloud.event_component());
        Arc::new(Self {
            client: context.client,
            cluster: framework.client.clone(),
            cluster_id: framework.cluster_id_client.clone(),
            services: context.services,
            nodes: context.nodes,
            cloud,
            config,
            cluster_name: context.setup.cluster_name.into(),
            parts: WorkQueue::new(BACKOFF, "service", queues),
            objects: WorkQueue::new(OBJECT_BACKOFF, "service_objects", queues),
            state: Mutex::default(),
            changed: Notify::new(),
            events: EventReporter::new(recorder, provider, framework.process.clone()),
            metrics: context.metrics.with(ServiceMetrics::register),
            checks: framework.checks.clone(),
            workers: Workers::new(&framework.checks, WORKERS_CHECK),
            shutdown: context.shutdown,
        })
    }

    /// Runs until shutdown; then finishes the running passes and patches, starts nothing, and returns.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut tag = ownership_tag::follow(self.cluster.clone(), Some(&self.checks));
        let ready = async {
            self.services.synced().await;
            self.nodes.synced().await;
            let tag = ownership_tag::wait(&mut tag).await;
            if let Some(id) = self.cloud.cluster_id() {
                cluster_id::register_check(id, &self.checks);
                cluster_id::wait(&self.cluster_id, id, IfMissing::Create).await;
            }
            tag
        };
        let Some(at_start) = self.shutdown.run_until_cancelled(ready).await else {
            return;
        };
        // A known tag need not be followed.
        let tag = (at_start == OwnershipTag::Unknown).then_some(tag);
        *self.state.lock() =
            ControllerState::new(Arc::clone(&self.cluster_name), at_start, self.config.orphans);
        info!(controller = COMPONENT, services = self.services.list().len(), "Controller started");
        let mut tasks = JoinSet::new();
        for _ in 0..self.config.concurrent_syncs.get() {
            tasks.spawn(self.workers.watch(Arc::clone(&self).work_on_parts()));
        }
        for _ in 0..OBJECT_WRITERS {
            tasks.spawn(self.workers.watch(Arc::clone(&self).work_on_objects()));
        }
        if let Some(id) = self.cloud.cluster_id() {
            let follow = cluster_id::follow(self.cluster_id.clone(), id.clone());
            let shutdown = self.shutdown.clone();
            tasks.spawn(async move {
                shutdown.run_until_cancelled(follow).await;
            });
        }
        tasks.spawn(Arc::clone(&self).run_events(tag));
        // Forwards the panic of a task.
        tasks.join_all().await;
        debug!(controller = COMPONENT, "Controller has finished what it had begun");
    }

    /// The Service, if it has, had or wants a load balancer, with the provider's answers about it, which must be as new as the
    /// object. The store may keep others, which other controllers need.
    ///
    /// One that was ours and now has the class of another controller stays ours, of type ClusterIP, until its load balancer is
    /// deleted. If this process has not seen the change, a [discovery](former) finds out whether it was ours.
    fn service(&self, name: &str) -> Option<ClaimedService> {
        let mut object = self.services.get(name).filter(|object| object.is_concerned())?;
        let balancers = self.cloud.load_balancers()?;
        let ours = self.state.lock().ours(&object.view.id);
        if let Some(view) = ours.and_then(|last| balancers.cleanup_view(&object.view, &last)) {
            Arc::make_mut(&mut object).view = Arc::new(view);
        }
        Some(ClaimedService {
            claim: balancers.claims(&object.view),
            finalizers: balancers.finalizers(&object.view),
            object,
        })
    }

    /// Whether the object waits for a discovery: its finalizer stays until it is known that no load balancer of ours is left.
    fn waits_for_former(&self, object: &ServiceObject, claim: Claim) -> bool {
        let view = &object.view;
        let balancers = self.cloud.load_balancers();
        let may_be_ours = balancers.is_some_and(|balancers| balancers.cleanup_view(view, view).is_some());
        claim == Claim::Elsewhere && may_be_ours && !self.state.lock().may_lose_finalizer(view)
    }

    /// Cleans up a Service of another controller whose former load balancer is proven to be ours. From now on it is ours.
    fn clean_up(&self, name: &Name) {
        let Some(object) = self.services.get(name) else {
            return;
        };
        let Some(balancers) = self.cloud.load_balancers() else {
            return;
        };
        // The proof is for the Service as the discovery saw it. If it has changed, the next discovery proves it again.
        let is_proven = self.state.lock().is_former_known(&object.view);
        if is_proven && let Some(view) = balancers.cleanup_view(&object.view, &object.view) {
            let now = ServiceInput {
                claim: balancers.claims(&view),
                finalizers: balancers.finalizers(&view),
                view: Arc::new(view),
            };
            self.change(ClusterChange::Service(Arc::clone(name), Some(now)));
        }
    }
}

#[cfg(test)]
mod tests;
