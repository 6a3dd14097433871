//! The fence: refused writes, cut off writes, and the end of permission. The clock is paused.

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Priority, RequestOutcome, Result, Retry,
    client::{ClientMetrics, Fence, Fenced, Gate, GateConfig, Quota},
};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, timeout};

use crate::Op;

const SECOND: Duration = Duration::from_secs(1);

fn gate(fence: &Fence) -> Gate {
    let config = GateConfig {
        fence: fence.clone(),
        ..GateConfig::new("acme")
    };
    Gate::new(config, &ClientMetrics::default())
}

#[tokio::test(start_paused = true)]
async fn a_standby_reads_and_does_not_write() {
    let gate = gate(&Fence::standby());
    gate.call(Op::Get, Priority::User, async || Ok(())).await.unwrap();
    for op in [Op::Put, Op::Post] {
        let sent = AtomicBool::new(false);
        let error = gate
            .call(op, Priority::User, async || {
                sent.store(true, Relaxed);
                Ok(())
            })
            .await
            .unwrap_err();
        assert!(!sent.load(Relaxed), "{op:?}");
        assert_eq!(error.kind(), ErrorKind::NotLeader);
        assert_eq!((error.retry(), error.outcome()), (Retry::Never, RequestOutcome::NotDone));
        assert!(
            error.to_string().ends_with(": this process is not the leader and may not write"),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn permission_ends_by_itself_and_each_renewal_extends_it() {
    let fence = Fence::standby();
    let began = Instant::now();
    fence.allow_until(began + 10 * SECOND);
    assert!(fence.allows());
    let gate = gate(&fence);
    let renewals = async {
        sleep(5 * SECOND).await;
        fence.allow_until(began + 15 * SECOND);
    };
    let write = gate.call(Op::Post, Priority::User, pending::<Result<()>>);
    let (result, ()) = tokio::join!(write, renewals);
    let error = result.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 15);
    assert_eq!(error.kind(), ErrorKind::NotLeader);
    assert_eq!((error.retry(), error.outcome()), (Retry::Never, RequestOutcome::Unknown));
    assert!(!fence.allows());
    // A renewal that was in time is reported late.
    fence.allow_until(began + 20 * SECOND);
    assert!(fence.allows());
}

#[tokio::test(start_paused = true)]
async fn closing_cuts_off_writes_and_not_reads() {
    let fence = Fence::default();
    let gate = gate(&fence);
    let read = gate.call(Op::Get, Priority::User, async || {
        sleep(3 * SECOND).await;
        Ok(())
    });
    let put = gate.call(Op::Put, Priority::User, pending::<Result<()>>);
    let close = async {
        sleep(SECOND).await;
        fence.close();
    };
    let began = Instant::now();
    let put = async { (put.await, began.elapsed()) };
    let (read, (put, after), ()) = tokio::join!(read, put, close);
    read.unwrap();
    assert_eq!(put.unwrap_err().outcome(), RequestOutcome::Unknown);
    assert_eq!(after.as_secs(), 1);
    // Permanently.
    fence.allow_until(Instant::now() + SECOND);
    assert_eq!(fence.run(async {}).await, Err(Fenced::Refused));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waited_for_quota_past_the_end_is_not_sent() {
    let fence = Fence::standby();
    fence.allow_until(Instant::now() + 10 * SECOND);
    let config = GateConfig {
        buckets: vec![(
            "things",
            Quota {
                rate: 0.05,
                burst: 1,
                max_in_flight: 1,
            },
        )],
        fence,
        ..GateConfig::new("acme")
    };
    let gate = Gate::new(config, &ClientMetrics::default());
    gate.call(Op::Post, Priority::User, async || Ok(())).await.unwrap();
    let error = gate
        .call(Op::Post, Priority::User, async || -> Result<()> { panic!("it was sent") })
        .await
        .unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NotLeader, RequestOutcome::NotDone));
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_the_end_is_not_sent_and_the_outcome_stays_unknown() {
    let fence = Fence::default();
    let attempts = AtomicU32::new(0);
    let error = gate(&fence)
        .call(Op::Put, Priority::User, || {
            attempts.fetch_add(1, Relaxed);
            fence.close();
            async {
                Err::<(), _>(
                    Error::new(ErrorKind::Unavailable, "broken").with_outcome(RequestOutcome::Unknown),
                )
            }
        })
        .await
        .unwrap_err();
    assert_eq!(attempts.load(Relaxed), 1);
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NotLeader, RequestOutcome::Unknown));
}

