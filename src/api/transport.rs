//! Connections to the API server, with the layers of a kubeconfig.
//!
//! [`kube::Client::try_from`] uses HTTP/1.1 without any keepalive: a connection that dies silently (a firewall forgot it, a
//! machine lost power) would be detected when the watches on it should have ended, minutes later.

use std::time::Duration;

use http::{Request, Uri};
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::{
        legacy::{
            Builder,
            connect::{Connection, HttpConnector, proxy::Tunnel},
        },
        proxy::matcher::Matcher,
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config, Error,
    client::{Body, ClientBuilder, ConfigExt, RustlsTlsError, retry::RetryPolicy},
};
use tower::{
    BoxError, Service,
    retry::RetryLayer,
    service_fn,
    util::{MapErrLayer, option_layer},
};

use super::requests::Measure;

/// How often a request is sent again that the API server refuses for the moment (429, 503, 504). Then its sender learns about it,
/// reports it, and tries again later.
const RETRIES: u32 = 8;
/// Waits between these tries, if the API server asks for no longer one: 10 to 30 s in all.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// A connection without a request for so long is not used again: it may have died together with the connection whose failure
/// led to the request, and keepalive does not probe a connection while something that was sent waits for its acknowledgement.
const POOL_IDLE_LIMIT: Duration = Duration::from_secs(30);

/// When a silent connection counts as dead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// Time between two PINGs of HTTP/2, also while no request is open.
    ping_interval: Duration,
    /// Longest wait for the answer to a PING.
    ping_timeout: Duration,
    /// Silence before the first probe of TCP. It covers HTTP/1.1, which has no PING.
    probe_after: Duration,
    /// Time between two probes.
    probe_interval: Duration,
    /// Probes without an answer.
    probes: u32,
    /// Longest wait for the acknowledgement of sent data.
    user_timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(20),
            probe_after: Duration::from_secs(20),
            probe_interval: Duration::from_secs(10),
            probes: 3,
            user_timeout: Duration::from_secs(45),
        }
    }
}

/// The versions of HTTP that are offered over TLS. Without TLS it is always HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Versions {
    /// All requests share one connection.
    Http2,
    /// A cancelled request closes its connection, so that the next request opens another.
    Http1,
}

/// A client with TLS, proxy, timeouts, retries and credentials of a config, which is measured. Connects to nothing yet.
pub(super) fn open(
    config: &Config,
    keepalive: Keepalive,
    versions: Versions,
    measure: Measure,
) -> kube::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // HTTP/2 writes the head and the body of a request one after the other; the second write would wait for the
    // acknowledgement of the first, 40 ms with most servers.
    tcp.set_nodelay(true);
    // It is divided among the addresses of the host, so that one that does not answer does not take the time of the others.
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(keepalive.probe_after));
    tcp.set_keepalive_interval(Some(keepalive.probe_interval));
    tcp.set_keepalive_retries(Some(keepalive.probes));
    tcp.set_tcp_user_timeout(Some(keepalive.user_timeout));
    let Some(proxy) = &config.proxy_url else {
        return open_over(tcp, config, keepalive, versions, measure);
    };
    // The source of the config accepts no other scheme than http and https.
    if proxy.scheme_str() == Some("https") {
        let tls = config.rustls_https_connector_with_connector(tcp)?;
        open_over(tunnel(proxy, config, tls), config, keepalive, versions, measure)
    } else {
        open_over(tunnel(proxy, config, tcp), config, keepalive, versions, measure)
    }
}

/// A tunnel through a proxy, with the credentials in the proxy's URL.
fn tunnel<C>(proxy: &Uri, config: &Config, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.clone(), connector);
    let matcher = Matcher::builder().all(proxy.to_string()).build();
    let found = matcher.intercept(&config.cluster_url);
    match found.as_ref().and_then(|found| found.basic_auth()) {
        Some(credentials) => tunnel.with_auth(credentials.clone()),
        None => tunnel,
    }
}

fn open_over<C>(
    connector: C,
    config: &Config,
    keepalive: Keepalive,
    versions: Versions,
    measure: Measure,
) -> kube::Result<Client>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name
            .clone()
            .try_into()
            .map_err(|error| Error::RustlsTls(RustlsTlsError::InvalidServerName(error)))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let tls = match versions {
        Versions::Http2 => tls.enable_all_versions().wrap_connector(connector),
        Versions::Http1 => tls.enable_http1().wrap_connector(connector),
    };
    let mut timed = TimeoutConnector::new(tls);
    timed.set_connect_timeout(config.connect_timeout);
    timed.set_read_timeout(config.read_timeout);
    timed.set_write_timeout(config.write_timeout);
    timed.set_reset_reader_on_write(config.reset_reader_on_write);
    let http = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_LIMIT)
        .http2_keep_alive_interval(keepalive.ping_interval)
        .http2_keep_alive_timeout(keepalive.ping_timeout)
        .http2_keep_alive_while_idle(true)
        .build::<_, Body>(timed);
    // Inside of the retries, so that each of them counts.
    let measured = service_fn(move |request: Request<Body>| {
        let (measurement, answer) = (measure.begin(&request), http.request(request));
        async move { measurement.end(answer.await) }
    });
    // The wait that the API server asks for is kept. The bounds are valid.
    let retries = if config.default_retry {
        RetryPolicy::new(FIRST_RETRY, LONGEST_RETRY, RETRIES, true).ok()
    } else {
        None
    };
    Ok(ClientBuilder::new(measured, config.default_namespace.clone())
        .with_layer(&MapErrLayer::new(BoxError::from))
        .with_layer(&config.extra_headers_layer()?)
        .with_layer(&option_layer(config.auth_layer()?))
        .with_layer(&option_layer(retries.map(RetryLayer::new)))
        .with_layer(&config.base_uri_layer())
        .build())
}

#[cfg(test)]
mod tests;
