#![allow(clippy::unwrap_used, clippy::expect_used)]

mod limits;

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::config::{AccessConfig, Certificate, CertificateFiles, NamedCertificate, TlsConfig};

struct Running {
    address: SocketAddr,
    checks: Checks,
    stop: CancellationToken,
    task: JoinHandle<Result<(), String>>,
}

fn config(certificate: Certificate) -> ServingConfig {
    ServingConfig {
        address: ([127, 0, 0, 1], 0).into(),
        certificate,
        named_certificates: Vec::new(),
        tls: TlsConfig::default(),
        http2_max_streams: Some(32),
        share_port: false,
        access: AccessConfig {
            open_paths: ["/healthz", "/readyz", "/livez", "/metrics"].map(str::to_owned).to_vec(),
            skip_lookup: true,
            ..AccessConfig::default()
        },
    }
}

async fn start(certificate: Certificate) -> Running {
    let checks = Checks::default();
    let shown = Shown {
        checks: checks.clone(),
        metrics: Metrics::new("1.2.3", &["acme"], []),
        ..Shown::default()
    };
    let server = Server::bind(&config(certificate), shown).unwrap();
    let (address, stop) = (server.local_addr().unwrap(), CancellationToken::new());
    let task = tokio::spawn(server.serve(no_reviewers(), stop.clone()));
    Running {
        address,
        checks,
        stop,
        task,
    }
}

async fn start_in(folder: &Path) -> Running {
    start(Certificate::Directory(folder.to_owned())).await
}

/// No API server.
pub(super) fn no_reviewers() -> Reviewers {
    let answer = tower::service_fn(async |_: http::Request<kube::client::Body>| {
        Err::<http::Response<kube::client::Body>, tower::BoxError>("there is no API server".into())
    });
    let client = kube::Client::new(answer, "default");
    Reviewers {
        authentication: client.clone(),
        authorization: client,
        lookup_required: true,
    }
}

/// A TLS connection that trusts the certificate in `file` and nothing else.
async fn connect(address: SocketAddr, file: &Path, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await
}

async fn request(stream: &mut TlsStream<TcpStream>, line: &str) -> String {
    request_with(stream, line, "").await
}

