//! The `workqueue_*` metrics, under the names that components of Kubernetes have them under.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::time::Instant;

use super::{Place, State};

type Label = [(&'static str, &'static str); 1];

/// Where all queues count. A clone counts in the same place; `default()` gives one that is registered nowhere.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    adds: Family<Label, Counter>,
    retries: Family<Label, Counter>,
    waits: Family<Label, Histogram>,
    works: Family<Label, Histogram>,
    watched: Watched,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        // From ten nanoseconds to ten seconds.
        let durations = || Family::new_with_constructor(duration as fn() -> Histogram);
        Self {
            adds: Family::default(),
            retries: Family::default(),
            waits: durations(),
            works: durations(),
            watched: Watched::default(),
        }
    }
}

fn duration() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 10))
}

impl QueueMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "workqueue_adds",
            "Keys that became ready to be worked on",
            self.adds.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Keys that are tried again after a failure",
            self.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time that a key waited for a worker",
            self.waits.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Time that a key was worked on",
            self.works.clone(),
        );
        registry.register_collector(Box::new(self.watched.clone()));
    }

    /// What one queue counts in. Its series are there from the start.
    pub(super) fn of(&self, name: &'static str) -> Measures {
        let label = [("name", name)];
        Measures {
            adds: self.adds.get_or_create_owned(&label),
            retries: self.retries.get_or_create_owned(&label),
            waits: self.waits.get_or_create_owned(&label),
            works: self.works.get_or_create_owned(&label),
        }
    }

    pub(super) fn watch<K: Send + 'static>(&self, name: &'static str, state: &Arc<Mutex<State<K>>>)
    where
        State<K>: Send,
    {
        let state: Weak<dyn QueueState> = Arc::<Mutex<State<K>>>::downgrade(state);
        self.watched.0.lock().push((name, state));
    }
}

/// What one queue counts in.
#[derive(Clone, Debug)]
pub(super) struct Measures {
    adds: Counter,
    retries: Counter,
    waits: Histogram,
    works: Histogram,
}

impl Measures {
    pub(super) fn added(&self) {
        self.adds.inc();
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }

    pub(super) fn waited(&self, time: Duration) {
        self.waits.observe(time.as_secs_f64());
    }

    pub(super) fn worked(&self, time: Duration) {
        self.works.observe(time.as_secs_f64());
    }
}

/// How a queue stands when somebody looks.
#[derive(Clone, Copy, Debug, Default)]
struct QueueSnapshot {
    ready: usize,
    /// All that is being worked on, added up.
    unfinished: Duration,
    longest: Duration,
}

trait QueueState: Send + Sync {
    fn snapshot(&self) -> QueueSnapshot;
}

impl<K: Send> QueueState for Mutex<State<K>> {
    fn snapshot(&self) -> QueueSnapshot {
        let state = self.lock();
        let mut snapshot = QueueSnapshot {
            ready: state.ready.len(),
            ..QueueSnapshot::default()
        };
        let now = Instant::now();
        let working = state.keys.values().filter(|entry| entry.place == Place::Working);
        for since in working.filter_map(|entry| entry.since) {
            let time = now.saturating_duration_since(since);
            snapshot.unfinished += time;
            snapshot.longest = snapshot.longest.max(time);
        }
        snapshot
    }
}

/// Queues that are looked at when somebody scrapes.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<Vec<Named>>>);

/// A queue and its name.
type Named = (&'static str, Weak<dyn QueueState>);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Collector for Watched {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let depth = Family::<Label, Gauge>::default();
        let unfinished = Family::<Label, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
        let longest = Family::<Label, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
        for (name, queue) in self.0.lock().iter() {
            let Some(queue) = queue.upgrade() else { continue };
            let (label, snapshot) = ([("name", *name)], queue.snapshot());
            depth
                .get_or_create(&label)
                .set(i64::try_from(snapshot.ready).unwrap_or(i64::MAX));
            unfinished
                .get_or_create(&label)
                .set(snapshot.unfinished.as_secs_f64());
            longest.get_or_create(&label).set(snapshot.longest.as_secs_f64());
        }
        if depth.is_empty() {
            return Ok(());
        }
        depth.encode(encoder.encode_descriptor(
            "workqueue_depth",
            "Keys that are ready and wait for a worker",
            None,
            MetricType::Gauge,
        )?)?;
        unfinished.encode(encoder.encode_descriptor(
            "workqueue_unfinished_work_seconds",
            "Time spent so far on all that is being worked on",
            None,
            MetricType::Gauge,
        )?)?;
        longest.encode(encoder.encode_descriptor(
            "workqueue_longest_running_processor_seconds",
            "Time spent so far on what is being worked on for longest",
            None,
            MetricType::Gauge,
        )?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::controllers::{Backoff, WorkQueue};

    #[tokio::test(start_paused = true)]
    async fn what_waits_and_what_is_worked_on_can_be_seen() {
        let (metrics, mut registry) = (QueueMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        let second = Duration::from_secs(1);
        let backoff = Backoff {
            first: second,
            longest: second,
        };
        let queue = WorkQueue::new(backoff, "Nodes", &metrics);
        queue.add("a");
        queue.add("b");
        queue.add("b");
        tokio::time::advance(Duration::from_secs(5)).await;
        let key = queue.next().await;
        tokio::time::advance(Duration::from_secs(3)).await;
        let scrape = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        let has = |line: &str| {
            let text = scrape();
            assert!(text.lines().any(|there| there == line), "{line} in\n{text}");
        };
        has("workqueue_adds_total{name=\"Nodes\"} 2");
        has("workqueue_depth{name=\"Nodes\"} 1");
        has("workqueue_unfinished_work_seconds{name=\"Nodes\"} 3.0");
        has("workqueue_longest_running_processor_seconds{name=\"Nodes\"} 3.0");
        has("workqueue_queue_duration_seconds_sum{name=\"Nodes\"} 5.0");
        queue.done_with_backoff(&key);
        has("workqueue_retries_total{name=\"Nodes\"} 1");
        has("workqueue_work_duration_seconds_sum{name=\"Nodes\"} 3.0");
        has("workqueue_unfinished_work_seconds{name=\"Nodes\"} 0.0");
        drop(queue);
        assert!(
            !scrape().contains("workqueue_depth"),
            "a queue that is gone is not shown"
        );
    }
}
