//! Cloud and API server fail: at random, with wrong answers, or without an answer.

use std::time::Duration;

use ccm_sim::openstack::{PortPatch, ServerSpec};
use ccm_sim::{Action as CloudAction, Fault};
use ccm_testbed::{
    binary::Ccm,
    observe::{addresses, provider_id},
    proxy::{Action, Proxy, Request, Rule},
    scenarios::Kind,
    sweep::{Storm, Sweep},
};
use kube::api::ListParams;

use crate::scene::{Scene, names, program};

/// Frequent refreshes, so that several run during a test.
const FREQUENT: &str = "--node-status-update-frequency=500ms";

/// The longest duration of a storm.
const STORM: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn addresses_change_in_a_storm() {
    let scenario = Kind::Readdress.set(&program(), 6).await.unwrap().unwrap();
    let calm = Sweep::default().rehearse(&*scenario).await.unwrap();
    let storm = Storm {
        longest: STORM,
        ..Storm::new(3)
    };
    let report = storm.run(&*scenario, &calm).await.unwrap();
    ccm_testbed::cache::say(report.to_string());
    report.verdict().unwrap();
}

/// The number of the program's listings of servers.
fn listings(scene: &Scene) -> usize {
    let calls = scene.cloud.calls();
    calls.iter().filter(|call| call.op == "server_list").count()
}

/// Waits for several more listings of servers, so that the first one has had its effect.
async fn some_refreshes(scene: &Scene) {
    let expected = listings(scene) + 4;
    scene
        .eventually("more listings", async || (listings(scene) >= expected).then_some(()))
        .await;
}

/// Reduces listings to this share while all nodes are initialized and one more node joins, whose server they hide. Checks that
/// no node loses anything, and that the last one is initialized when listings are complete again.
async fn incomplete_listings(share: f64) {
    let scene = Scene::set().await;
    let nodes = names("kept", 6);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let mut ccm = scene.start(&[FREQUENT]).await;
    let before = scene.all_initialized(nodes.len()).await;
    scene.cloud.create_server(&ServerSpec::named("hidden")).unwrap();
    let fault = scene.cloud.add_fault(Fault::new(CloudAction::Partial { share }));
    scene.register(&["hidden".to_owned()]).await;
    some_refreshes(&scene).await;
    for node in &before {
        let name = node.metadata.name.as_deref().unwrap();
        let now = scene.nodes.get(name).await.unwrap();
        assert_eq!(now.spec, node.spec, "{name}");
        assert_eq!(now.metadata.labels, node.metadata.labels, "{name}");
        assert_eq!(addresses(&now), addresses(node), "{name}");
    }
    assert!(scene.cloud.remove_fault(fault));
    scene.initialized("hidden").await;
    assert!(ccm.exit_status().unwrap().is_none(), "{}", scene.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_listing_changes_no_node() {
    incomplete_listings(0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_listing_changes_no_node() {
    incomplete_listings(0.5).await;
}

/// Starts the program with a proxy in front of the API server.
async fn behind_a_proxy(scene: &Scene) -> (Proxy, Ccm) {
    let proxy = Proxy::start(scene.client.clone(), scene.stage.folder()).await.unwrap();
    let ccm = scene.stage.launch_as("openstack", proxy.kubeconfig(), &[FREQUENT]).unwrap();
    (proxy, ccm)
}

/// While the API server is unreachable, a node joins, another is deleted and a third gets another address. Afterwards the
/// program handles all of these changes.
async fn out_of_reach(begin: impl FnOnce(&Proxy) -> u64, is_try: impl Fn(&Request) -> bool, tries: usize) {
    let scene = Scene::set().await;
    let nodes = names("known", 3);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let (proxy, mut ccm) = behind_a_proxy(&scene).await;
    scene.all_initialized(nodes.len()).await;

    proxy.forget();
    let outage = begin(&proxy);
    let id = scene.cloud.create_server(&ServerSpec::named("new")).unwrap();
    scene.register(&["new".to_owned()]).await;
    scene.nodes.delete("known-1", &Default::default()).await.unwrap();
    let moved = scene.nodes.get("known-2").await.unwrap();
    let server = provider_id(&moved).trim_start_matches("openstack:///");
    let patch = PortPatch {
        addresses: Some(vec!["10.9.9.9".parse().unwrap()]),
        ..PortPatch::default()
    };
    let port = &scene.cloud.server_ports(server)[0];
    scene.cloud.update_port(port, &patch).unwrap();
    let failed = |request: &&Request| request.fault.is_some() && is_try(request);
    proxy.wait_for(|requests| requests.iter().filter(failed).count() >= tries).await;
    assert!(proxy.writes().iter().all(|write| write.status.is_none()), "a request got through");
    assert!(ccm.exit_status().unwrap().is_none(), "{}", scene.log());
    proxy.remove(outage);

    let node = scene.initialized("new").await;
    assert_eq!(provider_id(&node), format!("openstack:///{id}"));
    let moved = |node: &_| addresses(node).first() == Some(&("InternalIP", "10.9.9.9"));
    scene.node("known-2", "its new address", moved).await;
    let left = scene.nodes.list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.len(), 3);
    assert!(proxy.writes().iter().all(|write| write.method != "DELETE"));
    assert!(ccm.exit_status().unwrap().is_none(), "{}", scene.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusing_api_server_loses_no_change() {
    // The pauses between listings of nodes grow, so that this takes about ten seconds.
    out_of_reach(|proxy| proxy.refuse(|_| true), |request| !request.is_write(), 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_api_server_loses_no_change() {
    // The only attempt is the write of the new address, because the watch seems to be alive.
    out_of_reach(|proxy| proxy.add(Rule::new(Action::Silence)), Request::is_write, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_breaks_repeatedly_loses_no_node() {
    let scene = Scene::set().await;
    let nodes = names("seen", 10);
    scene.servers(&nodes);
    let (proxy, _ccm) = behind_a_proxy(&scene).await;
    for node in &nodes {
        scene.eventually("a watch", async || (proxy.watches() > 0).then_some(())).await;
        proxy.break_watches(Request::is_watch);
        scene.register(std::slice::from_ref(node)).await;
    }
    scene.all_initialized(nodes.len()).await;
}
