//! The shared stores, and the start and end of the controllers.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, anyhow};
use ccm_core::{
    Cloud,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerContext, ControllerNames, ControllerSetup, Informer, Needs, NodeObject, NotStarted,
        ServiceObject,
        events::{self, EventMetrics},
    },
};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::Config,
    controllers::{self, Controller, Framework, node_object},
    election::{Candidacy, Purpose},
    plan::DryRun,
    reload::Reloader,
    server::{CheckHandle, Shown, watched},
    watches::Watches,
};

/// The name of the client that fills the stores.
pub(crate) const CLIENT: &str = "shared-informers";

/// The clients of controllers by [`ControllerDef::client_name`]. They write only while this process has their lease.
pub(crate) type Clients = BTreeMap<&'static str, kube::Client>;

/// A lease and the controllers that run under it.
pub(crate) struct Term {
    /// The controllers that run under it.
    pub(crate) purpose: Purpose,
    /// Waits until the controllers may start.
    pub(crate) candidacy: Candidacy,
    /// Clients of the API server for the controllers.
    pub(crate) clients: Clients,
    /// Open while this process has the lease.
    pub(crate) fence: Fence,
}

/// The parts of the process that the controllers use.
pub(crate) struct AppContext {
    /// The API server, for the stores and other shared reads.
    pub(crate) client: kube::Client,
    /// The API server, for writes of a replica that does not lead: events about itself.
    pub(crate) replica_client: kube::Client,
    /// The API server, for the ID of the cluster.
    pub(crate) cluster_id_client: kube::Client,
    /// The lease of the process, and that of a migration if there is one.
    pub(crate) terms: Vec<Term>,
    /// The cloud.
    pub(crate) cloud: Arc<dyn Cloud>,
    /// The metrics of cloud calls.
    pub(crate) cloud_metrics: ClientMetrics,
    /// The values of the flags.
    pub(crate) config: Arc<Config>,
    /// Metrics, checks and the status page.
    pub(crate) shown: Shown,
    /// The check of the stores.
    pub(crate) informer_check: CheckHandle,
    /// The metrics of events.
    pub(crate) event_metrics: EventMetrics,
    /// Cancelled when the process ends.
    pub(crate) shutdown: CancellationToken,
}

/// Runs until `shutdown`, then drains: work that was begun is finished, events are written, and it returns.
///
/// Stores are filled and updated before this process is the leader, so that a new leader begins at once.
///
/// # Errors
///
/// A part of the program ended unexpectedly.
pub(crate) async fn run(context: AppContext) -> anyhow::Result<()> {
    for controller in &context.config.controllers.disabled {
        info!(controller, "The controller is switched off");
    }
    for (controller, component) in &context.config.controllers.elsewhere {
        info!(controller, component, "Another component runs the controller");
    }
    let (controllers, stores) = prepare(&context);
    let nodes = Arc::clone(&stores.nodes);
    context.shown.status.set_nodes(move || node_object::rows(&nodes));
    let shutdown = context.shutdown.clone();

    // The stores are filled without the lease, and outlive the controllers. The events outlive both.
    let stop_stores = CancellationToken::new();
    let mut following = JoinSet::new();
    follow(&context, &stores, &mut following, &stop_stores);
    if !context.cloud.watched_files().is_empty() {
        start_reloader(&context, &mut following, &stop_stores);
    }
    if context.config.dry_run {
        return tokio::select! {
            biased;
            () = shutdown.cancelled() => Ok(()),
            ended = ended(&mut following) => ended,
            () = dry_run(&context, &stores) => Err(anyhow!("the dry run ended unexpectedly")),
        };
    }

    let mut running = JoinSet::new();
    let mut events = Vec::new();
    let outcome = loop {
        let leads = async {
            // Not the Services: the service controller waits for them alone.
            stores.nodes.synced().await;
            let Some(term) = context.terms.get(events.len()) else {
                return std::future::pending().await;
            };
            term.candidacy.clone().lead().await;
            if context.config.election.is_some() {
                // Another process has written until now.
                stores.nodes.renew();
                stores.services.renew();
            }
            term
        };
        let term = tokio::select! {
            biased;
            () = shutdown.cancelled() => break Ok(()),
            ended = ended(&mut running) => break ended,
            ended = ended(&mut following) => break ended,
            term = leads => term,
        };
        match start_controllers(&context, term, &controllers, &stores, &mut running) {
            Ok(writer) => events.push(writer),
            Err(error) => break Err(error),
        }
    };
    // If a part has failed, the others end in order, too.
    shutdown.cancel();
    while let Some(controller) = running.join_next().await {
        controller?;
    }
    stop_stores.cancel();
    drop(following);
    // Every recorder was dropped with its controller, so that the writers end when their queues are empty.
    for writer in events {
        writer.await?;
    }
    outcome
}

