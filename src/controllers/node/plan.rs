//! The plan of this controller.

use std::{collections::HashSet, sync::Arc};

use ccm_core::{Cloud, InstanceState, Need, NodeView, controllers::NodeObject, load_balancer::ReadOptions};

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
    let names: HashSet<String> = nodes.iter().map(|node| node.view.name.clone()).collect();
    let similar_names = |node: &NodeView| {
        let similar = desired::similar_names(node, cloud, |name| names.contains(name));
        desired::similar_names_text(&similar)
    };
    let mut asked = Vec::new();
    for node in nodes {
        // The stable labels of every initialized node follow their beta twins, whatever the cloud reports.
        if !node.has_taint(UNINITIALIZED_TAINT)
            && let Some(action) = NodeAction::set_labels(node, desired::reconciled_labels(&node.view.labels))
        {
            plan.node(&node.view.name).act(&action);
            action.apply_to(node);
        }
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
                    for action in actions(node, &state, config, similar_names, findings) {
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
    similar_names: impl Fn(&NodeView) -> String,
    findings: &mut Findings,
) -> Vec<NodeAction> {
    if node.has_taint(UNINITIALIZED_TAINT) {
        return match desired::initialize(node, state) {
            Ok(action) => action.into_iter().map(NodeAction::Initialize).collect(),
            Err(problem) => {
                let mut message = problem.message.clone();
                if problem.is_unknown_name(&node.view) {
                    message.push_str(&similar_names(&node.view));
                }
                findings.block(message);
                Vec::new()
            }
        };
    }
    // The lifecycle controller decides whether the node is deleted.
    let InstanceState::Present(instance) = state else {
        return Vec::new();
    };
    let refresh_topology = config.refresh_topology_labels;
    let difference = match desired::difference(node, instance, None, refresh_topology) {
        Ok(difference) => difference,
        Err(error) => {
            findings.block(format!("provided node ip is not valid: {error}; the node is left unchanged"));
            return Vec::new();
        }
    };
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ccm_core::{
        AddressType, Error, ErrorKind, Freshness, Instance, NodeAddress, NodeView, Priority,
        testkit::FakeCloud,
    };

    use super::*;
    use crate::controllers::{fixture, node_action::ZONE, plan::Object};

    #[tokio::test]
    async fn stable_labels_follow_on_every_initialized_node_whatever_the_cloud_reports() {
        let node = |name: &str, provider_id: &str| {
            Arc::new(NodeObject {
                view: Arc::new(NodeView {
                    name: name.to_owned(),
                    provider_id: Some(format!("{provider_id}://{name}")),
                    labels: [(ZONE[0], "a"), (ZONE[1], "edited")].into_iter().collect(),
                    ..NodeView::default()
                }),
                ..NodeObject::default()
            })
        };
        let mut no_ip = node("no-ip", "fake");
        Arc::make_mut(&mut no_ip).provided_node_ip = Some("invalid".to_owned());
        let nodes = [
            ("absent", "fake"),
            ("broken", "fake"),
            ("foreign", "other"),
            ("present", "fake"),
        ];
        let mut nodes = nodes.map(|(name, provider_id)| node(name, provider_id)).to_vec();
        nodes.push(no_ip);
        let cloud = FakeCloud::default();
        for name in ["no-ip", "present"] {
            let instance = Instance {
                addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
                zone: Some("a".to_owned()),
                ..Instance::default()
            };
            cloud.insert(name, instance);
        }
        cloud.fail("broken", &Error::new(ErrorKind::Unavailable, "down"), 1);
        let (config, mut found) = (fixture::config(&[]), Plan::default());
        let ask = ReadOptions {
            freshness: Freshness::AtMost(std::time::Duration::ZERO),
            priority: Priority::Background,
        };
        plan(&mut nodes, &cloud, &config.node, ask, &mut found).await;
        for node in &nodes {
            let name = node.view.name.clone();
            let (_, findings) = found
                .objects()
                .find(|(object, _)| **object == Object::Node { node: name.clone() })
                .unwrap();
            let labels: Vec<_> = findings.changes.iter().map(|change| &*change.what).collect();
            let labels = labels.into_iter().filter(|what| what.contains(ZONE[1]));
            assert_eq!(labels.collect::<Vec<_>>(), [format!("{}=a", ZONE[1])], "{name}");
        }
    }
}
