//! A Service from its creation to its deletion.

use ccm_core::testkit::balancers::{
    CLASS_ELSEWHERE, FINALIZER_INSIDE, FINALIZER_OUTSIDE, ID, NO_PARTS, PLACE, PLACE_ELSEWHERE,
};
use ccm_testbed::nodes;
use k8s_openapi::api::core::v1::Service;
use serde_json::json;

use super::stage::{COMPONENT, FINALIZER, Stage, addresses, has_finalizer};
use crate::fake::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_life_of_a_service() {
    let stage = Stage::start("life").await;
    a_service_gets_a_load_balancer(&stage).await;
    ports_are_followed(&stage).await;
    nodes_are_followed(&stage).await;
    a_removed_status_and_finalizer_are_restored(&stage).await;
    a_service_loses_its_load_balancer(&stage).await;
    a_type_change_deletes_the_load_balancer(&stage).await;
    a_recreated_service_gets_another_load_balancer(&stage).await;
    services_of_other_controllers_stay_unchanged(&stage).await;
    a_service_that_gets_the_class_of_another_controller_leaves_nothing(&stage).await;
    a_provider_has_finalizers_of_its_own(&stage).await;
    a_service_without_parts_is_deleted(&stage).await;
}

async fn a_service_gets_a_load_balancer(stage: &Stage) {
    let service = stage.served("web").await;
    assert!(has_finalizer(&service));
    let balancer = stage.balancer("web", |_| true).await;
    assert_eq!(addresses(&service), [balancer.address.known().unwrap().clone()]);
    let port = service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].node_port.unwrap();
    assert_eq!(balancer.ports, [format!("TCP/80->{port}")].into());
    assert_eq!(balancer.members, ["n1", "n2"].map(str::to_owned).into());
    assert!(balancer.tag.unwrap().starts_with("kube_cluster_id_"));
    let id = service.metadata.annotations.unwrap().remove(ID);
    assert_eq!(id, balancer.id.known().map(ToString::to_string));
    stage.event("web", "EnsuredLoadBalancer").await;
    let expected = [
        ("EnsuringLoadBalancer", "Ensuring load balancer"),
        ("EnsuredLoadBalancer", "Ensured load balancer"),
    ];
    let expected = expected.map(|(reason, text)| (COMPONENT.to_owned(), reason.to_owned(), text.to_owned()));
    assert_eq!(stage.events("web").await, expected);
    assert_eq!(stage.cloud.hosts()["n1"], ["default/web".to_owned()].into());
    // The first patch has the finalizer, the second one everything else.
    let patches = stage.writes();
    let patches: Vec<_> = patches.iter().filter(|(.., name)| name == "web").collect();
    assert_eq!(patches.len(), 2, "{patches:?}");
    assert!(patches.iter().all(|(verb, what, _)| verb == "patch" && what == "services/status"));
}

async fn ports_are_followed(stage: &Stage) {
    let ports = json!([{"name": "http", "port": 81, "targetPort": 8080}]);
    stage.merge("web", json!({"spec": {"ports": ports}})).await;
    stage
        .balancer("web", |balancer| balancer.ports.iter().all(|port| port.starts_with("TCP/81->")))
        .await;
}

async fn nodes_are_followed(stage: &Stage) {
    stage.join(&["n3"]).await;
    stage.balancer("web", |balancer| balancer.members.len() == 3).await;
    stage.event("web", "UpdatedLoadBalancer").await;
    // Changes that do not concern load balancers cause no pass. The next pass is for the following change.
    let writes = stage.cloud.writes().len();
    nodes::set_ready(&stage.client, "n2", false).await.unwrap();
    nodes::set_ready(&stage.client, "n2", true).await.unwrap();
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    stage.merge_node("n3", json!({"metadata": {"labels": {label: ""}}})).await;
    stage.balancer("web", |balancer| balancer.members.len() == 2).await;
    n3_admits_no_service(stage).await;
    assert_eq!(stage.cloud.writes().len() - writes, 2, "{:?}", stage.cloud.writes());
    stage.merge_node("n3", json!({"metadata": {"labels": {label: "false"}}})).await;
    stage.balancer("web", |balancer| balancer.members.len() == 3).await;
    let deleting = [{
        let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
        json!({"spec": {"taints": [taint]}})
    }];
    for patch in deleting {
        stage.merge_node("n3", patch).await;
    }
    stage.balancer("web", |balancer| balancer.members.len() == 2).await;
    n3_admits_no_service(stage).await;
}

