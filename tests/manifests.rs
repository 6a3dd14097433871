//! `deploy/` can be applied as it is.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{collections::BTreeMap, path::Path};

use ccm_testbed::{
    controlplane::{ControlPlane, Options},
    manifests::{ACCOUNT, account, add_component, apply, read, shipped},
};
use cloud_controller_manager::options::{self, Request};
use serde_json::{Value, json};

/// The objects of a folder's kustomization, without those that are made of files.
fn objects(folder: &str) -> Vec<Value> {
    let kustomization = read(&shipped(&format!("{folder}/kustomization.yaml"))).unwrap();
    let resources = kustomization[0]["resources"].as_array().unwrap().clone();
    let mut found = Vec::new();
    for resource in resources {
        let path = format!("{folder}/{}", resource.as_str().unwrap());
        found.extend(if Path::new(&path).extension().is_some() {
            read(&shipped(&path)).unwrap()
        } else {
            objects(&path)
        });
    }
    found
}

/// Folders of `deploy/` that are added to a cloud's.
const COMPONENTS: [&str; 2] = ["service-accounts", "leader-migration"];

/// The only object of this kind.
fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let only = found.next().unwrap();
    assert!(found.next().is_none(), "two of kind {kind}");
    only
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
    clouds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_takes_every_object_and_the_pod() {
    let control_plane = ControlPlane::start(Options { audit: false }).await.unwrap();
    let client = control_plane.client().await.unwrap();
    assert!(!clouds().is_empty());
    for cloud in clouds() {
        let objects = objects(&cloud);
        let mut with_components = objects.clone();
        for component in COMPONENTS {
            let before = with_components.len();
            add_component(&mut with_components, component).unwrap();
            assert!(with_components.len() > before, "{component}");
        }
        for object in objects.iter().chain(&with_components) {
            apply(&client, object, true).await.unwrap();
        }
    }
    // A Pod is looked at closer than the template that it is made of: its account and its priority must be there.
    account(&control_plane, &shipped("base/rbac.yaml")).await.unwrap();
    for cloud in clouds() {
        let objects = objects(&cloud);
        let daemon_set = only(&objects, "DaemonSet");
        let mut pod = daemon_set["spec"]["template"].clone();
        assert_eq!(
            daemon_set["spec"]["selector"]["matchLabels"],
            pod["metadata"]["labels"]
        );
        assert_eq!(pod["spec"]["serviceAccountName"], ACCOUNT);
        // Installers give the label of control plane nodes different values.
        assert_eq!(pod["spec"]["nodeSelector"], Value::Null);
        let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
        let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let exists = json!({"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"});
        assert_eq!(*terms, json!([{ "matchExpressions": [exists] }]));
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(format!("{cloud}-pod"));
        pod["metadata"]["namespace"] = daemon_set["metadata"]["namespace"].clone();
        let created = apply(&client, &pod, true).await.unwrap();
        assert!(created.data["spec"]["priority"].as_i64() > Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelt_field_is_not_taken() {
    let control_plane = ControlPlane::start(Options { audit: false }).await.unwrap();
    let client = control_plane.client().await.unwrap();
    let objects = objects(&clouds()[0]);
    let mut daemon_set = only(&objects, "DaemonSet").clone();
    daemon_set["spec"]["template"]["spec"]["hostnetwork"] = json!(true);
    let refused = apply(&client, &daemon_set, true).await.unwrap_err();
    assert!(format!("{refused:#}").contains("hostnetwork"), "{refused:#}");
}

#[test]
fn the_flags_of_each_daemon_set_are_taken_without_a_warning() {
    let providers = cloud_controller_manager::providers::registered().unwrap();
    for cloud in clouds() {
        let mut objects = objects(&cloud);
        for component in COMPONENTS {
            add_component(&mut objects, component).unwrap();
        }
        let container = only(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0].clone();
        let environment: BTreeMap<_, _> = container["env"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|variable| Some((variable["name"].as_str()?, variable["value"].as_str()?)))
            .collect();
        let words = container["args"].as_array().unwrap().iter().map(|word| {
            let word = word.as_str().unwrap().to_owned();
            environment.iter().fold(word, |word, (name, value)| {
                word.replace(&format!("$({name})"), value)
            })
        });
        let words: Vec<_> = words.collect();
        assert!(words.iter().all(|word| !word.contains("$(")), "{words:?}");
        // A build without this cloud knows its flags, too, but not its name.
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
        let may = objects
            .iter()
            .any(|object| object["rules"][0]["resourceNames"] == json!([lease]));
        assert!(may, "no role for the Lease {lease}");
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], 10258);
            assert_eq!(container[probe]["httpGet"]["scheme"], "HTTPS");
        }
        // Where the Secret is mounted, there the program looks.
        let folder = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
        let mut paths = environment.values().map(|value| Path::new(*value).parent());
        assert!(
            paths.any(|parent| parent == Some(Path::new(folder))),
            "{environment:?}"
        );
    }
}
