//! The certificate of the HTTPS server: generated in memory, kept in a folder, or the user's own files.
//!
//! Files are compared on every new connection and loaded again when they have changed, so that a renewed certificate is
//! used at once. A pair that does not match (the certificate was replaced, the key not yet) or is unreadable leaves the one
//! in use in place.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::{CertifiedKey, SingleCertAndKey},
};
use tracing::{info, warn};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use crate::{
    config::{Certificate, NamedCertificate, ServingConfig, TlsConfig},
    files::WatchedFiles,
};

/// The names of the files below `--cert-dir`, as everywhere else.
const PAIR_NAME: &str = "cloud-controller-manager";

/// Why there is no certificate, in words for the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{path} holds no {what} in PEM form", path = path.display())]
    Empty { path: PathBuf, what: &'static str },
    #[error("{certificate} and {key} cannot be used together: {source}", certificate = certificate.display(), key = key.display())]
    Pair {
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
    #[error("{there} exists but {missing} does not; delete the one or restore the other", there = there.display(), missing = missing.display())]
    Half { there: PathBuf, missing: PathBuf },
    #[error(
        "there are no names in {path}; add its names after a colon in --tls-sni-cert-key",
        path = path.display()
    )]
    NoNames { path: PathBuf },
    #[error("cannot create a self-signed certificate: {0}")]
    Generate(#[from] rcgen::Error),
    #[error("cannot set up TLS: {0}")]
    Setup(#[from] rustls::Error),
}

/// The TLS side of the server.
pub(super) fn server_config(config: &ServingConfig) -> Result<ServerConfig, TlsError> {
    let default: Arc<dyn ResolvesServerCert> = match &config.certificate {
        Certificate::InMemory => {
            let pair = Generated::new(config.bind_address)?;
            Arc::new(SingleCertAndKey::from(certified(
                vec![pair.certificate],
                pair.key,
            )?))
        }
        Certificate::Directory(folder) => Arc::new(Files::open(kept_pair(folder, config.bind_address)?)?),
        Certificate::Files { certificate, key } => Arc::new(Files::open(Pair {
            certificate: certificate.clone(),
            key: key.clone(),
        })?),
    };
    let resolver = match config.named_certificates.is_empty() {
        true => default,
        false => Arc::new(Named::open(&config.named_certificates, default)?),
    };
    let versions: &[_] = match config.tls.only_tls13 {
        true => &[&rustls::version::TLS13],
        false => &[&rustls::version::TLS13, &rustls::version::TLS12],
    };
    let mut server = ServerConfig::builder_with_provider(Arc::new(crypto(&config.tls)))
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(Arc::new(AnyClient::new()))
        .with_cert_resolver(resolver);
    if config.http2_max_streams.is_some() {
        server.alpn_protocols.push(b"h2".to_vec());
    }
    server.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(server)
}

fn crypto(config: &TlsConfig) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if let Some(suites) = &config.cipher_suites {
        // The suites of TLS 1.3 cannot be chosen.
        provider
            .cipher_suites
            .retain(|suite| suite.tls13().is_some() || suites.contains(&suite.suite()));
    }
    if let Some(groups) = &config.key_exchange {
        provider.kx_groups = aws_lc_rs::ALL_KX_GROUPS
            .iter()
            .copied()
            .filter(|group| groups.contains(&group.name()))
            .collect();
    }
    provider
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, rustls::Error> {
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
}

/// Requests a client certificate and accepts any, or none. Each HTTP request verifies it: authorities change while a
/// connection is open, and a client with a token, or one that reads an open path, needs no certificate.
#[derive(Debug)]
struct AnyClient(WebPkiSupportedAlgorithms);

impl AnyClient {
    fn new() -> Self {
        Self(aws_lc_rs::default_provider().signature_verification_algorithms)
    }
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: the client sends the certificate that it has.
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[derive(Clone, Debug)]
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

/// A pair of files, loaded again when they change.
#[derive(Debug)]
struct Files {
    pair: Pair,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    files: WatchedFiles,
    key: Arc<CertifiedKey>,
    /// The names in the certificate, in lower case.
    names: Vec<String>,
}

impl Files {
    fn open(pair: Pair) -> Result<Self, TlsError> {
        let files = WatchedFiles::new([pair.certificate.clone(), pair.key.clone()]);
        let key = Arc::new(pair.read()?);
        let names = names_in(&key);
        Ok(Self {
            pair,
            current: Mutex::new(Current { files, key, names }),
        })
    }

    /// The certificate in use, loaded again if it has changed.
    fn current(&self) -> MutexGuard<'_, Current> {
        let mut current = self.current.lock();
        if current.files.has_changed() {
            match self.pair.read() {
                Ok(key) => {
                    info!(file = %self.pair.certificate.display(), "Loaded the changed serving certificate");
                    current.names = names_in(&key);
                    current.key = Arc::new(key);
                }
                Err(error) => {
                    warn!(%error, "Keeping the serving certificate in use, the changed one is not usable");
                }
            }
        }
        current
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current().key))
    }
}

