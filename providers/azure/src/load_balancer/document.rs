//! Changes of documents, and how documents are compared.

use std::fmt;

use ccm_core::{
    client::Operation as _,
    load_balancer::{Effect, StepDescription, StepObjects},
    plan::{
        CloudChange,
        document::{Document, Rules},
    },
};
use http::Method;
use serde_json::Value;

use super::settings::BalancerSettings;
use crate::client::{field, resource::Resource};

/// The lists of a load balancer.
pub(crate) const FRONTENDS: &str = "frontendIPConfigurations";
pub(crate) const POOLS: &str = "backendAddressPools";
pub(crate) const RULES: &str = "loadBalancingRules";
pub(crate) const PROBES: &str = "probes";
/// The other lists of a load balancer whose elements refer to frontends. They belong to other clients.
pub(crate) const OTHERS: [&str; 3] = ["outboundRules", "inboundNatRules", "inboundNatPools"];

/// The kind of private link services.
const LINK_SERVICES: &str = "privateLinkServices";
/// The lists of a private link service.
pub(crate) const CONNECTIONS: &str = "privateEndpointConnections";
pub(crate) const LINK_ADDRESSES: &str = "ipConfigurations";
pub(crate) const LINK_FRONTENDS: &str = "loadBalancerFrontendIpConfigurations";

/// The resource of a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Balancer {
        group: String,
        name: String,
    },
    Address {
        group: String,
        name: String,
    },
    SecurityGroup {
        group: String,
        name: String,
    },
    Pool {
        group: String,
        balancer: String,
        name: String,
    },
    LinkService {
        group: String,
        name: String,
    },
    /// The connection of a private endpoint to a private link service.
    LinkConnection {
        group: String,
        service: String,
        name: String,
    },
    Subnet {
        group: String,
        network: String,
        name: String,
    },
    ScaleSet {
        group: String,
        name: String,
    },
    Instance {
        group: String,
        set: String,
        id: String,
    },
    Interface {
        group: String,
        name: String,
    },
}

