//! Initialization and refresh of single nodes.

use ccm_sim::openstack::{NetworkSpec, PortSpec, ServerPatch, ServerSpec};
use ccm_testbed::{
    nodes::NodeSpec,
    observe::{addresses, is_initialized, label, provider_id},
};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{
    plan_scene::PlanScene,
    scene::{LIMIT, Scene, names},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_all_data_of_the_cloud() {
    let scene = Scene::set().await;
    let id = scene
        .cloud
        .create_server(&ServerSpec {
            availability_zone: Some("rack 7/b".to_owned()),
            access_ipv4: Some("203.0.113.7".parse().unwrap()),
            metadata: [("hostname".to_owned(), "seven.example".to_owned())].into(),
            ..ServerSpec::named("seven")
        })
        .unwrap();
    let fixed = scene.cloud.port_addresses(&scene.cloud.server_ports(&id)[0])[0];
    let _ccm = scene.start(&[]).await;
    scene.register_one(NodeSpec::new("seven")).await;
    let node = scene.initialized("seven").await;
    assert_eq!(provider_id(&node), format!("openstack:///{id}"));
    for zone in [
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ] {
        assert_eq!(label(&node, zone), Some("rack-7-b"));
    }
    for region in [
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ] {
        assert_eq!(label(&node, region), Some("RegionOne"));
    }
    for kind in [
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
    ] {
        assert_eq!(label(&node, kind), Some("m1.small"));
    }
    let fixed = fixed.to_string();
    let expected = [
        ("InternalIP", fixed.as_str()),
        ("ExternalIP", "203.0.113.7"),
        ("Hostname", "seven.example"),
    ];
    assert_eq!(addresses(&node), expected);
    scene.event("seven", "Synced").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_two_servers_is_refused_until_it_is_unique() {
    let scene = Scene::set().await;
    let ids: Vec<_> =
        (0..2).map(|_| scene.cloud.create_server(&ServerSpec::named("twin")).unwrap()).collect();
    let _ccm = scene.start(&[]).await;
    scene.register_one(NodeSpec::new("twin")).await;
    let event = scene.event("twin", "InvalidSpec").await;
    let message = event.message.unwrap();
    assert!(ids.iter().all(|id| message.contains(id)), "{message}");
    scene.cloud.delete_server(&ids[1]).unwrap();
    let node = scene.initialized("twin").await;
    assert_eq!(provider_id(&node), format!("openstack:///{}", ids[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_not_a_pattern() {
    let scene = Scene::set().await;
    scene.servers(&["node-xy-1".to_owned()]);
    let _ccm = scene.start(&[]).await;
    scene.register_one(NodeSpec::new("node.xy-1")).await;
    scene.event("node.xy-1", "InstanceNotFound").await;
    scene.servers(&["node.xy-1".to_owned()]);
    let node = scene.initialized("node.xy-1").await;
    scene.register_one(NodeSpec::new("node-xy-1")).await;
    let other = scene.initialized("node-xy-1").await;
    assert_ne!(provider_id(&node), provider_id(&other));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_foreign_node_ip_waits() {
    let scene = Scene::set().await;
    scene.servers(&names("ip", 1));
    let id = scene.cloud.create_server(&ServerSpec::named("late")).unwrap();
    let _ccm = scene.start(&[]).await;
    let ip = "10.99.0.9".parse().unwrap();
    scene
        .register_one(NodeSpec {
            node_ip: Some(ip),
            ..NodeSpec::new("late")
        })
        .await;
    let message = scene.event("late", "InvalidNodeIP").await.message.unwrap();
    assert!(message.contains("10.99.0.9"), "{message}");
    // Other nodes do not wait for this one.
    scene.register(&names("ip", 1)).await;
    scene.initialized("ip-1").await;
    let network = NetworkSpec {
        name: "second".to_owned(),
        subnets: vec!["10.99.0.0/24".parse().unwrap()],
        ..NetworkSpec::default()
    };
    scene.cloud.create_network(&network).unwrap();
    let port = PortSpec {
        addresses: Some(vec![ip]),
        ..PortSpec::on("second")
    };
    scene.cloud.attach_port(&id, &port).unwrap();
    let node = scene.initialized("late").await;
    assert_eq!(addresses(&node)[0], ("InternalIP", "10.99.0.9"));
    assert_eq!(addresses(&node).iter().filter(|(kind, _)| *kind == "InternalIP").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_other_clouds_and_regions_stay_unchanged() {
    let scene = Scene::set().await;
    let id = scene.cloud.create_server(&ServerSpec::named("mine")).unwrap();
    let _ccm = scene.start(&[]).await;
    let with_id = |name: &str, id: &str| NodeSpec {
        provider_id: Some(id.to_owned()),
        ..NodeSpec::new(name)
    };
    scene.register_one(with_id("foreign", "aws:///eu-1a/i-0123")).await;
    let message = scene.event("foreign", "ForeignProviderID").await.message.unwrap();
    assert!(message.contains("aws:///eu-1a/i-0123"), "{message}");
    scene.register_one(with_id("elsewhere", &format!("openstack://RegionTwo/{id}"))).await;
    let params = kube::api::ListParams::default().fields("involvedObject.name=elsewhere,type=Warning");
    let event = scene
        .eventually("a warning", async || scene.events.list(&params).await.ok()?.items.pop())
        .await;
    assert!(event.message.unwrap().contains("RegionTwo"));
    // A node's provider ID counts, not its name.
    scene.register_one(with_id("another-name", &format!("openstack:///{id}"))).await;
    scene.initialized("another-name").await;
    for name in ["foreign", "elsewhere"] {
        assert!(!is_initialized(&scene.nodes.get(name).await.unwrap()), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_follows_the_cloud() {
    let scene = Scene::set().await;
    let id = scene.cloud.create_server(&ServerSpec::named("moving")).unwrap();
    let _ccm = scene.start(&["--node-status-update-frequency=1s"]).await;
    scene.register_one(NodeSpec::new("moving")).await;
    scene.initialized("moving").await;
    let port = scene.cloud.server_ports(&id)[0].clone();
    scene.cloud.add_floating(&port, "198.51.100.9".parse().unwrap()).unwrap();
    scene
        .node("moving", "floating IP shown", |node| {
            addresses(node).contains(&("ExternalIP", "198.51.100.9"))
        })
        .await;
    scene
        .cloud
        .update_server(
            &id,
            &ServerPatch {
                flavor: Some("m1.medium".to_owned()),
                ..ServerPatch::default()
            },
        )
        .unwrap();
    scene
        .node("moving", "new type shown", |node| {
            label(node, "node.kubernetes.io/instance-type") == Some("m1.medium")
                && label(node, "beta.kubernetes.io/instance-type") == Some("m1.medium")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_leaves_the_order_of_a_nodes_addresses_unless_the_config_sets_it() {
    let stage = PlanScene::set().await;
    let scene = &stage.scene;
    let ports = Some(vec![PortSpec::default(), PortSpec::default()]);
    let id = scene
        .cloud
        .create_server(&ServerSpec {
            ports,
            ..ServerSpec::named("taken-over")
        })
        .unwrap();
    scene.register_one(NodeSpec::new("taken-over")).await;
    let flags = ["--controllers=cloud-node", "--node-status-update-frequency=1s"];
    let mut ccm = scene.start(&flags).await;
    let node = scene.initialized("taken-over").await;
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());

    // Another program wrote the addresses in reverse order.
    let internal = |node: &Node| -> Vec<String> {
        let all = addresses(node).into_iter();
        let internal = all.filter(|(kind, _)| *kind == "InternalIP");
        internal.map(|(_, address)| address.to_owned()).collect()
    };
    let mut shown = node.status.clone().unwrap().addresses.unwrap();
    shown.reverse();
    let written = json!({"status": {"addresses": shown}});
    let params = PatchParams::default();
    let node = scene.nodes.patch_status("taken-over", &params, &Patch::Merge(written)).await.unwrap();
    let before = internal(&node);
    assert_eq!(before.len(), 2);
    let planned = stage.plan(&["--controllers=cloud-node"]).await.assert_code(0);
    assert!(!planned.text.contains("taken-over"), "{}", planned.text);

    // After another change, the existing addresses keep their order, and the first one stays first.
    let port = scene.cloud.server_ports(&id)[0].clone();
    scene.cloud.add_floating(&port, "198.51.100.9".parse().unwrap()).unwrap();
    let planned = stage.plan(&["--controllers=cloud-node"]).await.assert_code(2);
    let mut ccm = scene.start(&flags).await;
    let node = scene
        .node("taken-over", "floating IP shown", |node| {
            addresses(node).contains(&("ExternalIP", "198.51.100.9"))
        })
        .await;
    assert_eq!(internal(&node), before);
    let new: Vec<_> = addresses(&node).iter().map(|(kind, address)| format!("{kind} {address}")).collect();
    assert!(planned.text.contains(&new.join(", ")), "{new:?}: {}", planned.text);
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());

    // The config sets the other order.
    let conf = scene.cloud.cloud_conf();
    let conf = format!("{conf}\n[Networking]\naddress-sort-order = {}/32\n", before[1]);
    scene.stage.write_cloud_config(&conf).unwrap();
    stage.plan(&["--controllers=cloud-node"]).await.assert_code(2);
    let _ccm = scene.start(&flags).await;
    scene
        .node("taken-over", "the config's order", |node| internal(node)[0] == before[1])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_empty_network_name_new_nodes_get_addresses_and_others_keep_theirs() {
    let scene = Scene::set().await;
    let conf = scene.cloud.cloud_conf();
    let networking = "[Networking]\ninternal-network-name=\"\"\npublic-network-name=\"\"\n";
    scene.stage.write_cloud_config(&format!("{conf}\n{networking}")).unwrap();
    let old = scene.cloud.create_server(&ServerSpec::named("old")).unwrap();
    let port = scene.cloud.server_ports(&old)[0].clone();
    scene.cloud.add_floating(&port, "198.51.100.9".parse().unwrap()).unwrap();

    // The Go program initialized this node: only its floating IP passes the filter.
    let initialized = NodeSpec {
        provider_id: Some(format!("openstack:///{old}")),
        uninitialized: false,
        ..NodeSpec::new("old")
    };
    scene.register_one(initialized).await;
    let written = json!({"status": {"addresses": [{"type": "ExternalIP", "address": "198.51.100.9"}]}});
    let params = PatchParams::default();
    scene.nodes.patch_status("old", &params, &Patch::Merge(written)).await.unwrap();

    let flags = ["--controllers=cloud-node", "--node-status-update-frequency=1s"];
    let mut ccm = scene.start(&flags).await;
    let new = scene.cloud.create_server(&ServerSpec::named("new")).unwrap();
    let fixed = scene.cloud.port_addresses(&scene.cloud.server_ports(&new)[0])[0].to_string();
    scene.register_one(NodeSpec::new("new")).await;
    let node = scene.initialized("new").await;
    assert!(addresses(&node).contains(&("InternalIP", &*fixed)));
    let log = scene.logged("an empty name in a list is no name").await;
    let line = format!(":{}:", conf.lines().count() + 3);
    assert!(log.contains(&line), "{line} in {log}");

    // A refresh reads the label that the node lacks, and leaves the addresses unchanged.
    let host = |node: &Node| label(node, "topology.openstack.org/host-id").is_some();
    let node = scene.node("old", "refreshed", host).await;
    assert_eq!(addresses(&node), [("ExternalIP", "198.51.100.9")]);
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());

    // Without the empty name, the node follows the cloud.
    scene.stage.write_cloud_config(&conf).unwrap();
    let _ccm = scene.start(&flags).await;
    let has_internal = |node: &Node| addresses(node).iter().any(|(kind, _)| *kind == "InternalIP");
    scene.node("old", "internal address shown", has_internal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_down_cell_change_no_node() {
    let scene = Scene::set().await;
    let in_cell = |name: &str, cell: &str| ServerSpec {
        cell: Some(cell.to_owned()),
        ..ServerSpec::named(name)
    };
    scene.cloud.create_server(&in_cell("here", "cell1")).unwrap();
    scene.cloud.create_server(&in_cell("dark", "cell2")).unwrap();
    let _ccm = scene.start(&["--node-status-update-frequency=1s"]).await;
    scene.register(&["here".to_owned(), "dark".to_owned()]).await;
    scene.all_initialized(2).await;
    let before = scene.nodes.get("dark").await.unwrap();
    scene.cloud.set_cell_up("cell2", false);
    scene.cloud.create_server(&in_cell("dark-and-new", "cell2")).unwrap();
    scene.register(&["dark-and-new".to_owned()]).await;
    scene.event("dark-and-new", "InstanceNotFound").await;
    let after = scene.nodes.get("dark").await.unwrap();
    assert_eq!(addresses(&before), addresses(&after));
    assert_eq!(before.metadata.labels, after.metadata.labels);
    scene.cloud.set_cell_up("cell2", true);
    scene.initialized("dark-and-new").await;
}
