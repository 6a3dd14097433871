//! Nodes as members of load balancers.

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map},
    net::IpAddr,
    sync::Arc,
};

use super::{
    report::ServiceEvent,
    service::{IpFamily, ServiceId},
};
use crate::{AddressType, NodeAddress, NodeView};

/// A node as a member of load balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceNode {
    /// Name, uid, provider ID, labels.
    pub view: Arc<NodeView>,
    /// `status.addresses`, in order.
    pub addresses: Arc<[NodeAddress]>,
    /// Whether it may be a member of load balancers: not being deleted, not excluded by its label, not about to be
    /// deleted by the autoscaler. Whether it is ready or initialized does not matter.
    pub eligible: bool,
    /// Whether its condition `Ready` is true. If so, its instance most likely exists; nothing else follows from it.
    pub ready: bool,
}

impl ServiceNode {
    /// Its first internal address of the family, else its first external one. Any family if `None`.
    #[must_use]
    pub fn address(&self, family: Option<IpFamily>) -> Option<IpAddr> {
        let first = |kind| {
            self.addresses
                .iter()
                .filter(|address| address.kind == kind)
                .filter_map(|address| address.address.parse::<IpAddr>().ok())
                .find(|address| family.is_none_or(|family| IpFamily::of(*address) == family))
        };
        first(AddressType::InternalIP).or_else(|| first(AddressType::ExternalIP))
    }

    /// Whether it has an address of this kind and family.
    #[must_use]
    pub fn has_address(&self, kind: AddressType, family: IpFamily) -> bool {
        let mut found = self.addresses.iter().filter(|address| address.kind == kind);
        found.any(|address| address.address.parse().is_ok_and(|ip| IpFamily::of(ip) == family))
    }
}

/// All nodes of the cluster, sorted by name. A clone is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(Arc<[ServiceNode]>);

impl NodeSet {
    /// All nodes, whether they may be members or not.
    #[must_use]
    pub fn all(&self) -> &[ServiceNode] {
        &self.0
    }

    /// The nodes that may be members.
    pub fn eligible(&self) -> impl Iterator<Item = &ServiceNode> {
        self.0.iter().filter(|node| node.eligible)
    }

    /// The nodes that may be members and that `select` accepts, grouped by their address of the family, in the order of
    /// their names.
    ///
    /// Several nodes can have one address: an instance that is renamed or rebuilt registers a second Node. Clouds refuse a
    /// list of targets with duplicates, so a load balancer takes one node of each group: the one that it has, else the
    /// first.
    pub fn by_address(
        &self,
        family: Option<IpFamily>,
        select: impl Fn(&ServiceNode) -> bool,
    ) -> Vec<AddressGroup<'_>> {
        let mut groups: Vec<AddressGroup<'_>> = Vec::new();
        let mut places: HashMap<IpAddr, usize> = HashMap::new();
        for node in self.eligible().filter(|node| select(node)) {
            let Some(address) = node.address(family) else {
                continue;
            };
            match places.entry(address) {
                hash_map::Entry::Vacant(place) => {
                    place.insert(groups.len());
                    groups.push(AddressGroup {
                        address,
                        newest: node,
                        others: Vec::new(),
                    });
                }
                hash_map::Entry::Occupied(place) => {
                    if let Some(group) = groups.get_mut(*place.get()) {
                        group.others.push(node);
                    }
                }
            }
        }
        for group in &mut groups {
            group.sort();
        }
        groups
    }

    /// Whether no node may be a member. Then load balancers keep their members: a member that may be dead is better than
    /// none.
    #[must_use]
    pub fn keeps_members(&self) -> bool {
        self.eligible().next().is_none()
    }

    /// Whether the cluster has no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An address and its nodes: one, unless outdated Node objects exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressGroup<'a> {
    /// The address.
    pub address: IpAddr,
    /// The newest node.
    pub newest: &'a ServiceNode,
    /// The other nodes with this address, the newest first.
    pub others: Vec<&'a ServiceNode>,
}

impl AddressGroup<'_> {
    /// All nodes, the newest first.
    pub fn nodes(&self) -> impl Iterator<Item = &ServiceNode> {
        std::iter::once(self.newest).chain(self.others.iter().copied())
    }

    fn sort(&mut self) {
        if self.others.is_empty() {
            return;
        }
        self.others.insert(0, self.newest);
        self.others.sort_by_key(|node| Reverse(node.view.created));
        self.newest = self.others.remove(0);
    }
}

