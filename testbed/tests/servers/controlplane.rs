//! The control plane, its identities, and registered nodes.

use std::time::Instant;

use ccm_testbed::cache::say;
use ccm_testbed::controlplane::{self, ControlPlane};
use ccm_testbed::manifests;
use ccm_testbed::nodes::{self, NodeSpec, UNINITIALIZED};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Service};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, from_value, json};

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    from_value(value).unwrap()
}

fn is_forbidden<T>(result: &kube::Result<T>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == 403)
}

#[tokio::test]
async fn a_restarted_control_plane_has_its_port_and_data() {
    let started = Instant::now();
    let mut plane = ControlPlane::start().await.unwrap();
    say(format!("control plane ready after {:?}", started.elapsed()));
    let (server, client) = (plane.server().to_owned(), plane.client().await.unwrap());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let map: ConfigMap = object(json!({ "metadata": { "name": "kept" }, "data": { "a": "b" } }));
    maps.create(&PostParams::default(), &map).await.unwrap();
    let kubeconfig = plane.service_account_kubeconfig("default", "robot").await.unwrap();

    plane.kill().unwrap();
    assert!(maps.get("kept").await.is_err(), "still answers");
    plane.restart().await.unwrap();
    assert_eq!(plane.server(), server);
    // The same client works: address and certificates have not changed.
    assert_eq!(maps.get("kept").await.unwrap().data.unwrap()["a"], "b");
    let robot: Api<ConfigMap> = Api::default_namespaced(controlplane::client(&kubeconfig).await.unwrap());
    assert!(is_forbidden(&robot.get("kept").await), "a token from before the restart is valid");

    plane.stop().await.unwrap();
    assert!(plane.pid().is_none());
    plane.restart().await.unwrap();
    assert_eq!(maps.get("kept").await.unwrap().data.unwrap()["a"], "b");
}

#[tokio::test]
async fn state_in_a_given_directory_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start_in(dir.path()).await.unwrap();
    let server = plane.server().to_owned();
    drop(plane);
    let again = ControlPlane::start_in(dir.path()).await.unwrap();
    assert_eq!(again.server(), server);
    let namespaces: Api<Namespace> = Api::all(again.client().await.unwrap());
    assert!(namespaces.get("kube-system").await.is_ok());
}

#[tokio::test]
async fn a_service_account_has_only_its_bound_permissions() {
    let plane = ControlPlane::start().await.unwrap();
    let admin = plane.client().await.unwrap();
    let kubeconfig = plane.service_account_kubeconfig("kube-system", "reader").await.unwrap();
    let reader = controlplane::client(&kubeconfig).await.unwrap();
    let nodes: Api<Node> = Api::all(reader.clone());
    assert!(is_forbidden(&nodes.list(&ListParams::default()).await), "not bound yet");

    let rules = json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"] }]);
    manifests::cluster_role(&admin, "reader", &rules).await.unwrap();
    manifests::bind(&admin, "kube-system", "reader", "reader").await.unwrap();
    nodes::register(&admin, &[NodeSpec::new("node-1")]).await.unwrap();
    // The authorizer reads the binding through a watch.
    while is_forbidden(&nodes.get("node-1").await) {
        tokio::task::yield_now().await;
    }
    assert!(is_forbidden(&nodes.delete("node-1", &DeleteParams::default()).await), "may only read");

    let user = "system:serviceaccount:kube-system:reader";
    let log = plane.audit_log().unwrap();
    let mine: Vec<_> = log.iter().filter(|e| e.user == user).map(|e| (e.verb.as_str(), e.code)).collect();
    assert_eq!(mine.first(), Some(&("list", 403)));
    assert_eq!(mine.last(), Some(&("delete", 403)));
    assert!(mine.contains(&("get", 200)));
    let created = log.iter().find(|e| e.verb == "create" && e.resource == "nodes").unwrap();
    assert_eq!((created.user.as_str(), created.name.as_str(), created.code), ("admin", "node-1", 201));
}

