//! The same project in two clouds: a network with a floating IP, three servers of which one is shut off, a user with an
//! application credential, and a server of another user.

use std::collections::BTreeMap;
use std::time::Duration;

use ccm_sim::openstack::{
    AppCredentialSpec, Config, Control, FlavorSpec, LoadBalancing, NetworkSpec, OpenStack, PortSpec,
    RouterSpec, ServerSpec, Settings, UserSpec,
};
use ccm_testbed::openstack_real::OpenStack as RealOpenStack;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::http::{self, Answer};

/// The password in both clouds.
pub(crate) const PASSWORD: &str = "parity-password";
/// The servers' names: in lower and upper case, and with a character that is special in a pattern.
pub(crate) const SERVERS: [&str; 3] = ["web-1", "WEB-2", "db.3"];
/// The longest duration of a server's creation in the real cloud.
const LIMIT: Duration = Duration::from_secs(120);

/// The simulator's duration of a change. Its clock is advanced to wait for it.
const CHANGE: Duration = Duration::from_secs(3600);

/// A cloud with the objects of the requests, by their names in the requests.
pub(crate) struct ClusterSnapshot {
    pub(crate) http: Client,
    /// Ids, tokens and URLs by name.
    pub(crate) vars: BTreeMap<&'static str, String>,
    /// The simulator, if it is one.
    control: Option<Control>,
    /// Keeps the simulator alive.
    _sim: Option<OpenStack>,
}

impl ClusterSnapshot {
    fn new(http: Client, auth_url: &str) -> Self {
        let identity = auth_url.trim_end_matches("/v3").to_owned();
        Self {
            http,
            vars: BTreeMap::from([("identity", identity)]),
            control: None,
            _sim: None,
        }
    }

    /// The same cloud, for another sequence of requests.
    pub(crate) fn again(&self) -> Self {
        Self {
            http: self.http.clone(),
            vars: self.vars.clone(),
            control: self.control.clone(),
            _sim: None,
        }
    }

