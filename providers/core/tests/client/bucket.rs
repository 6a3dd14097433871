//! Quota buckets: two priorities, adaptation to throttle replies, cancelled waiters. The clock is paused.

mod arrivals;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    Priority,
    client::{Bucket, Permit, Quota, Refill},
};
use futures_util::{FutureExt, future::join_all};
use parking_lot::Mutex;
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, advance, sleep, timeout},
};

fn quota(rate: f64, burst: u32, max_in_flight: u32) -> Quota {
    Quota {
        rate,
        burst,
        max_in_flight,
    }
}

/// Takes a permit and uses it.
async fn send(bucket: &Bucket, priority: Priority) -> Permit {
    let mut permit = bucket.acquire(priority).await;
    permit.begin();
    permit
}

/// Queues up one after another; each records its number when it is served.
fn queue(bucket: &Bucket, priority: Priority, number: u32, served: &Arc<Mutex<Vec<u32>>>) -> JoinHandle<()> {
    let (bucket, served) = (bucket.clone(), Arc::clone(served));
    tokio::spawn(async move {
        drop(send(&bucket, priority).await);
        served.lock().push(number);
    })
}

/// Lets every task run until it waits.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_sets_the_share_of_users() {
    for (share, expected) in [(0.5, 5), (0.0, 9), (1.0, 1)] {
        let bucket = Bucket::reserving(quota(0.001, 10, 100), share);
        let served = Arc::default();
        let waiting: Vec<_> = (0..20).map(|n| queue(&bucket, Priority::Background, n, &served)).collect();
        settle().await;
        assert_eq!(served.lock().len(), expected, "{share}");
        drop(waiting);
    }
}

#[tokio::test(start_paused = true)]
async fn background_leaves_a_reserve_for_users() {
    let bucket = Bucket::new(quota(10.0, 10, 100));
    let served = Arc::default();
    let waiting: Vec<_> = (0..100).map(|n| queue(&bucket, Priority::Background, n, &served)).collect();
    settle().await;
    assert_eq!(served.lock().len(), 8, "a fifth of the burst stays");
    assert_eq!(bucket.state().waiting_background, 92);

    let began = Instant::now();
    for _ in 0..2 {
        drop(send(&bucket, Priority::User).await);
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "the reserve is left to users");

    join_all(waiting).await;
    assert!(
        bucket.state().tokens >= 2.0 - 1e-3,
        "the last of them left the reserve, too: {:?}",
        bucket.state()
    );
}

