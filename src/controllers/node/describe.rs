//! The batcher in front of the cloud: one question for all nodes that wait at the same moment.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Freshness, InstanceState, Need, NodeView, Priority, Result,
    client::{BatchConfig, Batcher, ClientMetrics},
};
use tokio::time::Instant;

use crate::controllers::node_object::describe;

/// A batch is sent if no question came for this long ..
const IDLE: Duration = Duration::from_millis(30);
/// .. or this long after its first node ..
const LONGEST: Duration = Duration::from_millis(300);
/// .. or with this many nodes. Three port listings of an OpenStack cloud; while one batch is written to the API
/// server the next can be described.
pub(super) const LARGEST: usize = 450;
/// Batches at the same time.
const PARALLEL: usize = 4;

/// An answer this old is good enough to find an instance. An instance that is missing in it is read anyway.
const RECENT: Duration = Duration::from_secs(10);

/// A question about the instance of a node that joins.
#[derive(Clone)]
pub(crate) struct Question {
    pub(crate) node: Arc<NodeView>,
    /// Set if an earlier answer did not help: only a newer one can.
    pub(crate) newer_than: Option<Instant>,
}

/// Asks the cloud about nodes that join.
pub(crate) fn batcher(cloud: Arc<dyn Cloud>, metrics: &ClientMetrics) -> Batcher<Question, InstanceState> {
    let config = BatchConfig {
        name: "node_describe",
        idle: IDLE,
        window: LONGEST,
        max_items: LARGEST,
        max_concurrent: PARALLEL,
    };
    Batcher::new(config, metrics, move |questions: Vec<Question>| {
        let cloud = Arc::clone(&cloud);
        async move { answer(&*cloud, questions).await }
    })
}

/// Nodes that ask for the first time share the cached answers. They do not wait for a node that needs a new answer.
async fn answer(cloud: &dyn Cloud, questions: Vec<Question>) -> Vec<Result<InstanceState>> {
    let mut recent = Vec::new();
    let mut fresh = Vec::new();
    for (place, question) in questions.iter().enumerate() {
        match question.newer_than {
            None => recent.push(place),
            Some(_) => fresh.push(place),
        }
    }
    let newest = questions.iter().filter_map(|question| question.newer_than).max();
    let of_fresh = newest.map_or(Freshness::AtMost(RECENT), Freshness::After);
    let (recent, fresh) = tokio::join!(
        answers_at(cloud, &questions, recent, Freshness::AtMost(RECENT)),
        answers_at(cloud, &questions, fresh, of_fresh),
    );
    // Every question is at one place, in one of both lists.
    let answers: BTreeMap<_, _> = recent.into_iter().chain(fresh).collect();
    answers.into_values().collect()
}

/// The answers to the questions at these places, each with its place.
async fn answers_at(
    cloud: &dyn Cloud,
    questions: &[Question],
    places: Vec<usize>,
    freshness: Freshness,
) -> Vec<(usize, Result<InstanceState>)> {
    let views: Vec<_> = places
        .iter()
        .filter_map(|place| questions.get(*place))
        .map(|question| &question.node)
        .collect();
    // One answer for each question, whatever the provider does.
    let answers = describe(cloud, views, Need::Metadata, freshness, Priority::User).await;
    places.into_iter().zip(answers).collect()
}
