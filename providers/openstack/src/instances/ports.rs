//! The ports of servers, and the subports of their trunks.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{NodeAddress, Priority, Result};
use futures_util::future::{join_all, try_join_all};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::{
    addresses::{Networking, Subport, node_addresses},
    records::{Network, Port, Server},
};
use crate::client::Api;

/// The most IDs of one request: a URL with 150 stays below the 8,190 bytes that Apache accepts.
const IDS: usize = 150;
/// How long the name of a network is cached.
const NAMES_MAX_AGE: Duration = Duration::from_secs(300);
/// The most cached names. When there are more, all are dropped.
const NAMES_MAX: usize = 10_000;

/// The requested fields.
const PORT_FIELDS: [&str; 6] = [
    "id",
    "device_id",
    "network_id",
    "status",
    "fixed_ips",
    "trunk_details",
];

/// The ports of a server.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// The server's own ports, in Neutron's order.
    ports: Vec<Port>,
    /// The subports of their trunks, each with the name of its network.
    subports: Vec<(Arc<str>, Port)>,
}

impl Attached {
    pub(super) fn addresses_of(&self, server: &Server, networking: &Networking) -> Vec<NodeAddress> {
        let subports: Vec<_> = self
            .subports
            .iter()
            .map(|(network, port)| Subport {
                network,
                addresses: port.fixed_ips.iter().map(|ip| ip.ip_address.as_str()).collect(),
            })
            .collect();
        node_addresses(server, &self.ports.iter().collect::<Vec<_>>(), &subports, networking)
    }
}

/// Reads ports.
#[derive(Debug)]
pub(super) struct Ports {
    api: Api,
    /// The names of networks, and when they were read.
    names: Mutex<HashMap<String, (Arc<str>, Instant)>>,
}

impl Ports {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            names: Mutex::default(),
        }
    }

    /// The ports of each of these servers. A failed request affects only its own servers.
    pub(super) async fn attached_to(
        &self,
        servers: &[&str],
        priority: Priority,
    ) -> HashMap<String, Result<Arc<Attached>>> {
        let each = servers.chunks(IDS).map(|ids| async move {
            let result = self.of_chunk(ids, priority).await;
            ids.iter()
                .map(|id| {
                    let attached = match &result {
                        Ok(all) => Ok(all.get(*id).cloned().unwrap_or_default()),
                        Err(error) => Err(error.clone()),
                    };
                    ((*id).to_owned(), attached)
                })
                .collect::<Vec<_>>()
        });
        join_all(each).await.into_iter().flatten().collect()
    }

    async fn of_chunk(&self, servers: &[&str], priority: Priority) -> Result<HashMap<String, Arc<Attached>>> {
        // Neutron lists ports by ID. Upstream keeps that order, too.
        let ports = list_ports(&self.api, ("device_id", servers), &PORT_FIELDS, priority).await?;
        let mut attached: HashMap<String, Attached> = HashMap::new();
        for port in ports {
            attached.entry(port.device_id.clone()).or_default().ports.push(port);
        }
        self.add_subports(&mut attached, priority).await?;
        Ok(attached.into_iter().map(|(id, attached)| (id, Arc::new(attached))).collect())
    }

    /// Adds the subports. A missing subport, or one whose network is not visible, is left out. A failed read is an
    /// error, since a node must not lose addresses.
    async fn add_subports(&self, attached: &mut HashMap<String, Attached>, priority: Priority) -> Result<()> {
        let ids: HashSet<&str> = attached
            .values()
            .flat_map(|attached| &attached.ports)
            .flat_map(|port| &port.trunk_details.sub_ports)
            .map(|sub| sub.port_id.as_str())
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = ids.into_iter().collect();
        let subports = list_ports(&self.api, ("id", &ids), &PORT_FIELDS, priority).await?;
        let subports: HashMap<String, Port> =
            subports.into_iter().map(|port| (port.id.clone(), port)).collect();
        let names = self
            .network_names(subports.values().map(|port| port.network_id.as_str()).collect(), priority)
            .await?;
        for (server, attached) in attached {
            for sub in attached.ports.iter().flat_map(|port| &port.trunk_details.sub_ports) {
                let port = subports.get(&sub.port_id);
                match port.and_then(|port| Some((Arc::clone(names.get(&port.network_id)?), port.clone()))) {
                    Some(subport) => attached.subports.push(subport),
                    None => warn!(
                        server,
                        port = sub.port_id,
                        "Left a subport out: it or its network does not exist or is not visible"
                    ),
                }
            }
        }
        Ok(())
    }

    async fn network_names(
        &self,
        ids: HashSet<&str>,
        priority: Priority,
    ) -> Result<HashMap<String, Arc<str>>> {
        let mut names = HashMap::new();
        let mut missing = Vec::new();
        {
            let kept = self.names.lock();
            for id in ids {
                match kept.get(id) {
                    Some((name, read)) if read.elapsed() < NAMES_MAX_AGE => {
                        names.insert(id.to_owned(), Arc::clone(name));
                    }
                    _ => missing.push(id),
                }
            }
        }
        for ids in missing.chunks(IDS) {
            let began = Instant::now();
            let mut query: Vec<_> = ids.iter().map(|id| ("id", *id)).collect();
            query.extend(["id", "name"].map(|field| ("fields", field)));
            let networks: Vec<Network> = self.api.list(&query, priority).await?;
            let mut kept = self.names.lock();
            if kept.len() > NAMES_MAX {
                kept.clear();
            }
            for network in networks {
                let name: Arc<str> = network.name.into();
                kept.insert(network.id.clone(), (Arc::clone(&name), began));
                names.insert(network.id, name);
            }
        }
        Ok(names)
    }
}

/// Lists all ports with one of these values of a key, in requests of at most [`IDS`] values, fewer with a longer key.
pub(crate) async fn list_ports(
    api: &Api,
    (key, values): (&'static str, &[&str]),
    fields: &[&'static str],
    priority: Priority,
) -> Result<Vec<Port>> {
    let each = values.chunks(IDS + "device_id".len() - key.len()).map(|values| {
        let mut query: Vec<_> = values.iter().map(|value| (key, *value)).collect();
        query.extend(fields.iter().map(|field| ("fields", *field)));
        async move { api.list::<Port>(&query, priority).await }
    });
    Ok(try_join_all(each).await?.into_iter().flatten().collect())
}
