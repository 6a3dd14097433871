//! The clients for the API server.
//!
//! Clients of one account share a connection; each has a name, which is in its user agent, and a rate of its own. A request
//! waits for the rate limit, gets its user agent and its credentials, passes the fence, is measured, and is sent. A connection
//! is opened again when its credentials change.

use std::time::Duration;

use ccm_core::{
    Priority,
    client::{Bucket, Fence, Quota},
    config::http_url_or_host,
    error::report,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use kube::{Client, client::Body, config::AuthInfo};
use tokio::time::{Instant, timeout};
use tower::{BoxError, service_fn, timeout::error::Elapsed};
use tracing::{info, warn};

use super::{
    credentials::{Credentials, Current, Source},
    requests::{ApiRequests, Measure},
    transport::{self, Keepalive, Versions},
};
use crate::config::{ApiServerConfig, ClientLimit};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The limit of the head of the answer, also of a watch. The API server itself limits a request to a minute.
const HEAD_TIMEOUT: Duration = Duration::from_secs(65);
/// Longer than a watch lives (the API server ends it within five minutes), so that no idle watch is cut off. It is for
/// servers that hang while their kernel still acknowledges packets; see [`Keepalive`] for dead connections.
const READ_TIMEOUT: Duration = Duration::from_secs(330);
/// Clients of the HTTPS server must not overload the API server.
const REVIEW_LIMIT: ClientLimit = ClientLimit {
    qps: 200.0,
    burst: 400,
};

/// An API server, and the credentials for it.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) credentials: Credentials,
    agent: String,
    requests: ApiRequests,
    pub(super) keepalive: Keepalive,
}

impl ApiServer {
    /// The API server of the flags. Reads files and environment and runs credential plugins. Sends no request to the API
    /// server.
    ///
    /// # Errors
    /// The problem of the flags or the files, for the user.
    pub(crate) async fn load(
        config: &ApiServerConfig,
        version: &str,
        requests: &ApiRequests,
    ) -> Result<Self, String> {
        let server = config.master.as_deref().and_then(http_url_or_host);
        let source = match (&config.kubeconfig, server) {
            (Some(file), _) => Source::File {
                flag: "--kubeconfig",
                path: file.clone(),
                context: config.context.clone(),
                server: config.master.clone(),
            },
            (None, _) if config.context.is_some() => {
                return Err("--context: there is no kubeconfig; set --kubeconfig".to_owned());
            }
            (None, Some(server)) => Source::Server(server),
            (None, None) => {
                let pod = Source::pod().map_err(|error| {
                    format!(
                        "set --kubeconfig or --master: outside of a pod there is no service account ({error})"
                    )
                })?;
                info!("Using the service account of the pod, as neither --kubeconfig nor --master is given");
                pod
            }
        };
        let agent = format!("cloud-controller-manager/{version}");
        HeaderValue::from_str(&agent).map_err(|error| format!("--version: {error}"))?;
        Ok(Self {
            credentials: Credentials::load(source).await?,
            agent,
            requests: requests.clone(),
            keepalive: Keepalive::default(),
        })
    }

    /// The same with other credentials.
    pub(crate) fn with(&self, credentials: Credentials) -> Self {
        Self {
            credentials,
            ..self.clone()
        }
    }

    /// The connection of all work. Sends no request yet. Writes pass the fence.
    pub(crate) fn for_work(&self, limit: Option<ClientLimit>, fence: &Fence) -> kube::Result<Work> {
        self.connect(self.connection(), Some(fence), limit, HEAD_TIMEOUT)
    }

    /// The same for requests that have credentials of their own.
    pub(crate) fn for_others(&self, limit: Option<ClientLimit>, fence: &Fence) -> kube::Result<Work> {
        let connection = ConnectionSettings {
            anonymous: true,
            ..self.connection()
        };
        self.connect(connection, Some(fence), limit, HEAD_TIMEOUT)
    }

    /// The client of leader election: it writes without being the leader, has no limit and does not wait long.
    pub(crate) fn for_election(&self, timeout: Duration) -> anyhow::Result<Client> {
        let connection = ConnectionSettings {
            connect_timeout: timeout,
            // The next try follows soon.
            retries: false,
            // The lease ends before keepalive detects that a connection is dead.
            versions: Versions::Http1,
            ..self.connection()
        };
        self.connect(connection, None, None, timeout)?.client(Some("leader-election"))
    }

    /// The client for reviews of clients of the HTTPS server. Every replica sends reviews, leader or not, with its own retries.
    pub(crate) fn for_reviews(&self) -> anyhow::Result<Client> {
        let connection = ConnectionSettings {
            retries: false,
            ..self.connection()
        };
        self.connect(connection, None, Some(REVIEW_LIMIT), HEAD_TIMEOUT)?.client(None)
    }

    fn connection(&self) -> ConnectionSettings {
        ConnectionSettings {
            connect_timeout: CONNECT_TIMEOUT,
            retries: true,
            anonymous: false,
            versions: Versions::Http2,
            keepalive: self.keepalive,
            measure: Measure::new(&self.requests, &self.credentials.current().config.cluster_url),
        }
    }

