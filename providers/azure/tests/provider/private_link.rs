//! Private link services.

use ccm_core::{
    Freshness,
    load_balancer::{IpFamily, Policy},
    testkit::cluster::{TestCluster, annotate, service},
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::subscription::{NOTHING, PREFIX, Subscription, names_of};

/// Sets an annotation of a Service.
fn set(azure: &mut Subscription, name: &str, key: &str, value: Option<&str>) {
    annotate(azure.service(name), &format!("{PREFIX}{key}"), value);
}

/// An internal Service that asks for a private link service.
fn add(azure: &mut Subscription, name: &str, port: u16) {
    azure.services.push(service(name, &[port]));
    set(azure, name, "load-balancer-internal", Some("true"));
    set(azure, name, "pls-create", Some("true"));
}

/// The names of the private link services.
async fn links(azure: &Subscription) -> Vec<String> {
    let documents = azure.documents().await;
    let of_kind = documents
        .values()
        .filter(|document| document["type"].as_str().unwrap() == "Microsoft.Network/privateLinkServices");
    of_kind.map(|document| document["name"].as_str().unwrap().to_owned()).collect()
}

/// The document of a private link service.
async fn link(azure: &Subscription, name: &str) -> Value {
    azure.network(&format!("privateLinkServices/{name}")).await
}

/// The frontends that a private link service uses.
async fn frontends(azure: &Subscription, name: &str) -> Vec<String> {
    let link = link(azure, name).await;
    let frontends = link["properties"]["loadBalancerFrontendIpConfigurations"].as_array().unwrap().iter();
    let ids = frontends.map(|frontend| frontend["id"].as_str().unwrap());
    ids.map(|id| id.split("/loadBalancers/").last().unwrap().replace("frontendIPConfigurations/", ""))
        .collect()
}

/// Adds the connection of a private endpoint.
async fn connect(azure: &Subscription, name: &str) {
    let id = azure.server().network_id(&format!("privateLinkServices/{name}"));
    let connection = json!({
        "id": format!("{id}/privateEndpointConnections/consumer"),
        "name": "consumer",
        "etag": "W/\"1\"",
        "type": "Microsoft.Network/privateLinkServices/privateEndpointConnections",
        "properties": {"provisioningState": "Succeeded"},
    });
    let merge = json!({"properties": {"privateEndpointConnections": [connection]}});
    azure.server().patch(&id, &merge).await.unwrap();
}

async fn end(mut azure: Subscription) {
    azure.delete_all().await;
    assert_eq!(links(&azure).await, NOTHING);
    azure.stage.end().await;
}

#[tokio::test]
async fn a_private_link_service_follows_the_annotations() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    add(&mut azure, "web", 80);
    let writes = azure.settle_well().await;
    assert!(writes.contains(&"PUT virtualNetworks/subnets 1".to_owned()), "{writes:?}");
    assert!(writes.contains(&"PUT privateLinkServices 1".to_owned()), "{writes:?}");
    let created = link(&azure, "pls-auidweb").await;
    assert_eq!(frontends(&azure, "pls-auidweb").await, ["kubernetes-internal/auidweb"]);
    assert_eq!(created["tags"]["k8s-azure-cluster-name"], "kubernetes");
    assert_eq!(created["tags"]["k8s-azure-owner-service"], "shop/web");
    let addresses = &created["properties"]["ipConfigurations"];
    assert_eq!(names_of(addresses), ["nodes-pls-auidweb-dynamic-0"]);
    assert_eq!(addresses[0]["properties"]["primary"], true);
    azure.assert_settled().await;

    set(&mut azure, "web", "pls-ip-configuration-ip-address-count", Some("2"));
    set(&mut azure, "web", "pls-ip-configuration-ip-address", Some("10.240.0.77"));
    set(&mut azure, "web", "pls-proxy-protocol", Some("true"));
    set(&mut azure, "web", "pls-fqdns", Some("a.example.com b.example.com"));
    set(&mut azure, "web", "pls-visibility", Some("one two"));
    set(&mut azure, "web", "pls-auto-approval", Some("one"));
    assert_eq!(azure.settle_well().await, ["PUT privateLinkServices 1"]);
    let changed = link(&azure, "pls-auidweb").await["properties"].clone();
    let mut names = names_of(&changed["ipConfigurations"]);
    names.sort();
    assert_eq!(
        names,
        [
            "nodes-pls-auidweb-dynamic-0",
            "nodes-pls-auidweb-static-10.240.0.77"
        ]
    );
    assert_eq!(changed["enableProxyProtocol"], true);
    assert_eq!(changed["fqdns"], json!(["a.example.com", "b.example.com"]));
    assert_eq!(changed["visibility"]["subscriptions"], json!(["one", "two"]));
    assert_eq!(changed["autoApproval"]["subscriptions"], json!(["one"]));
    azure.assert_settled().await;

    // Without the annotations, the defaults are back.
    for key in [
        "pls-ip-configuration-ip-address",
        "pls-fqdns",
        "pls-auto-approval",
    ] {
        set(&mut azure, "web", key, None);
    }
    set(&mut azure, "web", "pls-visibility", Some("one *"));
    assert_eq!(azure.settle_well().await, ["PUT privateLinkServices 1"]);
    let changed = link(&azure, "pls-auidweb").await["properties"].clone();
    assert_eq!(changed["visibility"]["subscriptions"], json!(["*"]));
    assert_eq!(changed["fqdns"], json!([]));
    azure.assert_settled().await;
    end(azure).await;
}

