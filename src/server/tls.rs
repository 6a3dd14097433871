//! The certificate of the HTTPS server: generated in memory, stored in a folder, or the user's own files.
//!
//! Files are compared on every new connection and loaded again when they have changed, so that a renewed certificate is
//! used at once. A pair that does not match (the certificate was replaced, the key not yet) or is unreadable leaves the
//! certificate in use unchanged.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
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
use tracing::info;
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use crate::{
    config::{Certificate, CertificateFiles, NamedCertificate, ServingConfig, TlsConfig},
    files::LoadedFiles,
};

/// The names of the files below `--cert-dir`, as everywhere else.
const PAIR_NAME: &str = "cloud-controller-manager";

/// The TLS side of the server.
///
/// # Errors
/// The problem of the certificate or the TLS settings, for the user.
pub(super) fn server_config(config: &ServingConfig) -> Result<ServerConfig> {
    let default: Arc<dyn ResolvesServerCert> = match &config.certificate {
        Certificate::InMemory => {
            let (certificate, key) = generate(config.address.ip())?;
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            let key = certified(vec![certificate.der().clone()], key).context("cannot set up TLS")?;
            Arc::new(SingleCertAndKey::from(key))
        }
        Certificate::Directory(folder) => Arc::new(open(stored_pair(folder, config.address.ip())?)?),
        Certificate::Files(files) => Arc::new(open(files.clone())?),
    };
    let resolver = if config.named_certificates.is_empty() {
        default
    } else {
        Arc::new(Named::open(&config.named_certificates, default)?)
    };
    let versions: &[_] = if config.tls.only_tls13 {
        &[&rustls::version::TLS13]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let any_client = AnyClient(aws_lc_rs::default_provider().signature_verification_algorithms);
    let mut server = ServerConfig::builder_with_provider(Arc::new(crypto(&config.tls)))
        .with_protocol_versions(versions)
        .context("cannot set up TLS")?
        .with_client_cert_verifier(Arc::new(any_client))
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

/// A certificate in files.
type LoadedCertificate = LoadedFiles<CertificateFiles, Arc<CertifiedKey>>;

fn open(files: CertificateFiles) -> Result<LoadedCertificate> {
    let paths = [files.certificate.clone(), files.key.clone()];
    LoadedFiles::open("serving certificate", files, paths, read)
}

impl ResolvesServerCert for LoadedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// The names in the certificate, in lower case.
fn names_in(key: &CertifiedKey) -> Vec<String> {
    let names = key.cert.first().and_then(|certificate| {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        let extension = certificate.subject_alternative_name().ok()??;
        let names = extension.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        Some(names.collect())
    });
    names.unwrap_or_default()
}

/// Certificates by server name, and a default.
#[derive(Debug)]
struct Named {
    named: Vec<(LoadedCertificate, Vec<String>)>,
    default: Arc<dyn ResolvesServerCert>,
}

impl Named {
    fn open(certificates: &[NamedCertificate], default: Arc<dyn ResolvesServerCert>) -> Result<Self> {
        let mut named = Vec::new();
        for NamedCertificate { files, names } in certificates {
            let opened = open(files.clone())?;
            if names.is_empty() && names_in(&opened.current()).is_empty() {
                bail!(
                    "{} contains no names; add its names after a colon in --tls-sni-cert-key",
                    files.certificate.display()
                );
            }
            named.push((opened, names.clone()));
        }
        Ok(Self { named, default })
    }

    /// Prefers names from the command line to those in certificates, then whole names to patterns, then the first one.
    fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let mut best: Option<(u8, Arc<CertifiedKey>)> = None;
        for (files, given) in &self.named {
            let key = files.current();
            let (names, base) = if given.is_empty() {
                (&names_in(&key), 0)
            } else {
                (given, 2)
            };
            let exact = names.iter().filter_map(|pattern| match_name(pattern, name)).max();
            let rank = exact.map(|exact| base + u8::from(exact));
            if rank > best.as_ref().map(|(rank, _)| *rank) {
                best = rank.map(|rank| (rank, key));
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
        let found = hello.server_name().and_then(|name| self.find(&name.to_ascii_lowercase()));
        found.or_else(|| self.default.resolve(hello))
    }
}

fn read(files: &CertificateFiles) -> Result<Arc<CertifiedKey>> {
    let read = |path: &PathBuf| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let (file, key_file) = (files.certificate.display(), files.key.display());
    let certificate = read(&files.certificate)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
    let chain = chain.unwrap_or_default();
    if chain.is_empty() {
        bail!("{file} contains no certificate in PEM form");
    }
    let Ok(key) = PrivateKeyDer::from_pem_slice(&read(&files.key)?) else {
        bail!("{key_file} contains no private key in PEM form");
    };
    let certified = certified(chain, key);
    certified
        .map(Arc::new)
        .with_context(|| format!("{file} and {key_file} cannot be used together"))
}

/// The pair in `--cert-dir`; created if neither file exists.
fn stored_pair(folder: &Path, address: IpAddr) -> Result<CertificateFiles> {
    let files = CertificateFiles {
        certificate: folder.join(format!("{PAIR_NAME}.crt")),
        key: folder.join(format!("{PAIR_NAME}.key")),
    };
    let half = |existing: &Path, missing: &Path| {
        let (existing, missing) = (existing.display(), missing.display());
        bail!("{existing} exists but {missing} does not; delete the one or restore the other")
    };
    match (files.certificate.exists(), files.key.exists()) {
        (true, true) => return Ok(files),
        (true, false) => return half(&files.certificate, &files.key),
        (false, true) => return half(&files.key, &files.certificate),
        (false, false) => {}
    }
    let (certificate, key) = generate(address)?;
    let write = |path: &Path, text: &str, mode: u32| {
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)
            .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot write {}", folder.display()))?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.certificate, &certificate.pem(), 0o644)?;
    info!(file = %files.certificate.display(), "Created a self-signed serving certificate");
    Ok(files)
}

/// A self-signed certificate and its key. It does not expire: clients that verify it trust this one certificate and no other,
/// and a process may run for years.
fn generate(address: IpAddr) -> Result<(rcgen::Certificate, rcgen::KeyPair)> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !address.is_unspecified() && !names.contains(&address.to_string()) {
        names.push(address.to_string());
    }
    let generate = || {
        let mut params = rcgen::CertificateParams::new(names)?;
        let mut subject = rcgen::DistinguishedName::new();
        subject.push(rcgen::DnType::CommonName, PAIR_NAME);
        params.distinguished_name = subject;
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let key = rcgen::KeyPair::generate()?;
        Ok::<_, rcgen::Error>((params.self_signed(&key)?, key))
    };
    generate().context("cannot create a self-signed certificate")
}