impl ServiceEvent {
    /// The Warning about nodes that share an address; `None` if no nodes do.
    #[must_use]
    pub fn duplicate_addresses(service: &ServiceId, groups: &[AddressGroup<'_>]) -> Option<Self> {
        /// The number of addresses in the message.
        const SHOWN: usize = 5;
        let mut texts: Vec<_> = groups
            .iter()
            .filter(|group| !group.others.is_empty())
            .map(|group| {
                let names: Vec<_> = group.nodes().map(|node| node.view.name.as_str()).collect();
                format!("{} is the address of nodes {}", group.address, names.join(", "))
            })
            .collect();
        if texts.is_empty() {
            return None;
        }
        let more = texts.len().saturating_sub(SHOWN);
        texts.truncate(SHOWN);
        if more > 0 {
            texts.push(format!("{more} more addresses are shared"));
        }
        let message = format!(
            "{}; the load balancer has one member for each address; delete the Node objects that are out of date",
            texts.join("; ")
        );
        Some(Self::warning(service, "DuplicateNodeAddress", message))
    }
}

impl FromIterator<ServiceNode> for NodeSet {
    fn from_iter<I: IntoIterator<Item = ServiceNode>>(nodes: I) -> Self {
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_by(|a, b| a.view.name.cmp(&b.view.name));
        Self(nodes.into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn node(addresses: &[(AddressType, &str)]) -> ServiceNode {
        ServiceNode {
            addresses: addresses.iter().map(|(kind, address)| NodeAddress::new(*kind, *address)).collect(),
            ..ServiceNode::default()
        }
    }

    #[test]
    fn internal_addresses_come_before_external_ones_within_the_family() {
        let node = node(&[
            (AddressType::ExternalIP, "192.0.2.1"),
            (AddressType::Hostname, "10.0.0.9"),
            (AddressType::InternalIP, "fd00::1"),
            (AddressType::InternalIP, "10.0.0.1"),
            (AddressType::ExternalIP, "2001:db8::1"),
        ]);
        let text = |family| node.address(family).map(|address| address.to_string());
        assert_eq!(text(Some(IpFamily::V4)).as_deref(), Some("10.0.0.1"));
        assert_eq!(text(Some(IpFamily::V6)).as_deref(), Some("fd00::1"));
        assert_eq!(text(None).as_deref(), Some("fd00::1"));
    }

    #[test]
    fn nodes_with_one_address_are_one_group_with_the_newest_first() {
        let named = |name: &str, address: &str, created: Option<u64>| ServiceNode {
            view: Arc::new(NodeView {
                name: name.to_owned(),
                created: created.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
                ..NodeView::default()
            }),
            eligible: name != "excluded",
            ..node(&[(AddressType::InternalIP, address)])
        };
        let nodes: NodeSet = [
            named("a", "10.0.0.1", None),
            named("b", "10.0.0.2", Some(9)),
            named("c", "10.0.0.1", Some(2)),
            named("d", "10.0.0.1", Some(3)),
            named("e", "10.0.0.1", Some(3)),
            named("excluded", "10.0.0.2", Some(10)),
            named("unselected", "10.0.0.2", Some(10)),
            named("unaddressed", "", Some(10)),
        ]
        .into_iter()
        .collect();
        let groups = nodes.by_address(Some(IpFamily::V4), |node| node.view.name != "unselected");
        let found: Vec<_> = groups
            .iter()
            .map(|group| {
                let names: Vec<_> = group.nodes().map(|node| node.view.name.as_str()).collect();
                (group.address.to_string(), names.join(" "))
            })
            .collect();
        let expected = [("10.0.0.1", "d e c a"), ("10.0.0.2", "b")];
        assert_eq!(found, expected.map(|(address, names)| (address.to_owned(), names.to_owned())));
        let service = ServiceId::new("shop", "web", "u");
        let event = ServiceEvent::duplicate_addresses(&service, &groups).unwrap();
        assert!(
            event.warning && event.message.starts_with("10.0.0.1 is the address of nodes d, e, c, a;"),
            "{}",
            event.message
        );
        assert_eq!(ServiceEvent::duplicate_addresses(&service, &groups[1..]), None);
    }

    #[test]
    fn an_external_address_is_used_without_an_internal_one() {
        let external = node(&[(AddressType::ExternalIP, "192.0.2.1")]);
        assert_eq!(external.address(Some(IpFamily::V4)), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(external.address(Some(IpFamily::V6)), None);
        assert_eq!(node(&[(AddressType::InternalIP, "soon")]).address(None), None);
    }
}
