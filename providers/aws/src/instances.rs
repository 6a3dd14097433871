//! Which instances are behind the nodes, in as few requests as EC2 allows.
//!
//! | Asked | Requests |
//! |---|---|
//! | k nodes by id | one for 200, by the filter `instance-id`: an unknown id refuses nothing |
//! | ids that no filter finds | one for all of them, by `InstanceIds`: only this answer can say that an instance is gone |
//! | an id that is not one of EC2 | one each: it refuses every request that names it |
//! | k nodes by name | one for 200, by their private DNS name; one more for names that hold an address |
//! | many nodes | pages of 1000, where those are fewer |
//!
//! Core's [`Finder`] chooses. Topology labels come from an API with a tiny quota: they are read in the background and appear
//! with a later refresh ([`topology`]).

mod addresses;
pub(crate) mod provider_id;
mod topology;

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Instance as NodeInstance, InstanceQuery, InstanceState, Instances, Need,
    NodeView, Power, Priority, Result, async_trait,
    client::{Cache, CacheConfig, ClientMetrics, Page},
    instances::finder::{Finder, InstanceSource, Lookup, Record},
};
use futures_util::future::join_all;
use parking_lot::RwLock;
use regex::Regex;

pub(crate) use self::addresses::IpFamily;
use self::{
    provider_id::{ProviderId, address_of_name, fargate_address, is_well_formed},
    topology::Topology,
};
use crate::{
    client::{
        Api,
        ec2::{FILTER_VALUES, Instance, Zone},
    },
    site::Site,
};

/// The label with the id of the zone, which is the same in all accounts.
const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// States of instances that can be nodes.
const STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];
/// Zones are read again after this, or when an unknown one appears.
const ZONES_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Retries of a request for ids without those that it was refused for.
const REFUSALS: usize = 5;

/// What nodes get of their instances.
#[derive(Clone, Debug)]
pub(crate) struct InstanceSettings {
    /// Which addresses are reported, in this order.
    pub(crate) families: Vec<IpFamily>,
    /// Instance types whose nodes should have topology labels.
    pub(crate) topology_types: Option<Regex>,
}

/// The provider's [`Instances`].
#[derive(Debug)]
pub(crate) struct AwsInstances {
    api: Api,
    site: Arc<Site>,
    settings: InstanceSettings,
    metrics: ClientMetrics,
    topology: Topology,
    /// With the generation of the credentials that it was made under: what is cached is theirs.
    finder: RwLock<(u64, Arc<Finder<Source>>)>,
}

impl AwsInstances {
    /// Finds instances through this API.
    pub(crate) fn new(
        api: &Api,
        site: &Arc<Site>,
        settings: &InstanceSettings,
        metrics: &ClientMetrics,
    ) -> Self {
        Self {
            finder: RwLock::new((api.generation(), finder(api, site, settings, metrics))),
            topology: Topology::new(api, settings.topology_types.clone()),
            api: api.clone(),
            site: Arc::clone(site),
            settings: settings.clone(),
            metrics: metrics.clone(),
        }
    }

    fn finder(&self) -> Arc<Finder<Source>> {
        let generation = self.api.generation();
        let current = self.finder.read();
        if current.0 == generation {
            return Arc::clone(&current.1);
        }
        drop(current);
        let new = finder(&self.api, &self.site, &self.settings, &self.metrics);
        *self.finder.write() = (generation, Arc::clone(&new));
        new
    }
}

#[async_trait]
impl Instances for AwsInstances {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        let mut answers = self.finder().describe(queries, freshness, priority).await;
        for (query, answer) in queries.iter().zip(&mut answers) {
            if let (Need::Metadata, Ok(InstanceState::Present(instance))) = (query.need, answer) {
                self.topology.label(&query.node, instance);
            }
        }
        answers
    }
}

