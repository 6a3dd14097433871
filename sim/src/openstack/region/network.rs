//! Network, subnet and port records and the indices behind Neutron's listings.

mod addresses;
mod floating;
mod groups;
mod routers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;

pub(crate) use floating::FloatingIp;
pub(crate) use groups::{SecurityGroup, SecurityGroupRule};
pub(crate) use routers::{Route, Router};

use super::Birth;
use crate::error::{Error, Result};
use crate::openstack::ids::Ids;
use crate::openstack::spec::{NetworkSpec, PortPatch, PortSpec, SubnetSpec};

/// A network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project_id: String,
    pub(crate) shared: bool,
    pub(crate) external: bool,
    pub(crate) subnets: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) created: Timestamp,
}

/// A subnet. Its allocation pool begins after the gateway.
#[derive(Clone, Debug)]
pub(crate) struct Subnet {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) network_id: String,
    pub(crate) project_id: String,
    pub(crate) cidr: IpNet,
    pub(crate) tags: Vec<String>,
    pub(crate) created: Timestamp,
    /// Where the search for a free address continues.
    next: u128,
}

/// An address of a port.
#[derive(Clone, Debug)]
pub(crate) struct FixedIp {
    pub(crate) subnet_id: String,
    pub(crate) address: IpAddr,
}

/// A port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) network_id: String,
    pub(crate) project_id: String,
    pub(crate) device_id: String,
    pub(crate) device_owner: String,
    pub(crate) mac: String,
    pub(crate) fixed_ips: Vec<FixedIp>,
    pub(crate) status: String,
    pub(crate) admin_state_up: bool,
    pub(crate) description: String,
    pub(crate) port_security: bool,
    pub(crate) security_groups: Vec<String>,
    /// Additional address ranges that it may send from, with the MAC address.
    pub(crate) address_pairs: Vec<(String, String)>,
    pub(crate) tags: Vec<String>,
    pub(crate) revision: u64,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
    pub(crate) trunk: Option<Trunk>,
}

/// The trunk of which a port is the parent.
#[derive(Clone, Debug)]
pub(crate) struct Trunk {
    pub(crate) id: String,
    pub(crate) sub_ports: Vec<SubPort>,
}

/// A port inside a trunk.
#[derive(Clone, Debug)]
pub(crate) struct SubPort {
    pub(crate) port_id: String,
    pub(crate) segmentation_id: u16,
    pub(crate) mac: String,
}

/// A new port, with all fields that its owner may set.
#[derive(Clone, Debug)]
pub(crate) struct NewPort {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) network_id: String,
    pub(crate) device_id: String,
    pub(crate) device_owner: String,
    pub(crate) description: String,
    pub(crate) fixed_ips: Vec<FixedIp>,
    pub(crate) status: String,
    pub(crate) admin_state_up: bool,
    pub(crate) security_groups: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) revision: u64,
}

/// All network state of a region.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkState {
    pub(crate) networks: BTreeMap<String, Arc<Network>>,
    pub(crate) subnets: BTreeMap<String, Arc<Subnet>>,
    pub(crate) ports: BTreeMap<String, Arc<Port>>,
    pub(crate) floating: BTreeMap<String, Arc<FloatingIp>>,
    pub(crate) groups: BTreeMap<String, Arc<SecurityGroup>>,
    pub(crate) rules: BTreeMap<String, Arc<SecurityGroupRule>>,
    pub(crate) routers: BTreeMap<String, Arc<Router>>,
    by_device: HashMap<String, BTreeSet<String>>,
    /// IDs of floating IPs by port.
    by_port: HashMap<String, Vec<String>>,
    by_address: HashMap<(String, IpAddr), String>,
    default_groups: HashMap<String, String>,
}

