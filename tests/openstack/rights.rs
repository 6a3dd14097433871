//! The program needs no more rights than `deploy/` gives it, and gives it none that it does not need.

use std::path::{Path, PathBuf};

use ccm_testbed::{
    binary::Ccm,
    controlplane::{self, AuditEntry},
    manifests::{self, USER},
    nodes::NodeSpec,
    proxy::{Action, Proxy, Rule},
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    routes::{is_available, is_unavailable},
    scene::{LIMIT, Scene, names, read},
};

/// A life of the program with all that it does: nodes join and get routes, one leaves, a Service comes and goes, somebody
/// reads the metrics and is answered with this status. Returns the program's requests.
async fn life(scene: &Scene, kubeconfig: &Path, scraped: u16) -> Vec<AuditEntry> {
    let life = Life::begin(scene, kubeconfig, scraped).await;
    scene.lose("n-3").await;
    life.end(scene).await
}

/// The program while it lives.
struct Life {
    ccm: Ccm,
    _proxy: Proxy,
    router: String,
}

impl Life {
    /// All but that a node leaves. Every first patch of a node meets a change by somebody else, so that the node is read.
    async fn begin(scene: &Scene, kubeconfig: &Path, scraped: u16) -> Self {
        let router = scene.router(vec!["private".to_owned()]);
        // The proxy asks as the account, whatever the program says.
        let upstream = controlplane::client(kubeconfig).await.unwrap();
        let proxy = Proxy::start(upstream, scene.stage.folder()).await.unwrap();
        let conflict = Action::Status {
            code: 409,
            retry_after: None,
            body: None,
        };
        proxy.add(
            Rule::when(
                |request| {
                    request.method == "PATCH" && request.resource == "nodes" && request.subresource.is_empty()
                },
                conflict,
            )
            .at(1),
        );
        let flags = [
            "--node-monitor-period=1s",
            "--node-deletion-grace=0s",
            "--node-deletion-confirm=1s",
            "--node-status-update-frequency=1s",
            "--cluster-cidr=10.244.0.0/16",
            "--authorization-always-allow-paths=/healthz,/readyz,/livez",
        ];
        let mut ccm = scene
            .stage
            .launch_as("openstack", proxy.kubeconfig(), &flags)
            .unwrap();
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        let nodes = names("n", 3);
        scene.servers(&nodes);
        for (i, name) in nodes.iter().enumerate() {
            scene
                .register_one(NodeSpec {
                    pod_cidrs: vec![format!("10.244.{i}.0/24")],
                    ..NodeSpec::new(name)
                })
                .await;
        }
        scene.all_initialized(nodes.len()).await;
        scene.event("n-1", "Synced").await;
        for name in &nodes {
            scene.node(name, "network available", is_available).await;
        }
        let token = scraper(scene).await;
        scene
            .eventually("the scraper is answered", async || {
                let (status, _) = ccm.get_as(&token, "/metrics").await.ok()?;
                (status == scraped).then_some(())
            })
            .await;

        scene.serve("web").await;
        scene.end("web").await;
        Self {
            ccm,
            _proxy: proxy,
            router,
        }
    }

    /// The node that left loses its route, and the program ends.
    async fn end(self, scene: &Scene) -> Vec<AuditEntry> {
        let Self { mut ccm, router, .. } = self;
        scene
            .eventually("its route is gone", async || {
                (scene.cloud.router_routes(&router).len() == 2).then_some(())
            })
            .await;

        ccm.terminate().unwrap();
        assert!(ccm.wait(LIMIT).await.unwrap().success(), "{}", scene.log());
        assert!(scene.log().contains("Gave up the lease"), "{}", scene.log());
        // Nothing was under way any more, so that there was nothing to wait for.
        assert!(!scene.log().contains("Cutting off"), "{}", scene.log());
        let requests = requests(scene);
        assert!(!requests.is_empty());
        requests
    }
}

/// What the program asked of the API server so far.
fn requests(scene: &Scene) -> Vec<AuditEntry> {
    let log = scene.stage.control_plane.audit_log().unwrap();
    log.into_iter().filter(|entry| entry.user == USER).collect()
}

/// The token of an account that may read the metrics and nothing else.
async fn scraper(scene: &Scene) -> String {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "metrics-reader"},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }))
    .unwrap();
    let roles = Api::all(scene.client.clone());
    roles.create(&PostParams::default(), &role).await.unwrap();
    bind(scene, "metrics-reader", "default", "scraper").await;
    let plane = &scene.stage.control_plane;
    let file = plane
        .service_account_kubeconfig("default", "scraper")
        .await
        .unwrap();
    let config: Value = serde_json::from_str(&read(&file)).unwrap();
    config["users"][0]["user"]["token"].as_str().unwrap().to_owned()
}

/// Gives an account a ClusterRole.
async fn bind(scene: &Scene, role: &str, namespace: &str, account: &str) {
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": format!("{account}-{}", role.replace(':', "-"))},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
    }))
    .unwrap();
    let bindings = Api::all(scene.client.clone());
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

