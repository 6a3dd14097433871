//! Plain requests to an OpenStack, real or simulated.

use std::{collections::BTreeMap, sync::Once, time::Duration};

use anyhow::{Context as _, Result, bail};
use reqwest::{Client, Method, header::USER_AGENT};
use serde_json::{Value, json};

use crate::cases::{items, text};

/// The user agent of the tests' requests, which differs from that of the program.
pub(crate) const AGENT: &str = "parity-recorder";

/// Pause between two reads of a state that changes in seconds.
const PAUSE: Duration = Duration::from_millis(500);

/// A session of a user in a project.
#[derive(Clone)]
pub(crate) struct Rest {
    http: Client,
    token: String,
    endpoints: BTreeMap<String, String>,
}

pub(crate) fn client() -> Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
    let builder = Client::builder().no_proxy().timeout(Duration::from_secs(60));
    builder.build().unwrap()
}

/// A user by name, of the default domain.
pub(crate) fn by_password(user: &str, password: &str, project: &str) -> Value {
    let domain = json!({"id": "default"});
    json!({"auth": {
        "identity": {"methods": ["password"], "password": {
            "user": {"name": user, "password": password, "domain": domain},
        }},
        "scope": {"project": {"name": project, "domain": domain}},
    }})
}

impl Rest {
    pub(crate) async fn log_in(auth_url: &str, auth: &Value) -> Result<Self> {
        let http = client();
        let request = http
            .post(format!("{auth_url}/auth/tokens"))
            .header(USER_AGENT, AGENT);
        let answer = request.json(auth).send().await?.error_for_status()?;
        let token = answer.headers().get("x-subject-token").context("no token")?;
        let token = token.to_str()?.to_owned();
        let body: Value = answer.json().await?;
        let mut endpoints = BTreeMap::from([("identity".to_owned(), auth_url.to_owned())]);
        for service in items(&body["token"]["catalog"]) {
            let public = items(&service["endpoints"])
                .iter()
                .find(|endpoint| endpoint["interface"] == "public");
            if let (Some(public), "compute" | "network" | "load-balancer") =
                (public, text(&service["type"]).as_str())
            {
                let url = text(&public["url"]);
                endpoints.insert(text(&service["type"]), url.trim_end_matches('/').to_owned());
            }
        }
        Ok(Self {
            http,
            token,
            endpoints,
        })
    }

    /// The answer's body. `path` begins with the service: `network/v2.0/ports`.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let (service, rest) = path.split_once('/').context("a path begins with its service")?;
        let root = self
            .endpoints
            .get(service)
            .with_context(|| format!("no {service}"))?;
        let url = format!("{root}/{rest}");
        let mut request = self.http.request(method.clone(), &url);
        request = request
            .header("x-auth-token", &self.token)
            .header(USER_AGENT, AGENT);
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

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Result<Value> {
        self.send(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Result<Value> {
        self.send(Method::PUT, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.send(Method::DELETE, path, None).await.map(drop)
    }

    /// The only list in the answer.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<Value>> {
        let body = self.get(path).await?;
        let found = body
            .as_object()
            .and_then(|body| body.values().find(|value| value.is_array()));
        Ok(found.map(|list| items(list).to_vec()).unwrap_or_default())
    }
}

/// Repeats the check until it returns a value, with pauses that suit a busy real cloud.
pub(crate) async fn poll<T>(limit: Duration, check: impl AsyncFn() -> Option<T>) -> Option<T> {
    let wait = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(limit, wait).await.ok()
}
