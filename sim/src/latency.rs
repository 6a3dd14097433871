//! The answer times of the simulated services.

use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use crate::clock::millis;

/// A distribution of answer times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Latency {
    /// A constant time.
    Fixed {
        /// The answer time.
        #[serde(with = "millis", rename = "ms")]
        time: Duration,
    },
    /// A uniform distribution between two times.
    Uniform {
        /// The shortest answer time.
        #[serde(with = "millis", rename = "min_ms")]
        min: Duration,
        /// The longest answer time.
        #[serde(with = "millis", rename = "max_ms")]
        max: Duration,
    },
    /// Usually near the median with a long tail, like real services.
    LogNormal {
        /// Half of the answers are faster.
        #[serde(with = "millis", rename = "median_ms")]
        median: Duration,
        /// One answer in a hundred is slower.
        #[serde(with = "millis", rename = "p99_ms")]
        p99: Duration,
    },
}

/// The 99th percentile of the standard normal distribution.
const Z99: f64 = 2.326_347_9;

impl Latency {
    /// Draws one answer time.
    pub(crate) fn sample(&self, rng: &mut StdRng) -> Duration {
        match self {
            Self::Fixed { time } => *time,
            Self::Uniform { min, max } => {
                let span = max.saturating_sub(*min).as_secs_f64();
                *min + Duration::from_secs_f64(span * rng.random::<f64>())
            }
            Self::LogNormal { median, p99 } => {
                let ratio = p99.as_secs_f64() / median.as_secs_f64().max(1e-9);
                let sigma = ratio.max(1.0).ln() / Z99;
                // Box-Muller: two uniform numbers give a normal one; 1 - u keeps the logarithm finite.
                let (u, v) = (rng.random::<f64>(), rng.random::<f64>());
                let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
                let seconds = median.as_secs_f64() * (sigma * normal).exp();
                Duration::try_from_secs_f64(seconds.min(3600.0)).unwrap_or_default()
            }
        }
    }
}

/// The scope of a latency; the most specific rule wins (operation before service before everything).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Only this service, by its catalog type (`compute`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Only this operation (`server_list`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
}

impl Scope {
    /// All requests.
    pub fn all() -> Self {
        Self::default()
    }

    /// One service.
    pub fn service(service: impl Into<String>) -> Self {
        Self {
            service: Some(service.into()),
            op: None,
        }
    }

    /// One operation of any service.
    pub fn op(op: impl Into<String>) -> Self {
        Self {
            service: None,
            op: Some(op.into()),
        }
    }

    fn covers(&self, service: &str, op: &str) -> bool {
        self.service.as_deref().is_none_or(|want| want == service)
            && self.op.as_deref().is_none_or(|want| want == op)
    }

    fn weight(&self) -> u8 {
        u8::from(self.service.is_some()) + 2 * u8::from(self.op.is_some())
    }
}

/// All active latencies.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Mutex<Vec<(Scope, Latency)>>);

impl Latencies {
    pub(crate) fn set(&self, scope: Scope, latency: Option<Latency>) {
        let mut rules = self.0.lock();
        rules.retain(|(known, _)| *known != scope);
        if let Some(latency) = latency {
            rules.push((scope, latency));
        }
    }

    pub(crate) fn sample(&self, service: &str, op: &str, rng: &Mutex<StdRng>) -> Duration {
        let rules = self.0.lock();
        let best = rules
            .iter()
            .filter(|(scope, _)| scope.covers(service, op))
            .max_by_key(|(scope, _)| scope.weight());
        best.map(|(_, latency)| latency.sample(&mut rng.lock()))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn the_most_specific_scope_wins() {
        let latencies = Latencies::default();
        let rng = Mutex::new(StdRng::seed_from_u64(1));
        let fixed = |ms| {
            Some(Latency::Fixed {
                time: Duration::from_millis(ms),
            })
        };
        latencies.set(Scope::all(), fixed(1));
        latencies.set(Scope::op("server_list"), fixed(3));
        latencies.set(Scope::service("compute"), fixed(2));
        assert_eq!(
            latencies.sample("network", "port_list", &rng),
            Duration::from_millis(1)
        );
        assert_eq!(
            latencies.sample("compute", "server_get", &rng),
            Duration::from_millis(2)
        );
        assert_eq!(
            latencies.sample("compute", "server_list", &rng),
            Duration::from_millis(3)
        );
        latencies.set(Scope::op("server_list"), None);
        assert_eq!(
            latencies.sample("compute", "server_list", &rng),
            Duration::from_millis(2)
        );
    }

    #[test]
    fn a_long_tail_keeps_its_median_and_its_99th_percentile() {
        let mut rng = StdRng::seed_from_u64(7);
        let latency = Latency::LogNormal {
            median: Duration::from_millis(50),
            p99: Duration::from_millis(500),
        };
        let mut samples: Vec<Duration> = (0..20_000).map(|_| latency.sample(&mut rng)).collect();
        samples.sort();
        let median = samples[10_000].as_secs_f64() * 1000.0;
        let p99 = samples[19_800].as_secs_f64() * 1000.0;
        assert!((45.0..55.0).contains(&median), "median {median}");
        assert!((400.0..620.0).contains(&p99), "p99 {p99}");
    }
}
