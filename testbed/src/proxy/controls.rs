//! What every proxy has: rules for the requests that pass, and a log of them.

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
    /// Changes with the log.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Log {
    last: u64,
    requests: Vec<Request>,
}

impl Controls {
    /// Adds a rule and returns its number. Rules are asked in the order in which they were added.
    pub fn add(&self, rule: Rule) -> u64 {
        self.rules.add(rule)
    }

    /// Removes a rule; the requests that it held go on.
    pub fn remove(&self, id: u64) {
        self.rules.retain(|rule| rule != id);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.rules.retain(|_| false);
    }

    /// How often the rules in force have fired.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.rules.list().iter().map(|state| state.fired).sum()
    }

    /// Waits until no request is held any more: those of a client that is gone are forgotten, not carried out.
    pub fn none_held(&self) -> impl Future<Output = ()> + Send + use<> {
        let rules = Arc::clone(&self.rules);
        async move { rules.none_held().await }
    }

    /// The request that a rule holds ([`Action::Hold`](super::Action::Hold)), as soon as there is one; none if the rule is
    /// removed before.
    pub fn reached(&self, id: u64) -> impl Future<Output = Option<String>> + Send + use<> {
        let rules = Arc::clone(&self.rules);
        async move { rules.reached(id).await }
    }

    /// All requests since the start or the last [`Self::forget`], in the order of their arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().requests.clone()
    }

    /// Looks at these requests without a copy of them.
    pub fn with_requests<T>(&self, look: impl FnOnce(&[Request]) -> T) -> T {
        look(&self.log.lock().requests)
    }

    /// The requests that may change something.
    #[must_use]
    pub fn writes(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(Request::is_write);
        requests
    }

    /// Forgets all requests so far.
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

    /// Writes a request into the log and gives it a number.
    pub(super) fn enter(&self, mut request: Request) -> Request {
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
        // The newest are at the end, and it is them that change.
        if let Some(request) = log.requests.iter_mut().rev().find(|request| request.seq == seq) {
            change(request);
        }
        drop(log);
        self.changes.send_replace(());
    }
}
