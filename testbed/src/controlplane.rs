//! A real control plane: etcd and kube-apiserver of the program in `tests/controlplane`.
//!
//! No controller-manager runs beside them: nobody collects garbage, ends namespaces or removes the `not-ready` taint.

mod audit;
mod build;
mod expired;
mod reuse;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde_json::json;

pub use audit::AuditEntry;
use build::Program;
use reuse::Baseline;

use crate::cache;
use crate::process;

/// Longest time between SIGTERM and the end of the API server; it waits for requests that are being served.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Lifetime of the tokens in kubeconfigs of ServiceAccounts, in seconds: longer than any test or demonstration.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// How a control plane is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Keep an audit log, see [`ControlPlane::audit_log`].
    pub audit: bool,
}

/// A running control plane. When it is dropped, the next test of this process gets it; if its directory was given by the
/// caller, or it was stopped before, it is killed.
#[derive(Debug)]
pub struct ControlPlane {
    options: Options,
    program: Program,
    dir: PathBuf,
    server: String,
    child: Option<Child>,
    /// Requests of tests before this one in the audit log.
    audited: usize,
    /// For the next test.
    baseline: Option<Baseline>,
    /// Removes the directory, unless that was given by the caller.
    remover: Option<Child>,
}

/// What the program prints when it is ready.
#[derive(Deserialize)]
struct Ready {
    server: String,
}

impl ControlPlane {
    /// A control plane with nothing but what every cluster has: one that a test of this process has used, or a new one in a
    /// directory of its own, after building it if this was not done before.
    ///
    /// # Errors
    /// When it cannot be built or does not become ready.
    pub async fn start(options: Options) -> Result<Self> {
        if let Some(plane) = reuse::take(options).await? {
            return Ok(plane);
        }
        let dir = tempfile::Builder::new().prefix("ccm-controlplane-").tempdir()?;
        let mut plane = Self::start_in(dir.path(), options).await?;
        plane.baseline = Some(Baseline::read(&plane).await?);
        let pid = plane.pid().context("the control plane has ended")?;
        plane.remover = Some(reuse::remover(pid, &dir.keep())?);
        Ok(plane)
    }

    /// Starts a control plane in the given directory, which stays: with the same directory it is later the same
    /// control plane again, with its port, data, keys and certificates.
    ///
    /// # Errors
    /// When it cannot be built or does not become ready.
    pub async fn start_in(dir: &Path, options: Options) -> Result<Self> {
        cache::make_dir(dir)?;
        let program = blocking(build::program).await?;
        let mut plane = Self {
            options,
            program,
            dir: dir.to_owned(),
            server: String::new(),
            child: None,
            audited: 0,
            baseline: None,
            remover: None,
        };
        plane.restart().await?;
        Ok(plane)
    }

