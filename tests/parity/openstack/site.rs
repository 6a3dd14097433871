//! The cloud of the recordings, real or simulated: a project with a network, a group of the nodes and six servers.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use ccm_sim::openstack::{
    Config, LoadBalancing, NetworkSpec, OpenStack as Simulated, PortSpec, RouterSpec, ServerSpec, Settings,
};
use ccm_testbed::nodes::NodeSpec;
use ccm_testbed::observe::eventually;
use ccm_testbed::openstack_real::{Mark, OpenStack as Real};
use ccm_testbed::rest::{Rest, by_password};
use serde_json::{Value, json};

use super::{
    rebuild::rebuild,
    record::{self, Base, ProjectObjects, dump},
    upstream::{self, UpstreamConfig},
};
use crate::{
    cases::{items, text},
    site::{Call, Host, Names, PresentNames, Site},
};

/// Servers, of which the first three are nodes of the cluster.
pub(crate) const SERVERS: usize = 6;

const PASSWORD: &str = "parity-password";
/// How long the real cloud may take for its servers.
const LIMIT: Duration = Duration::from_secs(180);

pub(crate) struct OpenStackSite {
    pub(crate) rest: Rest,
    pub(crate) project: String,
    /// The names of IDs in the recordings.
    pub(crate) names: BTreeMap<String, String>,
    /// The names of addresses in the recordings.
    pub(crate) addresses: BTreeMap<String, String>,
    /// Ids of servers, by name.
    pub(crate) servers: BTreeMap<String, String>,
    auth_url: String,
    user: String,
    password: String,
    project_name: String,
    net: String,
    public: String,
    pub(crate) subnet: String,
    router: String,
    cloud: Cloud,
    /// The objects that existed before the cases.
    pub(super) base: Base,
    /// The user agent of the program.
    agent: String,
}

enum Cloud {
    Simulated(Simulated),
    Real(Real),
}

impl OpenStackSite {
    /// A new simulator.
    pub(crate) async fn simulated(agent: &str) -> Result<Self> {
        let config = Config {
            settings: Settings {
                load_balancing: LoadBalancing {
                    providers: vec!["amphora".to_owned(), "octavia".to_owned()],
                    heartbeats: false,
                    ..LoadBalancing::default()
                },
                key_manager: false,
                ..Settings::default()
            },
            ..Config::default()
        };
        let (user, password, project_name) =
            (config.user.clone(), config.password.clone(), config.project.clone());
        let sim = Simulated::start(config).await?;
        let net = sim.create_network(&NetworkSpec {
            name: "k8s-net".to_owned(),
            project: Some(sim.project_id()),
            ..NetworkSpec::default()
        })?;
        let rest = Rest::log_in(&sim.auth_url(), &by_password(&user, &password, &project_name)).await?;
        let mut site = Self {
            rest,
            project: sim.project_id(),
            names: BTreeMap::new(),
            addresses: BTreeMap::new(),
            servers: BTreeMap::new(),
            auth_url: sim.auth_url(),
            user,
            password,
            project_name,
            net: net.clone(),
            public: String::new(),
            subnet: String::new(),
            router: String::new(),
            cloud: Cloud::Simulated(sim),
            base: Base::new(),
            agent: agent.to_owned(),
        };
        site.make_subnet_and_group().await?;
        if let Cloud::Simulated(sim) = &site.cloud {
            sim.create_router(&RouterSpec {
                name: "k8s-router".to_owned(),
                gateway: Some("public".to_owned()),
                networks: vec![net.clone()],
                ..RouterSpec::default()
            })?;
            for i in 1..=SERVERS {
                let ports = Some(vec![PortSpec::on(&net)]);
                sim.create_server(&ServerSpec {
                    ports,
                    ..ServerSpec::named(format!("node-{i}"))
                })?;
            }
        }
        site.name_objects().await?;
        Ok(site)
    }

