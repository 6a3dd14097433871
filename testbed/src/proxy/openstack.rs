//! A proxy for OpenStack.
//!
//! It serves all services. URLs of services in answers, such as Keystone's catalog, are replaced by URLs of the proxy, so that
//! all requests of a client that logs in at the proxy pass the proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use http::HeaderMap;
use http::request::Parts;
use hyper::body::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Request;
use super::cloud::{CloudProxy, Dialect};

/// The service whose URL is known before the catalog is read.
const IDENTITY: &str = "identity";

/// The protocol of OpenStack's services.
#[derive(Debug)]
pub struct OpenStackDialect {
    address: SocketAddr,
    auth_path: String,
    /// The URLs of the services by type: scheme and authority, and the path.
    services: Mutex<BTreeMap<String, (String, String)>>,
}

impl CloudProxy<OpenStackDialect> {
    /// Starts a proxy for the cloud with this Keystone.
    ///
    /// # Errors
    /// When the URL is invalid, or the proxy cannot listen.
    pub async fn start(auth_url: &str) -> Result<Self> {
        let (base, path) = split(auth_url).with_context(|| format!("{auth_url:?} is not a URL"))?;
        let identity = (base.to_owned(), path.to_owned());
        Self::start_with(|address| OpenStackDialect {
            address,
            auth_path: path.to_owned(),
            services: Mutex::new(BTreeMap::from([(IDENTITY.to_owned(), identity)])),
        })
        .await
    }

    /// Keystone's URL at the proxy.
    #[must_use]
    pub fn auth_url(&self) -> String {
        format!("{}{}", self.dialect().url(IDENTITY), self.dialect().auth_path)
    }

