//! What this controller would do to nodes, by the same decisions. It takes time: where two answers are needed, one is
//! asked for, and what would follow from a second one like it is told.

use std::{sync::Arc, time::Duration};

use ccm_core::{Cloud, controllers::NodeObject};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    decide::{self, Brake, Reason, Refusal},
    is_recovered,
    pass::{self, Questions},
    report,
    suspects::{Answer, COALESCE, Suspects, Times, is_managed},
    whole,
};
use crate::{
    controllers::node_object::SHUTDOWN_TAINT,
    options::LifecycleConfig,
    review::{Blocked, EffectOf, Kind, Review},
};

/// Adds what would be done to nodes. Those that would be deleted go from `nodes`: other controllers come after.
pub(crate) async fn review(
    nodes: &mut Vec<Arc<NodeObject>>,
    cloud: &dyn Cloud,
    config: &LifecycleConfig,
    review: &mut Review,
) {
    if cloud.instances().is_none() {
        return;
    }
    let (taint, _) = SHUTDOWN_TAINT;
    // The second answer is taken for granted.
    let mut suspects = Suspects::new(config.monitor_period, Duration::ZERO);
    let now = Instant::now();
    for node in nodes.iter() {
        let managed = is_managed(node, |id| cloud.owns(id));
        if managed && is_recovered(node) {
            let what = format!("remove taint {taint}");
            review
                .node(&node.view.name)
                .change(EffectOf::Change, Kind::Taint, what, "it is ready again");
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
        review.problem(about, error.report());
    }
    if answers.generation.is_none() {
        let error = "the credentials changed while the cloud was asked";
        review.problem("nodes that are not ready", error);
        return;
    }
    let ended = answers.times.ended;
    let times = Times { began: ended, ended };
    let proven = suspects.record(&answers.findings, times, answers.present);
    for finding in &answers.findings {
        let Some(suspect) = suspects.get(&finding.view.name) else {
            continue;
        };
        let subject = review.node(&finding.view.name);
        let (key, effect) = SHUTDOWN_TAINT;
        match finding.answer {
            Answer::Off if !suspect.node.has_exact_taint(key, effect) => {
                let what = format!("add taint {taint}");
                subject.change(EffectOf::Change, Kind::Taint, what, "its machine is switched off");
            }
            Answer::Unresolved => subject.warn(
                "nothing in the cloud has its name; if that stays so for ten minutes and it is not ready, it would \
                 be deleted"
                    .to_owned(),
            ),
            _ => {}
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
        delete(&node, why, review);
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
                delete(&node, why, review);
            }
            Reason::NothingPresent => {
                let text = report::message(&node.view.name, reason, &many, &cloud.scope());
                review.node(&node.view.name).block(Blocked::because(text));
            }
        }
    }
}

fn delete(node: &NodeObject, why: String, review: &mut Review) {
    review
        .node(&node.view.name)
        .change(EffectOf::Delete, Kind::DeleteNode, "delete".to_owned(), why);
}

fn gone(node: &NodeObject) -> String {
    match &node.view.provider_id {
        Some(id) => format!("it is not ready, and the cloud has no {id}"),
        None => "it is not ready, and the cloud has nothing of its name".to_owned(),
    }
}
