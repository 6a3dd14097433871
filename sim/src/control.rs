//! The operations that every simulated cloud has: clock, quotas, latency, faults and the call log, in Rust and over
//! HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::calls::Call;
use crate::clock::millis;
use crate::error::{Error, Result};
use crate::faults::{Action, ArmedFault, Fault, FaultState};
use crate::http::{Reply, Request};
use crate::quota::Quota;
use crate::server::{Cloud, Traffic};

/// The behavior of a simulated cloud and its call log. Clones are cheap and belong to the same cloud.
#[derive(Clone)]
pub struct Behavior {
    cloud: Arc<dyn Cloud>,
    traffic: Arc<Traffic>,
}

impl std::fmt::Debug for Behavior {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Behavior").finish_non_exhaustive()
    }
}

impl Behavior {
    pub(crate) fn new(cloud: Arc<dyn Cloud>, traffic: Arc<Traffic>) -> Self {
        Self { cloud, traffic }
    }

    /// Moves the cloud's clock forward: tokens expire, quotas refill, changes take effect.
    pub fn advance_clock(&self, by: Duration) {
        self.traffic.clock.advance(by);
    }

    /// The names of the cloud's services.
    #[must_use]
    pub fn services(&self) -> Vec<&'static str> {
        self.cloud.services()
    }

    /// Sets or removes the request quota of a service, by its name in the call log.
    pub fn set_quota(&self, service: &str, quota: Option<Quota>) {
        self.traffic.quotas.set(service, quota, self.traffic.clock.elapsed());
    }

    /// Sets how long every answer takes. For the requests of one service or operation, see [`Action::Delay`].
    pub fn set_latency(&self, latency: Duration) {
        *self.traffic.latency.lock() = latency;
    }

    /// Sets whether listings have a different order each time, as services without a documented order have.
    pub fn set_any_order(&self, any_order: bool) {
        self.traffic.any_order.store(any_order, Ordering::Relaxed);
    }

    /// The limits and refusals of the real service, as faults that always fire.
    #[must_use]
    pub fn refusals(&self) -> Vec<Fault> {
        self.cloud.refusals()
    }

    /// Adds a fault and returns its number. A stale read answers from the current state.
    pub fn add_fault(&self, fault: Fault) -> u64 {
        let snapshot = (fault.action == Action::StaleRead).then(|| self.cloud.snapshot());
        self.traffic.faults.add(ArmedFault { fault, snapshot })
    }

    /// Removes a fault; `false` if it does not exist.
    pub fn remove_fault(&self, id: u64) -> bool {
        self.traffic.faults.retain(|fault| fault != id)
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.traffic.faults.retain(|_| false);
    }

    /// Waits until a fault with this number holds a request ([`crate::Action::Hold`]), and returns its operation;
    /// `None` if the fault is removed first.
    pub async fn wait_for_fault(&self, id: u64) -> Option<String> {
        self.traffic.faults.reached(id).await
    }

    /// Waits until no request is held. Held requests of a disconnected client are dropped, not carried out.
    pub async fn none_held(&self) {
        self.traffic.faults.none_held().await;
    }

    /// The active faults, and how often they matched and fired.
    pub fn faults(&self) -> Vec<FaultState> {
        self.traffic.faults.list().into_iter().map(Into::into).collect()
    }

    /// All calls since the start or the last [`Behavior::clear_calls`], the newest 100,000 of them.
    pub fn calls(&self) -> Vec<Call> {
        self.traffic.calls.calls()
    }

    /// Number of calls by operation since the start or the last [`Behavior::clear_calls`].
    pub fn call_counts(&self) -> BTreeMap<String, u64> {
        self.traffic.calls.counts()
    }

    /// Clears the call log.
    pub fn clear_calls(&self) {
        self.traffic.calls.clear();
    }

    /// Waits until the log of calls satisfies a condition.
    pub async fn wait_for_calls(&self, done: impl Fn(&[Call]) -> bool) {
        self.traffic.calls.wait(done).await;
    }
}

