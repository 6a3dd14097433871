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

use ccm_core::{FlagDef, FlagKind, FlagValues, Provider};
use clap::{Arg, ArgAction, Command};

use super::value::Reader;

/// A flag that is accepted.
pub(super) struct Row {
    /// Its section of `--help`.
    pub(super) section: &'static str,
    /// Name, kind, default and what it is for.
    pub(super) flag: FlagDef,
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

/// The argument of a flag in this section of `--help`.
pub(super) fn arg(flag: &FlagDef, section: impl Into<clap::builder::Str>, help: String) -> Arg {
    Arg::new(flag.name)
        .long(flag.name)
        .help(help)
        .help_heading(section.into())
        .value_name(flag.kind.value_name())
        .default_value(flag.default)
        .hide_default_value(flag.default.is_empty())
        .action(match flag.kind.is_repeated() {
            true => ArgAction::Append,
            false => ArgAction::Set,
        })
}

impl Row {
    fn arg(&self) -> Arg {
        let meaning = self.flag.help;
        let help = match self.status {
            Status::NotYet(why) => format!("{meaning}. Not there yet: {why}"),
            Status::NoEffectYet(why) => format!("{meaning}. No effect yet: {why}"),
            Status::NoEffect(why) | Status::Moot(why) => format!("{meaning}. No effect: {why}"),
            Status::Deprecated(why) => format!("{meaning}. Deprecated: {why}"),
        };
        arg(&self.flag, self.section, help)
    }

    fn judge(&self, values: &[String], reader: &mut Reader) {
        if let Err(message) = self.flag.check(values) {
            return reader.refuse(message);
        }
        let FlagDef { name, kind, .. } = self.flag;
        let flag = format!("--{name}={}", values.join(","));
        match self.status {
            Status::Deprecated(why) => reader.warn(format!("deprecated: --{name}: {why}")),
            Status::NotYet(why) if self.flag.is_default(values) => {
                // Only a boolean can have a default that asks for something.
                if self.flag.default == "true" {
                    reader.warn(format!("{flag}: not there yet: {why}"));
                }
            }
            Status::NotYet(_) if self.is_off(values) => {}
            Status::NotYet(why) => {
                let instead = match kind {
                    FlagKind::Bool => format!("leave it out or write --{name}=false"),
                    _ => "leave it out".to_owned(),
                };
                reader.refuse(format!("{flag}: not there yet: {why}; {instead}"));
            }
            _ if self.flag.is_default(values) => {}
            Status::NoEffectYet(why) => reader.warn(format!("{flag} has no effect yet: {why}")),
            Status::NoEffect(why) => reader.warn(format!("{flag} has no effect: {why}")),
            Status::Moot(_) => {}
        }
    }

    fn is_off(&self, values: &[String]) -> bool {
        match self.flag.kind {
            FlagKind::Bool => values
                .last()
                .is_some_and(|value| !Reader::default().boolean("", value)),
            _ => values.iter().all(String::is_empty),
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

/// Whether a flag of this name is in the table.
pub(super) fn accepts(name: &str) -> bool {
    rows::ROWS.iter().any(|row| row.flag.name == name)
}

/// Checks all of these flags that were given. One that the chosen provider defines, too, is that of the provider.
pub(super) fn judge(given: &FlagValues, provider: Option<&Provider>, reader: &mut Reader) {
    let provided = provider.map_or(&[][..], |provider| provider.flags);
    for row in rows::ROWS {
        let name = row.flag.name;
        if let Some(values) = given.given(name)
            && provided.iter().all(|flag| flag.name != name)
        {
            row.judge(values, reader);
        }
    }
}

#[cfg(test)]
mod tests;
