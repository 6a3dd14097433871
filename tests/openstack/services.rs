//! Services under faults: the whole program on the simulated cloud.

use std::time::Duration;

use ccm_sim::{
    Action, Fault,
    openstack::{AppCredentialSpec, BalancerState},
};
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

struct Play {
    scene: Scene,
    services: Api<Service>,
    ccm: Ccm,
}

impl Play {
    /// A cluster of three initialised nodes, and the program.
    async fn begin() -> Self {
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
        self.services
            .create(&PostParams::default(), &service)
            .await
            .unwrap();
    }

    async fn merge(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.services
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn delete(&self, name: &str) {
        self.services
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    async fn service(&self, name: &str, what: &str, condition: impl Fn(&Service) -> bool) -> Service {
        let check = async || {
            let found = self.services.get(name).await.ok();
            found.filter(|service| condition(service))
        };
        self.scene.eventually(&format!("{name}: {what}"), check).await
    }

    async fn served(&self, name: &str) -> Service {
        self.service(name, "served", |service| address(service).is_some())
            .await
    }

    async fn gone(&self, name: &str) {
        let gone = async || matches!(self.services.get_opt(name).await, Ok(None)).then_some(());
        self.scene.eventually(&format!("{name} is gone"), gone).await;
    }

    fn picture(&self) -> Picture {
        Picture::of(&self.scene.cloud, &[])
    }

    /// Nothing is left in the cloud.
    async fn empty(&self) {
        let empty = async || self.picture().is_empty().then_some(());
        self.scene.eventually("nothing is left in the cloud", empty).await;
    }

    /// Members of all pools together.
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
async fn a_service_that_goes_while_it_comes_leaves_nothing_behind() {
    let play = Play::begin().await;
    play.scene
        .cloud
        .configure(|settings| settings.load_balancing.create_time = Duration::from_secs(3));
    play.create("early", 80, |_| {}).await;
    let begun = async || {
        let balancers = play.scene.cloud.load_balancers();
        let balancer = &balancers.first()?.loadbalancer;
        (balancer.provisioning_status == "PENDING_CREATE").then_some(())
    };
    play.scene
        .eventually("its load balancer is being made", begun)
        .await;
    play.delete("early").await;
    play.gone("early").await;
    play.empty().await;
    // The same for one that becomes another type.
    play.create("early", 80, |_| {}).await;
    play.scene
        .eventually("its load balancer is being made", begun)
        .await;
    play.merge("early", json!({"spec": {"type": "ClusterIP"}})).await;
    play.service("early", "let go", |service| !has_finalizer(service))
        .await;
    play.empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_becomes_another_type_gives_everything_back() {
    let play = Play::begin().await;
    play.create("web", 80, |_| {}).await;
    play.served("web").await;
    play.merge("web", json!({"spec": {"type": "ClusterIP"}})).await;
    let service = play
        .service("web", "let go", |service| !has_finalizer(service))
        .await;
    assert_eq!(address(&service), None);
    assert!(service.metadata.annotations.unwrap_or_default().is_empty());
    assert!(play.picture().is_empty(), "{:?}", play.picture());
}

#[tokio::test(flavor = "multi_thread")]
async fn members_stay_while_no_node_is_ready_or_eligible() {
    let play = Play::begin().await;
    play.create("web", 80, |_| {}).await;
    play.served("web").await;
    assert_eq!(play.members(), 3);
    let before = play.picture();
    let client = &play.scene.client;
    for name in names("n", 3) {
        nodes::set_ready(client, &name, false).await.unwrap();
    }
    // Another Service is made after that, on the same nodes.
    play.create("late", 81, |_| {}).await;
    play.served("late").await;
    assert_eq!(
        play.members(),
        6,
        "a node that is not ready is a member all the same"
    );
    play.delete("late").await;
    play.gone("late").await;
    for name in names("n", 3) {
        nodes::set_ready(client, &name, true).await.unwrap();
        let label = json!({"node.kubernetes.io/exclude-from-external-load-balancers": "true"});
        let patch = Patch::Merge(json!({"metadata": {"labels": label}}));
        let params = PatchParams::default();
        play.scene.nodes.patch(&name, &params, &patch).await.unwrap();
    }
    // A port that changes shows that all of that was seen.
    play.merge(
        "web",
        json!({"metadata": {"annotations": {"loadbalancer.openstack.org/connection-limit": "5"}}}),
    )
    .await;
    let changed = async || {
        let balancers = play.scene.cloud.load_balancers();
        (balancers.first()?.listeners.first()?.attributes["connection_limit"] == 5).then_some(())
    };
    play.scene.eventually("the limit is there", changed).await;
    // Those that went while another could still serve may be gone, but the last ones stay.
    let members = play.members();
    assert!(
        (1..=3).contains(&members),
        "{:?}",
        play.picture().differs(&before)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_alone_makes_a_node_a_member_of_the_services_that_ask_for_it() {
    let play = Play::begin().await;
    let selector = json!({"loadbalancer.openstack.org/node-selector": "pool=edge"});
    play.create("edge", 80, |service| {
        service["metadata"]["annotations"] = selector;
    })
    .await;
    play.create("all", 81, |_| {}).await;
    for name in ["edge", "all"] {
        play.served(name).await;
    }
    let members = |service: &str| -> Vec<String> {
        let balancers = play.scene.cloud.load_balancers();
        let own = |one: &&BalancerState| one.loadbalancer.name.ends_with(&format!("_{service}"));
        let found = balancers.iter().find(own).unwrap();
        let mut names: Vec<_> = found.members.iter().map(|member| member.name.clone()).collect();
        names.sort();
        names
    };
    let nodes = names("n", 3);
    assert_eq!((members("edge"), members("all")), (Vec::new(), nodes.clone()));
    play.scene.cloud.clear_calls();
    for (value, expected) in [
        (json!("edge"), &nodes[1..2]),
        (json!("core"), &nodes[..0]),
        (json!("edge"), &nodes[1..2]),
        (Value::Null, &nodes[..0]),
    ] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"pool": value}}}));
        let params = PatchParams::default();
        play.scene.nodes.patch(&nodes[1], &params, &patch).await.unwrap();
        let follows = async || (members("edge") == expected).then_some(());
        play.scene
            .eventually(&format!("members follow the label {value}"), follows)
            .await;
    }
    assert_eq!(members("all"), nodes);
    let counts = play.scene.cloud.call_counts();
    let members = counts
        .iter()
        .filter(|(op, _)| op.starts_with("loadbalancer_member") && !op.ends_with("_list"));
    assert_eq!(members.map(|(_, times)| times).sum::<u64>(), 4, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_another_project_end_no_service() {
    let mut play = Play::begin().await;
    for (name, port) in [("web", 80), ("going", 81)] {
        play.create(name, port, |_| {}).await;
        play.served(name).await;
    }
    play.ccm.kill().unwrap();
    play.delete("going").await;
    let right = format!("{}{CONFIG}", play.scene.cloud.cloud_conf());
    let cloud = &play.scene.cloud;
    let project = cloud.create_project("other");
    cloud.add_member(None, &project).unwrap();
    let spec = AppCredentialSpec {
        name: "other".to_owned(),
        project: Some(project),
        ..AppCredentialSpec::default()
    };
    let credential = cloud.create_app_credential(&spec).unwrap();
    let wrong = format!("{}{CONFIG}", cloud.cloud_conf_for(&credential));
    let before = play.picture();
    play.scene.stage.write_cloud_config(&wrong).unwrap();
    play.scene.cloud.clear_calls();
    play.ccm = play.scene.start(&FLAGS).await;
    for (name, reason) in [
        ("going", "SyncLoadBalancerFailed"),
        ("web", "SyncLoadBalancerFailed"),
    ] {
        play.scene
            .eventually(&format!("{name}: {reason}"), async || {
                (!play.messages(name, reason).await.is_empty()).then_some(())
            })
            .await;
        let service = play.services.get(name).await.unwrap();
        assert!(has_finalizer(&service) && address(&service).is_some(), "{name}");
    }
    let writes = play.scene.cloud.calls();
    let writes: Vec<_> = writes
        .iter()
        .filter(|call| call.service != "identity" && call.method != "GET")
        .collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(play.picture().differs(&before), None);
    // A restart with the right ones, and all goes on.
    play.ccm.kill().unwrap();
    play.scene.stage.write_cloud_config(&right).unwrap();
    play.ccm = play.scene.start(&FLAGS).await;
    play.gone("going").await;
    assert_eq!(play.scene.cloud.load_balancers().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_race_for_a_load_balancer_and_the_owner_leaves_first() {
    let play = Play::begin().await;
    play.create("web", 80, |_| {}).await;
    let web = play.served("web").await;
    let id = web.metadata.annotations.unwrap()[ID].clone();
    let named = |service: &mut Value| service["metadata"]["annotations"] = json!({ID: id});
    // Two may share it, so that one of these has to wait.
    tokio::join!(play.create("one", 81, named), play.create("two", 82, named));
    let settled = async || {
        let mut served = Vec::new();
        for name in ["one", "two"] {
            let service = play.services.get(name).await.ok()?;
            served.extend(address(&service).map(|_| name));
        }
        let [winner] = served.as_slice() else { return None };
        let loser = if *winner == "one" { "two" } else { "one" };
        let told = play.messages(loser, "LoadBalancerChangeBlocked").await;
        (!told.is_empty()).then_some((*winner, loser, told))
    };
    let (winner, loser, told) = play.scene.eventually("one is served, one told", settled).await;
    assert!(told.len() == 1 && told[0].contains("max-shared-lb"), "{told:?}");
    // The owner goes: the load balancer stays, and there is room for the other one.
    play.delete("web").await;
    play.gone("web").await;
    play.served(loser).await;
    let balancers = play.scene.cloud.load_balancers();
    assert_eq!(balancers.len(), 1);
    assert_eq!(balancers[0].loadbalancer.id, id);
    assert_eq!(balancers[0].listeners.len(), 2);
    // One leaves while the other is updated.
    tokio::join!(
        play.delete(winner),
        play.merge(loser, json!({"spec": {"ports": [{"port": 90}]}}))
    );
    play.gone(winner).await;
    let followed = async || {
        let balancers = play.scene.cloud.load_balancers();
        let [only] = balancers.first()?.listeners.as_slice() else {
            return None;
        };
        (only.attributes["protocol_port"] == 90).then_some(())
    };
    play.scene.eventually("its port is followed", followed).await;
    play.delete(loser).await;
    play.gone(loser).await;
    play.empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_value_is_told_once_and_nodes_and_deletion_go_on() {
    let play = Play::begin().await;
    play.create("web", 80, |_| {}).await;
    play.served("web").await;
    let key = "loadbalancer.openstack.org/health-monitor-max-retries";
    play.merge("web", json!({"metadata": {"annotations": {key: "11"}}}))
        .await;
    let told = async || {
        let told = play.messages("web", "SyncLoadBalancerFailed").await;
        told.first().cloned()
    };
    let message = play.scene.eventually("it is told", told).await;
    assert!(message.contains("not between 1 and 10"), "{message}");
    let more = names("more", 1);
    play.scene.servers(&more);
    play.scene.register(&more).await;
    let followed = async || (play.members() == 4).then_some(());
    play.scene.eventually("the node is a member", followed).await;
    let told = play.messages("web", "SyncLoadBalancerFailed").await;
    assert_eq!(told.len(), 1, "{told:?}");
    play.delete("web").await;
    play.gone("web").await;
    play.empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_fails_for_a_while_is_waited_for() {
    let play = Play::begin().await;
    let busy = json!({
        "faultcode": "Client", "faultstring": "Load Balancer x is immutable and cannot be updated.",
        "debuginfo": null,
    });
    let busy = Action::Status {
        code: 409,
        body: Some(busy.to_string()),
        headers: Default::default(),
    };
    for action in [
        Action::status(500),
        Action::status(503),
        busy,
        Action::CommitThenDrop,
    ] {
        let fault = Fault {
            service: Some("load-balancer".to_owned()),
            method: Some("POST".to_owned()),
            count: Some(2),
            ..Fault::new(action.clone())
        };
        let fault = play.scene.cloud.add_fault(fault);
        play.create("web", 80, |_| {}).await;
        play.served("web").await;
        assert_eq!(play.scene.cloud.load_balancers().len(), 1, "{action:?}");
        play.scene.cloud.remove_fault(fault);
        let fault = Fault {
            service: Some("load-balancer".to_owned()),
            method: Some("DELETE".to_owned()),
            count: Some(2),
            ..Fault::new(action)
        };
        let fault = play.scene.cloud.add_fault(fault);
        play.delete("web").await;
        play.gone("web").await;
        play.empty().await;
        play.scene.cloud.remove_fault(fault);
    }
}
