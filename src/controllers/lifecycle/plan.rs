//! The plan of this controller. Where two answers are needed, it asks once and lists what follows from an equal second
//! answer.

use std::{sync::Arc, time::Duration};

use ccm_core::{Cloud, controllers::NodeObject};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    decide::{self, Brake, Reason, Refusal},
    is_recovered, needs_shutdown_taint,
    pass::{self, Questions},
    report,
    suspects::{Answer, COALESCE, Suspects, Times, is_managed},
    whole,
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
    let mut suspects = Suspects::new(config.monitor_period, Duration::ZERO);
    let now = Instant::now();
    for node in nodes.iter() {
        let managed = is_managed(node, |id| cloud.owns(id));
        if managed && is_recovered(node) {
            plan.node(&node.view.name)
                .act(&NodeAction::SetShutdownTaint(false));
        }
        suspects.observe(node, managed, now);
    }
    let due = suspects.take_due(now + COALESCE);
    if due.is_empty() {
        return;
    }
    let questions = Questions {
        suspects: due.iter().map(|node| Arc::clone(&node.view)).collect(),
        witnesses: pass::witnesses(nodes, |id| cloud.owns(id), std::iter::empty(), 0),
    };
    let answers = pass::ask(cloud, questions).await;
    let failed = answers
        .findings
        .iter()
        .filter(|finding| finding.answer == Answer::Failed);
    if let Some(error) = &answers.failure {
        let about = format!(
            "whether the machines of {} nodes that are not ready exist",
            failed.count()
        );
        plan.problem(about, error.report());
    }
    if answers.generation.is_none() {
        let error = "the credentials changed while the cloud was asked";
        plan.problem("nodes that are not ready", error);
        return;
    }
    let ended = answers.times.ended;
    let times = Times { began: ended, ended };
    let proven = suspects.record(&answers.findings, times, answers.present);
    for finding in &answers.findings {
        let Some(suspect) = suspects.get(&finding.view.name) else {
            continue;
        };
        let findings = plan.node(&finding.view.name);
        if needs_shutdown_taint(suspect) {
            findings.act(&NodeAction::SetShutdownTaint(true));
        }
        if finding.answer == Answer::Unresolved {
            findings.warn(
                "nothing in the cloud has its name; if that stays so for ten minutes and it is not ready, it would \
                 be deleted",
            );
        }
    }
    let whole = whole(&suspects, nodes, cloud, answers.present, config.deletion_share);
    let decision = Brake::default().decide(proven, &whole, now);
    let many = report::Many {
        gone: decision.gone,
        all: decision.all,
        share: whole.share,
    };
    let confirm = config.deletion_confirm;
    let grace = config.grace(cloud);
    for node in decision.delete {
        nodes.retain(|other| other.view.name != node.view.name);
        let mut why = format!("{}; done if that is so {confirm:?} later, too", gone(&node));
        if let Err(Refusal::Young(_)) = decide::check(&node, &node, Timestamp::now(), grace) {
            why = format!("{why}, and once it is older than {grace:?}");
        }
        plan.node(&node.view.name).act(&NodeAction::Delete(why));
    }
    for (node, reason) in decision.hold {
        match reason {
            Reason::Share => {
                let why = format!(
                    "{}; one a minute, since {} of {} nodes seem gone",
                    gone(&node),
                    many.gone,
                    many.all
                );
                plan.node(&node.view.name).act(&NodeAction::Delete(why));
            }
            Reason::NothingPresent => {
                let text = report::message(&node.view.name, reason, &many, &cloud.scope());
                plan.node(&node.view.name).block(Blocked::because(text));
            }
        }
    }
}

fn gone(node: &NodeObject) -> String {
    match &node.view.provider_id {
        Some(id) => format!("it is not ready, and the cloud has no {id}"),
        None => "it is not ready, and the cloud has nothing of its name".to_owned(),
    }
}