/// Waits for the other part of the same change.
async fn n3_admits_no_service(stage: &Stage) {
    eventually("n3 admits no Service", async || (!stage.cloud.hosts().contains_key("n3")).then_some(()))
        .await;
}

async fn a_removed_status_and_finalizer_are_restored(stage: &Stage) {
    let writes = stage.cloud.writes().len();
    let wiped = json!({"status": {"loadBalancer": {"ingress": null}}});
    stage
        .services
        .patch_status("web", &Default::default(), &kube::api::Patch::Merge(wiped))
        .await
        .unwrap();
    stage
        .service("web", "has its address again", |service| !addresses(service).is_empty())
        .await;
    stage.merge("web", json!({"metadata": {"finalizers": ["example.com/other"]}})).await;
    let service = stage.service("web", "has its finalizer again", has_finalizer).await;
    assert_eq!(service.metadata.finalizers.unwrap(), ["example.com/other", FINALIZER]);
    stage.merge("web", json!({"metadata": {"finalizers": [FINALIZER]}})).await;
    assert_eq!(stage.cloud.writes().len(), writes, "the cloud was changed");
}

async fn a_service_loses_its_load_balancer(stage: &Stage) {
    stage.delete("web").await;
    stage.deleted("web").await;
    assert_eq!(stage.cloud.of("default/web"), None);
    assert!(stage.cloud.hosts().is_empty());
    stage.event("web", "DeletedLoadBalancer").await;
    let reasons = stage.reasons("web").await;
    let last: Vec<_> = reasons.iter().rev().take(2).collect();
    assert_eq!(last, ["DeletedLoadBalancer", "DeletingLoadBalancer"]);
}

async fn a_type_change_deletes_the_load_balancer(stage: &Stage) {
    stage.served("changing").await;
    stage.merge("changing", json!({"spec": {"type": "ClusterIP"}})).await;
    let service = stage.service("changing", "has no finalizer", |service| !has_finalizer(service)).await;
    assert_eq!(addresses(&service), [""; 0]);
    assert!(service.metadata.annotations.unwrap_or_default().is_empty());
    assert_eq!(stage.cloud.of("default/changing"), None);
    stage.event("changing", "DeletedLoadBalancer").await;
    // The type changes back.
    stage.merge("changing", json!({"spec": {"type": "LoadBalancer"}})).await;
    stage
        .service("changing", "has a load balancer again", |service| !addresses(service).is_empty())
        .await;
    stage.delete("changing").await;
    stage.deleted("changing").await;
}

async fn a_recreated_service_gets_another_load_balancer(stage: &Stage) {
    let first = stage.served("recreated").await;
    // The finalizer is removed and the Service deleted at once.
    stage.cloud.pause();
    stage.delete("recreated").await;
    stage.merge("recreated", json!({"metadata": {"finalizers": null}})).await;
    stage.deleted("recreated").await;
    stage.create("recreated", |_| {}).await;
    stage.cloud.resume();
    let second = stage
        .service("recreated", "has an address", |service| {
            !addresses(service).is_empty() && has_finalizer(service)
        })
        .await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    stage.delete("recreated").await;
    stage.deleted("recreated").await;
    assert!(stage.cloud.balancers().is_empty(), "{:?}", stage.cloud.balancers());
}

async fn services_of_other_controllers_stay_unchanged(stage: &Stage) {
    for (name, class) in [("other", "example.com/other"), ("elsewhere", CLASS_ELSEWHERE)] {
        stage
            .create(name, |service| {
                service["spec"]["loadBalancerClass"] = json!(class);
                service["metadata"]["finalizers"] = json!([FINALIZER]);
            })
            .await;
    }
    stage.delete("other").await;
    stage.marker("marker").await;
    stage.delete("elsewhere").await;
    // A Service of another component for this cloud is not blocked by the finalizer of this program.
    stage.deleted("elsewhere").await;
    assert_eq!(stage.events("elsewhere").await, []);
    {
        let name = "other";
        let service = stage.services.get(name).await.unwrap();
        assert!(has_finalizer(&service) && addresses(&service).is_empty());
        assert_eq!(stage.events(name).await, []);
        assert_eq!(stage.cloud.of(&format!("default/{name}")), None);
        stage.merge(name, json!({"metadata": {"finalizers": null}})).await;
    }
}

