//! What the cluster says of who vouches for clients and for proxies before them: the ConfigMap
//! `kube-system/extension-apiserver-authentication`, watched, since authorities are replaced now and then.

use std::{collections::BTreeMap, pin::pin};

use ccm_core::error::report;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::authorities::Authorities;
use crate::options::ProxyHeaders;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

/// What the cluster says. Empty if it says nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) clients: Option<Authorities>,
    pub(super) proxies: Option<(Authorities, ProxyHeaders)>,
}

/// Keeps `known` up to date for ever. Until the first answer it holds nothing.
///
/// # Errors
/// If the cluster must tell and refuses to: what is missing, in words for the user.
pub(super) async fn follow(
    client: Client,
    required: bool,
    known: &watch::Sender<Option<Known>>,
) -> Result<(), String> {
    let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let mut states = pin!(watch_object(api, NAME).default_backoff());
    let mut broken = false;
    while let Some(state) = states.next().await {
        match state {
            Ok(object) => {
                if broken {
                    info!("The cluster says again who vouches for clients");
                }
                broken = false;
                let read = object.map_or_else(Known::default, |object| {
                    Known::read(&object.data.unwrap_or_default(), known.borrow().as_ref())
                });
                debug!(
                    clients = read.clients.is_some(),
                    proxies = read.proxies.is_some(),
                    "The cluster says who vouches for clients"
                );
                known.send_replace(Some(read));
            }
            Err(error) => {
                let refused = is_refused(&error);
                let error = report(&error);
                if refused && required && known.borrow().is_none() {
                    return Err(format!(
                        "can not read the ConfigMap {NAMESPACE}/{NAME}, which says who vouches for clients: {error}; bind \
                         the account to the Role extension-apiserver-authentication-reader in {NAMESPACE}, or set \
                         --authentication-tolerate-lookup-failure or --authentication-skip-lookup"
                    ));
                }
                if broken {
                    debug!(error, "The cluster still does not say who vouches for clients");
                } else {
                    warn!(
                        error,
                        configmap = %format_args!("{NAMESPACE}/{NAME}"),
                        "The cluster does not say who vouches for clients, certificates of clients are not known from it"
                    );
                }
                broken = true;
                if refused {
                    // Nobody has to wait for it.
                    known.send_if_modified(|known| {
                        let waited = known.is_none();
                        known.get_or_insert_default();
                        waited
                    });
                }
            }
        }
    }
    Ok(())
}

fn is_refused(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => matches!(status.code, 401 | 403),
        _ => false,
    }
}

impl Known {
    /// What can not be used stays as it was `before`.
    fn read(data: &BTreeMap<String, String>, before: Option<&Self>) -> Self {
        let authorities = |key: &str| {
            let pem = data.get(key).filter(|pem| !pem.trim().is_empty())?;
            let read = Authorities::of_pem(pem.as_bytes());
            Some(read.map_err(|error| {
                warn!(
                    key,
                    error, "Keeping the authorities in use, the changed ones are not usable"
                );
            }))
        };
        let list = |key: &str| -> Vec<String> {
            let Some(text) = data.get(key).filter(|text| !text.trim().is_empty()) else {
                return Vec::new();
            };
            serde_json::from_str(text).unwrap_or_else(|error| {
                warn!(key, %error, "The cluster's list for proxies is not usable");
                Vec::new()
            })
        };
        let clients = match authorities("client-ca-file") {
            Some(Ok(authorities)) => Some(authorities),
            Some(Err(())) => before.and_then(|before| before.clients.clone()),
            None => None,
        };
        let headers = || ProxyHeaders {
            allowed_names: list("requestheader-allowed-names"),
            user: list("requestheader-username-headers"),
            uid: list("requestheader-uid-headers"),
            groups: list("requestheader-group-headers"),
            extra_prefixes: list("requestheader-extra-headers-prefix"),
        };
        let proxies = match authorities("requestheader-client-ca-file") {
            Some(Ok(authorities)) => Some((authorities, headers())),
            Some(Err(())) => before.and_then(|before| before.proxies.clone()),
            None => None,
        };
        Self { clients, proxies }
    }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
