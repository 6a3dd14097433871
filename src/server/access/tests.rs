#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use super::{
    reviews::tests::{api_server, failure, token_of},
    *,
};
/// An authority and what it issues.
struct Issuing {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Issuing {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn client(&self, name: &str, group: &str) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        vec![certificate.der().clone()]
    }
}

fn access(folder: &Path, clients: &Issuing) -> Access {
    let file = folder.join("clients");
    fs::write(&file, &clients.pem).unwrap();
    let config = AccessConfig {
        client_authorities: Some(file),
        ..AccessConfig::default()
    };
    Access::open(&config, &mut Registry::default()).unwrap()
}

fn reviewers(answers: Vec<(u16, serde_json::Value)>) -> Reviewers {
    let (client, _) = api_server(answers);
    Reviewers {
        authentication: client.clone(),
        authorization: client,
        lookup_required: true,
    }
}

fn request(headers: &[(&str, &str)]) -> request::Parts {
    let request = http::Request::get("/metrics");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

async fn user(
    access: &Access,
    certificates: &[CertificateDer<'static>],
    more: &[(&str, &str)],
    reviewers: &Reviewers,
) -> Result<String, u16> {
    let user = access.identify(&request(more), certificates, reviewers).await;
    user.map(|user| format!("{} {}", user.name, user.groups.join(",")))
        .map_err(|refusal| refusal.status.as_u16())
}

#[tokio::test]
async fn the_certificate_or_the_token_of_a_client_is_its_identity() {
    let (clients, foreign) = (Issuing::new(), Issuing::new());
    let folder = tempfile::tempdir().unwrap();
    let access = access(folder.path(), &clients);
    let jane = ("authorization", "Bearer t");
    let token = || reviewers(vec![token_of("jane")]);
    let ask = async |chain: &[_], more: &[_]| user(&access, chain, more, &token()).await;
    let own = clients.client("joe", "ops");
    assert_eq!(ask(&own, &[]).await.unwrap(), "joe ops,system:authenticated");
    // Headers of a front proxy do not count.
    let spoken = [("x-remote-user", "ann"), ("x-remote-group", "dev")];
    assert_eq!(ask(&own, &spoken).await.unwrap(), "joe ops,system:authenticated");
    assert_eq!(ask(&[], &spoken).await.unwrap(), "system:anonymous system:unauthenticated");
    assert_eq!(ask(&foreign.client("joe", "ops"), &[]).await, Err(401));
    // A client whose certificate is not valid may have a valid token.
    let both = ask(&foreign.client("joe", "ops"), &[jane]).await.unwrap();
    assert_eq!(both, "jane dev,system:authenticated");
    assert_eq!(ask(&own, &[jane]).await.unwrap(), "joe ops,system:authenticated");
}

#[tokio::test]
async fn authorities_in_files_are_replaced_by_good_ones_only() {
    let (old, new) = (Issuing::new(), Issuing::new());
    let folder = tempfile::tempdir().unwrap();
    let access = access(folder.path(), &old);
    let refusing = reviewers(vec![failure(403)]);
    let known = async |issuing: &Issuing| {
        let chain = issuing.client("joe", "ops");
        user(&access, &chain, &[], &refusing).await.is_ok()
    };
    let file = folder.path().join("clients");
    fs::write(&file, "nothing of use").unwrap();
    assert!(known(&old).await && !known(&new).await);
    fs::remove_file(&file).unwrap();
    assert!(known(&old).await);
    fs::write(&file, format!("{}{}", old.pem, new.pem)).unwrap();
    assert!(known(&old).await && known(&new).await);
    fs::write(&file, &new.pem).unwrap();
    assert!(!known(&old).await && known(&new).await);
}

#[tokio::test(start_paused = true)]
async fn masters_may_read_everything_and_others_what_the_api_server_allows() {
    let clients = Issuing::new();
    let folder = tempfile::tempdir().unwrap();
    let ask = async |group: &str, answers| {
        let access = access(folder.path(), &clients);
        let chain = clients.client("joe", group);
        let checked = access.check(&request(&[]), &chain, &reviewers(answers)).await;
        checked.map_err(|refusal| (refusal.status.as_u16(), refusal.message))
    };
    let verdict = |allowed| vec![(201, json!({"spec": {}, "status": {"allowed": allowed}}))];
    ask("system:masters", vec![failure(403)]).await.unwrap();
    ask("ops", verdict(true)).await.unwrap();
    assert_eq!(
        ask("ops", verdict(false)).await.unwrap_err(),
        (403, "forbidden: User \"joe\" cannot get path \"/metrics\"\n".to_owned())
    );
    assert_eq!(ask("ops", vec![failure(500)]).await.unwrap_err().0, 503);
    let denied = vec![(201, json!({"spec": {}, "status": {"allowed": true, "denied": true}}))];
    assert_eq!(ask("ops", denied).await.unwrap_err().0, 403);
}

#[test]
fn open_paths_are_exact_but_for_a_star() {
    for (list, open, closed) in [
        (
            &["/healthz", "metrics"][..],
            &["/healthz", "/metrics"][..],
            &["/healthz/ping", "/readyz", "/metrics/slis"][..],
        ),
        (&[], &[], &["/healthz", "/metrics"]),
        (&["/*"], &["/healthz", "/metrics", "/livez/ping"], &[]),
        (&["/livez/*"], &["/livez/ping"], &["/livez", "/metrics"]),
        (&["/met"], &[], &["/metrics"]),
    ] {
        let config = AccessConfig {
            open_paths: list.iter().map(ToString::to_string).collect(),
            ..AccessConfig::default()
        };
        let access = Access::open(&config, &mut Registry::default()).unwrap();
        for (paths, expected) in [(open, true), (closed, false)] {
            for path in paths {
                assert_eq!(access.is_open(path), expected, "{list:?} {path}");
            }
        }
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    for (file, part) in [("missing.pem", "cannot read "), ("empty.pem", "cannot use ")] {
        let config = AccessConfig {
            client_authorities: Some(folder.path().join(file)),
            ..AccessConfig::default()
        };
        let problem = Access::open(&config, &mut Registry::default()).err().unwrap();
        assert!(
            problem.starts_with(&format!("--client-ca-file: {part}")) && problem.contains(file),
            "{problem}"
        );
    }
}
