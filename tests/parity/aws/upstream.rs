//! The writes of the upstream program after a rollback to it: its rules for an existing load balancer, applied to the observed
//! state. It keeps no state, so that its comparisons on every pass are complete. Two comparisons are left out, because they
//! differ forever, also for its own objects: the empty security policy of a TLS listener without one, and the path of HTTP
//! health checks.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    cases::{items, text},
    play::CLUSTER,
    site::Host,
};

const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
const ANYWHERE: &str = "0.0.0.0/0";

/// A Service of type LoadBalancer, with the values that upstream reads.
struct UpstreamService<'a> {
    name: &'a str,
    service: &'a Value,
}

/// One port of a network load balancer.
struct Port {
    /// `TCP:80`, the name of the listener in recordings.
    listener: String,
    node_port: String,
    /// The protocol of the target group.
    traffic: &'static str,
    is_udp: bool,
}

type Set = BTreeSet<String>;

fn set(list: &Value) -> Set {
    items(list).iter().map(text).collect()
}

impl UpstreamService<'_> {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.service["metadata"]["annotations"][format!("{PREFIX}{key}")].as_str()
    }

    fn is_true(&self, key: &str) -> bool {
        self.annotation(key) == Some("true")
    }

    fn is_internal(&self) -> bool {
        self.annotation("internal").is_some_and(|value| !["", "false"].contains(&value))
    }

    fn is_local(&self) -> bool {
        self.service["spec"]["externalTrafficPolicy"] == "Local"
    }

    fn number(&self, key: &str, otherwise: u64) -> Value {
        let given = self.annotation(key).and_then(|value| value.parse().ok());
        json!(given.unwrap_or(otherwise))
    }

    fn ports(&self) -> &[Value] {
        items(&self.service["spec"]["ports"])
    }

    fn ranges(&self) -> Set {
        let ranges = set(&self.service["spec"]["loadBalancerSourceRanges"]);
        match ranges.is_empty() {
            true => Set::from([ANYWHERE.to_owned()]),
            false => ranges,
        }
    }

    /// Whether a port has the certificate.
    fn is_secure(&self, port: &Value) -> bool {
        let chosen = self.annotation("ssl-ports").is_none_or(|ports| {
            let name = text(&port["name"]);
            let mut ports = ports.split(',');
            ports.any(|one| {
                one == "*"
                    || one.parse::<u64>().is_ok_and(|one| port["port"] == one)
                    || (one == name && !name.is_empty())
            })
        });
        chosen && port["protocol"] != "UDP" && self.annotation("ssl-cert").is_some()
    }

    fn network_ports(&self) -> Vec<Port> {
        let port = |port: &Value| {
            let (is_udp, secure) = (port["protocol"] == "UDP", self.is_secure(port));
            let protocol = match (is_udp, secure) {
                (true, _) => "UDP",
                (_, true) => "TLS",
                _ => "TCP",
            };
            let encrypts = secure && self.annotation("backend-protocol") == Some("ssl");
            Port {
                listener: format!("{protocol}:{}", port["port"]),
                node_port: text(&port["nodePort"]),
                traffic: match (is_udp, encrypts) {
                    (true, _) => "UDP",
                    (_, true) => "TLS",
                    _ => "TCP",
                },
                is_udp,
            }
        };
        self.ports().iter().map(port).collect()
    }

    /// Whether upstream reports an error before it writes anything.
    fn is_refused(&self) -> bool {
        let protocols: BTreeSet<_> = self.ports().iter().map(|port| port["protocol"].to_string()).collect();
        let is_bad = |key: &str| self.annotation(key).is_some_and(|value| value.parse::<u64>().is_err());
        protocols.len() > 1
            || self.service["spec"]["sessionAffinity"] == "ClientIP"
            || is_bad("healthcheck-interval")
    }

    /// The nodes behind the load balancer, as instances in recordings.
    fn targets(&self, hosts: &[Host]) -> Vec<String> {
        let desired = self.annotation("target-node-labels").unwrap_or_default();
        let has = |host: &Host| {
            let mut pairs = desired.split(',').filter_map(|pair| pair.split_once('='));
            pairs.all(|(key, value)| {
                let label = host.labels.get(key);
                label.is_some_and(|label| value.is_empty() || label == value)
            })
        };
        let hosts = hosts.iter().filter(|host| !host.excluded && has(host));
        hosts.map(|host| format!("<{}>", host.name)).collect()
    }
}

