//! How the parts are, as values. An id or address that is not known yet is an empty text.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::load_balancer::{OwnershipTag, Protocol, ServicePort, ServiceView};
use ccm_core::plan::objects::Objects;

use super::{
    groups::Group,
    member::Member,
    responses::{FloatingIp, Listener, LoadBalancer, Monitor, Pool, Provisioning},
    tags::{Annotated, ServiceTags},
};
use crate::instances::records::Port;

/// How a part is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Observed {
    /// Load balancers: one, none, or all that have the name.
    Balancers(LoadBalancerSnapshot),
    /// The security groups with a name.
    Groups(Objects<Group>),
    /// The ports of nodes, by id.
    Ports(BTreeMap<String, Port>),
}

/// The load balancers of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadBalancerSnapshot {
    pub(crate) trees: Vec<LoadBalancerTree>,
    /// Floating addresses of which members speak, wherever they are.
    pub(crate) floating: Vec<FloatingIp>,
    /// Whether floating addresses can be had without naming their network.
    pub(crate) external: bool,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// By which marks it is judged whose they are.
    pub(crate) ownership_tag: OwnershipTag,
    /// Tags that came from the members' annotations.
    pub(crate) annotated: Annotated,
}

/// A load balancer with everything that belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadBalancerTree {
    pub(crate) balancer: LoadBalancer,
    pub(crate) listener_trees: Vec<ListenerTree>,
    /// Pools without a listener.
    pub(crate) orphaned_pools: Vec<Pool>,
    /// The floating address of its virtual one.
    pub(crate) floating: Option<FloatingIp>,
    /// This process sent its creation and has not seen it `ACTIVE` since.
    pub(crate) is_being_created: bool,
}

/// The tags of load balancers, of those of their listeners whose tags are `meant`, and of the pools of these.
pub(crate) fn tags_of(trees: &[LoadBalancerTree], meant: impl Fn(&[String]) -> bool) -> ServiceTags {
    let mut tags = ServiceTags::default();
    for tree in trees {
        tags.load_balancer.extend(tree.balancer.tags.iter().cloned());
        let listener_trees = tree.listener_trees.iter();
        for listener_tree in listener_trees.filter(|listener_tree| meant(&listener_tree.listener.tags)) {
            tags.listener.extend(listener_tree.listener.tags.iter().cloned());
            let pool_tree = listener_tree.pool_tree.iter();
            tags.pool
                .extend(pool_tree.flat_map(|pool_tree| &pool_tree.pool.tags).cloned());
        }
    }
    tags
}

/// A listener with its pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListenerTree {
    pub(crate) listener: Listener,
    pub(crate) pool_tree: Option<PoolTree>,
}

/// A pool with its members and its health monitor.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PoolTree {
    pub(crate) pool: Pool,
    pub(crate) members: Arc<[Member]>,
    pub(crate) monitor: Option<Monitor>,
}

/// The identity of a listener: no two listeners of a load balancer have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ListenerKey {
    /// The transport protocol below the listener's protocol.
    pub(crate) transport: Protocol,
    pub(crate) port: u16,
}

impl std::fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.transport.as_str().to_lowercase(), self.port)
    }
}

impl ListenerKey {
    /// The ports of a Service, each of which needs a listener.
    pub(crate) fn all_of(service: &ServiceView) -> impl Iterator<Item = Self> {
        service.ports.iter().map(Self::from)
    }

    /// The identity of a listener.
    pub(crate) fn of(listener: &Listener) -> Self {
        Self {
            transport: match listener.protocol.as_str() {
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
            port: listener.protocol_port,
        }
    }
}

impl From<&ServicePort> for ListenerKey {
    fn from(port: &ServicePort) -> Self {
        Self {
            transport: port.protocol,
            port: port.port,
        }
    }
}

impl ListenerTree {
    /// What tells it from the others.
    pub(crate) fn listener_key(&self) -> ListenerKey {
        ListenerKey::of(&self.listener)
    }
}

impl LoadBalancerTree {
    /// The listener there.
    pub(crate) fn listener_tree(&self, listener_key: ListenerKey) -> Option<&ListenerTree> {
        self.listener_trees
            .iter()
            .find(|listener_tree| listener_tree.listener_key() == listener_key)
    }

    /// The listener there.
    pub(crate) fn listener_tree_mut(&mut self, listener_key: ListenerKey) -> Option<&mut ListenerTree> {
        self.listener_trees
            .iter_mut()
            .find(|listener_tree| listener_tree.listener_key() == listener_key)
    }

    /// Whether its virtual address is an IPv6 one.
    pub(crate) fn is_v6(&self) -> bool {
        self.balancer.vip_address.contains(':')
    }

    /// Whether a Service that names these ids and addresses may be reached through it. What has a floating address may be
    /// known to anybody.
    pub(crate) fn is_named_by(&self, named: &[String]) -> bool {
        let balancer = &self.balancer;
        let own = |text: &String| {
            *text == balancer.id || (!balancer.vip_address.is_empty() && *text == balancer.vip_address)
        };
        self.floating.is_some() || named.iter().any(own)
    }

    /// Whether nothing below it was ever finished.
    pub(crate) fn never_began(&self) -> bool {
        let unfinished = |status: &Provisioning| *status == Provisioning::PendingCreate;
        let mut states = self.listener_trees.iter().flat_map(|listener_tree| {
            let pool = listener_tree
                .pool_tree
                .as_ref()
                .map(|pool_tree| &pool_tree.pool.provisioning_status);
            std::iter::once(&listener_tree.listener.provisioning_status).chain(pool)
        });
        !self.listener_trees.is_empty() && states.all(unfinished)
    }
}
