//! Servers, ports, networks, flavors and cells in the control API.

use std::net::IpAddr;
use std::sync::Arc;

use super::Control;
use crate::error::{Error, Result};
use crate::openstack::ids::Ids;
use crate::openstack::region::{Birth, Flavor, Region};
use crate::openstack::spec::{
    FlavorSpec, NetworkSpec, PortPatch, PortSpec, RouterSpec, ServerPatch, ServerSpec, SubnetSpec,
};

/// Servers, ports, networks, flavors, cells.
impl Control {
    /// Creates a server and returns its id.
    ///
    /// # Errors
    /// If an object that the specification names does not exist, or an ID or address is taken.
    pub fn create_server(&self, spec: &ServerSpec) -> Result<String> {
        let ids = self.create_servers(1, spec)?;
        ids.into_iter().next().ok_or_else(|| Error::Invalid("no server was made".to_owned()))
    }

    /// Creates several servers; see [`ServerSpec::name`] for their names. Returns their IDs.
    ///
    /// # Errors
    /// As [`Control::create_server`]; the servers before the failing one stay.
    pub fn create_servers(&self, count: usize, spec: &ServerSpec) -> Result<Vec<String>> {
        if spec.id.is_some() && count > 1 {
            return Err(Error::Invalid("many servers cannot have one id".to_owned()));
        }
        let birth = self.birth(spec.project.as_deref())?;
        self.change_region(spec.region.as_deref(), |region, ids| {
            let mut created = Vec::with_capacity(count.min(100_000));
            for number in 0..count {
                let spec = ServerSpec {
                    name: numbered(&spec.name, number),
                    ..spec.clone()
                };
                created.push(region.create_server(&spec, &birth, ids)?);
            }
            Ok(created)
        })
    }

    /// Changes a server.
    ///
    /// # Errors
    /// If the server, flavor or status does not exist.
    pub fn update_server(&self, id: &str, patch: &ServerPatch) -> Result<()> {
        let now = self.cloud.clock.now();
        self.change_region_of(id, |region| region.update_server(id, patch, now))
    }

    /// Deletes a server with its ports.
    ///
    /// # Errors
    /// If the server does not exist.
    pub fn delete_server(&self, id: &str) -> Result<()> {
        let now = self.cloud.clock.now();
        self.change_region_of(id, |region| region.delete_server(id, now))
    }

    /// Sets a server's status and the power state that belongs to it.
    ///
    /// # Errors
    /// If the server or status does not exist.
    pub fn set_status(&self, id: &str, status: &str) -> Result<()> {
        self.update_server(
            id,
            &ServerPatch {
                status: Some(status.to_owned()),
                ..ServerPatch::default()
            },
        )
    }

    /// Ids of a server's ports in the order of its interfaces.
    pub fn server_ports(&self, id: &str) -> Vec<String> {
        let regions = self.cloud.regions.read();
        regions
            .iter()
            .find_map(|region| region.servers.get(id))
            .map(|server| server.ports.clone())
            .unwrap_or_default()
    }

    /// Fixed addresses of a port.
    pub fn port_addresses(&self, id: &str) -> Vec<IpAddr> {
        let regions = self.cloud.regions.read();
        let port = regions.iter().find_map(|region| region.network.ports.get(id));
        port.map(|port| port.fixed_ips.iter().map(|ip| ip.address).collect()).unwrap_or_default()
    }

    /// Adds a port to a server and returns its ID.
    ///
    /// # Errors
    /// As [`Control::create_server`].
    pub fn attach_port(&self, server: &str, spec: &PortSpec) -> Result<String> {
        let project =
            self.owner(server, |region| region.servers.get(server).map(|server| server.project_id.clone()))?;
        let birth = self.birth(Some(&project))?;
        let cloud = Arc::clone(&self.cloud);
        self.change_region_of(server, |region| region.attach_port(server, spec, &birth, &cloud.ids))
    }

    /// Detaches a port from its server or trunk and deletes it.
    ///
    /// # Errors
    /// If the port does not exist.
    pub fn delete_port(&self, id: &str) -> Result<()> {
        self.change_region_of(id, |region| region.delete_port(id))
    }

    /// Changes a port.
    ///
    /// # Errors
    /// If the port does not exist, or an address is taken or in no subnet of its network.
    pub fn update_port(&self, id: &str, patch: &PortPatch) -> Result<()> {
        let now = self.cloud.clock.now();
        self.change_region_of(id, |region| region.network.update_port(id, patch, now))
    }

    /// Attaches a floating IP to a port's first fixed address.
    ///
    /// # Errors
    /// If the port does not exist or the address is taken.
    pub fn add_floating(&self, port: &str, address: IpAddr) -> Result<()> {
        let now = self.cloud.clock.now();
        let cloud = Arc::clone(&self.cloud);
        self.change_region_of(port, |region| region.network.add_floating(address, port, now, &cloud.ids))
    }

    /// Adds a port to the trunk of a parent port, which is created when needed, and returns its ID.
    ///
    /// # Errors
    /// As [`Control::create_server`].
    pub fn add_sub_port(&self, parent: &str, segmentation_id: u16, spec: &PortSpec) -> Result<String> {
        let project = self
            .owner(parent, |region| region.network.ports.get(parent).map(|port| port.project_id.clone()))?;
        let birth = self.birth(Some(&project))?;
        let cloud = Arc::clone(&self.cloud);
        self.change_region_of(parent, |region| {
            region.network.add_sub_port(parent, spec, segmentation_id, &birth, &cloud.ids)
        })
    }

    /// Creates a network with its subnets and returns its id.
    ///
    /// # Errors
    /// If the region or project does not exist or the id is taken.
    pub fn create_network(&self, spec: &NetworkSpec) -> Result<String> {
        let birth = self.birth(spec.project.as_deref())?;
        self.change_region(spec.region.as_deref(), |region, ids| {
            region.network.create_network(spec, &birth, ids)
        })
    }

