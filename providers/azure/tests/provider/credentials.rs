//! Logins, and the replacement of credentials while the program runs.

use std::sync::Arc;

use base64::Engine as _;
use ccm_core::{BuildContext, Cloud, Environment, ErrorKind, Result, testkit};
use ccm_testbed::arm::{ArmServer, SECRET};
use serde_json::Value;

use crate::stage::{Stage, query};

/// A certificate and its private key, as PEM.
fn client_pem() -> String {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let params = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
    params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
}

async fn connect(server: &ArmServer, more: &str, environment: Environment) -> Result<Arc<dyn Cloud>> {
    let conf = format!("{}{more}", server.conf_without_credentials());
    let (_folder, context) = testkit::context(&conf, environment);
    testkit::build_in("azure", context).await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_credentials_log_in() {
    let server = ArmServer::start(&[]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [token, pem] = ["token", "client.pem"].map(|name| folder.path().join(name));
    std::fs::write(&token, "service-account-token\n").unwrap();
    std::fs::write(&pem, client_pem()).unwrap();
    let none = Environment::default;
    let metadata = none().with("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url());
    let service = none()
        .with("IDENTITY_ENDPOINT", format!("{}/msi/token", server.url()))
        .with("IDENTITY_HEADER", "x");
    for (more, environment) in [
        (format!("aadClientId: c\naadClientSecret: {SECRET}\n"), none()),
        (format!("aadClientId: c\naadClientCertPath: {}\n", pem.display()), none()),
        (
            format!(
                "aadClientId: c\nuseFederatedWorkloadIdentityExtension: true\naadFederatedTokenFile: {}\n",
                token.display()
            ),
            none(),
        ),
        ("useManagedIdentityExtension: true\n".to_owned(), metadata.clone()),
        ("useManagedIdentityExtension: true\nuserAssignedIdentityID: id\n".to_owned(), metadata),
        ("useManagedIdentityExtension: true\n".to_owned(), service),
    ] {
        let cloud = connect(&server, &more, environment).await.unwrap();
        assert!(cloud.scope().contains("resource group k8s"), "{}", cloud.scope());
    }
    let logins = server.logins().await.unwrap();
    let [secret, certificate, workload] = logins.as_slice() else {
        panic!("{logins:#?}");
    };
    let scope = format!("{}/.default", server.url());
    for login in &logins {
        assert_eq!((login["scope"].as_str(), login["client_id"].as_str()), (Some(scope.as_str()), Some("c")));
        assert!(login["path"].as_str().unwrap().ends_with("/oauth2/v2.0/token"), "{login}");
    }
    assert_eq!(secret["client_secret"], SECRET);
    assert_eq!(workload["client_assertion"], "service-account-token");
    assert_eq!(certificate["client_assertion"].as_str().unwrap().split('.').count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_refused_without_a_retry() {
    let server = ArmServer::start(&[]).await.unwrap();
    let refused = connect(&server, "aadClientId: c\naadClientSecret: wrong\n", Environment::default()).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    assert!(error.report().contains("AADSTS7000215") && !error.report().contains("wrong"), "{error}");
    assert_eq!(server.logins().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_azure_refuses_is_replaced_once() {
    let stage = Stage::new(&["--standalone=1"], "").await;
    let machine = stage.server.machines[0].clone();
    stage.server.control::<Value>("revoke", &serde_json::json!({})).await.unwrap();
    stage.find(&machine.name, None).await;
    assert_eq!(stage.server.logins().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_replaced_ahead_and_a_failure_delays_no_call() {
    let server = ArmServer::start(&["--standalone=1"]).await.unwrap();
    let settings = serde_json::json!({"refresh_in": 0});
    server.control::<Value>("settings", &settings).await.unwrap();
    let credentials = format!("aadClientId: c\naadClientSecret: {SECRET}\n");
    let cloud = connect(&server, &credentials, Environment::default()).await.unwrap();
    let machine = server.machines[0].name.clone();
    // The next call uses the token, and begins the login for another one.
    while server.logins().await.unwrap().len() < 2 {
        testkit::nodes::present(testkit::nodes::ask(&*cloud, query(&machine, None)).await);
    }
    let settings = serde_json::json!({"login_status": 503});
    server.control::<Value>("settings", &settings).await.unwrap();
    let before = server.logins().await.unwrap().len();
    while server.logins().await.unwrap().len() == before {
        testkit::nodes::present(testkit::nodes::ask(&*cloud, query(&machine, None)).await);
    }
    testkit::nodes::present(testkit::nodes::ask(&*cloud, query(&machine, None)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_is_used_only_if_azure_accepts_it() {
    let stage = Stage::new(&["--standalone=1"], "").await;
    let machine = stage.server.machines[0].clone();
    assert!(stage.cloud.watched_files().contains(&stage.file()));
    stage.rewrite(SECRET, "wrong");
    let error = stage.cloud.reload().await.unwrap_err();
    assert_eq!((error.kind(), stage.cloud.generation()), (ErrorKind::Unauthenticated, 0));
    stage.find(&machine.name, None).await;
    stage.rewrite("wrong", "another-secret");
    let reload = stage.cloud.reload().await.unwrap();
    assert_eq!((reload.applied, stage.cloud.generation()), (vec!["aadClientSecret".to_owned()], 1));
    stage.find(&machine.name, None).await;
    assert_eq!(stage.server.logins().await.unwrap().last().unwrap()["client_secret"], "another-secret");
    // Other keys need a restart.
    stage.rewrite("location: eastus", "location: westus\nvmType: standard");
    let reload = stage.cloud.reload().await.unwrap();
    assert_eq!(reload.restart_needed, ["location", "vmType"]);
    assert_eq!(stage.cloud.generation(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_in_the_same_file_is_used() {
    let server = ArmServer::start(&[]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("client.pem");
    std::fs::write(&pem, client_pem()).unwrap();
    let conf = format!(
        "{}aadClientId: c\naadClientCertPath: {}\n",
        server.conf_without_credentials(),
        pem.display()
    );
    let (_folder, context) = testkit::context(&conf, Environment::default());
    let cloud = testkit::build_in("azure", context).await.unwrap();
    assert!(cloud.watched_files().contains(&pem));
    let unchanged = cloud.reload().await.unwrap();
    assert!(unchanged.applied.is_empty() && cloud.generation() == 0);
    std::fs::write(&pem, client_pem()).unwrap();
    assert_eq!(cloud.reload().await.unwrap().applied, ["aadClientCertPath"]);
    assert_eq!(cloud.generation(), 1);
    std::fs::write(&pem, "no certificate").unwrap();
    let error = cloud.reload().await.unwrap_err().report();
    assert!(error.contains("aadClientCertPath: contains no PEM certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_config_can_be_in_a_secret() {
    let server = ArmServer::start(&[]).await.unwrap();
    let conf = Arc::new(parking_lot::Mutex::new(server.conf()));
    let content = Arc::clone(&conf);
    let api = testkit::server::Server::start(move |_| {
        let data = base64::engine::general_purpose::STANDARD.encode(content.lock().as_bytes());
        let secret = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "azure"}, "data": {"azure.json": data},
        });
        testkit::server::answer("200 OK", "Content-Type: application/json\r\n", &secret.to_string())
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": api.url()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let flags = [
        ("enable-dynamic-reloading", "true"),
        ("cloud-config-secret-name", "azure"),
        ("cloud-config-key", "azure.json"),
        ("kubeconfig", kubeconfig.to_str().unwrap()),
    ];
    let context = BuildContext {
        flags: flags.into_iter().map(|(name, value)| (name.to_owned(), vec![value.to_owned()])).collect(),
        ..BuildContext::default()
    };
    let cloud = testkit::build_in("azure", context).await.unwrap();
    assert_eq!(api.lines(), ["GET /api/v1/namespaces/kube-system/secrets/azure"]);
    let changed = conf
        .lock()
        .replace(SECRET, "another-secret")
        .replace("location: eastus", "location: westus");
    *conf.lock() = changed;
    let reload = cloud.reload().await.unwrap();
    assert_eq!(reload.applied, ["aadClientSecret"]);
    assert_eq!(reload.restart_needed, ["location"]);
    *conf.lock() = "location: eastus".to_owned();
    let error = cloud.reload().await.unwrap_err().report();
    assert!(error.contains("secret kube-system/azure, key azure.json"), "{error}");
    assert!(error.contains("subscriptionId: missing"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn network_resources_in_another_tenant_have_their_own_token() {
    let server = ArmServer::start(&[]).await.unwrap();
    let conf = format!("aadClientId: c\naadClientSecret: {SECRET}\nnetworkResourceTenantID: other-tenant\n");
    let cloud = connect(&server, &conf, Environment::default()).await.unwrap();
    let routes = cloud.routes().unwrap();
    routes.observe(&[], ccm_core::Priority::User).await.unwrap();
    let answer = testkit::nodes::ask(&*cloud, query("nobody", None)).await;
    assert!(answer.is_ok(), "{answer:?}");
    let paths: Vec<_> =
        server.logins().await.unwrap().iter().map(|login| login["path"].to_string()).collect();
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths[1].contains("/other-tenant/"), "{paths:?}");
}
