//! Everything around the program fails: at random, or by answering wrongly, or by not answering at all.

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

/// Refreshes are frequent, so that a test sees some.
const FREQUENT: &str = "--node-status-update-frequency=500ms";

/// Longest storm.
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

/// How often the program has asked for servers.
fn listings(scene: &Scene) -> usize {
    let calls = scene.cloud.calls();
    calls.iter().filter(|call| call.op == "server_list").count()
}

/// Waits until the program has asked for servers some more times: what it saw first has had its consequences.
async fn some_refreshes(scene: &Scene) {
    let wanted = listings(scene) + 4;
    scene
        .eventually("more listings", async || {
            (listings(scene) >= wanted).then_some(())
        })
        .await;
}

/// Lets listings show only this share of everything to a program whose nodes are all initialised, and one more node
/// joins, which they hide. Nothing is taken from any node, and when the lie ends the last one is initialised, too.
async fn a_listing_lies(share: f64) {
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
async fn an_empty_listing_takes_nothing_from_any_node() {
    a_listing_lies(0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_listing_takes_nothing_from_any_node() {
    a_listing_lies(0.5).await;
}

/// A program that reaches the API server through a proxy only.
async fn behind_a_proxy(scene: &Scene) -> (Proxy, Ccm) {
    let proxy = Proxy::start(scene.client.clone(), scene.stage.folder())
        .await
        .unwrap();
    let ccm = scene
        .stage
        .launch_as("openstack", proxy.kubeconfig(), &[FREQUENT])
        .unwrap();
    (proxy, ccm)
}

/// While the API server is out of reach a node joins, another goes and a third gets another address: afterwards all
/// of it is seen.
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
    proxy
        .wait_for(|requests| requests.iter().filter(failed).count() >= tries)
        .await;
    assert!(
        proxy.writes().iter().all(|write| write.status.is_none()),
        "nothing came through"
    );
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
async fn an_api_server_that_refuses_connections_for_a_while_costs_nothing() {
    // The nodes are listed again and again with growing pauses, so that this takes ten seconds or so.
    out_of_reach(|proxy| proxy.refuse(|_| true), |request| !request.is_write(), 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_silent_for_a_while_costs_nothing() {
    // The write of the new address is all that is tried: the watch is believed to be alive.
    out_of_reach(
        |proxy| proxy.add(Rule::new(Action::Silence)),
        Request::is_write,
        1,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_breaks_again_and_again_loses_no_node() {
    let scene = Scene::set().await;
    let nodes = names("seen", 10);
    scene.servers(&nodes);
    let (proxy, _ccm) = behind_a_proxy(&scene).await;
    for node in &nodes {
        scene
            .eventually("a watch", async || (proxy.watches() > 0).then_some(()))
            .await;
        proxy.break_watches(Request::is_watch);
        scene.register(std::slice::from_ref(node)).await;
    }
    scene.all_initialized(nodes.len()).await;
}
