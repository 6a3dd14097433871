//! The scenarios in which each call of a creation, a change and a deletion fails once.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures_util::future::{Either, select};
use tokio::time::Instant;

use super::*;
use crate::testkit::cluster::advance_to;

/// No provider waits longer for a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The operation on the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Create,
    Change,
    Delete,
}

impl Phase {
    const ALL: [Self; 3] = [Self::Create, Self::Change, Self::Delete];

    /// Whether calls of this kind fail in this way. Reads are the same in all phases, and throttling is slow.
    fn has(self, failure: Failure, kind: CallKind) -> bool {
        match failure {
            _ if kind == CallKind::Authentication => false,
            Failure::Busy => self != Self::Create && kind == CallKind::Write,
            Failure::Throttled => self == Self::Create || kind == CallKind::Write,
            Failure::Unavailable => true,
            Failure::LostReply | Failure::NoReply => kind == CallKind::Write,
        }
    }
}

/// Runs the scenarios in which each call fails once, in one way.
///
/// # Panics
///
/// A scenario fails; the message lists all failed ones.
pub async fn balancer_failures(subject: &dyn BalancerSubject, failure: Failure) {
    let mut failed = Vec::new();
    for phase in Phase::ALL {
        if let Err(error) = each_call(subject, phase, failure).await {
            failed.push(format!("each call fails ({failure:?}, {phase:?}): {error}"));
        }
    }
    report(&failed);
}

/// Prepares the cluster for the phase's passes.
async fn prepare(subject: &dyn BalancerSubject, phase: Phase) -> Result<TestCluster, BoxError> {
    let mut cluster = new_cluster(subject, 2).await?;
    cluster.services.push(service("web", &[80, 443, 8080]));
    if phase != Phase::Create {
        settle(&mut cluster).await?;
    }
    match phase {
        Phase::Create => {}
        Phase::Change => {
            let web = web(&mut cluster)?;
            web.ports = service("web", &[80, 444, 8080]).ports;
            subject.change(web);
            join(subject, &mut cluster).await?;
            cluster.nodes.remove(0);
        }
        Phase::Delete => web(&mut cluster)?.deleting = true,
    }
    subject.take_calls();
    Ok(cluster)
}

/// Makes each call fail once. Every run must end in the same state as the run without failures.
async fn each_call(subject: &dyn BalancerSubject, phase: Phase, failure: Failure) -> Checked {
    let mut baseline = prepare(subject, phase).await?;
    settle(&mut baseline).await?;
    let calls = subject.take_calls();
    let expected = subject.picture().await?;
    let can_fail = |call: &CloudCall| phase.has(failure, call.kind) && subject.can_fail(call, failure);
    let points = (1..).zip(&calls).filter(|(_, call)| can_fail(call));
    let points: Vec<_> = points.collect();
    let stride = points.len().div_ceil(subject.failure_points().max(1)).max(1);
    for (nth, call) in points.into_iter().step_by(stride) {
        let about = |error: BoxError| format!("call {nth} ({}): {error}", call.operation);
        let mut cluster = prepare(subject, phase).await.map_err(about)?;
        let blocked = subject.fail(nth, failure);
        let finished = finish(subject, &mut cluster, phase, &expected);
        let finished = match failure {
            Failure::NoReply => time_out(blocked, finished).await,
            _ => finished.await,
        };
        finished.map_err(about)?;
        not_repeated(&calls, &subject.take_calls()).map_err(about)?;
    }
    Ok(())
}

/// Advances the clock past the timeout of the blocked call. All other calls have the usual time.
async fn time_out(blocked: BoxFuture<'static, ()>, finished: impl Future<Output = Checked>) -> Checked {
    match select(blocked, pin!(finished)).await {
        Either::Left(((), finished)) => {
            advance_to(Instant::now() + REQUEST_TIMEOUT).await;
            finished.await
        }
        Either::Right((finished, _)) => finished.and(Err("the call was not blocked".into())),
    }
}

async fn finish(
    subject: &dyn BalancerSubject,
    cluster: &mut TestCluster,
    phase: Phase,
    expected: &[String],
) -> Checked {
    cluster.settle_despite_failures().await?;
    let complaints = cluster.complaints();
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    ensure!(
        cluster.services.is_empty() == (phase == Phase::Delete),
        "the Services are {:?}",
        cluster.services
    );
    same(&subject.picture().await?, expected)
}

/// Checks that one failed call costs at most one more write per operation.
fn not_repeated(baseline: &[CloudCall], calls: &[CloudCall]) -> Checked {
    let count = |calls: &[CloudCall]| {
        let mut counts = BTreeMap::<String, usize>::new();
        for call in calls.iter().filter(|call| call.kind == CallKind::Write) {
            *counts.entry(call.operation.clone()).or_default() += 1;
        }
        counts
    };
    let baseline = count(baseline);
    for (operation, times) in count(calls) {
        let usual = baseline.get(&operation).copied().unwrap_or_default();
        ensure!(times <= usual + 1, "{operation} was sent {times} times instead of {usual}");
    }
    Ok(())
}
