//! The requests: all that the provider sends, and what goes wrong with them. `<name>` stands for what the world calls
//! so.

use reqwest::Method;
use serde_json::{Value, json};

use crate::world::PASSWORD;

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
    fn new(service: &'static str, method: Method, path: &str) -> Self {
        Self {
            service,
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: None,
        }
    }

    fn with(mut self, header: &'static str, value: &str) -> Self {
        self.headers.push((header, value.to_owned()));
        self
    }

    fn token(self, token: &str) -> Self {
        self.with("x-auth-token", token)
    }

    fn json(mut self, body: &Value) -> Self {
        self.body = Some(body.to_string());
        self.with("content-type", "application/json")
    }

    fn raw(mut self, body: &str) -> Self {
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

/// All of them, in this order.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = keystone();
    cases.extend(login());
    cases.extend(nova());
    cases.extend(servers());
    cases.extend(neutron());
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
        get("/v2.0"),
        get("/v3/nothing"),
        get("/nothing"),
        get("/v3/nothing").token("<token>"),
        Case::new("identity", Method::POST, "/v3"),
        Case::new("identity", Method::PUT, "/v3/auth/tokens").token("<token>"),
        Case::new("identity", Method::PATCH, "/v3/auth/tokens").token("<token>"),
        get("/v3/auth/tokens"),
        get("/v3/auth/tokens").token("<token>"),
        tokens(Method::GET, "<token>", "<token>"),
        tokens(Method::HEAD, "<token>", "<token>"),
        tokens(Method::GET, "<token>", "<credential-token>"),
        tokens(Method::GET, "<credential-token>", "<credential-token>"),
        tokens(Method::GET, "<token>", "<unscoped-token>"),
        tokens(Method::GET, "<unscoped-token>", "<token>"),
        tokens(Method::GET, "<token>", "<revoked-token>"),
        tokens(Method::GET, "<token>", "nonsense"),
        tokens(Method::GET, "<revoked-token>", "<token>"),
        tokens(Method::GET, "nonsense", "<token>"),
        tokens(Method::HEAD, "<token>", "nonsense"),
        tokens(Method::DELETE, "<token>", "nonsense"),
        tokens(Method::DELETE, "<token>", "<revoked-token>"),
        Case::new("identity", Method::HEAD, "/v3/auth/tokens").token("<token>"),
        Case::new("identity", Method::DELETE, "/v3/auth/tokens").token("<token>"),
    ];
    let mut without = tokens(Method::GET, "<token>", "<token>");
    without.path.push_str("?nocatalog");
    cases.push(without);
    cases
}

