//! Routes need few rights. Those of the whole program are in `tests/every_cloud`.

use ccm_testbed::{manifests, nodes::NodeSpec};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{
    routes::is_unavailable,
    scene::{LIMIT, Scene},
};

#[tokio::test(flavor = "multi_thread")]
async fn routes_need_the_right_to_patch_the_status_of_nodes_and_none_to_change_nodes() {
    let scene = Scene::set().await;
    let router = scene.router(vec!["private".to_owned()]);
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]);
    manifests::cluster_role(&scene.client, "routes", &rules).await.unwrap();
    // The second role is only for the HTTPS server.
    for role in ["routes", "system:auth-delegator"] {
        manifests::bind(&scene.client, "kube-system", "router", role).await.unwrap();
    }
    let plane = &scene.stage.control_plane;
    let kubeconfig = plane.service_account_kubeconfig("kube-system", "router").await.unwrap();

    // The second node is unreachable for the router, and an Event reports it.
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
        scene.nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
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
        .eventually("the route exists", async || {
            (scene.cloud.router_routes(&router).len() == 1).then_some(())
        })
        .await;
    scene.node("elsewhere", "network unavailable", is_unavailable).await;
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success(), "{}", scene.log());
    let user = "system:serviceaccount:kube-system:router";
    let log = plane.audit_log().unwrap();
    let ours: Vec<_> = log.into_iter().filter(|entry| entry.user == user).collect();
    assert!(ours.iter().any(|entry| entry.verb == "patch"), "{ours:?}");
    let denied: Vec<_> = ours.iter().filter(|entry| entry.code == 403).collect();
    assert!(denied.is_empty(), "{denied:?}");
}
