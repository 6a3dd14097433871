//! The instances of the nodes, in as few requests as EC2 allows.
//!
//! | Asked | Requests |
//! |---|---|
//! | k nodes by id | one for 200, by the filter `instance-id`: an unknown id does not fail the request |
//! | ids that the filter does not find | one for all of them, by `InstanceIds`: only it proves that an instance does not exist |
//! | an id that is not one of EC2 | one each: it fails every request that names it |
//! | k nodes by name | one for 200, by their private DNS name; one more for names that contain an address |
//! | many nodes | pages of 1000, if those are fewer |
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
    error::accept,
    instances::finder::{Finder, InstanceSource, Lookup, Record},
    load_balancer::IpFamily,
};
use futures_util::future::join_all;

use self::{
    provider_id::{ProviderId, address_of_name, fargate_address, is_well_formed},
    topology::Topology,
};
use crate::{
    client::Api,
    client::ec2::{FILTER_VALUES, Instance},
    config::Config,
    site::{LEGACY, Site},
};

/// The label with the id of the zone, which is the same in all accounts.
const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// States of instances that can be nodes.
const STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];
/// Zones are read again after this, or when an unknown one appears.
const ZONES_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// After this many denials in a row, a denied request is not sent for parts of its ids: most likely, all are denied. One
/// denied id among 1000 causes 11.
const DENIALS: usize = 16;

/// The ids of the zones by their names.
type ZoneIds = BTreeMap<String, String>;

/// The provider's [`Instances`]. A clone shares its state.
#[derive(Clone, Debug)]
pub(crate) struct AwsInstances {
    finder: Finder<Ec2Source>,
    zones: Cache<(), ZoneIds>,
    topology: Arc<Topology>,
}

impl AwsInstances {
    /// Finds instances through this API.
    pub(crate) fn new(api: &Api, site: &Arc<Site>, config: &Config, metrics: &ClientMetrics) -> Self {
        let zones = Cache::new(CacheConfig::bounded("aws_zones", 1, ZONES_MAX_AGE), metrics);
        let source = Ec2Source {
            api: api.clone(),
            site: Arc::clone(site),
            families: config.families.clone(),
            keeps_addresses: config.keeps_node_addresses,
            zones: zones.clone(),
        };
        Self {
            finder: Finder::new(source, metrics),
            zones,
            topology: Topology::new(api, config.topology_types.clone()),
        }
    }

    /// Drops data that was read with other credentials.
    pub(crate) fn forget(&self) {
        self.finder.forget();
        self.zones.invalidate_all();
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

    fn similar_names(&self, name: &str) -> Vec<String> {
        self.finder.similar_names(name)
    }
}

/// Reads instances.
struct Ec2Source {
    api: Api,
    site: Arc<Site>,
    families: Vec<IpFamily>,
    keeps_addresses: bool,
    zones: Cache<(), ZoneIds>,
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
impl InstanceSource for Ec2Source {
    type Record = Instance;
    type Marker = String;

    const CACHE: &'static str = "aws_instances";
    const IDS_PER_READ: usize = FILTER_VALUES;
    const NAMES_PER_READ: usize = FILTER_VALUES;
    /// A name may also be an address with any domain.
    const LISTS_ALL_NAMES: bool = false;

