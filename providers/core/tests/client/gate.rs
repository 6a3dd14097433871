//! The gate: retries, deadlines, quota per attempt, metrics. The clock is paused.

use std::{
    future::pending,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Priority, RequestOutcome, Result, Retry,
    client::{CallOptions, ClientMetrics, Gate, GateConfig, Quota, RetryPolicy},
};
use futures_util::{FutureExt, future::join_all};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::time::{Instant, sleep};

use crate::Op;

fn config() -> GateConfig {
    GateConfig {
        buckets: vec![(
            "things",
            Quota {
                rate: 10.0,
                burst: 20,
                max_in_flight: 4,
            },
        )],
        retry: RetryPolicy {
            seed: Some(1),
            ..RetryPolicy::default()
        },
        attempt_timeout: Duration::from_secs(10),
        deadline: Duration::from_secs(100),
        ..GateConfig::new("acme")
    }
}

fn gate() -> Gate {
    Gate::new(config(), &ClientMetrics::default())
}

/// Makes a call whose first attempt ends with `first` and whose later ones succeed; also returns the number of attempts.
async fn fails_once(gate: &Gate, op: Op, first: impl Fn() -> Error + Sync) -> (Result<()>, u32) {
    let attempts = AtomicU32::new(0);
    let result = gate
        .call(op, Priority::User, || {
            let is_first = attempts.fetch_add(1, Relaxed) == 0;
            let result = if is_first { Err(first()) } else { Ok(()) };
            async { result }
        })
        .await;
    (result, attempts.load(Relaxed))
}

/// The same with a first attempt that never answers.
async fn hangs_once(gate: &Gate, op: Op) -> (Result<()>, u32) {
    let attempts = AtomicU32::new(0);
    let result = gate
        .call(op, Priority::User, || {
            let hang = attempts.fetch_add(1, Relaxed) == 0;
            async move {
                if hang {
                    pending::<()>().await;
                }
                Ok(())
            }
        })
        .await;
    (result, attempts.load(Relaxed))
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_write_is_not_sent_again_but_reads_and_idempotent_writes_are() {
    let gate = gate();
    for op in [Op::Get, Op::Put] {
        let (result, attempts) = hangs_once(&gate, op).await;
        result.unwrap();
        assert_eq!(attempts, 2, "{op:?}");
    }
    let (result, attempts) = hangs_once(&gate, Op::Post).await;
    let error = result.unwrap_err();
    assert_eq!(attempts, 1);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.outcome(), RequestOutcome::Unknown);
    assert_eq!(error.retry(), Retry::Never);
    assert_eq!(error.to_string(), "thing_post: no answer within 10s");
}

