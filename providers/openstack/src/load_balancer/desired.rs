//! How the parts should be, as values: from Services, nodes and what was found out for them.

mod balancer;
mod groups;

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    load_balancer::{ClusterView, OwnershipTag, ServiceId, ServiceView},
    plan::{Fact, Member, Membership},
};

use super::{
    annotations as note,
    bodies::Timeouts,
    features::Capabilities,
    holders::Holders,
    key::Key,
    member::Identity,
    model::Model,
    names,
    observe::{Slot, Tree},
    protocols::Check,
    records::{FloatingIp, LoadBalancer},
    source_ranges::SourceRanges,
    tags::ServiceTags,
    wanted::Pace,
};
use crate::{config::LoadBalancing, instances::provider_id};

/// What was found out for one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where its virtual address is to be.
    pub(crate) vip_subnet: String,
    /// Where its members are; empty if that is not known before there is a load balancer.
    pub(crate) member_subnet: String,
    /// The network of the members' subnet, as a range.
    pub(crate) member_range: String,
    /// Where floating addresses come from; `None`: nowhere.
    pub(crate) floating_network: Option<String>,
    /// Subnets to try one after the other; empty: Neutron chooses.
    pub(crate) floating_subnets: Vec<String>,
}

/// What was found out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inputs {
    /// Who has the ports that several Services ask for.
    pub(crate) holders: Holders,
    pub(crate) can: Capabilities,
    pub(crate) each: BTreeMap<ServiceId, Found>,
    /// Ids of the security groups of Services, by name.
    pub(crate) groups: BTreeMap<String, Vec<String>>,
    /// The load balancer as the listings show it, for what is to be said of it.
    pub(crate) balancer: Option<Arc<LoadBalancer>>,
}

/// How a part should be.
#[derive(Debug)]
pub(crate) enum Desired {
    /// A load balancer.
    Balancer(Box<Wish>),
    /// The security group of a Service.
    Group(GroupWish),
    /// The groups of ports.
    Ports(PortsWish),
}

/// What is wanted of a load balancer.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) key: Key,
    pub(crate) marks: OwnershipTag,
    /// The cluster's name.
    pub(crate) cluster: String,
    pub(crate) can: Capabilities,
    pub(crate) provider: String,
    pub(crate) serial: bool,
    pub(crate) cascade: bool,
    /// Whether one in ERROR may be given to Octavia to be made anew behind its address.
    pub(crate) failover: bool,
    pub(crate) max_shared: i64,
    pub(crate) has_nodes: bool,
    pub(crate) joined: Vec<Joined>,
    pub(crate) kept: Vec<Kept>,
    pub(crate) leaving: Vec<Leaver>,
}

/// A Service that gets what it asks for.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) who: Who,
    pub(crate) internal: bool,
    pub(crate) keep_floating_ip: bool,
    /// It bears the id of a load balancer that was made for it.
    pub(crate) had_one: bool,
    pub(crate) fields: NewFields,
    /// Create-only annotations with their values.
    pub(crate) given: Vec<(&'static str, String)>,
    /// Tags that it requests; empty if this Octavia has none.
    pub(crate) tags: ServiceTags,
    pub(crate) floating: FloatingWish,
    pub(crate) ports: Vec<PortWish>,
}

/// Whose something is.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) service: ServiceId,
    /// The name of its own load balancer, and its tag on every one that it uses.
    pub(crate) tag: String,
    legacy: String,
    /// Load balancer and addresses of which it speaks.
    pub(crate) named: Vec<String>,
    pub(crate) floating_description: String,
}

/// The ids and addresses of load balancers that a Service names.
pub(crate) fn named(service: &ServiceView) -> Vec<String> {
    let annotated = [note::LOAD_BALANCER_ID, note::LOAD_BALANCER_ADDRESS];
    let annotated = annotated.iter().filter_map(|key| service.annotation(key));
    annotated
        .map(str::to_owned)
        .chain(service.status_addresses().map(|address| address.to_string()))
        .collect()
}

impl Who {
    fn of(service: &ServiceView, cluster: &ClusterView) -> Self {
        Self {
            service: service.id.clone(),
            tag: names::load_balancer(&cluster.name, &service.id),
            legacy: names::legacy_load_balancer(&service.id),
            named: named(service),
            floating_description: names::floating_ip_description(&cluster.name, &service.id),
        }
    }

    /// Whether the load balancer with this name was made for it.
    pub(crate) fn owns(&self, name: &str) -> bool {
        self.tag == name || self.legacy == name
    }

    /// Whether it speaks of this load balancer: by its id, and by the address that it has or had through it.
    pub(crate) fn knows(&self, tree: &Tree) -> bool {
        let balancer = &tree.balancer;
        let names = |text: &str| !text.is_empty() && self.named.iter().any(|named| named == text);
        let floating = tree.floating.as_ref();
        names(&balancer.id)
            && (names(&balancer.vip_address) || floating.is_some_and(|have| names(&have.floating_ip_address)))
    }

