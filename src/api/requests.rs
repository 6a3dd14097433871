//! The `rest_client_*` metrics: requests to the API server, under the names that components of Kubernetes have them under.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{Method, Request, Response, Uri, header};
use hyper::body::Body;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};
use tracing::trace;

use crate::metrics::register;

type Labels<const N: usize> = [(&'static str, String); N];

/// Where requests are counted. A clone counts in the same place; `default()` gives one that is registered nowhere.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequests {
    total: Family<Labels<3>, Counter>,
    duration: Family<Labels<2>, Histogram>,
    limited: Family<Labels<2>, Histogram>,
    sent: Family<Labels<2>, Histogram>,
    received: Family<Labels<2>, Histogram>,
}

impl Default for ApiRequests {
    fn default() -> Self {
        let family = |new: fn() -> Histogram| Family::new_with_constructor(new);
        Self {
            total: Family::default(),
            duration: family(seconds),
            limited: family(seconds),
            sent: family(bytes),
            received: family(bytes),
        }
    }
}

fn seconds() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
}

/// Bounds in bytes.
const BYTES: [f64; 11] = [
    64.,
    256.,
    512.,
    1024.,
    4096.,
    16384.,
    65536.,
    262_144.,
    1_048_576.,
    4_194_304.,
    16_777_216.,
];

fn bytes() -> Histogram {
    Histogram::new(BYTES)
}

impl ApiRequests {
    pub(crate) fn register(&self, registry: &mut Registry) {
        register(registry, "rest_client_requests", self.total.clone());
        register(
            registry,
            "rest_client_request_duration_seconds",
            self.duration.clone(),
        );
        register(
            registry,
            "rest_client_rate_limiter_duration_seconds",
            self.limited.clone(),
        );
        register(registry, "rest_client_request_size_bytes", self.sent.clone());
        register(registry, "rest_client_response_size_bytes", self.received.clone());
    }
}

/// Measures the requests to one server.
#[derive(Clone, Debug)]
pub(super) struct MeasureLayer {
    requests: ApiRequests,
    host: String,
}

impl MeasureLayer {
    pub(super) fn new(requests: &ApiRequests, server: &Uri) -> Self {
        let host = server.authority().map(ToString::to_string).unwrap_or_default();
        Self {
            requests: requests.clone(),
            host,
        }
    }

    /// A request was held back.
    pub(super) fn limited(&self, method: &Method, time: Duration) {
        let labels = self.labels(method);
        self.requests
            .limited
            .get_or_create(&labels)
            .observe(time.as_secs_f64());
    }

    fn labels(&self, method: &Method) -> Labels<2> {
        [("verb", method.to_string()), ("host", self.host.clone())]
    }

    #[expect(clippy::cast_precision_loss, reason = "nothing of 2^52 bytes is sent")]
    fn answered(&self, method: &Method, sent: Option<u64>, time: Duration, head: Option<Head>) {
        let labels = self.labels(method);
        let code = head
            .as_ref()
            .map_or_else(|| "<error>".to_owned(), |head| head.code.to_string());
        self.requests
            .total
            .get_or_create(&[
                ("code", code),
                ("method", method.to_string()),
                ("host", self.host.clone()),
            ])
            .inc();
        self.requests
            .duration
            .get_or_create(&labels)
            .observe(time.as_secs_f64());
        if let Some(sent) = sent {
            self.requests.sent.get_or_create(&labels).observe(sent as f64);
        }
        if let Some(length) = head.and_then(|head| head.length) {
            self.requests
                .received
                .get_or_create(&labels)
                .observe(length as f64);
        }
    }
}

/// What is measured of an answer.
struct Head {
    code: u16,
    length: Option<u64>,
}

impl<S> Layer<S> for MeasureLayer {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Measured {
            inner,
            measure: self.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Measured<S> {
    inner: S,
    measure: MeasureLayer,
}

impl<S, B, R> Service<Request<B>> for Measured<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (method, sent) = (request.method().clone(), request.body().size_hint().exact());
        let (measure, began) = (self.measure.clone(), Instant::now());
        let uri = request.uri().clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into);
            let head = answer.as_ref().ok().map(|answer| Head {
                code: answer.status().as_u16(),
                length: answer
                    .headers()
                    .get(header::CONTENT_LENGTH)
                    .and_then(|length| length.to_str().ok()?.parse().ok()),
            });
            let elapsed = began.elapsed();
            let code = head.as_ref().map(|head| head.code);
            trace!(%method, %uri, code, ?elapsed, "Request to the API server");
            measure.answered(&method, sent, elapsed, head);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use kube::client::{Body, ClientBuilder};
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_count_by_code_method_and_host() {
        let server = tower::service_fn(async |request: Request<Body>| {
            tokio::time::sleep(Duration::from_secs(3)).await;
            match request.uri().path() {
                "/gone" => Err(BoxError::from("the connection broke")),
                _ => Ok(Response::builder()
                    .header(header::CONTENT_LENGTH, 2)
                    .body(Body::from(b"{}".to_vec()))
                    .unwrap()),
            }
        });
        let (requests, mut registry) = (ApiRequests::default(), Registry::default());
        requests.register(&mut registry);
        let measure = MeasureLayer::new(&requests, &Uri::from_static("https://10.0.0.1:6443/base"));
        let client = ClientBuilder::new(server, "default").with_layer(&measure).build();
        let send = async |method: &str, path: &str| {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .body(vec![0; 300])
                .unwrap();
            client.request_text(request).await
        };
        send("PATCH", "/here").await.unwrap();
        send("GET", "/gone").await.unwrap_err();
        measure.limited(&Method::GET, Duration::from_secs(20));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"PATCH\",host=\"10.0.0.1:6443\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"10.0.0.1:6443\"} 1",
            "rest_client_request_duration_seconds_sum{verb=\"PATCH\",host=\"10.0.0.1:6443\"} 3.0",
            "rest_client_request_size_bytes_sum{verb=\"PATCH\",host=\"10.0.0.1:6443\"} 300.0",
            "rest_client_response_size_bytes_sum{verb=\"PATCH\",host=\"10.0.0.1:6443\"} 2.0",
            "rest_client_rate_limiter_duration_seconds_bucket{le=\"15.0\",verb=\"GET\",host=\"10.0.0.1:6443\"} 0",
            "rest_client_rate_limiter_duration_seconds_bucket{le=\"30.0\",verb=\"GET\",host=\"10.0.0.1:6443\"} 1",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} in\n{text}");
        }
    }
}
