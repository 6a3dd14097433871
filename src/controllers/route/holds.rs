//! What waits after a failure: each change for itself, and all new routes while the table is full.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind,
    controllers::Backoff,
    routes::{Changes, CloudRoute, DesiredRoute},
};
use tokio::time::Instant;

/// Changes of one kind in one pass: so many next hops Neutron judges in about a second, and conditions of the first
/// nodes do not wait for the last ones.
pub(super) const BATCH: usize = 500;

/// What may be over in a moment.
const PASSING: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};
/// What somebody has to see to.
const LASTING: Backoff = Backoff {
    first: Duration::from_secs(10),
    longest: Duration::from_secs(300),
};
/// How long a full table is believed to be full.
const FULL: Duration = Duration::from_secs(300);

/// A change, by what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A route that goes, by its handle.
    Delete(String),
    /// A route that comes or lacks something: node, destination and next hop.
    Want(String, String),
}

impl Key {
    /// Of a route that goes.
    pub(super) fn delete(route: &CloudRoute) -> Self {
        Self::Delete(route.handle.clone())
    }

    /// Of a route that is wanted.
    pub(super) fn want(route: &DesiredRoute) -> Self {
        Self::Want(
            route.node.view.uid.clone(),
            format!("{} {}", route.destination, route.next_hop),
        )
    }
}

#[derive(Clone, Debug)]
struct Hold {
    /// `None` once that time has come.
    until: Option<Instant>,
    failures: u32,
    error: Error,
}

impl Hold {
    fn lasts(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Holds {
    each: HashMap<Key, Hold>,
    full: Option<Hold>,
}

/// What of a plan is done now.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The changes.
    pub(super) changes: Changes,
    /// What waits, and for what.
    pub(super) waiting: HashMap<Key, Error>,
    /// Whether there is more to do at once afterwards.
    pub(super) more: bool,
}

impl Holds {
    /// When the first of them is to be tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.each
            .values()
            .chain(&self.full)
            .filter_map(|hold| hold.until)
            .min()
    }

    /// Takes from the plan what is done now. What waits for something that is not planned any more is forgotten.
    pub(super) fn select(&mut self, plan: &Changes, now: Instant) -> Batch {
        let planned: HashSet<Key> = plan
            .delete
            .iter()
            .map(Key::delete)
            .chain(plan.create.iter().chain(&plan.finish).map(Key::want))
            .collect();
        self.each.retain(|key, _| planned.contains(key));
        for hold in self.each.values_mut().filter(|hold| !hold.lasts(now)) {
            hold.until = None;
        }
        if plan.create.is_empty() || self.full.as_ref().is_some_and(|full| !full.lasts(now)) {
            self.full = None;
        }
        let mut batch = Batch::default();
        for route in &plan.delete {
            if self.waits(Key::delete(route), now, &mut batch) {
            } else if batch.changes.delete.len() < BATCH {
                batch.changes.delete.push(route.clone());
            } else {
                batch.more = true;
            }
        }
        let deleting: HashSet<_> = batch.changes.delete.iter().map(|route| &route.handle).collect();
        // Destinations with an old path that does not go in this pass.
        let blocked: HashMap<_, _> = plan
            .delete
            .iter()
            .filter(|route| !deleting.contains(&route.handle))
            .map(|route| (route.destination.trunc(), Key::delete(route)))
            .collect();
        let makes_room = !batch.changes.delete.is_empty();
        let mut creates = Vec::new();
        for route in &plan.create {
            let key = Key::want(route);
            if let Some(old) = blocked.get(&route.destination) {
                if let Some(error) = batch.waiting.get(old).cloned() {
                    batch.waiting.insert(key, error);
                }
                continue;
            }
            if let Some(full) = self.full.as_ref().filter(|_| !makes_room) {
                batch.waiting.insert(key, full.error.clone());
                continue;
            }
            if self.waits(key, now, &mut batch) {
            } else if creates.len() < BATCH {
                creates.push(route.clone());
            } else {
                batch.more = true;
            }
        }
        batch.changes.create = creates;
        for route in &plan.finish {
            if self.waits(Key::want(route), now, &mut batch) {
            } else if batch.changes.finish.len() < BATCH {
                batch.changes.finish.push(route.clone());
            } else {
                batch.more = true;
            }
        }
        batch
    }

    fn waits(&self, key: Key, now: Instant, batch: &mut Batch) -> bool {
        let Some(hold) = self.each.get(&key).filter(|hold| hold.lasts(now)) else {
            return false;
        };
        batch.waiting.insert(key, hold.error.clone());
        true
    }

    /// A change was made.
    pub(super) fn done(&mut self, key: &Key) {
        self.each.remove(key);
        if matches!(key, Key::Delete(_)) {
            // There is room again.
            self.full = None;
        }
    }

    /// There is no room: no new route is tried for a while.
    pub(super) fn full(&mut self, error: &Error, now: Instant) {
        self.full = Some(Hold {
            until: Some(now + FULL),
            failures: 1,
            error: error.clone(),
        });
    }