/// The writes, each in a few words. The list is empty if upstream changes nothing. `got` is the result of
/// [`crate::play::Play::observe`].
pub(super) fn writes(got: &Value, hosts: &[Host], config: &Value) -> Vec<String> {
    let mut all = Vec::new();
    let Some(specs) = got["specs"].as_object() else {
        return vec!["no Services were recorded".to_owned()];
    };
    for (name, service) in specs {
        let requested = UpstreamService { name, service };
        if service["spec"]["type"] != "LoadBalancer"
            || !service["metadata"]["deletionTimestamp"].is_null()
            || requested.is_refused()
        {
            continue;
        }
        let mut found = match requested.annotation("type") {
            Some("nlb") => network(got, &requested, hosts, config),
            _ => classic(got, &requested, hosts),
        };
        found.extend(service_writes(got, &requested));
        all.extend(found.into_iter().map(|write| format!("{name}: {write}")));
    }
    all
}

fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    items(list).iter().find(|one| one["name"] == name)
}

fn lb_name(requested: &UpstreamService<'_>) -> String {
    format!("<lbname:{}>", requested.name)
}

/// Rules of a group without their descriptions, which upstream does not compare.
fn tuples(group: Option<&Value>) -> Set {
    let rules = group.map(|group| set(&group["rules"])).unwrap_or_default();
    let tuple = |rule: &String| rule.rsplit_once(" (").map_or(rule.clone(), |(tuple, _)| tuple.to_owned());
    rules.iter().map(tuple).collect()
}

/// Rules of a front-end group: its ports, and ICMP for the path MTU, from the source ranges.
fn front_rules<'a>(requested: &UpstreamService<'_>, ports: impl Iterator<Item = &'a Value>) -> Set {
    let mut rules = Set::new();
    for port in ports {
        for range in requested.ranges() {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_lowercase();
            rules.insert(format!("{protocol} {0}-{0} from {range}", port["port"]));
            rules.insert(format!("icmp 3-4 from {range}"));
        }
    }
    rules
}

fn group_writes(got: &Value, name: &str, desired: &Set) -> Vec<String> {
    let Some(group) = named(&got["cloud"]["security_groups"], name) else {
        return vec![format!("create group {name}")];
    };
    let mut writes = Vec::new();
    if !set(&group["tags"]).contains(&format!("kubernetes.io/cluster/{CLUSTER}=owned")) {
        writes.push(format!("tag group {name}"));
    }
    let have = tuples(Some(group));
    writes.extend(desired.difference(&have).map(|rule| format!("authorize {rule}")));
    writes.extend(have.difference(desired).map(|rule| format!("revoke {rule}")));
    writes
}

fn network(got: &Value, requested: &UpstreamService<'_>, hosts: &[Host], config: &Value) -> Vec<String> {
    let cloud = &got["cloud"];
    let Some(lb) = named(&cloud["v2"], &lb_name(requested)) else {
        return vec!["create load balancer".to_owned()];
    };
    let mut writes = Vec::new();
    if lb["type"] != "network" {
        writes.push("nothing, but it fails: not a network load balancer".to_owned());
    }
    let groups = set(&lb["groups"]);
    if config["NLBSecurityGroupMode"] == "Managed" && !groups.is_empty() {
        let short: String = requested.name.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        let own = format!("k8s-default-{short}-<hash>");
        if groups != Set::from([format!("<sg:{own}>")]) {
            writes.push("set security groups".to_owned());
        }
        writes.extend(group_writes(got, &own, &front_rules(requested, requested.ports().iter())));
    }
    let ports = requested.network_ports();
    for port in &ports {
        writes.extend(listener_writes(cloud, lb, requested, port, hosts));
    }
    for listener in items(&lb["listeners"]) {
        let name = text(&listener["name"]);
        if !ports.iter().any(|port| port.listener == name) {
            writes.push(format!("delete listener {name}"));
        }
    }
    let logs = requested.is_true("access-log-enabled");
    let mut attributes = vec![
        (
            "load_balancing.cross_zone.enabled",
            requested.is_true("cross-zone-load-balancing-enabled").to_string(),
        ),
        ("access_logs.s3.enabled", logs.to_string()),
    ];
    if logs {
        let bucket = requested.annotation("access-log-s3-bucket-name").unwrap_or_default();
        let prefix = requested.annotation("access-log-s3-bucket-prefix").unwrap_or_default();
        attributes.push(("access_logs.s3.bucket", bucket.to_owned()));
        attributes.push(("access_logs.s3.prefix", prefix.to_owned()));
    }
    for (key, desired) in attributes {
        if lb["attributes"][key] != desired {
            writes.push(format!("change {key}"));
        }
    }
    writes.extend(node_group_writes(cloud, requested, lb, &ports));
    writes
}

