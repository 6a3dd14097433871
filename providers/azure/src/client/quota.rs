//! The quotas beside those of the gate: Azure's front door, and the rate limits of the config. The remaining requests that Azure
//! reports lead.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    Error, ErrorKind, Priority, Result, Retry,
    client::{Bucket, Gate, Operation as _, Permit, Quota},
};
use http::{HeaderMap, Method};
use tokio::time::{Instant, timeout};

use super::ops::{FRONT_DOOR, Op};
use crate::config::RateLimits;

/// How long a call waits for these quotas.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A count of the front door is that of this moment: its bucket refills all the time.
const COUNT_HOLDS: Duration = Duration::from_secs(1);
/// Requests at once of all principals of a subscription, in the smallest case: reads, and writes or deletes.
const GLOBAL_READS: u32 = 3750;
const GLOBAL_WRITES: u32 = 3000;
/// The known policies of Microsoft.Compute, with their limits.
const POLICIES: [(&str, u32); 4] = [
    ("HighCostGetVMScaleSet3Min", 280),
    ("HighCostGetVMScaleSet30Min", 1400),
    ("GetVMScaleSetVM3Min", 500),
    ("HighCostGet3Min", 140),
];

/// Names of the front door's buckets for one subscription: reads, writes, deletes.
pub(crate) type BucketNames = [&'static str; 3];

/// The buckets of the machines' subscription.
pub(crate) const OWN: BucketNames = ["reads", "writes", "deletes"];
/// The buckets of the network resources' subscription, if it is another one.
pub(crate) const NETWORK: BucketNames = [
    "network-subscription-reads",
    "network-subscription-writes",
    "network-subscription-deletes",
];

/// The front door's quotas for [`OWN`] and [`NETWORK`].
pub(crate) fn front_door_buckets() -> impl Iterator<Item = (&'static str, Quota)> {
    [OWN, NETWORK].into_iter().flat_map(|names| names.into_iter().zip(FRONT_DOOR))
}

/// The quotas of one principal.
#[derive(Debug)]
pub(crate) struct Quotas {
    gate: Gate,
    /// The limits of the config by their key: of reads, of writes.
    by_key: BTreeMap<&'static str, (Bucket, Bucket)>,
}

/// The permits of one call.
#[derive(Debug)]
pub(crate) struct Permits(Vec<Permit>);

impl Permits {
    /// Ends the call.
    pub(crate) fn end<T>(self, result: &Result<T>) {
        let throttled = match result {
            Err(error) if error.kind() == ErrorKind::RateLimited => Some(error.retry()),
            _ => None,
        };
        for permit in self.0 {
            match throttled {
                None if result.is_ok() => permit.accepted(),
                // The call says nothing about the limit.
                None => {}
                Some(Retry::After(wait) | Retry::Fixed(wait)) => permit.throttled(Some(wait)),
                Some(Retry::Never | Retry::Backoff) => permit.throttled(None),
            }
        }
    }
}

impl Quotas {
    pub(crate) fn new(gate: &Gate, limits: &RateLimits) -> Self {
        let keys = Op::ALL.iter().filter_map(|op| op.rate_limit_key());
        let by_key = keys.filter_map(|key| {
            let limit = limits.of(key)?;
            Some((key, (Bucket::new(limit.reads), Bucket::new(limit.writes))))
        });
        Self {
            gate: gate.clone(),
            by_key: by_key.collect(),
        }
    }

    /// Waits for the front door's quota and for that of the config.
    ///
    /// # Errors
    /// `RateLimited` after a minute.
    pub(crate) async fn acquire(
        &self,
        op: Op,
        names: BucketNames,
        method: &Method,
        priority: Priority,
    ) -> Result<Permits> {
        let configured = op
            .rate_limit_key()
            .and_then(|key| self.by_key.get(key))
            .map(|(reads, writes)| if op.is_write() { writes } else { reads });
        let front_door = self.gate.bucket(name_of(names, method));
        let mut permits = Vec::new();
        for bucket in configured.into_iter().chain([&front_door]) {
            let Ok(mut permit) = timeout(LONGEST_WAIT, bucket.acquire(priority)).await else {
                let text = format!("waited {} s for the rate limit", LONGEST_WAIT.as_secs());
                return Err(Error::new(ErrorKind::RateLimited, text).with_operation(op.name()));
            };
            permit.begin();
            permits.push(permit);
        }
        Ok(Permits(permits))
    }

    /// Applies the counts of an answer.
    pub(crate) fn observe(&self, op: Op, names: BucketNames, method: &Method, headers: &HeaderMap) {
        if let Some(count) = front_door_count(headers, method) {
            count.apply(&self.gate.bucket(name_of(names, method)));
        }
        if let Some(count) = smallest_policy(headers) {
            count.apply(&self.gate.bucket(op.bucket()));
        }
    }
}

fn name_of(names: BucketNames, method: &Method) -> &'static str {
    let [reads, writes, deletes] = names;
    match *method {
        Method::GET | Method::HEAD => reads,
        Method::DELETE => deletes,
        _ => writes,
    }
}

