//! The whole program on a simulated DigitalOcean and a real kube-apiserver: started like the Go program, with its
//! firewall, its tags and its plain endpoints. DigitalOcean's own client uses the same simulator.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{path::PathBuf, process::Command, time::Duration};

use ccm_sim::{
    Quota,
    digitalocean::{Config, DigitalOcean, SERVICE},
};
use ccm_testbed::{
    binary::{Ccm, Launch, free_port},
    cargo::root,
    manifests::{self, USER},
    nodes::{self, NodeSpec},
    observe::is_initialized,
    python,
    stage::Stage,
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(90);
const PREFIX: &str = "service.beta.kubernetes.io/do-loadbalancer-";

fn fields(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

struct Scene {
    cloud: DigitalOcean,
    stage: Stage,
    /// The kubeconfig of the account in the Go program's manifest, with its rights.
    account: PathBuf,
    services: Api<Service>,
    nodes: Api<Node>,
    metrics: u16,
    debug: u16,
}

impl Scene {
    /// Starts a control plane and a cloud with one node and its droplet.
    async fn new() -> Self {
        let stage = Stage::set(env!("CARGO_BIN_EXE_cloud-controller-manager")).await.unwrap();
        let client = stage.control_plane.client().await.unwrap();
        let manifest = root().join("tests/chart/upstream/digitalocean.yaml");
        let account = manifests::account(&stage.control_plane, &manifest).await.unwrap();
        let cloud = DigitalOcean::start(Config::default()).await.unwrap();
        cloud.create_droplet("node-1");
        nodes::register(&client, [&NodeSpec::new("node-1")]).await.unwrap();
        Self {
            services: Api::default_namespaced(client.clone()),
            nodes: Api::all(client),
            metrics: free_port().unwrap(),
            debug: free_port().unwrap(),
            account,
            cloud,
            stage,
        }
    }

    /// Every kind of request to the API server that was denied.
    fn denied(&self) -> Vec<String> {
        let log = self.stage.control_plane.audit_log().unwrap();
        let denied = log.iter().filter(|entry| entry.user == USER && entry.code == 403);
        let mut denied: Vec<_> =
            denied.map(|entry| format!("{} {} {}", entry.verb, entry.resource, entry.name)).collect();
        denied.sort();
        denied.dedup();
        denied
    }

    async fn initialized(&self) {
        let check = async || is_initialized(&self.nodes.get("node-1").await.ok()?).then_some(());
        self.stage.eventually("the node is initialized", check).await;
    }

    /// Starts the program as the Go program's manifest does: by its name, with variables and almost without flags.
    async fn start(&self) -> Ccm {
        let program = self.stage.folder().join("digitalocean-cloud-controller-manager");
        if !program.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cloud-controller-manager"), &program).unwrap();
        }
        let variables = [
            ("DO_ACCESS_TOKEN", Config::default().token),
            ("DO_OVERRIDE_URL", self.cloud.url().to_owned()),
            ("REGION", "nyc3".to_owned()),
            ("DO_CLUSTER_ID", "c-1".to_owned()),
            ("PUBLIC_ACCESS_FIREWALL_NAME", "c-1-nodes".to_owned()),
            ("PUBLIC_ACCESS_FIREWALL_TAGS", "k8s:c-1:worker".to_owned()),
            ("METRICS_ADDR", format!("127.0.0.1:{}", self.metrics)),
            ("DEBUG_ADDR", format!("127.0.0.1:{}", self.debug)),
        ];
        let launch = Launch {
            program,
            args: vec![
                "--leader-elect=false".to_owned(),
                // The test bed reads the rest without a token.
                "--authorization-always-allow-paths=/healthz,/readyz,/livez".to_owned(),
                format!("--kubeconfig={}", self.account.display()),
            ],
            envs: variables.map(|(name, value)| (name.to_owned(), value)).into(),
            log: self.stage.log_path(),
        };
        let mut ccm = Ccm::start(&launch).unwrap();
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        ccm
    }

    async fn create(&self, name: &str, kind: &str, annotations: Value) {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": kind, "selector": {"app": name}, "ports": [{"name": "http", "port": 80}]},
        });
        let service = serde_json::from_value(service).unwrap();
        self.services.create(&PostParams::default(), &service).await.unwrap();
    }

    /// The managed firewall's inbound rules as `tcp 80`, sorted.
    fn opened(&self) -> Vec<String> {
        let firewalls = self.cloud.documents("firewalls");
        let mut found = firewalls.iter().filter(|firewall| firewall["name"] == "c-1-nodes");
        let rules = found.next().map(|firewall| firewall["inbound_rules"].clone()).unwrap_or_default();
        let rules = rules.as_array().cloned().unwrap_or_default();
        let text = |rule: &Value, field: &str| rule[field].as_str().unwrap_or_default().to_owned();
        let mut rules: Vec<_> = rules
            .iter()
            .map(|rule| format!("{} {}", text(rule, "protocol"), text(rule, "ports")))
            .collect();
        rules.sort();
        rules
    }

    async fn get(&self, port: u16, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_programs_manifest_starts_all_controllers() {
    let scene = Scene::new().await;
    // A load balancer that was created before the cluster had an ID.
    let rule =
        json!({"entry_protocol": "tcp", "entry_port": 80, "target_protocol": "tcp", "target_port": 80});
    let old = scene
        .cloud
        .create("load_balancers", fields(&json!({"name": "old", "forwarding_rules": [rule]})));
    scene
        .create(
            "old",
            "LoadBalancer",
            json!({
                "kubernetes.digitalocean.com/load-balancer-id": old,
                format!("{PREFIX}name"): "old",
                // The Service is invalid, so that only the tags controller writes.
                format!("{PREFIX}size-unit"): "many",
            }),
        )
        .await;
    let ccm = scene.start().await;
    scene.initialized().await;

    let tagged = async || {
        let balancers = scene.cloud.documents("load_balancers");
        let old = balancers.iter().find(|balancer| balancer["name"] == "old")?;
        (old["tags"] == json!(["k8s:c-1"])).then_some(())
    };
    scene.stage.eventually("the tags controller tags the load balancer", tagged).await;

    scene.create("web", "LoadBalancer", json!({})).await;
    scene.create("admin", "NodePort", json!({})).await;
    scene
        .create("closed", "NodePort", json!({"kubernetes.digitalocean.com/firewall-managed": "false"}))
        .await;
    let admin = scene.services.get("admin").await.unwrap();
    let node_port = admin.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let mut expected = vec![
        "tcp 10256".to_owned(),
        format!("tcp {node_port}"),
        "tcp 80".to_owned(),
    ];
    expected.sort();
    scene
        .stage
        .eventually("the firewall opens the ports", async || (scene.opened() == expected).then_some(()))
        .await;
    let served = async || {
        let web = scene.services.get("web").await.ok()?;
        let ingress = web.status?.load_balancer?.ingress?;
        let found =
            scene.cloud.documents("load_balancers").into_iter().find(|found| found["name"] != "old")?;
        (ingress[0].ip.as_deref() == found["ip"].as_str()).then_some(found)
    };
    let balancer = scene.stage.eventually("the Service is served", served).await;
    assert!(balancer["tags"].as_array().unwrap().contains(&json!("k8s:c-1")), "{balancer}");
    let firewall = scene.cloud.documents("firewalls").remove(0);
    assert_eq!(firewall["tags"], json!(["k8s:c-1:worker"]));

    let (status, metrics) = scene.get(scene.metrics, "/metrics").await;
    assert_eq!(status, 200);
    for name in [
        "ccm_cloud_",
        "firewall_api_operations_total{",
        "firewall_reconciles_total{",
        "# TYPE ccm_build_info gauge",
    ] {
        assert!(metrics.contains(name), "{name} is not in {metrics}");
    }
    assert_eq!(scene.get(scene.debug, "/healthz").await, (200, "ok".to_owned()));
    scene
        .cloud
        .add_fault(ccm_sim::Fault::on("account_get", ccm_sim::Action::status(401)).once());
    assert_eq!(scene.get(scene.debug, "/healthz").await.0, 500);

    // The next process reverts a manual change.
    let id = firewall["id"].as_str().unwrap();
    drop(ccm);
    scene.cloud.change("firewalls", id, fields(&json!({"inbound_rules": []}))).unwrap();
    let ccm = scene.start().await;
    scene
        .stage
        .eventually("the firewall is corrected", async || (scene.opened() == expected).then_some(()))
        .await;
    let patch = Patch::Merge(
        json!({"metadata": {"annotations": {"kubernetes.digitalocean.com/firewall-managed": "false"}}}),
    );
    scene.services.patch("admin", &PatchParams::default(), &patch).await.unwrap();
    let closed = async || (scene.opened() == ["tcp 10256", "tcp 80"]).then_some(());
    scene.stage.eventually("the firewall closes the node port", closed).await;
    scene.services.delete("web", &DeleteParams::default()).await.unwrap();
    let deleted = async || {
        (scene.cloud.documents("load_balancers").len() == 1 && scene.opened().is_empty()).then_some(())
    };
    scene
        .stage
        .eventually("the load balancer is deleted and the ports are closed", deleted)
        .await;
    let log = scene.stage.log();
    assert!(!log.contains(&Config::default().token), "the token is in the log");
    // Without the right to review tokens all requests for metrics are refused. Everything else works without the missing rights.
    assert_eq!(ccm.get_as("a token", "/metrics").await.unwrap().0, 503);
    assert_eq!(
        scene.denied(),
        [
            "create tokenreviews ",
            "get namespaces kube-system",
            "list configmaps extension-apiserver-authentication"
        ]
    );
    drop(ccm);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hourly_limit_delays_work_and_loses_none() {
    let scene = Scene::new().await;
    // A small quota in place of an hour's: a few requests at once, then one in half a second.
    let quota = Quota {
        per_second: 2.0,
        burst: 6,
    };
    scene.cloud.set_quota(SERVICE, Some(quota));
    let ccm = scene.start().await;
    let names = ["web-1", "web-2", "web-3", "web-4"];
    for name in names {
        scene.create(name, "LoadBalancer", json!({})).await;
    }
    scene.initialized().await;
    let served = async || {
        for name in names {
            let service = scene.services.get(name).await.ok()?;
            service.status?.load_balancer?.ingress?;
        }
        Some(())
    };
    scene.stage.eventually("all Services are served", served).await;
    let calls = scene.cloud.calls();
    let refused = calls.iter().filter(|call| call.status == Some(429)).count();
    assert!(calls.len() > 6 && refused <= 3, "{refused} of {} refused", calls.len());
    assert_eq!(scene.cloud.documents("load_balancers").len(), names.len());
    assert_eq!(ccm.get("/readyz").await.unwrap().0, 200);
    drop(ccm);
}

#[tokio::test(flavor = "multi_thread")]
async fn digitaloceans_own_client_agrees_with_the_simulator() {
    let cloud = DigitalOcean::start(Config::default()).await.unwrap();
    let droplet = cloud.create_droplet("node-1");
    let folder = root().join("tests/digitalocean/pydo");
    let requirements: PathBuf = folder.join("requirements.txt");
    let url = cloud.url().to_owned();
    let output = tokio::task::spawn_blocking(move || {
        let python = python::environment("pydo", &requirements, "pydo, DigitalOcean's own client,").unwrap();
        let mut command = Command::new(python);
        command.arg(folder.join("client.py")).args([&url, &Config::default().token, &droplet]);
        command.output().unwrap()
    });
    let output = output.await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(cloud.documents("load_balancers").len(), 0);
}
