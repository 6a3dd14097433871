//! The cloud of the tutorial serves a Service on a real API server. Its API is served by this test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod binaries;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::testkit::server::Server;
use ccm_testbed::{
    nodes::{self, NodeSpec},
    observe,
    stage::Stage,
};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

type Balancers = Arc<Mutex<BTreeMap<String, Value>>>;

fn answer(status: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The API: two servers, and load balancers.
fn respond(balancers: &Mutex<BTreeMap<String, Value>>, request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    if !head.to_lowercase().contains("authorization: bearer secret") {
        return answer("401 Unauthorized", &json!({"message": "unknown token"}));
    }
    let mut line = head.lines().next().unwrap().split(' ');
    let (method, path) = (line.next().unwrap(), line.next().unwrap());
    let servers = [
        json!({"id": "s-1", "name": "node-1", "address": "192.0.2.1"}),
        json!({"id": "s-2", "name": "node-2", "address": "192.0.2.2"}),
    ];
    let mut balancers = balancers.lock();
    let segments: Vec<_> = path.trim_start_matches('/').split('/').collect();
    match (method, segments.as_slice()) {
        ("GET", ["servers"]) => answer("200 OK", &json!({"servers": servers})),
        ("GET", ["servers", id]) => match servers.iter().find(|server| server["id"] == *id) {
            Some(server) => answer("200 OK", &json!({"server": server})),
            None => answer("404 Not Found", &json!({"message": "no such server"})),
        },
        ("GET", ["load-balancers"]) => {
            let all: Vec<_> = balancers.values().collect();
            answer("200 OK", &json!({"load_balancers": all}))
        }
        ("POST", ["load-balancers"]) => {
            let mut balancer: Value = serde_json::from_str(body).unwrap();
            let id = format!("lb-{}", balancers.len() + 1);
            balancer["id"] = json!(id);
            balancer["address"] = json!("203.0.113.7");
            balancer["note"] = json!("of the API");
            balancers.insert(id, balancer.clone());
            answer("201 Created", &json!({"load_balancer": balancer}))
        }
        ("PUT", ["load-balancers", id]) => {
            let mut balancer: Value = serde_json::from_str(body).unwrap();
            balancer["id"] = json!(id);
            balancer["address"] = json!("203.0.113.7");
            balancers.insert((*id).to_owned(), balancer.clone());
            answer("200 OK", &json!({"load_balancer": balancer}))
        }
        ("DELETE", ["load-balancers", id]) => {
            balancers.remove(*id);
            answer("204 No Content", &Value::Null)
        }
        _ => answer("501 Not Implemented", &json!({"message": request})),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_served_follows_the_nodes_and_is_deleted() {
    let balancers = Balancers::default();
    let api = {
        let balancers = Arc::clone(&balancers);
        Server::start(move |request| respond(&balancers, request)).await
    };
    let stage = Stage::set(binaries::example("hill").get_program()).await.unwrap();
    stage.write_cloud_config(&format!("endpoint: {}\ntoken: secret\n", api.url())).unwrap();
    let client = stage.control_plane.client().await.unwrap();
    nodes::register(&client, &[NodeSpec::new("node-1")]).await.unwrap();
    let cloud_config = format!("--cloud-config={}", stage.cloud_config().display());
    let ccm = stage.launch("hill", &[&cloud_config]).unwrap();

    let all_nodes: Api<Node> = Api::all(client.clone());
    let initialized = async |name: &str| {
        let node = observe::eventually(LIMIT, async || {
            all_nodes.get(name).await.ok().filter(observe::is_initialized)
        });
        node.await.unwrap_or_else(|| panic!("{name} is not initialized:\n{}", ccm.log().unwrap()))
    };
    assert_eq!(observe::provider_id(&initialized("node-1").await), "hill://s-1");

    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let web = json!({
        "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
    });
    services
        .create(&PostParams::default(), &serde_json::from_value(web).unwrap())
        .await
        .unwrap();
    let address = async || {
        let status = services.get("web").await.ok()?.status?;
        status.load_balancer?.ingress?.first()?.ip.clone()
    };
    let served = observe::eventually(LIMIT, address).await;
    assert_eq!(served.as_deref(), Some("203.0.113.7"), "{}", ccm.log().unwrap());

    let observed = |field: &str| balancers.lock().values().next().map(|balancer| balancer[field].clone());
    assert_eq!(observed("servers"), Some(json!(["s-1"])));
    assert_eq!(observed("ports"), Some(json!([{"port": 80, "node_port": 30080}])));
    nodes::register(&client, &[NodeSpec::new("node-2")]).await.unwrap();
    initialized("node-2").await;
    let follows = async || (observed("servers") == Some(json!(["s-1", "s-2"]))).then_some(());
    assert!(observe::eventually(LIMIT, follows).await.is_some(), "{}", ccm.log().unwrap());
    assert_eq!(observed("note"), Some(json!("of the API")), "unknown fields survive a change");

    let udp = json!({"spec": {"ports": [{"port": 53, "nodePort": 30053, "protocol": "UDP"}]}});
    services.patch("web", &PatchParams::default(), &Patch::Merge(&udp)).await.unwrap();
    let events: Api<Event> = Api::namespaced(client, "default");
    let warned = async || {
        let all = events.list(&ListParams::default()).await.ok()?;
        let text = "load balancers of Hill Cloud have only TCP ports";
        all.items
            .iter()
            .any(|event| event.message.as_deref().unwrap_or_default().contains(text))
            .then_some(())
    };
    assert!(observe::eventually(LIMIT, warned).await.is_some(), "{}", ccm.log().unwrap());
    assert_eq!(observed("ports"), Some(json!([{"port": 80, "node_port": 30080}])));

    services.delete("web", &DeleteParams::default()).await.unwrap();
    let deleted = async || services.get_opt("web").await.ok()?.is_none().then_some(());
    assert!(observe::eventually(LIMIT, deleted).await.is_some(), "{}", ccm.log().unwrap());
    assert!(balancers.lock().is_empty());
}

#[test]
fn the_config_is_checked_with_all_problems() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("cloud.yaml");
    std::fs::write(&config, "endpiont: x\n").unwrap();
    let output = binaries::example("hill")
        .arg("--cloud-provider=hill")
        .arg(format!("--cloud-config={}", config.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    for text in [
        "cloud.yaml:1:1: endpiont: unknown key, ignored; did you mean endpoint?",
        "endpoint: not a URL; write https://host/",
        "HILL_TOKEN: missing; set it to an API token",
    ] {
        assert!(errors.contains(text), "{text}: {errors}");
    }
}
