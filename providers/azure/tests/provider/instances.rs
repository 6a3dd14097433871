//! Nodes: what they get of their machines, and how many calls that costs.

use std::sync::Arc;

use ccm_core::{
    ErrorKind, InstanceState, Need, NodeView, Power, Priority,
    instances::InstanceQuery,
    testkit::nodes::{node_view, query as query_for},
};
use serde_json::json;

use crate::stage::{Stage, present, provider_id, query};

const CLUSTER: [&str; 3] = ["--uniform=3", "--flex=2", "--standalone=2"];

fn with_label(name: &str, id: Option<&str>, key: &str, value: &str) -> InstanceQuery {
    let view = NodeView {
        labels: [(key.to_owned(), value.to_owned())].into_iter().collect(),
        ..NodeView::clone(&node_view(name, id))
    };
    InstanceQuery {
        node: Arc::new(view),
        need: Need::Metadata,
    }
}

fn shown(instance: &ccm_core::Instance) -> Vec<String> {
    instance
        .addresses
        .iter()
        .map(|address| format!("{} {}", address.kind, address.address))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_all_kinds_of_machines_by_name() {
    let stage = Stage::new(&[CLUSTER.as_slice(), &["--ipv6"]].concat(), "").await;
    for machine in &stage.server.machines {
        let instance = stage.find(&machine.name, None).await;
        assert_eq!(instance.provider_id, provider_id(&machine.id));
        assert_eq!(instance.zone, machine.zone, "{machine:?}");
        assert_eq!(instance.region.as_deref(), Some("eastus"));
        assert_eq!(instance.instance_type.as_deref(), Some("Standard_D2s_v3"));
        let addresses = [
            format!("Hostname {}", machine.name),
            format!("InternalIP {}", machine.ips[0]),
            format!("InternalIP {}", machine.ips[1]),
        ];
        assert_eq!(shown(&instance), addresses);
        assert!(!instance.enforces_address_order, "another writer may have another order");
        assert!(instance.labels.is_empty());
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_cost_one_list_of_each_kind() {
    let stage = Stage::new(&CLUSTER, "").await;
    let machines = stage.server.machines.clone();
    let queries: Vec<_> = machines
        .iter()
        .map(|machine| query(&machine.name, Some(&provider_id(&machine.id))))
        .collect();
    for answer in stage.describe(&queries).await {
        present(answer);
    }
    assert_eq!(
        stage.calls().await,
        [
            "LIST networkInterfaces 1",
            "LIST virtualMachineScaleSets 1",
            "LIST virtualMachineScaleSets/networkInterfaces 1",
            "LIST virtualMachineScaleSets/virtualMachines 1",
            "LIST virtualMachines 1",
        ]
    );
    // Whether they exist costs no interfaces, and one node no list.
    let existence: Vec<_> = machines
        .iter()
        .map(|machine| query_for(&machine.name, Some(&provider_id(&machine.id)), Need::Existence))
        .collect();
    for answer in stage.describe(&existence).await {
        present(answer);
    }
    assert_eq!(stage.calls().await.len(), 3);
    present(stage.ask(existence[0].clone()).await);
    assert_eq!(stage.calls().await, ["GET virtualMachineScaleSets/virtualMachines 1"]);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn public_addresses_follow_their_private_ones() {
    let stage = Stage::new(&["--standalone=3"], "").await;
    let machine = stage.server.machines[1].clone();
    let address = stage.server.network_id("publicIPAddresses/of-node");
    let body = json!({
        "location": "eastus", "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"},
    });
    stage.server.call(reqwest_put(), &address, Some(&body)).await.unwrap();
    let document = stage.server.document(&address).await.unwrap();
    let ip = document["properties"]["ipAddress"].as_str().unwrap();
    let interface = stage.server.network_id(&format!("networkInterfaces/{}-nic", machine.name));
    let mut document = stage.server.document(&interface).await.unwrap();
    document["properties"]["ipConfigurations"][0]["properties"]["publicIPAddress"] =
        json!({"id": address.to_uppercase()});
    stage.server.patch(&interface, &document).await.unwrap();
    let expected = [
        format!("Hostname {}", machine.name),
        format!("InternalIP {}", machine.ips[0]),
        format!("ExternalIP {ip}"),
    ];
    assert_eq!(shown(&stage.find(&machine.name, None).await), expected);
    // Read with a list of all interfaces, it is the same.
    let queries: Vec<_> = stage.server.machines.iter().map(|machine| query(&machine.name, None)).collect();
    let answers = stage.describe(&queries).await;
    assert_eq!(shown(&present(answers[1].clone())), expected);
}

fn reqwest_put() -> ccm_core::client::rest::reqwest::Method {
    ccm_core::client::rest::reqwest::Method::PUT
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_fails_concerns_only_its_machines() {
    let stage = Stage::new(&["--uniform=2", "--standalone=3"], "").await;
    let fault = json!({
        "method": "GET", "type": "networkInterfaces", "status": 403, "code": "AuthorizationFailed", "times": 10,
    });
    stage.server.control::<serde_json::Value>("fault", &fault).await.unwrap();
    let queries: Vec<_> = stage.server.machines.iter().map(|machine| query(&machine.name, None)).collect();
    let answers = stage.describe(&queries).await;
    for (machine, answer) in stage.server.machines.iter().zip(answers) {
        if machine.name.starts_with("pool-a") {
            present(answer);
        } else {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_404_of_azure_for_the_machine_means_absent() {
    let stage = Stage::new(&["--uniform=2", "--standalone=1"], "").await;
    let [first, second, own] = stage.server.machines.as_slice() else {
        panic!("{:?}", stage.server.machines);
    };
    stage.server.delete(&first.id).await.unwrap();
    let absent = stage.ask(query(&first.name, Some(&provider_id(&first.id)))).await;
    assert_eq!(absent.unwrap(), InstanceState::Absent);
    // Anything else than that is an error: another 404, a refusal, a subscription that is not visible.
    for (status, code, kind) in [
        (404, "InvalidResourceType", ErrorKind::Unavailable),
        (404, "SubscriptionNotFound", ErrorKind::PermissionDenied),
        (403, "AuthorizationFailed", ErrorKind::PermissionDenied),
    ] {
        let fault = json!({"method": "GET", "type": "*", "status": status, "code": code, "times": 10});
        stage.server.control::<serde_json::Value>("fault", &fault).await.unwrap();
        let answer = stage.ask(query(&own.name, Some(&provider_id(&own.id)))).await;
        assert_eq!(answer.unwrap_err().kind(), kind, "{status} {code}");
        stage.server.control::<serde_json::Value>("faults", &json!({})).await.unwrap();
    }
    // The scale set is deleted with its instances.
    let set = second.id.split("/virtualMachines/").next().unwrap();
    stage.server.delete(set).await.unwrap();
    stage.server.delete(&second.id).await.unwrap();
    let absent = stage.ask(query(&second.name, Some(&provider_id(&second.id)))).await;
    assert_eq!(absent.unwrap(), InstanceState::Absent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_lacks_a_machine_deletes_nothing() {
    let stage = Stage::new(&["--standalone=6", "--page=2"], "").await;
    let machines = stage.server.machines.clone();
    let queries: Vec<_> = machines
        .iter()
        .map(|machine| query(&machine.name, Some(&provider_id(&machine.id))))
        .collect();
    // The machine is missing in the list only.
    stage
        .server
        .control::<serde_json::Value>("unlist", &json!({"id": machines[4].id}))
        .await
        .unwrap();
    for answer in stage.describe(&queries).await {
        present(answer);
    }
    stage.server.delete(&machines[5].id).await.unwrap();
    let answers = stage.describe(&queries).await;
    assert_eq!(answers[5].clone().unwrap(), InstanceState::Absent);
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Ok(InstanceState::Present(_)))).count(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_machines_of_all_kinds() {
    let stage = Stage::new(&["--uniform=1", "--flex=1", "--standalone=1"], "").await;
    for machine in &stage.server.machines {
        stage.server.power(&machine.id, "deallocated").await.unwrap();
        assert_eq!(stage.find(&machine.name, None).await.power, Power::Off, "{machine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_ids_that_exclude_a_node() {
    let stage = Stage::new(&["--standalone=1"], "").await;
    let machine = &stage.server.machines[0];
    for unmanaged in [
        with_label("on-premises", None, "kubernetes.azure.com/managed", "False"),
        query("elsewhere", Some("kind://x/y")),
    ] {
        assert_eq!(stage.ask(unmanaged).await.unwrap(), InstanceState::Unmanaged);
    }
    let other = provider_id(&machine.id).replace("11111111", "22222222");
    let error = stage.ask(query(&machine.name, Some(&other))).await.unwrap_err();
    assert!(error.report().contains("another subscription"), "{error}");
    assert!(stage.calls().await.is_empty());
    // A group that does not exist is no error for nodes of other groups.
    let strange = with_label("strange", None, "kubernetes.azure.com/resource-group", "No-Such-Group");
    let answers = stage.describe(&[strange, query(&machine.name, None)]).await;
    assert_eq!(answers[0].clone().unwrap(), InstanceState::Unresolved);
    present(answers[1].clone());
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_are_not_configured_are_not_listed() {
    let stage = Stage::new(&["--uniform=1"], "disableAvailabilitySetNodes: true\n").await;
    stage.find(&stage.server.machines[0].name, None).await;
    let calls = stage.calls().await;
    assert!(!calls.iter().any(|call| call.starts_with("LIST virtualMachines ")), "{calls:?}");
    let stage = Stage::new(&["--flex=1"], "vmType: vmssflex\n").await;
    stage.find(&stage.server.machines[0].name, None).await;
    let calls = stage.calls().await;
    assert!(!calls.iter().any(|call| call.contains("virtualMachineScaleSets")), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_grace_period_of_the_config_is_that_of_deletions() {
    let stage = Stage::new(&[], "nodeInstanceNotFoundGracePeriodInSeconds: 300\n").await;
    assert_eq!(stage.cloud.deletion_grace().as_secs(), 300);
    let routes = stage.cloud.routes().unwrap();
    assert_eq!(routes.unsupported_reason(Priority::User).await.unwrap(), None);
}
