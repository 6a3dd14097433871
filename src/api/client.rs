//! The clients for the API server.
//!
//! Those for work share one connection each for the process's own account and for the accounts of controllers; each has
//! a name, which stands in its user agent, and a rate of its own.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use ccm_core::client::Fence;
use http::{HeaderValue, Request, Response, header};
use kube::{
    Client,
    client::{Body, ClientBuilder},
};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{BoxError, Layer, Service, timeout::TimeoutLayer, util::MapRequestLayer};
use tracing::info;

use super::{
    credentials::{Credentials, Source},
    fence::FenceLayer,
    renewing::{Connection, Renewing},
    requests::{ApiRequests, MeasureLayer},
    transport::{Keepalive, Versions},
};
use crate::config::{ApiServerConfig, ClientLimit};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of the answer, also of a watch. The API server itself gives a request a minute.
const HEAD_TIMEOUT: Duration = Duration::from_secs(65);
/// Whoever asks the HTTPS server for things may not make it overrun the API server.
const REVIEW_LIMIT: ClientLimit = ClientLimit {
    qps: 200.0,
    burst: 400,
};

/// An API server and as whom it is asked.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) credentials: Credentials,
    agent: String,
    requests: ApiRequests,
    pub(super) keepalive: Keepalive,
}

impl ApiServer {
    /// What the flags say. Reads files and environment and asks credential plugins; the API server is not asked for
    /// anything yet.
    ///
    /// # Errors
    /// What is wrong, in words for the user.
    pub(crate) async fn load(
        config: &ApiServerConfig,
        version: &str,
        requests: &ApiRequests,
    ) -> Result<Self, String> {
        let source = match (&config.kubeconfig, &config.master) {
            (Some(file), master) => Source::File {
                flag: "--kubeconfig",
                path: file.clone(),
                server: master.clone(),
            },
            (None, Some(master)) => Source::Server(master.clone()),
            (None, None) => {
                let pod = Source::pod().map_err(|error| {
                    format!(
                        "neither --kubeconfig nor --master is given, and this is not a pod with a service account: {error}"
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

    /// For all work; still without asking the API server. Writes pass the fence.
    pub(crate) fn for_work(&self, limit: Option<ClientLimit>, fence: &Fence) -> kube::Result<Work> {
        self.work(limit, fence, false)
    }

    /// The same for requests that bring their own credentials.
    pub(crate) fn for_others(&self, limit: Option<ClientLimit>, fence: &Fence) -> kube::Result<Work> {
        self.work(limit, fence, true)
    }

    fn work(&self, limit: Option<ClientLimit>, fence: &Fence, anonymous: bool) -> kube::Result<Work> {
        let connection = Connection {
            connect_timeout: CONNECT_TIMEOUT,
            retries: true,
            anonymous,
            versions: Versions::Http2,
            keepalive: self.keepalive,
        };
        let measure = self.measure();
        // Innermost, since what the fence refuses is no request.
        let transport = self
            .connect(connection, &measure)?
            .with_layer(&FenceLayer(fence.clone()))
            .build();
        Ok(Work {
            transport,
            measure,
            limit,
            agent: self.agent.clone(),
        })
    }

    /// For leader election alone: it writes without being the leader, has no limit and does not wait long.
    pub(crate) fn for_election(&self, timeout: Duration) -> anyhow::Result<Client> {
        let connection = Connection {
            connect_timeout: timeout,
            // The next try is never far.
            retries: false,
            anonymous: false,
            // The lease ends before keepalive finds out that a connection is dead.
            versions: Versions::Http1,
            keepalive: self.keepalive,
        };
        Ok(self
            .connect(connection, &self.measure())?
            .with_layer(&agent_layer(&self.agent, Some("leader-election"))?)
            .with_layer(&TimeoutLayer::new(timeout))
            .build())
    }

    /// For questions about clients of the HTTPS server: every replica asks them, leader or not. Whoever asks has its own
    /// rule for tries.
    pub(crate) fn for_reviews(&self) -> anyhow::Result<Client> {
        let connection = Connection {
            connect_timeout: CONNECT_TIMEOUT,
            retries: false,
            anonymous: false,
            versions: Versions::Http2,
            keepalive: self.keepalive,
        };
        let measure = self.measure();
        let builder = self
            .connect(connection, &measure)?
            .with_layer(&agent_layer(&self.agent, None)?);
        Ok(with_limits(builder, Some(REVIEW_LIMIT), Some(measure)))
    }

    fn connect(
        &self,
        connection: Connection,
        measure: &MeasureLayer,
    ) -> kube::Result<ClientBuilder<<MeasureLayer as Layer<Renewing>>::Service>> {
        let renewing = Renewing::new(connection, &self.credentials)?;
        Ok(ClientBuilder::new(renewing, self.credentials.default_namespace()).with_layer(measure))
    }

    fn measure(&self) -> MeasureLayer {
        MeasureLayer::new(&self.requests, &self.credentials.server())
    }
}

/// Makes the clients that share one way to the API server.
pub(crate) struct Work {
    transport: Client,
    measure: MeasureLayer,
    limit: Option<ClientLimit>,
    agent: String,
}

impl Work {
    /// The client of this name. Without a name it is the program's own.
    pub(crate) fn client(&self, name: Option<&str>) -> anyhow::Result<Client> {
        self.through(name, &tower::layer::util::Identity::new())
    }

    /// The same, through something more.
    pub(crate) fn through<L, B>(&self, name: Option<&str>, layer: &L) -> anyhow::Result<Client>
    where
        L: Layer<Through>,
        L::Service: Service<Request<Body>, Response = Response<B>> + Send + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send + 'static,
        <L::Service as Service<Request<Body>>>::Error: Into<BoxError>,
        B: hyper::body::Body<Data = hyper::body::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let through = Through::from(self.transport.clone());
        let builder = ClientBuilder::new(through, self.transport.default_namespace())
            .with_layer(layer)
            .with_layer(&agent_layer(&self.agent, name)?);
        Ok(with_limits(builder, self.limit, Some(self.measure.clone())))
    }
}

/// A client as a service.
#[derive(Clone)]
pub(crate) struct Through(Client);

impl From<Client> for Through {
    fn from(client: Client) -> Self {
        Self(client)
    }
}

impl Service<Request<Body>> for Through {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = kube::Result<Response<Body>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move { client.send(request).await })
    }
}

/// Says who asks.
fn agent_layer(
    agent: &str,
    name: Option<&str>,
) -> anyhow::Result<MapRequestLayer<impl Fn(Request<Body>) -> Request<Body> + Clone + use<>>> {
    let agent = match name {
        Some(name) => HeaderValue::from_str(&format!("{agent}/{name}"))?,
        None => HeaderValue::from_str(agent)?,
    };
    Ok(MapRequestLayer::new(move |mut request: Request<Body>| {
        request.headers_mut().insert(header::USER_AGENT, agent.clone());
        request
    }))
}

fn with_limits<S, B>(
    builder: ClientBuilder<S>,
    limit: Option<ClientLimit>,
    measure: Option<MeasureLayer>,
) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let builder = builder.with_layer(&TimeoutLayer::new(HEAD_TIMEOUT));
    match limit {
        None => builder.build(),
        Some(limit) => builder.with_layer(&LimitLayer(limit, measure)).build(),
    }
}

/// Holds requests back to a rate: `--kube-api-qps` and `--kube-api-burst`.
///
/// A watch counts once, when it is opened.
#[derive(Clone, Debug)]
struct LimitLayer(ClientLimit, Option<MeasureLayer>);

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited {
            inner,
            bucket: Bucket::new(self.0),
            turn: None,
            measure: self.1.clone(),
        }
    }
}

