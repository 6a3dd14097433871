//! The Azure Resource Manager in memory: what it refuses, and what changes by a write.
use ccm_testbed::arm::ArmServer;
use serde_json::{Value, json};

const VERSION: &str = "api-version=2025-05-01";

async fn put(server: &ArmServer, id: &str, etag: Option<&str>, body: &Value) -> (u16, Value) {
    let mut request = reqwest::Client::new()
        .put(format!("{}{id}?{VERSION}", server.url()))
        .bearer_auth("test")
        .json(body);
    if let Some(etag) = etag {
        request = request.header("If-Match", etag);
    }
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test]
async fn a_write_is_held_to_the_description() {
    let server = ArmServer::start(&[]).await.unwrap();
    let id = server.network_id("routeTables/routes");
    let mut table = server.document(&id).await.unwrap();
    table["properties"]["unknownMember"] = json!(1);
    let (status, answer) = put(&server, &id, None, &table).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("InvalidRequestFormat")));
    let findings = server.findings().await.unwrap();
    assert!(findings[0].contains("unknownMember"), "{findings:?}");
}

#[tokio::test]
async fn a_stale_etag_is_refused_and_operations_take_time() {
    let server = ArmServer::start(&["--lro=0.2"]).await.unwrap();
    let id = server.network_id("routeTables/routes");
    let table = server.document(&id).await.unwrap();
    let etag = table["etag"].as_str().unwrap();
    let (status, written) = put(&server, &id, Some(etag), &table).await;
    assert_eq!((status, &written["properties"]["provisioningState"]), (200, &json!("Updating")));
    let (status, refused) = put(&server, &id, Some(etag), &table).await;
    assert_eq!((status, refused["error"]["code"].as_str()), (412, Some("PreconditionFailed")));
    // The operation ends.
    while server.document(&id).await.unwrap()["properties"]["provisioningState"] != "Succeeded" {}
    assert_eq!(server.findings().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn roles_and_revoked_tokens_are_respected() {
    let server = ArmServer::start(&[]).await.unwrap();
    let id = server.network_id("routeTables/routes");
    let permissions = json!({"permissions": [{"actions": ["*/read"], "notActions": []}]});
    server.control::<Value>("settings", &permissions).await.unwrap();
    let table = server.document(&id).await.unwrap();
    assert_eq!(put(&server, &id, None, &table).await.0, 403);
    let login = format!("{}/tenant/oauth2/v2.0/token", server.url());
    let secret = [("client_secret", "x")];
    let answer: Value = reqwest::Client::new()
        .post(login)
        .form(&secret)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let get = || {
        let token = answer["access_token"].as_str().unwrap();
        let url = format!("{}{id}?{VERSION}", server.url());
        reqwest::Client::new().get(url).bearer_auth(token).send()
    };
    assert_eq!(get().await.unwrap().status(), 200);
    server.control::<Value>("revoke", &json!({})).await.unwrap();
    assert_eq!(get().await.unwrap().status(), 401);
}

#[tokio::test]
async fn a_basic_load_balancer_has_machines_of_one_set_and_basic_addresses() {
    let server = ArmServer::start(&["--flex=1"]).await.unwrap();
    for set in ["agents", "masters", "agents"] {
        server.create("standalone", &json!({"set": set})).await.unwrap();
    }
    let balancer = server.network_id("loadBalancers/basic");
    let pool = json!({"name": "pool", "properties": {}});
    let body = json!({"location": "eastus", "properties": {"backendAddressPools": [pool]}});
    let (status, mut created) = put(&server, &balancer, None, &body).await;
    assert_eq!((status, &created["sku"]["name"]), (201, &json!("Basic")));

    let flexible = server.machines[0].id.rsplit('/').next().unwrap();
    let mixed = "NetworkInterfaceAndLoadBalancerAreInDifferentAvailabilitySets";
    for (machine, code) in [
        (flexible, Some("LoadBalancerSkuNotSupportedForFlexibleScaleSet")),
        ("vm-0", None),
        ("vm-1", Some(mixed)),
        ("vm-2", None),
    ] {
        let id = server.network_id(&format!("networkInterfaces/{machine}-nic"));
        let mut interface = server.document(&id).await.unwrap();
        interface["properties"]["ipConfigurations"][0]["properties"]["loadBalancerBackendAddressPools"] =
            json!([{"id": format!("{balancer}/backendAddressPools/pool")}]);
        let (status, answer) = put(&server, &id, None, &interface).await;
        assert_eq!(answer["error"]["code"].as_str(), code, "{machine}: {status}");
    }

    let address = server.network_id("publicIPAddresses/standard");
    let body = json!({"location": "eastus", "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"}});
    assert_eq!(put(&server, &address, None, &body).await.0, 201);
    created["properties"]["frontendIPConfigurations"] =
        json!([{"name": "one", "properties": {"publicIPAddress": {"id": address}}}]);
    let (status, answer) = put(&server, &balancer, None, &created).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("PublicIPAndLBSkuDoNotMatch")));
    assert_eq!(server.findings().await.unwrap(), [""; 0]);
}