    fn connect(
        &self,
        connection: ConnectionSettings,
        fence: Option<&Fence>,
        limit: Option<ClientLimit>,
        timeout: Duration,
    ) -> kube::Result<Work> {
        let measure = connection.measure.clone();
        let mut renewing = Renewing::new(connection, &self.credentials)?;
        let config = &self.credentials.current().config;
        let write_fence = fence.cloned();
        let transport = service_fn(move |request: Request<Body>| {
            let fence = if writes(request.method()) {
                write_fence.clone()
            } else {
                None
            };
            pass(fence, renewing.send(request))
        });
        Ok(Work {
            transport: Client::new(transport, config.default_namespace.clone()),
            measure,
            limit,
            timeout,
            agent: self.agent.clone(),
        })
    }
}

/// How to connect.
#[derive(Clone, Debug)]
struct ConnectionSettings {
    connect_timeout: Duration,
    /// Whether requests with passing failures (429, 503, 504) are sent again.
    retries: bool,
    /// Whether the connection has no credentials: requests have their own.
    anonymous: bool,
    versions: Versions,
    keepalive: Keepalive,
    measure: Measure,
}

impl ConnectionSettings {
    fn open(&self, current: &Current) -> kube::Result<Client> {
        let mut config = current.config.clone();
        config.connect_timeout = Some(self.connect_timeout);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        config.default_retry = self.retries;
        if self.anonymous {
            config.auth_info = AuthInfo::default();
        }
        transport::open(&config, self.keepalive, self.versions, self.measure.clone())
    }
}

/// Sends requests with the credentials in use. A request in progress when they change ends on its old connection.
struct Renewing {
    connection: ConnectionSettings,
    credentials: Credentials,
    generation: u64,
    client: Client,
}

impl Renewing {
    /// Connects to nothing yet.
    fn new(connection: ConnectionSettings, credentials: &Credentials) -> kube::Result<Self> {
        let current = credentials.current();
        Ok(Self {
            client: connection.open(&current)?,
            connection,
            credentials: credentials.clone(),
            generation: current.generation,
        })
    }

    /// Opens another connection if the credentials have changed.
    fn renew(&mut self) {
        let current = self.credentials.current();
        if current.generation == self.generation {
            return;
        }
        self.generation = current.generation;
        match self.connection.open(&current) {
            Ok(client) => self.client = client,
            // Not expected: loading the credentials has checked them.
            Err(error) => warn!(
                error = report(&error),
                "Keeping the connection to the API server, there is none with the changed credentials"
            ),
        }
    }

    /// Sends a request, and reports an answer 401.
    fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = kube::Result<Response<Body>>> + Send + use<> {
        self.renew();
        let (client, generation) = (self.client.clone(), self.generation);
        // A request with a token of its own also replaces that token itself.
        let credentials = (!self.connection.anonymous).then(|| self.credentials.clone());
        let host = self.connection.measure.host.clone();
        async move {
            let answer = client.send(request).await.map_err(|error| match error {
                kube::Error::Service(error) => {
                    kube::Error::Service(format!("API server {host}: {}", report(&*error)).into())
                }
                error => error,
            })?;
            if let Some(credentials) = credentials
                && answer.status() == StatusCode::UNAUTHORIZED
            {
                credentials.rejected(generation);
            }
            Ok(answer)
        }
    }
}

fn writes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Runs a request while the fence, if there is one, allows it. A write counts as returned when its answer begins: it was
/// carried out by then.
async fn pass(
    fence: Option<Fence>,
    answer: impl Future<Output = kube::Result<Response<Body>>>,
) -> Result<Response<Body>, BoxError> {
    Ok(match fence {
        Some(fence) => fence.run(answer).await??,
        None => answer.await?,
    })
}

/// Creates the clients that share one connection to the API server.
pub(crate) struct Work {
    transport: Client,
    measure: Measure,
    limit: Option<ClientLimit>,
    timeout: Duration,
    agent: String,
}

impl Work {
    /// The client of this name. Without a name it is the program's own.
    pub(crate) fn client(&self, name: Option<&str>) -> anyhow::Result<Client> {
        self.client_with(name, async |transport: Client, request: Request<Body>| {
            Ok(transport.send(request).await?)
        })
    }

