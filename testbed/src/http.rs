//! The HTTP client of everything here.

/// Chooses the cryptography library of TLS, as is needed when more than one is compiled in. A second call changes nothing.
pub(crate) fn choose_cryptography() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// A client that talks to loopback only.
pub(crate) fn client() -> reqwest::ClientBuilder {
    choose_cryptography();
    reqwest::Client::builder().no_proxy()
}
