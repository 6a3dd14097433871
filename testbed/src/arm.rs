//! An Azure Resource Manager in memory, with login and metadata service.
//!
//! The sources are in `tests/parity/azure`. The server needs only Python. It checks every request and every answer against
//! Microsoft's description of the API. Each [`ArmServer`] is a process with one subscription.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cache;
use crate::process::{self, Running};
use crate::python;

/// The secret of the service principal.
pub const SECRET: &str = "emulated-client-secret";
/// Time limit until the server has started.
const LIMIT: Duration = Duration::from_secs(60);

/// A machine of a node.
#[derive(Clone, Debug, Deserialize)]
pub struct ArmMachine {
    /// The name of the node.
    pub name: String,
    /// The ID in the Azure Resource Manager.
    pub id: String,
    /// The private addresses.
    pub ips: Vec<String>,
    /// The zone label of the node.
    pub zone: Option<String>,
}

/// A running server. It is stopped when dropped or when this process ends.
#[derive(Debug)]
pub struct ArmServer {
    _process: Running,
    endpoint: String,
    subscription: String,
    tenant: String,
    /// The machines that existed at the start.
    pub machines: Vec<ArmMachine>,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

#[derive(Deserialize)]
struct Ready {
    endpoint: String,
    subscription: String,
    tenant: String,
    nodes: Vec<ArmMachine>,
}

impl ArmServer {
    /// Starts a server on a free port, with these options of `arm.py`.
    ///
    /// # Errors
    /// When Python 3 is missing or the server does not start.
    pub async fn start(options: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [log, ready] = ["arm.log", "ready.json"].map(|name| folder.path().join(name));
        let mut command = Command::new(python::interpreter());
        command
            .arg(cache::sources("parity/azure")?.join("arm.py"))
            .arg("--ready")
            .arg(&ready)
            .args(options)
            // Python must not write into the checkout.
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let mut process = Running::start(&command, &log)?;
        let started = Instant::now();
        while !ready.exists() {
            if process.exit_status()?.is_some() || started.elapsed() > LIMIT {
                bail!("arm.py does not start; {}", process::log_tail(&log));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let Ready {
            endpoint,
            subscription,
            tenant,
            nodes,
        } = serde_json::from_slice(&fs::read(&ready)?)?;
        Ok(Self {
            _process: process,
            endpoint,
            subscription,
            tenant,
            machines: nodes,
            client: crate::http::client().build()?,
            _folder: folder,
        })
    }

    /// The URL of all services of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.endpoint
    }

    /// The subscription of the cluster.
    #[must_use]
    pub fn subscription(&self) -> &str {
        &self.subscription
    }

    /// The tenant of the subscription.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The ID of a resource of Microsoft.Network in the cluster's resource group.
    #[must_use]
    pub fn network_id(&self, name: &str) -> String {
        format!(
            "/subscriptions/{}/resourceGroups/k8s/providers/Microsoft.Network/{name}",
            self.subscription
        )
    }

    /// An azure.json for this server, without credentials.
    #[must_use]
    pub fn conf_without_credentials(&self) -> String {
        format!(
            "resourceManagerEndpoint: {}\ntenantId: {}\nsubscriptionId: {}\nresourceGroup: k8s\nlocation: eastus\n\
             routeTableName: routes\n",
            self.endpoint, self.tenant, self.subscription
        )
    }

    /// An azure.json for this server.
    #[must_use]
    pub fn conf(&self) -> String {
        format!("{}aadClientId: client\naadClientSecret: {SECRET}\n", self.conf_without_credentials())
    }

    /// Creates a machine: `uniform` or `flex` in a scale set, or `standalone`. `more`: further arguments.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn create(&self, kind: &str, more: &Value) -> Result<ArmMachine> {
        let mut body = json!({"kind": kind});
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        self.control("node", &body).await
    }

    /// Deletes a machine or another resource.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn delete(&self, id: &str) -> Result<()> {
        self.control("delete", &json!({"id": id})).await.map(|_: Value| ())
    }

    /// Sets the power state of a machine, such as `deallocated`.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn power(&self, id: &str, code: &str) -> Result<()> {
        self.control("power", &json!({"id": id, "code": code})).await.map(|_: Value| ())
    }

    /// Merges into a document, as another client would.
    ///
    /// # Errors
    /// When the document does not exist.
    pub async fn patch(&self, id: &str, merge: &Value) -> Result<Value> {
        self.control("patch", &json!({"id": id, "merge": merge})).await
    }

    /// Sends a control command: see the beginning of `arm.py`.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn control<T: DeserializeOwned>(&self, name: &str, body: &Value) -> Result<T> {
        self.send(Method::POST, &format!("/_sim/{name}"), Some(body)).await
    }

    /// Reads what a control command shows: see the beginning of `arm.py`.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn control_get<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.send(Method::GET, &format!("/_sim/{name}"), None).await
    }

    /// Sends a request to the API. `id`: the ID of the resource.
    ///
    /// # Errors
    /// When it is refused; with the reason.
    pub async fn call(&self, method: Method, id: &str, body: Option<&Value>) -> Result<Value> {
        self.send(method, &format!("{id}?api-version=2025-05-01"), body).await
    }

    /// The document of a resource of Microsoft.Network, as another client reads it.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn document(&self, id: &str) -> Result<Value> {
        self.call(Method::GET, id, None).await
    }

    /// The calls since the last time, by method and type, such as `GET routeTables`.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn calls(&self) -> Result<BTreeMap<String, u64>> {
        self.send(Method::GET, "/_sim/calls", None).await
    }

    /// The requests and answers that Microsoft's description does not allow.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn findings(&self) -> Result<Vec<String>> {
        #[derive(Deserialize)]
        struct Findings {
            findings: Vec<String>,
        }
        let found: Findings = self.send(Method::GET, "/_sim/findings", None).await?;
        Ok(found.findings)
    }

    /// The logins so far, with their parameters.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn logins(&self) -> Result<Vec<Value>> {
        self.control_get("logins").await
    }

    async fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<&Value>) -> Result<T> {
        let mut request = self.client.request(method, format!("{}{path}", self.endpoint)).bearer_auth("test");
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
}