#[tokio::test]
async fn the_annotation_turned_off_deletes_the_private_link_service_with_its_connections() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    add(&mut azure, "web", 80);
    azure.settle_well().await;
    connect(&azure, "pls-auidweb").await;
    azure.cluster.read.freshness = Freshness::now();
    set(&mut azure, "web", "pls-create", Some("false"));
    let writes = azure.settle_well().await;
    let expected = [
        "DELETE privateLinkServices 1",
        "DELETE privateLinkServices/privateEndpointConnections 1",
    ];
    assert_eq!(writes, expected);
    assert_eq!(links(&azure).await, NOTHING);
    azure.assert_settled().await;

    set(&mut azure, "web", "pls-create", Some("true"));
    azure.settle_well().await;
    assert_eq!(links(&azure).await, ["pls-auidweb"]);

    // Also in a process that did not see the annotation.
    set(&mut azure, "web", "pls-create", None);
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    azure.settle_well().await;
    assert_eq!(links(&azure).await, NOTHING);
    azure.assert_settled().await;
    end(azure).await;
}

#[tokio::test]
async fn it_is_deleted_before_its_frontend() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    // The Service is deleted, and it becomes another kind of Service.
    for is_deleted in [true, false] {
        add(&mut azure, "web", 80);
        azure.settle_well().await;
        connect(&azure, "pls-auidweb").await;
        azure.cluster.cloud = azure.stage.restarted().await.unwrap();
        if is_deleted {
            azure.service("web").deleting = true;
        } else {
            azure.service("web").service_type = ccm_core::load_balancer::ServiceType::ClusterIp;
        }
        azure.settle_well().await;
        assert_eq!(links(&azure).await, NOTHING);
        assert_eq!(azure.names().await, ["ssh"]);
        azure.services.clear();
    }
    azure.stage.end().await;
}

#[tokio::test]
async fn it_moves_with_its_frontend() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    add(&mut azure, "web", 80);
    set(&mut azure, "web", "pls-name", Some("shop"));
    azure.settle_well().await;
    connect(&azure, "shop").await;
    azure.cluster.read.freshness = Freshness::now();

    // Another subnet: the frontend has another name.
    set(&mut azure, "web", "load-balancer-internal-subnet", Some("apps"));
    set(&mut azure, "web", "pls-ip-configuration-subnet", Some("nodes"));
    azure.settle_well().await;
    assert_eq!(frontends(&azure, "shop").await, ["kubernetes-internal/auidweb-apps"]);
    azure.settle_well().await;
    let balancer = azure.network("loadBalancers/kubernetes-internal").await;
    assert_eq!(names_of(&balancer["properties"]["frontendIPConfigurations"]), ["auidweb-apps"]);
    azure.assert_settled().await;

    // Another load balancer.
    for key in ["load-balancer-internal", "load-balancer-internal-subnet"] {
        set(&mut azure, "web", key, None);
    }
    set(&mut azure, "web", "disable-load-balancer-floating-ip", Some("true"));
    azure.settle_well().await;
    assert_eq!(frontends(&azure, "shop").await, ["kubernetes/auidweb"]);
    assert_eq!(links(&azure).await, ["shop"]);
    azure.assert_settled().await;
    assert!(!azure.names().await.contains(&"kubernetes-internal".to_owned()));
    // The connection of the private endpoint is still there.
    let connections = &link(&azure, "shop").await["properties"]["privateEndpointConnections"];
    assert_eq!(names_of(connections), ["consumer"]);
    end(azure).await;
}

