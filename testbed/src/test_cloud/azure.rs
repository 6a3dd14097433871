//! An Azure subscription in memory as a test cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    DocumentsConfig, LoadBalancers, Machine, ServiceShape, TestCloud, TestRoutes, pairs, wrong_status,
};
use crate::arm::{ArmMachine, ArmServer, SECRET};
use crate::picture::Picture;
use crate::proxy::{Action, AzureDialect, CloudProxy, Rule, is_azure_write};
use crate::sweep::Party;

/// The kinds of machines, which new ones have in turn: an instance of a uniform and of a flexible scale set, and two machines of their
/// own. The fourth machine, which joins a cluster with a load balancer in the tests of every cloud, is no instance: Azure adds new
/// instances to the pools that their scale set names, without the program.
const KINDS: [&str; 4] = ["uniform", "flex", "standalone", "standalone"];
/// The size of all machines.
const SIZE: &str = "Standard_D2s_v3";
const REGION: &str = "eastus";
const ROUTE_TABLE: &str = "routeTables/routes";
/// The network of the cluster, in the config.
const NETWORK: &str = "securityGroupName: nsg\nvnetName: vnet\nsubnetName: nodes\n";
const ANNOTATIONS: &str = "service.beta.kubernetes.io/azure-";
/// The rule of the security group that is not the cluster's.
const RULE_OF_OTHERS: &str = "ssh";
/// The list of the pools of an IP configuration.
const POOLS: &str = "loadBalancerBackendAddressPools";
/// Fields that differ between runs. The priority of a rule depends on the rules before it.
const UNSTABLE: [&str; 4] = ["etag", "resourceGuid", "provisioningState", "priority"];
/// The duration of an operation of the real cloud, in seconds.
const OPERATION: f64 = 2.0;

/// The config that the documents require.
pub(super) const DOCUMENTS_CONFIG: DocumentsConfig = DocumentsConfig {
    file: "resourceManagerEndpoint: http://127.0.0.1:1/\ntenantId: none\nsubscriptionId: none\nresourceGroup: none\nlocation: none\n\
           aadClientId: none\naadClientSecret: none\nsecurityGroupName: none\nvnetName: none\nsubnetName: none\n",
    environment: &[],
};

/// A resource group with a network, a route table, and scale sets without instances.
#[derive(Debug)]
pub struct AzureCloud {
    server: ArmServer,
    /// The program's way to login and API.
    pub proxy: CloudProxy<AzureDialect>,
    /// The machines, of which the number chooses the kind of the next one.
    machines: Mutex<Vec<ArmMachine>>,
    /// The kind of all machines from now on, in place of [`KINDS`] in turn.
    chosen: Mutex<Option<ChosenMachines>>,
}

/// The kind of all machines.
#[derive(Clone, Copy, Debug)]
struct ChosenMachines {
    kind: &'static str,
    /// The number of scale sets, which get new machines in turn. 0: those of [`AzureCloud::start`].
    sets: usize,
}

fn text(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The elements of a list, which may be missing.
fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The type of a document below its provider, such as `loadBalancers`.
fn kind_of(document: &Value) -> &str {
    let kind = document.get("type").and_then(Value::as_str).unwrap_or_default();
    kind.split_once('/').map_or(kind, |(_, kind)| kind)
}

/// The value without what differs between runs, and with sorted lists.
fn stable(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(field, _)| !UNSTABLE.contains(&field.as_str()))
            .map(|(field, value)| (field.clone(), stable(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => {
            let mut list: Vec<_> = list.iter().map(stable).collect();
            list.sort_by_key(ToString::to_string);
            list.into()
        }
        _ => value.clone(),
    }
}

/// Adds the pools that an interface, an instance or the model of a scale set names.
fn collect_pools(value: &Value, pools: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for pool in list(value, POOLS) {
                pools.push(text(pool, "id"));
            }
            fields.values().for_each(|value| collect_pools(value, pools));
        }
        Value::Array(list) => list.iter().for_each(|value| collect_pools(value, pools)),
        _ => {}
    }
}

