//! When to look whether Octavia is done.
//!
//! Every look is a request, and every look that comes late makes somebody wait. How long changes take differs from cloud
//! to cloud by a factor of ten, and hardly within one: so the first look comes when the last changes of the kind were
//! done, and the next ones follow closely.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{key::Key, steps::Change};

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
    pub(super) fn of(change: &Change) -> Self {
        match change {
            Change::CreateBalancer(_) => Self::Create,
            Change::DeleteBalancer { .. } => Self::Delete,
            _ => Self::Update,
        }
    }

    /// How long it takes, as long as nothing was seen.
    fn guess(self) -> Duration {
        match self {
            Self::Create => Duration::from_secs(4),
            Self::Update => Duration::from_millis(1100),
            Self::Delete => Duration::from_secs(3),
        }
    }

    /// The shortest time between two looks.
    fn step(self) -> Duration {
        match self {
            Self::Create => Duration::from_millis(1750),
            Self::Update => Duration::from_millis(750),
            Self::Delete => Duration::from_secs(2),
        }
    }
}

/// What takes long is looked at after a longer while: late by this share at most.
const SHARE: f64 = 0.15;
/// But no longer than this.
const LONGEST_STEP: Duration = Duration::from_secs(5);
/// A first look comes no earlier and no later, whatever was seen before.
const FIRST: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// What was done at the first look may have been done before.
const SOONER: f64 = 0.95;

/// What is waited for, and what was seen.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waits: HashMap<Key, Waiting>,
    usual: HashMap<Kind, Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    kind: Kind,
    since: Instant,
    /// After this long it was not done.
    not_yet: Option<Duration>,
}

impl Pace {
    /// Octavia has begun: look after this long.
    pub(super) fn begins(&mut self, key: &Key, kind: Kind) -> Duration {
        let waiting = Waiting {
            kind,
            since: Instant::now(),
            not_yet: None,
        };
        self.waits.insert(key.clone(), waiting);
        let usual = self.usual.get(&kind).copied();
        usual.unwrap_or_else(|| kind.guess()).clamp(FIRST.0, FIRST.1)
    }

    /// Since when it is waited for this, and for how many there are looks.
    pub(super) fn since(&self, key: &Key) -> (Option<Instant>, usize) {
        let since = self.waits.get(key).map(|waiting| waiting.since);
        (since, self.waits.len())
    }

    /// A look that began then says that it is not done: look again after this long.
    pub(super) fn not_yet(&mut self, key: &Key, looked: Instant) -> Duration {
        let Some(waiting) = self.waits.get_mut(key) else {
            return Kind::Update.step();
        };
        let after = looked.saturating_duration_since(waiting.since);
        waiting.not_yet = Some(after);
        let step = waiting.kind.step();
        after.mul_f64(SHARE).clamp(step, LONGEST_STEP.max(step))
    }

    /// It is over; `done`: as it was to be, by a look that began then.
    pub(super) fn ends(&mut self, key: &Key, done: Option<Instant>) {
        let Some(waiting) = self.waits.remove(key) else {
            return;
        };
        let Some(looked) = done else { return };
        let after = looked.saturating_duration_since(waiting.since);
        let took = match waiting.not_yet {
            None => after.mul_f64(SOONER),
            Some(not_yet) => (not_yet + after) / 2,
        };
        self.usual.insert(waiting.kind, took);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// How often is looked until something is done that takes so long, and how late it is seen.
    async fn looks(pace: &mut Pace, kind: Kind, takes: Duration) -> (usize, Duration) {
        let key = Key::Balancer("b".into());
        let begun = Instant::now();
        let mut wait = pace.begins(&key, kind);
        for looks in 1.. {
            tokio::time::advance(wait).await;
            if begun.elapsed() >= takes {
                pace.ends(&key, Some(Instant::now()));
                return (looks, begun.elapsed() - takes);
            }
            wait = pace.not_yet(&key, Instant::now());
        }
        unreachable!()
    }

    #[tokio::test(start_paused = true)]
    async fn looks_are_few_and_hardly_late() {
        for (seconds, most, late) in [(1, 1, 3), (7, 3, 2), (30, 13, 5), (90, 25, 5)] {
            let takes = Duration::from_secs(seconds);
            let mut pace = Pace::default();
            let (first, after) = looks(&mut pace, Kind::Create, takes).await;
            assert!(first <= most, "{seconds} s: {first} looks");
            assert!(after <= Duration::from_secs(late), "{seconds} s: {after:?} late");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_makes_the_next_looks_better() {
        let mut pace = Pace::default();
        let takes = Duration::from_secs(25);
        looks(&mut pace, Kind::Create, takes).await;
        for _ in 0..20 {
            let (count, late) = looks(&mut pace, Kind::Create, takes).await;
            assert!(count <= 2, "{count} looks");
            assert!(late <= Duration::from_secs(4), "{late:?} late");
        }
        // Another kind is another thing.
        assert_eq!(looks(&mut pace, Kind::Update, Duration::from_secs(1)).await.0, 1);
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
}
