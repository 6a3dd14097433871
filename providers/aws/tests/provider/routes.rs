//! Route tables with realistic content.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{
    Cloud, ErrorKind,
    routes::{Applied, ClusterCidrs, RouteNode, RoutePlan},
    testkit::{
        nodes::node_view,
        routes::{self, assert_all_ok},
    },
};
use ccm_testbed::{
    moto::Machine,
    observe::assert_has,
    proxy::{Action, Request, Rule},
};
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::{
    conformance::table,
    stage::{CLUSTER, Stage, refusal},
};
fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A pass of the route controller.
async fn pass(cloud: &dyn Cloud, nodes: &[Arc<RouteNode>]) -> ccm_core::Result<(RoutePlan, Applied)> {
    let cidrs = ClusterCidrs::parse("10.244.0.0/16,fd44::/48").unwrap();
    routes::pass(cloud, &cidrs, nodes).await
}

async fn nodes(stage: &Stage, count: usize) -> Vec<Arc<RouteNode>> {
    let names: Vec<String> = (1..=count).map(|i| format!("r-{i}")).collect();
    let machines = stage.launch_all(&names).await;
    let node = |(i, (name, _, id, zone)): (usize, Machine)| {
        Arc::new(RouteNode {
            view: node_view(&name, Some(&format!("aws:///{zone}/{id}"))),
            pod_cidrs: vec![
                net(&format!("10.244.{i}.0/24")),
                net(&format!("fd44:0:0:{i:x}::/64")),
            ],
            created: i64::try_from(i).unwrap(),
            ..RouteNode::default()
        })
    };
    (1..).zip(machines).map(node).collect()
}

fn instance(node: &RouteNode) -> String {
    let id = node.view.provider_id.as_deref().unwrap();
    id.rsplit('/').next().unwrap().to_owned()
}

/// One more table with this tag.
async fn another_table(stage: &Stage, key: &str, value: &str) {
    let tags = json!([{"ResourceType": "route-table", "Tags": [{"Key": key, "Value": value}]}]);
    let arguments = json!({"VpcId": stage.account.id("VPC"), "TagSpecifications": tags});
    stage.call("ec2", "create_route_table", arguments).await;
}

/// The targets of the routes.
async fn targets(stage: &Stage) -> Vec<String> {
    let routes = table(stage).await.unwrap().into_iter();
    routes.map(|(_, to)| to).collect()
}

