//! The state on the status page and in metrics.

use ccm_core::load_balancer::PartKey;

use super::{ControllerState, Name, PartStatus, ServiceEntry};
use crate::{
    controllers::service::{metrics::ServiceMetrics, orphans},
    metrics::{set_all, tally},
    server::status::{OrphanRow, PartRow, ServiceRow},
};

impl ControllerState {
    /// Shows the state in metrics. `queue`: how many parts are ready, and how many wait.
    pub(in crate::controllers::service) fn show(&self, metrics: &ServiceMetrics, queue: (usize, usize)) {
        let states = self.services.values().map(ServiceEntry::shown_state);
        let states = tally(["served", "pending", "leaving", "foreign"], states);
        set_all(&metrics.services, "state", states);
        let entries = self.services.values();
        let failing = entries.filter_map(|entry| entry.reported.failure_kind());
        // Kinds that ended are zero.
        let failing = tally(self.kinds.iter().copied(), failing);
        set_all(&metrics.failing, "reason", failing);
        let parts = self.parts.values().map(|part| part.status.as_str());
        let parts = tally(PartStatus::ALL.map(PartStatus::as_str), parts);
        set_all(&metrics.parts, "state", parts);
        let queue = [("ready", queue.0), ("waiting", queue.1)];
        set_all(&metrics.queue, "state", queue);
        let orphans = self.orphans.all().map(|(orphan, _)| if orphan.deletable { "true" } else { "false" });
        set_all(&metrics.orphans, "deletable", tally(["true", "false"], orphans));
    }

    /// The Services by name.
    pub(in crate::controllers::service) fn rows(&self) -> Vec<ServiceRow> {
        let services = self.services.iter();
        let mut rows: Vec<_> = services.map(|(name, entry)| self.row(name, entry)).collect();
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }

    fn row(&self, name: &Name, entry: &ServiceEntry) -> ServiceRow {
        let part = |key: &PartKey| {
            let part = self.parts.get(key);
            PartRow {
                name: key.to_string(),
                state: match part {
                    None => "new",
                    Some(part) if part.running => "running",
                    Some(part) => part.status.as_str(),
                },
                last_plan: part.and_then(|part| part.plan.clone()),
            }
        };
        let ingress = entry.view.ingress.iter();
        ServiceRow {
            name: name.to_string(),
            state: entry.shown_state(),
            addresses: ingress
                .filter_map(|ingress| ingress.ip.as_deref().or(ingress.hostname.as_deref()))
                .map(str::to_owned)
                .collect(),
            parts: entry.parts().map(part).collect(),
            error: entry.reported.error(),
        }
    }

    /// The orphans.
    pub(in crate::controllers::service) fn orphan_rows(&self) -> Vec<OrphanRow> {
        let rows = self.orphans.all().map(|(orphan, since)| OrphanRow {
            name: orphan.what.clone(),
            seen_for_seconds: since.elapsed().as_secs(),
            deletable: orphan.deletable,
            consequence: orphans::consequence(orphan, self.orphans.deletes()),
        });
        rows.collect()
    }
}