/// A count of remaining requests in an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RemainingCount {
    remaining: u32,
    /// 0: unknown.
    limit: u32,
    /// How long the remaining requests must last; `None`: not known.
    lasts: Option<Duration>,
}

impl RemainingCount {
    /// The share that remains.
    fn share(&self) -> f64 {
        f64::from(self.remaining) / f64::from(self.limit.max(1))
    }

    /// The remaining requests for each second.
    fn rate(&self) -> f64 {
        f64::from(self.remaining) / self.lasts.unwrap_or(COUNT_HOLDS).as_secs_f64()
    }

    fn apply(self, bucket: &Bucket) {
        let reset = self.lasts.map(|lasts| Instant::now() + lasts);
        bucket.observe_remaining(self.remaining, self.limit, reset);
    }
}

/// The front door's count: that of the principal, or that of all principals if it is lower in proportion.
fn front_door_count(headers: &HeaderMap, method: &Method) -> Option<RemainingCount> {
    let [reads, writes, _] = FRONT_DOOR.map(|quota| quota.burst);
    let (name, limit, global_limit) = match *method {
        Method::GET | Method::HEAD => ("reads", reads, GLOBAL_READS),
        Method::DELETE => ("deletes", writes, GLOBAL_WRITES),
        _ => ("writes", writes, GLOBAL_WRITES),
    };
    let own_count = number(headers, &format!("x-ms-ratelimit-remaining-subscription-{name}"));
    let global_count = number(headers, &format!("x-ms-ratelimit-remaining-subscription-global-{name}"));
    let own = own_count.map(|remaining| RemainingCount {
        remaining,
        limit,
        // Older front doors count in thousands an hour. Such a count does not limit a burst.
        lasts: (remaining < limit).then_some(COUNT_HOLDS),
    });
    let global = global_count.map(|remaining| RemainingCount {
        remaining,
        limit: global_limit,
        lasts: None,
    });
    own.into_iter().chain(global).min_by(|a, b| a.share().total_cmp(&b.share()))
}

/// The policy of Microsoft.Compute with the fewest remaining requests for its window.
fn smallest_policy(headers: &HeaderMap) -> Option<RemainingCount> {
    let text = headers.get("x-ms-ratelimit-remaining-resource")?.to_str().ok()?;
    text.split(',').filter_map(policy_count).min_by(|a, b| a.rate().total_cmp(&b.rate()))
}

/// A policy such as `Microsoft.Compute/HighCostGetVMScaleSet3Min;240`, whose name ends with its window.
fn policy_count(item: &str) -> Option<RemainingCount> {
    let (policy, count) = item.trim().rsplit_once(';')?;
    let name = policy.rsplit('/').next()?;
    let window = name.strip_suffix("Min")?;
    let digits = window.trim_end_matches(|sign: char| sign.is_ascii_digit()).len();
    let minutes: u64 = window.get(digits..)?.parse().ok()?;
    Some(RemainingCount {
        remaining: count.trim().parse().ok()?,
        limit: POLICIES.iter().find(|(known, _)| *known == name).map_or(0, |(_, limit)| *limit),
        lasts: Some(Duration::from_secs(60 * minutes.max(1))),
    })
}

