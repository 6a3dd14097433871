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
mod records;
mod review;
mod show;
mod surveys;
mod tell;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    load_balancer::{OwnershipTag, PartKey},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{
    sync::{Notify, mpsc::UnboundedReceiver},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::{desk::Following, ledger::Ledger, metrics::ServiceMetrics, records::Name, tell::Teller};
pub(crate) use self::{
    ownership_tag::{KnownTag, at_start, follow as follow_ownership_tag},
    review::{Reviewed, review},
};
use crate::{
    events::Recorder,
    informers::{Change, Informer, node::NodeObject, service::ServiceObject},
    options::ServiceConfig,
    queue::{Backoff, QueueMetrics, WorkQueue},
};

/// Source of this controller's events.
pub(crate) const COMPONENT: &str = "service-controller";
/// Its name on the command line.
pub(crate) const NAME: &str = "service-lb-controller";

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
}

/// What the controller is given.
pub(crate) struct Parts {
    pub(crate) client: Client,
    /// As whom the cluster's mark is read: the process's own account, whatever that of the controller may do.
    pub(crate) cluster: Client,
    pub(crate) services: Arc<Informer<ServiceObject>>,
    pub(crate) nodes: Arc<Informer<NodeObject>>,
    pub(crate) cloud: Arc<dyn Cloud>,
    pub(crate) config: ServiceConfig,
    pub(crate) cluster_name: String,
    /// For our events, and for those of the provider.
    pub(crate) recorders: (Recorder, Recorder),
    /// What Events about the cloud as a whole are about: this process's Pod or Lease.
    pub(crate) process: ObjectReference,
    pub(crate) queues: QueueMetrics,
}

impl ServiceController {
    pub(crate) fn new(parts: Parts, registry: &mut Registry) -> Arc<Self> {
        let Parts {
            client,
            cluster,
            services,
            nodes,
            cloud,
            config,
            cluster_name,
            recorders: (recorder, provider),
            process,
            queues,
        } = parts;
        Arc::new(Self {
            client,
            cluster,
            services,
            nodes,
            cloud,
            config,
            cluster_name: cluster_name.into(),
            parts: WorkQueue::new(BACKOFF, "service", &queues),
            objects: WorkQueue::new(OBJECT_BACKOFF, "service_objects", &queues),
            ledger: Mutex::default(),
            following: Mutex::default(),
            news: Notify::new(),
            process,
            teller: Teller::new(recorder, provider),
            metrics: ServiceMetrics::register(registry),
        })
    }

    /// Runs until `shutdown`; then finishes the passes and patches that are under way, begins nothing, and returns.
    pub(crate) async fn run(
        self: Arc<Self>,
        services: UnboundedReceiver<Change>,
        nodes: UnboundedReceiver<Change>,
        shutdown: CancellationToken,
    ) {
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
