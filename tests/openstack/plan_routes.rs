//! Routes in `plan` and `--dry-run`.

use std::{collections::BTreeMap, net::IpAddr};

use ccm_sim::{
    Action, Fault,
    openstack::{PortSpec, ServerSpec},
};
use ccm_testbed::nodes::NodeSpec;
use serde_json::Value;

use crate::{
    plan_scene::{PlanScene, redact},
    routes::{is_available, is_unavailable},
    scene::LIMIT,
};

const CIDR: &str = "--cluster-cidr=10.244.0.0/16";

/// A scene for plans, with a router.
struct PlannedRoutes {
    stage: PlanScene,
    router: String,
}

impl PlannedRoutes {
    async fn set() -> Self {
        let stage = PlanScene::set().await;
        let router = stage.scene.router(vec!["private".to_owned()]);
        Self { stage, router }
    }

    /// Creates a server with the address `10.0.0.<i>`, and its node. Returns the server's port.
    async fn join(&self, name: &str, i: u8, pod_cidr: &str, uninitialized: bool) -> String {
        let scene = &self.stage.scene;
        let spec = ServerSpec {
            ports: Some(vec![PortSpec {
                addresses: Some(vec![IpAddr::from([10, 0, 0, i])]),
                ..PortSpec::on("private")
            }]),
            ..ServerSpec::named(name)
        };
        let id = scene.cloud.create_server(&spec).unwrap();
        let node = NodeSpec {
            pod_cidrs: vec![pod_cidr.to_owned()],
            provider_id: (!uninitialized).then(|| format!("openstack:///{id}")),
            uninitialized,
            labels: if uninitialized {
                BTreeMap::new()
            } else {
                topology_labels()
            },
            ..NodeSpec::new(name)
        };
        scene.register_one(node).await;
        scene.cloud.server_ports(&id).remove(0)
    }

    fn table(&self) -> BTreeMap<String, String> {
        let routes = self.stage.scene.cloud.router_routes(&self.router);
        let text = |(to, via): &(ipnet::IpNet, IpAddr)| (to.to_string(), via.to_string());
        routes.iter().map(text).collect()
    }

    fn write_table(&self, routes: &[(&str, &str)]) {
        let routes: Vec<_> =
            routes.iter().map(|(to, via)| (to.parse().unwrap(), via.parse().unwrap())).collect();
        let cloud = &self.stage.scene.cloud;
        cloud.set_router_routes(&self.router, &routes).unwrap();
    }
}

