//! Events and log lines about nodes without routes and about routes that cannot be read, each once per change.

use std::{collections::HashMap, time::Duration};

use ccm_core::{
    Error, ErrorKind,
    controllers::{EventType, Recorder},
    routes::CloudRoute,
};
use ipnet::IpNet;
use tracing::{debug, info, warn};

use super::{
    COMPONENT,
    outcome::{Item, RouteOutcome},
};
use crate::{
    controllers::EVENTS,
    events,
    logging::{Failing, warn_if_new},
};

/// Upstream's reason.
const FAILED: &str = "FailedToCreateRoute";

/// Publishes events and logs failures.
pub(super) struct RouteReports {
    recorder: Recorder,
    /// The failure that was last reported of each node (by uid) and destination.
    reported: HashMap<(String, String), String>,
    reading: Failing<&'static str>,
    full: Failing,
    deleting: Failing<&'static str>,
    blocked: Failing,
    foreign_family: Failing,
}

impl RouteReports {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            reported: HashMap::new(),
            reading: Failing::default(),
            full: Failing::default(),
            deleting: Failing::default(),
            blocked: Failing::default(),
            foreign_family: Failing::default(),
        }
    }

    /// The routes could not be read.
    pub(super) fn unreadable(&mut self, error: &Error) {
        let kind = error.kind().as_str();
        warn_if_new!(
            self.reading.begins(kind),
            controller = COMPONENT,
            kind,
            error = error.report(),
            "Could not read the routes; no route is changed until they can be read"
        );
    }

    /// The routes could be read.
    pub(super) fn readable(&mut self) {
        if self.reading.ends() {
            info!(controller = COMPONENT, "The routes can be read again");
        }
    }

    /// The outcome of everything that is due. `took`: how long the attempt took.
    pub(super) fn outcomes(&mut self, items: &[Item], took: Duration) {
        let failures = items.iter().filter_map(|item| match &item.outcome {
            RouteOutcome::Failed(error) => Some((item, error)),
            RouteOutcome::Done | RouteOutcome::Pending => None,
        });
        let (without_room, others): (Vec<_>, Vec<_>) =
            failures.partition(|(_, error)| error.kind() == ErrorKind::QuotaExceeded);
        let last = std::mem::take(&mut self.reported);
        let mut new = Vec::new();
        for (item, error) in others {
            let key = (item.node.view.uid.clone(), item.destination.clone());
            if last.get(&key).map(String::as_str) != Some(error.message()) {
                new.push((item, error));
            }
            self.reported.insert(key, error.message().to_owned());
        }
        for (item, error) in new.iter().take(EVENTS) {
            self.publish(item, error, took, "");
        }
        if new.len() > EVENTS {
            info!(
                controller = COMPONENT,
                nodes = new.len() - EVENTS,
                "Further nodes have no route either and get no event"
            );
        }
        // One event for all, at the oldest node.
        let Some((item, error)) = without_room.first() else {
            self.full.ends();
            return;
        };
        if self.full.begins(()) {
            let more = match without_room.len() - 1 {
                0 => String::new(),
                others => format!(" ({others} more routes exceed the limit)"),
            };
            self.publish(item, error, took, &more);
            warn!(
                controller = COMPONENT,
                node = item.node.view.name,
                routes = without_room.len(),
                error = error.report(),
                "The route table is full; only the oldest nodes have routes"
            );
        }
    }

    fn publish(&self, item: &Item, error: &Error, took: Duration, more: &str) {
        let view = &item.node.view;
        let object = events::reference("v1", "Node", None, view.name.clone(), Some(view.uid.clone()));
        let took = if item.tried { took } else { Duration::ZERO };
        let message = message(item, error, took, more);
        self.recorder.publish(object, EventType::Warning, FAILED, &message);
        debug!(controller = COMPONENT, node = view.name, message, "A node has no route");
    }

    /// The outcome of routes that were to be deleted.
    pub(super) fn deletions<'a>(
        &mut self,
        results: impl Iterator<Item = (&'a CloudRoute, &'a ccm_core::Result<()>)>,
    ) {
        for (route, result) in results {
            match result {
                Ok(()) => {
                    self.deleting.ends();
                }
                Err(error) => warn_if_new!(
                    self.deleting.begins(error.kind().as_str()),
                    controller = COMPONENT,
                    route = %route,
                    error = error.report(),
                    "Could not delete a route, trying again"
                ),
            }
        }
    }

    /// So many routes stay because no node has a podCIDR.
    pub(super) fn blocked(&mut self, routes: usize) {
        if routes == 0 {
            self.blocked.ends();
        } else if self.blocked.begins(()) {
            warn!(
                controller = COMPONENT,
                routes, "No node has a podCIDR: routes that no node needs are not deleted"
            );
        }
    }

    /// Whether a podCIDR has no cluster CIDR of its family.
    pub(super) fn foreign_family(&mut self, example: Option<IpNet>) {
        let Some(example) = example else {
            self.foreign_family.ends();
            return;
        };
        if self.foreign_family.begins(()) {
            warn!(
                controller = COMPONENT,
                pod_cidr = %example,
                "Nodes have podCIDRs of a family that --cluster-cidr does not name: no routes are created for them"
            );
        }
    }
}

/// In upstream's words.
fn message(item: &Item, error: &Error, took: Duration, more: &str) -> String {
    let view = &item.node.view;
    // To the millisecond.
    let took = Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    format!(
        "Could not create route {} {} for node {} after {took:?}: {}{more}",
        view.uid,
        item.destination,
        view.name,
        error.report()
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::sync::Arc;

    use ccm_core::{NodeView, routes::RouteNode};

    use super::*;

    #[test]
    fn messages_are_upstreams() {
        let item = Item {
            node: Arc::new(RouteNode {
                view: Arc::new(NodeView {
                    name: "n1".to_owned(),
                    uid: "u1".to_owned(),
                    ..NodeView::default()
                }),
                ..RouteNode::default()
            }),
            destination: "10.244.1.0/24".to_owned(),
            outcome: RouteOutcome::Pending,
            tried: true,
            exists: false,
        };
        let error = Error::new(ErrorKind::InvalidSpec, "no such next hop");
        assert_eq!(
            message(&item, &error, Duration::from_micros(1_234_567), ""),
            "Could not create route u1 10.244.1.0/24 for node n1 after 1.234s: no such next hop"
        );
    }
}
