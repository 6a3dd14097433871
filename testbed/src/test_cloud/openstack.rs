//! The simulated OpenStack as a test cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use ccm_sim::Behavior;
use ccm_sim::openstack::{Config, Control, OpenStack, RouterSpec, ServerSpec};
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    DocumentsConfig, LoadBalancers, Machine, ServiceShape, TestCloud, TestRoutes, pairs, wrong_status,
};
use crate::picture::Picture;
use crate::sweep::Party;

pub(super) const DOCUMENTS_CONFIG: DocumentsConfig = DocumentsConfig {
    file: "[Global]\nauth-url = http://127.0.0.1:1/v3\ntoken = none\ntenant-id = none\n\
           [LoadBalancerClass \"dmz\"]\nfloating-subnet-tags = dmz\n",
    environment: &[],
};

/// The options that enable all features of the program.
const CONFIG: &str = "[LoadBalancer]\nmanage-security-groups = true\ncreate-monitor = true\n";
const ID: &str = "loadbalancer.openstack.org/load-balancer-id";
const ADDRESS: &str = "loadbalancer.openstack.org/load-balancer-address";
/// The prefix of the simulated cloud's tokens.
const TOKEN: &str = "gAAAAA";
const CREATES: [&str; 3] = [
    "loadbalancer_create",
    "floating_ip_create",
    "security_group_create",
];

/// An address pair of a port that does not belong to the cluster.
const FOREIGN_PAIR: &str = "192.168.7.7";

/// A simulated OpenStack with a network, a router and without machines.
#[derive(Debug)]
pub struct OpenStackCloud {
    cloud: OpenStack,
    secret: String,
    /// The router with the routes to Pods.
    router: OnceLock<String>,
    /// IDs of machines by their first addresses.
    machines: Mutex<BTreeMap<IpAddr, String>>,
}

impl OpenStackCloud {
    /// Starts the simulator.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start() -> Result<Self> {
        let config = Config::default();
        Ok(Self {
            secret: config.password.clone(),
            cloud: OpenStack::start(config).await?,
            router: OnceLock::new(),
            machines: Mutex::default(),
        })
    }
}

impl OpenStackCloud {
    /// The only port of a machine.
    ///
    /// # Errors
    /// If the machine has no port.
    pub fn port(&self, machine: &Machine) -> Result<String> {
        let port = self.cloud.server_ports(&machine.id).into_iter().next();
        port.context("the server has no port")
    }

    fn router(&self) -> Result<&str> {
        self.router.get().map(String::as_str).context("no router")
    }
}

#[async_trait]
impl TestRoutes for OpenStackCloud {
    async fn create_table(&self) -> Result<String> {
        let router = self.cloud.create_router(&RouterSpec {
            name: "pods".to_owned(),
            networks: vec!["private".to_owned()],
            ..RouterSpec::default()
        })?;
        let router = self.router.get_or_init(|| router);
        Ok(format!("[Route]\nrouter-id={router}\n"))
    }

    async fn reset(
        &self,
        routes: &[(&str, &Machine)],
        machines: &[Machine],
        guest: (&str, &Machine),
    ) -> Result<()> {
        for machine in machines {
            self.cloud.set_address_pairs(&self.port(machine)?, &[])?;
        }
        let (network, guest) = guest;
        self.cloud.set_address_pairs(&self.port(guest)?, &[network, FOREIGN_PAIR])?;
        let route = |(to, machine): &(&str, &Machine)| Ok((to.parse()?, address(machine)?));
        let routes: Vec<_> = routes.iter().map(route).collect::<Result<_>>()?;
        Ok(self.cloud.set_router_routes(self.router()?, &routes)?)
    }

    async fn table(&self) -> Result<BTreeSet<(String, String)>> {
        let machines = self.machines.lock().clone();
        let routes = self.cloud.router_routes(self.router()?);
        let machine = |hop: IpAddr| machines.get(&hop).cloned().unwrap_or_else(|| hop.to_string());
        Ok(routes.iter().map(|(to, hop)| (to.to_string(), machine(*hop))).collect())
    }

    async fn drops(&self, machine: &Machine, network: &str) -> Result<Option<String>> {
        let pairs = self.cloud.address_pairs(&self.port(machine)?);
        Ok((pairs != [network]).then(|| format!("address pairs {pairs:?}")))
    }

    async fn changed(&self, guest: &Machine) -> Result<Option<String>> {
        self.drops(guest, FOREIGN_PAIR).await
    }
}

/// The first address of a machine.
fn address(machine: &Machine) -> Result<IpAddr> {
    let (_, address) = machine.addresses.first().context("a machine without an address")?;
    Ok(address.parse()?)
}

impl Deref for OpenStackCloud {
    type Target = OpenStack;

    fn deref(&self) -> &OpenStack {
        &self.cloud
    }
}

/// The annotations and features of Services for OpenStack.
#[must_use]
pub fn service() -> ServiceShape {
    ServiceShape {
        annotations: json!({}),
        changed: json!({
            "loadbalancer.openstack.org/connection-limit": "1000",
            "loadbalancer.openstack.org/timeout-client-data": "70000",
            "loadbalancer.openstack.org/health-monitor-delay": "11",
        }),
        has_affinity: true,
        shares_pool: false,
        internal: json!({"service.beta.kubernetes.io/openstack-internal-load-balancer": "true"}),
    }
}

