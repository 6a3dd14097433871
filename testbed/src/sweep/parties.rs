//! The API server and the simulated clouds as parties of a sweep.

use std::time::Duration;

use ccm_sim::{Action as CloudAction, Behavior, Fault, Moment, Quota};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::Party;
use crate::proxy::{Action, Controls, Proxy, Request, Rule};

/// The probability of each kind of failure for a call.
pub(crate) const LIKELY: f64 = 0.08;
/// The probability of each of the many forms of a refusal.
pub(crate) const REFUSAL: f64 = 0.02;
/// The probability of faults that block a call until the end of the storm.
const UNLIKELY: f64 = 0.01;
/// The delay of a slow answer.
const SLOW: Duration = Duration::from_millis(400);

/// An answer with this status and no body.
pub(crate) fn status(code: u16, retry_after: Option<u32>) -> Action {
    Action::Status {
        code,
        retry_after,
        body: None,
    }
}

/// The rules of a storm at a proxy, each with its own seed: answers of a throttling server, and all other failures.
pub(crate) fn storm(
    seed: u64,
    throttled: impl IntoIterator<Item = (Action, f64)>,
    rule: impl Fn(Action) -> Rule,
) -> impl Iterator<Item = Rule> {
    let failures = [
        (status(500, None), LIKELY),
        (status(503, None), LIKELY),
        (Action::Reset, LIKELY),
        (Action::CommitThenReset, LIKELY),
        (Action::Truncate, LIKELY),
        (Action::Delay(SLOW), LIKELY),
        // Until the end of the storm: the calls are then carried out, although their clients gave up.
        (Action::Hold(Moment::Before), UNLIKELY),
        (Action::Hold(Moment::AfterCommit), UNLIKELY),
    ];
    (seed..)
        .zip(throttled.into_iter().chain(failures))
        .map(move |(seed, (action, probability))| {
            let mut rule = rule(action);
            (rule.probability, rule.seed) = (Some(probability), seed);
            rule
        })
}

/// Whether the request is a counted write. Leader election is not counted.
fn counts(request: &Request) -> bool {
    request.is_write() && !request.is_lease()
}

impl Party for Proxy {
    fn name(&self) -> &'static str {
        "API server"
    }

    fn forget(&self) {
        Controls::forget(self);
    }

    fn calls(&self) -> Vec<String> {
        let writes = self.requests().into_iter().filter(counts);
        writes.map(|request| request.to_string()).collect()
    }

    fn stop_at(&self, nth: u64, moment: Moment) -> BoxFuture<'static, Option<String>> {
        let rule = self.add(Rule::when(counts, Action::Hold(moment)).at(nth));
        self.reached(rule).boxed()
    }

    fn none_held(&self) -> BoxFuture<'static, ()> {
        Controls::none_held(self).boxed()
    }

    fn inject_faults(&self, seed: u64) {
        let throttled = [(status(429, Some(1)), LIKELY), (status(429, None), LIKELY)];
        for rule in storm(seed, throttled, |action| Rule::when(|request| !request.is_lease(), action)) {
            self.add(rule);
        }
        // An empty success is realistic only for reads.
        let mut rule = Rule::when(|request| !request.is_write() && !request.is_lease(), Action::EmptyJson);
        rule.probability = Some(LIKELY);
        rule.seed = seed;
        self.add(rule);
    }

    fn failures(&self) -> u64 {
        self.fired()
    }

    fn clear_faults(&self) {
        self.clear();
    }
}

impl Party for Behavior {
    fn name(&self) -> &'static str {
        "cloud"
    }

    fn forget(&self) {
        self.clear_calls();
    }

    fn calls(&self) -> Vec<String> {
        Behavior::calls(self).iter().map(|call| call.op.to_owned()).collect()
    }

    fn stop_at(&self, nth: u64, moment: Moment) -> BoxFuture<'static, Option<String>> {
        let fault = self.add_fault(Fault {
            nth,
            ..Fault::new(CloudAction::Hold { at: moment }).once()
        });
        let cloud = self.clone();
        async move { cloud.wait_for_fault(fault).await }.boxed()
    }

    fn none_held(&self) -> BoxFuture<'static, ()> {
        let cloud = self.clone();
        async move { Behavior::none_held(&cloud).await }.boxed()
    }

    fn imitate_real_service(&self) {
        self.set_any_order(true);
    }

    fn inject_faults(&self, seed: u64) {
        let throttle = |retry_after: Option<&str>| CloudAction::Status {
            code: 429,
            body: None,
            headers: retry_after
                .map(|seconds| ("Retry-After".to_owned(), seconds.to_owned()))
                .into_iter()
                .collect(),
        };
        let kinds = [
            (throttle(Some("1")), LIKELY),
            (throttle(None), LIKELY),
            (CloudAction::status(500), LIKELY),
            (CloudAction::status(503), LIKELY),
            (CloudAction::Reset, LIKELY),
            (CloudAction::Drop, LIKELY),
            (CloudAction::CommitThenDrop, LIKELY),
            (CloudAction::Truncate { bytes: None }, LIKELY),
            (CloudAction::EmptyJson, LIKELY),
            (CloudAction::StaleRead, LIKELY),
            (CloudAction::Delay { time: SLOW }, LIKELY),
            (CloudAction::Hold { at: Moment::Before }, UNLIKELY),
            (
                CloudAction::Hold {
                    at: Moment::AfterCommit,
                },
                UNLIKELY,
            ),
        ];
        // Low enough that calls wait.
        let quota = Quota {
            per_second: 3.0,
            burst: 3,
        };
        for service in self.services() {
            self.set_quota(service, Some(quota.clone()));
        }
        for (seed, (action, probability)) in (seed..).zip(kinds) {
            self.add_fault(Fault {
                probability: Some(probability),
                seed,
                ..Fault::new(action)
            });
        }
        for (seed, refusal) in (seed + 50..).zip(self.refusals()) {
            self.add_fault(Fault {
                probability: Some(REFUSAL),
                seed,
                ..refusal
            });
        }
    }

    fn failures(&self) -> u64 {
        self.faults().iter().map(|fault| fault.fired).sum()
    }

    fn clear_faults(&self) {
        self.clear_faults();
        for service in self.services() {
            self.set_quota(service, None);
        }
    }
}
