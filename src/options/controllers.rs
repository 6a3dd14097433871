//! Flags of the sections "Nodes" and "Node lifecycle".

use std::num::NonZeroUsize;

use clap::Args;

use super::{
    config::{LifecycleConfig, NodeConfig},
    misc::MiscOptions,
    value::Reader,
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Nodes")]
pub(super) struct ControllerOptions {
    /// How many nodes are initialised at once (elsewhere 1). It bounds requests to the API server; the cloud is asked for
    /// hundreds of nodes at once anyway.
    #[arg(long, value_name = "NUMBER", default_value = "32")]
    concurrent_node_syncs: String,

    /// How many nodes the periodic comparison with the cloud patches at once; 0 for as many as --concurrent-node-syncs.
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    concurrent_node_status_updates: String,

    /// Let the periodic comparison also change zone and region of nodes that are initialised already. Volumes are bound to
    /// them, so that otherwise a difference is only reported, as an event and in a metric.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    refresh_topology_labels: String,
}

impl ControllerOptions {
    pub(super) fn complete(&self, misc: &MiscOptions, reader: &mut Reader) -> NodeConfig {
        let concurrent_syncs = reader
            .integer("concurrent-node-syncs", &self.concurrent_node_syncs)
            .and_then(|n| {
                let number = usize::try_from(n).ok().and_then(NonZeroUsize::new);
                if number.is_none() {
                    reader.refuse(format!("--concurrent-node-syncs {n} must be a positive number"));
                }
                number
            });
        let concurrent_syncs = concurrent_syncs.unwrap_or(NonZeroUsize::MIN);
        let updates = reader
            .integer(
                "concurrent-node-status-updates",
                &self.concurrent_node_status_updates,
            )
            .and_then(|n| {
                let number = usize::try_from(n).ok();
                if number.is_none() {
                    reader.refuse(format!(
                        "--concurrent-node-status-updates {n} cannot be a negative number"
                    ));
                }
                number
            });
        NodeConfig {
            status_update_frequency: misc.node_status_update_frequency(reader),
            concurrent_syncs,
            concurrent_status_updates: updates.and_then(NonZeroUsize::new).unwrap_or(concurrent_syncs),
            refresh_topology_labels: reader.boolean("refresh-topology-labels", &self.refresh_topology_labels),
        }
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Node lifecycle")]
pub(super) struct LifecycleOptions {
    /// How often nodes that are not ready are looked at: is the machine gone, or shut down? A duration. All of them
    /// together cost one question to the cloud.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    node_monitor_period: String,

    /// A node younger than this is never deleted: its machine may not be known everywhere in the cloud yet. A duration.
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    node_deletion_grace: String,

    /// A node is deleted once the cloud has said twice that its machine is gone, this long apart. A duration.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    node_deletion_confirm: String,

    /// If more than this share of all nodes seem gone (and more than three), they are deleted slowly, one a minute: it may
    /// well be a mistake. A number from 0 to 1, or with a % sign.
    #[arg(long, value_name = "SHARE", default_value = "0.25")]
    node_deletion_share: String,
}

impl LifecycleOptions {
    pub(super) fn complete(&self, reader: &mut Reader) -> LifecycleConfig {
        LifecycleConfig {
            monitor_period: reader.positive_duration("node-monitor-period", &self.node_monitor_period),
            deletion_grace: reader.duration("node-deletion-grace", &self.node_deletion_grace),
            deletion_confirm: reader.positive_duration("node-deletion-confirm", &self.node_deletion_confirm),
            deletion_share: reader.share("node-deletion-share", &self.node_deletion_share),
        }
    }
}
