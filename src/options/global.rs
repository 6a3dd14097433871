//! Reads the flags of the section "Global", which print something instead of running.

use ccm_core::{Provider, flags::parse_bool};

use super::{
    OptionError,
    flags::{self, CLOUD_PROVIDER, HELP_CLOUD_CONFIG, HELP_METRICS, LIST_PROVIDERS},
    value::Reader,
};
use crate::{COMMIT, providers};

/// The version of this build.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The text to print instead of running, if a flag requests one. `Err`: it does not exist.
pub(super) fn answer(
    reader: &Reader,
    compiled_in: &[&'static Provider],
) -> Option<Result<String, OptionError>> {
    // A value that is not a boolean is reported with all other errors.
    let is_requested = |flag| parse_bool(&reader.text(flag)) == Ok(true);
    let text = if reader.text(flags::VERSION) == "raw" {
        Ok(raw_version(compiled_in))
    } else if is_requested(flags::VERSION) {
        let commit = COMMIT.map_or_else(String::new, |commit| format!(" (commit {commit})"));
        Ok(format!("cloud-controller-manager v{VERSION}{commit}\n"))
    } else if is_requested(LIST_PROVIDERS) {
        list(compiled_in)
    } else if is_requested(HELP_CLOUD_CONFIG) {
        config_reference(&reader.text(CLOUD_PROVIDER), compiled_in)
    } else if is_requested(HELP_METRICS) {
        Ok(crate::metrics::REFERENCE.to_owned())
    } else {
        return None;
    };
    Some(text.map_err(OptionError::new))
}

/// The version to report, without the `v`.
pub(super) fn version(reader: &mut Reader) -> String {
    for flag in [LIST_PROVIDERS, HELP_CLOUD_CONFIG, HELP_METRICS] {
        reader.boolean(flag);
    }
    let version = reader.text(flags::VERSION);
    if is_version(&version) {
        return version.trim_start_matches('v').to_owned();
    }
    if version != "raw" && parse_bool(&version).is_err() {
        let why = "write raw or a version such as v1.2.3, or nothing";
        reader.invalid(flags::VERSION, &version, why);
    }
    VERSION.to_owned()
}

/// Whether the text is `v` and a semantic version.
fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else {
        return false;
    };
    let numbers_end = rest.find(['-', '+']).unwrap_or(rest.len());
    let (numbers, suffix) = rest.split_at(numbers_end);
    let parts: Vec<_> = numbers.split('.').collect();
    parts.len() == 3
        && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        && suffix.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+.".contains(&b))
}

fn raw_version(compiled_in: &[&'static Provider]) -> String {
    let names: Vec<_> = compiled_in.iter().map(|provider| provider.name).collect();
    format!(
        "version: v{VERSION}\ncommit: {}\nproviders: {}\nplatform: {}/{}\nkubernetes_api: v1.33\n",
        COMMIT.unwrap_or("unknown"),
        names.join(","),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}

fn list(compiled_in: &[&'static Provider]) -> Result<String, String> {
    let widths = compiled_in.iter().map(|provider| provider.name.len());
    let width = widths.max().ok_or_else(providers::none_compiled_in)?;
    let lines = compiled_in
        .iter()
        .map(|provider| format!("{:width$}  {}\n", provider.name, provider.summary));
    Ok(lines.collect())
}

fn config_reference(cloud_provider: &str, compiled_in: &[&'static Provider]) -> Result<String, String> {
    if !cloud_provider.is_empty() || compiled_in.is_empty() {
        return providers::find(cloud_provider, compiled_in).map(|provider| (provider.config_reference)());
    }
    let all = compiled_in
        .iter()
        .map(|provider| format!("# {}\n\n{}", provider.name, (provider.config_reference)()));
    Ok(all.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_three_numbers_after_a_v() {
        for text in ["v1.2.3", "v0.10.0-rc.1", "v1.33.0+build"] {
            assert!(is_version(text), "{text}");
        }
        for text in ["1.2.3", "v1.2", "v1.2.x", "v1.2.3 4", "true", "raw", ""] {
            assert!(!is_version(text), "{text}");
        }
    }
}
