//! The limit of connections, and the choice of the connection that is closed for a new one.
//!
//! Clients that open connections and stay silent must not keep probes out. At the limit, a new connection closes
//! the connection that was idle for longest. A connection with a request in progress is never closed for another.

use std::sync::Arc;

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tracing::debug;

use crate::metrics::metrics;

/// All connections. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    permits: Arc<Semaphore>,
    /// Idle connections wait for it. It wakes the connection that waits for longest.
    full: Arc<Notify>,
    metrics: ConnectionMetrics,
}

metrics! {
    struct ConnectionMetrics {
        count: Gauge = "ccm_https_connections",
        evictions: Counter = "ccm_https_evictions",
    }
}

/// One connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    all: Connections,
    /// Requests in progress.
    requests: watch::Sender<usize>,
    _permit: OwnedSemaphorePermit,
}

/// A request in progress, until it is dropped.
#[derive(Debug)]
pub(super) struct InProgress(Arc<Connection>);

impl Connections {
    pub(super) fn new(most: usize, registry: &mut Registry) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(most)),
            full: Arc::default(),
            metrics: ConnectionMetrics::register(registry),
        }
    }

    /// Admits a new connection. At the limit, an idle connection is closed, or the next one that becomes idle.
    pub(super) async fn admit(&self) -> Option<Arc<Connection>> {
        if self.permits.available_permits() == 0 {
            self.full.notify_one();
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        self.metrics.count.inc();
        Some(Arc::new(Connection {
            all: self.clone(),
            requests: watch::Sender::default(),
            _permit: permit,
        }))
    }
}

impl Connection {
    /// Counts a request.
    pub(super) fn begin(self: &Arc<Self>) -> InProgress {
        self.requests.send_modify(|count| *count += 1);
        InProgress(Arc::clone(self))
    }

    /// Waits until the connection must be closed for another one.
    pub(super) async fn evicted(&self) {
        let mut requests = self.requests.subscribe();
        loop {
            // The sender is in `self`, so that waiting cannot fail.
            let _ = requests.wait_for(|count| *count == 0).await;
            // Each request moves the connection to the end of the queue.
            tokio::select! {
                biased;
                _ = requests.changed() => {}
                () = self.all.full.notified() => break,
            }
        }
        debug!("Closing the connection that was idle for longest, there are too many");
        self.all.metrics.evictions.inc();
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.requests.send_modify(|count| *count -= 1);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.metrics.count.dec();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::time::Duration;

    use futures_util::{FutureExt, poll};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_is_idle_for_longest_is_closed_and_busy_ones_stay() {
        let connections = Connections::new(3, &mut Registry::default());
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(connections.admit().await.unwrap());
        }
        let third = all.pop().unwrap();
        let [first, second] = [0, 1].map(|number: usize| &all[number]);
        let evicted = |connection: &Arc<Connection>| {
            let connection = Arc::clone(connection);
            async move { connection.evicted().await }.boxed()
        };
        let (mut first_evicted, mut second_evicted) = (evicted(first), evicted(second));
        let mut third_evicted = evicted(&third);
        for evicted in [&mut first_evicted, &mut second_evicted, &mut third_evicted] {
            assert!(poll!(evicted).is_pending());
        }
        // The first has worked since, the second is at work.
        drop(first.begin());
        let work = second.begin();
        for evicted in [&mut first_evicted, &mut second_evicted] {
            assert!(poll!(evicted).is_pending());
        }
        let mut fourth = connections.admit().boxed();
        assert!(poll!(&mut fourth).is_pending());
        for evicted in [&mut first_evicted, &mut second_evicted] {
            assert!(poll!(evicted).is_pending());
        }
        third_evicted.await;
        drop(third);
        let fourth = fourth.await.unwrap();
        let busy = [first.begin(), fourth.begin()];
        assert!(poll!(&mut first_evicted).is_pending());
        // All are busy: none is closed until one of them is idle.
        let mut fifth = connections.admit().boxed();
        timeout(Duration::from_secs(60), &mut fifth).await.unwrap_err();
        for evicted in [&mut first_evicted, &mut second_evicted] {
            assert!(poll!(evicted).is_pending());
        }
        assert_eq!(connections.metrics.evictions.get(), 1);
        drop(work);
        second_evicted.await;
        assert_eq!(
            (
                connections.metrics.count.get(),
                connections.metrics.evictions.get()
            ),
            (3, 2)
        );
        drop(busy);
    }
}
