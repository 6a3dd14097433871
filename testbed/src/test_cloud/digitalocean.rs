//! The simulated DigitalOcean as a test cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use ccm_sim::Behavior;
use ccm_sim::digitalocean::{Config, DigitalOcean};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::{DocumentsConfig, LoadBalancers, Machine, ServiceShape, TestCloud, pairs, wrong_status};
use crate::picture::Picture;
use crate::sweep::Party;

const ANNOTATIONS: &str = "service.beta.kubernetes.io/do-loadbalancer-";
const ID: &str = "kubernetes.digitalocean.com/load-balancer-id";
const BALANCERS: &str = "load_balancers";

pub(super) const DOCUMENTS_CONFIG: DocumentsConfig = DocumentsConfig {
    file: "accessToken: none\noverrideUrl: http://127.0.0.1:1/\nregion: nyc3\n",
    environment: &[],
};

/// A simulated DigitalOcean without droplets.
#[derive(Debug)]
pub struct DigitalOceanCloud {
    cloud: DigitalOcean,
    config: Config,
}

impl DigitalOceanCloud {
    /// Starts the simulator.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start() -> Result<Self> {
        let config = Config::default();
        Ok(Self {
            cloud: DigitalOcean::start(config.clone()).await?,
            config,
        })
    }

    fn balancers(&self) -> Vec<Value> {
        self.cloud.documents(BALANCERS)
    }
}

impl std::ops::Deref for DigitalOceanCloud {
    type Target = DigitalOcean;

    fn deref(&self) -> &DigitalOcean {
        &self.cloud
    }
}

fn text(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[async_trait]
impl TestCloud for DigitalOceanCloud {
    fn provider(&self) -> &'static str {
        "digitalocean"
    }

    fn config(&self) -> String {
        String::new()
    }

    fn environment(&self) -> Vec<(String, String)> {
        pairs(&[
            ("DO_ACCESS_TOKEN", &self.config.token),
            ("DO_OVERRIDE_URL", self.cloud.url()),
            ("REGION", &self.config.region),
        ])
    }

    fn secrets(&self) -> Vec<String> {
        vec![self.config.token.clone()]
    }

    fn party(&self) -> &dyn Party {
        let behavior: &Behavior = &self.cloud;
        behavior
    }

    async fn create_machine(&self, name: &str) -> Result<Machine> {
        let id = self.cloud.create_droplet(name);
        let droplet = self.cloud.document("droplets", &id).context("no droplet")?;
        let droplet = &droplet;
        let address = |index: usize| {
            let address = droplet.pointer(&format!("/networks/v4/{index}/ip_address"));
            address.and_then(Value::as_str).unwrap_or_default()
        };
        Ok(Machine {
            node: name.to_owned(),
            provider_id: format!("digitalocean://{id}"),
            addresses: pairs(&[
                ("Hostname", name),
                ("InternalIP", address(0)),
                ("ExternalIP", address(1)),
            ]),
            labels: pairs(&[
                ("node.kubernetes.io/instance-type", &text(droplet, "size_slug")),
                ("topology.kubernetes.io/region", &self.config.region),
            ]),
            id,
        })
    }

    async fn delete_machine(&self, machine: &Machine) -> Result<()> {
        Ok(self.cloud.remove("droplets", &machine.id)?)
    }

    async fn picture(&self, words: &[(String, String)]) -> Result<Picture> {
        let mut words = words.to_vec();
        let mut lines = Vec::new();
        for mut balancer in self.balancers() {
            words.push((text(&balancer, "id"), "id".to_owned()));
            words.push((text(&balancer, "ip"), "address".to_owned()));
            if let Some(fields) = balancer.as_object_mut() {
                fields.remove("created_at");
            }
            lines.push(format!("load balancer {balancer}"));
        }
        Ok(Picture::of_lines(lines, &words))
    }

    async fn clear(&self) -> Result<()> {
        for balancer in self.balancers() {
            let id = text(&balancer, "id");
            self.cloud.remove(BALANCERS, &id)?;
        }
        Ok(())
    }

    fn created(&self) -> Vec<(&'static str, usize)> {
        let calls = Behavior::calls(&self.cloud);
        let created = calls.iter().filter(|call| {
            call.op == "loadBalancers_create" && call.status.is_some_and(|status| status < 300)
        });
        vec![("loadBalancers_create", created.count())]
    }

    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let balancers = self.balancers();
        let [balancer] = balancers.as_slice() else {
            return Ok(Some(format!("{} load balancers", balancers.len())));
        };
        let annotations = &service.metadata.annotations;
        let id = annotations.as_ref().and_then(|all| all.get(ID));
        if id != Some(&text(balancer, "id")) {
            return Ok(Some(format!("annotations {annotations:?}")));
        }
        let expected = text(balancer, "ip");
        Ok(wrong_status(service, &expected))
    }

    fn service(&self) -> ServiceShape {
        ServiceShape {
            annotations: json!({}),
            changed: json!({
                format!("{ANNOTATIONS}healthcheck-check-interval-seconds"): "7",
                format!("{ANNOTATIONS}http-idle-timeout-seconds"): "77",
            }),
            has_affinity: true,
            shares_pool: false,
            internal: json!({
                format!("{ANNOTATIONS}network"): "INTERNAL",
                format!("{ANNOTATIONS}type"): "REGIONAL_NETWORK",
            }),
        }
    }

    fn calls(&self) -> BTreeMap<String, u64> {
        self.cloud.call_counts()
    }

    fn is_write(&self, operation: &str) -> bool {
        !operation.ends_with("_list") && !operation.ends_with("_get")
    }

    fn set_latency(&self, latency: Duration) {
        self.cloud.set_latency(latency);
    }

    async fn load_balancers(&self) -> Result<LoadBalancers> {
        let droplets = self.cloud.documents("droplets");
        let name = |id: &Value| {
            let droplet = droplets.iter().find(|droplet| droplet.get("id") == Some(id))?;
            Some(text(droplet, "name"))
        };
        let mut found = LoadBalancers::default();
        for balancer in self.balancers() {
            let ids = balancer.get("droplet_ids").and_then(Value::as_array);
            let nodes: BTreeSet<_> = ids.into_iter().flatten().filter_map(name).collect();
            // Each forwarding rule has all droplets.
            let rules = balancer.get("forwarding_rules").and_then(Value::as_array);
            for rule in rules.into_iter().flatten() {
                let pool = format!("{} {}", text(&balancer, "name"), rule["entry_port"]);
                found.pools.insert(pool, nodes.clone());
            }
            found.unfinished |= text(&balancer, "status") != "active";
            found.names.insert(text(&balancer, "name"));
        }
        Ok(found)
    }
}