    /// A new project of the real cloud.
    pub(crate) async fn real(name: &str) -> Result<Self> {
        let cloud = Real::start(1).await?;
        let auth_url = cloud.auth_url().to_owned();
        let admin = Rest::log_in(&auth_url, &by_password("admin", "admin", "admin")).await?;
        let project = json!({"project": {"name": name, "domain_id": "default"}});
        let project = text(&admin.post("identity/projects", project).await?["project"]["id"]);
        let user = json!({"user": {"name": name, "password": PASSWORD, "domain_id": "default"}});
        let user = text(&admin.post("identity/users", user).await?["user"]["id"]);
        for role in admin.list("identity/roles").await? {
            if matches!(text(&role["name"]).as_str(), "member" | "load-balancer_member") {
                let role = text(&role["id"]);
                let path = format!("identity/projects/{project}/users/{user}/roles/{role}");
                admin.put(&path, None).await?;
            }
        }
        let rest = Rest::log_in(&auth_url, &by_password(name, PASSWORD, name)).await?;
        let net = rest.post("network/v2.0/networks", json!({"network": {"name": "k8s-net"}})).await?;
        let mut site = Self {
            rest,
            project,
            names: BTreeMap::new(),
            addresses: BTreeMap::new(),
            servers: BTreeMap::new(),
            auth_url,
            user: name.to_owned(),
            password: PASSWORD.to_owned(),
            project_name: name.to_owned(),
            net: text(&net["network"]["id"]),
            public: String::new(),
            subnet: String::new(),
            router: String::new(),
            cloud: Cloud::Real(cloud),
            base: Base::new(),
            agent: name.to_owned(),
        };
        site.make_subnet_and_group().await?;
        site.make_real_servers().await?;
        site.name_objects().await?;
        Ok(site)
    }

    async fn make_subnet_and_group(&mut self) -> Result<()> {
        let subnet = json!({"subnet": {"name": "k8s-subnet", "network_id": self.net, "ip_version": 4,
            "cidr": "10.0.0.0/24", "enable_dhcp": false}});
        self.subnet = match &self.cloud {
            Cloud::Simulated(sim) => sim.create_subnet(
                &self.net,
                &ccm_sim::openstack::SubnetSpec {
                    name: "k8s-subnet".to_owned(),
                    cidr: Some("10.0.0.0/24".parse()?),
                    ..ccm_sim::openstack::SubnetSpec::default()
                },
            )?,
            Cloud::Real(_) => text(&self.rest.post("network/v2.0/subnets", subnet).await?["subnet"]["id"]),
        };
        let networks = self.rest.list("network/v2.0/networks?router:external=true").await?;
        self.public = text(&networks.first().context("no external network")?["id"]);
        let group = json!({"security_group": {"name": "k8s-nodes"}});
        self.rest.post("network/v2.0/security-groups", group).await?;
        Ok(())
    }

    async fn make_real_servers(&mut self) -> Result<()> {
        let Cloud::Real(cloud) = &self.cloud else {
            return Ok(());
        };
        let router =
            json!({"router": {"name": "k8s-router", "external_gateway_info": {"network_id": self.public}}});
        let router = self.rest.post("network/v2.0/routers", router).await?;
        self.router = text(&router["router"]["id"]);
        let path = format!("network/v2.0/routers/{}/add_router_interface", self.router);
        self.rest.put(&path, json!({"subnet_id": self.subnet})).await?;
        for i in 1..=SERVERS {
            let server = json!({"server": {
                "name": format!("node-{i}"), "imageRef": cloud.seed("IMAGE"), "flavorRef": cloud.seed("FLAVOR"),
                "networks": [{"uuid": self.net}],
            }});
            self.rest.post("compute/servers", server).await?;
        }
        let active = async || {
            let servers = self.rest.list("compute/servers/detail").await.ok()?;
            let all = servers.iter().all(|server| server["status"] == "ACTIVE");
            (all && servers.len() == SERVERS).then_some(())
        };
        eventually(LIMIT, active).await.context("the servers do not start")
    }

    /// Names all IDs and addresses, and adds the nodes' ports to their security group.
    async fn name_objects(&mut self) -> Result<()> {
        let mut names = BTreeMap::new();
        for (kind, path) in [("net", "networks"), ("subnet", "subnets")] {
            for object in self.rest.list(&format!("network/v2.0/{path}")).await? {
                names.insert(text(&object["id"]), format!("<{kind}:{}>", text(&object["name"])));
            }
        }
        let groups = format!("network/v2.0/security-groups?project_id={}", self.project);
        let mut nodes_group = String::new();
        for group in self.rest.list(&groups).await? {
            if group["name"] == "k8s-nodes" {
                nodes_group = text(&group["id"]);
            }
            names.insert(text(&group["id"]), format!("<sg:{}>", text(&group["name"])));
        }
        for server in self.rest.list("compute/servers/detail").await? {
            let (id, name) = (text(&server["id"]), text(&server["name"]));
            let ports = self.rest.list(&format!("network/v2.0/ports?device_id={id}")).await?;
            for port in ports {
                let path = format!("network/v2.0/ports/{}", text(&port["id"]));
                let groups = json!({"port": {"security_groups": [nodes_group]}});
                self.rest.put(&path, groups).await?;
                for fixed in items(&port["fixed_ips"]) {
                    self.addresses.insert(text(&fixed["ip_address"]), format!("<{name}>"));
                }
            }
            names.insert(id.clone(), format!("<server:{name}>"));
            self.servers.insert(name, id);
        }
        self.names = names;
        self.base = ProjectObjects::read(self).await?.ids();
        Ok(())
    }