fn number(headers: &HeaderMap, name: &str) -> Option<u32> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::client::{ClientMetrics, GateConfig};

    use super::*;
    use crate::client::ops::{BUCKETS, MACHINE_LISTS};

    fn quotas(limits: &RateLimits) -> Quotas {
        let config = GateConfig {
            buckets: BUCKETS.into_iter().chain(front_door_buckets()).collect(),
            ..GateConfig::new("azure")
        };
        Quotas::new(&Gate::new(config, &ClientMetrics::default()), limits)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn no_bucket_exceeds_a_published_window() {
        let windows = [
            ("network-reads", 300.0, 10_000.0),
            ("network-writes", 300.0, 1000.0),
            ("compute-lists", 1800.0, 1400.0),
            ("compute-lists", 180.0, 280.0),
            ("compute-reads", 60.0, 8000.0),
        ];
        for (name, seconds, limit) in windows {
            let quota = BUCKETS.iter().find(|(bucket, _)| *bucket == name).unwrap().1;
            let most = f64::from(quota.burst) + seconds * quota.rate;
            assert!(most <= limit, "{name}: {most} in {seconds} s, allowed are {limit}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_counts_of_answers_lead() {
        let quotas = quotas(&RateLimits::default());
        let remaining = |count: &str| headers(&[("x-ms-ratelimit-remaining-subscription-reads", count)]);
        let tokens = |name| quotas.gate.bucket(name).state().tokens;
        quotas.observe(Op::MachineGet, OWN, &Method::GET, &remaining("12"));
        assert!(tokens("reads") <= 12.0 && tokens("writes") > 199.0, "{}", tokens("reads"));
        // An hourly count of thousands says nothing about the burst.
        quotas.observe(Op::MachineGet, OWN, &Method::PUT, &remaining("11999"));
        assert!(tokens("writes") > 199.0);
        let resource =
            "Microsoft.Compute/HighCostGetVMScaleSet3Min;240,Microsoft.Compute/HighCostGetVMScaleSet30Min;30";
        let policies = headers(&[("x-ms-ratelimit-remaining-resource", resource)]);
        let smallest = smallest_policy(&policies).unwrap();
        assert_eq!(
            (smallest.remaining, smallest.limit, smallest.lasts),
            (30, 1400, Some(Duration::from_secs(1800)))
        );
        quotas.observe(Op::InstanceList, OWN, &Method::GET, &policies);
        assert!(tokens(MACHINE_LISTS) <= 30.0, "{}", tokens(MACHINE_LISTS));
    }

    #[test]
    fn all_principals_together_may_be_near_the_limit() {
        let pairs = [
            ("x-ms-ratelimit-remaining-subscription-global-reads", "100"),
            ("x-ms-ratelimit-remaining-subscription-reads", "249"),
        ];
        let count = front_door_count(&headers(&pairs), &Method::GET).unwrap();
        assert_eq!((count.remaining, count.limit, count.lasts), (100, GLOBAL_READS, None));
        assert_eq!(front_door_count(&headers(&pairs), &Method::DELETE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_configured_limit_makes_calls_wait() {
        let (_folder, context) = crate::config::tests::context(
            "cloudProviderRateLimit: true\nentries: {routeTableRateLimit: {cloudProviderRateLimitQPS: 0.1, \
             cloudProviderRateLimitBucket: 2}}",
        );
        let settings = crate::config::load(&context, &mut ccm_core::config::ConfigFiles::default())
            .unwrap()
            .value;
        let quotas = quotas(&settings.rate_limits);
        let began = Instant::now();
        for _ in 0..3 {
            let permits = quotas.acquire(Op::RouteTableGet, OWN, &Method::GET, Priority::User).await.unwrap();
            permits.end(&Ok(()));
        }
        let waited = began.elapsed();
        assert!(waited >= Duration::from_secs(9) && waited < Duration::from_secs(20), "{waited:?}");
    }
}
