//! The state of a part between calls.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    discovery::DiscoveredParts,
    model::{Member, PartModel},
};
use crate::{
    Error,
    load_balancer::{ServiceId, StepDescription},
};

/// The state of a part between calls. Locked while a pass runs: one writer per part.
///
/// `T` is the provider's ticket.
pub(super) struct PartRecord<M: PartModel, T> {
    /// The result of a write is not known, or it failed: the next read must not come from a cache.
    pub(super) needs_read: bool,
    /// The step that the cloud accepted and has not finished.
    pub(super) waiting: Option<Waiting<M, T>>,
    /// The last create that had no reply.
    pub(super) unanswered: Option<Unanswered>,
    /// When the part became busy: the cloud has not finished another change, or refuses ours until something else ends.
    pub(super) busy_since: Option<Instant>,
    /// The event if it is busy for long. It is written once, since its text contains the elapsed time.
    pub(super) busy_event: Option<String>,
    /// The change by another client that the part waits for.
    pub(super) pending: Option<Pending<M>>,
    /// The pass so far, from its first call to the one that succeeds.
    pub(super) progress: Progress,
}

/// A step that the cloud accepted.
pub(super) struct Waiting<M: PartModel, T> {
    pub(super) ticket: T,
    pub(super) description: StepDescription,
    /// The part with the step folded in. `None`: it has to be read once the step is done.
    pub(super) observed: Option<M::Observed>,
    /// Whether the part was read in the pass that sent the step.
    pub(super) fresh: bool,
    pub(super) until: Instant,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// The members when the step was sent.
    pub(super) members: Vec<Member<M>>,
    pub(super) discovery: Option<Arc<DiscoveredParts<M>>>,
}

/// A create that had no reply. The cloud may still be at work on it, and show the object only when that ends.
pub(super) struct Unanswered {
    pub(super) description: StepDescription,
    pub(super) error: Error,
    /// When it was sent, and the time from which on a read shows whether it was carried out.
    pub(super) since: Instant,
    pub(super) until: Instant,
}

/// A change by another client that the cloud had not finished when the part was read.
pub(super) struct Pending<M: PartModel> {
    pub(super) observed: M::Observed,
    /// The reason of the wait, and the first wait.
    pub(super) why: String,
    pub(super) first: Duration,
    pub(super) until: Instant,
    /// The members when the part was read.
    pub(super) members: Vec<Member<M>>,
    pub(super) discovery: Option<Arc<DiscoveredParts<M>>>,
}

/// The steps of a pass, over all its calls.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) steps: usize,
    pub(super) touched: BTreeSet<ServiceId>,
    pub(super) touched_all: bool,
    /// The members for which steps were announced, and whether each wanted a load balancer then.
    pub(super) announced: BTreeSet<(ServiceId, bool)>,
}

impl<M: PartModel, T> Default for PartRecord<M, T> {
    fn default() -> Self {
        Self {
            needs_read: false,
            waiting: None,
            unanswered: None,
            busy_since: None,
            busy_event: None,
            pending: None,
            progress: Progress::default(),
        }
    }
}

impl<M: PartModel, T> PartRecord<M, T> {
    pub(super) fn is_idle(&self) -> bool {
        !self.needs_read && self.waiting.is_none() && self.unanswered().is_none()
    }

    /// The last create that had no reply, while the cloud may be at work on it.
    pub(super) fn unanswered(&self) -> Option<&Unanswered> {
        let now = Instant::now();
        self.unanswered.as_ref().filter(|sent| now < sent.until)
    }

    /// The part has changed, or no change is due.
    pub(super) fn is_not_busy(&mut self) {
        (self.busy_since, self.busy_event) = (None, None);
    }
}