/// Fills the stores and updates them.
fn follow(context: &AppContext, stores: &Stores, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
    let synced = context.informer_check.clone();
    synced.set_failing("waiting for the first listing of nodes");
    let (nodes, services) = (Arc::clone(&stores.nodes), stores.needed_services());
    let mut watches = Watches::default();
    let followed = Arc::clone(&nodes);
    watches.add(&context.shown, "watch-nodes", "Node", move || followed.failing_for());
    if let Some(followed) = services.clone() {
        watches.add(&context.shown, "watch-services", "Service", move || followed.failing_for());
    }
    watches.register(&context.shown);
    let (running, ended) = (Arc::clone(&nodes), stop.clone());
    tasks.spawn(async move { running.run(ended).await });
    if let Some(running) = services.clone() {
        let ended = stop.clone();
        tasks.spawn(async move { running.run(ended).await });
    }
    tasks.spawn(async move {
        nodes.synced().await;
        if let Some(services) = services {
            synced.set_failing("waiting for the first listing of Services");
            services.synced().await;
        }
        synced.set_ok();
        std::future::pending::<()>().await;
    });
}

/// Repeats the plan and reports changes of it.
fn dry_run(context: &AppContext, stores: &Stores) -> impl Future<Output = ()> + use<> {
    let check = context.shown.checks.register("dry-run");
    check.set_failing("waiting for the first plan");
    let dry_run = DryRun {
        client: context.client.clone(),
        cloud: Arc::clone(&context.cloud),
        config: Arc::clone(&context.config),
        nodes: Arc::clone(&stores.nodes),
        services: stores.needed_services(),
        metrics: context.shown.metrics.clone(),
        check,
    };
    dry_run.run()
}

/// Starts the reloader of config files.
fn start_reloader(context: &AppContext, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
    let events = events::Writer::new(context.replica_client.clone(), &context.event_metrics);
    let object = process_object(&context.config);
    let recorder = events.recorder(crate::events::COMPONENT);
    let cloud = Arc::clone(&context.cloud);
    let metrics = &context.shown.metrics;
    let reloader = metrics.with(|registry| Reloader::new(cloud, recorder, object, registry));
    let (stop, dry_run) = (stop.clone(), context.config.dry_run);
    tasks.spawn(async move {
        let events = async {
            if dry_run {
                events.discard().await;
            } else {
                events.run().await;
            }
        };
        // The writer ends with the reloader, whose recorder is the only one.
        tokio::join!(reloader.run(stop), events);
    });
}

/// The object of Events about the process.
fn process_object(config: &Config) -> ObjectReference {
    crate::events::process_object(config.election.as_ref(), |name| std::env::var(name).ok())
}

/// The shared stores, and the set-up of the controllers that use them.
struct Stores {
    setup: ControllerSetup,
    framework: Framework,
    needs: Needs,
    nodes: Arc<Informer<NodeObject>>,
    services: Arc<Informer<ServiceObject>>,
}

