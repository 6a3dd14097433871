//! Routers and their static routes.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;

use super::{FixedIp, NetworkState, NewPort, Port};
use crate::error::{Error, Result};
use crate::openstack::ids::{Ids, address_at};
use crate::openstack::region::Birth;
use crate::openstack::spec::RouterSpec;

/// A static route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) destination: IpNet,
    pub(crate) nexthop: IpAddr,
}

/// A router.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project_id: String,
    /// The external network, with the router's address and port in it.
    pub(crate) gateway: Option<(String, FixedIp, String)>,
    /// Subnets in which it has an interface without a port.
    pub(crate) portless: Vec<String>,
    pub(crate) routes: Vec<Route>,
    pub(crate) tags: Vec<String>,
    pub(crate) revision: u64,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
}

impl NetworkState {
    /// Creates a router with an interface, at the gateway's address, in every subnet of its networks.
    pub(crate) fn create_router(&mut self, spec: &RouterSpec, birth: &Birth, ids: &Ids) -> Result<String> {
        let id = spec.id.clone().unwrap_or_else(|| ids.uuid());
        if self.routers.contains_key(&id) {
            return Err(Error::Invalid(format!("router {id} exists")));
        }
        let gateway = match &spec.gateway {
            Some(gateway) => {
                let network = self.network(Some(gateway))?;
                let subnet =
                    network.subnets.first().ok_or_else(|| Error::unknown("subnet of network", gateway))?;
                let fixed = self.claim_in(subnet, None, &id)?;
                Some((network.id.clone(), fixed, ids.uuid()))
            }
            None => None,
        };
        let mut portless = Vec::new();
        for network in &spec.networks {
            let network = self.network(Some(network))?;
            if spec.without_ports {
                portless.extend(network.subnets.iter().cloned());
                continue;
            }
            for subnet in &network.subnets {
                self.add_interface(&id, &network.id, subnet, birth, ids)?;
            }
        }
        let at = crate::clock::seconds(birth.at);
        let router = Router {
            id: id.clone(),
            name: spec.name.clone(),
            project_id: birth.project_id.clone(),
            gateway,
            portless,
            routes: Vec::new(),
            tags: Vec::new(),
            revision: 3,
            created: at,
            updated: at,
        };
        self.routers.insert(id.clone(), Arc::new(router));
        Ok(id)
    }

    fn add_interface(
        &mut self,
        router: &str,
        network: &str,
        subnet: &str,
        birth: &Birth,
        ids: &Ids,
    ) -> Result<()> {
        let port_id = ids.uuid();
        let gateway = self.subnets.get(subnet).and_then(|subnet| address_at(&subnet.cidr, 1));
        let fixed = self.claim_in(subnet, gateway, &port_id)?;
        let port = NewPort {
            id: port_id,
            name: String::new(),
            network_id: network.to_owned(),
            device_id: router.to_owned(),
            device_owner: "network:router_interface".to_owned(),
            description: String::new(),
            fixed_ips: vec![fixed],
            status: "ACTIVE".to_owned(),
            admin_state_up: true,
            security_groups: Vec::new(),
            tags: Vec::new(),
            revision: 4,
        };
        self.insert_port(port, birth, ids);
        Ok(())
    }

    /// Changes a router and increments its revision.
    pub(crate) fn change_router(&mut self, id: &str, change: impl FnOnce(&mut Router)) {
        if let Some(router) = self.routers.get_mut(id) {
            let router = Arc::make_mut(router);
            change(router);
            router.revision += 1;
        }
    }

    /// Subnets in which a router has an interface or its gateway.
    pub(crate) fn connected(&self, router: &Router) -> Vec<IpNet> {
        let inner = self
            .ports_of(&router.id)
            .flat_map(|port| port.fixed_ips.iter().map(|ip| ip.subnet_id.as_str()));
        let outer = router.gateway.iter().map(|(_, fixed, _)| fixed.subnet_id.as_str());
        inner
            .chain(outer)
            .chain(router.portless.iter().map(String::as_str))
            .filter_map(|id| self.subnets.get(id))
            .map(|subnet| subnet.cidr)
            .collect()
    }

    /// The router between a port's subnet and an external network; the error is that subnet.
    pub(crate) fn router_between(&self, port: &Port, external: &str) -> std::result::Result<String, String> {
        // Of a port with addresses of both families, a floating IP belongs to the IPv4 address.
        let fixed = port.fixed_ips.iter().find(|ip| ip.address.is_ipv4()).or(port.fixed_ips.first());
        let subnet = fixed.map(|ip| ip.subnet_id.as_str());
        for router in self.routers.values() {
            let outside = router.gateway.as_ref();
            if outside.is_none_or(|(network, ..)| network != external) {
                continue;
            }
            let touches = router.portless.iter().any(|id| Some(id.as_str()) == subnet)
                || self.ports_of(&router.id).any(|interface| {
                    interface.fixed_ips.iter().any(|ip| Some(ip.subnet_id.as_str()) == subnet)
                });
            if touches {
                return Ok(router.id.clone());
            }
        }
        Err(subnet.unwrap_or_default().to_owned())
    }
}
