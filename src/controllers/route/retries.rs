//! RouteChanges that wait for their next try after a failure: each on its own, and all new routes while the table is full.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind,
    controllers::Backoff,
    routes::{CloudRoute, DesiredRoute, RouteChanges},
};
use tokio::time::Instant;

/// Changes of one kind in one pass: Neutron checks so many next hops in about a second, and conditions of the first
/// nodes do not wait for the last ones.
pub(super) const BATCH: usize = 500;

/// For failures that may be over in a moment.
const PASSING: Backoff = Backoff::seconds(1, 60);
/// For failures that last until a person acts.
const LASTING: Backoff = Backoff::seconds(10, 300);
/// After this time, a full table is tried again.
const FULL: Duration = Duration::from_secs(300);

/// The identity of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A route to delete, by its handle.
    Delete(String),
    /// A route to create or to complete: node, destination and next hop.
    Desired(String, String),
}

impl Key {
    /// The key of a route to delete.
    pub(super) fn delete(route: &CloudRoute) -> Self {
        Self::Delete(route.handle.clone())
    }

    /// The key of a desired route.
    pub(super) fn desired(route: &DesiredRoute) -> Self {
        Self::Desired(route.node.view.uid.clone(), format!("{} {}", route.destination, route.next_hop))
    }
}

#[derive(Clone, Debug)]
struct RouteRetry {
    /// `None` once that time has come.
    due: Option<Instant>,
    failures: u32,
    error: Error,
}

impl RouteRetry {
    fn waits(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due > now)
    }
}

/// The changes that wait.
#[derive(Debug, Default)]
pub(super) struct PendingRetries {
    each: HashMap<Key, RouteRetry>,
    full: Option<RouteRetry>,
}

/// The changes of a plan that are applied now.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The changes.
    pub(super) changes: RouteChanges,
    /// The changes that wait, and the errors that they wait for.
    pub(super) waiting: HashMap<Key, Error>,
    /// Whether there is more to do at once afterwards.
    pub(super) more: bool,
}

