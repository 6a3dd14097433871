//! The scenarios in which each call of a creation, a change and a deletion fails once.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures_util::future::{Either, select};
use tokio::time::Instant;

use super::*;
use crate::testkit::cluster::advance_to;

/// No provider waits longer for a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What happens to the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Create,
    Change,
    Delete,
}

impl Turn {
    const ALL: [Self; 3] = [Self::Create, Self::Change, Self::Delete];

    /// Whether calls of this kind fail in this way. Reads are the same in all turns, and throttling takes its time.
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

pub(super) async fn run(subject: &dyn BalancerSubject, failures: &[Failure]) -> Vec<String> {
    let mut failed = Vec::new();
    for failure in failures {
        for turn in Turn::ALL {
            if let Err(error) = each_call(subject, turn, *failure).await {
                failed.push(format!("each call fails ({failure:?}, {turn:?}): {error}"));
            }
        }
    }
    failed
}

/// The cluster right before the turn's passes.
async fn prepare(subject: &dyn BalancerSubject, turn: Turn) -> Result<TestCluster, BoxError> {
    let mut cluster = new_cluster(subject, 2).await?;
    cluster.services.push(service("web", &[80, 443, 8080]));
    if turn != Turn::Create {
        settle(&mut cluster).await?;
    }
    match turn {
        Turn::Create => {}
        Turn::Change => {
            let web = web(&mut cluster)?;
            web.ports = service("web", &[80, 444, 8080]).ports;
            subject.change(web);
            join(subject, &mut cluster).await?;
            cluster.nodes.remove(0);
        }
        Turn::Delete => web(&mut cluster)?.deleting = true,
    }
    subject.take_calls();
    Ok(cluster)
}

/// Lets each call fail once. Every run must end like the one in which none fails.
async fn each_call(subject: &dyn BalancerSubject, turn: Turn, failure: Failure) -> Checked {
    let mut calm = prepare(subject, turn).await?;
    settle(&mut calm).await?;
    let calls = subject.take_calls();
    let expected = subject.picture().await?;
    let can_fail = |call: &CloudCall| turn.has(failure, call.kind) && subject.can_fail(call, failure);
    let points = (1..).zip(&calls).filter(|(_, call)| can_fail(call));
    let points: Vec<_> = points.collect();
    let stride = points.len().div_ceil(subject.failure_points().max(1)).max(1);
    for (nth, call) in points.into_iter().step_by(stride) {
        let about = |error: BoxError| format!("call {nth} ({}): {error}", call.operation);
        let mut cluster = prepare(subject, turn).await.map_err(about)?;
        let held = subject.fail(nth, failure);
        let finished = finish(subject, &mut cluster, turn, &expected);
        let finished = match failure {
            Failure::NoReply => time_out(held, finished).await,
            _ => finished.await,
        };
        finished.map_err(about)?;
        not_repeated(&calls, &subject.take_calls()).map_err(about)?;
    }
    Ok(())
}

/// Lets the timeout of the held call pass at once. All other calls have the usual time: a busy machine may need it.
async fn time_out(held: BoxFuture<'static, ()>, finished: impl Future<Output = Checked>) -> Checked {
    match select(held, pin!(finished)).await {
        Either::Left(((), finished)) => {
            advance_to(Instant::now() + REQUEST_TIMEOUT).await;
            finished.await
        }
        Either::Right((finished, _)) => finished.and(Err("the call was not held".into())),
    }
}

async fn finish(
    subject: &dyn BalancerSubject,
    cluster: &mut TestCluster,
    turn: Turn,
    expected: &[String],
) -> Checked {
    cluster.settle_despite_failures().await?;
    let complaints = cluster.complaints();
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    ensure!(
        cluster.services.is_empty() == (turn == Turn::Delete),
        "the Services are {:?}",
        cluster.services
    );
    same(&subject.picture().await?, expected)
}

/// One failed call costs at most one more write of a kind.
fn not_repeated(calm: &[CloudCall], calls: &[CloudCall]) -> Checked {
    let count = |calls: &[CloudCall]| {
        let mut counts = BTreeMap::<String, usize>::new();
        for call in calls.iter().filter(|call| call.kind == CallKind::Write) {
            *counts.entry(call.operation.clone()).or_default() += 1;
        }
        counts
    };
    let calm = count(calm);
    for (operation, times) in count(calls) {
        let usual = calm.get(&operation).copied().unwrap_or_default();
        ensure!(
            times <= usual + 1,
            "{operation} was sent {times} times instead of {usual}"
        );
    }
    Ok(())
}
