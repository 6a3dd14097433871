//! Who a client is, as its certificate, a proxy before it, or the API server says.

use std::collections::BTreeMap;

use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Serialize;

use crate::options::ProxyHeaders;

/// Everybody who proved who it is.
const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// May see everything without being asked about.
const MASTERS: &str = "system:masters";

/// A client, in the words of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Who shows nothing to be known by.
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

    /// Whom the certificate is for: the common name and the organizations.
    pub(super) fn of_subject(subject: &Subject) -> Option<Self> {
        let name = subject.common_name.clone().filter(|name| !name.is_empty())?;
        let user = Self {
            name,
            groups: subject.organizations.clone(),
            ..Self::default()
        };
        Some(user.authenticated())
    }

    /// Whom a proxy speaks for. The proxy itself has proved who it is.
    pub(super) fn of_headers(headers: &HeaderMap, names: &ProxyHeaders) -> Option<Self> {
        let first = |names: &[String]| {
            let mut values = names.iter().filter_map(|name| headers.get(name)?.to_str().ok());
            values.find(|value| !value.is_empty()).map(str::to_owned)
        };
        let all = |name: &String| -> Vec<String> {
            let values = headers.get_all(name).iter();
            values
                .filter_map(|value| value.to_str().ok())
                .map(str::to_owned)
                .collect()
        };
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            let rest = names
                .extra_prefixes
                .iter()
                .find_map(|prefix| header.as_str().strip_prefix(prefix.to_ascii_lowercase().as_str()));
            if let (Some(key), Ok(value)) = (rest, value.to_str()) {
                extra.entry(unescape(key)).or_default().push(value.to_owned());
            }
        }
        let user = Self {
            name: first(&names.user)?,
            uid: first(&names.uid).unwrap_or_default(),
            groups: names.groups.iter().flat_map(all).collect(),
            extra,
        };
        Some(user.authenticated())
    }

    /// Whom a token stands for.
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
        let marked = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
        if self.name != ANONYMOUS && !self.groups.iter().any(marked) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

/// What stands after `Authorization: Bearer`.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Percent signs stand for bytes, where a header may not hold them. What is malformed stays as it is.
fn unescape(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .split_at_checked(2)
            .filter(|_| byte == b'%')
            .and_then(|(code, after)| {
                let code = std::str::from_utf8(code).ok()?;
                Some((u8::from_str_radix(code, 16).ok()?, after))
            });
        let (byte, after) = code.unwrap_or((byte, after));
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

/// What a certificate says of whom it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) common_name: Option<String>,
    pub(super) organizations: Vec<String>,
}

impl Subject {
    /// Reads the content of a certificate's subject (DER: sets of pairs of a type and a text); `None` if it is not one.
    pub(super) fn parse(mut names: &[u8]) -> Option<Self> {
        const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
        const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
        let mut subject = Self::default();
        while !names.is_empty() {
            let (tag, mut set, rest) = element(names)?;
            names = rest;
            if tag != 0x31 {
                return None;
            }
            while !set.is_empty() {
                let (_, pair, rest) = element(set)?;
                set = rest;
                let (tag, kind, value) = element(pair)?;
                let (text_tag, text, _) = element(value)?;
                if tag != 0x06 {
                    return None;
                }
                let known = kind == COMMON_NAME || kind == ORGANIZATION;
                let Some(text) = text_of(text_tag, text).filter(|_| known) else {
                    // A name that can not be read must not pass for another one.
                    match known {
                        true => return None,
                        false => continue,
                    }
                };
                match kind == COMMON_NAME {
                    // The last one, as elsewhere.
                    true => subject.common_name = Some(text),
                    false => subject.organizations.push(text),
                }
            }
        }
        Some(subject)
    }
}

/// The tag and content of the first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // No name is longer than what fits in two bytes.
        0x81 | 0x82 => {
            let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn text_of(tag: u8, bytes: &[u8]) -> Option<String> {
    match tag {
        // UTF8String, PrintableString, IA5String; TeletexString in as far as it is ASCII.
        0x0c | 0x13 | 0x16 => String::from_utf8(bytes.to_vec()).ok(),
        0x14 => String::from_utf8(bytes.to_vec())
            .ok()
            .filter(|text| text.is_ascii()),
        // BMPString.
        0x1e => {
            let (pairs, rest) = bytes.as_chunks::<2>();
            let units = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
            let text: Result<String, _> = char::decode_utf16(units).collect();
            text.ok().filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "user_tests.rs"]
mod tests;
