//! The limit of connections, and the choice of the connection that is closed for a new one.
//!
//! Clients that open connections and stay silent, or whose requests wait for a review, must not keep probes out. At the limit,
//! a new connection closes the one whose last request began first.

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
    /// Connections wait for it. It wakes the connection that waits for longest.
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
    /// Changes with each request.
    requests: watch::Sender<()>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(super) fn new(most: usize, registry: &mut Registry) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(most)),
            full: Arc::default(),
            metrics: ConnectionMetrics::register(registry),
        }
    }

    /// Admits a new connection. At the limit, another one is closed.
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
    /// A request begins: all other connections are closed before this one.
    pub(super) fn is_used(&self) {
        self.requests.send_replace(());
    }

    /// Waits until the connection must be closed for another one.
    pub(super) async fn evicted(&self) {
        let mut requests = self.requests.subscribe();
        loop {
            // Each request moves the connection to the end of the queue.
            tokio::select! {
                biased;
                // The sender is in `self`, so that this cannot fail.
                _ = requests.changed() => {}
                () = self.all.full.notified() => break,
            }
        }
        debug!("Closing the connection whose last request began first, there are too many");
        self.all.metrics.evictions.inc();
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

    use futures_util::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn the_connection_whose_last_request_is_oldest_is_closed() {
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
        // The first and the second have been used since.
        for used in [first, second] {
            used.is_used();
        }
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
        let _fourth = fourth.await.unwrap();
        // A request keeps the connection only while others are older.
        let mut fifth = connections.admit().boxed();
        assert!(poll!(&mut fifth).is_pending());
        first_evicted.await;
        drop(all.remove(0));
        let _fifth = fifth.await.unwrap();
        assert!(poll!(&mut second_evicted).is_pending());
        assert_eq!((connections.metrics.count.get(), connections.metrics.evictions.get()), (3, 2));
    }
}
