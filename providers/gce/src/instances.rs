//! Finds the instances of nodes.
//!
//! | Lookup | Cost |
//! |---|---|
//! | one node by its provider ID | one read |
//! | one node by its name | one read for each zone of the region, all at once |
//! | several nodes of a zone by their provider IDs | one list of that zone, 500 instances a page |
//! | more nodes by their names than the region has zones | one list for each zone of the region, all at once |
//!
//! A node belongs to the instance whose name is that of the node, up to the first dot. An instance is absent only if the API says so of the
//! instance itself: without its zone or project, nothing is known about it.

pub(crate) mod provider_id;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    AddressType, Error, ErrorKind, Freshness, Instance as NodeInstance, InstanceQuery, InstanceState,
    Instances, NodeAddress, NodeView, Power, Priority, Result, async_trait,
    client::{Cache, CacheConfig, ClientMetrics, Marker, Page, collect},
    instances::finder::{Finder, InstanceSource, Lookup, Record},
};
use futures_util::future::{join_all, try_join_all};
use parking_lot::Mutex;

use self::provider_id::InstanceName;
use crate::{
    client::{Api, Instance},
    config::StackType,
    site::{Site, region_of_zone},
};

/// The label of nodes that are managed by other means. Source: the Go cloud-controller-manager.
const UNMANAGED_LABEL: &str = "components.gke.io/gke-unmanaged-node";
/// The states of an instance that was shut down. One that is stopping still runs.
const OFF: [&str; 3] = ["TERMINATED", "STOPPED", "SUSPENDED"];

/// Pages of listings of instances that are cached, and for how long. Nodes and load balancers read the same instances when a process
/// starts.
const PAGES: usize = 16;
const PAGE_AGE: Duration = Duration::from_secs(10);

/// The provider's [`Instances`].
///
/// The zone of an instance is in the provider ID of its node. Each zone has its own finder: a zone without such nodes is not listed, and
/// one that does not answer concerns only its own nodes. All other nodes may be in any zone.
#[derive(Clone, Debug)]
pub(crate) struct GceInstances {
    source: ComputeSource,
    metrics: ClientMetrics,
    /// Of all zones.
    region: Finder<ComputeSource>,
    zones: Arc<Mutex<BTreeMap<String, Finder<ComputeSource>>>>,
}

/// A page of a listing of the instances of a zone.
type InstancePage = Page<Instance, String>;

/// Reads instances.
#[derive(Clone, Debug)]
pub(crate) struct ComputeSource {
    api: Api,
    site: Arc<Site>,
    stack: StackType,
    multi_project: bool,
    /// The zone that is listed; `None`: all zones of the region.
    zone: Option<String>,
    /// By zone and token.
    pages: Cache<(String, Option<String>), InstancePage>,
}

impl GceInstances {
    /// Finds the instances of this site. `multi_project`: also those of other projects, by their provider IDs.
    pub(crate) fn new(
        api: &Api,
        site: &Arc<Site>,
        stack: StackType,
        multi_project: bool,
        metrics: &ClientMetrics,
    ) -> Self {
        let source = ComputeSource {
            api: api.clone(),
            site: Arc::clone(site),
            stack,
            multi_project,
            zone: None,
            pages: Cache::new(CacheConfig::bounded("gce_instance_pages", PAGES, PAGE_AGE), metrics),
        };
        Self {
            region: Finder::new(source.clone(), metrics),
            source,
            metrics: metrics.clone(),
            zones: Arc::default(),
        }
    }

    /// The finder of a zone; `None`: of all zones.
    fn finder(&self, zone: Option<String>) -> Finder<ComputeSource> {
        let Some(zone) = zone else {
            return self.region.clone();
        };
        let new = || {
            let source = ComputeSource {
                zone: Some(zone.clone()),
                ..self.source.clone()
            };
            Finder::new(source, &self.metrics)
        };
        self.zones.lock().entry(zone.clone()).or_insert_with(new).clone()
    }

