//! By which mark this cluster knows what it made.

use std::time::Duration;

use ccm_core::load_balancer::{ClusterMark, Marks};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::COMPONENT;

/// Its uid is the cluster's.
const NAMESPACE: &str = "kube-system";
/// The longest pause between two tries.
const LONGEST: Duration = Duration::from_secs(30);

/// Reads the mark once. If it may not be read, marks are neither written nor judged; if the API server does not answer,
/// again until it does: what is made without a mark stays without one.
///
/// A role needs `get` of the namespace `kube-system` for it.
pub(crate) async fn find(client: Client) -> Marks {
    let api: Api<Namespace> = Api::all(client);
    let mut pause = Duration::from_secs(1);
    loop {
        match api.get(NAMESPACE).await {
            Ok(namespace) => {
                if let Some(uid) = namespace.metadata.uid {
                    debug!(controller = COMPONENT, uid, "The cluster's mark is known");
                    return Marks::Known(ClusterMark::of(&uid));
                }
                return Marks::Unknown;
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403 | 404) => {
                warn!(
                    controller = COMPONENT,
                    namespace = NAMESPACE,
                    error = status.message,
                    "The namespace can not be read: what is made in the cloud is not marked as this cluster's, and load \
                     balancers of other clusters are not told from ours by their marks; grant get of it"
                );
                return Marks::Unknown;
            }
            Err(error) => {
                let error = ccm_core::error::report(&error);
                debug!(
                    controller = COMPONENT,
                    error,
                    ?pause,
                    "The cluster's mark can not be read yet"
                );
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}
