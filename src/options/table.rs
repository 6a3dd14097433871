//! Flags that are taken but do not do, or do not yet do, what they do elsewhere.
//!
//! Manifests carry such flags, and a program that takes another one's place must not fail over one that asks for
//! nothing. Nor may it nod at one that asks for something and then not do it. So each of these flags has a [`Status`],
//! in one table ([`rows`]) from which help, documents and behaviour come. A flag that is not in the table works.
//!
//! The rule:
//!
//! - A value that *switches on* something missing, or asks for a protection that would not be there, is **refused**, and
//!   the error says what to write meanwhile. So is a value of another flag that names something missing
//!   (`--controllers=service`).
//! - A value that switches it off is accepted without a word. One that is the default elsewhere, though it asks for
//!   something missing, is accepted with a **warning**: the person only wrote down what happens anyway.
//! - A *detail* of something missing (a period, a port, a file of its own) turns nothing on. It is accepted with a
//!   **warning** if it is not what is the default elsewhere.
//! - What this program needs no telling is accepted: with a **warning** if somebody may count on the effect, else
//!   without a word.
//! - A deprecated flag is accepted with a **warning** whatever its value.
//!
//! In every case the value must be well formed.

mod rows;

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};

use super::{BOOLEAN, value::Reader};

/// A flag that is taken.
pub(super) struct Row {
    /// Its section of `--help`.
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Empty for none.
    pub(super) default: &'static str,
    /// What it is for.
    pub(super) meaning: &'static str,
    pub(super) status: Status,
}

