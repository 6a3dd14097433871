//! Flags on the command line: their declarations by providers, and their values.
//!
//! Values have the syntax of Go's flag libraries, so that manifests of other cloud-controller-managers work.
//! A provider declares its flags as constants ([`FlagDef`]) and reads their values with the same constants:
//!
//! ```
//! use ccm_core::{FlagValues, provider_flags};
//!
//! provider_flags! {
//!     /// For `register_provider!`.
//!     const FLAGS;
//!
//!     /// How many nodes are labeled at once.
//!     SYNCS = "acme-concurrent-syncs": Number(1), "4";
//! }
//!
//! assert_eq!(FLAGS[0].help, "How many nodes are labeled at once");
//! assert!(SYNCS.check(&["0".to_owned()]).is_err());
//! assert_eq!(FlagValues::default().number(&SYNCS), 4);
//! ```

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use crate::config::duration;

/// The declaration of a flag, for `--help` and the check of the command line.
#[derive(Clone, Copy, Debug)]
pub struct FlagDef {
    /// The name without dashes in front, such as `cluster-name`.
    pub name: &'static str,
    /// The kind of the value.
    pub kind: FlagKind,
    /// The value if the flag is not set. Empty for none.
    pub default: &'static str,
    /// The text for `--help`: sentences without a period at the end.
    pub help: &'static str,
}

/// The kinds of values. The names are those of `pflag`, the flag library of Kubernetes, if it has the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// `true` or `false`, written after `=`; the flag alone is `true`.
    Bool,
    /// A duration with units, such as `1m30s`; not negative.
    Duration,
    /// A duration above zero.
    Period,
    /// A whole number from this minimum to 2147483647.
    Number(i64),
    /// A decimal number that is not negative.
    Float,
    /// Any text.
    Text,
    /// The path of a file or folder.
    File,
    /// An IP address.
    Address,
    /// A list separated by commas, in one or several flags; no item is empty.
    List,
    /// A list of whole numbers.
    Numbers,
    /// May be repeated, one value each, commas included (`stringArray`). `--help` shows a value under this name.
    Array(&'static str),
}

impl FlagKind {
    /// The name of a value in `--help`.
    #[must_use]
    pub fn value_name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Duration | Self::Period => "DURATION",
            Self::Number(_) | Self::Float => "NUMBER",
            Self::Text => "TEXT",
            Self::File => "FILE",
            Self::Address => "IP",
            Self::List => "LIST",
            Self::Numbers => "NUMBERS",
            Self::Array(name) => name,
        }
    }

    /// Whether all values are used if the flag is repeated; otherwise the last one is used.
    #[must_use]
    pub fn is_repeated(self) -> bool {
        matches!(self, Self::List | Self::Numbers | Self::Array(_))
    }
}

