//! The API server and the simulated clouds as parties of a sweep.

use std::time::Duration;

use ccm_sim::openstack::Control;
use ccm_sim::{Action as CloudAction, Fault, Moment, Quota, RetryAfter};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::Party;
use crate::proxy::{Action, Proxy, Request, Rule};

/// The services of a simulated OpenStack, as quotas and faults name them.
pub const SERVICES_OF_OPENSTACK: [&str; 3] = ["identity", "compute", "network"];

/// How likely each kind of failure is for a call.
const LIKELY: f64 = 0.08;
/// How often the kinds that cost a timeout happen.
const FEW: u64 = 2;
/// A slow answer.
const SLOW: Duration = Duration::from_millis(400);

/// A write that counts: who is the leader is another matter.
fn counts(request: &Request) -> bool {
    request.is_write() && !request.is_lease()
}

impl Party for Proxy {
    fn name(&self) -> &'static str {
        "API server"
    }

    fn forget(&self) {
        Self::forget(self);
    }

    fn calls(&self) -> Vec<String> {
        let writes = self.requests().into_iter().filter(counts);
        writes.map(|request| request.to_string()).collect()
    }

    fn stop_at(&self, nth: u64, moment: Moment) -> BoxFuture<'static, Option<String>> {
        let rule = self.add(Rule::when(counts, Action::Hold(moment)).at(nth));
        self.reached(rule).boxed()
    }

    fn rage(&self, seed: u64) {
        let status = |code, retry_after| Action::Status { code, retry_after };
        let kinds = [
            (status(429, Some(1)), None),
            (status(429, None), None),
            (status(500, None), None),
            (status(503, None), None),
            (Action::Reset, None),
            (Action::CommitThenReset, None),
            (Action::Truncate, None),
            (Action::Delay(SLOW), None),
            // Until the storm is over: what was given up long ago still happens then.
            (Action::Hold(Moment::Before), Some(FEW)),
            (Action::Hold(Moment::AfterCommit), Some(FEW)),
        ];
        for (seed, (action, count)) in (seed..).zip(kinds) {
            let mut rule = Rule::when(|request| !request.is_lease(), action);
            rule.probability = Some(LIKELY);
            rule.count = count;
            rule.seed = seed;
            self.add(rule);
        }
        // A success that says nothing is believable only where nothing was asked to be changed.
        let mut rule = Rule::when(
            |request| !request.is_write() && !request.is_lease(),
            Action::EmptyJson,
        );
        rule.probability = Some(LIKELY);
        rule.seed = seed;
        self.add(rule);
    }

    fn failures(&self) -> u64 {
        self.fired()
    }

    fn calm(&self) {
        self.clear();
    }
}

impl Party for Control {
    fn name(&self) -> &'static str {
        "cloud"
    }

    fn forget(&self) {
        self.clear_calls();
    }

    fn calls(&self) -> Vec<String> {
        Self::calls(self).iter().map(|call| call.op.to_owned()).collect()
    }

    fn stop_at(&self, nth: u64, moment: Moment) -> BoxFuture<'static, Option<String>> {
        let action = CloudAction::Hold { at: moment };
        let kind = action.name();
        let fault = self.add_fault(Fault {
            nth,
            ..Fault::new(action).once()
        });
        let cloud = self.clone();
        async move {
            let reached = cloud.wait_for_fault(fault).await;
            let held = Self::calls(&cloud)
                .into_iter()
                .find(|call| call.fault == Some(kind));
            reached.then(|| held.map_or_else(String::new, |call| call.op.to_owned()))
        }
        .boxed()
    }

    fn rage(&self, seed: u64) {
        let throttle = |retry_after: Option<&str>| CloudAction::Status {
            code: 429,
            body: None,
            headers: retry_after
                .map(|seconds| ("Retry-After".to_owned(), seconds.to_owned()))
                .into_iter()
                .collect(),
        };
        let kinds = [
            (throttle(Some("1")), None),
            (throttle(None), None),
            (CloudAction::status(500), None),
            (CloudAction::status(503), None),
            (CloudAction::Reset, None),
            (CloudAction::Drop, None),
            (CloudAction::CommitThenDrop, None),
            (CloudAction::Truncate { bytes: None }, None),
            (CloudAction::EmptyJson, None),
            (CloudAction::StaleRead, None),
            (CloudAction::Delay { time: SLOW }, None),
            (CloudAction::Hold { at: Moment::Before }, Some(FEW)),
            (
                CloudAction::Hold {
                    at: Moment::AfterCommit,
                },
                Some(FEW),
            ),
        ];
        // So low that calls wait.
        let quota = Quota {
            per_second: 3.0,
            burst: 3,
            retry_after: RetryAfter::Honest,
        };
        for service in SERVICES_OF_OPENSTACK {
            self.set_quota(service, Some(quota.clone()));
        }
        for (seed, (action, count)) in (seed..).zip(kinds) {
            self.add_fault(Fault {
                probability: Some(LIKELY),
                count,
                seed,
                ..Fault::new(action)
            });
        }
    }

    fn failures(&self) -> u64 {
        self.faults().iter().map(|fault| fault.fired).sum()
    }

    fn calm(&self) {
        self.clear_faults();
        for service in SERVICES_OF_OPENSTACK {
            self.set_quota(service, None);
        }
    }
}
