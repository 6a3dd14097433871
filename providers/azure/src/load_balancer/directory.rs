//! The load balancers, public IP addresses and private link services in the listings, and which Service they belong to.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ccm_core::{
    Labels,
    load_balancer::{IpFamily, Ownership, OwnershipTag, ServiceId, ServiceView},
};
use serde_json::{Map, Value};

use super::{
    desired::{CLUSTER_TAG, SERVICE_TAG, services_in},
    document::{FRONTENDS, LINK_FRONTENDS, PROBES, RULES, elements, frontend_of_rule, name, reference},
    names::{PINNED, ServiceNames},
};
use crate::{client::field, instances::machine_id::group_of};

/// The load balancers, public IP addresses and private link services of the resource groups.
#[derive(Debug, Default)]
pub(crate) struct BalancerDirectory {
    pub(crate) balancers: Vec<Arc<Value>>,
    pub(crate) addresses: Vec<Arc<Value>>,
    /// The private link services.
    pub(crate) links: Vec<Arc<Value>>,
    /// The labels of namespaces, if a load balancer selects Services by them.
    pub(crate) namespaces: Arc<BTreeMap<String, Labels>>,
}

/// The tags of a document.
pub(super) fn tags(document: &Value) -> Map<String, Value> {
    document.get(field::TAGS).and_then(Value::as_object).cloned().unwrap_or_default()
}

/// The part of a document: resource group and name.
pub(super) fn part_of(document: &Value) -> String {
    let id = document.get("id").and_then(Value::as_str).unwrap_or_default();
    let group = group_of(id).unwrap_or_default();
    format!("{group}/{}", name(document))
}

impl BalancerDirectory {
    /// The load balancer of a part.
    pub(super) fn balancer(&self, part: &str) -> Option<&Value> {
        let found = self.balancers.iter().find(|balancer| part_of(balancer).eq_ignore_ascii_case(part));
        found.map(AsRef::as_ref)
    }

    /// The public IP address of a part: group and name, or group and IP address.
    pub(super) fn address(&self, part: &str) -> Option<&Value> {
        let found = match pinned_address(part) {
            Some((group, ip)) => self.addresses.iter().find(|address| {
                ip_of(address) == Some(ip) && part_of(address).split('/').next() == Some(group)
            }),
            None => self.addresses.iter().find(|address| part_of(address).eq_ignore_ascii_case(part)),
        };
        found.map(AsRef::as_ref)
    }

    /// The private link service of a part.
    pub(super) fn link(&self, part: &str) -> Option<&Value> {
        let found = self.links.iter().find(|link| part_of(link).eq_ignore_ascii_case(part));
        found.map(AsRef::as_ref)
    }

    /// The private link services that use one of these frontends. `frontends`: their IDs in lower case.
    pub(super) fn links_at<'a>(&'a self, frontends: &'a BTreeSet<String>) -> impl Iterator<Item = &'a Value> {
        let links = self.links.iter().map(AsRef::as_ref);
        links.filter(|link| !frontend_ids_of_link(link).is_disjoint(frontends))
    }

    /// The IDs of the frontends that a Service uses in all load balancers, in lower case.
    pub(super) fn frontend_ids(&self, names: &ServiceNames) -> BTreeSet<String> {
        let mut ids = BTreeSet::new();
        for balancer in &self.balancers {
            ids.extend(frontend_ids_in(balancer, names));
        }
        ids
    }

    /// The addresses that a Service has, as far as the listings show them.
    pub(super) fn addresses_of(
        &self,
        service: &ServiceView,
        names: &ServiceNames,
        cluster: &str,
    ) -> BTreeSet<IpAddr> {
        let mut addresses = BTreeSet::new();
        for address in &self.addresses {
            if is_address_of(address, &service.id, names, cluster) {
                addresses.extend(ip_of(address));
            }
        }
        for balancer in &self.balancers {
            for frontend in frontends_of(balancer, names) {
                addresses.extend(private_ip(frontend));
                let public = reference(frontend, "publicIPAddress").and_then(|id| self.address_with_id(id));
                addresses.extend(public.and_then(ip_of));
            }
        }
        addresses
    }

    /// The ports of a Service, and those of its rules in load balancers.
    pub(super) fn ports_of(&self, service: &ServiceView, names: &ServiceNames) -> BTreeSet<String> {
        let spec = service.ports.iter().flat_map(|port| [port.port.to_string(), port.node_port.to_string()]);
        let mut ports: BTreeSet<String> = spec.collect();
        let rules = self.balancers.iter().flat_map(|balancer| elements(balancer, RULES));
        for rule in rules.filter(|rule| names.owns(name(rule))) {
            let port = |field: &str| rule.get(field::PROPERTIES)?.get(field)?.as_u64();
            let both = ["frontendPort", "backendPort"].into_iter().filter_map(port);
            ports.extend(both.map(|port| port.to_string()));
        }
        ports
    }

