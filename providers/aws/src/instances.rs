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
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Instance as NodeInstance, InstanceQuery, InstanceState, Instances, Need,
    NodeView, Power, Priority, Result, async_trait,
    client::{Cache, CacheConfig, ClientMetrics, Page},
    instances::finder::{Finder, InstanceSource, Lookup, Record},
};
use futures_util::future::join_all;
use regex::Regex;

pub(crate) use self::addresses::IpFamily;
use self::{
    provider_id::{ProviderId, address_of_name, fargate_address, is_well_formed},
    topology::Topology,
};
use crate::{
    client::{
        Api,
        ec2::{FILTER_VALUES, Instance},
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

/// The ids of the zones by their names.
type Zones = BTreeMap<String, String>;

/// The provider's [`Instances`].
#[derive(Debug)]
pub(crate) struct AwsInstances {
    finder: Finder<Source>,
    zones: Cache<(), Zones>,
    topology: Topology,
    /// Counts the changes of credentials.
    generation: AtomicU64,
}

impl AwsInstances {
    /// Finds instances through this API.
    pub(crate) fn new(
        api: &Api,
        site: &Arc<Site>,
        settings: &InstanceSettings,
        metrics: &ClientMetrics,
    ) -> Self {
        let zones = CacheConfig {
            max_age: Some(ZONES_MAX_AGE),
            ..CacheConfig::new("aws_zones")
        };
        let zones = Cache::new(zones, metrics);
        let source = Source {
            api: api.clone(),
            site: Arc::clone(site),
            families: settings.families.clone(),
            zones: zones.clone(),
        };
        Self {
            finder: Finder::new(source, metrics),
            zones,
            topology: Topology::new(api, settings.topology_types.clone()),
            generation: AtomicU64::new(1),
        }
    }

    /// Counts the changes of credentials.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Forgets what was read with other credentials.
    pub(crate) fn forget(&self) {
        self.finder.forget();
        self.zones.invalidate_all();
        self.generation.fetch_add(1, Ordering::SeqCst);
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
        let mut answers = self.finder.describe(queries, freshness, priority).await;
        for (query, answer) in queries.iter().zip(&mut answers) {
            if let (Need::Metadata, Ok(InstanceState::Present(instance))) = (query.need, answer) {
                self.topology.label(&query.node, instance);
            }
        }
        answers
    }
}

/// Reads instances.
struct Source {
    api: Api,
    site: Arc<Site>,
    families: Vec<IpFamily>,
    zones: Cache<(), Zones>,
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
        let all = ids.iter().map(ToString::to_string);
        let (fargate, instances): (Vec<_>, Vec<_>) = all.partition(|id| fargate_address(id).is_some());
        let (good, odd): (Vec<_>, Vec<_>) = instances.into_iter().partition(|id| is_well_formed(id));
        let odd = odd.into_iter().map(|id| self.exact(vec![id], priority));
        let (mut found, odd, fargate) = tokio::join!(
            self.well_formed(good, priority),
            join_all(odd),
            self.fargate(&fargate, priority)
        );
        found.extend(odd.into_iter().flatten().chain(fargate));
        let each = ids.iter().map(|id| {
            let answer = found.remove(*id).unwrap_or_else(|| Err(unanswered(id)))?;
            // A terminated instance is shown for about an hour.
            Ok(answer.filter(|instance| instance.state != "terminated"))
        });
        each.collect()
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
            let found = all.iter().find(|one| has_address(one, &address));
            Ok(found.cloned().into_iter().collect())
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
        filter.push(match self.site.cluster.common_key() {
            Some(key) => ("tag-key", vec![key]),
            None => ("vpc-id", vec![self.site.vpc.clone()]),
        });
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
        let zones = match self.zone_ids(instances, priority).await {
            Ok(zones) => zones,
            Err(error) => return instances.iter().map(|_| Err(error.clone())).collect(),
        };
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let each = instances.iter().map(|instance| {
            let zone_id = zones.get(&instance.zone).cloned();
            Ok(NodeInstance {
                instance_type: text(&instance.instance_type),
                addresses: addresses::addresses(instance, &self.families),
                zone: text(&instance.zone),
                region: Some(self.site.region.clone()),
                labels: zone_id.map(|id| (ZONE_ID.to_owned(), id)).into_iter().collect(),
                ..self.existence(instance)
            })
        });
        each.collect()
    }
}

impl Source {
    /// The zones, read again if one of these instances is in an unknown one.
    async fn zone_ids(&self, instances: &[&Instance], priority: Priority) -> Result<Arc<Zones>> {
        let client = self.api.at(priority);
        let load = || {
            let client = client.clone();
            async move { client.zones().await }
        };
        let zones = self.zones.get((), Freshness::AtMost(ZONES_MAX_AGE), load).await?;
        let is_known = |one: &&Instance| one.zone.is_empty() || zones.contains_key(&one.zone);
        if instances.iter().all(is_known) {
            return Ok(zones);
        }
        self.zones.get((), Freshness::now(), load).await
    }

    /// Instances by ids that EC2 could have given.
    async fn well_formed(&self, mut ids: Vec<String>, priority: Priority) -> Answers {
        let found = match self.api.at(priority).instances_among(&ids).await {
            Ok(found) => found,
            Err(error) => return ids.into_iter().map(|id| (id, Err(error.clone()))).collect(),
        };
        let found = found.into_iter().map(|one| (one.id.clone(), Ok(Some(one))));
        let mut answers: Answers = found.collect();
        ids.retain(|id| !answers.contains_key(id));
        // A filter shows what EC2 finds. Only a request for the ids themselves says which do not exist.
        answers.extend(self.exact(ids, priority).await);
        answers
    }

    /// Instances by ids alone. `None`: EC2 says that there is no such id.
    async fn exact(&self, ids: Vec<String>, priority: Priority) -> Answers {
        let client = &self.api.at(priority);
        let read = |ids: Vec<String>| async move {
            let found = client.instances_by_id(&ids).await?.into_iter();
            let mut found: HashMap<_, _> = found.map(|one| (one.id.clone(), one)).collect();
            Ok(ids.iter().map(|id| found.remove(id)).collect())
        };
        let answers = without_refused(ids, read).await.into_iter();
        let answers = answers.map(|(id, answer)| match answer {
            Err(error) if error.kind() == ErrorKind::NotFound => (id, Ok(None)),
            answer => (id, answer),
        });
        answers.collect()
    }

    /// Fargate nodes by the addresses in their ids.
    async fn fargate(&self, ids: &[String], priority: Priority) -> Answers {
        if ids.is_empty() {
            return Answers::new();
        }
        let (client, vpc) = (self.api.at(priority), self.site.vpc.as_str());
        let addresses = ids.iter().filter_map(|id| fargate_address(id)).collect();
        let found = client.fargate_interfaces(vpc, addresses).await;
        let answer = |id: &String| {
            let address = fargate_address(id).unwrap_or_default();
            let found = found.as_ref().map_err(Clone::clone)?;
            let mut fits = found.iter().filter(|one| has_address(one, &address));
            match (fits.next(), fits.next()) {
                (None, _) => Ok(None),
                (Some(one), None) => Ok(Some(Instance {
                    id: id.clone(),
                    ..one.clone()
                })),
                (Some(_), Some(_)) => {
                    let text = format!("several network interfaces of VPC {vpc} have the address {address}");
                    Err(Error::new(ErrorKind::InvalidSpec, text))
                }
            }
        };
        ids.iter().map(|id| (id.clone(), answer(id))).collect()
    }
}

/// The answers by ids.
type Answers = HashMap<String, Result<Option<Instance>>>;

fn has_address(instance: &Instance, address: &String) -> bool {
    let mut interfaces = instance.interfaces.iter();
    interfaces.any(|interface| interface.addresses.contains(address))
}

fn unanswered(id: &str) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        format!("instance {id} was left out of the answer"),
    )
}

