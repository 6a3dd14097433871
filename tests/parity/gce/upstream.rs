//! The writes of the upstream program after a rollback to it, by the rules of its comparison on every pass.
//!
//! Each pass of upstream also creates and deletes an address for every load balancer, whatever it finds. Those two writes are not
//! listed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    cases::{items, text},
    site::Host,
};

const API: &str = "<api>/projects/parity";
const REGION: &str = "regions/us-central1";
/// The sources of health checks.
const PROBES: [&str; 4] = [
    "130.211.0.0/22",
    "35.191.0.0/16",
    "209.85.152.0/22",
    "209.85.204.0/22",
];
/// Port of the health checks, unless they check a port of the Service.
const KUBE_PROXY: u64 = 10256;
/// Names of the two kinds of shared health checks.
const SHARED_CHECK: &str = "k8s-<cid>-node";
/// The end of the name of shared backend services without session affinity.
const NO_AFFINITY: &str = "6eef6648406c333a";
/// The longest list of ports of an internal forwarding rule.
const MOST_PORTS: usize = 5;

/// The label with the zone of a node.
const ZONE: &str = "topology.kubernetes.io/zone";
const TIER: &str = "cloud.google.com/network-tier";
const INTERNAL: [&str; 2] = [
    "networking.gke.io/load-balancer-type",
    "cloud.google.com/load-balancer-type",
];
const BACKEND_SERVICE_OPT_IN: &str = "cloud.google.com/l4-rbs";
const LEGACY_EXTERNAL: &str = "networking.gke.io/l4-regional-external-legacy";
const LEGACY_INTERNAL: &str = "networking.gke.io/l4-regional-internal-legacy";
const GLOBAL_ACCESS: &str = "networking.gke.io/internal-load-balancer-allow-global-access";
const SUBNET: &str = "networking.gke.io/internal-load-balancer-subnet";
const SHARE: [&str; 2] = [
    "alpha.cloud.google.com/load-balancer-backend-share",
    "cloud.google.com/load-balancer-backend-share",
];
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// A Service as upstream reads it, and the objects of the cloud.
struct Pass<'a> {
    name: &'a str,
    spec: &'a Value,
    annotations: &'a Value,
    cloud: &'a Value,
    /// The nodes by zone.
    nodes: &'a BTreeMap<String, Vec<String>>,
    /// The tags of firewalls.
    tags: BTreeSet<String>,
    writes: Vec<String>,
}

/// The writes of upstream for all Services. `got`: the result of [`crate::play::Play::observe`].
pub(super) fn writes(got: &Value, hosts: &[Host], config: &Value) -> Vec<String> {
    let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for host in hosts.iter().filter(|host| !host.excluded) {
        if let Some(zone) = host.labels.get(ZONE) {
            nodes.entry(zone.clone()).or_default().push(host.name.clone());
        }
    }
    let tags: BTreeSet<_> = items(&config["node-tags"]).iter().map(text).collect();
    let mut writes = Vec::new();
    for (name, service) in got["specs"].as_object().into_iter().flatten() {
        let mut pass = Pass {
            name,
            spec: &service["spec"],
            annotations: &service["metadata"]["annotations"],
            cloud: &got["cloud"],
            nodes: &nodes,
            tags: if tags.is_empty() {
                ["node".to_owned()].into()
            } else {
                tags.clone()
            },
            writes: Vec::new(),
        };
        if !service["metadata"]["deletionTimestamp"].is_null() || !pass.is_served() {
            continue;
        }
        if pass.is_internal() {
            pass.internal();
        } else {
            pass.external();
        }
        writes.extend(pass.writes.into_iter().map(|write| format!("{name}: {write}")));
    }
    writes
}

fn strings(value: &Value) -> BTreeSet<String> {
    items(value).iter().map(text).collect()
}

