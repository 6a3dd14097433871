//! The values that annotations had when a load balancer of another program was adopted.
//!
//! This program reads annotations that upstream of the same cloud does not read. A Service may carry such an annotation
//! for years without an effect, and its load balancer must not change because this program takes over. So the first write to
//! a load balancer that another program created also records the values of these annotations, and an annotation has no effect
//! while its value is the recorded one. A value that changed since then is a request.
//!
//! A provider lists the annotations, calculates the record, and stores its text beside the ownership tag:
//!
//! ```
//! use ccm_core::load_balancer::AnnotationRecord;
//!
//! let record = AnnotationRecord::of([("acme.example/color", "red"), ("acme.example/size", "2")]);
//! let tag = record.to_string();
//! // After a restart, the color is another one.
//! let record = AnnotationRecord::parse(&tag);
//! assert!(record.contains("acme.example/size", "2"), "it has no effect");
//! assert!(!record.contains("acme.example/color", "blue"), "somebody changed it");
//! ```
//!
//! A record never grows: [`intersection`](AnnotationRecord::intersection) drops a value for good once it was seen to be
//! another one, so that a person who sets an annotation again gets what it says.

use std::{collections::BTreeSet, fmt};

/// The hashes of annotations with their values.
///
/// Its text has only digits, the letters `a` to `f` and `-`, which every cloud allows in a tag. It has 17 characters for each
/// annotation, and is empty without any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnotationRecord(BTreeSet<u64>);

impl AnnotationRecord {
    /// The record of these annotations with their values.
    pub fn of<'k, 'v>(annotations: impl IntoIterator<Item = (&'k str, &'v str)>) -> Self {
        Self(annotations.into_iter().map(|(key, value)| hash(key, value)).collect())
    }

    /// The record in the text of a tag. Words that are not hashes are skipped, because people can edit tags.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(text.split('-').filter_map(|word| u64::from_str_radix(word, 16).ok()).collect())
    }

    /// Whether the annotation had this value.
    #[must_use]
    pub fn contains(&self, key: &str, value: &str) -> bool {
        self.0.contains(&hash(key, value))
    }

    /// The values that both records have.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// Whether no value is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The text of the tag.
impl fmt::Display for AnnotationRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, hash) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "-" };
            write!(f, "{separator}{hash:016x}")?;
        }
        Ok(())
    }
}

/// FNV-1a with 64 bits. It is stored in clouds, so every release must calculate the same.
fn hash(key: &str, value: &str) -> u64 {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = key.bytes().chain([b'=']).chain(value.bytes());
    bytes.fold(START, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_text() {
        let record = AnnotationRecord::of([("a/b", "1"), ("a/c", "")]);
        // The text of every release.
        assert_eq!(record.to_string(), "727763827e1550c9-9f232fbc435fe69f");
        assert_eq!(AnnotationRecord::parse(&record.to_string()), record);
        assert_eq!(AnnotationRecord::default().to_string(), "");
        assert!(AnnotationRecord::parse("").is_empty());
        assert!(AnnotationRecord::parse("by hand").is_empty());
    }

    #[test]
    fn a_value_is_recorded_with_its_annotation() {
        let record = AnnotationRecord::of([("a", "1"), ("b", "2")]);
        assert!(record.contains("a", "1") && record.contains("b", "2"));
        assert!(!record.contains("a", "2") && !record.contains("b", "1") && !record.contains("a", ""));
    }

    #[test]
    fn a_value_that_changed_leaves_the_record_for_good() {
        let mut record = AnnotationRecord::of([("a", "1"), ("b", "2")]);
        for values in [[("a", "9"), ("b", "2")], [("a", "1"), ("b", "2")]] {
            record = record.intersection(&AnnotationRecord::of(values));
        }
        assert_eq!(record, AnnotationRecord::of([("b", "2")]));
    }
}
