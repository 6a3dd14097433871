//! Which droplets are behind the nodes.
//!
//! | Asked | Cost |
//! |---|---|
//! | one node by its provider ID | one read |
//! | one node by its name | one filtered listing, two if no droplet without a GPU has the name |
//! | k nodes | the cheaper of k reads and a listing, 200 droplets a page and one page more for GPU droplets |
//!
//! The API leaves GPU droplets out of listings unless they are asked for (`type=gpus`), so a listing is two.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    AddressType, Error, ErrorKind, Instance, InstanceState, NodeAddress, NodeView, Power, Priority, Result,
    async_trait,
    client::{ClientMetrics, Page},
    instances::finder::{Finder, InstanceSource, Lookup, Record},
};
use futures_util::future::join_all;

use crate::{
    NAME,
    client::{Api, Droplet, NetworkAddress, Op},
    config::Settings,
};

/// Added to the number of a page of GPU droplets.
const GPUS: u64 = 1 << 32;
/// The filter of listings of GPU droplets.
const ONLY_GPUS: (&str, &str) = ("type", "gpus");

/// The provider's [`Instances`](ccm_core::Instances).
pub(crate) type Droplets = Finder<DropletSource>;

/// Finds droplets with this API.
pub(crate) fn finder(api: &Api, settings: &Arc<Settings>, metrics: &ClientMetrics) -> Droplets {
    let (api, settings) = (api.clone(), Arc::clone(settings));
    Finder::new(DropletSource { api, settings }, metrics)
}

/// Reads droplets.
#[derive(Debug)]
pub(crate) struct DropletSource {
    api: Api,
    settings: Arc<Settings>,
}

/// A droplet and its id as text.
pub(crate) struct DropletRecord {
    id: String,
    droplet: Droplet,
}

impl From<Droplet> for DropletRecord {
    fn from(droplet: Droplet) -> Self {
        Self {
            id: droplet.id.to_string(),
            droplet,
        }
    }
}

impl Record for DropletRecord {
    fn id(&self) -> &str {
        &self.id
    }

    /// A node may have an address of its droplet as its name.
    fn names(&self) -> Vec<&str> {
        let name = std::iter::once(self.droplet.name.as_str());
        name.chain(addresses(&self.droplet).map(|address| address.ip_address.as_str()))
            .collect()
    }
}

fn addresses(droplet: &Droplet) -> impl Iterator<Item = &NetworkAddress> {
    let networks = droplet.networks.iter();
    networks.flat_map(|networks| networks.v4.iter().chain(&networks.v6))
}

/// The id in a provider ID of this cloud; `None` for those of other clouds.
///
/// # Errors
/// It has our scheme and no decimal number.
pub(crate) fn droplet_id(provider_id: &str) -> Result<Option<u64>> {
    let Some((scheme, id)) = provider_id.split_once("://") else {
        return Err(malformed(provider_id));
    };
    if scheme != NAME {
        return Ok(None);
    }
    let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    match id.parse() {
        Ok(id) if is_number => Ok(Some(id)),
        _ => Err(malformed(provider_id)),
    }
}

fn malformed(provider_id: &str) -> Error {
    let text = format!("provider ID {provider_id:?} is not digitalocean://<droplet id>");
    Error::new(ErrorKind::InvalidSpec, text)
}

/// The provider ID of a droplet.
fn provider_id(id: &str) -> String {
    format!("{NAME}://{id}")
}

#[async_trait]
impl InstanceSource for DropletSource {
    type Record = DropletRecord;
    type Marker = u64;

    const CACHE: &'static str = "digitalocean_droplets";

    fn lookup(&self, node: &NodeView) -> Lookup {
        let Some(text) = node.provider_id.as_deref().filter(|text| !text.is_empty()) else {
            return Lookup::Name;
        };
        match droplet_id(text) {
            Ok(Some(id)) => Lookup::Id(id.to_string()),
            Ok(None) => Lookup::Known(Ok(InstanceState::Unmanaged)),
            Err(error) => Lookup::Known(Err(error)),
        }
    }

    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<DropletRecord>>> {
        join_all(ids.iter().map(|id| self.by_id(id, priority))).await
    }

    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<DropletRecord>>> {
        join_all(names.iter().map(|name| self.by_name(name, priority))).await
    }

