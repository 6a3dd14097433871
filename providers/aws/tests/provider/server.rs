//! A server with responses of the test that records its requests, for behavior that moto does not emulate.

use std::sync::Arc;

use ccm_core::testkit::server::{Server, answer};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_rustls::{TlsAcceptor, rustls};

/// The lifetime of a token of the metadata service.
const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";

/// Serves HTTP, or with an acceptor HTTPS. A CONNECT request gets a tunnel to this server. `respond`: from a request to status
/// and body.
pub(crate) async fn start(
    tls: Option<TlsAcceptor>,
    respond: impl Fn(&str) -> (u16, String) + Send + Sync + 'static,
) -> Server {
    start_with_headers(tls, TTL.to_owned(), respond).await
}

/// As [`start`], with these headers in each response.
pub(crate) async fn start_with_headers(
    tls: Option<TlsAcceptor>,
    headers: String,
    respond: impl Fn(&str) -> (u16, String) + Send + Sync + 'static,
) -> Server {
    let respond = move |request: &str| {
        let (status, body) = respond(request);
        answer(&format!("{status} x"), &headers, &body)
    };
    Server::start_with(respond, move |server, stream| connection(server, stream, tls.clone())).await
}

async fn connection(server: Server, mut stream: TcpStream, tls: Option<TlsAcceptor>) {
    let Some(tls) = tls else {
        return server.serve(stream).await;
    };
    let mut first = [0];
    if matches!(stream.peek(&mut first).await, Ok(1)) && first == *b"C" {
        if server.request(&mut stream).await.is_none() {
            return;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    }
    if let Ok(stream) = tls.accept(stream).await {
        server.serve(stream).await;
    }
}

/// A certificate of an authority of its own for this name: the acceptor, and the authority's certificate.
pub(crate) fn tls(name: &str) -> (TlsAcceptor, String) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), pem)
}
