//! Parsing of Keystone's answers.

use std::{fmt, time::Duration};

use ccm_core::client::rest::{Answer, one_line};
use http::{HeaderMap, HeaderName, HeaderValue, header::DATE};
use jiff::Timestamp;
use serde::Deserialize;
use url::Url;

use crate::client::catalog::Catalog;

/// The header with the token of a request.
pub(super) const AUTH_TOKEN: HeaderName = HeaderName::from_static("x-auth-token");
/// The header with the token that a request or an answer is about.
pub(super) const SUBJECT_TOKEN: HeaderName = HeaderName::from_static("x-subject-token");

/// A token as Keystone returned it.
pub(super) struct Parsed {
    pub(super) header: HeaderValue,
    pub(super) catalog: Catalog,
    pub(super) holder: TokenUser,
    expires_at: Timestamp,
}

/// The user, project or domain of a token.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct TokenUser {
    #[serde(default)]
    project: Option<Named>,
    #[serde(default)]
    domain: Option<Named>,
    #[serde(default)]
    user: Option<Named>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Named {
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
}

impl TokenUser {
    /// The ID of the project, if the token has one.
    pub(super) fn project_id(&self) -> Option<String> {
        let project = self.project.as_ref()?;
        Some(project.id.clone()).filter(|id| !id.is_empty())
    }

    /// Whether both are the same user in the same project. Names may change.
    pub(super) fn is(&self, other: &Self) -> bool {
        let ids = |holder: &Self| {
            [&holder.project, &holder.domain, &holder.user]
                .map(|named| named.as_ref().map(|named| named.id.clone()))
        };
        ids(self) == ids(other)
    }
}

/// Shows the scope of the token. The credentials describe the user better.
impl fmt::Display for TokenUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.project, &self.domain) {
            (Some(project), _) => write!(f, "project {:?} ({})", project.name, one_line(&project.id)),
            (None, Some(domain)) => write!(f, "domain {:?} ({})", domain.name, one_line(&domain.id)),
            (None, None) => f.write_str("no project"),
        }
    }
}

#[derive(Deserialize)]
struct Body {
    token: Wire,
}

#[derive(Deserialize)]
struct Wire {
    expires_at: Timestamp,
    #[serde(flatten)]
    holder: TokenUser,
    // A token without a scope has no catalog.
    #[serde(default)]
    catalog: Catalog,
}

/// Parses a token. `given`: the token itself, if the config has it and it was only validated.
pub(super) fn parse(reply: &Answer, given: Option<HeaderValue>) -> Result<Parsed, String> {
    let header = match given {
        Some(header) => header,
        None => reply
            .headers
            .get(SUBJECT_TOKEN)
            .and_then(|value| secret_header(value.to_str().ok()?))
            .ok_or("the answer has no X-Subject-Token header")?,
    };
    let Body { token } =
        serde_json::from_slice(&reply.body).map_err(|error| format!("the answer is not a token: {error}"))?;
    Ok(Parsed {
        header,
        catalog: token.catalog,
        holder: token.holder,
        expires_at: token.expires_at,
    })
}

impl Parsed {
    /// The remaining lifetime of the token. The `Date` of the answer is used where possible, since the local clock may
    /// be wrong.
    pub(super) fn time_left(&self, headers: &HeaderMap, now: Timestamp) -> Duration {
        let server = headers.get(DATE).and_then(|date| date.to_str().ok()).and_then(|date| {
            let date = jiff::fmt::rfc2822::parse(date).ok()?;
            Some(date.timestamp())
        });
        Duration::try_from(self.expires_at.duration_since(server.unwrap_or(now))).unwrap_or_default()
    }
}

