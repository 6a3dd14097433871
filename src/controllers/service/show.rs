//! How Services stand, for people.

use ccm_core::load_balancer::{OrphanPart, StepDescription};
use k8s_openapi::jiff::Timestamp;
use tracing::warn;

use super::{
    COMPONENT, ServiceController,
    ledger::Ledger,
    metrics, orphans,
    records::{Name, Record},
};
use crate::server::status::{OrphanRow, PartRow, Plan, ServiceRow};

/// So many steps of a plan are kept.
const STEPS: usize = 10;

/// So many orphans are named in an Event.
const ORPHANS: usize = 5;

/// What a pass is about to do.
pub(super) fn plan(steps: &[StepDescription]) -> Plan {
    Plan {
        at: Timestamp::now(),
        steps: steps
            .iter()
            .take(STEPS)
            .map(|step| step.sentence.clone())
            .collect(),
        count: steps.len(),
    }
}

impl ServiceController {
    /// The Services by name.
    pub(crate) fn rows(&self) -> Vec<ServiceRow> {
        let ledger = self.ledger.lock();
        let mut rows: Vec<_> = ledger
            .records
            .iter()
            .map(|(name, record)| row(&ledger, name, record))
            .collect();
        drop(ledger);
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }

    /// What belongs to Services that do not exist.
    pub(crate) fn orphan_rows(&self) -> Vec<OrphanRow> {
        let ledger = self.ledger.lock();
        let orphans = ledger.orphans.all();
        orphans
            .map(|(orphan, since)| OrphanRow {
                name: orphan.what.clone(),
                seen_for_seconds: since.elapsed().as_secs(),
                deletable: orphan.deletable,
                consequence: orphans::consequence(orphan, self.config.orphans.delete),
            })
            .collect()
    }

    /// One Event and one line of log for all orphans that are new.
    pub(super) fn report_orphans(&self, orphans: &[OrphanPart]) {
        let deletes = self.config.orphans.delete;
        let texts: Vec<_> = orphans
            .iter()
            .map(|orphan| format!("{}: {}", orphan.what, orphans::consequence(orphan, deletes)))
            .collect();
        for text in &texts {
            warn!(
                controller = COMPONENT,
                orphan = text,
                "Its Service does not exist"
            );
        }
        let more = texts.len().saturating_sub(ORPHANS);
        let mut message = format!(
            "{} in the cloud of Services that do not exist: {}",
            if texts.len() == 1 {
                "1 object".to_owned()
            } else {
                format!("{} objects", texts.len())
            },
            texts
                .iter()
                .take(ORPHANS)
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join("; "),
        );
        if more > 0 {
            message.push_str(&format!("; and {more} more (see /statusz)"));
        }
        self.teller
            .warn_about(&self.process, "OrphanedLoadBalancers", &message);
    }
}

fn row(ledger: &Ledger, name: &Name, record: &Record) -> ServiceRow {
    let told = || record.told.values();
    let error = told()
        .find_map(|told| told.failure.clone())
        .or_else(|| told().find_map(|told| told.blocked.clone()))
        .or_else(|| record.unwritten.clone());
    let ingress = record.view.ingress.iter();
    ServiceRow {
        name: name.to_string(),
        state: metrics::state(record),
        addresses: ingress
            .filter_map(|ingress| ingress.ip.as_deref().or(ingress.hostname.as_deref()))
            .map(str::to_owned)
            .collect(),
        parts: record
            .parts()
            .map(|key| {
                let part = ledger.parts.get(key);
                PartRow {
                    name: key.to_string(),
                    state: part.map_or("new", |part| match part.running {
                        true => "running",
                        false => part.state.as_str(),
                    }),
                    last_plan: part.and_then(|part| part.plan.clone()),
                }
            })
            .collect(),
        error,
    }
}
