//! References to the certificates of TLS listeners.

use ccm_core::{Error, ErrorKind, Result};

/// An object of Barbican.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SecretRef {
    /// A container with this id.
    Container(String),
    /// A secret with this id.
    Secret(String),
}

impl SecretRef {
    /// Parses the end of a reference such as `https://barbican.example/v1/secrets/<id>`.
    ///
    /// # Errors
    /// If it names neither a container nor a secret.
    pub(crate) fn parse(reference: &str) -> Result<Self> {
        let mut segments = reference.trim().trim_end_matches('/').rsplit('/');
        match (segments.next(), segments.next()) {
            (Some(id), Some("containers")) if !id.is_empty() => Ok(Self::Container(id.to_owned())),
            (Some(id), Some("secrets")) if !id.is_empty() => Ok(Self::Secret(id.to_owned())),
            _ => Err(Error::new(
                ErrorKind::InvalidSpec,
                format!(
                    "TLS container {reference:?} is neither .../containers/<id> nor .../secrets/<id> of Barbican"
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_last_two_segments_count() {
        let read = |text: &str| SecretRef::parse(text).unwrap();
        assert_eq!(read("https://barbican.example:9311/v1/containers/c1"), SecretRef::Container("c1".into()));
        assert_eq!(read("secrets/s1/"), SecretRef::Secret("s1".into()));
        for wrong in ["", "s1", "orders/o1", "https://x/secrets/", "secrets//"] {
            assert_eq!(SecretRef::parse(wrong).unwrap_err().kind(), ErrorKind::InvalidSpec, "{wrong:?}");
        }
    }
}
