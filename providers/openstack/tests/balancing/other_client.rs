//! Another client in the same project, whose requests the provider does not know.

use ccm_sim::openstack::{Config, OpenStack};
use serde_json::{Value, json};

pub(crate) struct OtherClient {
    http: reqwest::Client,
    token: String,
    catalog: Value,
}

impl OtherClient {
    pub(crate) async fn of(sim: &OpenStack) -> Self {
        let config = Config::default();
        let user = json!({
            "name": config.user, "domain": {"name": "Default"}, "password": config.password,
        });
        let auth = json!({"auth": {
            "identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": {"id": sim.project_id()}},
        }});
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("{}/auth/tokens", sim.auth_url());
        let answer = http.post(url).json(&auth).send().await.unwrap();
        let token = answer.headers().get("X-Subject-Token").unwrap();
        Self {
            token: token.to_str().unwrap().to_owned(),
            catalog: answer.json().await.unwrap(),
            http,
        }
    }

    fn url(&self, service: &str, path: &str) -> String {
        let all = self.catalog["token"]["catalog"].as_array().unwrap();
        let entry = all.iter().find(|entry| entry["type"] == service).unwrap();
        let url = entry["endpoints"][0]["url"].as_str().unwrap();
        format!("{}/{path}", url.trim_end_matches('/'))
    }

    /// Creates an object of Octavia, and returns its ID.
    pub(crate) async fn create(&self, path: &str, kind: &str, body: Value) -> String {
        let url = self.url("load-balancer", &format!("v2/lbaas/{path}"));
        self.send(self.http.post(url), kind, body).await
    }

    /// Creates an object of Neutron, and returns its ID.
    pub(crate) async fn create_in_network(&self, path: &str, kind: &str, body: Value) -> String {
        let url = self.url("network", &format!("v2.0/{path}"));
        self.send(self.http.post(url), kind, body).await
    }

    /// Adds a port to a security group.
    pub(crate) async fn join_group(&self, port: &str, group: &str) {
        let url = self.url("network", &format!("v2.0/ports/{port}"));
        let asked = self.http.get(&url).header("X-Auth-Token", &self.token);
        let found: Value = asked.send().await.unwrap().json().await.unwrap();
        let mut groups = found["port"]["security_groups"].as_array().unwrap().clone();
        groups.push(json!(group));
        self.send(self.http.put(url), "port", json!({"security_groups": groups})).await;
    }

    async fn send(&self, request: reqwest::RequestBuilder, kind: &str, body: Value) -> String {
        let asked = request.header("X-Auth-Token", &self.token);
        let answer = asked.json(&json!({kind: body})).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        let made: Value = answer.json().await.unwrap();
        made[kind]["id"].as_str().unwrap().to_owned()
    }

    /// Creates a load balancer of a user, with a listener, a pool, a member and a monitor.
    pub(crate) async fn balancer(&self, name: &str) -> String {
        let url = self.url("network", "v2.0/subnets?cidr=10.0.0.0/12");
        let asked = self.http.get(url).header("X-Auth-Token", &self.token);
        let subnets: Value = asked.send().await.unwrap().json().await.unwrap();
        let subnet = &subnets["subnets"][0]["id"];
        let body = json!({"name": name, "vip_subnet_id": subnet, "tags": ["mine"]});
        let id = self.create("loadbalancers", "loadbalancer", body).await;
        let body = json!({
            "loadbalancer_id": id, "name": "my listener", "protocol": "TCP", "protocol_port": 9999,
        });
        let listener = self.create("listeners", "listener", body).await;
        let body = json!({
            "listener_id": listener, "name": "my pool", "protocol": "TCP", "lb_algorithm": "SOURCE_IP",
        });
        let pool = self.create("pools", "pool", body).await;
        let body = json!({"address": "10.0.0.99", "protocol_port": 9999, "weight": 7});
        self.create(&format!("pools/{pool}/members"), "member", body).await;
        let body = json!({"pool_id": pool, "type": "TCP", "delay": 9, "timeout": 8, "max_retries": 7});
        self.create("healthmonitors", "healthmonitor", body).await;
        // One that no listener uses.
        let body = json!({
            "loadbalancer_id": id, "name": "my spare pool", "protocol": "HTTP", "lb_algorithm": "ROUND_ROBIN",
        });
        self.create("pools", "pool", body).await;
        id
    }
}
