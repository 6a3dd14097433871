//! The controllers and what they stand on.

use std::sync::Arc;

use anyhow::anyhow;
use ccm_core::{Cloud, client::ClientMetrics};
use kube::Api;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    controllers::node::{self, NodeController},
    events,
    informers::{Informer, node::NodeObject},
    options::Config,
    server::{Checks, Kind, Metrics},
};

/// What the controllers are given.
pub(crate) struct AppContext {
    /// The API server.
    pub(crate) client: kube::Client,
    /// The cloud.
    pub(crate) cloud: Arc<dyn Cloud>,
    /// Where cloud calls are counted.
    pub(crate) cloud_metrics: ClientMetrics,
    /// What the flags came to.
    pub(crate) config: Arc<Config>,
    /// Where metrics are registered.
    pub(crate) metrics: Metrics,
    /// What the probes ask.
    pub(crate) checks: Checks,
    /// When it is time to end.
    pub(crate) shutdown: CancellationToken,
}

/// Runs until `shutdown`, then drains: what was begun is finished, events are written, and it returns.
///
/// # Errors
///
/// If a part ends before it was told to.
pub(crate) async fn run(context: AppContext) -> anyhow::Result<()> {
    let AppContext {
        client,
        cloud,
        cloud_metrics,
        config,
        metrics,
        checks,
        shutdown,
    } = context;
    let events = metrics.with(|registry| events::Writer::new(client.clone(), registry));
    let nodes: Arc<Informer<NodeObject>> = Informer::new(Api::all(client.clone()));

    let mut parts = JoinSet::new();
    if !config.controllers.is_enabled(node::COMPONENT) {
        info!(controller = node::COMPONENT, "The controller is switched off");
    } else if cloud.instances().is_some() {
        let changes = nodes.subscribe();
        let controller = metrics.with(|registry| {
            NodeController::new(
                client,
                Arc::clone(&nodes),
                cloud,
                events.recorder(node::COMPONENT),
                config.node.clone(),
                &cloud_metrics,
                registry,
            )
        });
        parts.spawn(controller.run(changes, shutdown.clone()));
    } else {
        warn!(
            controller = node::COMPONENT,
            "The cloud provider does not support instances, controller not started"
        );
    }

    // The informers outlive the controllers, the events outlive both.
    let stop_informers = CancellationToken::new();
    let mut informers = JoinSet::new();
    let synced = checks.register("informer-sync", Kind::Ready);
    synced.set_failing("waiting for the first listing of nodes");
    {
        let (listed, stop) = (Arc::clone(&nodes), stop_informers.clone());
        informers.spawn(async move { nodes.run(stop).await });
        informers.spawn(async move {
            listed.synced().await;
            synced.set_ok();
            std::future::pending::<()>().await;
        });
    }
    let events = tokio::spawn(events.run());

    let outcome = tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        ended = ended(&mut parts) => ended,
        ended = ended(&mut informers) => ended,
    };
    // When a part has failed, the others end in order too.
    shutdown.cancel();
    while let Some(part) = parts.join_next().await {
        part?;
    }
    stop_informers.cancel();
    drop(informers);
    // Every recorder is gone with its controller, so that the writer ends when its queue is empty.
    events.await?;
    outcome
}

/// The first of these that ends. None of them should.
async fn ended(parts: &mut JoinSet<()>) -> anyhow::Result<()> {
    match parts.join_next().await {
        Some(Ok(())) => Err(anyhow!("a controller or informer ended without being told to")),
        Some(Err(error)) => Err(error.into()),
        None => std::future::pending().await,
    }
}
