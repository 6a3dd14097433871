//! The cache: age, single flight, invalidation, failures. The clock is paused.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{Cache, CacheConfig, ClientMetrics, Gate, GateConfig, Quota, operations},
};
use futures_util::{
    FutureExt,
    future::{join, join_all},
};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use proptest::prelude::*;
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, advance, sleep},
};

const SECOND: Duration = Duration::from_secs(1);

fn cache(config: CacheConfig) -> Cache<&'static str, u32> {
    Cache::new(config, &ClientMetrics::default())
}

fn plain() -> Cache<&'static str, u32> {
    cache(CacheConfig::new("things"))
}

/// A load that answers at once.
async fn get(cache: &Cache<&'static str, u32>, freshness: Freshness, value: u32) -> u32 {
    *cache.get("a", freshness, Priority::User, || async move { Ok(value) }).await.unwrap()
}

/// Begins a request with a load that ends when the test sends its answer.
fn begin(
    cache: &Cache<&'static str, u32>,
    freshness: Freshness,
) -> (oneshot::Sender<Result<u32>>, impl Future<Output = Result<Arc<u32>>>) {
    let (answer, answered) = oneshot::channel::<Result<u32>>();
    let cache = cache.clone();
    let mut request = Box::pin(async move {
        cache
            .get("a", freshness, Priority::User, || async { answered.await.expect("the test answers") })
            .await
    });
    let early = (&mut request).now_or_never();
    (answer, async move {
        match early {
            Some(result) => result,
            None => request.await,
        }
    })
}

async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

