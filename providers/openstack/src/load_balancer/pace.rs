//! When to look whether Octavia is done.
//!
//! Every poll is a request, and every poll that comes late makes somebody wait. The polls of one change come at intervals
//! that grow with the time it has taken: none comes later than [`latest`] allows, whatever was learned. How long the last
//! change of the kind took only places one poll just after that time.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{key::Key, steps::Action};

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Machines are made.
    Create,
    /// Machines are told something else.
    Update,
    /// Machines go.
    Delete,
}

impl Kind {
    pub(super) fn of(action: &Action) -> Self {
        match action {
            Action::CreateBalancer(_) => Self::Create,
            Action::DeleteBalancer { .. } => Self::Delete,
            _ => Self::Update,
        }
    }

    /// The first poll, as long as nothing was learned.
    fn first(self) -> Duration {
        match self {
            Self::Update => Duration::from_millis(1100),
            Self::Create | Self::Delete => FIRST.1,
        }
    }

    /// The shortest interval between two polls.
    fn step(self) -> Duration {
        match self {
            Self::Update => Duration::from_millis(750),
            Self::Create | Self::Delete => STEP,
        }
    }
}

/// Intervals are this share of the time that has passed, and this much more.
const SHARE: f64 = 0.15;
const STEP: Duration = Duration::from_secs(2);
/// After the usual time, or if nothing was learned, no interval is longer than this.
const LONGEST_STEP: Duration = Duration::from_secs(5);
/// A first poll comes no earlier and no later, whatever was learned.
const FIRST: (Duration, Duration) = (Duration::from_millis(500), STEP);
/// What was done at the first poll after the usual time may have been done before.
const SOONER: f64 = 0.95;
/// Just after the usual time.
const LATER: f64 = 1.04;

/// After the poll at `last`, the next one comes at this time at the latest; both count from the acceptance.
fn latest(last: Duration) -> Duration {
    last + last.mul_f64(SHARE) + STEP
}

/// What is waited for, and what was seen.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waits: HashMap<Key, Waiting>,
    /// Load balancers that somebody else left pending, by id.
    pending: HashMap<String, Pending>,
    usual: HashMap<Kind, Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    kind: Kind,
    since: Instant,
    /// After this long it was not done.
    not_yet: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    since: Instant,
    polled: Instant,
}

/// What was not polled for so long is not waited for any more.
const FORGOTTEN: Duration = Duration::from_secs(300);

impl Pace {
    /// Octavia has begun: poll after this long.
    pub(super) fn begins(&mut self, key: &Key, kind: Kind) -> Duration {
        let waiting = Waiting {
            kind,
            since: Instant::now(),
            not_yet: None,
        };
        self.waits.insert(key.clone(), waiting);
        let usual = self.just_after_usual(kind);
        usual.unwrap_or_else(|| kind.first()).clamp(FIRST.0, FIRST.1)
    }

    fn just_after_usual(&self, kind: Kind) -> Option<Duration> {
        Some(self.usual.get(&kind)?.mul_f64(LATER))
    }

    /// Since when it is waited for this, and for how many there are polls.
    pub(super) fn since(&self, key: &Key) -> (Option<Instant>, usize) {
        let since = self.waits.get(key).map(|waiting| waiting.since);
        (since, self.waits.len() + self.pending.len())
    }