impl Target {
    /// The load balancer of a part: its resource group and name.
    pub(crate) fn balancer(part: &str) -> Self {
        let (group, name) = part.split_once('/').unwrap_or_default();
        Self::Balancer {
            group: group.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The network security group of a part: its resource group and name.
    pub(crate) fn security_group(part: &str) -> Self {
        let (group, name) = part.split_once('/').unwrap_or_default();
        Self::SecurityGroup {
            group: group.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(crate) fn resource(&self) -> Resource<'_> {
        match self {
            Self::Balancer { group, name } => Resource::LoadBalancer { group, name },
            Self::Address { group, name } => Resource::PublicAddress { group, name },
            Self::SecurityGroup { group, name } => Resource::SecurityGroup { group, name },
            Self::Pool {
                group,
                balancer,
                name,
            } => Resource::Pool {
                group,
                balancer,
                name,
            },
            Self::LinkService { group, name } => Resource::LinkService { group, name },
            Self::LinkConnection { group, service, name } => {
                Resource::LinkConnection { group, service, name }
            }
            Self::Subnet { group, network, name } => Resource::Subnet { group, network, name },
            Self::ScaleSet { group, name } => Resource::ScaleSet { group, name },
            Self::Instance { group, set, id } => Resource::Instance { group, set, id },
            Self::Interface { group, name } => Resource::Interface { group, name },
        }
    }

    /// The ID in the Azure Resource Manager.
    pub(crate) fn id(&self, settings: &BalancerSettings) -> String {
        let machine = |group: &str, rest: &str| {
            let subscription = &settings.subscription;
            format!("/subscriptions/{subscription}/resourceGroups/{group}/providers/{rest}")
        };
        match self {
            Self::Balancer { group, name } => settings.network_id(group, "loadBalancers", name),
            Self::Address { group, name } => settings.network_id(group, "publicIPAddresses", name),
            Self::SecurityGroup { group, name } => settings.network_id(group, "networkSecurityGroups", name),
            Self::Pool {
                group,
                balancer,
                name,
            } => {
                format!("{}/{POOLS}/{name}", settings.network_id(group, "loadBalancers", balancer))
            }
            Self::LinkService { group, name } => settings.network_id(group, LINK_SERVICES, name),
            Self::LinkConnection { group, service, name } => {
                format!("{}/{CONNECTIONS}/{name}", settings.network_id(group, LINK_SERVICES, service))
            }
            Self::Subnet { group, network, name } => {
                format!("{}/subnets/{name}", settings.network_id(group, "virtualNetworks", network))
            }
            Self::ScaleSet { group, name } => {
                machine(group, &format!("Microsoft.Compute/virtualMachineScaleSets/{name}"))
            }
            Self::Instance { group, set, id } => machine(
                group,
                &format!("Microsoft.Compute/virtualMachineScaleSets/{set}/virtualMachines/{id}"),
            ),
            Self::Interface { group, name } => {
                machine(group, &format!("Microsoft.Network/networkInterfaces/{name}"))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balancer { name, .. } => write!(f, "load balancer {name}"),
            Self::Address { name, .. } => write!(f, "public IP address {name}"),
            Self::SecurityGroup { name, .. } => write!(f, "network security group {name}"),
            Self::Pool { balancer, name, .. } => write!(f, "backend pool {name} of load balancer {balancer}"),
            Self::LinkService { name, .. } => write!(f, "private link service {name}"),
            Self::LinkConnection { service, name, .. } => {
                write!(f, "private endpoint connection {name} of private link service {service}")
            }
            Self::Subnet { name, .. } => write!(f, "subnet {name}"),
            Self::ScaleSet { name, .. } => write!(f, "scale set {name}"),
            Self::Instance { set, id, .. } => write!(f, "instance {id} of scale set {set}"),
            Self::Interface { name, .. } => write!(f, "network interface {name}"),
        }
    }
}

/// One PUT or DELETE.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ArmChange {
    pub(crate) target: Target,
    pub(crate) effect: Effect,
    /// The document, with the etag of the one that was read; null for a deletion.
    pub(crate) body: Value,
}

impl ArmChange {
    pub(crate) fn method(&self) -> Method {
        match self.effect {
            Effect::Create | Effect::Change => Method::PUT,
            Effect::Delete => Method::DELETE,
        }
    }
}

impl CloudChange for ArmChange {
    fn describe(&self) -> StepDescription {
        let verb = match self.effect {
            Effect::Create => "create",
            Effect::Change => "update",
            Effect::Delete => "delete",
        };
        let operation = self.target.resource().op(&self.method());
        let mut objects = StepObjects::changing([self.target.to_string()]);
        if let Target::Instance { group, set, .. } = &self.target {
            // It waits until the model of its scale set is written.
            let set = Target::ScaleSet {
                group: group.clone(),
                name: set.clone(),
            };
            objects = objects.using([set.to_string()]);
        }
        if let Target::LinkService { .. } = &self.target {
            // It waits until its subnets permit private link services.
            let subnets =
                elements(&self.body, LINK_ADDRESSES).filter_map(|address| reference(address, "subnet"));
            let names = subnets.filter_map(|id| id.rsplit('/').next());
            objects = objects.using(names.map(|name| format!("subnet {name}")));
        }
        if let Target::LinkConnection { group, service, .. } = &self.target {
            // The service is deleted after it.
            let service = Target::LinkService {
                group: group.clone(),
                name: service.clone(),
            };
            objects = StepObjects::changing([self.target.to_string(), service.to_string()]);
        }
        let sentence = format!("{verb} {}", self.target);
        StepDescription {
            objects: Some(objects),
            // A load balancer is created for all Services that need it.
            creates: (self.effect == Effect::Create).then(|| self.target.to_string()),
            ..StepDescription::new(operation.name(), self.effect, sentence)
        }
    }
}

/// Applies a change to the document as it was read. One that was read after the change has it already.
pub(crate) fn fold(change: &ArmChange, reply: Option<&Value>, observed: &mut Option<Document>) {
    let after = || Document::planned(reply.filter(|reply| !reply.is_null()).unwrap_or(&change.body));
    match (change.effect, observed.as_ref()) {
        (Effect::Delete, _) => *observed = None,
        (Effect::Create, None) => *observed = Some(after()),
        // Only in a plan, in which another part creates the document.
        (Effect::Change, None) if change.body.get(field::ETAG).is_none() => *observed = Some(after()),
        (Effect::Change, Some(before))
            if before.fields().get(field::ETAG) == change.body.get(field::ETAG) =>
        {
            *observed = Some(after());
        }
        (Effect::Create, Some(_)) | (Effect::Change, _) => {}
    }
}

/// The state of a document: `Succeeded`, `Failed`, or that a change is in progress. Empty for one that only exists in a plan.
pub(crate) fn state(document: &Document) -> &str {
    document.fields().pointer(field::STATE_PATH).and_then(Value::as_str).unwrap_or_default()
}

/// Whether Azure is changing or deleting the document.
pub(crate) fn is_changing(document: &Document) -> bool {
    !["", "Succeeded", "Failed", "Canceled"]
        .iter()
        .any(|end| state(document).eq_ignore_ascii_case(end))
}

/// Whether the last change of the document failed.
pub(crate) fn has_failed(document: &Document) -> bool {
    ["Failed", "Canceled"].iter().any(|end| state(document).eq_ignore_ascii_case(end))
}

/// How load balancers are compared.
pub(crate) fn balancer_rules() -> Rules {
    Rules::default()
        .set("properties.frontendIPConfigurations", &["name"])
        .set("properties.backendAddressPools", &["name"])
        .set("properties.loadBalancingRules", &["name"])
        .set("properties.probes", &["name"])
        .any_case(&[
            "properties.frontendIPConfigurations[].name",
            "properties.frontendIPConfigurations[].properties.publicIPAddress.id",
            "properties.frontendIPConfigurations[].properties.subnet.id",
            "properties.frontendIPConfigurations[].properties.privateIPAllocationMethod",
            "properties.backendAddressPools[].name",
            "properties.loadBalancingRules[].name",
            "properties.loadBalancingRules[].properties.protocol",
            "properties.loadBalancingRules[].properties.loadDistribution",
            "properties.loadBalancingRules[].properties.frontendIPConfiguration.id",
            "properties.loadBalancingRules[].properties.backendAddressPool.id",
            "properties.loadBalancingRules[].properties.probe.id",
            "properties.probes[].name",
            "properties.probes[].properties.protocol",
            "properties.probes[].properties.requestPath",
        ])
        .empty_is_missing()
        .read_only(&["properties.provisioningState"])
}

/// How public IP addresses are compared.
pub(crate) fn address_rules() -> Rules {
    Rules::default().empty_is_missing().read_only(&["properties.provisioningState"])
}

/// A list in the properties of a document.
pub(crate) fn elements<'a>(document: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    let list = document.get(field::PROPERTIES).and_then(|properties| properties.get(list));
    list.and_then(Value::as_array).into_iter().flatten()
}

/// The name of a document or of an element.
pub(crate) fn name(element: &Value) -> &str {
    element.get(field::NAME).and_then(Value::as_str).unwrap_or_default()
}

/// The element of a list with this name.
pub(crate) fn element_named<'a>(document: &'a Value, list: &str, wanted: &str) -> Option<&'a Value> {
    elements(document, list).find(|element| name(element).eq_ignore_ascii_case(wanted))
}

