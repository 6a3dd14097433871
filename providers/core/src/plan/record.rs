//! The state of a part between calls.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    RequestId,
    discovery::DiscoveredPart,
    model::{Member, PartModel, Step},
    order::ClaimedObjects,
    shared::SharedSteps,
};
use crate::{
    Error,
    load_balancer::{ClusterView, PartState, ServiceId, StepDescription},
};

/// A step that the cloud refused permanently, and that is one of many, is not sent again for this long.
const REFUSED: Duration = Duration::from_secs(300);

/// The state of a part between calls. Locked while a pass runs: one writer per part.
///
/// `T` is the provider's ticket.
pub(super) struct PartRecord<M: PartModel, T> {
    /// The result of a write is not known, or it failed: the next read must not come from a cache.
    pub(super) needs_read: bool,
    /// The steps that the cloud accepted and has not finished.
    pub(super) waiting: Option<Waiting<M, T>>,
    /// Steps that failed or come too early, and whose objects are left unchanged for a while.
    pub(super) held: Vec<HeldStep>,
    /// The steps that many members share.
    pub(super) shared: SharedSteps<M>,
    /// Steps that the cloud refused permanently, each one of many.
    refused: Vec<RefusedStep<M::Change>>,
    /// The ids of writes whose results are not known.
    request_ids: Vec<SentRequest<M::Change>>,
    /// Creates that had no reply.
    pub(super) unanswered: Vec<Unanswered>,
    /// When the part became busy: the cloud has not finished another change, or refuses ours until something else ends.
    pub(super) busy_since: Option<Instant>,
    /// The event if it is busy for long. It is written once, since its text contains the elapsed time.
    pub(super) busy_event: Option<String>,
    /// The change by another client that the part waits for.
    pub(super) pending: Option<Pending<M>>,
    /// Grows when a report must contain every member again.
    pub(super) reports: u64,
    /// The nodes and the cluster of the last report.
    pub(super) reported_cluster: Option<ClusterView>,
    /// The pass so far, from its first call to the one that succeeds.
    pub(super) progress: Progress,
}

/// The steps that the cloud accepted and has not finished.
pub(super) struct Waiting<M: PartModel, T> {
    /// At least one.
    pub(super) accepted: Vec<AcceptedStep<M, T>>,
    /// The part with the steps folded in. `None`: it has to be read, and the steps are folded in again.
    pub(super) observed: Option<M::Observed>,
    /// Whether the part was read in the pass that sent the steps.
    pub(super) fresh: bool,
    /// The members when the last of the steps was sent.
    pub(super) members: Vec<Member<M>>,
    pub(super) discovery: Option<Arc<DiscoveredPart<M>>>,
}

/// A step that the cloud accepted.
pub(super) struct AcceptedStep<M: PartModel, T> {
    pub(super) ticket: T,
    pub(super) change: M::Change,
    pub(super) reply: M::Reply,
    pub(super) description: StepDescription,
    pub(super) until: Instant,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
}

/// A step that failed while others continue, or that comes too early. Steps on its objects are not sent before this time.
pub(super) struct HeldStep {
    pub(super) description: StepDescription,
    pub(super) why: String,
    pub(super) since: Instant,
    pub(super) until: Instant,
    /// It has not failed: more changes of other members may come before it is sent.
    pub(super) is_early: bool,
}

/// A step that the cloud refused permanently.
pub(super) struct RefusedStep<C> {
    change: C,
    pub(super) error: Error,
    since: Instant,
}

/// A write with its id, whose result is not known.
struct SentRequest<C> {
    change: C,
    id: RequestId,
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
    pub(super) discovery: Option<Arc<DiscoveredPart<M>>>,
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
            held: Vec::new(),
            shared: SharedSteps::default(),
            refused: Vec::new(),
            request_ids: Vec::new(),
            unanswered: Vec::new(),
            busy_since: None,
            busy_event: None,
            pending: None,
            reports: 0,
            reported_cluster: None,
            progress: Progress::default(),
        }
    }
}

