//! Reads the flags of the section "Logs".

use super::{flags, value::Reader};
use crate::config::{LogFormat, LoggingConfig, ModuleVerbosity};

pub(super) fn logging(reader: &mut Reader) -> LoggingConfig {
    let verbosity = reader.integer(flags::VERBOSITY).unwrap_or(0);
    let format = match reader.text(flags::LOGGING_FORMAT).as_str() {
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        other => {
            reader.invalid(flags::LOGGING_FORMAT, other, "write text or json");
            LogFormat::Text
        }
    };
    // Go takes any number; there is nothing below 0 nor above 10.
    LoggingConfig {
        verbosity: u8::try_from(verbosity.clamp(0, 10)).unwrap_or(0),
        modules: modules(reader),
        format,
    }
}

fn modules(reader: &mut Reader) -> Vec<ModuleVerbosity> {
    let mut modules = Vec::new();
    for item in reader
        .all(flags::VMODULE)
        .iter()
        .flat_map(|value| value.split(','))
    {
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
