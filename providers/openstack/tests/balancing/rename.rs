//! The cluster's name changes.

use ccm_core::load_balancer::ClusterTag;
use ccm_sim::{Action, Fault};
use serde_json::json;

use crate::stage::{ID, Stage, annotate, service};

/// Like after the Go cloud controller: without our ownership tag.
fn unmark(stage: &Stage) {
    for balancer in stage.balancers() {
        let tags = balancer.loadbalancer.attributes["tags"].as_array().unwrap().clone();
        let tags: Vec<_> = tags
            .into_iter()
            .filter(|tag| !tag.as_str().unwrap().starts_with(ClusterTag::PREFIX))
            .collect();
        let patch = json!({"tags": tags});
        let id = &balancer.loadbalancer.id;
        stage.sim.patch_object(id, patch.as_object().unwrap()).unwrap();
    }
}

fn names(stage: &Stage) -> Vec<String> {
    let balancers = stage.balancers();
    let all = balancers.iter().flat_map(|balancer| {
        let own = std::iter::once(&balancer.loadbalancer);
        let all = own.chain(&balancer.listeners).chain(&balancer.pools);
        all.chain(&balancer.healthmonitors).flat_map(|object| {
            let tags = object.attributes.get("tags").and_then(|tags| tags.as_array());
            let tags = tags.into_iter().flatten();
            let tags = tags.map(|tag| tag.as_str().unwrap().to_owned());
            tags.chain([object.name.clone()])
        })
    });
    // Two tags without the cluster's name.
    let others = [ClusterTag::PREFIX, "kube_load_balancer_ip_"];
    let mut all: Vec<_> = all.filter(|name| !others.iter().any(|prefix| name.starts_with(prefix))).collect();
    all.sort();
    all.dedup();
    all
}

fn warnings(stage: &Stage) -> Vec<&'static str> {
    let reports = stage.reports.iter();
    reports.flat_map(|report| &report.events).map(|event| event.reason).collect()
}

#[tokio::test]
async fn load_balancers_get_the_new_name_whichever_program_created_them() {
    for unmarked in [false, true] {
        let mut stage = Stage::served().await;
        if unmarked {
            unmark(&stage);
        }
        let (id, address) = (stage.balancers()[0].loadbalancer.id.clone(), stage.address("web"));
        let before = names(&stage);
        stage.cluster = "my_new".to_owned();
        stage.restart().await;
        stage.sim.clear_calls();
        stage.settle_well().await;
        assert_eq!(stage.balancers().len(), 1);
        let balancer = stage.balancers().remove(0);
        assert_eq!((&balancer.loadbalancer.id, stage.address("web")), (&id, address.clone()));
        let expected: Vec<_> = before.iter().map(|name| name.replace("_kubernetes_", "_my_new_")).collect();
        assert_eq!(names(&stage), expected);
        let mark = balancer.loadbalancer.attributes["tags"].to_string();
        assert!(mark.contains(ClusterTag::PREFIX), "{mark}");
        // A monitor, a pool and a listener for each port, and the load balancer; nothing else is changed.
        let (writes, _) = stage.cost();
        assert_eq!(writes, 7 + usize::from(unmarked), "{:?}", stage.sim.call_counts());

        stage.sim.clear_calls();
        stage.restart().await;
        stage.settle().await;
        assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty() && stage.services.is_empty());
    }
}

/// The renaming stops anywhere, and the cluster's name changes back or to a third one.
#[tokio::test]
async fn an_interrupted_renaming_is_reverted() {
    for (written, last) in (0..7).flat_map(|written| [(written, "kubernetes"), (written, "third")]) {
        let mut stage = Stage::served().await;
        let (before, id) = (names(&stage), stage.balancers()[0].loadbalancer.id.clone());
        stage.cluster = "other".to_owned();
        stage.restart().await;
        let refused = Action::Status {
            code: 400,
            body: None,
            headers: Default::default(),
        };
        stage.sim.add_fault(Fault {
            service: Some("load-balancer".to_owned()),
            method: Some("PUT".to_owned()),
            nth: written + 1,
            ..Fault::new(refused)
        });
        stage.settle().await;
        let other = names(&stage).iter().any(|name| name.contains("_other_"));
        assert_eq!(other, written > 0, "after {written} writes");
        stage.sim.clear_faults();
        stage.cluster = last.to_owned();
        stage.restart().await;
        stage.settle().await;
        let place = format!("{written} writes, then {last}");
        assert_eq!(stage.complaints(), [""; 0], "{place}");
        let like = |name: &String| name.replace("_kubernetes_", &format!("_{last}_"));
        assert_eq!(names(&stage), before.iter().map(like).collect::<Vec<_>>(), "{place}");
        assert_eq!(stage.balancers().len(), 1, "{place}");
        assert_eq!(stage.balancers()[0].loadbalancer.id, id, "{place}");
        assert_eq!(stage.balancers()[0].listeners.len(), 2, "{place}");
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty() && stage.services.is_empty(), "{place}");
    }
}