/// The answer of the control API, or `None` if it does not have the operation.
pub(crate) type Answer = Result<Option<Reply>>;

/// Answers a request of the control API, below `/_sim`.
pub(crate) fn handle(
    cloud: &Arc<dyn Cloud>,
    traffic: &Arc<Traffic>,
    request: &Request,
    segments: &[String],
) -> Reply {
    let path: Vec<&str> = segments.iter().map(String::as_str).filter(|segment| !segment.is_empty()).collect();
    let method = request.method.as_str();
    let behavior = Behavior::new(Arc::clone(cloud), Arc::clone(traffic));
    let answer = match behavior.answer(request, method, &path) {
        Ok(None) => Arc::clone(cloud).control(request, method, &path, behavior),
        answer => answer,
    };
    let problem = |status, message: &str| Reply::json(status, &json!({ "error": message }));
    match answer {
        Ok(Some(reply)) => reply,
        Ok(None) => {
            problem(StatusCode::NOT_FOUND, &format!("no control operation {method} {}", request.path))
        }
        Err(error @ Error::Unknown { .. }) => problem(StatusCode::NOT_FOUND, &error.to_string()),
        Err(error) => problem(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

/// The body of a request of the control API. An empty one counts as an empty object.
pub(crate) fn body<T: DeserializeOwned>(request: &Request) -> Result<T> {
    let bytes: &[u8] = if request.body.is_empty() {
        b"{}"
    } else {
        &request.body
    };
    serde_json::from_slice(bytes).map_err(|error| Error::Invalid(format!("body: {error}")))
}

/// An answer with a document.
pub(crate) fn ok(value: &impl Serialize) -> Answer {
    Ok(Some(Reply::json(StatusCode::OK, value)))
}

/// The answer to a creation, with the new ID.
pub(crate) fn id(id: &str) -> Answer {
    Ok(Some(Reply::json(StatusCode::CREATED, &json!({ "id": id }))))
}

/// The answer to a change.
pub(crate) fn done(_: ()) -> Answer {
    Ok(Some(Reply::empty(StatusCode::NO_CONTENT)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockRequest {
    #[serde(with = "millis", rename = "advance_ms")]
    advance: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LatencyRequest {
    #[serde(with = "millis", rename = "ms")]
    latency: Duration,
}

impl Behavior {
    fn answer(&self, request: &Request, method: &str, path: &[&str]) -> Answer {
        match (method, path) {
            ("GET", ["calls"]) => {
                let since = request.last("since").and_then(|since| since.parse().ok()).unwrap_or(0);
                let op = request.last("op");
                let mut calls = self.calls();
                calls.retain(|call| call.seq > since && op.is_none_or(|op| call.op == op));
                ok(&json!({ "calls": calls }))
            }
            ("DELETE", ["calls"]) => {
                self.clear_calls();
                done(())
            }
            ("GET", ["calls", "counts"]) => ok(&self.call_counts()),
            ("POST", ["clock"]) => {
                self.advance_clock(body::<ClockRequest>(request)?.advance);
                done(())
            }
            ("PUT", ["quotas", service]) => {
                self.set_quota(service, Some(body::<Quota>(request)?));
                done(())
            }
            ("DELETE", ["quotas", service]) => {
                self.set_quota(service, None);
                done(())
            }
            ("POST", ["latency"]) => {
                self.set_latency(body::<LatencyRequest>(request)?.latency);
                done(())
            }
            ("GET", ["faults"]) => ok(&json!({"faults": self.faults()})),
            ("POST", ["faults"]) => {
                let id: Value = json!({"id": self.add_fault(body::<Fault>(request)?)});
                Ok(Some(Reply::json(StatusCode::CREATED, &id)))
            }
            ("DELETE", ["faults"]) => {
                self.clear_faults();
                done(())
            }
            ("DELETE", ["faults", fault]) => {
                if fault.parse().is_ok_and(|fault| self.remove_fault(fault)) {
                    done(())
                } else {
                    Err(Error::unknown("fault", *fault))
                }
            }
            _ => Ok(None),
        }
    }
}