fn names_in(key: &CertifiedKey) -> Vec<String> {
    let parsed = key
        .cert
        .first()
        .map(|certificate| parse_x509_certificate(certificate));
    let Some(Ok((_, certificate))) = parsed else {
        return Vec::new();
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

/// Certificates by server name, and a default.
#[derive(Debug)]
struct Named {
    named: Vec<(Files, Vec<String>)>,
    default: Arc<dyn ResolvesServerCert>,
}

impl Named {
    fn open(
        certificates: &[NamedCertificate],
        default: Arc<dyn ResolvesServerCert>,
    ) -> Result<Self, TlsError> {
        let mut named = Vec::new();
        for certificate in certificates {
            let files = Files::open(Pair {
                certificate: certificate.certificate.clone(),
                key: certificate.key.clone(),
            })?;
            if certificate.names.is_empty() && files.current().names.is_empty() {
                return Err(TlsError::NoNames {
                    path: certificate.certificate.clone(),
                });
            }
            named.push((files, certificate.names.clone()));
        }
        Ok(Self { named, default })
    }

    /// Prefers names from the command line to those in certificates, then whole names to patterns, then the first one.
    fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let mut best: Option<(u8, Arc<CertifiedKey>)> = None;
        for (files, given) in &self.named {
            let current = files.current();
            let (names, base) = match given.is_empty() {
                true => (&current.names, 0),
                false => (given, 2),
            };
            let rank = names
                .iter()
                .filter_map(|pattern| match_name(pattern, name))
                .max()
                .map(|exact| base + u8::from(exact));
            if rank > best.as_ref().map(|(rank, _)| *rank) {
                best = rank.map(|rank| (rank, Arc::clone(&current.key)));
            }
        }
        best.map(|(_, key)| key)
    }
}

/// `None` if the pattern does not match, else whether it is the name itself.
fn match_name(pattern: &str, name: &str) -> Option<bool> {
    if pattern == name {
        return Some(true);
    }
    let parent = name.split_once('.')?.1;
    (pattern.strip_prefix("*.")? == parent).then_some(false)
}

impl ResolvesServerCert for Named {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = hello
            .server_name()
            .and_then(|name| self.find(&name.to_ascii_lowercase()));
        found.or_else(|| self.default.resolve(hello))
    }
}

impl Pair {
    fn read(&self) -> Result<CertifiedKey, TlsError> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|source| TlsError::Read {
                path: path.clone(),
                source,
            })
        };
        let certificate = read(&self.certificate)?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&certificate)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|chain: &Vec<_>| !chain.is_empty())
            .ok_or_else(|| TlsError::Empty {
                path: self.certificate.clone(),
                what: "certificate",
            })?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|_| TlsError::Empty {
            path: self.key.clone(),
            what: "private key",
        })?;
        certified(chain, key).map_err(|source| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }
}

/// The pair in `--cert-dir`; created if neither file exists.
fn kept_pair(folder: &Path, address: IpAddr) -> Result<Pair, TlsError> {
    let pair = Pair {
        certificate: folder.join(format!("{PAIR_NAME}.crt")),
        key: folder.join(format!("{PAIR_NAME}.key")),
    };
    match (pair.certificate.exists(), pair.key.exists()) {
        (true, true) => return Ok(pair),
        (true, false) => {
            return Err(TlsError::Half {
                there: pair.certificate,
                missing: pair.key,
            });
        }
        (false, true) => {
            return Err(TlsError::Half {
                there: pair.key,
                missing: pair.certificate,
            });
        }
        (false, false) => {}
    }
    let generated = Generated::new(address)?;
    let write = |path: &Path, text: &str, mode: u32| {
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path);
        file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(|source| TlsError::Write {
                path: path.to_owned(),
                source,
            })
    };
    fs::create_dir_all(folder).map_err(|source| TlsError::Write {
        path: folder.to_owned(),
        source,
    })?;
    write(&pair.key, &generated.key_pem, 0o600)?;
    write(&pair.certificate, &generated.certificate_pem, 0o644)?;
    info!(file = %pair.certificate.display(), "Created a self-signed serving certificate");
    Ok(pair)
}

/// A self-signed certificate. It does not expire: clients that verify it trust this one certificate and no other, and a
/// process may run for years.
struct Generated {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    certificate_pem: String,
    key_pem: String,
}

impl Generated {
    fn new(address: IpAddr) -> Result<Self, rcgen::Error> {
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        if !address.is_unspecified() && !names.contains(&address.to_string()) {
            names.push(address.to_string());
        }
        let mut params = rcgen::CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, PAIR_NAME);
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let key = rcgen::KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        })
    }
}
