//! What is kept of a part between calls.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    discovery::DiscoveredParts,
    model::{Member, PartModel, Step},
};
use crate::load_balancer::ServiceId;

/// What is kept of a part between calls. Locked while a pass is at work: one writer per part.
pub(super) struct PartRecord<M: PartModel> {
    /// A write was sent and its end was not seen, or failed: the next look must not come from a cache.
    pub(super) unsure: bool,
    /// A step that the cloud is at work on.
    pub(super) waiting: Option<Waiting<M>>,
    /// Since when the part is busy without our doing.
    pub(super) busy_since: Option<Instant>,
    /// What people are told if it is busy for long. Says when it was written, so it is written once.
    pub(super) busy_note: Option<String>,
    /// A state that somebody else left, for whose end the part waits.
    pub(super) pending: Option<Pending<M>>,
    /// The pass so far, from its first call to the one that ends well.
    pub(super) progress: Progress,
}

/// A step that the cloud is at work on.
pub(super) struct Waiting<M: PartModel> {
    /// What is kept of it; see [`Change::sent`](super::model::Change::sent).
    pub(super) step: Step<M::Change>,
    /// With the step folded in.
    pub(super) observed: M::Observed,
    pub(super) fresh: bool,
    pub(super) until: Instant,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// Whom it concerns.
    pub(super) members: Vec<Member<M>>,
    pub(super) discovery: Option<Arc<DiscoveredParts<M>>>,
}

/// A part that the cloud was at work on when it was read, without our doing.
pub(super) struct Pending<M: PartModel> {
    pub(super) observed: M::Observed,
    /// What is waited for, and the first wait.
    pub(super) why: String,
    pub(super) first: Duration,
    pub(super) until: Instant,
    /// Whom it concerns.
    pub(super) members: Vec<Member<M>>,
    pub(super) discovery: Option<Arc<DiscoveredParts<M>>>,
}

/// What a pass did, over all its calls.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) steps: usize,
    pub(super) touched: BTreeSet<ServiceId>,
    pub(super) touched_all: bool,
    /// The members for which steps were announced, and whether each wanted a load balancer then.
    pub(super) announced: BTreeSet<(ServiceId, bool)>,
}

impl<M: PartModel> Default for PartRecord<M> {
    fn default() -> Self {
        Self {
            unsure: false,
            waiting: None,
            busy_since: None,
            busy_note: None,
            pending: None,
            progress: Progress::default(),
        }
    }
}

impl<M: PartModel> PartRecord<M> {
    pub(super) fn is_idle(&self) -> bool {
        !self.unsure && self.waiting.is_none()
    }
}
