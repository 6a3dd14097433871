//! The rights of the roles that every cluster has are enough.

use ccm_testbed::{
    binary::free_port,
    controlplane, manifests,
    proxy::{Proxy, Request},
};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use serde_json::{Value, json};

use super::stage::{Stage, has_finalizer};
use crate::fake::{self, eventually};

/// The role that every API server brings for service controllers.
const ROLE: &str = "system:controller:service-controller";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_that_every_cluster_has_is_enough() {
    let mut stage = Stage::prepare("rights").await;
    let kubeconfig = stage
        .control_plane
        .service_account_kubeconfig("kube-system", manifests::ACCOUNT)
        .await
        .unwrap();
    let roles: Api<ClusterRole> = Api::all(stage.client.clone());
    eventually("the role exists", async || roles.get_opt(ROLE).await.ok().flatten().map(drop)).await;
    manifests::bind(&stage.client, "kube-system", manifests::ACCOUNT, ROLE).await.unwrap();
    stage.run(|config| config.api_server.kubeconfig = Some(kubeconfig));
    let service = stage.served("web").await;
    assert!(has_finalizer(&service));
    // The role does not allow to read the namespace, so that objects have no ownership tag.
    assert_eq!(stage.balancer("web", |_| true).await.tag, None);
    stage.delete("web").await;
    stage.deleted("web").await;
    stage.event("web", "DeletedLoadBalancer").await;
    assert_eq!(stage.cloud.of("default/web"), None);
    let log = stage.control_plane.audit_log().unwrap();
    let mut refused: Vec<_> = log
        .into_iter()
        .filter(|entry| entry.code == 403 && entry.is_ours())
        .map(|entry| format!("{} {} {}", entry.verb, entry.resource, entry.name))
        .collect();
    refused.dedup();
    assert_eq!(refused, ["get namespaces kube-system"]);
}

/// The rules of a service controller, with these verbs for Services.
fn rules(services: &[&str]) -> Value {
    json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": services},
        {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_revoked_while_it_runs_is_shown_and_changes_nothing() {
    const OWN: &str = "revoked-role";
    const ACCOUNT: &str = "revoked";
    let mut stage = Stage::prepare("revoked").await;
    let account = stage.control_plane.service_account_kubeconfig("kube-system", ACCOUNT).await.unwrap();
    manifests::cluster_role(&stage.client, OWN, &rules(&["list", "watch"])).await.unwrap();
    manifests::bind(&stage.client, "kube-system", ACCOUNT, OWN).await.unwrap();
    // The proxy ends watches, which the API server does not when a right is revoked.
    let upstream = controlplane::client(&account).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(upstream, folder.path()).await.unwrap();
    let (kubeconfig, port) = (proxy.kubeconfig().to_owned(), free_port().unwrap());
    stage.run(|config| {
        config.api_server.kubeconfig = Some(kubeconfig);
        let flags = [
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics".to_owned(),
            "--authentication-skip-lookup".to_owned(),
        ];
        config.serving = fake::config(&flags).serving;
    });
    stage.served("web").await;
    let http = reqwest::Client::builder().danger_accept_invalid_certs(true).no_proxy().build().unwrap();
    let get = async |path: &str| {
        let reply = http.get(format!("https://127.0.0.1:{port}{path}")).send();
        let reply = reply.await.ok()?;
        let is_ok = reply.status().is_success();
        Some((is_ok, reply.text().await.ok()?))
    };
    let (_, verbose) = get("/healthz?verbose").await.unwrap();
    assert!(verbose.contains("[+]watch-services ok"), "{verbose}");

    manifests::cluster_role(&stage.client, OWN, &rules(&["get"])).await.unwrap();
    let is_watch_of_services = |request: &Request| request.is_watch() && request.path.ends_with("/services");
    eventually("the watch is refused", async || {
        proxy.break_watches(is_watch_of_services);
        let (_, metrics) = get("/metrics").await?;
        let samples = metrics.lines();
        let mut samples = samples.filter_map(|line| {
            let seconds = line.strip_prefix("ccm_watch_failing_seconds{kind=\"Service\"} ")?;
            seconds.parse::<f64>().ok()
        });
        samples.next().filter(|seconds| *seconds > 5.0)
    })
    .await;
    stage.create("later", |_| {}).await;
    stage.join(&["n3"]).await;
    // The nodes are still followed.
    stage.balancer("web", |balancer| balancer.members.len() == 3).await;
    let verbose = fake::eventually_within(std::time::Duration::from_secs(150), "the check", async || {
        let (is_ok, verbose) = get("/healthz?verbose").await?;
        assert!(is_ok, "{verbose}");
        verbose.contains("[-]watch-services").then_some(verbose)
    })
    .await;
    assert!(verbose.contains("[+]watch-nodes ok"), "{verbose}");
    for path in ["/livez", "/readyz", "/healthz"] {
        assert!(get(path).await.unwrap().0, "{path}");
    }
    assert_eq!(stage.cloud.of("default/later"), None);

    manifests::cluster_role(&stage.client, OWN, &rules(&["list", "watch"])).await.unwrap();
    fake::eventually_within(std::time::Duration::from_secs(150), "the watch recovers", async || {
        let (_, verbose) = get("/healthz?verbose").await?;
        verbose.contains("[+]watch-services ok").then_some(())
    })
    .await;
    stage.balancer("later", |_| true).await;
}