/// Declares the flags of a provider, `NAME = "name": Kind, "default";` with the help as doc comment, and the list of them.
#[macro_export]
macro_rules! provider_flags {
    (
        $(#[$about:meta])*
        $vis:vis const $all:ident;
        $(
            $(#[doc = $help:literal])+
            $flag:ident = $name:literal: $kind:ident $(($detail:expr))?, $default:literal;
        )+
    ) => {
        $(
            $(#[doc = $help])+
            $vis const $flag: $crate::FlagDef = $crate::FlagDef::new(
                $name,
                $crate::FlagKind::$kind $(($detail))?,
                $default,
                ::core::concat!($($help),+),
            );
        )+

        $(#[$about])*
        $vis const $all: &[$crate::FlagDef] = &[$($flag),+];
    };
}

impl FlagDef {
    /// A flag whose help may be a doc comment, with a leading space and a final period.
    #[must_use]
    pub const fn new(name: &'static str, kind: FlagKind, default: &'static str, help: &'static str) -> Self {
        let text = help.trim_ascii();
        let help = match text.as_bytes() {
            [sentence @ .., b'.'] => match std::str::from_utf8(sentence) {
                Ok(sentence) => sentence,
                Err(_) => text,
            },
            _ => text,
        };
        Self {
            name,
            kind,
            default,
            help,
        }
    }

    /// Checks the syntax of the values, in the order of the command line.
    ///
    /// # Errors
    /// The text for the user.
    pub fn check(&self, values: &[String]) -> Result<(), String> {
        let last = values.last().map(String::as_str).unwrap_or_default();
        let checked = match self.kind {
            FlagKind::Bool => parse_bool(last).map(drop),
            FlagKind::Duration | FlagKind::Period if last.is_empty() && self.default.is_empty() => Ok(()),
            FlagKind::Duration => parse_duration(last).map(drop),
            FlagKind::Period => parse_period(last).map(drop),
            FlagKind::Number(least) => parse_integer(last).and_then(|number| {
                if (least..=i64::from(i32::MAX)).contains(&number) {
                    return Ok(());
                }
                Err(format!("it must be between {least} and {}", i32::MAX))
            }),
            FlagKind::Float => parse_float(last).and_then(|number| {
                if number < 0.0 {
                    return Err("it must not be negative".to_owned());
                }
                Ok(())
            }),
            FlagKind::Address => parse_address(last).map(drop),
            FlagKind::List => {
                let items = self.items(values)?;
                if items.iter().any(|item| item.trim().is_empty()) {
                    return Err(format!("--{0}: empty value in {0:?}", self.name));
                }
                Ok(())
            }
            FlagKind::Numbers => {
                for item in self.items(values)? {
                    parse_integer(&item).map_err(|reason| self.invalid(&item, &reason))?;
                }
                Ok(())
            }
            FlagKind::Text | FlagKind::File | FlagKind::Array(_) => Ok(()),
        };
        checked.map_err(|reason| self.invalid(last, &reason))
    }

    /// Whether these well-formed values equal the default.
    #[must_use]
    pub fn is_default(&self, values: &[String]) -> bool {
        let last = values.last().map(String::as_str).unwrap_or_default();
        match self.kind {
            FlagKind::Bool => parse_bool(last) == parse_bool(self.default),
            FlagKind::Duration | FlagKind::Period => {
                last == self.default || parse_duration(last) == parse_duration(self.default)
            }
            FlagKind::Number(_) => parse_integer(last) == parse_integer(self.default),
            FlagKind::Float => parse_float(last) == parse_float(self.default),
            FlagKind::List | FlagKind::Numbers | FlagKind::Array(_) => {
                self.items(values) == self.items(&[self.default])
            }
            FlagKind::Text | FlagKind::File | FlagKind::Address => last == self.default,
        }
    }

    fn items<S: AsRef<str>>(&self, values: &[S]) -> Result<Vec<String>, String> {
        let mut items = Vec::new();
        for value in values {
            let value = value.as_ref();
            items.extend(parse_list(value).map_err(|reason| self.invalid(value, &reason))?);
        }
        Ok(items)
    }

    fn invalid(&self, value: &str, reason: &str) -> String {
        format!("--{}: invalid value {value:?}: {reason}", self.name)
    }
}

/// The flags on the command line with their values, including those of the framework. Values of a provider's
/// flags are well formed. A flag that is not set has its default.
#[derive(Clone, Debug, Default)]
pub struct FlagValues(Arc<BTreeMap<String, Vec<String>>>);

impl FromIterator<(String, Vec<String>)> for FlagValues {
    fn from_iter<I: IntoIterator<Item = (String, Vec<String>)>>(given: I) -> Self {
        Self(Arc::new(given.into_iter().collect()))
    }
}

impl FlagValues {
    /// The values of the flag with this name, in order; `None` if it is not set.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// The text of the last value.
    #[must_use]
    pub fn text<'a>(&'a self, flag: &FlagDef) -> &'a str {
        let last = self.given(flag.name).and_then(<[String]>::last);
        last.map_or(flag.default, String::as_str)
    }

    /// A boolean.
    #[must_use]
    pub fn boolean(&self, flag: &FlagDef) -> bool {
        parse_bool(self.text(flag)).unwrap_or_default()
    }

    /// A duration; zero if the flag has no value.
    #[must_use]
    pub fn duration(&self, flag: &FlagDef) -> Duration {
        parse_duration(self.text(flag)).unwrap_or_default()
    }

    /// A whole number; zero if the flag has no value.
    #[must_use]
    pub fn number(&self, flag: &FlagDef) -> i64 {
        parse_integer(self.text(flag)).unwrap_or_default()
    }

    /// A decimal number; zero if the flag has no value.
    #[must_use]
    pub fn float(&self, flag: &FlagDef) -> f64 {
        parse_float(self.text(flag)).unwrap_or_default()
    }

    /// The items of all values. Those of an [`FlagKind::Array`] are the values themselves.
    #[must_use]
    pub fn list(&self, flag: &FlagDef) -> Vec<String> {
        let default = [flag.default.to_owned()];
        match (flag.kind, self.given(flag.name)) {
            (FlagKind::Array(_), Some(values)) => values.to_vec(),
            (FlagKind::Array(_), None) if flag.default.is_empty() => Vec::new(),
            (_, values) => flag.items(values.unwrap_or(&default)).unwrap_or_default(),
        }
    }
}

/// Reads a boolean.
///
/// # Errors
/// The text is invalid. The error is the correction, as in the other functions.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// Reads a duration that is not negative.
///
/// # Errors
/// See [`parse_bool`].
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(duration) if duration.is_negative() => Err("it must not be negative".to_owned()),
        Ok(duration) => Ok(duration.to_std()),
        Err(error) => Err(error.hint()),
    }
}

