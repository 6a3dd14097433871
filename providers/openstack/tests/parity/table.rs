//! The requests: all that the provider sends, and invalid ones. `<name>` is replaced by the cloud's value of that name.

mod login;
mod network;

use reqwest::Method;
use serde_json::Value;

/// A request to a service.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) service: &'static str,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<String>,
}

impl Case {
    pub(crate) fn new(service: &'static str, method: Method, path: &str) -> Self {
        Self {
            service,
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: None,
        }
    }

    pub(crate) fn with(mut self, header: &'static str, value: &str) -> Self {
        self.headers.push((header, value.to_owned()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.with("x-auth-token", token)
    }

    pub(crate) fn json(mut self, body: &Value) -> Self {
        self.body = Some(body.to_string());
        self.with("content-type", "application/json")
    }

    pub(crate) fn raw(mut self, body: &str) -> Self {
        self.body = Some(body.to_owned());
        self
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}{}", self.method, self.service, self.path)?;
        for (name, value) in &self.headers {
            if *name != "content-type" && (*name, value.as_str()) != ("x-auth-token", "<token>") {
                write!(f, " [{name}: {value}]")?;
            }
        }
        match &self.body {
            Some(body) => write!(f, " {body}"),
            None => Ok(()),
        }
    }
}

/// All requests, in this order.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = keystone();
    cases.extend(login::login());
    cases.extend(nova());
    cases.extend(servers());
    cases.extend(network::neutron());
    cases
}

fn keystone() -> Vec<Case> {
    let get = |path: &str| Case::new("identity", Method::GET, path);
    let tokens = |method, token: &str, subject: &str| {
        Case::new("identity", method, "/v3/auth/tokens")
            .token(token)
            .with("x-subject-token", subject)
    };
    let mut cases = vec![
        get(""),
        get("/"),
        get("/v3"),
        get("/v3/"),
        get("/v3/auth/tokens"),
        get("/v3/auth/tokens").token("<token>"),
        tokens(Method::GET, "<token>", "<token>"),
        tokens(Method::GET, "<token>", "<credential-token>"),
        tokens(Method::GET, "<credential-token>", "<credential-token>"),
        tokens(Method::GET, "<token>", "<unscoped-token>"),
        tokens(Method::GET, "<unscoped-token>", "<token>"),
        tokens(Method::GET, "<token>", "<revoked-token>"),
        tokens(Method::GET, "<token>", "nonsense"),
        tokens(Method::GET, "<revoked-token>", "<token>"),
        tokens(Method::GET, "nonsense", "<token>"),
        tokens(Method::DELETE, "<token>", "nonsense"),
        tokens(Method::DELETE, "<token>", "<revoked-token>"),
        Case::new("identity", Method::DELETE, "/v3/auth/tokens").token("<token>"),
    ];
    let mut without = tokens(Method::GET, "<token>", "<token>");
    without.path.push_str("?nocatalog");
    cases.push(without);
    cases
}

/// A request to Nova with a microversion.
fn at(version: &str, path: &str) -> Case {
    let case = Case::new("compute", Method::GET, path).token("<token>");
    if version.is_empty() {
        case
    } else {
        case.with("openstack-api-version", &format!("compute {version}"))
    }
}

fn nova() -> Vec<Case> {
    let absent = "5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11";
    let bare = |path: &str| Case::new("compute", Method::GET, path);
    let mut cases = vec![
        bare(""),
        bare("/"),
        bare("/v2.1/servers/detail"),
        bare("/v2.1/servers/detail").token("nonsense"),
        bare("/v2.1/servers/detail").token("<revoked-token>"),
        bare("/v2.1/servers/detail").token("<unscoped-token>"),
        bare("/v2.1/servers/<a>").token("<unscoped-token>"),
        bare("/v2.1/flavors/<flavor>").token("<unscoped-token>"),
        bare("/v2.1/servers/detail").token("<credential-token>"),
        bare("/v2.1/servers/detail")
            .token("<token>")
            .with("openstack-api-version", "identity 3.0"),
        bare("/v2.1/servers/detail")
            .token("<token>")
            .with("openstack-api-version", "identity 3.0, compute 2.47"),
        bare("/v2.1/servers/detail").token("<token>").with("openstack-api-version", "2.47"),
    ];
    for version in ["", "2.1", "2.47"] {
        for path in [
            "/v2.1/servers/<a>",
            "/v2.1/servers/<c>",
            "/v2.1/servers/detail",
            "/v2.1/flavors/<flavor>",
        ] {
            cases.push(at(version, path));
        }
    }
    for version in [
        "2.0", "2.999", "3.1", "1.1", "2", "2.07", "2.1.1", "two", "2.-1", "Latest",
    ] {
        cases.push(at(version, "/v2.1/servers/detail"));
        cases.push(at(version, "/v2.1/servers/<a>"));
    }
    for version in ["2.1", "2.47"] {
        for path in [
            &format!("/v2.1/servers/{absent}"),
            "/v2.1/servers/not-an-id",
            "/v2.1/servers/<foreign>",
            "/v2.1/servers/%20",
            "/v2.1/servers/web-1",
            "/v2.1/flavors/nothing",
            "/v2.1/flavors/m1.small",
        ] {
            cases.push(at(version, path));
        }
    }
    cases
}

fn servers() -> Vec<Case> {
    let absent = "5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11";
    let mut cases = Vec::new();
    for version in ["2.1", "2.47"] {
        for query in [
            // Pages.
            "limit=1000",
            "limit=1",
            "limit=1&marker=<c>",
            "limit=1&marker=<b>",
            "limit=1&marker=<a>",
            "marker=<b>",
            "limit=3",
            "limit=0",
            "limit=1&limit=2",
            "marker=",
            "marker=nothing",
            &format!("marker={absent}"),
            "marker=<foreign>",
            "marker=<c>&marker=<b>",
            // Names.
            "name=%5Eweb-1%24",
            "name=%5Eweb%5C-1%24",
            "name=%5EWEB-1%24",
            "name=%5EWeb-2%24",
            "name=%5EWEB-",
            "name=%5Eweb",
            "name=%5Edb%5C.3%24",
            "name=%5E%C3%A9",
            "name=%5Eweb-1%24&name=%5Edb%5C.3%24",
            "name=%5Edb%5C.3%24&name=%5Eweb-1%24",
            "name=%5Eweb-1%24&limit=1000",
            "name=%5Eweb&limit=1",
            "name=%5Eweb&limit=1&marker=<b>",
            "name=%5Eweb&marker=<c>&limit=1000",
        ] {
            cases.push(at(version, &format!("/v2.1/servers/detail?{query}")));
        }
    }
    cases
}
