//! Reads the flags of the sections "Nodes", "Node lifecycle", "Services" and "Routes": the settings of the controllers.

use std::num::NonZeroUsize;

use ccm_core::routes::ClusterCidrs;

use super::{flags, value::Reader};
use crate::config::{LifecycleConfig, NodeConfig, OrphanConfig, RouteConfig, ServiceConfig};

pub(super) fn node(reader: &mut Reader) -> NodeConfig {
    let concurrent_syncs = positive(flags::CONCURRENT_NODE_SYNCS, reader);
    let updates = flags::CONCURRENT_NODE_STATUS_UPDATES;
    let updates = reader.number(updates, "cannot be a negative number");
    NodeConfig {
        status_update_frequency: reader.duration(flags::NODE_STATUS_UPDATE_FREQUENCY),
        concurrent_syncs,
        concurrent_status_updates: updates.and_then(NonZeroUsize::new).unwrap_or(concurrent_syncs),
        refresh_topology_labels: reader.boolean(flags::REFRESH_TOPOLOGY_LABELS),
    }
}

pub(super) fn lifecycle(reader: &mut Reader) -> LifecycleConfig {
    let grace = flags::NODE_DELETION_GRACE;
    LifecycleConfig {
        monitor_period: reader.duration(flags::NODE_MONITOR_PERIOD),
        deletion_grace: reader.non_empty(grace).map(|_| reader.duration(grace)),
        deletion_confirm: reader.duration(flags::NODE_DELETION_CONFIRM),
        unresolved_confirm: LifecycleConfig::UNRESOLVED_CONFIRM,
        deletion_share: reader.share(flags::NODE_DELETION_SHARE),
    }
}

pub(super) fn service(reader: &mut Reader) -> ServiceConfig {
    ServiceConfig {
        concurrent_syncs: positive(flags::CONCURRENT_SERVICE_SYNCS, reader),
        drift_period: Some(reader.duration(flags::SERVICE_DRIFT_PERIOD)).filter(|period| !period.is_zero()),
        orphans: OrphanConfig {
            delete: reader.boolean(flags::DELETE_ORPHANED_LOAD_BALANCERS),
            ..OrphanConfig::default()
        },
    }
}

pub(super) fn route(reader: &mut Reader) -> RouteConfig {
    let period = flags::ROUTE_RECONCILIATION_PERIOD;
    let enabled = reader.boolean(flags::CONFIGURE_CLOUD_ROUTES);
    let cluster_cidr = reader.text(flags::CLUSTER_CIDR);
    // Not an error: it has no effect if the cloud has no routes.
    if enabled
        && !cluster_cidr.is_empty()
        && let Err(wrong) = ClusterCidrs::parse(&cluster_cidr)
    {
        reader.warn(format!("--cluster-cidr {wrong}; no routes are created"));
    }
    RouteConfig {
        enabled,
        cluster_cidr,
        period: reader.non_empty(period).map(|_| reader.duration(period)),
    }
}

fn positive(flag: flags::Flag, reader: &mut Reader) -> NonZeroUsize {
    const MUST: &str = "must be a positive number";
    let number = reader.number::<usize>(flag, MUST);
    if number == Some(0) {
        reader.refuse(format!("--{} 0 {MUST}", flag.def.name));
    }
    number.and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MIN)
}