    /// Waits until no change of the load balancer is pending, or it was deleted.
    pub(crate) async fn come_to_rest(&self) {
        if let Some(control) = &self.control {
            control.advance_clock(CHANGE);
            return;
        }
        let url = format!(
            "{}/v2.0/lbaas/loadbalancers/{}?fields=provisioning_status",
            self.var("load-balancer"),
            self.var("lb")
        );
        loop {
            let answer = self.send(Method::GET, &url, Some(self.var("token")), None).await;
            if !answer.text.contains("PENDING") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub(crate) fn var(&self, name: &str) -> &str {
        self.vars.get(name).unwrap_or_else(|| panic!("nothing is called {name}"))
    }

    async fn send(&self, method: Method, url: &str, token: Option<&str>, body: Option<&Value>) -> Answer {
        let mut request = self.http.request(method, url);
        if url.contains("/v2.1/") {
            // An older microversion sets a description.
            request = request.header("openstack-api-version", "compute 2.47");
        }
        if let Some(token) = token {
            request = request.header("x-auth-token", token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        http::send(request).await
    }

    async fn ok(&self, method: Method, url: &str, token: &str, body: Option<&Value>) -> Value {
        let answer = self.send(method.clone(), url, Some(token), body).await;
        assert!(answer.status < 300, "{method} {url}: {answer:?}");
        answer.json.unwrap_or_default()
    }

    async fn post(&self, url: &str, token: &str, body: Value) -> Value {
        self.ok(Method::POST, url, token, Some(&body)).await
    }

    /// Logs in; the answer has the catalog.
    async fn log_in(&self, body: &Value) -> (String, Value) {
        let url = format!("{}/v3/auth/tokens", self.var("identity"));
        let answer = self.send(Method::POST, &url, None, Some(body)).await;
        let token = answer.headers.get("x-subject-token").cloned();
        let token = token.unwrap_or_else(|| panic!("no token: {answer:?}"));
        (token, answer.json.unwrap_or_default())
    }

    /// Creates the tokens and endpoints of the existing user.
    async fn tokens(&mut self) {
        let user = json!({"id": self.var("user"), "password": PASSWORD});
        let identity = json!({"methods": ["password"], "password": {"user": user}});
        let scope = json!({"project": {"id": self.var("project")}});
        let scoped = json!({"auth": {"identity": identity, "scope": scope}});
        let (token, document) = self.log_in(&scoped).await;
        for name in ["compute", "network", "load-balancer"] {
            let kind = name;
            let catalog = document["token"]["catalog"].as_array().unwrap();
            let service = catalog.iter().find(|service| service["type"] == kind).unwrap();
            let endpoints = service["endpoints"].as_array().unwrap();
            let public = endpoints.iter().find(|endpoint| endpoint["interface"] == "public").unwrap();
            let url = public["url"].as_str().unwrap().trim_end_matches('/');
            let root = url.trim_end_matches("/v2.1").to_owned();
            self.vars.insert(name, root);
        }
        self.vars.insert("token", token);
        let (token, _) = self.log_in(&json!({"auth": {"identity": identity}})).await;
        self.vars.insert("unscoped-token", token);
        let credential = json!({"id": self.var("credential"), "secret": self.var("secret")});
        let identity = json!({"methods": ["application_credential"], "application_credential": credential});
        let (token, _) = self.log_in(&json!({"auth": {"identity": identity}})).await;
        self.vars.insert("credential-token", token);
        // A token that was valid once.
        let (revoked, _) = self.log_in(&scoped).await;
        let url = format!("{}/v3/auth/tokens", self.var("identity"));
        let request = self.http.delete(url).header("x-auth-token", self.var("token"));
        let answer = http::send(request.header("x-subject-token", &revoked)).await;
        assert_eq!(answer.status, 204, "{answer:?}");
        self.vars.insert("revoked-token", revoked);
    }

    /// Creates the objects in the real cloud. The names are new each time, since nothing is deleted afterwards.
    pub(crate) async fn real(cloud: &RealOpenStack, name: &str) -> Self {
        let mut world = Self::new(http::client(), cloud.auth_url());
        let admin = world.be_admin().await;
        world.vars.insert("name", name.to_owned());
        world.identity_of(&admin, name).await;
        world.tokens().await;
        world.network_of(cloud, &admin, name).await;
        world.servers_of(cloud).await;
        let theirs = cloud.list_servers().await.unwrap();
        let theirs = theirs.first().expect("the cloud was started with a server");
        world.vars.insert("foreign", theirs.id.clone());
        world
    }

    /// The administrator, as the scripts create it.
    async fn be_admin(&self) -> String {
        let domain = json!({"id": "default"});
        let user = json!({"name": "admin", "password": "admin", "domain": domain});
        let (token, _) = self
            .log_in(&json!({"auth": {
                "identity": {"methods": ["password"], "password": {"user": user}},
                "scope": {"project": {"name": "admin", "domain": domain}},
            }}))
            .await;
        token
    }

    async fn identity_of(&mut self, admin: &str, name: &str) {
        let keystone = format!("{}/v3", self.var("identity"));
        let project = self
            .post(
                &format!("{keystone}/projects"),
                admin,
                json!({"project": {"name": name, "domain_id": "default"}}),
            )
            .await;
        let user = json!({"name": name, "password": PASSWORD, "domain_id": "default"});
        let user = self.post(&format!("{keystone}/users"), admin, json!({ "user": user })).await;
        let roles = self.ok(Method::GET, &format!("{keystone}/roles?name=member"), admin, None).await;
        let (project, user) = (text(&project["project"]["id"]), text(&user["user"]["id"]));
        let role = text(&roles["roles"][0]["id"]);
        let url = format!("{keystone}/projects/{project}/users/{user}/roles/{role}");
        self.ok(Method::PUT, &url, admin, None).await;
        let identity = json!({
            "methods": ["password"],
            "password": {"user": {"id": user, "password": PASSWORD}},
        });
        let scope = json!({"project": {"id": project}});
        let (token, _) = self.log_in(&json!({"auth": {"identity": identity, "scope": scope}})).await;
        let url = format!("{keystone}/users/{user}/application_credentials");
        let made = self
            .post(
                &url,
                &token,
                json!({"application_credential": {"name": name, "roles": [{"name": "member"}]}}),
            )
            .await;
        let made = &made["application_credential"];
        self.vars.insert("project", project);
        self.vars.insert("user", user);
        self.vars.insert("credential", text(&made["id"]));
        self.vars.insert("secret", text(&made["secret"]));
    }

    async fn network_of(&mut self, cloud: &RealOpenStack, admin: &str, name: &str) {
        let neutron = format!("{}/v2.0", self.var("network"));
        let token = self.var("token").to_owned();
        let made = self
            .post(&format!("{neutron}/networks"), &token, json!({"network": {"name": name}}))
            .await;
        let net = text(&made["network"]["id"]);
        let subnet =
            json!({"name": format!("{name}-0"), "network_id": net, "ip_version": 4, "cidr": "10.7.0.0/24"});
        let made = self.post(&format!("{neutron}/subnets"), &token, json!({ "subnet": subnet })).await;
        let subnet = text(&made["subnet"]["id"]);
        let public = cloud.seed("PUBLIC_NET").unwrap().to_owned();
        let router = json!({"name": name, "external_gateway_info": {"network_id": public}});
        let made = self.post(&format!("{neutron}/routers"), &token, json!({ "router": router })).await;
        let url = format!("{neutron}/routers/{}/add_router_interface", text(&made["router"]["id"]));
        self.ok(Method::PUT, &url, &token, Some(&json!({"subnet_id": subnet}))).await;
        self.vars.insert("router", text(&made["router"]["id"]));
        let url = format!("{neutron}/subnets?network_id={public}");
        let subnets = self.ok(Method::GET, &url, admin, None).await;
        self.vars.insert("public-net", public);
        let subnets = &subnets["subnets"][0];
        self.vars.insert("outer-subnet", text(&subnets["id"]));
        self.vars.insert("outer-subnet-name", text(&subnets["name"]));
        self.vars.insert("net", net);
        self.vars.insert("subnet", subnet);
    }

    async fn servers_of(&mut self, cloud: &RealOpenStack) {
        let token = self.var("token").to_owned();
        let nova = format!("{}/v2.1", self.var("compute"));
        let neutron = format!("{}/v2.0", self.var("network"));
        // No two are created in the same second, so that their order is known.
        let flavors = format!("{nova}/flavors?sort_key=flavorid&sort_dir=asc");
        let flavors = self.ok(Method::GET, &flavors, &token, None).await;
        for (name, var) in [("m1.small", "flavor"), ("m1.large", "flavor-large")] {
            let flavors = flavors["flavors"].as_array().unwrap();
            let flavor = flavors.iter().find(|flavor| flavor["name"] == name).unwrap();
            self.vars.insert(var, text(&flavor["id"]));
        }
        for (name, var) in SERVERS.into_iter().zip(["a", "b", "c"]) {
            let server = json!({
                "name": name,
                "imageRef": cloud.seed("IMAGE").unwrap(),
                "flavorRef": cloud.seed("FLAVOR").unwrap(),
                "networks": [{"uuid": self.var("net")}],
                "metadata": {"role": "node"},
            });
            let url = format!("{nova}/servers");
            let made = self.post(&url, &token, json!({ "server": server })).await;
            self.vars.insert(var, text(&made["server"]["id"]));
            self.next_second().await;
        }
        for var in ["a", "b", "c"] {
            let url = format!("{nova}/servers/{}", self.var(var));
            self.until(&url, &token, |server| server["server"]["status"] == "ACTIVE").await;
        }
        let url = format!("{nova}/servers/{}/action", self.var("c"));
        self.post(&url, &token, json!({"os-stop": null})).await;
        for (server, port, address) in [
            ("a", "port-a", "ip-a"),
            ("b", "port-b", "ip-b"),
            ("c", "port-c", "ip-c"),
        ] {
            let url = format!("{neutron}/ports?device_id={}", self.var(server));
            let ports = self.ok(Method::GET, &url, &token, None).await;
            let found = &ports["ports"][0];
            self.vars.insert(port, text(&found["id"]));
            self.vars.insert(address, text(&found["fixed_ips"][0]["ip_address"]));
        }
        let floating = json!({"floating_network_id": self.var("public-net"), "port_id": self.var("port-a")});
        let url = format!("{neutron}/floatingips");
        let made = self.post(&url, &token, json!({ "floatingip": floating })).await;
        let floating = text(&made["floatingip"]["floating_ip_address"]);
        let url = format!("{nova}/servers/{}", self.var("a"));
        self.until(&url, &token, |server| server.to_string().contains(&floating)).await;
        self.vars.insert("floating", floating);
        let url = format!("{nova}/servers/{}", self.var("c"));
        self.until(&url, &token, |server| server["server"]["status"] == "SHUTOFF").await;
    }

    /// Waits for the next second of Nova's clock.
    async fn next_second(&self) {
        let date = || async {
            let answer = http::send(self.http.get(format!("{}/", self.var("compute")))).await;
            answer.headers.get("date").cloned().unwrap_or_default()
        };
        let before = date().await;
        while date().await == before {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn until(&self, url: &str, token: &str, done: impl Fn(&Value) -> bool) {
        let wait = async {
            while !done(&self.ok(Method::GET, url, token, None).await) {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(LIMIT, wait)
            .await
            .unwrap_or_else(|_| panic!("{url} does not get there"));
    }

    /// Creates the same objects in the simulator, with the same IDs and addresses, so that orders can be compared, too.
    pub(crate) async fn simulated(like: &Self) -> Self {
        let config = Config {
            // The clock is advanced by hours.
            token_lifetime: CHANGE * 10_000,
            settings: Settings {
                load_balancing: LoadBalancing {
                    providers: vec!["amphora".to_owned(), "octavia".to_owned()],
                    create_time: CHANGE,
                    update_time: CHANGE,
                    delete_time: CHANGE,
                    heartbeats: false,
                    ..LoadBalancing::default()
                },
                key_manager: false,
                ..Settings::default()
            },
            ..Config::default()
        };
        let sim = OpenStack::start(config).await.unwrap();
        let mut world = Self::new(http::client(), &sim.auth_url());
        let name = like.var("name");
        let project = sim.create_project(name);
        let spec = UserSpec {
            name: name.to_owned(),
            password: PASSWORD.to_owned(),
            projects: Some(vec![name.to_owned()]),
            admin: false,
        };
        let user = sim.create_user(&spec).unwrap();
        let credential = sim
            .create_app_credential(&AppCredentialSpec {
                name: name.to_owned(),
                user: Some(name.to_owned()),
                project: Some(name.to_owned()),
                secret: None,
            })
            .unwrap();
        let id = |var: &str| Some(like.var(var).to_owned());
        for flavor in ["2", "3"] {
            sim.delete_flavor(flavor).unwrap();
        }
        for (name, var, vcpus, ram) in [
            ("m1.small", "flavor", 1, 2048),
            ("m1.large", "flavor-large", 4, 8192),
        ] {
            sim.create_flavor(&FlavorSpec {
                name: name.to_owned(),
                id: id(var),
                vcpus,
                ram,
                disk: 10,
                ..FlavorSpec::default()
            })
            .unwrap();
        }
        sim.create_network(&NetworkSpec {
            name: name.to_owned(),
            id: id("net"),
            project: Some(project.clone()),
            subnets: vec!["10.7.0.0/24".parse().unwrap()],
            ..NetworkSpec::default()
        })
        .unwrap();
        sim.create_router(&RouterSpec {
            name: name.to_owned(),
            id: id("router"),
            project: Some(project.clone()),
            gateway: Some("public".to_owned()),
            networks: vec![like.var("net").to_owned()],
            ..RouterSpec::default()
        })
        .unwrap();
        let foreign = ServerSpec {
            id: id("foreign"),
            ports: Some(vec![PortSpec::on("private")]),
            ..ServerSpec::named("node-1")
        };
        sim.create_server(&foreign).unwrap();
        for (name, var) in SERVERS.into_iter().zip(["a", "b", "c"]) {
            let port = PortSpec {
                id: id(&format!("port-{var}")),
                addresses: Some(vec![like.var(&format!("ip-{var}")).parse().unwrap()]),
                network: id("net"),
                floating: (var == "a").then(|| like.var("floating").parse().unwrap()),
                ..PortSpec::default()
            };
            sim.advance_clock(Duration::from_secs(1));
            sim.create_server(&ServerSpec {
                id: id(var),
                flavor: id("flavor"),
                project: Some(project.clone()),
                ports: Some(vec![port]),
                metadata: BTreeMap::from([("role".to_owned(), "node".to_owned())]),
                ..ServerSpec::named(name)
            })
            .unwrap();
        }
        sim.set_status(like.var("c"), "SHUTOFF").unwrap();
        for var in [
            "name",
            "net",
            "flavor",
            "flavor-large",
            "floating",
            "foreign",
            "router",
            "a",
            "b",
            "c",
            "port-a",
            "port-b",
            "port-c",
            "ip-a",
            "ip-b",
            "ip-c",
        ] {
            world.vars.insert(var, like.var(var).to_owned());
        }
        world.vars.insert("outer-subnet-name", "public-0".to_owned());
        world.vars.insert("project", project);
        world.vars.insert("user", user);
        world.vars.insert("credential", credential.id);
        world.vars.insert("secret", credential.secret);
        world.tokens().await;
        let url = format!("{}/v2.0/networks", world.var("network"));
        let networks = world.ok(Method::GET, &url, world.var("token"), None).await;
        for network in networks["networks"].as_array().unwrap() {
            let (net, subnet) = if network["name"] == "public" {
                ("public-net", "outer-subnet")
            } else {
                ("net", "subnet")
            };
            world.vars.insert(net, text(&network["id"]));
            world.vars.insert(subnet, text(&network["subnets"][0]));
        }
        world.control = Some(sim.control());
        world._sim = Some(sim);
        world
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}
