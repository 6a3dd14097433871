//! The call log: every request that reached the simulated cloud, in order of arrival.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::clock::millis;

/// The most logged calls. Counters include older calls that were dropped.
const KEPT: usize = 100_000;

/// One request to the simulated cloud.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    /// Position in the order of arrival, from 1.
    pub seq: u64,
    /// The service by its catalog type: `identity`, `compute`, `network`.
    pub service: &'static str,
    /// The region whose endpoint was used; empty for identity.
    pub region: String,
    /// The catalog interface whose endpoint was used: `public`, `internal` or `admin`.
    pub interface: &'static str,
    /// HTTP method.
    pub method: String,
    /// Path without the query, as it was sent.
    pub path: String,
    /// The query, as it was sent.
    pub query: String,
    /// The operation, for example `server_list`; `unknown` if the service does not have it.
    pub op: &'static str,
    /// Status of the answer; `None` before the answer, and if the client never got one.
    pub status: Option<u16>,
    /// Time of arrival since the simulator's start.
    #[serde(with = "millis", rename = "started_ms")]
    pub started: Duration,
    /// Time until the answer was ready or the client gave up.
    #[serde(with = "millis", rename = "duration_ms")]
    pub duration: Duration,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
    /// The microversion header as it was sent.
    pub microversion: Option<String>,
    /// Size of the answer's body.
    pub bytes: usize,
    /// The injected fault, by its action's name.
    pub fault: Option<&'static str>,
}

#[derive(Debug, Default)]
struct Log {
    calls: VecDeque<Call>,
    counts: BTreeMap<String, u64>,
    last_seq: u64,
}

/// The log of all calls, shared by the server and the control API.
#[derive(Debug)]
pub(crate) struct CallLog {
    log: Mutex<Log>,
    finished: watch::Sender<u64>,
}

impl Default for CallLog {
    fn default() -> Self {
        Self {
            log: Mutex::default(),
            finished: watch::Sender::new(0),
        }
    }
}

impl CallLog {
    /// Adds an arriving call and returns its number. Tasks that wait for calls are notified.
    pub(crate) fn begin(&self, mut call: Call) -> u64 {
        let seq = {
            let mut log = self.log.lock();
            log.last_seq += 1;
            call.seq = log.last_seq;
            *log.counts.entry(call.op.to_owned()).or_default() += 1;
            if log.calls.len() >= KEPT {
                log.calls.pop_front();
            }
            log.calls.push_back(call);
            log.last_seq
        };
        self.finished.send_modify(|changes| *changes += 1);
        seq
    }

    /// Changes an entry; one that was dropped or cleared is ignored.
    pub(crate) fn update(&self, seq: u64, change: impl FnOnce(&mut Call)) {
        {
            let mut log = self.log.lock();
            let Some(first) = log.calls.front().map(|call| call.seq) else {
                return;
            };
            let Some(index) = seq.checked_sub(first).and_then(|index| usize::try_from(index).ok()) else {
                return;
            };
            let Some(call) = log.calls.get_mut(index) else {
                return;
            };
            change(call);
        }
        self.finished.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.log.lock().calls.iter().cloned().collect()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        self.log.lock().counts.clone()
    }

    /// Clears calls and counters; numbers continue.
    pub(crate) fn clear(&self) {
        let mut log = self.log.lock();
        log.calls.clear();
        log.counts.clear();
    }

    /// Waits until the log satisfies `done`.
    pub(crate) async fn wait(&self, done: impl Fn(&[Call]) -> bool) {
        let mut changes = self.finished.subscribe();
        loop {
            changes.borrow_and_update();
            let satisfied = done(self.log.lock().calls.make_contiguous());
            if satisfied || changes.changed().await.is_err() {
                return;
            }
        }
    }
}
