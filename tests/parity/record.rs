//! What stands in the cloud, with names instead of ids, addresses and ports.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::{
    rest::{items, text},
    site::Site,
};

/// The objects that were there before.
pub(crate) type Base = BTreeSet<String>;

const LISTENER: [&str; 13] = [
    "name",
    "protocol",
    "protocol_port",
    "connection_limit",
    "allowed_cidrs",
    "insert_headers",
    "timeout_client_data",
    "timeout_member_connect",
    "timeout_member_data",
    "timeout_tcp_inspect",
    "tags",
    "description",
    "default_tls_container_ref",
];
const BALANCER: [&str; 13] = [
    "name",
    "description",
    "provisioning_status",
    "provider",
    "vip_address",
    "vip_subnet_id",
    "vip_network_id",
    "vip_port_id",
    "flavor_id",
    "availability_zone",
    "tags",
    "additional_vips",
    "admin_state_up",
];
const MEMBER: [&str; 9] = [
    "name",
    "address",
    "protocol_port",
    "subnet_id",
    "weight",
    "backup",
    "monitor_port",
    "monitor_address",
    "tags",
];
const MONITOR: [&str; 9] = [
    "name",
    "type",
    "delay",
    "timeout",
    "max_retries",
    "max_retries_down",
    "http_method",
    "url_path",
    "expected_codes",
];
const RULE: [&str; 7] = [
    "direction",
    "protocol",
    "port_range_min",
    "port_range_max",
    "remote_ip_prefix",
    "remote_group_id",
    "description",
];
const FLOATING: [&str; 6] = [
    "description",
    "floating_ip_address",
    "fixed_ip_address",
    "floating_network_id",
    "port_id",
    "tags",
];

fn pick(object: &Value, keys: &[&str]) -> Map<String, Value> {
    keys.iter()
        .map(|key| ((*key).to_owned(), object[*key].clone()))
        .collect()
}

/// Everything of the project that may come and go with Services.
pub(crate) struct Things {
    pub(crate) balancers: Vec<Value>,
    pub(crate) floating: Vec<Value>,
    pub(crate) groups: Vec<Value>,
    pub(crate) ports: Vec<Value>,
}

impl Things {
    pub(crate) async fn of(site: &Site) -> Result<Self> {
        let (rest, project) = (&site.rest, &site.project);
        let neutron = async |kind: &str| {
            rest.list(&format!("network/v2.0/{kind}?project_id={project}"))
                .await
        };
        Ok(Self {
            balancers: rest
                .list(&format!(
                    "load-balancer/v2.0/lbaas/loadbalancers?project_id={project}"
                ))
                .await?,
            floating: neutron("floatingips").await?,
            groups: neutron("security-groups").await?,
            ports: neutron("ports").await?,
        })
    }

    pub(crate) fn ids(&self) -> Base {
        [&self.balancers, &self.floating, &self.groups, &self.ports]
            .into_iter()
            .flatten()
            .map(|object| text(&object["id"]))
            .collect()
    }

    pub(crate) fn without(mut self, base: &Base) -> Self {
        for list in [
            &mut self.balancers,
            &mut self.floating,
            &mut self.groups,
            &mut self.ports,
        ] {
            list.retain(|object| !base.contains(&text(&object["id"])));
        }
        self
    }
}

/// What is called how in one recording.
#[derive(Clone, Default)]
pub(crate) struct Names {
    pub(crate) ids: BTreeMap<String, String>,
    pub(crate) addresses: BTreeMap<String, String>,
    /// Numbers and texts of the Services.
    pub(crate) words: BTreeMap<String, String>,
}

/// What of the cloud is not of the base, and how its things are called.
pub(crate) async fn dump(site: &Site, base: &Base) -> Result<(Value, Names)> {
    let now = Things::of(site).await?;
    let mut names = Names {
        ids: site.names.clone(),
        addresses: site.addresses.clone(),
        words: BTreeMap::new(),
    };
    let all_ports = now.ports.clone();
    let new = now.without(base);
    let one = new.balancers.len() == 1;
    for balancer in &new.balancers {
        let name = text(&balancer["name"]);
        let (lb, vip) = if one {
            ("lb".to_owned(), "<vip>".to_owned())
        } else {
            (format!("lb:{name}"), format!("<vip:{name}>"))
        };
        names.ids.insert(text(&balancer["id"]), format!("<{lb}>"));
        names
            .ids
            .insert(text(&balancer["vip_port_id"]), format!("<port of {lb}>"));
        names.addresses.insert(text(&balancer["vip_address"]), vip);
    }
    for floating in &new.floating {
        names.ids.insert(text(&floating["id"]), "<fip>".to_owned());
        names
            .addresses
            .insert(text(&floating["floating_ip_address"]), "<fip>".to_owned());
    }
    for group in &new.groups {
        names.ids.insert(text(&group["id"]), "<sg>".to_owned());
    }
    let mut balancers = Vec::new();
    for one in &new.balancers {
        balancers.push(balancer(site, one).await?);
    }
    balancers.sort_by_key(|one| text(&one["name"]));
    let mut groups = Vec::new();
    for group in &new.groups {
        let path = format!(
            "network/v2.0/security-group-rules?security_group_id={}",
            text(&group["id"])
        );
        let mut rules: Vec<Value> = Vec::new();
        for rule in site.rest.list(&path).await? {
            let mut picked = pick(&rule, &RULE);
            picked.insert("ether_type".to_owned(), rule["ethertype"].clone());
            rules.push(Value::Object(picked));
        }
        let mut picked = pick(group, &["name", "description", "tags"]);
        picked.insert("rules".to_owned(), Value::Array(rules));
        groups.push(Value::Object(picked));
    }
    let ports: Vec<Value> = new
        .ports
        .iter()
        .filter(|port| port["device_owner"] != "Octavia")
        .map(|port| Value::Object(pick(port, &["name", "device_owner", "tags"])))
        .collect();
    let node_ports: Map<String, Value> = site
        .servers
        .iter()
        .filter_map(|(name, id)| {
            let port = all_ports.iter().find(|port| port["device_id"] == **id)?;
            let mut groups: Vec<String> = items(&port["security_groups"])
                .iter()
                .map(|group| {
                    names
                        .ids
                        .get(&text(group))
                        .cloned()
                        .unwrap_or_else(|| text(group))
                })
                .collect();
            groups.sort();
            Some((
                name.clone(),
                json!({"security_groups": groups, "tags": port["tags"]}),
            ))
        })
        .collect();
    let floating: Vec<Value> = new
        .floating
        .iter()
        .map(|floating| Value::Object(pick(floating, &FLOATING)))
        .collect();
    let cloud = json!({
        "loadbalancers": balancers,
        "floatingips": floating,
        "security_groups": groups,
        "ports": ports,
        "node_ports": node_ports,
    });
    Ok((cloud, names))
}

