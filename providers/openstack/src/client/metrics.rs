//! The metrics of calls that the Go cloud controller has, under its names: each request by itself, as dashboards know
//! them. `ccm_cloud_*` counts whole calls.

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::client::ProviderMetrics;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, histogram::Histogram},
};

/// The label: what was requested.
type Labels = [(&'static str, &'static str); 1];

/// The buckets of the Prometheus clients.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Where requests are counted. A clone counts in the same place.
#[derive(Clone, Debug)]
pub(crate) struct RequestMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    duration: Family<Labels, Histogram>,
    total: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self(Arc::new(Inner {
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            total: Family::default(),
            errors: Family::default(),
        }))
    }
}

impl RequestMetrics {
    /// A request was answered, or not.
    pub(super) fn requested(&self, request: &'static str, took: Duration, ok: bool) {
        let labels = [("request", request)];
        self.0.total.get_or_create(&labels).inc();
        self.0.duration.get_or_create(&labels).observe(took.as_secs_f64());
        if !ok {
            self.0.errors.get_or_create(&labels).inc();
        }
    }
}

impl ProviderMetrics for RequestMetrics {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let inner = &*self.0;
        inner.duration.encode(encoder.encode_descriptor(
            "openstack_api_request_duration_seconds",
            "Latency of an OpenStack API call",
            None,
            MetricType::Histogram,
        )?)?;
        // The format appends `_total`.
        inner.total.encode(encoder.encode_descriptor(
            "openstack_api_requests",
            "Total number of OpenStack API calls",
            None,
            MetricType::Counter,
        )?)?;
        inner.errors.encode(encoder.encode_descriptor(
            "openstack_api_request_errors",
            "Total number of errors for an OpenStack API call",
            None,
            MetricType::Counter,
        )?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::client::ClientMetrics;
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn names_and_labels_are_those_of_the_go_cloud_controller() {
        let mut registry = Registry::default();
        let client = ClientMetrics::register(&mut registry);
        let lost = RequestMetrics::default();
        lost.requested("never_seen", Duration::ZERO, true);
        client.publish("openstack", Arc::new(lost));
        let metrics = RequestMetrics::default();
        client.publish("openstack", Arc::new(metrics.clone()));
        metrics.requested("loadbalancer_get", Duration::from_millis(30), true);
        metrics.requested("loadbalancer_get", Duration::from_millis(30), false);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "openstack_api_requests_total{request=\"loadbalancer_get\"} 2\n",
            "openstack_api_request_errors_total{request=\"loadbalancer_get\"} 1\n",
            "openstack_api_request_duration_seconds_bucket{le=\"0.025\",request=\"loadbalancer_get\"} 0\n",
            "openstack_api_request_duration_seconds_bucket{le=\"0.05\",request=\"loadbalancer_get\"} 2\n",
            "openstack_api_request_duration_seconds_count{request=\"loadbalancer_get\"} 2\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(
            !text.contains("never_seen"),
            "what was published before is replaced"
        );
        assert_eq!(
            text.matches("# TYPE openstack_api_requests ").count(),
            1,
            "{text}"
        );
    }
}
