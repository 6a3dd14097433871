//! Every form of a kubeconfig.

use serde_json::{Value, json};

use super::stage::{LIMIT, Stage};

fn data(text: &str) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_credentials_is_accepted_and_none_is_logged() {
    let stage = Stage::set().await;
    let trusted = stage.trusted();
    stage.write("token", &format!("{}\n", stage.token));
    stage.write("client.crt", &stage.certificate);
    stage.write("client.key", &stage.key);
    let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                            "status": {"token": stage.token}});
    stage.write("credential", &credential.to_string());
    let certificate =
        json!({"status": {"clientCertificateData": stage.certificate, "clientKeyData": stage.key}});
    stage.write("certificate", &certificate.to_string());
    let plugin = |file: &str| {
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat",
                        "args": [stage.path(file)], "interactiveMode": "IfAvailable"}})
    };
    let forms = [
        ("a token", trusted.clone(), json!({"token": stage.token})),
        ("a file with a token", trusted.clone(), json!({"token": "stale", "tokenFile": "token"})),
        (
            "a certificate",
            json!({"certificate-authority-data": data(&stage.authority)}),
            json!({"client-certificate-data": data(&stage.certificate), "client-key-data": data(&stage.key)}),
        ),
        (
            "files with a certificate",
            trusted.clone(),
            json!({"client-certificate": "client.crt", "client-key": "client.key"}),
        ),
        ("a plugin's token", trusted.clone(), plugin("credential")),
        ("a plugin's certificate", trusted.clone(), plugin("certificate")),
        (
            "no check of the server",
            json!({"insecure-skip-tls-verify": true}),
            json!({"token": stage.token}),
        ),
    ];
    for (form, cluster, user) in forms {
        stage.kubeconfig(&cluster, &user);
        let mut ccm = stage.launch(&[]);
        let ready = ccm.wait_healthy("/readyz", LIMIT).await;
        assert!(ready.is_ok(), "{form}: {ready:?}");
    }
    // In place of the kubeconfig's server, on which nothing listens.
    stage.kubeconfig(
        &json!({"server": "https://127.0.0.1:1", "certificate-authority": "ca.crt"}),
        &json!({"token": stage.token}),
    );
    let mut ccm = stage.launch(&[&format!("--master={}", stage.control_plane.server())]);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    stage.keeps_secrets(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_variables_are_read_as_in_go() {
    let stage = Stage::set().await;
    stage.kubeconfig(&stage.trusted(), &json!({"token": stage.token}));
    // No proxy is used for this machine, and a comma may end the list.
    let variables = [
        ("HTTPS_PROXY", "http://user:open-sesame-7@127.0.0.1:1"),
        ("NO_PROXY", "10.0.0.0/8,"),
    ];
    let mut ccm = stage.launch_with(&[], &variables);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    stage.keeps_secrets(&["open-sesame-7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_credentials_end_the_start_with_a_fix_and_no_secret() {
    let stage = Stage::set().await;
    let trusted = stage.trusted();
    let secret = "open-sesame-7";
    let plugin = |script: &str| json!({"exec": {"apiVersion": "x", "command": "sh", "args": ["-c", script]}});
    for (user, words) in [
        (json!({"tokenFile": "nowhere"}), "nowhere: No such file"),
        (json!({"token": format!("{secret}\n")}), "its token is invalid"),
        (plugin(&format!("echo {secret}; echo log in first >&2; exit 7")), "log in first"),
        (plugin(&format!("echo {secret}")), "printed no ExecCredential"),
        (
            json!({"client-certificate-data": data(&stage.certificate), "client-key-data": data(secret)}),
            "cannot use",
        ),
    ] {
        stage.kubeconfig(&trusted, &user);
        stage.forget_log();
        let mut ccm = stage.launch(&[]);
        assert_eq!(ccm.wait(LIMIT).await.unwrap().code(), Some(1), "{user}");
        assert!(stage.log().contains(words), "{user}: {}", stage.log());
        stage.keeps_secrets(&[secret]);
    }
    stage.write(
        "kubeconfig",
        "current-context: missing\ncontexts: [{name: existing, context: {cluster: k}}]\n",
    );
    let mut ccm = stage.launch(&[]);
    assert_eq!(ccm.wait(LIMIT).await.unwrap().code(), Some(1));
    let words = "correct current-context (existing: existing)";
    assert!(stage.log().contains(words), "{}", stage.log());
}
