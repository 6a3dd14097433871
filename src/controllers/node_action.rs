//! The changes of nodes.
//!
//! | Action | Controller |
//! |---|---|
//! | initialize, addresses, labels | node |
//! | shutdown taint, delete | node lifecycle |
//! | condition NetworkUnavailable | route |

use std::{collections::BTreeMap, fmt, sync::Arc};

use ccm_core::{NodeAddress, controllers::NodeObject, load_balancer::Effect};

use super::{
    node_object::{SHUTDOWN_TAINT, UNINITIALIZED_TAINT},
    plan::{Kind, PlannedChange},
};

/// Labels by key.
pub(crate) type NewLabels = BTreeMap<String, String>;

/// Labels with a zone, a region or an instance type, by their beta and their stable name.
pub(crate) const ZONE: [&str; 2] = [
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/zone",
];
pub(crate) const REGION: [&str; 2] = [
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/region",
];
pub(crate) const INSTANCE_TYPE: [&str; 2] = [
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
];

/// One change of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeAction {
    /// Set addresses, labels and provider ID, then remove the uninitialized taint.
    Initialize(Initialization),
    /// Replace `status.addresses`.
    SetAddresses {
        addresses: Vec<NodeAddress>,
        from: Vec<NodeAddress>,
    },
    /// Add or overwrite these labels; `from` are their present values.
    SetLabels { labels: NewLabels, from: NewLabels },
    /// Add or remove the taint of a node whose instance is switched off.
    SetShutdownTaint(bool),
    /// Set the condition NetworkUnavailable. True: the node has all of its routes.
    SetNetworkAvailable(bool),
    /// Delete the node, whose instance does not exist, for this reason.
    Delete(String),
}

/// Everything that changes on a node when it is initialized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Initialization {
    /// The whole of `status.addresses`; `None` if the node has these already.
    pub(crate) addresses: Option<Vec<NodeAddress>>,
    /// Labels to add or overwrite.
    pub(crate) labels: NewLabels,
    /// `spec.providerID`, if the node has none.
    pub(crate) provider_id: Option<String>,
}

impl NodeAction {
    /// `SetLabels` for this node; `None` without labels.
    pub(crate) fn set_labels(node: &NodeObject, labels: NewLabels) -> Option<Self> {
        let from = labels
            .keys()
            .filter_map(|key| Some((key.clone(), node.view.labels.get(key)?.to_owned())))
            .collect();
        (!labels.is_empty()).then_some(Self::SetLabels { labels, from })
    }

    /// Applies the change to the in-memory copy, as far as other controllers read it.
    pub(crate) fn apply_to(&self, node: &mut Arc<NodeObject>) {
        let node = Arc::make_mut(node);
        let (addresses, labels) = match self {
            Self::Initialize(desired) => {
                node.taints = node.taints_without(UNINITIALIZED_TAINT);
                if let Some(id) = &desired.provider_id {
                    Arc::make_mut(&mut node.view).provider_id = Some(id.clone());
                }
                (desired.addresses.as_ref(), Some(&desired.labels))
            }
            Self::SetAddresses { addresses, .. } => (Some(addresses), None),
            Self::SetLabels { labels, .. } => (None, Some(labels)),
            Self::SetShutdownTaint(_) | Self::SetNetworkAvailable(_) | Self::Delete(_) => (None, None),
        };
        if let Some(addresses) = addresses {
            node.addresses.clone_from(addresses);
        }
        if let Some(labels) = labels {
            let view = Arc::make_mut(&mut node.view);
            let mut all: BTreeMap<&str, &str> = view.labels.iter().collect();
            all.extend(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())));
            view.labels = all.into_iter().collect();
        }
    }
}

impl From<&NodeAction> for PlannedChange {
    fn from(action: &NodeAction) -> Self {
        let (kind, why) = match action {
            NodeAction::Initialize(_) => (Kind::Initialize, String::new()),
            NodeAction::SetAddresses { from, .. } => (Kind::Addresses, format!("now {}", addresses(from))),
            NodeAction::SetLabels { from, .. } if from.is_empty() => (Kind::Labels, String::new()),
            NodeAction::SetLabels { from, .. } => (Kind::Labels, format!("now {}", label_text(from))),
            NodeAction::SetShutdownTaint(true) => (Kind::Taint, "its machine is switched off".to_owned()),
            NodeAction::SetShutdownTaint(false) => (Kind::Taint, "it is ready again".to_owned()),
            NodeAction::SetNetworkAvailable(true) => {
                (Kind::Network, "it has all of its routes then".to_owned())
            }
            NodeAction::SetNetworkAvailable(false) => (Kind::Network, "it lacks a route".to_owned()),
            NodeAction::Delete(why) => (Kind::DeleteNode, why.clone()),
        };
        let effect = match kind {
            Kind::DeleteNode => Effect::Delete,
            _ => Effect::Change,
        };
        Self {
            why,
            ..Self::new(effect, kind, action)
        }
    }
}

impl fmt::Display for NodeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Initialize(desired) => {
                if let Some(id) = &desired.provider_id {
                    write!(f, "provider ID {id}; ")?;
                }
                if let Some(new) = &desired.addresses {
                    write!(f, "{}; ", addresses(new))?;
                }
                if !desired.labels.is_empty() {
                    write!(f, "{}; ", label_text(&desired.labels))?;
                }
                f.write_str("no taint")
            }
            Self::SetAddresses { addresses: new, .. } => f.write_str(&addresses(new)),
            Self::SetLabels { labels: new, .. } => f.write_str(&label_text(new)),
            Self::SetShutdownTaint(true) => write!(f, "add taint {}", SHUTDOWN_TAINT.0),
            Self::SetShutdownTaint(false) => write!(f, "remove taint {}", SHUTDOWN_TAINT.0),
            Self::SetNetworkAvailable(available) => {
                let (status, reason, _) = network_condition(*available);
                write!(f, "set condition NetworkUnavailable to {status} ({reason})")
            }
            Self::Delete(_) => f.write_str("delete"),
        }
    }
}

/// Status, reason and message of the condition NetworkUnavailable, in upstream's words.
pub(crate) fn network_condition(available: bool) -> (&'static str, &'static str, &'static str) {
    if available {
        ("False", "RouteCreated", "RouteController created a route")
    } else {
        ("True", "NoRouteCreated", "RouteController failed to create a route")
    }
}

fn addresses(all: &[NodeAddress]) -> String {
    if all.is_empty() {
        return "no addresses".to_owned();
    }
    let texts: Vec<_> = all
        .iter()
        .map(|address| format!("{} {}", address.kind.as_str(), address.address))
        .collect();
    texts.join(", ")
}

/// The labels as text.
pub(crate) fn label_text(all: &NewLabels) -> String {
    let mut shown = Vec::new();
    for (key, value) in all {
        // A beta label is left out if the stable label has the same value.
        let is_repeated = [ZONE, REGION, INSTANCE_TYPE]
            .iter()
            .any(|[beta, stable]| beta == key && all.get(*stable) == Some(value));
        if !is_repeated {
            shown.push(format!("{key}={value}"));
        }
    }
    shown.join(", ")
}
