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
