//! Services under faults: the whole program on the simulated cloud.

use ccm_sim::openstack::{AppCredentialSpec, BalancerState};
use ccm_testbed::{binary::Ccm, nodes, picture::Picture};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::scene::{Scene, names};

const CONFIG: &str = "\n[LoadBalancer]\nmanage-security-groups = true\ncreate-monitor = true\n";
const FLAGS: [&str; 1] = ["--leader-elect=false"];
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const ID: &str = "loadbalancer.openstack.org/load-balancer-id";

struct ServiceScene {
    scene: Scene,
    services: Api<Service>,
    ccm: Ccm,
}

impl ServiceScene {
    /// Starts a cluster of three initialized nodes, and the program.
    async fn start() -> Self {
        let scene = Scene::set().await;
        let conf = format!("{}{CONFIG}", scene.cloud.cloud_conf());
        scene.stage.write_cloud_config(&conf).unwrap();
        let nodes = names("n", 3);
        scene.servers(&nodes);
        scene.register(&nodes).await;
        let ccm = scene.start(&FLAGS).await;
        scene.all_initialized(3).await;
        Self {
            services: Api::default_namespaced(scene.client.clone()),
            scene,
            ccm,
        }
    }

    async fn create(&self, name: &str, port: u16, change: impl FnOnce(&mut Value)) {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"port": port}]},
        });
        change(&mut service);
        let service = serde_json::from_value(service).unwrap();
        self.services.create(&PostParams::default(), &service).await.unwrap();
    }

    async fn merge(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.services.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.services.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn service(&self, name: &str, what: &str, condition: impl Fn(&Service) -> bool) -> Service {
        let check = async || {
            let found = self.services.get(name).await.ok();
            found.filter(|service| condition(service))
        };
        self.scene.eventually(&format!("{name}: {what}"), check).await
    }

    async fn served(&self, name: &str) -> Service {
        self.service(name, "served", |service| address(service).is_some()).await
    }

    async fn deleted(&self, name: &str) {
        let deleted = async || matches!(self.services.get_opt(name).await, Ok(None)).then_some(());
        self.scene.eventually(&format!("{name} is deleted"), deleted).await;
    }

    fn picture(&self) -> Picture {
        Picture::of(&self.scene.cloud, &[])
    }

    /// Waits until the cloud has no objects of Services.
    async fn empty(&self) {
        let empty = async || self.picture().is_empty().then_some(());
        self.scene.eventually("the cloud is empty", empty).await;
    }

    /// The number of the members of all pools.
    fn members(&self) -> usize {
        let balancers = self.scene.cloud.load_balancers();
        balancers.iter().map(|one| one.members.len()).sum()
    }

    async fn messages(&self, service: &str, reason: &str) -> Vec<String> {
        let fields = format!("involvedObject.kind=Service,involvedObject.name={service},reason={reason}");
        let params = ListParams::default().fields(&fields);
        let found = self.scene.events.list(&params).await.unwrap().items;
        found.into_iter().filter_map(|event| event.message).collect()
    }
}

fn address(service: &Service) -> Option<String> {
    let status = service.status.as_ref()?.load_balancer.as_ref()?;
    status.ingress.as_ref()?.first()?.ip.clone()
}

fn has_finalizer(service: &Service) -> bool {
    let mut finalizers = service.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == FINALIZER)
}

