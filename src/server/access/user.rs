//! The identity of a client, from its certificate or from the API server.

use std::collections::BTreeMap;

use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Serialize;
use x509_parser::{
    asn1_rs::{BmpString, Tag},
    x509::AttributeTypeAndValue,
};

/// The group of all clients with an identity.
const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group whose members may read everything without a review.
const MASTERS: &str = "system:masters";

/// A client, in the terms of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A client without credentials.
    pub(super) fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    pub(super) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// The subject of a certificate (DER): the common name is the user, the organizations are the groups. `None` if there is
    /// no common name, or if one of these names is unreadable: an unreadable name must not become another one.
    pub(super) fn of_certificate(certificate: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let subject = certificate.subject();
        let names: Option<Vec<String>> = subject.iter_common_name().map(text).collect();
        let user = Self {
            // The last one, as in the API server.
            name: names?.pop().filter(|name| !name.is_empty())?,
            groups: subject.iter_organization().map(text).collect::<Option<_>>()?,
            ..Self::default()
        };
        Some(user.authenticated())
    }

    /// The user that a TokenReview names.
    pub(super) fn of_review(user: UserInfo) -> Self {
        let user = Self {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        };
        user.authenticated()
    }

    fn authenticated(mut self) -> Self {
        if self.name != ANONYMOUS
            && !self.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED)
        {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

/// The text of a name, in the encodings that authorities use.
fn text(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let value = attribute.attr_value();
    let text = || str::from_utf8(value.data).ok().map(str::to_owned);
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => text(),
        Tag::TeletexString => text().filter(|text| text.is_ascii()),
        Tag::BmpString => BmpString::try_from(value).ok().map(|text| text.string()),
        _ => None,
    }
}

/// The token in `Authorization: Bearer`.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;
