//! The labels of namespaces, for load balancers that select Services by them.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use ccm_core::{BuildContext, Error, ErrorKind, Labels, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use tokio::{sync::Mutex, time::Instant};
use tracing::warn;

use super::settings::BalancerSettings;
use crate::{config::LabelSelector, kubernetes};

/// The labels are read again after this. A Service is created right after its namespace.
const AGE: Duration = Duration::from_secs(1);

/// The labels by namespace.
pub(crate) type LabelsByNamespace = Arc<BTreeMap<String, Labels>>;

/// Reads the labels of namespaces.
pub(crate) struct Namespaces {
    api: Api<Namespace>,
    last: Mutex<Option<(Instant, LabelsByNamespace)>>,
}

impl fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespaces").finish_non_exhaustive()
    }
}

impl Namespaces {
    /// `None`: no load balancer selects Services by their namespaces.
    ///
    /// # Errors
    /// There is no way to the API server.
    pub(crate) async fn of(context: &BuildContext, settings: &BalancerSettings) -> Result<Option<Self>> {
        let mut selectors = settings
            .several()
            .iter()
            .filter_map(|balancer| balancer.service_namespace_selector.as_ref());
        if selectors.all(LabelSelector::is_empty) {
            return Ok(None);
        }
        let client = kubernetes::client(context, "namespaces").await?;
        Ok(Some(Self {
            api: Api::all(client),
            last: Mutex::default(),
        }))
    }

    /// The labels of all namespaces. If they cannot be read again, the last ones stay in use: without them, Services would move.
    ///
    /// # Errors
    /// They could not be read, and never were.
    pub(crate) async fn labels(&self) -> Result<LabelsByNamespace> {
        let mut last = self.last.lock().await;
        if let Some((began, labels)) = &*last
            && began.elapsed() < AGE
        {
            return Ok(Arc::clone(labels));
        }
        let began = Instant::now();
        let read = self.api.list_metadata(&ListParams::default()).await;
        let labels = match (read, last.take()) {
            (Ok(list), _) => {
                let namespaces = list.items.into_iter().filter_map(|namespace| {
                    let metadata = namespace.metadata;
                    Some((metadata.name?, metadata.labels.unwrap_or_default().into_iter().collect()))
                });
                Arc::new(namespaces.collect())
            }
            (Err(error), Some((_, labels))) => {
                warn!(%error, "Could not list namespaces; the last labels stay in use");
                labels
            }
            (Err(error), None) => {
                let text = "could not list namespaces, which serviceNamespaceSelector needs; the role must allow list on namespaces";
                return Err(Error::new(ErrorKind::Unavailable, text).with_source(error));
            }
        };
        *last = Some((began, Arc::clone(&labels)));
        Ok(labels)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, Ordering};

    use ccm_core::testkit::server::{Server, answer};
    use kube::{Client, Config};

    use super::*;

    #[tokio::test]
    async fn the_last_labels_stay_in_use_when_the_api_server_refuses() {
        let is_allowed = Arc::new(AtomicBool::new(true));
        let allows = Arc::clone(&is_allowed);
        let server = Server::start(move |_| {
            let json = "content-type: application/json\r\n";
            if !allows.load(Ordering::SeqCst) {
                return answer("403 Forbidden", json, r#"{"kind": "Status", "status": "Failure", "code": 403}"#);
            }
            let list = r#"{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": [
                {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "shop", "labels": {"team": "a"}}}]}"#;
            answer("200 OK", json, list)
        })
        .await;
        let reader = || Namespaces {
            api: Api::all(Client::try_from(Config::new(server.url().parse().unwrap())).unwrap()),
            last: Mutex::default(),
        };
        let namespaces = reader();
        let labels = namespaces.labels().await.unwrap();
        assert_eq!(labels["shop"].get("team"), Some("a"));
        is_allowed.store(false, Ordering::SeqCst);
        *namespaces.last.lock().await = Some((Instant::now().checked_sub(2 * AGE).unwrap(), labels.clone()));
        assert_eq!(namespaces.labels().await.unwrap(), labels);
        assert_eq!(server.requests().len(), 2);
        // Without any labels, Services would be placed wrongly.
        let error = reader().labels().await.unwrap_err();
        assert!(error.to_string().contains("list on namespaces"), "{error}");
    }
}
