//! A control plane, a ledger, and those who contend.

use std::{env, path::Path, path::PathBuf, time::Duration};

use ccm_testbed::{
    binary::{Ccm, Launch},
    contender::{Contender, Contest},
    controlplane::{ControlPlane, Options},
    nodes::{self, NodeSpec},
    observe,
};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, api::PostParams};
use tempfile::TempDir;

use crate::ledger::Ledger;

/// Nothing here takes this long unless it is broken.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// Who steals leases.
pub(crate) const THIEF: &str = "thief";

/// Short, so that tests are: client-go's proportions.
pub(crate) fn short() -> Contest {
    Contest {
        namespace: "kube-system".to_owned(),
        name: "cloud-controller-manager".to_owned(),
        lease_duration: Duration::from_secs(4),
        renew_deadline: Duration::from_millis(2500),
        retry_period: Duration::from_millis(500),
    }
}

/// client-go's defaults, for a lease of this name.
pub(crate) fn usual(name: impl Into<String>) -> Contest {
    Contest {
        namespace: "kube-system".to_owned(),
        name: name.into(),
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    }
}

pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    pub(crate) ledger: Ledger,
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
    /// With one node, about which a leader asks its cloud all the time.
    pub(crate) async fn set() -> Self {
        let control_plane = ControlPlane::start(Options { audit: false }).await.unwrap();
        let client = control_plane.client().await.unwrap();
        let node = NodeSpec {
            uninitialized: false,
            provider_id: Some("ledger://one".to_owned()),
            ..NodeSpec::new("one")
        };
        nodes::register(&client, [&node]).await.unwrap();
        Self {
            leases: Api::namespaced(client.clone(), "kube-system"),
            client,
            control_plane,
            ledger: Ledger::start().await,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A file of this text.
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

    /// Starts one of ours.
    pub(crate) fn ours(&self, name: &str, contest: &Contest, flags: &[&str]) -> Ccm {
        self.ours_as(name, contest, &self.control_plane.kubeconfig(), flags)
    }

    pub(crate) fn ours_as(&self, name: &str, contest: &Contest, kubeconfig: &Path, flags: &[&str]) -> Ccm {
        let mut args = vec![
            "--cloud-provider=ledger".to_owned(),
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
                ("CCM_REPLICA_LEDGER".to_owned(), self.ledger.url(name)),
                ("CCM_REPLICA_ELECTION".to_owned(), election),
            ],
            log: self.log_of(name),
        })
        .unwrap()
    }

    /// Starts one of ours that waits: its stores are filled, and it has seen who leads.
    pub(crate) async fn standby(&self, name: &str, contest: &Contest) -> Ccm {
        self.standby_with(name, contest, &[]).await
    }

    pub(crate) async fn standby_with(&self, name: &str, contest: &Contest, flags: &[&str]) -> Ccm {
        let mut ccm = self.ours(name, contest, flags);
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        self.eventually(&format!("{name} waits"), async || {
            self.log(name).contains("Another process leads").then_some(())
        })
        .await;
        ccm
    }

    /// Starts one that uses client-go.
    pub(crate) async fn theirs(&self, name: &str, contest: &Contest) -> Contender {
        let kubeconfig = self.control_plane.kubeconfig();
        let url = self.ledger.url(name);
        Contender::start(contest, &kubeconfig, name, &url, true, &self.log_of(name))
            .await
            .unwrap()
    }

    /// Starts a manager on upstream's library.
    pub(crate) async fn manager(&self, name: &str, contest: &Contest, flags: &[&str]) -> Contender {
        let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let kubeconfig = self.control_plane.kubeconfig();
        let url = self.ledger.url(name);
        Contender::manager(contest, &kubeconfig, &flags, &url, &self.log_of(name))
            .await
            .unwrap()
    }

    /// Writes somebody else's name into the lease, as one does that does not wait for anybody.
    pub(crate) async fn steal(&self, lease: &str) {
        self.eventually("the lease is stolen", async || {
            let mut stolen = self.leases.get(lease).await.ok()?;
            let spec = stolen.spec.as_mut()?;
            spec.holder_identity = Some(THIEF.to_owned());
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            // Whose renewal comes between is stolen from at the next try.
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

    /// Waits until this one has written some more.
    pub(crate) async fn writes(&self, name: &str) {
        let before = self.ledger.count(name);
        self.eventually(&format!("{name} writes"), async || {
            (self.ledger.count(name) >= before + 5).then_some(())
        })
        .await;
    }

    /// The lease as it is.
    pub(crate) async fn lease(&self, contest: &Contest) -> LeaseSpec {
        self.leases.get(&contest.name).await.unwrap().spec.unwrap()
    }

    /// Who holds this lease.
    pub(crate) async fn holder(&self, lease: &str) -> String {
        let lease = self.leases.get(lease).await.unwrap();
        lease.spec.unwrap().holder_identity.unwrap_or_default()
    }
}
