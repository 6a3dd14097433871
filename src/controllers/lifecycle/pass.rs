//! One pass: the questions about all nodes that are due, and, where another node has to be present, about nodes for
//! comparison.

use std::sync::Arc;

use ccm_core::{
    Cloud, Error, Freshness, Need, NodeView, Priority,
    controllers::{NodeObject, node::Ready},
};
use tokio::time::Instant;

use super::not_ready::{Answer, Finding};
use crate::controllers::node_object::describe;

/// For up to so many nodes, a question has the priority of a user's request.
const FEW: usize = 10;
/// How many nodes are asked about for comparison.
const COMPARED: usize = 3;

/// The questions of a pass.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub(super) due: Vec<Arc<NodeView>>,
    /// Nodes to ask about if none of those is Present. Empty if nothing depends on it.
    pub(super) comparison: Vec<Arc<NodeView>>,
}

/// The answers of a pass.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) findings: Vec<Finding>,
    /// Whether a node of this cloud was Present, one that was due or one for comparison.
    pub(super) present: bool,
    /// The first error.
    pub(super) failure: Option<Error>,
    /// When the questions began.
    pub(super) began: Instant,
    /// When the last answer came.
    pub(super) ended: Instant,
    /// The generation of the credentials for all answers; `None` if they changed meanwhile.
    pub(super) generation: Option<u64>,
}

/// Asks the cloud.
pub(super) async fn ask(cloud: &dyn Cloud, questions: Questions) -> Answers {
    let generation = cloud.generation();
    let began = Instant::now();
    let freshness = Freshness::After(began);
    let Questions { due, comparison } = questions;
    let priority = if due.len() <= FEW {
        Priority::User
    } else {
        Priority::Background
    };
    let ask =
        async |nodes: &[Arc<NodeView>]| describe(cloud, nodes, Need::Existence, freshness, priority).await;
    let mut failure = None;
    let answers = ask(&due).await;
    let mut findings = Vec::with_capacity(due.len());
    for (view, answer) in due.into_iter().zip(answers) {
        findings.push(Finding {
            answer: Answer::of(&answer),
            view,
        });
        if let Err(error) = answer {
            failure.get_or_insert(error);
        }
    }
    // A name may be found in a wrong project, too. Only an id proves that the project is right.
    let mut present = findings
        .iter()
        .any(|finding| finding.answer.is_present() && finding.view.provider_id.is_some());
    if !present && findings.iter().any(|finding| finding.answer.is_missing()) {
        let answers = ask(&comparison).await;
        present = answers.iter().any(|answer| Answer::of(answer).is_present());
        failure = failure.or_else(|| answers.into_iter().find_map(Result::err));
    }
    Answers {
        findings,
        present,
        failure,
        began,
        ended: Instant::now(),
        generation: (cloud.generation() == generation).then_some(generation),
    }
}

