//! The count of changes of the credentials' scope.

use tokio::sync::watch;

/// Counts the changes of the credentials' scope (project and user). Clones share the count.
#[derive(Clone, Debug)]
pub(crate) struct Generation(watch::Sender<u64>);

impl Default for Generation {
    fn default() -> Self {
        Self(watch::Sender::new(1))
    }
}

impl Generation {
    /// Returns the count.
    pub(crate) fn current(&self) -> u64 {
        *self.0.borrow()
    }

    /// Increments the count. From then on, every read must use the new credentials. Call this right before the change,
    /// under a lock that excludes users of the old ones.
    pub(crate) fn advance(&self) -> u64 {
        let mut now = 0;
        self.0.send_modify(|count| {
            *count += 1;
            now = *count;
        });
        now
    }

    /// Waits until the count differs from `generation`.
    pub(crate) async fn beyond(&self, generation: u64) {
        // The sender is in `self`, so the channel cannot close.
        let _ = self.0.subscribe().wait_for(|current| *current != generation).await;
    }
}
