//! The batcher: windows, limits, results of items, cancelled waiters. The clock is paused.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, RequestOutcome, Result,
    client::{BatchConfig, Batcher, ClientMetrics},
};
use futures_util::{FutureExt, future::join_all};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use proptest::prelude::*;
use tokio::{
    sync::Semaphore,
    task::yield_now,
    time::{Instant, sleep, timeout},
};

const MS: Duration = Duration::from_millis(1);

fn config() -> BatchConfig {
    BatchConfig {
        idle: 10 * MS,
        window: 35 * MS,
        max_items: 5,
        max_concurrent: 2,
        ..BatchConfig::new("things")
    }
}

/// When a batch began, and its items.
type Executed = (Instant, Vec<u32>);

/// The executed batches.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Executed>>>);

impl Log {
    fn batches(&self) -> Vec<Vec<u32>> {
        self.0.lock().iter().map(|(_, items)| items.clone()).collect()
    }
}

/// Answers with ten times the item, or an error for the item 13. Each batch takes the given time.
fn batcher(config: BatchConfig, takes: Duration) -> (Batcher<u32, u32>, Log) {
    let log = Log::default();
    let executed = log.clone();
    let batcher = Batcher::new(config, &ClientMetrics::default(), move |items: Vec<u32>| {
        executed.0.lock().push((Instant::now(), items.clone()));
        async move {
            sleep(takes).await;
            items.into_iter().map(answer).collect()
        }
    });
    (batcher, log)
}

fn answer(item: u32) -> Result<u32> {
    if item == 13 {
        Err(Error::new(ErrorKind::NotFound, "no such thing"))
    } else {
        Ok(item * 10)
    }
}

