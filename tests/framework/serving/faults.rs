//! Faults of the HTTPS server and of the API server.

use std::{fs, net::TcpListener};

use ccm_testbed::proxy::{Action, Proxy, Rule};

use super::stage::{LIMIT, Stage, until};

#[tokio::test(flavor = "multi_thread")]
async fn only_probes_are_served_while_the_api_server_answers_no_reviews() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let scraper = stage.scraper().await;
    let upstream = ccm_testbed::controlplane::client(&account).await.unwrap();
    let proxy = Proxy::start(upstream, stage.folder.path()).await.unwrap();
    let through = proxy.kubeconfig().display();
    let mut ccm = stage.launch(
        &account,
        &[
            &format!("--authentication-kubeconfig={through}"),
            &format!("--authorization-kubeconfig={through}"),
            "--authentication-token-webhook-cache-ttl=0s",
            "--authorization-webhook-cache-authorized-ttl=0s",
        ],
    );
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    until(200, || ccm.get_as(&scraper, "/metrics")).await;
    for (round, (resource, what)) in [
        ("tokenreviews", "TokenReview"),
        ("subjectaccessreviews", "SubjectAccessReview"),
    ]
    .into_iter()
    .enumerate()
    {
        let fault = Action::status(403);
        let rule = proxy.add(Rule::when(move |request| request.resource == resource, fault));
        for _ in 0..3 {
            let (code, body) = ccm.get_as(&scraper, "/metrics").await.unwrap();
            assert_eq!(code, 503, "{body}");
            assert!(!body.contains("refused on purpose"), "{body}");
        }
        for path in ["/healthz", "/livez", "/readyz"] {
            assert_eq!(ccm.get_as(&scraper, path).await.unwrap().0, 200, "{path}");
        }
        assert_eq!(stage.lines("Reviews of clients fail"), round + 1);
        assert_eq!(stage.lines(&format!("what=\"{what}\"")).min(1), 1);
        proxy.remove(rule);
        until(200, || ccm.get_as(&scraper, "/metrics")).await;
        assert_eq!(stage.lines("Reviews of clients succeed again"), round + 1);
    }
    // A short failure is retried, so that the scraper gets its answer.
    let once = Action::status(500);
    proxy.add(Rule::when(|request| request.resource == "tokenreviews", once).at(1));
    assert_eq!(ccm.get_as(&scraper, "/metrics").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_refuses_its_client_ca_ends_the_program_unless_tolerated() {
    let stage = Stage::set().await;
    let account = stage.account(false).await;
    let named = format!("--authentication-kubeconfig={}", account.display());
    let mut ccm = stage.launch(&account, &[&named]);
    let status = ccm.wait(LIMIT).await.unwrap();
    let log = fs::read_to_string(stage.log()).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("cannot read the ConfigMap kube-system/extension-apiserver-authentication")
            && log.contains("Role extension-apiserver-authentication-reader"),
        "{log}"
    );
    for flags in [
        &[named.as_str(), "--authentication-tolerate-lookup-failure"][..],
        &[named.as_str(), "--authentication-skip-lookup"],
        // No flag names this account for reviews.
        &[],
    ] {
        let mut ccm = stage.launch(&account, flags);
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        // The account has no right to create reviews, either.
        let (code, body) = ccm.get_as("nonsense", "/metrics").await.unwrap();
        assert_eq!(code, 503, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_problems_of_the_server_are_reported_at_once() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let (certificate, key) = (stage.folder.path().join("tls.crt"), stage.folder.path().join("tls.key"));
    let pair = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&certificate, pair().cert.pem()).unwrap();
    fs::write(&key, pair().signing_key.serialize_pem()).unwrap();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut ccm = stage.launch(
        &account,
        &[
            &format!("--secure-port={}", taken.local_addr().unwrap().port()),
            &format!("--tls-cert-file={}", certificate.display()),
            &format!("--tls-private-key-file={}", key.display()),
            "--client-ca-file=/missing/clients.pem",
            "--authentication-kubeconfig=/missing/kubeconfig",
        ],
    );
    assert_eq!(ccm.wait(LIMIT).await.unwrap().code(), Some(1));
    for part in [
        "tls.key cannot be used together",
        "cannot listen on 127.0.0.1:",
        "--client-ca-file: cannot read /missing/clients.pem",
        "--authentication-kubeconfig: cannot read /missing/kubeconfig",
    ] {
        assert_eq!(stage.lines(part), 1, "{part}\n{}", fs::read_to_string(stage.log()).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipv6_address_is_accepted_with_and_without_brackets() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let http = reqwest::Client::builder().danger_accept_invalid_certs(true).no_proxy().build().unwrap();
    for address in ["::1", "[::1]", "::"] {
        let ccm = stage.launch(&account, &[&format!("--bind-address={address}")]);
        let url = format!("https://[::1]:{}/livez", ccm.port());
        until(200, async || {
            let response = http.get(&url).send().await?;
            Ok((response.status().as_u16(), response.text().await?))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_certificates_are_used_if_they_are_valid() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let (certificate, key) = (stage.folder.path().join("tls.crt"), stage.folder.path().join("tls.key"));
    let pair = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (old, new) = (pair(), pair());
    fs::write(&certificate, old.cert.pem()).unwrap();
    fs::write(&key, old.signing_key.serialize_pem()).unwrap();
    let mut ccm = stage.launch(
        &account,
        &[
            &format!("--tls-cert-file={}", certificate.display()),
            &format!("--tls-private-key-file={}", key.display()),
        ],
    );
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    let shown = async || {
        let http = reqwest::Client::builder()
            .danger_accept_invalid_certs(true)
            .no_proxy()
            .tls_info(true)
            .build()
            .unwrap();
        let url = format!("https://127.0.0.1:{}/livez", ccm.port());
        let response = http.get(url).send().await.unwrap();
        let info = response.extensions().get::<reqwest::tls::TlsInfo>().unwrap();
        info.peer_certificate().unwrap().to_vec()
    };
    assert_eq!(shown().await, old.cert.der().to_vec());
    fs::write(&certificate, new.cert.pem()).unwrap();
    assert_eq!(shown().await, old.cert.der().to_vec());
    assert_eq!(shown().await, old.cert.der().to_vec());
    assert_eq!(stage.lines("Changed files are not usable, keeping the previous content"), 1);
    fs::write(&key, new.signing_key.serialize_pem()).unwrap();
    assert_eq!(shown().await, new.cert.der().to_vec());
    fs::remove_file(&key).unwrap();
    assert_eq!(shown().await, new.cert.der().to_vec());
    assert_eq!(stage.lines("Loaded changed files"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_review_times_out_and_delays_no_other_client() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let upstream = ccm_testbed::controlplane::client(&account).await.unwrap();
    let proxy = Proxy::start(upstream, stage.folder.path()).await.unwrap();
    let through = proxy.kubeconfig().display();
    let mut ccm = stage.launch(&account, &[&format!("--authentication-kubeconfig={through}")]);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    let rule = proxy.add(Rule::when(|request| request.resource == "tokenreviews", Action::Silence));
    let url = format!("https://127.0.0.1:{}/metrics", ccm.port());
    let http = reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .no_proxy()
        .timeout(LIMIT)
        .build()
        .unwrap();
    let hanging: Vec<_> = (0..20)
        .map(|number| tokio::spawn(http.get(&url).bearer_auth(format!("token-{number}")).send()))
        .collect();
    assert!(proxy.reached(rule).await.is_some());
    for _ in 0..10 {
        assert_eq!(ccm.get("/livez").await.unwrap().0, 200);
        assert_eq!(ccm.get("/metrics").await.unwrap().0, 403);
    }
    for answer in hanging {
        assert_eq!(answer.await.unwrap().unwrap().status().as_u16(), 503);
    }
    proxy.clear();
    until(401, || ccm.get_as("token", "/metrics")).await;
}
