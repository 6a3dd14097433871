//! A control plane, the program under an account with few rights, and accounts of clients.

use std::{fs, path::Path, time::Duration};

use ccm_testbed::{
    binary::{Ccm, Launch},
    controlplane::ControlPlane,
    manifests::{self, ACCOUNT},
};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binaries;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: Client,
    pub(crate) folder: TempDir,
}

impl Stage {
    pub(crate) async fn set() -> Self {
        let control_plane = ControlPlane::start().await.unwrap();
        let client = control_plane.client().await.unwrap();
        Self {
            control_plane,
            client,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// The kubeconfig of the program's account, with the rights of the node controllers and, with `may_review`, the right to
    /// create reviews.
    pub(crate) async fn account(&self, may_review: bool) -> std::path::PathBuf {
        let kubeconfig = self.control_plane.service_account_kubeconfig("kube-system", ACCOUNT).await.unwrap();
        let rules =
            json!([{"apiGroups": [""], "resources": ["nodes", "services"], "verbs": ["list", "watch"]}]);
        self.grant("kube-system", ACCOUNT, "ccm-least", &rules).await;
        if may_review {
            manifests::bind(&self.client, "kube-system", ACCOUNT, "system:auth-delegator")
                .await
                .unwrap();
            let binding: RoleBinding = serde_json::from_value(json!({
                "metadata": {"name": "ccm-authentication-reader"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
                            "name": "extension-apiserver-authentication-reader"},
                "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": ACCOUNT}],
            }))
            .unwrap();
            Api::namespaced(self.client.clone(), "kube-system")
                .create(&PostParams::default(), &binding)
                .await
                .unwrap();
        }
        kubeconfig
    }

    /// Creates a ClusterRole, and binds it to an account.
    pub(crate) async fn grant(&self, namespace: &str, account: &str, role: &str, rules: &Value) {
        manifests::cluster_role(&self.client, role, rules).await.unwrap();
        manifests::bind(&self.client, namespace, account, role).await.unwrap();
    }

    /// The token of an account of a client.
    pub(crate) async fn token(&self, account: &str) -> String {
        let file = self.control_plane.service_account_kubeconfig("default", account).await.unwrap();
        let config: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        config["users"][0]["user"]["token"].as_str().unwrap().to_owned()
    }

    /// The token of an account that may read metrics and nothing else.
    pub(crate) async fn scraper(&self) -> String {
        let token = self.token("scraper").await;
        let rules = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
        self.grant("default", "scraper", "metrics-reader", &rules).await;
        token
    }

    /// Starts the program with the default public paths.
    pub(crate) fn launch(&self, kubeconfig: &Path, flags: &[&str]) -> Ccm {
        let program = binaries::example("out_of_tree");
        let mut args = vec![
            "--cloud-provider=acme".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".to_owned(),
            "-v=4".to_owned(),
        ];
        if !flags.iter().any(|flag| flag.starts_with("--authorization-always")) {
            args.push("--authorization-always-allow-paths=/healthz,/readyz,/livez".to_owned());
        }
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Ccm::start(&Launch {
            program: program.get_program().into(),
            args,
            envs: Vec::new(),
            log: self.log(),
        })
        .unwrap()
    }

    pub(crate) fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    pub(crate) fn lines(&self, text: &str) -> usize {
        let log = fs::read_to_string(self.log()).unwrap();
        log.lines().filter(|line| line.contains(text)).count()
    }
}

/// Repeats the request until it has this status, and returns the body.
pub(crate) async fn until(expected: u16, request: impl AsyncFn() -> anyhow::Result<(u16, String)>) -> String {
    ccm_testbed::observe::eventually(LIMIT, async || {
        let (status, body) = request().await.ok()?;
        (status == expected).then_some(body)
    })
    .await
    .expect("the answer has the status")
}
