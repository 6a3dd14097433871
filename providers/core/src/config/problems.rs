//! The problems of a config file, collected so that all are reported at once.

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

use super::gcfg::{Position, SyntaxError, fold};
use crate::{
    Environment,
    error::{Error, ErrorKind},
};

/// The most problems that are shown; further ones are only counted.
const MAX_SHOWN: usize = 100;

/// The maximum length of a message. Longer ones, which repeat a long value, are cut.
const MAX_MESSAGE: usize = 400;

/// Names a section, or a key in it. Case-insensitive, except for the subsection.
///
/// Converted from `"Section"`, `("Section", "key")` or `("Section", "subsection", "key")`. A YAML or JSON file has no sections:
/// there, use [`KeyPath::key`].
#[derive(Clone, Copy, Debug)]
pub struct KeyPath<'a> {
    section: &'a str,
    subsection: Option<&'a str>,
    key: Option<&'a str>,
}

impl<'a> From<&'a str> for KeyPath<'a> {
    fn from(section: &'a str) -> Self {
        Self {
            section,
            subsection: None,
            key: None,
        }
    }
}

impl<'a> From<(&'a str, &'a str)> for KeyPath<'a> {
    fn from((section, key): (&'a str, &'a str)) -> Self {
        Self {
            section,
            subsection: None,
            key: Some(key),
        }
    }
}

impl<'a> From<(&'a str, &'a str, &'a str)> for KeyPath<'a> {
    fn from((section, subsection, key): (&'a str, &'a str, &'a str)) -> Self {
        Self {
            section,
            subsection: Some(subsection),
            key: Some(key),
        }
    }
}

impl<'a> KeyPath<'a> {
    pub(super) fn new(section: &'a str, subsection: Option<&'a str>, key: Option<&'a str>) -> Self {
        Self {
            section,
            subsection,
            key,
        }
    }

    /// A key of a file without sections.
    #[must_use]
    pub const fn key(key: &'a str) -> Self {
        Self {
            section: "",
            subsection: None,
            key: Some(key),
        }
    }

    /// The canonical form, for comparison and lookup. The path of a section has an empty key.
    fn normal(&self) -> NormalPath {
        NormalPath {
            section: fold(self.section).collect(),
            subsection: self.subsection.unwrap_or_default().to_owned(),
            key: self.key.map(|key| fold(key).collect()).unwrap_or_default(),
        }
    }

    pub(super) fn section_only(self) -> Self {
        Self { key: None, ..self }
    }

    /// The header as written in the file; empty for a file without sections.
    fn header(&self) -> String {
        match self.subsection {
            _ if self.section.is_empty() => String::new(),
            Some(name) if !name.is_empty() => format!("[{} {name:?}]", self.section),
            _ => format!("[{}]", self.section),
        }
    }

    /// The name of a key of this section in messages.
    pub(super) fn with_key(self, key: &str) -> String {
        format!("{} {key}", self.header())
    }

    /// The name of the place in errors of the Go library.
    pub(super) fn place(&self) -> String {
        let subsection = self.subsection.map(|name| format!(", subsection {name:?}")).unwrap_or_default();
        let variable = self.key.map(|key| format!(", variable {key:?}")).unwrap_or_default();
        format!("section {:?}{subsection}{variable}", self.section)
    }
}

/// The name in messages: `[Section] key`, `[Section "subsection"] key`, or only `key` if the file has no sections.
impl fmt::Display for KeyPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.header().as_str(), self.key) {
            (header, None) => f.write_str(header),
            ("", Some(key)) => f.write_str(key),
            (header, Some(key)) => write!(f, "{header} {key}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NormalPath {
    section: String,
    subsection: String,
    key: String,
}

/// The positions of the sections and keys in a file.
#[derive(Clone, Debug, Default)]
pub struct Locations(BTreeMap<NormalPath, Position>);

impl Locations {
    pub(super) fn add(&mut self, path: KeyPath<'_>, position: Position) {
        // The last occurrence is in effect.
        self.0.insert(path.normal(), position);
    }

