//! Events about Services: their texts, and the last reported ones.
//!
//! Many passes end in the same way: a cloud fails, a value cannot be followed. Only new outcomes get an event. A failure that
//! ended may be reported again.

use std::{collections::HashMap, time::Duration};

use ccm_core::{
    Error, ErrorKind,
    controllers::{EventType, Recorder},
    load_balancer::{
        NodeSet, OrphanPart, PartKey, PartReport, PartState, ServiceEvent, ServiceId, ServiceView,
    },
};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{COMPONENT, orphans, state::Output};
use crate::{
    events,
    logging::{FailingByKind, warn_if_new},
};

/// After this, an event is published again: the API server keeps events for an hour.
const EVENT_REPEAT_INTERVAL: Duration = Duration::from_secs(1800);
/// The same after a start, for what another process probably published. Shorter than the wait for the next comparison.
const REPEAT_AFTER_START: Duration = Duration::from_secs(540);
/// How many nodes an event names.
const NODE_NAMES: usize = 20;
/// How many orphans an event names.
const ORPHANS: usize = 5;

/// A normal event.
pub(super) fn normal(service: &ServiceId, reason: &'static str, message: &str) -> ServiceEvent {
    ServiceEvent {
        warning: false,
        ..ServiceEvent::warning(service, reason, message)
    }
}

/// The last reports about a Service.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// By part. The part without a name is the discovery.
    parts: HashMap<PartKey, PartReports>,
    /// Whether an event reported work on its load balancer.
    pub(super) work: bool,
    /// The failure to write its object.
    pub(super) not_written: Option<String>,
}

/// The last reports about a Service and one of its parts.
#[derive(Debug, Default)]
pub(super) struct PartReports {
    pub(super) failure: Option<FailureReport>,
    /// Events of the provider.
    events: Vec<ServiceEvent>,
    /// Differences that stay; empty if there are none.
    blocked: String,
    /// When the event about the failure was published.
    failure_published: Option<Instant>,
    /// When the event about the differences was published.
    blocked_published: Option<Instant>,
    /// The load balancer has no nodes.
    pub(super) no_nodes: bool,
}

impl PartReports {
    fn has_published(&self, failure: &FailureReport) -> bool {
        self.failure.as_ref() == Some(failure) && is_recent(self.failure_published)
    }

    /// Another process probably published the differences: if they stay, their Event comes soon.
    pub(super) fn expect_repetition(&mut self) {
        self.blocked_published = self
            .blocked_published
            .and_then(|at| at.checked_sub(EVENT_REPEAT_INTERVAL - REPEAT_AFTER_START));
    }
}

/// Whether an event was published so recently that the API server still has it.
fn is_recent(published: Option<Instant>) -> bool {
    published.is_some_and(|at| at.elapsed() < EVENT_REPEAT_INTERVAL)
}

/// A failure, without the details that change with every try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailureReport {
    kind: &'static str,
    identity: String,
}

impl Reported {
    /// The reports about the part. From now on, the part [is known](Self::has).
    pub(super) fn of(&mut self, part: &PartKey) -> &mut PartReports {
        self.parts.entry(part.clone()).or_default()
    }

    /// Whether a pass over the part ended, or failed.
    pub(super) fn has(&self, part: &PartKey) -> bool {
        self.parts.contains_key(part)
    }

    /// The Service begins or ends to want a load balancer: events about its work and its failures are other ones.
    pub(super) fn turn(&mut self) {
        self.work = false;
        for reports in self.parts.values_mut() {
            reports.failure_published = None;
        }
    }

    /// Records a failure. Returns whether to publish it: it is new, or its event is old, and no other part reported the same.
    pub(super) fn fail(&mut self, part: &PartKey, failure: &FailureReport) -> bool {
        let mut others = self.parts.iter().filter(|(other, _)| *other != part);
        let elsewhere = others.any(|(_, reports)| reports.has_published(failure));
        let reports = self.of(part);
        let is_known = reports.has_published(failure);
        reports.failure = Some(failure.clone());
        if elsewhere || is_known {
            return false;
        }
        reports.failure_published = Some(Instant::now());
        true
    }

    /// Forgets the reports about other parts.
    pub(super) fn retain(&mut self, is_part: impl Fn(&PartKey) -> bool) {
        self.parts.retain(|part, _| is_part(part));
    }

    pub(super) fn rename(&mut self, old: &PartKey, new: &PartKey) {
        if let Some(reports) = self.parts.remove(old) {
            self.parts.insert(new.clone(), reports);
        }
    }

