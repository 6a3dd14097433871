//! The HTTP client of the testbed.

/// Selects the TLS cryptography provider, which is required if several are compiled in. Further calls have no effect.
pub(crate) fn choose_cryptography() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// A client for loopback addresses.
pub fn client() -> reqwest::ClientBuilder {
    choose_cryptography();
    reqwest::Client::builder().no_proxy()
}
