//! Finds the droplets of nodes.
//!
//! | Lookup | Cost |
//! |---|---|
//! | one node by its provider ID | one read |
//! | one node by its name | one filtered listing, two if no droplet without a GPU has the name |
//! | k nodes | the cheaper of k reads and a listing, 50 droplets a page and one page more for GPU droplets |
//!
//! A listing needs two queries: the API lists GPU droplets only with `type=gpus`.

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
    config::{Family, Settings, non_empty},
};

/// Added to the offset of a page of GPU droplets.
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

impl Record for Droplet {
    fn id(&self) -> &str {
        &self.id
    }

    /// A node may have an address of its droplet as its name.
    fn names(&self) -> Vec<&str> {
        let mut names = vec![self.name.as_str()];
        if let Some(networks) = &self.networks {
            let addresses = networks.v4.iter().chain(&networks.v6);
            names.extend(addresses.map(|address| address.ip_address.as_str()));
        }
        names
    }
}

/// The droplet ID in a provider ID of this cloud; `None` for provider IDs of other clouds.
///
/// # Errors
/// The provider ID has our scheme but no decimal number.
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

#[async_trait]
impl InstanceSource for DropletSource {
    type Record = Droplet;
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

    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Droplet>>> {
        join_all(ids.iter().map(|id| self.by_id(id, priority))).await
    }

    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Droplet>>> {
        join_all(names.iter().map(|name| self.by_name(name, priority))).await
    }

    /// First the droplets without a GPU, then those with one.
    async fn page(&self, _: &str, marker: Option<u64>, priority: Priority) -> Result<Page<Droplet, u64>> {
        let marker = marker.unwrap_or_default();
        let (filter, offset): (&[_], _) = match marker.checked_sub(GPUS) {
            Some(offset) => (&[ONLY_GPUS], offset),
            None => (&[], marker),
        };
        let (mut page, _) = self.api.page(Op::DropletList, filter, offset, priority).await?;
        page.next = match page.next {
            Some(next) if marker >= GPUS => Some(next + GPUS),
            None if marker < GPUS => Some(GPUS),
            next => next,
        };
        Ok(page)
    }

    fn existence(&self, droplet: &Droplet) -> Instance {
        Instance {
            provider_id: format!("{NAME}://{}", droplet.id),
            power: match droplet.status.as_str() {
                "off" | "archive" => Power::Off,
                _ => Power::On,
            },
            ..Instance::default()
        }
    }

    async fn metadata(&self, records: &[&Droplet], _: Priority) -> Vec<Result<Instance>> {
        records.iter().map(|record| self.instance(record)).collect()
    }
}

impl DropletSource {
    async fn by_id(&self, id: &str, priority: Priority) -> Result<Option<Droplet>> {
        let found: Option<Droplet> = self.api.find(Op::DropletGet, id, priority).await?;
        match found {
            Some(other) if other.id != id => {
                let text = format!("requested droplet {id}, but the API returned droplet {}", other.id);
                Err(Error::new(ErrorKind::Unexpected, text))
            }
            found => Ok(found),
        }
    }

    /// The API's filter compares whole names, ignoring case. It does not match addresses.
    async fn by_name(&self, name: &str, priority: Priority) -> Result<Vec<Droplet>> {
        let is_address = name.parse::<IpAddr>().is_ok();
        for only_gpus in [false, true] {
            let mut filter = Vec::new();
            if only_gpus {
                filter.push(ONLY_GPUS);
            }
            if !is_address {
                filter.push(("name", name));
            }
            let mut found: Vec<Droplet> = self.api.list(Op::DropletList, &filter, priority).await?;
            found.retain(|droplet| droplet.names().contains(&name));
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn instance(&self, droplet: &Droplet) -> Result<Instance> {
        let networks = droplet.networks.as_ref().ok_or_else(|| lacks(droplet, "networks"))?;
        let private =
            first_address(&networks.v4, "private").ok_or_else(|| lacks(droplet, "private IPv4 address"))?;
        let mut addresses = vec![
            NodeAddress::new(AddressType::Hostname, &droplet.name),
            NodeAddress::new(AddressType::InternalIP, private),
        ];
        for (family, all) in [(Family::Ipv4, &networks.v4), (Family::Ipv6, &networks.v6)] {
            if self.settings.has_family(family)
                && let Some(public) = first_address(all, "public")
            {
                addresses.push(NodeAddress::new(AddressType::ExternalIP, public));
            }
        }
        Ok(Instance {
            instance_type: non_empty(&droplet.size_slug),
            region: non_empty(&droplet.region.slug),
            addresses,
            ..self.existence(droplet)
        })
    }
}

/// The error for a droplet that cannot be used yet.
fn lacks(droplet: &Droplet, what: &str) -> Error {
    let text = format!("droplet {} ({}) has no {what}", droplet.id, droplet.name);
    Error::new(ErrorKind::Unavailable, text)
}

/// The first address of a kind: `public` or `private`.
fn first_address<'a>(all: &'a [NetworkAddress], kind: &str) -> Option<&'a str> {
    let found = all.iter().find(|address| address.kind == kind)?;
    Some(&found.ip_address)
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
