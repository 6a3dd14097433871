//! The program as the Helm chart installs it, with the arguments and under the account of the rendered chart.

use ccm_testbed::{
    binary::Ccm,
    helm::{Helm, HelmVersion},
    manifests::{granted, parse, shipped},
    nodes::{self, NodeSpec},
    observe::is_initialized,
    stage::Stage,
    test_cloud::TestCloud,
};
use k8s_openapi::api::core::v1::{Node, Secret, Service};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::{LIMIT, on_each, program};

/// Starts the program with the arguments of this release.
async fn start(cloud: &dyn TestCloud, stage: &Stage, helm: &Helm, release: &str) -> Ccm {
    let manifest = helm.run(&["get", "manifest", release, "--namespace=kube-system"]).unwrap();
    let objects = parse(&manifest).unwrap();
    let pods = objects.iter().find_map(|object| object["spec"]["template"].get("spec")).unwrap();
    let account = pods["serviceAccountName"].as_str().unwrap();
    let kubeconfig = granted(&stage.control_plane, &objects, "kube-system", account).await.unwrap();
    let args = pods["containers"][0]["args"].as_array().unwrap().iter();
    let args = args.filter_map(Value::as_str).filter(|word| !word.starts_with("--cloud-config="));
    let flags: Vec<_> = args.map(|word| word.replace("$(CLUSTER_NAME)", "kubernetes")).collect();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let mut launch = stage.command(cloud.provider(), &kubeconfig, &flags);
    launch.envs = cloud.environment();
    let mut ccm = Ccm::start(&launch).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    ccm
}

/// Adds a node, and creates and deletes a Service.
async fn work(cloud: &dyn TestCloud, stage: &Stage, name: &str) {
    let client = stage.control_plane.client().await.unwrap();
    let machine = cloud.create_machine(name).await.unwrap();
    nodes::register(&client, [&NodeSpec::new(&machine.node)]).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let services: Api<Service> = Api::default_namespaced(client);
    let initialized = async || is_initialized(&nodes.get(&machine.node).await.ok()?).then_some(());
    stage.eventually("the node is initialized", initialized).await;
    let service = json!({
        "metadata": {"name": name, "annotations": cloud.service().annotations},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]},
    });
    let service = serde_json::from_value(service).unwrap();
    services.create(&PostParams::default(), &service).await.unwrap();
    let served = async || {
        let service = services.get(name).await.ok()?;
        cloud.unserved(&service).await.ok()?.is_none().then_some(())
    };
    stage.eventually("the Service is served", served).await;
    services.delete(name, &DeleteParams::default()).await.unwrap();
    let deleted = async || services.get_opt(name).await.ok()?.is_none().then_some(());
    stage.eventually("the Service is deleted", deleted).await;
}

async fn end(stage: &Stage, mut ccm: Ccm) {
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());
    let log = stage.control_plane.audit_log().unwrap();
    let refused: Vec<_> = log
        .iter()
        .filter(|entry| entry.code == 403 && entry.user.starts_with("system:serviceaccount:"))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(log.iter().any(|entry| entry.user.starts_with("system:serviceaccount:kube-system:")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_the_chart_has_every_right_that_is_needed() {
    on_each(async |cloud| {
        let stage = Stage::set(program()).await.unwrap();
        stage.write_cloud_config(&cloud.config()).unwrap();
        let helm = Helm::new(HelmVersion::V3, stage.control_plane.kubeconfig()).unwrap();
        let chart = shipped("chart");
        let values = [
            "--namespace=kube-system".to_owned(),
            format!("--set=cloud={},image.repository=cloud-controller-manager", cloud.provider()),
            format!("--set-file=cloudConfigContents={}", stage.cloud_config().display()),
        ];
        let run = |args: &[&str]| {
            let mut words = args.to_vec();
            words.insert(2, chart.to_str().unwrap());
            words.extend(values.iter().map(String::as_str));
            helm.run(&words).unwrap()
        };
        run(&["install", "ccm"]);
        // A cloud may take everything from its environment.
        if !cloud.config().is_empty() {
            let secrets: Api<Secret> =
                Api::namespaced(stage.control_plane.client().await.unwrap(), "kube-system");
            let secret = secrets.get("cloud-config").await.unwrap().data.unwrap();
            let config = String::from_utf8(secret["cloud.conf"].0.clone()).unwrap();
            assert_eq!(config.trim(), cloud.config().trim());
        }

        let ccm = start(&*cloud, &stage, &helm, "ccm").await;
        work(&*cloud, &stage, "first").await;
        // Beside it, a dry run.
        run(&["install", "dry-run", "--set=dryRun=true"]);
        let dry_run = start(&*cloud, &stage, &helm, "dry-run").await;
        let compared = async || {
            let (_, metrics) = dry_run.get("/metrics").await.ok()?;
            let comparisons =
                metrics.lines().find_map(|line| line.strip_prefix("ccm_dry_run_plans_total "))?;
            comparisons.parse::<f64>().ok().filter(|comparisons| *comparisons > 0.0)
        };
        stage.eventually("a comparison", compared).await;
        end(&stage, dry_run).await;
        end(&stage, ccm).await;

        run(&[
            "upgrade",
            "ccm",
            "--set=controllerExtraArgs={--use-service-account-credentials,--enable-leader-migration}",
        ]);
        let ccm = start(&*cloud, &stage, &helm, "ccm").await;
        work(&*cloud, &stage, "second").await;
        end(&stage, ccm).await;
    })
    .await;
}
