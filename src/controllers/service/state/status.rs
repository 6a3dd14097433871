//! The state for people: metrics and the status page.

use std::collections::HashMap;

use ccm_core::load_balancer::{OrphanPart, PartKey};
use tokio::time::Instant;

use super::{Name, PartStatus, ServiceEntry, State};
use crate::{
    controllers::service::orphans,
    server::status::{OrphanRow, PartRow, ServiceRow},
};

/// The state in numbers.
#[derive(Debug, Default)]
pub(in crate::controllers::service) struct Counts {
    pub(in crate::controllers::service) services: HashMap<&'static str, usize>,
    /// Services that fail, by the kind of failure. Kinds that ended are zero.
    pub(in crate::controllers::service) failing: HashMap<&'static str, usize>,
    pub(in crate::controllers::service) parts: HashMap<&'static str, usize>,
    /// Orphans that may be deleted, and others.
    pub(in crate::controllers::service) orphans: (usize, usize),
}

impl State {
    /// The state in numbers.
    pub(in crate::controllers::service) fn counts(&self) -> Counts {
        let mut counts = Counts {
            services: ["served", "pending", "leaving", "foreign"]
                .map(|state| (state, 0))
                .into(),
            parts: PartStatus::ALL.map(|status| (status.as_str(), 0)).into(),
            failing: self.kinds.iter().map(|kind| (*kind, 0)).collect(),
            ..Counts::default()
        };
        for entry in self.services.values() {
            *counts.services.entry(entry.shown_state()).or_default() += 1;
            if let Some(kind) = entry.reported.failure_kind() {
                *counts.failing.entry(kind).or_default() += 1;
            }
        }
        for part in self.parts.values() {
            *counts.parts.entry(part.status.as_str()).or_default() += 1;
        }
        let deletable = self.orphans.all().filter(|(orphan, _)| orphan.deletable).count();
        counts.orphans = (deletable, self.orphans.all().count() - deletable);
        counts
    }

    /// The Services by name.
    pub(in crate::controllers::service) fn rows(&self) -> Vec<ServiceRow> {
        let mut rows: Vec<_> = self
            .services
            .iter()
            .map(|(name, entry)| self.row(name, entry))
            .collect();
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }

    fn row(&self, name: &Name, entry: &ServiceEntry) -> ServiceRow {
        let part = |key: &PartKey| {
            let part = self.parts.get(key);
            PartRow {
                name: key.to_string(),
                state: part.map_or("new", |part| match part.running {
                    true => "running",
                    false => part.status.as_str(),
                }),
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

    /// What belongs to Services that do not exist.
    pub(in crate::controllers::service) fn orphan_rows(&self) -> Vec<OrphanRow> {
        let row = |(orphan, since): (&OrphanPart, Instant)| OrphanRow {
            name: orphan.what.clone(),
            seen_for_seconds: since.elapsed().as_secs(),
            deletable: orphan.deletable,
            consequence: orphans::consequence(orphan, self.orphans.deletes()),
        };
        self.orphans.all().map(row).collect()
    }
}
