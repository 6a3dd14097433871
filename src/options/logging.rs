//! Reads the flags of the section "Logs".

use super::{flags, value::Reader};
use crate::config::{LoggingConfig, ModuleVerbosity};

pub(super) fn logging(reader: &mut Reader) -> LoggingConfig {
    let verbosity = reader.integer(flags::VERBOSITY).unwrap_or(0);
    LoggingConfig {
        verbosity: level(verbosity),
        format: reader.format(flags::LOGGING_FORMAT),
        modules: modules(reader),
    }
}

/// Go accepts any number, but there is nothing below 0 or above 10.
fn level(number: i64) -> u8 {
    u8::try_from(number.clamp(0, 10)).unwrap_or_default()
}

fn modules(reader: &mut Reader) -> Vec<ModuleVerbosity> {
    let mut modules = Vec::new();
    let values = reader.all(flags::VMODULE).join(",");
    for item in values.split(',').filter(|item| !item.is_empty()) {
        match item.split_once('=') {
            Some((pattern, number)) if !pattern.is_empty() && !number.is_empty() => {
                match number.parse::<u32>() {
                    Ok(number) => modules.push(ModuleVerbosity {
                        pattern: pattern.to_owned(),
                        verbosity: level(number.into()),
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