/// The ID that a property of an element refers to.
pub(crate) fn reference<'a>(element: &'a Value, property: &str) -> Option<&'a str> {
    element.get(field::PROPERTIES)?.get(property)?.get("id")?.as_str()
}

/// The name of the frontend to which a rule refers.
pub(crate) fn frontend_of_rule(rule: &Value) -> Option<&str> {
    reference(rule, "frontendIPConfiguration")?.rsplit('/').next()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn change(effect: Effect, body: Value) -> ArmChange {
        ArmChange {
            target: Target::Balancer {
                group: "g".to_owned(),
                name: "lb".to_owned(),
            },
            effect,
            body,
        }
    }

    #[test]
    fn a_document_that_was_read_after_a_change_stays_as_it_is() {
        let mut observed = Some(Document::planned(&json!({"etag": "1", "tags": {}})));
        let change = change(Effect::Change, json!({"etag": "1", "tags": {"a": "b"}}));
        let reply = json!({"etag": "2", "tags": {"a": "b"}});
        fold(&change, Some(&reply), &mut observed);
        assert_eq!(observed.as_ref().unwrap().fields(), &reply);
        let newer = json!({"etag": "3", "tags": {"a": "b", "c": "d"}});
        observed = Some(Document::planned(&newer));
        fold(&change, Some(&reply), &mut observed);
        assert_eq!(observed.unwrap().fields(), &newer);
    }

    #[test]
    fn only_documents_with_a_change_in_progress_are_changing() {
        let document = |state: &str| Document::planned(&json!({"properties": {"provisioningState": state}}));
        assert!(is_changing(&document("Updating")) && is_changing(&document("Deleting")));
        assert!(!is_changing(&document("succeeded")) && !is_changing(&document("Failed")));
        assert!(has_failed(&document("Failed")) && !has_failed(&document("Succeeded")));
        assert!(!is_changing(&Document::planned(&json!({}))));
    }
}
