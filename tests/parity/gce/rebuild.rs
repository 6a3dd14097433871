//! Creates the objects of a recorded phase with requests of the tests.

use anyhow::{Context as _, Result};
use ccm_testbed::gce::{GceServer, REGION};
use reqwest::Method;
use serde_json::{Value, json};

use super::{GceSite, LINK};
use crate::{
    cases::{items, text},
    names::balancer_name,
    site::PresentNames,
};

/// Fields of recorded instance groups that their creation cannot set.
const SET_BY_MEMBERS: [&str; 5] = ["scope", "size", "instances", "network", "subnetwork"];
/// The kinds that are created as they are recorded. Used ones come before their users.
const KINDS: [&str; 7] = [
    "httpHealthChecks",
    "healthChecks",
    "targetPools",
    "backendServices",
    "forwardingRules",
    "firewalls",
    "routes",
];

/// Creates all objects of the phase, and records the values of the names in it.
pub(super) async fn rebuild(site: &GceSite, phase: &Value, names: &mut PresentNames) -> Result<()> {
    let server = &site.server;
    name_objects(site, phase, names);
    let held = hold_addresses(server, phase, names).await?;
    for group in items(&phase["cloud"]["instanceGroups"]) {
        create_group(server, &names.value(group)).await?;
    }
    for kind in KINDS {
        for object in items(&phase["cloud"][kind]) {
            let mut object = names.value(object);
            let path = format!("{}/{kind}", text(&object["scope"]));
            if let Some(fields) = object.as_object_mut() {
                fields.remove("scope");
            }
            // The name of a node port stands for its number.
            let allowed = object.get_mut("allowed").and_then(Value::as_array_mut);
            for allowed in allowed.into_iter().flatten() {
                let ports = allowed.get_mut("ports").and_then(Value::as_array_mut);
                for port in ports.into_iter().flatten() {
                    if port.is_number() {
                        *port = json!(port.to_string());
                    }
                }
            }
            create(server, &path, &object).await?;
        }
    }
    // The addresses stay with their forwarding rules.
    for name in held {
        server.call(Method::DELETE, &format!("regions/{REGION}/addresses/{name}"), None).await?;
    }
    Ok(())
}

/// Creates an object, unless it exists. Several cases share some.
async fn create(server: &GceServer, path: &str, object: &Value) -> Result<bool> {
    match server.call(Method::POST, path, Some(object)).await {
        Ok(_) => Ok(true),
        Err(error) if error.to_string().contains("alreadyExists") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Records the values of names that exist before the objects.
fn name_objects(site: &GceSite, phase: &Value, names: &mut PresentNames) {
    names.insert("<api>/", json!(LINK));
    names.insert("<cid>", json!(super::CLUSTER_ID));
    for (name, address) in &site.reserved {
        names.insert(format!("<{name}>"), json!(address));
    }
    for service in phase["services"].as_object().into_iter().flatten().map(|(name, _)| name) {
        let uid = names.value(&json!(format!("<uid:{service}>")));
        names.insert(format!("<lb:{service}>"), json!(balancer_name(&text(&uid))));
    }
}

/// Reserves an address for each forwarding rule without a static one, since a rule cannot ask for an address that is not reserved.
/// Returns the names of the addresses.
async fn hold_addresses(server: &GceServer, phase: &Value, names: &mut PresentNames) -> Result<Vec<String>> {
    let mut held = Vec::new();
    for (at, rule) in items(&phase["cloud"]["forwardingRules"]).iter().enumerate() {
        let recorded = text(&rule["IPAddress"]);
        if !recorded.starts_with("<ip:") {
            continue;
        }
        let name = format!("held-{at}");
        let mut address = json!({"name": name, "addressType": rule["loadBalancingScheme"]});
        let field = if rule["loadBalancingScheme"] == "INTERNAL" {
            "subnetwork"
        } else {
            "networkTier"
        };
        address[field] = names.value(&rule[field]);
        let path = format!("regions/{REGION}/addresses");
        server.call(Method::POST, &path, Some(&address)).await?;
        let address = server.call(Method::GET, &format!("{path}/{name}"), None).await?;
        names.insert(recorded, address["address"].clone());
        held.push(name);
    }
    Ok(held)
}

/// Creates an instance group with its members.
async fn create_group(server: &GceServer, group: &Value) -> Result<()> {
    let recorded = text(&group["name"]);
    let (scope, name) = recorded.rsplit_once('/').context("a group without a zone")?;
    let mut fields = group.clone();
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|field, _| !SET_BY_MEMBERS.contains(&field.as_str()));
    }
    fields["name"] = json!(name);
    let path = format!("{scope}/instanceGroups");
    if !create(server, &path, &fields).await? {
        return Ok(());
    }
    let members: Vec<_> = items(&group["instances"]).iter().map(|link| json!({"instance": link})).collect();
    if members.is_empty() {
        return Ok(());
    }
    let members = json!({"instances": members});
    server.call(Method::POST, &format!("{path}/{name}/addInstances"), Some(&members)).await?;
    Ok(())
}
