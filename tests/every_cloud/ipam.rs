//! Node IPAM: the program gives networks to nodes and creates the routes to them, with the rights that a cluster gives the Go program.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use ccm_testbed::{
    binary::Ccm,
    manifests,
    nodes::{self, NodeSpec},
    stage::Stage,
    test_cloud::TestCloud,
};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::{LIMIT, on_each, program};

/// The controller of the providers that have one.
const CONTROLLER: &str = "node-ipam-controller";

fn has_controller(cloud: &str) -> bool {
    let providers = cloud_controller_manager::providers::registered().unwrap();
    let mut controllers = providers
        .iter()
        .filter(|provider| provider.name == cloud)
        .flat_map(|provider| provider.controllers);
    controllers.any(|controller| controller.names.name == CONTROLLER)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_get_networks_of_the_cluster_and_routes_to_them() {
    on_each(async |cloud| {
        if has_controller(cloud.provider()) {
            give_networks(cloud).await;
        }
    })
    .await;
}

async fn give_networks(cloud: Arc<dyn TestCloud>) {
    let stage = Stage::set(program()).await.unwrap();
    stage.write_cloud_config(&cloud.config()).unwrap();
    let nodes: Api<Node> = Api::all(stage.control_plane.client().await.unwrap());
    let routes = cloud.routes().unwrap();
    let mut machines = Vec::new();
    for at in 1..=3 {
        machines.push(cloud.create_machine(&format!("node-{at}")).await.unwrap());
    }
    let roles = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/every_cloud/roles");
    let role = roles.join(format!("{}.yaml", cloud.provider()));
    let account = manifests::account(&stage.control_plane, &role).await.unwrap();
    let flags = [
        "--controllers=*,-service",
        "--allocate-node-cidrs=true",
        "--cluster-cidr=10.244.0.0/16",
        "--leader-elect=false",
    ];
    let start = async || {
        let mut launch = stage.command(cloud.provider(), &account, &flags);
        launch.envs = cloud.environment();
        let mut ccm = Ccm::start(&launch).unwrap();
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        ccm
    };
    let mut ccm = start().await;
    for machine in &machines {
        nodes::register(&nodes.clone().into_client(), [&NodeSpec::new(&machine.node)])
            .await
            .unwrap();
    }
    let assigned = async || {
        let mut networks = BTreeSet::new();
        for machine in &machines {
            let network = nodes.get_opt(&machine.node).await.ok()??.spec?.pod_cidr?;
            networks.insert((network, machine.id.clone()));
        }
        Some(networks)
    };
    let networks = stage.eventually("all nodes have networks", assigned).await;
    let different: BTreeSet<_> = networks.iter().map(|(network, _)| network).collect();
    assert_eq!(different.len(), machines.len(), "{networks:?}");
    assert!(different.iter().all(|network| network.ends_with(".0/24")), "{networks:?}");
    let routed = async || (routes.table().await.ok()? == networks).then_some(());
    stage.eventually("the routes lead to these networks", routed).await;

    // The next process keeps them, and gives another one to a new node.
    ccm.kill().unwrap();
    let _ccm = start().await;
    let later = cloud.create_machine("node-4").await.unwrap();
    nodes::register(&nodes.clone().into_client(), [&NodeSpec::new(&later.node)])
        .await
        .unwrap();
    let network = async || nodes.get_opt(&later.node).await.ok()??.spec?.pod_cidr;
    let network = stage.eventually("the new node has a network", network).await;
    assert!(!different.contains(&network), "{network} of {networks:?}");
    assert_eq!(assigned().await, Some(networks.clone()));
}
