//! The values of a node's labels, from a Nova server record.

use ccm_core::Power;

/// The longest value of a Kubernetes label.
const LABEL_MAX: usize = 63;

/// The availability zone as a label value: every run of characters other than `[-A-Za-z0-9_.]` becomes one `-`,
/// separators at both ends are removed, and it is cut to 63 characters. `None` if nothing remains.
pub(crate) fn zone(availability_zone: &str) -> Option<String> {
    let mut clean = String::with_capacity(availability_zone.len());
    let mut replaced = false;
    for c in availability_zone.chars() {
        if c.is_ascii_alphanumeric() || is_separator(c) {
            clean.push(c);
            replaced = false;
        } else if !replaced {
            clean.push('-');
            replaced = true;
        }
    }
    let mut label = clean.trim_matches(is_separator);
    // Only ASCII remains, so a byte is a character. The cut may leave a separator at the end, which the API server
    // refuses.
    if let Some(cut) = label.get(..LABEL_MAX) {
        label = cut.trim_end_matches(is_separator);
    }
    (!label.is_empty()).then(|| label.to_owned())
}

fn is_separator(c: char) -> bool {
    matches!(c, '-' | '_' | '.')
}

/// Whether the text is a valid and non-empty label value.
pub(crate) fn is_label_value(text: &str) -> bool {
    let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= LABEL_MAX
        && alphanumeric(text.chars().next())
        && alphanumeric(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || is_separator(c))
}

/// Only `SHUTOFF` is a deliberate shutdown; a paused, suspended or shelved server is not.
pub(crate) fn power(status: &str) -> Power {
    if status == "SHUTOFF" {
        Power::Off
    } else {
        Power::On
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zones_become_label_values() {
        for (zone_name, label) in [
            ("nova", Some("nova")),
            ("az 1", Some("az-1")),
            ("az  /  1", Some("az-1")),
            ("Zürich-1", Some("Z-rich-1")),
            (" az_1. ", Some("az_1")),
            ("-.-", None),
            ("", None),
        ] {
            assert_eq!(zone(zone_name).as_deref(), label, "{zone_name:?}");
        }
        assert_eq!(zone(&"a".repeat(80)), Some("a".repeat(63)));
        assert_eq!(zone(&format!("{}.{}", "a".repeat(62), "b".repeat(9))), Some("a".repeat(62)));
    }

    #[test]
    fn label_values_are_recognized() {
        for (text, valid) in [
            ("m1.small", true),
            ("1", true),
            ("b2-7_x", true),
            ("m1 small", false),
            (".m1", false),
            ("m1-", false),
            ("", false),
            ("größe", false),
        ] {
            assert_eq!(is_label_value(text), valid, "{text:?}");
        }
        assert!(is_label_value(&"a".repeat(63)));
        assert!(!is_label_value(&"a".repeat(64)));
    }

    #[test]
    fn only_shutoff_is_off() {
        assert_eq!(power("SHUTOFF"), Power::Off);
        for status in [
            "ACTIVE",
            "PAUSED",
            "SUSPENDED",
            "SHELVED_OFFLOADED",
            "ERROR",
            "BUILD",
            "DELETED",
            "UNKNOWN",
            "",
        ] {
            assert_eq!(power(status), Power::On, "{status}");
        }
    }

    proptest! {
        #[test]
        fn every_zone_is_a_label_value(name in ".{0,90}") {
            prop_assert!(zone(&name).is_none_or(|label| is_label_value(&label)), "{:?}", zone(&name));
        }
    }
}
