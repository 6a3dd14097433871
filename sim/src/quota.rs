//! Request quotas: a token bucket per service, answered with 429 when it is empty.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The request limit of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The average requests per second.
    pub per_second: f64,
    /// The most requests at once; at least one.
    pub burst: u32,
}

#[derive(Debug)]
struct Bucket {
    quota: Quota,
    level: f64,
    at: Duration,
}

impl Bucket {
    fn full(quota: Quota, at: Duration) -> Self {
        let level = f64::from(quota.burst.max(1));
        Self { quota, level, at }
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        let top = f64::from(self.quota.burst.max(1));
        self.level = passed.mul_add(self.quota.per_second, self.level).min(top);
    }

    /// Takes a token at `now`, or returns the time until the next one.
    fn take(&mut self, now: Duration) -> Result<(), Duration> {
        self.refill(now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - self.level) / self.quota.per_second;
        // The wait for a bucket that never refills is one hour, not an overflow.
        Err(Duration::try_from_secs_f64(wait)
            .unwrap_or(Duration::from_secs(3600))
            .min(Duration::from_secs(3600)))
    }
}

/// The state of a quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// The most requests at once.
    pub(crate) limit: u32,
    /// The requests that are left.
    pub(crate) remaining: u32,
    /// The time until all of them are left.
    pub(crate) full_in: Duration,
}

/// The buckets of all services.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<BTreeMap<String, Bucket>>);

impl Quotas {
    pub(crate) fn set(&self, service: &str, quota: Option<Quota>, now: Duration) {
        let mut buckets = self.0.lock();
        match quota {
            Some(quota) => {
                buckets.insert(service.to_owned(), Bucket::full(quota, now));
            }
            None => {
                buckets.remove(service);
            }
        }
    }

    /// The state of a service's quota, if it has one.
    pub(crate) fn level(&self, service: &str, now: Duration) -> Option<Level> {
        let mut buckets = self.0.lock();
        let bucket = buckets.get_mut(service)?;
        bucket.refill(now);
        let missing = f64::from(bucket.quota.burst.max(1)) - bucket.level;
        let full_in = Duration::try_from_secs_f64(missing / bucket.quota.per_second);
        Some(Level {
            limit: bucket.quota.burst.max(1),
            remaining: bucket.level as u32,
            full_in: full_in.unwrap_or_default(),
        })
    }

    /// Takes a request, or returns the `Retry-After` of its refusal: the whole seconds until the next one.
    pub(crate) fn take(&self, service: &str, now: Duration) -> Result<(), u64> {
        let mut buckets = self.0.lock();
        let Some(bucket) = buckets.get_mut(service) else {
            return Ok(());
        };
        bucket.take(now).map_err(|wait| (wait.as_secs_f64().ceil() as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_after_the_burst_and_refills_with_time() {
        let quotas = Quotas::default();
        let quota = Quota {
            per_second: 0.5,
            burst: 2,
        };
        quotas.set("compute", Some(quota), Duration::ZERO);
        assert_eq!(quotas.take("compute", Duration::ZERO), Ok(()));
        assert_eq!(quotas.take("compute", Duration::ZERO), Ok(()));
        assert_eq!(quotas.take("compute", Duration::ZERO), Err(2));
        assert_eq!(quotas.take("compute", Duration::from_secs(2)), Ok(()));
        assert_eq!(quotas.take("network", Duration::ZERO), Ok(()), "another service has its own quota");
    }
}
