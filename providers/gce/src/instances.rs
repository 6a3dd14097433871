//! Finds the instances of nodes.
//!
//! | Lookup | Cost |
//! |---|---|
//! | one node by its provider ID | one read |
//! | one node by its name | one read for each zone of the region, all at once |
//! | more nodes than the region has zones | one list for each zone of the region, all at once, 500 instances a page |
//!
//! A node belongs to the instance whose name is that of the node, up to the first dot. An instance is absent only if the API says so of the
//! instance itself: without its zone or project, nothing is known about it.

pub(crate) mod provider_id;

use std::sync::Arc;

use ccm_core::{
    AddressType, Error, ErrorKind, Instance as NodeInstance, InstanceState, NodeAddress, NodeView, Power,
    Priority, Result, async_trait,
    client::{ClientMetrics, Marker, Page},
    instances::finder::{Finder, InstanceSource, Lookup, Record},
};
use futures_util::future::{join_all, try_join_all};

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

/// The provider's [`Instances`](ccm_core::Instances).
pub(crate) type GceInstances = Finder<ComputeSource>;

/// Finds the instances of this site. `multi_project`: also those of other projects, by their provider IDs.
pub(crate) fn finder(
    api: &Api,
    site: &Arc<Site>,
    stack: StackType,
    multi_project: bool,
    metrics: &ClientMetrics,
) -> GceInstances {
    let source = ComputeSource {
        api: api.clone(),
        site: Arc::clone(site),
        stack,
        multi_project,
    };
    Finder::new(source, metrics)
}

/// Reads instances.
#[derive(Debug)]
pub(crate) struct ComputeSource {
    api: Api,
    site: Arc<Site>,
    stack: StackType,
    multi_project: bool,
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

    /// A page is one of each zone.
    fn page_cost(&self) -> usize {
        self.site.zone_count()
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
        let client = self.api.at(priority);
        let zones: Vec<(String, Option<String>)> = match marker {
            Some(ZonePages(pages)) => pages.into_iter().map(|(zone, token)| (zone, Some(token))).collect(),
            None => {
                let zones = self.site.zones(&client, priority).await?;
                zones.iter().map(|zone| (zone.clone(), None)).collect()
            }
        };
        let project = &self.site.project;
        let pages = zones.iter().map(|(zone, token)| client.instance_page(project, zone, token.clone()));
        let (mut items, mut next) = (Vec::new(), Vec::new());
        for ((zone, _), page) in zones.iter().zip(try_join_all(pages).await?) {
            items.extend(page.items);
            if let Some(token) = page.next.filter(|token| !token.is_empty()) {
                next.push((zone.clone(), token));
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
