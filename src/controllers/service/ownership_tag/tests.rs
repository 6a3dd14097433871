#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ccm_core::{Priority, load_balancer::LoadBalancers, plan::PlanMetrics, testkit::FakeBalancers};

use super::{
    super::tests::{Running, until},
    *,
};

const TAG: &str = "kube_cluster_id_cluster-1";

/// The life of a controller while the namespace is refused.
struct Life {
    /// When it began to work.
    worked: Duration,
    /// The tag of its first load balancer.
    first: Option<String>,
    /// The tag of the load balancer that was created after the namespace was read.
    later: Option<String>,
    /// What the check showed before it worked.
    shown: Option<String>,
}

/// Runs the controller while the namespace is refused in this way for so many seconds.
async fn life(code: u16, seconds: u64) -> Life {
    let began = Instant::now();
    let balancers = FakeBalancers::default();
    let engine: Arc<dyn LoadBalancers> = balancers.engine(PlanMetrics::default());
    let running = Running::start(engine, code, Duration::from_secs(seconds));
    let shown = Mutex::new(None);
    let first = until("web", || {
        let found = balancers.of("ns/web");
        if found.is_none() {
            shown.lock().clone_from(&running.checks.failing(CHECK));
        }
        found
    });
    let first = first.await.tag;
    let worked = began.elapsed();
    assert_eq!(running.checks.failing(CHECK), None, "the check at the end");
    let later = until("later", || balancers.of("ns/later")).await.tag;
    if first.is_none() && later.is_some() {
        // Nobody waits for this comparison, so that it is the only read in the background.
        let compared = || {
            let mut reads = balancers.reads().into_iter();
            reads.find(|read| read.priority == Priority::Background)
        };
        until("all load balancers are compared", compared).await;
    }
    running.end().await;
    let shown = shown.into_inner();
    Life {
        worked,
        first,
        later,
        shown,
    }
}

#[tokio::test(start_paused = true)]
async fn one_401_at_the_start_costs_no_tag() {
    let life = life(401, 1).await;
    assert!(life.worked < Duration::from_secs(10), "{:?}", life.worked);
    assert_eq!(life.first.as_deref(), Some(TAG));
    assert_eq!(life.later.as_deref(), Some(TAG));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_cannot_be_read_is_waited_for() {
    for (code, seconds) in [(401, 90), (404, 90), (500, 1800)] {
        let life = life(code, seconds).await;
        let outage = Duration::from_secs(seconds);
        assert!(life.worked >= outage, "{code}: {:?}", life.worked);
        assert!(life.worked < outage + 2 * BACKOFF.longest, "{code}: {:?}", life.worked);
        assert_eq!(life.first.as_deref(), Some(TAG), "{code}");
        let shown = life.shown.unwrap_or_default();
        assert!(shown.contains("kube-system"), "{code}: {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_that_is_repaired_is_noticed() {
    let life = life(403, 900).await;
    assert!(life.worked < Duration::from_secs(10), "{:?}", life.worked);
    assert_eq!((life.first.as_deref(), life.later.as_deref()), (None, Some(TAG)));
    assert_eq!(life.shown, None);
}