    /// Adds a subnet to a network, by ID or name, and returns its ID.
    ///
    /// # Errors
    /// If the network does not exist in the first region, or the ID is taken.
    pub fn create_subnet(&self, network: &str, spec: &SubnetSpec) -> Result<String> {
        let birth = self.birth(None)?;
        self.change_region(None, |region, ids| region.network.create_subnet(network, spec, &birth, ids))
    }

    /// Creates a router and returns its id.
    ///
    /// # Errors
    /// If a network does not exist, or a gateway's address or the ID is taken.
    pub fn create_router(&self, spec: &RouterSpec) -> Result<String> {
        let birth = self.birth(spec.project.as_deref())?;
        self.change_region(spec.region.as_deref(), |region, ids| {
            region.network.create_router(spec, &birth, ids)
        })
    }

    /// Creates a flavor and returns its id.
    ///
    /// # Errors
    /// If the region does not exist.
    pub fn create_flavor(&self, spec: &FlavorSpec) -> Result<String> {
        self.change_region(spec.region.as_deref(), |region, ids| {
            let flavor = Flavor {
                id: spec.id.clone().unwrap_or_else(|| ids.uuid()),
                name: spec.name.clone(),
                vcpus: spec.vcpus.max(1),
                ram: spec.ram,
                disk: spec.disk,
            };
            let id = flavor.id.clone();
            region.flavors.insert(id.clone(), Arc::new(flavor));
            Ok(id)
        })
    }

    /// Deletes a flavor, by ID or name. Existing servers keep it.
    ///
    /// # Errors
    /// If the flavor exists in no region.
    pub fn delete_flavor(&self, requested: &str) -> Result<()> {
        let find = |region: &Region| region.flavor(Some(requested)).ok();
        self.change_region_with("flavor", requested, find, |region, flavor| {
            region.flavors.remove(&flavor.id);
            Ok(())
        })
    }

    /// Stops a cell of every region, or starts it again.
    pub fn set_cell_up(&self, cell: &str, up: bool) {
        let mut regions = self.cloud.regions.write();
        for region in Arc::make_mut(&mut regions) {
            if up {
                region.cells_down.remove(cell);
            } else {
                region.cells_down.insert(cell.to_owned());
            }
        }
    }

    /// The number of servers without deleted ones.
    pub fn server_count(&self) -> usize {
        let regions = self.cloud.regions.read();
        let servers = regions.iter().flat_map(|region| region.servers.iter());
        servers.filter(|server| server.deleted.is_none()).count()
    }
}

impl Control {
    pub(in crate::openstack) fn birth(&self, project: Option<&str>) -> Result<Birth> {
        let identity = self.cloud.identity.read();
        let at = self.cloud.clock.now();
        let project_id = identity.project(project)?;
        Ok(Birth {
            at,
            user_id: identity.maker_in(&project_id),
            project_id,
        })
    }

    pub(in crate::openstack) fn change_region<T>(
        &self,
        name: Option<&str>,
        change: impl FnOnce(&mut Region, &Ids) -> Result<T>,
    ) -> Result<T> {
        let mut regions = self.cloud.regions.write();
        let mut all = Arc::make_mut(&mut regions).iter_mut();
        let region = match name {
            None => all.next(),
            Some(name) => all.find(|region| region.name == name),
        };
        change(region.ok_or_else(|| Error::unknown("region", name.unwrap_or_default()))?, &self.cloud.ids)
    }

    /// Changes the region that has a server or port with this id.
    pub(super) fn change_region_of<T>(
        &self,
        id: &str,
        change: impl FnOnce(&mut Region) -> Result<T>,
    ) -> Result<T> {
        let find = |region: &Region| {
            let has = region.servers.get(id).is_some() || region.network.ports.contains_key(id);
            has.then_some(())
        };
        self.change_region_with("server or port", id, find, |region, ()| change(region))
    }

    /// Changes the first region in which `find` finds the object.
    pub(super) fn change_region_with<F, T>(
        &self,
        kind: &'static str,
        id: &str,
        find: impl Fn(&Region) -> Option<F>,
        change: impl FnOnce(&mut Region, F) -> Result<T>,
    ) -> Result<T> {
        let mut regions = self.cloud.regions.write();
        let found = Arc::make_mut(&mut regions)
            .iter_mut()
            .find_map(|region| find(region).map(|found| (region, found)));
        let (region, found) = found.ok_or_else(|| Error::unknown(kind, id))?;
        change(region, found)
    }

    fn owner(&self, id: &str, find: impl Fn(&Region) -> Option<String>) -> Result<String> {
        self.cloud
            .regions
            .read()
            .iter()
            .find_map(find)
            .ok_or_else(|| Error::unknown("server or port", id))
    }
}

/// Replaces `{i}` in a name by the number, or `{i:05}` by the number with leading zeros.
fn numbered(pattern: &str, number: usize) -> String {
    let Some((before, rest)) = pattern.split_once("{i") else {
        return pattern.to_owned();
    };
    let Some((format, after)) = rest.split_once('}') else {
        return pattern.to_owned();
    };
    let width = format
        .strip_prefix(':')
        .and_then(|width| width.parse::<usize>().ok())
        .unwrap_or(0)
        .min(64);
    format!("{before}{number:0width$}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names() {
        for (pattern, want) in [
            ("node", "node"),
            ("node-{i}", "node-7"),
            ("n{i:05}.x", "n00007.x"),
            ("n{i", "n{i"),
        ] {
            assert_eq!(numbered(pattern, 7), want, "{pattern}");
        }
    }
}