/// Port, protocol, path, interval and healthy threshold of the health checks.
fn health_check(requested: &UpstreamService<'_>) -> [(&'static str, Value); 4] {
    let local = requested.is_local();
    let protocol = match requested.annotation("healthcheck-protocol") {
        Some(protocol) => protocol.to_uppercase(),
        None if local => "HTTP".to_owned(),
        None => "TCP".to_owned(),
    };
    let port = match requested.annotation("healthcheck-port") {
        Some(port) => json!(port),
        None if local => requested.service["spec"]["healthCheckNodePort"].clone(),
        None => json!("traffic-port"),
    };
    let (interval, threshold) = if local { (10, 2) } else { (30, 3) };
    [
        ("HealthCheckPort", port),
        ("HealthCheckProtocol", json!(protocol)),
        ("HealthCheckIntervalSeconds", requested.number("healthcheck-interval", interval)),
        ("HealthyThresholdCount", requested.number("healthcheck-healthy-threshold", threshold)),
    ]
}

fn listener_writes(
    cloud: &Value,
    lb: &Value,
    requested: &UpstreamService<'_>,
    port: &Port,
    hosts: &[Host],
) -> Vec<String> {
    let name = &port.listener;
    let Some(listener) = named(&lb["listeners"], name) else {
        return vec![format!("create listener {name}")];
    };
    let mut writes = Vec::new();
    if name.starts_with("TLS") {
        let policy = requested.annotation("ssl-negotiation-policy");
        let differs = policy.is_some_and(|policy| listener["policy"] != policy);
        if differs || listener["certificates"][0] != requested.annotation("ssl-cert").unwrap_or_default() {
            writes.push(format!("modify listener {name}"));
        }
    } else if !listener["policy"].is_null() || !items(&listener["certificates"]).is_empty() {
        writes.push(format!("modify listener {name}"));
    }
    let group = items(&cloud["target_groups"])
        .iter()
        .find(|group| group["port"] == *port.node_port && group["targets"].is_array());
    let health = health_check(requested);
    // These are part of the group's name, so that a group is replaced when one of them differs.
    let in_name =
        |(key, _): &&(&str, Value)| ["HealthCheckProtocol", "HealthCheckIntervalSeconds"].contains(key);
    let Some(group) = group.filter(|group| {
        let mut named = health.iter().filter(in_name);
        group["protocol"] == port.traffic && named.all(|(key, desired)| group["health"][*key] == *desired)
    }) else {
        writes.push(format!("replace the target group of {name}"));
        return writes;
    };
    let node_port = &port.node_port;
    let desired: Set = requested.targets(hosts).iter().map(|node| format!("{node}:{node_port}")).collect();
    if set(&group["targets"]) != desired {
        writes.push(format!("change the targets of {name}"));
    }
    for (key, desired) in health {
        if group["health"][key] != desired {
            writes.push(format!("change {key} of {name}"));
        }
    }
    writes
}

/// The network of a public or private subnet, as `account.py` creates it.
fn network_of(subnet: &str) -> String {
    let is_private = subnet.contains("private");
    let zone = subnet.trim_end_matches('>').bytes().last().unwrap_or(b'a') - b'a';
    format!("10.0.{}.0/20", u32::from(zone) * 32 + if is_private { 16 } else { 0 })
}

