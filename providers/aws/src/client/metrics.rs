//! The metrics of API calls of the Go cloud controller, under its names. They count each request; `ccm_cloud_*` counts whole
//! calls.

use std::time::Duration;

use ccm_core::client::{Operation, PROMETHEUS_BUCKETS, provider_metrics};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use super::{Op, Service};

/// One label.
type Label = [(&'static str, &'static str); 1];

provider_metrics! {
    /// Counters of requests.
    pub(super) struct RequestMetrics {
        duration: Family<Label, Histogram> = Family::new_with_constructor(|| Histogram::new(PROMETHEUS_BUCKETS)),
            "cloudprovider_aws_api_request_duration_seconds" => "Latency of AWS API calls";
        // A gauge, since the format appends `_total` to the names of counters, and upstream's name has no such suffix.
        errors: Family<Label, Gauge>, "cloudprovider_aws_api_request_errors" => "AWS API errors";
        throttled: Family<Label, Counter>,
            "cloudprovider_aws_api_throttled_requests" => "Throttled AWS API calls";
        statuses: Family<[(&'static str, String); 3], Counter>,
            "cloudprovider_aws_api_response_status" => "Answers of AWS with an HTTP status of 400 or more";
    }
}

/// The label `request` of the actions that upstream measures.
fn label(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Instances | Op::InstancesById => "describe_instance",
        Op::SecurityGroups => "describe_security_groups",
        Op::RouteTables => "describe_route_tables",
        Op::NetworkInterfaces => "describe_network_interfaces",
        Op::TagsCreate => "create_tags",
        Op::TagsDelete => "delete_tags",
        _ => return None,
    })
}

impl RequestMetrics {
    /// Counts a successful request.
    pub(super) fn succeeded(&self, op: Op, took: Duration) {
        if let Some(request) = label(op) {
            let duration = self.duration.get_or_create(&[("request", request)]);
            duration.observe(took.as_secs_f64());
        }
    }

    /// Counts a request that AWS refused or did not answer. `status`: the HTTP status of the response.
    pub(super) fn failed(&self, op: Op, status: Option<u16>, throttled: bool) {
        if let Some(request) = label(op) {
            self.errors.get_or_create(&[("request", request)]).inc();
        }
        let (api, action) = op.name().split_once(':').unwrap_or_default();
        if throttled {
            self.throttled.get_or_create(&[("operation_name", action)]).inc();
        }
        if let Some(status) = status.filter(|status| *status >= 400) {
            let service = Service::parse(api).map_or("", Service::name);
            let labels = [
                ("service", service.to_owned()),
                ("operation", action.to_owned()),
                ("status_code", status.to_string()),
            ];
            self.statuses.get_or_create(&labels).inc();
        }
    }
}
