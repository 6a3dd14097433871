//! A server with responses of the test that records its requests, for behavior that moto does not emulate.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{TlsAcceptor, rustls};

/// The answer to a request (head and body as text): status and body.
type Answer = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// The lifetime of a token of the metadata service.
const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds: 21600";

/// A running server; it ends with the test's runtime.
pub(crate) struct Server {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves HTTP, or with an acceptor HTTPS. A CONNECT request gets a tunnel to this server.
    pub(crate) async fn start(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, answer): (_, Arc<Answer>) = (Arc::clone(&requests), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, log, answer) = (tls.clone(), Arc::clone(&log), Arc::clone(&answer));
                tokio::spawn(connection(stream, tls, log, answer));
            }
        });
        Self { port, requests }
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

async fn connection(
    mut stream: tokio::net::TcpStream,
    tls: Option<TlsAcceptor>,
    log: Arc<Mutex<Vec<String>>>,
    answer: Arc<Answer>,
) {
    let Some(tls) = tls else {
        return serve(stream, log, answer).await;
    };
    let mut first = [0];
    if matches!(stream.peek(&mut first).await, Ok(1)) && first == *b"C" {
        let Some(connect) = request(&mut stream).await else {
            return;
        };
        log.lock().push(connect);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    }
    if let Ok(stream) = tls.accept(stream).await {
        serve(stream, log, answer).await;
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    log: Arc<Mutex<Vec<String>>>,
    answer: Arc<Answer>,
) {
    while let Some(request) = request(&mut stream).await {
        let (status, body) = answer(&request);
        log.lock().push(request);
        let reply = format!(
            "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{TTL}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The next request, head and body.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut text = String::new();
    loop {
        let length = text
            .to_lowercase()
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.lines().next()?.parse::<usize>().ok());
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && body.len() >= length.unwrap_or(0)
        {
            return Some(text);
        }
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
        text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
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
