//! The log: one event a line on standard error, as text or JSON.
//!
//! Only the flags decide, no environment variable: what a pod logs must be readable from its manifest.
//! `-v` keeps the meaning that operators of Kubernetes know, mapped to the levels of `tracing`:
//!
//! | `-v` | this program and its providers | libraries |
//! |---|---|---|
//! | 0, 1 | info | warn |
//! | 2, 3 | info | info |
//! | 4, 5 | debug | info |
//! | 6, 7 | trace | info, the Kubernetes client debug |
//! | 8 and more | trace | debug |
//!
//! Libraries never log at trace: some print headers there.

use std::io::{IsTerminal, stderr};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::options::{LogFormat, LoggingConfig};

/// Crates that belong to others, by the first part of their targets. Everything else is ours, or a provider's out of
/// this repository.
const LIBRARIES: &[&str] = &[
    "h2",
    "hyper",
    "hyper_util",
    "kube",
    "kube_client",
    "kube_core",
    "kube_runtime",
    "mio",
    "openstack",
    "osauth",
    "reqwest",
    "rustls",
    "rustls_native_certs",
    "rustls_platform_verifier",
    "tokio",
    "tokio_util",
    "tower",
    "tower_http",
    "want",
];

/// Starts the log. Only the first call of a process has an effect.
pub(crate) fn start(config: LoggingConfig) {
    let filter = filter(config.verbosity);
    let events = fmt::layer().with_writer(stderr);
    let events = match config.format {
        // The message comes first, then the fields. The target helps only those who look into the code.
        LogFormat::Text => events
            .with_ansi(stderr().is_terminal())
            .with_target(config.verbosity >= 4)
            .boxed(),
        LogFormat::Json => events.json().flatten_event(true).with_span_list(false).boxed(),
    };
    // An error means that a test or an embedding program has its own log already.
    let _ = tracing_subscriber::registry()
        .with(events.with_filter(filter))
        .try_init();
}

fn filter(verbosity: u8) -> Targets {
    let ours = match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let theirs = match verbosity {
        0..=1 => LevelFilter::WARN,
        2..=7 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let mut filter = Targets::new()
        .with_default(ours)
        .with_targets(LIBRARIES.iter().map(|library| (*library, theirs)));
    // It logs every failed request as an error, and every one of these comes back to us and is logged where it is
    // handled.
    filter = match verbosity {
        0..=5 => filter.with_target("kube_client::client::builder", LevelFilter::OFF),
        _ => filter.with_target("kube_client", LevelFilter::DEBUG),
    };
    filter
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn verbosity_maps_to_levels() {
        let ours = |v| filter(v).would_enable("ccm_core::client", &Level::DEBUG);
        let ours_trace = |v| filter(v).would_enable("acme", &Level::TRACE);
        let libraries = |v| filter(v).would_enable("hyper::proto", &Level::INFO);
        assert_eq!([0, 2, 4, 6, 8].map(ours), [false, false, true, true, true]);
        assert_eq!([0, 2, 4, 6, 8].map(ours_trace), [false, false, false, true, true]);
        assert_eq!([0, 2, 4, 6, 8].map(libraries), [false, true, true, true, true]);
        for verbosity in 0..=10 {
            assert!(
                !filter(verbosity).would_enable("h2::codec", &Level::TRACE),
                "-v={verbosity}"
            );
        }
    }

    #[test]
    fn failed_requests_are_not_logged_twice() {
        let target = "kube_client::client::builder";
        assert_eq!(
            [0, 4, 6].map(|v| filter(v).would_enable(target, &Level::ERROR)),
            [false, false, true]
        );
    }
}
