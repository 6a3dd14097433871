//! The HTTPS server: health, metrics and status pages.
//!
//! It starts before the first request to the cloud or the API server, on every replica, so that it shows what the program
//! waits for. Every answer comes from memory. Only the client is reviewed by the API server ([`access`]), unless the path is
//! open.

mod access;
mod beat;
mod connections;
mod health;
mod metrics;
mod pages;
mod routes;
pub(crate) mod status;
#[cfg(test)]
mod tests;
mod tls;

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, info};

pub(crate) use access::Reviewers;
pub(crate) use beat::{Turns, Workers, watched};
pub(crate) use health::{CheckHandle, CheckKind, Checks};
pub(crate) use metrics::Metrics;
pub(crate) use pages::ConfigPages;
pub(crate) use status::Status;

use self::{
    access::Access,
    connections::{Connection, Connections},
    routes::{Peer, Routes},
};
use crate::{
    config::ServingConfig,
    logging::{Failing, warn_if_new},
};

/// The most connections. Probes and scrapers need a handful; beyond this the connection whose last request is oldest is closed.
const MAX_CONNECTIONS: usize = 128;
/// The limit of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The limit of the head of a request, with the idle time before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A connection is shut down gracefully after this time, also if its peer does not read.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// The limit of the last answer on a connection that is shut down.
const LAST_ANSWER: Duration = Duration::from_secs(5);
/// The most connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// The wait after a failure to accept, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 32 * 1024;

/// The content of the pages.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    /// On `/livez`, `/readyz` and `/healthz`.
    pub(crate) checks: Checks,
    /// On `/metrics`.
    pub(crate) metrics: Metrics,
    /// On `/statusz`.
    pub(crate) status: Status,
    /// On `/configz` and `/flagz`.
    pub(crate) config: ConfigPages,
}

/// A server that listens but does not answer yet.
pub(crate) struct Server {
    listener: TcpListener,
    tls: rustls::ServerConfig,
    http2_max_streams: Option<u32>,
    connections: Connections,
    routes: Routes,
}

impl Server {
    /// Listens on the port, loads or generates the certificate, and loads the authorities of clients.
    ///
    /// # Errors
    /// All problems that prevent the start, for the user.
    pub(crate) fn bind(config: &ServingConfig, shown: Shown) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut keep = |problem: String| problems.push(format!("HTTPS server: {problem}"));
        let tls = tls::server_config(config).map_err(|error| keep(format!("{error:#}")));
        let access = shown.metrics.with(|registry| Access::open(&config.access, registry));
        let access = access.map_err(&mut keep);
        let address = config.address;
        let listener = listen(address, config.share_port).map_err(|error| {
            keep(format!(
                "cannot listen on {address}: {error}; choose another with --secure-port and --bind-address"
            ));
        });
        let (Ok(tls), Ok(access), Ok(listener)) = (tls, access, listener) else {
            return Err(problems);
        };
        let connections = shown.metrics.with(|registry| Connections::new(MAX_CONNECTIONS, registry));
        Ok(Self {
            listener,
            tls,
            http2_max_streams: config.http2_max_streams,
            connections,
            routes: Routes::new(access, shown),
        })
    }

    /// The address of the listener.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`, then finishes the requests in progress.
    ///
    /// # Errors
    /// The cluster refuses to return its client CA, which is required.
    pub(crate) async fn serve(self, reviewers: Reviewers, stop: CancellationToken) -> Result<(), String> {
        let answering = Arc::new(Answering {
            acceptor: TlsAcceptor::from(Arc::new(self.tls)),
            http: http_builder(self.http2_max_streams),
            routes: self.routes,
            reviewers,
            stop: stop.clone(),
        });
        let tasks = TaskTracker::new();
        let failing = Failing::default();
        let mut outcome = Ok(());
        let mut following = pin!(answering.routes.access.follow(&answering.reviewers));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                ended = following.as_mut() => {
                    outcome = ended;
                    break;
                }
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn_if_new!(failing.begins(()), %error, "Failed to accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            failing.ends();
            let connection = tokio::select! {
                () = stop.cancelled() => break,
                connection = self.connections.admit() => connection,
            };
            let Some(connection) = connection else { break };
            let answer = Arc::clone(&answering).answer(stream, peer, Arc::clone(&connection));
            tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = answer => {}
                    () = connection.evicted() => {}
                }
            });
        }
        drop(self.listener);
        tasks.close();
        if timeout(LAST_ANSWER, tasks.wait()).await.is_err() {
            debug!(connections = tasks.len(), "Cutting connections that do not end");
        }
        info!("HTTPS server stopped");
        outcome
    }
}

fn listen(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    let bind = |address: SocketAddr| {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        // Some hosts have another default. Sockets of IPv4 have no such option.
        let _ = SockRef::from(&socket).set_only_v6(false);
        // Otherwise a restart waits until the kernel has forgotten the last connections.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(share_port)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    if !address.ip().is_unspecified() {
        return bind(address);
    }
    // `::` accepts IPv4, too. A machine without IPv6 has only 0.0.0.0.
    match bind((Ipv6Addr::UNSPECIFIED, address.port()).into()) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    }
}

/// The HTTP settings of a connection.
fn http_builder(http2_max_streams: Option<u32>) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD);
    if http2_max_streams.is_none() {
        return builder.http1_only();
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_TIMEOUT)
        .keep_alive_timeout(LAST_ANSWER)
        .max_header_list_size(MAX_HEAD as u32)
        .max_concurrent_streams(http2_max_streams);
    builder
}

/// The shared state of all connections.
struct Answering {
    acceptor: TlsAcceptor,
    http: auto::Builder<TokioExecutor>,
    routes: Routes,
    reviewers: Reviewers,
    stop: CancellationToken,
}

impl Answering {
    /// Answers the requests on a connection.
    async fn answer(self: Arc<Self>, stream: TcpStream, address: SocketAddr, connection: Arc<Connection>) {
        let peer = address.ip().to_canonical();
        // Answers are small; without this the end of one may wait for the peer's acknowledgement.
        let _ = stream.set_nodelay(true);
        let stream = tokio::select! {
            () = self.stop.cancelled() => return,
            stream = timeout(HANDSHAKE_TIMEOUT, self.acceptor.accept(stream)) => match stream {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => return debug!(%peer, "TLS handshake timed out"),
            },
        };
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificates: Vec<CertificateDer<'static>> = shown.to_vec();
        let peer = Arc::new(Peer {
            local: peer.is_loopback(),
            certificates,
        });
        let answering = Arc::clone(&self);
        let service = service_fn(move |request: Request<Incoming>| {
            connection.is_used();
            let (answering, peer) = (Arc::clone(&answering), Arc::clone(&peer));
            async move {
                let (head, _) = request.into_parts();
                let response = answering.routes.answer(&peer, &head, &answering.reviewers);
                Ok::<_, Infallible>(response.await)
            }
        });
        let mut http = pin!(self.http.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = http.as_mut() => ended,
            () = async { _ = timeout(MAX_CONNECTION_AGE, self.stop.cancelled()).await } => {
                http.as_mut().graceful_shutdown();
                let Ok(ended) = timeout(LAST_ANSWER, http.as_mut()).await else { return };
                ended
            }
        };
        if let Err(error) = ended {
            debug!(peer = %address, %error, "Connection failed");
        }
    }
}