/// The client calls its service for one request after the other, so that waiting to be ready keeps their order.
#[derive(Debug)]
struct Limited<S> {
    inner: S,
    bucket: Bucket,
    /// Of the next request.
    turn: Option<(Instant, Pin<Box<Sleep>>)>,
    measure: Option<MeasureLayer>,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Limited<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let (_, turn) = self.turn.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(sleep_until(self.bucket.reserve(now))))
        });
        match turn.as_mut().poll(cx) {
            Poll::Ready(()) => self.inner.poll_ready(cx),
            Poll::Pending => Poll::Pending,
        }
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        if let (Some((since, _)), Some(measure)) = (self.turn.take(), &self.measure) {
            measure.limited(request.method(), since.elapsed());
        }
        self.inner.call(request)
    }
}

/// A token bucket as one instant: when it will be full again if nobody asks any more.
#[derive(Debug)]
struct Bucket {
    interval: Duration,
    depth: Duration,
    full_at: Option<Instant>,
}

impl Bucket {
    fn new(limit: ClientLimit) -> Self {
        // A day between two requests is as good as never.
        let interval = Duration::try_from_secs_f64(1.0 / limit.qps)
            .unwrap_or(Duration::MAX)
            .min(Duration::from_secs(86_400));
        Self {
            interval,
            depth: interval.saturating_mul(limit.burst.saturating_sub(1)),
            full_at: None,
        }
    }

    /// When a request that is made now may be sent.
    fn reserve(&mut self, now: Instant) -> Instant {
        let full_at = self.full_at.map_or(now, |full_at| full_at.max(now));
        self.full_at = Some(full_at + self.interval);
        full_at.checked_sub(self.depth).map_or(now, |turn| turn.max(now))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn the_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut bucket = Bucket::new(ClientLimit { qps: 10.0, burst: 3 });
        let now = Instant::now() + Duration::from_secs(3600);
        let mut wait = |at: Instant| (bucket.reserve(at) - at).as_millis();
        assert_eq!(
            [wait(now), wait(now), wait(now), wait(now), wait(now)],
            [0, 0, 0, 100, 200]
        );
        let later = now + Duration::from_secs(60);
        assert_eq!(
            [wait(later), wait(later), wait(later), wait(later)],
            [0, 0, 0, 100]
        );
    }

    #[test]
    fn extreme_rates_do_no_harm() {
        let now = Instant::now();
        let mut fast = Bucket::new(ClientLimit {
            qps: 1e300,
            burst: u32::MAX,
        });
        assert_eq!(fast.reserve(now), now);
        let mut slow = Bucket::new(ClientLimit {
            qps: 1e-300,
            burst: 1,
        });
        assert_eq!(slow.reserve(now), now);
        assert!(slow.reserve(now) > now);
    }

    fn request() -> Request<Vec<u8>> {
        Request::get("/version").body(Vec::new()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_their_turn() {
        let answer = tower::service_fn(async |_: Request<Body>| {
            Ok::<_, BoxError>(Response::new(Body::from(b"{}".to_vec())))
        });
        let limit = ClientLimit { qps: 2.0, burst: 3 };
        let client = with_limits(ClientBuilder::new(answer, "default"), Some(limit), None);
        let began = Instant::now();
        for _ in 0..7 {
            client.request_text(request()).await.unwrap();
        }
        let waited = began.elapsed().as_millis();
        assert!((2000..2100).contains(&waited), "{waited} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_fails_the_request() {
        let silent = tower::service_fn(async |_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, BoxError>>().await
        });
        let client = with_limits(ClientBuilder::new(silent, "default"), None, None);
        let began = Instant::now();
        let error = client.request_text(request()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), HEAD_TIMEOUT.as_secs(), "{error}");
    }
}
