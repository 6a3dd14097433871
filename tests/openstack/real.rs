//! The same against a real OpenStack. It needs `CCM_TEST_OPENSTACK_REAL`, which `cargo xtask test` sets, because it installs
//! packages and starts a dozen services.

use std::env;

use ccm_testbed::{
    nodes::{self, NodeSpec},
    observe::{addresses, eventually, is_initialized, label, provider_id, taints},
    openstack_real::OpenStack,
    stage::Stage,
};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Api, api::ListParams};

use crate::{
    lifecycle,
    scene::{LIMIT, program, read},
};

const SERVERS: u32 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_real_cloud_are_initialized() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        ccm_testbed::cache::say(
            "left out, since CCM_TEST_OPENSTACK_REAL is not set: the test against a real OpenStack",
        );
        return;
    }
    let cloud = OpenStack::start(SERVERS).await.unwrap();
    let servers: Vec<_> = cloud
        .list_servers()
        .await
        .unwrap()
        .into_iter()
        .filter(|server| server.name.starts_with("node-"))
        .collect();
    assert!(servers.len() >= SERVERS as usize, "{servers:?}");
    let stage = Stage::set(program()).await.unwrap();
    stage.write_cloud_config(&read(&cloud.cloud_conf())).unwrap();
    let mut ccm = stage.launch("openstack", &[]).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    let mark = cloud.mark().unwrap();
    let client = stage.control_plane.client().await.unwrap();
    let specs: Vec<_> =
        servers.iter().map(|server| ccm_testbed::nodes::NodeSpec::new(&server.name)).collect();
    ccm_testbed::nodes::register(&client, &specs).await.unwrap();

    let nodes: Api<Node> = Api::all(client);
    let done = async || {
        let items = nodes.list(&ListParams::default()).await.ok()?.items;
        (items.len() == servers.len() && items.iter().all(is_initialized)).then_some(items)
    };
    let nodes = stage.eventually("the nodes are initialized", done).await;
    for server in &servers {
        let node = nodes.iter().find(|node| node.metadata.name.as_ref() == Some(&server.name)).unwrap();
        assert_eq!(provider_id(node), format!("openstack:///{}", server.id));
        assert_eq!(label(node, "topology.kubernetes.io/zone"), Some("nova"));
        assert_eq!(label(node, "topology.kubernetes.io/region"), Some("RegionOne"));
        assert_eq!(label(node, "node.kubernetes.io/instance-type"), Some("m1.small"));
        let shown: Vec<_> = addresses(node).into_iter().map(|(_, address)| address).collect();
        assert!(
            server.addresses.iter().all(|address| shown.contains(&address.as_str())),
            "{shown:?}: {server:?}"
        );
    }
    let calls: Vec<_> = cloud
        .calls_since(&mark)
        .unwrap()
        .into_iter()
        .filter(|call| call.user_agent.starts_with("cloud-controller-manager"))
        .collect();
    assert!(calls.len() < servers.len() * 4, "{calls:?}");
    assert!(calls.iter().all(|call| call.status < 400), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_real_cloud_are_deleted_stopped_and_hidden() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        ccm_testbed::cache::say(
            "left out, since CCM_TEST_OPENSTACK_REAL is not set: the lifecycle test against a real OpenStack",
        );
        return;
    }
    let cloud = OpenStack::start(SERVERS).await.unwrap();
    let names = ["life-deleted", "life-off", "life-well"];
    let mut servers = cloud.create_servers(&names).await.unwrap();
    servers.retain(|server| names.contains(&server.name.as_str()));
    let specs: Vec<_> = servers
        .iter()
        .map(|server| NodeSpec {
            provider_id: Some(format!("openstack:///{}", server.id)),
            uninitialized: false,
            ..NodeSpec::new(&server.name)
        })
        .collect();
    assert_eq!(specs.len(), names.len());
    seen_by_their_own_project(&cloud, &specs).await;
    hidden_from_another_project(&cloud, &specs).await;
    cloud.delete_servers(&names[1..]).await.unwrap();
}

async fn seen_by_their_own_project(cloud: &OpenStack, specs: &[NodeSpec]) {
    let stage = Stage::set(program()).await.unwrap();
    stage.write_cloud_config(&read(&cloud.cloud_conf())).unwrap();
    let client = stage.control_plane.client().await.unwrap();
    nodes::register(&client, specs).await.unwrap();
    let api: Api<Node> = Api::all(client.clone());
    let _ccm = lifecycle::run(&stage, |_| {});
    // While its server runs, a node that is not ready stays unchanged.
    nodes::set_ready(&client, "life-deleted", false).await.unwrap();
    cloud.stop_servers(&["life-off"]).await.unwrap();
    nodes::set_ready(&client, "life-off", false).await.unwrap();
    let tainted = async |expected: bool| {
        let check = async || {
            let node = api.get("life-off").await.ok()?;
            (taints(&node).contains(&lifecycle::SHUTDOWN) == expected).then_some(())
        };
        assert!(eventually(LIMIT, check).await.is_some(), "tainted: {expected}");
    };
    tainted(true).await;
    assert!(api.get_opt("life-deleted").await.unwrap().is_some());
    cloud.start_servers(&["life-off"]).await.unwrap();
    nodes::set_ready(&client, "life-off", true).await.unwrap();
    tainted(false).await;
    cloud.delete_servers(&["life-deleted"]).await.unwrap();
    let deleted = async || api.get_opt("life-deleted").await.ok()?.is_none().then_some(());
    assert!(eventually(LIMIT, deleted).await.is_some(), "the node was not deleted");
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 2);
}

async fn hidden_from_another_project(cloud: &OpenStack, specs: &[NodeSpec]) {
    let stage = Stage::set(program()).await.unwrap();
    stage.write_cloud_config(&read(&cloud.other_cloud_conf())).unwrap();
    let client = stage.control_plane.client().await.unwrap();
    nodes::register(&client, specs).await.unwrap();
    let _ccm = lifecycle::run(&stage, |_| {});
    for spec in specs {
        nodes::set_ready(&client, &spec.name, false).await.unwrap();
    }
    let events: Api<Event> = Api::all(client.clone());
    let blocked = async || {
        let blocked = ListParams::default().fields("reason=NodeDeletionPaused");
        let blocked = events.list(&blocked).await.ok()?.items.len();
        (blocked == specs.len()).then_some(())
    };
    assert!(eventually(LIMIT, blocked).await.is_some(), "no Event was reported");
    let api: Api<Node> = Api::all(client);
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), specs.len());
}