impl LoadBalancers {
    /// The load balancers of a simulated OpenStack whose names have this prefix.
    #[must_use]
    pub fn of_openstack(cloud: &Control, prefix: &str) -> Self {
        let mut found = Self::default();
        for balancer in cloud.load_balancers() {
            if !balancer.loadbalancer.name.starts_with(prefix) {
                continue;
            }
            found.unfinished |= balancer.loadbalancer.provisioning_status != "ACTIVE";
            found.names.insert(balancer.loadbalancer.name);
            for pool in balancer.pools {
                let members = balancer.members.iter().filter(|member| member.parent_id == pool.id);
                let members = members.map(|member| member.name.clone()).collect();
                found.pools.insert(pool.name, members);
            }
        }
        found
    }
}

#[async_trait]
impl TestCloud for OpenStackCloud {
    fn provider(&self) -> &'static str {
        "openstack"
    }

    fn config(&self) -> String {
        format!("{}\n{CONFIG}", self.cloud.cloud_conf())
    }

    fn secrets(&self) -> Vec<String> {
        vec![self.secret.clone(), TOKEN.to_owned()]
    }

    fn party(&self) -> &dyn Party {
        let behavior: &Behavior = &self.cloud;
        behavior
    }

    async fn create_machine(&self, name: &str) -> Result<Machine> {
        let id = self.cloud.create_server(&ServerSpec::named(name))?;
        let port = self.cloud.server_ports(&id).into_iter().next();
        let port = port.context("the server has no port")?;
        let address = self.cloud.port_addresses(&port).into_iter().next();
        let address = address.context("a port without an address")?;
        self.machines.lock().insert(address, id.clone());
        let address = address.to_string();
        Ok(Machine {
            node: name.to_owned(),
            provider_id: format!("openstack:///{id}"),
            addresses: pairs(&[("InternalIP", &address), ("Hostname", name)]),
            labels: pairs(&[
                ("node.kubernetes.io/instance-type", "m1.small"),
                ("topology.kubernetes.io/zone", "nova"),
                ("topology.kubernetes.io/region", "RegionOne"),
            ]),
            id,
        })
    }

    async fn delete_machine(&self, machine: &Machine) -> Result<()> {
        Ok(self.cloud.delete_server(&machine.id)?)
    }

    async fn picture(&self, words: &[(String, String)]) -> Result<Picture> {
        Ok(Picture::of(&self.cloud, words))
    }

    async fn clear(&self) -> Result<()> {
        for balancer in self.cloud.load_balancers() {
            self.cloud.delete_object(&balancer.loadbalancer.id)?;
        }
        for floating in self.cloud.floating_ips() {
            self.cloud.remove_floating(floating.address)?;
        }
        for group in self.cloud.security_groups() {
            if group.name != "default" {
                self.cloud.delete_group(&group.id)?;
            }
        }
        Ok(())
    }

    fn created(&self) -> Vec<(&'static str, usize)> {
        let calls = Behavior::calls(&self.cloud);
        let count = |op: &str| {
            let created = calls
                .iter()
                .filter(|call| call.op == op && call.status.is_some_and(|status| status < 300));
            created.count()
        };
        CREATES.iter().map(|op| (*op, count(op))).collect()
    }

    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let (balancers, floating) = (self.cloud.load_balancers(), self.cloud.floating_ips());
        let ([balancer], [floating]) = (balancers.as_slice(), floating.as_slice()) else {
            return Ok(Some(format!(
                "{} load balancers with {} floating IPs",
                balancers.len(),
                floating.len()
            )));
        };
        let balancer = &balancer.loadbalancer;
        let vip = balancer.attributes.get("vip_port_id").and_then(Value::as_str);
        if floating.port_id.as_deref() != vip {
            return Ok(Some("the floating IP belongs to another port".to_owned()));
        }
        let annotations = &service.metadata.annotations;
        let annotation = |key: &str| annotations.as_ref().and_then(|all| all.get(key));
        let address = floating.address.to_string();
        if annotation(ID) != Some(&balancer.id) || annotation(ADDRESS) != Some(&address) {
            return Ok(Some(format!("annotations {annotations:?}")));
        }
        Ok(wrong_status(service, &address))
    }

    fn service(&self) -> ServiceShape {
        service()
    }

    fn calls(&self) -> BTreeMap<String, u64> {
        self.cloud.call_counts()
    }

    fn is_write(&self, operation: &str) -> bool {
        let verbs = ["_create", "_update", "_delete", "_add", "_remove", "_replace"];
        !operation.starts_with("token_") && verbs.iter().any(|verb| operation.ends_with(verb))
    }

    fn set_latency(&self, latency: Duration) {
        self.cloud.set_latency(latency);
    }

    async fn load_balancers(&self) -> Result<LoadBalancers> {
        Ok(LoadBalancers::of_openstack(&self.cloud, ""))
    }

    fn routes(&self) -> Option<&dyn TestRoutes> {
        Some(self)
    }
}
