#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fmt::Debug, num::NonZeroU16};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, de::DeserializeOwned};

use super::{Read, read};
use crate::config::{GoDuration, gcfg};

/// Reads the lines of a section as the occurrences of one key.
fn read_lines<T: DeserializeOwned>(lines: &str) -> Read<T> {
    let (document, errors) = gcfg::parse(format!("[s]\n{lines}"));
    assert!(errors.is_empty(), "{lines:?}: {errors:?}");
    let entries: Vec<_> = document.sections[0].entries.iter().collect();
    read(&entries)
}

fn ok<T: DeserializeOwned + Debug>(lines: &str) -> T {
    let read = read_lines::<T>(lines);
    assert!(read.errors.is_empty(), "{lines:?}: {:?}", read.errors);
    read.value.unwrap()
}

/// Every error as `<occurrence>: <text>`.
fn wrong<T: DeserializeOwned + Debug>(lines: &str) -> Vec<String> {
    let read = read_lines::<T>(lines);
    assert!(read.value.is_none(), "{lines:?}: {:?}", read.value);
    read.errors.iter().map(|(number, error)| format!("{number}: {error}")).collect()
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum EndpointType {
    Public,
    Internal,
    AdminOnly,
}

#[derive(Debug, Deserialize, PartialEq)]
struct RouterId(String);

#[derive(Debug, Deserialize, PartialEq)]
#[serde(try_from = "String")]
struct Even(usize);

impl TryFrom<String> for Even {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len().is_multiple_of(2) {
            Ok(Self(text.len()))
        } else {
            Err("odd number of characters".into())
        }
    }
}

#[test]
fn strings_take_any_text_but_must_have_one() {
    assert_eq!(ok::<String>("k = a b"), "a b");
    assert_eq!(ok::<String>("k ="), "");
    assert_eq!(wrong::<String>("k"), ["0: blank value not supported for type; write key = value"]);
}

#[test]
fn bools_take_the_words_of_the_dialect_and_the_bare_key() {
    for word in ["true", "yes", "on", "1", "TRUE", "Yes", "oN"] {
        assert!(ok::<bool>(&format!("k = {word}")), "{word}");
    }
    for word in ["false", "no", "off", "0", "FALSE", "No", "oFF"] {
        assert!(!ok::<bool>(&format!("k = {word}")), "{word}");
    }
    assert!(ok::<bool>("k"));
    for word in ["maybe", "t", "y", "2", "\" true\"", ""] {
        let errors = wrong::<bool>(&format!("k = {word}"));
        assert!(errors[0].starts_with("0: failed to parse bool `"), "{errors:?}");
        assert!(errors[0].contains("; write true, yes, on or 1, or else false"), "{errors:?}");
    }
}

#[test]
fn integers_are_decimal_or_hexadecimal() {
    for (text, number) in [
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("0x1f", 31),
        ("0x1F", 31),
        ("-0x10", -16),
        ("0x1_f", 31),
        ("010", 10),
        ("-007", -7),
        ("\" 5 \"", 5),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775808", i64::MIN),
    ] {
        assert_eq!(ok::<i64>(&format!("k = {text}")), number, "{text}");
    }
    for text in [
        "a", "0X1f", "+0x1f", "0x", "0x_", "0x1__f", "1_000", "5 6", "5s", "1.5", "--5", "0b1", "0o7", "",
        "-",
    ] {
        let errors = wrong::<i64>(&format!("k = {text}"));
        assert!(errors[0].starts_with(&format!("0: failed to parse {text:?} as int: ")), "{errors:?}");
        assert!(errors[0].ends_with("; write a whole number"), "{errors:?}");
    }
    assert_eq!(wrong::<i64>("k"), ["0: blank value not supported for type; write a whole number"]);
    assert!(wrong::<i64>("k = 9223372036854775808")[0].contains("integer overflow"));
    assert!(wrong::<i64>(&format!("k = {}", "9".repeat(100)))[0].contains("integer overflow"));
}

