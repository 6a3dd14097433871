//! The `rest_client_*` metrics: requests to the API server, under the names of the components of Kubernetes.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Body;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;
use tracing::trace;

use crate::metrics::metrics;

type RestClientLabels<const N: usize> = [(&'static str, String); N];

metrics! {
    /// Counters of requests. A clone counts in the same place.
    pub(crate) struct ApiRequests {
        total: Family<RestClientLabels<3>, Counter> = "rest_client_requests",
        duration: Family<RestClientLabels<2>, Histogram> = "rest_client_request_duration_seconds" in family(seconds),
        limited: Family<RestClientLabels<2>, Histogram> = "rest_client_rate_limiter_duration_seconds" in family(seconds),
        sent: Family<RestClientLabels<2>, Histogram> = "rest_client_request_size_bytes" in family(bytes),
        received: Family<RestClientLabels<2>, Histogram> = "rest_client_response_size_bytes" in family(bytes),
    }
}

/// Metrics without a registry.
impl Default for ApiRequests {
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

fn family(new: fn() -> Histogram) -> Family<RestClientLabels<2>, Histogram> {
    Family::new_with_constructor(new)
}

fn seconds() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
}

/// From 64 bytes to 16 MiB.
fn bytes() -> Histogram {
    // Powers of two, from 64 B to 16 MiB.
    let bounds = [6, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24];
    Histogram::new(bounds.map(|power| f64::from(1_u32 << power)))
}

/// Measures the requests to one server.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    requests: ApiRequests,
    /// The API server, without a user and a password.
    pub(super) host: String,
}

/// The measurement of a request in progress.
pub(super) struct Measurement {
    measure: Measure,
    method: Method,
    uri: Uri,
    sent: Option<u64>,
    began: Instant,
    /// Its status and length; `None` while there is none.
    answer: Option<(StatusCode, Option<f64>)>,
}

impl Measure {
    pub(super) fn new(requests: &ApiRequests, server: &Uri) -> Self {
        let authority = server.authority().map_or("", http::uri::Authority::as_str);
        let host = authority.rsplit('@').next().unwrap_or_default().to_owned();
        Self {
            requests: requests.clone(),
            host,
        }
    }

    /// Records that a request waited for the rate limit.
    pub(super) fn limited(&self, method: &Method, time: Duration) {
        let limited = self.requests.limited.get_or_create(&self.labels(method));
        limited.observe(time.as_secs_f64());
    }

    fn labels(&self, method: &Method) -> RestClientLabels<2> {
        [("verb", method.to_string()), ("host", self.host.clone())]
    }

    /// Records that a request is sent.
    pub(super) fn begin(&self, request: &Request<impl Body>) -> Measurement {
        Measurement {
            measure: self.clone(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            sent: request.body().size_hint().exact(),
            began: Instant::now(),
            answer: None,
        }
    }
}

impl Measurement {
    /// Records the head of the answer, or the failure. Returns it.
    pub(super) fn end<B, E>(mut self, answer: Result<Response<B>, E>) -> Result<Response<B>, E> {
        self.answer = answer.as_ref().ok().map(|answer| {
            let length = answer
                .headers()
                .get(header::CONTENT_LENGTH)
                .and_then(|length| length.to_str().ok()?.parse().ok());
            (answer.status(), length)
        });
        answer
    }
}

/// A request that is cut off, as after a timeout, has failed.
impl Drop for Measurement {
    #[expect(clippy::cast_precision_loss, reason = "nothing of 2^52 bytes is sent")]
    fn drop(&mut self) {
        let Self { method, uri, .. } = self;
        let Measure { requests, host } = &self.measure;
        let (elapsed, labels) = (self.began.elapsed(), self.measure.labels(method));
        let (code, length) = self.answer.unzip();
        trace!(%method, %uri, ?code, ?elapsed, "Request to the API server");
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.as_str().to_owned());
        let total = [
            ("code", code),
            ("method", method.to_string()),
            ("host", host.clone()),
        ];
        requests.total.get_or_create(&total).inc();
        let duration = requests.duration.get_or_create(&labels);
        duration.observe(elapsed.as_secs_f64());
        if let Some(sent) = self.sent {
            requests.sent.get_or_create(&labels).observe(sent as f64);
        }
        if let Some(length) = length.flatten() {
            requests.received.get_or_create(&labels).observe(length);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_count_by_code_method_and_host() {
        let mut registry = Registry::default();
        let requests = ApiRequests::register(&mut registry);
        let measure = Measure::new(&requests, &Uri::from_static("https://user:secret@10.0.0.1:6443/base"));
        let send = async |method, answer: Option<Result<Response<()>, ()>>| {
            let request = Request::builder().method(method).uri("/here");
            let body = kube::client::Body::from(vec![0; 300]);
            let measurement = measure.begin(&request.body(body).unwrap());
            tokio::time::sleep(Duration::from_secs(3)).await;
            // A request that is cut off has no answer.
            let _ = answer.map(|answer| measurement.end::<_, ()>(answer));
        };
        let answer = Response::builder().header(header::CONTENT_LENGTH, 2).body(());
        send("PATCH", Some(Ok(answer.unwrap()))).await;
        send("GET", Some(Err(()))).await;
        send("GET", None).await;
        measure.limited(&Method::GET, Duration::from_secs(20));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"PATCH\",host=\"10.0.0.1:6443\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"10.0.0.1:6443\"} 2",
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