impl NetworkState {
    pub(crate) fn create_network(&mut self, spec: &NetworkSpec, birth: &Birth, ids: &Ids) -> Result<String> {
        let id = spec.id.clone().unwrap_or_else(|| ids.uuid());
        if self.networks.contains_key(&id) {
            return Err(Error::Invalid(format!("network {id} exists")));
        }
        let created = crate::clock::seconds(birth.at);
        let network = Network {
            id: id.clone(),
            name: spec.name.clone(),
            project_id: birth.project_id.clone(),
            shared: spec.shared,
            external: spec.external,
            subnets: Vec::new(),
            tags: spec.tags.clone(),
            created,
        };
        self.networks.insert(id.clone(), Arc::new(network));
        for (index, cidr) in spec.subnets.iter().enumerate() {
            let subnet = SubnetSpec {
                name: format!("{}-{index}", spec.name),
                cidr: Some(*cidr),
                ..SubnetSpec::default()
            };
            self.create_subnet(&id, &subnet, birth, ids)?;
        }
        Ok(id)
    }

    /// Adds a subnet to a network, by ID or name.
    pub(crate) fn create_subnet(
        &mut self,
        network: &str,
        spec: &SubnetSpec,
        birth: &Birth,
        ids: &Ids,
    ) -> Result<String> {
        let network = self.network(Some(network))?;
        let cidr = spec.cidr.ok_or_else(|| Error::Invalid("a subnet needs a cidr".to_owned()))?;
        let subnet = Subnet {
            id: spec.id.clone().unwrap_or_else(|| ids.uuid()),
            name: spec.name.clone(),
            network_id: network.id.clone(),
            project_id: birth.project_id.clone(),
            cidr: cidr.trunc(),
            tags: spec.tags.clone(),
            created: crate::clock::seconds(birth.at),
            next: 2,
        };
        let id = subnet.id.clone();
        if self.subnets.contains_key(&id) {
            return Err(Error::Invalid(format!("subnet {id} exists")));
        }
        self.subnets.insert(id.clone(), Arc::new(subnet));
        if let Some(network) = self.networks.get_mut(&network.id) {
            Arc::make_mut(network).subnets.push(id.clone());
        }
        Ok(id)
    }

    /// A network by ID or name, or the oldest internal one.
    pub(crate) fn network(&self, requested: Option<&str>) -> Result<Arc<Network>> {
        let found = match requested {
            Some(requested) => self
                .networks
                .get(requested)
                .or_else(|| self.networks.values().find(|net| net.name == requested)),
            None => self.networks.values().filter(|net| !net.external).min_by_key(|net| net.created),
        };
        found.cloned().ok_or_else(|| Error::unknown("network", requested.unwrap_or_default()))
    }

    pub(crate) fn create_port(
        &mut self,
        spec: &PortSpec,
        device_id: &str,
        device_owner: &str,
        birth: &Birth,
        ids: &Ids,
    ) -> Result<String> {
        let network = self.network(spec.network.as_deref())?;
        let id = spec.id.clone().unwrap_or_else(|| ids.uuid());
        if self.ports.contains_key(&id) {
            return Err(Error::Invalid(format!("port {id} exists")));
        }
        let fixed_ips = match &spec.addresses {
            Some(addresses) => self.place(&network, addresses, &id)?,
            None => self.allocate(&network, &id)?,
        };
        let group = self.default_group(&birth.project_id, birth.at, ids);
        let port = NewPort {
            id: id.clone(),
            name: spec.name.clone(),
            network_id: network.id.clone(),
            device_id: device_id.to_owned(),
            device_owner: device_owner.to_owned(),
            description: String::new(),
            fixed_ips,
            status: spec.status.clone().unwrap_or_else(|| "ACTIVE".to_owned()),
            admin_state_up: true,
            security_groups: vec![group],
            tags: spec.tags.clone(),
            revision: 4,
        };
        self.insert_port(port, birth, ids);
        Ok(id)
    }

    /// Creates a port whose addresses are claimed already.
    pub(crate) fn insert_port(&mut self, new: NewPort, birth: &Birth, ids: &Ids) {
        let port = Port {
            project_id: birth.project_id.clone(),
            mac: ids.mac(),
            port_security: !new.device_owner.starts_with("network:"),
            address_pairs: Vec::new(),
            created: crate::clock::seconds(birth.at),
            updated: crate::clock::seconds(birth.at),
            trunk: None,
            id: new.id,
            name: new.name,
            network_id: new.network_id,
            device_id: new.device_id,
            device_owner: new.device_owner,
            description: new.description,
            fixed_ips: new.fixed_ips,
            status: new.status,
            admin_state_up: new.admin_state_up,
            security_groups: new.security_groups,
            tags: new.tags,
            revision: new.revision,
        };
        self.by_device.entry(port.device_id.clone()).or_default().insert(port.id.clone());
        self.ports.insert(port.id.clone(), Arc::new(port));
    }