    /// A cloud.conf with the proxy in place of Keystone.
    #[must_use]
    pub fn cloud_conf(&self, direct: &str) -> String {
        let lines = direct.lines().map(|line| match line.split_once('=') {
            Some((key, _)) if key.trim() == "auth-url" => format!("auth-url={}", self.auth_url()),
            _ => line.to_owned(),
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }
}

impl Dialect for OpenStackDialect {
    fn read(&self, head: &Parts, _: &[u8]) -> Request {
        let path = head.uri.path();
        let (service, rest) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        Request {
            method: head.method.to_string(),
            path: path.to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            resource: service.to_owned(),
            name: format!("/{rest}"),
            ..Request::default()
        }
    }

    fn is_change(&self, request: &Request) -> bool {
        request.is_write() && request.resource != IDENTITY
    }

    fn target(&self, request: &Request, _: &mut HeaderMap) -> Option<String> {
        let (base, _) = self.services.lock().get(&request.resource).cloned()?;
        let query = if request.query.is_empty() { "" } else { "?" };
        Some(format!("{base}{}{query}{}", request.name, request.query))
    }

    fn rewrite(&self, request: &Request, body: Bytes) -> Bytes {
        if request.resource == IDENTITY
            && let Ok(answer) = serde_json::from_slice(&body)
        {
            self.learn(&answer);
        }
        match std::str::from_utf8(&body) {
            Ok(text) => Bytes::from(self.rewritten(text)),
            Err(_) => body,
        }
    }

    fn refusal(&self, request: &Request, code: u16) -> String {
        let text = "refused on purpose";
        let body = match (request.resource.as_str(), code) {
            ("load-balancer", 409) => json!({
                "faultcode": "Client", "debuginfo": null,
                "faultstring": "Load Balancer x is immutable and cannot be updated.",
            }),
            ("load-balancer", _) => json!({"faultcode": "Server", "faultstring": text, "debuginfo": null}),
            ("network", _) => json!({"NeutronError": {"type": "Refused", "message": text, "detail": ""}}),
            _ => json!({"error": {"code": code, "message": text, "title": "Refused"}}),
        };
        body.to_string()
    }
}

/// Scheme and authority, and the path.
fn split(url: &str) -> Option<(&str, &str)> {
    let start = url.find("://")? + 3;
    let end = url.get(start..)?.find('/').map_or(url.len(), |at| start + at);
    Some(url.split_at(end))
}

/// Replaces a URL in a text, unless it is the beginning of a longer port or name.
fn replaced(text: &str, url: &str, by: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(url) {
        out.push_str(before);
        let ends = !after.starts_with(|next: char| next.is_ascii_alphanumeric() || matches!(next, '-' | '.'));
        out.push_str(if ends { by } else { url });
        rest = after;
    }
    out + rest
}

impl OpenStackDialect {
    fn url(&self, service: &str) -> String {
        format!("http://{}/{service}", self.address)
    }

    /// Records the URLs of the services in a catalog.
    fn learn(&self, answer: &Value) {
        let token = answer.get("token").unwrap_or(answer);
        let entries = token.get("catalog").and_then(Value::as_array);
        for entry in entries.into_iter().flatten() {
            let kind = entry.get("type").and_then(Value::as_str);
            let endpoints = entry.get("endpoints").and_then(Value::as_array);
            let urls = endpoints.into_iter().flatten();
            let mut urls = urls.filter_map(|endpoint| endpoint.get("url")?.as_str());
            if let (Some(kind), Some((base, path))) = (kind, urls.find_map(split)) {
                let place = (base.to_owned(), path.trim_end_matches('/').to_owned());
                self.services.lock().insert(kind.to_owned(), place);
            }
        }
    }

    /// Replaces the URLs of services by those of the proxy.
    fn rewritten(&self, text: &str) -> String {
        let services = self.services.lock().clone();
        let mut all: Vec<_> = services
            .iter()
            .flat_map(|(service, (base, path))| {
                let url = self.url(service);
                [
                    (format!("{base}{path}"), format!("{url}{path}")),
                    (base.clone(), url),
                ]
            })
            .collect();
        // Longer URLs are replaced first, because services may share a host.
        all.sort_by_key(|(url, _)| std::cmp::Reverse(url.len()));
        all.iter().fold(text.to_owned(), |text, (url, ours)| replaced(&text, url, ours))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use ccm_sim::openstack::{Config, OpenStack};

    use super::*;
    use crate::{proxy::Action, sweep::Party as _};

    async fn login(cloud: &OpenStack, proxy: &CloudProxy<OpenStackDialect>) -> Value {
        let config = Config::default();
        let password = json!({"user": {
            "name": config.user, "domain": {"name": "Default"}, "password": config.password,
        }});
        let body = json!({"auth": {
            "identity": {"methods": ["password"], "password": password},
            "scope": {"project": {"id": cloud.project_id()}},
        }});
        let url = format!("{}/auth/tokens", proxy.auth_url());
        let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 201);
        let token = answer.headers().get("X-Subject-Token").unwrap().to_str().unwrap().to_owned();
        let mut answer: Value = answer.json().await.unwrap();
        answer["id"] = token.into();
        answer
    }

    fn endpoint(token: &Value, service: &str) -> String {
        let all = token["token"]["catalog"].as_array().unwrap();
        let entry = all.iter().find(|entry| entry["type"] == service).unwrap();
        entry["endpoints"][0]["url"].as_str().unwrap().to_owned()
    }

    #[test]
    fn only_whole_urls_are_replaced() {
        let text = r#"{"a": "http://h:50/v3", "b": "http://h:501/x", "c": "http://h:50"}"#;
        let expected = r#"{"a": "P/v3", "b": "http://h:501/x", "c": "P"}"#;
        assert_eq!(replaced(text, "http://h:50", "P"), expected);
    }

    #[tokio::test]
    async fn all_requests_of_a_client_pass_the_proxy() {
        let cloud = OpenStack::start(Config::default()).await.unwrap();
        let proxy = CloudProxy::<OpenStackDialect>::start(&cloud.auth_url()).await.unwrap();
        let token = login(&cloud, &proxy).await;
        for service in ["network", "load-balancer", "compute"] {
            let url = endpoint(&token, service);
            assert!(url.starts_with(&format!("http://{}/", proxy.address())), "{url}");
        }
        assert!(proxy.writes().is_empty(), "a token request is not a write");
        assert!(
            proxy
                .cloud_conf(&cloud.cloud_conf())
                .contains(&format!("auth-url={}\n", proxy.auth_url()))
        );
    }

    #[tokio::test]
    async fn an_answer_is_lost_after_the_change_was_carried_out() {
        let cloud = OpenStack::start(Config::default()).await.unwrap();
        let proxy = CloudProxy::<OpenStackDialect>::start(&cloud.auth_url()).await.unwrap();
        let token = login(&cloud, &proxy).await;
        let url = endpoint(&token, "network");
        let make = async |name: &str| {
            let asked = reqwest::Client::new().post(format!("{url}/v2.0/security-groups"));
            let asked = asked.header("X-Auth-Token", token["id"].as_str().unwrap());
            let body = json!({"security_group": {"name": name}});
            asked.json(&body).send().await.map(|answer| answer.status().as_u16())
        };
        let there = |name: &str| cloud.security_groups().iter().any(|group| group.name == name);
        proxy.add(proxy.rule_for_changes(Action::CommitThenReset).at(1));
        assert!(make("cut").await.is_err() && there("cut"));
        let status = Action::Status {
            code: 429,
            retry_after: Some(1),
            body: None,
        };
        proxy.add(proxy.rule_for_changes(status).at(1));
        assert_eq!(make("refused").await.unwrap(), 429);
        assert!(!there("refused"));
        assert_eq!(make("made").await.unwrap(), 201);
        let calls = proxy.calls();
        let same =
            |call: &String| call.starts_with("POST network ") && call.ends_with("/v2.0/security-groups");
        assert!(calls.len() == 3 && calls.iter().all(same), "{calls:?}");
    }
}