/// The same with these headers, each with its line break.
async fn request_with(stream: &mut TlsStream<TcpStream>, line: &str, headers: &str) -> String {
    let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A peer that closes without saying goodbye in TLS has still sent all of its answer.
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

async fn get(running: &Running, folder: &Path, path: &str) -> String {
    let file = folder.join("cloud-controller-manager.crt");
    let mut stream = connect(running.address, &file, b"http/1.1").await.unwrap();
    request(&mut stream, &format!("GET {path}")).await
}

#[tokio::test]
async fn probes_are_answered_over_tls_with_a_certificate_for_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_in(folder.path()).await;
    let ready = running.checks.register("informer-sync");
    let livez = get(&running, folder.path(), "/livez").await;
    assert!(livez.starts_with("HTTP/1.1 200 OK\r\n") && livez.ends_with("\r\n\r\nok"), "{livez}");
    assert!(livez.contains("content-type: text/plain; charset=utf-8\r\n"), "{livez}");
    let readyz = get(&running, folder.path(), "/readyz").await;
    assert!(readyz.starts_with("HTTP/1.1 500 "), "{readyz}");
    assert!(
        readyz.contains("[-]informer-sync failed: reason withheld\nreadyz check failed\n"),
        "{readyz}"
    );
    let single = get(&running, folder.path(), "/readyz/informer-sync").await;
    assert!(single.ends_with("internal server error: not started yet\n"), "{single}");
    ready.set_ok();
    assert!(get(&running, folder.path(), "/readyz/informer-sync").await.ends_with("\r\n\r\nok"));
    assert!(get(&running, folder.path(), "/nothing").await.starts_with("HTTP/1.1 404 "));
    assert!(get(&running, folder.path(), "/readyz/nothing").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn metrics_are_served_in_the_text_format_also_to_clients_that_prefer_openmetrics() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud-controller-manager.crt");
    let running = start_in(folder.path()).await;
    let refused = get(&running, folder.path(), "/metrics/slis").await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    let mut stream = connect(running.address, &file, b"http/1.1").await.unwrap();
    // As Prometheus does.
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n";
    let metrics = request_with(&mut stream, "GET /metrics", accept).await;
    for expected in [
        "content-type: text/plain; version=0.0.4; charset=utf-8\r\n",
        "ccm_build_info{version=\"1.2.3\",commit=\"\",providers=\"acme\"} 1\n",
        "# TYPE ccm_https_requests_total counter\n",
        "ccm_https_connections 1\n",
        "apiserver_delegated_authz_request_duration_seconds_bucket{le=\"1\",code=\"<error>\"} ",
    ] {
        assert!(metrics.contains(expected), "{expected:?} is not in\n{metrics}");
    }
}

#[test]
fn probes_are_counted_until_reset() {
    let (checks, slis) = (Checks::default(), health::Slis::default());
    checks.register("informer-sync");
    let probe = |endpoint| health::aggregate(&checks, endpoint, None, &slis);
    for endpoint in [health::Endpoint::Readyz, health::Endpoint::Healthz] {
        probe(endpoint);
    }
    probe(health::Endpoint::Readyz);
    let text = slis.render().unwrap();
    for line in [
        "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
        "kubernetes_healthcheck{name=\"informer-sync\",type=\"readyz\"} 0",
        "kubernetes_healthchecks_total{name=\"informer-sync\",type=\"readyz\",status=\"error\"} 2",
        "kubernetes_healthchecks_total{name=\"ping\",type=\"healthz\",status=\"success\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    slis.reset();
    assert!(!slis.render().unwrap().contains("name="));
}

/// Starts a server, and returns the result of the handshake of a client.
async fn handshake(
    change: impl FnOnce(&mut ServingConfig),
    versions: &[&'static rustls::SupportedProtocolVersion],
    name: &'static str,
    roots: &[&Path],
) -> std::io::Result<TlsStream<TcpStream>> {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(Certificate::Directory(folder.path().to_owned()));
    change(&mut config);
    let server = Server::bind(&config, Shown::default()).unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(no_reviewers(), CancellationToken::new()));
    let mut trusted = RootCertStore::empty();
    let own = folder.path().join("cloud-controller-manager.crt");
    for file in roots.iter().copied().chain([own.as_path()]) {
        trusted.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
    }
    let mut client =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(trusted)
            .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(client))
        .connect(ServerName::try_from(name).unwrap(), TcpStream::connect(address).await?)
        .await
}

#[tokio::test]
async fn the_handshake_is_what_the_flags_allow() {
    use rustls::{CipherSuite, NamedGroup, version};

    let both: &[_] = &[&version::TLS13, &version::TLS12];
    let (old, new): (&[_], &[_]) = (&[&version::TLS12], &[&version::TLS13]);
    handshake(|_| {}, old, "localhost", &[]).await.unwrap();
    let tls13 = |config: &mut ServingConfig| config.tls.only_tls13 = true;
    handshake(tls13, old, "localhost", &[]).await.unwrap_err();
    handshake(tls13, new, "localhost", &[]).await.unwrap();

    // The certificate has an ECDSA key.
    let suite = CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
    let suites = |config: &mut ServingConfig| config.tls.cipher_suites = Some(vec![suite]);
    let stream = handshake(suites, old, "localhost", &[]).await.unwrap();
    let agreed = stream.get_ref().1.negotiated_cipher_suite().unwrap();
    assert_eq!(agreed.suite(), suite);
    handshake(suites, new, "localhost", &[]).await.unwrap();
    let none = |config: &mut ServingConfig| config.tls.cipher_suites = Some(Vec::new());
    handshake(none, old, "localhost", &[]).await.unwrap_err();
    handshake(none, new, "localhost", &[]).await.unwrap();

    let group = NamedGroup::secp384r1;
    let groups = |config: &mut ServingConfig| config.tls.key_exchange = Some(vec![group]);
    let stream = handshake(groups, both, "localhost", &[]).await.unwrap();
    let agreed = stream.get_ref().1.negotiated_key_exchange_group().unwrap();
    assert_eq!(agreed.name(), group);

    let stream = handshake(|config| config.http2_max_streams = None, both, "localhost", &[]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn clients_get_the_certificate_of_the_name_they_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let pair = |file: &str, names: &[&str]| {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let key = rcgen::KeyPair::generate().unwrap();
        let created = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let (certificate, path) = (folder.path().join(file), folder.path().join(format!("{file}.key")));
        fs::write(&certificate, created.pem()).unwrap();
        fs::write(&path, key.serialize_pem()).unwrap();
        (certificate, path)
    };
    let named =
        |(certificate, key): &(std::path::PathBuf, std::path::PathBuf), names: &[&str]| NamedCertificate {
            files: CertificateFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            },
            names: names.iter().map(ToString::to_string).collect(),
        };
    let any = pair("any", &["*.example.com", "one.example.com"]);
    let one = pair("one", &["one.example.com", "two.example.com"]);
    let three = pair("three", &["three.example.com"]);
    let certificates = vec![
        named(&any, &[]),
        named(&one, &["one.example.com"]),
        named(&three, &[]),
    ];
    let roots: Vec<&Path> = [&any, &one, &three].map(|pair| pair.0.as_path()).to_vec();
    for (name, expected) in [
        ("one.example.com", Some(&one)),
        // The certificate is for it, the command line is not.
        ("two.example.com", Some(&any)),
        ("three.example.com", Some(&three)),
        ("localhost", None),
    ] {
        let certificates = certificates.clone();
        let stream = handshake(
            |config| config.named_certificates = certificates,
            &[&rustls::version::TLS13],
            name,
            &roots,
        )
        .await
        .unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
        let is = |pair: &(std::path::PathBuf, std::path::PathBuf)| {
            CertificateDer::from_pem_file(&pair.0).unwrap() == shown
        };
        match expected {
            Some(pair) => assert!(is(pair), "{name}"),
            None => assert!(![&any, &one, &three].into_iter().any(is), "{name}"),
        }
    }

    let nameless = pair("nameless", &[]);
    let mut config = config(Certificate::InMemory);
    config.named_certificates = vec![named(&nameless, &[])];
    let error = Server::bind(&config, Shown::default()).err().unwrap().join("\n");
    assert!(error.contains("contains no names"), "{error}");
}

#[tokio::test]
async fn a_port_is_shared_only_if_it_may_be() {
    let mut config = config(Certificate::InMemory);
    let bind = async |config: &ServingConfig| Server::bind(config, Shown::default());
    config.share_port = true;
    let first = bind(&config).await.unwrap();
    config.address = first.local_addr().unwrap();
    bind(&config).await.unwrap();
    config.share_port = false;
    bind(&config).await.err().unwrap();
}

#[tokio::test]
async fn http2_is_spoken_to_those_who_ask_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_in(folder.path()).await;
    let file = folder.path().join("cloud-controller-manager.crt");
    let mut stream = connect(running.address, &file, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    // The preface and an empty SETTINGS frame; the server's own SETTINGS frame (type 4 on stream 0) must come.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!((frame[3], &frame[5..]), (4, &[0, 0, 0, 0][..]));
}

#[tokio::test]
async fn the_pair_in_the_folder_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud-controller-manager.crt");
    let first = start_in(folder.path()).await;
    let created = fs::read(&file).unwrap();
    let second = start_in(folder.path()).await;
    assert_eq!(fs::read(&file).unwrap(), created);
    for running in [&first, &second] {
        assert!(get(running, folder.path(), "/healthz").await.ends_with("ok"));
    }
    let key = folder.path().join("cloud-controller-manager.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    fs::remove_file(&key).unwrap();
    let error = Server::bind(&config(Certificate::Directory(folder.path().to_owned())), Shown::default())
        .err()
        .unwrap()
        .join("\n");
    assert!(error.contains("cloud-controller-manager.crt exists but"), "{error}");
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = start_in(old.path()).await;
    let name = |folder: &Path, end: &str| folder.join(format!("cloud-controller-manager.{end}"));
    start_in(new.path()).await;
    let old_certificate = tempfile::NamedTempFile::new().unwrap();
    fs::copy(name(old.path(), "crt"), old_certificate.path()).unwrap();

    // Only the certificate has been replaced: it does not fit the key, and the one in use stays.
    fs::copy(name(new.path(), "crt"), name(old.path(), "crt")).unwrap();
    connect(running.address, old_certificate.path(), b"http/1.1").await.unwrap();
    connect(running.address, &name(new.path(), "crt"), b"http/1.1").await.unwrap_err();

    fs::copy(name(new.path(), "key"), name(old.path(), "key")).unwrap();
    connect(running.address, &name(new.path(), "crt"), b"http/1.1").await.unwrap();
    connect(running.address, old_certificate.path(), b"http/1.1").await.unwrap_err();

    fs::remove_file(name(old.path(), "key")).unwrap();
    connect(running.address, &name(new.path(), "crt"), b"http/1.1").await.unwrap();
}

#[tokio::test]
async fn connections_that_are_open_get_their_answer_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud-controller-manager.crt");
    let running = start_in(folder.path()).await;
    let mut idle = connect(running.address, &file, b"http/1.1").await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 12];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 200");
    running.stop.cancel();
    running.task.await.unwrap().unwrap();
    // The kept-alive connection was ended and the port is free again.
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest).await;
    TcpListener::bind(running.address).await.unwrap();
}

