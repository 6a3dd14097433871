//! Nodes whose servers are deleted, switched off, or not visible.

use std::{path::PathBuf, time::Duration};

use ccm_sim::{
    Action, Fault,
    openstack::{ServerSpec, UserSpec},
};
use ccm_testbed::{
    in_process::InProcess,
    manifests,
    nodes::{self, NodeSpec},
    observe::taints,
    stage::Stage,
};
use cloud_controller_manager::options::{self, Config, Request};
use kube::api::ListParams;
use serde_json::json;

use crate::scene::{Scene, names};

pub(crate) const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Starts the program in this process, with short times for the lifecycle of nodes.
pub(crate) fn run(stage: &Stage, change: impl FnOnce(&mut Config)) -> InProcess {
    let words = [
        "--cloud-provider=openstack".to_owned(),
        format!("--cloud-config={}", stage.cloud_config().display()),
        format!("--kubeconfig={}", stage.control_plane.kubeconfig().display()),
        "--secure-port=0".to_owned(),
    ];
    let providers = cloud_controller_manager::providers::registered().unwrap();
    let request = options::parse(words.into_iter().map(Into::into), &providers).unwrap();
    let Request::Run(mut config) = request else {
        panic!("not a request to run")
    };
    config.lifecycle.monitor_period = Duration::from_millis(200);
    config.lifecycle.deletion_confirm = Duration::from_millis(500);
    config.lifecycle.deletion_grace = Some(Duration::ZERO);
    change(&mut config);
    InProcess::start(cloud_controller_manager::run(*config)).unwrap()
}

/// Adds servers and their initialized nodes. Returns the servers' IDs.
async fn initialized_nodes(scene: &Scene, names: &[String]) -> Vec<String> {
    let ids: Vec<_> = names
        .iter()
        .map(|name| scene.cloud.create_server(&ServerSpec::named(name)).unwrap())
        .collect();
    let specs: Vec<_> = names.iter().zip(&ids).map(|(name, id)| node(name, id)).collect();
    nodes::register(&scene.client, &specs).await.unwrap();
    ids
}

fn node(name: &str, id: &str) -> NodeSpec {
    NodeSpec {
        provider_id: Some(format!("openstack:///{id}")),
        uninitialized: false,
        ..NodeSpec::new(name)
    }
}

async fn silence(scene: &Scene, names: &[String]) {
    for name in names {
        nodes::set_ready(&scene.client, name, false).await.unwrap();
    }
}

async fn deleted(scene: &Scene, name: &str) {
    let check = async || scene.nodes.get_opt(name).await.ok()?.is_none().then_some(());
    scene.eventually(&format!("{name} is deleted"), check).await;
}

async fn count(scene: &Scene) -> usize {
    scene.nodes.list(&ListParams::default()).await.unwrap().items.len()
}

