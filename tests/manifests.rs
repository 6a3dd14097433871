//! The folders of `deploy/` can be applied without changes, alone and with every component.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{collections::BTreeMap, path::Path};

use ccm_testbed::{
    controlplane::ControlPlane,
    manifests::{ACCOUNT, accept_monitoring, account, apply, build, shipped},
};
use cloud_controller_manager::options::{self, Request};
use serde_json::{Value, json};

/// Components of `deploy/` that fit every cloud and each other.
const COMPONENTS: [&str; 5] = [
    "service-accounts",
    "leader-migration",
    "ca-bundle",
    "pod-monitor",
    "network-policy",
];

/// Kustomizations for users to begin with.
const OVERLAYS: [&str; 3] = ["overlays/hosted", "overlays/dry-run", "overlays/plan"];

/// The only object of this kind.
fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let only = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "two of kind {kind}");
    only
}

/// Kind and name.
fn name_of(object: &Value) -> (&Value, &Value) {
    (&object["kind"], &object["metadata"]["name"])
}

fn count(objects: &[Value], kind: &str) -> usize {
    objects.iter().filter(|object| object["kind"] == kind).count()
}

/// The only object with Pods.
fn workload(objects: &[Value]) -> &Value {
    let mut found = objects.iter().filter(|object| object["spec"]["template"].is_object());
    let workload = found.next().expect("an object with Pods");
    assert!(found.next().is_none(), "two objects with Pods");
    workload
}

/// Every selector of these objects matches their Pods.
fn check_selectors(objects: &[Value]) {
    let labels = &workload(objects)["spec"]["template"]["metadata"]["labels"];
    for object in objects {
        for selector in ["selector", "podSelector"] {
            let selected = object["spec"][selector]["matchLabels"].as_object();
            for (key, value) in selected.into_iter().flatten() {
                assert_eq!(labels[key], *value, "{object}");
            }
        }
    }
}

/// Folders of `deploy/` with a DaemonSet: one for each cloud.
fn clouds() -> Vec<String> {
    let folders = std::fs::read_dir(shipped("")).unwrap();
    let mut clouds: Vec<_> = folders
        .map(|folder| folder.unwrap())
        .filter(|folder| folder.path().join("daemonset.yaml").is_file())
        .map(|folder| folder.file_name().into_string().unwrap())
        .collect();
    clouds.sort();
    assert!(!clouds.is_empty());
    clouds
}

