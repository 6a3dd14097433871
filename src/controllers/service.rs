//! The service controller: creates, updates and deletes the load balancer of each Service of type LoadBalancer.
//!
//! ```text
//!  Services, nodes, time                                     cloud, API server
//!           |                                                  ^           |
//!           v                                                  |           v
//!      event_loop --- a change came in ---> state <--- take work --- workers (parts, objects)
//!           |                               ^   \                          |
//!           +--- discovery (take, ended) ---+    \ <----- work ended ------+
//!                                                 \
//!                                                  +--> outputs: run a part, write an object, event
//! ```
//!
//! The unit of work in the cloud is the *part*, not the Service (see [`ccm_core::load_balancer`]): one pass serves all
//! members of the part, and no two passes touch the same thing. [`state`] decides, pure; the plan engine does a pass.
//!
//! | Module | Contents |
//! |---|---|
//! | [`state`] | the state of Services and parts, and the consequences of a change |
//! | [`event_loop`] | changes and time; the discovery |
//! | [`workers`] | passes over parts; patches of Service objects |
//! | [`object`] | the desired content of a Service object, and the patch |
//! | [`events`] | events, each published once |
//! | [`nodes`], [`orphans`], [`ownership_tag`] | members of load balancers; load balancers without a Service; the tag |
//! | [`plan`] | the plan of this controller |
//!
//! | Rule | Why |
//! |---|---|
//! | A new Service is unknown to passes until it has our finalizer | nothing is created in the cloud that would never be deleted |
//! | The finalizer is removed when the Service has left every part | nothing is left in the cloud |
//! | Status and annotations are written when everything is served, and whenever they differ | a partial answer misleads; removed values are written again |
//! | Nodes are followed by parts that do not follow them yet, 2 to 10 s after a change, at once after a loss | a burst of nodes costs one pass for each part |
//! | A part that waits for the cloud is parked and has no worker | eight slow load balancers do not delay the ninth |
//! | A discovery that fails delays no known part | one refused listing must not stop every Service |
//! | A Service that was served when this process started, and needs no step, gets no event | a restart is silent |
//!
//! A slow background resync detects changes of others in the cloud.

mod event_loop;
mod events;
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
        Backoff, ControllerContext, ControllerDef, ControllerFuture, ControllerSetup, Informer, Needs,
        NodeObject, NotStarted, ServiceObject, WorkQueue,
    },
    load_balancer::{Claim, OwnershipTag, PartKey, ProviderFinalizers},
};
use kube::Client;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::{
    events::EventReporter,
    metrics::ServiceMetrics,
    state::{Name, State},
};
pub(crate) use self::{
    ownership_tag::{KnownTag, follow as follow_ownership_tag, wait as wait_for_ownership_tag},
    plan::{PlannedCluster, plan},
};
use crate::{config::ServiceConfig, controllers::Framework};

/// Source of this controller's events.
pub(crate) const COMPONENT: &str = "service-controller";
/// Its name on the command line.
pub(crate) const NAME: &str = "service-lb-controller";

pub(crate) const DEF: ControllerDef = ControllerDef {
    name: NAME,
    aliases: &["service"],
    migration_name: Some("service-controller"),
    client_name: "service-controller",
    default_on: true,
    needs,
    start,
};

fn needs(setup: &ControllerSetup) -> Result<Needs, NotStarted> {
    let needs = Needs {
        load_balancer_services: true,
        ..Needs::default()
    };
    let why = "the cloud provider does not support load balancers";
    let load_balancers = setup.cloud.load_balancers();
    load_balancers.map(|_| needs).ok_or(NotStarted::Unsupported(why))
}

fn start(context: ControllerContext) -> ccm_core::Result<ControllerFuture> {
    let framework = context.setup.framework_as::<Framework>()?;
    let controller = ServiceController::new(context, &framework);
    framework.status.set_services(shown(&controller, State::rows));
    framework.status.set_orphans(shown(&controller, State::orphan_rows));
    Ok(Box::pin(controller.run()))
}

/// Rows of the status page. The page outlives the controller, whose recorders keep the writer of Events running.
fn shown<T>(controller: &Arc<ServiceController>, rows: fn(&State) -> Vec<T>) -> impl Fn() -> Vec<T> + use<T> {
    let controller = Arc::downgrade(controller);
    move || {
        let shown = controller.upgrade();
        shown.map(|shown| rows(&shown.state.lock())).unwrap_or_default()
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
    services: Arc<Informer<ServiceObject>>,
    nodes: Arc<Informer<NodeObject>>,
    cloud: Arc<dyn Cloud>,
    config: ServiceConfig,
    cluster_name: Arc<str>,
    parts: WorkQueue<PartKey>,
    objects: WorkQueue<Name>,
    state: Mutex<State>,
    /// Notifies the event loop that work may be due.
    changed: Notify,
    events: EventReporter,
    metrics: ServiceMetrics,
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
            shutdown: context.shutdown,
        })
    }

    /// A Service that has, had or wants a load balancer. The store may keep others, which other controllers need. One that was
    /// ours and now has the class of another controller stays ours, of type ClusterIP, until its load balancer is deleted.
    /// With the provider's answers about it, which must be as new as the object.
    fn service(&self, name: &str) -> Option<(Arc<ServiceObject>, Claim, ProviderFinalizers)> {
        let mut object = self.services.get(name).filter(|object| object.is_concerned())?;
        let balancers = self.cloud.load_balancers()?;
        let ours = self.state.lock().ours(&object.view.id);
        if let Some(view) = ours.and_then(|last| balancers.cleanup_view(&object.view, &last)) {
            Arc::make_mut(&mut object).view = Arc::new(view);
        }
        let (claim, finalizers) = (balancers.claims(&object.view), balancers.finalizers(&object.view));
        Some((object, claim, finalizers))
    }

    /// Runs until shutdown; then finishes the running passes and patches, starts nothing, and returns.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut tag = ownership_tag::follow(self.cluster.clone());
        let ready = async {
            self.services.synced().await;
            self.nodes.synced().await;
            ownership_tag::wait(&mut tag).await.unwrap_or_default()
        };
        let Some(at_start) = self.shutdown.run_until_cancelled(ready).await else {
            return;
        };
        // A known tag need not be followed.
        let tag = (at_start == OwnershipTag::Unknown).then_some(tag);
        *self.state.lock() = State::new(Arc::clone(&self.cluster_name), at_start, self.config.orphans);
        info!(controller = COMPONENT, services = self.services.list().len(), "Controller started");
        let mut tasks = JoinSet::new();
        for _ in 0..self.config.concurrent_syncs.get() {
            tasks.spawn(Arc::clone(&self).work_on_parts());
        }
        for _ in 0..OBJECT_WRITERS {
            tasks.spawn(Arc::clone(&self).work_on_objects());
        }
        tasks.spawn(Arc::clone(&self).run_events(tag));
        // Forwards the panic of a task.
        tasks.join_all().await;
        debug!(controller = COMPONENT, "Controller has finished what it had begun");
    }
}
