//! The state of the watches that fill the stores: a check and a metric for each kind.
//!
//! A watch may be refused for good, since the role was changed. The stores then keep their objects, and controllers decide with
//! old ones. Another replica has the same account, so that neither a restart nor another leader would help.

use std::{fmt, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::{
    metrics::meaning,
    server::{CheckKind, Shown},
};

/// The check fails when the watch has failed for this long. Watches that are opened again are shorter.
const REPORT_AFTER: Duration = Duration::from_secs(60);

/// For how long a watch has been failing.
type FailingFor = Box<dyn Fn() -> Option<Duration> + Send + Sync>;

/// The watches of the process, which are read at each scrape.
#[derive(Default)]
pub(crate) struct Watches(Vec<(&'static str, FailingFor)>);

impl Watches {
    /// Adds the watch of a kind, with a check of this name.
    pub(crate) fn add(
        &mut self,
        shown: &Shown,
        check: &'static str,
        kind: &'static str,
        failing_for: impl Fn() -> Option<Duration> + Clone + Send + Sync + 'static,
    ) {
        let failing = failing_for.clone();
        shown
            .checks
            .register_probe(check, CheckKind::Shown, move || match failing() {
                Some(time) if time > REPORT_AFTER => Err(format!(
                    "the watch of {kind} has failed for {} s; objects are as they were before; check the rights and the API \
                     server",
                    time.as_secs()
                )),
                _ => Ok(()),
            });
        self.0.push((kind, Box::new(failing_for)));
    }

    /// Registers the metric.
    pub(crate) fn register(self, shown: &Shown) {
        shown.metrics.with(|registry| registry.register_collector(Box::new(self)));
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = meaning("ccm_watch_failing_seconds").unwrap_or_default();
        let mut family =
            encoder.encode_descriptor("ccm_watch_failing_seconds", help, None, MetricType::Gauge)?;
        for (kind, failing_for) in &self.0 {
            let seconds = failing_for().unwrap_or_default().as_secs_f64();
            ConstGauge::new(seconds).encode(family.encode_family(&[("kind", *kind)])?)?;
        }
        Ok(())
    }
}
