//! The whole program against a real kube-apiserver and Compute Engine in memory: what only this cloud has.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use ccm_testbed::{
    binary::Ccm,
    gce::{GceOptions, PROJECT_NUMBER, ZONES},
    manifests,
    nodes::{self, NodeSpec},
    observe::{addresses, is_initialized, provider_id},
    stage::Stage,
    test_cloud::{GceCloud, Machine, TestCloud as _, TestRoutes as _},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use reqwest::Method;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);
/// The network of all Pods.
const CLUSTER_CIDR: &str = "--cluster-cidr=10.244.0.0/16";
/// The flags that kOps writes into upstream's manifest, which has no arguments itself. Without node IPAM.
const ARGUMENTS: [&str; 8] = [
    "--cloud-provider=gce",
    "--cluster-name=example.k8s.local",
    "--controllers=*",
    "--configure-cloud-routes=false",
    "--leader-elect=true",
    "--leader-migration-config=",
    "--use-service-account-credentials=true",
    "--v=2",
];
/// Nodes of a cluster in which lists of all instances of the zones are cheaper than reads of each.
const MANY: usize = 40;
/// Permissions of the custom role that this cluster does not need, with the cluster that does.
const OF_OTHER_CLUSTERS: [(&str, &str); 3] = [
    ("compute.subnetworks.list", "the config does not name the subnetwork"),
    ("compute.globalOperations.list", "very many routes are created at once"),
    ("compute.routes.get", "a route exists already when it is created"),
];

/// Permissions for load balancers. The tests of the provider hold the role to them.
const OF_LOAD_BALANCERS: [&str; 12] = [
    "compute.addresses.",
    "compute.firewalls.",
    "compute.forwardingRules.",
    "compute.healthChecks.",
    "compute.httpHealthChecks.",
    "compute.instanceGroups.",
    "compute.networks.use",
    "compute.regionBackendServices.",
    "compute.regionOperations.",
    "compute.subnetworks.use",
    "compute.targetPools.",
    "compute.zoneOperations.",
];

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_cloud-controller-manager"))
}

/// A cluster on a cloud.
struct Cluster {
    cloud: GceCloud,
    stage: Stage,
    nodes: Api<Node>,
}

impl Cluster {
    async fn begin(cloud: GceCloud, config: &str) -> Self {
        let stage = Stage::set(program()).await.unwrap();
        stage.write_cloud_config(config).unwrap();
        let nodes = Api::all(stage.control_plane.client().await.unwrap());
        Self { cloud, stage, nodes }
    }

    async fn start(&self, flags: &[&str]) -> Ccm {
        let kubeconfig = self.stage.control_plane.kubeconfig();
        let mut launch = self.stage.command("gce", &kubeconfig, flags);
        launch.args.push("--leader-elect=false".to_owned());
        launch.envs = self.cloud.environment();
        let mut ccm = Ccm::start(&launch).unwrap();
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        ccm
    }

    async fn register(&self, spec: NodeSpec) {
        nodes::register(&self.nodes.clone().into_client(), [&spec]).await.unwrap();
    }

    async fn node(&self, name: &str) -> Option<Node> {
        self.nodes.get_opt(name).await.ok()?
    }

    async fn initialized(&self, machine: &Machine) -> Node {
        let node = async || self.node(&machine.node).await.filter(is_initialized);
        let node = self.stage.eventually("the node is initialized", node).await;
        assert_eq!(provider_id(&node), machine.provider_id);
        let expected = machine.addresses.iter().map(|(kind, address)| (kind.as_str(), address.as_str()));
        assert_eq!(addresses(&node), expected.collect::<Vec<_>>());
        node
    }

    fn validate(&self, config: &Path) -> Output {
        Command::new(program())
            .args(["validate", "--cloud-provider=gce"])
            .arg(format!("--cloud-config={}", config.display()))
            .envs(self.cloud.environment())
            .output()
            .unwrap()
    }
}

fn path_in_zone(machine: &Machine) -> String {
    machine.id.splitn(3, '/').nth(2).unwrap().to_owned()
}

