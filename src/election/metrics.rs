//! Metrics, under upstream's names.

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::metrics::metrics;

type ElectionLabels = [(&'static str, String); 1];

metrics! {
    /// The metrics of all leases.
    pub(super) struct LeaseMetrics {
        master: Family<ElectionLabels, Gauge> = "leader_election_master_status",
        slow_path: Family<ElectionLabels, Counter> = "leader_election_slowpath",
    }
}

impl LeaseMetrics {
    /// Those of the lease of this name.
    pub(super) fn of(&self, name: &str) -> ElectionMetrics {
        let labels = [("name", name.to_owned())];
        ElectionMetrics {
            master: self.master.get_or_create_owned(&labels),
            slow_path: self.slow_path.get_or_create_owned(&labels),
        }
    }
}

/// The metrics of one lease.
#[derive(Clone, Debug, Default)]
pub(super) struct ElectionMetrics {
    pub(super) master: Gauge,
    pub(super) slow_path: Counter,
}
