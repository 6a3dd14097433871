//! The metrics of calls that the Go cloud controller has, under its names: each request by itself, as dashboards know
//! them. `ccm_cloud_*` counts whole calls.

use std::time::Duration;

use ccm_core::client::{PROMETHEUS_BUCKETS, provider_metrics};
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};

/// The label: what was requested.
type Labels = [(&'static str, &'static str); 1];

provider_metrics! {
    /// Where requests are counted. The format appends `_total` to the names of counters.
    pub(super) struct RequestMetrics {
        duration: Family<Labels, Histogram> = Family::new_with_constructor(|| Histogram::new(PROMETHEUS_BUCKETS)),
            "openstack_api_request_duration_seconds" => "Latency of an OpenStack API call";
        total: Family<Labels, Counter>, "openstack_api_requests" => "Total number of OpenStack API calls";
        errors: Family<Labels, Counter>,
            "openstack_api_request_errors" => "Total number of errors for an OpenStack API call";
    }
}

impl RequestMetrics {
    /// A request was answered, or not.
    pub(super) fn requested(&self, request: &'static str, took: Duration, ok: bool) {
        let labels = [("request", request)];
        self.total.get_or_create(&labels).inc();
        self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        if !ok {
            self.errors.get_or_create(&labels).inc();
        }
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
        let lost = RequestMetrics::publish("openstack", &client);
        lost.requested("never_seen", Duration::ZERO, true);
        let metrics = RequestMetrics::publish("openstack", &client);
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
