//! Creates the objects of a recorded phase with requests of the tests.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use ccm_testbed::arm::ArmServer;
use reqwest::Method;
use serde_json::{Value, json};

use super::{AzureSite, Machines};
use crate::{
    cases::{items, text},
    names::balancer_name,
    site::PresentNames,
};

/// Fields of a recorded public IP address that are not its properties.
const NOT_PROPERTIES_OF_ADDRESS: [&str; 6] = ["name", "group", "sku", "zones", "tags", "used_by"];
/// Fields of a recorded rule that are references, or its name.
const NOT_PROPERTIES_OF_RULE: [&str; 4] = ["name", "frontend", "pool", "probe"];

/// Creates all objects of the phase, and records the values of the names in it.
pub(super) async fn rebuild(site: &AzureSite, phase: &Value, names: &mut PresentNames) -> Result<()> {
    name_objects(site, phase, names);
    let cloud = &phase["cloud"];
    for address in items(&cloud["public_ips"]) {
        create_address(&site.server, address, names).await?;
    }
    for balancer in items(&cloud["load_balancers"]) {
        create_balancer(&site.server, balancer, names).await?;
    }
    for link in items(&names.value(&cloud["private_link_services"])) {
        create_private_link(&site.server, link).await?;
    }
    create_security_rules(&site.server, &names.value(&cloud["security_rules"])).await?;
    for (scale_set, pools) in cloud["scale_set_models"].as_object().into_iter().flatten() {
        join_scale_set(&site.server, scale_set, pools).await?;
    }
    join_machines(site, &names.value(&cloud["load_balancers"])).await?;
    site.put_routes(&routes(&names.value(&cloud["routes"]))).await
}

/// Records the values of names that exist before the objects.
fn name_objects(site: &AzureSite, phase: &Value, names: &mut PresentNames) {
    for (at, machine) in site.server.machines.iter().enumerate() {
        names.insert(format!("<node-{}>", at + 1), json!(machine.name));
        names.insert(format!("<ip:node-{}>", at + 1), json!(machine.ips.first()));
    }
    for service in phase["services"].as_object().into_iter().flatten().map(|(name, _)| name) {
        let uid = names.value(&json!(format!("<uid:{service}>")));
        names.insert(format!("<base:{service}>"), json!(balancer_name(&text(&uid))));
    }
}

/// The ID for a recorded one: `/GROUP/KIND/NAME`.
fn id_of(server: &ArmServer, recorded: &str) -> Result<String> {
    let (group, rest) = recorded.trim_start_matches('/').split_once('/').context("an ID without a group")?;
    let subscription = server.subscription();
    Ok(format!(
        "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/{rest}"
    ))
}