    /// Whether there was no room the last time.
    pub(super) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// A change failed.
    pub(super) fn failed(&mut self, key: Key, error: &Error, now: Instant) {
        let failures = self
            .each
            .get(&key)
            .map_or(0, |hold| hold.failures)
            .saturating_add(1);
        let backoff = match error.kind() {
            ErrorKind::InvalidSpec
            | ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::Unsupported
            | ErrorKind::QuotaExceeded => LASTING,
            _ => PASSING,
        };
        let hold = Hold {
            until: Some(now + backoff.delay(failures)),
            failures,
            error: error.clone(),
        };
        self.each.insert(key, hold);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::sync::Arc;

    use ccm_core::{
        NodeView,
        routes::{NextHop, RouteNode},
    };

    use super::*;

    fn wanted(i: usize) -> DesiredRoute {
        DesiredRoute {
            destination: format!("10.{}.{}.0/24", i / 250, i % 250).parse().unwrap(),
            next_hop: NextHop::new("10.0.0.1"),
            node: Arc::new(RouteNode {
                view: Arc::new(NodeView {
                    uid: format!("uid-{i}"),
                    ..NodeView::default()
                }),
                ..RouteNode::default()
            }),
        }
    }

    fn there(i: usize) -> CloudRoute {
        CloudRoute {
            destination: wanted(i).destination,
            next_hop: NextHop::new("10.0.0.9"),
            blackhole: false,
            handle: format!("old-{i}"),
        }
    }

    fn plan(delete: &[usize], create: &[usize]) -> Changes {
        Changes {
            delete: delete.iter().map(|i| there(*i)).collect(),
            create: create.iter().map(|i| wanted(*i)).collect(),
            finish: Vec::new(),
        }
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "no")
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_waits_and_the_rest_does_not() {
        let now = Instant::now();
        let mut holds = Holds::default();
        let plan = plan(&[], &[1, 2]);
        assert_eq!(holds.select(&plan, now).changes.create.len(), 2);
        holds.failed(Key::want(&wanted(1)), &error(ErrorKind::Unavailable), now);
        let batch = holds.select(&plan, now);
        assert_eq!(batch.changes.create.len(), 1);
        assert_eq!(batch.waiting.len(), 1);
        let due = holds.due().unwrap();
        assert!(due <= now + Duration::from_secs(1));
        assert_eq!(holds.select(&plan, due).changes.create.len(), 2);
        assert_eq!(holds.due(), None, "it is being tried");
        // Longer each time, and forgotten when it is done.
        holds.failed(Key::want(&wanted(1)), &error(ErrorKind::Unavailable), now);
        assert!(holds.due().unwrap() > now + Duration::from_secs(1));
        holds.done(&Key::want(&wanted(1)));
        assert_eq!(holds.due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_table_is_left_in_peace_until_something_goes() {
        let now = Instant::now();
        let mut holds = Holds::default();
        holds.full(&error(ErrorKind::QuotaExceeded), now);
        let batch = holds.select(&plan(&[], &[1, 2]), now);
        assert!(batch.changes.is_empty());
        assert_eq!(batch.waiting.len(), 2);
        // A route that goes makes room in the same pass.
        assert_eq!(holds.select(&plan(&[7], &[1, 2]), now).changes.len(), 3);
        assert_eq!(holds.due(), Some(now + FULL));
        assert_eq!(holds.select(&plan(&[], &[1]), now + FULL).changes.create.len(), 1);
        holds.full(&error(ErrorKind::QuotaExceeded), now);
        holds.done(&Key::delete(&there(7)));
        assert!(!holds.is_full());
        assert_eq!(holds.select(&plan(&[], &[1]), now).changes.create.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_path_waits_for_the_old_one_to_go() {
        let now = Instant::now();
        let mut holds = Holds::default();
        holds.failed(Key::delete(&there(1)), &error(ErrorKind::Timeout), now);
        let batch = holds.select(&plan(&[1, 2], &[1, 2, 3]), now);
        assert_eq!(batch.changes.delete.len(), 1);
        let destinations: Vec<_> = batch.changes.create.iter().map(|r| r.destination).collect();
        assert_eq!(destinations, [wanted(2).destination, wanted(3).destination]);
        assert_eq!(batch.waiting.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn large_plans_are_done_in_parts() {
        let now = Instant::now();
        let all: Vec<usize> = (0..1200).collect();
        let mut holds = Holds::default();
        let batch = holds.select(&plan(&all, &all), now);
        assert!(batch.more);
        assert_eq!(
            (batch.changes.delete.len(), batch.changes.create.len()),
            (BATCH, BATCH)
        );
        for (old, new) in batch.changes.delete.iter().zip(&batch.changes.create) {
            assert_eq!(
                old.destination, new.destination,
                "the old path goes in the same pass"
            );
        }
        assert!(!holds.select(&plan(&[], &all[..BATCH]), now).more);
    }
}
