//! The writes of the upstream program after a rollback to it: its rules for an existing load balancer, applied to the observed
//! state. It keeps no state, so that its comparisons on every pass are complete.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    cases::{items, text},
    play::CLUSTER,
    site::Host,
};

const PREFIX: &str = "loadbalancer.openstack.org/";
const INTERNAL: &str = "service.beta.kubernetes.io/openstack-internal-load-balancer";

/// The parts of upstream's config that the rules need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamConfig {
    pub(crate) monitors: bool,
    pub(crate) groups: bool,
}

/// A Service of type LoadBalancer.
struct UpstreamService<'a> {
    name: String,
    service: &'a Value,
}

impl UpstreamService<'_> {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.service["metadata"]["annotations"][format!("{PREFIX}{key}")].as_str()
    }

    fn number(&self, key: &str, otherwise: i64) -> i64 {
        self.annotation(key).and_then(|value| value.parse().ok()).unwrap_or(otherwise)
    }

    fn truth(&self, key: &str, otherwise: bool) -> bool {
        match self.annotation(key) {
            Some("true") => true,
            Some("false") => false,
            _ => otherwise,
        }
    }

    fn tag(&self) -> String {
        format!("kube_service_{CLUSTER}_default_{}", self.name)
    }

    fn proxy(&self) -> Option<&'static str> {
        match self.annotation("proxy-protocol") {
            Some("true" | "v1") => Some("PROXY"),
            Some("v2") => Some("PROXYV2"),
            _ => None,
        }
    }

    fn local(&self) -> bool {
        self.service["spec"]["externalTrafficPolicy"] == "Local"
    }

    /// The port of health checks, with its name in recordings.
    fn health(&self) -> Value {
        if self.local() {
            self.service["spec"]["healthCheckNodePort"].clone()
        } else {
            Value::Null
        }
    }
}

/// The writes, each in a few words. The list is empty if upstream changes nothing. `got` is the result of
/// [`crate::play::Play::observe`].
pub(crate) fn writes(got: &Value, hosts: &[Host], config: UpstreamConfig) -> Vec<String> {
    let mut all = Vec::new();
    let Some(specs) = got["specs"].as_object() else {
        return vec!["no Services were recorded".to_owned()];
    };
    for (name, service) in specs {
        if service["spec"]["type"] != "LoadBalancer" || !service["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let requested = UpstreamService {
            name: name.clone(),
            service,
        };
        let hosts: Vec<&Host> = hosts
            .iter()
            .filter(|host| !host.excluded)
            .filter(|host| {
                requested.annotation("node-selector").is_none_or(|selector| {
                    selector.split(',').all(|term| match term.trim().split_once('=') {
                        Some((key, value)) => host.labels.get(key).is_some_and(|has| has == value),
                        None => host.labels.contains_key(term.trim()),
                    })
                })
            })
            .collect();
        let found = balancer(got, &requested, &hosts, config);
        all.extend(found.into_iter().map(|write| format!("{name}: {write}")));
    }
    all
}

fn balancer(
    got: &Value,
    requested: &UpstreamService<'_>,
    hosts: &[&Host],
    config: UpstreamConfig,
) -> Vec<String> {
    let mut writes = Vec::new();
    if requested.proxy().is_some() && requested.truth("x-forwarded-for", false) {
        // Upstream refuses the Service before it reads the cloud.
        return writes;
    }
    let tag = requested.tag();
    let by_id = requested.annotation("load-balancer-id");
    let all = items(&got["cloud"]["loadbalancers"]);
    let Some(lb) = all.iter().find(|lb| match by_id {
        Some(id) if all.len() > 1 => id == format!("<lb:{}>", text(&lb["name"])),
        _ => true,
    }) else {
        return vec!["create load balancer".to_owned()];
    };
    let lb_name = text(&lb["name"]);
    let owner = lb_name == tag;
    if lb_name.starts_with("kube_service_") && !lb_name.starts_with(&format!("kube_service_{CLUSTER}_")) {
        writes.push("rename everything".to_owned());
    }
    if lb["provisioning_status"] != "ACTIVE" {
        writes.push("nothing, but it fails: the load balancer is not ACTIVE".to_owned());
    }
    if !has(&lb["tags"], &tag) {
        writes.push("tag the load balancer".to_owned());
    }
    let mut desired = BTreeSet::new();
    for (index, port) in items(&requested.service["spec"]["ports"]).iter().enumerate() {
        let protocol = if requested.truth("x-forwarded-for", false) {
            "HTTP".to_owned()
        } else {
            port["protocol"].as_str().unwrap_or("TCP").to_owned()
        };
        let listener_name = format!("{protocol}/{}", port["port"]);
        desired.insert(listener_name.clone());
        let listener = items(&lb["listeners"])
            .iter()
            .find(|one| one["protocol"] == *protocol && one["protocol_port"] == port["port"]);
        let Some(listener) = listener else {
            writes.push(format!("create listener {listener_name}"));
            continue;
        };
        writes.extend(listener_writes(requested, &listener_name, listener));
        let pool = items(&lb["pools"])
            .iter()
            .find(|pool| items(&pool["listeners"]).iter().any(|one| one == listener_name.as_str()));
        let Some(pool) = pool else {
            writes.push(format!("create pool of {listener_name}"));
            continue;
        };
        let pool_protocol = requested.proxy().map_or(protocol, str::to_owned);
        writes.extend(pool_writes(
            requested,
            &listener_name,
            pool,
            &pool_protocol,
            (index, port),
            hosts,
            config,
        ));
    }
    for listener in items(&lb["listeners"]) {
        let listener_name = format!("{}/{}", text(&listener["protocol"]), listener["protocol_port"]);
        let ours = has(&listener["tags"], &tag) || (owner && items(&listener["tags"]).is_empty());
        if ours && !desired.contains(&listener_name) {
            writes.push(format!("delete listener {listener_name}"));
        }
    }
    let internal = requested.service["metadata"]["annotations"][INTERNAL] == "true";
    let floating = items(&got["cloud"]["floatingips"])
        .iter()
        .any(|floating| floating["port_id"] == lb["vip_port_id"]);
    match (internal && owner, floating) {
        (true, true) => writes.push("remove the floating IP".to_owned()),
        (false, false) => writes.push("add a floating IP".to_owned()),
        _ => {}
    }
    writes.extend(group_writes(got, requested, hosts, config));
    let address = if floating { "<fip>" } else { "<vip>" };
    writes.extend(service_writes(got, requested, lb, address, all.len() > 1));
    writes
}