/// Every kind of request that was denied.
fn denied(requests: &[AuditEntry]) -> Vec<String> {
    let denied = requests.iter().filter(|entry| entry.code == 403);
    let mut denied: Vec<_> = denied
        .map(|entry| format!("{} {} {}", entry.verb, entry.resource, entry.name))
        .collect();
    denied.sort();
    denied.dedup();
    denied
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rights_of_the_manifest_are_needed_and_no_other_is() {
    let scene = Scene::set().await;
    let requests = life(&scene, &scene.account, 200).await;
    assert_eq!(denied(&requests), [""; 0], "{}", scene.log());
    let manifest = manifests::read(&manifests::shipped("base/rbac.yaml")).unwrap();
    let (mut granted, borrowed) = (manifests::rights(&manifest), manifests::borrowed(&manifest));
    assert!(!granted.is_empty());
    // What is borrowed is the cluster's to define; each of the roles has to be of use, not every right in it.
    granted.extend(borrowed.into_iter().filter(|right| right.verb == "create"));
    let unused: Vec<_> = granted
        .iter()
        .filter(|right| !requests.iter().any(|request| right.covers(request)))
        .map(ToString::to_string)
        .collect();
    assert_eq!(unused, [""; 0]);
}

/// What no role of the Go program grants: as before, nothing is marked in the cloud as this cluster's, and nobody may read
/// the metrics.
const NEVER_GRANTED: [&str; 2] = ["create tokenreviews ", "get namespaces kube-system"];

/// The role that this version of the Go program's chart brings.
fn upstream(version: &str) -> PathBuf {
    let file = format!("tests/openstack/upstream-rbac-{version}.yaml");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// The role of 2.36.2 with the verb that it lacks, as its successor brings it.
fn repaired(folder: &Path) -> PathBuf {
    let role = read(&upstream("2.36.2"));
    let (lacks, has) = (
        r#""watch", "patch", "update"]"#,
        r#""watch", "patch", "update", "delete"]"#,
    );
    let (before, after) = role.split_once(lacks).unwrap();
    let file = folder.join("repaired-rbac.yaml");
    std::fs::write(&file, format!("{before}{has}{after}")).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_the_program_before_is_enough_to_change_the_image_alone() {
    let folder = tempfile::tempdir().unwrap();
    for role in [upstream("2.36.1"), repaired(folder.path())] {
        let scene = Scene::set_for(&role).await;
        let requests = life(&scene, &scene.account, 503).await;
        assert_eq!(denied(&requests), NEVER_GRANTED, "{}", role.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_delete_nodes_one_warning_names_it_and_all_else_works() {
    let scene = Scene::set_for(&upstream("2.36.2")).await;
    let life = Life::begin(&scene, &scene.account, 503).await;
    scene.lose_server("n-3").await;
    let event = scene.event("n-3", "DeletingNodeFailed").await;
    let message = event.message.unwrap_or_default();
    assert!(
        message.contains(r#"the verb "delete" for the resource "nodes""#),
        "{message}"
    );
    scene.serve("api").await;
    scene.end("api").await;
    // It waits longer and longer, and says nothing more.
    let deletions = || {
        let requests = requests(&scene).into_iter();
        let deletions = requests.filter(|entry| entry.verb == "delete" && entry.resource == "nodes");
        deletions.filter(|entry| entry.code == 403).count()
    };
    scene
        .eventually("tried again", async || (deletions() >= 2).then_some(()))
        .await;
    let params = ListParams::default().fields("involvedObject.name=n-3");
    let events = scene.events.list(&params).await.unwrap().items;
    for reason in ["DeletingNode", "DeletingNodeFailed"] {
        let said = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some(reason));
        assert_eq!(said.count(), 1, "{reason}");
    }
    assert_eq!(scene.log().matches("Not allowed to delete nodes").count(), 1);

    // As soon as the right is there, the node goes.
    let repaired = repaired(scene.stage.folder());
    manifests::account(&scene.stage.control_plane, &repaired)
        .await
        .unwrap();
    scene.node_gone("n-3").await;
    assert!(deletions() <= 4, "{}", scene.log());
    let denied = denied(&life.end(&scene).await);
    let [tokens, marks] = NEVER_GRANTED;
    assert_eq!(denied, [tokens, "delete nodes n-3", marks]);
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_need_the_right_to_patch_the_status_of_nodes_and_none_to_change_nodes() {
    let scene = Scene::set().await;
    let router = scene.router(vec!["private".to_owned()]);
    let params = PostParams::default();
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "routes"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ],
    }))
    .unwrap();
    let roles = Api::all(scene.client.clone());
    roles.create(&params, &role).await.unwrap();
    // The second role is only for the HTTPS server.
    for role in ["routes", "system:auth-delegator"] {
        bind(&scene, role, "kube-system", "router").await;
    }
    let plane = &scene.stage.control_plane;
    let kubeconfig = plane
        .service_account_kubeconfig("kube-system", "router")
        .await
        .unwrap();

    // The second one can not be routed to, which an Event says.
    for (name, address) in [("least", "10.0.0.11"), ("elsewhere", "192.0.2.1")] {
        scene
            .register_one(NodeSpec {
                uninitialized: false,
                provider_id: Some(format!("openstack:///{name}")),
                pod_cidrs: vec![format!("10.244.{}.0/24", name.len())],
                ..NodeSpec::new(name)
            })
            .await;
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let patch = Patch::Merge(status);
        scene
            .nodes
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let flags = [
        "--controllers=node-route-controller",
        "--cluster-cidr=10.244.0.0/16",
        "--leader-elect=false",
        "--authentication-skip-lookup",
    ];
    let mut ccm = scene.stage.launch_as("openstack", &kubeconfig, &flags).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    scene.event("elsewhere", "FailedToCreateRoute").await;
    scene
        .eventually("the route is there", async || {
            (scene.cloud.router_routes(&router).len() == 1).then_some(())
        })
        .await;
    scene
        .node("elsewhere", "network unavailable", is_unavailable)
        .await;
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success(), "{}", scene.log());
    let user = "system:serviceaccount:kube-system:router";
    let log = plane.audit_log().unwrap();
    let ours: Vec<_> = log.into_iter().filter(|entry| entry.user == user).collect();
    assert!(ours.iter().any(|entry| entry.verb == "patch"), "{ours:?}");
    let denied: Vec<_> = ours.iter().filter(|entry| entry.code == 403).collect();
    assert!(denied.is_empty(), "{denied:?}");
}
