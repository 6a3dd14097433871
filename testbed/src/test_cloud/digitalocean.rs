//! The simulated DigitalOcean.

use std::ops::Deref;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use ccm_sim::Behavior;
use ccm_sim::digitalocean::{Config, DigitalOcean};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::{Machine, ServiceShape, TestCloud, pairs};
use crate::picture::Picture;
use crate::sweep::Party;

const PREFIX: &str = "service.beta.kubernetes.io/do-loadbalancer-";
const ID: &str = "kubernetes.digitalocean.com/load-balancer-id";

/// A simulated account without droplets.
#[derive(Debug)]
pub struct DigitalOceanCloud {
    cloud: DigitalOcean,
    config: Config,
}

impl DigitalOceanCloud {
    /// Starts it.
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
}

impl Deref for DigitalOceanCloud {
    type Target = DigitalOcean;

    fn deref(&self) -> &DigitalOcean {
        &self.cloud
    }
}

fn text(document: &Value, field: &str) -> String {
    document
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[async_trait]
impl TestCloud for DigitalOceanCloud {
    fn provider(&self) -> &'static str {
        "digitalocean"
    }

    /// Everything is in the environment, as in the former cloud controller's manifest.
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
        let all = self.cloud.documents("droplets");
        let droplet = all
            .iter()
            .find(|droplet| droplet["id"].to_string() == id)
            .context("no droplet")?;
        let address = |index: usize| text(&droplet["networks"]["v4"][index], "ip_address");
        Ok(Machine {
            node: name.to_owned(),
            provider_id: format!("digitalocean://{id}"),
            addresses: pairs(&[
                ("Hostname", name),
                ("InternalIP", &address(0)),
                ("ExternalIP", &address(1)),
            ]),
            labels: pairs(&[
                ("node.kubernetes.io/instance-type", "s-2vcpu-4gb"),
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
        for mut balancer in self.cloud.documents("load_balancers") {
            words.push((text(&balancer, "id"), "(id)".to_owned()));
            words.push((text(&balancer, "ip"), "(ip)".to_owned()));
            for list in ["droplet_ids", "forwarding_rules"] {
                if let Some(list) = balancer.get_mut(list).and_then(Value::as_array_mut) {
                    list.sort_by_key(Value::to_string);
                }
            }
            if let Some(fields) = balancer.as_object_mut() {
                fields.remove("created_at");
            }
            lines.push(format!("load balancer {balancer}"));
        }
        words.retain(|(word, _)| !word.is_empty());
        Ok(Picture::of_lines(lines, &words))
    }

    async fn clear(&self) -> Result<()> {
        for balancer in self.cloud.documents("load_balancers") {
            self.cloud.remove("load_balancers", &text(&balancer, "id"))?;
        }
        Ok(())
    }

    fn created(&self) -> Vec<(&'static str, usize)> {
        let calls = Behavior::calls(&self.cloud);
        let made = calls.iter().filter(|call| {
            call.op == "loadBalancers_create" && call.status.is_some_and(|status| status < 300)
        });
        vec![("load_balancer_create", made.count())]
    }

    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let balancers = self.cloud.documents("load_balancers");
        let [balancer] = balancers.as_slice() else {
            return Ok(Some(format!("{} load balancers", balancers.len())));
        };
        let (id, address) = (text(balancer, "id"), text(balancer, "ip"));
        let annotations = &service.metadata.annotations;
        if annotations.as_ref().and_then(|all| all.get(ID)) != Some(&id) {
            return Ok(Some(format!("annotations {annotations:?}")));
        }
        let status = service.status.as_ref();
        let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref());
        Ok(match ingress {
            Some([only]) if only.ip.as_ref() == Some(&address) => None,
            other => Some(format!("status {other:?} instead of {address}")),
        })
    }

    fn service(&self) -> ServiceShape {
        ServiceShape {
            annotations: json!({ format!("{PREFIX}type"): "REGIONAL" }),
            changed: json!({
                format!("{PREFIX}size-unit"): "3",
                format!("{PREFIX}enable-backend-keepalive"): "true",
                format!("{PREFIX}healthcheck-healthy-threshold"): "4",
            }),
        }
    }
}