fn login() -> Vec<Case> {
    let post =
        |auth: Value| Case::new("identity", Method::POST, "/v3/auth/tokens").json(&json!({ "auth": auth }));
    let domain = json!({"id": "default"});
    let user = json!({"name": "<name>", "password": PASSWORD, "domain": domain});
    let password = |user: &Value| json!({"methods": ["password"], "password": {"user": user}});
    let mine = password(&user);
    let scoped = |identity: &Value, scope: Value| post(json!({"identity": identity, "scope": scope}));
    let credential = |credential: Value| json!({"methods": ["application_credential"], "application_credential": credential});
    let by_id = credential(json!({"id": "<credential>", "secret": "<secret>"}));
    let token = |id: &str| json!({"methods": ["token"], "token": {"id": id}});
    let project = json!({"project": {"id": "<project>"}});
    let absent = "0123456789abcdef0123456789abcdef";
    vec![
        // As the provider does.
        scoped(&mine, project.clone()),
        scoped(
            &mine,
            json!({"project": {"name": "<name>", "domain": {"name": "Default"}}}),
        ),
        scoped(
            &mine,
            json!({"project": {"name": "<name>", "domain": {"id": "default"}}}),
        ),
        scoped(
            &password(&json!({"id": "<user>", "password": PASSWORD})),
            project.clone(),
        ),
        post(json!({ "identity": mine })),
        scoped(&mine, json!("unscoped")),
        scoped(&mine, json!({"unscoped": {}})),
        post(json!({ "identity": by_id })),
        post(
            json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"name": "<name>", "domain": {"id": "default"}}}))}),
        ),
        post(
            json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"id": "<user>"}}))}),
        ),
        scoped(&token("<token>"), project.clone()),
        scoped(&token("<unscoped-token>"), project.clone()),
        post(json!({"identity": token("<token>")})),
        // What is refused.
        scoped(
            &password(&json!({"name": "<name>", "password": "wrong", "domain": domain})),
            project.clone(),
        ),
        scoped(
            &password(&json!({"name": "nobody", "password": PASSWORD, "domain": domain})),
            project.clone(),
        ),
        scoped(
            &password(&json!({"id": absent, "password": PASSWORD})),
            project.clone(),
        ),
        scoped(
            &password(&json!({"name": "<name>", "password": PASSWORD, "domain": {"name": "nowhere"}})),
            project.clone(),
        ),
        scoped(
            &password(&json!({"name": "<name>", "password": PASSWORD})),
            project.clone(),
        ),
        scoped(&password(&json!({"password": PASSWORD})), project.clone()),
        scoped(&password(&json!({"id": "<user>"})), project.clone()),
        scoped(&mine, json!({"project": {"id": absent}})),
        scoped(
            &mine,
            json!({"project": {"name": "nothing", "domain": {"id": "default"}}}),
        ),
        scoped(&mine, json!({"project": {"name": "<name>"}})),
        scoped(
            &mine,
            json!({"project": {"name": "<name>", "domain": {"name": "nowhere"}}}),
        ),
        scoped(
            &mine,
            json!({"project": {"name": "admin", "domain": {"id": "default"}}}),
        ),
        scoped(&mine, json!({"project": {}})),
        scoped(&mine, json!({"project": "text"})),
        scoped(&mine, json!({"domain": {"id": "default"}})),
        scoped(&mine, json!({"domain": {"name": "nowhere"}})),
        scoped(&mine, json!({"domain": {}})),
        scoped(&mine, json!({"system": {"all": true}})),
        scoped(&mine, json!({"OS-TRUST:trust": {"id": absent}})),
        scoped(&mine, json!({"OS-TRUST:trust": {}})),
        scoped(&mine, json!({})),
        scoped(&mine, json!({"galaxy": {}})),
        scoped(&mine, json!("anything")),
        scoped(&mine, Value::Null),
        scoped(
            &mine,
            json!({"project": {"id": "<project>"}, "domain": {"id": "default"}}),
        ),
        scoped(&by_id, project.clone()),
        scoped(&by_id, json!("unscoped")),
        post(json!({"identity": credential(json!({"id": "<credential>", "secret": "wrong"}))})),
        post(json!({"identity": credential(json!({"id": absent, "secret": "<secret>"}))})),
        post(json!({"identity": credential(json!({"id": "<credential>"}))})),
        post(json!({"identity": credential(json!({"secret": "<secret>"}))})),
        post(json!({"identity": credential(json!({}))})),
        post(json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>"}))})),
        post(
            json!({"identity": credential(json!({"name": "nothing", "secret": "<secret>",
            "user": {"id": "<user>"}}))}),
        ),
        post(
            json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"name": "nobody", "domain": {"id": "default"}}}))}),
        ),
        post(
            json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"name": "<name>"}}))}),
        ),
        post(
            json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"id": absent}}))}),
        ),
        scoped(&token("nonsense"), project.clone()),
        scoped(&token("<revoked-token>"), project.clone()),
        scoped(&token("<credential-token>"), project.clone()),
        post(json!({"identity": token("<credential-token>")})),
        post(json!({"identity": {"methods": ["token"], "token": {}}})),
        post(json!({"identity": {"methods": ["token"]}})),
        post(json!({"identity": {"methods": ["password"]}})),
        post(json!({"identity": {"methods": []}})),
        post(json!({"identity": {"methods": "password"}})),
        post(json!({"identity": {"methods": [1]}})),
        post(json!({"identity": {"methods": ["magic"], "magic": {}}})),
        post(json!({"identity": {"methods": ["magic"]}})),
        post(json!({"identity": {"methods": ["password", "password"], "password": {"user": user}}})),
        post(json!({"identity": {}})),
        post(json!({"identity": "text"})),
        post(json!({"identity": {"methods": ["password"], "password": {"user": "text"}}})),
        post(json!({"identity": {"methods": ["password"], "password": {}}})),
        post(json!({"identity": password(&json!({"name": "<name>", "password": 7, "domain": domain}))})),
        post(json!({})),
        post(Value::Null),
        post(json!("text")),
        Case::new("identity", Method::POST, "/v3/auth/tokens").json(&json!({})),
        Case::new("identity", Method::POST, "/v3/auth/tokens").json(&json!([])),
        Case::new("identity", Method::POST, "/v3/auth/tokens").json(&json!("text")),
        Case::new("identity", Method::POST, "/v3/auth/tokens"),
        Case::new("identity", Method::POST, "/v3/auth/tokens")
            .with("content-type", "application/json")
            .raw("{"),
        Case::new("identity", Method::POST, "/v3/auth/tokens")
            .with("content-type", "text/plain")
            .raw("{}"),
        Case::new("identity", Method::POST, "/v3/auth/tokens?nocatalog")
            .json(&json!({"auth": {"identity": mine, "scope": project}})),
    ]
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
        bare("/v2.1"),
        bare("/v2.1/"),
        at("2.79", "/v2.1/"),
        bare("/v2.1/servers"),
        bare("/v2.1/nothing"),
        bare("/v2.1/nothing").token("<token>"),
        bare("/v2.1/nothing")
            .token("<token>")
            .with("accept", "application/json"),
        bare("/v2.1/servers/").token("<token>"),
        bare("/v2.1/servers/detail/").token("<token>"),
        bare("/v2.1/servers/<a>/nothing").token("<token>"),
        bare("/nothing"),
        bare("/v9/servers").token("<token>"),
        bare("/v2.1/servers").token("nonsense"),
        bare("/v2.1/servers").token("<revoked-token>"),
        bare("/v2.1/servers").token("<unscoped-token>"),
        bare("/v2.1/servers/detail").token("<unscoped-token>"),
        bare("/v2.1/servers/<a>").token("<unscoped-token>"),
        bare("/v2.1/flavors/<flavor>").token("<unscoped-token>"),
        bare("/v2.1/flavors/detail").token("<unscoped-token>"),
        bare("/v2.1/servers/detail").token("<credential-token>"),
        Case::new("compute", Method::PATCH, "/v2.1/servers").token("<token>"),
        Case::new("compute", Method::DELETE, "/v2.1/servers").token("<token>"),
        Case::new("compute", Method::POST, "/v2.1/servers/detail").token("<token>"),
        Case::new("compute", Method::POST, "/v2.1/flavors/<flavor>").token("<token>"),
        Case::new("compute", Method::HEAD, "/v2.1/servers/<a>").token("<token>"),
        bare("/v2.1/servers")
            .token("<token>")
            .with("x-openstack-nova-api-version", "2.47"),
        bare("/v2.1/servers")
            .token("<token>")
            .with("x-openstack-nova-api-version", "2.999"),
        bare("/v2.1/servers")
            .token("<token>")
            .with("openstack-api-version", "identity 3.0"),
        bare("/v2.1/servers")
            .token("<token>")
            .with("openstack-api-version", "identity 3.0, compute 2.47"),
        bare("/v2.1/servers")
            .token("<token>")
            .with("openstack-api-version", "2.47"),
    ];
    for version in [
        "", "2.1", "2.47", "2.69", "2.75", "2.79", "2.90", "2.96", "2.100", "latest",
    ] {
        for path in [
            "/v2.1/servers/<a>",
            "/v2.1/servers/<c>",
            "/v2.1/servers",
            "/v2.1/servers/detail",
            "/v2.1/flavors",
            "/v2.1/flavors/detail?limit=2",
            "/v2.1/flavors/<flavor>",
        ] {
            cases.push(at(version, path));
        }
    }
    for version in [
        "2.0", "2.102", "2.999", "3.1", "1.1", "2", "2.07", "2.1.1", "two", "2.-1", "Latest",
    ] {
        cases.push(at(version, "/v2.1/servers"));
        cases.push(at(version, "/v2.1/servers/<a>"));
    }
    for version in ["2.1", "2.79", "2.100"] {
        for path in [
            &format!("/v2.1/servers/{absent}"),
            "/v2.1/servers/not-an-id",
            "/v2.1/servers/<foreign>",
            "/v2.1/servers/%20",
            "/v2.1/servers/web-1",
            "/v2.1/flavors/nothing",
            "/v2.1/flavors/m1.small",
            "/v2.1/servers/<a>?nothing=1",
            "/v2.1/flavors/<flavor>?nothing=1",
            "/v2.1/flavors/detail?nothing=1",
            "/v2.1/flavors?limit=0",
            "/v2.1/flavors?limit=-1",
            "/v2.1/flavors?limit=x",
            "/v2.1/flavors?limit=1&limit=2",
            "/v2.1/flavors?marker=nothing",
            "/v2.1/flavors?minRam=x",
            "/v2.1/flavors?is_public=None",
            "/v2.1/flavors?is_public=x",
            "/v2.1/flavors?sort_key=nothing",
        ] {
            cases.push(at(version, path));
        }
    }
    cases
}

