//! The servers behind nodes, with as few requests to Nova and Neutron as possible.
//!
//! | Query | Cost |
//! |---|---|
//! | one node | one read of the server, one of its ports |
//! | k nodes | the cheaper of k reads and the pages of a listing; one listing of ports for 150 servers |
//! | existence only | no ports, no flavors |
//!
//! Core's [`Finder`] chooses between reads and listings. Nova omits the servers of a cell that is down from both, so a
//! missing name never proves absence. [`ports`] and [`flavors`] read what a server record lacks; the rest is pure.

mod addresses;
mod flavors;
mod mapping;
pub(crate) mod ports;
pub(crate) mod provider_id;
pub(crate) mod records;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ccm_core::{
    Error, ErrorKind, Instance, InstanceState, NodeView, Priority, Result, async_trait,
    client::{ClientMetrics, Page},
    instances::finder::{Finder, InstanceSource, Lookup, Record},
};
use futures_util::future::join_all;
use tracing::debug;

pub(crate) use self::addresses::{Networking, parse_sort_order};
use self::{
    addresses::address_filter,
    flavors::Flavors,
    ports::{Attached, Ports},
    provider_id::ProviderId,
    records::{OneServer, Server, ServerPage, has_next},
};
use crate::client::{self, Api, Call, Op, catalog::Service, with_microversion};

/// The first microversion whose server records contain the flavor's name.
pub(crate) const FLAVOR_INLINE: &str = "2.47";
/// Nova's name of the listing.
const SERVERS: &str = "servers";

/// The label with Nova's `hostId`: nodes with the same value are on the same compute host.
const HOST_ID: &str = "topology.openstack.org/host-id";

/// The settings of nodes.
#[derive(Clone, Debug)]
pub(crate) struct InstanceSettings {
    /// The selection and order of addresses.
    pub(crate) networking: Networking,
    /// `region`.
    pub(crate) region: Option<String>,
    /// Whether provider IDs name the region (`OS_CCM_REGIONAL`).
    pub(crate) regional: bool,
}

/// The provider's [`Instances`](ccm_core::Instances).
pub(crate) type OpenStackInstances = Finder<Servers>;

/// Creates the finder of servers.
pub(crate) fn finder(api: &Api, settings: &InstanceSettings, metrics: &ClientMetrics) -> OpenStackInstances {
    let servers = Servers {
        flavors: Flavors::new(api.clone(), metrics),
        ports: Ports::new(api.clone()),
        api: api.clone(),
        settings: settings.clone(),
        old: AtomicBool::new(false),
    };
    Finder::new(servers, metrics)
}

/// Reads servers.
#[derive(Debug)]
pub(crate) struct Servers {
    api: Api,
    flavors: Flavors,
    ports: Ports,
    settings: InstanceSettings,
    /// Set once Nova has refused [`FLAVOR_INLINE`].
    old: AtomicBool,
}