    /// The kind of a failure, for metrics.
    pub(super) fn failure_kind(&self) -> Option<&'static str> {
        self.failure().map(|failure| failure.kind)
    }

    fn failure(&self) -> Option<&FailureReport> {
        self.parts.values().find_map(|reports| reports.failure.as_ref())
    }

    /// The differences that stay because they are blocked, in one of its parts.
    pub(super) fn blocked(&self) -> Option<&String> {
        let mut blocked = self.parts.values().map(|reports| &reports.blocked);
        blocked.find(|blocked| !blocked.is_empty())
    }

    /// The problem for the status page: a failure before a difference that stays.
    pub(super) fn error(&self) -> Option<String> {
        let failure = self.failure().map(|failure| failure.identity.clone());
        let problem = failure.or_else(|| self.blocked().cloned());
        problem.or_else(|| self.not_written.clone())
    }

    /// A pass ended: the new events of the provider, and differences that stay.
    pub(super) fn pass_ended(&mut self, part: &PartKey, id: &ServiceId, report: &PartReport) -> Vec<Output> {
        let present = || report.events.iter().filter(|event| event.service == *id);
        let mut outputs = Vec::new();
        for event in present() {
            // Each part that refuses an invalid Service reports it.
            let is_reported = self.parts.values().any(|reports| reports.events.contains(event));
            let known = &mut self.of(part).events;
            if !known.contains(event) {
                known.push(event.clone());
            }
            if !is_reported {
                outputs.push(Output::ProviderEvent(event.clone()));
            }
        }
        let reports = self.of(part);
        // A pass that continues later does not report them all again.
        if !matches!(report.state, PartState::Done) {
            return outputs;
        }
        reports.events.retain(|event| present().any(|present| present == event));
        let blocked = report
            .blocked
            .iter()
            .filter(|blocked| blocked.service.as_ref().is_none_or(|service| service == id))
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ");
        let is_known = reports.blocked == blocked && is_recent(reports.blocked_published);
        reports.blocked.clone_from(&blocked);
        if !blocked.is_empty() && !is_known {
            reports.blocked_published = Some(Instant::now());
            let event = ServiceEvent::warning(id, "LoadBalancerChangeBlocked", blocked);
            outputs.push(Output::Event(event));
        }
        outputs
    }
}

/// Why a Service could not be served.
#[derive(Clone, Copy)]
pub(super) enum Failure<'a> {
    /// The cloud or the provider refused.
    Error(&'a Error),
    /// Nothing may be changed, since a known object is not visible.
    Blocked(&'a str),
}

impl Failure<'_> {
    /// Whether it failed only because another process leads.
    pub(super) fn is_not_leader(&self) -> bool {
        matches!(self, Self::Error(error) if error.kind() == ErrorKind::NotLeader)
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Error(error) => error.report(),
            Self::Blocked(why) => (*why).to_owned(),
        }
    }

    /// The metric label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Error(error) => error.kind().as_str(),
            Self::Blocked(_) => "NotSeen",
        }
    }

    /// The report, which is the same while it fails in the same way.
    pub(super) fn report(&self, reason: &str) -> FailureReport {
        let identity = match self {
            Self::Error(error) => {
                let operation = error.operation().unwrap_or_default();
                format!("{reason} {} {operation} {}", error.kind(), error.message())
            }
            Self::Blocked(why) => format!("{reason} {why}"),
        };
        FailureReport {
            kind: self.label(),
            identity,
        }
    }

    /// The event for this Service, in upstream's words. `nodes`: it only follows changed nodes.
    pub(super) fn event(&self, view: &ServiceView, nodes: Option<&NodeSet>) -> ServiceEvent {
        let text = self.text();
        if let Some(nodes) = nodes {
            let (names, total) = node_names(nodes);
            let message = format!(
                "Error updating load balancer with new hosts {names} [node names limited, total number of nodes: \
                 {total}], error: {text}"
            );
            return ServiceEvent::warning(&view.id, "UpdateLoadBalancerFailed", message);
        }
        let what = if view.wants_load_balancer() {
            "ensure"
        } else {
            "delete"
        };
        let message = format!("Error syncing load balancer: failed to {what} load balancer: {text}");
        ServiceEvent::warning(&view.id, "SyncLoadBalancerFailed", message)
    }
}

/// The names of the first members, and how many there are.
fn node_names(nodes: &NodeSet) -> (String, usize) {
    let total = nodes.eligible().count();
    let first = nodes.eligible().take(NODE_NAMES);
    let mut names: Vec<_> = first.map(|node| node.view.name.clone()).collect();
    if total > NODE_NAMES {
        names.push(format!("<{} more>", total - NODE_NAMES));
    }
    (format!("[{}]", names.join(" ")), total)
}

/// Publishes events, and logs failures.
pub(super) struct EventReporter {
    recorder: Recorder,
    provider: Recorder,
    /// The object of events about the cloud as a whole.
    process: ObjectReference,
    failing: FailingByKind,
}

impl EventReporter {
    /// `provider` publishes the provider's own events.
    pub(super) fn new(recorder: Recorder, provider: Recorder, process: ObjectReference) -> Self {
        Self {
            recorder,
            provider,
            process,
            failing: FailingByKind::default(),
        }
    }

