//! The Helm chart: its output, the values that it refuses, and the upgrade of a release of a Go program's chart with rollback.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use ccm_testbed::{
    controlplane::ControlPlane,
    helm::{CHART_FILES, Helm, HelmVersion, UpstreamCharts},
    manifests::{accept_monitoring, apply, copy_folder, parse, read, rights, shipped},
};
use cloud_controller_manager::options::{self, Request};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Secret};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chart").join(path)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The value files of a folder by name.
fn files_of(folder: &str) -> Vec<(String, PathBuf)> {
    let mut files: Vec<_> = fs::read_dir(here(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    files.sort();
    files
}

/// The value files with snapshots.
fn value_files() -> Vec<(String, PathBuf)> {
    let files = files_of("values");
    assert_eq!(files.len(), 17);
    files
}

/// Values for the charts of the Go programs in the forms of public repositories: cloud, and file.
fn users_files() -> Vec<(String, PathBuf)> {
    let files = files_of("users");
    assert_eq!(files.len(), 12);
    files
        .into_iter()
        .map(|(name, path)| (name.split('-').next().unwrap().to_owned(), path))
        .collect()
}

/// `helm template` of this chart in kube-system.
fn template(helm: &Helm, args: &[&str]) -> anyhow::Result<String> {
    template_of(&shipped("chart"), helm, args)
}

/// `helm template` of a chart in kube-system.
fn template_of(chart: &Path, helm: &Helm, args: &[&str]) -> anyhow::Result<String> {
    let image = here("image.yaml");
    let mut words = vec!["template", "ccm", text(chart), "--namespace=kube-system"];
    words.extend(["--values", text(&image)]);
    words.extend(args);
    helm.run(&words)
}

fn offline() -> Helm {
    Helm::new(HelmVersion::V3, "/nonexistent").unwrap()
}

/// The objects of this chart with these values as arguments of `--set`.
fn render(values: &[&str]) -> Vec<Value> {
    let set: Vec<_> = values.iter().map(|value| format!("--set={value}")).collect();
    let args: Vec<_> = set.iter().map(String::as_str).collect();
    parse(&template(&offline(), &args).unwrap()).unwrap()
}

/// The spec of the Pods of this chart with these values.
fn pod_spec(values: &[&str]) -> Value {
    workload(&render(values))["spec"]["template"]["spec"].clone()
}

/// The file cloud.conf in the Secret of these objects.
fn cloud_config(objects: &[Value]) -> String {
    let secret = objects.iter().find(|object| object["kind"] == "Secret").unwrap();
    let secret: Secret = serde_json::from_value(secret.clone()).unwrap();
    String::from_utf8(secret.data.unwrap()["cloud.conf"].0.clone()).unwrap()
}

/// The object with the Pods of the controllers. On Azure, the Go program has another one that initializes nodes.
fn workload(objects: &[Value]) -> &Value {
    let mut found = objects.iter().filter(|object| {
        object["spec"]["template"].is_object() && object["metadata"]["name"] != "cloud-node-manager"
    });
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
fn helm_4_renders_the_same_objects() {
    let (old, new) = (offline(), Helm::new(HelmVersion::V4, "/nonexistent").unwrap());
    for (name, path) in value_files() {
        let render = |helm| parse(&template(helm, &["--values", text(&path)]).unwrap()).unwrap();
        assert_eq!(json!(render(&old)), json!(render(&new)), "{name}");
    }
}

#[test]
fn files_of_the_chart_are_copies_of_their_sources() {
    let folder = shipped("chart/files");
    for (source, copy) in CHART_FILES {
        let copy = folder.join(copy);
        let is_file = fs::symlink_metadata(&copy).unwrap().is_file();
        assert!(is_file, "{}: some consumers of charts leave links out", copy.display());
        assert_eq!(
            fs::read_to_string(&copy).unwrap(),
            fs::read_to_string(shipped(source)).unwrap(),
            "{} differs from deploy/{source}: run `cargo xtask docs`",
            copy.display()
        );
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), CHART_FILES.len());
}

#[test]
fn a_chart_that_lost_the_content_of_a_file_is_refused() {
    let helm = offline();
    let values = "cloud=aws,prometheusRule.enabled=true,dashboard.enabled=true,args={--use-service-account-credentials}";
    for (_, name) in CHART_FILES {
        // Missing; empty; and a link, as git writes it where the file system has no links.
        for content in [None, Some(""), Some("../../base/rbac.yaml")] {
            let folder = tempfile::tempdir().unwrap();
            let chart = folder.path().join("chart");
            copy_folder(&shipped("chart"), &chart).unwrap();
            let file = chart.join("files").join(name);
            match content {
                Some(content) => fs::write(&file, content).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            let refused = template_of(&chart, &helm, &["--set", values]).expect_err(name);
            let expected = format!("files/{name}: no ");
            assert!(refused.to_string().contains(&expected), "{content:?}: {refused:#}");
        }
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
        // Two flags of the Go programs have no effect.
        let without_effect = ["--min-resync-period", "--controller-start-interval"];
        let is_known = |warning: &String| without_effect.iter().any(|flag| warning.starts_with(flag));
        let warnings: Vec<_> = config.warnings.iter().filter(|warning| !is_known(warning)).collect();
        assert_eq!(warnings, [""; 0], "{name}");
        assert_eq!(config.dry_run, name.ends_with("dry-run"), "{name}");
        // The roles allow the use of the Leases that the arguments name. Those of a hosted control plane are in the hosted cluster.
        let granting = match name.ends_with("hosted") {
            true => &["--values", text(&path), "--set=workload.create=false"][..],
            false => &["--values", text(&path)],
        };
        let objects = parse(&template(&helm, granting).unwrap()).unwrap();
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
fn values_of_the_go_program_for_azure_are_flags_and_what_has_no_effect_is_named() {
    let spec = pod_spec(&["cloud=azure", "infra.clusterName=prod"]);
    let container = &spec["containers"][0];
    let words = container["args"].to_string();
    // Also the defaults of that chart, of which helm reuses none.
    for flag in [
        "--cloud-config=/etc/kubernetes/azure.json",
        "--allocate-node-cidrs=true",
        "--cluster-cidr=10.244.0.0/16",
        "--configure-cloud-routes=true",
        "--cluster-name=$(CLUSTER_NAME)",
        "--secure-port=10268",
    ] {
        assert!(words.contains(flag), "{flag}: {words}");
    }
    assert!(!words.contains("cloud-node"), "{words}");
    let environment = container["env"].as_array().unwrap();
    assert!(environment.contains(&json!({"name": "CLUSTER_NAME", "value": "prod"})), "{environment:?}");
    // Only root may read the config on many hosts.
    assert_eq!(spec["securityContext"]["runAsUser"], 0);
    let host = json!({"name": "etc-kubernetes", "hostPath": {"path": "/etc/kubernetes"}});
    assert!(spec["volumes"].as_array().unwrap().contains(&host), "{spec}");

    // Values of this chart win, and controllers are those without a node manager.
    let both = [
        "cloud=azure",
        "cloudControllerManager.controllers=*\\,-cloud-node\\,-route",
        "args={--cluster-cidr=10.0.0.0/8}",
    ];
    let words = pod_spec(&both)["containers"][0]["args"].to_string();
    assert!(words.contains("--controllers=*,-route\""), "{words}");
    assert!(words.contains("--cluster-cidr=10.0.0.0/8") && !words.contains("10.244"), "{words}");

    // The config in a Secret, which no user but the program's reads.
    let secret = [
        "cloud=azure",
        "cloudControllerManager.cloudConfig=",
        "cloudControllerManager.enableDynamicReloading=true",
    ];
    assert_eq!(pod_spec(&secret)["securityContext"]["runAsUser"], 65532);
    let objects = json!(render(&secret)).to_string();
    assert!(objects.contains("azure-cloud-provider"), "{objects}");

    let refused = template(&offline(), &["--set=cloud=azure,cloudControllerManager.enabled=false"]);
    assert!(refused.unwrap_err().to_string().contains("cloudControllerManager.enabled"));
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
fn pods_run_on_control_plane_nodes_of_every_distribution() {
    const ROLE: &str = r"node-role\.kubernetes\.io/control-plane";
    let affinity = |values: &[&str]| pod_spec(values)["affinity"].clone();
    let exists = json!({"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"});
    let default = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [exists]}]}}});
    for cloud in ["cloud=aws", "cloud=openstack", "cloud=aws,dryRun=true"] {
        assert_eq!(pod_spec(&[cloud])["nodeSelector"], Value::Null, "{cloud}");
        assert_eq!(affinity(&[cloud]), default, "{cloud}");
        // The user's own are kept, in addition.
        let both = pod_spec(&[cloud, "nodeSelector.a=b", "affinity.podAffinity.x=y"]);
        assert_eq!(both["nodeSelector"], json!({"a": "b"}));
        assert_eq!(both["affinity"]["nodeAffinity"], default["nodeAffinity"]);
        assert_eq!(both["affinity"]["podAffinity"], json!({"x": "y"}));
        // Other nodes, by the user's values.
        assert_eq!(affinity(&[cloud, "nodeSelector=null"]), Value::Null);
        assert_eq!(affinity(&[cloud, "affinity=null"]), Value::Null);
        assert_eq!(affinity(&[cloud, "affinity.nodeAffinity.x=y"]), json!({"nodeAffinity": {"x": "y"}}));
        let without = pod_spec(&[cloud, "nodeSelector.a=b", &format!("nodeSelector.{ROLE}=null")]);
        assert_eq!(without["nodeSelector"], json!({"a": "b"}));
        assert_eq!(without["affinity"], Value::Null);
    }
    // The manifest of the Go program selects no nodes.
    assert_eq!(affinity(&["cloud=digitalocean"]), Value::Null);
}

