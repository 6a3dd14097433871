//! The desired form of a node, given the cloud's answer. Pure.

use std::{collections::HashSet, fmt};

use ccm_core::{
    AddressType, Cloud, Instance, InstanceState, Labels, NodeAddress, NodeView,
    controllers::{
        NodeObject,
        provided_ip::{self, ProvidedIpError},
    },
};

use crate::controllers::{
    node_action::{INSTANCE_TYPE, Initialization, NewLabels, NodeAction, REGION, ZONE},
    node_object::UNINITIALIZED_TAINT,
};

/// Why a node cannot be initialized now.
#[derive(Clone, Debug)]
pub(crate) struct NodeProblem {
    /// A short name that stays the same while the problem does: the `reason` of the event, and a metric label.
    pub(crate) reason: &'static str,
    /// The text of the event, with the fix.
    pub(crate) message: String,
}

/// The cloud has no instance for the node.
const INSTANCE_NOT_FOUND: &str = "InstanceNotFound";

/// The instance has no address yet.
pub(crate) const NO_ADDRESSES: &str = "NoAddresses";

/// A setting leaves out every address of the instance.
pub(crate) const ADDRESSES_LEFT_OUT: &str = "AddressesLeftOut";

impl NodeProblem {
    /// The node is tried again.
    pub(crate) fn retried(reason: &'static str, why: impl fmt::Display) -> Self {
        Self {
            reason,
            message: format!("Node not initialized, will retry: {why}"),
        }
    }

    /// The cloud has no instance for the node.
    fn no_instance(node: &NodeView) -> Self {
        let why = match &node.provider_id {
            Some(id) => format!(
                "the cloud has no instance {id}; check that this provider ID is correct, and that the credentials belong \
                 to the project and region of this node"
            ),
            None => format!(
                "the cloud shows no instance named {:?}; the node name must equal the instance's name, in the project \
                 and region of the credentials",
                node.name
            ),
        };
        Self::retried(INSTANCE_NOT_FOUND, why)
    }

    /// Whether no instance has the name of the node, which has no provider ID.
    pub(crate) fn is_unknown_name(&self, node: &NodeView) -> bool {
        self.reason == INSTANCE_NOT_FOUND && node.provider_id.is_none()
    }
}

/// At most so many similar names are in a Warning.
const SIMILAR_NAMES: usize = 3;

/// The names of instances that the node may live under: similar to its own, and of no other node.
pub(crate) fn similar_names(
    node: &NodeView,
    cloud: &dyn Cloud,
    is_node: impl Fn(&str) -> bool,
) -> Vec<String> {
    let Some(instances) = cloud.instances() else {
        return Vec::new();
    };
    let mut names = instances.similar_names(&node.name);
    names.retain(|name| !is_node(name));
    names.truncate(SIMILAR_NAMES);
    names
}

/// The addition to a Warning.
pub(crate) fn similar_names_text(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    format!("; instances with similar names: {}", names.join(", "))
}

/// Whether the cloud is asked about a node: to initialize it, or to refresh it.
///
/// # Errors
///
/// If the node waits for its initialization and belongs to another cloud.
pub(crate) fn is_asked_about(node: &NodeObject, cloud: &dyn Cloud) -> Result<bool, NodeProblem> {
    let foreign = node.view.provider_id.as_deref().filter(|id| !cloud.owns(id));
    match foreign {
        _ if node.meta.deletion_timestamp.is_some() => Ok(false),
        None => Ok(true),
        Some(id) if node.has_taint(UNINITIALIZED_TAINT) => Err(NodeProblem {
            reason: "ForeignProviderID",
            message: format!("Node left unchanged: its provider ID {id} belongs to another cloud"),
        }),
        Some(_) => Ok(false),
    }
}

/// Decides how to initialize a node, given the cloud's answer. `None`: the cloud's rules leave it unchanged.
///
/// # Errors
///
/// If the node must wait.
pub(crate) fn initialize(
    node: &NodeObject,
    state: &InstanceState,
) -> Result<Option<Initialization>, NodeProblem> {
    match state {
        InstanceState::Present(instance) => initialization(node, instance).map(Some),
        InstanceState::Absent | InstanceState::Unresolved => Err(NodeProblem::no_instance(&node.view)),
        InstanceState::Unmanaged => Ok(None),
    }
}

