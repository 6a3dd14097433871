//! The desired form of a node, given the cloud's answer. Pure.

use std::fmt;

use ccm_core::{
    AddressType, Cloud, Error, Instance, InstanceState, Labels, NodeAddress, NodeView,
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
pub(crate) struct Problem {
    /// A short name that stays the same while the problem does: the `reason` of the event, and a metric label.
    pub(crate) reason: &'static str,
    /// What a person reads on the node, with what to do about it.
    pub(crate) message: String,
}

/// The machine has no address yet.
pub(crate) const NO_ADDRESSES: &str = "NoAddresses";

impl Problem {
    /// The node is tried again.
    pub(crate) fn retried(reason: &'static str, why: impl fmt::Display) -> Self {
        Self {
            reason,
            message: format!("Node not initialized, will retry: {why}"),
        }
    }

    /// The cloud could not be asked.
    pub(crate) fn not_described(error: &Error) -> Self {
        Self::retried(error.kind().as_str(), error.report())
    }

    /// The cloud has no machine for the node.
    fn no_machine(node: &NodeView) -> Self {
        let why = match &node.provider_id {
            Some(id) => format!(
                "the cloud has no instance {id}; if it is right, check that the credentials belong to the project and \
                 region of this node"
            ),
            None => format!(
                "the cloud shows no instance named {:?}; the node name must equal the instance's name, in the project \
                 and region of the credentials",
                node.name
            ),
        };
        Self::retried("InstanceNotFound", why)
    }
}

/// Whether the cloud is asked about a node: to initialize it, or to refresh it.
///
/// # Errors
///
/// If the node waits for its initialization and belongs to another cloud.
pub(crate) fn is_asked_about(node: &NodeObject, cloud: &dyn Cloud) -> Result<bool, Problem> {
    let foreign = node.view.provider_id.as_deref().filter(|id| !cloud.owns(id));
    match foreign {
        _ if node.meta.deletion_timestamp.is_some() => Ok(false),
        None => Ok(true),
        Some(id) if node.has_taint(UNINITIALIZED_TAINT) => Err(Problem {
            reason: "ForeignProviderID",
            message: format!("Node left alone: its provider ID {id} belongs to another cloud"),
        }),
        Some(_) => Ok(false),
    }
}

/// Decides how to initialize a node, given the cloud's answer. `None`: the cloud's rules leave it alone.
///
/// # Errors
///
/// If the node must wait.
pub(crate) fn initialize(
    node: &NodeObject,
    state: &InstanceState,
) -> Result<Option<Initialization>, Problem> {
    match state {
        InstanceState::Present(instance) => initialization(node, instance).map(Some),
        InstanceState::Absent | InstanceState::Unresolved => Err(Problem::no_machine(&node.view)),
        InstanceState::Unmanaged => Ok(None),
    }
}

/// Decides how to initialise a node whose machine is present.
///
/// # Errors
///
/// If it must wait: no addresses yet, no provider ID, or a `--node-ip` that does not fit.
pub(crate) fn initialization(node: &NodeObject, instance: &Instance) -> Result<Initialization, Problem> {
    let name = &node.view.name;
    let provider_id = match &node.view.provider_id {
        Some(_) => None,
        None if instance.provider_id.is_empty() => {
            return Err(Problem {
                reason: "NoProviderID",
                message: format!(
                    "Node not initialized: cloud provider does not set node provider ID for node {name}"
                ),
            });
        }
        None => Some(instance.provider_id.clone()),
    };
    if instance.addresses.is_empty() {
        return Err(Problem::retried(
            NO_ADDRESSES,
            "its instance has no addresses yet",
        ));
    }
    let addresses = only_provided(node, machine_addresses(node, instance)).map_err(|error| {
        let why = format!(
            "provided node ip for node {name:?} is not valid: {error}; correct the kubelet's --node-ip or the \
             instance's addresses"
        );
        Problem::retried("InvalidNodeIP", why)
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
    Ok(Initialization {
        addresses: (addresses != node.addresses).then_some(addresses),
        labels,
        provider_id,
    })
}

/// The machine's addresses in the cloud's order, and the node's own host names if the cloud has none.
fn machine_addresses(node: &NodeObject, instance: &Instance) -> Vec<NodeAddress> {
    let mut addresses = instance.addresses.clone();
    if !addresses
        .iter()
        .any(|address| address.kind == AddressType::Hostname)
    {
        addresses.extend(
            node.addresses
                .iter()
                .filter(|address| address.kind == AddressType::Hostname)
                .cloned(),
        );
    }
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

/// Arranges addresses as an initialized node shows them: those that remain keep the node's order, and a new one follows
/// the others of its type. The first address of a type is what members, routes and the kubelet use, so that it must not
/// change for an order that no rule sets.
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
    // Stale addresses go last: until then they mark the place of those that replace them.
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

/// What a refresh found different on an initialised node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The whole of `status.addresses`, if it differs.
    pub(crate) addresses: Option<Vec<NodeAddress>>,
    /// Labels to add or overwrite.
    pub(crate) labels: NewLabels,
    /// Zone and region labels that differ and are left as they are: volumes have affinity to them.
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

/// Compares an initialised node with its machine.
///
/// `previous` are the additional labels that the cloud gave at the refresh before: such a label is ours to change
/// as long as the node shows the value we know of.
///
/// # Errors
///
/// If the machine does not have the provided IP; nothing is changed then.
pub(crate) fn difference(
    node: &NodeObject,
    instance: &Instance,
    previous: Option<&NewLabels>,
    refresh_topology: bool,
) -> Result<Difference, ProvidedIpError> {
    let shown = &node.view.labels;
    let mut found = Difference::default();
    if !instance.addresses.is_empty() {
        let mut wanted = machine_addresses(node, instance);
        if !instance.enforces_address_order {
            wanted = in_node_order(&wanted, &node.addresses);
        }
        let wanted = only_provided(node, wanted)?;
        if wanted != node.addresses {
            found.addresses = Some(wanted);
        }
    }
    found.labels = type_labels(instance);
    found
        .labels
        .extend(additional_labels(instance).filter_map(|(key, value)| {
            let ours = match shown.get(key) {
                None => true,
                Some(now) => previous
                    .and_then(|labels| labels.get(key))
                    .is_some_and(|known| known == now),
            };
            ours.then(|| owned((key, value)))
        }));
    found
        .labels
        .retain(|key, value| shown.get(key) != Some(value.as_str()));
    let mut topology = topology_labels(instance);
    topology.retain(|key, value| shown.get(key) != Some(value.as_str()));
    if refresh_topology {
        found.labels.append(&mut topology);
    } else {
        found.topology = topology;
    }
    Ok(found)
}

/// The additional labels of a machine that a node may take.
pub(crate) fn additional_labels(instance: &Instance) -> impl Iterator<Item = (&String, &String)> {
    instance.labels.iter().filter(|(key, _)| !is_reserved(key))
}

fn owned((key, value): (&String, &String)) -> (String, String) {
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
    keys.map(str::to_owned)
        .into_iter()
        .filter_map(move |key| Some((key, value?.to_owned())))
}

/// Whether Kubernetes reserves the key: `kubernetes.io/..` or `k8s.io/..`, or below them.
fn is_reserved(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    ["kubernetes.io", "k8s.io"].into_iter().any(|domain| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
