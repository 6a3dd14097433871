//! One region's compute, network and load balancing state, with the indices that its listings need.
//!
//! Records are behind `Arc`, so that freezing a region for a stale read copies its indices but no record.

mod balancing;
mod network;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

pub(crate) use balancing::{Attrs, Balancing, Kind, Object, Provisioning};
pub(crate) use network::{
    FixedIp, FloatingIp, Network, NetworkState, NewPort, Port, Route, Router, SecurityGroup,
    SecurityGroupRule, Subnet,
};
pub(crate) use servers::{AgeKey, Server, ServerIndex, is_status, power_state_of, vm_state_of};

use crate::error::{Error, Result};
use crate::openstack::ids::Ids;
use crate::openstack::spec::{PortSpec, ServerPatch, ServerSpec};

/// A flavor; a server keeps the flavor of its creation.
#[derive(Debug)]
pub(crate) struct Flavor {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) vcpus: u32,
    pub(crate) ram: u32,
    pub(crate) disk: u32,
}

/// One region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) flavors: BTreeMap<String, Arc<Flavor>>,
    pub(crate) servers: ServerIndex,
    pub(crate) network: NetworkState,
    pub(crate) balancing: Balancing,
    /// Load balancer flavors by id: name and whether enabled.
    pub(crate) balancer_flavors: BTreeMap<String, (String, bool)>,
    /// Load balancer availability zones by name: whether enabled.
    pub(crate) balancer_zones: BTreeMap<String, bool>,
    pub(crate) secrets: BTreeMap<String, Secret>,
    pub(crate) cells_down: BTreeSet<String>,
}

/// A secret, or a container of secrets, of the key manager.
#[derive(Clone, Debug)]
pub(crate) struct Secret {
    pub(crate) name: String,
    pub(crate) container: bool,
    pub(crate) project_id: String,
    pub(crate) created: Timestamp,
}

/// The creation time and the owner of a new object.
#[derive(Clone, Debug)]
pub(crate) struct Birth {
    pub(crate) at: Timestamp,
    pub(crate) project_id: String,
    pub(crate) user_id: String,
}

