//! A cluster for which a user with rights to read runs `plan`.

use std::{collections::BTreeMap, path::PathBuf, process::Stdio};

use ccm_testbed::manifests;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Service},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::scene::{Scene, program};

/// The user of `plan`, who has only rights to read.
const READER: &str = "system:serviceaccount:kube-system:reader";

/// The result of `plan`.
pub(crate) struct PlanOutput {
    code: i32,
    pub(crate) text: String,
    pub(crate) log: String,
}

impl PlanOutput {
    #[track_caller]
    pub(crate) fn assert_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.text, self.log);
        self
    }
}

/// A control plane, a cloud, and an account with rights to read.
pub(crate) struct PlanScene {
    pub(crate) scene: Scene,
    pub(crate) reader: PathBuf,
}

impl PlanScene {
    pub(crate) async fn set() -> Self {
        let scene = Scene::set().await;
        let conf = format!(
            "{}\n[LoadBalancer]\nmanage-security-groups = true\ncreate-monitor = true\n",
            scene.cloud.cloud_conf()
        );
        scene.stage.write_cloud_config(&conf).unwrap();
        let rules = json!([
            {"apiGroups": [""], "resources": ["nodes", "services"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]},
        ]);
        manifests::cluster_role(&scene.client, "reader", &rules).await.unwrap();
        manifests::bind(&scene.client, "kube-system", "reader", "reader").await.unwrap();
        let plane = &scene.stage.control_plane;
        let reader = plane.service_account_kubeconfig("kube-system", "reader").await.unwrap();
        Self { scene, reader }
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let launch = self.scene.stage.command("openstack", &self.reader, words);
        let mut command = Command::new(program());
        command
            .args(launch.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn plan(&self, words: &[&str]) -> PlanOutput {
        let words: Vec<_> = ["plan"].iter().chain(words).copied().collect();
        let output = self.command(&words).output().await.unwrap();
        PlanOutput {
            code: output.status.code().unwrap(),
            text: String::from_utf8(output.stdout).unwrap(),
            log: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(crate) fn services(&self) -> Api<Service> {
        self.scene.services()
    }

    pub(crate) async fn create(&self, name: &str, ports: &[(u16, u16)], annotations: Value) {
        let ports: Vec<_> = ports
            .iter()
            .map(|(port, node_port)| json!({"name": format!("p{port}"), "port": port, "nodePort": node_port}))
            .collect();
        let service = json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": ports},
        });
        let service: Service = serde_json::from_value(service).unwrap();
        self.services().create(&PostParams::default(), &service).await.unwrap();
    }

    pub(crate) async fn annotate(&self, name: &str, key: &str, value: Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let params = PatchParams::default();
        self.services().patch(name, &params, &patch).await.unwrap();
    }

    pub(crate) async fn served(&self, name: &str) {
        let services = self.services();
        let check = async || {
            let status = services.get(name).await.ok()?.status?;
            status.load_balancer?.ingress.filter(|ingress| !ingress.is_empty()).map(drop)
        };
        self.scene.eventually(&format!("{name} is served"), check).await;
    }

    /// The writes to the cloud, by operation.
    pub(crate) fn writes(&self) -> BTreeMap<String, usize> {
        let mut writes = BTreeMap::new();
        for call in self.scene.cloud.calls() {
            if call.method != "GET" && call.service != "identity" {
                *writes.entry(call.op.to_owned()).or_default() += 1;
            }
        }
        writes
    }

    /// Checks that the reader wrote nothing and attempted no write.
    pub(crate) async fn assert_untouched(&self) {
        assert_eq!(self.writes(), BTreeMap::new());
        let log = self.scene.stage.control_plane.audit_log().unwrap();
        let ours: Vec<_> = log.into_iter().filter(|entry| entry.user == READER).collect();
        assert!(!ours.is_empty(), "the requests had another user");
        for entry in ours {
            let reads = matches!(entry.verb.as_str(), "get" | "list" | "watch");
            assert!(reads && entry.code != 403 && entry.resource != "leases", "{entry:?}");
        }
        let leases: Api<Lease> = Api::namespaced(self.scene.client.clone(), "kube-system");
        let lease = leases.get_opt("cloud-controller-manager").await.unwrap();
        assert!(lease.is_none(), "{lease:?}");
        let events: Api<Event> = Api::all(self.scene.client.clone());
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let components = events.into_iter().filter_map(|event| event.source?.component);
        // The API server reports on its own ServiceCIDR if it starts slowly.
        let components = components.filter(|component| component != "kubernetes-service-cidr-controller");
        assert_eq!(components.collect::<Vec<_>>(), Vec::<String>::new());
    }
}

/// Replaces IDs, which differ in each run.
pub(crate) fn redact(text: &str) -> String {
    let is_id = |word: &str| {
        word.len() == 36
            && word.char_indices().all(|(i, c)| match i {
                8 | 13 | 18 | 23 => c == '-',
                _ => c.is_ascii_hexdigit(),
            })
    };
    let is_host_id = |word: &str| word.len() == 56 && word.chars().all(|c| c.is_ascii_hexdigit());
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if rest.get(..36).is_some_and(is_id) {
            out.push_str("<id>");
            rest = &rest[36..];
        } else if rest.get(..56).is_some_and(is_host_id) {
            out.push_str("<host id>");
            rest = &rest[56..];
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}