/// Decides how to initialize a node whose instance is present. As upstream, a node gets no addresses if a setting leaves all of
/// them out.
///
/// # Errors
///
/// If it must wait: it has no addresses yet, no provider ID, or a `--node-ip` that does not match.
pub(crate) fn initialization(node: &NodeObject, instance: &Instance) -> Result<Initialization, NodeProblem> {
    let name = &node.view.name;
    let provider_id = match &node.view.provider_id {
        Some(_) => None,
        None if instance.provider_id.is_empty() => {
            return Err(NodeProblem {
                reason: "NoProviderID",
                message: format!(
                    "Node not initialized: cloud provider does not set node provider ID for node {name}"
                ),
            });
        }
        None => Some(instance.provider_id.clone()),
    };
    if instance.addresses.is_empty() && instance.address_filter.is_none() {
        return Err(NodeProblem::retried(NO_ADDRESSES, "its instance has no addresses yet"));
    }
    let addresses = only_provided(node, instance_addresses(node, instance)).map_err(|error| {
        let why = format!(
            "provided node ip for node {name:?} is not valid: {error}; correct the kubelet's --node-ip or the \
             instance's addresses"
        );
        NodeProblem::retried("InvalidNodeIP", why)
    })?;
    let mut labels = type_labels(instance);
    labels.extend(topology_labels(instance));
    labels.retain(|key, value| node.view.labels.get(key) != Some(value.as_str()));
    // Labels that the node has already may be the user's.
    labels.extend(
        additional_labels(instance)
            .filter(|(key, _)| !node.view.labels.contains_key(key))
            .map(owned),
    );
    let differs = !instance.addresses.is_empty() && addresses != node.addresses;
    Ok(Initialization {
        addresses: differs.then_some(addresses),
        labels,
        provider_id,
    })
}

/// The instance's addresses in the cloud's order, and the node's own host names if the cloud has none. The API server refuses
/// duplicates.
fn instance_addresses(node: &NodeObject, instance: &Instance) -> Vec<NodeAddress> {
    let is_hostname = |address: &&NodeAddress| address.kind == AddressType::Hostname;
    let mut addresses = instance.addresses.clone();
    if !addresses.iter().any(|address| is_hostname(&address)) {
        addresses.extend(node.addresses.iter().filter(is_hostname).cloned());
    }
    let mut seen = HashSet::new();
    addresses.retain(|address| seen.insert(address.clone()));
    addresses
}

/// Reduces addresses to the kubelet's `--node-ip`, if the node has one. The annotation also sets their order.
fn only_provided(
    node: &NodeObject,
    addresses: Vec<NodeAddress>,
) -> Result<Vec<NodeAddress>, ProvidedIpError> {
    match &node.provided_node_ip {
        Some(annotation) => provided_ip::select(annotation, &addresses),
        None => Ok(addresses),
    }
}

/// Arranges addresses as an initialized node shows them. Those that remain keep the node's order, and a new one follows
/// the others of its type. Members, routes and the kubelet use the first address of a type, so that it must not change for
/// an order that no rule sets.
fn in_node_order(addresses: &[NodeAddress], shown: &[NodeAddress]) -> Vec<NodeAddress> {
    let mut arranged = shown.to_vec();
    let mut previous = None;
    for address in addresses {
        if !arranged.contains(address) {
            let after = |kind| arranged.iter().rposition(|other| other.kind == kind);
            let last = after(address.kind).or_else(|| previous.and_then(after));
            arranged.insert(last.map_or(0, |last| last + 1), address.clone());
        }
        previous = Some(address.kind);
    }
    // Stale addresses are removed last, since addresses that replace them take their place.
    arranged.retain(|address| addresses.contains(address));
    arranged
}

