//! TLS: trusted authorities and the client certificate.

use std::{net::SocketAddr, path::Path, sync::Arc};

use ccm_core::ErrorKind;
use ccm_sim::openstack::{Config, OpenStack};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer, server::WebPkiClientVerifier,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::cloud::{build, context, provider};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Issuer {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn issue(authority: &Issuer, name: &str, usage: ExtendedKeyUsagePurpose) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// A proxy that terminates TLS in front of `target`, and requires a client certificate of `clients`, if given.
async fn proxy(
    target: SocketAddr,
    (certificate, key): (rcgen::Certificate, KeyPair),
    clients: Option<&Issuer>,
) -> String {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.der().clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(stream).await else {
                    return;
                };
                let mut plain = TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
            });
        }
    });
    format!("https://localhost:{port}")
}

/// The simulator's config with Keystone behind the proxy. The other services are reached by the URLs of the catalog.
async fn behind(sim: &OpenStack, authority: &Issuer, clients: Option<&Issuer>) -> String {
    let shown = issue(authority, "localhost", ExtendedKeyUsagePurpose::ServerAuth);
    behind_certificate(sim, shown, clients).await
}

/// As [`behind`], with this certificate.
async fn behind_certificate(
    sim: &OpenStack,
    shown: (rcgen::Certificate, KeyPair),
    clients: Option<&Issuer>,
) -> String {
    let url = url::Url::parse(&sim.auth_url()).unwrap();
    let target = SocketAddr::new(url.host_str().unwrap().parse().unwrap(), url.port().unwrap());
    let proxy = proxy(target, shown, clients).await;
    let own = url.origin().ascii_serialization();
    sim.cloud_conf().replacen(&own, &proxy, 1)
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn only_the_given_authorities_are_trusted() {
    let sim = OpenStack::start(Config::default()).await.unwrap();
    let (authority, stranger) = (authority(), self::authority());
    let conf = behind(&sim, &authority, None).await;
    let directory = tempfile::tempdir().unwrap();
    let good = write(directory.path(), "ca.pem", &authority.pem());
    let other = write(directory.path(), "other.pem", &stranger.pem());
    let both = write(directory.path(), "both.pem", &format!("{}{}", stranger.pem(), authority.pem()));

    build(&format!("{conf}ca-file={good}\n")).await.unwrap();
    build(&format!("{conf}ca-file={both}\n")).await.unwrap();
    let inline = authority.pem().replace('\n', "\\n").replace('\r', "");
    build(&format!("{conf}cafilecontents=\"{inline}\"\n")).await.unwrap();
    build(&format!("{conf}tls-insecure=true\n")).await.unwrap();
    for keys in [
        format!("ca-file={other}"),
        String::new(),
        "tls-insecure=yes".to_owned(),
    ] {
        let error = build(&format!("{conf}{keys}\n")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{keys}: {}", error.report());
        assert!(error.report().contains("certificate"), "{keys}: {}", error.report());
    }
}

#[tokio::test]
async fn a_servers_own_certificate_is_trusted_unless_it_is_that_of_an_authority() {
    let sim = OpenStack::start(Config::default()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = is_ca;
        let certificate = params.self_signed(&key).unwrap();
        let ca = write(directory.path(), "ca.pem", &certificate.pem());
        let conf = behind_certificate(&sim, (certificate, key), None).await;
        let built = build(&format!("{conf}ca-file={ca}\n")).await;
        if is_ca == IsCa::NoCa {
            built.unwrap();
        } else {
            let text = built.unwrap_err().report();
            assert!(text.contains("needs one that an authority issued, or one without CA:TRUE"), "{text}");
        }
        build(&format!("{conf}tls-insecure=true\n")).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let sim = OpenStack::start(Config::default()).await.unwrap();
    let (authority, clients) = (authority(), self::authority());
    let conf = behind(&sim, &authority, Some(&clients)).await;
    let directory = tempfile::tempdir().unwrap();
    let ca = write(directory.path(), "ca.pem", &authority.pem());
    let (certificate, key) = issue(&clients, "ccm", ExtendedKeyUsagePurpose::ClientAuth);
    let certificate = write(directory.path(), "cert.pem", &certificate.pem());
    let key = write(directory.path(), "key.pem", &key.serialize_pem());
    build(&format!("{conf}ca-file={ca}\ncert-file={certificate}\nkey-file={key}\n"))
        .await
        .unwrap();
    assert!(build(&format!("{conf}ca-file={ca}\n")).await.is_err());
}

#[tokio::test]
async fn rotated_files_are_applied_at_run_time() {
    let sim = OpenStack::start(Config::default()).await.unwrap();
    let (authority, stranger, clients) = (authority(), self::authority(), self::authority());
    let conf = behind(&sim, &authority, Some(&clients)).await;
    let directory = tempfile::tempdir().unwrap();
    let client = || {
        let (certificate, key) = issue(&clients, "ccm", ExtendedKeyUsagePurpose::ClientAuth);
        let certificate = write(directory.path(), "cert.pem", &certificate.pem());
        (certificate, write(directory.path(), "key.pem", &key.serialize_pem()))
    };
    let ca = write(directory.path(), "ca.pem", &authority.pem());
    let (certificate, key) = client();
    let conf = format!("{conf}ca-file={ca}\ncert-file={certificate}\nkey-file={key}\n");
    let (_folder, context) = context(&conf);
    let cloud = (provider().build)(context).await.unwrap();
    for path in [&ca, &certificate, &key] {
        assert!(cloud.watched_files().contains(&path.into()), "{path}");
    }

    write(directory.path(), "ca.pem", &format!("{}{}", stranger.pem(), authority.pem()));
    assert_eq!(cloud.reload().await.unwrap().applied, ["[Global] ca-file"]);
    client();
    let keys = ["[Global] cert-file", "[Global] key-file"];
    assert_eq!(cloud.reload().await.unwrap().applied, keys);
    assert_eq!(cloud.generation(), 3);

    // The cloud's certificate is from another authority.
    write(directory.path(), "ca.pem", &stranger.pem());
    let error = cloud.reload().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
    // Between two writes of a rotation, certificate and key do not match.
    write(directory.path(), "ca.pem", &authority.pem());
    let (other, _) = issue(&clients, "ccm", ExtendedKeyUsagePurpose::ClientAuth);
    let whole = std::fs::read_to_string(&certificate).unwrap();
    write(directory.path(), "cert.pem", &other.pem());
    let error = cloud.reload().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{}", error.report());
    write(directory.path(), "cert.pem", &whole);
    assert_eq!(cloud.reload().await.unwrap().applied, ["[Global] ca-file"]);
}