/// Tags from their recorded form: `NAME=VALUE`.
fn tags(recorded: &Value) -> BTreeMap<String, String> {
    let pairs = items(recorded).iter().filter_map(|tag| tag.as_str()?.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The object without these fields.
fn without(object: &Value, fields: &[&str]) -> Value {
    let mut object = object.clone();
    if let Some(all) = object.as_object_mut() {
        all.retain(|field, _| !fields.contains(&field.as_str()));
    }
    object
}

/// Creates a public IP address, unless it exists, since it is the user's.
async fn create_address(server: &ArmServer, recorded: &Value, names: &mut PresentNames) -> Result<()> {
    let address = names.value(recorded);
    let (group, name) = (text(&address["group"]), text(&address["name"]));
    let id = id_of(server, &format!("/{group}/publicIPAddresses/{name}"))?;
    if server.call(Method::GET, &id, None).await.is_err() {
        let mut properties = without(&address, &NOT_PROPERTIES_OF_ADDRESS);
        if let Some(prefix) = properties["publicIPPrefix"]["id"].as_str() {
            properties["publicIPPrefix"] = json!({"id": id_of(server, prefix)?});
        }
        if let Some(label) = properties["dnsSettings"]["domainNameLabel"].as_str() {
            properties["dnsSettings"] = json!({"domainNameLabel": label});
        }
        let body = json!({
            "location": "eastus",
            "sku": {"name": address["sku"]},
            "zones": address["zones"],
            "tags": tags(&address["tags"]),
            "properties": properties,
        });
        server.call(Method::PUT, &id, Some(&body)).await?;
    }
    let created = server.call(Method::GET, &id, None).await?;
    let recorded = format!("<ip:{}>", text(&recorded["name"]));
    names.insert(recorded, created["properties"]["ipAddress"].clone());
    Ok(())
}

/// Creates a load balancer. Private addresses are assigned by the server; those that a Service asks for are kept then.
async fn create_balancer(server: &ArmServer, recorded: &Value, names: &mut PresentNames) -> Result<()> {
    let balancer = names.value(recorded);
    let (group, name) = (text(&balancer["group"]), text(&balancer["name"]));
    let id = id_of(server, &format!("/{group}/loadBalancers/{name}"))?;
    let child = |kind: &str, name: &Value| json!({"id": format!("{id}/{kind}/{}", text(name))});
    let mut frontends = Vec::new();
    for frontend in items(&balancer["frontends"]) {
        let mut properties = json!({"privateIPAllocationMethod": "Dynamic"});
        if let Some(address) = frontend["public_ip"].as_str() {
            properties["publicIPAddress"] = json!({"id": id_of(server, address)?});
        }
        if let Some(subnet) = frontend["subnet"].as_str() {
            let subnet = server.network_id(&format!("virtualNetworks/vnet/subnets/{subnet}"));
            properties["subnet"] = json!({"id": subnet});
        }
        if frontend["version"].is_string() {
            properties["privateIPAddressVersion"] = frontend["version"].clone();
        }
        frontends.push(json!({
            "name": frontend["name"], "zones": frontend["zones"], "properties": properties,
        }));
    }
    let pools = items(&balancer["pools"]).iter().map(|pool| pool_of(server, pool));
    let rules = items(&balancer["rules"]).iter().map(|rule| {
        let mut properties = without(rule, &NOT_PROPERTIES_OF_RULE);
        properties["frontendIPConfiguration"] = child("frontendIPConfigurations", &rule["frontend"]);
        properties["backendAddressPool"] = child("backendAddressPools", &rule["pool"]);
        if rule["probe"].is_string() {
            properties["probe"] = child("probes", &rule["probe"]);
        }
        json!({"name": rule["name"], "properties": properties})
    });
    let probes = items(&balancer["probes"])
        .iter()
        .map(|probe| json!({"name": probe["name"], "properties": without(probe, &["name"])}));
    let mut body = json!({
        "location": "eastus",
        "sku": {"name": balancer["sku"]},
        "tags": tags(&balancer["tags"]),
        "properties": {
            "frontendIPConfigurations": frontends,
            "backendAddressPools": pools.collect::<Vec<_>>(),
            "loadBalancingRules": rules.collect::<Vec<_>>(),
            "probes": probes.collect::<Vec<_>>(),
        },
    });
    server.call(Method::PUT, &id, Some(&body)).await?;
    let created = server.call(Method::GET, &id, None).await?;
    let assigned = items(&created["properties"]["frontendIPConfigurations"]);
    for (at, (frontend, assigned)) in items(&recorded["frontends"]).iter().zip(assigned).enumerate() {
        let Some(name) = frontend["address"].as_str() else {
            continue;
        };
        let address = &assigned["properties"]["privateIPAddress"];
        names.insert(name, address.clone());
        if frontend["allocation"] == "Static" {
            let properties = &mut body["properties"]["frontendIPConfigurations"][at]["properties"];
            properties["privateIPAllocationMethod"] = json!("Static");
            properties["privateIPAddress"] = address.clone();
        }
    }
    server.call(Method::PUT, &id, Some(&body)).await?;
    Ok(())
}

/// A pool, with addresses of nodes in their recorded form: `NAME ADDRESS`, and maybe a network.
fn pool_of(server: &ArmServer, pool: &Value) -> Value {
    let network = |name: &str| json!({"id": server.network_id(&format!("virtualNetworks/{name}"))});
    let addresses = items(&pool["addresses"]).iter().map(|recorded| {
        let recorded = text(recorded);
        let mut words = recorded.split(' ');
        let (name, address) = (words.next(), words.next());
        let mut properties = json!({"ipAddress": address});
        if let Some(name) = words.next() {
            properties["virtualNetwork"] = network(name);
        }
        json!({"name": name, "properties": properties})
    });
    let mut properties = json!({"loadBalancerBackendAddresses": addresses.collect::<Vec<_>>()});
    if let Some(name) = pool["virtual_network"].as_str() {
        properties["virtualNetwork"] = network(name);
    }
    json!({"name": pool["name"], "properties": properties})
}

/// Creates a private link service, after its subnets permit that.
async fn create_private_link(server: &ArmServer, recorded: &Value) -> Result<()> {
    let frontends = items(&recorded["frontends"])
        .iter()
        .map(|frontend| json!({"id": server.network_id(&format!("loadBalancers/{}", text(frontend)))}));
    let mut addresses = Vec::new();
    for address in items(&recorded["ips"]) {
        let subnet = id_of(server, &text(&address["subnet"]["id"]))?;
        let mut document = server.call(Method::GET, &subnet, None).await?;
        document["properties"]["privateLinkServiceNetworkPolicies"] = json!("Disabled");
        server.call(Method::PUT, &subnet, Some(&document)).await?;
        let mut properties = without(address, &["name"]);
        properties["subnet"] = json!({"id": subnet});
        addresses.push(json!({"name": address["name"], "properties": properties}));
    }
    let mut properties = without(recorded, &["name", "tags", "frontends", "ips"]);
    properties["loadBalancerFrontendIpConfigurations"] = frontends.collect();
    properties["ipConfigurations"] = json!(addresses);
    let body = json!({"location": "eastus", "tags": tags(&recorded["tags"]), "properties": properties});
    let id = server.network_id(&format!("privateLinkServices/{}", text(&recorded["name"])));
    server.call(Method::PUT, &id, Some(&body)).await?;
    Ok(())
}

/// Sets the rules of the security group.
async fn create_security_rules(server: &ArmServer, recorded: &Value) -> Result<()> {
    let id = server.network_id("networkSecurityGroups/nsg");
    let mut group = server.call(Method::GET, &id, None).await?;
    let rules = items(recorded).iter().map(|rule| {
        let mut properties = json!({
            "access": rule["access"],
            "direction": rule["flow"],
            "protocol": rule["protocol"],
            "priority": rule["priority"],
        });
        for (list, one, many) in [
            ("sources", "sourceAddressPrefix", "sourceAddressPrefixes"),
            ("destinations", "destinationAddressPrefix", "destinationAddressPrefixes"),
            ("source_ports", "sourcePortRange", "sourcePortRanges"),
            ("ports", "destinationPortRange", "destinationPortRanges"),
        ] {
            // A service tag, and `*`, are only possible as the single value.
            let values: Vec<Value> = items(&rule[list]).iter().map(as_text).collect();
            match values.as_slice() {
                [value] if !text(value).starts_with(|first: char| first.is_ascii_digit()) => {
                    properties[one] = value.clone();
                }
                _ => properties[many] = json!(values),
            }
        }
        json!({"name": rule["name"], "properties": properties})
    });
    group["properties"]["securityRules"] = rules.collect();
    server.call(Method::PUT, &id, Some(&group)).await?;
    Ok(())
}

/// A port as text. The name of a node port stands for its number.
fn as_text(value: &Value) -> Value {
    if value.is_number() {
        json!(value.to_string())
    } else {
        value.clone()
    }
}

/// Adds new instances of a scale set to these pools: `BALANCER/backendAddressPools/POOL`.
async fn join_scale_set(server: &ArmServer, name: &str, pools: &Value) -> Result<()> {
    let subscription = server.subscription();
    let id = format!(
        "/subscriptions/{subscription}/resourceGroups/k8s/providers/Microsoft.Compute/virtualMachineScaleSets/{name}"
    );
    let mut scale_set = server.call(Method::GET, &id, None).await?;
    let pools = items(pools)
        .iter()
        .map(|pool| server.network_id(&format!("loadBalancers/{}", text(pool))));
    let pools: Vec<String> = pools.collect();
    let profile = &mut scale_set["properties"]["virtualMachineProfile"]["networkProfile"];
    let interfaces = profile["networkInterfaceConfigurations"].as_array_mut();
    for interface in interfaces.into_iter().flatten() {
        for configuration in interface["properties"]["ipConfigurations"].as_array_mut().into_iter().flatten()
        {
            set_pools(configuration, &pools);
        }
    }
    server.call(Method::PUT, &id, Some(&scale_set)).await?;
    Ok(())
}

fn set_pools(configuration: &mut Value, pools: &[String]) {
    let references: Vec<_> = pools.iter().map(|pool| json!({"id": pool})).collect();
    configuration["properties"]["loadBalancerBackendAddressPools"] = json!(references);
}

/// Adds the machines to the pools with them as members: `NODE CONFIGURATION`.
async fn join_machines(site: &AzureSite, balancers: &Value) -> Result<()> {
    let server = &site.server;
    let mut pools_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for balancer in items(balancers) {
        for pool in items(&balancer["pools"]) {
            let path = format!(
                "loadBalancers/{}/backendAddressPools/{}",
                text(&balancer["name"]),
                text(&pool["name"])
            );
            for member in items(&pool["members"]) {
                pools_of.entry(text(member)).or_default().push(server.network_id(&path));
            }
        }
    }
    for machine in &server.machines {
        let (id, at) = match site.machines {
            Machines::Uniform | Machines::DualStack => {
                let at = "/properties/networkProfileConfiguration/networkInterfaceConfigurations/0/properties/ipConfigurations";
                (machine.id.clone(), at)
            }
            Machines::Flexible | Machines::Standalone => {
                let document = server.call(Method::GET, &machine.id, None).await?;
                let interface = &document["properties"]["networkProfile"]["networkInterfaces"][0]["id"];
                (text(interface), "/properties/ipConfigurations")
            }
        };
        let mut document = server.call(Method::GET, &id, None).await?;
        let configurations = document.pointer_mut(at).and_then(Value::as_array_mut);
        for configuration in configurations.context("a machine without an interface")? {
            let member = format!("{} {}", machine.name, text(&configuration["name"]));
            set_pools(configuration, pools_of.get(&member).map_or(&[], Vec::as_slice));
        }
        server.call(Method::PUT, &id, Some(&document)).await?;
    }
    Ok(())
}

fn routes(recorded: &Value) -> Vec<Value> {
    let routes = items(recorded).iter();
    routes
        .map(|route| json!({"name": route["name"], "properties": without(route, &["name", "tags"])}))
        .collect()
}
