//! The Helm chart: its output, the values that it refuses, and the upgrade of a release of a Go program's chart with rollback.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{fs, path::PathBuf};

use ccm_testbed::{
    controlplane::ControlPlane,
    helm::{Helm, UpstreamCharts},
    manifests::{accept_monitoring, apply, parse, read, shipped},
};
use cloud_controller_manager::options::{self, Request};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chart").join(path)
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

/// The value files by name.
fn value_files() -> Vec<(String, PathBuf)> {
    let mut files: Vec<_> = fs::read_dir(here("values"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    files.sort();
    assert_eq!(files.len(), 11);
    files
}

/// `helm template` of this chart in kube-system.
fn template(helm: &Helm, args: &[&str]) -> anyhow::Result<String> {
    let (chart, image) = (shipped("chart"), here("image.yaml"));
    let mut words = vec!["template", "ccm", text(&chart), "--namespace=kube-system"];
    words.extend(["--values", text(&image)]);
    words.extend(args);
    helm.run(&words)
}

fn offline() -> Helm {
    Helm::new("/nonexistent").unwrap()
}

/// The object with Pods.
fn workload(objects: &[Value]) -> &Value {
    let mut found = objects.iter().filter(|object| object["spec"]["template"].is_object());
    found.next().expect("an object with Pods")
}

#[test]
fn each_value_file_renders_as_before() {
    let helm = offline();
    for (name, path) in value_files() {
        let rendered = template(&helm, &["--values", text(&path)]).unwrap();
        insta::assert_snapshot!(name, rendered);
    }
}

#[test]
fn alerts_and_dashboard_are_those_of_the_monitoring_folder() {
    let set = "--set=cloud=aws,prometheusRule.enabled=true,dashboard.enabled=true";
    let objects = parse(&template(&offline(), &[set]).unwrap()).unwrap();
    let only = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    let alerts = &read(&shipped("monitoring/alerts.yaml")).unwrap()[0];
    assert_eq!(only("PrometheusRule")["spec"], *alerts);
    let dashboard: Value =
        serde_json::from_str(only("ConfigMap")["data"]["cloud-controller-manager.json"].as_str().unwrap())
            .unwrap();
    let file = fs::read_to_string(shipped("monitoring/dashboard.json")).unwrap();
    assert_eq!(dashboard, serde_json::from_str::<Value>(&file).unwrap());
}

#[test]
fn the_program_accepts_the_arguments_without_a_warning() {
    let providers = cloud_controller_manager::providers::registered().unwrap();
    let helm = offline();
    for (name, path) in value_files() {
        let objects = parse(&template(&helm, &["--values", text(&path)]).unwrap()).unwrap();
        let container = workload(&objects)["spec"]["template"]["spec"]["containers"][0].clone();
        let words: Vec<_> =
            container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let cloud = words.iter().find_map(|word| word.strip_prefix("--cloud-provider=")).unwrap();
        if !providers.iter().any(|provider| provider.name == cloud) {
            continue;
        }
        let words = words.iter().map(|word| {
            let words = word.replace("$(CLOUD_CONFIG)", "/etc/config/cloud.conf");
            words.replace("$(CLUSTER_NAME)", "kubernetes").into()
        });
        let Request::Run(config) = options::parse(words, &providers).unwrap() else {
            panic!("{name}: not a request to run")
        };
        assert_eq!(config.warnings, [""; 0], "{name}");
        assert_eq!(config.dry_run, name.ends_with("dry-run"), "{name}");
        // The roles allow the use of the Leases that the arguments name.
        let rendered = json!(objects).to_string();
        assert_eq!(config.service_accounts, rendered.contains("serviceaccounts/token"), "{name}");
        if let Some(election) = config.election {
            let lease = json!(election.name);
            let allows =
                |rule: &Value| rule["resourceNames"].as_array().is_some_and(|names| names.contains(&lease));
            let allowed = objects
                .iter()
                .any(|object| object["rules"].as_array().is_some_and(|rules| rules.iter().any(allows)));
            assert!(allowed || config.dry_run, "{name}: no right for {lease}");
        }
    }
}

#[test]
fn a_value_of_a_flag_may_be_an_item_of_its_own() {
    let render = |args: &str| {
        let args = format!("args={{{args}}}");
        let rendered = template(&offline(), &["--set=cloud=aws", "--set-string", &args]).unwrap();
        let mut objects = json!(parse(&rendered).unwrap());
        let words = objects.as_array_mut().unwrap().iter_mut();
        let mut words =
            words.filter_map(|object| object.pointer_mut("/spec/template/spec/containers/0/args"));
        (words.next().unwrap().take(), objects)
    };
    let args = "--bind-address=0.0.0.0,--secure-port=10300,--leader-elect-resource-name=lease";
    let (joined, expected) = render(args);
    let (apart, objects) = render(&args.replace('=', ","));
    assert_ne!(apart, joined);
    assert_eq!(objects, expected);
    // The short form of --v.
    let (words, _) = render("-v=4");
    assert!(!words.to_string().contains("--v="), "{words}");
}

#[test]
fn null_removes_one_label_of_the_default_node_selector() {
    let values = "--set=cloud=openstack,cloudConfig=null,nodeSelector.a=b,nodeSelector.node-role\\.kubernetes\\.io/control-plane=null";
    let rendered = template(&offline(), &[values]).unwrap();
    let objects = parse(&rendered).unwrap();
    let selector = &workload(&objects)["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(*selector, json!({"a": "b"}));
}

#[test]
fn wrong_values_are_refused_by_name() {
    let helm = offline();
    for (values, expected) in [
        ("replicas=1", &["missing property 'cloud'"][..]),
        ("cloud=unknown", &["'/cloud'", "value must be one of 'aws'"]),
        (
            "cloud=aws,replicas=two,secret.create=perhaps,env.name=x",
            &[
                "'/replicas'",
                "want integer",
                "'/secret/create'",
                "want boolean",
                "'/env'",
                "array",
            ],
        ),
        ("cloud=aws,kind=StatefulSet", &["'/kind'", "'DaemonSet', 'Deployment'"]),
        ("cloud=aws,nodeselector.a=b", &["'nodeselector' not allowed"]),
        (
            "cloud=openstack,cloudConfig.loadbalancer.a=b",
            &["'/cloudConfig'", "'loadbalancer' not allowed"],
        ),
        (
            "cloud=digitalocean,cloudConfig.global.region=nyc1",
            &["cloudConfig: ", "digitalocean", "cloudConfigContents"],
        ),
        (
            "cloud=openstack,cloudConfig.global.region=R,cloudConfigContents=x",
            &["'/cloudConfigContents'", "must be ''"],
        ),
        ("cloud=openstack,securePort=0,podMonitor.enabled=true", &["securePort: 0", "podMonitor"]),
        ("cloud=openstack,image.repository=", &["image.repository: missing", "registry.example"]),
        ("cloud=openstack,image.digest=latest", &["'/image/digest'", "sha256"]),
        (
            "cloud=openstack,image.repository=registry.k8s.io/provider-os/openstack-cloud-controller-manager",
            &["image.repository", "remove image.repository"],
        ),
        ("cloud=openstack,dryRun=null", &["--reset-then-reuse-values"]),
        (
            "cloud=aws,image.repository=registry.k8s.io/provider-aws/cloud-controller-manager",
            &["image.repository", "remove image.repository"],
        ),
        (
            "cloud=digitalocean,image.repository=digitalocean/digitalocean-cloud-controller-manager",
            &["image.repository", "remove image.repository"],
        ),
        ("cloud=openstack,controllerExtraArgs=a: b", &["controllerExtraArgs", "- --flag=value"]),
        ("cloud=aws,bindAddress=127.0.0.1", &["bindAddress: 0.0.0.0", "hostNetworking: true"]),
        (
            "cloud=digitalocean,replicas=2,args={--leader-elect=false}",
            &["replicas: ", "--leader-elect=false"],
        ),
    ] {
        let refused = template(&helm, &["--set", values]).expect_err(values).to_string();
        for part in expected {
            assert!(refused.contains(part), "{values}: no {part:?} in {refused}");
        }
    }
    // An empty section counts as a missing one.
    template(
        &helm,
        &[
            "--set",
            "cloud=openstack,cloudConfig.global=null,cloudConfigContents=x",
        ],
    )
    .unwrap();
}

/// A control plane with Helm.
struct Cluster {
    control_plane: ControlPlane,
    client: Client,
    helm: Helm,
}

impl Cluster {
    async fn start() -> Self {
        let control_plane = ControlPlane::start().await.unwrap();
        let client = control_plane.client().await.unwrap();
        accept_monitoring(&client).await.unwrap();
        Self {
            helm: Helm::new(control_plane.kubeconfig()).unwrap(),
            client,
            control_plane,
        }
    }

    /// The objects of the release `ccm`, as Helm recorded them.
    fn manifest(&self) -> Vec<Value> {
        parse(&self.helm.run(&["get", "manifest", "ccm", "--namespace=kube-system"]).unwrap()).unwrap()
    }

    /// An object as it is in the cluster.
    async fn live(&self, object: &Value) -> Option<DynamicObject> {
        let (group, version) = object["apiVersion"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap_or(("", object["apiVersion"].as_str().unwrap()));
        let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        api.get_opt(object["metadata"]["name"].as_str().unwrap()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_accepts_every_object() {
    let cluster = Cluster::start().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "aws-ccm"}});
    apply(&cluster.client, &namespace, false).await.unwrap();
    for (name, path) in value_files() {
        let rendered = template(&cluster.helm, &["--values", text(&path)]).unwrap();
        for object in parse(&rendered).unwrap() {
            let applied = apply(&cluster.client, &object, true).await;
            applied.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }
}

/// Upgrades a release of a Go program's chart to this chart in place, and rolls it back.
async fn upgrade_and_roll_back(cloud: &str, values: Option<&str>) {
    let cluster = Cluster::start().await;
    let charts = UpstreamCharts::new().unwrap();
    let (upstream, ours) = (charts.chart(cloud).unwrap(), shipped("chart"));
    let helm = |args: &[&str]| {
        let mut words = args.to_vec();
        words.push("--namespace=kube-system");
        cluster.helm.run(&words).unwrap_or_else(|error| panic!("{cloud} {values:?}: {error:#}"))
    };
    let values = values.map(here);
    let mut install = vec!["install", "ccm", text(&upstream)];
    if let Some(values) = &values {
        install.extend(["--values", text(values)]);
    }
    helm(&install);
    let before = cluster.manifest();
    let theirs = cluster.live(workload(&before)).await.unwrap();

    // With the values of the release, as documented.
    let cloud_is = format!("cloud={cloud},image.repository=cloud-controller-manager");
    helm(&[
        "upgrade",
        "ccm",
        text(&ours),
        "--reset-then-reuse-values",
        "--set",
        &cloud_is,
    ]);
    let between = cluster.manifest();
    let changed = cluster.live(workload(&between)).await.unwrap();
    assert_eq!(changed.metadata.uid, theirs.metadata.uid, "{cloud}: replaced, not changed in place");
    let image =
        |object: &DynamicObject| object.data["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert_eq!(changed.data["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 1);
    assert_eq!(image(&changed), json!(format!("cloud-controller-manager:v0.1.0-{cloud}")));
    for object in &between {
        assert!(cluster.live(object).await.is_some(), "{object}");
    }

    helm(&["rollback", "ccm", "1"]);
    assert_eq!(cluster.manifest(), before);
    let back = cluster.live(workload(&before)).await.unwrap();
    assert_eq!(back.metadata.uid, theirs.metadata.uid);
    assert_eq!(back.data["spec"], theirs.data["spec"], "{cloud}: the rollback left a change");
    let name = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
    for object in between.iter().filter(|object| !before.iter().any(|other| name(other) == name(object))) {
        assert!(
            cluster.live(object).await.is_none(),
            "{cloud}: the rollback left an object of this chart: {object}"
        );
    }
    drop(cluster.control_plane);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_the_openstack_chart_is_upgraded_and_rolled_back() {
    upgrade_and_roll_back("openstack", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_the_openstack_chart_with_many_values_is_upgraded_and_rolled_back() {
    upgrade_and_roll_back("openstack", Some("values/openstack-upstream.yaml")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_the_aws_chart_is_upgraded_and_rolled_back() {
    upgrade_and_roll_back("aws", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_digitalocean_manifest_becomes_a_release_of_this_chart() {
    let cluster = Cluster::start().await;
    let manifest = read(&here("upstream/digitalocean.yaml")).unwrap();
    for object in &manifest {
        apply(&cluster.client, object, false).await.unwrap();
    }
    let theirs = cluster.live(workload(&manifest)).await.unwrap();
    let ours = shipped("chart");
    let helm = |args: &[&str]| {
        let mut words = args.to_vec();
        words.push("--namespace=kube-system");
        cluster.helm.run(&words).unwrap()
    };
    let set = "--set=cloud=digitalocean,image.repository=cloud-controller-manager";
    helm(&["install", "ccm", text(&ours), "--take-ownership", set]);
    let first = cluster.live(workload(&cluster.manifest())).await.unwrap();
    assert_eq!(first.metadata.uid, theirs.metadata.uid);
    let container = &first.data["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "cloud-controller-manager:v0.1.0-digitalocean");
    // The command of the manifest, which turned leader election off, is replaced.
    assert_eq!(container["command"], json!(["/bin/cloud-controller-manager"]));
    assert_eq!(first.data["spec"]["strategy"], json!({"type": "Recreate"}));
    // The manifest's variable with the token may remain: the file wins over it.
    let variables = container["env"].as_array().unwrap();
    let file = json!({"name": "DO_ACCESS_TOKEN_FILE", "value": "/etc/digitalocean/access-token"});
    assert!(variables.contains(&file), "{variables:?}");

    helm(&["upgrade", "ccm", text(&ours), set, "--set=replicas=3"]);
    let second = cluster.live(workload(&cluster.manifest())).await.unwrap();
    assert_eq!(second.data["spec"]["strategy"]["type"], "RollingUpdate");
    helm(&["rollback", "ccm", "1"]);
    let back = cluster.live(workload(&cluster.manifest())).await.unwrap();
    assert_eq!(back.data["spec"], first.data["spec"]);
}
