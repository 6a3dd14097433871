//! The client for the API server.

use std::{
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use ccm_core::client::Fence;
use http::{HeaderValue, Request, Response, header};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{BoxError, Layer, Service, timeout::TimeoutLayer};
use tracing::info;

use super::{
    fence::FenceLayer,
    requests::{ApiRequests, MeasureLayer},
};
use crate::options::{ApiServerConfig, ClientLimit};

/// Longer than the API server lets a watch live (it is asked for less than five minutes), so that only a connection on
/// which truly nothing comes is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(330);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of the answer, also of a watch. The API server itself gives a request a minute. Without it a server
/// that vanished without a word would hold a request for as long as `READ_TIMEOUT`.
const HEAD_TIMEOUT: Duration = Duration::from_secs(65);
/// Whoever asks the HTTPS server for things may not make it overrun the API server.
const REVIEW_LIMIT: ClientLimit = ClientLimit {
    qps: 200.0,
    burst: 400,
};

/// Reads files and environment; the API server is not asked for anything yet.
///
/// # Errors
/// What is wrong, in words for the user.
pub(super) async fn load(config: &ApiServerConfig, version: &str) -> Result<Config, String> {
    let mut client = match (&config.kubeconfig, &config.master) {
        (Some(file), _) => from_file("--kubeconfig", file).await?,
        (None, Some(master)) => Config::new(master.clone()),
        (None, None) => {
            let config = Config::incluster_env().map_err(|error| {
                format!(
                    "neither --kubeconfig nor --master is given, and this is not a pod with a service account: {}",
                    ccm_core::error::report(&error)
                )
            })?;
            info!("Using the service account of the pod, as neither --kubeconfig nor --master is given");
            config
        }
    };
    if let Some(master) = &config.master {
        client.cluster_url = master.clone();
    }
    set_up(&mut client, version)?;
    Ok(client)
}

/// What a kubeconfig file says; the flag that names it is for the message.
pub(super) async fn from_file(flag: &str, file: &Path) -> Result<Config, String> {
    let failed = |error: &dyn std::error::Error| {
        format!(
            "{flag}: can not use {}: {}",
            file.display(),
            ccm_core::error::report(error)
        )
    };
    // Its own words for this are less clear.
    std::fs::File::open(file).map_err(|error| format!("{flag}: can not read {}: {error}", file.display()))?;
    let kubeconfig = Kubeconfig::read_from(file).map_err(|error| failed(&error))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(&error))
}

/// What all clients have in common.
pub(super) fn set_up(client: &mut Config, version: &str) -> Result<(), String> {
    let agent = format!("cloud-controller-manager/{version}");
    let agent = HeaderValue::from_str(&agent).map_err(|error| format!("--version: {error}"))?;
    client.headers.push((header::USER_AGENT, agent));
    client.connect_timeout = Some(CONNECT_TIMEOUT);
    client.read_timeout = Some(READ_TIMEOUT);
    client.reset_reader_on_write = true;
    Ok(())
}

/// The client for all work; still without asking the API server. Its writes pass the fence.
pub(super) fn build(
    config: Config,
    limit: Option<ClientLimit>,
    fence: &Fence,
    requests: &ApiRequests,
) -> anyhow::Result<Client> {
    let measure = MeasureLayer::new(requests, &config.cluster_url);
    // Innermost, since what the fence refuses is no request.
    let builder = ClientBuilder::try_from(config)?
        .with_layer(&measure)
        .with_layer(&FenceLayer(fence.clone()));
    Ok(with_limits(builder, limit, Some(measure)))
}

/// The client for leader election alone: it writes without being the leader, has no limit and does not wait long.
pub(super) fn build_for_election(
    mut config: Config,
    timeout: Duration,
    requests: &ApiRequests,
) -> anyhow::Result<Client> {
    for (name, value) in &mut config.headers {
        if *name == header::USER_AGENT {
            *value = HeaderValue::from_str(&format!("{}/leader-election", value.to_str()?))?;
        }
    }
    config.connect_timeout = Some(timeout);
    // The next try is never far.
    config.default_retry = false;
    let measure = MeasureLayer::new(requests, &config.cluster_url);
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&measure)
        .with_layer(&TimeoutLayer::new(timeout))
        .build())
}

/// The client for questions about clients of the HTTPS server: every replica asks them, leader or not. Whoever asks has
/// its own rule for tries.
pub(super) fn build_for_reviews(mut config: Config, requests: &ApiRequests) -> anyhow::Result<Client> {
    config.default_retry = false;
    let measure = MeasureLayer::new(requests, &config.cluster_url);
    let builder = ClientBuilder::try_from(config)?.with_layer(&measure);
    Ok(with_limits(builder, Some(REVIEW_LIMIT), Some(measure)))
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

    async fn problem(config: ApiServerConfig) -> String {
        load(&config, "1.2.3").await.unwrap_err()
    }

    #[tokio::test]
    async fn a_kubeconfig_that_can_not_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.conf");
        let error = problem(ApiServerConfig {
            kubeconfig: Some(missing),
            ..Default::default()
        })
        .await;
        assert!(
            error.starts_with("--kubeconfig: can not read ") && error.contains("missing.conf: "),
            "{error}"
        );
        let broken = folder.path().join("broken.conf");
        std::fs::write(&broken, "apiVersion: v1\nkind: Config\n").unwrap();
        let error = problem(ApiServerConfig {
            kubeconfig: Some(broken),
            ..Default::default()
        })
        .await;
        assert!(error.contains("broken.conf"), "{error}");
    }

    #[tokio::test]
    async fn the_master_replaces_the_server_of_the_kubeconfig() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin.conf");
        let text = "{apiVersion: v1, kind: Config, current-context: c, \
                    clusters: [{name: k, cluster: {server: 'https://10.0.0.1:6443'}}], \
                    contexts: [{name: c, context: {cluster: k, user: u}}], users: [{name: u, user: {token: t}}]}";
        std::fs::write(&file, text).unwrap();
        let mut config = ApiServerConfig {
            kubeconfig: Some(file),
            ..Default::default()
        };
        assert_eq!(
            load(&config, "1.2.3").await.unwrap().cluster_url,
            "https://10.0.0.1:6443/"
        );
        config.master = Some("https://10.0.0.2:6443".parse().unwrap());
        let loaded = load(&config, "1.2.3").await.unwrap();
        assert_eq!(loaded.cluster_url, "https://10.0.0.2:6443/");
        assert!(
            loaded
                .headers
                .iter()
                .any(|(_, value)| value == "cloud-controller-manager/1.2.3")
        );
        assert!(loaded.auth_info.token.is_some());
    }
}