    fn lookup(&self, node: &NodeView) -> Lookup {
        let Some(text) = node.provider_id.as_deref().filter(|text| !text.is_empty()) else {
            // With resource names, the name of a node is the id of its instance, mostly with a domain.
            return match node.name.split('.').next() {
                Some(host) if is_well_formed(host) => Lookup::Id(host.to_owned()),
                _ => Lookup::Name,
            };
        };
        match provider_id::parse(text) {
            Err(error) => Lookup::Known(Err(error)),
            Ok(ProviderId::Foreign) => Lookup::Known(Ok(InstanceState::Unmanaged)),
            // Without an address in the id, no request is possible. The instance is not reported absent.
            Ok(ProviderId::Fargate(id))
                if fargate_address(&id).is_none_or(|address| address.parse::<IpAddr>().is_err()) =>
            {
                let text = format!("provider ID {text:?} does not contain the address of a Fargate node");
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
        let (mut found, odd, fargate) =
            tokio::join!(self.well_formed(good, priority), join_all(odd), self.fargate(&fargate, priority));
        found.extend(odd.into_iter().flatten().chain(fargate));
        // Two nodes may have the same ID.
        ids.iter()
            .map(|id| match found.get(*id) {
                // EC2 shows a terminated instance for about an hour.
                Some(Ok(Some(instance))) if instance.state == "terminated" => Ok(None),
                Some(answer) => answer.clone(),
                None => {
                    let text = format!("instance {id} is missing from the response");
                    Err(Error::new(ErrorKind::Unexpected, text))
                }
            })
            .collect()
    }

    /// Reads by private DNS name, else by the address in the name: a VPC with a custom DHCP domain has other names.
    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Instance>>> {
        let client = self.api.at(priority);
        let states = ("instance-state-name", STATES.map(str::to_owned).to_vec());
        let dns_names = names.iter().map(ToString::to_string).collect();
        let mut named = match client.instances(&[("private-dns-name", dns_names), states.clone()]).await {
            Ok(found) => found,
            Err(error) => return names.iter().map(|_| Err(error.clone())).collect(),
        };
        named.retain(|instance| self.site.cluster.has(&instance.tags));
        let is_named = |name: &str| named.iter().any(|instance| instance.private_dns == name);
        let addresses: Vec<_> = names
            .iter()
            .filter(|name| !is_named(name))
            .filter_map(|name| address_of_name(name))
            .collect();
        let mut addressed = Ok(Vec::new());
        if !addresses.is_empty() {
            let vpc = ("vpc-id", vec![self.site.vpc.clone()]);
            addressed = client.instances(&[("private-ip-address", addresses), vpc, states]).await;
        }
        names
            .iter()
            .map(|name| match address_of_name(name) {
                Some(address) if !is_named(name) => {
                    let all = addressed.as_ref().map_err(Clone::clone)?;
                    let found = all.iter().find(|instance| has_address(instance, &address));
                    Ok(found.cloned().into_iter().collect())
                }
                _ => {
                    let found = named.iter().filter(|instance| instance.private_dns == *name);
                    Ok(found.cloned().collect())
                }
            })
            .collect()
    }

    async fn page(
        &self,
        _: &str,
        marker: Option<String>,
        priority: Priority,
    ) -> Result<Page<Instance, String>> {
        let states = ("instance-state-name", STATES.map(str::to_owned).to_vec());
        let of_cluster = match self.site.cluster.key() {
            Some(key) if self.site.cluster.legacy => ("tag-key", vec![key, LEGACY.to_owned()]),
            Some(key) => ("tag-key", vec![key]),
            None => ("vpc-id", vec![self.site.vpc.clone()]),
        };
        let filter = [states, of_cluster];
        let mut page = self.api.at(priority).instance_page(&filter, marker).await?;
        page.items.retain(|instance| self.site.cluster.has(&instance.tags));
        Ok(page)
    }

    fn existence(&self, instance: &Instance) -> NodeInstance {
        let is_off = instance.state == "stopped";
        NodeInstance {
            provider_id: provider_id::render(&instance.zone, &instance.id),
            power: if is_off { Power::Off } else { Power::On },
            ..NodeInstance::default()
        }
    }

    async fn metadata(&self, instances: &[&Instance], priority: Priority) -> Vec<Result<NodeInstance>> {
        let zones = match self.zone_ids(instances, priority).await {
            Ok(zones) => zones,
            Err(error) => return instances.iter().map(|_| Err(error.clone())).collect(),
        };
        let text = |text: &str| {
            if text.is_empty() {
                None
            } else {
                Some(text.to_owned())
            }
        };
        let answers = instances.iter().map(|instance| {
            let zone_id = zones.get(&instance.zone).cloned();
            Ok(NodeInstance {
                instance_type: text(&instance.instance_type),
                addresses: addresses::addresses(instance, &self.families),
                keeps_addresses: self.keeps_addresses,
                enforces_address_order: self.families.len() > 1,
                zone: text(&instance.zone),
                region: Some(self.site.region.clone()),
                labels: zone_id.map(|id| (ZONE_ID.to_owned(), id)).into_iter().collect(),
                ..self.existence(instance)
            })
        });
        answers.collect()
    }
}

impl Ec2Source {
    /// The zones, read again if one of these instances is in an unknown one.
    async fn zone_ids(&self, instances: &[&Instance], priority: Priority) -> Result<Arc<ZoneIds>> {
        let read = |freshness| {
            let client = self.api.at(priority);
            self.zones.get((), freshness, priority, || async move { client.zones().await })
        };
        let zones = read(Freshness::AtMost(ZONES_MAX_AGE)).await?;
        let mut names = instances.iter().map(|instance| &instance.zone);
        if names.all(|name| name.is_empty() || zones.contains_key(name)) {
            return Ok(zones);
        }
        read(Freshness::now()).await
    }

    /// Instances by ids that are well-formed.
    async fn well_formed(&self, mut ids: Vec<String>, priority: Priority) -> Answers {
        let found = match self.api.at(priority).instances_among(&ids).await {
            Ok(found) => found,
            Err(error) => return ids.into_iter().map(|id| (id, Err(error.clone()))).collect(),
        };
        let mut answers: Answers =
            found.into_iter().map(|instance| (instance.id.clone(), Ok(Some(instance)))).collect();
        ids.retain(|id| !answers.contains_key(id));
        // A filter returns only instances that EC2 finds. A request by id reports those that do not exist.
        answers.extend(self.exact(ids, priority).await);
        answers
    }

    /// Instances by ids alone. `None`: EC2 reports that the id does not exist.
    async fn exact(&self, ids: Vec<String>, priority: Priority) -> Answers {
        let client = &self.api.at(priority);
        let answers = isolate_refused(&OF_IDS, ids, |ids: Vec<String>| async move {
            let found = client.instances_by_id(&ids).await?.into_iter();
            let mut by_id: HashMap<_, _> = found.map(|instance| (instance.id.clone(), instance)).collect();
            Ok(ids.iter().map(|id| by_id.remove(id)).collect())
        });
        let accepted = answers.await.into_iter();
        accepted.map(|(id, answer)| (id, accept(answer, ErrorKind::NotFound, None))).collect()
    }

    /// Fargate nodes by the addresses in their ids.
    async fn fargate(&self, ids: &[String], priority: Priority) -> Answers {
        if ids.is_empty() {
            return Answers::new();
        }
        let (client, vpc) = (self.api.at(priority), self.site.vpc.as_str());
        let addresses = ids.iter().filter_map(|id| fargate_address(id)).collect();
        let found = match client.fargate_nodes(vpc, addresses).await {
            Ok(found) => found,
            Err(error) => return ids.iter().map(|id| (id.clone(), Err(error.clone()))).collect(),
        };
        let mut answers = Answers::new();
        for id in ids {
            let address = fargate_address(id).unwrap_or_default();
            let fitting: Vec<_> = found.iter().filter(|node| has_address(node, &address)).collect();
            let answer = match fitting.as_slice() {
                [] => Ok(None),
                [node] => Ok(Some(Instance {
                    id: id.clone(),
                    ..(*node).clone()
                })),
                _ => {
                    let text = format!("several network interfaces of VPC {vpc} have the address {address}");
                    Err(Error::new(ErrorKind::InvalidSpec, text))
                }
            };
            answers.insert(id.clone(), answer);
        }
        answers
    }
}

/// The results by id.
type Answers = HashMap<String, Result<Option<Instance>>>;

fn has_address(instance: &Instance, address: &String) -> bool {
    let mut interfaces = instance.interfaces.iter();
    interfaces.any(|interface| interface.addresses.contains(address))
}

/// The kinds of errors about ids that are missing or invalid.
pub(crate) const OF_IDS: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::InvalidSpec];

/// Sends a request for ids that AWS refuses as a whole, with an error of these kinds, because of some of them. `send` returns
/// a value for each id, in their order. The ids that an error about missing or invalid ones names get this error, and the
/// request is sent again without them. Otherwise, the request is sent for each half of the ids.
pub(crate) async fn isolate_refused<T, Fut>(
    kinds: &[ErrorKind],
    ids: Vec<String>,
    send: impl Fn(Vec<String>) -> Fut,
) -> HashMap<String, Result<T>>
where
    Fut: Future<Output = Result<Vec<T>>>,
{
    let (mut answers, mut batches, mut denials) = (HashMap::new(), vec![ids], 0);
    while let Some(ids) = batches.pop() {
        if ids.is_empty() {
            continue;
        }
        let error = match send(ids.clone()).await {
            Ok(all) => {
                denials = 0;
                answers.extend(ids.into_iter().zip(all.into_iter().map(Ok)));
                continue;
            }
            Err(error) => error,
        };
        let is_of_id = OF_IDS.contains(&error.kind());
        denials += usize::from(!is_of_id);
        let is_whole = ids.len() == 1 || (!is_of_id && denials > DENIALS) || !kinds.contains(&error.kind());
        let named = named_ids(error.message());
        let (refused, mut rest): (Vec<_>, Vec<_>) =
            ids.into_iter().partition(|id| is_whole || (is_of_id && named.contains(&id.as_str())));
        if refused.is_empty() {
            batches.push(rest.split_off(rest.len() / 2));
        }
        batches.push(rest);
        answers.extend(refused.into_iter().map(|id| (id, Err(error.clone()))));
    }
    answers
}

/// The ids in a message such as `The instance IDs 'i-0a, i-0b' do not exist`.
pub(crate) fn named_ids(message: &str) -> Vec<&str> {
    let words = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.starts_with("i-")).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn ids_are_taken_from_the_message_that_they_do_not_exist() {
        assert_eq!(named_ids("The instance ID 'i-1a' does not exist"), ["i-1a"]);
        let two = named_ids("The instance IDs 'i-1a, i-2b' do not exist");
        assert_eq!(two, ["i-1a", "i-2b"]);
        assert!(named_ids("not found").is_empty());
    }

    #[tokio::test]
    async fn denied_ids_are_isolated_unless_all_are_denied() {
        let all = || (0..1000).map(|i| format!("i-{i:03}"));
        for (denied, most) in [(vec![], 1), (vec![7, 8, 500], 60), ((0..1000).collect(), 30)] {
            let denied: Vec<_> = denied.into_iter().map(|i| format!("i-{i:03}")).collect();
            let calls = Cell::new(0);
            let send = async |ids: Vec<String>| {
                calls.set(calls.get() + 1);
                match ids.iter().find(|id| denied.contains(id)) {
                    Some(id) => Err(Error::new(ErrorKind::PermissionDenied, format!("no {id}"))),
                    None => Ok(ids),
                }
            };
            let answers = isolate_refused(&[ErrorKind::PermissionDenied], all().collect(), send).await;
            for id in all() {
                assert_eq!(answers[&id].is_err(), denied.contains(&id), "{id}");
            }
            assert!(calls.get() <= most, "{} calls", calls.get());
            // Of other requests, a denial is one of all ids.
            calls.set(0);
            isolate_refused(&OF_IDS, all().collect(), send).await;
            assert_eq!(calls.get(), 1);
        }
    }
}