    pub(crate) fn update_port(&mut self, id: &str, patch: &PortPatch, at: Timestamp) -> Result<()> {
        let port = self.ports.get(id).cloned().ok_or_else(|| Error::unknown("port", id))?;
        let fixed_ips = match &patch.addresses {
            Some(addresses) => {
                let network = self.network(Some(&port.network_id))?;
                let placed = self.place(&network, addresses, id)?;
                self.release(&port);
                self.claim(&placed, id);
                Some(placed)
            }
            None => None,
        };
        let patch = patch.clone();
        self.change_port(id, |port| {
            super::set(&mut port.tags, patch.tags);
            super::set(&mut port.fixed_ips, fixed_ips);
            port.updated = crate::clock::seconds(at);
        });
        Ok(())
    }

    /// Changes a port and increments its revision.
    pub(crate) fn change_port(&mut self, id: &str, change: impl FnOnce(&mut Port)) {
        if let Some(port) = self.ports.get_mut(id) {
            let port = Arc::make_mut(port);
            change(port);
            port.revision += 1;
        }
    }

    pub(crate) fn remove_port(&mut self, id: &str) -> Result<Arc<Port>> {
        let port = self.ports.remove(id).ok_or_else(|| Error::unknown("port", id))?;
        self.release(&port);
        if let Some(ports) = self.by_device.get_mut(&port.device_id) {
            ports.remove(id);
            if ports.is_empty() {
                self.by_device.remove(&port.device_id);
            }
        }
        for floating in self.by_port.remove(id).unwrap_or_default() {
            self.detach_floating(&floating);
            if let Some(floating) = self.floating.get_mut(&floating) {
                Arc::make_mut(floating).status = "DOWN";
            }
        }
        for sub_port in port.trunk.iter().flat_map(|trunk| &trunk.sub_ports) {
            // The subport may have been deleted separately.
            let _present = self.remove_port(&sub_port.port_id);
        }
        if port.device_owner == "trunk:subport" {
            let parents: Vec<String> = self
                .ports
                .values()
                .filter(|parent| parent.trunk.is_some())
                .map(|parent| parent.id.clone())
                .collect();
            for parent in parents {
                self.change_port(&parent, |parent| {
                    if let Some(trunk) = &mut parent.trunk {
                        trunk.sub_ports.retain(|sub| sub.port_id != id);
                    }
                });
            }
        }
        Ok(port)
    }

    /// Adds a port to the trunk of the parent port, which is created when needed.
    pub(crate) fn add_sub_port(
        &mut self,
        parent: &str,
        spec: &PortSpec,
        segmentation_id: u16,
        birth: &Birth,
        ids: &Ids,
    ) -> Result<String> {
        if !self.ports.contains_key(parent) {
            return Err(Error::unknown("port", parent));
        }
        let port_id = self.create_port(spec, "", "trunk:subport", birth, ids)?;
        let mac = self.ports.get(&port_id).map(|port| port.mac.clone()).unwrap_or_default();
        let sub_port = SubPort {
            port_id: port_id.clone(),
            segmentation_id,
            mac,
        };
        self.change_port(parent, |port| {
            let trunk = port.trunk.get_or_insert_with(|| Trunk {
                id: ids.uuid(),
                sub_ports: Vec::new(),
            });
            trunk.sub_ports.push(sub_port);
        });
        Ok(port_id)
    }

    /// Ports of a device.
    pub(crate) fn ports_of(&self, device_id: &str) -> impl Iterator<Item = &Arc<Port>> {
        self.by_device.get(device_id).into_iter().flatten().filter_map(|id| self.ports.get(id))
    }
}