/// Nodes of this cloud to ask about for comparison: three that are ready, others each `turn`. If fewer are ready, nodes
/// that are not ready but were found before are added.
pub(super) fn comparison_nodes<'a>(
    nodes: &'a [Arc<NodeObject>],
    owns: impl Fn(&str) -> bool,
    found_before: impl Iterator<Item = &'a Arc<NodeObject>>,
    turn: usize,
) -> Vec<Arc<NodeView>> {
    let is_ready =
        |node: &&Arc<NodeObject>| node.ready == Ready::True && node.meta.deletion_timestamp.is_none();
    let mut ready: Vec<_> = nodes
        .iter()
        .filter(is_ready)
        .filter(|node| node.view.provider_id.as_deref().is_some_and(&owns))
        .collect();
    if !ready.is_empty() {
        let first = turn.wrapping_mul(COMPARED) % ready.len();
        ready.rotate_left(first);
    }
    let found = found_before.filter(|node| node.view.provider_id.is_some());
    let compared = ready.into_iter().chain(found).take(COMPARED);
    compared.map(|node| Arc::clone(&node.view)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use ccm_core::{ErrorKind, Instance, testkit::FakeCloud};
    use serde_json::json;

    use super::*;

    fn node(name: &str, provider_id: &str, ready: &str) -> Arc<NodeObject> {
        let node = json!({
            "metadata": {"name": name, "uid": format!("uid-of-{name}")},
            "spec": {"providerID": provider_id},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn ours(name: &str, ready: &str) -> Arc<NodeObject> {
        node(name, &format!("fake://{name}"), ready)
    }

    fn names(views: &[Arc<NodeView>]) -> Vec<&str> {
        views.iter().map(|view| view.name.as_str()).collect()
    }

    fn owns(id: &str) -> bool {
        id.starts_with("fake://")
    }

    #[test]
    fn ready_nodes_of_this_cloud_are_compared_others_each_time() {
        let nodes = [
            ours("a", "True"),
            ours("b", "True"),
            node("foreign", "aws:///x/i-1", "True"),
            ours("failing", "False"),
            ours("c", "True"),
            ours("d", "True"),
            node("bare", "", "True"),
        ];
        let turn = |turn| comparison_nodes(&nodes, owns, std::iter::empty(), turn);
        assert_eq!(names(&turn(0)), ["a", "b", "c"]);
        assert_eq!(names(&turn(1)), ["d", "a", "b"]);
        assert_eq!(names(&turn(2)), ["c", "d", "a"]);
    }

    #[test]
    fn without_ready_nodes_those_that_were_found_before_are_compared() {
        let nodes = [ours("a", "True")];
        let found = [ours("x", "Unknown"), node("nameless", "", "False")];
        assert_eq!(names(&comparison_nodes(&nodes, owns, found.iter(), 7)), ["a", "x"]);
        assert!(comparison_nodes(&[], owns, std::iter::empty(), 3).is_empty());
    }

    fn questions(due: &[&str], comparison: &[&str]) -> Questions {
        let views = |names: &[&str]| names.iter().map(|name| ours(name, "True").view.clone()).collect();
        Questions {
            due: views(due),
            comparison: views(comparison),
        }
    }

    #[tokio::test]
    async fn nodes_are_compared_only_if_something_depends_on_them() {
        let cloud = FakeCloud::default();
        cloud.insert("present", Instance::default());
        let answers = ask(&cloud, questions(&["present", "missing"], &["w"])).await;
        assert!(answers.present);
        assert_eq!(cloud.calls().len(), 1, "one that was due was found");

        let answers = ask(&cloud, questions(&["missing"], &["present", "w"])).await;
        assert!(answers.present);
        assert_eq!(cloud.calls().len(), 3);
        assert_eq!(cloud.calls()[2].nodes, ["present", "w"]);
        assert_eq!(
            cloud.calls()[1].freshness,
            cloud.calls()[2].freshness,
            "no older answer is used for the comparison"
        );

        cloud.fail_all(Some(Error::new(ErrorKind::Unavailable, "down")));
        let answers = ask(&cloud, questions(&["missing"], &["present"])).await;
        assert!(!answers.present && answers.failure.is_some());
        assert_eq!(cloud.calls().len(), 4, "no node seems missing");
    }

    #[tokio::test]
    async fn a_machine_found_by_name_is_not_compared() {
        let cloud = FakeCloud::default();
        cloud.insert("same-name", Instance::default());
        let by_name = Questions {
            due: vec![node("same-name", "", "False").view.clone()],
            comparison: Vec::new(),
        };
        let answers = ask(&cloud, by_name).await;
        assert_eq!(answers.findings[0].answer, Answer::On);
        assert!(!answers.present);
    }

    #[tokio::test]
    async fn answers_under_changing_credentials_have_no_generation() {
        let cloud = FakeCloud::default();
        assert_eq!(ask(&cloud, questions(&["x"], &[])).await.generation, Some(0));
        cloud.pause();
        let asking = tokio::spawn({
            let cloud = cloud.clone();
            async move { ask(&cloud, questions(&["x"], &[])).await }
        });
        while cloud.calls().len() < 2 {
            tokio::task::yield_now().await;
        }
        cloud.change_credentials("project two");
        cloud.resume();
        assert_eq!(asking.await.unwrap().generation, None);
        assert_eq!(ask(&cloud, questions(&["x"], &[])).await.generation, Some(1));
    }

    #[tokio::test]
    async fn questions_about_many_nodes_are_background_work() {
        let cloud = FakeCloud::default();
        let many: Vec<_> = (0..11).map(|i| format!("n{i}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        ask(&cloud, questions(&many[..10], &[])).await;
        ask(&cloud, questions(&many, &[])).await;
        let priorities: Vec<_> = cloud.calls().iter().map(|call| call.priority).collect();
        assert_eq!(priorities, [Priority::User, Priority::Background]);
        assert!(cloud.calls().iter().all(|call| !call.metadata));
    }
}
