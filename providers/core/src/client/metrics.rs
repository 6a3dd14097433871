//! The `ccm_cloud_*` metrics.
//!
//! | Metric | Kind | Labels | Meaning |
//! |---|---|---|---|
//! | `ccm_cloud_calls_total` | counter | `provider` `op` `result` | calls that ended: `ok`, `error`, or `cancelled` by the caller |
//! | `ccm_cloud_call_duration_seconds` | histogram | `provider` `op` | the whole call: waiting for quota and all attempts |
//! | `ccm_cloud_errors_total` | counter | `provider` `op` `kind` | attempts that failed, by kind of error |
//! | `ccm_cloud_retries_total` | counter | `provider` `op` | attempts after the first one |
//! | `ccm_cloud_throttles_total` | counter | `provider` `bucket` | replies of the cloud that asked to slow down |
//! | `ccm_cloud_wait_seconds` | histogram | `provider` `bucket` `priority` | time that an attempt waited for quota |
//! | `ccm_cloud_bucket_tokens` | gauge | `provider` `bucket` | requests that could be sent at once |
//! | `ccm_cloud_bucket_rate` | gauge | `provider` `bucket` | requests per second allowed now |
//! | `ccm_cloud_bucket_in_flight` | gauge | `provider` `bucket` | requests without a reply yet |
//! | `ccm_cloud_bucket_waiting` | gauge | `provider` `bucket` `priority` | attempts that wait for quota |
//! | `ccm_cloud_batch_size` | histogram | `name` | items of one batch |
//! | `ccm_cloud_cache_requests_total` | counter | `name` `result` | reads of a cache: `hit`, `miss` (a load began), `join` (of a load in progress) |
//!
//! The bucket gauges are computed when they are scraped, since a bucket refills with time alone.
//!
//! A provider with metrics of its own, such as those of the program that it replaces, adds them with
//! [`ClientMetrics::publish`].

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry},
};

use super::{
    rate_limit::{Bucket, BucketState, WeakBucket},
    recent::{RecentError, RecentErrors},
};
use crate::{Error, Priority};

/// A label set: pairs of name and value.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The metrics of cloud calls. Clones share them.
///
/// `default()` returns one that is not registered.
#[derive(Clone, Debug, Default)]
pub struct ClientMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    calls: Family<Labels<3>, Counter>,
    duration: Family<Labels<2>, Histogram>,
    errors: Family<Labels<3>, Counter>,
    retries: Family<Labels<2>, Counter>,
    throttles: Family<Labels<2>, Counter>,
    wait: Family<Labels<3>, Histogram>,
    batch_size: Family<Labels<1>, Histogram>,
    cache: Family<Labels<2>, Counter>,
    buckets: BucketGauges,
    published: Publications,
    recent: RecentErrors,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            calls: Family::default(),
            duration: Family::new_with_constructor(seconds),
            errors: Family::default(),
            retries: Family::default(),
            throttles: Family::default(),
            wait: Family::new_with_constructor(seconds),
            batch_size: Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 11))),
            cache: Family::default(),
            buckets: BucketGauges::default(),
            published: Publications::default(),
            recent: RecentErrors::default(),
        }
    }
}

/// 5 ms to 82 s, each bucket double the last.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 15))
}