/// Only a change of the type allows a change of the class, and both take less time than the deletion in the cloud.
async fn a_service_that_gets_the_class_of_another_controller_leaves_nothing(stage: &Stage) {
    for (name, class, has_begun) in [
        ("handed", "example.com/other", true),
        ("handed-at-once", "example.com/other", false),
        ("handed-elsewhere", CLASS_ELSEWHERE, true),
    ] {
        stage.served(name).await;
        stage.cloud.pause();
        stage.merge(name, json!({"spec": {"type": "ClusterIP"}})).await;
        if has_begun {
            stage.event(name, "DeletingLoadBalancer").await;
        }
        // The annotation is meant for the other controller.
        let other = json!({"metadata": {"annotations": {PLACE: PLACE_ELSEWHERE}},
                           "spec": {"type": "LoadBalancer", "loadBalancerClass": class}});
        stage.merge(name, other).await;
        let theirs = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.99"}]}}});
        stage
            .services
            .patch_status(name, &Default::default(), &kube::api::Patch::Merge(theirs))
            .await
            .unwrap();
        stage.cloud.resume();
        let service = stage.service(name, "has no finalizer", |service| !has_finalizer(service)).await;
        assert_eq!(addresses(&service), ["192.0.2.99"]);
        assert_eq!(stage.cloud.of(&format!("default/{name}")), None);
        stage.event(name, "DeletedLoadBalancer").await;
        stage.marker("marker").await;
        // The other controller's finalizer has the same name.
        stage.merge(name, json!({"metadata": {"finalizers": [FINALIZER]}})).await;
        stage.delete(name).await;
        if class != CLASS_ELSEWHERE {
            stage.marker("marker").await;
            assert!(has_finalizer(&stage.services.get(name).await.unwrap()));
            stage.merge(name, json!({"metadata": {"finalizers": null}})).await;
        }
        stage.deleted(name).await;
    }
    assert!(stage.cloud.hosts().is_empty());
}

fn finalizers(service: &Service) -> Vec<&str> {
    let finalizers = service.metadata.finalizers.iter().flatten();
    finalizers.map(String::as_str).collect()
}

async fn a_provider_has_finalizers_of_its_own(stage: &Stage) {
    stage
        .create("placed", |service| {
            service["metadata"]["annotations"] = json!({PLACE: "inside"});
        })
        .await;
    let service = stage.service("placed", "has an address", |service| !addresses(service).is_empty()).await;
    assert_eq!(finalizers(&service), [FINALIZER, FINALIZER_INSIDE]);
    // The first patch has both finalizers, the second one everything else.
    let patches = stage.writes();
    let patches = patches.iter().filter(|(.., name)| name == "placed").count();
    assert_eq!(patches, 2);
    stage.merge("placed", json!({"metadata": {"annotations": {PLACE: "outside"}}})).await;
    stage
        .service("placed", "has the other finalizer alone", |service| {
            finalizers(service) == [FINALIZER, FINALIZER_OUTSIDE]
        })
        .await;
    // The provider's own finalizer blocks the deletion, too, until the load balancer is deleted.
    stage.cloud.pause();
    stage.delete("placed").await;
    stage.merge("placed", json!({"metadata": {"finalizers": [FINALIZER_OUTSIDE]}})).await;
    stage.cloud.resume();
    stage.deleted("placed").await;
    assert_eq!(stage.cloud.of("default/placed"), None);
}

async fn a_service_without_parts_is_deleted(stage: &Stage) {
    let writes = stage.cloud.writes().len();
    stage
        .create("free", |service| {
            service["metadata"]["labels"] = json!({NO_PARTS: ""});
            service["metadata"]["annotations"] = json!({PLACE: "inside"});
        })
        .await;
    stage
        .service("free", "has its finalizers", |service| {
            finalizers(service) == [FINALIZER, FINALIZER_INSIDE]
        })
        .await;
    stage.delete("free").await;
    stage.deleted("free").await;
    assert_eq!(stage.cloud.writes().len(), writes, "{:?}", stage.cloud.writes());
}