    /// Whether this floating address was made for it.
    pub(crate) fn made(&self, floating: &FloatingIp) -> bool {
        names::is_floating_ip_of(&floating.description, &self.service)
            && self.named.contains(&floating.floating_ip_address)
    }
}

/// What only a new load balancer can be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewFields {
    pub(crate) description: String,
    pub(crate) flavor: String,
    pub(crate) zone: String,
    pub(crate) vip_port: String,
    pub(crate) vip_subnet: String,
    pub(crate) vip_network: String,
    pub(crate) vip_address: String,
}

/// The floating address that a Service wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FloatingWish {
    /// `None`: it can have none.
    pub(crate) network: Option<String>,
    pub(crate) subnets: Vec<String>,
    /// This one; empty: any.
    pub(crate) address: String,
    pub(crate) description: String,
}

/// What is wanted of one port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PortWish {
    pub(crate) slot: Slot,
    pub(crate) index: usize,
    pub(crate) protocol: &'static str,
    pub(crate) connection_limit: i64,
    pub(crate) timeouts: Option<Timeouts>,
    pub(crate) forwarded_for: bool,
    pub(crate) tls: String,
    /// `None`: this Octavia lets everybody in.
    pub(crate) ranges: Option<SourceRanges>,
    pub(crate) pool_protocol: &'static str,
    /// How connections are spread; one that Octavia does not know is not applied to a pool that is there.
    pub(crate) method: String,
    pub(crate) sticky: bool,
    /// `None`: there are no nodes, it keeps those that it has.
    pub(crate) members: Option<Vec<MemberWish>>,
    pub(crate) monitor: Option<MonitorWish>,
}

/// A member that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberWish {
    pub(crate) name: String,
    /// Names of further nodes with this address. A member that is one of them stays that node.
    pub(crate) other_names: Vec<String>,
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) subnet: String,
    /// `None`: its own port; nothing is changed for a member of which nothing is known here.
    pub(crate) monitor_port: Option<u16>,
}

impl MemberWish {
    /// What tells it from the other members of its pool.
    pub(crate) fn identity(&self) -> Identity<'_> {
        (&self.address, self.port)
    }
}

/// The health monitor that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MonitorWish {
    pub(crate) check: Check,
    pub(crate) pace: Pace,
}

/// A Service that keeps what it has.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) who: Who,
    /// Where its members follow the nodes.
    pub(crate) follows: Vec<(Slot, Vec<MemberWish>)>,
}

/// A Service that goes.
#[derive(Debug)]
pub(crate) struct Leaver {
    pub(crate) who: Who,
    pub(crate) keep_floating_ip: bool,
}

/// What is wanted of a security group.
#[derive(Debug)]
pub(crate) struct GroupWish {
    pub(crate) name: String,
    pub(crate) service: Option<ServiceId>,
    pub(crate) description: String,
    /// `None`: it stays as it is.
    pub(crate) rules: Option<Vec<RuleTuple>>,
    pub(crate) goes: bool,
}

/// What tells a rule from the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleTuple {
    pub(crate) protocol: String,
    pub(crate) ethertype: &'static str,
    pub(crate) port: u16,
    pub(crate) range: String,
}

/// Which ports have which groups.
#[derive(Debug, Default)]
pub(crate) struct PortsWish {
    /// By address and server: groups that the port with that address has to have.
    pub(crate) wanted: Vec<(String, String, GroupRef)>,
    /// Groups that no port may have.
    pub(crate) unwanted: Vec<GroupRef>,
}

/// A security group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupRef {
    pub(crate) name: String,
    pub(crate) id: Fact<String>,
}

/// From members and nodes to how their part should be.
pub(crate) fn desired(
    model: &Model,
    key: &Key,
    members: &[Member<Model>],
    cluster: &ClusterView,
    inputs: &Inputs,
) -> Desired {
    match key {
        Key::Balancer(_) | Key::New(_) => {
            let wish = balancer::wish(&model.settings, key, members, cluster, inputs);
            Desired::Balancer(Box::new(wish))
        }
        Key::Group(name) => Desired::Group(groups::group(model, name, members, cluster, inputs)),
        Key::NodePorts => Desired::Ports(groups::ports(model, members, cluster, inputs)),
    }
}

/// What is wanted of a load balancer that all of its Services leave; `None` if one of them stays. Nothing has to be read
/// for it.
pub(crate) fn left_by_all(
    settings: &LoadBalancing,
    key: &Key,
    members: &[Member<Model>],
    cluster: &ClusterView,
) -> Option<Wish> {
    let leave = members
        .iter()
        .all(|member| member.membership == Membership::Leaving);
    leave.then(|| balancer::wish(settings, key, members, cluster, &Inputs::default()))
}

/// The id of the server behind a node.
pub(crate) fn server_of(provider_id: &str) -> Option<String> {
    match provider_id::parse(provider_id) {
        Ok(provider_id::ProviderId::Server { id, .. }) => Some(id.to_owned()),
        _ => None,
    }
}
