//! Who vouches for certificates of clients.

use std::{fs, path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use rustls::{
    RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tracing::{info, warn};

use super::user::Subject;
use crate::server::files::{FileMark, mark};

/// Authorities, by their certificates.
#[derive(Clone, Debug)]
pub(super) struct Authorities(Arc<dyn ClientCertVerifier>);

impl Authorities {
    /// Those of a PEM file. Certificates in it that can not be used are left out.
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

    /// Whom a certificate is for, if one of these vouches for it now.
    pub(super) fn vouch_for(&self, chain: &[CertificateDer<'_>]) -> Result<Subject, String> {
        let (certificate, between) = chain.split_first().ok_or("there is no certificate")?;
        self.0
            .verify_client_cert(certificate, between, UnixTime::now())
            .map_err(|error| error.to_string())?;
        let parsed = webpki::EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
        Subject::parse(parsed.subject()).ok_or_else(|| "its subject can not be read".to_owned())
    }
}

/// Authorities in a file, read again when it changes.
#[derive(Debug)]
pub(super) struct AuthorityFile {
    flag: &'static str,
    path: PathBuf,
    current: Mutex<(Option<FileMark>, Authorities)>,
}

impl AuthorityFile {
    /// # Errors
    /// What is wrong with it, in words for the user.
    pub(super) fn open(flag: &'static str, path: PathBuf) -> Result<Self, String> {
        let seen = mark(&path);
        let authorities = read(&path).map_err(|error| format!("{flag}: {error}"))?;
        Ok(Self {
            flag,
            path,
            current: Mutex::new((seen, authorities)),
        })
    }

    /// Those in force. A file that can not be used leaves them as they are.
    pub(super) fn current(&self) -> Authorities {
        let mut current = self.current.lock();
        let seen = mark(&self.path);
        if seen != current.0 {
            current.0 = seen;
            match read(&self.path) {
                Ok(authorities) => {
                    info!(file = %self.path.display(), flag = self.flag, "Loaded the changed authorities");
                    current.1 = authorities;
                }
                Err(error) => warn!(
                    error,
                    flag = self.flag,
                    "Keeping the authorities in use, the changed file is not usable"
                ),
            }
        }
        current.1.clone()
    }
}

fn read(path: &PathBuf) -> Result<Authorities, String> {
    let pem = fs::read(path).map_err(|error| format!("can not read {}: {error}", path.display()))?;
    Authorities::of_pem(&pem).map_err(|error| format!("can not use {}: {error}", path.display()))
}
