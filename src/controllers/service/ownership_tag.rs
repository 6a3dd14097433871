//! The ownership tag of this cluster, read from the API server.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    controllers::Backoff,
    error::report,
    load_balancer::{ClusterTag, OwnershipTag},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::COMPONENT;
use crate::server::{CheckKind, Checks};

/// The namespace with the uid of the cluster.
const NAMESPACE: &str = "kube-system";
/// Waits between tries.
const BACKOFF: Backoff = Backoff::seconds(1, 30);
/// The pause after an answer that only a change of roles changes.
const REFUSED_PAUSE: Duration = Duration::from_secs(600);
/// A failure is reported after this time.
const REPORT_AFTER: Duration = Duration::from_secs(60);
/// A plan does not wait longer for the tag.
const PLAN_LIMIT: Duration = Duration::from_secs(60);
/// The check of the tag.
const CHECK: &str = "ownership-tag";

/// The tag, as far as it is known; `None` before the first answer.
pub(crate) type KnownTag = watch::Receiver<Option<OwnershipTag>>;

/// Asks the API server for the tag until it is known or the receiver is dropped. While the role lacks `get` of the
/// namespace `kube-system`, the tag is [`OwnershipTag::Unknown`]: tags are neither written nor compared. After any other failure
/// there is no answer, since the next try may succeed; a check shows it.
pub(crate) fn follow(client: Client, checks: Option<&Checks>) -> KnownTag {
    let (sender, receiver) = watch::channel(None);
    let failure = Arc::new(Mutex::new(None));
    if let Some(checks) = checks {
        let failure = Arc::clone(&failure);
        checks.register_probe(CHECK, CheckKind::Shown, move || {
            failure.lock().as_ref().map_or(Ok(()), |error| {
                Err(format!("load balancers wait until the namespace {NAMESPACE} can be read: {error}"))
            })
        });
    }
    tokio::spawn(async move {
        let api = Api::all(client);
        tokio::select! {
            () = sender.closed() => {}
            () = find(&api, &sender, &failure) => {}
        }
        // Nobody waits any more.
        *failure.lock() = None;
    });
    receiver
}

/// The first answer. Waits for it: with an unknown tag, load balancers of another cluster with the same names would be changed.
pub(crate) async fn wait(tag: &mut KnownTag) -> OwnershipTag {
    if let Ok(tag) = tag.wait_for(Option::is_some).await {
        return tag.clone().unwrap_or_default();
    }
    // The sender is dropped only at the end of the process.
    std::future::pending().await
}

/// The first answer, for a plan. `None` if the API server does not give one in time.
pub(crate) async fn wait_for_plan(tag: &mut KnownTag) -> Option<OwnershipTag> {
    timeout(PLAN_LIMIT, wait(tag)).await.ok()
}

/// Returns when the tag is known.
pub(super) async fn known(tag: &mut KnownTag) -> Option<OwnershipTag> {
    let known = tag.wait_for(|tag| matches!(tag, Some(OwnershipTag::Known(_))));
    known.await.ok()?.clone()
}

async fn find(
    api: &Api<Namespace>,
    sender: &watch::Sender<Option<OwnershipTag>>,
    failure: &Mutex<Option<String>>,
) {
    let began = Instant::now();
    let mut reported = false;
    let mut tries = 0;
    loop {
        let (error, refused) = match api.get(NAMESPACE).await {
            Ok(namespace) => match namespace.metadata.uid {
                Some(uid) => {
                    if reported {
                        info!(controller = COMPONENT, uid, "The ownership tag of the cluster is known");
                    }
                    sender.send_replace(Some(OwnershipTag::Known(ClusterTag::of(&uid))));
                    return;
                }
                None => ("it has no uid".to_owned(), false),
            },
            Err(kube::Error::Api(status)) if status.code == 403 => (status.message, true),
            Err(error) => (report(&error), false),
        };
        if reported || !(refused || began.elapsed() >= REPORT_AFTER) {
            debug!(controller = COMPONENT, error, "The ownership tag of the cluster is still unknown");
        } else {
            reported = true;
            report_unknown(refused, &error);
        }
        *failure.lock() = (!refused && sender.borrow().is_none()).then_some(error);
        if refused {
            sender.send_replace(Some(OwnershipTag::Unknown));
            sleep(REFUSED_PAUSE).await;
        } else {
            tries += 1;
            sleep(BACKOFF.delay(tries)).await;
        }
    }
}

fn report_unknown(refused: bool, error: &str) {
    if refused {
        warn!(
            controller = COMPONENT,
            namespace = NAMESPACE,
            error,
            "The ownership tag of the cluster is unknown because the namespace may not be read: objects created in the cloud are \
             not tagged, and load balancers of other clusters are not recognized by their tags; grant get of the namespace. The \
             program asks again"
        );
    } else {
        warn!(
            controller = COMPONENT,
            namespace = NAMESPACE,
            error,
            "The ownership tag of the cluster is unknown because the namespace cannot be read; load balancers wait for it. The \
             program asks again"
        );
    }
}

#[cfg(test)]
mod tests;
