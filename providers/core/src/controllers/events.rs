//! Kubernetes Events.
//!
//! Events are written as core/v1 with upstream's source component, since the existing roles of clusters grant no other
//! group. Writing is asynchronous and best effort: an event that cannot be written is dropped and counted, and never delays
//! the reported work. Controllers decide when to report a change; this module only limits and writes.
//!
//! Each event is a new object for the API server, which keeps it for an hour. So the events about one object are limited as
//! client-go limits them, and those beyond the limit are counted. A Warning never waits behind other events.

mod limit;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::StreamExt;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use prometheus_client::{encoding::EncodeLabelSet, metrics::counter::Counter, metrics::family::Family};
use tokio::{sync::mpsc, time::Instant};
use tracing::{debug, warn};

use self::limit::{EventKey, EventLimit};

/// The capacity of the queue of events. A burst of thousands of nodes fits; further events are dropped.
const CAPACITY: usize = 20_000;

/// The capacity of the queue of Warnings, which are written first.
const WARNINGS: usize = 5_000;

/// A namespace that refused an event this long ago is reported again.
const REFUSAL_MEMORY: Duration = Duration::from_secs(3600);

/// How many events are written at the same time.
const PARALLEL: usize = 16;

/// The longest message that the API server accepts.
const MAX_MESSAGE: usize = 1024;

/// The namespace of events about objects without one.
const DEFAULT_NAMESPACE: &str = "default";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Whether a user must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// No action is needed.
    Normal,
    /// A user should act.
    Warning,
}

/// The number of events of all writers.
#[derive(Clone, Debug, Default)]
pub struct EventMetrics(Family<ResultLabel, Counter>);

impl EventMetrics {
    /// Registers `ccm_events_total`.
    pub fn register(registry: &mut prometheus_client::registry::Registry) -> Self {
        let written = Family::default();
        registry.register(
            "ccm_events",
            "Kubernetes Events, by result: written, failed, dropped (queue full), suppressed (too many about one object)",
            written.clone(),
        );
        Self(written)
    }
}

/// Queues events of one controller. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    component: &'static str,
    queue: Queue,
    limit: Arc<Mutex<EventLimit>>,
    written: Family<ResultLabel, Counter>,
}

/// Events that wait for the writer.
#[derive(Clone, Debug)]
struct Queue {
    warnings: mpsc::Sender<Event>,
    others: mpsc::Sender<Event>,
}

/// The other end of the [`Queue`].
struct QueuedEvents {
    warnings: mpsc::Receiver<Event>,
    others: mpsc::Receiver<Event>,
}

impl QueuedEvents {
    /// The next event, Warnings first. `None` when every recorder is dropped and nothing is queued.
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            Some(event) = self.warnings.recv() => Some(event),
            Some(event) = self.others.recv() => Some(event),
            else => None,
        }
    }
}

/// Writes the queued events until every recorder is dropped.
pub struct Writer {
    client: Client,
    events: QueuedEvents,
    queue: Queue,
    limit: Arc<Mutex<EventLimit>>,
    written: Family<ResultLabel, Counter>,
}

impl Writer {
    /// A writer through this client.
    #[must_use]
    pub fn new(client: Client, metrics: &EventMetrics) -> Self {
        let (warnings, queued_warnings) = mpsc::channel(WARNINGS);
        let (others, queued_others) = mpsc::channel(CAPACITY);
        Self {
            client,
            events: QueuedEvents {
                warnings: queued_warnings,
                others: queued_others,
            },
            queue: Queue { warnings, others },
            limit: Arc::default(),
            written: metrics.0.clone(),
        }
    }

    /// A recorder whose events have this source component.
    #[must_use]
    pub fn recorder(&self, component: &'static str) -> Recorder {
        Recorder {
            component,
            queue: self.queue.clone(),
            limit: Arc::clone(&self.limit),
            written: self.written.clone(),
        }
    }

    /// Discards queued events until the last recorder is dropped.
    pub async fn discard(self) {
        let Self {
            mut events, queue, ..
        } = self;
        drop(queue);
        while events.next().await.is_some() {}
    }