/// Rules of the group of the nodes that lead from this load balancer.
fn node_group_writes(
    cloud: &Value,
    requested: &UpstreamService<'_>,
    lb: &Value,
    ports: &[Port],
) -> Vec<String> {
    let group = named(&cloud["security_groups"], "nodes");
    let (have, have_tuples) = (group.map(|group| set(&group["rules"])).unwrap_or_default(), tuples(group));
    let mut writes = Vec::new();
    let mut compare = |kind: &str, desired: &Set| {
        let mark = format!("(kubernetes.io/rule/nlb/{kind}={})", lb_name(requested));
        for rule in have.iter().filter(|rule| rule.ends_with(&mark)) {
            let tuple = rule.trim_end_matches(&mark).trim_end();
            if !desired.contains(tuple) {
                writes.push(format!("revoke {rule}"));
            }
        }
        let missing = desired.iter().filter(|tuple| !have_tuples.contains(*tuple));
        writes.extend(missing.map(|tuple| format!("authorize {tuple}")));
    };
    let rules = |protocol: &str, ports: &Set, sources: &Set| -> Set {
        let rule = |port: &String| {
            let rule = move |source: &String| format!("{protocol} {0}-{0} from {source}", port.clone());
            sources.iter().map(rule).collect::<Vec<_>>()
        };
        ports.iter().flat_map(rule).collect()
    };
    let clients: Set = ports.iter().map(|port| port.node_port.clone()).collect();
    let protocol = if ports.iter().any(|port| port.is_udp) {
        "udp"
    } else {
        "tcp"
    };
    let checked: Set = match &health_check(requested)[0].1 {
        port if port == "traffic-port" => clients.clone(),
        port => Set::from([text(port)]),
    };
    let anywhere = requested.ranges() == Set::from([ANYWHERE.to_owned()]);
    // Upstream does not check health rules, not even orphaned ones, if its client rules already admit all addresses.
    if !(anywhere && protocol == "tcp" && checked == clients) {
        let subnets = items(&lb["zones"]).iter().map(|zone| network_of(zone[0].as_str().unwrap_or_default()));
        compare("health", &rules("tcp", &checked, &subnets.collect()));
    }
    compare("client", &rules(protocol, &clients, &requested.ranges()));
    let mtu: Set = have
        .iter()
        .filter(|rule| rule.contains("/nlb/client="))
        .filter_map(|rule| Some(rule.split_once(" from ")?.1.split_once(' ')?.0.to_owned()))
        .collect();
    for source in &mtu {
        if !have_tuples.contains(&format!("icmp 3-4 from {source}")) {
            writes.push(format!("authorize icmp from {source}"));
        }
    }
    for rule in have.iter().filter(|rule| rule.contains("/nlb/mtu)")) {
        if !mtu.iter().any(|source| rule.contains(&format!(" from {source} "))) {
            writes.push(format!("revoke {rule}"));
        }
    }
    writes
}

