//! Values of flags as Go's flag packages read them, with every error kept until all flags have been read.

use std::{fmt::Display, net::IpAddr, time::Duration};

use ccm_core::flags;

use super::OptionError;

/// Reads values and keeps the errors, so that a user sees all of them at once.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) errors: Vec<OptionError>,
    /// What is accepted but worth a word in the log.
    pub(super) warnings: Vec<String>,
}

impl Reader {
    /// Keeps an error in our own words.
    pub(super) fn refuse(&mut self, message: impl Into<String>) {
        self.errors.push(OptionError::new(message));
    }

    /// Keeps a warning for the log.
    pub(super) fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// Refuses a value for being none of this flag's.
    pub(super) fn invalid(&mut self, flag: &str, value: &str, why: impl Display) {
        self.refuse(format!("--{flag}: invalid value {value:?}: {why}"));
    }

    /// Keeps the error of a value that cannot be parsed.
    fn parsed<T>(&mut self, flag: &str, value: &str, parsed: Result<T, String>) -> Option<T> {
        parsed.map_err(|reason| self.invalid(flag, value, reason)).ok()
    }

    /// A Go boolean.
    pub(super) fn boolean(&mut self, flag: &str, value: &str) -> bool {
        self.parsed(flag, value, flags::parse_bool(value))
            .unwrap_or_default()
    }

    /// A Go duration.
    pub(super) fn duration(&mut self, flag: &str, value: &str) -> Duration {
        self.parsed(flag, value, flags::parse_duration(value))
            .unwrap_or_default()
    }

    /// A Go duration above zero.
    pub(super) fn positive_duration(&mut self, flag: &str, value: &str) -> Duration {
        self.parsed(flag, value, flags::parse_period(value))
            .unwrap_or_default()
    }

    /// A whole number.
    pub(super) fn integer(&mut self, flag: &str, value: &str) -> Option<i64> {
        self.parsed(flag, value, flags::parse_integer(value))
    }

    /// A finite decimal number.
    pub(super) fn float(&mut self, flag: &str, value: &str) -> Option<f64> {
        self.parsed(flag, value, flags::parse_float(value))
    }

    /// A part of a whole, from 0 to 1; also as `25%`.
    pub(super) fn share(&mut self, flag: &str, value: &str) -> f64 {
        let number = match value.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().map(|number| number / 100.0),
            None => value.parse(),
        };
        match number {
            Ok(share) if (0.0..=1.0).contains(&share) => share,
            _ => {
                self.invalid(flag, value, "write a number from 0 to 1, or 0% to 100%");
                0.0
            }
        }
    }

    /// The items of a list: separated by commas, in one or several of these values. An item may stand in double quotes,
    /// as in a line of CSV.
    pub(super) fn list<S: AsRef<str>>(&mut self, flag: &str, values: &[S]) -> Vec<String> {
        let parsed = values
            .iter()
            .filter_map(|value| self.parsed(flag, value.as_ref(), flags::parse_list(value.as_ref())));
        parsed.flatten().collect()
    }

    /// An IP address; an IPv6 address may stand in brackets.
    pub(super) fn address(&mut self, flag: &str, value: &str) -> Option<IpAddr> {
        self.parsed(flag, value, flags::parse_address(value))
    }
}

/// An empty value means that the flag was not given, as in Go.
pub(super) fn non_empty(value: &str) -> Option<&str> {
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn booleans_are_those_of_go() {
        let mut reader = Reader::default();
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert!(reader.boolean("x", text), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert!(!reader.boolean("x", text), "{text}");
        }
        assert!(reader.errors.is_empty());
        for text in ["", "yes", "on", "tRUE", " true"] {
            reader.boolean("x", text);
        }
        assert_eq!(reader.errors.len(), 5);
    }

    #[test]
    fn durations_are_those_of_go() {
        let mut reader = Reader::default();
        assert_eq!(reader.duration("x", "1h2m3.5s"), Duration::from_millis(3_723_500));
        assert_eq!(reader.duration("x", "0"), Duration::ZERO);
        assert!(reader.errors.is_empty());
        for (value, text) in [
            ("5", "write 5s for seconds"),
            ("-1s", "must not be negative"),
            ("fast", "units"),
        ] {
            reader.errors.clear();
            reader.duration("x", value);
            let error = reader.errors.first().unwrap().to_string();
            assert!(error.contains(text), "{value}: {error}");
        }
        reader.errors.clear();
        reader.positive_duration("x", "0s");
        reader.positive_duration("x", "nonsense");
        assert_eq!(reader.errors.len(), 2, "one error each: {:?}", reader.errors);
    }

    #[test]
    fn a_share_is_a_number_or_percent() {
        let mut reader = Reader::default();
        for (value, share) in [
            ("0.25", 0.25),
            ("25%", 0.25),
            ("0", 0.0),
            ("100%", 1.0),
            ("1", 1.0),
        ] {
            assert!((reader.share("x", value) - share).abs() < 1e-9, "{value}");
        }
        assert!(reader.errors.is_empty());
        for value in ["25", "101%", "-0.1", "", "%", "NaN", "a quarter"] {
            reader.errors.clear();
            reader.share("x", value);
            assert_eq!(reader.errors.len(), 1, "{value}");
        }
    }

    #[test]
    fn lists_are_split_at_commas_and_may_be_repeated() {
        let mut reader = Reader::default();
        for (values, items) in [
            (&["a,b", "c"][..], &["a", "b", "c"][..]),
            (&[""], &[]),
            (&["a,"], &["a", ""]),
            (&["\"a,b\",c"], &["a,b", "c"]),
            (&["\"a\"\"b\""], &["a\"b"]),
            (&[" a , b "], &[" a ", " b "]),
        ] {
            assert_eq!(reader.list("x", values), items, "{values:?}");
        }
        assert!(reader.errors.is_empty());
        for value in ["\"a", "a\"b", "\"a\"b", "\""] {
            reader.errors.clear();
            reader.list("x", &[value]);
            assert_eq!(reader.errors.len(), 1, "{value}");
        }
    }

    #[test]
    fn addresses_may_stand_in_brackets() {
        let mut reader = Reader::default();
        assert_eq!(reader.address("x", "[::1]"), reader.address("x", "::1"));
        assert!(reader.errors.is_empty());
        assert_eq!(reader.address("x", "localhost"), None);
        assert_eq!(reader.address("x", "10.0.0.1:443"), None);
        assert_eq!(reader.errors.len(), 2);
    }
}
