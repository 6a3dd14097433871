//! A project of Compute Engine in memory as a test cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    DocumentsConfig, LoadBalancers, Machine, ServiceShape, TestCloud, TestRoutes, pairs, wrong_status,
};
use crate::gce::{GceOptions, GceServer, REGION, TOKEN, ZONES};
use crate::picture::Picture;
use crate::proxy::{Action, CloudProxy, GceDialect, Rule, is_gce_write};
use crate::sweep::Party;

/// The kinds of resources of load balancers. Users come before the resources that they use.
const KINDS: [&str; 8] = [
    "forwardingRules",
    "targetPools",
    "backendServices",
    "httpHealthChecks",
    "healthChecks",
    "instanceGroups",
    "firewalls",
    "addresses",
];
/// Fields that differ between runs.
const UNSTABLE: [&str; 5] = [
    "id",
    "creationTimestamp",
    "selfLink",
    "fingerprint",
    "labelFingerprint",
];
/// The start of the names of routes, and their description: the cluster's default name, and upstream's constant.
const ROUTE_PREFIX: &str = "kubernetes";
const ROUTE_DESCRIPTION: &str = "k8s-node-route";
/// The start of the Pod networks in the scenario of routes. Other routes are not the cluster's.
const POD_NETWORKS: &str = "10.244.";

pub(super) const DOCUMENTS_CONFIG: DocumentsConfig = DocumentsConfig {
    file: "[global]\nproject-id = example\nlocal-zone = us-central1-a\nnetwork-name = default\n\
           subnetwork-name = default\napi-endpoint = http://127.0.0.1:1/compute/v1/\n",
    environment: &[("GCE_METADATA_HOST", "127.0.0.1:1")],
};

/// A project with a network in two regions and without instances.
#[derive(Debug)]
pub struct GceCloud {
    server: GceServer,
    /// The program's way to API and metadata server.
    pub proxy: CloudProxy<GceDialect>,
    /// Number of instances so far, which chooses the zone of the next one.
    created: Mutex<usize>,
}