/// Removes them, and returns whether there were any.
fn leave_pools(value: &mut Value) -> bool {
    match value {
        Value::Object(fields) => {
            let named = fields
                .remove(POOLS)
                .is_some_and(|pools| pools.as_array().is_some_and(|all| !all.is_empty()));
            fields.values_mut().fold(named, |left, value| leave_pools(value) | left)
        }
        Value::Array(list) => list.iter_mut().fold(false, |left, value| leave_pools(value) | left),
        _ => false,
    }
}

impl AzureCloud {
    /// Starts a server with operations that end at once.
    ///
    /// # Errors
    /// When Python 3 is missing.
    pub async fn start() -> Result<Self> {
        let server = ArmServer::start(&[]).await?;
        let proxy = CloudProxy::<AzureDialect>::start(server.url()).await?;
        // Links in answers lead to the proxy, too.
        server.control::<Value>("settings", &json!({"base": proxy.url()})).await?;
        for (name, mode) in [("pool-a", "Uniform"), ("pool-f", "Flexible")] {
            server.control::<Value>("set", &json!({"name": name, "mode": mode})).await?;
        }
        Ok(Self {
            server,
            proxy,
            machines: Mutex::default(),
            chosen: Mutex::default(),
        })
    }

    /// All resources by their IDs in lower case.
    async fn documents(&self) -> Result<BTreeMap<String, Value>> {
        self.server.control_get("docs").await
    }

    /// The node whose machine has this IP configuration.
    fn node_of(&self, configuration: &str) -> String {
        let machines = self.machines.lock();
        let machine = machines.iter().find(|machine| {
            let name = machine.id.rsplit('/').next().unwrap_or_default();
            configuration.contains(&format!("{}/", machine.id))
                || configuration.contains(&format!("/networkInterfaces/{name}-nic/"))
        });
        machine.map_or_else(|| configuration.to_owned(), |machine| machine.name.clone())
    }

    /// The address of a machine to which routes lead.
    fn address(&self, id: &str) -> String {
        let machines = self.machines.lock();
        let machine = machines.iter().find(|machine| machine.id == id);
        machine.and_then(|machine| machine.ips.first().cloned()).unwrap_or_default()
    }
}

impl std::ops::Deref for AzureCloud {
    type Target = ArmServer;

    fn deref(&self) -> &ArmServer {
        &self.server
    }
}

#[async_trait]
impl TestRoutes for AzureCloud {
    /// The config always names the table, which exists.
    async fn create_table(&self) -> Result<String> {
        Ok(String::new())
    }

    /// Whether an interface forwards packets is decided by the operator, so that it does not change.
    async fn reset(&self, routes: &[(&str, &Machine)], _: &[Machine], _: (&str, &Machine)) -> Result<()> {
        let routes: Vec<_> = routes
            .iter()
            .map(|(destination, machine)| {
                let digits: String =
                    destination.chars().filter(|sign| !matches!(sign, '.' | ':' | '/')).collect();
                json!({"name": format!("{}____{digits}", machine.node), "properties": {
                    "addressPrefix": destination,
                    "nextHopType": "VirtualAppliance",
                    "nextHopIpAddress": self.address(&machine.id),
                }})
            })
            .collect();
        let table = json!({"location": REGION, "properties": {"routes": routes}});
        self.server.call(Method::PUT, &self.server.network_id(ROUTE_TABLE), Some(&table)).await?;
        Ok(())
    }

    async fn table(&self) -> Result<BTreeSet<(String, String)>> {
        let table = self.server.document(&self.server.network_id(ROUTE_TABLE)).await?;
        let machines = self.machines.lock();
        let routes = table["properties"]["routes"].as_array().into_iter().flatten();
        let routes = routes.map(|route| {
            let hop = text(&route["properties"], "nextHopIpAddress");
            let machine = machines.iter().find(|machine| machine.ips.contains(&hop));
            let target = machine.map_or(hop, |machine| machine.id.clone());
            (text(&route["properties"], "addressPrefix"), target)
        });
        Ok(routes.collect())
    }