#[test]
fn unsigned_integers_refuse_signs_and_what_does_not_fit() {
    assert_eq!(ok::<u64>("k = 18446744073709551615"), u64::MAX);
    assert_eq!(ok::<u8>("k = 0xff"), 255);
    assert_eq!(
        wrong::<u32>("k = -1"),
        [r#"0: failed to parse "-1" as uint32: it is negative; write a whole number from 0 to 4294967295"#]
    );
    assert!(wrong::<u64>("k = +1")[0].ends_with("; write a whole number, zero or more"));
    assert_eq!(
        wrong::<u8>("k = 256"),
        [r#"0: failed to parse "256" as uint8: integer overflow; write a whole number from 0 to 255"#]
    );
    assert_eq!(ok::<NonZeroU16>("k = 80").get(), 80);
    assert!(wrong::<NonZeroU16>("k = 0")[0].contains("nonzero"));
}

#[test]
fn durations_are_of_the_go_form() {
    assert_eq!(ok::<GoDuration>("k = 1m30s"), GoDuration::from_secs(90));
    assert_eq!(ok::<GoDuration>("k = 0.5h"), GoDuration::from_secs(1800));
    assert_eq!(ok::<GoDuration>("k = 0"), GoDuration::ZERO);
    assert_eq!(
        wrong::<GoDuration>("k = 5"),
        [r#"0: time: missing unit in duration "5"; write 5s for seconds"#]
    );
    assert!(wrong::<GoDuration>("k =")[0].starts_with(r#"0: time: invalid duration """#));
    assert!(
        wrong::<GoDuration>("k")[0].starts_with("0: blank value not supported for type; write a duration")
    );
}

#[test]
fn lists_take_every_occurrence_and_a_bare_key_empties_them() {
    assert_eq!(ok::<Vec<String>>("k = a, b"), ["a, b"]);
    assert_eq!(ok::<Vec<String>>("k = a\nk = b\nk ="), ["a", "b", ""]);
    assert_eq!(ok::<Vec<String>>("k = a\nk\nk = b"), ["b"]);
    assert_eq!(ok::<Vec<String>>("k = a\nk"), Vec::<String>::new());
    assert_eq!(ok::<Option<Vec<u8>>>("k = 1\nk = 2"), Some(vec![1, 2]));
}

#[test]
fn every_wrong_element_of_a_list_is_reported() {
    let errors = wrong::<Vec<u8>>("k = 1\nk = a\nk = 2\nk = b");
    assert_eq!(errors.len(), 2);
    assert!(errors[0].starts_with(r#"1: failed to parse "a""#), "{errors:?}");
    assert!(errors[1].starts_with(r#"3: failed to parse "b""#), "{errors:?}");
}

#[test]
fn of_a_repeated_scalar_the_last_counts_but_each_must_be_right() {
    assert_eq!(ok::<u8>("k = 1\nk = 2"), 2);
    assert_eq!(ok::<Option<String>>("k = a\nk = b"), Some("b".to_owned()));
    let errors = wrong::<bool>("k = maybe\nk = true");
    assert!(errors[0].starts_with("0: failed to parse bool `maybe`"), "{errors:?}");
}

#[test]
fn types_of_ones_own_work() {
    assert_eq!(ok::<EndpointType>("k = public"), EndpointType::Public);
    assert_eq!(ok::<EndpointType>("k = admin-only"), EndpointType::AdminOnly);
    assert_eq!(
        wrong::<EndpointType>("k = intrenal"),
        ["0: unknown value \"intrenal\"; did you mean internal? Known are public, internal or admin-only"]
    );
    assert_eq!(
        wrong::<EndpointType>("k = x"),
        ["0: unknown value \"x\"; write public, internal or admin-only"]
    );
    assert!(wrong::<EndpointType>("k")[0].ends_with("write public, internal or admin-only"));
    assert_eq!(ok::<RouterId>("k = r1"), RouterId("r1".into()));
    assert_eq!(ok::<Even>("k = abcd"), Even(4));
    assert_eq!(wrong::<Even>("k = abc"), ["0: odd number of characters"]);
    assert_eq!(ok::<f64>("k = 1.5").to_bits(), 1.5_f64.to_bits());
    assert_eq!(ok::<Vec<EndpointType>>("k = public\nk = internal").len(), 2);
    assert_eq!(ok::<SecretString>("k = s").expose_secret(), "s");
    assert_eq!(ok::<char>("k = s"), 's');
}