fn at_most(seconds: u64) -> Freshness {
    Freshness::AtMost(Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn age_counts_from_the_beginning_of_the_load() {
    let cache = plain();
    let slow = || async {
        sleep(7 * SECOND).await;
        Ok(1)
    };
    assert_eq!(*cache.get("a", at_most(10), Priority::User, slow).await.unwrap(), 1);
    advance(3 * SECOND).await;
    assert_eq!(get(&cache, at_most(10), 2).await, 1, "ten seconds old");
    advance(Duration::from_millis(1)).await;
    assert_eq!(get(&cache, at_most(10), 2).await, 2);
    assert_eq!(
        cache.peek("a", at_most(10)).map(|(value, began)| (*value, began)),
        Some((2, Instant::now()))
    );
    advance(11 * SECOND).await;
    assert!(cache.peek("a", at_most(10)).is_none());
}

#[tokio::test(start_paused = true)]
async fn after_is_satisfied_only_by_a_load_that_began_later() {
    let cache = plain();
    assert_eq!(get(&cache, at_most(0), 1).await, 1);
    advance(SECOND).await;
    let instant = Instant::now();
    assert_eq!(get(&cache, Freshness::After(instant), 2).await, 2);
    advance(SECOND).await;
    assert_eq!(get(&cache, Freshness::After(instant), 3).await, 2, "that load is late enough");
}

#[tokio::test(start_paused = true)]
async fn after_never_joins_a_load_that_began_earlier() {
    let cache = plain();
    let (first_answer, first) = begin(&cache, at_most(10));
    advance(SECOND).await;
    let (second_answer, second) = begin(&cache, Freshness::now());
    // A caller with lower requirements may join the older load.
    let joins = cache.get("a", at_most(10), Priority::User, || async { panic!("nothing to load") });
    first_answer.send(Ok(1)).unwrap();
    assert_eq!(*first.await.unwrap(), 1);
    assert_eq!(*joins.await.unwrap(), 1);
    second_answer.send(Ok(2)).unwrap();
    assert_eq!(*second.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_load_that_began_too_long_ago_is_not_joined() {
    let cache = plain();
    let (_answer, _hangs) = begin(&cache, at_most(10));
    advance(11 * SECOND).await;
    assert_eq!(get(&cache, at_most(10), 2).await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_older_answer_never_replaces_a_newer_one() {
    let cache = plain();
    let (old_answer, old) = begin(&cache, at_most(10));
    let began = Instant::now();
    advance(SECOND).await;
    assert_eq!(get(&cache, Freshness::now(), 2).await, 2);
    old_answer.send(Ok(1)).unwrap();
    assert_eq!(*old.await.unwrap(), 1, "its caller gets it");
    assert_eq!(get(&cache, at_most(10), 3).await, 2);
    cache.insert("a", 4, began);
    assert_eq!(get(&cache, at_most(10), 3).await, 2);
    cache.insert("a", 5, Instant::now());
    assert_eq!(get(&cache, at_most(10), 3).await, 5);
}

#[tokio::test(start_paused = true)]
async fn one_load_serves_all_callers_meanwhile() {
    let mut registry = Registry::default();
    let metrics = ClientMetrics::register(&mut registry);
    let cache: Cache<&str, u32> = Cache::new(CacheConfig::new("things"), &metrics);
    let loads = Arc::new(AtomicU32::new(0));
    let asked = (0..1000).map(|_| {
        let loads = Arc::clone(&loads);
        cache.get("a", at_most(10), Priority::User, move || async move {
            sleep(SECOND).await;
            Ok(loads.fetch_add(1, Ordering::SeqCst) + 1)
        })
    });
    assert!(join_all(asked).await.into_iter().all(|result| *result.unwrap() == 1));
    assert_eq!(get(&cache, at_most(10), 9).await, 1);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        r#"ccm_cloud_cache_requests_total{name="things",result="miss"} 1"#,
        r#"ccm_cloud_cache_requests_total{name="things",result="join"} 999"#,
        r#"ccm_cloud_cache_requests_total{name="things",result="hit"} 1"#,
    ] {
        assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_outlives_its_callers() {
    let cache = plain();
    let (answer, asking) = begin(&cache, at_most(10));
    settle().await;
    drop(asking);
    answer.send(Ok(1)).unwrap();
    settle().await;
    assert_eq!(cache.peek("a", at_most(10)).map(|(value, _)| *value), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_joined_gets_the_answer_after_the_first_one_has_left() {
    let cache = plain();
    let (answer, first) = begin(&cache, at_most(10));
    let joined = cache.get("a", at_most(10), Priority::User, || async { panic!("nothing to load") });
    drop(first);
    answer.send(Ok(1)).unwrap();
    assert_eq!(*joined.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn errors_are_returned_to_waiting_callers_and_not_cached() {
    let cache = plain();
    let (answer, first) = begin(&cache, at_most(10));
    let mut joined =
        Box::pin(cache.get("a", at_most(10), Priority::User, || async { panic!("nothing to load") }));
    assert!((&mut joined).now_or_never().is_none());
    answer.send(Err(Error::new(ErrorKind::Unavailable, "down"))).unwrap();
    assert_eq!(first.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(joined.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(get(&cache, at_most(10), 2).await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_leaves_the_older_answer_in_place() {
    let cache = plain();
    assert_eq!(get(&cache, at_most(0), 1).await, 1);
    advance(SECOND).await;
    let failed = cache.get("a", Freshness::now(), Priority::User, || async {
        Err(Error::new(ErrorKind::Unavailable, "down"))
    });
    assert!(failed.await.is_err());
    assert_eq!(get(&cache, at_most(10), 2).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_error_for_waiting_callers() {
    let cache = plain();
    let error = cache
        .get("a", at_most(10), Priority::User, || async { panic!("on purpose") })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    assert_eq!(get(&cache, at_most(10), 2).await, 2, "the key is not blocked");
}

#[tokio::test(start_paused = true)]
async fn a_load_that_was_invalidated_is_neither_joined_nor_cached() {
    type Invalidate = fn(&Cache<&'static str, u32>);
    let ways: [(&str, Invalidate); 3] = [
        ("invalidate", |cache| cache.invalidate("a")),
        ("invalidate_all", Cache::invalidate_all),
        ("retain", |cache| cache.retain(|key, _| *key != "a")),
    ];
    for (name, invalidate) in ways {
        let cache = plain();
        assert_eq!(get(&cache, at_most(10), 1).await, 1);
        let (answer, stale) = begin(&cache, Freshness::After(Instant::now() + Duration::from_nanos(1)));
        let began = Instant::now();
        advance(SECOND).await;
        invalidate(&cache);
        assert!(cache.is_empty(), "{name}");
        let (new_answer, new) = begin(&cache, at_most(10));
        answer.send(Ok(2)).unwrap();
        assert_eq!(*stale.await.unwrap(), 2, "{name}");
        assert!(cache.peek("a", at_most(10)).is_none(), "{name}");
        cache.insert("a", 3, began);
        assert!(cache.peek("a", at_most(10)).is_none(), "{name}: requested before");
        new_answer.send(Ok(4)).unwrap();
        assert_eq!(*new.await.unwrap(), 4, "{name}");
        assert_eq!(get(&cache, at_most(10), 5).await, 4, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn retain_keeps_the_selected_answers() {
    let cache: Cache<u32, u32> = Cache::new(CacheConfig::new("things"), &ClientMetrics::default());
    for key in 0..10 {
        cache.insert(key, key * key, Instant::now());
    }
    cache.retain(|key, value| key % 2 == 0 && value.is_some_and(|value| *value > 3));
    assert_eq!(cache.len(), 4);
    assert!(cache.peek(&2, at_most(1)).is_some_and(|(value, _)| *value == 4));
}

#[tokio::test(start_paused = true)]
async fn the_oldest_answers_are_removed_if_the_cache_is_full() {
    let cache: Cache<u32, u32> = Cache::new(
        CacheConfig {
            max_entries: Some(50),
            ..CacheConfig::new("things")
        },
        &ClientMetrics::default(),
    );
    for key in 0..1000 {
        cache.insert(key, key, Instant::now());
        assert!(cache.len() <= 50);
        assert!(cache.peek(&key, at_most(1)).is_some(), "the newest stays");
    }
    assert!(cache.len() >= 45);
    assert!(cache.peek(&0, at_most(1)).is_none());
}

#[tokio::test(start_paused = true)]
async fn old_answers_are_freed_without_callers() {
    let cache = cache(CacheConfig {
        max_age: Some(60 * SECOND),
        ..CacheConfig::new("things")
    });
    for round in 0..2 {
        let value = Arc::new(());
        let weak = Arc::downgrade(&value);
        let held: Cache<u32, Arc<()>> = Cache::new(
            CacheConfig {
                max_age: Some(60 * SECOND),
                ..CacheConfig::new("held")
            },
            &ClientMetrics::default(),
        );
        held.insert(1, value, Instant::now());
        assert_eq!(get(&cache, at_most(1000), round).await, round);
        sleep(59 * SECOND).await;
        assert_eq!((cache.len(), held.len()), (1, 1));
        assert!(weak.upgrade().is_some());
        sleep(10 * SECOND).await;
        assert_eq!((cache.len(), held.len()), (0, 0));
        assert!(weak.upgrade().is_none(), "really freed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_share_loads() {
    let cache: Cache<u32, u32> = Cache::new(CacheConfig::new("things"), &ClientMetrics::default());
    let loads = Arc::new(AtomicU32::new(0));
    let tasks = (0..4000u32).map(|n| {
        let (cache, loads) = (cache.clone(), Arc::clone(&loads));
        tokio::spawn(async move {
            let key = n % 10;
            let load = || async move {
                loads.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
                Ok(key)
            };
            assert_eq!(*cache.get(key, at_most(3600), Priority::User, load).await.unwrap(), key);
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(loads.load(Ordering::SeqCst), 10);
}

/// One request: the time since the one before, its key and freshness, and the duration of a load if it needs one.
#[derive(Clone, Debug)]
struct Question {
    after_ms: u64,
    key: u8,
    at_most_ms: Option<u64>,
    takes_ms: u64,
    fails: bool,
    invalidates: bool,
}

fn question() -> impl Strategy<Value = Question> {
    (
        0u64..50,
        0u8..3,
        proptest::option::of(0u64..200),
        0u64..150,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(after_ms, key, at_most_ms, takes_ms, fails, invalidates)| Question {
            after_ms,
            key,
            at_most_ms,
            takes_ms,
            fails,
            invalidates,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The value of an answer is the instant at which its load began, so that every answer proves its own age.
    #[test]
    fn no_answer_is_older_than_asked_for(questions in proptest::collection::vec(question(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let cache: Cache<u8, Instant> = Cache::new(CacheConfig::new("things"), &ClientMetrics::default());
            let mut invalidated: HashMap<u8, Instant> = HashMap::new();
            let mut tasks = Vec::new();
            for question in questions {
                sleep(Duration::from_millis(question.after_ms)).await;
                let asked = Instant::now();
                if question.invalidates {
                    cache.invalidate(&question.key);
                    invalidated.insert(question.key, asked);
                }
                let oldest = invalidated.get(&question.key).copied();
                let freshness = question.at_most_ms.map_or(Freshness::After(asked), |ms| {
                    Freshness::AtMost(Duration::from_millis(ms))
                });
                let cache = cache.clone();
                tasks.push(tokio::spawn(async move {
                    let load = || async move {
                        let began = Instant::now();
                        sleep(Duration::from_millis(question.takes_ms)).await;
                        if question.fails { Err(Error::new(ErrorKind::Unavailable, "down")) } else { Ok(began) }
                    };
                    if let Ok(began) = cache.get(question.key, freshness, Priority::User, load).await {
                        let age = asked.saturating_duration_since(*began);
                        assert!(age <= Duration::from_millis(question.at_most_ms.unwrap_or(0)), "{question:?}: {age:?}");
                        assert!(oldest.is_none_or(|oldest| *began >= oldest), "from before the invalidation");
                    }
                }));
            }
            for task in join_all(tasks).await {
                task.unwrap();
            }
        });
    }
}

operations! {
    /// The calls of these tests.
    enum Op {
        /// All things.
        ThingList = "thing_list", "things", Read;
    }
}

/// A gate of one request a second, and the names of the calls in the order in which they were sent.
#[derive(Clone)]
struct Limited {
    gate: Gate,
    sent: Arc<Mutex<Vec<&'static str>>>,
}

impl Limited {
    /// Without quota for background calls: they wait.
    async fn exhausted() -> Self {
        let quota = Quota {
            rate: 1.0,
            burst: 2,
            max_in_flight: 4,
        };
        let config = GateConfig {
            buckets: vec![("things", quota)],
            ..GateConfig::new("acme")
        };
        let limited = Self {
            gate: Gate::new(config, &ClientMetrics::default()),
            sent: Arc::default(),
        };
        for name in ["first", "second"] {
            limited.call(name, Priority::User).await.unwrap();
        }
        limited
    }

    async fn call(&self, name: &'static str, priority: Priority) -> Result<u32> {
        let attempt = || async {
            self.sent.lock().push(name);
            Ok(1)
        };
        self.gate.call(Op::ThingList, priority, attempt).await
    }

    /// Reads `key` by one call.
    async fn read(
        &self,
        cache: &Cache<&'static str, u32>,
        key: &'static str,
        priority: Priority,
    ) -> Result<u32> {
        let limited = self.clone();
        let load = move || async move { limited.call(key, priority).await };
        cache.get(key, Freshness::now(), priority, load).await.map(|value| *value)
    }

    /// Reads `outer` by reading `inner`.
    async fn read_nested(&self, caches: &[Cache<&'static str, u32>; 2], priority: Priority) -> Result<u32> {
        let (limited, inner) = (self.clone(), caches[1].clone());
        let load = move || async move { limited.read(&inner, "inner", priority).await };
        caches[0]
            .get("outer", Freshness::AtMost(SECOND * 60), priority, load)
            .await
            .map(|value| *value)
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_raises_the_load_of_background_work_that_waits_for_quota() {
    let (limited, cache) = (Limited::exhausted().await, plain());
    let mut earlier = Box::pin(limited.call("background", Priority::Background));
    assert!((&mut earlier).now_or_never().is_none(), "it waits for quota");
    let mut load = Box::pin(limited.read(&cache, "shared", Priority::Background));
    assert!((&mut load).now_or_never().is_none());
    settle().await;
    let load_began = Freshness::AtMost(SECOND);
    let joins = async {
        let value = cache.get("shared", load_began, Priority::User, || async { panic!("joins") });
        value.await.map(|value| *value)
    };
    let (earlier, (load, joined)) = join(earlier, join(load, joins)).await;
    assert_eq!([earlier, load, joined].map(Result::unwrap), [1, 1, 1]);
    assert_eq!(*limited.sent.lock(), ["first", "second", "shared", "background"]);
}

#[tokio::test(start_paused = true)]
async fn background_work_does_not_raise_a_load() {
    let (limited, cache) = (Limited::exhausted().await, plain());
    let reads = ["background", "shared", "shared"].map(|key| limited.read(&cache, key, Priority::Background));
    for read in join_all(reads).await {
        read.unwrap();
    }
    assert_eq!(limited.sent.lock()[2], "background");
}

#[tokio::test(start_paused = true)]
async fn a_load_that_waits_for_another_raises_it() {
    let (limited, caches) = (Limited::exhausted().await, [plain(), plain()]);
    let mut earlier = Box::pin(limited.call("background", Priority::Background));
    assert!((&mut earlier).now_or_never().is_none());
    let mut load = Box::pin(limited.read_nested(&caches, Priority::Background));
    assert!((&mut load).now_or_never().is_none());
    settle().await;
    let user = limited.read_nested(&caches, Priority::User);
    let (earlier, (load, user)) = join(earlier, join(load, user)).await;
    assert_eq!([earlier, load, user].map(Result::unwrap), [1, 1, 1]);
    assert_eq!(*limited.sent.lock(), ["first", "second", "inner", "background"]);
}

/// While few requests remain, background calls are refused: but not those of a load for which a user waits.
#[tokio::test(start_paused = true)]
async fn the_later_calls_of_a_raised_load_are_those_of_a_user() {
    for priority in [Priority::User, Priority::Background] {
        let (limited, cache) = (Limited::exhausted().await, plain());
        let (begin, begun) = oneshot::channel();
        let load = {
            let limited = limited.clone();
            || async move {
                begun.await.unwrap();
                limited.call("page", Priority::Background).await
            }
        };
        let mut first = Box::pin(cache.get("a", at_most(60), Priority::Background, load));
        assert!((&mut first).now_or_never().is_none());
        limited.gate.bucket("things").observe_remaining(0, 100, None);
        let mut second = Box::pin(cache.get("a", at_most(60), priority, || async { panic!("joins") }));
        assert!((&mut second).now_or_never().is_none());
        begin.send(()).unwrap();
        let (first, second) = join(first, second).await;
        assert_eq!([first.is_ok(), second.is_ok()], [priority == Priority::User; 2]);
    }
}