async fn balancer(site: &Site, one: &Value) -> Result<Value> {
    let lbaas = "load-balancer/v2.0/lbaas";
    let id = text(&one["id"]);
    let mut found = pick(one, &BALANCER);
    let mut labels = BTreeMap::new();
    let mut listeners = Vec::new();
    for listener in site
        .rest
        .list(&format!("{lbaas}/listeners?loadbalancer_id={id}"))
        .await?
    {
        let label = format!("{}/{}", text(&listener["protocol"]), listener["protocol_port"]);
        labels.insert(text(&listener["id"]), label);
        let mut picked = pick(&listener, &LISTENER);
        if picked["allowed_cidrs"].is_null() {
            picked.insert("allowed_cidrs".to_owned(), json!([]));
        }
        listeners.push(Value::Object(picked));
    }
    let mut pools = Vec::new();
    for pool in site
        .rest
        .list(&format!("{lbaas}/pools?loadbalancer_id={id}"))
        .await?
    {
        let mut picked = pick(
            &pool,
            &[
                "name",
                "protocol",
                "lb_algorithm",
                "session_persistence",
                "description",
                "tags",
            ],
        );
        let of: Vec<&String> = items(&pool["listeners"])
            .iter()
            .filter_map(|listener| labels.get(&text(&listener["id"])))
            .collect();
        picked.insert("listeners".to_owned(), json!(of));
        let path = format!("{lbaas}/pools/{}/members", text(&pool["id"]));
        let mut members: Vec<Value> = Vec::new();
        for member in site.rest.list(&path).await? {
            members.push(Value::Object(pick(&member, &MEMBER)));
        }
        picked.insert("members".to_owned(), json!(members));
        if let Some(monitor) = pool["healthmonitor_id"].as_str() {
            let monitor = site
                .rest
                .get(&format!("{lbaas}/healthmonitors/{monitor}"))
                .await?;
            let monitor = pick(&monitor["healthmonitor"], &MONITOR);
            picked.insert("health_monitor".to_owned(), Value::Object(monitor));
        }
        pools.push(Value::Object(picked));
    }
    found.insert("listeners".to_owned(), Value::Array(listeners));
    found.insert("pools".to_owned(), Value::Array(pools));
    Ok(Value::Object(found))
}

/// Replaces the ids, addresses and numbers of one run by names.
pub(crate) struct Normal {
    words: Vec<(String, String)>,
    addresses: Vec<(Regex, String)>,
    numbers: BTreeMap<String, String>,
    uuid: Regex,
    time: Regex,
}

impl Normal {
    pub(crate) fn of(names: &Names) -> Self {
        let longest_first = |map: &BTreeMap<String, String>| {
            let mut list: Vec<_> = map
                .clone()
                .into_iter()
                .filter(|(key, _)| !key.is_empty())
                .collect();
            list.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
            list
        };
        let mut words = longest_first(&names.words);
        words.extend(longest_first(&names.ids));
        let addresses = longest_first(&names.addresses)
            .into_iter()
            .map(|(key, name)| {
                let pattern = format!(r"(^|[^\d.]){}($|[^\d.]|\.$|\.[^\d])", regex::escape(&key));
                (Regex::new(&pattern).unwrap(), name)
            })
            .collect();
        Self {
            words,
            addresses,
            numbers: names.words.clone(),
            uuid: Regex::new(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b").unwrap(),
            time: Regex::new(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z?\b").unwrap(),
        }
    }

    pub(crate) fn text(&self, given: &str) -> String {
        let mut text = given.to_owned();
        for (key, name) in &self.words {
            text = text.replace(key, name);
        }
        for (pattern, name) in &self.addresses {
            text = pattern
                .replace_all(&text, format!("${{1}}{name}${{2}}"))
                .into_owned();
        }
        text = self.uuid.replace_all(&text, "<uuid>").into_owned();
        self.time.replace_all(&text, "<time>").into_owned()
    }

    pub(crate) fn value(&self, given: &Value) -> Value {
        match given {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (self.text(key), self.value(value)))
                .collect(),
            Value::Array(list) => list.iter().map(|value| self.value(value)).collect(),
            Value::String(text) => Value::String(self.text(text)),
            Value::Number(number) => match self.numbers.get(&number.to_string()) {
                Some(name) => Value::String(name.clone()),
                None => given.clone(),
            },
            _ => given.clone(),
        }
    }
}