impl PendingRetries {
    /// When the first of them is tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        let all = self.each.values().chain(&self.full);
        all.filter_map(|retry| retry.due).min()
    }

    /// Selects the changes of the plan that are applied now. Retries of changes that are not planned any more are forgotten.
    pub(super) fn select(&mut self, plan: &RouteChanges, now: Instant) -> Batch {
        let desired = plan.create.iter().chain(&plan.finish).map(Key::desired);
        let planned: HashSet<Key> = plan.delete.iter().map(Key::delete).chain(desired).collect();
        self.each.retain(|key, _| planned.contains(key));
        for retry in self.each.values_mut().filter(|retry| !retry.waits(now)) {
            retry.due = None;
        }
        if plan.create.is_empty() || self.full.as_ref().is_some_and(|full| !full.waits(now)) {
            self.full = None;
        }
        let mut batch = Batch::default();
        batch.changes.delete = self.take(&plan.delete, Key::delete, now, &mut batch);
        let deleting: HashSet<_> = batch.changes.delete.iter().map(|route| &route.handle).collect();
        // Destinations with an old path that is not deleted in this pass.
        let blocked: HashMap<_, _> = plan
            .delete
            .iter()
            .filter(|route| !deleting.contains(&route.handle))
            .map(|route| (route.destination.trunc(), Key::delete(route)))
            .collect();
        let frees_space = !batch.changes.delete.is_empty();
        let mut create = Vec::new();
        for route in &plan.create {
            let error = match (blocked.get(&route.destination), &self.full) {
                (Some(old), _) => batch.waiting.get(old).cloned(),
                (None, Some(full)) if !frees_space => Some(full.error.clone()),
                (None, _) => {
                    create.push(route);
                    None
                }
            };
            let waiting = error.map(|error| (Key::desired(route), error));
            batch.waiting.extend(waiting);
        }
        batch.changes.create = self.take(create, Key::desired, now, &mut batch);
        batch.changes.finish = self.take(&plan.finish, Key::desired, now, &mut batch);
        batch
    }

    /// The first of these changes that do not wait.
    fn take<'a, T: Clone + 'a>(
        &self,
        changes: impl IntoIterator<Item = &'a T>,
        key: impl Fn(&T) -> Key,
        now: Instant,
        batch: &mut Batch,
    ) -> Vec<T> {
        let mut taken = Vec::new();
        for change in changes {
            let key = key(change);
            if let Some(retry) = self.each.get(&key).filter(|retry| retry.waits(now)) {
                batch.waiting.insert(key, retry.error.clone());
            } else if taken.len() < BATCH {
                taken.push(change.clone());
            } else {
                batch.more = true;
            }
        }
        taken
    }

    /// A change was applied.
    pub(super) fn done(&mut self, key: &Key) {
        self.each.remove(key);
        if matches!(key, Key::Delete(_)) {
            // The table is not full any more.
            self.full = None;
        }
    }

    /// The table is full: no new route is tried for a while.
    pub(super) fn full(&mut self, error: &Error, now: Instant) {
        self.full = Some(RouteRetry {
            due: Some(now + FULL),
            failures: 1,
            error: error.clone(),
        });
    }

    /// Whether the table was full the last time.
    pub(super) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// A change failed.
    pub(super) fn failed(&mut self, key: Key, error: &Error, now: Instant) {
        let failures = self.each.get(&key).map_or(0, |retry| retry.failures).saturating_add(1);
        let backoff = match error.kind() {
            ErrorKind::InvalidSpec
            | ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::Unsupported
            | ErrorKind::QuotaExceeded => LASTING,
            _ => PASSING,
        };
        let retry = RouteRetry {
            // Without jitter: changes that failed in one pass are retried in one pass, which reads the table once.
            due: Some(now + backoff.exact_delay(failures)),
            failures,
            error: error.clone(),
        };
        self.each.insert(key, retry);
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

    fn desired(i: usize) -> DesiredRoute {
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

    fn observed(i: usize) -> CloudRoute {
        CloudRoute {
            destination: desired(i).destination,
            next_hop: NextHop::new("10.0.0.9"),
            blackhole: false,
            handle: format!("old-{i}"),
        }
    }

    fn plan(delete: &[usize], create: &[usize]) -> RouteChanges {
        RouteChanges {
            delete: delete.iter().map(|i| observed(*i)).collect(),
            create: create.iter().map(|i| desired(*i)).collect(),
            finish: Vec::new(),
        }
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "no")
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_change_waits_and_the_others_do_not() {
        let now = Instant::now();
        let mut retries = PendingRetries::default();
        let plan = plan(&[], &[1, 2]);
        assert_eq!(retries.select(&plan, now).changes.create.len(), 2);
        retries.failed(Key::desired(&desired(1)), &error(ErrorKind::Unavailable), now);
        let batch = retries.select(&plan, now);
        assert_eq!(batch.changes.create.len(), 1);
        assert_eq!(batch.waiting.len(), 1);
        let due = retries.due().unwrap();
        assert!(due <= now + Duration::from_secs(1));
        assert_eq!(retries.select(&plan, due).changes.create.len(), 2);
        assert_eq!(retries.due(), None, "it is being tried");
        // Longer each time, and forgotten when it is done.
        retries.failed(Key::desired(&desired(1)), &error(ErrorKind::Unavailable), now);
        assert!(retries.due().unwrap() > now + Duration::from_secs(1));
        retries.done(&Key::desired(&desired(1)));
        assert_eq!(retries.due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_failed_together_are_retried_together() {
        let now = Instant::now();
        let mut retries = PendingRetries::default();
        for i in 0..100 {
            retries.failed(Key::desired(&desired(i)), &error(ErrorKind::Unavailable), now);
        }
        let all: Vec<usize> = (0..100).collect();
        let batch = retries.select(&plan(&[], &all), retries.due().unwrap());
        assert_eq!(batch.changes.create.len(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_table_is_left_unchanged_until_a_route_is_deleted() {
        let now = Instant::now();
        let mut retries = PendingRetries::default();
        retries.full(&error(ErrorKind::QuotaExceeded), now);
        let batch = retries.select(&plan(&[], &[1, 2]), now);
        assert!(batch.changes.is_empty());
        assert_eq!(batch.waiting.len(), 2);
        // A route that is deleted frees space in the same pass.
        assert_eq!(retries.select(&plan(&[7], &[1, 2]), now).changes.len(), 3);
        assert_eq!(retries.due(), Some(now + FULL));
        assert_eq!(retries.select(&plan(&[], &[1]), now + FULL).changes.create.len(), 1);
        retries.full(&error(ErrorKind::QuotaExceeded), now);
        retries.done(&Key::delete(&observed(7)));
        assert!(!retries.is_full());
        assert_eq!(retries.select(&plan(&[], &[1]), now).changes.create.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_path_waits_until_the_old_one_is_deleted() {
        let now = Instant::now();
        let mut retries = PendingRetries::default();
        retries.failed(Key::delete(&observed(1)), &error(ErrorKind::Timeout), now);
        let batch = retries.select(&plan(&[1, 2], &[1, 2, 3]), now);
        assert_eq!(batch.changes.delete.len(), 1);
        let destinations: Vec<_> = batch.changes.create.iter().map(|r| r.destination).collect();
        assert_eq!(destinations, [desired(2).destination, desired(3).destination]);
        assert_eq!(batch.waiting.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn large_plans_are_done_in_parts() {
        let now = Instant::now();
        let all: Vec<usize> = (0..1200).collect();
        let mut retries = PendingRetries::default();
        let batch = retries.select(&plan(&all, &all), now);
        assert!(batch.more);
        assert_eq!((batch.changes.delete.len(), batch.changes.create.len()), (BATCH, BATCH));
        for (old, new) in batch.changes.delete.iter().zip(&batch.changes.create) {
            assert_eq!(old.destination, new.destination, "the old path is deleted in the same pass");
        }
        assert!(!retries.select(&plan(&[], &all[..BATCH]), now).more);
    }
}
