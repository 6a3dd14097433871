//! Routes: one write for all changes, merged with those of others.

use std::sync::Arc;

use ccm_core::{
    AddressType, Cloud, Environment, ErrorKind, NodeAddress, Priority,
    routes::{Applied, DesiredRoute, NextHop, RouteChanges, RouteNode},
    testkit::{self, nodes::node_view},
};
use serde_json::{Value, json};

use crate::stage::Stage;

fn desired(node: &str, destination: &str, hop: &str) -> DesiredRoute {
    DesiredRoute {
        destination: destination.parse().unwrap(),
        next_hop: NextHop::new(hop),
        node: Arc::new(RouteNode {
            view: node_view(node, None),
            addresses: vec![NodeAddress::new(AddressType::InternalIP, hop)],
            ..RouteNode::default()
        }),
    }
}

fn create(routes: &[DesiredRoute]) -> RouteChanges {
    RouteChanges {
        create: routes.to_vec(),
        ..RouteChanges::default()
    }
}

async fn apply(cloud: &dyn Cloud, changes: &RouteChanges) -> Applied {
    cloud.routes().unwrap().apply(changes, Priority::User).await
}

async fn observe(stage: &Stage) -> Vec<ccm_core::routes::CloudRoute> {
    stage.cloud.routes().unwrap().observe(&[], Priority::User).await.unwrap().routes
}

impl Stage {
    fn table_id(&self) -> String {
        self.server.network_id("routeTables/routes")
    }

