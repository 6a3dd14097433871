//! The HTTPS server: health and metrics.
//!
//! It is up before the cloud or the API server is asked for anything, on every replica, so that whoever looks can see
//! what the program waits for. Every answer is made from what is in memory; a request never waits for anything.

mod health;
mod metrics;
#[cfg(test)]
mod tests;
mod tls;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, info, warn};

pub(crate) use health::{CheckHandle, Checks, Kind};
pub(crate) use metrics::Metrics;

use crate::options::ServingConfig;
use health::Endpoint;

/// Connections at once. Probes and scrapers need a handful; beyond this a new one waits for its turn.
const MAX_CONNECTIONS: usize = 128;
/// For the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of a request, the pause before it included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A connection is asked to end after this time. It also ends those whose peer does not read.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// For the last answer on a connection that is asked to end.
const LAST_ANSWER: Duration = Duration::from_secs(5);
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// After a failure to accept (no file descriptors left, for one).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the server can not start, in words for the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("HTTPS server: {0}")]
    Tls(#[from] tls::TlsError),
    #[error(
        "HTTPS server: can not listen on {address}: {source}; --secure-port and --bind-address choose another"
    )]
    Listen { address: SocketAddr, source: io::Error },
}

/// A server that has its port but does not answer yet.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    tls: rustls::ServerConfig,
    http2_max_streams: Option<u32>,
    routes: Routes,
}

impl Server {
    /// Takes the port and loads or makes the certificate.
    pub(crate) async fn bind(
        config: &ServingConfig,
        checks: Checks,
        metrics: Metrics,
    ) -> Result<Self, BindError> {
        let tls = tls::server_config(config)?;
        let address = config.socket_address();
        let listener =
            listen(address, config.share_port).map_err(|source| BindError::Listen { address, source })?;
        Ok(Self {
            listener,
            tls,
            http2_max_streams: config.http2_max_streams,
            routes: Routes {
                checks,
                metrics,
                open_paths: config.open_paths.clone(),
            },
        })
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`, then lets requests that have begun end.
    pub(crate) async fn serve(self, stop: CancellationToken) {
        let acceptor = TlsAcceptor::from(Arc::new(self.tls));
        let routes = Arc::new(self.routes);
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let connections = TaskTracker::new();
        let mut accept_failing = false;
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accept(&self.listener, &slots) => accepted,
            };
            let (slot, stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if !accept_failing {
                        warn!(%error, "Failed to accept a connection");
                    }
                    accept_failing = true;
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            accept_failing = false;
            let (acceptor, routes, stop) = (acceptor.clone(), Arc::clone(&routes), stop.clone());
            let http = http_builder(self.http2_max_streams);
            connections.spawn(async move {
                serve_connection(stream, peer.ip().to_canonical(), acceptor, http, routes, stop).await;
                drop(slot);
            });
        }
        drop(self.listener);
        connections.close();
        if timeout(LAST_ANSWER, connections.wait()).await.is_err() {
            debug!(
                connections = connections.len(),
                "Cutting connections that do not end"
            );
        }
        info!("HTTPS server stopped");
    }
}

fn listen(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    let bind = |address: SocketAddr| {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        // Or a restart would have to wait for the last connections to be forgotten.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(share_port)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    if !address.ip().is_unspecified() {
        return bind(address);
    }
    // `::` takes IPv4 as well. A machine without IPv6 has only the other one.
    match bind((Ipv6Addr::UNSPECIFIED, address.port()).into()) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(tokio::sync::OwnedSemaphorePermit, TcpStream, SocketAddr)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((slot, stream, peer))
}

/// How HTTP is spoken on a connection.
fn http_builder(http2_max_streams: Option<u32>) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(32 * 1024);
    if http2_max_streams.is_none() {
        return builder.http1_only();
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_TIMEOUT)
        .keep_alive_timeout(LAST_ANSWER)
        .max_concurrent_streams(http2_max_streams);
    builder
}

async fn serve_connection(
    stream: TcpStream,
    peer: IpAddr,
    acceptor: TlsAcceptor,
    http: auto::Builder<TokioExecutor>,
    routes: Arc<Routes>,
    stop: CancellationToken,
) {
    // Answers are small; without this the end of one may wait for the peer's acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = tokio::select! {
        () = stop.cancelled() => return,
        stream = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)) => match stream {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => return debug!(%peer, "TLS handshake timed out"),
        },
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let response = routes.answer(peer, request.method(), request.uri());
        async move { Ok::<_, Infallible>(response) }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = sleep(MAX_CONNECTION_AGE) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match timeout(LAST_ANSWER, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "Connection failed");
    }
}

/// Who answers which path.
#[derive(Debug)]
struct Routes {
    checks: Checks,
    metrics: Metrics,
    open_paths: Vec<String>,
}

impl Routes {
    /// Whether a path, or the aggregate that a single check belongs to, is served to everybody.
    fn is_open(&self, path: &str) -> bool {
        let bare = |path: &str| path.trim_start_matches('/').to_owned();
        let path = bare(path);
        self.open_paths
            .iter()
            .any(|open| match bare(open).strip_suffix('*') {
                Some(start) => path.starts_with(start),
                None => path == bare(open),
            })
    }

    fn answer(&self, peer: IpAddr, method: &Method, uri: &http::Uri) -> Response<String> {
        let local = peer.is_loopback();
        let path = uri.path();
        if let Some((endpoint, check)) = Endpoint::of_path(path) {
            if !readable(method) {
                return method_not_allowed();
            }
            if !local && !self.is_open(path) && !self.is_open(endpoint.name()) {
                return not_from_there();
            }
            let answer = match check {
                None => Some(health::aggregate(&self.checks, endpoint, uri.query())),
                Some(name) => health::single(&self.checks, endpoint, name, local),
            };
            return answer.map_or_else(not_found, |(status, body)| text(status, body));
        }
        if path != "/metrics" {
            return not_found();
        }
        if !readable(method) {
            return method_not_allowed();
        }
        if !local && !self.is_open(path) {
            return not_from_there();
        }
        match self.metrics.render() {
            Ok(body) => {
                let mut response = text(StatusCode::OK, body);
                response.headers_mut().insert(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static(metrics::CONTENT_TYPE),
                );
                response
            }
            Err(error) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("can not print the metrics: {error}\n"),
            ),
        }
    }
}

fn readable(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn text(status: StatusCode, body: impl Into<String>) -> Response<String> {
    const HEADERS: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache, private"),
    ];
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

fn not_from_there() -> Response<String> {
    text(
        StatusCode::FORBIDDEN,
        "this is served to clients on the same machine only: this version can not yet ask the API server who may read \
         it; --authorization-always-allow-paths serves it to everybody\n",
    )
}

fn not_found() -> Response<String> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn method_not_allowed() -> Response<String> {
    let mut response = text(
        StatusCode::METHOD_NOT_ALLOWED,
        "only GET and HEAD are served here\n",
    );
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}
