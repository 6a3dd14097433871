//! The policy for repeating calls.

use std::time::Duration;

use rand::Rng;

/// The number of attempts of a call, and the waits between them.
///
/// The waits are exponential with *decorrelated jitter*: each is drawn between `initial` and three times the last
/// one, so that callers that failed together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts of one call, the first included; 0 counts as 1.
    pub max_attempts: u32,
    /// The shortest wait.
    pub initial: Duration,
    /// The longest wait, unless the cloud asks for a longer one.
    pub max: Duration,
    /// The seed of the jitter, so that it is the same in every run. For tests.
    pub seed: Option<u64>,
}

impl Default for RetryPolicy {
    /// Five attempts, 200 ms to 20 s between them.
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial: Duration::from_millis(200),
            max: Duration::from_secs(20),
            seed: None,
        }
    }
}

impl RetryPolicy {
    /// A single attempt.
    #[must_use]
    pub fn never() -> Self {
        Self {
            max_attempts: 1,
            ..Self::default()
        }
    }

    /// The waits of one call.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff {
            initial: self.initial,
            max: self.max,
            last: self.initial,
        }
    }
}

/// The waits between the attempts of one call.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    last: Duration,
}

impl Backoff {
    /// The next wait.
    pub fn next(&mut self, rng: &mut impl Rng) -> Duration {
        let low = self.initial.min(self.max);
        let high = self.last.saturating_mul(3).clamp(low, self.max);
        self.last = rng.random_range(low..=high);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    proptest! {
        #[test]
        fn waits_stay_in_bounds_for_any_policy(initial in 0u64..5_000, max in 0u64..60_000, seed: u64) {
            let policy = RetryPolicy {
                initial: Duration::from_millis(initial),
                max: Duration::from_millis(max),
                ..RetryPolicy::default()
            };
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut backoff = policy.backoff();
            for _ in 0..20 {
                let wait = backoff.next(&mut rng);
                prop_assert!(wait <= policy.max);
                prop_assert!(wait >= policy.initial.min(policy.max));
            }
        }
    }

    #[test]
    fn one_seed_gives_one_schedule_that_grows() {
        let schedule = |seed| {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut backoff = RetryPolicy::default().backoff();
            (0..12).map(|_| backoff.next(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(schedule(1), schedule(1));
        assert_ne!(schedule(1), schedule(2));
        let first: Duration = (0..50).map(|seed| schedule(seed)[0]).sum();
        let last: Duration = (0..50).map(|seed| schedule(seed)[11]).sum();
        assert!(last > first * 4, "{first:?} {last:?}");
    }
}
