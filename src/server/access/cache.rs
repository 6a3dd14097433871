//! Answers of the API server, remembered for a while. Requests with the same question share one review. The key is a digest
//! of the question, so that no token stays in memory longer than its request.

use std::{fmt, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use moka::ops::compute::Op;
use tokio::time::Instant;

/// The most answers that are remembered.
const CAPACITY: u64 = 1024;

/// Each answer with the time until which it counts.
pub(super) struct Cache<V>(moka::future::Cache<[u8; 32], (V, Instant)>);

impl<V: Clone + Send + Sync + 'static> Default for Cache<V> {
    fn default() -> Self {
        Self(moka::future::Cache::new(CAPACITY))
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// The remembered answer to `question`, or the one that `ask` returns with its time to live. A failure is not remembered.
    pub(super) async fn get<E: Send + Sync + 'static>(
        &self,
        question: &[u8],
        ask: impl Future<Output = Result<(V, Duration), E>>,
    ) -> Result<V, E> {
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, question).as_ref());
        // Boxed, since the cache's own future holds it several times.
        let ask = Box::pin(ask);
        let answer = self.0.entry(key).and_try_compute_with(|known| async move {
            match known {
                Some(known) if Instant::now() < known.value().1 => Ok(Op::Nop),
                _ => ask
                    .await
                    .map(|(value, ttl)| Op::Put((value, Instant::now() + ttl))),
            }
        });
        // There is an entry: without one, the answer was put there.
        Ok(answer.await?.unwrap().into_value().0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use tokio::time::{advance, sleep};

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_for_its_time_and_a_failure_for_none() {
        let (cache, asked) = (Cache::default(), AtomicU32::new(0));
        let ask = async |answer: Result<u32, ()>| {
            let ask = async {
                asked.fetch_add(1, Relaxed);
                answer.map(|answer| (answer, TTL))
            };
            cache.get(b"who", ask).await
        };
        assert_eq!(ask(Err(())).await, Err(()));
        assert_eq!(ask(Ok(1)).await, Ok(1));
        assert_eq!(ask(Ok(2)).await, Ok(1));
        assert_eq!(asked.load(Relaxed), 2);
        advance(TTL).await;
        assert_eq!(ask(Err(())).await, Err(()));
        assert_eq!(ask(Ok(3)).await, Ok(3));
        let other = cache.get(b"whom", async { Ok::<_, ()>((9, TTL)) }).await;
        assert_eq!(other, Ok(9));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_the_same_meanwhile_waits_for_that_answer() {
        let (cache, asked) = (Cache::default(), AtomicU32::new(0));
        let ask = || {
            cache.get(b"who", async {
                sleep(Duration::from_secs(1)).await;
                Ok::<_, ()>((asked.fetch_add(1, Relaxed), TTL))
            })
        };
        let (first, second, third) = tokio::join!(ask(), ask(), ask());
        assert_eq!((first, second, third), (Ok(0), Ok(0), Ok(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn memory_does_not_grow_with_questions() {
        let cache = Cache::default();
        for number in 0..5000_u32 {
            let _ = cache
                .get(&number.to_be_bytes(), async { Ok::<_, ()>(((), TTL)) })
                .await;
            advance(Duration::from_millis(1)).await;
        }
        cache.0.run_pending_tasks().await;
        assert!(cache.0.entry_count() <= CAPACITY, "{}", cache.0.entry_count());
    }
}