/// The differences that upstream leaves as they are, each in a few words: it gives a pool its session persistence only when it
/// creates the pool.
pub(crate) fn left_unchanged(got: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for (name, service) in got["specs"].as_object().into_iter().flatten() {
        let tag = format!("kube_service_{CLUSTER}_default_{name}");
        let want = if service["spec"]["sessionAffinity"] == "ClientIP" {
            json!("SOURCE_IP")
        } else {
            Value::Null
        };
        for lb in items(&got["cloud"]["loadbalancers"]) {
            for listener in items(&lb["listeners"]).iter().filter(|listener| has(&listener["tags"], &tag)) {
                let of = format!("{}:{}", text(&listener["protocol"]), listener["protocol_port"]);
                let is_of = |pool: &&Value| {
                    let listeners = items(&pool["listeners"]).iter().map(|one| text(one).replace('/', ":"));
                    listeners.into_iter().any(|one| one == of)
                };
                let have =
                    items(&lb["pools"]).iter().find(is_of).map(|pool| &pool["session_persistence"]["type"]);
                if let Some(have) = have.filter(|have| **have != want) {
                    all.push(format!("{name}: session persistence {have} of {of}"));
                }
            }
        }
    }
    all
}

fn has(tags: &Value, tag: &str) -> bool {
    items(tags).iter().any(|one| one == tag)
}

fn listener_writes(requested: &UpstreamService<'_>, listener_name: &str, listener: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if !has(&listener["tags"], &requested.tag()) {
        wrong.push("tags");
    }
    let numbers = [
        ("connection_limit", requested.number("connection-limit", -1)),
        ("timeout_client_data", requested.number("timeout-client-data", 50_000)),
        ("timeout_member_connect", requested.number("timeout-member-connect", 5_000)),
        ("timeout_member_data", requested.number("timeout-member-data", 50_000)),
        ("timeout_tcp_inspect", requested.number("timeout-tcp-inspect", 0)),
    ];
    wrong.extend(numbers.iter().filter(|(key, want)| listener[*key] != *want).map(|(key, _)| *key));
    let forwarded = listener["insert_headers"]["X-Forwarded-For"] == "true";
    if forwarded != requested.truth("x-forwarded-for", false) {
        wrong.push("insert_headers");
    }
    let ranges: BTreeSet<String> = match items(&requested.service["spec"]["loadBalancerSourceRanges"]) {
        [] => BTreeSet::from(["0.0.0.0/0".to_owned()]),
        ranges => ranges.iter().map(text).collect(),
    };
    if items(&listener["allowed_cidrs"]).iter().map(text).collect::<BTreeSet<_>>() != ranges {
        wrong.push("allowed_cidrs");
    }
    wrong
        .into_iter()
        .map(|field| format!("change {field} of listener {listener_name}"))
        .collect()
}

