//! The reference of a config file, generated from the structs that read it.
//!
//! Name, type, default, example and meaning of each key come from the field: its type is the one that
//! it deserializes from, and its meaning is the doc comment. The example is the end of the doc comment, as in `Example: 5s.` with
//! the value in backquotes.

use std::fmt::{self, Write as _};

use serde::de::DeserializeOwned;

use super::{
    probe::ValueKind,
    section::{ConfigFile, Section, is_secret},
};

/// What precedes the example in a doc comment.
const EXAMPLE: &str = " Example: `";

/// The documentation of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDoc {
    /// The key as written in the file.
    pub name: &'static str,
    /// The type of its value: `string`, `bool`, `duration`, `list of string`, or the choices.
    pub kind: String,
    /// Its default as written in the file; empty if there is none.
    pub default: String,
    /// An example of its value, as written in the file; empty if there is none.
    pub example: String,
    /// The doc comment as one line, without the example.
    pub about: String,
    /// Whether its value must never be shown.
    pub secret: bool,
}

impl KeyDoc {
    /// Describes a key of type `T`.
    #[must_use]
    pub fn of<T>(name: &'static str, default: &T, about: &[&str]) -> Self
    where
        T: DeserializeOwned + fmt::Debug + 'static,
    {
        let secret = is_secret::<T>();
        let kind = ValueKind::of::<T>();
        let default = if secret {
            String::new()
        } else {
            written(&format!("{default:?}"), &kind)
        };
        let meaning = one_line(about);
        let (about, example) = match meaning.split_once(EXAMPLE) {
            Some((about, example)) => (about.to_owned(), example.trim_end_matches("`.").to_owned()),
            None => (meaning, String::new()),
        };
        Self {
            name,
            kind: kind.to_string(),
            default,
            example,
            about,
            secret,
        }
    }

    /// Describes the environment variable of the key.
    #[must_use]
    pub fn with_variable(mut self, variable: &str) -> Self {
        let separated = if self.kind.starts_with("list") {
            ", separated by commas"
        } else {
            ""
        };
        // Writing to a string cannot fail.
        let _ = write!(self.about, " Variable `{variable}`{separated}.");
        self
    }
}

/// The documentation of one section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionDoc {
    /// The section's name.
    pub name: &'static str,
    /// Whether it has subsections, each with its own name.
    pub named: bool,
    /// The doc comment as one line.
    pub about: String,
    /// Its keys, in the order of the struct.
    pub keys: Vec<KeyDoc>,
}

impl SectionDoc {
    pub(super) fn new(name: &'static str, named: bool, about: &[&str], keys: Vec<KeyDoc>) -> Self {
        Self {
            name,
            named,
            about: one_line(about),
            keys,
        }
    }

    /// The header as written in the file.
    #[must_use]
    pub fn header(&self) -> String {
        if self.named {
            format!("[{} \"name\"]", self.name)
        } else {
            format!("[{}]", self.name)
        }
    }
}

/// Renders the reference of a config file as Markdown: per section a heading of the given level (1 to 6), its doc
/// comment and a table of its keys. `is_live` returns whether a change of a key, as `[Section] key`, takes effect without a
/// restart. Ends with a line break.
#[must_use]
pub fn markdown<T: ConfigFile>(heading_level: usize, is_live: impl Fn(&str) -> bool) -> String {
    let marks = "#".repeat(heading_level.clamp(1, 6));
    let mut sections = Vec::new();
    for section in T::sections() {
        let header = section.header();
        let table = table(&section, |key| is_live(&format!("{header} {key}")));
        sections.push(format!("{marks} `{header}`\n\n{table}"));
    }
    sections.join("\n")
}

/// Renders the reference of a YAML or JSON config file as Markdown: its doc comment and a table of its keys. `is_live`
/// returns whether a change of a key takes effect without a restart. Ends with a line break.
#[must_use]
pub fn yaml_markdown<S: Section>(is_live: impl Fn(&str) -> bool) -> String {
    table(&SectionDoc::new("", false, S::ABOUT, S::keys()), is_live)
}

fn table(section: &SectionDoc, is_live: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    if !section.about.is_empty() {
        text.push_str(&section.about);
        text.push_str("\n\n");
    }
    text.push_str(
        "| Key | Type | Default | Example | Changes take effect | Meaning |\n|---|---|---|---|---|---|\n",
    );
    for key in &section.keys {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {}{} | {} | {} | {} | {} |",
            key.name,
            cell(&key.kind),
            if key.secret { ", secret" } else { "" },
            code(&key.default),
            code(&key.example),
            if is_live(key.name) {
                "at once"
            } else {
                "after a restart"
            },
            cell(&key.about)
        );
    }
    text
}

/// A value in a cell, marked as code.
fn code(value: &str) -> String {
    if value.is_empty() {
        return String::new();
    }
    format!("`{}`", cell(value))
}

/// Escapes `|`, which would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', r"\|")
}

fn one_line(lines: &[&str]) -> String {
    lines
        .iter()
        .map(|line| line.trim())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A variant's name in any spelling: `RoundRobin`, `round-robin`.
fn plain(name: &str) -> String {
    name.replace(['-', '_'], "").to_lowercase()
}

/// The text of a default in the file, from its `Debug` text.
fn written(debug: &str, kind: &ValueKind) -> String {
    let inner = debug.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(debug);
    if let ValueKind::OneOf(variants) = kind
        && let Some(variant) = variants.iter().find(|variant| plain(variant) == plain(inner))
    {
        return (*variant).to_owned();
    }
    let list = inner.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(inner);
    let text = if list.matches('"').count() == 2 {
        list.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(list)
    } else {
        list
    };
    if text == "None" {
        String::new()
    } else {
        text.to_owned()
    }
}
