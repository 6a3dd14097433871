//! The limit of events about one object, as client-go has it: a burst, and then one in five minutes.
//!
//! Here, the Warnings of each reason have a limit of their own, so that no other event takes their place.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

use super::EventType;

/// So many events about an object are written at once.
const BURST: u32 = 25;
/// After the burst, one event is written in this time.
const REFILL: Duration = Duration::from_secs(300);
/// So many objects and reasons are remembered, as by client-go.
const REMEMBERED: usize = 4096;

/// What the events of one limit have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    component: &'static str,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    /// The reason of a Warning.
    warning: Option<String>,
}

impl EventKey {
    pub(super) fn new(
        component: &'static str,
        object: &ObjectReference,
        kind: EventType,
        reason: &str,
    ) -> Self {
        Self {
            component,
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            warning: match kind {
                EventType::Warning => Some(reason.to_owned()),
                EventType::Normal => None,
            },
        }
    }
}

/// A token bucket. It holds the events that were written and not made up for by time.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    written: u32,
    /// The time up to which `written` was lowered.
    since: Instant,
    last: Instant,
}

impl Bucket {
    /// Lowers `written` by one for each interval that is over.
    fn refill(&mut self, now: Instant) {
        while self.written > 0 && self.since + REFILL <= now {
            self.written -= 1;
            self.since += REFILL;
        }
        if self.written == 0 {
            self.since = now;
        }
    }
}

/// The limits of all objects.
#[derive(Debug, Default)]
pub(super) struct EventLimit(HashMap<EventKey, Bucket>);

impl EventLimit {
    /// Whether one more event is written now.
    pub(super) fn permits(&mut self, key: EventKey, now: Instant) -> bool {
        if self.0.len() >= 2 * REMEMBERED {
            self.forget(now);
        }
        let bucket = self.0.entry(key).or_insert(Bucket {
            written: 0,
            since: now,
            last: now,
        });
        bucket.refill(now);
        bucket.last = now;
        let permits = bucket.written < BURST;
        if permits {
            bucket.written += 1;
        }
        permits
    }

    /// Forgets full buckets, and if many remain, those that were not used for the longest time.
    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, bucket| {
            bucket.refill(now);
            bucket.written > 0
        });
        let mut last_uses: Vec<_> = self.0.values().map(|bucket| bucket.last).collect();
        let surplus = last_uses.len().saturating_sub(REMEMBERED);
        if surplus > 0 {
            let (_, oldest_kept, _) = last_uses.select_nth_unstable(surplus);
            let oldest_kept = *oldest_kept;
            self.0.retain(|_, bucket| bucket.last >= oldest_kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, kind: EventType, reason: &str) -> EventKey {
        let object = ObjectReference {
            kind: Some("Service".to_owned()),
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        };
        EventKey::new("service-controller", &object, kind, reason)
    }

    fn permitted(limit: &mut EventLimit, key: &EventKey, times: usize, now: Instant) -> usize {
        (0..times).filter(|_| limit.permits(key.clone(), now)).count()
    }

    #[test]
    fn a_burst_is_written_and_then_one_event_in_five_minutes() {
        let (mut limit, start) = (EventLimit::default(), Instant::now());
        let updated = key("web", EventType::Normal, "UpdatedLoadBalancer");
        assert_eq!(permitted(&mut limit, &updated, 1000, start), 25);
        assert_eq!(permitted(&mut limit, &updated, 10, start + REFILL / 2), 0);
        assert_eq!(permitted(&mut limit, &updated, 10, start + REFILL), 1);
        assert_eq!(permitted(&mut limit, &updated, 100, start + REFILL * 12), 11);
        assert_eq!(permitted(&mut limit, &updated, 1000, start + REFILL * 100), 25);
    }

    #[test]
    fn a_warning_has_a_limit_of_its_own_for_each_object_and_reason() {
        let (mut limit, now) = (EventLimit::default(), Instant::now());
        let ensured = key("web", EventType::Normal, "EnsuredLoadBalancer");
        let updated = key("web", EventType::Normal, "UpdatedLoadBalancer");
        assert_eq!(permitted(&mut limit, &ensured, 1000, now), 25);
        assert_eq!(permitted(&mut limit, &updated, 1000, now), 0, "one for all reasons");
        for warning in [
            key("web", EventType::Warning, "SyncLoadBalancerFailed"),
            key("web", EventType::Warning, "LoadBalancerPending"),
            key("other", EventType::Warning, "LoadBalancerPending"),
        ] {
            assert_eq!(permitted(&mut limit, &warning, 1000, now), 25, "{warning:?}");
        }
    }

    #[test]
    fn the_memory_of_limits_is_bounded() {
        let (mut limit, start) = (EventLimit::default(), Instant::now());
        let mut now = start;
        for object in 0..20_000 {
            now += Duration::from_millis(1);
            limit.permits(key(&format!("s{object}"), EventType::Normal, "x"), now);
            assert!(limit.0.len() <= 2 * REMEMBERED);
        }
        assert!(limit.0.contains_key(&key("s19999", EventType::Normal, "x")), "the latest are kept");
    }
}