#[tokio::test(start_paused = true)]
async fn background_leaves_slots_for_users() {
    let bucket = Bucket::new(quota(1000.0, 1000, 8));
    let mut permits = Vec::new();
    while let Some(permit) = send(&bucket, Priority::Background).now_or_never() {
        permits.push(permit);
    }
    assert_eq!(permits.len(), 6);
    while let Some(permit) = send(&bucket, Priority::User).now_or_never() {
        permits.push(permit);
    }
    assert_eq!(permits.len(), 8);

    // A free slot goes to a user who came later, and background goes when a fifth of the slots is free again.
    let served = Arc::default();
    let background = queue(&bucket, Priority::Background, 1, &served);
    settle().await;
    let user = queue(&bucket, Priority::User, 2, &served);
    settle().await;
    permits.truncate(7);
    user.await.unwrap();
    assert_eq!(*served.lock(), [2]);
    permits.truncate(5);
    background.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_smallest_quota_still_lets_background_through() {
    for quota in [
        quota(1.0, 1, 1),
        quota(0.0, 0, 0),
        quota(f64::NAN, 2, 2),
        quota(f64::INFINITY, 2, 1),
    ] {
        let bucket = Bucket::new(quota);
        for _ in 0..3 {
            timeout(Duration::from_secs(7200), send(&bucket, Priority::Background))
                .await
                .unwrap()
                .accepted();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn users_overtake_background_and_each_priority_keeps_its_order() {
    let bucket = Bucket::new(quota(1.0, 1, 1));
    drop(send(&bucket, Priority::User).await);
    let served = Arc::default();
    let mut waiting = Vec::new();
    for (number, priority) in [
        (11, Priority::Background),
        (12, Priority::Background),
        (1, Priority::User),
        (13, Priority::Background),
        (2, Priority::User),
    ] {
        waiting.push(queue(&bucket, priority, number, &served));
        settle().await;
    }
    join_all(waiting).await;
    assert_eq!(*served.lock(), [1, 2, 11, 12, 13]);
}

#[tokio::test(start_paused = true)]
async fn a_new_call_does_not_take_the_token_that_others_wait_for() {
    for (first, newcomer) in [
        (Priority::User, Priority::User),
        (Priority::User, Priority::Background),
        (Priority::Background, Priority::Background),
    ] {
        let bucket = Bucket::new(quota(1.0, 1, 100));
        drop(send(&bucket, Priority::User).await);
        let mut first = Box::pin(send(&bucket, first));
        assert!((&mut first).now_or_never().is_none());
        // After the next token is available and before any timer has fired.
        let mut late = Box::pin(async {
            let late = bucket.acquire(newcomer);
            let mut advanced = Box::pin(advance(Duration::from_secs(1)));
            assert!((&mut advanced).now_or_never().is_none());
            late.now_or_never()
        });
        assert!((&mut late).now_or_never().flatten().is_none(), "{newcomer:?}");
        drop(late);
        timeout(Duration::from_millis(10), first).await.unwrap().accepted();
    }
}

#[tokio::test(start_paused = true)]
async fn background_makes_progress_beside_steady_users() {
    let bucket = Bucket::new(quota(10.0, 10, 8));
    let users = bucket.clone();
    let users = tokio::spawn(async move {
        loop {
            // Half of what refills.
            drop(send(&users, Priority::User).await);
            sleep(Duration::from_millis(200)).await;
        }
    });
    let began = Instant::now();
    for _ in 0..50 {
        drop(send(&bucket, Priority::Background).await);
    }
    users.abort();
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn retry_after_pauses_all_calls_and_ends_with_a_single_request() {
    let bucket = Bucket::new(quota(10.0, 50, 8));
    send(&bucket, Priority::User).await.throttled(Some(Duration::from_secs(7)));
    assert_eq!(bucket.state().tokens, 0.0);
    let began = Instant::now();
    let sent = join_all((0..3).map(|_| async {
        drop(send(&bucket, Priority::User).await);
        began.elapsed().as_millis()
    }))
    .await;
    // The rate is halved: one every 200 ms.
    for (sent, expected) in sent.iter().zip([7000, 7200, 7400]) {
        assert!((expected..expected + 5).contains(sent), "{sent} not about {expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_absurd_retry_after_is_cut() {
    let bucket = Bucket::new(Quota::default());
    send(&bucket, Priority::User).await.throttled(Some(Duration::MAX));
    let began = Instant::now();
    drop(send(&bucket, Priority::User).await);
    assert!(began.elapsed() < Duration::from_secs(301), "{:?}", began.elapsed());
    assert!(began.elapsed() >= Duration::from_secs(300));
}

#[tokio::test(start_paused = true)]
async fn a_throttle_halves_the_rate_once_per_wave_down_to_a_floor() {
    let bucket = Bucket::new(quota(20.0, 50, 8));
    let mut wave = Vec::new();
    for _ in 0..8 {
        wave.push(send(&bucket, Priority::User).await);
    }
    for permit in wave {
        permit.throttled(None);
    }
    assert_eq!(bucket.state().rate, 10.0);
    assert_eq!(bucket.state().tokens, 0.0, "no second burst into a cloud that has just refused");
    for _ in 0..20 {
        send(&bucket, Priority::User).await.throttled(None);
    }
    assert_eq!(bucket.state().rate, 1.0);
}

#[tokio::test(start_paused = true)]
async fn accepted_requests_restore_the_rate_slowly() {
    let bucket = Bucket::new(quota(20.0, 50, 8));
    let old = send(&bucket, Priority::User).await;
    send(&bucket, Priority::User).await.throttled(None);
    advance(Duration::from_secs(10)).await;
    old.accepted();
    assert_eq!(bucket.state().rate, 10.0, "it was sent before the throttle and has no information");

    let began = Instant::now();
    let mut before = 10.0;
    while bucket.state().rate < 20.0 {
        send(&bucket, Priority::User).await.accepted();
        let rate = bucket.state().rate;
        assert!(rate - before <= 0.2 + 1e-9, "small steps");
        before = rate;
        assert!(began.elapsed() < Duration::from_secs(60), "restored after a minute");
    }
    assert!(began.elapsed() >= Duration::from_secs(45), "{:?}", began.elapsed());
    advance(Duration::from_secs(10)).await;
    send(&bucket, Priority::User).await.accepted();
    assert_eq!(bucket.state().rate, 20.0, "never above the configured rate");
}

#[tokio::test(start_paused = true)]
async fn a_remaining_quota_is_spread_until_its_reset() {
    let bucket = Bucket::new(quota(20.0, 50, 100));
    bucket.observe_remaining(10, 10, Some(Instant::now() + Duration::from_secs(60)));
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < Duration::from_secs(60) {
        drop(send(&bucket, Priority::User).await);
        sent += 1;
    }
    assert_eq!(sent, 11, "ten before the reset, one after it");
    drop(send(&bucket, Priority::User).await);
    assert!(began.elapsed() < Duration::from_secs(61), "the reset brings the rate back");

    bucket.observe_remaining(0, 0, Some(Instant::now() + Duration::from_secs(30)));
    let began = Instant::now();
    drop(send(&bucket, Priority::User).await);
    assert!(began.elapsed() >= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_new_quota_applies_at_once_and_keeps_the_learned_rate() {
    let bucket = Bucket::new(quota(0.01, 1, 1));
    drop(send(&bucket, Priority::User).await);
    let served = Arc::default();
    let waiting: Vec<_> = (0..5).map(|n| queue(&bucket, Priority::User, n, &served)).collect();
    settle().await;
    // With the old quota, the calls would wait for minutes.
    bucket.set_quota(quota(10.0, 5, 2));
    let began = Instant::now();
    join_all(waiting).await;
    assert!(began.elapsed() <= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(*served.lock(), [0, 1, 2, 3, 4]);

    let (first, second) = (send(&bucket, Priority::User).await, send(&bucket, Priority::User).await);
    assert!(bucket.acquire(Priority::User).now_or_never().is_none(), "two slots");
    first.throttled(None);
    drop(second);
    assert!((bucket.state().rate - 5.0).abs() < 1e-6, "half of the quota");
    bucket.set_quota(quota(100.0, 50, 1));
    assert!((bucket.state().rate - 50.0).abs() < 1e-6, "half of the other quota");
    advance(Duration::from_secs(10)).await;
    assert!((bucket.state().tokens - 50.0).abs() < 1e-6);
    bucket.set_quota(quota(100.0, 60, 1));
    assert!((bucket.state().tokens - 60.0).abs() < 1e-6, "full stays full");
    bucket.set_quota(quota(100.0, 3, 1));
    assert!((bucket.state().tokens - 3.0).abs() < 1e-6);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_leaves_the_queue_delays_no_other() {
    let bucket = Bucket::new(quota(1.0, 1, 1));
    drop(send(&bucket, Priority::User).await);
    let served = Arc::default();
    let leaving: Vec<_> = (0..10).map(|n| queue(&bucket, Priority::User, n, &served)).collect();
    settle().await;
    let staying = queue(&bucket, Priority::User, 99, &served);
    settle().await;
    assert_eq!(bucket.state().waiting_user, 11);
    for task in leaving {
        task.abort();
    }
    let began = Instant::now();
    staying.await.unwrap();
    assert_eq!(*served.lock(), [99]);
    assert!(began.elapsed() <= Duration::from_millis(1001), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_unused_permit_returns_its_token() {
    let bucket = Bucket::new(quota(0.01, 2, 2));
    drop(bucket.acquire(Priority::User).await);
    assert!(bucket.state().tokens > 1.999);
    drop(send(&bucket, Priority::User).await);
    assert!(bucket.state().tokens < 1.001);
    assert_eq!(bucket.state().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_not_taken_goes_to_the_next_call() {
    let bucket = Bucket::new(quota(0.001, 1, 1));
    let permit = bucket.acquire(Priority::User).await;
    let mut first = Box::pin(bucket.acquire(Priority::User));
    assert!((&mut first).now_or_never().is_none());
    let mut second = Box::pin(send(&bucket, Priority::Background));
    assert!((&mut second).now_or_never().is_none());
    drop(permit);
    // The permit is in the channel of the first call, which leaves without reading it.
    drop(first);
    assert!((&mut second).now_or_never().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thousands_of_waiters_on_many_threads_are_all_served() {
    let bucket = Bucket::new(quota(1e6, 10, 5));
    let most = Arc::new(AtomicU32::new(0));
    let now = Arc::new(AtomicU32::new(0));
    let tasks = (0..5000u32).map(|n| {
        let (bucket, most, now) = (bucket.clone(), Arc::clone(&most), Arc::clone(&now));
        tokio::spawn(async move {
            let priority = if n % 2 == 0 {
                Priority::User
            } else {
                Priority::Background
            };
            let permit = send(&bucket, priority).await;
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            permit.accepted();
        })
    });
    timeout(Duration::from_secs(60), join_all(tasks)).await.expect("every call is served");
    assert!(most.load(Ordering::SeqCst) <= 5);
    assert_eq!(bucket.state().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_may_be_refilled_at_each_minute_of_the_clock() {
    let minute = Duration::from_secs(60);
    let bucket = Bucket::refilled(Quota::per_minute(60, 100), 0.5, Refill::EachMinute);
    let served = Arc::default();
    let waiting: Vec<_> = (0..40).map(|n| queue(&bucket, Priority::Background, n, &served)).collect();
    settle().await;
    assert_eq!(served.lock().len(), 30, "the other half is left to users");
    for _ in 0..30 {
        assert!(send(&bucket, Priority::User).now_or_never().is_some(), "{:?}", bucket.state());
    }
    assert!(send(&bucket, Priority::User).now_or_never().is_none(), "{:?}", bucket.state());

    let began = Instant::now();
    join_all(waiting).await;
    assert!(began.elapsed() <= minute, "{:?}", began.elapsed());
    for _ in 0..50 {
        assert!(send(&bucket, Priority::User).now_or_never().is_some(), "nothing came back at once");
    }

    // Other programs used the rest of the minute. The next one begins with half of the quota.
    let began = Instant::now();
    send(&bucket, Priority::User).await.throttled(Some(Duration::from_secs(1)));
    assert!(began.elapsed() <= minute, "{:?}", began.elapsed());
    assert!(send(&bucket, Priority::User).now_or_never().is_none(), "{:?}", bucket.state());
    drop(send(&bucket, Priority::User).await);
    let mut more = 0;
    while send(&bucket, Priority::User).now_or_never().is_some() {
        more += 1;
    }
    assert_eq!(more, 29);
}
