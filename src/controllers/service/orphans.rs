//! Orphans: load balancers, listeners and security groups whose Service does not exist.
//!
//! A list of Services may have lost entries: etcd was restored from a snapshot, the cluster was cloned, a listing was
//! stale. So orphans are reported and left unchanged. Only with `--delete-orphaned-load-balancers` are load balancers
//! deleted, an hour after they were first seen without their Service, and slowly when there are many.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ccm_core::load_balancer::{OrphanPart, PartKey};
use tokio::time::Instant;

use crate::config::OrphanConfig;

/// If more deletable orphans than this exist, they are deleted one by one, ..
const BRAKE: usize = 3;
/// .. with this time between two of them.
const BRAKE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct KnownOrphan {
    since: Instant,
    is_reported: bool,
}

/// The orphans of the last discovery, and what was decided about them.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    known: BTreeMap<OrphanPart, KnownOrphan>,
    config: OrphanConfig,
    /// Parts that a pass may delete.
    permitted: BTreeSet<PartKey>,
    is_braking: bool,
    last_permitted: Option<Instant>,
}

/// The consequence of a discovery.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Due {
    /// Orphans to report.
    pub(super) report: Vec<OrphanPart>,
    /// Parts to delete.
    pub(super) delete: Vec<PartKey>,
}

