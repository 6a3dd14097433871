#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

use super::*;

fn certificate(names: &[(DnType, DnValue)]) -> Vec<u8> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for (kind, value) in names {
        params.distinguished_name.push(kind.clone(), value.clone());
    }
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    certificate.der().to_vec()
}

fn user(names: &[(DnType, DnValue)]) -> Option<User> {
    User::of_certificate(&certificate(names))
}

fn utf8(text: &str) -> DnValue {
    DnValue::Utf8String(text.to_owned())
}

#[test]
fn a_certificate_is_for_its_common_name_and_its_organizations_are_groups() {
    let user_of = user(&[
        (DnType::CountryName, utf8("DE")),
        (DnType::OrganizationName, utf8("system:masters")),
        (DnType::CommonName, utf8("admin-ä")),
    ])
    .unwrap();
    assert_eq!(user_of.name, "admin-ä");
    assert_eq!(user_of.groups, ["system:masters", AUTHENTICATED]);
    assert!(user_of.is_master());
    let printable = DnValue::PrintableString("plain".try_into().unwrap());
    let teletex = DnValue::TeletexString("plain".try_into().unwrap());
    let bmp = DnValue::BmpString("wide-ä".try_into().unwrap());
    for (value, name) in [(printable, "plain"), (teletex, "plain"), (bmp, "wide-ä")] {
        assert_eq!(user(&[(DnType::CommonName, value)]).unwrap().name, name);
    }
    let long = "x".repeat(300);
    assert_eq!(user(&[(DnType::CommonName, utf8(&long))]).unwrap().name, long);
}

#[test]
fn a_certificate_without_a_readable_common_name_is_refused() {
    let universal = DnValue::UniversalString("plain".try_into().unwrap());
    for names in [
        &[][..],
        &[(DnType::CommonName, utf8(""))],
        &[(DnType::CommonName, universal.clone())],
        &[
            (DnType::CommonName, utf8("joe")),
            (DnType::OrganizationName, universal),
        ],
    ] {
        assert_eq!(user(names), None);
    }
}

#[test]
fn a_token_follows_bearer() {
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
    fn no_certificate_does_any_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(User::of_certificate(&bytes), None);
    }

    #[test]
    fn a_damaged_certificate_does_no_harm(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = certificate(&[(DnType::CommonName, utf8("joe"))]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = User::of_certificate(&bytes);
    }
}
