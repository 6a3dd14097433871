//! Steps that many members share, such as the write of a document: one write for many changes, and a member that the cloud
//! refuses does not hold up the others.
//!
//! # One write for many changes
//!
//! A shared step is sent at once if the last one was long ago. Otherwise it waits, so that the changes that come meanwhile are
//! part of it: 2 s after the last write, and twice as long after each write that had to wait, up to 10 s.
//!
//! ```text
//!   100 Services are created within 10 s
//!   0 s   write 1: the Services of the first moment
//!   2 s   write 2: those since then
//!   6 s   write 3
//!   14 s  write 4: the rest
//! ```
//!
//! # One member that is refused
//!
//! If the cloud refuses a shared step permanently, its error may name an object of a member
//! ([`PartModel::named_member`]): this member is frozen, and the step is planned again without its changes. If it names none, the
//! engine [searches](super::search). A frozen member is tried again when the Service changes, after five minutes, and then
//! after longer times, up to half an hour. A search that has too many refusals continues after a minute.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    model::{Member, Membership, PartCloud, PartModel, Plan, Step},
    pass::Pass,
    record::HeldStep,
    search::{MemberSearch, Refusal},
    steps::is_permanent,
};
use crate::{
    Error, ErrorKind, Freshness, Result,
    client::later,
    load_balancer::{PartState, ServiceView},
};

/// The wait after a shared write, if no other one was sent before it for a while.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest wait after a shared write.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// What was read this long ago is read again before it is written.
const OUTDATED: Duration = Duration::from_secs(30);
/// A member that the cloud refused is not tried again for this long unless its Service changes, and then twice as long each time.
const REFUSED: Duration = Duration::from_secs(300);
const LONGEST_REFUSED: Duration = Duration::from_secs(1800);
/// Members that a search had no time for are tried again after this long.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// What is known of the shared steps of a part.
pub(super) struct SharedSteps<M: PartModel> {
    /// The last write.
    last: Option<SharedWrite>,
    /// The part as it was when a step had to wait.
    waiting: Option<WaitingPart<M::Observed>>,
    search: Option<MemberSearch<M::Change>>,
    refused: Vec<RefusedMember>,
    /// Until then, a refusal concerns the part as a whole.
    no_search_before: Option<Instant>,
}

#[derive(Clone, Copy)]
struct SharedWrite {
    at: Instant,
    /// The wait until the next one.
    pause: Duration,
}

struct WaitingPart<O> {
    observed: O,
    fresh: bool,
    at: Instant,
}

/// A member that the cloud refused.
struct RefusedMember {
    service: Arc<ServiceView>,
    error: Error,
    until: Instant,
    /// The wait before it is tried again, if it is known to be the reason.
    wait: Option<Duration>,
}

impl<M: PartModel> Default for SharedSteps<M> {
    fn default() -> Self {
        Self {
            last: None,
            waiting: None,
            search: None,
            refused: Vec::new(),
            no_search_before: None,
        }
    }
}

impl<M: PartModel> SharedSteps<M> {
    /// A shared step was carried out or accepted.
    pub(super) fn sent(&mut self) {
        let now = Instant::now();
        if let Some(search) = &mut self.search {
            search.write_accepted();
        }
        let pause = match self.last {
            // Another step of the same moment.
            Some(last) if now < last.at + last.pause => last.pause,
            Some(last) if now < last.at + 2 * last.pause => LONGEST_PAUSE.min(2 * last.pause),
            _ => FIRST_PAUSE,
        };
        self.last = Some(SharedWrite { at: now, pause });
    }

    /// When the next shared step may be sent, if it has to wait.
    fn next_write(&self) -> Option<Instant> {
        let last = self.last.filter(|_| self.search.is_none())?;
        let next = later(last.at, last.pause);
        (Instant::now() < next).then_some(next)
    }

    /// The part as it was when a step had to wait, and whether that was read in the pass then.
    pub(super) fn take_waiting(&mut self, freshness: Freshness) -> Option<(M::Observed, bool)> {
        let waiting = self.waiting.take()?;
        let is_recent = match freshness {
            Freshness::After(instant) => instant <= waiting.at,
            Freshness::AtMost(_) => true,
        };
        (is_recent && waiting.at.elapsed() < OUTDATED).then_some((waiting.observed, waiting.fresh))
    }
}

