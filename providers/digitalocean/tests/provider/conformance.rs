//! The conformance suite of all providers, on the simulator.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{
        cluster::WaitUntil,
        conformance::{
            self, BalancerSubject, BoxError, Budgets, CallKind, CloudCall, Cost, Edit, EditResult, Failure,
            Subject,
        },
    },
};
use ccm_sim::{
    Action, Fault, Moment,
    digitalocean::{Config, DigitalOcean},
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::cloud::{
    ANNOTATION, advance_to, annotate_all, answer, build, create_balancer, environment, fields, node,
};

struct Simulated {
    sim: Arc<DigitalOcean>,
    cloud: Arc<dyn Cloud>,
}

impl Simulated {
    async fn new() -> Self {
        let sim = Arc::new(DigitalOcean::start(Config::default()).await.unwrap());
        // The suite creates many clusters. The quota has its own tests.
        sim.set_quota(ccm_sim::digitalocean::SERVICE, None);
        let cloud = build(environment(&sim)).await.unwrap();
        Self { sim, cloud }
    }

    fn id(&self, name: &str) -> Result<String, BoxError> {
        let all = self.sim.documents("droplets");
        let found = all.iter().rfind(|droplet| droplet["name"] == name);
        Ok(found.ok_or("no such droplet")?["id"].to_string())
    }
}

#[async_trait]
impl Subject for Simulated {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.cloud)
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        self.sim.create_droplet(name);
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        Ok(self.sim.remove("droplets", &self.id(name)?)?)
    }

    async fn shut_down(&self, name: &str) -> Result<(), BoxError> {
        let off = fields(json!({"status": "off"}));
        Ok(self.sim.change("droplets", &self.id(name)?, off)?)
    }

    fn absent_provider_id(&self) -> String {
        "digitalocean://4000000000".to_owned()
    }

    fn malformed_provider_id(&self) -> String {
        "digitalocean://12x".to_owned()
    }

    fn requests(&self) -> Option<usize> {
        Some(self.sim.calls().len())
    }
}

const EDITS: [Edit; 10] = [
    Edit::new("delete load balancer", EditResult::Reverted),
    Edit::new("rename", EditResult::Reverted),
    Edit::new("remove rule", EditResult::Reverted),
    Edit::new("change health check", EditResult::Reverted),
    Edit::new("remove droplet", EditResult::Reverted),
    // No annotation sets the size.
    Edit::new("resize", EditResult::Unchanged),
    Edit::new("choose project", EditResult::Unchanged),
    Edit::new("choose ciphers", EditResult::Unchanged),
    Edit::new("add tag", EditResult::Unchanged),
    Edit::new("create load balancer", EditResult::Foreign),
];

/// The change of an edit.
fn patch(name: &str, web: &Value) -> Option<Value> {
    let edited = |field: &str, change: fn(&mut Value)| {
        let mut value = web[field].clone();
        change(&mut value);
        json!({ field: value })
    };
    let remove_first = |list: &mut Value| drop(list.as_array_mut().unwrap().remove(0));
    Some(match name {
        "rename" => json!({"name": "by-hand"}),
        "remove rule" => edited("forwarding_rules", remove_first),
        "change health check" => edited("health_check", |check| check["healthy_threshold"] = json!(9)),
        "remove droplet" => edited("droplet_ids", remove_first),
        "resize" => json!({"size_unit": 4}),
        "choose project" => json!({"project_id": "4de7ac8b-495b-4884-9a69-1050c6793cd6"}),
        "choose ciphers" => json!({"tls_cipher_policy": "STRONG"}),
        "add tag" => edited("tags", |tags| tags.as_array_mut().unwrap().push(json!("web"))),
        _ => return None,
    })
}

/// A load balancer as a line of sorted words.
fn line(balancer: &Value, names: &BTreeMap<String, String>) -> String {
    let mut shown = balancer.clone();
    let fields = shown.as_object_mut().unwrap();
    for field in ["id", "ip", "created_at"] {
        fields.remove(field);
    }
    let named = |id: &Value| json!(names.get(&id.to_string()));
    let droplets = fields["droplet_ids"].as_array().unwrap().iter();
    fields["droplet_ids"] = droplets.map(named).collect();
    for field in ["droplet_ids", "forwarding_rules", "tags"] {
        if let Some(list) = fields.get_mut(field).and_then(Value::as_array_mut) {
            list.sort_by_key(Value::to_string);
        }
    }
    shown.to_string()
}

