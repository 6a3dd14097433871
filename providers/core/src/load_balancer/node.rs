//! The nodes as load balancers see them.

use std::{net::IpAddr, sync::Arc};

use super::service::IpFamily;
use crate::{AddressType, NodeAddress, NodeView};

/// A node as load balancers see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceNode {
    /// Name, uid, provider ID, labels.
    pub view: Arc<NodeView>,
    /// `status.addresses`, in order.
    pub addresses: Arc<[NodeAddress]>,
    /// Whether it may be a member of load balancers: not being deleted, not excluded by its label, not about to be
    /// deleted by the autoscaler. Ready or not, initialised or not: it stays a member.
    pub eligible: bool,
    /// Whether its condition `Ready` is true. Its machine most likely exists then; nothing else follows from it.
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
}

/// All nodes of the cluster, sorted by name. A clone is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(Arc<[ServiceNode]>);

impl NodeSet {
    /// All of them, whether they may be members or not.
    #[must_use]
    pub fn all(&self) -> &[ServiceNode] {
        &self.0
    }

    /// Those that may be members.
    pub fn eligible(&self) -> impl Iterator<Item = &ServiceNode> {
        self.0.iter().filter(|node| node.eligible)
    }

    /// Whether there is no node that may be a member. Then load balancers keep the members that they have: better a
    /// member that may be dead than none.
    #[must_use]
    pub fn keeps_members(&self) -> bool {
        self.eligible().next().is_none()
    }

    /// Whether there is no node at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
    use super::*;

    fn node(addresses: &[(AddressType, &str)]) -> ServiceNode {
        ServiceNode {
            addresses: addresses
                .iter()
                .map(|(kind, address)| NodeAddress::new(*kind, *address))
                .collect(),
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
    fn an_external_address_will_do_and_none_is_none() {
        let external = node(&[(AddressType::ExternalIP, "192.0.2.1")]);
        assert_eq!(
            external.address(Some(IpFamily::V4)),
            Some("192.0.2.1".parse().unwrap())
        );
        assert_eq!(external.address(Some(IpFamily::V6)), None);
        assert_eq!(node(&[(AddressType::InternalIP, "soon")]).address(None), None);
    }
}