fn pool_writes(
    requested: &UpstreamService<'_>,
    listener_name: &str,
    pool: &Value,
    protocol: &str,
    (index, port): (usize, &Value),
    hosts: &[&Host],
    config: UpstreamConfig,
) -> Vec<String> {
    if pool["protocol"] != protocol {
        return vec![format!("recreate the pool of {listener_name}")];
    }
    let mut writes = Vec::new();
    if pool["lb_algorithm"] != requested.annotation("lb-method").unwrap_or("ROUND_ROBIN") {
        writes.push(format!("change the method of {listener_name}"));
    }
    let monitored = requested.truth("enable-health-monitor", config.monitors);
    let check = if monitored {
        requested.health()
    } else {
        Value::Null
    };
    let key = |name: &str, address: &str, at: &Value, check: &Value| format!("{name} {address} {at} {check}");
    let want: BTreeSet<String> = hosts
        .iter()
        .map(|host| key(&host.name, &format!("<{}>", host.name), &port["nodePort"], &check))
        .collect();
    let have: BTreeSet<String> = items(&pool["members"])
        .iter()
        .map(|member| {
            let (name, address) = (text(&member["name"]), text(&member["address"]));
            key(&name, &address, &member["protocol_port"], &member["monitor_port"])
        })
        .collect();
    if want != have {
        writes.push(format!("set the members of {listener_name}"));
    }
    let monitor = &pool["health_monitor"];
    match (monitored, monitor.is_null()) {
        (false, true) => {}
        (false, false) => writes.push(format!("delete the monitor of {listener_name}")),
        (true, true) => writes.push(format!("create the monitor of {listener_name}")),
        (true, false) => {
            let kind = match port["protocol"].as_str() {
                _ if !requested.health().is_null() => "HTTP",
                Some("UDP") => "UDP-CONNECT",
                Some("SCTP") => "SCTP",
                _ => "TCP",
            };
            let name = format!("monitor_{index}_{}", requested.tag());
            if monitor["type"] != kind {
                writes.push(format!("recreate the monitor of {listener_name}"));
            } else if monitor["name"] != *name {
                writes.push(format!("rename the monitor of {listener_name}"));
            }
            for (field, note, otherwise) in [
                ("delay", "health-monitor-delay", 5),
                ("timeout", "health-monitor-timeout", 3),
                ("max_retries", "health-monitor-max-retries", 1),
                ("max_retries_down", "health-monitor-max-retries-down", 3),
            ] {
                if monitor[field] != requested.number(note, otherwise) {
                    writes.push(format!("change {field} of the monitor of {listener_name}"));
                }
            }
        }
    }
    writes
}

fn group_writes(
    got: &Value,
    requested: &UpstreamService<'_>,
    hosts: &[&Host],
    config: UpstreamConfig,
) -> Vec<String> {
    let name = format!("lb-sg-<uid:{}>-default-{}", requested.name, requested.name);
    let group = items(&got["cloud"]["security_groups"]).iter().find(|group| group["name"] == *name);
    let Some(group) = group else {
        return if config.groups {
            vec!["create the security group".to_owned()]
        } else {
            Vec::new()
        };
    };
    if !config.groups {
        return vec!["delete the security group".to_owned()];
    }
    let mut writes = Vec::new();
    let rule =
        |protocol: &str, port: &Value| format!("ingress IPv4 {protocol} {port} {port} \"10.0.0.0/24\"");
    let mut want: BTreeSet<String> = items(&requested.service["spec"]["ports"])
        .iter()
        .map(|port| rule(&port["protocol"].as_str().unwrap_or("TCP").to_lowercase(), &port["nodePort"]))
        .collect();
    if !requested.health().is_null() {
        want.insert(rule("tcp", &requested.health()));
    }
    let have: BTreeSet<String> = items(&group["rules"])
        .iter()
        .map(|rule| {
            format!(
                "{} {} {} {} {} {}",
                text(&rule["direction"]),
                text(&rule["ether_type"]),
                text(&rule["protocol"]).to_lowercase(),
                rule["port_range_min"],
                rule["port_range_max"],
                rule["remote_ip_prefix"]
            )
        })
        .collect();
    writes.extend(want.difference(&have).map(|rule| format!("create rule {rule}")));
    writes.extend(have.difference(&want).map(|rule| format!("delete rule {rule}")));
    for host in hosts {
        // All groups of Services have one name in a recording.
        if !has(&got["cloud"]["node_ports"][&host.name]["security_groups"], "<sg>") {
            writes.push(format!("add the group to the port of {}", host.name));
        }
    }
    writes
}

fn service_writes(
    got: &Value,
    requested: &UpstreamService<'_>,
    lb: &Value,
    address: &str,
    many: bool,
) -> Vec<String> {
    let live = &got["services"][&requested.name];
    let mut writes = Vec::new();
    let id = if many {
        format!("<lb:{}>", text(&lb["name"]))
    } else {
        "<lb>".to_owned()
    };
    for (note, want) in [
        ("load-balancer-id", id.as_str()),
        ("load-balancer-address", address),
    ] {
        if requested.annotation(note) != Some(want) {
            writes.push(format!("set annotation {note}"));
        }
    }
    let ingress = &live["status"]["loadBalancer"]["ingress"][0];
    let right = match requested.annotation("hostname") {
        Some(hostname) => ingress["hostname"] == hostname && ingress["ip"].is_null(),
        None => {
            let mode = if requested.proxy().is_some() {
                "Proxy"
            } else {
                "VIP"
            };
            ingress["ip"] == address && ingress["ipMode"] == mode && ingress["hostname"].is_null()
        }
    };
    if !right || items(&live["status"]["loadBalancer"]["ingress"]).len() != 1 {
        writes.push("change the status".to_owned());
    }
    if !has(&live["finalizers"], "service.kubernetes.io/load-balancer-cleanup") {
        writes.push("add the finalizer".to_owned());
    }
    writes
}

#[cfg(test)]
mod tests;
