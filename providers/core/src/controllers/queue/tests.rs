use super::*;

fn queue() -> WorkQueue<&'static str> {
    let backoff = Backoff {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(8),
    };
    WorkQueue::new(backoff, "test", &QueueMetrics::default())
}

#[tokio::test(start_paused = true)]
async fn a_key_added_several_times_is_queued_once() {
    let queue = queue();
    for _ in 0..3 {
        queue.add("a");
    }
    queue.add("b");
    assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
    assert_eq!(queue.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn keys_that_users_wait_for_are_processed_first() {
    let queue = queue();
    queue.add("working");
    queue.next().await;
    for key in ["a", "b", "c"] {
        queue.add(key);
    }
    for key in ["c", "new", "working"] {
        queue.add_first(key);
    }
    queue.done(&"working");
    assert_eq!(queue.len(), 5);
    for expected in ["c", "new", "working", "a", "b"] {
        assert_eq!(queue.next().await, expected);
    }
    // The place is kept while the work is not complete.
    let now = Instant::now();
    queue.done_until(&"c", now);
    queue.renamed_until(&"new", "renamed", now);
    queue.done(&"working");
    for key in ["d", "working"] {
        queue.add(key);
    }
    for expected in ["c", "renamed", "d", "working"] {
        assert_eq!(queue.next().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn work_before_a_retry_keeps_its_time() {
    let queue = queue();
    queue.add("a");
    for expected in 1..=2 {
        queue.next().await;
        queue.done_with_backoff(&"a");
        assert_eq!(queue.failures(&"a"), expected);
    }
    let failed = Instant::now();
    for _ in 0..5 {
        tokio::time::advance(Duration::from_millis(100)).await;
        queue.add_first("a");
        queue.next().await;
        queue.done_until_retry(&"a");
    }
    queue.next().await;
    let waited = failed.elapsed();
    assert!(
        waited >= Duration::from_millis(1600) && waited <= Duration::from_millis(2010),
        "{waited:?}"
    );
    assert_eq!(queue.failures(&"a"), 2, "no failure is added");
}

#[tokio::test(start_paused = true)]
async fn a_key_added_during_processing_is_requeued_once() {
    let queue = queue();
    queue.add("a");
    assert_eq!(queue.next().await, "a");
    queue.add("a");
    queue.add("a");
    assert_eq!(queue.len(), 0, "no other worker gets it");
    queue.done(&"a");
    assert_eq!(queue.next().await, "a");
    queue.done(&"a");
    assert_eq!(queue.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_the_cloud_is_raised_to_the_backoff_and_cannot_overflow() {
    let queue = queue();
    queue.add("a");
    // Backoff alone would be 1, 2 and 4 s.
    for (least, expected) in [(0.0, 0.8..=1.0), (5.0, 5.0..=5.1), (1.0, 3.2..=4.0)] {
        assert_eq!(queue.next().await, "a");
        let least = Duration::from_secs_f64(least);
        let wait = queue.done_with_backoff_of_at_least(&"a", least).as_secs_f64();
        assert!(expected.contains(&wait), "{least:?}: {wait}");
    }
    assert_eq!(queue.next().await, "a");
    queue.done_with_backoff_of_at_least(&"a", Duration::MAX);
    assert_eq!(queue.depth(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn waits_longer_after_every_failure_up_to_the_longest() {
    let queue = queue();
    queue.add("a");
    for expected in [1.0, 2.0, 4.0, 8.0, 8.0] {
        assert_eq!(queue.next().await, "a");
        let began = Instant::now();
        queue.done_with_backoff(&"a");
        assert_eq!(queue.next().await, "a");
        let waited = began.elapsed().as_secs_f64();
        assert!((0.79 * expected..=1.01 * expected).contains(&waited), "{waited} is not {expected}");
        queue.add("a");
        queue.finish(&"a", Some(Duration::ZERO));
    }
    assert_eq!(queue.failures(&"a"), 5);
    queue.next().await;
    queue.done(&"a");
    assert_eq!(queue.failures(&"a"), 0, "success resets the failures");
}

#[tokio::test(start_paused = true)]
async fn a_change_ends_the_wait_only_with_add() {
    let queue = queue();
    queue.add("a");
    queue.next().await;
    queue.done_with_backoff(&"a");
    queue.add_unless_waiting("a");
    assert!(tokio::time::timeout(Duration::from_millis(1), queue.next()).await.is_err());
    queue.add("a");
    assert_eq!(queue.next().await, "a");
    assert_eq!(queue.failures(&"a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_a_failure_does_not_grow() {
    let queue = queue();
    queue.add("a");
    for _ in 0..3 {
        assert_eq!(queue.next().await, "a");
        let began = Instant::now();
        queue.done_until(&"a", began + Duration::from_secs(42));
        assert_eq!(queue.depth(), (0, 1));
        assert_eq!(queue.next().await, "a");
        assert_eq!(began.elapsed().as_secs(), 42);
        assert_eq!(queue.failures(&"a"), 0);
        queue.add("a");
        queue.done(&"a");
    }
}

#[tokio::test(start_paused = true)]
async fn the_sooner_of_two_times_is_used() {
    let queue = queue();
    let now = Instant::now();
    for seconds in [9, 5, 7] {
        queue.add_at("a", now + Duration::from_secs(seconds));
    }
    assert_eq!(queue.next().await, "a");
    assert_eq!(now.elapsed().as_secs(), 5);
    // A time for a key that is being processed: it is ready immediately afterwards.
    queue.add_at("a", now + Duration::from_secs(60));
    queue.done(&"a");
    assert_eq!(queue.next().await, "a");
    assert_eq!(now.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn many_workers_share_it() {
    let backoff = Backoff {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(1),
    };
    let queue = Arc::new(WorkQueue::new(backoff, "test", &QueueMetrics::default()));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    let key: String = queue.next().await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    queue.done(&key);
                }
            })
        })
        .collect();
    for i in 0..100 {
        queue.add(format!("key-{i}"));
    }
    for worker in workers {
        assert!(
            tokio::time::timeout(Duration::from_secs(5), worker)
                .await
                .is_ok_and(|joined| joined.is_ok())
        );
    }
    assert_eq!(queue.len(), 0);
}
