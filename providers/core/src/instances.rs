//! The instances behind the nodes.

pub mod finder;

use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use async_trait::async_trait;

use crate::{Freshness, Labels, Priority, Result};

/// Answers what the cloud knows of the instances behind nodes.
#[async_trait]
pub trait Instances: Send + Sync {
    /// Describes the instance of every query, in the order of the queries; the answer has exactly as many items.
    ///
    /// An item that could not be found out is its own `Err` and leaves the others alone. What is not there is a
    /// *value*: see [`InstanceState`] for which one.
    ///
    /// Implementations fold all queries of a call into the fewest requests that the cloud allows. An answer that
    /// `freshness` allows may come from a cache, but only to say [`InstanceState::Present`]: before anything else
    /// is answered, the cloud is asked for that one item. Any number of calls may run at once; nothing is written.
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>>;

    /// The names of instances that differ little from a node's `name`, the most similar first, as the last listings had them.
    /// Reads nothing: it serves the Warning about a node whose name no instance has.
    fn similar_names(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }
}

/// Asks whether the instances of nodes exist: each node with the answer.
pub async fn existence(
    instances: &dyn Instances,
    nodes: impl IntoIterator<Item = Arc<NodeView>>,
    freshness: Freshness,
    priority: Priority,
) -> Vec<(Arc<NodeView>, Result<InstanceState>)> {
    let need = Need::Existence;
    let queries: Vec<_> = nodes.into_iter().map(|node| InstanceQuery { node, need }).collect();
    let answers = instances.describe(&queries, freshness, priority).await;
    queries.into_iter().map(|query| query.node).zip(answers).collect()
}

/// One question of [`Instances::describe`].
#[derive(Clone, Debug)]
pub struct InstanceQuery {
    /// The node whose instance is meant.
    pub node: Arc<NodeView>,
    /// How much of it is asked for.
    pub need: Need,
}

/// How much a query asks for. Less is cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Whether the instance exists and whether it is switched off. Only `provider_id` and `power` of the
    /// [`Instance`] are meaningful.
    Existence,
    /// Everything in [`Instance`].
    Metadata,
}

/// The part of a Kubernetes Node that finds its instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`; a node that is created again under the same name has another one.
    pub uid: String,
    /// `spec.providerID`, if it is set. When it is, it alone decides which instance is meant.
    pub provider_id: Option<String>,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `metadata.creationTimestamp`.
    pub created: Option<SystemTime>,
}

/// What the cloud answered about one instance.
///
/// "Could not find out" is none of these but an `Err`. Only [`Absent`](Self::Absent) leads to the deletion of a node, and, for a
/// node that waits for its initialization and whose kubelet is silent, [`Unresolved`](Self::Unresolved) for 10 minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// It exists.
    Present(Instance),
    /// The cloud said "not found" for the instance's *id*.
    Absent,
    /// Nothing matches the node's *name*. Not proof of absence: a cloud may leave instances out of lists.
    Unresolved,
    /// Not an instance of this cloud, or excluded by the user: it is left unchanged.
    Unmanaged,
}

/// An instance that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// The value for `spec.providerID`.
    pub provider_id: String,
    /// The value for `node.kubernetes.io/instance-type`.
    pub instance_type: Option<String>,
    /// The node's addresses in the order that the upstream cloud controller writes. Empty while the instance has none
    /// yet.
    pub addresses: Vec<NodeAddress>,
    /// The setting that leaves out every address of the instance, with its values. Only set if `addresses` is empty for this
    /// reason. Upstream initializes the node without addresses.
    pub address_filter: Option<String>,
    /// Whether a node that has addresses keeps exactly them: the configuration contains an empty name, which upstream reads in
    /// another way.
    pub keeps_addresses: bool,
    /// Whether the user's configuration sets the order of `addresses`. If not, the order counts only when the node is
    /// initialized; later the same addresses in another order are not a difference.
    pub enforces_address_order: bool,
    /// The value for `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// The value for `topology.kubernetes.io/region`.
    pub region: Option<String>,
    /// Further labels for the node. Keys below `kubernetes.io` and `k8s.io` are not taken. A label of the node with another
    /// value is left unchanged, unless this process observed in the cloud, at the refresh before, the value that the node
    /// has: after a restart, it may be the user's.
    pub labels: BTreeMap<String, String>,
    /// Whether it runs.
    pub power: Power,
}

/// Whether an instance runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Power {
    /// Running, or in any state that is not a deliberate shutdown.
    #[default]
    On,
    /// Shut down in the cloud.
    Off,
}

/// One entry of a node's `status.addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    /// What kind of address it is.
    pub kind: AddressType,
    /// The address or name, as the cloud spells it.
    pub address: String,
}

impl NodeAddress {
    /// An address of `kind`.
    #[must_use]
    pub fn new(kind: AddressType, address: impl Into<String>) -> Self {
        Self {
            kind,
            address: address.into(),
        }
    }
}

/// The kind of a node address, spelled as Kubernetes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressType {
    /// A name of the instance.
    Hostname,
    /// An address reachable inside the cluster's network.
    InternalIP,
    /// An address reachable from outside.
    ExternalIP,
    /// A DNS name that resolves inside.
    InternalDNS,
    /// A DNS name that resolves outside.
    ExternalDNS,
}

impl AddressType {
    /// The spelling of the Kubernetes API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hostname => "Hostname",
            Self::InternalIP => "InternalIP",
            Self::ExternalIP => "ExternalIP",
            Self::InternalDNS => "InternalDNS",
            Self::ExternalDNS => "ExternalDNS",
        }
    }

    /// Reads the spelling of the Kubernetes API.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [
            Self::Hostname,
            Self::InternalIP,
            Self::ExternalIP,
            Self::InternalDNS,
            Self::ExternalDNS,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for AddressType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
