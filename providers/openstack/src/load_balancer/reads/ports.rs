//! Ports of nodes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ccm_core::{Freshness, Priority, Result, load_balancer::ReadOptions};
use tokio::time::Instant;

use super::Reads;
use crate::instances::{ports::list_ports, records::Port};

/// The fields of node ports.
const PORT_FIELDS: [&str; 9] = [
    "id",
    "device_id",
    "network_id",
    "status",
    "fixed_ips",
    "security_groups",
    "port_security_enabled",
    "tags",
    "revision_number",
];

impl Reads {
    /// The ports of these servers, by server; servers without ports have an empty list.
    ///
    /// # Errors
    /// If the ports of one server cannot be read.
    pub(crate) async fn ports_of(
        &self,
        servers: &[&str],
        read: ReadOptions,
    ) -> Result<HashMap<String, Arc<Vec<Arc<Port>>>>> {
        let mut found = HashMap::new();
        let mut missing = self.known_ports(servers.iter().copied(), read.freshness, &mut found);
        if missing.is_empty() {
            return Ok(found);
        }
        let _reading = self.ports_being_read[read.priority as usize].lock().await;
        // Another task may have read them meanwhile.
        missing = self.known_ports(missing, read.freshness, &mut found);
        missing.sort_unstable();
        missing.dedup();
        let began = Instant::now();
        let read = list_ports(&self.api, ("device_id", &missing), &PORT_FIELDS, read.priority).await?;
        let mut by_server: HashMap<String, Vec<Arc<Port>>> =
            missing.iter().map(|id| ((*id).to_owned(), Vec::new())).collect();
        for port in read {
            if let Some(ports) = by_server.get_mut(&port.device_id) {
                ports.push(Arc::new(port));
            }
        }
        for (server, ports) in by_server {
            self.ports.insert(server.clone(), ports.clone(), began);
            found.insert(server, Arc::new(ports));
        }
        Ok(found)
    }

    /// Adds the cached ports of these servers to `found`, and returns the other servers.
    fn known_ports<'s>(
        &self,
        servers: impl IntoIterator<Item = &'s str>,
        freshness: Freshness,
        found: &mut HashMap<String, Arc<Vec<Arc<Port>>>>,
    ) -> Vec<&'s str> {
        let mut missing = Vec::new();
        for server in servers {
            match self.ports.peek(server, freshness) {
                Some((ports, _)) => {
                    found.insert(server.to_owned(), ports);
                }
                None => missing.push(server),
            }
        }
        missing
    }

    /// Reads the ports with one of these security groups, also visible ones of other projects.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) async fn ports_with(&self, groups: &[&str], priority: Priority) -> Result<Vec<Port>> {
        list_ports(&self.api, ("security_groups", groups), &PORT_FIELDS, priority).await
    }

    /// Stores a port of this server from the answer to a write.
    pub(crate) fn insert_port(&self, server: &str, port: &Port) {
        let known = self
            .ports
            .peek(server, Freshness::AtMost(Duration::MAX))
            .filter(|(ports, _)| matches!(ports.as_slice(), [only] if only.id == port.id));
        // Reads that began before the write are older.
        self.ports.invalidate(server);
        // The other ports of the server are unchanged.
        if known.is_some() && port.device_id == server {
            let ports = vec![Arc::new(port.clone())];
            self.ports.insert(server.to_owned(), ports, Instant::now());
        }
    }

    /// Invalidates the ports of this server after a write with an unknown result.
    pub(crate) fn invalidate_ports(&self, server: &str) {
        self.ports.invalidate(server);
    }
}
