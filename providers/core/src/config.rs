//! The config files of the clouds: Go's `gcfg` dialect, YAML or JSON, read into documented structs, with every mistake
//! reported at once.
//!
//! | Module | Holds |
//! |---|---|
//! | [`gcfg`] | the dialect: from text to a document with positions |
//! | [`yaml`] | YAML and JSON: from text to values with positions, for config files and for other readers |
//! | [`value`] | from the text of a key to a value, by serde |
//! | [`config_section!`], [`config_file!`] | the structs: key, type, default and meaning in one place |
//! | [`quota_section!`] | the section of quotas, three keys for each service |
//! | [`load()`], [`load_yaml()`], [`Reloader`] | from the files to what a provider runs with, at the start and while it runs |
//! | [`problems`] | errors and warnings with line and column; a provider's own checks add to the same list |
//! | [`docs`] | the reference for users, generated from the structs |
//! | [`duration`] | Go durations, for flags too |
//! | [`suggest`] | "did you mean ...?", for flags and names of providers too |
//!
//! Secrets are `secrecy::SecretString`. Neither they nor their texts appear in errors, warnings or `Debug`.

pub mod docs;
pub mod duration;
pub mod gcfg;
mod load;
mod macros;
mod probe;
pub mod problems;
mod quota;
mod section;
pub mod suggest;
#[cfg(test)]
mod tests;
pub mod value;
pub mod yaml;

use std::path::Path;

pub use self::{
    docs::{KeyDoc, SectionDoc},
    duration::GoDuration,
    gcfg::Position,
    load::{
        ConfigFiles, LoadError, PendingReload, Reloader, load, load_optional, load_yaml, log_warnings,
        validate,
    },
    problems::{ConfigErrors, KeyPath, Locations, Problem, Problems},
    quota::check_quota,
    section::{Changes, ConfigFile, FileField, FileReader, Section, SectionReader, same_value},
    yaml::KeyCase,
};
use crate::Environment;
pub use crate::{config_file, config_section, quota_section};

/// A config file that was read without errors.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// The config.
    pub value: T,
    /// What is suspicious, above all names that are not known. To be logged.
    pub warnings: Vec<Problem>,
    /// Which keys the file gives, and where: for checks that come later.
    pub locations: Locations,
}

/// Reads a config file. `file` is its path as the user gave it, for the messages only.
///
/// # Errors
/// Everything that is wrong with syntax and types, in the order of the file.
pub fn parse<T: ConfigFile>(
    text: impl AsRef<[u8]>,
    file: impl AsRef<Path>,
) -> Result<Parsed<T>, ConfigErrors> {
    parse_with(text, file, |_, _| ())
}

/// Reads a YAML or JSON config file, whose keys are those of one [`config_section!`]. Maps and lists are values of keys:
/// the type of such a field is anything that serde deserializes, best a struct with `#[serde(default)]`.
///
/// A key that is unknown, at any depth of structs, or that is given twice is a warning. A key with `null` keeps its
/// default. `file` is the file's path as the user gave it, for the messages only. `check` as in [`parse_with`]; it names
/// keys by [`KeyPath::key`]. A key's variable in `environment` wins over the file; messages about a value that is from
/// there, or from nowhere, name the variable.
///
/// # Errors
/// Everything that is wrong, in the order of the file. A file with a syntax error is not read any further.
pub fn parse_yaml<S: Section>(
    text: impl AsRef<[u8]>,
    file: impl AsRef<Path>,
    case: KeyCase,
    environment: &Environment,
    check: impl FnOnce(&S, &mut Problems),
) -> Result<Parsed<S>, ConfigErrors> {
    let problems = Problems::new(&file.as_ref().to_string_lossy(), Locations::default());
    let mut problems = problems.with_environment(environment);
    let mut value = S::default();
    match yaml::utf8(text.as_ref()).and_then(yaml::document) {
        Err(error) => problems.syntax_error(&error),
        Ok(Some(root)) if !matches!(root.value, yaml::Value::Map(_)) => {
            let message = format!("the file holds {}; write keys with values", root.value.kind());
            problems.error_at(root.at, None, message);
        }
        Ok(root) => {
            value = section::read_yaml(root.as_ref(), case, &mut problems);
            check(&value, &mut problems);
        }
    }
    finish(value, problems)
}

/// As [`parse`], with checks of the config's meaning whose errors and warnings join the others.
///
/// Where a value is of the wrong type the check sees the default, and what it says of that key is dropped. It does not
/// run at all if there is a syntax error, since any key may then be missing.
///
/// # Errors
/// Everything that is wrong, in the order of the file.
pub fn parse_with<T: ConfigFile>(
    text: impl AsRef<[u8]>,
    file: impl AsRef<Path>,
    check: impl FnOnce(&T, &mut Problems),
) -> Result<Parsed<T>, ConfigErrors> {
    let (document, syntax_errors) = gcfg::parse(text);
    let problems = Problems::new(&file.as_ref().to_string_lossy(), Locations::default());
    let mut reader = FileReader::new(&document, problems);
    let value = T::read(&mut reader);
    let mut problems = reader.finish::<T>();
    if syntax_errors.is_empty() {
        check(&value, &mut problems);
    }
    for error in syntax_errors {
        problems.syntax_error(&error);
    }
    finish(value, problems)
}

fn finish<T>(value: T, problems: Problems) -> Result<Parsed<T>, ConfigErrors> {
    let locations = problems.locations().clone();
    let warnings = problems.finish()?;
    Ok(Parsed {
        value,
        warnings,
        locations,
    })
}