fn servers() -> Vec<Case> {
    let absent = "5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11";
    let mut cases = Vec::new();
    for version in ["2.1", "2.79", "2.100"] {
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
            "limit=-1",
            "limit=x",
            "limit=",
            "limit=1.5",
            "limit=%201",
            "limit=99999999999999999999999",
            "limit=1&limit=2",
            "limit=2&limit=1",
            "marker=",
            "marker=nothing",
            &format!("marker={absent}"),
            "marker=<foreign>",
            "marker=<c>&marker=<b>",
            "offset=1",
            "page_size=1",
            // Names.
            "name=%5Eweb-1%24",
            "name=%5Eweb%5C-1%24",
            "name=%5EWEB-1%24",
            "name=%5EWeb-2%24",
            "name=WEB-2",
            "name=web",
            "name=%5Edb.3%24",
            "name=%5Edb%5C.3%24",
            "name=%5Edb%5B.%5D3%24",
            "name=db%3F3",
            "name=(web-1%7CWEB-2)",
            "name=%5E(web-1%7Cdb.3)%24",
            "name=web-1%7Cdb.3",
            "name=(",
            "name=%5B",
            "name=*",
            "name=%2B",
            "name=%5B%5B%3Aalpha%3A%5D%5D",
            "name=(%3Fi)web",
            "name=%5Cd",
            "name=%5C",
            "name=w%7B1%7D",
            "name=a%7B1001%7D",
            "name=a%7B2%2C1%7D",
            "name=(%3F%3Dw)web",
            "name=(%3FP%3Cx%3Ew)eb",
            "name=%5Cbweb",
            "name=%C3%A9",
            "name=",
            "name=web-1&name=db.3",
            "name=db.3&name=web-1",
            "name=%5Eweb-1%24&limit=1000",
            "name=web&limit=1",
            "name=web&limit=1&marker=<b>",
            "name=web&marker=<c>&limit=1000",
            // Statuses.
            "status=ACTIVE",
            "status=active",
            "status=SHUTOFF",
            "status=nothing",
            "status=ACTIVE&status=SHUTOFF",
            "status=ACTIVE&status=nothing",
            "status=DELETED",
            "status=",
            "deleted=true",
            "deleted=x",
            // Others.
            "nothing=1",
            "nothing=1&limit=1",
            "_nothing=1",
            "all_tenants=1",
            "all_tenants=0",
            "all_tenants=x",
            "all_tenants",
            "project_id=<project>",
            "tenant_id=nothing",
            "ip=<ip-a>",
            "ip=10.7",
            "ip=(",
            "ip6=fd00",
            "uuid=<a>",
            "uuid=nothing",
            "flavor=<flavor>",
            "flavor=nothing",
            "image=nothing",
            "host=nothing",
            "availability_zone=nova",
            "availability_zone=nothing",
            "power_state=4",
            "vm_state=stopped",
            "hostname=web-1",
            "tags=x",
            "not-tags=x",
            "locked=true",
            "locked=x",
            "changes-since=2020-01-01T00:00:00Z",
            "changes-since=2999-01-01T00:00:00Z",
            "changes-since=yesterday",
            "changes-before=2020-01-01T00:00:00Z",
            "changes-before=x",
            "changes-since=2021-01-01T00:00:00Z&changes-before=2020-01-01T00:00:00Z",
            "sort_key=created_at",
            "sort_key=created_at&sort_dir=asc",
            "sort_key=display_name&sort_dir=asc",
            "sort_key=display_name&sort_dir=asc&limit=1",
            "sort_key=uuid&sort_dir=asc&limit=1&marker=<b>",
            "sort_key=nothing",
            "sort_key=host",
            "sort_dir=asc",
            "sort_dir=up",
            "sort_key=created_at&sort_dir=up",
            "sort_key=created_at&sort_dir=asc&sort_dir=asc",
            "sort_key=vm_state&sort_key=created_at&sort_dir=asc",
        ] {
            cases.push(at(version, &format!("/v2.1/servers/detail?{query}")));
        }
        for query in ["limit=1", "name=web", "nothing=1", "limit=x", "marker=nothing"] {
            cases.push(at(version, &format!("/v2.1/servers?{query}")));
        }
    }
    cases
}

