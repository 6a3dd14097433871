//! Values of flags as Go's flag packages parse them. Errors are collected until all flags have been read.

use std::{collections::BTreeMap, fmt::Display, net::IpAddr, path::PathBuf, time::Duration};

use ccm_core::{FlagKind, flags};

use super::{OptionError, flags::Flag};
use crate::config::OutputFormat;

/// Reads values and collects the errors, so that a user sees all of them at once.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The values of all flags, defaults included.
    values: BTreeMap<String, Vec<String>>,
    pub(super) errors: Vec<OptionError>,
    /// Values that are accepted with a warning in the log.
    pub(super) warnings: Vec<String>,
}

impl Reader {
    pub(super) fn new(values: impl IntoIterator<Item = (String, Vec<String>)>) -> Self {
        Self {
            values: values.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Adds an error.
    pub(super) fn refuse(&mut self, message: impl Into<String>) {
        self.errors.push(OptionError::new(message));
    }

    /// Adds a warning for the log.
    pub(super) fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// Refuses a value of this flag.
    pub(super) fn invalid(&mut self, flag: Flag, value: &str, why: impl Display) {
        self.refuse(format!("--{}: invalid value {value:?}: {why}", flag.def.name));
    }

    /// Every value of a flag that may be repeated.
    pub(super) fn all(&self, flag: Flag) -> Vec<String> {
        self.values.get(flag.def.name).cloned().unwrap_or_default()
    }

    /// The value as text.
    pub(super) fn text(&self, flag: Flag) -> String {
        self.all(flag).pop().unwrap_or_default()
    }

    /// The value as text. An empty value means that the flag was not given, as in Go.
    pub(super) fn non_empty(&self, flag: Flag) -> Option<String> {
        Some(self.text(flag)).filter(|value| !value.is_empty())
    }

    /// The path of a file or folder, if one was given.
    pub(super) fn path(&self, flag: Flag) -> Option<PathBuf> {
        self.non_empty(flag).map(PathBuf::from)
    }

    /// Parses a value, and collects the error.
    fn parsed<T>(&mut self, flag: Flag, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let value = self.text(flag);
        parse(&value).map_err(|reason| self.invalid(flag, &value, reason)).ok()
    }

    /// A Go boolean.
    pub(super) fn boolean(&mut self, flag: Flag) -> bool {
        self.parsed(flag, flags::parse_bool).unwrap_or_default()
    }

    /// A Go duration; above zero if the kind of the flag requires that.
    pub(super) fn duration(&mut self, flag: Flag) -> Duration {
        let parsed = match flag.def.kind {
            FlagKind::Period => self.parsed(flag, flags::parse_period),
            _ => self.parsed(flag, flags::parse_duration),
        };
        parsed.unwrap_or_default()
    }

    /// A whole number.
    pub(super) fn integer(&mut self, flag: Flag) -> Option<i64> {
        self.parsed(flag, flags::parse_integer)
    }

    /// A whole number in the range of its type, or the error that it `must` be in there.
    pub(super) fn number<T: TryFrom<i64>>(&mut self, flag: Flag, must: &str) -> Option<T> {
        let number = self.integer(flag)?;
        let Ok(value) = T::try_from(number) else {
            self.refuse(format!("--{} {number} {must}", flag.def.name));
            return None;
        };
        Some(value)
    }

    /// `text` or `json`.
    pub(super) fn format(&mut self, flag: Flag) -> OutputFormat {
        let format = self.parsed(flag, |value| match value {
            "text" => Ok(OutputFormat::Text),
            "json" => Ok(OutputFormat::Json),
            _ => Err("write text or json".to_owned()),
        });
        format.unwrap_or_default()
    }

    /// A finite decimal number.
    pub(super) fn float(&mut self, flag: Flag) -> Option<f64> {
        self.parsed(flag, flags::parse_float)
    }

    /// A part of a whole, from 0 to 1; also as `25%`.
    pub(super) fn share(&mut self, flag: Flag) -> f64 {
        let share = self.parsed(flag, |value| {
            let number = match value.strip_suffix('%') {
                Some(percent) => percent.parse::<f64>().map(|number| number / 100.0),
                None => value.parse(),
            };
            let share = number.ok().filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| "write a number from 0 to 1, or 0% to 100%".to_owned())
        });
        share.unwrap_or_default()
    }

    /// The items of a list: separated by commas, in one or several values. An item may be in double quotes, as in CSV.
    pub(super) fn list(&mut self, flag: Flag) -> Vec<String> {
        let mut items = Vec::new();
        for value in self.all(flag) {
            match flags::parse_list(&value) {
                Ok(parsed) => items.extend(parsed),
                Err(reason) => self.invalid(flag, &value, reason),
            }
        }
        items
    }

    /// An IP address; an IPv6 address may be in brackets.
    pub(super) fn address(&mut self, flag: Flag) -> Option<IpAddr> {
        self.parsed(flag, flags::parse_address)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::{
        super::flags::{
            BIND_ADDRESS, CONTROLLERS, LEADER_ELECT, NODE_DELETION_SHARE, NODE_MONITOR_PERIOD, SHUTDOWN_DRAIN,
        },
        *,
    };

    /// Reads these values of a flag.
    fn read<T>(flag: Flag, values: &[&str], read: impl Fn(&mut Reader, Flag) -> T) -> (T, Vec<String>) {
        let values = values.iter().map(ToString::to_string).collect();
        let mut reader = Reader::new([(flag.def.name.to_owned(), values)]);
        let value = read(&mut reader, flag);
        (value, reader.errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn booleans_are_those_of_go() {
        for (texts, expected) in [
            (["1", "t", "T", "true", "TRUE", "True"], true),
            (["0", "f", "F", "false", "FALSE", "False"], false),
        ] {
            for text in texts {
                let (value, errors) = read(LEADER_ELECT, &[text], Reader::boolean);
                assert_eq!((value, errors.len()), (expected, 0), "{text}");
            }
        }
        for text in ["", "yes", "on", "tRUE", " true"] {
            assert_eq!(read(LEADER_ELECT, &[text], Reader::boolean).1.len(), 1, "{text}");
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        let duration = |text| read(SHUTDOWN_DRAIN, &[text], Reader::duration);
        assert_eq!(duration("1h2m3.5s"), (Duration::from_millis(3_723_500), Vec::new()));
        assert_eq!(duration("0"), (Duration::ZERO, Vec::new()));
        for (value, text) in [
            ("5", "write 5s for seconds"),
            ("-1s", "must not be negative"),
            ("fast", "units"),
        ] {
            let (_, errors) = duration(value);
            assert!(errors[0].contains(text), "{value}: {errors:?}");
        }
        for value in ["0s", "nonsense"] {
            let (_, errors) = read(NODE_MONITOR_PERIOD, &[value], Reader::duration);
            assert_eq!(errors.len(), 1, "one error each: {errors:?}");
        }
    }

    #[test]
    fn a_share_is_a_number_or_percent() {
        for (value, share) in [
            ("0.25", 0.25),
            ("25%", 0.25),
            ("0", 0.0),
            ("100%", 1.0),
            ("1", 1.0),
        ] {
            let (read, errors) = read(NODE_DELETION_SHARE, &[value], Reader::share);
            assert!((read - share).abs() < 1e-9 && errors.is_empty(), "{value}");
        }
        for value in ["25", "101%", "-0.1", "", "%", "NaN", "a quarter"] {
            let (_, errors) = read(NODE_DELETION_SHARE, &[value], Reader::share);
            assert_eq!(errors.len(), 1, "{value}");
        }
    }

    #[test]
    fn lists_are_split_at_commas_and_may_be_repeated() {
        for (values, items) in [
            (&["a,b", "c"][..], &["a", "b", "c"][..]),
            (&[""], &[]),
            (&["a,"], &["a", ""]),
            (&["\"a,b\",c"], &["a,b", "c"]),
            (&["\"a\"\"b\""], &["a\"b"]),
            (&[" a , b "], &[" a ", " b "]),
        ] {
            let (list, errors) = read(CONTROLLERS, values, Reader::list);
            assert_eq!(list, items, "{values:?}");
            assert!(errors.is_empty());
        }
        for value in ["\"a", "a\"b", "\"a\"b", "\""] {
            assert_eq!(read(CONTROLLERS, &[value], Reader::list).1.len(), 1, "{value}");
        }
    }

    #[test]
    fn addresses_may_be_in_brackets() {
        let address = |text| read(BIND_ADDRESS, &[text], Reader::address);
        assert_eq!(address("[::1]"), address("::1"));
        assert!(address("::1").1.is_empty());
        for text in ["localhost", "10.0.0.1:443"] {
            let (value, errors) = address(text);
            assert_eq!((value, errors.len()), (None, 1), "{text}");
        }
    }
}