fn finder(
    api: &Api,
    site: &Arc<Site>,
    settings: &InstanceSettings,
    metrics: &ClientMetrics,
) -> Arc<Finder<Source>> {
    let zones = CacheConfig {
        max_age: Some(ZONES_MAX_AGE),
        ..CacheConfig::new("aws_zones")
    };
    let source = Source {
        api: api.clone(),
        site: Arc::clone(site),
        families: settings.families.clone(),
        zones: Cache::new(zones, metrics),
    };
    Arc::new(Finder::new(source, metrics))
}

/// Reads instances.
struct Source {
    api: Api,
    site: Arc<Site>,
    families: Vec<IpFamily>,
    zones: Cache<(), Vec<Zone>>,
}

impl Record for Instance {
    fn id(&self) -> &str {
        &self.id
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.private_dns]
    }
}

#[async_trait]
impl InstanceSource for Source {
    type Record = Instance;
    type Marker = String;

    const CACHE: &'static str = "aws_instances";
    const IDS_PER_READ: usize = FILTER_VALUES;
    const NAMES_PER_READ: usize = FILTER_VALUES;

    fn lookup(&self, node: &NodeView) -> Lookup {
        let Some(text) = node.provider_id.as_deref().filter(|text| !text.is_empty()) else {
            // With resource names, the name of a node is the id of its instance, mostly with a domain.
            let host = node.name.split('.').next().unwrap_or_default();
            return if is_well_formed(host) {
                Lookup::Id(host.to_owned())
            } else {
                Lookup::Name
            };
        };
        match provider_id::parse(text) {
            Err(error) => Lookup::Known(Err(error)),
            Ok(ProviderId::Foreign) => Lookup::Known(Ok(InstanceState::Unmanaged)),
            // Nothing has such an address, and nothing that is not there was asked for.
            Ok(ProviderId::Fargate(id))
                if fargate_address(&id).is_none_or(|ip| ip.parse::<IpAddr>().is_err()) =>
            {
                let text = format!("provider ID {text:?} does not hold the address of a Fargate node");
                Lookup::Known(Err(Error::new(ErrorKind::InvalidSpec, text)))
            }
            Ok(ProviderId::Instance(id) | ProviderId::Fargate(id)) => Lookup::Id(id),
        }
    }

    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Instance>>> {
        let fargate: Vec<(&str, String)> = ids
            .iter()
            .filter_map(|id| Some((*id, fargate_address(id)?)))
            .collect();
        let (good, odd): (Vec<&str>, Vec<&str>) = ids
            .iter()
            .copied()
            .filter(|id| fargate_address(id).is_none())
            .partition(|id| is_well_formed(id));
        let odd = odd.into_iter().map(|id| async move {
            let read = self.api.at(priority).instances_by_id(&[id]).await;
            let known = read.map(|found| found.into_iter().find(|one| one.id == id));
            (id.to_owned(), absent_if_not_found(known))
        });
        let (mut found, odd, fargate) = tokio::join!(
            self.well_formed(&good, priority),
            join_all(odd),
            self.fargate(&fargate, priority)
        );
        found.extend(odd);
        found.extend(fargate);
        ids.iter()
            .map(|id| {
                let answer = found.remove(*id).unwrap_or_else(|| Err(unanswered(id)))?;
                // A terminated instance is shown for about an hour.
                Ok(answer.filter(|instance| instance.state != "terminated"))
            })
            .collect()
    }

