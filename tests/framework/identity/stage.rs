//! A control plane, and the program with a kubeconfig of the test.

use std::{fs, path::PathBuf, time::Duration};

use ccm_testbed::{
    binary::{Ccm, Launch},
    controlplane::ControlPlane,
    manifests, observe,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binaries;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    folder: TempDir,
    /// Certificate authority, client certificate and key of the administrator, PEM.
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// The token of an account with all rights.
    pub(crate) token: String,
}

impl Stage {
    pub(crate) async fn set() -> Self {
        let control_plane = ControlPlane::start().await.unwrap();
        let file = fs::read(control_plane.kubeconfig()).unwrap();
        let admin: Value = serde_json::from_slice(&file).unwrap();
        let text = |value: &Value, key: &str| match value[format!("{key}-data")].as_str() {
            Some(data) => {
                let bytes: k8s_openapi::ByteString = serde_json::from_value(data.into()).unwrap();
                String::from_utf8(bytes.0).unwrap()
            }
            None => fs::read_to_string(value[key].as_str().unwrap()).unwrap(),
        };
        let (cluster, user) = (&admin["clusters"][0]["cluster"], &admin["users"][0]["user"]);
        let file = control_plane.service_account_kubeconfig("kube-system", "ccm").await.unwrap();
        let account: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let token = account["users"][0]["user"]["token"].as_str().unwrap().to_owned();
        let client = control_plane.client().await.unwrap();
        manifests::bind(&client, "kube-system", "ccm", "cluster-admin").await.unwrap();
        Self {
            authority: text(cluster, "certificate-authority"),
            certificate: text(user, "client-certificate"),
            key: text(user, "client-key"),
            control_plane,
            token,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        // Written at once, because the program may read at any moment.
        let unfinished = self.path("unfinished");
        fs::write(&unfinished, text).unwrap();
        fs::rename(unfinished, self.path(name)).unwrap();
    }

    /// A kubeconfig for this control plane. Files that it names are relative to it.
    pub(crate) fn kubeconfig(&self, cluster: &Value, user: &Value) {
        let mut of_cluster = json!({"server": self.control_plane.server()});
        of_cluster.as_object_mut().unwrap().extend(cluster.as_object().unwrap().clone());
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": of_cluster}],
            "users": [{"name": "u", "user": user}],
        });
        self.write("kubeconfig", &config.to_string());
    }

    /// The authorities of the cluster in a file.
    pub(crate) fn trusted(&self) -> Value {
        self.write("ca.crt", &self.authority);
        json!({"certificate-authority": "ca.crt"})
    }

    /// Starts the program with its most detailed log.
    pub(crate) fn launch(&self, flags: &[&str]) -> Ccm {
        self.launch_with(flags, &[])
    }

    /// The same with these variables.
    pub(crate) fn launch_with(&self, flags: &[&str], variables: &[(&str, &str)]) -> Ccm {
        let envs = variables.iter();
        let mut args = vec![
            "--cloud-provider=acme".to_owned(),
            format!("--kubeconfig={}", self.path("kubeconfig").display()),
            "--leader-elect=false".to_owned(),
            "-v=10".to_owned(),
        ];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Ccm::start(&Launch {
            program: binaries::example("out_of_tree").get_program().into(),
            args,
            envs: envs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            log: self.path("log"),
        })
        .unwrap()
    }

    /// Ignores all lines of the log so far.
    pub(crate) fn forget_log(&self) {
        let _ = fs::remove_file(self.path("log"));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log contains the text.
    pub(crate) async fn logged(&self, text: &str) {
        let there = observe::eventually(LIMIT, async || self.log().contains(text).then_some(())).await;
        assert!(there.is_some(), "{text:?} is not in the log:\n{}", self.log());
    }

    /// Checks that the log contains no tokens and keys.
    pub(crate) fn keeps_secrets(&self, more: &[&str]) {
        let log = self.log();
        let key = self.key.lines().nth(1).unwrap();
        for secret in [self.token.as_str(), key].iter().chain(more) {
            assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
        }
    }
}