#[tokio::test(flavor = "multi_thread")]
async fn members_stay_while_no_node_is_ready_or_eligible() {
    let cluster = ServiceScene::start().await;
    cluster.create("web", 80, |_| {}).await;
    cluster.served("web").await;
    assert_eq!(cluster.members(), 3);
    let before = cluster.picture();
    let client = &cluster.scene.client;
    for name in names("n", 3) {
        nodes::set_ready(client, &name, false).await.unwrap();
    }
    // Another Service is created afterwards, on the same nodes.
    cluster.create("late", 81, |_| {}).await;
    cluster.served("late").await;
    assert_eq!(cluster.members(), 6, "a node that is not ready is a member, too");
    cluster.delete("late").await;
    cluster.deleted("late").await;
    for name in names("n", 3) {
        nodes::set_ready(client, &name, true).await.unwrap();
        let label = json!({"node.kubernetes.io/exclude-from-external-load-balancers": "true"});
        let patch = Patch::Merge(json!({"metadata": {"labels": label}}));
        let params = PatchParams::default();
        cluster.scene.nodes.patch(&name, &params, &patch).await.unwrap();
    }
    // A changed limit proves that all former changes were handled.
    cluster
        .merge(
            "web",
            json!({"metadata": {"annotations": {"loadbalancer.openstack.org/connection-limit": "5"}}}),
        )
        .await;
    let changed = async || {
        let balancers = cluster.scene.cloud.load_balancers();
        (balancers.first()?.listeners.first()?.attributes["connection_limit"] == 5).then_some(())
    };
    cluster.scene.eventually("the limit is set", changed).await;
    // Members may be removed while another node is eligible, but the last ones stay.
    let members = cluster.members();
    assert!((1..=3).contains(&members), "{:?}", cluster.picture().differs(&before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_makes_a_node_a_member_of_the_services_that_select_it() {
    let cluster = ServiceScene::start().await;
    let selector = json!({"loadbalancer.openstack.org/node-selector": "pool=edge"});
    cluster
        .create("edge", 80, |service| {
            service["metadata"]["annotations"] = selector;
        })
        .await;
    cluster.create("all", 81, |_| {}).await;
    for name in ["edge", "all"] {
        cluster.served(name).await;
    }
    let members = |service: &str| -> Vec<String> {
        let balancers = cluster.scene.cloud.load_balancers();
        let own = |one: &&BalancerState| one.loadbalancer.name.ends_with(&format!("_{service}"));
        let found = balancers.iter().find(own).unwrap();
        let mut names: Vec<_> = found.members.iter().map(|member| member.name.clone()).collect();
        names.sort();
        names
    };
    let nodes = names("n", 3);
    assert_eq!((members("edge"), members("all")), (Vec::new(), nodes.clone()));
    cluster.scene.cloud.clear_calls();
    for (value, expected) in [
        (json!("edge"), &nodes[1..2]),
        (json!("core"), &nodes[..0]),
        (json!("edge"), &nodes[1..2]),
        (Value::Null, &nodes[..0]),
    ] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"pool": value}}}));
        let params = PatchParams::default();
        cluster.scene.nodes.patch(&nodes[1], &params, &patch).await.unwrap();
        let follows = async || (members("edge") == expected).then_some(());
        cluster.scene.eventually(&format!("members follow the label {value}"), follows).await;
    }
    assert_eq!(members("all"), nodes);
    let counts = cluster.scene.cloud.call_counts();
    let members = counts
        .iter()
        .filter(|(op, _)| op.starts_with("loadbalancer_member") && !op.ends_with("_list"));
    assert_eq!(members.map(|(_, times)| times).sum::<u64>(), 4, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_another_project_change_no_service() {
    let mut cluster = ServiceScene::start().await;
    for (name, port) in [("web", 80), ("deleted", 81)] {
        cluster.create(name, port, |_| {}).await;
        cluster.served(name).await;
    }
    cluster.ccm.kill().unwrap();
    cluster.delete("deleted").await;
    let right = format!("{}{CONFIG}", cluster.scene.cloud.cloud_conf());
    let cloud = &cluster.scene.cloud;
    let project = cloud.create_project("other");
    cloud.add_member(None, &project).unwrap();
    let spec = AppCredentialSpec {
        name: "other".to_owned(),
        project: Some(project),
        ..AppCredentialSpec::default()
    };
    let credential = cloud.create_app_credential(&spec).unwrap();
    let wrong = format!("{}{CONFIG}", cloud.cloud_conf_for(&credential));
    let before = cluster.picture();
    cluster.scene.stage.write_cloud_config(&wrong).unwrap();
    cluster.scene.cloud.clear_calls();
    cluster.ccm = cluster.scene.start(&FLAGS).await;
    for (name, reason) in [
        ("deleted", "SyncLoadBalancerFailed"),
        ("web", "SyncLoadBalancerFailed"),
    ] {
        cluster
            .scene
            .eventually(&format!("{name}: {reason}"), async || {
                (!cluster.messages(name, reason).await.is_empty()).then_some(())
            })
            .await;
        let service = cluster.services.get(name).await.unwrap();
        assert!(has_finalizer(&service) && address(&service).is_some(), "{name}");
    }
    let writes = cluster.scene.cloud.calls();
    let writes: Vec<_> =
        writes.iter().filter(|call| call.service != "identity" && call.method != "GET").collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(cluster.picture().differs(&before), None);
    // A restart with the right credentials continues.
    cluster.ccm.kill().unwrap();
    cluster.scene.stage.write_cloud_config(&right).unwrap();
    cluster.ccm = cluster.scene.start(&FLAGS).await;
    cluster.deleted("deleted").await;
    assert_eq!(cluster.scene.cloud.load_balancers().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_race_for_a_load_balancer_and_the_owner_leaves_first() {
    let cluster = ServiceScene::start().await;
    cluster.create("web", 80, |_| {}).await;
    let web = cluster.served("web").await;
    let id = web.metadata.annotations.unwrap()[ID].clone();
    let named = |service: &mut Value| service["metadata"]["annotations"] = json!({ID: id});
    // Two Services may share the load balancer, so that one of these has to wait.
    tokio::join!(cluster.create("one", 81, named), cluster.create("two", 82, named));
    let settled = async || {
        let mut served = Vec::new();
        for name in ["one", "two"] {
            let service = cluster.services.get(name).await.ok()?;
            served.extend(address(&service).map(|_| name));
        }
        let [winner] = served.as_slice() else { return None };
        let loser = if *winner == "one" { "two" } else { "one" };
        let reported = cluster.messages(loser, "LoadBalancerChangeBlocked").await;
        (!reported.is_empty()).then_some((*winner, loser, reported))
    };
    let (winner, loser, reported) =
        cluster.scene.eventually("one is served, and one gets an Event", settled).await;
    assert!(reported.len() == 1 && reported[0].contains("max-shared-lb"), "{reported:?}");
    // The owner is deleted. The load balancer stays, and the other Service may use it.
    cluster.delete("web").await;
    cluster.deleted("web").await;
    cluster.served(loser).await;
    let balancers = cluster.scene.cloud.load_balancers();
    assert_eq!(balancers.len(), 1);
    assert_eq!(balancers[0].loadbalancer.id, id);
    assert_eq!(balancers[0].listeners.len(), 2);
    // One Service is deleted while the other is updated.
    tokio::join!(cluster.delete(winner), cluster.merge(loser, json!({"spec": {"ports": [{"port": 90}]}})));
    cluster.deleted(winner).await;
    let follows = async || {
        let balancers = cluster.scene.cloud.load_balancers();
        let [only] = balancers.first()?.listeners.as_slice() else {
            return None;
        };
        (only.attributes["protocol_port"] == 90).then_some(())
    };
    cluster.scene.eventually("the listener has the new port", follows).await;
    cluster.delete(loser).await;
    cluster.deleted(loser).await;
    cluster.empty().await;
}