impl Stores {
    /// The Services, if a controller needs them.
    fn needed_services(&self) -> Option<Arc<Informer<ServiceObject>>> {
        self.needs.services().then(|| Arc::clone(&self.services))
    }
}

/// The enabled controllers that this cloud and configuration have work for, and empty stores for what they need.
fn prepare(context: &AppContext) -> (Vec<Controller>, Stores) {
    let config = &context.config;
    let setup = ControllerSetup {
        cloud: Arc::clone(&context.cloud),
        cluster_name: config.cluster_name.clone(),
        flags: config.flags.clone(),
    };
    let framework = Framework {
        config: Arc::clone(config),
        client: context.client.clone(),
        cluster_id_client: context.cluster_id_client.clone(),
        status: context.shown.status.clone(),
        checks: context.shown.checks.clone(),
        process: process_object(config),
    };
    let mut all = Needs::default();
    let mut needed = Vec::new();
    for controller in controllers::all(config.provider) {
        let name = controller.names().name;
        if !config.controllers.is_enabled(name) {
            continue;
        }
        match controller.needs(&setup, &framework) {
            Ok(needs) => {
                all = all.or(needs);
                needed.push(controller);
            }
            Err(NotStarted::Unsupported(reason)) => {
                warn!(controller = name, reason, "Controller not started");
            }
            Err(NotStarted::NotConfigured(reason)) => {
                info!(controller = name, reason, "Controller not started");
            }
        }
    }
    let stores = Stores {
        setup,
        framework,
        needs: all,
        nodes: Informer::new(context.client.clone(), all),
        services: Informer::new(context.client.clone(), all),
    };
    (needed, stores)
}

/// Starts those of these controllers that run under this lease. Returns the task that writes their Events.
///
/// # Errors
/// A controller cannot start.
fn start_controllers(
    context: &AppContext,
    term: &Term,
    controllers: &[Controller],
    stores: &Stores,
    running: &mut JoinSet<()>,
) -> anyhow::Result<JoinHandle<()>> {
    let mut writers: BTreeMap<&str, events::Writer> = BTreeMap::new();
    for controller in controllers {
        let &ControllerNames {
            name, client_name, ..
        } = controller.names();
        let is_migrated = context.terms.len() > 1 && context.config.controllers.migrated.contains(name);
        if is_migrated != (term.purpose == Purpose::Migration) {
            continue;
        }
        let client = term
            .clients
            .get(client_name)
            .with_context(|| format!("the controller {name} has no client"))?;
        let events = writers
            .entry(client_name)
            .or_insert_with(|| events::Writer::new(client.clone(), &context.event_metrics));
        let context_of_controller = ControllerContext {
            setup: stores.setup.clone(),
            client: client.clone(),
            nodes: Arc::clone(&stores.nodes),
            services: Arc::clone(&stores.services),
            recorder: events.recorder(name),
            fence: term.fence.clone(),
            metrics: context.shown.metrics.of_controllers().clone(),
            cloud_metrics: context.cloud_metrics.clone(),
            shutdown: context.shutdown.clone(),
        };
        let started = controller.start(context_of_controller, &stores.framework);
        let run = started.map_err(|error| anyhow!("could not start {name}: {}", error.report()))?;
        let Shown { metrics, checks, .. } = context.shown.clone();
        let run = metrics.running(controller.names().short_name(), run);
        running.spawn(watched(checks, name, run));
    }
    Ok(tokio::spawn(async move {
        join_all(writers.into_values().map(events::Writer::run)).await;
    }))
}

/// Returns when the first task ends, which is unexpected.
async fn ended(parts: &mut JoinSet<()>) -> anyhow::Result<()> {
    match parts.join_next().await {
        Some(Ok(())) => Err(anyhow!("a controller or informer ended unexpectedly")),
        Some(Err(error)) => Err(error.into()),
        None => std::future::pending().await,
    }
}
