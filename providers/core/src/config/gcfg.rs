//! The text of a Go cloud config: the dialect of `gcfg` (git-config-like INI), read into a document with positions.
//!
//! Syntax, meaning and error texts are those of the Go library, so that a file for the Go cloud-controller-managers has the same
//! meaning here:
//!
//! | Topic | Rule |
//! |---|---|
//! | Encoding | UTF-8; a byte-order mark is an error, so is a NUL; `\r` is white space, and is dropped from values |
//! | Section | `[name]` or `[name "sub"]`; letters, digits and `-`, beginning with a letter, case-insensitive; after it only a comment |
//! | Subsection | in double quotes, case-sensitive, escapes `\\` and `\"` only, never empty |
//! | Key | as a section's name |
//! | Value | `key = value`, white space around it dropped unless quoted |
//! | Comments | from `;` or `#` to the end of the line, also right inside a value, but not in quotes |
//! | Quotes | `"` switches quoting on and off anywhere in a value and is dropped; it must be closed on its line |
//! | Escapes | in quotes `\\`, `\"`, `\n` and `\t`; outside only `\"` and a backslash at the end of the line, which joins the next line |
//! | No `=` | a key alone has no value, which is not the same as an empty value |
//!
//! There are two differences. All syntax errors are found, not only the first: reading continues at the next line. The
//! position is that of the offending character; the Go library reports the start of the value.

mod cursor;
mod parser;
#[cfg(test)]
mod tests;

use std::fmt;

pub use parser::parse;

/// A place in a file. The column counts bytes, as in the Go library; both begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Byte in the line, from 1.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The name of a section, subsection or key, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub text: String,
    /// Its start.
    pub start: Position,
    /// Its end: just past its last character.
    pub end: Position,
}

impl Name {
    /// Whether this is `name`, ignoring case.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        same(&self.text, name)
    }
}

/// Whether two names are equal, ignoring case.
pub(super) fn same(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || fold(a).eq(fold(b))
}

/// The case-folded characters of a name.
pub(super) fn fold(name: &str) -> impl Iterator<Item = char> + '_ {
    name.chars().flat_map(char::to_lowercase)
}

/// A value without its quotes and escapes. It may be a secret, so `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub text: String,
    /// Its start in the file, at the quote if it has one.
    pub start: Position,
    /// Its end in the file: just past its last character, perhaps on a later line.
    pub end: Position,
    /// Whether a comment follows without a space: the `#` or `;` may have been meant as a part of the value.
    pub is_cut: bool,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("start", &self.start)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// One line `key` or `key = value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcfgEntry {
    /// The key.
    pub key: Name,
    /// The value; `None` if there is no `=`.
    pub value: Option<Value>,
}

impl GcfgEntry {
    /// Whether the value is the empty text.
    pub(super) fn is_empty(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.text.is_empty())
    }

    /// Where the value begins, or the key if there is no value.
    #[must_use]
    pub fn position(&self) -> Position {
        self.value.as_ref().map_or(self.key.start, |value| value.start)
    }
}

/// A section header and its keys. A section may occur more than once in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The section's name.
    pub name: Name,
    /// The subsection's name, if the header has one.
    pub subsection: Option<Name>,
    /// The keys in the order of the file.
    pub entries: Vec<GcfgEntry>,
}

/// A whole file, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Every section header with its keys.
    pub sections: Vec<Section>,
}

/// A syntax error. `Display` is `<line>:<column>: <message>` and the correction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {message}{}", hint.map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct SyntaxError {
    /// The offending character.
    pub position: Position,
    /// The error, with the text of the Go library. It repeats at most one character of the file.
    pub message: String,
    /// The correction, if there is one.
    pub hint: Option<&'static str>,
}
