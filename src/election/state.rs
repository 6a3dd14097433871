//! The decision about the next step: the pure half of an election.

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::lease::{Lease, Terms};
use crate::config::ElectionConfig;

/// The state of the Lease, as far as it is known.
#[derive(Debug)]
pub(super) struct ElectionState {
    terms: Terms,
    config: ElectionConfig,
    /// The name of the Lease.
    name: String,
    observed: Option<Observed>,
    /// While this process leads: when that ends unless it is renewed.
    until: Option<Instant>,
}

/// The Lease as it was last observed.
#[derive(Debug)]
struct Observed {
    lease: Lease,
    /// When this process observed its last renewal. Clocks of other machines do not count.
    changed: Instant,
}

/// A write of the Lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// There is no Lease: create this one.
    Create(Lease),
    /// Replace the Lease that was read by this one.
    Update(Lease),
}

impl ElectionState {
    pub(super) fn new(config: &ElectionConfig, identity: &str, name: &str) -> Self {
        Self {
            terms: Terms {
                identity: identity.to_owned(),
                lease_duration: config.lease_duration,
            },
            config: config.clone(),
            name: name.to_owned(),
            observed: None,
            until: None,
        }
    }

    pub(super) fn config(&self) -> &ElectionConfig {
        &self.config
    }

    pub(super) fn identity(&self) -> &str {
        &self.terms.identity
    }

    /// The Lease as it was last observed.
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.observed.as_ref().map(|observed| &observed.lease)
    }

    /// While this process leads: when that ends unless it is renewed.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// The renewal that a leader writes without a read before it. It fails if another process has written the Lease.
    pub(super) fn renewal(&self, now: Instant, clock: Timestamp) -> Option<Lease> {
        let observed = self.observed.as_ref()?;
        let ours = self.until.is_some_and(|until| now < until) && observed.lease.holder() == self.identity();
        ours.then(|| observed.lease.clone().renewed(&self.terms, clock))
    }

    /// The next step after a read of the Lease. `None`: another process holds it.
    pub(super) fn observe(&mut self, found: Option<Lease>, now: Instant, clock: Timestamp) -> Option<Step> {
        let Some(found) = found else {
            let first = Lease::first(&self.config.namespace, &self.name, &self.terms, clock);
            return Some(Step::Create(first));
        };
        let changed = match &self.observed {
            Some(observed) if found.is_unchanged(&observed.lease) => observed.changed,
            _ => now,
        };
        self.observed = Some(Observed {
            lease: found.clone(),
            changed,
        });
        match found.holder() {
            "" => Some(Step::Update(found.acquired(&self.terms, clock))),
            holder if holder == self.terms.identity => Some(Step::Update(found.renewed(&self.terms, clock))),
            _ if self.until.is_some() => None,
            _ => {
                // Without a duration in the Lease, it is that of this process.
                let duration = found.duration().unwrap_or(self.terms.lease_duration);
                let expires = changed.checked_add(duration)?;
                (now >= expires).then(|| Step::Update(found.acquired(&self.terms, clock)))
            }
        }
    }

    /// Records that the API server has carried out the write of `sent`, and answered with this. Returns until when this process
    /// leads, if it does.
    ///
    /// The next leader waits for the whole lease duration from a later moment than `sent`.
    pub(super) fn written(&mut self, lease: Lease, sent: Instant) -> Option<Instant> {
        let ours = lease.holder() == self.identity();
        self.observed = Some(Observed { lease, changed: sent });
        self.until = ours.then(|| sent.checked_add(self.config.renew_deadline)).flatten();
        self.until
    }
}

#[cfg(test)]
mod tests;
