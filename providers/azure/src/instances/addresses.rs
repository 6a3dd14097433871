//! The addresses of machines, from their network interfaces.
//!
//! A node gets the first address of each family of its primary interface, as the Go node manager sets them: hostname, IPv4, IPv6. A
//! public address follows the private one of its family.

use std::{collections::HashMap, net::IpAddr};

use ccm_core::{AddressType, Error, ErrorKind, NodeAddress, Result};
use serde::Deserialize;
use serde_json::Value;

use super::machine::Machine;

/// A network interface.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Interface {
    id: String,
    #[serde(default)]
    properties: InterfaceProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InterfaceProperties {
    primary: Option<bool>,
    ip_configurations: Option<Vec<IpConfiguration>>,
}

/// An address of an interface.
#[derive(Clone, Debug, Deserialize)]
struct IpConfiguration {
    #[serde(default)]
    id: String,
    #[serde(default)]
    properties: IpProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct IpProperties {
    primary: Option<bool>,
    #[serde(rename = "privateIPAddress")]
    private: Option<String>,
    #[serde(rename = "publicIPAddress")]
    public: Option<Reference>,
}

/// A reference to another resource.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Reference {
    pub(crate) id: String,
}

/// A public IP address.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PublicAddress {
    id: String,
    #[serde(default)]
    properties: PublicProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PublicProperties {
    ip_address: Option<String>,
    ip_configuration: Option<Reference>,
}

/// Network interfaces and public addresses, by their IDs in lower case.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    interfaces: HashMap<String, Interface>,
    /// Also by the IDs of the IP configurations that they belong to.
    public: HashMap<String, String>,
}

impl AddressBook {
    /// Adds interfaces, and returns the IDs of their public addresses.
    pub(crate) fn add_interfaces(&mut self, documents: Vec<Value>) -> Vec<String> {
        let mut public = Vec::new();
        for document in documents {
            let Ok(interface) = serde_json::from_value::<Interface>(document) else {
                continue;
            };
            let configurations = interface.properties.ip_configurations.iter().flatten();
            let references =
                configurations.filter_map(|configuration| configuration.properties.public.as_ref());
            public.extend(references.map(|reference| reference.id.clone()));
            self.interfaces.insert(interface.id.to_ascii_lowercase(), interface);
        }
        public
    }

    /// Adds public addresses.
    pub(crate) fn add_public(&mut self, documents: Vec<Value>) {
        for document in documents {
            let Ok(public) = serde_json::from_value::<PublicAddress>(document) else {
                continue;
            };
            // A dynamic address that is not in use has no IP.
            let Some(ip) = public.properties.ip_address.filter(|ip| !ip.is_empty()) else {
                continue;
            };
            if let Some(configuration) = public.properties.ip_configuration {
                self.public.insert(configuration.id.to_ascii_lowercase(), ip.clone());
            }
            self.public.insert(public.id.to_ascii_lowercase(), ip);
        }
    }