fn classic(got: &Value, requested: &UpstreamService<'_>, hosts: &[Host]) -> Vec<String> {
    let name = lb_name(requested);
    let Some(lb) = named(&got["cloud"]["classic"], &name) else {
        return vec!["create load balancer".to_owned()];
    };
    let mut writes = Vec::new();
    let given = requested.annotation("backend-protocol").unwrap_or_default();
    let backend = given.to_uppercase();
    let listener = |port: &Value| {
        let (front, back) = match (requested.is_secure(port), backend.as_str()) {
            (true, "") => ("SSL", "TCP"),
            (true, "HTTP" | "HTTPS") => ("HTTPS", backend.as_str()),
            (true, _) => ("SSL", backend.as_str()),
            (false, _) if given == "http" => ("HTTP", "HTTP"),
            _ => ("TCP", "TCP"),
        };
        let certificate = requested.is_secure(port).then(|| requested.annotation("ssl-cert")).flatten();
        format!(
            "{front}:{} {back}:{} {}",
            port["port"],
            text(&port["nodePort"]),
            certificate.unwrap_or_default()
        )
    };
    let desired: Set = requested.ports().iter().map(listener).collect();
    let seen = |one: &Value| {
        format!(
            "{} {}:{} {}",
            text(&one["name"]),
            text(&one["InstanceProtocol"]),
            text(&one["InstancePort"]),
            text(&one["SSLCertificateId"])
        )
    };
    let have: Set = items(&lb["listeners"]).iter().map(seen).collect();
    writes.extend(desired.difference(&have).map(|one| format!("create listener {one}")));
    writes.extend(have.difference(&desired).map(|one| format!("delete listener {one}")));

    let kind = if requested.is_internal() {
        "private"
    } else {
        "public"
    };
    let subnets: Set = ["a", "b", "c"].map(|zone| format!("<subnet:{kind}-{zone}>")).into();
    let own = format!("k8s-elb-{name}");
    let mut groups = Set::from([format!("<sg:{own}>")]);
    let extra = requested.annotation("extra-security-groups").unwrap_or_default().split(',');
    groups.extend(extra.filter(|group| !group.is_empty()).map(str::to_owned));
    let instances: Set = requested.targets(hosts).into_iter().collect();
    for (key, desired) in [("subnets", subnets), ("groups", groups), ("instances", instances)] {
        if set(&lb[key]) != desired {
            writes.push(format!("change the {key}"));
        }
    }
    writes.extend(group_writes(got, &own, &front_rules(requested, requested.ports().iter())));

    let policies = match requested.annotation("proxy-protocol") {
        Some("*") => requested.ports(),
        _ => &[],
    };
    let desired: Set = policies.iter().map(|port| text(&port["nodePort"])).collect();
    let backends = items(&lb["backends"]).iter().map(text);
    let backends: Vec<_> = backends.filter(|backend| backend.contains("k8s-proxyprotocol-enabled")).collect();
    if backends.len() != desired.len()
        || !desired.iter().all(|port| backends.iter().any(|one| one.contains(port)))
    {
        writes.push("change the policies of backends".to_owned());
    }
    let seconds = |key: &str, otherwise: u64| requested.number(key, otherwise);
    let draining = requested.is_true("connection-draining-enabled");
    let attributes = &lb["attributes"];
    for (key, have, desired) in [
        (
            "access log",
            &attributes["AccessLog"]["Enabled"],
            json!(requested.is_true("access-log-enabled")),
        ),
        ("draining", &attributes["ConnectionDraining"]["Enabled"], json!(draining)),
        (
            "idle timeout",
            &attributes["ConnectionSettings"]["IdleTimeout"],
            seconds("connection-idle-timeout", 60),
        ),
        (
            "cross zone",
            &attributes["CrossZoneLoadBalancing"]["Enabled"],
            json!(requested.is_true("cross-zone-load-balancing-enabled")),
        ),
    ] {
        if *have != desired {
            writes.push(format!("change {key}"));
        }
    }
    if draining && attributes["ConnectionDraining"]["Timeout"] != seconds("connection-draining-timeout", 300)
    {
        writes.push("change the draining timeout".to_owned());
    }
    let target = match requested.is_local() {
        true => format!("HTTP:{}/healthz", text(&requested.service["spec"]["healthCheckNodePort"])),
        false => {
            let first = requested.ports().first().map(|port| text(&port["nodePort"]));
            let protocol = if ["HTTPS", "SSL"].contains(&backend.as_str()) {
                "SSL"
            } else {
                "TCP"
            };
            format!("{protocol}:{}", first.unwrap_or_default())
        }
    };
    let health = json!({"HealthyThreshold": 2, "UnhealthyThreshold": 6, "Timeout": 5, "Interval": 10, "Target": target});
    if lb["health"] != health {
        writes.push("configure the health check".to_owned());
    }
    if !tuples(named(&got["cloud"]["security_groups"], "nodes"))
        .contains(&format!("-1 None-None from <sg:{own}>"))
    {
        writes.push("authorize the load balancer's group".to_owned());
    }
    writes
}

fn service_writes(got: &Value, requested: &UpstreamService<'_>) -> Vec<String> {
    let live = &got["services"][requested.name];
    let name = lb_name(requested);
    let hostname = match requested.annotation("type") {
        Some("nlb") => format!("{name}-<key>.elb.us-east-1.amazonaws.com"),
        _ => format!("{name}.us-east-1.elb.amazonaws.com"),
    };
    let mut writes = Vec::new();
    if live["status"]["loadBalancer"]["ingress"] != json!([{"hostname": hostname}]) {
        writes.push("change the status".to_owned());
    }
    if !set(&live["finalizers"]).contains("service.kubernetes.io/load-balancer-cleanup") {
        writes.push("add the finalizer".to_owned());
    }
    writes
}

#[cfg(test)]
mod tests;
