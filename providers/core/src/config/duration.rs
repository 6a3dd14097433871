//! Durations as Go writes them: `1m30s`, `0.5h`, `100ms`.
//!
//! Config files and flags of the cloud controllers contain Go durations. This module accepts, refuses and prints the same
//! texts as Go's `time.ParseDuration` and `Duration.String`, to the nanosecond.

#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// The newtype name that [`GoDuration`] passes to a deserializer; generated tables call it `duration`.
pub(super) const NEWTYPE: &str = "GoDuration";

const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1_000 * NANOSECOND;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// The magnitude of the most negative duration, one more than the greatest positive one.
const LIMIT: u64 = 1 << 63;

/// Every unit with its length; `µs` is accepted with the micro sign and with the Greek letter.
const UNITS: [(&str, u64); 8] = [
    ("ns", NANOSECOND),
    ("us", MICROSECOND),
    ("\u{b5}s", MICROSECOND),
    ("\u{3bc}s", MICROSECOND),
    ("ms", MILLISECOND),
    ("s", SECOND),
    ("m", MINUTE),
    ("h", HOUR),
];

/// A signed duration of whole nanoseconds, up to about 292 years, as in Go.
///
/// It reads ([`parse`], serde) and prints (`Display`, `Debug`) in Go form.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// The longest duration.
    pub const MAX: Self = Self(i64::MAX);

    /// A duration in seconds; [`GoDuration::MAX`] if that is too long.
    #[must_use]
    pub const fn from_secs(secs: u32) -> Self {
        Self((secs as i64).saturating_mul(SECOND as i64))
    }

    /// Whether it is below zero.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The `Duration` of the standard library; zero if the duration is negative.
    #[must_use]
    pub const fn to_std(self) -> Duration {
        if self.0 < 0 {
            Duration::ZERO
        } else {
            Duration::from_nanos(self.0.unsigned_abs())
        }
    }
}

impl From<Duration> for GoDuration {
    /// Longer durations become [`GoDuration::MAX`].
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format(*self))
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 90s or 1m30s")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
                inner.deserialize_str(self)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                parse(text).map_err(E::custom)
            }
        }

        deserializer.deserialize_newtype_struct(NEWTYPE, Visitor)
    }
}

/// The error of a text that is not a duration. `Display` is Go's own text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// The text has another form, or the duration is too long.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number without a unit, most often a bare number of seconds.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit that does not exist.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The text in place of the unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

impl DurationError {
    /// The correction.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::MissingUnit(text) if parse(&format!("{text}s")).is_ok() => {
                format!("write {text}s for seconds")
            }
            _ => "write a number with one of the units ns, us, ms, s, m, h, as in 90s or 1m30s".into(),
        }
    }
}

/// Reads a duration: an optional sign, then numbers each with a unit out of `ns us µs ms s m h`. A bare `0` is allowed.
///
/// # Errors
/// The text has another form, or the duration is longer than about 292 years.
pub fn parse(text: &str) -> Result<GoDuration, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(GoDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after_whole) = split_digits(rest);
        let (fraction, after_number) = match after_whole.strip_prefix('.') {
            Some(after_dot) => split_digits(after_dot),
            None => ("", after_whole),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let whole = read_whole(whole).ok_or_else(invalid)?;
        let unit_end =
            after_number.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after_number.len());
        let (unit, after_unit) = after_number.split_at(unit_end);
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.to_owned()));
        }
        let Some(&(_, length)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(DurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: text.to_owned(),
            });
        };
        let part = whole.checked_mul(length).filter(|nanos| *nanos <= LIMIT).ok_or_else(invalid)?;
        total = part
            .checked_add(read_fraction(fraction, length))
            .and_then(|part| total.checked_add(part))
            .filter(|nanos| *nanos <= LIMIT)
            .ok_or_else(invalid)?;
        rest = after_unit;
    }
    if negative {
        // The magnitude may be one more than the greatest positive value, and negating it wraps to the least one.
        return Ok(GoDuration(0_i64.wrapping_sub_unsigned(total)));
    }
    i64::try_from(total).map(GoDuration).map_err(|_| invalid())
}

/// Prints a duration as Go does: `5m0s`, `1.5s`, `100ms`, `0s`.
#[must_use]
pub fn format(duration: impl Into<GoDuration>) -> String {
    let duration: GoDuration = duration.into();
    let sign = if duration.is_negative() { "-" } else { "" };
    let nanos = duration.0.unsigned_abs();
    match nanos {
        0 => "0s".to_owned(),
        1..MICROSECOND => format!("{sign}{nanos}ns"),
        MICROSECOND..MILLISECOND => format!("{sign}{}µs", decimal(nanos, MICROSECOND)),
        MILLISECOND..SECOND => format!("{sign}{}ms", decimal(nanos, MILLISECOND)),
        _ => {
            let hours = nanos / HOUR;
            let minutes = nanos % HOUR / MINUTE;
            let seconds = decimal(nanos % MINUTE, SECOND);
            if hours > 0 {
                format!("{sign}{hours}h{minutes}m{seconds}s")
            } else if minutes > 0 {
                format!("{sign}{minutes}m{seconds}s")
            } else {
                format!("{sign}{seconds}s")
            }
        }
    }
}

/// `nanos` in multiples of `unit` (a power of ten) with as many decimals as it takes.
fn decimal(nanos: u64, unit: u64) -> String {
    let (whole, part) = (nanos / unit, nanos % unit);
    if part == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{part:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// The number before the point; zero if empty. `None` if it is too large for a duration.
fn read_whole(digits: &str) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    digits.parse().ok().filter(|number| *number <= LIMIT)
}

/// The nanoseconds in `0.<digits>` units. Ignores the digits that Go ignores, and uses the same floating point
/// operations, so that both round alike.
fn read_fraction(digits: &str, unit: u64) -> u64 {
    let mut value: u64 = 0;
    let mut scale = 1.0_f64;
    for digit in digits.bytes().map(|byte| u64::from(byte.wrapping_sub(b'0'))) {
        if value > (LIMIT - 1) / 10 {
            break;
        }
        let next = value * 10 + digit;
        if next > LIMIT {
            break;
        }
        value = next;
        scale *= 10.0;
    }
    // Below one unit, so at most 3.6e12: the cast loses nothing but the part below a nanosecond, which Go drops too.
    (value as f64 * (unit as f64 / scale)) as u64
}
