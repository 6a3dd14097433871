//! Routes to the nodes' Pods.

mod trouble;

use std::{collections::BTreeSet, net::IpAddr};

use ccm_sim::{
    Action, Fault,
    openstack::{NetworkSpec, PortPatch, PortSpec, ServerSpec},
};
use ccm_testbed::{
    in_process::InProcess,
    nodes::NodeSpec,
    observe::{addresses, provider_id},
};
use cloud_controller_manager::options::Config;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::{
    lifecycle::run,
    scene::{LIMIT, Scene, names},
};

const CIDR: &str = "10.244.0.0/16";

/// A control plane, a cloud and a router for the Pods.
struct RouteScene {
    scene: Scene,
    router: String,
}

/// The condition NetworkUnavailable as status and reason.
fn network(node: &Node) -> Option<(String, String)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|known| known.type_ == "NetworkUnavailable")?;
    Some((condition.status.clone(), condition.reason.clone().unwrap_or_default()))
}

pub(crate) fn is_available(node: &Node) -> bool {
    network(node).is_some_and(|(status, reason)| status == "False" && reason == "RouteCreated")
}

pub(crate) fn is_unavailable(node: &Node) -> bool {
    network(node).is_some_and(|(status, reason)| status == "True" && reason == "NoRouteCreated")
}

impl RouteScene {
    async fn set() -> Self {
        Self::set_with(&[]).await
    }

    /// The same with further networks that the router connects.
    async fn set_with(networks: &[NetworkSpec]) -> Self {
        let scene = Scene::set().await;
        let mut connected = vec!["private".to_owned()];
        for network in networks {
            connected.push(scene.cloud.create_network(network).unwrap());
        }
        let router = scene.router(connected);
        Self { scene, router }
    }

    fn run(&self) -> InProcess {
        self.run_with(|_| {})
    }

    fn run_with(&self, change: impl FnOnce(&mut Config)) -> InProcess {
        run(&self.scene.stage, |config| {
            config.route.cluster_cidr = CIDR.to_owned();
            config.controllers.disabled.insert("service-lb-controller");
            change(config);
        })
    }

    /// Creates a server and its node with the podCIDR `10.244.<i>.0/24`.
    async fn join(&self, name: &str, i: usize) {
        self.server(name, "private");
        self.register(name, &[&format!("10.244.{i}.0/24")]).await;
    }

    /// Creates a server and returns its ID.
    fn server(&self, name: &str, network: &str) -> String {
        let spec = ServerSpec {
            ports: Some(vec![PortSpec::on(network)]),
            ..ServerSpec::named(name)
        };
        self.scene.cloud.create_server(&spec).unwrap()
    }

    async fn register(&self, name: &str, pod_cidrs: &[&str]) {
        let spec = NodeSpec {
            pod_cidrs: pod_cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
            ..NodeSpec::new(name)
        };
        self.scene.register_one(spec).await;
    }

    fn destinations(&self) -> BTreeSet<String> {
        let routes = self.scene.cloud.router_routes(&self.router);
        routes.iter().map(|(destination, _)| destination.to_string()).collect()
    }

    fn next_hop(&self, destination: &str) -> Option<IpAddr> {
        let routes = self.scene.cloud.router_routes(&self.router);
        let found = routes.iter().find(|(to, _)| to.to_string() == destination);
        found.map(|(_, next_hop)| *next_hop)
    }

    async fn available(&self, name: &str) -> Node {
        self.scene.node(name, "network available", is_available).await
    }

    async fn unavailable(&self, name: &str) -> Node {
        self.scene.node(name, "network unavailable", is_unavailable).await
    }

    async fn failures(&self) -> Vec<Event> {
        let params = ListParams::default().fields("reason=FailedToCreateRoute");
        self.scene.events.list(&params).await.unwrap().items
    }

    fn count(&self, op: &str) -> u64 {
        self.scene.cloud.call_counts().get(op).copied().unwrap_or(0)
    }

    /// Waits until `more` further passes have read the router.
    async fn passes(&self, more: u64) {
        let expected = self.count("router_get") + more;
        self.scene
            .eventually("further passes", async || (self.count("router_get") >= expected).then_some(()))
            .await;
    }

