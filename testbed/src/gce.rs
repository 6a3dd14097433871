//! Compute Engine in memory, with its metadata server.
//!
//! The sources are in `tests/parity/gce`. The server needs only Python. It checks every request and every answer against
//! Google's description of the API. Each [`GceServer`] is a process with its own projects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cache;
use crate::controlplane::blocking;
use crate::process::{self, Running};
use crate::python;

/// The token that the metadata server returns.
pub const TOKEN: &str = "emulated-access-token";
/// The cluster's region.
pub const REGION: &str = "us-central1";
/// The zones of the region.
pub const ZONES: [&str; 4] = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"];
/// The number of the first project.
pub const PROJECT_NUMBER: &str = "123456789012";
/// Time limit until the server has started.
const LIMIT: Duration = Duration::from_secs(60);
/// The pause between reads of an operation.
const POLL: Duration = Duration::from_millis(10);

/// The options of a server.
#[derive(Clone, Debug)]
pub struct GceOptions {
    /// The cluster's project, and then host projects of shared networks.
    pub projects: Vec<String>,
    /// The duration of an operation.
    pub operation: Duration,
    /// The range of the subnetwork `default` in the cluster's region.
    pub subnet: String,
    /// The least size of an instance in an answer. Instances with startup scripts and keys have about 20 kB.
    pub instance_bytes: usize,
    /// Further options of `gce_server.py`.
    pub more: Vec<String>,
}

impl Default for GceOptions {
    fn default() -> Self {
        Self {
            projects: vec!["test-project".to_owned()],
            operation: Duration::ZERO,
            // The largest one of an automatic subnetwork.
            subnet: "10.128.0.0/16".to_owned(),
            instance_bytes: 0,
            more: Vec::new(),
        }
    }
}

/// A running server. It is stopped when dropped or when this process ends.
#[derive(Debug)]
pub struct GceServer {
    _process: Running,
    port: u16,
    projects: Vec<String>,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

fn sources() -> Result<PathBuf> {
    cache::sources("parity/gce")
}

impl GceServer {
    /// Starts a server on a free port.
    ///
    /// # Errors
    /// When Python 3 is missing or the server does not start.
    pub async fn start(options: &GceOptions) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [log, ready] = ["gce.log", "port"].map(|name| folder.path().join(name));
        let mut command = Command::new(python::interpreter());
        command
            .arg(sources()?.join("gce_server.py"))
            .arg("--ready")
            .arg(&ready)
            .args(["--token", TOKEN])
            .args(["--projects", &options.projects.join(",")])
            .args(["--subnet", &options.subnet])
            .arg(format!("--operation={}", options.operation.as_secs_f64()))
            .arg(format!("--instance-bytes={}", options.instance_bytes))
            .args(&options.more);
        let mut process = Running::start(&command, &log)?;
        let started = Instant::now();
        while !ready.exists() {
            if process.exit_status()?.is_some() || started.elapsed() > LIMIT {
                bail!("gce_server.py does not start; {}", process::log_tail(&log));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let port = fs::read_to_string(&ready)?;
        Ok(Self {
            _process: process,
            port: port.trim().parse().with_context(|| format!("{port:?} is not a port"))?,
            projects: options.projects.clone(),
            client: crate::http::client().build()?,
            _folder: folder,
        })
    }

    /// The URL of all services of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The cluster's project.
    #[must_use]
    pub fn project(&self) -> &str {
        self.projects.first().map(String::as_str).unwrap_or_default()
    }

    /// Sends a request to the API, and waits for its operation. The path is relative to the cluster's project.
    ///
    /// # Errors
    /// When it is refused; with the reason.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        self.call_in(self.project(), method, path, body).await
    }

    /// The same in another project.
    ///
    /// # Errors
    /// When it is refused; with the reason.
    pub async fn call_in(
        &self,
        project: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let path_of_project = format!("/compute/v1/projects/{project}/{path}");
        let mut answer: Value = self.send(method, path_of_project.trim_end_matches('/'), body).await?;
        while answer["kind"] == "compute#operation" {
            if let Some(error) = answer.pointer("/error/errors/0") {
                bail!("{path}: {error}");
            }
            if answer["status"] == "DONE" {
                break;
            }
            tokio::time::sleep(POLL).await;
            let link = answer["selfLink"].as_str().unwrap_or_default();
            let (_, operation) = link.split_once("/compute/v1/").context("an operation without a link")?;
            answer = self.send(Method::GET, &format!("/compute/v1/{operation}"), None).await?;
        }
        Ok(answer)
    }

    async fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<&Value>) -> Result<T> {
        let mut request = self.client.request(method, self.url() + path).bearer_auth(TOKEN);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            bail!("{path}: {status}: {text}");
        }
        serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))
    }

    /// Creates running instances with one interface and an external address, in these zones in turn, without operations.
    /// `fields`: more fields of each.
    ///
    /// # Errors
    /// When the subnetwork is full, or a zone does not exist.
    pub async fn create_instances(
        &self,
        names: &[String],
        zones: &[&str],
        fields: &Value,
    ) -> Result<Vec<Value>> {
        let body = json!({"names": names, "zones": zones, "instance": fields});
        self.send(Method::POST, "/admin/instances", Some(&body)).await
    }

    /// The resources of these kinds by path, with the members of groups. Without kinds, all resources.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn objects(&self, kinds: &[&str]) -> Result<BTreeMap<String, Value>> {
        let query = if kinds.is_empty() {
            String::new()
        } else {
            format!("?kinds={}", kinds.join(","))
        };
        self.send(Method::GET, &format!("/admin/objects{query}"), None).await
    }

    /// Removes a resource without an operation, whether it is used or not.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn remove(&self, path: &str) -> Result<()> {
        let _removed: Value = self.send(Method::POST, &format!("/admin/drop?path={path}"), None).await?;
        Ok(())
    }

    /// The calls by method since the last request of this kind.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn take_calls(&self) -> Result<BTreeMap<String, u64>> {
        self.send(Method::GET, "/admin/calls", None).await
    }

    /// The permissions that requests needed since the last request of this kind.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn take_permissions(&self) -> Result<BTreeSet<String>> {
        self.send(Method::GET, "/admin/permissions", None).await
    }

    /// Sets one of `faults`, `limits`, `tokens`, `options` and `iam`. The docstring of `gce_server.py` has their forms.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn set(&self, what: &str, value: &Value) -> Result<()> {
        let _set: Value = self.send(Method::POST, &format!("/admin/{what}"), Some(value)).await?;
        Ok(())
    }

    /// Runs Google's own Python client against the server, whose only project must be `parity`.
    ///
    /// # Errors
    /// With everything that is not as the client expects, or when the client cannot be installed.
    pub async fn check_with_google_client(&self) -> Result<()> {
        let script = sources()?.join("check_client.py");
        let requirements = sources()?.join("requirements.txt");
        let port = self.port.to_string();
        blocking(move || {
            let python = python::environment("gce", &requirements, "Google's Python client")?;
            let mut command = Command::new(python);
            command.arg(script).arg(port).env("PYTHONDONTWRITEBYTECODE", "1");
            process::run_captured(&mut command).map(drop)
        })
        .await
    }
}