/// Sends a request for ids that AWS refuses as a whole because of some of them. `send` returns what each id gets, in their
/// order. The ids that a refusal names get this error, and the request is sent again without them. If it names none, the
/// request is sent for each id alone.
pub(crate) async fn without_refused<T, Fut>(
    mut ids: Vec<String>,
    send: impl Fn(Vec<String>) -> Fut,
) -> HashMap<String, Result<T>>
where
    Fut: Future<Output = Result<Vec<T>>>,
{
    let mut answers = HashMap::new();
    for _ in 0..REFUSALS {
        if ids.is_empty() {
            break;
        }
        let error = match send(ids.clone()).await {
            Ok(all) => {
                answers.extend(ids.into_iter().zip(all.into_iter().map(Ok)));
                return answers;
            }
            Err(error) => error,
        };
        let is_of_one = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidSpec);
        let (is_whole, named) = (!is_of_one || ids.len() == 1, named_ids(error.message()));
        let is_refused = |id: &String| is_whole || named.contains(&id.as_str());
        let (refused, rest): (Vec<_>, Vec<_>) = ids.into_iter().partition(is_refused);
        ids = rest;
        if refused.is_empty() {
            break;
        }
        answers.extend(refused.into_iter().map(|id| (id, Err(error.clone()))));
    }
    let alone = ids.into_iter().map(|id| {
        let sent = send(vec![id.clone()]);
        async move {
            let first = |all: Vec<T>| all.into_iter().next().ok_or_else(|| unanswered(&id));
            let answer = sent.await.and_then(first);
            (id, answer)
        }
    });
    answers.extend(join_all(alone).await);
    answers
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
