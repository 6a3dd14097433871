//! The suite for the load balancers of all providers.

use std::sync::Arc;

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{
        cluster::{WaitUntil, advance_to},
        conformance::{
            self, BalancerSubject, BoxError, Budgets, CallKind, CloudCall, Cost, Edit, EditResult, Failure,
        },
    },
};
use ccm_testbed::{
    proxy::{Action, Moment, Request, Rule, gce_refusal, is_gce_write},
    test_cloud::{GceCloud, TestCloud as _},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::json;

use crate::load_balancers::{node, start};

/// The name of the load balancer of the suite's Service `web`.
const WEB: &str = "auidweb";

#[derive(Default)]
struct Project {
    gce: Mutex<Option<Arc<GceCloud>>>,
}

impl Project {
    fn gce(&self) -> Arc<GceCloud> {
        Arc::clone(self.gce.lock().as_ref().unwrap())
    }
}

const EDITS: [Edit; 7] = [
    Edit::new("delete forwarding rule", EditResult::Reverted),
    Edit::new("delete firewall rule", EditResult::Reverted),
    Edit::new("admit all", EditResult::Reverted),
    Edit::new("remove member", EditResult::Reverted),
    Edit::new("check less often", EditResult::Unchanged),
    Edit::new("reserve address", EditResult::Foreign),
    Edit::new("allow ssh", EditResult::Foreign),
];

#[async_trait]
impl BalancerSubject for Project {
    async fn reset(&self) -> Result<(), BoxError> {
        *self.gce.lock() = Some(Arc::new(GceCloud::start().await?));
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        let gce = self.gce();
        // The names of the nodes of the suite do not begin with their network tag.
        let conf = format!("{}node-tags = node\n", gce.config());
        Ok(start(&gce, &conf, &[]).await)
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        Ok(node(&self.gce(), name).await)
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        Ok(self.gce().picture(&[]).await?.lines().to_vec())
    }

    /// Objects have no tags. Their names have the UID of the Service.
    fn reads_ownership(&self) -> bool {
        false
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        let gce = self.gce();
        let requests = gce.proxy.requests();
        gce.proxy.forget();
        let call = |request: Request| CloudCall {
            kind: match request.resource.as_str() {
                "compute" if is_gce_write(&request.name) => CallKind::Write,
                "compute" => CallKind::Read,
                _ => CallKind::Authentication,
            },
            operation: request.name,
        };
        requests.into_iter().map(call).collect()
    }

    fn budgets(&self) -> Budgets {
        let cost = |writes, reads| Cost { writes, reads };
        Budgets {
            create: cost(7, 24),
            restart_reads: 22,
            join: cost(1, 6),
            delete: cost(5, 12),
        }
    }

    fn can_fail(&self, call: &CloudCall, failure: Failure) -> bool {
        call.kind == CallKind::Write || failure != Failure::Busy
    }

    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()> {
        let action = match failure {
            Failure::Busy => Action::answer(400, gce_refusal(400, "resourceNotReady")),
            // Without the reason that lets calls wait for the next minute.
            Failure::Throttled => Action::status(429),
            Failure::Unavailable => Action::status(503),
            Failure::LostReply => Action::CommitThenReset,
            Failure::NoReply => Action::Hold(Moment::AfterCommit),
        };
        let gce = self.gce();
        let calls_only = |request: &Request| request.resource == "compute";
        let rule = gce.proxy.add(Rule::when(calls_only, action).at(u64::try_from(nth).unwrap()));
        gce.proxy.reached(rule).map(drop).boxed()
    }

    fn failure_points(&self) -> usize {
        8
    }

    fn edits(&self) -> &[Edit] {
        &EDITS
    }

    async fn edit(&self, name: &str) -> Result<(), BoxError> {
        let gce = self.gce();
        let (method, path, body) = match name {
            "delete forwarding rule" => {
                (Method::DELETE, format!("regions/us-central1/forwardingRules/{WEB}"), None)
            }
            "delete firewall rule" => (Method::DELETE, format!("global/firewalls/k8s-fw-{WEB}"), None),
            "admit all" => {
                let body = json!({"allowed": [{"IPProtocol": "all"}]});
                (Method::PATCH, format!("global/firewalls/k8s-fw-{WEB}"), Some(body))
            }
            "remove member" => {
                let pools = gce.objects(&["targetPools"]).await?;
                let pool = pools.values().next().ok_or("no target pool")?;
                // The last one, so that the list has the same order again.
                let last = pool["instances"].as_array().and_then(|all| all.last());
                let body = json!({"instances": [{"instance": last}]});
                (Method::POST, format!("regions/us-central1/targetPools/{WEB}/removeInstance"), Some(body))
            }
            "check less often" => {
                let body = json!({"checkIntervalSec": 20});
                (Method::PATCH, "global/httpHealthChecks/k8s-c1-node".to_owned(), Some(body))
            }
            "reserve address" => {
                let body = json!({"name": "mine", "networkTier": "PREMIUM"});
                (Method::POST, "regions/us-central1/addresses".to_owned(), Some(body))
            }
            "allow ssh" => {
                let body = json!({
                    "name": "allow-ssh", "network": "global/networks/default", "sourceRanges": ["10.0.0.0/8"],
                    "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
                });
                (Method::POST, "global/firewalls".to_owned(), Some(body))
            }
            other => return Err(format!("unknown edit {other}").into()),
        };
        gce.call(method, &path, body.as_ref()).await?;
        Ok(())
    }

    fn wait_until(&self) -> WaitUntil {
        advance_to
    }

    fn change(&self, service: &mut ServiceView) {
        service.source_ranges = Some(vec!["10.0.0.0/8".into()]);
    }
}

conformance::balancer_tests!(Project::default());