    /// By private DNS names; where none fits, by the address in the name: a VPC with a DHCP domain of its own has other names.
    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Instance>>> {
        let client = self.api.at(priority);
        let states = || ("instance-state-name", STATES.map(str::to_owned).to_vec());
        let dns = names.iter().map(ToString::to_string).collect();
        let named = match client.instances(&[("private-dns-name", dns), states()]).await {
            Ok(found) => found,
            Err(error) => return names.iter().map(|_| Err(error.clone())).collect(),
        };
        let fits = |name: &str| -> Vec<Instance> {
            let fits = |one: &&Instance| one.private_dns == name && self.site.cluster.has(&one.tags);
            named.iter().filter(fits).cloned().collect()
        };
        let open = names.iter().filter(|name| fits(name).is_empty());
        let addresses: Vec<_> = open.filter_map(|name| address_of_name(name)).collect();
        let mut addressed = Ok(Vec::new());
        if !addresses.is_empty() {
            let vpc = ("vpc-id", vec![self.site.vpc.clone()]);
            let filter = [("private-ip-address", addresses), vpc, states()];
            addressed = client.instances(&filter).await;
        }
        let each = names.iter().map(|name| {
            let found = fits(name);
            let Some(address) = address_of_name(name).filter(|_| found.is_empty()) else {
                return Ok(found);
            };
            let all = addressed.as_ref().map_err(Clone::clone)?;
            let has = |one: &&Instance| {
                let mut interfaces = one.interfaces.iter();
                interfaces.any(|interface| interface.addresses.contains(&address))
            };
            Ok(all.iter().find(has).cloned().into_iter().collect())
        });
        each.collect()
    }

    async fn page(
        &self,
        _: &str,
        marker: Option<String>,
        priority: Priority,
    ) -> Result<Page<Instance, String>> {
        let mut filter = vec![("instance-state-name", STATES.map(str::to_owned).to_vec())];
        match self.site.cluster.key().filter(|_| !self.site.cluster.legacy) {
            Some(key) => filter.push(("tag-key", vec![key])),
            // A filter for either of two tags does not exist.
            None => filter.push(("vpc-id", vec![self.site.vpc.clone()])),
        }
        let mut page = self.api.at(priority).instance_page(&filter, marker).await?;
        page.items
            .retain(|instance| self.site.cluster.has(&instance.tags));
        Ok(page)
    }

    fn existence(&self, instance: &Instance) -> NodeInstance {
        NodeInstance {
            provider_id: provider_id::render(&instance.zone, &instance.id),
            power: if instance.state == "stopped" {
                Power::Off
            } else {
                Power::On
            },
            ..NodeInstance::default()
        }
    }

    async fn metadata(&self, instances: &[&Instance], priority: Priority) -> Vec<Result<NodeInstance>> {
        let zones = self.zone_ids(instances, priority).await;
        let each = instances.iter().map(|instance| {
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let zone_id = match &zones {
                Ok(zones) => zones.iter().find(|zone| zone.name == instance.zone),
                Err(error) => return Err(error.clone()),
            };
            let labels = zone_id.map(|zone| (ZONE_ID.to_owned(), zone.id.clone()));
            Ok(NodeInstance {
                instance_type: text(&instance.instance_type),
                addresses: addresses::addresses(instance, &self.families),
                zone: text(&instance.zone),
                region: Some(self.site.region.clone()),
                labels: labels.into_iter().collect::<BTreeMap<_, _>>(),
                ..self.existence(instance)
            })
        });
        each.collect()
    }
}

impl Source {
    /// The zones, read again if one of these instances is in an unknown one.
    async fn zone_ids(&self, instances: &[&Instance], priority: Priority) -> Result<Arc<Vec<Zone>>> {
        let load = || {
            let api = self.api.clone();
            move || async move { api.at(priority).zones().await }
        };
        let zones = self
            .zones
            .get((), Freshness::AtMost(ZONES_MAX_AGE), load())
            .await?;
        let known = |instance: &&&Instance| {
            instance.zone.is_empty() || zones.iter().any(|zone| zone.name == instance.zone)
        };
        if instances.iter().all(|instance| known(&instance)) {
            return Ok(zones);
        }
        self.zones.get((), Freshness::now(), load()).await
    }

