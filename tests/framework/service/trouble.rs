//! Refusals, failures and delays of the cloud, and their Events.

use std::time::Duration;

use ccm_core::{
    Error, ErrorKind, Retry,
    testkit::balancers::{COLOUR, WOOD},
};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::stage::{Stage, addresses, has_finalizer};
use crate::fake::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble() {
    let stage = Stage::start("trouble").await;
    a_wait_of_the_provider_is_respected_and_reported_once(&stage).await;
    a_failure_is_retried(&stage).await;
    a_busy_cloud_is_not_a_failure(&stage).await;
    a_refused_value_is_reported_and_other_changes_continue(&stage).await;
    a_tolerated_value_is_reported_once(&stage).await;
    an_immutable_field_stays_and_is_reported(&stage).await;
    a_failed_listing_delays_work_and_loses_none(&stage).await;
    a_service_deleted_during_its_creation_leaks_nothing(&stage).await;
    the_deletion_of_a_service_that_was_never_served_is_reported(&stage).await;
    without_nodes_members_stay(&stage).await;
}

fn count_writes(stage: &Stage, begin: &str) -> usize {
    let writes = stage.cloud.writes();
    writes.iter().filter(|write| write.starts_with(begin)).count()
}

async fn a_wait_of_the_provider_is_respected_and_reported_once(stage: &Stage) {
    let wait = Duration::from_millis(300);
    let error = Error::new(ErrorKind::RateLimited, "slow down").with_retry(Retry::Fixed(wait));
    // Each attempt has its own request ID.
    for number in 0..4 {
        let error = error.clone().with_context("request_id", format!("req-{number}"));
        stage.cloud.fail("create balancer balancer_default_slow", &error, 1);
    }
    stage.served("slow").await;
    assert_eq!(count_writes(stage, "create balancer balancer_default_slow"), 5);
    stage.event("slow", "EnsuredLoadBalancer").await;
    assert_eq!(
        stage.reasons("slow").await,
        [
            "EnsuringLoadBalancer",
            "SyncLoadBalancerFailed",
            "EnsuredLoadBalancer"
        ]
    );
    let message = stage.event("slow", "SyncLoadBalancerFailed").await;
    assert_eq!(
        message,
        "Error syncing load balancer: failed to ensure load balancer: slow down (request_id=req-0)"
    );
}

async fn a_failure_is_retried(stage: &Stage) {
    let error = Error::new(ErrorKind::Unavailable, "the cloud is down");
    stage.cloud.fail("create balancer balancer_default_unlucky", &error, 1);
    // Five seconds, the first wait of the backoff.
    stage.served("unlucky").await;
    assert_eq!(count_writes(stage, "create balancer balancer_default_unlucky"), 2);
}

async fn a_busy_cloud_is_not_a_failure(stage: &Stage) {
    stage.cloud.set_polls(5);
    stage.served("patient").await;
    stage.delete("patient").await;
    stage.deleted("patient").await;
    stage.cloud.set_polls(0);
    stage.event("patient", "DeletedLoadBalancer").await;
    assert_eq!(
        stage.reasons("patient").await,
        [
            "EnsuringLoadBalancer",
            "EnsuredLoadBalancer",
            "DeletingLoadBalancer",
            "DeletedLoadBalancer"
        ]
    );
}

async fn a_refused_value_is_reported_and_other_changes_continue(stage: &Stage) {
    stage.served("bright").await;
    stage.merge("bright", json!({"metadata": {"annotations": {COLOUR: "plaid"}}})).await;
    let message = stage.event("bright", "SyncLoadBalancerFailed").await;
    assert!(message.ends_with("plaid is no colour"), "{message}");
    // The load balancer follows the nodes nevertheless, without a wait for the next attempt.
    stage.join(&["n3"]).await;
    stage.balancer("bright", |balancer| balancer.members.contains("n3")).await;
    // The Service can be deleted.
    stage.delete("bright").await;
    stage.deleted("bright").await;
    assert_eq!(stage.cloud.of("default/bright"), None);
}

async fn a_tolerated_value_is_reported_once(stage: &Stage) {
    stage
        .create("pinkish", |service| {
            service["metadata"]["annotations"] = json!({COLOUR: "pink"});
        })
        .await;
    stage.event("pinkish", "EnsuredLoadBalancer").await;
    stage.merge("pinkish", json!({"spec": {"externalIPs": ["192.0.2.99"]}})).await;
    stage.marker("after-pinkish").await;
    let events = stage.events("pinkish").await;
    let warnings: Vec<_> = events.iter().filter(|(_, reason, _)| reason == "ColourIgnored").collect();
    assert_eq!(warnings.len(), 1, "{events:?}");
    assert_eq!(warnings[0].0, "cloud-provider-fake", "the provider's own component");
}

