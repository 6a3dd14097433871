#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use ccm_core::Environment;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::{
    source::{environment_proxy, pod_server},
    *,
};

/// The value of every secret.
const SECRET: &str = "open-sesame-7";

/// A kubeconfig and the files that it names.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Names of files are relative to the kubeconfig.
    fn kubeconfig(&self, cluster: Value, user: &Value) -> Source {
        self.write_kubeconfig(cluster, user);
        self.source(None)
    }

    fn write_kubeconfig(&self, mut cluster: Value, user: &Value) {
        if cluster.get("server").is_none() {
            cluster["server"] = json!("https://10.0.0.1:6443");
        }
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        });
        self.write("kubeconfig", &config.to_string());
    }

    fn source(&self, server: Option<&str>) -> Source {
        Source::File {
            flag: "--kubeconfig",
            path: self.path("kubeconfig"),
            context: None,
            server: server.map(str::to_owned),
        }
    }

    /// A certificate and its key.
    fn pair(&self, name: &str) {
        let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        self.write(&format!("{name}.crt"), &pair.cert.pem());
        self.write(&format!("{name}.key"), &pair.signing_key.serialize_pem());
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

async fn load(source: Source) -> Credentials {
    Credentials::load(source).await.unwrap()
}

async fn problem(source: Source) -> String {
    let error = Credentials::load(source).await.err().unwrap();
    assert!(!error.contains(SECRET), "{error}");
    error
}

fn token(credentials: &Credentials) -> Option<String> {
    let current = credentials.current();
    let token = current.config.auth_info.token.as_ref()?;
    Some(token.expose_secret().to_owned())
}

fn server_of(credentials: &Credentials) -> http::Uri {
    credentials.current().config.cluster_url.clone()
}

/// Waits until other credentials are in use.
async fn change(credentials: &Credentials, then: impl FnOnce()) {
    let mut changes = credentials.0.current.subscribe();
    changes.borrow_and_update();
    then();
    changes.changed().await.unwrap();
}

#[tokio::test]
async fn another_context_than_the_current_one_can_be_chosen() {
    let folder = Folder::new();
    let context = |name: &str| json!({"name": name, "context": {"cluster": name, "user": "u"}});
    let cluster =
        |name: &str| json!({"name": name, "cluster": {"server": format!("https://{name}.example")}});
    let config = json!({
        "current-context": "a",
        "contexts": [context("a"), context("b")],
        "clusters": [cluster("a"), cluster("b")],
        "users": [{"name": "u", "user": {"token": SECRET}}],
    });
    folder.write("kubeconfig", &config.to_string());
    let source = |name: &str| Source::File {
        flag: "--kubeconfig",
        path: folder.path("kubeconfig"),
        context: Some(name.to_owned()),
        server: None,
    };
    let chosen = load(source("b")).await;
    assert_eq!(chosen.current().config.cluster_url.host(), Some("b.example"));
    let error = problem(source("c")).await;
    assert!(
        error.contains("context \"c\" does not exist; correct --context (existing: a, b)"),
        "{error}"
    );
}

#[tokio::test]
async fn what_a_kubeconfig_lacks_is_reported_with_what_exists() {
    let folder = Folder::new();
    let error = problem(folder.source(None)).await;
    assert!(
        error.starts_with("--kubeconfig: cannot read ") && error.contains("kubeconfig: No such file"),
        "{error}"
    );
    let context = json!([{"name": "here", "context": {"cluster": "k", "user": "u"}}]);
    let cluster = json!([{"name": "k", "cluster": {"server": "https://10.0.0.1"}}]);
    let user = json!([{"name": "u", "user": {"token": SECRET}}]);
    for (config, words) in [
        (json!({}), "it has no current context; set current-context (none exists)"),
        (json!({"contexts": context}), "set current-context (existing: here)"),
        (
            json!({"current-context": "there", "contexts": context}),
            "context \"there\" does not exist; correct current-context (existing: here)",
        ),
        (
            json!({"current-context": "here", "contexts": context, "users": user}),
            "the cluster \"k\" of context \"here\" does not exist; correct the context (none exists)",
        ),
        (
            json!({"current-context": "here", "contexts": context, "clusters": cluster}),
            "the user \"u\" of context \"here\" does not exist",
        ),
        (
            json!({"current-context": "here", "contexts": context, "users": user, "clusters": [{"name": "k", "cluster": {}}]}),
            "its cluster has no server",
        ),
        (
            json!({"current-context": "here", "contexts": context, "users": user,
                   "clusters": [{"name": "k", "cluster": {"server": "::"}}]}),
            "its server is not a URL; write a URL such as https://10.0.0.1:6443",
        ),
    ] {
        folder.write("kubeconfig", &config.to_string());
        let error = problem(folder.source(None)).await;
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn a_server_without_a_scheme_has_tls_as_in_go() {
    let folder = Folder::new();
    folder.pair("ca");
    for (cluster, scheme) in [
        (json!({}), "http"),
        (json!({"certificate-authority": "ca.crt"}), "https"),
        (json!({"insecure-skip-tls-verify": true}), "https"),
    ] {
        let mut named = cluster.clone();
        named["server"] = json!("10.0.0.1:6443");
        for (cluster, server) in [(named, None), (cluster, Some("10.0.0.1:6443"))] {
            folder.write_kubeconfig(cluster, &json!({}));
            let url = folder.source(server).load().await.unwrap().config.cluster_url;
            assert_eq!(url.scheme_str(), Some(scheme), "{url}");
        }
    }
}

#[tokio::test]
async fn no_error_contains_a_secret() {
    let folder = Folder::new();
    for text in [
        format!("users: {SECRET}"),
        format!("users:\n- name: u\n  user:\n    token: [{SECRET}]\n"),
        format!("users:\n- name: u\n  user:\n    token: {SECRET}: {SECRET}\n"),
        SECRET.to_owned(),
    ] {
        folder.write("kubeconfig", &text);
        let error = problem(folder.source(None)).await;
        assert!(error.contains("it is not a kubeconfig"), "{error}");
    }
    folder.write("empty", " \n");
    folder.write("two", &format!("{SECRET}\n{SECRET}\n"));
    folder.write("noise", SECRET);
    folder.pair("a");
    folder.pair("b");
    let script = |text: &str| json!({"command": "sh", "args": ["-c", text], "apiVersion": "x"});
    for (user, words) in [
        (json!({"tokenFile": "missing"}), "cannot read "),
        (json!({"tokenFile": "empty"}), "no token in "),
        (json!({"tokenFile": "two"}), "its token is invalid"),
        (json!({"token": format!("{SECRET}\n")}), "its token is invalid"),
        (json!({"client-certificate": "missing", "client-key": "a.key"}), "cannot read "),
        (json!({"client-certificate": "a.crt"}), "no client key"),
        (json!({"client-key": "a.key"}), "no client certificate"),
        (json!({"client-certificate": "a.crt", "client-key": "b.key"}), "cannot use "),
        (json!({"client-certificate": "noise", "client-key": "noise"}), "cannot use "),
        (json!({"client-certificate-data": SECRET, "client-key-data": SECRET}), "cannot use "),
        (json!({"exec": script(&format!("echo {SECRET}; exit 1"))}), "failed (exit status: 1)"),
        (json!({"exec": script(&format!("echo {SECRET}"))}), "printed no ExecCredential"),
        (
            json!({"exec": {"command": "sh", "apiVersion": "x", "interactiveMode": "Always"}}),
            "the plugin must run without a user",
        ),
    ] {
        let error = problem(folder.kubeconfig(json!({}), &user)).await;
        assert!(error.contains(words), "{user}: {error}");
    }
    let error = problem(folder.kubeconfig(json!({"certificate-authority": "missing"}), &json!({}))).await;
    assert!(error.contains("failed to load certificate authority"), "{error}");
    let proxy = json!({"proxy-url": format!("socks5://user:{SECRET}@proxy:1080")});
    let error = problem(folder.kubeconfig(proxy, &json!({}))).await;
    assert!(error.contains("its proxy-url is not the URL of an HTTP proxy"), "{error}");
}

#[test]
fn variables_name_the_proxy_for_the_server() {
    let url = format!("http://user:{SECRET}@proxy:3128");
    let secret = url.as_str();
    let proxy = |server: &str, variables: &[(&str, &str)]| {
        let environment = variables
            .iter()
            .fold(Environment::default(), |all, (name, value)| all.with(*name, *value));
        environment_proxy(&environment, &server.parse().unwrap())
            .map(|proxy| proxy.map(|url| url.to_string()))
    };
    let (server, with_secret) = ("https://api.example.org:6443", Some(format!("{secret}/")));
    for (server, variables, expected) in [
        (server, vec![("https_proxy", secret)], with_secret.clone()),
        (server, vec![("HTTPS_PROXY", "proxy:3128")], Some("http://proxy:3128/".to_owned())),
        (server, vec![("HTTP_PROXY", secret)], None),
        ("http://10.0.0.1", vec![("HTTP_PROXY", secret)], with_secret.clone()),
        (server, vec![("HTTPS_PROXY", secret), ("NO_PROXY", "proxy,10.0.0.0/8,")], with_secret),
        (server, vec![("HTTPS_PROXY", secret), ("NO_PROXY", "*.example.org,")], None),
        (
            "https://10.0.0.1",
            vec![("HTTPS_PROXY", "socks5://proxy"), ("no_proxy", "10.0.0.0/8")],
            None,
        ),
        (server, vec![("HTTPS_PROXY", secret), ("NO_PROXY", "api.example.org:6443")], None),
        ("https://127.0.0.1:6443", vec![("HTTPS_PROXY", secret)], None),
        ("https://10.96.0.1", vec![("HTTPS_PROXY", secret), ("NO_PROXY", "*")], None),
        ("https://[::1]:6443", vec![("HTTPS_PROXY", secret)], None),
    ] {
        assert_eq!(proxy(server, &variables), Ok(expected), "{server} {variables:?}");
    }
    for url in [
        format!("socks5://user:{SECRET}@proxy"),
        format!("user:{SECRET} @proxy"),
    ] {
        let error = proxy(server, &[("HTTPS_PROXY", url.as_str())]).unwrap_err();
        assert!(error.starts_with("HTTPS_PROXY ") && !error.contains(SECRET), "{error}");
    }
}

#[tokio::test]
async fn the_master_replaces_the_server_of_the_kubeconfig() {
    let folder = Folder::new();
    let credentials = load(folder.kubeconfig(json!({}), &json!({"token": "t"}))).await;
    assert_eq!(server_of(&credentials), "https://10.0.0.1:6443/");
    let credentials = load(folder.source(Some("https://10.0.0.2:6443"))).await;
    assert_eq!(server_of(&credentials), "https://10.0.0.2:6443/");
    assert_eq!(token(&credentials).unwrap(), "t");
    let credentials = load(Source::Server("http://[::1]:8080".parse().unwrap())).await;
    assert_eq!((server_of(&credentials).port_u16(), token(&credentials)), (Some(8080), None));
}

#[tokio::test]
async fn a_user_may_be_left_out() {
    let folder = Folder::new();
    let config = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": ""}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1"}}],
    });
    folder.write("kubeconfig", &config.to_string());
    assert_eq!(token(&load(folder.source(None)).await), None);
}