    /// The addresses of a machine.
    ///
    /// # Errors
    /// Its primary interface is not known, or has no address.
    pub(crate) fn addresses(&self, machine: &Machine) -> Result<Vec<NodeAddress>> {
        let interface = self.primary(machine)?;
        let configurations = interface.properties.ip_configurations.as_deref().unwrap_or_default();
        let is_primary = |configuration: &&IpConfiguration| configuration.properties.primary == Some(true);
        let primary = configurations.iter().filter(is_primary);
        let others = configurations.iter().filter(|configuration| !is_primary(configuration));
        let ordered: Vec<(IpAddr, &IpConfiguration)> = primary
            .chain(others)
            .filter_map(|configuration| {
                let private = configuration.properties.private.as_ref()?;
                Some((private.parse().ok()?, configuration))
            })
            .collect();
        let mut addresses = Vec::new();
        addresses.extend(machine.hostname().map(|name| NodeAddress::new(AddressType::Hostname, name)));
        let names = addresses.len();
        for is_v4 in [true, false] {
            let Some((private, configuration)) = ordered.iter().find(|(ip, _)| ip.is_ipv4() == is_v4) else {
                continue;
            };
            addresses.push(NodeAddress::new(AddressType::InternalIP, private.to_string()));
            if let Some(public) = self.public_of(configuration) {
                addresses.push(NodeAddress::new(AddressType::ExternalIP, public));
            }
        }
        if addresses.len() == names {
            let text = format!("network interface {} has no address yet", interface.id);
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        Ok(addresses)
    }

    /// The primary interface: the only one, or the one that is marked.
    fn primary(&self, machine: &Machine) -> Result<&Interface> {
        let found: Vec<(&Interface, Option<bool>)> = machine
            .interfaces
            .iter()
            .filter_map(|(id, marked)| Some((self.interfaces.get(&id.to_ascii_lowercase())?, *marked)))
            .collect();
        let marked = found
            .iter()
            .find(|(interface, marked)| marked.or(interface.properties.primary) == Some(true))
            .map(|(interface, _)| *interface);
        let is_complete = found.len() == machine.interfaces.len();
        match (marked, found.as_slice()) {
            (Some(interface), _) => Ok(interface),
            (None, [(interface, _)]) if is_complete => Ok(interface),
            (None, _) => {
                let text = format!("Azure returns no primary network interface of {}", machine.provider_id);
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }

    fn public_of(&self, configuration: &IpConfiguration) -> Option<&str> {
        let reference = configuration.properties.public.as_ref()?;
        let by_reference = self.public.get(&reference.id.to_ascii_lowercase());
        by_reference
            .or_else(|| self.public.get(&configuration.id.to_ascii_lowercase()))
            .map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn machine(interfaces: &Value) -> Machine {
        Machine::read(json!({
            "id": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm-1",
            "properties": {"osProfile": {"computerName": "vm-1"}, "networkProfile": {"networkInterfaces": interfaces}},
        }))
        .unwrap()
    }

    fn configuration(name: &str, ip: &str, primary: bool, public: Option<&str>) -> Value {
        let mut properties = json!({"primary": primary, "privateIPAddress": ip});
        if let Some(public) = public {
            properties["publicIPAddress"] = json!({"id": public});
        }
        json!({"id": format!("/nic/ipConfigurations/{name}"), "name": name, "properties": properties})
    }

    fn shown(book: &AddressBook, machine: &Machine) -> Vec<String> {
        let addresses = book.addresses(machine).unwrap();
        addresses.iter().map(|address| format!("{} {}", address.kind, address.address)).collect()
    }

    #[test]
    fn both_families_and_their_public_addresses() {
        let mut book = AddressBook::default();
        let public = book.add_interfaces(vec![json!({"id": "/NIC", "properties": {"ipConfigurations": [
            configuration("b", "10.0.0.9", false, None),
            configuration("v6", "fd00::4", false, Some("/pip6")),
            configuration("a", "10.0.0.4", true, Some("/PIP4")),
        ]}})]);
        assert_eq!(public, ["/pip6", "/PIP4"]);
        book.add_public(vec![
            json!({"id": "/pip4", "properties": {"ipAddress": "20.0.0.1"}}),
            json!({"id": "/other", "properties": {
                "ipAddress": "2603::1", "ipConfiguration": {"id": "/nic/ipconfigurations/V6"},
            }}),
            json!({"id": "/unused", "properties": {}}),
        ]);
        let machine = machine(&json!([{"id": "/nic"}]));
        assert_eq!(
            shown(&book, &machine),
            [
                "Hostname vm-1",
                "InternalIP 10.0.0.4",
                "ExternalIP 20.0.0.1",
                "InternalIP fd00::4",
                "ExternalIP 2603::1"
            ]
        );
    }

    #[test]
    fn the_primary_interface_counts() {
        let mut book = AddressBook::default();
        for (id, ip) in [("/first", "10.0.0.4"), ("/second", "10.0.0.5")] {
            let configurations = [configuration("a", ip, true, None)];
            book.add_interfaces(vec![json!({"id": id, "properties": {"ipConfigurations": configurations}})]);
        }
        let marked = json!([{"id": "/first"}, {"id": "/second", "properties": {"primary": true}}]);
        assert_eq!(shown(&book, &machine(&marked)), ["Hostname vm-1", "InternalIP 10.0.0.5"]);
        let unmarked = json!([{"id": "/first"}, {"id": "/second"}]);
        assert!(book.addresses(&machine(&unmarked)).is_err());
        // The primary interface may be the one that is not known yet.
        let unknown = json!([{"id": "/first"}, {"id": "/new"}]);
        assert_eq!(book.addresses(&machine(&unknown)).unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn an_interface_without_an_address_is_an_error() {
        let mut book = AddressBook::default();
        book.add_interfaces(vec![json!({"id": "/nic", "properties": {"ipConfigurations": []}})]);
        assert!(book.addresses(&machine(&json!([{"id": "/nic"}]))).is_err());
    }
}