impl<M: PartModel, C: PartCloud<M>> Pass<'_, M, C> {
    /// Lets shared steps wait for changes that may come within a short time.
    pub(super) fn hold_shared(&mut self, steps: &[Step<M::Change>]) {
        self.record.held.retain(|held| !held.is_early);
        let Some(until) = self.record.shared.next_write() else {
            return;
        };
        let since = Instant::now();
        for step in steps.iter().filter(|step| step.description.is_shared) {
            self.record.held.push(HeldStep {
                description: step.description.clone(),
                why: "more changes may come before the next write".to_owned(),
                since,
                until,
                is_early: true,
            });
        }
    }

    /// The state of a part none of whose steps can be sent before the next shared write. The next pass continues with
    /// `observed`.
    pub(super) fn wait_for_shared(&mut self, observed: &M::Observed, fresh: bool) -> Option<PartState> {
        let is_early = self.record.held.iter().any(|held| held.is_early);
        if !is_early || self.record.waiting.is_some() {
            return None;
        }
        self.record.shared.waiting = Some(WaitingPart {
            observed: observed.clone(),
            fresh,
            at: Instant::now(),
        });
        self.record.waits()
    }

    fn active_services(&self) -> Vec<Arc<ServiceView>> {
        Member::active(&self.members).map(|member| Arc::clone(&member.service)).collect()
    }

    /// Freezes the members that the cloud refused a moment ago, and tells the search which members the part has now.
    pub(super) fn freeze_refused(&mut self) {
        let now = Instant::now();
        let mut refused = std::mem::take(&mut self.record.shared.refused);
        refused.retain(|refused| {
            let mut members = self.members.iter();
            members.any(|member| member.service.asks_the_same(&refused.service))
        });
        for refused in refused.iter().filter(|refused| now < refused.until) {
            self.freeze(&refused.service.id, &refused.error);
        }
        self.record.shared.refused = refused;
        let active = self.active_services();
        // The result of a step that is in progress is that of the members then.
        if self.record.waiting.is_none()
            && let Some(search) = &mut self.record.shared.search
        {
            search.update(&active);
            self.end_search();
        }
    }

    fn end_search(&mut self) {
        if self.record.shared.search.as_ref().is_some_and(MemberSearch::is_over) {
            self.record.shared.search = None;
        }
    }

    /// Freezes the members that the search does not apply now.
    pub(super) fn apply_search(&mut self) {
        self.activate_left_out();
        let Some(search) = &self.record.shared.search else {
            return;
        };
        for member in &mut self.members {
            if member.membership == Membership::Active && !search.applies(&member.service) {
                let why = "it waits until the Service is known whose change the cloud refuses";
                member.membership = Membership::Frozen(why.to_owned());
                self.left_out.insert(member.service.id.clone());
            }
        }
    }

    fn activate_left_out(&mut self) {
        let left_out = std::mem::take(&mut self.left_out);
        for member in self.members.iter_mut().filter(|member| left_out.contains(&member.service.id)) {
            member.membership = Membership::Active;
        }
    }

    /// Continues the search if the result of this plan is known without a write. Then the part is planned again.
    ///
    /// # Errors
    /// If the members are not the reason of the refusal.
    pub(super) fn continue_search(&mut self, plan: &Plan<M::Change>) -> Result<bool> {
        if self.record.waiting.is_some() {
            return Ok(false);
        }
        let Some(search) = &mut self.record.shared.search else {
            return Ok(false);
        };
        let mut shared = plan.steps.iter().filter(|step| step.description.is_shared).peekable();
        let refusal = if shared.peek().is_none() {
            Refusal::Members(search.accepted())
        } else if shared.any(|step| search.is_refused(&step.change)) {
            search.refused(search.error().clone(), None)
        } else {
            return Ok(false);
        };
        self.apply_refusal(refusal)?;
        Ok(true)
    }

    /// The cloud refused a shared step permanently.
    ///
    /// # Errors
    /// The error of the step, if no member is the reason.
    pub(super) fn shared_step_refused(&mut self, change: &M::Change, error: Error) -> Result<()> {
        self.count_repeat("refused");
        let named = self.engine.model.named_member(&self.key, &self.members, change, &error);
        let named = self.active_services().into_iter().find(|service| Some(&service.id) == named.as_ref());
        if let Some(service) = named {
            if let Some(search) = &mut self.record.shared.search {
                search.remove(&service);
            }
            self.freeze_found(vec![service], &error, true);
            return Ok(());
        }
        let now = Instant::now();
        let may_search = self.record.shared.no_search_before.is_none_or(|before| before <= now);
        let refusal = match &mut self.record.shared.search {
            Some(search) => search.refused(error, Some(change.clone())),
            None if may_search && is_about_a_member(&error) => {
                let services = self.active_services();
                if services.is_empty() {
                    return Err(error);
                }
                self.record.shared.search = Some(MemberSearch::new(error, change.clone(), services));
                return Ok(());
            }
            None => return Err(error),
        };
        self.apply_refusal(refusal)
    }

    fn apply_refusal(&mut self, refusal: Refusal) -> Result<()> {
        let Some(search) = &self.record.shared.search else {
            return Ok(());
        };
        let error = search.error().clone();
        match refusal {
            Refusal::Members(services) => {
                self.freeze_found(services, &error, true);
                Ok(())
            }
            Refusal::GivenUp(services) => {
                self.freeze_found(services, &error, false);
                Ok(())
            }
            Refusal::Part => {
                self.record.shared.search = None;
                self.record.shared.refused.clear();
                self.record.shared.no_search_before = Some(later(Instant::now(), REFUSED));
                self.activate_left_out();
                Err(error)
            }
        }
    }

    /// Freezes members that the cloud refuses. `is_known`: each of them is a reason; otherwise, some of them may be.
    fn freeze_found(&mut self, services: Vec<Arc<ServiceView>>, error: &Error, is_known: bool) {
        self.activate_left_out();
        self.end_search();
        for service in services {
            self.freeze(&service.id, error);
            let all = &mut self.record.shared.refused;
            let before = all.iter().position(|refused| refused.service.id == service.id);
            let last = before.and_then(|at| all.remove(at).wait);
            let wait = if is_known {
                Some(last.map_or(REFUSED, |last| LONGEST_REFUSED.min(2 * last)))
            } else {
                last
            };
            let pause = if is_known { wait } else { None };
            all.push(RefusedMember {
                service,
                error: error.clone(),
                until: later(Instant::now(), pause.unwrap_or(GIVEN_UP)),
                wait,
            });
        }
    }
}

/// Whether a smaller change may be accepted.
fn is_about_a_member(error: &Error) -> bool {
    is_permanent(error.kind()) && error.kind() != ErrorKind::InvalidConfig
}