    fn writes(&self) -> u64 {
        [
            "router_add_extraroutes",
            "router_remove_extraroutes",
            "router_update",
            "port_update",
        ]
        .map(|op| self.count(op))
        .iter()
        .sum()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_routed_from_the_creation_to_the_deletion_of_a_node() {
    let routes = RouteScene::set().await;
    let (scene, nodes) = (&routes.scene, names("node", 5));
    for (i, name) in nodes.iter().enumerate() {
        routes.join(name, i + 1).await;
    }
    let ccm = routes.run();
    for (i, name) in nodes.iter().enumerate() {
        let node = routes.available(name).await;
        let id = provider_id(&node).trim_start_matches("openstack:///").to_owned();
        let port = &scene.cloud.server_ports(&id)[0];
        let cidr = format!("10.244.{}.0/24", i + 1);
        assert_eq!(scene.cloud.address_pairs(port), std::slice::from_ref(&cidr));
        let hop = routes.next_hop(&cidr).unwrap().to_string();
        assert!(addresses(&node).contains(&("InternalIP", hop.as_str())));
    }
    // The server gets another address.
    let moved = routes.available("node-2").await;
    let id = provider_id(&moved).trim_start_matches("openstack:///").to_owned();
    let patch = PortPatch {
        addresses: Some(vec!["10.9.9.9".parse().unwrap()]),
        ..PortPatch::default()
    };
    let port = scene.cloud.server_ports(&id).remove(0);
    scene.cloud.update_port(&port, &patch).unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}});
    scene
        .nodes
        .patch_status("node-2", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    scene
        .eventually("the route follows", async || {
            (routes.next_hop("10.244.2.0/24") == "10.9.9.9".parse().ok()).then_some(())
        })
        .await;
    assert_eq!(routes.destinations().len(), 5, "the old route still exists");
    // One node is deleted while a new one joins.
    scene.nodes.delete("node-3", &Default::default()).await.unwrap();
    routes.join("node-6", 6).await;
    routes.available("node-6").await;
    scene
        .eventually("the route of the deleted node is deleted", async || {
            (routes.next_hop("10.244.3.0/24").is_none()).then_some(())
        })
        .await;
    assert_eq!(routes.destinations().len(), 5);
    assert!(routes.failures().await.is_empty());

    // Another process has nothing to do.
    drop(ccm);
    let before = routes.writes();
    let flags = [
        "--controllers=route",
        "--cluster-cidr=10.244.0.0/16",
        "--route-reconciliation-period=200ms",
        "--leader-elect=false",
    ];
    let _ccm = scene.start(&flags).await;
    routes.passes(4).await;
    assert_eq!(routes.writes(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_beyond_the_quota_wait_and_one_event_reports_it() {
    let routes = RouteScene::set().await;
    let scene = &routes.scene;
    let quota = |routes| {
        scene.cloud.configure(|settings| {
            settings.resource_quotas.insert("router_route".to_owned(), routes);
        });
    };
    quota(3);
    let _ccm = routes.run();
    for i in 1..=3 {
        routes.join(&format!("old-{i}"), i).await;
    }
    for i in 1..=3 {
        routes.available(&format!("old-{i}")).await;
    }
    for i in 4..=6 {
        routes.join(&format!("new-{i}"), i).await;
    }
    for i in 4..=6 {
        routes.unavailable(&format!("new-{i}")).await;
    }
    assert_eq!(routes.destinations().len(), 3);
    let events = scene
        .eventually("an event", async || Some(routes.failures().await).filter(|events| !events.is_empty()))
        .await;
    assert_eq!(events.len(), 1, "{events:?}");
    let message = events[0].message.clone().unwrap();
    assert!(
        message.starts_with("Could not create route ") && message.contains("quota router_route"),
        "{message}"
    );
    assert_eq!(events[0].source.as_ref().unwrap().component.as_deref(), Some("route_controller"));
    // A deleted route frees its quota at once.
    scene.nodes.delete("old-1", &Default::default()).await.unwrap();
    let available = async || {
        let nodes = scene.nodes.list(&ListParams::default()).await.ok()?.items;
        (nodes.iter().filter(|node| is_available(node)).count() == 3).then_some(())
    };
    scene.eventually("three nodes have their routes", available).await;
    assert_eq!(routes.destinations().len(), 3);
    assert!(!routes.destinations().contains("10.244.1.0/24"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unroutable_node_delays_no_other() {
    let routes = RouteScene::set().await;
    let scene = &routes.scene;
    scene
        .cloud
        .create_network(&NetworkSpec {
            name: "elsewhere".to_owned(),
            subnets: vec!["172.20.0.0/24".parse().unwrap()],
            ..Default::default()
        })
        .unwrap();
    routes.server("elsewhere", "elsewhere");
    routes.register("elsewhere", &["10.244.100.0/24"]).await;
    for i in 1..=4 {
        routes.join(&format!("node-{i}"), i).await;
    }
    // One node has the podCIDR of an older node, and one has a podCIDR outside of the cluster's.
    routes.join("twin", 4).await;
    routes.server("outside", "private");
    routes.register("outside", &["10.99.1.0/24"]).await;
    // Without a podCIDR, the condition belongs to another program.
    routes.server("overlay", "private");
    routes.register("overlay", &[]).await;
    for name in ["overlay", "node-1"] {
        let calico = json!({"status": {"conditions": [{
            "type": "NetworkUnavailable", "status": "False", "reason": "CalicoIsUp", "message": "up",
            "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z",
        }]}});
        let patch = Patch::Strategic(calico);
        let params = PatchParams::default();
        scene.nodes.patch_status(name, &params, &patch).await.unwrap();
    }
    let _ccm = routes.run();
    for i in 1..=4 {
        routes.available(&format!("node-{i}")).await;
    }
    for (name, why) in [
        ("elsewhere", "not connected with router"),
        ("twin", "the older node node-4 has the same podCIDR"),
        ("outside", "outside --cluster-cidr"),
    ] {
        routes.unavailable(name).await;
        let event = scene.event(name, "FailedToCreateRoute").await;
        let message = event.message.unwrap();
        assert!(message.contains(why), "{name}: {message}");
    }
    let overlay = scene.initialized("overlay").await;
    assert_eq!(network(&overlay).unwrap().1, "CalicoIsUp");
    assert_eq!(routes.destinations().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_read_changes_no_route_and_no_condition() {
    let routes = RouteScene::set().await;
    let scene = &routes.scene;
    for i in 1..=3 {
        routes.join(&format!("node-{i}"), i).await;
    }
    let _ccm = routes.run_with(|config| config.route.period = Some(std::time::Duration::from_millis(200)));
    for i in 1..=3 {
        routes.available(&format!("node-{i}")).await;
    }
    let before = routes.writes();
    for lie in [Action::EmptyJson, Action::status(404), Action::status(403)] {
        let fault = scene.cloud.add_fault(Fault::on("router_get", lie.clone()));
        routes.passes(2).await;
        for i in 1..=3 {
            assert!(is_available(&scene.nodes.get(&format!("node-{i}")).await.unwrap()), "{lie:?}");
        }
        assert!(scene.cloud.remove_fault(fault));
        // The wait grows after each failure, and a successful pass resets it.
        routes.passes(2).await;
    }
    assert_eq!(routes.writes(), before);
    assert_eq!(routes.destinations().len(), 3);

    // The router is deleted. Conditions of nodes with routes stay, and a new node is reported to have no route.
    scene.cloud.delete_router(&routes.router).unwrap();
    routes.join("late", 9).await;
    routes.unavailable("late").await;
    for i in 1..=3 {
        assert!(is_available(&scene.nodes.get(&format!("node-{i}")).await.unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_usable_cluster_cidr_the_other_controllers_work() {
    for (flag, line) in [
        ("--cluster-cidr=", "--cluster-cidr is empty"),
        ("--cluster-cidr=10.0.0.0/8,11.0.0.0/8", "same family"),
    ] {
        let routes = RouteScene::set().await;
        let mut ccm = routes.scene.start(&[flag]).await;
        routes.join("node-1", 1).await;
        routes.scene.initialized("node-1").await;
        routes.scene.logged(line).await;
        assert!(routes.scene.log().contains("Controller not started"));
        assert!(routes.destinations().is_empty());
        let metrics = ccm.get("/metrics").await.unwrap().1;
        assert!(metrics.contains("ccm_route_controller_running 0"), "{metrics}");
        assert!(ccm.exit_status().unwrap().is_none());
        ccm.terminate().unwrap();
        assert!(ccm.wait(LIMIT).await.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_nodes_costs_one_call() {
    let routes = RouteScene::set().await;
    routes.scene.cloud.configure(|settings| settings.resource_quotas.clear());
    let _ccm = routes.run();
    let nodes = names("burst", 60);
    for (i, name) in nodes.iter().enumerate() {
        routes.join(name, i + 1).await;
    }
    for name in &nodes {
        routes.available(name).await;
    }
    assert_eq!(routes.destinations().len(), 60);
    assert!(routes.count("router_add_extraroutes") <= 6, "{:?}", routes.scene.cloud.call_counts());
    let metrics = routes.count("router_remove_extraroutes") + routes.count("router_update");
    assert_eq!(metrics, 0);
}