/// The number of a field, where a text is the name of a number.
fn number(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Sorted ports, of which consecutive ones are ranges.
fn folded(ports: &BTreeSet<u64>) -> BTreeSet<String> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *port => *last = *port,
            _ => ranges.push((*port, *port)),
        }
    }
    let range = |(first, last): (u64, u64)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    ranges.into_iter().map(range).collect()
}

/// The end of a link, from `zones/`.
fn in_zone(link: &str) -> String {
    link.find("zones/").map_or(link, |at| &link[at..]).to_owned()
}

impl Pass<'_> {
    fn annotation(&self, keys: &[&str]) -> String {
        let found = keys.iter().find(|key| !self.annotations[**key].is_null());
        found.map(|key| text(&self.annotations[*key])).unwrap_or_default()
    }

    fn is_internal(&self) -> bool {
        match self.spec["loadBalancerClass"].as_str() {
            Some(class) => class == LEGACY_INTERNAL,
            None => self.annotation(&INTERNAL).eq_ignore_ascii_case("internal"),
        }
    }

    /// Whether upstream serves the Service. It refuses values that are invalid, and leaves Services of others alone.
    fn is_served(&self) -> bool {
        let class = self.spec["loadBalancerClass"].as_str();
        let is_ours = class.is_none_or(|class| [LEGACY_EXTERNAL, LEGACY_INTERNAL].contains(&class))
            && self.annotation(&[BACKEND_SERVICE_OPT_IN]) != "enabled";
        let protocols: BTreeSet<_> =
            items(&self.spec["ports"]).iter().map(|port| text(&port["protocol"])).collect();
        let tier = self.annotation(&[TIER]);
        let requested = text(&self.spec["loadBalancerIP"]);
        let is_known = requested.is_empty() || requested.starts_with('<');
        let has_tier = !requested.starts_with("<static-standard") || tier == "Standard";
        is_ours
            && protocols.len() == 1
            && ["", "Standard", "Premium"].contains(&tier.as_str())
            && is_known
            && has_tier
    }

    fn is_local(&self) -> bool {
        self.spec["externalTrafficPolicy"] == "Local"
    }

    /// The name of the load balancer.
    fn balancer(&self) -> String {
        format!("<lb:{}>", self.name)
    }

    fn service_description(&self) -> String {
        format!(r#"{{"kubernetes.io/service-name":"default/{}"}}"#, self.name)
    }

    fn firewall_description(&self, ip: &str) -> String {
        let service = format!("default/{}", self.name);
        format!(r#"{{"kubernetes.io/service-name":"{service}", "kubernetes.io/service-ip":"{ip}"}}"#)
    }

    fn protocol(&self) -> String {
        text(&self.spec["ports"][0]["protocol"])
    }

    fn ports(&self) -> BTreeSet<u64> {
        items(&self.spec["ports"]).iter().filter_map(|port| port["port"].as_u64()).collect()
    }

    fn affinity(&self) -> &'static str {
        if self.spec["sessionAffinity"] == "ClientIP" {
            "CLIENT_IP"
        } else {
            "NONE"
        }
    }

    fn source_ranges(&self) -> BTreeSet<String> {
        let ranges = strings(&self.spec["loadBalancerSourceRanges"]);
        if !ranges.is_empty() {
            return ranges;
        }
        let listed = self.annotation(&[SOURCE_RANGES]);
        if listed.is_empty() {
            return ["0.0.0.0/0".to_owned()].into();
        }
        listed.split(',').map(|range| range.trim().to_owned()).collect()
    }

    fn object(&self, kind: &str, name: &str) -> Option<Value> {
        items(&self.cloud[kind]).iter().find(|object| object["name"] == name).cloned()
    }

    /// Records a write, unless the values are equal.
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: &T, expected: &T) {
        if found != expected {
            self.writes.push(format!("{what}: {found:?} becomes {expected:?}"));
        }
    }

    /// Compares a firewall.
    fn firewall(&mut self, expected: &Firewall) {
        let name = &expected.name;
        let Some(found) = self.object("firewalls", name) else {
            self.writes.push(format!("create the firewall {name}"));
            return;
        };
        let what = |field: &str| format!("update {field} of the firewall {name}");
        self.compare(&what("description"), &text(&found["description"]), &expected.description);
        let allowed = items(&found["allowed"]);
        self.compare(&what("the number of protocols"), &allowed.len(), &1);
        let allowed = allowed.first().cloned().unwrap_or_default();
        let protocol = text(&allowed["IPProtocol"]);
        if !expected.protocols.contains(&protocol) {
            self.writes.push(format!("{}: {protocol}", what("protocol")));
        }
        let ports = strings(&allowed["ports"]);
        if !expected.ports.contains(&ports) {
            self.writes.push(format!("{}: {ports:?}", what("ports")));
        }
        self.compare(&what("sources"), &strings(&found["sourceRanges"]), &expected.sources);
        if let Some(destination) = &expected.destination {
            let expected: BTreeSet<_> = [destination.clone()].into();
            self.compare(&what("destinations"), &strings(&found["destinationRanges"]), &expected);
        }
        if expected.has_tags {
            let tags = self.tags.clone();
            self.compare(&what("tags"), &strings(&found["targetTags"]), &tags);
        }
        self.compare(&what("priority"), &found["priority"], &json!(1000));
    }

    /// The firewall of the clients.
    fn traffic(&mut self, ip: &str) {
        let (ports, plain) = (self.ports(), self.ports());
        // For external load balancers, upstream accepts either protocol, and keeps that of the firewall after a change of the Service.
        let protocols = if self.is_internal() {
            vec![self.protocol().to_lowercase()]
        } else {
            vec!["tcp".to_owned(), "udp".to_owned()]
        };
        self.firewall(&Firewall {
            name: format!("k8s-fw-{}", self.balancer()),
            description: self.firewall_description(ip),
            protocols,
            ports: vec![folded(&ports), plain.iter().map(u64::to_string).collect()],
            sources: self.source_ranges(),
            destination: Some(ip.to_owned()),
            has_tags: self.is_internal(),
        });
    }

    /// Compares a health check. Numbers that are larger than upstream's are kept.
    fn health_check(&mut self, kind: &str, details: &str, expected: &HealthCheck) {
        let name = &expected.name;
        let Some(found) = self.object(kind, name) else {
            self.writes.push(format!("create the health check {name}"));
            return;
        };
        let what = |field: &str| format!("update {field} of the health check {name}");
        self.compare(&what("description"), &text(&found["description"]), &expected.description);
        let request = if details.is_empty() {
            &found
        } else {
            &found[details]
        };
        self.compare(&what("port"), &number(&request["port"]), &expected.port);
        self.compare(&what("path"), &text(&request["requestPath"]), &"/healthz".to_owned());
        for (field, least) in [
            ("checkIntervalSec", 8),
            ("timeoutSec", 1),
            ("healthyThreshold", 1),
            ("unhealthyThreshold", 3),
        ] {
            if found[field].as_u64().is_some_and(|value| value < least) {
                self.writes.push(what(field));
            }
        }
    }

    fn external(&mut self) {
        let balancer = self.balancer();
        let ports = self.ports();
        let range = format!(
            "{}-{}",
            ports.first().copied().unwrap_or_default(),
            ports.last().copied().unwrap_or_default()
        );
        let Some(rule) = self.object("forwardingRules", &balancer) else {
            self.writes.push("create the forwarding rule".to_owned());
            return;
        };
        let ip = text(&rule["IPAddress"]);
        let requested = text(&self.spec["loadBalancerIP"]);
        if !requested.is_empty() {
            self.compare("replace the forwarding rule, address", &ip, &requested);
        }
        self.compare(
            "replace the forwarding rule, scheme",
            &text(&rule["loadBalancingScheme"]),
            &"EXTERNAL".to_owned(),
        );
        self.compare("replace the forwarding rule, ports", &text(&rule["portRange"]), &range);
        self.compare("replace the forwarding rule, protocol", &text(&rule["IPProtocol"]), &self.protocol());
        let tier = self.annotation(&[TIER]).to_uppercase();
        if !tier.is_empty() {
            self.compare("replace the forwarding rule, tier", &text(&rule["networkTier"]), &tier);
        }
        self.traffic(&ip);

        let check = if self.is_local() {
            balancer.clone()
        } else {
            SHARED_CHECK.to_owned()
        };
        let port = if self.is_local() {
            number(&self.spec["healthCheckNodePort"])
        } else {
            KUBE_PROXY.to_string()
        };
        self.health_check(
            "httpHealthChecks",
            "",
            &HealthCheck {
                description: format!(r#"{{"kubernetes.io/service-name":"{check}"}}"#),
                name: check.clone(),
                port: port.clone(),
            },
        );
        let description = if self.is_local() {
            self.firewall_description(&ip)
        } else {
            r#"{"kubernetes.io/cluster-id":"<cid>"}"#.to_owned()
        };
        // Upstream does not compare the destinations of this firewall.
        self.firewall(&Firewall {
            name: if self.is_local() {
                format!("k8s-{balancer}-http-hc")
            } else {
                format!("{check}-http-hc")
            },
            description,
            protocols: vec!["tcp".to_owned()],
            ports: vec![[port].into()],
            sources: PROBES.map(str::to_owned).into(),
            destination: None,
            has_tags: false,
        });
        let Some(pool) = self.object("targetPools", &balancer) else {
            self.writes.push("create the target pool".to_owned());
            return;
        };
        self.compare(
            "replace the target pool, affinity",
            &text(&pool["sessionAffinity"]),
            &self.affinity().to_owned(),
        );
        let links: BTreeSet<_> = strings(&pool["instances"]).iter().map(|link| in_zone(link)).collect();
        let members = self.members().into_values().flatten().collect();
        self.compare("update the members of the target pool", &links, &members);
    }

    /// The instances of the nodes, from `zones/`, by zone.
    fn members(&self) -> BTreeMap<String, BTreeSet<String>> {
        let member = |zone: &str, node: &String| format!("zones/{zone}/instances/{node}");
        self.nodes
            .iter()
            .map(|(zone, nodes)| (zone.clone(), nodes.iter().map(|node| member(zone, node)).collect()))
            .collect()
    }

    fn internal(&mut self) {
        let balancer = self.balancer();
        let mut groups = BTreeSet::new();
        for (zone, members) in self.members() {
            let name = format!("zones/{zone}/k8s-ig--<cid>");
            groups.insert(format!("{API}/zones/{zone}/instanceGroups/k8s-ig--<cid>"));
            let Some(group) = self.object("instanceGroups", &name) else {
                self.writes.push(format!("create the instance group {name}"));
                continue;
            };
            let links: BTreeSet<_> = strings(&group["instances"]).iter().map(|link| in_zone(link)).collect();
            self.compare(&format!("update the members of {name}"), &links, &members);
        }
        let check = if self.is_local() {
            balancer.clone()
        } else {
            SHARED_CHECK.to_owned()
        };
        let port = if self.is_local() {
            number(&self.spec["healthCheckNodePort"])
        } else {
            KUBE_PROXY.to_string()
        };
        let description = if self.is_local() {
            self.service_description()
        } else {
            String::new()
        };
        self.health_check(
            "healthChecks",
            "httpHealthCheck",
            &HealthCheck {
                name: check.clone(),
                description,
                port: port.clone(),
            },
        );
        self.firewall(&Firewall {
            name: format!("{check}-hc"),
            description: String::new(),
            protocols: vec!["tcp".to_owned()],
            ports: vec![[port].into()],
            sources: PROBES.map(str::to_owned).into(),
            destination: None,
            has_tags: true,
        });
        let is_shared = self.annotation(&SHARE) == "true" && !self.is_local();
        let name = if is_shared {
            format!("k8s-<cid>-internal-{}-nmv1-{NO_AFFINITY}", self.protocol().to_lowercase())
        } else {
            balancer.clone()
        };
        self.backend_service(&name, is_shared, &check, &groups);
        self.internal_rule(&format!("{API}/{REGION}/backendServices/{name}"));
    }

    fn backend_service(&mut self, name: &str, is_shared: bool, check: &str, groups: &BTreeSet<String>) {
        let Some(found) = self.object("backendServices", name) else {
            self.writes.push(format!("create the backend service {name}"));
            return;
        };
        let description = if is_shared {
            String::new()
        } else {
            self.service_description()
        };
        let links = items(&found["backends"]).iter().map(|backend| text(&backend["group"])).collect();
        let what = |field: &str| format!("update {field} of the backend service");
        self.compare(&what("protocol"), &text(&found["protocol"]), &self.protocol());
        self.compare(&what("description"), &text(&found["description"]), &description);
        self.compare(&what("affinity"), &text(&found["sessionAffinity"]), &self.affinity().to_owned());
        self.compare(&what("scheme"), &text(&found["loadBalancingScheme"]), &"INTERNAL".to_owned());
        let checks: BTreeSet<_> = [format!("{API}/global/healthChecks/{check}")].into();
        self.compare(&what("health checks"), &strings(&found["healthChecks"]), &checks);
        self.compare(&what("groups"), &links, groups);
    }

    fn internal_rule(&mut self, backend_service: &str) {
        let Some(rule) = self.object("forwardingRules", &self.balancer()) else {
            self.writes.push("create the forwarding rule".to_owned());
            return;
        };
        let ip = text(&rule["IPAddress"]);
        let requested = text(&self.spec["loadBalancerIP"]);
        let what = |field: &str| format!("replace the forwarding rule, {field}");
        if !requested.is_empty() {
            self.compare(&what("address"), &ip, &requested);
        }
        let subnet = match self.annotation(&[SUBNET]).as_str() {
            "" => "default".to_owned(),
            subnet => subnet.to_owned(),
        };
        let ports: BTreeSet<_> = self.ports().iter().map(u64::to_string).collect();
        let is_all = ports.len() > MOST_PORTS;
        self.compare(&what("scheme"), &text(&rule["loadBalancingScheme"]), &"INTERNAL".to_owned());
        self.compare(&what("protocol"), &text(&rule["IPProtocol"]), &self.protocol());
        self.compare(&what("all ports"), &(rule["allPorts"] == true), &is_all);
        if !is_all {
            self.compare(&what("ports"), &strings(&rule["ports"]), &ports);
        }
        self.compare(&what("backend service"), &text(&rule["backendService"]), &backend_service.to_owned());
        let is_global = self.annotation(&[GLOBAL_ACCESS]) == "true";
        self.compare(&what("global access"), &(rule["allowGlobalAccess"] == true), &is_global);
        let subnetwork = format!("{API}/{REGION}/subnetworks/{subnet}");
        self.compare(&what("subnetwork"), &text(&rule["subnetwork"]), &subnetwork);
        self.traffic(&ip);
    }
}

/// A firewall as upstream compares it.
struct Firewall {
    name: String,
    description: String,
    /// Each of these is accepted.
    protocols: Vec<String>,
    /// Each of these lists is accepted.
    ports: Vec<BTreeSet<String>>,
    sources: BTreeSet<String>,
    /// None: upstream does not compare destinations.
    destination: Option<String>,
    /// Whether upstream compares tags.
    has_tags: bool,
}

/// A health check as upstream compares it.
struct HealthCheck {
    name: String,
    description: String,
    port: String,
}

#[cfg(test)]
mod tests;
