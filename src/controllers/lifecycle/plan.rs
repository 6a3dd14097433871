//! The plan of this controller. Where two answers are needed, it asks once and lists what follows from an equal second
//! answer.

use std::{sync::Arc, time::Duration};

use ccm_core::{Cloud, controllers::NodeObject};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    decide::{self, BlockReason, Brake, Refusal, Whole},
    not_ready::{Answer, COALESCE, NotReadyNodes, Times, is_managed},
    pass::{self, Questions},
    report,
};
use crate::{
    config::LifecycleConfig,
    controllers::{
        node_action::NodeAction,
        plan::{Blocked, Plan},
    },
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
    // The second answer is taken for granted.
    let mut not_ready = NotReadyNodes::new(config.monitor_period, Duration::ZERO);
    let now = Instant::now();
    for node in nodes.iter() {
        let managed = is_managed(node, |id| cloud.owns(id));
        if managed && decide::is_recovered(node) {
            plan.node(&node.view.name)
                .act(&NodeAction::SetShutdownTaint(false));
        }
        not_ready.observe(node, managed, now);
    }
    let due = not_ready.take_due(now + COALESCE);
    if due.is_empty() {
        return;
    }
    let questions = Questions {
        due: due.iter().map(|node| Arc::clone(&node.view)).collect(),
        witnesses: pass::witnesses(nodes, |id| cloud.owns(id), std::iter::empty(), 0),
    };
    let answers = pass::ask(cloud, questions).await;
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
        let error = "the credentials changed while the cloud was asked";
        plan.problem("nodes that are not ready", error);
        return;
    }
    let ended = answers.times.ended;
    let times = Times { began: ended, ended };
    let proven = not_ready.record(&answers.findings, times, answers.present);
    for (node, action) in decide::shutdowns(&not_ready, &answers.findings) {
        plan.node(&node.view.name).act(&action);
    }
    for finding in of(Answer::Unresolved) {
        plan.node(&finding.view.name).warn(
            "nothing in the cloud has its name; if that stays so for ten minutes and it is not ready, it would be \
             deleted",
        );
    }
    let whole = Whole::of(&not_ready, nodes, cloud, answers.present, config.deletion_share);
    let decision = Brake::default().decide(proven, &whole, now);
    let (confirm, grace) = (config.deletion_confirm, config.grace(cloud));
    for node in decision.delete {
        nodes.retain(|other| other.view.name != node.view.name);
        let mut when = format!("; done if that is so {confirm:?} later, too");
        if let Err(Refusal::Young(_)) = decide::check(&node, &node, Timestamp::now(), grace) {
            when = format!("{when}, and once it is older than {grace:?}");
        }
        plan.node(&node.view.name).act(&deletion(&node, &when));
    }
    let whole = decision.whole;
    for (node, reason) in decision.blocked {
        let findings = plan.node(&node.view.name);
        match reason {
            BlockReason::Share => {
                let Whole { gone, all, .. } = whole;
                let when = format!("; one a minute, since {gone} of {all} nodes seem gone");
                findings.act(&deletion(&node, &when));
            }
            BlockReason::NothingPresent => {
                let text = report::message(&node.view.name, reason, &whole, &cloud.scope());
                findings.block(Blocked::because(text));
            }
        }
    }
}

/// The deletion of the node, and `when` it is done.
fn deletion(node: &NodeObject, when: &str) -> NodeAction {
    NodeAction::Delete(format!("{}{when}", decide::why_gone(node)))
}