/// The labels of an initialized node, so that the plan does not change them.
fn topology_labels() -> BTreeMap<String, String> {
    let labels = [
        ("topology.kubernetes.io/region", "RegionOne"),
        ("failure-domain.beta.kubernetes.io/region", "RegionOne"),
        ("topology.kubernetes.io/zone", "nova"),
        ("failure-domain.beta.kubernetes.io/zone", "nova"),
        ("node.kubernetes.io/instance-type", "m1.small"),
        ("beta.kubernetes.io/instance-type", "m1.small"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    labels.into()
}

/// The table after the changes of a plan.
fn applied(mut table: BTreeMap<String, String>, plan: &Value) -> BTreeMap<String, String> {
    for route in plan["routes"].as_array().unwrap() {
        let destination = route["destination"].as_str().unwrap();
        for change in route["changes"].as_array().unwrap() {
            assert_eq!(change["kind"], "route");
            let (_, via) = change["what"].as_str().unwrap().split_once(" via ").unwrap();
            match change["effect"].as_str().unwrap() {
                "delete" => drop(table.remove(destination)),
                _ => drop(table.insert(destination.to_owned(), via.split(' ').next().unwrap().to_owned())),
            }
        }
    }
    table
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_lists_created_changed_and_deleted_routes_and_matches_the_later_changes() {
    let routes = PlannedRoutes::set().await;
    let (stage, scene) = (&routes.stage, &routes.stage.scene);
    let port = routes.join("node-1", 11, "10.244.1.0/24", false).await;
    scene.cloud.set_address_pairs(&port, &["10.244.1.0/24"]).unwrap();
    routes.join("node-2", 12, "10.244.2.0/24", false).await;
    routes.join("node-3", 13, "10.244.3.0/24", false).await;
    routes.join("node-4", 14, "10.244.4.0/24", true).await;
    routes.join("twin", 15, "10.244.1.0/24", true).await;
    let foreign = ("192.168.7.0/24", "10.0.0.99");
    routes.write_table(&[
        ("10.244.1.0/24", "10.0.0.11"),
        // The port of this node lacks the address pair.
        ("10.244.2.0/24", "10.0.0.12"),
        ("10.244.3.0/24", "10.0.0.98"),
        ("10.244.9.0/24", "10.0.0.99"),
        foreign,
    ]);
    let before = routes.table();
    scene.cloud.clear_calls();

    let planned = stage.plan(&[CIDR]).await.assert_code(2);
    insta::assert_snapshot!("plan_of_routes_text", redact(&planned.text));
    let json = stage.plan(&[CIDR, "-o=json"]).await.assert_code(2);
    let plan: Value = serde_json::from_str(&json.text).unwrap();
    insta::assert_snapshot!("plan_of_routes_json", serde_json::to_string_pretty(&plan["routes"]).unwrap());

    // A dry run logs each difference once, and only reads.
    let flags = ["--dry-run", "--authentication-skip-lookup", CIDR];
    let mut ccm = scene.stage.launch_as("openstack", &stage.reader, &flags).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    for line in [
        "Would do about=\"route 10.244.4.0/24 (node node-4)\" what=\"create route 10.244.4.0/24 via 10.0.0.14",
        "Would do about=\"node node-4\" what=\"set condition NetworkUnavailable to False",
        "Would leave unchanged about=\"route 10.244.1.0/24 (node twin)\"",
    ] {
        scene.logged(line).await;
    }
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());
    assert_eq!(routes.table(), before);
    stage.assert_untouched().await;

    // The running program applies the plan.
    let mut ccm = scene.start(&["--leader-elect=false", CIDR]).await;
    for i in 1..=4 {
        scene.node(&format!("node-{i}"), "network available", is_available).await;
    }
    scene.node("twin", "network unavailable", is_unavailable).await;
    let after = applied(before, &plan);
    scene
        .eventually("the table is as planned", async || (routes.table() == after).then_some(()))
        .await;
    assert_eq!(after.get(foreign.0).map(String::as_str), Some(foreign.1));
    let page = ccm.get("/statusz").await.unwrap().1;
    for figure in [
        "ccm_route_controller_running",
        "ccm_routes state=",
        "ccm_routes_foreign",
    ] {
        assert!(page.contains(figure) || page.contains(&figure.replace('"', "&quot;")), "{figure}: {page}");
    }
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());
    let rest = stage.plan(&[CIDR]).await.assert_code(3);
    assert!(rest.text.contains("0 to create, 0 to change, 0 to delete; 1 blocked"), "{}", rest.text);
    scene.nodes.delete("twin", &Default::default()).await.unwrap();
    let rest = stage.plan(&[CIDR]).await.assert_code(0);
    assert_eq!(rest.text, "Nothing to do: 0 Services and 4 nodes are as desired.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_that_cannot_be_planned_are_a_problem_unless_they_are_disabled() {
    let routes = PlannedRoutes::set().await;
    let (stage, scene) = (&routes.stage, &routes.stage.scene);
    routes.join("node-1", 11, "10.244.1.0/24", true).await;
    for (flag, wrong) in [
        ("--cluster-cidr=", "? routes: --cluster-cidr is empty"),
        ("--cluster-cidr=nonsense", "? routes: --cluster-cidr \"nonsense\" is not a network"),
    ] {
        let planned = stage.plan(&[flag]).await.assert_code(1);
        assert!(planned.text.contains(wrong), "{}", planned.text);
        assert!(planned.text.contains("Nodes to initialize: 1"), "{}", planned.text);
    }
    for flag in [
        "--configure-cloud-routes=false",
        "--controllers=*,-node-route-controller",
    ] {
        let planned = stage.plan(&[flag, CIDR]).await.assert_code(2);
        assert!(!planned.text.contains("oute"), "{}", planned.text);
    }
    let broken = scene.cloud.add_fault(Fault::on("router_get", Action::status(403)));
    let planned = stage.plan(&[CIDR]).await.assert_code(1);
    assert!(planned.text.contains("\n  ? routes: "), "{}", planned.text);
    assert!(!planned.text.contains("Routes:"), "{}", planned.text);
    scene.cloud.remove_fault(broken);

    // No node has a podCIDR: nothing is deleted.
    scene.nodes.delete("node-1", &Default::default()).await.unwrap();
    routes.write_table(&[("10.244.9.0/24", "10.0.0.99")]);
    let blocked = stage.plan(&[CIDR]).await.assert_code(3);
    assert!(
        blocked.text.contains("nothing is deleted while no node has a podCIDR"),
        "{}",
        blocked.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_respects_the_quota_of_routes() {
    let routes = PlannedRoutes::set().await;
    let (stage, scene) = (&routes.stage, &routes.stage.scene);
    for i in 1..=3 {
        routes.join(&format!("node-{i}"), 10 + i, &format!("10.244.{i}.0/24"), false).await;
    }
    // A foreign route.
    routes.write_table(&[("192.168.7.0/24", "10.0.0.99")]);
    scene.cloud.configure(|settings| {
        settings.resource_quotas.insert("router_route".to_owned(), 3);
    });
    let planned = stage.plan(&[CIDR]).await.assert_code(2).text;
    for line in [
        "+ create route 10.244.1.0/24 via 10.0.0.11",
        "+ create route 10.244.2.0/24 via 10.0.0.12",
        "! route 10.244.3.0/24 (node node-3): no route is created: the limit is 3 routes in all; raise the quota \
         router_route of the router's project",
        "~ node-3: set condition NetworkUnavailable to True",
    ] {
        assert!(planned.contains(line), "{line}: {planned}");
    }
    // Without the right to read the quota, the plan contains all routes.
    let secret = scene.cloud.add_fault(Fault::on("quota_get", Action::status(403)));
    let planned = stage.plan(&[CIDR]).await.assert_code(2).text;
    assert!(planned.contains("+ create route 10.244.3.0/24"), "{planned}");
    assert!(scene.cloud.remove_fault(secret));
}