impl<M: PartModel, T> PartRecord<M, T> {
    pub(super) fn is_idle(&self) -> bool {
        !self.needs_read && self.waiting.is_none() && self.unanswered().next().is_none()
    }

    /// The creates that had no reply, while the cloud may be at work on them.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &Unanswered> {
        let now = Instant::now();
        self.unanswered.iter().filter(move |sent| now < sent.until)
    }

    /// The part has changed, or no change is due.
    pub(super) fn is_not_busy(&mut self) {
        (self.busy_since, self.busy_event) = (None, None);
    }

    /// The objects of the steps that the cloud accepted.
    pub(super) fn accepted_objects(&self) -> ClaimedObjects<'_> {
        let accepted = self.waiting.iter().flat_map(|waiting| &waiting.accepted);
        ClaimedObjects::of(accepted.map(|accepted| &accepted.description))
    }

    /// The objects of steps that failed a moment ago.
    pub(super) fn held_objects(&self) -> ClaimedObjects<'_> {
        let now = Instant::now();
        let held = self.held.iter().filter(|held| now < held.until);
        ClaimedObjects::of(held.map(|held| &held.description))
    }

    /// The state of a part that waits for steps that were accepted, or for objects of steps that failed. `None`: it does not
    /// wait.
    pub(super) fn waits(&self) -> Option<PartState> {
        let mut accepted: Vec<_> = self.waiting.iter().flat_map(|waiting| &waiting.accepted).collect();
        accepted.sort_by_key(|accepted| accepted.until);
        let held = self.held.iter().min_by_key(|held| held.until);
        let Some(first) = accepted.first() else {
            let held = held?;
            return Some(PartState::Parked {
                until: held.until,
                since: held.since,
                why: held.why.clone(),
            });
        };
        let others = match accepted.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        Some(PartState::Parked {
            until: held.map_or(first.until, |held| held.until.min(first.until)),
            since: accepted.iter().map(|accepted| accepted.since).min().unwrap_or(first.since),
            why: format!("the cloud has not finished: {}{others}", first.description.sentence),
        })
    }

    /// Remembers a step that the cloud refused permanently.
    pub(super) fn refuse(&mut self, change: M::Change, error: Error) {
        self.refused.retain(|refused| refused.change != change);
        let since = Instant::now();
        self.refused.push(RefusedStep { change, error, since });
    }

    /// The error with which the cloud refused this change, unless that was long ago.
    pub(super) fn refusal(&self, change: &M::Change) -> Option<&Error> {
        let refused = self.refused.iter().find(|refused| refused.change == *change)?;
        (refused.since.elapsed() < REFUSED).then_some(&refused.error)
    }

    /// Whether a step was refused permanently.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The id with which to send this change: the same one as before if the result of that is not known.
    pub(super) fn request_id(&mut self, change: &M::Change) -> RequestId {
        if let Some(id) = self.known_request_id(change) {
            return id.clone();
        }
        let id = RequestId::random();
        self.request_ids.push(SentRequest {
            change: change.clone(),
            id: id.clone(),
        });
        id
    }

    /// The id with which this change was sent, if the result is not known.
    pub(super) fn known_request_id(&self, change: &M::Change) -> Option<&RequestId> {
        let sent = self.request_ids.iter().find(|sent| sent.change == *change);
        sent.map(|sent| &sent.id)
    }

    /// The result of this change is known.
    pub(super) fn request_answered(&mut self, change: &M::Change) {
        self.request_ids.retain(|sent| sent.change != *change);
    }

    /// Forgets the writes that are not among these steps any more: a read showed that they were carried out, or they are not
    /// desired any more.
    pub(super) fn keep_requests_of(&mut self, planned: &[Step<M::Change>]) {
        self.request_ids.retain(|sent| planned.iter().any(|step| step.change == sent.change));
    }
}
