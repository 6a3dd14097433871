//! Metrics, under upstream's names.

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::metrics::metrics;

type Labels = [(&'static str, String); 1];

metrics! {
    /// The metrics of all leases.
    pub(super) struct LeaseMetrics {
        master: Family<Labels, Gauge> = "leader_election_master_status",
        slow_path: Family<Labels, Counter> = "leader_election_slowpath",
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
    master: Gauge,
    slow_path: Counter,
}

impl ElectionMetrics {
    pub(super) fn leads(&self, leads: bool) {
        self.master.set(i64::from(leads));
    }

    pub(super) fn slow_path(&self) {
        self.slow_path.inc();
    }

    #[cfg(test)]
    pub(super) fn slow_paths(&self) -> u64 {
        self.slow_path.get()
    }
}