impl Region {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            flavors: BTreeMap::new(),
            servers: ServerIndex::default(),
            network: NetworkState::default(),
            balancing: Balancing::default(),
            balancer_flavors: BTreeMap::new(),
            balancer_zones: BTreeMap::new(),
            secrets: BTreeMap::new(),
            cells_down: BTreeSet::new(),
        }
    }

    /// A flavor by id or name, or the first one.
    pub(crate) fn flavor(&self, requested: Option<&str>) -> Result<Arc<Flavor>> {
        let found = match requested {
            None => self.flavors.values().next(),
            Some(requested) => self
                .flavors
                .get(requested)
                .or_else(|| self.flavors.values().find(|flavor| flavor.name == requested)),
        };
        found.cloned().ok_or_else(|| Error::unknown("flavor", requested.unwrap_or_default()))
    }

    /// Creates a server with its ports and returns its ID.
    pub(crate) fn create_server(&mut self, spec: &ServerSpec, birth: &Birth, ids: &Ids) -> Result<String> {
        let status = spec.status.clone().unwrap_or_else(|| "ACTIVE".to_owned());
        if !is_status(&status) {
            return Err(Error::Invalid(format!("Nova has no server status {status:?}")));
        }
        let id = spec.id.clone().unwrap_or_else(|| ids.uuid());
        if self.servers.get(&id).is_some() {
            return Err(Error::Invalid(format!("server {id} exists")));
        }
        let flavor = self.flavor(spec.flavor.as_deref())?;
        let default_port = [PortSpec::default()];
        let ports = spec.ports.as_deref().unwrap_or(&default_port);
        let building = status == "BUILD";
        let server = Server {
            name: spec.name.clone(),
            project_id: birth.project_id.clone(),
            user_id: birth.user_id.clone(),
            status,
            flavor,
            availability_zone: spec.availability_zone.clone().unwrap_or_else(|| "nova".to_owned()),
            cell: spec.cell.clone().unwrap_or_else(|| "cell1".to_owned()),
            host_id: ids.hex() + ids.hex().get(..24).unwrap_or_default(),
            image_id: ids.uuid(),
            metadata: spec.metadata.clone(),
            access_ipv4: spec.access_ipv4,
            access_ipv6: spec.access_ipv6,
            addresses: spec.addresses.clone(),
            created: crate::clock::seconds(birth.at),
            updated: crate::clock::seconds(birth.at),
            launched: (!building).then(|| crate::clock::seconds(birth.at)),
            deleted: None,
            ports: Vec::new(),
            id: id.clone(),
        };
        self.servers.insert(server);
        for port in ports {
            if let Err(error) = self.attach_port(&id, port, birth, ids) {
                // A partially created server would block a corrected request.
                self.purge_server(&id);
                return Err(error);
            }
        }
        Ok(id)
    }

    /// Adds a port to a server.
    pub(crate) fn attach_port(
        &mut self,
        id: &str,
        spec: &PortSpec,
        birth: &Birth,
        ids: &Ids,
    ) -> Result<String> {
        let server = self.live_server(id)?;
        let owner = format!("compute:{}", server.availability_zone);
        let port_id = self.network.create_port(spec, id, &owner, birth, ids)?;
        if let Some(address) = spec.floating {
            self.network.add_floating(address, &port_id, birth.at, ids)?;
        }
        self.servers.change(id, |server| server.ports.push(port_id.clone()));
        Ok(port_id)
    }

    /// Detaches a port from its server or trunk and deletes it.
    pub(crate) fn delete_port(&mut self, port_id: &str) -> Result<()> {
        let port = self.network.remove_port(port_id)?;
        self.servers.change(&port.device_id, |server| server.ports.retain(|id| id != port_id));
        Ok(())
    }

    /// Applies a patch to a server.
    pub(crate) fn update_server(&mut self, id: &str, patch: &ServerPatch, at: Timestamp) -> Result<()> {
        self.live_server(id)?;
        if let Some(status) = patch.status.as_deref().filter(|status| !is_status(status)) {
            return Err(Error::Invalid(format!("Nova has no server status {status:?}")));
        }
        let flavor = patch.flavor.as_deref().map(|flavor| self.flavor(Some(flavor))).transpose()?;
        let patch = patch.clone();
        self.servers.change(id, |server| {
            if let Some(status) = patch.status {
                server.status = status;
            }
            set(&mut server.name, patch.name);
            set(&mut server.flavor, flavor);
            set(&mut server.availability_zone, patch.availability_zone);
            set(&mut server.cell, patch.cell);
            set(&mut server.host_id, patch.host_id);
            set(&mut server.metadata, patch.metadata);
            server.access_ipv4 = patch.access_ipv4.or(server.access_ipv4);
            server.access_ipv6 = patch.access_ipv6.or(server.access_ipv6);
            server.addresses = patch.addresses.or_else(|| server.addresses.take());
            server.updated = crate::clock::seconds(at);
        });
        Ok(())
    }

    /// Deletes a server and its ports. Like Nova, keeps the record for `changes-since`.
    pub(crate) fn delete_server(&mut self, id: &str, at: Timestamp) -> Result<()> {
        let ports = self.live_server(id)?.ports.clone();
        for port in ports {
            self.network.remove_port(&port)?;
        }
        self.servers.change(id, |server| {
            server.ports.clear();
            server.deleted = Some(crate::clock::seconds(at));
            server.updated = crate::clock::seconds(at);
        });
        Ok(())
    }

    /// Applies the due changes of load balancers.
    pub(crate) fn settle(&mut self, now: Timestamp, heartbeats: bool) {
        for gone in self.balancing.settle(now, heartbeats) {
            self.release_vip(&gone);
        }
    }

    /// Deletes the port of a deleted load balancer, if Octavia created it.
    pub(crate) fn release_vip(&mut self, balancer: &Object) {
        let port = balancer.text("vip_port_id");
        if *balancer.get("octavia_owned") == true {
            // Another client may have deleted it before.
            let _present = self.network.remove_port(port);
        }
        let group = balancer.text("octavia_group");
        if let Some(found) = self.network.ports.get(port)
            && found.security_groups.iter().any(|known| known == group)
        {
            self.network.change_port(port, |port| port.security_groups.retain(|known| known != group));
        }
        self.network.remove_group(group);
    }

    fn purge_server(&mut self, id: &str) {
        let ports = self.servers.get(id).map(|server| server.ports.clone()).unwrap_or_default();
        for port in ports {
            // The port was created a moment ago, so it exists.
            let _present = self.network.remove_port(&port);
        }
        self.servers.remove(id);
    }

    fn live_server(&self, id: &str) -> Result<&Arc<Server>> {
        self.servers
            .get(id)
            .filter(|server| server.deleted.is_none())
            .ok_or_else(|| Error::unknown("server", id))
    }

    /// The addresses of a server as Nova shows them: for each port its fixed ones, then its floating ones, by network
    /// name in the order of the ports.
    pub(crate) fn addresses<'a>(&'a self, server: &'a Server) -> Vec<(&'a str, Vec<ShownAddress<'a>>)> {
        if let Some(addresses) = &server.addresses {
            let mut shown = Vec::new();
            for (name, list) in addresses {
                let list = list.iter().map(|address| ShownAddress {
                    addr: address.addr,
                    kind: &address.kind,
                    mac: "fa:16:3e:00:00:01",
                });
                shown.push((name.as_str(), list.collect()));
            }
            return shown;
        }
        let mut shown: Vec<(&str, Vec<ShownAddress<'_>>, Vec<ShownAddress<'_>>)> = Vec::new();
        for port in server.ports.iter().filter_map(|id| self.network.ports.get(id)) {
            let Some(network) = self.network.networks.get(&port.network_id) else {
                continue;
            };
            let address = |addr, kind| ShownAddress {
                addr,
                kind,
                mac: &port.mac,
            };
            let at = shown.iter().position(|(name, ..)| *name == network.name).unwrap_or_else(|| {
                shown.push((&network.name, Vec::new(), Vec::new()));
                shown.len() - 1
            });
            if let Some((_, fixed, floating)) = shown.get_mut(at) {
                fixed.extend(port.fixed_ips.iter().map(|ip| address(ip.address, "fixed")));
                floating.extend(self.network.floating_of(&port.id).map(|ip| address(ip.address, "floating")));
            }
        }
        let shown = shown.into_iter().map(|(name, mut fixed, floating)| {
            fixed.extend(floating);
            (name, fixed)
        });
        shown.collect()
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// One entry of Nova's addresses.
#[derive(Debug)]
pub(crate) struct ShownAddress<'a> {
    pub(crate) addr: std::net::IpAddr,
    pub(crate) kind: &'a str,
    pub(crate) mac: &'a str,
}
