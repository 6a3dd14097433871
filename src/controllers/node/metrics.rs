//! Metrics of the node controller.

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use crate::metrics::{Labels, metrics};

metrics! {
    pub(super) struct NodeMetrics {
        pub(super) taint_removal_delay: Histogram
            = "node_controller_cloud_provider_taint_removal_delay_seconds" in delay(),
        pub(super) initial_sync_delay: Histogram = "node_controller_initial_node_sync_delay_seconds" in delay(),
        pub(super) initializations: Family<Labels<1>, Counter> = "ccm_node_initializations",
        pub(super) waiting: Gauge = "ccm_nodes_uninitialized",
        pub(super) alive_without_instance: Gauge = "ccm_nodes_alive_without_instance",
        pub(super) refreshes: Family<Labels<1>, Counter> = "ccm_node_refreshes",
        pub(super) refresh_duration: Histogram = "ccm_node_refresh_duration_seconds"
            in Histogram::new([0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0]),
        pub(super) topology_mismatch: Gauge = "ccm_nodes_topology_mismatch",
    }
}

/// Upstream's buckets.
fn delay() -> Histogram {
    Histogram::new([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0])
}

/// Registers the metrics.
#[cfg(test)]
pub(crate) fn record_metrics(registry: &mut prometheus_client::registry::Registry) {
    NodeMetrics::register(registry);
}
