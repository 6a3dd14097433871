//! Clients of every kind, and their access.

use std::time::Duration;

use ccm_testbed::binary::Ccm;
use serde_json::Value;

use super::stage::{LIMIT, Stage, until};

#[tokio::test(flavor = "multi_thread")]
async fn only_authorized_clients_read_metrics() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let (scraper, stranger) = (stage.scraper().await, stage.token("stranger").await);
    let mut ccm = stage.launch(&account, &[]);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();

    let metrics = until(200, || ccm.get_as(&scraper, "/metrics")).await;
    assert!(metrics.contains("apiserver_delegated_authz_request_total"), "{metrics}");
    for (path, code) in [
        ("/metrics/slis", 403),
        ("/configz", 403),
        ("/statusz", 403),
        ("/healthz", 200),
    ] {
        assert_eq!(ccm.get_as(&scraper, path).await.unwrap().0, code, "{path}");
    }
    let (code, body) = ccm.get_as(&stranger, "/metrics").await.unwrap();
    assert_eq!(
        (code, body.as_str()),
        (
            403,
            "forbidden: User \"system:serviceaccount:default:stranger\" cannot get path \"/metrics\"\n"
        )
    );
    let (code, body) = ccm.get("/metrics").await.unwrap();
    assert_eq!(code, 403, "{body}");
    assert!(body.contains("system:anonymous"), "{body}");
    let (code, body) = ccm.get_as("nonsense", "/metrics").await.unwrap();
    assert_eq!(code, 401, "{body}");
    let expired = stage.control_plane.expired(&scraper).unwrap();
    let (code, body) = ccm.get_as(&expired, "/metrics").await.unwrap();
    assert_eq!(code, 401, "{body}");
    // A client with an invalid token can still read public paths.
    assert_eq!(ccm.get_as("nonsense", "/livez").await.unwrap().0, 200);

    // No request of the program itself was refused.
    let user = "system:serviceaccount:kube-system:cloud-controller-manager";
    let denied: Vec<_> = stage
        .control_plane
        .audit_log()
        .unwrap()
        .into_iter()
        .filter(|entry| entry.user == user && entry.code == 403)
        .filter(|entry| entry.resource != "namespaces")
        .collect();
    assert!(denied.is_empty(), "{denied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_cached_and_a_deleted_token_is_refused() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let scraper = stage.scraper().await;
    let mut ccm = stage.launch(&account, &["--authentication-token-webhook-cache-ttl=2s"]);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    until(200, || ccm.get_as(&scraper, "/metrics")).await;
    let requests = |resource: &str| {
        let log = stage.control_plane.audit_log().unwrap();
        log.into_iter().filter(|entry| entry.resource == resource).count()
    };
    for _ in 0..50 {
        assert_eq!(ccm.get_as(&scraper, "/metrics").await.unwrap().0, 200);
        assert_eq!(ccm.get("/metrics").await.unwrap().0, 403);
    }
    // Fifty scrapes take some time, and cached answers expire.
    let (reviews, rights) = (requests("tokenreviews"), requests("subjectaccessreviews"));
    assert!(reviews < 15 && rights < 15, "{reviews} {rights}");

    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::namespaced(stage.client.clone(), "default");
    accounts.delete("scraper", &kube::api::DeleteParams::default()).await.unwrap();
    until(401, || ccm.get_as(&scraper, "/metrics")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clusters_authorities_verify_client_certificates() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    let mut ccm = stage.launch(&account, &[]);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    let admin = admin(&stage);
    let (code, metrics) = get(&ccm, &admin, "/metrics").await;
    assert_eq!(code, 200, "{metrics}");
    // Members of system:masters need no review.
    let log = stage.control_plane.audit_log().unwrap();
    assert!(log.iter().all(|entry| entry.resource != "subjectaccessreviews"));

    let mut without = stage.launch(&account, &["--authentication-skip-lookup"]);
    without.wait_healthy("/readyz", LIMIT).await.unwrap();
    assert_eq!(get(&without, &admin, "/metrics").await.0, 403);
}

/// The certificate and key of the administrator's kubeconfig, PEM.
fn admin(stage: &Stage) -> Vec<u8> {
    let config = std::fs::read(stage.control_plane.kubeconfig()).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let user = &config["users"][0]["user"];
    ["client-certificate", "client-key"]
        .iter()
        .flat_map(|key| match user[format!("{key}-data")].as_str() {
            Some(data) => {
                let bytes: k8s_openapi::ByteString = serde_json::from_value(data.into()).unwrap();
                bytes.0
            }
            None => std::fs::read(user[*key].as_str().unwrap()).unwrap(),
        })
        .collect()
}

async fn get(ccm: &Ccm, identity: &[u8], path: &str) -> (u16, String) {
    let client = client(identity);
    let url = format!("https://127.0.0.1:{}{path}", ccm.port());
    let response = client.get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_a_front_proxy_are_ignored() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    stage.scraper().await;
    let ca = stage.control_plane.dir().join("pki/front-proxy-ca.crt");
    let mut ccm = stage.launch(&account, &[&format!("--requestheader-client-ca-file={}", ca.display())]);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    assert_eq!(stage.lines("has no effect: clients authenticate themselves"), 1);
    let pki = stage.control_plane.dir().join("pki");
    let mut proxy = std::fs::read(pki.join("front-proxy-client.crt")).unwrap();
    proxy.extend(std::fs::read(pki.join("front-proxy-client.key")).unwrap());
    let url = format!("https://127.0.0.1:{}/metrics", ccm.port());
    let user = "system:serviceaccount:default:scraper";
    let request = client(&proxy).get(url).header("x-remote-user", user);
    assert_eq!(request.send().await.unwrap().status().as_u16(), 401);
}

/// A client with this certificate and key, PEM.
fn client(identity: &[u8]) -> reqwest::Client {
    reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .no_proxy()
        .identity(reqwest::Identity::from_pem(identity).unwrap())
        .timeout(Duration::from_secs(10))
        .build()
        .unwrap()
}
