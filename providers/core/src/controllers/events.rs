//! Kubernetes Events.
//!
//! Written as core/v1 with upstream's source component, since the roles that clusters already have grant no other
//! group. Writing is in the background and best effort: an event that cannot be written is dropped and counted, and
//! never delays the work that it reports. A controller reports a thing once: it decides when the content changed, this
//! module only writes.

use std::{collections::HashSet, time::Duration};

use futures_util::StreamExt;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use prometheus_client::{encoding::EncodeLabelSet, metrics::counter::Counter, metrics::family::Family};
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// How many events may wait to be written. A burst of thousands of nodes fits; what does not is dropped.
const CAPACITY: usize = 20_000;

/// How many events are written at the same time.
const PARALLEL: usize = 16;

/// The API server refuses longer messages.
const MAX_MESSAGE: usize = 1024;

/// The namespace of events about objects without one.
const DEFAULT_NAMESPACE: &str = "default";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Whether somebody has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// No.
    Normal,
    /// Somebody should.
    Warning,
}

/// How many events there were, of all writers.
#[derive(Clone, Debug, Default)]
pub struct EventMetrics(Family<ResultLabel, Counter>);

impl EventMetrics {
    /// Registers `ccm_events_total`.
    pub fn register(registry: &mut prometheus_client::registry::Registry) -> Self {
        let written = Family::default();
        registry.register(
            "ccm_events",
            "Kubernetes Events, by what became of them: written, failed, dropped (queue full)",
            written.clone(),
        );
        Self(written)
    }
}

/// Queues events of one controller. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    component: &'static str,
    sender: mpsc::Sender<Event>,
    written: Family<ResultLabel, Counter>,
}

/// Writes what recorders queue, until every recorder is gone.
pub struct Writer {
    client: Client,
    receiver: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    written: Family<ResultLabel, Counter>,
}

impl Writer {
    /// A writer through this client.
    #[must_use]
    pub fn new(client: Client, metrics: &EventMetrics) -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        Self {
            client,
            receiver,
            sender,
            written: metrics.0.clone(),
        }
    }

    /// A recorder whose events have this source component.
    #[must_use]
    pub fn recorder(&self, component: &'static str) -> Recorder {
        Recorder {
            component,
            sender: self.sender.clone(),
            written: self.written.clone(),
        }
    }

    /// Reads what is queued and writes none of it, until the last recorder is dropped.
    pub async fn discard(self) {
        let Self {
            mut receiver, sender, ..
        } = self;
        drop(sender);
        while receiver.recv().await.is_some() {}
    }

    /// Writes until the last recorder is dropped and everything that was queued is written.
    pub async fn run(self) {
        let Self {
            client,
            receiver,
            sender,
            written,
        } = self;
        drop(sender);
        // Namespaces whose events are refused, so that each is logged once: one that was finalized by force refuses all.
        let refusing: Mutex<HashSet<String>> = Mutex::default();
        let events = futures_util::stream::unfold(receiver, async |mut receiver| {
            let event = receiver.recv().await?;
            Some((event, receiver))
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
                        refusing.lock().remove(&namespace);
                    }
                    Some(error) if refusing.lock().insert(namespace.clone()) => warn!(
                        error,
                        namespace,
                        object,
                        "Could not write event; further ones of this namespace are not logged"
                    ),
                    Some(error) => debug!(error, namespace, object, "Could not write event"),
                }
            })
            .await;
    }
}

impl Recorder {
    /// The same with another source component.
    #[must_use]
    pub fn with_component(&self, component: &'static str) -> Self {
        Self {
            component,
            ..self.clone()
        }
    }

    /// Queues an event about `object`. If too many wait to be written, it is dropped and counted.
    pub fn publish(&self, object: ObjectReference, kind: EventType, reason: &str, message: &str) {
        let now = Timestamp::now();
        // Room for the suffix: a name has at most 253 bytes.
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
        if self.sender.try_send(event).is_err() {
            self.written
                .get_or_create(&ResultLabel { result: "dropped" })
                .inc();
        }
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
}