#[tokio::test]
async fn the_new_name_is_reported() {
    let mut stage = Stage::served().await;
    stage.cluster = "other".to_owned();
    stage.restart().await;
    let mut reported = Vec::new();
    // The first passes observe the former name; later Events use the new one.
    for _ in 0..2 {
        stage.pass_once().await;
        reported.extend(warnings(&stage));
    }
    assert!(reported.contains(&"LoadBalancerRename"), "{reported:?}");
    stage.settle().await;
    assert!(!warnings(&stage).contains(&"LoadBalancerRename"));
}

#[tokio::test]
async fn a_service_that_leaves_during_the_rename_leaves_nothing() {
    for unmarked in [false, true] {
        let mut stage = Stage::served().await;
        if unmarked {
            unmark(&stage);
        }
        stage.cluster = "other".to_owned();
        stage.restart().await;
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty() && stage.services.is_empty(), "{unmarked}");
        assert!(stage.sim.call_counts().contains_key("floating_ip_delete"));
    }
}

#[tokio::test]
async fn changes_wait_for_nothing_and_a_service_without_annotations_finds_its_own() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    stage.cluster = "other".to_owned();
    stage.restart().await;
    let web = stage.service("web");
    web.annotations = Default::default();
    web.ingress.clear();
    web.ports = service("web", &[443, 8080]).ports;
    stage.join();
    stage.settle_well().await;
    let balancers = stage.balancers();
    assert_eq!(balancers.len(), 1);
    assert_eq!(balancers[0].loadbalancer.id, id);
    assert_eq!((balancers[0].listeners.len(), balancers[0].members.len()), (2, 6));
    assert!(names(&stage).iter().all(|name| name.contains("_other_")), "{:?}", names(&stage));
}

#[tokio::test]
async fn those_that_share_it_are_renamed_with_it() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let mut api = service("api", &[81]);
    annotate(&mut api, ID, Some(&id));
    stage.services.push(api);
    stage.settle().await;
    stage.service("web").deleting = true;
    stage.settle().await;
    stage.cluster = "other".to_owned();
    stage.restart().await;
    stage.settle_well().await;
    assert!(names(&stage).iter().all(|name| name.contains("_other_")), "{:?}", names(&stage));
    stage.service("api").deleting = true;
    stage.settle().await;
    assert!(stage.balancers().is_empty() && stage.services.is_empty());
}

#[tokio::test]
async fn another_clusters_load_balancer_is_neither_renamed_nor_deleted() {
    let mut stage = Stage::served().await;
    unmark(&stage);
    let before = names(&stage);
    let id = stage.balancers()[0].loadbalancer.id.clone();
    // The same Service of another cluster, which names the load balancer but never used it.
    stage.services.clear();
    let mut web = service("web", &[80]);
    annotate(&mut web, ID, Some(&id));
    stage.services.push(web);
    stage.cluster = "other".to_owned();
    stage.restart().await;
    stage.settle().await;
    stage.assert_complaints(&["named for the cluster name kubernetes"]);
    assert_eq!(names(&stage), before);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert_eq!(names(&stage), before);
}

#[tokio::test]
async fn another_clusters_load_balancer_that_is_shared_stays_its_own() {
    for tagged in [true, false] {
        let mut stage = Stage::served().await;
        unmark(&stage);
        let id = stage.balancers()[0].loadbalancer.id.clone();
        if !tagged {
            let none = json!({"tags": [""]});
            stage.sim.patch_object(&id, none.as_object().unwrap()).unwrap();
        }
        let before = names(&stage);
        stage.services.clear();
        let mut api = service("api", &[81]);
        annotate(&mut api, ID, Some(&id));
        stage.services.push(api);
        stage.cluster = "other".to_owned();
        stage.restart().await;
        stage.settle_well().await;
        assert_eq!(stage.balancers()[0].listeners.len(), 3);
        let tags = stage.balancers()[0].loadbalancer.attributes["tags"].to_string();
        assert!(!tags.contains(ClusterTag::PREFIX), "{tags}");
        stage.service("api").deleting = true;
        stage.settle().await;
        assert!(stage.services.is_empty());
        assert_eq!(names(&stage), before, "tagged: {tagged}");
    }
}
