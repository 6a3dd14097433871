//! The addresses of subnets and their users.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{FixedIp, Network, NetworkState, Port};
use crate::error::{Error, Result};
use crate::openstack::ids::address_at;

impl NetworkState {
    /// Finds the subnets that contain the given addresses.
    pub(super) fn place(
        &mut self,
        network: &Network,
        addresses: &[IpAddr],
        port_id: &str,
    ) -> Result<Vec<FixedIp>> {
        let mut placed = Vec::new();
        for &address in addresses {
            let subnets = network.subnets.iter().filter_map(|id| self.subnets.get(id));
            let Some(subnet) = subnets.into_iter().find(|subnet| subnet.cidr.contains(&address)) else {
                return Err(Error::Invalid(format!(
                    "{address} is in no subnet of network {:?}",
                    network.name
                )));
            };
            let key = (subnet.id.clone(), address);
            if self.by_address.get(&key).is_some_and(|user| user != port_id) {
                return Err(Error::Invalid(format!("{address} is in use")));
            }
            placed.push(FixedIp {
                subnet_id: subnet.id.clone(),
                address,
            });
        }
        self.claim(&placed, port_id);
        Ok(placed)
    }

    /// Claims the next free address of every subnet.
    pub(super) fn allocate(&mut self, network: &Network, port_id: &str) -> Result<Vec<FixedIp>> {
        let mut allocated = Vec::new();
        for id in &network.subnets {
            allocated.extend(self.next_free(id)?);
        }
        self.claim(&allocated, port_id);
        Ok(allocated)
    }

    /// The next free address of a subnet, without claiming it.
    fn next_free(&mut self, id: &str) -> Result<Option<FixedIp>> {
        let Some(subnet) = self.subnets.get_mut(id) else {
            return Ok(None);
        };
        let subnet = Arc::make_mut(subnet);
        loop {
            let full = || Error::Invalid(format!("subnet {} has no free address", subnet.cidr));
            let address = address_at(&subnet.cidr, subnet.next).ok_or_else(full)?;
            // The last address of an IPv4 network is its broadcast address.
            if let IpNet::V4(net) = subnet.cidr
                && address == IpAddr::V4(net.broadcast())
            {
                return Err(full());
            }
            subnet.next += 1;
            if !self.by_address.contains_key(&(id.to_owned(), address)) {
                return Ok(Some(FixedIp {
                    subnet_id: id.to_owned(),
                    address,
                }));
            }
        }
    }

    /// Claims an address of a subnet for a port or floating IP: the requested one, or the next.
    pub(crate) fn claim_in(
        &mut self,
        subnet: &str,
        requested: Option<IpAddr>,
        user: &str,
    ) -> Result<FixedIp> {
        let fixed = match requested {
            Some(address) => {
                let known = self.subnets.get(subnet).ok_or_else(|| Error::unknown("subnet", subnet))?;
                if !known.cidr.contains(&address) {
                    return Err(Error::Invalid(format!("{address} is not in {}", known.cidr)));
                }
                if self.by_address.contains_key(&(subnet.to_owned(), address)) {
                    return Err(Error::Invalid(format!("{address} is in use")));
                }
                FixedIp {
                    subnet_id: subnet.to_owned(),
                    address,
                }
            }
            None => self.next_free(subnet)?.ok_or_else(|| Error::unknown("subnet", subnet))?,
        };
        self.claim(std::slice::from_ref(&fixed), user);
        Ok(fixed)
    }

    /// Whether an address of a subnet is taken.
    pub(crate) fn is_taken(&self, subnet: &str, address: IpAddr) -> bool {
        self.by_address.contains_key(&(subnet.to_owned(), address))
    }

    /// Releases a claimed address.
    pub(crate) fn unclaim(&mut self, fixed: &FixedIp) {
        self.by_address.remove(&(fixed.subnet_id.clone(), fixed.address));
    }

    pub(super) fn claim(&mut self, fixed_ips: &[FixedIp], port_id: &str) {
        for ip in fixed_ips {
            self.by_address.insert((ip.subnet_id.clone(), ip.address), port_id.to_owned());
        }
    }

    pub(super) fn release(&mut self, port: &Port) {
        for ip in &port.fixed_ips {
            self.by_address.remove(&(ip.subnet_id.clone(), ip.address));
        }
    }
}