    /// The position of the section or key; `None` if the file does not contain it.
    #[must_use]
    pub fn get<'a>(&self, path: impl Into<KeyPath<'a>>) -> Option<Position> {
        self.0.get(&path.into().normal()).copied()
    }

    /// Whether the file contains the section or key.
    #[must_use]
    pub fn is_set<'a>(&self, path: impl Into<KeyPath<'a>>) -> bool {
        self.get(path).is_some()
    }

    /// The position of the key, or of its section if the key is missing.
    #[must_use]
    pub fn nearest<'a>(&self, path: impl Into<KeyPath<'a>>) -> Option<Position> {
        let path = path.into();
        self.get(path).or_else(|| self.get(path.section_only()))
    }
}

/// One error or warning. `Display` is one line with file, line, column and correction.
#[derive(Clone, Debug)]
pub struct Problem {
    file: Arc<str>,
    position: Option<Position>,
    path: Option<NormalPath>,
    /// The path in messages, if the message begins with it.
    named: Option<String>,
    message: String,
}

impl Problem {
    /// The file, as the user gave it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line in the file, from 1, if the problem has one.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.position.map(|position| position.line)
    }

    /// Line and column, if the problem has them.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// The section and key, such as `[Global] region`, if the problem has them; and the message without them.
    #[must_use]
    pub fn split(&self) -> (Option<&str>, &str) {
        let named = self.named.as_deref();
        let rest = named.and_then(|named| self.message.strip_prefix(named)?.strip_prefix(": "));
        match rest {
            Some(rest) => (named, rest),
            None => (None, &self.message),
        }
    }

    /// The message, with section and key, without the place in the file. Never contains a secret.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "{}:{position}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

/// Collects the problems of a config, from the reader of the file and from the provider's own checks.
#[derive(Clone, Debug)]
pub struct Problems {
    file: Arc<str>,
    locations: Locations,
    environment: Environment,
    /// The variables that messages name in place of keys of a file without sections.
    variables: BTreeMap<&'static str, &'static str>,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Problems {
    /// No problems yet. Messages begin with `source`: the path of the file, as the user gave it.
    #[must_use]
    pub fn new(source: &str, locations: Locations) -> Self {
        Self {
            file: source.into(),
            locations,
            environment: Environment::default(),
            variables: BTreeMap::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub(super) fn with_environment(self, environment: &Environment) -> Self {
        Self {
            environment: environment.clone(),
            ..self
        }
    }

    /// The value of a key's variable. If it is set, or the file does not contain the key, messages name the variable.
    pub(super) fn variable(&mut self, key: &'static str, variable: &'static str) -> Option<String> {
        let value = self.environment.var(variable).map(str::to_owned);
        if value.is_some() || !self.locations.is_set(KeyPath::key(key)) {
            self.variables.insert(key, variable);
        }
        value
    }

    /// The positions of the keys in the file.
    #[must_use]
    pub fn locations(&self) -> &Locations {
        &self.locations
    }

    /// Adds an error about a section or key, which need not be in the file ("missing"). The message
    /// contains the error and the correction; section, key and place are prepended. A key gets at most one error: after the
    /// first, its value is only a default.
    pub fn error<'a>(&mut self, path: impl Into<KeyPath<'a>>, message: impl fmt::Display) {
        let problem = self.about(path.into(), &message);
        if problem.path.is_none() || self.errors.iter().all(|error| error.path != problem.path) {
            self.errors.push(problem);
        }
    }

    /// As [`error`](Self::error), unless the value is valid.
    pub fn require<'a>(&mut self, is_valid: bool, path: impl Into<KeyPath<'a>>, message: impl fmt::Display) {
        if !is_valid {
            self.error(path, message);
        }
    }

    /// Adds a warning about a section or key.
    pub fn warn<'a>(&mut self, path: impl Into<KeyPath<'a>>, message: impl fmt::Display) {
        let problem = self.about(path.into(), &message);
        self.warnings.push(problem);
    }

