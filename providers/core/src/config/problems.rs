//! What is wrong with a config file: collected, so that all of it is reported at once.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::gcfg::{Position, SyntaxError, fold};
use crate::{
    Environment,
    error::{Error, ErrorKind},
};

/// More problems than this are counted, not shown: the file is then no config file at all.
const MAX_SHOWN: usize = 100;

/// A message longer than this is cut; it repeats a value of that length.
const MAX_MESSAGE: usize = 400;

/// Names a section, or a key in it. Case does not count, but for the subsection.
///
/// Made from `"Section"`, `("Section", "key")` or `("Section", "subsection", "key")`. A YAML or JSON file has no sections:
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

    /// The same in one form, to compare and to look up. A section is the key without a name.
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

    /// As the header is written in the file; empty for a file without sections.
    fn header(&self) -> String {
        match self.subsection {
            _ if self.section.is_empty() => String::new(),
            Some(name) if !name.is_empty() => format!("[{} {name:?}]", self.section),
            _ => format!("[{}]", self.section),
        }
    }

    /// The key of this section as messages name it.
    pub(super) fn with_key(self, key: &str) -> String {
        format!("{} {key}", self.header())
    }

    /// As the Go library names the place in its errors.
    pub(super) fn place(&self) -> String {
        let subsection = self
            .subsection
            .map(|name| format!(", subsection {name:?}"))
            .unwrap_or_default();
        let variable = self
            .key
            .map(|key| format!(", variable {key:?}"))
            .unwrap_or_default();
        format!("section {:?}{subsection}{variable}", self.section)
    }
}

/// As messages name it: `[Section] key`, `[Section "subsection"] key`, or only `key` if the file has no sections.
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

/// Which sections and keys a file gives, and where.
#[derive(Clone, Debug, Default)]
pub struct Locations(BTreeMap<NormalPath, Position>);

impl Locations {
    pub(super) fn add(&mut self, path: KeyPath<'_>, position: Position) {
        // The last one given is the one in force.
        self.0.insert(path.normal(), position);
    }

    /// Where the section or key stands; `None` if the file does not give it.
    #[must_use]
    pub fn get<'a>(&self, path: impl Into<KeyPath<'a>>) -> Option<Position> {
        self.0.get(&path.into().normal()).copied()
    }

    /// Whether the file gives the section or key.
    #[must_use]
    pub fn is_set<'a>(&self, path: impl Into<KeyPath<'a>>) -> bool {
        self.get(path).is_some()
    }

    /// Where to look for the key: its place, or that of its section if it is missing.
    #[must_use]
    pub fn nearest<'a>(&self, path: impl Into<KeyPath<'a>>) -> Option<Position> {
        let path = path.into();
        self.get(path).or_else(|| self.get(path.section_only()))
    }
}

/// One thing that is wrong, or worth a warning. `Display` is one line with file, line, column and what to do.
#[derive(Clone, Debug)]
pub struct Problem {
    file: Arc<str>,
    position: Option<Position>,
    path: Option<NormalPath>,
    /// The path as messages name it, if the message begins with it.
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

    /// The section and key that it is about, such as `[Global] region`, if it is about one; and what is wrong, without them.
    #[must_use]
    pub fn split(&self) -> (Option<&str>, &str) {
        let named = self.named.as_deref();
        let rest = named.and_then(|named| self.message.strip_prefix(named)?.strip_prefix(": "));
        match rest {
            Some(rest) => (named, rest),
            None => (None, &self.message),
        }
    }

    /// What is wrong: with section and key, without the place in the file. Never holds a secret.
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

/// Collects what is wrong with a config, by the reader of the file and by the provider's own checks alike.
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
    /// Nothing is wrong yet. `source` is what the messages begin with: the path of the file, as the user gave it.
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

    /// The value of a key's variable. If there is one, or the file does not give the key, messages name the variable.
    pub(super) fn variable(&mut self, key: &'static str, variable: &'static str) -> Option<String> {
        let value = self.environment.var(variable).map(str::to_owned);
        if value.is_some() || !self.locations.is_set(KeyPath::key(key)) {
            self.variables.insert(key, variable);
        }
        value
    }

    /// Which keys the file gives, and where.
    #[must_use]
    pub fn locations(&self) -> &Locations {
        &self.locations
    }

    /// Adds an error about a section or key, which need not be in the file ("missing"). Say what is wrong and what
    /// would be right; section, key and place are put in front. A key that has an error already gets no second one:
    /// its value is then only a default.
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

    /// Whether there is any error so far.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// The warnings if there was no error, else all errors in the order of the file.
    ///
    /// # Errors
    /// There was an error.
    pub fn finish(mut self) -> Result<Vec<Problem>, ConfigErrors> {
        self.errors
            .sort_by_key(|problem| (problem.position.is_none(), problem.position));
        self.warnings
            .sort_by_key(|problem| (problem.position.is_none(), problem.position));
        if self.errors.is_empty() {
            Ok(self.warnings)
        } else {
            Err(ConfigErrors(self.errors))
        }
    }

    fn about(&self, path: KeyPath<'_>, message: &dyn fmt::Display) -> Problem {
        let key = path.key.filter(|_| path.section.is_empty());
        let variable = key.and_then(|key| self.variables.get(key));
        let path = variable.map_or(path, |variable| KeyPath::key(variable));
        let problem = self.problem(
            self.locations.nearest(path),
            Some(path),
            format!("{path}: {message}"),
        );
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

    /// Adds an error whose text says by itself what it is about.
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

    /// Adds a warning about a key that has a place but is not known.
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

/// Everything that is wrong with a config, in the order of the file. `Display` is one line for each. Never empty.
#[derive(Clone, Debug)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// The problems.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.0.iter().take(MAX_SHOWN).enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        let more = self.0.len().saturating_sub(MAX_SHOWN);
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