impl Orphans {
    pub(super) fn new(config: OrphanConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Whether orphans may be deleted.
    pub(super) fn deletes(&self) -> bool {
        self.config.delete
    }

    /// Records the orphans of a discovery. `complete`: it knew of every Service.
    pub(super) fn listed(&mut self, listed: Vec<OrphanPart>, complete: bool, at: Instant) -> Due {
        let mut before = std::mem::take(&mut self.known);
        for orphan in listed {
            let known = before.remove(&orphan).unwrap_or(KnownOrphan {
                since: at,
                is_reported: false,
            });
            self.known.insert(orphan, known);
        }
        let parts = self.deletable().map(|(orphan, _)| orphan.part.clone());
        let deletable: BTreeSet<_> = parts.collect();
        self.permitted.retain(|part| deletable.contains(part));
        self.is_braking = deletable.len() > BRAKE || (self.is_braking && !deletable.is_empty());
        if !complete {
            return Due::default();
        }
        let mut report = Vec::new();
        for (orphan, known) in &mut self.known {
            if !known.is_reported && at >= known.since + self.config.report_after {
                known.is_reported = true;
                report.push(orphan.clone());
            }
        }
        let mut delete = Vec::new();
        while let Some((due, part)) = self.next_deletion()
            && due <= at
        {
            self.last_permitted = Some(at);
            self.permitted.insert(part.clone());
            delete.push(part);
        }
        Due { report, delete }
    }

    /// Services vanished in a listing: nothing is deleted before all of the waiting time has passed again.
    pub(super) fn restart(&mut self, at: Instant) {
        self.permitted.clear();
        for known in self.known.values_mut() {
            known.since = at;
        }
    }

    /// A pass may not delete this part before the next discovery permits it again.
    pub(super) fn postpone(&mut self, part: &PartKey) {
        self.permitted.remove(part);
    }

    /// Whether a pass may delete this part.
    pub(super) fn permits(&self, part: &PartKey) -> bool {
        self.permitted.contains(part)
    }

    /// When the next discovery is due for them.
    pub(super) fn due(&self) -> Option<Instant> {
        let unreported = self.known.values().filter(|known| !known.is_reported);
        let report = unreported.map(|known| known.since + self.config.report_after).min();
        let delete = self.next_deletion().map(|(due, _)| due);
        report.into_iter().chain(delete).min()
    }

    fn deletable(&self) -> impl Iterator<Item = (&OrphanPart, &KnownOrphan)> {
        self.known.iter().filter(|(orphan, _)| orphan.deletable)
    }

    fn next_deletion(&self) -> Option<(Instant, PartKey)> {
        if !self.config.delete {
            return None;
        }
        let waiting = self.deletable().filter(|(orphan, _)| !self.permitted.contains(&orphan.part));
        let (orphan, known) = waiting.min_by_key(|(_, known)| known.since)?;
        let mut due = known.since + self.config.delete_after;
        if self.is_braking
            && let Some(last) = self.last_permitted
        {
            due = due.max(last + BRAKE_INTERVAL);
        }
        Some((due, orphan.part.clone()))
    }

    /// All orphans, and when each was observed first.
    pub(super) fn all(&self) -> impl Iterator<Item = (&OrphanPart, Instant)> {
        self.known.iter().map(|(orphan, known)| (orphan, known.since))
    }
}

/// The consequence for an orphan, as text.
pub(super) fn consequence(orphan: &OrphanPart, deletes: bool) -> &'static str {
    match (orphan.deletable, deletes) {
        (true, true) => "it is deleted when its Service has been missing for an hour",
        (true, false) => "it is left unchanged; --delete-orphaned-load-balancers would delete it",
        (false, _) => "it is left unchanged; if nothing needs it, delete it in the cloud",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const REPORT_AFTER: Duration = Duration::from_secs(120);

    fn state(delete: bool) -> Orphans {
        Orphans::new(OrphanConfig {
            delete,
            report_after: REPORT_AFTER,
            delete_after: HOUR,
        })
    }

    fn orphan(number: usize) -> OrphanPart {
        OrphanPart {
            part: PartKey::new(format!("lb/{number}")),
            what: format!("load balancer {number}"),
            deletable: true,
        }
    }

    fn part(number: usize) -> PartKey {
        PartKey::new(format!("lb/{number}"))
    }

    #[test]
    fn an_orphan_is_reported_once_and_left_unchanged() {
        let start = Instant::now();
        let mut orphans = state(false);
        assert_eq!(orphans.listed(vec![orphan(1)], true, start), Due::default());
        let later = start + REPORT_AFTER;
        assert_eq!(orphans.due(), Some(later));
        let incomplete = orphans.listed(vec![orphan(1)], false, later);
        assert_eq!(incomplete, Due::default(), "not all Services are known");
        assert_eq!(orphans.listed(vec![orphan(1)], true, later).report, [orphan(1)]);
        for hours in 0..3 {
            let due = orphans.listed(vec![orphan(1)], true, later + HOUR * hours);
            assert_eq!(due, Due::default());
        }
        assert_eq!(orphans.due(), None);
        assert!(!orphans.permits(&part(1)));
    }

    #[test]
    fn with_the_flag_it_is_deleted_after_an_hour_that_lost_services_begin_again() {
        let start = Instant::now();
        let mut orphans = state(true);
        orphans.listed(vec![orphan(1)], true, start);
        orphans.listed(vec![orphan(1)], true, start + REPORT_AFTER);
        let middle = start + HOUR / 2;
        orphans.restart(middle);
        let early = orphans.listed(vec![orphan(1)], true, start + HOUR);
        assert!(early.delete.is_empty() && !orphans.permits(&part(1)));
        assert_eq!(orphans.due(), Some(middle + HOUR));
        let due = orphans.listed(vec![orphan(1)], true, middle + HOUR);
        assert_eq!(due.delete, [part(1)]);
        assert!(orphans.permits(&part(1)));
        let again = orphans.listed(vec![orphan(1)], true, middle + HOUR);
        assert!(again.delete.is_empty(), "deleted once");
        orphans.restart(middle + HOUR);
        assert!(!orphans.permits(&part(1)), "the permission is revoked");
    }

    #[test]
    fn an_orphan_whose_service_appears_is_none() {
        let start = Instant::now();
        let mut orphans = state(true);
        orphans.listed(vec![orphan(1)], true, start);
        orphans.listed(vec![orphan(1)], true, start + HOUR);
        orphans.listed(Vec::new(), true, start + HOUR);
        assert!(!orphans.permits(&part(1)));
        let due = orphans.listed(vec![orphan(1)], true, start + HOUR);
        assert!(due.delete.is_empty(), "the hour begins again");
    }

    #[test]
    fn many_are_deleted_one_a_minute() {
        let start = Instant::now();
        let mut orphans = state(true);
        let mut all: Vec<_> = (0..5).map(orphan).collect();
        orphans.listed(all.clone(), true, start);
        let mut now = start + HOUR;
        // The brake stays on until none is left.
        for number in 0..5 {
            assert_eq!(orphans.listed(all.clone(), true, now).delete, [part(number)]);
            all.remove(0);
            let too_early = orphans.listed(all.clone(), true, now + BRAKE_INTERVAL / 2);
            assert!(too_early.delete.is_empty());
            now += BRAKE_INTERVAL;
            assert_eq!(orphans.due(), (number < 4).then_some(now));
        }
        let mut orphans = state(true);
        let few: Vec<_> = (0..3).map(orphan).collect();
        orphans.listed(few.clone(), true, start);
        assert_eq!(orphans.listed(few, true, start + HOUR).delete.len(), 3);
    }
}
