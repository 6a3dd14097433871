//! How Services stand, for people.

use ccm_core::load_balancer::StepText;
use k8s_openapi::jiff::Timestamp;

use super::{
    ServiceController,
    ledger::Ledger,
    metrics,
    records::{Name, Record},
};
use crate::server::status::{PartRow, Plan, ServiceRow};

/// So many steps of a plan are kept.
const STEPS: usize = 10;

/// What a pass is about to do.
pub(super) fn plan(steps: &[StepText]) -> Plan {
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
