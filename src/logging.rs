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
//! | 6, 7 | trace | info |
//! | 8 and more | trace | debug |
//!
//! Every other crate is a library. Libraries never log at trace: some print headers and tokens there.
//!
//! `--vmodule` sets the verbosity of single modules, on the scale of this program, or of libraries for theirs.

mod failing;

use std::io::{IsTerminal, stderr};

use ccm_core::registry;
use tracing::{Metadata, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    Layer, fmt,
    layer::{Context, Filter, SubscriberExt},
    util::SubscriberInitExt,
};

pub(crate) use failing::{Failing, FailingByKind, warn_if_new};

use crate::config::{LoggingConfig, ModuleVerbosity, OutputFormat};

/// Starts the log. Only the first call of a process has an effect.
pub(crate) fn start(config: &LoggingConfig) {
    let filter = Verbosity {
        modules: config.modules.clone(),
        others: config.verbosity,
        providers: registry::all().iter().map(|provider| crate_of(provider.module)).collect(),
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
    let _ = tracing_subscriber::registry().with(events.with_filter(filter)).try_init();
}

/// The events that are logged. Only the metadata of a place in the code counts, so that each place is checked once.
struct Verbosity {
    /// The first one that matches counts.
    modules: Vec<ModuleVerbosity>,
    /// For all other modules.
    others: u8,
    /// The crates of the providers.
    providers: Vec<&'static str>,
}

impl Verbosity {
    fn level(&self, target: &str) -> LevelFilter {
        let mut modules = self.modules.iter();
        let module = modules.find(|module| matches(&module.pattern, target));
        let verbosity = module.map_or(self.others, |module| module.verbosity);
        match (self.is_library(target), module) {
            (false, _) => ours(verbosity),
            // A pattern for a library requests more of it than a larger number for all modules.
            (true, Some(_)) if verbosity >= 4 => LevelFilter::DEBUG,
            (true, _) => theirs(verbosity),
        }
    }

    /// Any crate may print secrets at trace, except ours.
    fn is_library(&self, target: &str) -> bool {
        let name = crate_of(target);
        !(name == "cloud_controller_manager" || name.starts_with("ccm_") || self.providers.contains(&name))
    }

    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        self.level(metadata.target()) >= *metadata.level()
    }
}

impl<S> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.allows(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.allows(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }
}

fn crate_of(target: &str) -> &str {
    target.split("::").next().unwrap_or(target)
}

/// A pattern without `::` matches the last part of a module's path. `/` is `::`, as in the paths of files.
fn matches(pattern: &str, target: &str) -> bool {
    let pattern = pattern.replace('/', "::");
    let name = if pattern.contains("::") {
        target
    } else {
        target.rsplit("::").next().unwrap_or(target)
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
            let next = fits.iter().zip(text).map(|(fits, byte)| *fits && (*sign == b'?' || sign == byte));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(others: u8, modules: &[(&str, u8)]) -> Verbosity {
        let module = |(pattern, verbosity): &(&str, u8)| ModuleVerbosity {
            pattern: (*pattern).to_owned(),
            verbosity: *verbosity,
        };
        Verbosity {
            modules: modules.iter().map(module).collect(),
            others,
            providers: vec!["acme"],
        }
    }

    #[test]
    fn verbosity_maps_to_levels_and_every_other_crate_is_a_library() {
        use LevelFilter as L;
        for (targets, levels) in [
            (
                &[
                    "cloud_controller_manager",
                    "ccm_core::client",
                    "ccm_provider_aws",
                    "acme::nodes",
                ][..],
                [L::INFO, L::INFO, L::DEBUG, L::TRACE, L::TRACE],
            ),
            (
                // The client for metadata of instances prints its token at trace.
                &[
                    "aws_smithy_runtime::client::orchestrator",
                    "aws_config::imds",
                    "h2::codec",
                    "acmed",
                    "log",
                ],
                [L::WARN, L::INFO, L::INFO, L::INFO, L::DEBUG],
            ),
        ] {
            for target in targets {
                let all = [0, 2, 4, 6, 8].map(|verbosity| filter(verbosity, &[]).level(target));
                assert_eq!(all, levels, "{target}");
            }
        }
    }

    #[test]
    fn modules_have_their_own_number() {
        let filter = filter(
            0,
            &[
                ("refresh", 4),
                ("ccm_core::client::*", 6),
                ("cloud_controller_manager/*", 4),
                ("proto", 2),
                ("kube_client*::*", 9),
                ("quiet*", 0),
            ],
        );
        for (target, level) in [
            ("acme::node::refresh", LevelFilter::DEBUG),
            ("acme::refresh::all", LevelFilter::INFO),
            ("ccm_core::client::gate", LevelFilter::TRACE),
            ("ccm_core::client", LevelFilter::INFO),
            ("cloud_controller_manager::process", LevelFilter::DEBUG),
            ("hyper::proto", LevelFilter::INFO),
            // Never trace from a library.
            ("kube_client::client::builder", LevelFilter::DEBUG),
            ("hyper::quietly", LevelFilter::WARN),
            ("acme", LevelFilter::INFO),
        ] {
            assert_eq!(filter.level(target), level, "{target}");
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
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
