//! Floating IPs: addresses of an external network that are attached to fixed addresses.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::{FixedIp, NetworkState};
use crate::error::{Error, Result};
use crate::openstack::ids::Ids;
use crate::openstack::region::Birth;

/// A floating IP.
#[derive(Clone, Debug)]
pub(crate) struct FloatingIp {
    pub(crate) id: String,
    pub(crate) project_id: String,
    pub(crate) network_id: String,
    pub(crate) address: IpAddr,
    /// The subnet that contains the address, if the network has one.
    pub(crate) subnet_id: Option<String>,
    pub(crate) port_id: Option<String>,
    pub(crate) fixed: Option<IpAddr>,
    pub(crate) router_id: Option<String>,
    pub(crate) description: String,
    pub(crate) status: &'static str,
    pub(crate) tags: Vec<String>,
    pub(crate) revision: u64,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
}

impl NetworkState {
    /// Attaches an address of any project to a port, without Neutron's rules, for the control API.
    pub(crate) fn add_floating(
        &mut self,
        address: IpAddr,
        port_id: &str,
        at: Timestamp,
        ids: &Ids,
    ) -> Result<()> {
        let port = self.ports.get(port_id).cloned().ok_or_else(|| Error::unknown("port", port_id))?;
        let known = self.floating.values().find(|floating| floating.address == address);
        let id = match known {
            Some(known) if known.port_id.is_some() => {
                return Err(Error::Invalid(format!("floating IP {address} is in use")));
            }
            Some(known) => known.id.clone(),
            None => {
                let network = self.networks.values().find(|network| network.external);
                let network_id = network.map(|network| network.id.clone()).unwrap_or_default();
                let subnets = network.map(|network| network.subnets.clone()).unwrap_or_default();
                let id = ids.uuid();
                let claimed =
                    subnets.iter().find_map(|subnet| self.claim_in(subnet, Some(address), &id).ok());
                let at = crate::clock::seconds(at);
                let floating = FloatingIp {
                    id: id.clone(),
                    project_id: port.project_id.clone(),
                    network_id,
                    address,
                    subnet_id: claimed.map(|fixed| fixed.subnet_id),
                    port_id: None,
                    fixed: None,
                    router_id: None,
                    description: String::new(),
                    status: "DOWN",
                    tags: Vec::new(),
                    revision: 0,
                    created: at,
                    updated: at,
                };
                self.floating.insert(id.clone(), Arc::new(floating));
                id
            }
        };
        let fixed = port.fixed_ips.first().map(|ip| ip.address);
        let router = self.router_between(&port, &self.floating_network(&id)).ok();
        self.attach_floating(&id, port_id, fixed, router, at);
        self.report_floating(&id);
        Ok(())
    }

    fn floating_network(&self, id: &str) -> String {
        let found = self.floating.get(id);
        found.map(|floating| floating.network_id.clone()).unwrap_or_default()
    }

    /// Creates a floating IP that is not attached. The address is claimed already.
    pub(crate) fn insert_floating(
        &mut self,
        id: &str,
        network_id: &str,
        fixed: FixedIp,
        description: &str,
        birth: &Birth,
    ) {
        let at = crate::clock::seconds(birth.at);
        let floating = FloatingIp {
            id: id.to_owned(),
            project_id: birth.project_id.clone(),
            network_id: network_id.to_owned(),
            address: fixed.address,
            subnet_id: Some(fixed.subnet_id),
            port_id: None,
            fixed: None,
            router_id: None,
            description: description.to_owned(),
            status: "DOWN",
            tags: Vec::new(),
            revision: 0,
            created: at,
            updated: at,
        };
        self.floating.insert(id.to_owned(), Arc::new(floating));
    }

    /// Changes a floating IP and increments its revision.
    pub(crate) fn change_floating(&mut self, id: &str, change: impl FnOnce(&mut FloatingIp)) {
        if let Some(floating) = self.floating.get_mut(id) {
            let floating = Arc::make_mut(floating);
            change(floating);
            floating.revision += 1;
        }
    }

    /// Attaches it to a port, and detaches it from the former one.
    pub(crate) fn attach_floating(
        &mut self,
        id: &str,
        port_id: &str,
        fixed: Option<IpAddr>,
        router_id: Option<String>,
        at: Timestamp,
    ) {
        self.detach_floating(id);
        self.by_port.entry(port_id.to_owned()).or_default().push(id.to_owned());
        let port_id = Some(port_id.to_owned());
        self.change_floating(id, |floating| {
            floating.port_id = port_id;
            floating.fixed = fixed;
            floating.router_id = router_id;
            floating.updated = crate::clock::seconds(at);
        });
    }

    /// Detaches it.
    pub(crate) fn detach_floating(&mut self, id: &str) {
        let Some(port) = self.floating.get(id).and_then(|floating| floating.port_id.clone()) else {
            return;
        };
        if let Some(known) = self.by_port.get_mut(&port) {
            known.retain(|floating| floating != id);
        }
        self.change_floating(id, |floating| {
            floating.port_id = None;
            floating.fixed = None;
            floating.router_id = None;
        });
    }

    /// Sets the status that the router's agent reports later: whether it is attached.
    pub(crate) fn report_floating(&mut self, id: &str) {
        let known = self.floating.get(id);
        let status = match known.map(|floating| floating.port_id.is_some()) {
            Some(true) => "ACTIVE",
            _ => "DOWN",
        };
        if known.is_some_and(|floating| floating.status != status) {
            self.change_floating(id, |floating| floating.status = status);
        }
    }

    /// Deletes it and releases its address.
    pub(crate) fn delete_floating(&mut self, id: &str) {
        self.detach_floating(id);
        let Some(floating) = self.floating.remove(id) else {
            return;
        };
        if let Some(subnet_id) = floating.subnet_id.clone() {
            let address = floating.address;
            self.unclaim(&FixedIp { subnet_id, address });
        }
    }

    pub(crate) fn floating_of(&self, port_id: &str) -> impl Iterator<Item = &FloatingIp> {
        let ids = self.by_port.get(port_id).map(Vec::as_slice).unwrap_or_default();
        ids.iter().filter_map(|id| self.floating.get(id)).map(AsRef::as_ref)
    }
}