    /// Instances by ids that EC2 could have given.
    async fn well_formed(
        &self,
        ids: &[&str],
        priority: Priority,
    ) -> HashMap<String, Result<Option<Instance>>> {
        let mut answers = HashMap::new();
        if ids.is_empty() {
            return answers;
        }
        let filter = [("instance-id", ids.iter().map(ToString::to_string).collect())];
        match self.api.at(priority).instances(&filter).await {
            Ok(found) => answers.extend(found.into_iter().map(|one| (one.id.clone(), Ok(Some(one))))),
            Err(error) => {
                answers.extend(ids.iter().map(|id| ((*id).to_owned(), Err(error.clone()))));
                return answers;
            }
        }
        let mut open: Vec<&str> = ids
            .iter()
            .copied()
            .filter(|id| !answers.contains_key(*id))
            .collect();
        // A filter shows what EC2 finds. Only a request for the ids themselves says which do not exist.
        for _ in 0..REFUSALS {
            if open.is_empty() {
                break;
            }
            match self.api.at(priority).instances_by_id(&open).await {
                Ok(found) => {
                    let mut found: HashMap<String, Instance> =
                        found.into_iter().map(|one| (one.id.clone(), one)).collect();
                    for id in open.drain(..) {
                        answers.insert(id.to_owned(), Ok(found.remove(id)));
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let gone = named_ids(error.message());
                    let known = open.len();
                    for id in &gone {
                        if open.contains(id) {
                            answers.insert((*id).to_owned(), Ok(None));
                        }
                    }
                    open.retain(|id| !gone.contains(id));
                    if open.len() == known {
                        // The message does not say which.
                        break;
                    }
                }
                Err(error) => {
                    for id in open.drain(..) {
                        answers.insert(id.to_owned(), Err(error.clone()));
                    }
                }
            }
        }
        let alone = open.into_iter().map(|id| async move {
            let read = self.api.at(priority).instances_by_id(&[id]).await;
            (
                id.to_owned(),
                absent_if_not_found(read.map(|found| found.into_iter().next())),
            )
        });
        answers.extend(join_all(alone).await);
        answers
    }

    /// Fargate nodes by the addresses in their ids.
    async fn fargate(
        &self,
        nodes: &[(&str, String)],
        priority: Priority,
    ) -> HashMap<String, Result<Option<Instance>>> {
        if nodes.is_empty() {
            return HashMap::new();
        }
        let addresses = nodes.iter().map(|(_, address)| address.clone()).collect();
        let found = self
            .api
            .at(priority)
            .fargate_interfaces(&self.site.vpc, addresses)
            .await;
        let answer = |id: &str, address: &String| {
            let found = found.as_ref().map_err(Clone::clone)?;
            let mut fits = found.iter().filter(|one| {
                one.interfaces
                    .iter()
                    .any(|interface| interface.addresses.contains(address))
            });
            match (fits.next(), fits.next()) {
                (None, _) => Ok(None),
                (Some(one), None) => Ok(Some(Instance {
                    id: id.to_owned(),
                    ..one.clone()
                })),
                (Some(_), Some(_)) => {
                    let text = format!(
                        "several network interfaces of VPC {} have the address {address}",
                        self.site.vpc
                    );
                    Err(Error::new(ErrorKind::InvalidSpec, text))
                }
            }
        };
        let each = nodes
            .iter()
            .map(|(id, address)| ((*id).to_owned(), answer(id, address)));
        each.collect()
    }
}

fn unanswered(id: &str) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        format!("instance {id} was left out of the answer"),
    )
}

fn absent_if_not_found(read: Result<Option<Instance>>) -> Result<Option<Instance>> {
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read,
    }
}

/// The ids in a message such as `The instance IDs 'i-0a, i-0b' do not exist`.
pub(crate) fn named_ids(message: &str) -> Vec<&str> {
    let words = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.starts_with("i-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_from_the_message_that_they_do_not_exist() {
        assert_eq!(named_ids("The instance ID 'i-1a' does not exist"), ["i-1a"]);
        assert_eq!(
            named_ids("The instance IDs 'i-1a, i-2b' do not exist"),
            ["i-1a", "i-2b"]
        );
        assert!(named_ids("not found").is_empty());
    }
}
