//! Metrics of the node controller.
//!
//! | Metric | Meaning |
//! |---|---|
//! | `node_controller_cloud_provider_taint_removal_delay_seconds` | from a node's creation to the end of its taint (upstream's name) |
//! | `node_controller_initial_node_sync_delay_seconds` | from a node's creation to the end of its first sync (upstream's name) |
//! | `ccm_node_initializations_total{result}` | tries, by `success` or the reason of the event |
//! | `ccm_nodes_uninitialized` | nodes that wait for their next try |
//! | `ccm_node_refreshes_total{result}` | nodes looked at by the periodic refresh: `unchanged`, `changed`, `failed`, `missing`, `unmanaged` |
//! | `ccm_node_refresh_duration_seconds` | one pass over all nodes |
//! | `ccm_nodes_topology_mismatch` | nodes whose zone or region label differs from the cloud |

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    pub(crate) result: &'static str,
}

#[derive(Clone, Debug)]
pub(crate) struct NodeMetrics {
    pub(crate) taint_removal_delay: Histogram,
    pub(crate) initial_sync_delay: Histogram,
    pub(crate) initializations: Family<ResultLabel, Counter>,
    pub(crate) waiting: Gauge,
    pub(crate) refreshes: Family<ResultLabel, Counter>,
    pub(crate) refresh_duration: Histogram,
    pub(crate) topology_mismatch: Gauge,
}

impl NodeMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let delay = || Histogram::new([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0]);
        let metrics = Self {
            taint_removal_delay: delay(),
            initial_sync_delay: delay(),
            initializations: Family::default(),
            waiting: Gauge::default(),
            refreshes: Family::default(),
            refresh_duration: Histogram::new([0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0]),
            topology_mismatch: Gauge::default(),
        };
        registry.register(
            "node_controller_cloud_provider_taint_removal_delay_seconds",
            "Number of seconds after node creation when the cloud provider taint was removed",
            metrics.taint_removal_delay.clone(),
        );
        registry.register(
            "node_controller_initial_node_sync_delay_seconds",
            "Number of seconds after node creation when the node was first synced",
            metrics.initial_sync_delay.clone(),
        );
        registry.register(
            "ccm_node_initializations",
            "Tries to initialize a node, by success or the reason of the failure",
            metrics.initializations.clone(),
        );
        registry.register(
            "ccm_nodes_uninitialized",
            "Nodes with the uninitialized taint that wait for their next try",
            metrics.waiting.clone(),
        );
        registry.register(
            "ccm_node_refreshes",
            "Nodes looked at by the periodic refresh, by what was found",
            metrics.refreshes.clone(),
        );
        registry.register(
            "ccm_node_refresh_duration_seconds",
            "Duration of one refresh of all nodes",
            metrics.refresh_duration.clone(),
        );
        registry.register(
            "ccm_nodes_topology_mismatch",
            "Nodes whose zone or region label differs from what the cloud says",
            metrics.topology_mismatch.clone(),
        );
        metrics
    }

    pub(crate) fn initialized(&self, result: &'static str) {
        self.initializations.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn refreshed(&self, result: &'static str) {
        self.refreshes.get_or_create(&ResultLabel { result }).inc();
    }
}