#[tokio::test]
async fn it_may_be_in_another_resource_group() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    let seed = json!({
        "type": "Microsoft.Network/publicIPAddresses", "name": "any", "group": "links",
        "body": {"sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"}},
    });
    azure.server().control::<Value>("seed", &seed).await.unwrap();
    add(&mut azure, "web", 80);
    set(&mut azure, "web", "pls-resource-group", Some("Links"));
    azure.settle_well().await;
    let documents = azure.documents().await;
    let is_there = documents
        .keys()
        .any(|id| id.contains("/resourcegroups/links/") && id.ends_with("pls-auidweb"));
    assert!(is_there, "{:?}", documents.keys());
    azure.assert_settled().await;

    set(&mut azure, "web", "pls-create", None);
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    azure.settle_well().await;
    assert_eq!(links(&azure).await, NOTHING);
    azure.assert_settled().await;
    for service in &mut azure.cluster.services {
        service.deleting = true;
    }
    azure.settle_well().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn one_of_another_cluster_stays_as_it_is() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    add(&mut azure, "web", 80);
    azure.settle_well().await;
    let id = azure.server().network_id("privateLinkServices/pls-auidweb");
    let tags = json!({"tags": {"k8s-azure-cluster-name": "another"}});
    azure.server().patch(&id, &tags).await.unwrap();
    let before = link(&azure, "pls-auidweb").await;
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    set(&mut azure, "web", "pls-fqdns", Some("a.example.com"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&[
        "pls-create",
        "private link service pls-auidweb does not have the tags of this cluster",
    ]);

    // A name that is taken.
    add(&mut azure, "other", 81);
    set(&mut azure, "other", "pls-name", Some("PLS-auidweb"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["private link service pls-auidweb does not have the tags of this cluster"]);
    assert_eq!(link(&azure, "pls-auidweb").await, before);

    set(&mut azure, "other", "pls-create", None);
    set(&mut azure, "web", "pls-create", None);
    azure.settle_well().await;
    assert_eq!(link(&azure, "pls-auidweb").await, before);
    azure.stage.end().await;
}

#[tokio::test]
async fn services_with_one_frontend_share_it() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    for (name, port) in [("first", 80), ("second", 443)] {
        add(&mut azure, name, port);
        set(&mut azure, name, "load-balancer-ipv4", Some("10.240.0.99"));
        azure.settle_well().await;
    }
    assert_eq!(links(&azure).await, ["pls-auidfirst"]);
    azure.assert_settled().await;

    // Only the owner decides.
    set(&mut azure, "second", "pls-proxy-protocol", Some("true"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["private link service pls-auidfirst belongs to Service shop/first"]);
    set(&mut azure, "second", "pls-proxy-protocol", None);
    azure.settle_well().await;

    // The private link service stays when the first Service goes, and belongs to the second one then.
    azure.service("first").deleting = true;
    azure.settle_well().await;
    assert_eq!(links(&azure).await, ["pls-auidfirst"]);
    assert_eq!(link(&azure, "pls-auidfirst").await["tags"]["k8s-azure-owner-service"], "shop/second");
    set(&mut azure, "second", "pls-fqdns", Some("b.example.com"));
    assert_eq!(azure.settle_well().await, ["PUT privateLinkServices 1"]);
    azure.assert_settled().await;
    end(azure).await;
}

#[tokio::test]
async fn problems_are_reported_together() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    azure.services.push(service("web", &[80]));
    set(&mut azure, "web", "pls-create", Some("true"));
    set(&mut azure, "web", "pls-name", Some("a/b"));
    set(&mut azure, "web", "pls-ip-configuration-ip-address-count", Some("9"));
    set(&mut azure, "web", "pls-ip-configuration-ip-address", Some("fd00::1"));
    azure.service("web").ip_families = vec![IpFamily::V6];
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&[
        "a private link service needs IPv4",
        "a private link service of an external load balancer needs",
        "\"a/b\" is not a name of a resource",
        "\"9\" is not a number from 1 to 8",
        "\"fd00::1\" is not an IPv4 address",
    ]);
    assert_eq!(azure.names().await, ["ssh"]);
    azure.services.clear();

    add(&mut azure, "web", 80);
    set(&mut azure, "web", "pls-ip-configuration-ip-address", Some("10.1.2.3"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["10.1.2.3 is not in subnet nodes"]);
    set(&mut azure, "web", "pls-ip-configuration-ip-address", None);
    set(&mut azure, "web", "pls-ip-configuration-subnet", Some("missing"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["subnet missing not found"]);
    assert_eq!(links(&azure).await, NOTHING);
    set(&mut azure, "web", "pls-ip-configuration-subnet", None);
    azure.settle_well().await;

    // The name of one that exists cannot change.
    set(&mut azure, "web", "pls-name", Some("other"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["the frontend has private link service pls-auidweb, whose name cannot change"]);
    assert_eq!(links(&azure).await, ["pls-auidweb"]);
    set(&mut azure, "web", "pls-name", None);
    azure.settle_well().await;
    end(azure).await;
}

#[tokio::test]
async fn with_the_proxy_protocol_probes_do_not_ask_kube_proxy() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    add(&mut azure, "web", 80);
    azure.service("web").external_policy = Policy::Local;
    azure.service("web").health_check_node_port = 31000;
    azure.settle_well().await;
    let balancer = azure.network("loadBalancers/kubernetes-internal").await;
    assert_eq!(balancer["properties"]["probes"][0]["properties"]["port"], 31000);
    set(&mut azure, "web", "pls-proxy-protocol", Some("true"));
    azure.settle_well().await;
    let balancer = azure.network("loadBalancers/kubernetes-internal").await;
    assert_eq!(balancer["properties"]["probes"][0]["properties"]["port"], 30080);
    end(azure).await;
}

/// Waits without moving the clock, which would stay as it is if the wait is dropped.
fn sleep_until(until: Instant) -> BoxFuture<'static, ()> {
    Box::pin(tokio::time::sleep_until(until))
}

