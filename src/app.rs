//! The shared stores, and the start and end of the controllers.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, anyhow};
use ccm_core::{
    Cloud,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerContext, ControllerDef, ControllerSetup, Informer, Needs, NodeObject, NotStarted,
        ServiceObject,
        events::{self, EventMetrics},
    },
};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Api;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::Config,
    controllers::{self, Framework, node_object},
    election::{Candidacy, Purpose},
    plan::DryRun,
    reload::Reloader,
    server::{Checks, Kind, Metrics, Status, watched},
};

/// The name of the client that fills the stores.
pub(crate) const CLIENT: &str = "shared-informers";

/// The clients of controllers by [`ControllerDef::client_name`]. They write only while this process holds their lease.
pub(crate) type Clients = BTreeMap<&'static str, kube::Client>;

/// A lease and what may be done under it.
pub(crate) struct Term {
    /// Says when its controllers may start.
    pub(crate) candidacy: Candidacy,
    /// The API server, for its controllers.
    pub(crate) clients: Clients,
    /// Open while this process holds the lease.
    pub(crate) fence: Fence,
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
    for controller in &context.config.controllers.disabled {
        info!(controller, "The controller is switched off");
    }
    for (controller, component) in &context.config.controllers.elsewhere {
        info!(controller, component, "Another component runs the controller");
    }
    let (wanted, stores) = prepare(&context);
    let Stores {
        needs,
        nodes,
        services,
        ..
    } = &stores;
    let shown = Arc::clone(nodes);
    context.status.set_nodes(move || node_object::rows(&shown));
    let shutdown = context.shutdown.clone();
    let mut candidacy = context.main.candidacy.clone();

    // What runs without being the leader; it outlives the controllers. The events outlive both.
    let stop_standing = CancellationToken::new();
    let mut standing = JoinSet::new();
    let with_services = needs.services();
    let synced = context.checks.register("informer-sync", Kind::Ready);
    synced.set_failing("waiting for the first listing of nodes");
    {
        let (running, stop) = (Arc::clone(nodes), stop_standing.clone());
        standing.spawn(async move { running.run(stop).await });
        let (listed, listed_services) = (Arc::clone(nodes), Arc::clone(services));
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
        let (running, stop) = (Arc::clone(services), stop_standing.clone());
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

    let mut controllers = JoinSet::new();
    let mut events = Vec::new();
    let mut acquired = Some((Purpose::Main, &context.main));
    let outcome = loop {
        if let Some((purpose, term)) = acquired.take() {
            match start_controllers(&context, purpose, term, (&wanted, &stores), &mut controllers) {
                Ok(writer) => events.push(writer),
                Err(error) => break Err(error),
            }
        }
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
            term = leads_next => acquired = Some((Purpose::Migration, term)),
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

/// Says what would be done, again and again.
fn dry_run(
    context: &AppContext,
    nodes: Arc<Informer<NodeObject>>,
    services: Option<Arc<Informer<ServiceObject>>>,
) -> impl Future<Output = ()> + use<> {
    let check = context.checks.register("dry-run", Kind::Ready);
    check.set_failing("waiting for the first look");
    let dry_run = DryRun {
        client: context.client.clone(),
        cloud: Arc::clone(&context.cloud),
        config: Arc::clone(&context.config),
        nodes,
        services,
        metrics: context.metrics.clone(),
        check,
    };
    dry_run.run()
}

/// Starts what takes over changed config files.
fn start_reloader(context: &AppContext, standing: &mut JoinSet<()>, stop: &CancellationToken) {
    let events = events::Writer::new(context.replica_client.clone(), &context.event_metrics);
    let object = process_object(&context.config);
    let recorder = events.recorder(crate::events::COMPONENT);
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
    crate::events::process_object(config.election.as_ref(), |name| std::env::var(name).ok())
}

/// What is known of the cluster, and for whom.
struct Stores {
    setup: ControllerSetup,
    needs: Needs,
    nodes: Arc<Informer<NodeObject>>,
    services: Arc<Informer<ServiceObject>>,
}

/// The enabled controllers that this cloud and configuration have work for, and empty stores for what they need.
fn prepare(context: &AppContext) -> (Vec<&'static ControllerDef>, Stores) {
    let config = &context.config;
    let setup = ControllerSetup {
        cloud: Arc::clone(&context.cloud),
        cluster_name: config.cluster_name.clone(),
        flags: config.flags.clone(),
        framework: Arc::new(Framework {
            config: Arc::clone(config),
            client: context.client.clone(),
            status: context.status.clone(),
            process: process_object(config),
        }),
    };
    let mut all = Needs::default();
    let mut wanted = Vec::new();
    for controller in controllers::all(config.provider).filter(|def| config.controllers.is_enabled(def.name))
    {
        let name = controller.name;
        match (controller.needs)(&setup) {
            Ok(needs) => {
                all = all.or(needs);
                wanted.push(controller);
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
        needs: all,
        nodes: Informer::new(Api::all(context.client.clone()), all),
        services: Informer::new(Api::all(context.client.clone()), all),
    };
    (wanted, stores)
}

/// Starts those of these controllers that run under this lease. Returns the task that writes their Events.
///
/// # Errors
/// A controller cannot start.
fn start_controllers(
    context: &AppContext,
    purpose: Purpose,
    term: &Term,
    (wanted, stores): (&[&'static ControllerDef], &Stores),
    running: &mut JoinSet<()>,
) -> anyhow::Result<JoinHandle<()>> {
    let migrated = |name| context.migration.is_some() && context.config.controllers.migrated.contains(name);
    let mut writers: BTreeMap<&str, events::Writer> = BTreeMap::new();
    for controller in wanted {
        let name = controller.name;
        if migrated(name) != (purpose == Purpose::Migration) {
            continue;
        }
        let client = term.clients.get(controller.client_name);
        let client = client.with_context(|| format!("the controller {name} has no client"))?;
        let events = writers
            .entry(controller.client_name)
            .or_insert_with(|| events::Writer::new(client.clone(), &context.event_metrics));
        let started = (controller.start)(ControllerContext {
            setup: stores.setup.clone(),
            client: client.clone(),
            nodes: Arc::clone(&stores.nodes),
            services: Arc::clone(&stores.services),
            recorder: events.recorder(name),
            fence: term.fence.clone(),
            metrics: context.metrics.of_controllers().clone(),
            cloud_metrics: context.cloud_metrics.clone(),
            shutdown: context.shutdown.clone(),
        });
        let run = started.map_err(|error| anyhow!("could not start {name}: {}", error.report()))?;
        let run = context.metrics.running(controller.short_name(), run);
        running.spawn(watched(context.checks.clone(), name, run));
    }
    Ok(tokio::spawn(async move {
        join_all(writers.into_values().map(events::Writer::run)).await;
    }))
}

/// The first of these that ends. None of them should.
async fn ended(parts: &mut JoinSet<()>) -> anyhow::Result<()> {
    match parts.join_next().await {
        Some(Ok(())) => Err(anyhow!("a controller or informer ended without being told to")),
        Some(Err(error)) => Err(error.into()),
        None => std::future::pending().await,
    }
}
