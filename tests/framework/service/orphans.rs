//! Services that are missing in the API server although their load balancers were not deleted: etcd was restored from a
//! snapshot, a listing was stale, or the finalizer was removed.

use std::time::Duration;

use ccm_core::testkit::balancers::ID;
use ccm_testbed::proxy::{Action, Proxy, Request, Rule};
use cloud_controller_manager::options::Config;
use k8s_openapi::api::core::v1::{Event, Namespace, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use super::stage::{FINALIZER, Stage, addresses};
use crate::fake::eventually;

/// Removes a Service while the program does not run, so that its load balancer is not deleted, and starts the program again.
async fn lose(stage: &mut Stage, name: &str, change: impl FnOnce(&mut Config)) {
    stage.kill();
    stage.delete(name).await;
    stage.merge(name, json!({"metadata": {"finalizers": null}})).await;
    stage.deleted(name).await;
    stage.run(change);
}

/// Messages of the Events about orphans.
pub(super) async fn reports(stage: &Stage) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(stage.client.clone(), "kube-system");
    let of_lease = ListParams::default().fields("involvedObject.kind=Lease,reason=OrphanedLoadBalancers");
    let events = events.list(&of_lease).await.unwrap().items;
    events.into_iter().filter_map(|event| event.message).collect()
}

pub(super) fn id_of(service: &Service) -> Option<&String> {
    service.metadata.annotations.as_ref()?.get(ID)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_is_reported_once_left_unchanged_and_adopted_by_a_new_service() {
    let mut stage = Stage::prepare("orphan").await;
    let soon = |config: &mut Config| {
        config.service.orphans.report_after = Duration::ZERO;
        config.service.orphans.delete_after = Duration::ZERO;
    };
    stage.run(soon);
    stage.served("kept").await;
    let first = stage.served("lost").await;
    lose(&mut stage, "lost", soon).await;
    let report = eventually("the orphan is reported", async || reports(&stage).await.pop()).await;
    assert!(
        report.contains("balancer balancer_default_lost")
            && report.contains("--delete-orphaned-load-balancers would delete it"),
        "{report}"
    );
    // Passes for other Services continue, in this process and in the next one.
    stage.marker("marker").await;
    stage.kill();
    stage.run(soon);
    stage.marker("marker-2").await;
    assert!(stage.cloud.of("default/lost").is_some());
    let deletes = |write: &&String| write.starts_with("delete") && write.contains("default_lost");
    assert_eq!(stage.cloud.writes().iter().find(deletes), None);
    assert_eq!(reports(&stage).await.len(), 2, "once for each process");
    let second = stage.served("lost").await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    assert_eq!((id_of(&first), addresses(&first)), (id_of(&second), addresses(&second)));
    stage.delete("lost").await;
    stage.deleted("lost").await;
    assert_eq!(stage.cloud.of("default/lost"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_flag_an_orphan_is_deleted_after_its_time() {
    let mut stage = Stage::prepare("orphan-deleted").await;
    let soon = |config: &mut Config| {
        config.service.orphans.delete = true;
        config.service.orphans.report_after = Duration::ZERO;
        config.service.orphans.delete_after = Duration::from_secs(2);
    };
    stage.run(soon);
    stage.served("kept").await;
    stage.served("lost").await;
    lose(&mut stage, "lost", soon).await;
    eventually("the orphan is deleted", async || stage.cloud.of("default/lost").is_none().then_some(()))
        .await;
    assert!(reports(&stage).await.len() == 1 && stage.cloud.of("default/kept").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_without_services_after_410_deletes_no_load_balancer() {
    let mut stage = Stage::prepare("shrunken").await;
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(stage.client.clone(), folder.path()).await.unwrap();
    let kubeconfig = proxy.kubeconfig().to_owned();
    stage.run(|config| {
        config.api_server.kubeconfig = Some(kubeconfig);
        config.service.orphans.delete = true;
        config.service.orphans.report_after = Duration::ZERO;
    });
    let first = stage.served("lost").await;
    stage.served("kept").await;
    let is_watch_of_services = |request: &Request| request.is_watch() && request.path.ends_with("/services");
    let gone = Action::status(410);
    proxy.add(Rule::when(is_watch_of_services, gone).at(1));
    let expired = Rule::when(is_watch_of_services, Action::Reset);
    let unreachable = proxy.add(expired);
    proxy.break_watches(is_watch_of_services);
    stage.merge("lost", json!({"metadata": {"finalizers": null}})).await;
    stage.delete("lost").await;
    stage.deleted("lost").await;
    proxy.remove(unreachable);
    let report = eventually("the orphan is reported", async || reports(&stage).await.pop()).await;
    assert!(report.contains("it is deleted when its Service has been missing for an hour"), "{report}");
    stage.marker("marker").await;
    assert_eq!(reports(&stage).await, [report]);
    let second = stage.served("lost").await;
    assert_eq!((id_of(&first), addresses(&first)), (id_of(&second), addresses(&second)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_a_namespace_that_was_finalized_by_force_is_deleted() {
    let stage = Stage::start("doomed").await;
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    let doomed: Namespace = serde_json::from_value(json!({"metadata": {"name": "doomed"}})).unwrap();
    namespaces.create(&PostParams::default(), &doomed).await.unwrap();
    let services: Api<Service> = Api::namespaced(stage.client.clone(), "doomed");
    let web: Service = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80}]},
    }))
    .unwrap();
    services.create(&PostParams::default(), &web).await.unwrap();
    eventually("the Service is served", async || {
        services.get("web").await.ok().filter(|service| !addresses(service).is_empty())
    })
    .await;
    stage.cloud.pause();
    services.delete("web", &DeleteParams::default()).await.unwrap();
    namespaces.delete("doomed", &DeleteParams::default()).await.unwrap();
    let finalized = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}, "spec": {"finalizers": []}});
    let put = http::Request::put("/api/v1/namespaces/doomed/finalize")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&finalized).unwrap())
        .unwrap();
    stage.client.request::<Namespace>(put).await.unwrap();
    eventually("the namespace is deleted", async || {
        namespaces.get_opt("doomed").await.unwrap().is_none().then_some(())
    })
    .await;
    let left = services.get("web").await.unwrap();
    assert!(left.metadata.finalizers.unwrap().contains(&FINALIZER.to_owned()));
    stage.cloud.resume();
    eventually("the load balancer is deleted", async || {
        stage.cloud.of("doomed/web").is_none().then_some(())
    })
    .await;
    // Before 1.37, the API server refuses the removal of the finalizer until the namespace exists again.
    let version = stage.client.apiserver_version().await.unwrap();
    if version.minor.parse::<u32>().unwrap() < 37 {
        namespaces.create(&PostParams::default(), &doomed).await.unwrap();
    }
    eventually("the Service is deleted", async || {
        services.get_opt("web").await.unwrap().is_none().then_some(())
    })
    .await;
}
