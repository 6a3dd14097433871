//! A plain HTTP client with a token.

use std::sync::Once;
use std::time::Duration;

use ccm_sim::openstack::{Config, OpenStack};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

/// A simulated cloud and a client that is logged in.
pub(crate) struct Session {
    pub(crate) cloud: OpenStack,
    pub(crate) http: reqwest::Client,
    pub(crate) token: String,
    pub(crate) base: String,
}

/// An answer with everything that a test asks about.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) async fn of(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self {
            status,
            headers,
            text,
            json,
        }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// Text at a JSON pointer.
    pub(crate) fn at(&self, pointer: &str) -> &str {
        self.json.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// The members called `key` of the objects in a list.
    pub(crate) fn each(&self, list: &str, key: &str) -> Vec<String> {
        let list = self.json[list].as_array().unwrap_or_else(|| panic!("no list {list} in {}", self.text));
        list.iter().map(|entry| entry[key].as_str().unwrap_or("null").to_owned()).collect()
    }
}

pub(crate) fn http_client() -> reqwest::Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap()
}

/// The body of a login by password.
pub(crate) fn password_login(user: &str, password: &str, project: Option<&str>) -> Value {
    let user = json!({"name": user, "password": password, "domain": {"name": "Default"}});
    let mut auth = json!({"identity": {"methods": ["password"], "password": {"user": user}}});
    if let Some(project) = project {
        auth["scope"] = json!({"project": {"name": project, "domain": {"id": "default"}}});
    }
    json!({ "auth": auth })
}

impl Session {
    pub(crate) async fn start() -> Self {
        Self::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let login = password_login(&config.user, &config.password, Some(&config.project));
        let cloud = OpenStack::start(config).await.unwrap();
        let base = cloud.auth_url().replace("/identity/v3", "");
        let mut session = Self {
            cloud,
            http: http_client(),
            token: String::new(),
            base,
        };
        session.token = session.login(&login).await.header("x-subject-token").to_owned();
        assert!(!session.token.is_empty());
        session.cloud.clear_calls();
        session
    }

    pub(crate) async fn login(&self, body: &Value) -> Answer {
        let url = format!("{}/auth/tokens", self.cloud.auth_url());
        Answer::of(self.http.post(url).json(body).send().await.unwrap()).await
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = if path.starts_with("http") {
            path.to_owned()
        } else {
            format!("{}{path}", self.base)
        };
        self.http.request(method, url).header("x-auth-token", &self.token)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, path).send().await.unwrap()).await
    }

    /// A request to Nova with a microversion.
    pub(crate) async fn nova(&self, version: &str, path: &str) -> Answer {
        let request = self.request(Method::GET, &format!("/RegionOne/compute/v2.1{path}"));
        let request = request.header("openstack-api-version", format!("compute {version}"));
        Answer::of(request.send().await.unwrap()).await
    }

    pub(crate) async fn neutron(&self, path: &str) -> Answer {
        self.get(&format!("/RegionOne/network/v2.0{path}")).await
    }

    /// A request to the control API.
    pub(crate) async fn sim(&self, method: Method, path: &str, body: Value) -> Answer {
        let url = format!("{}{path}", self.cloud.control_url());
        Answer::of(self.http.request(method, url).json(&body).send().await.unwrap()).await
    }
}
