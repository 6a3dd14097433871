//! Objects around load balancers: certificates, floating IPs, ports; and clouds without some features.

use ccm_sim::openstack::{NetworkSpec, SecretSpec, UserSpec};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Session, password_login};

#[tokio::test]
async fn a_listener_that_terminates_tls_needs_an_existing_certificate() {
    let session = Session::start().await;
    let reference = session
        .cloud
        .create_secret(&SecretSpec {
            name: "cert".to_owned(),
            container: true,
            ..SecretSpec::default()
        })
        .unwrap();
    let answer = session.get(&reference).await;
    assert_eq!((answer.status, answer.at("/container_ref")), (200, &*reference));
    assert_eq!(session.get(&reference.replace("containers", "secrets")).await.status, 404);
    let listener = |reference: &str| json!([{"protocol": "TERMINATED_HTTPS", "protocol_port": 443, "default_tls_container_ref": reference}]);
    let made = session.balancer(json!({"listeners": listener(&reference)})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let refused = session.balancer(json!({"listeners": listener("http://x/v1/containers/none")})).await;
    assert_eq!(
        refused.at("/faultstring"),
        "Could not retrieve certificate: ['http://x/v1/containers/none']"
    );
    session.cloud.configure(|settings| settings.key_manager = false);
    let refused = session.balancer(json!({"listeners": listener(&reference)})).await;
    assert_eq!(refused.status, 400);
}

#[tokio::test]
async fn a_floating_address_needs_a_way_to_its_port_and_leaves_it_with_it() {
    let session = Session::start().await;
    let made = session.balancer(json!({"listeners": []})).await;
    let network = session.neutron("/networks?name=public").await;
    let network = network.at("/networks/0/id");
    let port = made.at("/loadbalancer/vip_port_id");
    let wanted = json!({"floating_network_id": network, "port_id": port, "description": "mine"});
    let floating = session.network(Method::POST, "/floatingips", json!({ "floatingip": wanted })).await;
    assert_eq!(floating.status, 201, "{}", floating.text);
    let id = floating.at("/floatingip/id");
    let found = session.neutron(&format!("/floatingips?port_id={port}")).await;
    assert_eq!(found.each("floatingips", "status"), ["ACTIVE"]);
    let path = format!("/loadbalancers/{}", made.at("/loadbalancer/id"));
    session.lb(Method::DELETE, &path, Value::Null).await;
    let kept = session.neutron(&format!("/floatingips/{id}")).await;
    assert!(kept.json["floatingip"]["port_id"].is_null());
    assert_eq!(kept.at("/floatingip/status"), "DOWN");

    let island = NetworkSpec {
        name: "island".to_owned(),
        subnets: vec!["192.168.9.0/24".parse().unwrap()],
        ..NetworkSpec::default()
    };
    let island = session.cloud.create_network(&island).unwrap();
    let port = session.network(Method::POST, "/ports", json!({"port": {"network_id": island}})).await;
    let lead = json!({"floatingip": {"port_id": port.at("/port/id")}});
    let answer = session.network(Method::PUT, &format!("/floatingips/{id}"), lead).await;
    assert_eq!(
        (answer.status, answer.at("/NeutronError/type")),
        (404, "ExternalGatewayForFloatingIPNotFound")
    );
    let requested =
        json!({"floatingip": {"floating_network_id": network, "floating_ip_address": "203.0.113.77"}});
    assert_eq!(session.network(Method::POST, "/floatingips", requested.clone()).await.status, 403);
    let root = UserSpec {
        name: "root".to_owned(),
        password: "p".to_owned(),
        projects: None,
        admin: true,
    };
    session.cloud.create_user(&root).unwrap();
    let login = session.login(&password_login("root", "p", Some("k8s"))).await;
    let session = Session {
        token: login.header("x-subject-token").to_owned(),
        ..session
    };
    let made = session.network(Method::POST, "/floatingips", requested.clone()).await;
    assert_eq!(made.at("/floatingip/floating_ip_address"), "203.0.113.77");
    assert_eq!(session.network(Method::POST, "/floatingips", requested).await.status, 409);
}

#[tokio::test]
async fn a_port_is_changed_only_at_the_revision_that_is_named() {
    let session = Session::start().await;
    let server = session.cloud.create_server(&ccm_sim::openstack::ServerSpec::named("n")).unwrap();
    let port = session.cloud.server_ports(&server).remove(0);
    let path = format!("/RegionOne/network/v2.0/ports/{port}");
    let shown = session.get(&path).await;
    let revision = shown.json["port"]["revision_number"].as_u64().unwrap();
    let change = async |revision: u64| {
        let request = session.request(Method::PUT, &path).json(&json!({"port": {"name": "x"}}));
        let request = request.header("if-match", format!("revision_number={revision}"));
        Answer::of(request.send().await.unwrap()).await.status
    };
    assert_eq!(change(revision).await, 200);
    assert_eq!(change(revision).await, 412);
    assert_eq!(change(revision + 1).await, 200);
}

#[tokio::test]
async fn extensions_and_whole_services_can_be_missing() {
    let session = Session::start().await;
    let aliases = session.neutron("/extensions").await.each("extensions", "alias");
    assert!(aliases.iter().any(|alias| alias == "extraroute-atomic"));
    session.cloud.configure(|settings| {
        settings.missing_extensions = vec!["extraroute-atomic".to_owned()];
        settings.load_balancing.enabled = false;
        settings.key_manager = false;
    });
    let aliases = session.neutron("/extensions").await.each("extensions", "alias");
    assert!(!aliases.iter().any(|alias| alias == "extraroute-atomic"));
    let login = session.login(&password_login("ccm", "correct-horse", Some("k8s"))).await;
    let services = login.json["token"]["catalog"].as_array().unwrap();
    let types: Vec<&str> = services.iter().filter_map(|service| service["type"].as_str()).collect();
    assert_eq!(types, ["identity", "compute", "network"]);
}
