//! Tags that other clients write at the same time.

use ccm_core::load_balancer::ClusterTag;
use ccm_sim::openstack::Settings;
use serde_json::json;

use crate::{
    other_client::OtherClient,
    stage::{ID, Stage, annotate, service},
};

const THEIRS: &str = "kube_service_elsewhere_shop_web";

fn tags(stage: &Stage) -> Vec<String> {
    let balancer = stage.balancers().remove(0).loadbalancer;
    serde_json::from_value(balancer.attributes["tags"].clone()).unwrap()
}

/// Adds a tag that the cached listings do not have.
fn add_tag(stage: &Stage, id: &str, tag: &str) {
    let balancer = stage.balancers().remove(0);
    let mut objects = std::iter::once(&balancer.loadbalancer).chain(&balancer.listeners);
    let object = objects.find(|object| object.id == id).unwrap();
    let mut tags = object.attributes["tags"].as_array().unwrap().clone();
    tags.push(json!(tag));
    let change = json!({ "tags": tags });
    stage.sim.patch_object(id, change.as_object().unwrap()).unwrap();
}

/// The Services `web` and `api` on the load balancer of `web`.
async fn shared() -> (Stage, String) {
    let mut stage = Stage::new(2, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let mut api = service("api", &[81]);
    annotate(&mut api, ID, Some(&id));
    stage.services.push(api);
    stage.settle_well().await;
    (stage, id)
}

#[tokio::test]
async fn the_last_tag_goes_in_each_version_of_octavia() {
    for old in [true, false] {
        let mut stage = Stage::new(1, "").await;
        let settings = |settings: &mut Settings| settings.load_balancing.ignores_empty_tags = old;
        stage.sim.configure(settings);
        let id = OtherClient::of(&stage.sim).await.balancer("users").await;
        let nothing = json!({"tags": []});
        stage.sim.patch_object(&id, nothing.as_object().unwrap()).unwrap();
        for _ in 0..2 {
            let mut web = service("web", &[80]);
            annotate(&mut web, ID, Some(&id));
            stage.services.push(web);
            stage.settle().await;
            assert_eq!(tags(&stage), ["kube_service_kubernetes_shop_web"]);
            stage.service("web").deleting = true;
            stage.settle().await;
            assert_eq!((tags(&stage), stage.services.len()), (vec![String::new()], 0));
        }
    }
}

#[tokio::test]
async fn another_clusters_tag_survives_whatever_we_write() {
    let (mut stage, id) = shared().await;
    // They appear while the cached listing is old: a Service of the same name, with a listener of its own.
    add_tag(&stage, &id, THEIRS);
    let body = json!({
        "loadbalancer_id": id, "name": format!("listener_0_{THEIRS}"), "protocol": "TCP",
        "protocol_port": 8443, "tags": [THEIRS],
    });
    let theirs = OtherClient::of(&stage.sim).await;
    let theirs = theirs.create("listeners", "listener", body).await;
    stage.service("api").deleting = true;
    stage.settle_well().await;
    let own = "kube_service_kubernetes_shop_web".to_owned();
    assert!(
        tags(&stage).contains(&THEIRS.to_owned()) && tags(&stage).contains(&own),
        "{:?}",
        tags(&stage)
    );
    assert_eq!(tags(&stage).len(), 4);

    // And the load balancer outlives our last Service, all of whose objects are deleted.
    stage.service("web").deleting = true;
    stage.settle_well().await;
    assert!(stage.services.is_empty());
    let left = stage.balancers().remove(0);
    let listeners: Vec<_> = left.listeners.iter().map(|listener| &listener.id).collect();
    assert_eq!(listeners, [&theirs]);
    assert!(left.pools.is_empty() && left.members.is_empty());
    assert_eq!(tags(&stage), [ClusterTag::of("kube-system-uid").as_str(), THEIRS]);
}

#[tokio::test]
async fn a_listeners_and_a_load_balancers_further_tags_survive_a_renaming() {
    let (mut stage, id) = shared().await;
    let listener = stage.balancers()[0].listeners[0].id.clone();
    add_tag(&stage, &id, THEIRS);
    add_tag(&stage, &listener, "of a person");
    stage.cluster = "renamed".to_owned();
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.loadbalancer.name, "kube_service_renamed_shop_web");
    assert!(tags(&stage).contains(&THEIRS.to_owned()), "{:?}", tags(&stage));
    let listeners = balancer.listeners.iter();
    let found = listeners.filter(|found| found.id == listener);
    let found: Vec<_> = found.map(|found| found.attributes["tags"].to_string()).collect();
    assert!(found[0].contains("of a person") && found[0].contains("_renamed_"), "{found:?}");
    stage.sim.clear_calls();
    stage.restart().await;
    stage.settle().await;
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
}

#[tokio::test]
async fn another_clusters_service_of_the_same_name_is_not_adopted() {
    // The cached listing is fresh this time, so only the uncached read of the tags can decide.
    let mut stage = Stage::new(2, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    add_tag(&stage, &id, THEIRS);
    stage.restart().await;
    stage.service("web").deleting = true;
    stage.settle_well().await;
    assert!(stage.services.is_empty());
    let left = stage.balancers().remove(0);
    assert!(left.listeners.is_empty() && left.pools.is_empty(), "{:?}", left.listeners);
    assert!(tags(&stage).contains(&THEIRS.to_owned()));
}
