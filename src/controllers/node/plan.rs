//! The plan of this controller.

use std::sync::Arc;

use ccm_core::{Cloud, InstanceState, Need, controllers::NodeObject, load_balancer::ReadOptions};

use super::{desired, refresh::PIECE};
use crate::{
    config::NodeConfig,
    controllers::{
        node_action::NodeAction,
        node_object::{UNINITIALIZED_TAINT, describe},
        plan::{Blocked, Findings, Plan},
    },
};

/// Collects the actions on nodes and applies them to `nodes`: other controllers plan after this one.
pub(crate) async fn plan(
    nodes: &mut [Arc<NodeObject>],
    cloud: &dyn Cloud,
    config: &NodeConfig,
    ask: ReadOptions,
    plan: &mut Plan,
) {
    if cloud.instances().is_none() {
        return;
    }
    let mut asked = Vec::new();
    for node in nodes {
        match desired::is_asked_about(node, cloud) {
            Ok(true) => asked.push(node),
            Ok(false) => {}
            Err(problem) => plan.node(&node.view.name).block(problem.message),
        }
    }
    let mut failed = Vec::new();
    for piece in asked.chunks_mut(PIECE) {
        let views = piece.iter().map(|node| &node.view);
        let answers = describe(cloud, views, Need::Metadata, ask.freshness, ask.priority).await;
        for (node, answer) in piece.iter_mut().zip(answers) {
            match answer {
                Ok(state) => {
                    let findings = plan.node(&node.view.name);
                    for action in actions(node, &state, config, findings) {
                        findings.act(&action);
                        action.apply_to(node);
                    }
                }
                Err(error) => failed.push((node.view.name.clone(), error)),
            }
        }
    }
    // One sentence for all, since they usually fail together.
    if let Some((first, error)) = failed.first() {
        let about = match failed.len() {
            1 => format!("node {first}"),
            more => format!("{more} nodes, {first} among them"),
        };
        plan.problem(about, error.report());
    }
}

/// Whether a node is not initialized yet.
pub(crate) fn has_uninitialized(nodes: &[Arc<NodeObject>]) -> bool {
    nodes.iter().any(|node| node.has_taint(UNINITIALIZED_TAINT))
}

/// The actions on one node.
fn actions(
    node: &NodeObject,
    state: &InstanceState,
    config: &NodeConfig,
    findings: &mut Findings,
) -> Vec<NodeAction> {
    if node.has_taint(UNINITIALIZED_TAINT) {
        return match desired::initialize(node, state) {
            Ok(action) => action.into_iter().map(NodeAction::Initialize).collect(),
            Err(problem) => {
                findings.block(problem.message);
                Vec::new()
            }
        };
    }
    // The lifecycle controller decides whether the node is deleted.
    let InstanceState::Present(instance) = state else {
        return Vec::new();
    };
    let refresh_topology = config.refresh_topology_labels;
    let mut difference = match desired::difference(node, instance, None, refresh_topology) {
        Ok(difference) => difference,
        Err(error) => {
            findings.block(format!(
                "provided node ip is not valid: {error}; the node is left unchanged"
            ));
            return Vec::new();
        }
    };
    let mut labels = desired::reconciled_labels(&node.view.labels);
    // A stable label follows its beta twin, even if the cloud reports another value.
    difference.topology.retain(|key, _| !labels.contains_key(key));
    labels.append(&mut difference.labels);
    difference.labels = labels;
    for (key, want) in &difference.topology {
        let have = node.view.labels.get(key).unwrap_or("nothing").to_owned();
        findings.block(Blocked {
            what: format!(
                "label {key} is {have}, the cloud reports {want}: left unchanged, since volumes have affinity to it \
                 (--refresh-topology-labels changes it)"
            ),
            field: Some(key.clone()),
            have: Some(have),
            want: Some(want.clone()),
        });
    }
    difference.actions(node)
}