    /// The same with a function that sends each request with the shared connection.
    pub(super) fn client_with<F>(
        &self,
        name: Option<&str>,
        send: impl Fn(Client, Request<Body>) -> F + Clone + Send + 'static,
    ) -> anyhow::Result<Client>
    where
        F: Future<Output = Result<Response<Body>, BoxError>> + Send,
    {
        let agent = match name {
            Some(name) => HeaderValue::from_str(&format!("{}/{name}", self.agent))?,
            None => HeaderValue::from_str(&self.agent)?,
        };
        let bucket = self.limit.map(|limit| {
            Bucket::new(Quota {
                rate: limit.qps,
                burst: limit.burst,
                max_in_flight: u32::MAX,
            })
        });
        let (transport, measure, limit) = (self.transport.clone(), self.measure.clone(), self.timeout);
        let service = service_fn(move |mut request: Request<Body>| {
            request.headers_mut().insert(header::USER_AGENT, agent.clone());
            let (transport, send) = (transport.clone(), send.clone());
            let rate = bucket.clone().map(|bucket| (bucket, measure.clone()));
            async move {
                if let Some((bucket, measure)) = rate {
                    let began = Instant::now();
                    // Requests keep their order. A watch counts once, when it is opened.
                    bucket.acquire(Priority::User).await.begin();
                    measure.limited(request.method(), began.elapsed());
                }
                timeout(limit, send(transport, request))
                    .await
                    .unwrap_or_else(|_| Err(Elapsed::new().into()))
            }
        });
        Ok(Client::new(service, self.transport.default_namespace()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::time::sleep;

    use super::*;

    /// The program's own client of a server.
    fn client<F>(answer: impl Fn() -> F + Send + 'static, limit: Option<ClientLimit>) -> Client
    where
        F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
    {
        let work = Work {
            transport: Client::new(service_fn(move |_: Request<Body>| answer()), "default"),
            measure: Measure::new(&ApiRequests::default(), &"https://10.0.0.1".parse().unwrap()),
            limit,
            timeout: HEAD_TIMEOUT,
            agent: "test".to_owned(),
        };
        work.client(None).unwrap()
    }

    fn request() -> Request<Vec<u8>> {
        Request::get("/version").body(Vec::new()).unwrap()
    }

    /// How long each of so many requests waits, in tenths of a second.
    async fn waits(client: &Client, requests: usize) -> Vec<u128> {
        let mut waits = Vec::new();
        for _ in 0..requests {
            let began = Instant::now();
            client.request_text(request()).await.unwrap();
            waits.push(began.elapsed().as_millis() / 100);
        }
        waits
    }

    async fn nothing() -> Result<Response<Body>, BoxError> {
        Ok(Response::new(Body::from(b"{}".to_vec())))
    }

    #[tokio::test(start_paused = true)]
    async fn the_burst_is_sent_at_once_and_the_rest_at_the_rate() {
        let client = client(nothing, Some(ClientLimit { qps: 2.0, burst: 3 }));
        assert_eq!(waits(&client, 7).await, [0, 0, 0, 5, 5, 5, 5]);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(waits(&client, 4).await, [0, 0, 0, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn extreme_rates_do_no_harm() {
        let limited = |qps, burst| client(nothing, Some(ClientLimit { qps, burst }));
        assert_eq!(waits(&limited(1e300, u32::MAX), 3).await, [0, 0, 0]);
        let slow = limited(1e-300, 1);
        assert_eq!(waits(&slow, 1).await, [0]);
        timeout(HEAD_TIMEOUT, waits(&slow, 1)).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_fails_the_request() {
        let client = client(std::future::pending, None);
        let began = Instant::now();
        let error = client.request_text(request()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), HEAD_TIMEOUT.as_secs(), "{error}");
    }

    /// A client of an API server that takes a second for everything, and what arrived there.
    fn fenced(fence: &Fence) -> (Client, Arc<Mutex<Vec<Method>>>) {
        let (fence, arrived) = (fence.clone(), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&arrived);
        let server = service_fn(move |request: Request<Body>| {
            let (log, method) = (Arc::clone(&log), request.method().clone());
            pass(Some(fence.clone()).filter(|_| writes(&method)), async move {
                log.lock().push(method);
                sleep(Duration::from_secs(1)).await;
                Ok(Response::new(Body::from(b"{}".to_vec())))
            })
        });
        (Client::new(server, "default"), arrived)
    }

    async fn send(client: &Client, method: Method) -> Result<String, String> {
        let request = Request::builder().method(method).uri("/x").body(Vec::new()).unwrap();
        let answer = client.request_text(request).await;
        answer.map_err(|error| ccm_core::error::report(&error))
    }

    const WRITES: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

    #[tokio::test(start_paused = true)]
    async fn a_standby_reads_and_sends_no_write() {
        let (client, arrived) = fenced(&Fence::standby());
        send(&client, Method::GET).await.unwrap();
        for method in WRITES {
            let error = send(&client, method).await.unwrap_err();
            assert!(error.contains("not the leader and may not write"), "{error}");
        }
        assert_eq!(*arrived.lock(), [Method::GET]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_under_way_is_cut_when_permission_ends_and_a_read_is_not() {
        let fence = Fence::standby();
        let (client, arrived) = fenced(&fence);
        for method in WRITES {
            let began = Instant::now();
            fence.allow_until(began + Duration::from_millis(500));
            let (read, write) = tokio::join!(send(&client, Method::GET), send(&client, method.clone()));
            read.unwrap();
            assert!(write.unwrap_err().contains("lost leadership"), "{method}");
            assert!(!fence.is_settled(Duration::from_secs(10)));
        }
        assert_eq!(arrived.lock().len(), 2 * WRITES.len());
        fence.allow_until(Instant::now() + Duration::from_secs(2));
        send(&client, Method::PATCH).await.unwrap();
    }
}
