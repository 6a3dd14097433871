//! The controllers and what they stand on.

use std::sync::Arc;

use anyhow::anyhow;
use ccm_core::{Cloud, client::ClientMetrics};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Api;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    controllers::{
        lifecycle::{self, LifecycleController},
        node::{self, NodeController},
        route::{self, Idle, RouteController},
        service::{self, ServiceController},
    },
    election::{Candidacy, Purpose},
    events::{self, EventMetrics},
    informers::{Informer, node::NodeObject, service::ServiceObject},
    options::Config,
    reload::{self, Reloader},
    review,
    server::{Checks, Kind, Metrics, Status, watched},
};

/// The name of the client that fills the stores.
pub(crate) const CLIENT: &str = "shared-informers";

/// The API server for the controllers. They write only while this process holds their lease.
#[derive(Clone)]
pub(crate) struct Clients {
    /// For both controllers of nodes.
    nodes: kube::Client,
    services: kube::Client,
    routes: kube::Client,
}

impl Clients {
    /// Makes them, each from its name, which is also that of the account that it may act as.
    ///
    /// # Errors
    /// That of `make`.
    pub(crate) fn make(make: impl Fn(&'static str) -> anyhow::Result<kube::Client>) -> anyhow::Result<Self> {
        Ok(Self {
            nodes: make("node-controller")?,
            services: make("service-controller")?,
            routes: make("route-controller")?,
        })
    }
}

/// A lease and what may be done under it.
pub(crate) struct Term {
    /// Says when its controllers may start.
    pub(crate) candidacy: Candidacy,
    /// The API server, for its controllers.
    pub(crate) clients: Clients,
}

/// What the controllers are given.
pub(crate) struct AppContext {
    /// The API server, for the stores and whatever is no controller's own.
    pub(crate) client: kube::Client,
    /// The lease of the process.
    pub(crate) main: Term,
    /// The lease of the controllers that are handed over between managers.
    pub(crate) migration: Option<Term>,
    /// The API server, for what a replica that does not lead may write: events about itself.
    pub(crate) replica_client: kube::Client,
    /// The cloud.
    pub(crate) cloud: Arc<dyn Cloud>,
    /// Where cloud calls are counted.
    pub(crate) cloud_metrics: ClientMetrics,
    /// What the flags came to.
    pub(crate) config: Arc<Config>,
    /// Where metrics are registered.
    pub(crate) metrics: Metrics,
    /// Where events are counted.
    pub(crate) event_metrics: EventMetrics,
    /// What the probes ask.
    pub(crate) checks: Checks,
    /// What people are shown.
    pub(crate) status: Status,
    /// When it is time to end.
    pub(crate) shutdown: CancellationToken,
}

/// Runs until `shutdown`, then drains: what was begun is finished, events are written, and it returns.
///
/// Stores are filled, and kept up to date, before this process is the leader, so that a new leader begins at once.
///
/// # Errors
///
/// If a part ends before it was told to.
pub(crate) async fn run(context: AppContext) -> anyhow::Result<()> {
    let nodes: Arc<Informer<NodeObject>> = Informer::new(Api::all(context.client.clone()));
    let services: Arc<Informer<ServiceObject>> = Informer::new(Api::all(context.client.clone()));
    let with_services = wants_services(&context);
    for controller in &context.config.controllers.disabled {
        info!(controller, "The controller is switched off");
    }
    for (controller, component) in &context.config.controllers.elsewhere {
        info!(controller, component, "Another component runs the controller");
    }
    let shown = Arc::clone(&nodes);
    context.status.set_nodes(move || shown.rows());
    let shutdown = context.shutdown.clone();
    let mut candidacy = context.main.candidacy.clone();

    // What runs without being the leader; it outlives the controllers. The events outlive both.
    let stop_standing = CancellationToken::new();
    let mut standing = JoinSet::new();
    let synced = context.checks.register("informer-sync", Kind::Ready);
    synced.set_failing("waiting for the first listing of nodes");
    {
        let (running, stop) = (Arc::clone(&nodes), stop_standing.clone());
        standing.spawn(async move { running.run(stop).await });
        let (listed, listed_services) = (Arc::clone(&nodes), Arc::clone(&services));
        standing.spawn(async move {
            listed.synced().await;
            if with_services {
                synced.set_failing("waiting for the first listing of Services");
                listed_services.synced().await;
            }
            synced.set_ok();
            std::future::pending::<()>().await;
        });
    }

    if with_services {
        let (running, stop) = (Arc::clone(&services), stop_standing.clone());
        standing.spawn(async move { running.run(stop).await });
    }

    if !context.cloud.watched_files().is_empty() {
        start_reloader(&context, &mut standing, &stop_standing);
    }

    let leads = async {
        // Not the Services: the service controller waits for them alone.
        nodes.synced().await;
        candidacy.lead().await;
    };
    if context.config.dry_run {
        let look = dry_run(&context, nodes.clone(), with_services.then(|| services.clone()));
        return tokio::select! {
            biased;
            () = shutdown.cancelled() => Ok(()),
            ended = ended(&mut standing) => ended,
            () = look => Err(anyhow!("the dry run ended without being told to")),
        };
    }

    tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(()),
        ended = ended(&mut standing) => return ended,
        () = leads => {}
    }