    /// First the droplets without a GPU, then those with one.
    async fn page(
        &self,
        _: &str,
        marker: Option<u64>,
        priority: Priority,
    ) -> Result<Page<DropletRecord, u64>> {
        let marker = marker.unwrap_or(1);
        let (filter, number): (&[_], _) = match marker.checked_sub(GPUS) {
            Some(number) => (&[ONLY_GPUS], number),
            None => (&[], marker),
        };
        let page: Page<Droplet, u64> = self.api.page(Op::DropletList, filter, number, priority).await?;
        let next = match page.next {
            Some(next) if marker >= GPUS => Some(next + GPUS),
            None if marker < GPUS => Some(GPUS + 1),
            next => next,
        };
        Ok(Page {
            items: page.items.into_iter().map(DropletRecord::from).collect(),
            next,
        })
    }

    fn existence(&self, record: &DropletRecord) -> Instance {
        Instance {
            provider_id: provider_id(&record.id),
            power: match record.droplet.status.as_str() {
                "off" | "archive" => Power::Off,
                _ => Power::On,
            },
            ..Instance::default()
        }
    }

    async fn metadata(&self, records: &[&DropletRecord], _: Priority) -> Vec<Result<Instance>> {
        records.iter().map(|record| self.instance(record)).collect()
    }
}

impl DropletSource {
    async fn by_id(&self, id: &str, priority: Priority) -> Result<Option<DropletRecord>> {
        let found: Option<Droplet> = self.api.find(Op::DropletGet, id, priority).await?;
        match found.map(DropletRecord::from) {
            Some(record) if record.id != id => Err(Error::new(
                ErrorKind::Unexpected,
                format!("asked for droplet {id}, the answer is droplet {}", record.id),
            )),
            found => Ok(found),
        }
    }

    /// The API's filter compares whole names without regard to case. It does not know addresses.
    async fn by_name(&self, name: &str, priority: Priority) -> Result<Vec<DropletRecord>> {
        let is_address = name.parse::<IpAddr>().is_ok();
        for gpus in [false, true] {
            let mut filter = Vec::new();
            if gpus {
                filter.push(ONLY_GPUS);
            }
            if !is_address {
                filter.push(("name", name));
            }
            let droplets: Vec<Droplet> = self.api.list(Op::DropletList, &filter, priority).await?;
            let records = droplets.into_iter().map(DropletRecord::from);
            let found: Vec<_> = records.filter(|record| record.names().contains(&name)).collect();
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn instance(&self, record: &DropletRecord) -> Result<Instance> {
        let droplet = &record.droplet;
        let unusable = |what: &str| {
            let text = format!("droplet {} ({}) has no {what}", droplet.id, droplet.name);
            Error::new(ErrorKind::Unavailable, text)
        };
        let networks = droplet.networks.as_ref().ok_or_else(|| unusable("networks"))?;
        let first = |all: &[NetworkAddress], kind: &str| {
            let mut found = all.iter().filter(|address| address.kind == kind);
            found.next().map(|address| address.ip_address.clone())
        };
        let private = first(&networks.v4, "private").ok_or_else(|| unusable("private IPv4 address"))?;
        let mut addresses = vec![
            NodeAddress::new(AddressType::Hostname, &droplet.name),
            NodeAddress::new(AddressType::InternalIP, private),
        ];
        for (family, all) in [("ipv4", &networks.v4), ("ipv6", &networks.v6)] {
            let public = first(all, "public").filter(|_| self.settings.has_family(family));
            addresses.extend(public.map(|address| NodeAddress::new(AddressType::ExternalIP, address)));
        }
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Ok(Instance {
            instance_type: some(&droplet.size_slug),
            region: some(&droplet.region.slug),
            addresses,
            ..self.existence(record)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn provider_ids_are_decimal_numbers() {
        assert_eq!(droplet_id("digitalocean://12345").unwrap(), Some(12345));
        assert_eq!(droplet_id("aws:///zone/i-1").unwrap(), None);
        for wrong in [
            "",
            "12345",
            "digitalocean://",
            "digitalocean://12x",
            "digitalocean://+1",
            "digitalocean:///1",
        ] {
            let error = droplet_id(wrong).unwrap_err();
            assert!(error.to_string().contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
