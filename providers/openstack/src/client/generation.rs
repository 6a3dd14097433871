//! The count of changes of the credentials' scope.

use tokio::sync::watch;

/// Counts the changes of whom the cloud sees in us. Clones are the same count.
#[derive(Clone, Debug)]
pub(crate) struct Generation(watch::Sender<u64>);

impl Default for Generation {
    fn default() -> Self {
        Self(watch::Sender::new(1))
    }
}

impl Generation {
    /// The count.
    pub(crate) fn current(&self) -> u64 {
        *self.0.borrow()
    }

    /// Adds one. Every question from now on must be answered with the new credentials, so call this right before the
    /// change, under a lock that keeps everybody from still using the old ones.
    pub(crate) fn advance(&self) -> u64 {
        let mut now = 0;
        self.0.send_modify(|count| {
            *count += 1;
            now = *count;
        });
        now
    }

    /// Waits until the count is another one than this.
    pub(crate) async fn beyond(&self, generation: u64) {
        // The sender is here, so that the channel cannot close.
        let _ = self
            .0
            .subscribe()
            .wait_for(|current| *current != generation)
            .await;
    }
}
