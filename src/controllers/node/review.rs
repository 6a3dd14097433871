//! What this controller would do to nodes, by the same decisions.

use std::sync::Arc;

use ccm_core::{
    Cloud, InstanceQuery, InstanceState, Need, NodeAddress, controllers::NodeObject,
    load_balancer::ReadOptions,
};

use super::{
    desired::{self, NewLabels, Problem},
    refresh::{PIECE, is_refreshed},
};
use crate::{
    controllers::node_object::UNINITIALIZED_TAINT,
    options::NodeConfig,
    review::{Blocked, EffectOf, Kind, Review, Subject},
};

/// What the node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Initialization,
    Refresh,
}

/// Adds what would be done to nodes, and makes them in the mind what they would be: other controllers come after.
pub(crate) async fn review(
    nodes: &mut [Arc<NodeObject>],
    cloud: &dyn Cloud,
    config: &NodeConfig,
    ask: ReadOptions,
    review: &mut Review,
) {
    let Some(instances) = cloud.instances() else {
        return;
    };
    let mut asked = Vec::new();
    for node in nodes {
        match due(node, cloud) {
            Ok(Some(due)) => asked.push((node, due)),
            Ok(None) => {}
            Err(problem) => block(node, &problem, review),
        }
    }
    let mut failed = Vec::new();
    for piece in asked.chunks_mut(PIECE) {
        let queries: Vec<_> = piece
            .iter()
            .map(|(node, _)| InstanceQuery {
                node: Arc::clone(&node.view),
                need: Need::Metadata,
            })
            .collect();
        let answers = instances.describe(&queries, ask.freshness, ask.priority).await;
        for ((node, due), answer) in piece.iter_mut().zip(answers) {
            match answer {
                Ok(state) => {
                    if let Some(changed) = judge(node, *due, &state, config, review) {
                        **node = Arc::new(changed);
                    }
                }
                Err(error) => failed.push((node.view.name.clone(), error)),
            }
        }
    }
    // One sentence for all: they fail together, mostly.
    if let Some((first, error)) = failed.first() {
        let about = match failed.len() {
            1 => format!("node {first}"),
            more => format!("{more} nodes, {first} among them"),
        };
        review.problem(about, error.report());
    }
}

/// Whether nodes wait for their initialisation.
pub(crate) fn has_new(nodes: &[Arc<NodeObject>]) -> bool {
    nodes.iter().any(|node| node.has_taint(UNINITIALIZED_TAINT))
}

/// Whether the cloud is to be asked about the node.
fn due(node: &NodeObject, cloud: &dyn Cloud) -> Result<Option<Due>, Problem> {
    if !node.has_taint(UNINITIALIZED_TAINT) {
        return Ok(is_refreshed(node, cloud).then_some(Due::Refresh));
    }
    if node.meta.deletion_timestamp.is_some() {
        return Ok(None);
    }
    match node.view.provider_id.as_deref() {
        Some(id) if !cloud.owns(id) => Err(Problem::Foreign {
            provider_id: id.to_owned(),
        }),
        _ => Ok(Some(Due::Initialization)),
    }
}

/// Adds what would be done to one node, and returns how it would be then.
fn judge(
    node: &NodeObject,
    due: Due,
    state: &InstanceState,
    config: &NodeConfig,
    review: &mut Review,
) -> Option<NodeObject> {
    let subject = review.node(&node.view.name);
    match (state, due) {
        (InstanceState::Present(instance), Due::Initialization) => {
            match desired::initialization(node, instance) {
                Ok(wanted) => {
                    initialization(node, &wanted, subject);
                    return Some(changed(
                        node,
                        Some(wanted.addresses),
                        wanted.labels,
                        wanted.provider_id,
                    ));
                }
                Err(problem) => block(node, &problem, review),
            }
        }
        (InstanceState::Present(instance), Due::Refresh) => {
            match desired::difference(node, instance, None, config.refresh_topology_labels) {
                Ok(difference) => {
                    refresh(node, &difference, subject);
                    return (!difference.is_empty())
                        .then(|| changed(node, difference.addresses, difference.labels, None));
                }
                Err(error) => subject.block(Blocked::because(format!(
                    "provided node ip is not valid: {error}; the node is left as it is"
                ))),
            }
        }
        (InstanceState::Absent | InstanceState::Unresolved, Due::Initialization) => {
            let problem = Problem::NoMachine {
                provider_id: node.view.provider_id.clone(),
            };
            block(node, &problem, review);
        }
        // Whether it is to be deleted is not for this controller to say.
        (InstanceState::Absent | InstanceState::Unresolved, Due::Refresh) => {}
        (InstanceState::Unmanaged, _) => {}
    }
    None
}