    /// Adds a problem with a key of another file, such as one that the config file names.
    pub fn add_in(&mut self, file: &Path, position: Position, key: &str, message: &str, is_error: bool) {
        let text = format!("{key}: {message}");
        let problem = Problem {
            file: file.to_string_lossy().into(),
            named: Some(key.to_owned()),
            // The value of the whole file has no key.
            ..self.problem(Some(position), None, text.trim_start_matches(": ").to_owned())
        };
        let problems = if is_error {
            &mut self.errors
        } else {
            &mut self.warnings
        };
        problems.push(problem);
    }

    /// Whether there are errors so far.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Returns the warnings, in the order of the file.
    ///
    /// # Errors
    /// All errors and warnings, in the order of the file.
    pub fn finish(mut self) -> Result<Vec<Problem>, ConfigErrors> {
        let order = |problem: &Problem| {
            let is_other = problem.file != self.file;
            (is_other, problem.position.is_none(), problem.position)
        };
        self.errors.sort_by_key(order);
        self.warnings.sort_by_key(order);
        if self.errors.is_empty() {
            Ok(self.warnings)
        } else {
            Err(ConfigErrors {
                errors: self.errors,
                warnings: self.warnings,
            })
        }
    }

    fn about(&self, path: KeyPath<'_>, message: &dyn fmt::Display) -> Problem {
        let path = match path.key.and_then(|key| self.variables.get(key)) {
            Some(variable) if path.section.is_empty() => KeyPath::key(variable),
            _ => path,
        };
        let problem = self.problem(self.locations.nearest(path), Some(path), format!("{path}: {message}"));
        Problem {
            named: Some(path.to_string()),
            ..problem
        }
    }

    fn problem(&self, position: Option<Position>, path: Option<KeyPath<'_>>, mut message: String) -> Problem {
        if let Some((cut, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(cut);
            message.push_str(" ...");
        }
        // A message is one line, whatever value it repeats.
        let message = message.replace(char::is_control, " ");
        Problem {
            file: Arc::clone(&self.file),
            position,
            path: path.map(|path| path.normal()),
            named: None,
            message,
        }
    }

    /// Adds an error whose text already names its subject.
    pub(super) fn error_at(&mut self, position: Position, path: Option<KeyPath<'_>>, message: String) {
        let problem = self.problem(Some(position), path, message);
        self.errors.push(problem);
    }

    pub(super) fn syntax_error(&mut self, error: &SyntaxError) {
        let hint = error.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        self.error_at(error.position, None, format!("{}{hint}", error.message));
    }

    /// Adds an error about a value inside of the value of a key. `inside`: the path to it from the key.
    pub(super) fn error_inside(&mut self, position: Position, key: KeyPath<'_>, inside: &str, message: &str) {
        let named = format!("{key}{inside}");
        let problem = self.problem(Some(position), Some(key), format!("{named}: {message}"));
        self.errors.push(Problem {
            named: Some(named),
            ..problem
        });
    }

    /// Adds a warning about an unknown key at a known position.
    pub(super) fn warn_at(&mut self, position: Position, path: KeyPath<'_>, message: &str) {
        let problem = Problem {
            position: Some(position),
            ..self.about(path, &message)
        };
        self.warnings.push(problem);
    }

    pub(super) fn locations_mut(&mut self) -> &mut Locations {
        &mut self.locations
    }
}

/// All errors of a config, in the order of the file. `Display` is one line for each. Never empty.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl ConfigErrors {
    /// The errors.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.errors
    }

    /// The warnings beside them. A misspelled key may be the reason for a missing one.
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.errors.iter().take(MAX_SHOWN).enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        let more = self.errors.len().saturating_sub(MAX_SHOWN);
        if more > 0 {
            write!(f, "\nand {more} more")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigErrors> for Error {
    fn from(errors: ConfigErrors) -> Self {
        Self::new(ErrorKind::InvalidConfig, errors.to_string())
    }
}
