//! The metrics of calls that the Go cloud controller has, under its names: each request by itself, as dashboards know them.
//! `ccm_cloud_*` counts whole calls.

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::client::{Operation, ProviderMetrics};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use super::Op;

/// The buckets of the Prometheus clients, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Where requests are counted. A clone counts in the same place.
#[derive(Clone, Debug)]
pub(crate) struct RequestMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    duration: Family<[(&'static str, &'static str); 1], Histogram>,
    /// A gauge, since the format appends `_total` to the names of counters, and upstream has none here.
    errors: Family<[(&'static str, &'static str); 1], Gauge>,
    throttled: Family<[(&'static str, &'static str); 1], Counter>,
    statuses: Family<[(&'static str, String); 3], Counter>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self(Arc::new(Inner {
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            errors: Family::default(),
            throttled: Family::default(),
            statuses: Family::default(),
        }))
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
    /// AWS did what was requested.
    pub(super) fn succeeded(&self, op: Op, took: Duration) {
        if let Some(request) = label(op) {
            let duration = self.0.duration.get_or_create(&[("request", request)]);
            duration.observe(took.as_secs_f64());
        }
    }

    /// AWS refused, or did not answer. `status` is that of the answer.
    pub(super) fn failed(&self, op: Op, status: Option<u16>, throttled: bool) {
        if let Some(request) = label(op) {
            self.0.errors.get_or_create(&[("request", request)]).inc();
        }
        let (api, action) = op.name().split_once(':').unwrap_or_default();
        if throttled {
            self.0
                .throttled
                .get_or_create(&[("operation_name", action)])
                .inc();
        }
        if let Some(status) = status.filter(|status| *status >= 400) {
            let service = match api {
                "elb" => "Elastic Load Balancing",
                "elbv2" => "Elastic Load Balancing v2",
                "sts" => "STS",
                _ => "EC2",
            };
            let labels = [
                ("service", service.to_owned()),
                ("operation", action.to_owned()),
                ("status_code", status.to_string()),
            ];
            self.0.statuses.get_or_create(&labels).inc();
        }
    }
}

impl ProviderMetrics for RequestMetrics {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let inner = &*self.0;
        macro_rules! family {
            ($name:literal, $help:literal, $kind:ident, $family:ident) => {
                inner
                    .$family
                    .encode(encoder.encode_descriptor($name, $help, None, MetricType::$kind)?)
            };
        }
        family!(
            "cloudprovider_aws_api_request_duration_seconds",
            "Latency of AWS API calls",
            Histogram,
            duration
        )?;
        family!(
            "cloudprovider_aws_api_request_errors",
            "AWS API errors",
            Gauge,
            errors
        )?;
        family!(
            "cloudprovider_aws_api_throttled_requests",
            "Throttled AWS API calls",
            Counter,
            throttled
        )?;
        family!(
            "cloudprovider_aws_api_response_status",
            "Answers of AWS with an HTTP status of 400 or more",
            Counter,
            statuses
        )
    }
}