/// As after SIGSTOP: the clock has advanced, and the answer of a socket wakes the task before any timer does.
#[tokio::test(start_paused = true)]
async fn a_write_that_wakes_after_the_end_checks_the_clock_first() {
    let fence = Fence::standby();
    fence.allow_until(Instant::now() + SECOND);
    let went_on = Arc::new(AtomicBool::new(false));
    let polled = AtomicBool::new(false);
    let inside = Arc::clone(&went_on);
    let mut write = Box::pin(fence.run(poll_fn(move |_| {
        if polled.swap(true, Relaxed) {
            inside.store(true, Relaxed);
            return Poll::Ready(());
        }
        Poll::<()>::Pending
    })));
    assert!((&mut write).now_or_never().is_none());
    tokio::time::advance(2 * SECOND).await;
    assert_eq!(write.await, Err(Fenced::Cut));
    assert!(!went_on.load(Relaxed));
}

#[tokio::test(start_paused = true)]
async fn writes_that_may_still_arrive_are_counted() {
    let fence = Fence::default();
    assert!(fence.is_settled(SECOND));
    // A write that returned cannot arrive later, whatever its result.
    fence.run(async { Err::<(), _>("refused") }).await.unwrap().unwrap_err();
    assert!(fence.is_settled(SECOND));

    let write = fence.run(sleep(5 * SECOND));
    let watch = async {
        sleep(SECOND).await;
        assert!(!fence.is_settled(Duration::ZERO), "a write is in progress");
        fence.idle().await;
        Instant::now()
    };
    let began = Instant::now();
    let (_, idle) = tokio::join!(write, watch);
    assert_eq!((idle - began).as_secs(), 5);
    assert!(fence.is_settled(SECOND));

    // Abandoned by its caller, by the gate's timeout, by the fence.
    timeout(SECOND, fence.run(pending::<()>())).await.unwrap_err();
    assert!(fence.is_settled(Duration::ZERO) && !fence.is_settled(SECOND));
    sleep(SECOND).await;
    assert!(fence.is_settled(SECOND));
    gate(&fence).call(Op::Post, Priority::User, pending::<Result<()>>).await.unwrap_err();
    assert!(!fence.is_settled(SECOND));
    sleep(SECOND).await;
    let (cut, ()) = tokio::join!(fence.run(pending::<()>()), async { fence.close() });
    assert_eq!(cut, Err(Fenced::Cut));
    assert!(!fence.is_settled(SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_gate_with_two_fences_has_one_quota() {
    let (main, other) = (Fence::default(), Fence::standby());
    let gate = gate(&main);
    let fenced = gate.fenced_by(&other);
    let put = async |gate: &Gate| gate.call(Op::Put, Priority::User, async || Ok(())).await;
    put(&gate).await.unwrap();
    assert_eq!(put(&fenced).await.unwrap_err().kind(), ErrorKind::NotLeader);
    other.allow_until(Instant::now() + SECOND);
    main.close();
    assert_eq!(put(&gate).await.unwrap_err().kind(), ErrorKind::NotLeader);
    put(&fenced).await.unwrap();
    // Reads pass both, and all callers draw from the same bucket.
    let bucket = gate.bucket("things");
    bucket.set_quota(Quota {
        burst: 1,
        ..Quota::default()
    });
    let began = Instant::now();
    for gate in [&gate, &fenced] {
        gate.call(Op::Get, Priority::User, async || Ok(())).await.unwrap();
    }
    assert!(began.elapsed() > Duration::ZERO, "the second one waited");
}
