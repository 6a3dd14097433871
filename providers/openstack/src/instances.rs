//! Which servers are behind the nodes, in as few requests as Nova and Neutron allow.
//!
//! | Asked | Cost |
//! |---|---|
//! | one node | one read of the server, one of its ports |
//! | k nodes | the cheaper of k reads and the pages of a listing; one listing of ports for 150 servers |
//! | only whether they exist | no ports, no flavors |
//!
//! [`servers`] finds them, [`ports`] and [`flavors`] bring what a server record lacks, and the rest is pure.

mod addresses;
mod flavors;
mod listing;
mod mapping;
pub(crate) mod ports;
pub(crate) mod provider_id;
pub(crate) mod records;
mod servers;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Instance, InstanceQuery, InstanceState, Instances, Need, Priority, Result,
    async_trait, client::ClientMetrics,
};

pub(crate) use self::{
    addresses::{Networking, parse_sort_order},
    servers::FLAVOR_INLINE,
};
use self::{
    flavors::Flavors,
    ports::{Attached, Ports},
    provider_id::ProviderId,
    records::Server,
    servers::{Found, Servers, Wanted},
};
use crate::{client::Api, config::Settings};

/// The provider's [`Instances`].
#[derive(Debug)]
pub(crate) struct OpenStackInstances {
    servers: Servers,
    flavors: Flavors,
    ports: Ports,
    networking: Networking,
    region: Option<String>,
    regional: bool,
}

/// What a query asks of the cloud.
enum Question {
    /// Nothing: the answer is known.
    Known(Result<InstanceState>),
    /// This.
    ReadOptions(Wanted),
}

/// What becomes of one query.
enum Slot {
    /// Known without the cloud.
    Known(Result<InstanceState>),
    /// The answer to this question to [`Servers`].
    Asked(usize),
}

/// What a server record lacks.
type Details = Result<(Option<String>, Arc<Attached>)>;

impl OpenStackInstances {
    pub(crate) fn new(api: &Api, settings: &Settings, metrics: &ClientMetrics) -> Self {
        Self {
            servers: Servers::new(api.clone(), metrics),
            flavors: Flavors::new(api.clone(), metrics),
            ports: Ports::new(api.clone()),
            networking: settings.networking.clone(),
            region: settings.connection.region.clone(),
            regional: settings.regional,
        }
    }

    /// What to look for, or the answer if that can be told at once.
    fn question(&self, query: &InstanceQuery) -> Question {
        let node = &query.node;
        let Some(text) = node.provider_id.as_deref().filter(|text| !text.is_empty()) else {
            return Question::ReadOptions(Wanted::Name(node.name.clone()));
        };
        match provider_id::parse(text) {
            Err(error) => Question::Known(Err(error)),
            Ok(ProviderId::Foreign) => Question::Known(Ok(InstanceState::Unmanaged)),
            Ok(ProviderId::Server { region, id }) => {
                let own = self.region.as_deref().unwrap_or_default();
                if region.is_empty() || region == own {
                    Question::ReadOptions(Wanted::Id {
                        id: id.to_owned(),
                        node: node.name.clone(),
                    })
                } else {
                    // Not "not found": somebody who may look there could find it.
                    Question::Known(Err(Error::new(
                        ErrorKind::InvalidSpec,
                        format!(
                            "ProviderID {text:?} is of region {region:?}, the configured region is {own:?}"
                        ),
                    )))
                }
            }
        }
    }

    fn provider_id(&self, server: &Server) -> String {
        let region = self
            .region
            .as_deref()
            .filter(|_| self.regional)
            .unwrap_or_default();
        provider_id::render(region, &server.id)
    }

    /// The details of these servers, by id.
    async fn details(
        &self,
        servers: &BTreeMap<&str, &Server>,
        priority: Priority,
    ) -> HashMap<String, Details> {
        let ids: Vec<&str> = servers.keys().copied().collect();
        let types = async {
            let each = servers
                .values()
                .map(|server| self.flavors.instance_type(server, priority));
            futures_util::future::join_all(each).await
        };
        let (mut attached, types) = tokio::join!(self.ports.attached_to(&ids, priority), types);
        ids.iter()
            .zip(types)
            .map(|(id, instance_type)| {
                let attached = attached.remove(*id).unwrap_or_else(|| Ok(Arc::default()));
                (
                    (*id).to_owned(),
                    instance_type.and_then(|instance_type| Ok((instance_type, attached?))),
                )
            })
            .collect()
    }

    fn present(&self, server: &Server, details: Option<&Details>) -> Result<InstanceState> {
        let mut instance = Instance {
            provider_id: self.provider_id(server),
            power: mapping::power(&server.status),
            ..Instance::default()
        };
        if let Some(details) = details {
            let (instance_type, attached) = details.clone()?;
            instance.instance_type = instance_type;
            instance.addresses = attached.addresses_of(server, &self.networking);
            instance.enforces_address_order = !self.networking.sort_order.is_empty();
            instance.zone = mapping::zone(&server.availability_zone);
            instance.region.clone_from(&self.region);
        }
        Ok(InstanceState::Present(instance))
    }
}

#[async_trait]
impl Instances for OpenStackInstances {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        // Nodes may be asked for twice in a batch; the cloud is not.
        let mut wanted = Vec::new();
        let mut known = HashMap::new();
        let slots: Vec<Slot> = queries
            .iter()
            .map(|query| match self.question(query) {
                Question::Known(answer) => Slot::Known(answer),
                Question::ReadOptions(question) => {
                    Slot::Asked(*known.entry(question.clone()).or_insert_with(|| {
                        wanted.push(question);
                        wanted.len() - 1
                    }))
                }
            })
            .collect();
        let found = self.servers.find(&wanted, freshness, priority).await;

        let servers: BTreeMap<&str, &Server> = queries
            .iter()
            .zip(&slots)
            .filter(|(query, _)| query.need == Need::Metadata)
            .filter_map(|(_, slot)| match slot {
                Slot::Asked(index) => match found.get(*index) {
                    Some(Ok(Found::Server(server))) => Some((server.id.as_str(), &**server)),
                    _ => None,
                },
                Slot::Known(_) => None,
            })
            .collect();
        let details = if servers.is_empty() {
            HashMap::new()
        } else {
            self.details(&servers, priority).await
        };

        queries
            .iter()
            .zip(slots)
            .map(|(query, slot)| match slot {
                Slot::Known(answer) => answer,
                Slot::Asked(index) => match found.get(index) {
                    Some(Ok(Found::Server(server))) => {
                        let details = (query.need == Need::Metadata)
                            .then(|| details.get(&server.id))
                            .flatten();
                        self.present(server, details)
                    }
                    Some(Ok(Found::Absent)) => Ok(InstanceState::Absent),
                    Some(Ok(Found::Unresolved)) => Ok(InstanceState::Unresolved),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(Error::new(
                        ErrorKind::Unexpected,
                        "a question was left unanswered",
                    )),
                },
            })
            .collect()
    }
}
