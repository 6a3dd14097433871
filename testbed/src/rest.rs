//! Requests to an OpenStack, real or simulated.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use reqwest::{Client, Method};
use serde_json::{Value, json};

/// The user agent, which differs from that of the program.
const AGENT: &str = "ccm-testbed";
/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(60);

/// A session of a user in a project.
#[derive(Clone)]
pub struct Rest {
    http: Client,
    token: String,
    /// The URLs of the services, by type.
    endpoints: BTreeMap<String, String>,
}

/// The request for a token of a user by name, of the default domain.
#[must_use]
pub fn by_password(user: &str, password: &str, project: &str) -> Value {
    let domain = json!({"id": "default"});
    json!({"auth": {
        "identity": {"methods": ["password"], "password": {
            "user": {"name": user, "password": password, "domain": domain},
        }},
        "scope": {"project": {"name": project, "domain": domain}},
    }})
}

/// The request for a token with the application credential of a cloud.conf.
pub(crate) fn by_credential(cloud_conf: &str) -> Result<Value> {
    let key = |name: &str| {
        let mut lines = cloud_conf.lines().filter_map(|line| line.split_once('='));
        let found = lines.find(|(key, _)| key.trim() == name);
        let (_, value) = found.with_context(|| format!("the cloud.conf has no {name}"))?;
        anyhow::Ok(value.trim().trim_matches('"').to_owned())
    };
    Ok(json!({"auth": {"identity": {
        "methods": ["application_credential"],
        "application_credential": {
            "id": key("application-credential-id")?,
            "secret": key("application-credential-secret")?,
        },
    }}}))
}

impl Rest {
    /// Requests a token.
    ///
    /// # Errors
    /// When Keystone refuses it.
    pub async fn log_in(auth_url: &str, request: &Value) -> Result<Self> {
        let http = crate::http::client().user_agent(AGENT).timeout(LIMIT).build()?;
        let url = format!("{auth_url}/auth/tokens");
        let answer = http.post(url).json(request).send().await?.error_for_status()?;
        let token = answer.headers().get("x-subject-token").context("no token")?;
        let token = token.to_str()?.to_owned();
        let body: Value = answer.json().await?;
        let mut endpoints = BTreeMap::from([("identity".to_owned(), auth_url.to_owned())]);
        for service in items(&body["token"]["catalog"]) {
            let public =
                items(&service["endpoints"]).iter().find(|endpoint| endpoint["interface"] == "public");
            if let (Some(public), Some(kind @ ("compute" | "network" | "load-balancer"))) =
                (public, service["type"].as_str())
            {
                let url = public["url"].as_str().unwrap_or_default();
                endpoints.insert(kind.to_owned(), url.trim_end_matches('/').to_owned());
            }
        }
        Ok(Self {
            http,
            token,
            endpoints,
        })
    }

    /// The answer's body. `path` begins with the service: `network/v2.0/ports`.
    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let (service, rest) = path.split_once('/').context("a path begins with its service")?;
        let root = self.endpoints.get(service).with_context(|| format!("no {service}"))?;
        let url = format!("{root}/{rest}");
        let mut request = self.http.request(method.clone(), &url);
        request = request.header("x-auth-token", &self.token);
        if let Some(body) = &body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            bail!("{method} {url} {body:?}: {status} {text}");
        }
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Reads an object. `path` begins with the service: `network/v2.0/ports/ID`.
    ///
    /// # Errors
    /// When the cloud refuses the request; with its answer.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, None).await
    }

    /// Sends a POST request, and returns the body of the answer.
    ///
    /// # Errors
    /// When the cloud refuses the request; with its answer.
    pub async fn post(&self, path: &str, body: Value) -> Result<Value> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Sends a PUT request, and returns the body of the answer.
    ///
    /// # Errors
    /// When the cloud refuses the request; with its answer.
    pub async fn put(&self, path: &str, body: impl Into<Option<Value>>) -> Result<Value> {
        self.send(Method::PUT, path, body.into()).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When the cloud refuses the request; with its answer.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.send(Method::DELETE, path, None).await.map(drop)
    }

    /// The only list in the answer.
    ///
    /// # Errors
    /// When the cloud refuses the request; with its answer.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>> {
        let body = self.get(path).await?;
        let found = body.as_object().and_then(|body| body.values().find(|value| value.is_array()));
        Ok(found.map(|list| items(list).to_vec()).unwrap_or_default())
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
