//! The plan of this controller. Where two answers are needed, it asks once and assumes an equal second answer.

use std::{sync::Arc, time::Duration};

use ccm_core::{Cloud, controllers::NodeObject};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    decide::{self, BlockReason, Brake, Refusal, Totals},
    not_ready::{Answer, COALESCE, NotReadyNodes, is_managed},
    pass::{self, Questions},
    report,
};
use crate::{
    config::LifecycleConfig,
    controllers::{node_action::NodeAction, plan::Plan},
};

/// Collects the actions on nodes, and removes deleted nodes from `nodes`: other controllers plan after this one.
pub(crate) async fn plan(
    nodes: &mut Vec<Arc<NodeObject>>,
    cloud: &dyn Cloud,
    config: &LifecycleConfig,
    plan: &mut Plan,
) {
    if cloud.instances().is_none() {
        return;
    }
    // A second answer is assumed to be equal.
    let mut not_ready = NotReadyNodes::new(config.monitor_period, Duration::ZERO, config.unresolved_confirm);
    let now = Instant::now();
    for node in nodes.iter() {
        let managed = is_managed(node, |id| cloud.owns(id));
        if managed && decide::is_recovered(node) {
            plan.node(&node.view.name).act(&NodeAction::SetShutdownTaint(false));
        }
        not_ready.observe(node, managed, now);
    }
    let due = not_ready.take_due(now + COALESCE);
    if due.is_empty() {
        return;
    }
    let questions = Questions {
        due: due.iter().map(|node| Arc::clone(&node.view)).collect(),
        comparison: pass::comparison_nodes(nodes, |id| cloud.owns(id), std::iter::empty(), 0),
    };
    let mut answers = pass::ask(cloud, questions).await;
    answers.began = answers.ended;
    let of = |answer| {
        let findings = answers.findings.iter();
        findings.filter(move |finding| finding.answer == answer)
    };
    if let Some(error) = &answers.failure {
        let failed = of(Answer::Failed).count();
        let about = format!("whether the machines of {failed} nodes that are not ready exist");
        plan.problem(about, error.report());
    }
    if answers.generation.is_none() {
        let error = "the credentials changed while the cloud was being read";
        plan.problem("nodes that are not ready", error);
        return;
    }
    let proven = not_ready.record(&answers);
    for (node, action) in decide::shutdowns(&not_ready, &answers.findings) {
        plan.node(&node.view.name).act(&action);
    }
    for finding in of(Answer::Unresolved) {
        plan.node(&finding.view.name).warn(
            "no machine in the cloud has its name; the node would be deleted if its kubelet is silent (Ready is \
             Unknown) for ten minutes in which this is so",
        );
    }
    let totals = Totals::of(&not_ready, nodes, cloud, answers.present, config.deletion_share);
    let decision = Brake::default().decide(proven, &totals, now);
    let (confirm, grace) = (config.deletion_confirm, config.grace(cloud));
    for node in decision.delete {
        nodes.retain(|other| other.view.name != node.view.name);
        let mut when = format!("; done if the cloud confirms it {confirm:?} later");
        if let Err(Refusal::Young(_)) = decide::check(&node, &node, Timestamp::now(), grace) {
            when = format!("{when}, and once it is older than {grace:?}");
        }
        plan.node(&node.view.name).act(&deletion(&node, &when));
    }
    let totals = decision.totals;
    for (node, reason) in decision.blocked {
        let findings = plan.node(&node.view.name);
        match reason {
            BlockReason::Share => {
                let Totals { missing, all, .. } = totals;
                let when = format!("; one a minute, since {missing} of {all} nodes seem missing");
                findings.act(&deletion(&node, &when));
            }
            BlockReason::NothingPresent => {
                let text = report::message(&node.view.name, reason, &totals, &cloud.scope());
                findings.block(text);
            }
        }
    }
}

/// The deletion of the node, and `when` it is done.
fn deletion(node: &NodeObject, when: &str) -> NodeAction {
    NodeAction::Delete(format!("{}{when}", decide::deletion_reason(node)))
}