/// Settles until the server has received a write to a path that contains `place`, and then starts another process.
async fn kill_at(azure: &mut Subscription, method: &str, place: &str) {
    let server = &azure.stage.server;
    let count = async || {
        let log: Vec<Value> = server.control_get("log").await.unwrap();
        let is_write = |call: &&Value| call[1] == method && call[2].as_str().unwrap().contains(place);
        log.iter().filter(is_write).count()
    };
    let before = count().await;
    let received = async { while count().await == before {} };
    tokio::select! {
        result = azure.cluster.settle() => panic!("nothing was written to {place}: {result:?}"),
        () = received => {}
    }
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
}

#[tokio::test]
async fn a_process_that_is_killed_at_a_write_continues() {
    let mut azure = Subscription::new(&["--standalone=1", "--lro=0.3"], "").await;
    let nodes = azure.nodes.clone();
    azure.cluster = TestCluster::new(azure.stage.cloud.clone(), sleep_until);
    azure.nodes = nodes;
    add(&mut azure, "web", 80);
    for place in ["/subnets/", "/privateLinkServices/"] {
        kill_at(&mut azure, "PUT", place).await;
    }
    azure.settle_well().await;
    assert_eq!(links(&azure).await, ["pls-auidweb"]);
    assert_eq!(frontends(&azure, "pls-auidweb").await, ["kubernetes-internal/auidweb"]);
    azure.assert_settled().await;

    set(&mut azure, "web", "pls-fqdns", Some("a.example.com"));
    kill_at(&mut azure, "PUT", "/privateLinkServices/").await;
    azure.settle_well().await;
    assert_eq!(link(&azure, "pls-auidweb").await["properties"]["fqdns"], json!(["a.example.com"]));
    azure.assert_settled().await;

    connect(&azure, "pls-auidweb").await;
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    azure.service("web").deleting = true;
    for place in ["/privateEndpointConnections/", "/privateLinkServices/pls-auidweb"] {
        kill_at(&mut azure, "DELETE", place).await;
    }
    end(azure).await;
}
