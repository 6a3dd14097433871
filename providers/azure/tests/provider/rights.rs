//! The role in `deploy/azure` has all actions that the program uses, and no others.

use ccm_core::{
    Environment, Freshness, InstanceState, Priority,
    routes::{DesiredRoute, NextHop, RouteChanges, RouteNode},
    testkit::{
        self,
        cluster::{TestCluster, advance_to, annotate, service},
    },
};
use serde_json::{Value, json};

use crate::{
    stage::{Stage, provider_id, query},
    subscription::{NETWORK, node_of},
};

fn actions() -> Vec<String> {
    let role: Value = serde_json::from_str(include_str!("../../../../deploy/azure/role.json")).unwrap();
    serde_json::from_value(role["Actions"].clone()).unwrap()
}

async fn permit(stage: &Stage, actions: &[String]) {
    let permissions = json!({"permissions": [{"actions": actions, "notActions": []}]});
    stage.server.control::<Value>("settings", &permissions).await.unwrap();
}

/// Does all that the program does. Returns the first failure.
async fn work(stage: &Stage, step: usize) -> Result<(), String> {
    let machines = &stage.server.machines;
    let all: Vec<_> = machines
        .iter()
        .map(|machine| query(&machine.name, Some(&provider_id(&machine.id))))
        .collect();
    let by_name: Vec<_> = machines.iter().map(|machine| query(&machine.name, None)).collect();
    let mut answers = stage.describe(&all).await;
    answers.extend(stage.describe(&by_name).await);
    // Each alone: targeted reads.
    for one in all {
        answers.push(stage.ask(one).await);
    }
    for answer in answers {
        match answer {
            Ok(InstanceState::Present(_)) => {}
            other => return Err(format!("{other:?}")),
        }
    }
    let route = DesiredRoute {
        destination: format!("10.244.{step}.0/24").parse().unwrap(),
        next_hop: NextHop::new("10.240.0.4"),
        node: std::sync::Arc::new(RouteNode::default()),
    };
    let changes = RouteChanges {
        create: vec![route],
        ..RouteChanges::default()
    };
    let routes = stage.cloud.routes().unwrap();
    routes.observe(&[], Priority::User).await.map_err(|error| error.report())?;
    let mut created = routes.apply(&changes, Priority::User).await.created;
    created.remove(0).map_err(|error| error.report())?;
    for pools in ["nodeIPConfiguration", "nodeIP"] {
        balance(stage, pools).await?;
    }
    Ok(())
}

/// Creates and deletes load balancers with pools of a kind, in a process without state.
async fn balance(stage: &Stage, pools: &str) -> Result<(), String> {
    let conf = std::fs::read_to_string(stage.file()).unwrap();
    let conf = format!("{conf}{NETWORK}loadBalancerBackendPoolConfigurationType: {pools}\n");
    let cloud = testkit::build("azure", &conf, Environment::default()).await.unwrap();
    let mut cluster = TestCluster::new(cloud, advance_to);
    cluster.nodes = stage.server.machines.iter().map(node_of).collect();
    cluster.services.push(service("web", &[80]));
    let mut internal = service("internal", &[80]);
    let key = "service.beta.kubernetes.io/azure-load-balancer-internal";
    annotate(&mut internal, key, Some("true"));
    annotate(&mut internal, "service.beta.kubernetes.io/azure-pls-create", Some("true"));
    cluster.services.push(internal);
    refuse_private_links(stage).await;
    for deleting in [false, true] {
        if deleting {
            connect(stage).await;
            cluster.read.freshness = Freshness::now();
        }
        for service in &mut cluster.services {
            service.deleting = deleting;
        }
        cluster.settle().await.map_err(|error| error.report())?;
        if let Some(complaint) = cluster.complaints().first() {
            return Err(complaint.clone());
        }
    }
    Ok(())
}

/// Enables the network policies of the subnet, which the program disables for its private link services.
async fn refuse_private_links(stage: &Stage) {
    let id = stage.server.network_id("virtualNetworks/vnet");
    let docs: Value = stage.server.control_get("docs").await.unwrap();
    let mut network = docs[id.to_lowercase()].clone();
    network["properties"]["subnets"][0]["properties"]["privateLinkServiceNetworkPolicies"] = json!("Enabled");
    stage.server.patch(&id, &network).await.unwrap();
}

/// Adds the connection of a private endpoint to the private link service.
async fn connect(stage: &Stage) {
    let id = stage.server.network_id("privateLinkServices/pls-auidinternal");
    let connection = json!({
        "id": format!("{id}/privateEndpointConnections/consumer"),
        "name": "consumer",
        "etag": "W/\"1\"",
        "type": "Microsoft.Network/privateLinkServices/privateEndpointConnections",
        "properties": {"provisioningState": "Succeeded"},
    });
    let merge = json!({"properties": {"privateEndpointConnections": [connection]}});
    stage.server.patch(&id, &merge).await.unwrap();
}

#[tokio::test]
async fn all_actions_of_the_role_are_needed_and_no_others() {
    let stage = Stage::new(&["--uniform=3", "--flex=2", "--standalone=2"], "").await;
    // An interface and an instance with a public address.
    let address = stage.server.network_id("publicIPAddresses/of-node");
    let body = json!({
        "location": "eastus", "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"},
    });
    let put = ccm_core::client::rest::reqwest::Method::PUT;
    stage.server.call(put, &address, Some(&body)).await.unwrap();
    let interface = stage.server.network_id("networkInterfaces/vm-0-nic");
    let mut document = stage.server.document(&interface).await.unwrap();
    document["properties"]["ipConfigurations"][0]["properties"]["publicIPAddress"] = json!({"id": address});
    stage.server.patch(&interface, &document).await.unwrap();
    let first = stage.server.machines[0].id.clone();
    let docs: Value = stage.server.control_get("docs").await.unwrap();
    let mut instance = docs[first.to_lowercase()].clone();
    instance["properties"]["networkProfileConfiguration"]["networkInterfaceConfigurations"][0]["properties"]
        ["ipConfigurations"][0]["properties"]["publicIPAddressConfiguration"] = json!({"name": "public"});
    stage.server.patch(&first, &instance).await.unwrap();

    let actions = actions();
    permit(&stage, &actions).await;
    work(&stage, 0).await.unwrap();
    let external = stage.find("pool-a000000", None).await;
    let shown: Vec<_> = external.addresses.iter().map(|address| address.address.as_str()).collect();
    assert_eq!(shown, ["pool-a000000", "10.240.0.4", "20.60.0.0"]);
    // Azure checks these where a resource refers to another one, and the server does not.
    let is_linked = |action: &&String| action.ends_with("/join/action");
    for (step, action) in actions.iter().filter(|action| !is_linked(action)).enumerate() {
        let others: Vec<_> = actions.iter().filter(|other| *other != action).cloned().collect();
        permit(&stage, &others).await;
        let refused = work(&stage, step + 1).await;
        assert!(refused.is_err_and(|text| text.contains("AuthorizationFailed")), "{action} is not needed");
        permit(&stage, &actions).await;
        for pools in ["nodeIPConfiguration", "nodeIP"] {
            balance(&stage, pools).await.unwrap();
        }
    }
    stage.end().await;
}