impl Record for Server {
    fn id(&self) -> &str {
        &self.id
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

#[async_trait]
impl InstanceSource for Servers {
    type Record = Server;
    type Marker = String;

    const CACHE: &'static str = "openstack_servers";
    const LISTS_BY_PREFIX: bool = true;

    fn lookup(&self, node: &NodeView) -> Lookup {
        let Some(text) = node.provider_id.as_deref().filter(|text| !text.is_empty()) else {
            return Lookup::Name;
        };
        match provider_id::parse(text) {
            Err(error) => Lookup::Known(Err(error)),
            Ok(ProviderId::Foreign) => Lookup::Known(Ok(InstanceState::Unmanaged)),
            Ok(ProviderId::Server { region, id }) => {
                let own = self.settings.region.as_deref().unwrap_or_default();
                if region.is_empty() || region == own {
                    Lookup::Id(id.to_owned())
                } else {
                    // This is not "not found": other credentials could find it.
                    Lookup::Known(Err(Error::new(
                        ErrorKind::InvalidSpec,
                        format!(
                            "ProviderID {text:?} is of region {region:?}, the configured region is {own:?}"
                        ),
                    )))
                }
            }
        }
    }

    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Server>>> {
        join_all(ids.iter().map(|id| self.by_id(id, priority))).await
    }

    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Server>>> {
        join_all(names.iter().map(|name| self.by_name(name, priority))).await
    }

    async fn page(
        &self,
        prefix: &str,
        marker: Option<String>,
        priority: Priority,
    ) -> Result<Page<Server, String>> {
        let name = format!("^{}", escape(prefix));
        let size = self.api.page_sizes.get(SERVERS).to_string();
        let mut query = vec![("limit", &*size)];
        if !prefix.is_empty() {
            query.push(("name", &name));
        }
        if let Some(marker) = &marker {
            query.push(("marker", marker));
        }
        let page = self
            .list(&query, priority)
            .await
            .inspect_err(|error| self.api.page_sizes.failed(SERVERS, error))?;
        let last = page.servers.last().map(|server| server.id.clone());
        Ok(Page {
            next: if has_next(&page.servers_links) { last } else { None },
            items: page.servers,
        })
    }

    fn existence(&self, server: &Server) -> Instance {
        let region = if self.settings.regional {
            self.settings.region.as_deref().unwrap_or_default()
        } else {
            ""
        };
        Instance {
            provider_id: provider_id::render(region, &server.id),
            power: mapping::power(&server.status),
            ..Instance::default()
        }
    }

    async fn metadata(&self, servers: &[&Server], priority: Priority) -> Vec<Result<Instance>> {
        let mut ids: Vec<&str> = servers.iter().map(|server| server.id.as_str()).collect();
        ids.sort_unstable();
        let types = servers.iter().map(|server| self.flavors.instance_type(server, priority));
        let (mut attached, types) = tokio::join!(self.ports.attached_to(&ids, priority), join_all(types));
        let each = servers.iter().zip(types).map(|(server, instance_type)| {
            let attached = attached.remove(&server.id).unwrap_or_else(|| Ok(Arc::default()));
            Ok(self.instance(server, instance_type?, &*attached?))
        });
        each.collect()
    }
}

impl Servers {
    fn instance(&self, server: &Server, instance_type: Option<String>, attached: &Attached) -> Instance {
        let networking = &self.settings.networking;
        Instance {
            instance_type,
            addresses: attached.addresses_of(server, networking),
            address_filter: address_filter(networking, |networking| {
                attached.addresses_of(server, networking)
            }),
            keeps_addresses: networking.has_only_empty_internal_names,
            enforces_address_order: !networking.sort_order.is_empty(),
            zone: mapping::zone(&server.availability_zone),
            region: self.settings.region.clone(),
            labels: mapping::is_label_value(&server.host_id)
                .then(|| (HOST_ID.to_owned(), server.host_id.clone()))
                .into_iter()
                .collect(),
            ..self.existence(server)
        }
    }

    async fn by_id(&self, id: &str, priority: Priority) -> Result<Option<Server>> {
        match self.read(Op::ServerGet, &["servers", id], &[], priority).await {
            Ok(OneServer { server }) if server.id.eq_ignore_ascii_case(id) => Ok(Some(server)),
            Ok(OneServer { server }) => Err(Error::new(
                ErrorKind::Unexpected,
                format!("requested server {id}, Nova answered with server {}", server.id),
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn by_name(&self, name: &str, priority: Priority) -> Result<Vec<Server>> {
        let pattern = format!("^{}$", escape(name));
        let query = [("name", pattern.as_str())];
        let mut servers = self.list(&query, priority).await?.servers;
        servers.retain(|server| server.name == name);
        Ok(servers)
    }

    /// Reads a page of servers. Their names are in lower case, as node names are: the databases of most clouds ignore
    /// case, so the name filter finds a server whose name differs from the node's only in case.
    async fn list(&self, query: &[(&'static str, &str)], priority: Priority) -> Result<ServerPage> {
        let path = ["servers", "detail"];
        let mut page: ServerPage = self.read(Op::ServerList, &path, query, priority).await?;
        for server in &mut page.servers {
            server.name.make_ascii_lowercase();
        }
        Ok(page)
    }

    /// Reads with microversion [`FLAVOR_INLINE`] if Nova supports it.
    async fn read<T: serde::de::DeserializeOwned + Send>(
        &self,
        op: Op,
        path: &[&str],
        query: &[(&'static str, &str)],
        priority: Priority,
    ) -> Result<T> {
        let get = |version| {
            let read = client::read(op, Service::Compute, path);
            with_microversion(version, Call { query, ..read })
        };
        if !self.old.load(Ordering::Relaxed) {
            match self.api.get(&get(Some(FLAVOR_INLINE)), priority).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    debug!(
                        error = error.report(),
                        "Nova does not support the microversion, continuing with 2.1"
                    );
                    self.old.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.api.get(&get(None), priority).await
    }
}

/// Escapes a text for Nova's `name` filter, which is a regular expression of its database.
///
/// One request could name many servers by an alternation. But on MySQL Nova escapes every `|`, so none is used.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if matches!(c, '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_is_a_pattern() {
        assert_eq!(escape("a.b-c|d"), r"a\.b-c\|d");
        assert_eq!(escape(r"(x)[y]{z}^$*+?\"), r"\(x\)\[y\]\{z\}\^\$\*\+\?\\");
    }
}