    /// Starts it again, killing it first if it still runs. Ready when this returns.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let log = self.dir.join("controlplane.log");
        let mut command = Command::new(&self.program.path);
        command.arg("--exit-with-parent").arg("--dir").arg(&self.dir);
        // Go's garbage collector is a third of what a start computes; it starts when memory has grown by this percentage.
        command.env("GOGC", "400");
        if self.options.audit {
            command.arg("--audit");
        }
        if let Some(assets) = &self.program.assets {
            command.arg("--assets").arg(assets);
        }
        let stderr = process::open_log(&log)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.path.display()))?;
        let stdout = child
            .stdout
            .take()
            .context("the control plane has no standard output")?;
        self.child = Some(child);
        // The program gives up by itself when it does not get ready, which ends its output.
        let line = blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line)?;
            Ok(line)
        })
        .await?;
        let Ok(ready) = serde_json::from_str::<Ready>(&line) else {
            self.kill()?;
            bail!(
                "the control plane did not become ready; {}",
                process::log_tail(&log)
            );
        };
        self.server = ready.server;
        Ok(())
    }

    /// Kills it (SIGKILL), as a machine that fails would; its directory stays for [`Self::restart`].
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.baseline = None;
        match self.child.take() {
            Some(mut child) => process::kill(&mut child),
            None => Ok(()),
        }
    }

    /// Stops it (SIGTERM) and waits until it is gone.
    ///
    /// # Errors
    /// When it does not end in time; it is killed then.
    pub async fn stop(&mut self) -> Result<()> {
        self.baseline = None;
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        blocking(move || {
            process::terminate(child.id())?;
            let ended = process::wait_for_exit(&mut child, STOP_LIMIT);
            if ended.is_err() {
                process::kill(&mut child)?;
            }
            ended.map(drop)
        })
        .await
    }

    /// The directory of its state.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The URL of the API server; the same after a restart.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The kubeconfig of the administrator (`system:masters`); the same after a restart.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// Process id of the control plane, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// A client as administrator, without limits of its own. It belongs to the async runtime that makes it.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig()).await
    }

    /// Every request so far, in the order of their ends; only with [`Options::audit`]. A watch that still runs is in
    /// it. Who has the reply to a request finds the request here.
    ///
    /// # Errors
    /// When there is no audit log.
    pub fn audit_log(&self) -> Result<Vec<AuditEntry>> {
        let mut log = audit::read(&self.dir.join("audit.log"))?;
        Ok(log.split_off(self.audited.min(log.len())))
    }

    /// Makes the ServiceAccount if missing, asks for a token of it and writes a kubeconfig with that token. Rights
    /// are the caller's business: without a binding it may do next to nothing.
    ///
    /// # Errors
    /// When the API server refuses one of these.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        match accounts.create(&PostParams::default(), &account).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                return Err(error).context(format!("cannot make ServiceAccount {namespace}/{name}"));
            }
        }
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let token = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("no token for ServiceAccount {namespace}/{name}"))?
            .status
            .context("the answer to the token request has no token")?
            .token;
        let path = self.dir.join(format!("{namespace}-{name}.kubeconfig"));
        let admin = fs::read_to_string(self.kubeconfig())?;
        fs::write(&path, with_token(&admin, namespace, name, &token)?)?;
        Ok(path)
    }

    /// A token of a ServiceAccount as it is an hour after its time: signed by the cluster, and expired.
    ///
    /// # Errors
    /// When this is no token, or the cluster's key cannot be used.
    pub fn expired(&self, token: &str) -> Result<String> {
        expired::token(&self.dir.join("pki/service-account.key"), token)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let (Some(baseline), Some(child)) = (self.baseline.take(), self.child.take()) {
            reuse::keep(Self {
                options: self.options,
                program: self.program.clone(),
                dir: mem::take(&mut self.dir),
                server: mem::take(&mut self.server),
                child: Some(child),
                audited: self.audited,
                baseline: Some(baseline),
                remover: self.remover.take(),
            });
            return;
        }
        if let Err(error) = self.kill() {
            cache::say(format!(
                "the control plane in {} was not killed: {error:#}",
                self.dir.display()
            ));
        }
    }
}

/// A client for a kubeconfig, without limits of its own and without retries: a test sees every answer.
///
/// # Errors
/// When the kubeconfig cannot be read or used.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    crate::http::choose_cryptography();
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("cannot read kubeconfig {}", kubeconfig.display()))?;
    let mut config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}

/// The same cluster for another user. Our own kubeconfigs are written as JSON.
fn with_token(admin: &str, namespace: &str, name: &str, token: &str) -> Result<String> {
    let mut config: serde_json::Value =
        serde_json::from_str(admin).context("the admin's kubeconfig is not JSON")?;
    let cluster = config["clusters"][0]["name"].clone();
    config["users"] = json!([{ "name": name, "user": { "token": token } }]);
    let context = json!({ "cluster": cluster, "user": name, "namespace": namespace });
    config["contexts"] = json!([{ "name": name, "context": context }]);
    config["current-context"] = json!(name);
    Ok(serde_json::to_string_pretty(&config)?)
}

/// Runs blocking work beside the async runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}