    async fn table(&self) -> Value {
        self.server.document(&self.table_id()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_changes_are_one_write_that_waits_for_its_operation() {
    let stage = Stage::new(&["--lro=0.3"], "").await;
    observe(&stage).await;
    stage.calls().await;
    let routes: Vec<_> = (0..5)
        .map(|i| desired(&format!("node-{i}"), &format!("10.244.{i}.0/24"), "10.240.0.4"))
        .collect();
    let applied = apply(&*stage.cloud, &create(&routes)).await;
    assert!(applied.created.iter().all(Result::is_ok), "{applied:?}");
    assert_eq!(stage.table().await["properties"]["provisioningState"], "Succeeded");
    let calls = stage.calls().await;
    assert_eq!(calls, ["GET routeTables 2", "POLL operations 1", "PUT routeTables 1"], "one GET is ours");
    // Nothing is left to do: neither here nor after a restart.
    let again = apply(&*stage.cloud, &create(&routes)).await;
    let restarted = stage.restarted().await.unwrap();
    let after_restart = apply(&*restarted, &create(&routes)).await;
    assert!(again.created.iter().chain(&after_restart.created).all(Result::is_ok));
    let calls = stage.calls().await;
    assert!(!calls.iter().any(|call| call.starts_with("PUT")), "{calls:?}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_others_are_merged() {
    let stage = Stage::new(&[], "").await;
    observe(&stage).await;
    // Unknown members, and a route of another client, written after the read.
    let foreign = json!({"name": "firewall", "properties": {
        "addressPrefix": "0.0.0.0/0", "nextHopType": "VirtualAppliance", "nextHopIpAddress": "10.240.9.9", "hasBgpOverride": false,
    }});
    let merge = json!({"tags": {"owner": "others"}, "properties": {"routes": [foreign]}});
    stage.server.patch(&stage.table_id(), &merge).await.unwrap();
    let new = desired("node-1", "10.244.0.0/24", "10.240.0.4");
    let applied = apply(&*stage.cloud, &create(&[new])).await;
    assert!(applied.created.iter().all(Result::is_ok), "{applied:?}");
    let table = stage.table().await;
    let names: Vec<_> = table["properties"]["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["name"].clone())
        .collect();
    assert_eq!(names, [json!("firewall"), json!("node-1____102440024")]);
    assert_eq!(table["tags"]["owner"], "others");
    let calls = stage.calls().await;
    assert!(calls.contains(&"PUT routeTables 412 1".to_owned()), "{calls:?}");
    assert!(calls.contains(&"PUT routeTables 1".to_owned()), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_always_changes_is_a_conflict_after_three_tries() {
    let stage = Stage::new(&[], "").await;
    let fault = json!({
        "method": "PUT", "type": "routeTables", "status": 412, "code": "PreconditionFailed", "times": 10,
    });
    stage.server.control::<Value>("fault", &fault).await.unwrap();
    let applied = apply(&*stage.cloud, &create(&[desired("n", "10.244.0.0/24", "10.240.0.4")])).await;
    assert_eq!(applied.created[0].as_ref().unwrap_err().kind(), ErrorKind::Conflict);
    let calls = stage.calls().await;
    assert!(calls.contains(&"PUT routeTables 412 3".to_owned()), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_or_operation_is_an_error_of_each_route() {
    let stage = Stage::new(&["--lro=0.1"], "").await;
    let new = [
        desired("a", "10.244.0.0/24", "10.240.0.4"),
        desired("b", "10.244.1.0/24", "10.240.0.5"),
    ];
    for (fault, part) in [
        (
            json!({"method": "PUT", "type": "routeTables", "status": 403, "code": "AuthorizationFailed"}),
            "AuthorizationFailed",
        ),
        (
            json!({"method": "lro", "type": "routeTables", "code": "InternalOperationFailed", "lro": true}),
            "InternalOperationFailed",
        ),
    ] {
        stage.server.control::<Value>("fault", &fault).await.unwrap();
        let applied = apply(&*stage.cloud, &create(&new)).await;
        assert_eq!(applied.created.len(), 2);
        for created in applied.created {
            let error = created.unwrap_err();
            assert!(error.report().contains(part), "{error}");
        }
    }
    let applied = apply(&*stage.cloud, &create(&new)).await;
    assert!(applied.created.iter().all(Result::is_ok), "{applied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_created_and_a_missing_name_is_no_support() {
    let stage = Stage::new(&[], "routeTableResourceGroup: k8s\ntags: team=web\n").await;
    stage.server.delete(&stage.table_id()).await.unwrap();
    assert!(observe(&stage).await.is_empty());
    let applied = apply(&*stage.cloud, &create(&[desired("n", "fd00:10::/64", "fd00:240::4")])).await;
    assert!(applied.created.iter().all(Result::is_ok), "{applied:?}");
    let table = stage.table().await;
    assert_eq!((&table["location"], &table["tags"]["team"]), (&json!("eastus"), &json!("web")));
    assert_eq!(table["properties"]["routes"][0]["name"], "n____fd001064");
    stage.rewrite("routeTableName: routes", "routeTableName: ''");
    let (_folder, context) = ccm_core::testkit::context(
        &std::fs::read_to_string(stage.file()).unwrap(),
        ccm_core::Environment::default(),
    );
    let cloud = testkit::build_in("azure", context).await.unwrap();
    let reason = cloud.routes().unwrap().unsupported_reason(Priority::User).await.unwrap();
    assert!(reason.unwrap().contains("routeTableName"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_table_takes_the_first_routes() {
    let stage = Stage::new(&[], "").await;
    let entry = |i: usize| {
        json!({"name": format!("x{i}"), "properties": {
            "addressPrefix": format!("10.{}.{}.0/24", 100 + i / 250, i % 250), "nextHopType": "None", "hasBgpOverride": false,
        }})
    };
    let entries: Vec<_> = (0..398).map(entry).collect();
    stage
        .server
        .patch(&stage.table_id(), &json!({"properties": {"routes": entries}}))
        .await
        .unwrap();
    let routes: Vec<_> = (0..4).map(|i| desired("n", &format!("10.244.{i}.0/24"), "10.240.0.4")).collect();
    let created = apply(&*stage.cloud, &create(&routes)).await.created;
    let kinds: Vec<_> =
        created.iter().map(|created| created.as_ref().err().map(ccm_core::Error::kind)).collect();
    assert_eq!(
        kinds,
        [
            None,
            None,
            Some(ErrorKind::QuotaExceeded),
            Some(ErrorKind::QuotaExceeded)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_nobody_knows_survive_a_write() {
    let table = json!({
        "name": "routes", "etag": "W/\"7\"", "location": "eastus", "futureTop": {"list": [], "nothing": null},
        "properties": {"provisioningState": "Succeeded", "futureMember": 7, "emptyList": [], "routes": [
            {"name": "other", "futureRoute": [], "properties": {"addressPrefix": "10.0.0.0/8", "nextHopType": "None"}},
        ]},
    });
    let base = Arc::new(std::sync::OnceLock::<String>::new());
    let (url, document) = (Arc::clone(&base), table.clone());
    let server = testkit::server::Server::start(move |request| {
        let body = if request.contains("/metadata/endpoints") {
            let url = url.get().unwrap();
            json!([{"name": "AzurePublicCloud", "resourceManager": url, "authentication": {
                "audiences": [url], "loginEndpoint": url,
            }}])
        } else if request.starts_with("POST ") {
            json!({"access_token": "x", "expires_in": 3600})
        } else {
            document.clone()
        };
        testkit::server::answer("200 OK", "Content-Type: application/json\r\n", &body.to_string())
    })
    .await;
    base.set(server.url()).unwrap();
    let conf = format!(
        "resourceManagerEndpoint: {}\ntenantId: t\nsubscriptionId: s\nresourceGroup: g\nlocation: eastus\n\
         routeTableName: routes\naadClientId: c\naadClientSecret: x\n",
        server.url()
    );
    let cloud = testkit::build("azure", &conf, Environment::default()).await.unwrap();
    let applied = apply(&*cloud, &create(&[desired("n", "10.244.0.0/24", "10.240.0.4")])).await;
    assert!(applied.created.iter().all(Result::is_ok), "{applied:?}");
    let requests = server.requests();
    let put = requests.iter().find(|request| request.starts_with("PUT ")).unwrap();
    let (head, body) = put.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with(
        "PUT /subscriptions/s/resourceGroups/g/providers/Microsoft.Network/routeTables/routes?"
    ));
    assert!(head.contains("api-version=2025-05-01 "), "{head}");
    assert!(head.to_lowercase().contains("if-match: w/\"7\""), "{head}");
    let mut written: Value = serde_json::from_str(body).unwrap();
    written["properties"]["routes"].as_array_mut().unwrap().pop();
    assert_eq!(written, table);
}