/// A header value that is not logged.
pub(super) fn secret_header(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(token.trim()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[derive(Deserialize)]
struct Versions {
    versions: Values,
}

#[derive(Deserialize)]
struct Values {
    values: Vec<ApiVersion>,
}

#[derive(Deserialize)]
struct ApiVersion {
    id: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    links: Vec<VersionLink>,
}

impl ApiVersion {
    /// Whether it is a stable version 3.
    fn is_usable(&self) -> bool {
        let status = self.status.to_ascii_lowercase();
        self.id.starts_with("v3") && matches!(status.as_str(), "current" | "stable" | "supported")
    }
}

#[derive(Deserialize)]
struct VersionLink {
    #[serde(default)]
    rel: String,
    #[serde(default)]
    href: String,
}

/// Returns the base URL of version 3 from Keystone's list of versions.
pub(super) fn choose_version(auth_url: &Url, body: &[u8]) -> Result<Url, String> {
    let Versions { versions } = serde_json::from_slice(body)
        .map_err(|error| format!("the answer is not a list of versions: {error}"))?;
    let Some(version) = versions.values.iter().find(|version| version.is_usable()) else {
        let ids: Vec<_> = versions.values.iter().map(|version| version.id.as_str()).collect();
        return Err(format!("it offers no API version 3, only: {}", ids.join(", ")));
    };
    let link = version
        .links
        .iter()
        .find(|link| link.rel == "self")
        .and_then(|link| Url::parse(&link.href).ok());
    match link {
        // Behind a proxy that terminates TLS, Keystone often does not know its own address. A password must not be sent
        // over an unencrypted connection because of that.
        Some(link) if link.scheme() == auth_url.scheme() || link.scheme() == "https" => Ok(below(&link, "")),
        Some(link) => {
            let mut url = below(auth_url, "");
            url.set_path(below(&link, "").path());
            Ok(url)
        }
        None => Ok(below(auth_url, "v3/")),
    }
}

/// Appends a path to a URL, with or without a trailing slash.
pub(super) fn below(url: &Url, path: &str) -> Url {
    let mut below = url.clone();
    below.set_query(None);
    below.set_fragment(None);
    below.set_path(&format!("{}/{path}", url.path().trim_end_matches('/')));
    below
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    fn versions(list: &[(&str, &str, &str)]) -> Vec<u8> {
        let values: Vec<_> = list
            .iter()
            .map(|(id, status, href)| json!({"id": id, "status": status, "links": [{"rel": "self", "href": href}]}))
            .collect();
        json!({"versions": {"values": values}}).to_string().into_bytes()
    }

    fn choose(auth_url: &str, body: &[u8]) -> Result<String, String> {
        choose_version(&auth_url.parse().unwrap(), body).map(String::from)
    }

    #[test]
    fn the_version_document_has_the_url_of_version_3() {
        let body = versions(&[
            ("v2.0", "deprecated", "http://ks/v2.0/"),
            ("v3.14", "stable", "http://ks/v3/"),
        ]);
        assert_eq!(choose("http://ks", &body).unwrap(), "http://ks/v3/");
        let body = versions(&[("v3.14", "stable", "http://ks.local:5000/identity/v3")]);
        assert_eq!(choose("https://ks.example/identity", &body).unwrap(), "https://ks.example/identity/v3/");
        let old = versions(&[("v2.0", "stable", "http://ks/v2.0/")]);
        assert!(choose("http://ks", &old).unwrap_err().contains("only: v2.0"));
        assert!(choose("http://ks", b"<html>").unwrap_err().contains("not a list of versions"));
        assert!(choose("http://ks", b"{}").is_err());
    }

    #[test]
    fn the_time_left_does_not_depend_on_our_clock() {
        let parsed = Parsed {
            header: HeaderValue::from_static("t"),
            catalog: Catalog::default(),
            holder: TokenUser::default(),
            expires_at: "2030-01-01T01:00:00.000000Z".parse().unwrap(),
        };
        let mut headers = HeaderMap::new();
        let ours: Timestamp = "2030-01-01T00:30:00Z".parse().unwrap();
        assert_eq!(parsed.time_left(&headers, ours), Duration::from_secs(1800));
        headers.insert(DATE, "Tue, 01 Jan 2030 00:00:00 GMT".parse().unwrap());
        assert_eq!(parsed.time_left(&headers, ours), Duration::from_secs(3600));
        headers.insert(DATE, "Tue, 01 Jan 2030 02:00:00 GMT".parse().unwrap());
        assert_eq!(parsed.time_left(&headers, ours), Duration::ZERO);
    }

    #[test]
    fn tokens_are_not_logged() {
        let mut headers = HeaderMap::new();
        headers.insert(SUBJECT_TOKEN, "hunter2".parse().unwrap());
        let body = json!({"token": {"expires_at": "2030-01-01T00:00:00.000000Z"}}).to_string().into_bytes();
        let reply = Answer {
            status: StatusCode::CREATED,
            headers,
            body,
        };
        let parsed = parse(&reply, None).map_err(|_| ()).unwrap();
        assert!(!format!("{:?}", parsed.header).contains("hunter2"));
        let bare = Answer {
            headers: HeaderMap::new(),
            ..reply
        };
        assert!(parse(&bare, None).is_err_and(|what| what.contains("X-Subject-Token")));
    }
}
