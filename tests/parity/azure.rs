//! An Azure subscription in memory, as the recorder creates it.

mod rebuild;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use ccm_testbed::{
    arm::{ArmServer, SECRET},
    nodes::NodeSpec,
    proxy::{AzureDialect, CloudProxy, is_azure_write},
};
use parking_lot::Mutex;
use regex::Regex;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    cases::{Case, items, text},
    names::balancer_name,
    site::{Call, Host, Names, PresentNames, Site},
};

/// The route table of the nodes' subnet.
const ROUTE_TABLE: &str = "routeTables/routes";
/// Between the node and its network in the name of a route of upstream.
const SEPARATOR: &str = "____";

/// The machines of a subscription.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Machines {
    /// Three instances of a uniform scale set.
    Uniform,
    /// Three instances of a flexible scale set.
    Flexible,
    /// Three machines without a scale set.
    Standalone,
    /// Three instances of a uniform scale set with addresses of both families.
    DualStack,
}

pub(crate) struct AzureSite {
    server: ArmServer,
    proxy: CloudProxy<AzureDialect>,
    machines: Machines,
    /// Values of the variables of the present case.
    variables: Mutex<BTreeMap<String, String>>,
    /// Names of addresses. An address keeps its name after the deletion of its resource.
    addresses: Mutex<BTreeMap<String, String>>,
}

impl Machines {
    /// The machines of a case.
    pub(crate) fn of(case: &Case) -> Self {
        if case.cluster["ipv6"] == true {
            Self::DualStack
        } else if case.cluster["flex"].is_u64() {
            Self::Flexible
        } else if case.cluster["standalone"].is_u64() {
            Self::Standalone
        } else {
            Self::Uniform
        }
    }

    /// The options of the server that create them.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Uniform => &["--uniform=3"],
            Self::Flexible => &["--flex=3"],
            Self::Standalone => &["--standalone=3"],
            Self::DualStack => &["--uniform=3", "--ipv6"],
        }
    }
}

/// Replaces the hash of node ports, which differ in each run, in the names of security rules.
fn hide_hashes(cloud: &mut Value) -> Result<()> {
    let hash = Regex::new("[0-9a-f]{32}")?;
    let rules = cloud["security_rules"].as_array_mut().context("the security rules")?;
    for rule in rules {
        let has_node_port = items(&rule["ports"])
            .iter()
            .any(|port| text(port).parse().is_ok_and(|port: u16| (30000..32768).contains(&port)));
        if has_node_port {
            rule["name"] = json!(hash.replace(&text(&rule["name"]), "<hash>"));
        }
    }
    Ok(())
}

/// The network of a node's Pods.
fn pod_cidr(at: usize) -> String {
    format!("10.244.{at}.0/24")
}

impl AzureSite {
    /// A new resource group with three machines, which are the nodes.
    pub(crate) async fn start(machines: Machines) -> Result<Self> {
        let server = ArmServer::start(machines.options()).await?;
        let proxy = CloudProxy::<AzureDialect>::start(server.url()).await?;
        // Links in answers lead to the proxy, too.
        server.control::<Value>("settings", &json!({"base": proxy.url()})).await?;
        Ok(Self {
            server,
            proxy,
            machines,
            variables: Mutex::default(),
            addresses: Mutex::default(),
        })
    }

    async fn put_routes(&self, routes: &[Value]) -> Result<()> {
        let table = json!({"location": "eastus", "properties": {"routes": routes}});
        self.server.call(Method::PUT, &self.server.network_id(ROUTE_TABLE), Some(&table)).await?;
        Ok(())
    }

    /// Upstream's comparison of routes: it takes the node from the name of a route, creates a route for each Pod network whose
    /// node has none, and deletes routes of the cluster's networks without a node. It does not compare next hops.
    fn routes_of_upstream(got: &Value) -> Vec<String> {
        let mut existing = BTreeSet::new();
        for route in items(&got["cloud"]["routes"]) {
            let name = text(&route["name"]);
            let node = name.split(SEPARATOR).next().unwrap_or_default().to_owned();
            existing.insert((text(&route["addressPrefix"]), node));
        }
        // Without routes, the controller does not run.
        if existing.is_empty() {
            return Vec::new();
        }
        let desired: BTreeSet<_> = (0..3).map(|at| (pod_cidr(at), format!("<node-{}>", at + 1))).collect();
        let missing = desired
            .difference(&existing)
            .map(|(network, node)| format!("create the route of {network} to {node}"));
        let surplus = existing
            .difference(&desired)
            .map(|(network, node)| format!("delete the route of {network} to {node}"));
        missing.chain(surplus).collect()
    }
}

impl Site for AzureSite {
    const CLOUD: &'static str = "azure";
    const SHARES_LOAD_BALANCERS: bool = true;
    type Moment = usize;