    let stores = Stores {
        nodes,
        services: with_services.then_some(services),
    };
    let mut controllers = JoinSet::new();
    let mut events = vec![start_controllers(
        &context,
        Purpose::Main,
        &context.main,
        &stores,
        &mut controllers,
    )];
    let outcome = loop {
        let next = context.migration.as_ref().filter(|_| events.len() == 1);
        let leads_next = async {
            match next {
                Some(term) => {
                    term.candidacy.clone().lead().await;
                    term
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break Ok(()),
            ended = ended(&mut controllers) => break ended,
            ended = ended(&mut standing) => break ended,
            term = leads_next => events.push(start_controllers(
                &context,
                Purpose::Migration,
                term,
                &stores,
                &mut controllers,
            )),
        }
    };
    // When a part has failed, the others end in order too.
    shutdown.cancel();
    while let Some(controller) = controllers.join_next().await {
        controller?;
    }
    stop_standing.cancel();
    drop(standing);
    // Every recorder is gone with its controller, so that the writers end when their queues are empty.
    for writer in events {
        writer.await?;
    }
    outcome
}

/// The events of the controllers, each written through the controller's client.
struct Events {
    nodes: events::Writer,
    services: events::Writer,
    routes: events::Writer,
}

impl Events {
    fn new(clients: &Clients, metrics: &EventMetrics) -> Self {
        let writer = |client: &kube::Client| events::Writer::new(client.clone(), metrics);
        Self {
            nodes: writer(&clients.nodes),
            services: writer(&clients.services),
            routes: writer(&clients.routes),
        }
    }

    /// Writes until every recorder is gone.
    async fn run(self) {
        tokio::join!(self.nodes.run(), self.services.run(), self.routes.run());
    }
}

/// Says what would be done, again and again.
fn dry_run(
    context: &AppContext,
    nodes: Arc<Informer<NodeObject>>,
    services: Option<Arc<Informer<ServiceObject>>>,
) -> impl Future<Output = ()> + use<> {
    let check = context.checks.register("dry-run", Kind::Ready);
    check.set_failing("waiting for the first look");
    review::stand(review::Standing {
        client: context.client.clone(),
        cloud: Arc::clone(&context.cloud),
        config: Arc::clone(&context.config),
        nodes,
        services,
        metrics: context.metrics.clone(),
        check,
    })
}

/// Starts what takes over changed config files.
fn start_reloader(context: &AppContext, standing: &mut JoinSet<()>, stop: &CancellationToken) {
    let events = events::Writer::new(context.replica_client.clone(), &context.event_metrics);
    let object = process_object(&context.config);
    let recorder = events.recorder(reload::COMPONENT);
    let reloader = context
        .metrics
        .with(|registry| Reloader::new(Arc::clone(&context.cloud), recorder, object, registry));
    let stop = stop.clone();
    let dry_run = context.config.dry_run;
    standing.spawn(async move {
        let events = async {
            match dry_run {
                true => events.discard().await,
                false => events.run().await,
            }
        };
        // The writer ends with the reloader, whose recorder is the only one.
        tokio::join!(reloader.run(stop), events);
    });
}

/// What Events about the process are about.
fn process_object(config: &Config) -> ObjectReference {
    reload::process_object(config.election.as_ref(), |name| std::env::var(name).ok())
}

/// Whether the service controller is to run; if not, Services are not even watched.
fn wants_services(context: &AppContext) -> bool {
    if !context.config.controllers.is_enabled(service::NAME) {
        return false;
    }
    let supported = context.cloud.load_balancers().is_some();
    if !supported {
        warn!(
            controller = service::NAME,
            "The cloud provider does not support load balancers, controller not started"
        );
    }
    supported
}

/// Whether the route controller is to run; says so if not.
fn wants_routes(cloud: &dyn Cloud, config: &Config) -> bool {
    match route::idle(cloud, config) {
        None => true,
        // Whatever is switched off is named at the start.
        Some(Idle::SwitchedOff) => false,
        Some(why) => {
            info!(
                controller = route::NAME,
                reason = why.as_str(),
                "Controller not started"
            );
            false
        }
    }
}

/// What is known of the cluster.
struct Stores {
    nodes: Arc<Informer<NodeObject>>,
    /// `None` if nobody looks at Services.
    services: Option<Arc<Informer<ServiceObject>>>,
}

/// Starts the controllers that are wanted under this lease and that this cloud has something to do for. Returns what
/// writes their events.
fn start_controllers(
    context: &AppContext,
    purpose: Purpose,
    term: &Term,
    stores: &Stores,
    controllers: &mut JoinSet<()>,
) -> JoinHandle<()> {
    let AppContext {
        cloud,
        cloud_metrics,
        config,
        metrics,
        status,
        checks,
        shutdown,
        ..
    } = context;
    let (clients, nodes) = (&term.clients, &stores.nodes);
    let events = Events::new(clients, &context.event_metrics);
    let belongs = |name| {
        let migrated = context.migration.is_some() && config.controllers.migrated.contains(name);
        config.controllers.is_enabled(name) && migrated == (purpose == Purpose::Migration)
    };
    let starts = |name| {
        if !belongs(name) {
            return false;
        }
        if cloud.instances().is_none() {
            warn!(
                controller = name,
                "The cloud provider does not support instances, controller not started"
            );
        }
        cloud.instances().is_some()
    };
    if starts(node::COMPONENT) {
        let controller = metrics.with(|registry| {
            NodeController::new(
                clients.nodes.clone(),
                Arc::clone(nodes),
                Arc::clone(cloud),
                events.nodes.recorder(node::COMPONENT),
                config.node.clone(),
                (cloud_metrics, metrics.queues()),
                registry,
            )
        });
        let run = controller.run(nodes.subscribe(), shutdown.clone());
        let run = metrics.running("cloud-node", run);
        controllers.spawn(watched(checks.clone(), node::COMPONENT, run));
    }
    if starts(lifecycle::COMPONENT) {
        let controller = metrics.with(|registry| {
            LifecycleController::new(
                clients.nodes.clone(),
                Arc::clone(nodes),
                Arc::clone(cloud),
                events.nodes.recorder(lifecycle::COMPONENT),
                config.lifecycle.clone(),
                metrics.queues(),
                registry,
                shutdown.clone(),
            )
        });
        let run = controller.run(nodes.subscribe());
        let run = metrics.running("cloud-node-lifecycle", run);
        controllers.spawn(watched(checks.clone(), lifecycle::COMPONENT, run));
    }
    if belongs(route::NAME) && wants_routes(&**cloud, config) {
        let parts = route::Parts {
            client: clients.routes.clone(),
            nodes: Arc::clone(nodes),
            cloud: Arc::clone(cloud),
            recorder: events.routes.recorder(route::COMPONENT),
            config: config.route.clone(),
            shutdown: shutdown.clone(),
        };
        let controller = metrics.with(|registry| RouteController::new(parts, registry));
        let run = controller.run(nodes.subscribe());
        let run = metrics.running("route", run);
        controllers.spawn(watched(checks.clone(), route::NAME, run));
    }
    if let Some(services) = stores.services.as_ref().filter(|_| belongs(service::NAME)) {
        let parts = service::Parts {
            client: clients.services.clone(),
            cluster: context.client.clone(),
            services: Arc::clone(services),
            nodes: Arc::clone(nodes),
            recorders: (
                events.services.recorder(service::COMPONENT),
                events.services.recorder(cloud.event_component()),
            ),
            cloud: Arc::clone(cloud),
            config: config.service.clone(),
            cluster_name: config.cluster_name.clone(),
            process: process_object(config),
            queues: metrics.queues().clone(),
        };
        let controller = metrics.with(|registry| ServiceController::new(parts, registry));
        // The page outlives the controller, with whose recorders the writer of Events ends.
        let shown = Arc::downgrade(&controller);
        let orphans = shown.clone();
        status.set_services(move || shown.upgrade().map(|shown| shown.rows()).unwrap_or_default());
        status.set_orphans(move || {
            orphans
                .upgrade()
                .map(|shown| shown.orphan_rows())
                .unwrap_or_default()
        });
        let run = controller.run(services.subscribe(), nodes.subscribe(), shutdown.clone());
        let run = metrics.running("service", run);
        controllers.spawn(watched(checks.clone(), service::NAME, run));
    }
    tokio::spawn(events.run())
}

/// The first of these that ends. None of them should.
async fn ended(parts: &mut JoinSet<()>) -> anyhow::Result<()> {
    match parts.join_next().await {
        Some(Ok(())) => Err(anyhow!("a controller or informer ended without being told to")),
        Some(Err(error)) => Err(error.into()),
        None => std::future::pending().await,
    }
}
