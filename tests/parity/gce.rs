//! A project of Compute Engine in memory, as the recorder creates it.

mod rebuild;
mod upstream;

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::{Context as _, Result};
use ccm_testbed::{
    gce::{GceOptions, GceServer, REGION},
    nodes::NodeSpec,
    proxy::{CloudProxy, GceDialect, is_gce_write},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use regex::Regex;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    cases::{items, text},
    names::balancer_name,
    play::CLUSTER,
    site::{Call, Host, Names, PresentNames, Site},
};

/// The project of the recordings.
const PROJECT: &str = "parity";
/// Instances with the last letter of their zone, of which the first three are nodes of the cluster.
const INSTANCES: [(&str, &str); 4] = [("node-1", "a"), ("node-2", "b"), ("node-3", "c"), ("node-4", "a")];
/// Reserved addresses, and the fields of each.
const STATIC: [(&str, &str, &str); 4] = [
    ("static-premium", "networkTier", "PREMIUM"),
    ("static-premium-2", "networkTier", "PREMIUM"),
    ("static-standard", "networkTier", "STANDARD"),
    ("static-internal", "addressType", "INTERNAL"),
];
/// The kinds of the recordings. Users come before the resources that they use.
const KINDS: [&str; 9] = [
    "forwardingRules",
    "targetPools",
    "backendServices",
    "httpHealthChecks",
    "healthChecks",
    "instanceGroups",
    "firewalls",
    "addresses",
    "routes",
];
/// Fields that the recordings do not have.
const LEFT_OUT: [&str; 8] = [
    "id",
    "selfLink",
    "creationTimestamp",
    "fingerprint",
    "labelFingerprint",
    "kind",
    "region",
    "zone",
];
/// The start of links in answers.
const LINK: &str = "https://www.googleapis.com/compute/v1/";
/// The cluster ID in the names of resources that Services share. The recordings have another one.
const CLUSTER_ID: &str = "0123456789abcdef";
/// The firewall rule for the shared health check of external load balancers.
const SHARED_FIREWALL: &str = "k8s-0123456789abcdef-node-http-hc";
/// The description of upstream's routes.
const ROUTE_DESCRIPTION: &str = "k8s-node-route";

pub(crate) struct GceSite {
    server: GceServer,
    proxy: CloudProxy<GceDialect>,
    /// The reserved addresses, by name.
    reserved: BTreeMap<String, String>,
    /// Names of addresses of forwarding rules. An address keeps its name after the deletion of its rule.
    addresses: Mutex<BTreeMap<String, String>>,
}

/// The zone of an instance of the recordings.
fn zone(letter: &str) -> String {
    format!("{REGION}-{letter}")
}

/// The network of a node's Pods.
fn pod_cidr(number: usize) -> String {
    format!("10.200.{number}.0/24")
}

