//! The config files of the clouds: Go's `gcfg` dialect, read into documented structs, with every mistake reported at
//! once.
//!
//! | Module | Holds |
//! |---|---|
//! | [`gcfg`] | the dialect: from text to a document with positions |
//! | [`value`] | from the text of a key to a value, by serde |
//! | [`config_section!`], [`config_file!`] | the structs: key, type, default and meaning in one place |
//! | [`problems`] | errors and warnings with line and column; a provider's own checks add to the same list |
//! | [`docs`] | the reference for users, generated from the structs |
//! | [`duration`] | Go durations, for flags too |
//! | [`suggest`] | "did you mean ...?", for flags and names of providers too |
//!
//! Secrets are `secrecy::SecretString`. Neither they nor their texts appear in errors, warnings or `Debug`.

pub mod docs;
pub mod duration;
pub mod gcfg;
mod macros;
mod probe;
pub mod problems;
mod section;
pub mod suggest;
#[cfg(test)]
mod tests;
pub mod value;

use std::path::Path;

pub use self::{
    docs::{KeyDoc, SectionDoc},
    duration::GoDuration,
    gcfg::Position,
    problems::{ConfigErrors, KeyPath, Locations, Problem, Problems},
    section::{ConfigFile, FileField, FileReader, Section, SectionReader, same_value},
};
pub use crate::{config_file, config_section};

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
        let hint = error.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        problems.error_at(error.position, None, format!("{}{hint}", error.message));
    }
    let locations = problems.locations().clone();
    let warnings = problems.finish()?;
    Ok(Parsed {
        value,
        warnings,
        locations,
    })
}