#[tokio::test]
async fn delegated_authentication_works() {
    let plane = ControlPlane::start().await.unwrap();
    let admin = plane.client().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "kube-system");
    let data = maps.get("extension-apiserver-authentication").await.unwrap().data.unwrap();
    for key in ["client-ca-file", "requestheader-client-ca-file"] {
        assert!(data[key].starts_with("-----BEGIN CERTIFICATE-----"), "{key}");
    }
    assert_eq!(data["requestheader-allowed-names"], r#"["front-proxy-client"]"#);

    let kubeconfig = plane.service_account_kubeconfig("default", "robot").await.unwrap();
    let config: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: config["users"][0]["user"]["token"].as_str().map(str::to_owned),
            ..TokenReviewSpec::default()
        },
        ..TokenReview::default()
    };
    let status = Api::<TokenReview>::all(admin)
        .create(&PostParams::default(), &review)
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(status.authenticated, Some(true));
    assert_eq!(status.user.unwrap().username.unwrap(), "system:serviceaccount:default:robot");
}

#[tokio::test]
async fn nodes_are_registered_as_kubelets_do() {
    let plane = ControlPlane::start().await.unwrap();
    let client = plane.client().await.unwrap();
    let specs: Vec<NodeSpec> = (0..500).map(|i| NodeSpec::new(format!("node-{i}")).realistic()).collect();
    let started = Instant::now();
    nodes::register(&client, &specs).await.unwrap();
    let seconds = started.elapsed().as_secs_f64();
    say(format!(
        "{} realistic nodes in {seconds:.1} s: {:.0} per second",
        specs.len(),
        500.0 / seconds
    ));

    let api: Api<Node> = Api::all(client.clone());
    let listed = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items.len(), specs.len());
    for node in &listed.items {
        let taints = node.spec.as_ref().unwrap().taints.as_ref().unwrap();
        assert!(taints.iter().any(|t| t.key == UNINITIALIZED && t.effect == "NoSchedule"));
        let fields = node.metadata.managed_fields.as_ref().unwrap();
        assert!(fields.iter().any(|f| f.manager.as_deref() == Some("kubelet")));
    }
    assert_eq!(ready_status(&api, "node-7").await, "True");
    nodes::set_ready(&client, "node-7", false).await.unwrap();
    assert_eq!(ready_status(&api, "node-7").await, "False");
    let conditions = api.get("node-7").await.unwrap().status.unwrap().conditions.unwrap();
    assert_eq!(conditions.len(), 4, "the other conditions are kept: {conditions:?}");
}

async fn ready_status(api: &Api<Node>, name: &str) -> String {
    let conditions = api.get(name).await.unwrap().status.unwrap().conditions.unwrap();
    conditions.into_iter().find(|c| c.type_ == "Ready").unwrap().status
}

#[tokio::test]
async fn the_next_test_gets_an_empty_control_plane() {
    let plane = ControlPlane::start().await.unwrap();
    let client = plane.client().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let before: Vec<String> = names(&namespaces).await;
    nodes::register(&client, &[NodeSpec::new("node-1")]).await.unwrap();
    let space: Namespace = object(json!({ "metadata": { "name": "left" } }));
    namespaces.create(&PostParams::default(), &space).await.unwrap();
    let service: Service = object(json!({
        "metadata": { "name": "left" },
        "spec": { "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30080 }] },
    }));
    let services: Api<Service> = Api::default_namespaced(client);
    services.create(&PostParams::default(), &service).await.unwrap();
    let server = plane.server().to_owned();
    drop(plane);

    let mut others = Vec::new();
    let again = loop {
        let plane = ControlPlane::start().await.unwrap();
        if plane.server() == server {
            break plane;
        }
        // Another test uses it.
        others.push(plane);
    };
    assert_eq!(again.audit_log().unwrap(), []);
    let client = again.client().await.unwrap();
    assert_eq!(names::<Node>(&Api::all(client.clone())).await, [""; 0]);
    assert_eq!(names(&Api::<Namespace>::all(client.clone())).await, before);
    let services: Api<Service> = Api::default_namespaced(client);
    assert_eq!(names(&services).await, ["kubernetes"]);
    // The node port is free, too.
    services.create(&PostParams::default(), &service).await.unwrap();
}

async fn names<T>(api: &Api<T>) -> Vec<String>
where
    T: Clone + std::fmt::Debug + serde::de::DeserializeOwned + kube::Resource,
{
    let listed = api.list(&ListParams::default()).await.unwrap();
    listed.items.iter().map(kube::ResourceExt::name_any).collect()
}
