//! The authorities that verify client certificates: those of `--client-ca-file`, or those that the cluster publishes in the
//! ConfigMap `kube-system/extension-apiserver-authentication`. Both are replaced now and then, and followed.

use std::{fs, path::PathBuf, pin::pin, sync::Arc};

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
use parking_lot::Mutex;
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
    files::WatchedFiles,
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
            return Err("it holds no certificate of an authority in PEM form".to_owned());
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

/// Authorities in a file, loaded again when it changes.
#[derive(Debug)]
pub(super) struct AuthorityFile {
    path: PathBuf,
    current: Mutex<(WatchedFiles, Authorities)>,
}

impl AuthorityFile {
    /// # Errors
    /// What is wrong with the file, in words for the user.
    pub(super) fn open(path: PathBuf) -> Result<Self, String> {
        let files = WatchedFiles::new([path.clone()]);
        let authorities = read(&path).map_err(|error| format!("--client-ca-file: {error}"))?;
        Ok(Self {
            path,
            current: Mutex::new((files, authorities)),
        })
    }

    /// The authorities in force. A file that is unusable leaves them unchanged.
    pub(super) fn current(&self) -> Authorities {
        let mut current = self.current.lock();
        if current.0.has_changed() {
            let flag = "--client-ca-file";
            match read(&self.path) {
                Ok(authorities) => {
                    info!(file = %self.path.display(), flag, "Loaded the changed authorities");
                    current.1 = authorities;
                }
                Err(error) => warn!(
                    error,
                    flag, "Keeping the authorities in use, the changed file is not usable"
                ),
            }
        }
        current.1.clone()
    }
}

fn read(path: &PathBuf) -> Result<Authorities, String> {
    let pem = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Authorities::of_pem(&pem).map_err(|error| format!("cannot use {}: {error}", path.display()))
}

/// The authorities that the cluster publishes, if any. `None` until it answered or refused to.
pub(super) type Published = watch::Sender<Option<Option<Authorities>>>;

/// Follows what the cluster publishes, forever.
///
/// # Errors
/// The lookup is required, and the cluster refuses it: what is missing, in words for the user.
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
                        "cannot read the ConfigMap {NAMESPACE}/{NAME}, which holds the cluster's client CA: {error}; bind \
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
                    // No request waits any longer.
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

/// The authorities in the text. An unusable text leaves them as they were `before`.
fn usable(pem: Option<&str>, before: Option<&Option<Authorities>>) -> Option<Authorities> {
    let pem = pem.filter(|pem| !pem.trim().is_empty())?;
    Authorities::of_pem(pem.as_bytes()).map_or_else(
        |error| {
            warn!(
                key = KEY,
                error, "Keeping the authorities in use, the changed ones are not usable"
            );
            before.cloned().flatten()
        },
        Some,
    )
}

#[cfg(test)]
#[path = "authorities_tests.rs"]
mod tests;