impl ClientMetrics {
    /// Creates and registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let inner = &metrics.0;
        registry.register(
            "ccm_cloud_calls",
            "Cloud calls that ended, by result: ok, error or cancelled",
            inner.calls.clone(),
        );
        registry.register(
            "ccm_cloud_call_duration_seconds",
            "Duration of a cloud call, waiting for quota and all attempts included",
            inner.duration.clone(),
        );
        registry.register(
            "ccm_cloud_errors",
            "Attempts of cloud calls that failed, by kind of error",
            inner.errors.clone(),
        );
        registry.register(
            "ccm_cloud_retries",
            "Attempts of cloud calls after the first one",
            inner.retries.clone(),
        );
        registry.register(
            "ccm_cloud_throttles",
            "Replies of the cloud that asked to slow down",
            inner.throttles.clone(),
        );
        registry.register(
            "ccm_cloud_wait_seconds",
            "Time that an attempt of a cloud call waited for quota",
            inner.wait.clone(),
        );
        registry.register(
            "ccm_cloud_batch_size",
            "Items that were sent to the cloud together",
            inner.batch_size.clone(),
        );
        registry.register(
            "ccm_cloud_cache_requests",
            "Reads of a cache of cloud answers, by result: hit, miss or join (of a load in progress)",
            inner.cache.clone(),
        );
        registry.register_collector(Box::new(inner.buckets.clone()));
        registry.register_collector(Box::new(inner.published.clone()));
        metrics
    }

    /// Publishes a provider's own metrics with these. `name` is the provider's. Metrics that were published under it before are
    /// replaced, so that a provider that is built again after a failure does not appear twice.
    pub fn publish(&self, name: &'static str, metrics: Vec<ProviderMetric>) {
        self.0.published.0.lock().insert(name, metrics);
    }

    pub(super) fn call_ended(
        &self,
        provider: &'static str,
        op: &'static str,
        result: &'static str,
        took: Duration,
    ) {
        self.0
            .calls
            .get_or_create(&[("provider", provider), ("op", op), ("result", result)])
            .inc();
        self.0
            .duration
            .get_or_create(&[("provider", provider), ("op", op)])
            .observe(took.as_secs_f64());
    }

    pub(super) fn attempt_succeeded(&self, bucket: &'static str) {
        self.0.recent.answered(bucket);
    }

    /// The error if the cloud does not answer or refuses the credentials, by the last call of each quota bucket.
    #[must_use]
    pub fn unreachable(&self) -> Option<String> {
        self.0.recent.silent()
    }

    pub(super) fn attempt_failed(
        &self,
        provider: &'static str,
        op: &'static str,
        bucket: &'static str,
        error: &Error,
    ) {
        self.0
            .errors
            .get_or_create(&[
                ("provider", provider),
                ("op", op),
                ("kind", error.kind().as_str()),
            ])
            .inc();
        self.0.recent.add(op, bucket, error);
    }

    /// The last failed attempts of cloud calls, the latest first. Objects that do not exist are left out.
    #[must_use]
    pub fn recent_errors(&self) -> Vec<RecentError> {
        self.0.recent.list()
    }

    /// All quota buckets by the names of their providers and their own, with their present state.
    #[must_use]
    pub fn buckets(&self) -> Vec<(&'static str, &'static str, BucketState)> {
        let states = self.0.buckets.states();
        states.into_iter().map(|((provider, name), state)| (provider, name, state)).collect()
    }

    pub(super) fn retried(&self, provider: &'static str, op: &'static str) {
        self.0.retries.get_or_create(&[("provider", provider), ("op", op)]).inc();
    }

    pub(super) fn throttled(&self, provider: &'static str, bucket: &'static str) {
        self.0.throttles.get_or_create(&[("provider", provider), ("bucket", bucket)]).inc();
    }

    pub(super) fn waited(
        &self,
        provider: &'static str,
        bucket: &'static str,
        priority: Priority,
        wait: Duration,
    ) {
        self.0
            .wait
            .get_or_create(&[
                ("provider", provider),
                ("bucket", bucket),
                ("priority", label(priority)),
            ])
            .observe(wait.as_secs_f64());
    }

    #[expect(clippy::cast_precision_loss, reason = "a batch has less than 2^52 items")]
    pub(super) fn batch(&self, name: &'static str, items: usize) {
        self.0.batch_size.get_or_create(&[("name", name)]).observe(items as f64);
    }

    pub(super) fn cache_request(&self, name: &'static str, result: &'static str) {
        self.0.cache.get_or_create(&[("name", name), ("result", result)]).inc();
    }

    pub(super) fn watch_bucket(&self, provider: &'static str, name: &'static str, bucket: &Bucket) {
        let mut watched = self.0.buckets.0.lock();
        // A provider that is built again after a failure leaves dead buckets behind.
        watched.retain(|(.., bucket)| bucket.upgrade().is_some());
        watched.push((provider, name, bucket.downgrade()));
    }
}

fn label(priority: Priority) -> &'static str {
    match priority {
        Priority::User => "user",
        Priority::Background => "background",
    }
}

