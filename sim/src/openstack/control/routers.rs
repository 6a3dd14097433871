//! Routers, their routes and the address pairs of ports, through the control API.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Control;
use crate::error::Result;
use crate::openstack::region::{Region, Route};

/// Routers.
impl Control {
    /// Ids of the routers with this name.
    pub fn routers(&self, name: &str) -> Vec<String> {
        let regions = self.cloud.regions.read();
        let routers = regions.iter().flat_map(|region| region.network.routers.values());
        routers.filter(|router| router.name == name).map(|router| router.id.clone()).collect()
    }

    /// The routes of a router, in the order of their creation. Empty if the router does not exist.
    pub fn router_routes(&self, id: &str) -> Vec<(IpNet, IpAddr)> {
        let regions = self.cloud.regions.read();
        let router = regions.iter().find_map(|region| region.network.routers.get(id));
        let routes = router.map(|router| router.routes.iter());
        routes.into_iter().flatten().map(|route| (route.destination, route.nexthop)).collect()
    }

    /// Replaces the routes of a router without checks, like another client.
    ///
    /// # Errors
    /// If the router does not exist.
    pub fn set_router_routes(&self, id: &str, routes: &[(IpNet, IpAddr)]) -> Result<()> {
        let routes = routes.iter().map(|(destination, nexthop)| Route {
            destination: *destination,
            nexthop: *nexthop,
        });
        self.change_region_of_router(id, |region| {
            region.network.change_router(id, |router| router.routes = routes.collect());
            Ok(())
        })
    }

    /// Deletes a router with its interfaces and routes.
    ///
    /// # Errors
    /// If the router does not exist.
    pub fn delete_router(&self, id: &str) -> Result<()> {
        self.change_region_of_router(id, |region| {
            let interfaces: Vec<String> = region.network.ports_of(id).map(|port| port.id.clone()).collect();
            for port in interfaces {
                region.delete_port(&port)?;
            }
            region.network.routers.remove(id);
            Ok(())
        })
    }

    fn change_region_of_router(
        &self,
        id: &str,
        change: impl FnOnce(&mut Region) -> Result<()>,
    ) -> Result<()> {
        let find = |region: &Region| region.network.routers.contains_key(id).then_some(());
        self.change_region_with("router", id, find, |region, ()| change(region))
    }

    /// The networks of a port's address pairs. Empty if the port does not exist.
    pub fn address_pairs(&self, port: &str) -> Vec<String> {
        let regions = self.cloud.regions.read();
        let port = regions.iter().find_map(|region| region.network.ports.get(port));
        let pairs = port.map(|port| port.address_pairs.iter());
        pairs.into_iter().flatten().map(|(address, _)| address.clone()).collect()
    }

    /// Replaces the address pairs of a port by pairs of these networks, like another client.
    ///
    /// # Errors
    /// If the port does not exist.
    pub fn set_address_pairs(&self, port: &str, networks: &[&str]) -> Result<()> {
        self.change_region_of(port, |region| {
            region.network.change_port(port, |port| {
                let mac = port.mac.clone();
                port.address_pairs =
                    networks.iter().map(|network| ((*network).to_owned(), mac.clone())).collect();
            });
            Ok(())
        })
    }
}
