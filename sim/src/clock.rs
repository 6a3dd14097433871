//! The simulator's clock: it follows real time and can be moved forward.
//!
//! Token lifetimes, quotas and visibility delays use it, so that a test lets a token expire by [`Clock::advance`]
//! instead of sleeping. Latency and delays of faults use real time, since a client has to experience them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// The time of the simulated cloud.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    base: Timestamp,
    ahead_micros: AtomicU64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            base: Timestamp::now(),
            ahead_micros: AtomicU64::new(0),
        }
    }

    /// Real time since the start, which the call log uses.
    pub(crate) fn uptime(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Simulated time since the start: real time plus all advances.
    pub(crate) fn elapsed(&self) -> Duration {
        self.uptime() + Duration::from_micros(self.ahead_micros.load(Ordering::Relaxed))
    }

    /// The simulated time of day.
    pub(crate) fn now(&self) -> Timestamp {
        self.base.checked_add(self.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// Moves the clock forward.
    pub(crate) fn advance(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.ahead_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// Cuts a time to whole seconds, the precision of the services' databases.
pub(crate) fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// A [`Duration`] as a number of milliseconds in JSON.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_secs_f64() * 1000.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(millis / 1000.0).map_err(serde::de::Error::custom)
    }
}