async fn an_immutable_field_stays_and_is_reported(stage: &Stage) {
    stage.merge("pinkish", json!({"metadata": {"annotations": {WOOD: "oak"}}})).await;
    let message = stage.event("pinkish", "LoadBalancerChangeBlocked").await;
    assert_eq!(
        message,
        "cannot change wood of balancer balancer_default_pinkish in place: observed pine, desired oak"
    );
    stage.delete("pinkish").await;
    stage.deleted("pinkish").await;
}

async fn a_failed_listing_delays_work_and_loses_none(stage: &Stage) {
    stage.cloud.fail_all(Some(Error::new(ErrorKind::Unauthenticated, "wrong password")));
    stage.create("early", |_| {}).await;
    let message = stage.event("early", "SyncLoadBalancerFailed").await;
    assert_eq!(message, "Error syncing load balancer: failed to ensure load balancer: wrong password");
    stage.cloud.fail_all(None);
    stage.balancer("early", |_| true).await;
    stage.event("early", "EnsuredLoadBalancer").await;
    let reasons = stage.reasons("early").await;
    let failures = reasons.iter().filter(|reason| *reason == "SyncLoadBalancerFailed");
    assert_eq!(failures.count(), 1, "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_discovery_does_not_delay_known_services() {
    let stage = Stage::start("refused").await;
    stage.served("known").await;
    stage.event("known", "EnsuredLoadBalancer").await;
    stage.served("leaver").await;
    // Discovery for these two Services must have ended, so that the first failed discovery is that of the next Service.
    stage.marker("marker").await;
    let retry = Retry::from_header(Duration::from_secs(86400));
    let error = Error::new(ErrorKind::Unavailable, "come back tomorrow").with_retry(retry);
    stage.cloud.fail_all(Some(error));
    stage.create("early", |_| {}).await;
    stage.event("early", "SyncLoadBalancerFailed").await;
    stage.cloud.fail_all(None);
    // The next discovery is minutes away, and these changes do not wait for it.
    let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
    stage.merge("known", json!({"spec": {"ports": ports}})).await;
    stage.balancer("known", |balancer| balancer.ports.len() == 2).await;
    stage.join(&["n3"]).await;
    stage.balancer("known", |balancer| balancer.members.contains("n3")).await;
    stage.delete("leaver").await;
    stage.deleted("leaver").await;
    assert_eq!(stage.cloud.of("default/leaver"), None);
}

async fn a_service_deleted_during_its_creation_leaks_nothing(stage: &Stage) {
    stage.cloud.pause();
    stage.create("brief", |_| {}).await;
    eventually("its creation is in progress", async || {
        (count_writes(stage, "create balancer balancer_default_brief") > 0).then_some(())
    })
    .await;
    stage.delete("brief").await;
    stage.cloud.resume();
    stage.deleted("brief").await;
    assert_eq!(stage.cloud.of("default/brief"), None);
    assert!(!stage.cloud.hosts()["n1"].contains("default/brief"));
}

async fn the_deletion_of_a_service_that_was_never_served_is_reported(stage: &Stage) {
    stage.cloud.set_polls(u32::MAX);
    stage.create("never", |_| {}).await;
    stage.balancer("never", |_| true).await;
    stage.event("never", "EnsuringLoadBalancer").await;
    stage.delete("never").await;
    // The program has read the deletion before the cloud is ready, because it handles a later Service.
    stage.create("later", |_| {}).await;
    eventually("the later Service has the finalizer", async || {
        has_finalizer(&stage.services.get("later").await.unwrap()).then_some(())
    })
    .await;
    stage.cloud.set_polls(0);
    stage.deleted("never").await;
    stage.delete("later").await;
    stage.deleted("later").await;
    stage.event("never", "DeletedLoadBalancer").await;
    assert_eq!(
        stage.reasons("never").await,
        [
            "EnsuringLoadBalancer",
            "DeletingLoadBalancer",
            "DeletedLoadBalancer"
        ]
    );
}

async fn without_nodes_members_stay(stage: &Stage) {
    stage.served("alone").await;
    let before = stage.balancer("alone", |_| true).await.members;
    let unready =
        json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "true"}}});
    stage.cloud.pause();
    for node in &before {
        stage.merge_node(node, unready.clone()).await;
    }
    // The pass that began with some nodes continues when there are none.
    stage.cloud.resume();
    stage.event("alone", "UnAvailableLoadBalancer").await;
    let members = stage.balancer("alone", |_| true).await.members;
    assert!(!members.is_empty(), "{members:?}");
    let events = stage.events("alone").await;
    let warnings: Vec<_> =
        events.iter().filter(|(_, reason, _)| reason == "UnAvailableLoadBalancer").collect();
    assert_eq!(warnings.len(), 1, "{events:?}");
    assert_eq!(warnings[0].2, "There are no available nodes for LoadBalancer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_is_corrected_and_a_check_without_drift_writes_nothing() {
    let mut stage = Stage::prepare("drift").await;
    stage.run(|config| config.service.drift_period = Some(Duration::from_millis(500)));
    let service = stage.served("web").await;
    stage.event("web", "EnsuredLoadBalancer").await;
    let events = stage.events("web").await.len();
    // An object can be read before the request that created it is in the log.
    eventually("the requests for the events", async || {
        let writes = stage.writes();
        let created = writes.iter().filter(|(_, resource, _)| resource == "events/");
        (created.count() >= events).then_some(())
    })
    .await;
    // Several checks without drift.
    let (reads, patches) = (stage.cloud.reads().len(), stage.writes().len());
    let writes = stage.cloud.writes().len();
    eventually("three checks", async || {
        let passes = stage.passes(reads);
        passes.get("hosts").is_some_and(|passes| *passes >= 3).then_some(())
    })
    .await;
    assert_eq!(stage.cloud.writes().len(), writes);
    assert_eq!(stage.writes().len(), patches, "{:?}", stage.writes());
    assert_eq!(stage.events("web").await.len(), events);
    let background = ccm_core::Priority::Background;
    let checks = stage.cloud.reads().split_off(reads);
    assert!(checks.iter().all(|read| read.fresh && read.priority == background), "{checks:?}");
    // Others change the load balancer, and then delete it.
    stage.cloud.edit(|balancers| {
        for balancer in balancers.values_mut() {
            balancer.members.clear();
        }
    });
    stage.balancer("web", |balancer| balancer.members.len() == 2).await;
    stage.cloud.edit(std::collections::BTreeMap::clear);
    stage.balancer("web", |balancer| balancer.members.len() == 2).await;
    stage
        .service("web", "has the new address", |now| {
            !addresses(now).is_empty() && addresses(now) != addresses(&service)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_of_the_status_is_reported() {
    let stage = Stage::start("unwritten").await;
    // An admission policy that refuses the finalizer represents every refusal.
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-finalizers"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["services/status"],
            }]},
            "validations": [{"expression": "object.metadata.name != 'refused'", "message": "not here"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-finalizers"},
        "spec": {"policyName": "no-finalizers", "validationActions": ["Deny"]},
    });
    use k8s_openapi::api::admissionregistration::v1::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    };
    let policies: kube::Api<ValidatingAdmissionPolicy> = kube::Api::all(stage.client.clone());
    let bindings: kube::Api<ValidatingAdmissionPolicyBinding> = kube::Api::all(stage.client.clone());
    let params = PatchParams::apply("test");
    policies.patch("no-finalizers", &params, &Patch::Apply(policy)).await.unwrap();
    bindings.patch("no-finalizers", &params, &Patch::Apply(binding)).await.unwrap();
    stage.create("probe", |service| service["spec"]["type"] = json!("ClusterIP")).await;
    eventually("the policy is in force", async || {
        let probe = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "refused"},
            "spec": {"type": "ClusterIP", "ports": [{"port": 1}]}});
        let probe = serde_json::from_value(probe).unwrap();
        let _ = stage.services.create(&Default::default(), &probe).await;
        let touch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
        let refused = stage.services.patch_status("refused", &Default::default(), &touch).await;
        refused.is_err().then_some(())
    })
    .await;
    stage.merge("refused", json!({"spec": {"type": "LoadBalancer"}})).await;
    let message = stage.event("refused", "SyncLoadBalancerFailed").await;
    assert!(
        message.starts_with("Error syncing load balancer: failed to add load balancer cleanup finalizer: ")
            && message.contains("not here"),
        "{message}"
    );
    // Other Services are served, and nothing is created for this one.
    stage.served("other").await;
    assert_eq!(stage.cloud.of("default/refused"), None);
    bindings.delete("no-finalizers", &Default::default()).await.unwrap();
    stage.service("refused", "is served", |service| !addresses(service).is_empty()).await;
    let reasons = stage.reasons("refused").await;
    let failures = reasons.iter().filter(|reason| *reason == "SyncLoadBalancerFailed");
    assert_eq!(failures.count(), 1, "{reasons:?}");
}
