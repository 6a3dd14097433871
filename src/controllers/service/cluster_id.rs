//! The ID by which a cloud's objects are named: reads the ConfigMap with it, and creates it if this process leads.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    cluster_id::{ClusterIdCell, ClusterIdSource},
    controllers::Backoff,
    error::report,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::COMPONENT;
use crate::server::{CheckKind, Checks};

/// Waits between tries.
const BACKOFF: Backoff = Backoff::seconds(1, 30);
/// How often a known ID is compared with the ConfigMap.
const INTERVAL: Duration = Duration::from_secs(60);
/// A failure is reported after this time, and at once if the API server refuses the request.
const REPORT_AFTER: Duration = Duration::from_secs(60);
/// A plan does not wait longer for the ID.
const PLAN_LIMIT: Duration = Duration::from_secs(30);
/// The check of the ID.
const CHECK: &str = "cluster-id";

/// Whether a missing ConfigMap is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// By the process that leads.
    Create,
    /// By another process: plans write nothing.
    Wait,
}

/// Why a read has no ID.
#[derive(Debug)]
enum ReadFailure {
    /// The API server says what the ConfigMap is like, in words that follow "the ConfigMap".
    Problem(String),
    /// The API server does not allow it.
    Refused(String),
    /// There is no answer.
    Failed(String),
}

impl ReadFailure {
    fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => Self::Refused(status.message),
            error => Self::Failed(report(&error)),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Problem(text) => format!("it {text}"),
            Self::Refused(text) | Self::Failed(text) => text.clone(),
        }
    }
}

/// Registers a check that shows why load balancers wait.
pub(crate) fn register_check(cell: &ClusterIdCell, checks: &Checks) {
    let cell = cell.clone();
    checks.register_probe(CHECK, CheckKind::Shown, move || match cell.get() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("load balancers wait: {}", error.message())),
    });
}

/// Reads the ID until it is known.
pub(crate) async fn wait(client: &Client, cell: &ClusterIdCell, if_missing: IfMissing) {
    let ClusterIdSource { namespace, name, .. } = *cell.source();
    let (began, mut tries, mut reported) = (Instant::now(), 0, false);
    while cell.get().is_err() {
        match read(client, cell.source(), if_missing).await {
            Ok(id) => {
                cell.set(Ok(&id));
                info!(controller = COMPONENT, namespace, name, id, "The ID of the cluster is known");
                return;
            }
            Err(failure) => {
                let error = failure.text();
                let is_final = !matches!(failure, ReadFailure::Failed(_));
                if !reported && (is_final || began.elapsed() >= REPORT_AFTER) {
                    reported = true;
                    warn!(
                        controller = COMPONENT,
                        namespace,
                        name,
                        error,
                        "The ID of the cluster is unknown: load balancers wait until the ConfigMap can be read, or created"
                    );
                } else {
                    debug!(
                        controller = COMPONENT,
                        namespace, name, error, "The ID of the cluster is still unknown"
                    );
                }
            }
        }
        tries += 1;
        sleep(BACKOFF.delay(tries)).await;
    }
}

/// As [`wait`], for a plan. An unknown ID is an error of the plan.
pub(crate) async fn wait_for_plan(client: &Client, cell: &ClusterIdCell) {
    // The provider reports that it is unknown.
    let _ = timeout(PLAN_LIMIT, async {
        match read(client, cell.source(), IfMissing::Wait).await {
            Ok(id) => {
                cell.set(Ok(&id));
            }
            Err(ReadFailure::Failed(_)) => wait(client, cell, IfMissing::Wait).await,
            Err(failure) => {
                let ClusterIdSource { namespace, name, .. } = *cell.source();
                warn!(namespace, name, error = failure.text(), "The ID of the cluster is unknown");
            }
        }
    })
    .await;
}

/// Compares the known ID with the ConfigMap, for ever. While the ConfigMap is deleted, malformed or has another ID, the provider
/// writes nothing. A failed read changes nothing.
pub(crate) async fn follow(client: Client, cell: ClusterIdCell) {
    let ClusterIdSource { namespace, name, .. } = *cell.source();
    loop {
        sleep(INTERVAL).await;
        let is_new = match read(&client, cell.source(), IfMissing::Wait).await {
            Ok(id) => cell.set(Ok(&id)),
            Err(ReadFailure::Problem(problem)) => cell.set(Err(problem)),
            Err(ReadFailure::Refused(error) | ReadFailure::Failed(error)) => {
                debug!(
                    controller = COMPONENT,
                    namespace, name, error, "Could not compare the ID of the cluster"
                );
                false
            }
        };
        if !is_new {
            continue;
        }
        match cell.get() {
            Ok(id) => info!(controller = COMPONENT, namespace, name, %id, "The ID of the cluster is back"),
            Err(error) => warn!(
                controller = COMPONENT,
                namespace,
                name,
                error = error.message(),
                "The ID of the cluster has changed: load balancers are left unchanged"
            ),
        }
    }
}

/// Reads the ConfigMap once, and creates it if it is missing and may be created.
async fn read(
    client: &Client,
    source: &ClusterIdSource,
    if_missing: IfMissing,
) -> Result<String, ReadFailure> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), source.namespace);
    let found = match api.get(source.name).await {
        Ok(found) => Some(found),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => return Err(ReadFailure::of(error)),
    };
    let found = match (found, if_missing) {
        (Some(found), _) => found,
        (None, IfMissing::Wait) => {
            return Err(ReadFailure::Problem(
                "does not exist; it is created by the process that leads".to_owned(),
            ));
        }
        (None, IfMissing::Create) => create(&api, source).await?,
    };
    let data = found.data.unwrap_or_default();
    let id = source.read(|key| data.get(key).map(String::as_str)).map_err(ReadFailure::Problem)?;
    Ok(id.to_owned())
}

/// Creates the ConfigMap. If another controller was faster, its ID is that of the cluster.
async fn create(api: &Api<ConfigMap>, source: &ClusterIdSource) -> Result<ConfigMap, ReadFailure> {
    let id = (source.generate)();
    let data: BTreeMap<String, String> =
        source.keys.iter().map(|key| ((*key).to_owned(), id.clone())).collect();
    let object = ConfigMap {
        metadata: ObjectMeta {
            name: Some(source.name.to_owned()),
            namespace: Some(source.namespace.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    };
    match api.create(&PostParams::default(), &object).await {
        Ok(created) => {
            let (namespace, name) = (source.namespace, source.name);
            info!(
                controller = COMPONENT,
                namespace, name, id, "Created the ConfigMap with the ID of the cluster"
            );
            Ok(created)
        }
        Err(kube::Error::Api(status)) if status.code == 409 => {
            api.get(source.name).await.map_err(ReadFailure::of)
        }
        Err(error) => Err(ReadFailure::of(error)),
    }
}

#[cfg(test)]
mod tests;
