//! How often something was done, how long it took and how often it failed, under the names that a cloud's earlier controller
//! gave to its metrics.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder},
    metrics::{
        MetricType,
        counter::Counter,
        family::{Family, MetricConstructor},
        histogram::Histogram,
    },
};

use super::ProviderMetrics;

type Labels = [(&'static str, &'static str); 1];

/// Names, label and buckets of [`TimedMetrics`].
#[derive(Debug)]
pub struct TimedConfig {
    /// The name of the label: what was done.
    pub label: &'static str,
    /// Name and help of the histogram of seconds.
    pub duration: (&'static str, &'static str),
    /// Name, without `_total`, and help of the counter.
    pub total: (&'static str, &'static str),
    /// Name, without `_total`, and help of the counter of failures.
    pub errors: (&'static str, &'static str),
    /// The upper bounds of the histogram's buckets, in seconds.
    pub buckets: &'static [f64],
}

/// Where something is counted. A clone counts in the same place. For [`ClientMetrics::publish`](super::ClientMetrics::publish).
#[derive(Clone, Debug)]
pub struct TimedMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: &'static TimedConfig,
    duration: Family<Labels, Histogram, Buckets>,
    total: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
}

#[derive(Clone, Debug)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl TimedMetrics {
    /// Metrics that count from zero.
    #[must_use]
    pub fn new(config: &'static TimedConfig) -> Self {
        Self(Arc::new(Inner {
            config,
            duration: Family::new_with_constructor(Buckets(config.buckets)),
            total: Family::default(),
            errors: Family::default(),
        }))
    }

    /// Counts what was done once. `what`: the value of the label.
    pub fn observe(&self, what: &'static str, took: Duration, is_ok: bool) {
        let labels = [(self.0.config.label, what)];
        self.0.total.get_or_create(&labels).inc();
        self.0.duration.get_or_create(&labels).observe(took.as_secs_f64());
        if !is_ok {
            self.0.errors.get_or_create(&labels).inc();
        }
    }
}

impl ProviderMetrics for TimedMetrics {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Inner {
            config,
            duration,
            total,
            errors,
        } = &*self.0;
        duration.encode(descriptor(encoder, config.duration, MetricType::Histogram)?)?;
        total.encode(descriptor(encoder, config.total, MetricType::Counter)?)?;
        errors.encode(descriptor(encoder, config.errors, MetricType::Counter)?)
    }
}

fn descriptor<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    (name, help): (&'a str, &'a str),
    kind: MetricType,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, kind)
}
