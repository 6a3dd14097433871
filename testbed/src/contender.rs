//! Other programs that contend for a Lease, and write while they lead: one that uses client-go, from
//! `tests/leaderelection`, and a cloud-controller-manager on upstream's library, from `tests/leadermigration`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::controlplane::blocking;
use crate::golang::{self, GoProgram};
use crate::process::Running;

/// The Lease and the timing of a leader election.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The lease duration: how long others wait for a leader that does not renew.
    pub lease_duration: Duration,
    /// The renew deadline: when a leader that cannot renew gives up.
    pub renew_deadline: Duration,
    /// The retry period.
    pub retry_period: Duration,
}

impl ElectionConfig {
    /// The times as flags: the prefix, the name, and the value.
    fn times(&self, prefix: &str) -> [String; 3] {
        let times = [
            ("lease-duration", self.lease_duration),
            ("renew-deadline", self.renew_deadline),
            ("retry-period", self.retry_period),
        ];
        times.map(|(name, time)| format!("--{prefix}{name}={}ms", time.as_millis()))
    }
}

/// Builds the program if needed, and starts it. While it leads, it posts to the URL. `release`: whether it releases the
/// Lease at SIGTERM.
///
/// # Errors
/// When it cannot be built or started.
pub async fn client_go(
    config: &ElectionConfig,
    kubeconfig: &Path,
    identity: &str,
    url: &str,
    release: bool,
    log: &Path,
) -> Result<Running> {
    let program = blocking(|| {
        golang::build(&GoProgram {
            sources: "leaderelection",
            package: ".",
            module_file: None,
            kind: "client",
            name: "ccm-leaderelection",
            link_flags: "-s -w".to_owned(),
            tags: None,
            what: "a program with client-go's leader election (1 to 2 minutes, once)".to_owned(),
        })
    })
    .await?;
    let mut command = Command::new(program);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--namespace", &config.namespace, "--name", &config.name])
        .args(["--identity", identity, "--url", url])
        .arg(format!("--release={release}"))
        .args(config.times(""));
    Running::start(&command, log)
}

/// Builds a cloud-controller-manager on upstream's library if needed, and starts it with these additional flags. Each
/// running controller posts below the URL, under its name. At SIGTERM the program ends at once, as upstream's do, and its
/// Leases expire.
///
/// # Errors
/// When it cannot be built or started.
pub async fn manager(
    config: &ElectionConfig,
    kubeconfig: &Path,
    flags: &[String],
    url: &str,
    log: &Path,
) -> Result<Running> {
    let program = blocking(|| {
        golang::build(&GoProgram {
            sources: "leadermigration",
            package: ".",
            module_file: None,
            kind: "manager",
            name: "ccm-leadermigration",
            link_flags: "-s -w".to_owned(),
            tags: None,
            what: "a manager on upstream's library (3 to 5 minutes, once)".to_owned(),
        })
    })
    .await?;
    let mut command = Command::new(program);
    command
        .args(["--cloud-provider=writes", "--secure-port=0", "-v=4"])
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg(format!("--leader-elect-resource-namespace={}", config.namespace))
        .arg(format!("--leader-elect-resource-name={}", config.name))
        .args(config.times("leader-elect-"))
        .args(flags)
        .env("CCM_MIGRATION_URL", url);
    Running::start(&command, log)
}
