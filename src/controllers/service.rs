//! The service controller: a Service of type LoadBalancer gets, keeps and loses its load balancer.
//!
//! ```text
//! Services, nodes --> desk --> ledger: what is known, what follows --> queue of parts --> workers --> cloud
//!                      ^ |                ^                                                  |
//!                 time-+ +-- survey       +--------------------- reports --------------------+
//!                                         |
//!                                         +--> queue of objects --> finalizer, status, annotations
//! ```
//!
//! The unit of work in the cloud is the *part*, not the Service (see [`ccm_core::load_balancer`]): one pass serves all
//! Services that have to do with it, and no two passes touch the same thing. What is decided stands in [`ledger`] and
//! [`conclude`], pure; what a pass does to the cloud is the plan engine's.
//!
//! | Rule | Why |
//! |---|---|
//! | A new Service is unknown to passes until it has our finalizer | nothing is made in the cloud that nobody would take away |
//! | The finalizer goes when every part is left | nothing stays |
//! | Status and annotations are written when everything is served, and whenever they differ | half an answer is none; what is wiped comes back |
//! | Nodes are followed by parts that do not follow them yet, 2 to 10 s after a change, at once after a loss | a burst of nodes costs one pass for each part |
//! | A part that waits for the cloud is parked and has no worker | eight slow load balancers do not hold up the ninth |
//! | A discovery that fails delays no part that is known | one refused listing must not stop every Service |
//! | Whoever was served when this process came, and needs no step, hears nothing | a restart is silent |
//!
//! Of what happens in the cloud without us, a slow comparison of everything tells, in the background.

#[cfg(test)]
mod book;
mod conclude;
mod desk;
mod job;
mod ledger;
mod metrics;
mod nodes;
mod object;
mod objects;
mod orphans;
mod ownership_tag;
mod parts;
mod plan;
mod records;
mod show;
mod surveys;
mod tell;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    controllers::{
        Backoff, ControllerContext, ControllerDef, ControllerFuture, ControllerSetup, Informer, Needs,
        NodeObject, NotStarted, ServiceObject, WorkQueue,
    },
    load_balancer::{OwnershipTag, PartKey},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::{desk::Following, ledger::Ledger, metrics::ServiceMetrics, records::Name, tell::Teller};
pub(crate) use self::{
    ownership_tag::{KnownTag, at_start, follow as follow_ownership_tag},
    plan::{World, plan},
};
use crate::{controllers::Framework, options::ServiceConfig};

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
    match setup.cloud.load_balancers() {
        Some(_) => Ok(Needs {
            load_balancer_services: true,
            ..Needs::default()
        }),
        None => Err(NotStarted::Unsupported(
            "the cloud provider does not support load balancers",
        )),
    }
}

fn start(context: ControllerContext) -> ccm_core::Result<ControllerFuture> {
    let framework = context.setup.framework_as::<Framework>()?;
    let controller = ServiceController::new(context, &framework);
    // The page outlives the controller, whose recorders keep the writer of Events running.
    let (services, orphans) = (Arc::downgrade(&controller), Arc::downgrade(&controller));
    framework
        .status
        .set_services(move || services.upgrade().map(|shown| shown.rows()).unwrap_or_default());
    framework.status.set_orphans(move || {
        orphans
            .upgrade()
            .map(|shown| shown.orphan_rows())
            .unwrap_or_default()
    });
    Ok(Box::pin(controller.run()))
}

/// Waits between tries of one part: those that people know from elsewhere.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(300),
};

/// Waits between tries to write one Service object.
const OBJECT_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// How many Service objects are written at once.
const OBJECT_WRITERS: usize = 8;

/// The controller. [`ServiceController::run`] is its life.
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
    ledger: Mutex<Ledger>,
    following: Mutex<Option<Following>>,
    /// The desk should look at the ledger.
    news: Notify,
    /// What Events about the cloud as a whole are about.
    process: ObjectReference,
    teller: Teller,
    metrics: ServiceMetrics,
    shutdown: CancellationToken,
}

impl ServiceController {
    pub(crate) fn new(context: ControllerContext, framework: &Framework) -> Arc<Self> {
        let config = framework.config.service.clone();
        let (
            ControllerSetup {
                cloud, cluster_name, ..
            },
            queues,
        ) = (context.setup, context.metrics.queues());
        let recorder = context.recorder.with_component(COMPONENT);
        let provider = recorder.with_component(cloud.event_component());
        Arc::new(Self {
            client: context.client,
            cluster: framework.client.clone(),
            services: context.services,
            nodes: context.nodes,
            cloud,
            config,
            cluster_name: cluster_name.into(),
            parts: WorkQueue::new(BACKOFF, "service", queues),
            objects: WorkQueue::new(OBJECT_BACKOFF, "service_objects", queues),
            ledger: Mutex::default(),
            following: Mutex::default(),
            news: Notify::new(),
            process: framework.process.clone(),
            teller: Teller::new(recorder, provider),
            metrics: context.metrics.with(ServiceMetrics::register),
            shutdown: context.shutdown,
        })
    }

    /// A Service that has, had or wants a load balancer. The store may keep others, which other controllers need.
    fn service(&self, name: &str) -> Option<Arc<ServiceObject>> {
        self.services.get(name).filter(|object| object.is_concerned())
    }

    /// Runs until shutdown; then finishes the passes and patches that are under way, begins nothing, and returns.
    pub(crate) async fn run(self: Arc<Self>) {
        let (services, nodes) = (self.services.subscribe(), self.nodes.subscribe());
        let shutdown = self.shutdown.clone();
        let mut tag = ownership_tag::follow(self.cluster.clone());
        let ready = async {
            self.services.synced().await;
            self.nodes.synced().await;
            ownership_tag::at_start(&mut tag).await
        };
        let marks = tokio::select! {
            () = shutdown.cancelled() => return,
            marks = ready => marks,
        };
        let is_known = matches!(marks, OwnershipTag::Known(_));
        *self.ledger.lock() = Ledger::new(Arc::clone(&self.cluster_name), marks, self.config.orphans);
        info!(
            controller = COMPONENT,
            services = self.services.list().len(),
            "Controller started"
        );
        let mut tasks = JoinSet::new();
        for _ in 0..self.config.concurrent_syncs.get() {
            tasks.spawn(Arc::clone(&self).work_on_parts(shutdown.clone()));
        }
        for _ in 0..OBJECT_WRITERS {
            tasks.spawn(Arc::clone(&self).work_on_objects(shutdown.clone()));
        }
        if !is_known {
            tasks.spawn(Arc::clone(&self).learn_ownership_tag(tag, shutdown.clone()));
        }
        tasks.spawn(Arc::clone(&self).desk(services, nodes, shutdown));
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                // Ends the process through the task that runs this controller.
                std::panic::resume_unwind(panic);
            }
        }
        debug!(
            controller = COMPONENT,
            "Controller has finished what it had begun"
        );
    }

    /// Waits until the ownership tag is known.
    async fn learn_ownership_tag(self: Arc<Self>, mut tag: KnownTag, shutdown: CancellationToken) {
        let known = tag.wait_for(|marks| matches!(marks, Some(OwnershipTag::Known(_))));
        let marks = tokio::select! {
            () = shutdown.cancelled() => return,
            known = known => known.ok().and_then(|marks| marks.clone()),
        };
        if let Some(marks) = marks {
            self.ledger.lock().set_marks(marks, Instant::now());
            self.news.notify_one();
        }
    }
}
