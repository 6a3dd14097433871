#![allow(clippy::unwrap_used, clippy::expect_used)]

use http::HeaderName;
use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

use super::*;

fn subject(names: &[(DnType, DnValue)]) -> Option<Subject> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for (kind, value) in names {
        params.distinguished_name.push(kind.clone(), value.clone());
    }
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let parsed = webpki::EndEntityCert::try_from(certificate.der()).unwrap();
    Subject::parse(parsed.subject())
}

fn utf8(text: &str) -> DnValue {
    DnValue::Utf8String(text.to_owned())
}

#[test]
fn a_certificate_is_for_its_common_name_and_its_organizations_are_groups() {
    let read = subject(&[
        (DnType::CountryName, utf8("DE")),
        (DnType::OrganizationName, utf8("system:masters")),
        (DnType::CommonName, utf8("admin-ä")),
    ])
    .unwrap();
    let user = User::of_subject(&read).unwrap();
    assert_eq!(user.name, "admin-ä");
    assert_eq!(user.groups, ["system:masters", AUTHENTICATED]);
    assert!(user.is_master());
    let printable = DnValue::PrintableString("plain".try_into().unwrap());
    let bmp = DnValue::BmpString("wide-ä".try_into().unwrap());
    for (value, name) in [(printable, "plain"), (bmp, "wide-ä")] {
        let read = subject(&[(DnType::CommonName, value)]).unwrap();
        assert_eq!(read.common_name.as_deref(), Some(name));
    }
    let long = "x".repeat(300);
    let read = subject(&[(DnType::CommonName, utf8(&long))]).unwrap();
    assert_eq!(read.common_name, Some(long));
}

#[test]
fn a_certificate_without_a_common_name_is_for_nobody() {
    for names in [&[][..], &[(DnType::CommonName, utf8(""))]] {
        assert_eq!(User::of_subject(&subject(names).unwrap()), None);
    }
}

#[test]
fn a_proxy_says_whom_it_speaks_for_in_the_headers_that_are_agreed_on() {
    let names = ProxyHeaders {
        user: vec!["X-First".to_owned(), "x-remote-user".to_owned()],
        uid: vec!["x-remote-uid".to_owned()],
        groups: vec!["X-Remote-Group".to_owned()],
        extra_prefixes: vec!["X-Remote-Extra-".to_owned()],
        ..ProxyHeaders::default()
    };
    let mut headers = HeaderMap::new();
    let mut add = |name: &'static str, value: &str| {
        headers.append(HeaderName::from_static(name), value.parse().unwrap());
    };
    add("x-first", "");
    add("x-remote-user", "jane");
    add("x-remote-uid", "7");
    add("x-remote-group", "dev");
    add("x-remote-group", "ops");
    add("x-remote-extra-acme.com%2fproject", "a");
    add("x-remote-extra-acme.com%2fproject", "b");
    add("x-remote-extra-50%", "c");
    let user = User::of_headers(&headers, &names).unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
    assert_eq!(user.groups, ["dev", "ops", AUTHENTICATED]);
    let extra = [("50%", &["c"][..]), ("acme.com/project", &["a", "b"])]
        .map(|(key, values)| (key.to_owned(), values.iter().map(ToString::to_string).collect()));
    assert_eq!(user.extra, extra.into());
    headers.remove("x-remote-user");
    assert_eq!(User::of_headers(&headers, &names), None);
}

#[test]
fn a_token_is_what_stands_after_bearer() {
    for (value, token) in [
        ("Bearer abc", Some("abc")),
        ("bearer  abc ", Some("abc")),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic abc", None),
        ("abc", None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        assert_eq!(bearer(&headers), token, "{value}");
    }
    assert_eq!(bearer(&HeaderMap::new()), None);
}

proptest! {
    #[test]
    fn no_subject_does_any_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Subject::parse(&bytes);
        let _ = element(&bytes);
    }

    #[test]
    fn a_key_that_is_escaped_is_read_again(key in "[a-z/%é]{0,20}") {
        let escaped: String = key
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' => char::from(byte).to_string(),
                _ => format!("%{byte:02X}"),
            })
            .collect();
        prop_assert_eq!(unescape(&escaped), key);
    }
}
