//! The whole program against a real kube-apiserver and an account of AWS on moto: features that only AWS has.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{path::Path, process::Command, time::Duration};

use ccm_testbed::{
    binary::Ccm,
    manifests,
    nodes::{self, NodeSpec},
    observe::{is_initialized, provider_id},
    proxy::{Action, Request, Rule},
    stage::Stage,
    test_cloud::{AwsCloud, TestCloud},
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

/// The arguments in upstream's manifest. They name no program, because its image has an entrypoint. No cloud.conf is mounted,
/// because all settings come from the instance.
const ARGUMENTS: [&str; 4] = [
    "--v=2",
    "--cloud-provider=aws",
    "--use-service-account-credentials=true",
    "--configure-cloud-routes=false",
];

/// Time limit for the end of the program.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts the program as upstream's manifest does after a change of the image alone, with upstream's account and role.
#[tokio::test(flavor = "multi_thread")]
async fn upstreams_manifest_starts_the_program() {
    let cloud = AwsCloud::start().await.unwrap();
    let stage = Stage::set(env!("CARGO_BIN_EXE_cloud-controller-manager")).await.unwrap();
    let role = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/every_cloud/roles/aws.yaml");
    let account = manifests::account(&stage.control_plane, &role).await.unwrap();
    let machine = cloud.create_machine("control-plane").await.unwrap();
    // The emulator's metadata service names an instance that does not exist.
    let instance = Action::answer(200, machine.id.clone());
    let is_asked = |request: &Request| request.path.ends_with("/instance-id");
    cloud.proxy.add(Rule::when(is_asked, instance));
    let mut launch = stage.command("aws", &account, &[]);
    launch.args = ARGUMENTS.map(str::to_owned).to_vec();
    // A Pod has both. Here, flags set them.
    launch.args.push(format!("--kubeconfig={}", account.display()));
    launch.args.push("--secure-port=0".to_owned());
    launch.envs = [
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", ccm_testbed::moto::SECRET),
        ("AWS_ENDPOINT_URL", &cloud.proxy.url()),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &cloud.proxy.url()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .to_vec();
    let _ccm = Ccm::start(&launch).unwrap();

    let client = stage.control_plane.client().await.unwrap();
    nodes::register(&client, [&NodeSpec::new(&machine.node)]).await.unwrap();
    let nodes: Api<Node> = Api::all(client);
    let initialized = async || {
        let node = nodes.get(&machine.node).await.ok()?;
        (is_initialized(&node) && provider_id(&node) == machine.provider_id).then_some(())
    };
    stage.eventually("the node is initialized", initialized).await;
}

/// The annotations that the Go program does not read for a network load balancer, with values that would change something.
const WITHOUT_EFFECT: [(&str, &str); 7] = [
    ("scheme", "internal"),
    ("ip-address-type", "dualstack"),
    ("alpn-policy", "HTTP2Preferred"),
    ("attributes", "deletion_protection.enabled=true"),
    ("healthcheck-success-codes", "200"),
    ("healthcheck-timeout", "7"),
    ("proxy-protocol", "*"),
];

/// On a load balancer of the Go program, annotations that it does not read change nothing, and `plan` lists each.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_lists_each_annotation_without_effect() {
    const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
    let program = env!("CARGO_BIN_EXE_cloud-controller-manager");
    let cloud = AwsCloud::start().await.unwrap();
    let stage = Stage::set(program).await.unwrap();
    stage.write_cloud_config(&cloud.config()).unwrap();
    let client = stage.control_plane.client().await.unwrap();
    let machine = cloud.create_machine("node").await.unwrap();
    nodes::register(&client, [&NodeSpec::new(&machine.node)]).await.unwrap();
    let services: Api<Service> = Api::default_namespaced(client);
    let service = json!({
        "metadata": {"name": "web", "annotations": {format!("{PREFIX}type"): "nlb"}},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    let service = serde_json::from_value(service).unwrap();
    services.create(&PostParams::default(), &service).await.unwrap();
    let kubeconfig = stage.control_plane.kubeconfig();
    let mut launch = stage.command("aws", &kubeconfig, &["--configure-cloud-routes=false"]);
    launch.envs = cloud.environment();
    let mut ccm = Ccm::start(&launch).unwrap();
    let plan = || {
        let mut command = Command::new(program);
        command.arg("plan").args(&launch.args).envs(cloud.environment());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let served = async || {
        let service = services.get("web").await.ok()?;
        let is_served = cloud.unserved(&service).await.ok()?.is_none();
        (is_served && plan().0 == Some(0)).then_some(())
    };
    stage.eventually("the Service is served, and nothing is left to do", served).await;
    ccm.terminate().unwrap();
    ccm.wait(LIMIT).await.unwrap();
    // As if the Go program had created it.
    let balancers = cloud.call("v2", "describe_load_balancers", json!({})).await.unwrap();
    let tags = json!({
        "ResourceArns": [balancers["LoadBalancers"][0]["LoadBalancerArn"]],
        "TagKeys": ["cloud-controller-manager/cluster", "cloud-controller-manager/attributes"],
    });
    cloud.call("v2", "remove_tags", tags).await.unwrap();
    let annotations: serde_json::Map<_, _> = WITHOUT_EFFECT
        .iter()
        .map(|(key, value)| (format!("{PREFIX}{key}"), json!(value)))
        .collect();
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    services.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let (code, text) = plan();
    // Nothing would be changed.
    assert_eq!(code, Some(3), "{text}");
    for (key, _) in WITHOUT_EFFECT {
        let name = format!("annotation {PREFIX}{key}: ");
        let mut lines = text.lines().filter(|line| line.contains(&name));
        let line = lines.next().unwrap_or_else(|| panic!("{name} is not in {text}"));
        assert!(line.trim_start().starts_with("! "), "{line}");
        assert!(line.contains("the Go cloud-controller-manager created the load balancer"), "{line}");
        assert_eq!(lines.next(), None, "{text}");
    }
}