    /// A load balancer that somebody else left pending is polled now: since when it is, and for how many there are polls.
    pub(super) fn polls_pending(&mut self, id: &str) -> (Instant, usize) {
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

    /// It is not pending any more.
    pub(super) fn settled(&mut self, id: &str) {
        self.pending.remove(id);
    }

    /// A poll that began then says that it is not done: poll again after this long.
    pub(super) fn not_yet(&mut self, key: &Key, looked: Instant) -> Duration {
        let Some(waiting) = self.waits.get_mut(key) else {
            return Kind::Update.step();
        };
        let (kind, after) = (waiting.kind, looked.saturating_duration_since(waiting.since));
        waiting.not_yet = Some(after);
        match self.just_after_usual(kind) {
            // Before, a poll is of little use.
            Some(usual) if usual > after => usual.min(latest(after)) - after,
            _ => {
                let step = kind.step() + after.mul_f64(SHARE);
                step.min(LONGEST_STEP)
            }
        }
    }

    /// It is over; `done`: as it was to be, by a poll that began then.
    pub(super) fn ends(&mut self, key: &Key, done: Option<Instant>) {
        let Some(waiting) = self.waits.remove(key) else {
            return;
        };
        let Some(looked) = done else { return };
        let after = looked.saturating_duration_since(waiting.since);
        let sooner = after.mul_f64(SOONER);
        let took = match (waiting.not_yet, self.usual.get(&waiting.kind)) {
            (None, _) => sooner,
            // Not done at the usual time: a little later.
            (Some(not_yet), Some(usual)) if not_yet >= *usual => not_yet,
            (Some(not_yet), Some(usual)) if after >= *usual => not_yet.max(sooner),
            (Some(not_yet), _) => (not_yet + after) / 2,
        };
        self.usual.insert(waiting.kind, took);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const KINDS: [Kind; 3] = [Kind::Create, Kind::Update, Kind::Delete];

    /// When it is polled until something is done that takes so long.
    async fn polls(pace: &mut Pace, kind: Kind, takes: Duration) -> Vec<Duration> {
        let key = Key::Balancer("b".into());
        let begun = Instant::now();
        let mut wait = pace.begins(&key, kind);
        let mut polls = Vec::new();
        loop {
            tokio::time::advance(wait).await;
            polls.push(begun.elapsed());
            if begun.elapsed() >= takes {
                pace.ends(&key, Some(Instant::now()));
                return polls;
            }
            wait = pace.not_yet(&key, Instant::now());
        }
    }

    proptest! {
        /// Whatever the changes before took.
        #[test]
        fn no_poll_comes_later_than_the_law_allows(
            before in prop::collection::vec((0..3_usize, 0..300_000_u64), 0..6),
            kind in 0..3_usize,
            takes in 0..600_000_u64,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let mut pace = Pace::default();
                for (kind, takes) in before {
                    polls(&mut pace, KINDS[kind], Duration::from_millis(takes)).await;
                }
                let polls = polls(&mut pace, KINDS[kind], Duration::from_millis(takes)).await;
                // Timers have a resolution of a millisecond.
                let timer = Duration::from_millis(2);
                prop_assert!(polls[0] <= Duration::from_secs(2) + timer, "{:?}", polls);
                for pair in polls.windows(2) {
                    let law = pair[0].mul_f64(1.15) + Duration::from_secs(2) + timer;
                    prop_assert!(pair[1] <= law, "{:?}", polls);
                    prop_assert!(pair[1] > pair[0], "{:?}", polls);
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn polls_are_few_and_hardly_late() {
        for (seconds, most, late) in [(1, 1, 1), (7, 4, 3), (30, 9, 3), (90, 21, 5)] {
            let takes = Duration::from_secs(seconds);
            let polls = polls(&mut Pace::default(), Kind::Create, takes).await;
            assert!(polls.len() <= most, "{seconds} s: {polls:?}");
            let after = *polls.last().unwrap() - takes;
            assert!(after <= Duration::from_secs(late), "{seconds} s: {after:?} late");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_learned_places_a_poll_just_after_the_usual_time() {
        let mut pace = Pace::default();
        let takes = Duration::from_secs(25);
        polls(&mut pace, Kind::Create, takes).await;
        let mut late = Duration::ZERO;
        for _ in 0..20 {
            let polls = polls(&mut pace, Kind::Create, takes).await;
            assert!(polls.len() <= 9, "{polls:?}");
            late += *polls.last().unwrap() - takes;
        }
        assert!(late / 20 <= Duration::from_secs(2), "{late:?} in 20");
        // Another kind is another thing.
        let update = polls(&mut pace, Kind::Update, Duration::from_secs(1)).await;
        assert_eq!(update.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_slow_creation_does_not_make_the_next_one_late() {
        let mut pace = Pace::default();
        polls(&mut pace, Kind::Create, Duration::from_secs(24)).await;
        let takes = Duration::from_secs(7);
        let polls = polls(&mut pace, Kind::Create, takes).await;
        assert!(
            *polls.last().unwrap() <= takes + Duration::from_secs(3),
            "{polls:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_ended_badly_teaches_nothing() {
        let mut pace = Pace::default();
        let key = Key::Balancer("b".into());
        let first = pace.begins(&key, Kind::Create);
        assert_eq!(pace.since(&key).1, 1);
        tokio::time::advance(Duration::from_millis(600)).await;
        pace.ends(&key, None);
        assert_eq!(pace.since(&key), (None, 0));
        assert_eq!(pace.begins(&key, Kind::Create), first);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_polled_any_more_is_not_counted() {
        let mut pace = Pace::default();
        let (since, count) = pace.polls_pending("a");
        assert_eq!(count, 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(pace.polls_pending("a"), (since, 1));
        assert_eq!(pace.polls_pending("b").1, 2);
        pace.settled("b");
        assert_eq!(pace.polls_pending("a").1, 1);
        tokio::time::advance(FORGOTTEN).await;
        assert_eq!(pace.polls_pending("b").1, 1);
    }
}