#[async_trait]
impl BalancerSubject for Simulated {
    async fn reset(&self) -> Result<(), BoxError> {
        let sim = &self.sim;
        sim.clear_faults();
        for collection in ["load_balancers", "droplets"] {
            for document in sim.documents(collection) {
                let id = document["id"].to_string();
                let id = id.trim_matches('"');
                sim.remove(collection, id)?;
            }
        }
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        let cloud = build(environment(&self.sim)).await?;
        self.sim.clear_calls();
        Ok(cloud)
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        Ok(node(&self.sim, name))
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        let sim = &self.sim;
        let droplets = sim.documents("droplets").into_iter();
        let names = droplets.map(|droplet| (droplet["id"].to_string(), droplet["name"].to_string()));
        let names = names.collect();
        let balancers = sim.documents("load_balancers");
        let mut lines: Vec<_> = balancers.iter().map(|found| line(found, &names)).collect();
        lines.sort();
        Ok(lines)
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        let sim = &self.sim;
        let calls = sim.calls();
        sim.clear_calls();
        let calls = calls.into_iter().map(|call| CloudCall {
            kind: match call.method.as_str() {
                "GET" => CallKind::Read,
                _ => CallKind::Write,
            },
            operation: call.op.to_owned(),
        });
        calls.collect()
    }

    fn budgets(&self) -> Budgets {
        let cost = |writes, reads| Cost { writes, reads };
        Budgets {
            create: cost(1, 3),
            restart_reads: 1,
            join: cost(1, 1),
            delete: cost(1, 1),
        }
    }

    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()> {
        let at = Moment::AfterCommit;
        let action = match failure {
            Failure::Busy => {
                let text = "Load Balancer can't be updated while it processes previous actions";
                let body = json!({"id": "forbidden", "message": text});
                answer(403, Some(body.to_string()), &[])
            }
            Failure::Throttled => answer(429, None, &[("Retry-After", "0")]),
            Failure::Unavailable => Action::status(500),
            Failure::LostReply => Action::CommitThenDrop,
            Failure::NoReply => Action::Hold { at },
        };
        let sim = Arc::clone(&self.sim);
        let fault = sim.add_fault(Fault {
            nth: u64::try_from(nth).unwrap(),
            ..Fault::new(action).once()
        });
        Box::pin(async move { drop(sim.wait_for_fault(fault).await) })
    }

    /// Only load balancers that exist are busy.
    fn can_fail(&self, call: &CloudCall, failure: Failure) -> bool {
        let needs_it = ["loadBalancers_update", "loadBalancers_delete"];
        failure != Failure::Busy || needs_it.contains(&call.operation.as_str())
    }

    fn edits(&self) -> &[Edit] {
        &EDITS
    }

    async fn edit(&self, name: &str) -> Result<(), BoxError> {
        let sim = &self.sim;
        if name == "create load balancer" {
            create_balancer(sim, "mine");
            return Ok(());
        }
        let web = sim.documents("load_balancers").remove(0);
        let id = web["id"].as_str().unwrap();
        match patch(name, &web) {
            Some(change) => sim.change("load_balancers", id, fields(change))?,
            None => sim.remove("load_balancers", id)?,
        }
        Ok(())
    }

    fn change(&self, service: &mut ServiceView) {
        let annotations = "healthcheck-check-interval-seconds=7; healthcheck-healthy-threshold=4; allow-rules=ip:192.0.2.1, cidr:198.51.100.0/24";
        annotate_all(service, ANNOTATION, annotations);
    }

    fn wait_until(&self) -> WaitUntil {
        advance_to
    }
}

#[tokio::test]
async fn droplets_keep_the_contract() {
    conformance::instances(&Simulated::new().await).await;
}

conformance::balancer_tests!(Simulated::new().await);
