//! The `workqueue_*` metrics, with the names of the Kubernetes components.

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

use super::{KeyPhase, WorkQueueState};

type Label = [(&'static str, &'static str); 1];

/// The metrics of all queues. Clones share them; those of `default()` are not registered.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    adds: Family<Label, Counter>,
    retries: Family<Label, Counter>,
    queue_durations: Family<Label, Histogram>,
    work_durations: Family<Label, Histogram>,
    collector: QueueCollector,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        // From ten nanoseconds to ten seconds.
        let durations = || Family::new_with_constructor(duration as fn() -> Histogram);
        Self {
            adds: Family::default(),
            retries: Family::default(),
            queue_durations: durations(),
            work_durations: durations(),
            collector: QueueCollector::default(),
        }
    }
}

fn duration() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 10))
}

impl QueueMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_adds", "Keys added to the queue", self.adds.clone());
        registry.register("workqueue_retries", "Keys retried after a failure", self.retries.clone());
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time a key waited for a worker",
            self.queue_durations.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Time to process a key",
            self.work_durations.clone(),
        );
        registry.register_collector(Box::new(self.collector.clone()));
    }

    /// The metrics of one queue. Their series exist from the start.
    pub(super) fn counters(&self, name: &'static str) -> QueueCounters {
        let label = [("name", name)];
        QueueCounters {
            adds: self.adds.get_or_create_owned(&label),
            retries: self.retries.get_or_create_owned(&label),
            queue_duration: self.queue_durations.get_or_create_owned(&label),
            work_duration: self.work_durations.get_or_create_owned(&label),
        }
    }

    pub(super) fn register_queue<K: Send + 'static>(
        &self,
        name: &'static str,
        state: &Arc<Mutex<WorkQueueState<K>>>,
    ) where
        WorkQueueState<K>: Send,
    {
        let state: Weak<dyn QueueState> = Arc::<Mutex<WorkQueueState<K>>>::downgrade(state);
        self.collector.0.lock().push((name, state));
    }
}

/// The metrics of one queue.
#[derive(Clone, Debug)]
pub(super) struct QueueCounters {
    adds: Counter,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
}

impl QueueCounters {
    pub(super) fn added(&self) {
        self.adds.inc();
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }

    pub(super) fn waited(&self, time: Duration) {
        self.queue_duration.observe(time.as_secs_f64());
    }

    pub(super) fn worked(&self, time: Duration) {
        self.work_duration.observe(time.as_secs_f64());
    }
}

/// The state of a queue at a scrape.
#[derive(Clone, Copy, Debug, Default)]
struct QueueSnapshot {
    ready: usize,
    /// The total time of the work in progress.
    unfinished: Duration,
    longest: Duration,
}

trait QueueState: Send + Sync {
    fn snapshot(&self) -> QueueSnapshot;
}

impl<K: Send> QueueState for Mutex<WorkQueueState<K>> {
    fn snapshot(&self) -> QueueSnapshot {
        let state = self.lock();
        let mut snapshot = QueueSnapshot {
            ready: state.ready(),
            ..QueueSnapshot::default()
        };
        let now = Instant::now();
        let working = state.keys.values().filter(|entry| entry.phase == KeyPhase::Working);
        for since in working.filter_map(|entry| entry.since) {
            let time = now.saturating_duration_since(since);
            snapshot.unfinished += time;
            snapshot.longest = snapshot.longest.max(time);
        }
        snapshot
    }
}

/// Collects the state of all queues at a scrape.
#[derive(Clone, Default)]
struct QueueCollector(Arc<Mutex<Vec<NamedQueue>>>);

/// A queue and its name.
type NamedQueue = (&'static str, Weak<dyn QueueState>);

impl fmt::Debug for QueueCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueCollector")
    }
}

impl Collector for QueueCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let depth = Family::<Label, Gauge>::default();
        let unfinished = Family::<Label, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
        let longest = Family::<Label, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
        for (name, queue) in self.0.lock().iter() {
            let Some(queue) = queue.upgrade() else { continue };
            let (label, snapshot) = ([("name", *name)], queue.snapshot());
            depth.get_or_create(&label).set(i64::try_from(snapshot.ready).unwrap_or(i64::MAX));
            unfinished.get_or_create(&label).set(snapshot.unfinished.as_secs_f64());
            longest.get_or_create(&label).set(snapshot.longest.as_secs_f64());
        }
        if depth.is_empty() {
            return Ok(());
        }
        depth.encode(encoder.encode_descriptor(
            "workqueue_depth",
            "Keys waiting for a worker",
            None,
            MetricType::Gauge,
        )?)?;
        unfinished.encode(encoder.encode_descriptor(
            "workqueue_unfinished_work_seconds",
            "Total time of the work in progress",
            None,
            MetricType::Gauge,
        )?)?;
        longest.encode(encoder.encode_descriptor(
            "workqueue_longest_running_processor_seconds",
            "Time of the longest work in progress",
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
    async fn waiting_keys_and_work_in_progress_are_reported() {
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
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
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
        assert!(!scrape().contains("workqueue_depth"), "a dropped queue is not reported");
    }
}
