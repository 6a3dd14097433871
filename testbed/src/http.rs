//! The HTTP client of everything here.

/// A client that talks to loopback only.
pub(crate) fn client() -> reqwest::ClientBuilder {
    // A default is needed when more than one cryptography library is compiled in; a second call changes nothing.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    reqwest::Client::builder().no_proxy()
}
