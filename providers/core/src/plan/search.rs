//! The search for the members because of which the cloud refuses a change that many members share.
//!
//! ```text
//!   a b c d e f g h   refused
//!   (nobody)          no step, or accepted: the members are the reason
//!   a b c d           refused: one of these is bad; e to h are set aside
//!   a b               accepted: both stay, and c or d is bad
//!   a b c             refused: c is bad, and d is set aside, too
//!   a b d e f g h     accepted: the end. If not, the search continues among d to h
//! ```
//!
//! One bad member among n costs about log2(n) + 2 writes. A change that is planned again is known to be refused, and members
//! whose changes make no difference need no write.

use std::sync::Arc;

use crate::{Error, load_balancer::ServiceView};

/// A search for refused members.
pub(super) struct MemberSearch<C> {
    /// The last refusal.
    error: Error,
    /// Members whose changes the cloud has accepted.
    cleared: Vec<Arc<ServiceView>>,
    /// Members that may be the reason.
    suspects: Vec<Arc<ServiceView>>,
    /// How many of the suspects, the first ones, are applied now.
    tried: usize,
    /// Whether one of the suspects at least is refused.
    is_one_refused: bool,
    /// Members that are tried when the suspects are known.
    set_aside: Vec<Arc<ServiceView>>,
    /// The changes that the cloud refused.
    refused: Vec<C>,
    /// How many changes may still be refused before the search is given up.
    refusals_left: u32,
    has_accepted: bool,
}

/// The result of a refusal.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    /// These members are the reason, if any is known yet.
    Members(Vec<Arc<ServiceView>>),
    /// Some of these members are the reason. The search has ended, since too many changes were refused.
    GivenUp(Vec<Arc<ServiceView>>),
    /// The members are not the reason.
    Part,
}

impl<C: PartialEq> MemberSearch<C> {
    /// Begins when the cloud has refused `change`, which applied these members. First, none of them is applied.
    pub(super) fn new(error: Error, change: C, members: Vec<Arc<ServiceView>>) -> Self {
        Self {
            error,
            cleared: Vec::new(),
            tried: 0,
            is_one_refused: true,
            refusals_left: 2 * members.len().next_power_of_two().ilog2() + 4,
            suspects: members,
            set_aside: Vec::new(),
            refused: vec![change],
            has_accepted: false,
        }
    }

    /// The last refusal.
    pub(super) fn error(&self) -> &Error {
        &self.error
    }

    /// Whether the changes of this member are applied now.
    pub(super) fn applies(&self, member: &ServiceView) -> bool {
        let tried = self.suspects.iter().take(self.tried);
        self.cleared.iter().chain(tried).any(|known| known.asks_the_same(member))
    }

    /// Whether the cloud has refused this change.
    pub(super) fn is_refused(&self, change: &C) -> bool {
        self.refused.contains(change)
    }

    /// Whether nothing is left to try.
    pub(super) fn is_over(&self) -> bool {
        self.suspects.is_empty() && self.set_aside.is_empty()
    }

    /// The members that the part has now. Those that are new, or that have changed, are tried later.
    pub(super) fn update(&mut self, members: &[Arc<ServiceView>]) {
        let stays = |known: &Arc<ServiceView>| members.iter().any(|member| member.asks_the_same(known));
        let before = self.suspects.len();
        self.cleared.retain(stays);
        self.suspects.retain(stays);
        self.set_aside.retain(stays);
        let known: Vec<_> = self.cleared.iter().chain(&self.suspects).chain(&self.set_aside).collect();
        let is_new = |member: &&Arc<ServiceView>| !known.iter().any(|known| known.asks_the_same(member));
        let new: Vec<_> = members.iter().filter(is_new).cloned().collect();
        self.set_aside.extend(new);
        if self.suspects.len() < before {
            // The one that was refused may have changed.
            self.is_one_refused = false;
            self.tried = self.suspects.len();
        }
    }

    /// The cloud has carried out a change of the search.
    pub(super) fn write_accepted(&mut self) {
        self.has_accepted = true;
    }

    /// No change is due with the members that are applied now. Returns the member that is the reason, if that is known now.
    pub(super) fn accepted(&mut self) -> Vec<Arc<ServiceView>> {
        self.cleared.extend(self.suspects.drain(..self.tried));
        self.next()
    }

    /// The cloud has refused the change with the members that are applied now. `change`: if it was sent, not only known to be
    /// refused.
    pub(super) fn refused(&mut self, error: Error, change: Option<C>) -> Refusal {
        self.error = error;
        if let Some(change) = change {
            self.refused.push(change);
            self.refusals_left = self.refusals_left.saturating_sub(1);
        }
        if self.tried == 0 || (self.refusals_left == 0 && !self.has_accepted) {
            return Refusal::Part;
        }
        if self.refusals_left == 0 {
            let rest = self.suspects.drain(..).chain(self.set_aside.drain(..));
            return Refusal::GivenUp(rest.collect());
        }
        let untried = self.suspects.split_off(self.tried);
        self.set_aside.splice(0..0, untried);
        self.is_one_refused = true;
        Refusal::Members(self.next())
    }

