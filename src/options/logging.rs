//! Flags of the section "Logs".

use clap::Args;

use super::{
    config::{LogFormat, LoggingConfig},
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
            format,
        }
    }
}
