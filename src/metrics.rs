//! The description of every metric, and their registration.
//!
//! [`REFERENCE`] describes each metric once: `--help-metrics`, `docs/reference/metrics.md`, the help on `/metrics` and the
//! status page come from it. A test compares it with the metrics that are registered in the sources.

use std::collections::BTreeMap;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Metric, Registry},
};

/// All metrics as Markdown. A metric without a sample is on no page of `/metrics`, so this file lists them.
pub(crate) const REFERENCE: &str = include_str!("metrics.md");

/// The labels of a metric: name and value.
pub(crate) type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The meaning of a metric in the reference, in Markdown.
pub(crate) fn meaning(name: &str) -> Option<&'static str> {
    let row = REFERENCE.lines().find_map(|line| {
        let row = line.strip_prefix("| `")?.strip_prefix(name)?;
        row.strip_prefix("` |")
    })?;
    let columns = row.trim_end().strip_suffix('|')?;
    columns.rsplit('|').next().map(str::trim)
}

/// Registers a metric. `name` has no suffix `_total`: the format adds it to counters.
pub(crate) fn register(registry: &mut Registry, name: impl Into<String>, metric: impl Metric) {
    let name = name.into();
    let help = meaning(&name).or_else(|| meaning(&format!("{name}_total")));
    registry.register(name, help.unwrap_or_default(), metric);
}

/// The value of a gauge that counts.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Adds one to the counter with this label.
pub(crate) fn increment(family: &Family<Labels<1>, Counter>, label: &'static str, value: &'static str) {
    family.get_or_create(&[(label, value)]).inc();
}

/// How often each value occurs in `all`. A value of `known` that does not occur has the number zero.
pub(crate) fn tally(
    known: impl IntoIterator<Item = &'static str>,
    all: impl IntoIterator<Item = &'static str>,
) -> BTreeMap<&'static str, usize> {
    let mut numbers: BTreeMap<_, _> = known.into_iter().map(|value| (value, 0)).collect();
    for value in all {
        *numbers.entry(value).or_default() += 1;
    }
    numbers
}

/// Sets a gauge for each value of its label.
pub(crate) fn set_all(
    family: &Family<Labels<1>, Gauge>,
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, usize)>,
) {
    for (value, number) in values {
        family.get_or_create(&[(label, value)]).set(count(number));
    }
}

/// Declares metrics: a field each, with its type, its name in the [`REFERENCE`] and, where the default is not enough,
/// its constructor. `register` creates and registers them.
macro_rules! metrics {
    ($(#[$attribute:meta])* $vis:vis struct $name:ident {
        $($field_vis:vis $field:ident: $type:ty = $metric:literal $(in $new:expr)?,)+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $($field_vis $field: $type,)+
        }

        impl $name {
            $vis fn register(registry: &mut prometheus_client::registry::Registry) -> Self {
                let metrics = Self {
                    $($field: $crate::metrics::metrics!(@new $($new)?),)+
                };
                $($crate::metrics::register(registry, $metric, metrics.$field.clone());)+
                metrics
            }
        }
    };
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
}
pub(crate) use metrics;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_the_meaning_of_a_metric() {
        assert_eq!(meaning("workqueue_depth"), Some("keys that wait for a worker"));
        assert_eq!(meaning("ccm_routes"), Some("routes that are due: `done`, `failed`, `pending`"));
        assert_eq!(meaning("ccm_rout"), None);
    }
}