    fn address_with_id(&self, id: &str) -> Option<&Value> {
        let has_id = |address: &&Arc<Value>| {
            address
                .get("id")
                .and_then(Value::as_str)
                .is_some_and(|other| other.eq_ignore_ascii_case(id))
        };
        self.addresses.iter().find(has_id).map(AsRef::as_ref)
    }
}

/// The resource group and the IP address in a part of a public IP address whose name is not known.
pub(super) fn pinned_address(part: &str) -> Option<(&str, IpAddr)> {
    let (group, name) = part.split_once('/')?;
    Some((group, name.strip_prefix(PINNED)?.parse().ok()?))
}

/// The frontends of a Service: those with its name, and those of other Services that its rules refer to.
fn frontends_of<'a>(balancer: &'a Value, names: &'a ServiceNames) -> impl Iterator<Item = &'a Value> {
    let own_rules = elements(balancer, RULES).filter(|rule| names.owns(name(rule)));
    let used: BTreeSet<String> =
        own_rules.filter_map(frontend_of_rule).map(str::to_ascii_lowercase).collect();
    elements(balancer, FRONTENDS).filter(move |frontend| {
        names.owns(name(frontend)) || used.contains(&name(frontend).to_ascii_lowercase())
    })
}

/// The IDs of the frontends that a Service uses in a load balancer, in lower case.
pub(super) fn frontend_ids_in(balancer: &Value, names: &ServiceNames) -> BTreeSet<String> {
    let id = balancer.get("id").and_then(Value::as_str).unwrap_or_default();
    let ids =
        frontends_of(balancer, names).map(|frontend| frontend_id(id, name(frontend)).to_ascii_lowercase());
    ids.collect()
}

/// The ID of a frontend.
pub(super) fn frontend_id(balancer: &str, name: &str) -> String {
    format!("{balancer}/{FRONTENDS}/{name}")
}

/// The IDs of the frontends that a private link service uses, in lower case.
pub(super) fn frontend_ids_of_link(link: &Value) -> BTreeSet<String> {
    let ids = elements(link, LINK_FRONTENDS).filter_map(|frontend| frontend.get("id")?.as_str());
    ids.map(str::to_ascii_lowercase).collect()
}

/// Whether a public IP address was created for a Service: its tag names the Service, and its name has the UID.
pub(super) fn is_address_of(
    address: &Value,
    service: &ServiceId,
    names: &ServiceNames,
    cluster: &str,
) -> bool {
    let managed = format!("{cluster}-{}", names.base()).to_ascii_lowercase();
    let is_named = name(address).to_ascii_lowercase().starts_with(&managed);
    let tags = tags(address);
    is_named && (tags.get(SERVICE_TAG).is_none() || lists(&tags, service)) && is_of_cluster(&tags, cluster)
}

/// Whether the tags of a public IP address list a Service as one that uses it.
pub(super) fn lists(tags: &Map<String, Value>, service: &ServiceId) -> bool {
    let text = service.to_string();
    services_in(tags).any(|listed| listed == text)
}

/// Whether the tags of a public IP address name no other cluster.
pub(super) fn is_of_cluster(tags: &Map<String, Value>, cluster: &str) -> bool {
    let tag = tags.get(CLUSTER_TAG).and_then(Value::as_str).unwrap_or_default();
    tag.is_empty() || tag.eq_ignore_ascii_case(cluster)
}

/// The address of a public IP address, if it has one.
pub(super) fn ip_of(address: &Value) -> Option<IpAddr> {
    address.pointer("/properties/ipAddress")?.as_str()?.parse().ok()
}

/// The family of a public IP address.
pub(super) fn family_of(address: &Value) -> IpFamily {
    let version = address.pointer("/properties/publicIPAddressVersion").and_then(Value::as_str);
    if version.is_some_and(|version| version.eq_ignore_ascii_case("IPv6")) {
        IpFamily::V6
    } else {
        IpFamily::V4
    }
}

/// The private address of a frontend.
pub(super) fn private_ip(frontend: &Value) -> Option<IpAddr> {
    frontend.pointer("/properties/privateIPAddress")?.as_str()?.parse().ok()
}

/// Whether a load balancer has frontends, rules or probes of a Service.
pub(super) fn has_elements(balancer: &Value, names: &ServiceNames) -> bool {
    let mut all = [FRONTENDS, RULES, PROBES].into_iter().flat_map(|list| elements(balancer, list));
    all.any(|element| names.owns(name(element)))
}

/// The owner of a document by its tags.
pub(super) fn ownership(document: &Value, tag: &OwnershipTag) -> Ownership {
    tag.ownership(tags(document).keys().map(String::as_str))
}
