//! The suite for all providers, on the simulator.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{
        cluster::WaitUntil,
        conformance::{
            self, BalancerSubject, BoxError, Budgets, CallKind, CloudCall, Cost, Edit, EditResult, Failure,
        },
    },
};
use ccm_sim::{
    Action, Fault, Moment,
    openstack::{BalancerState, Config, Control, OpenStack},
};
use ccm_testbed::picture::Picture;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    other_client::OtherClient,
    stage::{MANAGED, advance_to, annotate, build, conf_of, node},
};

#[derive(Default)]
struct Simulated {
    sim: Mutex<Option<Arc<OpenStack>>>,
    /// The server of the last node.
    server: Mutex<String>,
}

impl Simulated {
    fn sim(&self) -> Arc<OpenStack> {
        Arc::clone(self.sim.lock().as_ref().unwrap())
    }
}

const EDITS: [Edit; 16] = [
    Edit::new("delete load balancer", EditResult::Reverted),
    Edit::new("delete listener", EditResult::Reverted),
    Edit::new("delete pool", EditResult::Reverted),
    Edit::new("delete member", EditResult::Reverted),
    Edit::new("delete health monitor", EditResult::Reverted),
    Edit::new("delete security group", EditResult::Reverted),
    Edit::new("delete floating IP", EditResult::Reverted),
    Edit::new("detach floating IP", EditResult::Reverted),
    Edit::new("limit connections", EditResult::Reverted),
    Edit::new("change algorithm", EditResult::Reverted),
    Edit::new("change delay", EditResult::Reverted),
    Edit::new("rename listener", EditResult::Unchanged),
    Edit::new("drain member", EditResult::Unchanged),
    Edit::new("tag listener", EditResult::Unchanged),
    Edit::new("create load balancer", EditResult::Foreign),
    Edit::new("add security group to port", EditResult::Foreign),
];

/// The id of the object that an edit patches, and the change.
fn patch(name: &str, web: &BalancerState) -> Option<(String, Value)> {
    let listener = &web.listeners[0];
    let (object, change) = match name {
        "limit connections" => (listener, json!({"connection_limit": 3})),
        "change algorithm" => (&web.pools[0], json!({"lb_algorithm": "SOURCE_IP"})),
        "change delay" => (&web.healthmonitors[0], json!({"delay": 77})),
        "rename listener" => (listener, json!({"name": "prod"})),
        "drain member" => (&web.members[0], json!({"weight": 0})),
        "tag listener" => {
            let mut tags = listener.attributes["tags"].as_array().unwrap().clone();
            tags.push(json!("of a person"));
            (listener, json!({"tags": tags}))
        }
        _ => return None,
    };
    Some((object.id.clone(), change))
}

/// Deletes or detaches the object that an edit names.
fn remove(name: &str, sim: &Control, web: &BalancerState) -> Result<(), BoxError> {
    let floating = || sim.floating_ips().remove(0).address;
    let object = match name {
        "delete load balancer" => &web.loadbalancer,
        "delete listener" => &web.listeners[0],
        "delete pool" => &web.pools[0],
        "delete member" => &web.members[0],
        "delete health monitor" => &web.healthmonitors[0],
        "delete security group" => {
            let groups = sim.security_groups();
            let group = groups.iter().find(|group| group.name.contains("lb-sg-"));
            return Ok(sim.delete_group(&group.unwrap().id)?);
        }
        "delete floating IP" => return Ok(sim.remove_floating(floating())?),
        "detach floating IP" => return Ok(sim.detach_floating(floating())?),
        other => return Err(format!("there is no edit {other}").into()),
    };
    Ok(sim.delete_object(&object.id)?)
}

#[async_trait]
impl BalancerSubject for Simulated {
    async fn reset(&self) -> Result<(), BoxError> {
        let sim = OpenStack::start(Config::default()).await?;
        *self.sim.lock() = Some(Arc::new(sim));
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(build(&conf_of(&self.sim(), MANAGED)).await?)
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        let node = node(&self.sim(), name);
        let id = node.view.provider_id.as_deref().unwrap_or_default();
        *self.server.lock() = id.trim_start_matches("openstack:///").to_owned();
        Ok(node)
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        Ok(Picture::of(&self.sim(), &[]).lines().to_vec())
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        let sim = self.sim();
        let calls = sim.calls();
        sim.clear_calls();
        let call = |call: &ccm_sim::Call| CloudCall {
            operation: call.op.to_owned(),
            kind: match (call.service, call.method.as_str()) {
                ("identity", _) => CallKind::Authentication,
                (_, "GET") => CallKind::Read,
                _ => CallKind::Write,
            },
        };
        calls.iter().map(call).collect()
    }

    fn budgets(&self) -> Budgets {
        let cost = |writes, reads| Cost { writes, reads };
        Budgets {
            create: cost(14, 12),
            restart_reads: 14,
            join: cost(4, 4),
            delete: cost(10, 5),
        }
    }

    fn can_fail(&self, call: &CloudCall, failure: Failure) -> bool {
        failure != Failure::Busy || call.operation.starts_with("loadbalancer")
    }

    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()> {
        let status = |code, body, headers| Action::Status { code, body, headers };
        let action = match failure {
            Failure::Busy => {
                let text = "Load Balancer 6b0a5a2e is immutable and cannot be updated.";
                let body = json!({"faultcode": "Client", "faultstring": text, "debuginfo": null});
                status(409, Some(body.to_string()), BTreeMap::new())
            }
            Failure::Throttled => status(429, None, [("Retry-After".to_owned(), "0".to_owned())].into()),
            Failure::Unavailable => Action::status(500),
            Failure::LostReply => Action::CommitThenDrop,
            Failure::NoReply => Action::Hold {
                at: Moment::AfterCommit,
            },
        };
        let sim = self.sim();
        let fault = sim.add_fault(Fault {
            nth: u64::try_from(nth).unwrap(),
            ..Fault::new(action).once()
        });
        Box::pin(async move { drop(sim.wait_for_fault(fault).await) })
    }

    fn edits(&self) -> &[Edit] {
        &EDITS
    }

    async fn edit(&self, name: &str) -> Result<(), BoxError> {
        let sim = self.sim();
        match name {
            "create load balancer" => drop(OtherClient::of(&sim).await.balancer("mine").await),
            "add security group to port" => {
                let other = OtherClient::of(&sim).await;
                let body = json!({"name": "mine"});
                let group = other.create_in_network("security-groups", "security_group", body).await;
                let port = sim.server_ports(&self.server.lock()).remove(0);
                other.join_group(&port, &group).await;
            }
            _ => {
                let web = sim.load_balancers().remove(0);
                match patch(name, &web) {
                    Some((id, change)) => sim.patch_object(&id, change.as_object().unwrap())?,
                    None => remove(name, &sim, &web)?,
                }
            }
        }
        Ok(())
    }

    fn change(&self, service: &mut ServiceView) {
        annotate(service, "loadbalancer.openstack.org/connection-limit", Some("7"));
        annotate(service, "loadbalancer.openstack.org/health-monitor-delay", Some("9"));
    }

    fn wait_until(&self) -> WaitUntil {
        advance_to
    }
}

conformance::balancer_tests!(Simulated::default());
