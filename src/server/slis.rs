//! `/metrics/slis`: the results of health probes.

use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::health::Endpoint;
use crate::metrics::Labels;

/// The results of probes since the start or the last reset.
#[derive(Clone, Debug, Default)]
pub(super) struct Slis(Arc<RwLock<Results>>);

#[derive(Debug, Default)]
struct Results {
    last: Family<Labels<2>, Gauge>,
    total: Family<Labels<3>, Counter>,
}

impl Slis {
    /// Records the result of a check in a probe.
    pub(super) fn probed(&self, check: &'static str, endpoint: Endpoint, well: bool) {
        let kind = endpoint.name();
        let results = self.0.read();
        let status = if well { "success" } else { "error" };
        results
            .last
            .get_or_create(&[("name", check), ("type", kind)])
            .set(i64::from(well));
        results
            .total
            .get_or_create(&[("name", check), ("type", kind), ("status", status)])
            .inc();
    }

    pub(super) fn reset(&self) {
        *self.0.write() = Results::default();
    }

    pub(super) fn render(&self) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        let results = self.0.read();
        registry.register(
            "kubernetes_healthcheck",
            "Result of the last probe of a health check: 1 if it was well, else 0",
            results.last.clone(),
        );
        registry.register(
            "kubernetes_healthchecks",
            "Probes of health checks, by result",
            results.total.clone(),
        );
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}
