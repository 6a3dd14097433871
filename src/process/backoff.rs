//! Growing pauses between attempts.

use std::time::Duration;

/// Doubles from `first` to `longest`; each pause is between half and all of that, so that replicas that were started
/// together do not knock together.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    /// The next pause.
    pub(super) fn pause(&mut self) -> Duration {
        let step = self.next.min(self.longest);
        self.next = step.saturating_mul(2);
        step.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        for step in [1, 2, 4, 8, 16, 30, 30, 30] {
            let (pause, step) = (backoff.pause(), Duration::from_secs(step));
            assert!(pause >= step / 2 && pause <= step, "{pause:?} for {step:?}");
        }
    }
}