async fn checks(stage: &Stage, id: &str) -> Value {
    let arguments = json!({"InstanceId": id, "Attribute": "sourceDestCheck"});
    let found = stage.call("ec2", "describe_instance_attribute", arguments).await;
    found["SourceDestCheck"]["Value"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_both_families_are_created_in_all_tables() {
    let stage = Stage::new(0, "").await;
    another_table(&stage, &format!("kubernetes.io/cluster/{CLUSTER}"), "shared").await;
    another_table(&stage, "KubernetesCluster", CLUSTER).await;
    let nodes = nodes(&stage, 2).await;
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 4);
    assert_eq!(stage.count("CreateRoute"), 12);
    assert_eq!(table(&stage).await.unwrap().len(), 8);
    assert_eq!(checks(&stage, &instance(&nodes[0])).await, json!(false));
    stage.account.proxy.forget();
    // Without changes, a pass needs one request; a process without state needs one more.
    assert_eq!(assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap()), 0);
    let restarted = stage.restarted().await.unwrap();
    assert_eq!(assert_all_ok(&pass(&*restarted, &nodes).await.unwrap()), 0);
    // A pass without changes applies nothing, but reads the tables.
    assert_eq!(stage.account.proxy.writes().len(), 0);
    // A table that lacks a route gets it.
    let (destination, _) = table(&stage).await.unwrap().remove(0);
    let filter = json!({"Filters": [{"Name": "tag-value", "Values": ["shared"]}]});
    let found = stage.call("ec2", "describe_route_tables", filter).await;
    let id = found["RouteTables"][0]["RouteTableId"].clone();
    let key = match destination {
        IpNet::V4(_) => "DestinationCidrBlock",
        IpNet::V6(_) => "DestinationIpv6CidrBlock",
    };
    let arguments = json!({"RouteTableId": id, key: destination.to_string()});
    stage.call("ec2", "delete_route", arguments).await;
    let done = pass(&*stage.cloud, &nodes).await.unwrap();
    assert_eq!((assert_all_ok(&done), done.0.changes.finish.len()), (1, 1));
    assert_eq!(table(&stage).await.unwrap().len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_moves_is_replaced() {
    let stage = Stage::new(0, "").await;
    let mut nodes = nodes(&stage, 2).await;
    let _ = assert_all_ok(&pass(&*stage.cloud, &nodes[..1]).await.unwrap());
    let moved = RouteNode {
        pod_cidrs: nodes[0].pod_cidrs.clone(),
        ..RouteNode::clone(&nodes[1])
    };
    nodes = vec![Arc::new(moved)];
    stage.account.proxy.forget();
    let _ = assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap());
    assert_eq!((stage.count("ReplaceRoute"), stage.count("DeleteRoute")), (2, 0));
    assert_eq!(targets(&stage).await, [instance(&nodes[0]), instance(&nodes[0])]);
    // A route that somebody deleted meanwhile.
    let missing =
        "There is no route defined for '10.244.1.0/24' in the route table. Use CreateRoute instead.";
    let rule = stage.answer("ReplaceRoute", "", 400, &refusal("InvalidParameterValue", missing));
    nodes = vec![Arc::clone(&self::nodes(&stage, 1).await[0])];
    let _ = assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap());
    assert_eq!(targets(&stage).await, [instance(&nodes[0]), instance(&nodes[0])]);
    stage.account.proxy.remove(rule);
    // With upstream's policy it is deleted and created again.
    stage.refuse("ReplaceRoute", "", 403, "UnauthorizedOperation");
    let nodes = self::nodes(&stage, 1).await;
    let _ = assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap());
    assert_eq!(targets(&stage).await, [instance(&nodes[0]), instance(&nodes[0])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_blackhole_of_a_stopped_instance_stays() {
    let stage = Stage::new(0, "").await;
    let nodes = nodes(&stage, 2).await;
    let _ = assert_all_ok(&pass(&*stage.cloud, &nodes[..1]).await.unwrap());
    let id = instance(&nodes[0]);
    let of = json!({"InstanceIds": [id]});
    stage.call("ec2", "stop_instances", of.clone()).await;
    let route = |key: &str, destination: &str| {
        let target = format!("<instanceId>{id}</instanceId><state>blackhole</state>");
        format!("<item><{key}>{destination}</{key}>{target}</item>")
    };
    let v4 = route("destinationCidrBlock", "10.244.1.0/24");
    let routes = v4 + &route("destinationIpv6CidrBlock", "fd44:0:0:1::/64");
    let tables = format!(
        "<DescribeRouteTablesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><routeTableSet><item>\
         <routeTableId>rtb-1</routeTableId><routeSet>{routes}</routeSet><tagSet><item>\
         <key>kubernetes.io/cluster/{CLUSTER}</key></item></tagSet></item></routeTableSet></DescribeRouteTablesResponse>"
    );
    stage.answer("DescribeRouteTables", "", 200, &tables);
    let changes = async |cloud: &dyn Cloud, node: &RouteNode| {
        let (plan, _) = pass(cloud, &[Arc::new(node.clone())]).await.unwrap();
        let changes = &plan.changes;
        [changes.delete.len(), changes.create.len(), changes.finish.len()]
    };
    for cloud in [&stage.cloud, &stage.restarted().await.unwrap()] {
        assert_eq!(changes(&**cloud, &nodes[0]).await, [0, 0, 0]);
    }
    // A node that takes the podCIDR over gets the route, and so does one whose instance does not exist.
    let other = RouteNode {
        pod_cidrs: nodes[0].pod_cidrs.clone(),
        ..RouteNode::clone(&nodes[1])
    };
    assert_eq!(changes(&*stage.cloud, &other).await, [2, 2, 0]);
    stage.call("ec2", "terminate_instances", of).await;
    let restarted = stage.restarted().await.unwrap();
    assert_eq!(changes(&*restarted, &nodes[0]).await, [2, 2, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_deletion_does_not_block_others() {
    let stage = Stage::new(0, "").await;
    let nodes = nodes(&stage, 3).await;
    let _ = assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap());
    stage.refuse("DeleteRoute", "10.244.1.0", 400, "InvalidParameterValue");
    let (plan, applied) = pass(&*stage.cloud, &nodes[2..]).await.unwrap();
    let deleted = plan.changes.delete.iter().zip(&applied.deleted);
    // The controller retries a deletion by its handle.
    let results: HashMap<_, _> = deleted.map(|(route, result)| (&route.handle, result)).collect();
    let refused = results.values().filter(|result| result.is_err()).count();
    assert_eq!((results.len(), refused), (4, 1), "{applied:?}");
    assert_eq!(table(&stage).await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_several_interfaces_is_routed_to_by_its_first() {
    let stage = Stage::new(0, "").await;
    let nodes = nodes(&stage, 1).await;
    let id = instance(&nodes[0]);
    let interface = json!({"SubnetId": stage.account.id("PRIVATE_A")});
    let created = stage.call("ec2", "create_network_interface", interface).await;
    let interface = &created["NetworkInterface"]["NetworkInterfaceId"];
    let attach = json!({"InstanceId": id, "DeviceIndex": 1, "NetworkInterfaceId": interface});
    stage.call("ec2", "attach_network_interface", attach).await;
    // EC2 refuses the forms for an instance with one interface.
    let refused = refusal("InvalidInstanceID", "There are multiple interfaces");
    stage.answer("CreateRoute", "InstanceId=", 400, &refused);
    stage.answer("ModifyInstanceAttribute", "", 400, &refused);
    let _ = assert_all_ok(&pass(&*stage.cloud, &nodes).await.unwrap());
    let found = table(&stage).await.unwrap();
    assert_eq!(found.len(), 2);
    let of = json!({"NetworkInterfaceIds": [found[0].1]});
    let of = stage.account.call("ec2", "describe_network_interfaces", of).await;
    if let Ok(of) = of {
        assert_eq!(of["NetworkInterfaces"][0]["SourceDestCheck"], json!(false));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_table_is_filled_and_the_rest_is_reported_once() {
    let stage = Stage::new(0, "").await;
    let mut nodes = nodes(&stage, 30).await;
    let full = refusal("RouteLimitExceeded", "The table is full.");
    let is_creation = |request: &Request| request.name == "CreateRoute";
    let mut rule = Rule::when(is_creation, Action::answer(400, full));
    rule.nth = 13;
    stage.account.proxy.add(rule);
    let (plan, applied) = pass(&*stage.cloud, &nodes).await.unwrap();
    assert_eq!(plan.changes.create.len(), 60);
    assert_eq!(applied.created.iter().filter(|result| result.is_ok()).count(), 12);
    let mut refused = applied.created.iter().filter_map(|result| result.as_ref().err());
    assert!(refused.all(|error| error.kind() == ErrorKind::QuotaExceeded));
    let requests = stage.count("CreateRoute");
    let concurrent = 9;
    let is_bounded = (13..=13 + concurrent).contains(&requests);
    assert!(is_bounded, "{requests}: after the refusal no more are sent");
    // The last node takes the podCIDRs of the first over, which needs no space.
    let moved = RouteNode {
        pod_cidrs: nodes[0].pod_cidrs.clone(),
        ..RouteNode::clone(&nodes[29])
    };
    nodes.remove(0);
    nodes[28] = Arc::new(moved);
    let (_, applied) = pass(&*stage.cloud, &nodes).await.unwrap();
    assert_eq!(applied.created.iter().filter(|result| result.is_ok()).count(), 2);
    assert_eq!(stage.count("ReplaceRoute"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_cluster_without_a_table_names_the_fix() {
    let stage = Stage::new(0, "[Global]\nRouteTableID=rtb-0123456789abcdef0\n").await;
    let error = pass(&*stage.cloud, &[]).await.unwrap_err();
    assert_has(error.message(), &["route table rtb-0123456789abcdef0 not found"]);
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_route_is_left_unchanged() {
    let stage = Stage::new(0, "").await;
    let nodes = nodes(&stage, 1).await;
    let filter = json!({"Filters": [{"Name": "tag-key", "Values": ["kubernetes.io/cluster/kubernetes"]}]});
    let found = stage.call("ec2", "describe_route_tables", filter).await;
    let table = &found["RouteTables"][0];
    let mut gateways = table["Routes"].as_array().unwrap().iter().map(|route| &route["GatewayId"]);
    let gateway = gateways.find(|id| id.as_str().is_some_and(|id| id.starts_with("igw")));
    let mut arguments = json!({"DestinationCidrBlock": "10.244.1.0/24", "GatewayId": gateway});
    arguments["RouteTableId"] = table["RouteTableId"].clone();
    stage.call("ec2", "create_route", arguments).await;
    let (_, applied) = pass(&*stage.cloud, &nodes).await.unwrap();
    let [Err(error), Ok(())] = applied.created.as_slice() else {
        panic!("{applied:?}")
    };
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_has(error.message(), &["has a route for 10.244.1.0/24 to igw-"]);
}