/// Starts the program as upstream's manifest does after a change of the image alone, with upstream's account and role, on an
/// instance without a config file.
#[tokio::test(flavor = "multi_thread")]
async fn upstreams_manifest_starts_the_program() {
    let cloud = GceCloud::start().await.unwrap();
    let stage = Stage::set(program()).await.unwrap();
    let role = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/every_cloud/roles/gce.yaml");
    let account = manifests::account(&stage.control_plane, &role).await.unwrap();
    let machine = cloud.create_machine("control-plane").await.unwrap();
    // The keys that kOps writes. Project, zone and network come from the metadata server.
    let config = format!(
        "[global]\nmultizone = true\nnode-tags = example-k8s-local-k8s-io-role-node\nnode-instance-prefix = example\n\
         api-endpoint = {}\n",
        cloud.proxy.api_endpoint()
    );
    stage.write_cloud_config(&config).unwrap();
    let mut launch = stage.command("gce", &account, &[]);
    launch.args = ARGUMENTS.map(str::to_owned).to_vec();
    launch.args.push(format!("--cloud-config={}", stage.cloud_config().display()));
    // A Pod has both. Here, flags set them.
    launch.args.push(format!("--kubeconfig={}", account.display()));
    launch.args.push("--secure-port=0".to_owned());
    launch.envs = cloud.environment();
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

/// Without `multizone`, upstream looks only into the zone of the config, and deletes nodes of other zones.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_all_zones_are_found_without_multizone() {
    let cloud = GceCloud::start().await.unwrap();
    let config = cloud.config().replace("multizone = true\n", "");
    assert!(!config.contains("multizone"));
    let cluster = Cluster::begin(cloud, &config).await;
    let names: Vec<_> = (1..=ZONES.len()).map(|at| format!("node-{at}")).collect();
    let machines = cluster.cloud.create_machines(&names).await.unwrap();
    let _ccm = cluster.start(&["--configure-cloud-routes=false"]).await;
    for machine in &machines {
        cluster.register(NodeSpec::new(&machine.node)).await;
    }
    for machine in &machines {
        cluster.initialized(machine).await;
    }
    let calls = cluster.cloud.calls();
    let lists = calls.get("compute instances.list").copied().unwrap_or_default();
    let gets = calls.get("compute instances.get").copied().unwrap_or_default();
    assert!(lists + gets > 0, "{calls:?}");
}

/// A stopped instance keeps its node, which gets the shutdown taint. Its ephemeral external address is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_instance_taints_its_node() {
    let cloud = GceCloud::start().await.unwrap();
    let config = cloud.config();
    let cluster = Cluster::begin(cloud, &config).await;
    let machine = cluster.cloud.create_machine("node-1").await.unwrap();
    let flags = [
        "--configure-cloud-routes=false",
        "--node-monitor-period=200ms",
        "--node-deletion-grace=0s",
        "--node-deletion-confirm=200ms",
    ];
    let _ccm = cluster.start(&flags).await;
    cluster.register(NodeSpec::new(&machine.node)).await;
    cluster.initialized(&machine).await;
    let stop = format!("{}/stop", path_in_zone(&machine));
    cluster.cloud.call(Method::POST, &stop, None).await.unwrap();
    nodes::set_ready(&cluster.nodes.clone().into_client(), &machine.node, false)
        .await
        .unwrap();
    let tainted = async || {
        let taints = cluster.node(&machine.node).await?.spec?.taints?;
        taints
            .iter()
            .any(|taint| taint.key == "node.cloudprovider.kubernetes.io/shutdown")
            .then_some(())
    };
    cluster.stage.eventually("the shutdown taint", tainted).await;
}

/// The network and its routes are in another project, which the config names by its number.
#[tokio::test(flavor = "multi_thread")]
async fn routes_of_a_shared_network_are_in_the_project_of_the_network() {
    let options = GceOptions {
        projects: vec!["service-project".to_owned(), "host-project".to_owned()],
        ..GceOptions::default()
    };
    let cloud = GceCloud::start_with(&options).await.unwrap();
    let host_number = PROJECT_NUMBER.parse::<u64>().unwrap() + 1;
    let config = format!("{}network-project-id = {host_number}\n", cloud.config());
    let cluster = Cluster::begin(cloud, &config).await;
    let machine = cluster.cloud.create_machine("node-1").await.unwrap();
    let _ccm = cluster.start(&["--controllers=*,-service", CLUSTER_CIDR, "--cluster-name=shared"]).await;
    let spec = NodeSpec {
        pod_cidrs: vec!["10.244.1.0/24".to_owned()],
        ..NodeSpec::new(&machine.node)
    };
    cluster.register(spec).await;
    cluster.initialized(&machine).await;
    let created = async || {
        let routes = cluster.cloud.objects(&["routes"]).await.ok()?;
        routes.into_iter().next()
    };
    let (path, route) = cluster.stage.eventually("the route exists", created).await;
    assert!(path.starts_with("projects/host-project/global/routes/shared-"), "{path}");
    assert!(
        route["network"]
            .as_str()
            .unwrap()
            .ends_with("projects/host-project/global/networks/default")
    );
    assert!(route["nextHopInstance"].as_str().unwrap().ends_with(&machine.id), "{route}");
}

