//! The addresses of servers change.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use async_trait::async_trait;
use ccm_sim::openstack::PortPatch;

use super::site::{Site, names};
use crate::binary::Launch;
use crate::sweep::{Environment, Scenario};
use crate::test_cloud::OpenStackCloud;

/// The addresses of all servers change while the program does not run. Its first refresh must detect this.
#[derive(Debug)]
pub struct Readdress {
    site: Arc<Site>,
    cloud: Arc<OpenStackCloud>,
    names: Vec<String>,
    odd: AtomicBool,
}

impl Readdress {
    /// The scenario with this many nodes.
    #[must_use]
    pub fn new(site: Arc<Site>, cloud: Arc<OpenStackCloud>, nodes: usize) -> Self {
        Self {
            site,
            cloud,
            names: names("move", nodes),
            odd: AtomicBool::new(false),
        }
    }
}

/// One of two addresses of a machine, in the simulated cloud's network.
fn address(machine: usize, odd: bool) -> IpAddr {
    let host = machine * 2 + usize::from(odd) + 4;
    let [high, low] = u16::try_from(host).unwrap_or(u16::MAX).to_be_bytes();
    Ipv4Addr::new(10, 9, high, low).into()
}

#[async_trait(?Send)]
impl Scenario for Readdress {
    fn name(&self) -> String {
        format!("{} nodes change their addresses", self.names.len())
    }

    fn launch(&self) -> Launch {
        // A failed refresh is retried by the next one.
        self.site.launch(&["--node-status-update-frequency=1s"])
    }

    fn environment(&self) -> &dyn Environment {
        &*self.site
    }

    async fn prepare(&self) -> Result<()> {
        self.site.settle(&self.names, &self.launch()).await?;
        self.site.wipe_events().await?;
        let odd = self.odd.fetch_not(Ordering::Relaxed);
        for (i, name) in self.names.iter().enumerate() {
            let address = address(i, odd);
            let patch = PortPatch {
                addresses: Some(vec![address]),
                ..PortPatch::default()
            };
            let mut machine = self.site.machine(name).await?;
            self.cloud.update_port(&self.cloud.port(&machine)?, &patch)?;
            if let Some((_, known)) = machine.addresses.first_mut() {
                *known = address.to_string();
            }
            self.site.note(name, machine);
        }
        Ok(())
    }

    async fn missing(&self) -> Result<Option<String>> {
        self.site.settled(&self.names).await
    }

    async fn check(&self) -> Result<()> {
        self.site.check(&self.names, &[]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_all_different() {
        let all: std::collections::BTreeSet<_> =
            (0..1000).flat_map(|machine| [address(machine, false), address(machine, true)]).collect();
        assert_eq!(all.len(), 2000);
    }
}
