#![allow(clippy::unwrap_used, clippy::expect_used)]

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::*;

fn authority() -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn what_the_cluster_publishes_is_read_and_what_is_unusable_changes_nothing() {
    let pem = authority();
    let first = usable(Some(&pem), None);
    assert!(first.is_some());
    assert!(usable(Some("nothing"), Some(&first)).is_some());
    assert!(usable(Some("nothing"), None).is_none());
    assert!(usable(Some("nothing"), Some(&None)).is_none());
    // Authorities that the cluster removes are removed.
    assert!(usable(Some(" "), Some(&first)).is_none());
    assert!(usable(None, Some(&first)).is_none());
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
