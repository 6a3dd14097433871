//! What can go wrong when the simulator is started or told what to do.

/// An error of the control API; a client of the simulated cloud never sees one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The listener could not be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address that was asked for.
        address: std::net::SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Something that was named does not exist.
    #[error("no {kind} {name:?}")]
    Unknown {
        /// What kind of thing.
        kind: &'static str,
        /// Its name or id as it was given.
        name: String,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// The result of a control operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn unknown(kind: &'static str, name: impl Into<String>) -> Self {
        Self::Unknown {
            kind,
            name: name.into(),
        }
    }
}
