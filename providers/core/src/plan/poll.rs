//! When to poll the cloud for the end of a change.
//!
//! Each poll is a request, and a poll that comes late delays the Service. The polls of one change come at intervals that
//! grow with the time that it has taken: none comes later than [`latest`] allows. How long earlier changes of the kind took
//! only places polls: one in the middle of the known range, until the range is narrow, and one at its end.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

use crate::load_balancer::Effect;

/// The first polls of one kind of change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PollTiming {
    /// The first poll, as long as no change of the kind has ended. At least 0.5 s, at most 2 s.
    pub first: Duration,
    /// The shortest interval between two polls.
    pub interval: Duration,
    /// Each interval is longer by this share of the time that the change has taken. At most 0.15.
    pub growth: f64,
    /// How long such a change usually takes, as long as none has ended. `None`: not known.
    pub usual: Option<Duration>,
}

impl Default for PollTiming {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            interval: INTERVAL,
            growth: GROWTH,
            usual: None,
        }
    }
}

/// No interval grows faster.
const GROWTH: f64 = 0.15;
const INTERVAL: Duration = Duration::from_secs(2);
/// After the usual time, or as long as it is not known, no interval is longer than this.
const LONGEST_INTERVAL: Duration = Duration::from_millis(5500);
/// The first poll comes no earlier and no later.
const FIRST: (Duration, Duration) = (Duration::from_millis(500), INTERVAL);
/// A range that is wider than a second and than this share of its end is narrowed down.
const NARROW: f64 = 0.1;
/// The start of a range moves forward by this share with each change: the next one may be faster.
const SOONER: f64 = 0.95;
/// A poll comes just after the end of a range, since the durations of changes vary.
const LATER: f64 = 1.04;
/// Changes that were not polled for this long are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// After the poll at `last`, the next one comes at this time at the latest; both count from the acceptance.
fn latest(last: Duration) -> Duration {
    last + last.mul_f64(GROWTH) + INTERVAL
}

/// The poll intervals of all changes in progress. `K`: the keys of the parts, or the operations if a part can have several.
#[derive(Debug)]
pub struct PollIntervals<K> {
    timing: fn(Effect) -> PollTiming,
    waits: HashMap<K, Waiting>,
    /// Changes by others, by the ID of the object.
    pending: HashMap<String, Pending>,
    /// How long a change of the kind usually takes.
    usual: HashMap<Effect, Range>,
}

/// A change had not ended at the first of these times, and it had at the second.
#[derive(Clone, Copy, Debug)]
struct Range {
    not_yet: Duration,
    ended: Duration,
}

impl Range {
    /// The best time for a poll after `after`. `None`: the change takes longer than usual.
    fn next_poll(self, after: Duration) -> Option<Duration> {
        let width = self.ended.saturating_sub(self.not_yet);
        let is_wide = width > self.ended.mul_f64(NARROW).max(Duration::from_secs(1));
        let middle = is_wide.then(|| self.not_yet + width / 2);
        let end = self.ended.mul_f64(LATER);
        middle.into_iter().chain([end]).find(|time| *time > after)
    }

