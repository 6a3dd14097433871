//! Upstream's metrics of calls, under its names. They count each request, `ccm_cloud_*` whole calls.

use ccm_core::client::{PROMETHEUS_BUCKETS, TimedConfig};

/// The names, label and buckets of these metrics. The format appends `_total`.
pub(crate) static REQUEST_METRICS: TimedConfig = TimedConfig {
    label: "request",
    duration: ("openstack_api_request_duration_seconds", "Latency of an OpenStack API call"),
    total: ("openstack_api_requests", "Total number of OpenStack API calls"),
    errors: ("openstack_api_request_errors", "Total number of errors for an OpenStack API call"),
    buckets: &PROMETHEUS_BUCKETS,
};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use ccm_core::client::{ClientMetrics, TimedMetrics};
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn names_and_labels_are_those_of_the_go_cloud_controller() {
        let mut registry = Registry::default();
        let client = ClientMetrics::register(&mut registry);
        let lost = TimedMetrics::publish("openstack", &REQUEST_METRICS, &client);
        lost.observe("never_seen", Duration::ZERO, true);
        let metrics = TimedMetrics::publish("openstack", &REQUEST_METRICS, &client);
        metrics.observe("loadbalancer_get", Duration::from_millis(30), true);
        metrics.observe("loadbalancer_get", Duration::from_millis(30), false);
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
        assert!(!text.contains("never_seen"), "what was published before is replaced");
        assert_eq!(text.matches("# TYPE openstack_api_requests ").count(), 1, "{text}");
    }
}
