//! Machines as the Azure Resource Manager describes them, and what a node gets of them.

use ccm_core::{Error, ErrorKind, Power, Result, instances::finder::Record};
use serde::Deserialize;
use serde_json::Value;

use super::machine_id::{MachineId, MachineKind, provider_id};

/// A machine, with the fields that nodes need.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// The ID in the form in which IDs are compared.
    key: String,
    pub(crate) id: MachineId,
    pub(crate) provider_id: String,
    /// The names of its node.
    names: Vec<String>,
    /// The size.
    pub(crate) size: Option<String>,
    location: String,
    zones: Vec<String>,
    fault_domain: Option<i64>,
    is_flexible: bool,
    pub(crate) power: Power,
    /// The IDs of its network interfaces, and which of them is marked as the primary one.
    pub(crate) interfaces: Vec<(String, Option<bool>)>,
}

/// The document of a machine or an instance.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MachineDocument {
    id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    location: Option<String>,
    #[serde(default)]
    zones: Option<Vec<String>>,
    #[serde(default)]
    sku: Option<Sku>,
    #[serde(default)]
    properties: Option<MachineProperties>,
}

#[derive(Debug, Deserialize)]
struct Sku {
    #[serde(default)]
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MachineProperties {
    provisioning_state: Option<String>,
    hardware_profile: Option<HardwareProfile>,
    os_profile: Option<OsProfile>,
    network_profile: Option<NetworkProfile>,
    virtual_machine_scale_set: Option<Value>,
    instance_view: Option<InstanceView>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HardwareProfile {
    vm_size: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OsProfile {
    computer_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NetworkProfile {
    network_interfaces: Option<Vec<InterfaceReference>>,
}

#[derive(Debug, Deserialize)]
struct InterfaceReference {
    id: String,
    #[serde(default)]
    properties: Option<InterfaceReferenceProperties>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InterfaceReferenceProperties {
    primary: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InstanceView {
    platform_fault_domain: Option<i64>,
    statuses: Option<Vec<Status>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: Option<String>,
}

impl Machine {
    /// Reads a document.
    ///
    /// # Errors
    /// It is not the document of a machine.
    pub(crate) fn read(document: Value) -> Result<Self> {
        let unreadable = |text: String| Error::new(ErrorKind::Unexpected, text);
        let document: MachineDocument = serde_json::from_value(document).map_err(|error| {
            unreadable("the document of a machine has an unexpected form".to_owned()).with_source(error)
        })?;
        let id = MachineId::parse(&document.id)
            .ok_or_else(|| unreadable(format!("{} is not the ID of a machine", document.id)))?;
        let properties = document.properties.unwrap_or_default();
        let interfaces =
            properties.network_profile.unwrap_or_default().network_interfaces.unwrap_or_default();
        let interfaces: Vec<_> = interfaces
            .into_iter()
            .map(|interface| (interface.id, interface.properties.unwrap_or_default().primary))
            .collect();
        let view = properties.instance_view.unwrap_or_default();
        let power = power(properties.provisioning_state.as_deref(), &view);
        let computer = properties.os_profile.unwrap_or_default().computer_name;
        let names = names(&id, computer, document.name, interfaces.is_empty());
        let size = properties.hardware_profile.unwrap_or_default().vm_size;
        let sku = document.sku.and_then(|sku| sku.name);
        Ok(Self {
            key: id.to_string(),
            provider_id: provider_id(&document.id),
            names,
            size: match id.kind {
                MachineKind::Instance { .. } => sku.or(size),
                MachineKind::Machine { .. } => size,
            },
            location: document.location.unwrap_or_default().to_ascii_lowercase(),
            zones: document.zones.unwrap_or_default(),
            fault_domain: view.platform_fault_domain,
            is_flexible: properties.virtual_machine_scale_set.is_some(),
            power,
            interfaces,
            id,
        })
    }

    /// The hostname: that of the machine, which is the name of its node.
    pub(crate) fn hostname(&self) -> Option<&str> {
        self.names.first().map(String::as_str)
    }

    /// The region.
    pub(crate) fn region(&self) -> Option<String> {
        (!self.location.is_empty()).then(|| self.location.clone())
    }

    /// The zone: `<region>-<number>`, or without zones the number of the fault domain.
    ///
    /// # Errors
    /// Azure does not return it (yet).
    pub(crate) fn zone(&self) -> Result<String> {
        if let Some(zone) = self.zones.first() {
            return match zone.parse::<u32>() {
                Ok(number) => Ok(format!("{}-{number}", self.location)),
                Err(_) => {
                    let text = format!("machine {} has the zone {zone:?}, which is not a number", self.key);
                    Err(Error::new(ErrorKind::Unexpected, text))
                }
            };
        }
        let needs_fault_domain = self.is_flexible || matches!(self.id.kind, MachineKind::Instance { .. });
        match self.fault_domain {
            Some(domain) => Ok(domain.to_string()),
            None if needs_fault_domain => {
                let text = format!("Azure returns neither a zone nor a fault domain of machine {}", self.key);
                Err(Error::new(ErrorKind::Unavailable, text))
            }
            None => Ok("0".to_owned()),
        }
    }
}

impl Record for Machine {
    fn id(&self) -> &str {
        &self.key
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

/// The names of the machine's node: its computer name, and for a machine of its own the name in Azure. A machine without a network
/// interface is still being created.
fn names(id: &MachineId, computer: Option<String>, name: Option<String>, is_unfinished: bool) -> Vec<String> {
    let Some(computer) = computer else {
        return Vec::new();
    };
    if is_unfinished {
        return Vec::new();
    }
    let own = match id.kind {
        MachineKind::Machine { .. } => name,
        MachineKind::Instance { .. } => None,
    };
    let mut names: Vec<String> = [Some(computer), own]
        .into_iter()
        .flatten()
        .map(|name| name.to_ascii_lowercase())
        .collect();
    names.dedup();
    names
}

/// A machine whose change is in progress counts as running.
fn power(state: Option<&str>, view: &InstanceView) -> Power {
    let is_settled = state.is_some_and(|state| state.eq_ignore_ascii_case("Succeeded"));
    let codes = view.statuses.iter().flatten().filter_map(|status| status.code.as_deref());
    let power = codes
        .map(str::to_ascii_lowercase)
        .find_map(|code| code.strip_prefix("powerstate/").map(str::to_owned));
    match power.as_deref() {
        Some("stopped" | "deallocated" | "deallocating") if is_settled => Power::Off,
        _ => Power::On,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    const GROUP: &str = "/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute";

    fn instance(more: &Value) -> Value {
        let mut document = json!({
            "id": format!("{GROUP}/virtualMachineScaleSets/pool/virtualMachines/3"),
            "name": "pool_3",
            "location": "WestEurope",
            "sku": {"name": "Standard_D2s_v3"},
            "zones": ["2"],
            "properties": {
                "provisioningState": "Succeeded",
                "osProfile": {"computerName": "Pool00000A"},
                "networkProfile": {"networkInterfaces": [{"id": "nic"}]},
                "instanceView": {"platformFaultDomain": 1, "statuses": [{"code": "PowerState/running"}]},
            },
        });
        merge(&mut document, more);
        document
    }

    fn merge(document: &mut Value, more: &Value) {
        match (document, more) {
            (Value::Object(document), Value::Object(more)) => {
                for (key, value) in more {
                    merge(document.entry(key).or_insert(Value::Null), value);
                }
            }
            (document, more) => *document = more.clone(),
        }
    }

    fn read(more: &Value) -> Machine {
        Machine::read(instance(more)).unwrap()
    }

    #[test]
    fn a_node_has_the_name_size_and_zone_of_its_instance() {
        let machine = read(&json!({}));
        assert_eq!(machine.names(), ["pool00000a"]);
        assert_eq!(machine.size.as_deref(), Some("Standard_D2s_v3"));
        assert_eq!(machine.zone().unwrap(), "westeurope-2");
        assert_eq!(machine.region().unwrap(), "westeurope");
    }

    #[test]
    fn without_zones_the_fault_domain_counts() {
        assert_eq!(read(&json!({"zones": []})).zone().unwrap(), "1");
        let unknown = json!({"zones": [], "properties": {"instanceView": null}});
        assert_eq!(read(&unknown).zone().unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(read(&json!({"zones": ["x"]})).zone().is_err());
        // A machine of its own had zone 0 without an instance view in the Go cloud-controller-manager.
        let own = json!({
            "id": format!("{GROUP}/virtualMachines/vm-1"), "zones": [], "properties": {"instanceView": null},
        });
        assert_eq!(read(&own).zone().unwrap(), "0");
    }

    #[test]
    fn only_a_settled_machine_is_off() {
        for (state, code, power) in [
            ("Succeeded", "PowerState/deallocated", Power::Off),
            ("succeeded", "powerstate/Stopped", Power::Off),
            ("Succeeded", "PowerState/deallocating", Power::Off),
            ("Updating", "PowerState/deallocated", Power::On),
            ("Failed", "PowerState/stopped", Power::On),
            ("Succeeded", "PowerState/starting", Power::On),
            ("Succeeded", "ProvisioningState/succeeded", Power::On),
        ] {
            let more = json!({"properties": {
                "provisioningState": state, "instanceView": {"statuses": [{"code": code}]},
            }});
            assert_eq!(read(&more).power, power, "{state} {code}");
        }
    }

    #[test]
    fn a_machine_that_is_being_created_has_no_name() {
        for more in [
            json!({"properties": {"networkProfile": null}}),
            json!({"properties": {"osProfile": null}}),
        ] {
            assert!(read(&more).names().is_empty());
        }
    }

    #[test]
    fn a_machine_of_its_own_is_found_by_both_names() {
        let own = json!({
            "id": format!("{GROUP}/virtualMachines/VM-1"), "name": "VM-1",
            "properties": {"osProfile": {"computerName": "host-1"}, "hardwareProfile": {"vmSize": "Standard_B2s"}},
        });
        let machine = read(&own);
        assert_eq!(machine.names(), ["host-1", "vm-1"]);
        assert_eq!((machine.size.as_deref(), machine.hostname()), (Some("Standard_B2s"), Some("host-1")));
    }
}