#[tokio::test(start_paused = true)]
async fn a_token_file_precedes_a_token_and_is_followed() {
    let folder = Folder::new();
    folder.write("token", "first\n");
    let user = json!({"token": "stale", "tokenFile": "token"});
    let credentials = load(folder.kubeconfig(json!({}), &user)).await;
    assert_eq!(token(&credentials).unwrap(), "first");
    change(&credentials, || folder.write("token", "second")).await;
    assert_eq!(token(&credentials).unwrap(), "second");
    // Some programs remove the file after it was read.
    fs::remove_file(folder.path("token")).unwrap();
    sleep(INTERVAL * 3).await;
    assert_eq!(token(&credentials).unwrap(), "second");
    change(&credentials, || folder.write("token", "third")).await;
    assert_eq!(token(&credentials).unwrap(), "third");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_applied_together_with_its_key() {
    let folder = Folder::new();
    folder.pair("a");
    folder.pair("b");
    for kind in ["crt", "key"] {
        folder.write(&format!("client.{kind}"), &folder.read(&format!("a.{kind}")));
    }
    let user = json!({"client-certificate": "client.crt", "client-key": "client.key"});
    let credentials = load(folder.kubeconfig(json!({}), &user)).await;
    let mut changes = credentials.0.current.subscribe();
    folder.write("client.crt", &folder.read("b.crt"));
    sleep(INTERVAL * 2).await;
    assert!(!changes.has_changed().unwrap());
    change(&credentials, || folder.write("client.key", &folder.read("b.key"))).await;
    let user = changes.borrow_and_update().config.auth_info.clone();
    let certificate: k8s_openapi::ByteString =
        serde_json::from_value(user.client_certificate_data.unwrap().into()).unwrap();
    assert_eq!(String::from_utf8(certificate.0).unwrap(), folder.read("b.crt"));
}

#[tokio::test(start_paused = true)]
async fn authorities_are_followed_and_invalid_ones_are_not_applied() {
    let folder = Folder::new();
    folder.pair("old");
    folder.pair("new");
    folder.write("ca.crt", &folder.read("old.crt"));
    let credentials = load(folder.kubeconfig(json!({"certificate-authority": "ca.crt"}), &json!({}))).await;
    let roots = || credentials.current().config.root_cert.clone().unwrap();
    let old = roots();
    folder.write("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    sleep(INTERVAL * 2).await;
    assert_eq!(roots(), old);
    change(&credentials, || folder.write("ca.crt", &folder.read("new.crt"))).await;
    assert_ne!(roots(), old);
}

#[tokio::test(start_paused = true)]
async fn a_changed_kubeconfig_is_applied_unless_its_server_is_another() {
    let folder = Folder::new();
    let credentials = load(folder.kubeconfig(json!({}), &json!({"token": "first"}))).await;
    let server = server_of(&credentials);
    folder.write_kubeconfig(json!({"server": "https://10.9.9.9"}), &json!({"token": "elsewhere"}));
    sleep(INTERVAL * 2).await;
    assert_eq!((token(&credentials).unwrap(), server_of(&credentials)), ("first".to_owned(), server));
    folder.write("kubeconfig", "half of i");
    sleep(INTERVAL * 2).await;
    assert_eq!(token(&credentials).unwrap(), "first");
    change(&credentials, || {
        folder.write_kubeconfig(json!({}), &json!({"token": "second"}));
    })
    .await;
    assert_eq!(token(&credentials).unwrap(), "second");
}

/// A plugin that prints the content of a file and adds a line to another file for each run.
fn plugin(folder: &Folder) -> Value {
    let script = format!(
        "echo >> {runs}; cat {answer}",
        runs = folder.path("runs").display(),
        answer = folder.path("answer").display()
    );
    json!({"exec": {"command": "sh", "args": ["-c", script], "apiVersion": "client.authentication.k8s.io/v1"}})
}

fn answer(token: &str, expires: Option<Timestamp>) -> String {
    let expires = expires.map(|end| end.to_string());
    json!({"status": {"token": token, "expirationTimestamp": expires}}).to_string()
}

#[tokio::test]
async fn a_plugin_runs_once_and_again_before_the_expiry_and_after_401() {
    let folder = Folder::new();
    let runs = || folder.read("runs").lines().count();
    let soon = Timestamp::now() + Duration::from_secs(2);
    folder.write("answer", &answer("first", Some(soon)));
    // A child process has a clock of its own, so that this one cannot be stopped.
    let source = folder.kubeconfig(json!({}), &plugin(&folder));
    let credentials = Credentials::load_at(source, Duration::from_millis(50)).await.unwrap();
    assert_eq!((token(&credentials).unwrap(), runs()), ("first".to_owned(), 1));
    folder.write("answer", &answer("second", None));
    change(&credentials, || {}).await;
    assert_eq!((token(&credentials).unwrap(), runs()), ("second".to_owned(), 2));

    // The token has no expiry now, and the plugin runs only after a 401 answer. Answers to former tokens do not count.
    credentials.rejected(1);
    assert_eq!(*credentials.0.rejected.borrow(), 0);
    folder.write("answer", &answer("third", None));
    change(&credentials, || credentials.rejected(2)).await;
    assert_eq!((token(&credentials).unwrap(), runs()), ("third".to_owned(), 3));

    // A plugin that fails runs again until it succeeds.
    folder.write("answer", "");
    credentials.rejected(3);
    while runs() < 6 {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(token(&credentials).unwrap(), "third");
    change(&credentials, || folder.write("answer", &answer("fourth", None))).await;
    assert_eq!(token(&credentials).unwrap(), "fourth");
}

#[test]
fn credentials_are_renewed_a_minute_before_their_end_or_when_a_fifth_is_left() {
    let renewal = |seconds| until_renewal(Timestamp::now() + Duration::from_secs(seconds)).as_secs();
    assert!((3538..=3540).contains(&renewal(3600)));
    assert!((78..=80).contains(&renewal(100)));
    assert_eq!(until_renewal(Timestamp::UNIX_EPOCH), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn unchanged_credentials_are_not_applied_after_401() {
    let folder = Folder::new();
    let credentials = load(folder.kubeconfig(json!({}), &json!({"token": "t"}))).await;
    let mut changes = credentials.0.current.subscribe();
    changes.borrow_and_update();
    credentials.rejected(1);
    timeout(INTERVAL * 10, changes.changed()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_pods_token_and_authorities_are_followed_as_the_kubelet_replaces_them() {
    let folder = Folder::new();
    folder.pair("old");
    folder.pair("new");
    // As a projected volume is laid out.
    let lay = |name: &str, token: &str, authority: &str| {
        fs::create_dir(folder.path(name)).unwrap();
        folder.write(&format!("{name}/token"), token);
        folder.write(&format!("{name}/ca.crt"), &folder.read(authority));
        symlink(name, folder.path("..new")).unwrap();
        fs::rename(folder.path("..new"), folder.path("..data")).unwrap();
    };
    lay("..1", "first", "old.crt");
    for name in ["token", "ca.crt"] {
        symlink(format!("..data/{name}"), folder.path(name)).unwrap();
    }
    let credentials = load(Source::Pod {
        server: pod_server("fd00::1", "443").unwrap(),
        folder: folder.path(""),
    })
    .await;
    assert_eq!(server_of(&credentials), "https://[fd00::1]:443/");
    let roots = || credentials.current().config.root_cert.clone().unwrap();
    let (before, old) = (token(&credentials).unwrap(), roots());
    assert_eq!(before, "first");
    change(&credentials, || lay("..2", "second", "new.crt")).await;
    assert_eq!(token(&credentials).unwrap(), "second");
    assert_ne!(roots(), old);
}

#[tokio::test]
async fn what_a_pod_lacks_is_named() {
    let folder = Folder::new();
    let pod = || Source::Pod {
        server: pod_server("kubernetes.default", "443").unwrap(),
        folder: folder.path(""),
    };
    assert!(problem(pod()).await.contains("token: No such file"));
    folder.write("token", "t");
    assert!(problem(pod()).await.contains("ca.crt: No such file"));
    folder.write("ca.crt", "nothing");
    assert!(problem(pod()).await.contains("ca.crt contains no certificate in PEM form"));
    assert!(pod_server("a b", "443").is_err());
}