    async fn drops(&self, _: &Machine, _: &str) -> Result<Option<String>> {
        Ok(None)
    }

    async fn changed(&self, _: &Machine) -> Result<Option<String>> {
        Ok(None)
    }
}

#[async_trait]
impl TestCloud for AzureCloud {
    fn provider(&self) -> &'static str {
        "azure"
    }

    fn config(&self) -> String {
        self.server.conf().replace(self.server.url(), &self.proxy.url()) + NETWORK
    }

    fn secrets(&self) -> Vec<String> {
        vec![SECRET.to_owned()]
    }

    fn party(&self) -> &dyn Party {
        &self.proxy
    }

    /// The name is chosen by Azure.
    async fn create_machine(&self, _: &str) -> Result<Machine> {
        let count = self.machines.lock().len();
        let chosen = *self.chosen.lock();
        let machine = match chosen {
            Some(ChosenMachines { kind, sets }) if sets > 0 => {
                let set = format!("pool-{:02}", count % sets + 1);
                if count < sets {
                    self.server.control::<Value>("set", &json!({"name": set, "mode": "Uniform"})).await?;
                }
                self.server.create(kind, &json!({"set": set})).await?
            }
            Some(ChosenMachines { kind, .. }) => self.server.create(kind, &json!({})).await?,
            None => self.server.create(KINDS[count % KINDS.len()], &json!({})).await?,
        };
        self.machines.lock().push(machine.clone());
        let mut addresses = pairs(&[("Hostname", &machine.name)]);
        addresses.extend(machine.ips.iter().map(|ip| ("InternalIP".to_owned(), ip.clone())));
        Ok(Machine {
            provider_id: format!("azure://{}", machine.id),
            addresses,
            labels: pairs(&[
                ("node.kubernetes.io/instance-type", SIZE),
                ("topology.kubernetes.io/zone", machine.zone.as_deref().unwrap_or_default()),
                ("topology.kubernetes.io/region", REGION),
            ]),
            node: machine.name,
            id: machine.id,
        })
    }

    fn choose_machines(&self, kind: &str) -> Result<()> {
        let (kind, sets) = kind.split_once(':').unwrap_or((kind, "0"));
        let known = KINDS.into_iter().find(|known| *known == kind);
        let known = known
            .with_context(|| format!("Azure has no machines {kind:?}, only {}", KINDS[..3].join(", ")))?;
        let sets = sets.parse().with_context(|| format!("{sets:?} is not a number of scale sets"))?;
        if sets > 0 && known != "uniform" {
            bail!("only uniform machines can be in several scale sets");
        }
        *self.chosen.lock() = Some(ChosenMachines { kind: known, sets });
        Ok(())
    }

    async fn delete_machine(&self, machine: &Machine) -> Result<()> {
        self.server.delete(&machine.id).await?;
        // The network interface of a machine goes with it, unless it was created to stay.
        let name = machine.id.rsplit('/').next().unwrap_or_default();
        self.server
            .delete(&self.server.network_id(&format!("networkInterfaces/{name}-nic")))
            .await
    }

    async fn picture(&self, words: &[(String, String)]) -> Result<Picture> {
        let mut words = words.to_vec();
        let mut lines = Vec::new();
        for (id, document) in self.documents().await? {
            let address = text(&document["properties"], "ipAddress");
            if !address.is_empty() {
                words.push((address, "address".to_owned()));
            }
            match kind_of(&document) {
                "loadBalancers" | "publicIPAddresses" => lines.push(format!("{id} {}", stable(&document))),
                "networkSecurityGroups" => {
                    let rules = list(&document["properties"], "securityRules");
                    let rules = rules.iter().filter(|rule| rule["name"] != RULE_OF_OTHERS);
                    lines.extend(rules.map(|rule| format!("rule {}", stable(rule))));
                }
                _ => {
                    let mut pools = Vec::new();
                    collect_pools(&document, &mut pools);
                    lines.extend(pools.iter().map(|pool| format!("{id} is in {pool}")));
                }
            }
        }
        Ok(Picture::of_lines(lines, &words))
    }

    async fn clear(&self) -> Result<()> {
        for (id, mut document) in self.documents().await? {
            let kind = kind_of(&document).to_owned();
            match kind.as_str() {
                "loadBalancers" | "publicIPAddresses" => self.server.delete(&id).await?,
                "networkSecurityGroups" => {
                    let mut rules = list(&document["properties"], "securityRules").to_vec();
                    rules.retain(|rule| rule["name"] == RULE_OF_OTHERS);
                    let merge = json!({"properties": {"securityRules": rules}});
                    self.server.patch(&id, &merge).await?;
                }
                _ if leave_pools(&mut document) => {
                    let place = json!({"id": text(&document, "id"), "body": document});
                    self.server.control::<Value>("put", &place).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The names of all resources are unique, so that the service updates an existing one.
    fn created(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let documents = self.documents().await?;
        let balancers = documents.values().filter(|document| kind_of(document) == "loadBalancers");
        let frontends: Vec<_> = balancers
            .flat_map(|balancer| list(&balancer["properties"], "frontendIPConfigurations"))
            .collect();
        let [frontend] = frontends.as_slice() else {
            return Ok(Some(format!("{} frontends", frontends.len())));
        };
        let properties = &frontend["properties"];
        let public = text(&properties["publicIPAddress"], "id").to_lowercase();
        let expected = match documents.get(&public) {
            Some(address) => text(&address["properties"], "ipAddress"),
            None => text(properties, "privateIPAddress"),
        };
        Ok(wrong_status(service, &expected))
    }

    fn service(&self) -> ServiceShape {
        ServiceShape {
            annotations: json!({}),
            changed: json!({format!("{ANNOTATIONS}load-balancer-tcp-idle-timeout"): "10"}),
            has_affinity: true,
            internal: json!({format!("{ANNOTATIONS}load-balancer-internal"): "true"}),
            shares_pool: true,
        }
    }

    fn calls(&self) -> BTreeMap<String, u64> {
        self.proxy.call_counts()
    }

    fn is_write(&self, operation: &str) -> bool {
        operation.strip_prefix("arm ").is_some_and(is_azure_write)
    }

    fn set_latency(&self, latency: Duration) {
        self.proxy.add(Rule::new(Action::Delay(latency)));
    }

    async fn imitate_real_size(&self) -> Result<()> {
        self.server.control::<Value>("settings", &json!({"lro": OPERATION})).await?;
        Ok(())
    }

    async fn load_balancers(&self) -> Result<LoadBalancers> {
        let mut found = LoadBalancers::default();
        let documents: BTreeMap<String, Value> = self.server.control_get("docs?type=loadBalancers").await?;
        for document in documents.values() {
            let (balancer, properties) = (text(document, "name"), &document["properties"]);
            found.unfinished |= properties["provisioningState"] != "Succeeded";
            for pool in list(properties, "backendAddressPools") {
                let members = list(&pool["properties"], "backendIPConfigurations");
                let addresses = list(&pool["properties"], "loadBalancerBackendAddresses");
                let nodes = if members.is_empty() {
                    addresses.iter().map(|address| text(address, "name")).collect()
                } else {
                    members.iter().map(|member| self.node_of(&text(member, "id"))).collect()
                };
                found.pools.insert(format!("{balancer}/{}", text(pool, "name")), nodes);
            }
            found.names.insert(balancer);
        }
        Ok(found)
    }

    fn routes(&self) -> Option<&dyn TestRoutes> {
        Some(self)
    }
}