/// Reads a duration above zero.
///
/// # Errors
/// See [`parse_bool`].
pub fn parse_period(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it must be more than zero".to_owned()),
        period => Ok(period),
    }
}

/// Reads a whole number. Go also accepts `0x10`, `0o17`, `0b1` and `1_000`.
///
/// # Errors
/// See [`parse_bool`].
pub fn parse_integer(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "write a whole number".to_owned())
}

/// Reads a finite decimal number.
///
/// # Errors
/// See [`parse_bool`].
pub fn parse_float(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err("write a number such as 20 or 0.5".to_owned()),
    }
}

/// Reads an IP address; an IPv6 address may be in brackets.
///
/// # Errors
/// See [`parse_bool`].
pub fn parse_address(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(text)
        .parse()
        .map_err(|_| "write an IP address such as 0.0.0.0, 10.0.0.5 or ::1".to_owned())
}

/// Reads a list: one line of CSV, so that an item in double quotes may contain commas. An empty text has no items.
///
/// # Errors
/// See [`parse_bool`].
pub fn parse_list(text: &str) -> Result<Vec<String>, String> {
    split(text).ok_or_else(|| "unclosed double quote, or a double quote in the middle of an item".to_owned())
}

/// `None` if the quotes are unbalanced.
fn split(text: &str) -> Option<Vec<String>> {
    let mut items = Vec::new();
    if text.is_empty() {
        return Some(items);
    }
    let mut rest = text;
    loop {
        let after = match rest.strip_prefix('"') {
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (item, after) = rest.split_at(end);
                if item.contains('"') {
                    return None;
                }
                items.push(item.to_owned());
                after
            }
            Some(mut quoted) => {
                let mut item = String::new();
                loop {
                    let (part, after) = quoted.split_once('"')?;
                    item.push_str(part);
                    // A doubled quote is an escaped quote.
                    match after.strip_prefix('"') {
                        Some(more) => {
                            item.push('"');
                            quoted = more;
                        }
                        None => {
                            items.push(item);
                            break after;
                        }
                    }
                }
            }
        };
        if after.is_empty() {
            return Some(items);
        }
        rest = after.strip_prefix(',')?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const fn flag(kind: FlagKind, default: &'static str) -> FlagDef {
        FlagDef {
            name: "x",
            kind,
            default,
            help: "For a test",
        }
    }

    fn given(values: &[&str]) -> FlagValues {
        let values = values.iter().map(ToString::to_string).collect();
        [("x".to_owned(), values)].into_iter().collect()
    }

    #[test]
    fn wrong_values_are_errors_that_name_the_flag() {
        for (kind, wrong) in [
            (FlagKind::Bool, "yes"),
            (FlagKind::Duration, "5"),
            (FlagKind::Duration, ""),
            (FlagKind::Period, "0s"),
            (FlagKind::Number(1), "0"),
            (FlagKind::Number(1), "2147483648"),
            (FlagKind::Float, "-1"),
            (FlagKind::Float, "NaN"),
            (FlagKind::Address, "localhost"),
            (FlagKind::List, "a,,b"),
            (FlagKind::List, "\"a"),
            (FlagKind::Numbers, "1,b"),
        ] {
            let error = flag(kind, "1").check(&[wrong.to_owned()]).unwrap_err();
            assert!(error.starts_with("--x: "), "{kind:?} {wrong}: {error}");
        }
        let unset = flag(FlagKind::Period, "");
        assert_eq!(unset.check(&[String::new()]), Ok(()), "an empty value equals the empty default");
    }

    #[test]
    fn values_are_those_of_the_command_line_or_the_default() {
        let none = FlagValues::default();
        assert!(none.boolean(&flag(FlagKind::Bool, "true")));
        assert!(!given(&["true", "false"]).boolean(&flag(FlagKind::Bool, "true")));
        let period = flag(FlagKind::Period, "90s");
        assert_eq!(none.duration(&period).as_secs(), 90);
        assert_eq!(given(&["1s"]).duration(&period).as_secs(), 1);
        assert_eq!(given(&["7"]).number(&flag(FlagKind::Number(0), "1")), 7);
        let list = flag(FlagKind::List, "a,b");
        assert_eq!(none.list(&list), ["a", "b"]);
        assert_eq!(given(&["c,d", "e"]).list(&list), ["c", "d", "e"]);
        let array = flag(FlagKind::Array("K=V"), "");
        assert_eq!(given(&["c,d", "e"]).list(&array), ["c,d", "e"]);
        assert!(none.list(&array).is_empty());
    }
}