    /// Writes until the last recorder is dropped and all queued events are written.
    pub async fn run(self) {
        let Self {
            client,
            events,
            queue,
            written,
            ..
        } = self;
        drop(queue);
        let refusing: Mutex<RefusingNamespaces> = Mutex::default();
        let events = futures_util::stream::unfold(events, async |mut events| {
            let event = events.next().await?;
            Some((event, events))
        });
        events
            .for_each_concurrent(PARALLEL, async |event| {
                let namespace = event.metadata.namespace.clone().unwrap_or_default();
                let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
                let params = PostParams::default();
                let error =
                    match tokio::time::timeout(Duration::from_secs(10), api.create(&params, &event)).await {
                        Ok(Ok(_)) => None,
                        Ok(Err(error)) => Some(crate::error::report(&error)),
                        Err(_) => Some("no answer within 10 s".to_owned()),
                    };
                let result = if error.is_some() { "failed" } else { "written" };
                written.get_or_create(&ResultLabel { result }).inc();
                let object = event.involved_object.name;
                match error {
                    None => {
                        refusing.lock().accepts(&namespace);
                    }
                    Some(error) if refusing.lock().refuses(&namespace, Instant::now()) => warn!(
                        error,
                        namespace,
                        object,
                        "Could not write event; further failures in this namespace are logged at debug level"
                    ),
                    Some(error) => debug!(error, namespace, object, "Could not write event"),
                }
            })
            .await;
    }
}

/// Namespaces that refuse events, such as forcibly finalized ones, and when they last did.
#[derive(Debug, Default)]
struct RefusingNamespaces(HashMap<String, Instant>);

impl RefusingNamespaces {
    fn accepts(&mut self, namespace: &str) {
        self.0.remove(namespace);
    }

    /// Returns whether this is new. Namespaces that no event was about for an hour are forgotten: they may be deleted.
    fn refuses(&mut self, namespace: &str, now: Instant) -> bool {
        self.0.retain(|_, last| now.duration_since(*last) < REFUSAL_MEMORY);
        self.0.insert(namespace.to_owned(), now).is_none()
    }
}

impl Recorder {
    /// A recorder with another source component.
    #[must_use]
    pub fn with_component(&self, component: &'static str) -> Self {
        Self {
            component,
            ..self.clone()
        }
    }

    /// Queues an event about `object`. If there were too many about it, or if the queue is full, the event is dropped and
    /// counted.
    pub fn publish(&self, object: ObjectReference, kind: EventType, reason: &str, message: &str) {
        let source = EventKey::new(self.component, &object, kind, reason);
        if !self.limit.lock().permits(source, Instant::now()) {
            return self.count_lost("suppressed");
        }
        let now = Timestamp::now();
        // Space for the suffix: a name has at most 253 bytes.
        let name = cut(object.name.as_deref().unwrap_or("unknown"), 230);
        let namespace = match object.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => namespace,
            _ => DEFAULT_NAMESPACE,
        };
        let event = Event {
            metadata: ObjectMeta {
                // As client-go names them: unique per object by the time in hexadecimal nanoseconds.
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: object,
            type_: Some(match kind {
                EventType::Normal => "Normal".to_owned(),
                EventType::Warning => "Warning".to_owned(),
            }),
            reason: Some(reason.to_owned()),
            message: Some(cut(message, MAX_MESSAGE).to_owned()),
            source: Some(EventSource {
                component: Some(self.component.to_owned()),
                host: None,
            }),
            reporting_component: Some(self.component.to_owned()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            ..Event::default()
        };
        let queue = match kind {
            EventType::Warning => &self.queue.warnings,
            EventType::Normal => &self.queue.others,
        };
        if queue.try_send(event).is_err() {
            self.count_lost("dropped");
        }
    }

    fn count_lost(&self, result: &'static str) {
        self.written.get_or_create(&ResultLabel { result }).inc();
    }
}

/// At most `bytes` of the text, whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_between_characters() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("aé", 2), "a");
    }

    #[test]
    fn namespaces_that_refuse_events_are_forgotten_after_an_hour() {
        let (mut refusing, start) = (RefusingNamespaces::default(), Instant::now());
        for ci in 0..100 {
            assert!(refusing.refuses(&format!("ci-{ci}"), start), "each is new");
        }
        assert!(!refusing.refuses("ci-1", start + REFUSAL_MEMORY / 2));
        assert!(refusing.refuses("late", start + REFUSAL_MEMORY));
        assert_eq!(refusing.0.len(), 2, "{refusing:?}");
        refusing.accepts("late");
        assert!(refusing.refuses("late", start + REFUSAL_MEMORY), "again");
    }
}
