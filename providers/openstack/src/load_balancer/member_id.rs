//! Compact IDs of members.

use std::fmt;

use serde::{Deserialize, Deserializer};
use uuid::Uuid;

/// The ID of a member. There are hundreds of thousands of them, so a UUID is stored inline; another text is stored as
/// it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum MemberId {
    Uuid(Uuid),
    Text(Box<str>),
}

impl MemberId {
    /// Whether the ID is unknown.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }
}

impl Default for MemberId {
    fn default() -> Self {
        Self::Text(Box::default())
    }
}

impl From<&str> for MemberId {
    fn from(text: &str) -> Self {
        let mut buffer = Uuid::encode_buffer();
        // A UUID has several spellings, and the ID must keep its own.
        match Uuid::try_parse(text) {
            Ok(uuid) if uuid.hyphenated().encode_lower(&mut buffer) == text => Self::Uuid(uuid),
            _ => Self::Text(text.into()),
        }
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.hyphenated().fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for MemberId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::from(text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_id_keeps_its_spelling() {
        let uuid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        assert!(matches!(MemberId::from(uuid), MemberId::Uuid(_)));
        for text in [
            uuid,
            "0F1E2D3C-4B5A-6978-8796-A5B4C3D2E1F0",
            "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
            "{0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0}",
            "urn:uuid:0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
            "member-1",
            "",
        ] {
            assert_eq!(MemberId::from(text).to_string(), text);
            let read: MemberId = serde_json::from_value(text.into()).unwrap();
            assert_eq!(read, MemberId::from(text));
            assert_eq!(read.is_empty(), text.is_empty());
        }
    }

    #[test]
    fn a_uuid_is_as_small_as_a_text_without_one() {
        assert!(size_of::<MemberId>() <= size_of::<String>());
    }
}
