//! Builds what the upstream program left, from the recordings and with requests of our own, for a program that has never
//! seen it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::{
    cases::{Case, Scene, name_of},
    play::Play,
    rest::{items, patiently, text},
};

const LIMIT: Duration = Duration::from_secs(300);

/// Names of a recording and what they are now.
struct Now {
    words: Vec<(String, Value)>,
}

impl Now {
    fn value(&self, given: &Value) -> Value {
        match given {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (key.clone(), self.value(value)))
                .collect(),
            Value::Array(list) => list.iter().map(|value| self.value(value)).collect(),
            Value::String(whole) => {
                if let Some((_, value)) = self.words.iter().find(|(word, _)| word == whole) {
                    return value.clone();
                }
                let mut text = whole.clone();
                for (word, value) in &self.words {
                    if let Value::String(value) = value {
                        text = text.replace(word, value);
                    }
                }
                Value::String(text)
            }
            _ => given.clone(),
        }
    }
}

/// The phase of a recording that is built: the last of those in which all its Services were made.
fn left_by_upstream(case: &Case, scene: &Scene) -> Result<Value> {
    let last = case.services.last().map(name_of).unwrap_or_default();
    let name = if case.one_by_one {
        format!("create {last}")
    } else {
        "create".to_owned()
    };
    scene.expect(&name)
}

/// Makes the Services of a case and everything that upstream made for them. The program must not run.
pub(crate) async fn build(play: &Play, case: &Case) -> Result<Scene> {
    let mut scene = Scene::new(case)?;
    let phase = left_by_upstream(case, &scene)?;
    for service in &case.services {
        let mut service = service.clone();
        service["metadata"]["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
        if let Some(notes) = service["metadata"]["annotations"].as_object_mut() {
            notes.retain(|_, value| value.as_str().is_none_or(|value| !value.contains("${LB_OF_")));
        }
        play.create(&mut scene, &service).await?;
    }
    play.look(&mut scene).await?;
    let mut words: Vec<(String, Value)> = Vec::new();
    for (id, name) in play.site.names.iter().chain(&play.site.addresses) {
        words.push((name.clone(), json!(id)));
    }
    for (value, name) in &scene.words {
        let number = value
            .parse::<u64>()
            .map_or_else(|_| json!(value), |number| json!(number));
        words.push((name.clone(), number));
    }
    let mut now = Now { words };
    let cloud = &phase["cloud"];
    let mut groups = Vec::new();
    for group in items(&cloud["security_groups"]) {
        groups.push(security_group(play, &now, group).await?);
    }
    node_ports(play, cloud, &groups).await?;
    for lb in items(&cloud["loadbalancers"]) {
        let made = balancer(play, &now, lb).await?;
        now.words.push(("<lb>".to_owned(), made["id"].clone()));
        now.words.push(("<vip>".to_owned(), made["vip_address"].clone()));
        now.words
            .push(("<port of lb>".to_owned(), made["vip_port_id"].clone()));
    }
    for floating in items(&cloud["floatingips"]) {
        let body = json!({"floatingip": {
            "floating_network_id": now.value(&floating["floating_network_id"]),
            "port_id": now.value(&floating["port_id"]),
            "description": floating["description"],
        }});
        let made = play.site.rest.post("network/v2.0/floatingips", body).await?;
        let address = made["floatingip"]["floating_ip_address"].clone();
        now.words.push(("<fip>".to_owned(), address));
    }
    for (name, service) in phase["services"].as_object().into_iter().flatten() {
        let notes = json!({"metadata": {"annotations": now.value(&service["annotations"])}});
        play.services
            .patch(name, &PatchParams::default(), &Patch::Merge(notes))
            .await?;
        let status = json!({"status": now.value(&service["status"])});
        play.services
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
    }
    Ok(scene)
}

async fn security_group(play: &Play, now: &Now, group: &Value) -> Result<String> {
    let rest = &play.site.rest;
    let body = json!({"security_group": {
        "name": now.value(&group["name"]), "description": group["description"],
    }});
    let made = rest.post("network/v2.0/security-groups", body).await?;
    let id = text(&made["security_group"]["id"]);
    for rule in items(&made["security_group"]["security_group_rules"]) {
        rest.delete(&format!(
            "network/v2.0/security-group-rules/{}",
            text(&rule["id"])
        ))
        .await?;
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

async fn node_ports(play: &Play, cloud: &Value, groups: &[String]) -> Result<()> {
    let rest = &play.site.rest;
    for (node, id) in &play.site.servers {
        if !items(&cloud["node_ports"][node]["security_groups"])
            .iter()
            .any(|group| group == "<sg>")
        {
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

/// What is said of it, without nulls, empty texts and empty collections.
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

async fn balancer(play: &Play, now: &Now, lb: &Value) -> Result<Value> {
    let rest = &play.site.rest;
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
    patiently(LIMIT, active)
        .await
        .with_context(|| format!("{path} does not become ACTIVE"))
}

/// Versions of the Services; they change with every patch.
pub(crate) async fn versions(play: &Play, scenes: &[Scene]) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for name in scenes.iter().flat_map(|scene| scene.uids.keys()) {
        let version = play.services.get(name).await?.metadata.resource_version;
        versions.insert(name.clone(), version.unwrap_or_default());
    }
    Ok(versions)
}