impl GceSite {
    /// A new project with four instances, of which three are nodes, and four reserved addresses.
    pub(crate) async fn start() -> Result<Self> {
        let options = GceOptions {
            projects: vec![PROJECT.to_owned()],
            ..GceOptions::default()
        };
        let server = GceServer::start(&options).await?;
        for (name, letter) in INSTANCES {
            let number = name.rsplit('-').next().unwrap_or_default();
            let access = json!([{"natIP": format!("34.9.0.{number}")}]);
            let instance = json!({
                "name": name,
                "tags": {"items": ["node", "no"]},
                "canIpForward": true,
                "machineType": "e2-standard-4",
                "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": access}],
            });
            let path = format!("zones/{}/instances", zone(letter));
            server.call(Method::POST, &path, Some(&instance)).await?;
        }
        let mut reserved = BTreeMap::new();
        for (name, field, value) in STATIC {
            let path = format!("regions/{REGION}/addresses");
            server.call(Method::POST, &path, Some(&json!({"name": name, field: value}))).await?;
            let address = server.call(Method::GET, &format!("{path}/{name}"), None).await?;
            reserved.insert(name.to_owned(), text(&address["address"]));
        }
        Ok(Self {
            proxy: CloudProxy::<GceDialect>::start(&server.url()).await?,
            server,
            reserved,
            addresses: Mutex::default(),
        })
    }

    /// Upstream's comparison of routes: it lists those with the cluster's prefix and its description, creates a route for each Pod
    /// network without one, and deletes routes of the cluster's networks without a node.
    fn routes_of_upstream(&self, got: &Value) -> Vec<String> {
        let routes = items(&got["cloud"]["routes"]);
        // Without routes, the controller does not run.
        if routes.is_empty() {
            return Vec::new();
        }
        let prefix = format!("{CLUSTER}-");
        let mut existing = BTreeMap::new();
        for route in routes {
            if text(&route["name"]).starts_with(&prefix) && route["description"] == ROUTE_DESCRIPTION {
                let hop = text(&route["nextHopInstance"]);
                let node = hop.rsplit('/').next().unwrap_or_default();
                existing.insert(text(&route["destRange"]), node.to_owned());
            }
        }
        let mut writes = Vec::new();
        for node in self.nodes() {
            for network in &node.pod_cidrs {
                if existing.remove(network).as_ref() != Some(&node.name) {
                    writes.push(format!("create the route of {network} to {}", node.name));
                }
            }
        }
        let ours: ipnet::IpNet = match "10.200.0.0/16".parse() {
            Ok(network) => network,
            Err(error) => return vec![error.to_string()],
        };
        for network in existing.keys() {
            let address = network.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
            if address.is_some_and(|address| ours.contains(&address)) {
                writes.push(format!("delete the route of {network}"));
            }
        }
        writes
    }

    /// The resources of the recorded kinds, except for those that exist before a case. A reserved address is part of a case while
    /// it is used.
    async fn resources(&self) -> Result<BTreeMap<String, Value>> {
        let mut resources = self.server.objects(&KINDS).await?;
        resources.retain(|_, resource| {
            let is_reserved = resource["kind"] == "compute#address"
                && self.reserved.contains_key(resource["name"].as_str().unwrap_or_default());
            !is_reserved || resource["users"].is_array()
        });
        Ok(resources)
    }

    /// Gives names to the addresses of new forwarding rules: `<ip:web>`, then `<ip:web:2>`.
    fn name_addresses(&self, uids: &BTreeMap<String, String>, resources: &BTreeMap<String, Value>) {
        let mut names = self.addresses.lock();
        for (service, uid) in uids {
            let balancer = balancer_name(uid);
            for resource in resources.values() {
                let address = text(&resource["IPAddress"]);
                let is_known =
                    names.contains_key(&address) || self.reserved.values().any(|ip| *ip == address);
                if resource["name"] != balancer.as_str() || address.is_empty() || is_known {
                    continue;
                }
                let prefix = format!("<ip:{service}");
                let earlier = names.values().filter(|name| name.starts_with(&prefix)).count();
                let name = match earlier {
                    0 => format!("{prefix}>"),
                    _ => format!("{prefix}:{}>", earlier + 1),
                };
                names.insert(address, name);
            }
        }
    }
}

/// A resource as the recordings have it.
fn recorded(path: &str, resource: &Value) -> Value {
    let mut fields = resource.as_object().cloned().unwrap_or_default();
    fields.retain(|field, _| !LEFT_OUT.contains(&field.as_str()));
    let place: Vec<_> = path.split('/').collect();
    // `projects/P/SCOPE../KIND/NAME`
    let scope = place.get(2..place.len().saturating_sub(2)).unwrap_or_default().join("/");
    if scope.starts_with("zones/") {
        let name = format!("{scope}/{}", text(&resource["name"]));
        fields.insert("name".to_owned(), json!(name));
    }
    fields.insert("scope".to_owned(), json!(scope));
    Value::Object(fields)
}

impl Site for GceSite {
    const CLOUD: &'static str = "gce";
    const NAMES_NODES_BY_UID: bool = true;
    type Moment = usize;

    /// Creates the ConfigMap with the cluster ID.
    async fn prepare(&self, client: &Client) -> Result<()> {
        let map = json!({
            "metadata": {"name": "ingress-uid"},
            "data": {"uid": CLUSTER_ID, "provider-uid": CLUSTER_ID},
        });
        let map: ConfigMap = serde_json::from_value(map)?;
        Api::namespaced(client.clone(), "kube-system")
            .create(&PostParams::default(), &map)
            .await?;
        Ok(())
    }

    fn nodes(&self) -> Vec<NodeSpec> {
        let nodes = INSTANCES.iter().take(3).enumerate();
        nodes
            .map(|(at, (name, letter))| NodeSpec {
                provider_id: Some(format!("gce://{PROJECT}/{}/{name}", zone(letter))),
                pod_cidrs: vec![pod_cidr(at + 1)],
                ..NodeSpec::new(*name)
            })
            .collect()
    }

