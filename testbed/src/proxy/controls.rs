//! The rules and the request log of a proxy.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Request;
use super::rules::{Rule, Rules};

/// The rules and the log of a proxy.
#[derive(Debug, Default)]
pub struct Controls {
    pub(super) rules: Arc<Rules>,
    log: Mutex<Log>,
    /// Notifies about changes of the log.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Log {
    last: u64,
    requests: Vec<Request>,
}

impl Controls {
    /// Adds a rule and returns its number. Rules are evaluated in the order in which they were added.
    pub fn add(&self, rule: Rule) -> u64 {
        self.rules.add(rule)
    }

    /// Removes a rule. Requests that it holds continue.
    pub fn remove(&self, id: u64) {
        self.rules.retain(|rule| rule != id);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.rules.retain(|_| false);
    }

    /// How often the present rules have fired.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.rules.list().iter().map(|state| state.fired).sum()
    }

    /// Waits until no request is held. Requests of a disconnected client are dropped, not carried out.
    pub fn none_held(&self) -> impl Future<Output = ()> + Send + use<> {
        let rules = Arc::clone(&self.rules);
        async move { rules.none_held().await }
    }

    /// The first request that a rule holds ([`Action::Hold`](super::Action::Hold)), or none if the rule is removed before.
    pub fn reached(&self, id: u64) -> impl Future<Output = Option<String>> + Send + use<> {
        let rules = Arc::clone(&self.rules);
        async move { rules.reached(id).await }
    }

    /// All requests since the start or the last [`Self::forget`], in the order of their arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().requests.clone()
    }

    /// Reads these requests without a copy.
    pub fn with_requests<T>(&self, read: impl FnOnce(&[Request]) -> T) -> T {
        read(&self.log.lock().requests)
    }

    /// The number of requests by service and name of the call.
    #[must_use]
    pub fn call_counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        self.with_requests(|requests| {
            for request in requests {
                *counts.entry(format!("{} {}", request.resource, request.name)).or_default() += 1;
            }
        });
        counts
    }

    /// The requests that may change something.
    #[must_use]
    pub fn writes(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(Request::is_write);
        requests
    }

    /// Clears the log of requests.
    pub fn forget(&self) {
        self.log.lock().requests.clear();
    }

    /// Waits until the log of requests satisfies a condition.
    pub async fn wait_for(&self, done: impl Fn(&[Request]) -> bool) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            // The sender is in `self`, so that waiting cannot fail.
            if done(&self.requests()) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Adds a request to the log and numbers it.
    pub(super) fn record(&self, mut request: Request) -> Request {
        {
            let mut log = self.log.lock();
            log.last += 1;
            request.seq = log.last;
            log.requests.push(request.clone());
        }
        self.changes.send_replace(());
        request
    }

    /// Changes a request in the log, unless it was forgotten.
    pub(super) fn update(&self, seq: u64, change: impl FnOnce(&mut Request)) {
        let mut log = self.log.lock();
        // Recent requests, which change, are at the end.
        if let Some(request) = log.requests.iter_mut().rev().find(|request| request.seq == seq) {
            change(request);
        }
        drop(log);
        self.changes.send_replace(());
    }
}