    /// These members are known to be refused.
    pub(super) fn remove(&mut self, member: &ServiceView) {
        let is_other = |known: &Arc<ServiceView>| known.id != member.id;
        self.suspects.retain(is_other);
        self.set_aside.retain(is_other);
        self.cleared.retain(is_other);
        // The others may be good.
        self.is_one_refused = false;
        self.tried = self.suspects.len();
        if self.suspects.is_empty() {
            self.next();
        }
    }

    /// Chooses the members that are tried next. Returns the one that is refused if only one is left.
    fn next(&mut self) -> Vec<Arc<ServiceView>> {
        let mut found = Vec::new();
        if self.is_one_refused && self.suspects.len() == 1 {
            found.append(&mut self.suspects);
        }
        if self.suspects.is_empty() {
            self.suspects = std::mem::take(&mut self.set_aside);
            self.is_one_refused = false;
        }
        self.tried = if self.is_one_refused {
            self.suspects.len() / 2
        } else {
            self.suspects.len()
        };
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{ErrorKind, load_balancer::ServiceId};

    fn member(index: usize) -> Arc<ServiceView> {
        Arc::new(ServiceView {
            id: ServiceId::new("n", format!("s{index}"), format!("u{index}")),
            ..ServiceView::default()
        })
    }

    fn error() -> Error {
        Error::new(ErrorKind::InvalidSpec, "no")
    }

    /// The members that a search finds, and the number of writes. A change is the names of the members that it applies.
    fn search(count: usize, bad: &BTreeSet<usize>) -> (Result<BTreeSet<usize>, ()>, usize) {
        let members: Vec<_> = (0..count).map(member).collect();
        let applied = |search: &MemberSearch<Vec<usize>>| -> Vec<usize> {
            (0..count).filter(|index| search.applies(&members[*index])).collect()
        };
        let mut writes = 1;
        let mut search = MemberSearch::new(error(), (0..count).collect(), members.clone());
        let mut done = Vec::new();
        let mut found = BTreeSet::new();
        while !search.is_over() {
            let change = applied(&search);
            let new = if change == done {
                search.accepted()
            } else {
                assert!(!search.is_refused(&change), "it was refused before");
                writes += 1;
                if change.iter().any(|index| bad.contains(index)) {
                    match search.refused(error(), Some(change)) {
                        Refusal::Members(members) | Refusal::GivenUp(members) => members,
                        Refusal::Part => return (Err(()), writes),
                    }
                } else {
                    search.write_accepted();
                    done = change;
                    search.accepted()
                }
            };
            found.extend(new.iter().map(|new| members.iter().position(|member| member == new).unwrap()));
        }
        (Ok(found), writes)
    }

    #[test]
    fn one_bad_member_among_a_hundred_is_found_with_few_writes() {
        for bad in 0..100 {
            let (found, writes) = search(100, &[bad].into());
            assert_eq!(found, Ok([bad].into()));
            assert!(writes <= 9, "{bad}: {writes}");
        }
    }

    #[test]
    fn if_all_members_are_refused_the_part_is_the_reason() {
        let (found, writes) = search(100, &(0..100).collect());
        assert_eq!(found, Err(()));
        assert!(writes <= 19, "{writes}");
        // Alone, it cannot be told from the part.
        assert_eq!(search(1, &[0].into()), (Ok([0].into()), 1));
    }

    proptest! {
        /// However many are bad, no more than so many writes are sent, and a good member waits only if the search was given up.
        #[test]
        fn no_search_has_more_writes_than_allowed(count in 1..60_usize, bad in prop::collection::btree_set(0..60_usize, 0..6)) {
            let bad: BTreeSet<_> = bad.into_iter().filter(|index| *index < count).collect();
            prop_assume!(!bad.is_empty());
            let limit = 2 * count.next_power_of_two().ilog2() as usize + 4;
            let (found, writes) = search(count, &bad);
            // As many may be accepted, and one more at the end.
            prop_assert!(writes <= 2 * limit + 2, "{writes}");
            if let Ok(found) = found {
                prop_assert!(bad.is_subset(&found), "{found:?}");
                if bad.len() <= 2 {
                    prop_assert_eq!(found, bad);
                }
            }
        }
    }

    #[test]
    fn a_member_that_has_changed_is_tried_again() {
        let members: Vec<_> = (0..4).map(member).collect();
        let mut search = MemberSearch::new(error(), 1, members.clone());
        assert!(search.accepted().is_empty());
        assert!(search.applies(&members[1]) && !search.applies(&members[2]));
        let changed = Arc::new(ServiceView {
            deleting: true,
            ..ServiceView::clone(&members[1])
        });
        search.update(&[Arc::clone(&members[0]), Arc::clone(&changed), member(7)]);
        assert!(search.applies(&members[0]) && !search.applies(&changed) && !search.applies(&member(7)));
        // Nothing is known of the others now.
        search.accepted();
        assert!(search.applies(&changed) && search.applies(&member(7)));
        search.accepted();
        assert!(search.is_over());
    }
}