    pub(super) fn publish(&self, event: &ServiceEvent) {
        publish(&self.recorder, event);
    }

    /// Publishes an event of the provider.
    pub(super) fn publish_for_provider(&self, event: &ServiceEvent) {
        publish(&self.provider, event);
    }

    /// Publishes one event, and one line of log each, for new orphans.
    pub(super) fn publish_orphans(&self, orphans: &[OrphanPart], deletes: bool) {
        let text =
            |orphan: &OrphanPart| format!("{}: {}", orphan.what, orphans::consequence(orphan, deletes));
        let texts: Vec<_> = orphans.iter().map(text).collect();
        for text in &texts {
            warn!(controller = COMPONENT, orphan = text, "Its Service does not exist");
        }
        let objects = match texts.len() {
            1 => "1 object".to_owned(),
            number => format!("{number} objects"),
        };
        let first: Vec<_> = texts.iter().take(ORPHANS).map(String::as_str).collect();
        let mut message =
            format!("{objects} in the cloud of Services that do not exist: {}", first.join("; "));
        let more = texts.len().saturating_sub(ORPHANS);
        if more > 0 {
            message.push_str(&format!("; and {more} more (see /statusz)"));
        }
        let object = self.process.clone();
        self.recorder.publish(object, EventType::Warning, "OrphanedLoadBalancers", &message);
    }

    /// Logs that something fails: as a warning if it is the first to fail in this way.
    pub(super) fn failed(&self, what: &str, kind: &'static str, error: &str) {
        let (is_first, ended) = self.failing.failed(what, kind);
        warn_if_new!(is_first, controller = COMPONENT, what, kind, error, "Load balancer work failed");
        log_end(ended);
    }

    /// Logs that it does not fail any more.
    pub(super) fn works(&self, what: &str) {
        log_end(self.failing.works(what));
    }
}

fn publish(recorder: &Recorder, event: &ServiceEvent) {
    let id = &event.service;
    let (namespace, uid) = (Some(id.namespace.to_string()), Some(id.uid.to_string()));
    let object = events::reference("v1", "Service", namespace, id.name.to_string(), uid);
    let kind = if event.warning {
        EventType::Warning
    } else {
        EventType::Normal
    };
    recorder.publish(object, kind, event.reason, &event.message);
}

fn log_end(kind: Option<&'static str>) {
    if let Some(kind) = kind {
        info!(controller = COMPONENT, kind, "No load balancer work fails for this reason any more");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ccm_core::{NodeView, load_balancer::ServiceNode};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_published_again_before_the_api_server_forgets_its_event() {
        let [part, other] = ["lb/a", "node-sg"].map(PartKey::new);
        let mut reported = Reported::default();
        let failure = Failure::Blocked("why").report("SyncLoadBalancerFailed");
        let mut published = Vec::new();
        for wait in [0, 60, 1740, 60] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            // Another part fails in the same way.
            published.push([&part, &other].map(|part| reported.fail(part, &failure)));
        }
        let (once, never) = ([true, false], [false, false]);
        assert_eq!(published, [once, never, once, never]);
    }

    #[test]
    fn several_parts_report_the_same_event_of_the_provider_once() {
        let id = ServiceId::new("shop", "web", "uid");
        let report = |part: &PartKey, events: &[&str]| PartReport {
            part: part.clone(),
            renamed: None,
            state: PartState::Done,
            steps: Vec::new(),
            pass_steps: 0,
            members: Vec::new(),
            blocked: Vec::new(),
            events: events.iter().map(|text| ServiceEvent::warning(&id, "Mixed", *text)).collect(),
            next: Vec::new(),
        };
        let [part, other] = ["lb/a", "http-check"].map(PartKey::new);
        let mut reported = Reported::default();
        let mut published =
            |part: &PartKey, events: &[&str]| reported.pass_ended(part, &id, &report(part, events)).len();
        assert_eq!((published(&part, &["one"]), published(&other, &["one", "two"])), (1, 1));
        // One of them does not report it any more, then both, then it is new.
        assert_eq!((published(&part, &[]), published(&other, &["one"])), (0, 0));
        assert_eq!((published(&other, &[]), published(&part, &["one"])), (0, 1));
    }

    fn nodes(count: usize) -> NodeSet {
        (0..count)
            .map(|i| ServiceNode {
                view: Arc::new(NodeView {
                    name: format!("n{i:02}"),
                    ..NodeView::default()
                }),
                eligible: true,
                ..ServiceNode::default()
            })
            .collect()
    }

    #[test]
    fn names_of_many_nodes_are_cut() {
        assert_eq!(node_names(&nodes(2)), ("[n00 n01]".to_owned(), 2));
        let (names, total) = node_names(&nodes(23));
        assert!(names.ends_with("n19 <3 more>]"), "{names}");
        assert_eq!(total, 23);
    }
}
