//! Answers of the API server that are remembered for a while. Whoever asks while the same question is under way waits for
//! that answer. What is asked about is kept as a digest: a token is not held in memory for longer than its request.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use tokio::time::Instant;

/// More than this many answers are not remembered.
const MOST: usize = 1024;

type Key = [u8; 32];
/// The answer and until when it counts; empty while it is asked for.
type Slot<V> = Arc<tokio::sync::Mutex<Option<(V, Instant)>>>;

pub(super) struct Cache<V>(Mutex<HashMap<Key, Slot<V>>>);

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("len", &self.0.lock().len())
            .finish()
    }
}

impl<V: Clone> Cache<V> {
    /// The remembered answer to `question`, or else what `ask` comes to, with the time for which it counts. A failure is
    /// not remembered.
    pub(super) async fn get<E>(
        &self,
        question: &[u8],
        ask: impl Future<Output = Result<(V, Duration), E>>,
    ) -> Result<V, E> {
        let slot = self.slot(question);
        let mut answer = slot.lock().await;
        if let Some((value, until)) = &*answer
            && Instant::now() < *until
        {
            return Ok(value.clone());
        }
        let (value, keep) = ask.await?;
        *answer = Some((value.clone(), Instant::now() + keep));
        Ok(value)
    }

    fn slot(&self, question: &[u8]) -> Slot<V> {
        let hash = digest(&SHA256, question);
        let mut key = [0; 32];
        key.copy_from_slice(hash.as_ref());
        let mut slots = self.0.lock();
        if slots.len() >= MOST && !slots.contains_key(&key) {
            let now = Instant::now();
            slots.retain(|_, slot| {
                // Those that are being asked for stay.
                slot.try_lock().map_or(
                    true,
                    |answer| matches!(&*answer, Some((_, until)) if *until > now),
                )
            });
            // Still too many: any other than those under way.
            let idle = slots
                .iter()
                .find(|(_, slot)| Arc::strong_count(slot) == 1)
                .map(|(key, _)| *key);
            if let Some(idle) = idle.filter(|_| slots.len() >= MOST) {
                slots.remove(&idle);
            }
        }
        Arc::clone(slots.entry(key).or_default())
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
        assert!(cache.0.lock().len() <= MOST, "{cache:?}");
    }
}