fn text(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The path of a link, from `projects/`.
fn path_of(link: &str) -> &str {
    link.find("projects/").map_or(link, |at| &link[at..])
}

/// The name at the end of a link.
fn name_of(link: &str) -> String {
    link.rsplit('/').next().unwrap_or_default().to_owned()
}

fn links<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    object.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

impl GceCloud {
    /// Starts a server with operations that end at once.
    ///
    /// # Errors
    /// When Python 3 is missing.
    pub async fn start() -> Result<Self> {
        Self::start_with(&GceOptions::default()).await
    }

    /// Starts a server with these options.
    ///
    /// # Errors
    /// When Python 3 is missing, or an option is invalid.
    pub async fn start_with(options: &GceOptions) -> Result<Self> {
        let server = GceServer::start(options).await?;
        Ok(Self {
            proxy: CloudProxy::<GceDialect>::start(&server.url()).await?,
            server,
            created: Mutex::default(),
        })
    }

    /// The resources of load balancers by path.
    async fn resources(&self) -> Result<BTreeMap<String, Value>> {
        self.server.objects(&KINDS).await
    }

    /// Creates machines with these names in three of the four zones in turn. One request creates any number.
    ///
    /// # Errors
    /// When the subnetwork is full.
    pub async fn create_machines(&self, names: &[String]) -> Result<Vec<Machine>> {
        let first = {
            let mut created = self.created.lock();
            *created += names.len();
            *created - names.len()
        };
        let [mut zones @ .., _] = ZONES;
        let first = first % zones.len();
        zones.rotate_left(first);
        let fields = json!({"machineType": "e2-standard-4", "tags": {"items": ["node"]}});
        let instances = self.server.create_instances(names, &zones, &fields).await?;
        Ok(instances.iter().map(|instance| self.machine(instance)).collect())
    }

    fn machine(&self, instance: &Value) -> Machine {
        let (name, zone) = (text(instance, "name"), name_of(&text(instance, "zone")));
        let interface = &instance["networkInterfaces"][0];
        Machine {
            id: path_of(&text(instance, "selfLink")).to_owned(),
            provider_id: format!("gce://{}/{zone}/{name}", self.server.project()),
            addresses: pairs(&[
                ("InternalIP", &text(interface, "networkIP")),
                ("ExternalIP", &text(&interface["accessConfigs"][0], "natIP")),
                // The kubelet's, which stays.
                ("Hostname", &name),
            ]),
            labels: pairs(&[
                ("node.kubernetes.io/instance-type", &name_of(&text(instance, "machineType"))),
                ("topology.kubernetes.io/zone", &zone),
                ("topology.kubernetes.io/region", REGION),
            ]),
            node: name,
        }
    }
}

impl std::ops::Deref for GceCloud {
    type Target = GceServer;

    fn deref(&self) -> &GceServer {
        &self.server
    }
}

#[async_trait]
impl TestRoutes for GceCloud {
    /// Routes belong to a network, which has no further table.
    async fn create_table(&self) -> Result<String> {
        Ok(String::new())
    }

    /// Whether an instance forwards packets is decided when it is created, so that it does not change.
    async fn reset(&self, routes: &[(&str, &Machine)], _: &[Machine], _: (&str, &Machine)) -> Result<()> {
        for path in self.server.objects(&["routes"]).await?.keys() {
            self.server.remove(path).await?;
        }
        for (at, (destination, machine)) in routes.iter().enumerate() {
            let is_ours = destination.starts_with(POD_NETWORKS);
            let prefix = if is_ours { ROUTE_PREFIX } else { "foreign" };
            let route = json!({
                "name": format!("{prefix}-{at}"),
                "description": if is_ours { ROUTE_DESCRIPTION } else { "" },
                "destRange": destination,
                "network": "global/networks/default",
                "nextHopInstance": machine.id,
                "priority": 1000,
            });
            self.server.call(Method::POST, "global/routes", Some(&route)).await?;
        }
        Ok(())
    }

    async fn table(&self) -> Result<BTreeSet<(String, String)>> {
        let routes = self.server.objects(&["routes"]).await?;
        let target = |route: &Value| path_of(&text(route, "nextHopInstance")).to_owned();
        Ok(routes.values().map(|route| (text(route, "destRange"), target(route))).collect())
    }

    async fn drops(&self, machine: &Machine, _: &str) -> Result<Option<String>> {
        let (_, path) = machine.id.split_once("/zones/").context("not an instance")?;
        let instance = self.server.call(Method::GET, &format!("zones/{path}"), None).await?;
        Ok((instance["canIpForward"] != true).then(|| "the instance does not forward packets".to_owned()))
    }

    async fn changed(&self, _: &Machine) -> Result<Option<String>> {
        Ok(None)
    }
}

#[async_trait]
impl TestCloud for GceCloud {
    fn provider(&self) -> &'static str {
        "gce"
    }

    fn config(&self) -> String {
        format!(
            "[global]\nproject-id = {}\nlocal-zone = {}\nmultizone = true\nnetwork-name = default\n\
             subnetwork-name = default\nnode-tags = node\napi-endpoint = {}\nresource-manager-endpoint = http://{}\n",
            self.server.project(),
            ZONES[0],
            self.proxy.api_endpoint(),
            self.proxy.address(),
        )
    }

    fn environment(&self) -> Vec<(String, String)> {
        pairs(&[("GCE_METADATA_HOST", &self.proxy.metadata_host())])
    }

    fn secrets(&self) -> Vec<String> {
        vec![TOKEN.to_owned()]
    }

    fn party(&self) -> &dyn Party {
        &self.proxy
    }

    async fn create_machine(&self, name: &str) -> Result<Machine> {
        self.create_machines(&[name.to_owned()]).await?.pop().context("no instance")
    }

    async fn delete_machine(&self, machine: &Machine) -> Result<()> {
        self.server.remove(&machine.id).await
    }

    async fn picture(&self, words: &[(String, String)]) -> Result<Picture> {
        let mut words = words.to_vec();
        let mut lines = Vec::new();
        for (path, mut resource) in self.resources().await? {
            for address in ["IPAddress", "address"].map(|field| text(&resource, field)) {
                if !address.is_empty() {
                    words.push((address, "address".to_owned()));
                }
            }
            if let Some(fields) = resource.as_object_mut() {
                fields.retain(|field, _| !UNSTABLE.contains(&field.as_str()));
            }
            lines.push(format!("{path} {resource}"));
        }
        Ok(Picture::of_lines(lines, &words))
    }

    async fn clear(&self) -> Result<()> {
        for path in self.resources().await?.keys() {
            self.server.remove(path).await?;
        }
        Ok(())
    }

    /// The names of all resources are unique, so that the service refuses duplicates.
    fn created(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let rules = self.server.objects(&["forwardingRules"]).await?;
        let rules: Vec<_> = rules.values().collect();
        let [rule] = rules.as_slice() else {
            return Ok(Some(format!("{} forwarding rules", rules.len())));
        };
        let expected = text(rule, "IPAddress");
        Ok(wrong_status(service, &expected))
    }

    /// The load balancers of Compute Engine have no settings that annotations change in place.
    fn service(&self) -> ServiceShape {
        ServiceShape {
            annotations: json!({}),
            changed: json!({"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}),
            has_affinity: true,
            internal: json!({"networking.gke.io/load-balancer-type": "Internal"}),
            shares_pool: true,
        }
    }

    fn roles(&self) -> &'static [&'static str] {
        &["gce/rbac.yaml"]
    }

    fn calls(&self) -> BTreeMap<String, u64> {
        self.proxy.call_counts()
    }

    fn is_write(&self, operation: &str) -> bool {
        operation.strip_prefix("compute ").is_some_and(is_gce_write)
    }

    fn set_latency(&self, latency: Duration) {
        self.proxy.add(Rule::new(Action::Delay(latency)));
    }

    async fn imitate_real_size(&self) -> Result<()> {
        self.server.set("options", &json!({"operation": 1.0, "instance_bytes": 20_000})).await
    }

    async fn load_balancers(&self) -> Result<LoadBalancers> {
        let resources = self.resources().await?;
        let mut found = LoadBalancers::default();
        for (path, resource) in &resources {
            if path.contains("/forwardingRules/") {
                found.names.insert(text(resource, "name"));
            } else if path.contains("/targetPools/") {
                let nodes = links(resource, "instances").map(name_of).collect();
                found.pools.insert(text(resource, "name"), nodes);
            } else if path.contains("/backendServices/") {
                let backends = resource.get("backends").and_then(Value::as_array);
                let groups = backends.into_iter().flatten().map(|backend| text(backend, "group"));
                let groups = groups.filter_map(|link| resources.get(path_of(&link)));
                let nodes = groups.flat_map(|group| links(group, "instances").map(name_of)).collect();
                found.pools.insert(text(resource, "name"), nodes);
            }
        }
        Ok(found)
    }

    fn routes(&self) -> Option<&dyn TestRoutes> {
        Some(self)
    }
}