#[test]
fn labels_of_the_pods_match_the_selector_and_the_network_policy() {
    let values = [
        "cloud=openstack,kind=Deployment",
        "commonLabels.team=a,commonLabels.release=evil",
        r"podLabels.app=evil,podLabels.team=b,podLabels.app\.kubernetes\.io/instance=mine",
    ];
    let objects = render(&values);
    let workload = workload(&objects);
    let labels = &workload["spec"]["template"]["metadata"]["labels"];
    let expected = json!({
        "app": "openstack-cloud-controller-manager",
        "component": "controllermanager",
        "release": "ccm",
        "app.kubernetes.io/name": "cloud-controller-manager",
        "app.kubernetes.io/instance": "mine",
        "team": "b",
    });
    assert_eq!(*labels, expected);
    // The selector of the Go program's chart, and no more: it is immutable.
    assert_eq!(workload["spec"]["selector"]["matchLabels"].as_object().unwrap().len(), 3);
    let policy = &read(&shipped("network-policy/network-policy.yaml")).unwrap()[0];
    let selected = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
    assert!(!selected.is_empty() && selected.iter().all(|(key, value)| labels[key] == *value));
    for object in &objects {
        assert_eq!(object["metadata"]["labels"]["team"], "a", "{object}");
    }
}

#[test]
fn pods_run_as_another_user_than_root_unless_the_values_want_root() {
    let is_set = |value: &str| {
        let context = pod_spec(&["cloud=aws", value])["securityContext"].clone();
        context["runAsNonRoot"].as_bool()
    };
    assert_eq!(is_set("replicas=1"), Some(true));
    assert_eq!(is_set("podSecurityContext.runAsUser=1001"), Some(true));
    assert_eq!(is_set("podSecurityContext.runAsNonRoot=false"), Some(false));
    // The kubelet would not start these.
    assert_eq!(is_set("podSecurityContext.runAsUser=0"), None);
    assert_eq!(is_set("securityContext.runAsUser=0"), None);
    assert_eq!(
        is_set("extraInitContainers[0].name=a,extraInitContainers[0].securityContext.runAsUser=0"),
        None
    );
}

