//! Errors of starting and controlling the simulator.

/// An error of the control API; a client of the simulated cloud never sees one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The listener could not be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// The requested address.
        address: std::net::SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A named object does not exist.
    #[error("no {kind} {name:?}")]
    Unknown {
        /// The kind of object.
        kind: &'static str,
        /// The given name or ID.
        name: String,
    },
    /// The request is invalid.
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
