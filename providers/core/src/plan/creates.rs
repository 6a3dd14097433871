//! Creates for one Service in two parts at the same time.
//!
//! A Service may have two parts for one load balancer: `lb/#2`, which another client has deleted, for a pass with an older
//! listing, and `lb/new:web` for a pass with a newer one. Each pass reads its part before it creates, and neither read shows
//! the object of the other pass. So a pass looks for such a create right before its own is sent, not only when it finds its
//! members:
//!
//! ```text
//!   lb/#2      listing ---- read ------------------------ create? no: lb/new:web created after this pass began
//!   lb/new:web       listing ---- read ---- create, lb/#3
//! ```

use std::time::Duration;

use tokio::time::Instant;

use super::{
    model::{Member, PartCloud, PartModel},
    pass::{Pass, current},
};
use crate::{
    RequestOutcome, Result,
    client::later,
    load_balancer::{Effect, ServiceId, StepDescription},
};

/// A pass whose create waits for one in another part begins again after this time, with another listing.
pub(super) const CREATED_ELSEWHERE: Duration = Duration::from_secs(1);

impl<M: PartModel, C: PartCloud<M>> Pass<'_, M, C> {
    /// Records that a step that creates is about to be sent. Returns the Services that it is for.
    ///
    /// # Errors
    /// The part in which another create for one of them had not ended when this pass began. The Service does not join that part
    /// in the listing of this pass.
    pub(super) fn begin_create(&self, step: &StepDescription) -> std::result::Result<Vec<ServiceId>, M::Key> {
        let services = self.creates_for(step);
        let mut memory = self.memory.lock();
        for id in &services {
            let entry = self.discovery.as_ref().and_then(|discovery| discovery.entry(id));
            let joins = entry.iter().flat_map(|entry| &entry.joins);
            let joins: Vec<_> = joins.map(|key| current(&self.began_as, &self.key, &memory, key)).collect();
            let mut parts = memory.creates_since(id, self.began);
            if let Some(other) = parts.find(|part| **part != self.key && !joins.contains(part)) {
                return Err(other.clone());
            }
        }
        for id in &services {
            memory.create_begins(id, &self.key);
        }
        Ok(services)
    }

    /// A step without a Service that creates an object is for all active members.
    fn creates_for(&self, step: &StepDescription) -> Vec<ServiceId> {
        match &step.service {
            _ if step.effect != Effect::Create => Vec::new(),
            Some(service) => vec![service.clone()],
            None if step.creates.is_some() => {
                Member::active(&self.members).map(|member| member.service.id.clone()).collect()
            }
            None => Vec::new(),
        }
    }

    /// Records the end of a create for these Services. If it had no reply, the cloud may carry it out for as long as `unanswered`.
    pub(super) fn end_create<T>(&self, services: &[ServiceId], result: &Result<T>, unanswered: Duration) {
        let now = Instant::now();
        let shown = match result {
            Err(error) if error.outcome() == RequestOutcome::Unknown => later(now, unanswered),
            _ => now,
        };
        let mut memory = self.memory.lock();
        for id in services {
            memory.create_ended(id, &self.key, shown);
        }
    }
}

/// Why a part is parked because of a create in another one.
pub(super) fn created_elsewhere(other: &str) -> String {
    format!("the load balancer is being created in {other}, or was since this pass began")
}