#[test]
fn probes_are_complete() {
    let probe = |values: &[&str]| {
        let values = [&["cloud=openstack"], values].concat();
        pod_spec(&values)["containers"][0]["livenessProbe"].clone()
    };
    let default = probe(&[]);
    assert_eq!(default["httpGet"]["path"], "/livez");
    let mut later = default.clone();
    later["initialDelaySeconds"] = json!(20);
    assert_eq!(probe(&["livenessProbe.initialDelaySeconds=20"]), later);
    // A path alone, and the port of the program without the host on which it listens.
    let request = json!({"path": "/healthz", "port": 10258, "scheme": "HTTPS", "host": "127.0.0.1"});
    assert_eq!(probe(&["livenessProbe.httpGet.path=/healthz"])["httpGet"], request);
    let port = "livenessProbe.httpGet.port=10258";
    assert_eq!(probe(&["livenessProbe.httpGet.path=/healthz", port])["httpGet"], request);
    // Others are left as they are.
    let other = ["livenessProbe.httpGet.port=80"];
    assert_eq!(probe(&other), json!({"httpGet": {"port": 80}}));
    let command = ["livenessProbe.exec.command={check}"];
    assert_eq!(probe(&command), json!({"exec": {"command": ["check"]}}));
    assert_eq!(probe(&["securePort=0", "livenessProbe.initialDelaySeconds=20"]), Value::Null);
}

#[test]
fn a_dry_run_on_the_host_network_takes_another_port() {
    for (values, port) in [
        (&["hostNetworking=false"][..], 10258),
        (&["hostNetworking=true"], 10268),
        (&["hostNetworking=true", "securePort=10300"], 10310),
        (&["hostNetworking=true", "args={--secure-port=10300}"], 10310),
        (&["hostNetworking=true", "args={--secure-port=65535}"], 65525),
    ] {
        let probe = "livenessProbe.httpGet.path=/healthz,livenessProbe.httpGet.port=10300";
        let values = [&["cloud=aws,dryRun=true", probe], values].concat();
        let container = pod_spec(&values)["containers"][0].clone();
        assert_eq!(container["ports"][0]["containerPort"], port, "{values:?}");
        assert_eq!(container["readinessProbe"]["httpGet"]["port"], port, "{values:?}");
        // The probe of the program in charge.
        let moved = if port == 10310 { 10310 } else { 10300 };
        assert_eq!(container["livenessProbe"]["httpGet"]["port"], moved, "{values:?}");
    }
}