/// The upper bounds of the default buckets of Prometheus clients, in seconds. The programs that a provider replaces use them.
pub const PROMETHEUS_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A metric of a provider beside those of the client kit: its name, without the suffix of the format, its help and its value.
pub type ProviderMetric = (&'static str, &'static str, Box<dyn Metric>);

/// Defines a struct of a provider's metrics beside those of the client kit. A line is a field: its name, its type, the
/// metric's name without the suffix of the format, and its help. The value of a field is its default, or follows its type.
/// `publish` creates the metrics and publishes them ([`ClientMetrics::publish`](crate::client::ClientMetrics::publish)). Clones
/// share them.
///
/// ```
/// use ccm_core::client::{ClientMetrics, provider_metrics};
/// use prometheus_client::metrics::counter::Counter;
///
/// provider_metrics! {
///     /// The metrics.
///     struct Metrics {
///         requests: Counter, "acme_requests" => "Requests";
///     }
/// }
///
/// Metrics::publish("acme", &ClientMetrics::default()).requests.inc();
/// ```
#[macro_export]
macro_rules! provider_metrics {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident {
            $($field:ident : $type:ty $(= $value:expr)?, $metric:literal => $help:literal;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $($field: $type,)+
        }

        impl $name {
            /// Creates the metrics and publishes them under the name of a provider.
            $vis fn publish(provider: &'static str, client: &$crate::client::ClientMetrics) -> Self {
                let metrics = Self {
                    $($field: $crate::config_section!(@default $($value)?),)+
                };
                let published: ::std::vec::Vec<$crate::client::ProviderMetric> = ::std::vec![
                    $(($metric, $help, ::std::boxed::Box::new(metrics.$field.clone())),)+
                ];
                client.publish(provider, published);
                metrics
            }
        }
    };
}

/// The published metrics of providers, by name.
#[derive(Clone, Debug, Default)]
struct Publications(Arc<Mutex<BTreeMap<&'static str, Vec<ProviderMetric>>>>);

impl Collector for Publications {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, metric) in self.0.lock().values().flatten() {
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

/// Reads the buckets at each scrape.
#[derive(Clone, Default)]
struct BucketGauges(Arc<Mutex<Vec<Watched>>>);

/// Provider, name, bucket.
type Watched = (&'static str, &'static str, WeakBucket);

impl fmt::Debug for BucketGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketGauges").finish_non_exhaustive()
    }
}

impl BucketGauges {
    fn states(&self) -> BTreeMap<(&'static str, &'static str), BucketState> {
        // Two live buckets can have one name while a provider is being replaced. The newer one is in use.
        self.0
            .lock()
            .iter()
            .filter_map(|(provider, name, bucket)| Some(((*provider, *name), bucket.upgrade()?.state())))
            .collect()
    }
}

impl Collector for BucketGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let states = self.states();
        if states.is_empty() {
            return Ok(());
        }
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&BucketState) -> f64| {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for ((provider, bucket), state) in &states {
                let labels = [("provider", *provider), ("bucket", *bucket)];
                ConstGauge::new(value(state)).encode(family.encode_family(&labels)?)?;
            }
            Ok(())
        };
        gauge("ccm_cloud_bucket_tokens", "Requests that could be sent at once", &|state| state.tokens)?;
        gauge("ccm_cloud_bucket_rate", "Requests per second allowed now", &|state| state.rate)?;
        gauge("ccm_cloud_bucket_in_flight", "Requests without a reply yet", &|state| {
            state.in_flight.into()
        })?;
        let mut family = encoder.encode_descriptor(
            "ccm_cloud_bucket_waiting",
            "Attempts that wait for quota",
            None,
            MetricType::Gauge,
        )?;
        for ((provider, bucket), state) in &states {
            for priority in [Priority::User, Priority::Background] {
                let waiting = match priority {
                    Priority::User => state.waiting_user,
                    Priority::Background => state.waiting_background,
                };
                let labels = [
                    ("provider", *provider),
                    ("bucket", *bucket),
                    ("priority", label(priority)),
                ];
                ConstGauge::new(waiting as u64).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