#[tokio::test]
async fn what_keeps_it_from_starting_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut config = config(Certificate::InMemory);
    config.address = taken.local_addr().unwrap();
    let bind =
        async |config: &ServingConfig| Server::bind(config, Shown::default()).err().unwrap().join("\n");
    let error = bind(&config).await;
    assert!(error.contains(&config.address.to_string()) && error.contains("--secure-port"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    config.certificate = Certificate::Files(CertificateFiles {
        certificate: certificate.clone(),
        key: key.clone(),
    });
    let error = bind(&config).await;
    assert!(error.contains("cannot read") && error.contains("tls.crt"), "{error}");
    fs::write(&certificate, "nothing of use").unwrap();
    let error = bind(&config).await;
    assert!(error.contains("tls.crt contains no certificate in PEM form"), "{error}");
}

#[tokio::test]
async fn all_interfaces_means_ipv4_too() {
    let mut config = config(Certificate::InMemory);
    config.address = (Ipv6Addr::UNSPECIFIED, 0).into();
    let server = Server::bind(&config, Shown::default()).unwrap();
    let port = server.local_addr().unwrap().port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
}

#[test]
fn json_is_for_clients_that_prefer_it() {
    for (accept, expected) in [
        ("", false),
        ("*/*", false),
        ("application/json", true),
        ("text/html,application/xhtml+xml,application/json;q=0.9", false),
        ("text/html;q=0.5, Application/JSON;q=0.8", true),
        ("application/json;v=v1alpha1;g=config.k8s.io;as=Statusz", true),
        ("application/json;q=0", false),
    ] {
        let mut headers = http::HeaderMap::new();
        headers.insert("accept", accept.parse().unwrap());
        assert_eq!(routes::prefers(&headers, "application/json", "text/html"), expected, "{accept}");
    }
}
