//! URLs in config files, variables and flags.

use http::Uri;

/// The URL, if it has `http` or `https`, a host and a valid port. The text may have a password: no error may repeat it.
#[must_use]
pub fn http_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let host = url.host().filter(|host| !host.is_empty())?;
    let place = url.authority()?.as_str().rsplit('@').next();
    // The parser accepts any text as a port.
    let is_place = place == Some(host) || url.port_u16().is_some();
    (is_place && matches!(url.scheme_str(), Some("http" | "https"))).then_some(url)
}

/// As [`http_url`]; a text without a scheme has `http`, as in Go's clients.
#[must_use]
pub fn http_url_or_host(text: &str) -> Option<Uri> {
    let scheme = if text.contains("://") { "" } else { "http://" };
    http_url(&format!("{scheme}{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_http_a_host_and_a_valid_port() {
        for (text, is_url, is_url_or_host) in [
            ("https://[::1]:8443/a?b=c", true, true),
            ("http://u:p@proxy:3128", true, true),
            ("http://proxy", true, true),
            ("proxy", false, true),
            ("u:p@proxy:3128", false, true),
            ("http://9:99999", false, false),
            ("http:///a", false, false),
            ("http://:80", false, false),
            ("http://a b", false, false),
            ("ftp://a", false, false),
            ("", false, false),
        ] {
            assert_eq!(http_url(text).is_some(), is_url, "{text}");
            assert_eq!(http_url_or_host(text).is_some(), is_url_or_host, "{text}");
        }
    }
}
