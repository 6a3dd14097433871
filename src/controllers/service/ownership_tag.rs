//! The ownership tag of this cluster, read from the API server.

use std::time::Duration;

use ccm_core::{
    controllers::Backoff,
    error::report,
    load_balancer::{ClusterTag, OwnershipTag},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::COMPONENT;

/// The namespace with the uid of the cluster.
const NAMESPACE: &str = "kube-system";
/// Waits between tries.
const BACKOFF: Backoff = Backoff::seconds(1, 30);
/// The pause after an answer that only a change of roles changes.
const REFUSED_PAUSE: Duration = Duration::from_secs(600);
/// Controllers do not wait longer for the tag.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The tag, as far as it is known; `None` before the first answer.
pub(crate) type KnownTag = watch::Receiver<Option<OwnershipTag>>;

/// Asks the API server for the tag until it is known or the receiver is dropped. While the role lacks `get` of the
/// namespace `kube-system`, the tag is [`OwnershipTag::Unknown`]: tags are neither written nor compared.
pub(crate) fn follow(client: Client) -> KnownTag {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let api = Api::all(client);
        tokio::select! {
            () = sender.closed() => {}
            () = find(&api, &sender) => {}
        }
    });
    receiver
}

/// The first answer. `None` if the API server does not give one in time.
pub(crate) async fn wait(tag: &mut KnownTag) -> Option<OwnershipTag> {
    let answered = timeout(START_LIMIT, tag.wait_for(Option::is_some)).await;
    answered.ok()?.ok()?.clone()
}

/// Returns when the tag is known.
pub(super) async fn known(tag: &mut KnownTag) -> Option<OwnershipTag> {
    let known = tag.wait_for(|tag| matches!(tag, Some(OwnershipTag::Known(_))));
    known.await.ok()?.clone()
}

async fn find(api: &Api<Namespace>, sender: &watch::Sender<Option<OwnershipTag>>) {
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
        if !reported && (refused || began.elapsed() >= START_LIMIT) {
            reported = true;
            warn!(
                controller = COMPONENT,
                namespace = NAMESPACE,
                error,
                "The ownership tag of the cluster is unknown because the namespace cannot be read: objects created in the \
                 cloud are not tagged, and load balancers of other clusters are not recognized by their tags; grant get of \
                 the namespace. The program asks again"
            );
        } else {
            debug!(controller = COMPONENT, error, "The ownership tag of the cluster is still unknown");
        }
        if refused {
            sender.send_replace(Some(OwnershipTag::Unknown));
            sleep(REFUSED_PAUSE).await;
        } else {
            tries += 1;
            sleep(BACKOFF.delay(tries)).await;
        }
    }
}

#[cfg(test)]
mod tests;
