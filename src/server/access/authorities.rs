//! The authorities that verify client certificates: those of `--client-ca-file`, or those that the cluster publishes in the
//! ConfigMap `kube-system/extension-apiserver-authentication`. Both are read again when they change.

use std::{fs, path::PathBuf, pin::pin, sync::Arc};

use anyhow::{Context, anyhow};
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
use rustls::{
    RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::user::User;
use crate::{
    files::LoadedFiles,
    logging::{Failing, warn_if_new},
};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";

/// Authorities, by their certificates.
#[derive(Clone, Debug)]
pub(super) struct Authorities(Arc<dyn ClientCertVerifier>);

impl Authorities {
    /// Reads a PEM file. Unusable certificates in it are left out.
    pub(super) fn of_pem(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
        if roots.is_empty() {
            return Err("it contains no certificate of an authority in PEM form".to_owned());
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map(Self)
            .map_err(|error| error.to_string())
    }

    /// The user of a certificate, if one of these authorities verifies it now.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<User, String> {
        let (certificate, intermediates) = chain.split_first().ok_or("there is no certificate")?;
        self.0
            .verify_client_cert(certificate, intermediates, UnixTime::now())
            .map_err(|error| error.to_string())?;
        User::of_certificate(certificate).ok_or_else(|| "its subject has no readable common name".to_owned())
    }
}

/// Authorities in a file.
pub(super) type LoadedAuthorities = LoadedFiles<PathBuf, Authorities>;

/// Reads `--client-ca-file`.
///
/// # Errors
/// The problem of the file, for the user.
pub(super) fn open(path: PathBuf) -> Result<LoadedAuthorities, String> {
    let flag = "--client-ca-file";
    LoadedFiles::open(flag, path.clone(), [path], read).map_err(|error| format!("{flag}: {error:#}"))
}

fn read(path: &PathBuf) -> anyhow::Result<Authorities> {
    let pem = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Authorities::of_pem(&pem).map_err(|error| anyhow!("cannot use {}: {error}", path.display()))
}

/// The authorities that the cluster publishes, if any. `None` until the cluster answers or refuses.
pub(super) type Published = watch::Sender<Option<Option<Authorities>>>;

/// Follows what the cluster publishes, forever.
///
/// # Errors
/// The lookup is required, and the cluster refuses it: the missing right, for the user.
pub(super) async fn follow(client: Client, required: bool, published: &Published) -> Result<(), String> {
    let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let mut states = pin!(watch_object(api, NAME).default_backoff());
    let failing = Failing::default();
    while let Some(state) = states.next().await {
        match state {
            Ok(object) => {
                if failing.ends() {
                    info!("The cluster's client CA can be read again");
                }
                let pem = object.and_then(|object| object.data?.remove(KEY));
                let read = usable(pem.as_deref(), published.borrow().as_ref());
                debug!(clients = read.is_some(), "Read the cluster's client CA");
                published.send_replace(Some(read));
            }
            Err(error) => {
                let refused = is_refused(&error);
                let error = report(&error);
                if refused && required && published.borrow().is_none() {
                    return Err(format!(
                        "cannot read the ConfigMap {NAMESPACE}/{NAME}, which contains the cluster's client CA: {error}; bind \
                         the account to the Role extension-apiserver-authentication-reader in {NAMESPACE}, or set \
                         --authentication-tolerate-lookup-failure or --authentication-skip-lookup"
                    ));
                }
                warn_if_new!(
                    failing.begins(()),
                    error,
                    configmap = %format_args!("{NAMESPACE}/{NAME}"),
                    "Could not read the cluster's client CA; client certificates will be rejected"
                );
                if refused {
                    // Requests do not wait any longer.
                    published.send_if_modified(|published| {
                        let is_awaited = published.is_none();
                        published.get_or_insert_default();
                        is_awaited
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

/// The authorities in the text. An unusable text leaves those `before` unchanged.
fn usable(pem: Option<&str>, before: Option<&Option<Authorities>>) -> Option<Authorities> {
    let pem = pem.filter(|pem| !pem.trim().is_empty())?;
    Authorities::of_pem(pem.as_bytes()).map_or_else(
        |error| {
            warn!(key = KEY, error, "Changed client CA is not usable, keeping the previous one");
            before.cloned().flatten()
        },
        Some,
    )
}

#[cfg(test)]
mod tests;