/// What can be said with the flag here.
pub(super) enum Status {
    /// It asks for something that is missing: why or what instead. Refused unless off or the default.
    NotYet(&'static str),
    /// A detail of something that is missing.
    NoEffectYet(&'static str),
    /// Nothing here depends on it, and somebody may think so.
    NoEffect(&'static str),
    /// What it asks for is so anyway, or makes no difference that could be noticed.
    Moot(&'static str),
    /// Deprecated elsewhere, and without effect here.
    Deprecated(&'static str),
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Duration,
    /// A duration above zero.
    Period,
    /// A whole number, at least this.
    Number(i64),
    Text,
    File,
    Address,
    /// A list whose items must not be empty.
    List,
    /// A list of whole numbers.
    Numbers,
    /// May be repeated, one value each.
    Pairs,
}

impl Row {
    fn arg(&self) -> Arg {
        let help = match self.status {
            Status::NotYet(why) => format!("{}. Not there yet: {why}", self.meaning),
            Status::NoEffectYet(why) => format!("{}. No effect yet: {why}", self.meaning),
            Status::NoEffect(why) | Status::Moot(why) => format!("{}. No effect: {why}", self.meaning),
            Status::Deprecated(why) => format!("{}. Deprecated: {why}", self.meaning),
        };
        let arg = Arg::new(self.name)
            .long(self.name)
            .help(help)
            .help_heading(self.section)
            .value_name(self.kind.value_name())
            .default_value(self.default)
            .hide_default_value(self.default.is_empty());
        arg.action(match self.kind {
            Kind::List | Kind::Numbers | Kind::Pairs => ArgAction::Append,
            _ => ArgAction::Set,
        })
    }

    /// Checks the form of the values that were given and says whether it is fine.
    fn is_well_formed(&self, values: &[String], reader: &mut Reader) -> bool {
        let before = reader.errors.len();
        let last = values.last().map(String::as_str).unwrap_or_default();
        match self.kind {
            Kind::Bool => {
                reader.boolean(self.name, last);
            }
            // Unset, where that is possible.
            Kind::Duration | Kind::Period if last.is_empty() && self.default.is_empty() => {}
            Kind::Duration => {
                reader.duration(self.name, last);
            }
            Kind::Period => {
                reader.positive_duration(self.name, last);
            }
            Kind::Number(least) => {
                let number = reader.integer(self.name, last);
                if number.is_some_and(|number| number < least || number > i64::from(i32::MAX)) {
                    reader.invalid(
                        self.name,
                        last,
                        format!("it must be between {least} and {}", i32::MAX),
                    );
                }
            }
            Kind::Address => {
                reader.address(self.name, last);
            }
            Kind::List => {
                let items = reader.list(self.name, values);
                if items.iter().any(|item| item.trim().is_empty()) {
                    reader.refuse(format!("--{0}: empty value in {0:?}", self.name));
                }
            }
            Kind::Numbers => {
                for item in reader.list(self.name, values) {
                    reader.integer(self.name, &item);
                }
            }
            Kind::Text | Kind::File | Kind::Pairs => {}
        }
        reader.errors.len() == before
    }

    /// Whether these well-formed values come to the same as the default.
    fn is_default(&self, values: &[String]) -> bool {
        let mut reader = Reader::default();
        let last = values.last().map(String::as_str).unwrap_or_default();
        match self.kind {
            Kind::Bool => reader.boolean("", last) == reader.boolean("", self.default),
            Kind::Duration | Kind::Period => {
                last == self.default || reader.duration("", last) == reader.duration("", self.default)
            }
            Kind::Number(_) => reader.integer("", last) == reader.integer("", self.default),
            Kind::List | Kind::Numbers | Kind::Pairs => {
                reader.list("", values) == reader.list("", &[self.default])
            }
            Kind::Text | Kind::File | Kind::Address => last == self.default,
        }
    }

    fn judge(&self, values: &[String], reader: &mut Reader) {
        if !self.is_well_formed(values, reader) {
            return;
        }
        let flag = format!("--{}={}", self.name, values.join(","));
        match self.status {
            Status::Deprecated(why) => reader.warn(format!("deprecated: --{}: {why}", self.name)),
            Status::NotYet(why) if self.is_default(values) => {
                // Only a boolean can have a default that asks for something.
                if self.default == "true" {
                    reader.warn(format!("{flag}: not there yet: {why}"));
                }
            }
            Status::NotYet(_) if self.is_off(values) => {}
            Status::NotYet(why) => {
                let instead = match self.kind {
                    Kind::Bool => format!("leave it out or write --{}=false", self.name),
                    _ => "leave it out".to_owned(),
                };
                reader.refuse(format!("{flag}: not there yet: {why}; {instead}"));
            }
            _ if self.is_default(values) => {}
            Status::NoEffectYet(why) => reader.warn(format!("{flag} has no effect yet: {why}")),
            Status::NoEffect(why) => reader.warn(format!("{flag} has no effect: {why}")),
            Status::Moot(_) => {}
        }
    }

    fn is_off(&self, values: &[String]) -> bool {
        match self.kind {
            Kind::Bool => values
                .last()
                .is_some_and(|value| !Reader::default().boolean("", value)),
            _ => values.iter().all(String::is_empty),
        }
    }
}

impl Kind {
    fn value_name(self) -> &'static str {
        match self {
            Self::Bool => BOOLEAN,
            Self::Duration | Self::Period => "DURATION",
            Self::Number(_) => "NUMBER",
            Self::Text => "TEXT",
            Self::File => "FILE",
            Self::Address => "IP",
            Self::List => "LIST",
            Self::Numbers => "NUMBERS",
            Self::Pairs => "CERT,KEY[:NAMES]",
        }
    }
}

/// Adds the flags of one section.
pub(super) fn add(command: Command, section: &str) -> Command {
    rows::ROWS
        .iter()
        .filter(|row| row.section == section)
        .fold(command, |command, row| command.arg(row.arg()))
}

/// Checks all of these flags that were given.
pub(super) fn judge(given: &Given, reader: &mut Reader) {
    for row in rows::ROWS {
        if let Some(values) = given.values(row.name) {
            row.judge(values, reader);
        }
    }
}

/// The flags that stand on the command line, with their values.
#[derive(Clone, Debug, Default)]
pub(super) struct Given(BTreeMap<String, Vec<String>>);

impl Given {
    pub(super) fn new(command: &Command, matches: &ArgMatches) -> Self {
        let given = command.get_arguments().filter_map(|arg| {
            let id = arg.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                return None;
            }
            let values = matches
                .get_raw(id)?
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            Some((arg.get_long()?.to_owned(), values))
        });
        Self(given.collect())
    }

    /// The values of the flag of this name; `None` if it is not there.
    pub(super) fn values(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Whether the flag is there with a value that is not empty.
    pub(super) fn has_value(&self, name: &str) -> bool {
        self.values(name)
            .is_some_and(|values| values.iter().any(|value| !value.is_empty()))
    }
}

#[cfg(test)]
mod tests;
