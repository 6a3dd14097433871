//! The program needs no more rights than it says.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::scene::{LIMIT, Scene, names};

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_as_a_service_account_with_the_least_rights() {
    let scene = Scene::set().await;
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "least"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch", "delete"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch"]},
            // Its uid is the cluster's mark in the cloud.
            {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]},
        ],
    }))
    .unwrap();
    Api::all(scene.client.clone())
        .create(&PostParams::default(), &role)
        .await
        .unwrap();
    // For its lease.
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": "least"},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
        ],
    }))
    .unwrap();
    Api::namespaced(scene.client.clone(), "kube-system")
        .create(&PostParams::default(), &role)
        .await
        .unwrap();
    let kubeconfig = scene
        .stage
        .control_plane
        .service_account_kubeconfig("kube-system", "cloud-controller-manager")
        .await
        .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "least"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "least"},
        "subjects": [
            {"kind": "ServiceAccount", "namespace": "kube-system", "name": "cloud-controller-manager"},
        ],
    }))
    .unwrap();
    Api::all(scene.client.clone())
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();

    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "least"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "least"},
        "subjects": [
            {"kind": "ServiceAccount", "namespace": "kube-system", "name": "cloud-controller-manager"},
        ],
    }))
    .unwrap();
    Api::namespaced(scene.client.clone(), "kube-system")
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();

    let mut ccm = scene
        .stage
        .launch_as("openstack", &kubeconfig, &["--node-status-update-frequency=1s"])
        .unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    let nodes = names("least", 3);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    scene.all_initialized(nodes.len()).await;
    scene.event("least-1", "Synced").await;
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success(), "{}", scene.log());
    assert!(scene.log().contains("Gave up the lease"), "{}", scene.log());
    let user = "system:serviceaccount:kube-system:cloud-controller-manager";
    let requests: Vec<_> = scene
        .stage
        .control_plane
        .audit_log()
        .unwrap()
        .into_iter()
        .filter(|entry| entry.user == user)
        .collect();
    assert!(!requests.is_empty());
    let denied: Vec<_> = requests.iter().filter(|entry| entry.code == 403).collect();
    assert!(denied.is_empty(), "{denied:?}");
}