async fn settle() {
    for _ in 0..50 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn items_close_to_each_other_go_together() {
    let mut registry = Registry::default();
    let metrics = ClientMetrics::register(&mut registry);
    let batcher =
        Batcher::new(config(), &metrics, |items: Vec<u32>| async { items.into_iter().map(answer).collect() });
    let began = Instant::now();
    let results = join_all((1..=4).map(|item| batcher.submit(item))).await;
    assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [10, 20, 30, 40]);
    assert_eq!(began.elapsed(), 10 * MS, "the idle window");
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains(r#"ccm_cloud_batch_size_sum{name="things"} 4.0"#), "{text}");
    assert!(text.contains(r#"ccm_cloud_batch_size_count{name="things"} 1"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_steady_trickle_is_cut_by_the_window() {
    let (batcher, log) = batcher(
        BatchConfig {
            max_items: 100,
            ..config()
        },
        Duration::ZERO,
    );
    let began = Instant::now();
    join_all((0..20).map(|n| {
        let batcher = &batcher;
        async move {
            sleep(n * 6 * MS).await;
            batcher.submit(n).await
        }
    }))
    .await;
    let closed: Vec<_> =
        log.0.lock().iter().map(|(at, items)| ((*at - began).as_millis(), items.len())).collect();
    // Opened by the item at 0, 36 and 72 ms; the last one, opened at 108 ms, is closed by the idle window.
    assert_eq!(closed, [(35, 6), (71, 6), (107, 6), (124, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_does_not_wait() {
    let (batcher, log) = batcher(config(), Duration::ZERO);
    let began = Instant::now();
    let submitted = join_all((0..10).map(|item| batcher.submit(item)));
    submitted.await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(log.batches(), [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]]);
}

#[tokio::test(start_paused = true)]
async fn one_items_failure_stays_its_own() {
    let (batcher, log) = batcher(config(), Duration::ZERO);
    let results = join_all([12, 13, 14].map(|item| batcher.submit(item))).await;
    assert_eq!(log.batches(), [[12, 13, 14]]);
    assert_eq!(results[0].as_ref().unwrap(), &120);
    assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(results[2].as_ref().unwrap(), &140);
}

#[tokio::test(start_paused = true)]
async fn batches_run_side_by_side_up_to_a_limit_and_fill_up_while_they_wait() {
    let (batcher, log) = batcher(config(), Duration::from_secs(1));
    let waves = (0..4).map(|wave| {
        let batcher = &batcher;
        async move {
            sleep(wave * 100 * MS).await;
            join_all((0..2).map(|item| batcher.submit(wave * 10 + item))).await
        }
    });
    let began = Instant::now();
    join_all(waves).await;
    assert_eq!(log.batches(), [vec![0, 1], vec![10, 11], vec![20, 21, 30, 31]]);
    assert_eq!(
        log.0.lock().iter().map(|(at, _)| (*at - began).as_millis()).collect::<Vec<_>>(),
        [10, 110, 1010]
    );
}

#[tokio::test(start_paused = true)]
async fn an_item_whose_caller_leaves_before_the_batch_begins_is_not_sent() {
    let (batcher, log) = batcher(config(), Duration::ZERO);
    let mut leaves = Box::pin(batcher.submit(1));
    assert!((&mut leaves).now_or_never().is_none());
    let mut stays = Box::pin(batcher.submit(2));
    assert!((&mut stays).now_or_never().is_none());
    drop(leaves);
    assert_eq!(stays.await.unwrap(), 20);
    assert_eq!(log.batches(), [[2]]);

    let leaves = batcher.submit(3).now_or_never();
    assert!(leaves.is_none());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(log.batches().len(), 1, "an empty batch is not sent");
    assert_eq!(batcher.submit(4).await.unwrap(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_afterwards_does_not_cancel_the_batch() {
    let gate = Arc::new(Semaphore::new(0));
    let done = Arc::new(Mutex::new(Vec::new()));
    let (go, finished) = (Arc::clone(&gate), Arc::clone(&done));
    let batcher = Batcher::new(config(), &ClientMetrics::default(), move |items: Vec<u32>| {
        let (go, finished) = (Arc::clone(&go), Arc::clone(&finished));
        async move {
            drop(go.acquire().await.unwrap());
            finished.lock().extend(items.iter().copied());
            items.into_iter().map(answer).collect()
        }
    });
    let mut leaves = Box::pin(batcher.submit(1));
    assert!((&mut leaves).now_or_never().is_none());
    assert!(timeout(50 * MS, leaves).await.is_err());
    gate.add_permits(1);
    settle().await;
    assert_eq!(*done.lock(), [1]);
}

#[tokio::test(start_paused = true)]
async fn missing_results_are_errors_of_the_items_without_one() {
    let batcher = Batcher::new(config(), &ClientMetrics::default(), |items: Vec<u32>| async move {
        items.into_iter().take(2).map(answer).collect()
    });
    let results = join_all((1..=4).map(|item| batcher.submit(item))).await;
    assert_eq!(results[1].as_ref().unwrap(), &20);
    for missing in &results[2..] {
        let error = missing.as_ref().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unexpected, RequestOutcome::Unknown));
    }
}

#[tokio::test(start_paused = true)]
async fn results_too_many_are_ignored() {
    let batcher = Batcher::new(config(), &ClientMetrics::default(), |items: Vec<u32>| async move {
        items.into_iter().chain([7]).map(answer).collect()
    });
    assert_eq!(batcher.submit(1).await.unwrap(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_error_of_its_batch_alone() {
    let config = BatchConfig {
        max_concurrent: 1,
        ..config()
    };
    let batcher = Batcher::new(config, &ClientMetrics::default(), |items: Vec<u32>| {
        assert!(!items.contains(&13), "on purpose, before there is a future");
        async move {
            assert!(!items.contains(&14), "on purpose, inside of it");
            items.into_iter().map(answer).collect()
        }
    });
    for bad in [13, 14] {
        for result in join_all([1, bad].map(|item| batcher.submit(item))).await {
            assert_eq!(result.unwrap_err().outcome(), RequestOutcome::Unknown);
        }
        assert_eq!(batcher.submit(2).await.unwrap(), 20, "the place was returned");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_item_of_many_threads_gets_its_own_answer() {
    let config = BatchConfig {
        idle: MS,
        window: 5 * MS,
        max_items: 50,
        ..config()
    };
    let (batcher, log) = batcher(config, MS);
    let tasks = (100..5100).map(|item| {
        let batcher = batcher.clone();
        tokio::spawn(async move { assert_eq!(batcher.submit(item).await.unwrap(), item * 10) })
    });
    for task in timeout(Duration::from_secs(60), join_all(tasks)).await.expect("every item has an answer") {
        task.unwrap();
    }
    assert!(log.batches().iter().all(|items| items.len() <= 50));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_item_is_executed_once_within_the_limits(
        arrivals in proptest::collection::vec((0u32..20, prop::bool::weighted(0.15)), 1..100),
        idle in 0u32..20,
        window in 0u32..50,
        max_items in 0usize..10,
        max_concurrent in 0usize..4,
        takes in 0u32..100,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let config = BatchConfig {
                idle: idle * MS,
                window: window * MS,
                max_items,
                max_concurrent,
                ..BatchConfig::new("things")
            };
            let (batcher, log) = batcher(config, takes * MS);
            let mut tasks = Vec::new();
            let count = arrivals.len();
            for (n, (after, leaves)) in arrivals.into_iter().enumerate() {
                sleep(after * MS).await;
                let batcher = batcher.clone();
                let item = 100 + u32::try_from(n).unwrap();
                tasks.push(tokio::spawn(async move {
                    if leaves {
                        // Each item gets its own result.
                        let result = timeout(5 * MS, batcher.submit(item)).await;
                        assert!(result.is_err() || result.unwrap().unwrap() == item * 10);
                    } else {
                        assert_eq!(batcher.submit(item).await.unwrap(), item * 10);
                    }
                    !leaves
                }));
            }
            let mut stayed = Vec::new();
            for (n, task) in join_all(tasks).await.into_iter().enumerate() {
                if task.unwrap() {
                    stayed.push(100 + u32::try_from(n).unwrap());
                }
            }
            let batches = log.0.lock().clone();
            assert!(batches.iter().all(|(_, items)| (1..=max_items.max(1)).contains(&items.len())));
            let mut executed: Vec<_> = batches.iter().flat_map(|(_, items)| items.clone()).collect();
            assert!(executed.is_sorted(), "first come, first served");
            assert!(executed.len() <= count);
            executed.dedup();
            assert_eq!(executed.len(), batches.iter().map(|(_, items)| items.len()).sum::<usize>(), "none twice");
            executed.retain(|item| stayed.contains(item));
            assert_eq!(executed, stayed);
            // The number of running batches at each start.
            for (at, _) in &batches {
                let running = batches.iter().filter(|(began, _)| began <= at && *at < *began + takes * MS).count();
                assert!(running <= max_concurrent.max(1));
            }
        });
    }
}