    fn nodes(&self) -> Vec<NodeSpec> {
        let machines = self.server.machines.iter().enumerate();
        machines
            .map(|(at, machine)| NodeSpec {
                provider_id: Some(format!("azure://{}", machine.id)),
                pod_cidrs: vec![pod_cidr(at)],
                labels: [("pool".to_owned(), if at < 2 { "a" } else { "b" }.to_owned())].into(),
                ..NodeSpec::new(&machine.name)
            })
            .collect()
    }

    fn cloud_conf(&self, changes: &Value) -> String {
        let mut conf = json!({
            "cloud": "AzurePublicCloud",
            "tenantId": self.server.tenant(),
            "subscriptionId": self.server.subscription(),
            "resourceManagerEndpoint": self.proxy.url(),
            "resourceGroup": "k8s",
            "location": "eastus",
            "vnetName": "vnet",
            "vnetResourceGroup": "k8s",
            "subnetName": "nodes",
            "securityGroupName": "nsg",
            "securityGroupResourceGroup": "k8s",
            "routeTableName": "routes",
            "loadBalancerSku": "standard",
            "aadClientId": "client",
            "aadClientSecret": SECRET,
        });
        let (kind, scale_set) = match self.machines {
            Machines::Uniform | Machines::DualStack => ("vmss", Some("pool-a")),
            Machines::Flexible => ("vmssflex", Some("pool-f")),
            Machines::Standalone => ("standard", None),
        };
        conf["vmType"] = json!(kind);
        if let Some(scale_set) = scale_set {
            conf["primaryScaleSetName"] = json!(scale_set);
        }
        for (key, value) in changes.as_object().into_iter().flatten() {
            conf[key] = value.clone();
        }
        conf.to_string()
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.lock().get(name).cloned()
    }

    async fn seed(&self, resources: &[Value]) -> Result<()> {
        let mut variables =
            BTreeMap::from([("PREFIX".to_owned(), self.server.network_id("publicIPPrefixes"))]);
        for resource in resources {
            let document: Value = self.server.control("seed", resource).await?;
            let name = text(&resource["name"]);
            if let Some(address) = document["properties"]["ipAddress"].as_str() {
                let variable = format!("IP_{}", name.to_uppercase().replace('-', "_"));
                variables.insert(variable, address.to_owned());
            }
        }
        *self.variables.lock() = variables;
        Ok(())
    }

    fn mark(&self) -> Result<usize> {
        Ok(self.proxy.requests().len())
    }

    fn calls_since(&self, moment: &usize) -> Result<Vec<Call>> {
        let calls = self.proxy.requests().into_iter().skip(*moment);
        Ok(calls
            .filter(|request| request.resource == "arm")
            .map(|request| Call {
                text: format!("{request} {}", request.path),
                is_write: is_azure_write(&request.name),
            })
            .collect())
    }

    async fn dump(&self, uids: &BTreeMap<String, String>) -> Result<(Value, Names)> {
        let machines: Vec<_> = self
            .server
            .machines
            .iter()
            .map(|machine| json!({"id": machine.id, "name": machine.name, "ips": machine.ips}))
            .collect();
        let found: Value = self.server.control("dump", &json!({"nodes": machines})).await?;
        let mut names = Names::default();
        for (service, uid) in uids {
            names.ids.insert(balancer_name(uid), format!("<base:{service}>"));
        }
        let mut addresses = self.addresses.lock();
        for (value, name) in found[1].as_object().context("the names of values")? {
            let mut name = text(name);
            if value.parse::<std::net::IpAddr>().is_err() {
                names.ids.insert(value.clone(), name);
                continue;
            }
            // The name of an address has the name of its resource.
            for (base, service) in &names.ids {
                name = name.replace(base, service);
            }
            addresses.insert(value.clone(), name);
        }
        names.addresses.clone_from(&addresses);
        let groups = format!("/subscriptions/{}/resourceGroups/", self.server.subscription());
        names.patterns = vec![
            (Regex::new(&format!("(?i){}", regex::escape(&groups)))?, "/"),
            (Regex::new(r"(?i)/providers/Microsoft\.(Network|Compute)/")?, "/"),
        ];
        let mut cloud = found[0].clone();
        hide_hashes(&mut cloud)?;
        Ok((cloud, names))
    }

    async fn clear(&self) -> Result<()> {
        self.addresses.lock().clear();
        self.server.control::<Value>("reset", &json!({})).await?;
        Ok(())
    }

    async fn rebuild(&self, phase: &Value, names: &mut PresentNames) -> Result<()> {
        rebuild::rebuild(self, phase, names).await
    }

    fn writes_of_upstream(&self, got: &Value, _: &[Host], _: &Value) -> Vec<String> {
        Self::routes_of_upstream(got)
    }
}
