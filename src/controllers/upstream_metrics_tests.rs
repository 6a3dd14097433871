//! The metrics that the controllers have from the framework of the other cloud-controller-managers: labels, their values, and
//! buckets.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::{encoding::text, registry::Registry};

use super::{lifecycle, node, route, service};

/// A metric of version 1.37 of the framework.
struct Upstream {
    name: &'static str,
    /// Each label with all of its values.
    labels: &'static [(&'static str, &'static [&'static str])],
    /// The first bound of a histogram, the factor, and the number of bounds.
    buckets: Option<(f64, f64, i32)>,
}

const UPSTREAM: &[Upstream] = &[
    Upstream {
        name: "cloud_node_lifecycle_controller_cloud_provider_calls_total",
        labels: &[
            ("operation", &["instance_exists", "instance_shutdown", "instance_metadata"]),
            (
                "result",
                &[
                    "success",
                    "error",
                    "instance_not_found",
                    "not_implemented",
                    "canceled",
                ],
            ),
        ],
        buckets: None,
    },
    Upstream {
        name: "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds",
        labels: &[],
        buckets: Some((0.001, 2.0, 15)),
    },
    Upstream {
        name: "node_controller_cloud_provider_taint_removal_delay_seconds",
        labels: &[],
        buckets: Some((1.0, 4.0, 6)),
    },
    Upstream {
        name: "node_controller_initial_node_sync_delay_seconds",
        labels: &[],
        buckets: Some((1.0, 4.0, 6)),
    },
    Upstream {
        name: "route_controller_route_sync_total",
        labels: &[
            ("outcome", &["changed", "noop", "error"]),
            ("trigger", &["periodic", "node_change"]),
        ],
        buckets: None,
    },
    Upstream {
        name: "service_controller_loadbalancer_sync_total",
        labels: &[],
        buckets: None,
    },
    Upstream {
        name: "service_controller_nodesync_error_total",
        labels: &[],
        buckets: None,
    },
    Upstream {
        name: "service_controller_nodesync_latency_seconds",
        labels: &[],
        buckets: Some((1.0, 2.0, 15)),
    },
    Upstream {
        name: "service_controller_update_loadbalancer_host_latency_seconds",
        labels: &[],
        buckets: Some((1.0, 2.0, 15)),
    },
];

/// The labels of a sample.
type Sample = BTreeMap<String, String>;

/// The samples on a page of metrics, by the name of the series.
fn samples(page: &str) -> BTreeMap<String, Vec<Sample>> {
    let mut samples: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',');
        let labels = labels.filter_map(|label| {
            let (label, value) = label.split_once('=')?;
            Some((label.to_owned(), value.trim_matches('"').to_owned()))
        });
        samples.entry(name.to_owned()).or_default().push(labels.collect());
    }
    samples
}

#[test]
fn labels_values_and_buckets_are_those_of_the_framework() {
    let mut registry = Registry::default();
    lifecycle::record_metrics(&mut registry);
    node::record_metrics(&mut registry);
    route::record_metrics(&mut registry);
    service::record_metrics(&mut registry);
    let mut page = String::new();
    text::encode(&mut page, &registry).unwrap();
    let samples = samples(&page);
    for Upstream {
        name,
        labels,
        buckets,
    } in UPSTREAM
    {
        if let Some((start, factor, count)) = buckets {
            let expected: Vec<_> = (0..*count).map(|power| start * factor.powi(power)).collect();
            let bounds = samples[&format!("{name}_bucket")].iter();
            let bounds = bounds.map(|sample| sample["le"].parse().unwrap());
            let bounds: Vec<f64> = bounds.filter(|bound: &f64| bound.is_finite()).collect();
            assert_eq!(bounds, expected, "{name}");
            continue;
        }
        let names: BTreeSet<_> = labels.iter().map(|(label, _)| *label).collect();
        for sample in &samples[*name] {
            let ours: BTreeSet<_> = sample.keys().map(String::as_str).collect();
            assert_eq!(ours, names, "{name}");
            for (label, values) in *labels {
                assert!(values.contains(&sample[*label].as_str()), "{name}: {label}={}", sample[*label]);
            }
        }
    }
    // Every value of these is used.
    assert_eq!(samples["route_controller_route_sync_total"].len(), 2 * 3);
    let calls = &samples["cloud_node_lifecycle_controller_cloud_provider_calls_total"];
    let calls: BTreeSet<_> =
        calls.iter().map(|call| (call["operation"].as_str(), call["result"].as_str())).collect();
    let expected = [
        ("instance_exists", "error"),
        ("instance_exists", "instance_not_found"),
        ("instance_exists", "success"),
        ("instance_shutdown", "success"),
    ];
    assert_eq!(calls, BTreeSet::from(expected));
    // No other metric has a name that begins like one of the framework.
    let own = samples.keys().filter(|name| !name.starts_with("ccm_"));
    for name in own {
        let known = UPSTREAM.iter().any(|upstream| name.strip_prefix(upstream.name).is_some());
        assert!(known, "{name}");
    }
}
