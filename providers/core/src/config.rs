//! The config files of the clouds: Go's `gcfg` dialect, YAML or JSON, read into documented structs, with all errors
//! reported at once.
//!
//! | Module | Contents |
//! |---|---|
//! | [`gcfg`] | the dialect: parses text into a document with positions |
//! | [`yaml`] | YAML and JSON: parses text into values with positions, for config files and for other readers |
//! | [`value`] | deserializes the text of a key with serde |
//! | [`config_section!`], [`config_file!`] | the structs: key, type, default and meaning in one place |
//! | [`quota_section!`] | the section of quotas, three keys for each service |
//! | [`load()`], [`load_yaml()`], [`Reloader`] | read the files into a provider's settings, at the start and while it runs |
//! | [`problems`] | errors and warnings with line and column; a provider's own checks add to the same list |
//! | [`docs`] | the reference for users, generated from the structs |
//! | [`duration`] | Go durations, for flags too |
//! | [`http_url`], [`http_url_or_host`] | URLs, for flags too |
//! | [`suggest`] | "did you mean ...?", for flags and names of providers too |
//!
//! Secrets are `secrecy::SecretString`. Neither they nor their texts appear in errors, warnings or `Debug`.

pub mod docs;
pub mod duration;
pub mod gcfg;
mod load;
mod macros;
mod names;
mod probe;
pub mod problems;
mod quota;
mod section;
pub mod suggest;
#[cfg(test)]
mod tests;
mod url;
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
    names::NameList,
    problems::{ConfigErrors, KeyPath, Locations, Problem, Problems},
    quota::check_quota,
    section::{
        CompareValues, ConfigChanges, ConfigFile, FileField, FileReader, KeyValues, Section, SectionReader,
    },
    url::{http_url, http_url_or_host},
    yaml::KeyCase,
};
use crate::Environment;
pub use crate::{config_file, config_section, quota_section};

/// A config file that was read without errors.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// The config.
    pub value: T,
    /// The warnings, such as unknown names. To be logged.
    pub warnings: Vec<Problem>,
    /// The positions of the keys in the file, for later checks.
    pub locations: Locations,
}

/// Reads a config file. `file` is its path as the user gave it, for the messages only.
///
/// # Errors
/// All errors of syntax and types, in the order of the file.
pub fn parse<T: ConfigFile>(
    text: impl AsRef<[u8]>,
    file: impl AsRef<Path>,
) -> Result<Parsed<T>, ConfigErrors> {
    parse_with(text, file, |_, _| ())
}

/// Reads a YAML or JSON config file, whose keys are those of one [`config_section!`]. Maps and lists are values of keys:
/// the type of such a field is anything that serde deserializes, best a struct with `#[serde(default)]`.
///
/// An unknown key, at any depth, or a repeated key is a warning. A key with `null` keeps its
/// default. `file` is the file's path as the user gave it, for the messages only. `check` as in [`parse_with`]; it names
/// keys by [`KeyPath::key`]. A key's variable in `environment` overrides the file. Messages name the variable if the
/// value is from there, or if it is missing.
///
/// # Errors
/// All errors, in the order of the file. Reading stops at a syntax error.
pub fn parse_yaml<S: Section>(
    text: impl AsRef<[u8]>,
    file: impl AsRef<Path>,
    case: KeyCase,
    environment: &Environment,
    check: impl FnOnce(&S, &mut Problems),
) -> Result<Parsed<S>, ConfigErrors> {
    let mut problems =
        Problems::new(&file.as_ref().to_string_lossy(), Locations::default()).with_environment(environment);
    let mut value = S::default();
    match yaml::utf8(text.as_ref()).and_then(yaml::document) {
        Err(error) => problems.syntax_error(&error),
        Ok(Some(root)) if !matches!(root.value, yaml::Value::Map(_)) => {
            let message = format!("the file contains {}; write keys with values", root.value.kind());
            problems.error_at(root.at, None, message);
        }
        Ok(root) => {
            value = section::read_yaml(root.as_ref(), case, &mut problems);
            check(&value, &mut problems);
        }
    }
    finish(value, problems)
}

/// As [`parse`], with a semantic check whose errors and warnings are added to the others.
///
/// If a value has the wrong type, the check gets the default, and its errors about that key are dropped. After a syntax
/// error, the check does not run, since any key may be missing.
///
/// # Errors
/// All errors, in the order of the file.
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
