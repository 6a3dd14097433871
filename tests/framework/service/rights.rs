//! The rights of the roles that every cluster has are enough.

use ccm_testbed::manifests;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;

use super::stage::{Stage, has_finalizer};

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
    crate::fake::eventually("the role exists", async || roles.get_opt(ROLE).await.ok().flatten().map(drop))
        .await;
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
