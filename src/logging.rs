//! The log: one event a line on standard error, as text or JSON.
//!
//! Only the flags decide, no environment variable: the manifest of a pod must show what it logs.
//! `-v` has its usual meaning in Kubernetes, mapped to the levels of `tracing`:
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
//!
//! `--vmodule` sets the verbosity of single modules, on the scale of this program, or of libraries for theirs.

mod failing;

use std::io::{IsTerminal, stderr};

use tracing::{Metadata, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    fmt,
    layer::{Context, Filter, SubscriberExt},
    util::SubscriberInitExt,
};

pub(crate) use failing::{Failing, FailingByKind, warn_if_new};

use crate::config::{LoggingConfig, ModuleVerbosity, OutputFormat};

/// Libraries, by the first part of their targets. All other crates belong to this program, or to a provider out of this
/// repository.
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
pub(crate) fn start(config: &LoggingConfig) {
    let filter = Verbosity {
        rest: filter(config.verbosity),
        modules: config.modules.clone(),
    };
    let events = fmt::layer().with_writer(stderr);
    let events = match config.format {
        // The message comes first, then the fields. The target helps only readers of the code.
        OutputFormat::Text => events
            .with_ansi(stderr().is_terminal())
            .with_target(config.verbosity >= 4 || !config.modules.is_empty())
            .boxed(),
        OutputFormat::Json => events.json().flatten_event(true).with_span_list(false).boxed(),
    };
    // An error means that a test or an embedding program has its own log already.
    let _ = tracing_subscriber::registry()
        .with(events.with_filter(filter))
        .try_init();
}

/// The events that are logged. Only the metadata of a place in the code counts, so that each place is checked once.
struct Verbosity {
    /// The first one that matches counts.
    modules: Vec<ModuleVerbosity>,
    /// For all other modules.
    rest: Targets,
}

impl Verbosity {
    fn of_module(&self, target: &str) -> Option<LevelFilter> {
        let mut modules = self.modules.iter();
        let module = modules.find(|module| matches(&module.pattern, target))?;
        Some(match is_library(target) {
            false => ours(module.verbosity),
            // A pattern for a library requests more of it than a larger number for all modules.
            true if module.verbosity >= 4 => LevelFilter::DEBUG,
            true => theirs(module.verbosity),
        })
    }

    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        match self.of_module(metadata.target()) {
            Some(level) => level >= *metadata.level(),
            None => self.rest.would_enable(metadata.target(), metadata.level()),
        }
    }
}

impl<S> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.allows(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.allows(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }
}

fn is_library(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or(target);
    LIBRARIES.contains(&name)
}

/// A pattern without `::` matches the last part of a module's path. `/` is `::`, as in the paths of files.
fn matches(pattern: &str, target: &str) -> bool {
    let pattern = pattern.replace('/', "::");
    let name = match pattern.contains("::") {
        true => target,
        false => target.rsplit("::").next().unwrap_or(target),
    };
    glob(pattern.as_bytes(), name.as_bytes())
}

/// Whether the pattern with `*` (any characters) and `?` (any single character) matches the text.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    // For each length: whether the pattern so far can be the begin of the text of that length.
    let mut fits: Vec<bool> = (0..=text.len()).map(|length| length == 0).collect();
    for sign in pattern {
        fits = if *sign == b'*' {
            let shortest = fits.iter().position(|fits| *fits).unwrap_or(fits.len());
            (0..fits.len()).map(|length| length >= shortest).collect()
        } else {
            let next = fits.iter().zip(text);
            let next = next.map(|(fits, byte)| *fits && (*sign == b'?' || sign == byte));
            std::iter::once(false).chain(next).collect()
        };
    }
    fits.last() == Some(&true)
}

fn ours(verbosity: u8) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn theirs(verbosity: u8) -> LevelFilter {
    match verbosity {
        0..=1 => LevelFilter::WARN,
        2..=7 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    }
}

fn filter(verbosity: u8) -> Targets {
    let theirs = theirs(verbosity);
    Targets::new()
        .with_default(ours(verbosity))
        .with_targets(LIBRARIES.iter().map(|library| (*library, theirs)))
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
    fn modules_have_their_own_number() {
        let filter = Verbosity {
            rest: filter(0),
            modules: [
                ("refresh", 4),
                ("ccm_core::client::*", 6),
                ("cloud_controller_manager/*", 4),
                ("proto", 2),
                ("kube_client*::*", 9),
                ("quiet*", 0),
            ]
            .map(|(pattern, verbosity)| ModuleVerbosity {
                pattern: pattern.to_owned(),
                verbosity,
            })
            .to_vec(),
        };
        for (target, level) in [
            ("acme::node::refresh", Some(LevelFilter::DEBUG)),
            ("refresh", Some(LevelFilter::DEBUG)),
            ("acme::refresh::all", None),
            ("ccm_core::client::gate", Some(LevelFilter::TRACE)),
            ("ccm_core::client", None),
            ("cloud_controller_manager::process", Some(LevelFilter::DEBUG)),
            ("hyper::proto", Some(LevelFilter::INFO)),
            // Never trace from a library.
            ("kube_client::client::builder", Some(LevelFilter::DEBUG)),
            ("acme::quietly", Some(LevelFilter::INFO)),
            ("acme", None),
        ] {
            assert_eq!(filter.of_module(target), level, "{target}");
        }
    }

    #[test]
    fn patterns_stand_for_any_characters() {
        for (pattern, text, expected) in [
            ("a*c", "abbc", true),
            ("a*c", "ab", false),
            ("*a*b*", "xaxbx", true),
            ("*a*b*", "xbxax", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("**", "ab", true),
        ] {
            assert_eq!(
                glob(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }
}