/// The node as it would be.
fn changed(
    node: &NodeObject,
    addresses: Option<Vec<NodeAddress>>,
    labels: NewLabels,
    provider_id: Option<String>,
) -> NodeObject {
    let mut changed = node.clone();
    let mut all: NewLabels = node
        .view
        .labels
        .iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    all.extend(labels);
    let mut view = (*node.view).clone();
    view.labels = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    view.provider_id = view.provider_id.or(provider_id);
    changed.view = Arc::new(view);
    changed.taints = node.taints_without(UNINITIALIZED_TAINT);
    if let Some(addresses) = addresses {
        changed.addresses = addresses;
    }
    changed
}

fn block(node: &NodeObject, problem: &Problem, review: &mut Review) {
    let name = &node.view.name;
    review.node(name).block(Blocked::because(problem.message(name)));
}

fn initialization(node: &NodeObject, wanted: &desired::Initialization, subject: &mut Subject) {
    let mut parts = Vec::new();
    if let Some(id) = &wanted.provider_id {
        parts.push(format!("provider ID {id}"));
    }
    if wanted.addresses != node.addresses {
        parts.push(addresses(&wanted.addresses));
    }
    if !wanted.labels.is_empty() {
        parts.push(labels(&wanted.labels));
    }
    parts.push("no taint".to_owned());
    let what = parts.join("; ");
    subject.change(EffectOf::Change, Kind::Initialize, what, "");
}

fn refresh(node: &NodeObject, difference: &desired::Difference, subject: &mut Subject) {
    if let Some(new) = &difference.addresses {
        let what = addresses(new);
        let why = format!("now {}", addresses(&node.addresses));
        subject.change(EffectOf::Change, Kind::Addresses, what, why);
    }
    let mut new = desired::reconciled_labels(&node.view.labels);
    new.extend(difference.labels.clone());
    if !new.is_empty() {
        let old = new.keys().filter_map(|key| {
            let value = node.view.labels.get(key)?;
            Some((key.clone(), value.to_owned()))
        });
        let old: NewLabels = old.collect();
        let why = if old.is_empty() {
            String::new()
        } else {
            format!("now {}", labels(&old))
        };
        subject.change(EffectOf::Change, Kind::Labels, labels(&new), why);
    }
    for (key, want) in &difference.topology {
        // The stable label follows from its twin of old, whatever the cloud says.
        if new.contains_key(key) {
            continue;
        }
        let have = node.view.labels.get(key).unwrap_or("nothing").to_owned();
        subject.block(Blocked {
            what: format!(
                "label {key} is {have}, the cloud says {want}: left as it is, since volumes have affinity to it \
                 (--refresh-topology-labels changes it)"
            ),
            field: Some(key.clone()),
            have: Some(have),
            want: Some(want.clone()),
        });
    }
}

fn addresses(addresses: &[NodeAddress]) -> String {
    if addresses.is_empty() {
        return "no addresses".to_owned();
    }
    let all: Vec<_> = addresses
        .iter()
        .map(|address| format!("{} {}", address.kind.as_str(), address.address))
        .collect();
    all.join(", ")
}

/// Of labels that are there under an old name, too, only the new name is of interest.
fn labels(labels: &NewLabels) -> String {
    let twin = |key: &str| desired::stable_twin(key).and_then(|stable| labels.get(stable));
    let all: Vec<_> = labels
        .iter()
        .filter(|(key, value)| twin(key) != Some(*value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    all.join(", ")
}
