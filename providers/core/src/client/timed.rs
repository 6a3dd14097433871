//! Counts, durations and failures of operations, under the metric names of a cloud's earlier controller.

use std::time::Duration;

use prometheus_client::metrics::{
    counter::Counter,
    family::{Family, MetricConstructor},
    histogram::Histogram,
};

use super::ClientMetrics;

type Labels = [(&'static str, &'static str); 1];

/// Names, label and buckets of [`TimedMetrics`].
#[derive(Debug)]
pub struct TimedConfig {
    /// The name of the label: the operation.
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

/// Metrics of operations. Clones share them.
#[derive(Clone, Debug)]
pub struct TimedMetrics {
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
    /// Metrics that count from zero, published under this name ([`ClientMetrics::publish`]).
    #[must_use]
    pub fn publish(name: &'static str, config: &'static TimedConfig, client: &ClientMetrics) -> Self {
        let metrics = Self {
            config,
            duration: Family::new_with_constructor(Buckets(config.buckets)),
            total: Family::default(),
            errors: Family::default(),
        };
        client.publish(
            name,
            vec![
                (config.duration.0, config.duration.1, Box::new(metrics.duration.clone())),
                (config.total.0, config.total.1, Box::new(metrics.total.clone())),
                (config.errors.0, config.errors.1, Box::new(metrics.errors.clone())),
            ],
        );
        metrics
    }

    /// Counts one operation. `what`: the value of the label.
    pub fn observe(&self, what: &'static str, took: Duration, is_ok: bool) {
        let labels = [(self.config.label, what)];
        self.total.get_or_create(&labels).inc();
        self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        if !is_ok {
            self.errors.get_or_create(&labels).inc();
        }
    }
}
