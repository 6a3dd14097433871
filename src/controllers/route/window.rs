//! When a pass follows changes of nodes: soon, but once for a burst.

use std::time::Duration;

use tokio::time::Instant;

/// How long after a change the next one is waited for.
const QUIET: Duration = Duration::from_millis(100);
/// More changes than this are a burst.
const BURST: u32 = 5;
/// How long after a change of a burst the next one is waited for.
const BURST_QUIET: Duration = Duration::from_secs(1);
/// Longest wait after the first change.
const LONGEST: Duration = Duration::from_secs(10);

/// Changes that no pass has followed yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// The first change, the last one and how many.
    open: Option<(Instant, Instant, u32)>,
}

impl Window {
    /// Adds a change.
    pub(super) fn add(&mut self, now: Instant) {
        self.open = Some(match self.open {
            None => (now, now, 1),
            Some((first, _, count)) => (first, now, count.saturating_add(1)),
        });
    }

    /// When a pass is due for them, if there are any.
    pub(super) fn due(&self) -> Option<Instant> {
        let (first, last, count) = self.open?;
        let quiet = if count > BURST { BURST_QUIET } else { QUIET };
        Some((last + quiet).min(first + LONGEST))
    }

    /// A pass follows them now.
    pub(super) fn close(&mut self) {
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pass_follows_one_change_soon_and_a_burst_when_it_is_over() {
        let start = Instant::now();
        let mut window = Window::default();
        assert_eq!(window.due(), None);
        window.add(start);
        assert_eq!(window.due(), Some(start + QUIET));
        for i in 1..100 {
            window.add(start + Duration::from_millis(50 * i));
        }
        assert_eq!(window.due(), Some(start + Duration::from_millis(50 * 99) + BURST_QUIET));
        for i in 1..1000 {
            window.add(start + Duration::from_millis(50 * i));
        }
        assert_eq!(window.due(), Some(start + LONGEST), "but not for ever");
        window.close();
        assert_eq!(window.due(), None);
    }
}