    fn cloud_conf(&self, changes: &Value) -> String {
        let mut keys = json!({
            "project-id": PROJECT,
            "local-zone": zone("a"),
            "multizone": "true",
            "network-name": format!("{LINK}projects/{PROJECT}/global/networks/default"),
            "node-instance-prefix": "node",
            "api-endpoint": self.proxy.api_endpoint(),
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            keys[key] = value.clone();
        }
        let mut file = "[global]\n".to_owned();
        for (key, value) in keys.as_object().into_iter().flatten() {
            let values = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            for value in values {
                file += &format!("{key} = {}\n", text(&value));
            }
        }
        file
    }

    fn environment(&self) -> Vec<(String, String)> {
        vec![("GCE_METADATA_HOST".to_owned(), self.proxy.metadata_host())]
    }

    /// Upstream's default, which the recordings have: a removed route is created again at the next pass.
    fn flags(&self) -> Vec<String> {
        vec!["--route-reconciliation-period=10s".to_owned()]
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.reserved.get(&name.to_lowercase().replace('_', "-")).cloned()
    }

    fn mark(&self) -> Result<usize> {
        Ok(self.proxy.requests().len())
    }

    fn calls_since(&self, moment: &usize) -> Result<Vec<Call>> {
        let calls = self.proxy.requests().into_iter().skip(*moment);
        Ok(calls
            .filter(|request| request.resource == "compute")
            .map(|request| Call {
                text: format!("{request} {}", request.path),
                is_write: request.is_write() && is_gce_write(&request.name),
            })
            .collect())
    }

    async fn dump(&self, uids: &BTreeMap<String, String>) -> Result<(Value, Names)> {
        let resources = self.resources().await?;
        self.name_addresses(uids, &resources);
        let mut names = Names {
            addresses: self.addresses.lock().clone(),
            ..Names::default()
        };
        for (name, address) in &self.reserved {
            names.addresses.insert(address.clone(), format!("<{name}>"));
        }
        for (service, uid) in uids {
            names.ids.insert(balancer_name(uid), format!("<lb:{service}>"));
        }
        names.ids.insert(LINK.to_owned(), "<api>/".to_owned());
        names.ids.insert(CLUSTER_ID.to_owned(), "<cid>".to_owned());
        let mut objects: BTreeMap<&str, Vec<Value>> = KINDS.iter().map(|kind| (*kind, Vec::new())).collect();
        for (path, resource) in &resources {
            let kind = path.rsplit('/').nth(1).unwrap_or_default();
            let list = objects.get_mut(kind).with_context(|| format!("an unknown kind: {path}"))?;
            list.push(recorded(path, resource));
        }
        Ok((serde_json::to_value(objects)?, names))
    }

    async fn remove(&self, pattern: &str) -> Result<()> {
        let pattern = Regex::new(pattern)?;
        let resources = self.resources().await?;
        let found = resources.keys().find(|path| pattern.is_match(path));
        let path = found.with_context(|| format!("no object matches {pattern}"))?;
        self.server.remove(path).await
    }

    async fn clear(&self) -> Result<()> {
        self.addresses.lock().clear();
        for kind in KINDS {
            let resources = self.server.objects(&[kind]).await?;
            for (path, resource) in resources {
                if !self.reserved.contains_key(resource["name"].as_str().unwrap_or_default()) {
                    self.server.remove(&path).await?;
                }
            }
        }
        Ok(())
    }

    async fn rebuild(&self, phase: &Value, names: &mut PresentNames) -> Result<()> {
        rebuild::rebuild(self, phase, names).await
    }

    /// The firewall rule for the shared health check loses its destination, as `docs/migration.md` says.
    fn is_takeover_write(&self, call: &str) -> bool {
        call.contains("firewalls.update") && call.contains(SHARED_FIREWALL)
    }

    fn is_changed_by_takeover(&self, path: &str) -> bool {
        path.starts_with(&format!("cloud/firewalls[{SHARED_FIREWALL}]/destinationRanges"))
    }

    fn writes_of_upstream(&self, got: &Value, hosts: &[Host], config: &Value) -> Vec<String> {
        let mut writes = upstream::writes(got, hosts, config);
        writes.extend(self.routes_of_upstream(got));
        writes
    }
}
