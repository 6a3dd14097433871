//! Controllers under service accounts of their own.

use std::collections::BTreeSet;

use ccm_sim::openstack::{PortSpec, ServerSpec};
use ccm_testbed::{
    controlplane::AuditEntry,
    manifests::{self, USER},
    nodes::NodeSpec,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, api::DeleteParams};

use crate::{
    routes::is_available,
    scene::{LIMIT, Scene},
};

const FLAGS: [&str; 5] = [
    "--use-service-account-credentials",
    "--cluster-cidr=10.244.0.0/16",
    "--node-monitor-period=1s",
    "--node-deletion-grace=0s",
    "--node-deletion-confirm=1s",
];

/// The rights of `deploy/` with the component for accounts, and a cloud with a router.
async fn set() -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rbac.yaml");
    let objects = manifests::build(&["base"], &["service-accounts"]).unwrap();
    let text: Vec<_> = objects.iter().map(ToString::to_string).collect();
    std::fs::write(&file, text.join("\n---\n")).unwrap();
    let scene = Scene::set_for(&file).await;
    scene.router(vec!["private".to_owned()]);
    scene
}

async fn join(scene: &Scene, name: &str, number: usize) {
    let spec = ServerSpec {
        ports: Some(vec![PortSpec::on("private")]),
        ..ServerSpec::named(name)
    };
    scene.cloud.create_server(&spec).unwrap();
    scene
        .register_one(NodeSpec {
            pod_cidrs: vec![format!("10.244.{number}.0/24")],
            ..NodeSpec::new(name)
        })
        .await;
}

/// The writes, each kind once, with the last part of the user's name.
fn writes(log: &[AuditEntry]) -> BTreeSet<String> {
    let read = ["get", "list", "watch"];
    log.iter()
        .filter(|entry| !read.contains(&entry.verb.as_str()) && entry.code < 300)
        .map(|entry| {
            let user = entry.user.rsplit(':').next().unwrap_or_default();
            let subresource = match entry.subresource.as_str() {
                "" => String::new(),
                subresource => format!("/{subresource}"),
            };
            format!("{user}: {} {}{subresource}", entry.verb, entry.resource)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_controller_writes_as_its_own_account_with_the_role_that_every_cluster_has() {
    let scene = set().await;
    let mut ccm = scene.start(&FLAGS).await;
    for (number, name) in ["n-1", "n-2"].into_iter().enumerate() {
        join(&scene, name, number + 1).await;
    }
    for name in ["n-1", "n-2"] {
        scene.initialized(name).await;
        scene.node(name, "has routes", is_available).await;
    }
    scene.event("n-1", "Synced").await;

    scene.serve("web").await;
    scene.lose("n-2").await;
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success(), "{}", scene.log());

    let log = scene.stage.control_plane.audit_log().unwrap();
    let ours: Vec<_> = log.into_iter().filter(AuditEntry::is_ours).collect();
    let denied: Vec<_> = ours.iter().filter(|entry| entry.code == 403).collect();
    assert!(denied.is_empty(), "{denied:?}");
    let expected: BTreeSet<_> = [
        // The Lease, the clients of the HTTPS server, and the creation of accounts and tokens.
        "cloud-controller-manager: create events",
        "cloud-controller-manager: create leases",
        "cloud-controller-manager: create serviceaccounts",
        "cloud-controller-manager: create serviceaccounts/token",
        "cloud-controller-manager: update leases",
        "node-controller: create events",
        "node-controller: delete nodes",
        "node-controller: patch nodes",
        "node-controller: patch nodes/status",
        "route-controller: patch nodes/status",
        "service-controller: create events",
        "service-controller: patch services/status",
    ]
    .into_iter()
    .collect();
    let found = writes(&ours);
    let found: BTreeSet<_> = found.iter().map(String::as_str).collect();
    assert_eq!(found, expected);
    // The program itself reads, and each user agent belongs to one account.
    for entry in &ours {
        let name = entry.user_agent.rsplit('/').next().unwrap();
        let own = format!("system:serviceaccount:kube-system:{name}");
        let expected = match name.ends_with("-controller") {
            true => own.as_str(),
            false => USER,
        };
        assert_eq!(entry.user, expected, "{entry:?}");
    }
    let lists: BTreeSet<_> = ours
        .iter()
        .filter(|entry| entry.verb == "list" && entry.resource == "nodes")
        .map(|entry| entry.user_agent.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(lists, BTreeSet::from(["shared-informers"]));
    assert!(!scene.log().contains("Bearer "), "{}", scene.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_account_is_recreated_and_its_controller_continues() {
    let scene = set().await;
    let mut ccm = scene.start(&FLAGS).await;
    join(&scene, "n-1", 1).await;
    scene.initialized("n-1").await;
    let accounts: Api<ServiceAccount> = Api::namespaced(scene.client.clone(), "kube-system");
    let uid = async || accounts.get("node-controller").await.unwrap().metadata.uid;
    let before = uid().await;
    accounts.delete("node-controller", &DeleteParams::default()).await.unwrap();
    // The API server accepts the token for a while. Until it refuses the token, nodes join and are initialized.
    let mut number = 1;
    let refused = async |scene: &Scene| {
        let log = scene.stage.control_plane.audit_log().unwrap();
        log.iter()
            .any(|entry| entry.code == 401 && entry.user_agent.ends_with("/node-controller"))
    };
    while !refused(&scene).await {
        number += 1;
        let name = format!("n-{number}");
        join(&scene, &name, number).await;
        scene.initialized(&name).await;
        assert!(number < 250, "the token of a deleted account is still accepted");
    }
    join(&scene, "last", 251).await;
    scene.initialized("last").await;
    assert_ne!(uid().await, before);
    assert!(ccm.exit_status().unwrap().is_none(), "{}", scene.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_missing_rights() {
    let scene = Scene::set().await;
    let _ccm = scene.start(&["--use-service-account-credentials"]).await;
    scene.servers(&["n-1".to_owned()]);
    scene.register(&["n-1".to_owned()]).await;
    let log = scene.logged("Could not get a token for the service account of a controller").await;
    assert!(
        log.contains("grant the account of this program create serviceaccounts/token in kube-system"),
        "{log}"
    );
}
