//! The whole program against a real kube-apiserver and an account of AWS on moto: features that only AWS has.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::path::Path;

use ccm_testbed::{
    binary::Ccm,
    manifests,
    nodes::{self, NodeSpec},
    observe::{is_initialized, provider_id},
    proxy::{Action, Request, Rule},
    stage::Stage,
    test_cloud::{AwsCloud, TestCloud},
};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

/// The arguments in upstream's manifest. They name no program, because its image has an entrypoint. No cloud.conf is mounted,
/// because all settings come from the instance.
const ARGUMENTS: [&str; 4] = [
    "--v=2",
    "--cloud-provider=aws",
    "--use-service-account-credentials=true",
    "--configure-cloud-routes=false",
];

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