    /// Asks the finder of each zone about its instances, and returns the answers in the order of the questions.
    async fn ask_each<Q: Clone, A, Fut>(
        &self,
        questions: &[Q],
        instance: impl Fn(&Q) -> Option<InstanceName>,
        ask: impl Fn(Finder<ComputeSource>, Vec<Q>) -> Fut,
    ) -> Vec<A>
    where
        Fut: Future<Output = Vec<A>>,
    {
        let mut by_zone: BTreeMap<Option<String>, (Vec<usize>, Vec<Q>)> = BTreeMap::new();
        for (at, question) in questions.iter().enumerate() {
            let instance = instance(question).filter(|instance| instance.project == self.source.site.project);
            let (places, of_zone) = by_zone.entry(instance.map(|instance| instance.zone)).or_default();
            places.push(at);
            of_zone.push(question.clone());
        }
        let (mut places, mut asked) = (Vec::new(), Vec::new());
        for (zone, (of_zone, questions)) in by_zone {
            places.extend(of_zone);
            asked.push(ask(self.finder(zone), questions));
        }
        let answers = join_all(asked).await.into_iter().flatten();
        let mut answers: Vec<_> = places.into_iter().zip(answers).collect();
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// As [`Finder::records`].
    pub(crate) async fn records(
        &self,
        ids: &[&str],
        priority: Priority,
    ) -> Vec<Result<Option<Arc<Instance>>>> {
        self.ask_each(
            ids,
            |id| InstanceName::of_id(id),
            |finder, ids| async move { finder.records(&ids, priority).await },
        )
        .await
    }

    /// The listing of a zone, in pages.
    pub(crate) async fn listing(
        &self,
        zone: &str,
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Vec<Arc<InstancePage>>> {
        collect(async |token: Option<String>| {
            let page = self.source.zone_page(zone, token, freshness, priority).await?;
            let next = page.next.clone();
            Ok(Page {
                items: vec![page],
                next,
            })
        })
        .await
    }

    /// Drops the pages of [`Self::listing`]: an instance was deleted.
    pub(crate) fn forget_pages(&self) {
        self.source.pages.invalidate_all();
    }

    /// Drops all listings: they were read with other credentials.
    pub(crate) fn forget(&self) {
        self.forget_pages();
        self.region.forget();
        self.zones.lock().values().for_each(Finder::forget);
    }
}

#[async_trait]
impl Instances for GceInstances {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        let instance = |query: &InstanceQuery| {
            let id = query.node.provider_id.as_deref().unwrap_or_default();
            provider_id::parse(id).ok().flatten()
        };
        self.ask_each(queries, instance, |finder, queries| async move {
            finder.describe(&queries, freshness, priority).await
        })
        .await
    }

    fn similar_names(&self, name: &str) -> Vec<String> {
        let of_region = self.region.similar_names(name);
        let zones: Vec<_> = self.zones.lock().values().cloned().collect();
        let of_zones = zones.iter().flat_map(|finder| finder.similar_names(name));
        of_region.into_iter().chain(of_zones).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Record for Instance {
    fn id(&self) -> &str {
        &self.id
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

/// The zones that have a next page, with its token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ZonePages(Vec<(String, String)>);

impl Marker for ZonePages {
    fn is_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// The name of a node's instance: FQDNs are cut at the first dot.
pub(crate) fn canonical(node: &str) -> &str {
    node.split('.').next().unwrap_or(node)
}

/// Whether the node is managed by other means.
pub(crate) fn is_unmanaged(node: &NodeView) -> bool {
    node.labels.get(UNMANAGED_LABEL).is_some_and(|value| value == "true")
}

#[async_trait]
impl InstanceSource for ComputeSource {
    type Record = Instance;
    type Marker = ZonePages;

    const CACHE: &'static str = "gce_instances";

    /// A page is one of each zone that is listed.
    fn page_cost(&self) -> usize {
        match self.zone {
            Some(_) => 1,
            None => self.site.zone_count(),
        }
    }

    fn lookup(&self, node: &NodeView) -> Lookup {
        if is_unmanaged(node) {
            return Lookup::Known(Ok(InstanceState::Unmanaged));
        }
        let Some(text) = node.provider_id.as_deref().filter(|text| !text.is_empty()) else {
            return Lookup::Named(canonical(&node.name).to_owned());
        };
        match provider_id::parse(text) {
            Err(error) => Lookup::Known(Err(error)),
            Ok(None) => Lookup::Known(Ok(InstanceState::Unmanaged)),
            // In the cluster's project, it does not exist. That says nothing about this instance.
            Ok(Some(instance)) if instance.project != self.site.project && !self.multi_project => {
                let text = format!(
                    "provider ID {text:?} is that of another project than {:?}; to look for it there, set \
                     --enable-multi-project",
                    self.site.project
                );
                Lookup::Known(Err(Error::new(ErrorKind::InvalidSpec, text)))
            }
            Ok(Some(instance)) => Lookup::Id(instance.id()),
        }
    }

    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Instance>>> {
        join_all(ids.iter().map(|id| self.by_id(id, priority))).await
    }

    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Instance>>> {
        join_all(names.iter().map(|name| self.by_name(name, priority))).await
    }

    async fn page(
        &self,
        _: &str,
        marker: Option<ZonePages>,
        priority: Priority,
    ) -> Result<Page<Instance, ZonePages>> {
        let zones: Vec<(String, Option<String>)> = match (marker, &self.zone) {
            (Some(ZonePages(pages)), _) => {
                pages.into_iter().map(|(zone, token)| (zone, Some(token))).collect()
            }
            (None, Some(zone)) => vec![(zone.clone(), None)],
            (None, None) => {
                let zones = self.site.zones(&self.api.at(priority), priority).await?;
                zones.iter().map(|zone| (zone.clone(), None)).collect()
            }
        };
        // The finder does not say how old the answer may be. It has no listing that is young enough.
        let now = Freshness::now();
        let pages = zones.iter().map(|(zone, token)| self.zone_page(zone, token.clone(), now, priority));
        let (mut items, mut next) = (Vec::new(), Vec::new());
        for ((zone, _), page) in zones.iter().zip(try_join_all(pages).await?) {
            items.extend(page.items.iter().cloned());
            if let Some(token) = page.next.as_ref().filter(|token| !token.is_empty()) {
                next.push((zone.clone(), token.clone()));
            }
        }
        Ok(Page {
            items,
            next: Some(ZonePages(next)),
        })
    }

    fn existence(&self, instance: &Instance) -> NodeInstance {
        let is_off = OFF.contains(&instance.status.as_str());
        NodeInstance {
            provider_id: provider_id::render(&instance.id),
            power: if is_off { Power::Off } else { Power::On },
            ..NodeInstance::default()
        }
    }

    async fn metadata(&self, instances: &[&Instance], _: Priority) -> Vec<Result<NodeInstance>> {
        instances.iter().map(|instance| self.described(instance)).collect()
    }
}

impl ComputeSource {
    /// A page of the instances of a zone. Callers share it.
    async fn zone_page(
        &self,
        zone: &str,
        token: Option<String>,
        freshness: Freshness,
        priority: Priority,
    ) -> Result<Arc<InstancePage>> {
        let key = (zone.to_owned(), token);
        let (client, project) = (self.api.at(priority), self.site.project.clone());
        let (zone, token) = key.clone();
        let load = || async move { client.instance_page(&project, &zone, token).await };
        self.pages.get(key, freshness, priority, load).await
    }

    async fn by_id(&self, id: &str, priority: Priority) -> Result<Option<Instance>> {
        let Some(InstanceName { project, zone, name }) = InstanceName::of_id(id) else {
            return Err(Error::new(ErrorKind::Unexpected, format!("bug: {id:?} is not an instance")));
        };
        self.api.at(priority).instance(&project, &zone, &name).await
    }

    /// All instances of the region with a name.
    async fn by_name(&self, name: &str, priority: Priority) -> Result<Vec<Instance>> {
        let client = self.api.at(priority);
        // Other characters than those of a name cannot be part of a path.
        if !crate::config::is_name(name) {
            return Ok(Vec::new());
        }
        let zones = self.site.zones(&client, priority).await?;
        let reads = zones.iter().map(|zone| client.instance(&self.site.project, zone, name));
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }

    fn described(&self, instance: &Instance) -> Result<NodeInstance> {
        if instance.interfaces.is_empty() {
            let text = format!("instance {} has no network interface", instance.id);
            return Err(Error::new(ErrorKind::InvalidSpec, text));
        }
        let text = |text: &str| {
            if text.is_empty() {
                None
            } else {
                Some(text.to_owned())
            }
        };
        Ok(NodeInstance {
            instance_type: text(&instance.machine_type),
            addresses: addresses(instance, self.stack),
            enforces_address_order: self.stack != StackType::V4,
            zone: text(&instance.zone),
            region: region_of_zone(&instance.zone).map(str::to_owned),
            ..self.existence(instance)
        })
    }
}

/// The addresses of an instance, those of the preferred family first. As in the Go cloud-controller-manager, IPv6 addresses are internal ones;
/// unlike there, an access config without an address is no address.
fn addresses(instance: &Instance, stack: StackType) -> Vec<NodeAddress> {
    let mut addresses = Vec::new();
    for interface in &instance.interfaces {
        let internal = interface.address.iter();
        addresses.extend(internal.map(|address| NodeAddress::new(AddressType::InternalIP, address)));
        let external = interface.external.iter();
        addresses.extend(external.map(|address| NodeAddress::new(AddressType::ExternalIP, address)));
        let ipv6 = interface.ipv6.iter();
        addresses.extend(ipv6.map(|address| NodeAddress::new(AddressType::InternalIP, address)));
    }
    let prefers_ipv6 = stack == StackType::V6;
    addresses.sort_by_key(|address| address.address.contains(':') != prefers_ipv6);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::compute::NetworkInterface;

    #[test]
    fn addresses_are_in_the_order_of_the_stack_type() {
        let interface = |address: Option<&str>, external: &[&str], ipv6: Option<&str>| NetworkInterface {
            address: address.map(str::to_owned),
            external: external.iter().map(ToString::to_string).collect(),
            ipv6: ipv6.map(str::to_owned),
            ..NetworkInterface::default()
        };
        let instance = Instance {
            interfaces: vec![
                interface(Some("10.0.0.2"), &["34.1.0.1"], Some("fd20::1")),
                interface(Some("10.1.0.2"), &[], None),
                interface(None, &[], Some("2600:1900::1")),
            ],
            ..Instance::default()
        };
        let shown = |stack| {
            let addresses = addresses(&instance, stack).into_iter();
            addresses
                .map(|address| format!("{} {}", address.kind, address.address))
                .collect::<Vec<_>>()
        };
        let v4 = [
            "InternalIP 10.0.0.2",
            "ExternalIP 34.1.0.1",
            "InternalIP 10.1.0.2",
        ];
        let v6 = ["InternalIP fd20::1", "InternalIP 2600:1900::1"];
        assert_eq!(shown(StackType::V4), [&v4[..], &v6[..]].concat());
        assert_eq!(shown(StackType::Dual), [&v4[..], &v6[..]].concat());
        assert_eq!(shown(StackType::V6), [&v6[..], &v4[..]].concat());
    }

    #[test]
    fn the_name_of_an_instance_ends_at_the_first_dot() {
        assert_eq!(canonical("n-1.us-central1-a.c.p.internal"), "n-1");
        assert_eq!(canonical("n-1"), "n-1");
    }
}
