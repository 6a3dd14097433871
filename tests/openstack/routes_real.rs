//! Routes on a router of a real OpenStack. It needs `CCM_TEST_OPENSTACK_REAL`.

use std::env;

use ccm_testbed::{
    binary::Ccm,
    nodes::{self, NodeSpec},
    observe::eventually,
    openstack_real::{Mark, OpenStack},
    stage::Stage,
};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Api, api::ListParams};

use crate::{
    routes::{is_available, is_unavailable},
    scene::{LIMIT, program, read},
};

/// Only this test uses this network on the router.
const CIDR: &str = "10.251.0.0/16";

struct RealRoutes {
    cloud: OpenStack,
    stage: Stage,
    nodes: Api<Node>,
    client: kube::Client,
}

impl RealRoutes {
    fn run(&self) -> Ccm {
        let cidr = format!("--cluster-cidr={CIDR}");
        let flags = [
            "--controllers=cloud-node,route",
            "--leader-elect=false",
            cidr.as_str(),
        ];
        self.stage.launch("openstack", &flags).unwrap()
    }

    async fn register(&self, spec: NodeSpec) {
        nodes::register(&self.client, [&spec]).await.unwrap();
    }

    async fn until(&self, name: &str, what: &str, condition: impl Fn(&Node) -> bool) {
        let check = async || self.nodes.get(name).await.ok().filter(|node| condition(node));
        let found = eventually(LIMIT, check).await;
        assert!(found.is_some(), "{name}: not {what}");
    }

    /// The program's changes of routers and ports since `mark`, as method, last part of the path and status.
    fn writes(&self, mark: &Mark) -> Vec<(String, String, u16)> {
        let calls = self.cloud.calls_since(mark).unwrap();
        calls
            .into_iter()
            .filter(|call| call.service == "neutron" && call.method != "GET")
            .filter(|call| call.user_agent.starts_with("cloud-controller-manager"))
            .map(|call| {
                let what = match call.path.contains("/ports/") {
                    true => "port",
                    false => call.path.rsplit('/').next().unwrap_or_default(),
                };
                (call.method.clone(), what.to_owned(), call.status)
            })
            .collect()
    }

    /// Waits for so many changes. A service writes its log after it has answered.
    async fn counted(&self, mark: &Mark, what: &str, expected: usize) {
        let enough = async || (self.count(mark, what, true) >= expected).then_some(());
        eventually(LIMIT, enough).await;
        let writes = self.writes(mark);
        assert_eq!(self.count(mark, what, true), expected, "{what}: {writes:?}");
    }

    fn count(&self, mark: &Mark, what: &str, accepted: bool) -> usize {
        let writes = self.writes(mark);
        let matches = |write: &&(String, String, u16)| write.1 == what && (write.2 < 300) == accepted;
        writes.iter().filter(matches).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_real_cloud_are_routed() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        ccm_testbed::cache::say(
            "left out, since CCM_TEST_OPENSTACK_REAL is not set: the routes of a real OpenStack",
        );
        return;
    }
    let cloud = OpenStack::start(6).await.unwrap();
    let names = ["route-1", "route-2", "route-3", "route-4"];
    cloud.create_servers(&names).await.unwrap();
    let stage = Stage::set(program()).await.unwrap();
    stage.write_cloud_config(&read(&cloud.cloud_conf())).unwrap();
    let client = stage.control_plane.client().await.unwrap();
    let routes = RealRoutes {
        nodes: Api::all(client.clone()),
        client,
        cloud,
        stage,
    };
    let spec = |name: &str, i: usize| NodeSpec {
        pod_cidrs: vec![format!("10.251.{i}.0/24")],
        ..NodeSpec::new(name)
    };
    // This node never gets an address. While it exists, all other nodes may be deleted.
    routes.register(spec("nowhere", 250)).await;
    let mark = routes.cloud.mark().unwrap();
    for (i, name) in names.iter().enumerate().take(3) {
        routes.register(spec(name, i + 1)).await;
    }
    // A node outside of the router's subnets.
    routes
        .register(NodeSpec {
            uninitialized: false,
            node_ip: "192.0.2.77".parse().ok(),
            ..spec("stranger", 9)
        })
        .await;
    let ccm = routes.run();
    for name in &names[..3] {
        routes.until(name, "network available", is_available).await;
    }
    routes.until("stranger", "network unavailable", is_unavailable).await;
    let events: Api<Event> = Api::all(routes.client.clone());
    let params = ListParams::default().fields("involvedObject.name=stranger,reason=FailedToCreateRoute");
    let event = eventually(LIMIT, async || events.list(&params).await.ok()?.items.pop()).await;
    let message = event.unwrap().message.unwrap();
    assert!(message.contains("not connected with router"), "{message}");
    routes.counted(&mark, "port", 3).await;
    assert!(routes.count(&mark, "add_extraroutes", true) <= 3);

    // Another process has nothing to do, and the cloud accepts no write of it.
    drop(ccm);
    let mark = routes.cloud.mark().unwrap();
    let ccm = routes.run();
    routes.register(spec(names[3], 4)).await;
    routes.until(names[3], "network available", is_available).await;
    routes.counted(&mark, "port", 1).await;
    routes.counted(&mark, "add_extraroutes", 1).await;

    // All nodes are deleted, then their servers.
    let mark = routes.cloud.mark().unwrap();
    for name in names.iter().chain(&["stranger"]) {
        routes.nodes.delete(name, &Default::default()).await.unwrap();
    }
    routes.counted(&mark, "port", 4).await;
    let deleted = async || (routes.count(&mark, "remove_extraroutes", true) >= 1).then_some(());
    eventually(LIMIT, deleted).await.unwrap();
    // One node joins again. Its port has no trace of the former route.
    drop(ccm);
    let _ccm = routes.run();
    let mark = routes.cloud.mark().unwrap();
    routes.register(spec(names[0], 1)).await;
    routes.until(names[0], "network available", is_available).await;
    routes.counted(&mark, "port", 1).await;
    let mark = routes.cloud.mark().unwrap();
    routes.nodes.delete(names[0], &Default::default()).await.unwrap();
    routes.counted(&mark, "remove_extraroutes", 1).await;
    routes.cloud.delete_servers(&names).await.unwrap();
}