/// Waits for so many requests to Nova.
async fn requests(scene: &Scene, times: usize) {
    let before = scene.cloud.calls().len();
    scene.cloud.wait_for_calls(|calls| calls.len() >= before + times).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_deleted_server_is_deleted_and_that_of_a_stopped_one_is_tainted() {
    let scene = Scene::set().await;
    let nodes = names("node", 6);
    let ids = initialized_nodes(&scene, &nodes).await;
    let _ccm = run(&scene.stage, |_| {});
    scene.cloud.delete_server(&ids[0]).unwrap();
    scene.cloud.set_status(&ids[1], "SHUTOFF").unwrap();
    silence(&scene, &nodes[..3]).await;
    deleted(&scene, &nodes[0]).await;
    scene.node(&nodes[1], "tainted", |node| taints(node).contains(&SHUTDOWN)).await;
    scene.cloud.set_status(&ids[1], "ACTIVE").unwrap();
    nodes::set_ready(&scene.client, &nodes[1], true).await.unwrap();
    scene.node(&nodes[1], "not tainted", |node| !taints(node).contains(&SHUTDOWN)).await;
    assert_eq!(count(&scene).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_not_ready_costs_one_read_of_its_server() {
    let scene = Scene::set().await;
    let nodes = names("node", 20);
    initialized_nodes(&scene, &nodes).await;
    let _ccm = run(&scene.stage, |config| {
        config.controllers.disabled.insert("cloud-node-controller");
    });
    scene.cloud.wait_for_calls(|calls| !calls.is_empty()).await;
    scene.cloud.clear_calls();
    silence(&scene, &nodes[..1]).await;
    scene
        .cloud
        .wait_for_calls(|calls| calls.iter().filter(|call| call.op == "server_get").count() >= 4)
        .await;
    let counts = scene.cloud.call_counts();
    let others: Vec<_> = counts
        .iter()
        .filter(|(op, _)| !["server_get", "token_create", "version_list"].contains(&op.as_str()))
        .collect();
    assert!(others.is_empty(), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_without_some_servers_delete_no_node() {
    for all in [true, false] {
        let scene = Scene::set().await;
        let nodes = names("node", 40);
        let (half, _) = nodes.split_at(20);
        if all {
            initialized_nodes(&scene, &nodes).await;
        }
        // From now on, every listing is empty or has half of the servers.
        else {
            initialized_nodes(&scene, half).await;
        }
        let stale = Fault::on(
            "server_list",
            if all {
                Action::Status {
                    code: 200,
                    body: Some(json!({"servers": []}).to_string()),
                    headers: [("content-type".to_owned(), "application/json".to_owned())].into(),
                }
            } else {
                Action::StaleRead
            },
        );
        scene.cloud.add_fault(stale);
        if !all {
            initialized_nodes(&scene, &nodes[20..]).await;
        }
        let _ccm = run(&scene.stage, |config| {
            config.controllers.disabled.insert("cloud-node-controller");
        });
        silence(&scene, &nodes).await;
        // Twice each, by id.
        scene
            .cloud
            .wait_for_calls(|calls| calls.iter().filter(|call| call.op == "server_get").count() >= 40)
            .await;
        requests(&scene, 20).await;
        assert_eq!(count(&scene).await, 40);
        assert!(scene.warnings().await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_down_cell_stay() {
    let scene = Scene::set().await;
    let nodes = names("dark", 3);
    let ids: Vec<_> = nodes
        .iter()
        .map(|name| {
            let spec = ServerSpec {
                cell: Some("cell2".to_owned()),
                ..ServerSpec::named(name)
            };
            scene.cloud.create_server(&spec).unwrap()
        })
        .collect();
    let specs: Vec<_> = nodes.iter().zip(&ids).map(|(name, id)| node(name, id)).collect();
    nodes::register(&scene.client, &specs).await.unwrap();
    let others = names("lit", 10);
    let lit = initialized_nodes(&scene, &others).await;
    scene.cloud.set_cell_up("cell2", false);
    let _ccm = run(&scene.stage, |_| {});
    silence(&scene, &nodes).await;
    requests(&scene, 12).await;
    // A node whose server is deleted is deleted meanwhile.
    scene.cloud.delete_server(&lit[0]).unwrap();
    silence(&scene, &others[..1]).await;
    deleted(&scene, &others[0]).await;
    assert_eq!(count(&scene).await, 12);
}

/// Checks that no node is deleted although every ID is unknown, and that Events name the cloud and the project.
async fn all_deletions_are_blocked(scene: &Scene, nodes: &[String], ids_known: usize) {
    let _ccm = run(&scene.stage, |_| {});
    silence(scene, &nodes[..ids_known]).await;
    for name in &nodes[..ids_known] {
        let message = scene.event(name, "NodeDeletionPaused").await.message.unwrap();
        assert!(message.contains("credentials") && message.contains("kubectl delete node"), "{message}");
        assert!(message.contains(&scene.cloud.auth_url()) && message.contains("project"), "{message}");
    }
    requests(scene, 10).await;
    assert_eq!(count(scene).await, nodes.len());
    let events = ListParams::default().fields("reason=DeletingNode");
    assert!(scene.events.list(&events).await.unwrap().items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_credentials_of_another_project_delete_no_node() {
    let scene = Scene::set().await;
    let nodes = names("node", 8);
    initialized_nodes(&scene, &nodes).await;
    let project = scene.cloud.create_project("other");
    let user = UserSpec {
        name: "stranger".to_owned(),
        password: "secret".to_owned(),
        projects: Some(vec![project]),
        ..UserSpec::default()
    };
    scene.cloud.create_user(&user).unwrap();
    let config = format!(
        "[Global]\nauth-url={}\nusername=stranger\npassword=secret\ntenant-name=other\ndomain-name=Default\nregion={}\n",
        scene.cloud.auth_url(),
        scene.cloud.region()
    );
    scene.stage.write_cloud_config(&config).unwrap();
    all_deletions_are_blocked(&scene, &nodes, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_region_deletes_no_node() {
    let scene = Scene::set().await;
    let nodes = names("node", 3);
    initialized_nodes(&scene, &nodes).await;
    scene.cloud.create_region("RegionTwo").unwrap();
    let config = scene.cloud.cloud_conf().replace(&scene.cloud.region(), "RegionTwo");
    scene.stage.write_cloud_config(&config).unwrap();
    all_deletions_are_blocked(&scene, &nodes, 3).await;
}

/// Applies the account's role with these verbs for nodes.
async fn apply_role(scene: &Scene, verbs: &[&str]) {
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": verbs},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    ]);
    manifests::cluster_role(&scene.client, "ccm", &rules).await.unwrap();
}

/// The kubeconfig of an account that may not delete nodes.
async fn without_deletion(scene: &Scene) -> PathBuf {
    apply_role(scene, &["get", "list", "watch", "patch"]).await;
    manifests::bind(&scene.client, "kube-system", "ccm", "ccm").await.unwrap();
    scene.stage.control_plane.service_account_kubeconfig("kube-system", "ccm").await.unwrap()
}

/// Grants this right to the account.
async fn grant_deletion(scene: &Scene) {
    apply_role(scene, &["get", "list", "watch", "patch", "delete"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_many_nodes_cost_one_attempt_at_a_time_and_one_warning() {
    let scene = Scene::set().await;
    let nodes = names("node", 12);
    let ids = initialized_nodes(&scene, &nodes).await;
    let kubeconfig = without_deletion(&scene).await;
    let _ccm = run(&scene.stage, |config| {
        config.api_server.kubeconfig = Some(kubeconfig);
    });
    for id in &ids[..5] {
        scene.cloud.delete_server(id).unwrap();
    }
    silence(&scene, &nodes[..5]).await;
    let tries = || {
        let log = scene.stage.control_plane.audit_log().unwrap();
        let tries = log.iter().filter(|entry| entry.verb == "delete" && entry.code == 403);
        tries.map(|entry| entry.name.clone()).collect::<Vec<_>>()
    };
    let first = scene
        .eventually("refused", async || Some(tries()).filter(|tries| !tries.is_empty()))
        .await;
    scene
        .eventually("another attempt", async || (tries().len() > first.len()).then_some(()))
        .await;
    // As many as the brake allows at once, and then one.
    assert!(tries().len() <= 4, "{:?}", tries());
    let failed = ListParams::default().fields("reason=DeletingNodeFailed");
    assert_eq!(scene.events.list(&failed).await.unwrap().items.len(), 1);
    grant_deletion(&scene).await;
    let fewer = async || (count(&scene).await < nodes.len()).then_some(());
    scene.eventually("a node is deleted", fewer).await;
}