#[tokio::test(start_paused = true)]
async fn retries_depend_on_the_error_and_the_effect_of_the_call() {
    let unavailable = || Error::new(ErrorKind::Unavailable, "down");
    let broken = || Error::new(ErrorKind::Unavailable, "broken").with_outcome(RequestOutcome::Unknown);
    let limited = || Error::new(ErrorKind::RateLimited, "slow down");
    let absent = || Error::new(ErrorKind::NotFound, "no such thing");
    let final_ = || Error::new(ErrorKind::RateLimited, "slow down").with_retry(Retry::Never);
    let gateway = || Error::new(ErrorKind::Timeout, "gateway timeout");
    type MakeError = fn() -> Error;
    let cases: [(&str, MakeError, [u32; 3]); 6] = [
        // Attempts of get, put, post.
        ("unavailable", unavailable, [2, 2, 1]),
        ("connection broke after sending", broken, [2, 2, 1]),
        ("rate limited", limited, [2, 2, 2]),
        ("not found", absent, [1, 1, 1]),
        ("rate limited permanently", final_, [1, 1, 1]),
        ("timeout on the other side", gateway, [2, 2, 1]),
    ];
    for (name, error, expected) in cases {
        let gate = gate();
        for (op, expected) in [Op::Get, Op::Put, Op::Post].into_iter().zip(expected) {
            let (result, attempts) = fails_once(&gate, op, error).await;
            assert_eq!(attempts, expected, "{name}: {op:?}");
            assert_eq!(result.is_ok(), expected == 2, "{name}: {op:?}");
        }
    }
    let (result, _) = fails_once(&gate(), Op::Post, unavailable).await;
    assert_eq!(
        result.unwrap_err().outcome(),
        RequestOutcome::NotDone,
        "the error has the outcome of a refusal"
    );
    let (result, _) = fails_once(&gate(), Op::Post, gateway).await;
    assert_eq!(result.unwrap_err().outcome(), RequestOutcome::Unknown, "a write without an answer");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_may_have_been_done_once_stays_unknown_whatever_follows() {
    let attempts = AtomicU32::new(0);
    let error = gate()
        .call(Op::Put, Priority::User, || {
            let first = attempts.fetch_add(1, Relaxed) == 0;
            async move {
                if first {
                    pending::<()>().await;
                }
                Err::<(), _>(Error::new(ErrorKind::PermissionDenied, "forbidden"))
            }
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(error.outcome(), RequestOutcome::Unknown);
    assert_eq!(error.to_string(), "thing_put: forbidden (attempts=2)");
}

#[tokio::test(start_paused = true)]
async fn retry_after_applies_to_the_call_and_to_the_bucket() {
    let gate = gate();
    let limited =
        || Error::new(ErrorKind::RateLimited, "slow down").with_retry(Retry::After(Duration::from_secs(30)));
    let began = Instant::now();
    let other = async {
        sleep(Duration::from_millis(1)).await;
        gate.call(Op::Get, Priority::User, async || Ok(())).await.unwrap();
        began.elapsed()
    };
    let ((result, attempts), other) = tokio::join!(fails_once(&gate, Op::Post, limited), other);
    result.unwrap();
    assert_eq!(attempts, 2);
    for elapsed in [began.elapsed(), other] {
        assert!((30..=32).contains(&elapsed.as_secs()), "{elapsed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_beyond_the_deadline_is_reported_at_once() {
    let limited = || {
        Error::new(ErrorKind::RateLimited, "slow down")
            .with_retry(Retry::After(Duration::from_secs(u64::MAX)))
    };
    let began = Instant::now();
    let (result, attempts) = fails_once(&gate(), Op::Get, limited).await;
    assert_eq!(attempts, 1);
    assert_eq!(result.unwrap_err().retry(), Retry::After(Duration::from_secs(u64::MAX)));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_and_limited() {
    let attempts = AtomicU32::new(0);
    let error = gate()
        .call(Op::Get, Priority::User, || {
            attempts.fetch_add(1, Relaxed);
            async {
                Err::<(), _>(Error::new(ErrorKind::Unavailable, "down").with_context("request_id", "r1"))
            }
        })
        .await
        .unwrap_err();
    assert_eq!(attempts.load(Relaxed), 5);
    assert_eq!(error.to_string(), "thing_get: down (request_id=r1, attempts=5)");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_not_extended_by_waiting_for_quota() {
    let gate = Gate::new(
        GateConfig {
            buckets: vec![(
                "things",
                Quota {
                    rate: 0.001,
                    burst: 1,
                    max_in_flight: 1,
                },
            )],
            ..config()
        },
        &ClientMetrics::default(),
    );
    gate.call(Op::Get, Priority::User, async || Ok(())).await.unwrap();
    for op in [Op::Get, Op::Post] {
        let began = Instant::now();
        let error = gate.call(op, Priority::User, async || Ok(())).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 100);
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(error.outcome(), RequestOutcome::NotDone, "it was never sent");
        assert!(
            error
                .to_string()
                .ends_with("gave up after 100s, waiting for the cloud's quota (bucket=things)"),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_cuts_an_attempt_and_names_the_error_before_it() {
    let attempts = AtomicU32::new(0);
    let began = Instant::now();
    let config = GateConfig {
        attempt_timeout: Duration::from_secs(60),
        deadline: Duration::from_secs(15),
        ..config()
    };
    let error = Gate::new(config, &ClientMetrics::default())
        .call(Op::Get, Priority::User, || {
            let first = attempts.fetch_add(1, Relaxed) == 0;
            async move {
                if first {
                    return Err(Error::new(ErrorKind::Unavailable, "connection refused"));
                }
                pending::<Result<()>>().await
            }
        })
        .await
        .unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 15);
    assert_eq!(
        error.report(),
        "thing_get: gave up after 15s, waiting for the answer (attempts=2): thing_get: connection refused"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_may_have_an_attempt_timeout_of_its_own() {
    let gate = gate();
    let slow = || async {
        sleep(Duration::from_secs(40)).await;
        Ok(())
    };
    assert!(gate.call(Op::Post, Priority::User, slow).await.is_err());
    let options = CallOptions {
        priority: Priority::User,
        timeout: Some(Duration::from_secs(60)),
    };
    gate.call(Op::Post, options, slow).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_attempt_spends_a_token_and_no_more_than_the_limit_are_in_flight() {
    let gate = gate();
    let (in_flight, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let began = Instant::now();
    join_all((0..60).map(|_| {
        gate.call(Op::Get, Priority::User, async || {
            most.fetch_max(in_flight.fetch_add(1, Relaxed) + 1, Relaxed);
            sleep(Duration::from_millis(10)).await;
            in_flight.fetch_sub(1, Relaxed);
            Ok(())
        })
    }))
    .await;
    assert_eq!(most.load(Relaxed), 4);
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "20 at once, 40 at 10 per second: {:?}",
        began.elapsed()
    );
    assert!(gate.bucket("things").state().tokens < 1.0);

    let spent = Gate::new(config(), &ClientMetrics::default());
    let unavailable = || Error::new(ErrorKind::RateLimited, "slow down");
    fails_once(&spent, Op::Get, unavailable).await.0.unwrap();
    assert_eq!(spent.bucket("things").state().rate, 5.0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_returns_its_slot() {
    let gate = gate();
    for _ in 0..10 {
        let call = gate.call(Op::Post, Priority::User, pending::<Result<()>>);
        assert!(call.now_or_never().is_none());
    }
    assert_eq!(gate.bucket("things").state().in_flight, 0);
    gate.call(Op::Post, Priority::User, async || Ok(())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn while_few_requests_remain_background_work_sends_one_call_a_minute() {
    let gate = gate();
    gate.bucket("things").observe_remaining(400, 5000, None);
    let background = async || gate.call(Op::Get, Priority::Background, async || Ok(())).await;
    assert_eq!(background().await.unwrap_err().kind(), ErrorKind::RateLimited);
    gate.call(Op::Get, Priority::User, async || Ok(())).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    let passed: Vec<_> = join_all((0..5).map(|_| background())).await;
    assert_eq!(passed.iter().filter(|call| call.is_ok()).count(), 1);
    gate.bucket("things").observe_remaining(4000, 5000, None);
    background().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted() {
    let mut registry = Registry::default();
    let metrics = ClientMetrics::register(&mut registry);
    let gate = Gate::new(config(), &metrics);
    fails_once(&gate, Op::Get, || Error::new(ErrorKind::RateLimited, "slow down"))
        .await
        .0
        .unwrap();
    assert!(
        fails_once(&gate, Op::Post, || Error::new(ErrorKind::NotFound, "not found"))
            .await
            .0
            .is_err()
    );
    assert!(gate.call(Op::Put, Priority::Background, pending::<Result<()>>).now_or_never().is_none());

    // A bucket that waits: the gauges show it as it is when they are read.
    gate.bucket("things")
        .observe_remaining(0, 0, Some(Instant::now() + Duration::from_secs(5)));
    let mut waiting = Box::pin(gate.call(Op::Get, Priority::Background, async || Ok(())));
    assert!((&mut waiting).now_or_never().is_none());
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        r#"ccm_cloud_calls_total{provider="acme",op="thing_get",result="ok"} 1"#,
        r#"ccm_cloud_calls_total{provider="acme",op="thing_post",result="error"} 1"#,
        r#"ccm_cloud_calls_total{provider="acme",op="thing_put",result="cancelled"} 1"#,
        r#"ccm_cloud_call_duration_seconds_count{provider="acme",op="thing_get"} 1"#,
        r#"ccm_cloud_errors_total{provider="acme",op="thing_get",kind="RateLimited"} 1"#,
        r#"ccm_cloud_errors_total{provider="acme",op="thing_post",kind="NotFound"} 1"#,
        r#"ccm_cloud_retries_total{provider="acme",op="thing_get"} 1"#,
        r#"ccm_cloud_throttles_total{provider="acme",bucket="things"} 1"#,
        r#"ccm_cloud_wait_seconds_count{provider="acme",bucket="things",priority="user"} 3"#,
        r#"ccm_cloud_bucket_tokens{provider="acme",bucket="things"} 0.0"#,
        r#"ccm_cloud_bucket_rate{provider="acme",bucket="things"} 5.0"#,
        r#"ccm_cloud_bucket_in_flight{provider="acme",bucket="things"} 0.0"#,
        r#"ccm_cloud_bucket_waiting{provider="acme",bucket="things",priority="background"} 1"#,
    ] {
        assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
    }
    waiting.await.unwrap();

    // A provider that is built again: the newer bucket is shown, once.
    let again = Gate::new(config(), &metrics);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert_eq!(text.matches("ccm_cloud_bucket_rate{").count(), 1, "{text}");
    assert!(text.contains(r#"ccm_cloud_bucket_rate{provider="acme",bucket="things"} 10.0"#), "{text}");
    drop(again);
}

#[test]
fn a_call_can_be_spawned() {
    fn spawnable(_: impl Send + 'static) {}
    let gate = gate();
    spawnable(async move { gate.call(Op::Get, Priority::User, || async { Ok(()) }).await });
}
