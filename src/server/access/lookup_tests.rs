#![allow(clippy::unwrap_used, clippy::expect_used)]

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::*;

fn authority() -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn what_the_cluster_says_is_read_and_what_can_not_be_used_stays_as_it_was() {
    let pem = authority();
    let both = Known::read(
        &data(&[
            ("client-ca-file", &pem),
            ("requestheader-client-ca-file", &pem),
            ("requestheader-allowed-names", "[\"front\"]"),
            ("requestheader-username-headers", "[\"X-Remote-User\"]"),
            ("requestheader-group-headers", "not a list"),
        ]),
        None,
    );
    let (_, headers) = both.proxies.as_ref().unwrap();
    assert_eq!(headers.allowed_names, ["front"]);
    assert_eq!(headers.user, ["X-Remote-User"]);
    assert_eq!(headers.groups, [""; 0]);
    assert!(both.clients.is_some());

    let broken = data(&[
        ("client-ca-file", "nothing"),
        ("requestheader-client-ca-file", "nothing"),
    ]);
    let kept = Known::read(&broken, Some(&both));
    assert!(kept.clients.is_some() && kept.proxies.is_some());
    let nothing = Known::read(&broken, None);
    assert!(nothing.clients.is_none() && nothing.proxies.is_none());
    // What the cluster takes back is taken back.
    let gone = Known::read(&data(&[("client-ca-file", " ")]), Some(&both));
    assert!(gone.clients.is_none() && gone.proxies.is_none());
}

#[test]
fn only_a_refusal_is_final() {
    let status = |code| {
        let status = kube::core::Status::failure("no", "x").with_code(code).boxed();
        watcher::Error::InitialListFailed(kube::Error::Api(status))
    };
    for (code, refused) in [(401, true), (403, true), (404, false), (500, false), (503, false)] {
        assert_eq!(is_refused(&status(code)), refused, "{code}");
    }
    assert!(!is_refused(&watcher::Error::NoResourceVersion));
}