fn neutron() -> Vec<Case> {
    let absent = "5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11";
    let bare = |path: &str| Case::new("network", Method::GET, path);
    let get = |path: &str| bare(path).token("<token>");
    let mut cases = vec![
        bare(""),
        bare("/"),
        bare("/v2.0"),
        bare("/v2.0/"),
        get("/v2.0"),
        bare("/nothing"),
        get("/nothing"),
        bare("/v2.0/ports"),
        bare("/v2.0/ports").token("nonsense"),
        bare("/v2.0/ports").token("<revoked-token>"),
        bare("/v2.0/ports").token("<unscoped-token>"),
        bare("/v2.0/networks").token("<unscoped-token>"),
        bare("/v2.0/networks/<net>").token("<unscoped-token>"),
        bare("/v2.0/ports?device_id=<a>").token("<credential-token>"),
        bare("/v2.0/nothing"),
        get("/v2.0/nothing"),
        get("/v2.0/nothing/x"),
        get("/v2.0/ports/?device_id=<a>"),
        get("/v2.0/ports.json?device_id=<a>"),
        get("/v2.0/ports/<port-a>/nothing"),
        Case::new("network", Method::PATCH, "/v2.0/ports").token("<token>"),
        Case::new("network", Method::DELETE, "/v2.0/ports").token("<token>"),
        Case::new("network", Method::PUT, "/v2.0/networks").token("<token>"),
        Case::new("network", Method::POST, "/v2.0/ports/<port-a>").token("<token>"),
        Case::new("network", Method::PATCH, "/v2.0/ports/<port-a>").token("<token>"),
        Case::new("network", Method::POST, "/").token("<token>"),
        Case::new("network", Method::POST, "/v2.0/").token("<token>"),
        Case::new("network", Method::POST, "/v2.0/extensions").token("<token>"),
        Case::new("network", Method::HEAD, "/v2.0/ports").token("<token>"),
        get("/v2.0/extensions/nothing"),
        get("/v2.0/extensions/trunk-details-x"),
        get("/v2.0/extensions/pagination"),
        get("/v2.0/extensions/filter-validation"),
    ];
    for (plural, id) in [
        ("networks", "<net>"),
        ("subnets", "<subnet>"),
        ("ports", "<port-a>"),
    ] {
        for query in [
            "",
            "?fields=id",
            "?fields=id&fields=name",
            "?fields=id&fields=nothing",
            "?fields=nothing",
            "?fields=",
            "?fields=id,name",
            "?nothing=1",
        ] {
            cases.push(get(&format!("/v2.0/{plural}/{id}{query}")));
        }
        for path in [absent, "not-an-id", "%20", "a%2Fb"] {
            cases.push(get(&format!("/v2.0/{plural}/{path}")));
        }
        for query in [
            "id=<id>",
            "id=<id>&fields=id",
            "id=<id>&fields=id&fields=nothing",
            "id=<id>&fields=nothing",
            "id=<id>&fields=",
            "id=nothing",
            "id=",
            "id=<id>&id=nothing",
            "id=<id>&nothing=1",
            "nothing=1&nothing=2",
            "nothing=1&other=2",
            "name=nothing",
            "name=<name>&name=nothing",
            "name=<name>&fields=name",
            "tenant_id=<project>&fields=tenant_id",
            "project_id=<project>&project_id=nothing&fields=project_id",
            "project_id=nothing",
            "admin_state_up=true&id=<id>&fields=id",
            "admin_state_up=x&id=<id>",
            "tags=x",
            "tags-any=x",
            "not-tags=x&id=<id>&fields=id",
            "description=&id=<id>&fields=id",
            "sort_key=created_at&sort_dir=asc",
            "sort_key=nothing&sort_dir=asc",
            "sort_key=name",
            "sort_key=name&sort_dir=up",
            "sort_dir=asc",
            "limit=x",
            "limit=-1",
            "limit=0&id=<id>&fields=id",
            "limit=&id=<id>&fields=id",
            "limit=1.5",
            &format!("marker={absent}"),
            &format!("marker={absent}&limit=1"),
            "marker=nothing&limit=1",
            "marker=&limit=1&id=<id>&fields=id",
            "id=<id>&limit=1&fields=id",
            "id=<id>&limit=2&fields=id",
            "id=<id>&limit=1&marker=<id>&fields=id",
            "id=<id>&limit=1&page_reverse=true&fields=id",
            "id=<id>&limit=1&page_reverse=x&fields=id",
            "id=<id>&limit=1&limit=x&fields=id",
            "id=<id>&limit=x&limit=1&fields=id",
        ] {
            // A router has ports too, which are not of our making.
            let more = match (plural, query.contains("<id>")) {
                ("ports", false) => "&device_owner=compute:nova",
                _ => "",
            };
            let query = query.replace("<id>", id);
            cases.push(get(&format!("/v2.0/{plural}?{query}{more}")));
        }
    }
    let devices = "device_id=<a>&device_id=<b>&device_id=<c>";
    for query in [
        "device_id=<a>",
        devices,
        &format!("{devices}&device_id={absent}"),
        &format!(
            "{devices}&fields=id&fields=device_id&fields=fixed_ips&fields=network_id&fields=status&fields=tags"
        ),
        &format!("{devices}&fields=trunk_details&fields=id"),
        &format!("{devices}&sort_key=id&sort_dir=asc&fields=id"),
        &format!("{devices}&sort_key=device_id&sort_dir=desc&fields=device_id"),
        &format!("{devices}&sort_key=device_id&sort_dir=desc&sort_key=id&sort_dir=asc&fields=device_id"),
        &format!("{devices}&limit=1&fields=id"),
        &format!("{devices}&limit=2&fields=id"),
        &format!("{devices}&limit=2&marker=<port-a>&fields=id"),
        &format!("{devices}&limit=1&marker=<port-b>&fields=id"),
        &format!("{devices}&limit=1&marker=<port-c>&fields=id"),
        &format!("{devices}&limit=3&fields=id"),
        &format!("{devices}&limit=1&marker=<port-b>&page_reverse=True&fields=id"),
        &format!("{devices}&sort_key=device_id&sort_dir=asc&limit=1&marker=<port-b>&fields=device_id"),
        "device_id=<a>&marker=<port-b>&limit=1&fields=id",
        "device_id=nothing",
        "device_id=",
        "device_id=<foreign>",
        "device_owner=compute:nova&fields=device_id",
        "device_owner=compute:nova&device_owner=nothing&fields=device_id",
        "device_owner=nothing",
        "network_id=<net>&device_owner=compute:nova&fields=id",
        "network_id=nothing",
        "status=ACTIVE&device_owner=compute:nova&fields=id",
        "status=nothing",
        "mac_address=nothing",
        "fixed_ips=ip_address%3D<ip-a>&fields=id",
        "fixed_ips=ip_address%3D<ip-a>&fixed_ips=ip_address%3D<ip-b>&fields=id",
        "fixed_ips=subnet_id%3D<subnet>&device_owner=compute:nova&fields=id",
        "fixed_ips=ip_address_substr%3D10.7.0&device_owner=compute:nova&fields=id",
        "fixed_ips=nothing",
        "fixed_ips=nothing%3D1&device_owner=compute:nova&fields=id",
        "security_groups=nothing",
        "ip_allocation=nothing",
        "trunk_details=nothing",
        "extra_dhcp_opts=nothing",
        "allowed_address_pairs=nothing",
        "port_security_enabled=true&device_owner=compute:nova&fields=id",
        "binding:host_id=nothing",
        "binding:vnic_type=normal&device_owner=compute:nova&fields=id",
        "created_at=nothing",
        "updated_at=nothing",
        "revision_number=x",
        "changed_since=2020-01-01T00:00:00Z&device_owner=compute:nova&fields=id",
        "changed_since=x",
    ] {
        cases.push(get(&format!("/v2.0/ports?{query}")));
    }
    for query in [
        "fields=id",
        "name=<name>",
        "name=public&fields=id",
        "router:external=true&fields=name",
        "router:external=True&fields=name",
        "router:external=1&fields=name",
        "router:external=x",
        "shared=false&fields=name",
        "shared=true",
        "id=<net>&id=<public-net>&fields=id&fields=name",
        "id=<net>&id=<public-net>&fields=id&sort_key=name&sort_dir=asc&limit=1",
        "id=<net>&id=<public-net>&fields=name&sort_key=name&sort_dir=desc",
        "id=<net>&id=<public-net>&fields=id&sort_key=name&sort_dir=asc&limit=1&marker=<net>",
        "subnets=nothing",
        "mtu=x",
        "status=ACTIVE&fields=name",
    ] {
        cases.push(get(&format!("/v2.0/networks?{query}")));
    }
    for query in [
        "network_id=<net>",
        "cidr=10.7.0.0/24&fields=id",
        "ip_version=4&network_id=<net>&fields=id",
        "ip_version=x",
        "enable_dhcp=true&network_id=<net>&fields=id",
        "gateway_ip=10.7.0.1&fields=id",
        "subnetpool_id=nothing",
    ] {
        cases.push(get(&format!("/v2.0/subnets?{query}")));
    }
    cases
}
