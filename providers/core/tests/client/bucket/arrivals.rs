//! Property tests with random arrivals and results of calls.

use std::{sync::Arc, time::Duration};

use ccm_core::{Priority, client::Bucket};
use futures_util::future::join_all;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::time::{Instant, sleep, timeout};

use super::{quota, send};

/// One caller: the time since the one before, its priority, the duration of its request, and its result.
#[derive(Clone, Debug)]
struct Caller {
    after_ms: u64,
    priority: Priority,
    takes_ms: u64,
    fate: Fate,
}

#[derive(Clone, Debug)]
enum Fate {
    Accepted,
    Throttled(Option<u64>),
    LeavesAfter(u64),
    CancelledInFlight,
}

fn caller() -> impl Strategy<Value = Caller> {
    let fate = prop_oneof![
        6 => Just(Fate::Accepted),
        1 => proptest::option::of(0u64..3_000).prop_map(Fate::Throttled),
        2 => (0u64..500).prop_map(Fate::LeavesAfter),
        1 => Just(Fate::CancelledInFlight),
    ];
    (
        prop_oneof![3 => Just(0u64), 1 => 0u64..300],
        prop_oneof![Just(Priority::User), Just(Priority::Background)],
        0u64..400,
        fate,
    )
        .prop_map(|(after_ms, priority, takes_ms, fate)| Caller {
            after_ms,
            priority,
            takes_ms,
            fate,
        })
}

#[derive(Default)]
struct Log {
    sent: Vec<Instant>,
    in_flight: u32,
    most_in_flight: u32,
    /// When each user arrived, and was served or left.
    users: Vec<(Instant, Instant)>,
    /// When each background request was sent.
    background: Vec<Instant>,
}

async fn call(bucket: Bucket, caller: Caller, log: Arc<Mutex<Log>>) {
    let arrived = Instant::now();
    let patience = match caller.fate {
        Fate::LeavesAfter(ms) => Duration::from_millis(ms),
        _ => Duration::from_secs(100_000),
    };
    let permit = timeout(patience, bucket.acquire(caller.priority)).await;
    let now = Instant::now();
    if caller.priority == Priority::User {
        log.lock().users.push((arrived, now));
    }
    let Ok(mut permit) = permit else {
        return;
    };
    permit.begin();
    {
        let mut log = log.lock();
        log.sent.push(now);
        if caller.priority == Priority::Background {
            log.background.push(now);
        }
        log.in_flight += 1;
        log.most_in_flight = log.most_in_flight.max(log.in_flight);
    }
    sleep(Duration::from_millis(caller.takes_ms)).await;
    log.lock().in_flight -= 1;
    match caller.fate {
        Fate::Accepted | Fate::LeavesAfter(_) => permit.accepted(),
        Fate::Throttled(after) => permit.throttled(after.map(Duration::from_millis)),
        Fate::CancelledInFlight => drop(permit),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_arrivals_stay_within_the_quota_and_are_all_served(
        rate in 1u32..40,
        burst in 1u32..20,
        max_in_flight in 1u32..10,
        callers in proptest::collection::vec(caller(), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let rate = f64::from(rate);
        let (log, state) = runtime.block_on(async {
            let bucket = Bucket::new(quota(rate, burst, max_in_flight));
            let log = Arc::default();
            let mut tasks = Vec::new();
            for caller in callers {
                sleep(Duration::from_millis(caller.after_ms)).await;
                tasks.push(tokio::spawn(call(bucket.clone(), caller, Arc::clone(&log))));
            }
            timeout(Duration::from_secs(100_000), join_all(tasks)).await.expect("every caller is served");
            sleep(Duration::from_secs(1_000)).await;
            (Arc::into_inner(log).map(Mutex::into_inner), bucket.state())
        });
        let log: Log = log.unwrap();
        prop_assert!(log.most_in_flight <= max_in_flight);
        for sent in &log.background {
            let overtaken = log.users.iter().find(|(arrived, ended)| arrived < sent && sent < ended);
            prop_assert!(overtaken.is_none(), "background went at {sent:?} while a user waited: {overtaken:?}");
        }
        for (i, from) in log.sent.iter().enumerate() {
            for (j, to) in log.sent.iter().enumerate().skip(i) {
                let allowed = f64::from(burst) + rate * (*to - *from).as_secs_f64();
                prop_assert!((j - i + 1) as f64 <= allowed + 1e-3, "{} in {:?}", j - i + 1, *to - *from);
            }
        }
        // Nothing leaks: the final state is the initial one.
        prop_assert_eq!((state.in_flight, state.waiting_user, state.waiting_background), (0, 0, 0));
        prop_assert_eq!(state.tokens, f64::from(burst));
    }

    #[test]
    fn background_alone_never_drains_a_bucket(rate in 1u32..40, burst in 2u32..40, max_in_flight in 1u32..50, work in 1usize..200) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let bucket = Bucket::new(quota(rate.into(), burst, max_in_flight));
            let reserve = f64::from(burst.div_ceil(5).min(burst - 1));
            let tasks = (0..work).map(|_| async {
                let permit = send(&bucket, Priority::Background).await;
                let state = bucket.state();
                assert!(state.tokens >= reserve - 1e-3, "{state:?}");
                assert!(max_in_flight == 1 || state.in_flight < max_in_flight, "{state:?}");
                sleep(Duration::from_millis(30)).await;
                permit.accepted();
            });
            join_all(tasks).await;
        });
    }
}