/// The custom role of `deploy/` as the permissions in a project.
fn custom_role() -> BTreeSet<String> {
    let file = manifests::read(&manifests::shipped("gce/role.yaml")).unwrap();
    serde_json::from_value(file[0]["includedPermissions"].clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_permissions_of_the_custom_role_are_needed_and_no_others() {
    let role = custom_role();
    // Changes last for a moment, so that the program waits for their operations.
    let options = GceOptions {
        operation: Duration::from_millis(300),
        ..GceOptions::default()
    };
    let cloud = GceCloud::start_with(&options).await.unwrap();
    let project = cloud.project().to_owned();
    // The number of a project is replaced by its ID.
    let id = format!("project-id = {project}\n");
    let config = cloud.config().replace(&id, &format!("project-id = {PROJECT_NUMBER}\n"));
    assert!(config.contains(PROJECT_NUMBER));
    let cluster = Cluster::begin(cloud, &config).await;
    cluster.cloud.set("iam", &json!({project.as_str(): {"granted": role}})).await.unwrap();
    // A route of a node that no longer exists is deleted.
    let leaver = cluster.cloud.create_machine("leaver").await.unwrap();
    cluster
        .cloud
        .reset(&[("10.244.99.0/24", &leaver)], &[], ("10.244.99.0/24", &leaver))
        .await
        .unwrap();
    // So many that a list is cheaper than reads of each.
    let names: Vec<_> = (1..=MANY).map(|at| format!("node-{at}")).collect();
    let machines = cluster.cloud.create_machines(&names).await.unwrap();
    // The requests of the test itself need permissions, too.
    cluster.cloud.take_permissions().await.unwrap();
    let validated = cluster.validate(&cluster.stage.cloud_config());
    let text = String::from_utf8_lossy(&validated.stdout).into_owned();
    assert!(validated.status.success(), "{text}");

    let mut expected = BTreeSet::new();
    let mut specs = Vec::new();
    for (at, machine) in machines.iter().enumerate() {
        let network = format!("10.244.{at}.0/24");
        expected.insert((network.clone(), machine.id.clone()));
        specs.push(NodeSpec {
            pod_cidrs: vec![network],
            ..NodeSpec::new(&machine.node)
        });
    }
    // One node alone is read, and many are listed.
    let others = specs.split_off(1);
    let client = cluster.nodes.clone().into_client();
    nodes::register(&client, &specs).await.unwrap();
    let _ccm = cluster.start(&["--controllers=*,-service", CLUSTER_CIDR]).await;
    cluster.initialized(&machines[0]).await;
    nodes::register(&client, &others).await.unwrap();
    for machine in &machines {
        cluster.initialized(machine).await;
    }
    let routed = async || (cluster.cloud.table().await.ok()? == expected).then_some(());
    cluster.stage.eventually("only the routes of the nodes exist", routed).await;

    let refused: Vec<_> = cluster
        .cloud
        .proxy
        .requests()
        .into_iter()
        .filter(|request| request.status == Some(403))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let used = cluster.cloud.take_permissions().await.unwrap();
    let mut unused: BTreeSet<_> = role.difference(&used).map(String::as_str).collect();
    unused.retain(|unused| !OF_LOAD_BALANCERS.iter().any(|prefix| unused.starts_with(prefix)));
    let known: BTreeSet<_> = OF_OTHER_CLUSTERS.iter().map(|(permission, _)| *permission).collect();
    assert!(unused.is_subset(&known), "{unused:?} of the role were not used");
}

#[tokio::test(flavor = "multi_thread")]
async fn validate_names_a_missing_permission() {
    let cloud = GceCloud::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gce.conf");
    std::fs::write(&file, cloud.config()).unwrap();
    let project = cloud.project().to_owned();
    cloud.set("iam", &json!({project: {"denied": ["compute.routes.create"]}})).await.unwrap();
    let output = Command::new(program())
        .args(["validate", "--cloud-provider=gce", "-o", "json"])
        .arg(format!("--cloud-config={}", file.display()))
        .envs(cloud.environment())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].to_string();
    assert!(findings.contains("compute.routes.create"), "{report}");
    assert!(!findings.contains("compute.routes.delete"), "{report}");
}

/// Only the process that leads creates the ConfigMap with the ID of the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_lead_creates_no_cluster_id() {
    let cloud = GceCloud::start().await.unwrap();
    let config = cloud.config();
    let cluster = Cluster::begin(cloud, &config).await;
    let client = cluster.nodes.clone().into_client();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let ids: Api<ConfigMap> = Api::namespaced(client, "kube-system");
    let name = "cloud-controller-manager";
    let held = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "holderIdentity": "another",
            "leaseDurationSeconds": 3600,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }));
    leases.create(&PostParams::default(), &held.unwrap()).await.unwrap();
    let mut launch = cluster.stage.command("gce", &cluster.stage.control_plane.kubeconfig(), &[]);
    launch.envs = cluster.cloud.environment();
    let mut ccm = Ccm::start(&launch).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    let waits = async || ccm.log().ok()?.contains("Another process leads").then_some(());
    cluster.stage.eventually("the process has read who leads", waits).await;
    assert!(ids.get_opt("ingress-uid").await.unwrap().is_none());

    let release = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    leases.patch(name, &PatchParams::default(), &release).await.unwrap();
    let created = async || ids.get_opt("ingress-uid").await.ok()?;
    let id = cluster.stage.eventually("the leader creates the ID", created).await;
    let acquired = leases.get(name).await.unwrap().spec.unwrap().acquire_time.unwrap();
    let created = id.metadata.creation_timestamp.unwrap();
    // The API server leaves out fractions of seconds.
    assert!(created.0.as_second() >= acquired.0.as_second(), "{created:?}, {acquired:?}");
}
