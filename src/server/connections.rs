//! How many connections there may be, and which one has to go when a further one comes.
//!
//! Whoever opens connections and says nothing could otherwise keep probes out. A connection on which a request is being
//! answered is never cut off for another one.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// All connections. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    slots: Arc<Semaphore>,
    open: Arc<Mutex<HashMap<u64, Arc<Connection>>>>,
    count: Gauge,
    evictions: Counter,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Requests that are being answered.
    busy: AtomicU32,
    idle_since: Mutex<Instant>,
    /// Whether it has to make room for another one.
    pub(super) evicted: CancellationToken,
}

/// A place among the connections, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) connection: Arc<Connection>,
    number: u64,
    all: Connections,
    _slot: OwnedSemaphorePermit,
}

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Connection>);

impl Connections {
    pub(super) fn new(most: usize, registry: &mut Registry) -> Self {
        let connections = Self {
            slots: Arc::new(Semaphore::new(most)),
            open: Arc::default(),
            count: Gauge::default(),
            evictions: Counter::default(),
        };
        registry.register(
            "ccm_https_connections",
            "Open connections of the HTTPS server",
            connections.count.clone(),
        );
        registry.register(
            "ccm_https_evictions",
            "Idle connections of the HTTPS server that were cut off to make room for others",
            connections.evictions.clone(),
        );
        connections
    }

    /// A place for a connection that has come. If there is none, the one that was idle for longest goes; if all are busy,
    /// this waits.
    pub(super) async fn admit(&self, number: u64) -> Option<Place> {
        let slot = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => {
                self.evict();
                Arc::clone(&self.slots).acquire_owned().await.ok()?
            }
        };
        let connection = Arc::new(Connection {
            busy: AtomicU32::new(0),
            idle_since: Mutex::new(Instant::now()),
            evicted: CancellationToken::new(),
        });
        self.open.lock().insert(number, Arc::clone(&connection));
        self.count.inc();
        Some(Place {
            connection,
            number,
            all: self.clone(),
            _slot: slot,
        })
    }

    fn evict(&self) {
        let open = self.open.lock();
        let idle = open.iter().filter(|(_, connection)| {
            connection.busy.load(Relaxed) == 0 && !connection.evicted.is_cancelled()
        });
        let longest = idle.min_by_key(|(number, connection)| (*connection.idle_since.lock(), **number));
        if let Some((_, connection)) = longest {
            debug!("Cutting off the connection that was idle for longest, there are too many");
            self.evictions.inc();
            connection.evicted.cancel();
        }
    }
}

impl Connection {
    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        Busy(Arc::clone(self))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.open.lock().remove(&self.number);
        self.all.count.dec();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_is_idle_for_longest_goes_and_who_is_busy_stays() {
        let connections = Connections::new(3, &mut Registry::default());
        let mut places = Vec::new();
        for number in 0..3 {
            places.push(connections.admit(number).await.unwrap());
            advance(Duration::from_secs(1)).await;
        }
        // The first has worked since, the second is at work.
        drop(places[0].connection.begin());
        let work = places[1].connection.begin();
        let fourth = {
            let mut fourth = std::pin::pin!(connections.admit(3));
            timeout(Duration::from_millis(1), fourth.as_mut())
                .await
                .unwrap_err();
            let evicted: Vec<_> = places
                .iter()
                .map(|place| place.connection.evicted.is_cancelled())
                .collect();
            assert_eq!(evicted, [false, false, true]);
            places.remove(2);
            fourth.await.unwrap()
        };
        let busy = [places[0].connection.begin(), fourth.connection.begin()];
        let mut fifth = std::pin::pin!(connections.admit(4));
        timeout(Duration::from_secs(60), fifth.as_mut())
            .await
            .unwrap_err();
        assert!(
            places
                .iter()
                .all(|place| !place.connection.evicted.is_cancelled())
        );
        drop((work, busy));
        places.remove(0);
        fifth.await.unwrap();
        assert_eq!(connections.count.get(), 2);
        assert_eq!(connections.evictions.get(), 1);
    }
}
