//! Dumps the objects of the cloud, with names in place of IDs, addresses and ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, Result};
use ccm_testbed::observe::eventually;
use regex::Regex;
use serde_json::{Map, Value, json};

use super::site::OpenStackSite;
use crate::{
    cases::{items, text},
    site::Names,
};

/// The IDs of the objects that existed before the cases.
pub(super) type Base = BTreeSet<String>;

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

/// Any id.
const UUID: &str = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b";
/// Time limit for the deletion of a load balancer.
const LIMIT: Duration = Duration::from_secs(400);

fn pick(object: &Value, keys: &[&str]) -> Map<String, Value> {
    keys.iter().map(|key| ((*key).to_owned(), object[*key].clone())).collect()
}

/// All objects of the project that may be created for Services.
pub(super) struct ProjectObjects {
    pub(super) balancers: Vec<Value>,
    pub(super) floating: Vec<Value>,
    pub(super) groups: Vec<Value>,
    pub(super) ports: Vec<Value>,
}

impl ProjectObjects {
    pub(super) async fn read(site: &OpenStackSite) -> Result<Self> {
        let (rest, project) = (&site.rest, &site.project);
        let neutron =
            async |kind: &str| rest.list(&format!("network/v2.0/{kind}?project_id={project}")).await;
        Ok(Self {
            balancers: rest
                .list(&format!("load-balancer/v2.0/lbaas/loadbalancers?project_id={project}"))
                .await?,
            floating: neutron("floatingips").await?,
            groups: neutron("security-groups").await?,
            ports: neutron("ports").await?,
        })
    }

    pub(super) fn ids(&self) -> Base {
        [&self.balancers, &self.floating, &self.groups, &self.ports]
            .into_iter()
            .flatten()
            .map(|object| text(&object["id"]))
            .collect()
    }

    pub(super) fn without(mut self, base: &Base) -> Self {
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

/// The objects of the cloud that are not in the base, and the names of their IDs.
pub(super) async fn dump(site: &OpenStackSite) -> Result<(Value, Names)> {
    let now = ProjectObjects::read(site).await?;
    let mut names = Names {
        ids: site.names.clone(),
        addresses: site.addresses.clone(),
        patterns: vec![(Regex::new(UUID)?, "<uuid>")],
        ..Names::default()
    };
    let all_ports = now.ports.clone();
    let new = now.without(&site.base);
    let one = new.balancers.len() == 1;
    for balancer in &new.balancers {
        let name = text(&balancer["name"]);
        let (lb, vip) = if one {
            ("lb".to_owned(), "<vip>".to_owned())
        } else {
            (format!("lb:{name}"), format!("<vip:{name}>"))
        };
        names.ids.insert(text(&balancer["id"]), format!("<{lb}>"));
        names.ids.insert(text(&balancer["vip_port_id"]), format!("<port of {lb}>"));
        names.addresses.insert(text(&balancer["vip_address"]), vip);
    }
    for floating in &new.floating {
        names.ids.insert(text(&floating["id"]), "<fip>".to_owned());
        names.addresses.insert(text(&floating["floating_ip_address"]), "<fip>".to_owned());
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
        let path = format!("network/v2.0/security-group-rules?security_group_id={}", text(&group["id"]));
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
                .map(|group| names.ids.get(&text(group)).cloned().unwrap_or_else(|| text(group)))
                .collect();
            groups.sort();
            Some((name.clone(), json!({"security_groups": groups, "tags": port["tags"]})))
        })
        .collect();
    let floating: Vec<Value> =
        new.floating.iter().map(|floating| Value::Object(pick(floating, &FLOATING))).collect();
    let cloud = json!({
        "loadbalancers": balancers,
        "floatingips": floating,
        "security_groups": groups,
        "ports": ports,
        "node_ports": node_ports,
    });
    Ok((cloud, names))
}

async fn balancer(site: &OpenStackSite, one: &Value) -> Result<Value> {
    let lbaas = "load-balancer/v2.0/lbaas";
    let id = text(&one["id"]);
    let mut found = pick(one, &BALANCER);
    let mut labels = BTreeMap::new();
    let mut listeners = Vec::new();
    for listener in site.rest.list(&format!("{lbaas}/listeners?loadbalancer_id={id}")).await? {
        let label = format!("{}/{}", text(&listener["protocol"]), listener["protocol_port"]);
        labels.insert(text(&listener["id"]), label);
        let mut picked = pick(&listener, &LISTENER);
        if picked["allowed_cidrs"].is_null() {
            picked.insert("allowed_cidrs".to_owned(), json!([]));
        }
        listeners.push(Value::Object(picked));
    }
    let mut pools = Vec::new();
    for pool in site.rest.list(&format!("{lbaas}/pools?loadbalancer_id={id}")).await? {
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
            let monitor = site.rest.get(&format!("{lbaas}/healthmonitors/{monitor}")).await?;
            let monitor = pick(&monitor["healthmonitor"], &MONITOR);
            picked.insert("health_monitor".to_owned(), Value::Object(monitor));
        }
        pools.push(Value::Object(picked));
    }
    found.insert("listeners".to_owned(), Value::Array(listeners));
    found.insert("pools".to_owned(), Value::Array(pools));
    Ok(Value::Object(found))
}

/// Deletes all objects that are not in the base.
pub(super) async fn clear(site: &OpenStackSite) -> Result<()> {
    let rest = &site.rest;
    let left = ProjectObjects::read(site).await?.without(&site.base);
    for balancer in &left.balancers {
        let id = text(&balancer["id"]);
        rest.delete(&format!("load-balancer/v2.0/lbaas/loadbalancers/{id}?cascade=true")).await?;
    }
    let deleted = async || {
        let now = ProjectObjects::read(site).await.ok()?;
        now.without(&site.base).balancers.is_empty().then_some(())
    };
    eventually(LIMIT, deleted).await.context("a load balancer was not deleted")?;
    for floating in &left.floating {
        rest.delete(&format!("network/v2.0/floatingips/{}", text(&floating["id"]))).await?;
    }
    let groups: Vec<String> = left.groups.iter().map(|group| text(&group["id"])).collect();
    for port in ProjectObjects::read(site).await?.ports {
        let has: Vec<String> = items(&port["security_groups"]).iter().map(text).collect();
        if has.iter().any(|group| groups.contains(group)) {
            let keep: Vec<&String> = has.iter().filter(|group| !groups.contains(group)).collect();
            let path = format!("network/v2.0/ports/{}", text(&port["id"]));
            rest.put(&path, json!({"port": {"security_groups": keep}})).await?;
        }
    }
    for group in &groups {
        rest.delete(&format!("network/v2.0/security-groups/{group}")).await?;
    }
    Ok(())
}
