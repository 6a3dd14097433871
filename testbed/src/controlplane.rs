//! A real control plane: etcd and kube-apiserver of the program in `tests/controlplane`.
//!
//! Without a kube-controller-manager: no garbage collection, no termination of namespaces, and the `not-ready` taint stays.

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
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde_json::json;

pub use audit::AuditEntry;
use build::Program;
use reuse::Baseline;

use crate::cache;
use crate::process::{self, Running};

/// Time limit between SIGTERM and the end of the API server, which waits for active requests.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Lifetime of the tokens in kubeconfigs of ServiceAccounts, in seconds: longer than any test or demonstration.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// A running control plane. When dropped, it is reused by the next test of this process. If it was stopped before, or its
/// directory was given by the caller, it is killed.
#[derive(Debug)]
pub struct ControlPlane {
    program: Program,
    dir: PathBuf,
    server: String,
    process: Option<Running>,
    /// The state to restore for the next test.
    baseline: Option<Baseline>,
    /// Removes the directory, unless that was given by the caller.
    remover: Option<Child>,
}

/// The output of the program when it is ready.
#[derive(Deserialize)]
struct Ready {
    server: String,
}

impl ControlPlane {
    /// Builds the program, if it is not in the cache. A start does it, too.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn build() -> Result<()> {
        build::program().map(drop)
    }

    /// An empty control plane: one that a test of this process has used, or a new one in its own directory. It is built if
    /// needed.
    ///
    /// # Errors
    /// When it cannot be built or does not become ready.
    pub async fn start() -> Result<Self> {
        if let Some(plane) = reuse::take().await? {
            return Ok(plane);
        }
        let dir = tempfile::Builder::new().prefix("ccm-controlplane-").tempdir()?;
        let mut plane = Self::start_in(dir.path()).await?;
        plane.baseline = Some(Baseline::read(&plane).await?);
        let pid = plane.pid().context("the control plane has ended")?;
        plane.remover = Some(reuse::remover(pid, &dir.keep())?);
        Ok(plane)
    }

    /// Starts a control plane in the given directory, which is kept. A later start in this directory has the same port, data,
    /// keys and certificates.
    ///
    /// # Errors
    /// When it cannot be built or does not become ready.
    pub async fn start_in(dir: &Path) -> Result<Self> {
        cache::make_dir(dir)?;
        let program = blocking(build::program).await?;
        let mut plane = Self {
            program,
            dir: dir.to_owned(),
            server: String::new(),
            process: None,
            baseline: None,
            remover: None,
        };
        plane.restart().await?;
        Ok(plane)
    }

    /// Kills the control plane if it runs, starts it, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let log = self.dir.join("controlplane.log");
        let mut command = Command::new(&self.program.path);
        command.arg("--exit-with-parent").arg("--dir").arg(&self.dir);
        // Go's garbage collector takes a third of the CPU time of a start. This percentage of memory growth triggers it.
        command.env("GOGC", "400");
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
        let stdout = child.stdout.take().context("the control plane has no standard output")?;
        self.process = Some(child.into());
        // The program exits if it does not become ready, which ends its output.
        let line = blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line)?;
            Ok(line)
        })
        .await?;
        let Ok(ready) = serde_json::from_str::<Ready>(&line) else {
            self.kill()?;
            bail!("the control plane did not become ready; {}", process::log_tail(&log));
        };
        self.server = ready.server;
        Ok(())
    }

    /// Kills the control plane (SIGKILL), like a machine failure. Its directory is kept for [`Self::restart`].
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.baseline = None;
        match self.process.take() {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Stops the control plane (SIGTERM) and waits for its end.
    ///
    /// # Errors
    /// When it does not end in time. It is then killed.
    pub async fn stop(&mut self) -> Result<()> {
        self.baseline = None;
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process.terminate()?;
        process.wait(STOP_LIMIT).await.map(drop)
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

    /// The process ID while the control plane runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Running::id)
    }

    /// A client with administrator rights and without rate limits. It belongs to the async runtime that creates it.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig()).await
    }

    /// All requests so far, in the order of their completion, and active watches. A request is listed when its client has the
    /// reply.
    ///
    /// # Errors
    /// When the audit log does not exist.
    pub fn audit_log(&self) -> Result<Vec<AuditEntry>> {
        audit::read(&self.audit_file())
    }

    fn audit_file(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// Creates the ServiceAccount if missing, requests a token, and writes a kubeconfig with that token. The caller must create
    /// bindings for its permissions.
    ///
    /// # Errors
    /// When the API server refuses a request.
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
                return Err(error).context(format!("cannot create ServiceAccount {namespace}/{name}"));
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

    /// The token with an expiration time one hour ago, signed with the cluster's key.
    ///
    /// # Errors
    /// When the token is invalid, or the cluster's key cannot be used.
    pub fn expired(&self, token: &str) -> Result<String> {
        expired::token(&self.dir.join("pki/service-account.key"), token)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(baseline) = self.baseline.take()
            && let Some(process) = self.process.take()
        {
            reuse::keep(Self {
                program: self.program.clone(),
                dir: mem::take(&mut self.dir),
                server: mem::take(&mut self.server),
                process: Some(process),
                baseline: Some(baseline),
                remover: self.remover.take(),
            });
            return;
        }
        if let Err(error) = self.kill() {
            cache::say(format!("the control plane in {} was not killed: {error:#}", self.dir.display()));
        }
    }
}

/// A client for a kubeconfig, without rate limits and retries, so that a test sees every answer.
///
/// # Errors
/// When the kubeconfig cannot be read or used.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    Ok(kube::Client::try_from(client_config(kubeconfig).await?)?)
}

/// A client of the same API server without credentials.
///
/// # Errors
/// When the kubeconfig is invalid.
pub async fn client_without_credentials(kubeconfig: &Path) -> Result<kube::Client> {
    let mut config = client_config(kubeconfig).await?;
    config.auth_info = AuthInfo::default();
    Ok(kube::Client::try_from(config)?)
}

async fn client_config(kubeconfig: &Path) -> Result<kube::Config> {
    crate::http::choose_cryptography();
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("cannot read kubeconfig {}", kubeconfig.display()))?;
    let mut config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    // The server is on loopback, whatever the environment says.
    config.proxy_url = None;
    Ok(config)
}

/// The kubeconfig for another user of the same cluster, as JSON.
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

/// Runs blocking work outside of the async runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}