    /// The range after another change whose duration was in `other`.
    fn and(self, other: Self) -> Self {
        if other.not_yet >= self.ended || other.ended <= self.not_yet {
            return other;
        }
        Self {
            not_yet: self.not_yet.mul_f64(SOONER).max(other.not_yet),
            ended: self.ended.min(other.ended),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    kind: Effect,
    since: Instant,
    /// After this long it had not ended.
    not_yet: Option<Duration>,
}

impl Waiting {
    /// The time of the last poll, or of the acceptance.
    fn polled(&self) -> Instant {
        self.since + self.not_yet.unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    since: Instant,
    polled: Instant,
}

impl<K: Clone + Eq + Hash> PollIntervals<K> {
    /// Intervals without a change in progress. `timing`: the timing of each kind of change.
    #[must_use]
    pub fn new(timing: fn(Effect) -> PollTiming) -> Self {
        Self {
            timing,
            waits: HashMap::new(),
            pending: HashMap::new(),
            usual: HashMap::new(),
        }
    }

    /// The cloud accepted a change of the part. Returns the time to the first poll.
    pub fn accepted(&mut self, key: &K, kind: Effect) -> Duration {
        let now = Instant::now();
        let waiting = Waiting {
            kind,
            since: now,
            not_yet: None,
        };
        // The engine no longer polls a change that has reached its time limit.
        self.waits
            .retain(|_, waiting| now.saturating_duration_since(waiting.polled()) < FORGOTTEN);
        self.waits.insert(key.clone(), waiting);
        let usual = self.usual(kind, Duration::ZERO);
        usual.unwrap_or_else(|| (self.timing)(kind).first).clamp(FIRST.0, FIRST.1)
    }

    /// The best time for a poll after `after`, as long as the change takes no longer than usual.
    fn usual(&self, kind: Effect, after: Duration) -> Option<Duration> {
        let usual = (self.timing)(kind).usual.map(|usual| Range {
            not_yet: usual,
            ended: usual,
        });
        self.usual.get(&kind).copied().or(usual)?.next_poll(after)
    }

    /// When the part's change was accepted, and the number of all changes that are polled.
    #[must_use]
    pub fn since(&self, key: &K) -> (Option<Instant>, usize) {
        let since = self.waits.get(key).map(|waiting| waiting.since);
        (since, self.waits.len() + self.pending.len())
    }

    /// Records a poll of an object that others are changing. Returns when it was first polled, and the number of all changes
    /// that are polled.
    pub fn polled_pending(&mut self, id: &str) -> (Instant, usize) {
        let now = Instant::now();
        self.pending
            .retain(|_, pending| now.saturating_duration_since(pending.polled) < FORGOTTEN);
        let new = Pending {
            since: now,
            polled: now,
        };
        let pending = self.pending.entry(id.to_owned()).or_insert(new);
        pending.polled = now;
        (pending.since, self.waits.len() + self.pending.len())
    }

    /// Others have ended their change of the object.
    pub fn pending_ended(&mut self, id: &str) {
        self.pending.remove(id);
    }

    /// The poll that began at `polled` found the change still in progress. Returns the time to the next poll.
    pub fn not_ended(&mut self, key: &K, polled: Instant) -> Duration {
        let Some(waiting) = self.waits.get_mut(key) else {
            return (self.timing)(Effect::Change).interval;
        };
        let (kind, after) = (waiting.kind, polled.saturating_duration_since(waiting.since));
        waiting.not_yet = Some(after);
        match self.usual(kind, after) {
            // Before the usual time, a poll is of little use.
            Some(usual) => usual.min(latest(after)) - after,
            None => {
                let timing = (self.timing)(kind);
                (timing.interval + after.mul_f64(timing.growth)).min(LONGEST_INTERVAL)
            }
        }
    }

    /// The change has ended. `success`: when the poll began that found it successful; `None`: it failed.
    pub fn ended(&mut self, key: &K, success: Option<Instant>) {
        let Some(waiting) = self.waits.remove(key) else {
            return;
        };
        let Some(polled) = success else { return };
        let took = Range {
            not_yet: waiting.not_yet.unwrap_or_default(),
            ended: polled.saturating_duration_since(waiting.since),
        };
        let known = self.usual.get(&waiting.kind);
        self.usual.insert(waiting.kind, known.map_or(took, |known| known.and(took)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const KINDS: [Effect; 3] = [Effect::Create, Effect::Change, Effect::Delete];

    fn intervals() -> PollIntervals<&'static str> {
        PollIntervals::new(|kind| match kind {
            Effect::Change => PollTiming {
                first: Duration::from_millis(1100),
                interval: Duration::from_millis(750),
                ..PollTiming::default()
            },
            Effect::Create | Effect::Delete => PollTiming::default(),
        })
    }

    /// The times of the polls until a change has ended that takes this long.
    async fn polls(
        intervals: &mut PollIntervals<&'static str>,
        kind: Effect,
        takes: Duration,
    ) -> Vec<Duration> {
        let key = "b";
        let begun = Instant::now();
        let mut wait = intervals.accepted(&key, kind);
        let mut polls = Vec::new();
        loop {
            tokio::time::advance(wait).await;
            polls.push(begun.elapsed());
            if begun.elapsed() >= takes {
                intervals.ended(&key, Some(Instant::now()));
                return polls;
            }
            wait = intervals.not_ended(&key, Instant::now());
        }
    }

    proptest! {
        /// However long earlier changes took.
        #[test]
        fn no_poll_comes_later_than_allowed(
            before in prop::collection::vec((0..3_usize, 0..300_000_u64), 0..6),
            kind in 0..3_usize,
            takes in 0..600_000_u64,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let mut intervals = intervals();
                for (kind, takes) in before {
                    polls(&mut intervals, KINDS[kind], Duration::from_millis(takes)).await;
                }
                let polls = polls(&mut intervals, KINDS[kind], Duration::from_millis(takes)).await;
                // Timers have a resolution of a millisecond.
                let timer = Duration::from_millis(2);
                prop_assert!(polls[0] <= Duration::from_secs(2) + timer, "{:?}", polls);
                for pair in polls.windows(2) {
                    let latest = pair[0].mul_f64(1.15) + Duration::from_secs(2) + timer;
                    prop_assert!(pair[1] <= latest, "{:?}", polls);
                    prop_assert!(pair[1] > pair[0], "{:?}", polls);
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn polls_are_few_and_hardly_late() {
        for (seconds, most, late) in [(1, 1, 0), (7, 4, 2), (30, 9, 1), (90, 20, 1)] {
            let takes = Duration::from_secs(seconds);
            let polls = polls(&mut intervals(), Effect::Create, takes).await;
            assert!(polls.len() <= most, "{seconds} s: {polls:?}");
            let after = *polls.last().unwrap() - takes;
            assert!(after <= Duration::from_secs(late), "{seconds} s: {after:?} late");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_comes_just_after_the_usual_time() {
        let mut intervals = intervals();
        let takes = Duration::from_secs(25);
        polls(&mut intervals, Effect::Create, takes).await;
        let mut late = Duration::ZERO;
        for _ in 0..20 {
            let polls = polls(&mut intervals, Effect::Create, takes).await;
            assert!(polls.len() <= 10, "{polls:?}");
            late += *polls.last().unwrap() - takes;
        }
        assert!(late / 20 <= Duration::from_millis(1600), "{late:?} in 20");
        // Other kinds have their own usual time.
        let update = polls(&mut intervals, Effect::Change, Duration::from_secs(1)).await;
        assert_eq!(update.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_slow_creation_does_not_delay_the_next_one() {
        let mut intervals = intervals();
        polls(&mut intervals, Effect::Create, Duration::from_secs(24)).await;
        let takes = Duration::from_secs(7);
        let polls = polls(&mut intervals, Effect::Create, takes).await;
        assert!(*polls.last().unwrap() <= takes + Duration::from_secs(3), "{polls:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_does_not_change_the_usual_time() {
        let mut intervals = intervals();
        let key = "b";
        let first = intervals.accepted(&key, Effect::Create);
        assert_eq!(intervals.since(&key).1, 1);
        tokio::time::advance(Duration::from_millis(600)).await;
        intervals.ended(&key, None);
        assert_eq!(intervals.since(&key), (None, 0));
        assert_eq!(intervals.accepted(&key, Effect::Create), first);
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_are_not_polled_any_more_are_not_counted() {
        let mut intervals = intervals();
        let (since, count) = intervals.polled_pending("a");
        assert_eq!(count, 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(intervals.polled_pending("a"), (since, 1));
        assert_eq!(intervals.polled_pending("b").1, 2);
        intervals.pending_ended("b");
        assert_eq!(intervals.polled_pending("a").1, 1);
        tokio::time::advance(FORGOTTEN).await;
        assert_eq!(intervals.polled_pending("b").1, 1);
        intervals.pending_ended("b");
        intervals.accepted(&"c", Effect::Create);
        tokio::time::advance(FORGOTTEN / 2).await;
        intervals.not_ended(&"c", Instant::now());
        tokio::time::advance(FORGOTTEN / 2).await;
        intervals.accepted(&"d", Effect::Create);
        assert!(matches!(intervals.since(&"c"), (Some(_), 2)));
        tokio::time::advance(FORGOTTEN).await;
        intervals.accepted(&"d", Effect::Create);
        assert_eq!(intervals.since(&"c"), (None, 1));
    }
}