/// Arguments of the program, with the variables of its environment.
fn arguments(workload: &Value) -> Vec<String> {
    let container = &workload["spec"]["template"]["spec"]["containers"][0];
    let environment: BTreeMap<_, _> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|variable| Some((variable["name"].as_str()?, variable["value"].as_str()?)))
        .collect();
    let words = container["args"].as_array().unwrap().iter().map(|word| {
        let word = word.as_str().unwrap().to_owned();
        environment
            .iter()
            .fold(word, |word, (name, value)| word.replace(&format!("$({name})"), value))
    });
    let words: Vec<_> = words.collect();
    assert!(words.iter().all(|word| !word.contains("$(")), "{words:?}");
    // The program reads the config from the path of the mounted Secret.
    let folder = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    let mut parents = environment.values().map(|value| Path::new(*value).parent());
    assert!(parents.any(|parent| parent == Some(Path::new(folder))), "{environment:?}");
    words
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_accepts_every_object_and_the_pod() {
    let control_plane = ControlPlane::start().await.unwrap();
    let client = control_plane.client().await.unwrap();
    accept_monitoring(&client).await.unwrap();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hosted-control-plane"}});
    apply(&client, &namespace, false).await.unwrap();
    for cloud in clouds() {
        for component in COMPONENTS {
            let alone = build(&[&cloud], &[]).unwrap();
            assert_ne!(build(&[&cloud], &[component]).unwrap(), alone, "{component}");
        }
        for object in build(&[&cloud], &COMPONENTS).unwrap() {
            apply(&client, &object, true).await.unwrap();
        }
    }
    for overlay in OVERLAYS {
        let more: &[&str] = match overlay {
            "overlays/hosted" => &["ca-bundle", "network-policy"],
            _ => &["ca-bundle"],
        };
        for object in build(&[overlay], more).unwrap() {
            apply(&client, &object, true).await.unwrap();
        }
    }
    // Another cloud's folder can replace OpenStack's in an overlay.
    for cloud in clouds() {
        for component in OVERLAYS.map(|overlay| overlay.trim_start_matches("overlays/")) {
            for object in build(&[&cloud], &[component]).unwrap() {
                apply(&client, &object, true).await.unwrap();
            }
        }
    }
    // The API server checks a Pod more strictly than its template: account and priority class must exist.
    account(&control_plane, &shipped("base/rbac.yaml")).await.unwrap();
    for cloud in clouds() {
        let objects = build(&[&cloud], &[]).unwrap();
        let daemon_set = only(&objects, "DaemonSet");
        let mut pod = daemon_set["spec"]["template"].clone();
        assert_eq!(pod["spec"]["serviceAccountName"], ACCOUNT);
        // Installers set different values of the label of control plane nodes.
        assert_eq!(pod["spec"]["nodeSelector"], Value::Null);
        let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
        let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let exists = json!({"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"});
        assert_eq!(*terms, json!([{ "matchExpressions": [exists] }]));
        // The values of their taints differ, too.
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        for role in ["control-plane", "master", "etcd"] {
            let key = format!("node-role.kubernetes.io/{role}");
            let mut found = tolerations.iter().filter(|toleration| toleration["key"] == key);
            assert_eq!(found.next().unwrap()["operator"], "Exists", "{key}");
        }
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(format!("{cloud}-pod"));
        pod["metadata"]["namespace"] = daemon_set["metadata"]["namespace"].clone();
        let created = apply(&client, &pod, true).await.unwrap();
        assert!(created.data["spec"]["priority"].as_i64() > Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelled_field_is_refused() {
    let control_plane = ControlPlane::start().await.unwrap();
    let client = control_plane.client().await.unwrap();
    let objects = build(&[&clouds()[0]], &[]).unwrap();
    let mut daemon_set = only(&objects, "DaemonSet").clone();
    daemon_set["spec"]["template"]["spec"]["hostnetwork"] = json!(true);
    let refused = apply(&client, &daemon_set, true).await.unwrap_err();
    assert!(format!("{refused:#}").contains("hostnetwork"), "{refused:#}");
}

#[test]
fn the_program_accepts_the_flags_of_each_daemon_set_without_a_warning() {
    let providers = cloud_controller_manager::providers::registered().unwrap();
    for cloud in clouds() {
        let objects = build(&[&cloud], &COMPONENTS).unwrap();
        let words = arguments(only(&objects, "DaemonSet"));
        // A build without this cloud has its flags, but not its name.
        if !providers.iter().any(|provider| provider.name == cloud) {
            continue;
        }
        let parsed = options::parse(words.into_iter().map(Into::into), &providers).unwrap();
        let Request::Run(config) = parsed else {
            panic!("not a request to run")
        };
        assert_eq!(config.warnings, [""; 0]);
        assert_eq!(config.provider.name, cloud);
        assert!(config.service_accounts);
        let lease = config.election.unwrap().migration.unwrap().lease;
        let may = objects.iter().any(|object| object["rules"][0]["resourceNames"] == json!([lease]));
        assert!(may, "no role for the Lease {lease}");
        let container = &only(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap();
        for field in ["name", "namespace", "uid"] {
            let name = format!("POD_{}", field.to_uppercase());
            let path = format!("metadata.{field}");
            let variable = json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
            assert!(variables.contains(&variable), "{variables:?}");
        }
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], 10258);
            assert_eq!(container[probe]["httpGet"]["scheme"], "HTTPS");
        }
    }
}

#[test]
fn selectors_match_the_pods_of_every_cloud() {
    for cloud in clouds() {
        for components in [&COMPONENTS[..], &["hosted", "pod-monitor", "network-policy"]] {
            check_selectors(&build(&[&cloud], components).unwrap());
        }
    }
}

#[test]
fn each_overlay_has_the_objects_of_its_name() {
    let providers = cloud_controller_manager::providers::registered().unwrap();
    for cloud in clouds() {
        let known = providers.iter().any(|provider| provider.name == cloud);
        let request = |objects: &[Value]| {
            let words = arguments(workload(objects)).into_iter().map(Into::into);
            known.then(|| options::parse(words, &providers).unwrap())
        };

        let hosted = build(&[&cloud], &[&COMPONENTS[..], &["hosted"]].concat()).unwrap();
        // Objects for the hosted cluster are not applied in the management cluster.
        assert_eq!(count(&hosted, "ServiceAccount") + count(&hosted, "ClusterRoleBinding"), 0);
        assert_eq!(count(&hosted, "Role") + count(&hosted, "ClusterRole"), 0);
        let mut tokens =
            hosted.iter().filter(|object| object["type"] == "kubernetes.io/service-account-token");
        assert_eq!(tokens.next(), None);
        let pods = &only(&hosted, "Deployment")["spec"]["template"]["spec"];
        assert_eq!(pods["automountServiceAccountToken"], false);
        assert_eq!(pods["hostNetwork"], Value::Null);
        // The replicas are spread, by labels that they have.
        let spread = &pods["topologySpreadConstraints"][0];
        assert_eq!(spread["topologyKey"], "kubernetes.io/hostname");
        let labels = &only(&hosted, "Deployment")["spec"]["template"]["metadata"]["labels"];
        for (key, value) in spread["labelSelector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(labels[key], *value);
        }
        let container = &pods["containers"][0];
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mounted = mounts.last().unwrap()["mountPath"].as_str().unwrap();
        let kubeconfig = format!("{mounted}/value");
        let words = arguments(workload(&hosted));
        for flag in [
            "kubeconfig",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
        ] {
            assert!(words.contains(&format!("--{flag}={kubeconfig}")), "{flag}: {words:?}");
        }
        match request(&hosted) {
            Some(Request::Run(config)) => assert!(config.service_accounts),
            Some(other) => panic!("{cloud} hosted: {other:?}"),
            None => {}
        }

        for (component, kind, others) in [
            ("dry-run", "Deployment", &[][..]),
            ("dry-run", "Deployment", &COMPONENTS),
            ("plan", "Job", &[]),
            ("plan", "Job", &COMPONENTS),
        ] {
            let objects = build(&[&cloud], &[others, &[component]].concat()).unwrap();
            let ours = only(&objects, kind);
            match request(&objects) {
                Some(Request::Run(config)) => assert!(config.dry_run && kind == "Deployment"),
                Some(Request::Plan(_)) => assert_eq!(kind, "Job"),
                Some(other) => panic!("{cloud} {component}: {other:?}"),
                None => {}
            }
            // The dry run works beside the program in charge: other names, no Pod that its selector matches, and no right
            // to write.
            let live = build(&[&cloud], others).unwrap();
            for object in &objects {
                let name = name_of(object);
                assert!(!live.iter().any(|other| name_of(other) == name), "{name:?}");
            }
            // The references between the objects of the PodMonitor have the suffix, too.
            let find = |kind: &str, name: &Value| {
                let is_meant = |object: &&Value| name_of(object) == (&json!(kind), name);
                objects.iter().find(is_meant).unwrap_or_else(|| panic!("no {kind} {name}"))
            };
            if let Some(monitor) = objects.iter().find(|object| object["kind"] == "PodMonitor") {
                let credentials = &monitor["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"];
                let token = find("Secret", &credentials["name"]);
                find(
                    "ServiceAccount",
                    &token["metadata"]["annotations"]["kubernetes.io/service-account.name"],
                );
            }
            let selector = &only(&live, "DaemonSet")["spec"]["selector"]["matchLabels"]["k8s-app"];
            assert_ne!(ours["spec"]["template"]["metadata"]["labels"]["k8s-app"], *selector);
            for right in ccm_testbed::manifests::rights(&objects) {
                assert!(["get", "list", "watch"].contains(&right.verb.as_str()), "{right}");
            }
        }
    }
}
