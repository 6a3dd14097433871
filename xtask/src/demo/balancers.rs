//! The load balancers of the Services, read from the cloud itself.

use anyhow::{Context, Result, bail};
use ccm_testbed::openstack_real::OpenStack as Real;
use serde_json::{Value, json};

use super::http;
use ccm_testbed::{cloud::Cloud, test_cloud::LoadBalancers};

/// Reads the load balancers. On clouds with free names, reads only those that begin with the prefix.
pub(super) async fn read(cloud: &Cloud, prefix: &str) -> Result<LoadBalancers> {
    match cloud {
        Cloud::Simulated(cloud) => Ok(LoadBalancers::of_openstack(cloud, prefix)),
        Cloud::Real(cloud, _) => Octavia::log_in(cloud).await?.balancers(prefix).await,
        Cloud::Test(cloud, _) => cloud.load_balancers().await,
    }
}

/// A session with a real Octavia.
struct Octavia {
    endpoint: String,
    token: String,
}

impl Octavia {
    async fn log_in(cloud: &Real) -> Result<Self> {
        let path = cloud.cloud_conf();
        let config =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let key = |name: &str| {
            let value = config.lines().find_map(|line| {
                let (key, value) = line.split_once('=')?;
                (key.trim() == name).then(|| value.trim().trim_matches('"'))
            });
            value.with_context(|| format!("no {name} in {}", path.display()))
        };
        let credential = json!({
            "id": key("application-credential-id")?,
            "secret": key("application-credential-secret")?,
        });
        let body = json!({"auth": {"identity": {
            "methods": ["application_credential"], "application_credential": credential,
        }}});
        let url = format!("{}/auth/tokens", cloud.auth_url());
        let headers = [("Content-Type", "application/json")];
        let answer = http::request("POST", &url, &headers, &body.to_string()).await?;
        let token = answer
            .header("X-Subject-Token")
            .context("Keystone returned no token")?;
        let catalog: Value = serde_json::from_str(&answer.body)?;
        let services = catalog.pointer("/token/catalog").and_then(Value::as_array);
        let mut services = services.into_iter().flatten();
        let service = services.find(|service| service.get("type") == Some(&json!("load-balancer")));
        let endpoints = service
            .and_then(|service| service.get("endpoints"))
            .and_then(Value::as_array);
        let mut endpoints = endpoints.into_iter().flatten();
        let endpoint = endpoints.find(|endpoint| endpoint.get("interface") == Some(&json!("public")));
        let url = endpoint
            .and_then(|endpoint| endpoint.get("url"))
            .and_then(Value::as_str);
        Ok(Self {
            endpoint: url
                .context("the catalog of Keystone has no Octavia")?
                .trim_end_matches('/')
                .to_owned(),
            token: token.to_owned(),
        })
    }

    /// The objects of a list.
    async fn list(&self, path: &str, what: &str) -> Result<Vec<Object>> {
        let url = format!("{}/v2.0/lbaas/{path}", self.endpoint);
        let answer = http::request("GET", &url, &[("X-Auth-Token", &self.token)], "").await?;
        if answer.status != 200 {
            bail!("{url}: {} {}", answer.status, answer.body);
        }
        let body: Value = serde_json::from_str(&answer.body)?;
        let objects = body
            .get(what)
            .and_then(Value::as_array)
            .with_context(|| format!("{url} answered without {what}"))?;
        let text = |object: &Value, name: &str| {
            let value = object.get(name).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let objects = objects.iter().map(|object| Object {
            id: text(object, "id"),
            name: text(object, "name"),
            status: text(object, "provisioning_status"),
        });
        Ok(objects.collect())
    }

    async fn balancers(&self, prefix: &str) -> Result<LoadBalancers> {
        let mut found = LoadBalancers::default();
        for balancer in self.list("loadbalancers", "loadbalancers").await? {
            if !balancer.name.starts_with(prefix) {
                continue;
            }
            found.unfinished |= balancer.status != "ACTIVE";
            found.names.insert(balancer.name);
            let pools = format!("pools?loadbalancer_id={}", balancer.id);
            for pool in self.list(&pools, "pools").await? {
                let members = self.list(&format!("pools/{}/members", pool.id), "members").await;
                // A pool may be deleted between two requests.
                let members = members.unwrap_or_default().into_iter();
                found
                    .pools
                    .insert(pool.name, members.map(|member| member.name).collect());
            }
        }
        Ok(found)
    }
}

/// An object of Octavia.
struct Object {
    id: String,
    name: String,
    status: String,
}