    pub(crate) fn is_real(&self) -> bool {
        matches!(self.cloud, Cloud::Real(_))
    }
}

impl Site for OpenStackSite {
    const CLOUD: &'static str = "openstack";
    type Moment = Moment;

    fn nodes(&self) -> Vec<NodeSpec> {
        let node = |(at, pool): (usize, &str)| {
            let mut spec = NodeSpec::new(format!("node-{}", at + 1));
            spec.labels.insert("pool".to_owned(), pool.to_owned());
            spec
        };
        ["a", "a", "b"].into_iter().enumerate().map(node).collect()
    }

    fn cloud_conf(&self, changes: &Value) -> String {
        let mut balancing = BTreeMap::from([
            ("subnet-id", self.subnet.clone()),
            ("floating-network-id", self.public.clone()),
            ("lb-provider", "amphora".to_owned()),
            ("create-monitor", "true".to_owned()),
            ("manage-security-groups", "true".to_owned()),
        ]);
        if let Some(changed) = changes["LoadBalancer"].as_object() {
            for (key, value) in changed {
                balancing.insert(key, text(value));
            }
        }
        let balancing: String = balancing.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        format!(
            "[Global]\nauth-url={}\nusername={}\npassword={}\ntenant-name={}\ndomain-id=default\nregion=RegionOne\n\
             [Networking]\npublic-network-name=public\n[LoadBalancer]\n{balancing}",
            self.auth_url, self.user, self.password, self.project_name
        )
    }

    fn flags(&self) -> Vec<String> {
        vec![format!("--user-agent={}", self.agent)]
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn patience(&self) -> (Duration, Duration) {
        let (seconds, quiet) = if self.is_real() { (400, 2500) } else { (300, 1100) };
        (Duration::from_secs(seconds), Duration::from_millis(quiet))
    }

    fn mark(&self) -> Result<Moment> {
        Ok(match &self.cloud {
            Cloud::Simulated(sim) => Moment::Simulated(sim.calls().last().map_or(0, |call| call.seq)),
            Cloud::Real(real) => Moment::Real(real.mark()?),
        })
    }

    /// The program's calls, selected by its user agent.
    fn calls_since(&self, moment: &Moment) -> Result<Vec<Call>> {
        let mut calls = Vec::new();
        let mut add = |agent: Option<&str>, service: &str, method: &str, path: &str| {
            let is_ours = agent.is_some_and(|words| words.contains(&self.agent));
            if is_ours && !["keystone", "identity"].contains(&service) {
                calls.push(Call {
                    text: format!("{service} {method} {path}"),
                    is_write: method != "GET",
                });
            }
        };
        match (&self.cloud, moment) {
            (Cloud::Simulated(sim), Moment::Simulated(seq)) => {
                for call in sim.calls().iter().filter(|call| call.seq > *seq) {
                    add(call.user_agent.as_deref(), call.service, &call.method, &call.path);
                }
            }
            (Cloud::Real(real), Moment::Real(mark)) => {
                for call in real.calls_since(mark)? {
                    add(Some(&call.user_agent), &call.service, &call.method, &call.path);
                }
            }
            _ => {}
        }
        Ok(calls)
    }

    async fn dump(&self, _: &BTreeMap<String, String>) -> Result<(Value, Names)> {
        dump(self).await
    }

    async fn clear(&self) -> Result<()> {
        record::clear(self).await
    }

    async fn rebuild(&self, phase: &Value, now: &mut PresentNames) -> Result<()> {
        rebuild(self, phase, now).await
    }

    /// Deletes the servers, which use memory of the real cloud.
    async fn leave(&self) -> Result<()> {
        if !self.is_real() {
            return Ok(());
        }
        for id in self.servers.values() {
            self.rest.delete(&format!("compute/servers/{id}")).await?;
        }
        Ok(())
    }

    fn writes_of_upstream(&self, got: &Value, hosts: &[Host], config: &Value) -> Vec<String> {
        let on = |key: &str| config["LoadBalancer"][key] != "false";
        let config = UpstreamConfig {
            monitors: on("create-monitor"),
            groups: on("manage-security-groups"),
        };
        upstream::writes(got, hosts, config)
    }
}

/// A moment in a cloud's log of calls.
pub(crate) enum Moment {
    Simulated(u64),
    Real(Mark),
}
