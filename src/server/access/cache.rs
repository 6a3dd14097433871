//! Results of reviews, cached for a while. Requests with the same question share one review. The key is a digest of the
//! question, so that no token stays in memory longer than its request.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use moka::ops::compute::Op;
use tokio::time::Instant;

/// The most results in the cache.
const CAPACITY: u64 = 1024;

/// Each result with its expiry.
pub(super) struct Cache<V>(moka::future::Cache<[u8; 32], (V, Instant)>);

impl<V: Clone + Send + Sync + 'static> Default for Cache<V> {
    fn default() -> Self {
        Self(moka::future::Cache::new(CAPACITY))
    }
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// The cached answer to `question`, or the answer of `ask` with its time to live. A failure is not cached.
    pub(super) async fn get<E: Send + Sync + 'static>(
        &self,
        question: &[u8],
        ask: impl Future<Output = Result<(V, Duration), E>>,
    ) -> Result<V, E> {
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, question).as_ref());
        // Boxed, since the cache's own future contains it several times.
        let ask = Box::pin(ask);
        let answer = self.0.entry(key).and_try_compute_with(|known| async move {
            match known {
                Some(known) if Instant::now() < known.value().1 => Ok(Op::Nop),
                _ => ask.await.map(|(value, ttl)| Op::Put((value, Instant::now() + ttl))),
            }
        });
        // There is always an entry: the answer was inserted if there was none.
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
    async fn the_same_question_waits_for_the_answer_in_progress() {
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
    async fn memory_is_limited() {
        let cache = Cache::default();
        for number in 0..5000_u32 {
            let _ = cache.get(&number.to_be_bytes(), async { Ok::<_, ()>(((), TTL)) }).await;
            advance(Duration::from_millis(1)).await;
        }
        cache.0.run_pending_tasks().await;
        assert!(cache.0.entry_count() <= CAPACITY, "{}", cache.0.entry_count());
    }
}
