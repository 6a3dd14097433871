//! Flags of the section "Logs".

use clap::Args;

use super::{
    config::{LogFormat, LoggingConfig, ModuleVerbosity},
    value::Reader,
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logs")]
pub(super) struct LoggingOptions {
    /// How much is logged, on standard error. 0: changes of state, and what went wrong. 2: the same of the libraries, too.
    /// 4: why things were done or left alone, retries, all flags at start. 6: requests to the API server and to the cloud,
    /// without their bodies. 8: everything. Secrets are never logged.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value = "0")]
    verbosity: String,

    /// How much parts of the program log, as pattern=LEVEL, separated by commas; the first that matches counts. A pattern
    /// stands for the last part of a module's name (refresh=6), or with :: or / in it for the whole name
    /// (ccm_core::client::*=6); * and ? stand for any characters. -v=4 prints these names.
    #[arg(long, value_name = "PATTERNS", default_value = "", hide_default_value = true, action = clap::ArgAction::Append)]
    vmodule: Vec<String>,

    /// The form of the log: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    logging_format: String,
}

impl LoggingOptions {
    pub(super) fn complete(&self, reader: &mut Reader) -> LoggingConfig {
        let verbosity = reader.integer("v", &self.verbosity).unwrap_or(0);
        let format = match self.logging_format.as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            other => {
                reader.refuse(format!(
                    "--logging-format: invalid value {other:?}: write text or json"
                ));
                LogFormat::Text
            }
        };
        // Go takes any number; there is nothing below 0 nor above 10.
        LoggingConfig {
            verbosity: u8::try_from(verbosity.clamp(0, 10)).unwrap_or(0),
            modules: self.modules(reader),
            format,
        }
    }

    fn modules(&self, reader: &mut Reader) -> Vec<ModuleVerbosity> {
        let mut modules = Vec::new();
        for item in self.vmodule.iter().flat_map(|value| value.split(',')) {
            if item.is_empty() {
                continue;
            }
            match item.split_once('=') {
                Some((pattern, level)) if !pattern.is_empty() && !level.is_empty() => {
                    // Go takes any number; there is nothing above 10.
                    match level.parse::<u32>() {
                        Ok(level) => modules.push(ModuleVerbosity {
                            pattern: pattern.to_owned(),
                            verbosity: u8::try_from(level.min(10)).unwrap_or(10),
                        }),
                        Err(_) => reader.refuse(format!(
                            "--vmodule: parsing verbosity in {item:?}: write a whole number after the ="
                        )),
                    }
                }
                _ => reader.refuse(format!("--vmodule: {item:?} does not have the pattern=N format")),
            }
        }
        modules
    }
}
