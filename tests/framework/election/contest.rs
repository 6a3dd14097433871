//! A control plane, a log of writes, and processes that contend for Leases.

use std::{env, path::Path, path::PathBuf, time::Duration};

use ccm_testbed::{
    binary::{Ccm, Launch},
    contender::{self, ElectionConfig},
    controlplane::ControlPlane,
    nodes::{self, NodeSpec},
    observe,
    process::Running,
};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, api::PostParams};
use tempfile::TempDir;

use super::write_log::WriteLog;

/// Time limit of each wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The holder in stolen Leases.
pub(crate) const THIEF: &str = "thief";

/// Short times with the proportions of client-go's defaults.
pub(crate) fn short() -> ElectionConfig {
    ElectionConfig {
        namespace: "kube-system".to_owned(),
        name: "cloud-controller-manager".to_owned(),
        lease_duration: Duration::from_secs(4),
        renew_deadline: Duration::from_millis(2500),
        retry_period: Duration::from_millis(500),
    }
}

/// client-go's defaults, for a lease of this name.
pub(crate) fn usual(name: impl Into<String>) -> ElectionConfig {
    ElectionConfig {
        namespace: "kube-system".to_owned(),
        name: name.into(),
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    }
}

pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    pub(crate) writes: WriteLog,
    pub(crate) client: kube::Client,
    pub(crate) leases: Api<Lease>,
    folder: TempDir,
}

fn program() -> PathBuf {
    // Cargo puts the tests into `deps/` and the examples, built along with them, beside it.
    let test = env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/election_replica");
    assert!(
        example.exists(),
        "{} is missing: run `cargo build --example election_replica`",
        example.display()
    );
    example
}

impl Stage {
    /// Starts a control plane with one node. A leader continuously asks its cloud about this node.
    pub(crate) async fn set() -> Self {
        let control_plane = ControlPlane::start().await.unwrap();
        let client = control_plane.client().await.unwrap();
        let node = NodeSpec {
            uninitialized: false,
            provider_id: Some("replica://one".to_owned()),
            ..NodeSpec::new("one")
        };
        nodes::register(&client, [&node]).await.unwrap();
        Self {
            leases: Api::namespaced(client.clone(), "kube-system"),
            client,
            control_plane,
            writes: WriteLog::start().await,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Writes a file with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.log_of(name)).unwrap_or_default()
    }

    /// Starts a replica of this program.
    pub(crate) fn ours(&self, name: &str, contest: &ElectionConfig, flags: &[&str]) -> Ccm {
        self.ours_as(name, contest, &self.control_plane.kubeconfig(), flags)
    }

    pub(crate) fn ours_as(
        &self,
        name: &str,
        contest: &ElectionConfig,
        kubeconfig: &Path,
        flags: &[&str],
    ) -> Ccm {
        let mut args = vec![
            "--cloud-provider=replica".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--node-status-update-frequency=20ms".to_owned(),
        ];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let millis = [
            contest.lease_duration,
            contest.renew_deadline,
            contest.retry_period,
        ]
        .map(|duration| duration.as_millis().to_string());
        let election = format!("{},{}", contest.name, millis.join(","));
        Ccm::start(&Launch {
            program: program(),
            args,
            envs: vec![
                ("CCM_REPLICA_URL".to_owned(), self.writes.url(name)),
                ("CCM_REPLICA_ELECTION".to_owned(), election),
            ],
            log: self.log_of(name),
        })
        .unwrap()
    }

    /// Starts a replica of this program that waits. Its stores are filled, and it has read the holder of the Lease.
    pub(crate) async fn standby(&self, name: &str, contest: &ElectionConfig) -> Ccm {
        self.standby_with(name, contest, &[]).await
    }

    pub(crate) async fn standby_with(&self, name: &str, contest: &ElectionConfig, flags: &[&str]) -> Ccm {
        let mut ccm = self.ours(name, contest, flags);
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        self.eventually(&format!("{name} waits"), async || {
            self.log(name).contains("Another process leads").then_some(())
        })
        .await;
        ccm
    }

    /// Starts a program with client-go.
    pub(crate) async fn client_go(&self, name: &str, contest: &ElectionConfig) -> Running {
        let kubeconfig = self.control_plane.kubeconfig();
        let url = self.writes.url(name);
        contender::client_go(contest, &kubeconfig, name, &url, true, &self.log_of(name))
            .await
            .unwrap()
    }

    /// Starts a manager on upstream's library.
    pub(crate) async fn manager(&self, name: &str, contest: &ElectionConfig, flags: &[&str]) -> Running {
        let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let kubeconfig = self.control_plane.kubeconfig();
        let url = self.writes.url(name);
        contender::manager(contest, &kubeconfig, &flags, &url, &self.log_of(name)).await.unwrap()
    }

    /// Writes another holder into the Lease before it expires.
    pub(crate) async fn steal(&self, lease: &str) {
        self.eventually("the lease is stolen", async || {
            let mut stolen = self.leases.get(lease).await.ok()?;
            let spec = stolen.spec.as_mut()?;
            spec.holder_identity = Some(THIEF.to_owned());
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            // A renewal between read and write causes a conflict and another attempt.
            let post = PostParams::default();
            self.leases.replace(lease, &post, &stolen).await.ok().map(drop)
        })
        .await;
    }

    pub(crate) async fn eventually<T>(&self, what: &str, check: impl AsyncFn() -> Option<T>) -> T {
        match observe::eventually(LIMIT, check).await {
            Some(found) => found,
            None => {
                let logs: Vec<_> = std::fs::read_dir(self.folder.path())
                    .unwrap()
                    .map(|file| file.unwrap().path())
                    .map(|path| format!("{}:\n{}", path.display(), std::fs::read_to_string(&path).unwrap()))
                    .collect();
                panic!("not within {LIMIT:?}: {what}\n{}", logs.join("\n"))
            }
        }
    }

    /// Waits until this writer has written several more times.
    pub(crate) async fn wait_for_writes(&self, name: &str) {
        let before = self.writes.count(name);
        self.eventually(&format!("{name} writes"), async || {
            (self.writes.count(name) >= before + 5).then_some(())
        })
        .await;
    }

    /// The spec of the Lease.
    pub(crate) async fn lease(&self, contest: &ElectionConfig) -> LeaseSpec {
        self.leases.get(&contest.name).await.unwrap().spec.unwrap()
    }

    /// The holder of the Lease.
    pub(crate) async fn holder(&self, lease: &str) -> String {
        let lease = self.leases.get(lease).await.unwrap();
        lease.spec.unwrap().holder_identity.unwrap_or_default()
    }
}
