//! Flags of the section "Global": those that answer a question instead of running.

use ccm_core::Provider;
use clap::Args;

use super::{OptionError, value::Reader};
use crate::{COMMIT, providers};

/// The version of this build.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global")]
pub(super) struct GlobalOptions {
    /// Print this help.
    #[arg(short = 'h', long, action = clap::ArgAction::SetTrue)]
    help: bool,

    /// Print the version; =raw with details. =vX.Y.Z runs the program and makes it report that version.
    #[arg(
        long,
        value_name = "FORM",
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        hide_default_value = true,
        default_missing_value = "true"
    )]
    version: String,

    /// Print the cloud providers that are compiled into this binary.
    #[arg(long, value_name = "BOOL", default_value = "false", hide_default_value = true)]
    list_providers: String,

    /// Print what may stand in the config file of --cloud-provider, or of all compiled in.
    #[arg(long, value_name = "BOOL", default_value = "false", hide_default_value = true)]
    help_cloud_config: String,

    /// Print all metrics with their types, labels and meanings.
    #[arg(long, value_name = "BOOL", default_value = "false", hide_default_value = true)]
    help_metrics: String,
}

impl GlobalOptions {
    /// The answer, if a question was asked.
    pub(super) fn answer(
        &self,
        cloud_provider: &str,
        compiled_in: &[&'static Provider],
    ) -> Option<Result<String, OptionError>> {
        // A value that is no boolean is reported with all other errors.
        let mut reader = Reader::default();
        let asked = |value: &str, reader: &mut Reader| reader.boolean("", value);
        match self.version.as_str() {
            "raw" => return Some(Ok(raw_version(compiled_in))),
            text if !is_version(text) && asked(text, &mut reader) => {
                let commit = COMMIT.map_or_else(String::new, |commit| format!(" (commit {commit})"));
                return Some(Ok(format!("cloud-controller-manager v{VERSION}{commit}\n")));
            }
            _ => {}
        }
        if asked(&self.list_providers, &mut reader) {
            if compiled_in.is_empty() {
                return Some(Err(OptionError::new(providers::none_compiled_in())));
            }
            return Some(Ok(list(compiled_in)));
        }
        if asked(&self.help_cloud_config, &mut reader) {
            return Some(config_reference(cloud_provider, compiled_in).map_err(OptionError::new));
        }
        if asked(&self.help_metrics, &mut reader) {
            return Some(Ok(crate::server::METRICS_REFERENCE.to_owned()));
        }
        None
    }

    /// The version to report, without the `v`.
    pub(super) fn version(&self, reader: &mut Reader) -> String {
        reader.boolean("list-providers", &self.list_providers);
        reader.boolean("help-cloud-config", &self.help_cloud_config);
        reader.boolean("help-metrics", &self.help_metrics);
        match self.version.strip_prefix('v') {
            Some(version) if is_version(&self.version) => version.to_owned(),
            _ => {
                if !matches!(self.version.as_str(), "raw") && !is_boolean(&self.version) {
                    reader.refuse(format!(
                        "--version: invalid value {:?}: write raw or a version such as v1.2.3, or nothing",
                        self.version
                    ));
                }
                VERSION.to_owned()
            }
        }
    }
}

fn is_boolean(text: &str) -> bool {
    let mut reader = Reader::default();
    reader.boolean("", text);
    reader.errors.is_empty()
}

/// `v` and three numbers, and what semantic versioning lets follow.
fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else {
        return false;
    };
    let numbers_end = rest.find(['-', '+']).unwrap_or(rest.len());
    let (numbers, suffix) = rest.split_at(numbers_end);
    let parts: Vec<_> = numbers.split('.').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-+.".contains(&b);
    parts.len() == 3 && parts.iter().all(digits) && suffix.bytes().all(allowed)
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

fn list(compiled_in: &[&'static Provider]) -> String {
    let width = compiled_in
        .iter()
        .map(|provider| provider.name.len())
        .max()
        .unwrap_or(0);
    compiled_in
        .iter()
        .map(|provider| format!("{:width$}  {}\n", provider.name, provider.summary))
        .collect()
}

fn config_reference(cloud_provider: &str, compiled_in: &[&'static Provider]) -> Result<String, String> {
    if !cloud_provider.is_empty() {
        return providers::find(cloud_provider, compiled_in).map(|provider| (provider.config_reference)());
    }
    if compiled_in.is_empty() {
        return Err(providers::none_compiled_in());
    }
    Ok(compiled_in
        .iter()
        .map(|provider| format!("# {}\n\n{}", provider.name, (provider.config_reference)()))
        .collect::<Vec<_>>()
        .join("\n"))
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
