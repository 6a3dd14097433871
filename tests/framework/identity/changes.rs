//! Credentials that are replaced while the program runs.

use serde_json::json;

use super::stage::{LIMIT, Stage};

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_reported_and_the_next_one_is_used() {
    let stage = Stage::set().await;
    let trusted = stage.trusted();
    let stale = stage.control_plane.expired(&stage.token).unwrap();
    stage.write("token", &stale);
    stage.kubeconfig(&trusted, &json!({"tokenFile": "token"}));
    let mut ccm = stage.launch(&[]);
    stage.logged("The API server does not accept the credentials (401)").await;
    assert_ne!(ccm.get("/readyz").await.unwrap().0, 200);
    assert_eq!(ccm.get("/livez").await.unwrap().0, 200);
    stage.write("token", &stage.token);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    assert!(stage.log().contains("Applied changed credentials"), "{}", stage.log());
    stage.keeps_secrets(&[&stale]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_runs_again_when_its_token_is_not_accepted() {
    let stage = Stage::set().await;
    let trusted = stage.trusted();
    let credential = |token: &str| json!({"status": {"token": token}}).to_string();
    stage.write("credential", &credential("nobodys"));
    let args = json!([stage.path("credential")]);
    stage.kubeconfig(&trusted, &json!({"exec": {"apiVersion": "x", "command": "cat", "args": args}}));
    let mut ccm = stage.launch(&[]);
    stage.logged("The API server does not accept the credentials (401)").await;
    stage.write("credential", &credential(&stage.token));
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    stage.keeps_secrets(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_authorities_of_the_cluster_are_used() {
    let stage = Stage::set().await;
    let trusted = stage.trusted();
    let other = rcgen::generate_simple_self_signed(["kubernetes".to_owned()]).unwrap();
    stage.write("ca.crt", &other.cert.pem());
    stage.kubeconfig(&trusted, &json!({"token": stage.token}));
    let mut ccm = stage.launch(&[]);
    stage.logged("UnknownIssuer").await;
    assert_ne!(ccm.get("/readyz").await.unwrap().0, 200);
    stage.write("ca.crt", &stage.authority);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_client_certificate_is_used() {
    let stage = Stage::set().await;
    let trusted = stage.trusted();
    let other = rcgen::generate_simple_self_signed(["nobody".to_owned()]).unwrap();
    stage.write("client.crt", &other.cert.pem());
    stage.write("client.key", &other.signing_key.serialize_pem());
    let user = json!({"client-certificate": "client.crt", "client-key": "client.key"});
    stage.kubeconfig(&trusted, &user);
    let mut ccm = stage.launch(&[]);
    stage.logged("The API server does not accept the credentials (401)").await;
    stage.write("client.crt", &stage.certificate);
    stage.write("client.key", &stage.key);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    stage.keeps_secrets(&[]);
}
