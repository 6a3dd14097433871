//! Ids of writes.

use std::fmt;

use rand::Rng;

/// The id of one write, as a random UUID. A cloud that takes such ids carries out a write once, however often it is sent with
/// the same id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// A new id.
    #[must_use]
    pub fn random() -> Self {
        let random: u128 = rand::rng().random();
        // The version is 4, and the variant that of RFC 9562.
        let bits = (random & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let digits = format!("{bits:032x}");
        let group = |from, to| digits.get(from..to).unwrap_or_default();
        let groups = [
            group(0, 8),
            group(8, 12),
            group(12, 16),
            group(16, 20),
            group(20, 32),
        ];
        Self(groups.join("-"))
    }

    /// The text of the UUID.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_random_uuid() {
        let (one, other) = (RequestId::random(), RequestId::random());
        assert_ne!(one, other);
        let lengths: Vec<_> = one.as_str().split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        let at = |index| one.as_str().chars().nth(index);
        assert_eq!(at(14), Some('4'), "{one}");
        assert!(matches!(at(19), Some('8' | '9' | 'a' | 'b')), "{one}");
    }
}
