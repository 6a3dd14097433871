//! The batcher in front of the cloud: nodes that wait at the same moment are asked about together.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Error, ErrorKind, Freshness, InstanceState, Need, NodeView, Priority, Result,
    client::{BatchConfig, Batcher, ClientMetrics},
};
use tokio::time::Instant;

use crate::controllers::node_object::describe;

/// A batch is sent when nothing came for this long ..
const IDLE: Duration = Duration::from_millis(30);
/// .. or this long after its first node ..
const LONGEST: Duration = Duration::from_millis(300);
/// .. or with this many nodes. Three port listings of an OpenStack cloud; while one batch is written to the API
/// server the next can be described.
pub(super) const LARGEST: usize = 450;
/// Batches at the same time.
const PARALLEL: usize = 4;

/// An answer this old is good enough to find a machine. What is missing in it is asked for anyway.
const RECENT: Duration = Duration::from_secs(10);

/// A question about the machine of a node that joins.
#[derive(Clone)]
pub(crate) struct Question {
    pub(crate) node: Arc<NodeView>,
    /// Set when an earlier answer was not good enough: only something newer will do.
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

/// Nodes that ask for the first time share what is in the cache; one that has to wait for news does not make the
/// whole batch wait for it.
async fn answer(cloud: &dyn Cloud, questions: Vec<Question>) -> Vec<Result<InstanceState>> {
    let Some(instances) = cloud.instances() else {
        let error = Error::new(
            ErrorKind::Unsupported,
            "the cloud provider does not support instances",
        );
        return questions.iter().map(|_| Err(error.clone())).collect();
    };
    let newest = questions.iter().filter_map(|question| question.newer_than).max();
    let part = |fresh: bool| {
        let of_part = questions
            .iter()
            .filter(|question| question.newer_than.is_some() == fresh);
        let views: Vec<_> = of_part.map(|question| &question.node).collect();
        let freshness = match newest {
            Some(instant) if fresh => Freshness::After(instant),
            _ => Freshness::AtMost(RECENT),
        };
        async move {
            if views.is_empty() {
                return Vec::new();
            }
            describe(instances, views, Need::Metadata, freshness, Priority::User).await
        }
    };
    let (fresh, recent) = tokio::join!(part(true), part(false));
    let (mut fresh, mut recent) = (fresh.into_iter(), recent.into_iter());
    let answers = questions.iter().filter_map(|question| match question.newer_than {
        Some(_) => fresh.next(),
        None => recent.next(),
    });
    answers.collect()
}