#[test]
fn the_folder_of_the_host_is_mounted_only_where_the_config_may_need_it() {
    let is_mounted = |values: &[&str]| {
        let values = [&["cloud=openstack"], values].concat();
        let pod = pod_spec(&values).to_string();
        assert_eq!(pod.contains("hostPath"), pod.contains(r#""mountPath":"/etc/kubernetes/pki""#));
        pod.contains("hostPath")
    };
    assert!(!is_mounted(&[]));
    assert!(!is_mounted(&["cloudConfig.global.ca-file=/etc/ssl/ca.pem"]));
    assert!(is_mounted(&["cloudConfig.global.ca-file=/etc/kubernetes/pki/ca.pem"]));
    assert!(is_mounted(&["cloudConfigContents=ca-file=/etc/kubernetes/pki/ca.pem"]));
    assert!(is_mounted(&["controllerExtraArgs={--tls-cert-file=/etc/kubernetes/pki/a.crt}"]));
    // Its content is not known.
    assert!(is_mounted(&["secret.create=false"]));
    assert!(!is_mounted(&[
        "secret.create=false",
        "extraVolumes=null",
        "extraVolumeMounts=null"
    ]));
    assert!(!is_mounted(&["secret.create=false", "kubeconfig.secretName=a"]));
}

#[test]
fn other_common_values_reach_their_fields() {
    let values = [
        "cloud=openstack,fullnameOverride=mine,image.pullPolicy=Always,revisionHistoryLimit=0",
        "terminationGracePeriodSeconds=0,updateStrategy.type=OnDelete,dnsConfig.nameservers={10.0.0.1}",
        "topologySpreadConstraints[0].topologyKey=zone,serviceMonitor.enabled=true,serviceMonitor.interval=1m",
        "serviceAccount.create=false,serviceAccountName=theirs,extraObjects[0].kind=ConfigMap",
    ];
    let objects = render(&values);
    let daemon_set = workload(&objects);
    assert_eq!(daemon_set["metadata"]["name"], "mine");
    assert_eq!(daemon_set["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    assert_eq!(daemon_set["spec"]["revisionHistoryLimit"], 0);
    let pod = &daemon_set["spec"]["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 0);
    assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(pod["dnsConfig"], json!({"nameservers": ["10.0.0.1"]}));
    assert_eq!(pod["serviceAccountName"], "theirs");
    let spread = &pod["topologySpreadConstraints"][0];
    assert_eq!(spread["topologyKey"], "zone");
    assert_eq!(spread["labelSelector"]["matchLabels"], daemon_set["spec"]["selector"]["matchLabels"]);
    let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(of_kind("ServiceMonitor")[0]["spec"]["endpoints"][0]["interval"], "1m");
    assert_eq!(of_kind("ServiceAccount"), [&Value::Null; 0]);
    assert_eq!(of_kind("ConfigMap").len(), 1);
    assert!(json!(of_kind("ClusterRoleBinding")).to_string().contains("theirs"));
    // A Deployment takes the same value as its strategy.
    let strategy = ["cloud=openstack,kind=Deployment,replicas=2,updateStrategy.type=Recreate"];
    assert_eq!(workload(&render(&strategy))["spec"]["strategy"], json!({"type": "Recreate"}));
    // Replicas are spread unless the values say otherwise.
    let spread = |values: &str| {
        pod_spec(&["cloud=openstack,kind=Deployment", values])["topologySpreadConstraints"].clone()
    };
    assert_eq!(spread("replicas=1"), Value::Null);
    assert_eq!(spread("replicas=2")[0]["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(spread("replicas=2,topologySpreadConstraints=null"), Value::Null);
}

#[test]
fn a_hosted_control_plane_has_its_rights_in_the_hosted_cluster() {
    for cloud in ["openstack", "aws", "digitalocean", "gce"] {
        let values = [
            &format!("cloud={cloud},kubeconfig.secretName=shoot-kubeconfig") as &str,
            "podMonitor.enabled=true,cluster.name=shoot",
        ];
        let management = render(&values);
        assert!(rights(&management).is_empty(), "{cloud}");
        for object in &management {
            let kind = object["kind"].as_str().unwrap();
            assert!(!["ServiceAccount", "ClusterRoleBinding", "RoleBinding"].contains(&kind));
        }
        let deployment = workload(&management);
        assert_eq!((&deployment["kind"], &deployment["spec"]["replicas"]), (&json!("Deployment"), &json!(2)));
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        for field in [
            "serviceAccountName",
            "hostNetwork",
            "nodeSelector",
            "affinity",
            "tolerations",
            "priorityClassName",
        ] {
            assert_eq!(pod[field], Value::Null, "{cloud}: {field}");
        }
        assert!(!pod.to_string().contains("hostPath"));
        let container = &pod["containers"][0];
        let args = container["args"].as_array().unwrap();
        for flag in [
            "kubeconfig",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
        ] {
            assert!(args.contains(&json!(format!("--{flag}=/etc/hosted/value"))), "{args:?}");
        }
        let mount = json!({"name": "hosted-kubeconfig", "mountPath": "/etc/hosted", "readOnly": true});
        assert!(container["volumeMounts"].as_array().unwrap().contains(&mount));
        let volume = json!({"name": "hosted-kubeconfig", "secret": {"secretName": "shoot-kubeconfig"}});
        assert!(pod["volumes"].as_array().unwrap().contains(&volume));

        // The same values in the hosted cluster give the rights of a cluster that runs the program itself, and nothing else.
        let hosted = render(&[&values[..], &["workload.create=false"]].concat());
        let own = render(&[&format!("cloud={cloud}"), "podMonitor.enabled=true"]);
        assert_eq!(rights(&hosted), rights(&own), "{cloud}");
        for object in &hosted {
            let kind = object["kind"].as_str().unwrap();
            let is_token = object["type"] == "kubernetes.io/service-account-token";
            assert!(kind.contains("Role") || kind == "ServiceAccount" || is_token, "{cloud}: {kind}");
        }
    }
    // An account of the management cluster, for example for credentials of AWS.
    let annotated = r"serviceAccount.create=true,serviceAccount.annotations.eks\.amazonaws\.com/role-arn=arn";
    let objects = render(&["cloud=aws,kubeconfig.secretName=a", annotated]);
    let pod = &workload(&objects)["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "cloud-controller-manager");
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert!(objects.iter().any(|object| object["kind"] == "ServiceAccount"));
    assert!(rights(&objects).is_empty());
}

#[test]
fn an_empty_cluster_name_stays_empty_on_openstack() {
    let name = |values: &[&str]| {
        let container = pod_spec(values)["containers"][0].clone();
        let is_passed =
            container["args"].as_array().unwrap().contains(&json!("--cluster-name=$(CLUSTER_NAME)"));
        let variables = container["env"].as_array().unwrap().iter();
        let mut names = variables.filter(|variable| variable["name"] == "CLUSTER_NAME");
        let name = names.next().map(|variable| variable["value"].clone());
        assert_eq!(name.is_some(), is_passed);
        name
    };
    assert_eq!(name(&["cloud=openstack"]), Some(json!("kubernetes")));
    assert_eq!(name(&["cloud=openstack,cluster.name="]), Some(json!("")));
    assert_eq!(name(&["cloud=openstack,cluster.name=null"]), Some(json!("")));
    assert_eq!(name(&["cloud=aws,cluster.name=a"]), Some(json!("a")));
    assert_eq!(name(&["cloud=aws,cluster.name="]), None);
}

#[test]
fn null_and_unknown_keys_of_the_config_are_left_out() {
    let values = [
        "cloud=openstack,cloudConfig.global.auth-url=u,cloudConfig.global.tenant-id=null",
        "cloudConfig.networking.public-network-name[0]=null,cloudConfig.networking.public-network-name[1]=p",
        "cloudConfig.metadata.search-order=null,cloudConfig.route=null,cloudConfig.block_storage.a=b",
        "cloudConfig.useExistingSecret=true,cloudConfig.secretName=s,cloudConfig.loadbalancer.subnet-id=c",
        "cloudConfig.quota.compute-burst=5,cloudConfig.loadBalancerClass.dmz.subnet-id=d",
        "cloudConfig.serviceOverride.1.Service=ec2",
    ];
    let expected = "[Global]\nauth-url = \"u\"\n\n[Networking]\npublic-network-name = \"p\"\n\n\
                    [LoadBalancerClass \"dmz\"]\nsubnet-id = \"d\"\n\n[Quota]\ncompute-burst = \"5\"\n\n\
                    [ServiceOverride \"1\"]\nService = \"ec2\"\n";
    assert_eq!(cloud_config(&render(&values)), expected);
    // Keys that are ignored are no config.
    let others = render(&["cloud=aws,cloudConfig.secretName=s"]);
    assert!(others.iter().all(|object| object["kind"] != "Secret"));
    let text =
        render(&["cloud=openstack,cloudConfig.secretName=s,cloudConfig.global.a=null,cloudConfigContents=x"]);
    assert_eq!(cloud_config(&text), "x\n");
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
            "cloud=openstack,cloudConfig.global=text,cloudConfig.quota.a.b=c",
            &["'/cloudConfig/global'", "'/cloudConfig/quota/a'"],
        ),
        (
            "cloud=digitalocean,cloudConfig.global.region=nyc1",
            &["cloudConfig: ", "digitalocean", "cloudConfigContents"],
        ),
        (
            "cloud=openstack,cloudConfig.global.region=R,cloudConfigContents=x",
            &["cloudConfigContents: ", "remove one of them"],
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
            "cloud=digitalocean,image.tag=v0.1.0-digitalocean,image.repository=digitalocean/digitalocean-cloud-controller-manager",
            &["image.repository", "remove image.repository"],
        ),
        (
            "cloud=aws,image.repository=mirror.example/provider-aws/cloud-controller-manager",
            &["image.repository", "image.tag that ends with -aws"],
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
    // A mirror may have this program under the path of the Go program.
    let mirror = "image.repository=mirror.example/provider-aws/cloud-controller-manager,image.tag=v0.1.0-aws";
    render(&["cloud=aws", mirror]);
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
    async fn start(version: HelmVersion) -> Self {
        let control_plane = ControlPlane::start().await.unwrap();
        let client = control_plane.client().await.unwrap();
        accept_monitoring(&client).await.unwrap();
        Self {
            helm: Helm::new(version, control_plane.kubeconfig()).unwrap(),
            client,
            control_plane,
        }
    }

    /// The objects of the release `ccm`, as Helm recorded them.
    fn manifest(&self) -> Vec<Value> {
        parse(&self.helm.run(&["get", "manifest", "ccm", "--namespace=kube-system"]).unwrap()).unwrap()
    }

    /// The API of an object's kind and namespace.
    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let (group, version) = object["apiVersion"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap_or(("", object["apiVersion"].as_str().unwrap()));
        let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
        let resource = ApiResource::from_gvk(&kind);
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// An object as it is in the cluster.
    async fn live(&self, object: &Value) -> Option<DynamicObject> {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api(object).get_opt(name).await.unwrap()
    }

    /// The rules of the roles among these objects, as they are in the cluster.
    async fn rules(&self, objects: &[Value]) -> Vec<Value> {
        let mut rules = Vec::new();
        for object in objects.iter().filter(|object| object["rules"].is_array()) {
            rules.push(self.live(object).await.unwrap().data["rules"].clone());
        }
        rules
    }

    /// Creates an object as `kubectl apply` does.
    async fn create(&self, object: &Value) {
        let manager = PostParams {
            field_manager: Some("kubectl-client-side-apply".to_owned()),
            ..PostParams::default()
        };
        let created: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        self.api(object).create(&manager, &created).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_accepts_every_object() {
    let cluster = Cluster::start(HelmVersion::V3).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_management_cluster_with_restricted_pods_has_several_hosted_control_planes() {
    let cluster = Cluster::start(HelmVersion::V4).await;
    let (ours, image) = (shipped("chart"), here("image.yaml"));
    for name in ["shoot-a", "shoot-b"] {
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        apply(&cluster.client, &namespace, false).await.unwrap();
        // The API server of the tests has no controller that creates it.
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}});
        apply(&cluster.client, &account, false).await.unwrap();
        let namespace = format!("--namespace={name}");
        for cloud in ["openstack", "aws", "azure", "digitalocean", "gce"] {
            let set = format!("--set=cloud={cloud},kubeconfig.secretName={name}-kubeconfig");
            let install = [
                "install",
                cloud,
                text(&ours),
                &namespace,
                "--values",
                text(&image),
                &set,
            ];
            cluster.helm.run(&install).unwrap();
            let manifest = cluster.helm.run(&["get", "manifest", cloud, &namespace]).unwrap();
            let deployment = workload(&parse(&manifest).unwrap()).clone();
            let mut pod = deployment["spec"]["template"].clone();
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["metadata"]["name"] = json!(cloud);
            pod["metadata"]["namespace"] = json!(name);
            apply(&cluster.client, &pod, true).await.unwrap();
            pod["spec"]["securityContext"]["runAsNonRoot"] = Value::Null;
            let refused = apply(&cluster.client, &pod, true).await.unwrap_err();
            assert!(format!("{refused:#}").contains("runAsNonRoot"), "{refused:#}");
        }
    }
}

/// Runs a command of Helm in kube-system.
fn run(helm: &Helm, args: &[&str]) -> String {
    let words = [args, &["--namespace=kube-system"]].concat();
    helm.run(&words).unwrap_or_else(|error| panic!("{args:?}: {error:#}"))
}

/// The spec of an object with Pods. A security context without fields is none: the API server keeps it in some patches, and not in others.
fn spec(object: &DynamicObject) -> Value {
    let mut spec = object.data["spec"].clone();
    let container = spec.pointer_mut("/template/spec/containers/0").unwrap();
    if container["securityContext"] == json!({}) {
        container.as_object_mut().unwrap().remove("securityContext");
    }
    spec
}

/// Installs a Go program's chart with these values, upgrades the release to this chart in place, and rolls it back. The release
/// remains.
async fn upgrade_and_roll_back(cluster: &Cluster, old: &Helm, cloud: &str, values: Option<&Path>) {
    let charts = UpstreamCharts::new().unwrap();
    let upstream = match cloud {
        "azure" => here("upstream/azure"),
        _ => charts.chart(cloud).unwrap(),
    };
    let ours = shipped("chart");
    let new = &cluster.helm;
    let what = format!("{cloud} {values:?}");
    let mut install = vec!["install", "ccm", text(&upstream)];
    if let Some(values) = values {
        install.extend(["--values", text(values)]);
    }
    run(old, &install);
    let before = cluster.manifest();
    let theirs = cluster.live(workload(&before)).await.unwrap();
    let roles_before = cluster.rules(&before).await;
    assert!(!roles_before.is_empty());

    // With the values of the release, as documented.
    let mut set = format!("--set=cloud={cloud},image.repository=cloud-controller-manager");
    if cloud == "azure" {
        set.push_str(",cloudControllerManager.enabled=true");
    }
    run(new, &["upgrade", "ccm", text(&ours), "--reset-then-reuse-values", &set]);
    let between = cluster.manifest();
    let changed = cluster.live(workload(&between)).await.unwrap();
    assert_eq!(changed.metadata.uid, theirs.metadata.uid, "{what}: replaced, not changed in place");
    assert_eq!(changed.data["spec"]["selector"], theirs.data["spec"]["selector"], "{what}");
    let containers = changed.data["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "{what}");
    assert_eq!(containers[0]["image"], format!("cloud-controller-manager:v0.1.0-{cloud}"));
    for object in &between {
        assert!(cluster.live(object).await.is_some(), "{what}: {object}");
    }

    run(new, &["rollback", "ccm", "1"]);
    assert_eq!(cluster.manifest(), before, "{what}");
    let back = cluster.live(workload(&before)).await.unwrap();
    assert_eq!(back.metadata.uid, theirs.metadata.uid, "{what}");
    assert_eq!(spec(&back), spec(&theirs), "{what}: the rollback left a change");
    let roles_after = cluster.rules(&before).await;
    assert_eq!(roles_after, roles_before, "{what}: the rollback changed rights");
    let name = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
    for object in between.iter().filter(|object| !before.iter().any(|other| name(other) == name(object))) {
        assert!(
            cluster.live(object).await.is_none(),
            "{what}: the rollback left an object of this chart: {object}"
        );
    }
}

/// The charts of these clouds, with few and with many values, one after the other.
async fn upgrade_every_chart(old: HelmVersion, new: HelmVersion) {
    let cluster = Cluster::start(new).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "aws-ccm"}});
    apply(&cluster.client, &namespace, false).await.unwrap();
    let old = Helm::new(old, cluster.control_plane.kubeconfig()).unwrap();
    for (cloud, values) in [
        ("openstack", None),
        ("openstack", Some("values/openstack-upstream.yaml")),
        ("aws", None),
        ("azure", None),
        ("azure", Some("values/azure-upstream.yaml")),
    ] {
        upgrade_and_roll_back(&cluster, &old, cloud, values.map(here).as_deref()).await;
        run(&cluster.helm, &["uninstall", "ccm"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_of_helm_3_are_upgraded_and_rolled_back_with_helm_3() {
    upgrade_every_chart(HelmVersion::V3, HelmVersion::V3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_of_helm_3_are_upgraded_and_rolled_back_with_helm_4() {
    upgrade_every_chart(HelmVersion::V3, HelmVersion::V4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_of_helm_4_are_upgraded_and_rolled_back_with_helm_4() {
    upgrade_every_chart(HelmVersion::V4, HelmVersion::V4).await;
}

/// The values of users: a Go program's chart is upgraded and rolled back, and this chart is installed with the same values.
async fn work_with_values_of_users(version: HelmVersion) {
    let cluster = Cluster::start(version).await;
    let ours = shipped("chart");
    for (cloud, values) in users_files() {
        upgrade_and_roll_back(&cluster, &cluster.helm, &cloud, Some(&values)).await;
        run(&cluster.helm, &["uninstall", "ccm"]);
        let set = format!("--set=cloud={cloud},image.repository=cloud-controller-manager");
        let notes = run(&cluster.helm, &["install", "ccm", text(&ours), "--values", text(&values), &set]);
        for section in ["block_storage", "existingSecret", "secretName", "loadbalancer"] {
            let key = format!("cloudConfig.{section}");
            let is_used = fs::read_to_string(&values).unwrap().contains(&format!("  {section}:"));
            assert_eq!(notes.contains(&key), is_used, "{}: {notes}", values.display());
        }
        run(&cluster.helm, &["uninstall", "ccm"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_users_work_with_helm_3() {
    work_with_values_of_users(HelmVersion::V3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_users_work_with_helm_4() {
    work_with_values_of_users(HelmVersion::V4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helm_4_takes_back_an_image_that_was_set_by_hand() {
    let cluster = Cluster::start(HelmVersion::V4).await;
    let ours = shipped("chart");
    let set = "--set=cloud=aws,image.repository=cloud-controller-manager";
    run(&cluster.helm, &["install", "ccm", text(&ours), set]);
    let daemon_sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), "kube-system");
    let container = json!({"name": "aws-cloud-controller-manager", "image": "other"});
    let image = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    let by_hand = PatchParams {
        field_manager: Some("kubectl-set".to_owned()),
        ..PatchParams::default()
    };
    let name = "aws-cloud-controller-manager";
    daemon_sets.patch(name, &by_hand, &Patch::Strategic(image)).await.unwrap();
    let upgrade = ["upgrade", "ccm", text(&ours), set, "--namespace=kube-system"];
    let refused = cluster.helm.run(&upgrade).unwrap_err().to_string();
    assert!(refused.contains("kubectl-set"), "{refused}");
    run(&cluster.helm, &["upgrade", "ccm", text(&ours), set, "--force-conflicts"]);
    let image =
        &daemon_sets.get(name).await.unwrap().spec.unwrap().template.spec.unwrap().containers[0].image;
    assert_eq!(image.as_deref(), Some("cloud-controller-manager:v0.1.0-aws"));
}

/// The manifest of DigitalOcean becomes a release, as documented, and the release is scaled up and rolled back.
async fn adopt_the_digitalocean_manifest(version: HelmVersion) {
    let cluster = Cluster::start(version).await;
    let manifest = read(&here("upstream/digitalocean.yaml")).unwrap();
    for object in &manifest {
        cluster.create(object).await;
    }
    let theirs = cluster.live(workload(&manifest)).await.unwrap();
    let ours = shipped("chart");
    let set = "--set=cloud=digitalocean,image.repository=cloud-controller-manager";
    let mut install = vec!["install", "ccm", text(&ours), "--take-ownership", set];
    if version == HelmVersion::V4 {
        // Two fields of the strategy conflict, which --force-conflicts cannot remove.
        let words = [&install[..], &["--force-conflicts", "--namespace=kube-system"]].concat();
        let refused = cluster.helm.run(&words).unwrap_err().to_string();
        assert!(refused.contains("rollingUpdate"), "{refused}");
        // The failed release is replaced. `helm uninstall` would delete the objects of the manifest.
        install.extend(["--server-side=false", "--replace"]);
    }
    run(&cluster.helm, &install);
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

    run(&cluster.helm, &["upgrade", "ccm", text(&ours), set, "--set=replicas=3"]);
    let second = cluster.live(workload(&cluster.manifest())).await.unwrap();
    assert_eq!(second.data["spec"]["strategy"]["type"], "RollingUpdate");
    run(&cluster.helm, &["rollback", "ccm", "1"]);
    let back = cluster.live(workload(&cluster.manifest())).await.unwrap();
    assert_eq!(back.data["spec"], first.data["spec"]);

    // A release from the beginning.
    run(&cluster.helm, &["uninstall", "ccm"]);
    run(&cluster.helm, &["install", "ccm", text(&ours), set]);
    run(&cluster.helm, &["upgrade", "ccm", text(&ours), set, "--set=replicas=3"]);
    run(&cluster.helm, &["rollback", "ccm", "1"]);
    let back = cluster.live(workload(&cluster.manifest())).await.unwrap();
    assert_eq!(back.data["spec"]["strategy"], json!({"type": "Recreate"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_digitalocean_manifest_becomes_a_release_with_helm_3() {
    adopt_the_digitalocean_manifest(HelmVersion::V3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_digitalocean_manifest_becomes_a_release_with_helm_4() {
    adopt_the_digitalocean_manifest(HelmVersion::V4).await;
}
