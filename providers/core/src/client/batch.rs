//! Batches: one request for many items.
//!
//! Items that are submitted close to each other are passed to the executor together, and each gets its own result.
//! A batch is closed when no item arrived for the idle window, when its first item has waited for the maximum window, or
//! when it is full. While all places for batches are taken, it stays open.
//!
//! A caller that stops waiting does not cancel a batch that has begun. Before that, its item is left out.

use std::{collections::VecDeque, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, sleep_until},
};
use tracing::warn;

use super::{later, metrics::ClientMetrics};
use crate::{Error, ErrorKind, RequestOutcome, Result};

/// When a [`Batcher`] closes a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchConfig {
    /// The metric label.
    pub name: &'static str,
    /// Closed when no item arrived for this long.
    pub idle: Duration,
    /// Closed when the first item has waited for this long.
    pub window: Duration,
    /// Closed with this many items; 0 counts as 1.
    pub max_items: usize,
    /// Batches that are executed at the same time; 0 counts as 1.
    pub max_concurrent: usize,
}

impl BatchConfig {
    /// 10 ms idle, 100 ms at most, 100 items, 4 batches at a time.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            idle: Duration::from_millis(10),
            window: Duration::from_millis(100),
            max_items: 100,
            max_concurrent: 4,
        }
    }
}

/// Collects items into batches; see the module. A clone is the same batcher.
pub struct Batcher<I, O>(Arc<Inner<I, O>>);

struct Inner<I, O> {
    config: BatchConfig,
    metrics: ClientMetrics,
    execute: Execute<I, O>,
    state: Mutex<BatcherState<I, O>>,
    /// A batch is full.
    full: Notify,
    places: Arc<Semaphore>,
}

type Execute<I, O> = Box<dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<Result<O>>> + Send + Sync>;

struct BatcherState<I, O> {
    pending: VecDeque<Pending<I, O>>,
    /// Whether the task that closes batches runs. It does while anything is pending.
    collecting: bool,
}

struct Pending<I, O> {
    item: I,
    since: Instant,
    reply: oneshot::Sender<Result<O>>,
}

impl<I, O> Batcher<I, O>
where
    I: Send + 'static,
    O: Send + 'static,
{
    /// A batcher that passes its batches to `execute`, which returns one result per item, in the same order.
    #[must_use]
    pub fn new<F, Fut>(config: BatchConfig, metrics: &ClientMetrics, execute: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<Result<O>>> + Send + 'static,
    {
        let config = BatchConfig {
            max_items: config.max_items.max(1),
            max_concurrent: config.max_concurrent.clamp(1, Semaphore::MAX_PERMITS),
            ..config
        };
        Self(Arc::new(Inner {
            metrics: metrics.clone(),
            execute: Box::new(move |items| execute(items).boxed()),
            state: Mutex::new(BatcherState {
                pending: VecDeque::new(),
                collecting: false,
            }),
            full: Notify::new(),
            places: Arc::new(Semaphore::new(config.max_concurrent)),
            config,
        }))
    }

    /// Submits an item and waits for its result.
    ///
    /// # Errors
    /// The item's own error. `Unexpected` with [`RequestOutcome::Unknown`] if the executor panicked or returned no result for
    /// it.
    pub async fn submit(&self, item: I) -> Result<O> {
        let (reply, result) = oneshot::channel();
        self.push(Pending {
            item,
            since: Instant::now(),
            reply,
        });
        result
            .await
            .unwrap_or_else(|_| Err(self.0.lost("the batch ended without a result for this item")))
    }

    fn push(&self, item: Pending<I, O>) {
        let inner = &self.0;
        let mut state = inner.state.lock();
        state.pending.push_back(item);
        if state.pending.len() >= inner.config.max_items {
            inner.full.notify_one();
        }
        if !state.collecting {
            state.collecting = true;
            tokio::spawn(Arc::clone(inner).collect());
        }
    }
}

impl<I, O> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<I, O> fmt::Debug for Batcher<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl<I, O> Inner<I, O> {
    fn lost(&self, message: &str) -> Error {
        Error::new(ErrorKind::Unexpected, message)
            .with_outcome(RequestOutcome::Unknown)
            .with_context("batch", self.config.name)
    }
}

impl<I, O> Inner<I, O>
where
    I: Send + 'static,
    O: Send + 'static,
{
    /// Closes batches as long as anything is pending.
    async fn collect(self: Arc<Self>) {
        while let Some(close_at) = self.close_at() {
            if Instant::now() < close_at {
                tokio::select! {
                    () = sleep_until(close_at) => {}
                    () = self.full.notified() => {}
                }
                // Items may have arrived or left meanwhile.
                continue;
            }
            // The batch stays open while it waits for a place. The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return;
            };
            let batch = self.take();
            if !batch.is_empty() {
                tokio::spawn(execute(Arc::clone(&self), batch, place));
            }
        }
    }

    /// When the open batch is to be closed. `None` if nothing is pending: then the task ends.
    fn close_at(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        let times = state
            .pending
            .front()
            .zip(state.pending.back())
            .map(|(first, last)| (first.since, last.since));
        let Some((first, last)) = times else {
            state.collecting = false;
            return None;
        };
        if state.pending.len() >= self.config.max_items {
            return Some(first);
        }
        Some(later(first, self.config.window).min(later(last, self.config.idle)))
    }

    /// The items of the batch, without those whose callers stopped waiting.
    fn take(&self) -> Vec<Pending<I, O>> {
        let mut state = self.state.lock();
        let mut batch = Vec::with_capacity(state.pending.len().min(self.config.max_items));
        while batch.len() < self.config.max_items {
            match state.pending.pop_front() {
                Some(pending) if pending.reply.is_closed() => {}
                Some(pending) => batch.push(pending),
                None => break,
            }
        }
        batch
    }
}

async fn execute<I, O>(inner: Arc<Inner<I, O>>, batch: Vec<Pending<I, O>>, place: OwnedSemaphorePermit) {
    let (items, replies): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|pending| (pending.item, pending.reply)).unzip();
    inner.metrics.batch(inner.config.name, items.len());
    // The call of the executor is inside as well: it may panic before it returns a future.
    let results = AssertUnwindSafe(async { (inner.execute)(items).await }).catch_unwind().await;
    drop(place);
    let (mut results, missing) = match results {
        Ok(results) => (results, "the batch has no result for this item"),
        Err(_) => (Vec::new(), "the batch panicked"),
    };
    if results.len() > replies.len() {
        warn!(
            batch = inner.config.name,
            items = replies.len(),
            results = results.len(),
            "Batch has too many results"
        );
        results.truncate(replies.len());
    }
    let mut results = results.into_iter();
    for reply in replies {
        let result = results.next().unwrap_or_else(|| Err(inner.lost(missing)));
        // The caller may have stopped waiting.
        drop(reply.send(result));
    }
}
