//! Creates the objects of a recording with plain requests.

use std::time::Duration;

use anyhow::{Context as _, Result};
use ccm_testbed::observe::eventually;
use serde_json::{Map, Value, json};

use super::site::OpenStackSite;
use crate::{
    cases::{items, text},
    site::PresentNames,
};

const LIMIT: Duration = Duration::from_secs(300);

/// Creates the objects of a phase, and records their IDs.
pub(super) async fn rebuild(site: &OpenStackSite, phase: &Value, now: &mut PresentNames) -> Result<()> {
    for (id, name) in site.names.iter().chain(&site.addresses) {
        now.insert(name, json!(id));
    }
    let cloud = &phase["cloud"];
    let mut groups = Vec::new();
    for group in items(&cloud["security_groups"]) {
        groups.push(security_group(site, now, group).await?);
    }
    node_ports(site, cloud, &groups).await?;
    for lb in items(&cloud["loadbalancers"]) {
        let made = balancer(site, now, lb).await?;
        now.insert("<lb>", made["id"].clone());
        now.insert("<vip>", made["vip_address"].clone());
        now.insert("<port of lb>", made["vip_port_id"].clone());
    }
    for floating in items(&cloud["floatingips"]) {
        let body = json!({"floatingip": {
            "floating_network_id": now.value(&floating["floating_network_id"]),
            "port_id": now.value(&floating["port_id"]),
            "description": floating["description"],
        }});
        let made = site.rest.post("network/v2.0/floatingips", body).await?;
        now.insert("<fip>", made["floatingip"]["floating_ip_address"].clone());
    }
    Ok(())
}

async fn security_group(site: &OpenStackSite, now: &PresentNames, group: &Value) -> Result<String> {
    let rest = &site.rest;
    let body = json!({"security_group": {
        "name": now.value(&group["name"]), "description": group["description"],
    }});
    let made = rest.post("network/v2.0/security-groups", body).await?;
    let id = text(&made["security_group"]["id"]);
    for rule in items(&made["security_group"]["security_group_rules"]) {
        rest.delete(&format!("network/v2.0/security-group-rules/{}", text(&rule["id"]))).await?;
    }
    for rule in items(&group["rules"]) {
        let mut rule = filled(&now.value(rule));
        rule.insert("security_group_id".to_owned(), json!(id));
        if let Some(family) = rule.remove("ether_type") {
            rule.insert("ethertype".to_owned(), family);
        }
        let body = json!({"security_group_rule": rule});
        rest.post("network/v2.0/security-group-rules", body).await?;
    }
    Ok(id)
}

async fn node_ports(site: &OpenStackSite, cloud: &Value, groups: &[String]) -> Result<()> {
    let rest = &site.rest;
    for (node, id) in &site.servers {
        if !items(&cloud["node_ports"][node]["security_groups"]).iter().any(|group| group == "<sg>") {
            continue;
        }
        for port in rest.list(&format!("network/v2.0/ports?device_id={id}")).await? {
            let mut all: Vec<String> = items(&port["security_groups"]).iter().map(text).collect();
            all.extend(groups.iter().cloned());
            let path = format!("network/v2.0/ports/{}", text(&port["id"]));
            rest.put(&path, json!({"port": {"security_groups": all}})).await?;
        }
    }
    Ok(())
}

/// The fields of an object, without nulls, empty texts and empty collections.
fn filled(value: &Value) -> Map<String, Value> {
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter(|(_, value)| says(value))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

async fn balancer(site: &OpenStackSite, now: &PresentNames, lb: &Value) -> Result<Value> {
    let rest = &site.rest;
    let lb = now.value(lb);
    let mut listeners = Vec::new();
    for listener in items(&lb["listeners"]) {
        let slot = format!("{}/{}", text(&listener["protocol"]), listener["protocol_port"]);
        let mut listener = filled(listener);
        let pool = items(&lb["pools"])
            .iter()
            .find(|pool| items(&pool["listeners"]).iter().any(|one| one == slot.as_str()));
        if let Some(pool) = pool {
            let mut body = filled(pool);
            body.remove("listeners");
            let members: Vec<_> = items(&pool["members"]).iter().map(filled).collect();
            body.insert("members".to_owned(), json!(members));
            if let Some(kind) = pool.get("session_persistence").filter(|kind| !kind.is_null()) {
                body.insert("session_persistence".to_owned(), json!(filled(kind)));
            }
            if let Some(monitor) = body.remove("health_monitor") {
                body.insert("healthmonitor".to_owned(), json!(filled(&monitor)));
            }
            listener.insert("default_pool".to_owned(), json!(body));
        }
        listeners.push(listener);
    }
    let mut body = filled(&lb);
    for key in ["pools", "provisioning_status", "vip_address", "vip_port_id"] {
        body.remove(key);
    }
    body.insert("listeners".to_owned(), json!(listeners));
    let lbaas = "load-balancer/v2.0/lbaas/loadbalancers";
    let made = rest.post(lbaas, json!({"loadbalancer": body})).await?;
    let path = format!("{lbaas}/{}", text(&made["loadbalancer"]["id"]));
    let active = async || {
        let found = rest.get(&path).await.ok()?["loadbalancer"].clone();
        (found["provisioning_status"] == "ACTIVE").then_some(found)
    };
    eventually(LIMIT, active).await.with_context(|| format!("{path} does not become ACTIVE"))
}