/// Labels that follow from other labels: upstream keeps each stable label equal to its beta twin, where that exists.
pub(crate) fn reconciled_labels(labels: &Labels) -> NewLabels {
    [ZONE, REGION, INSTANCE_TYPE]
        .into_iter()
        .filter_map(|[beta, stable]| {
            let value = labels.get(beta)?;
            (labels.get(stable) != Some(value)).then(|| (stable.to_owned(), value.to_owned()))
        })
        .collect()
}

/// The differences of an initialized node from its instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The whole of `status.addresses`, if it differs.
    pub(crate) addresses: Option<Vec<NodeAddress>>,
    /// Labels to add or overwrite.
    pub(crate) labels: NewLabels,
    /// Zone and region labels that differ and are left unchanged, since volumes have affinity to them.
    pub(crate) topology: NewLabels,
}

impl Difference {
    /// The actions that remove the difference.
    pub(crate) fn actions(self, node: &NodeObject) -> Vec<NodeAction> {
        let addresses = self.addresses.map(|addresses| NodeAction::SetAddresses {
            addresses,
            from: node.addresses.clone(),
        });
        let labels = NodeAction::set_labels(node, self.labels);
        addresses.into_iter().chain(labels).collect()
    }
}

/// Compares an initialized node with its instance.
///
/// `previous` are the additional labels from the cloud at the refresh before. Such a label may be changed while the node
/// shows that value. Without them, as after a start, a label with another value may be the user's and is left unchanged.
///
/// # Errors
///
/// If the instance does not have the provided IP. Then nothing is changed.
pub(crate) fn difference(
    node: &NodeObject,
    instance: &Instance,
    previous: Option<&NewLabels>,
    refresh_topology: bool,
) -> Result<Difference, ProvidedIpError> {
    let shown = &node.view.labels;
    let mut difference = Difference::default();
    let keeps_addresses = instance.keeps_addresses && !node.addresses.is_empty();
    if !keeps_addresses && !instance.addresses.is_empty() {
        let mut desired = instance_addresses(node, instance);
        if !instance.enforces_address_order {
            desired = in_node_order(&desired, &node.addresses);
        }
        let desired = only_provided(node, desired)?;
        difference.addresses = (desired != node.addresses).then_some(desired);
    }
    difference.labels = type_labels(instance);
    for (key, value) in additional_labels(instance) {
        let is_ours = match (shown.get(key), previous) {
            (None, _) => true,
            (Some(now), Some(previous)) => previous.get(key).is_some_and(|known| known == now),
            (Some(_), None) => false,
        };
        if is_ours {
            difference.labels.insert(key.clone(), value.clone());
        }
    }
    difference.topology = topology_labels(instance);
    if refresh_topology {
        difference.labels.append(&mut difference.topology);
    }
    for labels in [&mut difference.labels, &mut difference.topology] {
        labels.retain(|key, value| shown.get(key) != Some(value.as_str()));
    }
    Ok(difference)
}

/// The additional labels of an instance that a node may get.
pub(crate) fn additional_labels(instance: &Instance) -> impl Iterator<Item = (&String, &String)> {
    instance.labels.iter().filter(|(key, _)| !is_reserved(key))
}

pub(super) fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

fn type_labels(instance: &Instance) -> NewLabels {
    pair(INSTANCE_TYPE, instance.instance_type.as_deref()).collect()
}

fn topology_labels(instance: &Instance) -> NewLabels {
    pair(ZONE, instance.zone.as_deref())
        .chain(pair(REGION, instance.region.as_deref()))
        .collect()
}

fn pair(keys: [&str; 2], value: Option<&str>) -> impl Iterator<Item = (String, String)> {
    let value = value.filter(|value| !value.is_empty());
    keys.map(str::to_owned).into_iter().filter_map(move |key| Some((key, value?.to_owned())))
}

/// Whether Kubernetes reserves the key: `kubernetes.io/..` or `k8s.io/..`, or below them.
fn is_reserved(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    ["kubernetes.io", "k8s.io"]
        .into_iter()
        .any(|domain| prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

#[cfg(test)]
mod tests;
