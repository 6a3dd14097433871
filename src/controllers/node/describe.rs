//! The batcher in front of the cloud: one question for all nodes that wait at the same moment.

use std::{sync::Arc, time::Duration};

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

/// An answer this old is good enough to find a machine. A machine that is missing in it is read anyway.
const RECENT: Duration = Duration::from_secs(10);

/// A question about the machine of a node that joins.
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
    let newest = questions.iter().filter_map(|question| question.newer_than).max();
    let part = |fresh: bool| {
        let of_part = questions.iter().filter(|question| question.newer_than.is_some() == fresh);
        let views: Vec<_> = of_part.map(|question| &question.node).collect();
        let freshness = match newest {
            Some(instant) if fresh => Freshness::After(instant),
            _ => Freshness::AtMost(RECENT),
        };
        describe(cloud, views, Need::Metadata, freshness, Priority::User)
    };
    let (fresh, recent) = tokio::join!(part(true), part(false));
    let (mut fresh, mut recent) = (fresh.into_iter(), recent.into_iter());
    let answers = questions.iter().filter_map(|question| match question.newer_than {
        Some(_) => fresh.next(),
        None => recent.next(),
    });
    answers.collect()
}
